"""What detection promises of GPUs, drivers, fabric and host: what condemns a node, and what only makes it suspect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.causes import OF_THE_HARDWARE, Cause, second_signals
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gpu import GpusReadable
from understudy_controlplane.fleet.node import NodeState, NodeView, StoredHardwareEvent
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.suspicion import SuspicionCause
from understudy_controlplane.fleet.topology import Domain, DomainKind, merged
from understudy_wire.facts import HardwareEvent, HardwareKind
from understudy_wire.hardware import NOT_MOUNTED, Disk, Gpu, GpuStatus, Host, Port, PortRole

GiB = 2**30

WAITING = (NodeState.MANUAL_REPAIR, NodeState.RETIRED, NodeState.FOREIGN_DRAIN, NodeState.UNKNOWN)
"""States of nodes of which no news is to be had."""


def found(snapshot: Snapshot, **policy: Any) -> list[Finding]:
    return detect(snapshot, b.config(hardware=policy))


def findings(snapshot: Snapshot, **policy: Any) -> list[tuple[str, Signal, str]]:
    return [(finding.node, finding.signal, finding.rule) for finding in found(snapshot, **policy)]


def with_gpu(**values: Any) -> Snapshot:
    return b.snapshot(b.node("n3", gpus=(b.gpu(0), b.gpu(1, **values))))


def port(number: int = 1, **values: Any) -> Port:
    usual: dict[str, Any] = {
        "link_layer": "InfiniBand",
        "state": "ACTIVE",
        "physical_state": "LinkUp",
        "was_active": True,
    }
    return Port("mlx5_0", number, **(usual | {"rate_gbps": 400.0, "rate_gbps_max": 400.0} | values))


def down(seconds: float, **values: Any) -> Port:
    usual: dict[str, Any] = {"state": "DOWN", "physical_state": "Polling", "down_seconds": seconds}
    return port(**(usual | values))


def outage(ago: float, seconds: float = 40.0, part: str = "mlx5_0/1", number: int = 1) -> StoredHardwareEvent:
    at = b.NOW - ago
    event = HardwareEvent("an earlier boot", at, HardwareKind.PORT_OUTAGE, part, number, seconds)
    return StoredHardwareEvent(number, "n2", at + seconds, event)


class Members(tuple[str, ...]):
    """Counts how often members of any domain are gone through."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        Members.walks += 1
        return super().__iter__()


def looks_at_members(switches: int) -> int:
    """Switches of four nodes each fail at times of their own."""
    leaves = {i: [f"n{4 * i + seat}" for seat in range(1, 5)] for i in range(switches)}
    topology = merged([Domain(DomainKind.SWITCH, f"leaf{i}", Members(names)) for i, names in leaves.items()])
    nodes = [b.node(name, ports=(down(300.0 + 9000 * i),)) for i, names in leaves.items() for name in names]
    Members.walks = 0
    faults = [one for one in found(b.snapshot(*nodes, topology=topology)) if not one.node]
    assert len(faults) == switches
    return Members.walks


