"""From findings to decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from understudy_controlplane.config import Config
from understudy_controlplane.decide import allocation_swap, guards, hangs, plans, repair_cycle, spares
from understudy_controlplane.decide.releases import releases
from understudy_controlplane.decide.table import (
    BREAKER_ROW,
    FILL_POOL_ROW,
    TEST_FAILED_ROW,
    UNNAMED_HANG_ROW,
    Row,
    look_up,
)
from understudy_controlplane.detect.silence import MASS_RULE
from understudy_controlplane.fleet.decision import TAKES_OUT, Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import DrainKind, NodeState, NodeView, ValidationOrigin
from understudy_controlplane.fleet.recovery import Plan, Recovery, RecoveryKind, StepName, StepStatus
from understudy_controlplane.fleet.slurm import POOL_USER
from understudy_controlplane.fleet.snapshot import Snapshot

GRAVITY = (
    Signal.DRAIN_LIFTED,
    Signal.RETIRE_ASKED,
    Signal.HOLD_ASKED,
    Signal.RELEASE_ASKED,
    Signal.DRAINED_FOR_US,
    Signal.DRAINED_BY_OTHERS,
    Signal.HARDWARE_FAULT,
    Signal.NODE_DEAD,
    Signal.STRAGGLER_CONFIRMED,
    Signal.DRAIN_AT_JOB_END,
    Signal.UNDRAINED,
    Signal.GANG_STRANDED,
    Signal.SEAT_LOST,
    Signal.VALIDATION_FAILED,
    Signal.REPAIR_FAILED,
    Signal.TEST_NOT_BEGUN,
    Signal.PROBE_NOT_BEGUN,
    Signal.RETURN_TEST_NOT_BEGUN,
    Signal.VALIDATED,
    Signal.REPAIRED,
    Signal.HANDS_DUE,
    Signal.VALIDATION_DUE,
    Signal.REPAIR_DUE,
    Signal.PROBATION_OVER,
    Signal.TEST_ASKED,
    Signal.HOLD_LEFT,
    Signal.WEIGHT_LEFT,
    Signal.GANG_HUNG,
    Signal.BLACK_HOLE,
    Signal.STRAGGLER_SUSPECTED,
    Signal.CORRUPTION_SUSPECTED,
    Signal.SILENT,
    Signal.HEARD,
    Signal.CLEAN,
    Signal.PROBE_DUE,
    Signal.HEALTH_SUSPECTED,
)
"""One state change a node and round: the first of these that has a row. What is left is found again next round."""


BUDGETS = (Because.FLEET_BUDGET, Because.HOURLY_BUDGET, Because.DOMAIN_BUDGET)

Condemned = tuple[Row, Finding]


@dataclass(frozen=True, slots=True)
class Move:
    """What becomes of a gang; without a plan it stays where it is, for the reason given."""

    plan: Plan | None
    because: Because
    words: str


def decide(snapshot: Snapshot, findings: Sequence[Finding], config: Config) -> list[Decision]:
    """Decisions of this round, those that act with a plan. Repetitions are the caller's to leave out."""
    if mass := _mass_silence(findings):
        snapshot = replace(snapshot, mass_silence=mass)
    decisions: list[Decision] = []
    condemned: list[Condemned] = []
    begun: dict[str, ValidationOrigin | None] = {}
    by_node: dict[str, list[Finding]] = {}
    for finding in (*findings, *repair_cycle.due(snapshot, config)):
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
        if row.action in repair_cycle.ACTIONS:
            decisions.append(repair_cycle.carry_out(snapshot, row, finding, config, begun))
            if decisions[-1].action in (Action.REPAIR, Action.VALIDATE):
                begun[name] = row.origin
        elif row.action is not Action.NOTHING:
            condemned.append((row, replace(finding, evidence={**finding.evidence, "generation": node.generation})))
        else:
            decisions.append(_plain(row, finding))
    condemned.sort(key=lambda one: _can_wait(one[0]))
    decisions += _condemnations(snapshot, condemned, config)
    decisions += releases(snapshot, config)
    acting = [one for one in decisions if one.plan and one.action is not Action.RELEASE_JOB]
    if not acting:  # one thing after the other: a swap takes spares
        decisions += _fill_pool(snapshot, {finding.node for _, finding in condemned}, config)
    return decisions


