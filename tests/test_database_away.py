"""Two control planes and a PostgreSQL that is away for a time, or whose replica is promoted; clocks that are wrong.

The servers and the control planes are real processes. Slurm is the virtual one, which keeps a list of all changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, select

from tests.bench.ha import NODES, Pair
from understudy_controlplane.decide.leadership import CALL_SECONDS, LEASE_SECONDS
from understudy_controlplane.store import tables

if TYPE_CHECKING:
    from tests.testbed.postgres import Postgres

pytestmark = [pytest.mark.integration, pytest.mark.patient]

MEMORY_GROWTH_MAX_KIB = 100_000
"""A hundred agents report every two seconds, and are refused."""


@pytest.fixture
def server() -> Iterator[Postgres]:
    from tests.testbed.postgres import Postgres

    server = Postgres()
    yield server
    server.stop()


def fail_and_drain(pair: Pair, node: str) -> None:
    pair.agents.fail(node)
    pair.wait(lambda: pair.host.drained(node), f"{node} is drained")


def memory_kib(pair: Pair) -> int:
    lines = Path(f"/proc/{pair.leader.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])


def drains_decided(pair: Pair) -> list[str]:
    engine = create_engine(pair.leader.database)
    with engine.connect() as connection:
        query = select(tables.decision.c.subject).where(tables.decision.c.action == "quarantine")
        found = sorted(connection.execute(query).scalars())
    engine.dispose()
    return found


@pytest.mark.parametrize(
    ("promoted", "away_seconds"),
    [(False, 15.0), (True, 30.0), pytest.param(True, 90.0, marks=pytest.mark.long)],
    ids=["the same server is back", "the URL names a promoted replica", "the replica is promoted late"],
)
def test_without_postgresql_nothing_is_done_and_no_fact_is_taken_until_it_answers(
    server: Postgres, promoted: bool, away_seconds: float, tmp_path: Path
) -> None:
    if promoted:
        server.begin_replica()
    with closing(Pair(tmp_path, server)) as pair:
        fail_and_drain(pair, "n1")
        before = memory_kib(pair)
        server.crash()
        gone_at = time.monotonic()
        for one in (pair.leader, pair.standby) if promoted else ():
            one.cables[0].cut()  # the host is gone as well: it refuses no connection, it is silent
        pair.agents.fail("n2")
        time.sleep(away_seconds)
        late = [one for one in pair.host.changes if one[0] > gone_at + LEASE_SECONDS + CALL_SECONDS]
        assert late == [], "no lease, no change in Slurm"
        assert pair.agents.taken == ["n1"], "what cannot be stored waits on its node"
        assert memory_kib(pair) - before < MEMORY_GROWTH_MAX_KIB
        assert (pair.leader.process.poll(), pair.standby.process.poll()) == (None, None), "both wait for it"
        if promoted:
            server.promote()
        else:
            server.start()
        pair.wait(lambda: pair.host.drained("n2"), "n2 is drained")
        fail_and_drain(pair, "n3")
        pair.wait(pair.leader.is_ready, "people can read again, too")
        pair.leader.cables[0].mend()
        assert (pair.lost(), pair.done_twice()) == (0, 0)
        drains = sorted(what.split()[1] for _, _, what in pair.host.changes if what.startswith("drain_node "))
        assert drains == drains_decided(pair) == ["n1", "n2", "n3"], "each has its decision"


@pytest.mark.parametrize("ahead_seconds", [(0.0, 60.0), pytest.param((0.0, -60.0), marks=pytest.mark.long)])
def test_a_host_whose_clock_is_wrong_by_a_minute_takes_over_and_does_nothing_else(
    server: Postgres, ahead_seconds: tuple[float, float], tmp_path: Path
) -> None:
    with closing(Pair(tmp_path, server, ahead_seconds)) as pair:
        fail_and_drain(pair, "n1")
        pair.leader.process.kill()
        pair.agents.fail("n2")
        pair.wait(pair.standby.is_ready, "the other one leads")
        pair.wait(lambda: pair.host.drained("n2"), "n2 is drained")
        fail_and_drain(pair, "n3")
        assert (pair.lost(), pair.done_twice()) == (0, 0)
        assert {what.split()[1] for _, _, what in pair.host.changes} <= {"n1", "n2", "n3"}, "no other node is touched"
        assert len(NODES) > len(pair.agents.taken) == 3
