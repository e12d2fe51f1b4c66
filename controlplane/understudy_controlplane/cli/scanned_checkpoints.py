"""What lies in a folder and looks like a checkpoint: by names and sizes alone. No content is loaded or executed."""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ENTRIES_MAX = 100_000
STEP = re.compile(r"(?:^|[^0-9])(?:step|checkpoint|ckpt|iter|global_step)[-_=]?0*(\d+)")
SINGLE = (".pt", ".pth", ".ckpt", ".safetensors")


@dataclass(frozen=True, slots=True)
class Scanned:
    path: str
    kind: str
    step: int | None  # that its name says
    files: int
    size_bytes: int
    written_at: float
    doubt: str  # what speaks against it; empty: nothing, as far as names and sizes show


def scan(root: Path, user_id: int) -> Iterator[Scanned]:
    """Only what belongs to the user; links are not followed."""
    seen = 0
    for folder, folders, names in os.walk(root):
        folders.sort()
        found = [one for name in sorted(names) if (one := _own(Path(folder) / name, user_id)) is not None]
        seen += len(names)
        if seen > ENTRIES_MAX:
            return
        place = Path(folder)
        known = {one.path.name for one in found}
        if any(name.endswith(".distcp") for name in known):
            yield _whole(place, "torch.distributed.checkpoint", found, _distributed_doubt(place, known))
        elif "trainer_state.json" in known:
            yield _whole(place, "Hugging Face Trainer", found, "")
        else:
            for one in found:
                if one.path.suffix in SINGLE:
                    yield _single(one)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    size_bytes: int
    written_at: float


def _own(path: Path, user_id: int) -> _File | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode) or found.st_uid != user_id:
        return None
    return _File(path, found.st_size, found.st_mtime)


def _whole(place: Path, kind: str, files: list[_File], doubt: str) -> Scanned:
    size, at = sum(one.size_bytes for one in files), max(one.written_at for one in files)
    return Scanned(str(place), kind, _step(place), len(files), size, at, doubt)


def _single(one: _File) -> Scanned:
    kind = "safetensors" if one.path.suffix == ".safetensors" else "torch.save"
    return Scanned(str(one.path), kind, _step(one.path), 1, one.size_bytes, one.written_at, _single_doubt(one))


def _single_doubt(one: _File) -> str:
    if not one.size_bytes:
        return "it is empty"
    if one.path.suffix == ".safetensors":
        return ""
    try:
        return "" if zipfile.is_zipfile(one.path) else "it is no whole zip file, as torch.save writes since 1.6"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _distributed_doubt(place: Path, names: set[str]) -> str:
    return "" if ".metadata" in names else f"{place / '.metadata'} is missing: the save did not come to its end"


def _step(path: Path) -> int | None:
    """The last part of its path that names a step."""
    for part in (path.name, path.parent.name):
        numbers = STEP.findall(part.lower())
        if numbers:
            return int(numbers[-1])
    return None
