"""Routes to the nodes and their GPUs."""

from __future__ import annotations

from dataclasses import asdict
from heapq import nsmallest

from fastapi import APIRouter, Depends, Request, Response

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.pages import (
    NEWEST,
    AfterNode,
    BeforeTime,
    Limit,
    after_time,
    known_parameters,
    page,
    point_in_time,
)
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.detect.lemon import scores, signals_of
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.live.telemetry import Heard
from understudy_controlplane.store.queries import Record


def nodes_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])

    @router.get("/nodes")
    async def nodes(request: Request, limit: Limit = 1000, after: AfterNode = "") -> Response:
        """Nodes by name, with their state here and in Slurm, their agent and their GPUs."""
        return await deps.readers.read(lambda: _nodes(deps, request, limit, after))

    @router.get("/gpus")
    async def gpus(request: Request, limit: Limit = 1000, before: BeforeTime = NEWEST) -> Response:
        """Each GPU: the nodes it was seen in, from when to when, and how often it failed there."""
        return await deps.readers.read(lambda: _gpus(deps, request, limit, before))

    return router


def _nodes(deps: ReadDependencies, request: Request, limit: int, after: str) -> Response:
    snapshot, heard = deps.pulse.snapshot, deps.telemetry.heard()
    if snapshot is None:
        return page(request, [], {})
    known = scores(snapshot.lemon_signals, len(snapshot.nodes))
    begin = natural(after)
    names = nsmallest(limit, (name for name in snapshot.nodes if natural(name) > begin), key=natural)
    records = [_node(snapshot, name, heard.get(name), known.get(name, 0.0)) for name in names]
    return page(request, records, {"after": names[-1]} if len(names) == limit else {})


def _gpus(deps: ReadDependencies, request: Request, limit: int, before: str) -> Response:
    records = deps.stores.repairs.gpus(limit, *point_in_time(before))
    return page(request, records, after_time(records, "last_seen_at", "id", limit))


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
        "gpus": node.gpus,
        "ports": node.ports,
        "host": node.host,
        "nvml_silent_seconds": node.nvml_silent_seconds,
        "ports_silent_seconds": node.ports_silent_seconds,
        "host_silent_seconds": node.host_silent_seconds,
        "lemon": {"score": round(score, 2), **asdict(signals_of(snapshot, name))},
    }
