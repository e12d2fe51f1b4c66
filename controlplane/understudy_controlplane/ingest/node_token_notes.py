"""What became of agents' requests for tokens, counted until it goes into the audit.

12,500 agents renew their tokens each hour, and any client can have a request refused. So each of the three kinds of
entries is written once an hour at most, and the first after a quiet hour soon.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.hostlist import compress

ENTRY_SECONDS = 3600.0
REFUSALS_MAX = 20
"""Causes that an entry names; further ones are counted together. Bounds what an unauthenticated client can cause in an
hour.
"""

Refusal = tuple[str, str, str]
"""Node that was claimed, address, error."""


class NodeTokenNotes:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._issued: set[str] = set()
        self._renewed: set[str] = set()
        self._refused: Counter[Refusal] = Counter()
        self._refused_others = 0
        self._written_at: dict[str, float] = {}

    def note_token(self, node: str, renewed: bool) -> None:
        with self._lock:
            (self._renewed if renewed else self._issued).add(node)

    def note_refusal(self, node: str, address: str, error: str) -> None:
        refusal = node, address, error
        with self._lock:
            if refusal in self._refused or len(self._refused) < REFUSALS_MAX:
                self._refused[refusal] += 1
            else:
                self._refused_others += 1

    def take(self, now: float, all_of_it: bool = False) -> list[AuditEntry]:
        """The entries that are due, and begins to count again."""
        kinds: tuple[tuple[str, Callable[[], tuple[str, dict[str, Json]] | None]], ...] = (
            ("issue", lambda: _of_nodes(self._issued)),
            ("renew", lambda: _of_nodes(self._renewed)),
            ("refuse", self._of_refusals),
        )
        entries: list[AuditEntry] = []
        with self._lock:
            for action, take in kinds:
                if not all_of_it and now - self._written_at.get(action, float("-inf")) < ENTRY_SECONDS:
                    continue
                taken = take()
                if taken is not None:
                    self._written_at[action] = now
                    subject, after = taken
                    entries.append(AuditEntry(now, "munge", "node", "", f"node token {action}", subject, "", {}, after))
        return entries

    def _of_refusals(self) -> tuple[str, dict[str, Json]] | None:
        if not self._refused:
            return None
        count = self._refused.total() + self._refused_others
        shown: list[Json] = [
            {"node": node, "address": address, "error": error, "requests": requests}
            for (node, address, error), requests in self._refused.most_common()
        ]
        after: dict[str, Json] = {"refused": shown, "other_requests": self._refused_others}
        self._refused.clear()
        self._refused_others = 0
        return f"{counted(count, 'request')}", after


def _of_nodes(nodes: set[str]) -> tuple[str, dict[str, Json]] | None:
    if not nodes:
        return None
    after: dict[str, Json] = {"nodes": compress(nodes)}
    subject = f"node {next(iter(nodes))}" if len(nodes) == 1 else f"{len(nodes)} nodes"
    nodes.clear()
    return subject, after
