"""Routes for agents: `POST /v1/reports`, and `GET /v1/restore-point` for their ranks.

Telemetry goes to memory at once; facts go to SQL before they are acknowledged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import structlog
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from understudy_controlplane.access.admission import Admission, Denied, address_of, only_for
from understudy_controlplane.clock import Clock
from understudy_controlplane.detect.node_log import with_code
from understudy_controlplane.fleet.identity import Identity, Permission
from understudy_controlplane.fleet.job import Attempt, KnownJob, RankPlace, RestoreAnswer, RestoreDecision, TrainingRun
from understudy_controlplane.fleet.node import Generation, generation_of
from understudy_controlplane.ingest.answers import answer, refuse, refuse_denied, refuse_for_error, refuse_http_error
from understudy_controlplane.ingest.decode import Decoded, decode_report
from understudy_controlplane.ingest.quotas import Quotas
from understudy_controlplane.ingest.rates import Rates
from understudy_controlplane.ingest.refusals import BY_STATUS, Cause, Refusals, error_of
from understudy_controlplane.live.allocations import MARGIN_SECONDS
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.live.meters import Meters
from understudy_controlplane.live.telemetry import Telemetry, UnknownNode
from understudy_controlplane.store.database import StoreError
from understudy_controlplane.store.facts import Circumstances, FactStore
from understudy_controlplane.store.launches import LaunchStore
from understudy_wire.facts import CheckpointDeleted, Fact, HardwareEvent, KernelEvent, KernelLogPolicy, ShardFile
from understudy_wire.files import FileResult, FileTask
from understudy_wire.messages import (
    FACTS_PER_REPORT_MAX,
    GPUS_PER_NODE_MAX,
    PORTS_PER_NODE_MAX,
    REPORT_BYTES_MAX,
    WIRE_VERSION,
    Acknowledgement,
    KeptJob,
    Report,
    RestorePoint,
)
from understudy_wire.ranks import RANKS_PER_NODE_MAX, STEPS_PER_WINDOW_MAX
from understudy_wire.values import DISKS_PER_NODE_MAX, NOT_UNDERSTOOD, TEXT_CHARACTERS_MAX

log = structlog.get_logger()

REPORTS = "/v1/reports"

DROPPED_SHOWN_MAX = 8

ON_THE_WAY_SECONDS_MAX = 60.0
"""A report that is older has not been on its way for that time: its node's clock is behind. No agent waits longer for
its answer.
"""

SETTLED_LOOKED_FOR = 4
SETTLED_PAUSE_SECONDS = 0.5
"""While a rank on another node looks whether the checkpoint is there. After that the agent asks again."""


class RestoreQuery(BaseModel):
    job_id: int = Field(ge=0, le=2**32 - 1)
    restart_count: int = Field(ge=0, le=2**31 - 1)
    user_id: int = Field(ge=0, le=2**32 - 1)  # of the process that asks
    launch: int = Field(0, ge=0, le=2**31 - 1)
    if_managed: bool = False  # for a job that is not managed the answer is that, and nothing is decided
    looks: bool = False  # the rank that asks can look whether the checkpoint is there
    world_size: int = Field(0, ge=0, le=2**31 - 1)  # of the rank that asks; 0: no rank asks
    rank: int = Field(-1, ge=-1, le=2**31 - 1)  # that asks; -1: none, or its agent is older
    run: str = Field("", max_length=255, pattern=r"^[^\x00]*$")  # to which the job belongs; empty: not known
    run_folder: str = Field("", max_length=TEXT_CHARACTERS_MAX, pattern=r"^[^\x00]*$")
    arguments: str = Field("", max_length=64, pattern=r"^[^\x00]*$")  # a sum of those of its program; empty: not known


class _VersionOnly(msgspec.Struct):
    version: int = 0


_version_decoder = msgspec.json.Decoder(_VersionOnly)
_NOTHING_TO_ACKNOWLEDGE = answer(Acknowledgement(0))


@dataclass(frozen=True, slots=True)
class ReportDependencies:
    """What the routes for agents use.

    `give_restore_point(job, attempt, ranks)` decides where an attempt continues, with a gang of so many ranks.
    `unfit(node, now)` returns why no new job may start on the node; empty: it may. `read_slurm(user_id)` asks for a new
    reading of Slurm, for that user.
    `newest_checkpoint(job)` is for an attempt that begins now. `looker(job, attempt, node, ranks)` returns the node
    whose rank is to look whether the checkpoint is there; empty: it is settled. `place(job, attempt, rank, node)`:
    where the answer for a rank differs from that of its gang. `note_run(job, run, rank)`: to which run it belongs;
    False: this rank is to ask again.
    `file_task(node)` returns what the node's agent is to do with files; `take_file_result` takes what became of it.
    """

    cluster: str
    telemetry: Telemetry
    directory: JobDirectory
    facts: FactStore
    launches: LaunchStore
    clock: Clock
    wake_loop: Callable[[], None]
    fault_came: Callable[[], None]
    """The same, for what may be a fault."""
    read_slurm: Callable[[int], None]
    give_restore_point: Callable[[KnownJob, Attempt, int], RestoreDecision]
    unfit: Callable[[str, float], str]
    rates: Rates
    newest_checkpoint: Callable[[KnownJob], RestoreDecision] = lambda _: RestoreDecision(RestoreAnswer.FRESH)
    looker: Callable[[KnownJob, Attempt, str, int], str] = lambda *_: ""
    place: Callable[[KnownJob, Attempt, int, str], RankPlace] = lambda *_: RankPlace()
    line: Callable[[KnownJob, RestoreDecision], str] = lambda *_: ""
    look_sizes: Callable[[KnownJob, Attempt, str], dict[str, int]] = lambda *_: {}
    note_run: Callable[[KnownJob, TrainingRun, int], bool] = lambda *_: True
    file_task: Callable[[str], FileTask | None] = lambda _: None
    take_file_result: Callable[[str, FileResult], None] = lambda *_: None
    checkpoints_deleted: Callable[[], None] = lambda: None
    quotas: Quotas = field(default_factory=Quotas)
    meters: Meters = field(default_factory=Meters)
    refusals: Refusals = field(default_factory=lambda: Refusals(Meters()))
    kernel_log: KernelLogPolicy | None = None  # which lines of the kernel log agents pass on; None: only the driver's


class ReportsRoute:
    """`POST /v1/reports`, as ASGI before the framework: an agent sends one each second, and the framework's own work is
    more than that of the report.
    """

    def __init__(self, app: ASGIApp, deps: ReportDependencies, admission: Admission) -> None:
        """`app` has all other routes."""
        self._app = app
        self._deps = deps
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != REPORTS:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            answered = await self.receive_report(request)
        except Denied as denied:
            answered = await refuse_denied(request, denied)
        except HTTPException as error:
            answered = refuse_http_error(error)
        except ClientDisconnect:
            return  # no one reads an answer
        except Exception as error:
            await refuse_for_error(error)(scope, receive, send)
            raise
        await answered(scope, receive, send)

    async def receive_report(self, request: Request) -> Response:
        """Take an agent's report: telemetry, and facts, which are stored before the answer."""
        if request.method != "POST":
            raise HTTPException(405, headers={"Allow": "POST"})
        deps, begun = self._deps, time.perf_counter()
        sender = address_of(request)
        try:
            identity = await self._admission.admit(request, Permission.REPORT)
            sender = identity.node
            cause, answered = await _receive(deps, request, identity)
        except Denied as denied:
            deps.refusals.note(BY_STATUS[denied.status], sender, denied.error, deps.clock.monotonic())
            raise
        except HTTPException as error:  # RequestLimits: the body is too large
            deps.refusals.note(Cause.TOO_LARGE, sender, str(error.detail), deps.clock.monotonic())
            raise
        if cause is not None:
            deps.refusals.note(cause, sender, error_of(answered), deps.clock.monotonic())
        deps.meters.ingest_seconds.observe(time.perf_counter() - begun)
        return answered


