"""A whole recovery with its journal on PostgreSQL: the rehearsals beside it are on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.recover.rehearsal import Rehearsal
from tests.store.query_plans import captured, whole_tables_read_by_postgresql
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import RecoveryStatus

if TYPE_CHECKING:
    from tests.testbed.postgres import Postgres

pytestmark = [pytest.mark.integration, pytest.mark.patient]


@pytest.fixture
def rehearsal(postgres: Postgres, tmp_path: Path) -> Iterator[Rehearsal]:
    url = postgres.new_database()
    rehearsal = Rehearsal(tmp_path, server={"database": url})
    yield rehearsal
    rehearsal.control_plane.close()
    postgres.drop(url)


def test_a_gang_leaves_a_broken_node_for_a_spare(rehearsal: Rehearsal) -> None:
    engine = rehearsal.control_plane.engine
    with captured(engine) as statements:
        rehearsal.fail("n2")
        rehearsal.run_until(lambda: rehearsal.gang_nodes() == ["n1", "n3", "n4", "n6"], 60)
        rehearsal.run(10)
    assert rehearsal.state_of("n2") is NodeState.QUARANTINED
    assert {one.status for one in rehearsal.recoveries()} == {RecoveryStatus.SUCCEEDED}
    no_index = "SELECT id FROM decision WHERE reason = 'x'"
    assert whole_tables_read_by_postgresql(engine, {no_index: [()]}) == {no_index: "decision"}
    found = whole_tables_read_by_postgresql(engine, statements)
    assert not found, "\n".join(f"{names}: {query}" for query, names in found.items())


def test_a_control_plane_that_is_killed_in_the_middle_goes_on(rehearsal: Rehearsal) -> None:
    rehearsal.kill_node("n2")
    rehearsal.run_until(lambda: rehearsal.state_of("n2") is not NodeState.IN_SERVICE, 60)
    rehearsal.restart_control_plane()
    rehearsal.run_until(lambda: rehearsal.gang_nodes() == ["n1", "n3", "n4", "n6"], 120)


def test_a_database_that_was_away_for_a_moment_costs_a_tick(rehearsal: Rehearsal, postgres: Postgres) -> None:
    rehearsal.fail("n2")
    rehearsal.run(0.4)
    postgres.end_sessions()
    ticks = rehearsal.control_plane.loop.pulse.ticks_total
    with pytest.raises(Exception, match="terminat"):
        rehearsal.run(5)
    rehearsal.run_until(lambda: rehearsal.gang_nodes() == ["n1", "n3", "n4", "n6"], 60)
    assert rehearsal.control_plane.loop.pulse.ticks_total > ticks
