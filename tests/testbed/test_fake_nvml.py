"""The fake library through the genuine bindings, in a process of its own as an agent is."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from tests import PYTHON_PATH, REPOSITORY
from tests.testbed import fake_nvml
from tests.testbed.fake_nvml import (
    A100,
    B200,
    DRIVER_VERSION,
    DRIVERS,
    EVENT_RECOVERY_ACTION,
    EVENT_XID,
    GB200,
    GPU_IS_LOST,
    H100,
    H200,
    L40S,
    OLD_DRIVER,
    OLD_DRIVER_VERSION,
    REASON_HW_SLOWDOWN,
    RESET_REQUIRED,
    SHAPES,
    V100,
    WITH_MIG,
    BuildError,
    FakeGpus,
    Shape,
    build,
    failing,
    h100_node,
    shaped_node,
)
from understudy_agent.sample.nvml_sample import NvmlSample
from understudy_wire.hardware import GpuStatus

pytestmark = pytest.mark.integration

PROGRAM = """
import sys, msgspec
from pathlib import Path
from understudy_agent.sample.gpu_history import GpuHistory
from understudy_agent.sample.hardware_history import HardwareHistory
from understudy_agent.sample.nvml import Nvml
nvml, history = Nvml(), GpuHistory(HardwareHistory(Path(sys.argv[1]), "boot-1"))
for number, _ in enumerate(sys.stdin):
    print(msgspec.json.encode(history.add(nvml.read(everything=True), float(number))).decode(), flush=True)
"""

THREADS = """
import threading, pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(8)]
failures = []
def ask():
    for _ in range(300):
        for handle in handles:
            if not pynvml.nvmlDeviceGetUUID(handle).startswith("GPU-"):
                failures.append(handle)
threads = [threading.Thread(target=ask) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(failures))
"""

RAW = """
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
values = pynvml.nvmlDeviceGetFieldValues(handle, [230, 74])
print([(v.fieldId, v.nvmlReturn, v.value.uiVal) for v in values])
info = pynvml.nvmlDeviceGetPciInfo(handle)
print(info.busId, info.bus)
memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
print(memory.total == memory.used + memory.free)
print(pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(handle))))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def test_a_library_that_cannot_be_compiled_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "broken.c"
    source.write_text('extern int none __attribute__((visibility("hidden"))); int *of(void) { return &none; }')
    monkeypatch.setattr(fake_nvml, "SOURCE", source)
    monkeypatch.setattr(fake_nvml, "COMPILED", tmp_path / "compiled")
    with pytest.raises(BuildError, match="hidden symbol"):
        build(tmp_path / "library")


class Reader:
    """The agent's sampler in a process whose NVML is the fake one."""

    def __init__(self, library: Path, state: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, f"{state}.memory"],
            env=environment(library, state),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> NvmlSample:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("read\n")
        self.process.stdin.flush()
        return msgspec.json.decode(self.process.stdout.readline(), type=NvmlSample)

    def close(self) -> None:
        self.process.communicate(timeout=10)


def environment(library: Path, state: Path) -> dict[str, str]:
    return os.environ | {
        "LD_LIBRARY_PATH": str(library.parent),
        "FAKE_NVML_STATE": str(state),
        "PYTHONPATH": PYTHON_PATH,
    }


def run(program: str, library: Path, state: Path) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment(library, state), capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def gpus(tmp_path: Path) -> FakeGpus:
    gpus = FakeGpus(tmp_path / "gpus")
    gpus.write(h100_node("n1"))
    return gpus


@pytest.fixture
def reader(library: Path, gpus: FakeGpus) -> Iterator[Reader]:
    reader = Reader(library, gpus.path)
    yield reader
    reader.close()


def test_a_healthy_node_shows_eight_whole_gpus(reader: Reader, gpus: FakeGpus) -> None:
    sample = reader.read()
    assert sample.driver_version == DRIVER_VERSION
    assert sample.problems == ()
    assert len(sample.gpus) == 8
    for index, (gpu, fake) in enumerate(zip(sample.gpus, gpus.read(), strict=True)):
        assert (gpu.index, gpu.status, gpu.error) == (index, GpuStatus.OK, "")
        assert (gpu.uuid, gpu.bus_id, gpu.serial, gpu.name) == (fake.uuid, fake.bus_id, fake.serial, fake.name)
        assert gpu.board_part_number == fake.board_part_number
        assert gpu.power_watts == 155.0
        assert gpu.memory_total_bytes == 80 * 2**30
        assert (gpu.remapped_rows_pending, gpu.remapped_rows_failed) == (False, False)
        assert (gpu.pcie_generation, gpu.pcie_generation_max, gpu.pcie_width, gpu.pcie_width_max) == (5, 5, 16, 16)
        unread = [name for name in gpu.__struct_fields__ if getattr(gpu, name) is None]
        # The share takes five minutes to be known, and an H100 has rows instead of pages.
        assert unread == ["slowed_share_recent", "retired_pages", "retired_pages_pending"]


