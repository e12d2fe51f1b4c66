"""What is decided about gangs that a launcher drives, and about gangs that hang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests import builders as b
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide import allocation_swap
from understudy_controlplane.decide.failures import Failures
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.launcher_orders import launcher_orders, orders_of
from understudy_controlplane.decide.placement import layout_of
from understudy_controlplane.decide.plans import launcher_restart_plan
from understudy_controlplane.detect.launches import launches
from understudy_controlplane.detect.stopped import stopped
from understudy_controlplane.detect.stranded import stranded
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, HungRanks, Signal
from understudy_controlplane.fleet.gang import Gang, orders_version
from understudy_controlplane.fleet.node import NodeRecord, NodeState, NodeView
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    Plan,
    PoolSwapPlan,
    QuarantinePlan,
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    RecoveryStep,
    StepName,
    StepStatus,
    SwapPlan,
)
from understudy_controlplane.fleet.slurm import HETEROGENEOUS_JOB
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import restarts_without_progress
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.topology import Domain, DomainKind, merged
from understudy_wire.hardware import Stuck, StuckProcess
from understudy_wire.launcher import LauncherOrders, LauncherPhase, LauncherState, RankLayout, Restart
from understudy_wire.parallelism import Parallelism
from understudy_wire.places import Place

JOB = b.job()
STATE = LauncherState(7, 0, 2, LauncherPhase.RUNNING, ("n1", "n2", "n3"), ("n4",), nodes_min=3)
GANG = Gang(STATE, "n1", b.NOW - 1)


def gang(**changes: Any) -> Gang:
    return replace(GANG, state=msgspec.structs.replace(STATE, **changes))


def scene(of: Gang | None = GANG, **values: Any) -> Snapshot:
    gangs = {JOB.key: of} if of is not None else {}
    return b.snapshot(
        *values.pop("nodes", ()), jobs=values.pop("jobs", [JOB]), spares=("n7", "n8"), gangs=gangs, **values
    )


def fault(node: str, dead: bool = False) -> Finding:
    return Finding(Signal.HARDWARE_FAULT, "xid.79", node, b.NOW - 1, "fell off the bus", dead=dead)


def hang(node: str = "n2", named: bool = True) -> Finding:
    signal = Signal.GANG_HUNG if named else Signal.GANG_HUNG_UNNAMED
    return Finding(signal, "hang", node if named else "", b.NOW - 60, "no step has ended", job=JOB.key)


def judged(snapshot: Snapshot, *findings: Finding) -> Decision:
    """The one decision about the job or its nodes."""
    (decision,) = (one for one in decide(snapshot, findings, b.config()) if one.subject != "fleet")
    return decision


def planned(snapshot: Snapshot, *findings: Finding) -> Plan:
    plan = judged(snapshot, *findings).plan
    assert plan is not None
    return plan


def inside(snapshot: Snapshot, *findings: Finding) -> AllocationSwapPlan:
    return b.plan_as(AllocationSwapPlan, planned(snapshot, *findings))


def pool(snapshot: Snapshot, *findings: Finding) -> PoolSwapPlan:
    return b.plan_as(PoolSwapPlan, planned(snapshot, *findings))


def test_a_spare_of_its_own_is_preferred() -> None:
    plan = inside(scene(), fault("n2"))
    assert (plan.nodes, plan.claimed, plan.launch) == (("n2",), ("n2",), 2)
    assert plan.steps[:2] == (StepName.DRAIN_NODES, StepName.ORDER_RESTART)


def test_spares_of_the_allocation_are_none_of_the_nodes_that_a_gang_that_hangs_has() -> None:
    named = replace(hang("n2"), detail=HungRanks(ranks=(1,)))
    (found,) = inside(scene(gang(spares=("n4", "n5"))), named).hung_on
    assert (found.node, found.ranks, found.gang_nodes) == ("n2", (1,), len(gang().seats))
    assert len(gang().seats) < len(JOB.slurm.nodes)


RACKS = merged(
    [Domain(DomainKind.RACK, "r1", ("n1", "n2", "n3", "n5")), Domain(DomainKind.RACK, "r2", ("n4", "n6", "n7", "n8"))]
)


@pytest.mark.parametrize("found", [fault("n2"), hang("n2")])
def test_its_launcher_gets_the_spare_that_costs_the_gang_least(found: Finding) -> None:
    snapshot = scene(gang(spares=("n4", "n5")), topology=RACKS)
    plan = inside(snapshot, found)
    assert plan.places == (("n2", "n5"),)
    assert orders_of(plan).places == {"n2": "n5"}
    assert orders_version(orders_of(plan)) != orders_version(orders_of(inside(scene(), found)))


def test_the_sizes_that_its_launcher_reports_count_unless_the_comment_names_some() -> None:
    reported = gang(group_sizes="tp=16 pp=2 fsdp=4 ep=0")
    assert layout_of(scene(reported), JOB).sizes == Parallelism(tensor=16, pipeline=2)
    named = b.job(comment="understudy tp=4")
    assert layout_of(b.snapshot(jobs=[named], gangs={named.key: reported}), named).sizes == Parallelism(tensor=4)


@pytest.mark.parametrize(
    "found",
    [
        fault("n2"),
        fault("n2", dead=True),
        fault("n1", dead=True),
        hang("n2"),
        hang(named=False),
        Finding(Signal.MOVE_ASKED, "operator.move", "n2", b.NOW, "asked for", job=JOB.key),
    ],
)
def test_a_gang_that_has_finished_never_runs_again(found: Finding) -> None:
    for last in (gang(phase=LauncherPhase.LEAVING, ended_well=True), gang(spares=()), None):
        decision = judged(scene(last, ended_well=frozenset({JOB.key})), found)
        assert not isinstance(decision.plan, SwapPlan)
        assert "not to run again (every rank of its last launch has ended well)" in decision.reason


@pytest.mark.parametrize(("found", "leaves"), [(fault("n2"), True), (hang("n2"), False), (hang(named=False), False)])
def test_a_job_with_other_work_after_its_gang_leaves_a_bad_node_and_does_not_hang(found: Finding, leaves: bool) -> None:
    done = frozenset({JOB.key})
    last = gang(phase=LauncherPhase.LEAVING, ended_well=True)
    decision = judged(scene(last, ended_well=done, past_its_gang=done), found)
    assert isinstance(decision.plan, SwapPlan) is leaves
    out = {"nodes": (b.node("n2", NodeState.QUARANTINED),)}
    assert list(stranded(scene(gang(), ended_well=done, past_its_gang=done, **out), frozenset(), b.config().straggler))


def test_a_gang_that_has_finished_is_not_stranded() -> None:
    out = {"nodes": (b.node("n2", NodeState.QUARANTINED),)}
    assert list(stranded(scene(gang(), **out), frozenset(), b.config().straggler))
    assert not list(stranded(scene(gang(), ended_well=frozenset({JOB.key}), **out), frozenset(), b.config().straggler))


def test_a_spare_that_is_out_of_service_has_no_place() -> None:
    snapshot = scene(gang(spares=("n4", "n5")), topology=RACKS, nodes=(b.node("n5", NodeState.QUARANTINED),))
    decision = judged(snapshot, fault("n2"))
    assert b.plan_as(AllocationSwapPlan, decision.plan).places == (("n2", "n4"),)
    assert "replaces n2 with spares of its own allocation" in decision.reason


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (None, "no launcher"),
        (replace(GANG, heard_at=b.NOW - 20), "does not report"),
        (replace(GANG, heard_at=None), "does not report"),
        (gang(phase=LauncherPhase.WAITING), "starts nothing"),
        (gang(spares=()), "0 healthy spares"),
    ],
)
def test_otherwise_the_gang_moves_to_the_pool(of: Gang | None, why: str) -> None:
    snapshot = scene(of)
    assert why in allocation_swap.why_not(snapshot, JOB, [fault("n2")], {"n2"})
    assert planned(snapshot, fault("n2")).kind is RecoveryKind.POOL_SWAP


@pytest.mark.parametrize(
    "spare",
    [
        b.node("n4", NodeState.SUSPECT),
        b.node("n4", NodeState.QUARANTINED),
        b.node("n4", NodeState.UNKNOWN),
        b.node("n4", slurm=b.slurm_node("n4", flags=["DRAIN"])),
        b.node("n4", heard_at=None),
    ],
)
def test_a_spare_about_which_something_bad_is_known_is_not_used(spare: Any) -> None:
    assert allocation_swap.healthy_spares(scene(nodes=[spare]), GANG, ()) == []


def test_a_spare_on_which_a_process_computes_outside_of_the_job_is_not_used() -> None:
    process = StuckProcess(4711, 1000, "python", Stuck.OUTSIDE, 180.0, age_seconds=2000.0)
    nodes, started = [b.node("n4", processes=(process,))], int(b.NOW) - 1000
    assert allocation_swap.healthy_spares(scene(nodes=nodes, jobs=[b.job(start_at=started)]), GANG, ()) == []
    its_own = [b.job(start_at=started - 1000)]
    assert allocation_swap.healthy_spares(scene(nodes=nodes, jobs=its_own), GANG, ()) == ["n4"]


def test_a_spare_taken_out_of_service_in_the_same_round_is_not_used() -> None:
    decisions = decide(scene(), [fault("n2"), fault("n4")], b.config())
    kinds = {one.plan.kind for one in decisions if one.plan}
    assert kinds == {RecoveryKind.POOL_SWAP}


def test_a_gang_that_may_shrink_needs_no_spare() -> None:
    assert planned(scene(gang(spares=(), nodes_min=2)), fault("n2")).kind is RecoveryKind.ALLOCATION_SWAP


def test_a_dead_batch_host_takes_the_launcher_with_it() -> None:
    assert planned(scene(), fault("n1", dead=True)).kind is RecoveryKind.POOL_SWAP
    assert planned(scene(), fault("n2", dead=True)).kind is RecoveryKind.ALLOCATION_SWAP


@pytest.mark.parametrize("finding", [fault("n2"), hang(), hang(named=False)], ids=["fault", "hang", "unnamed hang"])
def test_a_component_of_a_heterogeneous_job_is_left_to_a_person_also_with_a_launcher(finding: Finding) -> None:
    component = replace(JOB, slurm=replace(JOB.slurm, part_of=HETEROGENEOUS_JOB))
    decision = judged(b.snapshot(jobs=[component], spares=("n7", "n8"), gangs={JOB.key: GANG}), finding)
    assert not isinstance(decision.plan, SwapPlan)
    assert "belongs to a heterogeneous job, which Slurm requeues as a whole: left to a person" in decision.reason


def test_a_launcher_that_failed_an_order_gets_no_other_in_this_allocation() -> None:
    assert planned(scene(disobeyed=frozenset({(JOB.key, 0)})), fault("n2")).kind is RecoveryKind.POOL_SWAP
    assert planned(scene(disobeyed=frozenset({(JOB.key, 1)})), fault("n2")).kind is RecoveryKind.ALLOCATION_SWAP


def test_a_dead_node_that_the_launcher_replaced_first_is_still_a_swap() -> None:
    """The time it took is known from the end of the launch that had the node, and may be credited to the job."""
    swapped = gang(seats=("n1", "n4", "n3"), spares=(), lost=("n2",))
    replaced = {(JOB.key, 0): {"n2": (1, b.NOW - 9)}}
    plan = inside(scene(swapped, replaced=replaced), fault("n2", dead=True))
    assert (plan.launch, plan.fault_at) == (1, b.NOW - 9)
    assert StepName.AWAIT_FIRST_STEP in plan.steps
    for much_earlier in ({(JOB.key, 0): {"n2": (0, b.NOW - 900)}}, {(JOB.key, 1): {"n2": (1, b.NOW)}}, {}):
        plan = inside(scene(swapped, replaced=much_earlier), fault("n2", dead=True))
        assert (plan.launch, plan.steps) == (-1, (StepName.DRAIN_NODES, StepName.ORDER_RESTART))


def test_a_job_that_lost_its_batch_host_is_moved_although_slurm_shows_it_as_running() -> None:
    """Slurm with --no-kill only takes the dead node out of it. There was no spare when the node was found dead."""
    left = b.job(nodes=("n2", "n3", "n4"))
    gone = b.node("n1", NodeState.QUARANTINED, slurm=b.slurm_node("n1", flags=["DOWN"]))
    snapshot = b.snapshot(gone, jobs=[left], spares=("n7", "n8"), gangs={left.key: replace(GANG, heard_at=b.NOW - 300)})
    (finding,) = stranded(snapshot, frozenset(), b.config().straggler)
    assert (finding.signal, finding.node) == (Signal.GANG_STRANDED, "n1")
    plan = pool(snapshot, finding)
    assert plan.nodes == ("n1",)
    assert sorted(plan.seats) == ["n2", "n3", "n4", "n7"]


@pytest.mark.parametrize(
    ("asks", "heard_ago", "blamed_in", "nodes", "found"),
    [
        (True, 1.0, 0, ("n1", "n2"), ["n3"]),
        (False, 1.0, 0, ("n1", "n2"), []),
        (True, 60.0, 0, ("n1", "n2"), []),
        (True, 1.0, 1, ("n1", "n2"), []),
        (True, 1.0, 0, ("n1", "n2", "n3"), []),
    ],
    ids=["waits", "runs", "may have ended", "ran on since", "may be found dead"],
)
def test_a_gang_is_stopped_where_its_launcher_waits_for_the_requeue_and_nothing_else_judges_the_node(
    asks: bool, heard_ago: float, blamed_in: int, nodes: tuple[str, ...], found: list[str]
) -> None:
    job = b.job(nodes=nodes)
    waits = gang(seats=("n1", "n2", "n3"), spares=())
    state = msgspec.structs.replace(waits.state, asks_requeue=asks, launch=0)
    gangs = {job.key: replace(waits, state=state, heard_at=b.NOW - heard_ago)}
    replaced = {(job.key, job.slurm.restart_count): {"n3": (blamed_in, b.NOW - 2)}}
    assert [one.node for one in stopped(b.snapshot(jobs=[job], gangs=gangs, replaced=replaced))] == found


@pytest.mark.parametrize(("status", "found"), [(StepStatus.INTENDED, 0), (StepStatus.DONE, 1), (StepStatus.FAILED, 1)])
def test_a_gang_leaves_its_node_once_the_drain_that_was_decided_before_is_over(status: StepStatus, found: int) -> None:
    """slurmctld refuses the drain, and the gang's move begins with a drain as well."""
    plan = QuarantinePlan(steps=(StepName.DRAIN_NODES,), nodes=("n1",), drain_reason="understudy: x")
    drain = RecoveryStep(0, StepName.DRAIN_NODES, status, attempts=1)
    drains = Recovery(1, plan, RecoveryStatus.RUNNING, b.NOW, (drain,))
    snapshot = b.snapshot(b.node("n1", NodeState.QUARANTINED), jobs=[b.job()], recoveries=(drains,))
    assert len([*stranded(snapshot, frozenset(), b.config().straggler)]) == found


