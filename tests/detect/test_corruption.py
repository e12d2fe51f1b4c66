"""Who is the first to show NaN, and when that says something of the node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.job import Attempt, FirstNan, JobKey, WrongResult
from understudy_controlplane.fleet.node import NodeRecord, NodeState, NodeView
from understudy_controlplane.fleet.suspicion import SuspicionCause


def nan(job_id: int = 7, attempt: int = 0, **changes: Any) -> FirstNan:
    values = {"step": 100, "nodes": ("n3",), "rank": 2, "received_at": b.NOW - 60, **changes}
    return FirstNan(JobKey(b.CLUSTER, job_id, 500), Attempt(attempt), **values)


def suspects(*nans: FirstNan, **snapshot: Any) -> set[str]:
    found = detect(b.snapshot(*snapshot.pop("nodes", ()), first_nans=nans), b.config())
    return {finding.node for finding in found if finding.signal is Signal.CORRUPTION_SUSPECTED}


def test_the_first_to_show_nan_in_two_attempts_is_suspect() -> None:
    assert suspects(nan(), nan(8)) == {"n3"}
    assert suspects(nan(), nan(attempt=1, step=140)) == {"n3"}


@pytest.mark.parametrize(
    "nans",
    [
        [nan()],
        [nan(), nan(8, nodes=("n4",))],
        [nan(nodes=("n3", "n4")), nan(8, nodes=("n3", "n4"))],
        [nan(of_several=False), nan(8, of_several=False)],
    ],
    ids=["once", "two nodes once each", "on many ranks at once", "in gangs of one node"],
)
def test_nan_once_or_on_many_condemns_no_node(nans: list[FirstNan]) -> None:
    assert suspects(*nans) == set()


def test_the_same_rank_at_the_same_step_again_is_the_programs_fault() -> None:
    assert suspects(nan(), nan(attempt=1), nan(attempt=2)) == set()


def test_what_was_before_the_node_was_cleared_does_not_count() -> None:
    cleared = b.node("n3", record=NodeRecord("n3", cleared_at=b.NOW - 30, agent_seen_at=b.NOW - 9))
    assert suspects(nan(), nan(8), nodes=[cleared]) == set()


def test_the_node_is_a_suspect_that_goes_on_working_and_a_self_check_is_advised() -> None:
    snapshot = b.snapshot(first_nans=(nan(), nan(8)))
    (decision,) = decide(snapshot, detect(snapshot, b.config()), b.config())
    assert (decision.row, decision.subject, decision.to_state, decision.plan) == (150, "n3", NodeState.SUSPECT, None)
    assert "understudy selfcheck" in decision.reason


def test_keeping_up_does_not_clear_it() -> None:
    suspect = b.record("n3", NodeState.SUSPECT, suspicions=b.suspected(SuspicionCause.CORRUPTION), agent_seen_at=b.NOW)
    snapshot = b.snapshot(b.node("n3", record=suspect), first_nans=(nan(), nan(8)))
    assert decide(snapshot, detect(snapshot, b.config()), b.config()) == []


def wrong(node: str = "n3", job_id: int = 7, step: int = 3000, at: float = b.NOW - 60) -> WrongResult:
    return WrongResult(JobKey(b.CLUSTER, job_id, 500), node, 2, step, at)


def computed_wrong(*results: WrongResult, nodes: Sequence[NodeView] = ()) -> set[str]:
    found = detect(b.snapshot(*nodes, wrong_results=results), b.config())
    return {finding.node for finding in found if finding.signal is Signal.CORRUPTION_SUSPECTED}


def test_a_node_whose_step_gave_another_result_when_computed_again_is_a_suspect() -> None:
    assert computed_wrong(wrong()) == {"n3"}
    assert computed_wrong(wrong(), wrong("n4", job_id=8)) == {"n3", "n4"}
    snapshot = b.snapshot(wrong_results=(wrong(), wrong(step=4000, at=b.NOW - 5)))
    (decision,) = decide(snapshot, detect(snapshot, b.config()), b.config())
    assert (decision.row, decision.to_state, decision.plan) == (150, NodeState.SUSPECT, None)
    assert "step 4000 of job 7 gave another result when rank 2 computed it again there" in decision.reason
    assert "and 1 other steps did" in decision.reason


def test_a_job_that_gives_other_results_on_several_nodes_is_not_deterministic() -> None:
    assert computed_wrong(wrong(), wrong("n4")) == set()


def test_a_result_from_before_the_node_was_cleared_does_not_count() -> None:
    cleared = b.node("n3", record=NodeRecord("n3", cleared_at=b.NOW - 30, agent_seen_at=b.NOW - 9))
    assert computed_wrong(wrong(), nodes=[cleared]) == set()