def test_a_lost_gpu_is_reported_as_lost_under_its_known_identity_and_comes_back(reader: Reader, gpus: FakeGpus) -> None:
    before = reader.read().gpus[3]
    gpus.lose(3)
    after = reader.read().gpus
    assert len(after) == 8
    assert after[3].status == GpuStatus.LOST
    assert (after[3].uuid, after[3].bus_id, after[3].serial) == (before.uuid, before.bus_id, before.serial)
    assert after[3].temperature_celsius is None
    assert "GPU is lost" in after[3].error
    assert {gpu.status for gpu in after if gpu.index != 3} == {GpuStatus.OK}
    gpus.heal(3)
    assert reader.read().gpus[3] == before


def test_a_gpu_that_was_lost_before_the_agent_started_is_in_the_list(library: Path, gpus: FakeGpus) -> None:
    gpus.lose(0)
    reader = Reader(library, gpus.path)
    sample = reader.read()
    reader.close()
    assert len(sample.gpus) == 8
    assert (sample.gpus[0].index, sample.gpus[0].status) == (0, GpuStatus.LOST)


@pytest.mark.parametrize(
    ("result", "status"), [(RESET_REQUIRED, GpuStatus.RESET_REQUIRED), (999, GpuStatus.UNREADABLE)]
)
def test_other_failures_have_their_own_status(reader: Reader, gpus: FakeGpus, result: int, status: GpuStatus) -> None:
    gpus.change(5, result=result)
    gpu = reader.read().gpus[5]
    assert gpu.status == status
    assert str(result) in gpu.error


def test_a_slow_gpu_shows_its_clock_and_the_reason(reader: Reader, gpus: FakeGpus) -> None:
    gpus.slow_down(2, sm_clock_mhz=990, reasons=REASON_HW_SLOWDOWN)
    gpu = reader.read().gpus[2]
    assert (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, gpu.clock_event_reasons) == (990, 1980, 8)
    assert gpu.status == GpuStatus.OK


def test_what_a_gpu_does_not_support_is_none(reader: Reader, gpus: FakeGpus) -> None:
    gpus.change(1, recovery_action=None, ecc_uncorrected=None, remapped_pending=None, power_milliwatts=None)
    gpu = reader.read().gpus[1]
    assert gpu.status == GpuStatus.OK
    assert (gpu.recovery_action, gpu.ecc_uncorrected, gpu.remapped_rows_pending) == (None, None, None)
    assert gpu.power_watts is None
    assert gpu.temperature_celsius == 58


def test_the_recovery_action_is_read(reader: Reader, gpus: FakeGpus) -> None:
    gpus.change(1, recovery_action=2)
    assert reader.read().gpus[1].recovery_action == 2


def test_without_a_driver_there_is_a_problem_and_no_gpu_until_it_is_loaded(library: Path, tmp_path: Path) -> None:
    gpus = FakeGpus(tmp_path / "later")
    reader = Reader(library, gpus.path)
    sample = reader.read()
    assert sample.gpus == ()
    assert "Driver Not Loaded" in sample.problems[0]
    gpus.write(h100_node("n1"))
    assert len(reader.read().gpus) == 8
    reader.close()


def test_gpus_known_before_stay_in_the_list_when_the_driver_goes_away(reader: Reader, gpus: FakeGpus) -> None:
    before = reader.read().gpus
    gpus.path.unlink()
    after = reader.read()
    assert [gpu.uuid for gpu in after.gpus] == [gpu.uuid for gpu in before]
    assert {gpu.status for gpu in after.gpus} == {GpuStatus.UNREADABLE}
    assert after.problems


def test_a_gpu_that_nvml_no_longer_lists_stays_in_the_list(reader: Reader, gpus: FakeGpus) -> None:
    before = reader.read().gpus
    remaining = gpus.read()
    del remaining[3]
    gpus.write(remaining)
    after = reader.read().gpus
    assert {gpu.uuid for gpu in after} == {gpu.uuid for gpu in before}
    assert sorted(gpu.index for gpu in after) == list(range(8))
    assert [gpu.uuid for gpu in after if gpu.status == GpuStatus.MISSING] == [before[3].uuid]


