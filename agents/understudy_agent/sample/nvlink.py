"""A GPU's NVLinks: which are up, and how many errors they had.

Up to Hopper each link has counters of its data link layer (nvmlDeviceGetNvLinkErrorCounter). The totals in fields 38,
45, 52 and 59 answer "success, zero" on Hopper, whatever the links' own counters say. From NVLink 5 (Blackwell) on the
counters of a port are fields with the port as their scope (nvml.h of driver R580; the driver's list of counters is in
kernel_nvlink_gb100.c of the open kernel modules). Counters that cannot be read for every link that is up are unknown.
"""

from __future__ import annotations

from typing import Any

import pynvml

Handle = Any  # pynvml's opaque pointer

_END_OF_LINKS = (
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NOT_FOUND,
)
_COUNTERS = (
    pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
)
_PORT_FIELDS = (
    pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
)
"""Fields among 206 to 222 that count errors once: 206, 207, 209 and 210 are parts of 208, 213 and 214 of 215. Symbol
errors (221) are corrected all the time, and 216 to 218, 220 and 222 are rates.
"""


def links_up(handle: Handle) -> list[int]:
    """Raises NVMLError: a GPU without NVLink does not support the question."""
    up = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED:
                up.append(link)
        except pynvml.NVMLError as error:
            if link and error.value in _END_OF_LINKS:
                break  # a generation with fewer links
            raise
    return up


def nvlink_errors(handle: Handle) -> int | None:
    """Errors of all links that are up; None: not all of them can be trusted."""
    up = links_up(handle)
    if not up:
        return None
    ports = pynvml.nvmlDeviceGetArchitecture(handle) >= pynvml.NVML_DEVICE_ARCH_BLACKWELL
    counts = [_of_port(handle, link) if ports else _of_link(handle, link) for link in up]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(up) else None


def _of_link(handle: Handle, link: int) -> int | None:
    counts = []
    for counter in _COUNTERS:
        try:
            counts.append(int(pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter)))
        except pynvml.NVMLError as error:
            if error.value not in _END_OF_LINKS:  # else a counter that this generation does not have
                raise
    return sum(counts) if counts else None


def _of_port(handle: Handle, link: int) -> int | None:
    values = pynvml.nvmlDeviceGetFieldValues(handle, [(field, link) for field in _PORT_FIELDS])
    counts = [_number(value) for value in values if value.nvmlReturn == pynvml.NVML_SUCCESS]
    return sum(counts) if counts else None


def _number(value: Any) -> int:
    """The number in a field value, of whichever type the driver returns it."""
    kinds = {
        pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    }
    return int(getattr(value.value, kinds.get(value.valueType, "ullVal")))
