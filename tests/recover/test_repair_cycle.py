"""A node's way from a fault back to work, or to a person, on a virtual cluster."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from fastapi.testclient import TestClient

from tests import builders as b
from tests.recover.rehearsal import Rehearsal, first, refuse
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import add_tokens, bearer
from understudy_controlplane.decide import plans, spares
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.repair_cycle import known_of
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.finding import HardwareDetail, RepairDetail
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.need import Need
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import FLEET, Verb
from understudy_controlplane.fleet.recovery import (
    NODE_HOLD_PREFIX,
    RecoveryKind,
    RecoveryStatus,
    RepairAttempt,
    Rung,
)
from understudy_controlplane.fleet.slurm import JobRequest, Service, SlurmNode, SlurmReservation, SlurmView
from understudy_controlplane.fleet.stage_summary import StageSummary
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.observe.recovery_history import RecoveryHistory
from understudy_controlplane.recover.step import Done, Failed, GangFacts, StepContext, Tickets, Todo
from understudy_controlplane.recover.steps import repair
from understudy_controlplane.slurm.protocol import SlurmError, SlurmUnavailable
from understudy_controlplane.store.queries import Queries
from understudy_controlplane.store.recoveries import RecoveryStore
from understudy_wire.hardware import GpuStatus, Stuck, StuckProcess
from understudy_wire.stages import StageName, StageResult, StageStatus, line_of

pytestmark = [pytest.mark.integration, pytest.mark.patient]

REPAIR = {"repair": {"enabled": True, "cooldown_seconds": 5}}
VALIDATION = {"validation": {"enabled": True, "probation_hours": 1}}
TESTED: dict[str, Any] = REPAIR | VALIDATION
HOLD = f"{NODE_HOLD_PREFIX}n5"


def start(path: Path, **config: Any) -> Rehearsal:
    return Rehearsal(path, **config)


def node_of(rehearsal: Rehearsal, name: str) -> SlurmNode:
    return next(node for node in rehearsal.fake.nodes() if node.name == name)


def wait_for(rehearsal: Rehearsal, name: str, state: NodeState, seconds: float = 300) -> None:
    rehearsal.run_until(lambda: rehearsal.state_of(name) is state, seconds)


def states_passed(rehearsal: Rehearsal, name: str) -> list[int]:
    """Numbers of the rows that were decided about the node, in order."""
    decisions = Queries(rehearsal.engine).decisions(1000)
    return [one["table_row"] for one in reversed(decisions) if one["subject"] == name]


def decided(rehearsal: Rehearsal, row: int) -> list[dict[str, Any]]:
    return [one for one in Queries(rehearsal.engine).decisions(1000) if one["table_row"] == row]


def attempts(rehearsal: Rehearsal) -> list[tuple[RecoveryKind, Rung | None, RecoveryStatus]]:
    return [(one.kind, one.rung, one.status) for one in tried(rehearsal)]


def tried(rehearsal: Rehearsal) -> tuple[RepairAttempt, ...]:
    history = RecoveryHistory(rehearsal.control_plane.stores.recoveries)
    history.refresh(0.0)
    return history.attempts_since(0.0)


def test_by_default_a_quarantined_node_waits_for_a_person_and_nothing_is_tried(tmp_path: Path) -> None:
    rehearsal = start(tmp_path)
    rehearsal.fail("n5")
    rehearsal.run(3600)
    assert rehearsal.state_of("n5") is NodeState.QUARANTINED
    assert not {"reboot_node n5", "resume_node n5"} & set(rehearsal.line.effects)


def test_a_node_is_rebooted_tested_and_comes_back_as_a_spare_on_probation(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.fake.drain_by("alice", "n8", "mine")  # n5 takes its place: the pool is short of one when n5 fails
    rehearsal.run(3)
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    assert states_passed(rehearsal, "n5") == [10, 200, 210, 220]
    assert rehearsal.line.effects["reboot_node n5"] == 1
    rehearsal.run(5)
    assert node_of(rehearsal, "n5").service is Service.USABLE
    assert "n5" in rehearsal.pool(), "back as a spare before any job could have it"
    assert rehearsal.reservation_names() == {"understudy_spares"}
    assert rehearsal.control_plane.stores.incidents.open_incidents() == {}
    assert rehearsal.hungry_state() == "PENDING", "no job had the node before its validation"
    wait_for(rehearsal, "n5", NodeState.IN_SERVICE, 4000)
    assert states_passed(rehearsal, "n5")[-1] == 230


def boots(rehearsal: Rehearsal, name: str) -> None:
    """Boots the node by itself, before it is dead. Slurm keeps it DOWN."""
    rehearsal.kill_node(name)
    rehearsal.run(3)
    rehearsal.fake.boot_node(name)
    rehearsal.silent.discard(name)
    assert node_of(rehearsal, name).down


def test_a_node_that_slurm_keeps_down_after_it_has_booted_comes_back_by_its_validation(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)
    boots(rehearsal, "n5")
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    assert states_passed(rehearsal, "n5")[-2:] == [203, 220]
    rehearsal.run(5)
    assert node_of(rehearsal, "n5").service is Service.USABLE
    assert rehearsal.tickets == []
    boots(rehearsal, "n5")
    rehearsal.run(4000)
    assert rehearsal.state_of("n5") is NodeState.FOREIGN_DRAIN
    (ticket,) = rehearsal.tickets
    assert "Node unexpectedly rebooted" in str(ticket), "the second time within a day is a person's"


def test_a_node_that_fails_its_validation_after_an_outage_is_quarantined(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.fake.job_ends_as["n5"] = "FAILED"
    boots(rehearsal, "n5")
    wait_for(rehearsal, "n5", NodeState.MANUAL_REPAIR, 600)
    passed = states_passed(rehearsal, "n5")
    assert passed[passed.index(203) + 1] == 221
    assert node_of(rehearsal, "n5").draining


def test_a_node_that_fails_its_test_twice_goes_to_a_person_with_the_evidence(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.gpus["n5"] = [b.gpu(0, serial="4711"), b.gpu(1, status=GpuStatus.LOST, serial="4712")]
    rehearsal.fake.job_ends_as["n5"] = "FAILED"
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.MANUAL_REPAIR, 600)
    assert states_passed(rehearsal, "n5") == [10, 200, 210, 221, 200, 210, 221, 202]
    assert rehearsal.line.effects["reboot_node n5"] == 2
    rehearsal.run(5)
    (ticket,) = rehearsal.tickets
    assert ticket["node"] == "n5"
    evidence_text = str(ticket["evidence"])
    assert "Xid (PCI:0000:01:00): 79" in evidence_text, "the line of the kernel's log"
    assert "4712" in evidence_text, "the serial number of the GPU, as it was before the first reboot"
    assert node_of(rehearsal, "n5").draining
    assert rehearsal.reservation_names() == {"understudy_spares"}
    assert rehearsal.hungry_state() == "PENDING"


def test_what_was_repaired_waits_for_a_person_where_no_test_is_configured(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **REPAIR)
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.MANUAL_REPAIR)
    assert states_passed(rehearsal, "n5") == [10, 200, 202]
    assert node_of(rehearsal, "n5").service is not Service.USABLE
    rehearsal.fake.resume_node("n5")
    wait_for(rehearsal, "n5", NodeState.IN_SERVICE)
    rehearsal.run(30)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE
    assert node_of(rehearsal, "n5").service is Service.USABLE


def test_a_gpu_is_reset_by_an_exclusive_job_of_the_control_plane(tmp_path: Path) -> None:
    config = TESTED | {"repair": {**REPAIR["repair"], "reset_command": "nvidia-smi --gpu-reset", "reboot": False}}
    rehearsal = start(tmp_path, **config, guards={"observe_rules": ["no.such.rule"]})
    ask_for_reset(rehearsal)
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    assert rehearsal.line.effects["reboot_node n5"] == 0
    names = [job.name for job in rehearsal.fake.jobs() if job.user == "root"]
    assert [name.rsplit("-", 2)[0] for name in names] == ["understudy-reset", "understudy-validate"]


@pytest.mark.parametrize(
    ("detail", "known"),
    [
        (HardwareDetail(part="0000:1b:00.0", gpu="0000:1b:00.0"), ("0000:1b:00.0",)),
        (HardwareDetail(gpu="0"), ("0",)),
        (HardwareDetail(part="0000:c1:00.0"), ()),
        (None, ()),
    ],
)
def test_a_reset_gets_the_gpu_at_fault_if_it_is_known(detail: HardwareDetail | None, known: tuple[str, ...]) -> None:
    node = b.node("n5", NodeState.QUARANTINED)
    incident = OpenIncident(1, Subject.of_node("n5"), "rule", "hardware_fault", "", b.NOW, detail)
    assert plans.repair_plan(node, RepairDetail(rung=Rung.RESET_GPU, fault=""), "x", incident).gpus == known
    assert plans.repair_plan(node, RepairDetail(rung=Rung.REBOOT, fault=""), "x", incident).gpus == ()


def test_nvmls_values_of_a_gpu_are_stored_before_they_are_erased() -> None:
    gpu = b.gpu(3, serial="4712", fabric_state=2, nvlinks=17, clock_event_reasons=8, status=GpuStatus.RESET_REQUIRED)
    (kept,) = cast("list[dict[str, Json]]", known_of(b.node("n5", NodeState.QUARANTINED, gpus=(gpu,)))["gpus"])
    assert kept == msgspec.to_builtins(gpu)
    assert (kept["fabric_state"], kept["nvlinks"], kept["clock_event_reasons"]) == (2, 17, 8)
    assert kept["status"] == "reset_required"


def ask_for_reset(rehearsal: Rehearsal) -> None:
    """A finding that names its repair: the driver asks for a reset. It is over when the reset is done."""
    rehearsal.gpus["n5"] = [b.gpu(0, status=GpuStatus.RESET_REQUIRED)]
    wait_for(rehearsal, "n5", NodeState.QUARANTINED)
    from sqlalchemy import text

    with rehearsal.engine.begin() as connection:
        connection.execute(text('UPDATE incident SET detail = \'{"kind": "hardware", "repair": "reset_gpu"}\''))
    rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.REPAIRING)
    rehearsal.gpus.pop("n5")


@pytest.mark.parametrize("effect", first(2, "reboot_node", "submit_job", "create_reservation", "resume_node"))
def test_an_effect_whose_answer_is_lost_is_not_made_again(tmp_path: Path, effect: str) -> None:
    rehearsal = start(tmp_path, **TESTED)

    def lose_answer(name: str) -> None:
        if name == effect:
            raise SlurmUnavailable(f"{name}: Socket timed out on send/recv operation")

    rehearsal.line.after = lose_answer
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    made = {key: count for key, count in rehearsal.line.effects.items() if key.startswith(effect)}
    assert set(made.values()) == {1}, made


@pytest.mark.parametrize(
    "effect", first(2, "reboot_node", "submit_job", "drain_node", "create_reservation", "resume_node")
)
def test_a_control_plane_that_dies_after_any_effect_goes_on_where_it_was(tmp_path: Path, effect: str) -> None:
    rehearsal = start(tmp_path, **TESTED)
    died: list[str] = []

    def die(name: str) -> None:
        if name == effect and not died:
            died.append(name)
            raise KeyboardInterrupt

    rehearsal.line.after = die
    rehearsal.fail("n5")
    with pytest.raises(KeyboardInterrupt):
        wait_for(rehearsal, "n5", NodeState.PROBATION)
    rehearsal.restart_control_plane()
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    made = {key: count for key, count in rehearsal.line.effects.items() if key.startswith(effect)}
    times = 2 if effect == "drain_node" else 1  # after its reboot it is drained again
    assert set(made.values()) == {times}, made


def test_a_reboot_that_is_refused_counts_and_the_ladder_ends_with_a_person(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)

    def refuse(name: str) -> None:
        if name == "reboot_node":
            raise SlurmError("reboot_node: no RebootProgram")

    rehearsal.line.before = refuse
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.MANUAL_REPAIR, 600)
    assert [one[:2] for one in attempts(rehearsal)] == [
        (RecoveryKind.REPAIR, Rung.REBOOT),
        (RecoveryKind.REPAIR, Rung.REBOOT),
        (RecoveryKind.MANUAL_REPAIR, Rung.MANUAL_REPAIR),
    ]
    assert "no RebootProgram" in decided(rehearsal, 211)[0]["reason"]


def test_a_node_that_never_comes_back_from_a_reboot_goes_to_a_person(tmp_path: Path) -> None:
    config = TESTED | {"repair": {**REPAIR["repair"], "reboot_timeout_seconds": 100, "reboots_max": 1}}
    rehearsal = start(tmp_path, **config)
    rehearsal.never_back.add("n5")
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.MANUAL_REPAIR, 600)
    rehearsal.run(10)
    assert len(rehearsal.tickets) == 1


def test_a_node_that_boots_for_longer_than_slurm_waits_is_waited_for_and_not_rebooted_again(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.never_back.add("n5")
    rehearsal.fail("n5")
    rehearsal.run_until(lambda: "REBOOT_ISSUED" in node_of(rehearsal, "n5").flags)
    rehearsal.run(10)
    rehearsal.fake.give_up_reboot("n5")
    rehearsal.run(200)
    assert rehearsal.state_of("n5") is NodeState.REPAIRING
    rehearsal.fake.register("n5")
    rehearsal.never_back.discard("n5")
    rehearsal.boots["n5"] += 1
    rehearsal.silent.discard("n5")
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    assert rehearsal.line.effects["reboot_node n5"] == 1


@pytest.mark.parametrize("state", first(1, NodeState.REPAIRING, NodeState.QUARANTINED, NodeState.VALIDATING))
def test_an_administrators_maintenance_of_the_whole_cluster_uses_up_no_reboot(tmp_path: Path, state: NodeState) -> None:
    """It begins right after the quarantine, while the node boots, or while its validation runs."""
    rehearsal = start(tmp_path, **VALIDATION, repair={**REPAIR["repair"], "reboot_timeout_seconds": 300})
    rehearsal.fake.job_seconds = 60.0
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", state)
    begun: dict[NodeState, Callable[[], bool]] = {
        NodeState.QUARANTINED: lambda: True,
        NodeState.REPAIRING: lambda: node_of(rehearsal, "n5").off_or_rebooting,
        NodeState.VALIDATING: lambda: "RUNNING" in {job.state for job in rehearsal.fake.jobs() if job.user == "root"},
    }
    rehearsal.run_until(begun[state])
    before = dict(rehearsal.line.effects)
    rehearsal.fake.plan_maintenance([node.name for node in rehearsal.fake.nodes()], 0, 25)
    rehearsal.run(1200)
    if state is NodeState.QUARANTINED:
        assert dict(rehearsal.line.effects) == before
    assert rehearsal.tickets == []
    rehearsal.run(1200)
    assert rehearsal.line.effects["reboot_node n5"] == 1
    assert list(dict.fromkeys(states_passed(rehearsal, "n5")))[:4] == [10, 200, 210, 220]


@pytest.mark.parametrize("state", first(1, NodeState.REPAIRING, NodeState.QUARANTINED, NodeState.MANUAL_REPAIR))
def test_a_person_who_resumes_the_node_ends_the_claim_at_once(tmp_path: Path, state: NodeState) -> None:
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.fake.job_ends_as["n5"] = "FAILED"
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", state, 600)
    rehearsal.run_until(lambda: node_of(rehearsal, "n5").draining)
    rehearsal.run(1)
    rehearsal.fake.resume_node("n5")
    wait_for(rehearsal, "n5", NodeState.IN_SERVICE)
    rehearsal.line.effects.clear()
    rehearsal.run(120)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE
    assert not [effect for effect in rehearsal.line.effects if effect.endswith("n5")]


def test_a_person_who_resumes_it_after_its_reboot_is_heard_also_where_slurm_refused_its_drain(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.REPAIRING)
    rehearsal.line.before = refuse("drain_node")
    wait_for(rehearsal, "n5", NodeState.QUARANTINED)
    rehearsal.run(10)
    assert node_of(rehearsal, "n5").down, "as its reboot has left it"
    assert not node_of(rehearsal, "n5").draining
    rehearsal.fake.resume_node("n5")
    rehearsal.run(1)
    rehearsal.line.before = lambda _name: None
    rehearsal.run(60)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE
    assert rehearsal.line.effects["drain_node n5"] == 1


def test_a_person_who_takes_the_node_from_its_test_gets_it(tmp_path: Path) -> None:
    """While it is validated it is not drained: an administrator takes it by deleting the reservation."""
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.fake.job_seconds = 1000.0
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.VALIDATING)
    rehearsal.run_until(lambda: [job for job in rehearsal.fake.jobs() if job.state == "RUNNING" and job.user == "root"])
    rehearsal.fake.drain_by("alice", "n5", "let me see")
    wait_for(rehearsal, "n5", NodeState.FOREIGN_DRAIN)
    rehearsal.run(30)
    assert HOLD not in rehearsal.reservation_names()
    assert node_of(rehearsal, "n5").reason == "let me see"
    rehearsal.fake.resume_node("n5")
    wait_for(rehearsal, "n5", NodeState.IN_SERVICE)


def test_the_end_of_a_test_is_read_before_slurm_forgets_it(tmp_path: Path) -> None:
    """The control plane looks at a long test seldom."""
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.fake.min_job_age_seconds = 4
    rehearsal.fake.job_seconds = 247.0
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.VALIDATING)
    for _ in range(2):
        rehearsal.run(110)  # it ticks every three seconds
    wait_for(rehearsal, "n5", NodeState.PROBATION, 110)
    assert sum(count for what, count in rehearsal.line.effects.items() if what.startswith("submit_job")) == 1


def test_a_report_from_before_the_reboot_condemns_no_node(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.gpus["n5"] = [b.gpu(0, status=GpuStatus.LOST)]
    rehearsal.fake.job_seconds = 60.0
    wait_for(rehearsal, "n5", NodeState.VALIDATING)
    old = b.report("n5", boot_id="boot of n5", gpus=[b.gpu(0, status=GpuStatus.LOST)])
    rehearsal.silent.add("n5")  # only the report that was on its way
    rehearsal.control_plane.telemetry.receive(old, rehearsal.fake.now)
    rehearsal.fail("n5")  # and a fact of the old boot: the new one is not heard yet
    rehearsal.run(5)
    rehearsal.silent.discard("n5")
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    assert 222 not in states_passed(rehearsal, "n5")


def test_a_report_from_before_the_reset_condemns_no_node_and_one_from_after_it_does(tmp_path: Path) -> None:
    config = TESTED | {"repair": {**REPAIR["repair"], "reset_command": "reset", "reboot": False}}
    rehearsal = start(tmp_path, **config)
    rehearsal.fake.job_seconds = 20.0
    rehearsal.gpus["n5"] = [b.gpu(0, recovery_action=1)]
    wait_for(rehearsal, "n5", NodeState.VALIDATING)
    rehearsal.run(1)  # its agent reports what it read just before
    assert rehearsal.state_of("n5") is NodeState.VALIDATING
    rehearsal.run(5)  # and reports it again: the reset was none
    assert 222 in states_passed(rehearsal, "n5")


def test_a_fault_while_it_is_tested_sends_it_back(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.fake.job_seconds = 60.0
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.VALIDATING)
    rehearsal.run(5)
    rehearsal.fail("n5")
    rehearsal.run(1)
    assert 222 in states_passed(rehearsal, "n5")
    rehearsal.run_until(lambda: node_of(rehearsal, "n5").draining)
    rehearsal.run_until(lambda: HOLD not in rehearsal.reservation_names())
    assert not [job for job in rehearsal.fake.jobs() if job.state == "RUNNING" and job.user == "root"]


@pytest.mark.parametrize("what", ["reset", "validate"])
def test_a_job_on_the_node_that_does_not_start_is_no_verdict_and_is_cancelled(tmp_path: Path, what: str) -> None:
    """Its partition does not take it, or another job was there first."""
    config = TESTED | {"repair": {**REPAIR["repair"], "reset_command": "reset", "reboot": False}}
    rehearsal = start(tmp_path, **config)

    def hold(effect: str) -> None:
        if effect == "submit_job":
            jobs = [job for job in rehearsal.fake.jobs() if job.name.startswith(f"understudy-{what}-")]
            for job in jobs:
                rehearsal.fake.hold_job(job.job_id)

    rehearsal.line.after = hold
    ask_for_reset(rehearsal)
    ended = RecoveryStatus.FAILED
    rehearsal.run_until(lambda: [one for one in attempts(rehearsal) if one[2] is ended], 400)
    failed = [one for one in tried(rehearsal) if one.status is ended]
    assert failed[0].outcome.endswith("did not start: JobHeldAdmin")
    assert failed[0].never_began
    (job,) = [job for job in rehearsal.fake.jobs() if job.name.startswith(f"understudy-{what}-")]
    rehearsal.run_until(lambda: job.job_id not in [one.job_id for one in rehearsal.fake.jobs() if not one.ended], 30)
    rehearsal.run(10)
    assert HOLD not in rehearsal.reservation_names()


@pytest.mark.parametrize(
    ("partitions", "taken", "tried"),
    [
        (("a",), "a", ["a"]),
        (("a", "b"), "a,b", ["a,b"]),
        (("a", "b"), "b", ["a,b", "a", "b"]),  # EnforcePartLimits=ALL
        (("a", "b"), "", ["a,b", "a", "b"]),
        ((), "", []),
    ],
)
def test_a_job_on_the_node_asks_for_all_partitions_of_its_node_and_then_for_each(
    partitions: tuple[str, ...], taken: str, tried: list[str]
) -> None:
    asked: list[str] = []

    class Line(VirtualSlurm):
        def submit_job(self, request: JobRequest) -> None:
            asked.append(request.partition)
            if request.partition != taken:
                raise SlurmError(f"{request.partition}: Requested time limit is invalid")

    context = context_of(replace(b.slurm_node("n5"), partitions=partitions))
    with contextlib.nullcontext() if taken else pytest.raises(SlurmError):
        repair.validate(context, Line(("n5",)))
    assert asked == tried


@pytest.mark.parametrize("gres", ["gpu:8(S:0-1),mps:800(S:0-1)", "gpu:8,shard:16", "gpu:8,fs:no_consume:4G"])
def test_a_node_with_shares_of_its_gpus_is_validated(gres: str) -> None:
    slurm = VirtualSlurm(("n5",))
    slurm.create_reservation(HOLD, ["n5"], "root", 60)
    repair.validate(context_of(replace(b.slurm_node("n5"), gres=gres)), slurm)
    assert [job.name for job in slurm.jobs()] == ["understudy-validate-x"]


def context_of(node: SlurmNode) -> StepContext:
    return StepContext(
        plan=plans.validation_plan(b.node(node.name), None, "x", 0.0),
        slurm=SlurmView(b.NOW, {node.name: node}, {}, {}),
        records={},
        gang=lambda _: GangFacts(hook_was_used=False),
        silent=lambda _: [],
        still_silent=lambda _: [],
        config=b.config(),
        now=b.NOW,
        tickets=cast("Tickets", None),
        send_orders=lambda _: None,
        worked_until=lambda: 0.0,
    )


@pytest.mark.parametrize("reason", ["board swap", "Not responding", "Not responding since noon"])
@pytest.mark.parametrize("state", ["IDLE", "DOWN"])
def test_an_administrators_drain_of_a_node_that_does_not_answer_is_not_lifted(state: str, reason: str) -> None:
    """Slurm itself drains no node for its silence; through its API a drain needs no reason, and an old one stays."""
    taken = b.slurm_node("n5", state, ["DRAIN", "NOT_RESPONDING"], reason, "alice")
    assert repair.observe_resumed(context_of(taken)) == Failed(f"n5 is out of service for alice ({reason}): left alone")


@pytest.mark.parametrize("words", ["reboot timed out", "Node unexpectedly rebooted", "Not responding"])
def test_what_slurm_adds_to_an_administrators_reason_does_not_make_it_understudys(words: str) -> None:
    taken = b.slurm_node("n5", "DOWN", [], f"fan swap : {words}", "slurm")
    assert repair.observe_resumed(context_of(taken)) == Failed(
        f"n5 is out of service for slurm (fan swap : {words}): left alone"
    )
    taken = b.slurm_node("n5", "DOWN", [], f"{words}, leave it to me (Bob)", "root")
    assert isinstance(repair.observe_resumed(context_of(taken)), Failed)


@pytest.mark.parametrize("reason", ["", "Not responding"])
def test_a_node_that_only_slurm_has_lost_is_resumed(reason: str) -> None:
    lost = b.slurm_node("n5", "DOWN", ["NOT_RESPONDING"], reason, "slurm" if reason else "")
    assert isinstance(repair.observe_resumed(context_of(lost)), Todo)


def test_a_fault_on_probation_goes_up_the_ladder(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)
    for _ in range(2):
        rehearsal.fail("n5")
        wait_for(rehearsal, "n5", NodeState.REPAIRING)
        wait_for(rehearsal, "n5", NodeState.PROBATION)
        rehearsal.run(10)
    assert rehearsal.line.effects["reboot_node n5"] == 2
    rehearsal.fail("n5")  # the third quarantine within the week
    wait_for(rehearsal, "n5", NodeState.MANUAL_REPAIR)
    assert decided(rehearsal, 202)[0]["rule"] == "repair.flapping"


def test_an_old_xid_does_not_condemn_a_node_whose_gpu_was_reset_since(tmp_path: Path) -> None:
    """No reboot, the same boot id: the reset is the fact that clears it."""
    config = TESTED | {"repair": {**REPAIR["repair"], "reset_command": "reset", "reboot": False}}
    rehearsal = start(tmp_path, **config)
    rehearsal.fail("n5", xid=95)
    ask_for_reset(rehearsal)
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    rehearsal.run(60)
    assert rehearsal.state_of("n5") is NodeState.PROBATION


def test_a_dead_node_is_a_persons_unless_it_comes_back_by_itself(tmp_path: Path) -> None:
    config = TESTED | {"repair": {**REPAIR["repair"], "dead_node_wait_seconds": 400}}
    rehearsal = start(tmp_path, **config)
    rehearsal.kill_node("n3")
    wait_for(rehearsal, "n3", NodeState.QUARANTINED)
    rehearsal.run(60)
    assert rehearsal.state_of("n3") is NodeState.QUARANTINED
    assert rehearsal.line.effects["reboot_node n3"] == 0, "it does not answer, so it cannot be rebooted"
    rehearsal.fake.start_node("n3")
    rehearsal.boots["n3"] += 1
    rehearsal.silent.discard("n3")
    wait_for(rehearsal, "n3", NodeState.PROBATION)
    assert states_passed(rehearsal, "n3") == [30, 11, 201, 220]


@pytest.mark.parametrize("adds_to_reasons", [False, True])
@pytest.mark.parametrize(("node", "seconds"), [("n3", 100), ("n5", 400)])
def test_a_dead_node_that_stays_dead_gets_a_ticket(
    tmp_path: Path, node: str, seconds: int, adds_to_reasons: bool
) -> None:
    """Also where Slurm sets the drained node down before, and adds to the reason of Understudy's drain."""
    config = TESTED | {"repair": {**REPAIR["repair"], "dead_node_wait_seconds": seconds}}
    rehearsal = start(tmp_path, **config)
    rehearsal.fake.adds_to_reasons = adds_to_reasons
    rehearsal.kill_node(node)
    wait_for(rehearsal, node, NodeState.MANUAL_REPAIR, seconds + 60)
    rehearsal.run(10)
    assert [ticket["node"] for ticket in rehearsal.tickets] == [node]


