"""Messages between a launcher and the control plane, which the agent of its node passes on."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from understudy_wire.values import Count, Name, PackedNodes, Step, Text, UserId, WireEnum

LAUNCHER_WAIT_SECONDS_MAX = 20.0


class LauncherPhase(WireEnum):
    UNKNOWN = "unknown"
    SEATING = "seating"
    RUNNING = "running"
    ENDING = "ending"
    WAITING = "waiting"  # for a node, or for the job to be requeued
    LEAVING = "leaving"
    DONE = "done"


class LauncherState(msgspec.Struct, frozen=True, omit_defaults=True, tag="launcher"):
    """A gang as its launcher reports it, and reports it again whenever it has changed.

    The launcher writes this as JSON (`understudy_launcher.messages`: it needs nothing but Python), the agent passes it
    on unchanged in a `LauncherReport`, the control plane keeps it.
    """

    job_id: Count
    restart_count: Count
    launch: Count
    phase: LauncherPhase
    seats: tuple[Name, ...]  # by node rank; before 0.3.0 never empty
    spares: tuple[Name, ...] = ()
    lost: tuple[Name, ...] = ()  # nodes of the allocation that it does not use any more
    nodes_min: Count = 1  # it continues with no fewer
    group_sizes: Text = ""  # of the ranks' groups, as the command's own options name them: "tp=8 pp=4", also cp and ep
    ranks_per_node: Count = 0  # 0: not known yet
    unwell: dict[Name, Text] = {}  # nodes whose self-check failed before the first launch, and why
    nodes_packed: PackedNodes = ""
    ended_well: bool = False  # every rank of the last launch has, and nothing more is started: the job is done
    asks_requeue: bool = False  # it has too few nodes, waits for the job to be requeued, and ends where it is not


class LauncherReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """`POST /v1/launchers`, a long poll that an agent holds for each launcher on its node.

    The control plane answers at once where the orders are others than the `known` ones, else after `wait_seconds`.
    """

    version: int
    cluster: Name
    node: Name
    user_id: UserId  # of the launcher's process, as the kernel reports
    state: LauncherState
    known: Text = ""  # `orders_version` of the orders that the launcher has; empty: none
    wait_seconds: Annotated[float, Meta(ge=0, le=LAUNCHER_WAIT_SECONDS_MAX)] = 0.0


class Restart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The launcher must restart the gang, although no rank of it has ended."""

    launch: Count  # this launch, or an earlier one, must end
    reason: str
    without: tuple[str, ...] = ()  # nodes that a spare replaces, where there is one; they are not bad


class RankLayout(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gang whose groups of ranks need several nodes: what the launcher needs to keep each within a domain."""

    group_sizes: str = ""  # as in `LauncherState`, or as the job's comment names them
    domains: dict[str, tuple[str, ...]] = {}  # of each good node of the allocation, as "rack r1"


class LauncherOrders(msgspec.Struct, frozen=True, omit_defaults=True):
    """All orders that are valid now. A node that is not in `bad` any more can be used again."""

    bad: dict[str, str] = {}  # node → why nothing of the gang may run there
    restart: Restart | None = None
    places: dict[str, str] = {}  # node that the gang leaves → the spare that costs the gang least in its place
    layout: RankLayout | None = None  # None: the order of ranks makes no difference, or is not known to make one
    may_shrink: bool = False  # without a spare of its own it may continue with fewer nodes, if its job allows that


class EarlierAllocations(msgspec.Struct, frozen=True, omit_defaults=True):
    """What earlier allocations of a job have used up and reached."""

    launches_without_progress: Count = 0  # since the job's last progress
    best_step: Step | None = None
    newcomers: tuple[Name, ...] = ()  # nodes of this one on which it never finished a step; none: not known


class LauncherAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag="answer"):
    """The control plane's answer to a `LauncherReport`, which the agent passes on to the launcher unchanged."""

    orders_version: str = ""
    orders: LauncherOrders | None = None  # None: the earlier orders stay valid
    earlier: EarlierAllocations = EarlierAllocations()
    launch: Count = 0
    step: Step | None = None  # the furthest that this launch has finished, as this allocation counts; None: not known
    restore_step: Step = 0  # of the newest good checkpoint, for launches while no control plane answers
    restore_path: str = ""  # empty: there is none
    restore_ranks: Count = 0  # a gang of no other size can restore it; 0: any can, or it is not known
    count_from: Step = 0  # what has to be taken off `step` for the number that the program gave it
