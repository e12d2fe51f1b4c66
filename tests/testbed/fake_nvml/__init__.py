"""A fake `libnvidia-ml.so.1` and the pen that writes its GPUs' state.

Belongs here: the C source, how it is built, and the state file that it reads (`nvml.c` documents the format).
Must not: anything that knows of agents, nodes' processes or the control plane.

A program that is started with `LD_LIBRARY_PATH` set to the folder of the library and `FAKE_NVML_STATE` set to
a state file sees the GPUs written there, through the genuine `pynvml`. Write the file and the hardware
changes under it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import REPOSITORY

SOURCE = Path(__file__).parent / "nvml.c"
LIBRARY_NAME = "libnvidia-ml.so.1"
COMPILED = REPOSITORY / "build" / "fake_nvml"

VOLTA, AMPERE, ADA, HOPPER, BLACKWELL = 5, 7, 8, 9, 10
"""nvmlDeviceArchitecture."""

GPU_IS_LOST = 15
RESET_REQUIRED = 16

REASON_HW_SLOWDOWN = 0x8
REASON_SW_THERMAL_SLOWDOWN = 0x20
REASON_HW_THERMAL_SLOWDOWN = 0x40
REASON_HW_POWER_BRAKE_SLOWDOWN = 0x80

EVENT_XID = 0x8
EVENT_MEMORY_STORM = 0x200
EVENT_RECOVERY_ACTION = 0x8000
EVENT_KINDS_OLD = 0x8 | 0x200 | 0x400 | 0x800
EVENT_KINDS = EVENT_KINDS_OLD | 0x1000 | 0x2000 | 0x4000 | 0x8000

DRIVER_VERSION = "570.124.06"
OLD_DRIVER_VERSION = "535.183.06"
"""Version of a branch that does not know the recovery action (field 230) or the newer events."""


class BuildError(Exception):
    """The C source could not be compiled; the message has the output of gcc."""


def build(directory: Path) -> Path:
    """Put the library into `directory`. It is compiled once for a checkout: sites of tests have one each. Returns its
    path.
    """
    directory.mkdir(parents=True, exist_ok=True)
    compiled = COMPILED / hashlib.sha256(SOURCE.read_bytes()).hexdigest() / LIBRARY_NAME
    if not compiled.exists():
        compiled.parent.mkdir(parents=True, exist_ok=True)
        _compile(compiled)
    return Path(shutil.copy(compiled, directory / LIBRARY_NAME))


def _compile(library: Path) -> None:
    # Aside, then renamed: other tests may compile it at the same time.
    descriptor, fresh = tempfile.mkstemp(dir=library.parent, prefix=".nvml-")
    os.close(descriptor)
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
    command += [f"-Wl,-soname,{LIBRARY_NAME}", "-o", fresh, str(SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        Path(fresh).unlink()
        raise BuildError("gcc is not installed: install it to build the fake NVML") from error
    if done.returncode != 0:
        Path(fresh).unlink(missing_ok=True)  # gcc removes what it could not finish
        raise BuildError(f"gcc could not build {SOURCE}:\n{done.stderr}")
    Path(fresh).chmod(0o755)
    Path(fresh).rename(library)


@dataclasses.dataclass(frozen=True)
class FakeGpu:
    """One GPU of the state file; the defaults are a healthy, busy H100 on a new driver. None: the GPU, or its driver,
    does not support it.
    """

    uuid: str
    bus_id: str  # "0000:1b:00.0"
    serial: str
    name: str = "NVIDIA H100 80GB HBM3"
    board_part_number: str | None = "692-2G520-0200-000"
    vbios: str | None = "96.00.74.00.01"
    result: int = 0  # NVML error code that every call about this GPU returns
    temperature_celsius: int | None = 58
    power_milliwatts: int | None = 155_000  # as it waits in a collective: the hang of its gang is one
    sm_clock_mhz: int | None = 1980
    sm_clock_max_mhz: int | None = 1980
    memory_clock_mhz: int | None = 2619
    memory_clock_max_mhz: int | None = 2619
    clock_event_reasons: int | None = 0
    utilization_percent: int | None = 97
    memory_used_bytes: int | None = 64 * 2**30
    memory_total_bytes: int | None = 80 * 2**30
    ecc_uncorrected: int | None = 0
    ecc_corrected: int | None = 0
    remapped_correctable: int | None = 0
    remapped_uncorrectable: int | None = 0
    remapped_pending: int | None = 0
    remapped_failed: int | None = 0
    banks_low: int | None = 0
    banks_spent: int | None = 0
    retired_pages: int | None = None
    retired_pages_pending: int | None = None
    mig_mode: int | None = 0
    recovery_action: int | None = 0
    pcie_generation: int | None = 5
    pcie_generation_max: int | None = 5
    pcie_width: int | None = 16
    pcie_width_max: int | None = 16
    pcie_replays: int | None = 0
    pci_device_id: int = 0x233010DE
    power_limit_milliwatts: int | None = 700_000
    power_violation_nanoseconds: int | None = 0
    thermal_violation_nanoseconds: int | None = 0
    sram_threshold_exceeded: int | None = 0
    nvlinks: int | None = 18
    nvlinks_up: int | None = 18
    nvlink_crc_errors: int | None = 0
    nvlink_replays: int | None = 0
    nvlink_rcv_errors: int | None = 0
    architecture: int = HOPPER
    fabric_state: int | None = 3
    fabric_status: int | None = 0
    fabric_health: int | None = 0
    event_kinds: int | None = EVENT_KINDS
    hang: int = 0  # 1: no call about this GPU ever returns
    errors: str | None = None  # calls that fail, as failing() writes them


def failing(**results: int) -> str:
    """`nvmlDeviceGetPowerUsage=999`, or `field_230=2` for a field: each call's nvmlReturn."""
    return ",".join(f"{name.replace('field_', 'field.')}:{result}" for name, result in results.items())


