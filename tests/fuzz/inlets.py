"""What attackers send to a whole site: valid messages with a hostile value in one place, cut, joined, slow, too many.

Each inlet is a process of its own, of root or of a user, that draws from its own seed and keeps what it sent last.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import random
import re
import socket
import ssl
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests import builders as b
from tests.agent.test_names_in_the_kernel_log import FORMS, LINES, OF_A_ROW, as_logged
from tests.fuzz.fuzzer import STRANGE, changed_bytes, changed_json
from tests.fuzz.site import ATTACKER, NODES, Site
from tests.tokens import bearer
from tests.wire_messages import RECORDED
from understudy_controlplane.fleet.identity import Role

KEPT = 500
"""Inputs of each inlet that are written down where something was found."""
ANSWER_SECONDS_MAX = 30.0
ATTACKERS = "127.0.0.3"
"""Their address: each has a share of connections, and those of others are not to be used up."""
FLOOD = 100
"""Connections at once."""
PLACES = {
    "cluster": b.CLUSTER,
    "node": "n1",
    "job_id": 7,
    "restart_count": 0,
    "launch": 0,
    "user_id": ATTACKER,
    "rank": 0,
    "world_size": 2,
    "seats": ["n1", "n2"],
    "spares": [],
    "lost": [],
    "nodes_packed": "n[1-2]",
    "path": "/scratch/run/step_1",
    "checksum": "crc32:00000000",
    "phase": "running",
    "kind": "other",
    "wait_seconds": 0.1,
    "id": 1,
}
"""What makes a recorded message one of job 7 on n1 or n2."""
Json = Any

_processes = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Inlet:
    """`make` draws an input; `send` is called with it and may raise Found. Raises OSError: it was refused."""

    name: str
    make: Callable[[random.Random], bytes]
    send: Callable[[Site, bytes, random.Random], None]
    user_id: int = 0
    pause_seconds: float = 0.03


class Found(Exception):
    """The site does what no input may make it do."""


@dataclass(slots=True)
class Attackers:
    """All inlets at once, until stop()."""

    site: Site
    seed: int
    kept_in: Path
    sent: dict[str, Any] = field(default_factory=dict)
    """Bytes that each inlet has sent."""
    _stopped: Event = field(default_factory=_processes.Event)
    _found: SimpleQueue[str] = field(default_factory=_processes.SimpleQueue)
    _running: list[Any] = field(default_factory=list)

    def start(self, inlets: list[Inlet]) -> None:
        self.kept_in.mkdir(parents=True, exist_ok=True)
        for inlet in inlets:
            self.sent[inlet.name] = _processes.Value("q", 0)
            self._running.append(_processes.Process(target=self._run, args=(inlet,), name=inlet.name, daemon=True))
            self._running[-1].start()

    def check(self) -> None:
        """Raises Found."""
        if not self._found.empty():
            raise Found(self._found.get())
        if ended := [one.name for one in self._running if not one.is_alive()]:
            raise Found(f"{ended} ended before their time")

    def stop(self) -> None:
        self._stopped.set()
        for one in self._running:
            one.join(2 * ANSWER_SECONDS_MAX)

    def _run(self, inlet: Inlet) -> None:
        rng = random.Random(f"{self.seed} {inlet.name}")
        kept: deque[dict[str, Json]] = deque(maxlen=KEPT)
        with (self.kept_in / f"{inlet.name}.jsonl").open("w") as output:
            if inlet.user_id and os.geteuid() == 0:
                os.setgroups([])
                os.setgid(inlet.user_id)
                os.setuid(inlet.user_id)
            while not self._stopped.wait(inlet.pause_seconds):
                content = inlet.make(rng)
                self.sent[inlet.name].value += len(content)
                kept.append({"at": time.time(), "sent": content.decode("latin-1")})
                try:
                    inlet.send(self.site, content, rng)
                except (OSError, http.client.HTTPException):
                    continue  # refused, which is the other side's right
                except Found as found:
                    self._found.put(f"{inlet.name}: {found}")
                    break
            output.writelines(json.dumps(one) + "\n" for one in kept)
            self._stopped.wait()


# -- messages ----------------------------------------------------------------------------------------------------------


def recorded(*parts: str) -> Json:
    return _placed(json.loads(max(RECORDED.iterdir()).joinpath(*parts).read_text()))


def _placed(value: Json) -> Json:
    if isinstance(value, dict):
        now = time.time()
        times = {"sent_at": now, "agent_started_at": now - 100, "started_at": now - 60, "at": now, "entered_at": now}
        known = PLACES | times
        return {key: known.get(key, _placed(one)) for key, one in value.items()}
    return [_placed(one) for one in value] if isinstance(value, list) else value


def hostile(rng: random.Random, message: Json) -> bytes:
    """One in six is as the hook, the launcher or the agent sends it."""
    content = json.dumps(message).encode()
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        content = changed_json(rng, content) or changed_bytes(rng, content)
    return content


def odd_text(rng: random.Random) -> str:
    texts = [str(one) for one in STRANGE if not isinstance(one, list | dict)]
    return rng.choice([*texts, "n1", "7", "0", "-1", "9" * 30, "1e99_1", "..", "%2e%2e/", "\u00b2"])


# -- HTTP --------------------------------------------------------------------------------------------------------------


def post(path: str, headers: dict[str, str]) -> Callable[[Site, bytes, random.Random], None]:
    def send(site: Site, content: bytes, _rng: random.Random) -> None:
        request(site, "POST", path, content, headers)

    return send


def request(
    site: Site, method: str, path: str, body: bytes | None, headers: dict[str, str], source: str = ""
) -> tuple[int, bytes]:
    """Raises Found where the answer is an error of the server, or does not come."""
    link = http.client.HTTPConnection(
        "127.0.0.1", site.port, timeout=ANSWER_SECONDS_MAX, source_address=(source or ATTACKERS, 0)
    )
    try:
        link.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = link.getresponse()
        content = answer.read()
    except TimeoutError:
        raise Found(f"{method} {path} was not answered within {ANSWER_SECONDS_MAX:g} s: {body!r}") from None
    finally:
        link.close()
    if answer.status >= 500 and answer.status != 503:
        raise Found(f"{method} {path} answered {answer.status} {content[:300]!r} to {body!r}")
    return answer.status, content


def make_report(rng: random.Random) -> bytes:
    """Report of n1. Often with a few facts alone, so that one that is refused does not hide the others."""
    report = recorded("http", "report.json")
    report["sequence"] = rng.randrange(1, 10**6)
    if rng.random() < 0.7:
        facts = rng.choices(report["facts"], k=rng.choice((1, 2, 8)))
        report = {key: one for key, one in report.items() if not isinstance(one, list | dict)} | {"facts": facts}
    return hostile(rng, report)


def make_launcher_report(rng: random.Random) -> bytes:
    return hostile(rng, recorded("http", "launcher_report.json"))


GLOBAL = re.compile(r"/v1/(mode|pause|resume|breaker|drills|maintenance|spares|recoveries|decisions|session)|/events")
"""What an operator may do to all nodes: it would end the run. Strangers and viewers try it."""


def routes(operations: list[tuple[str, str]], role: Role | None) -> Inlet:
    """Every route with odd parameters and bodies. Those of operators act on n1 and on job 7."""
    may_act = role in (Role.OPERATOR, Role.ADMIN)
    chosen = [one for one in operations if not (may_act and one[0] != "GET" and GLOBAL.search(one[1]))]
    chosen = [one for one in chosen if one[1] != "/v1/events"]

    def make(rng: random.Random) -> bytes:
        method, path = rng.choice(chosen)
        own = {"node": "n1", "job_id": "7"}
        drawn = {name: own.get(name, "1") if rng.random() < 0.6 else odd_text(rng) for name in _NAMES.findall(path)}
        if may_act and method != "GET":
            drawn |= {name: own[name] for name in drawn if name in own}
        path = _NAMES.sub(lambda found: quote(drawn[found[1]], safe="", errors="replace"), path)
        query = f"?{rng.choice(_PARAMETERS)}={quote(odd_text(rng), errors='replace')}" if rng.random() < 0.4 else ""
        body = hostile(rng, rng.choice(_BODIES)) if method != "GET" else b""
        return f"{method} {path}{query}\n".encode() + body

    def send(site: Site, content: bytes, _rng: random.Random) -> None:
        head, _, body = content.partition(b"\n")
        method, _, path = head.decode().partition(" ")
        request(site, method, path, body or None, bearer(role) if role else {})

    return Inlet(f"routes-{role.value if role else 'none'}", make, send)


_NAMES = re.compile(r"\{(\w+)\}")
_PARAMETERS = ("limit", "cursor", "since", "until", "state", "node", "job_id", "user", "at", "x", "format")
_BODIES: tuple[Json, ...] = (
    {"reason": "a reason"},
    {"reason": "a reason", "for_seconds": 60.0, "dry_run": True},
    {"kind": "leak", "targets": ["n1"], "summary": "x", "for_seconds": 60, "key": "k", "resolved": False},
    {"version": "4", "alerts": [{"status": "firing", "labels": {"alertname": "x", "instance": "n1"}}]},
    {"cluster": b.CLUSTER, "node": "n1", "challenge": "x", "credential": "MUNGE:AAAA:"},
    {"token": "understudy_x"},
    {"step": 1, "reason": "x"},
)


def send_raw(site: Site, content: bytes, rng: random.Random) -> None:
    """A stranger at the port: parts of requests, piece by piece."""
    with socket.create_connection(("127.0.0.1", site.port), ANSWER_SECONDS_MAX, (ATTACKERS, 0)) as link:
        drip(link, content, rng)
        link.settimeout(1.0)
        answered = link.recv(4096)
    if re.match(rb"HTTP/1\.1 5(?!03)", answered):
        raise Found(f"{answered[:200]!r} to {content!r}")


def make_raw(rng: random.Random) -> bytes:
    head = b"POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde"
    first = rng.choice((head, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /v1/signals HTTP/1.1\r\n\r\n{}"))
    return b"".join(changed_bytes(rng, first) for _ in range(rng.choice((1, 1, 3))))


def drip(link: socket.socket, content: bytes, rng: random.Random) -> None:
    """Whole, cut off, or in slow pieces."""
    way = rng.randrange(4)
    if way == 0:
        content = content[: rng.randrange(len(content) + 1)]
    if way != 1:
        link.sendall(content)
        return
    for at in range(0, len(content), max(len(content) // 5, 1)):
        link.sendall(content[at : at + max(len(content) // 5, 1)])
        time.sleep(0.02)


# -- the agent's socket: ranks and launchers ---------------------------------------------------------------------------


def make_conversation(rng: random.Random) -> bytes:
    launcher = rng.random() < 0.3
    hello = "launcher.json" if launcher else "hello.json"
    names = sorted(path.name for path in (max(RECORDED.iterdir()) / "to_agent").iterdir())
    others = ["launch.json", "launcher.json"] if launcher else [one for one in names if one != "hello.json"]
    first = recorded("to_agent", hello)
    lines = [json.dumps(first).encode() if rng.random() < 0.8 else hostile(rng, first)]
    lines += [hostile(rng, recorded("to_agent", rng.choice(others))) for _ in range(rng.choice((1, 2, 6)))]
    return b"\n".join(lines) + b"\n"


def converse(site: Site, content: bytes, rng: random.Random) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(ANSWER_SECONDS_MAX)
        link.connect(f"{site.folder}/n2.agent")
        drip(link, content, rng)
        if rng.random() < 0.7:  # others do not read their answers
            link.settimeout(0.05)
            link.recv(4096)


# -- the keeper's socket and port --------------------------------------------------------------------------------------

OF_KEEPER: tuple[Json, ...] = (
    {"type": "hello", "job_id": 7},
    {"type": "list", "job_id": 7, "known": 0, "wait_seconds": 0},
    {"type": "get", "job_id": 7, "rank": 0, "save": [0, 0, 5], "at": 0, "count": 10},
    {"type": "get", "job_id": 7, "rank": 0, "save": [0, 0, 5], "keeper": "127.0.17.9:1"},
    {"type": "copied", "job_id": 7, "rank": 0, "save": [0, 0, 5], "seconds": 0},
    {"type": "follow", "job_id": 7, "keeper": "127.0.0.1:9", "ranks": [0, 1]},
    {"type": "restored", "job_id": 7, "restart_count": 0, "launch": 0, "save": [0, 0, 5]},
    {"type": "free", "job_id": 7, "user_id": 1001},
    {"type": "have", "job_id": 7, "rank": 0, "save": [0, 0, 5]},
    {"type": "status"},
    {"challenge": "0" * 32},
    {"credential": "MUNGE:AAAA:"},
)
PUT = {"type": "put", "job_id": 7, "rank": 0, "save": [0, 0, 5], "world_size": 2, "length": 4096, "checksum": "crc32:1"}


def make_frames(rng: random.Random) -> bytes:
    messages = [rng.choice((PUT, *OF_KEEPER)) for _ in range(rng.choice((1, 2, 5)))]
    return b"".join(_frame(hostile(rng, one), rng) for one in messages)


def _frame(body: bytes, rng: random.Random) -> bytes:
    length = len(body) if rng.random() < 0.9 else rng.choice((0, 1, 2**20, 2**20 + 1, 2**32 - 1))
    return length.to_bytes(4, "big") + body


def keep(site: Site, content: bytes, rng: random.Random) -> None:
    """Keeps it with memory beside it, or what is none."""
    with ExitStack() as opened:
        link = opened.enter_context(socket.socket(socket.AF_UNIX))
        link.settimeout(1.0)
        link.connect(str(site.keepers.socket("n2")))
        memory = os.memfd_create("part") if rng.random() < 0.8 else os.open("/dev/zero", os.O_RDONLY)
        opened.callback(os.close, memory)
        with suppress(OSError):
            os.ftruncate(memory, rng.choice((0, 1, 4096, 2**40)))
        socket.send_fds(link, [content[:1]], [memory])
        drip(link, content[1:], rng)
        link.recv(4096)


def greet_keeper(site: Site, content: bytes, rng: random.Random) -> None:
    """A stranger at the port between keepers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(site.keepers.port_of("n2"), 1.0, (ATTACKERS, 0)) as link:
        if rng.random() < 0.2:
            drip(link, content, rng)
            return
        with context.wrap_socket(link) as secure:
            drip(secure, content, rng)
            secure.recv(4096)


