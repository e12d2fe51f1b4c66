"""What judgement promises: the right row, the guards, the right plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.judge import CARRIED_OUT_BY, decide
from understudy_controlplane.decide.plans import drain_reason, return_plan
from understudy_controlplane.decide.recovery_recheck import course
from understudy_controlplane.decide.restore_point import choose
from understudy_controlplane.decide.table import TABLE
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.stranded import stranded
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import ACCUSING, Finding, HungRanks, Signal
from understudy_controlplane.fleet.gpu import GpusReadable
from understudy_controlplane.fleet.job import Checkpoint, JobThere, Refusal
from understudy_controlplane.fleet.node import OUT_OF_SERVICE, DrainKind, NodeRecord, NodeState, NodeView
from understudy_controlplane.fleet.operator import MoveRequest, Request, Verb
from understudy_controlplane.fleet.recovery import (
    DeleteSeatsPlan,
    FillPoolPlan,
    HungNode,
    PagePlan,
    Plan,
    PoolSwapPlan,
    QuarantinePlan,
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    RecoveryStep,
    ReleaseJobPlan,
    RepairAttempt,
    ReturnPlan,
    StepName,
    StepStatus,
    job_of,
)
from understudy_controlplane.fleet.slurm import HELD_AFTER_FAILED_LAUNCH, SlurmReservation
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.suspicion import SuspicionCause
from understudy_controlplane.fleet.topology import Domain, DomainKind, Topology
from understudy_wire.hardware import Gpu

SPARES = ("n6", "n7", "n8")


def decided(snapshot: Snapshot, config: Config | None = None) -> list[Decision]:
    config = config or b.config()
    return decide(snapshot, detect(snapshot, config), config)


def broken(name: str, state: NodeState = NodeState.IN_SERVICE, **values: object) -> NodeView:
    return b.node(name, state, events=(b.xid_event(name, 79),), **values)  # type: ignore[arg-type]


def only(decisions: Sequence[Decision]) -> Decision:
    assert len(decisions) == 1, decisions
    return decisions[0]


def plan_of(decision: Decision) -> Plan:
    assert decision.plan is not None
    return decision.plan


def swap_of(decision: Decision) -> PoolSwapPlan:
    return b.plan_as(PoolSwapPlan, decision.plan)


def filling(decision: Decision) -> tuple[str, ...]:
    return b.plan_as(FillPoolPlan, decision.plan).spares


class TestTable:
    def test_row_numbers_are_unique(self) -> None:
        numbers = [row.number for row in TABLE]
        assert len(numbers) == len(set(numbers))

    def test_rows_are_sorted_by_number(self) -> None:
        assert [row.number for row in TABLE] == sorted(row.number for row in TABLE)

    def test_each_action_has_a_function_that_carries_it_out(self) -> None:
        assert set(CARRIED_OUT_BY) == set(Action) == {row.action for row in TABLE}

    def test_a_state_and_a_signal_enter_one_row_at_most(self) -> None:
        entries = [(state, signal, row.when) for row in TABLE for state in row.states for signal in row.signals]
        assert len(entries) == len(set(entries))

    @pytest.mark.parametrize("state", list(NodeState))
    def test_every_state_can_be_reached_and_left(self, state: NodeState) -> None:
        if state is not NodeState.IN_SERVICE:
            assert [row for row in TABLE if row.to is state]
        assert [row for row in TABLE if state in row.states and row.to not in (None, state)]

    def test_no_state_is_a_dead_end(self) -> None:
        """Each state has a way into service, without a person or with one who was asked."""
        ways: dict[NodeState, set[NodeState]] = {state: set() for state in NodeState}
        for row in TABLE:
            for state in row.states:
                ways[state] |= {row.to} if row.to is not None else set()
        for state in NodeState:
            reached: set[NodeState] = {state}
            while more := {to for one in reached for to in ways[one]} - reached:
                reached |= more
            assert NodeState.IN_SERVICE in reached, state

    @pytest.mark.parametrize("state", [NodeState.QUARANTINED, NodeState.REPAIRING, NodeState.VALIDATING])
    def test_a_node_out_of_service_returns_or_goes_to_a_person_whatever_fails(self, state: NodeState) -> None:
        """The repair cycle's own rows suffice, none of which waits for an operator."""
        drained = {
            Signal.REPAIR_DUE,
            Signal.VALIDATION_DUE,
            Signal.MANUAL_REPAIR_DUE,
            Signal.REPAIRED,
            Signal.REPAIR_FAILED,
        } | {
            Signal.VALIDATED,
            Signal.VALIDATION_FAILED,
            Signal.PROBATION_OVER,
        }
        ways = {signal: row.to for row in TABLE for signal in row.signals if signal in drained and state in row.states}
        good = {Signal.REPAIRED, Signal.VALIDATED, Signal.VALIDATION_DUE}
        bad = {Signal.REPAIR_FAILED, Signal.VALIDATION_FAILED, Signal.MANUAL_REPAIR_DUE}
        assert good & set(ways), "when all goes well"
        assert bad & set(ways), "when it does not"

    def test_every_way_out_of_service_can_be_ended_by_a_person_in_slurm(self) -> None:
        lifted = {state for row in TABLE if Signal.DRAIN_LIFTED in row.signals for state in row.states}
        assert lifted == OUT_OF_SERVICE | {NodeState.FOREIGN_DRAIN}

    def test_only_its_own_validation_condemns_a_node_under_repair(self) -> None:
        """What the control plane does to it, such as a reboot, is no fault of the node."""
        accused = [row for row in TABLE if NodeState.REPAIRING in row.states and ACCUSING & set(row.signals)]
        assert accused == []


class TestQuarantine:
    def test_a_gang_on_a_broken_node_moves_to_a_spare(self) -> None:
        decision = only(decided(b.snapshot(broken("n2"), jobs=[b.job()], spares=SPARES)))
        plan = swap_of(decision)
        assert (decision.row, decision.action, decision.to_state) == (10, Action.QUARANTINE, NodeState.QUARANTINED)
        assert plan.nodes == ("n2",)
        assert plan.spares == ("n6",)
        assert plan.seats == ("n1", "n3", "n4", "n6")
        assert plan.drain_reason.startswith("understudy: xid.79")

    def test_seats_are_held_before_spares_leave_and_before_the_requeue(self) -> None:
        steps = plan_of(only(decided(b.snapshot(broken("n2"), jobs=[b.job()], spares=SPARES)))).steps
        assert steps.index(StepName.HOLD_SEATS) < steps.index(StepName.TAKE_SPARES) < steps.index(StepName.REQUEUE_JOB)
        assert steps.index(StepName.DOWN_NODES) < steps.index(StepName.REQUEUE_JOB)

    def test_two_broken_nodes_of_one_gang_are_one_plan(self) -> None:
        decisions = decided(b.snapshot(broken("n2"), broken("n3"), jobs=[b.job()], spares=SPARES))
        assert {decision.subject for decision in decisions} == {"n2", "n3"}
        assert len({decision.plan for decision in decisions}) == 1
        assert swap_of(decisions[0]).seats == ("n1", "n4", "n6", "n7")

    def test_a_job_that_is_not_managed_is_not_moved(self) -> None:
        decision = only(decided(b.snapshot(broken("n2"), jobs=[b.job(managed=False)], spares=SPARES)))
        assert plan_of(decision).kind is RecoveryKind.QUARANTINE

    @pytest.mark.parametrize("changes", [{"requeue": False}, {"batch": False}])
    def test_a_job_that_cannot_be_requeued_is_not_moved(self, changes: dict[str, bool]) -> None:
        decision, page = decided(b.snapshot(broken("n2"), jobs=[b.job(**changes)], spares=SPARES))
        assert (plan_of(decision).steps, decision.because) == ((StepName.DRAIN_NODES,), Because.LEFT_TO_PERSON)
        assert "not submitted" in decision.reason
        assert (page.row, b.plan_as(PagePlan, page.plan).about) == (320, ("job 7",)), "at once"

    def test_without_a_spare_the_node_is_drained_and_the_gang_left_to_a_person(self) -> None:
        config = b.config(spares={"no_spare": "wait"})
        decision = only(decided(b.snapshot(broken("n2"), jobs=[b.job()]), config))
        assert (decision.because, plan_of(decision).steps) == (Because.NO_SPARE, (StepName.DRAIN_NODES,))

    def test_a_broken_spare_leaves_the_pool_and_is_not_chosen(self) -> None:
        decisions = decided(b.snapshot(broken("n6", is_spare=True), broken("n2"), jobs=[b.job()], spares=SPARES))
        plans = {decision.subject: plan_of(decision) for decision in decisions}
        assert plans["n6"].steps == (StepName.DRAIN_NODES, StepName.TAKE_SPARES)
        assert b.plan_as(PoolSwapPlan, plans["n2"]).spares == ("n7",)

    def test_a_dead_node_is_declared_down(self) -> None:
        dead = b.node("n3", heard_at=b.NOW - 9, slurmd_silent_since=b.NOW - 4)
        decision = only(decided(b.snapshot(dead, jobs=[b.job()], spares=SPARES)))
        assert (decision.row, swap_of(decision).dead_nodes) == (11, ("n3",))

    def test_a_second_failure_during_a_recovery_supersedes_it(self) -> None:
        first = swap_of(only(decided(b.snapshot(broken("n2"), jobs=[b.job()], spares=SPARES))))
        recovery = Recovery(41, first, RecoveryStatus.RUNNING, b.NOW - 1, ())
        snapshot = b.snapshot(
            broken("n2", NodeState.QUARANTINED),
            broken("n3"),
            jobs=[b.job(state="PENDING", nodes=())],
            spares=SPARES[1:],
            recoveries=(recovery,),
        )
        plan = swap_of(only(decided(snapshot)))
        assert plan.supersedes == 41
        assert plan.seats == ("n1", "n4", "n6", "n7")
        assert plan.nodes == ("n2", "n3")
        assert plan.restart_count == first.restart_count


