"""The same faults in the simulator, which runs the control plane's own code, and in the model of plans.

`python -m tests.plan.simulated` runs the simulator and writes `tests/data/plan/simulated.json` (minutes).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

from tests.simulator.cluster import CHECKPOINT_STEPS, START_SECONDS, STEP_SECONDS
from tests.simulator.run import Outcome, simulate
from tests.simulator.scenario import Event, Kind, Scenario, Settings, node_names
from understudy_controlplane.figures.plan_run import Run
from understudy_controlplane.figures.plan_site import (
    Effect,
    Fault,
    FaultCause,
    Faults,
    Happens,
    SavedTier,
    Site,
    Way,
)
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_wire.facts import Tier

RECORD = Path(__file__).resolve().parents[1] / "data" / "plan" / "simulated.json"
SEEDS = range(1, 51)
FITTED = 10
"""Scenarios from which the time of detection is taken; the others are held against the model."""

NODES, SECONDS, BEGINS = 16, 900.0, 8.5
GANGS = (4, 3, 3)
"""Nodes of the gangs without a launcher: the first ten nodes. Faults strike these."""

FAULTS_UNTIL = 470.0
"""Later on, gangs of the simulator save less often."""

REPAIR = 120.0
EFFECTS = {Kind.NODE_DIES: Effect.DEAD, Kind.FAILS: Effect.BROKEN}


class Struck(msgspec.Struct, frozen=True):
    at: float
    node: int  # from 0
    effect: Effect
    detected: float | None  # seconds until it was drained


class Simulated(msgspec.Struct, frozen=True):
    seed: int
    faults: list[Struck]
    ettr: float  # of the three gangs, by their nodes


def scenario(seed: int) -> Scenario:
    random, names = Random(seed), node_names(NODES)
    kinds = (Kind.FAILS, Kind.FAILS, Kind.NODE_DIES)
    chosen = random.sample(range(sum(GANGS)), random.randint(1, 4))
    events = [
        Event(round(random.uniform(60.0, FAULTS_UNTIL), 2), random.choice(kinds), names[node], REPAIR)
        for node in chosen
    ]
    settings = Settings(spares=2, repairs=True, validates=True, default_guards=True)
    return Scenario(seed, tuple(sorted(events, key=lambda one: one.at)), settings, NODES, seconds=SECONDS)


def measured(one: Scenario, outcome: Outcome) -> Simulated:
    assert outcome.violation is None, outcome.violation
    world, names = outcome.world, node_names(NODES)
    drains = [(at, line.split()[2]) for at, line in world.story if line.startswith("Slurm: drain_node ")]

    def detected(event: Event) -> float | None:
        return next((round(at - event.at, 2) for at, name in drains if name == event.subject and at >= event.at), None)

    faults = [Struck(one.at, names.index(one.subject), EFFECTS[one.kind], detected(one)) for one in one.events]
    gangs = world.cluster.gangs[: len(GANGS)]
    work = sum(size * gang.step(world.now) for size, gang in zip(GANGS, gangs, strict=True)) * STEP_SECONDS
    return Simulated(one.seed, faults, round(work / (sum(GANGS) * (SECONDS - BEGINS)), 4))


def predicted(one: Simulated, detect: dict[Effect, float]) -> float:
    """ETTR by the model, with the simulator's own times."""
    faults = [
        Fault(fault.at - BEGINS, range(fault.node, fault.node + 1), _cause(fault.effect), REPAIR, 0.0, 0.0)
        for fault in one.faults
    ]
    tiers = (SavedTier(Tier.SHARED, CHECKPOINT_STEPS * STEP_SECONDS, restore=0.0),)
    days = (SECONDS - BEGINS) / DAY_SECONDS
    site = Site(GANGS, 3, 0, days, tiers, Faults([], [REPAIR]), START_SECONDS, START_SECONDS)
    return Run(site, Way("simulator", detect, 0.0, SWAP_SECONDS), Happens(faults)).done().ettr


SWAP_SECONDS = 1.5
"""Time from the drain until virtual Slurm runs the requeued gang."""


def _cause(effect: Effect) -> FaultCause:
    return FaultCause(effect.value, effect, 0.0)


def fitted(known: Sequence[Simulated]) -> dict[Effect, float]:
    """Mean times of detection in the first scenarios."""
    found: dict[Effect, float] = {}
    for effect in EFFECTS.values():
        times = [f.detected for one in known for f in one.faults if f.effect is effect and f.detected is not None]
        found[effect] = sum(times) / len(times)
    return found


def recorded() -> list[Simulated]:
    return msgspec.json.decode(RECORD.read_bytes(), type=list[Simulated])


def main() -> None:
    made = []
    for seed in SEEDS:
        one = scenario(seed)
        made.append(measured(one, simulate(one, trace=True)))
        sys.stdout.write(f"{made[-1]}\n")
        sys.stdout.flush()
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")


if __name__ == "__main__":
    main()
