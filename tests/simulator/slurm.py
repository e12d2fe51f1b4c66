"""A Slurm in memory that behaves as the real one does, on a clock that its owner advances. It passes the contract.

What it does was seen on Slurm 22.05: a requeue passes through COMPLETING, renews the submit time and puts the
begin time two minutes off; a begin time set while COMPLETING is lost; a plain requeue runs a job again that is
COMPLETING because it was cancelled or has ended; a job started in the second of its kill fails; a dead node holds its
job COMPLETING until it is set DOWN, and a job requeued before that fails for good; the id of a job array stands for all
its tasks, although its last task has that id as well.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from understudy_controlplane.fleet.preemption import Partition, PreemptionRules, PreemptType
from understudy_controlplane.fleet.slurm import (
    ARRAY_LIMIT,
    ArrayTask,
    JobAddress,
    JobRequest,
    SlurmJob,
    SlurmNode,
    SlurmReservation,
    SlurmStep,
    TopologyUnit,
    UnitKind,
)
from understudy_controlplane.slurm.cli import checked_user
from understudy_controlplane.slurm.parse import AS_OF
from understudy_controlplane.slurm.protocol import SlurmError

REQUEUE_DELAY_SECONDS = 121
SLURMD_TIMEOUT_SECONDS = 300
NOT_RESPONDING_SECONDS = SLURMD_TIMEOUT_SECONDS / 3
"""Slurm asks every node that often whether it is there (controller.c, ping_interval)."""

MAX_BATCH_REQUEUE = 5
"""Failed launches of a job after which Slurm holds it for their number (slurm.conf)."""
TOO_MANY = "launch_failure_limit_exceeded_requeued_held"

MIN_JOB_AGE_SECONDS = 300
GRAIN_SECONDS = 0.05
"""Time never moves by less, unless its owner asks for less."""

SIGTERM = 15
OVER = frozenset({"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "PREEMPTED"})


@dataclass
class _Node:
    name: str
    drained: bool = False
    failing: bool = False  # an administrator has set it to FAIL
    down: bool = False
    reason: str = ""
    reason_user: str = ""
    reason_at: int = 0
    dead_since: float | None = None
    quiet_until: float = 0.0  # after a resume, until it is heard of again
    weight: int = 1
    memory_mb: int = 512_000
    reboot: str = ""  # "REQUESTED" until it is empty, then "ISSUED" until it is back
    in_no_block: bool = False
    power: str = ""  # "POWERED_DOWN" while it is switched off, "POWERING_UP" until it is back

    def responding(self, now: float) -> bool:
        dead = self.dead_since is not None and now - self.dead_since >= NOT_RESPONDING_SECONDS
        return now >= self.quiet_until and not dead

    def usable(self, now: float) -> bool:
        return not self.drained and not self.failing and not self.down and not self.power and self.responding(now)


@dataclass
class _Job:
    job_id: int
    submit_at: int
    user: str
    name: str
    comment: str
    node_count: int
    requeue: bool
    kill_seconds: float
    half: bool = False
    array_task: ArrayTask | None = None
    tasks_at_once: int = 0  # of its array; 0: any number
    state: str = "PENDING"
    restart_count: int = 0
    nodes: list[str] = field(default_factory=list)
    reservation: str = ""
    begin_at: float | None = None
    started_at: float | None = None
    killed_at: float | None = None
    suspended_or_resumed_at: float | None = None
    suspended_seconds: float = 0.0  # since its start, until it was last resumed
    completes_at: float = 0.0
    ended_at: float | None = None
    next_state: str = ""  # after COMPLETING
    exit_code: int = 0
    exit_signal: int = 0
    end_reason: str = ""
    broken: bool = False  # Slurm's record of it is: its next start fails
    launch_failures: int = 0  # since Slurm last held it for too many of them
    hold: str = "JobHeldAdmin"
    resized: bool = False  # it runs on, and without slurmdbd Slurm takes no update of it any more
    priority: int = 1
    time_limit_minutes: int | None = None
    excluded: tuple[str, ...] = ()
    memory_mb: int = 0  # that it asks for on each node
    segment: int = 0
    partition: str = ""  # empty: the only one that nodes are in from the beginning
    runs_seconds: float | None = None  # None: until it is ended
    ends_as: str = "COMPLETED"


class VirtualSlurm:
    """Implements `Slurm`; beside it stand what users, time and misfortune do."""

    blocks_lose_powered_down = False
    """Slurm dropped cloud nodes from their blocks for good, once they were switched off, until 25.11."""

    def __init__(
        self,
        nodes: Sequence[str],
        now: float = 1_700_000_000.0,
        partition: str = "train",
        scheduler_tick_seconds: float = 1.0,
        gpus: int = 8,
        account: str = "",
    ) -> None:
        self.now = now
        self._partition = partition
        self._account = account
        self.mail_to = ""
        self._tick_seconds = scheduler_tick_seconds
        self.gres = f"gpu:{gpus}"
        """GPUs of each node."""
        self._nodes = {name: _Node(name) for name in nodes}
        self._jobs: dict[int, _Job] = {}
        self._reservations: dict[str, SlurmReservation] = {}
        self._reservation_ends: dict[str, float] = {}
        self._next_job_id = 1
        self.changes = 0
        """Counts what has happened: Slurm shows the same while it stays the same and no time passes."""
        self.adds_to_reasons = False
        """Slurm 23.02 and newer: that a node does not answer stands behind the reason that was there, as of now."""
        self.leaf_switches = 2
        self.block_nodes = 0  # of each block of topology/block; 0: there is a tree
        self._started_at = now - 1000
        self.slurmd_timeout_seconds = SLURMD_TIMEOUT_SECONDS
        self.min_job_age_seconds = MIN_JOB_AGE_SECONDS
        self.partitions_down: set[str] = set()
        """Partitions in which no job starts, and running ones go on."""
        self.waits_for: dict[int, str] = {}
        """Job → why Slurm does not start it, such as a limit of its account, or a licence that another job has."""
        self.has_slurmdbd = False
        """Slurm 22.05 without it takes no update of a running job that was resized."""
        self.no_kill: set[int] = set()
        """Jobs submitted with --no-kill: of a node that goes down they lose no more than that node."""
        self.invalid: set[str] = set()
        """Nodes that registered with less than configured: Slurm resumes none of them."""
        self.bad_prologs: set[str] = set()
        """Nodes whose Prolog fails."""
        self.refused: list[tuple[str, int, int]] = []
        """Refusals: which node's Prolog, which job, and its restart count. Its owner may clear it."""
        self.tiers = {partition: 1}
        """Partition, of all nodes → its PriorityTier."""
        self.preempt_mode = "OFF"
        """REQUEUE: jobs in partitions of a higher tier preempt others."""
        self.exempt_seconds = 0
        """PreemptExemptTime: how long a job runs before it may be preempted."""
        self.preempted: list[tuple[int, int]] = []
        """Preempted jobs, each with the one that took its nodes. Its owner may clear it."""
        self.epilog_seconds = 0.0
        """How long a job is COMPLETING after its processes have ended."""
        self.job_seconds = 5.0
        self.job_ends_as: dict[str, str] = {}
        self.job_comments: dict[str, str] = {}  # node → what the control plane's jobs there leave in their comment
        """Comments of jobs that the control plane submits: how long they run, and how they end on a node; else
        COMPLETED.
        """

    # -- what users, machines and time do --------------------------------------------------------------------------

    def submit(
        self,
        user: str,
        node_count: int,
        name: str = "job",
        comment: str = "",
        requeue: bool = True,
        kill_seconds: float = 0.1,
    ) -> int:
        """`kill_seconds`: how long its processes take to end after SIGTERM."""
        job = _Job(self._next_job_id, int(self.now), user, name, comment, node_count, requeue, kill_seconds)
        self._next_job_id += 1
        self._jobs[job.job_id] = job
        return job.job_id

    def submit_array(self, user: str, tasks: int, node_count: int = 1, comment: str = "", at_once: int = 0) -> int:
        """Returns the array's id. Tasks 1 to n are records of their own from the beginning, as if all had started."""
        array = self._next_job_id
        numbers = [*range(array + 1, array + tasks), array]  # Slurm starts the last task as the array's own record
        for task, number in enumerate(numbers, start=1):
            self._next_job_id = number
            job = self._jobs[self.submit(user, node_count, comment=comment)]
            job.array_task, job.tasks_at_once = ArrayTask(array, task), at_once
        self._next_job_id = array + tasks
        return array

    def halve(self, job_id: int) -> None:
        """The job needs half of each of its nodes: another such job may run beside it."""
        self._job(job_id).half = True

    def ask_for_memory(self, job_id: int, memory_mb: int) -> None:
        """Makes the job as if submitted with --mem."""
        self._job(job_id).memory_mb = memory_mb

    def ask_for_segment(self, job_id: int, nodes: int) -> None:
        """Makes the job as if submitted with --segment, which this Slurm shows and does not heed."""
        self._job(job_id).segment = nodes

    def build_with(self, name: str, memory_mb: int) -> None:
        """The node has this memory."""
        self._node(name).memory_mb = memory_mb

    def put_into(self, job_id: int, partition: str) -> None:
        """Makes the job as if submitted to this one of `tiers`."""
        self._job(job_id).partition = partition

    def allow_requeue(self, job_id: int) -> None:
        """Does `scontrol update jobid=… requeue=1`, which Slurm takes of a running job."""
        self._job(job_id).requeue = True

    def cancel(self, job_id: int) -> None:
        job = self._job(job_id)
        if job.state in ("RUNNING", "SUSPENDED"):
            job.exit_signal = SIGTERM
            self._kill(job, "CANCELLED")
        elif job.state == "COMPLETING" and job.next_state == "PENDING":
            job.next_state = "CANCELLED"
        elif job.state == "PENDING":
            self._end(job, "CANCELLED")

    def end(self, job_id: int, state: str = "COMPLETED") -> None:
        """The job's script ends by itself."""
        self._let_end(self._job(job_id), state)

    def suspend(self, job_id: int) -> None:
        """An administrator suspends the job: its processes stand still, and it keeps its nodes."""
        self._suspend_or_resume(job_id, "RUNNING", "SUSPENDED")

    def go_on(self, job_id: int) -> None:
        """The administrator lets the suspended job continue."""
        self._suspend_or_resume(job_id, "SUSPENDED", "RUNNING")

    def shrink(self, job_id: int, node_count: int) -> None:
        """The job, running or suspended, is updated with `numnodes=…` (job_mgr.c, _update_job): it keeps its batch host
        and the first others, and the steps on the rest end. Requeued, it asks for all its nodes again.
        """
        job = self._job(job_id)
        if job.state in ("RUNNING", "SUSPENDED") and 0 < node_count < len(job.nodes):
            job.nodes, job.resized = job.nodes[:node_count], not self.has_slurmdbd
            self.changes += 1

    def _suspend_or_resume(self, job_id: int, from_state: str, to_state: str) -> None:
        job = self._job(job_id)
        if job.state == from_state:
            if from_state == "SUSPENDED" and job.suspended_or_resumed_at is not None:
                job.suspended_seconds += self.now - job.suspended_or_resumed_at
            job.state, job.suspended_or_resumed_at = to_state, self.now

    def begin_later(self, job_id: int, seconds: float) -> None:
        """The owner of the pending job lets it start no earlier."""
        if self._job(job_id).state == "PENDING":
            self._job(job_id).begin_at = self.now + seconds

    def bind_to_several(self, job_id: int, reservations: str) -> None:
        """Makes the job as if submitted with several reservations."""
        self._job(job_id).reservation = reservations

    def set_clock(self, seconds: float) -> None:
        """Processes take as long as they take, whatever the clock shows."""
        self.now += seconds
        for job in self._jobs.values():
            if job.state == "RUNNING" and job.runs_seconds is not None:
                job.runs_seconds += seconds
            if job.state == "COMPLETING":
                job.completes_at += seconds
        for node in self._nodes.values():
            node.quiet_until += seconds

    def kill_node(self, name: str) -> None:
        """The node stops answering. Slurm does not know it yet."""
        self._node(name).dead_since = self.now

    def start_node(self, name: str) -> None:
        self._node(name).dead_since = None

    def boot_node(self, name: str) -> None:
        """The node has booted, and Slurm did not expect it: what ran there is gone. A drained node stays as it is."""
        self.start_node(name)
        node = self._node(name)
        if node.down or (node.drained and name not in self._busy()):
            return
        self._down_by_slurm(node, "Node unexpectedly rebooted")

    def power_down(self, name: str) -> bool:
        """Power saving switches an idle node off, reserved or not. Returns whether it did. Unlike here, a job of the
        real Slurm may be given such a node, and waits until it has booted.
        """
        node = self._node(name)
        if node.down or node.drained or node.power or node.reboot or name in self._busy():
            return False
        node.power = "POWERED_DOWN"
        if self.blocks_lose_powered_down:
            node.in_no_block = True
        return True

    def power_up(self, name: str, *, boots: bool = False) -> None:
        """It has booted, as Slurm expected; with `boots` it has only been switched on."""
        self._node(name).power = "POWERING_UP" if boots else ""

    def miss_ping(self, name: str, seconds: float) -> None:
        """Its slurmd does not answer in time, and is heard again later."""
        self._node(name).quiet_until = self.now + seconds

    def powered_down(self) -> set[str]:
        return {node.name for node in self._nodes.values() if node.power}

    def add_node(self, name: str) -> None:
        self._nodes[name] = _Node(name)

    def plan_maintenance(self, nodes: Collection[str], in_seconds: float, minutes: int) -> None:
        """An administrator reserves the nodes with the flag MAINT, which Slurm shows of them from then on."""
        name, flags, begins_at = "maintenance", frozenset({"MAINT", "IGNORE_JOBS", "SPEC_NODES"}), self.now + in_seconds
        self._reservations[name] = SlurmReservation(name, tuple(sorted(nodes)), ("root",), flags, int(begins_at))
        self._reservation_ends[name] = begins_at + minutes * 60

    def advance(self, seconds: float) -> None:
        """Let time pass. It jumps from one moment at which something happens to the next."""
        until = self.now + seconds
        while self.now < until:
            self.step(until)

    def step(self, until: float) -> None:
        """Let time pass to the next moment at which something happens, at the latest `until`."""
        before = self.now
        self.now = min(until, max(self.next_change(), before + GRAIN_SECONDS))
        self._time_out_nodes()
        self._finish_completing()
        self._finish_own_jobs()
        self._reboot_idle_nodes()
        if before // self._tick_seconds != self.now // self._tick_seconds:
            self._schedule()
        self._forget()

    def next_change(self) -> float:
        """When something happens next, as far as it is known now. May be in the past: at once."""
        return min(self._moments(), default=math.inf)

    def _moments(self) -> Iterator[float]:
        for node in self._nodes.values():
            if node.dead_since is not None and not node.down:
                yield node.dead_since + self.slurmd_timeout_seconds
            if node.reboot == "REQUESTED" and node.name not in self._busy():
                yield self.now
        for job in self._jobs.values():
            yield from self._moments_of(job)
        yield from self._reservation_ends.values()

    def _moments_of(self, job: _Job) -> Iterator[float]:
        if job.state == "PENDING" and job.priority:
            free_at = max(self.now, job.begin_at or 0.0)
            yield (free_at // self._tick_seconds + 1) * self._tick_seconds
        elif job.state == "COMPLETING":
            if job.completes_at > self.now or not any(self._holds_up(self._nodes[name]) for name in job.nodes):
                yield job.completes_at
        elif job.state == "RUNNING" and job.runs_seconds is not None and job.started_at is not None:
            yield job.started_at + job.runs_seconds
        elif job.state in OVER and job.ended_at is not None:
            yield job.ended_at + self.min_job_age_seconds + GRAIN_SECONDS

    def saved_state(self) -> object:
        """What slurmctld has on disk at this moment."""
        return copy.deepcopy((self._nodes, self._jobs, self._reservations, self._reservation_ends))

    def crash(self, saved: Any) -> None:
        """slurmctld dies and is started at once, with the state that it had saved before, and slurm.conf's weights."""
        machines = self._nodes
        self._nodes, self._jobs, self._reservations, self._reservation_ends = copy.deepcopy(saved)
        for node in self._nodes.values():
            node.weight = 1
            if node.name in machines:  # whether a slurmd answers is no matter of what slurmctld remembers
                now = machines[node.name]
                node.dead_since, node.quiet_until = now.dead_since, now.quiet_until
        for job in self._jobs.values():  # processes end when they end, also where the clock was set since
            job.completes_at = min(job.completes_at, self.now + job.kill_seconds + self.epilog_seconds)
        self._started_at = self.now

    def drain_by(self, user: str, name: str, reason: str) -> None:
        """An administrator drains the node."""
        self._set_reason(self._node(name), reason, user)
        self._nodes[name].drained, self._nodes[name].failing = True, False

    def fail_by(self, user: str, name: str, reason: str) -> None:
        """An administrator sets the node to FAIL."""
        self._set_reason(self._node(name), reason, user)
        self._nodes[name].drained, self._nodes[name].failing = False, True

    def finish_reboot(self, name: str) -> None:
        """The node has booted again, and its slurmd reports it."""
        node = self._node(name)
        assert node.reboot == "ISSUED"
        node.reboot, node.drained = "", False
        self._set_reason(node, f"{node.reason} : reboot complete", node.reason_user)

    def rebooting(self) -> set[str]:
        """Nodes that are to boot, until `finish_reboot`."""
        return {node.name for node in self._nodes.values() if node.reboot == "ISSUED"}

    def give_up_reboot(self, name: str) -> None:
        """ResumeTimeout is over and the node is not back: Slurm waits no longer."""
        node = self._node(name)
        assert node.reboot == "ISSUED"
        node.reboot, node.quiet_until = "", float("inf")
        self._set_reason(node, f"{node.reason} : reboot timed out", node.reason_user)

    def register(self, name: str) -> None:
        """The node's slurmd is heard again."""
        self._node(name).quiet_until = 0.0

    # -- Slurm -------------------------------------------------------------------------------------------------

    def config(self) -> Mapping[str, str]:
        return {
            "ClusterName": "testbed",
            "SLURM_VERSION": "22.05.8",
            "SlurmdTimeout": f"{self.slurmd_timeout_seconds:.0f} sec",
            "MinJobAge": f"{self.min_job_age_seconds:.0f} sec",
            "JobRequeue": "1",
            "BOOT_TIME": _printed(self._started_at),
            AS_OF: _printed(self.now),
        }

    def cluster_name(self) -> str:
        return self.config()["ClusterName"]

    def nodes(self) -> list[SlurmNode]:
        works: dict[str, set[str]] = {}
        for job in self._jobs.values():
            if job.state not in OVER:
                for name in job.nodes:
                    works.setdefault(name, set()).add(job.state)
        reserved = {name for reservation in self._reservations.values() for name in reservation.nodes}
        return [self._shown_node(node, works.get(node.name, set()), reserved) for node in self._nodes.values()]

    def jobs(self) -> list[SlurmJob]:
        return [self._shown_job(job) for job in self._jobs.values()]

    def job(self, job_id: int) -> SlurmJob | None:
        job = self._jobs.get(job_id)
        return None if job is None else self._shown_job(job)

    def reservations(self) -> list[SlurmReservation]:
        return list(self._reservations.values())

    def steps(self, job_id: int) -> list[SlurmStep]:
        job = self._job(job_id)
        return [SlurmStep("batch", "batch", "RUNNING", tuple(job.nodes[:1]))] if job.state == "RUNNING" else []

    def job_extra(self, job_id: int) -> str:
        self._job(job_id)
        return ""

    def topology(self) -> tuple[TopologyUnit, ...]:
        names = tuple(self._nodes)
        if self.block_nodes:
            return tuple(self._blocks(names))
        size = max(1, len(names) // self.leaf_switches)
        starts = range(0, size * self.leaf_switches, size)
        leaves = [TopologyUnit(UnitKind.SWITCH, f"rack{at // size + 1}", names[at : at + size]) for at in starts]
        return (*leaves, TopologyUnit(UnitKind.SWITCH, "spine", names, level=1))

    def _blocks(self, names: Sequence[str]) -> Iterator[TopologyUnit]:
        size = self.block_nodes
        for number, at in enumerate(range(0, len(names), size), 1):
            nodes = tuple(name for name in names[at : at + size] if not self._node(name).in_no_block)
            yield TopologyUnit(UnitKind.BLOCK, f"b{number}", nodes, size=size)

    def in_few_blocks(self, free: Sequence[str], count: int) -> list[str]:
        """Nodes as topology/block chooses: of the blocks with the most free nodes, no more than the job needs."""
        if not self.block_nodes:
            return [*free]
        blocks = sorted((set(one.nodes).intersection(free) for one in self.topology()), key=len, reverse=True)
        seats = set[str]().union(*blocks[: -(-count // self.block_nodes)])
        return [name for name in free if name in seats]

    def partition_states(self) -> dict[str, str]:
        return {name: "DOWN" if name in self.partitions_down else "UP" for name in self.tiers}

    def preemption(self) -> PreemptionRules:
        if self.preempt_mode == "OFF":
            return PreemptionRules(None)
        modes = frozenset({self.preempt_mode})
        partitions = {name: Partition(tier, modes) for name, tier in self.tiers.items()}
        return PreemptionRules(PreemptType.PARTITION, modes, partitions)

    def drain_node(self, node: str, reason: str) -> None:
        self.drain_by("root", node, reason)

    def down_nodes(self, nodes: Sequence[str], reason: str) -> None:
        for node in nodes:
            self._down(self._node(node), reason, "root")

    def keep_batch_host(self, job: JobAddress) -> None:
        for one in self._addressed(job):
            if one.state in ("RUNNING", "SUSPENDED"):
                one.nodes = one.nodes[:1]
                self.changes += 1

    def resume_node(self, node: str) -> None:
        found = self._node(node)
        if not found.drained and not found.failing and not found.down:
            raise SlurmError(f"resume {node}: Invalid node state specified")
        again = self.now + 1.0
        self._nodes[node] = _Node(node, dead_since=found.dead_since, quiet_until=again, weight=found.weight)

    def reboot_node(self, node: str, reason: str) -> None:
        self._set_reason(self._node(node), reason, "root")
        self._nodes[node].drained, self._nodes[node].reboot = True, "REQUESTED"

    def set_weight(self, node: str, weight: int) -> None:
        self._node(node).weight = weight

    def create_reservation(self, name: str, nodes: Sequence[str], user: str, duration_minutes: int) -> None:
        if name in self._reservations:
            raise SlurmError(f"create reservation {name}: Requested reservation overlaps with another reservation")
        self._check_nodes(name, nodes)
        flags = frozenset({"IGNORE_JOBS", "NO_HOLD_JOBS_AFTER_END", "OVERLAP", "SPEC_NODES"})
        self._reservations[name] = SlurmReservation(
            name, tuple(sorted(set(nodes))), (checked_user(user),), flags, int(self.now)
        )
        self._reservation_ends[name] = self.now + duration_minutes * 60

    def set_reservation_nodes(self, name: str, nodes: Sequence[str]) -> None:
        reservation = self._reservation(name)
        self._check_nodes(name, nodes)
        self._reservations[name] = replace(reservation, nodes=tuple(sorted(set(nodes))))

    def delete_reservation(self, name: str) -> None:
        self._reservation(name)
        bound = [job for job in self._jobs.values() if name in job.reservation.split(",")]
        if not all(map(_has_ended, bound)):
            raise SlurmError(f"delete reservation {name}: Requested reservation is in use")
        for job in bound:
            job.reservation = ""
        del self._reservations[name], self._reservation_ends[name]

    def set_job_reservation(self, job: JobAddress, reservation: str) -> None:
        for name in reservation.split(",") if reservation else ():
            self._reservation(name)
        for one in self._unfinished(job):
            if one.resized and one.state == "RUNNING":
                raise SlurmError("Job update not available right now, the DB index is being set, try again in a bit")
            one.reservation = reservation.partition(",")[0]

    def submit_job(self, request: JobRequest) -> None:
        if request.node not in self._nodes or self._partition not in request.partition.split(","):
            raise SlurmError(f"Requested node configuration is not available: {request.node}")
        if request.user not in self._reservation(request.reservation).users:
            raise SlurmError(f"Access denied to requested reservation {request.reservation}")
        asked = {one.partition(":")[0] for one in request.gres.split(",")}
        if {"gpu"} < asked & {"gpu", "mps", "shard"} or "no_consume" in request.gres:
            raise SlurmError("Invalid generic resource (gres) specification")
        if request.node in self._under_maintenance(self.now + request.time_limit_minutes * 60):
            raise SlurmError("Requested node configuration is not available")
        job = self._job(self.submit(request.user, 1, request.name, requeue=False))
        job.reservation, job.time_limit_minutes = request.reservation, request.time_limit_minutes
        job.comment = self.job_comments.get(request.node, "")
        job.runs_seconds, job.ends_as = self.job_seconds, self.job_ends_as.get(request.node, "COMPLETED")

    def cancel_job(self, job_id: int) -> None:
        if job_id in self._jobs:
            self.cancel(job_id)

    def requeue_job(self, job: JobAddress) -> None:
        for one in self._addressed(job):
            if not one.requeue:
                raise SlurmError(f"Requested operation is presently disabled for job {job}")
            if one.state in ("RUNNING", "SUSPENDED"):
                one.restart_count += 1
                self._kill(one, "PENDING")

    def requeue_failed_job(self, job: JobAddress) -> None:
        for one in self._addressed(job):
            self._requeue_whatever_became_of_it(one)

    def _requeue_whatever_became_of_it(self, job: _Job) -> None:
        if not job.requeue:
            raise SlurmError(f"Requested operation is presently disabled for job {job.job_id}")
        if job.state == "PENDING" or (job.state == "COMPLETING" and job.next_state == "PENDING"):
            raise SlurmError(f"Job is pending execution for job {job.job_id}")
        job.restart_count += 1
        if job.state == "RUNNING":
            self._kill(job, "PENDING")
        elif job.state == "COMPLETING":
            job.next_state = "PENDING"
        else:
            self._pend(job)

    def hold_job(self, job: JobAddress) -> None:
        for one in self._addressed(job):
            one.priority, one.hold = 0, "JobHeldAdmin"

    def release_job(self, job: JobAddress) -> None:
        for one in self._addressed(job):
            one.priority = one.priority or 1

    def set_excluded_nodes(self, job: JobAddress, nodes: Sequence[str]) -> None:
        for name in nodes:
            self._node(name)
        for one in self._unfinished(job):
            one.excluded = tuple(sorted(set(nodes)))

    def set_job_priority(self, job: JobAddress, priority: int) -> None:
        for one in self._unfinished(job):
            one.priority = priority

    def set_time_limit(self, job: JobAddress, minutes: int) -> None:
        for one in self._unfinished(job):
            one.time_limit_minutes = minutes

    def set_job_comment(self, job: JobAddress, comment: str) -> None:
        for one in self._addressed(job):
            one.comment = " ".join(comment.split())

    def set_job_extra(self, job: JobAddress, extra: str) -> None:
        self._addressed(job)
        raise SlurmError(f"Update of this parameter is not supported: Extra={extra}")  # before 23.02

    def start_job(self, job: JobAddress, not_before: int = 0) -> None:
        for one in self._unfinished(job):
            if one.state == "PENDING":  # accepted in any other state, too, and lost
                one.begin_at = float(not_before) if not_before > self.now else None

    # -- how it goes on ----------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        for job in sorted(self._jobs.values(), key=lambda job: (-self._tier(job), -job.priority, job.job_id)):
            waits = job.begin_at is not None and job.begin_at > self.now
            if job.state != "PENDING" or job.priority == 0 or waits or self._is_shut_out(job):
                continue
            seats = self._seats_for(job)
            if len(seats) >= job.node_count and not self._reaches_limit(job):
                self._start(job, seats[: job.node_count])
            elif self.preempt_mode != "OFF":
                self._preempt_for(job)

    def _is_shut_out(self, job: _Job) -> bool:
        return (job.partition or self._partition) in self.partitions_down or job.job_id in self.waits_for

    def _tier(self, job: _Job) -> int:
        return self.tiers[job.partition or self._partition]

    def _preempt_for(self, job: _Job) -> None:
        """Preempts the first of the jobs that may be, as many as it needs to start."""
        ending = [one for one in self._jobs.values() if one.state == "COMPLETING"]
        lower = [one for one in self._jobs.values() if one.state == "RUNNING" and self._may_be_preempted(one, job)]
        for count in range(len(lower) + 1):
            first = sorted(lower, key=lambda one: (self._tier(one), one.node_count, one.job_id))[:count]
            if len(self._seats_for(job, without=[*ending, *first])) < job.node_count:
                continue
            for one in first:
                self.preempted.append((one.job_id, job.job_id))
                one.restart_count += 1 if one.requeue else 0
                self._kill(one, "PENDING" if one.requeue else "PREEMPTED")
            return

    def may_preempt(self, job_id: int, by: int) -> bool:
        """True if Slurm would end the one for the other, if that needed its nodes."""
        return self.preempt_mode != "OFF" and self._is_preemptible(self._job(job_id), self._job(by))

    def _may_be_preempted(self, job: _Job, by: _Job) -> bool:
        bound = [name for name in by.reservation.split(",") if name in self._reservations]
        usable = {node for name in bound for node in self._reservations[name].nodes}
        return self._is_preemptible(job, by) and (not bound or not usable.isdisjoint(job.nodes))

    def _is_preemptible(self, job: _Job, by: _Job) -> bool:
        exempt = job.started_at is None or self.now < job.started_at + self.exempt_seconds
        return not exempt and self._tier(job) < self._tier(by)

    def _reaches_limit(self, job: _Job) -> bool:
        """True if as many tasks of its array run as may at once."""
        task = job.array_task
        if task is None or not job.tasks_at_once:
            return False
        others = (one.array_task for one in self._jobs.values() if one.state == "RUNNING")
        running = sum(other is not None and other.array_job_id == task.array_job_id for other in others)
        return running >= job.tasks_at_once

    def _seats_for(self, job: _Job, without: Sequence[_Job] = ()) -> list[str]:
        """Seats for the job. `without`: jobs that are taken not to be there."""
        halves = Counter[str]()
        for other in self._jobs.values():
            halves.update(
                {} if other.state in OVER or other in without else dict.fromkeys(other.nodes, 1 if other.half else 2)
            )
        taken = {name for name, count in halves.items() if count + (1 if job.half else 2) > 2} | set(job.excluded)
        taken |= {node.name for node in self._nodes.values() if node.memory_mb < job.memory_mb}
        taken |= self._under_maintenance(self.now + (job.time_limit_minutes or math.inf) * 60)
        lightest_first = sorted(self._nodes.values(), key=lambda node: node.weight)
        free = [node.name for node in lightest_first if node.usable(self.now) and node.name not in taken]
        if job.reservation:
            asked = [self._reservations.get(name) for name in job.reservation.split(",")]
            usable = [one for one in asked if one is not None and job.user in one.users]
            # The first of them that has room is taken.
            seats = (self.in_few_blocks([name for name in free if name in one.nodes], job.node_count) for one in usable)
            return next((found for found in seats if len(found) >= job.node_count), [])
        reserved = {name for reservation in self._reservations.values() for name in reservation.nodes}
        return self.in_few_blocks([name for name in free if name not in reserved], job.node_count)

    def _under_maintenance(self, until: float) -> set[str]:
        """Nodes that a reservation with MAINT has before that moment (reservation.c, job_test_resv)."""
        found = (one for one in self._reservations.values() if one.is_maintenance and one.start_at < until)
        return {name for one in found for name in one.nodes}

    def _start(self, job: _Job, seats: list[str]) -> None:
        self.changes += 1
        job.nodes, job.started_at, job.begin_at = seats, self.now, None
        job.exit_code, job.exit_signal, job.end_reason = 0, 0, ""
        same_second = job.killed_at is not None and int(job.killed_at) == int(self.now)
        if job.broken or same_second:  # same second: "Job credential revoked"
            self._end(job, "FAILED")
        elif self.bad_prologs & set(seats):
            self._fail_prologs(job)
        else:
            job.state = "RUNNING"

    def _fail_prologs(self, job: _Job) -> None:
        """The nodes are drained, the job is requeued and held. Slurm cancels one that may not be requeued."""
        for name in sorted(self.bad_prologs & set(job.nodes)):
            if not self._nodes[name].drained:
                self._set_reason(self._nodes[name], "Prolog error", "root")
            self._nodes[name].drained = True
            self.refused.append((name, job.job_id, job.restart_count))
        job.restart_count += 1 if job.requeue else 0
        if job.requeue:
            job.priority, job.launch_failures = 0, job.launch_failures + 1
            job.hold = "launch_failed_requeued_held"
            if job.launch_failures >= MAX_BATCH_REQUEUE:
                job.launch_failures, job.hold = 0, TOO_MANY
        self._kill(job, "PENDING" if job.requeue else "CANCELLED")

    def _kill(self, job: _Job, next_state: str) -> None:
        self.changes += 1
        job.state, job.next_state, job.killed_at = "COMPLETING", next_state, self.now
        job.completes_at = self.now + job.kill_seconds + self.epilog_seconds

    def _let_end(self, job: _Job, state: str) -> None:
        """Its script has ended."""
        job.exit_code = 1 if state == "FAILED" else 0
        job.end_reason = "NonZeroExitCode" if state == "FAILED" else ""
        if self.epilog_seconds:
            job.state, job.next_state, job.completes_at = "COMPLETING", state, self.now + self.epilog_seconds
        else:
            self._end(job, state)

    def _finish_completing(self) -> None:
        for job in self._jobs.values():
            if job.state != "COMPLETING" or self.now < job.completes_at:
                continue
            job.nodes = [name for name in job.nodes if self._holds_up(self._nodes[name])]
            if job.nodes:
                continue
            if job.next_state == "PENDING":
                self._pend(job)
            else:
                self._end(job, job.next_state)

    def _finish_own_jobs(self) -> None:
        for job in self._jobs.values():
            if job.state != "RUNNING" or job.runs_seconds is None or job.started_at is None:
                continue
            if self.now >= job.started_at + job.runs_seconds:
                self._let_end(job, job.ends_as)

    def _holds_up(self, node: _Node) -> bool:
        return node.dead_since is not None and not node.down

    def _pend(self, job: _Job) -> None:
        self.changes += 1
        job.state, job.nodes, job.started_at, job.ended_at = "PENDING", [], None, None
        job.resized = False
        job.suspended_or_resumed_at, job.suspended_seconds = None, 0.0
        job.submit_at = int(self.now)
        job.begin_at = int(self.now) + REQUEUE_DELAY_SECONDS

    def _end(self, job: _Job, state: str) -> None:
        self.changes += 1
        job.state, job.nodes, job.ended_at = state, [], self.now

    def _down_by_slurm(self, node: _Node, words: str, *, adds: bool = False) -> None:
        """A reason stays that Slurm has not given itself (node_mgr.c, set_node_down_ptr, validate_node_specs)."""
        reason, user, at = node.reason, node.reason_user, node.reason_at
        kept = reason and reason != "Not responding"
        self._down(node, f"{reason} : {words}" if kept and adds else words, "slurm")
        if kept and not adds:
            node.reason, node.reason_user, node.reason_at = reason, user, at

    def _down(self, node: _Node, reason: str, user: str) -> None:
        self.changes += 1
        self._set_reason(node, reason, user)
        node.down = True
        for job in self._jobs.values():
            if node.name not in job.nodes:
                continue
            if job.state in ("RUNNING", "SUSPENDED"):
                job.nodes.remove(node.name)
                if job.job_id in self.no_kill and job.nodes:
                    job.resized = not self.has_slurmdbd
                    continue
                job.restart_count += 1 if job.requeue else 0
                self._kill(job, "PENDING" if job.requeue else "NODE_FAIL")
            elif job.state == "COMPLETING":
                job.nodes.remove(node.name)
                if job.nodes:
                    continue
                # Slurm forgets half of the requeue: no delay, the old submit time, and a record that cannot start.
                job.broken = job.next_state == "PENDING"
                job.state, job.started_at = job.next_state, None

    def _reboot_idle_nodes(self) -> None:
        for node in self._nodes.values():
            if node.reboot == "REQUESTED" and node.name not in self._busy():
                node.reboot = "ISSUED"
                self._down(node, f"{node.reason} : reboot issued", "root")

    def _busy(self) -> set[str]:
        return {name for job in self._jobs.values() if job.state not in OVER for name in job.nodes}

    def _time_out_nodes(self) -> None:
        for node in self._nodes.values():
            silent_since = node.dead_since
            if silent_since is not None and not node.down and self.now - silent_since >= self.slurmd_timeout_seconds:
                self._down_by_slurm(node, "Not responding", adds=self.adds_to_reasons)

    def _forget(self) -> None:
        for name in [name for name in self._reservations if self._reservation_ends[name] <= self.now]:
            del self._reservations[name], self._reservation_ends[name]
            for job in self._jobs.values():  # NO_HOLD_JOBS_AFTER_END: they run elsewhere
                if job.reservation == name and job.state not in OVER:
                    job.reservation = ""
        for job in list(self._jobs.values()):
            if job.state in OVER and job.ended_at is not None and self.now - job.ended_at > self.min_job_age_seconds:
                del self._jobs[job.job_id]

    def _set_reason(self, node: _Node, reason: str, user: str) -> None:
        if not reason.strip():
            raise SlurmError(f"{node.name}: You must specify a reason when DOWNING or DRAINING a node")
        node.reason, node.reason_user, node.reason_at = " ".join(reason.split()), user, int(self.now)

    # -- what it shows -----------------------------------------------------------------------------------------

    def _shown_node(self, node: _Node, jobs: Collection[str], reserved: Collection[str]) -> SlurmNode:
        """`jobs` are the states of those that have it; `reserved` are all nodes of reservations."""
        flags: list[tuple[str, bool]] = [
            ("DRAIN", node.drained),
            ("FAIL", node.failing),
            ("COMPLETING", "COMPLETING" in jobs),
            ("NOT_RESPONDING", not node.responding(self.now)),
            (f"REBOOT_{node.reboot}", bool(node.reboot)),
            (node.power, bool(node.power)),
            ("RESERVED", node.name in reserved),
            ("MAINTENANCE", node.name in self._under_maintenance(self.now)),
            ("INVALID_REG", node.name in self.invalid),
        ]
        return SlurmNode(
            name=node.name,
            address="127.0.0.1",
            port=6818,
            base_state="DOWN" if node.down else "ALLOCATED" if "RUNNING" in jobs else "IDLE",
            flags=frozenset(flag for flag, shown in flags if shown),
            partitions=tuple(self.tiers),
            reason=node.reason,
            reason_user=node.reason_user,
            reason_at=node.reason_at,
            gres=self.gres,
            weight=node.weight,
            cpus=128,
            memory_mb=node.memory_mb,
        )

    def _shown_job(self, job: _Job) -> SlurmJob:
        begin_at = int(job.begin_at) if job.begin_at is not None else None
        return SlurmJob(
            job_id=job.job_id,
            submit_at=job.submit_at,
            user=job.user,
            user_id=0 if job.user == "root" else 1000 + sum(job.user.encode()) % 1000,
            name=job.name,
            partition=job.partition or self._partition,
            account=self._account,
            mail_to=self.mail_to,
            memory_mb=job.memory_mb,
            segment=job.segment,
            state="REQUEUE_HOLD" if job.state == "PENDING" and not job.priority and job.hold == TOO_MANY else job.state,
            restart_count=job.restart_count,
            nodes=tuple(job.nodes),
            node_count=len(job.nodes) if job.state in ("RUNNING", "SUSPENDED") else job.node_count,
            comment=job.comment,
            batch=True,
            requeue=job.requeue,
            reservation=job.reservation,
            reason=self._pending_reason(job, begin_at) if job.state == "PENDING" else job.end_reason,
            start_at=int(job.started_at) if job.started_at is not None else begin_at,
            eligible_at=begin_at or job.submit_at,
            excluded_nodes=job.excluded,
            priority=job.priority,
            time_limit_minutes=job.time_limit_minutes,
            exit_code=job.exit_code,
            exit_signal=job.exit_signal,
            array_task=job.array_task,
            end_at=_end_of(job),
            preempt_at=self._preempt_at(job),
            suspended_or_resumed_at=_second(job.suspended_or_resumed_at),
        )

    def _preempt_at(self, job: _Job) -> int | None:
        if job.started_at is None or self.preempt_mode == "OFF":
            return None
        return int(job.started_at) + self.exempt_seconds

    def _pending_reason(self, job: _Job, begin_at: int | None) -> str:
        if job.priority == 0:
            return job.hold
        if self._is_shut_out(job):
            return self.waits_for.get(job.job_id, "PartitionDown")
        if self._reaches_limit(job):
            return ARRAY_LIMIT
        return "BeginTime" if (begin_at or 0) > self.now else "Resources"

    def _check_nodes(self, reservation: str, nodes: Sequence[str]) -> None:
        if not nodes:
            raise SlurmError(f"reservation {reservation} must keep a node: delete it instead of emptying it")
        for name in nodes:
            self._node(name)

    def _node(self, name: str) -> _Node:
        if name not in self._nodes:
            raise SlurmError(f"Invalid node name specified: {name}")
        return self._nodes[name]

    def _job(self, job_id: int) -> _Job:
        if job_id not in self._jobs:
            raise SlurmError(f"Invalid job id specified: {job_id}")
        return self._jobs[job_id]

    def _addressed(self, address: JobAddress) -> list[_Job]:
        """One job, or by the id of an array all of its tasks."""
        arrays = [(job, job.array_task) for job in self._jobs.values() if job.array_task]
        if isinstance(address, ArrayTask):
            found = [job for job, task in arrays if task == address]
        else:
            found = [job for job, task in arrays if task.array_job_id == address]
        return found or [self._job(address if isinstance(address, int) else 0)]

    def _unfinished(self, address: JobAddress) -> list[_Job]:
        jobs = self._addressed(address)
        left = [job for job in jobs if not _has_ended(job)]
        if not left:
            raise SlurmError(f"Job has already finished for job {address}")
        return left

    def _reservation(self, name: str) -> SlurmReservation:
        if name not in self._reservations:
            raise SlurmError(f"Requested reservation is invalid: {name}")
        return self._reservations[name]


def _second(moment: float | None) -> int | None:
    return None if moment is None else int(moment)


def _end_of(job: _Job) -> int | None:
    if job.ended_at is not None:
        return int(job.ended_at)
    if job.started_at is None or job.time_limit_minutes is None:
        return None
    return int(job.started_at + job.suspended_seconds) + 60 * job.time_limit_minutes


def _printed(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _has_ended(job: _Job) -> bool:
    """Also while its epilogs run: Slurm takes no change of it any more."""
    return job.state in OVER or (job.state == "COMPLETING" and job.next_state != "PENDING")