TEXTS = ("uuid", "bus_id", "serial", "name", "board_part_number", "vbios", "errors")
IDENTITY = ("uuid", "bus_id", "serial", "name", "board_part_number")
EVENTS_KEPT = 100
_DRIVER, _ERRORS = "driver_version=", "errors="


@dataclasses.dataclass(frozen=True)
class Shape:
    """A kind of node: where its GPUs sit, and in what they differ from FakeGpu's defaults."""

    buses: tuple[str, ...]
    gpu: dict[str, Any] = dataclasses.field(default_factory=dict)


H100 = Shape(("1b", "43", "52", "61", "9d", "c3", "d1", "df"))
A100 = Shape(
    ("07", "0f", "47", "4e", "87", "90", "b7", "bd"),
    {
        "name": "NVIDIA A100-SXM4-80GB",
        "board_part_number": "692-2G506-0212-002",
        "pci_device_id": 0x20B210DE,
        "power_milliwatts": 371_000,
        "power_limit_milliwatts": 400_000,
        "sm_clock_mhz": 1410,
        "sm_clock_max_mhz": 1410,
        "memory_clock_mhz": 1593,
        "memory_clock_max_mhz": 1593,
        "pcie_generation": 4,
        "pcie_generation_max": 4,
        "nvlinks": 12,
        "nvlinks_up": 12,
        "architecture": AMPERE,
        "fabric_state": None,  # the fabric is asked for from Hopper on
    },
)
H200 = Shape(
    H100.buses,
    {
        "name": "NVIDIA H200",
        "pci_device_id": 0x233510DE,
        "memory_clock_mhz": 3201,
        "memory_clock_max_mhz": 3201,
        "memory_used_bytes": 120 * 2**30,
        "memory_total_bytes": 140 * 2**30,
    },
)
L40S = Shape(
    ("01", "21", "41", "61", "81", "a1", "c1", "e1"),
    {
        "name": "NVIDIA L40S",
        "pci_device_id": 0x26B910DE,
        "power_milliwatts": 302_000,
        "power_limit_milliwatts": 350_000,
        "sm_clock_mhz": 2520,
        "sm_clock_max_mhz": 2520,
        "memory_clock_mhz": 9001,
        "memory_clock_max_mhz": 9001,
        "memory_used_bytes": 40 * 2**30,
        "memory_total_bytes": 48 * 2**30,
        "pcie_generation": 4,
        "pcie_generation_max": 4,
        "nvlinks": None,
        "nvlinks_up": None,
        "architecture": ADA,
        "mig_mode": None,
        "fabric_state": None,
    },
)
B200 = Shape(
    H100.buses,
    {
        "name": "NVIDIA B200",
        "pci_device_id": 0x290110DE,
        "power_milliwatts": 874_000,
        "power_limit_milliwatts": 1_000_000,
        "sm_clock_mhz": 1965,
        "sm_clock_max_mhz": 1965,
        "memory_clock_mhz": 3996,
        "memory_clock_max_mhz": 3996,
        "memory_used_bytes": 150 * 2**30,
        "memory_total_bytes": 180 * 2**30,
        "architecture": BLACKWELL,
    },
)
GB200 = Shape(
    ("01", "02", "03", "04"),
    B200.gpu
    | {
        "name": "NVIDIA GB200",
        "pci_device_id": 0x294110DE,
        "power_limit_milliwatts": 1_200_000,
        "sm_clock_mhz": 2062,
        "sm_clock_max_mhz": 2062,
    },
)
V100 = Shape(
    H100.buses,
    {
        "name": "Tesla V100-SXM2-32GB",
        "pci_device_id": 0x1DB510DE,
        "power_milliwatts": 251_000,
        "power_limit_milliwatts": 300_000,
        "sm_clock_mhz": 1530,
        "sm_clock_max_mhz": 1530,
        "memory_clock_mhz": 877,
        "memory_clock_max_mhz": 877,
        "memory_used_bytes": 28 * 2**30,
        "memory_total_bytes": 32 * 2**30,
        "pcie_generation": 3,
        "pcie_generation_max": 3,
        "nvlinks": 6,
        "nvlinks_up": 6,
        "architecture": VOLTA,
        "mig_mode": None,
        "fabric_state": None,
        "sram_threshold_exceeded": None,
        "remapped_pending": None,
        "remapped_failed": None,
        "banks_low": None,
        "banks_spent": None,
        "retired_pages": 0,
        "retired_pages_pending": 0,
    },
)
SHAPES = (V100, A100, H100, H200, B200, GB200, L40S)
DRIVERS: dict[str, dict[str, Any]] = {
    "525.147.05": {
        "recovery_action": None,
        "event_kinds": EVENT_KINDS_OLD,
        "errors": failing(
            field_230=2,
            nvmlDeviceGetSramEccErrorStatus=13,
            nvmlDeviceGetCurrentClocksEventReasons=13,
            nvmlDeviceGetGpuFabricInfoV=13,
        ),
    },
    "535.183.06": {
        "recovery_action": None,
        "event_kinds": EVENT_KINDS_OLD,
        "errors": failing(field_230=2, nvmlDeviceGetSramEccErrorStatus=13),
    },
    "550.163.01": {
        "recovery_action": None,
        "event_kinds": EVENT_KINDS_OLD,
        "errors": failing(field_230=2),
    },
    "570.124.06": {},
    "580.95.05": {},
    "590.44.01": {},
}
"""Driver → what its branch does not know, by the functions and fields that NVML's releases added."""