def test_the_guards_apply_here_too() -> None:
    assert judged(scene(paused="by hand"), fault("n2")).because is Because.PAUSED
    assert judged(scene(mode=Mode.OBSERVE), fault("n2")).because is Because.DRY_RUN
    full = scene(quarantined_at={"n9": (b.NOW - 1,) * 12})
    assert judged(full, fault("n2")).because is Because.HOURLY_BUDGET


def test_a_requeue_replaces_every_node_of_the_allocation_that_the_gang_has_left() -> None:
    left = b.node("n3", NodeState.QUARANTINED)
    swapped = gang(seats=("n1", "n2", "n4"), spares=(), lost=("n3",))
    plan = pool(scene(swapped, nodes=[left]), fault("n2"))
    assert sorted(plan.seats) == ["n1", "n4", "n7", "n8"]
    assert sorted(plan.nodes) == ["n2", "n3"]


@pytest.mark.parametrize("signal", [Signal.HARDWARE_FAULT, Signal.GANG_HUNG, Signal.GANG_HUNG_UNNAMED])
@pytest.mark.parametrize("free", [0, 1, 2])
def test_a_job_that_was_made_smaller_is_requeued_only_where_there_are_as_many_nodes_as_at_its_start(
    signal: Signal, free: int
) -> None:
    """Slurm would start it on no fewer, and others would take the nodes that it had."""
    job = b.job(nodes=("n1", "n2"))
    name = "" if signal is Signal.GANG_HUNG_UNNAMED else "n2"
    finding = Finding(signal, "x", name, b.NOW - 9, "odd", job=job.key)
    config = b.config(spares={"count": 0, "no_spare": "wait"})
    seen = b.snapshot(jobs=[job], spares=("n7", "n8")[:free], shrunk={job.key: 3})
    moves = [one.plan for one in decide(seen, [finding], config) if isinstance(one.plan, PoolSwapPlan)]
    needed = 1 if signal is Signal.GANG_HUNG_UNNAMED else 2
    assert [len({*plan.seats}) for plan in moves] == ([3] if free >= needed else [])


