"""How many files the launcher has to have open, and the limit for it.

Belongs here: the need, and what becomes of the limit. Must not: the connections (`hub.py`).
"""

from __future__ import annotations

import resource

from understudy_agent.launch.hub import STRANGERS_MAX

SOCKETS_PER_NODE = 2
"""A seat of the gang, and one of the step that takes its place."""
OTHER_FILES = 64


class NotEnoughFiles(Exception):
    """The message names the need, the limit and what to do."""


def needed(nodes: int) -> int:
    """With fewer some seat cannot connect."""
    return SOCKETS_PER_NODE * nodes + OTHER_FILES


def with_files_for(nodes: int, limits: tuple[int, int]) -> tuple[int, tuple[str, ...]]:
    """From this process's limits, soft and hard: the soft limit that it should have, and what to put before srun.

    srun passes its limits on to the ranks, which must keep those of the job. Where the hard limit leaves too few for
    strangers, those wait (`hub.py`). Raises NotEnoughFiles.
    """
    soft, hard = limits
    need, wanted = needed(nodes), needed(nodes) + STRANGERS_MAX
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft, ()
    if hard != resource.RLIM_INFINITY and hard < need:
        raise NotEnoughFiles(
            f"{nodes} nodes need {need} open files, and this job may open {hard}: ask for a higher hard limit "
            "(LimitNOFILE of slurmd's unit, or `ulimit -Hn` where the job is submitted)"
        )
    if hard == resource.RLIM_INFINITY:
        return wanted, ("prlimit", f"--nofile={soft}:unlimited", "--")
    return min(wanted, hard), ("prlimit", f"--nofile={soft}:{hard}", "--")


def have_files_for(nodes: int) -> tuple[str, ...]:
    """Raises this process's soft limit where the gang needs it. Returns what to put before srun."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, before_srun = with_files_for(nodes, limits)
    if before_srun:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
    return before_srun
