"""Routes to the nodes and their GPUs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field, field_validator

from understudy_controlplane.access.admission import Reader
from understudy_controlplane.api.dependencies import NodeName, ReadDependencies
from understudy_controlplane.api.pages import (
    Name,
    NamedQuery,
    Number,
    NumberedQuery,
    TimedQuery,
    known_parameters,
    numbered_page,
    page,
    timed_page,
)
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.detect.lemon import scores, signals_of
from understudy_controlplane.fleet.identity import Identity
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.hostlist import HostListError, expand
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.live.telemetry import Heard
from understudy_controlplane.store.queries import Record
from understudy_controlplane.store.stages import KeptResult
from understudy_wire.hardware import GpuStatus
from understudy_wire.stages import UNITS, StageName

HOST_LIST_CHARACTERS_MAX = 8192


class NodesQuery(NamedQuery):
    state: NodeState | None = None
    names: str | None = Field(None, max_length=HOST_LIST_CHARACTERS_MAX, description="A host list: `c[1-4,7]`.")
    spare: bool | None = Field(None, description="Held in the spare pool.")
    job: Number | None = Field(None, description="Runs there: Slurm's job id.")

    @field_validator("names")
    @classmethod
    def _is_host_list(cls, text: str | None) -> str | None:
        try:
            expand(text or "")
        except HostListError as error:
            raise ValueError(str(error)) from error
        return text


class GpusQuery(TimedQuery):
    node: Name | None = None


class PartsQuery(TimedQuery):
    node: Name | None = None
    identity: Name | None = Field(None, description="Serial number or GUID of one part: wherever it was.")


class StagesQuery(NumberedQuery):
    node: Name | None = None
    stage: StageName | None = None


class NodeSummary(msgspec.Struct, frozen=True):
    """A node in a list. `slurm` is its state and flags there, as `IDLE+DRAIN`; null: Slurm does not show it."""

    name: str
    state: NodeState
    since: float
    reason: str
    slurm: str | None
    spare: bool
    jobs: list[int]
    gpus: int
    gpus_ok: int
    heard_at: float | None


def nodes_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])
    order = NodeOrder()

    @router.get("/nodes")
    async def nodes(query: Annotated[NodesQuery, Query()], reader: Reader) -> Response:
        """A line for each node, by name: its state here and in Slurm, its jobs, its GPUs. To a user of the cluster
        without reasons and without jobs of others.
        """
        return await deps.readers.read(lambda: _nodes(deps, order, query, reader))

    @router.get("/nodes/{node}")
    async def node(node: NodeName) -> Response:
        """All that is known of a node: its agent, GPUs, ports and host, its score as a lemon."""
        return await deps.readers.read(lambda: node_record(deps, node))

    @router.get("/gpus")
    async def gpus(query: Annotated[GpusQuery, Query()]) -> Response:
        """Each GPU: the nodes it was seen in, from when to when, and how often it failed there."""
        return await deps.readers.read(lambda: _gpus(deps, query))

    @router.get("/parts")
    async def parts(query: Annotated[PartsQuery, Query()]) -> Response:
        """Each board, network card, cable or module: the nodes it was seen in, from when to when."""
        return await deps.readers.read(lambda: _parts(deps, query))

    @router.get("/stages")
    async def stages(query: Annotated[StagesQuery, Query()]) -> Response:
        """What each stage of each validation measured, newest first."""
        return await deps.readers.read(lambda: _stages(deps, query))

    return router


class NodeOrder:
    """The fleet's names in their natural order, computed again when they change."""

    def __init__(self) -> None:
        self._of: frozenset[str] = frozenset()
        self._names: list[tuple[tuple[tuple[int, str], ...], str]] = []

    def after(self, nodes: Mapping[str, NodeView], cursor: str | None) -> Iterator[str]:
        if nodes.keys() != self._of:
            names = sorted((natural(name), name) for name in nodes)
            self._of, self._names = frozenset(nodes), names
        names = self._names
        first = 0 if cursor is None else bisect_right(names, natural(cursor), key=lambda one: one[0])
        return (names[position][1] for position in range(first, len(names)))


