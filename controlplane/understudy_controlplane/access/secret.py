"""Secrets of tokens: how they are made, and the digest by which they are stored."""

from __future__ import annotations

import hashlib
import secrets

from understudy_controlplane.fleet.identity import OF_NODES, STORED, Role
from understudy_controlplane.store.tokens import NewToken

PREFIX = "understudy_"
"""Prefix by which programs that search for leaked secrets recognise a token."""

OWN = "["
"""Begins what the control plane itself sends under; no label of a token begins with it."""

_BYTES = 32


def new_secret() -> str:
    """256 random bits."""
    return f"{PREFIX}{secrets.token_urlsafe(_BYTES)}"


def digest_of(secret: str) -> str:
    """A plain digest is enough: the secret is random and too long to be guessed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_token(
    role: Role, label: str, made_by: str, made_at: float, seconds: float, node: str = ""
) -> tuple[str, NewToken]:
    """The secret, and what is stored of it. Raises ValueError where a node is missing or is one too many,
    where the role is that of users, whose tokens are not stored, or where the label is one of the control plane itself.
    """
    if label.startswith(OWN):
        raise ValueError(f"a label may not begin with {OWN}, as those of the control plane itself do")
    if role not in STORED or (role in OF_NODES) != bool(node):
        raise ValueError(
            "a token of a node names its node, no other role has one: use --role node together with --node"
        )
    secret = new_secret()
    return secret, NewToken(digest_of(secret), role, label, node, made_at, made_by, made_at + seconds)
