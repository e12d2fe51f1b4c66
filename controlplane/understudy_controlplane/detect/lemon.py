"""Lemons: nodes that fail repeatedly. A score of a node's faults over 28 days.

The signals are those that Meta has published for its clusters; their weights were not published. What the whole fleet
shows (an update that restarts every agent) is subtracted: its median. A lemon is recorded for an administrator and is
the last to be taken as a spare. Nothing else follows: a node flagged for its past faults is well for the next 28 days
more often than not (docs/adr/0019).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from statistics import median

from understudy_controlplane.config import Lemon
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.lemon import LemonSignals
from understudy_controlplane.fleet.snapshot import Snapshot

WEIGHTS = LemonSignals(
    faults=1.0,
    agent_losses=0.5,
    xid_kinds=0.25,
    outages=0.5,
    single_node_failures=0.25,
    multi_node_failures=0.5,
    excluded_by=0.0,  # shown only: it was found to say nothing
)
POINTS_MAX = LemonSignals(
    faults=10.0,
    agent_losses=1.5,
    xid_kinds=1.0,
    outages=1.5,
    single_node_failures=1.0,
    multi_node_failures=1.0,
    excluded_by=0.0,
)
"""No signal but faults makes a lemon by itself: each of the others has other causes as well."""

NAMES = tuple(field.name for field in fields(LemonSignals))


def lemon(snapshot: Snapshot, policy: Lemon) -> Iterator[Finding]:
    for name, score in scores(snapshot.history.lemon_signals, len(snapshot.nodes)).items():
        if score >= policy.score_min and name in snapshot.nodes:
            values = {key: round(value, 2) for key, value in asdict(signals_of(snapshot, name)).items() if value}
            counts = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in values.items())
            words = f"score {score:.1f} in {policy.days:g} days ({counts})"
            yield Finding(
                Signal.LEMON,
                "lemon.score",
                name,
                snapshot.now,
                f"fails repeatedly: {words}; an administrator should look at it",
                Evidence({"score": round(score, 2), **values}),
            )


def lemons(snapshot: Snapshot, policy: Lemon) -> dict[str, float]:
    """Node → score, of those that are called lemons."""
    known = scores(snapshot.history.lemon_signals, len(snapshot.nodes))
    return {name: score for name, score in known.items() if score >= policy.score_min}


def signals_of(snapshot: Snapshot, node: str) -> LemonSignals:
    return snapshot.history.lemon_signals.get(node, LemonSignals())


def scores(signals: Mapping[str, LemonSignals], nodes: int) -> dict[str, float]:
    """Node → score, of those with any signal. `nodes` is the size of the fleet: who is not in `signals` has none."""
    totals = dict.fromkeys(signals, 0.0)
    for name in NAMES:
        weight, most = getattr(WEIGHTS, name), getattr(POINTS_MAX, name)
        values = [getattr(one, name) for one in signals.values()]
        usual = _median(values, nodes)
        for node, value in zip(signals, values, strict=True):
            if value > usual:
                totals[node] += min((value - usual) * weight, most)
    return totals


def _median(values: list[float], nodes: int) -> float:
    """Median of the whole fleet. Each of one or two nodes is its own measure, so nothing is taken off."""
    if nodes < 3 or 2 * len(values) < nodes:
        return 0.0
    return median([*values, *([0.0] * (nodes - len(values)))])


def excluded_by(jobs: Iterable[Job]) -> Counter[str]:
    """Node → how many users' jobs keep off it."""
    pairs = {(job.slurm.user, node) for job in jobs for node in job.slurm.excluded_nodes}
    return Counter(node for _, node in pairs)
