"""Requests of operators that hold now, and what follows when the time of one is over. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from understudy_controlplane.decide import drill
from understudy_controlplane.fleet.drill import Drill
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import (
    MODES,
    NODE_VERBS,
    NOTES,
    SPARE_CHOICES,
    SWITCHES,
    Acting,
    Breaker,
    Ending,
    InForce,
    JobPause,
    ModeLimit,
    MoveRequest,
    Pause,
    Request,
    SparesSize,
    StoredRequests,
    Verb,
    job_of_subject,
    recovery_of,
)
from understudy_controlplane.fleet.saving import SaveRequest
from understudy_controlplane.fleet.snapshot import Snapshot

REQUEST_AGE_MAX_SECONDS = 8 * DAY_SECONDS
"""Longer than any request waits, so that a decision reports one that has waited too long (`decide/repair_cycle.py`)."""

KNOWN_FAULTY = (NodeState.QUARANTINED, NodeState.REPAIRING, NodeState.MANUAL_REPAIR)
"""The end of a hold proves no such node good: a person releases it."""


def in_force(stored: StoredRequests, now: float) -> InForce:
    def waiting(*verbs: Verb) -> list[Request]:
        return [one for one in stored.waiting if one.verb in verbs]

    of_nodes = (one for one in waiting(*NODE_VERBS) if one.at >= now - REQUEST_AGE_MAX_SECONDS)
    holds = {one.request.subject: one for one in stored.timed_holds if one.request.is_over(now)}
    return InForce(
        pause=_pause(_last(stored, SWITCHES), now),
        mode_limit=_mode_limit(_last(stored, MODES), now),
        acting=_acting(_last(stored, NOTES)),
        breaker=_breaker(stored),
        spares_size=_spares_size(_last(stored, (Verb.SPARES_SIZE,))),
        spare_choices=_spare_choices(stored, now),
        nodes={one.subject: one for one in of_nodes},
        cancels={recovery_of(one.subject): one for one in waiting(Verb.CANCEL)},
        job_pauses=_job_pauses(waiting(Verb.PAUSE_JOB), now),
        moves={job_of_subject(one.subject): _move(one) for one in waiting(Verb.MOVE_JOB)},
        saves={
            job_of_subject(one.subject): SaveRequest(one.id, one.reason, one.by, one.at)
            for one in waiting(Verb.SAVE_JOB)
        },
        drills={
            one.subject: Drill(one.id, one.subject, one.reason, one.by, one.at, one.until or one.at)
            for one in waiting(Verb.DRILL)
        },
        ended_holds=holds,
    )


def _last(stored: StoredRequests, verbs: Iterable[Verb]) -> Request | None:
    return next((one for one in reversed(stored.lasting) if one.verb in verbs), None)


def _pause(last: Request | None, now: float) -> Pause:
    if last is None or last.verb is Verb.RESUME or last.is_over(now):
        return Pause()
    return Pause(last.words, last.verb is Verb.PAUSE_NOW, last.until)


def _mode_limit(last: Request | None, now: float) -> ModeLimit:
    if last is None or last.verb is Verb.MODE_CONFIGURED or last.is_over(now):
        return ModeLimit()
    return ModeLimit(MODES[last.verb], last.words, last.until)


def _acting(last: Request | None) -> Acting | None:
    if last is None:
        return None
    known = {int(incident): frozenset(rules) for incident, rules in last.detail.items()}
    return Acting(last.at if last.verb is Verb.ACT_BEGAN else None, known)


def _breaker(stored: StoredRequests) -> Breaker:
    """A decision opens it, and a person closes it."""
    reset = _last(stored, (Verb.RESET_BREAKER,))
    reset_at = reset.at if reset is not None else 0.0
    is_open = stored.breaker_opened_at is not None and stored.breaker_opened_at > reset_at
    return Breaker(
        stored.breaker_opened if is_open else "", reset_at, holds_all=is_open and stored.breaker_for_other_leader
    )


def _spares_size(last: Request | None) -> SparesSize:
    if last is None or last.detail["size"] is None:
        return SparesSize()
    return SparesSize(last.detail["size"], last.words)


def _spare_choices(stored: StoredRequests, now: float) -> dict[str, bool]:
    newest = {one.subject: one for one in stored.lasting if one.verb in SPARE_CHOICES}
    chosen = ((name, SPARE_CHOICES[one.verb]) for name, one in newest.items() if not one.is_over(now))
    return {name: choice for name, choice in chosen if choice is not None}


def _job_pauses(asked: Iterable[Request], now: float) -> dict[int, JobPause]:
    return {
        job_of_subject(one.subject): JobPause(one.reason, one.by, one.at, one.until, one.detail["submit_at"])
        for one in asked
        if not one.is_over(now)
    }


def _move(asked: Request) -> MoveRequest:
    off, submit_at, at_checkpoint = (asked.detail[name] for name in ("off", "submit_at", "at_checkpoint"))
    return MoveRequest(asked.id, tuple(off), asked.reason, asked.by, asked.at, submit_at, at_checkpoint)


def endings(snapshot: Snapshot) -> list[Ending]:
    """A release that follows is a request like any other, with its guards."""
    found = list(_ended_holds(snapshot))
    for one in snapshot.operator.drills.values():
        end = drill.end_of(snapshot, one)
        if end is not None:
            release = f"the drill that {one.by} asked for has ended: {one.reason}" if end.release else ""
            found.append(Ending(one.request, one.node, Verb.DRILL, release, end.why))
    return found


def _ended_holds(snapshot: Snapshot) -> Iterable[Ending]:
    for name, hold in snapshot.operator.ended_holds.items():
        asked = hold.request
        if name in snapshot.nodes and hold.taken_from not in KNOWN_FAULTY:
            why = f"the hold that {asked.by} asked for has ended: {asked.reason}"
            yield Ending(asked.id, name, Verb.HOLD, why, "the node returns")
