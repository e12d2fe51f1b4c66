from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agents.config import Config
from agents.sample.nvml import Picture
from agents.wire import Gpu, GpuStatus, KernelEvent
from tests.agents.fake_control_plane import FakeControlPlane
from tests.agents.running_agent import agent_config, running_agent, write_xid


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as plane:
        yield plane


@pytest.fixture
def config(tmp_path: Path, plane: FakeControlPlane) -> Config:
    return agent_config(tmp_path, plane.url)


class OneGpu:
    """A reader whose driver answers at once, until it hangs."""

    def __init__(self) -> None:
        self.status = GpuStatus.OK
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0

    def read(self) -> Picture:
        self.asked += 1
        self.answers.wait(10)
        return Picture("570", (Gpu(index=0, status=self.status, uuid="GPU-1"),))


def xids(plane: FakeControlPlane) -> list[tuple[int, int | None]]:
    return [(fact.sequence, fact.xid) for fact in plane.facts if isinstance(fact, KernelEvent)]


def test_reports_come_every_interval(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config, OneGpu()):
        plane.wait_for(lambda plane: len(plane.reports) >= 5)
    reports = plane.reports
    assert reports[0].cluster == "testcluster"
    assert reports[0].node == "n1"
    assert reports[0].boot_id == "boot-1"
    assert reports[0].driver_version == "570"
    assert [report.sequence for report in reports] == list(range(1, len(reports) + 1))
    assert reports[4].sent_at - reports[0].sent_at == pytest.approx(0.4, abs=0.2)


def test_without_nvml_reports_come_all_the_same(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config):
        plane.wait_for(lambda plane: len(plane.reports) >= 2)
    assert plane.reports[0].gpus == []


def test_an_xid_goes_out_at_once_and_the_gpus_are_looked_at_again(plane: FakeControlPlane, config: Config) -> None:
    slow = msgspec.structs.replace(config, report_interval_seconds=30.0)
    gpu = OneGpu()
    with running_agent(slow, gpu):
        plane.wait_for(lambda plane: plane.reports)
        gpu.status = GpuStatus.LOST
        written_at = write_xid(config, 1)
        plane.wait_for(lambda plane: xids(plane) == [(1, 79)])
        latency_seconds = time.time() - written_at
        plane.wait_for(lambda plane: plane.reports[-1].gpus[0].status == GpuStatus.LOST)
    assert latency_seconds < 0.3


def test_a_hung_driver_holds_up_no_fact(plane: FakeControlPlane, config: Config) -> None:
    gpu = OneGpu()
    with running_agent(config, gpu):
        plane.wait_for(lambda plane: plane.reports)
        gpu.answers.clear()
        asked = gpu.asked
        plane.wait_for(lambda _: gpu.asked > asked)
        written_at = write_xid(config, 1)
        plane.wait_for(lambda plane: xids(plane) == [(1, 79)])
        assert time.time() - written_at < 0.3
        assert plane.reports[-1].gpus[0].uuid == "GPU-1"
        count = len(plane.reports)
        plane.wait_for(lambda plane: len(plane.reports) > count)  # and the rhythm goes on
        gpu.answers.set()


def test_facts_survive_the_death_of_the_control_plane(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config, OneGpu()):
        plane.wait_for(lambda plane: plane.reports)
        plane.stop()
        for sequence in (1, 2, 3):
            write_xid(config, sequence)
        time.sleep(0.4)
        plane.start()
        plane.wait_for(lambda plane: set(xids(plane)) == {(1, 79), (2, 79), (3, 79)})


def test_a_burst_of_xids_arrives_whole(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config, OneGpu()):
        for sequence in range(600):
            write_xid(config, sequence, xid=13)
        plane.wait_for(lambda plane: len(xids(plane)) >= 600)
    assert {sequence for sequence, _ in xids(plane)} == set(range(600))


def test_rubbish_in_the_kernel_log_is_told_as_a_problem(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config, OneGpu()):
        with config.kernel_log.open("a") as log:
            log.write("rubbish\n")
        plane.wait_for(lambda plane: plane.reports and plane.reports[-1].problems)
    assert "no records" in plane.reports[-1].problems[0]


def start_agent(config: Config, folder: Path, *more: str) -> subprocess.Popen[str]:
    lines = [
        f'cluster = "{config.cluster}"',
        f'node = "{config.node}"',
        f'control_plane_urls = ["{config.control_plane_urls[0]}"]',
        *(f'{key} = "{getattr(config, key)}"' for key in ("token_file", "kernel_log", "socket", "boot_id_file")),
        "[nvml]",
        "enabled = false",
    ]
    (folder / "agent.toml").write_text("\n".join(lines))
    command = [sys.executable, "-m", "agents", "--config", str(folder / "agent.toml"), *more]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_agent_cleanly(
    plane: FakeControlPlane, config: Config, tmp_path: Path, number: signal.Signals
) -> None:
    with start_agent(config, tmp_path) as process:
        plane.wait_for(lambda plane: plane.reports, timeout_seconds=15)
        process.send_signal(number)
        _, log = process.communicate(timeout=10)
    assert process.returncode == 0
    assert not config.socket.exists()
    events = [line.split(" event=")[1].split()[0] for line in log.splitlines()]
    assert events == ["agent_started", "agent_stopped"]


def test_a_configuration_can_be_checked_without_starting(config: Config, tmp_path: Path) -> None:
    with start_agent(config, tmp_path, "--check-config") as process:
        out, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "good (cluster testcluster, node n1)" in out
    config.token_file.unlink()
    with start_agent(config, tmp_path, "--check-config") as process:
        _, err = process.communicate(timeout=10)
    assert process.returncode == 2
    assert "token_file" in err
