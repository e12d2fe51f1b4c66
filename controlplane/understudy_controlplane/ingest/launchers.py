"""The door for launchers: `POST /v1/launchers`, a long poll that an agent holds for each launcher on its node."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request, Response

from understudy_agent.wire import (
    NOT_UNDERSTOOD,
    REPORT_BYTES_MAX,
    WIRE_VERSION,
    LauncherReport,
    LauncherWord,
    StartAnew,
)
from understudy_controlplane.fleet.gang import Gang, Spent, Word
from understudy_controlplane.fleet.job import Attempt, KnownJob
from understudy_controlplane.ingest.answers import answer, refuse
from understudy_controlplane.ingest.reports import Doors, not_an_agent, read_body, wrong_version
from understudy_controlplane.live.launchers import Launchers
from understudy_controlplane.store.database import StoreError

_decoder = msgspec.json.Decoder(LauncherReport)


def launchers_router(doors: Doors, launchers: Launchers) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/launchers")
    async def follow_launcher(request: Request) -> Response:  # noqa: PLR0911 - a return for each refusal
        if not doors.agent_token.admits(request.headers.get("authorization")):
            return not_an_agent()
        body = await read_body(request)
        if body is None:
            return refuse(413, f"a launcher's report has at most {REPORT_BYTES_MAX} bytes", "it names too many nodes")
        report = _understand(doors, body)
        if isinstance(report, Response):
            return report
        known = doors.directory.get(report.job_id)
        nodes = doors.telemetry.nodes_of(report.job_id, report.restart_count)
        if known is None or nodes is None or report.restart_count > known.restart_count:
            return _not_running(doors, report)
        objection = _objection(report, known, nodes)
        if objection is not None:
            return objection
        try:
            spent = await _spent(doors, launchers, known, report)
            if launchers.hear(report.job_id, _gang(report, nodes, doors.clock.now())):
                doors.wake_loop()
            word = await launchers.news(report.job_id, report.known, report.wait_seconds)
            newest = await asyncio.to_thread(doors.newest_checkpoint, known)
        except StoreError as error:
            return refuse(503, f"the database does not answer: {type(error).__name__}", "ask again")
        return answer(_word(doors, report, word, spent, newest))

    return router


def _understand(doors: Doors, body: bytes) -> LauncherReport | Response:
    try:
        report = _decoder.decode(body)
    except NOT_UNDERSTOOD as error:
        return refuse(
            400, f"the report cannot be read: {error}", "compare the message with agents/understudy_agent/wire.py"
        )
    if report.version != WIRE_VERSION:
        return wrong_version(report.version)
    if report.cluster != doors.cluster:
        return refuse(400, f"this is {doors.cluster!r}, not {report.cluster!r}", "set `cluster` in the agent")
    return report


def _objection(report: LauncherReport, known: KnownJob, nodes: frozenset[str]) -> Response | None:
    """Who may speak for the job: its owner, from a node of it, where it asked for us."""
    if not known.believes(report.user_id):
        words = f"user {report.user_id} speaks for job {report.job_id} of user {known.user_id}"
        return refuse(403, words, "speak for your own")
    if report.node not in nodes:
        return refuse(403, f"job {report.job_id} does not run on {report.node}", "run it within the allocation")
    if not known.managed:
        return refuse(403, f"job {report.job_id} did not ask for us", "sbatch --comment=understudy")
    return None


def _not_running(doors: Doors, report: LauncherReport) -> Response:
    doors.wake_loop()
    words = f"Slurm does not show attempt {report.restart_count} of job {report.job_id} as running"
    return refuse(404, words, "ask again in a second")


async def _spent(doors: Doors, launchers: Launchers, known: KnownJob, report: LauncherReport) -> Spent:
    """Asked of the database once an allocation. Raises StoreError."""
    spent = launchers.spent(report.job_id, report.restart_count)
    if spent is None:
        spent = await asyncio.to_thread(doors.launches.spent, known.row, report.restart_count)
        launchers.note_spent(report.job_id, report.restart_count, spent)
    return spent


def _gang(report: LauncherReport, nodes: frozenset[str], now: float) -> Gang:
    """A spare that is not the job's is none."""
    return Gang(
        attempt=Attempt(report.restart_count, report.launch),
        host=report.node,
        seats=tuple(report.seats),
        spares=tuple(name for name in report.spares if name in nodes),
        lost=tuple(report.lost),
        nodes_min=report.nodes_min,
        phase=report.phase,
        heard_at=now,
    )


def _word(
    doors: Doors, report: LauncherReport, word: Word | None, spent: Spent, newest: tuple[int, str]
) -> LauncherWord:
    anew = word.anew if word is not None else None
    return LauncherWord(
        version=word.version if word is not None else "",
        bad=dict(word.bad) if word is not None else {},
        anew=StartAnew(anew.launch, anew.reason, list(anew.without)) if anew is not None else None,
        launches_without_progress=spent.launches_without_progress,
        best_step=spent.best_step,
        launch=report.launch,
        step=doors.telemetry.step_of(report.job_id, Attempt(report.restart_count, report.launch)),
        restore_step=newest[0],
        restore_path=newest[1],
    )
