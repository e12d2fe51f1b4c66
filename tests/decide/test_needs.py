"""What waits for a person: since when, why, and the command that ends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from tests import builders as b
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.decision_context import Entered, Round
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.needs import MASS_SILENCE_SECONDS, needs
from understudy_controlplane.decide.pages import page as page_for
from understudy_controlplane.decide.pages import persons_needed
from understudy_controlplane.decide.spares import joining_pool, leaving_pool
from understudy_controlplane.decide.table import row_without_node
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.slowness_cost import START_SECONDS_MAX
from understudy_controlplane.detect.straggler import NOT_PRICED
from understudy_controlplane.fleet.decision import Action, Quarantine
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.job import LastAttempt
from understudy_controlplane.fleet.need import Need, NeedKind
from understudy_controlplane.fleet.node import DrainKind, NodeState, NodeView
from understudy_controlplane.fleet.recovery import (
    PagePlan,
    PoolSwapPlan,
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    RecoveryStep,
    RepairAttempt,
    StepName,
    StepStatus,
)
from understudy_controlplane.fleet.slurm import SlurmReservation
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_wire.hardware import Stuck, StuckProcess

CONFIG = b.config(spares={"count": 0})


FAULT_OF_N2 = Finding(Signal.HARDWARE_FAULT, "xid.79", "n2", b.NOW, "broken")
FAULT = Finding(Signal.HARDWARE_FAULT, "xid.79", "n3", b.NOW, "broken")


def broken(name: str) -> NodeView:
    return b.node(name, events=(b.xid_event(name, 79),))


def paged(snapshot: Snapshot) -> list[PagePlan]:
    decisions = decide(snapshot, detect(snapshot, CONFIG), CONFIG)
    return [one.plan for one in decisions if isinstance(one.plan, PagePlan)]


def found(snapshot: Snapshot, config: Config = CONFIG) -> list[Need]:
    """Those that a person sees."""
    decisions = decide(snapshot, detect(snapshot, config), config)
    return [one for one in needs(snapshot, decisions, config) if one.is_due(snapshot.now)]


def kinds(snapshot: Snapshot, config: Config = CONFIG) -> list[NeedKind]:
    return [one.kind for one in found(snapshot, config)]


def out(name: str, state: NodeState = NodeState.QUARANTINED, for_seconds: float = 600.0, **values: Any) -> NodeView:
    since = b.NOW - for_seconds
    values = {"since": since, "drained_at": since, "drain_kind": DrainKind.NOW} | values
    record = b.record(name, state, agent_seen_at=b.NOW - 500, slurmd_seen_at=b.NOW - 500, **values)
    slurm = b.slurm_node(name, flags=["DRAIN"], reason="understudy: xid.79")
    return b.node(name, state, slurm=slurm, record=record)


def incidents(*names: str, for_seconds: float = 600.0) -> Mapping[Subject, OpenIncident]:
    return {
        Subject.of_node(name): OpenIncident(
            number, Subject.of_node(name), "xid.79", "hardware_fault", "GPU 3 fell off the bus", b.NOW - for_seconds
        )
        for number, name in enumerate(names, 1)
    }


def test_where_all_is_well_nothing_needs_a_person() -> None:
    assert found(b.snapshot(jobs=[b.job()])) == []


def test_a_quarantined_node_that_nothing_repairs_waits_with_the_command_that_returns_it() -> None:
    (need,) = found(b.snapshot(out("n3"), incidents=incidents("n3")))
    assert (need.kind, need.subject, need.since) == (NeedKind.NODE_OUT, "n3", b.NOW - 600)
    assert need.why == (
        "n3 is quarantined (GPU 3 fell off the bus): nothing repairs it, because `repair.enabled` is false"
    )
    assert "`understudy node release n3 REASON`" in need.command
    assert not need.is_urgent(b.NOW), "it waits until the morning"


def test_a_node_that_is_repaired_does_not() -> None:
    """Its rung ends. One of which no repair begins within an hour does."""
    config = b.config(spares={"count": 0}, repair={"enabled": True}, validation={"enabled": True, "command": "true"})
    held = "timed out"  # that the round begins nothing
    assert kinds(b.snapshot(out("n3"), error=held), config) == []
    assert kinds(b.snapshot(out("n3", NodeState.VALIDATING)), config) == []
    assert kinds(b.snapshot(out("n3", for_seconds=4000.0), error=held), config) == [NeedKind.NODE_OUT]


def test_manual_repair_waits_at_once_and_a_hold_is_its_operators() -> None:
    seen = b.snapshot(out("n3", NodeState.MANUAL_REPAIR, 1.0), out("n4", NodeState.OPERATOR_HOLD))
    (need,) = found(seen)
    assert "manual repair is needed" in need.why


def test_four_nodes_of_nine_the_budget_used_up_one_spare_of_three_and_four_incidents_are_not_green() -> None:
    names = ("n1", "n2", "n3", "n4")
    config = b.config(spares={"count": 3}, guards={"quarantined_nodes_min": 4, "waiting_nodes_min": 0})
    busy = [b.job(nodes=("n5", "n6", "n7", "n9"), job_id=9)]
    working = [b.node(name, slurm=b.slurm_node(name, "ALLOCATED")) for name in busy[0].slurm.nodes]
    seen = b.snapshot(*(out(name) for name in names), *working, incidents=incidents(*names), jobs=busy, spares=("n8",))
    seen = b.changed(seen, waiting_since={"pool_short spares": b.NOW - 600})
    assert kinds(seen, config) == [NeedKind.BUDGET, *[NeedKind.NODE_OUT] * 4, NeedKind.POOL_SHORT]
    pool = found(seen, config)[-1]
    assert "1 spare is held, 3 are wanted" in pool.why
    assert "understudy node release n1 REASON" in pool.command


@pytest.mark.parametrize(
    ("changes", "why", "command"),
    [
        ({"requeue": False}, "--requeue", "`scontrol update jobid=7 requeue=1`"),
        ({"batch": False}, "batch job", "`scancel 7`"),
        ({"part_of": "heterogeneous job"}, "requeues as a whole", "`scontrol requeue 7`"),
        ({"required_nodes": ("n2",)}, "asked for n2 by name", "`scontrol requeue 7`"),
    ],
)
def test_a_gang_that_only_a_person_can_move_is_named_with_its_owner_at_once(
    changes: dict[str, Any], why: str, command: str
) -> None:
    seen = b.snapshot(out("n2", for_seconds=30.0), incidents=incidents("n2"), jobs=[b.job(**changes)], spares=("n8",))
    need = found(seen)[0]
    assert (need.kind, need.subject, need.since) == (NeedKind.GANG_STAYS, "job 7", b.NOW - 30)
    assert need.why.startswith("job 7 (gang) of researcher stays on n2, which is quarantined (GPU 3 fell off the bus)")
    assert (why in need.why, command in need.command, need.is_urgent(b.NOW)) == (True, True, True)


def test_so_is_one_that_would_run_into_a_maintenance() -> None:
    """The day after tomorrow: Slurm would not start the gang on those seats again."""
    start = int(b.NOW) + 2 * 86_400
    work = SlurmReservation("cables", ("n3",), ("root",), frozenset({"MAINT"}), start_at=start)
    job = b.job(time_limit_minutes=10 * 24 * 60)
    seen = b.snapshot(out("n2"), jobs=[job], spares=("n8",), reservations={work.name: work})
    need = found(seen)[0]
    assert (need.kind, "into the time of reservation cables" in need.why) == (NeedKind.GANG_STAYS, True)


def test_a_move_that_an_operator_asks_for_and_that_cannot_be_done_is_answered_and_waits_for_no_person() -> None:
    assert found(b.snapshot(jobs=[b.job(requeue=False)])) == []


def silent(*names: str, for_seconds: float) -> Snapshot:
    return b.snapshot(*(b.node(name, heard_at=b.NOW - for_seconds) for name in names), started_at=b.NOW - 9000)


ALL = tuple(f"n{number}" for number in range(1, 9))


@pytest.mark.parametrize(("seconds", "sent"), [(MASS_SILENCE_SECONDS - 1, 0), (MASS_SILENCE_SECONDS + 1, 1)])
def test_agents_that_are_all_silent_page_a_person_within_minutes(seconds: float, sent: int) -> None:
    """Nothing can be decided meanwhile: no other page would come."""
    seen = silent(*ALL, for_seconds=seconds)
    decisions = decide(seen, detect(seen, CONFIG), CONFIG)
    pages = [one for one in decisions if one.action is Action.PAGE]
    assert [(one.row, b.plan_as(PagePlan, one.plan).about) for one in pages] == [(320, ("fleet",))] * sent
    assert ["8 of 8 agents are silent" in one.reason for one in pages] == [True] * sent


def test_a_single_silent_agent_waits_until_the_morning() -> None:
    (need,) = found(silent("n3", for_seconds=400))
    assert (need.kind, need.subject, need.is_urgent(b.NOW)) == (NeedKind.NODE_SILENT, "n3", False)
    assert found(silent("n3", for_seconds=200)) == []


RAN_ON = ("n1", "n2", "n3", "n4")


def pending(*nodes: NodeView, **values: Any) -> Snapshot:
    """A gang that ran on n1 to n4 was requeued and waits for nodes; other jobs have the others."""
    waiting: dict[str, Any] = {"state": "PENDING", "nodes": (), "node_count": 4, "restart_count": 1}
    job = b.job(**waiting, reason="Resources")
    job = replace(job, slurm=replace(job.slurm, submit_at=int(b.NOW) - 500))
    used = [b.node(name, slurm=b.slurm_node(name, "ALLOCATED")) for name in ("n5", "n6", "n7", "n8")]
    return b.snapshot(*used, *nodes, jobs=[job], last_attempts={job.key: LastAttempt(0, RAN_ON, 41)}, **values)


def test_a_restarted_gang_that_pends_while_nodes_of_its_partition_are_out_names_them() -> None:
    seen = pending(out("n3"), out("n4"))
    assert NeedKind.GANG_PENDS not in kinds(seen), "Slurm has its own delay"
    later = b.changed(seen, waiting_since={"gang_pends job 7": b.NOW - 301})
    need = found(later)[0]
    assert (need.kind, need.since, need.is_urgent(b.NOW)) == (NeedKind.GANG_PENDS, b.NOW - 301, True)
    assert need.why.endswith("was restarted and pends (Resources); of its partition n3, n4 are out of service")


def test_where_people_took_those_nodes_it_waits_until_the_morning() -> None:
    seen = pending(out("n3", NodeState.OPERATOR_HOLD), waiting_since={"gang_pends job 7": b.NOW - 301})
    (need,) = [one for one in found(seen) if one.kind is NeedKind.GANG_PENDS]
    assert not need.is_urgent(b.NOW)


@pytest.mark.parametrize("node", [out("n8"), out("n3", for_seconds=100.0)], ids=["elsewhere", "since the requeue"])
def test_a_gang_that_no_fault_has_stopped_waits_for_the_jobs_that_have_its_nodes(node: NodeView) -> None:
    """It was preempted while any node of its partition is out of service."""
    seen = pending(node)
    assert NeedKind.GANG_PENDS not in kinds(seen)
    assert "n1" in joining_pool(seen, (), b.config(spares={"count": 8})), "the pool may have its nodes"
    stopped = pending(out("n3"))
    assert "n1" not in joining_pool(stopped, (), b.config(spares={"count": 8}))


def test_a_gang_that_a_fault_has_stopped_is_listed_until_it_runs_again() -> None:
    """Its node is back, and other jobs have its seats."""
    (need,) = found(pending(waiting_since={"gang_pends job 7": b.NOW - 301}))
    assert (need.kind, need.subject, need.is_urgent(b.NOW)) == (NeedKind.GANG_PENDS, "job 7", True)
    assert need.why.endswith("was restarted and pends (Resources)")


def test_a_gang_that_a_fault_has_stopped_and_a_limit_keeps_is_listed_with_the_limit() -> None:
    seen = pending(out("n3"), waiting_since={"gang_pends job 7": b.NOW - 301})
    (job,) = seen.jobs.values()
    limited = replace(job, slurm=replace(job.slurm, reason="AssocGrpGRES"))
    (need,) = [one for one in found(b.changed(seen, jobs={job.key: limited})) if one.subject == "job 7"]
    assert need.kind is NeedKind.GANG_PENDS
    assert "pends (AssocGrpGRES)" in need.why


@pytest.mark.parametrize(
    ("since_move", "steps", "is_lost"),
    [(0, None, True), (1, None, False), (1, 12, False)],
    ids=["none", "ran", "steps"],
)
def test_a_gang_that_pends_is_not_back_until_it_has_had_another_attempt_whatever_the_clocks_show(
    since_move: int, steps: int | None, is_lost: bool
) -> None:
    """Both clocks were an hour ahead when Slurm requeued it, which is its submit time since."""
    move = b.plan_as(
        PoolSwapPlan, decide(b.snapshot(broken("n3"), jobs=[b.job()], spares=("n8",)), [FAULT], CONFIG)[0].plan
    )
    failed = Recovery(12, move, RecoveryStatus.FAILED, b.NOW - 400, (), ended_at=b.NOW - 200, outcome="not done")
    seen = pending(lost_gangs=(failed,))
    (job,) = seen.jobs.values()
    job = replace(job, slurm=replace(job.slurm, submit_at=int(b.NOW) + 3400, restart_count=1 + since_move))
    last = {job.key: LastAttempt(since_move, RAN_ON, steps)}
    seen = b.changed(seen, jobs={job.key: job}, last_attempts=last)
    assert (NeedKind.GANG_NOT_BACK in kinds(seen)) is is_lost


@pytest.mark.parametrize(("ended_ago", "is_lost"), [(950.0, True), (300.0, False), (None, True)])
def test_a_gang_that_reports_no_steps_and_ran_on_long_after_its_move_had_failed_ran_since(
    ended_ago: float | None, is_lost: bool
) -> None:
    """The nodes of one that ended soon after may have died under it. An Epilog may put its requeue off for long."""
    move = b.plan_as(
        PoolSwapPlan, decide(b.snapshot(broken("n3"), jobs=[b.job()], spares=("n8",)), [FAULT], CONFIG)[0].plan
    )
    steps = (RecoveryStep(1, StepName.AWAIT_FIRST_STEP, StepStatus.FAILED),)
    failed = Recovery(12, move, RecoveryStatus.FAILED, b.NOW - 1900, steps, ended_at=b.NOW - 1000, outcome="not done")
    job = b.job(state="PENDING", nodes=(), restart_count=2, reason="Resources", priority=7)
    job = replace(job, slurm=replace(job.slurm, submit_at=int(b.NOW - 300)))
    last = LastAttempt(1, RAN_ON, ended_at=None if ended_ago is None else b.NOW - ended_ago)
    seen = b.snapshot(jobs=[job], last_attempts={job.key: last}, lost_gangs=(failed,))
    assert (NeedKind.GANG_NOT_BACK in kinds(seen)) is is_lost


HELD = {"reason": "JobHeldUser", "priority": 0}
PUT_OFF = {"reason": "BeginTime", "start_at": int(b.NOW) + 7 * 24 * 3600}


@pytest.mark.parametrize(
    ("of_job", "since_move", "is_lost"),
    [
        ({}, 1, True),
        (HELD, 1, False),
        (PUT_OFF, 1, False),
        ({}, 2, False),
        ({"managed": False}, 1, True),
        ({"managed": False}, 2, False),
    ],
    ids=["waits", "held", "put off", "another attempt", "opted out", "opted out, another attempt"],
)
def test_a_gang_that_started_after_a_failed_move_and_that_its_owner_keeps_or_that_ran_again_is_not_lost(
    of_job: dict[str, Any], since_move: int, is_lost: bool
) -> None:
    """The training reports no steps, so that nothing showed after the move whether it works."""
    move = b.plan_as(
        PoolSwapPlan, decide(b.snapshot(broken("n3"), jobs=[b.job()], spares=("n8",)), [FAULT], CONFIG)[0].plan
    )
    steps = (RecoveryStep(1, StepName.AWAIT_FIRST_STEP, StepStatus.FAILED),)
    failed = Recovery(12, move, RecoveryStatus.FAILED, b.NOW - 1900, steps, ended_at=b.NOW - 1000, outcome="not done")
    values: dict[str, Any] = {"reason": "Resources", "priority": 7} | of_job
    job = b.job(state="PENDING", nodes=(), restart_count=since_move, **values)
    last = {job.key: LastAttempt(since_move, RAN_ON, None)} if job.managed else {}
    seen = b.snapshot(jobs=[job], last_attempts=last, lost_gangs=(failed,))
    assert (NeedKind.GANG_NOT_BACK in kinds(seen)) is is_lost


@pytest.mark.parametrize(
    "reason",
    ["launch_failure_limit_exceeded_requeued_held", "JobHoldMaxRequeue", "user_env_retrieval_failed_requeued_held"],
)
def test_a_gang_that_slurm_itself_holds_pages_a_person_with_the_way_out(reason: str) -> None:
    held = b.job(state="PENDING", nodes=(), restart_count=6, reason=reason, priority=0)
    seen = b.snapshot(jobs=[held], waiting_since={"gang_held job 7": b.NOW - 59})
    assert NeedKind.GANG_HELD not in kinds(seen), (
        "the release of a job that Understudy kept off a node may be under way"
    )
    seen = b.changed(seen, waiting_since={"gang_held job 7": b.NOW - 60})
    need = found(seen)[0]
    assert (need.kind, need.is_urgent(b.NOW)) == (NeedKind.GANG_HELD, True)
    assert need.why.startswith(f"job 7 (gang) of researcher pends: Slurm itself holds it ({reason})")
    assert "`scontrol release 7`" in need.command
    assert [one.about for one in paged(seen)] == [("job 7",)]


def test_a_restarted_gang_whose_request_fits_no_node_any_more_is_one_need_with_the_cause() -> None:
    """Slurm gives it the priority 0 and looks at it no more, also when its nodes are back."""
    seen = pending(
        out("n3"), out("n4"), waiting_since={"gang_held job 7": b.NOW - 900, "gang_pends job 7": b.NOW - 900}
    )
    (job,) = seen.jobs.values()
    unfit = replace(job, slurm=replace(job.slurm, reason="BadConstraints", priority=0))
    (need,) = [one for one in found(b.changed(seen, jobs={job.key: unfit})) if one.subject == "job 7"]
    assert need.kind is NeedKind.GANG_HELD
    assert need.why.endswith("of researcher pends: what it asks for fits no node that Slurm has now (BadConstraints)")
    assert "`scontrol release 7`" in need.command
    never_ran = replace(unfit, slurm=replace(unfit.slurm, restart_count=0))
    assert NeedKind.GANG_HELD not in kinds(b.changed(seen, jobs={job.key: never_ran})), "its owner's to mend"


@pytest.mark.parametrize("reason", ["JobHoldMaxRequeue", "BurstBufferOperation"])
def test_a_gang_that_slurm_holds_does_not_wait_for_nodes(reason: str) -> None:
    seen = pending(
        out("n3"), out("n4"), waiting_since={"gang_held job 7": b.NOW - 900, "gang_pends job 7": b.NOW - 900}
    )
    (job,) = seen.jobs.values()
    held = replace(job, slurm=replace(job.slurm, reason=reason, priority=0))
    assert [one.kind for one in found(b.changed(seen, jobs={job.key: held})) if one.subject == "job 7"] == [
        NeedKind.GANG_HELD
    ]


def test_a_gang_that_is_not_back_because_slurm_holds_it_pages_a_person_once() -> None:
    move = b.plan_as(
        PoolSwapPlan, decide(b.snapshot(broken("n3"), jobs=[b.job()], spares=("n8",)), [FAULT], CONFIG)[0].plan
    )
    failed = Recovery(12, move, RecoveryStatus.FAILED, b.NOW - 900, (), ended_at=b.NOW, outcome="failed")
    held = b.job(state="PENDING", nodes=(), restart_count=6, reason="JobHoldMaxRequeue", priority=0)
    seen = b.snapshot(jobs=[held], waiting_since={"gang_held job 7": b.NOW - 60}, lost_gangs=(failed,))
    (need,) = [one for one in found(seen) if one.subject == "job 7"]
    assert (need.kind, "`scontrol release 7`" in need.command) == (NeedKind.GANG_NOT_BACK, True)


@pytest.mark.parametrize(
    "changes",
    [{"reason": "JobHeldUser"}, {"reason": "job_requeued_in_held_state"}, {"managed": False}, {"priority": 7}],
)
def test_a_job_that_a_person_holds_and_one_of_others_page_no_person(changes: dict[str, Any]) -> None:
    values: dict[str, Any] = {"state": "PENDING", "nodes": (), "reason": "JobHoldMaxRequeue", "priority": 0} | changes
    seen = b.snapshot(jobs=[b.job(**values)], waiting_since={"gang_held job 7": b.NOW - 900})
    assert NeedKind.GANG_HELD not in kinds(seen)


def test_a_gang_that_this_round_gives_new_nodes_is_not_lost() -> None:
    """Its move has failed just now: without a spare a person is paged, with one it starts again."""
    move = b.plan_as(
        PoolSwapPlan, decide(b.snapshot(broken("n3"), jobs=[b.job()], spares=("n8",)), [FAULT], CONFIG)[0].plan
    )
    failed = Recovery(12, move, RecoveryStatus.FAILED, b.NOW - 900, (), ended_at=b.NOW, outcome="failed")
    assert NeedKind.GANG_NOT_BACK in kinds(pending(out("n3"), lost_gangs=(failed,)))
    spare = b.node("n8", is_spare=True)
    assert NeedKind.GANG_NOT_BACK not in kinds(pending(out("n3"), spare, spares=("n8",), lost_gangs=(failed,)))


@pytest.mark.parametrize(
    ("step", "ended_after", "is_lost"),
    [
        (StepName.AWAIT_PROCESSES, 200.0, True),
        (StepName.AWAIT_FIRST_STEP, 200.0, True),
        (StepName.AWAIT_PROCESSES, 900.0, False),
        (StepName.START_JOB, 200.0, False),
    ],
)
def test_a_gang_that_was_not_seen_again_is_not_back_when_slurm_gives_it_up(
    step: StepName, ended_after: float, is_lost: bool
) -> None:
    """All its new nodes died before a rank was heard, which Slurm finds after SlurmdTimeout."""
    move = b.plan_as(
        PoolSwapPlan, decide(b.snapshot(broken("n3"), jobs=[b.job()], spares=("n8",)), [FAULT], CONFIG)[0].plan
    )
    steps = (RecoveryStep(1, step, StepStatus.FAILED),)
    failed = Recovery(12, move, RecoveryStatus.FAILED, b.NOW - 1900, steps, ended_at=b.NOW - 1000, outcome="not done")
    over = b.job(state="FAILED", end_at=int(b.NOW - 1000 + ended_after))
    seen = b.snapshot(out("n3"), jobs=[over], lost_gangs=(failed,), slurmd_timeout_seconds=300)
    assert (NeedKind.GANG_NOT_BACK in kinds(seen)) is is_lost


def test_a_job_whose_owner_opts_out_in_the_middle_of_its_move_is_not_lost_in_silence() -> None:
    """Understudy has ended its attempt, and changes it no more."""
    move = b.plan_as(
        PoolSwapPlan, decide(b.snapshot(broken("n3"), jobs=[b.job()], spares=("n8",)), [FAULT], CONFIG)[0].plan
    )
    failed = Recovery(12, move, RecoveryStatus.FAILED, b.NOW - 900, (), ended_at=b.NOW, outcome="over: FAILED")
    left = b.job(managed=False, state="FAILED", comment="")
    need = found(b.snapshot(out("n3"), jobs=[left], lost_gangs=(failed,)))[0]
    assert (need.kind, need.subject, need.is_urgent(b.NOW)) == (NeedKind.GANG_NOT_BACK, "job 7", True)
    assert "Slurm shows it as FAILED" in need.why


def test_a_rule_over_its_budget_is_one_need_for_all_nodes_that_it_holds_back() -> None:
    """Since the first node that it took out within a day, also after a restart of the control plane."""
    taken = tuple(Quarantine(b.NOW - 4000 + i, f"n{i + 10}", "xid.79") for i in range(12))
    config = b.config(spares={"count": 0}, guards={"breaker_nodes_min": 50})
    seen = b.snapshot(
        broken("n2"), broken("n3"), quarantines=taken, incidents=incidents("n2", "n3", for_seconds=4000.0)
    )
    (need,) = found(seen, config)
    assert (need.kind, need.subject, need.since) == (NeedKind.HELD_BACK, "rule xid.79", b.NOW - 4000)
    assert need.is_urgent(b.NOW)


def test_a_rule_pages_once_a_day_for_its_budget_also_where_a_slot_frees() -> None:
    """It takes out one node an hour: once the oldest is a day ago, each further one fills the budget again."""
    page = RepairAttempt(1, "needs.held_back rule xid.79", RecoveryKind.PAGE, None, b.NOW, RecoveryStatus.SUCCEEDED)
    config = b.config(spares={"count": 0}, guards={"breaker_nodes_min": 50})

    def pages_after(hours: int, **values: Any) -> list[PagePlan]:
        hour = 3600.0
        taken = tuple(Quarantine(b.NOW + i * hour, f"n{i + 20}", "xid.79") for i in range(-11, hours + 1))
        seen = b.snapshot(broken("n2"), quarantines=taken, incidents=incidents("n2", for_seconds=1.0), **values)
        seen = replace(seen, now=b.NOW + hours * hour + 60)
        (need,) = (one for one in needs(seen, decide(seen, [FAULT_OF_N2], config), config) if "rule" in one.subject)
        findings = [*persons_needed(Round(seen, config), [need])]
        current = Round(seen, config)
        return [
            b.plan_as(PagePlan, one.plan)
            for one in page_for(current, [Entered(row_without_node(f.signal), f) for f in findings])
        ]

    assert [one.keys for one in pages_after(0)] == [(page.node,)]
    assert [len(pages_after(hours, attempts=(page,))) for hours in (0, 13, 20, 24)] == [0, 0, 0, 1]
    assert len(pages_after(13, attempts=(page,), breaker_reset_at=b.NOW + 1800)) == 1, "a person had a look meanwhile"


def test_a_rule_over_the_budget_of_its_week_waits_since_the_last_node_that_it_took_out() -> None:
    """Its findings come and go: the page is for the overrun, not for each of them."""
    days = 24 * 3600.0
    taken = tuple(Quarantine(b.NOW - 2 * days - i * 3600.0, f"n{i + 20}", "xid.79") for i in range(30))
    seen = b.snapshot(broken("n2"), quarantines=taken, incidents=incidents("n2", for_seconds=1.0))
    config = b.config(spares={"count": 0}, guards={"breaker_nodes_min": 50})
    (need,) = (one for one in needs(seen, decide(seen, [FAULT_OF_N2], config), config) if "rule" in one.subject)
    assert need.since == b.NOW - 2 * days


def test_a_gang_on_a_slow_gpu_whose_checkpoints_are_not_known_is_a_need() -> None:
    slow = Finding(
        Signal.STRAGGLER_SUSPECTED, NOT_PRICED, "n2", b.NOW, "slow", job=b.job().key, lost_seconds=START_SECONDS_MAX
    )
    seen = b.snapshot(jobs=[b.job()])
    (need,) = needs(seen, (), CONFIG, [slow])
    assert (need.kind, need.subject, need.is_urgent(b.NOW)) == (NeedKind.GANG_SLOW, "job 7", True)
    assert "understudy job move 7 REASON --off n2" in need.command
    assert needs(seen, (), CONFIG, [replace(slow, lost_seconds=START_SECONDS_MAX - 1)]) == ()
    assert needs(b.changed(seen, paused_jobs={b.job().key: "alice: looks"}), (), CONFIG, [slow]) == ()


def test_a_gang_that_stays_pages_once_also_when_the_control_plane_begins_again() -> None:
    """Each start would count as its beginning if nothing else showed since when."""
    record = b.record("n2", NodeState.RETIRED)
    retired = b.node("n2", slurm=b.slurm_node("n2", flags=["DRAIN"]), record=record, events=(b.xid_event("n2", 79),))
    seen = b.snapshot(retired, jobs=[b.job(requeue=False)], spares=("n8",))
    assert [one.about for one in paged(seen)] == [("job 7",)]
    sent = RepairAttempt(1, "needs.gang_stays job 7", RecoveryKind.PAGE, None, b.NOW - 900, RecoveryStatus.SUCCEEDED)
    assert paged(b.changed(seen, attempts=(sent,))) == []


def test_nodes_of_a_dead_gang_that_slurm_may_miscount_are_named_until_slurmctld_starts_again() -> None:
    move = b.plan_as(
        PoolSwapPlan, decide(b.snapshot(broken("n3"), jobs=[b.job()], spares=("n8",)), [FAULT], CONFIG)[0].plan
    )
    dead = msgspec.structs.replace(move, dead_nodes=("n1", "n2"))
    seen = b.snapshot(miscounted=(Recovery(12, dead, RecoveryStatus.SUCCEEDED, b.NOW - 900, (), ended_at=b.NOW),))
    (need,) = needs(seen, (), CONFIG)
    assert (need.kind, need.subject, need.is_urgent(b.NOW)) == (NeedKind.RECONFIGURE, "recovery 12", False)
    assert "n1, n2" in need.why
    assert "scontrol reconfigure" in need.command
    assert needs(b.changed(seen, slurmctld_started_at=b.NOW - 60), (), CONFIG) == ()


def test_what_was_paged_for_the_same_subject_for_another_reason_does_not_count() -> None:
    """Each has a ticket of its own."""
    seen = b.changed(silent(*ALL, for_seconds=MASS_SILENCE_SECONDS + 1), breaker="", jobs={b.job().key: b.job()})
    other = RepairAttempt(1, "needs.budget fleet", RecoveryKind.PAGE, None, b.NOW - 1, RecoveryStatus.SUCCEEDED)
    (page,) = paged(b.changed(seen, attempts=(other,)))
    assert page.keys == ("needs.agents_silent fleet",)
    needs_now = [Need(kind, "fleet", b.NOW - 9, "x", page_seconds=0.0) for kind in (NeedKind.BUDGET, NeedKind.NODE_OUT)]
    current = Round(b.snapshot(), CONFIG)
    entered = [Entered(row_without_node(one.signal), one) for one in persons_needed(current, needs_now)]
    labels = [b.plan_as(PagePlan, one.plan).label for one in page_for(current, entered)]
    assert len(labels) == len(set(labels)) == 2


def test_what_has_no_time_of_its_own_began_when_it_was_seen_first() -> None:
    seen = b.snapshot(breaker="eight at once")
    assert [one.since for one in found(seen)] == [b.NOW]
    assert [one.since for one in found(b.changed(seen, waiting_since={"breaker fleet": b.NOW - 77}))] == [b.NOW - 77]


def test_an_incident_that_nothing_ends_waits_after_an_hour_and_is_named_once() -> None:
    suspect = b.node("n3", NodeState.SUSPECT)
    seen = b.snapshot(suspect, incidents=incidents("n3", for_seconds=4000.0))
    assert kinds(seen) == [NeedKind.INCIDENT]
    assert kinds(b.snapshot(suspect, incidents=incidents("n3"))) == []
    assert kinds(b.snapshot(out("n3"), incidents=incidents("n3", for_seconds=4000.0))) == [NeedKind.NODE_OUT]
    assert kinds(b.snapshot(out("n3", NodeState.OPERATOR_HOLD), incidents=incidents("n3", for_seconds=4000.0))) == []


def test_where_it_only_observes_all_incidents_are_one_need() -> None:
    seen = b.snapshot(mode=Mode.OBSERVE, incidents=incidents("n1", "n2"))
    (need,) = found(seen)
    assert (need.kind, need.since) == (NeedKind.ONLY_OBSERVED, b.NOW - 600)
    assert "2 incidents are open, and the control plane only observes" in need.why


def test_urgent_needs_of_any_kind_have_a_command() -> None:
    seen = b.snapshot(out("n2"), breaker="eight at once", jobs=[b.job(requeue=False)], incidents=incidents("n2"))
    assert all("`" in one.command for one in found(seen))


COMPUTES = ((1, 140.0), (2, 140.0), (3, 600.0), (4, 140.0))


def without_a_step(startup: float = 0.0, **job: Any) -> list[Need]:
    table = replace(b.step_table([[]]), advanced_at=0.0, heard_since=b.NOW - 1900)
    table = replace(table, durations=replace(table.durations, startup=startup))
    one = b.job(nodes=["n1"], **job)
    snapshot = b.snapshot(jobs=[one], tables={one.key: table}, started_at=b.NOW - 1950)
    return [each for each in needs(snapshot, (), CONFIG, detect(snapshot, CONFIG)) if "no first step" in each.why]


def test_a_gang_that_makes_no_first_step_waits_for_a_person_where_no_earlier_start_is_known() -> None:
    """A control plane that has started since has forgotten how long its starts take, and if it made steps."""
    (before,) = without_a_step(start_at=int(b.NOW) - 4000)
    assert (before.kind, before.since, before.is_urgent(b.NOW)) == (NeedKind.GANG_UNHEARD, b.NOW - 1900, True)
    (new,) = without_a_step(start_at=int(b.NOW) - 1940)
    assert not new.is_urgent(b.NOW), "its first start may take long"
    assert without_a_step(startup=60.0) == [], "it hangs, and is restarted"


def test_a_gang_whose_ranks_wait_for_one_that_computes_is_listed_and_before_its_first_step_paged() -> None:
    nodes = [b.node(f"n{i}", gpus=(b.gpu(power_watts=watts, power_limit_watts=700.0),)) for i, watts in COMPUTES]
    places: dict[str, Any] = {"sequences": np.array([3, 3, 2, 3]), "inside": np.array([True, True, False, True])}
    starting: dict[str, Any] = {"advanced_at": 0.0, "heard_since": b.NOW - 1900}
    for steps, urgent in ((starting, True), ({}, False)):
        table = replace(b.step_table([[0.1] * 20] * 4, advanced_at=b.NOW - 1900), longest_pause_seconds=2.0, **places)
        one = b.job(start_at=int(b.NOW) - 1940)
        tables = {one.key: replace(table, **steps)}
        snapshot = b.snapshot(*nodes, jobs=[one], tables=tables, started_at=b.NOW - 1950)
        (need,) = needs(snapshot, (), CONFIG, detect(snapshot, CONFIG))
        assert (need.kind, need.since, need.is_urgent(b.NOW)) == (NeedKind.GANG_UNHEARD, b.NOW - 1900, urgent)
        assert "rank 2" in need.why
        assert "computes" in need.why
        paused = b.changed(snapshot, paused_jobs={one.key: "alice: looks"})
        assert needs(paused, (), CONFIG, detect(paused, CONFIG)) == ()


def occupied(*names: str, seconds: float = 900.0) -> list[NodeView]:
    process = StuckProcess(4711, 1001, "python", Stuck.OUTSIDE, seconds, gpus=["n1"])
    return [b.node(name, processes=(process,), is_spare=True) for name in names]


def test_a_spare_on_which_a_user_computes_outside_of_slurm_is_replaced_and_a_need_names_the_user() -> None:
    config = b.config(spares={"count": 1})
    seen = b.snapshot(*occupied("n8"), b.node("n9"), spares=("n8",), jobs=[])
    (need,) = [one for one in found(seen, config) if one.kind is NeedKind.SPARE_OCCUPIED]
    assert (need.subject, need.page_seconds) == ("n8", None)
    assert need.since == pytest.approx(b.NOW - 900.0, abs=1.0)
    assert need.why.startswith("no gang can use spare n8: process 4711 (python; user id 1001) has GPU n1 open")
    assert "`ps -fp 4711` on n8, and `kill 4711`" in need.command
    assert len(joining_pool(seen, (), config)) == 1
    new = b.snapshot(*occupied("n8", seconds=500.0), b.node("n9"), spares=("n8",), jobs=[])
    assert (kinds(new, config), joining_pool(new, (), config)) == ([], ()), "it may end by itself"
    ended = b.snapshot(spares=("n7", "n8"), jobs=[])
    assert len(leaving_pool(ended, config)) == 1, "the pool has one size"
    replaced = b.snapshot(*occupied("n8"), b.node("n9", is_spare=True), spares=("n8", "n9"), jobs=[])
    assert (leaving_pool(replaced, config), joining_pool(replaced, (), config)) == ((), ())


def test_users_who_compute_on_spares_make_the_pool_twice_as_large_at_most() -> None:
    config = b.config(spares={"count": 1})
    seen = b.snapshot(*occupied("n7", "n8"), spares=("n7", "n8"), jobs=[])
    assert joining_pool(seen, (), config) == ()
    assert kinds(seen, config) == [NeedKind.SPARE_OCCUPIED] * 2
