"""Reading a report of this release or another one of the same wire version: what this release does not know is left
out, and the rest of the report counts. So it does where a fact, or what a rank or keeper reports, is out of bounds:
processes of users choose these, and one of them must not silence its node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from understudy_agent.wire import (
    NOT_UNDERSTOOD,
    RELEASE,
    Anomaly,
    AnomalyKind,
    Fact,
    HardwareEvent,
    HardwareKind,
    Keeper,
    Part,
    ProgramFiles,
    RankWindow,
    Report,
    RestoreOutcome,
    RestoreReport,
    in_words,
)
from understudy_agent.wire_unknown import KIND, NAME_CHARACTERS_MAX, unknown_in

_report = msgspec.json.Decoder(Report)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw] | None)
_kinds = frozenset(kind.__struct_config__.tag for kind in get_args(Fact))
_keeper = msgspec.json.Decoder(Keeper)
_of_users: dict[str, tuple[str, msgspec.json.Decoder[Any]]] = {
    "facts": ("a fact", msgspec.json.Decoder(Fact)),
    "ranks": ("what a rank reports", msgspec.json.Decoder(RankWindow)),
    "parts": ("a part of the node", msgspec.json.Decoder(Part)),
    "programs": ("a program's files", msgspec.json.Decoder(ProgramFiles)),
}
"""Lists in a report, of which each item is read alone where the report cannot be read as a whole."""


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
        if items is not None:
            members[name] = msgspec.Raw(msgspec.json.encode(kept))
    if "keeper" in members and (objection := _why_not(members["keeper"], "what the keeper reports", _keeper)):
        del members["keeper"]
        ignored.append(objection)
    return msgspec.json.encode(members), ignored, kinds


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
