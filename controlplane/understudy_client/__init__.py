"""A client of the control plane's REST interface, thin over httpx: `docs/api.md` describes the routes."""

from __future__ import annotations

from understudy_client.client import (
    CertificatesUnusable,
    Client,
    ClientError,
    EventStream,
    Record,
    RefusedError,
    UnreachableError,
)
from understudy_client.records import (
    Accepted,
    Checkpoint,
    Count,
    Decision,
    Event,
    Explanation,
    FleetReport,
    Incident,
    Job,
    Node,
    Observed,
    Recovery,
    RecoveryCount,
    RequestState,
    RuleRecord,
    Status,
    Ticket,
)

__all__ = [
    "Accepted",
    "CertificatesUnusable",
    "Checkpoint",
    "Client",
    "ClientError",
    "Count",
    "Decision",
    "Event",
    "EventStream",
    "Explanation",
    "FleetReport",
    "Incident",
    "Job",
    "Node",
    "Observed",
    "Record",
    "Recovery",
    "RecoveryCount",
    "RefusedError",
    "RequestState",
    "RuleRecord",
    "Status",
    "Ticket",
    "UnreachableError",
]
