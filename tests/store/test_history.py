"""What the database gives for a report: interruptions with their causes, marks, spares that came and went."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sqlalchemy import Engine, insert

from understudy_controlplane.fleet.history import JobHistory, Loss, Mark, PoolChange
from understudy_controlplane.fleet.interruption_cause import GPU, HOST, LAUNCHER, PEOPLE, PROGRAM, SLURM
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    FillPoolPlan,
    LeavePoolPlan,
    Plan,
    PoolSwapPlan,
    StepName,
)
from understudy_controlplane.store import tables
from understudy_controlplane.store.history import HistoryStore

SINCE, UNTIL = 1000.0, 9000.0
SWAP: dict[str, Any] = {"steps": (StepName.REQUEUE_JOB,), "drain_reason": "x", "nodes": ("n1",), "submit_at": 5}


def add(engine: Engine, table: Any, **values: Any) -> int:
    with engine.begin() as connection:
        number: int = connection.execute(insert(table).values(**values).returning(table.c.id)).scalar_one()
        return number


def a_job(engine: Engine, job_id: int = 1, state: str = "RUNNING", **values: Any) -> int:
    shown = {"user": "alice", "user_id": 1, "name": "llm", "managed": True, "restart_count": 0, "seen_at": UNTIL}
    return add(engine, tables.job, cluster="c", job_id=job_id, submit_at=5, state=state, **shown | values)


def an_attempt(engine: Engine, job: int, restart_count: int, begin: float, end: float | None, launch: int = 0) -> None:
    values = {"nodes": ["n1", "n2"] if launch == 0 else [], "last_step": 9, "last_step_at": begin + 100}
    at = {"running_at": begin, "ended_at": end}
    add(engine, tables.attempt, job=job, restart_count=restart_count, launch=launch, **values, **at)
    of = {"job": job, "restart_count": restart_count, "launch": launch, "rank": 0, "world_size": 1, "received_at": 0.0}
    add(engine, tables.rank_start, **of, node="n1", pid=1, started_at=begin + 5)
    add(engine, tables.first_step, **of, step=0, at=begin + 10)


def a_recovery(engine: Engine, plan: Plan, job: int | None, at: float, rule: str = "", **values: Any) -> int:
    shown = {"kind": plan.kind.value, "plan": msgspec.to_builtins(plan), "status": "succeeded", "ended_at": at + 60}
    times = {"fault_at": at - 4, "detected_at": at, "decided_at": at}
    number = add(engine, tables.recovery, job=job, **shown | times | values)
    if rule:
        decided = {"key": "", "table_row": 10, "subject": "n1", "action": "quarantine", "because": "rule", "reason": ""}
        add(engine, tables.decision, at=at, rule=rule, evidence={}, recovery=number, **decided)
    return number


def a_swap(restart_count: int, **values: Any) -> PoolSwapPlan:
    key = JobKey("c", 1, 5)
    return PoolSwapPlan(job=key, restart_count=restart_count, user="alice", seats=("n2", "n3"), **SWAP, **values)


def one_job(engine: Engine) -> JobHistory:
    (found,) = HistoryStore(engine).jobs(SINCE, UNTIL, lambda node: {"n1": 8, "n2": 4}[node])
    return found


def causes(engine: Engine) -> list[tuple[float, object]]:
    return [(one.at, one.cause) for one in one_job(engine).interruptions]


def test_a_recovery_names_its_cause_and_one_that_a_person_asked_for_is_planned(engine: Engine) -> None:
    job = a_job(engine)
    for count, begin in enumerate((1000.0, 2000.0, 3000.0)):
        an_attempt(engine, job, count, begin, begin + 500 if count < 2 else None)
    a_recovery(engine, a_swap(0), job, 1400.0, "xid.79")
    a_recovery(engine, a_swap(1, requested=True), job, 2400.0, "operator.move")
    a_recovery(engine, a_swap(2), job, 3400.0, "xid.79", status="overtaken")
    assert causes(engine) == [(1396.0, GPU), (2396.0, PEOPLE)]


def test_a_plan_that_another_supersedes_is_one_interruption(engine: Engine) -> None:
    job = a_job(engine)
    an_attempt(engine, job, 0, 1000.0, 1500.0)
    a_recovery(engine, a_swap(0), job, 1400.0, "xid.79", status="superseded")
    a_recovery(engine, a_swap(0), job, 1420.0, "silence.node_dead")
    assert causes(engine) == [(1416.0, HOST)]


def test_the_incident_counts_before_the_rule_of_the_decision(engine: Engine) -> None:
    job = a_job(engine)
    an_attempt(engine, job, 0, 1000.0, 1500.0)
    found = {"signal": "", "summary": "", "evidence": {}, "fault_at": 0.0, "opened_at": 0.0}
    incident = add(engine, tables.incident, subject_kind="node", subject="n1", rule="xid.79", **found)
    recovery = a_recovery(engine, a_swap(0), job, 1400.0)
    decided = {"key": "", "table_row": 1, "subject": "n1", "action": "move_gang", "because": "rule", "reason": ""}
    refers = {"incident": incident, "recovery": recovery}
    add(engine, tables.decision, at=1400.0, rule="stranded.gang", evidence={}, **decided, **refers)
    assert causes(engine) == [(1396.0, GPU)]


def test_without_a_recovery_the_launcher_and_then_slurm_name_it(engine: Engine) -> None:
    job = a_job(engine, state="NODE_FAIL")
    an_attempt(engine, job, 0, 1000.0, 1200.0)
    an_attempt(engine, job, 0, 1210.0, 1500.0, launch=1)
    an_attempt(engine, job, 1, 2000.0, 2500.0)
    an_attempt(engine, job, 2, 3000.0, 3500.0)
    ended = {"table_row": "L10", "reason": "", "progressed": True, "counted": True, "failed_node": "", "blamed": []}
    end = {"job": job, "restart_count": 0, "received_at": 0.0, **ended}
    add(engine, tables.launch_end, launch=0, cause="hardware", at=1200.0, **end)
    add(engine, tables.launch_end, launch=1, cause="done", at=1500.0, **end)
    assert causes(engine) == [(1200.0, LAUNCHER), (2500.0, SLURM), (3500.0, HOST)]
    assert one_job(engine).allocations == [(1000.0, 1500.0), (2000.0, 2500.0), (3000.0, 3500.0)]
    ends = [one for one in one_job(engine).marks if one.loss in (Loss.SWAP, Loss.QUEUE)]
    queued = [Mark(at, Loss.QUEUE) for at in (1500.0, 2500.0, 3500.0)]
    assert sorted(ends, key=lambda one: one.at) == [Mark(1200.0, Loss.SWAP), *queued]


@pytest.mark.parametrize(("state", "cause"), [("FAILED", [PROGRAM]), ("COMPLETED", []), ("CANCELLED", [])])
def test_a_job_is_interrupted_by_its_end_where_that_was_a_failure(
    engine: Engine, state: str, cause: list[object]
) -> None:
    an_attempt(engine, a_job(engine, state=state), 0, 1000.0, 1500.0)
    assert [one for _, one in causes(engine)] == cause


def test_a_restart_inside_the_allocation_is_the_launch_s(engine: Engine) -> None:
    job = a_job(engine)
    an_attempt(engine, job, 0, 1000.0, 1200.0)
    an_attempt(engine, job, 0, 1210.0, None, launch=1)
    started = {"node": "n1", "seats": ["n1"], "lost": [], "received_at": 0.0, "restart_count": 0}
    for launch, at in enumerate((1001.0, 1205.0)):
        add(engine, tables.launch_start, job=job, launch=launch, spares=["n2"], at=at, **started)
    plan = AllocationSwapPlan(job=JobKey("c", 1, 5), restart_count=0, launch=0, **SWAP)
    a_recovery(engine, plan, job, 1190.0, "xid.79")
    found = one_job(engine)
    assert [(one.at, one.cause) for one in found.interruptions] == [(1186.0, GPU)]
    assert (found.nodes, found.gpus, found.spare_gpus) == (2, 12, 4)
    assert {Mark(1001.0, Loss.START), Mark(1205.0, Loss.START), Mark(1190.0, Loss.SWAP)} <= {*found.marks}


def test_after_an_attempt_that_no_recovery_ended_the_job_is_in_the_queue(engine: Engine) -> None:
    job = a_job(engine, state="PENDING", account="physics", partition="train")
    an_attempt(engine, job, 0, 1000.0, 1500.0)
    an_attempt(engine, job, 1, 2000.0, 2500.0)
    a_recovery(engine, a_swap(0), job, 1400.0, "xid.79")
    found = one_job(engine)
    assert [one for one in found.marks if one.loss is Loss.QUEUE] == [Mark(2500.0, Loss.QUEUE)]
    assert (found.stands_until, found.account, found.partition) == (UNTIL, "physics", "train")


def test_jobs_that_did_not_ask_for_understudy_or_are_long_over_are_not_in_it(engine: Engine) -> None:
    a_job(engine, 1, managed=False)
    a_job(engine, 2, seen_at=SINCE - 1)
    assert HistoryStore(engine).jobs(SINCE, UNTIL, lambda _: 8) == []


def a_step(engine: Engine, recovery: int, name: StepName, at: float, position: int = 0, **more: str) -> None:
    values = {"recovery": recovery, "position": position, "name": name.value, "attempts": 1}
    values |= {"status": "done", "detail": "", **more}
    with engine.begin() as connection:
        connection.execute(insert(tables.recovery_step).values(done_at=at, **values))


def test_spares_join_and_leave_when_slurm_has_shown_it(engine: Engine) -> None:
    job = a_job(engine)
    fill, leave = StepName.FILL_POOL, StepName.TAKE_SPARES
    a_step(engine, a_recovery(engine, FillPoolPlan(steps=(fill,), spares=("n3", "n4")), None, 1100.0), fill, 1101.0)
    a_step(engine, a_recovery(engine, LeavePoolPlan(steps=(leave,), spares=("n4",)), None, 1200.0), leave, 1201.0)
    a_step(engine, a_recovery(engine, a_swap(0, spares=("n3",)), job, 1400.0), leave, 1401.0)
    failed = a_recovery(engine, FillPoolPlan(steps=(fill,), spares=("n5",)), None, 1500.0)
    a_step(engine, failed, fill, 1501.0, status="failed")
    assert sorted(HistoryStore(engine).pool(SINCE), key=lambda one: one.at) == [
        PoolChange(1101.0, "n3", True),
        PoolChange(1101.0, "n4", True),
        PoolChange(1201.0, "n4", False),
        PoolChange(1401.0, "n3", False, job),
    ]


def test_a_spare_that_a_recovery_gave_back_served_no_job(engine: Engine) -> None:
    """The pool was short of one of the two."""
    swap = a_swap(0, spares=("n3", "n5"), from_pool=("n3", "n5"))
    recovery = a_recovery(engine, swap, a_job(engine), 1400.0, status="cancelled")
    a_step(engine, recovery, StepName.TAKE_SPARES, 1401.0)
    a_step(engine, recovery, StepName.RETURN_SPARES, 1410.0, position=1, detail="n3")
    taken = [PoolChange(1401.0, "n3", False), PoolChange(1401.0, "n5", False)]
    assert HistoryStore(engine).pool(SINCE) == [*taken, PoolChange(1410.0, "n3", True)]


def test_the_records_begin_with_the_first_decision_or_attempt(engine: Engine) -> None:
    history = HistoryStore(engine)
    assert history.begins_at() is None
    job = a_job(engine)
    an_attempt(engine, job, 0, 2000.0, None)
    assert history.begins_at() == 2000.0
    a_recovery(engine, a_swap(0), job, 1400.0, "xid.79")
    assert history.begins_at() == 1400.0
