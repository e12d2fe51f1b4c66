"""Received optical power of a network interface's module: by an ioctl that reads the module's own memory.

The kernel asks for CAP_NET_ADMIN, which an agent has only where the site gives it; else nothing is known. Layouts:
SFF-8472 (SFP), SFF-8436 and SFF-8636 (QSFP to QSFP56). Modules after CMIS (OSFP, QSFP-DD) cannot be read this way. Read
from include/uapi/linux/ethtool.h (Linux 6.12).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

import msgspec

from understudy_agent.sample.ethtool import ask

_MODULE_INFO, _MODULE_MEMORY = 0x42, 0x43
SFP, QSFP, QSFP_PLUS = 2, 3, 4
"""Kinds of memory, by the kernel: SFF-8472, SFF-8636, SFF-8436."""

_MEMORY_BYTES = {SFP: 512, QSFP: 256, QSFP_PLUS: 256}
_MILLIWATTS = 1e-4  # of a count
_QSFP_POWER, _QSFP_LANES, _QSFP_FLAGS = 34, 4, (9, 10)
_QSFP_LOW_ALARMS = 0x44
_SFP_DIAGNOSTICS, _SFP_CALIBRATED_INSIDE = 92, 0x60
_SFP_POWER, _SFP_FLAGS, _SFP_LOW_ALARM = 256 + 104, 256 + 113, 0x40

INTERVAL_SECONDS = 300.0
"""The module answers by a slow bus, through the adapter's firmware."""


class Light(msgspec.Struct, frozen=True):
    """What a module receives."""

    milliwatts: float | None = None  # of its weakest lane; None: not known, as of a copper cable
    low: bool | None = None  # by the limit that the module itself has


UNKNOWN = Light()


def decoded(kind: int, memory: bytes) -> Light:
    """`memory` of a module of this kind, from its beginning."""
    if kind == SFP and len(memory) >= _MEMORY_BYTES[SFP]:
        if memory[_SFP_DIAGNOSTICS] & _SFP_CALIBRATED_INSIDE != _SFP_CALIBRATED_INSIDE:
            return UNKNOWN
        lanes = struct.unpack_from(">H", memory, _SFP_POWER)
        low = bool(memory[_SFP_FLAGS] & _SFP_LOW_ALARM)
    elif kind in (QSFP, QSFP_PLUS) and len(memory) >= _QSFP_POWER + 2 * _QSFP_LANES:
        lanes = struct.unpack_from(f">{_QSFP_LANES}H", memory, _QSFP_POWER)
        low = any(memory[flags] & _QSFP_LOW_ALARMS for flags in _QSFP_FLAGS)
    else:
        return UNKNOWN
    return Light(round(min(lanes) * _MILLIWATTS, 4), low) if any(lanes) else UNKNOWN


def module_memory(interface: str) -> tuple[int, bytes]:
    """Kind and content. Raises OSError: no module, no permission, or the driver cannot read it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        _, kind, size = struct.unpack_from("=III", ask(control, interface, struct.pack("=III32x", _MODULE_INFO, 0, 0)))
        size = min(size, _MEMORY_BYTES.get(kind, 0))
        header = struct.pack("=IIII", _MODULE_MEMORY, 0, 0, size)
        return kind, ask(control, interface, header + bytes(size))[len(header) :]


class Optics:
    """Modules of each interface, read once in five minutes."""

    def __init__(self, read: Callable[[str], tuple[int, bytes]] = module_memory) -> None:
        self._read = read
        self._known: dict[str, tuple[float, Light]] = {}

    def __call__(self, interface: str) -> Light:
        read_at, light = self._known.get(interface, (float("-inf"), UNKNOWN))
        if time.monotonic() - read_at >= INTERVAL_SECONDS:
            try:
                light = decoded(*self._read(interface))
            except OSError:
                light = UNKNOWN
            self._known[interface] = (time.monotonic(), light)
        return light
