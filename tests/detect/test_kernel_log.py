"""What follows from lines of the kernel log that have no code."""

from __future__ import annotations

from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.node_log import NodeLog
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.node import StoredKernelEvent
from understudy_controlplane.xid_policy import default_policy
from understudy_wire.facts import KernelEvent

SUSPECT, DRAIN = Signal.HEALTH_SUSPECTED, Signal.DRAIN_AT_JOB_END
RECORDED, PROGRAM = Signal.RECORDED, Signal.APPLICATION_FAULT

LINES = [
    ("NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0xffff:1863)", "gpu_not_initialised", SUSPECT, "1b"),
    ("NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout", "gpu_locked", SUSPECT, ""),
    ("NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out", "gsp_heartbeat", SUSPECT, ""),
    (
        "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
        "uvm_fatal",
        DRAIN,
        "",
    ),
    ("nvidia-uvm: uvm_global.c:410 Encountered a global fatal error: NV_ERR_ECC", "uvm_fatal_debug", DRAIN, ""),
    ("nvidia-nvswitch3: a fatal Error", "nvswitch", RECORDED, ""),
    ("nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Tr", "pcie_fatal_gpu", SUSPECT, "1b"),
    ("nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), t", "pcie_fatal_gpu", SUSPECT, "1b"),
    ("pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0", "pcie_fatal", SUSPECT, "16:01"),
    ("pcieport 0000:16:01.0: DPC: containment event, status:0x1f01", "pcie_contained", SUSPECT, "16:01"),
    ("mlx5_core 0000:1a:00.0: poll_health:825:(pid 0): Fatal error 3 detected", "adapter_fatal", SUSPECT, "1a"),
    ("mlx5_core 0000:1a:00.0: poll_health:974:(pid 0): device's health compromised", "adapter_health", SUSPECT, "1a"),
    (
        "mlx5_core 0000:1a:00.0: print_health_info:430:(pid 0): Health issue observed, firmware internal error, "
        "severity(3) ERROR:",
        "adapter_firmware",
        SUSPECT,
        "1a",
    ),
    ("mlx5_core 0000:1a:00.0: Detected insufficient power on the PCIe slot (27W).", "adapter_power", SUSPECT, "1a"),
    ("mlx5_core 0000:1a:00.0: Port module event[error]: module 0, Cable error", "adapter_module", SUSPECT, "1a"),
    ("mce: [Hardware Error]: Machine check events logged", "machine_check", RECORDED, ""),
    ("mce: Uncorrected hardware memory error in user-access at 7f", "memory_uncorrected", SUSPECT, ""),
    ("Memory failure: 0x1234: recovery action for dirty LRU page: Recovered", "memory_failure", SUSPECT, ""),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "memory_controller", SUSPECT, ""),
    ("{3}[Hardware Error]: event severity: fatal", "firmware_fatal", SUSPECT, ""),
    ("INFO: task python:1234 blocked for more than 120 seconds.", "hung_task", RECORDED, ""),
    ("watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [python:1234]", "soft_lockup", SUSPECT, ""),
    ("watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3", "hard_lockup", SUSPECT, ""),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", "hard_lockup_nmi", SUSPECT, ""),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", "rcu_stall", RECORDED, ""),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff", "nvme_down", SUSPECT, ""),
    ("nvme nvme0: I/O 23 QID 4 timeout, reset controller", "nvme_timeout", SUSPECT, ""),
    ("nvme nvme0: Disabling device after reset failure: -19", "nvme_gone", SUSPECT, ""),
    ("nvme nvme2: Device not ready; aborting reset, CSTS=0x1", "nvme_not_ready", SUSPECT, ""),
    ("EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2", "ext4_error", SUSPECT, ""),
    ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", "ext4_readonly", SUSPECT, ""),
    ("XFS (dm-0): Corruption of in-memory data detected.  Shutting down filesystem", "xfs_shutdown", SUSPECT, ""),
    ("XFS (dm-0): Filesystem has been shut down due to log error (0x2).", "xfs_was_shut_down", SUSPECT, ""),
    ("Memory cgroup out of memory: Killed process 42 (python) total-vm:1kB", "rank_out_of_memory", PROGRAM, ""),
    ("Out of memory: Killed process 42 (python) total-vm:1kB", "host_out_of_memory", PROGRAM, ""),
]
OTHER_RELEASES = [
    ("NVRM: RmInitAdapter failed! (0x26:0xffff:1290)", "gpu_not_initialised"),
    ("NVRM: GPU0 krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7", "gpu_locked"),
    ("NVRM: GPU0 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 8120 heartbeat 18", "gsp_heartbeat"),
    ("NVRM: GPU1 _kgspRpcRecvPoll: LibOS heartbeat timed out", "gsp_heartbeat"),
    ("NVRM: GPU0 nvGpuOpsReportFatalError: uvm encountered global fatal error 0xf, requiring os", "uvm_fatal"),
    (
        "nvidia-uvm: uvm_global.c:425 uvm_global_set_fatal_error_impl[pid:12] Encountered a global fatal error: RM",
        "uvm_fatal_debug",
    ),
    ("nvidia 0000:1b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible", "pcie_fatal_gpu"),
    ("mlx5_core 0000:1a:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Tr", "pcie_fatal_adapter"),
    (
        "pcieport 0000:16:01.0: AER: Multiple Uncorrectable (Fatal) error message received from 0000:17:00.0",
        "pcie_fatal",
    ),
    ("pcieport 0000:16:01.0: DPC: containment event, status:0x1f01 source:0x0000", "pcie_contained"),
    (
        "mlx5_core 0000:1a:00.0: mlx5_pcie_event:301:(pid 0): Detected insufficient power on the PCIe slot (27W).",
        "adapter_power",
    ),
    (
        "mlx5_core 0000:1a:00.0: port_module:255:(pid 0): Port module event[error]: module 0, Cable error, High",
        "adapter_module",
    ),
    ("EDAC MC0: 1 UE on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1 offset:0x0)", "memory_controller"),
    ("INFO: task python:1234 <writer> blocked for more than 120 seconds.", "hung_task"),
    ("watchdog: Watchdog detected hard LOCKUP on cpu 3", "hard_lockup"),
    ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", "rcu_stall"),
    ("rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 1-... }", "rcu_stall"),
    ("nvme nvme0: controller is down; will reset: CSTS=0x3, PCI_STATUS=0x10", "nvme_down"),
    ("nvme nvme2: I/O tag 113 (1071) opcode 0x2 (Read) QID 7 timeout, reset controller", "nvme_timeout"),
    ("nvme nvme0: I/O tag 28 (401c) QID 0 timeout, disable controller", "nvme_timeout"),
    ("nvme nvme2: I/O 0 QID 0 timeout, disable controller", "nvme_timeout"),
    ("nvme nvme0: I/O 12 (Write Zeroes) QID 3 timeout, reset controller", "nvme_timeout"),
    ("nvme nvme2: Removing after probe failure status: -19", "nvme_gone"),
    ("nvme nvme2: Device not ready; aborting initialisation, CSTS=0x0", "nvme_not_ready"),
    (
        "XFS (sdb1): Log I/O Error (0x2) detected at xlog_ioend_work+0x6e/0x70 [xfs] (fs/xfs/xfs_log.c:1378).  "
        "Shutting down filesystem.",
        "xfs_shutdown",
    ),
    (
        "XFS (nvme0n1p1): Corruption of in-memory data (0x8) detected at xfs_trans_cancel.isra.0+0x12b/0x150 [xfs] "
        "(fs/xfs/xfs_trans.c:1098).  Shutting down filesystem.",
        "xfs_shutdown",
    ),
    ("XFS (dm-1): I/O Error Detected. Shutting down filesystem", "xfs_shutdown"),
    ("XFS (dm-1): Log I/O Error Detected. Shutting down filesystem", "xfs_shutdown"),
]
"""Lines of Linux 5.14 to 6.12 and of drivers 515 to 610, by the source or by what users of them have shown."""

