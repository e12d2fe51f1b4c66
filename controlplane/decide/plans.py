"""Plans: the steps that carry a decision out, as data."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.fleet.finding import Finding, Signal
from controlplane.fleet.job import Job
from controlplane.fleet.node import REASON_PREFIX, NodeState, NodeView
from controlplane.fleet.recovery import SEATS_PREFIX, Plan, Recovery, RecoveryKind, StepName
from controlplane.fleet.snapshot import Snapshot

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


def drain_reason(finding: Finding) -> str:
    """At most 200 characters; begins with the prefix by which our drains are known."""
    return f"{REASON_PREFIX} {finding.rule}: {finding.summary}".replace("'", "").replace('"', "")[:200]


def quarantine_plan(finding: Finding, node: NodeView) -> Plan:
    """The node leaves service; nobody is moved."""
    known = node.record.drain_reason  # what it was drained for before Slurm forgot
    again = finding.signal is Signal.UNDRAINED and known.startswith(REASON_PREFIX)
    return Plan(
        kind=RecoveryKind.QUARANTINE,
        steps=(StepName.DRAIN_NODES, StepName.TAKE_SPARES) if node.is_spare else (StepName.DRAIN_NODES,),
        failed_nodes=(finding.node,),
        dead_nodes=(finding.node,) if finding.dead else (),
        spares=(finding.node,) if node.is_spare else (),
        drain_reason=known if again else drain_reason(finding),
    )


def swap_plan(
    snapshot: Snapshot, job: Job, findings: Sequence[Finding], seats: Sequence[str], spares: Sequence[str]
) -> Plan:
    """The gang moves from the nodes of `findings` to `spares`. `seats` are those it has or was promised."""
    earlier: Recovery | None = snapshot.recovery_of(job.key)
    # A job that pends is on its way from the attempt that the earlier plan gave up; one that runs is given up now.
    on_its_way = earlier.plan if earlier and not job.running else None
    accused = [finding for finding in findings if finding.signal is not Signal.SEAT_LOST]
    # Nodes that others took are no failed ones.
    lost = {finding.node for finding in findings if finding.signal is Signal.SEAT_LOST}
    failed = tuple(finding.node for finding in accused)
    dead = tuple(finding.node for finding in findings if finding.dead)
    if earlier:
        # Those that a person has vouched for meanwhile are no longer held against.
        held = {name for name, node in snapshot.nodes.items() if node.state is NodeState.QUARANTINED}
        failed = (*(name for name in earlier.plan.failed_nodes if name in held), *failed)
        dead = (*(name for name in earlier.plan.dead_nodes if name in held), *dead)
    kept = tuple(name for name in seats if name not in failed and name not in lost)
    table = snapshot.tables.get(job.key)
    last_step = int(table.last_step.max(initial=-1)) if table else -1
    own = "" if job.slurm.reservation.startswith(SEATS_PREFIX) else job.slurm.reservation
    return Plan(
        kind=RecoveryKind.POOL_SWAP,
        steps=SWAP_STEPS,
        failed_nodes=failed,
        dead_nodes=dead,
        spares=tuple(spares),
        seats=(*kept, *spares),
        job=job.key,
        user=job.slurm.user,
        submit_at=on_its_way.submit_at if on_its_way else job.slurm.submit_at,
        restart_count=on_its_way.restart_count if on_its_way else job.slurm.restart_count,
        last_step=on_its_way.last_step if on_its_way else (last_step if last_step >= 0 else None),
        supersedes=earlier.id if earlier else None,
        reservation=earlier.plan.reservation if earlier else own,
        drain_reason=earlier.plan.drain_reason if earlier and not accused else drain_reason(findings[0]),
    )


def rename_plan(finding: Finding) -> Plan:
    """Slurm drained the node because our Prolog refused: the drain is given our reason."""
    node = finding.node
    return Plan(
        kind=RecoveryKind.QUARANTINE,
        steps=(StepName.DRAIN_NODES,),
        failed_nodes=(node,),
        drain_reason=drain_reason(finding),
        renamed_nodes=(node,),
    )


def release_plan(job: Job) -> Plan:
    return Plan(
        kind=RecoveryKind.RELEASE_JOB,
        steps=(StepName.RELEASE_JOB,),
        job=job.key,
        user=job.slurm.user,
        submit_at=job.slurm.submit_at,
        restart_count=job.slurm.restart_count,
    )


def fill_pool_plan(wanted: Sequence[str]) -> Plan:
    return Plan(kind=RecoveryKind.FILL_POOL, steps=(StepName.FILL_POOL,), spares=tuple(wanted))
