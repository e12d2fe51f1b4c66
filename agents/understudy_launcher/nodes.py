"""Which nodes of the allocation can be used, as of now, and why the others cannot.

Belongs here: joining verdicts, Slurm's node states and what the launcher saw itself. Must not: what happens to a
launch.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping, Sequence

from understudy_launcher.events import Events
from understudy_launcher.slurm import NodeStates
from understudy_launcher.verdicts import Verdicts

BARRED_SECONDS = 600.0


class Nodes:
    """Verdicts and Slurm's states can be withdrawn; what the launcher saw counts for the whole allocation."""

    def __init__(self, names: Sequence[str], verdicts: Verdicts, node_states: NodeStates, events: Events) -> None:
        self.names = tuple(names)
        self._verdicts = verdicts
        self._node_states = node_states
        self._events = events
        self._lost: dict[str, str] = {}
        self._away: set[str] = set()
        """Those of them that disconnected or fell silent, and may come back. The others are bad."""
        self._barred: dict[str, float] = {}
        """Node where Slurm could not start a seat → when it is tried again. Ranks that run there may continue."""
        self._reported: dict[str, str] = {}

    def condemned(self) -> dict[str, str]:
        """Nodes on which nothing may run."""
        return {**self._node_states.poll(), **self._verdicts.poll(), **self._lost}

    def unusable(self) -> dict[str, str]:
        """Nodes on which nothing may be started."""
        now = time.monotonic()
        self._barred = {node: until for node, until in self._barred.items() if until > now}
        return {**dict.fromkeys(self._barred, "Slurm cannot start anything there"), **self.condemned()}

    def usable(self) -> list[str]:
        """In the allocation's order."""
        out = self.unusable()
        return [node for node in self.names if node not in out]

    def probe_candidates(self) -> list[str]:
        """Nodes that were unreachable when they were lost, and that no other source condemns: they may be back."""
        others = {**self._node_states.poll(), **self._verdicts.poll()}
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
        others = {**self._verdicts.poll(), **self._node_states.poll()}
        for node, why in blamed.items():
            if node not in self._barred:
                self._reported[node] = why
                if node not in others:
                    self.lose(node, why, node in away)

    def report_changes(self, seats: Sequence[str]) -> None:
        """Of spares only: the report of a launch's end names the gang's own nodes."""
        condemned = self.condemned()
        for node, why in condemned.items():
            if node not in self._reported and node in self.names and node not in seats:
                self._events.report("spare_bad", f"spare {node} is not used any more: {why}", node=node, why=why)
        for node in self._reported.keys() - condemned.keys():
            self._events.report("node_good", f"{node} can be used again", node=node)
        self._reported = condemned
