"""Kernel logs of other sites, and what follows from each: tests/data/world/kernel.toml says where they are from."""

from __future__ import annotations

from typing import Any

import pytest

from tests import builders as b
from tests.world import WORLD
from understudy_controlplane.cli.analyze.kernel_log import analyze, as_record, collect
from understudy_controlplane.cli.analyze.log_records import text_records

RIGHT = {
    "uvm_fatal.log": ["kernel.uvm_fatal drain reboot"],
    "uvm_fatal_debug.log": ["kernel.uvm_fatal drain reboot"],
    "xid154_reboot.log": ["xid.154 hardware reboot", "xid.31 application restart_app"],
    "xid154_words.log": [
        "kernel.gsp_silent suspect reset_gpu",
        "xid.119 hardware reset_gpu",
        "xid.154 hardware reset_gpu",
    ],
    "nvlink5_nonfatal.log": ["xid.137 record none", "xid.145 record none"],
    "xid119_again.log": ["xid.119 hardware reboot", "xid.119 hardware reset_gpu"],
    "gsp_back_to_back.log": [
        "kernel.gpu_reset_required drain reset_gpu",
        "kernel.gsp_silent suspect reset_gpu",
        "xid.154 hardware reset_gpu",
    ],
    "gpu_lost_without_xid.log": ["kernel.gpu_lost drain reboot"],
    "wpr2_already_up.log": ["kernel.gpu_not_initialised suspect reboot"],
    "gsp_exception.log": ["xid.120 hardware reset_gpu"],
    "aer_of_a_gpu.log": ["kernel.pcie_fatal suspect reboot"],
    "nvme_old_and_new.log": ["kernel.nvme_gone suspect manual_repair", "kernel.nvme_reset suspect manual_repair"],
    "nvme_identify.log": ["kernel.nvme_gone suspect manual_repair", "kernel.nvme_reset suspect manual_repair"],
    "nvme_abort_then_reset.log": [
        "kernel.disk_error suspect manual_repair",
        "kernel.nvme_reset suspect manual_repair",
        "kernel.nvme_slow record none",
    ],
    "nvme_down.log": ["kernel.nvme_reset suspect manual_repair"],
    "nvme_before_5_17.log": ["kernel.disk_error suspect manual_repair"],
    "mlx5_commands.log": ["kernel.adapter_failed suspect reboot"],
    "mlx5_wedged.log": ["kernel.adapter_sends_nothing suspect none", "kernel.soft_lockup suspect reboot"],
    "netdev_watchdog.log": ["kernel.adapter_sends_nothing suspect none"],
    "nfs_and_watchdog.log": ["kernel.file_server_silent suspect none"],
    "cper.log": ["kernel.firmware_uncorrected suspect reboot", "kernel.machine_check record none"],
    "mce_left_by_the_firmware.log": ["kernel.machine_check record none"],
    "edac_corrected.log": ["kernel.machine_check record none"],
    "edac_uncorrected.log": ["kernel.memory_uncorrected suspect manual_repair"],
    "xfs_shutdown.log": ["kernel.filesystem_down suspect reboot", "kernel.filesystem_error suspect reboot"],
    "md_second_disk.log": ["kernel.disk_array suspect manual_repair", "kernel.disk_error suspect manual_repair"],
    "nfs_of_a_rank.log": ["kernel.file_server_silent suspect none"],
    "loop_device_full.log": [],
    "reset_required_without_xid.log": ["kernel.gpu_reset_required drain reset_gpu"],
    "lost_at_start.log": ["gpu.lost hardware reboot"],
    "ena_lost_completions.log": ["kernel.adapter_sends_nothing suspect none"],
    "ena_watchdog_of_2_6.log": ["kernel.adapter_sends_nothing suspect none"],
    "ice_reset_during_xdp.log": ["kernel.adapter_sends_nothing suspect none"],
    "irdma_hmc_error.log": ["kernel.adapter_failed suspect reboot"],
    "irdma_hmc_error_of_several_causes.log": ["kernel.adapter_failed suspect reboot"],
    "ice_rebuild_after_firmware.log": ["kernel.adapter_failed suspect reboot"],
    "ice_rebuild_of_queues.log": ["kernel.adapter_failed suspect reboot"],
    "efa_admin_queue.log": ["kernel.adapter_failed suspect reboot"],
    "efa_not_ready_at_start.log": ["kernel.adapter_failed suspect reboot"],
    "efa_at_boot.log": [],
    "efa_built_for_other_rdma.log": [],
    "ice_watchdog.log": ["kernel.adapter_sends_nothing suspect none"],
    "bnxt_firmware_reset.log": [
        "kernel.adapter_failed suspect reboot",
        "kernel.adapter_sends_nothing suspect none",
    ],
    "bnxt_silent.log": ["kernel.adapter_failed suspect reboot", "kernel.adapter_sends_nothing suspect none"],
    "bnxt_watchdog.log": ["kernel.adapter_sends_nothing suspect none"],
    "irdma_critical.log": ["kernel.adapter_failed suspect reboot"],
    "ena_watchdog.log": ["kernel.adapter_sends_nothing suspect none"],
    "efa_of_a_process_that_ended.log": [],
    "amd_fatal.log": ["kernel.machine_check_uncorrected suspect manual_repair"],
    "amd_sync_flood.log": ["kernel.machine_check_uncorrected suspect manual_repair"],
    "amd_at_boot.log": [
        "kernel.machine_check record none",
        "kernel.machine_check_uncorrected suspect manual_repair",
    ],
    "gpu_power_state.log": [
        "gpu.lost hardware reboot",
        "kernel.pcie_fatal_gpu suspect reboot",
        "xid.79 hardware reboot",
    ],
    "nvme_power_state.log": ["kernel.nvme_gone suspect manual_repair", "kernel.nvme_reset suspect manual_repair"],
    "sxid_cut.log": ["sxid.22013 record none"],
    "sxid_data_alone.log": ["sxid.12028 drain reboot"],
    "xid94_of_an_unknown_process.log": ["xid.31 application restart_app", "xid.94 application restart_app"],
}
"""File → rule, class and repair of each line that means something."""


@pytest.mark.parametrize("file", RIGHT)
def test_a_log_of_another_site_is_judged_right(file: str) -> None:
    lines = (WORLD / "kernel" / file).read_text().splitlines()
    record: Any = as_record(analyze(collect(text_records(lines), 1.8e9, 180.0), b.config()))
    shown = [one for node in record["nodes"] for one in (*node["events"], *node["others"])]
    assert sorted({f"{one['rule']} {one['class']} {one['repair']}" for one in shown}) == RIGHT[file]


def test_every_log_is_judged() -> None:
    assert {path.name for path in (WORLD / "kernel").iterdir()} == RIGHT.keys()
