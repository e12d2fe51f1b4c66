"""The place of a checkpoint: a file system that only this node has, or one that several nodes share."""

from __future__ import annotations

import os
from collections.abc import Iterable

TIERS = ("", "local", "shared")

OBJECT = "s3://"
"""Beginning of a place in an object store."""

OF_NODE = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "ramfs", "tmpfs", "xfs", "zfs"})

OF_SEVERAL = frozenset({"acfs", "afs", "beegfs", "ceph", "cifs", "gfs2", "gpfs", "lustre", "nfs", "nfs4", "ocfs2"}) | {
    *("orangefs", "panfs", "pvfs2", "smb3", "wekafs"),
    *("fuse.beegfs", "fuse.ceph", "fuse.dfuse", "fuse.glusterfs", "fuse.juicefs"),
}

FULL_BYTES = 1 << 20
"""Less room holds no part of a checkpoint."""

MOUNTS = "/proc/self/mountinfo"


class ObjectStoreError(Exception):
    """The message has the cause, which says nothing of the checkpoint."""


class DamagedObjectError(ObjectStoreError):
    """What is in the store is not what was saved."""


def is_object(path: str | os.PathLike[str]) -> bool:
    return str(path).startswith(OBJECT)


def absolute(path: str | os.PathLike[str]) -> str:
    """A place in an object store is that already."""
    return str(path).rstrip("/") if is_object(path) else os.path.abspath(path)


def place_of(path: str | os.PathLike[str], file: str) -> str:
    """Path of a checkpoint's file. "." stands for the path itself: of a file, `step-50.pt/.` is nowhere."""
    return os.fspath(path) if file in ("", ".") else os.path.join(path, file)


def file_size(path: str, file: str) -> int:
    """Bytes of a shard, as CheckpointShard of agents/understudy_wire/facts.py names it. Raises OSError."""
    if not file:
        return 0
    with open(place_of(path, file), "rb") as shard:
        return os.fstat(shard.fileno()).st_size


def full(path: str | os.PathLike[str]) -> str:
    """Says in words that its file system has no space left; empty: it has, or that is not known. What failed may name
    another cause, as torch's "unexpected pos" does.
    """
    place = absolute(path)
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    try:
        found = os.statvfs(place)
    except OSError:
        return ""
    left = found.f_bavail * found.f_frsize
    return f"the file system of {place} is full: {left >> 20} MB are left" if left < FULL_BYTES else ""


def tier_of(path: str | os.PathLike[str]) -> str:
    """One of TIERS, by the type of the file system; empty: not known, as for a container's overlay."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
            kind = _type_of(os.path.realpath(path), mounts)
    except OSError:
        return ""
    return "local" if kind in OF_NODE else "shared" if kind in OF_SEVERAL else ""


def _type_of(path: str, mounts: Iterable[str]) -> str:
    """`lines` are as proc(5) describes them; the last one that is mounted at the longest part of the path counts."""
    longest, found = "", ""
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        place = _unescaped(fields[4])
        if len(place) >= len(longest) and (place == path or path.startswith(place.rstrip("/") + "/")):
            longest, found = place, after.split(" ", 1)[0]
    return found


def _unescaped(text: str) -> str:
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(octal, character)
    return text