def _can_wait(row: Row) -> int:
    """What can wait leaves the guards' room to what cannot. A node that failed its test is kept for us alone."""
    if row is TEST_FAILED_ROW:
        return 2
    return 1 if row.action is Action.DRAIN else 0


def _mass_silence(findings: Iterable[Finding]) -> str:
    nodes = {finding.node for finding in findings if finding.rule == MASS_RULE}
    if not nodes:
        return ""
    return (
        f"{len(nodes)} agents fell silent together, which is taken for a fault of ours or of the network "
        "(`understudy hold` takes nodes that are really gone out of the count)"
    )


def _remarks(node: NodeView, findings: Iterable[Finding]) -> list[Decision]:
    """Findings that never change a state: each is worth one line."""
    remarks = [finding for finding in findings if finding.signal not in GRAVITY]
    rows = [(look_up(node.record, finding.signal), finding) for finding in remarks]
    return [_plain(row, finding) for row, finding in rows if row is not None]


def _gravest(node: NodeView, findings: Iterable[Finding]) -> tuple[Row, Finding] | None:
    entered = [
        (row, finding) for finding in findings if finding.signal in GRAVITY and (row := _row(node, finding)) is not None
    ]
    return min(entered, key=lambda pair: (GRAVITY.index(pair[1].signal), pair[1].at), default=None)


def _row(node: NodeView, finding: Finding) -> Row | None:
    if finding.signal is Signal.GANG_HUNG and not finding.evidence.get("named"):
        return UNNAMED_HANG_ROW
    row = look_up(node.record, finding.signal)
    newly_out = row is not None and row.action is Action.TAKE_BACK and node.record.tested_in_service
    return TEST_FAILED_ROW if newly_out else row


def _plain(row: Row, finding: Finding) -> Decision:
    request = finding.evidence.get("request")
    return Decision(
        row=row.number,
        subject=finding.node,
        action=Action.NOTHING,
        because=Because.RULE,
        reason=f"{finding.summary}: {row.why}",
        to_state=row.to,
        finding=finding,
        evidence=finding.evidence,
        request=request if isinstance(request, int) else None,
        suspects=row.suspects,
        ends_suspicion=finding.suspicion,
    )


def _condemnations(snapshot: Snapshot, condemned: Sequence[Condemned], config: Config) -> list[Decision]:
    """Each condemned node is asked for at the guards; those let through are planned gang by gang."""
    decisions: list[Decision] = []
    allowed: list[Condemned] = []
    new: set[str] = set()
    for one in condemned:
        takes_out = one[0].action in TAKES_OUT
        objection = (
            guards.object_to_quarantine(snapshot, config, one[1], already=new)
            if takes_out
            else guards.object_to_any(snapshot)
        )
        if objection is None:
            allowed.append(one)
            new |= {one[1].node} if takes_out else set()
        else:
            decisions.append(_held_back(one, objection))
    too_many = _one_too_many(snapshot, decisions, new, config)
    if too_many and not snapshot.breaker:
        decisions.append(_breaker(snapshot, too_many, new, config))
    bad = {finding.node for _, finding in condemned if finding.signal is not Signal.GANG_HUNG}
    moving = [one[1] for one in allowed if _is_left(snapshot, one)]
    moves = _moves(snapshot, moving, bad, config)
    return decisions + [_act(snapshot, one, moves.get(one[1].node)) for one in allowed]


def _one_too_many(snapshot: Snapshot, held_back: Sequence[Decision], new: set[str], config: Config) -> list[str]:
    """Nodes that were to be quarantined and were not, where they are more than the breaker bears: it does not matter
    whether it was the breaker that held them back, or a budget that is smaller.
    """
    since = max(snapshot.now - config.guards.breaker_window_seconds, snapshot.breaker_reset_at)
    known = {name for name, incident in snapshot.incidents.items() if incident.opened_at <= since}
    held = [
        one.subject
        for one in held_back
        if one.because is Because.BREAKER or (one.because in BUDGETS and one.subject not in known)
    ]
    wanted = guards.lately_quarantined(snapshot, config) | new | set(held)
    return held if len(wanted) > guards.breaker_limit(snapshot, config) else []


