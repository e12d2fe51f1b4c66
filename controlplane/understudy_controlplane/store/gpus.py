"""GPUs, and the nodes in which they sat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from sqlalchemy import Connection, Engine, Row, bindparam, select, tuple_, update

from understudy_controlplane.fleet.gpu import MovedGpu, Replacement
from understudy_controlplane.fleet.provider import Ask
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import ID_MAX, insert_new, reading
from understudy_wire.hardware import Gpu

_SEATS = (
    select(tables.gpu_seen)
    .where(tables.gpu_seen.c.uuid.in_(bindparam("uuids", expanding=True)))
    .order_by(tables.gpu_seen.c.last_seen_at, tables.gpu_seen.c.id)
)
_SEE_AGAIN = update(tables.gpu_seen).where(tables.gpu_seen.c.id == bindparam("this"))


_STAYS = select(
    tables.gpu_seen.c.node, tables.gpu_seen.c.uuid, tables.gpu_seen.c.first_seen_at, tables.gpu_seen.c.last_seen_at
).where(tables.gpu_seen.c.node.in_(bindparam("nodes", expanding=True)))

_ASKED = select(tables.ticket.c.node, tables.ticket.c.opened_at).where(
    tables.ticket.c.body["provider", "asked"].as_string() == Ask.REPLACE.value,
    tables.ticket.c.body["provider", "ticket"].as_string() != "",
)
"""Questions that the provider has accepted: without its ticket it has not."""

_ASKED_OF = _ASKED.where(tables.ticket.c.node.in_(bindparam("nodes", expanding=True)))

REPLACED_GPUS_MIN = 2
"""One GPU that is another one may have been changed alone."""


class GpuStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def moved_gpus(self, seen: Mapping[str, Sequence[Gpu]]) -> list[MovedGpu]:
        """GPUs seen in these nodes now that were last recorded in another node. Called before `see_gpus`."""
        with reading(self._engine) as connection:
            known = _seats(connection, seen)
        return [
            _moved(node, gpu, rows)
            for node, gpus in seen.items()
            for gpu in _named(gpus).values()
            if (rows := known.get(gpu.uuid)) and rows[-1].node != node
        ]

    def replacements(self, seen: Mapping[str, Sequence[Gpu]], now: float) -> dict[str, Replacement]:
        """Those of these nodes that are another machine by what is seen now. See `_replacement`."""
        with reading(self._engine) as connection:
            asked = _by_node(connection.execute(_ASKED_OF, {"nodes": [*seen]}))
            return _replacements(connection, asked, seen, now)

    def known_replacements(self) -> tuple[dict[str, Replacement], frozenset[str]]:
        """Those of all nodes, by what was recorded last, and the nodes whose replacement was ever accepted."""
        with reading(self._engine) as connection:
            asked = _by_node(connection.execute(_ASKED))
            return _replacements(connection, asked, {}, 0.0), frozenset(asked)

    def see_gpus(self, seen: Mapping[str, Sequence[Gpu]], now: float) -> None:
        """Record, for each node, the GPUs that sit in it now."""
        new: list[dict[str, Any]] = []
        alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}  # by the columns that they change
        with self._engine.begin() as connection:
            known = _seats(connection, seen)
            for node, gpus in seen.items():
                named = _named(gpus)
                here = {uuid: row for uuid in named for row in known.get(uuid, ()) if row.node == node}
                new += [_seat(node, gpu, now) for uuid, gpu in named.items() if uuid not in here]
                for uuid, row in here.items():
                    news = {"last_seen_at": now, **_news(row, named[uuid])}
                    alike.setdefault(tuple(news), []).append({"this": row.id, **news})
            insert_new(connection, tables.gpu_seen, new)
            for rows in alike.values():
                connection.execute(_SEE_AGAIN, rows)

    def gpus(
        self, limit: int, before_at: float = inf, before_id: int = ID_MAX, node: str | None = None
    ) -> list[dict[str, Any]]:
        """Places of each GPU, newest sight first."""
        table = tables.gpu_seen
        at, number = table.c.last_seen_at, table.c.id
        query = select(table).where(tuple_(at, number) < tuple_(before_at, before_id))
        if node is not None:
            query = query.where(table.c.node == node)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(at.desc(), number.desc()).limit(limit)).mappings()
            return [dict(row) for row in rows]


def _by_node(rows: Iterable[Row[Any]]) -> dict[str, list[Row[Any]]]:
    found: dict[str, list[Row[Any]]] = {}
    for row in rows:
        found.setdefault(row.node, []).append(row)
    return found


def _replacements(
    connection: Connection, asked: Mapping[str, Sequence[Row[Any]]], seen: Mapping[str, Sequence[Gpu]], now: float
) -> dict[str, Replacement]:
    recorded = _by_node(connection.execute(_STAYS, {"nodes": [*asked]})) if asked else {}
    found: dict[str, Replacement] = {}
    for node, questions in asked.items():
        stays = {row.uuid: (row.first_seen_at, row.last_seen_at) for row in recorded.get(node, ())}
        stays |= {uuid: (stays.get(uuid, (now, now))[0], now) for uuid in _named(seen.get(node, ()))}
        replacement = _replacement([*stays.values()], [one.opened_at for one in questions])
        if replacement is not None:
            found[node] = replacement
    return found


def _replacement(stays: Sequence[tuple[float, float]], asked: Sequence[float]) -> Replacement | None:
    """The newest machine under a name, if it is not the first. `stays`: from when to when each GPU was seen there.

    GPUs that were ever there together, or each with a third one, are of one machine, which a person may have repaired.
    Where all GPUs of before were gone when the next ones came, those are another machine if the provider had accepted
    to replace the machine that was there, and the same one otherwise: a person may have swapped all of them.
    """
    found: Replacement | None = None
    machine_since = min((first for first, _ in stays), default=0.0)
    for group in _together(stays):
        since = group[0][0]
        question = max((at for at in asked if machine_since <= at < since), default=None)
        if question is not None and len(group) >= REPLACED_GPUS_MIN:
            found, machine_since = Replacement(question, since), since
    return found


def _together(stays: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """GPUs that were there together, the oldest ones first."""
    groups: list[list[tuple[float, float]]] = []
    until = 0.0
    for first, last in sorted(stays):
        if not groups or first > until:
            groups.append([])
        groups[-1].append((first, last))
        until = max(until, last)
    return groups


def _named(gpus: Sequence[Gpu]) -> dict[str, Gpu]:
    """GPUs that have a UUID, by it and in its order."""
    return {gpu.uuid: gpu for gpu in sorted(gpus, key=lambda gpu: gpu.uuid) if gpu.uuid}


def _seats(connection: Connection, seen: Mapping[str, Sequence[Gpu]]) -> dict[str, list[Row[Any]]]:
    """GPU → where it was recorded, the newest place last."""
    uuids = sorted({uuid for gpus in seen.values() for uuid in _named(gpus)})
    found: dict[str, list[Row[Any]]] = {}
    for row in connection.execute(_SEATS, {"uuids": uuids}) if uuids else ():
        found.setdefault(row.uuid, []).append(row)
    return found


def _moved(node: str, gpu: Gpu, rows: Sequence[Row[Any]]) -> MovedGpu:
    serial, faults = gpu.serial or rows[-1].serial, sum(row.faults for row in rows)
    return MovedGpu(gpu.uuid, serial, gpu.bus_id, node, rows[-1].node, faults)


def _seat(node: str, gpu: Gpu, now: float) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "node": node,
        **{name: getattr(gpu, name) for name in _IDENTITY},
        "first_seen_at": now,
        "last_seen_at": now,
    }


_IDENTITY = ("serial", "name", "bus_id", "board_part_number")


def _news(row: Row[Any], gpu: Gpu) -> dict[str, str]:
    """Identity of this GPU that is new or changed, as in another slot. A GPU that fails reports little of it."""
    known = {name: str(getattr(gpu, name)) for name in _IDENTITY}
    return {name: text for name, text in known.items() if text and text != getattr(row, name)}