def test_nodes_that_slurm_took_out_of_the_job_are_counted_as_well() -> None:
    """After `down` a job with --no-kill shows fewer nodes; requeued it wants as many as at first."""
    shown = b.job(nodes=("n1", "n2", "n4"))
    swapped = gang(seats=("n1", "n2", "n4"), spares=(), lost=("n3",))
    left = b.node("n3", NodeState.QUARANTINED)
    shrunk = {shown.key: 4}
    snapshot = b.snapshot(left, jobs=[shown], spares=("n7", "n8"), gangs={shown.key: swapped}, shrunk=shrunk)
    plan = pool(snapshot, fault("n2"))
    assert sorted(plan.seats) == ["n1", "n4", "n7", "n8"]


# -- orders ----------------------------------------------------------------------------------------------------


def quarantined(name: str) -> Any:
    record = NodeRecord(
        name,
        NodeState.QUARANTINED,
        drained_at=b.NOW - 5,
        drain_reason="understudy: xid.79: fell off",
        drain_user="root",
    )
    return b.node(name, record=record)


def orders(snapshot: Snapshot, config: Config | None = None) -> dict[int, LauncherOrders]:
    found = launcher_orders(snapshot, config or b.config(), failures := Failures(b.NOW))
    assert failures.findings == []
    return {job_id: one for job_id, one in found.items() if one is not None}


