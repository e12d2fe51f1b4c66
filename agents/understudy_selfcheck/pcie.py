"""True if the PCIe links of the GPUs have the width and speed that they can have, while data goes over them: an idle
link may run slower to save power.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from understudy_selfcheck.watch import Watch

NVIDIA = "0x10de"
DISPLAY = "0x03"
LOOK_SECONDS = 0.1
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class LinkWatch(Watch):
    """Remembers the best that it saw of each link."""

    def __init__(self, devices: Path = Path("/sys/bus/pci/devices")) -> None:
        super().__init__(LOOK_SECONDS)
        self._gpus = list(_gpus(devices))
        self._best: dict[tuple[Path, str], float] = {}

    def degraded(self) -> str:
        """The links that were never as wide or fast as both their ends can be; empty: none. What the kernel does not
        know is not judged.
        """
        found = []
        for gpu in self._gpus:
            for what, unit in (("width", "lanes"), ("speed", "GT/s")):
                best, most = self._best.get((gpu, what), 0.0), _most(gpu, what)
                if 0 < best < most:
                    found.append(f"{gpu.name} {best:g} of {most:g} {unit}")
        return ", ".join(found)

    def look(self) -> None:
        for gpu in self._gpus:
            for what in ("width", "speed"):
                self._best[gpu, what] = max(self._best.get((gpu, what), 0.0), _number(gpu / f"current_link_{what}"))


def _gpus(devices: Path) -> Iterator[Path]:
    for device in sorted(devices.glob("*")):
        if _text(device / "vendor") == NVIDIA and _text(device / "class").startswith(DISPLAY):
            yield device


def _most(gpu: Path, what: str) -> float:
    """The highest that the GPU and the port above it can both have; 0: not known."""
    ends = (gpu, gpu.resolve().parent)
    return min(_number(end / f"max_link_{what}") for end in ends)


def _number(path: Path) -> float:
    """0: not known, as "Unknown" or a width of 255."""
    match = _NUMBER.match(_text(path))
    number = float(match[0]) if match else 0.0
    return number if number < 255 else 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
