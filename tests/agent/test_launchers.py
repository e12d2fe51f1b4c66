"""A launcher's connection to its node's agent and the control plane, over a real socket and real HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from tests.waiting import PATIENCE_SECONDS
from understudy_agent.config import Config
from understudy_agent.launchers import LAUNCHERS_OF_USER_MAX, PROGRESS_SECONDS, Launchers
from understudy_agent.rank_messages import Answer, Progress
from understudy_agent.shares import Pace
from understudy_agent.uplink import RejectedError
from understudy_launcher import messages
from understudy_launcher.agent_client import AgentLine, Restart
from understudy_launcher.checkpoint_files import NamedCheckpoints
from understudy_launcher.event_log import Events
from understudy_launcher.messages import LauncherState
from understudy_launcher.nodes import FileVerdicts, Nodes
from understudy_launcher.progress import HookProgress, TimeAlive
from understudy_wire.facts import LaunchEnded, LaunchStarted
from understudy_wire.launcher import EarlierAllocations, LauncherAnswer, LauncherOrders, LauncherReport
from understudy_wire.launcher import LauncherState as WireState
from understudy_wire.launcher import Restart as WireRestart

pytestmark = pytest.mark.integration

STATE: LauncherState = {
    "type": "launcher",
    "job_id": 7,
    "restart_count": 1,
    "launch": 0,
    "phase": "running",
    "seats": ("n1", "n2"),
    "spares": ("n3",),
    "lost": (),
    "nodes_min": 2,
    "group_sizes": "tp=8",
    "ranks_per_node": 8,
    "unwell": {"n3": "GPU 3: 12 wrong elements"},
    "nodes_packed": "",
    "ended_well": True,
    "asks_requeue": True,
}
NEXT: LauncherState = {**STATE, "launch": 1, "seats": ("n1", "n3"), "spares": (), "lost": ("n2",)}
STARTED: messages.LaunchStarted = {
    "type": "launch_started",
    "job_id": 7,
    "restart_count": 1,
    "launch": 0,
    "seats": ("n1", "n2"),
    "spares": ("n3",),
    "at": 1.0,
    "lost": (),
    "nodes_packed": "",
}
ENDED: messages.LaunchEnded = {
    "type": "launch_ended",
    "job_id": 7,
    "restart_count": 1,
    "launch": 0,
    "table_row": "L120",
    "reason": "failed first again",
    "at": 2.0,
    "progressed": False,
    "counted": True,
    "cause": "black_hole",
    "failed_node": "n2",
    "rank": 1,
    "status": -9,
    "blamed": ("n2",),
}
N2_IS_BAD = LauncherAnswer("a", LauncherOrders({"n2": "Xid 79"}))


@pytest.fixture
def control_plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as fake:
        yield fake


@pytest.fixture
def config(tmp_path: Path, control_plane: FakeControlPlane) -> Config:
    return agent_config(tmp_path, control_plane.url)


@pytest.fixture
def line(config: Config) -> Iterator[AgentLine]:
    line = AgentLine(str(config.socket), 7, 1)
    line.report(STATE)
    yield line
    line.close()


def turn_until(line: AgentLine, predicate: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> float:
    """Seconds that it took."""
    begun = time.monotonic()
    while not predicate():
        assert time.monotonic() < begun + seconds, "not in time"
        line.turn()
        time.sleep(0.002)
    return time.monotonic() - begun


def test_the_state_of_the_gang_reaches_the_control_plane(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    with running_agent(config):
        turn_until(line, lambda: control_plane.launchers)
        line.report(NEXT)
        turn_until(line, lambda: len(control_plane.launchers) > 1)
    first, second = control_plane.launchers[0], control_plane.launchers[-1]
    assert (first.node, first.user_id) == ("n1", os.getuid())
    assert first.state == msgspec.convert(STATE, type(first.state)), "unchanged"
    assert (second.state.launch, second.state.seats, second.state.lost) == (1, ("n1", "n3"), ("n2",))


def test_the_last_state_of_a_launcher_that_leaves_at_once_arrives(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    with running_agent(config):
        turn_until(line, lambda: control_plane.launchers)
        last: messages.LauncherState = {**STATE, "phase": "leaving"}
        line.report(last)
        line.close()
        control_plane.wait_for(lambda it: it.launchers[-1].state.phase == "leaving")
    assert control_plane.launchers[-1].wait_seconds == 0


def test_orders_arrive_at_once_and_stand_while_the_agent_is_away(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    with running_agent(config):
        turn_until(line, lambda: control_plane.launchers)
        time.sleep(0.1)
        orders = LauncherOrders({"n2": "Xid 79"}, WireRestart(0, "it hangs", ("n1",)))
        control_plane.answer_launchers(LauncherAnswer("a", orders, EarlierAllocations(2, 40)))
        assert turn_until(line, line.poll) < 0.2
    assert line.poll() == {"n2": "Xid 79"}
    assert line.restart(0) == Restart(0, "it hangs", ("n1",))
    assert line.restart(1) is None
    assert (line.launches_without_progress, line.best_step) == (2, 40)
    turn_until(line, lambda: line.turn() is None)
    assert line.poll() == {"n2": "Xid 79"}
    with running_agent(config):
        control_plane.answer_launchers(LauncherAnswer("b", LauncherOrders()))
        turn_until(line, lambda: not line.poll())


def test_launches_are_reported_although_the_agent_comes_late(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    line.announce(STARTED)
    line.announce(ENDED)
    for _ in range(5):
        line.turn()
    assert len(line.notices) == 2
    with running_agent(config):
        turn_until(line, lambda: not line.notices)
    started, ended = (one for one in control_plane.facts if isinstance(one, LaunchStarted | LaunchEnded))
    assert started == msgspec.convert({**STARTED, "user_id": os.getuid()}, LaunchStarted)
    assert ended == msgspec.convert({**ENDED, "user_id": os.getuid()}, LaunchEnded)


def test_an_absent_control_plane_only_delays_orders(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    control_plane.stop()
    with running_agent(config):
        turn_until(line, lambda: line.turn() is not None)
        time.sleep(0.7)
        control_plane.start()
        control_plane.answer_launchers(N2_IS_BAD)
        turn_until(line, line.poll)


def test_steps_of_ranks_on_this_node_are_the_gangs_progress(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    hello = {"type": "hello", "job_id": 7, "restart_count": 1, "rank": 0, "world_size": 2, "launch": 0}
    steps = {"type": "steps", "first_step": 40, "self_seconds": [0.1, 0.1], "wall_seconds": [0.1, 0.1]}
    with running_agent(config):
        turn_until(line, lambda: control_plane.launchers)
        rank = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        rank.connect(str(config.socket))
        progress = HookProgress(line.step, TimeAlive(0.0), lambda: line.silent)
        assert progress.step(1.0) == 1, "no rank reports steps yet: being alive counts as progress"
        rank.sendall(json.dumps(hello).encode() + b"\n" + json.dumps(steps).encode() + b"\n")
        turn_until(line, lambda: line.step() == 41)
        assert progress.step(2.0) == 41
        epoch = {**steps, "first_step": 0}
        for reached in (43, 45):  # its numbers fall: a launcher that ends gangs without progress has to know of these
            rank.sendall(json.dumps(epoch).encode() + b"\n")
            turn_until(line, lambda reached=reached: line.step() == reached)  # type: ignore[misc]
        line.report(NEXT)
        assert line.step() is None, "a new launch has done nothing yet"
        assert progress.step(500.0) is None
        rank.close()


def test_progress_is_seen_although_no_rank_reports_it_any_more() -> None:
    """The control plane is away, and there is no rank on the launcher's own node."""
    reported: list[int | None] = [None]
    silent = [False]
    progress = HookProgress(lambda: reported[0], TimeAlive(300.0), lambda: silent[0])
    assert progress.step(301.0) == 1, "no rank has reported anything yet"
    reported[0] = 50
    assert progress.step(320.0) == 50
    silent[0] = True
    assert progress.step(330.0) == 50
    assert progress.step(629.0) == 50, "the launch has not lived for 300 seconds since then"
    assert progress.step(631.0) == 51
    assert progress.step(2000.0) == 51, "once a launch"
    reported[0] = None
    assert progress.step(1.0) == 51, "the next launch has done nothing yet"
    assert progress.step(301.0) == 52
    silent[0] = False
    assert progress.step(302.0) is None
    reported[0] = 900
    assert progress.step(303.0) == 900
    silent[0] = True
    assert progress.step(304.0) == 900
    reported[0] = 901
    assert progress.step(5000.0) == 901, "a rank on this node reports it: living is no progress then"


