"""The repair ladder: which rung is next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.decide.ladder import next_rung
from understudy_controlplane.decide.repair_cycle import attempts_by_node, due
from understudy_controlplane.fleet.finding import HardwareDetail, RepairDetail
from understudy_controlplane.fleet.gpu import Replacement
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import RecoveryKind, RecoveryStatus, RepairAttempt, Rung
from understudy_controlplane.fleet.snapshot import FleetHistory
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.xid_policy import Repair


def incident(repair: Repair | None = None) -> OpenIncident:
    node, detail = Subject.of_node("n1"), HardwareDetail(repair=repair)
    return OpenIncident(1, node, "xid.79", "hardware_fault", "broken", b.NOW, detail)


def tried(*rungs: Rung, kind: RecoveryKind = RecoveryKind.REPAIR) -> list[RepairAttempt]:
    failed = RecoveryStatus.FAILED
    return [RepairAttempt(i, "n1", kind, rung, b.NOW - 1000 + i, failed) for i, rung in enumerate(rungs)]


def rung(found: OpenIncident | None, attempts: Sequence[RepairAttempt] = (), **policy: Any) -> Rung:
    settings = {"enabled": True, "reset_command": "reset", **policy}
    return next_rung(found, attempts, b.config(repair=settings).repair)


@pytest.mark.parametrize(
    ("found", "first"),
    [
        (incident(Repair.RESTART_APP), Rung.RESTART_APP),
        (incident(Repair.NONE), Rung.RESTART_APP),
        (incident(Repair.RESET_GPU), Rung.RESET_GPU),
        (incident(Repair.REBOOT), Rung.REBOOT),
        (incident(Repair.MANUAL_REPAIR), Rung.MANUAL_REPAIR),
        (incident(), Rung.REBOOT),
        (replace(incident(), detail=None), Rung.REBOOT),
        (None, Rung.REBOOT),
    ],
)
def test_the_ladder_is_entered_where_the_finding_says(found: OpenIncident | None, first: Rung) -> None:
    assert rung(found) is first


def test_a_gpu_with_instances_is_not_reset_because_a_reset_ends_them() -> None:
    policy = b.config(repair={"enabled": True, "reset_command": "reset"}).repair
    assert next_rung(incident(Repair.RESET_GPU), (), policy, mig=True) is Rung.REBOOT
    assert next_rung(incident(Repair.RESTART_APP), (), policy, mig=True) is Rung.RESTART_APP


@pytest.mark.parametrize(
    ("opened", "later", "first"),
    [
        (Repair.RESET_GPU, (Repair.MANUAL_REPAIR,), Rung.MANUAL_REPAIR),
        (Repair.MANUAL_REPAIR, (Repair.RESET_GPU,), Rung.MANUAL_REPAIR),
        (Repair.NONE, (Repair.RESTART_APP, Repair.RESET_GPU), Rung.RESET_GPU),
        (None, (Repair.NONE,), Rung.REBOOT),
    ],
)
def test_of_several_findings_the_one_counts_that_asks_for_most(
    opened: Repair | None, later: tuple[Repair, ...], first: Rung
) -> None:
    assert rung(replace(incident(opened), asked=later)) is first


def test_it_goes_upwards_and_ends_with_a_person() -> None:
    found = incident(Repair.RESTART_APP)
    attempts: list[RepairAttempt] = []
    taken: list[Rung] = []
    while not taken or taken[-1] is not Rung.MANUAL_REPAIR:
        taken.append(rung(found, attempts))
        kind = RecoveryKind.VALIDATE if taken[-1] is Rung.RESTART_APP else RecoveryKind.REPAIR
        attempts += tried(taken[-1], kind=kind)
    assert taken == [Rung.RESTART_APP, Rung.RESET_GPU, Rung.REBOOT, Rung.REBOOT, Rung.MANUAL_REPAIR]


def test_it_never_goes_back_below_what_was_tried_for_another_fault() -> None:
    assert rung(incident(Repair.RESET_GPU), tried(Rung.REBOOT)) is Rung.REBOOT


def test_a_rung_that_the_site_has_not_is_left_out() -> None:
    assert rung(incident(Repair.RESET_GPU), reset_command="") is Rung.REBOOT
    assert rung(incident(Repair.RESET_GPU), reset_command="", reboot=False) is Rung.MANUAL_REPAIR
    assert rung(incident(), reboots_max=0) is Rung.MANUAL_REPAIR


@pytest.mark.parametrize("status", list(RecoveryStatus))
def test_an_attempt_counts_whatever_became_of_it(status: RecoveryStatus) -> None:
    attempt = RepairAttempt(1, "n1", RecoveryKind.REPAIR, Rung.REBOOT, b.NOW - 5, status)
    assert rung(incident(), [attempt], reboots_max=1) is Rung.MANUAL_REPAIR


def test_the_test_after_a_repair_is_no_attempt_of_its_own() -> None:
    validation = RepairAttempt(1, "n1", RecoveryKind.VALIDATE, None, b.NOW - 5, RecoveryStatus.FAILED)
    assert rung(incident(), [*tried(Rung.REBOOT), validation, validation]) is Rung.REBOOT


def test_the_provider_is_asked_once_and_only_where_the_site_wants_that() -> None:
    policy = b.config(repair={"enabled": True}).repair
    broken, reboots = incident(Repair.REBOOT), tried(Rung.REBOOT, Rung.REBOOT)
    assert next_rung(broken, reboots, policy) is Rung.MANUAL_REPAIR
    assert next_rung(broken, reboots, policy, replaces=True) is Rung.REPLACE
    assert next_rung(incident(Repair.MANUAL_REPAIR), (), policy, replaces=True) is Rung.REPLACE
    asked = tried(Rung.REPLACE, kind=RecoveryKind.MANUAL_REPAIR)
    assert next_rung(broken, [*reboots, *asked], policy, replaces=True) is Rung.MANUAL_REPAIR


def test_what_was_tried_on_the_machine_before_does_not_count() -> None:
    attempts = tuple(tried(Rung.REBOOT, Rung.REBOOT))
    for replaced_at, left in ((b.NOW - 2000, 2), (b.NOW - 999.5, 1), (b.NOW, 0)):
        history = FleetHistory(attempts=attempts, replacements={"n1": Replacement(b.NOW - 3000, replaced_at)})
        found = attempts_by_node(replace(b.snapshot(b.node("n1")), history=history))
        assert len(found.get("n1", [])) == left


def next_of(signal: str, **record: Any) -> tuple[str, Rung | None]:
    """Rule and rung of a node that was quarantined for the third time within a week."""
    out = b.record("n1", NodeState.QUARANTINED, since=b.NOW - 900, drained_at=b.NOW - 900, **record)
    node = b.node("n1", record=out, slurm=b.slurm_node("n1", flags=["DRAIN"], reason="understudy: silence"))
    found = replace(incident(), signal=signal)
    history = {"n1": (b.NOW - 200_000, b.NOW - 100_000, b.NOW - 900)}
    seen = b.snapshot(node, incidents={found.subject: found}, quarantined_at=history)
    config = b.config(
        repair={"enabled": True}, provider={"command": "/bin/ask", "replacements_per_day_max": 1}, spares={"count": 0}
    )
    (finding,) = due(seen, seen.nodes["n1"], (), config)
    return finding.rule, finding.detail.rung if isinstance(finding.detail, RepairDetail) else None


@pytest.mark.parametrize(("signal", "rung"), [("hardware_fault", Rung.REPLACE), ("node_dead", Rung.MANUAL_REPAIR)])
def test_a_node_whose_route_flaps_is_shown_to_a_person_and_not_replaced(signal: str, rung: Rung) -> None:
    """Its death is inferred from silence, and it answers again by itself for the third time."""
    assert next_of(signal) == ("repair.flapping", rung)


def test_quarantines_before_a_person_returned_the_node_do_not_count_as_flapping() -> None:
    """They may have been wrong: a rule that is wrong about a node three times would have it replaced."""
    assert next_of("hardware_fault", vouched_at=b.NOW - 50_000) == ("repair.reboot", Rung.REBOOT)