def ordered(plan: Plan, status: StepStatus = StepStatus.INTENDED) -> Recovery:
    steps = tuple(RecoveryStep(at, name, status if at == 1 else StepStatus.DONE) for at, name in enumerate(plan.steps))
    return Recovery(1, plan, RecoveryStatus.RUNNING, b.NOW, steps)


def test_spares_and_nodes_it_left_are_ordered_bad_by_their_state_alone() -> None:
    assert orders(scene(nodes=[quarantined("n4")]))[7].bad == {"n4": "xid.79: fell off"}
    assert orders(scene(nodes=[quarantined("n4")], mode=Mode.OBSERVE)) == {}
    assert orders(scene(nodes=[b.node("n4", NodeState.QUARANTINED)]))[7].bad == {}, "its drain was not read back yet"


def may_shrink(*nodes: NodeView, of: Gang = GANG, policy: str = "shrink", **values: Any) -> bool:
    """True if the gang may shrink while all nodes outside the allocation are out of service, but those given."""
    out_of_service = [b.node(f"n{number}", NodeState.QUARANTINED) for number in range(5, 9)]
    snapshot = b.snapshot(*out_of_service, *nodes, **{"jobs": [JOB], "gangs": {JOB.key: of}} | values)
    return orders(snapshot, b.config(spares={"no_spare": policy}))[7].may_shrink


