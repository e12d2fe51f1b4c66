"""What follows from signals of other systems of the site: evidence, a ticket, no spare from there, a quarantine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Config, SignalKind
from understudy_controlplane.decide import repair_cycle, spares
from understudy_controlplane.decide.incidents import incident_news
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import HardwareDetail, Signal
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import PagePlan, PoolSwapPlan, RecoveryKind, RecoveryStatus, RepairAttempt
from understudy_controlplane.fleet.site_signal import SiteSignal
from understudy_controlplane.fleet.slurm import SlurmReservation
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.topology import Domain, DomainKind, merged
from understudy_controlplane.xid_policy import Repair

RACKS = merged(
    [
        Domain(DomainKind.RACK, "r1", ("n1", "n2", "n3", "n4")),
        Domain(DomainKind.RACK, "r2", ("n5", "n6", "n7", "n8")),
        Domain(DomainKind.RAIL, "0", tuple(f"n{i}" for i in range(1, 9))),
    ]
)
SPARES = ("n4", "n7", "n8")


def leak(*targets: str, **values: Any) -> SiteSignal:
    fixed: dict[str, Any] = {"source": "bms", "key": "k", "kind": SignalKind.LEAK, "summary": "wet floor"}
    return SiteSignal(targets=targets, **fixed | {"id": 7, "at": b.NOW - 5, "until": b.NOW + 600} | values)


def seen(*signals: SiteSignal, **values: Any) -> Snapshot:
    more: dict[str, Any] = {"spares": SPARES, "topology": RACKS, "domains": RACKS.failing_together}
    more["jobs"] = [b.job(nodes=["n1", "n2"])]
    return b.snapshot(*values.pop("nodes", ()), signals=signals, **more | values)


def decided(snapshot: Snapshot, config: Config) -> list[Decision]:
    return decide(snapshot, detect(snapshot, config), config)


def effect(name: str, **guards: Any) -> Config:
    return b.config(signals={"effects": {"leak": name}}, guards=guards)


def test_a_signal_alone_changes_nothing_where_it_only_explains() -> None:
    config = effect("explain")
    assert decided(seen(leak("rack r1", "n5")), config) == []
    assert spares.free_spares(seen(leak("rack r2")), config) == list(SPARES)


def test_it_stands_in_the_evidence_of_incidents_of_nodes_and_domains_there() -> None:
    of_node, of_rack = Subject.of_node("n2"), Subject.of_domain("rack r1", "silence.domain")
    incidents = {
        of_node: OpenIncident(1, of_node, "xid.79", "hardware_fault", "…", b.NOW - 60),
        of_rack: OpenIncident(2, of_rack, "silence.domain", "domain_fault", "…", b.NOW - 60),
        Subject.of_node("n6"): OpenIncident(3, Subject.of_node("n6"), "xid.79", "hardware_fault", "…", b.NOW - 60),
    }
    quarantined = [b.node(name, NodeState.QUARANTINED) for name in ("n2", "n6")]
    snapshot = seen(leak("rack r1"), incidents=incidents, nodes=quarantined)
    findings = detect(snapshot, effect("explain"))
    evidence = [(number, one.summary) for number, one in incident_news(snapshot, findings, incidents).evidence]
    words = "bms reports leak: wet floor"
    assert sorted(one for one in evidence if one[1] == words) == [(1, words), (2, words)]
    rows = [one.row for one in decided(snapshot, effect("explain")) if one.finding and one.finding.summary == words]
    assert sorted(rows) == [62, 71]


def test_a_warning_is_one_ticket_that_names_the_gangs_there_and_what_becomes_of_them() -> None:
    signals = (leak("rack r1"), leak("n8", id=8, key="other"))
    (page,) = decided(seen(*signals), effect("warn"))
    plan = b.plan_as(PagePlan, page.plan)
    assert (page.row, page.action, plan.about) == (97, Action.PAGE, ("signal 7", "signal 8"))
    assert "bms reports leak: wet floor (rack r1)" in plan.reason
    assert "Gangs there: job 7. In the modes approve and act those save a checkpoint now whose" in plan.reason
    sent = tuple(RepairAttempt(1, one, RecoveryKind.PAGE, None, b.NOW, RecoveryStatus.SUCCEEDED) for one in plan.keys)
    assert decided(seen(*signals, attempts=sent), effect("warn")) == []


def test_the_planned_reboot_of_a_switch_is_announced_to_its_gangs_and_explains_that_it_falls_silent() -> None:
    """The default settings apply: a warning, and no node is taken out of service for it."""
    switch = Domain(DomainKind.SWITCH, "leaf1", ("n1", "n2", "n3", "n4"))
    topology, kind = merged([*RACKS.domains, switch]), SignalKind.PLANNED_OUTAGE
    signal = leak("switch leaf1", kind=kind, source="fabric manager", summary="new firmware at 14:00")
    of_switch = Subject.of_domain("switch leaf1", "silence.domain")
    incidents = {of_switch: OpenIncident(2, of_switch, "silence.domain", "domain_fault", "…", b.NOW - 60)}
    snapshot = seen(signal, topology=topology, domains=topology.failing_together)
    (page,) = decided(snapshot, b.config())
    plan = b.plan_as(PagePlan, page.plan)
    assert "fabric manager reports planned outage: new firmware at 14:00 (switch leaf1)" in plan.reason
    assert "Gangs there: job 7" in plan.reason
    later = replace(snapshot, incidents=incidents)
    evidence = incident_news(later, detect(later, b.config()), incidents).evidence
    assert [(number, one.summary) for number, one in evidence] == [
        (2, "fabric manager reports planned outage: new firmware at 14:00")
    ]


def test_no_spare_is_taken_from_where_new_work_is_blocked() -> None:
    """Neither by a gang, nor by the pool. A rail or a spine can fail without its nodes."""
    snapshot = seen(leak("rack r2"))
    assert spares.free_spares(snapshot, effect("block")) == ["n4"]
    assert "n5" not in spares.idle_nodes(b.changed(snapshot, reservations={}), effect("block"))
    assert spares.free_spares(seen(leak("rail 0")), effect("block")) == list(SPARES)
    assert spares.free_spares(snapshot, effect("warn")) == list(SPARES)


def test_nodes_are_quarantined_where_the_site_wants_that_and_gangs_move_elsewhere() -> None:
    decisions = [one for one in decided(seen(leak("n2")), effect("act")) if one.subject == "n2"]
    (decision,) = decisions
    plan = b.plan_as(PoolSwapPlan, decision.plan)
    assert (decision.row, decision.to_state, decision.opens_incident) == (262, NodeState.QUARANTINED, True)
    assert (plan.nodes, plan.seats) == (("n2",), ("n1", "n4"))
    assert plan.drain_reason == "understudy: signal.leak: bms reports leak: wet floor"


def test_the_budgets_hold_back_nodes_of_a_domain_and_the_breaker_stays_closed() -> None:
    """A sender that errs takes no more than a fault of that size."""
    config = effect("act", breaker_nodes_min=3, breaker_nodes_max=3)
    decisions = [one for one in decided(seen(leak("rack r1", "rack r2")), config) if one.row == 262]
    taken = [one.subject for one in decisions if one.action is Action.QUARANTINE]
    held = [one for one in decisions if one.action is Action.NOTHING]
    assert 0 < len(taken) < 4 and len(taken) + len(held) == 8
    assert not any(one.opens_incident for one in held)
    assert not any(one.action is Action.OPEN_BREAKER for one in decided(seen(leak("rack r1", "rack r2")), config))
    budgets = {Because.FLEET_BUDGET, Because.HOURLY_BUDGET, Because.DOMAIN_BUDGET, Because.BREAKER}
    assert {one.because for one in held} <= budgets


@pytest.mark.parametrize(("cleared_at", "rows"), [(0.0, [262]), (b.NOW - 1, [])])
def test_a_person_who_resumed_the_node_since_answers_for_it(cleared_at: float, rows: list[int]) -> None:
    node = b.node("n5", record=b.record("n5", cleared_at=cleared_at, agent_seen_at=1.0, slurmd_seen_at=1.0))
    decisions = decided(seen(leak("n5"), nodes=[node]), effect("act"))
    assert [one.row for one in decisions if one.subject == "n5"] == rows


def test_the_node_returns_by_its_validation_when_the_signal_is_over() -> None:
    subject = Subject.of_node("n5")
    detail = HardwareDetail(repair=Repair.NONE)
    incident = OpenIncident(1, subject, "signal.leak", "site_fault", "wet", b.NOW - 60, detail=detail)
    record = b.record("n5", NodeState.QUARANTINED, drained_at=b.NOW - 50, drain_reason="understudy: wet")
    slurm = b.slurm_node("n5", flags=("DRAIN",), reason="understudy: wet", user="")
    node = b.node("n5", record=record, slurm=slurm)
    config = b.config(
        signals={"effects": {"leak": "act"}}, repair={"enabled": True}, validation={"enabled": True, "command": "true"}
    )
    during = seen(leak("n5"), nodes=[node], incidents={subject: incident})
    assert [*repair_cycle.due(during, during.nodes["n5"], (), config)] == []
    after = [*repair_cycle.due(replace(during, signals=()), during.nodes["n5"], (), config)]
    assert [one.signal for one in after] == [Signal.VALIDATION_DUE]


def test_reservations_are_left_as_they_are_for_a_signal() -> None:
    """A spare that is blocked stays in the pool: the signal ends by itself."""
    snapshot = seen(leak("rack r2"))
    pool = snapshot.slurm.reservations["understudy_spares"]
    assert isinstance(pool, SlurmReservation)
    config = b.config(signals={"effects": {"leak": "block"}}, spares={"count": 3})
    assert [one for one in decided(snapshot, config) if one.action in (Action.FILL_POOL, Action.LEAVE_POOL)] == []
