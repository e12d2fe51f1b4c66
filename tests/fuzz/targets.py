"""What is fuzzed: everything that users, ranks, launchers, kernels and agents of other releases can send."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import cast

import msgspec

from tests import builders as b
from tests.fuzz.fuzzer import Target
from tests.fuzz.launcher_port import SEEDS, reach_launcher
from tests.wire_messages import RECORDED
from understudy_agent.facts import FactQueue
from understudy_agent.hooks import records
from understudy_agent.launchers import Launchers
from understudy_agent.rank_messages import LINE_BYTES_MAX
from understudy_agent.ranks import RankConnection, RankServer, RefusedError
from understudy_agent.sample.kernel_record import RecordError, parse_record
from understudy_agent.step_windows import WindowBuffer
from understudy_agent.uplink import RestorePointRequest, UnreachableError
from understudy_controlplane.access.munge import Credential, CredentialRefused
from understudy_controlplane.access.munge import parse as parse_credential
from understudy_controlplane.api.user_tokens import UserTokenRequest
from understudy_controlplane.config import ConfigError, Signals, parse_config
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Identity, Role
from understudy_controlplane.fleet.job import KnownJob
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.hostlist import HOSTS_MAX, HostListError, compress, expand
from understudy_controlplane.ingest.alertmanager import AlertmanagerBody, targets_of
from understudy_controlplane.ingest.decode import decode_report
from understudy_controlplane.ingest.site_signals import SignalBody
from understudy_controlplane.slurm import parse
from understudy_controlplane.slurm.protocol import SlurmError
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import DatabaseInMemory
from understudy_controlplane.store.facts import Circumstances, FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.site_signals import SiteSignalStore, TooManySignals
from understudy_wire.kernel_line import KernelLine
from understudy_wire.kernel_line import decode as decode_kernel_line
from understudy_wire.launcher import LauncherAnswer, LauncherReport
from understudy_wire.messages import REPORT_BYTES_MAX, NodeTokenRequest, Report, RestorePoint
from understudy_wire.unknown import unknown_in
from understudy_wire.values import NOT_UNDERSTOOD

SLURM_DATA = Path(__file__).resolve().parents[1] / "slurm" / "data"
NODES = ("n1", "n2", "n3", "n4")


# -- a report of an agent ------------------------------------------------------------------------------------------


def read_report(body: bytes) -> None:
    """What can be decoded can be stored: SQL refuses none of it."""
    try:
        decoded = decode_report(body[:REPORT_BYTES_MAX])
    except NOT_UNDERSTOOD:
        return
    store, known = _store()
    around = Circumstances(nodes_now=lambda _job, _count: NODES)
    store.record("n1", decoded.report.facts, b.NOW, lambda job: known if job != 1 else None, around)
    store.attach_waiting(lambda _: known, b.NOW, around.nodes_now)


@cache
def _store() -> tuple[FactStore, KnownJob]:
    engine = _database().engine
    return FactStore(engine), FleetStore(engine).see_jobs([b.job()], b.NOW)[0]


@cache
def _database() -> DatabaseInMemory:
    """It takes only what PostgreSQL takes as well."""
    database = DatabaseInMemory()
    for table in tables.metadata.tables.values():
        for column in table.c:
            if column.type.python_type is str:
                length = getattr(column.type, "length", None) or 10**9
                _refuse(database, table.name, column.name, f"instr(NEW.{column.name}, char(0)) > 0")
                _refuse(database, table.name, column.name, f"length(NEW.{column.name}) > {length}", "_long")
    return database


def _refuse(database: DatabaseInMemory, table: str, column: str, condition: str, suffix: str = "") -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql(
            f'CREATE TRIGGER "refuse_{table}_{column}{suffix}" BEFORE INSERT ON "{table}" '
            f"WHEN {condition} BEGIN SELECT RAISE(ABORT, '{table}.{column}'); END"
        )


# -- a launcher's report -------------------------------------------------------------------------------------------


def read_launcher_report(body: bytes) -> None:
    with contextlib.suppress(*NOT_UNDERSTOOD):
        report = msgspec.json.decode(body, type=LauncherReport)
        assert msgspec.json.decode(msgspec.json.encode(report), type=LauncherReport) == report
        unknown_in(LauncherReport, body)


HOURS = count(b.NOW, 7200)
"""No signal before these hours is live."""

# -- a signal of another system of the site, and who sent a request by MUNGE -------------------------------------------


def read_signal(body: bytes) -> None:
    """What Alertmanager sends can be stored, once it is about a node that is known."""
    with contextlib.suppress(*NOT_UNDERSTOOD):
        msgspec.json.decode(body, type=SignalBody)
    try:
        alerts = [*msgspec.json.decode(body, type=AlertmanagerBody).counted]
    except NOT_UNDERSTOOD:
        return
    found = [
        (alert, targets_of(alert.labels, lambda name: name if name in (*NODES, "rack r1") else "")) for alert in alerts
    ]
    signals = [alert.signal("facility", targets, Signals()) for alert, targets in found if targets]
    now, sender = next(HOURS), Identity(Role.SIGNALS, "facility", "", "10.0.0.1")
    entry = AuditEntry.of_request(sender, now, Verb.SIGNAL.value, "", "")
    with contextlib.suppress(TooManySignals):
        SiteSignalStore(_database().engine).take(signals, now + 60, 100, entry)


def read_credential(payload: bytes) -> None:
    """Whatever a user signs, the credential is that user's."""
    head = f"STATUS:          0\nENCODE_HOST:     10.0.0.1\nUID:             1000\nLENGTH:          {len(payload)}\n\n"
    assert parse_credential(head.encode() + payload) == Credential(1000, payload)
    with contextlib.suppress(CredentialRefused):
        parse_credential(payload)
    for kind in (NodeTokenRequest, UserTokenRequest):
        with contextlib.suppress(*NOT_UNDERSTOOD):
            msgspec.json.decode(payload, type=kind)


