"""The ranks of a virtual gang whose training asks before each step whether to save: the hook's own code, on the virtual
clock.

A rank that reaches a step waits while the order to save before it is only proposed, and the gang with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from understudy.save_steps import PROPOSED, SaveSteps
from understudy_controlplane.fleet.job import Attempt
from understudy_wire.ranks import OrderState, SaveOrder, SavesFollowed

WAIT_SECONDS_MAX = 10.0
"""A third of the hook's: gangs count as hung sooner here than by default, too."""

LOOK_SECONDS = 0.5
"""How closely ranks are followed while they know an order that is proposed only."""


@dataclass(frozen=True)
class Split:
    """Some ranks have saved before a step, and others have not."""

    job_id: int
    attempt: Attempt
    step: int
    saved: tuple[int, ...]
    not_saved: tuple[int, ...]


class AskingRanks:
    """Ranks of one attempt."""

    def __init__(self, ranks: int, first_step: int) -> None:
        self._ranks = [SaveSteps() for _ in range(ranks)]
        for rank in self._ranks:
            rank.wait_seconds = 0.0  # in true time
        self.asked = first_step
        self.waits_at: int | None = None
        """The step at which the gang stands, because a rank does not know what has become of its order."""
        self.gave_up = False
        """A rank has waited for as long as it may, and then not followed the order."""

    def ask(self, step: int, own_every: int) -> list[bool]:
        """True if each rank saves before this step."""
        self.gave_up |= any(self._waiting(step))
        self.asked = step
        return [rank.due(step, own_every) for rank in self._ranks]

    def has_to_wait(self, step: int) -> bool:
        return any(self._waiting(step))

    def _waiting(self, step: int) -> list[bool]:
        known = (rank.report() or {} for rank in self._ranks)
        return [one.get("state") == PROPOSED and one["step"] <= step for one in known]

    @property
    def knows_a_proposal(self) -> bool:
        return self.waits_at is not None or any((one.report() or {}).get("state") == PROPOSED for one in self._ranks)

    def take(self, rank: int, order: SaveOrder) -> None:
        words = {
            "number": order.number,
            "step": order.step,
            "every": order.every,
            "memory_every": order.memory_every,
            "state": order.state.value,
        }
        self._ranks[rank].take(words)

    def report(self, rank: int) -> SavesFollowed | None:
        known = self._ranks[rank].report()
        if known is None:
            return None
        state = OrderState(known.pop("state")) if "state" in known else None
        return SavesFollowed(**known, state=state)

    @property
    def is_one_schedule(self) -> bool:
        """True if all ranks save by the same order, and know the same one that is not withdrawn."""
        known = [one for one in map(self.report, range(len(self._ranks))) if one]
        settled = (None, OrderState.WITHDRAWN)
        return len({(0 if one.state in settled else one.number, one.in_force) for one in known}) <= 1