def test_a_node_that_slurm_reaches_is_kept_from_jobs_and_gets_neither_ticket_nor_repair(tmp_path: Path) -> None:
    """It is idle, and the control plane's own route to it is away: a job that Slurm starts there may fail or not."""
    config = TESTED | {"repair": {**REPAIR["repair"], "dead_node_wait_seconds": 100}}
    rehearsal = start(tmp_path, **config)
    rehearsal.silent.add("n5")
    wait_for(rehearsal, "n5", NodeState.QUARANTINED)

    def need() -> Need:
        return next(one for one in rehearsal.control_plane.loop.pulse.needs if one.subject == "n5")

    rehearsal.run(60)
    assert not need().is_due(rehearsal.clock.now())
    rehearsal.run(1200)
    assert rehearsal.state_of("n5") is NodeState.QUARANTINED
    assert rehearsal.tickets == []
    assert need().is_due(rehearsal.clock.now())
    assert "Slurm reaches it, and the control plane does not hear its agent" in need().why
    rehearsal.silent.discard("n5")
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    assert states_passed(rehearsal, "n5") == [30, 11, 201, 220]
    assert set(rehearsal.line.effects).isdisjoint({"reboot_node n5", "down_nodes n5"})


def test_no_more_nodes_are_in_repair_at_once_than_may_be(tmp_path: Path) -> None:
    config = TESTED | {"repair": {**REPAIR["repair"], "nodes_at_once_max": 1}}
    rehearsal = start(tmp_path, **config)
    rehearsal.fail("n5")
    rehearsal.fail("n8")
    for _ in range(200):
        rehearsal.run(1)
        states = [rehearsal.state_of(name) for name in ("n5", "n8")]
        assert sum(state in (NodeState.REPAIRING, NodeState.VALIDATING) for state in states) <= 1
        if states == [NodeState.PROBATION] * 2:
            break
    assert states == [NodeState.PROBATION] * 2
    assert [one["because"] for one in decided(rehearsal, 200)].count("repair_budget") == 1


