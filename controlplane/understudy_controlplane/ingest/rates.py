"""How much each sender may send, as requests or bytes: a rate, and some seconds' worth of it at once."""

from __future__ import annotations

from math import inf
from threading import Lock

BURST_SECONDS = 10.0
SENDERS_MAX = 65_536


class Rates:
    def __init__(self, per_second: float, burst_seconds: float = BURST_SECONDS) -> None:
        self._interval_seconds = 1.0 / per_second
        self._burst_seconds = burst_seconds
        self._due: dict[str, float] = {}
        """Sender → when it would have sent all that it has sent, at the rate that it may have."""
        self._forgets_at = -inf
        self._lock = Lock()  # reports are stored by several threads

    def wait_seconds(self, sender: str, now: float) -> float:
        """Until a request that was not admitted would be."""
        return max(self._due.get(sender, now) - now - self._burst_seconds, 0.0)

    def admits(self, sender: str, now: float, amount: float = 1.0) -> bool:
        """`now` is monotonic."""
        with self._lock:
            due = max(self._due.get(sender, now), now)
            if due - now > self._burst_seconds:
                return False
            if now >= self._forgets_at or len(self._due) >= SENDERS_MAX:
                self._forget(now)
            self._due[sender] = due + amount * self._interval_seconds
            return True

    def give_back(self, sender: str, amount: float) -> None:
        """What was admitted has come to nothing."""
        with self._lock:
            if sender in self._due:
                self._due[sender] -= amount * self._interval_seconds

    def _forget(self, now: float) -> None:
        """Those who may send at their full rate again; where these are none, all of them."""
        kept = {sender: due for sender, due in self._due.items() if due > now}
        self._due = kept if len(kept) < SENDERS_MAX else {}
        self._forgets_at = now + self._burst_seconds
