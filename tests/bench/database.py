"""Every query of ticks and routes on the database of a year (`tests.year`): processor time at the 99th percentile.

`python -m tests.bench.database` prints them, and the bytes that each kind of row takes (`docs/sizing.md`); it fails
where one takes longer than 20 ms. The database is made once and kept in `build/bench`.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from statistics import quantiles
from typing import Any

import structlog
from fastapi.testclient import TestClient
from sqlalchemy import Connection, Engine

from tests import REPOSITORY
from tests.bench.report_server import StillSlurm
from tests.bench.result import BENCH_DIRECTORY
from tests.store.query_plans import Statements, captured, read_all
from tests.tokens import add_tokens, bearer
from tests.year import NOW, Shape, node_name, write_year
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.config import Config, Retention
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.slurm import SlurmJob, SlurmNode
from understudy_controlplane.pruner import Pruner
from understudy_controlplane.serve import tune_interpreter
from understudy_controlplane.store.database import open_database
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.retention import RetentionStore

SHAPE = Shape()
RUNS = 10
WRITES = 1000
MILLISECONDS_MAX = 20.0
JOB = SHAPE.jobs - 1
NODE = node_name(7)
VALUES = {
    "job_id": (str(JOB),),
    "job": (str(JOB), "1"),
    "node": (NODE,),
    "names": (NODE,),
    "subject": (NODE, "of no record"),
    "user": ("user017", "of no job"),
    "limit": ("100",),
    "since": (str(NOW - 3600), "1"),
    "until": (str(NOW), str(NOW - 300 * 86_400)),
}


class YearSlurm(StillSlurm):
    """The nodes and the running jobs of the year."""

    def cluster_name(self) -> str:
        return "c"

    def nodes(self) -> list[SlurmNode]:
        names = map(node_name, range(SHAPE.nodes))
        return [SlurmNode(name, "127.0.0.1", 6818, "ALLOCATED", frozenset(), ("train",)) for name in names]

    def jobs(self) -> list[SlurmJob]:
        (job,) = super().jobs()
        return [job]


class YearClock:
    """The year is over, and seconds pass."""

    def now(self) -> float:
        return NOW

    def monotonic(self) -> float:
        return time.monotonic()


class StoodClock:
    def now(self) -> float:
        return NOW

    def monotonic(self) -> float:
        return NOW


def year_of(shape: Shape, path: Path) -> None:
    """Made again when what makes it has changed."""
    made_by = [REPOSITORY / "tests" / "year.py", *(REPOSITORY / "migrations" / "versions").glob("*.py")]
    if path.exists() and path.stat().st_mtime > max(file.stat().st_mtime for file in made_by):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    for name, (count, size) in write_year(partial, shape).items():
        print(f"{name:18} {count:>10} rows {size / max(count, 1):>6.0f} bytes each {size / 1e6:>8.1f} MB", flush=True)
    partial.rename(path)


def asked_of(plane: ControlPlane) -> Statements:
    """What a start, ticks and all routes ask."""
    with captured(plane.engine, plane.reads.engine) as statements:
        for _ in range(3):
            plane.loop.tick()
        read_all(plane.app, TestClient(plane.app, headers=bearer(Role.ADMIN)), VALUES)
    return statements


def slowest(engine: Engine, statements: Statements) -> list[tuple[float, str]]:
    """Milliseconds at the 99th percentile, and the query; the slowest first."""
    found = []
    with engine.connect() as connection:
        for query, executed in statements.items():
            if query.lstrip().startswith("SELECT"):
                found += [(p99(connection, query, values), query) for values in executed]
    return sorted(found, reverse=True)


def p99(connection: Connection, query: str, values: Any) -> float:
    """Percentile 99 of runs that find their pages in memory."""
    milliseconds = []
    connection.exec_driver_sql(query, values).fetchall()
    for _ in range(RUNS):
        begun = time.thread_time()
        connection.exec_driver_sql(query, values).fetchall()
        milliseconds.append((time.thread_time() - begun) * 1000)
    return quantiles(milliseconds, n=100, method="inclusive")[-1]


def waits_while_pruned(path: Path) -> tuple[tuple[float, float, float], int]:
    """Milliseconds of a small write of the loop while 330 days are deleted: median and 99th percentile; the 99th
    percentile without that. And how many rows were deleted.
    """
    engine = open_database(f"sqlite:///{path}")
    fleet = FleetStore(engine)
    days = {"jobs_days": 30, "job_details_days": 8, "events_days": 8, "incidents_days": 30}
    pruner = Pruner(RetentionStore(engine), lambda: Retention.model_validate(days), YearClock())

    def write_seconds() -> list[float]:
        seconds = []
        for number in range(WRITES):
            begun = time.perf_counter()
            fleet.note_seen([node_name(number % SHAPE.nodes)], [], NOW, {})
            seconds.append((time.perf_counter() - begun) * 1000)
            time.sleep(0.01)
        return seconds

    quiet = quantiles(write_seconds(), n=100)[-1]
    deleted: list[int] = []
    thread = threading.Thread(target=lambda: deleted.append(pruner.prune(pruner.wait).total()))
    thread.start()
    busy = quantiles(write_seconds(), n=100)
    pruner.stop()
    thread.join()
    engine.dispose()
    return (busy[49], busy[-1], quiet), deleted[0]


def main() -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    tune_interpreter()
    year = BENCH_DIRECTORY / "year.db"
    year_of(SHAPE, year)
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as directory:
        copy = Path(directory) / "year.db"
        shutil.copy(year, copy)
        with closing(sqlite3.connect(copy)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        begun = time.perf_counter()
        config = Config.model_validate({"cluster": "c", "server": {"database": f"sqlite:///{copy}"}})
        plane = compose(config, Outside(YearSlurm(), lambda _node: True, StoodClock()))
        print(f"start: {time.perf_counter() - begun:.2f} s")
        add_tokens(plane.engine)
        found = slowest(plane.engine, asked_of(plane))
        plane.close()
        waits, deleted = waits_while_pruned(copy)
    print(
        f"{deleted} rows deleted meanwhile: a write takes {waits[0]:.1f} ms, p99 {waits[1]:.1f}; without {waits[2]:.1f}"
    )
    for milliseconds, query in found[:12]:
        print(f"{milliseconds:7.1f} ms  {' '.join(query.split())[:600]}")
    print(f"{len(found)} queries, the slowest takes {found[0][0]:.1f} ms")
    return int(found[0][0] > MILLISECONDS_MAX)


if __name__ == "__main__":
    sys.exit(main())