@pytest.mark.parametrize(("verb", "state"), [(Verb.HOLD, NodeState.OPERATOR_HOLD), (Verb.RETIRE, NodeState.RETIRED)])
def test_what_an_operator_holds_or_retires_is_drained_and_left_alone_until_released(
    tmp_path: Path, verb: Verb, state: NodeState
) -> None:
    rehearsal = start(tmp_path, **REPAIR)
    requests = rehearsal.control_plane.stores.requests
    requests.ask(verb, "n6", "new cables", "alice", rehearsal.fake.now)
    wait_for(rehearsal, "n6", state)
    rehearsal.run(2)
    assert node_of(rehearsal, "n6").draining
    assert "new cables" in node_of(rehearsal, "n6").reason
    assert "n6" not in rehearsal.pool()
    rehearsal.fail("n6")
    rehearsal.run(30)
    assert rehearsal.state_of("n6") is state
    requests.ask(Verb.RELEASE, "n6", "done", "alice", rehearsal.fake.now)
    wait_for(rehearsal, "n6", NodeState.IN_SERVICE)
    rehearsal.run(10)
    assert node_of(rehearsal, "n6").service is Service.USABLE
    assert rehearsal.state_of("n6") is NodeState.IN_SERVICE


def test_a_hold_with_an_end_is_followed_by_a_release(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **REPAIR)
    add_tokens(rehearsal.control_plane.engine, [])
    client = TestClient(rehearsal.control_plane.app, headers=bearer(Role.OPERATOR))
    answer = client.post("/v1/nodes/n6/hold", json={"reason": "new cables", "for_seconds": 60}).json()
    assert (answer["outcome"], answer["why"]) == ("will_act", "n6 becomes operator_hold")
    wait_for(rehearsal, "n6", NodeState.OPERATOR_HOLD)
    rehearsal.run(2)
    request = client.get(f"/v1/requests/{answer['request']}").json()
    assert (request["status"], request["decision"] is not None) == ("done", True)
    rehearsal.run(40)
    assert rehearsal.state_of("n6") is NodeState.OPERATOR_HOLD
    wait_for(rehearsal, "n6", NodeState.IN_SERVICE)
    newest = client.get("/v1/requests?node=n6").json()["items"]
    assert [(one["verb"], one["by"]) for one in newest] == [("release", "understudy"), ("hold", "operator")]


