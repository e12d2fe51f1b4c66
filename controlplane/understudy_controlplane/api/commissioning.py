"""The route to the go-live report: which nodes are accepted, and what they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.nodes import HOST_LIST_CHARACTERS_MAX, stage_record
from understudy_controlplane.api.operator_requests import not_ready
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.api.records import StageRecord
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.figures.commissioning import Acceptance, acceptance, bins, progress
from understudy_controlplane.fleet.hostlist import HostListError, expand
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.recovery import RecoveryKind, RepairAttempt
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.store.stages import KeptResult
from understudy_wire.messages import Part

Targets = Annotated[
    list[str],
    Query(max_length=64, description="Host lists (`c[1-4]`) and domains (`rack r1`); without any the whole fleet."),
]


class CommissionedGpu(msgspec.Struct, frozen=True):
    index: int
    name: str
    uuid: str
    serial: str
    vbios: str


class CommissionedNode(msgspec.Struct, frozen=True):
    """`bin`: A, B or C by speed beside the others; empty: not measured. `tested_at`: when its last validation ended."""

    node: str
    acceptance: Acceptance
    reason: str
    bin: str
    tested_at: float | None
    domains: list[str]
    driver: str
    versions: dict[str, str]
    gpus: list[CommissionedGpu]
    parts: list[Part]
    stages: list[StageRecord]


class CommissioningReport(msgspec.Struct, frozen=True):
    cluster: str
    at: float
    nodes: list[CommissionedNode]


def commissioning_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])

    @router.get("/commissioning")
    async def commissioning(target: Targets = []) -> Response:  # noqa: B006 - FastAPI's way to write it
        """Acceptance of each node and why not, its performance bin, its stages, serials and versions."""
        return await deps.readers.read(lambda: _report(deps, target))

    return router


def _report(deps: ReadDependencies, targets: Sequence[str]) -> CommissioningReport | Response:
    snapshot = deps.pulse.snapshot
    if snapshot is None:
        return not_ready()
    names, unknown = named_nodes(snapshot, targets)
    if unknown:
        return refuse(
            404, f"{', '.join(unknown)}: no such node or domain", "understudy topology show lists the domains"
        )
    kept: dict[str, list[KeptResult]] = {}
    for one in deps.stores.stages.newest(*snapshot.nodes):
        kept.setdefault(one.node, []).append(one)
    speeds = bins({node: [one.result for one in results] for node, results in kept.items()})
    last: dict[str, RepairAttempt] = {}
    for attempt in snapshot.attempts:
        if attempt.kind is RecoveryKind.VALIDATE and (attempt.node not in last or attempt.at >= last[attempt.node].at):
            last[attempt.node] = attempt
    return CommissioningReport(
        deps.current.config.cluster,
        deps.clock.now(),
        [_node(snapshot, name, kept.get(name, []), last.get(name), speeds.get(name, "")) for name in names],
    )


def named_nodes(snapshot: Snapshot, targets: Sequence[str]) -> tuple[list[str], list[str]]:
    """The nodes that they name, and targets that are not known."""
    found, unknown = set[str](), []
    for target in targets:
        domain = snapshot.topology.by_label.get(target)
        try:
            nodes = domain.nodes if domain is not None else expand(target[:HOST_LIST_CHARACTERS_MAX])
        except HostListError:
            nodes = ()
        if not nodes or (domain is None and not set(nodes) <= snapshot.nodes.keys()):
            unknown.append(target)
        found.update(name for name in nodes if name in snapshot.nodes)
    return sorted(found if targets else snapshot.nodes, key=natural), unknown


def _node(
    snapshot: Snapshot, name: str, kept: Sequence[KeptResult], last: RepairAttempt | None, speed: str
) -> CommissionedNode:
    node: NodeView = snapshot.nodes[name]
    now = progress(snapshot.recovery_on(name), snapshot.requests.get(name), snapshot.now)
    found, reason = acceptance(node, [one.result for one in kept], last, now)
    ended = last.ended_at if last is not None else max((one.at for one in kept), default=None)
    return CommissionedNode(
        name,
        found,
        reason,
        speed,
        ended,
        [one.label for one in snapshot.topology.of_node.get(name, ())],
        node.driver_version,
        dict(node.host.versions) if node.host is not None else {},
        [CommissionedGpu(gpu.index, gpu.name, gpu.uuid, gpu.serial, gpu.vbios) for gpu in node.gpus],
        list(node.parts),
        [msgspec.convert(stage_record(one), StageRecord) for one in kept],
    )
