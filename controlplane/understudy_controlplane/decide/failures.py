"""Decisions that fail: nothing is done about their findings, a person is notified, and the others go on. Pure.

A decision that is left out counts for the budgets as if it had been taken. What belongs together, as all that is
decided about one gang, is left out together: without one of them another would be a different decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from understudy_controlplane.decide import guards
from understudy_controlplane.decide.approvals import await_approval, withheld
from understudy_controlplane.decide.decision_context import Entered, Round
from understudy_controlplane.decide.gang_moves import gangs_by_node
from understudy_controlplane.detect.failures import Raised, failure, raised
from understudy_controlplane.fleet.decision import Because, Decision
from understudy_controlplane.fleet.finding import DetectorDetail, Finding
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.snapshot import Snapshot

Found = TypeVar("Found")
Part = list[Entered]
"""Decided together, or not at all."""
CarryOut = Callable[[Round, Sequence[Entered]], list[Decision]]

LEFT_OUT = guards.Objection(Because.DECISION_FAILED, "this decision failed, or another one about the same gang")


class Failures:
    """Failures of one round."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._of_part: dict[str, DetectorDetail] = {}
        self._raised: dict[str, Raised] = {}

    @property
    def findings(self) -> list[Finding]:
        """One for each part that failed, with all nodes that it failed for."""
        return [failure(detail, self._raised[part], self._now) for part, detail in self._of_part.items()]

    def add(self, part: str, error: Exception, nodes: Collection[str] | None) -> None:
        """`nodes`: that it was about; None: the whole fleet."""
        before = self._of_part.get(part)
        known = () if before is None else before.nodes
        both = None if nodes is None or known is None else tuple(dict.fromkeys((*known, *nodes)))
        self._of_part[part] = DetectorDetail(detector=part, mass=False, nodes=both, is_decision=True)
        self._raised.setdefault(part, raised(error))

    def caught(
        self,
        part: str,
        nodes: Collection[str] | None,
        do: Callable[[], Iterable[Found]],
        otherwise: Iterable[Found] = (),
    ) -> list[Found]:
        """All that it yields, or where it fails `otherwise`."""
        try:
            return [*do()]
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            self.add(part, error, nodes)
            return [*otherwise]

    def carried_out(
        self, current: Round, carry_out: CarryOut, entered: Sequence[Entered], *, of_gangs: bool
    ) -> tuple[Round, list[Decision]]:
        """The round with what was left out, and the decisions. `of_gangs`: they are about gangs as well as nodes."""
        try:
            return current, carry_out(current, entered)
        except Exception as error:  # noqa: BLE001 - as above
            return self._parted(current, carry_out, entered, error, of_gangs=of_gangs)

    def _parted(
        self, current: Round, carry_out: CarryOut, entered: Sequence[Entered], first: Exception, *, of_gangs: bool
    ) -> tuple[Round, list[Decision]]:
        parts = [[one] for one in entered]
        if of_gangs:
            parts = self.caught("gangs", (), lambda: _by_gang(current.snapshot, entered), [[*entered]])
        alone = [(part, why) for part in parts if (why := _error(current, carry_out, part)) is not None]
        try:
            return self._without(current, carry_out, parts, alone or [(one, first) for one in parts])
        except Exception as error:  # noqa: BLE001 - as above
            return self._without(current, carry_out, parts, [(one, error) for one in parts])

    def _without(
        self, current: Round, carry_out: CarryOut, parts: Sequence[Part], failing: Sequence[tuple[Part, Exception]]
    ) -> tuple[Round, list[Decision]]:
        left_out = [one for part, _ in failing for one in part]
        current = replace(current, left_out=(*current.left_out, *left_out))
        rest = [one for part in parts for one in part if one not in left_out]
        decisions = carry_out(current, rest) if rest else []
        for part, error in failing:
            nodes = [name for one in part for name in one.finding.concerned if name]
            for rule in dict.fromkeys(one.finding.rule for one in part):
                self.add(rule, error, nodes)
        for _, error in failing:
            error.with_traceback(None)  # its frames hold the whole round
        return current, [*(guards.held_back(*one, LEFT_OUT) for one in left_out), *decisions]

    def approved(self, current: Round, decisions: Sequence[Decision]) -> list[Decision]:
        """Approved decisions. A plan waits if it is not known whether it is approved."""
        snapshot, config = current.snapshot, current.config
        try:
            return await_approval(snapshot, decisions, config)
        except Exception as error:  # noqa: BLE001 - as above
            nodes = [name for one in decisions if one.plan is not None for name in one.plan.nodes]
            self.add("approvals", error, nodes)
            words = "it is not known whether it is approved: that failed"
            return [withheld(one, Because.DECISION_FAILED, words) if one.plan else one for one in decisions]


def failed_decisions(decisions: Iterable[Decision]) -> list[Finding]:
    """What failed in this round."""
    shown = [one.finding for one in decisions if one.finding is not None]
    return [one for one in shown if isinstance(one.detail, DetectorDetail) and one.detail.is_decision]


def _error(current: Round, carry_out: CarryOut, part: Part) -> Exception | None:
    """Why this part fails though no other is looked at with it."""
    try:
        carry_out(current, part)
    except Exception as error:  # noqa: BLE001 - as above
        return error
    return None


def _by_gang(snapshot: Snapshot, entered: Sequence[Entered]) -> list[Part]:
    """What is about the same node, or about nodes of the same gang, is one part."""
    gangs = gangs_by_node(snapshot)
    parts: list[tuple[set[str | JobKey], Part]] = []
    for one in entered:
        keys: set[str | JobKey] = {name for name in one.finding.concerned if name}
        keys.update(key for name in one.finding.concerned for key in gangs.get(name, ()))
        keys.update((one.finding.job,) if one.finding.job is not None else ())
        joined = [part for part in parts if not keys.isdisjoint(part[0])]
        parts = [part for part in parts if part not in joined]
        parts.append((keys.union(*(known for known, _ in joined)), [*(e for _, part in joined for e in part), one]))
    return [part for _, part in parts]
