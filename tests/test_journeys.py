"""The journeys of docs/architecture.md, run with a real agent, a real control plane and the fake Slurm."""

from __future__ import annotations

import importlib
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn

from tests import REPOSITORY
from tests.agent.running_agent import agent_config, running_agent, write_xid
from tests.recover.rehearsal import Rehearsal
from tests.testbed.configuration import free_ports
from tests.tokens import add_tokens, bearer, secret
from tests.waiting import PATIENCE_SECONDS, wait_until
from understudy import Monitor
from understudy_agent.config import Config
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.node import NodeState

pytestmark = pytest.mark.integration

DOCUMENT = (REPOSITORY / "docs" / "architecture.md").read_text()


class Places:
    """The places that a journey names, and the calls of them."""

    def __init__(self, heading: str) -> None:
        section = DOCUMENT.partition(f"### {heading}\n")[2].partition("\n#")[0]
        named = dict.fromkeys(re.findall(r"`([\w/]+\.py:[\w.]+)`", section))
        self._watched = {code: place for place in named if (code := code_of(place)) is not None}
        self.named = list(self._watched.values())
        self._calls: list[str] = []

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            place = self._watched.get(frame.f_code)
            if place is not None and self._calls[-1:] != [place]:
                self._calls.append(place)

    def passed(self) -> list[str]:
        """The longest beginning of the journey that was passed in its order."""
        calls = iter(list(self._calls))
        return list(takewhile(lambda place: place in calls, self.named))

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watches this thread, and threads that start meanwhile."""
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def code_of(place: str) -> CodeType | None:
    """None: a class, or a method of a protocol, which is never entered itself."""
    path, _, name = place.partition(":")
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    prefix = "" if path.startswith("understudy") else "understudy_controlplane."
    found: Any = importlib.import_module(prefix + module)
    for part in name.split("."):
        if getattr(found, "_is_protocol", False):
            return None
        found = getattr(found, part)
    found = getattr(found, "__wrapped__", found)
    code: CodeType | None = getattr(found, "__code__", None)
    return code


class OneBoot(Rehearsal):
    begins_at = time.time()  # the training hook dates its facts by the machine's clock
    gang_user = "root"  # as this process, which is its rank

    def _boot_id(self, name: str) -> str:  # noqa: ARG002 - the same for all nodes, as the agent reports it
        return "boot-1"


@contextmanager
def serving(rehearsal: Rehearsal, port: int) -> Iterator[None]:
    """The routes alone: the rounds of the loop are the rehearsal's."""
    settings = uvicorn.Config(rehearsal.control_plane.app, port=port, lifespan="off", log_config=None)
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    (tmp_path / "fleet").mkdir()
    return OneBoot(tmp_path / "fleet")


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def agent(tmp_path: Path, port: int, rehearsal: Rehearsal) -> Config:
    config = agent_config(tmp_path, f"http://127.0.0.1:{port}")
    add_tokens(rehearsal.control_plane.engine, ["n1"])
    assert config.token_file is not None
    config.token_file.write_text(secret(Role.NODE, "n1"))
    return msgspec.structs.replace(config, cluster=rehearsal.config.cluster)


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch, rehearsal: Rehearsal, agent: Config) -> None:
    """This process is rank 0 of the gang on n1."""
    environment = {
        "SLURM_JOB_ID": str(rehearsal.gang),
        "SLURM_RESTART_COUNT": "0",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "UNDERSTUDY_SOCKET": str(agent.socket),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_a_kernel_log_line_becomes_a_drained_node(rehearsal: Rehearsal, port: int, agent: Config) -> None:
    places = Places("A kernel-log line becomes a drained node")
    facts = rehearsal.control_plane.stores.facts
    with places.watch(), serving(rehearsal, port), running_agent(agent):
        write_xid(agent, 1)
        wait_until(lambda: facts.kernel_events(0, 0.0))
        rehearsal.run_until(rehearsal.ended)
        rehearsal.run(5.0)  # the whole of Slurm is read again, every few seconds
    assert rehearsal.state_of("n1") is NodeState.QUARANTINED
    assert "n1" not in rehearsal.gang_nodes()
    assert places.passed() == places.named


@pytest.mark.usefixtures("rank")
def test_a_step_time_comes_to_be_compared_with_its_peers(rehearsal: Rehearsal, port: int, agent: Config) -> None:
    """What the comparison finds is the promise of tests/detect."""
    places = Places("A step time becomes a quarantined straggler")
    compared = places.named[: places.named.index("detect/slow_ranks.py:judge_all") + 1]
    telemetry = rehearsal.control_plane.telemetry
    with places.watch(), serving(rehearsal, port), running_agent(agent):
        monitor = Monitor()
        for _ in monitor.steps(range(100)):
            time.sleep(0.001)
        wait_until(lambda: telemetry.ranks(rehearsal.gang, range(1)))
        monitor.close()
        rehearsal.run(2)
    assert places.passed()[: len(compared)] == compared


def test_an_operators_request_becomes_a_held_node(rehearsal: Rehearsal, port: int) -> None:
    places = Places("An operator's request becomes a held node")
    add_tokens(rehearsal.control_plane.engine)
    with places.watch(), serving(rehearsal, port):
        sent = {"reason": "new cables", "for_seconds": 60}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/nodes/n8/hold", json=sent, headers=bearer(Role.OPERATOR))
        assert answer.status_code == 202
        rehearsal.run(5)
        assert rehearsal.state_of("n8") is NodeState.OPERATOR_HOLD
        rehearsal.run(120)
    assert places.passed() == places.named


@pytest.mark.usefixtures("rank")
def test_a_checkpoint_notice_becomes_the_restore_point(
    rehearsal: Rehearsal, port: int, agent: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places("A checkpoint notice becomes the restore point")
    with places.watch(), serving(rehearsal, port), running_agent(agent):
        monitor = Monitor()
        monitor.checkpoint_saved(7, tmp_path, "kmsg")
        monitor.close()
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        rehearsal.fail("n2")
        rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
        rehearsal.run(1)  # until the control plane has seen it
        again = Monitor()
        # The control plane looks now and then where ranks have started for a checkpoint on a node's disk, by a clock
        # that does not go on here.
        stores = rehearsal.control_plane.stores
        gang = stores.fleet.known_jobs(rehearsal.config.cluster, [rehearsal.gang])[rehearsal.gang]
        wait_until(lambda: stores.checkpoints.nodes_of_ranks(gang.key, Attempt(1)))
        restore = again.restore_point()
        again.close()
    assert (restore.step, restore.path) == (7, str(tmp_path))
    assert places.passed() == places.named
