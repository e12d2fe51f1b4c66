"""With which idle nodes the network of a node is tested. Pure."""

from __future__ import annotations

from understudy_agent.stages import StageName
from understudy_controlplane.config import Config, RunStages
from understudy_controlplane.decide import spares
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot

PEERS_MAX = 3


def peers_of(snapshot: Snapshot, node: NodeView, config: Config, hours: float) -> tuple[str, ...]:
    """One of each distance: its leaf switch, its rack, another pod. Where there are fewer distances, more of the
    nearest: of a slow pair a third node shows which end it is.
    """
    policy = config.validation
    runs = policy.run_stages is RunStages.ALWAYS or (policy.run_stages is RunStages.BURN_IN and hours > 0)
    if not runs or not policy.all_stages[StageName.NETWORK].enabled or node.slurm is None:
        return ()
    idle = [name for name in spares.idle_nodes(snapshot, config) if name != node.name and _alike(snapshot, name, node)]
    if not idle:
        return ()
    far = dict(zip(idle, snapshot.topology.distances.between([node.name], idle)[0].tolist(), strict=True))
    # Beginning behind the node's own name, so that not all nodes take the same peers.
    in_turn = sorted(idle, key=lambda name: (natural(name) < natural(node.name), natural(name)))
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
