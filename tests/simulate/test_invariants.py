"""Each invariant of the simulator is violated when a part that it watches is broken on purpose."""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from tests import REPOSITORY
from tests.simulate.drawn import DRAWN
from tests.simulate.edits import edited
from tests.simulate.mutants import MUTANTS, Mutant, steps_do_nothing
from tests.simulator import invariants, world
from tests.simulator.run import simulate
from tests.simulator.saving import AskingRanks
from tests.simulator.scenario import LAUNCHER_GANG, Event, Kind, Scenario, Settings
from tests.simulator.slurm import VirtualSlurm
from tests.simulator.world import World, configuration
from understudy_controlplane.config import Config, Mode, NoSpare
from understudy_controlplane.decide import (
    failures,
    gang_moves,
    guards,
    hangs,
    needs,
    recovery_recheck,
    repair_cycle,
    requests_in_force,
    transitions,
)
from understudy_controlplane.decide.preemption import Preemptible
from understudy_controlplane.detect import DETECTORS, slow_ranks
from understudy_controlplane.detect.slowness_cost import SlownessCost
from understudy_controlplane.fleet.job import RestoreAnswer, RestoreDecision
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.recovery import PoolSwapPlan, RecoveryStatus, StepName
from understudy_controlplane.fleet.slurm import SlurmJob, SlurmNode
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import StepTable
from understudy_controlplane.live import save_orders
from understudy_controlplane.live.save_orders import SaveOrders
from understudy_controlplane.live.step_buffer import StepBuffer
from understudy_controlplane.observe.observer import Observer, _Look
from understudy_controlplane.recover import runner
from understudy_controlplane.recover.restore import RestorePoints
from understudy_controlplane.recover.runner import Runner
from understudy_controlplane.recover.step import Done, Failed
from understudy_controlplane.recover.steps import STEPS, seats
from understudy_controlplane.store import recoveries
from understudy_controlplane.store.kept_nodes import Written
from understudy_controlplane.store.requests import RequestStore
from understudy_controlplane.store.tickets import TicketStore
from understudy_wire.ranks import OrderState, RankWindow, SaveOrder

HANG = importlib.import_module("understudy_controlplane.detect.hang")  # the package has a function of that name
IN_GANG = Event(40.0, Kind.XID, "n2", number=79)
IDLE = Event(40.0, Kind.XID, "n15", number=79)
SAVE = Event(40.0, Kind.ASKS_TO_SAVE, "0")
USUAL, ASKS = Settings(), Settings(asks=True)


@dataclass(frozen=True)
class Broken:
    """`breaks` is entered for a simulation; without it the same scenario violates nothing."""

    invariant: str
    breaks: Mutant
    events: tuple[Event, ...] = ()
    settings: Settings = USUAL
    seconds: float = 60.0


