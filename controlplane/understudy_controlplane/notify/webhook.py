"""Sends tickets: one POST to the site's webhook, JSON, accepted when the answer is 2xx. The control plane's loop does
not wait for the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock, Thread

import httpx
import msgspec

from understudy_controlplane.fleet.evidence import Json

TIMEOUT_SECONDS = 10.0
"""To connect, to send, and for the answer's head. Its body is not read: it could come byte by byte without end."""

UNDER_WAY_MAX = 8
"""A webhook that has not answered this many gets no more until it does."""


class Webhook:
    """Safe to use from any thread. A ticket that is being sent when the process ends may not have been accepted: it is
    sent again, with the same id.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._under_way: set[str] = set()
        self._answers: dict[str, str] = {}

    def send(self, url: str, body: Mapping[str, Json]) -> None:
        """Returns at once. A ticket that is still being sent is not sent a second time."""
        label = str(body["id"])
        with self._lock:
            if label in self._under_way:
                return
            if len(self._under_way) >= UNDER_WAY_MAX:
                self._answers[label] = f"{UNDER_WAY_MAX} others are still unanswered"
                return
            # A daemon: a request that hangs must not delay the end of the process.
            Thread(target=self._post, args=(url, label, body), name=f"ticket {label}", daemon=True).start()
            self._under_way.add(label)

    def take_answer(self, label: str) -> str | None:
        """Once: why the ticket was not accepted; empty: it was. None: there is no answer, or not yet."""
        with self._lock:
            return self._answers.pop(label, None)

    def _post(self, url: str, label: str, body: Mapping[str, Json]) -> None:
        try:
            answer = _post(url, label, body)
        except Exception as error:  # noqa: BLE001 - reported as any refusal, and tried again
            answer = f"{type(error).__name__}: {error}"
        with self._lock:
            self._under_way.discard(label)
            self._answers[label] = answer


def _post(url: str, label: str, body: Mapping[str, Json]) -> str:
    headers = {"Content-Type": "application/json", "Idempotency-Key": label}
    content = msgspec.json.encode(body)
    with httpx.stream("POST", url, content=content, headers=headers, timeout=TIMEOUT_SECONDS) as response:
        return "" if response.is_success else f"HTTP {response.status_code}"
