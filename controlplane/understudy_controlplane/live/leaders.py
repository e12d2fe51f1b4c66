"""What agents report of other control planes that answer them. Safe from any thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import inf

from understudy_controlplane.decide.leadership import AGENTS_SECONDS, WORDS_SECONDS, Word, is_other, other_leader
from understudy_controlplane.fleet.holder import Leader, OtherLeader
from understudy_wire.leader import HeardLeader

OTHER_SECONDS = 0.5
"""The answer holds for this time. It goes through all nodes, and each report asks for it."""


class Leaders:
    """All times are of a clock that is never set."""

    def __init__(self, own: Leader) -> None:
        self.own = own
        self._lock = threading.Lock()
        self.reports = 0
        self.before = 0
        """Agents that a leader heard shortly before this control plane started."""
        self._spoke_at: dict[str, float] = {}
        self._words: dict[str, Word] = {}
        """Node → the other control plane that its newest report names."""
        self._other: OtherLeader | None = None
        self._known_until = -inf  # the answer

    def note(self, node: str, answering: Sequence[HeardLeader], now: float) -> str:
        """`answering`: as its report names them. Returns the address of the other one that the node follows; empty: it
        follows this one.
        """
        others = [one for one in answering if is_other(one, self.own)]
        with self._lock:
            self.reports += 1
            self._spoke_at[node] = now
            before = self._words.pop(node, None)
            if others:
                self._words[node] = Word(node, others[0], before.since if before is not None else now)
            if bool(others) is not (before is not None):
                self._known_until = -inf
        return others[0].url if others and others[0] is answering[0] else ""

    @property
    def nodes(self) -> int:
        """Nodes whose agents have reported to this control plane."""
        return len(self._spoke_at)

    def other(self, now: float) -> OtherLeader | None:
        with self._lock:
            if not self._words:
                return None
            if now >= self._known_until:
                self._spoke_at = {node: at for node, at in self._spoke_at.items() if now - at < AGENTS_SECONDS}
                self._words = {
                    node: word
                    for node, word in self._words.items()
                    if now - self._spoke_at.get(node, -inf) < WORDS_SECONDS
                }
                self._other = other_leader([*self._words.values()], len(self._spoke_at), self.own, now)
                self._known_until = now + OTHER_SECONDS
            return self._other
