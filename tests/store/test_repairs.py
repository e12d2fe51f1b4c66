"""GPUs are followed from node to node, requests until they end; tickets, and the breaker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine

from tests import builders as b
from tests.store.rounds import write_round
from understudy_controlplane.decide.requests_in_force import endings, in_force
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.gpu import MovedGpu
from understudy_controlplane.fleet.maintenance import Maintenance, Next, Stage
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.operator import FLEET, Breaker, Ending, Verb
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.gpus import GpuStore
from understudy_controlplane.store.incidents import IncidentStore
from understudy_controlplane.store.requests import RequestStore
from understudy_controlplane.store.site_maintenance import MaintenanceStore
from understudy_controlplane.store.tickets import TicketStore
from understudy_controlplane.xid_policy import Repair
from understudy_wire.hardware import Gpu, GpuStatus


@pytest.fixture(autouse=True)
def _nodes(engine: Engine) -> None:
    FleetStore(engine).add_nodes(["n1", "n2"], b.NOW)


@pytest.fixture
def gpus(engine: Engine) -> GpuStore:
    return GpuStore(engine)


@pytest.fixture
def requests(engine: Engine) -> RequestStore:
    return RequestStore(engine)


@pytest.fixture
def tickets(engine: Engine) -> TicketStore:
    return TicketStore(engine)


def judged(engine: Engine, now: float) -> list[Ending]:
    """Holds and drills whose time is over."""
    asked = in_force(RequestStore(engine).stored(), now)
    views = [NodeView(record, None, None) for record in FleetStore(engine).nodes().values()]
    return endings(b.snapshot(*views, now=now, ended_holds=asked.ended_holds, drills=asked.drills))


def ended(engine: Engine, now: float) -> list[str]:
    """Nodes that return because the time of their hold is over."""
    return [one.node for one in judged(engine, now)]


def waiting(engine: Engine, now: float) -> dict[str, Verb]:
    return {node: one.verb for node, one in in_force(RequestStore(engine).stored(), now).nodes.items()}


def fault(node: str, detail: HardwareDetail | None = None) -> Decision:
    finding = Finding(Signal.HARDWARE_FAULT, "xid.79", node, b.NOW, "broken", detail=detail)
    return Decision(
        10,
        node,
        Action.QUARANTINE,
        Because.RULE,
        "broken",
        NodeState.QUARANTINED,
        finding,
        finding.evidence,
        opens_incident=True,
    )


def record(gpus: GpuStore, seen: dict[str, list[Gpu]], now: float) -> list[MovedGpu]:
    moved = gpus.moved_gpus(seen)
    gpus.see_gpus(seen, now)
    return moved


class TestGpus:
    def test_a_gpu_that_appears_in_another_node_is_reported_with_its_past(self, gpus: GpuStore, engine: Engine) -> None:
        assert record(gpus, {"n1": [b.gpu(0, serial="4711"), b.gpu(1)], "n2": []}, b.NOW) == []
        write_round(engine, [fault("n1", HardwareDetail(part="0000:01:00.0"))], b.NOW)
        assert record(gpus, {"n1": [b.gpu(1)]}, b.NOW + 10) == []
        (moved,) = record(gpus, {"n2": [b.gpu(0, serial="4711")]}, b.NOW + 20)
        assert (moved.serial, moved.node, moved.from_node, moved.faults) == ("4711", "n2", "n1", 1)
        assert record(gpus, {"n2": [b.gpu(0, serial="4711")]}, b.NOW + 30) == [], "recorded once"
        seats = {(one["uuid"], one["node"]): one for one in gpus.gpus(10)}
        assert seats["GPU-0", "n1"]["last_seen_at"] == b.NOW
        assert seats["GPU-0", "n2"]["last_seen_at"] == b.NOW + 30
        assert seats["GPU-1", "n1"]["last_seen_at"] == b.NOW + 10

    def test_one_that_comes_back_has_moved_again_and_its_whole_past_counts(
        self, gpus: GpuStore, engine: Engine
    ) -> None:
        gpus.see_gpus({"n1": [b.gpu(0)]}, b.NOW)
        write_round(engine, [fault("n1", HardwareDetail(uuid="GPU-0"))], b.NOW)
        gpus.see_gpus({"n2": [b.gpu(0)]}, b.NOW + 10)
        write_round(engine, [fault("n2", HardwareDetail(uuid="GPU-0"))], b.NOW + 10)
        (moved,) = record(gpus, {"n1": [b.gpu(0)]}, b.NOW + 20)
        assert (moved.node, moved.from_node, moved.faults) == ("n1", "n2", 2)
        assert record(gpus, {"n1": [b.gpu(0)]}, b.NOW + 30) == [], "recorded once"
        seats = {one["node"]: (one["first_seen_at"], one["last_seen_at"]) for one in gpus.gpus(10)}
        assert seats == {"n1": (b.NOW, b.NOW + 30), "n2": (b.NOW + 10, b.NOW + 10)}

    def test_what_a_gpu_reports_later_is_added_and_what_it_no_longer_reports_is_kept(self, gpus: GpuStore) -> None:
        gpus.see_gpus({"n1": [b.gpu(0, serial="4711")]}, b.NOW)  # of an agent that did not read the part number
        gpus.see_gpus({"n1": [b.gpu(0, board_part_number="692-2G520-0200-000", bus_id="0000:9d:00.0")]}, b.NOW + 10)
        (seat,) = gpus.gpus(10)
        assert (seat["serial"], seat["board_part_number"], seat["bus_id"]) == (
            "4711",
            "692-2G520-0200-000",
            "0000:9d:00.0",
        )

    def test_a_fault_counts_for_the_gpu_that_it_names_and_no_other(self, gpus: GpuStore, engine: Engine) -> None:
        gpus.see_gpus({"n1": [b.gpu(0), b.gpu(1)], "n2": [b.gpu(2)]}, b.NOW)
        write_round(engine, [fault("n1", HardwareDetail(uuid="GPU-1"))], b.NOW)
        assert {one["uuid"]: one["faults"] for one in gpus.gpus(10)} == {"GPU-0": 0, "GPU-1": 1, "GPU-2": 0}

    def test_a_gpu_without_a_uuid_is_not_recorded(self, gpus: GpuStore) -> None:
        gpus.see_gpus({"n1": [b.gpu(0)]}, b.NOW)
        assert record(gpus, {"n2": [Gpu(0, GpuStatus.LOST)]}, b.NOW) == []
        assert len(gpus.gpus(10)) == 1


class TestRequests:
    def test_the_latest_about_a_node_stands_until_it_is_answered(self, requests: RequestStore, engine: Engine) -> None:
        requests.ask(Verb.HOLD, "n1", "cables", "alice", b.NOW)
        requests.ask(Verb.RELEASE, "n1", "no, not this one", "alice", b.NOW + 1)
        requests.ask(Verb.HOLD, "n2", "cables", "alice", b.NOW + 2)
        asked = in_force(requests.stored(), b.NOW + 3).nodes
        assert {node: one.verb for node, one in asked.items()} == {"n1": Verb.RELEASE, "n2": Verb.HOLD}
        answer = Decision(
            250, "n2", Action.HOLD, Because.RULE, "asked", NodeState.OPERATOR_HOLD, request=asked["n2"].id
        )
        write_round(engine, [answer], b.NOW + 3)
        assert in_force(requests.stored(), b.NOW + 3).nodes.keys() == {"n1"}
        assert in_force(requests.stored(), b.NOW + 9 * DAY_SECONDS).nodes.keys() == set(), "too long ago"


def held(requests: RequestStore, engine: Engine, node: str = "n1") -> None:
    """Records a hold by an operator, for a minute."""
    entry = AuditEntry.on_host("alice", b.NOW, Verb.HOLD.value, node, "cables")
    number = requests.ask_audited(entry, b.NOW + 60)
    move(engine, node, 250, Action.HOLD, NodeState.OPERATOR_HOLD, request=number)


def drilled(requests: RequestStore, engine: Engine) -> None:
    """Records a drill for a minute, which has the node quarantined."""
    requests.ask_audited(AuditEntry.on_host("alice", b.NOW, Verb.DRILL.value, "n1", "game day"), b.NOW + 60)
    write_round(engine, [fault("n1")], b.NOW)


def move(engine: Engine, node: str, row: int, action: Action, to: NodeState, **values: Any) -> None:
    write_round(engine, [Decision(row, node, action, Because.RULE, "a test", to, **values)], b.NOW)


class TestEndedHolds:
    def test_its_node_returns_when_its_time_is_over_once(self, requests: RequestStore, engine: Engine) -> None:
        held(requests, engine)
        assert ended(engine, b.NOW + 59) == []
        assert ended(engine, b.NOW + 60) == ["n1"]
        requests.ask(Verb.RELEASE, "n1", "its hold has ended", "understudy", b.NOW + 60)
        assert ended(engine, b.NOW + 60) == []

    def test_a_node_that_left_the_hold_before_is_not_returned(self, requests: RequestStore, engine: Engine) -> None:
        for node in ("n1", "n2"):
            held(requests, engine, node)
            move(engine, node, 240, Action.LET_GO, NodeState.IN_SERVICE)
        assert ended(engine, b.NOW + 60) == []
        write_round(engine, [fault("n1")], b.NOW)
        move(engine, "n2", 233, Action.HOLD, NodeState.OPERATOR_HOLD)
        assert ended(engine, b.NOW + 60) == [], "one is at fault, and another operator has the other one"

    def test_a_node_that_was_at_fault_before_its_hold_waits_for_a_person(
        self, requests: RequestStore, engine: Engine
    ) -> None:
        write_round(engine, [fault("n1")], b.NOW)
        held(requests, engine)
        assert ended(engine, b.NOW + 60) == []

    def test_a_hold_that_never_began_does_not_end(self, requests: RequestStore, engine: Engine) -> None:
        entry = AuditEntry.on_host("alice", b.NOW, Verb.HOLD.value, "n1", "cables")
        requests.ask_audited(entry, b.NOW + 60)
        assert ended(engine, b.NOW + 60) == []


@pytest.mark.parametrize("began", [held, drilled])
class TestWhatComesBetweenTheJudgementAndTheEnd:
    def test_nothing_does_and_the_node_returns(
        self, began: Callable[[RequestStore, Engine], None], requests: RequestStore, engine: Engine
    ) -> None:
        began(requests, engine)
        (ending,) = judged(engine, b.NOW + 60)
        assert requests.end(ending, b.NOW + 60)
        assert waiting(engine, b.NOW + 60) == {"n1": Verb.RELEASE}
        assert judged(engine, b.NOW + 60) == []

    @pytest.mark.parametrize("verb", [Verb.HOLD, Verb.QUARANTINE, Verb.RETIRE])
    def test_a_newer_request_stays_and_the_node_with_it(
        self, verb: Verb, began: Callable[[RequestStore, Engine], None], requests: RequestStore, engine: Engine
    ) -> None:
        began(requests, engine)
        (ending,) = judged(engine, b.NOW + 60)
        requests.ask(verb, "n1", "not yet", "alice", b.NOW + 60)
        assert not requests.end(ending, b.NOW + 60)
        assert waiting(engine, b.NOW + 60) == {"n1": verb}


def test_a_hold_that_a_decision_ended_since_is_followed_by_no_release(requests: RequestStore, engine: Engine) -> None:
    held(requests, engine)
    (ending,) = judged(engine, b.NOW + 60)
    move(engine, "n1", 240, Action.LET_GO, NodeState.IN_SERVICE)
    write_round(engine, [fault("n1")], b.NOW)
    assert not requests.end(ending, b.NOW + 60)
    assert waiting(engine, b.NOW + 60) == {}


def test_a_drill_that_another_one_replaced_since_does_not_end_it(requests: RequestStore, engine: Engine) -> None:
    drilled(requests, engine)
    (ending,) = judged(engine, b.NOW + 60)
    entry = AuditEntry.on_host("bob", b.NOW + 60, Verb.DRILL.value, "n1", "once more")
    number = requests.ask_audited(entry, b.NOW + 120)
    assert not requests.end(ending, b.NOW + 60)
    assert waiting(engine, b.NOW + 60) == {}
    assert [one.request for one in judged(engine, b.NOW + 120)] == [number]


@pytest.mark.parametrize("verb", [Verb.HOLD, Verb.QUARANTINE, Verb.RETIRE])
def test_a_maintenance_that_ends_keeps_what_a_person_asked_of_its_node_since(
    verb: Verb, requests: RequestStore, engine: Engine
) -> None:
    work = Maintenance(0, ("n1", "n2"), ("n1", "n2"), "firmware", "alice", b.NOW, b.NOW + 60, 2)
    store = MaintenanceStore(engine)
    number = store.begin(work, AuditEntry.on_host("alice", b.NOW, Verb.START_MAINTENANCE.value, "", "firmware"))
    work = replace(work, id=number)
    held = Next({"n1": Stage.ASKED, "n2": Stage.ASKED}, holds=("n1", "n2"))
    store.proceed(work, held, b.NOW)
    assert waiting(engine, b.NOW) == {"n1": Verb.HOLD, "n2": Verb.HOLD}
    requests.ask(verb, "n1", "a fan is still out", "bob", b.NOW + 60)
    store.proceed(work, Next({}, releases=("n1", "n2"), is_over=True), b.NOW + 60)
    assert waiting(engine, b.NOW + 60) == {"n1": verb, "n2": Verb.RELEASE}


class TestBreaker:
    def test_it_stays_open_until_a_person_closes_it(self, requests: RequestStore, engine: Engine) -> None:
        assert in_force(requests.stored(), b.NOW).breaker == Breaker()
        opens = Decision(290, "fleet", Action.OPEN_BREAKER, Because.RULE, "nine at once")
        write_round(engine, [opens], b.NOW)
        assert in_force(requests.stored(), b.NOW).breaker.reason == "nine at once"
        requests.ask(Verb.RESUME, FLEET, "a pause is something else", "alice", b.NOW + 1)
        assert in_force(requests.stored(), b.NOW).breaker.reason == "nine at once"
        requests.ask(Verb.RESET_BREAKER, FLEET, "it was the switch", "alice", b.NOW + 2)
        assert in_force(requests.stored(), b.NOW).breaker == Breaker("", b.NOW + 2)
        write_round(engine, [opens], b.NOW + 3)
        assert in_force(requests.stored(), b.NOW).breaker.reason == "nine at once"


class TestIncidents:
    def test_an_open_one_knows_what_its_later_findings_ask_for(self, engine: Engine) -> None:
        incidents = IncidentStore(engine)
        write_round(engine, [fault("n1", HardwareDetail(repair=Repair.RESET_GPU))], b.NOW)
        (incident,) = incidents.open_incidents().values()
        found = (
            Finding(
                Signal.HARDWARE_FAULT,
                "gpu.remap_failed",
                "n1",
                b.NOW + 1,
                "worse",
                detail=HardwareDetail(repair=Repair.MANUAL_REPAIR),
            ),
            Finding(
                Signal.RECORDED,
                "fabric.together",
                "n1",
                b.NOW + 1,
                "a switch",
                detail=HardwareDetail(repair=Repair.REBOOT),
            ),
            Finding(Signal.HARDWARE_FAULT, "xid.48", "n1", b.NOW + 1, "silent about it"),
        )
        incidents.add_evidence([(incident.id, one) for one in found])
        known = incidents.open_incidents()[Subject.of_node("n1")]
        assert (known.detail, known.asked) == (HardwareDetail(repair=Repair.RESET_GPU), (Repair.MANUAL_REPAIR,))

    def test_an_error_that_comes_back_and_asks_for_more_is_known(self, engine: Engine) -> None:
        incidents = IncidentStore(engine)
        write_round(engine, [fault("n1", HardwareDetail(repair=Repair.RESET_GPU))], b.NOW)
        (incident,) = incidents.open_incidents().values()
        for repair in (Repair.RESET_GPU, Repair.RESET_GPU, Repair.REBOOT):
            again = Finding(
                Signal.HARDWARE_FAULT, incident.rule, "n1", b.NOW, "again", detail=HardwareDetail(repair=repair)
            )
            incidents.add_evidence([(incident.id, again)])
        assert incidents.open_incidents()[Subject.of_node("n1")].asked == (Repair.RESET_GPU, Repair.REBOOT)

    def test_a_ticket_shows_none_that_is_over(self, tickets: TicketStore, engine: Engine) -> None:
        incidents = IncidentStore(engine)
        write_round(engine, [fault("n1")], b.NOW)
        assert tickets.history("n1")["incident"] is not None
        incidents.close([(one.id, "over") for one in incidents.open_incidents().values()], b.NOW + 1)
        found = tickets.history("n1")
        assert (found["incident"], found["findings"]) == (None, [])


class TestTickets:
    def test_one_that_is_opened_twice_is_one(self, tickets: TicketStore) -> None:
        for _ in range(2):
            tickets.open_ticket("n1-17", "n1", {"node": "n1"}, b.NOW)
        assert tickets.is_ticket("n1-17")
        assert not tickets.is_ticket("n1-18")
        (ticket,) = tickets.tickets(10)
        assert (ticket["opened_at"], ticket["closed_at"]) == (b.NOW, None)

    def test_its_evidence_is_what_was_found_decided_and_logged(self, tickets: TicketStore, engine: Engine) -> None:
        write_round(engine, [fault("n1", HardwareDetail(part="0000:01:00.0")), fault("n2")], b.NOW)
        found = tickets.history("n1")
        assert found["incident"]["rule"] == "xid.79"
        assert [one["table_row"] for one in found["decisions"]] == [10]
        assert tickets.history("n9") == {
            "incident": None,
            "findings": [],
            "decisions": [],
            "kernel_log": [],
            "steps": [],
        }
