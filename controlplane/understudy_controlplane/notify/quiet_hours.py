"""When quiet hours end. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo


def quiet_until(hours: str, zone: str, now: float) -> float | None:
    """`hours`: "22:00-07:00" in this time zone; empty: none. None: it is not quiet now."""
    if not hours:
        return None
    at = datetime.fromtimestamp(now, ZoneInfo(zone))
    begin, end = (_minutes(one) for one in hours.split("-"))
    minute = at.hour * 60 + at.minute
    is_quiet = begin <= minute < end if begin <= end else minute >= begin or minute < end
    if not is_quiet:
        return None
    day = at.date() + timedelta(days=1) if begin > end and minute >= begin else at.date()
    return datetime(day.year, day.month, day.day, end // 60, end % 60, tzinfo=ZoneInfo(zone)).timestamp()


def _minutes(clock: str) -> int:
    hour, minute = clock.split(":")
    return int(hour) * 60 + int(minute)
