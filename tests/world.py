"""Inputs of the world: what other programs print and Understudy reads (tests/data/world)."""

from __future__ import annotations

import msgspec

from tests import REPOSITORY


class Input(msgspec.Struct, forbid_unknown_fields=True):
    """A kind of text or value that the product reads and that another program prints."""

    what: str
    producer: str
    reader: str
    """Module and name of the code that reads it: `module:name`."""
    read: list[str]
    """Versions of the producer whose source was read."""
    recorded: dict[str, str]
    """Real outputs by version: each is a file, or a test that runs the producer."""
    imagined: str
    """What was never seen, in neither form."""


class WorldCase(msgspec.Struct, forbid_unknown_fields=True):
    """An input of another site, from a public report or from the producer's source."""

    file: str
    source: str
    right: str
    test: str


class InputKind(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    input: list[Input]
    case: list[WorldCase] = []
    name: str = ""


WORLD = REPOSITORY / "tests" / "data" / "world"


def input_kinds() -> list[InputKind]:
    """One for each file in WORLD."""
    kinds = []
    for file in WORLD.glob("*.toml"):
        kind = msgspec.toml.decode(file.read_bytes(), type=InputKind)
        kinds.append(msgspec.structs.replace(kind, name=file.stem))
    return sorted(kinds, key=lambda kind: kind.title)