def test_where_the_site_wants_it_a_launcher_may_shrink_its_gang_while_there_is_no_other_node() -> None:
    assert may_shrink()
    assert not any(may_shrink(policy=policy) for policy in ("idle", "wait", "page", "preempt"))
    assert not may_shrink(b.node("n8", is_spare=True), spares=["n8"]), "a spare of the pool fits"
    assert not may_shrink(b.node("n8")), "an idle node fits"
    assert may_shrink(b.node("n8"), of=gang(lost=("n5",))), "requeued, it would need two nodes"
    assert may_shrink(b.node("n8"), b.node("n3", NodeState.FOREIGN_DRAIN)), "an administrator has one of its nodes"
    assert not may_shrink(jobs=[replace(JOB, managed=False)])


def test_mode_observe_takes_the_permission_back_and_gives_no_other_order() -> None:
    """The order repeats what stood when it was given: an order replaces all earlier ones. What a recovery has ordered
    stays.
    """
    permitted = gang(spares=("n4",), nodes_min=1)
    seen = b.snapshot(quarantined("n4"), jobs=[JOB], gangs={JOB.key: permitted}, mode=Mode.OBSERVE)
    config = b.config(spares={"no_spare": "shrink"})
    assert orders(seen, config) == {7: LauncherOrders({"n4": "xid.79: fell off"})}
    assert orders(seen) == {}, "the site gives no such permission"
    without = gang(spares=("n4",), nodes_min=len(permitted.seats))
    assert orders(b.changed(seen, gangs={JOB.key: without}), config) == {}
    under_way = replace(seen, recoveries=(ordered(planned(scene(), fault("n2"))),))
    assert orders(under_way, config) == {}