# -- the kernel's log, and Slurm's output ------------------------------------------------------------------------------


def make_kernel_lines(rng: random.Random) -> bytes:
    """Names that users of n5 chose, in the forms in which the kernel prints names."""
    pieces = [piece for line in LINES for piece in re.split(r"(\W)", line) if piece] + ["\n", "\x1b", "\xe9"]
    lines = []
    for _ in range(rng.choice((1, 10))):
        file = rng.choice(LINES) if rng.random() < 0.5 else "".join(rng.choices(pieces, k=rng.randrange(1, 12)))
        name = (rng.choice(LINES) if rng.random() < 0.5 else "".join(rng.choices(pieces, k=5)))[:15]
        text = rng.choice(FORMS).format(name=name or "x", file=file.replace("/", "") or "x")
        lines.append(f"{rng.choice((4, 6, 12))},{rng.randrange(10**9)},{rng.randrange(10**12)},-;{as_logged(text)}\n")
    return "".join(lines).encode()


def log_on(node: str) -> Callable[[Site, bytes, random.Random], None]:
    def send(site: Site, content: bytes, _rng: random.Random) -> None:
        with (site.folder / f"{node}.kmsg").open("ab") as log:
            log.write(content)

    return send


def make_records(rng: random.Random) -> bytes:
    """What root of n2 can have its agent read."""
    lines = rng.choices([*LINES, *OF_A_ROW], k=3)
    content = "".join(f"4,{rng.randrange(2**64)},{rng.randrange(10**12)},-;{line}\n" for line in lines).encode()
    return changed_bytes(rng, content) + b"\n"


