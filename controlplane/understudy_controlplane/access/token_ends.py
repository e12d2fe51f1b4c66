"""When the tokens of people and programs end. The control plane warns two weeks before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

import structlog

from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.identity import Token

log = structlog.get_logger()

WARNED_BEFORE_SECONDS = 14 * DAY_SECONDS
IN_USE_SECONDS = 30 * DAY_SECONDS
SHOWN_AFTER_SECONDS = 7 * DAY_SECONDS
"""How long a token that has ended, and has no successor, is still shown."""

Ends = Mapping[tuple[str, str], float]
"""Role and label → the end of the last token that has them."""


def ends_of(tokens: Iterable[Token], now: float) -> Ends:
    """Ends of the tokens in use. A token is the successor of all others with its role and label."""
    ends: dict[tuple[str, str], float] = {}
    used_at: dict[tuple[str, str], float] = {}
    for token in tokens:
        key = token.role.value, token.label
        ends[key] = max(ends.get(key, 0.0), token.expires_at)
        if token.last_used_at is not None:
            used_at[key] = max(used_at.get(key, token.last_used_at), token.last_used_at)
    return {key: at for key, at in ends.items() if now - used_at.get(key, float("-inf")) < IN_USE_SECONDS}


def ending_soon(ends: Ends, now: float) -> Iterator[str]:
    """A sentence for each, the next to end first."""
    for (role, label), at in sorted(ends.items(), key=lambda one: one[1]):
        if at - now < WARNED_BEFORE_SECONDS:
            ends_on = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
            verb = "ends" if at > now else "ended"
            remedy = "`understudy token create` makes another one"
            yield f"the token of {label} (role {role}) {verb} {ends_on} UTC: {remedy}"


class DailyWarning:
    def __init__(self) -> None:
        self._warned_at = float("-inf")

    def warn(self, ends: Ends, now: float) -> None:
        """Once a day a line of the log for each token that ends soon."""
        if now - self._warned_at < DAY_SECONDS:
            return
        self._warned_at = now
        for warning in ending_soon(ends, now):
            log.warning("token_ends_soon", text=warning)
