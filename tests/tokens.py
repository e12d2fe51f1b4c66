"""Tokens for tests: one for each role, and one for each node that a test names."""

from __future__ import annotations

from collections.abc import Iterable

from tests import builders as b
from understudy_controlplane.access.admission import Admission
from understudy_controlplane.access.secret import digest_of
from understudy_controlplane.access.tokens import Tokens
from understudy_controlplane.clock import Clock
from understudy_controlplane.fleet.identity import OF_NODES, STORED, Role
from understudy_controlplane.store.database import Engine, open_database
from understudy_controlplane.store.tokens import NewToken, TokenStore

PEOPLE = tuple(role for role in STORED if role not in OF_NODES)
FOREVER = 1e10


def secret(role: Role, node: str = "") -> str:
    return f"understudy_secret-of-{role.value}-{node or 'all'}-in-tests"


def bearer(role: Role, node: str = "") -> dict[str, str]:
    return {"Authorization": f"Bearer {secret(role, node)}"}


def add_tokens(engine: Engine, nodes: Iterable[str] = ()) -> None:
    """The label of a token is its role, or its node."""
    TokenStore(engine).add(
        [
            *(NewToken(digest_of(secret(role)), role, role.value, "", b.NOW, "a test", FOREVER) for role in PEOPLE),
            *(
                NewToken(digest_of(secret(Role.NODE, node)), Role.NODE, node, node, b.NOW, "a test", FOREVER)
                for node in nodes
            ),
        ]
    )


def with_tokens(url: str, nodes: Iterable[str] = ()) -> str:
    engine = open_database(url)
    add_tokens(engine, nodes)
    engine.dispose()
    return url


def as_user(admission: Admission, user_id: int, name: str = "", address: str = "testclient") -> dict[str, str]:
    """Headers of a user who proves it by MUNGE."""
    assert admission.users is not None
    return {"Authorization": f"Bearer {admission.users.make(user_id, name, address)}"}


def admission_of(engine: Engine, clock: Clock) -> Admission:
    return Admission(Tokens(TokenStore(engine), clock))