OF_USER = ("JobName", "Comment", "WorkDir", "Command", "StdOut", "Features", "Network", "Licenses")
OF_ROOT = ("Arch", "OS", "Version", "NodeHostName", "Gres", "CPULoad", "ActiveFeatures", "ExtSensorsTemp")


def make_slurm(rng: random.Random) -> bytes:
    imitated = [
        "x\nJobId=8 JobName=x UserId=attacker(1000) GroupId=x JobState=FAILED Restarts=0 NumNodes=2 Network=x",
        "x UserId=other(1001) GroupId=x(1) JobState=CANCELLED NodeList=n3 Network=(null) Command=x",
        "x\nNodeName=n3 NodeAddr=127.0.0.1 Port=1 State=DOWN*+DRAIN Partitions=train",
        "x\nNodeName=n1 State=IDLE",
        "x State=IDLE" + "".join(f"\nNodeName={node} State=DOWN*+DRAIN" for node in (*NODES, "x1", "x2")) * 2,
        "x State=DOWN* Weight=x Port=99999999999999999999 NodeAddr=x",
        "n[1-999999][1-999999]",
        "9" * 5000,
        "",
    ]
    of_user = {key: rng.choice([*imitated, odd_text(rng)]) for key in rng.sample(OF_USER, rng.choice((0, 1, 1, 2)))}
    of_root = {key: rng.choice([*imitated, odd_text(rng)]) for key in rng.sample(OF_ROOT, rng.choice((0, 1, 1, 2)))}
    return json.dumps([of_root, of_user]).encode()


