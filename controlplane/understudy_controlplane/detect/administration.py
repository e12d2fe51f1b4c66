"""What administrators and other tools did to nodes in Slurm: foreign drains, and lifted drains."""

from __future__ import annotations

from collections.abc import Iterator, Set

from understudy_controlplane.detect.prolog import refusal_behind
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, LiftedDetail, Signal
from understudy_controlplane.fleet.node import (
    CLOCKS_APART_SECONDS,
    IN_REPAIR,
    OUT_OF_SERVICE,
    REASON_PREFIX,
    SLURM_SAVES_SECONDS,
    NodeState,
    NodeView,
)
from understudy_controlplane.fleet.recovery import (
    NODE_HOLD_PREFIX,
    DrainPlan,
    QuarantinePlan,
    Recovery,
    RecoveryStep,
    ReturnPlan,
    StepName,
    StepStatus,
    SwapPlan,
)
from understudy_controlplane.fleet.snapshot import Snapshot

CALL_SECONDS_MAX = 10.0
"""After this time a call to Slurm by a control plane that has ended has its effect, or never will."""

HEARD_LATELY_SECONDS = 10.0

CRASH_NOTICED_SECONDS = 60.0
"""Within this time after the start of slurmctld its first reading is expected."""


def administration(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.slurm_read_at is None:
        return
    returning = {
        name
        for recovery in snapshot.recoveries
        if isinstance(recovery.plan, ReturnPlan)
        for name in recovery.plan.nodes
    }
    for node in snapshot.nodes.values():
        changed_at = max(node.record.since, snapshot.drains_lifted.get(node.name, 0.0))
        if node.name in returning or snapshot.slurm_read_at <= changed_at:
            continue  # this reading is older than the last change of the record, or than the return itself
        reason = node.slurm.reason if node.slurm else ""
        if _was_not_returned(node, snapshot.returns_failed.get(node.name), snapshot):
            words = f"Slurm has not resumed it: {reason}"
            yield Finding(Signal.RETURN_REFUSED, "administration.return_refused", node.name, snapshot.now, words)
            continue
        if _is_drained_again_by_a_crash(node, snapshot):
            words = f"slurmctld lost in a crash that it was resumed: {reason}"
            yield Finding(Signal.RETURN_REFUSED, "administration.return_lost", node.name, snapshot.now, words)
            continue
        if _was_not_returned(node, snapshot.returns_cancelled.get(node.name), snapshot):
            words = f"an operator cancelled its return, and Slurm has not resumed it: {reason}"
            yield Finding(Signal.RETURN_CANCELLED, "administration.return_cancelled", node.name, snapshot.now, words)
            continue
        if refusal_behind(snapshot, node) is None:  # otherwise Understudy owns the drain, whatever its reason in Slurm
            kept = f"{NODE_HOLD_PREFIX}{node.name}" in snapshot.reservations
            reservation_deleted = (
                node.state in IN_REPAIR and not kept and _was_kept(snapshot.recovery_on(node.name), snapshot)
            )
            yield from _judge(node, snapshot.slurm_read_at, snapshot.slurmctld_started_at, kept, reservation_deleted)


def _was_not_returned(node: NodeView, recovery: Recovery | None, snapshot: Snapshot) -> bool:
    """`recovery`, which has failed or was cancelled, was to lift the very drain that Slurm still shows."""
    if recovery is None or not isinstance(recovery.plan, ReturnPlan):
        return False
    drained_at = recovery.plan.drained_at  # by slurmctld's clock, like the time of the reason
    same = drained_at > 0 and node.slurm is not None and node.slurm.reason_at == drained_at
    return (same and _has_own_drain(node)) or _is_still_drained(node, recovery.decided_at, snapshot)


def _is_still_drained(node: NodeView, returned_at: float, snapshot: Snapshot) -> bool:
    """By the control plane, as before its return to service."""
    if node.slurm is None or not _has_own_drain(node):
        return False
    set_at = node.slurm.reason_at
    reason_at = min(set_at, set_at - snapshot.slurm_ahead_seconds)  # a clock may have been set since
    return reason_at <= returned_at or reason_at - snapshot.now > CLOCKS_APART_SECONDS  # both clocks were set back


def _has_own_drain(node: NodeView) -> bool:
    """By its reason. It is in service otherwise."""
    slurm = node.slurm
    in_service = node.state not in OUT_OF_SERVICE and node.state is not NodeState.FOREIGN_DRAIN
    return slurm is not None and slurm.draining and slurm.reason.startswith(REASON_PREFIX) and in_service


def _is_drained_again_by_a_crash(node: NodeView, snapshot: Snapshot) -> bool:
    """Where it is drained since right after the crash, however long a pause has let it be: later an administrator may
    have drained it, and Slurm have kept the old reason.
    """
    lifted_at, ahead = snapshot.drains_lifted.get(node.name), snapshot.slurm_ahead_seconds
    if lifted_at is None or snapshot.slurmctld_started_at is None:
        return False
    started_at = snapshot.slurmctld_started_at - ahead
    if (node.out_since or snapshot.now) - started_at > CRASH_NOTICED_SECONDS:
        return False
    last_open_at = min(started_at, node.out_since or started_at)  # slurmctld may have crashed twice since
    lost = started_at - lifted_at > -CLOCKS_APART_SECONDS and last_open_at - lifted_at < SLURM_SAVES_SECONDS
    return lost and _is_still_drained(node, lifted_at, snapshot)


def _judge(
    node: NodeView, read_at: float, slurmctld_started_at: float | None, kept: bool, reservation_deleted: bool
) -> Iterator[Finding]:
    """`kept`: Understudy has reserved the node for its repair, so it need not be drained; `reservation_deleted`: it
    had, and an administrator has deleted the reservation.
    """
    slurm, record = node.slurm, node.record
    if slurm is None:
        return
    in_repair = node.state in IN_REPAIR
    owned = record.owns(slurm) or (in_repair and slurm.reboot_given_up(REASON_PREFIX))
    out_of_service = slurm.draining or (slurm.down and not slurm.lost)
    if out_of_service and not owned:
        if in_repair and slurm.out_by_slurm:
            # No administrator did this: it is the result of the repair or the validation.
            yield Finding(
                Signal.VALIDATION_FAILED if node.state is NodeState.VALIDATING else Signal.REPAIR_FAILED,
                "administration.slurm_drain",
                node.name,
                read_at,
                f"Slurm itself took it out of service during its repair: {slurm.reason}",
                Evidence({"reason": slurm.reason, "user": slurm.reason_user, "time": slurm.reason_at}),
            )
        elif node.state is not NodeState.FOREIGN_DRAIN and (in_repair or node.state not in OUT_OF_SERVICE):
            yield Finding(
                Signal.DRAINED_BY_OTHERS,
                "administration.foreign_drain",
                node.name,
                read_at,
                f"drained by {slurm.reason_user or 'an unknown user'}: {slurm.reason or 'no reason given'}",
                Evidence({"reason": slurm.reason, "user": slurm.reason_user, "time": slurm.reason_at}),
            )
    elif (
        not slurm.draining
        and not slurm.down
        and (node.state is NodeState.FOREIGN_DRAIN or _was_drained(node, read_at) or reservation_deleted)
        and not (in_repair and kept)
        and not record.drain_may_be_forgotten(slurmctld_started_at)
    ):
        yield Finding(
            Signal.DRAIN_LIFTED,
            "administration.drain_lifted",
            node.name,
            read_at,
            "the node was resumed in Slurm",
            Evidence({"control_plane_reason": record.drain_reason}),
            detail=_lifted(node),
        )


def _lifted(node: NodeView) -> LiftedDetail | None:
    """When it was resumed since the last reading that showed it drained is not known: what was reported since counts.
    None: what its repair itself may have caused counts as little as what was known before.
    """
    if node.state in IN_REPAIR:
        return None
    return LiftedDetail(after=max(node.shown_out_at, node.record.drained_at or 0.0))


def _was_kept(recovery: Recovery | None, snapshot: Snapshot) -> bool:
    """The node was reserved, and this reading of Slurm is newer."""
    if recovery is None:
        return True  # it was the first step of what has ended since
    step = recovery.step(StepName.HOLD_NODE)
    at = step.done_at if step is not None else None
    return at is not None and (snapshot.slurm_read_at or 0.0) > at


def _was_drained(node: NodeView, read_at: float) -> bool:
    """Understudy's drain was carried out, and this reading of Slurm is newer."""
    at = node.record.drained_at
    return node.state in OUT_OF_SERVICE and at is not None and read_at > at


def undrained(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes that are out of service here, and that Slurm offers to jobs: the drain was refused, or slurmctld lost it in
    a crash. It is drained again; a recovery under way does that for its own nodes.
    """
    under_way = {name for recovery in snapshot.recoveries for name in recovery.plan.nodes}
    for node in snapshot.nodes.values():
        slurm = node.slurm
        if slurm is None or slurm.draining or slurm.taken_down(REASON_PREFIX) or node.state in IN_REPAIR:
            continue
        if node.name in under_way:
            continue
        if node.state in OUT_OF_SERVICE and (node.record.drained_at is None or slurm.left_down(REASON_PREFIX)):
            words = f"{node.state.value}, but Slurm has not drained it"
        elif node.record.drain_may_be_forgotten(snapshot.slurmctld_started_at) and not slurm.down:
            words = "slurmctld lost the drain in a crash"
        else:
            continue
        yield Finding(Signal.UNDRAINED, "administration.undrained", node.name, snapshot.now, words)


def cancelled(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes that a recovery was to take out of service, until an operator cancelled it before their drain: they stay.

    A node that is drained already stays drained: who cancelled the rest of the recovery may resume it.
    """
    for recovery in snapshot.cancelled:
        for name in recovery.plan.nodes if isinstance(recovery.plan, DrainPlan) else ():
            node = snapshot.nodes.get(name)
            if node is None or node.slurm is None or node.slurm.draining or node.slurm.down:
                continue
            planned = node.state in OUT_OF_SERVICE and node.state not in IN_REPAIR and node.record.drained_at is None
            if planned and node.record.since <= recovery.decided_at:
                words = f"recovery {recovery.id}, which was to drain it, was {recovery.outcome}"
                yield Finding(Signal.DRAIN_LIFTED, "operator.cancel", name, snapshot.now, words)


def faults_gone(snapshot: Snapshot, accused: Set[str]) -> Iterator[Finding]:
    """Nodes that were condemned, whose drain never began, and against which nothing is found any more: the control
    plane was away, paused, or only observed meanwhile. `accused`: nodes against which something is found now.
    """
    for recovery in snapshot.recoveries:
        drain = recovery.step(StepName.DRAIN_NODES)
        if not isinstance(recovery.plan, SwapPlan | QuarantinePlan) or recovery.plan.requested:
            continue
        if drain is None or not _has_no_effect(drain, snapshot.now):
            continue
        for name in recovery.plan.nodes:
            node = snapshot.nodes.get(name)
            if (
                node is not None
                and name not in accused
                and is_well(node, snapshot.now)
                and node.record.since < snapshot.now
            ):
                words = f"nothing is found against it any more, and recovery {recovery.id} has not drained it yet"
                yield Finding(Signal.FAULT_GONE, "administration.fault_gone", name, snapshot.now, words)


def _has_no_effect(drain: RecoveryStep, now: float) -> bool:
    """It never began, or the control plane ended before it could act. `is_well` asks whether Slurm shows a drain."""
    if drain.status is StepStatus.INTENDED:
        return drain.intended_at is not None and now - drain.intended_at > CALL_SECONDS_MAX
    return drain.status is StepStatus.PLANNED and not drain.attempts


def is_well(node: NodeView, now: float) -> bool:
    """As far as can be known: it is heard, and Slurm would use it. A dead node is not accused in each round: a probe of
    its slurmd may be out of date.
    """
    usable = node.slurm is not None and node.slurm.usable and node.slurmd_silent_since is None
    quarantined = node.state is NodeState.QUARANTINED and node.record.drained_at is None
    heard = node.heard_at is not None and now - node.heard_at <= HEARD_LATELY_SECONDS
    return quarantined and usable and (heard or not node.has_agent)
