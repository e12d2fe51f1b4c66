"""What the process that reads NVML sends to the agent, one JSON line each. Values only; needs no driver."""

from __future__ import annotations

import msgspec

from understudy_wire.hardware import Gpu


class NvmlSample(msgspec.Struct, frozen=True, tag="sample"):
    """All GPUs, read once. A GPU whose identity could not be read has no uuid."""

    driver_version: str = ""
    gpus: tuple[Gpu, ...] = ()
    problems: tuple[str, ...] = ()
    error: str = ""  # why NVML could not be read at all; then there are no GPUs


class NvmlEvent(msgspec.Struct, frozen=True, tag="event"):
    """An event of NVML's event set."""

    at: float
    kind: int  # nvmlEventType*, one bit
    data: int  # for an Xid its number
    bus_id: str = ""  # empty: it could not be read


Message = NvmlSample | NvmlEvent