def test_a_launcher_that_leaves_a_node_keeps_the_permission_and_one_whose_gang_moves_to_the_pool_has_none() -> None:
    inside_plan, pool_plan = planned(scene(), fault("n2")), planned(scene(gang(spares=())), fault("n2"))
    assert may_shrink(b.node("n8"), recoveries=(ordered(inside_plan),))
    assert not may_shrink(recoveries=(ordered(pool_plan),))
    credit = launcher_restart_plan(scene(), JOB, b.NOW - 9, 2, 5)
    assert not may_shrink(b.node("n8"), recoveries=(ordered(credit),)), "nothing is ordered, and an idle node fits"
    assert may_shrink(recoveries=(ordered(credit),))


def test_a_seat_is_ordered_bad_only_by_a_plan() -> None:
    snapshot = scene(nodes=[quarantined("n2")])
    assert orders(snapshot)[7].bad == {}
    plan = planned(scene(), fault("n2"))
    assert orders(replace(snapshot, recoveries=(ordered(plan, StepStatus.PLANNED),)))[7].bad == {}
    assert orders(replace(snapshot, recoveries=(ordered(plan),)))[7].bad == {"n2": "xid.79: fell off"}


def layout(of: Gang, *nodes: NodeView, comment: str = "understudy") -> RankLayout | None:
    of = replace(of, state=msgspec.structs.replace(of.state, ranks_per_node=8))
    job = b.job(comment=comment)
    seen = b.snapshot(*nodes, jobs=[job], gangs={job.key: of}, topology=RACKS)
    return orders(seen)[7].layout


def test_a_launcher_learns_the_domains_of_its_nodes_where_groups_of_ranks_need_several() -> None:
    wide = gang(group_sizes="tp=16", spares=("n4", "n5"))
    found = layout(wide)
    assert found is not None
    assert found.group_sizes == "tp=16"
    assert found.domains.keys() == {"n1", "n2", "n3", "n4", "n5"}
    assert found.domains["n1"] == tuple(one.label for one in RACKS.of_node["n1"])
    assert layout(gang(group_sizes="tp=8")) is None, "each group is on one node"
    assert layout(wide, comment="understudy tp=8 checkpoints=/x") is None, "the comment counts"
    named = layout(GANG, comment="understudy tp=16 checkpoints=/x")
    assert named is not None
    assert named.group_sizes == "tp=16"
    assert orders(scene(wide))[7].layout is None, "no topology"


