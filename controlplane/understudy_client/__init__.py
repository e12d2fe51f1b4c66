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
    Decision,
    Event,
    Explanation,
    Incident,
    Job,
    Node,
    Observed,
    Recovery,
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
    "Decision",
    "Event",
    "EventStream",
    "Explanation",
    "Incident",
    "Job",
    "Node",
    "Observed",
    "Record",
    "Recovery",
    "RefusedError",
    "RequestState",
    "RuleRecord",
    "Status",
    "Ticket",
    "UnreachableError",
]
