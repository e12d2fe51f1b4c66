"""What got worse: `make bench-compare` holds the ratios of `make bench` against those of tests/data/bench/ratios.json.

Ratios, because machines differ; a ratio is worse where it has grown by more than both runs' rounds differ. With
`--keep` the new ratios replace the old ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from tests import REPOSITORY
from tests.bench.result import BENCH_DIRECTORY, SPREAD_MAX, Ratio

KEPT = REPOSITORY / "tests" / "data" / "bench" / "ratios.json"
GROWTH_MIN = 0.15
"""A smaller growth is none, however still the machine was."""

Ratios = dict[str, dict[str, Ratio]]
"""Figure → rival → ratio."""


def compared(kept: Ratios, found: Ratios) -> Iterator[tuple[str, bool]]:
    """What to know of each kept ratio, and whether it is worse."""
    for figure, rivals in kept.items():
        for rival, before in rivals.items():
            now = found.get(figure, {}).get(rival)
            name = f"{figure} beside {rival}"
            if now is None:
                yield f"{name}: not measured", False
                continue
            change = f"{name}: {before.median:.3g} before, {now.median:.3g} now"
            if max(before.spread, now.spread) > SPREAD_MAX:
                yield f"{change}: unusable, the rounds differ by more than half", False
                continue
            noise = max(GROWTH_MIN, before.spread + now.spread)
            growth = now.median / before.median - 1
            worse = growth > noise
            yield f"{change}: {growth:+.0%}{' is WORSE' if worse else ''} (noise {noise:.0%})", worse


def measured(folder: Path = BENCH_DIRECTORY) -> Ratios:
    """Ratios that benchmarks have written."""
    found: Ratios = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        for one in content.get("results", ()) if isinstance(content, Mapping) else ():
            if one.get("ratios"):
                found[one["name"]] = msgspec.convert(one["ratios"], dict[str, Ratio])
    return found


def main() -> int:
    found = measured()
    if not found:
        raise SystemExit(f"{BENCH_DIRECTORY} has no ratios; run make bench")
    if "--keep" in sys.argv:
        KEPT.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
        return 0
    lines = list(compared(msgspec.json.decode(KEPT.read_bytes(), type=Ratios), found))
    print("\n".join(line for line, _ in lines))
    return int(any(worse for _, worse in lines))


if __name__ == "__main__":
    sys.exit(main())