OLD_DRIVER: dict[str, Any] = {
    "recovery_action": None,
    "sram_threshold_exceeded": None,
    "event_kinds": EVENT_KINDS_OLD,
}
WITH_MIG: dict[str, Any] = {
    "remapped_pending": None,
    "remapped_failed": None,
    "banks_low": None,
    "banks_spent": None,
    "utilization_percent": None,
    "mig_mode": 1,
}
"""What a GPU with MIG instances does not report."""


def shaped_node(node: str, shape: Shape, gpu_count: int | None = None, **differences: Any) -> list[FakeGpu]:
    """The GPUs of a healthy node. Identities depend on the node's name, and on nothing else.

    `differences` are fields of FakeGpu, such as **OLD_DRIVER or **WITH_MIG.
    """
    gpu_count = len(shape.buses) if gpu_count is None else gpu_count
    if not 0 <= gpu_count <= len(shape.buses):
        raise ValueError(f"{gpu_count} GPUs asked for; such a node has at most {len(shape.buses)}")
    gpus = []
    for index in range(gpu_count):
        digest = hashlib.sha256(f"{node}/{index}".encode()).digest()
        gpus.append(
            FakeGpu(
                uuid=f"GPU-{uuid.UUID(bytes=digest[:16])}",
                bus_id=f"0000:{shape.buses[index]}:00.0",
                serial=str(1_650_000_000_000 + int.from_bytes(digest[16:20], "big")),
                **(shape.gpu | differences),
            )
        )
    return gpus


