"""What follows from Xids and SXids: policy, the driver's recovery action, bursts, echoes, program or hardware."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import builders as b
from understudy_controlplane.detect.node_log import NodeLog
from understudy_controlplane.detect.xid import judge_logs, xid
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import JobThere
from understudy_controlplane.fleet.node import Generation, NodeRecord, NodeView, StoredKernelEvent
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.facts import KernelEvent

ALICE, BOB = JobThere(7, 500, "alice"), JobThere(8, 600, "bob")
START = b.NOW - 3600.0


def line(text: str, sequence: int = 1, at: float = START, node: str = "n1", **marks: Any) -> StoredKernelEvent:
    event = KernelEvent(marks.pop("boot_id", b.BOOT), sequence, at, text)
    return StoredKernelEvent(sequence, node, marks.pop("received_at", at), event, **marks)


def code(
    number: int, sequence: int = 1, at: float = START, bus: str = "01", message: str = "x", **marks: Any
) -> StoredKernelEvent:
    return line(f"NVRM: Xid (PCI:0000:{bus}:00): {number}, pid=1, name=python, {message}", sequence, at, **marks)


def remembered(*events: StoredKernelEvent, name: str = "n1", **values: Any) -> NodeView:
    """Node as the observer shows it: storms are one event, and those of other boots are history only."""
    log = NodeLog(180.0)
    for event in events:
        log.add(replace(event, node=name))
    history = tuple(log.events(0.0))
    now = tuple(one for one in history if one.event.boot_id == b.BOOT)
    return b.node(name, events=now, history=history, **values)


def judged(*nodes: NodeView, config: dict[str, Any] | None = None) -> list[Finding]:
    return list(xid(b.snapshot(*nodes), b.config(xid=config or {}).xid))


def of(
    *events: StoredKernelEvent, config: dict[str, Any] | None = None, **values: Any
) -> list[tuple[str, Signal, str]]:
    """Rule, signal and repair of each finding on one node, oldest first."""
    found = judged(remembered(*events, **values), config=config)
    return [(one.rule, one.signal, str(one.evidence.shown()["repair"])) for one in found]


class TestLines:
    """What one line means, taken for itself."""

    def test_the_evidence_has_the_known_parts_of_the_line(self) -> None:
        text = "NVRM: Xid (PCI:0000:91:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x1)"
        (finding,) = judged(remembered(line(text)))
        details = finding.evidence.shown()["details"]
        assert isinstance(details, dict)
        assert (details["words"], details["unit"]) == (["0x021425c6", "0x00000001"], "NETIR_LINK_EVT")
        assert not {"form", "code", "bus_id", "message", "pid"} & details.keys()

    @pytest.mark.parametrize(
        ("message", "signal", "repair"),
        [
            ("Contained: SM (0x1). RST: No, D-RST: No", Signal.APPLICATION_FAULT, "restart_app"),
            ("Contained: SM (0x1). RST: No, D-RST: Yes", Signal.DRAIN_AT_JOB_END, "reset_gpu"),
            ("Contained: SM (0x1). RST: Yes, D-RST: No", Signal.HARDWARE_FAULT, "reset_gpu"),
            ("Contained: SM (0x1)", Signal.DRAIN_AT_JOB_END, "reset_gpu"),
        ],
    )
    def test_the_flags_of_a_memory_error_decide(self, message: str, signal: Signal, repair: str) -> None:
        assert of(code(94, message=message)) == [("xid.94", signal, repair)]

    def test_an_uncontained_memory_error_without_flags_evicts(self) -> None:
        assert of(code(95, message="Uncontained: SM (0x1)")) == [("xid.95", Signal.HARDWARE_FAULT, "reset_gpu")]

    @pytest.mark.parametrize(
        ("words", "signal", "repair"),
        [
            ("0x10 0x0 0x0 0x0 0x0 0x0 0x0", Signal.HARDWARE_FAULT, "reset_gpu"),
            ("0x10000 0x0 0x0 0x0 0x0 0x0 0x0", Signal.HARDWARE_FAULT, "manual_repair"),
            ("0x1 0x0 0x0 0x0 0x0 0x0 0x0", Signal.RECORDED, "none"),
            ("0x2 0x0 0x0 0x10000 0x0 0x0 0x0", Signal.RECORDED, "none"),
            ("0x0 0x0 0x0 0x0 0x100000 0x0 0x0", Signal.RECORDED, "none"),
            ("0x3 0x0 0x1 0x0 0x0 0x0 0x0", Signal.HARDWARE_FAULT, "reset_gpu"),
        ],
    )
    def test_of_an_nvlink_errors_registers_the_most_serious_bit_counts(
        self, words: str, signal: Signal, repair: str
    ) -> None:
        assert of(code(74, message=f"NVLink: fatal error detected on link 6({words})")) == [("xid.74", signal, repair)]

    @pytest.mark.parametrize(
        ("number", "message", "signal"),
        [
            (144, "SAW_MVB Fatal XC0 i0 Link 01 (0x00000021 0x00000010 0x0 0x0)", Signal.HARDWARE_FAULT),
            (144, "SAW_MVB Nonfatal XC0 i0 Link 01 (0x00000021 0x00000004 0x0 0x0)", Signal.RECORDED),
            (145, "RLW_REMAP Nonfatal XC0 i0 Link 01 (0x00000082 0x00000008 0x0 0x0)", Signal.APPLICATION_FAULT),
            (145, "RLW_RXPIPE Fatal XC0 i0 Link 01 (0x000004c2 0x00000002 0x0 0x0)", Signal.HARDWARE_FAULT),
            (145, "RLW_RXPIPE Fatal XC0 i0 Link 01 (0x000000c2 0x00000002 0x0 0x0)", Signal.RECORDED),
            (147, "TREX Nonfatal XC0 i0 Link 01 (0x00000184 0x00000001 0x0 0x0)", Signal.RECORDED),
            (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x004001c6 0x00000000 0x0 0x0)", Signal.DRAIN_AT_JOB_END),
            (149, "NETIR_LINK_EVT Fatal XC0 i1 Link 01 (0x004001c6 0x00000000 0x0 0x0)", Signal.RECORDED),  # by a test
            (149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x0 0x0)", Signal.RECORDED),
            (149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 01 (0x02600011 0x00000000 0x0 0x0)", Signal.RECORDED),
            (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00000226 0x00000001 0x0 0x0)", Signal.RECORDED),
            (149, "NETIR_MFDE_EVENT Fatal XC0 i0 Link 01 (0x00000246 0x00000005 0x0 0x0)", Signal.DRAIN_AT_JOB_END),
            (149, "NETIR_MFDE_EVENT Fatal XC0 i0 Link 01 (0x00000246 0x00000003 0x0 0x0)", Signal.RECORDED),
            (150, "MSE Fatal XC0 i0 Link -1 (0x00000007 0x00000001 0x0 0x0)", Signal.HARDWARE_FAULT),
            (146, "SOMETHING_NEW Fatal XC0 i0 Link 1 (0xffffffff 0x0)", Signal.APPLICATION_FAULT),
        ],
    )
    def test_nvlink5_is_decoded_by_unit_and_status(self, number: int, message: str, signal: Signal) -> None:
        assert [(rule, found) for rule, found, _ in of(code(number, message=message))] == [(f"xid.{number}", signal)]

    def test_a_unit_of_a_name_not_known_is_found_by_its_subcode_in_either_layout(self) -> None:
        old = code(145, message="WHAT_IS_IT Fatal XC0 i0 Link 01 (0x000000a2 0x00000002 0x0)")
        new = code(145, message="WHAT_IS_IT Fatal XC0 i0 Link 01 (0x00000005 0x00000002 0x0)")
        assert [of(old)[0][1], of(new)[0][1]] == [Signal.HARDWARE_FAULT] * 2
        assert of(new, driver_version="550.54.15")[0][1] is Signal.APPLICATION_FAULT  # subcode 0: no such unit

    def test_it_is_read_by_the_rules_of_the_driver_that_wrote_it(self) -> None:
        new = code(145, message="WHAT_IS_IT Fatal XC0 i0 Link 01 (0x00000005 0x00000002 0x0)")
        then = replace(new, generation=Generation("550.54.15"))
        assert of(then, driver_version="595.45.04")[0][1] is Signal.APPLICATION_FAULT

    @pytest.mark.parametrize(
        ("text", "signal"),
        [
            ("20034, Fatal, Link 30 LTSSM Fault Up (First)", Signal.HARDWARE_FAULT),
            ("20034, Non-fatal, Link 30 LTSSM Fault Up", Signal.RECORDED),
            ("19084, Non-fatal, Link 10 AN1 Heartbeat Timeout Error (First)", Signal.RECORDED),
            ("11012, Correctable, Link 2 x", Signal.RECORDED),
            ("22003, Fatal, Minion Halt", Signal.HARDWARE_FAULT),
            ("29999, Fatal, Link 1 something new", Signal.HARDWARE_FAULT),
            ("29999, Non-fatal, Link 1 something new", Signal.RECORDED),
        ],
    )
    def test_of_a_switch_the_drivers_word_counts(self, text: str, signal: Signal) -> None:
        (found,) = judged(remembered(line(f"nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): {text}")))
        assert (found.signal, found.rule) == (signal, f"sxid.{text[:5]}")
        assert found.evidence.shown()["sxid"] == int(text[:5])

    @pytest.mark.parametrize("first", [0, 1, 2])
    def test_an_sxid_of_several_lines_is_one_fault_also_where_the_first_are_missing(self, first: int) -> None:
        texts = ("Fatal, Link 30 Minion Halt", "Severity 1 Engine instance 30", "Data {0x1}")
        lines = [line(f"nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 22003, {text}", 2) for text in texts[first:]]
        assert of(*lines) == [("sxid.22003", Signal.HARDWARE_FAULT, "reboot")]

    def test_a_gpu_lost_before_the_driver_was_up_is_found_by_the_line_before(self) -> None:
        (found,) = judged(
            remembered(
                line("NVRM: The NVIDIA GPU 0000:18:00.0", 5),
                line("NVRM: (PCI ID: 10de:2330) installed in this system has", 6),
                line("NVRM: fallen off the bus and is not responding to commands.", 7),
            )
        )
        assert (found.rule, found.signal, found.evidence.shown()["bus_id"]) == (
            "gpu.lost",
            Signal.HARDWARE_FAULT,
            "0000:18:00.0",
        )
        assert found.evidence.shown()["repair"] == "reboot"

    def test_a_line_in_a_form_not_known_is_shown(self) -> None:
        (found,) = judged(remembered(line("NVRM: Xid (PCI:0000:05:00), in an unknown shape")))
        assert (found.rule, found.signal) == ("xid.unread", Signal.RECORDED)
        crash = "NVRM: Xid (PCI:[358]: segfault at 0 ip 0 sp 0 error 4 in Xid[1000+1000]"
        assert judged(remembered(line(crash))) == [], "a program of this name has crashed"

    def test_which_gpu_it_is_stands_in_the_evidence(self) -> None:
        (found,) = judged(remembered(code(79), gpus=(b.gpu(0),)))
        assert (found.evidence.shown()["uuid"], found.evidence.shown()["gpu"]) == ("GPU-0", 0)


def action(number: int, sequence: int, at: float = START, bus: str = "01", before: int = 0) -> StoredKernelEvent:
    message = f"GPU recovery action changed from {before:#x} (words) to {number:#x} (other words)"
    return code(154, sequence, at, bus, message)


class TestTheDriversOwnAction:
    def test_it_goes_before_the_row_of_its_error(self) -> None:
        assert of(code(48), action(4, 2)) == [
            ("xid.48", Signal.DRAIN_AT_JOB_END, "reset_gpu"),
            ("xid.154", Signal.RECORDED, "none"),
        ]

    def test_it_can_make_an_error_harmless(self) -> None:
        assert {signal for _, signal, _ in of(code(74), action(3, 2))} == {Signal.RECORDED}

    def test_alone_it_speaks_for_itself(self) -> None:
        assert of(action(2, 1)) == [("xid.154", Signal.HARDWARE_FAULT, "reboot")]

    def test_an_error_without_a_recovery_action_keeps_its_row(self) -> None:
        assert of(code(46), action(3, 2))[0] == ("xid.46", Signal.HARDWARE_FAULT, "reset_gpu")

    def test_zero_clears_what_was_before_on_that_gpu(self) -> None:
        found = of(code(48), action(1, 2), code(79, 3, bus="02"), action(0, 4, before=1))
        assert [signal for rule, signal, _ in found if rule in ("xid.48", "xid.154")] == [Signal.RECORDED] * 3
        assert ("xid.79", Signal.HARDWARE_FAULT, "reboot") in found

    def test_zero_clears_also_errors_without_an_action_of_their_own(self) -> None:
        found = of(code(46), code(46, 2, bus="02"), action(0, 3, before=1))
        assert [signal for _, signal, _ in found] == [Signal.RECORDED, Signal.HARDWARE_FAULT, Signal.RECORDED]

    def test_an_error_after_the_zero_counts(self) -> None:
        assert of(action(0, 1, before=1), code(48, 2, START + 60))[1] == ("xid.48", Signal.HARDWARE_FAULT, "reset_gpu")

    @pytest.mark.parametrize("after", [0.0, 0.5, 1.0])
    def test_an_error_together_with_the_zero_counts(self, after: float) -> None:
        found = of(action(0, 1, before=1), code(48, 2, START + after))
        assert found == [("xid.154", Signal.RECORDED, "none"), ("xid.48", Signal.HARDWARE_FAULT, "reset_gpu")]

    def test_a_storm_that_began_before_the_zero_and_goes_on_after_it_counts(self) -> None:
        found = of(code(48), action(1, 2), action(0, 3, START + 20, before=1), code(48, 4, START + 60))
        assert ("xid.48", Signal.HARDWARE_FAULT, "reset_gpu") in found

    def test_an_old_action_does_not_speak_for_a_new_error(self) -> None:
        found = of(code(48), action(3, 2), code(62, 3, START + 60))
        assert found[-1] == ("xid.62", Signal.HARDWARE_FAULT, "reset_gpu")

    def test_a_driver_that_does_not_report_it_leaves_the_row(self) -> None:
        assert of(code(48), action(3, 2), driver_version="550.54.15")[0][1] is Signal.HARDWARE_FAULT

    def test_where_the_log_has_none_nvmls_counts_but_not_its_zero(self) -> None:
        assert of(code(48), gpus=(b.gpu(0, recovery_action=4),))[0][1] is Signal.DRAIN_AT_JOB_END
        assert of(code(48), gpus=(b.gpu(0, recovery_action=0),))[0][1] is Signal.HARDWARE_FAULT

    @pytest.mark.parametrize("message", ["in new words", "GPU recovery action changed from 0x0 (None) to 0x63 (New)"])
    def test_an_action_not_known_here_is_recorded(self, message: str) -> None:
        assert of(code(154, message=message)) == [("xid.154", Signal.RECORDED, "none")]


class TestBursts:
    def test_the_first_fault_is_blamed_and_its_echoes_are_named(self) -> None:
        found = judged(
            remembered(
                code(79, 1, START, "05"),
                code(74, 2, START + 0.1, "06"),
                code(45, 3, START + 0.2, "06"),
                code(45, 4, START + 0.3, "05", "channel 8 caused by previous Xid 79"),
            )
        )
        assert [(one.rule, one.signal) for one in found] == [
            ("xid.79", Signal.HARDWARE_FAULT),
            ("xid.74", Signal.RECORDED),
            ("xid.45", Signal.RECORDED),
            ("xid.45", Signal.RECORDED),
        ]
        assert [one.evidence.shown().get("echo_of") for one in found[1:]] == ["Xid 79 on GPU 0000:05:00.0"] * 3
        assert found[0].evidence.shown()["burst"] == {
            "since": START,
            "until": START + 0.3,
            "events": 4,
            "blamed": "Xid 79 on GPU 0000:05:00.0",
        }

    def test_a_link_error_just_before_its_peer_was_lost_is_an_echo_too(self) -> None:
        found = of(code(74, 1, START, "06"), code(79, 2, START + 2, "05"))
        assert [signal for _, signal, _ in found] == [Signal.RECORDED, Signal.HARDWARE_FAULT]

    def test_of_link_errors_alone_the_first_is_blamed(self) -> None:
        found = of(code(74, 1, START, "05"), code(74, 2, START + 1, "06"), code(74, 3, START + 100, "07"))
        assert [signal for _, signal, _ in found] == [Signal.HARDWARE_FAULT, Signal.RECORDED, Signal.HARDWARE_FAULT]

    def test_two_gpus_that_fail_for_themselves_are_both_found(self) -> None:
        found = of(code(48, 1, START, "05"), code(62, 2, START + 1, "06"))
        assert [signal for _, signal, _ in found] == [Signal.HARDWARE_FAULT] * 2

    def test_silence_ends_a_burst(self) -> None:
        events = [code(79, 1, START, "05"), code(74, 2, START + 181, "06")]
        assert [signal for _, signal, _ in of(*events)] == [Signal.HARDWARE_FAULT] * 2
        still_one = [*events, code(43, 3, START + 90, "07")]
        assert of(*still_one)[-1] == ("xid.74", Signal.RECORDED, "none")

    def test_an_echo_of_which_the_driver_says_that_its_gpu_needs_a_reset_counts(self) -> None:
        found = of(code(79, 1, START, "05"), code(74, 2, START + 0.1, "06"), action(1, 3, START + 0.2, "06"))
        assert ("xid.74", Signal.HARDWARE_FAULT, "reset_gpu") in found

    def test_the_same_fall_logged_twice_is_one(self) -> None:
        found = of(line("NVRM: GPU 0000:05:00.0: GPU has fallen off the bus."), code(79, 2, bus="05"))
        assert [(rule, signal) for rule, signal, _ in found] == [
            ("gpu.lost", Signal.RECORDED),
            ("xid.79", Signal.HARDWARE_FAULT),
        ]

    def test_a_privilege_error_after_a_link_went_down_is_its_echo(self) -> None:
        alone = of(code(137))
        after = of(code(74, 1, START, "05"), code(137, 2, START + 5, "06"))
        assert (alone[0][1], after[1][1]) == (Signal.APPLICATION_FAULT, Signal.RECORDED)

    def test_killed_channels_long_after_another_error_are_just_recorded(self) -> None:
        (_, found) = judged(remembered(code(13), code(45, 2, START + 31)))
        assert "echo_of" not in found.evidence.shown()

    @given(st.lists(st.tuples(st.floats(0, 3000), st.sampled_from([13, 45, 48, 74, 79])), min_size=1, max_size=40))
    def test_a_storm_remembered_as_one_makes_the_same_bursts(self, seen: list[tuple[float, int]]) -> None:
        seen = sorted(seen)
        events = [code(number, i, START + at) for i, (at, number) in enumerate(seen)]
        expected: list[list[float]] = []
        for at, _ in seen:
            if not expected or START + at - expected[-1][-1] > 180.0:
                expected.append([])
            expected[-1].append(START + at)
        logs = judge_logs(b.snapshot(remembered(*events)), b.config().xid)
        found = {(one.burst.since, one.burst.until, one.burst.events) for one in logs["n1"]}
        assert found == {(group[0], group[-1], len(group)) for group in expected}

    def test_nothing_is_found_otherwise_when_events_come_again_in_another_order(self) -> None:
        events = [code(45, i, START + i, message=f"channel {i}") for i in range(1, 50)]
        ahead, back = remembered(*events), remembered(*reversed(events))
        assert (ahead.events[0].count, ahead.events[0].begun_at) == (49, START + 1)
        assert ahead.events == back.events


class TestRepetition:
    def day(self, number: int, *hours: float, **marks: Any) -> list[StoredKernelEvent]:
        return [code(number, i, b.NOW - hour * 3600, **marks) for i, hour in enumerate(sorted(hours, reverse=True), 1)]

    def test_what_is_only_recorded_drains_when_it_comes_again(self) -> None:
        assert of(*self.day(44, 1)) == [("xid.44", Signal.RECORDED, "none")]
        assert of(*self.day(44, 10, 1))[-1] == ("xid.44", Signal.DRAIN_AT_JOB_END, "reset_gpu")
        assert of(*self.day(44, 30, 1))[-1] == ("xid.44", Signal.RECORDED, "none")

    def test_a_storm_that_differs_in_pids_only_is_one_event(self) -> None:
        events = [line(f"NVRM: Xid (PCI:0000:05:00): 45, pid={pid}, name=p, ch {pid}", pid) for pid in (1, 2)]
        assert [one.count for one in remembered(*events).events] == [2]

    def test_a_storm_is_one_time(self) -> None:
        storm = [code(44, i, START + i) for i in range(1, 100)]
        assert of(*storm) == [("xid.44", Signal.RECORDED, "none")]

    def test_on_another_gpu_it_is_another_matter(self) -> None:
        assert of(code(44, 1, START, "01"), code(44, 2, START + 400, "02"))[-1][1] is Signal.RECORDED

    def test_a_gpu_lost_again_after_a_reboot_needs_manual_repair(self) -> None:
        before = code(79, 1, b.NOW - 100_000, boot_id="boot-0")
        record = NodeRecord("n1", cleared_at=b.NOW - 90_000)
        assert of(before, code(79, 2), record=record) == [("xid.79", Signal.HARDWARE_FAULT, "manual_repair")]

    def test_what_was_recorded_before_the_node_was_cleared_no_longer_counts(self) -> None:
        before = code(44, 1, b.NOW - 9000, boot_id="boot-0")
        record = NodeRecord("n1", cleared_at=b.NOW - 8000)
        assert of(before, code(44, 2), record=record) == [("xid.44", Signal.RECORDED, "none")]


class TestTheProgramOrTheHardware:
    def test_the_same_error_on_many_nodes_of_a_job_is_the_programs(self) -> None:
        found = judged(*(remembered(code(13, jobs=(ALICE,)), name=f"n{i}") for i in range(1, 5)))
        assert {one.signal for one in found} == {Signal.APPLICATION_FAULT}
        assert "4 nodes of job 7 of alice" in found[0].summary

    def test_the_same_gpu_in_jobs_of_different_users_is_suspicious(self) -> None:
        found = judged(remembered(code(31, 1, jobs=(ALICE,)), code(31, 2, START + 900, jobs=(BOB,))))
        assert [one.signal for one in found] == [Signal.APPLICATION_FAULT, Signal.HEALTH_SUSPECTED]
        assert "2 jobs of 2 users" in found[1].summary

    def test_a_user_who_has_it_elsewhere_as_well_is_no_witness(self) -> None:
        here = remembered(code(31, 1, jobs=(ALICE,)), code(31, 2, START + 900, jobs=(BOB,)))
        elsewhere = remembered(code(31, jobs=(JobThere(3, 1, "bob"),)), name="n2")
        assert {one.signal for one in judged(here, elsewhere)} == {Signal.APPLICATION_FAULT}

    def test_one_users_jobs_accuse_no_gpu(self) -> None:
        events = [code(31, 1, jobs=(ALICE,)), code(31, 2, START + 900, jobs=(JobThere(9, 900, "alice"),))]
        assert {signal for _, signal, _ in of(*events)} == {Signal.APPLICATION_FAULT}

    def test_errors_at_different_places_of_a_gpu_do_not_add_up(self) -> None:
        def at(place: int, sequence: int, job: JobThere) -> StoredKernelEvent:
            message = f"Graphics SM Warp Exception on (GPC 1, TPC {place}, SM 0): Out Of Range Address"
            return code(13, sequence, START + sequence * 900, message=message, jobs=(job,))

        assert of(at(2, 1, ALICE), at(2, 2, BOB))[-1][1] is Signal.HEALTH_SUSPECTED
        assert of(at(2, 1, ALICE), at(3, 2, BOB))[-1][1] is Signal.APPLICATION_FAULT

    def test_too_long_ago_does_not_count(self) -> None:
        events = [code(31, 1, b.NOW - 100_000, jobs=(ALICE,)), code(31, 2, jobs=(BOB,))]
        assert {signal for _, signal, _ in of(*events)} == {Signal.APPLICATION_FAULT}

    @pytest.mark.parametrize("jobs", [(), (ALICE, BOB)])
    def test_without_one_certain_job_no_gpu_is_accused(self, jobs: tuple[JobThere, ...]) -> None:
        events = [code(31, 1, jobs=jobs), code(31, 2, START + 900, jobs=jobs)]
        assert {signal for _, signal, _ in of(*events)} == {Signal.APPLICATION_FAULT}

    def test_an_error_that_may_be_either_waits_for_the_other_nodes_of_its_job(self) -> None:
        fresh = code(109, at=b.NOW - 1, jobs=(ALICE,))
        assert of(fresh) == [("xid.109", Signal.RECORDED, "none")]
        assert of(replace(fresh, received_at=b.NOW - 5)) == [("xid.109", Signal.HARDWARE_FAULT, "reset_gpu")]
        two = [remembered(fresh, name=name) for name in ("n1", "n2")]
        assert {one.signal for one in judged(*two)} == {Signal.APPLICATION_FAULT}

    def test_a_fault_of_the_hardware_alone_is_never_the_programs(self) -> None:
        found = judged(*(remembered(code(79, jobs=(ALICE,)), name=f"n{i}") for i in range(1, 5)))
        assert {one.signal for one in found} == {Signal.HARDWARE_FAULT}


class TestOverrides:
    def test_a_site_changes_a_row(self) -> None:
        row = {"policy": {"94": {"class": "hardware", "repair": "manual_repair", "reason": "replaced too often"}}}
        (found,) = judged(remembered(code(94, message="Contained: SM (0x1). RST: No, D-RST: No")), config=row)
        assert (found.signal, found.evidence.shown()["repair"]) == (Signal.HARDWARE_FAULT, "manual_repair")
        assert "changed by this site" in str(found.evidence.shown()["policy"])
        assert "replaced too often" in found.summary

    def test_its_row_stands_against_the_drivers_action_which_still_counts_for_itself(self) -> None:
        row = {"policy": {"48": {"class": "record", "repair": "none"}}}
        assert of(code(48), action(1, 2), config=row) == [
            ("xid.48", Signal.RECORDED, "none"),
            ("xid.154", Signal.HARDWARE_FAULT, "reset_gpu"),
        ]

    def test_a_site_adds_a_code_that_is_in_no_catalogue(self) -> None:
        row = {"policy": {"999": {"class": "drain", "repair": "reboot"}}}
        assert of(code(999), config=row) == [("xid.999", Signal.DRAIN_AT_JOB_END, "reboot")]

    def test_a_switchs_row_as_well(self) -> None:
        row = {"switch_policy": {"20034": {"class": "drain"}}}
        event = line("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
        assert of(event, config=row) == [("sxid.20034", Signal.DRAIN_AT_JOB_END, "reboot")]


def test_no_mixture_of_lines_raises() -> None:
    """Whatever a node logs, there is one finding for each kind of fault, and none is lost."""
    from tests.agent.test_kernel_line import ALL

    texts = [text for text, _, _ in ALL]

    @given(st.lists(st.tuples(st.sampled_from(texts), st.integers(0, 1000)), max_size=30))
    def hold(seen: list[tuple[str, int]]) -> None:
        events = [line(text, i, START + at) for i, (text, at) in enumerate(seen)]
        view = remembered(*events)
        snapshot: Snapshot = b.snapshot(view)
        found = list(xid(snapshot, b.config().xid))
        assert all(isinstance(one, Finding) and one.summary for one in found)
        assert sum(one.count for one in view.history) == len(events)

    hold()
