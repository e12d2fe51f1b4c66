"""Holds the plan of a recovery under way against the newest facts before each effect. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass

from understudy_controlplane.config import Mode, Straggler
from understudy_controlplane.detect.administration import CALL_SECONDS_MAX, is_well
from understudy_controlplane.detect.stranded import awaits_pace, still_accused, trains_on
from understudy_controlplane.fleet.custody import Proof
from understudy_controlplane.fleet.decision import Decision
from understudy_controlplane.fleet.finding import ACCUSING, HANGS, Finding, Signal, failed_detectors, unjudged_nodes
from understudy_controlplane.fleet.gang import ENDED_WELL
from understudy_controlplane.fleet.job import opted_in
from understudy_controlplane.fleet.node import IN_REPAIR, OUT_OF_SERVICE, NodeState, NodeView
from understudy_controlplane.fleet.recovery import (
    DrainPlan,
    LetGoPlan,
    PoolSwapPlan,
    QuarantinePlan,
    Recovery,
    RecoveryStatus,
    RepairPlan,
    ReturnPlan,
    Rung,
    StepName,
    StepStatus,
    SwapPlan,
    ValidationPlan,
    job_of,
)
from understudy_controlplane.fleet.slurm import ARRAY_LIMIT, SlurmJob
from understudy_controlplane.fleet.snapshot import Snapshot

HEARD_AGAIN_SECONDS = 4.0
"""After a start of the control plane each agent that is alive has reported by then."""

RANKS_AGAIN_SECONDS = 60.0
"""Seconds after a start of the control plane in which no gang is restarted for an earlier hang, unless it is found
again: ranks that are at work have finished a step by then.
"""

BACK = frozenset({NodeState.IN_SERVICE, NodeState.SUSPECT, NodeState.PROBATION})
"""A node that has left its quarantine for one of these states was vouched for by a person, or is well again."""

WORK_ON_A_NODE = (StepName.REBOOT_NODE, StepName.RESET_GPU, StepName.RUN_VALIDATION)


@dataclass(frozen=True, slots=True)
class Ending:
    """The recovery ends early: nothing more is done for its plan, and what was begun is undone."""

    status: RecoveryStatus
    why: str
    gang_waits: bool = False  # in Slurm's queue, since its attempt was ended: it may start on the spares


@dataclass(frozen=True, slots=True)
class Course:
    may_act: bool = True
    ending: Ending | None = None
    drain_forgotten: bool = False  # slurmctld may have lost a drain of this recovery in a crash: then it is made again


AS_PLANNED = Course()

BY_DEFAULT = Straggler()


def course(
    recovery: Recovery,
    snapshot: Snapshot,
    findings: Sequence[Finding],
    decisions: Iterable[Decision] = (),
    policy: Straggler = BY_DEFAULT,
) -> Course:
    """`findings` are those of the snapshot, `decisions` those of this round."""
    forgotten = any(
        name in snapshot.nodes and snapshot.custody(name).proven_by is Proof.FORGOTTEN for name in recovery.plan.nodes
    )
    lifted = {one.node for one in findings if one.signal in (Signal.DRAIN_LIFTED, Signal.FAULT_GONE)}
    decided = tuple(decisions)
    back = lifted | {one.subject for one in decided if one.to_state in BACK}
    out = {one.subject for one in decided if one.to_state in OUT_OF_SERVICE}
    may_act = (
        _may_act(recovery, snapshot)
        and not _awaits_ranks(recovery, snapshot, findings)
        and not _awaits_pace(recovery, snapshot, findings)
        and not _awaits_call(recovery, snapshot, findings)
        and not _begins_unjudged(recovery, findings)
        and not _begins_in_maintenance(recovery, snapshot)
    )
    known = Known(back, out, still_accused(findings), policy)
    return Course(may_act, _ending(recovery, snapshot, known), forgotten)


def _begins_unjudged(recovery: Recovery, findings: Sequence[Finding]) -> bool:
    """True if a detector, or a decision about its node, failed: then it is not known whether the node may return."""
    plan = recovery.plan
    if not isinstance(plan, ReturnPlan | RepairPlan | ValidationPlan) or plan.requested:
        return False
    unjudged = failed_detectors(findings) or not unjudged_nodes(findings).keys().isdisjoint(plan.nodes)
    return bool(unjudged) and not any(step.attempts for step in recovery.steps)


def _begins_in_maintenance(recovery: Recovery, snapshot: Snapshot) -> bool:
    """True if a maintenance of the node has begun between the decision and the work on the node: in Slurm, or of an
    operator, who lets a validation go on. What was begun before goes on, and what a recovery that ends has to undo is
    undone.
    """
    plan = recovery.plan
    if not isinstance(plan, RepairPlan | ValidationPlan) or recovery.ends_as is not None:
        return False
    failed = any(step.status is StepStatus.FAILED for step in recovery.steps)
    if failed or any(recovery.begun(name) for name in WORK_ON_A_NODE):
        return False
    if isinstance(plan, RepairPlan) and not snapshot.worked_on.isdisjoint(plan.nodes):
        return True
    shown = (snapshot.nodes[name].slurm for name in plan.nodes if name in snapshot.nodes)
    return any(slurm is not None and slurm.in_maintenance for slurm in shown)


def _may_act(recovery: Recovery, snapshot: Snapshot) -> bool:
    """True if the recovery may act. In a pause, of all or of its job, nothing begins, and what is under way stops where
    that is safe: not between two attempts of a gang. A pause with `--now` stops it there, too. What people ask for
    themselves is done in a pause.
    """
    plan = recovery.plan
    if _unheard(recovery, snapshot) or snapshot.mode_of(plan.claimed, job_of(plan)) is Mode.OBSERVE:
        return False
    paused = snapshot.operator.paused or job_of(recovery.plan) in snapshot.operator.paused_jobs
    if not paused or recovery.ends_as is RecoveryStatus.CANCELLED:
        return True
    if snapshot.operator.halted:
        return False
    failed = any(step.status is StepStatus.FAILED for step in recovery.steps)  # what it began is undone
    return recovery.plan.requested or _past_return(recovery, snapshot) or failed or recovery.ends_as is not None


def _unheard(recovery: Recovery, snapshot: Snapshot) -> bool:
    """True if a drain may be due whose reason is gone: this process has just started, and has not heard the node."""
    drain = recovery.step(StepName.DRAIN_NODES)
    if snapshot.now - snapshot.started_at > HEARD_AGAIN_SECONDS or recovery.plan.requested:
        return False
    if drain is None or drain.status not in (StepStatus.PLANNED, StepStatus.INTENDED):
        return False
    nodes = (snapshot.nodes.get(name) for name in recovery.plan.nodes)
    planned_before = recovery.decided_at < snapshot.started_at
    return planned_before and any(node is not None and node.has_agent and node.heard_at is None for node in nodes)


def _awaits_call(recovery: Recovery, snapshot: Snapshot, findings: Sequence[Finding]) -> bool:
    """True if nothing speaks against the nodes any more that an earlier process was about to drain. Its call may still
    take effect for a while; after that the recovery is overtaken (`detect.administration.faults_gone`).
    """
    drain = recovery.step(StepName.DRAIN_NODES)
    if drain is None or drain.status is not StepStatus.INTENDED or recovery.plan.requested:
        return False
    begun = drain.intended_at
    if begun is None or begun > snapshot.started_at or snapshot.now - begun > CALL_SECONDS_MAX:
        return False
    accused = {one.node for one in findings if one.signal in ACCUSING}
    nodes = [snapshot.nodes.get(name) for name in recovery.plan.nodes]
    return all(one is not None and one.name not in accused and is_well(one, snapshot.now) for one in nodes)


def _awaits_ranks(recovery: Recovery, snapshot: Snapshot, findings: Sequence[Finding]) -> bool:
    """True if the gang may have left its hang while no control plane ran: this process has not heard its ranks yet."""
    plan = recovery.plan
    if not isinstance(plan, SwapPlan) or not plan.hang or _past_return(recovery, snapshot) or plan.requested:
        return False
    if recovery.ends_as is not None or recovery.decided_at >= snapshot.started_at:
        return False
    if snapshot.now - snapshot.started_at > RANKS_AGAIN_SECONDS:
        return False
    return not any(one.signal in HANGS and one.job == plan.job for one in findings)


def _awaits_pace(recovery: Recovery, snapshot: Snapshot, findings: Sequence[Finding]) -> bool:
    """True if the gang's nodes may have become fast again while no control plane ran: this process has not seen a
    window of its steps yet.
    """
    plan = recovery.plan
    if not isinstance(plan, SwapPlan) or _past_return(recovery, snapshot) or plan.requested:
        return False
    job = snapshot.jobs.get(plan.job)
    if job is None or recovery.ends_as is not None or recovery.decided_at >= snapshot.started_at:
        return False
    if any(one.signal in HANGS and one.job == plan.job for one in findings):
        return False
    accused, left = still_accused(findings), {*plan.nodes, *plan.leaving}
    return bool(left) and all(awaits_pace(snapshot, name, job, accused) for name in left)


def _past_return(recovery: Recovery, snapshot: Snapshot) -> bool:
    """True if it is safer to start the gang's next attempt than to stop here. A job that has lost a dead node may run
    on in name only.
    """
    plan, job = recovery.plan, None
    if isinstance(plan, PoolSwapPlan) and not plan.dead_nodes and _shows_requeue(recovery, snapshot):
        job = snapshot.jobs.get(plan.job)
    return has_ended_attempt(recovery, job.slurm if job is not None else None)


def _shows_requeue(recovery: Recovery, snapshot: Snapshot) -> bool:
    """True if this reading of Slurm shows what has become of a requeue that was begun. One of this process may be under
    way.
    """
    requeue = recovery.step(StepName.REQUEUE_JOB)
    if requeue is None or requeue.status is not StepStatus.INTENDED:
        return False
    before = (requeue.intended_at or 0.0) < snapshot.started_at
    return before and (snapshot.slurm.read_at or 0.0) >= snapshot.started_at


def has_ended_attempt(recovery: Recovery, job: SlurmJob | None) -> bool:
    """True if the recovery has ended the attempt of its gang. A process that died just before the requeue has not made
    it: then the job runs on, and the plan may still be given up.

    `job`: as Slurm shows it now; None: not known, or what it shows may be older than the requeue.
    """
    plan = recovery.plan
    same = isinstance(plan, PoolSwapPlan) and job is not None and job.restart_count <= plan.restart_count
    runs_on = same and job is not None and (job.state == "RUNNING" or job.suspended)
    return recovery.has_begun_to_end_attempt and not runs_on


@dataclass(frozen=True, slots=True)
class Known:
    """Nodes of which this round knows something."""

    back: Set[str]  # they come back to service
    out: Set[str]  # they are taken out of it
    accused: Set[str]
    policy: Straggler  # by which a slow node is slow no longer


def _ending(recovery: Recovery, snapshot: Snapshot, known: Known) -> Ending | None:
    if recovery.ends_as is not None:
        return None
    cancel = snapshot.operator.cancels.get(recovery.id)
    if cancel is not None:
        words = f"cancelled by {cancel.by}: {cancel.reason}"
        return Ending(RecoveryStatus.CANCELLED, words, gang_waits=_past_return(recovery, snapshot))
    if recovery.decided_at >= snapshot.now:
        return None  # planned on this very snapshot
    why = _overtaken(recovery, snapshot, known)
    return Ending(RecoveryStatus.OVERTAKEN, why) if why else None


def _overtaken(recovery: Recovery, snapshot: Snapshot, known: Known) -> str:
    """Fact that overtook the plan; empty: it still fits."""
    match recovery.plan:
        case SwapPlan() if not _past_return(recovery, snapshot):
            return (
                _back(recovery, snapshot, known.back)
                or _gang_goes_on(recovery, snapshot)
                or _trains_on(recovery, snapshot, known)
            )
        case QuarantinePlan():
            return _back(recovery, snapshot, known.back)
        case RepairPlan(rung=Rung.REBOOT, nodes=(name,)) if not recovery.begun(StepName.REBOOT_NODE):
            node = snapshot.nodes.get(name)
            again = node is not None and node.boot_id and node.record.past_boot_id not in ("", node.boot_id)
            return f"{name} has booted since" if again else ""
        case RepairPlan(nodes=(name,)) | ValidationPlan(nodes=(name,)):
            node = snapshot.nodes.get(name)
            left = node is not None and node.state not in IN_REPAIR and node.record.since > recovery.decided_at
            return f"{name} is {node.state.value} by now" if node is not None and left else ""
        case ReturnPlan(nodes=(name,)) | LetGoPlan(nodes=(name,)):
            node = snapshot.nodes.get(name)
            out_now = node is not None and node.state in OUT_OF_SERVICE and not _stayed_out(recovery, node)
            return f"{name} was taken out of service again" if name in known.out or out_now else ""
    return ""


def _stayed_out(recovery: Recovery, node: NodeView) -> bool:
    """A node that is let go may stay out of service: only its reservation is not needed any more."""
    return isinstance(recovery.plan, LetGoPlan) and node.record.since <= recovery.decided_at


def _back(recovery: Recovery, snapshot: Snapshot, back: Set[str]) -> str:
    """Reason to stop if none of the nodes that the plan takes out of service is to leave it any more."""
    assert isinstance(recovery.plan, DrainPlan)
    nodes = [snapshot.nodes[name] for name in recovery.plan.nodes if name in snapshot.nodes]
    cleared = (node.state in BACK and node.record.cleared_at > recovery.decided_at for node in nodes)
    if nodes and all(known or node.name in back for node, known in zip(nodes, cleared, strict=True)):
        return f"{', '.join(node.name for node in nodes)} is back in service"
    return ""


def _gang_goes_on(recovery: Recovery, snapshot: Snapshot) -> str:
    """Reason to stop if the attempt that the plan would end is over, or has left its hang by itself."""
    plan = recovery.plan
    assert isinstance(plan, SwapPlan)
    job = snapshot.jobs.get(plan.job)
    if job is None or not job.running:
        return ""
    if isinstance(plan, PoolSwapPlan) and job.slurm.restart_count > plan.restart_count and not _drains(recovery):
        return f"job {plan.job.job_id} was restarted meanwhile (restart {job.slurm.restart_count})"
    table = snapshot.progress.tables.get(plan.job)
    goes_on = table is not None and table.advanced_at > recovery.decided_at
    if plan.hang and table is not None and job.slurm.restart_count == plan.restart_count and goes_on:
        return f"job {plan.job.job_id} has finished step {table.number} since: it no longer hangs"
    return ""


def _trains_on(recovery: Recovery, snapshot: Snapshot, known: Known) -> str:
    """Reason to stop if the gang refutes what each of its nodes was to be left for."""
    plan = recovery.plan
    assert isinstance(plan, SwapPlan)
    job, left = snapshot.jobs.get(plan.job), {*plan.nodes, *plan.leaving}
    if job is None or not job.running or not left or plan.requested or _drains(recovery):
        return ""
    if all(trains_on(snapshot, name, job, recovery.decided_at, known.accused, known.policy) for name in left):
        return f"{', '.join(sorted(left))} is well again, and job {plan.job.job_id} trains on there"
    return ""


def _drains(recovery: Recovery) -> bool:
    """True if its nodes are still to be drained: that is right whatever has become of the gang."""
    return bool(recovery.plan.nodes) and not recovery.begun(StepName.DRAIN_NODES)


def ended_by_its_owner(recovery: Recovery, job: SlurmJob | None) -> Ending | None:
    """A job that was cancelled, or that has completed, never runs again: a swap of it has no purpose any more.

    `job`: as Slurm shows it right now. A job whose script failed meanwhile, most often for the very fault that the gang
    is moved for, is moved all the same.
    """
    plan = recovery.plan
    if not isinstance(plan, SwapPlan) or job is None:
        return None
    given_up = job.restart_count <= plan.restart_count
    ending = job.completing and given_up and not job.failed_by_itself
    if ending or job.state == "CANCELLED" or (job.state == "COMPLETED" and given_up):
        return Ending(RecoveryStatus.OVERTAKEN, job.end_in_words)
    return None


def ended_by_its_gang(recovery: Recovery, job: SlurmJob | None, ended_well: Callable[[], bool]) -> Ending | None:
    """The gang that was to be requeued has done its work, and Slurm does not show that yet. `ended_well`: whether every
    rank of the last launch of its attempt has ended well, as its launcher reports right now.
    """
    plan = recovery.plan
    if not isinstance(plan, PoolSwapPlan) or job is None or job.restart_count > plan.restart_count:
        return None
    if job.state != "RUNNING" or not ended_well():
        return None
    return Ending(RecoveryStatus.OVERTAKEN, f"job {plan.job.job_id} is not to run again: {ENDED_WELL}")


def suspended_since_its_hang(recovery: Recovery, job: SlurmJob | None) -> Ending | None:
    """A gang that was suspended since its hang was found may go on once it is resumed: it is judged afresh then."""
    plan = recovery.plan
    if not isinstance(plan, SwapPlan) or not plan.hang or job is None or job.suspended_or_resumed_at is None:
        return None
    if job.restart_count > plan.restart_count or has_ended_attempt(recovery, job):
        return None
    if job.suspended_or_resumed_at == plan.suspended_or_resumed_at:
        return None
    words = f"job {plan.job.job_id} was suspended since its hang was found: it is judged afresh once it goes on"
    return Ending(RecoveryStatus.OVERTAKEN, words)


def left_by_its_owner(recovery: Recovery, job: SlurmJob | None, opt_in_word: str) -> Ending | None:
    """Its owner has taken the word out of the job's comment: it is changed no more, but for what was begun. An attempt
    that was ended for its move is started again.
    """
    plan = recovery.plan
    if not isinstance(plan, SwapPlan) or job is None or opted_in(job.comment, opt_in_word):
        return None
    ended = job.restart_count > plan.restart_count or has_ended_attempt(recovery, job)
    if isinstance(plan, PoolSwapPlan) and ended:
        return None
    words = f"job {plan.job.job_id} is not managed any more: its comment lacks the word {opt_in_word}"
    return Ending(RecoveryStatus.OVERTAKEN, words)


def overtaken_in_its_array(recovery: Recovery, job: SlurmJob | None) -> Ending | None:
    """Another task of the job's array has started in its turn, and may run for days: nothing is kept for this one."""
    plan = recovery.plan
    if not isinstance(plan, SwapPlan) or job is None or not job.pending or job.reason != ARRAY_LIMIT:
        return None
    if job.restart_count <= plan.restart_count:
        return None
    words = f"another task of its array runs in its turn ({ARRAY_LIMIT}): Slurm starts it when that one ends"
    return Ending(RecoveryStatus.OVERTAKEN, words)


def undo_steps_of_failure(recovery: Recovery) -> tuple[StepName, ...]:
    """Steps to be added to a recovery of which a step failed: the drain stays."""
    return _spares_back(recovery) if recovery.ends_as is None else ()


def undo_steps(recovery: Recovery, ending: Ending) -> tuple[StepName, ...]:
    """Steps to be added to a recovery that ends early. Its seats are released by a step that the plan has."""
    drain = recovery.step(StepName.DRAIN_NODES)
    return (
        *(() if ending.gang_waits else _spares_back(recovery)),
        *((StepName.LIFT_DRAIN,) if drain is not None and drain.attempts else ()),
    )


def _spares_back(recovery: Recovery) -> tuple[StepName, ...]:
    """Spares that the gang has not got go back to their pool before its seats are released: in between no job takes
    them.
    """
    taken, released = recovery.step(StepName.TAKE_SPARES), recovery.step(StepName.RELEASE_SEATS)
    held = released is not None and released.status in (StepStatus.PLANNED, StepStatus.INTENDED)
    due = held and recovery.step(StepName.RETURN_SPARES) is None
    return (StepName.RETURN_SPARES,) if due and taken is not None and taken.attempts > 0 else ()
