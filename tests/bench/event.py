"""Time between an Xid and the drain of its node, `event_to_drain_p99_milliseconds`, and the processor time until then.

The real control plane with 12,500 nodes, all but 64 with gangs, its loop on its own thread, and a Slurm that answers
at once. Its agents report before each event and not during it: their cost is that of `tests.bench.report`. Beside it,
where they are installed: Prometheus that scrapes 128 nodes each second, a rule that is evaluated each second,
Alertmanager without any wait, and a script. `controller_rss_mebibytes` is what both keep in memory;
that of Understudy includes the reports of the benchmark's agents.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path

import msgspec

from tests import builders as b
from tests.bench.processor import resident_mebibytes, spent
from tests.bench.prometheus import ALERTMANAGER, PROMETHEUS, Targets, alertmanager, prometheus, serving
from tests.bench.report_cost import post, scope
from tests.bench.result import Result, Size, result
from tests.bench.slurm_text import GANG, NODES
from tests.bench.tick import Fleet, LargeSlurm
from tests.tokens import add_tokens
from understudy_controlplane.fleet.slurm import SlurmReservation
from understudy_controlplane.serve import tune_interpreter
from understudy_wire.messages import Report

ROUNDS, EVENTS = 3, 10
SCRAPED = 128
IDLE = 64
WAIT_SECONDS = 60.0
PAUSES = (0.05, 0.65, 0.25, 0.85, 0.45)
"""Seconds between two events: each meets the loop at another moment of its interval."""
BUDGETS = {
    **dict.fromkeys(("quarantined_nodes_min", "quarantines_per_hour_min", "breaker_nodes_min"), 1000),
    **dict.fromkeys(("quarantined_share_max", "breaker_share_max", "domain_share_max"), 1.0),
}


class DrainingSlurm(LargeSlurm):
    """Drains nodes. The last ones run no gang."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes, (nodes - IDLE) // GANG)
        self.drained: dict[str, threading.Event] = {}

    def drain_node(self, node: str, reason: str) -> None:
        place = next(number for number, one in enumerate(self._nodes) if one.name == node)
        self._nodes[place] = replace(
            self._nodes[place],
            flags=frozenset({"DRAIN"}),
            reason=reason,
            reason_user="root",
            reason_at=int(time.time()),
        )
        self.drained[node].set()

    def reservations(self) -> list[SlurmReservation]:
        return []


def measure(size: Size) -> list[Result]:
    tune_interpreter()
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="understudy-bench-")))
        sides["understudy"] = stack.enter_context(understudy(directory, size.of(NODES, 200)))
        if PROMETHEUS is not None and ALERTMANAGER is not None:
            sides["prometheus"] = stack.enter_context(prometheus_and_script(directory))
        else:
            print("prometheus and prometheus-alertmanager are not installed: nothing is measured beside")
        for _ in range(size.of(ROUNDS, 1)):
            for name, side in sides.items():
                side.round(size.of(EVENTS, 1))
                print(
                    f"{name}: {side.milliseconds[-1]:.0f} ms, {side.processor_milliseconds[-1]:.0f} ms of processors",
                    flush=True,
                )
        memory = {name: [side.mebibytes()] for name, side in sides.items()}
    own = sides.pop("understudy")
    others = sides.items()
    return [
        result(
            "event_to_drain_p99_milliseconds",
            "ms",
            own.milliseconds,
            {name: side.milliseconds for name, side in others},
            more_is_better=False,
        ),
        result(
            "event_to_drain_processor_milliseconds",
            "ms",
            own.processor_milliseconds,
            {name: side.processor_milliseconds for name, side in others},
            more_is_better=False,
        ),
        result("controller_rss_mebibytes", "MiB", memory.pop("understudy"), memory, more_is_better=False),
    ]


