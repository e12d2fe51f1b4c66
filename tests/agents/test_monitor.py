from __future__ import annotations

import ast
import hashlib
import logging
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.config import Config
from agents.wire import CheckpointShard, Fact, FirstStep, RankStarted, RankWindow
from tests.agents.fake_control_plane import FakeControlPlane
from tests.agents.running_agent import agent_config, running_agent
from understudy import Monitor, RestorePoint
from understudy.clocks import WaitingClock

FRAMEWORKS = {
    "ddp": {"torch"},
    "huggingface": {"torch", "transformers"},
    "lightning": {"torch", "lightning", "pytorch_lightning"},
}


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as plane:
        yield plane


@pytest.fixture
def config(tmp_path: Path, plane: FakeControlPlane) -> Config:
    return agent_config(tmp_path, plane.url)


@pytest.fixture(autouse=True)
def rank_of_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_PROCID", "2")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURMD_NODENAME", "agent")
    monkeypatch.setenv("UNDERSTUDY_SOCKET", str(tmp_path / "%n.sock"))


def of_kind(plane: FakeControlPlane, kind: type) -> list[Fact]:
    return [fact for fact in plane.facts if isinstance(fact, kind)]


def windows(plane: FakeControlPlane) -> list[RankWindow]:
    return [window for report in list(plane.reports) for window in report.ranks]


def steps_told(plane: FakeControlPlane) -> list[int]:
    return [window.first_step + i for window in windows(plane) for i in range(len(window.self_seconds))]


def test_a_training_run_is_seen_from_its_first_step_to_its_checkpoint(
    plane: FakeControlPlane, config: Config, tmp_path: Path
) -> None:
    plane.restore_points[7, 0] = (30, "/ckpt/30")
    with running_agent(config):
        monitor = Monitor(gpu_index=3, role="stage0")
        assert monitor.restore_point() == RestorePoint(30, "/ckpt/30")
        for number in range(30, 40):
            with monitor.step(number):
                time.sleep(0.01)
                with monitor.waiting():
                    time.sleep(0.02)
        ended_at = time.time()
        (tmp_path / "rank2.pt").write_bytes(b"weights")
        monitor.checkpoint_saved(40, tmp_path, "rank2.pt")
        monitor.close()
        plane.wait_for(lambda plane: len(steps_told(plane)) == 10)
    [started] = of_kind(plane, RankStarted)
    assert isinstance(started, RankStarted)
    assert (started.job_id, started.restart_count, started.rank, started.world_size) == (7, 0, 2, 4)
    [first] = of_kind(plane, FirstStep)
    assert isinstance(first, FirstStep)
    assert first.step == 30
    assert ended_at - 1 < first.at < ended_at
    assert steps_told(plane) == list(range(30, 40))
    assert {(window.rank, window.gpu_index, window.role) for window in windows(plane)} == {(2, 3, "stage0")}
    own = statistics.median(seconds for window in windows(plane) for seconds in window.self_seconds)
    wall = statistics.median(seconds for window in windows(plane) for seconds in window.wall_seconds)
    assert own == pytest.approx(0.01, abs=0.005)
    assert wall == pytest.approx(0.03, abs=0.01)
    [shard] = of_kind(plane, CheckpointShard)
    assert isinstance(shard, CheckpointShard)
    assert (shard.step, shard.path, shard.file) == (40, str(tmp_path), "rank2.pt")
    assert (shard.size_bytes, shard.sha256) == (7, hashlib.sha256(b"weights").hexdigest())


def test_close_waits_until_the_control_plane_has_the_checkpoint(
    plane: FakeControlPlane, config: Config, tmp_path: Path
) -> None:
    with running_agent(config):
        monitor = Monitor()
        plane.wait_for(lambda plane: of_kind(plane, RankStarted))
        plane.stop()
        threading.Timer(0.5, plane.start).start()
        (tmp_path / "shard").write_bytes(b"x")
        monitor.checkpoint_saved(1, tmp_path, "shard")
        monitor.close()
        assert len(of_kind(plane, CheckpointShard)) == 1