def test_the_end_of_a_hold_does_not_return_a_node_that_was_resumed_and_failed_since(tmp_path: Path) -> None:
    rehearsal = start(tmp_path)
    entry = AuditEntry.on_host("alice", rehearsal.fake.now, Verb.HOLD.value, "n6", "new cables")
    rehearsal.control_plane.stores.requests.ask_audited(entry, rehearsal.fake.now + 100)
    wait_for(rehearsal, "n6", NodeState.OPERATOR_HOLD)
    rehearsal.run(2)
    rehearsal.fake.resume_node("n6")
    wait_for(rehearsal, "n6", NodeState.IN_SERVICE)
    rehearsal.run(5)
    rehearsal.fail("n6")
    wait_for(rehearsal, "n6", NodeState.QUARANTINED)
    rehearsal.run(150)
    assert (rehearsal.state_of("n6"), node_of(rehearsal, "n6").draining) == (NodeState.QUARANTINED, True)
    assert states_passed(rehearsal, "n6") == [250, 240, 10]


def test_what_a_person_repaired_is_tested_when_it_is_released(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED | {"repair": {**REPAIR["repair"], "reboot": False}})
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.MANUAL_REPAIR)
    rehearsal.run(5)
    rehearsal.boots["n5"] += 1
    rehearsal.control_plane.stores.requests.ask(Verb.RELEASE, "n5", "new GPU", "alice", rehearsal.fake.now)
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    assert states_passed(rehearsal, "n5") == [10, 202, 253, 220]
    assert rehearsal.control_plane.stores.tickets.tickets(1)[0]["closed_at"] is not None


def test_in_mode_observe_no_node_is_repaired_tested_or_returned(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.QUARANTINED)
    rehearsal.restart_control_plane(mode="observe")
    rehearsal.line.effects.clear()
    rehearsal.control_plane.stores.requests.ask(Verb.HOLD, "n6", "x", "alice", rehearsal.fake.now)
    rehearsal.run(200)
    assert not rehearsal.line.effects
    assert (rehearsal.state_of("n5"), rehearsal.state_of("n6")) == (NodeState.QUARANTINED, NodeState.IN_SERVICE)


def test_a_slurmctld_that_forgets_the_reservation_gives_the_node_to_no_job(tmp_path: Path) -> None:
    """It comes back with a state from before: the node is drained again, and all steps are done again."""
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.VALIDATING)
    saved: list[object] = []
    crashed: list[str] = []

    def crash(name: str) -> None:
        if name == "create_reservation" and not crashed:
            crashed.append(name)
            rehearsal.fake.crash(saved[0])

    saved.append(rehearsal.fake.saved_state())
    rehearsal.line.after = crash
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    assert rehearsal.hungry_state() == "PENDING"


WIDE: dict[str, Any] = {"quarantined_nodes_max": 100, "quarantined_share_max": 1.0, "domain_share_max": 1.0}


def test_a_reservation_that_is_left_over_is_given_up(tmp_path: Path) -> None:
    rehearsal = start(tmp_path)
    for user in ("root", "slurm"):  # as validation.user was before
        rehearsal.fake.create_reservation(HOLD, ["n5"], user, 60)
        rehearsal.run(5)
        assert HOLD not in rehearsal.reservation_names()


@pytest.mark.parametrize(
    ("users", "flags", "is_left_over"),
    [
        (("slurm",), ("IGNORE_JOBS",), True),
        (("alice", "bob"), ("IGNORE_JOBS",), False),
        (("alice",), (), False),
        ((), ("IGNORE_JOBS",), False),
    ],
)
def test_an_administrators_reservation_with_that_name_is_not_taken_for_one_that_is_left_over(
    users: tuple[str, ...], flags: tuple[str, ...], is_left_over: bool
) -> None:
    held = SlurmReservation(HOLD, ("n5",), users, frozenset(flags))
    decided = decide(b.snapshot(reservations={HOLD: held}), (), b.config())
    assert [one.subject for one in decided if one.action is Action.LET_GO] == (["n5"] if is_left_over else [])
    context = context_of(b.slurm_node("n5"))
    shown = repair.observe_released(replace(context, slurm=replace(context.slurm, reservations={HOLD: held})))
    assert isinstance(shown, Done) is not is_left_over


@pytest.mark.parametrize(
    ("during", "ends_as"), [("create_reservation", NodeState.IN_SERVICE), ("submit_job", NodeState.PROBATION)]
)
def test_a_change_of_the_validations_user_leaves_no_node_reserved(
    tmp_path: Path, during: str, ends_as: NodeState
) -> None:
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.control_plane.stores.requests.ask(Verb.VALIDATE, "n5", "x", "alice", rehearsal.fake.now)

    def die(name: str) -> None:
        if name == during and HOLD in rehearsal.reservation_names():
            raise KeyboardInterrupt

    rehearsal.line.after = die
    with pytest.raises(KeyboardInterrupt):
        rehearsal.run(20)
    rehearsal.line.after = lambda _name: None
    rehearsal.set_config(validation={"user": "slurm"})
    wait_for(rehearsal, "n5", ends_as, 400)
    rehearsal.run_until(lambda: HOLD not in rehearsal.reservation_names())
    assert node_of(rehearsal, "n5").service is Service.USABLE


def test_a_person_who_drains_a_node_just_before_its_test_keeps_it_and_no_reservation_is_left(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)

    def drain(name: str) -> None:
        if name == "submit_job":
            rehearsal.fake.drain_by("alice", "n5", "mine")

    rehearsal.line.after = drain
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.FOREIGN_DRAIN)
    rehearsal.run(30)
    assert node_of(rehearsal, "n5").reason == "mine"
    assert HOLD not in rehearsal.reservation_names()


