"""Two control planes as processes on one real PostgreSQL, and what a fault of the leader costs.

A takeover ends when the other one is ready (`/readyz`): it leads, has read Slurm, and may change it. At the moment of
the fault a node reports an Xid to whichever control plane answers; the time until that node is drained is measured,
too. Slurm is the virtual one, in this process: it keeps a list of all changes.

A leader that is cut from slurmctld or from agents passes the lead on; here it may do so at once (`SETTLED_SECONDS`).
One whose disk is full keeps the lead, since all that it stores is in PostgreSQL: its node is drained by itself.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import httpx
import msgspec
from sqlalchemy import create_engine, make_url, select

from tests import PYTHON_PATH, REPOSITORY
from tests import builders as b
from tests.bench.ha_side import KEY
from tests.bench.result import Result, Size, result
from tests.simulator.slurm import VirtualSlurm
from tests.testbed.configuration import free_ports
from tests.testbed.postgres import Postgres
from tests.testbed.serve import PARAMETERS_FILE
from tests.tokens import bearer, with_tokens
from understudy_controlplane.decide.leadership import RENEWAL_SECONDS
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.slurm.protocol import READS, SlurmUnavailable
from understudy_controlplane.store import tables
from understudy_wire.facts import KernelEvent

ROUNDS = 20
ROUNDS_OF_PAIR = 8
"""Each round takes a node out of service, and no rule takes out many more on one day."""

NODES = tuple(f"n{number}" for number in range(1, 101))
REPORT_SECONDS = 2.0
WAIT_SECONDS = 120.0


class SlurmHost:
    """The virtual Slurm, in real time."""

    def __init__(self, folder: Path, nodes: Sequence[str] = NODES) -> None:
        self.slurm = VirtualSlurm(nodes, time.time())
        self.address = str(folder / "slurm")
        self.changes: list[tuple[float, str, str]] = []
        """When, which control plane, and what it changed."""
        self._lock = threading.Lock()
        self.cut: set[str] = set()
        """Control planes that do not reach it."""
        self._listener = Listener(self.address, authkey=KEY)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                line = self._listener.accept()
            except (OSError, EOFError):
                return
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: Connection) -> None:
        with suppress(OSError, EOFError):
            while True:
                side, name, arguments = line.recv()
                try:
                    line.send((None, self._call(side, name, arguments)))
                except (OSError, EOFError):
                    return
                except Exception as error:  # noqa: BLE001 - it is raised again in the process that called
                    line.send((SlurmUnavailable(str(error)), None))

    def _call(self, side: str, name: str, arguments: tuple[Any, ...]) -> Any:
        if side in self.cut:
            raise SlurmUnavailable("Unable to contact slurm controller (connect failure)")
        with self._lock:
            self.slurm.advance(max(time.time() - self.slurm.now, 0.0))
            answer = getattr(self.slurm, name)(*arguments)
            if name not in READS:
                self.changes.append((time.monotonic(), side, f"{name} {arguments[0]}"))
            return answer

    def drained(self, node: str) -> float | None:
        return next((at for at, _, what in self.changes if what == f"drain_node {node}"), None)

    def close(self) -> None:
        self._listener.close()


class Cable:
    """A control plane's way to PostgreSQL. While it is cut, it carries nothing, and no connection ends."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._carries = threading.Event()
        self._carries.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._carries.clear()

    def mend(self) -> None:
        self._carries.set()

    def close(self) -> None:
        self._carries.set()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._carries.wait()
        with near, socket.socket(socket.AF_UNIX) as far:
            try:
                far.connect(self._server)
            except OSError:
                return
            back = threading.Thread(target=self._carry, args=(far, near), daemon=True)
            back.start()
            self._carry(near, far)
            back.join()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._carries.wait()
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Side:
    def __init__(self, folder: Path, database: str, servers: Sequence[str], slurm: str, ahead_seconds: float) -> None:
        """`servers`: sockets of those that may have the database. `ahead_seconds`: error of its host's clock."""
        folder.mkdir()
        self.name = folder.name
        self.hears_agents = True
        self.cables = [Cable(one) for one in servers]
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"
        query = {"host": [f"127.0.0.1:{one.port}" for one in self.cables], "target_session_attrs": "read-write"}
        self.database = own = make_url(database).set(query=query).render_as_string(hide_password=False)
        port = self.url.rpartition(":")[2]
        (folder / PARAMETERS_FILE).write_text("{}")
        config = folder / "controlplane.toml"
        config.write_text(
            f'cluster = "testbed"\nmode = "act"\n[server]\nport = {port}\ndatabase = "{own}"\n'
            "[spares]\ncount = 0\n[validation]\nenabled = false\n[repair]\nenabled = false\n"
        )
        self.log = folder / "log"
        self._command = [sys.executable, "-m", "tests.bench.ha_side", "--config", str(config), slurm]
        self._command.append(str(ahead_seconds))
        self._client = httpx.Client(base_url=self.url, timeout=1.0, trust_env=False)
        self.start()

    def start(self) -> None:
        with self.log.open("w") as log:
            environment = os.environ | {"PYTHONPATH": PYTHON_PATH}
            self.process = subprocess.Popen(self._command, stderr=log, env=environment, cwd=REPOSITORY)

    def is_ready(self) -> bool:
        with suppress(httpx.HTTPError):
            return self._client.get("/readyz").status_code == httpx.codes.OK
        return False

    def stands_by(self) -> bool:
        return "stands_by" in self.log.read_text()

    def cut_from_database(self) -> None:
        for cable in self.cables:
            cable.cut()

    def fill_disk(self) -> None:
        """No file takes a byte more."""
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (0, 0))

    def take(self, node: str, body: bytes) -> bool:
        if not self.hears_agents:
            return False
        with suppress(httpx.HTTPError):
            answer = self._client.post("/v1/reports", content=body, headers=bearer(Role.NODE, node))
            return answer.status_code == httpx.codes.OK
        return False

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        for cable in self.cables:
            cable.close()
        self._client.close()


