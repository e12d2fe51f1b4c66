"""What the store of repairs promises: GPUs followed from node to node, requests, tickets, the breaker."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from tests import builders as b
from tests.store.rounds import write_round
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.gpu import MovedGpu
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Breaker, Verb
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.incidents import IncidentStore
from understudy_controlplane.store.repairs import RepairStore
from understudy_controlplane.xid_policy import Repair
from understudy_wire.hardware import Gpu, GpuStatus


@pytest.fixture
def repairs(engine: Engine) -> RepairStore:
    FleetStore(engine).add_nodes(["n1", "n2"], b.NOW)
    return RepairStore(engine)


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


def record(repairs: RepairStore, seen: dict[str, list[Gpu]], now: float) -> list[MovedGpu]:
    moved = repairs.moved_gpus(seen)
    repairs.see_gpus(seen, now)
    return moved


class TestGpus:
    def test_a_gpu_that_appears_in_another_node_is_reported_with_its_past(
        self, repairs: RepairStore, engine: Engine
    ) -> None:
        assert record(repairs, {"n1": [b.gpu(0, serial="4711"), b.gpu(1)], "n2": []}, b.NOW) == []
        write_round(engine, [fault("n1", HardwareDetail(part="0000:01:00.0"))], b.NOW)
        assert record(repairs, {"n1": [b.gpu(1)]}, b.NOW + 10) == []
        (moved,) = record(repairs, {"n2": [b.gpu(0, serial="4711")]}, b.NOW + 20)
        assert (moved.serial, moved.node, moved.from_node, moved.faults) == ("4711", "n2", "n1", 1)
        assert record(repairs, {"n2": [b.gpu(0, serial="4711")]}, b.NOW + 30) == [], "recorded once"
        seats = {(one["uuid"], one["node"]): one for one in repairs.gpus(10)}
        assert seats["GPU-0", "n1"]["last_seen_at"] == b.NOW
        assert seats["GPU-0", "n2"]["last_seen_at"] == b.NOW + 30
        assert seats["GPU-1", "n1"]["last_seen_at"] == b.NOW + 10

    def test_one_that_comes_back_has_moved_again_and_its_whole_past_counts(
        self, repairs: RepairStore, engine: Engine
    ) -> None:
        repairs.see_gpus({"n1": [b.gpu(0)]}, b.NOW)
        write_round(engine, [fault("n1", HardwareDetail(uuid="GPU-0"))], b.NOW)
        repairs.see_gpus({"n2": [b.gpu(0)]}, b.NOW + 10)
        write_round(engine, [fault("n2", HardwareDetail(uuid="GPU-0"))], b.NOW + 10)
        (moved,) = record(repairs, {"n1": [b.gpu(0)]}, b.NOW + 20)
        assert (moved.node, moved.from_node, moved.faults) == ("n1", "n2", 2)
        assert record(repairs, {"n1": [b.gpu(0)]}, b.NOW + 30) == [], "recorded once"
        seats = {one["node"]: (one["first_seen_at"], one["last_seen_at"]) for one in repairs.gpus(10)}
        assert seats == {"n1": (b.NOW, b.NOW + 30), "n2": (b.NOW + 10, b.NOW + 10)}

    def test_what_a_gpu_reports_later_is_added_and_what_it_no_longer_reports_is_kept(
        self, repairs: RepairStore
    ) -> None:
        repairs.see_gpus({"n1": [b.gpu(0, serial="4711")]}, b.NOW)  # of an agent that did not read the part number
        repairs.see_gpus({"n1": [b.gpu(0, board_part_number="692-2G520-0200-000", bus_id="0000:9d:00.0")]}, b.NOW + 10)
        (seat,) = repairs.gpus(10)
        assert (seat["serial"], seat["board_part_number"], seat["bus_id"]) == (
            "4711",
            "692-2G520-0200-000",
            "0000:9d:00.0",
        )

    def test_a_fault_counts_for_the_gpu_that_it_names_and_no_other(self, repairs: RepairStore, engine: Engine) -> None:
        repairs.see_gpus({"n1": [b.gpu(0), b.gpu(1)], "n2": [b.gpu(2)]}, b.NOW)
        write_round(engine, [fault("n1", HardwareDetail(uuid="GPU-1"))], b.NOW)
        assert {one["uuid"]: one["faults"] for one in repairs.gpus(10)} == {"GPU-0": 0, "GPU-1": 1, "GPU-2": 0}

    def test_a_gpu_without_a_uuid_is_not_recorded(self, repairs: RepairStore) -> None:
        repairs.see_gpus({"n1": [b.gpu(0)]}, b.NOW)
        assert record(repairs, {"n2": [Gpu(0, GpuStatus.LOST)]}, b.NOW) == []
        assert len(repairs.gpus(10)) == 1


class TestRequests:
    def test_the_latest_about_a_node_stands_until_it_is_answered(self, repairs: RepairStore, engine: Engine) -> None:
        repairs.ask(Verb.HOLD, "n1", "cables", "alice", b.NOW)
        repairs.ask(Verb.RELEASE, "n1", "no, not this one", "alice", b.NOW + 1)
        repairs.ask(Verb.HOLD, "n2", "cables", "alice", b.NOW + 2)
        asked = repairs.requests_since(0.0)
        assert {node: one.verb for node, one in asked.items()} == {"n1": Verb.RELEASE, "n2": Verb.HOLD}
        answer = Decision(
            250, "n2", Action.HOLD, Because.RULE, "asked", NodeState.OPERATOR_HOLD, request=asked["n2"].id
        )
        write_round(engine, [answer], b.NOW + 3)
        assert repairs.requests_since(0.0).keys() == {"n1"}
        assert repairs.requests_since(b.NOW + 2).keys() == set(), "too long ago"


def held(repairs: RepairStore, engine: Engine, node: str = "n1") -> None:
    """Records a hold by an operator, for a minute."""
    entry = AuditEntry.on_host("alice", b.NOW, Verb.HOLD.value, node, "cables")
    number = repairs.ask_audited(Verb.HOLD, entry, b.NOW + 60)
    move(engine, node, 250, Action.HOLD, NodeState.OPERATOR_HOLD, request=number)


def move(engine: Engine, node: str, row: int, action: Action, to: NodeState, **values: Any) -> None:
    write_round(engine, [Decision(row, node, action, Because.RULE, "a test", to, **values)], b.NOW)


class TestEndedHolds:
    def test_its_node_returns_when_its_time_is_over_once(self, repairs: RepairStore, engine: Engine) -> None:
        held(repairs, engine)
        assert repairs.ended_holds(b.NOW + 59) == {}
        assert [*repairs.ended_holds(b.NOW + 60)] == ["n1"]
        repairs.ask(Verb.RELEASE, "n1", "its hold has ended", "understudy", b.NOW + 60)
        assert repairs.ended_holds(b.NOW + 60) == {}

    def test_a_node_that_left_the_hold_before_is_not_returned(self, repairs: RepairStore, engine: Engine) -> None:
        for node in ("n1", "n2"):
            held(repairs, engine, node)
            move(engine, node, 240, Action.LET_GO, NodeState.IN_SERVICE)
        assert repairs.ended_holds(b.NOW + 60) == {}
        write_round(engine, [fault("n1")], b.NOW)
        move(engine, "n2", 233, Action.HOLD, NodeState.OPERATOR_HOLD)
        assert repairs.ended_holds(b.NOW + 60) == {}, "one is at fault, and another operator has the other one"

    def test_a_node_that_was_at_fault_before_its_hold_waits_for_a_person(
        self, repairs: RepairStore, engine: Engine
    ) -> None:
        write_round(engine, [fault("n1")], b.NOW)
        held(repairs, engine)
        assert repairs.ended_holds(b.NOW + 60) == {}

    def test_a_hold_that_never_began_does_not_end(self, repairs: RepairStore) -> None:
        entry = AuditEntry.on_host("alice", b.NOW, Verb.HOLD.value, "n1", "cables")
        repairs.ask_audited(Verb.HOLD, entry, b.NOW + 60)
        assert repairs.ended_holds(b.NOW + 60) == {}


class TestBreaker:
    def test_it_stays_open_until_a_person_closes_it(self, repairs: RepairStore, engine: Engine) -> None:
        assert repairs.breaker() == Breaker()
        opens = Decision(290, "fleet", Action.OPEN_BREAKER, Because.RULE, "nine at once")
        write_round(engine, [opens], b.NOW)
        assert RepairStore(engine).breaker().reason == "nine at once"
        FleetStore(engine).add_intent("resume", "a pause is something else", "alice", b.NOW + 1)
        assert repairs.breaker().reason == "nine at once"
        FleetStore(engine).add_intent("reset-breaker", "it was the switch", "alice", b.NOW + 2)
        assert repairs.breaker() == Breaker("", b.NOW + 2)
        write_round(engine, [opens], b.NOW + 3)
        assert repairs.breaker().reason == "nine at once"


class TestIncidents:
    @pytest.mark.usefixtures("repairs")
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

    def test_a_ticket_shows_none_that_is_over(self, repairs: RepairStore, engine: Engine) -> None:
        incidents = IncidentStore(engine)
        write_round(engine, [fault("n1")], b.NOW)
        assert repairs.history("n1")["incident"] is not None
        incidents.close([(one.id, "over") for one in incidents.open_incidents().values()], b.NOW + 1)
        found = repairs.history("n1")
        assert (found["incident"], found["findings"]) == (None, [])


class TestTickets:
    def test_one_that_is_opened_twice_is_one(self, repairs: RepairStore) -> None:
        for _ in range(2):
            repairs.open_ticket("n1-17", "n1", {"node": "n1"}, b.NOW)
        assert repairs.is_ticket("n1-17")
        assert not repairs.is_ticket("n1-18")
        (ticket,) = repairs.tickets(10)
        assert (ticket["opened_at"], ticket["closed_at"]) == (b.NOW, None)

    def test_its_evidence_is_what_was_found_decided_and_logged(self, repairs: RepairStore, engine: Engine) -> None:
        write_round(engine, [fault("n1", HardwareDetail(part="0000:01:00.0")), fault("n2")], b.NOW)
        found = repairs.history("n1")
        assert found["incident"]["rule"] == "xid.79"
        assert [one["table_row"] for one in found["decisions"]] == [10]
        assert repairs.history("n9") == {
            "incident": None,
            "findings": [],
            "decisions": [],
            "kernel_log": [],
            "steps": [],
        }
