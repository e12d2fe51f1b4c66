"""What launchers are told. Pure: the same word from the same snapshot, so that a restart forgets none."""

from __future__ import annotations

from understudy_controlplane.config import Mode
from understudy_controlplane.fleet.gang import Anew, Gang, Word
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import REASON_PREFIX, NodeState
from understudy_controlplane.fleet.recovery import Plan, Recovery, StepName, StepStatus
from understudy_controlplane.fleet.snapshot import Snapshot


def words(snapshot: Snapshot) -> dict[int, Word]:
    """By job id. In mode observe nothing is told to anybody."""
    if snapshot.mode is not Mode.ACT:
        return {}
    return {key.job_id: _word(snapshot, key, gang) for key, gang in snapshot.gangs.items()}


def _word(snapshot: Snapshot, job: JobKey, gang: Gang) -> Word:
    """A node is bad from when its drain was read back until somebody vouches for it: while it stays in the allocation
    no launcher may use it again. Of one on which the gang runs now nothing is said unless a plan says so: without a
    spare a gang that is slow is better than none.
    """
    recovery = snapshot.recovery_of(job)
    plan = recovery.plan if recovery is not None and _is_told(recovery) else None
    bad = {
        name: bare_reason(node.record.drain_reason)
        for name in gang.nodes
        if (node := snapshot.nodes.get(name)) is not None
        and node.state is NodeState.QUARANTINED
        and node.record.drained_at is not None
        and (name not in gang.seats or (plan is not None and name in plan.failed_nodes))
    }
    return Word(bad, anew(plan) if plan is not None else None)


def _is_told(recovery: Recovery) -> bool:
    step = recovery.step(StepName.TELL_LAUNCHER)
    return step is not None and step.status in (StepStatus.INTENDED, StepStatus.DONE)


def bare_reason(reason: str) -> str:
    return reason.removeprefix(REASON_PREFIX).strip() or "taken out of service"


def anew(plan: Plan) -> Anew | None:
    """The order to start the gang anew; None: its bad nodes are reason enough."""
    return Anew(plan.launch, plan.hang, plan.leaving) if plan.hang else None


def word_of(plan: Plan) -> Word:
    """What the plan itself has to say."""
    return Word(dict.fromkeys(plan.failed_nodes, bare_reason(plan.drain_reason)), anew(plan))
