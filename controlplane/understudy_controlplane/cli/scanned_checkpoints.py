"""Checkpoints that lie in a folder. Nothing is executed, followed or changed; names, bytes and time are bounded."""

from __future__ import annotations

import heapq
import itertools
import os
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from understudy_controlplane.fleet.checkpoint_folder import (
    FOLDER_OF_A_RANK,
    LINK,
    PARTS,
    SINGLE,
    TRACKER_BYTES_MAX,
    TRACKERS,
    Folder,
    Unread,
    folder_step,
    is_checkpoint,
    judge,
    named_but_gone,
    parts_left_out,
    unfinished_marker,
    without_rank,
)

NAMES_MAX = 100_000
READ_BYTES_MAX = 1 << 30
SECONDS_MAX = 120.0
"""Most time that a scan takes: a file server answers some thousand questions a second."""
DEPTH_MAX = 24


@dataclass(frozen=True, slots=True)
class Scanned:
    path: str
    kind: str
    step: int | None  # that its name says
    files: int
    size_bytes: int
    written_at: float
    doubt: str  # what speaks against it; empty: it is whole, but for what was not looked into
    unread: str  # what was not looked into


class _Spent(Exception):
    """A limit of the scan is reached."""


class _File(NamedTuple):
    size_bytes: int
    written_at: float
    is_own: bool


class _Listing(NamedTuple):
    files: dict[str, _File]
    folders: dict[str, float]
    """When each was changed."""


class _Above(NamedTuple):
    """What lies beside a folder, and how deep that is."""

    names: frozenset[str]
    trackers: Mapping[str, str]
    depth: int