class TestGpuSet:
    def test_a_gpu_that_stays_away_is_a_hardware_fault(self) -> None:
        snapshot = with_gpu(status=GpuStatus.MISSING, missing_seconds=61.0)
        assert findings(snapshot) == [("n3", Signal.HARDWARE_FAULT, "gpus.missing")]

    def test_a_gpu_that_an_administrator_has_taken_away_ends_no_training_on_others(self) -> None:
        """A virtual machine may have got it; a gang does not train on without one of its own."""
        gone = b.node("n2", gpus=(b.gpu(0, status=GpuStatus.MISSING, missing_seconds=61.0),))
        assert ("n2", Signal.DRAIN_AT_JOB_END, "gpus.missing") in findings(b.snapshot(gone, **stopped(0.5)))
        assert ("n2", Signal.HARDWARE_FAULT, "gpus.missing") in findings(b.snapshot(gone, **stopped(61.0)))

    @pytest.mark.parametrize("pause", [20.0, 400.0])
    def test_a_gang_that_pauses_after_steps_without_the_gpu_still_does_without_it(self, pause: float) -> None:
        """It may pause for a checkpoint, or its first evaluation: whether it hangs is judged by its pauses, not by the
        GPU.
        """
        gone = b.node("n2", gpus=(b.gpu(0, status=GpuStatus.MISSING, missing_seconds=pause + 61.0),))
        assert ("n2", Signal.DRAIN_AT_JOB_END, "gpus.missing") in findings(b.snapshot(gone, **stopped(pause)))

    def test_steps_of_one_gang_prove_nothing_of_another_on_the_same_node(self) -> None:
        gone = b.node("n2", gpus=(b.gpu(0, status=GpuStatus.MISSING, missing_seconds=61.0),))
        steps, jobs = stopped(0.5)["tables"], [b.job(), b.job(job_id=2)]
        assert ("n2", Signal.HARDWARE_FAULT, "gpus.missing") in findings(b.snapshot(gone, jobs=jobs, tables=steps))
        both = steps | {jobs[1].key: replace(steps[jobs[0].key], job=jobs[1].key)}
        assert ("n2", Signal.DRAIN_AT_JOB_END, "gpus.missing") in findings(b.snapshot(gone, jobs=jobs, tables=both))
        jobs[1] = b.job(job_id=2, managed=False)
        assert ("n2", Signal.DRAIN_AT_JOB_END, "gpus.missing") in findings(b.snapshot(gone, jobs=jobs, tables=steps))

    def test_a_gpu_that_is_being_reset_is_none(self) -> None:
        assert findings(with_gpu(status=GpuStatus.MISSING, missing_seconds=20.0)) == []

    def test_another_gpu_in_its_place_makes_the_node_suspect_and_names_both(self) -> None:
        (finding,) = found(with_gpu(replaced_uuid="GPU-old"))
        assert (finding.signal, finding.rule) == (Signal.HEALTH_SUSPECTED, "gpus.replaced")
        assert (finding.evidence.shown()["uuid"], finding.evidence.shown()["replaced_uuid"]) == ("GPU-1", "GPU-old")

    def test_fewer_gpus_than_slurm_has_make_the_node_suspect(self) -> None:
        node = b.node("n3", slurm=eight_gpus("n3"), gpus=tuple(b.gpu(i, mig_mode=False) for i in range(7)))
        assert findings(b.snapshot(node)) == [("n3", Signal.HEALTH_SUSPECTED, "gpus.too_few")]

    @pytest.mark.parametrize(("seconds", "after"), [(60.0, []), (181.0, [Signal.HEALTH_SUSPECTED])])
    def test_a_suspicion_of_it_lasts_while_its_gpus_may_be_instances(self, seconds: float, after: list[Signal]) -> None:
        """A control plane that has just started has heard no report of the boot before."""
        node = b.node(
            "n3",
            record=b.record("n3", NodeState.SUSPECT, suspicions=b.suspected(SuspicionCause.HEALTH)),
            slurm=eight_gpus("n3"),
            gpus=tuple(b.gpu(i, mig_mode=False) for i in range(7)),
            gpus_readable=GpusReadable(7, b.NOW - seconds),
        )
        assert [one.signal for one in detect(b.snapshot(node), b.config()) if one.node == "n3"] == after

    def test_a_node_without_gpus_in_slurm_or_whose_agent_reads_none_is_not_judged_by_it(self) -> None:
        assert findings(b.snapshot(b.node("n3", gpus_readable=none_since(600.0)))) == []
        assert findings(b.snapshot(b.node("n3", slurm=eight_gpus("n3")))) == []


MISMATCH = "NVML cannot be used: Driver/library version mismatch (NVML error 18)"


def eight_gpus(name: str) -> SlurmNode:
    return replace(b.slurm_node(name), gres="gpu:h100:8(S:0-1)")


def none_since(ago: float) -> GpusReadable:
    return GpusReadable(0, b.NOW - ago)


def unreadable(count: int, error: str) -> tuple[Gpu, ...]:
    """Eight GPUs, of which the last ones cannot be read."""
    return tuple(b.gpu(i) if i < 8 - count else b.gpu(i, GpuStatus.UNREADABLE, error=error) for i in range(8))


class TestUnreadable:
    @pytest.mark.parametrize(
        ("text", "rule"),
        [
            (MISMATCH, "nvml.driver_mismatch"),
            ("NVML cannot be used: Driver Not Loaded (NVML error 9)", "nvml.not_loaded"),
            ("NVML cannot be used: Insufficient Permissions (NVML error 4)", "nvml.no_permission"),
            ("NVML cannot be used: NVML Shared Library Not Found (NVML error 12)", "nvml.no_library"),
            ("NVML cannot be used: Not Ready (NVML error 27)", "nvml.not_ready"),
            ("the process that reads NVML ended with -11", "nvml.unreadable"),
            ("", "nvml.no_gpu"),
        ],
    )
    def test_a_node_that_shows_none_of_its_gpus_is_suspect_and_the_cause_is_named(self, text: str, rule: str) -> None:
        node = b.node("n3", slurm=eight_gpus("n3"), gpus_readable=none_since(61.0), problems=(text,) if text else ())
        (finding,) = found(b.snapshot(node))
        assert (finding.node, finding.signal, finding.rule) == ("n3", Signal.HEALTH_SUSPECTED, rule)
        assert "NVML can read no GPU for 61 s (Slurm has 8 GPUs or instances of GPUs)" in finding.summary
        assert text in finding.summary

    @pytest.mark.parametrize("count", [1, 8])
    def test_gpus_that_cannot_be_read_make_the_node_suspect(self, count: int) -> None:
        readable = GpusReadable(8 - count, b.NOW - 900.0, {8: b.NOW - 61.0})
        node = b.node("n3", gpus=unreadable(count, MISMATCH), gpus_readable=readable)
        (finding,) = found(b.snapshot(node))
        assert (finding.signal, finding.rule) == (Signal.HEALTH_SUSPECTED, "nvml.driver_mismatch")
        assert f"NVML can read {8 - count} of 8 GPUs for 61 s (GPU " in finding.summary

    def test_one_that_was_never_readable_in_this_boot_counts_from_the_first_report(self) -> None:
        node = b.node("n3", gpus=unreadable(1, "Unknown Error (NVML error 999)"))
        for seconds, expected in ((59.0, []), (61.0, [("n3", Signal.HEALTH_SUSPECTED, "nvml.unreadable")])):
            aged = replace(node, gpus_readable=GpusReadable(7, b.NOW - seconds))
            assert findings(b.snapshot(aged)) == expected

    def test_a_reset_and_a_start_of_the_agent_are_no_sign(self) -> None:
        recently = GpusReadable(0, b.NOW - 900.0, {8: b.NOW - 20.0})
        assert findings(b.snapshot(b.node("n3", gpus=unreadable(8, "a reset"), gpus_readable=recently))) == []
        node = b.node("n3", slurm=eight_gpus("n3"), gpus_readable=none_since(5.0))
        assert findings(b.snapshot(node)) == []

    def test_a_driver_that_does_not_answer_is_judged_by_that_alone(self) -> None:
        gpus = unreadable(8, "NVML has not answered for 70 s")
        node = b.node("n3", gpus=gpus, gpus_readable=none_since(70.0), nvml_silent_seconds=70.0)
        assert findings(b.snapshot(node)) == [("n3", Signal.HEALTH_SUSPECTED, "driver.silent")]

    def test_what_an_agent_cannot_read_is_recorded(self) -> None:
        node = b.node("n3", problems=("/dev/kmsg: cannot be read: Operation not permitted",))
        assert findings(b.snapshot(node)) == [("n3", Signal.RECORDED, "agent.problems")]


