"""Statistics of a network interface, as `ethtool -S` shows them: by an ioctl, which needs no privileges.

Read from include/uapi/linux/ethtool.h (Linux 6.12) and the counters of mlx5 in Documentation/networking/device_drivers.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
import time
from collections.abc import Callable

_SIOCETHTOOL = 0x8946
_GET_STRINGS, _GET_STATISTICS, _GET_SET_SIZE = 0x1B, 0x1D, 0x37
_GET_MODULE_INFO, _GET_MODULE_MEMORY = 0x42, 0x43
_MODULE_BYTES_MAX = 1024
_STATISTICS_SET = 1
_NAME_BYTES = 32
_STATISTICS_MAX = 16_384

PAUSE_STORM = "tx_pause_storm_error_events"
"""mlx5: how often the adapter had stopped its peers until its own watchdog ended that."""

INTERVAL_SECONDS = 60.0
"""The driver asks the firmware for these, which takes milliseconds."""


def statistics(interface: str) -> dict[str, int]:
    """Raises OSError: there is no such interface, or its driver has no statistics."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        sized = ask(control, interface, struct.pack("=IIQI", _GET_SET_SIZE, 0, 1 << _STATISTICS_SET, 0))
        _, _, known, count = struct.unpack("=IIQI", sized)
        count = min(count, _STATISTICS_MAX) if known else 0
        header = struct.pack("=III", _GET_STRINGS, _STATISTICS_SET, count)
        names = ask(control, interface, header + bytes(count * _NAME_BYTES))[len(header) :]
        header = struct.pack("=II", _GET_STATISTICS, count)
        values = struct.unpack(f"={count}Q", ask(control, interface, header + bytes(count * 8))[len(header) :])
    texts = (names[at : at + _NAME_BYTES].split(b"\0")[0] for at in range(0, len(names), _NAME_BYTES))
    return dict(zip((text.decode(errors="replace") for text in texts), values, strict=True))


def ask(control: socket.socket, interface: str, request: bytes) -> bytes:
    """The request with what the kernel wrote into it."""
    buffer = ctypes.create_string_buffer(request, len(request))
    fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sQ16x", interface.encode()[:15], ctypes.addressof(buffer)))
    return buffer.raw


def module_memory(interface: str) -> bytes:
    """The memory of the cable or optical module in this interface's port. Raises PermissionError: it needs
    CAP_NET_ADMIN; and OSError: there is no module, or its driver does not show it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = ask(control, interface, struct.pack("=III32x", _GET_MODULE_INFO, 0, 0))
        size = min(struct.unpack_from("=III", asked)[2], _MODULE_BYTES_MAX)
        header = struct.pack("=IIII", _GET_MODULE_MEMORY, 0, 0, size)
        return ask(control, interface, header + bytes(size))[len(header) :]


class PauseStorms:
    """Pause storms of each interface, read once a minute."""

    def __init__(self, read: Callable[[str], dict[str, int]] = statistics) -> None:
        self._read = read
        self._known: dict[str, tuple[float, int | None]] = {}

    def __call__(self, interface: str) -> int | None:
        """None: the adapter does not count them."""
        read_at, count = self._known.get(interface, (float("-inf"), None))
        if time.monotonic() - read_at >= INTERVAL_SECONDS:
            try:
                count = self._read(interface).get(PAUSE_STORM)
            except OSError:
                count = None
            self._known[interface] = (time.monotonic(), count)
        return count
