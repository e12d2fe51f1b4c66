"""Builds every part from the configuration and joins them. The only module that knows all of them."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy import Engine
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from understudy_controlplane.access.addresses import NodeAddresses, NotReadYet
from understudy_controlplane.access.admission import Admission, Denied
from understudy_controlplane.access.challenges import Challenges
from understudy_controlplane.access.munge import Credential, Munge
from understudy_controlplane.access.proxy import Proxy
from understudy_controlplane.access.sessions import Sessions
from understudy_controlplane.access.token_ends import Ends
from understudy_controlplane.access.tokens import Tokens
from understudy_controlplane.access.user_tokens import UserTokens
from understudy_controlplane.agent_recorder import AgentRecorder
from understudy_controlplane.api.browser import add_pages
from understudy_controlplane.api.commissioning import commissioning_router
from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.drills import drills_router
from understudy_controlplane.api.events import EventFeed, events_router
from understudy_controlplane.api.evidence import evidence_router
from understudy_controlplane.api.explain import explain_router
from understudy_controlplane.api.jobs import jobs_router
from understudy_controlplane.api.maintenance import maintenance_requests_router, maintenance_router
from understudy_controlplane.api.metrics import metrics_router
from understudy_controlplane.api.nodes import nodes_router
from understudy_controlplane.api.notifications import notifications_router
from understudy_controlplane.api.observed import observed_router
from understudy_controlplane.api.operator_requests import RequestDependencies
from understudy_controlplane.api.post_mortem import post_mortem_router
from understudy_controlplane.api.readers import Readers
from understudy_controlplane.api.recoveries import recoveries_router
from understudy_controlplane.api.report import report_router
from understudy_controlplane.api.request_limits import RequestLimits
from understudy_controlplane.api.requests import requests_router
from understudy_controlplane.api.sessions import SessionDependencies, sessions_router
from understudy_controlplane.api.site_signals import signals_router
from understudy_controlplane.api.spares import spares_router
from understudy_controlplane.api.status import health_router, status_router
from understudy_controlplane.api.topology import topology_router
from understudy_controlplane.api.user_tokens import UserTokenDependencies, user_tokens_router
from understudy_controlplane.api.verbs import verbs_router
from understudy_controlplane.audit_writer import AuditSyslog, AuditWriter, send_to_syslog
from understudy_controlplane.clock import Clock, SystemClock
from understudy_controlplane.config import Config
from understudy_controlplane.config.current import ConfigFile, CurrentConfig
from understudy_controlplane.dashboard.live import LiveViews
from understudy_controlplane.dashboard.routes import dashboard_router
from understudy_controlplane.decide.leadership import AGENTS_SECONDS
from understudy_controlplane.fleet.holder import Leading
from understudy_controlplane.fleet.identity import Permission
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.ingest.answers import refuse, refuse_denied, refuse_for_error, refuse_http_error
from understudy_controlplane.ingest.launchers import launchers_router
from understudy_controlplane.ingest.node_token_notes import NodeTokenNotes
from understudy_controlplane.ingest.node_tokens import NodeTokenDependencies, node_tokens_router
from understudy_controlplane.ingest.rates import Rates
from understudy_controlplane.ingest.refusals import Refusals
from understudy_controlplane.ingest.reports import ReportDependencies, ReportsRoute, restore_points_router
from understudy_controlplane.ingest.site_signals import SignalDependencies, site_signals_router
from understudy_controlplane.ingest.soon_readings import SoonReadings
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.live.launchers import Launchers
from understudy_controlplane.live.leaders import Leaders
from understudy_controlplane.live.telemetry import Telemetry
from understudy_controlplane.loop import Loop
from understudy_controlplane.notify.notifier import Notifier
from understudy_controlplane.observe.observer import Observer
from understudy_controlplane.observe.sources import Sources
from understudy_controlplane.provider.watch import ProviderWatch
from understudy_controlplane.pruner import Pruner
from understudy_controlplane.recover.checkpoint_work import HEARD_SECONDS_MAX, Nodes
from understudy_controlplane.recover.copier import Copier
from understudy_controlplane.recover.deleter import Deleter, View
from understudy_controlplane.recover.effect import Effect
from understudy_controlplane.recover.file_tasks import FileTasks
from understudy_controlplane.recover.restore import RestorePoints
from understudy_controlplane.recover.runner import Effects, Runner
from understudy_controlplane.recover.saves import Saves, object_interval
from understudy_controlplane.recover.spare_warmer import SpareWarmer
from understudy_controlplane.recover.verifier import Verifier
from understudy_controlplane.report_writer import ReportWriter, attached
from understudy_controlplane.slurm.protocol import Slurm
from understudy_controlplane.slurm_recorder import SlurmRecorder
from understudy_controlplane.store.audit import AuditStore
from understudy_controlplane.store.database import open_database, open_reader
from understudy_controlplane.store.database_lock import Alone, Lead
from understudy_controlplane.store.events import EventStore
from understudy_controlplane.store.holder import leader
from understudy_controlplane.store.queries import Queries
from understudy_controlplane.store.report import ReportStore
from understudy_controlplane.store.retention import RetentionStore
from understudy_controlplane.store.stores import Stores
from understudy_controlplane.store.tokens import TokenStore

LOOP_END_SECONDS = 30.0

READ_ROUTERS = (
    status_router,
    nodes_router,
    jobs_router,
    recoveries_router,
    requests_router,
    observed_router,
    spares_router,
    topology_router,
    signals_router,
    maintenance_router,
    evidence_router,
    post_mortem_router,
    report_router,
    commissioning_router,
    explain_router,
    notifications_router,
)


@dataclass(frozen=True, slots=True)
class Outside:
    """What lies outside the control plane; tests replace it.

    `probe(node)` returns whether the node's slurmd answers. `decode_credential` stands for MUNGE.
    """

    slurm: Slurm
    probe: Callable[[SlurmNode], bool]
    clock: Clock = field(default_factory=SystemClock)
    make_stores: Callable[[Engine], Stores] = Stores.of
    sleep: Callable[[float], None] = time.sleep
    begin_effect: Callable[[Callable[[], None]], Effect] = Effect
    lead: Lead = field(default_factory=Alone)
    term: int | None = None
    """Term in which this control plane leads on PostgreSQL."""
    config_file: ConfigFile | None = None
    """Read again when that is requested."""
    stopping: Callable[[], None] = lambda: None
    """Called when the control plane begins to stop."""
    decode_credential: Callable[[str], Credential] | None = None


@dataclass(frozen=True, slots=True)
class ControlPlane:
    make_app: Callable[[], FastAPI]
    current: CurrentConfig
    loop: Loop
    telemetry: Telemetry
    stores: Stores
    launchers: Launchers
    engine: Engine
    reads: ReadDependencies
    admission: Admission
    events: EventFeed
    live_views: LiveViews
    audit: AuditWriter
    notifier: Notifier

    @property
    def app(self) -> FastAPI:
        """Its routes, made when they are first asked for: a rehearsal without requests needs none."""
        return self.make_app()

    def end_waits(self) -> None:
        """The control plane stops: clients that wait for news get their answers now, and ask its successor."""
        self.launchers.end_polls()
        self.events.stop()
        self.live_views.stop()

    def close(self) -> None:
        """Closes the database, where the routes were not served: a server does it when it ends."""
        self.admission.close()
        self.reads.close()
        self.engine.dispose()


@dataclass(frozen=True, slots=True)
class Live:
    """What the control plane keeps in memory."""

    telemetry: Telemetry
    directory: JobDirectory
    launchers: Launchers


@dataclass(frozen=True, slots=True)
class WitnessedLead:
    """The lead, until most agents report that another control plane leads."""

    own: Lead
    leaders: Leaders
    clock: Clock

    def check(self) -> None:
        self.own.check()

    def objection(self) -> str:
        other = self.leaders.other(self.clock.monotonic())
        return self.own.objection() or (other.words if other is not None and other.is_believed else "")

    def is_cut_off(self) -> bool:
        return self.own.is_cut_off()

    def leading(self) -> Leading | None:
        return self.own.leading()


@dataclass(frozen=True, slots=True)
class Core:
    """The control plane without its routes."""

    current: CurrentConfig
    loop: Loop
    telemetry: Telemetry
    stores: Stores
    launchers: Launchers
    reports: ReportDependencies
    file_tasks: FileTasks


def assemble(config: Config, outside: Outside, engine: Engine) -> Core:
    """Raises SQLAlchemyError. Nothing runs yet."""
    clock = outside.clock
    stores = outside.make_stores(engine)
    telemetry = Telemetry(leader(engine, outside.term, clock.now()))
    outside = replace(outside, lead=WitnessedLead(outside.lead, telemetry.leaders, clock))
    records, seen_since = stores.fleet.nodes(), clock.now() - AGENTS_SECONDS
    telemetry.know(records)
    telemetry.leaders.before = sum((one.agent_seen_at or 0.0) > seen_since for one in records.values())
    cluster, current = config.cluster, CurrentConfig(config, outside.config_file)
    directory = JobDirectory(lambda job_ids: stores.fleet.known_jobs(cluster, job_ids))
    launchers = Launchers(stores.launches.gangs(cluster))
    restore_points = RestorePoints(stores.checkpoints, stores.fleet, clock)
    loop = _loop(current, outside, stores, Live(telemetry, directory, launchers), restore_points)
    of_checkpoints = stores.checkpoints, lambda: current.config.checkpoints, clock, restore_points.forget
    nodes = _nodes_for_checkpoints(loop, clock)
    verifier = Verifier(*of_checkpoints, nodes)
    copier = Copier(*of_checkpoints, nodes, _interval_of_copies(loop, stores, current))
    deleter = Deleter(
        stores.checkpoints,
        lambda: current.config.checkpoints,
        clock,
        restore_points,
        View(lambda: loop.pulse.snapshot, directory.find, lambda: copier.rows() | verifier.rows()),
    )
    warmer = SpareWarmer(lambda: loop.pulse.snapshot, telemetry.heard, lambda: current.config, clock)
    file_tasks = FileTasks([copier, deleter, verifier, warmer], clock)
    reports = ReportDependencies(
        cluster=cluster,
        telemetry=telemetry,
        directory=directory,
        facts=stores.facts,
        launches=stores.launches,
        clock=clock,
        wake_loop=loop.wake,
        fault_came=loop.fault_came,
        read_slurm=SoonReadings(loop.read_soon, clock).ask,
        give_restore_point=restore_points.give,
        looker=restore_points.looker,
        place=restore_points.place,
        look_sizes=restore_points.look_sizes,
        line=restore_points.line,
        note_run=restore_points.note_run,
        file_task=lambda node: None if outside.lead.objection() else file_tasks.task(node),
        take_file_result=file_tasks.take,
        checkpoints_deleted=restore_points.forget,
        unfit=loop.verdicts.unfit,
        newest_checkpoint=restore_points.newest,
        rates=Rates(config.limits.reports_per_second_per_node),
        meters=loop.pulse.meters,
        refusals=Refusals(loop.pulse.meters),
        kernel_log=config.xid.rows.kernel_log,
    )
    return Core(current, loop, telemetry, stores, launchers, reports, file_tasks)


def compose(config: Config, outside: Outside) -> ControlPlane:
    """Raises SQLAlchemyError. Nothing runs yet."""
    engine = open_database(config.server.database, outside.term)
    core = assemble(config, outside, engine)
    current, loop, stores, clock = core.current, core.loop, core.stores, outside.clock
    reads = _reads(config, core, clock)
    tokens = TokenStore(engine)

    def note_token_ends(ends: Ends) -> None:
        loop.pulse.token_ends = ends

    users = UserTokens(current, clock)
    proxy = Proxy(current, clock, loop.pulse.meters.proxy_headers_refused.inc)
    known = Tokens(tokens, clock, note_token_ends)
    admission = Admission(known, users, _open_to_all(config), proxy, loop.refuses_nodes)
    challenges = Challenges(clock)
    decode = outside.decode_credential or Munge(config.server.munge_socket).decode
    notifier = Notifier(stores.notices, current, loop.pulse, clock, attach=functools.partial(attached, reads))
    notes = NodeTokenNotes()
    audit = AuditWriter(AuditStore(engine), notes, clock)
    events = EventFeed(EventStore(reads.engine), reads.events, clock, config.limits)
    live_views = LiveViews(loop.pulse, config.limits)
    parts: list[Part] = [
        loop,
        Pruner(RetentionStore(engine), lambda: current.config.retention, clock),
        core.file_tasks,
        notifier,
        ReportWriter(reads, notifier.add),
        audit,
    ]
    watched = ProviderWatch(stores.signals, stores.tickets, current, loop.pulse, clock, loop.wake)
    parts += [watched]
    parts += [AuditSyslog(engine, send_to_syslog, clock)] if config.server.audit_to_syslog else []

    cluster, limits = config.cluster, config.limits  # the routes keep no section that can be reloaded

    def outermost(app: ASGIApp) -> ASGIApp:
        app = ReportsRoute(app, core.reports, admission)
        return RequestLimits(app, limits, core.reports.refusals, admission.sender)

    @functools.cache
    def make_app() -> FastAPI:
        app = Site(
            outermost,
            title="Understudy",
            redirect_slashes=False,  # it would send a client to whatever host its request names
            lifespan=_lifespan(parts, engine, reads, admission, outside.stopping),
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
        )
        app.add_exception_handler(ClientDisconnect, _client_gone)
        app.add_exception_handler(Denied, refuse_denied)
        app.add_exception_handler(HTTPException, _refuse_request)
        app.add_exception_handler(Exception, _refuse_for_error)
        app.add_exception_handler(RequestValidationError, _refuse_request)
        app.include_router(restore_points_router(core.reports, admission))
        addresses = _addresses(current, loop, clock)
        of_nodes = NodeTokenDependencies(cluster, challenges, decode, addresses, tokens, admission, clock, notes)
        app.include_router(node_tokens_router(of_nodes))
        app.include_router(user_tokens_router(UserTokenDependencies(current, decode, challenges, users, clock)))
        app.include_router(launchers_router(core.reports, core.launchers, admission))
        readers = [Depends(admission.admit_reader)]
        for router in READ_ROUTERS:
            app.include_router(router(reads), dependencies=readers)
        app.include_router(events_router(events, admission))
        app.include_router(metrics_router(reads), dependencies=[Depends(admission.require(Permission.METRICS))])
        app.include_router(health_router(reads))
        _add_requests(
            app,
            RequestDependencies(
                admission,
                stores,
                core.reports.directory,
                core.telemetry.saves,
                core.reports.newest_checkpoint,
                current,
                loop.pulse,
                clock,
                loop.wake,
            ),
        )
        of_browsers = SessionDependencies(admission, Sessions(known, tokens, clock, current), clock)
        _add_pages_of_browsers(app, of_browsers, reads, live_views)
        return app

    return ControlPlane(
        make_app,
        current,
        loop,
        core.telemetry,
        stores,
        core.launchers,
        engine,
        reads,
        admission,
        events,
        live_views,
        audit,
        notifier,
    )


def _add_requests(app: FastAPI, deps: RequestDependencies) -> None:
    """Routes for requests of operators, owners of jobs, and other systems of the site."""
    for add in (verbs_router, drills_router, maintenance_requests_router):
        app.include_router(add(deps))
    of_senders = SignalDependencies(
        deps.admission, deps.stores.signals, deps.current, deps.pulse, deps.clock, deps.wake_loop
    )
    app.include_router(site_signals_router(of_senders))


def _add_pages_of_browsers(
    app: FastAPI, deps: SessionDependencies, reads: ReadDependencies, live_views: LiveViews
) -> None:
    app.include_router(sessions_router(deps))
    add_pages(app, deps.admission)
    app.include_router(dashboard_router(reads, live_views, deps.admission))


class Site(FastAPI):
    """The framework behind what every request passes: its own middleware costs each report a tenth of its time."""

    def __init__(self, outermost: Callable[[ASGIApp], ASGIApp], **settings: Any) -> None:
        super().__init__(**settings)
        self._outermost = outermost

    def build_middleware_stack(self) -> ASGIApp:
        return self._outermost(super().build_middleware_stack())


async def _client_gone(_request: Request, _error: Exception) -> Response:
    """The connection ended before the request had arrived: no one reads this."""
    return Response(status_code=400)


def _addresses(current: CurrentConfig, loop: Loop, clock: Clock) -> NodeAddresses:
    def of_slurm(node: str) -> str | None:
        snapshot = loop.pulse.snapshot
        if snapshot is None:
            raise NotReadYet
        known = snapshot.nodes.get(node)
        return known.slurm.address if known and known.slurm else None

    def nodes() -> Iterable[str]:
        snapshot = loop.pulse.snapshot
        return snapshot.nodes if snapshot else ()

    return NodeAddresses(of_slurm, lambda: current.config.server.node_addresses, clock, nodes=nodes)


async def _refuse_for_error(_request: Request, error: Exception) -> Response:
    return refuse_for_error(error)


def _open_to_all(config: Config) -> set[Permission]:
    return {
        "nothing": set[Permission](),
        "metrics": {Permission.METRICS},
        "reads": {Permission.READ, Permission.READ_OWN_JOBS, Permission.METRICS},
    }[config.server.without_token]


def _reads(config: Config, core: Core, clock: Clock) -> ReadDependencies:
    limits = config.limits
    health_threads = events_threads = 1
    connections = limits.reads_at_once + health_threads + events_threads
    engine = open_reader(config.server.database, connections, limits.read_seconds_max)
    return ReadDependencies(
        core.current,
        clock,
        core.reports.directory,
        core.telemetry,
        Stores.of(engine),
        Queries(engine),
        core.loop.pulse,
        Readers(limits.reads_at_once, limits),
        Readers(health_threads, limits),
        Readers(1, limits),
        Readers(events_threads, limits),
        engine,
    )


async def _refuse_request(_request: Request, error: Exception) -> Response:
    """FastAPI's own refusals, in the form of all others."""
    if isinstance(error, RequestValidationError):
        problems = (
            f"{'.'.join(str(part) for part in one['loc'][1:])}: {_cause(one['msg'])}"  # the first is "query" or "path"
            for one in error.errors()
        )
        return refuse(422, "; ".join(problems), "`understudy help api` lists the parameters")
    assert isinstance(error, HTTPException)
    return refuse_http_error(error)


