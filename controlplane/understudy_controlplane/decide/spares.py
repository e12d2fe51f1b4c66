"""Finds the nodes that are spares, and chooses the one that is taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache

from understudy_controlplane.config import Config, Spares
from understudy_controlplane.decide.foreign_reservations import foreign_reservations, kept_nodes, reserved_by_others
from understudy_controlplane.decide.guards import still_gathering
from understudy_controlplane.decide.pool_spread import spread
from understudy_controlplane.detect.gpu_set import lacks_gpus
from understudy_controlplane.detect.lemon import lemons
from understudy_controlplane.detect.processes import outside_of_jobs
from understudy_controlplane.detect.site_signals import is_blocked
from understudy_controlplane.detect.stopped import stopped_gang
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import OUT_OF_SERVICE, NodeState, NodeView, ValidationOrigin
from understudy_controlplane.fleet.recovery import (
    FillPoolPlan,
    LeavePoolPlan,
    PoolSwapPlan,
    Recovery,
    RecoveryKind,
    ReturnPlan,
    StepName,
)
from understudy_controlplane.fleet.slurm import POOL_USER, Service
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.topology import DomainKind
from understudy_wire.hardware import StuckProcess


@lru_cache(maxsize=32_768)  # thousands of nodes that are silent are sorted by it in each round
def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key: n9 before n10."""
    return tuple((int(part) if part.isdecimal() else -1, part) for part in re.findall(r"\d+|\D+", name))


def free_spares(snapshot: Snapshot, config: Config) -> list[str]:
    """Spares fit to take a gang's seat now, best first; those on probation and lemons last. Nodes that
    another user has reserved, now or later, are left out.
    """
    taken = {spare for recovery in snapshot.recoveries for spare in _promised(recovery)}
    taken |= reserved_by_others(snapshot, config)
    fit = [
        node.name
        for node in snapshot.notable
        if node.is_spare
        and node.name not in taken
        and is_fit(node, snapshot, config)
        and not snapshot.holders_of(node.name)
        and snapshot.operator.spare_choices.get(node.name) is not False
    ]
    return _best_first(snapshot, fit, config)


def _best_first(snapshot: Snapshot, names: Iterable[str], config: Config) -> list[str]:
    """Lemons and nodes on probation last; those validated most recently first."""
    standing = standing_of(snapshot, config)
    validated: dict[str, float] = {}
    for one in snapshot.history.attempts:
        if one.kind is RecoveryKind.VALIDATE and one.ended_at is not None:
            validated[one.node] = max(one.ended_at, validated.get(one.node, 0.0))
    return sorted(names, key=lambda name: (standing(name), -validated.get(name, 0.0), natural(name)))


def standing_of(snapshot: Snapshot, config: Config) -> Callable[[str], tuple[bool, bool]]:
    """Standing of a node: whether it is a lemon; whether it is on probation, or a program failed there and not
    elsewhere.
    """
    known = lemons(snapshot, config.lemon)
    return lambda name: (name in known, _on_probation(snapshot, name) or _is_blamed(snapshot, name))


def _is_blamed(snapshot: Snapshot, name: str) -> bool:
    """True if a launcher blamed it within the last week. What its program lacked there, others may lack."""
    cleared_at = snapshot.nodes[name].record.cleared_at
    return any(one.at > cleared_at for one in snapshot.history.black_holes.get(name, ()))


def _promised(recovery: Recovery) -> tuple[str, ...]:
    """Spares that a gang or the pool is about to get."""
    match recovery.plan:
        case PoolSwapPlan(spares=spares) | FillPoolPlan(spares=spares) | LeavePoolPlan(spares=spares):
            return spares
        case ReturnPlan(nodes=nodes, steps=steps) if StepName.FILL_POOL in steps:
            return nodes
    return ()


def known_node(snapshot: Snapshot, job: Job, failed: str) -> NodeView | None:
    """This node, or, where Slurm does not know it any more, another that the job has or had; None: it knows none."""
    last = snapshot.progress.last_attempts.get(job.key)
    names = (failed, *job.slurm.nodes, *(last.nodes if last is not None else ()))
    views = (snapshot.nodes.get(name) for name in names)
    return next((one for one in views if one is not None and one.slurm is not None), None)


def suits(spare: NodeView, job: Job, failed: NodeView) -> bool:
    """Slurm requeues a job also where it then finds no nodes for it (BadConstraints)."""
    return not why_unsuitable(spare, job, failed)


def why_unsuitable(spare: NodeView, job: Job, failed: NodeView) -> str:
    """Why the job could not go on on the spare in the place of the node that it leaves, in words; empty: it could."""
    if spare.slurm is None or failed.slurm is None:
        return "Slurm does not know it"
    return spare.slurm.why_unfit(job.slurm, failed.slurm) or spare.other_gpus_than(failed)