class TestMemory:
    def test_a_worn_out_sram_needs_manual_repair(self) -> None:
        (finding,) = found(with_gpu(sram_threshold_exceeded=True))
        assert (finding.signal, finding.rule) == (Signal.HARDWARE_FAULT, "memory.sram_threshold")
        assert finding.evidence.shown()["repair"] == "manual_repair"

    def test_a_remap_that_failed_is_one_fault_whatever_else_is_pending(self) -> None:
        snapshot = with_gpu(remapped_rows_failed=True, remapped_rows_pending=True)
        assert [signal for _, signal, _ in findings(snapshot)] == [Signal.HARDWARE_FAULT]

    def test_a_pending_remap_waits_for_the_end_of_the_job(self) -> None:
        (finding,) = found(with_gpu(remapped_rows_pending=True))
        assert (finding.signal, finding.evidence.shown()["repair"]) == (Signal.DRAIN_AT_JOB_END, "reset_gpu")

    def test_corrected_errors_mean_nothing_by_their_number(self) -> None:
        assert findings(with_gpu(ecc_corrected=10**9, remapped_rows_uncorrectable=400)) == []

    def test_uncorrectable_errors_of_the_host_make_it_suspect(self) -> None:
        node = b.node("n3", host=Host(memory_errors_uncorrected=1, memory_errors_corrected=10_000))
        assert findings(b.snapshot(node)) == [("n3", Signal.HEALTH_SUSPECTED, "memory.host_uncorrected")]


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"slowed_share_recent": 0.7, "clock_event_reasons": 0x48}, "thermal.slowed"),
        ({"nvlinks": 17, "nvlinks_max": 18}, "nvlink.down"),
        ({"fabric_state": 2}, "fabric.not_registered"),
        ({"fabric_state": 3, "fabric_status": 999}, "fabric.not_registered"),
        ({"fabric_state": 3, "fabric_health": 0xA9}, "fabric.unhealthy"),  # degraded bandwidth
        ({"fabric_state": 3, "fabric_health": 0x19A}, "fabric.unhealthy"),
        ({"fabric_state": 3, "fabric_health": 0x2AA}, "fabric.unhealthy"),  # an incorrect system id
    ],
)
def test_what_may_be_wrong_makes_a_node_suspect(values: dict[str, Any], rule: str) -> None:
    assert findings(with_gpu(**values)) == [("n3", Signal.HEALTH_SUSPECTED, rule)]


@pytest.mark.parametrize(
    "values",
    [
        {"slowed_share_recent": 0.3},
        {"clock_event_reasons": 0x4, "power_violation_seconds": 9000.0},  # the power cap is where a busy GPU lives
        {"nvlinks": 12, "nvlinks_max": 12},
        {"fabric_state": 0},
        {"fabric_state": 3, "fabric_status": 0},
        {"fabric_state": 3, "fabric_health": 0x1AA},
        {"pcie_generation": 1, "pcie_generation_max": 5},
    ],
)
def test_what_is_usual_makes_no_node_suspect(values: dict[str, Any]) -> None:
    assert findings(with_gpu(**values)) == []


def stopped(seconds_ago: float) -> dict[str, Any]:
    table = b.step_table([[1.0] * 40] * 4, advanced_at=b.NOW - seconds_ago)
    return {"jobs": [b.job()], "tables": {b.job().key: table}}