class Agents:
    """Report for all nodes, to the next address where none answers. A fact is sent at once, until it is taken."""

    def __init__(self, nodes: Sequence[str], sides: list[Side]) -> None:
        self._nodes, self._sides = nodes, sides
        self._facts: dict[str, KernelEvent] = {}
        self._asked = 0
        self._over = threading.Event()
        self.taken: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def fail(self, node: str) -> None:
        """A GPU of it falls off the bus."""
        self._facts[node] = b.xid_event(node, 79, time.time(), 1, f"boot of {node}").event

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        for number in count():
            self._report(next(iter(self._facts), self._nodes[number % len(self._nodes)]), number)
            if self._over.wait(REPORT_SECONDS / len(self._nodes)):
                return

    def _report(self, node: str, number: int) -> None:
        fact, boot, now = self._facts.get(node), f"boot of {node}", time.time()
        facts = [fact] if fact else []
        gpus = [b.gpu(index, uuid=f"GPU-{node}-{index}") for index in range(8)]
        report = b.report(node, facts, cluster="testbed", boot_id=boot, sent_at=now, sequence=number + 1, gpus=gpus)
        if not self._sides[self._asked].take(node, msgspec.json.encode(report)):
            self._asked = 1 - self._asked
        elif fact:
            self.taken.append(node)
            del self._facts[node]


