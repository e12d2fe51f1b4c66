"""What a task of the gang finds in its environment.

Belongs here: names and values. Pure. Must not: starting anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from understudy_agent.launch.command import Meeting
from understudy_agent.launch.protocol import SECRET_VARIABLE

_STALE_ON_RELAUNCH = ("UNDERSTUDY_RESTORE_STEP", "UNDERSTUDY_RESTORE_PATH")
"""Slurm's TaskProlog asked for these when the seat started. For a later launch the answer may be another."""


@dataclass(frozen=True, slots=True)
class Part:
    """What this node plays in a launch: the launcher's word."""

    launch: int
    meeting: Meeting
    torchrun: bool
    node_list: str
    restore: Sequence[int | str] | None = None
    """Step and path to go on from, where the ranks cannot ask."""


def rank_environment(environment: Mapping[str, str], part: Part, local_rank: int) -> dict[str, str]:
    """What one task of the gang finds. Slurm's own words about the step are put right: it has standbys in it, too."""
    ours = {name: value for name, value in environment.items() if name != SECRET_VARIABLE}
    if part.launch > 0:
        for name in _STALE_ON_RELAUNCH:
            ours.pop(name, None)
        if part.restore is not None:
            ours |= dict(zip(_STALE_ON_RELAUNCH, map(str, part.restore), strict=True))
    meeting = part.meeting
    ours |= {
        "UNDERSTUDY_LAUNCH": str(part.launch),
        "NODE_RANK": str(meeting.node_rank),
        "GROUP_RANK": str(meeting.node_rank),
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port),
        "LOCAL_WORLD_SIZE": str(meeting.processes),
        "WORLD_SIZE": str(meeting.nodes * meeting.processes),
    }
    tasks = meeting.nodes if part.torchrun else meeting.nodes * meeting.processes
    here = 1 if part.torchrun else meeting.processes
    ours |= {
        "SLURM_NODEID": str(meeting.node_rank),
        "SLURM_PROCID": str(meeting.node_rank * here + local_rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_GTIDS": ",".join(str(meeting.node_rank * here + index) for index in range(here)),
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_NNODES": str(meeting.nodes),
        "SLURM_STEP_NUM_NODES": str(meeting.nodes),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NODELIST": part.node_list,
        "SLURM_STEP_TASKS_PER_NODE": f"{here}(x{meeting.nodes})" if meeting.nodes > 1 else str(here),
        "SLURM_TASKS_PER_NODE": f"{here}(x{meeting.nodes})" if meeting.nodes > 1 else str(here),
    }
    if part.torchrun:  # it gives its workers their own
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            ours.pop(name, None)
    else:
        ours |= {"RANK": str(meeting.node_rank * meeting.processes + local_rank), "LOCAL_RANK": str(local_rank)}
    return ours
