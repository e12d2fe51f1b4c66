"""A time for people. Rows of earlier releases may hold any number as a time, and no page fails because of one."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

CALENDAR_ENDS_AT = 253_402_128_000.0
"""The last days of the year 9999, in any time zone."""


def moment(at: float, zone: tzinfo = UTC) -> datetime:
    """Where a calendar does not have it, the nearest that it has, from 1970 on."""
    return datetime.fromtimestamp(min(max(at, 0.0), CALENDAR_ENDS_AT), zone)
