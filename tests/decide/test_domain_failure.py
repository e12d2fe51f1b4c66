"""A rack that fails as a whole is one failure: it has time to come back, then its gangs leave, and it counts once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.dashboard.budgets import budgets
from understudy_controlplane.decide import guards
from understudy_controlplane.decide.incidents import CAUSE_GONE, incident_news
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.incident import DOMAIN_SILENT, OpenIncident
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.recovery import (
    PagePlan,
    PoolSwapPlan,
    RecoveryKind,
    RecoveryStatus,
    RepairAttempt,
    StepName,
)
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.topology import Domain, DomainKind, merged

RACKS, SIZE = 8, 16
RACK = tuple(f"n{i}" for i in range(1, SIZE + 1))
SPARES = tuple(f"n{i}" for i in range(113, 129))
CONFIG = b.config()


def fleet(silent_seconds: float, silent: tuple[str, ...] = RACK, **values: Any) -> Snapshot:
    """Eight racks of 16 nodes, the last one all spares. Two gangs of four have nodes in the first, the rest is idle."""
    names = [f"n{i}" for i in range(1, RACKS * SIZE + 1)]
    nodes = {name: well(name) for name in names}
    nodes |= {name: gone(name, silent_seconds) for name in silent}
    racks = [Domain(DomainKind.RACK, f"r{i}", tuple(names[i * SIZE : (i + 1) * SIZE])) for i in range(RACKS)]
    racks.append(Domain(DomainKind.ROW, "a", tuple(names[: 4 * SIZE])))
    topology = merged(racks)
    jobs = [b.job(nodes=["n1", "n2", "n17", "n18"]), b.job(job_id=8, nodes=["n3", "n4", "n19", "n20"])]
    seen = b.snapshot(jobs=jobs, spares=SPARES, topology=topology, domains=topology.failing_together, **values)
    return replace(seen, nodes=nodes)


def well(name: str) -> NodeView:
    return b.node(name, is_spare=name in SPARES)


def gone(name: str, seconds: float) -> NodeView:
    return b.node(name, heard_at=b.NOW - seconds, slurmd_silent_since=b.NOW - seconds + 1)


def judged(snapshot: Snapshot) -> tuple[list[Finding], list[Decision]]:
    findings = detect(snapshot, CONFIG)
    return findings, decide(snapshot, findings, CONFIG)


def opened(at: float, rack: str = "rack r0") -> dict[Subject, OpenIncident]:
    subject = Subject.of_domain(rack, DOMAIN_SILENT)
    return {subject: OpenIncident(1, subject, DOMAIN_SILENT, "domain_fault", "16 nodes of rack r0 …", at, nodes=RACK)}


def test_a_rack_that_falls_silent_is_one_incident_and_has_the_time_to_come_back() -> None:
    findings, decisions = judged(fleet(10))
    (fault,) = [one for one in findings if one.signal is Signal.DOMAIN_FAULT]
    assert (fault.domain, len(fault.nodes)) == ("rack r0", SIZE)
    assert {one.signal for one in findings if one.node in RACK} == {Signal.SILENT}
    assert [one.subject for one in decisions if one.opens_incident] == ["rack r0"]
    assert not [one for one in decisions if one.plan]


def test_a_person_is_notified_once() -> None:
    seen = fleet(20, incidents=opened(b.NOW - 15))
    (page,) = [one for one in judged(seen)[1] if one.action is Action.PAGE]
    assert b.plan_as(PagePlan, page.plan).about == ("rack r0",)
    sent = RepairAttempt(1, "needs.domain_down rack r0", RecoveryKind.PAGE, None, b.NOW - 14, RecoveryStatus.SUCCEEDED)
    assert not [one for one in judged(b.changed(seen, attempts=(sent,)))[1] if one.action is Action.PAGE]


def test_after_that_time_its_gangs_leave_and_the_breaker_stays_closed() -> None:
    findings, decisions = judged(fleet(90, incidents=opened(b.NOW - 85)))
    assert {one.node for one in findings if one.signal is Signal.NODE_DEAD} == {"n1", "n2", "n3", "n4"}
    plans = {one.plan.job.job_id: one.plan for one in decisions if isinstance(one.plan, PoolSwapPlan)}
    assert {number: set(plan.nodes) for number, plan in plans.items()} == {7: {"n1", "n2"}, 8: {"n3", "n4"}}
    assert not [one for one in decisions if one.action is Action.OPEN_BREAKER]


def test_all_of_a_rack_in_use_is_one_failure_for_every_budget() -> None:
    """Ten nodes within the breaker's window open it otherwise, and a rack may lose half of its nodes."""
    seen = fleet(90, incidents=opened(b.NOW - 85))
    jobs = [b.job(job_id=20 + i, nodes=[name, f"n{40 + i}"]) for i, name in enumerate(RACK)]
    decisions = judged(replace(seen, jobs={job.key: job for job in jobs}))[1]
    out = {one.subject for one in decisions if one.to_state is NodeState.QUARANTINED}
    assert out == set(RACK)
    assert not [one for one in decisions if one.action is Action.OPEN_BREAKER]
    (alone,) = {tuple(sorted(guards.failures(seen, RACK)))}
    assert alone == ("rack r0",)


