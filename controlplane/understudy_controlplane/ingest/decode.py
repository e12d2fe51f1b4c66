"""Reading a report of this release or another one of the same wire version: what this release does not know is left
out, and the rest of the report counts. So it does where a fact, what a rank or keeper reports, or a value of hardware
is out of bounds: neither a process of a user nor a broken part must silence its node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import msgspec
from msgspec import inspect, structs

from understudy_wire.facts import Anomaly, AnomalyKind, Fact, HardwareEvent, HardwareKind, RestoreOutcome, RestoreReport
from understudy_wire.files import FileResult
from understudy_wire.hardware import Part, StuckProcess
from understudy_wire.messages import RELEASE, Keeper, Report
from understudy_wire.ranks import ProgramFiles, RankWindow
from understudy_wire.unknown import KIND, NAME_CHARACTERS_MAX, unknown_in
from understudy_wire.values import NOT_UNDERSTOOD, in_words, printable

_report = msgspec.json.Decoder(Report)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw] | None)
_kinds = frozenset(kind.__struct_config__.tag for kind in get_args(Fact))
_of_users: dict[str, tuple[str, msgspec.json.Decoder[Any]]] = {
    "facts": ("a fact", msgspec.json.Decoder(Fact)),
    "ranks": ("what a rank reports", msgspec.json.Decoder(RankWindow)),
    "parts": ("a part of the node", msgspec.json.Decoder(Part)),
    "processes": ("a process that is stuck", msgspec.json.Decoder(StuckProcess)),
    "programs": ("a program's files", msgspec.json.Decoder(ProgramFiles)),
}
"""Lists in a report, of which each item is read alone where the report cannot be read as a whole."""
_lengths = {
    field.name: kind.max_length
    for field in structs.fields(Report)
    for one in [inspect.type_info(field.type)]
    for kind in (one.types if isinstance(one, inspect.UnionType) else (one,))
    if isinstance(kind, inspect.ListType)
}
_alone: dict[str, tuple[str, msgspec.json.Decoder[Any]]] = {
    "keeper": ("what the keeper reports", msgspec.json.Decoder(Keeper)),
    "file_result": ("what became of a task on files", msgspec.json.Decoder(FileResult)),
}
_not_mended = frozenset({*_of_users, "keeper", "version", "cluster", "node", "boot_id", "sequence"})
"""What is all or nothing, as the numbers of users and jobs are, and who sends the report."""


class _Tagged(msgspec.Struct):
    type: str


_tag = msgspec.json.Decoder(_Tagged)


@dataclass(frozen=True, slots=True)
class Decoded:
    report: Report
    unknown: list[str]
    """What was ignored, as wire_unknown names it."""
    ignored: list[str]
    """Why each fact, or other item, was ignored that is in the message and not in `report`."""


def decode_report(body: bytes) -> Decoded:
    """Raises NOT_UNDERSTOOD where more is wrong than single items, or than that something is unknown."""
    ignored, kinds = list[str](), list[str]()
    try:
        report = _report.decode(body)
    except msgspec.ValidationError:
        body, ignored, kinds = _readable(body)
        report = _report.decode(body)
    facts = [fact for fact in report.facts if not _of_unknown_kind(fact)]
    if len(facts) < len(report.facts):
        ignored += [_objection(f"{type(fact).__name__}.kind") for fact in report.facts if _of_unknown_kind(fact)]
        report = msgspec.structs.replace(report, facts=facts)
    unknown = unknown_in(Report, body) if ignored or report.release != RELEASE else []
    return Decoded(report, unknown + [f"{KIND} {kind[:NAME_CHARACTERS_MAX]}" for kind in kinds], ignored)


def _readable(body: bytes) -> tuple[bytes, list[str], list[str]]:
    """The same report without what this release does not know or cannot read, why each item was left out, and the kinds
    of facts among them that it does not know.
    """
    members, ignored, kinds = _members.decode(body), list[str](), list[str]()
    for name, (what, decoder) in _of_users.items():
        items, kept = _items.decode(members.get(name, b"null")), list[msgspec.Raw]()
        for item in items or ():
            kind = _unknown_kind(item) if name == "facts" else ""
            objection = _objection(kind) if kind else _why_not(item, what, decoder)
            kinds += [kind] if kind else []
            ignored += [objection] if objection else []
            kept += [] if objection else [item]
        if (most := _lengths[name]) is not None and len(kept) > most:
            ignored.append(f"Report.{name} has more than {most} items: the others are left out")
        if items is not None:
            members[name] = msgspec.Raw(msgspec.json.encode(kept[:most]))
    hardware = {name: msgspec.json.decode(raw) for name, raw in members.items() if name not in _not_mended}
    _mend(Report, hardware, ignored)
    members = {name: raw for name, raw in members.items() if name in _not_mended} | {
        name: msgspec.Raw(msgspec.json.encode(value)) for name, value in hardware.items()
    }
    for name, (what, decoder) in _alone.items():
        if name in members and (objection := _why_not(members[name], what, decoder)):
            del members[name]
            ignored.append(objection)
    return msgspec.json.encode(members), ignored, kinds


_LEFT_OUT = inspect.IntType | inspect.FloatType | inspect.BoolType | inspect.EnumType


def _mend(message: type[msgspec.Struct], read: dict[str, Any], ignored: list[str]) -> None:
    """Text is brought within its bounds, and so is a number that must be there; another value that is odd is left out,
    as if it were not known. A list or object stays one: a GPU that is left out would be a missing one.
    """
    for field in structs.fields(message):
        name = field.encode_name
        if name not in read:
            continue
        try:
            msgspec.convert(read[name], field.type)
        except msgspec.ValidationError as error:
            kind = inspect.type_info(field.type)
            if isinstance(kind, inspect.UnionType):
                kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
            if not isinstance(getattr(kind, "item_type", kind), inspect.StructType):  # else its own fields are named
                ignored.append(f"{message.__name__}.{name} of the report is odd: {in_words(error)}")
            if isinstance(kind, _LEFT_OUT) and not field.required:
                del read[name]
            else:
                read[name] = _nearest(read[name], kind, ignored)


def _nearest(value: Any, kind: inspect.Type, ignored: list[str]) -> Any:
    """The same value where none of this kind is near to it."""
    match kind, value:
        case inspect.StrType(max_length=int(most)), str():
            return printable(value, most)
        case ((inspect.IntType(ge=low, le=high) | inspect.FloatType(ge=low, le=high)), (int() | float())):
            return value if low is None or high is None else min(max(value, low), high)
        case inspect.StructType(cls=message), dict():
            _mend(message, value, ignored)
        case inspect.ListType(item_type=item), list():
            return [_nearest(one, item, ignored) for one in value]
        case inspect.DictType(key_type=key, value_type=of_key), dict():
            return {_nearest(name, key, ignored): _nearest(one, of_key, ignored) for name, one in value.items()}
    return value


def _why_not(item: msgspec.Raw, what: str, decoder: msgspec.json.Decoder[Any]) -> str:
    """Empty: it can be read."""
    try:
        decoder.decode(item)
    except NOT_UNDERSTOOD as error:
        return f"{what} cannot be read: {in_words(error)}"
    return ""


def _unknown_kind(fact: msgspec.Raw) -> str:
    """Empty: this release knows it, or it is no fact."""
    try:
        kind = _tag.decode(fact).type
    except NOT_UNDERSTOOD:
        return ""
    return kind if kind not in _kinds else ""


def _of_unknown_kind(fact: Fact) -> bool:
    if isinstance(fact, RestoreReport):
        return fact.outcome is RestoreOutcome.UNKNOWN
    return isinstance(fact, Anomaly | HardwareEvent) and fact.kind in (AnomalyKind.UNKNOWN, HardwareKind.UNKNOWN)


def _objection(kind: str) -> str:
    return f"a fact of a kind that release {RELEASE} of the control plane does not know: {kind:.64}"
