"""Two whole control planes on one real PostgreSQL, a virtual Slurm, and a virtual clock.

One is frozen at a statement, at a commit, or before or after a change in Slurm, while the other one goes on; then it
goes on itself. Each may be cut from the database, from Slurm and from agents. `python -m tests.simulator.two --help`.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Any, cast

import click
import structlog
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from tests import builders as b
from tests.recover.rehearsal import VirtualClock
from tests.simulator.slurm import VirtualSlurm
from tests.simulator.world import EffectAtOnce
from tests.testbed.postgres import Postgres
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.config import Config
from understudy_controlplane.decide.leadership import CALL_SECONDS, UNHEARD_SECONDS
from understudy_controlplane.fleet.recovery import RecoveryKind, RecoveryStatus
from understudy_controlplane.lease import Leadership
from understudy_controlplane.slurm.fenced import fenced
from understudy_controlplane.slurm.protocol import READS, Slurm, SlurmUnavailable
from understudy_controlplane.store.database import Engine, StoreError
from understudy_controlplane.store.database_lock import DatabaseTaken
from understudy_controlplane.store.holder import HolderSession
from understudy_wire.facts import KernelEvent

NODES = tuple(f"n{number}" for number in range(1, 9))
NAMES = ("a:7117", "b:7117")
AT_FAULT = "n3"
AGENT_SECONDS, AGENT_PATIENCE_SECONDS = 0.5, 1.0
RECOVERING_SECONDS, IDLE_SECONDS = 0.2, 0.5
RESTART_SECONDS = 2.0
SETTLES_SECONDS = 400.0
SETTLED_SECONDS = 8.0
"""Shorter than in the product, so that the lead may also go back to the first one."""

LONG_FREEZE_SECONDS = 9.0
"""The other one takes the lead and changes Slurm within this time."""

ONCE = frozenset({"drain_node", "down_nodes", "requeue_job", "reboot_node", "submit_job", "cancel_job", "resume_node"})
"""Calls that change more each time they are made."""


class Point(StrEnum):
    STATEMENT = "statement"
    COMMIT = "commit"
    BEFORE_CALL = "before call"
    AFTER_CALL = "after call"


class Part(StrEnum):
    DATABASE = "database"
    SLURM = "slurm"
    AGENTS = "agents"


class FaultKind(StrEnum):
    XID = "xid"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Freeze:
    """Whichever control plane reaches this point, counted from the freeze before, stands still for some seconds."""

    point: Point
    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Cut:
    """A control plane is cut from something so many seconds after the fault."""

    side: int
    part: Part
    after: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    fault: FaultKind = FaultKind.XID
    freezes: tuple[Freeze, ...] = ()
    cuts: tuple[Cut, ...] = ()


def draw(seed: int) -> Plan:
    random = Random(f"two control planes {seed}")
    most = {Point.STATEMENT: 900, Point.COMMIT: 60, Point.BEFORE_CALL: 9, Point.AFTER_CALL: 9}

    def freeze() -> Freeze:
        point = random.choice(list(Point))
        return Freeze(point, random.randint(1, most[point]), random.choice((0.7, 2.5, 4.5, 9.0, 30.0)))

    def cut() -> Cut:
        return Cut(random.randrange(2), random.choice(list(Part)), random.uniform(0, 20), random.uniform(0.5, 20))

    freezes = tuple(freeze() for _ in range(random.choice((0, 1, 1, 2, 3))))
    return Plan(random.choice(list(FaultKind)), freezes, tuple(cut() for _ in range(random.choice((0, 1, 2, 3)))))


def moments(fault: FaultKind, reached: Counter[Point]) -> Iterator[Plan]:
    """A freeze at each commit, and before and after each change in Slurm, of a recovery that nothing disturbs."""
    for point in (Point.COMMIT, Point.BEFORE_CALL, Point.AFTER_CALL):
        for number in range(1, reached[point] + 1):
            yield Plan(fault, (Freeze(point, number, LONG_FREEZE_SECONDS),))


class Broken(AssertionError):
    pass


class Ended(BaseException):
    """The simulation is over."""


class Task:
    """A thread that runs only while the scheduler waits for it."""

    def __init__(self, scheduler: Scheduler, side: Side | None, do: Callable[[], None]) -> None:
        self.side = side
        self.at = scheduler.slurm.now
        self.is_over = False
        self.error: BaseException | None = None
        self.go = threading.Semaphore(0)
        self._scheduler = scheduler
        self._do = do
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.go.acquire()
        try:
            if not self._scheduler.is_over:
                self._do()
        except Ended:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again where the simulation runs
            self.error = error
        self.is_over = True
        self._scheduler.back.release()

    @property
    def goes_on_at(self) -> float:
        return max(self.at, self.side.frozen_until if self.side else 0.0)


class Scheduler:
    """One task runs at a time, until it pauses or its control plane is frozen."""

    def __init__(self, slurm: VirtualSlurm) -> None:
        self.slurm = slurm
        self.back = threading.Semaphore(0)
        self.is_over = False
        self._tasks: list[Task] = []
        self._current: Task | None = None

    def start(self, side: Side | None, do: Callable[[], None]) -> None:
        self._tasks.append(Task(self, side, do))

    def pause(self, seconds: float) -> None:
        task = self._current
        assert task is not None
        task.at = self.slurm.now + seconds
        self.back.release()
        task.go.acquire()
        if self.is_over:
            raise Ended

    def run_until(self, condition: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
        end = self.slurm.now + seconds
        while not condition():
            task = min((one for one in self._tasks if not one.is_over), key=lambda one: one.goes_on_at)
            if task.goes_on_at > end:
                raise Broken(f"not within {seconds:.0f} s: {what()}")
            self.slurm.advance(max(task.goes_on_at - self.slurm.now, 0.0))
            self._resume(task)

    def end(self) -> None:
        self.is_over = True
        for task in reversed(self._tasks):  # what works with a control plane's database ends before that is closed
            if not task.is_over:
                self._resume(task)
            task.thread.join()

    def _resume(self, task: Task) -> None:
        self._current = task
        task.go.release()
        self.back.acquire()
        if task.error is not None:
            error, task.error = task.error, None
            raise error


class Over(threading.Event):
    """Waits by the virtual clock."""

    def __init__(self, pause: Callable[[float], None]) -> None:
        super().__init__()
        self._pause = pause

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self._pause(timeout or 0.0)
        return self.is_set()


class Session(HolderSession):
    """Its control plane may be frozen before and after each statement."""

    side: Side

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name in {"close", "side"} or not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            self.side.reaches(Point.STATEMENT)
            answer = found(*arguments)
            self.side.reaches(Point.STATEMENT)
            return answer

        return call


class VirtualLead(Leadership):
    def __init__(self, side: Side) -> None:
        def unable() -> str:
            return "slurmctld does not answer" if side.is_cut(Part.SLURM) else ""

        super().__init__(side.world.url, side.name, lambda: side.world.slurm.now, unable)
        self.settled_seconds = SETTLED_SECONDS
        self.keeps = False
        self._side = side
        self._over = Over(side.pause)

    def _connect(self, name: str = "") -> HolderSession:
        self._side.reaches(Point.STATEMENT)
        session = Session(self._url, self._by, name)
        session.side = self._side
        self._session = session
        return session

    def _begin_to_keep(self) -> None:
        self.keeps = True
        self._side.world.scheduler.start(self._side, self._keep)

    def _keep(self) -> None:
        super()._keep()
        self.keeps = False

    def hand_over(self) -> None:
        self._over.set()
        while self.keeps:
            self._side.pause(0.1)
        self.give_up()


class Line:
    """A control plane's line to Slurm. A call that takes too long ends itself, as the commands and the process of the
    gateway do.
    """

    def __init__(self, side: Side) -> None:
        self._side = side
        self._begun = 0.0

    def fenced(self, objection: Callable[[], str]) -> Slurm:
        return fenced(cast(Slurm, self), self._noting_when(objection), CALL_SECONDS)

    def _noting_when(self, objection: Callable[[], str]) -> Callable[[], str]:
        def noting() -> str:
            self._begun = self._side.world.slurm.now
            return objection()

        return noting

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._side.world.slurm, name)

        def over_the_line(*arguments: object) -> object:
            side = self._side
            if side.is_cut(Part.SLURM):
                raise SlurmUnavailable("slurmctld does not answer")
            if name in READS:
                return call(*arguments)
            side.reaches(Point.BEFORE_CALL)
            if side.world.slurm.now - self._begun > CALL_SECONDS:
                raise SlurmUnavailable("the process that made the call has ended itself")
            answer = call(*arguments)
            side.world.changed(side, name, arguments)
            side.reaches(Point.AFTER_CALL)
            return answer

        return over_the_line


@dataclass
class Agent:
    node: str
    asks: int = 0
    answered_at: float = 0.0
    facts: list[KernelEvent] = field(default_factory=list)


class Side:
    """One of the two: a process that stands by, leads, ends when it has lost the lead, and starts again."""

    def __init__(self, world: TwoControlPlanes, number: int) -> None:
        self.world = world
        self.number, self.name = number, NAMES[number]
        self.frozen_until = 0.0
        self.term = 0
        self.control_plane: ControlPlane | None = None
        self.lead = VirtualLead(self)
        world.scheduler.start(self, self._run)
        world.scheduler.start(self, self._take_reports)

    def pause(self, seconds: float) -> None:
        self.world.scheduler.pause(seconds)

    def is_cut(self, part: Part, at: float | None = None) -> bool:
        cuts = self.world.cuts_at(self.world.slurm.now if at is None else at)
        return any(one.side == self.number and one.part is part for one in cuts)

    def reaches(self, point: Point) -> None:
        if self.world.scheduler.is_over:
            return
        seconds = self.world.reached(point)
        if seconds:
            self.world.tell(f"{self.name} is frozen at a {point.value} for {seconds} s")
            self.frozen_until = self.world.slurm.now + seconds
            self.pause(0.0)
            self.world.tell(f"{self.name} goes on")
        if point in {Point.STATEMENT, Point.COMMIT} and self.is_cut(Part.DATABASE):
            raise OperationalError("", None, ConnectionError("the network is away"))

    def _run(self) -> None:
        while True:
            self.lead = VirtualLead(self)
            try:
                if self.lead.wait(self._sleep, lambda _: None):
                    with suppress(StoreError):
                        self._work()
            finally:
                self.control_plane, self.term = None, 0
                if self.lead.handed_over:
                    self.world.tell(f"{self.name} passes the lead on: it is cut from {self.lead.handed_over}")
                    self.lead.hand_over()
                else:
                    self.lead.give_up(lambda: False)
            self.pause(RESTART_SECONDS)

    def _sleep(self, seconds: float) -> bool:
        self.pause(seconds)
        return False

    def _work(self) -> None:
        lead, line = self.lead, Line(self)
        self.term = lead.term
        self.world.tell(f"{self.name} leads")
        outside = Outside(
            line.fenced(lead.objection),
            lambda node: node.name not in self.world.dead,
            self.world.clock,
            sleep=self.pause,
            begin_effect=EffectAtOnce,
            lead=lead,
            term=lead.term,
        )
        with closing(compose(self.world.config, outside)) as control_plane:
            self._lead(control_plane)
        self.world.tell(f"{self.name} has lost the lead")

    def _lead(self, control_plane: ControlPlane) -> None:
        lead = self.lead
        self._watch(control_plane.engine)
        self.control_plane = control_plane
        self.world.opened(self)
        lead.follow(lambda: control_plane.loop.pulse.turns, lambda: None, self._missing)
        recovering = False
        while not lead.taken and not lead.handed_over:
            try:
                lead.check()
                recovering = control_plane.loop.tick(recovering)
            except DatabaseTaken:
                break
            except StoreError:
                recovering = False
            control_plane.loop.pulse.turns += 1
            self.pause(RECOVERING_SECONDS if recovering else IDLE_SECONDS)

    def _missing(self, _able: object) -> str:
        since = self.world.slurm.now - UNHEARD_SECONDS
        parts = (Part.SLURM, Part.AGENTS)
        return next((one.value for one in parts if self.is_cut(one) and self.is_cut(one, since)), "")

    def _watch(self, engine: Engine) -> None:
        def executing(*_: object) -> None:
            self.reaches(Point.STATEMENT)

        def committing(_connection: object) -> None:
            self.reaches(Point.COMMIT)

        event.listen(engine, "before_cursor_execute", executing)
        event.listen(engine, "commit", committing)

    def _take_reports(self) -> None:
        while True:
            self.pause(AGENT_SECONDS)
            control_plane = self.control_plane
            if control_plane is None or not control_plane.loop.pulse.ticks_total or self.is_cut(Part.AGENTS):
                continue
            if not control_plane.loop.refuses_nodes():
                for agent in self.world.agents:
                    if agent.asks == self.number and agent.node not in self.world.dead:
                        self._take(control_plane, agent)

    def _take(self, control_plane: ControlPlane, agent: Agent) -> None:
        now = self.world.clock.now()
        report = b.report(agent.node, boot_id=f"boot of {agent.node}", sent_at=now)
        control_plane.telemetry.receive(report, now)
        if agent.facts:
            try:
                control_plane.stores.facts.record(agent.node, agent.facts, now, lambda _: None)
            except StoreError:
                return  # not answered: the agent sends them again
            agent.facts = []
            control_plane.loop.wake()
        agent.answered_at = self.world.slurm.now


class TwoControlPlanes:
    """A gang on n1 to n4 with three spares, and a node of it that fails."""

    def __init__(self, url: str, plan: Plan) -> None:
        self.url, self.plan = url, plan
        self.slurm = VirtualSlurm(NODES)
        self.slurm.leaf_switches = 1
        self.clock = VirtualClock(self.slurm)
        self.config: Config = b.config(server={"database": url}, spares={"count": 3})
        self.scheduler = Scheduler(self.slurm)
        self.dead: set[str] = set()
        self.story: list[str] = []
        self.effects: Counter[str] = Counter()
        self.points: Counter[Point] = Counter()
        self.newest_term = self.newest_effect = 0
        self.fault_at = math.inf
        self._gang = 0
        self._freezes = list(plan.freezes)
        self._begun_at = self.slurm.now
        self.agents = [Agent(node) for node in NODES]
        self.sides = [Side(self, number) for number in range(2)]
        self.scheduler.start(None, self._look_for_leader)

    def tell(self, words: str) -> None:
        self.story.append(f"{self.slurm.now - self._begun_at:8.2f} s  {words}")

    # -- what happens ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises Broken."""
        try:
            self._wait(lambda: self._nodes_of("understudy_spares") == 3, "the pool is filled")
            job = self._gang = self.slurm.submit("researcher", 4, comment="understudy")
            self._wait(lambda: self._job(job).state == "RUNNING", "the gang runs")
            self._pass(3)
            self._fail()
            self._wait(self._is_settled, "the recovery is over")
            self._pass(15)  # for whatever comes late
            self._wait(self._is_settled, "the recovery stays over")
            self._judge()
        finally:
            self.scheduler.end()

    def _fail(self) -> None:
        self.effects.clear()
        self.points.clear()
        self.fault_at = self.slurm.now
        self.tell(f"{AT_FAULT} fails: {self.plan.fault.value}")
        if self.plan.fault is FaultKind.DEAD:
            self.slurm.kill_node(AT_FAULT)
            self.dead.add(AT_FAULT)
            return
        fact = b.xid_event(AT_FAULT, 79, self.slurm.now, 1, f"boot of {AT_FAULT}").event
        self.agents[NODES.index(AT_FAULT)].facts.append(fact)

    def reached(self, point: Point) -> float:
        """Seconds for which the control plane that reaches it is frozen."""
        if self.slurm.now < self.fault_at:
            return 0.0
        self.points[point] += 1
        if not self._freezes or self._freezes[0].point is not point:
            return 0.0
        first = self._freezes[0]
        if first.number > 1:
            self._freezes[0] = replace(first, number=first.number - 1)
            return 0.0
        self._freezes.pop(0)
        return first.seconds

    def cuts_at(self, at: float) -> list[Cut]:
        since = at - self.fault_at
        return [one for one in self.plan.cuts if one.after <= since < one.after + one.seconds]

    def _look_for_leader(self) -> None:
        """Agents ask the other one where none has answered."""
        while True:
            self.scheduler.pause(AGENT_SECONDS)
            for agent in self.agents:
                if self.slurm.now - agent.answered_at > AGENT_PATIENCE_SECONDS:
                    agent.asks, agent.answered_at = 1 - agent.asks, self.slurm.now

    # -- what must hold ----------------------------------------------------------------------------------------------

    def opened(self, side: Side) -> None:
        """It has read what the older one committed."""
        if side.term < self.newest_term:
            raise Broken(f"{side.name} has opened the database in an older term")
        self.newest_term = side.term

    def changed(self, side: Side, name: str, arguments: Sequence[object]) -> None:
        shown = " ".join([name, *(",".join(one) if isinstance(one, list) else str(one) for one in arguments[:1])])
        self.tell(f"{side.name} in Slurm: {shown}")
        self.effects[shown] += 1
        if side.term < self.newest_effect:
            raise Broken(f"{side.name} has changed Slurm ({shown}) after the first change of a newer term")
        self.newest_effect = side.term

    def _is_settled(self) -> bool:
        """Who leads sees no recovery that runs, and all that was to happen has happened."""
        leader = self._leader()
        if leader is None or self._is_disturbed() or leader.loop.pulse.snapshot is None:
            return False
        job = self._job(self._gang)
        moved = job.state == "RUNNING" and AT_FAULT not in job.nodes
        facts_wait = any(agent.facts for agent in self.agents)
        return moved and not facts_wait and not leader.loop.pulse.snapshot.recoveries

    def _is_disturbed(self) -> bool:
        until = max((self.fault_at + one.after + one.seconds for one in self.plan.cuts), default=0.0)
        return self.slurm.now <= until or any(one.frozen_until >= self.slurm.now for one in self.sides)

    def _leader(self) -> ControlPlane | None:
        leads = [one for one in self.sides if one.control_plane is not None and not one.lead.objection()]
        if len(leads) > 1:
            raise Broken("two control planes may change Slurm at the same time")
        return leads[0].control_plane if leads else None

    def _judge(self) -> None:
        leader = self._leader()
        assert leader is not None
        job = self._job(self._gang)
        if (job.state, job.restart_count) != ("RUNNING", 1) or AT_FAULT in job.nodes:
            raise Broken(f"the gang is {job.state} on {job.nodes}, restarted {job.restart_count} times")
        twice = {what: count for what, count in self.effects.items() if count > 1 and what.split()[0] in ONCE}
        if twice:
            raise Broken(f"done more than once: {twice}")
        recoveries = leader.stores.recoveries.newest(100)
        moves = [one for one in recoveries if one.plan.kind is RecoveryKind.POOL_SWAP]
        if [one.status for one in moves] != [RecoveryStatus.SUCCEEDED]:
            raise Broken(f"recoveries of the gang: {[(one.plan.kind.value, one.status.value) for one in moves]}")
        if len(self.slurm.reservations()) != 1:
            raise Broken(f"reservations are left: {[one.name for one in self.slurm.reservations()]}")

    # -- inside ------------------------------------------------------------------------------------------------------

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        self.scheduler.run_until(condition, SETTLES_SECONDS, lambda: what)

    def _pass(self, seconds: float) -> None:
        end = self.slurm.now + seconds
        self.scheduler.run_until(lambda: self.slurm.now >= end, seconds + 5, str)

    def _job(self, job_id: int) -> Any:
        return next(one for one in self.slurm.jobs() if one.job_id == job_id)

    def _nodes_of(self, reservation: str) -> int:
        return next((len(one.nodes) for one in self.slurm.reservations() if one.name == reservation), 0)