def _moves(snapshot: Snapshot, findings: Sequence[Finding], bad: set[str], config: Config) -> dict[str, Move]:
    """Node → what becomes of the gang that has a seat there. A node without one is not in it.

    `bad` are all nodes condemned in this round, also those that a guard holds back: none of them is a spare.
    """
    moves: dict[str, Move] = {}
    free = [name for name in spares.free_spares(snapshot, config) if name not in bad]
    hung = [finding for finding in findings if finding.signal is Signal.GANG_HUNG]
    findings = [finding for finding in findings if finding.signal is not Signal.GANG_HUNG]
    for job in _gangs(snapshot, {finding.node for finding in findings}):
        seats = _seats(snapshot, job)
        own = [finding for finding in findings if finding.node in seats]
        move = _move_inside(snapshot, job, own, bad, config) or _move(snapshot, job, own, seats, free, config)
        if move.plan is not None:
            free = [name for name in free if name not in move.plan.spares]
        moves.update((finding.node, move) for finding in own)
    moved = {move.plan.job for move in moves.values() if move.plan}
    for key in dict.fromkeys(finding.job for finding in hung if finding.job not in moved):
        own = [finding for finding in hung if finding.job == key]
        move = _restart(snapshot, own, free, bad, config)
        if move.plan is not None:
            free = [name for name in free if name not in move.plan.spares]
        for finding in own:
            moves.setdefault(finding.node, move)
    return moves


def _restart(
    snapshot: Snapshot, findings: Sequence[Finding], free: Sequence[str], bad: set[str], config: Config
) -> Move:
    """What becomes of a gang that hangs."""
    key = findings[0].job
    job = snapshot.jobs.get(key) if key is not None else None
    if job is None or not job.managed or not job.running:
        return Move(None, Because.RULE, "the job is not ours to start anew")
    objection = _cannot_restart(snapshot, job, findings, bad, config)
    if objection is not None:
        return objection
    plan, words = hangs.restart(snapshot, job, findings, free, bad, config)
    return Move(plan, Because.RULE, words)


def _cannot_restart(
    snapshot: Snapshot, job: Job, findings: Sequence[Finding], bad: set[str], config: Config
) -> Move | None:
    gang = snapshot.gangs.get(job.key)
    by_its_launcher = gang is not None and not allocation_swap.why_not(snapshot, job, (), bad)
    ours = "" if by_its_launcher else _cannot_move(snapshot, job, findings, job.slurm.nodes, config)
    spent = hangs.too_often(snapshot, job, config)
    number = job.key.job_id
    reasons = (
        (hangs.still_coming_up(snapshot, job), Because.RULE, f"job {number} is being started anew already"),
        (bool(spent), Because.RESTART_BUDGET, spent),
        (
            gang is not None and allocation_swap.to_be_heard_again(snapshot, gang),
            Because.GATHERING,
            _not_heard_again(job),
        ),
        (_moved_too_often(snapshot, job, config), Because.JOB_BUDGET, _too_often(job).words),
        (bool(ours), Because.RULE, f"job {number} {ours}: left to a person"),
    )
    return next((Move(None, because, words) for holds, because, words in reasons if holds), None)


def _move_inside(
    snapshot: Snapshot, job: Job, findings: Sequence[Finding], bad: set[str], config: Config
) -> Move | None:
    """Within the job's own allocation, by its launcher. None: that cannot be, the pool is asked."""
    gang = snapshot.gangs.get(job.key)
    if gang is None:
        return None
    if allocation_swap.to_be_heard_again(snapshot, gang):
        return Move(None, Because.GATHERING, _not_heard_again(job))
    seated = {finding.node for finding in findings} & set(gang.seats)
    if allocation_swap.why_not(snapshot, job, findings, bad):
        return None if seated else Move(None, Because.RULE, f"job {job.key.job_id} does not use it now")
    if seated and _moved_too_often(snapshot, job, config):
        return _too_often(job)
    plan, words = allocation_swap.swap(snapshot, job, findings, config)
    return Move(plan, Because.RULE, words)


