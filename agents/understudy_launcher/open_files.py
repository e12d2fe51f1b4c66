"""Number of files that the launcher has to open, and the limit for it."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from understudy_launcher.hub import STRANGERS_MAX

OTHER_FILES = 64


class NotEnoughFiles(Exception):
    """The message names the need, the limit and what to do."""


@dataclass(frozen=True, slots=True)
class OpenFiles:
    soft: int
    """The limit that the launcher should have."""
    before_srun: tuple[str, ...] = ()
    """srun passes its limits on to the ranks, which must keep those of the job."""
    no_standbys: str = ""
    """Why there can be no connection for a second seat on each node, for the next launch. Empty: there can."""


def needed(nodes: int, seats: int = 2) -> int:
    """Two seats on each node: one of the gang, and one of the step that takes its place. With fewer files some seat
    cannot connect.
    """
    return seats * nodes + OTHER_FILES


def files_for(nodes: int, limits: tuple[int, int]) -> OpenFiles:
    """`limits` are those of this process, soft and hard. If the hard limit leaves too few for strangers, those wait
    (`hub.py`). Raises NotEnoughFiles.
    """
    soft, hard = limits
    wanted = needed(nodes) + STRANGERS_MAX
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return OpenFiles(soft)
    if hard == resource.RLIM_INFINITY:
        return OpenFiles(wanted, ("prlimit", f"--nofile={soft}:unlimited", "--"))
    higher = "ask for a higher hard limit (LimitNOFILE of slurmd's unit, or `ulimit -Hn` where the job is submitted)"
    if hard < needed(nodes, seats=1):
        raise NotEnoughFiles(
            f"{nodes} nodes need {needed(nodes, seats=1)} open files, {needed(nodes)} with standbys, and this job may "
            f"open {hard}: {higher}"
        )
    few = "" if hard >= needed(nodes) else f"they need {needed(nodes)} open files, and this job may open {hard}"
    soft, before = min(wanted, hard), soft
    return OpenFiles(soft, ("prlimit", f"--nofile={before}:{hard}", "--"), few and f"{few}: {higher}")


def have_files_for(nodes: int) -> OpenFiles:
    """Raises this process's soft limit where the gang needs it. Raises NotEnoughFiles."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = files_for(nodes, limits)
    if files.before_srun:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files.soft, limits[1]))
    return files
