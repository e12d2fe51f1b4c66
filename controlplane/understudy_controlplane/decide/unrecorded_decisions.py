"""Separates the new decisions of a round from those that repeat what is recorded. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from understudy_controlplane.decide.spares import natural
from understudy_controlplane.detect.host import AGENT_PROBLEMS
from understudy_controlplane.detect.silence import HEARD, NEVER_HEARD
from understudy_controlplane.fleet.change import Change
from understudy_controlplane.fleet.decision import Decision, DecisionKey
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Signal

NOTED_TOGETHER_MIN = 20
NAMED_MAX = 4

PERIOD_SECONDS = 8 * 24 * 3600.0
"""Longer than an event leads to findings: a decision that no round of two periods has made comes no more."""
NOTED_TOGETHER = frozenset({NEVER_HEARD, HEARD, AGENT_PROBLEMS})


@dataclass(frozen=True, slots=True)
class Recorded:
    """What earlier rounds have recorded."""

    last_round: frozenset[DecisionKey]  # all decisions of the last round: they still hold
    once: frozenset[DecisionKey]  # decisions about single events, of the rounds of this period...
    once_before: frozenset[DecisionKey] = frozenset()  # ... and of the one before
    period_began_at: float = 0.0

    @classmethod
    def from_journal(cls, keys: Iterable[DecisionKey]) -> Recorded:
        """Builds the memory for the first round of a process: it does not record again what the process before it has
        recorded.
        """
        known = frozenset(keys)
        return cls(known, known)

    def news(self, changes: Iterable[Change]) -> list[Change]:
        """A decision that acts or changes a record always is news, any other one when it is not recorded yet."""
        return [one for one in changes if _always_news(one) or not self._has(one.decision)]

    def after(
        self, decisions: Sequence[Decision], news: Iterable[Change], now: float, *, whole: bool = True
    ) -> Recorded:
        """`decisions`: all of the round. After a node was cleared, its events are news again. Where a detector failed
        (not `whole`), what the rounds before have recorded still holds.
        """
        cleared = {one.decision.subject for one in news if _clears(one.decision)}
        once, before, began_at = self.once, self.once_before, self.period_began_at
        if now - began_at > PERIOD_SECONDS:
            once, before, began_at = frozenset(), once, now
        if new := {one.key for one in decisions if one.once} - once:  # a week's keys are not copied every round
            once |= new
        if cleared:
            once, before = (frozenset(key for key in keys if key.subject not in cleared) for keys in (once, before))
        last_round = frozenset(one.key for one in decisions)
        return Recorded(last_round if whole else last_round | self.last_round, once, before, began_at)

    def _has(self, decision: Decision) -> bool:
        if decision.once:
            return decision.key in self.once or decision.key in self.once_before
        return decision.key in self.last_round


def noted_together(news: Sequence[Change]) -> list[Change]:
    """While agents are installed or upgraded, thousands of nodes change alike in one round: they get one decision for
    the fleet, with their names.
    """
    alike: dict[tuple[int, str], list[Change]] = {}
    for change in news:
        finding = change.decision.finding
        if finding is not None and finding.rule in NOTED_TOGETHER:
            alike.setdefault((change.decision.row, finding.rule), []).append(change)
    many = [group for group in alike.values() if len(group) >= NOTED_TOGETHER_MIN]
    together = {change.decision.subject for group in many for change in group}
    single = [replace(one, noted=False) if one.decision.subject in together else one for one in news]
    return [*single, *(Change(_for_the_fleet(group)) for group in many)]


def _for_the_fleet(group: Sequence[Change]) -> Decision:
    names = sorted((one.decision.subject for one in group), key=natural)
    first = group[0].decision
    return Decision(
        row=first.row,
        subject="fleet",
        action=first.action,
        because=first.because,
        reason=f"{len(names)} nodes ({', '.join(names[:NAMED_MAX])}, …): {first.reason}",
        evidence=Evidence({"nodes": list(names)}),
    )


def _always_news(change: Change) -> bool:
    decision = change.decision
    planned = decision.plan or decision.proposed
    return change.changes_record or planned is not None or decision.to_state is not None


def _clears(decision: Decision) -> bool:
    return decision.finding is not None and decision.finding.signal is Signal.DRAIN_LIFTED
