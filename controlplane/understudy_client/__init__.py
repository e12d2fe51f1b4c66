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

__all__ = [
    "CertificatesUnusable",
    "Client",
    "ClientError",
    "EventStream",
    "Record",
    "RefusedError",
    "UnreachableError",
]