def is_open_to(snapshot: Snapshot, node: NodeView, job: Job) -> bool:
    """No other job has the node's block or leaf switch to itself. One that `job` itself has ends with its requeue."""
    if node.slurm is None or not node.slurm.blocked:
        return True
    own = set(job.slurm.nodes)
    return any(
        domain.kind in (DomainKind.NVLINK_BLOCK, DomainKind.SWITCH) and not own.isdisjoint(domain.nodes)
        for domain in snapshot.topology.of_node.get(node.name, ())
    )


def kept_for_others(job: Job, policy: Spares) -> dict[str, int]:
    """How many spares are reserved, by their holder, that this job is none of."""
    own = (f"user {job.slurm.user}", f"account {job.slurm.account}", f"job {job.slurm.name}")
    return {holder: count for holder, count in policy.reserved.items() if count and holder not in own}


def wanted(snapshot: Snapshot, policy: Spares) -> int:
    """How many spares the pool is to hold: what an operator has set, or as configured."""
    return policy.count if snapshot.operator.spares_wanted is None else snapshot.operator.spares_wanted


def joining_pool(snapshot: Snapshot, bad: Collection[str], config: Config) -> tuple[str, ...]:
    """Nodes that should join the spare pool now; `bad` nodes are condemned just now.

    A spare that is away and not lost counts as held: it comes back by itself.

    Only idle nodes join: all that operators add, and of the others as many as are missing. Of these those on probation
    first, lemons when there is no other node; spread over domains, and within one last by name first.
    """
    policy, choices = config.spares, snapshot.operator.spare_choices
    short = wanted(snapshot, policy) - len(held(snapshot, policy))
    if (short <= 0 and True not in choices.values()) or still_gathering(snapshot):
        return ()
    bad = {*bad, *_awaited(snapshot)}
    idle = [name for name in _unused(snapshot, config) if name not in bad and not _is_blocked(snapshot, name)]
    added = sorted((name for name in idle if choices.get(name)), key=natural)
    missing = short - len(added)
    if missing <= 0:
        return tuple(added)
    others = [name for name in idle if name not in choices and _is_in(snapshot.nodes[name], policy.partition)]
    others = [name for name in others if snapshot.mode_of([name]) is snapshot.mode]  # the others wait for approval
    standing = standing_of(snapshot, config)

    def joins_later(name: str) -> tuple[bool, bool]:
        lemon, on_probation = standing(name)
        return lemon, not on_probation

    by_name = sorted(others, key=natural, reverse=True)
    joining = spread(snapshot, sorted(by_name, key=joins_later), missing, joins_later)
    return (*sorted(joining, key=natural), *added)


def _awaited(snapshot: Snapshot) -> set[str]:
    """Nodes on which a gang ran that a fault has stopped, and that waits for nodes since."""
    last = snapshot.progress.last_attempts.items()
    return {name for key, one in last if stopped_gang(snapshot, key) is not None for name in one.nodes}


def leaving_pool(snapshot: Snapshot, config: Config) -> tuple[str, ...]:
    """Spares that operators remove, or that other users have reserved: the pool would keep their jobs off. Then those
    that are too many. Not those that a gang is about to get. For a maintenance (MAINT) none leaves: no job starts there
    meanwhile.
    """
    promised = {name for one in snapshot.recoveries for name in _promised(one)}
    removed = {name for name, chosen in snapshot.operator.spare_choices.items() if not chosen}
    foreign = foreign_reservations(snapshot, None, config)
    removed |= {name for one in foreign if not one.is_maintenance for name in one.nodes}
    leaving = [name for name in removed - promised if name in snapshot.nodes and snapshot.nodes[name].is_spare]
    leaving = leaving or _too_many(snapshot, promised, config)
    return tuple(sorted((name for name in leaving if not snapshot.is_in_observed_part(name)), key=natural))


def _too_many(snapshot: Snapshot, promised: Collection[str], config: Config) -> list[str]:
    """Spares beyond the pool's size: others joined while they counted as lost, or the size is smaller now. Operators'
    own come on top of it. Those stay that are fit, and among these those that would join first.
    """
    is_filled_by_others = snapshot.operator.spares_wanted is None and not config.spares.count
    if is_filled_by_others or still_gathering(snapshot):
        return []
    choices = snapshot.operator.spare_choices
    kept = [name for name in held(snapshot, config.spares) if name not in promised]
    chosen = [name for name in kept if name not in choices and snapshot.nodes[name].state not in OUT_OF_SERVICE]
    size = wanted(snapshot, config.spares)
    if len(chosen) <= size:
        return []
    standing = standing_of(snapshot, config)

    def leaves_first(name: str) -> tuple[bool, bool, bool]:
        lemon, on_probation = standing(name)
        return not is_fit(snapshot.nodes[name], snapshot, config), lemon, not on_probation

    in_order = sorted(sorted(chosen, key=natural, reverse=True), key=leaves_first)
    staying = spread(snapshot, in_order, size, leaves_first, beside=[name for name in kept if name not in chosen])
    return [name for name in chosen if name not in staying]


