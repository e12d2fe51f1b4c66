"""Plans: the steps that carry a decision out, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import msgspec

from understudy_controlplane.config import Config
from understudy_controlplane.decide.spares import takes_into_pool
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, HungRanks, RepairDetail, Signal
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import AT_FAULT, HELD_BY_PEOPLE, REASON_PREFIX, NodeState, NodeView
from understudy_controlplane.fleet.plain_text import whole_words
from understudy_controlplane.fleet.recovery import (
    SEATS_PREFIX,
    AllocationSwapPlan,
    DeleteSeatsPlan,
    FillPoolPlan,
    HungNode,
    LauncherRestartPlan,
    LeavePoolPlan,
    LetGoPlan,
    ManualRepairPlan,
    PoolSwapPlan,
    QuarantinePlan,
    Recovery,
    ReleaseJobPlan,
    RepairPlan,
    RestoreWeightPlan,
    ReturnPlan,
    Rung,
    StepName,
    SwapPlan,
    TakeBackPlan,
    ValidationPlan,
)
from understudy_controlplane.fleet.slurm import SlurmReservation
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.hardware import PortRole

SWAP_STEPS = (
    StepName.DRAIN_NODES,
    StepName.HOLD_SEATS,
    StepName.TAKE_SPARES,
    StepName.BIND_JOB,
    StepName.DOWN_NODES,
    StepName.REQUEUE_JOB,
    StepName.START_JOB,
    StepName.RELEASE_SEATS,
    StepName.AWAIT_PROCESSES,
    StepName.AWAIT_FIRST_STEP,
)
"""Seats are held before the spares leave their pool, so that a spare is reserved at every moment, and before the
requeue, because pending jobs would take them. A dead node is declared down before any requeue: down requeues the job
by itself, and Slurm 22.05 spoils the record of a job that is requeued while a node of it does not answer."""


SEAT_STEPS = (StepName.HOLD_SEATS, StepName.TAKE_SPARES, StepName.BIND_JOB, StepName.RELEASE_SEATS)

_PENDING = SWAP_STEPS.index(StepName.START_JOB)
EXCLUDING_STEPS = (*SWAP_STEPS[:_PENDING], StepName.EXCLUDE_NODES, *SWAP_STEPS[_PENDING:])
"""Steps if a node that the gang leaves stays in service: Slurm could start the job there again. Slurm changes the
excluded nodes of a pending job only.
"""


DEAD_GANG_STEPS = tuple(step for step in SWAP_STEPS if step not in SEAT_STEPS)
"""Steps for a gang that is dead as a whole and has no spares: Slurm starts it where it finds nodes. Left alone, it
would be lost with Slurm's own timeout (`slurm.protocol.loses_dead_gangs`).
"""

_BOUND = SWAP_STEPS.index(StepName.BIND_JOB)
BOUND_LATER = (*SWAP_STEPS[:_BOUND], *SWAP_STEPS[_BOUND + 1 : _PENDING], StepName.BIND_JOB, *SWAP_STEPS[_PENDING:])
"""Steps for a job that Slurm has taken a node from while it runs on: a Slurm without slurmdbd takes no update of it
before it pends ("the DB index is being set"). Its seats are held; only another job of its user could take them
before.
"""

REASON_CHARACTERS_MAX = 200


def drain_reason(finding: Finding) -> str:
    """Reason of at most 200 characters, beginning with the prefix of the control plane's drains. A longer one ends with
    a clause.
    """
    whole = f"{REASON_PREFIX} {finding.rule}: {finding.summary}".replace("'", "").replace('"', "")
    cut = whole[:REASON_CHARACTERS_MAX]
    return cut if cut == whole else cut.rpartition(";")[0] or whole_words(whole, REASON_CHARACTERS_MAX)


def quarantine_plan(finding: Finding, node: NodeView) -> QuarantinePlan:
    """The node leaves service; no gang is moved."""
    known = node.record.drain_reason  # what it was drained for before Slurm forgot, or wrote over it
    again = finding.signal is Signal.UNDRAINED and known.startswith(REASON_PREFIX)
    return QuarantinePlan(
        steps=(StepName.DRAIN_NODES, StepName.TAKE_SPARES) if node.is_spare else (StepName.DRAIN_NODES,),
        nodes=(finding.node,),
        drain_reason=known if again else drain_reason(finding),
        renamed_nodes=(finding.node,) if again else (),
        rules=(finding.rule,),
        requested=finding.request is not None,
    )


def swap_plan(  # noqa: PLR0913 - what a plan is made of, each by its name
    snapshot: Snapshot,
    job: Job,
    findings: Sequence[Finding],
    seats: Sequence[str],
    spares: Sequence[str],
    *,
    hang: str = "",
    gone: Sequence[str] = (),
    drained_elsewhere: Set[str] = frozenset(),
    undrained: Set[str] = frozenset(),
    preempted: Sequence[Job] = (),
    given_up: Sequence[str] = (),
) -> PoolSwapPlan:
    """The gang moves from the nodes of `findings` to `spares`. `seats` are those it has or was promised.

    With `hang` the nodes are not failed: they give up their seats where there are spares, and nothing else. `gone` are
    nodes out of service without a finding: the gang left them before, within its allocation, or could stay there while
    it ran. The first of the `spares` are for them. Those that people have, or a repair, or that are
    `drained_elsewhere`, are left, and not drained. `undrained` nodes are left and excluded for the job, and stay in
    service. `preempted` are the jobs on the spares that Slurm is to preempt for this one. `given_up` nodes are well;
    the gang leaves them for whole NVLink blocks, and the last of the `spares` are for them.
    """
    superseded = snapshot.recovery_of(job.key)
    earlier = superseded.swap if superseded else None
    # A job that pends is on its way from the attempt that the earlier plan gave up; one that runs is given up now.
    on_its_way = earlier if earlier and not job.running else None
    # Nodes that others took, that are repaired, or that another recovery drains, are no failed ones.
    lost = {finding.node for finding in findings if _is_taken(snapshot, finding)}
    lost |= {name for name in gone if snapshot.nodes[name].state is not NodeState.QUARANTINED}
    lost |= drained_elsewhere & {*gone, *(one.node for one in findings if one.signal is Signal.GANG_STOPPED)}
    accused = [] if hang else [one for one in findings if one.node not in lost and one.node not in undrained]
    missing = snapshot.missing(job, (*seats, *(finding.node for finding in findings if finding.node)))
    left = len(spares) - len(gone) - len(given_up) - missing
    leaving = tuple(finding.node for finding in (findings[: max(left, 0)] if hang else findings))
    leaving = (*(name for name in leaving if hang or name in undrained), *given_up)
    failed = (*(finding.node for finding in accused), *(name for name in gone if name not in lost))
    silent = [name for name in gone if name not in lost and snapshot.nodes[name].slurmd_silent_since is not None]
    mute = (*silent, *(name for name in gone if name in lost and snapshot.nodes[name].is_mute(snapshot.now)))
    dead = (*(finding.node for finding in findings if finding.dead and not hang), *mute)
    if earlier:
        # Those that a person has vouched for meanwhile are no longer held against.
        held = {node.name for node in snapshot.set_apart if node.state in AT_FAULT}
        failed = tuple(dict.fromkeys((*(name for name in earlier.nodes if name in held), *failed)))
        dead = (*(name for name in earlier.dead_nodes if name in held), *dead)
    before, taken = (earlier.excluded, earlier.from_pool) if isinstance(earlier, PoolSwapPlan) else ((), ())
    # Nodes of a gang that waits in Slurm's queue, which are out of service otherwise, or which others have now.
    leaving += tuple(one.node for one in findings if one.signal is Signal.GANG_STOPPED and one.node in lost)
    own = (name for name in leaving if name in undrained and name not in job.slurm.excluded_nodes)
    excluded = tuple(dict.fromkeys((*before, *own)))
    kept = tuple(name for name in seats if name not in failed and name not in lost and name not in leaving)
    reservation = job.slurm.reservation
    if reservation.startswith(SEATS_PREFIX):
        reservation = earlier.reservation if earlier else ""
    last_step, count_from = _reached(snapshot, job)
    plan = PoolSwapPlan(
        steps=EXCLUDING_STEPS if excluded else SWAP_STEPS,
        nodes=failed,
        dead_nodes=dead,
        spares=tuple(spares),
        seats=(*kept, *spares),
        job=job.key,
        user=job.slurm.user,
        account=job.slurm.account,
        submit_at=on_its_way.submit_at if on_its_way else job.slurm.submit_at,
        restart_count=on_its_way.restart_count if on_its_way else snapshot.attempt_given_up(job),
        last_step=on_its_way.last_step if on_its_way else last_step,
        count_from=on_its_way.count_from if on_its_way else count_from,
        supersedes=superseded.id if superseded else None,
        reservation=reservation,
        drain_reason=earlier.drain_reason if earlier and not accused else drain_reason((accused or findings)[0]),
        rules=_rules(findings, earlier),
        hang=hang,
        hung_on=_hung_on(job, len(seats), findings),
        suspended_or_resumed_at=job.slurm.suspended_or_resumed_at,
        leaving=leaving,
        excluded=excluded,
        from_pool=tuple(name for name in spares if snapshot.nodes[name].is_spare or name in taken),
        preempted=tuple(sorted({one.key.job_id for one in preempted})),
        requested=_requested(findings, superseded),
    )
    bound_later = not excluded and job.running and job.key in snapshot.shrunk
    return msgspec.structs.replace(plan, steps=BOUND_LATER) if bound_later else plan


def _rules(findings: Sequence[Finding], earlier: SwapPlan | None) -> tuple[str, ...]:
    before = earlier.rules if earlier is not None else ()
    return tuple(dict.fromkeys((*before, *(finding.rule for finding in findings))))


def _hung_on(job: Job, nodes: int, findings: Sequence[Finding]) -> tuple[HungNode, ...]:
    named = {one.node: one.detail.ranks for one in findings if isinstance(one.detail, HungRanks)}
    return tuple(HungNode(name, ranks, job.slurm.user, nodes) for name, ranks in named.items())


def _reached(snapshot: Snapshot, job: Job) -> tuple[int | None, int]:
    """The last step of the attempt that is given up, and what it is counted from."""
    last, table = snapshot.progress.last_attempts.get(job.key), snapshot.progress.tables.get(job.key)
    if last is not None:
        return last.last_step, last.count_from
    return (table.furthest, table.count_from) if table and table.furthest >= 0 else (None, 0)


def _requested(findings: Sequence[Finding], superseded: Recovery | None) -> bool:
    """What began for a person goes on as such."""
    before = superseded is not None and superseded.plan.requested
    return before or any(finding.request is not None for finding in findings)


def _is_taken(snapshot: Snapshot, finding: Finding) -> bool:
    """An operator or an administrator has the node; or it is another recovery's to drain, if it is to be drained."""
    node = snapshot.nodes.get(finding.node)
    if finding.signal is Signal.GANG_STOPPED and (node is None or node.state is not NodeState.QUARANTINED):
        return True
    return finding.signal is Signal.SEAT_LOST or (node is not None and node.state in HELD_BY_PEOPLE)


