"""`python -m tests.signals [--trace] [--day]`: measures, and writes `tests/data/signals.json`.

The table of signals takes half a minute, the trace of faults ten, and the healthy day of 1,000 nodes 12 minutes of
processor time: they are measured again only with `--trace` and `--day`. `--check` writes nothing, and fails where
something differs from what is expected.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import msgspec
import structlog

from tests.signals.fault_trace import faults, lemons, replay
from tests.signals.healthy_day import HealthyDay, healthy_day, together
from tests.signals.measure import as_expected, measure
from tests.signals.recorded import Recorded, recorded, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.signals", description=__doc__)
    parser.add_argument("--day", action="store_true", help="the healthy day as well")
    parser.add_argument("--trace", action="store_true", help="the trace of faults as well")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--days", type=int, default=1, help="so many healthy days, each with events of its own")
    parser.add_argument("--first-day", type=int, default=1, help="the seed of the first of them")
    parser.add_argument(
        "--kept", type=Path, help="folder with the result of each day, hour by hour: all that is in it is added up"
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    before = recorded()
    with tempfile.TemporaryDirectory(prefix="understudy-signals-") as folder:
        found = measure(Path(folder))
    wrong = as_expected(found)
    day, trace = before.day, before.trace
    if arguments.trace:
        with tempfile.TemporaryDirectory(prefix="understudy-signals-") as folder:
            trace = replay(Path(folder), faults())
        print(trace)
    if arguments.day:
        with tempfile.TemporaryDirectory(prefix="understudy-signals-") as folder:
            kept: Path = arguments.kept or Path(folder)
            kept.mkdir(exist_ok=True)
            for seed in range(arguments.first_day, arguments.first_day + arguments.days):
                _live(kept / f"{seed}.json", arguments.nodes, arguments.hours, seed)
            found_days = [msgspec.json.decode(path.read_bytes(), type=HealthyDay) for path in kept.glob("*.json")]
        _show(day := together(found_days))
        wrong += [f"a healthy day: {count} x {rule}" for rule, count in day.acting.items()]
    print("\n".join(wrong) or "as expected")
    if not arguments.check:
        fitted, default = lemons()
        write(Recorded(found, day, trace, fitted, default))
    return bool(wrong)


def _live(path: Path, nodes: int, hours: float, seed: int) -> None:
    """A day, which is kept in this file; of one that is ended early the whole hours are."""

    def keep(day: HealthyDay) -> None:
        path.write_bytes(msgspec.json.encode(day))
        _show(day)

    with tempfile.TemporaryDirectory(prefix="understudy-signals-") as folder:
        keep(healthy_day(Path(folder), nodes, hours, keep, seed))


def _show(day: HealthyDay) -> None:
    looked = f"{day.hours:g} h, {day.rank_days} rank-days"
    print(f"{looked}: acting {day.acting}, suspects {day.suspects}, recorded {day.recorded}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