@dataclass
class Scan:
    """Checkpoints of a user. `notes` says what is not right beside them, and where the list is not whole."""

    root: Path
    user_id: int
    names_max: int = NAMES_MAX
    read_bytes_max: int = READ_BYTES_MAX
    seconds_max: float = SECONDS_MAX
    notes: list[str] = field(default_factory=list)
    _names: int = 0
    _sizes: dict[Path, dict[str, int]] = field(default_factory=dict)
    _read_bytes: int = 0
    _began: float = field(default_factory=time.monotonic)

    def checkpoints(self) -> list[Scanned]:
        """Those of each run from the newest on, each beside its neighbours in the run."""
        found = list(self._judged_alone())
        runs: dict[Path, list[Path]] = defaultdict(list)
        for path in sorted(self._sizes, key=lambda one: folder_step(one.name) or -1):
            runs[path.parent].append(path)
        left_out: dict[str, str] = {}
        for one, other in (pair for paths in runs.values() for pair in itertools.pairwise(paths)):
            for own, beside in ((one, other), (other, one)):
                doubt = parts_left_out(self._sizes[own], beside.name, self._sizes[beside])
                left_out[_text(own)] = doubt or left_out.get(_text(own), "")
        return [replace(one, doubt=one.doubt or left_out.get(one.path, "")) for one in found]

    def _judged_alone(self) -> Iterator[Scanned]:
        """Those of each run from the newest on: a folder's turn is its place among those beside it, added to its
        parent's.
        """
        turns, numbers = [(0, 0, self.root.absolute(), self._above_root())], itertools.count(1)
        while turns:
            turn, _, place, above = heapq.heappop(turns)
            try:
                listed = self._list(place)
                yield from self._of_ranks(place, listed, above)
                found = self._folder(place, listed, above)
                yield from self._files(place, listed, above) if found is None else [found]
            except _Spent as spent:
                self._note_that(f"the list is not whole: {spent}. Not looked at: {place}, and what comes after it")
                return
            trackers = self._trackers(place, listed.files)
            for note in named_but_gone(trackers, listed.folders):
                self._note_that(f"{place}: {note}")
            below = _Above(frozenset(listed.files), trackers, above.depth + 1)
            children = [one for one in listed.folders if found is None or not self._owns(place, one)]
            if children and below.depth > DEPTH_MAX:
                self.notes.append(
                    f"the list is not whole: {place} is {DEPTH_MAX} folders deep. Not looked at: its folders"
                )
                continue
            children.sort(key=lambda one: (folder_step(one) or -1, listed.folders[one]), reverse=True)
            for position, name in enumerate(children):
                heapq.heappush(turns, (turn + position, next(numbers), place / name, below))

    def _folder(self, place: Path, listed: _Listing, above: _Above) -> Scanned | None:
        """The folder as one checkpoint, with all that it owns; None: it is none."""
        name = place.name
        if not is_checkpoint(name, [*listed.files, *(f"{one}/" for one in listed.folders)]):
            if folder_step(name) is None and not name.endswith(".ckpt"):
                return None
            if not any(one.endswith(PARTS) for one in listed.files) and (
                above.depth == 0 or any(folder_step(one) is not None for one in listed.folders)
            ):
                return None
        files, folders = dict(listed.files), set[str]()
        left = [one for one in listed.folders if self._owns(place, one)]
        while left:
            below = left.pop()
            folders.add(below)
            if below.count("/") >= DEPTH_MAX:
                self._note_that(f"{place / below} is {DEPTH_MAX} folders deep. Not looked at: what is in it")
                continue
            inner = self._list(place / below)
            files |= {f"{below}/{one}": file for one, file in inner.files.items()}
            left += [f"{below}/{one}" for one in inner.folders]
        if not any(one.endswith(PARTS) for one in files):
            return None
        return self._judged(place, place, files, frozenset(folders), above)

    def _owns(self, place: Path, name: str) -> bool:
        """A folder of a step beside a model at the end of its run is another checkpoint."""
        return folder_step(place.name) is not None or folder_step(name) is None

    def _files(self, place: Path, listed: _Listing, above: _Above) -> Iterator[Scanned]:
        """Single files that are a checkpoint each, or one together where they differ in a rank."""
        groups: dict[str, dict[str, _File]] = defaultdict(dict)
        for name, file in listed.files.items():
            if name.endswith(SINGLE):
                groups[without_rank(name)][name] = file
        beside = _Above(frozenset(listed.files), {}, above.depth)
        for group, files in groups.items():
            path = place / (group if len(files) > 1 else next(iter(files)))
            if (found := self._judged(path, place, files, frozenset(), beside)) is not None:
                yield found

    def _of_ranks(self, place: Path, listed: _Listing, above: _Above) -> Iterator[Scanned]:
        """Saves of NeMo 1, with a file in the folder of each rank. These folders are left out of `listed`."""
        if folder_step(place.name) is not None:
            return
        saves: dict[str, dict[str, _File]] = defaultdict(dict)
        for folder in filter(FOLDER_OF_A_RANK.fullmatch, tuple(listed.folders)):
            files = [(name, file) for name, file in self._list(place / folder).files.items() if name.endswith(".ckpt")]
            for name, file in files:
                saves[name][f"{folder}/{name}"] = file
            if files:
                del listed.folders[folder]
        beside = _Above(frozenset(listed.files), {}, above.depth)
        for name, parts in saves.items():
            if (found := self._judged(place / name, place, parts, frozenset(), beside)) is not None:
                yield found

    def _judged(
        self, path: Path, place: Path, files: Mapping[str, _File], folders: frozenset[str], above: _Above
    ) -> Scanned | None:
        if not any(one.is_own for one in files.values()):
            return None
        sizes = {name: one.size_bytes for name, one in files.items()}
        found = judge(Folder(path.name, sizes, self._reader(place, files), folders, above.names, above.trackers))
        self._sizes[path] = sizes
        size, at = sum(max(one, 0) for one in sizes.values()), max(one.written_at for one in files.values())
        step = folder_step(path.name, found.kind)
        return Scanned(_text(path), found.kind, step, len(files), size, at, _text(found.doubt), _text(found.unread))

    def _reader(self, place: Path, files: Mapping[str, _File]) -> Callable[[str, int, int], bytes]:
        def read(path: str, at: int, length: int) -> bytes:
            if files[path].size_bytes == LINK:
                raise Unread("it is a link")
            return self._read(place / path, at, length)

        return read

    def _note_that(self, what: str) -> None:
        self.notes.append(_text(what))

    def _list(self, place: Path) -> _Listing:
        """Raises _Spent."""
        listed = _Listing({}, {})
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    self._names += 1
                    if self._names > self.names_max:
                        raise _Spent(f"{self.names_max} names were looked at")
                    if self._is_late():
                        raise _Spent(f"{self.seconds_max:.0f} seconds went by")
                    self._note(entry, listed)
        except OSError as error:
            self._note_that(f"the list is not whole: {place} cannot be listed: {error.strerror}")
        return listed

    def _note(self, entry: os.DirEntry[str], listed: _Listing) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(found.st_mode):
            listed.folders[entry.name] = found.st_mtime
        elif stat.S_ISREG(found.st_mode):
            listed.files[entry.name] = _File(found.st_size, found.st_mtime, found.st_uid == self.user_id)
        elif stat.S_ISLNK(found.st_mode):
            listed.files[entry.name] = _File(LINK, found.st_mtime, False)

    def _read(self, path: Path, at: int, length: int) -> bytes:
        """Raises Unread, or OSError for what cannot be read."""
        if self._is_late():
            raise Unread(f"{self.seconds_max:.0f} seconds went by")
        if self._read_bytes + length > self.read_bytes_max:
            raise Unread(f"{self.read_bytes_max >> 20} MiB were read")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except PermissionError as error:
            raise Unread(error.strerror or "it may not be read") from None
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != self.user_id:
                raise Unread("it belongs to another user")
            data = os.pread(descriptor, length, at)
        finally:
            os.close(descriptor)
        self._read_bytes += len(data)
        return data

    def _trackers(self, place: Path, names: Iterable[str]) -> dict[str, str]:
        trackers = {}
        for name in set(TRACKERS).intersection(names):
            try:
                trackers[name] = self._read(place / name, 0, TRACKER_BYTES_MAX).decode(errors="replace").strip()
            except (Unread, OSError):
                continue
        return trackers

    def _is_late(self) -> bool:
        return time.monotonic() > self._began + self.seconds_max

    def _above_root(self) -> _Above:
        above, marker = self.root.absolute().parent, unfinished_marker(self.root.absolute().name)
        names = [one for one in (marker, *TRACKERS) if os.path.lexists(above / one)]
        return _Above(frozenset(names), self._trackers(above, names), 0)


def _text(name: str | Path) -> str:
    """A name need not be UTF-8."""
    return os.fsencode(name).decode(errors="replace")