class TestStranded:
    """A gang on a node that was quarantined before the gang could be moved."""

    node = b.node("n2", NodeState.QUARANTINED, slurm=b.slurm_node("n2", "ALLOCATED", ["DRAIN"], "understudy: x"))

    def test_it_moves_as_soon_as_there_is_a_spare(self) -> None:
        without = only(decided(b.snapshot(self.node, jobs=[b.job()]), b.config(spares={"no_spare": "wait"})))
        assert (without.row, without.action, without.because) == (13, Action.NOTHING, Because.NO_SPARE)
        with_one = only(decided(b.snapshot(self.node, jobs=[b.job()], spares=SPARES)))
        assert (with_one.row, with_one.action, with_one.to_state) == (13, Action.MOVE_GANG, None)
        assert swap_of(with_one).seats == ("n1", "n3", "n4", "n6")

    def test_it_is_not_moved_twice(self) -> None:
        plan = plan_of(only(decided(b.snapshot(self.node, jobs=[b.job()], spares=SPARES))))
        under_way = Recovery(3, plan, RecoveryStatus.RUNNING, b.NOW, ())
        assert decided(b.snapshot(self.node, jobs=[b.job()], spares=SPARES, recoveries=(under_way,))) == []

    def test_the_budget_of_quarantines_does_not_hold_it_back(self) -> None:
        full = b.snapshot(self.node, jobs=[b.job()], spares=SPARES, quarantined_at={"n9": (b.NOW - 5,) * 12})
        assert only(decided(full)).action is Action.MOVE_GANG

    def test_a_dead_node_is_declared_down(self) -> None:
        dead = dataclasses.replace(self.node, slurmd_silent_since=b.NOW - 9)
        assert swap_of(only(decided(b.snapshot(dead, jobs=[b.job()], spares=SPARES)))).dead_nodes == ("n2",)

    def test_a_job_that_is_not_managed_stays(self) -> None:
        assert decided(b.snapshot(self.node, jobs=[b.job(managed=False)], spares=SPARES)) == []


class TestSpares:
    def test_a_condemned_spare_is_not_chosen_though_a_guard_holds_its_quarantine_back(self) -> None:
        config = b.config(guards={"quarantined_nodes_max": 1})
        snapshot = b.snapshot(broken("n2"), broken("n6", is_spare=True), jobs=[b.job()], spares=SPARES)
        plans = {one.subject: one.plan for one in decided(snapshot, config) if one.plan}
        assert b.plan_as(PoolSwapPlan, plans["n2"]).spares == ("n7",)

    @pytest.mark.parametrize(
        "misfit", [{"partitions": ("cpu",)}, {"gres": "gpu:4"}], ids=["another partition", "fewer GPUs"]
    )
    def test_a_spare_on_which_the_job_could_not_start_is_not_chosen(self, misfit: dict[str, Any]) -> None:
        n6 = b.node("n6", slurm=dataclasses.replace(b.slurm_node("n6"), **misfit), is_spare=True)
        assert swap_of(only(decided(b.snapshot(broken("n2"), n6, jobs=[b.job()], spares=SPARES)))).spares == ("n7",)

    def test_a_spare_that_the_user_excluded_is_not_chosen(self) -> None:
        job = b.job(excluded_nodes=("n6", "n7"))
        assert swap_of(only(decided(b.snapshot(broken("n2"), jobs=[job], spares=SPARES)))).spares == ("n8",)

    def test_a_dead_node_that_another_users_job_shares_is_left_to_slurm(self) -> None:
        dead = b.node("n3", heard_at=b.NOW - 9, slurmd_silent_since=b.NOW - 4)
        other = b.job(managed=False, job_id=8, nodes=("n3",))
        decision = only(decided(b.snapshot(dead, jobs=[b.job(), other], spares=SPARES)))
        assert plan_of(decision).kind is RecoveryKind.QUARANTINE
        assert "not managed" in decision.reason

    def test_a_second_failure_after_the_gang_restarted_gives_up_the_new_attempt(self) -> None:
        first = swap_of(only(decided(b.snapshot(broken("n2"), jobs=[b.job()], spares=SPARES))))
        awaiting = Recovery(41, first, RecoveryStatus.RUNNING, b.NOW - 30, ())
        requeued = b.slurm_job(restart_count=1, submit_at=900, nodes=("n1", "n3", "n4", "n6"))
        running = dataclasses.replace(b.job(), slurm=requeued)
        snapshot = b.snapshot(
            broken("n2", NodeState.QUARANTINED), broken("n3"), jobs=[running], spares=SPARES[1:], recoveries=(awaiting,)
        )
        plan = swap_of(only(decided(snapshot)))
        assert (plan.restart_count, plan.supersedes, plan.seats) == (1, 41, ("n1", "n4", "n6", "n7"))


POWERED = ("POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP", "REBOOT_ISSUED", "MAINTENANCE")
"""Flags of nodes that may have to boot before a job starts there."""