@dataclass
class Side:
    prepare: Callable[[], object]
    happen: Callable[[], Callable[[], bool]]
    """Something happens on the next node; what it returns waits until that node is drained."""
    processor: Callable[[], float]
    """Seconds that the side has used."""
    mebibytes: Callable[[], float]
    milliseconds: list[float] = field(default_factory=list)
    processor_milliseconds: list[float] = field(default_factory=list)

    def round(self, events: int) -> None:
        taken, used = [], 0.0
        for _ in range(events):
            self.prepare()
            begun, before = time.perf_counter(), self.processor()
            if not self.happen()():
                raise SystemExit(f"a node was not drained within {WAIT_SECONDS:g} s")
            taken.append(time.perf_counter() - begun)
            used += self.processor() - before
        self.milliseconds.append(sorted(taken)[int(len(taken) * 0.99)] * 1000)
        self.processor_milliseconds.append(used / events * 1000)


class DrainedFleet(Fleet):
    """A fleet of whose idle nodes one after the other reports an Xid and is drained."""

    def __init__(self, directory: Path, nodes: int) -> None:
        self._slurm = DrainingSlurm(nodes)
        super().__init__(directory, nodes, self._slurm, mode="act", guards=BUDGETS, spares={"count": 0})
        self._idle = [f"c{number}" for number in range(nodes - IDLE + 1, nodes + 1)]
        self._answering = asyncio.new_event_loop()
        add_tokens(self.control_plane.engine, [f"c{number}" for number in range(1, nodes + 1)])

    def xid(self) -> threading.Event:
        """Set when the node is drained."""
        node, now = self._idle.pop(), self.clock.now()
        self._slurm.drained[node] = drained = threading.Event()
        self.take(b.report(node, facts=[b.xid_event(node, 79, at=now).event], sent_at=now))
        return drained

    def take(self, *reports: Report) -> float:
        """Processor time of the application for these reports, in seconds."""
        bodies = [(scope(report.node), msgspec.json.encode(report)) for report in reports]

        async def answer() -> None:
            for of_node, body in bodies:
                await post(self.control_plane.app, of_node, body)

        begun = time.thread_time()
        self._answering.run_until_complete(answer())
        return time.thread_time() - begun

    def close(self) -> None:
        self._answering.close()
        self.control_plane.close()


@contextmanager
def understudy(directory: Path, nodes: int) -> Iterator[Side]:
    fleet = DrainedFleet(directory, nodes)
    loop, pauses = threading.Thread(target=fleet.control_plane.loop.run), cycle(PAUSES)
    fleet.settle()
    fleet.clock.go_on()

    def prepare() -> None:
        fleet.clock.stand_still()
        fleet.hear(0)
        fleet.clock.go_on()
        time.sleep(next(pauses))

    def happen() -> Callable[[], bool]:
        drained = fleet.xid()
        return lambda: drained.wait(WAIT_SECONDS)

    loop.start()
    try:
        yield Side(prepare, happen, time.process_time, resident_mebibytes)
    finally:
        fleet.control_plane.loop.stop()
        loop.join()
        fleet.close()


@contextmanager
def prometheus_and_script(directory: Path) -> Iterator[Side]:
    nodes, ill, pauses = [f"c{number}" for number in range(SCRAPED)], set[str](), cycle(PAUSES)
    idle, drained = nodes.copy(), {node: threading.Event() for node in nodes}

    def alerted(node: str) -> None:
        subprocess.run(["/bin/true"], check=True)  # scontrol, of a Slurm that answers at once
        drained[node].set()

    def happen() -> Callable[[], bool]:
        node = idle.pop()
        ill.add(node)
        return lambda: drained[node].wait(WAIT_SECONDS)

    targets = Targets(lambda node: f"xid {79 if node in ill else 0}\n".encode(), alerted)
    with (
        serving(targets) as port,
        alertmanager(directory, port) as (manager, manager_port),
        prometheus(directory, nodes, port, manager_port) as scraper,
    ):
        yield Side(
            lambda: time.sleep(next(pauses)),
            happen,
            lambda: spent(scraper) + spent(manager),
            lambda: resident_mebibytes(scraper) + resident_mebibytes(manager),
        )