def test_a_spare_on_probation_is_not_taken_for_the_sake_of_the_order() -> None:
    found = layout(gang(group_sizes="tp=16", spares=("n4", "n5")), b.node("n5", NodeState.PROBATION))
    assert found is not None
    assert found.domains.keys() == {"n1", "n2", "n3", "n4"}


# -- hangs -------------------------------------------------------------------------------------------------------


def test_a_hang_makes_a_suspect_and_restarts_the_gang_within_its_allocation() -> None:
    decision = judged(scene(), hang("n2"))
    assert (decision.row, decision.action, decision.to_state) == (100, Action.RESTART_GANG, NodeState.SUSPECT)
    plan = b.plan_as(AllocationSwapPlan, decision.plan)
    assert (plan.nodes, plan.leaving) == ((), ("n2",))
    found = orders(replace(scene(), recoveries=(ordered(plan),)))[7]
    assert (found.bad, found.restart) == ({}, Restart(2, "no step has ended", ("n2",)))


def test_a_hang_that_names_no_node_makes_no_suspect() -> None:
    decision = judged(scene(), hang("n1", named=False))
    assert (decision.row, decision.subject, decision.to_state) == (102, "job 7", None)
    assert b.plan_as(AllocationSwapPlan, decision.plan).leaving == ()


def test_a_job_without_a_launcher_is_requeued_onto_its_seats() -> None:
    plan = pool(scene(None), hang("n1", named=False))
    assert (plan.seats, plan.spares) == (("n1", "n2", "n3", "n4"), ())
    assert plan.nodes == ()
    plan = pool(scene(None), hang("n2"))
    assert (plan.seats, plan.spares, plan.leaving) == (("n1", "n3", "n4", "n7"), ("n7",), ("n2",))
    assert plan.nodes == (), "a hang alone takes no node out of service"


def test_without_a_spare_the_named_node_keeps_its_seat() -> None:
    busy = [b.node(f"n{i}", slurm=b.slurm_node(f"n{i}", "ALLOCATED")) for i in (5, 6, 7, 8)]
    plan = pool(b.snapshot(*busy, jobs=[JOB]), hang("n2"))
    assert (plan.seats, plan.leaving) == (("n1", "n2", "n3", "n4"), ())
    plan = pool(b.snapshot(jobs=[JOB]), hang("n2"))
    assert (plan.seats, plan.leaving) == (("n1", "n3", "n4", "n5"), ("n2",))


def test_a_hardware_fault_has_priority_over_a_hang() -> None:
    decisions = decide(scene(), [fault("n3"), hang("n2")], b.config())
    plans = {one.plan for one in decisions if one.plan}
    assert [one.nodes for one in plans] == [("n3",)]


Reached = int | tuple[int, int] | None


@pytest.mark.parametrize(
    ("steps", "now_at", "count"),
    [
        ((), 5, 0),
        ((100,), 100, 1),
        ((100, 100, 100), 100, 3),
        ((100, 100, 100), 101, 0),
        ((100, 100, 150), 150, 1),
        ((None, None, None), None, 3),
        ((None, None, 4), 4, 1),
        ((100, 40, 60), 90, 3),
        (((250, 200), (450, 400)), (650, 600), 2),  # each time at step 50 of a later count
        (((250, 200), (450, 400)), (651, 600), 2),
        (((250, 200), (450, 400)), (670, 600), 0),
        (((250, 200), (350, 200)), (450, 200), 0),  # no number has fallen
        (((3200, 200), (6410, 3400)), (9620, 6600), 2),  # 3,000, 3,010 and 3,020
    ],
)
def test_progress_gives_the_budget_back(steps: Sequence[Reached], now_at: Reached, count: int) -> None:
    def place(reached: Reached) -> Place:
        return Place(*reached) if isinstance(reached, tuple) else Place() if reached is None else Place(reached)

    assert restarts_without_progress(map(place, steps), place(now_at)) == count


