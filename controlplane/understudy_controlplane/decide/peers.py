"""Chooses when and with which nodes the network of a node is tested. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from understudy_controlplane.config import Config, RunStages
from understudy_controlplane.decide import spares
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.fleet.counted import listed
from understudy_controlplane.fleet.durations import HOUR_SECONDS, MINUTE_SECONDS
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX, Recovery, StepName, StepStatus, ValidationPlan
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.stages import StageName

PEERS_MAX = 3
ROUNDS_SECONDS = 1800.0
"""How long it may take until each of the nodes that wait for each other has had its turn."""


def network_is_tested(config: Config, hours: float) -> bool:
    """True if a validation of so many hours tests the network; 0: no burn-in."""
    policy = config.validation
    runs = policy.run_stages is RunStages.ALWAYS or (policy.run_stages is RunStages.BURN_IN and hours > 0)
    return runs and policy.all_stages[StageName.NETWORK].enabled


def peers_of(snapshot: Snapshot, node: NodeView, config: Config) -> tuple[str, ...]:
    """Idle nodes, for a validation that is no burn-in."""
    if not network_is_tested(config, 0.0):
        return ()
    return _choose(snapshot, node, spares.idle_nodes(snapshot, config))


def _choose(snapshot: Snapshot, node: NodeView, candidates: Iterable[str]) -> tuple[str, ...]:
    """One of each distance: its leaf switch, its rack, another pod. Where there are fewer distances, more of the
    nearest: of a slow pair a third node shows which end it is.
    """
    free = [name for name in candidates if name != node.name and _alike(snapshot, name, node)]
    if not free:
        return ()
    far = dict(zip(free, snapshot.topology.distances.between([node.name], free)[0].tolist(), strict=True))
    # Beginning behind the node's own name, so that not all nodes take the same peers.
    in_turn = sorted(free, key=lambda name: (natural(name) < natural(node.name), natural(name)))
    by_distance = sorted(in_turn, key=lambda name: far[name])
    chosen = list({far[name]: name for name in reversed(by_distance)}.values())[::-1]  # the first of each distance
    if len(chosen) > PEERS_MAX:
        chosen = [chosen[0], chosen[len(chosen) // 2], chosen[-1]]
    more = [name for name in by_distance if name not in chosen]
    return tuple([*chosen, *more][:PEERS_MAX])


def _alike(snapshot: Snapshot, name: str, node: NodeView) -> bool:
    other = snapshot.nodes[name].slurm
    own = node.slurm
    if other is None or own is None:
        return False
    return other.gres == own.gres and not set(other.partitions).isdisjoint(own.partitions)


# -- nodes that are burnt in side by side --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn of a node whose burn-in is over and whose network is to be tested, or was. `waits`: why it has to wait;
    empty: it goes on. `peers`: of a test that begins. `tested`: its own test is over.
    """

    peers: tuple[str, ...] = ()
    waits: str = ""
    tested: bool = False


NO_TURNS: Mapping[str, Turn] = MappingProxyType({})


def turns(snapshot: Snapshot, config: Config) -> dict[str, Turn]:
    """Nodes of one rack are burnt in side by side and have no idle peers but each other. Those whose burn-ins end at
    about the same time wait for the last of them, and their networks are tested in rounds, so that no node takes part
    in two tests at once. Each waits for a limited time, with its reservation: as a peer it is free until all are done.
    """
    burn_ins = {one.plan.nodes[0]: one for one in _burn_ins(snapshot)}
    burnt = {name: one for name, one in burn_ins.items() if _is(one, StepName.RUN_VALIDATION, StepStatus.DONE)}
    if not burnt:
        return {}
    found = {name: _wait(snapshot, one, burn_ins.values(), config) for name, one in burnt.items()}
    held = [name for name in burnt if f"{NODE_HOLD_PREFIX}{name}" in snapshot.slurm.reservations]
    candidates = [*held, *spares.idle_nodes(snapshot, config)]
    under_way = [name for name, one in burnt.items() if _is(one, StepName.TEST_NETWORK, StepStatus.INTENDED)]
    tested = {name for name, one in burnt.items() if _is(one, StepName.TEST_NETWORK, StepStatus.DONE)}
    due = [name for name, turn in found.items() if not turn.waits and name not in tested and name not in under_way]
    meeting: dict[str, tuple[str, ...]] = {}
    for name in [*sorted(under_way, key=natural), *sorted(due, key=natural)]:
        in_use = {*meeting, *under_way, *(peer for peers in meeting.values() for peer in peers)}
        free = [one for one in candidates if one not in in_use]
        peers, best = (_choose(snapshot, snapshot.nodes[name], of) for of in (free, candidates))
        begins = len(meeting) < config.validation.network_tests_at_once_max and len(peers) == len(best)
        begins = begins and name not in in_use and _is_idle(snapshot, name, *peers)
        if name in under_way or begins or _is_late(burnt[name], snapshot.now, config):
            meeting[name] = peers
        else:
            found[name] = Turn(waits="its peers are in another network test")
    return found | {name: Turn(peers) for name, peers in meeting.items()}