def h100_node(node: str, gpu_count: int = 8) -> list[FakeGpu]:
    return shaped_node(node, H100, gpu_count)


class FakeGpus:
    """The state file of one node. Every edit starts from the file, so several programs may make edits in
    turn.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(
        self,
        gpus: Sequence[FakeGpu],
        driver_version: str = "",
        events: Sequence[str] | None = None,
        errors: str | None = None,
    ) -> None:
        """Replace the file at once; a reader sees the old state or the new, never half of one.

        A driver version, events or errors that are not given stay what they are. `errors` is failing() of calls that
        are about no GPU.
        """
        before = self.path.read_text().splitlines() if self.path.exists() else []
        old_version = next((line for line in before if line.startswith(_DRIVER)), f"{_DRIVER}{DRIVER_VERSION}")
        lines = [f"{_DRIVER}{driver_version}" if driver_version else old_version]
        lines += [line for line in before if line.startswith(_ERRORS)] if errors is None else [f"{_ERRORS}{errors}"]
        lines += [_line(index, gpu) for index, gpu in enumerate(gpus)]
        lines += [line for line in before if line.startswith("event=")] if events is None else events
        descriptor, fresh = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}-")
        with os.fdopen(descriptor, "w") as file:
            file.write("\n".join(lines) + "\n")
        Path(fresh).chmod(0o644)
        Path(fresh).rename(self.path)

    def read(self) -> list[FakeGpu]:
        lines = [line for line in self.path.read_text().splitlines() if line.startswith("gpu=")]
        return [_parse(line) for line in lines]

    def change(self, gpu: int, **fields: str | int | None) -> None:
        """Set fields of one GPU, named as in FakeGpu."""
        gpus = self.read()
        if not 0 <= gpu < len(gpus):
            raise IndexError(f"{self.path} has no GPU {gpu}, only 0 to {len(gpus) - 1}")
        known = {field.name: getattr(gpus[gpu], field.name) for field in dataclasses.fields(FakeGpu)}
        gpus[gpu] = FakeGpu(**(known | fields))
        self.write(gpus)

    def raise_event(self, gpu: int, kind: int, data: int) -> None:
        """Let an event happen, as nvmlEventSetWait returns it. `kind` is an nvmlEventType."""
        events = [line for line in self.path.read_text().splitlines() if line.startswith("event=")]
        number = 1 + max((int(line.split("\t")[0].split("=")[1]) for line in events), default=0)
        news = f"event={number}\tgpu={gpu}\tkind={kind}\tdata={data}"
        self.write(self.read(), events=[*events[-EVENTS_KEPT:], news])

    def hang(self, gpu: int) -> None:
        """Lets no call about this GPU come back from the driver from now on."""
        self.change(gpu, hang=1)

    def lose(self, gpu: int) -> None:
        """Loses the GPU as after Xid 79: it has fallen off the bus and every call about it fails."""
        self.change(gpu, result=GPU_IS_LOST)

    def slow_down(self, gpu: int, sm_clock_mhz: int = 990, reasons: int = REASON_HW_SLOWDOWN) -> None:
        """Lower the SM clock; `reasons` is NVML's bit mask of clock event reasons."""
        self.change(gpu, sm_clock_mhz=sm_clock_mhz, clock_event_reasons=reasons)

    def heal(self, gpu: int) -> None:
        """A healthy GPU again, the same one, of the same shape as the others."""
        gpus = self.read()
        same = {name: getattr(gpus[gpu], name) for name in IDENTITY}
        shape = next((one for one in SHAPES if one.gpu.get("name") == gpus[gpu].name), H100)
        gpus[gpu] = FakeGpu(**(shape.gpu | same))
        self.write(gpus)


def _line(index: int, gpu: FakeGpu) -> str:
    values = ((field.name, getattr(gpu, field.name)) for field in dataclasses.fields(FakeGpu))
    return "\t".join([f"gpu={index}", *(f"{name}={value}" for name, value in values if value is not None)])


def _parse(line: str) -> FakeGpu:
    given = dict(field.split("=", 1) for field in line.split("\t")[1:])
    values: dict[str, str | int | None] = {}
    for field in dataclasses.fields(FakeGpu):
        text = given.get(field.name)
        values[field.name] = text if text is None or field.name in TEXTS else int(text, 0)
    return FakeGpu(**values)  # type: ignore[arg-type]