class TestATestThatIsWrong:
    """It fails every node that it tests."""

    NAMES = ("n1", "n2", "n3", "n4", "n5")

    def fail(self, path: Path, **config: Any) -> Rehearsal:
        """An operator has five nodes tested."""
        rehearsal = start(path, **config)
        rehearsal.fake.cancel(rehearsal.gang)
        rehearsal.fake.cancel(rehearsal.hungry)
        rehearsal.run(2)
        for name in self.NAMES:
            rehearsal.fake.job_ends_as[name] = "FAILED"
            rehearsal.control_plane.stores.requests.ask(
                Verb.VALIDATE, name, "a new script", "alice", rehearsal.fake.now
            )
        rehearsal.run(60)
        return rehearsal

    def in_state(self, rehearsal: Rehearsal, state: NodeState) -> list[str]:
        return [name for name in self.NAMES if rehearsal.state_of(name) is state]

    def test_it_opens_the_breaker_and_the_others_are_held_until_a_person_closes_it(self, tmp_path: Path) -> None:
        rehearsal = self.fail(tmp_path, **VALIDATION, guards=WIDE)
        out, held = (self.in_state(rehearsal, one) for one in (NodeState.QUARANTINED, NodeState.VALIDATING))
        assert (len(out), len(held)) == (3, 2)
        (opened,) = decided(rehearsal, 290)
        assert "to be quarantined" in opened["reason"]
        rehearsal.restart_control_plane()
        rehearsal.line.effects.clear()
        rehearsal.run(2000)
        assert not rehearsal.line.effects
        rehearsal.fake.now += 8 * 24 * 3600  # nor are they forgotten
        rehearsal.run(10)
        assert self.in_state(rehearsal, NodeState.VALIDATING) == held
        assert {f"{NODE_HOLD_PREFIX}{name}" for name in held} <= rehearsal.reservation_names(), "nobody's job gets them"
        stores = rehearsal.control_plane.stores
        assert {Subject.of_node(name) for name in self.NAMES} == set(stores.incidents.open_incidents())
        assert len(stores.journal.quarantined_since(0.0)) == 3
        rehearsal.control_plane.stores.requests.ask(
            Verb.RESET_BREAKER, FLEET, "they are broken", "alice", rehearsal.fake.now
        )
        for name in held:
            wait_for(rehearsal, name, NodeState.QUARANTINED)
        rehearsal.run(10)
        assert all(node_of(rehearsal, name).draining for name in self.NAMES)
        assert rehearsal.reservation_names() == {"understudy_spares"}
        counted = [one.node for one in rehearsal.control_plane.stores.journal.quarantined_since(0.0)]
        assert sorted(counted) == sorted(self.NAMES)

    def test_what_the_hourly_budget_holds_back_goes_when_the_hour_is_over_or_a_person_takes_it(
        self, tmp_path: Path
    ) -> None:
        guards = WIDE | {"breaker_share_max": 1.0, "quarantines_per_hour_max": 3}
        rehearsal = self.fail(tmp_path, **VALIDATION, guards=guards)
        first, second = self.in_state(rehearsal, NodeState.VALIDATING)
        assert {one["subject"] for one in decided(rehearsal, 225) if one["because"] == "hourly_budget"} == {
            first,
            second,
        }
        rehearsal.control_plane.stores.requests.ask(Verb.HOLD, first, "the script", "alice", rehearsal.fake.now)
        wait_for(rehearsal, first, NodeState.OPERATOR_HOLD)
        rehearsal.run(3400)
        assert rehearsal.state_of(second) is NodeState.VALIDATING
        wait_for(rehearsal, second, NodeState.QUARANTINED, 400)

    def test_a_node_counts_once_however_often_its_test_fails_on_its_way_back(self, tmp_path: Path) -> None:
        rehearsal = start(tmp_path, **TESTED)
        rehearsal.fake.job_ends_as["n5"] = "FAILED"
        rehearsal.fake.cancel(rehearsal.hungry)
        rehearsal.control_plane.stores.requests.ask(Verb.VALIDATE, "n5", "suspicious", "alice", rehearsal.fake.now)
        wait_for(rehearsal, "n5", NodeState.MANUAL_REPAIR, 600)
        rows = states_passed(rehearsal, "n5")
        assert (rows[:2], rows.count(225), rows.count(221)) == ([254, 225], 1, 2)
        stores = rehearsal.control_plane.stores
        assert len(stores.journal.quarantined_since(0.0)) == 1


class TestAFlood:
    """A rule goes wrong and accuses every node, again and again."""

    def flood(self, rehearsal: Rehearsal) -> list[str]:
        for _ in range(8):
            for name in ("n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"):
                rehearsal.fail(name)
            rehearsal.run(5)
        return sorted(node.name for node in rehearsal.fake.nodes() if node.draining)

    def test_at_most_the_budget_is_drained_and_that_is_recorded(self, tmp_path: Path) -> None:
        rehearsal = start(
            tmp_path,
            guards=WIDE | {"breaker_share_max": 1.0, "breaker_nodes_max": 100} | {"quarantined_nodes_max": 2},
        )
        drained = self.flood(rehearsal)
        assert len(drained) == 2
        held = [one for one in Queries(rehearsal.engine).decisions(1000) if one["because"] == "fleet_budget"]
        assert {one["subject"] for one in held} == {f"n{i}" for i in range(1, 9)} - set(drained)
        assert "2 nodes are quarantined already; the limit is 2" in (held[0]["reason"])

    def test_the_breaker_opens_and_stays_open_through_restarts_until_a_person_closes_it(self, tmp_path: Path) -> None:
        rehearsal = start(tmp_path, **TESTED, guards=WIDE)
        drained = self.flood(rehearsal)
        assert len(drained) <= 3
        (opened,) = decided(rehearsal, 290)
        assert "5 more to be quarantined" in opened["reason"]
        rehearsal.restart_control_plane()
        rehearsal.line.effects.clear()
        rehearsal.run(2000)
        assert not [one for one in rehearsal.line.effects if one.startswith(("drain", "resume", "reboot", "submit"))]
        assert in_force(rehearsal.control_plane.stores.requests.stored(), 0.0).breaker.reason == opened["reason"]

        for name in ("n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"):  # whatever it was, it is over
            rehearsal.boots[name] += 1
        rehearsal.run(5)
        rehearsal.control_plane.stores.requests.ask(
            Verb.RESET_BREAKER, FLEET, "a bad rule", "alice", rehearsal.fake.now
        )
        for name in drained:
            wait_for(rehearsal, name, NodeState.PROBATION, 2000)
        assert in_force(rehearsal.control_plane.stores.requests.stored(), 0.0).breaker.reason == ""


def test_a_node_in_service_is_tested_when_an_operator_asks_once_it_is_empty(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)
    requests = rehearsal.control_plane.stores.requests
    for name in ("n1", "n5", "n6"):
        requests.ask(Verb.VALIDATE, name, "a new node", "alice", rehearsal.fake.now)
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    wait_for(rehearsal, "n6", NodeState.PROBATION)
    assert rehearsal.state_of("n1") is NodeState.IN_SERVICE, "the gang is at work there"
    assert decided(rehearsal, 254)[0]["because"] in ("busy", "rule")
    rehearsal.run(5)
    assert "n6" in rehearsal.pool()
    assert {name for name in rehearsal.reservation_names() if name.startswith(NODE_HOLD_PREFIX)} == set()
    assert rehearsal.gang_state() == ("RUNNING", 0)


def scripts(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Node → the script of the control plane's last job there."""
    found: dict[str, str] = {}
    submit = rehearsal.fake.submit_job

    def submit_job(request: JobRequest) -> None:
        found[request.node] = request.script
        submit(request)

    monkeypatch.setattr(rehearsal.fake, "submit_job", submit_job)
    return found


def test_a_gpu_that_asks_for_a_reset_is_named_in_it_and_a_repaired_node_is_no_suspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsal = start(tmp_path, **(TESTED | {"repair": {**REPAIR["repair"], "reset_command": "reset"}}))
    submitted = scripts(rehearsal, monkeypatch)
    rehearsal.gpus["n5"] = [b.gpu(0), b.gpu(1, recovery_action=1)]
    rehearsal.run_until(lambda: "n5" in submitted)
    assert "export UNDERSTUDY_GPU=0000:02:00.0\n" in submitted["n5"]
    rehearsal.gpus.pop("n5")
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    assert "selfcheck --json --gpus 8" in submitted["n5"]
    assert "--slow-ratio" not in submitted["n5"]


def test_a_suspect_is_tested_once_its_job_is_over_and_quarantined_if_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsal = start(tmp_path, **VALIDATION)
    submitted = scripts(rehearsal, monkeypatch)
    rehearsal.fake.cancel(rehearsal.hungry)
    for name in ("n1", "n5", "n6"):
        rehearsal.gpus[name] = [b.gpu(0, nvlinks=17, nvlinks_max=18, mig_mode=False)]
    rehearsal.fake.job_ends_as["n6"] = "FAILED"
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    wait_for(rehearsal, "n6", NodeState.QUARANTINED)
    # The test waits at first: seven of Slurm's eight may be instances that NVML does not show yet.
    assert states_passed(rehearsal, "n5")[:4] == [140, 255, 255, 220]
    assert states_passed(rehearsal, "n6") == [140, 255, 255, 225]
    assert Subject.of_node("n6") in rehearsal.control_plane.stores.incidents.open_incidents()
    wait_for(rehearsal, "n5", NodeState.SUSPECT)
    rehearsal.run(1)
    assert "n5" not in free_spares(rehearsal), "it passed, and looks as wrong as before"
    assert "selfcheck --json --gpus 8 --slow-ratio 1.15" in submitted["n5"], "it may be suspect for being slow"
    assert rehearsal.state_of("n1") is NodeState.SUSPECT, "the gang is at work there"
    assert rehearsal.gang_state() == ("RUNNING", 0)
    rehearsal.run(10)
    assert node_of(rehearsal, "n6").draining
    assert node_of(rehearsal, "n5").service is Service.USABLE


def free_spares(rehearsal: Rehearsal) -> list[str]:
    snapshot = rehearsal.control_plane.loop.pulse.snapshot
    assert snapshot is not None
    return spares.free_spares(snapshot, rehearsal.config)


def test_a_node_with_a_process_that_sigkill_does_not_end_is_no_spare_until_it_has_ended(tmp_path: Path) -> None:
    rehearsal = start(tmp_path)
    rehearsal.run(5)
    assert "n8" in free_spares(rehearsal)
    rehearsal.processes["n8"] = [StuckProcess(4711, 1000, "python", Stuck.KILLED, 61.0, gpus=["0000:01:00.0"])]
    wait_for(rehearsal, "n8", NodeState.SUSPECT)
    rehearsal.run(1)  # spares are judged by the next round
    assert "n8" not in free_spares(rehearsal)
    del rehearsal.processes["n8"]
    wait_for(rehearsal, "n8", NodeState.IN_SERVICE, 7200)
    rehearsal.run(1)
    assert "n8" in free_spares(rehearsal)


def test_nodes_with_their_gpus_in_mig_mode_lack_none(tmp_path: Path) -> None:
    """Slurm counts 28 instances of four GPUs: that was a reboot again and again."""
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.fake.gres = "gpu:28"
    for name in ("n6", "n8"):
        rehearsal.gpus[name] = [b.gpu(index, mig_mode=True) for index in range(4)]
    rehearsal.run(1800)
    assert [rehearsal.state_of(name) for name in ("n6", "n8")] == [NodeState.IN_SERVICE] * 2
    assert {"n6", "n8"} <= {*free_spares(rehearsal)}
    assert attempts(rehearsal) == []
    rehearsal.gpus["n8"] = [b.gpu(index, mig_mode=False) for index in range(4)]
    wait_for(rehearsal, "n8", NodeState.SUSPECT)


def test_a_suspect_whose_test_never_starts_stays_in_service_and_is_tested_later(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **VALIDATION)
    rehearsal.fake.cancel(rehearsal.hungry)
    rehearsal.line.before = refuse("submit_job")
    rehearsal.gpus["n5"] = [b.gpu(0, nvlinks=17, nvlinks_max=18)]
    rehearsal.run_until(lambda: 224 in states_passed(rehearsal, "n5"))
    rehearsal.run(60)
    assert rehearsal.state_of("n5") is NodeState.SUSPECT
    assert HOLD not in rehearsal.reservation_names()
    assert node_of(rehearsal, "n5").service is Service.USABLE
    rehearsal.line.before = lambda _name: None
    rehearsal.run(600)
    assert states_passed(rehearsal, "n5").count(255) == 1, "not at once"
    rehearsal.run_until(lambda: 220 in states_passed(rehearsal, "n5"), 4000)


def hold_job(rehearsal: Rehearsal) -> None:
    def hold(effect: str) -> None:
        if effect == "submit_job":
            for job in rehearsal.fake.jobs():
                if job.name.startswith("understudy-validate-"):
                    rehearsal.fake.hold_job(job.job_id)

    rehearsal.line.after = hold


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("submit_job", "run_validation: tried 3 times: "),
        ("held", "run_validation: did not start: "),
    ],
)
def test_a_control_plane_that_dies_as_soon_as_a_test_could_not_begin_still_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str, words: str
) -> None:
    """The step has failed, and the recovery is ended by the next control plane."""
    rehearsal = start(tmp_path, **VALIDATION)
    rehearsal.fake.cancel(rehearsal.hungry)
    rehearsal.gpus["n5"] = [b.gpu(0, nvlinks=17, nvlinks_max=18)]
    if cause == "held":
        hold_job(rehearsal)
    else:
        rehearsal.line.before = refuse(cause)

    def die(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RecoveryStore, "end", die)
        rehearsal.run(1000)
    assert attempts(rehearsal)[-1][2] is RecoveryStatus.RUNNING
    rehearsal.restart_control_plane()
    rehearsal.run_until(lambda: 224 in states_passed(rehearsal, "n5"))
    attempt = tried(rehearsal)[-1]
    assert (attempt.status, attempt.never_began) == (RecoveryStatus.FAILED, True)
    assert attempt.outcome.startswith(words)