class TestIdleNodes:
    """No spare in the pool, or no pool at all: an idle node will do."""

    def moved_to(self, *nodes: NodeView, config: Config | None = None, **values: Any) -> tuple[str, ...]:
        jobs = values.pop("jobs", [b.job()])
        snapshot = b.snapshot(broken("n2"), *nodes, jobs=jobs, **values)
        decision = next(one for one in decided(snapshot, config) if one.subject == "n2")
        return decision.plan.spares if isinstance(decision.plan, PoolSwapPlan) else ()

    def test_the_gang_gets_one(self) -> None:
        assert self.moved_to() == ("n5",)

    def test_spares_come_first(self) -> None:
        assert self.moved_to(spares=("n8",)) == ("n8",)
        assert self.moved_to(broken("n3"), spares=("n8",)) == ("n8", "n5")

    @pytest.mark.parametrize("policy", ["wait", "page"])
    def test_where_the_site_does_not_want_that_it_waits(self, policy: str) -> None:
        assert self.moved_to(config=b.config(spares={"no_spare": policy})) == ()

    @pytest.mark.parametrize(
        "changed",
        [
            b.node("n5", slurm=b.slurm_node("n5", "ALLOCATED")),
            b.node("n5", slurm=b.slurm_node("n5", flags=["PLANNED"])),
            b.node("n5", slurm=b.slurm_node("n5", flags=["COMPLETING"])),
            b.node("n5", slurm=b.slurm_node("n5", flags=["BLOCKED"])),
            *(b.node("n5", slurm=b.slurm_node("n5", flags=["CLOUD", flag])) for flag in POWERED),
            b.node("n5", slurm=b.slurm_node("n5", flags=["DRAIN"], reason="NHC: disk", user="root")),
            b.node("n5", slurm=dataclasses.replace(b.slurm_node("n5"), gres="gpu:4")),
            b.node("n5", NodeState.SUSPECT, gpus=(b.gpu(0, nvlinks=17, nvlinks_max=18),)),
            b.node("n5", heard_at=None),
            broken("n5"),
        ],
        ids=[
            "at work",
            "planned",
            "completing",
            "blocked",
            *POWERED,
            "drained",
            "other GPUs",
            "suspect",
            "without an agent",
            "broken",
        ],
    )
    def test_a_node_that_is_not_idle_healthy_and_fitting_is_not_taken(self, changed: NodeView) -> None:
        assert self.moved_to(changed) == ("n6",)

    @pytest.mark.parametrize("flag", ["CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE"])
    def test_one_that_slurm_made_for_the_moment_is_taken(self, flag: str) -> None:
        assert self.moved_to(b.node("n5", slurm=b.slurm_node("n5", flags=[flag]))) == ("n5",)

    @pytest.mark.parametrize(("block", "taken"), [(("n1", "n2", "n3", "n4", "n5"), "n5"), (("n5", "n6"), "n7")])
    def test_one_whose_block_a_job_has_to_itself_is_taken_by_that_job_alone(
        self, block: tuple[str, ...], taken: str
    ) -> None:
        """Slurm shows it so to everybody: the requeue of the job that blocks it makes it free."""
        blocked = [b.node(name, slurm=b.slurm_node(name, flags=["BLOCKED"])) for name in block if name in ("n5", "n6")]
        topology = Topology((Domain(DomainKind.NVLINK_BLOCK, "b1", block),))
        assert self.moved_to(*blocked, topology=topology) == (taken,)

    def test_nor_one_that_others_have_reserved_for_later(self) -> None:
        later = SlurmReservation("maint", ("n5",), ("root",), frozenset({"MAINT"}), start_at=int(b.NOW) + 9000)
        assert self.moved_to(reservations={later.name: later}) == ("n6",)

    def test_nor_one_that_another_gang_is_about_to_get(self) -> None:
        other = b.job(job_id=8, nodes=("n6",))
        snapshot = b.snapshot(broken("n2"), broken("n6"), jobs=[b.job(), other])
        plans = [one.plan for one in decided(snapshot) if isinstance(one.plan, PoolSwapPlan)]
        assert {plan.spares for plan in plans} == {("n5",), ("n7",)}

    def test_nor_one_on_which_a_job_holds_a_part(self) -> None:
        assert self.moved_to(jobs=[b.job(), b.job(managed=False, job_id=8, nodes=("n5",))]) == ("n6",)

    def test_an_operators_node_is_left_to_them(self) -> None:
        request = Request(1, "n5", Verb.HOLD, "it burns", "alice", b.NOW - 1)
        assert self.moved_to(requests={"n5": request}) == ("n6",)


class TestADeadNodeThatAnAdministratorDrained:
    drained = b.slurm_node("n3", "ALLOCATED", ["DRAIN"], "NHC: disk", "root")
    dead = b.node("n3", NodeState.FOREIGN_DRAIN, slurm=drained, heard_at=b.NOW - 60, slurmd_silent_since=b.NOW - 50)

    def test_its_gang_is_moved_and_the_node_left_alone(self) -> None:
        decision = only(decided(b.snapshot(self.dead, jobs=[b.job()], spares=SPARES)))
        assert (decision.row, decision.action, decision.to_state) == (43, Action.MOVE_GANG, None)
        plan = swap_of(decision)
        assert (plan.seats, plan.nodes, plan.dead_nodes) == (("n1", "n2", "n4", "n6"), (), ("n3",))
        assert not decision.opens_incident

    def test_once(self) -> None:
        plan = plan_of(only(decided(b.snapshot(self.dead, jobs=[b.job()], spares=SPARES))))
        under_way = Recovery(3, plan, RecoveryStatus.RUNNING, b.NOW, ())
        again = only(decided(b.snapshot(self.dead, jobs=[b.job()], spares=SPARES, recoveries=(under_way,))))
        assert (again.action, again.plan) == (Action.NOTHING, None)

    def test_without_a_gang_nothing_is_done(self) -> None:
        decision = only(decided(b.snapshot(self.dead, jobs=[b.job(managed=False)], spares=SPARES)))
        assert (decision.action, decision.plan, decision.opens_incident) == (Action.NOTHING, None, False)


class TestNothing:
    """Nothing, because …"""

    def test_a_foreign_drain_is_left_alone(self) -> None:
        drained = b.slurm_node("n2", flags=["DRAIN"], reason="NHC: bad disk", user="root")
        snapshot = b.snapshot(broken("n2", slurm=drained), jobs=[b.job()], spares=SPARES)
        decision = only(decided(snapshot))
        assert (decision.row, decision.to_state, decision.plan) == (40, NodeState.FOREIGN_DRAIN, None)
        after = only(decided(b.snapshot(broken("n2", NodeState.FOREIGN_DRAIN, slurm=drained), spares=SPARES)))
        assert (after.row, after.plan) == (42, None)

    def test_a_gang_on_it_leaves_it_when_it_fails_and_its_drain_stays_as_it_is(self) -> None:
        drained = b.slurm_node("n2", flags=["DRAIN"], reason="NHC: bad disk", user="root")
        failed = broken("n2", NodeState.FOREIGN_DRAIN, slurm=drained)
        decision = only(decided(b.snapshot(failed, jobs=[b.job()], spares=SPARES)))
        assert (decision.row, decision.to_state) == (42, None)
        assert (swap_of(decision).nodes, swap_of(decision).seats) == ((), ("n1", "n3", "n4", "n6"))

    def test_a_gang_on_a_held_node_leaves_it_when_it_fails_and_its_drain_stays_as_it_is(self) -> None:
        drained = b.slurm_node("n2", flags=["DRAIN"], reason="understudy: operator.hold: cables", user="root")
        failed = broken("n2", NodeState.OPERATOR_HOLD, slurm=drained)
        moved = only(decided(b.snapshot(failed, jobs=[b.job()], spares=SPARES)))
        assert (moved.row, moved.to_state) == (44, None)
        assert (swap_of(moved).nodes, swap_of(moved).seats) == ((), ("n1", "n3", "n4", "n6"))
        stays, page = decided(b.snapshot(failed, jobs=[b.job()]), b.config(spares={"no_spare": "wait"}))
        assert page.action is Action.PAGE
        assert (stays.row, stays.plan, stays.because) == (44, None, Because.NO_SPARE)

    def test_an_application_fault_condemns_no_node(self) -> None:
        faulty = b.node("n2", events=(b.xid_event("n2", 31),))
        decision = only(decided(b.snapshot(faulty, jobs=[b.job()], spares=SPARES)))
        assert (decision.row, decision.action, decision.to_state) == (60, Action.NOTHING, None)

    def test_silence_alone_moves_no_gang(self) -> None:
        decision = only(decided(b.snapshot(b.node("n2", heard_at=b.NOW - 99), jobs=[b.job()], spares=SPARES)))
        assert (decision.to_state, decision.plan) == (NodeState.UNKNOWN, None)

    @pytest.mark.parametrize(
        ("values", "because"),
        [
            ({"mode": Mode.OBSERVE}, Because.DRY_RUN),
            ({"paused": "maintenance (alice)"}, Because.PAUSED),
            ({"error": "timed out"}, Because.SLURM_UNREADABLE),
        ],
    )
    def test_a_guard_holds_the_quarantine_back_and_says_why(self, values: dict[str, object], because: Because) -> None:
        snapshot = b.snapshot(broken("n2"), jobs=[b.job()], spares=SPARES, **values)
        decision = only(decided(snapshot))
        assert (decision.action, decision.because, decision.plan) == (Action.NOTHING, because, None)
        assert decision.to_state is None
        assert decision.opens_incident

    def test_a_fresh_control_plane_does_nothing_before_it_has_heard_every_node(self) -> None:
        unheard = b.node("n7", heard_at=None, is_spare=True)
        young = b.snapshot(broken("n2"), unheard, jobs=[b.job()], spares=SPARES, started_at=b.NOW - 2)
        assert only(decided(young)).because is Because.GATHERING
        returning = b.node("n7", NodeState.UNKNOWN, is_spare=True)
        back = b.snapshot(broken("n2"), returning, jobs=[b.job()], spares=SPARES, started_at=b.NOW - 2)
        assert [one.because for one in decided(back) if one.row == 10] == [Because.GATHERING]
        older = b.snapshot(broken("n2"), unheard, jobs=[b.job()], spares=SPARES, started_at=b.NOW - 11)
        moved = [one for one in decided(older) if one.subject == "n2"]
        assert plan_of(only(moved)).kind is RecoveryKind.POOL_SWAP

    @pytest.mark.parametrize(("unheard", "waits"), [(1, False), (2, False), (3, True)])
    def test_one_or_two_of_many_nodes_hold_up_nothing_for_long(self, unheard: int, waits: bool) -> None:
        """They died just before a takeover."""
        nodes = [b.node(f"n{i}", heard_at=None if i > 8 - unheard else b.NOW) for i in range(2, 9)]
        young = b.snapshot(broken("n1"), *nodes, started_at=b.NOW - 5)
        because = [one.because for one in decided(young) if one.subject == "n1"]
        assert because == [Because.GATHERING if waits else Because.RULE]

    def test_one_of_two_nodes_is_waited_for(self) -> None:
        young = b.snapshot(broken("n1"), b.node("n2", heard_at=None), started_at=b.NOW - 5)
        alone = replace(young, nodes={name: young.nodes[name] for name in ("n1", "n2")})
        assert [one.because for one in decided(alone) if one.subject == "n1"] == [Because.GATHERING]

    def test_a_wrong_rule_that_hits_every_node_drains_no_more_than_the_budget(self) -> None:
        decisions = decided(b.snapshot(*(broken(f"n{i}") for i in range(1, 9))))
        assert sum(decision.plan is not None for decision in decisions) == 3
        assert [one.row for one in decisions if one.action is Action.OPEN_BREAKER] == [290]
        assert sum(decision.because is Because.BREAKER for decision in decisions) == 5

    def test_a_job_moved_too_often_is_left_to_a_person(self) -> None:
        swaps = ((b.NOW - 5, b.job().key),) * 6
        decision = only(decided(b.snapshot(broken("n2"), jobs=[b.job()], spares=SPARES, swaps=swaps)))
        assert decision.because is Because.JOB_BUDGET
        assert plan_of(decision).kind is RecoveryKind.QUARANTINE


