"""How many nodes one rule may take out within a day and a week: the bound of a rule that is wrong, and slow. Pure.

The hourly budget lets 12 nodes an hour pass for ever. Each real fault has a rule of its own: of a year of 400 servers
no kind of fault hit more than 8 within a day or 17 within a week; of 31 such years laid over each other, 20 and 52 of
12,500 servers. A rule that goes beyond its budget is wrong, or its nodes have a cause that a person has to know: the
person is paged at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from understudy_controlplane.detect.domain_silence import NODES_MIN, SHARE_MIN
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.decision import Quarantine
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.snapshot import Snapshot

A_DAY_SHARE = 0.01
"""Share of the fleet. Llama 3's failures, of all rules together, took 0.4 % of the nodes a day."""

A_DAY_MIN = 12
A_DAY_SHARE_MIN = 0.0025
"""However small the fleet, and however quiet the rule was before: half as much again as came (see above)."""

USUAL_FACTOR = 3
"""Times the most that the rule took out within a day of four weeks: a bad day is no proof against it."""

DAYS_A_WEEK = 2.5
"""Days with as many nodes as that in a week: a bad day is rarely followed by another one."""

AS_ONE_SECONDS = 3600.0
"""Most of a rack or switch that a rule takes out within this time counts as one: it failed as a whole."""


def day_limit(snapshot: Snapshot, rule: str) -> int:
    nodes, usual = len(snapshot.nodes), snapshot.history.usual_quarantines
    limit = int(A_DAY_SHARE * nodes)
    if usual is not None:
        limit = min(limit, USUAL_FACTOR * usual.get(rule, 0))
    return max(A_DAY_MIN, int(A_DAY_SHARE_MIN * nodes), limit)


def over_rule_budget(snapshot: Snapshot, rule: str, already: Collection[str]) -> str:
    """Why the rule takes out no further node; empty: it may. `already`: nodes whose quarantine was decided in this
    round. What was before a person reset the circuit breaker counts no more.
    """
    found = _taken_out(snapshot, rule)
    a_day = day_limit(snapshot, rule)
    if len(found) + len(already) < a_day:
        return ""
    found += [
        Quarantine(snapshot.now, name, rule)
        for name in already
        if snapshot.round.condemned_for.get(name, ("", rule))[1] == rule
    ]
    for days, limit in ((1, a_day), (7, int(DAYS_A_WEEK * a_day))):
        since = snapshot.ago(days * DAY_SECONDS)
        count = _causes(snapshot, [one for one in found if one.at > since])
        if count >= limit:
            span = "a day" if days == 1 else "a week"
            return (
                f"rule {rule} has taken out {counted(count, 'node')} within {span}, and a rule may take out {limit}"
                f"{_usual(snapshot, rule)}: it is wrong, or many nodes have one cause; once a person has found out "
                "which, `understudy breaker reset REASON` lets it continue, and `observe_rules` keeps it from acting"
            )
    return ""


def overrun_since(snapshot: Snapshot, rule: str) -> float | None:
    """When it took out the first node of the last day that counts, or the last one of the week; None: none, or a person
    has reset the circuit breaker since. The oldest leaves the count after a day, and the next one fills the budget
    again: that is no other overrun within a day.
    """
    since = snapshot.ago(DAY_SECONDS)
    taken = [one.at for one in _taken_out(snapshot, rule)]
    return min((at for at in taken if at > since), default=max(taken, default=None))


def _taken_out(snapshot: Snapshot, rule: str) -> list[Quarantine]:
    return [
        one for one in snapshot.history.quarantines if one.rule == rule and one.at > snapshot.operator.breaker_reset_at
    ]


def _usual(snapshot: Snapshot, rule: str) -> str:
    if snapshot.history.usual_quarantines is None:
        return ""
    most = snapshot.history.usual_quarantines.get(rule, 0)
    return f" (here it has never taken out more than {most} a day)" if most else " (here it never did before)"


def _causes(snapshot: Snapshot, quarantines: Sequence[Quarantine]) -> int:
    """How many causes they have at most: a domain that was taken out as a whole is one. So is the one that has failed,
    of which only the nodes that a gang has to leave are taken out.
    """
    failed = snapshot.failed_domain
    of_failed = snapshot.failed_domain_of if failed is not None else {}
    left = [one for one in quarantines if one.node not in of_failed or (failed and one.at < failed.opened_at)]
    count = int(len(left) < len(quarantines))
    together = snapshot.topology.failing_together
    domains = {one.label for found in left for one in snapshot.topology.of_node.get(found.node, ())}
    # The largest first: most of a cooling loop may be one whole rack and half of another.
    for label in sorted(domains & together.keys(), key=lambda label: (-len(together[label]), label)):
        inside = set(together[label])
        there = [one for one in left if one.node in inside] if len(inside) < len(snapshot.nodes) else []
        while there:
            at_once = [one for one in there if one.at - there[0].at <= AS_ONE_SECONDS]
            there = there[len(at_once) :]
            if len(at_once) >= max(NODES_MIN, SHARE_MIN * len(inside)):
                count += 1
                left = [one for one in left if one not in at_once]
    return count + len(left)
