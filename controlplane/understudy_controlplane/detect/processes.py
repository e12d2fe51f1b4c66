"""Processes that keep a GPU: another gang there would find the GPU's memory taken.

SIGKILL ends none that neither ends nor continues: only a reboot does. A process that its job has left behind lives on:
agent and Slurm both have to show that the job is over there. One outside of Slurm's jobs may be a user's who has logged
in: gangs get no spare on which one runs. The control plane ends no process: a person does.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.xid_policy import Repair
from understudy_wire.hardware import Stuck, StuckProcess

BEGINS_SECONDS = {Stuck.LEFT: 10.0, Stuck.OUTSIDE: 60.0}
"""Less between a process and a later start of a job may be the clocks', which are compared to 2 s. A delayed report
makes a process seem younger. Of one that is left behind the agent has shown as well that each slurmstepd of its job is
younger.
"""

KILLED_SECONDS = 60.0
"""Slurm too gives up on such a process after this time (UnkillableStepTimeout), and drains the node."""

WORDS = {
    Stuck.KILLED: "does not end: it was killed or has exited, {seconds:.0f} s ago",
    Stuck.WAITING: "has waited in the kernel for {seconds:.0f} s",
    Stuck.ZOMBIE: "has threads left {seconds:.0f} s after its first thread ended",
    Stuck.LEFT: "lives on, though its job has been over here for {seconds:.0f} s",
    Stuck.OUTSIDE: "is in no job of Slurm",
}


def stuck_processes(snapshot: Snapshot, node: NodeView) -> Iterator[Finding]:
    """One finding for a node that cannot be rid of a process, and one each for those that may still continue and those
    that a person can end.
    """
    killed = [one for one in node.processes if one.why is Stuck.KILLED and one.seconds >= KILLED_SECONDS]
    left = [one for one in node.processes if one.why is Stuck.LEFT and _is_over(snapshot, node, one)]
    others = [one for one in node.processes if one.why in (Stuck.WAITING, Stuck.ZOMBIE)]
    outside = outside_of_jobs(snapshot, node)
    for rule, signal, repair, found in (
        ("processes.unkillable", Signal.HEALTH_SUSPECTED, Repair.REBOOT, killed),
        ("processes.left", Signal.HEALTH_SUSPECTED, Repair.MANUAL_REPAIR, left),
        ("processes.waiting", Signal.RECORDED, Repair.NONE, others),
        ("processes.outside", Signal.RECORDED, Repair.NONE, outside),
    ):
        if found:
            first, more = found[0], f", and {len(found) - 1} more" if len(found) > 1 else ""
            yield Finding(
                signal,
                rule,
                node.name,
                (node.heard_at or 0.0) - first.seconds,
                f"{in_words(snapshot, node, first)}{more}{_advice(node, first)}",
                Evidence({"pids": [one.pid for one in found], "boot_id": node.boot_id, "repair": repair.value}),
                detail=HardwareDetail(repair=repair, boot_id=node.boot_id),
            )


def outside_of_jobs(snapshot: Snapshot, node: NodeView) -> list[StuckProcess]:
    """Processes that compute there and belong to no job that Slurm shows: a gang would find GPU memory taken."""
    return [one for one in node.processes if one.why is Stuck.OUTSIDE and _is_over(snapshot, node, one)]


def _is_over(snapshot: Snapshot, node: NodeView, process: StuckProcess) -> bool:
    """Slurm shows on the node no attempt of its job that had started when it began. Where the agent cannot name its job
    (Slurm 26.05), any may be it.
    """
    there = [one for one in snapshot.jobs.values() if node.name in one.slurm.nodes and not one.slurm.ended]
    its = [one for one in there if process.job_id in (None, one.key.job_id)]
    if process.age_seconds is None or node.heard_at is None:
        return not its
    began = node.heard_at - process.age_seconds + snapshot.slurm.ahead_seconds
    return all(began + BEGINS_SECONDS[process.why] < (one.slurm.start_at or 0) for one in its)


def _advice(node: NodeView, process: StuckProcess) -> str:
    if process.why is Stuck.OUTSIDE:
        return "; no gang gets a spare there until it has ended"
    if process.why is not Stuck.LEFT:
        return ""
    return f"; if no user needs it, end it on {node.name} (`kill -KILL {process.pid}`), or reboot the node"


def in_words(snapshot: Snapshot, node: NodeView, process: StuckProcess) -> str:
    job = next((one for key, one in snapshot.jobs.items() if key.job_id == process.job_id), None)
    owner = f"user {job.slurm.user}" if job is not None else f"user id {process.user_id}"
    of_job = f", job {process.job_id}" if process.job_id is not None else ""
    indexes = {gpu.bus_id: f"{gpu.index}" for gpu in node.gpus}
    gpus = ", ".join(indexes.get(one, one) for one in process.gpus)
    where = f" (in {process.where})" if process.where else ""
    what = WORDS[process.why].format(seconds=process.seconds)
    return f"process {process.pid} ({process.command}; {owner}{of_job}) has GPU {gpus} open and {what}{where}"