class TestPool:
    config = b.config(spares={"count": 3})

    def test_an_empty_pool_is_filled_from_idle_nodes_last_by_name(self) -> None:
        decision = only(decided(b.snapshot(jobs=[]), self.config))
        assert (decision.action, filling(decision)) == (Action.FILL_POOL, ("n6", "n7", "n8"))

    def test_a_node_whose_gpus_cannot_be_read_does_not_join_even_before_it_is_suspect(self) -> None:
        eight = dataclasses.replace(b.slurm_node("n8"), gres="gpu:8")
        none = b.node("n8", slurm=eight, gpus_readable=GpusReadable(0, b.NOW - 1))
        assert filling(only(decided(b.snapshot(none), self.config))) == ("n5", "n6", "n7")

    def test_a_full_pool_is_left_alone(self) -> None:
        assert decided(b.snapshot(spares=SPARES), self.config) == []

    def test_a_node_condemned_just_now_does_not_join(self) -> None:
        config = b.config(spares={"count": 3}, guards={"quarantined_nodes_max": 0})
        fill = next(one for one in decided(b.snapshot(broken("n8")), config) if one.subject == "fleet")
        assert filling(fill) == ("n5", "n6", "n7")

    def test_a_spare_that_an_administrator_drained_is_replaced(self) -> None:
        away = b.node(
            "n6", NodeState.FOREIGN_DRAIN, slurm=b.slurm_node("n6", flags=["DRAIN"], reason="NHC: x"), is_spare=True
        )
        assert filling(only(decided(b.snapshot(away, spares=SPARES), self.config))) == ("n5",)

    def test_a_spare_that_is_merely_silent_is_not_replaced(self) -> None:
        silent = b.node("n6", NodeState.UNKNOWN, heard_at=b.NOW - 2, is_spare=True)
        decisions = decided(b.snapshot(silent, spares=SPARES), self.config)
        assert [one for one in decisions if one.subject == "fleet"] == []

    def test_a_foreign_pool_of_the_same_name_is_left_alone(self) -> None:
        foreign = SlurmReservation("understudy_spares", ("n8",), ("alice",), frozenset())
        decision = only(decided(b.snapshot(reservations={foreign.name: foreign}), self.config))
        assert (decision.because, decision.plan) == (Because.FOREIGN_POOL, None)

    def test_nodes_with_work_never_join_the_pool(self) -> None:
        busy = [b.node(f"n{i}", slurm=b.slurm_node(f"n{i}", "ALLOCATED")) for i in range(1, 9)]
        assert decided(b.snapshot(*busy), self.config) == []

    def test_a_node_that_was_never_heard_does_not_join(self) -> None:
        quiet = [b.node(f"n{i}", heard_at=None) for i in range(1, 9)]
        assert decided(b.snapshot(*quiet, started_at=b.NOW - 1), self.config) == []

    def test_in_observe_mode_the_pool_is_only_spoken_of(self) -> None:
        decision = only(decided(b.snapshot(mode=Mode.OBSERVE), self.config))
        assert (decision.because, decision.plan) == (Because.DRY_RUN, None)


def test_the_furthest_complete_checkpoint_is_restored() -> None:
    written = ((40, 2.0), (60, 3.0), (20, 9.0))
    checkpoints = [Checkpoint(b.job().key, step, f"/c/{step}", 4, at) for step, at in written]
    assert choose(checkpoints) == checkpoints[1]
    assert choose([]) is None


class TestDrainAtJobEnd:
    """A fault that can wait: the node leaves service, and what runs there stays."""

    def later(self, name: str, state: NodeState = NodeState.IN_SERVICE, **values: object) -> NodeView:
        return b.node(name, state, events=(b.xid_event(name, 63),), **values)  # type: ignore[arg-type]

    def drained(self, name: str, *codes: int) -> NodeView:
        record = NodeRecord(name, NodeState.QUARANTINED, drain_kind=DrainKind.AT_JOB_END, drained_at=b.NOW - 50)
        events = tuple(b.xid_event(name, code, sequence=code) for code in (63, *codes))
        drained = b.slurm_node(name, "ALLOCATED", flags=["DRAIN"], reason="understudy: xid.63", user="root")
        return b.node(name, record=record, slurm=drained, events=events)

    def test_the_gang_stays_and_the_node_is_drained(self) -> None:
        decision = only(decided(b.snapshot(self.later("n2"), jobs=[b.job()], spares=SPARES)))
        assert (decision.row, decision.action, decision.to_state) == (130, Action.DRAIN, NodeState.QUARANTINED)
        assert (plan_of(decision).kind, plan_of(decision).steps) == (RecoveryKind.QUARANTINE, (StepName.DRAIN_NODES,))
        assert decision.evidence.shown()["repair"] == "reset_gpu"
        assert decision.opens_incident

    def test_a_gang_on_a_node_drained_for_later_is_not_stranded(self) -> None:
        assert decided(b.snapshot(self.drained("n2"), jobs=[b.job()], spares=SPARES)) == []

    def test_nor_is_it_moved_when_the_drain_has_to_be_made_again(self) -> None:
        record = NodeRecord("n2", NodeState.QUARANTINED, drain_kind=DrainKind.AT_JOB_END)
        node = b.node("n2", record=record, events=(b.xid_event("n2", 63),))
        decision = only(decided(b.snapshot(node, jobs=[b.job()], spares=SPARES)))
        assert (decision.row, plan_of(decision).steps) == (14, (StepName.DRAIN_NODES,))

    def test_when_the_fault_grows_graver_the_gang_moves(self) -> None:
        decision = only(decided(b.snapshot(self.drained("n2", 95), jobs=[b.job()], spares=SPARES)))
        assert (decision.row, plan_of(decision).nodes) == (13, ("n2",))

    def test_a_gang_that_leaves_another_node_leaves_this_one_as_well(self) -> None:
        decisions = decided(b.snapshot(self.drained("n2"), broken("n3"), jobs=[b.job()], spares=SPARES))
        (plan,) = {swap_of(decision) for decision in decisions}
        assert set(plan.nodes) == {"n2", "n3"}
        assert plan.seats == ("n1", "n4", "n6", "n7")

    def test_while_that_ones_drain_is_made_again_the_move_leaves_it_and_does_not_drain_it(self) -> None:
        """A node is drained by one recovery at a time."""
        record = NodeRecord("n2", NodeState.QUARANTINED, drain_kind=DrainKind.AT_JOB_END)
        undrained = b.node("n2", record=record, events=(b.xid_event("n2", 63),))
        decisions = decided(b.snapshot(undrained, broken("n3"), jobs=[b.job()], spares=SPARES))
        again = next(one for one in decisions if one.subject == "n2")
        moved = swap_of(next(one for one in decisions if one.subject == "n3"))
        assert (again.row, plan_of(again).nodes, moved.nodes) == (14, ("n2",), ("n3",))
        assert moved.seats == ("n1", "n4", "n6", "n7")

    def test_a_seat_that_a_gang_is_on_its_way_to_is_replaced(self) -> None:
        first = swap_of(only(decided(b.snapshot(broken("n2"), jobs=[b.job()], spares=SPARES))))
        recovery = Recovery(41, first, RecoveryStatus.RUNNING, b.NOW - 1, ())
        snapshot = b.snapshot(
            broken("n2", NodeState.QUARANTINED),
            self.later("n3"),
            jobs=[b.job(state="PENDING", nodes=())],
            spares=SPARES[1:],
            recoveries=(recovery,),
        )
        moved = next(one for one in decided(snapshot) if one.subject == "n3")
        assert (moved.row, swap_of(moved).seats) == (130, ("n1", "n4", "n6", "n7"))

    def test_the_guards_count_it_as_any_quarantine(self) -> None:
        config = b.config(guards={"quarantined_nodes_max": 1})
        decisions = decided(b.snapshot(self.later("n2"), self.later("n3")), config)
        assert sorted(one.because for one in decisions) == [Because.FLEET_BUDGET, Because.RULE]

    def test_what_cannot_wait_goes_first_where_only_one_may_leave(self) -> None:
        config = b.config(guards={"quarantined_nodes_max": 1})
        decisions = decided(b.snapshot(self.later("n2"), broken("n3")), config)
        assert {one.subject: one.because for one in decisions} == {"n2": Because.FLEET_BUDGET, "n3": Because.RULE}

    def test_a_node_that_others_drained_is_left_alone(self) -> None:
        foreign = b.slurm_node("n2", flags=["DRAIN"], reason="NHC: disk", user="root")
        decision = only(decided(b.snapshot(self.later("n2", NodeState.FOREIGN_DRAIN, slurm=foreign))))
        assert (decision.row, decision.action) == (131, Action.NOTHING)


