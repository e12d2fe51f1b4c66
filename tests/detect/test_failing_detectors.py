"""A detector that fails: the others go on, a person is notified, and nothing is concluded from its silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.incidents import incident_news, with_fabric
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.recovery_recheck import course
from understudy_controlplane.detect import BY_NODE, DETECTORS, RECORDING, detect
from understudy_controlplane.detect.failures import FAILING_NODES_MAX
from understudy_controlplane.fleet.custody import PROLOG_ERROR
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import DetectorDetail, Finding, Signal, failed_detectors, unjudged_nodes
from understudy_controlplane.fleet.gpu import WearSample
from understudy_controlplane.fleet.incident import BLOCK_FABRIC, OpenIncident
from understudy_controlplane.fleet.job import Attempt, FirstNan, Refusal
from understudy_controlplane.fleet.node import NodeState, StoredKernelEvent
from understudy_controlplane.fleet.recovery import (
    PagePlan,
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    RecoveryStep,
    RepairAttempt,
    ReturnPlan,
    StepName,
)
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.suspicion import SuspicionCause
from understudy_wire.facts import KernelEvent
from understudy_wire.hardware import GpuStatus

CONFIG = b.config()
BROKEN_XID = b.node("n2", events=(b.xid_event("n2", 79),))


def broken(_seen: Snapshot, _config: Config) -> Iterator[Finding]:
    yield Finding(Signal.HARDWARE_FAULT, "half", "n1", b.NOW, "half of what it would have found")
    raise ZeroDivisionError("a step of no length")


def found(seen: Snapshot, *failing: str) -> list[Finding]:
    return detect(seen, CONFIG, {**DETECTORS, **dict.fromkeys(failing, broken)})


@pytest.mark.parametrize("name", [one for one in DETECTORS if one != "xid"])
def test_one_that_fails_does_not_stop_the_others(name: str) -> None:
    seen = b.snapshot(BROKEN_XID)
    fault, failure = found(seen, name)
    assert (fault.node, fault.rule) == ("n2", "xid.79")
    assert (failure.signal, failure.rule, failure.node) == (Signal.DETECTOR_FAILED, f"detection.{name}", "")
    assert failure.summary == f"detector {name} failed: ZeroDivisionError: a step of no length"
    assert "test_failing_detectors.py" in str(failure.evidence.shown()["raised_in"])
    decisions = decide(seen, [fault, failure], CONFIG)
    assert [one.action for one in decisions if one.subject == "n2"] == [Action.QUARANTINE]


def test_an_error_that_quotes_what_a_user_has_sent_is_cut() -> None:
    def quotes(_seen: Snapshot, _config: Config) -> list[Finding]:
        raise ValueError("x" * 100_000)

    (failure,) = detect(b.snapshot(), CONFIG, {"hang": quotes})
    assert len(failure.summary) < 400


def test_no_fault_is_gone_and_no_suspicion_ends_where_one_fails() -> None:
    suspect = b.node("n2", record=b.record("n2", NodeState.SUSPECT, suspicions=b.suspected(SuspicionCause.HEALTH)))
    seen = b.snapshot(suspect)
    assert [one.signal for one in found(seen)] == [Signal.CLEAN]
    assert [one.signal for one in found(seen, "xid")] == [Signal.DETECTOR_FAILED]


def test_no_probation_ends_and_no_node_returns() -> None:
    validation = {"enabled": True, "probation_hours": 1}
    config = b.config(validation=validation)
    on_probation = b.node("n1", record=b.record("n1", NodeState.PROBATION, since=b.NOW - 7200))
    passed = b.node("n2", NodeState.VALIDATING)
    test = RepairAttempt(1, "n2", RecoveryKind.VALIDATE, None, b.NOW - 50, RecoveryStatus.SUCCEEDED, ended_at=b.NOW - 5)
    seen = b.snapshot(on_probation, passed, attempts=(test,), reservations=b.kept("n2"))
    usual = {one.subject: (one.action, one.to_state) for one in decide(seen, found(seen), config)}
    assert usual == {"n1": (Action.NOTHING, NodeState.IN_SERVICE), "n2": (Action.RETURN, NodeState.PROBATION)}
    held = {one.subject: one for one in decide(seen, found(seen, "xid"), config) if one.action is not Action.PAGE}
    assert held.keys() == {"n2", "fleet"}
    assert (held["n2"].action, held["n2"].because) == (Action.NOTHING, Because.DETECTOR_FAILED)


# -- one bad row ---------------------------------------------------------------------------------------------------

NO_GPU: Any = None
"""A row as no agent sends it: each detector that looks at GPUs fails on it."""


def fleet(*bad: str) -> Snapshot:
    """Each detector that looks at each node by itself finds something, on nodes of its own."""
    names = [f"n{number}" for number in range(1, 21)]
    drained = b.slurm_node("n2", flags=["DRAIN"], reason="new fan", user="alice")
    refused = replace(b.slurm_node("n3", flags=["DRAIN"], reason=PROLOG_ERROR), reason_at=int(b.NOW) - 9)
    text = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0"
    logged = StoredKernelEvent(1, "n4", b.NOW - 1, KernelEvent(b.BOOT, 1, b.NOW - 1, text))
    samples = [WearSample(b.NOW - hours * 3600, 0, remapped) for hours, remapped in ((100, 0), (1, 3))]
    kinds = {
        "n2": b.node("n2", slurm=drained),
        "n3": b.node("n3", slurm=refused),
        "n4": b.node("n4", events=(logged,)),
        "n5": b.node("n5", gpus=(b.gpu(status=GpuStatus.LOST),)),
        "n6": b.node("n6", gpus=(b.gpu(remapped_rows_failed=True),)),
        "n7": b.node("n7", gpus=(b.gpu(),)),
    }
    nan = [FirstNan(b.job(job_id=job).key, Attempt(0), 5, ("n8",), 0, b.NOW - job) for job in (1, 2)]
    views = [kinds.get(name, b.node(name)) for name in names if name not in bad]
    views += [b.node(name, gpus=(NO_GPU,)) for name in bad]
    refusals = (Refusal("n3", 5, 0, b.NOW - 9, b.NOW - 9, "held"),)
    return b.snapshot(*views, gpu_wear={("n7", "GPU-0"): samples}, first_nans=tuple(nan), refusals=refusals)


@pytest.mark.parametrize("name", sorted(BY_NODE))
def test_detectors_that_look_at_each_node_by_itself_find_the_same_without_the_others(name: str) -> None:
    seen = fleet()
    whole = [*DETECTORS[name](seen, CONFIG)]
    assert whole, "it finds something"
    apart = [
        one for node, view in seen.nodes.items() for one in DETECTORS[name](replace(seen, nodes={node: view}), CONFIG)
    ]
    assert sorted(map(repr, apart)) == sorted(map(repr, whole))


def test_a_row_on_which_detectors_fail_holds_back_its_own_node_alone() -> None:
    seen = fleet("n9")
    usual, failing = found(fleet()), found(seen)
    down = {one.detail.detector: one.detail.nodes for one in failing if isinstance(one.detail, DetectorDetail)}
    assert down == {"gpu_state": ("n9",), "hardware": ("n9",), "drift": ()}
    assert [one for one in failing if one.signal is not Signal.DETECTOR_FAILED] == usual
    assert failed_detectors(failing) == ()
    assert unjudged_nodes(failing).keys() == {"n9"}


def test_other_nodes_return_and_their_suspicions_end() -> None:
    config = b.config(validation={"enabled": True, "probation_hours": 1})
    nodes = [
        b.node(name, record=b.record(name, state, since=b.NOW - 7200), gpus=gpus)
        for name, state, gpus in (
            ("n1", NodeState.PROBATION, ()),
            ("n2", NodeState.SUSPECT, ()),
            ("n3", NodeState.PROBATION, (NO_GPU,)),
            ("n4", NodeState.SUSPECT, (NO_GPU,)),
        )
    ]
    seen = b.snapshot(*nodes)
    changed = {one.subject: one.to_state for one in decide(seen, detect(seen, config), config) if one.to_state}
    assert changed == {"n1": NodeState.IN_SERVICE, "n2": NodeState.IN_SERVICE}


def test_where_one_fails_on_many_nodes_nothing_is_concluded_of_any() -> None:
    names = [f"n{number}" for number in range(10, 11 + FAILING_NODES_MAX)]
    assert set(failed_detectors(found(fleet(*names)))) == {"gpu_state", "hardware"}
    assert failed_detectors(found(fleet(*names[1:]))) == ()


def test_a_node_that_could_not_be_judged_may_show_what_others_show() -> None:
    """Fewer suspects than there may be would be no common cause."""
    shown = [b.node(f"n{number}", gpus=(b.gpu(nvlinks=1, nvlinks_max=18),)) for number in range(1, 4)]
    for gpus, signals in (((), {Signal.HEALTH_SUSPECTED}), ((NO_GPU,), {Signal.DOMAIN_FAULT})):
        seen = b.snapshot(*shown, b.node("n8", gpus=gpus))
        assert {one.signal for one in found(seen) if one.rule == "nvlink.down"} == signals


@pytest.mark.parametrize("name", sorted(RECORDING))
def test_one_that_only_records_holds_nothing_back(name: str) -> None:
    suspect = b.node("n2", record=b.record("n2", NodeState.SUSPECT, suspicions=b.suspected(SuspicionCause.HEALTH)))
    clean, failure = found(b.snapshot(suspect), name)
    assert (clean.signal, failure.signal) == (Signal.CLEAN, Signal.DETECTOR_FAILED)
    assert failed_detectors([failure]) == ()


def test_a_return_that_has_not_begun_waits() -> None:
    plan = ReturnPlan(nodes=("n2",), steps=(StepName.LIFT_DRAIN,))
    one = Recovery(1, plan, RecoveryStatus.RUNNING, b.NOW - 9, (RecoveryStep(0, StepName.LIFT_DRAIN),))
    seen = b.snapshot(recoveries=(one,))
    assert course(one, seen, found(seen)).may_act
    assert not course(one, seen, found(seen, "xid")).may_act


def test_no_incident_is_over_and_no_fabric_is_back() -> None:
    block = Subject.of_domain("block b1", BLOCK_FABRIC)
    node = Subject.of_node("n2")
    incidents = {
        node: OpenIncident(1, node, "xid.79", "hardware_fault", "…", b.NOW - 500),
        block: OpenIncident(2, block, BLOCK_FABRIC, "domain_fault", "…", b.NOW - 5000, nodes=("n1", "n2")),
    }
    seen = b.snapshot(incidents=incidents, started_at=b.NOW - 9000)
    assert {one for one, _ in incident_news(seen, found(seen), incidents).over} == {1, 2}
    assert with_fabric(seen, found(seen)).round.fabric_back == {"block b1"}
    assert incident_news(seen, found(seen, "xid"), incidents).over == ()
    assert not with_fabric(seen, found(seen, "xid")).round.fabric_back
    assert with_fabric(seen, found(seen, "drift")).round.fabric_back, "it says nothing of GPUs"


def test_a_person_is_notified_once_a_day_of_all_that_fail() -> None:
    seen = b.snapshot()

    def pages(snapshot: Snapshot) -> list[tuple[str, ...]]:
        decisions = decide(snapshot, found(snapshot, "xid", "lemon"), CONFIG)
        return [b.plan_as(PagePlan, one.plan).about for one in decisions if one.action is Action.PAGE]

    assert pages(seen) == [("detector xid", "detector lemon")]
    sent = [
        RepairAttempt(1, "detection.down detector xid", RecoveryKind.PAGE, None, b.NOW - 9, RecoveryStatus.SUCCEEDED)
    ]
    assert pages(b.changed(seen, attempts=tuple(sent))) == [("detector lemon",)]
    assert pages(replace(seen, mode=Mode.OBSERVE)) == []


SLOW = Finding(Signal.STRAGGLER_CONFIRMED, "straggler.clocks", "n8", b.NOW, "slow: a conclusion from statistics")


def because_of(node: str, decisions: Sequence[Decision]) -> Because:
    (found,) = [one.because for one in decisions if one.subject == node]
    return found


@pytest.mark.parametrize("silent", [0, 3])
def test_where_the_one_fails_that_sees_mass_silence_many_silent_nodes_hold_everything_back(silent: int) -> None:
    names = [f"n{number}" for number in range(3, 3 + silent)]
    seen = b.snapshot(BROKEN_XID, *(b.node(name, heard_at=b.NOW - 60) for name in names))
    decisions = decide(seen, [*found(seen, "silence"), SLOW], CONFIG)
    assert because_of("n8", decisions) is (Because.MASS_SILENCE if silent else Because.RULE)
    assert because_of("n2", decisions) is Because.RULE, "its GPU has fallen off the bus whatever others do"


@pytest.mark.parametrize("standing", [1, 3])
def test_where_the_one_fails_that_sees_mass_hangs_many_gangs_that_stand_hold_everything_back(standing: int) -> None:
    placed = (("n1", "n4"), ("n3", "n5"), ("n6", "n7"))
    jobs = [b.job(job_id=7 + number, nodes=nodes) for number, nodes in enumerate(placed)]
    tables = {
        one.key: replace(
            b.step_table([[0.1] * 20] * 2, one.slurm.nodes, advanced_at=b.NOW - (700 if number < standing else 1)),
            job=one.key,
        )
        for number, one in enumerate(jobs)
    }
    seen = b.snapshot(BROKEN_XID, jobs=jobs, tables=tables)
    decisions = decide(seen, [*found(seen, "hang"), SLOW], CONFIG)
    assert because_of("n8", decisions) is (Because.MASS_HANG if standing == 3 else Because.RULE)
    assert because_of("n2", decisions) is Because.RULE, "its GPU has fallen off the bus whatever others do"
