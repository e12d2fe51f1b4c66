"""Times and durations on the command line."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import click

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[float]):
    """Seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = _DURATION.fullmatch(str(value))
        if match is None:
            self.fail(f"'{value}' is no duration; write 90s, 30m, 4h or 2d", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


class Past(click.ParamType[float]):
    """Seconds since the epoch: a duration before now, or a time in UTC."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        if _DURATION.fullmatch(str(value)):
            return time.time() - DURATION.convert(value, param, ctx)
        try:
            at = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"'{value}' is no time; write 2h for two hours ago, or 2026-01-31T12:00", param, ctx)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


class Future(click.ParamType[float]):
    """Seconds since the epoch: a duration from now on, or a time in UTC."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, str) and _DURATION.fullmatch(value):
            return time.time() + DURATION.convert(value, param, ctx)
        return PAST.convert(value, param, ctx)


DURATION = Duration()
FUTURE = Future()
PAST = Past()