def print_slurm(site: Site, content: bytes, _rng: random.Random) -> None:
    of_root, of_user = json.loads(content)
    for what, text in (("nodes", site.nodes_text(of_root)), ("jobs", site.jobs_text(of_user))):
        site.print_slurm(what, text.encode("utf-8", "replace").decode().replace("\0", ""))  # C's strings have no NUL


# -- too many ----------------------------------------------------------------------------------------------------------


def make_flood(rng: random.Random) -> bytes:
    return rng.choice((b"", b"\n", b"GET / HTTP/1.1\r\n", json.dumps(recorded("to_agent", "hello.json")).encode()))


def flood(site: Site, content: bytes, rng: random.Random) -> None:
    """Connections that begin and do not go on, for a second."""
    unix = (f"{site.folder}/n2.agent", str(site.keepers.socket("n2")))
    ports = (("127.0.0.1", site.port), site.keepers.port_of("n2"))
    target = rng.choice((*unix, *ports))
    with ExitStack() as held:
        for _ in range(FLOOD):
            link = held.enter_context(socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET))
            link.settimeout(1.0)
            if link.family == socket.AF_INET:
                link.bind((ATTACKERS, 0))
            link.connect(target)
            with suppress(OSError):
                link.sendall(content)
        time.sleep(1.0)


