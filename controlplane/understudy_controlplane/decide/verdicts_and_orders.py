"""What follows from a snapshot beside decisions. Pure.

A part that fails stops no other: it is shown and notified like a decision that fails (`failures`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from understudy_controlplane.config import Config
from understudy_controlplane.decide.approvals import endings
from understudy_controlplane.decide.failures import Failures
from understudy_controlplane.decide.fitness import unfit_nodes
from understudy_controlplane.decide.launcher_orders import launcher_orders
from understudy_controlplane.decide.peers import Turn, turns
from understudy_controlplane.fleet.recovery import ProposalEnding
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.launcher import LauncherOrders


@dataclass(frozen=True, slots=True)
class Consequences:
    """Results of a round. A part that failed is empty: tests of the network wait for their peers, and no proposal ends.
    An approval that is too old counts no more all the same (`decide.approvals`).
    """

    unfit: Mapping[str, str] | None  # None: not known, and what was known before counts until it is too old
    orders: Mapping[int, LauncherOrders | None]  # by job id; None: that failed, and those that stand go on
    turns: Mapping[str, Turn]
    endings: Sequence[ProposalEnding]


def consequences(snapshot: Snapshot, config: Config, failures: Failures) -> Consequences:
    unfit = failures.caught("unfit_nodes", (), lambda: [unfit_nodes(snapshot)])
    unknown: dict[int, LauncherOrders | None] = {key.job_id: None for key in snapshot.progress.gangs}
    looks = partial(launcher_orders, snapshot, config, failures)
    orders = failures.caught("launcher_orders", (), lambda: looks().items(), otherwise=unknown.items())
    return Consequences(
        unfit=unfit[0] if unfit else None,
        orders=dict(orders),
        turns=dict(failures.caught("turns", (), lambda: turns(snapshot, config).items())),
        endings=failures.caught("endings", (), lambda: endings(snapshot)),
    )
