"""Fixtures that several folders of tests share, and what the marks mean."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
import sqlalchemy
import structlog
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests import NEED_TORCH
from tests.contract.slurm_sides import REAL_SIDES
from tests.new_database import new_database
from tests.pythons import HOOK_VERSIONS, missing
from tests.secrets_in_logs import has_secret
from tests.testbed.cluster import SlurmCluster
from tests.testbed.installation import NATIVE, Installation
from tests.testbed.network import why_impossible

if TYPE_CHECKING:
    from tests.object_store import ObjectStore
    from tests.testbed.postgres import Postgres

# A busy machine is no fault.
settings.register_profile("test", deadline=None)
settings.register_profile("long", deadline=None, max_examples=10_000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("test")

structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)
"""Its own choice, where `rich` is installed, shows each frame's variables: seconds for each logged exception."""

collect_ignore = [] if importlib.util.find_spec("torch") else list(NEED_TORCH)

STARTS_PROCESS = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"})
"""Audit events of Python (https://docs.python.org/3/library/audit_events.html)."""

SHARE_A_CLUSTER = (
    "tests/launch/test_on_a_cluster.py::",
    "tests/acceptance/test_demo.py::",
    "tests/contract/test_service_user.py::",
    *(f"[{side}" for side in REAL_SIDES),
)
"""Parts of the ids of tests: those with the same part share a cluster."""
CLUSTERS_OF_A_SIDE = 3
"""The contract's tests on one side wait for minutes: each third of them has a cluster of its own."""
ONE_BY_ONE = ("tests/launch/test_beside.py::", "tests/recover/", "tests/store/test_lead.py::")

NOT_POSSIBLE = "not possible on this machine, whose nodes cannot have namespaces"

unit_tests_running: list[str] = []


def share_compiled_statements() -> None:
    """Each test has databases of its own, and each would compile the same statements again: a third of the processor
    time of a recovery. All engines of SQLite share what one of them has compiled.
    """
    create = sqlalchemy.create_engine
    shared = create("sqlite://", query_cache_size=10_000)
    shared.connect().close()  # now its dialect knows the version of SQLite

    def create_engine(*arguments: Any, **options: Any) -> sqlalchemy.Engine:
        engine = create(*arguments, **options)
        if engine.dialect.name == "sqlite":
            engine.dialect, engine._compiled_cache = shared.dialect, shared._compiled_cache
        return engine

    vars(sqlalchemy)["create_engine"] = create_engine


share_compiled_statements()


def refuse_processes(
    event: str,
    _arguments: tuple[object, ...],
    # Audit hooks are called until the interpreter has ended, when this module's names are gone.
    refused: frozenset[str] = STARTS_PROCESS,
    running: list[str] = unit_tests_running,
) -> None:
    if event in refused and running:
        raise RuntimeError(f"{running[-1]} starts a process: mark it `integration`")


