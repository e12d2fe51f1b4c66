"""One simulation: the real control plane, the virtual cluster, people and faults, on one clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from random import Random
from typing import Any, cast

import msgspec
from sqlalchemy import insert

from tests.simulator.cluster import CLUSTER, GPUS, REBOOT_SECONDS, Cluster, Gang, Machine
from tests.simulator.happen import OBSERVED_XID, happen
from tests.simulator.invariants import Invariants, is_proposed
from tests.simulator.ledger import Effect
from tests.simulator.remembered import Tables, remembered
from tests.simulator.scenario import (
    BROKEN_FOR_GOOD,
    LAUNCHER_GANG,
    NODES,
    SWEEPER,
    Event,
    Kind,
    Scenario,
    end_of,
    gang_sizes,
    node_names,
)
from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.app import Core, Outside, assemble
from understudy_controlplane.config import Config, NoSpare, SignalKind
from understudy_controlplane.decide import request_preview
from understudy_controlplane.decide.drill import drill_event
from understudy_controlplane.decide.pages import SIGNALS, rule_of
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.need import NeedKind
from understudy_controlplane.fleet.node import NodeState, ValidationOrigin
from understudy_controlplane.fleet.operator import FLEET, Verb, cancel_subject, job_subject
from understudy_controlplane.fleet.recovery import (
    NODE_HOLD_PREFIX,
    SEATS_PREFIX,
    DrainPlan,
    Recovery,
    RecoveryStatus,
    StepName,
    StepStatus,
)
from understudy_controlplane.fleet.site_signal import ReportedSignal
from understudy_controlplane.fleet.slurm import JobRequest, SlurmJob, SlurmNode
from understudy_controlplane.loop import IDLE_TICK_SECONDS
from understudy_controlplane.recover import effect
from understudy_controlplane.recover.step import nothing_to_do
from understudy_controlplane.recover.steps import STEPS
from understudy_controlplane.slurm.protocol import READS, Slurm, SlurmError, SlurmUnavailable
from understudy_controlplane.store import recoveries, tables
from understudy_controlplane.store.database import DatabaseInMemory, Engine, StoreError
from understudy_controlplane.store.stores import Stores

BEGIN = 1_700_000_000.0
SOON_SECONDS = 0.3
SLOW_CALL_SECONDS = 2.0
SLOW_STATEMENT_SECONDS = 0.05
RESTART_SECONDS = 5.0
ORDERED_SECONDS_MAX = 1.0
"""Time of two rounds of the control plane while an order to save is on its way."""
LOW = "low"
"""The partition of jobs that Slurm may preempt."""
SAVES_NOTHING = 1
"""The gang that announces no checkpoints, where one does not."""
DOES_NOT_ASK = 2
"""The gang whose training never asks when to save."""
TIME_LIMIT_MINUTES = 600
MUNGE_SECONDS = 300.0
REST_SECONDS = 300.0
"""Seconds at the end, in which nothing begins that the scenario has not begun before."""

SPARE_CHECK_SECONDS_MAX = 60.0
"""How long the validations of spares that have begun take after the end."""
SIGNALS_MAX = 200
BLAMES_SECONDS, LEAVES_SECONDS = 4.0, 6.0
"""After which a launcher replaces a node, and its job ends."""
SLURM_SAVES_SECONDS = 5.0
PERSON_SECONDS = (20.0, 90.0)
"""How long a person takes from a ticket to the repaired node."""
NOTHING_HELD = tuple(f"{rule_of(one)}-" for one in NeedKind if one not in SIGNALS)
"""How the labels of pages begin that excuse no node and no gang."""

TICKETS_A_ROUND_MAX = 100


APPROVES_SECONDS = (3.0, 9.0, 25.0)
"""How long people take to approve a recovery, or to reject it."""

REJECTS_EACH = 7
"""They reject one of so many moves and drains, and answer for that."""

FEW_MOVES = {
    "gang_moves_min": 2,
    "gang_moves_share": 0,
    "gang_moves_per_hour_min": 4,
    "gang_moves_per_hour_share": 0,
}

SMALL_NODE_MB, GANG_MB = 256_000, 400_000


class EffectAtOnce(effect.Effect):
    """Runs at once, without a thread."""

    def _begin(self) -> None:
        self._run()


class Killed(BaseException):
    """The control plane's process ends here. It is started again after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