# -- ranks and launchers at the agent's socket -----------------------------------------------------------------------


class _Writer:
    """The agent's side of a connection whose other side reads everything."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.transport = self

    def get_extra_info(self, _name: str) -> socket.socket:
        return self._connection

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, content: bytes) -> None:
        assert content.endswith(b"\n")
        json.loads(content)

    def abort(self) -> None:
        """The other side is gone anyway."""

    close = abort


def hear_rank(content: bytes) -> None:
    """Whatever a process says, its connection ends at most, and the control plane can read what the agent passes on."""
    _loop().run_until_complete(_converse(content))


async def _converse(content: bytes) -> None:
    facts, windows = FactQueue(), WindowBuffer()
    server = RankServer(
        Path("/nowhere"), facts, windows, _no_restore_point, lambda: None, Launchers("testbed", "n1", _no_orders)
    )
    here, there = socket.socketpair(socket.AF_UNIX)
    reader = asyncio.StreamReader(LINE_BYTES_MAX)
    reader.feed_data(content)
    reader.feed_eof()
    with here, there:
        rank = RankConnection(server, cast("asyncio.StreamWriter", _Writer(here)))
        try:
            with contextlib.suppress(RefusedError):
                await rank.listen(reader, lambda: None)
            await asyncio.sleep(0)
        finally:
            rank.close()
    for fact in facts.oldest(len(facts)):
        _understood(b.report("n1", facts=[fact]))
    for window in windows.take():
        _understood(b.report("n1", ranks=[window]))


def _understood(report: Report) -> None:
    decoded = decode_report(msgspec.json.encode(report))
    assert (decoded.report, decoded.ignored) == (report, []), report


async def _no_restore_point(request: RestorePointRequest) -> RestorePoint:
    return RestorePoint(request.job_id, request.restart_count, 0, "")


async def _no_orders(report: LauncherReport) -> LauncherAnswer:
    read = msgspec.json.decode(msgspec.json.encode(report), type=LauncherReport)
    assert read == report
    raise UnreachableError


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


# -- the kernel's log and the hooks' records -------------------------------------------------------------------------


def read_kernel_record(content: bytes) -> None:
    for line in content.decode("utf-8", "replace").split("\n"):
        assert isinstance(decode_kernel_line(line), KernelLine)
        try:
            event = parse_record(line, "boot", 0.0)
        except RecordError:
            continue
        if event is not None:
            _understood(b.report("n1", facts=[event]))


def read_hook_record(content: bytes) -> None:
    with contextlib.suppress(records.MalformedRecordError):
        record = records.parse(content[: records.RECORD_BYTES_MAX].decode("ascii", "replace"), b.NOW)
        if not isinstance(record, records.JobGone):
            _understood(b.report("n1", facts=[record]))


# -- what Slurm prints, with what users wrote into it, and the configuration -------------------------------------------


def read_slurm(content: bytes) -> None:
    text = content.decode("utf-8", "replace")
    for read in SLURM_READERS:
        with contextlib.suppress(SlurmError):
            read(text)


def read_host_list(content: bytes) -> None:
    with contextlib.suppress(HostListError):
        names = expand(content.decode("utf-8", "replace"))
        assert len(names) <= HOSTS_MAX
        few = names[:100]
        assert set(expand(compress(few))) == set(few)


def read_configuration(content: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse_config(content.decode("utf-8", "replace"), "site.toml")


# -- seeds -----------------------------------------------------------------------------------------------------------


def _recorded(*parts: str) -> bytes:
    newest = max(RECORDED.iterdir())
    return json.dumps(json.loads(newest.joinpath(*parts).read_text())).encode()


def _reports() -> tuple[bytes, ...]:
    """Also only the facts, of the job's owner, about the job that is known and about one that is not known yet."""
    report = json.loads(_recorded("http", "report.json"))
    facts = [fact | ({"user_id": 1000} if "user_id" in fact else {}) for fact in report["facts"]]
    of_owner = {name: value for name, value in report.items() if not isinstance(value, list | dict)}
    known = [fact | ({"job_id": 7} if "job_id" in fact else {}) for fact in facts]
    bodies = (report, of_owner | {"facts": facts}, of_owner | {"facts": known})
    return tuple(json.dumps(body).encode() for body in bodies)