def test_without_the_library_there_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "nowhere" / "lib.so", tmp_path / "none")
    assert "Library Not Found" in reader.read().problems[0]
    reader.close()


def test_a_state_file_with_a_mistake_fails_loudly(library: Path, gpus: FakeGpus) -> None:
    gpus.path.write_text("gpu=0\tuuid=GPU-1\ttemprature=3\n")
    program = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as e: print(e.value)"
    assert run(program, library, gpus.path).strip() == "999"


def test_raw_structures_have_the_layout_that_the_bindings_expect(library: Path, gpus: FakeGpus) -> None:
    gpus.change(0, recovery_action=1)
    lines = run(RAW, library, gpus.path).splitlines()
    assert lines == ["[(230, 0, 1), (74, 3, 0)]", "00000000:1B:00.0 27", "True", "0"]


def test_many_threads_may_ask_at_once(library: Path, gpus: FakeGpus) -> None:
    assert run(THREADS, library, gpus.path).strip() == "0"


def test_every_node_has_gpus_of_its_own() -> None:
    uuids = {gpu.uuid for node in ("n1", "n2", "n3") for gpu in h100_node(node)}
    assert len(uuids) == 24
    assert h100_node("n1") == h100_node("n1")


def test_an_edit_survives_writing_and_reading(gpus: FakeGpus) -> None:
    gpus.change(4, recovery_action=None, sm_clock_mhz=700)
    gpu = gpus.read()[4]
    assert (gpu.recovery_action, gpu.sm_clock_mhz) == (None, 700)
    with pytest.raises(IndexError, match="no GPU 8"):
        gpus.lose(8)


@pytest.mark.parametrize(
    ("shape", "name", "links", "memory_gib"),
    [
        (H100, "NVIDIA H100 80GB HBM3", 18, 80),
        (H200, "NVIDIA H200", 18, 140),
        (A100, "NVIDIA A100-SXM4-80GB", 12, 80),
        (B200, "NVIDIA B200", 18, 180),
        (GB200, "NVIDIA GB200", 18, 180),
        (L40S, "NVIDIA L40S", None, 48),
    ],
)
def test_nodes_have_the_shape_of_their_kind(
    reader: Reader, gpus: FakeGpus, shape: Shape, name: str, links: int | None, memory_gib: int
) -> None:
    gpus.write(shaped_node("n1", shape))
    for gpu in reader.read().gpus:
        assert (gpu.status, gpu.error, gpu.name) == (GpuStatus.OK, "", name)
        assert (gpu.nvlinks, gpu.sm_clock_mhz) == (links, gpu.sm_clock_max_mhz)
        assert gpu.memory_total_bytes == memory_gib * 2**30
        assert gpu.power_watts is not None and gpu.power_limit_watts is not None
        assert 0 < gpu.power_watts < gpu.power_limit_watts
    gpus.lose(3)
    gpus.heal(3)
    assert {gpu.name for gpu in reader.read().gpus} == {name}


def test_an_old_driver_does_not_know_the_recovery_action(reader: Reader, gpus: FakeGpus) -> None:
    gpus.write(shaped_node("n1", A100, **OLD_DRIVER), driver_version=OLD_DRIVER_VERSION)
    sample = reader.read()
    assert sample.driver_version == OLD_DRIVER_VERSION
    assert {(gpu.status, gpu.recovery_action, gpu.sram_threshold_exceeded) for gpu in sample.gpus} == {
        (GpuStatus.OK, None, None)
    }
    gpus.change(0, temperature_celsius=40)
    assert reader.read().driver_version == OLD_DRIVER_VERSION


def test_with_mig_there_is_no_word_of_remapped_rows(reader: Reader, gpus: FakeGpus) -> None:
    gpus.write(shaped_node("n1", H100, **WITH_MIG))
    gpu = reader.read().gpus[0]
    assert (gpu.status, gpu.remapped_rows_pending, gpu.utilization_percent) == (GpuStatus.OK, None, None)
    assert gpu.mig_mode is True


def test_a_gpu_without_memory_of_its_own_and_with_fewer_links_than_nvml_knows_is_well(
    reader: Reader, gpus: FakeGpus
) -> None:
    """GB10 has no memory information (leptonai/gpud issue 1170, XuehaiPan/nvitop issue 208), and NVML returns
    INVALID_ARGUMENT above a GPU's last link (NVIDIA/TensorRT-LLM issue 17060).
    """
    results = tomllib.loads((REPOSITORY / "tests/data/world/gres/gb10.toml").read_text())
    gpus.write(shaped_node("n1", B200, 1, errors=failing(**results)))
    (gpu,) = reader.read().gpus
    assert (gpu.status, gpu.error, gpu.memory_total_bytes, gpu.nvlinks) == (GpuStatus.OK, "", None, 18)


