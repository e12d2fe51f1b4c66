"""Reads all GPUs of this node through NVML into the types of the wire.

Each reading succeeds or fails for itself: a GPU is unreadable only when its handle, its name or every fast reading
fails. What a GPU or its driver does not support is None and is asked again rarely; what failed is None and is named in
`error`. NVML is initialised once, and again after an error shows that the driver is gone. What changes within seconds
is read each time, the rest at longer intervals: a sample has the last value of each reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from understudy_agent.sample.nvlink import links_up, nvlink_errors
from understudy_agent.sample.nvml_sample import NvmlSample
from understudy_wire.hardware import Gpu, GpuStatus
from understudy_wire.messages import GPUS_PER_NODE_MAX
from understudy_wire.pci import normal_bus_id
from understudy_wire.values import (
    LABEL_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    PART_NUMBER_CHARACTERS_MAX,
    READING_MAX,
    printable,
)

FAST_SECONDS = 0.0
"""Read each time."""

STEADY_SECONDS = 10.0
"""Readings that explain why a GPU is slow at the moment."""

SLOW_SECONDS = 60.0
"""Identity of a GPU, errors of its memory, links: counters and states that need no action within seconds."""

RARE_SECONDS = 300.0
"""Readings for which the driver has to ask the GPU's own processor, which takes long; and readings that a GPU or its
driver does not support."""

Handle = Any  # pynvml's opaque pointer
Fields = dict[str, Any]

UNSUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_INVALID_ARGUMENT,  # drivers before R565 answer so for field 230
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
"""Errors of a single reading that say nothing about the GPU's health."""

_STATUS = {
    pynvml.NVML_ERROR_GPU_IS_LOST: GpuStatus.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: GpuStatus.RESET_REQUIRED,
}
_NOT_AVAILABLE = (2**32 - 1, 2**64 - 1, (2**32 - 1) / 1000)
"""NVML_VALUE_NOT_AVAILABLE is -1, in an unsigned number of either size; and the same in watts."""

_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older bindings have no name for


@dataclass(frozen=True, slots=True)
class Reading:
    name: str
    """Its name in error texts."""
    seconds: float
    """Interval."""
    read: Callable[[Handle], Fields]


class GpuReader:
    """The readings of one GPU: the latest of each, which are due, and why one failed."""

    def __init__(self, readings: tuple[Reading, ...]) -> None:
        self._readings = readings
        self._values: dict[str, Fields] = {}
        self._due_at: dict[str, float] = {}
        self._unsupported: set[str] = set()
        self._errors: dict[str, str] = {}
        self._fresh: Fields = {}
        """Fast readings of this sample."""

    def read(self, index: int, now: float, everything: bool) -> Gpu:
        """Takes the readings that are due, or every supported one. Raises NVMLError when the GPU is lost, must be reset
        or cannot be read at all.
        """
        self._fresh = {}
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        answered, failures = False, []
        for reading in self._readings:
            due = now >= self._due_at.get(reading.name, now)
            if not due and (not everything or reading.name in self._unsupported):
                continue
            is_fast = reading.seconds == FAST_SECONDS
            try:
                self._take(reading, handle, now)
                answered = answered or is_fast
            except pynvml.NVMLError as error:
                if error.value in _STATUS or (reading.name == "uuid" and not self._values.get("uuid")):
                    raise
                failures += [error] if is_fast else []
        if failures and not answered:
            raise failures[0]
        fields = {key: value for fields in self._values.values() for key, value in fields.items()}
        return Gpu(index=index, status=GpuStatus.OK, error=next(iter(self._errors.values()), ""), **fields)

    def last_known(self) -> Fields:
        """Identity of a GPU that cannot be read, and what was read before the reading that failed."""
        known = {key: value for fields in self._values.values() for key, value in fields.items()}
        return {key: value for key, value in known.items() if key in _IDENTITY_KEYS} | self._fresh

    def _take(self, reading: Reading, handle: Handle, now: float) -> None:
        """Raises an error of NVML other than that the reading is not supported."""
        self._unsupported.discard(reading.name)
        self._errors.pop(reading.name, None)
        self._due_at[reading.name] = now + reading.seconds
        try:
            fields = reading.read(handle)
        except pynvml.NVMLError as error:
            self._forget(reading)
            if error.value not in UNSUPPORTED or reading.name == "uuid":  # every GPU has one
                self._errors[reading.name] = f"not all of it can be read: {reading.name}: {_error_text(error)}"
                raise
            self._unsupported.add(reading.name)
            self._due_at[reading.name] = now + RARE_SECONDS
        except ValueError as error:  # such as a text that is no UTF-8
            self._forget(reading)
            self._errors[reading.name] = f"not all of it can be read: {reading.name}: {error}"
        else:
            known = {key: value for key, value in fields.items() if not _is_unknown(value)}
            self._values[reading.name] = known
            if reading.seconds == FAST_SECONDS:
                self._fresh |= known

    def _forget(self, reading: Reading) -> None:
        """An old value is no value of now, but a GPU keeps its identity."""
        if not self._values.get(reading.name, {}).keys() & _IDENTITY_KEYS:
            self._values.pop(reading.name, None)