def test_while_the_control_plane_is_silent_a_launch_restores_the_newest_checkpoint_that_it_named(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    control_plane.answer_launchers(
        LauncherAnswer("a", LauncherOrders(), restore_step=40, restore_path="/c/40", restore_ranks=8)
    )
    with running_agent(config):
        turn_until(line, lambda: line.has_orders)
        assert (line.silent, line.restore_point()) == (False, None), "the ranks ask for the newest"
        control_plane.stop()
        turn_until(line, lambda: line.silent)
        assert (line.restore_point(8), line.restore_point(4)) == ((40, "/c/40"), None)
        control_plane.start()
        turn_until(line, lambda: not line.silent)
        assert line.restore_point() is None
    turn_until(line, lambda: line.turn() is None)
    assert line.restore_point() == (40, "/c/40"), "the agent itself is away"


def test_a_checkpoint_that_was_deleted_is_not_restored_but_the_one_named_before_it(tmp_path: Path) -> None:
    named = NamedCheckpoints()
    assert named.newest() is None
    for step in (20, 40, 60):
        (tmp_path / str(step)).mkdir()
        named.note(step, str(tmp_path / str(step)))
    (tmp_path / "60").rmdir()
    assert named.newest() == (40, str(tmp_path / "40"))
    named.note(20, str(tmp_path / "20"))
    assert named.newest() == (20, str(tmp_path / "20")), "step 40 is no longer good"
    (tmp_path / "20").rmdir()
    assert named.newest() == (20, str(tmp_path / "20")), "the ranks may see what the launcher does not"
    named.note(0, "")
    assert named.newest() is None


def test_a_launch_of_another_size_restores_what_so_many_ranks_can() -> None:
    named = NamedCheckpoints()
    named.note(20, "/c/20")
    named.note(40, "/c/40", 8)
    assert [named.newest(ranks) for ranks in (8, 4, 0)] == [(40, "/c/40"), (20, "/c/20"), (40, "/c/40")]
    fixed = NamedCheckpoints()
    fixed.note(40, "/c/40", 8)
    assert fixed.newest(4) is None, "the ranks ask, and stop where nothing answers"


def test_a_control_plane_that_never_answered_is_not_silent(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    control_plane.stop()
    with running_agent(config):
        turn_until(line, lambda: line.turn() is not None)
        time.sleep(0.7)
        line.turn()
        assert (line.silent, line.restore_point()) == (False, None)


def test_a_refused_launcher_knows_why_and_does_not_reconnect_all_the_time(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    control_plane.refuse_launcher = (403, "job 7 did not ask for Understudy")
    with running_agent(config):
        turn_until(line, lambda: line.refused)
        turn_until(line, lambda: line.turn() is None)
        asked = len(control_plane.launchers)
        for _ in range(50):
            line.turn()
            time.sleep(0.03)
        assert len(control_plane.launchers) == asked
    assert "did not ask for Understudy" in line.refused


def test_an_agent_follows_a_limited_number_of_launchers(config: Config, control_plane: FakeControlPlane) -> None:
    with running_agent(config), ExitStack() as lines_open:
        lines = [AgentLine(str(config.socket), 7 + number, 0) for number in range(LAUNCHERS_OF_USER_MAX + 1)]
        for line in lines:
            lines_open.callback(line.close)
            line.report(STATE)
            line.turn()

        def refused() -> list[str]:
            return [line.refused for line in lines if line.turn() is None and line.refused]

        begun = time.monotonic()
        while not refused():
            assert time.monotonic() < begun + 8.0, "not in time"
            time.sleep(0.002)
        time.sleep(0.1)
        assert ["launchers are connected already" in one for one in refused()] == [True], "whichever it was"


def test_an_absent_agent_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = AgentLine(str(tmp_path / "none.sock"), 7, 0)
    line.report(STATE)
    assert line.turn() is None
    assert line.trouble() == ""
    monkeypatch.setattr("understudy_launcher.agent_client.ABSENT_SECONDS", 0.0)
    assert line.trouble() == f"no agent at {tmp_path}/none.sock"
    assert line.trouble() == ""


@pytest.mark.parametrize(
    "answer", [b"what?\n", b"{}\n", b'{"type": "answer", "orders": []}\n', b'{"type": "progress", "step": []}\n']
)
def test_nonsense_from_the_agent_is_harmless(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        line = AgentLine(str(path), 7, 0)
        line.report(STATE)
        line.turn()
        connection, _ = server.accept()
        with connection:
            connection.send(answer)
            turn_until(line, lambda: line.refused)
        assert line.poll() == {}
        line.close()


def test_verdicts_of_several_sources_are_joined(tmp_path: Path, line: AgentLine) -> None:
    (tmp_path / "verdicts").write_text("n9 by hand\n")
    nodes = Nodes(["n1", "n9"], [line, FileVerdicts(tmp_path / "verdicts")], Events(None))
    assert nodes.condemned() == {"n9": "by hand"}


class TestPolls:
    """A connection that reads nothing stays when it is asked to go; its process may change its state all the time."""

    def launchers(self, error: Exception | None) -> tuple[Launchers, list[LauncherReport]]:
        asked: list[LauncherReport] = []

        async def ask(report: LauncherReport) -> LauncherAnswer:
            asked.append(report)
            if error is not None:
                raise error
            return await asyncio.Future()

        return Launchers("c", "n1", ask), asked

    def test_the_next_launch_counts_its_steps_on_from_where_the_last_one_counted(self) -> None:
        """A second training, after 2,000 steps, was at its step 999; the next launch goes on from its step 900."""

        async def play() -> list[Answer]:
            launchers, _ = self.launchers(None)
            answers: list[Answer] = []
            line = launchers.open(1000, answers.append, lambda: None)
            line.take(msgspec.convert(STATE, WireState))
            for launch, step, ahead in ((0, 1999, 0), (0, 2999, 2000), (1, 900, 0)):
                line.note_step(launch, step, ahead)
                await asyncio.sleep(1.2 * PROGRESS_SECONDS)
            line.stop()
            return [one for one in answers if isinstance(one, Progress)]

        assert asyncio.run(play()) == [Progress(0, 1999), Progress(0, 2999, 2000), Progress(1, 2900, 2000)]

    def test_a_launcher_that_was_refused_is_not_reported_again(self) -> None:
        async def play() -> int:
            launchers, asked = self.launchers(RejectedError("no"))
            line = launchers.open(1000, lambda _answer: None, lambda: None)
            line.take(msgspec.convert(STATE, WireState))
            for _ in range(200):
                await asyncio.sleep(0)
            line.take(msgspec.convert(NEXT, WireState))
            for _ in range(200):
                await asyncio.sleep(0)
            line.stop()
            return len(asked)

        assert asyncio.run(play()) == 1

    def test_states_that_change_without_end_are_reported_at_a_pace_of_their_user(self) -> None:
        async def play() -> int:
            launchers, asked = self.launchers(None)
            launchers.polls = Pace(4, 1e-3)
            lines = [launchers.open(1000, lambda _answer: None, lambda: None) for _ in range(2)]
            for number in range(100):
                for line in lines:
                    line.take(msgspec.convert({**STATE, "launch": number}, WireState))
                for _ in range(5):
                    await asyncio.sleep(0)
            count = len(asked)
            for line in lines:
                line.stop()
            return count

        assert asyncio.run(play()) == 4
