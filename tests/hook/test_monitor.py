from __future__ import annotations

import ast
import contextlib
import copy
import json
import logging
import os
import pickle
import resource
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from tests.waiting import PATIENCE_SECONDS, wait_until
from understudy import Monitor, RestorePoint, RestorePointUnknownError, SummedFile
from understudy.clocks import WaitingClock
from understudy.monitor import _inactive_monitor
from understudy.restore import UncaughtErrors
from understudy.training_inputs import config_of
from understudy_agent.config import Config
from understudy_wire.facts import CheckpointShard, Fact, FirstStep, RankStarted, RestoreReport, TrainingInputs
from understudy_wire.ranks import RankWindow

FRAMEWORKS = {
    "compute": {"torch"},
    "recompute": {"torch"},
    "dcp": {"torch"},
    "torch_save": {"torch"},
    "safetensors": {"safetensors", "torch"},
    "checksum": {"xxhash"},  # where it is installed
    "objects": {"botocore"},
    "ddp": {"torch"},
    "state_handover": {"torch"},
    "peer": {"torch"},
    "training_state": {"torch"},
    "pinned": {"torch"},
    "state_pickle": {"torch"},
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


def reported_steps(plane: FakeControlPlane) -> list[int]:
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
        with SummedFile(tmp_path / "rank2.pt") as file:
            file.write(b"weights")
        monitor.checkpoint_saved(40, tmp_path, "rank2.pt", file.checksum)
        monitor.close()
        plane.wait_for(lambda plane: len(reported_steps(plane)) == 10)
    [started] = of_kind(plane, RankStarted)
    assert isinstance(started, RankStarted)
    assert (started.job_id, started.restart_count, started.rank, started.world_size) == (7, 0, 2, 4)
    [first] = of_kind(plane, FirstStep)
    assert isinstance(first, FirstStep)
    assert first.step == 30
    assert ended_at - 1 < first.at < ended_at
    assert reported_steps(plane) == list(range(30, 40))
    assert {(window.rank, window.gpu_index, window.role) for window in windows(plane)} == {(2, 3, "stage0")}
    own = [seconds for window in windows(plane) for seconds in window.self_seconds]
    wall = [seconds for window in windows(plane) for seconds in window.wall_seconds]
    assert min(own) > 0.009
    waited = [whole - busy for whole, busy in zip(wall, own, strict=True)]
    assert min(waited) > 0.019
    [shard] = of_kind(plane, CheckpointShard)
    assert isinstance(shard, CheckpointShard)
    assert (shard.step, shard.path, shard.file) == (40, str(tmp_path), "rank2.pt")
    assert (shard.size_bytes, shard.checksum) == (7, f"crc32:{zlib.crc32(b'weights'):08x}")


def test_the_first_step_names_when_the_process_groups_were_there(
    plane: FakeControlPlane, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[bool] = []
    monkeypatch.setitem(sys.modules, "torch.distributed", cast("ModuleType", SimpleNamespace()))
    with running_agent(config):
        monitor = Monitor()
        torch = SimpleNamespace(is_initialized=lambda: bool(joined))  # its import ends only now
        monkeypatch.setitem(sys.modules, "torch.distributed", cast("ModuleType", torch))
        joined.append(True)
        wait_until(lambda: monitor._outbox.communicator_at is not None)
        seen_at = time.time()
        for number in range(2):
            with monitor.step(number):
                pass
        plane.wait_for(lambda plane: of_kind(plane, FirstStep))
        monitor.close()
    [first] = of_kind(plane, FirstStep)
    assert isinstance(first, FirstStep)
    assert first.communicator_at is not None
    assert first.communicator_at <= seen_at <= first.at


def test_what_the_control_plane_cannot_name_stops_the_job_at_once_unless_the_user_chose_otherwise(
    plane: FakeControlPlane, config: Config
) -> None:
    """It is no start from the beginning: that would throw work away."""
    plane.restore_unknown = "step 20: loss_nan on rank 1"
    with running_agent(config):
        monitor = Monitor()
        begun = time.monotonic()
        with pytest.raises(RestorePointUnknownError, match=r"loss_nan on rank 1.*pass otherwise="):
            monitor.restore_point()
        assert monitor.restore_point(otherwise="/mine") == "/mine"
        with monitor.checkpoints.restore(otherwise="/mine") as mine:
            assert mine == "/mine"
        assert time.monotonic() - begun < 30
        plane.restore_unknown, plane.restore_points[7, 0] = "", (0, "")
        assert monitor.restore_point(otherwise="/mine") == RestorePoint(0, ""), "nothing was ever saved"
        monitor.close()


def test_a_rank_looks_for_the_checkpoint_when_it_is_asked_to_and_reports_a_restore_that_failed(
    plane: FakeControlPlane, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.looks, plane.restore_points[7, 0] = True, (30, str(tmp_path))
    with running_agent(config):
        monitor = Monitor()
        monitor.restore_failed(ValueError("nothing was restored"))
        with pytest.raises(ValueError, match="truncated"), monitor.checkpoints.restore() as point:
            assert point == RestorePoint(30, str(tmp_path))
            raise ValueError("truncated")
        with pytest.raises(ConnectionResetError), monitor.checkpoints.restore():
            raise ConnectionResetError("another rank is gone")
        monitor.close()
        monkeypatch.setenv("UNDERSTUDY_LAUNCH", "1")
        plane.restore_points[7, 0] = (20, str(tmp_path / "gone"))
        monitor = Monitor()
        assert monitor.restore_point().step == 20
        monitor.close()
    reports = [fact for fact in of_kind(plane, RestoreReport) if isinstance(fact, RestoreReport)]
    assert [(one.step, one.outcome, one.error) for one in reports] == [
        (30, "seen", ""),
        (30, "failed", "ValueError('truncated')"),
        (20, "missing", ""),
    ]


@pytest.mark.parametrize(("content", "outcome"), [(b"weights", "seen"), (b"weig", "missing")])
def test_a_rank_looks_for_a_checkpoint_of_one_file_and_compares_its_size(
    plane: FakeControlPlane, config: Config, tmp_path: Path, content: bytes, outcome: str
) -> None:
    """The file system of this machine decides, whichever that is: `step-30.pt/.` is there on none."""
    file = tmp_path / "step-30.pt"
    file.write_bytes(content)
    plane.looks, plane.look_file, plane.look_sizes = True, ".", [{"file": ".", "size_bytes": 7}]
    plane.restore_points[7, 0] = (30, str(file))
    with running_agent(config):
        monitor = Monitor()
        assert monitor.restore_point() == RestorePoint(30, str(file))
        monitor.close()
    [report] = [fact for fact in of_kind(plane, RestoreReport) if isinstance(fact, RestoreReport)]
    assert report.outcome == outcome
    assert report.error == ("" if outcome == "seen" else f"{file} has 4 bytes, and 7 were saved")


def test_rank_0_writes_one_line_of_what_it_continues_at_each_start(
    plane: FakeControlPlane, config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running_agent(config):
        starts = [
            ("2", (20, "/c/20"), ""),
            ("0", (20, "/c/20"), ""),
            ("0", (0, ""), ""),
            ("0", (20, "/c/20"), "continues job 5 from step 20, /c/20"),
        ]
        for launch, (rank, point, line) in enumerate(starts):
            monkeypatch.setenv("UNDERSTUDY_LAUNCH", str(launch))
            monkeypatch.setenv("SLURM_PROCID", rank)
            plane.restore_points[7, 0], plane.line = point, line
            monitor = Monitor()
            for _ in range(2):
                monitor.restore_point()
            monitor.close()
    assert [one.getMessage() for one in caplog.records] == [
        "understudy: job 7 continues from step 20, /c/20",
        "understudy: job 7 begins at step 0",
        "understudy: job 7 continues job 5 from step 20, /c/20",
    ]


def test_an_error_that_ends_the_process_during_a_restore_is_reported_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The callbacks' way: Trainer.train() restores and raises."""
    seen: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda *raised: seen.append(raised[0]))
    before = sys.excepthook
    errors = UncaughtErrors(seen.append)
    errors.start()
    broken = ValueError("truncated")
    sys.excepthook(ValueError, broken, None)
    assert seen == [broken, ValueError]
    assert sys.excepthook is before
    errors.start()
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert seen == [broken, ValueError, KeyboardInterrupt]
    errors.start()
    errors.stop()
    assert sys.excepthook is before


def test_where_to_go_on_is_the_launchers_word_while_no_control_plane_answers(
    plane: FakeControlPlane, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for all ranks, and at once: a rank that waited longer than the others could continue elsewhere."""
    checkpoint = tmp_path / "40"
    checkpoint.mkdir()
    monkeypatch.setenv("UNDERSTUDY_RESTORE_STEP", "40")
    monkeypatch.setenv("UNDERSTUDY_RESTORE_PATH", str(checkpoint))
    monkeypatch.setenv("UNDERSTUDY_LAUNCH", "1")
    plane.stop()
    with running_agent(config):
        monitor = Monitor()
        begun = time.monotonic()
        assert monitor.restore_point() == RestorePoint(40, str(checkpoint))
        assert time.monotonic() - begun < 5
        plane.restore_points[7, 0] = (30, "/ckpt/30")
        plane.start()
        checkpoint.rmdir()
        again = monitor.restore_point(timeout_seconds=PATIENCE_SECONDS)
        assert again == RestorePoint(40, str(checkpoint)), "ranks that looked for themselves could split the gang"
        monkeypatch.setenv("UNDERSTUDY_LAUNCH", "0")
        slurms = monitor.restore_point(timeout_seconds=PATIENCE_SECONDS)
        assert slurms == RestorePoint(30, "/ckpt/30"), "that was Slurm's TaskProlog"
        monitor.close()


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


def test_a_checkpoint_is_announced_again_to_an_agent_that_was_restarted(
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
    assert len(of_kind(plane, RankStarted)) >= 2  # it sent hello again


def test_without_an_agent_training_continues_and_that_is_logged_once(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.WARNING, "understudy.train"):
        monitor = Monitor()
        with pytest.raises(RestorePointUnknownError, match="no agent of Understudy answers"):
            monitor.restore_point(timeout_seconds=0.6)
        for number in range(3):
            with monitor.step(number), monitor.waiting():
                pass
        (tmp_path / "shard").write_bytes(b"x")
        monitor.checkpoint_saved(3, tmp_path, "shard")
        started = time.monotonic()
        monitor.close()
    assert time.monotonic() - started < 20
    assert [record.getMessage() for record in caplog.records if "no agent at" in record.getMessage()] == [
        caplog.records[0].getMessage()
    ]
    assert len(caplog.records) == 1


def test_a_rank_waits_for_a_control_plane_that_is_away_and_rank_0_writes_why(
    plane: FakeControlPlane,
    config: Config,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It failed after 60 seconds: three launches of a gang, and an innocent node was replaced."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setattr("understudy.monitor.WAITING_SHOWN_SECONDS", 0.5)
    monkeypatch.setattr("understudy_agent.uplink.RESTORE_POINT_WAIT_SECONDS", 1.0)
    plane.restore_points[7, 0] = (30, "/ckpt/30")
    plane.stop()
    found: list[RestorePoint] = []
    with running_agent(config), caplog.at_level(logging.WARNING, "understudy.train"):
        monitor = Monitor()
        rank = threading.Thread(target=lambda: found.append(monitor.restore_point()))
        rank.start()
        deadline = time.monotonic() + 30
        while "waits, as it is not known where to continue" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "waits, as it is not known where to continue" in caplog.text
        assert not found
        plane.start()
        rank.join(30)
        monitor.close()
    assert found == [RestorePoint(30, "/ckpt/30")]


def test_outside_a_slurm_job_nothing_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_PROCID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("understudy.identity.CGROUP", str(tmp_path / "none"))
    before = threading.active_count()
    monitor = Monitor()
    assert monitor.restore_point() == RestorePoint(0, ""), "a script that was converted runs on a workstation as well"
    assert monitor.restore_point(otherwise=None) is None
    with monitor.checkpoints.restore(otherwise="/newest") as point:
        assert point == "/newest"
    with monitor.checkpoints.restore() as beginning:
        assert beginning == RestorePoint(0, "")
    with monitor.step(1), monitor.waiting():
        pass
    monitor.checkpoint_saved(2, tmp_path, "none")
    monitor.close()
    assert threading.active_count() == before
    assert "SLURM_JOB_ID is not set" in caplog.text
    assert caplog.text.count("understudy:") == 1


def test_a_failing_step_raises_as_it_would_without_the_monitor_and_does_not_count(
    plane: FakeControlPlane, config: Config
) -> None:
    with running_agent(config):
        monitor = Monitor()
        with pytest.raises(ZeroDivisionError), monitor.step(1):
            raise ZeroDivisionError
        with monitor.step(2):
            pass
        monitor.close()
        plane.wait_for(reported_steps)
    assert reported_steps(plane) == [2]


def test_a_checkpoint_whose_file_is_missing_is_not_announced(
    plane: FakeControlPlane, config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_agent(config):
        monitor: Any = Monitor()
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
            again, _ = listener.accept()  # it closed the connection and tries again
            again.close()
        monitor.close(timeout_seconds=0.5)


def test_a_rank_whose_launcher_did_not_pass_on_slurms_variables_does_not_begin(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began at step 0 after each requeue, and wrote over its checkpoints."""
    monkeypatch.delenv("SLURM_JOB_ID")
    monitor = Monitor()
    with pytest.raises(RestorePointUnknownError):
        monitor.restore_point()
    assert monitor.restore_point(otherwise="/mine") == "/mine"
    assert "pass Slurm's variables on to the ranks" in caplog.text


def test_a_rank_that_has_an_answer_of_its_own_waits_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, waited = Monitor(), []

    def wait(timeout_seconds: float) -> RestorePoint:
        waited.append(timeout_seconds)
        return RestorePoint(0, "")

    monkeypatch.setattr(monitor, "_restore_point", wait)
    monitor.restore_point()
    monitor.restore_point(otherwise=None)
    monitor.restore_point(5, otherwise=None)
    with monitor.checkpoints.restore(), monitor.checkpoints.restore(otherwise=None):
        monitor.close()
    assert waited == [1800, 60, 5, 1800, 60]


def test_an_agent_that_went_away_is_waited_for_a_minute_and_not_half_an_hour(
    plane: FakeControlPlane, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy.monitor.AGENT_AWAY_SECONDS", 0.5)
    with running_agent(config):
        monitor = Monitor()
        assert monitor._link is not None
        assert monitor._link.connected.wait(PATIENCE_SECONDS)
    with pytest.raises(RestorePointUnknownError, match="went away"):
        monitor.restore_point(20)
    monitor.close()


@pytest.mark.parametrize(("share", "text"), [("1", "ValueError('of mine')"), ("0", "ValueError")])
def test_the_text_of_a_failed_restore_stays_in_the_job_where_the_user_keeps_output(
    share: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDERSTUDY_SHARE_OUTPUT", share)
    monitor = Monitor()
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(monitor, "_ask", lambda _link, report, _seconds: asked.append(report))
    monitor._restored = RestorePoint(20, "/c/20")
    monitor.restore_failed(ValueError("of mine"))
    monitor.close()
    assert [report["error"] for report in asked] == [text]


def test_an_agent_that_dies_in_the_middle_is_found_again_when_it_is_back(
    plane: FakeControlPlane, config: Config
) -> None:
    monitor = Monitor()
    numbers = iter(monitor.steps(range(60)))
    with running_agent(config):
        assert [next(numbers) for _ in range(5)] == [0, 1, 2, 3, 4]
        plane.wait_for(reported_steps)
    for _ in range(10):
        next(numbers)
    with running_agent(config):
        list(numbers)
        plane.wait_for(lambda plane: 59 in reported_steps(plane), timeout_seconds=10)
    monitor.close()


def test_a_restore_point_that_is_none_is_no_restore_point(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An agent that answers in the form of an answer, with nonsense in it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent.sock"))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with contextlib.suppress(ConnectionError), connection, connection.makefile() as lines:
                for line in lines:
                    question = json.loads(line)
                    if question["type"] == "restore_point":
                        answer = {"type": "restore_point", "id": question["id"], "step": "far", "path": None}
                        connection.sendall(json.dumps(answer).encode() + b"\n")

        answering = threading.Thread(target=answer)
        answering.start()
        monitor = Monitor()
        with pytest.raises(RestorePointUnknownError, match="makes no sense"):
            monitor.restore_point(timeout_seconds=PATIENCE_SECONDS)
        monitor.close(timeout_seconds=0.5)
        answering.join(PATIENCE_SECONDS)


def test_a_process_that_has_no_file_descriptor_left_trains_on(caplog: pytest.LogCaptureFixture) -> None:
    """The hook needs three; the limit is the test's own."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are numbers here
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        monitor = Monitor()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)
    assert list(monitor.steps(range(2))) == [0, 1]
    assert "nothing is reported" in caplog.text


def test_invalid_values_are_not_reported_and_nothing_is_raised(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config):
        monitor: Any = Monitor()
        for number in ("five", None, object(), -3, 4.0, True):
            with monitor.step(number):
                pass
        for step, path in (("ten", "/"), (10, object()), (-1, "/"), (10, "/" * 5000)):
            monitor.checkpoint_saved(step, path, "none")
        with monitor.collective("x" * 1000):
            pass
        with monitor.collective(None):
            pass
        with monitor.step(6):
            pass
        plane.wait_for(lambda plane: 6 in reported_steps(plane))
        monitor.close()
    assert len(of_kind(plane, RankStarted)) == 1  # none of it cost the connection


@pytest.mark.integration
def test_a_forked_child_is_no_rank_and_leaves_its_parent_alone(plane: FakeControlPlane, config: Config) -> None:
    """The workers of a data loader are such, which may outlive the step that made them."""
    with running_agent(config):
        monitor = Monitor()
        plane.wait_for(lambda plane: of_kind(plane, RankStarted))
        with monitor.step(0):
            child = os.fork()
            if child == 0:  # nothing of pytest's may run here
                status = 1
                with contextlib.suppress(BaseException):
                    quiet = not monitor.active and monitor.restore_point(otherwise=None) is None
                    with monitor.step(77), monitor.collective("all_reduce"):
                        pass
                    monitor.close()
                    status = 0 if quiet else 2
                os._exit(status)
            _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        with monitor.step(1):
            pass
        plane.wait_for(lambda plane: reported_steps(plane) == [0, 1])
        monitor.close()
    assert len(of_kind(plane, RankStarted)) == 1


@pytest.mark.integration
def test_the_child_of_a_fork_waits_for_no_lock_of_a_monitor_that_is_not_active() -> None:
    """A thread that the child does not have holds it: the training's own, or autograd's, in a collective."""
    monitor = _inactive_monitor()
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with monitor._waiting._lock, monitor._outbox.collectives._lock, monitor.checkpoints._lock:
            held.set()
            forked.wait(30)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert held.wait(30)
    child = os.fork()
    if child == 0:  # nothing of pytest's may run here
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        with contextlib.suppress(BaseException):
            with monitor.collective("all_reduce"), monitor.data_wait():
                monitor.checkpoints.deleted(1, "/none")
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    forked.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_monitor_sent_to_another_process_is_not_active_there(plane: FakeControlPlane, config: Config) -> None:
    """Strategies that start ranks by copying the whole training do this."""
    with running_agent(config):
        monitor = Monitor()
        assert copy.deepcopy([monitor])[0] is monitor
        sent = pickle.loads(pickle.dumps(monitor))  # noqa: S301 - pickled here
        assert monitor.active
        assert not sent.active
        assert list(sent.steps(range(3))) == [0, 1, 2]
        sent.close()
        monitor.close()


def test_what_a_rank_observes_reaches_the_control_plane(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config):
        monitor = Monitor(flops_per_token=6e9)
        for _ in monitor.steps(range(3)):
            monitor.observe(loss=2.5, grad_norm=0.5, tokens=4096)
        monitor.observe(tokens=object())  # type: ignore[arg-type]  # nothing that a user passes is raised
        plane.wait_for(lambda plane: any(window.training for window in windows(plane)))
        monitor.close()
    seen = [window.training for window in windows(plane) if window.training][-1]
    assert (seen.loss, seen.grad_norm, seen.flops_per_token) == (2.5, 0.5, 6e9)


def test_a_loop_of_steps_times_its_body_and_nothing_else(plane: FakeControlPlane, config: Config) -> None:
    around: list[tuple[float, float]] = []
    """Spans from the data to the next request for some."""

    def slowly() -> Iterator[int]:
        for number in range(10, 14):
            time.sleep(0.05)
            given = time.perf_counter()
            yield number
            around.append((given, time.perf_counter()))

    with running_agent(config):
        monitor = Monitor(dp_rank=3)
        seen = []
        for n in monitor.steps(slowly()):
            seen.append(n)
            if n == 11:
                continue
            time.sleep(0.01)
        with monitor.step(14, work=4096.0), monitor.data_wait():
            time.sleep(0.02)
        with monitor.step(15, work=object()):  # type: ignore[arg-type]  # nothing that a user passes is raised
            pass
        monitor.close()
        plane.wait_for(lambda plane: len(reported_steps(plane)) == 6)
    assert seen == [10, 11, 12, 13]
    assert reported_steps(plane) == [*seen, 14, 15]
    walls = [seconds for window in windows(plane) for seconds in window.wall_seconds]
    for wall, (begun, ended) in zip(walls, around, strict=False):
        assert wall <= ended - begun + 1e-6
    assert all(seconds > 0.01 for seconds in (walls[0], walls[2], walls[3]))
    data = [seconds for window in windows(plane) for seconds in window.data_seconds]
    assert all(seconds > 0.04 for seconds in data[:4])
    assert data[4] > 0.015
    own = [seconds for window in windows(plane) for seconds in window.self_seconds]
    assert own[4] <= walls[4] - 0.015  # waiting for data is none of its own time
    assert [work for window in windows(plane) for work in window.work][-2:] == [4096.0, None]
    assert {window.dp_rank for window in windows(plane)} == {3}
    [first] = of_kind(plane, FirstStep)
    assert isinstance(first, FirstStep)
    assert first.step == 10


def test_transfers_with_a_peer_are_waiting_and_reach_the_control_plane_for_this_peer(
    plane: FakeControlPlane, config: Config
) -> None:
    with running_agent(config):
        monitor = Monitor()
        with monitor.step(1):
            pass
        with monitor.step(2):
            for peer in (1, 0):
                with monitor.transfer(peer):
                    time.sleep(0.02)
            monitor.transferred(1, 0.5)
            monitor.transferred(object(), 1.0)  # type: ignore[arg-type]  # nothing that a user passes is raised
        monitor.close()
        plane.wait_for(lambda plane: len(reported_steps(plane)) == 2)
    by_peer: dict[int, list[float]] = {}
    for window in windows(plane):
        for one in window.transfers:
            by_peer.setdefault(one.peer, []).extend(one.seconds)
    assert {peer: len([one for one in seconds if one]) for peer, seconds in by_peer.items()} == {0: 1, 1: 1}
    assert 0.015 < max(by_peer[0]) < 0.4
    assert max(by_peer[1]) > 0.515
    last = [one for one in windows(plane) if one.self_seconds][-1]
    assert last.self_seconds[-1] < last.wall_seconds[-1] - 0.035, "transfers are none of its own time"


def test_a_step_that_is_broken_off_does_not_count(plane: FakeControlPlane, config: Config) -> None:
    def stop(monitor: Monitor) -> str:
        for n in monitor.steps(range(4, 10)):
            if n == 5:
                return "early"
        return "at its end"

    with running_agent(config):
        monitor = Monitor()
        for n in monitor.steps(range(10)):
            if n == 2:
                break
        with pytest.raises(ZeroDivisionError):
            for n in monitor.steps(range(2, 10)):
                if n == 4:
                    raise ZeroDivisionError
        assert stop(monitor) == "early"
        monitor.close()
        plane.wait_for(lambda plane: 4 in reported_steps(plane))
    assert reported_steps(plane) == [0, 1, 2, 3, 4]


def test_a_loop_goes_on_when_the_monitor_is_closed_in_it(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config):
        monitor = Monitor()
        seen = []
        for n in monitor.steps(range(4)):
            seen.append(n)
            if n == 1:
                monitor.close()
    assert seen == [0, 1, 2, 3]


def test_a_checkpoint_of_one_file_is_announced_by_its_writer_and_by_those_who_wrote_nothing(
    plane: FakeControlPlane, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "step-10.pt"
    checkpoint.write_bytes(b"weights")
    with running_agent(config):
        for rank in range(2):
            monkeypatch.setenv("SLURM_PROCID", str(rank))
            monitor = Monitor()
            monitor.checkpoint_saved(10, checkpoint, "." if rank == 0 else None)
            monitor.close()
    shards = [fact for fact in of_kind(plane, CheckpointShard) if isinstance(fact, CheckpointShard)]
    assert [(shard.rank, shard.path, shard.file, shard.size_bytes) for shard in shards] == [
        (0, str(checkpoint), ".", 7),
        (1, str(checkpoint), "", 0),
    ]
    assert shards[0].checksum == "", "nothing reads the file again"


def sections(plane: FakeControlPlane) -> list[str]:
    return [window.section for window in windows(plane) if window.section is not None]


def test_the_last_collective_is_reported_and_its_time_is_waiting(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config):
        monitor = Monitor()

        def pause(seconds: float) -> str:
            time.sleep(seconds)
            return "passed"

        barrier = monitor.collective("barrier")(pause)
        entered_from = time.time()
        for n in monitor.steps(range(2)):
            if n == 1:
                with monitor.collective("all_reduce"):
                    time.sleep(0.03)
            else:
                assert barrier(0.03) == "passed"
        plane.wait_for(lambda plane: any(window.collective for window in windows(plane)))
        with monitor.step(2), monitor.collective("all_gather"):
            plane.wait_for(
                lambda plane: any(
                    window.collective and window.collective.inside and window.collective.sequence == 3
                    for window in windows(plane)
                )
            )
        with monitor.section("evaluation"):
            plane.wait_for(lambda plane: "evaluation" in sections(plane))
        plane.wait_for(lambda plane: sections(plane)[-1] == "")
        monitor.close()
        plane.wait_for(lambda plane: 2 in reported_steps(plane))
    reported = [window.collective for window in windows(plane) if window.collective]
    inside = next(one for one in reported if one.inside and one.sequence == 3)
    assert (inside.name, inside.step) == ("all_gather", 2)
    assert entered_from < inside.entered_at < time.time()
    own = [seconds for window in windows(plane) for seconds in window.self_seconds]
    assert max(own[:2]) < 0.02


@pytest.mark.integration
def test_a_process_that_ends_without_close_sends_what_is_left(
    plane: FakeControlPlane, config: Config, tmp_path: Path
) -> None:
    script = (
        "import sys; from understudy import Monitor; monitor = Monitor()\n"
        "open(sys.argv[1] + '/all', 'w').write('x')\n"
        "for n in monitor.steps(range(3)): pass\n"
        "monitor.checkpoint_saved(3, sys.argv[1], 'all')\n"
    )
    with running_agent(config):
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=30)
        plane.wait_for(lambda plane: of_kind(plane, CheckpointShard) and len(reported_steps(plane)) == 3)


@pytest.mark.timed
def test_the_timing_of_a_step_costs_the_training_thread_microseconds(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config):
        monitor = Monitor()
        costs = []
        for number in range(3000):
            started = time.perf_counter()
            with monitor.step(number), monitor.collective("all_reduce"):
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
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.09 < clock.restart(time.perf_counter()) <= time.perf_counter() - begun


def test_the_hook_needs_nothing_but_the_standard_library() -> None:
    for path in (Path(__file__).parents[2] / "agents" / "understudy").glob("*.py"):
        allowed = sys.stdlib_module_names | FRAMEWORKS.get(path.stem, set())
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level in (0, 1), path  # its own package's, which may have another name
                names = [node.module or ""] if node.level == 0 else []
            for name in names:
                assert name.split(".")[0] in allowed, (path, name)


def test_rank_0_names_once_for_each_attempt_what_it_runs_with(
    plane: FakeControlPlane, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.yaml").write_text("width: 16")
    with running_agent(config):
        Monitor(data_version="other").close()
        monkeypatch.setenv("SLURM_PROCID", "0")
        monitor = Monitor(config_file=tmp_path / "run.yaml", data_version="corpus 3")
        plane.wait_for(lambda plane: any(isinstance(fact, TrainingInputs) for fact in plane.facts))
        monitor.close()
    (named,) = set(of_kind(plane, TrainingInputs))  # the agent repeats what was not acknowledged
    assert isinstance(named, TrainingInputs)
    assert (named.job_id, named.restart_count, named.rank, named.user_id) == (7, 0, 0, os.getuid())
    assert (named.config, named.data) == (config_of(str(tmp_path / "run.yaml"), []), "corpus 3")


@pytest.mark.parametrize("version", ["corpus \udcff", "v" * 300, 3, None])
def test_no_version_of_the_data_costs_rank_0_its_agent(
    plane: FakeControlPlane, config: Config, monkeypatch: pytest.MonkeyPatch, version: Any
) -> None:
    """One with bytes that are no UTF-8, as a variable of the environment may have: the agent refused every connection
    with it.
    """
    monkeypatch.setenv("SLURM_PROCID", "0")
    with running_agent(config):
        monitor = Monitor(config_file=cast(str, None), data_version=version)
        plane.wait_for(lambda plane: any(isinstance(fact, TrainingInputs) for fact in plane.facts))
        monitor.close()
    (named,) = set(of_kind(plane, TrainingInputs))
    assert isinstance(named, TrainingInputs)
    assert named.data == {"corpus \udcff": "corpus ?", "v" * 300: "v" * 255, 3: "3", None: ""}[version]