NO_PLACES: Mapping[str, str] = {}

ALLOCATION_STEPS = (
    StepName.DRAIN_NODES,
    StepName.ORDER_RESTART,
    StepName.AWAIT_PROCESSES,
    StepName.AWAIT_FIRST_STEP,
)
"""The drain comes first: the node keeps the job, and Slurm gives it to no other. A dead node is not declared down:
its job is the launcher's to keep, and down would end a job that was asked for without --no-kill."""


def allocation_plan(  # noqa: PLR0913 - as `swap_plan`
    snapshot: Snapshot,
    job: Job,
    gang: Gang,
    findings: Sequence[Finding],
    config: Config,
    *,
    hang: str = "",
    undrained: Set[str] = frozenset(),
    places: Mapping[str, str] = NO_PLACES,
) -> AllocationSwapPlan:
    """The gang's launcher is ordered not to use the nodes of `findings`, or with `hang` to restart the gang. `places`:
    the best spare of the allocation for each seat.
    """
    superseded = snapshot.recovery_of(job.key)
    earlier = superseded.swap if superseded else None
    named = () if hang else tuple(dict.fromkeys(finding.node for finding in findings))
    kept = {finding.node for finding in findings if finding.node in undrained or _is_taken(snapshot, finding)}
    failed = tuple(name for name in named if name not in kept)
    avoided = tuple(name for name in named if name in kept)
    reason = "" if hang else drain_reason(findings[0])
    if earlier:  # as in `swap_plan`
        held = {node.name for node in snapshot.set_apart if node.state in AT_FAULT}
        failed = tuple(dict.fromkeys((*(name for name in earlier.nodes if name in held), *failed)))
        reason = reason or earlier.drain_reason
    gone = [] if hang else _replaced_by_itself(snapshot, job, gang, findings)
    given_up = _given_up(gang, (*failed, *avoided), earlier, hang, gone)
    relaunched = given_up >= 0
    limit, credit = job.slurm.time_limit_minutes, credit_minutes(snapshot, job, config)
    steps = ALLOCATION_STEPS if relaunched else ALLOCATION_STEPS[:2]
    last_step, count_from = _reached(snapshot, job)
    return AllocationSwapPlan(
        steps=(*steps, StepName.CREDIT_TIME) if relaunched and credit and limit is not None else steps,
        fault_at=min([*(finding.at for finding in findings), *(at for _, at in gone)]),
        time_limit_minutes=limit,
        credit_minutes_max=credit,
        nodes=failed,
        dead_nodes=tuple(finding.node for finding in findings if finding.dead and not hang),
        job=job.key,
        submit_at=job.slurm.submit_at,
        restart_count=job.slurm.restart_count,
        last_step=last_step,
        count_from=count_from,
        supersedes=superseded.id if superseded else None,
        reservation="" if job.slurm.reservation.startswith(SEATS_PREFIX) else job.slurm.reservation,
        drain_reason=reason,
        rules=_rules(findings, earlier),
        launch=given_up,
        hang=hang,
        hung_on=_hung_on(job, len(gang.seats), findings),
        suspended_or_resumed_at=job.slurm.suspended_or_resumed_at,
        leaving=avoided or tuple(finding.node for finding in findings if finding.signal is Signal.GANG_HUNG),
        requested=_requested(findings, superseded),
        places=tuple(places.items()),
    )


