"""Nodes of the allocation that can be used now, and why the others cannot: verdicts, Slurm's node states and what the
launcher saw itself.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from understudy_launcher.event_log import Events
from understudy_launcher.slow_files import SlowRead

BARRED_SECONDS = 600.0


class Verdicts(Protocol):
    def poll(self) -> Mapping[str, str]:
        """Bad nodes, and why, as of now. Quick: it is asked many times a second."""


class FileVerdicts:
    """A file with a line `node reason…` for each bad node, or a directory with a file for each, named after it.

    A file that does not exist condemns no node. Its writer should replace it as a whole (rename), or append to it.
    """

    def __init__(self, path: Path, interval_seconds: float = 0.0) -> None:
        self._path = path
        self._interval_seconds = interval_seconds
        self._looked = float("-inf")
        self._stamp: tuple[int, int, int] | None = None
        self._read_last: Mapping[str, str] = {}
        self._known: Mapping[str, str] = {}
        self._slow = SlowRead[Mapping[str, str]](self._look, {})

    def poll(self) -> Mapping[str, str]:
        now = time.monotonic()
        if now - self._looked >= self._interval_seconds:
            self._looked = now
            self._known = self._slow.newest()
        return self._known

    def _look(self) -> Mapping[str, str]:
        try:
            found = self._path.stat()
        except OSError:
            self._stamp, self._read_last = None, {}
            return self._read_last
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp != self._stamp:
            try:
                self._read_last = self._read()
            except OSError:  # being replaced: asked again at once
                return self._read_last
            self._stamp = stamp
        return self._read_last

    def _read(self) -> Mapping[str, str]:
        if self._path.is_dir():
            return {one.name: _reason(one.read_text("utf-8-sig", "replace")) for one in sorted(self._path.iterdir())}
        lines = (line.split(maxsplit=1) for line in self._path.read_text("utf-8-sig", "replace").splitlines())
        return {fields[0]: _reason("".join(fields[1:])) for fields in lines if fields}


def _reason(text: str) -> str:
    return " ".join(text.split()) or "a verdict, without a reason"


class Nodes:
    """Verdicts and Slurm's states can be withdrawn; what the launcher saw counts for the whole allocation."""

    def __init__(self, names: Sequence[str], sources: Sequence[Verdicts], events: Events) -> None:
        """`sources`: where several condemn a node, the reason of the last one counts."""
        self.names = tuple(names)
        self._sources = sources
        self._events = events
        self._lost: dict[str, str] = {}
        self._away: set[str] = set()
        """Lost nodes that disconnected or fell silent, and may come back. The others are bad."""
        self._barred: dict[str, float] = {}
        """Node where Slurm could not start a seat → when it is tried again. Ranks that run there may continue."""
        self._reported: dict[str, str] = {}

    def condemned(self) -> dict[str, str]:
        """Nodes on which nothing may run."""
        return self._condemned_by_others() | self._lost

    def _condemned_by_others(self) -> dict[str, str]:
        return {node: why for source in self._sources for node, why in source.poll().items()}

    def unusable(self) -> dict[str, str]:
        """Nodes on which nothing may be started."""
        now = time.monotonic()
        self._barred = {node: until for node, until in self._barred.items() if until > now}
        return {**dict.fromkeys(self._barred, "Slurm cannot start anything there"), **self.condemned()}

    def usable(self) -> list[str]:
        out = self.unusable()
        return [node for node in self.names if node not in out]

    def probe_candidates(self) -> list[str]:
        """Nodes that were unreachable when they were lost, and that no other source condemns: they may be back."""
        others = self._condemned_by_others()
        return [node for node in self._lost if node in self._away and node not in others]

    def lose(self, node: str, why: str, away: bool) -> None:
        """`away`: it cannot be reached. The first reason counts."""
        if node not in self._lost:
            self._lost[node] = why
            if away:
                self._away.add(node)

    def remember(self) -> tuple[dict[str, str], frozenset[str], dict[str, float]]:
        return dict(self._lost), frozenset(self._away), dict(self._barred)

    def resume(self, lost: Mapping[str, str], away: Iterable[str], barred: Mapping[str, float]) -> None:
        self._lost, self._away, self._barred = dict(lost), set(away), dict(barred)

    def find_again(self, node: str) -> None:
        self._lost.pop(node, None)
        self._away.discard(node)

    def bar(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._barred[node] = time.monotonic() + BARRED_SECONDS
            message = (
                f"{node}: Slurm could not start a seat there; not tried again for {BARRED_SECONDS / 60:.0f} minutes"
            )
            self._events.report("barred", message, node=node)

    def blame(self, blamed: Mapping[str, str], away: Container[str] = ()) -> None:
        """A launch ended because of these nodes, which was reported. Another source may withdraw its own verdict."""
        others = self._condemned_by_others()
        for node, why in blamed.items():
            if node not in self._barred:
                self._reported[node] = why
                if node not in others:
                    self.lose(node, why, node in away)

    def report_changes(self, seats: Sequence[str]) -> None:
        """Reports spares only: the report of a launch's end names the gang's own nodes."""
        condemned = self.condemned()
        for node, why in condemned.items():
            if node not in self._reported and node in self.names and node not in seats:
                self._events.report("spare_bad", f"spare {node} is not used any more: {why}", node=node, why=why)
        for node in self._reported.keys() - condemned.keys():
            self._events.report("node_good", f"{node} can be used again", node=node)
        self._reported = condemned
