"""Counts what agents of other releases send and this release does not know."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

NAMES_MAX = 256
"""Names that are remembered, so that each is logged once."""


class WireUnknown:
    """Every method is safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._names: set[str] = set()

    def note(self, unknown: Iterable[str]) -> list[str]:
        """`unknown` as understudy_wire.unknown names it. Returns the names that were not seen before."""
        new = []
        with self._lock:
            for name in unknown:
                self._totals[name.partition(" ")[0]] += 1
                if name not in self._names and len(self._names) < NAMES_MAX:
                    self._names.add(name)
                    new.append(name)
        return new

    def totals(self) -> dict[str, int]:
        """Occurrences by what they are: "field", "value" or "kind"."""
        with self._lock:
            return dict(self._totals)
