"""The process that reads NVML, with the fake library: what the agent sees of it, whatever happens to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests import PYTHON_PATH
from tests.testbed.fake_nvml import EVENT_RECOVERY_ACTION, EVENT_XID, FakeGpus, build, h100_node
from tests.waiting import until, wait_until
from understudy_agent.sample.gpus import RELEASE_FILE, RELEASE_SECONDS_MAX, Bounds, GpuProcess
from understudy_agent.sample.hardware_history import HardwareHistory
from understudy_agent.sample.nvml_sample import NvmlEvent
from understudy_wire.hardware import GpuStatus

pytestmark = pytest.mark.integration

QUICK = Bounds(silent_after=0.3, kill_after=0.6, unkillable_after=0.3, restart_first=0.1, restart_most=0.2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


class Bench:
    def __init__(self, folder: Path, library: Path) -> None:
        self.fake = FakeGpus(folder / "gpus")
        self.fake.write(h100_node("n1"))
        self.hardware = HardwareHistory(folder / "run" / "hardware.json", "boot-1")
        self.release = folder / "run" / RELEASE_FILE
        self.events: list[NvmlEvent] = []
        self.news = 0
        self.environment = os.environ | {
            "LD_LIBRARY_PATH": str(library.parent),
            "FAKE_NVML_STATE": str(self.fake.path),
            "PYTHONPATH": PYTHON_PATH,
        }

    def _count(self) -> None:
        self.news += 1

    @contextlib.asynccontextmanager
    async def running(
        self,
        interval_seconds: float = 0.05,
        command: tuple[str, ...] = (sys.executable, "-m", "understudy_agent.sample.nvml_process"),
        kill: Callable[[subprocess.Popen[bytes]], None] = subprocess.Popen.kill,
    ) -> AsyncIterator[GpuProcess]:
        gpus = GpuProcess(self.hardware, interval_seconds, QUICK, command, self.environment, kill)
        gpus.start(self._count, self.events.append)
        try:
            yield gpus
        finally:
            gpus.stop()


@pytest.fixture
def bench(tmp_path: Path, library: Path) -> Bench:
    return Bench(tmp_path, library)


def statuses(gpus: GpuProcess) -> set[GpuStatus]:
    return {gpu.status for gpu in gpus.newest().gpus}


def children() -> list[int]:
    mine = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in map(int, mine) if b"nvml_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.anyio
async def test_samples_come_and_follow_the_hardware(bench: Bench) -> None:
    async with bench.running() as gpus:
        await until(lambda: len(gpus.newest().gpus) == 8)
        assert statuses(gpus) == {GpuStatus.OK}
        bench.fake.lose(3)
        await until(lambda: gpus.newest().gpus[3].status is GpuStatus.LOST)
        assert gpus.newest().gpus[3].uuid == bench.fake.read()[3].uuid
        assert gpus.silent_seconds() == 0


@pytest.mark.anyio
async def test_rare_readings_are_taken_at_once_on_request(bench: Bench) -> None:
    async with bench.running() as gpus:
        await until(lambda: gpus.newest().gpus)
        bench.fake.change(2, remapped_pending=1, temperature_celsius=77)
        await until(lambda: gpus.newest().gpus[2].temperature_celsius == 77)
        assert gpus.newest().gpus[2].remapped_rows_pending is False
        gpus.take_now()
        await until(lambda: gpus.newest().gpus[2].remapped_rows_pending)


@pytest.mark.anyio
async def test_the_process_of_a_driver_that_hangs_is_killed_and_another_started(bench: Bench) -> None:
    async with bench.running() as gpus:
        await until(lambda: gpus.newest().gpus)
        (first,) = children()
        bench.fake.hang(5)
        await until(lambda: gpus.silent_seconds() > 0)
        assert statuses(gpus) == {GpuStatus.UNREADABLE}
        assert len({gpu.uuid for gpu in gpus.newest().gpus}) == 8
        await until(lambda: children() not in ([], [first]))
        assert has_ended(first)
        silent = gpus.silent_seconds()
        await asyncio.sleep(0.2)
        assert gpus.silent_seconds() > silent  # the next process hangs as well: no answer came
        bench.fake.heal(5)
        await until(lambda: statuses(gpus) == {GpuStatus.OK})
        assert gpus.silent_seconds() == 0
        assert not gpus.unkillable()


@pytest.mark.anyio
async def test_no_second_process_is_started_while_one_cannot_be_killed(bench: Bench) -> None:
    held: list[subprocess.Popen[bytes]] = []
    async with bench.running(kill=held.append) as gpus:
        await until(lambda: gpus.newest().gpus)
        bench.fake.hang(0)
        await until(gpus.unkillable)
        assert "cannot be killed" in gpus.newest().problems[0]
        await asyncio.sleep(1.5)
        assert children() == [held[-1].pid]  # a slow machine may have ended one before, which then ended by itself
        held[-1].kill()  # the kernel ends it
        bench.fake.heal(0)
        await until(lambda: statuses(gpus) == {GpuStatus.OK})
        assert not gpus.unkillable()
        assert children() != [held[-1].pid]


@pytest.mark.anyio
async def test_no_process_uses_nvml_during_a_reset_and_the_missing_answer_is_no_signal(bench: Bench) -> None:
    async with bench.running() as gpus:
        await until(lambda: gpus.newest().gpus)
        (first,) = children()
        bench.fake.change(2, recovery_action=1)
        gpus.take_now()
        await until(lambda: gpus.newest().gpus[2].recovery_action == 1)
        bench.release.touch()
        await until(lambda: has_ended(first) and not children())
        bench.fake.change(2, recovery_action=0)
        await asyncio.sleep(1.5)  # longer than a driver may take here, and than the pause before the next process
        assert children() == []
        assert (gpus.silent_seconds(), gpus.unkillable()) == (0, False)
        assert statuses(gpus) == {GpuStatus.UNREADABLE}, "readings from before the reset are not reported after it"
        assert "a GPU is being reset" in gpus.newest().problems[0]
        bench.release.unlink()
        await until(lambda: statuses(gpus) == {GpuStatus.OK})
        assert gpus.newest().gpus[2].recovery_action == 0
        assert children() != [first]


@pytest.mark.anyio
async def test_an_agent_that_starts_during_a_reset_waits_unless_the_release_file_is_old(bench: Bench) -> None:
    bench.release.parent.mkdir()
    bench.release.touch()
    async with bench.running() as gpus:
        await asyncio.sleep(0.5)
        assert (children(), gpus.silent_seconds()) == ([], 0)
        old = time.time() - RELEASE_SECONDS_MAX - 1
        os.utime(bench.release, (old, old))
        await until(lambda: statuses(gpus) == {GpuStatus.OK})


@pytest.mark.anyio
async def test_a_driver_that_hangs_after_a_reset_is_reported(bench: Bench) -> None:
    async with bench.running() as gpus:
        await until(lambda: gpus.newest().gpus)
        bench.release.touch()
        await until(lambda: not children())
        bench.fake.hang(0)
        bench.release.unlink()
        await until(lambda: gpus.silent_seconds() > 0)
        assert "has not answered" in gpus.newest().problems[0]


@pytest.mark.anyio
async def test_a_process_that_dies_is_started_again(bench: Bench) -> None:
    async with bench.running() as gpus:
        await until(lambda: gpus.newest().gpus)
        (first,) = children()
        os.kill(first, signal.SIGSEGV)
        await until(lambda: children() not in ([], [first]))
        bench.fake.change(1, temperature_celsius=33)
        await until(lambda: gpus.newest().gpus[1].temperature_celsius == 33)


@pytest.mark.anyio
async def test_a_program_that_writes_nonsense_is_killed_and_reported(bench: Bench) -> None:
    async with bench.running(command=("/bin/sh", "-c", "echo nonsense; sleep 60", "sh")) as gpus:
        await until(lambda: gpus.silent_seconds() > 0)
        await until(lambda: any("cannot be decoded" in problem for problem in gpus.newest().problems))


@pytest.mark.anyio
async def test_a_program_that_does_not_exist_is_reported(bench: Bench) -> None:
    async with bench.running(command=("/nowhere/python",)) as gpus:
        await until(lambda: any("cannot be started" in problem for problem in gpus.newest().problems))


@pytest.mark.anyio
async def test_events_arrive_with_the_gpu_they_are_about_and_a_new_sample(bench: Bench) -> None:
    async with bench.running(interval_seconds=30) as gpus:
        await until(lambda: gpus.newest().gpus)
        news = bench.news
        await asyncio.sleep(0.3)  # until the event set exists
        bench.fake.change(6, recovery_action=1)
        bench.fake.raise_event(6, EVENT_XID, 48)
        bench.fake.raise_event(6, EVENT_RECOVERY_ACTION, 1)
        await until(lambda: len(bench.events) == 2)
        bus_id = gpus.newest().gpus[6].bus_id
        assert [(event.kind, event.data, event.bus_id) for event in bench.events] == [
            (EVENT_XID, 48, bus_id),
            (EVENT_RECOVERY_ACTION, 1, bus_id),
        ]
        await until(lambda: gpus.newest().gpus[6].recovery_action == 1)
        assert bench.news > news


@pytest.mark.anyio
async def test_the_driver_can_be_unloaded_and_loaded_again_under_events_and_samples(bench: Bench) -> None:
    async with bench.running() as gpus:
        await until(lambda: gpus.newest().gpus)
        content = bench.fake.path.read_bytes()
        bench.fake.path.unlink()
        await until(lambda: statuses(gpus) == {GpuStatus.UNREADABLE})
        bench.fake.path.write_bytes(content)
        await until(lambda: statuses(gpus) == {GpuStatus.OK})
        await asyncio.sleep(0.3)
        bench.fake.raise_event(1, EVENT_XID, 13)
        await until(lambda: [event.data for event in bench.events] == [13])


STARTS_AND_HANGS = """
import asyncio, sys
from pathlib import Path
from understudy_agent.sample.gpus import GpuProcess
from understudy_agent.sample.hardware_history import HardwareHistory
async def main():
    gpus = GpuProcess(HardwareHistory(Path(sys.argv[1]), "boot-1"), 0.05)
    gpus.start(lambda: None, lambda event: None)
    while not gpus.newest().gpus:
        await asyncio.sleep(0.01)
    print(gpus._process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_the_process_ends_with_its_agent(bench: Bench, tmp_path: Path, hangs: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_AND_HANGS, str(tmp_path / "hardware.json")],
        env=bench.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as agent:
        assert agent.stdout is not None
        pid = int(agent.stdout.readline())
        assert not has_ended(pid)
        if hangs:
            bench.fake.hang(0)
            time.sleep(0.3)
        agent.kill()
    wait_until(lambda: has_ended(pid))


@pytest.mark.anyio
async def test_gpus_seen_before_are_known_after_a_restart_of_the_agent_and_not_after_a_boot(
    bench: Bench, tmp_path: Path
) -> None:
    async with bench.running() as gpus:
        await until(lambda: GpuStatus.OK in statuses(gpus))
        uuids = [gpu.uuid for gpu in gpus.newest().gpus]
    bench.fake.write(bench.fake.read()[:7])
    bench.hardware = HardwareHistory(tmp_path / "run" / "hardware.json", "boot-1")
    async with bench.running() as gpus:
        await until(lambda: GpuStatus.OK in statuses(gpus))
        (missing,) = [gpu for gpu in gpus.newest().gpus if gpu.status is GpuStatus.MISSING]
        assert (missing.index, missing.uuid) == (7, uuids[7])
    bench.hardware = HardwareHistory(tmp_path / "run" / "hardware.json", "boot-2")
    async with bench.running() as gpus:
        await until(lambda: GpuStatus.OK in statuses(gpus))
        assert len(gpus.newest().gpus) == 7
