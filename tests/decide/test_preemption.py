"""Slurm preempts a job for the gang if there is no spare and the site wants that: by its own rules, if unsure none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.spare_outlook import outlook
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Because, Decision
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.preemption import Partition, PreemptionRules, PreemptType
from understudy_controlplane.fleet.recovery import PoolSwapPlan
from understudy_controlplane.fleet.slurm import SlurmReservation
from understudy_controlplane.fleet.snapshot import Snapshot

CONFIG = b.config(spares={"no_spare": "preempt"}, guards={"gang_moves_min": 5, "quarantined_nodes_min": 5})
REQUEUE = frozenset({"REQUEUE"})
RULES = PreemptionRules(
    PreemptType.PARTITION,
    REQUEUE,
    {"train": Partition(2, REQUEUE), "low": Partition(1, REQUEUE), "idle": Partition(0, REQUEUE)},
)
PARTITIONS = ("train", "low", "idle")


def used(name: str, **values: Any) -> NodeView:
    slurm = replace(b.slurm_node(name, "ALLOCATED"), partitions=PARTITIONS)
    return b.node(name, slurm=slurm, **values)


def low(job_id: int, *nodes: str, **changes: Any) -> Job:
    values = {"partition": "low", "preempt_at": int(b.NOW) - 60, "comment": "", **changes}
    return b.job(managed=values.pop("managed", False), job_id=job_id, nodes=nodes, submit_at=job_id, **values)


def fleet(*others: Job, changed: Sequence[NodeView] = (), **values: Any) -> Snapshot:
    """A gang on n1 to n4, of which n1 has failed; jobs of lower partitions on the other nodes."""
    nodes = [used(f"n{i}") for i in range(2, 9)]
    failed = used("n1", events=(b.xid_event("n1", 79),))
    seen = b.snapshot(failed, *nodes, jobs=[b.job(), *others], **({"preemption": RULES} | values))
    return replace(seen, nodes={**seen.nodes, **{one.name: one for one in changed}})


FULL = (low(20, "n5", "n6"), low(21, "n7"), low(22, "n8"))


def moved(snapshot: Snapshot, config: Any = CONFIG) -> tuple[PoolSwapPlan | None, Decision]:
    decisions = {one.subject: one for one in decide(snapshot, detect(snapshot, config), config)}
    plan = decisions["n1"].plan
    return plan if isinstance(plan, PoolSwapPlan) else None, decisions["n1"]


def test_the_first_job_in_slurms_order_makes_room_and_the_decision_names_it() -> None:
    plan, decision = moved(fleet(*FULL))
    assert plan is not None
    assert (plan.spares, plan.preempted, plan.seats) == (("n7",), (21,), ("n2", "n3", "n4", "n7"))
    assert "there is no spare, and Slurm preempts job 21 (requeued) for it" in decision.reason
    assert decision.evidence.shown()["preempted"] == [21]


def test_of_equal_jobs_the_one_with_the_lowest_priority() -> None:
    plan, _ = moved(fleet(low(20, "n5", priority=9), low(21, "n6", priority=3), low(22, "n7", "n8", priority=1)))
    assert plan is not None and plan.preempted == (21,)


def test_a_lower_partition_comes_before_a_smaller_job() -> None:
    plan, _ = moved(fleet(low(20, "n5"), low(21, "n6", "n7", "n8", partition="idle")))
    assert plan is not None and (plan.spares, plan.preempted) == (("n6",), (21,))


def test_spares_and_idle_nodes_come_first() -> None:
    idle = b.node("n8", slurm=replace(b.slurm_node("n8"), partitions=PARTITIONS))
    plan, _ = moved(fleet(*FULL[:2], changed=[idle]))
    assert plan is not None and (plan.spares, plan.preempted) == (("n8",), ())


def test_two_nodes_of_one_job_end_it_once() -> None:
    failed = used("n2", events=(b.xid_event("n2", 79),))
    plan, _ = moved(fleet(low(20, "n5", "n6", partition="idle"), *FULL[1:], changed=[failed]))
    assert plan is not None and (set(plan.spares), plan.preempted) == ({"n5", "n6"}, (20,))


def test_two_gangs_do_not_get_the_same_node() -> None:
    other = b.job(job_id=9, nodes=["n5"], submit_at=9)
    failed = used("n5", events=(b.xid_event("n5", 79),))
    seen = fleet(other, low(21, "n6"), low(22, "n7", "n8"), changed=[failed])
    decisions = {one.subject: one for one in decide(seen, detect(seen, CONFIG), CONFIG)}
    plans = [b.plan_as(PoolSwapPlan, decisions[name].plan) for name in ("n1", "n5")]
    assert {plan.preempted for plan in plans} == {(21,), (22,)}


@pytest.mark.parametrize("policy", ["idle", "wait", "page"])
def test_nothing_is_preempted_where_the_site_does_not_want_it(policy: str) -> None:
    config = b.config(spares={"no_spare": policy}, guards={"quarantined_nodes_min": 5})
    plan, decision = moved(fleet(*FULL), config)
    assert plan is None and decision.because is Because.NO_SPARE
    assert "preempt" not in decision.reason


@pytest.mark.parametrize(
    ("others", "values", "words"),
    [
        ((low(20, "n5", partition="train"),), {}, "PriorityTier is not below"),
        ((low(20, "n5", preempt_at=int(b.NOW) + 9),), {}, "n5: job 20 is exempt (PreemptExemptTime)"),
        (
            (low(20, "n5", preempt_at=int(b.NOW)),),
            {"ahead_seconds": -30.0},
            "n5: job 20 is exempt (PreemptExemptTime)",
        ),
        ((low(20, "n5"),), {"preemption": None}, "Slurm's rules of preemption are not read yet"),
        ((low(20, "n5"),), {"preemption": PreemptionRules(None)}, "Slurm preempts no job"),
        ((low(20, "n5"), low(21, "n5", preempt_at=None)), {}, "job 21 is exempt"),
    ],
)
def test_in_doubt_no_gang_is_moved_and_the_decision_says_why(
    others: tuple[Job, ...], values: dict[str, Any], words: str
) -> None:
    away = [b.node(f"n{i}", slurm=b.slurm_node(f"n{i}", "ALLOCATED")) for i in range(6, 9)]
    plan, decision = moved(fleet(*others, changed=away, **values))
    assert plan is None and decision.because is Because.NO_SPARE
    assert "it stays until there is one" in decision.reason
    assert words in decision.reason


def test_nodes_that_are_ill_or_reserved_are_left_alone() -> None:
    suspect = used("n7", state=NodeState.SUSPECT)
    reserved = {"bobs": SlurmReservation("bobs", ("n8",), ("bob",), frozenset())}
    plan, _ = moved(fleet(*FULL, changed=[suspect], reservations=reserved))
    assert plan is not None and plan.preempted == (20,)


def test_a_gang_that_loses_a_node_itself_or_is_paused_is_not_preempted() -> None:
    mine = low(21, "n7", managed=True)
    assert moved(fleet(FULL[0], mine, FULL[2]))[0].preempted == (21,)  # type: ignore[union-attr]
    paused = fleet(FULL[0], mine, FULL[2], paused_jobs={mine.key: "by alice"})
    assert moved(paused)[0].preempted == (22,)  # type: ignore[union-attr]
    failed = used("n6", state=NodeState.QUARANTINED)
    lost = low(21, "n6", "n7", managed=True)
    assert moved(fleet(low(20, "n5"), lost, FULL[2], changed=[failed]))[0].preempted != (21,)  # type: ignore[union-attr]


def test_the_what_if_names_the_job_that_would_be_preempted() -> None:
    seen = replace(fleet(*FULL), nodes={f"n{i}": used(f"n{i}") for i in range(1, 9)})
    found = outlook(seen, next(iter(seen.jobs.values())), "n2", CONFIG)
    assert found.taken == ("n7",)
    assert "Slurm preempts job 21 (requeued) for it" in found.words
