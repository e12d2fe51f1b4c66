"""What ordinary thing looks like a fault, for each detector whose findings can end a job that works, and what happens.

A detector that is added asks the same question here; `make docs` prints the answers.
"""

from __future__ import annotations

from collections.abc import Mapping

ORDINARY: Mapping[str, str] = {
    "hang": "A program counts its steps within an epoch, trains a second time, or resumes from an older step: steps "
    "that end are progress, whatever their number. It evaluates, compiles or uploads for an hour: it has the longest "
    "time that it ever took, times a factor, and a gang whose ranks have all ended is not judged.",
    "silence": "The route of the control plane to a node is away, an agent is upgraded, or slurmctld missed one "
    "answer: a node with a job is dead only where its gang stands still with it, its own launcher has lost it, or "
    "Slurm shows for two minutes that it does not respond.",
    "straggler": "A rank has longer sequences, writes the checkpoint, or is warmed up later: only what stands out "
    "window after window counts, and only the node's own hardware confirms it. A gang that announces no checkpoints "
    "stays, because a move may cost all that it has done.",
    "stranded": "A node that counted as dead or slow is well again while its move was held up: where its gang trains "
    "on there, it stays until it ends.",
    "stopped": "Slurm or its owner requeues a job that ran on a node which has left service since: only a gang that "
    "pends, and that no one holds or puts off, is given other nodes; nothing that runs is ended.",
    "seats": "An administrator drains a node on which a gang is about to start again: the gang gets another one, and "
    "has not begun to work.",
    "xid": "A program divides by zero or reads outside its memory, which reports an Xid as well: codes of programs "
    "condemn no node; the policy names those of hardware.",
    "gpu_state": "NVML cannot be read while the driver is reloaded: an unreadable GPU leads to nothing. A GPU that "
    "the driver itself calls lost, or that has to be reset, computes nothing any more: it counts at once.",
    "hardware": "A GPU gets hot in a warm hour, corrects single errors, or is slow to appear after a boot: what is "
    "unusual is a suspicion, and takes out a node only after a test.",
    "kernel_log": "A program prints what looks like a line of the driver: only the kernel's own lines are read, and "
    "most of them make the node a suspect for a day.",
    "fabric": "A port is down while its cable is moved or its switch boots: ports that go down together are their "
    "switch, and a port that is down is the node's fault only where a gang on it stands still.",
    "driver": "NVML is slow while many processes start: the driver counts as hung only where the gang on it stands "
    "still as well.",
    "wear_trend": "A GPU remaps a few rows early in its life: this is recorded; a site that wants such nodes left has "
    "a gang leave only where its start and its checkpoints are known, and the move pays.",
    "site_signals": "Another system sends a false alarm: a signal moves nothing unless the site has chosen that for "
    "its kind.",
}
