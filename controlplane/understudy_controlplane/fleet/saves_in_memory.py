"""Saves of a gang in the memory of its nodes, as their keepers report what they hold. Nothing of them is stored.

The ranks choose among them themselves (`understudy.peer`), by the same rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.job import Attempt
from understudy_wire.messages import Keeper, KeptSave

SAME_SAVE_MAX = 2
"""Attempts that go on from the same save."""


@dataclass(frozen=True, slots=True)
class SaveInMemory:
    attempt: Attempt  # that made it
    step: int  # training continues with this step
    world_size: int
    at: float
    nodes: int  # that hold parts of it
    ranks: int  # whose parts are held
    places: int  # nodes that have each part, of the part that the fewest have; 0: one is not held
    blocked_seconds: float | None
    against: str  # why no gang goes on from it; empty: nothing


def saves_in_memory(keepers: Mapping[str, Keeper], job_id: int, user_id: int) -> list[SaveInMemory]:
    """Newest first. `keepers` are by node, of the nodes that a gang would have."""
    found: dict[tuple[int, int, int], list[KeptSave]] = {}
    for keeper in keepers.values():
        for one in keeper.saves:
            if (one.job_id, one.user_id) == (job_id, user_id):
                found.setdefault((one.restart_count, one.launch, one.step), []).append(one)
    return [_of(found[save]) for save in sorted(found, reverse=True)]


def _of(held: list[KeptSave]) -> SaveInMemory:
    one, places = held[0], Counter(rank for kept in held for rank in kept.ranks)
    missing = [rank for rank in range(one.world_size) if rank not in places]
    against = ""
    if missing:
        others = f" and of {counted(len(missing) - 1, 'more rank', 'more ranks')}" if len(missing) > 1 else ""
        against = f"the part of rank {missing[0]}{others} is not held"
    elif max(kept.restored for kept in held) >= SAME_SAVE_MAX:
        against = f"{SAME_SAVE_MAX} attempts went on from it"
    blocked = [kept.blocked_seconds for kept in held if kept.blocked_seconds is not None]
    return SaveInMemory(
        Attempt(one.restart_count, one.launch),
        one.step,
        one.world_size,
        max(kept.at for kept in held),
        len(held),
        len(places),
        0 if missing else min(places.values()),
        max(blocked, default=None),
        against,
    )
