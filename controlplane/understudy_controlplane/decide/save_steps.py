"""Chooses the gangs that are to save, before which step, and how often from there on. Pure.

The step lies so far ahead that the order reaches all ranks in time, three times over: a rank that it reaches too late
would not save with the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from understudy_controlplane.config import Mode, SignalEffect, Signals
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.operator import MoveRequest
from understudy_controlplane.fleet.saving import SaveCause, SaveCost, SaveRequest, SavingGang, WantedSave
from understudy_controlplane.fleet.site_signal import SiteSignal
from understudy_controlplane.fleet.snapshot import Snapshot

OTHER_INTERVAL_SHARE = 0.25
"""An interval that differs by less costs next to nothing: the optimum is flat."""

OTHER_INTERVAL_STEPS = 0.75
"""Nor is one as good as the other in turn, where a measurement varies: half a step is lost in rounding."""

TIME_LIMIT_SAVES = 2.0
"""How many times the time that a checkpoint takes is left before the time limit, besides the following."""

TIME_LIMIT_SECONDS = 60.0
STEPS_AHEAD_MAX = 100_000_000

WARNED_SECONDS_MAX = 1800.0
"""A warning that is older leads to no save any more: the control plane or the gang may have started after it."""

WARNED_PAUSE_SECONDS = 300.0
WARNED_PAUSE_SAVES = 10.0
"""After one save a warning leads to no other one for this time, or this many times what a checkpoint takes: signals
that come without end are no reason to save without end.
"""


def wanted(
    snapshot: Snapshot,
    gangs: Mapping[int, SavingGang],
    requests: Mapping[int, SaveRequest],
    costs: Mapping[JobKey, SaveCost],
    policy: Signals,
) -> Iterator[WantedSave]:
    """Yields at most one save of each gang. `gangs` and `requests`: by job id."""
    for key, job in snapshot.jobs.items():
        gang = gangs.get(key.job_id)
        if gang is None or not job.running or not can_be_ordered(gang, job, snapshot.now):
            continue
        request = requests.get(key.job_id) if job.managed else None
        found = _of_request(snapshot, job, gang, request) or _of_split(snapshot, job, gang)
        rests = (
            not job.managed
            or snapshot.mode_of((), key) is Mode.OBSERVE
            or snapshot.operator.paused
            or key in snapshot.operator.paused_jobs
        )
        if found is None and not rests:
            found = _of_gang(snapshot, job, gang, costs.get(key), policy)
        if found is not None:
            yield found


def can_be_ordered(gang: SavingGang, job: Job, now: float) -> bool:
    return (
        gang.attempt.restart_count == job.slurm.restart_count
        and gang.is_whole
        and gang.settled
        and gang.step_seconds is not None
        and now >= gang.not_before
    )


def step_ahead(gang: SavingGang, now: float) -> int:
    """The first step that no rank reaches before the order has reached all."""
    assert gang.step_seconds is not None
    seconds = gang.margin_seconds + max(0.0, now - gang.asked_at)
    return gang.asked + 1 + min(math.ceil(seconds / gang.step_seconds), STEPS_AHEAD_MAX)


def best_every(gang: SavingGang, cost: SaveCost) -> int | None:
    """Steps of the best interval, at least one, where it is another one than now; None: none is known to be better."""
    return _other(gang, cost.best_seconds, gang.every, gang.own_every)


def best_memory_every(gang: SavingGang, cost: SaveCost) -> int | None:
    """The same of saves in memory; None also where the training does not ask when to make them."""
    if not gang.asks_memory:
        return None
    return _other(gang, cost.best_memory_seconds, gang.memory_every, gang.own_memory_every)


def _other(gang: SavingGang, seconds: float | None, now: int, own: int) -> int | None:
    """No longer one than the training's own, which stays due."""
    if seconds is None or gang.step_seconds is None:
        return None
    steps = max(1.0, seconds / gang.step_seconds)
    if own and steps >= own:
        return None
    return round(steps) if abs(steps - now) > max(OTHER_INTERVAL_SHARE * now, OTHER_INTERVAL_STEPS) else None


def _of_request(snapshot: Snapshot, job: Job, gang: SavingGang, request: SaveRequest | None) -> WantedSave | None:
    if request is None:
        return None
    step, why = step_ahead(gang, snapshot.now), f"{request.by}: {request.reason}"
    memory_every = gang.ordered_memory_every
    return WantedSave(job.key, step, gang.ordered_every, SaveCause.REQUEST, why, request.id, memory_every)