def credit_minutes(snapshot: Snapshot, job: Job, config: Config) -> int:
    """The most that its time limit may still be raised by in this allocation."""
    limit = job.slurm.time_limit_minutes
    credited = (
        limit - snapshot.history.limits.get((job.key, job.slurm.restart_count), limit) if limit is not None else 0
    )
    return max(0, config.recovery.time_credit_minutes_max - max(0, credited))


def launcher_restart_plan(
    snapshot: Snapshot, job: Job, fault_at: float, launch: int, credit_minutes_max: int
) -> LauncherRestartPlan:
    """Restart of a launch that the gang's launcher has given up by itself."""
    last_step, count_from = _reached(snapshot, job)
    return LauncherRestartPlan(
        steps=(StepName.AWAIT_PROCESSES, StepName.AWAIT_FIRST_STEP, StepName.CREDIT_TIME),
        fault_at=fault_at,
        time_limit_minutes=job.slurm.time_limit_minutes,
        credit_minutes_max=credit_minutes_max,
        job=job.key,
        submit_at=job.slurm.submit_at,
        restart_count=job.slurm.restart_count,
        last_step=last_step,
        count_from=count_from,
        drain_reason="",
        launch=launch,
    )


def _replaced_by_itself(
    snapshot: Snapshot, job: Job, gang: Gang, findings: Sequence[Finding]
) -> list[tuple[int, float]]:
    """The launcher saw it first: for these nodes' sake it gave the launch up that was before the present one.

    A node that is out of service already had its plan.
    """
    replaced = snapshot.progress.replaced.get((job.key, job.slurm.restart_count), {})
    new = [finding.node for finding in findings if snapshot.nodes[finding.node].state not in AT_FAULT]
    ends = [replaced[name] for name in new if name in replaced and name not in gang.seats]
    return [end for end in ends if end[0] == gang.attempt.launch - 1]