class Nvml:
    """One thread at a time may call read()."""

    def __init__(
        self, on_open: Callable[[list[Handle]], None] = lambda _: None, on_close: Callable[[], None] = lambda: None
    ) -> None:
        """`on_open` gets the handles of all GPUs after NVML was initialised; `on_close` is called before shutdown."""
        self._on_open = on_open
        self._on_close = on_close
        self._initialised = False
        self._driver_version = ""
        self._count_before = 0
        self._readers: dict[int, GpuReader] = {}
        """Index → reader. A GPU that failed has none: nothing old may stay of one that was reset or exchanged, for
        which the driver first returns an error or another uuid.
        """

    def read(self, everything: bool = False) -> NvmlSample:
        """Reads every GPU. May take as long as the driver takes; raises no error of NVML."""
        try:
            count = self._count()
        except pynvml.NVMLError as error:
            self._readers.clear()
            return NvmlSample(self._driver_version, error=f"NVML cannot be used: {_error_text(error)}")
        problems = []
        if count > GPUS_PER_NODE_MAX:
            problems.append(f"NVML lists {count} GPUs; only the first {GPUS_PER_NODE_MAX} are reported")
        if count != self._count_before:
            self._readers.clear()
        self._count_before = count
        gpus = [self._gpu(index, everything) for index in range(min(count, GPUS_PER_NODE_MAX))]
        return NvmlSample(self._driver_version, tuple(gpus), tuple(problems))

    def _count(self) -> int:
        if not self._initialised:
            pynvml.nvmlInit()
            self._initialised = True
            self._driver_version = _driver_version()
            self._on_open(_handles())
        try:
            return int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError:
            # The driver was unloaded or loaded again: all handles are invalid, the next round initialises NVML again.
            self._on_close()
            self._initialised = False
            pynvml.nvmlShutdown()
            raise

    def _gpu(self, index: int, everything: bool = False) -> Gpu:
        reader = self._readers.setdefault(index, GpuReader(READINGS))
        try:
            return reader.read(index, time.monotonic(), everything)
        except pynvml.NVMLError as error:
            del self._readers[index]
            status = _STATUS.get(error.value, GpuStatus.UNREADABLE)
            return Gpu(index=index, status=status, error=_error_text(error), **reader.last_known())


def _is_unknown(value: Any) -> bool:
    """True: not available, or more than the control plane takes, which would refuse the whole report."""
    return value in _NOT_AVAILABLE or (isinstance(value, int) and abs(value) > READING_MAX)


def _driver_version() -> str:
    try:
        return _text(pynvml.nvmlSystemGetDriverVersion())
    except (pynvml.NVMLError, ValueError):  # the GPUs can be read all the same
        return ""


def _handles() -> list[Handle]:
    found: list[Handle] = []
    try:
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:  # the sample meets the same error, reports it, and initialises NVML again
        return found
    for index in range(min(count, GPUS_PER_NODE_MAX)):
        try:
            found.append(pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError:  # the sample reports that this GPU fails
            continue
    return found


def _error_text(error: Any) -> str:
    return f"{error} (NVML error {error.value})"


def _text(value: Any, characters_max: int = LABEL_CHARACTERS_MAX) -> str:
    return printable(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value), characters_max)


def _memory(handle: Handle) -> Fields:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": int(memory.used), "memory_total_bytes": int(memory.total)}


def _remapped_rows(handle: Handle) -> Fields:
    _, uncorrectable, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return {
        "remapped_rows_uncorrectable": int(uncorrectable),
        "remapped_rows_pending": bool(pending),
        "remapped_rows_failed": bool(failed),
    }


def _memory_banks(handle: Handle) -> Fields:
    banks = pynvml.nvmlDeviceGetRowRemapperHistogram(handle)
    return {"memory_banks_low": int(banks.low), "memory_banks_spent": int(banks.none)}


def _mig_mode(handle: Handle) -> bool:
    """GPUs and drivers that do not know of it have no instances."""
    try:
        mode, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError as error:
        if error.value not in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            raise
        return False
    return bool(mode == pynvml.NVML_DEVICE_MIG_ENABLE)


def _retired_pages(handle: Handle) -> Fields:
    """GPUs before Ampere have them."""
    causes = (
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    return {
        "retired_pages": sum(len(pynvml.nvmlDeviceGetRetiredPages(handle, cause)) for cause in causes),
        "retired_pages_pending": bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)),
    }


def _recovery_action(handle: Handle) -> Fields:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    return {"recovery_action": int(value.value.uiVal)}