class Pair:
    """Who leads and who stands by changes with each round."""

    def __init__(self, folder: Path, postgres: Postgres, ahead_seconds: tuple[float, float] = (0.0, 0.0)) -> None:
        database = with_tokens(postgres.new_database(), NODES)
        self.host = SlurmHost(folder)
        self.leader = Side(folder / "a", database, postgres.sockets, self.host.address, ahead_seconds[0])
        self.wait(self.leader.is_ready, "the first control plane is ready")
        self.standby = Side(folder / "b", database, postgres.sockets, self.host.address, ahead_seconds[1])
        self.wait(self.standby.stands_by, "the second control plane stands by")
        self.agents = Agents(NODES, [self.leader, self.standby])
        self._rounds = 0

    def wait(self, condition: Callable[[], object], what: str) -> float:
        begun = time.monotonic()
        while not condition():
            if time.monotonic() - begun > WAIT_SECONDS:
                logs = "\n".join(one.log.read_text()[-2000:] for one in (self.leader, self.standby))
                raise TimeoutError(f"not within {WAIT_SECONDS:.0f} s: {what}\n{logs}")
            time.sleep(0.02)
        return time.monotonic()

    def round(self, fault: str) -> tuple[float, float]:
        """Seconds until the other one is ready, and until a node that fails at the same moment is drained."""
        leader, standby = self.leader, self.standby
        self.wait(standby.stands_by, "a control plane stands by")
        node = NODES[self._rounds]
        self._rounds += 1
        time.sleep(4.0 + RENEWAL_SECONDS * (0.37 * self._rounds % 1))  # at different moments between two renewals
        begun = time.monotonic()
        FAULTS[fault](self)
        self.agents.fail(node)
        leads = leader if fault == DISK_FULL else standby
        taken = self.wait(leads.is_ready, f"it leads: {fault}")
        drained = self.wait(lambda: self.host.drained(node), "the node is drained")
        drained = self.host.drained(node) or drained
        if fault == DISK_FULL:
            assert leader.is_ready(), "it keeps the lead"
            leader.process.terminate()
            self.wait(standby.is_ready, "the other one leads after a planned stop")
        leader.process.send_signal(signal.SIGCONT)
        for cable in leader.cables:
            cable.mend()
        leader.hears_agents = True
        leader.process.wait(WAIT_SECONDS)
        self.host.cut.clear()
        leader.start()
        self.leader, self.standby = standby, leader
        return taken - begun, drained - begun

    def lost(self) -> int:
        """Facts that a control plane took, and the database does not have."""
        engine = create_engine(self.leader.database)
        with engine.connect() as connection:
            there = set(connection.execute(select(tables.kernel_event.c.node)).scalars())
        engine.dispose()
        return len(set(self.agents.taken) - there)

    def done_twice(self) -> int:
        counts = Counter(what for _, _, what in self.host.changes)
        return sum(number - 1 for number in counts.values())

    def close(self) -> None:
        self.agents.close()
        for one in (self.leader, self.standby):
            one.close()
        self.host.close()


DISK_FULL = "disk_full"

FAULTS: dict[str, Callable[[Pair], object]] = {
    "killed": lambda pair: pair.leader.process.kill(),
    "frozen": lambda pair: pair.leader.process.send_signal(signal.SIGSTOP),
    "cut_from_database": lambda pair: pair.leader.cut_from_database(),
    "cut_from_slurm": lambda pair: pair.host.cut.add(pair.leader.name),
    "cut_from_agents": lambda pair: setattr(pair.leader, "hears_agents", False),
    DISK_FULL: lambda pair: pair.leader.fill_disk(),
    "planned": lambda pair: pair.leader.process.terminate(),
}


def measure(size: Size) -> list[Result]:
    faults, rounds = size.of((*FAULTS,), ("killed", "planned")), size.of(ROUNDS, 1)
    measured = {fault: list[tuple[float, float]]() for fault in faults}
    due = [fault for fault in faults for _ in range(rounds)]
    twice = lost = 0
    postgres = Postgres()
    try:
        while due:
            with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
                pair = Pair(Path(folder), postgres)
                try:
                    for fault in due[:ROUNDS_OF_PAIR]:
                        measured[fault].append(pair.round(fault))
                    twice, lost = twice + pair.done_twice(), lost + pair.lost()
                finally:
                    pair.close()
            due = due[ROUNDS_OF_PAIR:]
    finally:
        postgres.stop()
    names = {"planned": "planned_handover_seconds"}
    taken = {names.get(one, f"takeover_seconds_{one}"): one for one in faults if one != DISK_FULL}
    return [
        *(result(name, "s", [one[0] for one in measured[it]], {}, more_is_better=False) for name, it in taken.items()),
        *(
            result(f"event_to_drain_seconds_{fault}", "s", [one[1] for one in found], {}, more_is_better=False)
            for fault, found in measured.items()
        ),
        result("effects_done_twice", "", [twice], {}, more_is_better=False),
        result("facts_lost", "", [lost], {}, more_is_better=False),
    ]
