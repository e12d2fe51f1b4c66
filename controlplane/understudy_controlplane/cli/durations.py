"""Times and durations on the command line."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import click

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
SECONDS_MAX = 36_525 * 86_400.0
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[float]):
    """Seconds."""

    name = "duration"

    def __init__(self, seconds_min: float = 0.0) -> None:
        self._seconds_min = seconds_min

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = _DURATION.fullmatch(str(value))
        if match is None:
            self.fail(f"'{value}' is no duration; write 90s, 30m, 4h or 2d", param, ctx)
        seconds = float(match[1]) * _SECONDS[match[2]]
        if not self._seconds_min <= seconds <= SECONDS_MAX:
            self.fail(f"'{value}' is not between {self._seconds_min:g} s and a hundred years", param, ctx)
        return seconds


class Moment(click.ParamType[float]):
    """Seconds since the epoch: a duration before or after now, or a time in UTC."""

    name = "time"

    def __init__(self, direction: int, example: str) -> None:
        self._direction = direction
        self._example = example

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        if _DURATION.fullmatch(str(value)):
            return time.time() + self._direction * DURATION.convert(value, param, ctx)
        try:
            at = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"'{value}' is no time; write {self._example}, or 2026-01-31T12:00", param, ctx)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


DURATION = Duration()
PAST = Moment(-1, "2h for two hours ago")
FUTURE = Moment(1, "2h for two hours from now")


def in_words(seconds: float) -> str:
    """Duration in its largest unit that fits twice: 90 s, 15 min, 3 h, 5 d."""
    units = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))
    unit, name = next((one for one in units if seconds >= 2 * one[0]), (1.0, "s"))
    return f"{seconds / unit:.0f} {name}"
