"""Tasks on files, which agents carry out with the rights of their owner, and their results."""

from __future__ import annotations

import msgspec

from understudy_wire.values import Size, Text, WireEnum


class FileOutcome(WireEnum):
    SAMPLED = "sampled"  # sizes, structure and samples are as they should be
    VERIFIED = "verified"  # every byte is what was written
    READ = "read"  # every byte can be read, and there is nothing to compare it with
    SUSPECT = "suspect"  # written again after it was announced
    BAD = "bad"
    LOST = "lost"  # not there, while its folder is
    UNSEEN = "unseen"  # the owner cannot read, copy or delete it on this node
    COPIED = "copied"  # every byte, and it is what was written, as far as checksums say
    DELETABLE = "deletable"  # its files are what was announced, and not pinned
    DELETED = "deleted"
    WARMED = "warmed"  # files of a program are in the page cache, as many as there are
    UNKNOWN = "unknown"


class FileResult(msgspec.Struct, frozen=True, omit_defaults=True):
    number: Size  # of the task
    outcome: FileOutcome
    why: Text = ""


class AnnouncedFile(msgspec.Struct, frozen=True):
    file: str  # "." is the checkpoint's path itself
    size_bytes: int
    checksum: str
    at: float  # when it was announced


class ReadFiles(msgspec.Struct, frozen=True, tag="read"):
    """Read a checkpoint back, or what one node wrote of it."""

    number: int
    user_id: int  # each task is carried out with the rights of this user alone
    path: str
    files: list[AnnouncedFile]
    bytes_per_second: float
    whole: bool  # every byte; else sizes, structure and samples
    look_for_nan: bool = False  # in tensors of safetensors and .distcp files, where every byte is read


class CopyFiles(msgspec.Struct, frozen=True, tag="copy"):
    number: int
    user_id: int
    path: str
    files: list[AnnouncedFile]
    bytes_per_second: float
    copy_to: str  # in place of `path`; s3://… in an object store


class DeleteFiles(msgspec.Struct, frozen=True, tag="delete"):
    number: int
    user_id: int
    path: str
    files: list[AnnouncedFile]
    only_look: bool  # whether all of them can be deleted


class WarmFiles(msgspec.Struct, frozen=True, tag="warm"):
    """Read the files of a user's program into the page cache."""

    number: int
    user_id: int
    program: str  # as in ProgramFiles
    bytes_max: int
    bytes_per_second: float


FileTask = ReadFiles | CopyFiles | DeleteFiles | WarmFiles
