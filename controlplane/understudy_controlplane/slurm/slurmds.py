"""Many slurmds asked side by side: each takes some 10 ms to answer, and one that is silent the whole timeout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from understudy_controlplane.fleet.slurm import SlurmNode

ASKED_AT_ONCE = 64


def ask_slurmds(nodes: Sequence[SlurmNode], answers: Callable[[SlurmNode], bool]) -> dict[str, bool]:
    """Node → whether its slurmd answers."""
    if len(nodes) <= 1:
        return {node.name: answers(node) for node in nodes}
    with ThreadPoolExecutor(max_workers=min(len(nodes), ASKED_AT_ONCE)) as pool:
        return dict(zip((node.name for node in nodes), pool.map(answers, nodes), strict=True))
