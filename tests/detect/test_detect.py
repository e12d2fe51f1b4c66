"""What detection promises, one fault after the other."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import builders as b
from understudy_controlplane.config import Straggler
from understudy_controlplane.detect import detect, ordinary
from understudy_controlplane.detect.slow_ranks import slow_ranks
from understudy_controlplane.fleet.finding import Finding, LiftedDetail, Signal
from understudy_controlplane.fleet.incident import BLOCK_FABRIC, DOMAIN_SILENT, PORT_DOWN
from understudy_controlplane.fleet.job import Refusal
from understudy_controlplane.fleet.node import NodeRecord, NodeState
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.suspicion import SuspicionCause
from understudy_controlplane.xid_policy import FaultClass
from understudy_wire.hardware import GpuStatus


def found(snapshot: Snapshot) -> list[Finding]:
    return detect(snapshot, b.config())


def signals(snapshot: Snapshot) -> set[tuple[str, Signal]]:
    return {(finding.node, finding.signal) for finding in found(snapshot)}


def test_a_healthy_fleet_has_no_findings() -> None:
    assert found(b.snapshot(jobs=[b.job()])) == []


@pytest.mark.parametrize("code", [48, 62, 64, 74, 79, 95, 119, 120, 140])
def test_a_hardware_xid_is_a_hardware_fault_with_its_log_line(code: int) -> None:
    (finding,) = found(b.snapshot(b.node("n2", events=(b.xid_event("n2", code),))))
    assert (finding.node, finding.signal, finding.rule) == ("n2", Signal.HARDWARE_FAULT, f"xid.{code}")
    assert f": {code}," in str(finding.evidence.shown()["kernel_log"])


@pytest.mark.parametrize("code", [13, 31, 43])
def test_a_program_error_is_an_application_fault(code: int) -> None:
    assert signals(b.snapshot(b.node("n2", events=(b.xid_event("n2", code),)))) == {("n2", Signal.APPLICATION_FAULT)}


def test_an_unlisted_xid_is_recorded_and_condemns_no_node() -> None:
    assert signals(b.snapshot(b.node("n2", events=(b.xid_event("n2", 999),)))) == {("n2", Signal.RECORDED)}


@pytest.mark.parametrize(
    "values",
    [
        {"status": GpuStatus.LOST},
        {"status": GpuStatus.RESET_REQUIRED},
        {"recovery_action": 2},
        {"remapped_rows_failed": True},
    ],
)
def test_what_nvml_says_of_a_broken_gpu_is_a_hardware_fault(values: dict[str, object]) -> None:
    snapshot = b.snapshot(b.node("n3", gpus=(b.gpu(0), b.gpu(1, **values))))  # type: ignore[arg-type]
    assert signals(snapshot) == {("n3", Signal.HARDWARE_FAULT)}


@pytest.mark.parametrize(
    ("action", "signal", "repair"),
    [
        (1, Signal.HARDWARE_FAULT, "reset_gpu"),
        (2, Signal.HARDWARE_FAULT, "reboot"),
        (4, Signal.DRAIN_AT_JOB_END, "reset_gpu"),
        (7, Signal.HARDWARE_FAULT, "reboot"),
    ],
)
def test_nvmls_recovery_action_is_judged_as_xid_154_is(action: int, signal: Signal, repair: str) -> None:
    (finding,) = found(b.snapshot(b.node("n3", gpus=(b.gpu(0, recovery_action=action),))))
    assert (finding.signal, finding.evidence.shown()["repair"]) == (signal, repair)


@pytest.mark.parametrize("action", [0, 3, 5, 99])
def test_a_recovery_action_that_needs_nothing_of_the_node_is_no_fault(action: int) -> None:
    assert found(b.snapshot(b.node("n3", gpus=(b.gpu(0, recovery_action=action),)))) == []


def test_a_gpu_that_cannot_be_read_is_not_called_broken() -> None:
    assert found(b.snapshot(b.node("n3", gpus=(b.gpu(0, GpuStatus.UNREADABLE),)))) == []


class TestSilence:
    def test_a_silent_agent_is_unknown_not_dead(self) -> None:
        snapshot = b.snapshot(b.node("n3", heard_at=b.NOW - 60))
        assert signals(snapshot) == {("n3", Signal.SILENT)}

    def test_a_node_is_dead_when_agent_and_slurmd_are_gone(self) -> None:
        snapshot = b.snapshot(b.node("n3", heard_at=b.NOW - 8, slurmd_silent_since=b.NOW - 3))
        assert signals(snapshot) == {("n3", Signal.NODE_DEAD)}

    def test_a_node_whose_job_goes_on_is_not_dead(self) -> None:
        table = b.step_table([[0.1] * 20] * 4, advanced_at=b.NOW - 0.1)
        dead = b.node("n3", heard_at=b.NOW - 8, slurmd_silent_since=b.NOW - 3)
        assert signals(b.snapshot(dead, jobs=[b.job()], tables={b.job().key: table})) == {("n3", Signal.SILENT)}

    def test_a_node_whose_job_stopped_with_it_is_dead(self) -> None:
        table = b.step_table([[0.1] * 20] * 4, advanced_at=b.NOW - 7.9)
        dead = b.node("n3", heard_at=b.NOW - 8, slurmd_silent_since=b.NOW - 3)
        assert signals(b.snapshot(dead, jobs=[b.job()], tables={b.job().key: table})) == {("n3", Signal.NODE_DEAD)}

    def test_one_lost_answer_of_a_slurmd_is_not_death(self) -> None:
        snapshot = b.snapshot(b.node("n3", heard_at=b.NOW - 8, slurmd_silent_since=b.NOW - 0.5))
        assert signals(snapshot) == {("n3", Signal.SILENT)}

    def test_a_step_reported_late_does_not_keep_a_dead_node_alive(self) -> None:
        table = b.step_table([[0.1] * 20] * 4, advanced_at=b.NOW - 27)
        dead = b.node("n3", heard_at=b.NOW - 30, slurmd_silent_since=b.NOW - 25)
        assert signals(b.snapshot(dead, jobs=[b.job()], tables={b.job().key: table})) == {("n3", Signal.NODE_DEAD)}

    @pytest.mark.parametrize("flag", ["POWERED_DOWN", "REBOOT_ISSUED", "MAINT"])
    def test_a_node_that_slurm_has_away_on_purpose_is_not_dead(self, flag: str) -> None:
        away = b.slurm_node("n3", flags=[flag])
        assert signals(b.snapshot(b.node("n3", slurm=away, heard_at=b.NOW - 60, slurmd_silent_since=b.NOW - 50))) == {
            ("n3", Signal.SILENT)
        }

    def test_a_node_that_never_had_an_agent_is_neither_dead_nor_counted(self) -> None:
        without = [b.node(f"n{i}", heard_at=None, record=NodeRecord(f"n{i}")) for i in range(1, 5)]
        dead = b.node("n8", heard_at=b.NOW - 8, slurmd_silent_since=b.NOW - 3)
        assert ("n8", Signal.NODE_DEAD) in signals(b.snapshot(*without, dead))
        assert ("n1", Signal.SILENT) in signals(b.snapshot(*without, dead))

    def test_nodes_long_dead_do_not_protect_the_next_one(self) -> None:
        gone = [
            b.node(f"n{i}", NodeState.QUARANTINED, heard_at=b.NOW - 3600, slurmd_silent_since=b.NOW - 3000)
            for i in (6, 7, 8)
        ]
        dead = b.node("n3", heard_at=b.NOW - 8, slurmd_silent_since=b.NOW - 3)
        assert ("n3", Signal.NODE_DEAD) in signals(b.snapshot(*gone, dead))

    def test_a_mass_that_fell_silent_long_ago_is_still_a_mass(self) -> None:
        cut = [b.node(f"n{i}", heard_at=b.NOW - 900 + i, slurmd_silent_since=b.NOW - 890) for i in range(1, 5)]
        assert signals(b.snapshot(*cut)) == {
            *((f"n{i}", Signal.SILENT) for i in range(1, 5)),
            ("", Signal.DOMAIN_FAULT),
        }

    @given(st.lists(st.integers(5, 600), min_size=8, max_size=8))
    def test_a_mass_are_those_that_fell_silent_within_two_minutes_of_each_other(self, ages: list[int]) -> None:
        nodes = [
            b.node(f"n{i}", heard_at=b.NOW - age, slurmd_silent_since=b.NOW - age) for i, age in enumerate(ages, 1)
        ]
        mass = {finding.node for finding in found(b.snapshot(*nodes)) if finding.evidence.shown().get("mass_silence")}
        expected = {f"n{i}" for i, age in enumerate(ages, 1) if sum(abs(age - other) < 120 for other in ages) >= 3}
        assert mass == expected

    def test_slurms_flag_is_not_enough_where_the_slurmd_itself_answers(self) -> None:
        flagged = b.slurm_node("n3", flags=["NOT_RESPONDING"])
        assert signals(b.snapshot(b.node("n3", slurm=flagged, heard_at=b.NOW - 60))) == {("n3", Signal.SILENT)}

    @pytest.mark.parametrize("reason", ["", "since the board swap"])
    def test_where_the_slurmd_cannot_be_asked_slurms_word_counts(self, reason: str) -> None:
        flagged = b.slurm_node("n3", flags=["NOT_RESPONDING"], reason=reason)
        record = NodeRecord("n3", agent_seen_at=b.NOW - 500)
        node = b.node("n3", record=record, slurm=flagged, heard_at=b.NOW - 60)
        assert signals(b.snapshot(node)) == {("n3", Signal.NODE_DEAD)}

    def test_a_gang_of_long_steps_protects_its_node_as_well(self) -> None:
        table = b.step_table([[20.0] * 20] * 4, advanced_at=b.NOW - 15)
        silent = b.node("n3", heard_at=b.NOW - 30, slurmd_silent_since=b.NOW - 25)
        assert signals(b.snapshot(silent, jobs=[b.job()], tables={b.job().key: table})) == {("n3", Signal.SILENT)}

    def test_many_silent_at_once_are_no_dead_nodes(self) -> None:
        silent = [b.node(f"n{i}", heard_at=b.NOW - 60, slurmd_silent_since=b.NOW - 50) for i in range(1, 5)]
        assert {signal for node, signal in signals(b.snapshot(*silent)) if node} == {Signal.SILENT}
        (mass,) = (one for one in found(b.snapshot(*silent)) if not one.node)
        assert (mass.signal, mass.rule, mass.nodes) == (Signal.DOMAIN_FAULT, "silence.mass", ("n1", "n2", "n3", "n4"))
        assert mass.subject == Subject.of_domain("fleet", "silence.mass")

    def test_a_new_control_plane_waits_before_it_calls_a_node_silent(self) -> None:
        snapshot = b.snapshot(b.node("n3", heard_at=None), started_at=b.NOW - 1)
        assert found(snapshot) == []

    def test_a_node_heard_again_is_no_longer_unknown(self) -> None:
        assert signals(b.snapshot(b.node("n3", NodeState.UNKNOWN))) == {("n3", Signal.HEARD)}


class TestAdministration:
    def test_a_foreign_drain_is_found(self) -> None:
        drained = b.slurm_node("n3", flags=["DRAIN"], reason="NHC: disk full", user="root")
        (finding,) = found(b.snapshot(b.node("n3", slurm=drained)))
        assert finding.signal is Signal.DRAINED_BY_OTHERS
        assert finding.evidence.shown()["reason"] == "NHC: disk full"

    def test_a_node_that_an_administrator_set_down_is_a_foreign_drain(self) -> None:
        down = b.slurm_node("n3", "DOWN", reason="board swap", user="alice")
        assert signals(b.snapshot(b.node("n3", slurm=down))) == {("n3", Signal.DRAINED_BY_OTHERS)}

    @pytest.mark.parametrize("reason", ["", "Not responding"])
    def test_a_node_that_slurm_set_down_because_it_does_not_answer_is_no_foreign_drain(self, reason: str) -> None:
        down = b.slurm_node("n3", "DOWN", ["NOT_RESPONDING"], reason=reason, user="slurm" if reason else "")
        assert found(b.snapshot(b.node("n3", slurm=down))) == []

    def test_a_node_that_does_not_answer_and_that_an_administrator_set_down_is_a_foreign_drain(self) -> None:
        down = b.slurm_node("n3", "DOWN", ["NOT_RESPONDING"], reason="board swap", user="alice")
        assert signals(b.snapshot(b.node("n3", slurm=down))) == {("n3", Signal.DRAINED_BY_OTHERS)}

    def test_a_node_that_an_administrator_set_to_fail_is_a_foreign_drain(self) -> None:
        failing = b.slurm_node("n3", "ALLOCATED", ["FAIL"], reason="Action:Replace", user="alice")
        assert signals(b.snapshot(b.node("n3", slurm=failing))) == {("n3", Signal.DRAINED_BY_OTHERS)}

    @pytest.mark.parametrize("reason", ["Action:Replace", "understudy: xid.79: lost"])
    def test_a_quarantined_node_that_an_administrator_set_to_fail_is_not_resumed(self, reason: str) -> None:
        """Slurm shows FAIL in the place of the drain. Through its API, where no reason is needed, the old one stays."""
        record = b.record("n3", NodeState.QUARANTINED, drained_at=b.NOW - 9, drain_user="root", drain_reason_at=1000)
        shown = replace(b.slurm_node("n3", flags=["FAIL"], reason=reason, user="root"), reason_at=1000)
        assert found(b.snapshot(b.node("n3", slurm=shown, record=record))) == []

    def test_a_drain_by_understudy_is_no_finding(self) -> None:
        drained = b.slurm_node("n3", flags=["DRAIN"], reason="understudy: xid.79: lost")
        assert found(b.snapshot(b.node("n3", NodeState.QUARANTINED, slurm=drained))) == []

    @pytest.mark.parametrize(
        ("refused_at", "node_ahead", "slurm_ahead", "signal"),
        [
            (0, 0, 0, Signal.DRAINED_FOR_PROLOG),
            (-120, -120, 0, Signal.DRAINED_FOR_PROLOG),
            (120, 120, 0, Signal.DRAINED_FOR_PROLOG),
            (-120, 0, 120, Signal.DRAINED_FOR_PROLOG),
            (0, 120, 120, Signal.DRAINED_FOR_PROLOG),  # the control plane's own clock is behind
            (-120, 0, 0, Signal.DRAINED_BY_OTHERS),  # two minutes before, as the clocks agree
        ],
    )
    def test_a_drain_for_a_refusal_of_understudys_prolog_is_known_however_clocks_differ(
        self, refused_at: int, node_ahead: int, slurm_ahead: int, signal: Signal
    ) -> None:
        """Seconds: from the drain by slurmctld's clock to the refusal by the node's; how far these are ahead."""
        drained = replace(b.slurm_node("n3", flags=["DRAIN"], reason="Prolog error"), reason_at=int(b.NOW - 10))
        node = b.node("n3", slurm=drained, clock_ahead_seconds=node_ahead)
        refusal = Refusal("n3", 7, 0, b.NOW - 10 + refused_at, b.NOW - 9, "unfit")
        shown = signals(b.snapshot(node, refusals=(refusal,), ahead_seconds=slurm_ahead))
        assert shown - {("n3", Signal.RECORDED)} == {("n3", signal)}

    def test_fail_is_an_administrators_also_where_slurm_keeps_the_reason_of_a_refusal(self) -> None:
        failing = replace(b.slurm_node("n3", flags=["FAIL"], reason="Prolog error"), reason_at=int(b.NOW - 10))
        refusal = Refusal("n3", 7, 0, b.NOW - 10, b.NOW - 9, "unfit")
        shown = signals(b.snapshot(b.node("n3", slurm=failing), refusals=(refusal,)))
        assert shown == {("n3", Signal.DRAINED_BY_OTHERS)}

    def test_a_quarantined_node_that_a_person_resumed_is_noticed(self) -> None:
        record = NodeRecord("n3", NodeState.QUARANTINED, drained_at=b.NOW - 100)
        assert signals(b.snapshot(b.node("n3", record=record))) == {("n3", Signal.DRAIN_LIFTED)}

    @pytest.mark.parametrize(
        ("reason", "set_at", "signal"),
        [
            ("understudy: xid.79: lost", b.NOW - 100, Signal.RETURN_REFUSED),
            ("understudy: xid.79: lost", b.NOW - 10, Signal.DRAINED_BY_OTHERS),
            ("NHC: disk full", b.NOW - 100, Signal.DRAINED_BY_OTHERS),
        ],
    )
    def test_a_drain_that_slurm_refused_to_lift_is_understudys_until_a_person_sets_another(
        self, reason: str, set_at: float, signal: Signal
    ) -> None:
        drained = replace(b.slurm_node("n3", flags=["DRAIN"], reason=reason, user="root"), reason_at=int(set_at))
        snapshot = b.snapshot(b.node("n3", slurm=drained), returns_failed=b.returns("n3", b.NOW - 60))
        assert signals(snapshot) == {("n3", signal)}

    @pytest.mark.parametrize(
        ("lifted", "started", "set_at", "signal"),
        [
            (12, 5, 100, Signal.RETURN_REFUSED),
            (12, 5, 8, Signal.DRAINED_BY_OTHERS),  # by a person since
            (30, 5, 100, Signal.DRAINED_BY_OTHERS),  # slurmctld had saved that it was resumed
            (92, 85, 100, Signal.DRAINED_BY_OTHERS),  # a person drained it since, and Slurm kept the reason
        ],
    )
    def test_a_drain_that_comes_back_with_a_crash_of_slurmctld_is_understudys(
        self, lifted: int, started: int, set_at: int, signal: Signal
    ) -> None:
        """Seconds ago: the drain was lifted, slurmctld was started, and the reason was set."""
        drained = b.slurm_node("n3", flags=["DRAIN"], reason="understudy: xid.79: lost", user="root")
        before = b.snapshot(b.node("n3", slurm=replace(drained, reason_at=int(b.NOW - set_at))))
        crashed = b.changed(before, drains_lifted={"n3": b.NOW - lifted}, slurmctld_started_at=b.NOW - started)
        assert signals(crashed) == {("n3", signal)}

    @pytest.mark.parametrize(
        ("out_since", "signal"),
        [(80, Signal.RETURN_REFUSED), (20, Signal.DRAINED_BY_OTHERS), (None, Signal.DRAINED_BY_OTHERS)],
    )
    def test_a_pause_after_the_crash_does_not_make_it_an_administrators(
        self, out_since: int | None, signal: Signal
    ) -> None:
        """Each reading since slurmctld was started, 85 s ago, has shown the drain, or later ones only."""
        drained = b.slurm_node("n3", flags=["DRAIN"], reason="understudy: xid.79: lost", user="root")
        shown = None if out_since is None else b.NOW - out_since
        node = b.node("n3", slurm=replace(drained, reason_at=int(b.NOW - 100)), out_since=shown)
        crashed = b.snapshot(node, drains_lifted={"n3": b.NOW - 92}, slurmctld_started_at=b.NOW - 85)
        assert signals(crashed) == {("n3", signal)}

    @pytest.mark.parametrize(("last_open", "signal"), [(18, Signal.RETURN_REFUSED), (8, Signal.DRAINED_BY_OTHERS)])
    def test_after_two_crashes_between_two_readings_the_second_start_says_nothing_of_what_the_first_has_lost(
        self, last_open: int, signal: Signal
    ) -> None:
        """Lifted 20 s ago, started 5 s ago; `last_open`: seconds since the last reading that showed the node open."""
        drained = b.slurm_node("n3", flags=["DRAIN"], reason="understudy: xid.79: lost", user="root")
        node = b.node("n3", slurm=replace(drained, reason_at=int(b.NOW - 100)), out_since=b.NOW - last_open)
        crashed = b.snapshot(node, drains_lifted={"n3": b.NOW - 20}, slurmctld_started_at=b.NOW - 5)
        assert signals(crashed) == {("n3", signal)}

    @pytest.mark.parametrize(("read", "found"), [(-1, set()), (0, set()), (1, {("n3", Signal.DRAINED_BY_OTHERS)})])
    def test_a_reading_from_before_the_node_was_resumed_shows_no_drain_of_an_administrator(
        self, read: int, found: set[tuple[str, Signal]]
    ) -> None:
        """slurmctld is away since, and the last reading still counts. `read`: seconds after the return."""
        drained = b.slurm_node("n3", flags=["DRAIN"], reason="understudy: reboot", user="root")
        node = b.node("n3", slurm=replace(drained, reason_at=int(b.NOW - 100)))
        snapshot = b.snapshot(node, drains_lifted={"n3": b.NOW - 9}, read_at=b.NOW - 9 + read)
        assert signals(snapshot) == found

    @pytest.mark.parametrize("ahead", [-60, 0, 60])
    def test_times_of_slurm_are_compared_by_its_own_clock(self, ahead: int) -> None:
        """The host of slurmctld may be a minute off, which MUNGE allows."""
        drained = b.slurm_node("n3", flags=["DRAIN"], reason="understudy: xid.79: lost", user="root")
        node = b.node("n3", slurm=replace(drained, reason_at=int(b.NOW - 61 + ahead)))
        refused = b.snapshot(node, ahead_seconds=ahead, returns_failed=b.returns("n3", b.NOW - 60))
        assert signals(refused) == {("n3", Signal.RETURN_REFUSED)}
        crashed = b.snapshot(
            node, ahead_seconds=ahead, drains_lifted={"n3": b.NOW - 12}, slurmctld_started_at=b.NOW - 5 + ahead
        )
        assert signals(crashed) == {("n3", Signal.RETURN_REFUSED)}

    def test_a_drain_from_before_both_clocks_were_set_back_is_older_than_its_return(self) -> None:
        """Its time lies in the future, by the clock that slurmctld and the control plane share."""
        drained = b.slurm_node("n3", flags=["DRAIN"], reason="understudy: xid.79: lost", user="root")
        node = b.node("n3", slurm=replace(drained, reason_at=int(b.NOW + 3500)))
        assert signals(b.snapshot(node, returns_failed=b.returns("n3", b.NOW - 60))) == {("n3", Signal.RETURN_REFUSED)}

    @pytest.mark.parametrize(
        ("shown", "signal"), [(100, Signal.RETURN_REFUSED), (99, Signal.DRAINED_BY_OTHERS)], ids=["same", "another"]
    )
    def test_the_drain_that_a_return_was_to_lift_is_known_by_slurmctlds_clock_however_the_other_was_set(
        self, shown: int, signal: Signal
    ) -> None:
        """The control plane's was 200 s behind when the return was decided. Seconds ago: the drain was set."""
        drained = b.slurm_node("n3", flags=["DRAIN"], reason="understudy: xid.48: lost", user="root")
        node = b.node("n3", slurm=replace(drained, reason_at=int(b.NOW - shown)))
        refused = b.returns("n3", b.NOW - 60 - 200, drained_at=int(b.NOW - 100))
        assert signals(b.snapshot(node, returns_failed=refused)) == {("n3", signal)}

    def test_a_drain_that_was_not_lifted_when_its_return_was_cancelled_is_no_administrators(self) -> None:
        drained = replace(b.slurm_node("n3", flags=["DRAIN"], reason="understudy: operator.hold: fan", user="root"))
        before = b.snapshot(b.node("n3", slurm=replace(drained, reason_at=int(b.NOW - 100))))
        snapshot = b.changed(before, returns_cancelled=b.returns("n3", b.NOW - 60))
        assert signals(snapshot) == {("n3", Signal.RETURN_CANCELLED)}

    def test_a_foreign_drain_with_an_old_reason_of_understudy_is_foreign(self) -> None:
        """Some versions of Slurm keep a reason when a node is resumed, and when it is drained again."""
        drained = b.slurm_node("n3", flags=["DRAIN"], reason="understudy: xid.79: lost", user="root")
        assert signals(b.snapshot(b.node("n3", slurm=drained))) == {("n3", Signal.DRAINED_BY_OTHERS)}

    @pytest.mark.parametrize("state", [NodeState.QUARANTINED, NodeState.FOREIGN_DRAIN])
    @pytest.mark.parametrize("shown_out_at", [b.NOW - 1.2, b.NOW - 500, b.NOW - 700])
    def test_a_resume_is_no_older_than_the_last_reading_that_showed_the_drain(
        self, state: NodeState, shown_out_at: float
    ) -> None:
        """Readings may be minutes apart. What was reported between them may be newer than the resume. The first that
        shows a drain may be the recovery's own.
        """
        drained_at = b.NOW - 600 if state is NodeState.QUARANTINED else None
        record = b.record("n3", state, drained_at=drained_at)
        (finding,) = found(b.snapshot(b.node("n3", record=record, shown_out_at=shown_out_at)))
        after = max(shown_out_at, drained_at or 0.0)
        assert (finding.signal, finding.detail) == (Signal.DRAIN_LIFTED, LiftedDetail(after=after))

    @pytest.mark.parametrize(
        ("drained_under", "started_at", "signal"),
        [
            (b.NOW - 9000, b.NOW - 60, Signal.UNDRAINED),  # restarted since, by a clock a minute behind this one
            (b.NOW - 60, b.NOW - 60, Signal.DRAIN_LIFTED),
            (None, b.NOW - 60, Signal.DRAIN_LIFTED),  # not known: the times decide
            (None, b.NOW - 2, Signal.UNDRAINED),
        ],
    )
    def test_a_drain_lost_in_a_crash_is_not_taken_for_lifted_however_the_clocks_differ(
        self, drained_under: float | None, started_at: float, signal: Signal
    ) -> None:
        record = b.record("n3", NodeState.QUARANTINED, drained_at=b.NOW - 3, drained_under=drained_under)
        assert signals(b.snapshot(b.node("n3", record=record), slurmctld_started_at=started_at)) == {("n3", signal)}

    @pytest.mark.parametrize(
        ("after_the_drain", "signal"), [(-1, Signal.DRAIN_LIFTED), (0, Signal.UNDRAINED), (2, Signal.UNDRAINED)]
    )
    def test_whether_slurmctld_was_restarted_after_the_drain_is_a_matter_of_its_own_clock(
        self, after_the_drain: int, signal: Signal
    ) -> None:
        """The control plane's clock is a minute ahead, and no reading of its own has shown the drain yet."""
        drained_at = int(b.NOW) - 63
        record = b.record("n3", NodeState.QUARANTINED, drained_at=b.NOW - 3, drain_reason_at=drained_at)
        snapshot = b.snapshot(b.node("n3", record=record), slurmctld_started_at=drained_at + after_the_drain)
        assert signals(snapshot) == {("n3", signal)}

    def test_a_drain_not_yet_carried_out_is_not_taken_for_lifted(self) -> None:
        assert signals(b.snapshot(b.node("n3", NodeState.QUARANTINED))) == {("n3", Signal.UNDRAINED)}

    def test_a_node_that_is_only_down_since_its_reboot_is_drained(self) -> None:
        """Slurm has refused that so far, and may bring the node back by itself."""
        down = b.slurm_node("n3", "DOWN", reason="understudy: reboot n3-17 : reboot complete", user="root")
        record = b.record("n3", NodeState.QUARANTINED, drained_at=b.NOW - 3)
        assert signals(b.snapshot(b.node("n3", record=record, slurm=down))) == {("n3", Signal.UNDRAINED)}

    def test_a_slurm_reading_from_before_the_drain_does_not_lift_it(self) -> None:
        record = NodeRecord("n3", NodeState.QUARANTINED, drained_at=b.NOW)
        assert found(b.snapshot(b.node("n3", record=record), read_at=b.NOW - 0.5)) == []


