"""Settings of Slurm as `scontrol show config` spells them: "300 sec", "0 (default)", "(null)", "a=1,b". Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_NUMBER = re.compile(r"(?P<number>\d+)\s*(?P<unit>[a-z]*)\s*(?:\(.*\))?", re.IGNORECASE)
_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d)")
_UNIT_SECONDS = {
    "": 1.0,
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "min": 60.0,
    "mins": 60.0,
    "minute": 60.0,
    "minutes": 60.0,
    "hour": 3600.0,
    "hours": 3600.0,
    "msec": 1e-3,
    "usec": 1e-6,
}
_NOTHING = frozenset({"", "(null)", "none", "n/a", "unset"})
_WITHOUT_END = frozenset({"infinite", "unlimited"})
_UNSET_NUMBERS = frozenset({65_534, 65_535, 4_294_967_294, 4_294_967_295})
"""NO_VAL16, INFINITE16, NO_VAL and INFINITE of slurm.h: no time limit."""


class NotUnderstood(Exception):
    """A setting is not printed, or its value cannot be read. The message names it."""


class Settings:
    """Settings by name; as in Slurm, case does not matter."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._values = {key.casefold(): value.strip() for key, value in config.items()}

    def found(self, key: str) -> str:
        """Value as printed, for people."""
        lines = self._lines(key)
        return "not printed" if lines is None else ", ".join(lines) or "(null)"

    def text(self, key: str) -> str:
        """Empty: not set. Raises NotUnderstood where it is not printed at all."""
        lines = self._lines(key)
        if lines is None:
            raise NotUnderstood(f"this Slurm does not print {key}")
        return ",".join(line for line in lines if line.casefold() not in _NOTHING)

    def prints(self, key: str) -> bool:
        return self._lines(key) is not None

    def seconds(self, key: str) -> float:
        """Infinite where there is no limit. Raises NotUnderstood."""
        return as_seconds(self.text(key), key)

    def number(self, key: str) -> int:
        """Raises NotUnderstood."""
        text = self.text(key)
        match = _NUMBER.fullmatch(text)
        if match is None or match["unit"]:
            raise NotUnderstood(f"{key}={text!r} is no known number")
        return int(match["number"])

    def options(self, key: str) -> dict[str, str]:
        """The options in a list such as "requeue_delay=5,no_backup", in lower case. Raises NotUnderstood."""
        items = (item.strip().partition("=") for item in self.text(key).split(","))
        return {name.casefold(): value for name, _, value in items if name}

    def _lines(self, key: str) -> list[str] | None:
        """One value, or the values of "Prolog[0]", "Prolog[1]", in order, as newer versions of Slurm print them."""
        key = key.casefold()
        if key in self._values:
            return [self._values[key]]
        several = sorted(
            (int(name[len(key) + 1 : -1]), value)
            for name, value in self._values.items()
            if re.fullmatch(re.escape(key) + r"\[\d+\]", name)
        )
        return [value for _, value in several] or None


def as_seconds(text: str, key: str) -> float:
    """`key` names it in errors. Raises NotUnderstood."""
    small = text.casefold().strip()
    if small in _NOTHING or small in _WITHOUT_END:
        return math.inf
    clock = _CLOCK.fullmatch(small)
    if clock is not None:
        days, hours, minutes, seconds = (int(clock[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    match = _NUMBER.fullmatch(small)
    if match is None or match["unit"] not in _UNIT_SECONDS:
        raise NotUnderstood(f"{key}={text!r} is no known time")
    number = int(match["number"])
    return math.inf if number in _UNSET_NUMBERS else number * _UNIT_SECONDS[match["unit"]]
