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
import time
from contextlib import closing
from pathlib import Path
from statistics import quantiles
from typing import Any

import structlog
from fastapi.testclient import TestClient
from sqlalchemy import Connection, Engine

from tests import REPOSITORY
from tests.bench.ingest_server import StillSlurm
from tests.bench.result import BENCH_DIRECTORY
from tests.store.query_plans import Statements, captured, read_all
from tests.tokens import add_tokens, bearer
from tests.year import NOW, Shape, node_name, write_year
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.config import Config
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.slurm import SlurmJob, SlurmNode
from understudy_controlplane.serve import collect_rarely

SHAPE = Shape()
RUNS = 10
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
    """Of runs that find their pages in memory."""
    milliseconds = []
    connection.exec_driver_sql(query, values).fetchall()
    for _ in range(RUNS):
        begun = time.thread_time()
        connection.exec_driver_sql(query, values).fetchall()
        milliseconds.append((time.thread_time() - begun) * 1000)
    return quantiles(milliseconds, n=100, method="inclusive")[-1]


def main() -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    collect_rarely()
    year = BENCH_DIRECTORY / "year.db"
    year_of(SHAPE, year)
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as directory:
        copy = shutil.copy(year, Path(directory) / "year.db")
        with closing(sqlite3.connect(copy)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        begun = time.perf_counter()
        config = Config.model_validate({"cluster": "c", "server": {"database": f"sqlite:///{copy}"}})
        plane = compose(config, Outside(YearSlurm(), lambda _node: True, StoodClock()))
        print(f"start: {time.perf_counter() - begun:.2f} s")
        add_tokens(plane.engine)
        found = slowest(plane.engine, asked_of(plane))
        plane.close()
    for milliseconds, query in found[:12]:
        print(f"{milliseconds:7.1f} ms  {' '.join(query.split())[:600]}")
    print(f"{len(found)} queries, the slowest takes {found[0][0]:.1f} ms")
    return int(found[0][0] > MILLISECONDS_MAX)


if __name__ == "__main__":
    sys.exit(main())