@pytest.mark.parametrize("gang", [GANG, None])
def test_the_fourth_hang_at_the_same_step_is_left_to_a_person(gang: Gang | None) -> None:
    hangs = ((JOB.key, Place()),) * 3
    decision = judged(scene(gang, hangs=hangs), hang("n2"))
    assert (decision.plan, decision.because, decision.action) == (None, Because.RESTART_BUDGET, Action.NOTHING)
    assert "a restart of job 7 began 3 times because it hung" in decision.reason
    assert judged(scene(gang, hangs=hangs[:2]), hang("n2")).plan is not None


def test_a_gang_that_is_coming_up_is_left_to_do_so() -> None:
    plan = planned(scene(), fault("n3"))
    assert judged(replace(scene(), recoveries=(ordered(plan, StepStatus.DONE),)), hang("n2")).plan is not None
    waiting = ordered(plan, StepStatus.DONE)
    steps = tuple(replace(step, status=StepStatus.PLANNED) for step in waiting.steps)
    assert judged(replace(scene(), recoveries=(replace(waiting, steps=steps),)), hang("n2")).plan is None


def test_a_hang_opens_an_incident_of_the_gang_whether_it_names_a_node_or_not() -> None:
    unnamed = judged(scene(), hang(named=False))
    assert (unnamed.subject, unnamed.opens_incident, unnamed.row) == ("job 7", True, 102)
    named = judged(scene(), hang("n2"))
    assert (named.subject, named.opens_incident, named.row) == ("n2", True, 100)
    gang = Subject.of_gang(JOB.key)
    assert [one.finding.subject for one in (unnamed, named) if one.finding] == [gang, gang]
    held = judged(scene(paused="by alice"), hang(named=False))
    assert (held.subject, held.opens_incident, held.because) == ("job 7", True, Because.PAUSED)


def test_a_hang_that_names_no_node_is_restarted_on_a_node_that_the_job_asks_for() -> None:
    job = b.job(required_nodes=("n1",))
    decision = judged(b.snapshot(jobs=[job], spares=("n7", "n8")), hang(named=False))
    assert decision.action is Action.RESTART_GANG, decision.reason


def test_a_launcher_that_does_not_obey_is_an_incident_of_the_gang() -> None:
    snapshot = scene(disobeyed=frozenset({(JOB.key, 0)}))
    (finding,) = launches(snapshot)
    decision = judged(snapshot, finding)
    assert (finding.subject, finding.nodes) == (Subject.of_gang(JOB.key), GANG.seats)
    assert (decision.row, decision.action, decision.opens_incident) == (107, Action.NOTHING, True)
    assert list(launches(scene(disobeyed=frozenset({(JOB.key, 1)})))) == [], "the job was requeued since"


def test_a_gang_that_waits_for_a_node_of_an_administrator_has_an_incident() -> None:
    drained = b.node("n2", NodeState.FOREIGN_DRAIN)
    decision = judged(scene(nodes=(drained,)), hang("n2"))
    assert (decision.row, decision.opens_incident) == (101, True)


def test_a_node_whose_self_check_failed_before_the_first_launch_is_recorded_and_no_more() -> None:
    unwell = {"n4": "GPU 3: 12 wrong elements", "n7": "a node of other jobs"}
    snapshot = scene(gang(unwell=unwell), jobs=[b.job(nodes=("n1", "n2", "n3", "n4"))])
    (found,) = launches(snapshot)
    assert (found.signal, found.node, found.rule) == (Signal.RECORDED, "n4", "launches.selfcheck")
    assert "GPU 3: 12 wrong elements; `understudy node validate n4 REASON` tests it" in found.summary
    decision = judged(snapshot, found)
    assert (decision.subject, decision.to_state, decision.plan) == ("n4", None, None)
