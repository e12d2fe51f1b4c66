"""Routes to the health of the control plane, and a summary of the fleet: `/healthz` and `/v1/status`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Depends, Response

from understudy_controlplane.access.admission import Reader
from understudy_controlplane.access.token_ends import ending_soon
from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.clock import moment
from understudy_controlplane.config import Mode, SignalEffect
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.detect.silence import silent_since
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import Recovery, RecoveryStatus, job_of
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.ingest.answers import JSON
from understudy_controlplane.store.database import StoreError

TICK_AGE_MAX_SECONDS = 15.0
NAMED_MAX = 10
"""Nodes or recoveries that a problem names."""


CAUSE_AT = "GET /v1/status and the log of the control plane name the cause"


@dataclass(frozen=True, slots=True)
class Problem:
    what: str
    cause: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.cause}" if self.cause else self.what


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


class Status(msgspec.Struct, frozen=True):
    """`nodes` counts them by state; `problems` needs a person; null: it is not shown to users of the cluster.
    Nothing here is as long as the fleet.
    """

    cluster: str
    mode: Mode
    mode_configured: Mode
    mode_limit: str  # who keeps it below the configured one, and why
    mode_limit_until: float | None
    paused: str
    paused_until: float | None
    paused_jobs: list[int]
    breaker: str
    slurm: SlurmState
    loop: LoopState
    nodes: dict[str, int]
    spares: SparePool
    incidents_open: int
    recoveries_running: int
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
        is shown, but does not count, and so is a detector that fails: a restart helps against neither.
        """
        return await deps.health.read(lambda: _health(deps))

    @router.get("/readyz")
    async def readyz() -> Response:
        """200 once the first tick is over, while Slurm can be read and the database answers: it can do its work."""
        return await deps.health.read(lambda: _readiness(deps))

    return router


def _readiness(deps: ReadDependencies) -> Response:
    pulse, problems = deps.pulse, [*_problems(deps), *_failed_detectors(deps)]
    if not pulse.ticks_total:
        problems.append(Problem("the first tick is not over"))
    if pulse.slurm.at is not None and pulse.slurm.error:
        problems.append(Problem("Slurm cannot be read", pulse.slurm.error))
    body = Readiness(not problems, _without_causes(problems))
    return Response(msgspec.json.encode(body), 503 if problems else 200, media_type=JSON)


def _health(deps: ReadDependencies) -> Response:
    problems = _problems(deps)
    slurm_error = f"Slurm cannot be read; {CAUSE_AT}" if deps.pulse.slurm.error else ""
    body = Health(not problems, _without_causes([*problems, *_failed_detectors(deps)]), slurm_error)
    return Response(msgspec.json.encode(body), 503 if problems else 200, media_type=JSON)


def summary(deps: ReadDependencies) -> Status:
    snapshot, pulse = deps.pulse.snapshot, deps.pulse
    nodes = list(snapshot.nodes.values()) if snapshot else []
    pause = deps.stores.fleet.pause(deps.clock.now())
    limit = deps.stores.fleet.mode_limit(deps.clock.now())
    return Status(
        cluster=deps.current.config.cluster,
        mode=deps.current.config.mode.at_most(limit.mode),
        mode_configured=deps.current.config.mode,
        mode_limit=limit.reason,
        mode_limit_until=limit.until,
        paused=pause.reason,
        paused_until=pause.until,
        paused_jobs=sorted(key.job_id for key in snapshot.paused_jobs) if snapshot else [],
        breaker=deps.stores.repairs.breaker().reason,
        slurm=SlurmState(pulse.slurm.at, pulse.slurm.error),
        loop=LoopState(pulse.last_tick_at, pulse.tick_seconds, pulse.last_error),
        nodes=dict(Counter(node.state.value for node in nodes)),
        spares=SparePool(sum(node.is_spare for node in nodes), _spares_wanted(deps)),
        incidents_open=len(deps.stores.incidents.open_incidents()),
        recoveries_running=len(deps.stores.recoveries.running()),
        problems=[*own_problems(deps), *_waiting_for_people(snapshot)],
    )


def _spares_wanted(deps: ReadDependencies) -> int:
    size = deps.stores.fleet.spares_size()
    return deps.current.config.spares.count if size.count is None else size.count


