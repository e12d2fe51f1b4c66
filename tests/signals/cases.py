"""What is injected, one signal after another. Each on a node, or a gang, of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from tests.signals.virtual_fleet import Fleet, Gang
from tests.signals.virtual_node import VirtualNode
from understudy_wire.hardware import GpuStatus
from understudy_wire.ranks import Training

DAY = 86_400.0
NOTHING = "nothing"


@dataclass(frozen=True)
class Case:
    source: str
    signal: str
    injected: str  # for people
    inject: Callable[[Fleet, VirtualNode], None]
    rule: str  # that has to find it; NOTHING: none may
    later: Sequence[tuple[float, Callable[[Fleet, VirtualNode], None]]] = ()  # after so many seconds


@dataclass(frozen=True)
class GangCase:
    signal: str
    injected: str
    inject: Callable[[Fleet, Gang], None]
    rule: str
    nodes: int = 4
    marks_collectives: bool = True


def gpu(**values: object) -> Callable[[Fleet, VirtualNode], None]:
    return lambda _fleet, node: node.set_gpu(0, **values)


def port(**values: object) -> Callable[[Fleet, VirtualNode], None]:
    return lambda _fleet, node: node.set_port(0, **values)


def host(**values: object) -> Callable[[Fleet, VirtualNode], None]:
    def inject(_fleet: Fleet, node: VirtualNode) -> None:
        node.host = replace(node.host, **values)

    return inject


def line(text: str) -> Callable[[Fleet, VirtualNode], None]:
    return lambda fleet, node: node.log(text, fleet.now)


def xid(code: int, message: str = "pid=1, name=python, test") -> Callable[[Fleet, VirtualNode], None]:
    return line(f"NVRM: Xid (PCI:0000:01:00): {code}, {message}")


def every_gpu(error: str) -> Callable[[Fleet, VirtualNode], None]:
    def inject(_fleet: Fleet, node: VirtualNode) -> None:
        node.nvml_error = error

    return inject


def _gone(_fleet: Fleet, node: VirtualNode) -> None:
    node.gpus.pop()


def _exchanged(_fleet: Fleet, node: VirtualNode) -> None:
    node.set_gpu(3, uuid="GPU-of-the-shelf", serial="other")


def _nvml_hangs(fleet: Fleet, node: VirtualNode) -> None:
    node.nvml_silent_since = fleet.now


def _host_hangs(fleet: Fleet, node: VirtualNode) -> None:
    node.host_silent_since = fleet.now


def _unmounted(_fleet: Fleet, node: VirtualNode) -> None:
    node.mounts.remove("/scratch")


def _clock(_fleet: Fleet, node: VirtualNode) -> None:
    node.clock_ahead = 20.0


def _silent(_fleet: Fleet, node: VirtualNode) -> None:
    node.silent = True


def _dead(fleet: Fleet, node: VirtualNode) -> None:
    fleet.dead.add(node.name)


def _other_driver(_fleet: Fleet, node: VirtualNode) -> None:
    node.driver = "535.183.06"


def _disk(**values: object) -> Callable[[Fleet, VirtualNode], None]:
    return lambda _fleet, node: node.set_disk("/scratch", **values)


PORT_DOWN = port(state="DOWN", physical_state="Polling")
NVML, LOG, FABRIC, HOST, AGENT = "NVML", "kernel log", "fabric port", "host", "agent"

CASES: tuple[Case, ...] = (
    Case(NVML, "GPU lost", "every call returns 15", gpu(status=GpuStatus.LOST, error="GPU is lost"), "nvml.lost"),
    Case(NVML, "GPU needs a reset", "every call returns 16", gpu(status=GpuStatus.RESET_REQUIRED),
         "nvml.reset_required"),
    Case(NVML, "recovery action: reset", "field 230 = 1", gpu(recovery_action=1), "nvml.recovery_action"),
    Case(NVML, "GPU missing", "3 of 4 listed", _gone, "gpus.missing"),
    Case(NVML, "another GPU in its place", "another uuid and serial", _exchanged, "gpus.replaced"),
    Case(NVML, "one GPU unreadable", "every call returns 999",
         gpu(status=GpuStatus.UNREADABLE, error="Unknown Error (NVML error 999)"), "nvml.unreadable"),
    Case(NVML, "driver and library differ", "initialisation returns 18",
         every_gpu("Driver/library version mismatch (NVML error 18)"), "nvml.driver_mismatch"),
    Case(NVML, "system not ready", "initialisation returns 27",
         every_gpu("System is not in ready state (NVML error 27)"), "nvml.not_ready"),
    Case(NVML, "driver does not answer", "a call that does not return", _nvml_hangs, "driver.silent"),
    Case(NVML, "row remap failed", "remapped rows: failed", gpu(remapped_rows_failed=True), "memory.row_remap_failed"),
    Case(NVML, "row remap pending", "remapped rows: pending", gpu(remapped_rows_pending=True),
         "memory.row_remap_pending"),
    Case(NVML, "SRAM threshold", "threshold passed", gpu(sram_threshold_exceeded=True), "memory.sram_threshold"),
    Case(NVML, "slowed by heat", "reason 0x40 without end", gpu(clock_event_reasons=0x40), "thermal.slowed"),
    Case(NVML, "power cap", "reason 0x4 without end", gpu(clock_event_reasons=0x4), NOTHING),
    Case(NVML, "NVLink down", "17 of 18 links", gpu(nvlinks=17), "nvlink.down"),
    Case(NVML, "fabric not registered", "state 2", gpu(fabric_state=2), "fabric.not_registered"),
    Case(NVML, "fabric unhealthy", "health mask: degraded bandwidth", gpu(fabric_health=0x1), "fabric.unhealthy"),
    Case(NVML, "corrected ECC errors", "5,000 more", gpu(ecc_corrected=5000), NOTHING),
    Case(NVML, "pages retired", "one more, which waits for a reset", gpu(retired_pages=1, retired_pages_pending=True),
         NOTHING),
    Case(NVML, "PCIe narrower", "x8 of x16", gpu(pcie_width=8), NOTHING),
    Case(NVML, "PCIe replays", "1,000 more", gpu(pcie_replays=1000), NOTHING),
    Case(LOG, "Xid 79", "the line", xid(79, "GPU has fallen off the bus."), "xid.79"),
    Case(LOG, "Xid 48", "the line", xid(48, "pid=1, name=python, DBE (double bit error)"), "xid.48"),
    Case(LOG, "Xid 119", "the line", xid(119, "pid=1, name=python, Timeout after 6s of waiting for RPC response"),
         "xid.119"),
    Case(LOG, "Xid 95", "the line", xid(95, "pid=1, name=python, Uncontained: LTC TAG"), "xid.95"),
    Case(LOG, "Xid 63", "the line", xid(63, "Row Remapper: New row marked for remapping"), "xid.63"),
    Case(LOG, "Xid 31 (the program)", "the line", xid(31, "pid=1, name=python, MMU Fault"), "xid.31"),
    Case(LOG, "SXid 20034, fatal", "the line",
         line("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"), "sxid.20034"),
    Case(LOG, "GPU not initialised", "the line",
         line("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x40:2477)"), "kernel.gpu_not_initialised"),
    Case(LOG, "GSP heartbeat", "the line", line("NVRM: GPU0 _kgspIsHeartbeatTimedOut: Heartbeat timed out"),
         "kernel.gsp_silent"),
    Case(LOG, "PCIe error, fatal", "the line",
         line("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error message received from 0000:01:00.0"),
         "kernel.pcie_fatal"),
    Case(LOG, "adapter health", "the line",
         line("mlx5_core 0000:5e:00.0: poll_health:739:(pid 0): device's health compromised - reached miss count"),
         "kernel.adapter_failed"),
    Case(LOG, "memory failure", "the line",
         line("Memory failure: 0x3f2a1c: recovery action for dirty LRU page: Recovered"), "kernel.memory_uncorrected"),
    Case(LOG, "machine check", "the line", line("mce: [Hardware Error]: Machine check events logged"),
         "kernel.machine_check"),
    Case(LOG, "soft lockup", "the line", line("watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python:1]"),
         "kernel.soft_lockup"),
    Case(LOG, "NVMe gone", "the line", line("nvme nvme0: Disabling device after reset failure: -19"),
         "kernel.nvme_gone"),
    Case(LOG, "file system read-only", "the line", line("EXT4-fs (nvme0n1p2): Remounting filesystem read-only"),
         "kernel.filesystem_down"),
    Case(LOG, "rank killed for memory", "the line",
         line("Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB"), "kernel.rank_out_of_memory"),
    Case(FABRIC, "port down, no gang", "state DOWN", PORT_DOWN, "infiniband.port_down"),
    Case(FABRIC, "port flaps", "down for 30 s, three times", PORT_DOWN, "infiniband.port_flaps",
         tuple((at, change) for start in (0.0, 60.0, 120.0)
               for at, change in ((start, PORT_DOWN), (start + 31.0, port(state="ACTIVE", physical_state="LinkUp"))))),
    Case(FABRIC, "port slower", "200 of 400 Gb/s", port(rate_gbps=200.0), NOTHING),
    Case(FABRIC, "symbol errors", "5,000 more", port(symbol_errors=5000), NOTHING),
    Case(FABRIC, "module hot", "80 °C of 75", port(module_celsius=80.0), "fabric.module_hot"),
    Case(FABRIC, "received light low", "0.02 mW, below the module's limit",
         port(module_received_milliwatts=0.02, module_received_low=True), NOTHING),
    Case(HOST, "disk full", "0.1 % free", _disk(free_bytes=2**29), "host.disk"),
    Case(HOST, "disk read-only", "statvfs: read-only", _disk(problem="read-only"), "host.disk"),
    Case(HOST, "file system not mounted", "not in the mounts", _unmounted, "host.disk"),
    Case(HOST, "host cannot be read", "a call that does not return", _host_hangs, "host.silent"),
    Case(HOST, "uncorrected memory error", "EDAC ue_count = 1", host(memory_errors_uncorrected=1),
         "memory.host_uncorrected"),
    Case(HOST, "Fabric Manager stopped", "its cgroup is empty", host(fabric_manager=False), "fabric.manager_down"),
    Case(HOST, "clock", "20 s ahead", _clock, "host.clock"),
    Case(HOST, "other driver than the fleet", "R535", _other_driver, "drift.driver"),
    Case(HOST, "processors busy", "pressure 80 %", host(cpu_pressure_percent=80.0), NOTHING),
    Case(AGENT, "agent silent", "no reports; slurmd answers", _silent, "silence.agent"),
    Case(AGENT, "node dead, no gang", "no reports; slurmd does not answer", _dead, "silence.node_dead"),
)  # fmt: skip


def _slow(factor: float) -> Callable[[Fleet, Gang], None]:
    return lambda _fleet, gang: gang.pace.update({5: factor})


def _slow_with_clocks(fleet: Fleet, gang: Gang) -> None:
    gang.pace[5] = 1.2  # GPU 1 of its second node
    fleet.save_checkpoint(gang)
    fleet.nodes[gang.nodes[1]].set_gpu(1, clock_event_reasons=0x40)


def _starved(_fleet: Fleet, gang: Gang) -> None:
    gang.data_wait = dict.fromkeys(range(gang.world), 0.02) | {5: 0.8}


def _one_hangs(_fleet: Fleet, gang: Gang) -> None:
    gang.stopped, gang.hung_rank = True, 5


def _all_wait(_fleet: Fleet, gang: Gang) -> None:
    gang.stopped, gang.waits = True, True


def _stops(fleet: Fleet, gang: Gang) -> None:
    gang.stopped = True
    for name in gang.nodes:
        for index in range(gang.ranks_per_node):
            fleet.nodes[name].set_gpu(index, power_watts=120.0)


def _slower_as_a_whole(_fleet: Fleet, gang: Gang) -> None:
    gang.step_seconds *= 1.5


def _slow_link(_fleet: Fleet, gang: Gang) -> None:
    """Link between rank 7, of its second node, and rank 8, of its third."""
    neighbours = [(rank, rank + by) for rank in range(gang.world) for by in (-1, 1) if 0 <= rank + by < gang.world]
    gang.transfers = dict.fromkeys(neighbours, 0.1) | {(7, 8): 0.3, (8, 7): 0.3}


def _below_its_mfu(_fleet: Fleet, gang: Gang) -> None:
    gang.training = Training(tokens_per_second=1000.0, flops_per_token=1.978e11)  # 20 % of an H100


def _node_dies(fleet: Fleet, gang: Gang) -> None:
    gang.stopped = True
    fleet.dead.add(gang.nodes[0])


def _driver_and_gang_stop(fleet: Fleet, gang: Gang) -> None:
    gang.stopped = True
    fleet.nodes[gang.nodes[0]].nvml_silent_since = fleet.now


def _port_and_gang_stop(fleet: Fleet, gang: Gang) -> None:
    gang.stopped = True
    fleet.nodes[gang.nodes[0]].set_port(0, state="DOWN", physical_state="Polling")


GANG_CASES: tuple[GangCase, ...] = (
    GangCase("rank 20 % slow, nothing else seen", "its own time x 1.2", _slow(1.2), "straggler.self_time"),
    GangCase("rank 40 % slow", "its own time x 1.4", _slow(1.4), "straggler.self_time"),
    GangCase("rank slow, its GPU throttled", "own time x 1.2, reason 0x40", _slow_with_clocks, "straggler.self_time"),
    GangCase("rank waits for data", "0.8 s in each step", _starved, "straggler.data_wait"),
    GangCase("rank hangs", "all but one wait in a collective", _one_hangs, "hang.not_arrived"),
    GangCase("gang hangs, no rank stands out", "all wait in one collective", _all_wait, "hang.unexplained"),
    GangCase("gang hangs without marked collectives", "no step ends, GPUs draw little", _stops, "hang.silent",
             marks_collectives=False),
    GangCase("gang slow as a whole", "each step x 1.5", _slower_as_a_whole, "straggler.gang"),
    GangCase("gang below the MFU expected", "20 %, where 40 % are expected", _below_its_mfu, "straggler.gang_mfu"),
    GangCase("slow transfers between two nodes", "0.3 s a step, where 0.1 s are usual", _slow_link,
             "straggler.transfers"),
    GangCase("node of a gang dies", "no reports, slurmd silent, no step ends", _node_dies, "silence.node_dead"),
    GangCase("driver silent under a gang", "a call that does not return; no step ends", _driver_and_gang_stop,
             "driver.silent_and_stalled"),
    GangCase("port down under a gang", "state DOWN; no step ends", _port_and_gang_stop, "infiniband.port_down"),
)  # fmt: skip


EXPECTED: dict[str, str] = {
    **{case.signal: case.rule for case in CASES},
    **{case.signal: case.rule for case in GANG_CASES},
}
"""Signal → the rule that has to find it."""