def restore_points_router(deps: ReportDependencies, admission: Admission) -> APIRouter:
    router = APIRouter()
    node = Depends(admission.require(Permission.REPORT))

    @router.get("/v1/restore-point")
    async def restore_point(query: Annotated[RestoreQuery, Query()], identity: Identity = node) -> Response:
        """The step and path from which this attempt of a job continues. It stays the same for the whole attempt."""
        return await _answer_restore_point(deps, query, identity)

    return router


async def _answer_restore_point(deps: ReportDependencies, query: RestoreQuery, identity: Identity) -> Response:
    job_id, restart_count, user_id = query.job_id, query.restart_count, query.user_id
    known = deps.directory.get(job_id)
    nodes = deps.telemetry.nodes_of(job_id, restart_count)
    if known is None or restart_count > known.restart_count:
        return _not_running(deps, job_id, restart_count, user_id)
    if not known.believes(user_id):
        return refuse(403, f"user {user_id} asks about job {job_id} of user {known.user_id}", "ask as the job's user")
    if query.if_managed and not known.managed:
        return answer(RestorePoint(job_id, restart_count, 0, "", query.launch, managed=False))
    if nodes is None:
        return _not_running(deps, job_id, restart_count, user_id)
    if identity.node not in nodes:
        return refuse(403, f"job {job_id} does not run on {identity.node}", "ask on a node of the job")
    attempt = Attempt(restart_count, query.launch)
    return await _decided(deps, known, attempt, query, identity.node)