def _for_user(status: Status) -> Status:
    return msgspec.structs.replace(
        status,
        paused="by an operator" if status.paused else "",
        paused_jobs=[],
        mode_limit="by an administrator" if status.mode_limit else "",
        breaker="open" if status.breaker else "",
        slurm=SlurmState(status.slurm.read_at, ""),
        loop=msgspec.structs.replace(status.loop, error=""),
        problems=None,
    )


def _without_causes(problems: list[Problem]) -> list[str]:
    """For requests without a token: a cause can contain paths, addresses and SQL."""
    return [f"{problem.what}; {CAUSE_AT}" if problem.cause else problem.what for problem in problems]


def _problems(deps: ReadDependencies) -> list[Problem]:
    problems: list[Problem] = []
    age = deps.clock.now() - deps.pulse.last_tick_at
    if age > TICK_AGE_MAX_SECONDS:
        problems.append(Problem(f"the loop has not ticked for {age:.0f} s", deps.pulse.last_error or "it hangs"))
    elif deps.pulse.last_error:
        problems.append(Problem("the last tick failed", deps.pulse.last_error))
    if deps.pulse.slurm.at is None:
        cause = deps.pulse.slurm.error or "the first tick runs"
        problems.append(Problem("Slurm has not been read since the start", cause))
    try:
        deps.queries.alive()
    except StoreError as error:
        problems.append(Problem("the database does not answer", type(error).__name__))
    return problems


def _failed_detectors(deps: ReadDependencies) -> list[Problem]:
    return [Problem(one.effect, one.cause) for one in deps.pulse.failed_detectors.values()]


def own_problems(deps: ReadDependencies) -> list[str]:
    """What an operator should know, also where the control plane itself works; without what has records of its own."""
    ends = ending_soon(deps.pulse.token_ends, deps.clock.now())
    return [
        *map(str, (*_problems(deps), *_failed_detectors(deps))),
        *deps.pulse.config_problems,
        *deps.pulse.notify_problems,
        *_warnings_of_fleet(deps),
        *ends,
    ]


def _waiting_for_people(snapshot: Snapshot | None) -> list[str]:
    """Recoveries that await approval, and nodes in manual repair."""
    if snapshot is None:
        return []
    warnings: list[str] = []
    waiting = [_words(one) for one in snapshot.proposals if one.status is RecoveryStatus.AWAITS_APPROVAL]
    if waiting:
        warnings.append(f"recoveries await approval (`understudy recovery approve NUMBER REASON`): {_named(waiting)}")
    views = snapshot.nodes.values()
    with_people = sorted((view.name for view in views if view.state is NodeState.MANUAL_REPAIR), key=natural)
    if with_people:
        warnings.append(f"manual repair is needed on {_named(with_people)}: `understudy ticket list`")
    return warnings


def _warnings_of_fleet(deps: ReadDependencies) -> list[str]:
    snapshot = deps.pulse.snapshot
    if snapshot is None:
        return []
    limit = deps.current.config.silence.silent_after_seconds
    views = list(snapshot.nodes.values())
    warnings = [f"the circuit breaker is open: {snapshot.breaker}"] if snapshot.breaker else []
    drilled = [f"{name} until {_hour(snapshot.drills[name].until)}" for name in sorted(snapshot.drills, key=natural)]
    if drilled:
        warnings.append(f"a drill goes on: {_named(drilled)}: `understudy inject NODE end REASON` ends it")
    policy = deps.current.config.signals
    live = [
        f"{one.words} ({_named([*one.targets])})"
        for one in snapshot.signals
        if policy.effect_of(one.kind).includes(SignalEffect.WARN)
    ]
    if live:
        warnings.append(f"other systems of the site report (`understudy signal list`): {_named(live)}")
    unheard = sum(snapshot.now - (silent_since(view, snapshot.started_at) or 0.0) > limit for view in views)
    if unheard > len(views) / 2:
        warnings.append(f"{unheard} of {len(views)} nodes do not report: check that their agents run")
    return warnings


def _hour(at: float) -> str:
    return moment(at).strftime("%H:%M UTC")


def _words(proposal: Recovery) -> str:
    job, nodes = job_of(proposal.plan), " ".join(proposal.plan.nodes)
    about = " ".join(filter(None, (proposal.plan.kind.value, f"job {job.job_id}" if job else "", nodes)))
    return f"{proposal.id} ({about})"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{', '.join(names[:NAMED_MAX])}{more}"
