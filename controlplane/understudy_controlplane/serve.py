"""`understudy serve`: the service."""

from __future__ import annotations

import errno
import functools
import gc
import io
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, MutableMapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, cast

import structlog
import uvicorn

from understudy_controlplane.api.connections import Connections
from understudy_controlplane.api.server import Server as HttpServer
from understudy_controlplane.api.tls import CertificateError, CertificateFiles, TlsServer
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.config import Config, ConfigError, Limits, Server, load_config
from understudy_controlplane.config.current import ConfigFile
from understudy_controlplane.decide.leadership import CALL_SECONDS
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.heartbeat import Heartbeat
from understudy_controlplane.lease import Leadership
from understudy_controlplane.loop import Loop
from understudy_controlplane.observe.slurmd_probe import slurmd_answers
from understudy_controlplane.reach import Reach, SlurmReach, SlurmTrial
from understudy_controlplane.slurm.choose import choose
from understudy_controlplane.slurm.fenced import Calls, fenced
from understudy_controlplane.slurm.protocol import Slurm, SlurmError, SlurmMissing
from understudy_controlplane.store.database import AddressError, StoreError, is_shared, without_secrets
from understudy_controlplane.store.database_lock import DatabaseTaken, take_file
from understudy_wire.addresses import EVERY, bound, is_every, with_port
from understudy_wire.leader import LEADER_HEADER, header_of
from understudy_wire.systemd import ServiceManager

OTHER_FILES = 256
"""Files that a control plane opens beside its connections, at most."""

HEARTBEAT_SECONDS = 1

OPEN_SECONDS = 1800.0
"""Time for the database to open: after an upgrade a large one may need many minutes for its new schema."""

HAND_OVER_SECONDS = 1.0
HAND_OVER_UNABLE_SECONDS = 0.25
"""The loop may wait for slurmctld, and does so where this control plane is cut from it. What it does later is refused.
"""

SWITCH_SECONDS = 0.001
"""After this time a thread of Python lets another one run. The loop waits that long for each busy thread, and several
times for each query.
"""


class StandardError(io.TextIOBase):
    """A line that cannot be written, as to a file on a full disk, is lost: the control plane goes on."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            return sys.stderr.write(text)
        return 0

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


def printable(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Users and strangers choose what stands in a line: nothing that controls a terminal reaches it."""
    for key, value in event.items():
        text = value if isinstance(value, str) else str(value)
        if not text.isprintable():
            event[key] = "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)
    return event


def configure_logging() -> None:
    """One event, one line, to standard error: time, level, event, and its fields."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            printable,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, StandardError())),
        cache_logger_on_first_use=True,
    )


def real_outside(config: Config) -> Outside:
    """The real Slurm and slurmds. Raises ConfigError where the configured gateway cannot be used."""

    def probe(node: SlurmNode) -> bool:
        return slurmd_answers(node.address, node.port, config.slurm.probe_timeout_seconds)

    try:
        choice = choose(config.slurm)
    except SlurmError as error:
        raise ConfigError(str(error)) from error
    structlog.get_logger().info("gateway_chosen", gateway=choice.name, reason=choice.why)
    return Outside(choice.slurm, probe)


def check_slurm(config: Config, slurm: Slurm) -> None:
    """Raises ConfigError where waiting would not help: no Slurm commands, or another cluster. While Slurm does not
    answer, the control plane starts and is not ready.
    """
    try:
        name = slurm.cluster_name()
    except SlurmMissing as error:
        raise ConfigError(str(error)) from error
    except SlurmError as error:
        structlog.get_logger().warning("slurm_unreadable", error=str(error), remedy="the control plane waits for Slurm")
        return
    if name.casefold() != config.cluster.casefold():  # Slurm ignores case here
        raise ConfigError(
            f"cluster: this host's Slurm is the cluster {name!r}, not {config.cluster!r}; set the right one"
        )


def tune_interpreter() -> None:
    collect_rarely()
    sys.setswitchinterval(SWITCH_SECONDS)


def collect_rarely() -> None:
    """Search for reference cycles rarely. A tick over a large fleet makes some hundred thousand values and hardly a
    cycle, and frees them again by the next one: a search among the newest begins only where more are left than that, as
    by requests that failed. What cycles keep until then is bounded: 100,000 values, of requests some tens of MiB.
    """
    gc.set_threshold(100_000, 5, 40)


def within_open_files(limits: Limits) -> Limits:
    """Lets this process open as many files as its user may, and leaves some for other than connections."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = hard if hard != resource.RLIM_INFINITY else limits.connections_max + OTHER_FILES
    return limits.model_copy(update={"connections_max": min(limits.connections_max, max(most - OTHER_FILES, 16))})