def _given_up(
    gang: Gang, failed: Sequence[str], earlier: SwapPlan | None, hang: str, gone: Sequence[tuple[int, float]]
) -> int:
    """The launch that must not go on: this one, where a failed node has a seat in it; else one given up before,
    by the launcher itself or the earlier plan. -1: none.
    """
    if hang or set(failed) & set(gang.seats):
        return gang.attempt.launch
    before = earlier.launch if isinstance(earlier, AllocationSwapPlan) else -1
    return max([before, *(launch for launch, _ in gone)])


def rename_plan(finding: Finding) -> QuarantinePlan:
    """Slurm drained the node because Understudy's Prolog refused a job: the drain gets the control plane's reason."""
    node = finding.node
    return QuarantinePlan(
        steps=(StepName.DRAIN_NODES,),
        nodes=(node,),
        drain_reason=drain_reason(finding),
        renamed_nodes=(node,),
    )


def release_plan(job: Job) -> ReleaseJobPlan:
    return ReleaseJobPlan(
        steps=(StepName.RELEASE_JOB,),
        job=job.key,
        submit_at=job.slurm.submit_at,
        restart_count=job.slurm.restart_count,
    )


def allow_plan(job: Job, nodes: Sequence[str]) -> ReleaseJobPlan:
    """Slurm changes the excluded nodes of a pending job only."""
    return msgspec.structs.replace(release_plan(job), steps=(StepName.ALLOW_NODES,), allowed=tuple(nodes))


