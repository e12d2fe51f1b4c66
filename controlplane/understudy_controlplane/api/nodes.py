"""Routes to the nodes and their GPUs."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Response

from understudy_controlplane.api.dependencies import Limit, ReadDependencies
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.detect.lemon import scores, signals_of
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.live.telemetry import Heard
from understudy_controlplane.store.queries import Record


def nodes_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.get("/nodes")
    async def nodes() -> Response:
        """All nodes, with their state here and in Slurm, their agent and their GPUs."""
        return await deps.readers.read(lambda: _nodes(deps))

    @router.get("/gpus")
    async def gpus(limit: Limit = 1000) -> Response:
        """Each GPU: the nodes it was seen in, from when to when, and how often it failed there."""
        return await deps.readers.read(lambda: deps.stores.repairs.gpus(limit))

    return router


def _nodes(deps: ReadDependencies) -> list[Record]:
    snapshot, heard = deps.pulse.snapshot, deps.telemetry.heard()
    if snapshot is None:
        return []
    known = scores(snapshot.lemon_signals, len(snapshot.nodes))
    names = sorted(snapshot.nodes, key=natural)
    return [_node(snapshot, name, heard.get(name), known.get(name, 0.0)) for name in names]


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
