"""Sights of boards, network cards, cables and modules: which was in which node, from when to when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from sqlalchemy import bindparam, select, tuple_, update

from understudy_controlplane.store import tables
from understudy_controlplane.store.database import ID_MAX, Store, insert_new
from understudy_wire.hardware import Part

_SEEN = tables.part_seen
_KNOWN = select(_SEEN.c.id, _SEEN.c.kind, _SEEN.c.identity, _SEEN.c.node).where(
    _SEEN.c.identity.in_(bindparam("identities", expanding=True))
)
_SEE_AGAIN = (
    update(_SEEN)
    .where(_SEEN.c.id == bindparam("this"))
    .values(place=bindparam("place"), model=bindparam("model"), last_seen_at=bindparam("last_seen_at"))
)

IDENTITY_CHARACTERS_MAX, TEXT_CHARACTERS_MAX = 128, 255


class PartStore(Store):
    def see(self, seen: Mapping[str, Sequence[Part]], now: float) -> None:
        """Record, for each node, the parts that are in it now. One without a serial number or GUID is not recorded."""
        here = {
            (part.kind.value, identity, node): part
            for node, parts in seen.items()
            for part in parts
            if (identity := identity_of(part))
        }
        if not here:
            return
        with self._engine.begin() as connection:
            rows = connection.execute(_KNOWN, {"identities": sorted({identity for _, identity, _ in here})})
            known = {(row.kind, row.identity, row.node): row.id for row in rows}
            again = [
                {"this": known[key], "last_seen_at": now, **_shown(part)} for key, part in here.items() if key in known
            ]
            if again:
                connection.execute(_SEE_AGAIN, again)
            new = [
                {
                    "kind": kind,
                    "identity": identity,
                    "node": node,
                    "first_seen_at": now,
                    "last_seen_at": now,
                    **_shown(part),
                }
                for (kind, identity, node), part in here.items()
                if (kind, identity, node) not in known
            ]
            insert_new(connection, _SEEN, new)

    def places(
        self,
        limit: int,
        before_at: float = inf,
        before_id: int = ID_MAX,
        node: str | None = None,
        identity: str | None = None,
    ) -> list[dict[str, Any]]:
        """Places where each part was seen, newest sight first. `identity`: only this part."""
        at, number = _SEEN.c.last_seen_at, _SEEN.c.id
        query = select(_SEEN).where(tuple_(at, number) < tuple_(before_at, before_id))
        if node is not None:
            query = query.where(_SEEN.c.node == node)
        if identity is not None:
            query = query.where(_SEEN.c.identity == identity)
        rows = self._mappings(query.order_by(at.desc(), number.desc()).limit(limit))
        return [dict(row) for row in rows]


def identity_of(part: Part) -> str:
    """Its serial number, else its GUID; empty: neither is known."""
    return (part.serial or part.guid)[:IDENTITY_CHARACTERS_MAX]


def _shown(part: Part) -> dict[str, str]:
    return {"place": part.place[:TEXT_CHARACTERS_MAX], "model": part.model[:TEXT_CHARACTERS_MAX]}
