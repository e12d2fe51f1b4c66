"""Slurm's own rules: which job it would end for a gang, and which first."""

from __future__ import annotations

from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.fleet.preemption import Partition, PreemptionRules, PreemptType, Qos
from understudy_controlplane.fleet.slurm import HETEROGENEOUS_JOB, SlurmJob

REQUEUE, CANCEL = frozenset({"REQUEUE"}), frozenset({"CANCEL"})
NO_TIER = "is in low, whose PriorityTier is not below that of train"


def other(**changes: Any) -> SlurmJob:
    return b.slurm_job(8, ("n5",), **{"partition": "low", "qos": "low", "preempt_at": int(b.NOW) - 60, **changes})


def gang(**changes: Any) -> SlurmJob:
    return b.slurm_job(7, **{"qos": "high", **changes})


TRAIN, LOW = Partition(2, REQUEUE), Partition(1, REQUEUE)
HIGH_QOS, LOW_QOS = Qos(10, frozenset({"low"})), Qos(1, frozenset())


def by_partition(train: Partition = TRAIN, low: Partition = LOW, **values: Any) -> PreemptionRules:
    return PreemptionRules(PreemptType.PARTITION, REQUEUE, {"train": train, "low": low}, **values)


def by_qos(high: Qos = HIGH_QOS, low: Qos = LOW_QOS) -> PreemptionRules:
    return PreemptionRules(PreemptType.QOS, REQUEUE, {"train": LOW, "low": LOW}, {"high": high, "low": low})


def why_not(rules: PreemptionRules, of: SlurmJob | None = None, by: SlurmJob | None = None) -> str:
    return rules.why_not(by or gang(), of or other(), b.NOW).removeprefix("job 8 ")


def test_a_job_of_a_lower_tier_is_preempted_as_its_partition_says() -> None:
    assert why_not(by_partition()) == ""
    assert by_partition().end_of(other()) == "requeued"
    assert by_partition(low=Partition(1, CANCEL)).end_of(other()) == "cancelled"


@pytest.mark.parametrize("tier", [2, 3])
def test_a_job_of_the_same_or_a_higher_tier_is_not(tier: int) -> None:
    assert why_not(by_partition(low=Partition(tier, REQUEUE))) == NO_TIER


@pytest.mark.parametrize(
    ("mode", "words"), [("OFF", "the PreemptMode of job 8 is OFF"), ("SUSPEND", "the PreemptMode of job 8 is SUSPEND")]
)
def test_a_job_that_keeps_its_gpus_is_not(mode: str, words: str) -> None:
    assert why_not(by_partition(low=Partition(1, frozenset({mode})))) == words


@pytest.mark.parametrize("at", [None, int(b.NOW) + 1])
def test_a_job_that_is_exempt_is_not(at: int | None) -> None:
    assert why_not(by_partition(), other(preempt_at=at)) == "is exempt (PreemptExemptTime)"


def test_a_job_above_the_exempt_priority_is_not() -> None:
    assert why_not(by_partition(exempt_above=100), other(priority=100)) == ""
    assert "min_exempt_priority" in why_not(by_partition(exempt_above=100), other(priority=101))


def test_with_priority_only_jobs_of_a_lower_one_are() -> None:
    rules = by_partition(train=Partition(2, frozenset({"PRIORITY", "REQUEUE"})))
    assert why_not(rules, other(priority=5), gang(priority=6)) == ""
    assert why_not(rules, other(priority=6), gang(priority=6)) == "has no lower priority"


@pytest.mark.parametrize("changes", [{"state": "SUSPENDED"}, {"state": "COMPLETING"}, {"part_of": HETEROGENEOUS_JOB}])
def test_only_a_running_job_of_its_own_is(changes: dict[str, str]) -> None:
    assert why_not(by_partition(), other(**changes)) == f"is {next(iter(changes.values()))}"


def test_in_doubt_nothing_is() -> None:
    assert "exclusive, or not known" in why_not(by_partition(low=Partition(1, REQUEUE, exclusive=True)))
    assert "not known" in why_not(by_partition(), other(partition="elsewhere"))
    assert why_not(PreemptionRules(None, unknown="not foreseen")) == "not foreseen"
    assert "no known QOS" in why_not(by_qos(), by=gang(qos=""))
    assert "not known" in why_not(by_qos(), other(qos="lost"))


def test_by_qos_a_job_is_preempted_whose_qos_the_gangs_one_names() -> None:
    assert why_not(by_qos()) == ""
    assert why_not(by_qos(high=Qos(10, frozenset()))) == "has QOS low, which high does not preempt"
    assert by_qos(low=Qos(1, frozenset(), CANCEL)).end_of(other()) == "cancelled"


def test_within_one_qos_only_where_it_allows_that_and_by_priority() -> None:
    inside = {"of": other(qos="high", priority=1), "by": gang(priority=2)}
    assert why_not(by_qos(), **inside) == "has the same QOS high"
    within = by_qos(high=Qos(10, frozenset(), frozenset({"WITHIN"})))
    assert why_not(within, **inside) == ""
    assert why_not(within, other(qos="high", priority=2), gang(priority=2)) == "has no lower priority"


def test_lower_ranks_come_first_then_smaller_jobs_then_lower_priorities() -> None:
    rules = by_partition(low=Partition(0, REQUEUE))
    small, large = other(priority=9), other(node_count=4, priority=1)
    assert sorted([gang(node_count=1), large, small], key=rules.order) == [small, large, gang(node_count=1)]
    assert rules.order(other(priority=3)) < rules.order(other(priority=4))
    assert by_qos().order(other()) < by_qos().order(gang())


def test_or_the_youngest_where_slurm_does_so() -> None:
    rules = by_partition(youngest_first=True)
    old, young = other(start_at=100, node_count=1), other(start_at=200, node_count=9)
    assert min(old, young, key=rules.order) == young
