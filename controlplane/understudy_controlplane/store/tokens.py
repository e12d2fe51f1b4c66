"""Tokens: only digests of their secrets, never the secrets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, insert, or_, select, update

from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import OF_NODES, Role, Token
from understudy_controlplane.store import tables
from understudy_controlplane.store.audit import append
from understudy_controlplane.store.database import Store, insert_new

_table = tables.token


@dataclass(frozen=True, slots=True)
class NewToken:
    """`digest` is SHA-256 of the secret, in hexadecimal."""

    digest: str
    role: Role
    label: str
    node: str
    made_at: float
    made_by: str
    expires_at: float
    session_of: int | None = None


class TokenStore(Store):
    def add(self, tokens: Iterable[NewToken], audit: AuditEntry | None = None) -> None:
        """All of them or none."""
        with self._engine.begin() as connection:
            _add(connection, tokens)
            if audit is not None:
                append(connection, audit)

    def add_for_node(self, token: NewToken) -> bool:
        """Returns true if the node had a valid one. Its expired tokens are deleted."""
        valid = (_table.c.node == token.node, _table.c.expires_at >= token.made_at, _table.c.revoked_at.is_(None))
        with self._engine.begin() as connection:
            had_one = connection.execute(select(_table.c.id).where(*valid).limit(1)).first() is not None
            expired = _table.c.expires_at < token.made_at
            connection.execute(delete(_table).where(_table.c.node == token.node, expired))
            _add(connection, [token])
        return had_one

    def add_session(self, session: NewToken, sessions_max: int, audit: AuditEntry) -> dict[str, int]:
        """Deletes the sessions of the same token that have ended, and the oldest ones above `sessions_max`; returns
        their digests and ids. SQLite gives the same ids to later rows.
        """
        of_token = _table.c.session_of == session.session_of
        valid = and_(_table.c.revoked_at.is_(None), _table.c.expires_at > session.made_at)
        with self._engine.begin() as connection:
            query = select(_table.c.id, _table.c.digest, valid).where(of_token).order_by(_table.c.id)
            rows = connection.execute(query).all()
            kept = [row.id for row in rows if row[2]][-(sessions_max - 1) :]
            gone = [row for row in rows if row.id not in kept]
            connection.execute(delete(_table).where(_table.c.id.in_([row.id for row in gone])))
            _add(connection, [session])
            append(connection, audit)
        return {row.digest: row.id for row in gone}

    def exchange(self, code: int, token: NewToken, audit: AuditEntry) -> bool:
        """The token for a one-time code. False, and no token, where the code is used up or the node is barred."""
        barred = select(tables.barred_node.c.node).where(tables.barred_node.c.node == token.node).exists()
        unused = (_table.c.id == code, _table.c.revoked_at.is_(None), ~barred)
        with self._engine.begin() as connection:
            used = update(_table).where(*unused).values(revoked_at=token.made_at, revoked_by=token.label)
            if connection.execute(used).rowcount != 1:
                return False
            _add(connection, [token])
            append(connection, audit)
        return True

    def find(self, digest: str) -> Token | None:
        """The token of this digest, valid or not."""
        row = self._first(select(_table).where(_table.c.digest == digest))
        return _token(row) if row is not None else None

    def valid(self, now: float) -> dict[str, Token]:
        """Valid tokens by digest."""
        query = select(_table).where(_table.c.revoked_at.is_(None), _table.c.expires_at > now)
        return {row.digest: _token(row) for row in self._rows(query)}

    def all(self) -> list[Token]:
        """Oldest first."""
        return [_token(row) for row in self._rows(select(_table).order_by(_table.c.id))]

    def of_people(self, since: float) -> list[Token]:
        """Those of people and programs, without sessions, that are not revoked and end after `since`."""
        roles = [role.value for role in Role if role not in OF_NODES]
        is_token = _table.c.session_of.is_(None)
        query = select(_table).where(
            _table.c.role.in_(roles), _table.c.revoked_at.is_(None), _table.c.expires_at > since, is_token
        )
        return [_token(row) for row in self._rows(query)]

    def revoked(self, now: float) -> frozenset[int]:
        """Ids of revoked tokens that would be valid otherwise."""
        query = select(_table.c.id).where(_table.c.revoked_at.is_not(None), _table.c.expires_at > now)
        return frozenset(self._scalars(query))

    def revoke(self, ids: Iterable[int], by: str, now: float, audit: AuditEntry | None = None) -> None:
        """Revokes them with the sessions made from them. A token that is revoked already stays as it is."""
        chosen = list(ids)
        with self._engine.begin() as connection:
            connection.execute(
                update(_table)
                .where(or_(_table.c.id.in_(chosen), _table.c.session_of.in_(chosen)), _table.c.revoked_at.is_(None))
                .values(revoked_at=now, revoked_by=by)
            )
            if audit is not None:
                append(connection, audit)

    def bar(self, node: str, by: str, now: float) -> None:
        """The node gets no token until it is allowed again; those that it has are revoked."""
        of_node = (_table.c.node == node, _table.c.revoked_at.is_(None))
        with self._engine.begin() as connection:
            connection.execute(update(_table).where(*of_node).values(revoked_at=now, revoked_by=by))
            insert_new(connection, tables.barred_node, [{"node": node, "at": now, "by": by}])
            append(connection, AuditEntry.on_host(by, now, "token revoke", f"node {node}"))

    def allow(self, node: str, by: str, now: float) -> bool:
        """Returns true if the node was barred."""
        with self._engine.begin() as connection:
            table = tables.barred_node
            append(connection, AuditEntry.on_host(by, now, "token allow", f"node {node}"))
            return bool(connection.execute(delete(table).where(table.c.node == node)).rowcount)

    def is_barred(self, node: str) -> bool:
        table = tables.barred_node
        return self._first(select(table.c.node).where(table.c.node == node)) is not None

    def note_use(self, token: int, now: float) -> None:
        self._write(update(_table).where(_table.c.id == token).values(last_used_at=now))


def _add(connection: Connection, tokens: Iterable[NewToken]) -> None:
    rows = [
        {
            "digest": one.digest,
            "role": one.role.value,
            "label": one.label,
            "node": one.node,
            "made_at": one.made_at,
            "made_by": one.made_by,
            "expires_at": one.expires_at,
            "session_of": one.session_of,
        }
        for one in tokens
    ]
    connection.execute(insert(_table), rows)


def _token(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        role=Role(row.role),
        label=row.label,
        node=row.node,
        made_at=row.made_at,
        made_by=row.made_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        revoked_by=row.revoked_by,
        last_used_at=row.last_used_at,
        session_of=row.session_of,
    )