async def _receive(deps: ReportDependencies, request: Request, identity: Identity) -> tuple[Cause | None, Response]:
    """The answer, and why the report is refused; None: it is not. Raises Denied."""
    _within_rate(deps, identity.node)
    body = await read_body(request)
    if body is None:
        error = f"a report has at most {REPORT_BYTES_MAX} bytes"
        return Cause.TOO_LARGE, refuse(413, error, "send fewer steps or facts in one report")
    try:
        decoded = decode_report(body)
    except NOT_UNDERSTOOD as error:
        version = _version_of(body)
        if version != WIRE_VERSION:
            return Cause.VERSION, wrong_version(version)
        return Cause.UNREADABLE, _unreadable(error)
    report = decoded.report
    only_for(identity, report.node)
    objection = objection_to(deps, report)
    if objection is not None:
        other = Cause.VERSION if report.version != WIRE_VERSION else Cause.CLUSTER
        return BY_STATUS.get(objection.status_code, other), objection
    follows = deps.telemetry.note_leaders(report, deps.clock.monotonic())
    if follows or report.looks:
        return None, _to_looker(report.node, follows)
    if decoded.unknown:
        _note_unknown(deps, decoded)
    answered = await _take(deps, decoded)
    return BY_STATUS.get(answered.status_code), answered


def _to_looker(node: str, follows: str) -> Response:
    """`follows`: address of the control plane in whose database the node's facts are; empty: it is this one."""
    if not follows:
        return _NOTHING_TO_ACKNOWLEDGE
    hint = "`understudy status` names the command that ends that"
    return refuse(503, f"node {node} follows the control plane at {follows}", hint)


async def _decided(
    deps: ReportDependencies, known: KnownJob, attempt: Attempt, query: RestoreQuery, node: str
) -> Response:
    """`node` asks. Where it is not known where to continue, hooks of all releases take a refusal for that; none takes
    it for the beginning.
    """
    number, ranks = known.key.job_id, query.world_size
    if query.run:
        run = TrainingRun(query.run, query.run_folder, query.arguments)
        if not await asyncio.to_thread(deps.note_run, known, run, query.rank):
            return refuse(503, f"rank 0 of job {number} has not reported yet what it runs", "ask again")
    looker = await _settle(deps, known, attempt, ranks, node) if query.looks else ""
    if looker not in ("", node):
        return refuse(503, f"a rank on {looker} looks whether the checkpoint is there", "ask again")
    decision = await asyncio.to_thread(deps.give_restore_point, known, attempt, ranks)
    if decision.answer is not RestoreAnswer.UNKNOWN:
        point = RestorePoint(number, attempt.restart_count, decision.step, decision.path, attempt.launch)
        if query.looks and decision.path:
            place = await asyncio.to_thread(deps.place, known, attempt, query.rank, node)
            more = place._asdict() if looker else {**place._asdict(), "look_file": ""}
            point = msgspec.structs.replace(point, look=bool(looker), **more)
            if looker:
                sizes = await asyncio.to_thread(deps.look_sizes, known, attempt, node)
                files = [ShardFile(file, size) for file, size in sizes.items()]
                point = msgspec.structs.replace(point, look_sizes=files)
        if query.looks and query.rank == 0 and not looker:
            line = await asyncio.to_thread(deps.line, known, decision)
            point = msgspec.structs.replace(point, line=line)
        return answer(point)
    hint = (
        f"`understudy checkpoints --job {number}` lists them; `understudy job trust-checkpoints {number} REASON` makes "
        "suspect ones good for the next attempt"
    )
    if not known.managed:
        hint = "sbatch --comment=understudy"
    return refuse(409, f"no checkpoint of job {number} can be named, and it may have saved some: {decision.why}", hint)