def delete_seats_plan(reservation: SlurmReservation) -> DeleteSeatsPlan:
    (user,) = reservation.users
    return DeleteSeatsPlan(steps=(StepName.DELETE_SEATS,), reservation=reservation.name, user=user)


def repair_plan(node: NodeView, due: RepairDetail, label: str, incident: OpenIncident | None) -> RepairPlan:
    """A drained node runs no job: for the control plane's job it is resumed, in a reservation that no other job can
    use.

    After a reboot Slurm has it DOWN; where ReturnToService is 2 that does not keep it out of service for long.
    """
    rung = due.rung
    text = f"{REASON_PREFIX} {rung.value} {label}: {due.fault}".replace("'", "").replace('"', "")
    job_steps = (StepName.HOLD_NODE, StepName.RESUME_NODE, StepName.RESET_GPU)
    return RepairPlan(
        steps=(StepName.REBOOT_NODE, StepName.DRAIN_NODES) if rung is Rung.REBOOT else job_steps,
        nodes=(node.name,),
        drain_reason=whole_words(" ".join(text.split()), 150),
        rung=rung,
        label=label,
        gpus=_gpus_at_fault(incident) if rung is Rung.RESET_GPU else (),
    )


def _gpus_at_fault(incident: OpenIncident | None) -> tuple[str, ...]:
    detail = incident.detail if incident is not None else None
    return (detail.gpu,) if isinstance(detail, HardwareDetail) and detail.gpu else ()


def validation_plan(
    node: NodeView, rung: Rung | None, label: str, hours: float, peers: tuple[str, ...] = (), *, meets: bool = False
) -> ValidationPlan:
    """It ends with the node still reserved for the control plane; the next decision follows from the result.
    `meets`: its network is tested with nodes that are burnt in beside it.
    """
    network = (StepName.TEST_NETWORK, StepName.AWAIT_PEERS) if meets else ()
    return ValidationPlan(
        steps=(StepName.HOLD_NODE, StepName.RESUME_NODE, StepName.RUN_VALIDATION, *network),
        nodes=(node.name,),
        rung=rung,
        hours=hours,
        label=label,
        suspect=node.state is NodeState.SUSPECT,
        peers=peers,
        gpus=0 if node.in_mig_mode else node.whole_gpus,
        other_ports=tuple(port.label for port in node.ports if port.role is not PortRole.TRAINING),
    )


