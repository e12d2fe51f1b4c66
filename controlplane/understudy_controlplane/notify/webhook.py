"""Sends tickets: one POST to the site's webhook, JSON, taken when the answer is 2xx. Nobody waits for the answer."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock, Thread

import httpx
import msgspec

from understudy_controlplane.fleet.finding import Json

TIMEOUT_SECONDS = 10.0
"""To connect, to send, and for the answer's head. Its body is not waited for: one could come byte by byte for ever."""

UNDER_WAY_MAX = 8
"""A webhook that answers none of so many is asked no more until it does."""


class Webhook:
    """Safe to use from any thread. What is under way when the process ends is not known to have been taken: it is sent
    again, under the same id.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._under_way: set[str] = set()
        self._answers: dict[str, str] = {}

    def send(self, url: str, body: Mapping[str, Json]) -> None:
        """Returns at once. A ticket that is still under way is not sent beside itself."""
        label = str(body["id"])
        with self._lock:
            if label in self._under_way:
                return
            if len(self._under_way) >= UNDER_WAY_MAX:
                self._answers[label] = f"{UNDER_WAY_MAX} others are still unanswered"
                return
            # A daemon: what hangs must not hold up the end of the process.
            Thread(target=self._post, args=(url, label, body), name=f"ticket {label}", daemon=True).start()
            self._under_way.add(label)

    def take_answer(self, label: str) -> str | None:
        """Once: why the ticket was not taken, in words; empty: it was. None: there is no answer, or not yet."""
        with self._lock:
            return self._answers.pop(label, None)

    def _post(self, url: str, label: str, body: Mapping[str, Json]) -> None:
        try:
            answer = _post(url, label, body)
        except Exception as error:  # noqa: BLE001 - told like any other refusal, and tried again
            answer = f"{type(error).__name__}: {error}"
        with self._lock:
            self._under_way.discard(label)
            self._answers[label] = answer


def _post(url: str, label: str, body: Mapping[str, Json]) -> str:
    headers = {"Content-Type": "application/json", "Idempotency-Key": label}
    content = msgspec.json.encode(body)
    with httpx.stream("POST", url, content=content, headers=headers, timeout=TIMEOUT_SECONDS) as response:
        return "" if response.is_success else f"HTTP {response.status_code}"
