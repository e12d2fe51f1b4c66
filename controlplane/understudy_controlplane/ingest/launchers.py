"""The route for launchers: `POST /v1/launchers`, a long poll that an agent holds for each launcher on its node."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request, Response

from understudy_controlplane.access.admission import Admission, only_for
from understudy_controlplane.fleet.gang import Earlier, Gang, orders_version
from understudy_controlplane.fleet.identity import Permission
from understudy_controlplane.fleet.job import Attempt, KnownJob
from understudy_controlplane.fleet.packed_nodes import with_nodes
from understudy_controlplane.hostlist import HostListError
from understudy_controlplane.ingest.answers import answer, refuse
from understudy_controlplane.ingest.reports import ReportDependencies, read_body, wrong_version
from understudy_controlplane.live.launchers import Launchers
from understudy_controlplane.store.database import StoreError
from understudy_wire.launcher import LauncherAnswer, LauncherReport, LauncherState
from understudy_wire.messages import REPORT_BYTES_MAX, WIRE_VERSION
from understudy_wire.values import NOT_UNDERSTOOD, in_words

COMPARE = "compare it with agents/understudy_wire/launcher.py"

_decoder = msgspec.json.Decoder(LauncherReport)


def launchers_router(deps: ReportDependencies, launchers: Launchers, admission: Admission) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/launchers")
    async def follow_launcher(request: Request) -> Response:
        """Take a launcher's report, and answer when there are new orders for it or after the time that it asks for."""
        identity = await admission.admit(request, Permission.REPORT)
        report = await _read(deps, request)
        if isinstance(report, Response):
            return report
        only_for(identity, report.node)
        state = report.state
        known = deps.directory.get(state.job_id)
        nodes = deps.telemetry.nodes_of(state.job_id, state.restart_count)
        if known is None or nodes is None or state.restart_count > known.restart_count:
            return _not_running(deps, report)
        objection = objection_to(report, known, nodes)
        if objection is not None:
            return objection
        report = await asyncio.to_thread(_with_nodes, report, nodes)
        if isinstance(report, Response):
            return report
        try:
            earlier = await _earlier_allocations(deps, launchers, known, state, nodes)
            before = launchers.gang(state.job_id)
            same = before is not None and before.attempt.restart_count == state.restart_count
            own = nodes.union(before.nodes) if before is not None and same else nodes
            if launchers.note(gang_of(report, own, deps.clock.now())):
                deps.wake_loop()
            orders = await launchers.wait_for_orders(state.job_id, report.known, report.wait_seconds)
            restore = await asyncio.to_thread(deps.newest_checkpoint, known)
        except StoreError as error:
            return refuse(503, f"the database does not answer: {type(error).__name__}", "ask again")
        place = deps.telemetry.place_of(state.job_id, Attempt(state.restart_count, state.launch))
        return answer(
            LauncherAnswer(
                orders_version=orders_version(orders) if orders is not None else "",
                orders=orders,
                earlier=earlier.spent,
                launch=state.launch,
                step=max(0, place.step - earlier.count_from) if place is not None else None,
                count_from=max(0, place.count_from - earlier.count_from) if place is not None else 0,
                restore_step=restore.step,
                restore_path=restore.path,
                restore_ranks=restore.ranks,
            )
        )

    return router


async def _read(deps: ReportDependencies, request: Request) -> LauncherReport | Response:
    body = await read_body(request)
    if body is None:
        return refuse(413, f"a launcher's report has at most {REPORT_BYTES_MAX} bytes", "it names too many nodes")
    try:
        report = _decoder.decode(body)
    except NOT_UNDERSTOOD as error:
        return refuse(400, f"the report cannot be decoded: {in_words(error)}", COMPARE)
    if report.version != WIRE_VERSION:
        return wrong_version(report.version)
    if report.cluster != deps.cluster:
        return refuse(
            400,
            f"the report is for cluster {report.cluster!r}; this control plane serves {deps.cluster!r}",
            "set `cluster` in the agent",
        )
    return report


def _with_nodes(report: LauncherReport, nodes: frozenset[str]) -> LauncherReport | Response:
    """`nodes`: of the job. The report has to name one of them."""
    job_id = report.state.job_id
    try:
        report = msgspec.structs.replace(report, state=with_nodes(report.state))
    except HostListError as error:
        return refuse(400, f"the report cannot be decoded: {error}", COMPARE)
    if not report.state.seats:
        return refuse(400, "the report names no node of the gang", COMPARE)
    if nodes.isdisjoint(report.state.seats):
        return refuse(403, f"job {job_id} runs on none of the nodes that the report names", "name nodes of the job")
    return report


def objection_to(report: LauncherReport, known: KnownJob, nodes: frozenset[str]) -> Response | None:
    """A launcher may report a job of its own user, from a node of the job, where the job asked for Understudy."""
    job_id = report.state.job_id
    if not known.believes(report.user_id):
        error = f"a launcher of user {report.user_id} reported job {job_id} of user {known.user_id}"
        return refuse(403, error, "run the launcher as the job's user")
    if report.node not in nodes:
        return refuse(403, f"job {job_id} does not run on {report.node}", "run the launcher within the allocation")
    if not known.managed:
        return refuse(403, f"job {job_id} did not ask for Understudy", "sbatch --comment=understudy")
    return None


def _not_running(deps: ReportDependencies, report: LauncherReport) -> Response:
    state = report.state
    deps.read_slurm(report.user_id)
    error = f"Slurm does not show attempt {state.restart_count} of job {state.job_id} as running"
    return refuse(404, error, "ask again in a second")


async def _earlier_allocations(
    deps: ReportDependencies, launchers: Launchers, known: KnownJob, state: LauncherState, nodes: frozenset[str]
) -> Earlier:
    """Read from the database once for each allocation. Raises StoreError."""
    earlier = launchers.earlier_allocations(state.job_id, state.restart_count)
    if earlier is None:
        earlier = await asyncio.to_thread(deps.launches.earlier_allocations, known.row, state.restart_count, nodes)
        launchers.note_earlier_allocations(state.job_id, state.restart_count, earlier)
    return earlier


def gang_of(report: LauncherReport, nodes: frozenset[str], now: float) -> Gang:
    """A launcher names nodes of its own job alone, also those that Slurm has taken out of it: others are left out."""
    state = report.state
    seats, spares, lost = (
        tuple(name for name in names if name in nodes) for names in (state.seats, state.spares, state.lost)
    )
    return Gang(msgspec.structs.replace(state, seats=seats, spares=spares, lost=lost), report.node, now)
