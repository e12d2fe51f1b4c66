"""One message of every kind that travels, with every field set, and the record of those that a release wrote.

`python -m tests.wire_messages` records this release's messages in tests/data/wire/RELEASE. They may change until the
release is tagged, and never after.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import inspect

from tests import REPOSITORY
from understudy_agent import rank_messages
from understudy_wire import launcher
from understudy_wire import messages as wire

RECORDED = REPOSITORY / "tests" / "data" / "wire"

HTTP: dict[str, type[msgspec.Struct]] = {
    "report": wire.Report,
    "acknowledgement": wire.Acknowledgement,
    "restore_point": wire.RestorePoint,
    "launcher_report": launcher.LauncherReport,
    "launcher_answer": launcher.LauncherAnswer,
    "challenge": wire.Challenge,
    "node_token_request": wire.NodeTokenRequest,
    "node_token": wire.NodeToken,
    "refusal": wire.Refusal,
}
"""Messages of agent and control plane: name of the recorded file → its type today."""


def to_agent() -> dict[str, type[msgspec.Struct]]:
    """Messages from ranks and launchers to the agent of their node, by tag."""
    return {str(kind.__struct_config__.tag): kind for kind in get_args(rank_messages.Message)}


def from_agent() -> dict[str, type[msgspec.Struct]]:
    """Messages from the agent to ranks and launchers, by tag."""
    return {str(kind.__struct_config__.tag): kind for kind in get_args(rank_messages.Answer)}


def samples() -> dict[str, msgspec.Struct]:
    """Path of the recorded file, without suffix → a message."""
    return {
        **{f"http/{name}": sample(kind) for name, kind in HTTP.items()},
        **{f"to_agent/{name}": sample(kind) for name, kind in to_agent().items()},
        **{f"from_agent/{name}": sample(kind) for name, kind in from_agent().items()},
    }


def sample(kind: type[msgspec.Struct]) -> msgspec.Struct:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return msgspec.convert(_struct(described), kind)


def _struct(struct: inspect.StructType) -> dict[str, Any]:
    values = {field.encode_name: _value(field.type, field.encode_name) for field in struct.fields}
    if struct.cls is wire.Report:
        values |= {"version": wire.WIRE_VERSION, "release": wire.RELEASE}
    return values if struct.tag_field is None else {struct.tag_field: struct.tag, **values}


def _value(described: inspect.Type, name: str) -> Any:  # noqa: PLR0911 - one return for each type
    """Not the default of any field."""
    match described:
        case inspect.StructType():
            return _struct(described)
        case inspect.UnionType(types=types):
            return _value(next(one for one in types if not isinstance(one, inspect.NoneType)), name)
        case inspect.ListType(item_type=inspect.UnionType(types=kinds)) if name == "facts":
            return [_value(kind, name) for kind in kinds]
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [_value(item, name)]
        case inspect.DictType() if name == "domains":
            return {"n1": ["rack r1"]}
        case inspect.DictType():
            return {"n1": "Xid 79"}
        case inspect.EnumType(cls=cls):
            return [member.value for member in cls if member.name != "UNKNOWN"][-1]
        case inspect.BoolType():
            return name != "managed"
        case inspect.IntType():
            return {"world_size": 4, "job_id": 7}.get(name, 1)
        case inspect.FloatType():
            return 1.5
        case inspect.StrType(pattern=pattern):
            return name if pattern is None or re.search(pattern, name) else "crc32:00000000"
    raise TypeError(f"no sample for {described} of {name}")


def recorded(release: str) -> dict[str, Any]:
    """Path of the file, without suffix → the JSON in it."""
    folder = RECORDED / release
    return {
        str(path.relative_to(folder).with_suffix("")): json.loads(path.read_text()) for path in folder.rglob("*.json")
    }


def record(folder: Path) -> None:
    for path in folder.rglob("*.json"):
        path.unlink()
    for name, message in samples().items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(message), indent=1) + b"\n")


if __name__ == "__main__":
    record(RECORDED / wire.RELEASE)
    sys.stdout.write(f"recorded {len(samples())} messages in {RECORDED / wire.RELEASE}\n")