class TestSuspicion:
    def node(self, state: NodeState = NodeState.IN_SERVICE, gap: float = 900.0) -> NodeView:
        events = tuple(
            dataclasses.replace(b.xid_event("n2", 31, at=at, sequence=i), jobs=(JobThere(i, 1, user),))
            for i, (user, at) in enumerate((("alice", b.NOW - 1 - gap), ("bob", b.NOW - 1)), 1)
        )
        return b.node("n2", state, events=events, history=events)

    def test_the_node_becomes_a_suspect_and_stays_in_service(self) -> None:
        suspect = next(one for one in decided(b.snapshot(self.node())) if one.to_state)
        assert (suspect.row, suspect.action, suspect.to_state) == (140, Action.NOTHING, NodeState.SUSPECT)

    def test_keeping_up_with_its_peers_does_not_clear_it(self) -> None:
        assert [one for one in decided(b.snapshot(self.node(NodeState.SUSPECT))) if one.to_state] == []

    def test_a_program_that_meets_its_own_error_makes_no_suspect(self) -> None:
        alone = b.node("n2", events=(b.xid_event("n2", 31),))
        assert {one.row for one in decided(b.snapshot(alone))} == {60}


def test_every_signal_is_either_in_the_table_or_means_nothing() -> None:
    assert {signal for row in TABLE for signal in row.signals} == set(Signal)


class TestReleases:
    """Jobs that Slurm holds, and whose doing it was."""

    @staticmethod
    def held(reason: str, **changes: Any) -> Snapshot:
        values = {"state": "PENDING", "nodes": (), "restart_count": 1, "reason": reason} | changes
        job = b.job(managed=False, **values)
        return b.snapshot(jobs=[job], refusals=(Refusal("n1", 7, 0, 499.0, 499.5, "unfit"),))

    @pytest.mark.parametrize("reason", sorted(HELD_AFTER_FAILED_LAUNCH))
    def test_a_job_that_the_prolog_refused_is_released_for_every_user(self, reason: str) -> None:
        decision = only(decided(self.held(reason)))
        assert (decision.row, decision.subject, decision.action) == (90, "job 7", Action.RELEASE_JOB)
        assert plan_of(decision).steps == (StepName.RELEASE_JOB,)

    @pytest.mark.parametrize(
        "reason",
        ["JobHeldUser", "JobHeldAdmin", "BeginTime", "job_requeued_in_held_state", "Resources"],
    )
    def test_a_job_that_others_hold_is_not_touched(self, reason: str) -> None:
        assert decided(self.held(reason)) == []

    @pytest.mark.parametrize("changes", [{"restart_count": 2}, {"submit_at": 5000}, {"submit_at": 100}, {"job_id": 8}])
    def test_a_refusal_of_another_attempt_or_job_releases_nothing(self, changes: dict[str, Any]) -> None:
        assert decided(self.held("launch_failed_requeued_held", **changes)) == []

    @pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
    def test_a_wrong_clock_of_the_node_that_refused_it_keeps_no_job_held(self, ahead: float) -> None:
        snapshot = self.held("launch_failed_requeued_held")
        wrong = Refusal("n1", 7, 0, 499.0 + ahead, 499.5, "unfit")
        nodes = {**snapshot.nodes, "n1": b.node("n1", clock_ahead_seconds=ahead)}
        decisions = decided(b.changed(snapshot, nodes=nodes, refusals=(wrong,)))
        assert [one.subject for one in decisions if one.action is Action.RELEASE_JOB] == ["job 7"]

    def test_what_is_being_released_is_not_decided_again(self) -> None:
        snapshot = self.held("launch_failed_requeued_held")
        plan = plan_of(only(decided(snapshot)))
        under_way = Recovery(1, plan, RecoveryStatus.RUNNING, b.NOW, ())
        assert decided(dataclasses.replace(snapshot, recoveries=(under_way,))) == []


class TestSeatsLeft:
    """A reservation that held a gang's seats, and that no recovery needs any more."""

    @staticmethod
    def scene(name: str = "understudy_seats_7", flags: frozenset[str] = frozenset({"IGNORE_JOBS"})) -> Snapshot:
        seats = SlurmReservation(name, ("n1", "n2"), ("alice",), flags)
        return b.snapshot(b.node("n1"), b.node("n2"), jobs=[], reservations={name: seats})

    def test_it_is_deleted_also_where_slurm_has_forgotten_the_job(self) -> None:
        decision = only(decided(self.scene()))
        assert (decision.row, decision.subject, decision.action) == (96, "job 7", Action.RELEASE_JOB)
        assert plan_of(decision) == DeleteSeatsPlan(
            steps=(StepName.DELETE_SEATS,), reservation="understudy_seats_7", user="alice"
        )

    @pytest.mark.parametrize("name", ["understudy_seats_of_alice", "maint"])
    def test_other_reservations_stay(self, name: str) -> None:
        assert decided(self.scene(name)) == []
        assert decided(self.scene(flags=frozenset())) == []

    def test_one_that_is_being_deleted_or_that_a_recovery_needs_stays(self) -> None:
        snapshot = self.scene()
        swap = swap_of(only(decided(b.snapshot(broken("n2"), jobs=[b.job()], spares=SPARES))))
        for plan in (plan_of(only(decided(snapshot))), swap):
            under_way = Recovery(1, plan, RecoveryStatus.RUNNING, b.NOW, ())
            assert decided(dataclasses.replace(snapshot, recoveries=(under_way,))) == []


