"""From findings to decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.config import Config
from controlplane.decide import guards, plans, spares
from controlplane.decide.releases import releases
from controlplane.decide.table import FILL_POOL_ROW, Row, look_up
from controlplane.fleet.decision import Action, Because, Decision
from controlplane.fleet.finding import Finding, Signal
from controlplane.fleet.job import Job
from controlplane.fleet.node import NodeView
from controlplane.fleet.recovery import Plan, Recovery, RecoveryKind, StepName, StepStatus
from controlplane.fleet.slurm import POOL_USER
from controlplane.fleet.snapshot import Snapshot

GRAVITY = (
    Signal.DRAIN_LIFTED,
    Signal.DRAINED_FOR_US,
    Signal.DRAINED_BY_OTHERS,
    Signal.HARDWARE_FAULT,
    Signal.NODE_DEAD,
    Signal.STRAGGLER_CONFIRMED,
    Signal.UNDRAINED,
    Signal.GANG_STRANDED,
    Signal.SEAT_LOST,
    Signal.STRAGGLER_SUSPECTED,
    Signal.SILENT,
    Signal.HEARD,
    Signal.CLEAN,
)
"""One state change a node and round: the first of these that has a row. What is left is found again next round."""


Condemned = tuple[Row, Finding]


@dataclass(frozen=True, slots=True)
class Move:
    """What becomes of a gang; without a plan it stays where it is, for the reason given."""

    plan: Plan | None
    because: Because
    words: str


def decide(snapshot: Snapshot, findings: Sequence[Finding], config: Config) -> list[Decision]:
    """Decisions of this round, those that act with a plan. Repetitions are the caller's to leave out."""
    decisions: list[Decision] = []
    condemned: list[Condemned] = []
    by_node: dict[str, list[Finding]] = {}
    for finding in findings:
        by_node.setdefault(finding.node, []).append(finding)
    for name, node in snapshot.nodes.items():
        own = by_node.get(name)
        if own is None:
            continue
        decisions += _remarks(node, own)
        chosen = _gravest(node, own)
        if chosen is None:
            continue
        row, finding = chosen
        if row.action is not Action.NOTHING:
            condemned.append((row, finding))
        else:
            decisions.append(_plain(row, finding))
    decisions += _condemnations(snapshot, condemned, config)
    decisions += releases(snapshot, config)
    acting = [one for one in decisions if one.plan and one.action is not Action.RELEASE_JOB]
    if not acting:  # one thing after the other: a swap takes spares
        decisions += _fill_pool(snapshot, {finding.node for _, finding in condemned}, config)
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


def _condemnations(snapshot: Snapshot, condemned: Sequence[Condemned], config: Config) -> list[Decision]:
    """Each condemned node is asked for at the guards; those let through are planned gang by gang."""
    decisions: list[Decision] = []
    allowed: list[Condemned] = []
    new = 0
    for one in condemned:
        objection = (
            guards.object_to_quarantine(snapshot, config, already=new)
            if one[0].action is Action.QUARANTINE
            else guards.object_to_any(snapshot)
        )
        if objection is None:
            allowed.append(one)
            new += one[0].action is Action.QUARANTINE
        else:
            decisions.append(_held_back(one, objection))
    bad = {finding.node for _, finding in condemned}
    moves = _moves(snapshot, [finding for _, finding in allowed], bad, config)
    return decisions + [_act(snapshot, one, moves.get(one[1].node)) for one in allowed]


def _moves(snapshot: Snapshot, findings: Sequence[Finding], bad: set[str], config: Config) -> dict[str, Move]:
    """Node → what becomes of the gang that has a seat there. A node without one is not in it.

    `bad` are all nodes condemned in this round, also those that a guard holds back: none of them is a spare.
    """
    moves: dict[str, Move] = {}
    free = [name for name in spares.free_spares(snapshot, config) if name not in bad]
    for job in _gangs(snapshot, {finding.node for finding in findings}):
        seats = _seats(snapshot, job)
        own = [finding for finding in findings if finding.node in seats]
        move = _move(snapshot, job, own, seats, free, config)
        if move.plan is not None:
            free = [name for name in free if name not in move.plan.spares]
        moves.update((finding.node, move) for finding in own)
    return moves


def _gangs(snapshot: Snapshot, bad: set[str]) -> list[Job]:
    """Managed jobs that have, or were promised, a seat on one of these nodes."""
    return [job for job in snapshot.jobs.values() if job.managed and bad & set(_seats(snapshot, job))]


def _seats(snapshot: Snapshot, job: Job) -> tuple[str, ...]:
    recovery = snapshot.recovery_of(job.key)
    started_anew = recovery is not None and job.slurm.restart_count > recovery.plan.restart_count
    if recovery and recovery.plan.kind is RecoveryKind.POOL_SWAP and not (job.running and started_anew):
        return recovery.plan.seats
    return job.slurm.nodes if job.running else ()