def configuration(scenario: Scenario) -> Config:
    settings, size = scenario.settings, max(1, scenario.nodes // NODES)
    few = {"quarantined_nodes_max": 3 * size, "waiting_share": 0, "waiting_nodes_min": 2 * size}
    return Config.model_validate(
        {
            "cluster": CLUSTER,
            "mode": "observe" if settings.observes else "approve" if settings.approves else "act",
            "guards": {
                "page_after_seconds": 120,
                "domains": scenario.domains,
                **({} if settings.default_guards else few),
                **(FEW_MOVES if settings.few_moves else {}),
                "observe_rules": [f"xid.{OBSERVED_XID}"],
            },
            "jobs": {"swaps_per_hour_max": 2} if settings.few_moves else {},
            "signals": {"effects": {"leak": "act"}},
            "spares": {"count": settings.spares, "no_spare": settings.no_spare.value},
            "hang": {"seconds_min": 30, "factor": 3, "first_step_seconds": 90},
            "recovery": {"step_timeout_seconds": 60, "first_step_timeout_seconds": 150, "time_credit_minutes_max": 30},
            "repair": {
                "enabled": settings.repairs,
                "reset_command": "reset",
                "cooldown_seconds": 5,
                "reboot_timeout_seconds": 120,
                "dead_node_wait_seconds": 60,
            },
            "hardware": {"leave_worn": settings.leaves_worn},
            "validation": {
                "enabled": settings.validates,
                "probation_hours": 0.02,
                "probation_weight": 100 if settings.weighs else 0,
                "spare_check_hours": 0.05 if settings.checks_spares else 0,
                "burn_in_hours": 0.01,
                "stages": {"network": {"enabled": True}},
                "network_wait_minutes": 1,
            },
        }
    )


class VirtualClock:
    """The clock of the control plane's machine. The agents are on other machines, and have the right time."""

    def __init__(self, slurm: VirtualSlurm) -> None:
        self._slurm = slurm
        self._ahead = 0.0
        self._slurm_ahead = 0.0

    def now(self) -> float:
        return self._slurm.now + self._ahead

    def monotonic(self) -> float:
        """The true time."""
        return self._slurm.now - self._slurm_ahead

    def by_slurm(self, moment: float) -> float:
        return moment + self._slurm_ahead

    def set_by(self, seconds: float) -> None:
        """Sets the clock, by many minutes only if slurmctld runs on the same machine: MUNGE refuses another one."""
        if abs(seconds) > MUNGE_SECONDS:
            self._slurm_ahead += seconds
            self._slurm.set_clock(seconds)
        else:
            self._ahead += seconds


class World:
    def __init__(self, scenario: Scenario, database: DatabaseInMemory) -> None:
        self.scenario = scenario
        self.config = configuration(scenario)
        names = node_names(scenario.nodes)
        self.slurm = VirtualSlurm(names, BEGIN, gpus=GPUS)
        self.slurm.adds_to_reasons = True
        self.slurm.leaf_switches = scenario.leaf_switches
        self.slurm.block_nodes = scenario.block_nodes
        if scenario.settings.no_spare is NoSpare.PREEMPT:
            self.slurm.tiers[LOW] = 0
            self.slurm.preempt_mode, self.slurm.exempt_seconds = "REQUEUE", scenario.settings.exempt_seconds
        for name in names[len(names) - scenario.settings.small_nodes :]:
            self.slurm.build_with(name, SMALL_NODE_MB)
        self.cluster = Cluster(names, Random(f"messages {scenario.seed}"))
        self.random = Random(f"world {scenario.seed}")
        self.clock = VirtualClock(self.slurm)
        self._tables = Tables()
        self._tables.before_call = self._database_away
        self.engine = database.engine
        database.before_statement, database.before_commit = self._tables.note, lambda: None
        database.clear()
        self._note_earlier_quarantines(names)
        database.before_statement, database.before_commit = self._executing, self._committing
        self.core: Core | None = None
        self.saved: object = None  # by slurmctld, before it crashes
        self.story: list[tuple[float, str]] = []
        self.ticks = 0
        self.refused: set[int] = set()
        """Jobs that a Prolog has kept off a node."""
        self.crashed_in: Counter[str] = Counter()
        """Steps that were under way when the control plane was killed."""
        self.line = SlurmLine(self)
        self._recovering = False
        self._due = BEGIN
        self._pause = SOON_SECONDS
        self._restart_at = math.inf
        self._commits_left = 0
        self._kill_at_commit = 0.0
        self.database_away_until = self.database_slow_until = 0.0
        self._looks_from_outside = False
        self._breaker_is_known = False
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._switches: list[Verb] = []  # that people have asked for, and the control plane has not heard
        self._repairs: dict[str, float] = {}  # node → when a person has repaired it
        self._rebooting: dict[str, float] = {}
        self._ticket_seen = 0
        self.spares_removed: set[str] = set()
        """Nodes about which an operator has asked that they leave the spare pool."""
        self.invariants = Invariants(self)

    def _note_earlier_quarantines(self, names: Sequence[str]) -> None:
        """Notes quarantines as the journal has them of an earlier process, one an hour. The nodes are long back."""
        rule, taken = f"xid.{BROKEN_FOR_GOOD}", names[: self.scenario.settings.taken_today]
        rows = [
            {
                "at": BEGIN - HOUR_SECONDS * (len(taken) + 1 - number),
                "key": rule,
                "table_row": 0,
                "rule": rule,
                "subject": name,
                "action": Action.QUARANTINE.value,
                "because": "",
                "reason": "",
                "evidence": {},
            }
            for number, name in enumerate(taken)
        ]
        if rows:
            with self.engine.begin() as connection:
                connection.execute(insert(tables.decision), rows)

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def narrate(self, words: str) -> None:
        self.story.append((self.now - BEGIN, words))

    # -- the course of time --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises Violation."""
        self.start()
        self.pass_until(BEGIN + 6)  # the pool is filled before any job comes
        for number, size in enumerate(gang_sizes(self.scenario.nodes)):
            self.submit_gang(number, size)
        sizes = gang_sizes(self.scenario.nodes)
        for number in range(len(sizes), len(sizes) + self.scenario.settings.sweeps):
            self.submit_gang(number, 1, SWEEPER)
        for _ in range(self.scenario.settings.low_jobs):
            self.submit_low(1)
        for event in self.scenario.events:
            if event.kind is Kind.SLURM_CRASHES:
                self.pass_until(BEGIN + event.at - SLURM_SAVES_SECONDS)
                self.saved = self.slurm.saved_state()
            self.pass_until(BEGIN + event.at)
            self.narrate(f"-- {event}")
            happen(self, event)
            self.slurm.changes += 1
            self._wake()
        end = BEGIN + end_of(self.scenario)
        self.pass_until(end - REST_SECONDS)
        self.line.kill, self._commits_left = None, 0  # a kill that waits still would come too late to rest from
        self.pass_until(end)
        while self._validates_a_spare() and self.now < end + SPARE_CHECK_SECONDS_MAX:
            self.pass_until(self.now + 1.0)
        self.invariants.at_the_end()

    def _validates_a_spare(self) -> bool:
        """Spares are validated in turn, without end."""
        if self.core is None or not self.scenario.settings.checks_spares:
            return False
        records = self.core.stores.fleet.nodes().values()
        checked = any(record.validation_origin is ValidationOrigin.SPARE_CHECK for record in records)
        return checked or bool(self.core.stores.recoveries.running())

    def submit_gang(self, number: int, size: int, user: str = "") -> Gang:
        launcher = number == LAUNCHER_GANG
        user = user or f"user{number}"
        requeue, seconds = number != self.scenario.settings.stays_ended, self.random.uniform(0.1, 3)
        job_id = self.slurm.submit(user, size, f"gang{number}", "understudy", requeue, kill_seconds=seconds)
        self.slurm.set_time_limit(job_id, TIME_LIMIT_MINUTES)
        asks = self.scenario.settings.asks and number != DOES_NOT_ASK
        gang = Gang(number, job_id, user, size - launcher, launcher, asks=asks)
        gang.saves = not (self.scenario.settings.saves_nothing and number == SAVES_NOTHING)
        if self.scenario.settings.small_nodes:
            self.slurm.ask_for_memory(job_id, GANG_MB)
        self.cluster.gangs.append(gang)
        return gang

    def submit_low(self, nodes: int) -> None:
        if LOW in self.slurm.tiers:
            job_id = self.slurm.submit("student", nodes, requeue=self.random.random() < 0.7)
            self.slurm.put_into(job_id, LOW)

    def pass_until(self, end: float) -> None:
        while self.now < end:
            moment = min(end, self._due if self.core else self._restart_at, self.cluster.next_change(), self._chores())
            changes = self.slurm.changes
            self.slurm.step(self.clock.by_slurm(max(moment, self.now + 1e-3)))
            if self.slurm.changes != changes:
                self._due = min(self._due, self.now + SOON_SECONDS)
                self._pause = SOON_SECONDS
            self._do_chores()
            self._live()
            if self.core is None and self.now >= self._restart_at:
                self.start()
            if self.core is not None and self.now >= self._due:
                self._tick()

    def _live(self) -> None:
        """Ranks that ask for their restore point may ask for the last thing that the control plane does."""
        try:
            self.cluster.live(self.jobs(), self.core, self.now)
        except Killed as killed:
            self.die(killed.seconds)
        for gang in self.cluster.gangs:
            if gang.waits_until <= self.now:
                self._give_up(gang)

    def _give_up(self, gang: Gang) -> None:
        """Its launcher ends."""
        gang.over, gang.ended_at, gang.waits_until = "failed", self.now, math.inf
        self.slurm.end(gang.job_id, "FAILED")

    def jobs(self) -> dict[int, SlurmJob]:
        return {job.job_id: job for job in self.line.jobs_now()}

    def hear_agents(self) -> None:
        """Also while the control plane waits for Slurm. Its first round comes before any report."""
        if self.core is not None and self.core.loop.pulse.ticks_total:
            self.cluster.deliver(self.core, self.now)

    def let_agents_report(self) -> None:
        """Before a round of the control plane."""
        try:
            self.hear_agents()
        except Killed as killed:
            self.die(killed.seconds)

    def _wake(self) -> None:
        self._due, self._pause = self.now, SOON_SECONDS

    def _tick(self) -> None:
        core = self.core
        assert core is not None
        self.ticks += 1
        before = self.invariants.activity()
        if self.scenario.settings.approves or self.scenario.settings.learns_mode:
            self._approve(core)
        self.invariants.begins_round()
        try:
            self.hear_agents()
            self._recovering = core.loop.tick(self._recovering)
        except Killed as killed:
            self.die(killed.seconds)
            return
        except StoreError:  # as `Loop.run` does it
            if self.database_answers:
                raise
            self._recovering = False
            self._due = self.now + IDLE_TICK_SECONDS
            return
        with self.from_outside():
            self._see_tickets(core)
        self._live()
        if self.core is None:
            return
        with self.from_outside():
            self.invariants.after_tick()
        self._reset_breaker(core)
        busy = self.invariants.activity() != before
        self._pause = SOON_SECONDS if busy else min(3 * self._pause, self.scenario.quiet_seconds)
        if any(is_proposed(gang) for gang in core.telemetry.saves.gangs().values()):
            self._pause = min(self._pause, ORDERED_SECONDS_MAX)
        self._due = self.now + self._pause

    # -- the control plane's process -----------------------------------------------------------------------------

    def start(self) -> None:
        try:
            outside = Outside(
                cast(Slurm, self.line),
                lambda node: self.cluster.machines[node.name].answers(self.now),
                self.clock,
                make_stores=self._stores,
                sleep=self.slurm.advance,
                begin_effect=EffectAtOnce,
            )
            self._restart_at = math.inf
            self.core = assemble(self.config, outside, self.engine)
        except Killed as killed:
            self.die(killed.seconds)
            return
        except StoreError:
            if self.database_answers:
                raise
            self.die(RESTART_SECONDS)
            return
        self.narrate("control plane starts")
        self._recovering = False
        self.invariants.started()
        self._wake()

    def _stores(self, engine: Engine) -> Stores:
        stores = Stores.of(engine)
        own = {
            field.name: remembered(getattr(stores, field.name), self._tables)
            for field in fields(stores)
            if field.name != "engine"
        }
        return Stores(engine=engine, **own)

    def die(self, seconds: float) -> None:
        self.narrate("control plane is killed")
        if self.core is not None:
            with self.from_outside():
                for recovery in self.core.stores.recoveries.running():
                    self.crashed_in.update(name.value for name in _under_way(recovery))
        self.core, self._restart_at = None, self.now + seconds

    # -- its database --------------------------------------------------------------------------------------------

    @property
    def database_answers(self) -> bool:
        return self.now >= self.database_away_until

    @contextmanager
    def from_outside(self) -> Iterator[None]:
        """The simulation itself looks into the database: that takes no time, and always works."""
        self._looks_from_outside, before = True, self._looks_from_outside
        try:
            yield
        finally:
            self._looks_from_outside = before

    def _database_away(self) -> None:
        if not self.database_answers and not self._looks_from_outside:
            self.invariants.errors_excused = True
            raise StoreError("the database does not answer")

    def _executing(self, statement: str) -> None:
        self._tables.note(statement)
        self._database_away()
        if self.now < self.database_slow_until and not self._looks_from_outside:
            self.slurm.advance(SLOW_STATEMENT_SECONDS)

    def _committing(self) -> None:
        self._database_away()
        if self._commits_left:
            self._commits_left -= 1
            if not self._commits_left:
                raise Killed(self._kill_at_commit)

    # -- people and tickets --------------------------------------------------------------------------------------

    def _see_tickets(self, core: Core) -> None:
        """A person repairs the node of each new one."""
        new = [one for one in core.stores.tickets.tickets(TICKETS_A_ROUND_MAX) if one["id"] > self._ticket_seen]
        for ticket in reversed(new):
            self._ticket_seen = ticket["id"]
            self.narrate(f"ticket for {ticket['node']}")
            if "about" in ticket["body"]:
                held = not ticket["label"].startswith(NOTHING_HELD)
                self.invariants.notified_of.update(ticket["body"]["about"] if held else ())
            else:
                self._repairs.setdefault(ticket["node"], self.now + self.random.uniform(*PERSON_SECONDS))

    def _reset_breaker(self, core: Core) -> None:
        """A person finds out why it has opened, and closes it."""
        is_open = core.loop.pulse.snapshot is not None and bool(core.loop.pulse.snapshot.operator.breaker)
        if is_open and not self._breaker_is_known:
            self.later(self.now + self.random.uniform(*PERSON_SECONDS), lambda: self.switch(Verb.RESET_BREAKER))
        self._breaker_is_known = is_open

    def _chores(self) -> float:
        repairs = self._repairs.values() if self.core else ()  # they wait for the control plane
        moments = (*repairs, *self._rebooting.values(), *(at for at, _ in self._later))
        return min(moments, default=math.inf)

    def _do_chores(self) -> None:
        """Machines boot, people finish repairs."""
        for machine in self.cluster.machines.values():
            if machine.boots_at <= self.now:
                self._boot(machine)
        due = [one for at, one in self._later if at <= self.now]
        self._later = [(at, one) for at, one in self._later if at > self.now]
        for one in due:
            one()
            self.slurm.changes += 1
            self._wake()
        for victim, job_id in self.slurm.preempted:
            self.narrate(f"Slurm preempts job {victim} for job {job_id}")
            self.invariants.preempted(victim, job_id)
        self.slurm.preempted.clear()
        for name, job_id, restart_count in self.slurm.refused:
            self.cluster.machines[name].refuse(job_id, restart_count, self.now)
            self.refused.add(job_id)
            self.invariants.drained_for_prolog(name)
        self.slurm.refused.clear()
        issued = self.slurm.rebooting()
        for name in sorted(issued - self._rebooting.keys()):
            self.cluster.machines[name].die(self.now)
            self._rebooting[name] = self.now + REBOOT_SECONDS
        for name in [name for name, at in self._rebooting.items() if at <= self.now or name not in issued]:
            del self._rebooting[name]
            self.cluster.machines[name].repair()
            self._boot(self.cluster.machines[name])
            if name in issued:
                self.slurm.finish_reboot(name)
                self.slurm.changes += 1
        for name in [name for name, at in self._repairs.items() if at <= self.now and self.core]:
            del self._repairs[name]
            self._repaired(self.cluster.machines[name])

    def _boot(self, machine: Machine) -> None:
        if not machine.alive:
            self.narrate(f"{machine.name} boots")
            machine.boot(self.now)
            if machine.name in self.slurm.powered_down():
                self.slurm.power_up(machine.name)
            elif machine.name in self.slurm.rebooting():
                self.slurm.start_node(machine.name)
            else:
                self.slurm.boot_node(machine.name)
            self.slurm.changes += 1
            self._wake()

    def repair_at(self, node: str, moment: float) -> None:
        """A person does it then, asked or not."""
        self._repairs[node] = moment

    def _repaired(self, machine: Machine) -> None:
        machine.repair()
        self._boot(machine)
        self.narrate(f"a person has repaired {machine.name}")
        self.ask(Verb.RELEASE, machine.name)

    def ask(self, verb: Verb, node: str) -> None:
        """Asks as `understudy node hold` and others do; the control plane has to run for that."""
        core = self.core
        with self.from_outside():
            if core is not None and request_preview.fits(core.stores.fleet.nodes()[node], verb):
                self.invariants.asked(verb, node)
                with suppress(Killed):
                    core.stores.requests.ask(verb, node, "a person asks for it", "alice", self.clock.now())
                self._wake()

    # -- what events need ----------------------------------------------------------------------------------------

    def later(self, at: float, happen: Callable[[], None]) -> None:
        self._later.append((at, happen))

    def kill_at_commit(self, commits: int, seconds: float) -> None:
        self._commits_left, self._kill_at_commit = commits, seconds

    def set_clock(self, seconds: float) -> None:
        self.narrate(f"the control plane's clock is set by {seconds:+.0f} s")
        self.clock.set_by(seconds)
        self.invariants.ledger.clock_set(seconds)
        self.slurm.changes += 1
        self._tables.epoch += 1
        self._wake()

    def switch(self, verb: Verb) -> None:
        self._switches.append(verb)
        if len(self._switches) == 1:
            self._make_switches()

    def _make_switches(self) -> None:
        """People try again while the control plane does not run, and in this order: a pause ends after it has begun."""
        if self.core is None:
            self.later(self.now + RESTART_SECONDS, self._make_switches)
            return
        while self._switches:
            verb = self._switches.pop(0)
            with self.from_outside(), suppress(Killed):
                self.core.stores.requests.ask(verb, FLEET, "a person asks for it", "alice", self.clock.now())
                self.invariants.switched(verb)

    def pause_job(self, job_id: int, seconds: float) -> None:
        job = self._known(job_id)
        if self.core is None or job is None:
            return
        now, words = self.clock.now(), "a person asks for it"
        with self.from_outside(), suppress(Killed):
            entry = AuditEntry.on_host("alice", now, Verb.PAUSE_JOB.value, job_subject(job_id), words)
            self.core.stores.requests.ask_audited(entry, now + seconds, {"submit_at": job.submit_at})
            self.invariants.paused_job(job_id, now + seconds)

    def _known(self, job_id: int) -> JobKey | None:
        """The job as the routes find it; None: the control plane does not know it yet, and refuses the request."""
        found = self.core.reports.directory.get(job_id) if self.core is not None else None
        return found.key if found is not None else None

    def ask_to_save(self, job_id: int) -> None:
        """Asks as `understudy job save` does. It is refused unless all ranks of the gang ask."""
        core = self.core
        known, gang = self._known(job_id), core.telemetry.saves.gangs().get(job_id) if core is not None else None
        if core is None or known is None or gang is None or not gang.is_whole:
            return
        with self.from_outside(), suppress(Killed):
            entry = AuditEntry.on_host("alice", self.clock.now(), Verb.SAVE_JOB.value, job_subject(job_id), "odd")
            core.stores.requests.ask_audited(entry)
            self._wake()

    def move_job(self, job_id: int, node: str, *, at_checkpoint: bool = False) -> None:
        job = self._known(job_id)
        if self.core is None or job is None:
            return
        with self.from_outside():
            self.invariants.moved_jobs.add(job_id)
            with suppress(Killed):
                entry = AuditEntry.on_host("alice", self.clock.now(), Verb.MOVE_JOB.value, job_subject(job_id), "odd")
                detail = {"off": [node], "at_checkpoint": at_checkpoint, "submit_at": job.submit_at}
                self.core.stores.requests.ask_audited(entry, None, detail)

    def choose_spare(self, verb: Verb, node: str) -> None:
        if self.core is None:
            return
        self.spares_removed.add(node)
        with self.from_outside(), suppress(Killed):
            entry = AuditEntry.on_host("alice", self.clock.now(), verb.value, node, "a person asks for it")
            self.core.stores.requests.ask_audited(entry)

    def report_signal(self, kind: SignalKind, target: str, seconds: float) -> bool:
        """Reports as another system of the site does, which does not repeat it. Returns true if it was taken."""
        if self.core is None:
            return False
        now = self.clock.now()
        with self.from_outside(), suppress(Killed):
            entry = AuditEntry.on_host("bms", now, "signal", target, "an alarm")
            signal = ReportedSignal("bms", f"{kind.value} {target} {now}", kind, (target,), "an alarm")
            self.core.stores.signals.take([signal], now + seconds, SIGNALS_MAX, entry)
            self._wake()
        return True

    def run_launchers(self, users: tuple[str, ...]) -> None:
        """Jobs of these users, one after the other: its launcher replaces the first of its two nodes."""
        if not users:
            return
        job_id = self.slurm.submit(users[0], 2, "guest", "understudy")
        self.later(self.now + BLAMES_SECONDS, lambda: self._blame(job_id, users))

    def _blame(self, job_id: int, users: tuple[str, ...]) -> None:
        job = self.jobs().get(job_id)
        if job is None or job.state != "RUNNING":
            self._leave(job_id)
            return
        self.cluster.blame(job, self.now)
        self.later(self.now + LEAVES_SECONDS, lambda: self._leave(job_id, users[1:]))

    def _leave(self, job_id: int, next_users: tuple[str, ...] = ()) -> None:
        job = self.jobs().get(job_id)
        if job is not None and not job.ended:
            self.slurm.cancel(job_id)
        self.run_launchers(next_users)

    def _approve(self, core: Core) -> None:
        now = self.clock.now()
        with self.from_outside(), suppress(Killed):
            for one in core.stores.recoveries.proposals(now):
                takes = APPROVES_SECONDS[one.id % len(APPROVES_SECONDS)]
                if one.status is not RecoveryStatus.AWAITS_APPROVAL or now - one.decided_at < takes:
                    continue
                subject, why = cancel_subject(one.id), "a person has looked"
                if isinstance(one.plan, DrainPlan) and one.id % REJECTS_EACH == 0:
                    self.invariants.cancelled(one)
                    entry = AuditEntry.on_host("alice", now, Verb.CANCEL.value, subject, why)
                    core.stores.requests.ask_audited(entry, effect=partial(recoveries.reject, one.id))
                    continue
                self.invariants.ledger.approved(one)
                entry = AuditEntry.on_host("alice", now, Verb.APPROVE.value, subject, why)
                core.stores.requests.ask_audited(entry, effect=partial(recoveries.approve, one.id))

    def drill(self, node: str, xid: int, seconds: float) -> bool:
        """Drills as the route does. Returns true if it was injected."""
        core, now = self.core, self.clock.now()
        snapshot = core.loop.pulse.snapshot if core is not None else None
        view = snapshot.nodes.get(node) if snapshot is not None else None
        if core is None or view is None or view.state is not NodeState.IN_SERVICE or not view.boot_id:
            return False
        with self.from_outside(), suppress(Killed):
            entry = AuditEntry.on_host("alice", now, Verb.DRILL.value, node, "an exercise")
            core.stores.requests.ask_audited(entry, now + seconds)
            core.stores.facts.record(node, [drill_event(view, xid, "alice", now)], now, lambda _: None)
            self._wake()
        return True

    def cancel_recovery(self) -> None:
        if self.core is None:
            return
        stores = self.core.stores
        with self.from_outside(), suppress(Killed):
            for recovery in stores.recoveries.newest(1):
                if recovery.status is RecoveryStatus.RUNNING:
                    self.invariants.cancelled(recovery)
                    subject, now = cancel_subject(recovery.id), self.clock.now()
                    stores.requests.ask(Verb.CANCEL, subject, "a person asks for it", "alice", now)


def _under_way(recovery: Recovery) -> Iterator[StepName]:
    """Steps that were begun, and the next one where it has nothing to do but wait."""
    yield from (step.name for step in recovery.steps if step.status is StepStatus.INTENDED)
    after = [step.name for step in recovery.steps if step.status is StepStatus.PLANNED][:1]
    yield from (name for name in after if STEPS[name].act is nothing_to_do)


class SlurmLine:
    """Line from the control plane to Slurm: calls fail, take long, lose their answers, and are the last that a process
    makes. Implements `Slurm`.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._slurm = world.slurm
        self.away_until = self.slow_until = self.deaf_until = self.refuses_until = 0.0
        self.kill: Event | None = None
        self._cache: dict[str, Any] = {}
        self._cached_at = (-1.0, -1)

    def jobs_now(self) -> list[SlurmJob]:
        return cast(list[SlurmJob], self._read("jobs", ()))

    def nodes_now(self) -> list[SlurmNode]:
        return cast(list[SlurmNode], self._read("nodes", ()))

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            return self._answer(name, arguments)

        return call

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        world = self._world
        if world.now < self.slow_until:
            self._slurm.advance(SLOW_CALL_SECONDS)
            world.hear_agents()
        if world.now < self.away_until:
            raise SlurmUnavailable("slurmctld does not answer")
        if name in READS:
            return self._read(name, arguments)
        return self._write(name, arguments)

    def _read(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """What Slurm shows changes with time and with writes."""
        moment = (self._slurm.now, self._slurm.changes)
        if moment != self._cached_at:
            self._cache, self._cached_at = {}, moment
        if arguments:
            return getattr(self._slurm, name)(*arguments)
        if name not in self._cache:
            self._cache[name] = getattr(self._slurm, name)()
        return self._cache[name]

    def _write(self, name: str, arguments: tuple[Any, ...]) -> None:
        world, kill = self._world, self._kill_now()
        effect = Effect(name, arguments)
        if kill is not None and kill.kind is Kind.KILLED_BEFORE_EFFECT:
            self.kill = None
            world.narrate(f"the last that it wanted to do: {effect}")
            raise Killed(kill.seconds)
        with world.from_outside():
            world.invariants.before_effect(effect)
        if name == "submit_job":
            self._prepare(arguments[0])
        try:
            self._change(name, arguments)
            world.narrate(f"Slurm: {effect}")
        except SlurmError as error:
            world.narrate(f"Slurm refuses {effect}: {error}")
            raise
        finally:
            self._slurm.changes += 1
        world.invariants.after_effect(effect)
        if kill is not None:
            self.kill = None
            raise Killed(kill.seconds)
        if world.now < self.deaf_until:
            raise SlurmUnavailable("the answer is lost")

    def _change(self, name: str, arguments: tuple[Any, ...]) -> None:
        if self._world.now < self.refuses_until:
            raise SlurmError("Access/permission denied")
        getattr(self._slurm, name)(*arguments)

    def _kill_now(self) -> Event | None:
        if self.kill is None or not self.kill.number:
            return self.kill
        self.kill = msgspec.structs.replace(self.kill, number=self.kill.number - 1)
        return None

    def _prepare(self, request: JobRequest) -> None:
        """How the control plane's job on the node will end."""
        machine = self._world.cluster.machines[request.node]
        if request.name.startswith("understudy-reset") and self._world.now >= machine.repaired_at:
            machine.broken = machine.computes_wrong = False
        fails = machine.broken or machine.fails_validation or machine.computes_wrong
        machine.fails_validation = False
        if fails:
            machine.accused_at = self._world.now
        self._slurm.job_ends_as[request.node] = "FAILED" if fails else "COMPLETED"


OWN_RESERVATIONS = (SEATS_PREFIX, NODE_HOLD_PREFIX, "understudy_spares")
