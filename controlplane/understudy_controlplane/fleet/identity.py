"""Who sends a request, and what each role may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    SIGNALS = "signals"
    OPERATOR = "operator"
    ADMIN = "admin"
    METRICS = "metrics"
    NODE = "node"
    ENROLMENT = "enrolment"  # a one-time code, for which a node without MUNGE gets its token


class Permission(StrEnum):
    READ = "read"
    METRICS = "read metrics"
    SIGNAL = "post signals of facility and fabric"
    OPERATE = "act on nodes and jobs"
    ADMINISTER = "close the circuit breaker"
    REPORT = "report for a node"
    ENROL = "get the token of a node"


PERMISSIONS = {
    Role.VIEWER: frozenset({Permission.READ, Permission.METRICS}),
    Role.SIGNALS: frozenset({Permission.SIGNAL}),
    Role.OPERATOR: frozenset({Permission.READ, Permission.METRICS, Permission.OPERATE}),
    Role.ADMIN: frozenset(Permission) - {Permission.REPORT, Permission.ENROL},
    Role.METRICS: frozenset({Permission.METRICS}),
    Role.NODE: frozenset({Permission.REPORT}),
    Role.ENROLMENT: frozenset({Permission.ENROL}),
}

OF_NODES = frozenset({Role.NODE, Role.ENROLMENT})
"""Roles of tokens that name a node."""


def roles_with(permission: Permission) -> list[Role]:
    return [role for role in Role if permission in PERMISSIONS[role]]


@dataclass(frozen=True, slots=True)
class Token:
    """A secret that somewhere exists; the control plane keeps only its digest."""

    id: int
    role: Role
    label: str  # who has it, for people
    node: str  # for which it speaks; empty: for none
    made_at: float
    made_by: str
    expires_at: float
    revoked_at: float | None = None
    revoked_by: str = ""
    last_used_at: float | None = None  # to the hour; not kept for nodes

    def is_valid_at(self, now: float) -> bool:
        return self.revoked_at is None and now < self.expires_at


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sends a request, as its token proves it."""

    role: Role
    label: str
    node: str
    address: str  # from which the request came
    token: int = 0  # its id; 0: there is none

    def may(self, permission: Permission) -> bool:
        return permission in PERMISSIONS[self.role]
