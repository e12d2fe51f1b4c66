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
    USER = "user"  # of the cluster, by MUNGE: never a token that is stored
    ENROLMENT = "enrolment"  # a one-time code, for which a node without MUNGE gets its token


class Permission(StrEnum):
    READ = "read"
    READ_OWN_JOBS = "read what concerns own jobs"
    METRICS = "read metrics"
    SIGNAL = "post signals of facility and fabric"
    OPERATE = "act on nodes and jobs"
    OPERATE_OWN_JOBS = "act on own jobs"
    ADMINISTER = "close the circuit breaker, set the mode, or begin a drill"
    REPORT = "report for a node"
    ENROL = "get the token of a node"


_READ = frozenset({Permission.READ, Permission.READ_OWN_JOBS, Permission.METRICS})
_OF_USERS = frozenset({Permission.READ_OWN_JOBS, Permission.OPERATE_OWN_JOBS})

PERMISSIONS = {
    Role.VIEWER: _READ,
    Role.SIGNALS: frozenset({Permission.SIGNAL}),
    Role.OPERATOR: _READ | _OF_USERS | {Permission.OPERATE},
    Role.ADMIN: frozenset(Permission) - {Permission.REPORT, Permission.ENROL},
    Role.METRICS: frozenset({Permission.METRICS}),
    Role.USER: _OF_USERS,
    Role.NODE: frozenset({Permission.REPORT}),
    Role.ENROLMENT: frozenset({Permission.ENROL}),
}

OF_NODES = frozenset({Role.NODE, Role.ENROLMENT})
"""Roles of tokens that name a node."""

STORED = tuple(role for role in Role if role is not Role.USER)
"""Roles of tokens that an administrator makes."""


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
    session_of: int | None = None  # the token from which this browser session was made; None: it is a token

    def is_valid_at(self, now: float) -> bool:
        return self.revoked_at is None and now < self.expires_at


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sends a request, as its token proves it. `user_id`: of role `user`, whose jobs alone it may see."""

    role: Role
    label: str
    node: str
    address: str  # from which the request came
    token: int = 0  # its id; 0: there is none
    user_id: int | None = None

    def __post_init__(self) -> None:
        if (self.role is Role.USER) != (self.user_id is not None):
            raise ValueError("a user of the cluster has a user id; no other role has one")

    def sees_jobs_of(self, user_id: int) -> bool:
        """Routes that need READ_OWN_JOBS or OPERATE_OWN_JOBS ask this of each job. Others' jobs are not known: 404."""
        return self.user_id is None or self.user_id == user_id

    def may(self, permission: Permission) -> bool:
        return permission in PERMISSIONS[self.role]
