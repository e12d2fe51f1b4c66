"""Packs the shards of checkpoints that are written: from a row each to one value for each checkpoint."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, and_, case, func, or_, select, update

from understudy_controlplane.fleet.job import Condition
from understudy_controlplane.store import tables
from understudy_controlplane.store.checkpoints import (
    WRITTEN_OVER_WHY,
    is_complete,
    of_row,
    over_on_one_path,
    shards_of,
)
from understudy_controlplane.store.database import Columns, Store, insert_or_update, number_in_order, reading
from understudy_controlplane.store.shard_map import pack

UNFINISHED_SECONDS = 3600.0
"""After its last shard a checkpoint that is not complete is packed as it is."""

AT_ONCE = 100

RECORDED_OVER = [one.value for one in Condition if not one.is_gone]


class PackingStore(Store):
    """Packing changes nothing of what is known: a shard may be in the map and in its row. `store.retention` deletes the
    rows of packed shards, a few at a time.
    """

    def pack(self, now: float) -> int:
        """How many checkpoints were packed, of those that are complete or that nothing is added to any more."""
        table = tables.checkpoint
        due = or_(is_complete(), table.c.at < now - UNFINISHED_SECONDS)
        query = select(table).where(table.c.packed.is_(False), due).order_by(table.c.at).limit(AT_ONCE)
        rows = self._rows(query)
        for row in rows:
            self._pack(row)
        return len(rows)

    def _pack(self, row: Row[Any]) -> None:
        """Reads and packs before the transaction that writes: with 100,000 ranks it takes a second."""
        table = tables.checkpoint_shard
        with reading(self._engine) as connection:
            through = connection.execute(select(func.max(table.c.id)).where(*of_row(row))).scalar() or 0
            shards = shards_of(connection, row)
        packed = {"checkpoint": row.id, "packed_through": through, "shards": pack(shards)}
        more = select(table.c.id).where(*of_row(row), table.c.id > through).limit(1)
        with self._engine.begin() as connection:
            number_in_order(connection)
            insert_or_update(connection, tables.checkpoint_map, ("checkpoint",), packed, _newer_map)
            if connection.execute(more).first() is None:  # else a shard came while the map was made
                mark = update(tables.checkpoint).where(tables.checkpoint.c.id == row.id)
                connection.execute(mark.values(packed=True))
        self._record_written_over(row)

    def _record_written_over(self, row: Row[Any]) -> None:
        """Records the job's checkpoints on this path that another one has written over: a path that is used again each
        time would else cost a look into each map whenever a restore point is chosen.
        """
        table = tables.checkpoint
        same = and_(table.c.job == row.job, table.c.path == row.path, table.c.condition != Condition.WRITTEN_OVER.value)
        with reading(self._engine) as connection:
            rows = connection.execute(select(table).where(same)).all()
            over = over_on_one_path(connection, rows) if len(rows) > 1 else set()
        if over:
            found = and_(table.c.id.in_(over), table.c.packed, table.c.condition.in_(RECORDED_OVER))
            why = {"condition": Condition.WRITTEN_OVER.value, "condition_why": WRITTEN_OVER_WHY}
            self._write(update(table).where(found).values(why))


def _newer_map(stored: Columns, new: Columns) -> dict[str, object]:
    return {
        "packed_through": case(
            (stored.packed_through < new.packed_through, new.packed_through), else_=stored.packed_through
        ),
        "shards": new.shards,
    }