class TestDriver:
    def test_a_silent_driver_makes_its_node_suspect_and_no_more(self) -> None:
        node = b.node("n2", nvml_silent_seconds=500.0, nvml_unkillable=True)
        assert findings(b.snapshot(node)) == [("n2", Signal.HEALTH_SUSPECTED, "driver.silent")]
        assert findings(b.snapshot(node, **stopped(0.5))) == [("n2", Signal.HEALTH_SUSPECTED, "driver.silent")]

    def test_with_its_gang_standing_still_it_is_at_fault(self) -> None:
        (finding,) = found(b.snapshot(b.node("n2", nvml_silent_seconds=70.0), **stopped(65.0)))
        assert (finding.signal, finding.rule) == (Signal.HARDWARE_FAULT, "driver.silent_and_stalled")
        assert finding.job == b.job().key
        assert finding.evidence.shown()["repair"] == "reboot"

    def test_a_gang_that_stood_still_long_before_is_no_second_signal(self) -> None:
        snapshot = b.snapshot(b.node("n2", nvml_silent_seconds=70.0), **stopped(600.0))
        assert findings(snapshot) == [("n2", Signal.HEALTH_SUSPECTED, "driver.silent")]

    def test_a_gang_elsewhere_is_none_either(self) -> None:
        snapshot = b.snapshot(b.node("n7", nvml_silent_seconds=70.0), **stopped(65.0))
        assert findings(snapshot) == [("n7", Signal.HEALTH_SUSPECTED, "driver.silent")]

    def test_silent_on_many_nodes_at_once_condemns_none(self) -> None:
        nodes = [b.node(f"n{i}", nvml_silent_seconds=70.0) for i in range(1, 5)]
        found = findings(b.snapshot(*nodes, **stopped(65.0)))
        assert {signal for node, signal, _ in found if node} == {Signal.RECORDED}
        assert [one for one in found if not one[0]] == [("", Signal.DOMAIN_FAULT, "driver.silent")]

    def test_those_silent_for_long_or_out_of_service_do_not_make_it_many(self) -> None:
        fresh = b.node("n2", nvml_silent_seconds=70.0)
        for state in WAITING:
            others = [b.node(f"n{i}", state, nvml_silent_seconds=70.0) for i in range(3, 8)]
            assert ("n2", Signal.HARDWARE_FAULT, "driver.silent_and_stalled") in findings(
                b.snapshot(fresh, *others, **stopped(65.0))
            )
        long_ago = [b.node(f"n{i}", nvml_silent_seconds=9000.0) for i in range(3, 8)]
        assert ("n2", Signal.HARDWARE_FAULT, "driver.silent_and_stalled") in findings(
            b.snapshot(fresh, *long_ago, **stopped(65.0))
        )

    def test_a_driver_that_takes_its_time_is_not_silent(self) -> None:
        assert findings(b.snapshot(b.node("n2", nvml_silent_seconds=12.0))) == []