def _move(
    snapshot: Snapshot,
    job: Job,
    findings: Sequence[Finding],
    seats: Sequence[str],
    free: Sequence[str],
    config: Config,
) -> Move:
    objection = _cannot_move(snapshot, job, findings, seats, config)
    if objection:
        return Move(None, Because.RULE, f"job {job.key.job_id} {objection}: left to a person")
    if sum(key == job.key for _, key in snapshot.swaps) >= config.jobs.swaps_per_hour_max:
        words = f"job {job.key.job_id} was moved too often within the hour: left to a person"
        return Move(None, Because.JOB_BUDGET, words)
    free = [name for name in free if spares.suits(snapshot.nodes[name], job, snapshot.nodes[findings[0].node])]
    if len(free) < len(findings):
        words = (
            f"no fitting spare for job {job.key.job_id}: {len(free)} free, {len(findings)} needed; it stays until then"
        )
        return Move(None, Because.NO_SPARE, words)
    others = [
        other.key.job_id
        for finding in findings
        if finding.dead
        for other in snapshot.holders_of(finding.node)
        if not other.managed
    ]
    if others:
        # A dead node has to be declared down before the gang can be requeued, and that would end these as well.
        words = f"job {others[0]}, which is not ours, has the dead node too: left to Slurm's own timeout"
        return Move(None, Because.RULE, words)
    chosen = free[: len(findings)]
    plan = plans.swap_plan(snapshot, job, findings, seats, chosen)
    return Move(plan, Because.RULE, f"job {job.key.job_id} moves to {', '.join(chosen)}")


def _cannot_move(
    snapshot: Snapshot, job: Job, findings: Sequence[Finding], seats: Sequence[str], config: Config
) -> str:
    """Why this gang is not ours to requeue onto other nodes; empty: nothing speaks against it."""
    slurm = job.slurm
    if not slurm.batch or not slurm.requeue:
        return "was not submitted as a batch job with --requeue"
    if slurm.part_of:
        return f"is part of a {slurm.part_of}: Slurm would requeue more than it"
    insisted = {finding.node for finding in findings} & set(slurm.required_nodes)
    if insisted:
        return f"asked for {', '.join(sorted(insisted))} by name (--nodelist) and cannot run without"
    left = {finding.node for finding in findings}
    for reservation in spares.foreign_reservations(snapshot, job, config):
        taken = sorted(set(reservation.nodes) & set(seats) - left)
        if taken and spares.is_in_the_way(reservation, job, snapshot.now):
            return f"would be seated on {', '.join(taken)} into the time of reservation {reservation.name}"
    return ""


def _act(snapshot: Snapshot, condemned: Condemned, move: Move | None) -> Decision:
    row, finding = condemned
    move = move or Move(None, Because.RULE, "no gang of ours runs there")
    plan = move.plan
    if plan is None and row.action in (Action.QUARANTINE, Action.DRAIN_AGAIN):
        renamed = finding.signal is Signal.DRAINED_FOR_US
        plan = plans.rename_plan(finding) if renamed else plans.quarantine_plan(finding, snapshot.nodes[finding.node])
    return Decision(
        row=row.number,
        subject=finding.node,
        action=row.action if plan else Action.NOTHING,
        because=move.because,
        reason=f"{finding.summary}: {row.why}; {move.words}",
        to_state=row.to,
        finding=finding,
        evidence=finding.evidence,
        opens_incident=finding.signal is not Signal.SEAT_LOST,
        plan=plan,
    )


def _held_back(condemned: Condemned, objection: guards.Objection) -> Decision:
    row, finding = condemned
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


def _fill_pool(snapshot: Snapshot, bad: set[str], config: Config) -> list[Decision]:
    if config.spares.count == 0 or any(_changes_pool(recovery) for recovery in snapshot.recoveries):
        return []
    bad = bad | {name for one in snapshot.recoveries for name in (*one.plan.seats, *one.plan.failed_nodes)}
    pool = snapshot.reservations.get(config.spares.reservation)
    if pool is not None and not pool.made_for(POOL_USER):
        reason = f"reservation {pool.name} is not ours (users {', '.join(pool.users)}): there is no spare pool"
        return [Decision(FILL_POOL_ROW.number, "fleet", Action.NOTHING, Because.FOREIGN_POOL, reason)]
    wanted = spares.joining_pool(snapshot, bad, config.spares)
    if not wanted:
        return []
    objection = guards.object_to_any(snapshot)
    names = ", ".join(wanted)
    return [
        Decision(
            row=FILL_POOL_ROW.number,
            subject="fleet",
            action=Action.NOTHING if objection else Action.FILL_POOL,
            because=objection.because if objection else Because.RULE,
            reason=f"{names} should join the spare pool: {FILL_POOL_ROW.why}"
            + (f"; but nothing is done, because {objection.words}" if objection else ""),
            evidence={"joining": list(wanted)},
            plan=None if objection else plans.fill_pool_plan(wanted),
        )
    ]


def _changes_pool(recovery: Recovery) -> bool:
    """It fills the pool, or has yet to take a spare out of it."""
    take = recovery.step(StepName.TAKE_SPARES)
    return recovery.plan.kind is RecoveryKind.FILL_POOL or (take is not None and take.status is not StepStatus.DONE)
