"""The route to the go-live report: which nodes are accepted, and what they are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.documents import Document, Form, Section, date
from understudy_controlplane.api.nodes import HOST_LIST_CHARACTERS_MAX, stage_record
from understudy_controlplane.api.operator_requests import not_ready
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.api.records import StageRecord
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.figures.commissioning import Acceptance, acceptance, bins, progress
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.recovery import RecoveryKind, RepairAttempt
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.hostlist import HostListError, expand
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.store.stages import KeptResult
from understudy_wire.hardware import Part

Targets = Annotated[
    list[str],
    Query(max_length=64, description="Host lists (`c[1-4]`) and domains (`rack r1`); without any the whole fleet."),
]


Format = Annotated[Form, Query(description="`text` is Markdown.")]


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
    async def commissioning(target: Targets = [], format: Format = Form.JSON) -> Response:  # noqa: B006 - FastAPI's way
        """Nodes: whether each is accepted and why not, its performance bin, its stages, serials and versions."""
        return await deps.readers.read(lambda: _answer(_report(deps, target), format))

    return router


def _answer(found: CommissioningReport | Response, form: Form) -> Response:
    return found if isinstance(found, Response) else document(found).response(form)


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
    for attempt in snapshot.history.attempts:
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
    now = progress(snapshot.recovery_on(name), snapshot.operator.requests.get(name), snapshot.now)
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


def document(found: CommissioningReport) -> Document:
    title = f"Cluster {found.cluster}: nodes accepted, {date(found.at)}"
    return Document(found, title, [one for one in _sections(found) if one.rows])


def _sections(found: CommissioningReport) -> Iterator[Section]:
    counts = Counter(one.acceptance.replace("_", " ") for one in found.nodes)
    yield Section("nodes", "Nodes", "", ("", "number"), counts.most_common())
    speeds = Counter(one.bin for one in found.nodes if one.bin)
    yield Section("bins", "Performance bins", "", ("bin", "nodes"), sorted(speeds.items()))
    others = [one for one in found.nodes if one.acceptance is not Acceptance.ACCEPTED]
    reasons = [(one.node, one.acceptance.replace("_", " "), one.reason) for one in others]
    yield Section("others", "Not accepted", "", ("node", "", "reason"), reasons)
    good = [one for one in found.nodes if one.acceptance is Acceptance.ACCEPTED]
    tests = [(one.node, one.bin, date(one.tested_at or 0), _stages(one.stages)) for one in good]
    yield Section("accepted", "Accepted", "", ("node", "bin", "tested", "stages"), tests)
    gpus = [(one.node, gpu.index, gpu.name, gpu.serial, gpu.vbios) for one in found.nodes for gpu in one.gpus]
    yield Section("gpus", "GPUs", "", ("node", "GPU", "model", "serial", "VBIOS"), gpus)
    parts = [
        (one.node, part.kind.value, part.place, part.model or "unknown", part.serial or _unknown(part))
        for one in found.nodes
        for part in one.parts
    ]
    columns = ("node", "part", "", "model", "serial")
    yield Section("parts", "Boards, network cards and modules", "", columns, parts)
    versions = [
        (one.node, part, version)
        for one in found.nodes
        for part, version in {"driver": one.driver, **one.versions}.items()
        if version
    ]
    yield Section("versions", "Versions", "", ("node", "part", "version"), versions)


def _unknown(part: Part) -> str:
    return f"unknown (GUID {part.guid})" if part.guid else "unknown"


def _stages(stages: Sequence[StageRecord]) -> str:
    shown = (f"{one.value:g} {one.unit}" if one.value is not None else one.status.replace("_", " ") for one in stages)
    return ", ".join(f"{one.stage} {words}" for one, words in zip(stages, shown, strict=True))
