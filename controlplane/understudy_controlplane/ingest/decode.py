"""Reading a report of this release or another one of the same wire version: what this release does not know is left
out, and the rest of the report counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import msgspec

from understudy_agent.wire import (
    RELEASE,
    Anomaly,
    AnomalyKind,
    Fact,
    HardwareEvent,
    HardwareKind,
    Report,
    RestoreOutcome,
    RestoreReport,
)
from understudy_agent.wire_unknown import unknown_in

_report = msgspec.json.Decoder(Report)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raw_facts = msgspec.json.Decoder(list[msgspec.Raw])
_kinds = frozenset(kind.__struct_config__.tag for kind in get_args(Fact))


class _Tagged(msgspec.Struct):
    type: str


_tag = msgspec.json.Decoder(_Tagged)


@dataclass(frozen=True, slots=True)
class Decoded:
    report: Report
    unknown: list[str]
    """What was ignored, as wire_unknown names it."""
    facts_ignored: list[str]
    """Why each fact was ignored that is in the message and not in `report`."""


def decode_report(body: bytes) -> Decoded:
    """Raises NOT_UNDERSTOOD where more is wrong than that something is unknown."""
    try:
        report = _report.decode(body)
    except msgspec.ValidationError:
        kept, ignored = _without_unknown_facts(body)
        report = _report.decode(kept)
    else:
        ignored = []
    facts = [fact for fact in report.facts if not _of_unknown_kind(fact)]
    if len(facts) < len(report.facts):
        ignored += [_objection(f"{type(fact).__name__}.kind") for fact in report.facts if _of_unknown_kind(fact)]
        report = msgspec.structs.replace(report, facts=facts)
    unknown = unknown_in(Report, body) if ignored or report.release != RELEASE else []
    return Decoded(report, unknown, ignored)


def _without_unknown_facts(body: bytes) -> tuple[bytes, list[str]]:
    """The same report without facts whose kind this release does not know, and why each was left out."""
    members = _members.decode(body)
    facts = _raw_facts.decode(members.get("facts", b"[]"))
    tags = [_tag.decode(fact).type for fact in facts]
    members["facts"] = msgspec.Raw(
        msgspec.json.encode([fact for fact, tag in zip(facts, tags, strict=True) if tag in _kinds])
    )
    return msgspec.json.encode(members), [_objection(tag) for tag in tags if tag not in _kinds]


def _of_unknown_kind(fact: Fact) -> bool:
    if isinstance(fact, RestoreReport):
        return fact.outcome is RestoreOutcome.UNKNOWN
    return isinstance(fact, Anomaly | HardwareEvent) and fact.kind in (AnomalyKind.UNKNOWN, HardwareKind.UNKNOWN)


def _objection(kind: str) -> str:
    return f"a fact of a kind that release {RELEASE} of the control plane does not know: {kind:.64}"
