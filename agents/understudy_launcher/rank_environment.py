"""A node's part in a launch, and what each task of the gang finds in its environment. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from understudy_launcher.command import Meeting
from understudy_launcher.protocol import SECRET_VARIABLE, Message, number, text

RESTORE_POINT = ("UNDERSTUDY_RESTORE_STEP", "UNDERSTUDY_RESTORE_PATH")
"""Slurm's TaskProlog asked for these when the seat started. For a later launch the answer may be another."""
APPENDED_VARIABLE = "UNDERSTUDY_APPENDED_ARGUMENTS"
"""A list as JSON. The hook has it, too: a job that continues has the arguments of the one that began."""
_SET_BY_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class Part:
    """A node's part in a launch, as the launcher sends it."""

    launch: int
    meeting: Meeting
    torchrun: bool
    node_list: str
    restore: Sequence[int | str] | None = None
    """Step and path to restore, while the ranks cannot ask the control plane."""
    appended: Sequence[str] = ()
    """Arguments that follow those of the command, in this launch."""


def read_part(message: Message) -> Part:
    """Raises ProtocolError."""
    meeting = Meeting(
        number(message, "nodes"),
        number(message, "node_rank"),
        number(message, "processes"),
        text(message, "address"),
        number(message, "port"),
    )
    torchrun, restore = bool(message.get("torchrun")), message.get("restore")
    appended = tuple(map(str, message.get("appended") or ()))
    return Part(number(message, "launch"), meeting, torchrun, text(message, "node_list"), restore, appended)


def rank_environment(environment: Mapping[str, str], part: Part, local_rank: int) -> dict[str, str]:
    """What one task of the gang finds. Slurm's variables about the step are replaced: the step has standbys, too."""
    meeting = part.meeting
    tasks_here = 1 if part.torchrun else meeting.processes
    kept = {name: value for name, value in environment.items() if name not in (SECRET_VARIABLE, APPENDED_VARIABLE)}
    found = kept | {
        "UNDERSTUDY_LAUNCH": str(part.launch),
        "RANK": str(meeting.node_rank * meeting.processes + local_rank),
        "LOCAL_RANK": str(local_rank),
        "NODE_RANK": str(meeting.node_rank),
        "GROUP_RANK": str(meeting.node_rank),
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port),
        "LOCAL_WORLD_SIZE": str(meeting.processes),
        "WORLD_SIZE": str(meeting.nodes * meeting.processes),
        **_slurm_variables(meeting, part.node_list, tasks_here, local_rank),
    }
    if not part.torchrun:
        found |= threads_of_rank(environment, meeting.processes)
    removed = _SET_BY_TORCHRUN if part.torchrun else ()
    if part.launch > 0:
        removed = (*removed, *RESTORE_POINT)
    found = {name: value for name, value in found.items() if name not in removed}
    if part.launch > 0 and part.restore is not None:
        found |= dict(zip(RESTORE_POINT, map(str, part.restore), strict=True))
    if part.appended:
        found[APPENDED_VARIABLE] = json.dumps(part.appended)
    return found


def threads_of_rank(environment: Mapping[str, str], processes: int) -> dict[str, str]:
    """torchrun sets the same: else each of several ranks on a node takes all of its cores."""
    return {"OMP_NUM_THREADS": "1"} if processes > 1 and "OMP_NUM_THREADS" not in environment else {}


def _slurm_variables(meeting: Meeting, node_list: str, tasks_here: int, local_rank: int) -> dict[str, str]:
    """The step looks as if it had the gang's nodes only."""
    first, tasks = meeting.node_rank * tasks_here, meeting.nodes * tasks_here
    tasks_per_node = f"{tasks_here}(x{meeting.nodes})" if meeting.nodes > 1 else str(tasks_here)
    return {
        "SLURM_NODEID": str(meeting.node_rank),
        "SLURM_PROCID": str(first + local_rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_GTIDS": ",".join(str(first + index) for index in range(tasks_here)),
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_NNODES": str(meeting.nodes),
        "SLURM_STEP_NUM_NODES": str(meeting.nodes),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NODELIST": node_list,
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
        "SLURM_TASKS_PER_NODE": tasks_per_node,
    }