def test_a_test_whose_node_could_not_be_reserved_never_began(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **VALIDATION)
    rehearsal.fake.cancel(rehearsal.hungry)
    rehearsal.line.before = refuse("create_reservation")
    rehearsal.gpus["n5"] = [b.gpu(0, nvlinks=17, nvlinks_max=18)]
    rehearsal.run_until(lambda: [one for one in attempts(rehearsal) if one[2] is RecoveryStatus.FAILED], 400)
    attempt = tried(rehearsal)[-1]
    assert attempt.never_began
    assert attempt.outcome.startswith("hold_node: not done after ")


def test_a_test_that_ran_and_failed_has_begun(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **VALIDATION)
    rehearsal.fake.cancel(rehearsal.hungry)
    rehearsal.gpus["n5"] = [b.gpu(0, nvlinks=17, nvlinks_max=18)]
    rehearsal.fake.job_ends_as["n5"] = "FAILED"
    wait_for(rehearsal, "n5", NodeState.QUARANTINED)
    (attempt,) = tried(rehearsal)
    assert (attempt.status, attempt.never_began) == (RecoveryStatus.FAILED, False)


@pytest.mark.parametrize("reason", first(1, "Kill task failed (JobId=7 StepId=0)", "Epilog error"))
def test_a_reason_that_slurm_puts_in_the_place_of_understudys_stops_no_repair(tmp_path: Path, reason: str) -> None:
    """slurmstepd gives its reason also to a node that is drained already (node_mgr.c, update_node)."""
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.fake.cancel(rehearsal.hungry)
    job = rehearsal.fake.submit("student", 1)
    rehearsal.run(2)
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.QUARANTINED)
    rehearsal.run(3)
    rehearsal.fake.drain_by("root", "n5", reason)
    rehearsal.run(5)
    assert node_of(rehearsal, "n5").reason.startswith("understudy: xid.79")
    assert rehearsal.line.effects["drain_node n5"] == 2
    rehearsal.fake.cancel(job)
    wait_for(rehearsal, "n5", NodeState.PROBATION)


def test_a_reason_that_slurm_puts_in_the_place_of_understudys_keeps_no_node_from_its_release(tmp_path: Path) -> None:
    """Slurm replaces the reason of a node that registers with fewer GPUs (23.02 and later), and resumes it only when
    it has all: until then its reason stays.
    """
    rehearsal = start(tmp_path)
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.QUARANTINED)
    rehearsal.run(3)
    rehearsal.fake.drain_by("slurm", "n5", "gres/gpu count reported lower than configured (7 < 8)")
    rehearsal.fake.invalid.add("n5")
    rehearsal.run(10)
    assert node_of(rehearsal, "n5").reason.startswith("gres/gpu")
    rehearsal.fake.invalid.clear()
    rehearsal.run(5)
    assert node_of(rehearsal, "n5").reason.startswith("understudy: xid.79")
    rehearsal.control_plane.stores.requests.ask(Verb.RELEASE, "n5", "a new GPU", "alice", rehearsal.fake.now)
    wait_for(rehearsal, "n5", NodeState.IN_SERVICE)
    rehearsal.run(5)
    assert node_of(rehearsal, "n5").service is Service.USABLE


def test_slurms_own_drain_of_a_node_that_an_operator_holds_keeps_slurms_reason(tmp_path: Path) -> None:
    """Its release would lift a drain that the control plane never gave."""
    rehearsal = start(tmp_path)
    rehearsal.fake.drain_by("root", "n5", "Kill task failed")
    rehearsal.run(5)
    rehearsal.control_plane.stores.requests.ask(Verb.HOLD, "n5", "mine", "alice", rehearsal.fake.now)
    wait_for(rehearsal, "n5", NodeState.OPERATOR_HOLD)
    rehearsal.run(30)
    assert node_of(rehearsal, "n5").reason == "Kill task failed"
    assert rehearsal.line.effects["drain_node n5"] == 0


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("alice", "board swap"),
        ("root", "board swap"),
        ("root", "Low RealMemory: DIMM B3 is out, do not return before Friday (Bob)"),
    ],
)
def test_a_reason_that_a_person_puts_in_the_place_of_understudys_stays(tmp_path: Path, user: str, reason: str) -> None:
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.fake.cancel(rehearsal.hungry)
    rehearsal.fake.submit("student", 1)
    rehearsal.run(2)
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.QUARANTINED)
    rehearsal.run(3)
    rehearsal.fake.drain_by(user, "n5", reason)
    rehearsal.run(60)
    assert node_of(rehearsal, "n5").reason == reason


@pytest.mark.parametrize(
    "reason", first(1, "Kill task failed", "Duplicate jobid", "gres/gpu count reported lower than configured (7 < 8)")
)
def test_a_node_that_slurm_itself_drains_during_its_test_stays_in_its_repair(tmp_path: Path, reason: str) -> None:
    rehearsal = start(tmp_path, **TESTED)
    rehearsal.fake.job_seconds = 1000.0
    rehearsal.fail("n5")
    wait_for(rehearsal, "n5", NodeState.VALIDATING)
    rehearsal.run_until(lambda: [job for job in rehearsal.fake.jobs() if job.state == "RUNNING" and job.user == "root"])
    rehearsal.fake.job_seconds = 5.0
    rehearsal.fake.drain_by("slurm", "n5", reason)
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    assert list(dict.fromkeys(states_passed(rehearsal, "n5"))) == [10, 200, 210, 221, 220]
    assert reason in decided(rehearsal, 221)[0]["reason"]


def test_a_drain_by_slurm_during_a_requested_validation_is_its_result(tmp_path: Path) -> None:
    """Otherwise no ticket would be opened for it."""
    rehearsal = start(tmp_path, **TESTED | {"repair": {**REPAIR["repair"], "reboot": False}})
    rehearsal.fake.job_seconds = 1000.0
    rehearsal.control_plane.stores.requests.ask(Verb.VALIDATE, "n5", "a new node", "alice", rehearsal.fake.now)
    wait_for(rehearsal, "n5", NodeState.VALIDATING)
    rehearsal.run(10)
    rehearsal.fake.drain_by("slurm", "n5", "Kill task failed")
    wait_for(rehearsal, "n5", NodeState.QUARANTINED)
    rehearsal.run(1)
    assert node_of(rehearsal, "n5").reason.startswith("understudy: administration.slurm_drain")
    wait_for(rehearsal, "n5", NodeState.MANUAL_REPAIR)
    rehearsal.run(10)
    assert "Kill task failed" in str(rehearsal.tickets[0]["evidence"])


