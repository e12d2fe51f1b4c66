"""Builders of nouns for tests: say what matters, the rest is a healthy cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from understudy_controlplane.config import Config, Mode
from understudy_controlplane.fleet.job import Attempt, Job, JobKey
from understudy_controlplane.fleet.node import (
    DrainKind,
    NodeRecord,
    NodeState,
    NodeView,
    StoredKernelEvent,
    ValidationOrigin,
)
from understudy_controlplane.fleet.recovery import (
    NODE_HOLD_PREFIX,
    Plan,
    PlanBase,
    Recovery,
    RecoveryStatus,
    ReturnPlan,
    StepName,
)
from understudy_controlplane.fleet.slurm import SlurmJob, SlurmNode, SlurmReservation
from understudy_controlplane.fleet.snapshot import SlurmShown, Snapshot
from understudy_controlplane.fleet.steps import StepTable
from understudy_controlplane.fleet.suspicion import Suspicion, SuspicionCause
from understudy_controlplane.live.telemetry import Heard, uuids_of
from understudy_wire.facts import Fact, KernelEvent
from understudy_wire.hardware import Gpu, GpuStatus
from understudy_wire.messages import RELEASE, WIRE_VERSION, Report
from understudy_wire.ranks import RankWindow

NOW = 1_000_000.0
BOOT = "boot-1"
CLUSTER = "testbed"

PlanT = TypeVar("PlanT", bound=PlanBase)


def plan_as(kind: type[PlanT], plan: Plan | None) -> PlanT:
    assert isinstance(plan, kind), plan
    return plan


def config(**sections: Any) -> Config:
    """Its jobs have neither hook nor launcher that could confirm that a node is dead: it is believed at once."""
    silence = {"dead_unconfirmed_seconds": 6} | sections.pop("silence", {})
    return Config.model_validate({"cluster": CLUSTER, "mode": "act", "silence": silence, **sections})


def slurm_node(
    name: str, state: str = "IDLE", flags: Sequence[str] = (), reason: str = "", user: str = ""
) -> SlurmNode:
    return SlurmNode(name, "127.0.0.1", 6818, state, frozenset(flags), ("train",), reason, user)


def slurm_job(job_id: int = 7, nodes: Sequence[str] = ("n1", "n2", "n3", "n4"), **changes: Any) -> SlurmJob:
    values: dict[str, Any] = {
        "job_id": job_id,
        "submit_at": 500,
        "user": "researcher",
        "user_id": 1000,
        "name": "gang",
        "partition": "train",
        "state": "RUNNING",
        "restart_count": 0,
        "nodes": tuple(nodes),
        "node_count": len(nodes),
        "comment": "understudy",
        "batch": True,
        "requeue": True,
    }
    return SlurmJob(**(values | changes))


def job(managed: bool = True, **changes: Any) -> Job:
    slurm = slurm_job(**changes)
    return Job(JobKey(CLUSTER, slurm.job_id, slurm.submit_at), slurm, managed)


def gpu(index: int = 0, status: GpuStatus = GpuStatus.OK, **values: Any) -> Gpu:
    identity = {"uuid": f"GPU-{index}", "bus_id": f"0000:{index + 1:02x}:00.0"}
    return Gpu(index, status, **(identity | values))


def xid_event(node: str, xid: int, at: float = NOW - 1, sequence: int = 1, boot_id: str = BOOT) -> StoredKernelEvent:
    text = f"NVRM: Xid (PCI:0000:01:00): {xid}, pid=1, name=python, something"
    event = KernelEvent(boot_id, sequence, at, text, xid, "0000:01:00.0")
    return StoredKernelEvent(sequence, node, at, event)


def record(name: str, state: NodeState = NodeState.IN_SERVICE, **values: Any) -> NodeRecord:
    """Record with what its state requires: a suspect is suspected of its health, a drain is one for now."""
    required: dict[NodeState, dict[str, Any]] = {
        NodeState.SUSPECT: {"suspicions": suspected(SuspicionCause.HEALTH)},
        NodeState.QUARANTINED: {"drain_kind": DrainKind.NOW},
        NodeState.VALIDATING: {"validation_origin": ValidationOrigin.QUARANTINED},
    }
    return NodeRecord(name, state, **(required.get(state, {}) | values))


def suspected(*causes: SuspicionCause, since: float = 0.0) -> tuple[Suspicion, ...]:
    return tuple(Suspicion(cause, since) for cause in causes)


def node(
    name: str,
    state: NodeState = NodeState.IN_SERVICE,
    slurm: SlurmNode | None = None,
    heard_at: float | None = NOW - 0.5,
    **values: Any,
) -> NodeView:
    default = record(name, state, agent_seen_at=NOW - 500, slurmd_seen_at=NOW - 500)
    return NodeView(values.pop("record", default), slurm or slurm_node(name), heard_at, boot_id=BOOT, **values)


def returns(name: str, decided_at: float, drained_at: int = 0) -> dict[str, Recovery]:
    """One whose steps have failed. `drained_at`: by slurmctld's clock."""
    plan = ReturnPlan(nodes=(name,), steps=(StepName.RESUME_NODE,), drained_at=drained_at)
    return {name: Recovery(41, plan, RecoveryStatus.FAILED, decided_at, ())}


