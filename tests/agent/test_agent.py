from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent, write_xid
from tests.testbed.fake_fabric import FakeFabric
from tests.waiting import PATIENCE_SECONDS
from understudy_agent import loop
from understudy_agent.config import Config, HostConfig
from understudy_agent.sample.gpus import GpuSource
from understudy_agent.sample.hardware_history import HardwareHistory
from understudy_agent.sample.nvml_sample import NvmlEvent, NvmlSample
from understudy_agent.sample.processes import Processes
from understudy_agent.sample.sampler import Sampler
from understudy_wire.facts import HardwareEvent, KernelEvent
from understudy_wire.hardware import Gpu, GpuStatus, Host, Part, PartKind, Port, Stuck, StuckProcess

pytestmark = pytest.mark.integration


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as plane:
        yield plane


@pytest.fixture
def config(tmp_path: Path, plane: FakeControlPlane) -> Config:
    return agent_config(tmp_path, plane.url)


class OneGpu(GpuSource):
    """A GPU whose state is sampled on request, and a driver that can stop answering."""

    def __init__(self) -> None:
        self.status = GpuStatus.OK
        self.unanswered_seconds = 0.0
        self._on_news: Callable[[], None] = lambda: None
        self.report_event: Callable[[NvmlEvent], None] = lambda _: None
        self._sample = self._take()

    def start(self, on_news: Callable[[], None], on_event: Callable[[NvmlEvent], None]) -> None:
        self._on_news = on_news
        self.report_event = on_event

    def take_now(self) -> None:
        self._sample = self._take()
        self._on_news()

    def newest(self) -> NvmlSample:
        return self._sample

    def silent_seconds(self) -> float:
        return self.unanswered_seconds

    def _take(self) -> NvmlSample:
        return NvmlSample("570", (Gpu(index=0, status=self.status, uuid="GPU-1"),))


def xids(plane: FakeControlPlane) -> list[tuple[int, int | None]]:
    return [(fact.sequence, fact.xid) for fact in plane.facts if isinstance(fact, KernelEvent)]


def test_an_agent_reaches_a_control_plane_by_ipv6(tmp_path: Path) -> None:
    with FakeControlPlane(host="::1") as plane, running_agent(agent_config(tmp_path, plane.url)):
        assert plane.url.startswith("http://[::1]:")
        plane.wait_for(lambda it: it.reports)


def test_reports_come_every_interval(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config, OneGpu()):
        plane.wait_for(lambda plane: len(plane.reports) >= 5)
    reports = plane.reports
    assert reports[0].cluster == "testcluster"
    assert reports[0].node == "n1"
    assert reports[0].boot_id == "boot-1"
    assert reports[0].driver_version == "570"
    assert [report.sequence for report in reports] == list(range(1, len(reports) + 1))
    assert reports[4].sent_at - reports[0].sent_at > 0.2


def test_the_last_report_announces_that_the_agent_stops(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config, OneGpu()):
        plane.wait_for(lambda plane: len(plane.reports) >= 2)
    assert [report.stopping for report in plane.reports[-2:]] == [False, True]


def test_without_nvml_reports_come_as_well(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config):
        plane.wait_for(lambda plane: len(plane.reports) >= 2)
    assert plane.reports[0].gpus == []


def test_an_xid_of_nvml_that_waits_for_its_line_is_sent_before_the_agent_stops(
    plane: FakeControlPlane, config: Config
) -> None:
    gpus = OneGpu()
    with running_agent(config, gpus):
        plane.wait_for(lambda plane: len(plane.reports) >= 1)
        gpus.report_event(NvmlEvent(time.time(), 0x8, 79, "0000:01:00.0"))
    assert [fact.number for fact in plane.facts if isinstance(fact, HardwareEvent)] == [79]


def test_an_xid_is_sent_at_once_and_the_gpus_are_sampled_again(plane: FakeControlPlane, config: Config) -> None:
    slow = msgspec.structs.replace(config, report_interval_seconds=30.0)
    gpu = OneGpu()
    with running_agent(slow, gpu):
        plane.wait_for(lambda plane: plane.reports)
        gpu.status = GpuStatus.LOST
        written_at = write_xid(config, 1)
        plane.wait_for(lambda plane: xids(plane) == [(1, 79)])
        latency_seconds = time.time() - written_at
        plane.wait_for(lambda plane: plane.reports[-1].gpus[0].status == GpuStatus.LOST)
    assert latency_seconds < slow.report_interval_seconds / 2


def test_a_driver_that_does_not_answer_is_reported(plane: FakeControlPlane, config: Config) -> None:
    gpu = OneGpu()
    with running_agent(config, gpu):
        plane.wait_for(lambda plane: plane.reports)
        assert plane.reports[-1].nvml_silent_seconds == 0
        gpu.unanswered_seconds = 12.0
        plane.wait_for(lambda plane: plane.reports[-1].nvml_silent_seconds == 12)


