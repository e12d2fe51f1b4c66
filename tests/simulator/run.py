"""Runs seeds, shrinks the scenario of one that fails, and tells its story."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import structlog

from tests.simulator.coverage import Coverage
from tests.simulator.ledger import Violation
from tests.simulator.scenario import NODES, Scenario, draw
from tests.simulator.world import World
from understudy_controlplane.store.database import DatabaseInMemory

SHRINKS_MAX = 200
PROGRESS_SEEDS = 100
"""How often a long run prints how far it is."""


@dataclass(frozen=True)
class Outcome:
    world: World
    violation: Violation | None


def simulate(scenario: Scenario, *, trace: bool = False) -> Outcome:
    """Runs the scenario. With `trace` the world's story contains what the control plane logs as well."""
    world = World(scenario, _database())
    with logs_into(world if trace else None):
        try:
            world.run()
        except Violation as violation:
            world.narrate(f"VIOLATED {violation}")
            return Outcome(world, violation)
    return Outcome(world, None)


@functools.cache
def _database() -> DatabaseInMemory:
    """One for all simulations of this process: the migrations run once."""
    return DatabaseInMemory()


def shrink(scenario: Scenario, violation: Violation) -> Scenario:
    """Scenario without the events that it fails without: fewer events, the same invariant."""
    smallest = scenario
    for _ in range(SHRINKS_MAX):
        for index in reversed(range(len(smallest.events))):
            events = (*smallest.events[:index], *smallest.events[index + 1 :])
            smaller = msgspec.structs.replace(smallest, events=events)
            failed = simulate(smaller).violation
            if failed is not None and failed.invariant == violation.invariant:
                smallest = smaller
                break
        else:
            return smallest
    return smallest


def run_seeds(seeds: Sequence[int], *, nodes: int = NODES, trace: bool, show: Callable[[str], None]) -> list[int]:
    """Returns the seeds that failed."""
    failed: list[int] = []
    coverage = Coverage()
    for tried, seed in enumerate(seeds):
        if tried and tried % PROGRESS_SEEDS == 0:
            show(f"{tried} of {len(seeds)} seeds tried, {len(failed)} failed")
        scenario = draw(seed, nodes)
        outcome = simulate(scenario, trace=trace)
        coverage.add(outcome.world)
        if outcome.violation is not None:
            failed.append(seed)
            smallest = shrink(scenario, outcome.violation)
            outcome = simulate(smallest, trace=True)
            show(f"seed {seed} fails, also with {len(smallest.events)} of its {len(scenario.events)} events:")
        elif not trace:
            continue
        for at, words in outcome.world.story:
            show(f"{at:8.2f} s  {words}")
    if len(seeds) > 1:
        show("\n".join(coverage.report()))
    show(f"{len(failed)} of the seeds failed{': ' if failed else ''}{', '.join(map(str, failed))}")
    return failed


@contextmanager
def logs_into(world: World | None) -> Iterator[None]:
    """The control plane's log lines become part of the story, or are not even made."""
    before = structlog.get_config()

    def narrate(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> NoReturn:
        assert world is not None
        event = line.pop("event")
        line.pop("exc_info", None)
        world.narrate(f"{event}: " + ", ".join(f"{key} {value}" for key, value in line.items()))
        raise structlog.DropEvent

    level = logging.CRITICAL if world is None else logging.DEBUG
    ranks = logging.getLogger("understudy")  # the hook's, of the simulated ones
    ranks_before = ranks.level
    ranks.setLevel(logging.CRITICAL)
    structlog.configure(
        processors=[narrate],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
        ranks.setLevel(ranks_before)