async def _settle(deps: ReportDependencies, known: KnownJob, attempt: Attempt, ranks: int, node: str) -> str:
    """Waits while a rank on another node looks. Returns the node that looks; empty: it is settled."""
    for _ in range(SETTLED_LOOKED_FOR):
        looker = await asyncio.to_thread(deps.looker, known, attempt, node, ranks)
        if looker in ("", node):
            break
        await asyncio.sleep(SETTLED_PAUSE_SECONDS)
    return looker


def _not_running(deps: ReportDependencies, job_id: int, restart_count: int, user_id: int) -> Response:
    deps.read_slurm(user_id)
    return refuse(404, f"Slurm does not show attempt {restart_count} of job {job_id} yet", "ask again in a second")


def _within_rate(deps: ReportDependencies, node: str) -> None:
    """Raises Denied."""
    if not deps.rates.admits(node, deps.clock.monotonic()):
        raise Denied(429, f"node {node} sends too many reports", "send one report a second")


async def read_body(request: Request) -> bytes | None:
    """The body; None when it is too large. A body that is too large is not read to its end."""
    length = request.headers.get("content-length")
    if length is not None and length.isdecimal() and int(length) > REPORT_BYTES_MAX:
        return None
    body, more = b"", True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > REPORT_BYTES_MAX:
            return None
        more = message.get("more_body", False)
    return body


def _version_of(body: bytes) -> int:
    """A newer agent's report may not be readable at all, except for its version."""
    try:
        return _version_decoder.decode(body).version
    except NOT_UNDERSTOOD:
        return WIRE_VERSION


def _unreadable(error: Exception) -> Response:
    return refuse(
        400, f"the report cannot be read: {error}", "compare the message with agents/understudy_wire/messages.py"
    )


def wrong_version(version: int) -> Response:
    return refuse(
        400,
        f"wire version {version} is not supported; this control plane supports {WIRE_VERSION}",
        "install the same release of understudy on agents and control plane; update the control plane first",
    )


def _note_unknown(deps: ReportDependencies, decoded: Decoded) -> None:
    """Counts every occurrence, and logs each name once."""
    report = decoded.report
    for name in deps.telemetry.unknown.note(decoded.unknown):
        log.warning("report_unknown_content", node=report.node, release=report.release, what=name)


def objection_to(deps: ReportDependencies, report: Report) -> Response | None:
    if report.version != WIRE_VERSION:
        return wrong_version(report.version)
    if report.cluster != deps.cluster:
        return refuse(
            400,
            f"node {report.node} reports for cluster {report.cluster!r}; this control plane serves {deps.cluster!r}",
            "set `cluster` in the agent's configuration to Slurm's ClusterName",
        )
    too_many = [
        f"{count} {what}, at most {most}"
        for what, count, most in (
            ("GPUs", len(report.gpus), GPUS_PER_NODE_MAX),
            ("ports", len(report.ports), PORTS_PER_NODE_MAX),
            ("disks", len(report.host.disks) if report.host else 0, DISKS_PER_NODE_MAX),
            ("ranks", len(report.ranks), RANKS_PER_NODE_MAX),
            ("facts", len(report.facts), FACTS_PER_REPORT_MAX),
            (
                "steps of a rank",
                max((len(w.self_seconds) for w in report.ranks), default=0),
                STEPS_PER_WINDOW_MAX,
            ),
        )
        if count > most
    ]
    if too_many:
        return refuse(422, f"node {report.node} reports {'; '.join(too_many)}", "send it in several reports")
    return None