def _conversations() -> tuple[bytes, ...]:
    hello, launcher = _recorded("to_agent", "hello.json"), _recorded("to_agent", "launcher.json")
    others = sorted(path.name for path in (max(RECORDED.iterdir()) / "to_agent").iterdir())
    after_hello = (b"\n".join((hello, _recorded("to_agent", name), b"")) for name in others)
    return (*after_hello, b"\n".join((launcher, _recorded("to_agent", "launch.json"), b"")))


KERNEL_RECORDS = (
    b"4,812,2500000,-;NVRM: Xid (PCI:0000:61:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    b"4,8,1,-;NVRM: Xid (PCI:0000:05:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000000 0x00000000)",
    b"3,9,1,-,caller=T22;nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30\n SUBSYSTEM=pci",
    b"4,1,1,-;NVRM: GPU Board Serial Number: 1320221025612",
)
HOOK_RECORDS = (b"refused 12 3 1700000000 Xid 79 on GPU 3\n", b"refused 12 - 1700000000 x\n", b"gone 12 0 1700000000\n")

SLURM_READERS: tuple[Callable[[str], object], ...] = (
    parse.parse_config,
    parse.parse_nodes,
    parse.parse_jobs,
    parse.parse_reservations,
    parse.parse_steps,
    parse.parse_topology,
    parse.parse_extra,
)
SLURM_PRINTED = (
    (SLURM_DATA / "jobs-22.05.txt")
    .read_bytes()
    .split(b"\n")[0]
    .replace(b" OverSubscribe", b" SegmentSize=4 OverSubscribe"),
    *(b"\n".join(path.read_bytes().split(b"\n")[:2]) for path in sorted(SLURM_DATA.glob("*.txt"))),
    b"Configuration data as of 2026-11-21T12:38:49\nClusterName = testbed\nBOOT_TIME = 2026-11-21T12:38:29\n",
    b"SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-4] Switches=(null)\n",
    b"StepId=7.0 UserId=0 StartTime=2026-11-21T12:38:29 TimeLimit=UNLIMITED State=RUNNING Nodes=n1 Name=x\n",
)
SIGNALS = (
    b'{"kind": "leak", "targets": ["rack r1"], "summary": "tray", "for_seconds": 60, "key": "k", "resolved": false}',
    b'{"version": "4", "alerts": [{"status": "firing", "labels": {"alertname": "Leak", "instance": "n1.x:9100", '
    b'"rack": "r1", "understudy_kind": "leak"}, "annotations": {"summary": "tray"}, "fingerprint": "a1"}]}',
)
CREDENTIALS = (
    b"STATUS:          0\nENCODE_HOST:     10.0.0.1\nUID:             1000\nLENGTH:          9\n\na\n\nUID: 0",
    b'{"cluster": "c", "node": "n1", "challenge": "x"}',
)
HOST_LISTS = (b"n[1-4,07],gpu-a[001-003]b,x", b"a[1-3][2-4]", b"(null)")
CONFIGURATIONS = (b'cluster = "c"\nmode = "act"\n[spares]\ncount = 3\n[silence]\ndead_after_seconds = 60.5\n',)

_target = partial(
    Target,
    files=("understudy_agent/", "understudy_wire/", "understudy_controlplane/ingest", "understudy_controlplane/store"),
)

TARGETS = {
    target.name: target
    for target in (
        _target("report", read_report, _reports()),
        _target("launcher_report", read_launcher_report, (_recorded("http", "launcher_report.json"),)),
        _target("signal", read_signal, SIGNALS),
        Target("credential", read_credential, CREDENTIALS, ("understudy_controlplane/access",)),
        _target("rank", hear_rank, _conversations()),
        Target("launcher_port", reach_launcher, SEEDS, ("understudy_launcher",)),
        _target("kernel_record", read_kernel_record, KERNEL_RECORDS),
        _target("hook_record", read_hook_record, HOOK_RECORDS),
        Target("slurm_records", read_slurm, SLURM_PRINTED, ("understudy_controlplane/slurm",)),
        Target("host_list", read_host_list, HOST_LISTS, ("understudy_controlplane/slurm",)),
        Target("configuration", read_configuration, CONFIGURATIONS, ("understudy_controlplane/config", "tomllib")),
    )
}