def _cause(message: str) -> str:
    return message.removeprefix("Value error, ").replace("Input should be", "has to be")


def _loop(current: CurrentConfig, outside: Outside, stores: Stores, live: Live, restore_points: RestorePoints) -> Loop:
    telemetry, directory, launchers = live.telemetry, live.directory, live.launchers
    sources = Sources(outside.slurm, stores, telemetry, launchers, directory, outside.probe, current, outside.clock)
    effects = Effects(
        outside.slurm, outside.probe, launchers, outside.sleep, outside.begin_effect, outside.lead.objection
    )
    runner = Runner(effects, stores, current, outside.clock)
    return Loop(
        Observer(sources),
        SlurmRecorder(current, stores, telemetry, directory, launchers, restore_points.forget_all_but),
        AgentRecorder(stores.fleet, stores.gpus, stores.parts),
        stores,
        directory,
        telemetry,
        launchers,
        runner,
        _saves(telemetry, stores, current, outside),
        current,
        outside.clock,
        outside.lead,
    )


def _nodes_for_checkpoints(loop: Loop, clock: Clock) -> Nodes:
    def gang(key: JobKey) -> Sequence[str]:
        snapshot = loop.pulse.snapshot
        job = snapshot.jobs.get(key) if snapshot is not None else None
        return job.slurm.nodes if job is not None and job.running else ()

    def heard() -> Set[str]:
        snapshot = loop.pulse.snapshot
        nodes = snapshot.nodes if snapshot is not None else {}
        since = clock.now() - HEARD_SECONDS_MAX
        return {name for name, node in nodes.items() if node.heard_at is not None and node.heard_at >= since}

    return Nodes(gang, heard)


