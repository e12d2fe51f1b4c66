"""PCI addresses in one form: NVML writes eight domain digits, the kernel log four and no function."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-9a-fA-F]))?")


def normal_bus_id(text: str) -> str:
    """ "00000000:1B:00.0" and "0000:1b:00" are both "0000:1b:00.0". Anything that is not a PCI address becomes ""."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.{(function or '0').lower()}"
