"""Reads all GPUs of this node through NVML into the types of the wire.

A GPU that fails is reported as failed; a reading that a GPU does not support is None. NVML is initialised once, and
again after an error shows that the driver is gone. What changes within seconds is read each time, the rest at longer
intervals: a sample has the last value of each reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pynvml

from understudy_agent.pci import normal_bus_id
from understudy_agent.sample.nvml_sample import NvmlSample
from understudy_agent.wire import GPUS_PER_NODE_MAX, Gpu, GpuStatus

SLOW_SECONDS = 60.0
"""Identity of a GPU, errors of its memory, links: counters and states that need no action within seconds."""

STEADY_SECONDS = 10.0
"""Readings that explain why a GPU is slow at the moment."""

RARE_SECONDS = 300.0
"""Readings for which the driver has to ask the GPU's own processor, which takes long."""

Handle = Any  # pynvml's opaque pointer
Fields = dict[str, Any]

_NOT_THERE = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
}
_STATUS = {
    pynvml.NVML_ERROR_GPU_IS_LOST: GpuStatus.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: GpuStatus.RESET_REQUIRED,
}
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older bindings have no name for


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
        self._kept: dict[int, Fields] = {}
        """By index: the latest of the readings that are not taken each time. A GPU that failed has none."""
        self._read_at: dict[tuple[int, float], float] = {}
        """By index and interval: when those were taken."""
        self._errors: dict[tuple[int, float], str] = {}
        """By index and interval: why a reading failed."""

    def read(self, everything: bool = False) -> NvmlSample:
        """Reads every GPU. May take as long as the driver takes; raises no error of NVML."""
        try:
            count = self._count()
        except pynvml.NVMLError as error:
            self._kept.clear()
            return NvmlSample(self._driver_version, error=f"NVML cannot be used: {_error_text(error)}")
        problems = []
        if count > GPUS_PER_NODE_MAX:
            problems.append(f"NVML lists {count} GPUs; only the first {GPUS_PER_NODE_MAX} are reported")
        if everything or count != self._count_before:
            self._kept.clear()
        self._count_before = count
        gpus = [self._gpu(index) for index in range(min(count, GPUS_PER_NODE_MAX))]
        return NvmlSample(self._driver_version, tuple(gpus), tuple(problems))

    def _count(self) -> int:
        if not self._initialised:
            pynvml.nvmlInit()
            self._initialised = True
            self._driver_version = str(pynvml.nvmlSystemGetDriverVersion())
            self._on_open(_handles())
        try:
            return int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError:
            # The driver was unloaded or loaded again: all handles are invalid, the next round initialises NVML again.
            self._on_close()
            self._initialised = False
            pynvml.nvmlShutdown()
            raise

    def _gpu(self, index: int) -> Gpu:
        fields: Fields = {}
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            self._keep(index, handle)
            for reading in _FAST:
                fields |= _supported(reading, handle)
        except pynvml.NVMLError as error:
            identity = {key: value for key, value in self._kept.pop(index, {}).items() if key in _IDENTITY_KEYS}
            status = _STATUS.get(error.value, GpuStatus.UNREADABLE)
            return Gpu(index=index, status=status, error=_error_text(error), **(identity | fields))
        return Gpu(index=index, status=GpuStatus.OK, **(self._kept[index] | fields))

    def _keep(self, index: int, handle: Handle) -> None:
        """Takes the readings that are due. Nothing old may stay of a GPU that was reset or exchanged: the driver first
        returns an error or another uuid.
        """
        now = time.monotonic()
        kept = self._kept.get(index)
        if kept is None:
            kept = {}
            for _, seconds in _INTERVALS:
                self._read_at.pop((index, seconds), None)
                self._errors.pop((index, seconds), None)
        for readings, seconds in _INTERVALS:
            if now - self._read_at.get((index, seconds), -seconds) < seconds:
                continue
            self._errors.pop((index, seconds), None)
            for reading in readings:
                try:
                    kept |= _supported(reading, handle)
                except pynvml.NVMLError as error:
                    if error.value in _STATUS or not kept.get("uuid"):
                        raise
                    # The other readings remain valid.
                    self._errors[index, seconds] = f"not all of it can be read: {_error_text(error)}"
            self._read_at[index, seconds] = now
        kept["error"] = next(
            (self._errors[index, interval] for _, interval in _INTERVALS if (index, interval) in self._errors), ""
        )
        self._kept[index] = kept


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


