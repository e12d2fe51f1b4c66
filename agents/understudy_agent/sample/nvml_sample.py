"""What the process that asks NVML tells the agent, one JSON line each. Values only; needs no driver."""

from __future__ import annotations

import msgspec

from understudy_agent.wire import Gpu


class Picture(msgspec.Struct, frozen=True, tag="picture"):
    """What one round of asking NVML gave. A GPU that could not even be named has no uuid."""

    driver_version: str = ""
    gpus: tuple[Gpu, ...] = ()
    problems: tuple[str, ...] = ()
    error: str = ""  # why NVML could not be asked at all; then there are no GPUs


class NvmlEvent(msgspec.Struct, frozen=True, tag="event"):
    """An event of NVML's own event set."""

    at: float
    kind: int  # nvmlEventType*, one bit
    data: int  # of an Xid its number
    bus_id: str = ""  # empty: the device could not be asked


Message = Picture | NvmlEvent