def _not_heard_again(job: Job) -> str:
    return f"this control plane has just started and not yet heard the launcher of job {job.key.job_id}"


def _moved_too_often(snapshot: Snapshot, job: Job, config: Config) -> bool:
    return sum(key == job.key for _, key in snapshot.swaps) >= config.jobs.swaps_per_hour_max


def _too_often(job: Job) -> Move:
    return Move(None, Because.JOB_BUDGET, f"job {job.key.job_id} was moved too often within the hour: left to a person")


def _gangs(snapshot: Snapshot, bad: set[str]) -> list[Job]:
    """Managed jobs that have, or were promised, a seat on one of these nodes."""
    return [job for job in snapshot.jobs.values() if job.managed and bad & set(_seats(snapshot, job))]


def _is_left(snapshot: Snapshot, condemned: Condemned) -> bool:
    """Whether a gang with a seat there moves. Where a node is tested nobody has one."""
    row, finding = condemned
    left = not _may_stay(snapshot, condemned) or _awaited(snapshot, finding.node)
    return left and row is not TEST_FAILED_ROW


def _may_stay(snapshot: Snapshot, condemned: Condemned) -> bool:
    """Whether what runs there goes on to its end: also when a drain that was for later is made again."""
    row, finding = condemned
    for_later = snapshot.nodes[finding.node].record.drain_kind is DrainKind.AT_JOB_END
    return row.action is Action.DRAIN or (row.action is Action.DRAIN_AGAIN and for_later)


def _awaited(snapshot: Snapshot, node: str) -> bool:
    """Whether a gang of ours is on its way to the node: it would never start on one that is drained."""
    return any(not job.running or node not in job.slurm.nodes for job in _gangs(snapshot, {node}))


def _seats(snapshot: Snapshot, job: Job) -> tuple[str, ...]:
    recovery = snapshot.recovery_of(job.key)
    started_anew = recovery is not None and job.slurm.restart_count > recovery.plan.restart_count
    if recovery and recovery.plan.kind is RecoveryKind.POOL_SWAP and not (job.running and started_anew):
        return recovery.plan.seats
    host = [name for name, jobs in snapshot.headless.items() if job in jobs]
    return (*job.slurm.nodes, *host) if job.running else ()


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
    if _moved_too_often(snapshot, job, config):
        return _too_often(job)
    gone = _gone(snapshot, job, seats, findings)
    needed = len(findings) + len(gone) + _removed(snapshot, job)
    free = [name for name in free if spares.suits(snapshot.nodes[name], job, snapshot.nodes[findings[0].node])]
    if len(free) < needed:
        words = f"no fitting spare for job {job.key.job_id}: {len(free)} free, {needed} needed; it stays until then"
        return Move(None, Because.NO_SPARE, words)
    others = [
        other.key.job_id
        for name in [
            *(finding.node for finding in findings if finding.dead),
            *(name for name in gone if _mute(snapshot, name)),
        ]
        for other in snapshot.holders_of(name)
        if not other.managed
    ]
    if others:
        # A dead node has to be declared down before the gang can be requeued, and that would end these as well.
        words = f"job {others[0]}, which is not ours, has the dead node too: left to Slurm's own timeout"
        return Move(None, Because.RULE, words)
    chosen = free[:needed]
    plan = plans.swap_plan(snapshot, job, findings, seats, chosen, gone=gone)
    return Move(plan, Because.RULE, f"job {job.key.job_id} moves to {', '.join(chosen)}")


def _gone(snapshot: Snapshot, job: Job, seats: Sequence[str], findings: Sequence[Finding]) -> list[str]:
    """Nodes of a launcher's job that it left before, within its allocation: Slurm needs others in their place, too."""
    found = {finding.node for finding in findings}
    if job.key not in snapshot.gangs:
        return []
    return [name for name in seats if name not in found and snapshot.nodes[name].state is NodeState.QUARANTINED]