TEXT = {name: text for text, name, *_ in LINES}


def logged(text: str, ago: float = 1.0, sequence: int = 1) -> StoredKernelEvent:
    return StoredKernelEvent(sequence, "n3", b.NOW - 1, KernelEvent(b.BOOT, sequence, b.NOW - ago, text))


def findings(*events: StoredKernelEvent, **xid: Any) -> list[tuple[Signal, str]]:
    snapshot = b.snapshot(b.node("n3", events=events))
    return [(one.signal, one.rule) for one in detect(snapshot, b.config(xid=xid))]


@pytest.mark.parametrize(("text", "name", "signal", "bus"), LINES)
def test_each_form_has_its_row(text: str, name: str, signal: Signal, bus: str) -> None:
    snapshot = b.snapshot(b.node("n3", events=(logged(text),)))
    (finding,) = detect(snapshot, b.config())
    address = f"0000:{bus}.0" if ":" in bus else f"0000:{bus}:00.0"
    assert (finding.rule, finding.signal) == (f"kernel.{name}", signal)
    assert finding.evidence.shown()["bus_id"] == (address if bus else "")


@pytest.mark.parametrize(("text", "name"), OTHER_RELEASES)
def test_the_forms_of_other_releases_are_of_the_same_row(text: str, name: str) -> None:
    assert default_policy().kernel_row(text) == name


