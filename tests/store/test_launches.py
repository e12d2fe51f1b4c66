"""What a user's launchers report costs a round no more than its own amount."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from tests import builders as b
from tests.store.query_plans import captured
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import one_view, reading
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.launches import LaunchStore
from understudy_wire.facts import LaunchCause

pytestmark = pytest.mark.integration

JOB = b.job()
FEW, MANY = 500, 5000


def report(engine: Engine, count: int, cause: LaunchCause) -> None:
    """So many launches of one job, all ended for this cause on n1, by rank 1, after a step on n2."""
    (known,) = FleetStore(engine).see_jobs([JOB], b.NOW)
    of_job: dict[str, Any] = {"job": known.row, "restart_count": JOB.slurm.restart_count, "received_at": b.NOW}
    end: dict[str, Any] = {
        "table_row": "L1",
        "reason": "x" * 1000,
        "counted": True,
        "failed_node": "n1",
        "rank": 1,
        "blamed": ["n1"],
    }
    end |= {"status": 1, "cause": cause.value}
    start: dict[str, Any] = {"node": "n1", "seats": ["n2"], "spares": [], "lost": []}
    numbers = range(count)
    with engine.begin() as connection:
        rows = [of_job | start | {"launch": one, "at": b.NOW - one - 1} for one in numbers]
        connection.execute(insert(tables.launch_start), rows)
        rows = [of_job | end | {"launch": one, "at": b.NOW + one, "progressed": one == count - 1} for one in numbers]
        connection.execute(insert(tables.launch_end), rows)


QUERIES: dict[str, tuple[LaunchCause, Callable[[LaunchStore], object]]] = {
    "broken off": (LaunchCause.BLACK_HOLE, lambda store: store.broken_off(b.CLUSTER, b.NOW - 600)),
    "black holes": (LaunchCause.BLACK_HOLE, lambda store: store.black_holes_since(b.NOW - 600)),
    "replacements": (LaunchCause.HARDWARE, lambda store: store.replacements(b.CLUSTER)),
    "ended well": (LaunchCause.DONE, lambda store: store.ended_well(b.CLUSTER)),
    "has ended well": (
        LaunchCause.DONE,
        lambda store: store.has_ended_well(JOB.key, JOB.slurm.restart_count, b.NOW - 600),
    ),
}


def work(engine: Engine, ask: Callable[[], object]) -> tuple[int, int]:
    """How many statements were made, and thousands of steps of SQLite's virtual machine: each row that it reads costs
    some.
    """
    steps: list[None] = []
    with one_view(engine), reading(engine) as connection, captured(engine) as statements:
        driver: Any = connection.connection.driver_connection
        if engine.dialect.name == "sqlite":
            driver.set_progress_handler(lambda: steps.append(None), 1000)
        assert ask()
        if engine.dialect.name == "sqlite":
            driver.set_progress_handler(None, 0)
    return sum(map(len, statements.values())), len(steps)


@pytest.mark.parametrize("name", QUERIES)
def test_what_one_user_reports_of_a_job_does_not_stop_the_rounds(engine: Engine, name: str) -> None:
    """Ten times as many cost about ten times as much: a hundred times, where each one is compared with the others."""
    cause, ask = QUERIES[name]
    found = []
    for count in (FEW, MANY):
        with engine.begin() as connection:
            connection.execute(tables.launch_start.delete())
            connection.execute(tables.launch_end.delete())
        report(engine, count, cause)
        found.append(work(engine, partial(ask, LaunchStore(engine))))
    (statements, steps), (more_statements, more_steps) = found
    assert more_statements == statements <= 5
    assert more_steps <= 20 * (steps + 1)


def test_only_the_newest_end_of_a_job_counts_as_broken_off(engine: Engine) -> None:
    report(engine, MANY, LaunchCause.BLACK_HOLE)
    (end,) = LaunchStore(engine).broken_off(b.CLUSTER, b.NOW - 600).values()
    assert (end.launch, end.node, end.on_newcomer) == (MANY - 1, "n1", True)
