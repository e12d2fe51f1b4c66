"""A node for which gangs waited twice leaves service, and no program alone can have that done to a healthy one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from tests.decide.test_decide import SPARES, decided
from tests.decide.test_suspicion import after_round
from understudy_controlplane.detect.hung_again import CHANCE, hung_again
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gpu import Replacement
from understudy_controlplane.fleet.hung import Hung
from understudy_controlplane.fleet.job import Attempt, JobKey
from understudy_controlplane.fleet.node import DrainKind, NodeState
from understudy_controlplane.fleet.recovery import HungNode
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.suspicion import Suspicion, SuspicionCause

HOUR = 3600.0


def hung(
    user: str, job: int, *ranks: int, ago: float = 0.0, node: str = "n2", attempt: int = 0, size: int = 64
) -> Hung:
    named = HungNode(node, ranks, user, size)
    return Hung(b.NOW - ago, JobKey(b.CLUSTER, job, 1), Attempt(attempt), named)


def seen(*hangs: Hung, history: dict[str, Any] | None = None, **record: Any) -> Snapshot:
    return b.snapshot(b.node("n2", record=b.record("n2", **record)), hung=tuple(hangs), **(history or {}))


def named(snapshot: Snapshot) -> list[str]:
    return [one.node for one in hung_again(snapshot)]


FIRST = hung("alice", 7, 3, ago=HOUR)
AGAIN = hung("bob", 9, 12)


def test_hangs_of_two_users_that_waited_for_other_ranks_there_name_it() -> None:
    (found,) = hung_again(seen(FIRST, AGAIN))
    assert (found.signal, found.rule, found.node, found.at) == (Signal.HUNG_AGAIN, "hang.again", "n2", b.NOW)
    assert (
        found.summary == "gangs that hung waited for it again: job 7 of alice for rank 3, and job 9 of bob for rank 12"
    )
    assert "'ranks': [12]" in str(found.evidence.shown()["hangs"])


def test_two_attempts_of_a_job_with_other_ranks_there_name_it() -> None:
    assert named(seen(FIRST, hung("alice", 7, 12, attempt=1))) == ["n2"]


@pytest.mark.parametrize(
    "others",
    [
        [],
        [hung("bob", 9, 3)],
        [hung("bob", 9, 3, 12)],
        [hung("alice", 9, 12)],
        [hung("alice", 7, 12)],
        [hung("alice", 7, 3, attempt=number) for number in range(1, 9)],
        [hung("bob", 9, 12, size=CHANCE - 1)],
    ],
    ids=["once", "same rank", "a rank the same", "same user", "same attempt", "again and again", "small gang"],
)
def test_what_a_program_may_cause_by_itself_names_none(others: list[Hung]) -> None:
    assert named(seen(FIRST, *others)) == []


@pytest.mark.parametrize(("size", "enough"), [(1, None), (4, 4), (8, 3), (49, 3), (50, 2)])
def test_the_smaller_the_gangs_the_more_hangs_have_to_name_it(size: int, enough: int | None) -> None:
    """A deadlock of any rank names a node of a gang by chance once in as many times as the gang has nodes."""
    hangs = [hung("alice", 7, rank, attempt=rank, ago=9 - rank, size=size) for rank in range(9)]
    found = next((count for count in range(1, len(hangs) + 1) if named(seen(*hangs[:count]))), None)
    assert found == enough


def test_hangs_that_follow_a_rank_or_come_everywhere_are_the_programs() -> None:
    """It may know on which nodes it is, and stop itself there."""
    follows = [hung("alice", 7, 3, node="n3", attempt=1), hung("alice", 7, 12, attempt=2)]
    assert named(seen(FIRST, *follows)) == []
    everywhere = [
        hung("alice", job, 2 * job + rank, node=name, ago=100 - job, attempt=rank)
        for job in range(20, 40)
        for rank, name in enumerate(("n1", "n2", "n3", "n4"))
    ]
    assert named(seen(*everywhere)) == []
    assert named(seen(*everywhere, AGAIN)) == [], "what such a user's hangs show counts with no other's either"
    assert named(seen(*everywhere, AGAIN, hung("carol", 11, 5))) == ["n2"]


def test_a_test_that_was_passed_between_does_not_clear_it_and_one_after_does() -> None:
    assert named(seen(FIRST, AGAIN, cleared_at=b.NOW - 60)) == ["n2"]
    assert named(seen(FIRST, replace(AGAIN, at=b.NOW - 90), cleared_at=b.NOW - 60)) == []
    assert named(seen(FIRST, replace(AGAIN, at=b.NOW - 90), hung("dave", 12, 40), cleared_at=b.NOW - 60)) == ["n2"]


def test_what_was_before_a_persons_word_a_repair_or_another_machine_counts_no_more() -> None:
    assert named(seen(FIRST, AGAIN, cleared_at=b.NOW - 60, vouched_at=b.NOW - 60)) == []
    repaired = {"quarantined_at": {"n2": (b.NOW - 100,)}}
    assert named(seen(FIRST, AGAIN, cleared_at=b.NOW - 60, history=repaired)) == []
    now = {"quarantined_at": {"n2": (b.NOW,)}}
    assert named(seen(FIRST, AGAIN, history=now)) == ["n2"], "else its fault would be gone before its drain"
    replaced = {"replacements": {"n2": Replacement(asked_at=b.NOW - 90, at=b.NOW - 60)}}
    assert named(seen(FIRST, AGAIN, history=replaced)) == []


def test_many_hangs_of_one_user_take_no_time() -> None:
    many = [hung("alice", 7, 3, attempt=number) for number in range(20_000)]
    assert named(seen(*many)) == []


@pytest.mark.parametrize("state", [NodeState.IN_SERVICE, NodeState.SUSPECT, NodeState.PROBATION])
def test_it_leaves_service(state: NodeState) -> None:
    suspicions = (Suspicion(SuspicionCause.HANG, b.NOW),) if state is NodeState.SUSPECT else ()
    rows, record = after_round(seen(FIRST, AGAIN, state=state, suspicions=suspicions))
    assert (rows, record.state, record.drain_kind) == ([133], NodeState.QUARANTINED, DrainKind.AT_JOB_END)


def test_a_hang_alone_leaves_it_in_service() -> None:
    hang = Finding(Signal.GANG_HUNG, "hang.shown", "n2", b.NOW, "no step ends", job=b.job().key)
    rows, record = after_round(replace(seen(FIRST), jobs={b.job().key: b.job()}), hang)
    assert (rows, record.state) == ([100], NodeState.SUSPECT)


@pytest.mark.parametrize("state", [NodeState.QUARANTINED, NodeState.OPERATOR_HOLD])
def test_a_job_that_works_on_a_node_that_has_left_service_for_it_stays(state: NodeState) -> None:
    since = b.NOW - 30
    kind = DrainKind.AT_JOB_END if state is NodeState.QUARANTINED else DrainKind.NOW
    record = b.record("n2", state=state, since=since, drain_kind=kind, drained_at=since)
    in_slurm = b.slurm_node("n2", "ALLOCATED", flags=["DRAIN"], reason="understudy: hang.again", user="root")
    node = b.node("n2", record=record, slurm=in_slurm)
    history = {"quarantined_at": {"n2": (since,)}} if state is NodeState.QUARANTINED else {}
    snapshot = b.snapshot(node, jobs=[b.job()], spares=SPARES, hung=(FIRST, AGAIN), **history)
    assert named(snapshot) == ["n2"]
    assert decided(snapshot) == []
