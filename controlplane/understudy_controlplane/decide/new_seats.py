"""Chooses nodes for a gang in the place of those that it leaves: the cheapest with which Slurm starts it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from understudy_controlplane.decide.decision_context import Round
from understudy_controlplane.decide.far_seats import nearer
from understudy_controlplane.decide.placement import NO_PLACEMENT, layout_of, place
from understudy_controlplane.decide.whole_blocks import Leaving, NoRoom, Whole, rule_of, startable, whole
from understudy_controlplane.fleet.job import Job

NONE_LEFT = Whole(NO_PLACEMENT, ())


def new_seats(current: Round, leaving: Leaving) -> Whole | NoRoom:
    """One for each node that is left, and for those that the gang gives up for whole NVLink blocks, or because it would
    hang there, or because they are far from its others. There are as many candidates as nodes are left.
    """
    snapshot, job, left = current.snapshot, leaving.job, leaving.left
    leaving = replace(leaving, candidates=startable(snapshot, leaving))
    rule = rule_of(snapshot, job, leaving.seats)
    found = whole(snapshot, rule, leaving, current.preference) if rule is not None else None
    if isinstance(found, Whole) or (found is not None and found.required):
        return found
    free = leaving.candidates
    if len(free) < len(left):
        words = f"Slurm starts it in no more blocks than it needs, where {len(free)} of {len(left)} nodes are free"
        return NoRoom(words, required=True)
    words = found.words if found is not None else ""
    given_up = next((some for some in _bad(current, leaving.kept) if len(free) >= len(left) + len(some)), ())
    if given_up:
        doubted = "" if current.doubted.isdisjoint(given_up) else ", or that a rule over its budget accuses"
        words = f"it gives up {', '.join(given_up)} as well, where the fabric has failed{doubted}"
    placement = place(snapshot.topology, layout_of(snapshot, job), [*left, *given_up], free, current.preference)
    placement = replace(placement, whole=words)
    if rule is not None or given_up:
        return Whole(placement, given_up)
    closer = nearer(current, job, placement, free)
    return Whole(closer.placement, closer.given_up)


def _bad(current: Round, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those where the fabric has failed, and before these the same with those that a rule over its budget accuses."""
    fabric = tuple(name for name in names if name in current.snapshot.without_fabric)
    return (*fabric, *(name for name in names if name in current.doubted and name not in fabric)), fabric


def new_seats_after_hang(current: Round, job: Job, left: Sequence[str]) -> Whole:
    """Seats for as many of these nodes as there are spares. A hang condemns no other node; given up are those where the
    gang would hang again, and those far from all others.
    """
    snapshot, seats = current.snapshot, job.slurm.nodes
    bad = _bad(current, [name for name in seats if name not in left])
    leaving = Leaving(job, seats, left, current.fitting(job, (*left, *bad[0], *seats)[0]))
    leaving = replace(leaving, candidates=startable(snapshot, leaving))
    free, rule = leaving.candidates, rule_of(snapshot, job, seats)
    for some in bad:
        found = new_seats(current, leaving) if some and len(free) >= len(left) + len(some) else None
        if isinstance(found, Whole) and set(some) <= set(found.given_up):
            return found
    for count in range(min(len(left), len(free)) if rule is not None else 0, 0, -1):
        assert rule is not None
        found = whole(snapshot, rule, replace(leaving, left=left[:count]), current.preference)
        if isinstance(found, Whole) and not found.given_up:
            return found
    if rule is not None and rule.required:
        return NONE_LEFT
    placement = place(snapshot.topology, layout_of(snapshot, job), left, free, current.preference)
    if rule is not None or len(placement.taken) < len(left):
        return Whole(placement, ())
    closer = nearer(current, job, placement, free)
    return Whole(closer.placement, closer.given_up)
