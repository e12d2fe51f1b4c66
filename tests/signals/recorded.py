"""The file of what was measured, of which `docs/signal-table.md` is made."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.signals.fault_trace import Lemons, Replayed
from tests.signals.healthy_day import HealthyDay
from tests.signals.measure import Found

PATH = Path(__file__).resolve().parents[1] / "data" / "signals.json"


class Recorded(msgspec.Struct, frozen=True):
    signals: list[Found]
    day: HealthyDay
    trace: Replayed
    lemons_fitted: Lemons
    lemons_default: Lemons


def recorded() -> Recorded:
    return msgspec.json.decode(PATH.read_bytes(), type=Recorded)


def write(what: Recorded) -> None:
    PATH.write_bytes(msgspec.json.format(msgspec.json.encode(what), indent=1) + b"\n")
