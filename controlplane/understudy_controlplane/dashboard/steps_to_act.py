"""What a site that only observes watches, and what it still lacks before the control plane may act. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from understudy_controlplane.api.status import Status
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.figures.advice import advise, hooks_of
from understudy_controlplane.figures.rule import Severity
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.live.pulse import SlurmReading

RELOAD = "understudy check-config && systemctl reload understudy-controlplane"


@dataclass(frozen=True, slots=True)
class ToDo:
    done: bool
    what: str
    found: str
    command: str


@dataclass(frozen=True, slots=True)
class Watched:
    """`command` lists them one by one, and so does `page`, a path below the dashboard."""

    count: str
    how: str
    command: str
    page: str = ""


def watched(snapshot: Snapshot) -> list[Watched]:
    nodes, jobs = snapshot.nodes.values(), snapshot.jobs.values()
    heard = [node for node in nodes if node.heard_at is not None]
    managed = sum(job.managed and job.running for job in jobs)
    return [
        Watched(counted(len(nodes), "node"), "as Slurm shows them, read in each round", "understudy node list"),
        Watched(
            counted(len(heard), "agent"), "NVML, kernel log, network and host of their nodes", "understudy node list"
        ),
        Watched(
            counted(sum(len(node.gpus) for node in heard), "GPU"),
            "as the agents report them",
            "understudy node show NODE",
        ),
        Watched(counted(len(jobs), "job"), f"of which {managed} managed and running", "understudy job list", "jobs"),
    ]


def to_do(snapshot: Snapshot, status: Status, config: Config, ready: Sequence[str], slurm: SlurmReading) -> list[ToDo]:
    nodes = snapshot.nodes.values()
    heard = sum(node.heard_at is not None for node in nodes)
    managed = sum(job.managed and job.running for job in snapshot.jobs.values())
    observes = status.mode_configured is Mode.OBSERVE
    return [
        ToDo(
            status.slurm.read_at is not None and not status.slurm.error,
            "Slurm is read",
            status.slurm.error or f"{counted(len(nodes), 'node')}, {counted(len(snapshot.jobs), 'job')}",
            "understudy doctor",
        ),
        _settings(slurm),
        _hooks(slurm.settings),
        ToDo(
            bool(nodes) and heard == len(nodes),
            "every node has an agent",
            f"{heard} of {len(nodes)} nodes report",
            "understudy node list",
        ),
        ToDo(
            bool(snapshot.topology.domains),
            "racks or switches are known",
            counted(len(snapshot.topology.domains), "domain"),
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
            "validation.enabled = true"
            if config.validation.enabled
            else "set validation.enabled = true in the configuration, then",
            RELOAD,
        ),
        ToDo(
            bool(config.notify.receivers),
            "a person is notified",
            counted(len(config.notify.receivers), "receiver")
            if config.notify.receivers
            else "set [notify.receivers] in the configuration, then",
            "understudy notify test",
        ),
        ToDo(
            managed > 0,
            "a gang asks for Understudy",
            counted(managed, "managed gang runs", "managed gangs run"),
            "sbatch --comment=understudy",
        ),
        ToDo(
            bool(ready),
            "people agree with what it would have done",
            f"{counted(len(ready), 'rule is', 'rules are')} ready" + (f": {', '.join(ready[:4])}" if ready else ""),
            "understudy observed",
        ),
        ToDo(
            not observes,
            "the configured mode is approve or act",
            f'mode = "{status.mode_configured.value}"'
            + ("; set approve, and later act, in the configuration, then" if observes else ""),
            RELOAD,
        ),
    ]


def _settings(slurm: SlurmReading) -> ToDo:
    """What `understudy doctor` finds in them."""
    what, command = "no setting of Slurm is dangerous", "understudy doctor"
    if not slurm.settings:
        return ToDo(False, what, "they have not been read", command)
    found = advise(slurm.settings, slurm.version)
    dangers = [f"{one.setting} (S{one.number})" for one in found if one.severity is Severity.DANGER]
    costs = sum(one.severity is Severity.COST for one in found)
    cost = counted(costs, "setting costs", "settings cost") + " recovery time" if costs else "all are good"
    return ToDo(not dangers, what, "; ".join(filter(None, (", ".join(dangers), cost))), command)


def _hooks(settings: Mapping[str, str]) -> ToDo:
    hooks = hooks_of(settings)
    found = ", ".join(hooks) or "none: a job can start on a node before Slurm has drained it"
    return ToDo(bool(hooks), "Slurm calls the hooks (optional)", found, "understudy install-hooks")
