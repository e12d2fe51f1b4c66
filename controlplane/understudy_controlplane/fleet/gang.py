"""Gangs that a launcher drives within their allocation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from understudy_controlplane.fleet.job import Attempt, JobKey
from understudy_wire.launcher import EarlierAllocations, LauncherOrders, LauncherPhase, LauncherState

LEAVING = frozenset({LauncherPhase.WAITING, LauncherPhase.LEAVING, LauncherPhase.DONE})
"""Phases in which a launcher starts no further launch."""

ENDED_WELL = "every rank of its last launch has ended well"
LAST_STEPS_SECONDS = 600.0
"""Steps of a gang that has ended may be reported so much later, by an agent that was cut off. A job with steps that
come later still trains on without that launcher.
"""


class Earlier(NamedTuple):
    """What a job's allocations before this one have left."""

    spent: EarlierAllocations
    """Earlier allocations as its launcher reads them: steps of this allocation are counted from 0."""
    count_from: int
    """What they are counted from otherwise: `fleet.job.Reached`."""


@dataclass(frozen=True, slots=True)
class Gang:
    """The launcher's last report. The launcher is a user's process: only what it reports about its own job counts."""

    state: LauncherState
    host: str  # where the launcher runs
    heard_at: float | None = None  # by the control plane's clock; None: read from the database, not reported since

    @property
    def attempt(self) -> Attempt:
        return Attempt(self.state.restart_count, self.state.launch)

    @property
    def seats(self) -> tuple[str, ...]:
        """Seats by node rank."""
        return self.state.seats

    @property
    def spares(self) -> tuple[str, ...]:
        return self.state.spares

    @property
    def nodes(self) -> tuple[str, ...]:
        return (*self.state.seats, *self.state.spares, *self.state.lost)

    def follows(self, before: Gang) -> bool:
        """True if it is the gang of a second launcher in the same allocation."""
        same = before.attempt.restart_count == self.attempt.restart_count
        return same and before.ended_well and not self.ended_well and self.attempt.launch == 0

    @property
    def ended_well(self) -> bool:
        """Every rank of its last launch has."""
        return self.state.ended_well

    def has_ended_well_since(self, since: float) -> bool:
        """Its job is done, and must not run again."""
        return self.ended_well and self.heard_at is not None and self.heard_at >= since

    @property
    def leaving(self) -> bool:
        return self.state.phase in LEAVING


def orders_version(orders: LauncherOrders) -> str:
    """Never empty. The same for the same orders."""
    layout = orders.layout and (orders.layout.group_sizes, sorted(orders.layout.domains.items()))
    known = (sorted(orders.bad.items()), orders.restart, sorted(orders.places.items()), layout, orders.may_shrink)
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class BrokenOff:
    """A launch that its launcher has ended because the gang crashed or hung, as it saw it."""

    launch: int
    hung: bool
    at: float
    reason: str
    node: str  # where a rank failed first; empty: none did
    on_newcomer: bool = False  # the launcher blames that node, which is new to the job


@dataclass(frozen=True, slots=True)
class RanOn:
    """Nodes on which a job's program has finished steps."""

    nodes: frozenset[str]
    newest: Attempt  # that finished one
    blamed: Attempt | None  # the newest attempt of an earlier allocation that failed on a node new to the job

    def newcomers(self, nodes: Iterable[str]) -> frozenset[str]:
        """Those of these nodes where what the program needs may be missing. None, where it has failed on a newcomer
        since its last step: then the program itself is the likely cause, and takes no further node.
        """
        if not self.nodes or (self.blamed is not None and self.blamed > self.newest):
            return frozenset()
        return frozenset(nodes) - self.nodes


@dataclass(frozen=True, slots=True)
class BlackHole:
    """A launcher blamed a node because its ranks failed first there, again and again."""

    job: JobKey
    user_id: int
    at: float  # the last time
