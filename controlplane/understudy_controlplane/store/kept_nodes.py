"""Records of all nodes, kept in memory: to read thousands of rows in each round takes longer than to judge them.

The control plane that leads is the only writer of these tables, and writes through one engine. Each statement of this
engine that writes to them is noticed (`written`), and the rows that it names are read again; where it names none, all
are. So they are after an error of the database: another server may answer from then on, and lack what was written last.
Once a minute the loop notes which agents it has heard, so that the rows of their nodes are read as often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Delete, Engine, ExceptionContext, Insert, Select, Update, bindparam, event, select

from understudy_controlplane.fleet.node import NodeRecord
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import reading
from understudy_controlplane.store.node_records import read_records

NAMED_AT_ONCE = 1_000
"""More rows than that are read with all others."""

NAMES_OF_NODES = ("of_node", "of_names", "name", "node")
"""Parameters that name the rows which a statement writes. Without one, all rows may change."""

_TABLES = (tables.node, tables.suspicion)
_ALL = select(tables.node)
_NAMED = _ALL.where(tables.node.c.name.in_(bindparam("names", expanding=True)))


class Written:
    """Counts the statements of an engine that wrote to records of nodes. One thread writes them: the loop's."""

    def __init__(self, engine: Engine) -> None:
        self.count = 0
        self.all_at = 0
        self.same_server: object = object()
        """Another one after each error, which any thread may see."""
        self._at: dict[str, int] = {}
        event.listen(engine, "handle_error", self._handle_error)
        event.listen(engine, "after_execute", self._after_execute)

    def names_since(self, count: int) -> list[str]:
        return [name for name, at in self._at.items() if at > count]

    def _handle_error(self, _context: ExceptionContext) -> None:
        self.same_server = object()

    def _after_execute(
        self,
        _connection: Connection,
        statement: object,
        many: Sequence[Mapping[str, Any]],
        one: Mapping[str, Any],
        _options: object,
        _result: object,
    ) -> None:
        if not isinstance(statement, Insert | Update | Delete) or statement.table not in _TABLES:
            return
        self.count += 1
        for values in many or [one]:
            names = [*_named_by(values)]
            if not names:
                self.all_at = self.count
            self._at.update(dict.fromkeys(names, self.count))


def _named_by(values: Mapping[str, Any]) -> Iterator[str]:
    for parameter in NAMES_OF_NODES:
        named = values.get(parameter, ())
        yield from (named,) if isinstance(named, str) else named


_written: WeakKeyDictionary[Engine, Written] = WeakKeyDictionary()


def written(engine: Engine) -> Written:
    """What was written through this engine since this was called first."""
    found = _written.get(engine)
    if found is None:
        found = _written[engine] = Written(engine)
    return found


class KeptNodes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._written = written(engine)
        self._read_at = -1
        """Statements that had written when the records were read last."""
        self._same_server = self._written.same_server
        self._records: dict[str, NodeRecord] = {}

    def records(self) -> dict[str, NodeRecord]:
        """The records that the table has. One that is as it was is the same object. No row is ever deleted."""
        count, same_server = self._written.count, self._written.same_server
        names = self._written.names_since(self._read_at) if count > self._read_at else []
        if same_server is not self._same_server or self._read_at < self._written.all_at or len(names) > NAMED_AT_ONCE:
            self._records = self._read(_ALL)
        elif names:
            self._records |= self._read(_NAMED, names)
        self._read_at, self._same_server = count, same_server
        return dict(self._records)

    def _read(self, query: Select[Any], names: Sequence[str] | None = None) -> dict[str, NodeRecord]:
        with reading(self._engine) as connection:
            found = read_records(connection, query, None if names is None else {"names": names})
        before = self._records
        return {new.name: old if (old := before.get(new.name)) == new else new for new in found}
