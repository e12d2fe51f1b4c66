"""Launchers that did not carry out an order. Nodes blamed by launchers and hangs: two users that blame the same one,
and how long a suspicion lasts.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, LaunchDetail, Signal
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import AllocationSwapPlan
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.suspicion import SuspicionCause
from understudy_wire.launcher import LauncherPhase

USERS_MIN = 2
"""One user's program may have its own reasons for failing first on the same node, and is submitted repeatedly; and a
launcher is a user's process.
"""

SUSPECT_SECONDS = 3600.0

FORGOTTEN = frozenset({SuspicionCause.HANG, SuspicionCause.BLACK_HOLE})
"""Suspicions that end after SUSPECT_SECONDS: nothing that a node shows could refute them."""


def launches(snapshot: Snapshot) -> Iterator[Finding]:
    yield from _disobedient(snapshot)
    yield from _unwell(snapshot)
    yield from _restarted(snapshot)
    yield from _on_newcomers(snapshot)
    blamed_or_suspect = {*snapshot.history.black_holes, *(node.name for node in snapshot.set_apart)}
    for node in (snapshot.nodes[name] for name in snapshot.nodes if name in blamed_or_suspect):
        name = node.name
        blaming = [one for one in snapshot.history.black_holes.get(name, ()) if one.at > node.record.cleared_at]
        blaming = [one for one in blaming if snapshot.now - one.at < SUSPECT_SECONDS]
        blamed = len({one.user_id for one in blaming}) >= USERS_MIN
        if blamed:
            jobs = sorted({one.job.job_id for one in blaming})
            yield Finding(
                Signal.BLACK_HOLE,
                "launches.black_hole",
                name,
                max(one.at for one in blaming),
                f"the launchers of jobs {', '.join(map(str, jobs))}, of several users, replaced it: their ranks failed "
                "there first, twice running, while others were well",
                Evidence({"jobs": [*jobs]}),
            )
        for suspicion in node.record.suspicions if node.state is NodeState.SUSPECT else ():
            found_again = blamed and suspicion.cause is SuspicionCause.BLACK_HOLE
            if suspicion.cause not in FORGOTTEN or found_again or node.record.evidence_cleared(suspicion):
                continue
            if snapshot.now - suspicion.since > SUSPECT_SECONDS:
                words = f"nothing more was found against it in {SUSPECT_SECONDS / 60:.0f} minutes"
                yield Finding(Signal.CLEAN, "launches.clean", name, snapshot.now, words, suspicion=suspicion.cause)


def _unwell(snapshot: Snapshot) -> Iterator[Finding]:
    """Recorded, and no more: a launcher is a user's process, and so is the self-check that it runs."""
    for key, gang in snapshot.progress.gangs.items():
        for node in snapshot.jobs[key].slurm.nodes if gang.state.unwell else ():
            why = gang.state.unwell.get(node, "")
            if why and node in snapshot.nodes:
                words = f"its self-check before the first launch of job {key.job_id} failed: {why}"
                advice = f"`understudy node validate {node} REASON` tests it"
                evidence = Evidence({"job": key.job_id, "why": why})
                yield Finding(Signal.RECORDED, "launches.selfcheck", node, snapshot.now, f"{words}; {advice}", evidence)


def _disobedient(snapshot: Snapshot) -> Iterator[Finding]:
    """Launchers that did not carry out an order of the control plane, until their job is requeued."""
    for key, gang in snapshot.progress.gangs.items():
        if (key, snapshot.jobs[key].slurm.restart_count) in snapshot.history.disobeyed:
            words = f"the launcher of job {key.job_id} did not carry out an order of the control plane"
            yield Finding(Signal.LAUNCHER_FAILED, "launches.order", "", snapshot.now, words, job=key, nodes=gang.seats)


def _on_newcomers(snapshot: Snapshot) -> Iterator[Finding]:
    """Gangs whose launchers wait for another node, because the program failed on one where it never ran before, and ran
    on the others. A launcher is a user's process: what it asks for concerns its own gang alone.
    """
    for key, end in snapshot.progress.broken_off.items():
        gang, job = snapshot.progress.gangs.get(key), snapshot.jobs.get(key)
        if gang is None or job is None or end.node not in gang.seats or not end.on_newcomer:
            continue
        waits = gang.state.phase is LauncherPhase.WAITING and gang.attempt.launch == end.launch
        if not waits or _is_given_up(snapshot, job, end.launch):
            continue
        yield Finding(
            Signal.NEWCOMER_FAILED,
            "launches.newcomer",
            end.node,
            end.at,
            f"launch {end.launch} of job {key.job_id} failed on {end.node}, as its launcher saw it: {end.reason}; "
            f"`understudy job evidence {key.job_id}` shows the line of the program",
            Evidence({"job": key.job_id, "launch": end.launch, "node": end.node}),
            job=key,
            nodes=gang.seats,
            detail=LaunchDetail(restart_count=job.slurm.restart_count, launch=end.launch),
        )


def _is_given_up(snapshot: Snapshot, job: Job, launch: int) -> bool:
    """True if a recovery under way has given it up. The one that brought the gang here gave up an attempt before."""
    recovery = snapshot.recovery_of(job.key)
    plan = recovery.swap if recovery is not None else None
    if plan is None or plan.restart_count < job.slurm.restart_count:
        return False
    return not isinstance(plan, AllocationSwapPlan) or plan.launch >= launch


def _restarted(snapshot: Snapshot) -> Iterator[Finding]:
    """Gangs that crashed or hung, and whose launchers have begun another launch by themselves. What a recovery deals
    with, or happened before one had ended, is no finding of its own.
    """
    for key, end in snapshot.progress.broken_off.items():
        gang, job = snapshot.progress.gangs.get(key), snapshot.jobs.get(key)
        if gang is None or job is None or gang.attempt.launch <= end.launch:
            continue
        if gang.state.phase is not LauncherPhase.RUNNING:
            continue
        given_up, until = snapshot.history.dealt_with.get((key, job.slurm.restart_count), (-1, 0.0))
        if given_up >= end.launch or until >= end.at:
            continue
        yield Finding(
            Signal.GANG_RESTARTED,
            "launches.hang" if end.hung else "launches.crash",
            "",
            end.at,
            f"launch {end.launch} of job {key.job_id} {'hung' if end.hung else 'crashed'}, as its launcher saw it: "
            f"{end.reason}",
            Evidence({"job": key.job_id, "launch": end.launch, "node": end.node}),
            job=key,
            nodes=gang.seats,
            detail=LaunchDetail(restart_count=job.slurm.restart_count, launch=end.launch),
        )
