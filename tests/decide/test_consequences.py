"""What follows from a snapshot beside decisions: a part that fails on one bad row stops no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from tests.decide.test_peers import BURNT, ON, burn_in, rack
from understudy_controlplane.config import Mode
from understudy_controlplane.decide.approvals import APPROVAL_HOLDS_SECONDS
from understudy_controlplane.decide.failures import Failures, failed_decisions
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.verdicts_and_orders import consequences
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.finding import failed_detectors, unjudged_nodes
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import PagePlan, QuarantinePlan, Recovery, RecoveryStatus
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.launcher import LauncherPhase, LauncherState

CONFIG = b.config(validation=ON)
JOBS = [b.job(job_id=7, nodes=("n5", "n6")), b.job(job_id=8, nodes=("n7", "n8"))]
APPROVED_AT = b.NOW - APPROVAL_HOLDS_SECONDS
NOT_A_TIME: Any = "yesterday"
NO_TEXT: Any = None


def gang(job: Job) -> Gang:
    seats, spares = job.slurm.nodes[:1], job.slurm.nodes[1:]
    return Gang(LauncherState(job.key.job_id, 0, 0, LauncherPhase.RUNNING, seats, spares), seats[0], b.NOW)


def fleet(approved_at: float = APPROVED_AT, burnt_at: float | None = None, drain_reason: str = "") -> Snapshot:
    """Something follows for each part."""
    burning = burn_in("n1", BURNT)
    if burnt_at is not None:
        burning = replace(burning, steps=(replace(burning.steps[0], done_at=burnt_at), *burning.steps[1:]))
    seen = rack(burning)
    left = b.record("n6", NodeState.QUARANTINED, drained_at=b.NOW - 5, drain_reason=drain_reason)
    undrained = b.node("n12", NodeState.QUARANTINED)
    plan = QuarantinePlan(steps=(), nodes=("n9",), drain_reason="")
    approved = Recovery(7, plan, RecoveryStatus.APPROVED, b.NOW - 900, (), approved_at=approved_at)
    return b.changed(
        seen,
        nodes={**seen.nodes, "n6": b.node("n6", record=left), "n12": undrained},
        jobs={one.key: one for one in JOBS},
        gangs={one.key: gang(one) for one in JOBS},
        proposals=(approved,),
        mode=Mode.APPROVE,
    )


def bad_slurm(seen: Snapshot) -> Snapshot:
    class Broken:
        base_state = "IDLE"
        flags = frozenset[str]()

        @property
        def draining(self) -> bool:
            raise ValueError("a state that no version of Slurm has")

    broken: Any = Broken()
    return replace(seen, nodes={**seen.nodes, "n12": replace(seen.nodes["n12"], slurm=broken)})


@pytest.mark.parametrize(
    ("seen", "part", "unjudged"),
    [
        (bad_slurm(fleet()), "unfit_nodes", set()),
        (fleet(drain_reason=NO_TEXT), "launcher_orders", {"n5", "n6"}),
        (fleet(burnt_at=NOT_A_TIME), "turns", set()),
        (fleet(approved_at=NOT_A_TIME), "endings", set()),
    ],
)
def test_a_part_that_fails_stops_no_other_and_a_person_is_notified(
    seen: Snapshot, part: str, unjudged: set[str]
) -> None:
    whole = consequences(fleet(), CONFIG, usual := Failures(b.NOW))
    assert whole.unfit
    assert whole.orders.keys() == {7, 8}
    assert whole.turns.keys() == {"n1"}
    assert len(whole.endings) == 1
    assert usual.findings == []

    found = consequences(seen, CONFIG, failures := Failures(b.NOW))
    assert found.unfit == (None if part == "unfit_nodes" else whole.unfit)
    assert found.orders == {**whole.orders, **({7: None} if part == "launcher_orders" else {})}
    assert found.turns == ({} if part == "turns" else whole.turns)
    assert found.endings == ([] if part == "endings" else whole.endings)

    decisions = decide(b.snapshot(), [], CONFIG, failures)
    failed = failed_decisions(decisions)
    assert [one.rule for one in failed] == [f"decision.{part}"]
    assert failed_detectors(failed) == (), "nodes return meanwhile"
    assert unjudged_nodes(failed).keys() == unjudged
    (plan,) = (b.plan_as(PagePlan, one.plan) for one in decisions if one.action is Action.PAGE)
    assert plan.about == (f"decision {part}",)