def idle_nodes(snapshot: Snapshot, config: Config) -> list[str]:
    """Nodes outside the pool that any job may get, best first; those on probation and lemons last. No reservation holds
    them, now or later, no recovery has promised them, and no operator asks for them.
    """
    return [name for name in idle_for_gangs(snapshot, config) if not _is_blocked(snapshot, name)]


def idle_for_gangs(snapshot: Snapshot, config: Config) -> list[str]:
    """Adds to `idle_nodes` those that are open only to the gang in whose block they are (`is_open_to`)."""
    promised = {name for one in snapshot.recoveries for name in one.plan.claimed}
    idle = [
        name
        for name in _unused(snapshot, config)
        if name not in promised and name not in snapshot.operator.requests and not snapshot.holders_of(name)
    ]
    return _best_first(snapshot, idle, config)


def _unused(snapshot: Snapshot, config: Config) -> list[str]:
    """Healthy nodes that Slurm has idle, and planned and reserved for nothing."""
    reserved = kept_nodes(snapshot.slurm.reservations.values(), snapshot.slurm_now)
    return [
        name
        for name in snapshot.nodes
        if name not in reserved
        and (slurm := snapshot.in_slurm.get(name)) is not None
        and slurm.base_state == "IDLE"
        and not slurm.flags & {"COMPLETING", "RESERVED", "PLANNED"}
        and is_fit(snapshot.nodes[name], snapshot, config)
    ]


def _is_blocked(snapshot: Snapshot, name: str) -> bool:
    slurm = snapshot.nodes[name].slurm
    return slurm is not None and slurm.blocked


def _on_probation(snapshot: Snapshot, name: str) -> bool:
    return snapshot.nodes[name].state is NodeState.PROBATION


def takes_into_pool(snapshot: Snapshot, node: NodeView, config: Config) -> bool:
    """True if a node that is reserved for the control plane can join the pool right away. The pool would keep the jobs
    of another user who has reserved the node off it, now or later.
    """
    policy = config.spares
    pool = snapshot.slurm.reservations.get(policy.reservation)
    owned = pool is None or pool.made_for(POOL_USER)
    busy = any(one.step(StepName.TAKE_SPARES) or one.step(StepName.FILL_POOL) for one in snapshot.recoveries)
    chosen = snapshot.operator.spare_choices.get(node.name)
    if chosen is None:
        chosen = wanted(snapshot, policy) > len(held(snapshot, policy)) and _is_in(node, policy.partition)
    return chosen and owned and not busy and node.name not in reserved_by_others(snapshot, config)


def _is_in(node: NodeView, partition: str) -> bool:
    """Empty: any partition will do."""
    return not partition or (node.slurm is not None and partition in node.slurm.partitions)


OCCUPIED_SECONDS = 600.0
"""A user who has only tried something has ended it by then."""


def occupying(snapshot: Snapshot, node: NodeView) -> list[StuckProcess]:
    """Processes outside of Slurm's jobs that have computed there for ten minutes: no gang can use the node until a
    person or their owner ends them.
    """
    return [one for one in outside_of_jobs(snapshot, node) if one.seconds >= OCCUPIED_SECONDS]


def held(snapshot: Snapshot, policy: Spares) -> list[str]:
    """Spares that are there or come back by themselves: also one that Slurm has switched off, that reboots or that has
    missed a ping. Lost is one that is out of service, that Slurm has given up (DOWN), that people have taken, and that
    a process occupies. Of the last at most as many as the pool is to hold: no user makes it larger than twice that.
    """
    occupied = [node.name for node in snapshot.notable if node.is_spare and occupying(snapshot, node)]
    lost = occupied[: wanted(snapshot, policy)]
    return [
        node.name
        for node in snapshot.notable
        if node.is_spare
        and (node.state not in OUT_OF_SERVICE or node.record.validation_origin is ValidationOrigin.SPARE_CHECK)
        and node.state is not NodeState.FOREIGN_DRAIN
        and node.slurm is not None
        and not (node.slurm.taken_out or node.slurm.in_maintenance)
        and node.name not in lost
    ]


HEARD_WITHIN_SECONDS = 10.0
"""A node on probation stays so when it falls silent; then it is no spare."""


def is_fit(node: NodeView, snapshot: Snapshot, config: Config) -> bool:
    """A gang could run there, if it were free."""
    on_probation = node.state is NodeState.PROBATION and snapshot.now - (node.heard_at or 0.0) < HEARD_WITHIN_SECONDS
    return (
        (node.state is NodeState.IN_SERVICE or on_probation)
        and not snapshot.is_in_observed_part(node.name)
        and node.heard_at is not None
        and node.service is Service.USABLE
        and not lacks_gpus(node)
        and not outside_of_jobs(snapshot, node)
        and not is_blocked(snapshot, node.name, config.signals)
        and node.name not in snapshot.without_fabric
        and node.name not in snapshot.under_maintenance
        and not node.has_port_down
    )