def _interval_of_copies(loop: Loop, stores: Stores, current: CurrentConfig) -> Callable[[JobKey], float]:
    reports = ReportStore(stores.engine)

    def interval(key: JobKey) -> float:
        snapshot = loop.pulse.snapshot
        job = snapshot.jobs.get(key) if snapshot is not None else None
        if snapshot is None or job is None:
            return 0.0
        copy_rate = current.config.checkpoints.copy_megabytes_per_second * 1e6
        return object_interval(job, snapshot, stores.checkpoints, reports, copy_rate)

    return interval


def _saves(telemetry: Telemetry, stores: Stores, current: CurrentConfig, outside: Outside) -> Saves:
    reports = ReportStore(stores.engine)
    return Saves(telemetry.saves, stores.requests, stores.checkpoints, reports, current, outside.clock)


Part = Loop | Pruner | FileTasks | Notifier | ReportWriter | AuditWriter | ProviderWatch | AuditSyslog
"""What runs on a thread of its own."""


def _lifespan(
    parts: Sequence[Part],
    engine: Engine,
    reads: ReadDependencies,
    admission: Admission,
    stopping: Callable[[], None],
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        threads = [threading.Thread(target=one.run, name=type(one).__name__, daemon=True) for one in parts]
        for thread in threads:
            thread.start()
        yield
        stopping()
        for one in parts:
            one.stop()
        for thread in threads:
            thread.join(LOOP_END_SECONDS)
        admission.close()
        reads.close()
        engine.dispose()

    return lifespan
