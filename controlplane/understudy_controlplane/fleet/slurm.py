"""What Slurm shows of its nodes, jobs and reservations, as plain values.

The field names are Slurm's where Slurm has one. Filled by `understudy_controlplane.slurm`, read by every pure room.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

SWITCHED_OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"})
"""States of power saving: off, about to be, or booting."""

EXTERNAL = "EXTERNAL"
"""A node without slurmd, for jobs submitted with --external alone (26.05)."""

INVALID_REG = "INVALID_REG"
"""The node has less than is configured. Slurm drains it, unless it is out of service already, and refuses to resume it
until its slurmd has registered with what is configured.
"""

OFF_OR_REBOOTING = SWITCHED_OFF | {"REBOOT_ISSUED", "REBOOT_REQUESTED", "REBOOT", "FUTURE"}
MAINTENANCE = frozenset({"MAINT", "MAINTENANCE"})

MEMORY_ALIKE = 0.95
"""Share of another node's memory that a node of the same kind has at least: where sites take RealMemory from
`slurmd -C`, it differs by firmware."""

NOT_RESPONDING = "Not responding"
"""Slurm keeps such a node DOWN where ReturnToService is 0, also once it answers again."""


NO_SERVICE = frozenset({"DOWN", "ERROR", "UNKNOWN"})
"""UNKNOWN: slurmctld has started, and not heard the node since."""


SLURM_USERS = ("slurm", "root")
"""Users of the reasons that Slurm gives: SlurmUser, which the gateways call so, and that of slurmd."""


class Service(StrEnum):
    """What Slurm would do with a node now."""

    USABLE = "usable"  # start a job there, if it were free
    DRAINING = "draining"  # start no further job there
    DOWN = "down"  # run nothing there
    SILENT = "silent"  # wait for it to answer; it may be drained or DOWN besides
    AWAY = "away"  # wait until it is switched on, has booted, or its maintenance is over; or it has no slurmd


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as `scontrol show node` prints it."""

    name: str
    address: str
    port: int  # of slurmd
    base_state: str  # "IDLE", "ALLOCATED", "MIXED", "DOWN", ...
    flags: frozenset[str]  # "DRAIN", "FAIL", "COMPLETING", "NOT_RESPONDING", "RESERVED", ...
    partitions: tuple[str, ...]
    reason: str = ""
    reason_user: str = ""
    reason_at: int = 0  # seconds since the epoch; part of the proof of ownership
    gres: str = ""  # as `fleet.gres.alike` writes it: "gpu:h100:8,nic:4"
    features: frozenset[str] = frozenset()  # active ones: what jobs can ask for
    weight: int = 1  # of nodes that suit a job, Slurm gives it those of the lowest weight
    cpus: int = 0  # as `memory_mb` and `tmp_disk_mb`, as Slurm has it; 0: not known
    memory_mb: int = 0
    tmp_disk_mb: int = 0
    service: Service = field(init=False, compare=False, repr=False)
    """Computed once: many ask for it in each round."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "service", self._service())

    @property
    def draining(self) -> bool:
        """It takes no further jobs, and those that run there go on."""
        return "DRAIN" in self.flags or self.set_to_fail

    @property
    def set_to_fail(self) -> bool:
        """True if an administrator set FAIL, which takes the place of a drain. Neither Slurm nor Understudy sets it."""
        return "FAIL" in self.flags

    @property
    def down(self) -> bool:
        return self.base_state == "DOWN"

    @property
    def responding(self) -> bool:
        return "NOT_RESPONDING" not in self.flags

    @property
    def off_or_rebooting(self) -> bool:
        """Slurm has switched it off, is about to, or waits until it has booted."""
        return not self.flags.isdisjoint(OFF_OR_REBOOTING) or self.base_state in ("FUTURE", "PLANNED_DOWN")

    @property
    def in_maintenance(self) -> bool:
        """An administrator's reservation with the flag MAINT holds it now. Understudy's own have not that flag."""
        return not self.flags.isdisjoint(MAINTENANCE)

    @property
    def blocked(self) -> bool:
        """A job has its block or leaf switch to itself (`--exclusive=topo`): Slurm starts no other job here."""
        return "BLOCKED" in self.flags

    def has_reason(self, reason: str) -> bool:
        """True if it is out of service for this one, also where Slurm has put words of its own behind it."""
        return self.reason == reason or self.reason.startswith(f"{reason} : ")

    def why_unfit(self, job: SlurmJob, place_of: SlurmNode) -> str:
        """Why the job could not start here instead of on that node, in words; empty: it could. What the job does not
        ask for, it had on the node whose place this one takes.
        """
        if not set(self.partitions) & set(job.partition.split(",")):
            return f"it is not in partition {job.partition}"
        if self.gres != place_of.gres:
            return f"it has {self.gres or 'no GPUs'} in Slurm, and {place_of.name} {place_of.gres or 'none'}"
        if job.excluded_nodes and self.name in job.excluded_nodes:
            return "the job excludes it"
        return self._lacks_features(job, place_of) or self.too_small(job, place_of)

    def _lacks_features(self, job: SlurmJob, place_of: SlurmNode) -> str:
        """Only Slurm knows which nodes "a|b" permits: where it asks so, this one has to have what the other one has."""
        if not job.features:
            return ""
        if job.plain_features is not None:
            lacking = job.plain_features - self.features
            return f"it lacks {', '.join(sorted(lacking))}, which the job asks for" if lacking else ""
        return "" if place_of.features <= self.features else f"it lacks features of {place_of.name}"

    def too_small(self, job: SlurmJob, place_of: SlurmNode) -> str:
        """CPUs, memory or disk that it lacks, in words; empty: none."""
        memory_mb = job.memory_mb or int(place_of.memory_mb * MEMORY_ALIKE)
        needs = (
            ("CPUs", self.cpus, place_of.cpus),
            ("MB of memory", self.memory_mb, memory_mb),
            ("MB of temporary disk", self.tmp_disk_mb, job.tmp_disk_mb),
        )
        return next((f"it has {has} {what} of {wanted} needed" for what, has, wanted in needs if has < wanted), "")

    @property
    def taken_out(self) -> bool:
        """Drained, set to fail or DOWN: Slurm starts no job there until it is resumed."""
        return self.draining or self.down

    def _service(self) -> Service:
        if self.off_or_rebooting or self.in_maintenance or EXTERNAL in self.flags:
            return Service.AWAY
        if not self.responding or (self.down and self.reason.startswith(NOT_RESPONDING)):
            return Service.SILENT
        if self.base_state in NO_SERVICE:
            return Service.DOWN
        return Service.DRAINING if self.draining or INVALID_REG in self.flags else Service.USABLE


HELD_AFTER_FAILED_LAUNCH = frozenset(
    {
        "launch_failed_requeued_held",
        "launch_failure_limit_exceeded_requeued_held",  # after MaxBatchRequeue of them, in all its attempts
        "JobHoldMaxRequeue",  # the same in 22.05
    }
)
"""The Reason of a job that Slurm requeued and held because a Prolog failed. Users' and admins' holds have others."""

PEOPLES_HOLDS = frozenset(
    {
        "JobHeldUser",
        "JobHeldAdmin",
        "job_requeued_in_held_state",  # requeuehold, the site's RequeueExitHold, a failed job of --requeue=expedite
        "job_requeued_in_special_exit_state",  # the same with State=SpecialExit and RequeueExit
    }
)
"""Reasons of jobs of priority 0 that their users, administrators, or the site's configuration hold. Slurm's scheduler
gives each other job of priority 0 the reason JobHeldAdmin, but those that Slurm itself holds (job_scheduler.c,
_job_runnable_test1). Slurm itself holds some as JobHeldAdmin: one for which it could make no credential, which its
SystemComment shows; one whose reservation has just ended (reservation.c, job_test_resv), whose burst buffer does not
begin (node_scheduler.c, select_nodes), or whose tasks it cannot distribute (dist_tasks.c) look like an administrator's.
"""

NOT_YET_JUDGED = frozenset({"", "None", "BeginTime", "Cleaning", "Dependency", "Prolog"})
"""Reasons that a held job may have until the scheduler looks at it again."""

SLURMS_DELAY_SECONDS_MAX = 3600.0
"""A begin time that is further from the submit time was set by the job's owner, or an administrator."""

