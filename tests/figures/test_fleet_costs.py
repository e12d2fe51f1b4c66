"""What a span cost, from a small history."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy_controlplane.figures.fleet_costs import History, fleet_costs
from understudy_controlplane.fleet.history import (
    AttemptProgress,
    Interruption,
    JobHistory,
    Loss,
    Mark,
    PoolChange,
    Span,
    Transition,
)
from understudy_controlplane.fleet.interruption_cause import GPU, PEOPLE
from understudy_controlplane.fleet.node import NodeState

HOUR = 3600.0
SPAN = Span(0.0, 240 * HOUR)
ATTEMPTS = (
    AttemptProgress(0.0, 0, 2.0 * HOUR, 97, 99 * HOUR),  # 1 h until the first of 98 steps of an hour begins
    AttemptProgress(110 * HOUR, 98, 112 * HOUR, 137, 151 * HOUR),
)
MARKS = (Mark(99 * HOUR, Loss.DETECT), Mark(100 * HOUR, Loss.SWAP), Mark(110 * HOUR, Loss.START))
JOB = JobHistory(
    *(1, 4711, "alice", "physics", "train", "llm", "RUNNING"),
    nodes=4,
    gpus=40,
    spare_gpus=8,
    attempts=ATTEMPTS,
    marks=MARKS,
    allocations=((0.0, 99 * HOUR), (110 * HOUR, None)),
    interruptions=(Interruption(99 * HOUR, GPU), Interruption(105 * HOUR, PEOPLE), Interruption(241 * HOUR, GPU)),
)
STILL = JobHistory(2, 4712, "bob", "", "train", "x", "FAILED", 1, 8, interruptions=(Interruption(HOUR, GPU),))
OLD = JobHistory(3, 4713, "bob", "", "train", "x", "COMPLETED", 1, 8)
S = NodeState


def history(**changes: object) -> History:
    nodes = {f"n{number}": (S.IN_SERVICE, 0.0) for number in range(100)}
    return History(nodes=nodes, gpus=800, jobs=(JOB, STILL, OLD), **changes)  # type: ignore[arg-type]


def test_hours_are_gpu_hours_and_spares_of_its_own_are_held() -> None:
    costs = fleet_costs(history(), SPAN, 2.5)
    job, still = costs.jobs
    assert (job.job_id, job.interruptions, still.job_id, still.interruptions) == (4711, 2, 4712, 1)
    assert job.gpu_hours == pytest.approx(151 * 40)
    assert job.productive_gpu_hours == pytest.approx(138 * 32)
    expected = {"start": (1 + 1) * 32, "detect": 32, "swap": 10 * 32}
    assert {name: value for name, value in job.lost_gpu_hours.items() if value > 1e-9} == pytest.approx(expected)
    assert job.ettr == pytest.approx(138 / 151)
    assert job.goodput == pytest.approx(138 * 32 / (151 * 40))
    assert job.lost_money == pytest.approx(2.5 * 13 * 32)
    assert (still.ettr, still.goodput, still.gpu_hours) == (None, None, 0.0)
    assert (costs.ettr, costs.goodput, costs.lost_money) == pytest.approx((job.ettr, job.goodput, job.lost_money))


def test_in_the_queue_a_job_holds_no_gpus() -> None:
    waited = replace(JOB, marks=(Mark(99 * HOUR, Loss.QUEUE), Mark(110 * HOUR, Loss.START)))
    (job, _) = fleet_costs(replace(history(), jobs=(waited, STILL)), SPAN, 1.0).jobs
    assert (job.queue_hours, job.gpu_hours) == pytest.approx((11, 140 * 40))
    assert job.ettr == pytest.approx(138 / 151)
    assert sum(job.lost_gpu_hours.values()) == pytest.approx(2 * 32)


def test_interruptions_that_were_planned_count_apart() -> None:
    found = fleet_costs(history(incidents={"xid.79": 3}), SPAN, None).interrupted
    assert (found.unexpected, found.planned, found.mtbf_hours) == (2, 1, 120.0)
    assert found.gpu_days_per_interruption == pytest.approx((99 + 130) * 40 / 24 / 2)
    assert found.per_1000_node_days == pytest.approx(1000 * 2 / ((99 + 130) * 4 / 24))
    assert [(row.component, row.interruptions, row.share, row.incidents) for row in found.causes] == [
        ("Faulty GPU", 2, 1.0, 3),
        ("Maintenance by people", 1, 0.0, 0),
    ]


def test_each_cause_has_the_hours_and_the_money_that_its_interruptions_lost() -> None:
    """A GPU ended the first attempt at hour 99; people ended one that had made no step, at hour 105."""
    costs = fleet_costs(history(), SPAN, 2.5)
    lost = {row.component: (row.lost_gpu_hours, row.lost_money) for row in costs.interrupted.causes}
    by_gpu, by_people = (1 + 10) * 32, 1 * 32  # the swap began before people interrupted it; the start after it
    assert lost == {
        "Faulty GPU": pytest.approx((by_gpu, by_gpu * 2.5)),
        "Maintenance by people": pytest.approx((by_people, by_people * 2.5)),
    }
    first_start = 32
    assert by_gpu + by_people + first_start == pytest.approx(sum(costs.lost_gpu_hours.values()))


def test_owners_have_the_sums_of_their_jobs_and_the_spares_that_served_them() -> None:
    pool = (
        PoolChange(99 * HOUR, "n7", False, 1),
        PoolChange(9 * HOUR, "n8", True),
        PoolChange(19 * HOUR, "n8", False, 2),
    )
    costs = fleet_costs(history(pool=pool, spares=("n9",)), SPAN, 2.0)
    users = {row.name: row for row in costs.users}
    assert [(row.name, row.jobs) for row in costs.users] == [("alice", 1), ("bob", 1)]
    assert (users["alice"].spares_taken, users["alice"].spare_gpu_hours) == (1, 99 * 8)
    assert (users["bob"].spares_taken, users["bob"].spare_gpu_hours) == (1, 10 * 8)
    assert (users["alice"].spare_money, users["bob"].spare_money) == (99 * 8 * 2, 10 * 8 * 2)
    assert [row.name for row in costs.accounts] == ["physics", ""]
    assert [(row.name, row.jobs, row.interruptions, row.spares_taken) for row in costs.partitions] == [
        ("train", 2, 3, 2)
    ]
    spares = costs.spares
    assert (spares.taken, spares.taken_in_a_day) == (2, 1)
    assert (spares.idle_gpu_hours, spares.served_gpu_hours) == pytest.approx(((99 + 10 + 240) * 8, (99 + 10) * 8))
    assert spares.idle_money == pytest.approx(349 * 8 * 2)


def test_spares_needed_come_from_what_left_service() -> None:
    out = [Transition(10 * HOUR, f"n{number}", S.IN_SERVICE, S.QUARANTINED, "xid.79", number) for number in range(5)]
    back = [Transition(34 * HOUR, f"n{number}", S.QUARANTINED, S.IN_SERVICE) for number in range(5)]
    costs = fleet_costs(history(transitions=[*out, *back]), SPAN, None)
    assert (costs.spares.needed_binomial, costs.spares.needed_poisson, costs.spares.needed_by_history) == (3, 3, 5)
    assert costs.down_share == pytest.approx({"0": 0.9, "5": 0.1})
    assert (costs.outages.count, costs.outages.repair_mean_seconds) == (5, 24 * HOUR)
    assert [(row.rule, row.quarantines) for row in costs.alarms] == [("xid.79", 5)]


def test_nodes_that_fail_repeatedly_are_named() -> None:
    times = [(at, S.IN_SERVICE, S.QUARANTINED) for at in (1.0, 20.0)] + [(10.0, S.QUARANTINED, S.IN_SERVICE)]
    gone = [Transition(at, "n3", before, after) for at, before, after in times]
    costs = fleet_costs(history(transitions=gone, lemons={"n1": 2.0, "n2": 5.0}), SPAN, None)
    assert [(one.node, one.outages) for one in costs.repeaters] == [("n3", 2)]
    assert [(one.node, one.score) for one in costs.lemons] == [("n2", 5.0), ("n1", 2.0)]


def test_of_nothing_nothing_is_claimed() -> None:
    for span in (SPAN, Span(5.0, 5.0)):
        costs = fleet_costs(History({}, 0), span, 2.5)
        assert (costs.ettr, costs.goodput, costs.jobs, costs.interrupted.mtbf_hours) == (None, None, [], None)
        assert costs.spares.needed_binomial == costs.spares.needed_poisson == costs.spares.needed_by_history == 0


def test_the_run_of_llama_3_gives_its_published_rates() -> None:
    """54 days on 2,048 nodes, 419 interruptions: one in 3.093 h, 3.789 in 1000 node-days, one in 2,111.5 GPU-days."""
    span, every = Span(0.0, 54 * 24 * HOUR), 54 * 24 * HOUR / 419
    run = JobHistory(
        *(1, 1, "meta", "", "train", "405b", "RUNNING"),
        nodes=2048,
        gpus=16_384,
        interruptions=tuple(Interruption(number * every, GPU) for number in range(419)),
        allocations=((0.0, None),),
    )
    found = fleet_costs(History(nodes={}, gpus=16_384, jobs=(run,)), span, 3.0).interrupted
    assert (found.mtbf_hours, found.per_1000_node_days) == pytest.approx((3.093, 3.789), rel=1e-3)
    assert found.gpu_days_per_interruption == pytest.approx(2111.5, rel=1e-4)