def _is_late(burn_in: Recovery, now: float, config: Config) -> bool:
    """Whatever it waits for has taken longer than it can: it is tested with the peers that are free, or with none."""
    waited = now - _done_at(burn_in, StepName.RUN_VALIDATION, now)
    return not 0 <= waited < config.validation.network_wait_minutes * MINUTE_SECONDS + ROUNDS_SECONDS


def _is_idle(snapshot: Snapshot, *names: str) -> bool:
    """Not yet, where the job of the last test is still being ended."""
    nodes = [snapshot.nodes[name].slurm for name in names]
    return all(node is not None and node.base_state == "IDLE" for node in nodes)


def _burn_ins(snapshot: Snapshot) -> Iterator[Recovery]:
    for one in snapshot.recoveries:
        failed = any(step.status is StepStatus.FAILED for step in one.steps)
        there = one.plan.nodes and one.plan.nodes[0] in snapshot.nodes
        if one.step(StepName.TEST_NETWORK) and there and not failed and one.ends_as is None:
            yield one


def _is(burn_in: Recovery, name: StepName, status: StepStatus) -> bool:
    step = burn_in.step(name)
    return step is not None and step.status is status


def _wait(snapshot: Snapshot, own: Recovery, burn_ins: Collection[Recovery], config: Config) -> Turn:
    wait_seconds = config.validation.network_wait_minutes * MINUTE_SECONDS
    tested = _is(own, StepName.TEST_NETWORK, StepStatus.DONE)
    since = _done_at(own, StepName.TEST_NETWORK if tested else StepName.RUN_VALIDATION, snapshot.now)
    if not 0 <= snapshot.now - since < wait_seconds:
        return Turn(tested=tested)
    if tested:
        left = [one for one in burn_ins if not _is(one, StepName.TEST_NETWORK, StepStatus.DONE)]
        left = [one for one in left if _is(one, StepName.RUN_VALIDATION, StepStatus.DONE)]
        return Turn(waits=f"{_names(left)} may need it as a peer" if left else "", tested=True)
    burning = [one for one in burn_ins if not _is(one, StepName.RUN_VALIDATION, StepStatus.DONE)]
    soon = [one for one in burning if _ends_at(one) <= since + wait_seconds]
    return Turn(waits=f"the burn-in of {_names(soon)} ends soon" if soon else "")


def _done_at(burn_in: Recovery, name: StepName, now: float) -> float:
    step = burn_in.step(name)
    return step.done_at if step is not None and step.done_at is not None else now


def _ends_at(burn_in: Recovery) -> float:
    assert isinstance(burn_in.plan, ValidationPlan)
    step = burn_in.step(StepName.RUN_VALIDATION)
    begun = step.intended_at if step is not None and step.intended_at is not None else burn_in.decided_at
    return begun + burn_in.plan.hours * HOUR_SECONDS


def _names(burn_ins: Sequence[Recovery]) -> str:
    names = sorted((one.plan.nodes[0] for one in burn_ins), key=natural)
    return listed(names)