def kept(*names: str) -> dict[str, SlurmReservation]:
    """Reservations that keep nodes for the control plane alone while they are validated."""
    flags = frozenset({"IGNORE_JOBS"})
    held = (SlurmReservation(f"{NODE_HOLD_PREFIX}{name}", (name,), ("root",), flags) for name in names)
    return {one.name: one for one in held}


def snapshot(
    *nodes: NodeView,
    jobs: Sequence[Job] = (),
    spares: Sequence[str] = (),
    **values: Any,
) -> Snapshot:
    """Eight healthy nodes n1 to n8 unless replaced by `nodes`; `spares` are in the spare reservation."""
    views = {f"n{i}": node(f"n{i}", is_spare=f"n{i}" in spares) for i in range(1, 9)}
    views |= {view.name: view for view in nodes}
    pool = SlurmReservation("understudy_spares", tuple(spares), ("root",), frozenset({"IGNORE_JOBS"}))
    defaults: dict[str, Any] = {
        "now": NOW,
        "started_at": NOW - 1000,
        "mode": Mode.ACT,
        "nodes": views,
        "jobs": {job.key: job for job in jobs},
        "slurm": SlurmShown(
            read_at=NOW - 0.2,
            slurmctld_started_at=NOW - 100_000,
            reservations={pool.name: pool} if spares else {},
        ),
    }
    return changed(Snapshot(**defaults), **values)


def changed(snapshot: Snapshot, **values: Any) -> Snapshot:
    """The same with other values, in whichever of its parts they are."""
    for part in ("slurm", "progress", "history", "operator", "round"):
        now = getattr(snapshot, part)
        mine = {one.name: values.pop(one.name) for one in fields(now) if one.name in values}
        values[part] = replace(values.get(part, now), **mine)
    return replace(snapshot, **values)


def step_table(
    self_seconds: Sequence[Sequence[float]],
    nodes: Sequence[str] | None = None,
    roles: Sequence[str] | None = None,
    advanced_at: float = NOW - 0.1,
) -> StepTable:
    """One row of step times a rank; all ranks are equally far."""
    values = np.array(self_seconds, dtype=np.float32)
    ranks, steps = values.shape
    return StepTable(
        job=job().key,
        attempt=Attempt(0),
        first_step=0,
        self_seconds=values,
        last_step=np.full(ranks, steps - 1),
        nodes=tuple(nodes or (f"n{rank + 1}" for rank in range(ranks))),
        roles=tuple(roles or [""] * ranks),
        gpus=(0,) * ranks,
        advanced_at=advanced_at,
    )


def report(name: str = "n1", facts: Sequence[Fact] = (), ranks: Sequence[RankWindow] = (), **changes: Any) -> Report:
    values: dict[str, Any] = {
        "version": WIRE_VERSION,
        "release": RELEASE,
        "cluster": CLUSTER,
        "node": name,
        "boot_id": BOOT,
        "sequence": 1,
        "agent_started_at": NOW - 100,
        "sent_at": NOW,
        "gpus": [gpu(i) for i in range(8)],
        "ranks": list(ranks),
        "facts": list(facts),
    }
    return Report(**(values | changes))


def heard(report: Report, at: float) -> Heard:
    """The report as telemetry keeps it."""
    return Heard(report, at, uuids=uuids_of(report))