def test_a_checkpoint_is_announced_again_to_an_agent_that_was_started_anew(
    plane: FakeControlPlane, config: Config, tmp_path: Path
) -> None:
    with running_agent(config):
        monitor = Monitor()
        plane.wait_for(lambda plane: of_kind(plane, RankStarted))
        plane.stop()
        (tmp_path / "shard").write_bytes(b"x")
        monitor.checkpoint_saved(1, tmp_path, "shard")
        with monitor.step(1):
            pass
        time.sleep(0.1)
    plane.start()
    with running_agent(config):
        plane.wait_for(lambda plane: of_kind(plane, CheckpointShard) and of_kind(plane, FirstStep))
        monitor.close()
    assert len(of_kind(plane, RankStarted)) >= 2  # it said hello anew


def test_without_an_agent_training_goes_on_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.WARNING, "understudy.train"):
        monitor = Monitor()
        assert monitor.restore_point(timeout_seconds=0.6) is None
        for number in range(3):
            with monitor.step(number), monitor.waiting():
                pass
        (tmp_path / "shard").write_bytes(b"x")
        monitor.checkpoint_saved(3, tmp_path, "shard")
        started = time.monotonic()
        monitor.close()
    assert time.monotonic() - started < 2
    assert [record.getMessage() for record in caplog.records if "no agent at" in record.getMessage()] == [
        caplog.records[0].getMessage()
    ]
    assert len(caplog.records) == 1


def test_outside_a_slurm_job_nothing_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID")
    before = threading.active_count()
    monitor = Monitor()
    assert monitor.restore_point() is None
    with monitor.step(1), monitor.waiting():
        pass
    monitor.checkpoint_saved(2, tmp_path, "none")
    monitor.close()
    assert threading.active_count() == before
    assert "SLURM_JOB_ID is not set" in caplog.text


def test_a_failing_step_raises_as_it_would_without_us_and_does_not_count(
    plane: FakeControlPlane, config: Config
) -> None:
    with running_agent(config):
        monitor = Monitor()
        with pytest.raises(ZeroDivisionError), monitor.step(1):
            raise ZeroDivisionError
        with monitor.step(2):
            pass
        monitor.close()
        plane.wait_for(steps_told)
    assert steps_told(plane) == [2]


def test_a_checkpoint_whose_file_is_missing_is_not_announced(
    plane: FakeControlPlane, config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_agent(config):
        monitor = Monitor()
        monitor.checkpoint_saved(1, tmp_path, "none")
        monitor.checkpoint_saved(1, None, "none")
        monitor.close()
    assert of_kind(plane, CheckpointShard) == []
    assert "none" in caplog.text


def test_an_agent_that_talks_rubbish_does_not_reach_the_training(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent.sock"))
        listener.listen()
        monitor = Monitor()
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"rubbish\n[]\n")
            with monitor.step(1):
                pass
            again, _ = listener.accept()  # it hung up and tries anew
            again.close()
        monitor.close(timeout_seconds=0.5)


def test_the_timing_of_a_step_costs_the_training_thread_microseconds(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config):
        monitor = Monitor()
        costs = []
        for number in range(3000):
            started = time.perf_counter()
            with monitor.step(number), monitor.waiting():
                pass
            costs.append(time.perf_counter() - started)
        monitor.close()
    assert statistics.median(costs) < 20e-6


def test_waiting_in_two_threads_at_once_counts_once() -> None:
    clock = WaitingClock()
    clock.restart(time.perf_counter())

    def wait() -> None:
        with clock, clock:
            time.sleep(0.1)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.restart(time.perf_counter()) == pytest.approx(0.1, abs=0.05)


def test_the_hook_needs_nothing_but_the_standard_library() -> None:
    for path in (Path(__file__).parents[2] / "agents" / "train").glob("*.py"):
        allowed = sys.stdlib_module_names | FRAMEWORKS.get(path.stem, set())
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level in (0, 1), path  # its own package's, which may have another name
                names = [node.module or ""] if node.level == 0 else []
            for name in names:
                assert name.split(".")[0] in allowed, (path, name)
