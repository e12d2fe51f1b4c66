"""Routes to the health of the control plane, and a summary of the fleet: `/healthz` and `/v1/status`."""

from __future__ import annotations

from collections import Counter

import msgspec
from fastapi import APIRouter, Depends, Response

from understudy_controlplane.access.admission import Reader
from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.needs import NeedRecord, Problem, all_needs, own_problems, shortcomings
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.config import Mode
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.fleet.holder import Leading
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.ingest.answers import JSON

NEEDS_SHOWN = 100

CAUSE_AT = "GET /v1/status and the log of the control plane name the cause"


class SlurmState(msgspec.Struct, frozen=True):
    read_at: float | None
    error: str


class LoopState(msgspec.Struct, frozen=True):
    last_tick_at: float
    tick_seconds: float
    error: str


class SparePool(msgspec.Struct, frozen=True):
    held: int
    wanted: int


class StandbyState(msgspec.Struct, frozen=True):
    """`name`: its address. `seen_at`: when it last asked for the lead, or had it."""

    name: str
    seen_at: float
    stands_by: bool


class LeadState(msgspec.Struct, frozen=True):
    """`url`: address of the control plane that leads. `term`: each that takes the lead has a higher one."""

    url: str
    term: int
    since: float
    others: list[StandbyState]


class Status(msgspec.Struct, frozen=True):
    """`nodes` counts them by state; `needs`: what waits for a person, the first 100 of `needs_count`; `problems`: the
    same as text. null: it is not shown to users of the cluster. Nothing here is as long as the fleet.
    """

    cluster: str
    mode: Mode
    mode_configured: Mode
    mode_limit: str  # who keeps it below the configured one, and why
    mode_limit_until: float | None
    mode_nodes: dict[str, int]  # in how many nodes each mode holds, where parts of the fleet have modes of their own
    paused: str
    paused_until: float | None
    paused_jobs: list[int]
    breaker: str
    slurm: SlurmState
    loop: LoopState
    lead: LeadState | None  # null: on SQLite there is one control plane
    nodes: dict[str, int]
    spares: SparePool
    incidents_open: int
    recoveries_running: int
    needs: list[NeedRecord] | None
    needs_count: int | None
    problems: list[str] | None


class Health(msgspec.Struct, frozen=True):
    ok: bool
    problems: list[str]
    slurm_error: str


class Readiness(msgspec.Struct, frozen=True):
    ready: bool
    problems: list[str]


def status_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.get("/v1/status")
    async def status(reader: Reader) -> Response:
        """A summary: mode, nodes by state, spares, incidents, recoveries, problems. To a user of the cluster without
        what operators wrote, and without problems.
        """
        of_user = reader.user_id is not None
        return await deps.readers.read(lambda: _for_user(summary(deps)) if of_user else summary(deps))

    return router


def health_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.get("/healthz")
    async def healthz() -> Response:
        """200 while the loop ticks and the database answers, from the first reading of Slurm on. A later one that fails
        is shown, but does not count, and so are a detector that fails and a lead that is not confirmed: a restart helps
        against none of them.
        """
        return await deps.health.read(lambda: _health(deps))

    @router.get("/readyz")
    async def readyz() -> Response:
        """200 once the first tick is over, while Slurm can be read and the database answers: it can do its work."""
        return await deps.health.read(lambda: _readiness(deps))

    return router


def _readiness(deps: ReadDependencies) -> Response:
    pulse, problems = deps.pulse, [*own_problems(deps), *shortcomings(deps.pulse)]
    if not pulse.ticks_total:
        problems.append(Problem("the first tick is not over"))
    if pulse.slurm.at is not None and pulse.slurm.error:
        problems.append(Problem("Slurm cannot be read", pulse.slurm.error))
    body = Readiness(not problems, _without_causes(problems))
    return Response(msgspec.json.encode(body), 503 if problems else 200, media_type=JSON)


def _health(deps: ReadDependencies) -> Response:
    problems = own_problems(deps)
    slurm_error = f"Slurm cannot be read; {CAUSE_AT}" if deps.pulse.slurm.error else ""
    body = Health(not problems, _without_causes([*problems, *shortcomings(deps.pulse)]), slurm_error)
    return Response(msgspec.json.encode(body), 503 if problems else 200, media_type=JSON)


def summary(deps: ReadDependencies) -> Status:
    snapshot, pulse = deps.pulse.snapshot, deps.pulse
    nodes = list(snapshot.nodes.values()) if snapshot else []
    asked = in_force(deps.stores.requests.stored(), deps.clock.now())
    pause, limit = asked.pause, asked.mode_limit
    needs = all_needs(deps)
    wanted = deps.current.config.spares.count if asked.spares_size.count is None else asked.spares_size.count
    return Status(
        cluster=deps.current.config.cluster,
        mode=deps.current.config.highest_mode.at_most(limit.mode),
        mode_configured=deps.current.config.highest_mode,
        mode_nodes=_mode_nodes(snapshot),
        mode_limit=limit.reason,
        mode_limit_until=limit.until,
        paused=pause.reason,
        paused_until=pause.until,
        paused_jobs=sorted(key.job_id for key in snapshot.operator.paused_jobs) if snapshot else [],
        breaker=asked.breaker.reason,
        slurm=SlurmState(pulse.slurm.at, pulse.slurm.error),
        loop=LoopState(pulse.last_tick_at, pulse.tick_seconds, pulse.last_error),
        lead=_lead(pulse.leading),
        nodes=dict(Counter(node.state.value for node in nodes)),
        spares=SparePool(sum(node.is_spare for node in nodes), wanted),
        incidents_open=len(deps.stores.incidents.open_incidents()),
        recoveries_running=len(deps.stores.recoveries.running()),
        needs=needs[:NEEDS_SHOWN],
        needs_count=len(needs),
        problems=[str(one) for one in needs[:NEEDS_SHOWN]],
    )


def _lead(leading: Leading | None) -> LeadState | None:
    if leading is None:
        return None
    here = leading.standbys
    others = [StandbyState(name, at, name in here) for name, at in sorted(leading.seen_at.items())]
    return LeadState(leading.url, leading.term, leading.since, others)


def _mode_nodes(snapshot: Snapshot | None) -> dict[str, int]:
    if snapshot is None or not snapshot.part_modes:
        return {}
    return dict(Counter(snapshot.part_modes.get(name, snapshot.mode).value for name in snapshot.nodes))


def _for_user(status: Status) -> Status:
    return msgspec.structs.replace(
        status,
        paused="by an operator" if status.paused else "",
        paused_jobs=[],
        mode_limit="by an administrator" if status.mode_limit else "",
        breaker="open" if status.breaker else "",
        slurm=SlurmState(status.slurm.read_at, ""),
        loop=msgspec.structs.replace(status.loop, error=""),
        lead=None,
        needs=None,
        needs_count=None,
        problems=None,
    )


def _without_causes(problems: list[Problem]) -> list[str]:
    """Problems for requests without a token: a cause can contain paths, addresses and SQL."""
    return [f"{problem.what}; {CAUSE_AT}" if problem.cause else problem.what for problem in problems]
