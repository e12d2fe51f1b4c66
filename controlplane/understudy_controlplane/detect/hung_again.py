"""Nodes that gangs waited for again and again when they hung.

A single hang makes a node a suspect, and no more: what names it are a user's processes, and a program that hangs names
whatever node its rank is on. So hangs count against a node where no program is likely to be the cause of all, unless it
means to:

- each two are of different users, or of two attempts of one job;
- other ranks held up the gang: rank 0 of every program is on the first node of a partition, and one that saves or
  uploads hangs there for each user;
- by chance they would name one node less often than once in `CHANCE` times: two hangs of gangs of 50 nodes, three of
  8 nodes, four of 4. A deadlock that any rank may run into is an ordinary fault of a program;
- the user's gangs have waited for no other node within the week: hangs that follow a rank, or that come everywhere, are
  the program's. So one user's programs, whatever they do, take out one node a week.

Two users of one program count as two: their hangs have to name one node of many all the same. A node that passed its
test since the first hang is no less suspect: the test has not found what makes gangs hang. What was before a repair, or
before a person vouched for the node, counts no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from understudy_controlplane.fleet.evidence import Evidence, Json
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.hung import Hung
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot

CHANCE = 50
COUNTED_MAX = 8
"""Hangs of a node that are compared with each other: a user's gangs may hang hundreds of times."""


def hung_again(snapshot: Snapshot) -> Iterator[Finding]:
    named: dict[str, set[str]] = {}  # user → nodes that their gangs waited for
    by_node: dict[str, list[Hung]] = {}
    for one in snapshot.history.hung:
        named.setdefault(one.there.user, set()).add(one.there.node)
        by_node.setdefault(one.there.node, []).append(one)
    for name, hangs in by_node.items():
        node = snapshot.nodes.get(name)
        if node is None:
            continue
        counted = [one for one in hangs if len(named[one.there.user]) == 1 and _counts(snapshot, node, one)]
        shown = _independent(counted)
        if _beyond_chance(shown) and shown[-1].at > node.record.cleared_at:
            yield _finding(name, shown)


def _counts(snapshot: Snapshot, node: NodeView, hang: Hung) -> bool:
    """False: the node has been repaired since, replaced, or returned by a person."""
    cleared_at = node.record.cleared_at
    repaired = any(hang.at <= at < cleared_at for at in snapshot.history.quarantined_at.get(node.name, ()))
    since = max(node.record.vouched_at, snapshot.history.machine_since(node.name))
    return hang.at > since and not repaired


def _independent(hangs: Sequence[Hung]) -> list[Hung]:
    """The newest that no program causes together; oldest first."""
    found: list[Hung] = []
    for one in sorted(hangs, key=lambda one: one.at, reverse=True):
        if len(found) < COUNTED_MAX and all(_are_independent(one, later) for later in found):
            found.insert(0, one)
    return found


def _beyond_chance(hangs: Sequence[Hung]) -> bool:
    """The first hang is on some node; each other one is there by chance once in as many times as its gang has nodes."""
    sizes = sorted(one.there.gang_nodes for one in hangs)
    return math.prod(sizes[:-1]) >= CHANCE


def _are_independent(before: Hung, last: Hung) -> bool:
    of_other = before.there.user != last.there.user
    again = before.job == last.job and before.attempt < last.attempt
    return (of_other or again) and before.at <= last.at and {*before.there.ranks}.isdisjoint(last.there.ranks)


def _finding(node: str, hangs: Sequence[Hung]) -> Finding:
    texts = [f"job {one.job.job_id} of {one.there.user} for rank {one.there.ranks[0]}" for one in hangs]
    shown: list[Json] = [
        {"job": one.job.job_id, "user": one.there.user, "ranks": [*one.there.ranks], "at": one.at} for one in hangs
    ]
    return Finding(
        Signal.HUNG_AGAIN,
        "hang.again",
        node,
        hangs[-1].at,
        f"gangs that hung waited for it again: {', '.join(texts[:-1])}, and {texts[-1]}",
        Evidence({"hangs": shown}),
    )