@contextmanager
def _all(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as entered:
        for one in patches:
            entered.enter_context(one)
        yield


def _verdicts_stay() -> AbstractContextManager[object]:
    made = StepBuffer._made_steps

    def steps(buffer: StepBuffer) -> object:
        return replace(made(buffer), kept=vars(buffer).setdefault("verdicts", {}))

    holds = patch.object(slow_ranks._Verdict, "holds_for", lambda *_: True)
    return _all(patch.object(StepBuffer, "_made_steps", steps), holds)


def _views_stay() -> AbstractContextManager[object]:
    made = _Look.view_of

    def view_of(look: _Look, name: str, *, is_kept: bool = True) -> NodeView:
        last = look.made_before.get(name) if is_kept else None
        if last is None:
            return made(look, name, is_kept=is_kept)
        look.made[name] = last
        return last[2]

    return patch.object(_Look, "view_of", view_of)


def _returns(owner: object, name: str, value: object) -> Mutant:
    return lambda: patch.object(owner, name, lambda *_, **__: value)


def _finds_nothing(*detectors: str) -> Mutant:
    return lambda: patch.dict(DETECTORS, dict.fromkeys(detectors, lambda *_: ()))


def _has_no_patience_with(gang: int) -> Mutant:
    def none_with_it(patience: Callable[..., float | None]) -> Callable[..., float | None]:
        return lambda table, *more: -1.0 if _is_of(table, gang) else patience(table, *more)

    names = ("patience_seconds", "silent_patience_seconds")
    return lambda: _all(
        *(patch.object(HANG, name, none_with_it(getattr(HANG, name))) for name in names),
        patch.object(HANG._Standing, "may_be_with_gang", lambda *_: False),  # nor for the others' steps
    )


def _is_of(table: StepTable, gang: int) -> bool:
    return table.job.job_id == gang + 1


def _acts_in_mode_observe() -> AbstractContextManager[Any]:
    look = Observer.look

    def other(observer: Observer, view: Any) -> Any:
        seen = look(observer, view)
        return replace(seen, snapshot=replace(seen.snapshot, mode=Mode.ACT))

    return patch.object(Observer, "look", other)


def _earlier_plan_goes_on() -> AbstractContextManager[Any]:
    end = recoveries._end_recovery

    def other(connection: Any, recovery: int, status: RecoveryStatus, outcome: str, now: float) -> None:
        if status is not RecoveryStatus.SUPERSEDED:
            end(connection, recovery, status, outcome, now)

    return patch.object(recoveries, "_end_recovery", other)


def _answers_differ() -> AbstractContextManager[Any]:
    give, asked = RestorePoints.give, count()

    def other(points: RestorePoints, *request: Any) -> RestoreDecision:
        decision = give(points, *request)
        return decision if next(asked) % 2 else RestoreDecision(RestoreAnswer.FRESH)

    return patch.object(RestorePoints, "give", other)


def _steps_differ() -> AbstractContextManager[Any]:
    answer = SaveOrders.answer_to

    def other(orders: SaveOrders, windows: Sequence[RankWindow]) -> list[SaveOrder]:
        return [msgspec.structs.replace(one, step=one.step + windows[0].rank) for one in answer(orders, windows)]

    return patch.object(SaveOrders, "answer_to", other)


def _drain_raises() -> AbstractContextManager[Any]:
    def observe(_context: Any) -> Any:
        raise RuntimeError("broken")

    return patch.dict(STEPS, {StepName.DRAIN_NODES: replace(STEPS[StepName.DRAIN_NODES], observe=observe)})


def _is_moved_again_and_again() -> AbstractContextManager[Any]:
    """Limits moves to one an hour, so that two show it."""

    def strict(scenario: Scenario) -> Config:
        config = configuration(scenario)
        return config.model_copy(update={"jobs": config.jobs.model_copy(update={"swaps_per_hour_max": 1})})

    return _all(
        patch.object(world, "configuration", strict),
        patch.object(gang_moves, "_moved_too_often", lambda *_: False),
    )


def _stays_dead() -> AbstractContextManager[Any]:
    die = World.die
    return patch.object(World, "die", lambda of, _seconds: die(of, math.inf))


def _a_rank_hears_of_no_valid_order() -> AbstractContextManager[Any]:
    take = AskingRanks.take

    def other(ranks: AskingRanks, rank: int, order: SaveOrder) -> None:
        if rank or order.state is not OrderState.VALID:
            take(ranks, rank, order)

    return patch.object(AskingRanks, "take", other)


def _sees_no_job_of_a_student() -> AbstractContextManager[Any]:
    return _all(
        patch.object(guards, "object_to_test", lambda *_: None),
        patch.object(SlurmJob, "holds_nodes", property(lambda job: job.state == "RUNNING" and job.user != "student")),
    )


def _a_failed_test_is_passed() -> AbstractContextManager[Any]:
    def passed(observe: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda context: Done("passed") if isinstance(found := observe(context), Failed) else found

    step = STEPS[StepName.RUN_VALIDATION]
    return patch.dict(STEPS, {StepName.RUN_VALIDATION: replace(step, observe=passed(step.observe))})


def _a_dead_gang_is_not_shrunk() -> AbstractContextManager[Any]:
    """And no person hears of it."""
    return _all(patch.object(VirtualSlurm, "keep_batch_host", lambda *_: None), _returns(TicketStore, "tickets", ())())


def _drawn(name: str) -> Mutant:
    return lambda: edited(*DRAWN[name].edits)


BROKEN: dict[str, Broken] = {
    "more gangs are moved at once than may be": Broken(
        "never-over-a-budget",
        _drawn("no move budget"),
        tuple(Event(40.0, Kind.SEAT_FAILS, str(gang), number=79) for gang in range(3)),
        Settings(few_moves=True, spares=3),
        400.0,
    ),
    "a rule takes out one node more": Broken(
        "never-over-a-budget",
        _drawn("a rule may take out any number of nodes"),
        (IN_GANG,),
        Settings(taken_today=12, default_guards=True),
        300.0,
    ),
    "a gang restores what its training has deleted": Broken(
        "restored-only-from-good",
        _drawn("a checkpoint that is gone is restored"),
        (Event(85.0, Kind.DELETES_CHECKPOINT, "0"), Event(95.0, Kind.SEAT_FAILS, "0", number=79)),
        seconds=160.0,
    ),
    "a gang that waits is forgotten beside the pool": Broken(
        "everything-has-an-owner",
        _drawn("a gang that waits in the queue is forgotten"),
        (Event(30.0, Kind.SUBMITS, number=1), Event(39.9, Kind.REQUEUES, "0"), IN_GANG),
        Settings(repairs=False),
        300.0,
    ),
    "no person hears that no agent reports": Broken(
        "what-rests-is-listed",
        _returns(needs, "_agents", ()),
        (Event(40.0, Kind.ALL_AGENTS_SILENT, "", 280.0),),
        seconds=420.0,
    ),
    "mode observe goes on with what is under way": Broken(
        "observe-writes-nothing",
        _drawn("mode observe goes on with recoveries"),
        (IN_GANG, Event(40.5, Kind.OBSERVES), Event(70.0, Kind.OBSERVES_NO_LONGER)),
        Settings(learns_mode=True),
        300.0,
    ),
    "a node is dead for the control plane alone": Broken(
        "no-decision-without-evidence",
        _drawn("time alone makes a node dead"),
        (Event(60.0, Kind.ROUTE_CUT, "n14", 200.0),),
        Settings(sweeps=2, spares=1),
        300.0,
    ),
    "mode approve acts": Broken(
        "nothing-without-approval",
        lambda: patch.object(failures, "await_approval", lambda _, decisions, __: list(decisions)),
        (IDLE,),
        Settings(approves=True),
        200.0,
    ),
    "the breaker never opens": Broken(
        "the-breaker-opens",
        _returns(guards, "breaker_limit", 99),
        tuple(Event(40.0 + 5 * i, Kind.XID, name, number=79) for i, name in enumerate(("n14", "n1", "n5", "n9", "n2"))),
        Settings(default_guards=True, spares=0, repairs=False),
        90.0,
    ),
    "a promised spare is given to another gang": Broken(
        "a-seat-is-for-one-gang",
        lambda: patch.object(PoolSwapPlan, "claimed", property(lambda plan: plan.nodes)),
        (IN_GANG, Event(40.0, Kind.XID, "n6", number=79)),
        Settings(spares=1, no_spare=NoSpare.WAIT),
        300.0,
    ),
    "a gang gets a node with too little memory": Broken(
        "a-spare-can-run-the-job",
        _returns(SlurmNode, "too_small", ""),
        (IN_GANG, Event(40.0, Kind.XID, "n6", number=79)),
        Settings(spares=0, small_nodes=2),
        300.0,
    ),
    "dead nodes are not declared down": Broken(
        "a-dead-node-is-down-first",
        _drawn("dead nodes are not set down before the requeue"),
        (Event(40.0, Kind.NODE_DIES, "n2"),),
        seconds=240.0,
    ),
    "a node is repaired while a job works there": Broken(
        "a-repair-waits-for-jobs",
        lambda: patch.object(repair_cycle, "_is_out_and_empty", lambda _, node: node.record.drained_at is not None),
        (Event(40.0, Kind.XID, "n2", number=63),),
        seconds=100.0,
    ),
    "a gang that saves nothing leaves a slow node": Broken(
        "a-gang-at-work-stays",
        lambda: _all(
            patch.object(SlownessCost, "price_seconds", 0.0),
            patch.object(SlownessCost, "pays", property(lambda _: True)),
        ),
        (Event(120.0, Kind.SEAT_SLOW, "1", 300.0, 1),),
        Settings(saves_nothing=True),
        500.0,
    ),
    "a gang that hangs is restarted again and again": Broken(
        "restarts-end", _returns(hangs, "too_often", ""), (Event(60.0, Kind.HANGS_AT_STEP, "0"),), USUAL, 900.0
    ),
    "a gang whose nodes are all dead is lost": Broken(
        "no-job-is-lost", _a_dead_gang_is_not_shrunk, (Event(60.0, Kind.RACK_DIES, "n5", number=3),), USUAL, 500.0
    ),
    "seats are given up before the gang starts": Broken(
        "seats-last-until-the-start", lambda: steps_do_nothing(StepName.START_JOB), (IN_GANG,)
    ),
    "a node returns whose test failed": Broken(
        "a-failed-test-keeps-a-node",
        _a_failed_test_is_passed,
        (IDLE, Event(60.5, Kind.VALIDATION_FAILS, "n15")),  # after its reboot
        seconds=250.0,
    ),
    "mode observe acts": Broken("observe-writes-nothing", _acts_in_mode_observe, (IDLE,), Settings(observes=True)),
    "a pause halts no recovery": Broken(
        "a-halt-halts", _returns(recovery_recheck, "_may_act", True), (IN_GANG, Event(41.0, Kind.PAUSES_NOW))
    ),
    "a pause of a job is ignored": Broken(
        "a-paused-job-is-left-alone",
        _returns(requests_in_force, "_job_pauses", {}),
        (Event(39.0, Kind.PAUSES_JOB, "0", 300.0), IN_GANG),
    ),
    "what was before a resume counts after it": Broken(
        "a-resume-stands",
        _returns(transitions, "_answered_for", 0.0),
        (IDLE, Event(50.0, Kind.RESUMES, "n15")),
        Settings(repairs=False, validates=False),
    ),
    "a plan goes on beside the newer one": Broken(
        "one-recovery-a-node", _earlier_plan_goes_on, (IN_GANG, Event(40.5, Kind.XID, "n3", number=79))
    ),
    "a cancelled job is taken for a failed one": Broken(
        "an-ended-job-never-runs-again",
        lambda: _all(
            patch.object(runner, "ended_by_its_owner", lambda *_: None),
            patch.object(SlurmJob, "failed_by_itself", SlurmJob.completing),
        ),
        # The user cancels between two processes of the control plane, the first of which ends before the requeue.
        (Event(39.0, Kind.KILLED_AFTER_EFFECT, "", 0.5, 3), IN_GANG, Event(40.1, Kind.CANCELS, "0")),
    ),
    "ranks are answered differently": Broken(
        "one-restore-point-an-attempt",
        _answers_differ,
        (Event(110.0, Kind.XID, "n2", number=79),),
        seconds=150.0,  # a checkpoint is there, and the gang works again
    ),
    "ranks are ordered to save at different steps": Broken(
        "an-order-to-save-ends",
        _steps_differ,
        (SAVE,),
        ASKS,
        80.0,  # one that is agreed by none, and never over
    ),
    "a rank never hears that an order to save is valid": Broken(
        "all-ranks-save-together", _a_rank_hears_of_no_valid_order, (SAVE,), ASKS, 120.0
    ),
    "an order to save stays proposed": Broken(
        "an-order-to-save-ends",
        lambda: _all(
            patch.object(save_orders, "_objection", lambda *_: ""),
            patch.object(SaveOrders, "_make_valid", lambda *_: None),
        ),
        (SAVE,),
        ASKS,
        300.0,
    ),
    "a request to save gets no answer": Broken(
        "an-order-to-save-ends", _returns(RequestStore, "answer", None), (SAVE,), ASKS, 80.0
    ),
    "a gang at work is taken for one that hangs": Broken(
        "only-a-gang-that-hangs-is-restarted", _has_no_patience_with(0)
    ),
    "a launcher's gang at work is taken for one that hangs": Broken(
        "only-a-gang-that-hangs-is-restarted", _has_no_patience_with(LAUNCHER_GANG)
    ),
    "nothing is waited for after a start": Broken(
        "a-gang-is-one-launch",
        lambda: steps_do_nothing(StepName.AWAIT_PROCESSES, StepName.AWAIT_FIRST_STEP),
        (IN_GANG,),
    ),
    "jobs on spares are not named": Broken(
        "preempts-only-what-it-named",
        lambda: _all(patch.object(Preemptible, "jobs", ()), patch.object(seats, "_taken", lambda _: "")),
        (Event(36.0, Kind.SUBMITS_LOW, number=3), IN_GANG),  # all other nodes
        Settings(spares=0, no_spare=NoSpare.PREEMPT),
    ),
    "a node is tested while a job runs there": Broken(
        "preempts-only-what-it-named",
        _sees_no_job_of_a_student,
        (Event(36.0, Kind.SUBMITS_LOW, number=1), Event(40.0, Kind.TESTS, "n14")),
        Settings(spares=0, no_spare=NoSpare.PREEMPT),
    ),
    "a gang is moved again and again": Broken(
        "never-over-a-budget", _is_moved_again_and_again, (IN_GANG, Event(60.0, Kind.XID, "n3", number=79)), USUAL, 90.0
    ),
    "a record that was written is not read again": Broken(
        "records-are-those-of-the-table", _returns(Written, "names_since", ()), (IDLE,)
    ),
    "a node that is drained is taken for one in service": Broken(
        "plain-nodes-are-plain", lambda: patch.object(Snapshot, "set_apart", ()), (IDLE,)
    ),
    "a node whose NVLink is down is taken for a usual one": Broken(
        "plain-nodes-are-plain",
        lambda: patch.object(Snapshot, "unusual", ()),
        (Event(36.0, Kind.NVLINK_DOWN, "n3", 60.0),),
    ),
    "a view of a node is kept for good": Broken("kept-views-are-those-of-a-new-look", _views_stay, (IDLE,)),
    "a verdict about a gang is kept for good": Broken(
        "kept-verdicts-are-those-of-a-new-look",
        _verdicts_stay,
        (Event(36.0, Kind.SLOW, "n3", 300.0),),
        seconds=200.0,
    ),
    "a step raises": Broken("no-error", _drain_raises, (IDLE,)),
    "no fault is seen": Broken("everything-comes-to-rest", _finds_nothing("xid", "kernel_log"), (IDLE,)),
    "no hang is seen": Broken(
        "everything-comes-to-rest", _finds_nothing("hang"), (Event(40.0, Kind.RANK_HANGS, "0"),), seconds=180.0
    ),
    "recoveries stand still": Broken("everything-comes-to-rest", _returns(Runner, "advance", True)),
    "the pool stays empty": Broken("everything-comes-to-rest", lambda: steps_do_nothing(StepName.FILL_POOL)),
    "a node that nothing repairs is not named": Broken(
        "what-rests-is-listed", _returns(needs, "_nodes_out", ()), (IDLE,), Settings(repairs=False), 200.0
    ),
    "a pool that stays short is not named": Broken(
        "what-rests-is-listed", _returns(needs, "_pool", ()), (IDLE,), Settings(repairs=False, spares=9), 200.0
    ),
    "a weight stays": Broken(
        "everything-comes-to-rest",
        lambda: steps_do_nothing(StepName.RESTORE_WEIGHT),
        (IDLE,),
        Settings(weighs=True),
        300.0,
    ),
    "a control plane that is killed is not started again": Broken(
        "everything-comes-to-rest", _stays_dead, (Event(39.0, Kind.KILLED_AFTER_EFFECT, "", 2.0), IDLE), USUAL, 400.0
    ),
}
"""How the code is broken → what is violated. Patches, because these parts have no other."""


@functools.cache
def _violates_nothing(scenario: bytes) -> bool:
    """Many of these scenarios are the same."""
    return simulate(msgspec.json.decode(scenario, type=Scenario)).violation is None


def _once_each() -> Iterator[Any]:
    """`make test` shows each invariant violated once, here or by a mutant; `make long` in each of these ways."""
    shown = {invariant for invariant, _ in MUTANTS.values()}
    for how, one in BROKEN.items():
        yield pytest.param(how, marks=[pytest.mark.long] if one.invariant in shown else [])
        shown.add(one.invariant)


@pytest.mark.integration
@pytest.mark.patient
@pytest.mark.parametrize("how", list(_once_each()))
def test_an_invariant_is_violated_where_what_it_watches_is_broken(how: str) -> None:
    one = BROKEN[how]
    scenario = Scenario(0, one.events, one.settings, seconds=one.seconds)
    assert _violates_nothing(msgspec.json.encode(scenario))
    with one.breaks():
        violation = simulate(scenario).violation
    assert violation is not None
    assert violation.invariant == one.invariant


def test_each_invariant_is_seen_violated_and_described() -> None:
    """The mutants violate each, or the table above; docs/reliability.md describes it."""
    sources = [path.read_text() for path in Path(invariants.__file__).parent.glob("*.py")]
    places = [place for source in sources for place in re.findall(r"raise Violation\(\s*(\S+)", source)]
    violated = {invariant for invariant, _ in MUTANTS.values()} | {one.invariant for one in BROKEN.values()}
    assert {place.removesuffix(",") for place in places} == {f'"{name}"' for name in violated}
    table = (REPOSITORY / "docs" / "reliability.md").read_text().partition("| invariant |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == violated