READ_EACH_TIME = (
    "temperature_celsius",
    "power_watts",
    "sm_clock_mhz",
    "clock_event_reasons",
    "memory_total_bytes",
    "pcie_width",
)


def test_retired_pages_are_read_of_gpus_that_have_them(reader: Reader, gpus: FakeGpus) -> None:
    gpus.write(shaped_node("n1", V100, 1, retired_pages=3, retired_pages_pending=1))
    (gpu,) = reader.read().gpus
    assert (gpu.retired_pages, gpu.retired_pages_pending, gpu.remapped_rows_pending) == (3, True, None)
    assert gpu.mig_mode is False


def test_every_gpu_is_whole_under_every_driver(reader: Reader, gpus: FakeGpus) -> None:
    for shape in SHAPES:
        for driver, unknown in DRIVERS.items():
            for differences in ({}, WITH_MIG):
                gpus.write([])  # as when the driver is exchanged
                reader.read()
                gpus.write(shaped_node("n1", shape, 1, **(unknown | differences)), driver)
                for gpu in reader.read().gpus:
                    if gpu.status is GpuStatus.MISSING:  # one of the shape before
                        continue
                    assert (gpu.status, gpu.error) == (GpuStatus.OK, ""), (shape, driver)
                    assert None not in [getattr(gpu, name) for name in READ_EACH_TIME], (shape, driver)
                    assert (gpu.recovery_action is None) == (driver < "565"), driver
                    assert (gpu.nvlink_errors is None) == (shape is L40S), (shape, driver)


