"""Idle spares are validated again in turn: a spare that nothing has used for weeks may have failed unseen. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide import guards, spares
from understudy_controlplane.fleet.durations import DAY_SECONDS, HOUR_SECONDS
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.node import NodeState, ValidationOrigin
from understudy_controlplane.fleet.recovery import RecoveryKind
from understudy_controlplane.fleet.snapshot import Snapshot

LEFT_MIN = 1
"""Spares that stay free for gangs meanwhile."""


def checks_due(snapshot: Snapshot, config: Config) -> Iterator[Finding]:
    """One spare at a time, the one whose validation is longest ago, while nothing else is under way."""
    policy = config.validation
    if not policy.enabled or not policy.spare_check_hours or snapshot.mode is Mode.OBSERVE or snapshot.recoveries:
        return
    if any(node.record.validation_origin is ValidationOrigin.SPARE_CHECK for node in snapshot.notable):
        return
    free = [name for name in spares.free_spares(snapshot, config) if _is_well(snapshot, name)]
    if len(free) <= LEFT_MIN or not _day_has_time(snapshot, policy.spare_check_minutes_per_day * 60.0):
        return
    last = dict.fromkeys(free, 0.0)
    for one in snapshot.history.attempts:
        if one.kind is RecoveryKind.VALIDATE and one.node in last:
            last[one.node] = max(last[one.node], one.ended_at or one.at)
    long_ago = snapshot.ago(policy.spare_check_hours * HOUR_SECONDS)
    for name in sorted(free, key=lambda one: (last[one], spares.natural(one))):
        if last[name] <= long_ago and guards.object_to_test(snapshot, name, config) is None:
            words = f"an idle spare that was not validated for {policy.spare_check_hours:g} hours"
            yield Finding(Signal.SPARE_CHECK_DUE, "validation.spare", name, snapshot.now, words)
            return


def _is_well(snapshot: Snapshot, name: str) -> bool:
    node = snapshot.nodes[name]
    return node.state is NodeState.IN_SERVICE and name not in snapshot.operator.requests


def _day_has_time(snapshot: Snapshot, seconds: float) -> bool:
    """True if the day has room for one that takes as long as the longest of the last week. All validations of spares
    count.
    """
    took = {
        (one.node, one.at): (one.ended_at or snapshot.now) - one.at
        for one in snapshot.history.attempts
        if one.kind is RecoveryKind.VALIDATE and (node := snapshot.nodes.get(one.node)) is not None and node.is_spare
    }
    spent = sum(lasted for (_, at), lasted in took.items() if at > snapshot.ago(DAY_SECONDS))
    return spent + max(took.values(), default=0.0) <= seconds