def test_nodes_of_a_rack_that_is_back_and_report_faults_of_their_own_count_by_themselves() -> None:
    """A rule that is wrong about all of them drains no more than the budget, though the rack counts as one failure."""
    config = b.config(guards={"quarantined_nodes_max": 3})
    seen = fleet(0, silent=(), incidents=opened(b.NOW - 100))
    accused = {name: replace(well(name), events=(b.xid_event(name, 79),)) for name in RACK}
    seen = replace(seen, nodes={**seen.nodes, **accused})
    decisions = decide(seen, detect(seen, config), config)
    assert 1 <= sum(one.to_state is NodeState.QUARANTINED for one in decisions) <= 3


def test_they_count_by_themselves_in_the_rounds_that_follow_too() -> None:
    """Otherwise each round would find room again for as many as the one before."""
    config = b.config(guards={"quarantined_nodes_max": 3})
    incidents = opened(b.NOW - 100)
    faulty = {name: replace(well(name), events=(b.xid_event(name, 79),)) for name in RACK}
    seen = fleet(0, silent=(), incidents=incidents)
    seen = replace(seen, nodes={**seen.nodes, **faulty})
    out: list[str] = []
    for _ in range(3):
        decisions = decide(seen, detect(seen, config), config)
        out += [one.subject for one in decisions if one.to_state is NodeState.QUARANTINED]
        drained = {name: b.node(name, record=b.record(name, NodeState.QUARANTINED, since=b.NOW)) for name in out}
        own = {
            subject: OpenIncident(number, subject, "xid.79", "hardware_fault", "fell off the bus", b.NOW)
            for number, subject in enumerate(map(Subject.of_node, out), 10)
        }
        times = dict.fromkeys(out, (b.NOW,))
        seen = b.changed(seen, nodes={**seen.nodes, **drained}, incidents=incidents | own, quarantined_at=times)
    assert 1 <= len(out) <= 3


def test_a_rack_that_waits_for_a_person_makes_room_for_one_failure_and_not_for_each_of_its_nodes() -> None:
    config = b.config(guards={"quarantined_nodes_max": 3, "waiting_share": 0, "waiting_nodes_min": 5})

    def room(others: int) -> list[Because]:
        out = dict.fromkeys(RACK, NodeState.MANUAL_REPAIR)
        out |= {f"n{number}": NodeState.QUARANTINED for number in range(17, 17 + others)}
        views = {name: b.node(name, record=b.record(name, state, since=b.NOW - 60)) for name, state in out.items()}
        seen = fleet(0, silent=(), incidents=opened(b.NOW - 5000))
        seen = replace(seen, nodes={**seen.nodes, **views, "n60": b.node("n60", events=(b.xid_event("n60", 79),))})
        used = [(one.used, len(one.nodes)) for one in budgets(seen, config)]
        assert used[:2] == [(others, others), (1, len(RACK))]
        return [one.because for one in decide(seen, detect(seen, config), config) if one.subject == "n60"]

    assert room(others=2) == [Because.RULE]
    assert room(others=3) == [Because.FLEET_BUDGET]


def test_as_many_nodes_without_a_common_domain_open_the_breaker_as_before() -> None:
    scattered = tuple(f"n{i}" for i in range(5, 113, 9))
    seen = fleet(90, silent=scattered)
    jobs = [b.job(job_id=20 + i, nodes=[name, "n120"]) for i, name in enumerate(scattered)]
    findings, decisions = judged(replace(seen, jobs={job.key: job for job in jobs}))
    assert not [one for one in findings if one.domain]
    assert [one for one in decisions if one.action is Action.OPEN_BREAKER]


def test_two_racks_are_two_failures_and_a_row_of_four_is_one() -> None:
    two = (*RACK, *(f"n{i}" for i in range(33, 49)))
    labels = [one.domain for one in detect(fleet(10, silent=two), CONFIG) if one.domain]
    assert sorted(labels) == ["rack r0", "rack r2"]


@pytest.mark.parametrize("silent", [RACK[:2], RACK[:11]])
def test_some_nodes_of_a_rack_are_nodes_of_their_own(silent: tuple[str, ...]) -> None:
    findings = detect(fleet(10, silent=silent), CONFIG)
    assert not [one for one in findings if one.domain]
    assert {one.node for one in findings if one.signal is Signal.NODE_DEAD} >= {"n1", "n2"}


def test_much_of_the_fleet_is_the_network_however_it_is_divided() -> None:
    """Nothing is done if unsure."""
    silent = tuple(f"n{i}" for i in range(1, 65))
    findings, decisions = judged(fleet(90, silent=silent))
    assert [one.rule for one in findings if one.domain] == ["silence.mass"]
    assert not [one for one in decisions if one.plan]


def test_the_incident_stays_while_its_nodes_count_as_one() -> None:
    def outcome(opened_at: float, **values: Any) -> list[str]:
        incidents = opened(opened_at)
        seen = fleet(0, silent=(), incidents=incidents, **values)
        return [words for _, words in incident_news(seen, [], incidents).over]

    assert outcome(b.NOW - 300) == [CAUSE_GONE], "it came back, and nothing had been done"
    taken = {"n1": (b.NOW - 200,)}
    assert outcome(b.NOW - 300, quarantined_at=taken) == []
    assert outcome(b.NOW - 4000, quarantined_at={"n1": (b.NOW - 3900,)}) == [CAUSE_GONE]


def test_the_page_names_one_step() -> None:
    (page,) = [one for one in judged(fleet(20, incidents=opened(b.NOW - 15)))[1] if one.action is Action.PAGE]
    assert page.plan is not None
    assert page.plan.steps == (StepName.OPEN_TICKET,)
    assert page.because is Because.RULE
