"""What administrators and other tools did to nodes in Slurm: foreign drains, and lifted drains."""

from __future__ import annotations

from collections.abc import Iterator, Set

from understudy_controlplane.fleet.custody import Custody, Holder, Proof, in_slurm
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, LiftedDetail, Signal
from understudy_controlplane.fleet.node import (
    IN_REPAIR,
    OUT_OF_SERVICE,
    REASON_PREFIX,
    NodeState,
    NodeView,
)
from understudy_controlplane.fleet.recovery import (
    DrainPlan,
    QuarantinePlan,
    RecoveryStatus,
    RecoveryStep,
    ReturnPlan,
    StepName,
    StepStatus,
    SwapPlan,
)
from understudy_controlplane.fleet.slurm import INVALID_REG, Service, SlurmNode
from understudy_controlplane.fleet.snapshot import Snapshot

CALL_SECONDS_MAX = 10.0
"""After this time a call to Slurm by a control plane that has ended has its effect, or never will."""

HEARD_LATELY_SECONDS = 10.0

TOOLS = {
    "NHC:": "nhc",  # helpers/node-mark-offline of mej/nhc
    "[node_problem]": "soperator",  # internal/consts/slurm.go, check_runner.py of nebius/soperator
    "[hardware_problem]": "soperator",
    "[user_problem]": "soperator",
    "[compute_maintenance]": "soperator",
    "slurm-operator:": "slinky",  # also where NVSentinel has cordoned the Kubernetes node: it writes nothing to Slurm
}
"""How tools begin the reasons that they give, and the tool. Such a drain is as little Understudy's as a person's."""