def _nodes(deps: ReadDependencies, order: NodeOrder, query: NodesQuery, reader: Identity) -> Response:
    snapshot = deps.pulse.snapshot
    if snapshot is None:
        return page([], None)
    heard, wanted = deps.telemetry.heard(), frozenset(expand(query.names or "")) if query.names is not None else None
    items: list[NodeSummary] = []
    for name in order.after(snapshot.nodes, query.cursor):
        node = snapshot.nodes.get(name)
        if node is None:
            continue
        jobs = [job.key.job_id for job in snapshot.job_on(name) if reader.sees_jobs_of(job.slurm.user_id)]
        if not _wanted(node, query, wanted, jobs):
            continue
        if len(items) == query.limit:
            return page(items, items[-1].name)
        summary = _summary(node, jobs, heard.get(name))
        items.append(summary if reader.user_id is None else msgspec.structs.replace(summary, reason=""))
    return page(items, None)


def _wanted(node: NodeView, query: NodesQuery, names: frozenset[str] | None, jobs: list[int]) -> bool:
    return (
        (names is None or node.name in names)
        and (query.state is None or node.state is query.state)
        and (query.spare is None or node.is_spare is query.spare)
        and (query.job is None or query.job in jobs)
    )


def _summary(node: NodeView, jobs: list[int], heard: Heard | None) -> NodeSummary:
    """Summary for a list of thousands."""
    slurm = node.slurm
    reason = slurm.reason if slurm else ""
    if not reason and node.record.suspicions:
        reason = f"suspected: {', '.join(one.cause.value for one in node.record.suspicions)}"
    return NodeSummary(
        name=node.name,
        state=node.state,
        since=node.record.since,
        reason=reason,
        slurm=_with_flags(slurm.base_state, slurm.flags) if slurm else None,
        spare=node.is_spare,
        jobs=jobs,
        gpus=len(node.gpus),
        gpus_ok=[gpu.status for gpu in node.gpus].count(GpuStatus.OK),
        heard_at=heard.at if heard else None,
    )


@lru_cache(maxsize=1024)
def _with_flags(state: str, flags: frozenset[str]) -> str:
    return "+".join([state, *sorted(flags)])


def _gpus(deps: ReadDependencies, query: GpusQuery) -> Response:
    records = deps.stores.gpus.gpus(query.limit, *query.before, node=query.node)
    return timed_page(records, "last_seen_at", "id", query.limit)


def _parts(deps: ReadDependencies, query: PartsQuery) -> Response:
    records = deps.stores.parts.places(query.limit, *query.before, node=query.node, identity=query.identity)
    return timed_page(records, "last_seen_at", "id", query.limit)


def _stages(deps: ReadDependencies, query: StagesQuery) -> Response:
    kept = deps.stores.stages.history(query.limit, query.before, query.node, query.stage)
    records = [{"id": one.id, "node": one.node, **stage_record(one)} for one in kept]
    return numbered_page(records, query.limit)


def node_record(deps: ReadDependencies, name: str) -> Record | Response:
    snapshot = deps.pulse.snapshot
    if snapshot is None or name not in snapshot.nodes:
        return refuse(404, f"node {name} is not known", "GET /v1/nodes lists the nodes")
    heard = deps.telemetry.latest(name)
    score = scores(snapshot.history.lemon_signals, len(snapshot.nodes)).get(name, 0.0)
    node = snapshot.nodes[name]
    slurm = node.slurm
    return {
        "name": name,
        "state": node.state.value,
        "since": node.record.since,
        "row": node.record.table_row,
        "signals": [
            {"id": one.id, "kind": one.kind.value, "words": one.words, "until": one.until}
            for one in snapshot.signals_on.get(name, ())
        ],
        "suspicions": [{"cause": one.cause.value, "since": one.since} for one in node.record.suspicions],
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
        "parts": node.parts,
        "processes": node.processes,
        "nvml_silent_seconds": node.nvml_silent_seconds,
        "ports_silent_seconds": node.ports_silent_seconds,
        "host_silent_seconds": node.host_silent_seconds,
        "lemon": {"score": round(score, 2), **asdict(signals_of(snapshot, name))},
        "stages": [stage_record(one) for one in deps.stores.stages.newest(name)],
    }


def stage_record(kept: KeptResult) -> Record:
    result = kept.result
    return {
        "stage": result.stage.value,
        "status": result.status.value,
        "value": result.value,
        "unit": UNITS[result.stage],
        "pass_mark": result.pass_mark,
        "seconds": result.seconds,
        "why": result.why,
        "recovery": kept.recovery,
        "at": kept.at,
    }