def compose_alone(config: Config, outside: Outside) -> ControlPlane:
    """The control plane, alone on its database until its process ends. Raises ConfigError."""
    try:
        with ExitStack() as if_it_fails:
            if not is_shared(config.server.database):
                lock = take_file(config.server.database)
                if_it_fails.callback(lock.release)
                outside = replace(outside, lead=lock)
            control_plane = compose(config, outside)
            if_it_fails.pop_all()
            return control_plane
    except DatabaseTaken as error:
        raise ConfigError(f"another control plane uses this database: {error}; stop that one first") from error
    except (OSError, ModuleNotFoundError, StoreError) as error:
        shown = without_secrets(config.server.database)
        if outside.term is not None:  # it could be used a moment ago, and another one may lead since
            raise LeadLost(f"database {shown}: cannot be used: {error}; this control plane starts again") from error
        raise ConfigError(f"database {shown}: cannot be used: {error}; set server.database") from error


def address_of(config: Config) -> str:
    """How the other control planes, and people, are shown this one."""
    server = config.server
    host = socket.gethostname() if is_every(server.host) or server.is_local else server.host
    return with_port(host, server.port)


class LeadLost(Exception):
    """Another control plane leads, or may. A new process can stand by; this one has worked as the leader."""


@dataclass(slots=True)
class Notes:
    """What a control plane that does not work yet does, for systemd and the log."""

    manager: ServiceManager
    newest: str = ""

    def take(self, text: str) -> None:
        if text != self.newest:
            structlog.get_logger().info("stands_by", reason=text)
            self.manager.ready(text)
        self.newest = text
        self.manager.alive(text)


def shares_database(config: Config) -> bool:
    """Raises ConfigError."""
    try:
        return is_shared(config.server.database)
    except StoreError as error:
        raise ConfigError(f"server.database: {error}") from error


def certificate_of(config: Config) -> CertificateFiles | None:
    """Raises ConfigError where it cannot be used."""
    server = config.server
    if server.tls_certificate is None or server.tls_key is None:
        return None
    files = CertificateFiles(server.tls_certificate, server.tls_key, server.tls_client_ca)
    try:
        files.context()
    except CertificateError as error:
        raise ConfigError(f"server.tls_certificate: {error}") from error
    return files