def test_a_test_that_was_asked_for_days_ago_is_made_once_the_node_is_free(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **VALIDATION)
    asked = {"n5": 3, "n6": 7.5}
    for name, days in asked.items():
        at = rehearsal.fake.now - days * 24 * 3600
        rehearsal.control_plane.stores.requests.ask(Verb.VALIDATE, name, "a new node", "alice", at)
    wait_for(rehearsal, "n5", NodeState.PROBATION)
    assert states_passed(rehearsal, "n6") == [256], "recorded once"
    assert in_force(rehearsal.control_plane.stores.requests.stored(), 0.0).nodes == {}


def test_a_recovery_goes_on_when_many_agents_fall_silent_and_only_what_is_proven_is_begun(tmp_path: Path) -> None:
    rehearsal = start(tmp_path)
    rehearsal.fail("n2")
    rehearsal.run_until(rehearsal.recoveries)
    rehearsal.silent |= {"n4", "n5", "n8"}
    rehearsal.run(10)
    rehearsal.kill_node("n7")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 120)
    rehearsal.run(20)
    assert rehearsal.gang_nodes() == ["n1", "n3", "n4", "n6"]
    assert rehearsal.state_of("n7") is NodeState.UNKNOWN
    rehearsal.fail("n3")
    wait_for(rehearsal, "n3", NodeState.QUARANTINED)
    rehearsal.silent -= {"n4", "n5", "n8"}
    wait_for(rehearsal, "n7", NodeState.QUARANTINED)


def test_a_node_that_slurm_did_not_know_before_is_burnt_in_where_the_site_wants_it(tmp_path: Path) -> None:
    config = {"validation": {**VALIDATION["validation"], "burn_in_new_nodes": True, "burn_in_hours": 2}}
    rehearsal = start(tmp_path, **config)
    assert in_force(rehearsal.control_plane.stores.requests.stored(), 0.0).nodes == {}, (
        "a fleet that is new to the control plane is not"
    )
    rehearsal.fake.cancel(rehearsal.hungry)
    rehearsal.fake.add_node("n9")
    rehearsal.run(20)
    assert rehearsal.state_of("n9") is NodeState.UNKNOWN, "its agent has to report first"

    def report() -> None:
        telemetry = rehearsal.control_plane.telemetry
        telemetry.receive(b.report("n9", sent_at=rehearsal.fake.now), rehearsal.clock.now())

    rehearsal.each_tick = report
    wait_for(rehearsal, "n9", NodeState.PROBATION)
    (job,) = [job for job in rehearsal.fake.jobs() if job.user == "root"]
    assert (job.time_limit_minutes or 0) >= 120


def stages_comment(*results: StageResult) -> str:
    return f"output:{base64.b64encode(line_of(results).encode()).decode()}"


@pytest.mark.parametrize("ends_as", ["COMPLETED", "FAILED"])
def test_the_results_of_stages_are_kept_with_the_node_and_in_the_words_of_the_step(
    tmp_path: Path, ends_as: str
) -> None:
    rehearsal = start(tmp_path, **VALIDATION)
    results = (
        StageResult(StageName.CPU, StageStatus.PASSED, 153.2, 120.0, 10.0),
        StageResult(StageName.GPU, StageStatus.NOT_POSSIBLE, None, 0.0, 0.1, "no GPU"),
    )
    rehearsal.fake.job_comments["n5"] = stages_comment(*results)
    rehearsal.fake.job_ends_as["n5"] = ends_as
    rehearsal.control_plane.stores.requests.ask(Verb.VALIDATE, "n5", "a new node", "alice", rehearsal.fake.now)
    wait_for(rehearsal, "n5", NodeState.PROBATION if ends_as == "COMPLETED" else NodeState.QUARANTINED)
    kept = rehearsal.control_plane.stores.stages.newest("n5")
    assert [one.result for one in kept] == list(results)
    validation = rehearsal.control_plane.stores.recoveries.get(kept[0].recovery)
    assert validation.steps[-1].detail.endswith(f"{ends_as}: gpu not possible: no GPU")
    rehearsal.control_plane.stores.stages.record(kept[0].recovery, "n5", results, 0.0)
    assert len(rehearsal.control_plane.stores.stages.newest("n4", "n5")) == 2, "recorded once, however often"
    shown = {
        (StageName.CPU, StageStatus.PASSED): StageSummary(1, 10.0),
        (StageName.GPU, StageStatus.NOT_POSSIBLE): StageSummary(1, 0.1),
    }
    rehearsal.run_until(lambda: rehearsal.control_plane.loop.pulse.stages == shown)
    rehearsal.restart_control_plane()
    rehearsal.run(1)
    assert rehearsal.control_plane.loop.pulse.stages == shown


def test_a_node_that_fails_a_test_that_an_operator_asked_for_is_taken_out(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **VALIDATION)
    rehearsal.fake.job_ends_as["n5"] = "FAILED"
    rehearsal.control_plane.stores.requests.ask(Verb.VALIDATE, "n5", "a new node", "alice", rehearsal.fake.now)
    wait_for(rehearsal, "n5", NodeState.QUARANTINED)
    rehearsal.run(10)
    assert node_of(rehearsal, "n5").draining
    assert HOLD not in rehearsal.reservation_names()


def test_a_node_whose_reservation_a_person_deletes_while_it_is_validated_is_left_alone(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **VALIDATION)
    rehearsal.fake.job_seconds = 1000.0
    rehearsal.control_plane.stores.requests.ask(Verb.VALIDATE, "n5", "a new node", "alice", rehearsal.fake.now)
    rehearsal.run_until(lambda: [job for job in rehearsal.fake.jobs() if job.state == "RUNNING" and job.user == "root"])
    (running,) = [job for job in rehearsal.fake.jobs() if job.state == "RUNNING" and job.user == "root"]
    rehearsal.fake.cancel(running.job_id)
    rehearsal.fake.advance(0.5)
    rehearsal.fake.delete_reservation(HOLD)
    wait_for(rehearsal, "n5", NodeState.IN_SERVICE)
    rehearsal.run(60)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE
    assert HOLD not in rehearsal.reservation_names()


