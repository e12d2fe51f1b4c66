"""A site that is notified: a database of incidents, receivers of HTTP that check signatures, a virtual clock."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Engine, insert, update

from tests import builders as b
from understudy_controlplane.config import Config, Importance
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.fleet.notice import Message, Notice, NoticeSource, Stage
from understudy_controlplane.fleet.recovery import PoolSwapPlan, StepName
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.notify.notifier import Notifier
from understudy_controlplane.store import tables
from understudy_controlplane.store.notices import NoticeStore

KEY = "a key of thirty-two characters.."
NOW = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


@dataclass
class HttpReceiver:
    """Keeps what it accepted; `status` is its answer. A request whose signature is wrong is a failure of the test."""

    status: int = 204
    got: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    url: str = ""

    def take(self, path: str, headers: Any, body: bytes) -> int:
        if path.startswith("/signed"):
            timestamp = headers["Understudy-Timestamp"]
            expected = hmac.new(KEY.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
            if not hmac.compare_digest(headers["Understudy-Signature"], f"v1={expected}"):
                self.wrong.append(timestamp)
                return 401
        if self.status >= 300:
            self.refused += 1
        else:
            self.got.append(json.loads(body) if body else {})
        return self.status


@contextmanager
def http_receiver() -> Iterator[HttpReceiver]:
    receiver = HttpReceiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(receiver.take(self.path, self.headers, body))
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def secret_file(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@dataclass
class Site:
    engine: Engine
    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    pulse: Pulse = field(default_factory=Pulse)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A control plane that starts: it remembers nothing."""
        self.pulse.slurm.at, self.pulse.ticks_total = self.clock.at, 1
        current = CurrentConfig(self.config())
        self.notifier = Notifier(NoticeStore(self.engine), current, self.pulse, self.clock, lambda _name, work: work())
        self.look()

    def config(self) -> Config:
        return b.config(notify=self.settings)

    def look(self) -> None:
        self.pulse.last_tick_at = self.clock.at
        self.notifier.look()
        assert self.notifier._error == ""

    def run(self, seconds: float, every: float = 15.0) -> None:
        """Runs as often as a control plane looks at first, and then less."""
        begun, end = self.clock.at, self.clock.at + seconds
        while self.clock.at < end:
            step = min(every, 3.0) if self.clock.at - begun < 15 else every
            self.clock.at = min(self.clock.at + step, end)
            self.look()

    # -- what happens ------------------------------------------------------------------------------------------

    def add(self, table: Any, **values: Any) -> int:
        with self.engine.begin() as connection:
            return int(connection.execute(insert(table).values(**values).returning(table.c.id)).scalar_one())

    def change(self, table: Any, number: int, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(update(table).where(table.c.id == number).values(**values))

    def fail(self, node: str, summary: str = "GPU has fallen off the bus", **values: Any) -> int:
        """An incident of the node; its number."""
        fixed = {"subject_kind": "node", "nodes": [node], "rule": "xid.79", "signal": "hardware_fault", "evidence": {}}
        at = self.clock.at
        row = fixed | {"subject": node, "summary": summary, "fault_at": at, "opened_at": at} | values
        return self.add(tables.incident, **row)

    def end(self, incident: int, outcome: str = "the node is back in service") -> None:
        self.change(tables.incident, incident, closed_at=self.clock.at, outcome=outcome)

    def ticket(self, node: str, reason: str, about: list[str] | None = None) -> int:
        body = {"id": "x", "node": node, "reason": reason} | ({"about": about} if about else {})
        closed = self.clock.at if about else None
        label = f"{node}-{self.clock.at}"
        return self.add(tables.ticket, label=label, node=node, opened_at=self.clock.at, closed_at=closed, body=body)

    def job(self, job_id: int = 17, user: str = "alice", name: str = "pretrain") -> int:
        state: dict[str, Any] = {"managed": True, "state": "RUNNING", "restart_count": 0, "seen_at": self.clock.at}
        return self.add(
            tables.job, cluster=b.CLUSTER, job_id=job_id, submit_at=7, user=user, user_id=1000, name=name, **state
        )

    def move(self, job: int, incident: int | None = None, hang: str = "", **values: Any) -> int:
        plan = PoolSwapPlan(
            steps=(StepName.DRAIN_NODES,),
            nodes=("n3",),
            drain_reason="understudy: x",
            job=b.job().key,
            submit_at=7,
            restart_count=0,
            last_step=1012,
            hang=hang,
            user="alice",
            seats=("n1", "n5"),
            spares=("n5",),
        )
        at = self.clock.at
        times = {"fault_at": at, "detected_at": at, "decided_at": at}
        shown = {"kind": plan.kind.value, "plan": msgspec.to_builtins(plan)}
        columns: dict[str, Any] = {"job": job, "status": "running", "outcome": ""} | times | shown | values
        number = self.add(tables.recovery, **columns)
        if incident is not None:
            fixed = {"key": f"k{number}", "table_row": 10, "rule": "xid.79", "subject": "n3", "because": "rule"}
            decided: dict[str, Any] = {"reason": "", "evidence": {}, "incident": incident, "recovery": number, "at": at}
            self.add(tables.decision, action="quarantine", **fixed, **decided)
        return number

    def program_ends(self, job: int, row: str, reason: str = "rank 3 on n4 failed with exit status 1") -> int:
        """A launch of the job ended because its program failed; its number."""
        fixed = {
            "restart_count": 0,
            "launch": 0,
            "progressed": False,
            "counted": True,
            "failed_node": "n4",
            "blamed": [],
        }
        at = self.clock.at
        return self.add(
            tables.launch_end,
            job=job,
            table_row=row,
            cause="program",
            reason=reason,
            at=at,
            received_at=at,
            **fixed,
        )

    def program_xid(self, node: str, job_id: int = 17, user: str = "alice", sequence: int = 1) -> None:
        """The decision that a job's program caused an Xid there."""
        at = self.clock.at
        line = {"node": node, "boot_id": "b", "sequence": sequence, "bus_id": "", "text": "", "xid": 31}
        self.add(tables.kernel_event, at=at, received_at=at, jobs=[[job_id, 7, user]], **line)
        fixed = {"table_row": 60, "rule": "xid.31", "subject": node, "because": "rule", "action": "nothing"}
        evidence = {"boot_id": "b", "sequence": sequence}
        reason = "Xid 31 on 0000:1b:00.0: the program accessed memory that is not its own"
        self.add(tables.decision, key=f"{node} {at}", at=at, reason=reason, evidence=evidence, **fixed)

    def moved(self, recovery: int, status: str = "succeeded") -> None:
        self.change(tables.recovery, recovery, status=status, ended_at=self.clock.at)


def keep_messages(store: NoticeStore, now: float, title: str = "node n3: hardware fault") -> None:
    """One of each status: given up, sent twice, failing, and one that waits, to the owner of a job."""
    reported = Notice(NoticeSource.INCIDENT, 0, Importance.WARNING, Stage.OVER, title, "xid.79", ("n3",), now - 900)
    known = [replace(reported, number=number, page="incidents/1") for number in (900, 901, 902)]
    store.record([*known, replace(reported, source=NoticeSource.MOVE, number=900, user="researcher")], [], lambda _: [])
    ids = {(one.source, one.number): one.id for one in store.recent(now - 1000)}
    one, two, three = (ids[NoticeSource.INCIDENT, number] for number in (900, 901, 902))
    sent = Message("team", "", (two,), now - 800, now - 790, title=title, revision=2, accepted=2, accepted_at=now - 780)
    store.put(
        [
            Message("pager", "", (one,), now - 900, now, revision=1, tries=290, error="HTTP 500", closed=True),
            sent,
            Message("pager", "", (two, three), now - 500, now + 60, revision=1, tries=4, error="ConnectError: refused"),
            Message("owners", "researcher", (ids[NoticeSource.MOVE, 900],), now - 5, now + 5),
        ]
    )


def webhook(folder: Path, receiver: HttpReceiver, **more: Any) -> dict[str, Any]:
    url = secret_file(folder / "url", f"{receiver.url}/signed/hook-token-4711-very-long")
    return {"kind": "webhook", "url_file": url, "secret_file": secret_file(folder / "key", KEY), **more}