class TestPorts:
    def test_a_port_that_stays_down_is_a_hardware_fault(self) -> None:
        (finding,) = found(b.snapshot(b.node("n2", ports=(port(), down(241.0)))))
        assert (finding.signal, finding.rule) == (Signal.HARDWARE_FAULT, "infiniband.port_down")
        assert finding.at == pytest.approx(b.NOW - 241, abs=1)

    def test_sooner_when_its_gang_stands_still(self) -> None:
        node = b.node("n2", ports=(down(30.0),))
        assert findings(b.snapshot(node)) == []
        assert findings(b.snapshot(node, **stopped(0.5))) == []
        assert findings(b.snapshot(node, **stopped(28.0))) == [("n2", Signal.HARDWARE_FAULT, "infiniband.port_down")]

    def test_under_a_gang_that_trains_on_it_waits_for_the_end_of_its_job(self) -> None:
        """Its cable is another one than the gang's, or the gang has others."""
        node = b.node("n2", ports=(down(241.0),))
        assert findings(b.snapshot(node, **stopped(0.5))) == [("n2", Signal.DRAIN_AT_JOB_END, "infiniband.port_down")]
        assert findings(b.snapshot(node, **stopped(65.0))) == [("n2", Signal.DRAIN_AT_JOB_END, "infiniband.port_down")]
        assert findings(b.snapshot(node, **stopped(240.0))) == [("n2", Signal.HARDWARE_FAULT, "infiniband.port_down")]
        events = tuple(outage(ago, number=ago) for ago in (900, 800, 700))
        node = b.node("n2", ports=(port(),), hardware_events=events)
        flaps = "infiniband.port_flaps"
        assert findings(b.snapshot(node, **stopped(0.5))) == [("n2", Signal.DRAIN_AT_JOB_END, flaps)]
        assert findings(b.snapshot(node, **stopped(65.0))) == [("n2", Signal.DRAIN_AT_JOB_END, flaps)]
        assert findings(b.snapshot(node, **stopped(699.0))) == [("n2", Signal.HARDWARE_FAULT, flaps)]

    def test_a_port_that_was_never_in_use_is_no_loss(self) -> None:
        node = b.node("n2", ports=(down(9000.0, was_active=False),))
        assert findings(b.snapshot(node, **stopped(28.0))) == []

    def test_ports_of_many_nodes_down_at_once_are_a_switch(self) -> None:
        nodes = [b.node(f"n{i}", ports=(down(300.0),)) for i in range(1, 5)]
        snapshot = b.snapshot(*nodes)
        assert {signal for node, signal, _ in findings(snapshot) if node} == {Signal.RECORDED}
        assert {signal for _, signal, _ in findings(snapshot, together_nodes=5)} == {Signal.HARDWARE_FAULT}

    def test_the_switch_is_named_where_they_are_behind_one(self) -> None:
        nodes = [b.node(f"n{i}", ports=(down(300.0 + i),)) for i in range(1, 5)]
        switch = {"switch leaf1": ("n1", "n2", "n3", "n4", "n5")}
        (fault,) = (one for one in found(b.snapshot(*nodes, domains=switch)) if not one.node)
        assert fault.subject == Subject.of_domain("switch leaf1", "infiniband.port_down")
        assert set(fault.nodes) == {"n1", "n2", "n3", "n4"}
        assert fault.at == pytest.approx(b.NOW - 304, abs=1)

    def test_two_switches_at_different_times_are_two(self) -> None:
        late = [b.node(f"n{i}", ports=(down(300.0),)) for i in range(1, 5)]
        early = [b.node(f"n{i}", ports=(down(9000.0),)) for i in range(5, 9)]
        faults = [one for one in found(b.snapshot(*late, *early)) if not one.node]
        assert [set(one.nodes) for one in faults] == [{"n5", "n6", "n7", "n8"}, {"n1", "n2", "n3", "n4"}]

    @pytest.mark.parametrize("state", WAITING)
    def test_bad_cables_that_wait_for_their_repair_are_no_switch(self, state: NodeState) -> None:
        waiting = [b.node(f"n{i}", state, ports=(down(300.0),)) for i in range(3, 8)]
        snapshot = b.snapshot(b.node("n2", ports=(down(250.0),)), *waiting)
        assert ("n2", Signal.HARDWARE_FAULT, "infiniband.port_down") in findings(snapshot)

    def test_drops_of_other_days_are_no_switch_and_those_of_a_minute_are(self) -> None:
        days = [b.node(f"n{i}", ports=(down(i * 9000.0), port(2))) for i in range(2, 8)]
        assert {signal for _, signal, _ in findings(b.snapshot(*days))} == {Signal.HARDWARE_FAULT}
        minute = [b.node(f"n{i}", ports=(down(240.0 + i * 15), down(245.0, number=2))) for i in range(2, 6)]
        assert {signal for _, signal, _ in findings(b.snapshot(*days[4:], *minute))} == {
            Signal.HARDWARE_FAULT,
            Signal.RECORDED,
            Signal.DOMAIN_FAULT,
        }

    def test_a_switch_is_known_by_ports_that_are_not_down_for_long_yet(self) -> None:
        late = [b.node(f"n{i}", ports=(down(20.0),)) for i in range(3, 6)]
        snapshot = b.snapshot(b.node("n2", ports=(down(28.0),)), *late, **stopped(27.0))
        assert findings(snapshot) == [
            ("n2", Signal.RECORDED, "infiniband.port_down"),
            ("", Signal.DOMAIN_FAULT, "infiniband.port_down"),
        ]

    def test_three_outages_within_half_a_day_are_a_flap_though_the_port_is_up(self) -> None:
        events = tuple(outage(ago, number=i) for i, ago in enumerate((30_000, 20_000, 100)))
        node = b.node("n2", ports=(port(),), hardware_events=events)
        (finding,) = found(b.snapshot(node))
        assert (finding.signal, finding.rule) == (Signal.HARDWARE_FAULT, "infiniband.port_flaps")
        assert finding.evidence.shown()["port"] == "mlx5_0/1"

    def test_outages_that_the_ports_of_a_switch_share_are_the_switch(self) -> None:
        """A leaf switch with eight nodes reboots three times in a day; the cable of n9 loosens at other times."""

        def rebooted(name: str, *more: float, seconds: float = 100.0) -> NodeView:
            at = [ago + float(name[1:]) for ago in (30_000, 20_000, 300)]
            events = [outage(ago, seconds, number=i) for i, ago in enumerate((*at, *more))]
            return b.node(name, ports=(port(),), hardware_events=tuple(events))

        leaf = [rebooted(f"n{i}") for i in range(1, 9)]
        assert findings(b.snapshot(*leaf)) == []
        assert findings(b.snapshot(*(rebooted(f"n{i}", seconds=5.0) for i in range(1, 9)))) == []
        cable = b.node("n9", ports=(port(),), hardware_events=tuple(outage(ago, number=ago) for ago in (900, 800, 700)))
        assert findings(b.snapshot(*leaf, cable)) == [("n9", Signal.HARDWARE_FAULT, "infiniband.port_flaps")]
        both = rebooted("n8", 10_000, 11_000, 12_000)
        assert findings(b.snapshot(*leaf[:7], both)) == [("n8", Signal.HARDWARE_FAULT, "infiniband.port_flaps")]

    def test_outages_of_most_of_a_small_switch_are_the_switch(self) -> None:
        small = merged([Domain(DomainKind.SWITCH, "leaf0", ("n1", "n2", "n3"))])
        events = tuple(outage(ago, number=ago) for ago in (30_000, 20_000, 300))
        nodes = [b.node(name, ports=(port(),), hardware_events=events) for name in ("n1", "n2", "n3")]
        of_switch = b.snapshot(*nodes, topology=small, domains=small.failing_together)
        assert findings(of_switch) == []
        assert {rule for _, _, rule in findings(b.snapshot(*nodes))} == {"infiniband.port_flaps"}

    @pytest.mark.parametrize(("returned_ago", "of_switch"), [(100.0, True), (40_000.0, False)])
    def test_outages_stay_those_of_the_switch_whatever_became_of_its_nodes(
        self, returned_ago: float, of_switch: bool
    ) -> None:
        """One is silent, one out of service. Another says nothing of the time before it returned to service."""
        events = tuple(outage(ago, number=ago) for ago in (30_000, 20_000, 300))
        small = merged([Domain(DomainKind.SWITCH, "leaf0", ("n1", "n2", "n3", "n4", "n5"))])
        states = {"n1": NodeState.IN_SERVICE, "n2": NodeState.UNKNOWN, "n3": NodeState.MANUAL_REPAIR}
        nodes = [b.node(name, state, ports=(port(),), hardware_events=events) for name, state in states.items()]
        back = [b.node(name, record=b.record(name, cleared_at=b.NOW - returned_ago)) for name in ("n4", "n5")]
        seen = b.snapshot(*nodes, *back, topology=small, domains=small.failing_together)
        flapping = {name for name, _, rule in findings(seen) if rule == "infiniband.port_flaps"}
        assert flapping == (set() if of_switch else states.keys())

    def test_a_port_that_is_up_speaks_for_its_switch_also_where_its_node_is_a_suspect_since(self) -> None:
        events = tuple(outage(ago, number=ago) for ago in (30_000, 20_000, 300))
        names = [f"n{number}" for number in range(1, 6)]
        small = merged([Domain(DomainKind.SWITCH, "leaf0", tuple(names))])
        flap = [b.node(name, ports=(port(),), hardware_events=events) for name in names[:3]]
        well = [b.node(name, record=b.record(name, NodeState.SUSPECT, since=b.NOW - 60)) for name in names[3:]]
        seen = b.snapshot(*flap, *well, topology=small, domains=small.failing_together)
        assert {name for name, _, rule in findings(seen) if rule == "infiniband.port_flaps"} == {*names[:3]}

    def test_switches_that_fail_one_after_the_other_are_each_looked_at_for_themselves(self) -> None:
        assert looks_at_members(16) == 4 * looks_at_members(4)

    @pytest.mark.parametrize(
        "events",
        [
            [outage(100), outage(200)],
            [outage(100), outage(200), outage(50_000)],
            [outage(100), outage(200), outage(300, part="mlx5_1/1")],
        ],
    )
    def test_fewer_older_ones_and_those_of_another_port_are_none(self, events: list[StoredHardwareEvent]) -> None:
        assert findings(b.snapshot(b.node("n2", hardware_events=tuple(events)))) == []

    def test_as_many_that_were_too_short_make_a_suspect(self) -> None:
        def node(*seconds: float) -> Snapshot:
            events = tuple(outage(100.0 * i, one, number=i) for i, one in enumerate(seconds, 1))
            return b.snapshot(b.node("n2", ports=(port(),), hardware_events=events))

        unsteady = [("n2", Signal.HEALTH_SUSPECTED, "infiniband.port_unsteady")]
        assert findings(node(0.0, 0.0, 0.0)) == findings(node(40.0, 15.0, 0.0)) == unsteady
        assert findings(node(0.0, 0.0)) == []
        assert findings(node(40.0, 40.0, 40.0, 0.0)) == [("n2", Signal.HARDWARE_FAULT, "infiniband.port_flaps")]

    def test_ports_that_were_dead_before_the_node_booted_are_missed_where_the_site_says_how_many(self) -> None:
        dead = port(2, state="DOWN", physical_state="Polling", was_active=False)
        node = b.node("n2", gpus=(b.gpu(),), ports=(port(), dead))
        assert findings(b.snapshot(node)) == []
        assert findings(b.snapshot(node), ports_per_node=1) == []
        (finding,) = found(b.snapshot(node), ports_per_node=2)
        assert (finding.signal, finding.rule) == (Signal.HEALTH_SUSPECTED, "infiniband.too_few_ports")
        assert finding.evidence.shown()["not_active"] == ["mlx5_0/2"]
        assert finding.summary == "1 of 2 fabric ports for training are active"
        other = port(3, role=PortRole.OTHER)
        (finding,) = found(b.snapshot(replace(node, ports=(*node.ports, other))), ports_per_node=2)
        assert finding.evidence.shown()["not_for_training"] == ["mlx5_0/3"]
        no_adapter = b.node("n2", gpus=(b.gpu(),))
        assert findings(b.snapshot(no_adapter), ports_per_node=2) == [
            ("n2", Signal.HEALTH_SUSPECTED, "infiniband.too_few_ports")
        ]
        for unknown in (replace(no_adapter, ports_silent_seconds=0.4), replace(no_adapter, gpus=())):
            assert findings(b.snapshot(unknown), ports_per_node=2) == []

    def test_ports_that_manage_nvswitches_do_not_stand_in_for_dead_ones(self) -> None:
        dead = port(2, state="DOWN", was_active=False)
        node = b.node("n2", gpus=(b.gpu(),), ports=(port(), dead, port(3, role=PortRole.NVSWITCH)))
        (finding,) = found(b.snapshot(node), ports_per_node=2)
        assert finding.rule == "infiniband.too_few_ports"
        assert finding.evidence.shown()["not_active"] == ["mlx5_0/2"]

    @pytest.mark.parametrize("role", [PortRole.OTHER, PortRole.NVSWITCH, PortRole.UNKNOWN])
    def test_a_port_over_which_no_gang_trains_is_recorded_and_keeps_no_node_from_service(self, role: PortRole) -> None:
        hot = {"module_celsius": 80.0, "module_celsius_max": 75.0, "link_downed_recent": 3}
        other = down(100_000.0, number=2, role=role, **hot)
        node = b.node(
            "n2", ports=(port(), other), hardware_events=tuple(outage(60.0 * i, part="mlx5_0/2") for i in range(9))
        )
        (finding,) = found(b.snapshot(node, **stopped(200.0)))
        assert (finding.signal, finding.rule) == (Signal.RECORDED, "fabric.other_port_down")
        assert "port mlx5_0/2 is DOWN" in finding.summary
        assert ("NCCL_IB_HCA in /etc/nccl.conf" in finding.summary) is (role is not PortRole.NVSWITCH)
        assert not node.has_port_down
        assert second_signals(node, None) == []

    def test_a_port_that_is_up_on_nearly_all_nodes_of_a_kind_is_missed_on_one(self) -> None:
        def node(number: int, gres: str, is_up: bool, seconds: float = 240.0) -> NodeView:
            dead = {"state": "DOWN", "physical_state": "Polling", "was_active": False, "down_seconds": seconds}
            state: dict[str, Any] = {} if is_up else dead
            slurm = replace(b.slurm_node(f"n{number}"), gres=gres)
            return b.node(f"n{number}", slurm=slurm, ports=(port(), port(2, **state)))

        eight = [node(i, "gpu:h100:8", True) for i in range(1, 9)]
        (finding,) = found(b.snapshot(*eight, node(9, "gpu:h100:8", False)))
        assert (finding.signal, finding.rule, finding.node) == (
            Signal.HEALTH_SUSPECTED,
            "infiniband.port_never_up",
            "n9",
        )
        assert "port mlx5_0/2 is DOWN (Polling)" in finding.summary
        assert "on 8 of 9 nodes with the same GPUs it is" in finding.summary
        assert found(b.snapshot(*eight, node(9, "gpu:h100:8", False, 239.0))) == [], "it has just booted"
        assert found(b.snapshot(*eight, node(9, "gpu:a100:8", False))) == [], "another kind of node"
        assert found(b.snapshot(*eight[:7], node(9, "gpu:h100:8", False))) == [], "too few"
        assert found(b.snapshot(*eight, *(node(i, "gpu:h100:8", False) for i in (9, 10)))) == [], "no cable, maybe"

    def test_a_port_that_goes_down_while_the_node_runs_is_found_once(self) -> None:
        node = b.node("n2", gpus=(b.gpu(),), ports=(port(), down(20.0, number=2)))
        assert findings(b.snapshot(node), ports_per_node=2) == []


