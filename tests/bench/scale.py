"""How a control plane grows with its fleet: `python -m tests.bench.scale`, the figures and plots of docs/scale.md.

For each size, by a process of its own: processor time of a tick with all nodes heard, of a report, and of an Xid until
its node is drained, as on a machine on which `tests.stopwatch.reference` takes REFERENCE_SECONDS; memory, and the
database. All but 64 nodes run gangs of eight. Memory includes the reports of the
benchmark's agents.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec
import structlog

from tests import REPOSITORY
from tests import builders as b
from tests.bench.event import WAIT_SECONDS, DrainedFleet
from tests.bench.processor import resident_mebibytes, seconds_of
from tests.bench.report_load import full_report
from tests.bench.result import Result, Size, result
from tests.stopwatch import REFERENCE_SECONDS, reference
from understudy_controlplane.serve import tune_interpreter
from understudy_wire.messages import Report

SIZES = (100, 400, 1600, 6250, 12_500)
SMALL_SIZES = (200,)
ROUNDS = 5
UNITS = {
    "tick_milliseconds": "ms",
    "report_microseconds": "µs",
    "event_to_drain_milliseconds": "ms",
    "memory_mebibytes": "MiB",
    "database_mebibytes": "MiB",
}
DRAWING = REPOSITORY / "docs" / "scale.svg"

Figures = Mapping[str, Sequence[float]]


def measure(size: Size) -> list[Result]:
    sizes = size.of(SIZES, SMALL_SIZES)
    command = [sys.executable, "-m", "tests.bench.scale"]
    found: dict[int, Figures] = {}
    for nodes in sizes:
        done = subprocess.run([*command, str(nodes), str(size.of(ROUNDS, 1))], stdout=subprocess.PIPE, check=True)
        found[nodes] = json.loads(done.stdout.splitlines()[-1])
        print(nodes, {name: round(median(values), 1) for name, values in found[nodes].items()}, flush=True)
    if size is Size.FULL:
        DRAWING.write_text(draw(found))
    return [
        result(f"scale_{name}_{nodes}", UNITS[name], values, {}, more_is_better=False)
        for nodes, figures in found.items()
        for name, values in figures.items()
    ]


def at(directory: Path, nodes: int, rounds: int) -> Figures:
    fleet = DrainedFleet(directory, nodes)
    fleet.settle()
    found: dict[str, list[float]] = {name: [] for name in UNITS}
    template = msgspec.json.decode(full_report(0), type=Report)
    for number in range(rounds + 1):
        fleet.hear(0)
        work = seconds_of(reference)
        tick = fleet.tick()
        begun = time.process_time()
        drained = fleet.xid()
        while not drained.is_set():
            fleet.tick()
            drained.wait(0.05)
            assert time.process_time() - begun < WAIT_SECONDS
        event, report = time.process_time() - begun, _report(fleet, template, nodes, number)
        scale = REFERENCE_SECONDS / min(work, seconds_of(reference))
        found["tick_milliseconds"].append(tick * scale * 1000)
        found["event_to_drain_milliseconds"].append(event * scale * 1000)
        found["report_microseconds"].append(report * scale)
    for values in found.values():
        del values[:1]  # the first round loads what the others have
    found["memory_mebibytes"].append(resident_mebibytes())
    found["database_mebibytes"].append(sum(one.stat().st_size for one in directory.iterdir()) / 2**20)
    fleet.close()
    return found


def _report(fleet: DrainedFleet, template: Report, nodes: int, number: int) -> float:
    """Microseconds of a report in the application, without the server."""
    template = msgspec.structs.replace(template, cluster=b.CLUSTER, sequence=number, sent_at=fleet.clock.now())
    places = [(place * 7919 + number) % fleet.in_jobs for place in range(min(nodes, 2000))]
    reports = [
        fleet.with_ranks(msgspec.structs.replace(template, node=f"c{place + 1}", boot_id=b.BOOT), place)
        for place in places
    ]
    return fleet.take(*reports) / len(reports) * 1e6


def draw(found: Mapping[int, Figures]) -> str:
    """A plot for each figure, side by side: nodes to the right."""
    width, height, gap, top = 150, 110, 60, 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {(width + gap) * 3 + 20} {2 * (height + 80)}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    widest = max(found)
    for place, (name, unit) in enumerate(UNITS.items()):
        left, above = 50 + place % 3 * (width + gap), top + place // 3 * (height + 80)
        values = {nodes: median(figures[name]) for nodes, figures in found.items()}
        most = max(values.values())
        at_point = {
            nodes: (left + width * nodes / widest, above + height * (1 - value / most))
            for nodes, value in values.items()
        }
        title = name.rpartition("_")[0].replace("_", " ")
        lines += [
            f'<text x="{left}" y="{above - 14}" font-weight="bold">{title}, {unit}</text>',
            *(
                f'<text x="{left - 6}" y="{above + height * (1 - share) + 4:.0f}" text-anchor="end">{most * share:.3g}'
                f'</text><path d="M{left},{above + height * (1 - share):.0f} h{width}" stroke="#dddddd"/>'
                for share in (0, 0.5, 1)
            ),
            *(
                f'<text x="{left + width * nodes / widest:.0f}" y="{above + height + 16}" text-anchor="middle">'
                f"{nodes:,}</text>"
                for nodes in (0, widest)
            ),
            f'<polyline points="{" ".join(f"{x:.0f},{y:.1f}" for x, y in at_point.values())}" fill="none" '
            'stroke="#1565c0" stroke-width="2"/>',
            *(f'<circle cx="{x:.0f}" cy="{y:.1f}" r="3" fill="#1565c0"/>' for x, y in at_point.values()),
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    tune_interpreter()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        figures = at(Path(folder), int(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps(figures))