@contextmanager
def quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def simulate(postgres: Postgres, plan: Plan) -> TwoControlPlanes:
    """Raises Broken."""
    url = postgres.new_database()
    world = TwoControlPlanes(url, plan)
    try:
        with quiet():
            world.run()
    except Broken as broken:
        story = "\n".join(world.story)
        raise Broken(f"{broken}\n{plan}\n{story}") from broken
    finally:
        postgres.drop(url)
    return world


@click.command()
@click.option("--seed", type=int, default=1, show_default=True, help="First seed.")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="How many seeds.")
@click.option("--each-moment", is_flag=True, help="No seeds, but a freeze at each commit and each change in Slurm.")
def main(seed: int, seeds: int, each_moment: bool) -> None:
    """Exits with 1 where an invariant is violated, and prints what happened."""
    logging.getLogger("sqlalchemy").setLevel(logging.CRITICAL)  # sessions that were ended
    postgres, tried, failed = Postgres(), 0, 0
    try:
        if each_moment:
            plans = (one for kind in FaultKind for one in moments(kind, simulate(postgres, Plan(kind)).points))
        else:
            plans = (draw(one) for one in range(seed, seed + seeds))
        for plan in plans:
            tried += 1
            try:
                world = simulate(postgres, plan)
                if seeds == 1 and not each_moment:
                    click.echo("\n".join(world.story))
            except Broken as broken:
                failed += 1
                click.echo(f"{f'seed {seed + tried - 1} fails: ' if not each_moment else ''}{broken}")
    finally:
        postgres.stop()
    click.echo(f"{failed} of {tried} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
