"""What undoes the effects of a recovery that ends early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from tests import builders as b
from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import Plan, PoolSwapPlan, QuarantinePlan, RepairPlan, Rung, StepName
from understudy_controlplane.fleet.slurm import SlurmNode, SlurmView
from understudy_controlplane.recover.step import Done, Failed, GangFacts, StepContext, Todo
from understudy_controlplane.recover.steps.nodes import DOWN_NODES, DRAIN_NODES, LIFT_DRAIN
from understudy_controlplane.recover.steps.repair import REBOOT_NODE
from understudy_controlplane.slurm.protocol import read_view

REASON = "understudy: xid.79: GPU lost"
PLAN = QuarantinePlan(steps=(StepName.DRAIN_NODES,), nodes=("n1",), drain_reason=REASON)
SWAP = PoolSwapPlan(
    steps=(),
    nodes=("n1",),
    dead_nodes=("n1",),
    drain_reason=REASON,
    job=JobKey("testbed", 1, 0),
    submit_at=0,
    restart_count=0,
    user="u",
    seats=("n2",),
)


class NoTickets:
    def is_there(self, label: str) -> bool:
        raise AssertionError(label)

    def open(self, plan: object) -> None:
        raise AssertionError(plan)

    def read_end(self, path: str) -> str:
        raise AssertionError(path)


def context(slurm: VirtualSlurm, state: NodeState, plan: Plan = PLAN) -> StepContext:
    view: SlurmView = read_view(slurm, slurm.now)
    return StepContext(
        plan=plan,
        slurm=view,
        records={"n1": b.record("n1", state)},
        gang=lambda _count: GangFacts(hook_was_used=False),
        silent=lambda _: [],
        still_silent=lambda _: [],
        config=b.config(),
        now=slurm.now,
        tickets=NoTickets(),
        send_orders=lambda _orders: None,
        worked_until=lambda: 0.0,
    )


@pytest.mark.parametrize("state", [NodeState.IN_SERVICE, NodeState.PROBATION, NodeState.FOREIGN_DRAIN])
def test_a_drain_on_a_node_in_service_is_lifted(state: NodeState) -> None:
    slurm = VirtualSlurm(["n1", "n2"])
    slurm.drain_node("n1", REASON)
    assert LIFT_DRAIN.observe(context(slurm, state)) == Todo("n1 is drained, and in service otherwise")
    LIFT_DRAIN.act(context(slurm, state), slurm)
    assert LIFT_DRAIN.observe(context(slurm, state)) == Done()
    assert not any(node.draining for node in slurm.nodes())


def test_a_drain_to_whose_reason_slurm_has_added_is_lifted() -> None:
    slurm = VirtualSlurm(["n1", "n2"])
    slurm.adds_to_reasons = True
    slurm.drain_node("n1", REASON)
    slurm.kill_node("n1")
    slurm.advance(310)
    assert slurm.nodes()[0].reason == f"{REASON} : Not responding"
    LIFT_DRAIN.act(context(slurm, NodeState.IN_SERVICE), slurm)
    assert not slurm.nodes()[0].draining


@pytest.mark.parametrize("state", [NodeState.QUARANTINED, NodeState.OPERATOR_HOLD, NodeState.MANUAL_REPAIR])
def test_a_drain_on_a_node_out_of_service_stays_and_is_named(state: NodeState) -> None:
    slurm = VirtualSlurm(["n1", "n2"])
    slurm.drain_node("n1", REASON)
    assert LIFT_DRAIN.observe(context(slurm, state)) == Done(f"n1 stays drained ({state.value})")


def test_the_drain_of_a_person_is_not_lifted() -> None:
    slurm = VirtualSlurm(["n1", "n2"])
    slurm.drain_by("alice", "n1", "new cable")
    assert LIFT_DRAIN.observe(context(slurm, NodeState.IN_SERVICE)) == Done()
    LIFT_DRAIN.act(context(slurm, NodeState.IN_SERVICE), slurm)
    assert slurm.nodes()[0].draining


def test_a_dead_node_that_a_person_releases_during_the_move_is_not_declared_down() -> None:
    """The gang moves on for another node of the plan."""
    slurm = VirtualSlurm(["n1", "n2"])
    assert isinstance(DOWN_NODES.observe(context(slurm, NodeState.QUARANTINED, SWAP)), Todo)
    assert isinstance(DOWN_NODES.observe(context(slurm, NodeState.IN_SERVICE, SWAP)), Done)


def all_of_them(nodes: Sequence[SlurmNode]) -> list[str]:
    return [node.name for node in nodes]


@pytest.mark.parametrize("state", [NodeState.IN_SERVICE, NodeState.FOREIGN_DRAIN])
def test_a_dead_node_that_the_plan_leaves_in_service_is_declared_down_only_while_it_does_not_answer(
    state: NodeState,
) -> None:
    """An operator moves the gang off it, or an administrator had drained it and has resumed it since. The requeue of a
    job on a node that does not answer would spoil the job's record.
    """
    moved = msgspec.structs.replace(SWAP, nodes=(), leaving=("n1",))
    slurm = VirtualSlurm(["n1", "n2"])
    well = context(slurm, state, moved)
    mute = replace(well, silent=all_of_them, still_silent=all_of_them)
    for_a_moment = replace(mute, still_silent=lambda _: [])
    assert isinstance(DOWN_NODES.observe(well), Done)
    assert isinstance(DOWN_NODES.observe(mute), Todo)
    DOWN_NODES.act(for_a_moment, slurm)
    assert not slurm.nodes()[0].down
    DOWN_NODES.act(mute, slurm)
    assert slurm.nodes()[0].down


def test_a_node_that_falls_silent_as_others_are_declared_down_keeps_a_job_that_is_not_managed() -> None:
    slurm = VirtualSlurm(["n1"])
    slurm.submit("student", 1)
    slurm.advance(1)
    moved = msgspec.structs.replace(SWAP, nodes=(), leaving=("n1",))
    just_now = replace(context(slurm, NodeState.IN_SERVICE, moved), still_silent=all_of_them)
    DOWN_NODES.act(just_now, slurm)
    assert not slurm.nodes()[0].down


FAILED_AT_THE_API = {"reason": REASON, "user": "root"}
"""Slurm's API needs no reason: the one of the drain stays, and so does its user."""


def test_fail_is_neither_lifted_nor_drained_nor_declared_down_nor_rebooted() -> None:
    slurm = VirtualSlurm(["n1", "n2"])
    slurm.fail_by(name="n1", **FAILED_AT_THE_API)
    before = slurm.nodes()[0]
    reboot = RepairPlan(steps=(), nodes=("n1",), drain_reason=REASON, rung=Rung.REBOOT, label="n1-1")
    renamed = QuarantinePlan(steps=(), nodes=("n1",), drain_reason="understudy: x", renamed_nodes=("n1",))
    out = NodeState.QUARANTINED
    for step, plan, state in (
        (LIFT_DRAIN, PLAN, NodeState.IN_SERVICE),
        (DRAIN_NODES, PLAN, out),
        (DRAIN_NODES, renamed, out),
        (DOWN_NODES, SWAP, out),
    ):
        found = context(slurm, state, plan)
        assert isinstance(step.observe(found), Done), step.name
        step.act(found, slurm)
    assert isinstance(REBOOT_NODE.observe(context(slurm, NodeState.REPAIRING, reboot)), Failed)
    assert slurm.nodes()[0] == before
