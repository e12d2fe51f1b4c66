"""What another user has reserved is neither tested nor taken into the pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.decide import guards
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.spares import free_spares, joining_pool, leaving_pool, takes_into_pool
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.operator import Request, Verb
from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX, PoolSwapPlan
from understudy_controlplane.fleet.slurm import POOL_USER, SlurmReservation
from understudy_controlplane.fleet.snapshot import Snapshot

VALIDATION = {"enabled": True, "burn_in_hours": 2}
CONFIG = b.config(spares={"count": 2}, validation=VALIDATION)
HELD = SlurmReservation(f"{NODE_HOLD_PREFIX}n5", ("n5",), ("root",), frozenset({"IGNORE_JOBS"}))
WEEK_SECONDS = 7 * 24 * 3600


def of_bob(*nodes: str, start_at: float = b.NOW - 60, flags: tuple[str, ...] = ()) -> SlurmReservation:
    return SlurmReservation("bobs", nodes, ("bob",), frozenset(flags), int(start_at))


def scene(*reservations: SlurmReservation, spares: tuple[str, ...] = (), **values: Any) -> Snapshot:
    pool = SlurmReservation("understudy_spares", spares, (POOL_USER,), frozenset({"IGNORE_JOBS"}))
    known = {one.name: one for one in (*reservations, *([pool] if spares else []))}
    return b.snapshot(spares=spares, reservations=known, **values)


@pytest.mark.parametrize("start_at", [b.NOW - 60, b.NOW + WEEK_SECONDS])
def test_a_node_on_its_way_back_joins_no_pool_where_another_user_has_reserved_it(start_at: float) -> None:
    def joins(snapshot: Snapshot) -> bool:
        return takes_into_pool(snapshot, snapshot.nodes["n5"], CONFIG)

    assert joins(scene(HELD, of_bob("n6")))
    assert not joins(scene(HELD, of_bob("n5", start_at=start_at)))
    assert not joins(scene(HELD, of_bob("n5", start_at=start_at), spare_choices={"n5": True})), "nor on request"


def test_a_spare_that_another_user_has_reserved_leaves_the_pool_and_is_replaced() -> None:
    """One that stayed would be one too many when that reservation is over."""
    reserved = scene(of_bob("n7"), spares=("n7", "n8"))
    assert free_spares(reserved, CONFIG) == ["n8"]
    assert (leaving_pool(reserved, CONFIG), joining_pool(reserved, (), CONFIG)) == (("n7",), ())
    assert joining_pool(scene(of_bob("n7"), spares=("n8",)), (), CONFIG) == ("n6",)
    assert leaving_pool(scene(of_bob("n6"), spares=("n7", "n8")), CONFIG) == ()
    maintained = scene(of_bob("n7", "n8", flags=("MAINT",)), spares=("n7", "n8"))
    assert (leaving_pool(maintained, CONFIG), joining_pool(maintained, (), CONFIG)) == ((), ())


ANNOUNCED = SlurmReservation(
    "maint",
    tuple(f"n{i}" for i in range(1, 9)),
    ("root",),
    frozenset({"MAINT", "IGNORE_JOBS"}),
    int(b.NOW) + WEEK_SECONDS // 2,
)


@pytest.mark.parametrize(("minutes", "moves"), [(24 * 60, True), (7 * 24 * 60, False), (None, False)])
@pytest.mark.parametrize("spares", [("n7",), ()])
def test_a_maintenance_of_all_nodes_that_is_announced_keeps_off_only_gangs_that_would_run_into_it(
    minutes: int | None, moves: bool, spares: tuple[str, ...]
) -> None:
    job = b.job(time_limit_minutes=minutes)
    fault = Finding(Signal.HARDWARE_FAULT, "xid.79", "n2", b.NOW - 1, "off the bus")
    snapshot = scene(ANNOUNCED, spares=spares, jobs=[job])
    (decision,) = [one for one in decide(snapshot, [fault], CONFIG) if one.subject == "n2"]
    assert isinstance(decision.plan, PoolSwapPlan) is moves
    assert moves or "reservation maint" in decision.reason


def test_a_maintenance_of_some_nodes_leaves_a_gang_the_others() -> None:
    rack = replace(ANNOUNCED, nodes=("n5", "n6", "n7"))
    fault = Finding(Signal.HARDWARE_FAULT, "xid.79", "n2", b.NOW - 1, "off the bus")
    snapshot = scene(rack, spares=("n7",), jobs=[b.job(time_limit_minutes=7 * 24 * 60)])
    (decision,) = [one for one in decide(snapshot, [fault], CONFIG) if one.subject == "n2"]
    assert b.plan_as(PoolSwapPlan, decision.plan).spares == ("n8",)


def test_the_pool_is_filled_until_a_maintenance_begins() -> None:
    ahead, begun = scene(ANNOUNCED, spares=("n7",)), scene(replace(ANNOUNCED, start_at=int(b.NOW) - 1), spares=("n7",))
    assert (free_spares(ahead, CONFIG), joining_pool(ahead, (), CONFIG)) == (["n7"], ("n8",))
    assert takes_into_pool(ahead, ahead.nodes["n5"], CONFIG)
    assert (free_spares(begun, CONFIG), joining_pool(begun, (), CONFIG)) == ([], ())


def test_a_node_is_not_tested_in_the_time_that_another_user_has_reserved() -> None:
    def objection(*reservations: SlurmReservation, **values: Any) -> str:
        found = guards.object_to_test(scene(*reservations, **values), "n5", CONFIG)
        return found.words if found else ""

    assert objection(HELD, of_bob("n6")) == ""
    assert objection(of_bob("n5")) == "", "a team has its nodes for years, and waits for one test"
    assert objection(of_bob("n5", flags=("MAINT", "IGNORE_JOBS"))), "an administrator works there"
    assert objection(of_bob("n5", start_at=b.NOW + 1800)), "it may take an hour"
    soon = of_bob("n5", start_at=b.NOW + 5400)
    assert objection(soon) == ""
    assert objection(soon, requests={"n5": Request(1, "n5", Verb.BURN_IN, "new", "alice", b.NOW)}), "for two hours"