class TestExclusions:
    """A job may start again on a node that the control plane excluded for a fault which is repaired."""

    @staticmethod
    def scene(node: NodeView, *, excluded: tuple[str, ...] = ("n2", "n5"), **changes: Any) -> Snapshot:
        job = b.job(**({"state": "PENDING", "nodes": (), "excluded_nodes": excluded} | changes))
        return b.snapshot(node, jobs=[job], exclusions={job.key: {"n2": b.NOW - 60}})

    BACK = b.node("n2", record=b.record("n2", cleared_at=b.NOW - 5))

    def test_it_is_allowed_again_and_what_the_user_excludes_stays(self) -> None:
        decision = only(decided(self.scene(self.BACK)))
        assert (decision.row, decision.subject, decision.action) == (91, "job 7", Action.RELEASE_JOB)
        plan = plan_of(decision)
        assert isinstance(plan, ReleaseJobPlan)
        assert (plan.steps, plan.allowed) == ((StepName.ALLOW_NODES,), ("n2",))

    @pytest.mark.parametrize(
        "node",
        [
            b.node("n2", record=b.record("n2", cleared_at=b.NOW - 61)),
            b.node("n2", record=b.record("n2", NodeState.OPERATOR_HOLD, cleared_at=b.NOW - 5)),
            b.node("n2", record=b.record("n2", NodeState.FOREIGN_DRAIN, cleared_at=b.NOW - 5)),
        ],
    )
    def test_not_before_it_has_returned_to_service(self, node: NodeView) -> None:
        assert not [one for one in decided(self.scene(node)) if one.row == 91]

    @pytest.mark.parametrize("changes", [{"state": "RUNNING", "nodes": ("n1",)}, {"excluded": ("n5",)}])
    def test_nothing_is_done_where_it_would_change_nothing(self, changes: dict[str, Any]) -> None:
        assert not [one for one in decided(self.scene(self.BACK, **changes)) if one.row == 91]


class TestHealth:
    def test_a_node_that_looks_wrong_stays_in_service_as_a_suspect_until_it_does_not(self) -> None:
        gpus = (b.gpu(0, nvlinks=17, nvlinks_max=18),)
        entered = only(decided(b.snapshot(b.node("n2", gpus=gpus), jobs=[b.job()])))
        assert (entered.row, entered.to_state, entered.plan) == (140, NodeState.SUSPECT, None)
        stays = only(decided(b.snapshot(b.node("n2", NodeState.SUSPECT, gpus=gpus))))
        assert (stays.row, stays.to_state) == (141, None)
        left = only(decided(b.snapshot(b.node("n2", NodeState.SUSPECT, gpus=(b.gpu(0),)))))
        assert left.to_state is NodeState.IN_SERVICE

    PROBING = b.config(validation={"enabled": True})

    def suspect(self, name: str = "n2", **changes: Any) -> NodeView:
        return b.node(name, NodeState.SUSPECT, **{"gpus": (b.gpu(0, nvlinks=17, nvlinks_max=18),)} | changes)

    def test_an_idle_suspect_is_validated(self) -> None:
        decision = only(decided(b.snapshot(self.suspect()), self.PROBING))
        assert (decision.row, decision.action, decision.to_state) == (255, Action.VALIDATE, NodeState.VALIDATING)
        assert StepName.RUN_VALIDATION in plan_of(decision).steps

    def test_a_suspect_at_work_is_not_tested(self) -> None:
        assert [one.row for one in decided(b.snapshot(self.suspect(), jobs=[b.job()]), self.PROBING)] == [141]

    @pytest.mark.parametrize("validation", [{}, {"enabled": True, "test_suspects": False}])
    def test_no_suspect_is_tested_where_the_site_does_not_want_it(self, validation: dict[str, bool]) -> None:
        assert [one.row for one in decided(b.snapshot(self.suspect()), b.config(validation=validation))] == [141]

    def test_no_suspect_is_tested_where_a_failure_could_not_be_followed_by_quarantine(self) -> None:
        full = [b.node(name, NodeState.QUARANTINED) for name in ("n3", "n4")]
        guards = {"quarantined_nodes_max": 2, "quarantined_share_max": 1.0, "domain_share_max": 1.0}
        decisions = decided(b.snapshot(self.suspect(), *full), b.config(guards=guards, validation={"enabled": True}))
        assert [(one.row, one.because, one.plan) for one in decisions if one.subject == "n2"] == [
            (255, Because.FLEET_BUDGET, None)
        ]

    def test_no_suspect_is_tested_that_would_be_taken_out_of_service_for_a_rule_that_only_observes(self) -> None:
        faulty = self.suspect(events=(b.xid_event("n2", 79),))
        config = b.config(validation={"enabled": True}, guards={"observe_rules": ["xid."]})
        found = [(one.row, one.because, one.to_state) for one in decided(b.snapshot(faulty), config)]
        assert found == [(141, Because.RULE, None), (10, Because.RULE_DRY_RUN, None)]

    def test_what_looks_well_again_is_not_tested(self) -> None:
        well = self.suspect(gpus=(b.gpu(0),))
        assert only(decided(b.snapshot(well, jobs=[b.job()]), self.PROBING)).row == 21

    def test_a_straggler_is_not_called_well_because_its_job_has_ended(self) -> None:
        node = self.suspect(gpus=(b.gpu(0),))
        slow = dataclasses.replace(
            node, record=dataclasses.replace(node.record, suspicions=b.suspected(SuspicionCause.SLOW))
        )
        assert only(decided(b.snapshot(slow))).row == 21
        assert only(decided(b.snapshot(slow), self.PROBING)).row == 255
        assert only(decided(b.snapshot(node), self.PROBING)).row == 21

    @pytest.mark.parametrize("gpus", [(b.gpu(0, nvlinks=17, nvlinks_max=18),), (b.gpu(0),)])
    def test_silence_ends_no_suspicion_and_a_silent_node_is_not_tested(self, gpus: tuple[Gpu, ...]) -> None:
        silent = self.suspect(heard_at=b.NOW - 5, gpus=gpus)
        for config in (b.config(), self.PROBING):
            assert [one.to_state for one in decided(b.snapshot(silent), config) if one.to_state] == []
        dead = self.suspect(heard_at=b.NOW - 8, gpus=gpus, slurmd_silent_since=b.NOW - 3)
        assert only(decided(b.snapshot(dead), self.PROBING)).row == 11

    def test_a_control_plane_that_has_not_heard_a_suspect_since_its_start_does_not_call_it_well(self) -> None:
        unheard = self.suspect(heard_at=None, gpus=())
        assert decided(b.snapshot(unheard, started_at=b.NOW - 1), self.PROBING) == []

    def test_probation_hides_no_suspicion(self) -> None:
        node = self.suspect(record=NodeRecord("n2", NodeState.PROBATION, since=b.NOW - 60, agent_seen_at=b.NOW))
        decision = only(decided(b.snapshot(node), self.PROBING))
        assert (decision.row, decision.to_state) == (140, NodeState.SUSPECT)

    @pytest.mark.parametrize(("hours", "row"), [(23, 141), (25, 255)])
    def test_a_suspect_that_was_tested_lately_is_not_tested_again(self, hours: int, row: int) -> None:
        ended = b.NOW - hours * 3600
        passed = RepairAttempt(
            1, "n2", RecoveryKind.VALIDATE, None, ended - 60, RecoveryStatus.SUCCEEDED, ended_at=ended
        )
        assert only(decided(b.snapshot(self.suspect(), attempts=(passed,)), self.PROBING)).row == row

    @pytest.mark.parametrize(("steps", "since", "rows"), [(10, 0.0, []), (20, 0.0, [21]), (20, b.NOW - 15, [])])
    def test_a_straggler_is_called_well_after_a_whole_window_of_steps_that_are_new(
        self, steps: int, since: float, rows: list[int]
    ) -> None:
        node = self.suspect(gpus=(b.gpu(0),))
        slow = dataclasses.replace(
            node, record=dataclasses.replace(node.record, suspicions=b.suspected(SuspicionCause.SLOW, since=since))
        )
        table = b.step_table([[1.0] * steps] * 4)
        snapshot = b.snapshot(slow, jobs=[b.job()], tables={b.job().key: table})
        assert [one.row for one in decided(snapshot)] == rows

    def test_a_repair_that_can_wait_takes_the_node_and_leaves_its_job_there(self) -> None:
        node = b.node("n2", gpus=(b.gpu(0, remapped_rows_pending=True),))
        due = only(decided(b.snapshot(node, jobs=[b.job()], spares=SPARES)))
        assert (due.row, due.action, due.to_state) == (130, Action.DRAIN, NodeState.QUARANTINED)
        assert (plan_of(due).nodes, job_of(plan_of(due))) == (("n2",), None)


