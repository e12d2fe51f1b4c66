"""Hours for which spares waited in the pool, and for whom. Pure: as far as the history of the pool shows it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from understudy_controlplane.fleet.history import PoolChange


@dataclass(frozen=True, slots=True)
class Wait:
    """`job`: that the spare served in the end; None: none so far."""

    node: str
    begin: float
    end: float
    job: int | None


def waits(changes: Iterable[PoolChange], held: Iterable[str], since: float, until: float) -> list[Wait]:
    """`held`: spares at `until`. Where nothing is known of its beginning, a spare waited from `since` on; where nothing
    is known of its end, it is left out.
    """
    joined: dict[str, float] = {}
    seen: set[str] = set()
    found: list[Wait] = []
    for change in sorted(changes, key=lambda one: one.at):
        if change.at >= until:
            break
        if change.joins:
            joined[change.node] = max(change.at, since)
        elif change.node in joined or (change.node not in seen and change.job is not None):
            begin = joined.pop(change.node, since)
            if change.at > begin:
                found.append(Wait(change.node, begin, change.at, change.job))
        seen.add(change.node)
    found += [Wait(node, joined.get(node, since), until, None) for node in held if node in joined or node not in seen]
    return found


def most_taken(changes: Iterable[PoolChange], seconds: float) -> int:
    """Most spares that gangs took within any time of this length."""
    taken = sorted(one.at for one in changes if one.job is not None)
    return max((bisect_left(taken, at + seconds) - number for number, at in enumerate(taken)), default=0)
