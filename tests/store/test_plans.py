"""Plans in the database: each kind is read as it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from sqlalchemy import Engine, insert

from tests import builders as b
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    Plan,
    PoolSwapPlan,
    RecoveryKind,
    RepairPlan,
    ReturnPlan,
    Rung,
    TakeBackPlan,
    ValidationPlan,
)
from understudy_controlplane.observe.recovery_history import RecoveryHistory
from understudy_controlplane.store import tables
from understudy_controlplane.store.recoveries import RecoveryStore, plan_of

STORED: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "plans.json").read_text())
"""A plan of each kind, as the column of `recovery` has it."""


def read(kind: RecoveryKind) -> Plan:
    return next(plan_of(stored["kind"], stored) for stored in STORED if stored["kind"] == kind)


def test_there_is_one_type_for_each_kind_and_an_example_of_each() -> None:
    assert {plan.kind for plan in get_args(Plan)} == set(RecoveryKind)
    assert set(RecoveryKind) == {RecoveryKind(one["kind"]) for one in STORED}


@pytest.mark.parametrize("stored", STORED, ids=lambda one: one["kind"])
def test_a_plan_is_written_as_it_was_read(stored: dict[str, Any]) -> None:
    written = json.loads(msgspec.json.encode(plan_of(stored["kind"], stored)))
    assert {name: written.get(name) for name in stored} == stored


def test_an_open_recovery_goes_on_with_its_own_nodes_seats_and_gpus() -> None:
    pool = b.plan_as(PoolSwapPlan, read(RecoveryKind.POOL_SWAP))
    assert (pool.nodes, pool.dead_nodes, pool.seats) == (("n2",), ("n2",), ("n1", "n3", "n4", "n6"))
    assert (pool.job.job_id, pool.user, pool.restart_count, pool.reservation) == (4711, "alice", 1, "maint")
    inside = b.plan_as(AllocationSwapPlan, read(RecoveryKind.ALLOCATION_SWAP))
    assert (inside.launch, inside.time_limit_minutes, inside.credit_minutes_max) == (2, 600, 30)
    repair = b.plan_as(RepairPlan, read(RecoveryKind.REPAIR))
    assert (repair.rung, repair.label, repair.gpus) == (Rung.RESET_GPU, "n2-1760000600", ("0000:3B:00",))
    test = b.plan_as(ValidationPlan, read(RecoveryKind.VALIDATE))
    assert (test.rung, test.hours, test.suspect) == (Rung.RESTART_APP, 24.0, True)
    back = b.plan_as(ReturnPlan, read(RecoveryKind.RETURN))
    assert (back.weight, back.weight_before, back.supersedes) == (1000, 7, 41)
    assert b.plan_as(TakeBackPlan, read(RecoveryKind.TAKE_BACK)).renamed_nodes == ("n2",)


def test_they_are_read_from_the_database(engine: Engine) -> None:
    with engine.begin() as connection:
        for stored in STORED:
            values = {"kind": stored["kind"], "plan": stored, "status": "running", "outcome": ""}
            times = dict.fromkeys(("fault_at", "detected_at", "decided_at"), b.NOW)
            connection.execute(insert(tables.recovery).values(**values, **times))
    assert [one.plan.kind for one in RecoveryStore(engine).running()] == [one["kind"] for one in STORED]
    history = RecoveryHistory(RecoveryStore(engine))
    history.refresh(0.0)
    assert [(one.node, one.rung) for one in history.attempts_since(0.0)] == [
        ("n2", Rung.RESET_GPU),
        ("n2", Rung.RESTART_APP),
        ("n2", Rung.MANUAL_REPAIR),
        ("xid.79 n2", None),
    ]