CALLS = (
    "field_230",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetBoardPartNumber",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetName",
    "nvmlDeviceGetNvLinkErrorCounter",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPages",
    "nvmlDeviceGetRowRemapperHistogram",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetViolationStatus",
)
OF_THE_GPU = {GPU_IS_LOST: GpuStatus.LOST, RESET_REQUIRED: GpuStatus.RESET_REQUIRED}
RESULTS = sorted(value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_"))
"""Every error that NVML knows."""


def test_one_call_that_fails_takes_no_other_reading_with_it(reader: Reader, gpus: FakeGpus) -> None:
    (whole,) = shaped_node("n1", H100, 1)
    for call in CALLS:
        for result in RESULTS:
            gpus.write([])
            reader.read()
            gpus.write([dataclasses.replace(whole, errors=failing(**{call: result}))])
            (gpu,) = reader.read().gpus
            assert gpu.status is OF_THE_GPU.get(result, GpuStatus.OK), (call, result, gpu)
            if result in OF_THE_GPU:
                continue
            unread = [name for name in READ_EACH_TIME if getattr(gpu, name) is None]
            assert len(unread) <= 1, (call, result)
            assert gpu.uuid == whole.uuid
            assert not gpu.error or f"NVML error {result}" in gpu.error


def test_a_gpu_is_unreadable_without_its_uuid_or_any_fast_reading(reader: Reader, gpus: FakeGpus) -> None:
    fast = dict.fromkeys(
        (
            "field_230",
            "nvmlDeviceGetTemperature",
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetClockInfo",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetUtilizationRates",
        ),
        999,
    )
    gpus.change(0, errors=failing(nvmlDeviceGetUUID=999))
    gpus.change(1, errors=failing(nvmlDeviceGetHandleByIndex_v2=999))
    gpus.change(2, errors=failing(**fast))
    status = [gpu.status for gpu in reader.read().gpus]
    assert status == [GpuStatus.UNREADABLE] * 3 + [GpuStatus.OK] * 5


def test_what_the_library_itself_answers_is_a_problem(reader: Reader, gpus: FakeGpus) -> None:
    for call in ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2"):
        for result in RESULTS:
            gpus.write(h100_node("n1"), errors=failing(**{call: result}))
            assert f"(NVML error {result})" in reader.read().problems[0]
    gpus.write(h100_node("n1"), errors=failing(nvmlSystemGetDriverVersion=999))
    assert {gpu.status for gpu in reader.read().gpus} == {GpuStatus.OK}


@pytest.mark.parametrize(
    ("shape", "fake", "errors"),
    [
        (A100, {"nvlink_crc_errors": 3, "nvlink_replays": 4}, 7),
        (H100, {"nvlink_crc_errors": 3, "nvlink_replays": 4}, 7),
        (H100, {"errors": failing(nvmlDeviceGetNvLinkErrorCounter=3)}, None),
        (B200, {"nvlink_rcv_errors": 9}, 9),
        (B200, {"errors": failing(field_208=3, field_211=3, field_212=3, field_215=3, field_219=3)}, None),
        (B200, {"errors": failing(nvmlDeviceGetArchitecture=13)}, None),
    ],
)
def test_nvlink_errors_are_read_where_they_can_be_trusted(
    reader: Reader, gpus: FakeGpus, shape: Shape, fake: dict[str, Any], errors: int | None
) -> None:
    gpus.write(shaped_node("n1", shape, 1, **fake))
    (gpu,) = reader.read().gpus
    assert (gpu.status, gpu.nvlink_errors) == (GpuStatus.OK, errors)


@pytest.mark.parametrize(
    ("fake", "field", "value"),
    [
        ({"nvlinks_up": 17}, "nvlinks", 17),
        ({"nvlink_crc_errors": 5, "nvlink_replays": 2**33}, "nvlink_errors", 2**33 + 5),
        ({"pcie_replays": 9}, "pcie_replays", 9),
        ({"sram_threshold_exceeded": 1}, "sram_threshold_exceeded", True),
        ({"thermal_violation_nanoseconds": 2_500_000_000}, "thermal_violation_seconds", 2.5),
        ({"power_violation_nanoseconds": 1_500_000_000}, "power_violation_seconds", 1.5),
        ({"fabric_state": 2}, "fabric_state", 2),
        ({"fabric_status": 999}, "fabric_status", 999),
        ({"remapped_uncorrectable": 4}, "remapped_rows_uncorrectable", 4),
        ({"banks_low": 3}, "memory_banks_low", 3),
        ({"banks_spent": 2}, "memory_banks_spent", 2),
        ({"ecc_corrected": 12}, "ecc_corrected", 12),
    ],
)
def test_every_fault_that_can_be_written_is_read(
    reader: Reader, gpus: FakeGpus, fake: dict[str, int], field: str, value: object
) -> None:
    gpus.change(4, **fake)
    read = reader.read().gpus
    assert getattr(read[4], field) == value
    assert getattr(read[3], field) != value


def test_a_gpu_that_hangs_never_answers_and_others_do(library: Path, gpus: FakeGpus) -> None:
    gpus.hang(1)
    answered = run(
        "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)))",
        library,
        gpus.path,
    )
    assert answered.startswith("GPU-")
    program = "import pynvml; pynvml.nvmlInit(); pynvml.nvmlDeviceGetHandleByIndex(1)"
    with subprocess.Popen([sys.executable, "-c", program], env=environment(library, gpus.path)) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        process.kill()


WAITS = """
import pynvml, sys
pynvml.nvmlInit()
events = pynvml.nvmlEventSetCreate()
for index in range(2):
    pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(index), 0x8, events)
print("waiting", flush=True)
for _ in range(2):
    data = pynvml.nvmlEventSetWait(events, 10_000)
    print(pynvml.nvmlDeviceGetIndex(data.device), data.eventType, data.eventData, hex(data.gpuInstanceId), flush=True)
try:
    pynvml.nvmlEventSetWait(events, 100)
except pynvml.NVMLError_Timeout:
    print("timeout", flush=True)
"""


def test_an_event_is_delivered_once_to_every_set_that_waits_for_its_kind(library: Path, gpus: FakeGpus) -> None:
    gpus.raise_event(0, EVENT_XID, 13)  # before any set waits
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], env=environment(library, gpus.path), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        gpus.raise_event(1, EVENT_RECOVERY_ACTION, 2)  # of a kind that was not asked for
        gpus.raise_event(3, EVENT_XID, 31)  # of a GPU that was not asked for
        gpus.raise_event(1, EVENT_XID, 79)
        gpus.raise_event(0, EVENT_XID, 48)
        assert process.stdout.read().splitlines() == ["1 8 79 0xffffffff", "0 8 48 0xffffffff", "timeout"]


def test_an_old_driver_refuses_events_that_it_does_not_know(library: Path, gpus: FakeGpus) -> None:
    gpus.write(shaped_node("n1", A100, **OLD_DRIVER))
    program = """
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
print(hex(pynvml.nvmlDeviceGetSupportedEventTypes(handle)))
try: pynvml.nvmlDeviceRegisterEvents(handle, 0x8000, pynvml.nvmlEventSetCreate())
except pynvml.NVMLError as error: print(error.value)
"""
    assert run(program, library, gpus.path).split() == ["0xe08", "3"]
