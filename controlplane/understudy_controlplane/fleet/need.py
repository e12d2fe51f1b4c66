"""A need: something that waits for a person. A value; `decide/needs.py` finds them all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NeedKind(StrEnum):
    """Needs in the order in which a person reads them."""

    CONTROL_PLANE = "control_plane"  # it cannot do its work, or its configuration is not in force
    AGENTS_SILENT = "agents_silent"  # too many at once: nothing is decided
    BREAKER = "breaker"  # it is open
    GANG_STAYS = "gang_stays"  # on a node at fault, or hung, and Understudy cannot move it
    GANG_NOT_BACK = "gang_not_back"  # its attempt was ended for a move that has failed
    GANG_HELD = "gang_held"  # by Slurm itself, until a person releases it
    GANG_PENDS = "gang_pends"  # a fault has stopped it, and it has not run since
    GANG_UNHEARD = "gang_unheard"  # no rank reports since its restart or the control plane's, or no step ends
    GANG_SLOW = "gang_slow"  # a faulty GPU slows it, and what a move would cost is not known
    APPROVAL = "approval"  # a recovery waits for it
    HELD_BACK = "held_back"  # by a guard
    DOMAIN_DOWN = "domain_down"  # a rack, a switch or a block failed as a whole
    BUDGET = "budget"  # as many nodes are out of service as may be: the next fault leads to nothing
    SITE_WARNING = "site_warning"  # another system of the site reports what may stop gangs
    HOOKS_MISSING = "hooks_missing"  # slurm.conf names some of the hooks, and not all
    NOTIFICATIONS = "notifications"  # they do not reach their receivers
    ONLY_OBSERVED = "only_observed"  # incidents are open, and the mode is observe
    NODE_OUT = "node_out"  # out of service, and Understudy does not bring it back
    NODE_LEFT = "node_left"  # Slurm itself took it out of service, and nothing brings it back
    RECONFIGURE = "reconfigure"  # Slurm may count a job of a dead gang on its nodes for good
    NODE_SILENT = "node_silent"  # its agent does not report
    POOL_SHORT = "pool_short"  # fewer spares are held than wanted, and no node can join
    SPARE_OCCUPIED = "spare_occupied"  # a process outside of Slurm's jobs computes on it
    INCIDENT = "incident"  # open for long, and nothing is under way that ends it
    DRILL = "drill"  # goes on, and ends by itself
    NEVER_HEARD = "never_heard"  # nodes without an agent


@dataclass(frozen=True, slots=True)
class Need:
    """`since`: when it began, or was seen first. `command`: what ends it, or shows what does."""

    kind: NeedKind
    subject: str  # "n3", "job 7", "recovery 12", "rack r1", "fleet"
    since: float
    why: str
    command: str = ""
    patience_seconds: float = 0.0  # for which it may end by itself: no person has to know of it before
    page_seconds: float | None = None  # after `since` it is urgent: a person is paged; None: it waits until the morning

    @property
    def key(self) -> str:
        return f"{self.kind.value} {self.subject}"

    def is_due(self, now: float) -> bool:
        return now - self.since >= self.patience_seconds

    def is_urgent(self, now: float) -> bool:
        return self.page_seconds is not None and now - self.since >= self.page_seconds

    def __str__(self) -> str:
        return f"{self.why}: {self.command}" if self.command else self.why
