"""What the test of its GPU shows of a slow rank: all ranks do the same multiplication after the same steps.

The times come from the user's own process, so they name a reason, and confirm it only where the site wants that.
"""

from __future__ import annotations

from statistics import median

from understudy_controlplane.fleet.steps import StepTable

SLOWER_RATIO = 1.1
AS_FAST_RATIO = 1.05

OTHERS_MIN = 3


def slower_than_others(table: StepTable, rank: int, since_step: int) -> float | None:
    """How many times as long its multiplication takes, in a test after this step. None: there was no such test, or too
    few others were tested after the same step.
    """
    own = table.training.get(rank)
    if own is None or own.compute_step is None or not own.compute_seconds or own.compute_step < since_step:
        return None
    others = [
        one.compute_seconds
        for other, one in table.training.items()
        if other != rank and one.compute_step == own.compute_step and one.compute_seconds
    ]
    return own.compute_seconds / median(others) if len(others) >= OTHERS_MIN else None


def all_reduce_slower_than_others(table: StepTable, rank: int, since_step: int) -> float | None:
    """How many times as long the all-reduce of its group takes as those on other nodes, in a test after this step.
    None: there was none, or too few other nodes did one after the same step.
    """
    own = table.training.get(rank)
    if own is None or own.compute_step is None or not own.all_reduce_seconds or own.compute_step < since_step:
        return None
    of_node: dict[str, float] = {}
    for other, one in table.training.items():
        if one.compute_step == own.compute_step and one.all_reduce_seconds and table.nodes[other]:
            of_node[table.nodes[other]] = max(one.all_reduce_seconds, of_node.get(table.nodes[other], 0.0))
    of_node.pop(table.nodes[rank], None)
    return own.all_reduce_seconds / median(of_node.values()) if len(of_node) >= OTHERS_MIN else None


def all_reduce_words(ratio: float | None) -> str:
    """Empty: nothing that helps."""
    if ratio is None or ratio < SLOWER_RATIO:
        return ""
    return f"its group takes {ratio:.2f} times as long for the same all-reduce as those of other nodes"


def words(ratio: float | None) -> str:
    """Empty: nothing that helps."""
    if ratio is not None and ratio >= SLOWER_RATIO:
        return f"its GPU takes {ratio:.2f} times as long for the same multiplication as those of other ranks"
    if ratio is not None and ratio <= AS_FAST_RATIO:
        return "its GPU is as fast as those of other ranks, as the test between steps shows"
    return ""
