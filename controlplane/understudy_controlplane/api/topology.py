"""The route that shows domains of failure and of traffic."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Depends, Response

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.operator_requests import not_ready
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.topology import Domain, problems


class DomainRecord(msgspec.Struct, frozen=True):
    kind: str
    name: str
    source: str  # slurm, infiniband, guards.domains or file
    nodes: list[str]
    switches: list[str]  # leaf switches that it consists of, where it is named by them
    signals: list[str]  # live ones that name it


class TopologyRecord(msgspec.Struct, frozen=True):
    domains: list[DomainRecord]
    problems: list[str]  # what is inconsistent or missing


def topology_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.get("/v1/topology")
    async def topology() -> Response:
        """Racks, switches, NVLink blocks and other domains with their nodes, and what is inconsistent or missing."""
        return await deps.readers.read(lambda: _topology(deps))

    return router


def _topology(deps: ReadDependencies) -> TopologyRecord | Response:
    snapshot = deps.pulse.snapshot
    if snapshot is None:
        return not_ready()
    domains = [_record(one, snapshot) for one in snapshot.topology.domains]
    return TopologyRecord(domains, problems(snapshot.topology, snapshot.nodes))


def _record(domain: Domain, snapshot: Snapshot) -> DomainRecord:
    signals = [one.words for one in snapshot.signals if domain.label in one.targets]
    return DomainRecord(domain.kind, domain.name, domain.source, [*domain.nodes], [*domain.switches], signals)
