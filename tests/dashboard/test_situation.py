"""What a page of a node or an incident begins with: what is wrong, what is being done, what a person can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests import builders as b
from understudy_controlplane.api.needs import NeedRecord
from understudy_controlplane.dashboard import evidence_words, situation
from understudy_controlplane.dashboard.situation import Known, Line
from understudy_controlplane.fleet.drill import Drill
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.need import NeedKind
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.recovery import Recovery, RecoveryStatus, RecoveryStep, RepairPlan, Rung, StepName
from understudy_controlplane.fleet.snapshot import OperatorState, Snapshot
from understudy_controlplane.fleet.subject import Subject

REPAIRS = b.config(repair={"enabled": True}, validation={"enabled": True})
NO_REPAIR = b.config()
UNKNOWN = Known()
XID = OpenIncident(7, Subject.of_node("n3"), "xid.79", "hardware_fault", "Xid 79 on GPU 0", b.NOW - 20)


def fleet(node: NodeView, *incidents: OpenIncident, jobs: Sequence[Job] = ()) -> Snapshot:
    shown = b.snapshot(node, jobs=jobs)
    return replace(shown, incidents={one.subject: one for one in incidents})


def node(state: NodeState, flags: tuple[str, ...] = (), reason: str = "", user: str = "") -> NodeView:
    return b.node("n3", state, b.slurm_node("n3", flags=flags, reason=reason, user=user))


def of_node(snapshot: Snapshot, known: Known = UNKNOWN, *, repairs: bool = True) -> situation.Situation:
    return situation.of_node(snapshot, snapshot.nodes["n3"], REPAIRS if repairs else NO_REPAIR, known)


def text(lines: Sequence[Line]) -> str:
    return "\n".join(one.text for one in lines)


def test_nothing_is_wrong_with_a_node_in_service_and_something_is_with_one_that_has_an_open_incident() -> None:
    well = fleet(node(NodeState.IN_SERVICE))
    assert of_node(well).wrong == []
    assert of_node(well).doing == [Line("Nothing.")]
    assert situation.is_well(well, well.nodes["n3"])
    ill = fleet(node(NodeState.IN_SERVICE), XID)
    assert of_node(ill).wrong == [Line("Xid 79 on GPU 0", "incidents/7", b.NOW - 20)]
    assert not situation.is_well(ill, ill.nodes["n3"])


def test_a_node_that_slurm_took_out_is_not_well() -> None:
    snapshot = fleet(node(NodeState.IN_SERVICE, ("DRAIN",), "bad cable", "root"))
    assert not situation.is_well(snapshot, snapshot.nodes["n3"])
    assert text(of_node(snapshot).wrong) == "Slurm shows it IDLE+DRAIN: bad cable"


def test_a_need_and_a_ticket_are_named_once() -> None:
    snapshot = fleet(node(NodeState.MANUAL_REPAIR, ("DRAIN",)), XID)
    needs = [
        NeedRecord(NeedKind.NODE_OUT, "n3", b.NOW, why, "", urgent=False)
        for why in ("n3 is out of service: Xid 79 on GPU 0", "its agent is silent")
    ]
    ticket = {"id": 4, "node": "n3", "acknowledged_by": "ada", "opened_at": b.NOW - 5}
    found = of_node(snapshot, Known(needs, [ticket]))
    assert text(found.wrong) == "Xid 79 on GPU 0\nits agent is silent"
    assert found.doing[0] == Line("Ticket 4, ada deals with it", "tickets/4", b.NOW - 5)


@pytest.mark.parametrize(
    ("repairs", "expected"),
    [
        (
            True,
            "Its next repair, or a ticket for a person where none is left, "
            "comes after the end of job 7 (train) of ada.",
        ),
        (False, "No repair: repair.enabled is false. It stays out of service until a person releases it."),
    ],
)
def test_what_comes_next_is_in_words_and_names_the_job_that_it_waits_for(repairs: bool, expected: str) -> None:
    job = b.job(nodes=("n3",), name="train", user="ada")
    snapshot = fleet(node(NodeState.QUARANTINED, ("DRAIN",)), XID, jobs=[job])
    assert text(of_node(snapshot, repairs=repairs).doing) == expected


def test_a_dead_node_has_its_time_before_a_person_is_asked() -> None:
    dead = replace(XID, rule="silence.dead", signal="node_dead", summary="dead")
    doing = text(of_node(fleet(node(NodeState.QUARANTINED, ("DRAIN",)), dead), repairs=True).doing)
    minutes = REPAIRS.repair.dead_node_wait_seconds / 60
    assert doing == f"It has {minutes:g} min to come back by itself; after that a person gets a ticket."


def test_a_repair_under_way_is_named_with_its_step() -> None:
    plan = RepairPlan(steps=(StepName.REBOOT_NODE,), nodes=("n3",), rung=Rung.REBOOT, label="n3-1", drain_reason="x")
    under_way = Recovery(12, plan, RecoveryStatus.RUNNING, b.NOW - 3, (RecoveryStep(0, StepName.REBOOT_NODE),))
    snapshot = replace(fleet(node(NodeState.REPAIRING, ("DRAIN",)), XID), recoveries=(under_way,))
    assert of_node(snapshot).doing == [Line("Recovery 12 (repair) runs: reboot node", "recoveries/12", b.NOW - 3)]


def test_a_guard_that_holds_back_is_named() -> None:
    held = {"action": "nothing", "because": "fleet_budget", "reason": "4 of 4", "incident": 7, "at": b.NOW}
    found = of_node(fleet(node(NodeState.IN_SERVICE), XID), Known(newest_decision=held)).doing
    assert found == [Line("Held back, because of fleet budget: 4 of 4", "incidents/7", b.NOW)]


def choices(snapshot: Snapshot, known: Known = UNKNOWN, *, repairs: bool = True) -> dict[str, str]:
    return {one.name: one.comes for one in of_node(snapshot, known, repairs=repairs).choices}


def test_each_choice_names_the_jobs_there_and_what_they_lose() -> None:
    gang, other = b.job(nodes=("n3", "n4"), name="train"), b.job(False, job_id=8, nodes=("n3",), name="other")
    snapshot = fleet(node(NodeState.IN_SERVICE), jobs=[gang, other])
    found = choices(snapshot, Known(saved={gang.key: 400}))
    for name in ("Quarantine", "Hold", "Retire"):
        assert "job 7 (train)" in found[name]
        moves = "moves to a spare; its newest checkpoint is of step 400"
        stays = "goes on to its end, unless a fault is found"
        assert (moves if name == "Quarantine" else stays) in found[name]
        assert "job 8 (other)" in found[name]
        assert found[name].endswith("goes on to its end")
    assert found["Validate"] == "as soon as no job uses it; no job is ended for it"
    assert {"Move job 7 off", "Move it at its next checkpoint"} <= found.keys()
    assert "Move job 8 off" not in found
    assert "no complete checkpoint of it is known" in choices(snapshot)["Quarantine"]


def test_an_incident_of_a_node_in_service_can_be_dismissed() -> None:
    assert "Dismiss what is known" in choices(fleet(node(NodeState.IN_SERVICE), XID))
    assert "Dismiss what is known" not in choices(fleet(node(NodeState.IN_SERVICE)))


def test_a_person_reads_how_to_reboot_and_to_return_parts_where_understudy_does_not() -> None:
    out = fleet(node(NodeState.QUARANTINED, ("DRAIN",)), XID, jobs=[b.job(nodes=("n3",), name="train")])
    assert "Reboot" not in choices(out)
    by_hand = choices(out, repairs=False)
    assert by_hand["Reboot"].startswith("it would end job 7 (train)")
    assert "RMA" in by_hand


def test_a_released_node_is_validated_after_a_repair_by_hand() -> None:
    assert choices(fleet(node(NodeState.MANUAL_REPAIR)))["Release"] == "it is validated, and returns if it passes"
    assert choices(fleet(node(NodeState.QUARANTINED)))["Release"] == "it returns at once, without a validation"


def test_what_speaks_against_a_release_is_shown_before_it_is_asked_for() -> None:
    lost = Finding(Signal.HARDWARE_FAULT, "nvml.lost", "n3", b.NOW, "GPU 3 is lost to NVML")
    found = choices(fleet(node(NodeState.QUARANTINED)), Known(faults=[lost]))["Release"]
    assert found.endswith(". But the fault is still there: GPU 3 is lost to NVML")


def test_a_drill_is_marked_and_can_be_ended() -> None:
    drill = Drill(3, "n3", "exercise", "ada", b.NOW - 9, b.NOW + 900)
    snapshot = replace(fleet(node(NodeState.QUARANTINED)), operator=OperatorState(drills={"n3": drill}))
    assert of_node(snapshot).doing[0].text == "DRILL by ada: exercise; it ends by itself"
    assert choices(snapshot)["End the drill"]


def test_evidence_is_in_words_with_units_and_without_what_is_empty() -> None:
    evidence = {
        "xid": 79, "empty": "", "none": None, "is_new": True, "silent_seconds": 12.5, "ratio": 1.25,
        "burst": {"since": 1_700_000_012.2, "events": 3}, "gpus": [*range(10)], "html": "<b>",
        "boot_id": "b", "pid": 17000000122,
    }  # fmt: skip
    found = dict(evidence_words.lines(evidence))
    assert list(found) == ["xid", "is new", "silent", "ratio", "burst since", "burst events", "gpus", "html", "pid"]
    assert (found["xid"], found["is new"], found["silent"], found["ratio"]) == ("79", "yes", "12.5 s", "1.25")
    assert found["burst since"].startswith("<time")
    assert found["gpus"].endswith(" and 2 more")
    assert found["pid"] == "17,000,000,122"
    assert found["html"] == "&lt;b&gt;"
