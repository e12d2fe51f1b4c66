"""Causes of interruptions by component and category, as in Llama 3's table (arXiv 2407.21783, table 5). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Cause(NamedTuple):
    component: str
    category: str


GPU = Cause("Faulty GPU", "GPU")
GPU_MEMORY = Cause("GPU memory", "GPU")
GPU_SRAM = Cause("GPU SRAM", "GPU")
GPU_PROCESSOR = Cause("GPU system processor", "GPU")
GPU_HEAT = Cause("GPU thermal interface and sensor", "GPU")
CORRUPTION = Cause("Silent data corruption", "GPU")
NVLINK = Cause("NVLink and NVSwitch", "Network")
FABRIC = Cause("Network switch, cable or port", "Network")
DISK = Cause("Disk", "Host")
CPU = Cause("CPU", "Host")
MEMORY = Cause("System memory", "Host")
HOST = Cause("Host: dead or silent", "Host")
DRIVER = Cause("GPU driver", "Software")
PROGRAM = Cause("Program of the user", "Software")
HANG = Cause("Hang of a collective operation", "Unknown")
SLOW = Cause("Slow rank", "Unknown")
BLACK_HOLE = Cause("Node on which jobs fail", "Unknown")
LAUNCHER = Cause("Node, as the launcher saw it", "Unknown")
SITE = Cause("Power, cooling or site", "Environment")
PEOPLE = Cause("Maintenance by people", "Planned")
SLURM = Cause("Requeued or ended by Slurm", "Unknown")
UNKNOWN = Cause("Unknown", "Unknown")

XIDS: Mapping[Cause, tuple[int, ...]] = {
    GPU_MEMORY: (48, 63, 64, 92, 94, 95, 140, 160, 161, 168, 171, 175),
    GPU_SRAM: (172,),
    GPU_PROCESSOR: (61, 62, 119, 120, 169),
    NVLINK: (74, 108, 136, *range(144, 151), 155, 166, 170),
    PROGRAM: (13, 31, 32, 43, 45, 69, 109, 137),
    DRIVER: (38, 66, 67),
}
"""Any other is the GPU's."""

OF_XID = {f"xid.{code}": cause for cause, codes in XIDS.items() for code in codes}

OF_RULE: Mapping[str, Cause] = {
    "xid.": GPU,
    "sxid.": NVLINK,
    "gpu.": GPU,
    "gpus.": GPU,
    "inventory.": GPU,
    "nvml.": GPU,
    "nvml.driver_mismatch": DRIVER,
    "nvml.not_": DRIVER,
    "nvml.no_library": DRIVER,
    "nvml.no_permission": DRIVER,
    "drift.": DRIVER,
    "driver.": DRIVER,
    "event.nvml_": GPU,
    "event.nvml_memory_storm": GPU_MEMORY,
    "event.nvml_page_retirement": GPU_MEMORY,
    "event.nvml_poison": GPU_MEMORY,
    "event.port_outage": FABRIC,
    "memory.": GPU_MEMORY,
    "memory.sram": GPU_SRAM,
    "memory.host": MEMORY,
    "thermal.": GPU_HEAT,
    "corruption.": CORRUPTION,
    "nvlink.": NVLINK,
    "fabric.": NVLINK,
    "infiniband.": FABRIC,
    "kernel.": HOST,
    "kernel.adapter_": FABRIC,
    "kernel.disk_": DISK,
    "kernel.filesystem_": DISK,
    "kernel.gpu_": GPU,
    "kernel.gsp_": GPU_PROCESSOR,
    "kernel.host_out_of_memory": MEMORY,
    "kernel.machine_check": CPU,
    "kernel.processor_hot": CPU,
    "kernel.memory_": MEMORY,
    "kernel.nvme": DISK,
    "kernel.nvlink": NVLINK,
    "kernel.nvswitch": NVLINK,
    "kernel.pcie_fatal_adapter": FABRIC,
    "kernel.pcie_fatal_gpu": GPU,
    "kernel.rank_out_of_memory": PROGRAM,
    "kernel.uvm": DRIVER,
    "host.": HOST,
    "host.disk": DISK,
    "processes.": HOST,
    "silence.": HOST,
    "hang.": HANG,
    "straggler.": SLOW,
    "launches.": BLACK_HOLE,
    "launches.crash": PROGRAM,
    "launches.hang": HANG,
    "signal.": SITE,
    "operator.": PEOPLE,
    "administration.": PEOPLE,
    "seats.": PEOPLE,
    "stranded.": PEOPLE,
    "slurm.": SLURM,
}
"""Beginning of a rule's name → cause; the longest one counts."""

OF_LAUNCH: Mapping[str, Cause] = {
    "hardware": LAUNCHER,
    "black_hole": BLACK_HOLE,
    "program": PROGRAM,
    "hang": HANG,
    "outside": PEOPLE,
}
"""How a launcher says that its launch ended."""

OF_STATE: Mapping[str, Cause] = {
    "NODE_FAIL": HOST,
    "BOOT_FAIL": HOST,
    "FAILED": PROGRAM,
    "OUT_OF_MEMORY": PROGRAM,
}
"""How Slurm says that a job ended."""


def cause_of(rule: str) -> Cause:
    if rule in OF_XID:
        return OF_XID[rule]
    known = [beginning for beginning in OF_RULE if rule.startswith(beginning)]
    return OF_RULE[max(known, key=len)] if known else UNKNOWN