def _of_split(snapshot: Snapshot, job: Job, gang: SavingGang) -> WantedSave | None:
    """An order has split the ranks: none of their checkpoints is complete any more. Neither a pause leaves that, nor an
    owner who opts out.
    """
    if not gang.split:
        return None
    why = "a rank did not learn in time that an order to save counts, and does not save with the others"
    order, step = gang.order, step_ahead(gang, snapshot.now)
    every = order.every if order is not None else gang.ordered_every
    memory_every = order.memory_every if order is not None else gang.ordered_memory_every
    return WantedSave(job.key, step, every, SaveCause.SPLIT, why, memory_every=memory_every)


def _of_gang(
    snapshot: Snapshot, job: Job, gang: SavingGang, cost: SaveCost | None, policy: Signals
) -> WantedSave | None:
    now, key = snapshot.now, job.key
    step, every, memory_every = step_ahead(gang, now), gang.ordered_every, gang.ordered_memory_every
    move = snapshot.operator.moves.get(key)
    if move is not None and _waits(move) and gang.saves_at <= move.at:
        why = f"its gang leaves {', '.join(move.off)} at a checkpoint: {move.reason}"
        return WantedSave(key, step, every, SaveCause.MOVE, why, memory_every=memory_every)
    left = seconds_left(job, snapshot.slurm_now)
    lead = _lead_seconds(gang, cost)
    if left is not None and 0 < left < lead and gang.saves_at < now + left - lead:
        why = f"Slurm ends it in {left:.0f} s"
        return WantedSave(key, step, every, SaveCause.TIME_LIMIT, why, memory_every=memory_every)
    warning = _warning(snapshot, job, policy)
    if warning is not None and gang.saves_at < min(warning.at, now - _pause_seconds(cost)):
        return WantedSave(key, step, every, SaveCause.WARNING, warning.words, memory_every=memory_every)
    return _interval(key, step, gang, cost) if cost is not None and snapshot.mode_of((), key) is Mode.ACT else None


def _interval(key: JobKey, step: int, gang: SavingGang, cost: SaveCost) -> WantedSave | None:
    """Another one, of files or of saves in memory."""
    best, in_memory = best_every(gang, cost), best_memory_every(gang, cost)
    why = "; ".join(
        f"every {counted(new, 'step')}{where} from now on instead of "
        + (counted(before, "step") if before else "no interval")
        for new, before, where in ((best, gang.every, ""), (in_memory, gang.memory_every, " in memory"))
        if new is not None
    )
    every, memory_every = best or gang.ordered_every, in_memory or gang.ordered_memory_every
    return WantedSave(key, step, every, SaveCause.INTERVAL, why, memory_every=memory_every) if why else None


def seconds_left(job: Job, slurm_now: float) -> float | None:
    """Until Slurm ends the job: at its time limit, which a suspension puts off, or after a preemption's grace time.
    None: not known.
    """
    limit, began = job.slurm.time_limit_minutes, job.slurm.start_at
    if job.slurm.end_at:
        return job.slurm.end_at - slurm_now
    return None if limit is None or not began else began + limit * 60.0 - slurm_now


def _warning(snapshot: Snapshot, job: Job, policy: Signals) -> SiteSignal | None:
    """The newest signal that threatens a node of the job, and is of a kind that warns. A person who has resumed the
    node since answers for it.
    """
    threats = [
        one
        for name in job.slurm.nodes
        for one in snapshot.threats_to.get(name, ())
        if one.at > max(snapshot.now - WARNED_SECONDS_MAX, snapshot.nodes[name].record.cleared_at)
        and policy.effect_of(one.kind).includes(SignalEffect.WARN)
    ]
    return max(threats, key=lambda one: one.at, default=None)


def _pause_seconds(cost: SaveCost | None) -> float:
    return max(WARNED_PAUSE_SECONDS, WARNED_PAUSE_SAVES * _takes_seconds(cost))


def _takes_seconds(cost: SaveCost | None) -> float:
    return max(cost.write_seconds, cost.seconds or 0.0) if cost is not None else 0.0


def _lead_seconds(gang: SavingGang, cost: SaveCost | None) -> float:
    return (
        TIME_LIMIT_SECONDS
        + TIME_LIMIT_SAVES * _takes_seconds(cost)
        + gang.margin_seconds
        + 2 * (gang.step_seconds or 0.0)
    )


def _waits(move: MoveRequest) -> bool:
    return move.at_checkpoint and (move.checkpoint_at is None or move.checkpoint_at <= move.at)
