"""Sends tickets: one POST to the site's webhook, JSON, taken when the answer is 2xx."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import msgspec

from controlplane.fleet.finding import Json

TIMEOUT_SECONDS = 2.0
"""The loop waits for the answer."""


def send_ticket(url: str, body: Mapping[str, Json]) -> str:
    """Returns why it was not taken, in words; empty: it was."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(body.get("id", ""))}
    try:
        response = httpx.post(url, content=msgspec.json.encode(body), headers=headers, timeout=TIMEOUT_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{type(error).__name__}: {error}"
    return "" if response.is_success else f"HTTP {response.status_code}"
