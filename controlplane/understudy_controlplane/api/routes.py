"""Routes to read: status, nodes, jobs, incidents, recoveries, checkpoints, decisions, tickets, health."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response

from understudy_controlplane.api.timeline import phases_ms
from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Config
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.detect.lemon import scores, signals_of
from understudy_controlplane.detect.silence import silent_since
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    FillPoolPlan,
    PoolSwapPlan,
    Recovery,
    ReleaseJobPlan,
    SwapPlan,
    job_of,
)
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.live.step_buffer import RankNow
from understudy_controlplane.live.telemetry import Heard, Telemetry
from understudy_controlplane.plan.ettr import ettr
from understudy_controlplane.store.database import StoreError
from understudy_controlplane.store.queries import Queries, Record
from understudy_controlplane.store.stores import Stores

TICK_AGE_MAX_SECONDS = 15.0
Limit = Annotated[int, Query(ge=1, le=1000, description="Most records to return, newest first.")]


@dataclass(frozen=True, slots=True)
class ReadDependencies:
    """What these routes read from. `pulse.snapshot` is the loop's newest."""

    config: Config
    clock: Clock
    telemetry: Telemetry
    stores: Stores
    queries: Queries
    pulse: Pulse


def api_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.get("/status")
    def status() -> Record:
        """A summary: mode, nodes by state, spares, incidents, recoveries, problems."""
        return describe_status(deps)

    @router.get("/nodes")
    def nodes() -> list[Record]:
        """All nodes, with their state here and in Slurm, their agent and their GPUs."""
        snapshot, heard = deps.pulse.snapshot, deps.telemetry.heard()
        if snapshot is None:
            return []
        known = scores(snapshot.lemon_signals, len(snapshot.nodes))
        names = sorted(snapshot.nodes, key=natural)
        return [_node(snapshot, name, heard.get(name), known.get(name, 0.0)) for name in names]

    @router.get("/jobs")
    def jobs(limit: Limit = 100) -> list[Record]:
        """Jobs as Slurm showed them last, with their attempts and ETTR."""
        records = deps.queries.jobs(limit)
        for record in records:
            result = ettr(deps.queries.progress(record.pop("id")))
            record["ettr"] = msgspec.to_builtins(result)
        return records

    @router.get("/jobs/{job_id}/ranks")
    def ranks(job_id: int) -> Record:
        """The running attempt's ranks: last step finished, last collective entered."""
        found = deps.telemetry.ranks(job_id)
        attempt, known = found if found else (None, [])
        which = attempt._asdict() if attempt else {"restart_count": None, "launch": None}
        return {"job_id": job_id, **which, "ranks": [_rank(one) for one in known]}

    _add_records(router, deps)
    return router


def _add_records(router: APIRouter, deps: ReadDependencies) -> None:
    """Routes to the records of the database, newest first."""

    @router.get("/incidents")
    def incidents(limit: Limit = 100) -> list[Record]:
        """Incidents, with evidence."""
        return deps.queries.incidents(limit)

    @router.get("/decisions")
    def decisions(limit: Limit = 100) -> list[Record]:
        """Decisions and their reasons; decisions to do nothing too."""
        return deps.queries.decisions(limit)

    @router.get("/recoveries")
    def recoveries(limit: Limit = 100) -> list[Record]:
        """Recoveries: plan, steps, and the time of each phase."""
        return [_recovery(deps, one) for one in deps.stores.recoveries.newest(limit)]

    @router.get("/tickets")
    def tickets(limit: Limit = 100) -> list[Record]:
        """Tickets for manual repair, with evidence."""
        return deps.stores.repairs.tickets(limit)

    @router.get("/gpus")
    def gpus(limit: Limit = 1000) -> list[Record]:
        """Each GPU: the nodes it was seen in, from when to when, and how often it failed there."""
        return deps.stores.repairs.gpus(limit)

    @router.get("/checkpoints")
    def checkpoints(limit: Limit = 100) -> list[Record]:
        """Announced checkpoints, complete or not."""
        return deps.queries.checkpoints(limit)


def health_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter()

    @router.get("/healthz")
    def healthz() -> Response:
        """200 while the loop ticks and the database answers. A failed reading of Slurm is shown, but does not count."""
        problems = _problems(deps)
        body = {"ok": not problems, "problems": problems, "slurm_error": deps.pulse.slurm.error}
        return Response(msgspec.json.encode(body), 503 if problems else 200, media_type="application/json")

    return router


def describe_status(deps: ReadDependencies) -> Record:
    snapshot, pulse = deps.pulse.snapshot, deps.pulse
    nodes = list(snapshot.nodes.values()) if snapshot else []
    open_recoveries = deps.stores.recoveries.running()
    return {
        "cluster": deps.config.cluster,
        "mode": deps.config.mode.value,
        "paused": deps.stores.fleet.pause(),
        "breaker": deps.stores.repairs.breaker(),
        "slurm": {"read_at": pulse.slurm.at, "error": pulse.slurm.error},
        "loop": {
            "last_tick_at": pulse.last_tick_at,
            "tick_seconds": pulse.tick_seconds,
            "error": pulse.last_error,
        },
        "nodes": dict(Counter(node.state.value for node in nodes)),
        "spares": {
            "held": sorted(node.name for node in nodes if node.is_spare),
            "wanted": deps.config.spares.count,
        },
        "incidents_open": len(deps.stores.incidents.open_incidents()),
        "recoveries_running": [one.id for one in open_recoveries],
        "problems": _problems(deps) + _warnings(deps),
    }


