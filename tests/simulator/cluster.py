"""Machines, their agents, and the gangs that run on them. They send real wire messages to the control plane."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from random import Random

import msgspec

from tests.simulator.saving import LOOK_SECONDS, WAIT_SECONDS_MAX, AskingRanks, Split
from tests.simulator.scenario import PROGRAM_XIDS
from understudy_controlplane.app import Core
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.slurm import SlurmJob
from understudy_controlplane.ingest.decode import decode_report
from understudy_controlplane.ingest.launchers import gang_of
from understudy_controlplane.ingest.launchers import objection_to as objection_to_launcher
from understudy_controlplane.ingest.reports import objection_to, store_facts
from understudy_controlplane.live.telemetry import UnknownNode
from understudy_controlplane.store.database import StoreError
from understudy_wire.facts import (
    Anomaly,
    AnomalyKind,
    CheckpointDeleted,
    CheckpointShard,
    Fact,
    FirstStep,
    JobRefused,
    KernelEvent,
    LaunchCause,
    LaunchEnded,
    LaunchStarted,
    RankStarted,
)
from understudy_wire.hardware import Gpu, GpuStatus, Port
from understudy_wire.launcher import LauncherPhase, LauncherReport, LauncherState
from understudy_wire.messages import RELEASE, WIRE_VERSION, Report
from understudy_wire.ranks import Collective, RankWindow, SaveOrder

CLUSTER = "testbed"
GPUS = 2
"""GPUs of a node: one that fails, and one that does not."""
STEP_SECONDS = 2.0
REPORT_SECONDS = 1.0
START_SECONDS = 1.5
WAKE_SECONDS = 8.0
"""What the first step takes after a suspension."""
WAITS_SECONDS = 60.0
"""A launcher without a node on which its program runs waits for another one for that time."""
CHECKPOINT_STEPS = 30
OFTEN_UNTIL_STEP = 240
CHECKPOINT_STEPS_LATER = 150
"""The faults are over by then."""
SAVE_SECONDS = 1.0
"""Seconds that a checkpoint holds the training up, as ranks report it that ask when to save."""
WINDOW_STEPS_MAX = 64
NAN_SECONDS = 15.0
REBOOT_SECONDS = 20.0
LATE_SECONDS_MAX = 15.0
SELF_SECONDS = 1.0
SLOW_SELF_SECONDS = 1.8
NVLINKS = 18
FABRIC = "fabric"
LICENCE = "licence"
"""What a gang waits for where no node is behind the others."""
SHRUNK = "its smaller allocation"
"""What a gang hangs on of which an administrator took nodes. Its srun has --no-kill, else its script fails."""

SUSPENDED = "suspension"
"""The same of one that an administrator has suspended: its ranks stand in the collective in which they were."""

HARDWARE_SLOWDOWN = 0x08  # nvmlClocksEventReason bit

_encoder = msgspec.json.Encoder()


@dataclass
class Machine:
    """A node and its agent."""

    name: str
    boots: int = 1
    alive: bool = True
    died_at: float = math.inf
    boots_at: float = math.inf  # when it comes back by itself
    silent_until: float = 0.0
    disturbed_until: float = 0.0
    cut_until: float = 0.0  # from the management network
    unreachable_until: float = 0.0  # for the control plane alone
    slow_until: float = 0.0
    slow_shows: bool = False  # in its clocks
    nvlink_down_until: float = 0.0
    rows_remapped: int = 0  # of a GPU's memory, and all that its banks had
    port_down_since: float = math.inf
    port_up_at: float = math.inf
    broken: bool = False
    broken_at: float = -math.inf
    repaired_at: float = -math.inf  # until when no reset helps
    fails_validation: bool = False
    computes_wrong: bool = False
    lacks_package: bool = False
    slowed_at: float = -math.inf  # when it was last known to be slow
    on_trial: bool = False  # since its last boot a rule that only observes has accused it
    accused_at: float = -math.inf  # when something was last known for which it may be taken out of service
    inferred_at: float = -math.inf  # when that was an inference from silence, of a node that is well
    kernel_messages: int = 0  # so far: each has its own number
    heard_events: set[tuple[str, int]] = field(default_factory=set)  # boot and number, of the kernel log
    sequence: int = 0
    sent_at: float = -math.inf
    facts: list[Fact] = field(default_factory=list)  # not acknowledged yet
    xids: set[int] = field(default_factory=set)  # since it booted or was repaired
    late: list[tuple[float, bytes]] = field(default_factory=list)
    reported: dict[tuple[int, Attempt], int] = field(default_factory=dict)  # the next step to report

    @property
    def boot_id(self) -> str:
        return f"boot {self.boots} of {self.name}"

    @cached_property
    def gpus(self) -> list[Gpu]:
        return [
            Gpu(index, GpuStatus.OK, f"GPU-{self.name}-{index}", f"0000:{index + 1:02x}:00.0") for index in range(GPUS)
        ]

    def answers(self, now: float) -> bool:
        """True if agent and slurmd can be reached."""
        return self.alive and now >= max(self.cut_until, self.unreachable_until)

    def port_is_down(self, now: float) -> bool:
        return self.port_down_since <= now < self.port_up_at

    def is_cut_off(self, now: float) -> bool:
        """True if its port or its NVLinks keep it from the fabric."""
        return self.port_is_down(now) or now < self.nvlink_down_until

    def gpus_at(self, now: float) -> list[Gpu]:
        shown = self.gpus[0]
        if self.slow_shows and now < self.slow_until:
            shown = msgspec.structs.replace(shown, clock_event_reasons=HARDWARE_SLOWDOWN)
        if now < self.nvlink_down_until:
            shown = msgspec.structs.replace(shown, nvlinks=NVLINKS - 1, nvlinks_max=NVLINKS)
        if self.rows_remapped:
            rows = self.rows_remapped
            shown = msgspec.structs.replace(shown, remapped_rows_uncorrectable=rows, memory_banks_spent=rows)
        return self.gpus if shown is self.gpus[0] else [shown, *self.gpus[1:]]

    def port_at(self, now: float) -> Port:
        if self.port_is_down(now):
            down = now - self.port_down_since
            return Port("mlx5_0", 1, "InfiniBand", "DOWN", "Polling", was_active=True, down_seconds=down)
        return Port("mlx5_0", 1, "InfiniBand", "ACTIVE", "LinkUp", was_active=True)

    def repair(self) -> None:
        self.broken = self.fails_validation = self.computes_wrong = False
        self.xids.clear()
        self.slow_until = self.nvlink_down_until = 0.0
        self.port_down_since = math.inf

    def refuse(self, job_id: int, restart_count: int, now: float) -> None:
        """Its Prolog has kept the job off."""
        self.accused_at = now
        self.facts.append(JobRefused(job_id, now, "a verdict from before", restart_count))

    def log_xid(self, xid: int, now: float) -> None:
        text = f"NVRM: Xid (PCI:0000:01:00): {xid}, pid=1, name=python, simulated"
        self.kernel_messages += 1
        self.xids.add(xid)
        self.facts.append(KernelEvent(self.boot_id, self.kernel_messages, now, text, xid, "0000:01:00.0"))

    def die(self, now: float) -> None:
        self.alive, self.died_at = False, now
        self.facts.clear()
        self.reported.clear()

    def boot(self, now: float) -> None:
        self.alive, self.boots_at = True, math.inf
        self.broken = self.broken and now < self.repaired_at
        self.xids.clear()
        self.boots, self.on_trial = self.boots + 1, False
        self.sequence = 0


@dataclass
class Gang:
    """The processes of a gang's job. They know the attempt that they belong to, and the step from which it began."""

    number: int
    job_id: int
    user: str
    seats_wanted: int
    launcher: bool
    attempt: Attempt | None = None
    seats: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    ran_on: frozenset[str] = frozenset()  # nodes on which all ranks together have finished a step
    waits_until: float = math.inf  # its launcher has no node on which the program runs, and ends then
    allocation: tuple[str, ...] = ()  # of its last attempt
    lost: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()  # seats that its job has lost to an administrator
    starts_at: float = math.inf  # when its processes will be there
    since: float = math.inf  # when it began to compute
    first_step: int = 0
    counted_from: int = 0  # the step that its program numbers 0
    stopped_at: float = math.inf
    stuck_at: float = -math.inf  # when it last stood still without being suspended
    wakes_at: float = math.inf  # after a suspension, when its ranks finish a step again
    hung_on: str = ""
    hangs_at: int | None = None  # its program hangs at the step of this number, each time
    saves: bool = True  # it announces checkpoints
    quick_since: float = 0.0  # its steps take half as long
    quick_until: float = 0.0
    stays_until: float = 0.0  # the ranks of the last node ignore a launch before that
    left_behind: Attempt | None = None  # that they still belong to
    first_step_sent: bool = False
    reported: bool = False  # ranks of any attempt
    newest: tuple[int, str] | None = None  # step and path of the last checkpoint that all ranks of this attempt wrote
    saved: int = 0  # the last step of which its ranks have announced a checkpoint
    wrong_in: Attempt | None = None  # the last one that a GPU has spoilt by computing wrong
    over: str = ""  # how it ended, as its user knows
    ended_at: float = math.inf
    asks: bool = False  # its training asks when to save
    asking: AskingRanks | None = None  # while it computes

    def step(self, now: float) -> int:
        """The next step to be finished."""
        until = min(now, self.stopped_at)
        quick = max(0.0, min(until, self.quick_until) - max(self.since, self.quick_since))
        return self.first_step + max(0, int((until - self.since + quick) // STEP_SECONDS))

    def step_seconds(self, now: float) -> float:
        return STEP_SECONDS / 2 if self.quick_since <= now < self.quick_until else STEP_SECONDS

    @property
    def computes(self) -> bool:
        return self.since < math.inf and self.stopped_at == math.inf

    def begin(self, attempt: Attempt, now: float) -> None:
        stay = self.attempt is not None and now < self.stays_until and attempt.launch > 0
        self.left_behind = self.attempt if stay else None
        self.attempt = attempt
        self.starts_at, self.since, self.stopped_at = now + START_SECONDS, math.inf, math.inf
        self.wakes_at, self.counted_from = math.inf, 0
        self.gone, self.waits_until = (), math.inf
        self.hung_on, self.first_step_sent, self.lost, self.asking, self.newest = "", False, (), None, None

    @property
    def suspended(self) -> bool:
        return self.hung_on == SUSPENDED

    def suspend(self, now: float) -> None:
        """Suspends it while it computes: one that hangs, or has only just begun, is the same gang afterwards."""
        if self.computes:
            self.hung_on = SUSPENDED
            self.stop(now)

    def stop(self, now: float) -> None:
        self.stopped_at = min(self.stopped_at, now)

    def go_on(self, now: float) -> None:
        """Goes on with the step in which it stopped."""
        self.stuck_at = self.stuck_at if self.suspended else now
        away = now - self.stopped_at
        self.since += away
        self.quick_since, self.quick_until = self.quick_since + away, self.quick_until + away
        self.stopped_at, self.wakes_at, self.hung_on = math.inf, math.inf, ""

    def end(self) -> None:
        self.attempt, self.starts_at, self.since, self.asking = None, math.inf, math.inf, None
        self.waits_until = math.inf

    def began(self, step: int, now: float) -> float:
        """When it began this step, which it is at."""
        at = now
        while at > self.since and self.step(at - LOOK_SECONDS) >= step:
            at -= LOOK_SECONDS
        return at


Seat = tuple[Gang, int]
"""A gang and one of its ranks."""


@dataclass(frozen=True)
class Restore:
    """The answer to a gang that asked where to continue."""

    gang: Gang
    attempt: Attempt
    step: int
    path: str
    suspect: bool  # the control plane had been notified that the loss was NaN before
    gone: bool  # ... that the training had deleted it


class Cluster:
    """`live` brings everything to the present; `deliver` brings the agents' messages to the control plane."""

    def __init__(self, names: Iterable[str], random: Random) -> None:
        self._random = random
        self.machines = {name: Machine(name) for name in names}
        self.gangs: list[Gang] = []
        self.written: dict[tuple[int, str], set[int]] = {}
        """Job and path → ranks that wrote their shard."""
        self._written_by: dict[tuple[int, str], tuple[Attempt, int]] = {}
        """The same → the attempt, and the step."""
        self.bad_since: dict[tuple[int, Attempt], int] = {}
        """Step from which an attempt's loss was NaN, as the control plane has acknowledged."""
        self.gone: set[tuple[int, str]] = set()
        """Job and path that its training has deleted, as the control plane has acknowledged."""
        self.restores: list[Restore] = []
        self.connected: set[int] = set()  # jobs of which a rank has ever connected to its agent
        self.worked: dict[int, set[Attempt]] = {}
        """Job → attempts of which all ranks together have finished a step."""
        self.splits: list[Split] = []
        """Saves in which ranks did not save together, though each knew what had become of its order."""
        self.restarted_well: list[tuple[int, float]] = []
        """Jobs whose launchers were ordered to restart a gang that computed, and for how long it had."""
        self._lived_at = 0.0

    # -- what happens by itself ----------------------------------------------------------------------------------

    def next_change(self) -> float:
        moments = [machine.boots_at for machine in self.machines.values()]
        for gang in self.gangs:
            moments += [gang.starts_at, gang.wakes_at, gang.waits_until]
            if gang.computes and not gang.first_step_sent:
                moments.append(gang.since + STEP_SECONDS)
            if gang.asking is not None and gang.asking.knows_a_proposal:
                moments.append(self._lived_at + LOOK_SECONDS)
        return min(moments)

    def live(self, jobs: dict[int, SlurmJob], core: Core | None, now: float) -> None:
        self._lived_at = now
        for gang in self.gangs:
            job = jobs.get(gang.job_id)
            self._follow_slurm(gang, job, now)
            if job is not None and job.state == "SUSPENDED":
                continue
            if gang.suspended:
                gang.wakes_at = min(gang.wakes_at, now + WAKE_SECONDS)
                if now >= gang.wakes_at:
                    gang.go_on(now)
            elif gang.stopped_at < math.inf:
                gang.stuck_at = now
            self._obey(gang, core, now)
            bad = [name for name in gang.seats if not self._well(name, now)]
            if bad:
                if gang.computes:  # the others have written their part of the next checkpoint
                    self._write(gang, gang.step(now) + 1, [name for name in gang.seats if name not in bad], now)
                gang.stop(now)
                gang.hung_on, gang.starts_at = gang.hung_on or bad[0], math.inf
            if gang.starts_at <= now:
                self._start(gang, core, now)
            hangs_at = gang.counted_from + gang.hangs_at if gang.hangs_at is not None else math.inf
            if gang.computes and gang.step(now) >= hangs_at:
                gang.hung_on, gang.stuck_at = gang.seats[-1], now
                gang.stop(gang.began(int(hangs_at), now))
            if gang.since < math.inf:
                self._compute(gang, now)
                self._announce(gang, now)

    def _well(self, name: str, now: float) -> bool:
        machine = self.machines[name]
        return machine.alive and not machine.broken and not machine.port_is_down(now)

    def _follow_slurm(self, gang: Gang, job: SlurmJob | None, now: float) -> None:
        if job is not None and job.state == "SUSPENDED":
            gang.suspend(now)
            return
        if job is None or job.state != "RUNNING":
            gang.end()
            return
        if gang.attempt is None or gang.attempt.restart_count != job.restart_count:
            gang.seats, gang.spares = job.nodes[: gang.seats_wanted], job.nodes[gang.seats_wanted :]
            gang.allocation = job.nodes
            self._launch(gang, Attempt(job.restart_count), now)
        gang.gone = () if gang.launcher else tuple(name for name in gang.seats if name not in job.nodes)
        if gang.gone:
            gang.stop(now)
            gang.starts_at, gang.hung_on = math.inf, SHRUNK if gang.suspended else gang.hung_on or SHRUNK

    def _launch(self, gang: Gang, attempt: Attempt, now: float) -> None:
        gang.begin(attempt, now)
        if gang.launcher:
            started = LaunchStarted(
                gang.job_id, attempt.restart_count, attempt.launch, gang.seats, gang.spares, now, self._user_id(gang)
            )
            self._put(gang.seats[0], started)

    def break_off(self, gang: Gang, now: float) -> None:
        """The last rank ends with an error, and the launcher begins another launch on the same nodes."""
        if not gang.launcher or gang.attempt is None or not gang.computes:
            return
        (restarts, launch), rank = gang.attempt, len(gang.seats) - 1
        reason = f"rank {rank} on {gang.seats[-1]} ended with 1"
        node, user = gang.seats[-1], self._user_id(gang)
        ended = LaunchEnded(
            gang.job_id, restarts, launch, "L130", reason, now, failed_node=node, rank=rank, status=1, user_id=user
        )
        self._put(gang.seats[0], ended)
        self._launch(gang, Attempt(restarts, launch + 1), now)

    def _obey(self, gang: Gang, core: Core | None, now: float) -> None:
        """The launcher follows its orders: another launch, without the bad nodes."""
        if not gang.launcher or core is None or gang.attempt is None:
            return
        orders = core.launchers.orders(gang.job_id)
        if orders is None:
            return
        bad = [name for name in gang.seats if name in orders.bad]
        again = orders.restart is not None and gang.attempt.launch <= orders.restart.launch
        gang.spares = tuple(name for name in gang.spares if name not in orders.bad)
        if (bad or again) and len(gang.spares) >= len(bad):
            if not bad and gang.computes:
                self.restarted_well.append((gang.job_id, now - gang.stuck_at))
            kept = [name for name in gang.seats if name not in bad]
            gang.seats, gang.spares = (*kept, *gang.spares[: len(bad)]), gang.spares[len(bad) :]
            self._launch(gang, Attempt(gang.attempt.restart_count, gang.attempt.launch + 1), now)

    def _fail_on(self, node: str, gang: Gang, now: float) -> None:
        """The program fails on a node that is new to it. The launcher takes a spare of its own, or waits for one."""
        assert gang.attempt is not None
        (restarts, launch), rank, spare = gang.attempt, gang.seats.index(node), gang.spares[:1]
        ended = LaunchEnded(
            gang.job_id,
            restarts,
            launch,
            "L120" if spare else "L125",
            f"rank {rank} on {node} ended with 1",
            now,
            cause=LaunchCause.BLACK_HOLE,
            failed_node=node,
            rank=rank,
            status=1,
            blamed=(node,) if spare else (),
            user_id=self._user_id(gang),
        )
        self._put(gang.seats[0], ended)
        if not spare:
            gang.starts_at, gang.waits_until = math.inf, now + WAITS_SECONDS
            return
        gang.seats, gang.spares = tuple(spare[0] if one == node else one for one in gang.seats), gang.spares[1:]
        self._launch(gang, Attempt(restarts, launch + 1), now)

    def _start(self, gang: Gang, core: Core | None, now: float) -> None:
        """Its processes are there. They ask where to continue; without an answer they ask again."""
        assert gang.attempt is not None
        new = [name for name in gang.seats if name not in gang.ran_on and self.machines[name].lacks_package]
        if gang.launcher and gang.ran_on and new:
            self._fail_on(new[0], gang, now)
            return
        known = core.reports.directory.get(gang.job_id) if core else None
        if core is None or known is None or known.restart_count < gang.attempt.restart_count:
            gang.starts_at = now + 1.0
            return
        try:
            decisions = [core.reports.give_restore_point(known, gang.attempt, len(gang.seats)) for _ in gang.seats]
            answers = {(one.step, one.path) for one in decisions}  # where nothing is known: from the beginning
        except StoreError:
            gang.starts_at = now + 1.0
            return
        self.restores += [
            Restore(
                gang,
                gang.attempt,
                step,
                path,
                self._is_suspect(gang.job_id, path),
                (gang.job_id, path) in self.gone,
            )
            for step, path in answers
        ]
        gang.first_step, gang.saved = min(answers)[0], min(answers)[0]
        gang.starts_at, gang.since, gang.reported = math.inf, now, True
        self.connected.add(gang.job_id)
        gang.asking = AskingRanks(len(gang.seats), gang.first_step) if gang.asks else None
        if gang.left_behind:
            gang.hung_on = gang.seats[-1]
            gang.stop(now)
        for rank, name in enumerate(gang.seats[:-1] if gang.left_behind else gang.seats):
            started = RankStarted(
                gang.job_id,
                gang.attempt.restart_count,
                rank,
                len(gang.seats),
                now,
                100 + rank,
                gang.attempt.launch,
                self._user_id(gang),
            )
            self._put(name, started)

    def _announce(self, gang: Gang, now: float) -> None:
        """First step and checkpoints, as the ranks report them."""
        assert gang.attempt is not None
        (restarts, launch), world, user = gang.attempt, len(gang.seats), self._user_id(gang)
        if gang.step(now) > gang.first_step and not gang.first_step_sent:
            gang.first_step_sent = True
            self.worked.setdefault(gang.job_id, set()).add(gang.attempt)
            gang.ran_on |= {*gang.seats}
            for rank, name in enumerate(gang.seats):
                self._put(name, FirstStep(gang.job_id, restarts, rank, world, gang.first_step, now, launch, user))
        between = CHECKPOINT_STEPS if gang.step(now) < OFTEN_UNTIL_STEP else CHECKPOINT_STEPS_LATER
        if gang.asking is not None:
            self._save_when_due(gang, gang.asking, between, now)
            return
        step = gang.step(now) // between * between
        if step > gang.saved:
            gang.saved = step
            self._write(gang, step, gang.seats, now)

    def _save_when_due(self, gang: Gang, ranks: AskingRanks, own_every: int, now: float) -> None:
        """Its ranks ask at each step. One that does not know what has become of an order waits, and all with it."""
        if ranks.waits_at is not None:
            waits = ranks.has_to_wait(ranks.waits_at) and now - gang.stopped_at < WAIT_SECONDS_MAX
            if waits or gang.hung_on:
                return
            self._ask(gang, ranks, ranks.waits_at, own_every, now)
            ranks.waits_at = None
            gang.go_on(now)
        while (step := ranks.asked + 1) <= gang.step(now):
            if ranks.has_to_wait(step):
                ranks.waits_at = step
                gang.stop(gang.began(step, now))
                return
            self._ask(gang, ranks, step, own_every, now)

    def _ask(self, gang: Gang, ranks: AskingRanks, step: int, own_every: int, now: float) -> None:
        due = ranks.ask(step, own_every)
        if not any(due):
            return
        self._write(gang, step, [name for name, saves in zip(gang.seats, due, strict=True) if saves], now)
        if not all(due) and not ranks.gave_up:
            saved, others = ([rank for rank, saves in enumerate(due) if saves is this] for this in (True, False))
            assert gang.attempt is not None
            self.splits.append(Split(gang.job_id, gang.attempt, step, tuple(saved), tuple(others)))

    def _write(self, gang: Gang, step: int, writers: Collection[str], now: float) -> None:
        """A checkpoint, by the ranks on these nodes."""
        if not gang.saves:
            return
        assert gang.attempt is not None
        (restarts, launch), world, user = gang.attempt, len(gang.seats), self._user_id(gang)
        path = f"/ckpt/{gang.job_id}/{restarts}.{launch}/{step}"
        blocked = SAVE_SECONDS if gang.asks else None
        self._written_by[gang.job_id, path] = (gang.attempt, step)
        for rank, name in enumerate(gang.seats):
            if name in writers:
                file = f"{rank}.pt"
                shard = CheckpointShard(
                    gang.job_id,
                    restarts,
                    rank,
                    world,
                    step,
                    path,
                    file,
                    1,
                    "",
                    now,
                    launch,
                    user,
                    blocked_seconds=blocked,
                )
                self._put(name, shard)
                self.written.setdefault((gang.job_id, path), set()).add(rank)

        gang.newest = (step, path) if {*writers} == {*gang.seats} else gang.newest

    def delete_newest(self, gang: Gang, now: float) -> None:
        """Rank 0 reports it."""
        if gang.attempt is not None and gang.newest is not None:
            (restarts, launch), (step, path), user = gang.attempt, gang.newest, self._user_id(gang)
            deleted = CheckpointDeleted(gang.job_id, restarts, 0, len(gang.seats), step, path, now, launch, user)
            self._put(gang.seats[0], deleted)

    def _is_suspect(self, job_id: int, path: str) -> bool:
        attempt, step = self._written_by.get((job_id, path), (None, 0))
        bad_since = self.bad_since.get((job_id, attempt)) if attempt is not None else None
        return bad_since is not None and bad_since <= step

    def lose_numbers(self, gang: Gang, nodes: Iterable[str], now: float) -> None:
        """Makes the loss NaN from this step on, first on these nodes of the gang."""
        if gang.attempt is None or not gang.computes:
            return
        (restarts, launch), world, user = gang.attempt, len(gang.seats), self._user_id(gang)
        for name in nodes:
            rank, step = gang.seats.index(name), gang.step(now)
            anomaly = Anomaly(
                gang.job_id, restarts, rank, world, AnomalyKind.LOSS_NAN, step, now, "nan", launch=launch, user_id=user
            )
            self._put(name, anomaly)

    def blame(self, job: SlurmJob, now: float) -> None:
        """The job's launcher replaces its first node, because ranks failed first there, twice running."""
        name = job.nodes[0]
        ended = LaunchEnded(
            job.job_id,
            job.restart_count,
            1,
            "L1",
            "ranks failed first there again",
            now,
            cause=LaunchCause.BLACK_HOLE,
            failed_node=name,
            blamed=(name,),
            user_id=job.user_id,
        )
        self._put(name, ended)

    def _compute(self, gang: Gang, now: float) -> None:
        """What a GPU computes wrong is seen some seconds after the attempt has begun, once."""
        wrong = [name for name in gang.seats if self.machines[name].computes_wrong]
        if wrong and gang.wrong_in != gang.attempt and now - gang.since > NAN_SECONDS:
            gang.wrong_in = gang.attempt
            self.lose_numbers(gang, wrong, now)

    def _put(self, name: str, fact: Fact) -> None:
        if self.machines[name].alive:
            self.machines[name].facts.append(fact)

    @staticmethod
    def _user_id(gang: Gang) -> int:
        return 1000 + sum(gang.user.encode()) % 1000

    # -- messages ------------------------------------------------------------------------------------------------

    def deliver(self, core: Core, now: float) -> None:
        seats = self._seats()
        for machine in self.machines.values():
            arriving = [body for at, body in machine.late if at <= now]
            machine.late = [(at, body) for at, body in machine.late if at > now]
            for body in arriving:
                _receive(core, body)
            due = bool(machine.facts) or now - machine.sent_at >= REPORT_SECONDS
            if machine.answers(now) and now >= machine.silent_until and due:
                machine.sent_at = now
                self._send(machine, seats[machine.name], core, now)
        for gang in self.gangs:
            if gang.launcher and gang.attempt is not None and not gang.suspended:
                self._report_launcher(gang, core, now)

    def _seats(self) -> dict[str, list[Seat]]:
        """Ranks by node of the gangs that have begun, in the order of gangs and ranks."""
        seats: dict[str, list[Seat]] = {name: [] for name in self.machines}
        for gang in self.gangs:
            if gang.since < math.inf:
                for rank, name in enumerate(gang.seats):
                    if name not in gang.gone:
                        seats[name].append((gang, rank))
        return seats

    def _send(self, machine: Machine, seats: Iterable[Seat], core: Core, now: float) -> None:
        body = _encoder.encode(self._report(machine, seats, now))
        fate = self._random.random() if now < machine.disturbed_until else 1.0
        if fate < 0.3:
            return
        if fate < 0.5:
            machine.late.append((now + self._random.uniform(0.5, LATE_SECONDS_MAX), body))
            return
        orders = _receive(core, body)
        if fate < 0.7:
            _receive(core, body)
        if orders is not None and not 0.7 <= fate < 0.8:  # else the answer is lost, and the facts are sent again
            self._note_acknowledged(machine, now)
            machine.facts.clear()
            self._pass_on(seats, orders)

    @staticmethod
    def _pass_on(seats: Iterable[Seat], orders: Iterable[SaveOrder]) -> None:
        for order in orders:
            attempt = Attempt(order.restart_count, order.launch)
            for gang, rank in seats:
                if gang.job_id == order.job_id and gang.attempt == attempt and gang.asking is not None:
                    gang.asking.take(rank, order)

    def _note_acknowledged(self, machine: Machine, now: float) -> None:
        """A person who resumes a node does not answer for an error that its agent could not report yet."""
        for fact in machine.facts:
            if isinstance(fact, KernelEvent) and fact.xid not in PROGRAM_XIDS:
                if (fact.boot_id, fact.sequence) not in machine.heard_events:
                    machine.accused_at = now
                machine.heard_events.add((fact.boot_id, fact.sequence))
            if isinstance(fact, CheckpointDeleted):
                self.gone.add((fact.job_id, fact.path))
            if isinstance(fact, Anomaly):
                self.bad_since.setdefault((fact.job_id, Attempt(fact.restart_count, fact.launch)), fact.step)

    def _report(self, machine: Machine, seats: Iterable[Seat], now: float) -> Report:
        machine.sequence += 1
        return Report(
            version=WIRE_VERSION,
            release=RELEASE,
            cluster=CLUSTER,
            node=machine.name,
            boot_id=machine.boot_id,
            sequence=machine.sequence,
            agent_started_at=0.0,
            sent_at=now,
            gpus=machine.gpus_at(now),
            ports=[machine.port_at(now)],
            ranks=[self._window(machine, gang, rank, now) for gang, rank in seats],
            facts=list(machine.facts),
        )

    def _window(self, machine: Machine, gang: Gang, rank: int, now: float) -> RankWindow:
        assert gang.attempt is not None
        step = gang.step(now)
        begin = max(
            machine.reported.get((gang.job_id, gang.attempt), gang.first_step),
            step - WINDOW_STEPS_MAX,
            gang.first_step,
            gang.counted_from,
        )
        machine.reported[gang.job_id, gang.attempt] = step
        behind = gang.hung_on == machine.name
        waits = bool(gang.hung_on) and not behind
        attempt = (behind and gang.left_behind) or gang.attempt
        seconds = gang.step_seconds(now)
        busy = (SLOW_SELF_SECONDS if now < machine.slow_until else SELF_SECONDS) / STEP_SECONDS
        return RankWindow(
            gang.job_id,
            attempt.restart_count,
            rank,
            len(gang.seats),
            0,
            self._user_id(gang),
            "",
            begin - gang.counted_from,
            [busy * seconds] * (step - begin),
            [seconds] * (step - begin),
            attempt.launch,
            Collective("all_reduce", step + 1 + waits, now, step, waits),
            saves=gang.asking.report(rank) if gang.asking is not None and attempt == gang.attempt else None,
        )

    def _report_launcher(self, gang: Gang, core: Core, now: float) -> None:
        """It runs on the gang's first node and sends through its agent."""
        assert gang.attempt is not None
        host = self.machines[gang.seats[0]]
        nodes = core.telemetry.nodes_of(gang.job_id, gang.attempt.restart_count)
        known = core.reports.directory.get(gang.job_id)
        if not host.answers(now) or now < host.silent_until or nodes is None or known is None:
            return
        state = LauncherState(
            gang.job_id,
            gang.attempt.restart_count,
            gang.attempt.launch,
            LauncherPhase.RUNNING if gang.waits_until == math.inf else LauncherPhase.WAITING,
            gang.seats,
            gang.spares,
            gang.lost,
        )
        report = LauncherReport(WIRE_VERSION, CLUSTER, host.name, self._user_id(gang), state)
        if objection_to_launcher(report, known, nodes) is None and core.launchers.note(
            gang_of(report, nodes, core.reports.clock.now())
        ):
            core.loop.wake()


def _receive(core: Core, body: bytes) -> list[SaveOrder] | None:
    """Receives as the route for reports does. Returns the acknowledged orders; None: it was not acknowledged."""
    deps = core.reports
    now = deps.clock.now()
    report = decode_report(body).report
    if objection_to(deps, report) is not None:
        return None
    before = core.telemetry.latest(report.node) if report.facts else None
    try:
        core.telemetry.receive(report, now)
    except UnknownNode:
        return None
    if report.facts:
        try:
            store_facts(deps, report, before.report if before else None, now)
        except StoreError:
            return None
        if any(isinstance(fact, CheckpointDeleted) for fact in report.facts):
            deps.checkpoints_deleted()
        deps.wake_loop()
    return core.telemetry.saves.answer_to(report.ranks)