def _supported(reading: Callable[[Handle], Fields], handle: Handle) -> Fields:
    try:
        return reading(handle)
    except pynvml.NVMLError as error:
        if error.value in _NOT_THERE:
            return {}
        raise


def _error_text(error: Any) -> str:
    return f"{error} (NVML error {error.value})"


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


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


def _nvlinks(handle: Handle) -> Fields:
    """When the first link is not supported, the GPU has none."""
    links = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            links += int(pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED)
        except pynvml.NVMLError as error:
            if link and error.value in (*_NOT_THERE, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                break  # a generation with fewer links
            raise
    return {"nvlinks": links}


def _nvlink_errors(handle: Handle) -> Fields:
    values = pynvml.nvmlDeviceGetFieldValues(handle, list(_NVLINK_ERRORS))
    counts = [_number(value) for value in values if value.nvmlReturn == pynvml.NVML_SUCCESS]
    return {"nvlink_errors": sum(counts)} if counts else {}


def _number(value: Any) -> int:
    """The number in a field value, of whichever type the driver returns it."""
    kinds = {
        pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    }
    return int(getattr(value.value, kinds.get(value.valueType, "ullVal")))


def _violation(key: str, policy: int) -> Callable[[Handle], Fields]:
    def read(handle: Handle) -> Fields:
        return {key: int(pynvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime) / 1e9}

    return read


def _fabric(handle: Handle) -> Fields:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(info))
    return {"fabric_state": int(info.state), "fabric_status": int(info.status), "fabric_health": int(info.healthMask)}


_IDENTITY_KEYS = frozenset({"uuid", "bus_id", "serial", "name", "board_part_number"})
_NVLINK_ERRORS = (
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
)

# The recovery action comes first: it is the driver's own verdict, and needed when a later reading fails.
_FAST: tuple[Callable[[Handle], Fields], ...] = (
    _recovery_action,
    lambda handle: {"temperature_celsius": int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))},
    lambda handle: {"power_watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000},
    lambda handle: {"sm_clock_mhz": int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))},
    lambda handle: {"clock_event_reasons": int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))},
    lambda handle: {"utilization_percent": int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)},
)

_SLOW: tuple[Callable[[Handle], Fields], ...] = (
    lambda handle: {"uuid": _text(pynvml.nvmlDeviceGetUUID(handle))},
    lambda handle: {"bus_id": normal_bus_id(_text(pynvml.nvmlDeviceGetPciInfo(handle).busId))},
    lambda handle: {"serial": _text(pynvml.nvmlDeviceGetSerial(handle))},
    lambda handle: {"name": _text(pynvml.nvmlDeviceGetName(handle))},
    lambda handle: {"board_part_number": _text(pynvml.nvmlDeviceGetBoardPartNumber(handle)).strip()},
    lambda handle: {"sm_clock_max_mhz": int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))},
    lambda handle: {"power_limit_watts": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000},
    _memory,
    _ecc,
    _remapped_rows,
    lambda handle: {"pcie_generation_max": int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))},
    lambda handle: {"pcie_width": int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle))},
    lambda handle: {"pcie_width_max": int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))},
    lambda handle: {"pcie_replays": int(pynvml.nvmlDeviceGetPcieReplayCounter(handle))},
    _nvlinks,
    _nvlink_errors,
    _fabric,
)

_STEADY: tuple[Callable[[Handle], Fields], ...] = (
    _violation("power_violation_seconds", pynvml.NVML_PERF_POLICY_POWER),
    _violation("thermal_violation_seconds", pynvml.NVML_PERF_POLICY_THERMAL),
    lambda handle: {"pcie_generation": int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))},
)

_RARE: tuple[Callable[[Handle], Fields], ...] = (_sram,)

_INTERVALS = ((_SLOW, SLOW_SECONDS), (_STEADY, STEADY_SECONDS), (_RARE, RARE_SECONDS))