def test_events_of_nvml_are_recorded_for_this_boot_only() -> None:
    def stored(boot_id: str) -> NodeView:
        event = HardwareEvent(boot_id, b.NOW - 5, HardwareKind.NVML_XID, "0000:01:00.0", 79)
        return b.node("n2", hardware_events=(StoredHardwareEvent(1, "n2", b.NOW - 5, event),))

    (finding,) = found(b.snapshot(stored(b.BOOT)))
    assert (finding.signal, finding.rule) == (Signal.RECORDED, "event.nvml_xid")
    assert "79" in finding.summary
    assert findings(b.snapshot(stored("an earlier boot"))) == []


class TestHost:
    @pytest.mark.parametrize(
        "disk",
        [
            Disk("/", 100 * GiB, GiB // 2),
            Disk("/", 100 * GiB, 50 * GiB, free_inodes_share=0.001),
            Disk("/", 100 * GiB, 50 * GiB, problem="read-only"),
            Disk("/scratch", 0, 0, problem="Stale file handle"),
            Disk("/scratch", 100 * GiB, 50 * GiB, problem=NOT_MOUNTED),
        ],
    )
    def test_a_disk_that_is_full_or_read_only_makes_the_node_suspect(self, disk: Disk) -> None:
        assert findings(b.snapshot(b.node("n2", host=Host(disks=[disk])))) == [
            ("n2", Signal.HEALTH_SUSPECTED, "host.disk")
        ]

    def test_room_enough_is_well(self) -> None:
        assert findings(b.snapshot(b.node("n2", host=Host(disks=[Disk("/", 100 * GiB, 5 * GiB, 0.4)])))) == []

    @pytest.mark.parametrize("what", ["ports_silent_seconds", "host_silent_seconds"])
    def test_one_that_its_agent_cannot_look_at_is_suspect(self, what: str) -> None:
        def silent(seconds: float) -> list[tuple[str, Signal, str]]:
            values: dict[str, Any] = {what: seconds}
            return findings(b.snapshot(b.node("n2", **values)))

        assert silent(40.0) == [("n2", Signal.HEALTH_SUSPECTED, "host.silent")]
        assert silent(2.0) == []

    @pytest.mark.parametrize(("ahead", "recorded"), [(60.0, True), (-60.0, True), (-2.0, False)])
    def test_a_clock_that_is_off_is_recorded(self, ahead: float, recorded: bool) -> None:
        expected = [("n2", Signal.RECORDED, "host.clock")] if recorded else []
        assert findings(b.snapshot(b.node("n2", clock_ahead_seconds=ahead))) == expected


class TestCauses:
    @pytest.mark.parametrize(
        ("values", "cause"),
        [
            ({"clock_event_reasons": 0x40}, Cause.CLOCKS),
            ({"clock_event_reasons": 0x80}, Cause.POWER),
            ({"pcie_width": 8, "pcie_width_max": 16}, Cause.PCIE),
            ({"pcie_replays_recent": 500}, Cause.PCIE),
            ({"nvlinks": 17, "nvlinks_max": 18}, Cause.NVLINK),
            ({"nvlink_errors_recent": 500}, Cause.NVLINK),
        ],
    )
    def test_what_a_gpu_says_is_the_cause_for_its_own_rank_alone(self, values: dict[str, Any], cause: Cause) -> None:
        node = b.node("n2", gpus=(b.gpu(0), b.gpu(1, **values)))
        assert [one for one, _ in second_signals(node, 1)] == [cause]
        assert second_signals(node, 0) == []
        assert cause in OF_THE_HARDWARE

    @pytest.mark.parametrize(
        "bad",
        [
            down(5.0),
            port(rate_gbps=200.0),
            port(symbol_errors_recent=1000),
            port(link_downed_recent=1),
            down(5.0, state=""),
        ],
    )
    def test_a_port_that_is_down_or_poor_is_one_for_every_rank_of_the_node(self, bad: Port) -> None:
        node = b.node("n2", ports=(port(2), bad))
        assert [cause for cause, _ in second_signals(node, None)] == [Cause.INFINIBAND]

    def test_a_busy_host_explains_and_confirms_nothing(self) -> None:
        node = b.node("n2", host=Host(cpu_pressure_percent=80.0, io_pressure_percent=30.0))
        causes = [cause for cause, _ in second_signals(node, None)]
        assert causes == [Cause.CPU, Cause.STORAGE]
        assert not OF_THE_HARDWARE.intersection(causes)

    def test_a_healthy_node_has_none(self) -> None:
        node = b.node("n2", gpus=(b.gpu(0, clock_event_reasons=0x4),), ports=(port(),), host=Host())
        assert second_signals(node, 0) == []


def test_what_a_good_part_of_the_fleet_shows_alike_makes_no_node_suspect() -> None:
    def fleet(full: int) -> Snapshot:
        disks = [Disk("/", 100 * GiB, 0)]
        return b.snapshot(*(b.node(f"n{i}", host=Host(disks=disks)) for i in range(1, full + 1)))

    assert {signal for _, signal, _ in findings(fleet(3))} == {Signal.HEALTH_SUSPECTED}
    assert findings(fleet(4)) == [("", Signal.DOMAIN_FAULT, "host.disk")]
    assert found(fleet(4))[0].nodes == ("n1", "n2", "n3", "n4")
    assert {signal for _, signal, _ in findings(fleet(4), together_share=0.6)} == {Signal.HEALTH_SUSPECTED}


def test_a_module_above_its_own_limit_makes_the_node_suspect() -> None:
    for celsius, expected in ((74.0, []), (75.0, [("n3", Signal.HEALTH_SUSPECTED, "fabric.module_hot")])):
        hot = port(module_celsius=celsius, module_celsius_max=75.0)
        assert findings(b.snapshot(b.node("n3", ports=(hot,)))) == expected
    assert findings(b.snapshot(b.node("n3", ports=(port(module_celsius=90.0),)))) == []


def test_a_fabric_manager_that_stopped_makes_the_node_suspect() -> None:
    node = b.node("n3", host=Host(fabric_manager=False))
    assert findings(b.snapshot(node)) == [("n3", Signal.HEALTH_SUSPECTED, "fabric.manager_down")]
    for runs in (True, None):
        assert findings(b.snapshot(b.node("n3", host=Host(fabric_manager=runs)))) == []


@pytest.mark.parametrize(
    ("values", "seen"),
    [
        ({"transport_errors_recent": 100}, True),
        ({"transport_errors_recent": 99}, False),
        ({"pause_storms_recent": 1}, True),
        ({"pause_storms_recent": 0}, False),
        ({"module_received_milliwatts": 0.02, "module_received_low": True}, True),
        ({"module_received_milliwatts": 0.02, "module_received_low": False}, False),
        ({"module_received_milliwatts": None, "module_received_low": None}, False),
    ],
)
def test_errors_of_transport_pause_storms_and_little_light_explain_a_slow_rank(
    values: dict[str, Any], seen: bool
) -> None:
    signals = second_signals(b.node("n3", ports=(port(**values),)), None)
    assert [cause for cause, _ in signals] == ([Cause.INFINIBAND] if seen else [])
