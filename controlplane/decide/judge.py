"""From findings to decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controlplane.config import Config
from controlplane.decide import guards, plans, spares
from controlplane.decide.table import FILL_POOL_ROW, Row, look_up
from controlplane.fleet.decision import Action, Because, Decision
from controlplane.fleet.finding import Finding, Signal
from controlplane.fleet.job import Job
from controlplane.fleet.node import NodeView
from controlplane.fleet.recovery import Plan, RecoveryKind
from controlplane.fleet.snapshot import Snapshot

GRAVITY = (
    Signal.DRAIN_LIFTED,
    Signal.DRAINED_BY_OTHERS,
    Signal.HARDWARE_FAULT,
    Signal.NODE_DEAD,
    Signal.STRAGGLER_CONFIRMED,
    Signal.STRAGGLER_SUSPECTED,
    Signal.SILENT,
    Signal.HEARD,
    Signal.CLEAN,
)
"""One state change a node and round: the first of these that has a row. What is left is found again next round."""


def decide(snapshot: Snapshot, findings: Sequence[Finding], config: Config) -> list[Decision]:
    """Decisions of this round, those that act with a plan. Repetitions are the caller's to leave out."""
    decisions: list[Decision] = []
    condemned: list[tuple[Row, Finding]] = []
    for node in snapshot.nodes.values():
        own = [finding for finding in findings if finding.node == node.name]
        decisions += _remarks(node, own)
        chosen = _gravest(node, own)
        if chosen is None:
            continue
        row, finding = chosen
        if row.action is Action.QUARANTINE:
            condemned.append((row, finding))
        else:
            decisions.append(_plain(row, finding))
    decisions += _quarantines(snapshot, condemned, config)
    decisions += _fill_pool(snapshot, config)
    return decisions


def _remarks(node: NodeView, findings: Iterable[Finding]) -> list[Decision]:
    """Findings that never change a state: each is worth one line."""
    remarks = [finding for finding in findings if finding.signal not in GRAVITY]
    rows = [(look_up(node.state, finding.signal), finding) for finding in remarks]
    return [_plain(row, finding) for row, finding in rows if row is not None]


def _gravest(node: NodeView, findings: Iterable[Finding]) -> tuple[Row, Finding] | None:
    entered = [
        (row, finding)
        for finding in findings
        if finding.signal in GRAVITY and (row := look_up(node.state, finding.signal)) is not None
    ]
    return min(entered, key=lambda pair: (GRAVITY.index(pair[1].signal), pair[1].at), default=None)


def _plain(row: Row, finding: Finding) -> Decision:
    return Decision(
        row=row.number,
        subject=finding.node,
        action=Action.NOTHING,
        because=Because.RULE,
        reason=f"{finding.summary}: {row.why}",
        to_state=row.to,
        finding=finding,
        evidence=finding.evidence,
    )


def _quarantines(snapshot: Snapshot, condemned: Sequence[tuple[Row, Finding]], config: Config) -> list[Decision]:
    """Each condemned node is asked for at the guards; those let through are planned job by job."""
    decisions: list[Decision] = []
    allowed: list[tuple[Row, Finding]] = []
    for row, finding in condemned:
        objection = guards.object_to_quarantine(snapshot, config, already=len(allowed))
        if objection is None:
            allowed.append((row, finding))
        else:
            decisions.append(_held_back(row, finding, objection))
    planned: dict[str, tuple[Plan, Because, str]] = {}
    spare_nodes = spares.free_spares(snapshot)
    bad = {finding.node for _, finding in allowed}
    for job in _gangs(snapshot, bad):
        seats = _seats(snapshot, job)
        own = [finding for _, finding in allowed if finding.node in seats]
        plan, because, words = _move(
            snapshot, job, own, seats, [name for name in spare_nodes if name not in bad], config
        )
        if plan is None:
            planned.update((finding.node, (_quarantine(snapshot, finding), because, words)) for finding in own)
            continue
        spare_nodes = [name for name in spare_nodes if name not in plan.spares]
        planned.update((finding.node, (plan, because, words)) for finding in own)
    for row, finding in allowed:
        plan, because, words = planned.get(finding.node) or (
            _quarantine(snapshot, finding),
            Because.RULE,
            "no gang of ours runs there",
        )
        decisions.append(_quarantine_decision(row, finding, plan, because, words))
    return decisions


