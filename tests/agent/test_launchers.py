"""The launcher's line, its node's agent, and the control plane's word: over a real socket and real HTTP."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from understudy_agent.config import Config
from understudy_agent.launch.agent_line import AgentLine, Gang, StartAnew
from understudy_agent.launch.progress import TimeAlive, ToldProgress
from understudy_agent.launch.verdicts import AllVerdicts, FileVerdicts
from understudy_agent.launchers import LAUNCHERS_PER_NODE_MAX
from understudy_agent.wire import LaunchEnded, LauncherWord, LaunchStarted
from understudy_agent.wire import StartAnew as Anew

GANG = Gang(0, "running", ("n1", "n2"), ("n3",), (), 2)


@pytest.fixture
def control_plane() -> Iterator[FakeControlPlane]:
    fake = FakeControlPlane()
    yield fake
    fake.stop()


@pytest.fixture
def config(tmp_path: Path, control_plane: FakeControlPlane) -> Config:
    return agent_config(tmp_path, control_plane.url)


@pytest.fixture
def line(config: Config) -> Iterator[AgentLine]:
    line = AgentLine(str(config.socket), 7, 1)
    line.tell(GANG)
    yield line
    line.close()


def turn_until(line: AgentLine, predicate: Callable[[], object], seconds: float = 8.0) -> float:
    """Seconds that it took."""
    begun = time.monotonic()
    while not predicate():
        assert time.monotonic() < begun + seconds, "not in time"
        line.turn()
        time.sleep(0.002)
    return time.monotonic() - begun


def test_what_the_gang_is_reaches_the_control_plane(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    with running_agent(config):
        turn_until(line, lambda: control_plane.launchers)
        line.tell(replace(GANG, launch=1, seats=("n1", "n3"), spares=(), lost=("n2",)))
        turn_until(line, lambda: len(control_plane.launchers) > 1)
    first, second = control_plane.launchers[0], control_plane.launchers[-1]
    assert (first.job_id, first.restart_count, first.node, first.user_id) == (7, 1, "n1", os.getuid())
    assert (first.launch, first.seats, first.spares, first.phase) == (0, ["n1", "n2"], ["n3"], "running")
    assert (second.launch, second.seats, second.lost) == (1, ["n1", "n3"], ["n2"])


def test_a_word_arrives_at_once_and_stands_while_the_agent_is_away(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    with running_agent(config):
        turn_until(line, lambda: control_plane.launchers)
        time.sleep(0.1)
        control_plane.say(LauncherWord("a", {"n2": "Xid 79"}, Anew(0, "it hangs", ["n1"]), 2, 40))
        assert turn_until(line, line.poll) < 0.2
    assert line.poll() == {"n2": "Xid 79"}
    assert line.anew(0) == StartAnew(0, "it hangs", ("n1",))
    assert line.anew(1) is None
    assert (line.launches_without_progress, line.best_step) == (2, 40)
    turn_until(line, lambda: line.turn() is None)
    assert line.poll() == {"n2": "Xid 79"}
    with running_agent(config):
        control_plane.say(LauncherWord("b"))
        turn_until(line, lambda: not line.poll())


def test_launches_are_told_though_the_agent_comes_late(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    line.notice("launch_started", launch=0, seats=("n1", "n2"), spares=("n3",), lost=())
    line.notice(
        "launch_ended", launch=0, row="L120", reason="first again", counted=True, failed_node="n2", cause="hang"
    )
    for _ in range(5):
        line.turn()
    assert line.unsaid == 2
    with running_agent(config):
        turn_until(line, lambda: not line.unsaid)
    started, ended = (one for one in control_plane.facts if isinstance(one, LaunchStarted | LaunchEnded))
    assert isinstance(started, LaunchStarted)
    assert isinstance(ended, LaunchEnded)
    assert (started.job_id, started.seats, started.spares, started.user_id) == (7, ("n1", "n2"), ("n3",), os.getuid())
    assert (ended.table_row, ended.counted, ended.failed_node) == ("L120", True, "n2")


def test_the_control_plane_being_away_delays_the_word_and_no_more(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    control_plane.stop()
    with running_agent(config):
        turn_until(line, lambda: line.turn() is not None)
        time.sleep(0.7)
        control_plane.start()
        control_plane.say(LauncherWord("a", {"n2": "Xid 79"}))
        turn_until(line, line.poll)


def test_the_steps_of_ranks_here_are_the_gangs_progress(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    hello = {"type": "hello", "job_id": 7, "restart_count": 1, "rank": 0, "world_size": 2, "launch": 0}
    steps = {"type": "steps", "first_step": 40, "self_seconds": [0.1, 0.1], "wall_seconds": [0.1, 0.1]}
    with running_agent(config):
        turn_until(line, lambda: control_plane.launchers)
        rank = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        rank.connect(str(config.socket))
        progress = ToldProgress(line.step, TimeAlive(0.0), lambda: line.silent)
        assert progress.step(1.0) == 1, "nobody tells steps yet: being alive is taken for progress"
        rank.sendall(json.dumps(hello).encode() + b"\n" + json.dumps(steps).encode() + b"\n")
        turn_until(line, lambda: line.step() == 41)
        assert progress.step(2.0) == 41
        line.tell(replace(GANG, launch=1))
        assert line.step() is None, "a new launch has done nothing yet"
        assert progress.step(500.0) is None
        rank.close()


def test_progress_is_seen_though_nobody_tells_it_any_more() -> None:
    """With the control plane away, and no rank on the launcher's own node."""
    told: list[int | None] = [None]
    silent = [False]
    progress = ToldProgress(lambda: told[0], TimeAlive(300.0), lambda: silent[0])
    assert progress.step(301.0) == 1, "nobody has told anything yet"
    told[0] = 50
    assert progress.step(320.0) == 50
    silent[0] = True
    assert progress.step(330.0) == 50
    assert progress.step(629.0) == 50, "it has not lived for so long since"
    assert progress.step(631.0) == 51
    assert progress.step(2000.0) == 51, "once a launch"
    told[0] = None
    assert progress.step(1.0) == 51, "the next launch has done nothing yet"
    assert progress.step(301.0) == 52
    silent[0] = False
    assert progress.step(302.0) is None
    told[0] = 900
    assert progress.step(303.0) == 900
    silent[0] = True
    assert progress.step(304.0) == 900
    told[0] = 901
    assert progress.step(5000.0) == 901, "a rank on this node tells it: living is no progress then"


