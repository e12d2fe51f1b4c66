"""Reads all GPUs of this node through NVML into the words of the wire.

A GPU that fails is said to fail and stays in the list, under the identity it had when it last answered; a
reading that a GPU does not support is None. NVML is initialised once and again after it said that it is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import pynvml

from agents.sample.pci import normal_bus_id
from agents.wire import GPUS_PER_NODE_MAX, TEXT_CHARACTERS_MAX, Gpu, GpuStatus

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


class Picture(msgspec.Struct, frozen=True):
    """What one round of asking NVML gave."""

    driver_version: str = ""
    gpus: tuple[Gpu, ...] = ()
    problems: tuple[str, ...] = ()


class GpuReader(Protocol):
    def read(self) -> Picture:
        """Ask every GPU. May take as long as the driver takes; raises nothing."""
        ...


class NoGpus:
    """For nodes where the configuration switches NVML off."""

    def read(self) -> Picture:
        return Picture()


class Nvml:
    """One thread at a time may call read()."""

    def __init__(self) -> None:
        self._initialised = False
        self._driver_version = ""
        self._known: dict[int, Gpu] = {}
        """By index: the identity each GPU had when it last answered."""
        self._displaced: dict[str, Gpu] = {}
        """By uuid: GPUs seen before whose index another GPU has taken since."""

    def read(self) -> Picture:
        try:
            count = self._count()
        except pynvml.NVMLError as error:
            problem = f"NVML cannot be used: {_words(error)}"
            return Picture(
                self._driver_version,
                tuple(self._silent(gpu, problem) for gpu in self._known.values()),
                (problem,),
            )
        problems = []
        if count > GPUS_PER_NODE_MAX:
            problems.append(f"NVML lists {count} GPUs; only the first {GPUS_PER_NODE_MAX} are reported")
        gpus = [self._gpu(index) for index in range(min(count, GPUS_PER_NODE_MAX))]
        gpus += self._vanished(gpus)
        return Picture(self._driver_version, tuple(gpus), tuple(problems))

    def _count(self) -> int:
        if not self._initialised:
            pynvml.nvmlInit()
            self._initialised = True
            self._driver_version = str(pynvml.nvmlSystemGetDriverVersion())
        try:
            return int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError:
            # The driver went away or came back anew: handles are worth nothing now, the next round starts
            # afresh.
            self._initialised = False
            pynvml.nvmlShutdown()
            raise

    def _gpu(self, index: int) -> Gpu:
        fields: Fields = {}
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            identity = _identity(index, handle)
            self._remember(identity)
            for reading in _READINGS:
                fields |= _supported(reading, handle)
        except pynvml.NVMLError as error:
            known = self._known.get(index, Gpu(index=index, status=GpuStatus.OK))
            status = _STATUS.get(error.value, GpuStatus.UNREADABLE)
            return msgspec.structs.replace(known, status=status, error=_words(error), **fields)
        return msgspec.structs.replace(identity, **fields)

    def _remember(self, gpu: Gpu) -> None:
        before = self._known.get(gpu.index)
        if before is not None and before.uuid and before.uuid != gpu.uuid:
            self._displaced[before.uuid] = before
        self._known[gpu.index] = gpu
        self._displaced.pop(gpu.uuid, None)

    def _vanished(self, listed: list[Gpu]) -> list[Gpu]:
        """GPUs seen before that NVML no longer lists; at their old index where no other GPU has it."""
        uuids = {gpu.uuid for gpu in listed}
        taken = {gpu.index for gpu in listed}
        vanished = []
        for gpu in [*self._known.values(), *self._displaced.values()]:
            if gpu.uuid in uuids or (self._known.get(gpu.index) is gpu and gpu.index in taken):
                continue
            index = next(i for i in (gpu.index, *range(len(taken) + 1)) if i not in taken)
            taken.add(index)
            error = f"NVML lists {len(listed)} GPUs and this one is not among them"
            vanished.append(self._silent(msgspec.structs.replace(gpu, index=index), error))
        return vanished

    @staticmethod
    def _silent(gpu: Gpu, error: str) -> Gpu:
        return msgspec.structs.replace(gpu, status=GpuStatus.UNREADABLE, error=error[:TEXT_CHARACTERS_MAX])


def _identity(index: int, handle: Handle) -> Gpu:
    fields: Fields = {}
    for reading in _IDENTITY:
        fields |= _supported(reading, handle)
    return Gpu(index=index, status=GpuStatus.OK, **fields)


def _supported(reading: Callable[[Handle], Fields], handle: Handle) -> Fields:
    try:
        return reading(handle)
    except pynvml.NVMLError as error:
        if error.value in _NOT_THERE:
            return {}
        raise


def _words(error: Any) -> str:
    return f"{error} (NVML error {error.value})"


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _memory(handle: Handle) -> Fields:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": int(memory.used), "memory_total_bytes": int(memory.total)}


def _remapped_rows(handle: Handle) -> Fields:
    _, _, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return {"remapped_rows_pending": bool(pending), "remapped_rows_failed": bool(failed)}


def _recovery_action(handle: Handle) -> Fields:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    return {"recovery_action": int(value.value.uiVal)}


def _ecc(handle: Handle) -> Fields:
    kind, counter = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return {"ecc_uncorrected": int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))}


_IDENTITY: tuple[Callable[[Handle], Fields], ...] = (
    lambda handle: {"uuid": _text(pynvml.nvmlDeviceGetUUID(handle))},
    lambda handle: {"bus_id": normal_bus_id(_text(pynvml.nvmlDeviceGetPciInfo(handle).busId))},
    lambda handle: {"serial": _text(pynvml.nvmlDeviceGetSerial(handle))},
    lambda handle: {"name": _text(pynvml.nvmlDeviceGetName(handle))},
)

# The recovery action comes first: it is the driver's own verdict, worth having when a later reading fails.
_READINGS: tuple[Callable[[Handle], Fields], ...] = (
    _recovery_action,
    lambda handle: {"temperature_celsius": int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))},
    lambda handle: {"power_watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000},
    lambda handle: {"sm_clock_mhz": int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))},
    lambda handle: {"sm_clock_max_mhz": int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))},
    lambda handle: {"clock_event_reasons": int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))},
    lambda handle: {"utilization_percent": int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)},
    _memory,
    _ecc,
    _remapped_rows,
    lambda handle: {"pcie_generation": int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))},
    lambda handle: {"pcie_generation_max": int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))},
    lambda handle: {"pcie_width": int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle))},
    lambda handle: {"pcie_width_max": int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))},
)