sys.addaudithook(refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for no garbage meanwhile, when hardly anything becomes some and each look takes longer than the one before.
    After it none is looked for among modules and collected tests, a million objects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` deselects tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Says to `tests.run` which files have tests with which marks."""
    written = Path(os.environ.get("UNDERSTUDY_MARKS") or os.devnull)
    if written.exists() or os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
        return
    marks: dict[str, set[tuple[str, ...]]] = {}
    for item in items:
        marks.setdefault(item.nodeid.partition("::")[0], set()).add(
            tuple(sorted({m.name for m in item.iter_markers()}))
        )
    written.write_text(json.dumps({file: sorted(combinations) for file, combinations in marks.items()}))


def pytest_collection_finish() -> None:
    """Fails a unit test from now on that composes a whole control plane: that takes longer than a hundred others."""
    module = sys.modules.get("understudy_controlplane.app")
    if module is None:
        return
    assemble = module.assemble

    def refuse_in_unit_tests(*arguments: object) -> object:
        if unit_tests_running:
            raise RuntimeError(f"{unit_tests_running[-1]} composes a whole control plane: mark it `integration`")
        return assemble(*arguments)

    vars(module)["assemble"] = refuse_in_unit_tests


def is_unit(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(mark) for mark in ("integration", "cluster", "timed"))


@pytest.fixture(scope="session", autouse=True)
def _one_event_loop_for_requests() -> Iterator[None]:
    """Starlette's TestClient starts a thread and an event loop for each request otherwise: half of its cost."""
    module = sys.modules.get("starlette.testclient")  # tests without requests do not import it
    if module is None:
        yield
        return
    with start_blocking_portal() as module.TestClient.portal:
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server of PostgreSQL."""
    from tests.testbed.postgres import Postgres  # unit tests need neither the server nor its driver

    server = Postgres()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _object_store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    from tests.object_store import serving

    with serving(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture
def object_store(_object_store_server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A server that speaks S3, with an empty bucket; the environment leads to it."""
    _object_store_server.empty()
    for name, value in _object_store_server.environment.items():
        monkeypatch.setenv(name, value)
    return _object_store_server


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    url = postgres.new_database()
    yield url
    postgres.drop(url)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database of the newest schema, of each kind that is supported."""
    if request.param == "sqlite":
        yield new_database(tmp_path / "fleet.db")
        return
    yield request.getfixturevalue("postgres_url")


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def shared_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same for all tests of a module."""
    if request.param == "sqlite":
        yield new_database(tmp_path_factory.mktemp("database") / "fleet.db")
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.new_database()
    yield url
    server.drop(url)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A unit test that starts a process or composes a control plane fails."""
    if is_unit(item):
        unit_tests_running.append(item.nodeid)
    try:
        return (yield)
    finally:
        unit_tests_running.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test fails whose output, with that of the processes it started, has a secret."""
    report = yield
    own = [text for name, text in report.sections if name.endswith(report.when)]
    if report.passed and any(has_secret(text.encode(errors="replace")) for text in own):
        report.outcome, report.longrepr = "failed", "its output has a secret (tests/secrets_in_logs.py)"
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("machines") and (why := why_impossible()):
        pytest.skip(f"{NOT_POSSIBLE}: {why}")


class SharedClusters(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Tests that share a cluster run one after the other in one process; groups that take long begin first.

    pytest-xdist's own `--dist loadgroup` puts the group into the test's id, which has no effect since pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        shared = next((part for part in SHARE_A_CLUSTER if part in nodeid), nodeid)
        return f"{shared}{crc32(nodeid.encode()) % CLUSTERS_OF_A_SIDE}" if shared.startswith("[") else shared


class SharedFiles(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of a file run in one process, but for files whose tests share nothing and take minutes together."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    schedulers = {"loadgroup": SharedClusters, "loadfile": SharedFiles}
    kind = schedulers.get(config.getvalue("dist"))
    return kind and kind(config, log)


def pytest_report_header() -> list[str]:
    return [f"not collected, because torch is not installed: {', '.join(collect_ignore)}"] if collect_ignore else []


class Clusters:
    """Real Slurm clusters of 8 nodes, one a version, started when first asked for."""

    def __init__(self) -> None:
        self._running: dict[str, SlurmCluster] = {}
        self._stack = ExitStack()

    def get(self, installation: Installation) -> SlurmCluster:
        if installation.slurm not in self._running:
            # Not pytest's own temporary directory: its path is long for sockets, and closed to users whose jobs run.
            directory = Path(tempfile.mkdtemp(prefix="understudy-"))
            directory.chmod(0o755)
            self._stack.callback(shutil.rmtree, directory, ignore_errors=True)
            prolog = directory / "prolog"
            prolog.write_text(f'#!/bin/sh\n[ ! -e "{directory}/bad-prolog.$SLURMD_NODENAME" ]\n')
            prolog.chmod(0o755)
            epilog = directory / "epilog"
            epilog.write_text(
                f'#!/bin/sh\n[ ! -e "{directory}/slow-epilog" ] || sleep "$(cat "{directory}/slow-epilog")"\n'
            )
            epilog.chmod(0o755)
            cluster = SlurmCluster(
                directory,
                # Quicker than Slurm's three seconds from a submission to its start: only the tests' patience is tuned.
                extra_lines=[
                    "SchedulerParameters=batch_sched_delay=0,sched_interval=1",
                    "RebootProgram=/bin/true",
                    # Preemption has no effect while all partitions have the same PriorityTier.
                    "PreemptType=preempt/partition_prio",
                    "PreemptMode=REQUEUE",
                    f"Prolog={prolog}",
                    f"Epilog={epilog}",
                ],
                slurm=installation,
                racks={"rack1": 4, "rack2": 4},
            )
            self._running[installation.slurm] = self._stack.enter_context(cluster)
        return self._running[installation.slurm]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def slurm_clusters() -> Iterator[Clusters]:
    """Tests that use it carry the mark `cluster` and leave each cluster as they found it."""
    clusters = Clusters()
    try:
        yield clusters
    finally:
        clusters.close()


@pytest.fixture(scope="session")
def slurm_cluster(slurm_clusters: Clusters) -> SlurmCluster:
    """The cluster of this machine's own Slurm."""
    return slurm_clusters.get(NATIVE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What could not be tested here. Which versions of Python the hook was tried on, and which this machine lacks."""
    for report in terminalreporter.stats.get("skipped", []):
        if NOT_POSSIBLE in report.longreprtext:
            terminalreporter.write_line(f"{report.nodeid}: {report.longreprtext}")
    passed = terminalreporter.stats.get("passed", [])
    properties = [pair for report in passed for pair in getattr(report, "user_properties", ())]
    tried = [str(value) for name, value in properties if name == "hook on Python"]
    if tried:
        lacking = missing(HOOK_VERSIONS)
        tail = f"; not on this machine: {', '.join(lacking)}" if lacking else ""
        terminalreporter.write_line(f"the hook was tried on Python {', '.join(tried)}{tail}")
