"""What the agent remembers of this node's hardware through its own restarts, and no longer than this boot.

A GPU that is gone, a port that is down and a disk that turned read-only can only be told from ones that never were
there, never used or never writable by who has seen them before. The file lies in the run directory, a tmpfs.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from understudy_agent.wire import NOT_UNDERSTOOD, Gpu


class Seen(msgspec.Struct):
    boot_id: str = ""
    gpus: dict[str, Gpu] = {}
    """By uuid, with nothing in them but who they are."""
    replaced: dict[str, str] = {}
    """Uuid of a GPU → uuid of the one that had its bus address before."""
    nvlinks: dict[str, int] = {}
    """Uuid → most links that were up at once."""
    port_rates: dict[str, float] = {}
    """Ports that were active, as "mlx5_0/1" → highest rate."""
    port_down_at: dict[str, float] = {}
    """Of those that are down: since when, by CLOCK_MONOTONIC."""
    writable: list[str] = []
    """Paths that could be written to."""
    mounted: list[str] = []
    """... and those where a file system was mounted."""


class Memory:
    """Change `seen`, then save(): it writes only what is new."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self.path = path
        self._problem = ""
        self.seen = Seen(boot_id)
        try:
            self._saved = path.read_bytes()
            seen = msgspec.json.decode(self._saved, type=Seen)
        except FileNotFoundError:
            self._saved = b""
        except (OSError, *NOT_UNDERSTOOD) as error:
            self._saved = b""
            self._problem = f"what was seen of the hardware before cannot be read ({error}): it is learnt anew"
        else:
            if seen.boot_id == boot_id:
                self.seen = seen

    def save(self) -> None:
        content = msgspec.json.encode(self.seen)
        if content == self._saved:
            return
        unfinished = self.path.with_name(f".{self.path.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(content)
            unfinished.replace(self.path)
        except OSError as error:
            self._problem = f"what is seen of the hardware cannot be written down ({error})"
        else:
            self._saved, self._problem = content, ""

    def problems(self) -> list[str]:
        return [self._problem] if self._problem else []
