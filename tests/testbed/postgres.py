"""A PostgreSQL server of the tests' own, on a socket in its own folder or on a machine; it is gone when they end."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

from understudy_controlplane.store.database import open_database

USER = "postgres"
"""The server refuses to run as root. Debian's package makes this user."""

START_SECONDS_MAX = 60


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of the testbed that runs a server."""

    address: str
    port: int
    start: Callable[[Sequence[str]], object]
    """Starts a program there, which ends with the testbed."""


class Postgres:
    def __init__(self, machine: Machine | None = None) -> None:
        """Starts the server, with a database that has the newest schema. Raises CalledProcessError or OSError.

        `machine`: it runs there, and clients reach it at the machine's address.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="understudy-pg-"))
        self._data = self._folder / "data"
        self._own(self._folder)
        self._run("initdb", "-D", self._data, "-U", USER, "--auth", "trust", "--no-sync", "-E", "UTF8", "--no-locale")
        address = machine.address if machine else ""
        settings = f"-k {self._folder} -c listen_addresses={address} -c fsync=off -c shared_buffers=16MB"
        settings = f"{settings} -c max_connections=50"
        self._place = f"host={self._folder}"
        self._settings = settings
        if machine is None:
            self.start()
        else:
            self._place = f"host={machine.address}&port={machine.port}"
            with (self._data / "pg_hba.conf").open("a") as rules:
                rules.write("host all all 198.18.0.0/15 trust\n")
            command = self._command("postgres", "-D", self._data, "-p", machine.port, *settings.split())
            machine.start(command)
            self._wait_until_it_listens()
        self._made = 0
        self._connection = self._connect(self._folder, machine.port if machine else None)
        self._connection.execute("CREATE DATABASE migrated")
        open_database(self._url("migrated")).dispose()

    def new_database(self) -> str:
        """Makes an empty database of the newest schema; returns its URL."""
        self._made += 1
        name = f"test{self._made}"
        self._connection.execute(f"CREATE DATABASE {name} TEMPLATE migrated")
        return self._url(name)

    def drop(self, url: str) -> None:
        """Drops it with the connections that are still open to it."""
        name = make_url(url).database
        self._connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def end_sessions(self) -> None:
        """End all others' connections, as a restart of the server does."""
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname <> ''"
        self._connection.execute(query)

    @property
    def sockets(self) -> list[str]:
        """The server's, and its replica's if it has one."""
        folders = [self._folder, self._folder / "of_replica"]
        return [f"{one}/.s.PGSQL.5432" for one in folders if one.is_dir()]

    def begin_replica(self) -> None:
        """A second server, which has all that this one has confirmed to its clients."""
        replica = self._folder / "replica"
        self._run("pg_basebackup", "-h", self._folder, "-U", USER, "-D", replica, "-R", "-X", "stream", "-c", "fast")
        (self._folder / "of_replica").mkdir()
        self._own(self._folder / "of_replica")
        self._start(replica, self._settings.replace(f"-k {self._folder}", f"-k {self._folder}/of_replica"))
        self._connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self._connection.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """The replica goes on in its place, at its own address."""
        with self._connect(self._folder / "of_replica") as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            connection.execute("SELECT pg_promote(), pg_reload_conf()")
        self._data = self._folder / "replica"

    def start(self) -> None:
        self._start(self._data, self._settings)

    def _start(self, data: Path, settings: str) -> None:
        log = self._folder / "log"
        self._run("pg_ctl", "-D", data, "-l", log, "-w", "-t", START_SECONDS_MAX, "-o", settings, "start")

    @staticmethod
    def _connect(folder: Path, port: int | None = None) -> psycopg.Connection[Any]:
        """Uses the socket, which no pulled cable cuts."""
        return psycopg.connect(host=str(folder), port=port, user=USER, dbname="postgres", autocommit=True)

    def stop(self) -> None:
        """Stops as in a crash. Starts no process: fixtures end while the last test still counts as running."""
        self.crash()
        shutil.rmtree(self._folder)

    def crash(self) -> None:
        self._connection.close()
        pid = int((self._data / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGQUIT)
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.01)

    def _url(self, name: str) -> str:
        return f"postgresql+psycopg://{USER}@/{name}?{self._place}&target_session_attrs=read-write"  # as with Patroni

    def _wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        ready = self._data / "postmaster.pid"
        while not (ready.exists() and ready.read_text().endswith("ready   \n")):
            if time.monotonic() > deadline:
                raise TimeoutError(f"PostgreSQL in {self._folder} is not ready after {START_SECONDS_MAX} s")
            time.sleep(0.02)

    def _run(self, program: str, *arguments: object) -> None:
        command = self._command(program, *arguments)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self._folder)

    @staticmethod
    def _own(folder: Path) -> None:
        owner = pwd.getpwnam(USER)
        if os.getuid() == 0:
            os.chown(folder, owner.pw_uid, owner.pw_gid)

    def _command(self, program: str, *arguments: object) -> list[str]:
        command = [str(self._program(program)), *map(str, arguments)]
        if os.getuid() == 0:
            command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", *command]
        return command

    @staticmethod
    def _program(name: str) -> Path:
        """The newest that Debian's packages installed."""
        found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
        if not found:
            raise FileNotFoundError(f"PostgreSQL's {name} is not installed; run: apt-get install postgresql")
        return found[-1]