def test_a_node_that_comes_back_in_this_round_ends_the_move_off_it_before_its_next_step() -> None:
    swap = swap_of(only(decided(b.snapshot(broken("n2"), jobs=[b.job()], spares=SPARES))))
    recovery = Recovery(41, swap, RecoveryStatus.RUNNING, b.NOW - 1, ())
    seen = b.snapshot(broken("n2", NodeState.QUARANTINED), jobs=[b.job()], recoveries=(recovery,))
    back = Decision(252, "n2", Action.RETURN, Because.RULE, "an operator asked for it", NodeState.IN_SERVICE)
    assert course(recovery, seen, [], []).ending is None
    ending = course(recovery, seen, [], [back]).ending
    assert ending is not None
    assert (ending.status, ending.why) == (RecoveryStatus.OVERTAKEN, "n2 is back in service")


@pytest.mark.parametrize(("flags", "drained_at"), [(["DRAIN"], 4711), ([], 0)], ids=["drained", "resumed before"])
def test_a_return_notes_which_drain_it_is_to_lift(flags: list[str], drained_at: int) -> None:
    """Some versions of Slurm keep a reason, and its time, when a node is resumed."""
    shown = b.slurm_node("n2", flags=flags, reason="understudy: operator.hold: a fan", user="root")
    view = b.node("n2", NodeState.OPERATOR_HOLD, slurm=dataclasses.replace(shown, reason_at=4711))
    plan = return_plan(b.snapshot(view), view, b.config(), None, on_probation=False)
    assert plan.drained_at == drained_at


def test_a_node_that_is_taken_out_of_service_in_this_round_is_not_resumed_any_more() -> None:
    """slurmctld refused to resume it, and a fault was reported meanwhile."""
    plan = ReturnPlan(nodes=("n2",), steps=(StepName.RESUME_NODE,))
    recovery = Recovery(41, plan, RecoveryStatus.RUNNING, b.NOW - 1, ())
    seen = b.snapshot(b.node("n2"), recoveries=(recovery,))
    out = Decision(10, "n2", Action.QUARANTINE, Because.RULE, "Xid 79", NodeState.QUARANTINED)
    assert course(recovery, seen, [], []).ending is None
    ending = course(recovery, seen, [], [out]).ending
    assert ending is not None
    assert (ending.status, ending.why) == (RecoveryStatus.OVERTAKEN, "n2 was taken out of service again")


def asked_of(name: str, verb: Verb, at: float = b.NOW - 60) -> dict[str, Request]:
    return {name: Request(1, name, verb, "a person asks for it", "alice", at)}


def hung_on(name: str) -> Finding:
    return Finding(Signal.GANG_HUNG, "hang.not_arrived", name, b.NOW, "no step has ended", job=b.job().key)


def test_the_plan_for_a_hang_keeps_which_ranks_of_which_node_it_waited_for() -> None:
    named = dataclasses.replace(hung_on("n2"), detail=HungRanks(ranks=(1,)))
    seen = b.snapshot(spares=SPARES, jobs=[b.job()])
    (decision,) = (one for one in decide(seen, [named], b.config()) if one.action is Action.RESTART_GANG)
    assert swap_of(decision).hung_on == (HungNode("n2", (1,), b.job().slurm.user, 4),)
    (decision,) = (one for one in decide(seen, [hung_on("n2")], b.config()) if one.action is Action.RESTART_GANG)
    assert swap_of(decision).hung_on == (), "the finding is of a switch"


@pytest.mark.parametrize(("state", "verb"), [(NodeState.IN_SERVICE, Verb.VALIDATE), (NodeState.RETIRED, Verb.RELEASE)])
def test_no_request_that_waits_for_a_gang_keeps_it_from_its_restart(state: NodeState, verb: Verb) -> None:
    """The gang would hang for as long as the request may wait, and both wait for its end."""
    seen = b.snapshot(b.node("n2", state), spares=SPARES, jobs=[b.job()], requests=asked_of("n2", verb))
    config = b.config(validation={"enabled": True})
    assert Action.RESTART_GANG in {one.action for one in decide(seen, [hung_on("n2")], config)}


def test_a_move_that_waits_for_a_spare_keeps_no_gang_from_its_restart() -> None:
    move = MoveRequest(5, ("n2",), "new cables", "alice", b.NOW - 1, b.job().key.submit_at)
    seen = b.snapshot(jobs=[b.job()], moves={b.job().key: move})
    config = b.config(spares={"no_spare": "wait"})
    by_action = {one.action: one.because for one in decide(seen, [hung_on("n2")], config)}
    assert by_action == {Action.NOTHING: Because.NO_SPARE, Action.RESTART_GANG: Because.RULE}


@pytest.mark.parametrize("name", ["cloud1", "n1"])
def test_a_gang_that_hangs_on_a_node_that_slurm_does_not_know_any_more_is_restarted(name: str) -> None:
    """An administrator has removed it from slurm.conf. Spares have to be like the others of the gang."""
    removed = dataclasses.replace(b.node("n1"), slurm=None)
    seen = b.snapshot(removed, spares=SPARES, jobs=[b.job(nodes=(name, "n2", "n3", "n4"))])
    hang = Finding(Signal.GANG_HUNG_UNNAMED, "hang.gang", "", b.NOW, "no step has ended", job=b.job().key)
    (decision,) = (one for one in decide(seen, [hang], b.config()) if one.row == 102)
    assert decision.action is Action.RESTART_GANG, decision.reason


def test_a_node_that_slurm_does_not_know_any_more_gets_a_spare_in_its_place() -> None:
    removed = dataclasses.replace(b.node("n2", NodeState.QUARANTINED), slurm=None)
    seen = b.snapshot(removed, spares=SPARES, jobs=[b.job()])
    decision = next(one for one in decide(seen, [hung_on("n2")], b.config()) if one.row == 101)
    assert swap_of(decision).seats == ("n1", "n3", "n4", "n6")


HELD_BACK: dict[Because, dict[str, Any]] = {
    Because.FLEET_BUDGET: {"guards": {"quarantined_nodes_max": 0}},
    Because.RULE_DRY_RUN: {"guards": {"observe_rules": ["xid."]}},
}


@pytest.mark.parametrize("because", HELD_BACK)
@pytest.mark.parametrize("at_job_end", [True, False])
def test_a_drain_that_a_guard_holds_back_keeps_no_gang_from_its_restart(because: Because, at_job_end: bool) -> None:
    node = b.node("n2", events=(b.xid_event("n2", 63 if at_job_end else 79),))
    seen = b.snapshot(node, spares=SPARES, jobs=[b.job()])
    config = b.config(**HELD_BACK[because])
    findings = [*detect(seen, config), hung_on("n2")]
    decisions = decide(seen, findings, config)
    (moved,) = (one for one in decisions if one.plan is not None)
    assert because in {one.because for one in decisions}
    if because is Because.FLEET_BUDGET and not at_job_end:
        assert moved.action is Action.MOVE_GANG, "off the faulty node, so it need not be restarted"
    else:
        assert (moved.row, moved.action, moved.to_state) == (100, Action.RESTART_GANG, NodeState.SUSPECT)


@pytest.mark.parametrize("status", [StepStatus.INTENDED, StepStatus.DONE])
def test_a_gang_is_restarted_once_the_drain_of_its_node_is_over(status: StepStatus) -> None:
    """slurmctld refuses it, and the restart off that node begins with the same drain."""
    plan = QuarantinePlan(steps=(StepName.DRAIN_NODES,), nodes=("n2",), drain_reason="understudy: x")
    drains = Recovery(1, plan, RecoveryStatus.RUNNING, b.NOW, (RecoveryStep(0, StepName.DRAIN_NODES, status, 1),))
    node = b.node("n2", NodeState.QUARANTINED)
    seen = b.snapshot(node, spares=SPARES, jobs=[b.job()], recoveries=(drains,))
    (decision,) = (one for one in decide(seen, [hung_on("n2")], b.config()) if one.row == 101)
    assert (decision.plan is None) == (status is StepStatus.INTENDED)


def test_nor_does_a_drain_that_waits_for_its_approval() -> None:
    seen = b.snapshot(b.node("n2", events=(b.xid_event("n2", 63),)), spares=SPARES, jobs=[b.job()], mode=Mode.APPROVE)
    decisions = decide(seen, [*detect(seen, b.config()), hung_on("n2")], b.config(mode="approve"))
    assert {one.row for one in decisions if one.proposed is not None} == {100, 130}


