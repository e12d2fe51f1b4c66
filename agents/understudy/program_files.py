"""Files that this program has read to start: a spare reads them before it takes over, so that it starts as quickly.

Only what is the same on every node is of use there: shared objects and compiled Python modules, and no data.
"""

from __future__ import annotations

import base64
import sys
import zlib
from collections.abc import Iterable

PACKED_CHARACTERS_MAX = 32_768
"""What the agent takes: some thousand files."""
MAPS = "/proc/self/maps"
DELETED = " (deleted)"


def program_files() -> str:
    """Packed, with shared objects first where there is not room for all. Raises OSError."""
    with open(MAPS, encoding="utf-8", errors="surrogateescape") as maps:
        objects = shared_objects(maps)
    return pack(objects, modules())


def shared_objects(maps: Iterable[str]) -> list[str]:
    """What is mapped to be executed, of the lines of /proc/PID/maps; and nothing that is mapped as data."""
    found = set()
    for line in maps:
        _, permissions, _, _, inode, *path = line.rstrip("\n").split(None, 5)
        if "x" in permissions and inode != "0" and path and path[0].startswith("/") and not path[0].endswith(DELETED):
            found.add(path[0])
    return sorted(found)


def modules() -> list[str]:
    """The file of each imported module that Python reads first: compiled, where that is known."""
    found = set()
    for module in list(sys.modules.values()):
        spec = getattr(module, "__spec__", None)
        path = getattr(spec, "cached", None) or getattr(spec, "origin", None)
        if isinstance(path, str) and path.startswith("/"):
            found.add(path)
    return sorted(found)


def pack(objects: list[str], compiled: list[str]) -> str:
    """One path in each line, compressed, as ASCII."""
    count = len(compiled)
    while True:
        text = "\n".join(path for path in (*objects, *compiled[:count]) if "\n" not in path)
        packed = base64.b85encode(zlib.compress(text.encode("utf-8", "surrogateescape"), 9)).decode()
        if len(packed) <= PACKED_CHARACTERS_MAX:
            return packed
        if not count:
            objects = objects[: len(objects) // 2]
        count = count // 2
