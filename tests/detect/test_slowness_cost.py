"""What a slow rank costs, and when moving its gang pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests import builders as b
from understudy_controlplane.config import Straggler
from understudy_controlplane.decide import plans
from understudy_controlplane.decide.recovery_recheck import AS_PLANNED, Course, course
from understudy_controlplane.detect import DETECTORS, detect
from understudy_controlplane.detect.slowness_cost import SlownessCost, slow_seconds_seen, slowness_cost
from understudy_controlplane.detect.straggler import straggler
from understudy_controlplane.detect.stranded import PACE_AGAIN_SECONDS
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import Recovery, RecoveryStatus, RecoveryStep, StepStatus
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import Durations, StepTable
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.suspicion import SuspicionCause

HOUR = 3600.0
SLOW = b.suspected(SuspicionCause.SLOW, since=b.NOW - HOUR)


def cost(
    ratio: float = 1.25, slow_for: float = HOUR, checkpoint: float | None = None, start: float = 300
) -> SlownessCost:
    table = replace(b.step_table([[1.0] * 100] * 8), durations=Durations(startup=start))
    at = None if checkpoint is None else b.NOW - checkpoint
    return slowness_cost(table, 3, ratio, b.NOW - slow_for, b.NOW, at)


def test_what_is_paid_grows_with_time_and_the_price_with_the_last_checkpoint() -> None:
    one = cost(checkpoint=900.0)
    assert one.share_lost == pytest.approx(0.2)
    assert one.paid_seconds == pytest.approx(720.0)
    assert one.price_seconds == 1200.0
    assert not one.pays
    assert cost(checkpoint=10.0).pays, "right after a checkpoint a move costs little more than the start"
    assert cost(slow_for=2 * HOUR, checkpoint=900.0).pays, "the rent has reached the price"


def test_what_is_not_known_is_not_nothing() -> None:
    """Ten days of training that no checkpoint is known of are not ended for a slow GPU, however long it costs."""
    assert not cost(slow_for=10 * 24 * HOUR).pays
    assert cost().words.endswith("and what it has done since a checkpoint that the control plane does not know")
    assert not cost(slow_for=0.8 * HOUR, checkpoint=10.0, start=0.0).pays, "its start may take long"
    assert cost(slow_for=HOUR, checkpoint=10.0, start=0.0).pays
    assert "a move costs the gang's start, and" in cost(start=0.0, checkpoint=10.0).words


@pytest.mark.parametrize("ends_after", [60, 600, 1499, 1501, 3000, 50_000])
def test_who_moves_when_it_pays_never_pays_more_than_twice_what_was_best(ends_after: int) -> None:
    """Whenever the slowness ends, which is not known before. It is looked at every ten seconds."""
    looks = (cost(slow_for=float(at), checkpoint=0.0) for at in range(0, ends_after, 10))
    moved = next((one for one in looks if one.pays), None)
    stayed = cost(slow_for=float(ends_after)).paid_seconds
    spent = stayed if moved is None else moved.paid_seconds + (moved.price_seconds or 0.0)
    assert spent <= 2 * min(stayed, cost(checkpoint=0.0).price_seconds or 0.0) + 0.2 * 10


def test_the_gang_loses_only_the_part_of_a_step_that_a_rank_computes() -> None:
    table = b.step_table([[1.0] * 100] * 8)
    half = replace(table, wall_seconds=np.full(8, 2.0, np.float32))
    assert slowness_cost(half, 3, 1.25, b.NOW - HOUR, b.NOW, None).share_lost == pytest.approx(0.1)
    assert slow_seconds_seen(half, 3, 10, 19) == pytest.approx(20.0)
    assert slow_seconds_seen(table, 3, 10, 19) == pytest.approx(10.0)


def slow_table(start: float = 300.0) -> StepTable:
    times = np.random.default_rng(1).normal(1.0, 0.005, (16, 100))
    times[2] *= 1.25
    nodes = [f"n{rank // 2 + 1}" for rank in range(16)]
    return replace(b.step_table(times.tolist(), nodes=nodes), durations=Durations(startup=start))


def found(suspect: bool, checkpointed_at: float | None, *, wait: bool = True) -> Finding:
    state = NodeState.SUSPECT if suspect else NodeState.IN_SERVICE
    record = b.record("n2", state, suspicions=SLOW if suspect else ())
    node = b.node("n2", record=record, gpus=(b.gpu(0, clock_event_reasons=0x48),))
    job = b.job(nodes=[f"n{number}" for number in range(1, 9)])
    times = {} if checkpointed_at is None else {job.key: checkpointed_at}
    snapshot: Snapshot = b.snapshot(node, jobs=[job], tables={job.key: slow_table()}, checkpointed_at=times)
    policy = Straggler(move_when_it_pays=wait)
    (one,) = (one for one in straggler(snapshot, policy, probed=False) if one.signal is not Signal.CLEAN)
    return one


def test_a_gang_waits_until_its_move_pays_which_is_mostly_right_after_a_checkpoint() -> None:
    first = found(suspect=False, checkpointed_at=None)
    assert first.signal is Signal.STRAGGLER_SUSPECTED, "its checkpoints are looked up as soon as it is a suspect"
    waiting = found(suspect=True, checkpointed_at=b.NOW - 1700)
    assert waiting.signal is Signal.STRAGGLER_SUSPECTED
    assert "it stays until its move pays" in waiting.summary
    assert found(suspect=True, checkpointed_at=b.NOW - 5).signal is Signal.STRAGGLER_CONFIRMED


def test_where_the_site_wants_it_the_gang_moves_at_once_and_says_what_both_cost() -> None:
    one = found(suspect=False, checkpointed_at=None, wait=False)
    assert one.signal is Signal.STRAGGLER_CONFIRMED
    assert "it costs 3.19 rank hours an hour" in one.summary
    assert "a move costs 300 s for the gang's start, and" in one.summary
    shown = one.evidence.shown()
    assert shown["rank_hours_lost_per_hour"] == pytest.approx(3.2, abs=0.1)
    assert shown["move_pays"] is False


def quarantined_as_slow(table: StepTable | None, clocks: int = 0, started_ago: float = 1000.0) -> Snapshot:
    """n2, on which ranks 2 and 3 of a gang of eight nodes were found slow a minute ago."""
    subject = Subject.of_node("n2")
    incident = OpenIncident(1, subject, "straggler.self_time", "straggler_confirmed", "…", b.NOW - 60)
    incident = replace(incident, accused_by=("straggler.self_time",))
    record = b.record("n2", NodeState.QUARANTINED, since=b.NOW - 60)
    node = b.node("n2", record=record, gpus=(b.gpu(0, clock_event_reasons=clocks),))
    job = b.job(nodes=[f"n{number}" for number in range(1, 9)])
    return b.snapshot(
        node,
        b.node("n9"),
        jobs=[job],
        tables={} if table is None else {job.key: table},
        incidents={subject: incident},
        spares=("n9",),
        started_at=b.NOW - started_ago,
    )


def judged(snapshot: Snapshot) -> tuple[bool, Course]:
    """Judges whether its gang has to leave, and the course of a move that has drained its node."""
    found = {one.signal for one in detect(snapshot, b.config())}
    return Signal.GANG_STRANDED in found, begun_move(snapshot, lambda seen: detect(seen, b.config()))


def begun_move(snapshot: Snapshot, found: Callable[[Snapshot], list[Finding]]) -> Course:
    (job,) = snapshot.jobs.values()
    fault = Finding(Signal.STRAGGLER_CONFIRMED, "straggler.self_time", "n2", b.NOW - 60, "slow")
    plan = plans.swap_plan(snapshot, job, [fault], job.slurm.nodes, ("n9",))
    drained = (RecoveryStep(0, plan.steps[0], StepStatus.DONE, 1),)
    begun = Recovery(9, plan, RecoveryStatus.RUNNING, b.NOW - 60, drained)
    seen = replace(snapshot, recoveries=(begun,))
    return course(begun, seen, found(seen))


def steps_of(ratio: float, count: int = 100) -> StepTable:
    """Rank 2 takes `ratio` times as long as the others."""
    times = [[1.0] * count for _ in range(16)]
    times[2] = [ratio] * count
    return b.step_table(times, nodes=slow_table().nodes)


@pytest.mark.parametrize("still_slow", [True, False])
def test_a_gang_that_trains_on_does_not_refute_that_its_node_is_slow(still_slow: bool) -> None:
    """Once the node is quarantined it is only suspected: its checkpoints are not looked at any more."""
    snapshot = quarantined_as_slow(slow_table(), 0x48) if still_slow else quarantined_as_slow(steps_of(1.0))
    stranded, its_course = judged(snapshot)
    assert stranded is still_slow
    ending = its_course.ending
    assert (ending is None) is still_slow
    assert ending is None or "trains on there" in ending.why


@pytest.mark.parametrize("rule", ["straggler.collectives", "straggler.transfers", "straggler.data_wait"])
def test_slow_collectives_do_not_hold_against_a_node_that_its_ranks_keep_up(rule: str) -> None:
    """They are no evidence that its ranks are slow, and its gang trains on."""
    snapshot = quarantined_as_slow(steps_of(1.0))
    suspected = Finding(Signal.STRAGGLER_SUSPECTED, rule, "n2", b.NOW, "slow")
    found = detect(snapshot, b.config(), {**DETECTORS, "collectives": lambda *_: [suspected]})
    assert suspected in found
    assert Signal.GANG_STRANDED not in {one.signal for one in found}
    ending = begun_move(snapshot, lambda seen: [*detect(seen, b.config()), suspected]).ending
    assert ending is not None
    assert "trains on there" in ending.why


@pytest.mark.parametrize("table", [steps_of(1.0, count=10), steps_of(1.15, count=20)], ids=["too few", "still slow"])
def test_a_node_is_slow_until_a_window_of_steps_shows_that_its_ranks_keep_up(table: StepTable) -> None:
    """So few steps convict no rank."""
    stranded, its_course = judged(quarantined_as_slow(table))
    assert stranded
    assert its_course == AS_PLANNED


@pytest.mark.parametrize("table", [None, steps_of(1.0, count=10)], ids=["no step", "too few"])
def test_after_a_start_no_gang_leaves_a_slow_node_before_it_is_looked_at_again(table: StepTable | None) -> None:
    """It was slow as an earlier process looked. If its pace stays unknown the gang is moved after a while."""
    stranded, its_course = judged(quarantined_as_slow(table, started_ago=1.0))
    assert not stranded
    assert its_course == Course(may_act=False)
    stranded, its_course = judged(quarantined_as_slow(table, started_ago=PACE_AGAIN_SECONDS + 1))
    assert stranded
    assert its_course.may_act


def test_after_a_start_a_gang_leaves_at_once_what_is_found_slow_again() -> None:
    stranded, its_course = judged(quarantined_as_slow(slow_table(), 0x48, started_ago=1.0))
    assert stranded
    assert its_course == AS_PLANNED
    ending = judged(quarantined_as_slow(steps_of(1.0), started_ago=1.0))[1].ending
    assert ending is not None, "it keeps up"


GANGS = 150
HORIZON_SECONDS = 12 * HOUR
LOOK_SECONDS = 60.0


def lost(lasts: float) -> tuple[float, float, float]:
    """Seconds that a slow rank costs a gang, the mean of many: where it moves at once, where it moves when that pays,
    and where it stays. Slowness lasts `lasts` seconds (mean); 5 to 50 % of the gang's time; starts of 20 to 600 s,
    checkpoints each 10 to 120 minutes. Two minutes pass until it is found.
    """
    rng, costs = np.random.default_rng(1), np.zeros(3)
    for _ in range(GANGS):
        share, start = 1 - 1 / rng.uniform(1.05, 2), rng.uniform(20, 600)
        gap = rng.uniform(600, 7200)
        phase, until = rng.uniform(0, gap), min(rng.exponential(lasts), HORIZON_SECONDS)
        moments = np.arange(120.0, until, LOOK_SECONDS)
        looks = [SlownessCost(8, share, share * at, start, (phase + at) % gap) for at in moments]
        first = looks[0] if looks else None
        moved = next((one for one in looks if one.pays), None)
        stays = share * until
        costs += (
            first.paid_seconds + (first.price_seconds or 0.0) if first is not None else stays,
            moved.paid_seconds + (moved.price_seconds or 0.0) if moved is not None else stays,
            stays,
        )
        if moved is not None:
            assert (moved.price_seconds or 0.0) <= moved.paid_seconds, "no more than twice what staying has cost"
    at_once, when_it_pays, stayed = costs / GANGS
    return float(at_once), float(when_it_pays), float(stayed)


@pytest.mark.parametrize("lasts", [600.0, HOUR, 24 * HOUR, 1000 * HOUR])
def test_on_generated_gangs_moving_when_it_pays_costs_least_however_long_slowness_lasts(lasts: float) -> None:
    at_once, when_it_pays, stayed = lost(lasts)
    print(
        f"lasts {lasts / HOUR:g} h: {at_once:.0f} s at once, {when_it_pays:.0f} s when it pays, {stayed:.0f} s staying"
    )
    assert when_it_pays < 0.75 * at_once
    assert when_it_pays < 1.1 * stayed
