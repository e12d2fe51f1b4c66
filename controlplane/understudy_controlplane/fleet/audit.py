"""What people and programs changed: who, from where, what, why, before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.identity import Identity


@dataclass(frozen=True, slots=True)
class AuditEntry:
    at: float
    who: str  # label of the token, or user on the control plane's host
    role: str  # of the token, or "host"
    address: str  # from which the request came; empty: the control plane's host
    action: str
    subject: str
    reason: str
    before: Mapping[str, Json] = field(default_factory=dict)
    after: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def of_request(cls, identity: Identity, at: float, action: str, subject: str, reason: str) -> AuditEntry:
        return cls(at, identity.label, identity.role.value, identity.address, action, subject, reason)

    @classmethod
    def on_host(cls, user: str, at: float, action: str, subject: str, reason: str = "") -> AuditEntry:
        return cls(at, user, "host", "", action, subject, reason)