WAITS_FOR_NODES = frozenset(
    {
        "None",
        "BeginTime",  # Slurm's own delay after a requeue
        "Cleaning",  # of its last attempt
        "NodeDown",
        "Nodes",  # "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
        "Priority",
        "ReqNodeNotAvail",  # "ReqNodeNotAvail,_UnavailableNodes:n3"
        "Reservation",
        "Resources",
    }
)
"""First words of the reasons of pending jobs that wait for nodes and for nothing else (job_state_reason.c)."""

ENDED_STATES = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
"""States of an ended job. It may go on in every other one, those of newer versions included."""

_NEVER_PASSES = re.compile(
    r"Invalid|NotAllowed|PerJob|PerNode|^QOSMin|NeverSatisfied|^Partition(?:Time|Node)Limit|^BadConstraints|^DeadLine"
)
"""Reason of a pending job that is not permitted what it asks for. Other reasons pass as other jobs end, as nodes
return, or as an administrator takes a partition up again.
"""

_PLAIN_FEATURES = re.compile(r"[\w.-]+(?:&[\w.-]+)*")

PENDING_STATES = frozenset(
    {"PENDING", "EXPEDITING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
"""Slurm's base state is PENDING, and it shows a flag in its place."""


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """One task of a job array. It has a job id of its own, but that of an array's last task is the array's id as well:
    by that number Slurm would requeue, hold or update all tasks.
    """

    array_job_id: int
    task_id: int

    def __str__(self) -> str:
        return f"{self.array_job_id}_{self.task_id}"


ARRAY_LIMIT = "JobArrayTaskLimit"
"""The reason of a task that waits because as many tasks of its array run as may at once (`--array=1-8%1`)."""

HETEROGENEOUS_JOB = "heterogeneous job"
WAITING_TASKS = "job array's waiting tasks"

JobAddress = int | ArrayTask
"""Address of one job and no other in Slurm's commands."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as `scontrol show job` prints it. Job ids are used again: `submit_at` makes them unique."""

    job_id: int
    submit_at: int  # seconds since the epoch
    user: str
    user_id: int
    name: str
    partition: str
    state: str  # "PENDING", "RUNNING", "COMPLETING", "COMPLETED", "FAILED", ...
    restart_count: int
    nodes: tuple[str, ...]  # empty while pending
    node_count: int
    comment: str
    batch: bool
    requeue: bool
    reservation: str = ""
    reason: str = ""
    start_at: int | None = None  # for a pending job: not before
    eligible_at: int | None = None  # since when, or not before when, Slurm may start it; None: not known
    excluded_nodes: tuple[str, ...] = ()
    priority: int = 1
    time_limit_minutes: int | None = None  # None: none of its own
    required_nodes: tuple[str, ...] = ()  # it runs on no set of nodes without these
    features: str = ""  # that its nodes must have, as an expression of Slurm's
    ranks_max: int | None = None  # its GPUs (by pyslurm: processors), else processors, or more tasks; None: not known
    array_task: ArrayTask | None = None
    part_of: str = ""  # HETEROGENEOUS_JOB or WAITING_TASKS, which Slurm requeues and holds as a whole only
    exit_code: int = 0  # of its script, once it has ended
    exit_signal: int = 0  # that ended its script
    end_at: int | None = None  # by then Slurm ends it, as after a time limit or a preemption; None: not known
    account: str = ""  # to which Slurm charges it; empty: to none
    qos: str = ""
    preempt_at: int | None = None  # since when Slurm may preempt it; None: never
    suspended_or_resumed_at: int | None = None  # last in this attempt; None: it was never suspended
    memory_mb: int = 0  # that it asks for on each of its nodes; 0: for none, or for all that a node has
    tmp_disk_mb: int = 0  # the same of temporary disk
    contiguous: bool = False  # its nodes have to follow each other in Slurm's order
    segment: int = 0  # nodes that have to be in one block (--segment); 0: none asked for, or Slurm does not show it
    switches_max: int = 0  # leaf switches that it wants at most (--switches), if it gets them in time; 0: any number
    gpu_types: tuple[str, ...] = ()  # types of GPUs that it asks for by name ("h100"); by pyslurm those for each node
    no_credential: bool = False  # Slurm could make none for its launch, and held it for that
    mail_to: str = ""  # `--mail-user`, where `--mail-type` has REQUEUE or FAIL; empty: its user asks for no such mail

    @property
    def address(self) -> JobAddress:
        return self.array_task or self.job_id

    @property
    def not_alone(self) -> str:
        """Why nothing is done with this job alone; empty: Slurm can requeue, hold and release it alone."""
        return f"belongs to a {self.part_of}, which Slurm requeues as a whole" if self.part_of else ""

    @property
    def pending(self) -> bool:
        return self.state in PENDING_STATES

    @property
    def ended(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def completing(self) -> bool:
        """It has ended, or was requeued, and its epilogs run. Slurm shows neither "CANCELLED" nor "COMPLETED" yet."""
        return self.state == "COMPLETING"

    @property
    def suspended(self) -> bool:
        """A person, or Slurm for another job, has stopped its processes, and may let them continue."""
        return self.state in ("SUSPENDED", "STOPPED")

    @property
    def failed_by_itself(self) -> bool:
        """Its script ended with an error. Slurm gives this reason to no job that was cancelled: one whose script then
        exits with an error has none.
        """
        return self.completing and self.reason == "NonZeroExitCode"

    @property
    def end_in_words(self) -> str:
        """How it ended, for one that is over or completing."""
        if not self.completing:
            return f"the job is over: {self.state}"
        if self.exit_signal:
            return f"the job was cancelled (signal {self.exit_signal}) and is completing"
        if self.exit_code or self.reason:
            return f"the job has ended with exit code {self.exit_code} ({self.reason or 'cancelled'}) and is completing"
        return "the job has completed, or was cancelled, and is completing"

    @property
    def plain_features(self) -> frozenset[str] | None:
        """Features that each node has to have. None: it asks for none, or by another expression of Slurm's."""
        return frozenset(self.features.split("&")) if _PLAIN_FEATURES.fullmatch(self.features) else None

    @property
    def holds_nodes(self) -> bool:
        """Its processes are, or are about to be, on its nodes; a job that is completing lets go of them."""
        return bool(self.nodes) and not self.pending and not self.ended and self.state != "COMPLETING"

    @property
    def held(self) -> bool:
        """It waits until a user releases it. One that is unfit looks the same and has another cause."""
        return self.pending and self.priority == 0 and not self.unfit

    @property
    def unfit(self) -> bool:
        """Slurm has found no node in its configuration, up or down, that satisfies its request."""
        return self.reason == "BadConstraints"

    @property
    def held_by_slurm(self) -> bool:
        """Slurm itself has taken its priority. A release gives it back, and for one that is unfit also a change of its
        request.
        """
        by_people = self.reason in PEOPLES_HOLDS and not (self.reason == "JobHeldAdmin" and self.no_credential)
        return self.pending and self.priority == 0 and not (by_people or self.reason in NOT_YET_JUDGED)

    @property
    def waits_for_what_passes(self) -> bool:
        """It pends, and Slurm starts it once other jobs have ended, or the cluster is as it was."""
        return self.pending and not self.held and not _NEVER_PASSES.search(self.reason)

    @property
    def put_off(self) -> bool:
        """Its user, or an administrator, has set a later begin time than Slurm does when it requeues a job."""
        delayed = self.reason == "BeginTime" and self.start_at is not None
        return delayed and (self.start_at or 0) - self.submit_at > SLURMS_DELAY_SECONDS_MAX

    @property
    def waits_for_nodes(self) -> bool:
        """It would run if it had nodes. Not one that a person holds or puts off, or that waits for other jobs or for a
        limit.
        """
        free = self.pending and not self.held and not self.put_off
        return free and re.split("[,_ ]", self.reason)[0] in WAITS_FOR_NODES

    @property
    def held_after_failed_launch(self) -> bool:
        return self.pending and self.reason in HELD_AFTER_FAILED_LAUNCH


@dataclass(frozen=True, slots=True)
class SlurmStep:
    """A step as `scontrol show step` prints it."""

    step_id: str  # "0", "batch", "extern", "interactive"
    name: str
    state: str
    nodes: tuple[str, ...]


class UnitKind(StrEnum):
    SWITCH = "switch"
    BLOCK = "block"
    AGGREGATED = "aggregated"  # several blocks that Slurm plans as one


@dataclass(frozen=True, slots=True)
class TopologyUnit:
    """A switch of topology/tree, or a block of topology/block, as `scontrol show topology` prints it."""

    kind: UnitKind
    name: str
    nodes: tuple[str, ...]  # also those below its switches
    level: int = 0  # of a switch: 0 is a leaf switch
    size: int = 0  # of blocks: nodes that Slurm plans with


POOL_USER = "root"
"""User for whom the spare pool is reserved: no job can use it."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job of the control plane, alone on one node, in its own reservation."""

    name: str
    node: str
    partition: str  # or several, with commas between them
    reservation: str
    user: str
    gres: str  # "gpu:8"; empty: none
    script: str
    time_limit_minutes: int
    output: str  # a path on the node


@dataclass(frozen=True, slots=True)
class SlurmReservation:
    name: str
    nodes: tuple[str, ...]
    users: tuple[str, ...]
    flags: frozenset[str]
    start_at: int = 0

    @property
    def is_maintenance(self) -> bool:
        """Slurm starts no job of another reservation on its nodes, nor one that would not be over when it begins."""
        return not self.flags.isdisjoint(MAINTENANCE)

    def keeps_nodes(self, slurm_now: float) -> bool:
        """Not for a maintenance that has not begun: whole clusters are reserved for one days ahead, and until then
        Slurm gives their nodes to jobs that are over by then.
        """
        return not self.is_maintenance or self.start_at <= slurm_now

    def made_for(self, user: str) -> bool:
        """Created for this user alone, with Understudy's flags: no other reservation is so by chance."""
        return self.users == (user,) and "IGNORE_JOBS" in self.flags

    @property
    def made_for_one(self) -> bool:
        """True as `made_for`, for a user that is not known any more: the configuration may name another one since. With
        a name of Understudy's it is the control plane's.
        """
        return len(self.users) == 1 and self.made_for(self.users[0])


@dataclass(frozen=True, slots=True)
class SlurmView:
    """All of it, read one after the other within a few milliseconds."""

    read_at: float
    nodes: Mapping[str, SlurmNode]
    jobs: Mapping[int, SlurmJob]  # by job id: Slurm knows one job of an id at a time
    reservations: Mapping[str, SlurmReservation]
    slurmctld_started_at: float | None = None  # None: not known
    min_job_age_seconds: int = 0  # for which Slurm shows a job that has ended; 0: without end, or not known
    clock_ahead_seconds: float = 0.0  # slurmctld's clock, of the control plane's; 0: less than two seconds
