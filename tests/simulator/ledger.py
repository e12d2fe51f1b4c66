"""What the control plane has done in Slurm, counted by the simulator, and what must hold of it.

Nothing here asks the product whether a deed was right: a node is what it is in the virtual world, people are those who
asked there, and budgets are counted from the effects themselves.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulator.scenario import BROKEN_FOR_GOOD
from understudy_controlplane.fleet.counted import times
from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.fleet.recovery import (
    NODE_HOLD_PREFIX,
    SEATS_PREFIX,
    ManualRepairPlan,
    Plan,
    PoolSwapPlan,
    Recovery,
    StepStatus,
    job_of,
)
from understudy_controlplane.fleet.slurm import Service

if TYPE_CHECKING:
    from tests.simulator.cluster import Gang, Machine
    from tests.simulator.world import World
    from understudy_controlplane.fleet.slurm import SlurmJob

LATE_SECONDS = 30.0
"""How long after a fault is over the control plane may still act on it: while Slurm is slow, say."""

PACE_SECONDS = 45.0
"""Until most of a window of 20 steps shows that a node is slow no more. Windows end at each tenth step of 2 s."""

DEAD_SECONDS = 5.0
"""After this time a node that died is found by a question to its slurmd, which comes before each requeue."""

HEARD_SECONDS = 90.0
"""Until the control plane has heard what an agent knew: agents are silent for a minute, and messages late."""

NOTIFIES_SECONDS = 100.0
"""Until a person knows of a job that was lost. Slurm forgets the job after five minutes."""

TEST_PREFIX = "understudy-validate-"
"""Prefix of the jobs that test nodes; the node's name follows."""

STARTS_SECONDS = 15.0
"""Least time that a gang that was ended is on its way, unless it runs before."""

A_DAY_MAX = 12
"""Nodes that one rule may take out within a day, in a fleet of this size."""

BREAKER_NODES_MIN = 3
"""However small the fleet: the breaker may wait for one more."""


class Violation(BaseException):
    """No `except Exception` of the control plane must hide it."""

    def __init__(self, invariant: str, words: str) -> None:
        super().__init__(f"{invariant}: {words}")
        self.invariant = invariant
        self.words = words


@dataclass(frozen=True)
class Effect:
    call: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        shown = (one.name if hasattr(one, "name") else one for one in self.arguments)
        return f"{self.call} {' '.join(str(one) for one in shown)}"


@dataclass(frozen=True)
class Shown:
    """What a recovery is to do, as a person sees it."""

    kind: str
    job: int  # 0: none
    nodes: frozenset[str]  # that it touches

    @staticmethod
    def of(plan: Plan) -> Shown:
        job = job_of(plan)
        return Shown(plan.kind.value, job.job_id if job is not None else 0, frozenset(plan.claimed))