async def _take(deps: ReportDependencies, decoded: Decoded) -> Response:
    report = decoded.report
    now = deps.clock.now()
    before = deps.telemetry.latest(report.node)
    # A node that is heard for the first time may become a spare at once: its facts are stored before.
    facts_first = before is None and bool(report.facts) and deps.telemetry.knows(report.node)
    refused: list[str] = []
    try:
        dropped = [] if facts_first else deps.telemetry.receive(report, now)
        if report.facts:
            refused = await asyncio.to_thread(store_facts, deps, report, before.report if before else None, now)
        if facts_first:
            dropped = deps.telemetry.receive(report, now)
    except UnknownNode:
        return refuse(
            404,
            f"Slurm on cluster {deps.cluster!r} knows no node {report.node!r}",
            "set `node` in the agent's configuration to the NodeName of slurm.conf",
        )
    except StoreError as error:
        log.exception("facts_not_stored", node=report.node, count=len(report.facts))
        return refuse(503, f"the facts could not be stored: {type(error).__name__}", "repeat the report")
    deps.telemetry.note_facts_dropped(len(refused) + len(decoded.ignored))
    if report.facts:
        if any(isinstance(fact, CheckpointDeleted) for fact in report.facts):
            deps.checkpoints_deleted()
        dropped += refused
        may_be_fault = any(isinstance(fact, KernelEvent | HardwareEvent) for fact in report.facts)
        (deps.fault_came if may_be_fault else deps.wake_loop)()
    dropped += decoded.ignored
    if report.file_result is not None:
        deps.take_file_result(report.node, report.file_result)
    file_task = deps.file_task(report.node)
    unfit = deps.unfit(report.node, now)
    if dropped:
        log.warning("report_dropped_in_part", node=report.node, reason=dropped[:DROPPED_SHOWN_MAX])
    followed = report.kernel_log_policy
    wanted = deps.kernel_log if deps.kernel_log is not None and followed is not None else None
    news = wanted if wanted is not None and wanted.version != followed else None
    orders = deps.telemetry.saves.answer_to(report.ranks)
    tests = deps.telemetry.compute_tests.answer_to(report.ranks)
    notes = deps.telemetry.job_notes.answer_to(report.ranks)
    questions = deps.telemetry.hang_questions.answer_to(report.ranks)
    over = _jobs_over(deps, report, now)
    for_agent = report.facts or unfit or dropped or news is not None or file_task is not None or over
    if not (for_agent or orders or tests or notes or questions):
        return _NOTHING_TO_ACKNOWLEDGE
    shown = dropped[:DROPPED_SHOWN_MAX]
    of_ranks = (orders, over, tests, notes, questions)
    return answer(Acknowledgement(len(report.facts), shown, unfit, news, file_task, *of_ranks))


def _jobs_over(deps: ReportDependencies, report: Report, now: float) -> list[KeptJob]:
    """Jobs whose parts the node's keeper may drop: they are over, unknown to Slurm, or another user's."""
    kept = report.keeper.jobs if report.keeper is not None else []
    if not kept:
        return []
    ids = [job.job_id for job in kept]
    over = {known.key.job_id for known in deps.directory.over(ids, now)} | deps.directory.invented(ids, now)
    known = zip(kept, deps.directory.known(ids), strict=True)
    return [job for job, one in known if job.job_id in over or (one is not None and not one.believes(job.user_id))]


def store_facts(deps: ReportDependencies, report: Report, before: Report | None, now: float) -> list[str]:
    """`before` is the node's report before this one. Returns what was not believed, in words. Raises StoreError."""
    behind = now - report.sent_at
    last = behind if abs(behind) > MARGIN_SECONDS else 0.0  # by the node's clock, or by the report's way
    first = 0.0 if 0 < last <= ON_THE_WAY_SECONDS_MAX else last
    admitted, too_many = deps.quotas.admitted(report.node, report.facts, deps.clock.monotonic())
    try:
        return too_many + deps.facts.record(
            report.node,
            [_parsed(fact) for fact in admitted],
            now,
            deps.directory.find,
            Circumstances(
                lambda at: deps.telemetry.allocations.on(report.node, at + first, at + last),
                _generation(report, before),
                deps.telemetry.nodes_of,
            ),
        )
    except BaseException:
        deps.quotas.give_back(report.node, admitted)
        raise


def _parsed(fact: Fact) -> Fact:
    return with_code(fact) if isinstance(fact, KernelEvent) else fact


def _generation(report: Report, before: Report | None) -> Generation:
    """Driver and GPUs as far as they are known: a fact may come before the agent's first sample, or without one."""
    own = generation_of(report.driver_version, report.gpus)
    if before is None or before.boot_id != report.boot_id:
        return own
    known = generation_of(before.driver_version, before.gpus)
    return Generation(own.driver_version or known.driver_version, own.gpu_set or known.gpu_set)
