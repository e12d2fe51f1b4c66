"""Values that messages are made of, and their limits."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

import msgspec
from msgspec import Meta

NOT_UNDERSTOOD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding a message may raise, also for strings that are not UTF-8 and for endless nesting."""

DISKS_PER_NODE_MAX = 16
VERSIONS_PER_NODE_MAX = 16
TEXT_CHARACTERS_MAX = 2048
COLLECTIVE_CHARACTERS_MAX = 64
SECTION_CHARACTERS_MAX = 64
STACK_CHARACTERS_MAX = 512
PROGRAM_CHARACTERS_MAX = 32_768
PACKED_NODES_CHARACTERS_MAX = 57_344

EPOCH_SECONDS_MAX = 4_102_444_800.0
"""The year 2100."""

WORK_MAX = 1e30

WITHOUT_NUL = r"\A[^\x00]*\Z"
"""No database stores the character NUL."""

PRINTABLE = r"\A[^\x00-\x1f\x7f-\x9f]*\Z"
"""Nothing that a terminal or a log would carry out, and no line ends."""


def in_words(error: Exception) -> str:
    """What is wrong with a message, without regular expressions."""
    text = str(error)
    for pattern, words in (
        (WITHOUT_NUL, "text without the character NUL"),
        (PRINTABLE, "text without control characters"),
    ):
        text = text.replace(f"`str` matching regex {pattern!r}", words)
    return text


def printable(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """The text as a report may have it: hardware, files and errors contain anything. It is cut; what is not printed,
    half a character too, becomes a space.
    """
    text = text[:characters_max]
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)


Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
SIZE_MAX = 2**53

Size = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
"""A thousand of them are below 2**63."""

Signed = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
READING_MAX = 2**62

Reading = Annotated[int, Meta(ge=-READING_MAX, le=READING_MAX)]
"""A whole number as hardware reports it."""

Measure = Annotated[float, Meta(ge=-1e15, le=1e15)]

Time = Annotated[float, Meta(ge=0, le=EPOCH_SECONDS_MAX)]
"""The control plane also compares a fact's time with its own clock."""

Step = Annotated[int, Meta(ge=0, le=2**53)]
WorldSize = Annotated[int, Meta(ge=1, le=2**31 - 1)]

Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX, pattern=WITHOUT_NUL)]
"""A text for people. What a terminal would carry out is replaced where it is stored."""

AnyText = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
"""Hardware's own text, whose facts count whatever they contain: the control plane replaces what cannot be stored."""

Line = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX, pattern=PRINTABLE)]
NAME_CHARACTERS_MAX = 255
ShortLine = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX, pattern=PRINTABLE)]
UserId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX, pattern=PRINTABLE)]
LABEL_CHARACTERS_MAX = 64

Label = Annotated[str, Meta(max_length=LABEL_CHARACTERS_MAX, pattern=PRINTABLE)]
"""A name of hardware, such as a serial number."""

BusId = Annotated[str, Meta(max_length=32, pattern=PRINTABLE)]
PART_NUMBER_CHARACTERS_MAX = 80
PartNumber = Annotated[str, Meta(max_length=PART_NUMBER_CHARACTERS_MAX, pattern=PRINTABLE)]
Duration = Annotated[float, Meta(ge=0, le=1e7)]

PackedNodes = Annotated[str, Meta(max_length=PACKED_NODES_CHARACTERS_MAX, pattern=PRINTABLE)]
"""Seats, spares and lost nodes of a gang whose names are too long for a line: three host lists of Slurm in as many
lines, compressed with zlib, base85. The fields of their own are empty then.
"""

RowLabel = Annotated[str, Meta(max_length=32, pattern=PRINTABLE)]
CollectiveName = Annotated[str, Meta(min_length=1, max_length=COLLECTIVE_CHARACTERS_MAX, pattern=PRINTABLE)]
Section = Annotated[str, Meta(max_length=SECTION_CHARACTERS_MAX, pattern=PRINTABLE)]
Stack = Annotated[str, Meta(max_length=STACK_CHARACTERS_MAX, pattern=WITHOUT_NUL)]
PackedProgram = Annotated[str, Meta(min_length=1, max_length=PROGRAM_CHARACTERS_MAX, pattern=PRINTABLE)]
Checksum = Annotated[str, Meta(max_length=64, pattern=PRINTABLE)]


class WireEnum(StrEnum):
    """A value that a newer release added is read as UNKNOWN, which is sent only by an agent that passes it on."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        unknown: Self | None = cls.__members__.get("UNKNOWN")
        return unknown if isinstance(value, str) else None
