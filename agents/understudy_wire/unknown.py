"""What a message contains that this release does not know: fields, enum values and kinds, by name.

Decoding ignores them. They are looked for only in messages of another release, because that decodes the message again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect

NAME_CHARACTERS_MAX = 64

FIELD, VALUE, KIND = "field", "value", "kind"

Look = Callable[[Any, list[str]], None]
"""Appends what is unknown in a decoded JSON value."""


def unknown_in(message: type[msgspec.Struct], body: bytes) -> list[str]:
    """Such as "field Gpu.fan_percent", "value Gpu.status=on_fire" and "kind fan_stopped", one for each occurrence.

    `body` is JSON that was decoded as `message` before.
    """
    return unknown_in_any((message,), body)


def unknown_in_any(messages: tuple[type[msgspec.Struct], ...], body: bytes) -> list[str]:
    """Does the same as unknown_in; `body` is one of these messages, as its tag shows."""
    found: list[str] = []
    _look_for(messages)(msgspec.json.decode(body), found)
    return found


@functools.cache
def _look_for(messages: tuple[type[msgspec.Struct], ...]) -> Look:
    described = inspect.multi_type_info(messages)
    look = _look_at(described[0] if len(described) == 1 else inspect.UnionType(described), "message")
    assert look is not None
    return look


def _look_at(described: inspect.Type, place: str) -> Look | None:
    """None where everything of this type is known, as any number is."""
    if isinstance(described, inspect.StructType):
        return _look_at_struct(described)
    if isinstance(described, inspect.UnionType):
        return _look_at_union(described, place)
    if isinstance(described, inspect.ListType | inspect.VarTupleType):
        return _look_at_list(described, place)
    if isinstance(described, inspect.EnumType):
        return _look_at_enum(described, place)
    return None


def _look_at_struct(struct: inspect.StructType) -> Look:
    name_of_struct = struct.cls.__name__
    types = {field.encode_name: field.type for field in struct.fields}
    names = frozenset(types) | {struct.tag_field or ""}
    looks = [(name, _look_at(type_, f"{name_of_struct}.{name}")) for name, type_ in types.items()]
    nested = [(name, look) for name, look in looks if look is not None]

    def look_at_struct(value: dict[str, Any], found: list[str]) -> None:
        if not value.keys() <= names:
            found += [f"{FIELD} {name_of_struct}.{name[:NAME_CHARACTERS_MAX]}" for name in value.keys() - names]
        for name, look in nested:
            content = value.get(name)
            if content is not None:
                look(content, found)

    return look_at_struct


def _look_at_list(described: inspect.ListType | inspect.VarTupleType, place: str) -> Look | None:
    look = _look_at(described.item_type, place)
    if look is None:
        return None

    def look_at_list(value: list[Any], found: list[str]) -> None:
        for item in value:
            look(item, found)

    return look_at_list


def _look_at_enum(described: inspect.EnumType, place: str) -> Look:
    values = frozenset(member.value for member in described.cls)

    def look_at_enum(value: str, found: list[str]) -> None:
        if value not in values:
            found.append(f"{VALUE} {place}={value[:NAME_CHARACTERS_MAX]}")

    return look_at_enum


def _look_at_union(described: inspect.UnionType, place: str) -> Look | None:
    """Structs that differ by their tag; or a type and null."""
    structs = [one for one in described.types if isinstance(one, inspect.StructType)]
    if len(structs) < 2:
        looks = [look for one in described.types if (look := _look_at(one, place)) is not None]
        return looks[0] if looks else None
    tag_field = structs[0].tag_field or "type"
    by_tag = {struct.tag: _look_at_struct(struct) for struct in structs}

    def look_at_tagged(value: dict[str, Any], found: list[str]) -> None:
        tag = value.get(tag_field)
        if tag in by_tag:
            by_tag[tag](value, found)
        else:
            found.append(f"{KIND} {str(tag)[:NAME_CHARACTERS_MAX]}")

    return look_at_tagged