class TestTheWeightOfANodeOnProbation:
    """n5 passes its test and comes back, no spare and no job waiting for it: jobs get it last."""

    LAST = 1000

    def start(self, path: Path, **config: Any) -> Rehearsal:
        validation = {"enabled": True, "probation_hours": 0.05, "probation_weight": self.LAST} | config
        rehearsal = start(path, **REPAIR, validation=validation)
        rehearsal.fake.cancel(rehearsal.hungry)
        rehearsal.fake.set_weight("n5", 7)
        return rehearsal

    def on_probation(self, rehearsal: Rehearsal) -> None:
        rehearsal.fail("n5")
        wait_for(rehearsal, "n5", NodeState.PROBATION)
        rehearsal.run_until(lambda: HOLD not in rehearsal.reservation_names())

    def test_it_is_raised_before_any_job_can_have_the_node_and_given_back_at_the_end(self, tmp_path: Path) -> None:
        rehearsal = self.start(tmp_path)
        weights: list[int] = []

        def look(name: str) -> None:
            if name == "delete_reservation":
                weights.append(node_of(rehearsal, "n5").weight)

        rehearsal.line.after = look
        self.on_probation(rehearsal)
        assert weights == [self.LAST]
        record = rehearsal.control_plane.stores.fleet.nodes()["n5"]
        assert (record.weight, record.weight_before) == (self.LAST, 7)
        rehearsal.fake.drain_by("alice", "n8", "mine")  # a spare is needed now: n5 is one, of whatever weight
        rehearsal.run_until(lambda: "n5" in rehearsal.pool())
        wait_for(rehearsal, "n5", NodeState.IN_SERVICE, 300)
        rehearsal.run(10)
        assert node_of(rehearsal, "n5").weight == 7
        assert states_passed(rehearsal, "n5")[-2:] == [230, 231]
        assert rehearsal.line.effects["set_weight n5"] == 2
        record = rehearsal.control_plane.stores.fleet.nodes()["n5"]
        assert (record.weight, record.weight_before) == (None, None)

    def test_a_spare_keeps_its_weight(self, tmp_path: Path) -> None:
        rehearsal = self.start(tmp_path)
        rehearsal.fake.drain_by("alice", "n8", "mine")
        self.on_probation(rehearsal)
        assert "n5" in rehearsal.pool()
        rehearsal.run(300)
        assert (rehearsal.state_of("n5"), node_of(rehearsal, "n5").weight) == (NodeState.IN_SERVICE, 7)
        assert not rehearsal.line.effects["set_weight n5"]

    @pytest.mark.parametrize("weight", [0, 7])
    def test_it_is_left_alone_where_the_site_does_not_want_it_or_it_is_last_already(
        self, tmp_path: Path, weight: int
    ) -> None:
        rehearsal = self.start(tmp_path, probation_weight=weight)
        self.on_probation(rehearsal)
        rehearsal.run(300)
        assert (rehearsal.state_of("n5"), node_of(rehearsal, "n5").weight) == (NodeState.IN_SERVICE, 7)
        assert not rehearsal.line.effects["set_weight n5"]

    def test_one_that_a_person_sets_later_stays(self, tmp_path: Path) -> None:
        rehearsal = self.start(tmp_path)
        self.on_probation(rehearsal)
        rehearsal.fake.set_weight("n5", 50)
        self.is_left(rehearsal, 50, changes=1)

    def test_one_that_a_person_sets_between_decision_and_change_stays(self, tmp_path: Path) -> None:
        rehearsal = self.start(tmp_path)

        def set_by_person(call: str) -> None:
            if call == "nodes" and rehearsal.state_of("n5") is NodeState.PROBATION:
                rehearsal.fake.set_weight("n5", 50)

        rehearsal.line.before = set_by_person
        self.on_probation(rehearsal)
        self.is_left(rehearsal, 50, changes=0)

    def test_what_slurm_refuses_to_put_back_is_tried_again_later(self, tmp_path: Path) -> None:
        rehearsal = self.start(tmp_path)
        self.on_probation(rehearsal)
        rehearsal.line.before = refuse("set_weight")
        wait_for(rehearsal, "n5", NodeState.IN_SERVICE, 300)
        rehearsal.run(100)
        rehearsal.line.before = lambda _name: None
        assert node_of(rehearsal, "n5").weight == self.LAST
        rehearsal.run(300)
        assert node_of(rehearsal, "n5").weight == 7

    def test_one_that_slurmctld_forgets_is_not_given_again(self, tmp_path: Path) -> None:
        """slurmctld may read its configuration again: this looks the same as an administrator who restores it."""
        rehearsal = self.start(tmp_path)
        self.on_probation(rehearsal)
        rehearsal.fake.set_weight("n5", 7)
        self.is_left(rehearsal, 7, changes=1)

    def is_left(self, rehearsal: Rehearsal, weight: int, changes: int) -> None:
        """Checks that the weight stays to the end of probation, and nothing of Understudy is left then."""
        wait_for(rehearsal, "n5", NodeState.IN_SERVICE, 300)
        rehearsal.run(10)
        assert node_of(rehearsal, "n5").weight == weight
        assert rehearsal.line.effects["set_weight n5"] == changes
        assert rehearsal.control_plane.stores.fleet.nodes()["n5"].weight is None

    @pytest.mark.parametrize("verb", [Verb.HOLD, Verb.RETIRE])
    def test_a_person_who_takes_the_node_finds_it_with_its_own(self, tmp_path: Path, verb: Verb) -> None:
        rehearsal = self.start(tmp_path)
        self.on_probation(rehearsal)
        rehearsal.control_plane.stores.requests.ask(verb, "n5", "cables", "alice", rehearsal.fake.now)
        rehearsal.run_until(lambda: node_of(rehearsal, "n5").weight == 7)
        assert node_of(rehearsal, "n5").draining

    def test_a_foreign_drain_is_left_alone_until_it_is_resumed(self, tmp_path: Path) -> None:
        rehearsal = self.start(tmp_path)
        self.on_probation(rehearsal)
        rehearsal.fake.drain_by("alice", "n5", "mine")
        wait_for(rehearsal, "n5", NodeState.FOREIGN_DRAIN)
        rehearsal.run(60)
        assert node_of(rehearsal, "n5").weight == self.LAST
        rehearsal.fake.resume_node("n5")
        rehearsal.run_until(lambda: node_of(rehearsal, "n5").weight == 7)
        assert rehearsal.state_of("n5") is NodeState.IN_SERVICE

    def test_a_fault_on_probation_and_a_second_return_do_not_make_it_the_nodes_own(self, tmp_path: Path) -> None:
        rehearsal = self.start(tmp_path)
        self.on_probation(rehearsal)
        rehearsal.run(10)
        self.on_probation(rehearsal)
        assert node_of(rehearsal, "n5").weight == self.LAST
        assert rehearsal.control_plane.stores.fleet.nodes()["n5"].weight_before == 7
        rehearsal.run(300)
        assert (rehearsal.state_of("n5"), node_of(rehearsal, "n5").weight) == (NodeState.IN_SERVICE, 7)

    def test_a_test_during_probation_does_not_make_it_the_nodes_own(self, tmp_path: Path) -> None:
        rehearsal = self.start(tmp_path)
        self.on_probation(rehearsal)
        rehearsal.control_plane.stores.requests.ask(Verb.VALIDATE, "n5", "again", "alice", rehearsal.fake.now)
        wait_for(rehearsal, "n5", NodeState.VALIDATING)
        wait_for(rehearsal, "n5", NodeState.PROBATION)
        rehearsal.run(300)
        assert (rehearsal.state_of("n5"), node_of(rehearsal, "n5").weight) == (NodeState.IN_SERVICE, 7)
        assert rehearsal.line.effects["set_weight n5"] == 2, "it had it all the time"

    def test_a_control_plane_that_dies_after_each_change_goes_on_where_it_was(self, tmp_path: Path) -> None:
        rehearsal = self.start(tmp_path)

        def die(name: str) -> None:
            if name == "set_weight":
                raise KeyboardInterrupt

        rehearsal.line.after = die
        with pytest.raises(KeyboardInterrupt):
            self.on_probation(rehearsal)
        rehearsal.restart_control_plane()
        rehearsal.run_until(lambda: HOLD not in rehearsal.reservation_names())
        assert node_of(rehearsal, "n5").weight == self.LAST
        with pytest.raises(KeyboardInterrupt):
            rehearsal.run(300)
        rehearsal.restart_control_plane()
        self.is_left(rehearsal, 7, changes=2)

    def test_a_slurm_that_refuses_it_keeps_no_node_from_service(self, tmp_path: Path) -> None:
        rehearsal = self.start(tmp_path)

        def refuse(name: str) -> None:
            if name == "set_weight":
                raise SlurmError("set_weight: Access/permission denied")

        rehearsal.line.before = refuse
        self.on_probation(rehearsal)
        assert node_of(rehearsal, "n5").service is Service.USABLE
        rehearsal.run(300)
        assert (rehearsal.state_of("n5"), node_of(rehearsal, "n5").weight) == (NodeState.IN_SERVICE, 7)


def test_idle_spares_are_validated_in_turn_and_stay_spares(tmp_path: Path) -> None:
    policy = {"validation": {"enabled": True, "spare_check_hours": 24}}
    rehearsal = start(tmp_path, **policy)
    pool = set(rehearsal.pool())
    rehearsal.run_until(lambda: {one.node for one in tried(rehearsal)} == pool, 3600)
    rehearsal.run(30)
    assert [one.status for one in tried(rehearsal)] == [RecoveryStatus.SUCCEEDED] * len(pool)
    assert set(rehearsal.pool()) == pool
    assert {rehearsal.state_of(name) for name in pool} == {NodeState.IN_SERVICE}
    assert rehearsal.reservation_names() == {"understudy_spares"}
    rehearsal.run(600)
    assert len(tried(rehearsal)) == len(pool), "not again before a day has passed"


def test_a_spare_that_fails_its_turn_leaves_the_pool(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, validation={"enabled": True, "spare_check_hours": 24})
    *others, last = sorted(rehearsal.pool())
    rehearsal.fake.job_ends_as[last] = "FAILED"
    wait_for(rehearsal, last, NodeState.QUARANTINED)
    rehearsal.run(30)
    assert set(rehearsal.pool()) == {*others, "n5"}
    assert node_of(rehearsal, last).draining


NETWORKED: dict[str, Any] = {
    "enabled": True,
    "burn_in_hours": 1,
    "network_tests_at_once_max": 1,
    "stages": {"network": {"enabled": True}},
}
RACK = ("n1", "n2", "n3", "n4")


def burn_in_a_rack(path: Path, **validation: Any) -> Rehearsal:
    """All other nodes are spares, or in use."""
    rehearsal = start(path, validation=NETWORKED | validation)
    rehearsal.fake.cancel(rehearsal.hungry)
    rehearsal.fake.cancel(rehearsal.gang)
    rehearsal.run(2)
    for name in RACK:
        rehearsal.control_plane.stores.requests.ask(Verb.BURN_IN, name, "a new rack", "carol", rehearsal.clock.now())
    return rehearsal


def network_jobs(rehearsal: Rehearsal) -> list[str]:
    jobs = sorted(rehearsal.fake.jobs(), key=lambda job: job.job_id)
    return [job.name.split("-")[2] for job in jobs if job.name.startswith("understudy-network-")]


def test_nodes_that_are_burnt_in_side_by_side_are_kept_until_the_network_of_each_was_tested(tmp_path: Path) -> None:
    rehearsal = burn_in_a_rack(tmp_path)
    rehearsal.run_until(lambda: len(network_jobs(rehearsal)) == len(RACK))
    assert {rehearsal.state_of(name) for name in RACK} == {NodeState.VALIDATING}
    assert sorted(network_jobs(rehearsal)) == list(RACK)
    for name in RACK:
        wait_for(rehearsal, name, NodeState.PROBATION)
    rehearsal.run(10)
    assert rehearsal.reservation_names() == {"understudy_spares"}
    assert [one.status for one in tried(rehearsal) if one.node in RACK] == [RecoveryStatus.SUCCEEDED] * len(RACK)


def test_a_node_whose_network_fails_is_quarantined_and_the_others_go_on(tmp_path: Path) -> None:
    rehearsal = burn_in_a_rack(tmp_path)
    rehearsal.run_until(lambda: network_jobs(rehearsal))
    (first, *_) = network_jobs(rehearsal)
    job = next(job for job in rehearsal.fake.jobs() if job.name.startswith(f"understudy-network-{first}-"))
    rehearsal.fake.end(job.job_id, "FAILED")
    wait_for(rehearsal, first, NodeState.QUARANTINED)
    for name in RACK:
        if name != first:
            wait_for(rehearsal, name, NodeState.PROBATION)


def test_a_network_test_that_slurm_refuses_is_no_verdict_on_the_node(tmp_path: Path) -> None:
    rehearsal = burn_in_a_rack(tmp_path)
    rehearsal.run_until(lambda: network_jobs(rehearsal))
    rehearsal.line.before = refuse("submit_job")
    rehearsal.run_until(lambda: NodeState.VALIDATING not in {rehearsal.state_of(name) for name in RACK}, 600)
    assert {rehearsal.state_of(name) for name in RACK} <= {NodeState.PROBATION, NodeState.IN_SERVICE}