def _removed(snapshot: Snapshot, job: Job) -> int:
    """How many nodes Slurm has taken out of the running job, since they went down: requeued, it wants as many again."""
    gang = snapshot.gangs.get(job.key)
    gone = [name for name in gang.state.lost if name not in job.slurm.nodes] if gang is not None else []
    nodes = [snapshot.nodes[name] for name in gone if name in snapshot.nodes]
    return sum(node.state is NodeState.QUARANTINED or (node.slurm is not None and node.slurm.down) for node in nodes)


def _mute(snapshot: Snapshot, name: str) -> bool:
    """Quarantined before, and its slurmd answers nobody."""
    since = snapshot.nodes[name].slurmd_silent_since
    return since is not None and snapshot.now - since > 1.0


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
    stays = "no gang of ours is moved" if row.action is Action.DRAIN else "no gang of ours runs there"
    move = move or Move(None, Because.RULE, stays)
    plan = move.plan
    unnamed = row is UNNAMED_HANG_ROW
    if plan is None and row.action in (*TAKES_OUT, Action.DRAIN_AGAIN):
        plan = _plan_for_the_node(snapshot, condemned)
    return Decision(
        row=row.number,
        subject=f"job {finding.job.job_id}" if unnamed and finding.job else finding.node,
        action=row.action if plan else Action.NOTHING,
        because=move.because,
        reason=f"{finding.summary}: {row.why}; {move.words}",
        to_state=row.to,
        finding=finding,
        evidence=finding.evidence,
        opens_incident=finding.signal not in (Signal.SEAT_LOST, Signal.GANG_HUNG),
        plan=plan,
        suspects=row.suspects,
    )


def _plan_for_the_node(snapshot: Snapshot, condemned: Condemned) -> Plan:
    """Where no gang is moved."""
    row, finding = condemned
    if row is TEST_FAILED_ROW:
        return repair_cycle.take_back(snapshot, finding)
    if finding.signal is Signal.DRAINED_FOR_US:
        return plans.rename_plan(finding)
    return plans.quarantine_plan(finding, snapshot.nodes[finding.node])


def _breaker(snapshot: Snapshot, asked: list[str], new: set[str], config: Config) -> Decision:
    """`asked`: those that are one too many; `new`: those that are let through in this same round."""
    lately = sorted(guards.lately_quarantined(snapshot, config) | new, key=spares.natural)
    limit = guards.breaker_limit(snapshot, config)
    names = ", ".join(asked[:8]) + (", …" if len(asked) > 8 else "")
    words = (
        f"{len(asked)} more to be quarantined ({names}) beside {len(lately)} within "
        f"{config.guards.breaker_window_seconds:g} s, where {limit} is the limit"
    )
    return Decision(
        row=BREAKER_ROW.number,
        subject="fleet",
        action=Action.OPEN_BREAKER,
        because=Because.RULE,
        reason=f"{words}: {BREAKER_ROW.why}. A person looks, and closes it: understudy reset-breaker",
        evidence={"asked": list(asked), "lately": list(lately), "at": snapshot.now},
    )


def _held_back(condemned: Condemned, objection: guards.Objection) -> Decision:
    held = guards.held_back(*condemned, objection)
    return replace(held, opens_incident=condemned[1].signal is not Signal.GANG_HUNG)


def _fill_pool(snapshot: Snapshot, bad: set[str], config: Config) -> list[Decision]:
    if config.spares.count == 0 or any(_changes_pool(recovery) for recovery in snapshot.recoveries):
        return []
    bad = bad | {name for one in snapshot.recoveries for name in (*one.plan.seats, *one.plan.failed_nodes)}
    pool = snapshot.reservations.get(config.spares.reservation)
    if pool is not None and not pool.made_for(POOL_USER):
        reason = f"reservation {pool.name} is not ours (users {', '.join(pool.users)}): there is no spare pool"
        return [Decision(FILL_POOL_ROW.number, "fleet", Action.NOTHING, Because.FOREIGN_POOL, reason)]
    wanted = spares.joining_pool(snapshot, bad, config)
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
    steps = (recovery.step(StepName.TAKE_SPARES), recovery.step(StepName.FILL_POOL))
    left = any(step is not None and step.status is not StepStatus.DONE for step in steps)
    return recovery.plan.kind is RecoveryKind.FILL_POOL or left
