"""What the agent knows of this node's hardware across its own restarts, until the next boot.

A GPU that is gone, a port that is down and a disk that became read-only differ from one that never existed, was never
used or never writable only by what was seen before. The file is in the run directory, a tmpfs.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from understudy_agent.own_files import read_file, replace_file
from understudy_wire.hardware import Gpu, Port
from understudy_wire.values import NOT_UNDERSTOOD


class Seen(msgspec.Struct):
    boot_id: str = ""
    gpus: dict[str, Gpu] = {}
    """Uuid → the identity only."""
    replaced: dict[str, str] = {}
    """Uuid of a GPU → uuid of the one that had its bus address before."""
    nvlinks: dict[str, int] = {}
    """Uuid → the largest number of links that were up at once."""
    ports: dict[str, Port] = {}
    """"mlx5_0/1" → the identity and the highest rate, also of those that were never active."""
    port_down_at: dict[str, float] = {}
    """Ports that are down → since when, by CLOCK_MONOTONIC."""
    writable: list[str] = []
    """Paths of disks that were writable."""
    fabric_manager: bool = False
    """The service ran."""
    mounted: list[str] = []
    """Paths where a file system was mounted."""


class HardwareHistory:
    """Change `seen`, then save(): it writes the file only when something changed."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self.path = path
        self._problem = ""
        self.seen = Seen(boot_id)
        try:
            self._saved = read_file(path)
            seen = msgspec.json.decode(self._saved, type=Seen)
        except FileNotFoundError:
            self._saved = b""
        except (OSError, *NOT_UNDERSTOOD) as error:
            self._saved = b""
            self._problem = f"{path}: cannot be read: {error}; the hardware seen before is learnt again"
        else:
            if seen.boot_id == boot_id:
                self.seen = seen

    def save(self) -> None:
        content = msgspec.json.encode(self.seen)
        if content == self._saved:
            return
        try:
            replace_file(self.path, content)
        except OSError as error:
            self._problem = f"{self.path}: cannot be written: {error}"
        else:
            self._saved, self._problem = content, ""

    def problems(self) -> list[str]:
        return [self._problem] if self._problem else []