def listen(server: Server) -> list[socket.socket]:
    """Sockets for every address of the host, bound and not open yet. Raises ConfigError."""
    sockets: list[socket.socket] = []
    try:
        if server.host == EVERY:
            return [bound(EVERY, server.port)]
        found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sockets.append(socket.socket(family, kind, protocol))
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sockets[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sockets[-1].bind(address)
    except UnicodeError as error:
        raise ConfigError(f"server.host: {server.host!r} is no host name; set an address of this host") from error
    except OSError as error:
        for one in sockets:
            one.close()
        remedy = "set server.host to an address of this host"
        if error.errno == errno.EADDRINUSE:
            remedy = (
                f"`ss -ltnp 'sport = :{server.port}'` shows which program listens there: stop it, or set server.port"
            )
        elif isinstance(error, PermissionError):
            remedy = "set server.port to one from 1024 on"
        problem = f"server.host, server.port: cannot listen on {server.host} port {server.port}"
        raise ConfigError(f"{problem}: {error.strerror}; {remedy}") from error
    return sockets


def on_stop(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, handler)


def server_of(
    control_plane: ControlPlane,
    config: Config,
    certificate: CertificateFiles | None,
    heartbeat: Heartbeat | None = None,
    hand_over: Callable[[], None] | None = None,
) -> uvicorn.Server:
    own = control_plane.telemetry.leaders.own
    settings = uvicorn.Config(
        control_plane.app,
        ws="none",
        callback_notify=heartbeat.beat if heartbeat else None,
        timeout_notify=HEARTBEAT_SECONDS,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the address of a request is that of its connection
        timeout_graceful_shutdown=5,
        ssl_certfile=certificate.certificate if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
        headers=[(LEADER_HEADER, header_of(own.installation, own.term))],
    )
    refused = control_plane.loop.pulse.meters.connections_refused
    connections = Connections(within_open_files(config.limits), lambda cause: refused.labels(cause).inc())

    def stopping() -> None:
        """The next control plane leads while open requests are still answered."""
        control_plane.end_waits()
        if hand_over is not None:
            threading.Thread(target=hand_over, name="hand over").start()

    if certificate is None:
        return HttpServer(settings, connections, stopping)
    return TlsServer(settings, connections, certificate, stopping)


def hand_over(loop: Loop, lead: Leadership, calls: Calls) -> None:
    """The next one may work at once, unless a call of this one is still under way."""
    loop.stop()
    loop.ended.wait(HAND_OVER_UNABLE_SECONDS if lead.handed_over else HAND_OVER_SECONDS)
    lead.give_up(lambda: calls.end_within(CALL_SECONDS))


def log_start(config: Config, certificate: CertificateFiles | None) -> None:
    structlog.get_logger().info(
        "control_plane_started",
        cluster=config.cluster,
        mode=config.highest_mode.value,
        host=config.server.host,
        port=config.server.port,
    )
    if certificate is None and not config.server.is_local:
        structlog.get_logger().warning(
            "requests_not_encrypted",
            host=config.server.host,
            remedy="set tls_certificate and tls_key in [server], or keep the port inside a network that you trust",
        )


def serve(
    config: Config, path: Path, outside: Outside | None = None, load: Callable[[Path], Config] = load_config
) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reloads the configuration from `path`, by `load`. Raises ConfigError when the
    configuration cannot be used on this host, and LeadLost.
    """
    configure_logging()
    config_file = ConfigFile(path, load=load)
    signal.signal(signal.SIGHUP, lambda _signal, _frame: config_file.request())
    tune_interpreter()
    certificate = certificate_of(config)
    manager = ServiceManager()
    outside = outside or real_outside(config)
    check_slurm(config, outside.slurm)
    outside = replace(outside, config_file=config_file, stopping=manager.stopping)
    sockets = listen(config.server)
    lead: Leadership | None = None
    calls, slurm_reach = Calls(), SlurmReach(outside.slurm, config.cluster)
    if shares_database(config):
        stopping = threading.Event()
        on_stop(lambda _signal, _frame: stopping.set())
        trial = SlurmTrial(outside.slurm, config.cluster, outside.clock)
        trial.begin()
        slurm_reach.begin()
        lead = Leadership(
            config.server.database,
            address_of(config),
            unable=lambda: slurm_reach.problem() or trial.problem(),
            answers=lambda: slurm_reach.answers,
        )
        try:
            if not lead.wait(stopping.wait, Notes(manager).take):
                return
        except (AddressError, ModuleNotFoundError) as error:
            raise ConfigError(f"server.database: {error}") from error
        trial.end()  # a leader reads Slurm itself
        on_stop(signal.SIG_DFL)  # until the server handles it
        if stopping.is_set():
            lead.give_up()
            return
        config_file.request()  # it may have waited for weeks
        slurm = fenced(outside.slurm, lead.objection, CALL_SECONDS, calls)
        outside = replace(outside, slurm=slurm, lead=lead, term=lead.term)
    manager.starting("opens the database", OPEN_SECONDS)
    control_plane = compose_alone(config, outside)
    log_start(config, certificate)
    pulse = control_plane.loop.pulse
    heartbeat = Heartbeat(manager, pulse, config.highest_mode.value)
    if lead is None:
        server_of(control_plane, config, certificate, heartbeat).run(sockets)
    else:
        reach = Reach(slurm_reach, lambda: pulse.slurm, control_plane.telemetry.leaders)
        lead.follow(lambda: pulse.turns, lambda: os.kill(os.getpid(), signal.SIGTERM), reach.missing)
        give_up = functools.partial(hand_over, control_plane.loop, lead, calls)
        server = server_of(control_plane, config, certificate, heartbeat, give_up)
        on_stop(server.handle_exit)  # it handles signals while it runs, and gives one back when it has stopped
        server.run(sockets)
    structlog.get_logger().info("control_plane_stopped")
    if lead is not None and (lead.taken or lead.handed_over):
        why = lead.handed_over or "another control plane has taken the lead"
        raise LeadLost(f"{why}: this one ends, and stands by when it is started again")