def sign(site: Site, content: bytes, _rng: random.Random) -> None:
    """A user's credential, signed by MUNGE, with whatever is in it."""
    command = ["munge", f"--socket={site.folder}/munge/socket"]
    signed = subprocess.run(command, input=content, capture_output=True, check=False, timeout=ANSWER_SECONDS_MAX)
    for path in ("/v1/user-token", "/v1/node-token"):
        _, challenge = request(site, "GET", "/v1/challenge", None, {})
        asked = {"server": f"127.0.0.1:{site.port}", "credential": signed.stdout.decode()} | json.loads(challenge)
        request(site, "POST", path, json.dumps(asked).encode(), {})


def inlets(operations: list[tuple[str, str]]) -> list[Inlet]:
    node = bearer(Role.NODE, "n1")
    return [
        Inlet("report", make_report, post("/v1/reports", node)),
        Inlet("launcher_report", make_launcher_report, post("/v1/launchers", node)),
        Inlet("http", make_raw, send_raw, ATTACKER),
        Inlet("agent_socket", make_conversation, converse, ATTACKER),
        Inlet("keeper_socket", make_frames, keep, ATTACKER),
        Inlet("keeper_port", make_frames, greet_keeper, ATTACKER),
        Inlet("names_in_kernel_log", make_kernel_lines, log_on("n5")),
        Inlet("kernel_log", make_records, log_on("n2"), pause_seconds=0.3),
        Inlet("slurm", make_slurm, print_slurm, pause_seconds=0.4),
        Inlet("credentials", lambda rng: hostile(rng, _BODIES[4]), sign, ATTACKER, 0.3),
        Inlet("flood", make_flood, flood, ATTACKER, 1.0),
        *(routes(operations, role) for role in (None, Role.VIEWER, Role.OPERATOR, Role.ADMIN, Role.SIGNALS)),
    ]
