"""`make fuzz SECONDS=60`: every inlet of a whole site is attacked at once, on SQLite, and then on PostgreSQL.

While attackers send, the site has to do its work: the loop ticks, Slurm is read, /healthz and /readyz are well, other
users, nodes and ranks are answered within a second, no route fails, no log has an error, no one else's node or job is
acted on, and memory and database stay within what tests/attacks.md states. Where it does not, the last inputs of each
inlet, the logs and the seed are in build/fuzz.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from sqlalchemy import make_url

from tests import REPOSITORY
from tests import builders as b
from tests.fuzz.inlets import Attackers, Found, inlets, request
from tests.fuzz.site import Site
from tests.new_database import new_database
from tests.testbed.postgres import Postgres
from tests.tokens import bearer
from tests.waiting import PATIENCE_SECONDS
from understudy_controlplane.fleet.identity import Role

KEPT = REPOSITORY / "build" / "fuzz"
ANSWER_SECONDS = 1.0
TICK_SECONDS = 3.0
WORK_SECONDS = 0.01
"""What work() takes on a free processor: where it takes longer, an answer may take longer by as much."""
ERROR = re.compile(r"level=(?:error|critical)|Traceback \(most recent|^(?:ERROR|CRITICAL)", re.MULTILINE)
HARMED = re.compile(r"NodeName=\S*n[345]\S* (State|Weight)=|JobId=8\b|(requeue|hold|scancel)\b.* 8$|reboot .*n[345]")
MEGABYTE = 1 << 20
MEMORY_MAX = 256 * MEGABYTE
"""Bytes that a process may grow by."""
DATABASE_MAX = (256 + 2 * 16) * MEGABYTE
"""Bytes of an hour: by what root of n1 reports, and by what a user's processes on two nodes report."""


def work() -> float:
    """Seconds that a fixed piece of work takes now."""
    began = time.perf_counter()
    sum(number * number for number in range(150_000))
    return time.perf_counter() - began


class Watch:
    """What the site owes to all others."""

    def __init__(self, site: Site, patience: float) -> None:
        self.site, self._patience = site, patience
        self.answered: dict[str, list[float]] = {}
        self._read: dict[Path, int] = {}
        self._sequence = 0
        self._grown_from = self._sizes()

    def look(self) -> None:
        """Raises Found."""
        for node in ("n3", "n4"):
            with self._within(f"the report of {node}"):
                self._expect("POST", "/v1/reports", self._report(node), bearer(Role.NODE, node))
        for path in ("/healthz", "/readyz"):
            with self._within(path):
                self._expect("GET", path)
        with self._within("a rank's question"):
            self._ask_agent()
        with self._within("a rank's question to the keeper"):
            self._ask_keeper()
        self._look_at_loop()
        self._look_at_harm()
        self._look_at_logs()
        self._look_at_sizes()

    @contextmanager
    def _within(self, what: str) -> Iterator[None]:
        before, began = work(), time.perf_counter()
        try:
            yield
        except OSError as error:
            raise Found(f"{what}: {error!r}") from error
        seconds = time.perf_counter() - began
        self.answered.setdefault(what, []).append(seconds)
        most = self._most(before)
        if seconds > most:
            raise Found(f"{what} was answered after {seconds:.2f} s, and not within {most:.2f} s")

    def _most(self, before: float = 0.0) -> float:
        return self._patience * ANSWER_SECONDS * max(1.0, before / WORK_SECONDS, work() / WORK_SECONDS)

    def _expect(self, method: str, path: str, body: bytes | None = None, token: dict[str, str] | None = None) -> bytes:
        status, content = request(self.site, method, path, body, token or {}, "127.0.0.1")
        if status != 200:
            raise Found(f"{method} {path} answered {status}: {content[:500]!r}")
        return content

    def _report(self, node: str) -> bytes:
        self._sequence += 1
        now = time.time()
        report = b.report(node, sequence=self._sequence, sent_at=now, agent_started_at=now - 600)
        return msgspec.json.encode(report)

    def _ask_agent(self) -> None:
        place = {"job_id": 9, "restart_count": 0, "rank": 0, "world_size": 1}
        with socket.socket(socket.AF_UNIX) as rank:
            rank.settimeout(PATIENCE_SECONDS)
            rank.connect(f"{self.site.folder}/n2.agent")
            messages = ({"type": "hello", **place}, {"type": "restore_point", "id": 5})
            rank.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in messages))
            if b'"id":5' not in (answer := rank.recv(65536)):
                raise Found(f"the agent answers another user's rank with {answer!r}")

    def _ask_keeper(self) -> None:
        body = json.dumps({"type": "hello", "job_id": 9}).encode()
        with socket.socket(socket.AF_UNIX) as rank:
            rank.settimeout(PATIENCE_SECONDS)
            rank.connect(str(self.site.keepers.socket("n2")))
            rank.sendall(len(body).to_bytes(4, "big") + body)
            if b'"keeper"' not in (answer := rank.recv(65536)):
                raise Found(f"the keeper answers another user's rank with {answer!r}")

    def _look_at_loop(self) -> None:
        status = json.loads(self._expect("GET", "/v1/status", None, bearer(Role.VIEWER)))
        if status["loop"]["error"] or status["slurm"]["error"]:
            raise Found(f"loop: {status['loop']}, Slurm: {status['slurm']}")
        since = time.time() - status["loop"]["last_tick_at"]
        if (most := TICK_SECONDS * self._most()) < max(status["loop"]["tick_seconds"], since - 1):
            raise Found(f"a tick of more than {most:.1f} s, or none for {since:.1f} s: {status['loop']}")

    def _look_at_harm(self) -> None:
        for effect in (self.site.folder / "effects").read_text(errors="replace").splitlines():
            if HARMED.search(effect):
                raise Found(f"others come to harm: {effect}")
        decisions = json.loads(self._expect("GET", "/v1/decisions?limit=1000", None, bearer(Role.VIEWER)))["items"]
        for one in decisions:
            if one["subject"] in ("n3", "n4", "n5", "8") and one["action"] != "nothing":
                raise Found(f"a decision about others: {one}")

    def _look_at_logs(self) -> None:
        for path in sorted(self.site.folder.glob("*.log")):
            with path.open("rb") as log:
                log.seek(self._read.get(path, 0))
                lines = log.read()
                self._read[path] = log.tell()
            if (error := ERROR.search(lines.decode(errors="replace"))) is not None:
                raise Found(f"{path.name}: {lines[error.start() :][:3000].decode(errors='replace')}")
        for name, process in self.site.processes.items():
            if process.poll() is not None:
                raise Found(f"{name} has ended with {process.returncode}")

    def _look_at_sizes(self) -> None:
        for what, size in self._sizes().items():
            grown, most = size - self._grown_from[what], DATABASE_MAX if what == "database" else MEMORY_MAX
            if grown > most:
                raise Found(f"{what} has grown by {grown >> 20} MiB, from {self._grown_from[what] >> 20} MiB")

    def _sizes(self) -> dict[str, int]:
        page = os.sysconf("SC_PAGE_SIZE")
        memory = {
            name: int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * page
            for name, process in self.site.processes.items()
        }
        return {**memory, "database": self._database_bytes()}

    def _database_bytes(self) -> int:
        url = make_url(self.site.database)
        if url.get_backend_name() == "sqlite":
            return sum(path.stat().st_size for path in Path(str(url.database)).parent.glob("fleet.db*"))
        import psycopg

        with psycopg.connect(host=str(url.query["host"]), user=url.username, dbname=url.database) as link:
            row = link.execute("SELECT pg_database_size(current_database())").fetchone()
        assert row is not None
        return int(row[0])

    def summary(self) -> str:
        worst = {what: max(seconds) for what, seconds in self.answered.items()}
        sizes = self._sizes()
        grown = ", ".join(f"{name} {(sizes[name] - size) / MEGABYTE:+.1f}" for name, size in self._grown_from.items())
        return f"slowest answers {', '.join(f'{w} {s:.2f} s' for w, s in worst.items())}; MiB: {grown}"