class TestStraggler:
    def slow_gang(self, factor: float) -> list[list[float]]:
        rng = np.random.default_rng(5)
        times = rng.lognormal(np.log(0.1), 0.015, size=(4, 40))
        times[2] *= factor
        return times.tolist()  # type: ignore[no-any-return]

    def judged(self, factor: float, gpus: tuple[object, ...], *, known: bool = False) -> set[tuple[str, Signal]]:
        """`known`: as slow for an hour already, and saved a moment ago."""
        tables = {b.job().key: b.step_table(self.slow_gang(factor))}
        suspicions = b.suspected(SuspicionCause.SLOW, since=b.NOW - 3600) if known else ()
        record = b.record("n3", NodeState.SUSPECT if known else NodeState.IN_SERVICE, suspicions=suspicions)
        saved = {b.job().key: b.NOW}
        node = b.node("n3", record=record, gpus=gpus)
        return signals(b.snapshot(node, jobs=[b.job()], tables=tables, checkpointed_at=saved))

    def test_a_slow_rank_alone_is_a_suspect(self) -> None:
        assert self.judged(1.5, (b.gpu(0),)) == {("n3", Signal.STRAGGLER_SUSPECTED)}

    def test_a_slow_rank_with_throttled_clocks_is_confirmed_once_it_is_a_suspect(self) -> None:
        throttled = (b.gpu(0, clock_event_reasons=0x48),)
        assert self.judged(1.5, throttled) == {("n3", Signal.STRAGGLER_SUSPECTED)}
        assert self.judged(1.5, throttled, known=True) == {("n3", Signal.STRAGGLER_CONFIRMED)}

    @pytest.mark.parametrize(
        ("values", "cause"),
        [
            ({"clock_event_reasons": 0x40}, "clocks"),
            ({"clock_event_reasons": 0x80}, "power"),
            ({"pcie_width": 8, "pcie_width_max": 16}, "pcie"),
            ({}, "unknown"),
        ],
    )
    def test_the_reason_is_named(self, values: dict[str, Any], cause: str) -> None:
        tables = {b.job().key: b.step_table(self.slow_gang(1.5))}
        node = b.node("n3", gpus=(b.gpu(0, **values),))
        (finding,) = found(b.snapshot(node, jobs=[b.job()], tables=tables))
        assert finding.evidence.shown()["cause"] == cause
        assert f"cause {cause}" in finding.summary

    def test_a_rank_in_doubt_accuses_no_node_and_clears_none(self) -> None:
        times = np.random.default_rng(5).lognormal(np.log(0.1), 0.01, size=(8, 80))
        times[6:] *= 1.3
        tables = {b.job().key: b.step_table(times.tolist())}
        slow = b.suspected(SuspicionCause.SLOW)
        suspects = [b.node(name, record=b.record(name, NodeState.SUSPECT, suspicions=slow)) for name in ("n1", "n8")]
        assert signals(b.snapshot(*suspects, jobs=[b.job()], tables=tables)) == {("n1", Signal.CLEAN)}

    def test_throttled_clocks_without_a_slow_rank_are_nothing(self) -> None:
        assert self.judged(1.0, (b.gpu(0, clock_event_reasons=0x48),)) == set()

    def test_equal_ranks_are_no_suspects(self) -> None:
        assert self.judged(1.0, (b.gpu(0),)) == set()

    def test_a_gross_straggler_is_found_within_two_windows(self) -> None:
        table = b.step_table([row[:20] for row in self.slow_gang(1.5)])
        assert [slow.rank for slow in slow_ranks(table, Straggler())] == [2]

    def test_ranks_of_different_roles_are_not_compared(self) -> None:
        table = b.step_table([[0.1] * 40] * 3 + [[0.3] * 40] * 3, roles=["first"] * 3 + ["last"] * 3)
        assert slow_ranks(table, Straggler()) == []

    def test_two_ranks_accuse_no_node(self) -> None:
        assert slow_ranks(b.step_table([[0.1] * 40, [0.3] * 40]), Straggler()) == []

    def test_steps_that_were_never_reported_do_not_make_a_straggler(self) -> None:
        times = [[0.1] * 40 for _ in range(4)]
        times[1][5:25] = [float("nan")] * 20
        assert slow_ranks(b.step_table(times), Straggler()) == []

    def test_peers_that_take_no_time_at_all_make_no_straggler(self) -> None:
        assert slow_ranks(b.step_table([[0.0] * 40] * 3 + [[1e-6] * 40]), Straggler()) == []

    def test_a_suspect_that_keeps_up_again_is_clean(self) -> None:
        assert signals(b.snapshot(b.node("n3", NodeState.SUSPECT))) == {("n3", Signal.CLEAN)}


