"""Writes the tables and plots of docs/plan.md: `python -m tests.plan` (a minute)."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup

from tests.plan import published
from understudy_controlplane.api.report_plots import Bar, bars
from understudy_controlplane.figures.plan_run import LOSSES
from understudy_controlplane.figures.plan_summary import Outcome

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "plan.md"
SEEDS = range(1, 21)
STYLE = "<style>text{font:13px sans-serif;fill:#55625e}rect{fill:#d8471f}.good{fill:#5aa88a}.bar{fill:#2f6fc4}</style>"
WAYS = "16,384 GPUs", "100,000 GPUs", "4 gangs of 4,096"
CASES: Sequence[tuple[str, str, int, float, dict[str, object]]] = (
    (WAYS[0], "plan-16384.svg", 16_384, 54.0, {"spares": 16}),
    (WAYS[1], "plan-100000.svg", 100_000, 30.0, {"spares": 64}),
    (WAYS[2], "plan-gangs.svg", 4096, 54.0, {"spares": 16, "gangs": 4, "faults": "byterobust"}),
)
LAUNCHER = "understudy run"
NEXT = (
    ("start in 60 s", {"start": 60.0}),
    ("saves in memory every minute", {"interval": 60.0, "shared_interval": 1800.0}),
)


def validated() -> Iterator[str]:
    yield from ("| what | put in | published or measured | model | |", "|---|---|---|---|---|")
    for check in published.CHECKS:
        yield line_of(check(SEEDS))


def line_of(row: published.Row) -> str:
    return f"| {row.what} | {row.put_in} | {row.published} | {row.model} | {'holds' if row.holds else 'misses'} |"


def compared() -> Iterator[str]:
    found = {title: published.compared(gpus, days, SEEDS, **changes) for title, _, gpus, days, changes in CASES}
    yield from (f"| ETTR % (pages) | {' | '.join(WAYS)} |", "|---|---|---|---|")
    for way in zip(*found.values(), strict=True):
        yield f"| {way[0].way} | {' | '.join(f'{100 * one.ettr:.1f} ({one.pages:.0f})' for one in way)} |"
    own = [next(one for one in ways if one.way == LAUNCHER) for ways in found.values()]
    yield from ("", f"| lost by `{LAUNCHER}`, % | {' | '.join(WAYS)} |", "|---|---|---|---|")
    for loss in LOSSES:
        shares = [100 * one.lost.get(loss, 0.0) for one in own]
        if max(shares) >= 0.05:
            yield f"| {loss} | {' | '.join(f'{share:.1f}' for share in shares)} |"
    yield ""
    for title, drawing, *_ in CASES:
        draw(drawing, found[title])
        yield f"![ETTR of each way: {title}]({drawing})"


def further() -> Iterator[str]:
    """What the next points take, at the largest size."""
    _, _, gpus, days, changes = CASES[1]
    done: dict[str, object] = {}
    found_so_far = []
    for words, change in NEXT:
        done |= change
        (found,) = (one for one in published.compared(gpus, days, SEEDS, **changes, **done) if one.way == LAUNCHER)
        found_so_far.append(f"with {words} {100 * found.ettr:.1f} %")
    yield f"ETTR of `{LAUNCHER}` with 100,000 GPUs: {', and '.join(found_so_far)}."


def draw(name: str, found: Sequence[Outcome]) -> None:
    plot = bars([Bar(one.way, 100 * one.ettr, f"{100 * one.ettr:.1f} %", "good") for one in found])
    (DOCS / name).write_text(_alone(plot))


def _alone(plot: Markup) -> str:
    """A file by itself."""
    head = '<svg xmlns="http://www.w3.org/2000/svg" '
    return (
        re.sub(r"(<svg[^>]*>)", lambda found: f"{found[1]}{STYLE}", str(plot), count=1).replace("<svg ", head, 1) + "\n"
    )


def filled(text: str, name: str, lines: Sequence[str]) -> str:
    """The page with these lines between its marks of this name."""
    begin, end = f"<!-- {name}: by `python -m tests.plan` -->", f"<!-- end of {name} -->"
    head, rest = text.split(begin)
    return f"{head}{begin}\n" + "\n".join(lines) + f"\n{end}" + rest.split(end)[1]


def main() -> None:
    began = time.process_time()
    text = PAGE.read_text()
    for name, lines in (("validation", validated()), ("comparison", compared()), ("next", further())):
        text = filled(text, name, list(lines))
    PAGE.write_text(text)
    sys.stdout.write(f"wrote {PAGE} in {time.process_time() - began:.0f} s of processor time\n")


if __name__ == "__main__":
    main()