def test_an_agent_of_an_older_release_passes_on_every_line_that_is_judged() -> None:
    for text, name in [*((line[0], line[1]) for line in LINES), *OTHER_RELEASES]:
        pattern = default_policy().kernel[name].pattern
        assert text.startswith(pattern.prefix)
        assert all(words in text for words in pattern.contains), text


def test_every_row_is_tested() -> None:
    assert {name for _, name, _, _ in LINES} == default_policy().kernel.keys() - {"pcie_fatal_adapter"}


def test_what_agents_are_asked_for_is_what_is_judged() -> None:
    policy = default_policy()
    assert [row.pattern for row in policy.kernel.values()] == list(policy.kernel_log.patterns)


@pytest.mark.parametrize("text", ["XFS (dm-0): Mounting V5 Filesystem", "INFO: task one", "NVRM: loading NVIDIA UNIX"])
def test_other_lines_mean_nothing(text: str) -> None:
    assert findings(logged(text)) == []


def test_a_line_makes_its_node_suspect_for_the_time_of_its_row() -> None:
    lockup = TEXT["soft_lockup"]
    assert findings(logged(lockup, ago=23 * 3600.0)) == [(SUSPECT, "kernel.soft_lockup")]
    assert findings(logged(lockup, ago=25 * 3600.0)) == []


def test_a_site_changes_a_row_by_its_name() -> None:
    change = {"kernel_policy": {"soft_lockup": {"class": "record"}}}
    assert findings(logged(TEXT["soft_lockup"]), **change) == [(RECORDED, "kernel.soft_lockup")]
    with pytest.raises(ValueError, match=r"kernel.soft_lock: no such row"):
        b.config(xid={"kernel_policy": {"soft_lock": {"class": "record"}}})


def test_lines_of_different_rows_are_kept_apart_and_those_of_one_are_joined() -> None:
    log = NodeLog(180.0)
    for sequence, name in enumerate(("soft_lockup", "soft_lockup", "rank_out_of_memory", "xfs_shutdown"), 1):
        log.add(logged(TEXT[name], sequence=sequence))
    assert [one.count for one in log.events(0.0)] == [2, 1, 1]


def test_a_line_that_a_third_of_the_fleet_writes_makes_no_node_suspect() -> None:
    lockup = logged(TEXT["soft_lockup"])
    nodes = [b.node(f"n{i}", events=(lockup,)) for i in range(1, 5)]
    (finding,) = detect(b.snapshot(*nodes), b.config())
    assert (finding.signal, finding.rule, finding.node) == (Signal.DOMAIN_FAULT, "kernel.soft_lockup", "")
    assert len(detect(b.snapshot(*nodes[:3]), b.config())) == 3