def administration(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.slurm.read_at is None:
        return
    returning = {
        name
        for recovery in snapshot.recoveries
        if isinstance(recovery.plan, ReturnPlan)
        for name in recovery.plan.nodes
    }
    for node in snapshot.set_apart:
        changed_at = max(node.record.since, snapshot.history.drains_lifted.get(node.name, 0.0))
        if node.name in returning or snapshot.slurm.read_at <= changed_at:
            continue  # this reading is older than the last change of the record, or than the return itself
        if node.slurm is not None and snapshot.custody(node.name).proven_by is not Proof.IN_SERVICE:
            yield from _judge(snapshot, node, node.slurm)


NOT_RETURNED = {
    Proof.RETURN_REFUSED: (Signal.RETURN_REFUSED, "Slurm has not resumed it"),
    Proof.RETURN_LOST: (Signal.RETURN_REFUSED, "slurmctld lost in a crash that it was resumed"),
    Proof.RETURN_CANCELLED: (Signal.RETURN_CANCELLED, "an operator cancelled its return, and Slurm has not resumed it"),
}


def _judge(snapshot: Snapshot, node: NodeView, slurm: SlurmNode) -> Iterator[Finding]:
    held, read_at = snapshot.custody(node.name), snapshot.slurm.read_at or 0.0
    in_repair = node.state in IN_REPAIR
    shown = Evidence({"reason": slurm.reason, "user": slurm.reason_user, "time": slurm.reason_at})
    if held.proven_by in NOT_RETURNED:
        signal, words = NOT_RETURNED[held.proven_by]
        rule = f"administration.{held.proven_by.value}"
        yield Finding(signal, rule, node.name, snapshot.now, f"{words}: {slurm.reason}")
    elif in_repair and held.holder is Holder.SLURM and held.proven_by is Proof.REASON:
        # No administrator did this: it is the result of the repair or the validation.
        signal = Signal.VALIDATION_FAILED if node.state is NodeState.VALIDATING else Signal.REPAIR_FAILED
        words = f"Slurm itself took it out of service during its repair: {slurm.reason}"
        yield Finding(signal, "administration.slurm_drain", node.name, read_at, words, shown)
    elif held.by_others:
        if node.state is not NodeState.FOREIGN_DRAIN and (in_repair or node.state not in OUT_OF_SERVICE):
            tool = next((one for words, one in TOOLS.items() if slurm.reason.startswith(words)), "")
            words = f"drained by {tool or slurm.reason_user or 'an unknown user'}: {slurm.reason or 'no reason given'}"
            rule = f"administration.{tool or 'foreign_drain'}"
            yield Finding(Signal.DRAINED_BY_OTHERS, rule, node.name, read_at, words, shown)
    elif held.proven_by is Proof.LIFTED:
        yield Finding(
            Signal.DRAIN_LIFTED,
            "administration.drain_lifted",
            node.name,
            read_at,
            "the node was resumed in Slurm",
            Evidence({"control_plane_reason": node.record.drain_reason}),
            detail=_lifted(node),
        )


def _lifted(node: NodeView) -> LiftedDetail | None:
    """When it was resumed since the last reading that showed it drained is not known: what was reported since counts.
    None: what its repair itself may have caused counts as little as what was known before.
    """
    if node.state in IN_REPAIR:
        return None
    return LiftedDetail(after=max(node.shown_out_at, node.record.drained_at or 0.0))


def undrained(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes that are out of service here, and that Slurm offers to jobs: the drain was refused, or slurmctld lost it in
    a crash. Or Slurm has put its own reason in the place of the control plane's, which would keep it from a repair and
    from its return. It is drained again; a recovery under way does that for its own nodes.
    """
    under_way = {name for recovery in snapshot.recoveries for name in recovery.plan.nodes}
    for node in snapshot.set_apart:
        slurm = node.slurm
        held = snapshot.custody(node.name)
        if slurm is None or node.state in IN_REPAIR or node.name in under_way:
            continue
        if _replaced(node, slurm, held):
            words = f"Slurm has put its own reason in the place of the control plane's: {slurm.reason}"
        elif slurm.draining or in_slurm(slurm).by_others:
            continue
        elif node.state in OUT_OF_SERVICE and (node.record.drained_at is None or held.in_effect):
            words = f"{node.state.value}, but Slurm has not drained it"
        elif held.proven_by is Proof.FORGOTTEN and not slurm.down:
            words = "slurmctld lost the drain in a crash"
        else:
            continue
        yield Finding(Signal.UNDRAINED, "administration.undrained", node.name, snapshot.now, words)


def _replaced(node: NodeView, slurm: SlurmNode, held: Custody) -> bool:
    """True if Slurm has written over the control plane's reason. While the node lacks what is configured, Slurm would
    do so again, and its reason shows what is missing: it stays.
    """
    record = node.record
    was_read = record.state in OUT_OF_SERVICE and record.drained_at is not None
    was_own = was_read and record.drain_reason.startswith(REASON_PREFIX) and slurm.reason_at >= record.drain_reason_at
    by_slurm = held.holder is Holder.SLURM and held.proven_by is Proof.REASON
    return was_own and by_slurm and slurm.draining and INVALID_REG not in slurm.flags


def cancelled(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes that a recovery was to take out of service, until an operator cancelled or rejected it before their drain:
    they stay.

    A node that is drained already stays drained: who cancelled the rest of the recovery may resume it. A move that was
    rejected has condemned no node: one that is quarantined was so before.
    """
    status = RecoveryStatus.CANCELLED
    rejected = (one for one in snapshot.proposals if one.status is status and isinstance(one.plan, QuarantinePlan))
    for recovery in (*snapshot.history.cancelled, *rejected):
        for name in recovery.plan.nodes if isinstance(recovery.plan, DrainPlan) else ():
            node = snapshot.nodes.get(name)
            if node is None or node.slurm is None or node.slurm.taken_out:
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
    """True if the node is heard and Slurm would use it. A dead node is not accused in each round: a probe of its slurmd
    may be out of date.
    """
    usable = node.service is Service.USABLE and node.slurmd_silent_since is None
    quarantined = node.state is NodeState.QUARANTINED and node.record.drained_at is None
    heard = node.heard_at is not None and now - node.heard_at <= HEARD_LATELY_SECONDS
    return quarantined and usable and (heard or not node.has_agent)
