"""Reports that were refused: counted by cause, and logged at a limited rate."""

from __future__ import annotations

from enum import StrEnum

import msgspec
import structlog
from fastapi import Response

from understudy_controlplane.access.admission import Denied
from understudy_controlplane.live.meters import Meters
from understudy_wire.messages import Refusal

log = structlog.get_logger()

LOG_INTERVAL_SECONDS = 600.0
"""Interval of lines about the same sender and cause: an agent repeats its report every second."""

REMEMBERED_MAX = 4096


class Cause(StrEnum):
    """Why a report was refused."""

    TOKEN = "token"  # noqa: S105 - no secret; it is missing, unknown, expired, revoked, or of another role or node
    RATE = "rate"  # the node, or its address, sends too many
    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"
    VERSION = "version"  # of the wire
    CLUSTER = "cluster"  # another one than this control plane's
    CONTENT = "content"  # it can be read, and cannot be true
    UNKNOWN_NODE = "unknown_node"  # Slurm has no such node
    DATABASE = "database"  # it does not store the facts, look up the token, or confirm the lead


BY_STATUS = {
    401: Cause.TOKEN,
    403: Cause.TOKEN,
    404: Cause.UNKNOWN_NODE,
    413: Cause.TOO_LARGE,
    422: Cause.CONTENT,
    429: Cause.RATE,
    503: Cause.DATABASE,
}


class Refusals:
    """Used by the thread of the event loop only."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._logged_at: dict[tuple[str, Cause], float] = {}
        for cause in Cause:
            meters.reports_refused.labels(cause.value)

    def note_request(self, route: str, status: int) -> None:
        """A refused request of one of `ROUTES_OF_NODES`."""
        self._meters.note_request_refused(route, status)

    def note(self, cause: Cause, sender: str, error: str, now: float) -> None:
        """`sender`: a node, or an address where the node is not proven. `now` is monotonic."""
        self._meters.reports_refused.labels(cause.value).inc()
        key = (sender, cause)
        logged_at = self._logged_at.get(key)
        if logged_at is not None and now - logged_at < LOG_INTERVAL_SECONDS:
            return
        if len(self._logged_at) >= REMEMBERED_MAX:
            self._logged_at.clear()
        self._logged_at[key] = now
        log.warning("report_refused", sender=sender, cause=cause.value, error=error)


def error_of(refusal: Response | Denied) -> str:
    """What the refusal reports to its receiver."""
    if isinstance(refusal, Denied):
        return refusal.error
    return msgspec.json.decode(bytes(refusal.body), type=Refusal).detail
