"""One control plane at a time works on a database. On SQLite a second one does not start (PostgreSQL: `lease.py`)."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO, Protocol

from understudy_controlplane.fleet.holder import Leading
from understudy_controlplane.store.database import make_file, read_url


class DatabaseTaken(Exception):
    """Another control plane works on this database."""


class Lead(Protocol):
    """The right to work on the database: one control plane at a time has it."""

    def check(self) -> None:
        """Raises DatabaseTaken where another control plane has the lead; StoreError while that cannot be known."""

    def objection(self) -> str:
        """Why nothing may be changed in Slurm now; empty: it may."""
        ...

    def is_cut_off(self) -> bool:
        """True if another control plane may lead by now, to which agents and launchers are to go."""
        ...

    def leading(self) -> Leading | None:
        """None: there cannot be another control plane."""
        ...


class Alone:
    """The lead of a control plane that has its database for itself."""

    def check(self) -> None:
        pass

    def objection(self) -> str:
        return ""

    def is_cut_off(self) -> bool:
        return False

    def leading(self) -> Leading | None:
        return None


def take_file(url: str) -> FileLock:
    """Raises DatabaseTaken, StoreError or OSError."""
    parsed = read_url(url)
    is_file = parsed.get_backend_name() == "sqlite" and parsed.database
    return FileLock(Path(f"{parsed.database}.lock") if is_file else None)


class FileLock(Alone):
    """Lock on a file beside SQLite's. The kernel releases it when its holder ends, however it ends."""

    def __init__(self, path: Path | None) -> None:
        """None: the database is in this process's memory."""
        self._file: IO[str] | None = None
        if path is None:
            return
        make_file(path)
        self._file = path.open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise DatabaseTaken(f"{path} is locked") from error

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
