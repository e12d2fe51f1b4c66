"""What a guard holds back for long pages a person, once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.needs import needs
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action, Decision
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.recovery import PagePlan, RecoveryKind, RecoveryStatus, RepairAttempt, StepName
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_wire.launcher import LauncherPhase, LauncherState

FULL: dict[str, Any] = {"quarantined_at": {"n9": (b.NOW - 5,) * 12}}


def broken(*names: str, for_seconds: float = 3700.0, **values: Any) -> Snapshot:
    nodes = (b.node(name, events=(b.xid_event(name, 79, b.NOW - for_seconds),)) for name in names)
    subjects = [Subject.of_node(name) for name in names]
    incidents = {
        subject: OpenIncident(i, subject, "xid.79", "hardware_fault", "broken", b.NOW - for_seconds)
        for i, subject in enumerate(subjects)
    }
    return b.snapshot(*nodes, incidents=incidents, **values)


def pages(snapshot: Snapshot, config: Config | None = None) -> list[Decision]:
    config = config or b.config()
    return [one for one in decide(snapshot, detect(snapshot, config), config) if one.action is Action.PAGE]


def test_what_a_budget_holds_back_for_an_hour_pages_a_person() -> None:
    (page,) = pages(broken("n2", **FULL))
    assert (page.row, page.subject) == (92, "fleet")
    plan = b.plan_as(PagePlan, page.plan)
    assert (plan.about, plan.steps, plan.claimed) == (("n2",), (StepName.OPEN_TICKET,), ())
    assert "because 12 nodes were quarantined within the hour; the limit is 12" in plan.reason
    assert "`understudy explain node n2` shows what ends that" in plan.reason


def test_not_before() -> None:
    assert pages(broken("n2", for_seconds=3500.0, **FULL)) == []


def test_nor_what_no_guard_holds_back() -> None:
    assert pages(broken("n2")) == []


@pytest.mark.parametrize("values", [{"mode": Mode.OBSERVE}, {"paused": "maintenance"}, {"error": "timed out"}])
def test_nor_what_a_person_holds_back(values: dict[str, Any]) -> None:
    assert pages(broken("n2", **FULL, **values)) == []


def test_nor_a_rule_that_only_observes() -> None:
    assert pages(broken("n2", **FULL), b.config(guards={"observe_rules": ["xid.79"]})) == []


def test_an_open_breaker_pages_once_for_all_nodes_that_it_holds_back() -> None:
    (page,) = pages(broken("n2", "n3", "n4", breaker="eight at once"))
    assert b.plan_as(PagePlan, page.plan).about == ("n2", "n3", "n4")


def test_a_person_is_paged_once() -> None:
    snapshot = broken("n2", "n3", **FULL)
    sent = RepairAttempt(1, "needs.held_back n2", RecoveryKind.PAGE, None, b.NOW - 60, RecoveryStatus.SUCCEEDED)
    (page,) = pages(b.changed(snapshot, attempts=(sent,)))
    assert b.plan_as(PagePlan, page.plan).about == ("n3",), "what is new is reported"
    earlier = replace(sent, at=b.NOW - 9000)
    (page,) = pages(b.changed(snapshot, attempts=(earlier,)))
    assert b.plan_as(PagePlan, page.plan).about == ("n2", "n3"), "an earlier fault was another one"


def test_a_gang_that_hangs_and_may_not_be_restarted_pages_too() -> None:
    finding = Finding(Signal.GANG_HUNG, "hang.not_arrived", "n2", b.NOW - 4000, "no step has ended", job=b.job().key)
    snapshot = b.snapshot(jobs=[b.job()], breaker="eight at once")
    assert [one.action for one in decide(snapshot, [finding], b.config())] == [Action.NOTHING, Action.PAGE]


@pytest.mark.parametrize(("policy", "count"), [("page", 1), ("wait", 0)])
def test_a_gang_without_a_spare_pages_at_once_where_the_site_wants_that(policy: str, count: int) -> None:
    snapshot = broken("n2", for_seconds=1.0, jobs=[b.job()])
    assert len(pages(snapshot, b.config(spares={"no_spare": policy}))) == count


def away(
    *names: str, reason: str = "Node unexpectedly rebooted", user: str = "slurm", for_seconds: float = 3700.0
) -> list[NodeView]:
    nodes = []
    for name in names:
        slurm = replace(b.slurm_node(name, "DOWN"), reason=reason, reason_user=user)
        record = b.record(name, NodeState.FOREIGN_DRAIN, since=b.NOW - for_seconds)
        nodes.append(b.node(name, NodeState.FOREIGN_DRAIN, slurm=slurm, record=record))
    return nodes


def test_nodes_that_slurm_keeps_out_page_a_person_once_and_together() -> None:
    (page,) = pages(b.snapshot(*away("n2", "n3")))
    plan = b.plan_as(PagePlan, page.plan)
    assert (page.row, plan.about) == (93, ("n2", "n3"))
    assert "Node unexpectedly rebooted" in plan.reason
    assert "scontrol update nodename=n2 state=resume" in plan.reason
    sent = [
        RepairAttempt(1, f"needs.node_left {name}", RecoveryKind.PAGE, None, b.NOW - 10, RecoveryStatus.SUCCEEDED)
        for name in ("n2", "n3")
    ]
    assert pages(b.snapshot(*away("n2", "n3"), attempts=tuple(sent))) == []


@pytest.mark.parametrize(
    "changes", [{"reason": "replacing its fan", "user": "alice"}, {"user": "alice"}, {"for_seconds": 3500.0}]
)
def test_what_an_administrator_took_or_slurm_took_just_now_pages_no_person(changes: dict[str, Any]) -> None:
    assert pages(b.snapshot(*away("n2", **changes))) == []


def test_a_pause_pages_no_person_for_nodes_that_slurm_keeps_out() -> None:
    """Its ticket would be sent after the pause, whatever has become of the nodes by then."""
    assert pages(b.snapshot(*away("n2"), paused="maintenance")) == []


@pytest.mark.parametrize(("held_for_seconds", "sent"), [(3700.0, 1), (3500.0, 0)])
def test_a_gang_that_cannot_leave_an_operators_node_pages_a_person(held_for_seconds: float, sent: int) -> None:
    """About such a node there is no incident."""
    record = b.record("n2", NodeState.RETIRED, since=b.NOW - held_for_seconds)
    slurm = b.slurm_node("n2", flags=["DRAIN"])
    node = b.node("n2", slurm=slurm, record=record, events=(b.xid_event("n2", 79),))
    config = b.config(spares={"no_spare": "wait"})
    found = [b.plan_as(PagePlan, one.plan).about for one in pages(b.snapshot(node, jobs=[b.job()]), config)]
    assert found == [("n2",)] * sent


def restarted(for_seconds: float = 1900.0, *, heard: bool = True, **values: Any) -> Snapshot:
    """No rank of job 7 has reported since its restart, though its ranks did before."""
    job = b.job(nodes=("n1", "n2"), restart_count=1)
    nodes = [b.node(name, heard_at=b.NOW - (1 if heard else 300)) for name in job.slurm.nodes]
    values = {"started_at": b.NOW - 9000, **values}
    return b.snapshot(*nodes, jobs=[job], unheard_gangs={job.key: b.NOW - for_seconds}, **values)


@pytest.mark.parametrize("seconds_ago", [10, 5000])
def test_a_gang_of_which_no_rank_reports_after_a_restart_pages_a_person_once(seconds_ago: int) -> None:
    """Also where it was restarted again after the page: users must not be able to page people without end."""
    (page,) = pages(restarted())
    plan = b.plan_as(PagePlan, page.plan)
    assert (page.row, plan.about) == (94, ("job 7",))
    assert "scontrol requeue 7" in plan.reason
    sent = RepairAttempt(
        1, "needs.gang_unheard job 7", RecoveryKind.PAGE, None, b.NOW - seconds_ago, RecoveryStatus.SUCCEEDED
    )
    assert pages(restarted(attempts=(sent,))) == []


@pytest.mark.parametrize("launch", [0, 1])
def test_a_person_is_paged_for_a_gang_in_its_first_attempt_only_where_its_launcher_has_started_it_again(
    launch: int,
) -> None:
    """Otherwise the control plane alone was restarted, and the training may be over: the need is listed."""
    job = b.job(nodes=("n1", "n2"))
    state = LauncherState(7, 0, launch, LauncherPhase.RUNNING, job.slurm.nodes)
    gangs = {job.key: Gang(state, "n1", b.NOW - 1)}
    snapshot = b.changed(restarted(), jobs={job.key: job}, gangs=gangs, unheard_gangs={job.key: b.NOW - 1900})
    assert [one.row for one in pages(snapshot)] == [94] * launch
    (need,) = needs(snapshot, [], b.config())
    assert (need.subject, need.is_due(b.NOW)) == ("job 7", True)


def test_also_where_the_clocks_were_set_back_since() -> None:
    (page,) = pages(restarted(-1800.0))
    assert page.row == 94


@pytest.mark.parametrize(
    "snapshot",
    [
        restarted(1700.0),
        restarted(started_at=b.NOW - 1700),
        restarted(heard=False),
        restarted(paused_jobs={b.job().key: "alice: debugging"}),
        restarted(2900.0, ahead_seconds=-1200.0),
    ],
    ids=[
        "not for long",
        "the control plane has just started",
        "agents are silent",
        "its owner paused it",
        "slurmctld's clock is behind",
    ],
)
def test_nor_a_gang_that_may_still_come(snapshot: Snapshot) -> None:
    assert pages(snapshot) == []