class Ledger:
    def __init__(self, world: World) -> None:
        self._world = world
        self.taken: set[str] = set()
        """Nodes that the control plane has drained, until Slurm gives them to jobs again."""
        self.breaker_reset_at = -math.inf
        self._taken_at: list[tuple[float, str]] = []
        self._taken_for: dict[int, dict[str, float]] = defaultdict(dict)
        """Xid → nodes that it took out, and when."""
        self._returned_at: dict[str, float] = {}
        self._ended_at: dict[int, list[float]] = defaultdict(list)
        self._hung_at_step: dict[int, list[int]] = defaultdict(list)
        self._furthest: dict[int, int] = {}
        self.own_ends: dict[int, int] = {}
        """Job → its last attempt that the control plane has ended."""
        self._failed_tests: dict[str, bool] = {}
        """Node → whether its last test has failed."""
        self._lost_since: dict[int, float] = {}
        self._approvals: list[Shown] = []
        self._granted: set[int] = set()
        self._clock_sets: list[tuple[float, float]] = []  # since the control plane was started: when, and by how much

    def clock_set(self, seconds: float) -> None:
        self._clock_sets.append((self._world.now, seconds))

    def control_plane_started(self) -> None:
        """It no longer knows that its clock was set forward: what was done before that looks older by as much."""

        def as_it_looks(at: float) -> float:
            return at - max(0.0, sum(seconds for set_at, seconds in self._clock_sets if set_at > at))

        self._taken_at = [(as_it_looks(at), name) for at, name in self._taken_at]
        for job_id, ends in self._ended_at.items():
            self._ended_at[job_id] = [as_it_looks(at) for at in ends]
        self._clock_sets.clear()

    def approved(self, recovery: Recovery) -> None:
        """Notes that a person approved it, who saw this plan."""
        self._approvals.append(Shown.of(recovery.plan))

    # -- before an effect ------------------------------------------------------------------------------------------

    def before(self, effect: Effect, recoveries: Sequence[Recovery]) -> None:
        if self._world.scenario.settings.approves:
            self._is_approved(effect, recoveries)
        match effect.call:
            case "drain_node":
                self._takes(effect.arguments[0])
            case "create_reservation" | "set_reservation_nodes" if effect.arguments[0].startswith(SEATS_PREFIX):
                self._holds_free_nodes(effect)
            case "requeue_job" | "requeue_failed_job":
                self._requeues(effect)
            case "reboot_node":
                self._repairs(effect, effect.arguments[0])
            case "create_reservation" if effect.arguments[0].startswith(NODE_HOLD_PREFIX):
                self._repairs(effect, effect.arguments[0].removeprefix(NODE_HOLD_PREFIX))
            case "delete_reservation" if effect.arguments[0].startswith(SEATS_PREFIX):
                self._gives_up_seats(effect, int(effect.arguments[0].removeprefix(SEATS_PREFIX)), recoveries)
            case "set_job_reservation" if not effect.arguments[1]:
                self._gives_up_seats(effect, effect.arguments[0], recoveries)
        hang = any(isinstance(one.plan, PoolSwapPlan) and one.plan.hang for one in recoveries)
        for gang in self._ended_by(effect):
            self._ends(effect, gang, hang=hang)

    def _is_approved(self, effect: Effect, recoveries: Iterable[Recovery]) -> None:
        """An approval is for one recovery, and for what was shown. What goes on from an approved one needs no other."""
        for one in recoveries:
            shown = Shown.of(one.plan)
            stays_out = isinstance(one.plan, ManualRepairPlan) and self.taken.issuperset(one.plan.nodes)
            if stays_out or one.plan.supersedes in self._granted or self._is_asked_for(one) or shown in self._approvals:
                if one.id not in self._granted and shown in self._approvals:
                    self._approvals.remove(shown)
                self._granted.add(one.id)
        if not any(one.id in self._granted for one in recoveries):
            raise Violation("nothing-without-approval", f"{effect}, and no person has approved it")

    def _is_asked_for(self, recovery: Recovery) -> bool:
        job, persons = job_of(recovery.plan), self._world.invariants
        if job is not None and job.job_id in persons.moved_jobs:
            return True
        return recovery.plan.requested and bool(persons.touched.intersection(recovery.plan.nodes))

    def _takes(self, name: str) -> None:
        """So many nodes within the window of the circuit breaker that it has to open. A domain that failed is one."""
        persons, guards = self._world.invariants, self._world.config.guards
        if name in self.taken or name in persons.touched or name in persons.excused:
            return
        since = max(self._world.now - guards.breaker_window_seconds, self.breaker_reset_at)
        lately = {one for at, one in self._taken_at if at > since} | {name}
        limit = max(guards.breaker_nodes_min, int(guards.breaker_share * self._world.scenario.nodes))
        share = max(BREAKER_NODES_MIN, int(guards.breaker_share_max * self._world.scenario.nodes))
        limit = min(limit, share, guards.breaker_nodes_max or limit)
        if persons.count_failures(lately) > limit:
            words = f"{name} is drained, and {', '.join(sorted(lately - {name}))} were just before: {limit} may be"
            raise Violation("the-breaker-opens", words)
        self._taken_at.append((self._world.now, name))
        self._takes_for_xid(name)

    def _takes_for_xid(self, name: str) -> None:
        """What was before a person reset the breaker counts no more, nor a node that two rules accuse."""
        machine, today = self._world.cluster.machines[name], self._world.scenario.settings.taken_today
        if len(machine.xids) != 1 or not machine.answers(self._world.now) or machine.port_is_down(self._world.now):
            return
        (xid,) = machine.xids
        self._taken_for[xid][name] = self._world.now
        taken = sum(at > self.breaker_reset_at for at in self._taken_for[xid].values())
        earlier = today if xid == BROKEN_FOR_GOOD and self.breaker_reset_at == -math.inf else 0
        if taken + earlier > A_DAY_MAX:
            words = f"{name} is drained for Xid {xid}, for which {A_DAY_MAX} nodes were within a day"
            raise Violation("never-over-a-budget", words)

    def _holds_free_nodes(self, effect: Effect) -> None:
        """A node is promised to one gang, and one on which the gang's job can run."""
        name, nodes = effect.arguments[0], set(effect.arguments[1])
        job = self._world.jobs().get(int(name.removeprefix(SEATS_PREFIX)))
        for other in self._world.slurm.reservations():
            both = nodes.intersection(other.nodes) if other.name.startswith(SEATS_PREFIX) else set()
            if both and other.name != name:
                raise Violation("a-seat-is-for-one-gang", f"{effect}, and {other.name} has {', '.join(sorted(both))}")
        for node in self._world.line.nodes_now():
            if job is None or node.name not in nodes.difference(job.nodes):
                continue
            machine = self._world.cluster.machines[node.name]
            heard = not machine.facts and not machine.late and node.name not in self._world.invariants.touched
            broken = machine.broken and heard  # and no person answers for it
            if broken or node.memory_mb < job.memory_mb or node.name in self._maintained(job):
                words = f"{node.name} is broken, has too little memory, or a maintenance before the job's end"
                raise Violation("a-spare-can-run-the-job", f"{effect}, and {words}")

    def _maintained(self, job: SlurmJob) -> set[str]:
        until = self._world.slurm.now + 60 * (job.time_limit_minutes or math.inf)
        planned = (one for one in self._world.slurm.reservations() if one.is_maintenance and one.start_at < until)
        return {name for one in planned for name in one.nodes}

    def _gives_up_seats(self, effect: Effect, job_id: int, recoveries: Sequence[Recovery]) -> None:
        """While its recovery goes on, a gang's seats are reserved until it runs: else others take them."""
        job = self._world.jobs().get(job_id)
        moves = any(isinstance(one.plan, PoolSwapPlan) and _goes_on(one) for one in recoveries)
        if moves and job is not None and (job.pending or job.completing) and not job.held:
            raise Violation("seats-last-until-the-start", f"{effect}, and job {job_id} has not started")

    def _requeues(self, effect: Effect) -> None:
        """Slurm spoils a job that is requeued while one of its nodes is dead, and not DOWN."""
        job = self._world.jobs()[effect.arguments[0]]
        down = {node.name for node in self._world.line.nodes_now() if node.down}
        for name in job.nodes:
            machine = self._world.cluster.machines[name]
            dead = not machine.alive and self._world.now - machine.died_at > DEAD_SECONDS
            if dead and name not in down and name not in self._world.invariants.drained_by_person:
                raise Violation("a-dead-node-is-down-first", f"{effect}, and {name} is dead, and not DOWN in Slurm")

    def _repairs(self, effect: Effect, name: str) -> None:
        """A reset ends a job that is there, and Slurm reboots no node before its jobs have ended: the attempt counts as
        failed meanwhile. A drain that slurmctld has lost keeps no job away.
        """
        drained = any(node.name == name and node.draining for node in self._world.line.nodes_now())
        for job in self._world.jobs().values():
            works = job.state in ("RUNNING", "SUSPENDED") and not job.name.startswith(TEST_PREFIX)
            if drained and works and name in job.nodes:
                raise Violation("a-repair-waits-for-jobs", f"{effect}, and job {job.job_id} is there")

    def _ended_by(self, effect: Effect) -> list[Gang]:
        """Gangs whose attempt it ends."""
        if effect.call not in ("requeue_job", "requeue_failed_job", "down_nodes"):
            return []
        first, jobs = effect.arguments[0], self._world.jobs()
        running = [
            one for one in self._world.cluster.gangs if one.job_id in jobs and jobs[one.job_id].state == "RUNNING"
        ]
        if effect.call == "down_nodes":
            return [gang for gang in running if not set(first).isdisjoint(jobs[gang.job_id].nodes)]
        return [gang for gang in running if gang.job_id == first]

    def _ends(self, effect: Effect, gang: Gang, *, hang: bool) -> None:
        persons, now = self._world.invariants, self._world.now
        nodes = self._world.jobs()[gang.job_id].nodes
        asked = gang.job_id in persons.moved_jobs or not persons.touched.isdisjoint(nodes)
        works = gang.computes and now - gang.stuck_at > LATE_SECONDS
        if works and not hang and not asked and not any(self._is_at_fault(gang, name) for name in nodes):
            raise Violation(
                "a-gang-at-work-stays", f"{effect}, and job {gang.job_id} is at work on nodes that are well"
            )
        self.own_ends[gang.job_id] = self._world.jobs()[gang.job_id].restart_count
        if not asked:
            self._counts(gang, hang=hang)

    def _is_at_fault(self, gang: Gang, name: str) -> bool:
        """A gang that announces no checkpoints loses more by a move than by a slow node."""
        machine = self._world.cluster.machines[name]
        inferred = machine.accused_at == machine.inferred_at
        if self._is_bad(machine) or (machine.accused_at > self._accusable_since(machine) and not inferred):
            return True
        looks_slow = machine.slow_until > 0 and self._world.now < machine.slow_until + PACE_SECONDS
        return gang.saves and ((self.is_accused(machine) and not inferred) or looks_slow)

    def _is_bad(self, machine: Machine) -> bool:
        now = self._world.now
        measured = not machine.answers(now) or machine.port_is_down(now)
        return measured or machine.broken or machine.computes_wrong or now - machine.cut_until < LATE_SECONDS

    def is_accused(self, machine: Machine) -> bool:
        """True if it is accused of something that has happened since the control plane itself has last returned the
        node to service.
        """
        return max(machine.accused_at, machine.slowed_at) > self._accusable_since(machine)

    def _accusable_since(self, machine: Machine) -> float:
        return self._returned_at.get(machine.name, -math.inf) - HEARD_SECONDS

    def _counts(self, gang: Gang, *, hang: bool) -> None:
        jobs, now = self._world.config.jobs, self._world.now
        lately = [at for found in self._ended_at.values() for at in found if now - at < HOUR_SECONDS]
        most = self._world.config.guards
        limit = max(most.gang_moves_per_hour_min, int(most.gang_moves_per_hour_share * self._world.scenario.nodes))
        if len(lately) >= limit:
            words = f"{len(lately) + 1} gangs were moved or restarted within an hour, and {limit} may be"
            raise Violation("never-over-a-budget", words)
        left = {
            gang.job_id,
            *self._world.invariants.left_to_person,
        }  # a gang is moved once, however often its nodes fail
        gangs = [one for one in self._world.cluster.gangs if one.job_id not in left and not self._ran_again(one)]
        last = [(max(self._ended_at[one.job_id], default=-math.inf), one.since) for one in gangs]
        starting = sum(now - at < STARTS_SECONDS and not at < since < math.inf for at, since in last)
        limit = max(most.gang_moves_min, int(most.gang_moves_share * self._world.scenario.nodes))
        if starting >= limit:
            raise Violation(
                "never-over-a-budget", f"{starting + 1} gangs are moved or restarted at once: {limit} may be"
            )
        ended = self._ended_at[gang.job_id]
        ended[:] = [*(at for at in ended if now - at < HOUR_SECONDS), now]
        if len(ended) > jobs.swaps_per_hour_max:
            raise Violation("never-over-a-budget", f"job {gang.job_id} was moved {times(len(ended))} within an hour")
        if hang:
            furthest, stood = self._furthest.get(gang.job_id, -1), self._hung_at_step[gang.job_id]
            stood.append(furthest)
            if stood.count(furthest) > jobs.restarts_without_progress_max:
                words = f"job {gang.job_id} was restarted {times(stood.count(furthest))} at step {furthest}"
                raise Violation("restarts-end", f"{words}, and made no progress")

    def _ran_again(self, gang: Gang) -> bool:
        """It has finished a step after the control plane ended an attempt of it: what becomes of it then is its own."""
        ended, worked = self.own_ends.get(gang.job_id, math.inf), self._world.cluster.worked.get(gang.job_id, ())
        return any(attempt.restart_count > ended for attempt in worked)

    # -- after it, and after a round -------------------------------------------------------------------------------

    def after(self, effect: Effect) -> None:
        """A node that is reserved for its repair or validation is not back in service as it is resumed."""
        first = effect.arguments[0]
        if effect.call == "resume_node" and first not in self._held():
            self._returns(effect, first)
        if effect.call == "delete_reservation" and first.startswith(NODE_HOLD_PREFIX):
            self._returns(effect, first.removeprefix(NODE_HOLD_PREFIX))
        if effect.call == "drain_node":
            self.taken.add(effect.arguments[0])

    def _returns(self, effect: Effect, name: str) -> None:
        """A node of which the last test failed returns to service by a person alone."""
        usable = any(node.name == name and node.service is Service.USABLE for node in self._world.slurm.nodes())
        if not usable:
            return
        self._returned_at[name] = self._world.now
        self.taken.discard(name)
        if self._failed_tests.get(name) and name not in self._world.invariants.touched:
            raise Violation("a-failed-test-keeps-a-node", f"{effect}, and the last test of {name} has failed")

    def _held(self) -> set[str]:
        """Nodes that are reserved for their repair or validation."""
        names = (one.name for one in self._world.slurm.reservations())
        return {name.removeprefix(NODE_HOLD_PREFIX) for name in names if name.startswith(NODE_HOLD_PREFIX)}

    def after_tick(self) -> None:
        usable = {node.name for node in self._world.line.nodes_now() if not node.draining and not node.down}
        self.taken -= usable - self._held()
        self._no_job_is_lost()
        for job in self._world.jobs().values():  # the newest one last
            if job.ended and job.name.startswith(TEST_PREFIX):
                self._failed_tests[job.name.removeprefix(TEST_PREFIX).partition("-")[0]] = job.state == "FAILED"
        for gang in self._world.cluster.gangs:
            if gang.since < math.inf:
                step = gang.step(self._world.now)
                self._furthest[gang.job_id] = max(step, self._furthest.get(gang.job_id, -1))

    def _no_job_is_lost(self) -> None:
        """No job is lost whose attempt the control plane has ended. Slurm itself loses a gang of which all nodes fail
        at once, and a person one that is requeued beside a dead node.
        """
        jobs, now = self._world.jobs(), self._world.now
        for gang in self._world.cluster.gangs:
            job, ended = jobs.get(gang.job_id), self.own_ends.get(gang.job_id)
            if job is None or not job.ended or gang.over or ended is None:
                continue
            if self._ran_again(gang) or f"job {gang.job_id}" in self._world.invariants.notified_of:
                continue
            if now - self._lost_since.setdefault(gang.job_id, now) > NOTIFIES_SECONDS:
                words = f"job {gang.job_id} is {job.state} since its attempt {ended} was ended for it"
                raise Violation("no-job-is-lost", f"{words}, and no person was notified")


def _goes_on(recovery: Recovery) -> bool:
    failed = any(step.status is StepStatus.FAILED for step in recovery.steps)
    return recovery.ends_as is None and not failed