def manual_repair_plan(node: NodeView, finding: Finding, label: str) -> ManualRepairPlan:
    return ManualRepairPlan(
        steps=(StepName.DRAIN_NODES, StepName.RELEASE_NODE, StepName.OPEN_TICKET),
        nodes=(node.name,),
        drain_reason=drain_reason(finding),
        label=label,
        replaces=isinstance(finding.detail, RepairDetail) and finding.detail.rung is Rung.REPLACE,
    )


def take_back_plan(node: NodeView, finding: Finding, under_way: Recovery | None) -> TakeBackPlan:
    """Drained first, and only then no longer reserved: no other job starts in between.

    A node that Slurm has drained by itself meanwhile gets the control plane's reason: otherwise the drain would not
    count as done.
    """
    spare = (StepName.TAKE_SPARES,) if node.is_spare else ()
    return TakeBackPlan(
        steps=(StepName.DRAIN_NODES, *spare, StepName.RELEASE_NODE),
        nodes=(node.name,),
        renamed_nodes=(node.name,),
        drain_reason=drain_reason(finding),
        supersedes=under_way.id if under_way else None,
    )


def hold_plan(node: NodeView, finding: Finding, under_way: Recovery | None) -> QuarantinePlan:
    spare = (StepName.TAKE_SPARES,) if node.is_spare else ()
    return QuarantinePlan(
        steps=(StepName.DRAIN_NODES, *spare, StepName.RELEASE_NODE),
        nodes=(node.name,),
        drain_reason=drain_reason(finding),
        supersedes=under_way.id if under_way else None,
    )


def return_plan(
    snapshot: Snapshot, node: NodeView, config: Config, under_way: Recovery | None, *, on_probation: bool
) -> ReturnPlan:
    """Returns the node to the spare pool before any job can have it, if the pool is short of one; else on probation, as
    the last that Slurm gives to a job, if the site wants that.
    """
    joins = takes_into_pool(snapshot, node, config)
    before = weight_of_its_own(node)
    weight = config.validation.probation_weight
    raised = on_probation and not joins and weight > before
    return ReturnPlan(
        steps=(
            StepName.RESUME_NODE,
            *((StepName.FILL_POOL,) if joins else ()),
            *((StepName.RAISE_WEIGHT,) if raised else ()),
            StepName.RELEASE_NODE,
        ),
        nodes=(node.name,),
        supersedes=under_way.id if under_way else None,
        weight=weight if raised else None,
        weight_before=before,
        drained_at=node.slurm.reason_at if node.slurm is not None and node.slurm.draining else 0,
    )


def weight_of_its_own(node: NodeView) -> int:
    """Weight of the node in Slurm. A node that returns a second time may still have the raised weight of the first
    time.
    """
    record, now = node.record, node.slurm.weight if node.slurm else 1
    return record.weight_before if now == record.weight and record.weight_before is not None else now


def restore_weight_plan(node: NodeView, failed: Recovery | None) -> RestoreWeightPlan:
    """The step checks whether the node still has the raised weight. `failed`: that was to put it back before."""
    if node.record.weight is None and failed is not None and isinstance(failed.plan, RestoreWeightPlan):
        return failed.plan
    assert node.record.weight_before is not None
    return RestoreWeightPlan(
        steps=(StepName.RESTORE_WEIGHT,),
        nodes=(node.name,),
        weight=node.record.weight,
        weight_before=node.record.weight_before,
    )


def let_go_plan(node: NodeView, under_way: Recovery | None) -> LetGoPlan:
    return LetGoPlan(
        steps=(StepName.RELEASE_NODE,),
        nodes=(node.name,),
        supersedes=under_way.id if under_way else None,
    )


def fill_pool_plan(wanted: Sequence[str]) -> FillPoolPlan:
    return FillPoolPlan(steps=(StepName.FILL_POOL,), spares=tuple(wanted))


def leave_pool_plan(leaving: Sequence[str]) -> LeavePoolPlan:
    return LeavePoolPlan(steps=(StepName.TAKE_SPARES,), spares=tuple(leaving))
