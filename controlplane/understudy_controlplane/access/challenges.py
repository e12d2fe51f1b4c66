"""Challenges that the control plane gives to agents and users. Any client may ask for one: that costs no memory."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from understudy_controlplane.clock import Clock

SECONDS = 30


class Challenges:
    """Each is valid for one address, for a short time, and once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._used: dict[str, int] = {}
        """Challenge → when it ends, in the order of their use: the first of them goes within `SECONDS`."""

    def make(self, address: str) -> str:
        ends_at = int(self._clock.monotonic()) + SECONDS
        text = f"{secrets.token_hex(16)}.{ends_at}"
        return f"{text}.{self._proof(text, address)}"

    def is_valid(self, challenge: str, address: str) -> bool:
        text, _, proof = challenge.rpartition(".")
        if not hmac.compare_digest(proof.encode(), self._proof(text, address).encode()):
            return False
        return challenge not in self._used and self._clock.monotonic() < self._end_of(challenge)

    def use(self, challenge: str) -> bool:
        """False where it was used before. `challenge` is one that was valid."""
        now = self._clock.monotonic()
        while self._used and now >= next(iter(self._used.values())):
            del self._used[next(iter(self._used))]
        if challenge in self._used:
            return False
        self._used[challenge] = self._end_of(challenge)
        return True

    def _proof(self, text: str, address: str) -> str:
        return hmac.new(self._key, f"{text} {address}".encode(), hashlib.sha256).hexdigest()

    @staticmethod
    def _end_of(challenge: str) -> int:
        return int(challenge.split(".")[1])