RULE = re.compile(r"[a-z_]+\.[a-z0-9_]+")


def rules_written_in_detection() -> set[str]:
    """What is filled in when a rule is found, such as the code of an Xid, is `*` here."""
    found = {DOMAIN_SILENT, BLOCK_FABRIC, PORT_DOWN, "xid.*", "sxid.*", "detection.*", "decision.*", "repair.flapping"}
    for file in Path(ordinary.__file__).parent.glob("*.py"):
        for one in ast.walk(ast.parse(file.read_text())):
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and file.name != "ordinary.py":
                found |= {one.value} if RULE.fullmatch(one.value) else set()
            elif isinstance(one, ast.JoinedStr) and isinstance(first := one.values[0], ast.Constant):
                prefix = str(first.value)
                found |= {prefix + "*"} if re.fullmatch(r"[a-z_]+\.", prefix) else set()
    return found


def test_each_rule_says_what_ordinary_thing_looks_like_its_finding() -> None:
    named = [name for names in ordinary.ORDINARY for name in names]
    families = tuple(one.removesuffix("*") for one in named if one.endswith("*"))
    written = rules_written_in_detection()
    assert [one for one in written if one not in named and not one.startswith(families)] == []
    assert {one for one in named if not one.endswith("*")} - written == set()
    assert [one for one in families if not any(rule.startswith(one) for rule in written)] == []
    assert len(named) == len({*named})
    assert {*ordinary.OF_CLASS} == {*FaultClass}