@pytest.mark.parametrize(("code", "action"), [(63, Action.DRAIN), (79, Action.QUARANTINE)])
def test_a_node_has_one_new_state_in_a_round_also_where_its_gang_hangs(code: int, action: Action) -> None:
    seen = b.snapshot(b.node("n2", events=(b.xid_event("n2", code),)), spares=SPARES, jobs=[b.job()])
    decision = only(decide(seen, [*detect(seen, b.config()), hung_on("n2")], b.config()))
    assert (decision.action, decision.to_state) == (action, NodeState.QUARANTINED)


HELD = [NodeState.RETIRED, NodeState.OPERATOR_HOLD, NodeState.FOREIGN_DRAIN]


def held_by_person(name: str, state: NodeState) -> NodeView:
    return b.node(name, state, slurm=b.slurm_node(name, "ALLOCATED", flags=["DRAIN"], reason="cables", user="alice"))


@pytest.mark.parametrize("state", HELD)
@pytest.mark.parametrize("hangs", [True, False])
def test_a_gang_that_is_requeued_leaves_a_node_that_a_person_has_as_well(state: NodeState, hangs: bool) -> None:
    """While it ran it could stay there; Slurm does not start it there again. The node is the person's: not drained."""
    bad = b.node("n2", NodeState.QUARANTINED)
    found = (
        hung_on("n2")
        if hangs
        else next(iter(stranded(b.snapshot(bad, jobs=[b.job()]), frozenset(), b.config().straggler)))
    )

    def moved(*spares: str) -> Decision:
        seen = b.snapshot(bad, held_by_person("n3", state), spares=spares, jobs=[b.job()])
        return only(
            [
                one
                for one in decide(seen, [found], b.config(spares={"no_spare": "wait"}))
                if one.plan is None or job_of(one.plan)
            ]
        )

    plan = swap_of(moved("n6", "n7"))
    assert (plan.seats, plan.nodes) == (("n1", "n4", "n6", "n7"), ("n2",))
    assert moved("n6").because is Because.NO_SPARE, "on its old node it would wait for ever"


def test_a_gang_that_is_moved_later_leaves_a_node_that_was_drained_for_its_end_as_well() -> None:
    at_end = b.node("n3", record=NodeRecord("n3", NodeState.QUARANTINED, drain_kind=DrainKind.AT_JOB_END))
    seen = b.snapshot(b.node("n2", NodeState.QUARANTINED), at_end, spares=SPARES, jobs=[b.job()])
    (found,) = stranded(seen, frozenset(), b.config().straggler)
    plan = swap_of(only(decide(seen, [found], b.config())))
    assert (plan.seats, sorted(plan.nodes)) == (("n1", "n4", "n6", "n7"), ["n2", "n3"])


def test_a_node_that_holds_its_gang_up_and_is_drained_for_its_end_is_replaced_once() -> None:
    at_end = b.node("n3", record=NodeRecord("n3", NodeState.QUARANTINED, drain_kind=DrainKind.AT_JOB_END))
    seen = b.snapshot(at_end, spares=SPARES, jobs=[b.job()])
    (decision,) = (one for one in decide(seen, [hung_on("n3")], b.config()) if one.plan)
    assert swap_of(decision).spares == ("n6",)


@pytest.mark.parametrize("hangs", [True, False])
def test_a_gang_that_insists_on_a_node_that_a_person_has_is_not_requeued(hangs: bool) -> None:
    """Slurm would not start it without that node, nor there."""
    job = b.job(required_nodes=("n3",))
    bad = b.node("n2", NodeState.QUARANTINED)
    seen = b.snapshot(bad, held_by_person("n3", NodeState.FOREIGN_DRAIN), spares=SPARES, jobs=[job])
    found = [hung_on("n2")] if hangs else [*stranded(seen, frozenset(), b.config().straggler)]
    decision, page = (one for one in decide(seen, found, b.config()) if one.row != 92)
    assert (decision.plan, page.row) == (None, 320)
    assert "asked for n3 by name" in decision.reason


@pytest.mark.parametrize(("seconds", "dead"), [(0.3, ()), (5.0, ("n3",))])
def test_a_persons_node_is_not_taken_for_dead_by_one_failed_probe(seconds: float, dead: tuple[str, ...]) -> None:
    bad = b.node("n2", NodeState.QUARANTINED)
    held = dataclasses.replace(held_by_person("n3", NodeState.OPERATOR_HOLD), slurmd_silent_since=b.NOW - seconds)
    seen = b.snapshot(bad, held, spares=SPARES, jobs=[b.job()])
    assert (
        swap_of(only(decide(seen, [*stranded(seen, frozenset(), b.config().straggler)], b.config()))).dead_nodes == dead
    )


def test_the_reservation_of_a_node_that_a_gang_leaves_does_not_keep_it_from_moving() -> None:
    """A person who takes a node often reserves it for the work on it."""
    work = SlurmReservation("cables", ("n3",), ("root",), frozenset({"MAINT"}), start_at=int(b.NOW) + 60)
    bad, taken = b.node("n2", NodeState.QUARANTINED), held_by_person("n3", NodeState.RETIRED)
    seen = b.snapshot(bad, taken, spares=SPARES, jobs=[b.job()], reservations={work.name: work})
    assert swap_of(only(decide(seen, [*stranded(seen, frozenset(), b.config().straggler)], b.config()))).seats == (
        "n1",
        "n4",
        "n6",
        "n7",
    )


def test_a_node_that_is_released_is_validated_once_no_job_runs_there() -> None:
    """Otherwise the validation would wait for the job, fail for that, and the gang would have to move."""
    drained = b.slurm_node("n2", flags=["DRAIN"], reason="understudy: operator.retire")
    node = b.node("n2", NodeState.RETIRED, slurm=drained)
    requests = asked_of("n2", Verb.RELEASE, at=b.NOW - 86400)
    config = b.config(validation={"enabled": True})
    busy = b.snapshot(node, spares=SPARES, jobs=[b.job()], requests=requests)
    assert only(decided(busy, config)).because is Because.BUSY
    free = b.snapshot(node, spares=SPARES, requests=requests)
    assert only(decided(free, config)).action is Action.VALIDATE


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize("reason", ["looks odd", "understudy: xid.119: kept by Slurm from an earlier drain"])
def test_a_node_that_an_administrator_has_drained_stays_out_when_it_is_released(
    validates: bool, answers: bool, reason: str
) -> None:
    """Its return would fail. In service until the next reading of Slurm, it would be drained again for an old fault
    if the administrator resumed it before that.
    """
    flags = ["DRAIN"] if answers else ["DRAIN", "NOT_RESPONDING"]
    drained = b.slurm_node("n2", flags=flags, reason=reason, user="admin")
    given = {"drained_at": b.NOW - 99, "drain_user": "root", "drain_reason_at": int(b.NOW) - 100}
    record = b.record("n2", NodeState.MANUAL_REPAIR, agent_seen_at=b.NOW - 500, slurmd_seen_at=b.NOW - 500, **given)
    node = b.node("n2", slurm=drained, record=record, events=(b.xid_event("n2", 119),))
    requests = asked_of("n2", Verb.RELEASE, at=b.NOW - 5)
    decision = only(decided(b.snapshot(node, requests=requests), b.config(validation={"enabled": validates})))
    assert (decision.row, decision.to_state, decision.plan) == (264, NodeState.FOREIGN_DRAIN, None)
    assert decision.request == 1
    assert f"in Slurm admin has taken it: {reason}" in decision.reason


def test_a_reported_fault_is_left_to_the_administrator_who_has_drained_the_node() -> None:
    """It would be carried out once the administrator has resumed the node."""
    node = b.node("n2", NodeState.FOREIGN_DRAIN, slurm=b.slurm_node("n2", flags=["DRAIN"]))
    (decision,) = decided(b.snapshot(node, requests=asked_of("n2", Verb.QUARANTINE)))
    assert (decision.row, decision.request, decision.plan) == (256, 1, None)


def test_a_long_reason_in_slurm_ends_with_a_whole_clause() -> None:
    def reason(summary: str) -> str:
        return drain_reason(Finding(Signal.STRAGGLER_CONFIRMED, "straggler.self_time", "n1", b.NOW, summary))

    cause = "rank 0 takes 1.47 times as long as its peers; cause clocks: clocks throttled: hardware slowdown, thermal"
    assert reason(cause) == reason(f"{cause}; it costs {'much ' * 20}") == f"understudy: straggler.self_time: {cause}"
    assert len(reason("y" * 300)) == 200
