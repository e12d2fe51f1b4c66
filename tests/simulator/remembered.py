"""Reading methods of the stores, asked again only when a table has changed that they read.

A simulation is shorter than every period for which the control plane looks back, so how far it looks makes no
difference.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

StoreT = TypeVar("StoreT")

ENDS_BY_ITSELF = frozenset({"live"})
"""Methods of which the answer ends with time, unless it is empty."""

_READS = re.compile(r"(?:FROM|JOIN) (\w+)")
_WRITES = re.compile(r"(?:INSERT (?:OR \w+ )?INTO|UPDATE|DELETE FROM) (\w+)")


class Tables:
    """How often each table was written, and which ones are being read."""

    def __init__(self) -> None:
        self.written: dict[str, int] = {}
        self.writes = 0
        self.reading: set[str] = set()
        self.epoch = 0
        """What was remembered in an earlier one is forgotten: the clock was set."""
        self.before_call: Callable[[], None] = lambda: None

    def note(self, statement: str) -> None:
        read, written = _named(statement)
        self.reading.update(read)
        for table in read:
            self.written.setdefault(table, 0)
        for table in written:
            self.written[table] = self.written.get(table, 0) + 1
            self.writes += 1


@functools.cache
def _named(statement: str) -> tuple[list[str], list[str]]:
    return _READS.findall(statement), _WRITES.findall(statement)


class Remembered:
    def __init__(self, store: object, tables: Tables) -> None:
        self._store = store
        self._tables = tables
        self._answers: dict[tuple[Any, ...], tuple[Any, dict[str, int]]] = {}
        """What was answered, and how often the tables that it is made of had been written by then."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self._tables.before_call()
            key = (self._tables.epoch, name, *(None if isinstance(one, float) else one for one in arguments))
            if named or not _hashable(key):
                return method(*arguments, **named)
            known = self._answers.get(key)
            written = self._tables.written
            if known is not None and known[1].items() <= written.items():
                return known[0]
            before, self._tables.reading = self._tables.writes, set()
            answer = method(*arguments)
            if self._tables.writes == before and self._tables.reading and not (name in ENDS_BY_ITSELF and answer):
                self._answers[key] = (answer, {table: written[table] for table in self._tables.reading})
            return answer

        self.__dict__[name] = call
        return call


def remembered(store: StoreT, tables: Tables) -> StoreT:
    return cast(StoreT, Remembered(store, tables))


def _hashable(key: tuple[Any, ...]) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True
