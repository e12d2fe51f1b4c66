"""What each rule would have done while it only observed, and how often people agreed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from understudy_controlplane.fleet.decision import HeldDecision
from understudy_controlplane.fleet.durations import DAY_SECONDS

ONE_CASE_SECONDS = DAY_SECONDS
"""Decisions of a rule about the same subject within this time are about one fault."""

FOLLOWED_SECONDS = DAY_SECONDS
"""An administrator who takes the node out of service within this time agrees."""

READY_ANSWERS_MIN = 3
READY_PRECISION_MIN = 0.95


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """`precision`: how many of the answered cases people agreed with; None: none is answered."""

    rule: str
    cases: int
    agreed: int
    disagreed: int
    precision: float | None
    ready: bool


def records(
    held: Iterable[HeldDecision], verdicts: Mapping[int, bool], drained_at: Mapping[str, Sequence[float]]
) -> list[RuleRecord]:
    """`held`: oldest first. `verdicts`: decision → whether an operator agreed: counts before what administrators did.
    `drained_at`: when they took nodes out of service.
    """
    cases: dict[str, dict[str, list[list[HeldDecision]]]] = {}
    for one in held:
        of_subject = cases.setdefault(one.rule, {}).setdefault(one.subject, [])
        if of_subject and one.at - of_subject[-1][-1].at <= ONE_CASE_SECONDS:
            of_subject[-1].append(one)
        else:
            of_subject.append([one])
    return [
        _record(rule, [case for of_subject in by_subject.values() for case in of_subject], verdicts, drained_at)
        for rule, by_subject in sorted(cases.items())
    ]


def _record(
    rule: str,
    cases: Sequence[Sequence[HeldDecision]],
    verdicts: Mapping[int, bool],
    drained_at: Mapping[str, Sequence[float]],
) -> RuleRecord:
    answers = [_answer(case, verdicts, drained_at) for case in cases]
    agreed, disagreed = answers.count(True), answers.count(False)
    answered = agreed + disagreed
    precision = agreed / answered if answered else None
    ready = precision is not None and answered >= READY_ANSWERS_MIN and precision >= READY_PRECISION_MIN
    return RuleRecord(rule, len(cases), agreed, disagreed, precision, ready)


def _answer(
    case: Sequence[HeldDecision], verdicts: Mapping[int, bool], drained_at: Mapping[str, Sequence[float]]
) -> bool | None:
    spoken = [verdicts[one.id] for one in case if one.id in verdicts] or [
        one.approved for one in case if one.approved is not None
    ]
    if spoken:
        return spoken[-1]
    first, last = case[0], case[-1]
    followed = any(first.at <= at <= last.at + FOLLOWED_SECONDS for at in drained_at.get(first.subject, ()))
    return True if followed else None