def _ecc(handle: Handle) -> Fields:
    def count(kind: int) -> int:
        return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC))

    return {
        "ecc_uncorrected": count(pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "ecc_corrected": count(pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
    }


def _sram(handle: Handle) -> Fields:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, pynvml.byref(status))
    return {"sram_threshold_exceeded": bool(status.bThresholdExceeded)}


def _violation(key: str, policy: int) -> Callable[[Handle], Fields]:
    def read(handle: Handle) -> Fields:
        return {key: int(pynvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime) / 1e9}

    return read


def _fabric(handle: Handle) -> Fields:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(info))
    return {"fabric_state": int(info.state), "fabric_status": int(info.status), "fabric_health": int(info.healthMask)}


_IDENTITY_KEYS = frozenset({"uuid", "bus_id", "serial", "name", "board_part_number", "mig_mode"})


def _clock_event_reasons(handle: Handle) -> Fields:
    """Drivers before R535 have an older name for it."""
    try:
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {"clock_event_reasons": int(reasons)}


def _one(name: str, seconds: float, read: Callable[[Handle], Any]) -> Reading:
    """A reading of one field of `Gpu`."""
    return Reading(name, seconds, lambda handle: {name: read(handle)})


READINGS: tuple[Reading, ...] = (
    # The driver's own verdict comes first: it is needed when a later reading fails.
    Reading("recovery_action", FAST_SECONDS, _recovery_action),
    _one("temperature_celsius", FAST_SECONDS, lambda h: int(pynvml.nvmlDeviceGetTemperature(h, 0))),
    _one("power_watts", FAST_SECONDS, lambda h: pynvml.nvmlDeviceGetPowerUsage(h) / 1000),
    _one("sm_clock_mhz", FAST_SECONDS, lambda h: int(pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM))),
    Reading("clock_event_reasons", FAST_SECONDS, _clock_event_reasons),
    _one("utilization_percent", FAST_SECONDS, lambda h: int(pynvml.nvmlDeviceGetUtilizationRates(h).gpu)),
    _one("uuid", SLOW_SECONDS, lambda h: _text(pynvml.nvmlDeviceGetUUID(h))),
    _one("bus_id", SLOW_SECONDS, lambda h: normal_bus_id(_text(pynvml.nvmlDeviceGetPciInfo(h).busId))),
    _one("serial", SLOW_SECONDS, lambda h: _text(pynvml.nvmlDeviceGetSerial(h))),
    _one("name", SLOW_SECONDS, lambda h: _text(pynvml.nvmlDeviceGetName(h), NAME_CHARACTERS_MAX)),
    _one(
        "board_part_number",
        SLOW_SECONDS,
        lambda h: _text(pynvml.nvmlDeviceGetBoardPartNumber(h), PART_NUMBER_CHARACTERS_MAX).strip(),
    ),
    _one("mig_mode", SLOW_SECONDS, _mig_mode),
    _one("sm_clock_max_mhz", SLOW_SECONDS, lambda h: int(pynvml.nvmlDeviceGetMaxClockInfo(h, pynvml.NVML_CLOCK_SM))),
    _one("power_limit_watts", SLOW_SECONDS, lambda h: pynvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000),
    Reading("memory", SLOW_SECONDS, _memory),
    Reading("ecc", SLOW_SECONDS, _ecc),
    Reading("remapped_rows", SLOW_SECONDS, _remapped_rows),
    _one("pcie_generation_max", SLOW_SECONDS, lambda h: int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(h))),
    _one("pcie_width", SLOW_SECONDS, lambda h: int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(h))),
    _one("pcie_width_max", SLOW_SECONDS, lambda h: int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(h))),
    _one("pcie_replays", SLOW_SECONDS, lambda h: int(pynvml.nvmlDeviceGetPcieReplayCounter(h))),
    _one("nvlinks", SLOW_SECONDS, lambda h: len(links_up(h))),
    _one("nvlink_errors", SLOW_SECONDS, nvlink_errors),
    Reading("fabric", SLOW_SECONDS, _fabric),
    Reading("power_violation", STEADY_SECONDS, _violation("power_violation_seconds", pynvml.NVML_PERF_POLICY_POWER)),
    Reading(
        "thermal_violation", STEADY_SECONDS, _violation("thermal_violation_seconds", pynvml.NVML_PERF_POLICY_THERMAL)
    ),
    _one("pcie_generation", STEADY_SECONDS, lambda h: int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(h))),
    Reading("sram", RARE_SECONDS, _sram),
    Reading("memory_banks", RARE_SECONDS, _memory_banks),
    Reading("retired_pages", RARE_SECONDS, _retired_pages),
    _one("vbios", RARE_SECONDS, lambda h: _text(pynvml.nvmlDeviceGetVbiosVersion(h))),
)
