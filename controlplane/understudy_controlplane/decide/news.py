"""Which decisions of a round are new, and which repeat what is recorded already. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from understudy_controlplane.fleet.change import Change
from understudy_controlplane.fleet.decision import Decision, DecisionKey
from understudy_controlplane.fleet.finding import Signal


@dataclass(frozen=True, slots=True)
class Recorded:
    """What earlier rounds have recorded."""

    last_round: frozenset[DecisionKey]  # all decisions of the last round: they still hold
    once: frozenset[DecisionKey]  # decisions about single events, of every round

    @classmethod
    def from_journal(cls, keys: Iterable[DecisionKey]) -> Recorded:
        """For the first round of a process: it does not record again what the process before it has recorded."""
        known = frozenset(keys)
        return cls(known, known)

    def news(self, changes: Iterable[Change]) -> list[Change]:
        """A decision that acts or changes a record always is news, any other one when it is not recorded yet."""
        return [one for one in changes if _always_news(one) or not self._has(one.decision)]

    def after(self, decisions: Sequence[Decision], news: Iterable[Change]) -> Recorded:
        """`decisions`: all of the round. After a node was cleared, its events are news again."""
        cleared = {one.decision.subject for one in news if _clears(one.decision)}
        once = self.once
        if new := {one.key for one in decisions if one.once} - once:  # a week's keys are not copied every round
            once |= new
        if cleared:
            once = frozenset(key for key in once if key.subject not in cleared)
        return Recorded(frozenset(one.key for one in decisions), once)

    def _has(self, decision: Decision) -> bool:
        return decision.key in (self.once if decision.once else self.last_round)


def _always_news(change: Change) -> bool:
    decision = change.decision
    return change.changes_record or decision.plan is not None or decision.to_state is not None


def _clears(decision: Decision) -> bool:
    return decision.finding is not None and decision.finding.signal is Signal.DRAIN_LIFTED