def test_while_nobody_answers_a_launch_goes_on_from_the_newest_checkpoint_that_was_named(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    control_plane.say(LauncherWord("a", restore_step=40, restore_path="/c/40"))
    with running_agent(config):
        turn_until(line, lambda: line.heard)
        assert (line.silent, line.restore_point()) == (False, None), "the ranks ask, and hear the newest"
        control_plane.stop()
        turn_until(line, lambda: line.silent)
        assert line.restore_point() == (40, "/c/40")
        control_plane.start()
        turn_until(line, lambda: not line.silent)
        assert line.restore_point() is None
    turn_until(line, lambda: line.turn() is None)
    assert line.restore_point() == (40, "/c/40"), "the agent itself is away"


def test_who_was_never_heard_has_named_nothing(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    control_plane.stop()
    with running_agent(config):
        turn_until(line, lambda: line.turn() is not None)
        time.sleep(0.7)
        line.turn()
        assert (line.silent, line.restore_point()) == (False, None)


def test_who_is_refused_is_told_and_does_not_knock_all_the_time(
    config: Config, control_plane: FakeControlPlane, line: AgentLine
) -> None:
    control_plane.refuse_launcher = (403, "job 7 did not ask for us")
    with running_agent(config):
        turn_until(line, lambda: line.refused)
        turn_until(line, lambda: line.turn() is None)
        asked = len(control_plane.launchers)
        for _ in range(50):
            line.turn()
            time.sleep(0.03)
        assert len(control_plane.launchers) == asked
    assert "did not ask for us" in line.refused


def test_a_node_follows_so_many_launchers_and_no_more(config: Config, control_plane: FakeControlPlane) -> None:
    lines = [AgentLine(str(config.socket), 7 + number, 0) for number in range(LAUNCHERS_PER_NODE_MAX + 1)]
    with running_agent(config):
        for line in lines:
            line.tell(GANG)
            line.turn()
            time.sleep(0.01)
        turn_until(lines[-1], lambda: lines[-1].refused)
        assert "launchers are connected already" in lines[-1].refused
        for line in lines:
            line.close()


def test_without_an_agent_it_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = AgentLine(str(tmp_path / "none.sock"), 7, 0)
    line.tell(GANG)
    assert line.turn() is None
    assert line.trouble() == ""
    monkeypatch.setattr("understudy_agent.launch.agent_line.ABSENT_SECONDS", 0.0)
    assert line.trouble() == f"no agent at {tmp_path}/none.sock"
    assert line.trouble() == ""


@pytest.mark.parametrize("answer", [b"what?\n", b"{}\n", b'{"type": "word"}\n', b'{"type": "progress", "step": []}\n'])
def test_an_agent_that_talks_nonsense_harms_nobody(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        line = AgentLine(str(path), 7, 0)
        line.tell(GANG)
        line.turn()
        connection, _ = server.accept()
        with connection:
            connection.send(answer)
            turn_until(line, lambda: line.refused)
        assert line.poll() == {}
        line.close()


def test_verdicts_of_several_are_joined(tmp_path: Path, line: AgentLine) -> None:
    (tmp_path / "verdicts").write_text("n9 by hand\n")
    assert AllVerdicts(FileVerdicts(tmp_path / "verdicts"), line).poll() == {"n9": "by hand"}
