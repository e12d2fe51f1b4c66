"""How long 12,500 nodes and 2,000 jobs take to be read: the text alone, and through a real slurmctld.

Part of it holds Python's lock, which the routes need too: how long another thread has to wait is measured as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tests.bench.large_cluster import large_cluster
from tests.bench.result import Result, Size, result
from tests.bench.slurm_text import JOBS, NODES, jobs_text, nodes_text
from understudy_controlplane.slurm.cli import CommandLineGateway
from understudy_controlplane.slurm.parse import NodeReader, parse_jobs
from understudy_controlplane.slurm.protocol import read_view

ROUNDS = 20


def measure(size: Size) -> list[Result]:
    return [*parsing(size), *reading(size)]


def parsing(size: Size) -> list[Result]:
    rounds = size.of(ROUNDS, 2)
    # Every record another than the one before: slurmd reports a new load with every ping.
    nodes = [nodes_text(load=load) for load in (65, 66)]
    jobs = [jobs_text(seconds=seconds) for seconds in (15, 16)]
    reader, still = NodeReader(), NodeReader()
    return [
        _timed("parse_nodes_all_changed", rounds, lambda number: reader.read(nodes[number % 2])),
        _timed("parse_nodes_unchanged", rounds, lambda _: still.read(nodes[0])),
        _timed("parse_jobs", rounds, lambda number: parse_jobs(jobs[number % 2])),
    ]


def reading(size: Size) -> list[Result]:
    nodes, jobs, rounds = size.of((NODES, JOBS, ROUNDS), (104, 4, 2))
    with large_cluster(jobs, nodes) as cluster:
        slurm = CommandLineGateway(environment=cluster.environment)
        view = read_view(slurm, time.time())
        assert (len(view.nodes), len(view.jobs)) == (nodes, jobs)
        return [
            _timed("scontrol_nodes", rounds, lambda _: cluster.run("scontrol", "--all", "show", "nodes", "-o")),
            _timed("scontrol_jobs", rounds, lambda _: cluster.run("scontrol", "--all", "show", "jobs", "-o")),
            _timed("read_nodes", rounds, lambda _: slurm.nodes()),
            _timed("read_jobs", rounds, lambda _: slurm.jobs()),
            _timed("read_reservations", rounds, lambda _: slurm.reservations()),
            _timed("read_view", rounds, lambda _: read_view(slurm, time.time())),
            _timed("read_view_own_processor_time", rounds, lambda _: read_view(slurm, time.time()), time.thread_time),
            result("another_thread_waits", "s", _waits(rounds, lambda: read_view(slurm, time.time())), {}, False),
        ]


def _timed(
    name: str, rounds: int, call: Callable[[int], object], clock: Callable[[], float] = time.perf_counter
) -> Result:
    taken: list[float] = []
    for number in range(rounds + 1):
        begun = clock()
        call(number)
        taken.append(clock() - begun)
    return result(name, "s", taken[1:], {}, more_is_better=False)  # the first one warms up


def _waits(rounds: int, call: Callable[[], object]) -> list[float]:
    """Longest time of each round by which a thread that sleeps a millisecond at a time woke up late."""
    late: list[float] = []
    stop = threading.Event()

    def sleeper() -> None:
        while not stop.is_set():
            begun = time.perf_counter()
            time.sleep(0.001)
            late.append(time.perf_counter() - begun - 0.001)

    longest: list[float] = []
    thread = threading.Thread(target=sleeper)
    thread.start()
    for _ in range(rounds):
        late.clear()
        call()
        longest.append(max(late))
    stop.set()
    thread.join()
    return longest
