"""A client of the control plane's REST interface, thin over httpx: `docs/api.md` describes the routes."""

from __future__ import annotations

from understudy_client.client import CertificatesUnusable, Client, ClientError, Record, RefusedError, UnreachableError
from understudy_client.records import (
    BreakerState,
    Checkpoint,
    Decision,
    Incident,
    Job,
    Node,
    PauseState,
    Recovery,
    Status,
    Ticket,
)

__all__ = [
    "BreakerState",
    "CertificatesUnusable",
    "Checkpoint",
    "Client",
    "ClientError",
    "Decision",
    "Incident",
    "Job",
    "Node",
    "PauseState",
    "Record",
    "Recovery",
    "RefusedError",
    "Status",
    "Ticket",
    "UnreachableError",
]