def _gangs(snapshot: Snapshot, bad: set[str]) -> list[Job]:
    """Managed jobs that have, or were promised, a seat on one of these nodes."""
    return [job for job in snapshot.jobs.values() if job.managed and bad & set(_seats(snapshot, job))]


def _seats(snapshot: Snapshot, job: Job) -> tuple[str, ...]:
    recovery = snapshot.recovery_of(job.key)
    if recovery and recovery.plan.kind is RecoveryKind.POOL_SWAP:
        return recovery.plan.seats
    return job.slurm.nodes if job.running else ()


def _move(
    snapshot: Snapshot,
    job: Job,
    findings: Sequence[Finding],
    seats: Sequence[str],
    free: Sequence[str],
    config: Config,
) -> tuple[Plan | None, Because, str]:
    if not job.slurm.batch or not job.slurm.requeue:
        return None, Because.RULE, f"job {job.key.job_id} was not submitted as a batch job with --requeue"
    if sum(key == job.key for _, key in snapshot.swaps) >= config.jobs.swaps_per_hour_max:
        return (
            None,
            Because.JOB_BUDGET,
            f"job {job.key.job_id} was moved too often within the hour: left to a person",
        )
    if len(free) < len(findings):
        words = f"no spare for job {job.key.job_id}: {len(free)} free, {len(findings)} needed; left to a person"
        return None, Because.NO_SPARE, words
    chosen = free[: len(findings)]
    plan = plans.swap_plan(snapshot, job, findings, seats, chosen)
    return plan, Because.RULE, f"job {job.key.job_id} moves to {', '.join(chosen)}"


def _quarantine(snapshot: Snapshot, finding: Finding) -> Plan:
    return plans.quarantine_plan(finding, snapshot.nodes[finding.node].is_spare)


def _quarantine_decision(row: Row, finding: Finding, plan: Plan, because: Because, words: str) -> Decision:
    return Decision(
        row=row.number,
        subject=finding.node,
        action=Action.QUARANTINE,
        because=because,
        reason=f"{finding.summary}: {row.why}; {words}",
        to_state=row.to,
        finding=finding,
        evidence=finding.evidence,
        opens_incident=True,
        plan=plan,
    )


def _held_back(row: Row, finding: Finding, objection: guards.Objection) -> Decision:
    return Decision(
        row=row.number,
        subject=finding.node,
        action=Action.NOTHING,
        because=objection.because,
        reason=f"{finding.summary}: {row.why}; but nothing is done, because {objection.words}",
        finding=finding,
        evidence=finding.evidence,
        opens_incident=True,
    )


def _fill_pool(snapshot: Snapshot, config: Config) -> list[Decision]:
    if config.spares.count == 0 or any(r.plan.kind is RecoveryKind.FILL_POOL for r in snapshot.recoveries):
        return []
    wanted = spares.pool_wanted(snapshot, config.spares)
    if wanted is None:
        return []
    objection = guards.object_to_any(snapshot)
    names = ", ".join(wanted)
    return [
        Decision(
            row=FILL_POOL_ROW.number,
            subject="fleet",
            action=Action.NOTHING if objection else Action.FILL_POOL,
            because=objection.because if objection else Because.RULE,
            reason=f"spare pool should hold {names}: {FILL_POOL_ROW.why}"
            + (f"; but nothing is done, because {objection.words}" if objection else ""),
            evidence={"wanted": list(wanted)},
            plan=None if objection else plans.fill_pool_plan(wanted),
        )
    ]