def attack(kind: str, url: str, folder: Path, seed: int, seconds: float, patience: float = 1.0) -> str:
    """What was seen, in words. Raises Found."""
    kept = KEPT / f"{kind}-{seed}"
    shutil.rmtree(kept, ignore_errors=True)
    site = Site(folder, url)
    attackers = Attackers(site, seed, kept)
    try:
        site.start()
        document = json.loads(request(site, "GET", "/openapi.json", None, bearer(Role.VIEWER))[1])
        operations = [(method.upper(), path) for path, found in document["paths"].items() for method in found]
        watch = Watch(site, patience)
        watch.look()
        attackers.start(inlets(operations))
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            watch.look()
            attackers.check()
            time.sleep(0.2)
        attackers.stop()
        watch.look()
        seen = watch.summary()
    except (Found, AssertionError) as found:
        attackers.stop()
        kept.mkdir(parents=True, exist_ok=True)
        for log in (*folder.glob("*.log"), folder / "effects", folder / "nodes", folder / "jobs"):
            shutil.copy(log, kept)
        raise Found(f"{found}\n(seed {seed}, {kind}; inputs and logs: {kept})") from found
    finally:
        attackers.stop()
        site.stop()
    sent = ", ".join(f"{name} {one.value >> 10}" for name, one in attackers.sent.items())
    shutil.rmtree(kept, ignore_errors=True)
    return f"{kind}, seed {seed}: clean; KiB sent: {sent}; {seen}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.whole", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="on each database")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--database", choices=("sqlite", "postgresql"), help="default: one after the other")
    options = parser.parse_args()
    failed = False
    for kind in (options.database,) if options.database else ("sqlite", "postgresql"):
        with ExitStack() as opened:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="understudy-fuzz-")))
            folder.chmod(0o755)
            url = new_database(folder / "fleet.db")
            if kind == "postgresql":
                server = Postgres()
                opened.callback(server.stop)
                url = server.new_database()
            try:
                print(attack(kind, url, folder, options.seed, options.seconds), flush=True)
            except Found as found:
                failed = True
                print(f"FOUND: {found}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