def test_ports_host_and_processes_that_can_no_longer_be_read_are_not_reported_as_they_were(
    plane: FakeControlPlane, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeFabric(tmp_path).lay_out(1)
    hangs, healed = threading.Event(), threading.Event()

    def read(value: Any, *arguments: Any) -> Any:
        if hangs.is_set():
            healed.wait()
        return value

    monkeypatch.setattr(loop, "read_host", partial(read, Host(memory_total_bytes=1)))
    monkeypatch.setattr(Processes, "read", partial(read, [StuckProcess(7, 1000, "python", Stuck.KILLED, 61.0)]))
    monkeypatch.setattr(loop, "HOST_SECONDS", 0.05)
    monkeypatch.setattr(loop, "PROCESSES_SECONDS", 0.05)
    monkeypatch.setattr(loop, "Sampler", partial(Sampler, silent_after_seconds=0.3))
    reading_host = msgspec.structs.replace(config, host=HostConfig(sys=tmp_path, disks=(tmp_path,)))
    with running_agent(reading_host):
        plane.wait_for(lambda plane: plane.reports and plane.reports[-1].host and plane.reports[-1].processes)
        assert plane.reports[-1].host_silent_seconds == 0
        hangs.set()
        plane.wait_for(lambda plane: plane.reports[-1].host is None and not plane.reports[-1].processes)
        assert plane.reports[-1].host_silent_seconds >= 0.3
        healed.set()
        plane.wait_for(lambda plane: plane.reports[-1].host and plane.reports[-1].processes)


def test_ports_and_host_are_reported_and_an_outage_is_a_fact(
    plane: FakeControlPlane, config: Config, tmp_path: Path
) -> None:
    fabric = FakeFabric(tmp_path)
    fabric.lay_out(1)
    fabric.take_down(0)
    board = tmp_path / "class" / "dmi" / "id"
    board.mkdir(parents=True)
    (board / "board_name").write_text("X13\n")
    hardware = HardwareHistory(config.run_directory / "hardware.json", "boot-1")
    hardware.seen.ports["mlx5_0/1"] = Port("mlx5_0", 1, was_active=True, rate_gbps_max=400.0)
    hardware.seen.port_down_at["mlx5_0/1"] = time.monotonic() - 50
    hardware.save()
    reading_host = msgspec.structs.replace(config, host=HostConfig(sys=tmp_path, disks=(tmp_path,)))
    with running_agent(reading_host):
        plane.wait_for(lambda plane: plane.reports and plane.reports[-1].ports and plane.reports[-1].host)
        fabric.bring_up(0)
        plane.wait_for(lambda plane: plane.facts)
    report = plane.reports[0] if plane.reports[0].ports else plane.reports[1]
    assert report.ports[0].state == "DOWN"
    (outage,) = set(plane.facts)  # a fact that is not acknowledged when the agent ends is sent again
    assert isinstance(outage, HardwareEvent)
    assert (outage.part, outage.boot_id) == ("mlx5_0/1", "boot-1")
    assert 50 <= outage.seconds < 70
    assert plane.reports[-1].ports[0].down_seconds is None
    assert plane.reports[-1].parts == [], "they are sent every few minutes"
    board_of = [part for report in plane.reports for part in report.parts if part.kind is PartKind.BOARD]
    assert set(board_of) == {Part(PartKind.BOARD, "board", "X13")}


def test_facts_survive_the_death_of_the_control_plane(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config, OneGpu()):
        plane.wait_for(lambda plane: plane.reports)
        plane.stop()
        for sequence in (1, 2, 3):
            write_xid(config, sequence)
        time.sleep(0.4)
        plane.start()
        plane.wait_for(lambda plane: set(xids(plane)) == {(1, 79), (2, 79), (3, 79)})


def test_an_xid_survives_the_death_of_the_control_plane_and_a_restart_of_the_agent(
    plane: FakeControlPlane, config: Config
) -> None:
    with running_agent(config):
        plane.wait_for(lambda plane: plane.reports)
        plane.stop()
        write_xid(config, 1)
        while not (config.run_directory / "facts.spool").exists():
            time.sleep(0.01)
    config.kernel_log.write_text("")  # the kernel's buffer has been overwritten
    plane.start()
    with running_agent(config):
        plane.wait_for(lambda plane: [fact for fact in plane.facts if isinstance(fact, KernelEvent)])
        while (config.run_directory / "facts.spool").exists():
            time.sleep(0.01)


def test_a_burst_of_xids_arrives_whole(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config, OneGpu()):
        for sequence in range(600):
            write_xid(config, sequence, xid=13)
        plane.wait_for(lambda plane: len(xids(plane)) >= 600)
    assert {sequence for sequence, _ in xids(plane)} == set(range(600))


def test_malformed_lines_of_the_kernel_log_are_reported_as_a_problem(plane: FakeControlPlane, config: Config) -> None:
    with running_agent(config, OneGpu()):
        with config.kernel_log.open("a") as log:
            log.write("nonsense\n")
        plane.wait_for(lambda plane: plane.reports and plane.reports[-1].problems)
    assert "not records" in plane.reports[-1].problems[0]


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
    command = [sys.executable, "-m", "understudy_agent", "--config", str(folder / "agent.toml"), *more]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_agent_cleanly(
    plane: FakeControlPlane, config: Config, tmp_path: Path, number: signal.Signals
) -> None:
    with start_agent(config, tmp_path) as process:
        plane.wait_for(lambda plane: plane.reports)
        process.send_signal(number)
        _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert not config.socket.exists()
    events = [line.split(" event=")[1].split()[0] for line in log.splitlines()]
    assert events == ["agent_started", "agent_stopped"]


def test_a_configuration_can_be_checked_without_starting(config: Config, tmp_path: Path) -> None:
    with start_agent(config, tmp_path, "--check-config") as process:
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert "is valid (cluster testcluster, node n1)" in out
    assert config.token_file is not None
    config.token_file.unlink()
    with start_agent(config, tmp_path, "--check-config") as process:
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2
    assert "token_file" in err