def _problems(deps: ReadDependencies) -> list[str]:
    problems: list[str] = []
    age = deps.clock.now() - deps.pulse.last_tick_at
    if age > TICK_AGE_MAX_SECONDS:
        problems.append(f"the loop has not ticked for {age:.0f} s: {deps.pulse.last_error or 'it hangs'}")
    elif deps.pulse.last_error:
        problems.append(f"the last tick failed: {deps.pulse.last_error}")
    try:
        deps.queries.alive()
    except StoreError as error:
        problems.append(f"the database does not answer: {type(error).__name__}")
    return problems


def _warnings(deps: ReadDependencies) -> list[str]:
    """What an operator should know although the control plane itself works."""
    snapshot = deps.pulse.snapshot
    if snapshot is None:
        return []
    limit = deps.config.silence.silent_after_seconds
    views = list(snapshot.nodes.values())
    warnings = [f"the circuit breaker is open: {snapshot.breaker}"] if snapshot.breaker else []
    with_people = sorted((view.name for view in views if view.state is NodeState.MANUAL_REPAIR), key=natural)
    if with_people:
        warnings.append(f"manual repair is needed on {', '.join(with_people)}: see /v1/tickets")
    unheard = sum(snapshot.now - (silent_since(view, snapshot.started_at) or 0.0) > limit for view in views)
    if unheard > len(views) / 2:
        warnings.append(f"{unheard} of {len(views)} nodes do not report: check that their agents run")
    return warnings


def _node(snapshot: Snapshot, name: str, heard: Heard | None, score: float) -> Record:
    node = snapshot.nodes[name]
    slurm = node.slurm
    return {
        "name": name,
        "state": node.state.value,
        "since": node.record.since,
        "row": node.record.table_row,
        "spare": node.is_spare,
        "boot_id": node.boot_id,
        "heard_at": heard.at if heard else None,
        "agent_problems": list(heard.report.problems) if heard else [],
        "slurm": {
            "state": slurm.base_state,
            "flags": sorted(slurm.flags),
            "reason": slurm.reason,
            "reason_user": slurm.reason_user,
            "weight": slurm.weight,
        }
        if slurm
        else None,
        "jobs": [job.key.job_id for job in snapshot.job_on(name)],
        "gpus": [msgspec.to_builtins(gpu) for gpu in node.gpus],
        "ports": [msgspec.to_builtins(port) for port in node.ports],
        "host": msgspec.to_builtins(node.host),
        "nvml_silent_seconds": node.nvml_silent_seconds,
        "ports_silent_seconds": node.ports_silent_seconds,
        "host_silent_seconds": node.host_silent_seconds,
        "lemon": {"score": round(score, 2), **asdict(signals_of(snapshot, name))},
    }


def _rank(now: RankNow) -> Record:
    entered = now.collective
    return {
        "rank": now.rank,
        "node": now.node,
        "role": now.role,
        "gpu_index": now.gpu_index,
        "last_step": now.last_step,
        "collective": msgspec.structs.asdict(entered) if entered else None,
    }


def _recovery(deps: ReadDependencies, recovery: Recovery) -> Record:
    plan, job = recovery.plan, job_of(recovery.plan)
    row: Record = {
        "id": recovery.id,
        "kind": plan.kind.value,
        "status": recovery.status.value,
        "outcome": recovery.outcome,
        "job": job._asdict() if job else None,
        "restart_count": plan.restart_count if isinstance(plan, SwapPlan | ReleaseJobPlan) else 0,
        "nodes": list(plan.nodes),
        "spares": list(plan.spares) if isinstance(plan, PoolSwapPlan | FillPoolPlan) else [],
        "seats": list(plan.seats) if isinstance(plan, PoolSwapPlan) else [],
        "fault_at": recovery.fault_at,
        "detected_at": recovery.detected_at,
        "decided_at": recovery.decided_at,
        "ended_at": recovery.ended_at,
        "phases_ms": phases_ms(recovery, recovery.fault_at),
        "steps": [msgspec.to_builtins(step) for step in recovery.steps],
    }
    if isinstance(plan, AllocationSwapPlan):
        row |= {"launch": plan.launch, "hang": plan.hang}
    if isinstance(plan, PoolSwapPlan) or (isinstance(plan, AllocationSwapPlan) and plan.launch >= 0):
        row |= _progress_lost(deps, plan)
    return row


def _progress_lost(deps: ReadDependencies, plan: PoolSwapPlan | AllocationSwapPlan) -> dict[str, Any]:
    """The furthest step of the attempt that ended, where the next attempt began, and how many steps were repeated."""
    job = plan.job
    job_row = deps.queries.job_row(job.job_id, job.submit_at)
    reached = deps.queries.last_step(job_row, plan.restart_count) if job_row else None
    if isinstance(plan, AllocationSwapPlan):
        following = Attempt(plan.restart_count, plan.launch + 1)
    else:
        following = Attempt(plan.restart_count + 1)
    point = deps.stores.fleet.restore_point(job_row, following) if job_row else None
    restored = point[0] if point else None
    # A checkpoint from which step n is next proves that n - 1 was finished, even if its time was never reported.
    proven = restored - 1 if restored else None
    known = [step for step in (reached, plan.last_step, proven) if step is not None]
    reached = max(known, default=None)
    lost = reached + 1 - restored if reached is not None and restored is not None else None
    return {"last_step": reached, "restore_step": restored, "steps_lost": lost}
