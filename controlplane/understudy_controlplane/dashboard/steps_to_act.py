"""What a site that only observes still lacks before the control plane may act. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from understudy_controlplane.api.status import Status
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ToDo:
    done: bool
    what: str
    found: str
    command: str


def to_do(snapshot: Snapshot, status: Status, config: Config, ready: Sequence[str]) -> list[ToDo]:
    nodes = snapshot.nodes.values()
    heard = sum(node.heard_at is not None for node in nodes)
    managed = sum(job.managed and job.running for job in snapshot.jobs.values())
    return [
        ToDo(
            status.slurm.read_at is not None and not status.slurm.error,
            "Slurm is read",
            status.slurm.error or f"{counted(len(nodes), 'node')}, {counted(len(snapshot.jobs), 'job')}",
            "understudy doctor",
        ),
        ToDo(
            bool(nodes) and heard == len(nodes),
            "every node has an agent",
            f"{heard} of {len(nodes)} nodes report",
            "understudy node list",
        ),
        ToDo(
            bool(snapshot.topology.domains),
            "racks or switches are known",
            f"{counted(len(snapshot.topology.domains), 'domain')}",
            "understudy topology show",
        ),
        ToDo(
            status.spares.wanted > 0,
            "spares are wanted",
            f"{status.spares.wanted} wanted, {status.spares.held} held",
            "understudy spare size 2 REASON",
        ),
        ToDo(
            config.validation.enabled,
            "nodes are validated before they return",
            "validation.enabled is " + ("true" if config.validation.enabled else "false"),
            "understudy check-config",
        ),
        ToDo(
            managed > 0,
            "a gang asks for Understudy",
            f"{managed} managed gangs run",
            "sbatch --comment=understudy",
        ),
        ToDo(
            bool(ready),
            "people agree with what it would have done",
            f"{counted(len(ready), 'rule is', 'rules are')} ready" + (f": {', '.join(ready[:4])}" if ready else ""),
            "understudy observed",
        ),
        ToDo(
            status.mode_configured is not Mode.OBSERVE,
            "the configured mode is approve or act",
            f'mode = "{status.mode_configured.value}"',
            "understudy mode show",
        ),
    ]
