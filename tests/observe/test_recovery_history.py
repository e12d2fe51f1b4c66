"""Recoveries are read once, and again while they run; they are forgotten after a week."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from tests import builders as b
from understudy_controlplane.fleet.hung import Hung
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    HungNode,
    ManualRepairPlan,
    Plan,
    PoolSwapPlan,
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    ReleaseJobPlan,
    Rung,
    StepName,
    StepStatus,
)
from understudy_controlplane.observe.recovery_history import RecoveryHistory
from understudy_wire.places import Place

KEY = b.job().key
WEEK_SECONDS = 7 * 24 * 3600.0
HUNG = PoolSwapPlan(
    steps=(), drain_reason="", job=KEY, submit_at=0, restart_count=0, user="", seats=(), last_step=41, hang="no step"
)
ORDERED = AllocationSwapPlan(
    steps=(), drain_reason="", job=KEY, submit_at=0, restart_count=0, launch=2, time_limit_minutes=600
)
LATER = AllocationSwapPlan(
    steps=(), drain_reason="", job=KEY, submit_at=0, restart_count=0, launch=-1, time_limit_minutes=630
)
RELEASED = ReleaseJobPlan(steps=(), job=KEY, submit_at=0, restart_count=0)
BY_A_PERSON = ManualRepairPlan(steps=(), nodes=("n2",), label="n2-1", drain_reason="")


@dataclass
class Recoveries:
    rows: list[Recovery] = field(default_factory=list)
    read: int = 0

    def add(self, at: float, plan: Plan, status: RecoveryStatus = RecoveryStatus.SUCCEEDED) -> None:
        self.rows.append(Recovery(len(self.rows) + 1, plan, status, at, ()))

    def end(self, recovery: int, status: RecoveryStatus) -> None:
        self.rows[recovery - 1] = replace(self.rows[recovery - 1], status=status)

    def changed(self, after: int, running: Sequence[int], since: float) -> list[Recovery]:
        found = [
            one
            for one in self.rows
            if one.id in running
            or (one.id > after and (one.decided_at >= since or one.status is RecoveryStatus.RUNNING))
        ]
        self.read += len(found)
        return found


def test_one_that_has_ended_is_read_once() -> None:
    recoveries = Recoveries()
    history = RecoveryHistory(recoveries)
    recoveries.add(b.NOW, HUNG)
    for _ in range(3):
        history.refresh(b.NOW)
    recoveries.add(b.NOW + 1, ORDERED)
    history.refresh(b.NOW)
    assert recoveries.read == 2
    assert history.swaps_since(b.NOW) == ((b.NOW, KEY), (b.NOW + 1, KEY))
    assert history.swaps_since(b.NOW + 1) == ((b.NOW + 1, KEY),)


def test_what_the_control_plane_has_excluded_for_a_job_is_known_with_the_last_time_it_was_decided() -> None:
    recoveries = Recoveries()
    history = RecoveryHistory(recoveries)
    for at, names, attempts in ((b.NOW, ("n2", "n3"), 1), (b.NOW + 9, ("n3",), 2), (b.NOW + 20, ("n2", "n4"), 0)):
        recoveries.add(at, msgspec.structs.replace(HUNG, excluded=names))
        step = RecoveryStep(0, StepName.EXCLUDE_NODES, StepStatus.DONE, attempts)
        recoveries.rows[-1] = replace(recoveries.rows[-1], steps=(step,))
    history.refresh(b.NOW)
    assert history.exclusions_since(b.NOW) == {KEY: {"n2": b.NOW, "n3": b.NOW + 9}}
    assert history.exclusions_since(b.NOW + 1) == {KEY: {"n3": b.NOW + 9}}


def test_one_that_runs_is_read_until_it_ends() -> None:
    recoveries = Recoveries()
    history = RecoveryHistory(recoveries)
    recoveries.add(b.NOW, ORDERED, RecoveryStatus.RUNNING)
    recoveries.add(b.NOW, HUNG)
    history.refresh(b.NOW)
    assert [one.id for one in history.running()] == [1]
    recoveries.end(1, RecoveryStatus.FAILED)
    history.refresh(b.NOW)
    assert history.running() == ()
    assert history.disobeyed_since(b.NOW) == {(KEY, 0)}
    history.refresh(b.NOW)
    assert recoveries.read == 3


def test_one_that_runs_longer_than_a_week_stays_and_goes_when_it_ends() -> None:
    recoveries = Recoveries()
    recoveries.add(b.NOW, BY_A_PERSON, RecoveryStatus.RUNNING)
    later = b.NOW + WEEK_SECONDS + 1
    history = RecoveryHistory(recoveries)
    history.refresh(later)
    assert [one.id for one in history.running()] == [1]
    recoveries.end(1, RecoveryStatus.CANCELLED)
    history.refresh(later)
    assert (history.running(), history.cancelled_since(0.0)) == ((), ())


def test_one_that_is_being_undone_counts_as_cancelled() -> None:
    recoveries = Recoveries()
    recoveries.add(b.NOW, HUNG, RecoveryStatus.RUNNING)
    recoveries.rows[0] = replace(recoveries.rows[0], ends_as=RecoveryStatus.CANCELLED)
    history = RecoveryHistory(recoveries)
    history.refresh(b.NOW)
    assert [one.id for one in history.cancelled_since(b.NOW)] == [1]
    recoveries.end(1, RecoveryStatus.CANCELLED)
    history.refresh(b.NOW)
    assert [one.id for one in history.cancelled_since(b.NOW)] == [1]
    assert history.cancelled_since(b.NOW + 1) == ()


def test_moves_releases_hangs_time_limits_and_repairs() -> None:
    recoveries = Recoveries()
    plans: tuple[Plan, ...] = (RELEASED, HUNG, ORDERED, LATER, BY_A_PERSON)
    for at, plan in enumerate(plans):
        recoveries.add(b.NOW + at, plan)
    history = RecoveryHistory(recoveries)
    history.refresh(b.NOW)
    assert history.releases_since(0.0) == ((b.NOW, KEY),)
    assert history.swaps_since(0.0) == ((b.NOW + 1, KEY), (b.NOW + 2, KEY)), "LATER gives up no launch"
    assert history.hangs_since(0.0) == ((KEY, Place(41)),)
    assert history.limits_since(0.0) == {(KEY, 0): 600}, "the first fault's"
    assert [(one.node, one.rung) for one in history.attempts_since(0.0)] == [("n2", Rung.MANUAL_REPAIR)]


def test_nodes_that_gangs_waited_for_are_known_with_the_attempt() -> None:
    recoveries, there = Recoveries(), HungNode("n2", (3,), "alice", 8)
    recoveries.add(b.NOW, msgspec.structs.replace(HUNG, hung_on=(there,)))
    recoveries.add(b.NOW + 1, msgspec.structs.replace(ORDERED, hung_on=(there,)))
    recoveries.add(b.NOW + 2, LATER)
    history = RecoveryHistory(recoveries)
    history.refresh(b.NOW)
    expected = (Hung(b.NOW, KEY, Attempt(0), there), Hung(b.NOW + 1, KEY, Attempt(0, 2), there))
    assert history.hung_since(b.NOW) == expected
    assert history.hung_since(b.NOW + 1) == expected[1:]


@pytest.mark.parametrize("status", RecoveryStatus)
def test_a_hang_that_was_refuted_or_not_approved_accuses_no_node(status: RecoveryStatus) -> None:
    recoveries = Recoveries()
    recoveries.add(b.NOW, msgspec.structs.replace(HUNG, hung_on=(HungNode("n2", (3,), "alice", 8),)), status)
    history = RecoveryHistory(recoveries)
    history.refresh(b.NOW)
    unproven = {"overtaken", "cancelled", "awaits_approval", "expired"}
    assert bool(history.hung_since(b.NOW)) == (status not in unproven)


def test_after_a_week_it_is_forgotten() -> None:
    recoveries = Recoveries()
    recoveries.add(b.NOW, HUNG)
    history = RecoveryHistory(recoveries)
    history.refresh(b.NOW)
    assert history.hangs_since(0.0) == ((KEY, Place(41)),)
    history.refresh(b.NOW + 1)
    assert history.hangs_since(0.0) == ()


def test_spares_that_gangs_took_are_counted_by_account() -> None:
    recoveries = Recoveries()
    plan = PoolSwapPlan(
        steps=(),
        drain_reason="",
        job=KEY,
        submit_at=0,
        restart_count=0,
        user="",
        account="physics",
        seats=(),
        spares=("n6",),
    )
    held = RecoveryStep(0, StepName.BIND_JOB, StepStatus.DONE)
    for one in (plan, plan, msgspec.structs.replace(plan, account="", spares=("n7",)), HUNG):
        recoveries.add(10.0, one)
    recoveries.rows[0] = replace(recoveries.rows[0], steps=(held,))
    recoveries.rows[2] = replace(recoveries.rows[2], steps=(held,))
    history = RecoveryHistory(recoveries)
    history.refresh(0.0)
    assert history.spares_taken_since(0.0) == {"physics": 1}, "the second one has not taken its spare yet"
    assert history.spares_taken_since(11.0) == {}
