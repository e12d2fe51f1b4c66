"""Lines of drivers and kernels, by row of the policy: made from their own format strings, with the prefixes that their
print functions add. Read in NVIDIA's open driver 535, 550, 570, 580, 590 and 595, and in Linux 5.14, 5.15, 6.1, 6.8,
6.12 and 6.19; a comment names the releases of a spelling that not all of them have.
"""

from __future__ import annotations

SUSPECT, RECORD, DRAIN, PROGRAM = "suspect", "record", "drain", "application"

MLX5, ETH = "mlx5_core 0000:1a:00.0", "mlx5_core 0000:1a:00.0 ens1f0np0"

LINES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "gpu_not_initialised": (SUSPECT, "reboot", (
        "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0xffff:1863)",
        "NVRM: RmInitAdapter failed! (0x26:0xffff:1290)",  # before 515
        "NVRM: GPU6 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
        "NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",  # 535, 550
        "NVRM: GPU0 nvAssertFailedNoLog: Assertion failed: Failed to boot GSP @ kernel_gsp_gh100.c:1023",
        "NVRM: GPU0 kgspBootstrap_TU102: Failed to boot GSP.",
        "NVRM: GPU0 _kgspBootGspRm: Max GSP-RM boot attempts exceeded: 3/3",  # 580 on
    )),
    "gpu_power": (SUSPECT, "manual_repair", (
        "NVRM: GPU 0000:1b:00.0: GPU does not have the necessary power cables connected.",
    )),
    "gpu_lost": (DRAIN, "reboot", (
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) "
        "returned from rmStatus @ kernel_ce_gv100.c:106",
        "NVRM: GPU3 nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) "
        "returned from kgspWaitForRmInitDone(pGpu, pKernelGsp) @ kernel_gsp_gh100.c:1107",
        "NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x0000000f for fn 76!",
        "NVRM: GPU0 _issueRpcAndWait: rpcRecvPoll failed with status 0x0000000f for fn 76 sequence 4129!",
    )),
    "gpu_reset_required": (DRAIN, "reset_gpu", (
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned "
        "from pRmApi->Control(pRmApi, hClient) @ gpu.c:1",
        "NVRM: nvAssertFailedNoLog: Assertion failed: Back to back GSP RPC timeout detected! GPU marked for reset @ "
        "kernel_gsp.c:2387",  # 570 to 590
        "NVRM: GPU0 nvAssertFailedNoLog: Assertion failed: GPU marked for reset @ kernel_gsp.c:2411",  # 595
    )),
    "gpu_locked": (SUSPECT, "reset_gpu", (
        "NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7",
        "NVRM: GPU0 krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7",
        "nvidia-modeset: ERROR: GPU:0: Error while waiting for GPU progress: 0x0000c67d:0 2:0:4048:4040",
    )),
    "gsp_silent": (SUSPECT, "reset_gpu", (
        "NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out",
        "NVRM: GPU1 _kgspRpcRecvPoll: LibOS heartbeat timed out",
        "NVRM: GPU0 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 8120 heartbeat 18",  # 595 on
        "NVRM: GPU0 _kgspLogRpcHistory: =============== GSP-RM unresponsive ==================",
        "NVRM: GPU0 _kgspLogRpcHistory: ================ GSP core unresponsive ===============",
        "NVRM: _issueRpcAndWait: rpcRecvPoll timedout for fn 76 sequence 4129!",  # 570 on
        "NVRM: GPU0 _kgspLogRpcSanityCheckFailure: GPU0 sanity check failed 0xf waiting for RPC response from GSP. "
        "Expected function 76 (GSP_RM_CONTROL) sequence 12 (0x20800a4c 0x4).",
        "NVRM: _kgspLogRpcSanityCheckFailure: GPU0 sanity check failed 0xf waiting for RPC response from GSP. "
        "Expected function 76 (GSP_RM_CONTROL) (0x20800a4c 0x4).",  # 535, 550
    )),
    "uvm_fatal": (DRAIN, "reboot", (
        "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
        "NVRM: GPU0 nvGpuOpsReportFatalError: uvm encountered global fatal error 0xf, requiring os reboot to recover.",
        "nvidia-uvm: uvm_global.c:425 uvm_global_set_fatal_error_impl[pid:12] Encountered a global fatal error: RM",
        "nvidia-uvm: uvm_global.c:410 Encountered a global fatal error: NV_ERR_ECC",
    )),
    "nvlink_degraded": (SUSPECT, "reset_gpu", (
        "NVRM: GPU2 knvlinkFatalErrorRecovery_WORKITEM: Failed to recover from uncontained NVLINK error. Triggering "
        "Degraded Mode!",  # 570 on
        "NVRM: GPU2 gpuFabricProbeGetfmCaps: Fabric Probe failed: 0x40",  # 550 on
    )),
    "nvswitch": (RECORD, "none", (
        "nvidia-nvswitch3: a fatal Error",
        "nvidia-nvswitch: unrecoverable error in ISR",
    )),
    "pcie_fatal_gpu": (SUSPECT, "reboot", (
        "nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
        "nvidia 0000:1b:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered",
        "nvidia 0000:1b:00.0: not ready 65535ms after bus reset; giving up",
    )),
    "pcie_fatal_adapter": (SUSPECT, "reboot", (
        "mlx5_core 0000:1a:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)",
        "bnxt_en 0000:3b:00.1: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer, (Receiver ID)",
        "efa 0000:4f:00.0: not ready 60000ms after FLR; giving up",
    )),
    "pcie_fatal": (SUSPECT, "reboot", (
        "pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0",  # before 6.8
        "pcieport 0000:16:01.0: AER: Multiple Uncorrectable (Fatal) error message received from 0000:17:00.0",
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
        "nvme 10000:e1:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Physical Layer, (Receiver ID)",
        "pcieport 0000:00:03.0: AER: device recovery failed",
        "pcieport 0000:00:03.0: AER: subordinate device reset failed",
    )),
    "pcie_contained": (SUSPECT, "reboot", (
        "pcieport 0000:16:01.0: DPC: containment event, status:0x1f01 source:0x0000",  # before 6.19
        "pcieport 0000:16:01.0: DPC: containment event, status:0x1f01: unmasked uncorrectable error detected",
        "pcieport 0000:16:01.0: pciehp: Slot(12-1): Link Down",
        "pcieport 0000:16:01.0: pciehp: Slot(3): Card not present",
        "pcieport 0000:16:01.0: pciehp: Slot(3): Power fault",
    )),
    "adapter_failed": (SUSPECT, "reboot", (
        f"{MLX5}: poll_health:825:(pid 0): Fatal error 3 detected",
        f"{MLX5}: poll_health:974:(pid 0): device's health compromised - reached miss count",
        f"{MLX5}: mlx5_health_try_recover:335:(pid 88): health recovery flow aborted, PCI reads still not working",
        f"{MLX5}: mlx5_fw_fatal_reporter_err_work:655:(pid 88): health recovery failed",
        f"{MLX5}: print_health_info:430:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:",
        f"{MLX5}: print_health_info:430:(pid 0): Health issue observed, HW fatal error\\x0a, severity(1) ALERT:",
        f"{MLX5}: wait_fw_init:200:(pid 9): Firmware over 120000 MS in pre-initializing state, aborting",
        f"{MLX5}: mlx5_pci_link_toggle:300:(pid 9): Firmware is not responsive (0xffff) after 5000 ms",  # 6.1 on
        f"{MLX5}: wait_func:1132:(pid 141181): CREATE_DCT(0x710) timeout. Will cause a leak of a command resource",
        f"{MLX5}: cb_timeout_handler:980:(pid 4): cmd[3]: ACCESS_REG(0x805) Async, timeout. Will cause a leak of a "
        "command resource",
        f"{MLX5}: wait_func:1120:(pid 7): QUERY_VPORT_STATE(0x750) canceled on out of queue timeout.",
        f"{MLX5}: wait_func:1200:(pid 7): ACCESS_REG(0x805) timed out while waiting for a slot.",  # 6.12 on
        f"{MLX5}: cmd_exec:1900:(pid 7): ACCESS_REG(0x805) timeout while waiting for command semaphore.",  # 6.12 on
        "bnxt_en 0000:3b:00.0 ens1f0: Firmware not responding, status: 0x30000",
        "bnxt_en 0000:3b:00.0 ens1f0: Detected firmware fatal condition, initiating reset",
        "bnxt_en 0000:3b:00.0 ens1f0: Firmware reset aborted, rc = -19",
        "bnxt_en 0000:3b:00.0 ens1f0: Firmware fatal reset event, data1: 0x1, data2: 0x2, min wait 1 ms",  # 5.14, 5.15
        "bnxt_en 0000:3b:00.0 ens1f0: Fatal firmware reset event, data1: 0x1, data2: 0x2, min wait 1 ms",  # 6.1 on
        "bnxt_en 0000:3b:00.0 eth0 (uninitialized): Error (timeout: 5000) msg {0x0 0x1} len:0",
        "efa 0000:4f:00.0 rdmap79s0: The device didn't send any completion for admin cmd CREATE_QP(1) status 0",
        "efa 0000:4f:00.0 rdmap79s0: Reading register timed out. expected: req id[1] offset[0x4] actual: req id[0]",
        "efa 0000:4f:00.0 rdmap79s0: Wait for completion (polling) timeout",
        "ice 0000:31:00.0 rocep49s0: critical PE Error, GLPE_CRITERR=0x00000100",  # before 6.19
        "ice 0000:31:00.0 ens2f0: tx_timeout recovery unsuccessful, device is in unrecoverable state.",
        "ice 0000:31:00.0: ice_pci_err_detected: unrecoverable device error 5",
        "ice 0000:31:00.0: ice_pci_err_resume failed, device is unrecoverable",
    )),
    "adapter_sends_nothing": (SUSPECT, "none", (
        f"{ETH}: TX timeout detected",
        "bnxt_en 0000:3b:00.0 ens1f0: TX timeout detected, starting reset task!",
        "ice 0000:31:00.0 ens2f0: tx_timeout: VSI_num: 12, Q 3, NTC: 0x1, HW_HEAD: 0x1, NTU: 0x2, INT: 0x0",
        "ena 0000:00:05.0 ens5: Keep alive watchdog timeout.",
        "ena 0000:00:05.0 ens5: The number of lost tx completions is above the threshold (129 > 128). Reset the device",
        "ena 0000:00:05.0 ens5: Lost TX completions are above the threshold (129 > 128). Completion transmission",
        f"{ETH}: NETDEV WATCHDOG: CPU: 3: transmit queue 5 timed out 5012 ms",  # 6.8 on
        "NETDEV WATCHDOG: ens1f0np0 (mlx5_core): transmit queue 5 timed out",  # before 6.8
    )),
    "adapter_power": (SUSPECT, "manual_repair", (
        f"{MLX5}: mlx5_pcie_event:301:(pid 0): Detected insufficient power on the PCIe slot (27W).",
        f"{MLX5}: Detected insufficient power on the PCIe slot (27W).",
    )),
    "adapter_module": (SUSPECT, "manual_repair", (
        f"{MLX5}: port_module:255:(pid 0): Port module event[error]: module 0, Cable error, High Temperature",
        f"{MLX5}: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)",
    )),
    "overheated": (SUSPECT, "manual_repair", (
        f"{MLX5}: temp_warn:100:(pid 0): High temperature on sensors with bit set 0 1",
        f"{MLX5}: temp_warn:100:(pid 0): High temperature on sensors with bit set 0 0x1.",  # 6.19
        "thermal thermal_zone0: x86_pkg_temp: critical temperature reached, shutting down",  # before 6.8
        "thermal thermal_zone0: acpitz: critical temperature reached",
    )),
    "processor_hot": (RECORD, "none", (
        "CPU12: Package temperature is above threshold, cpu clock is throttled (total events = 5)",
        "mce: CPU12: Core temperature above threshold, cpu clock throttled (total events = 5)",  # 4.18
    )),
    "machine_check_uncorrected": (SUSPECT, "manual_repair", (
        "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: be00000000800400",
        "mce: [Hardware Error]: CPU 40: Machine Check: 0 Bank 13: fc00000000010092",
        "[Hardware Error]: Uncorrected, software restartable error.",
        "[Hardware Error]: Uncorrected, software containable error.",
        "[Hardware Error]: System Fatal error.",
    )),
    "machine_check": (RECORD, "none", (
        "mce: [Hardware Error]: Machine check events logged",
        "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 4: 9c00400001000091",
        "mce: [Hardware Error]: Fake kernel panic: Fatal machine check",
        "[Hardware Error]: Corrected error, no action required.",
        "[Hardware Error]: Deferred error, no action required.",
        "{37}[Hardware Error]: event severity: corrected",
    )),
    "memory_uncorrected": (SUSPECT, "manual_repair", (
        "mce: Uncorrected hardware memory error in user-access at 7f3c00000000",
        "mce: Kernel accessed poison in user space at 7f3c00000000",  # 6.1 on
        "Memory failure: 0x1234: recovery action for dirty LRU page: Recovered",
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0xe16677 "
        "offset:0x0 grain:32 -  err_code:0000:009f)",
        "EDAC MC0: 1 UE on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1 offset:0x0)",
        "EDAC MC0: 1 UE Multi-bit ECC on unknown memory (node:0 card:0 module:0 page:0x1 offset:0x0 grain:1)",
    )),
    "firmware_uncorrected": (SUSPECT, "reboot", (
        "{3}[Hardware Error]: event severity: fatal",
        "{3}[Hardware Error]: event severity: recoverable",
    )),
    "firmware_before_boot": (RECORD, "none", ("[Hardware Error]: event severity: fatal",)),
    "hung_task": (RECORD, "none", (
        "INFO: task python:1234 blocked for more than 120 seconds.",
        "INFO: task python:1234 <writer> blocked for more than 120 seconds.",
        "INFO: task python:1234 blocked in I/O wait for more than 120 seconds.",
    )),
    "soft_lockup": (SUSPECT, "reboot", ("watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [python:1234]",)),
    "hard_lockup": (SUSPECT, "reboot", (
        "watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3",  # 6.19
        "watchdog: Watchdog detected hard LOCKUP on cpu 3",  # 6.8, 6.12
        "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3",  # before 6.8
    )),
    "rcu_stall": (RECORD, "none", (
        "rcu: INFO: rcu_sched self-detected stall on CPU",
        "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 1-... } 21 jiffies s: 1 root: 0x2/.",
        "rcu: INFO: rcu_sched detected stall, but suppressed full report due to a stuck CSD-lock.",  # 6.12 on
    )),
    "nvme_slow": (RECORD, "none", (
        "nvme nvme1: I/O 775 QID 2 timeout, aborting",  # 5.14, 5.15
        "nvme nvme0: I/O 900 (I/O Cmd) QID 2 timeout, aborting",  # 6.1
        "nvme nvme0: I/O tag 3 (1003) opcode 0x2 (Read) QID 2 timeout, aborting req_op:READ(0) size:4096",  # 6.8 on
    )),
    "nvme_reset": (SUSPECT, "manual_repair", (
        "nvme nvme0: controller is down; will reset: CSTS=0xffffffff",
        "nvme nvme0: controller is down; will reset: CSTS=0x3, PCI_STATUS=0x10",
        "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS read failed (135)",
        "nvme nvme0: I/O 23 QID 4 timeout, reset controller",  # before 6.8
        "nvme nvme2: I/O 0 QID 0 timeout, disable controller",  # before 6.8
        "nvme nvme0: I/O 12 (Write Zeroes) QID 3 timeout, reset controller",
        "nvme nvme2: I/O tag 113 (1071) opcode 0x2 (Read) QID 7 timeout, reset controller",  # 6.8 on
        "nvme nvme0: I/O tag 28 (401c) QID 0 timeout, disable controller",  # 6.8 on
        "nvme nvme0: frozen state error detected, reset controller",
        "nvme nvme0: resetting controller due to AER",  # 5.15 to 6.8
        "nvme nvme0: resetting controller due to persistent internal error",  # 6.12 on
    )),
    "nvme_gone": (SUSPECT, "manual_repair", (
        "nvme nvme0: Disabling device after reset failure: -19",  # 6.8 on
        "nvme nvme2: Removing after probe failure status: -19",  # before 6.8
        "nvme nvme2: Device not ready; aborting reset, CSTS=0x1",
        "nvme nvme2: Device not ready; aborting initialisation, CSTS=0x0",
        "nvme nvme2: Device not ready; aborting reset",  # 4.8
        "nvme nvme0: failure state error detected, request disconnect",
    )),
    "disk_error": (SUSPECT, "manual_repair", (
        "blk_update_request: I/O error, dev nvme0n1, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1",  # 5.14, 5.15
        "blk_update_request: critical medium error, dev sda, sector 14008336 op 0x0:(READ) flags 0x0",
        "I/O error, dev nvme0n1, sector 1336320 op 0x0:(READ) flags 0x80700 phys_seg 4 prio class 2",  # 6.1 on
        "critical medium error, dev sda, sector 14008336 op 0x0:(READ) flags 0x0 phys_seg 64 prio class 2",
        "Buffer I/O error on dev nvme0n1, logical block 0, async page read",
    )),
    "disk_array": (SUSPECT, "manual_repair", (
        "md/raid1:md0: Disk failure on sdb6, disabling device.\\x0amd/raid1:md0: Operation continuing on 1 devices.",
        "md/raid:md2: Disk failure on sdb6, disabling device.",
        "md/raid:md2: Cannot continue operation (2/4 failed).",  # 5.15 on
        "md/raid0md0: Disk failure on nvme1n1 detected, failing array.",  # 5.15 on
        "md/raid10:md127: nvme2n1: unrecoverable I/O read error for block 1234",
        "md/raid:md2: not enough operational devices (2/4 failed)",
    )),
    "filesystem_error": (SUSPECT, "reboot", (
        "EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm python: reading directory lblock 0",
        "EXT4-fs error (device nvme0n1p2) in ext4_reserve_inode_write:5777: IO failure",
        'XFS (vda4): metadata I/O error in "xfs_dquot_disk_read+0x14a/0x220 [xfs]" at daddr 0x1478 len 8 error 74',
        "XFS (vda4): Metadata CRC error detected at xfs_dquot_buf_verify_crc+0xe6/0x120 [xfs], xfs_dquot block 0x1478",
        "XFS (dm-4): Internal error xfs_iunlink_remove at line 2038 of file fs/xfs/xfs_inode.c.  Caller xfs_ifree",
        "XFS (dm-4): log I/O error -5",
        "JBD2: Detected IO errors while flushing file data on nvme0n1p2-8",
        "JBD2: I/O error when updating journal superblock for nvme0n1p2-8.",  # 6.1 on
    )),
    "filesystem_down": (SUSPECT, "reboot", (
        "EXT4-fs (nvme0n1p2): Remounting filesystem read-only",
        "Aborting journal on device nvme0n1p2-8.",
        "XFS (sda1): Log I/O error (0x2) detected at xlog_ioend_work+0x6e/0x70 [xfs] (fs/xfs/xfs_log.c:1378). Shutting "
        "down filesystem",  # 5.14
        "XFS (sdb1): Log I/O Error (0x2) detected at xlog_ioend_work+0x6e/0x70 [xfs] (fs/xfs/xfs_log.c:1378).  "
        "Shutting down filesystem.",
        "XFS (nvme0n1p1): Corruption of in-memory data (0x8) detected at xfs_trans_cancel.isra.0+0x12b/0x150 [xfs] "
        "(fs/xfs/xfs_trans.c:1098).  Shutting down filesystem.",
        "XFS (dm-0): Corruption of in-memory data detected.  Shutting down filesystem",
        "XFS (dm-1): I/O Error Detected. Shutting down filesystem",
        "XFS (dm-1): Log I/O Error Detected. Shutting down filesystem",
        "XFS (dm-0): Filesystem has been shut down due to log error (0x2).",  # 6.1 on
    )),
    "file_server_silent": (SUSPECT, "none", (
        "nfs: server 192.168.0.1 not responding, still trying",
        "nfs: server nas-01.example.org not responding, timed out",
        "lockd: server fd00::12 not responding, still trying",
    )),
    "rank_out_of_memory": (PROGRAM, "restart_app", (
        "Memory cgroup out of memory: Killed process 42 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB",
    )),
    "host_out_of_memory": (PROGRAM, "restart_app", (
        "Out of memory: Killed process 42 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB",
        "Out of memory (oom_kill_allocating_task): Killed process 42 (python) total-vm:1kB, anon-rss:1kB",
    )),
}  # fmt: skip
"""Row → class, repair, spellings."""

NOTHING = [
    "XFS (dm-0): Mounting V5 Filesystem",
    "INFO: task one",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build",
    "NVRM: GPU0 kbifCacheVFInfo_GB100: Unable to read NV_PF0_INITIAL_AND_TOTAL_VFS",
    "NVRM: GPU0 nvAssertFailedNoLog: Assertion failed: (status == NV_OK) || (status == NV_ERR_GPU_IS_LOST) @ mem.c:178",
    "NVRM: GPU0 _kgspLogRpcHistory: =================== GSP-RM is slow ===================",
    "NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x00000062 for fn 76!",
    f"{MLX5}: cmd_comp_notifier:1:(pid 0): cmd[3]: ACCESS_REG(0x805) recovered after timeout",
    f"{MLX5}: print_health_info:430:(pid 0): Health issue observed, unrecognized error, severity(5) NOTICE:",
    f"{MLX5}: Port module event: module 0, Cable unplugged",
    "NETDEV WATCHDOG: eth0 (igb): transmit queue 5 timed out",  # no adapter of a training fabric
    "pcieport 0000:16:01.0: pciehp: Slot(3): Link Down/Up ignored (recovered by DPC)",
    "pcieport 0000:16:01.0: pciehp: Slot(3): Card present",
    "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
    "nvidia 0000:1b:00.0: AER: can't recover (no error_detected callback)",
    "EDAC MC1: 1 CE memory scrubbing error on CPU_SrcID#1_Ha#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0xee30a0)",
    "EDAC MC0: 1 UE FAKE ERROR on any memory (channel:0 page:0x0 offset:0x0 grain:0 for EDAC testing only)",
    "Machine check injector initialized",
    "pcieport 0000:00:01.0: aer_inject: Injecting errors 00000000/00040000 into device 0000:01:00.0",
    "Memory failure: 0x1234: already hardware poisoned",
    "nvme nvme0: I/O 12 QID 3 timeout, completion polled",  # an interrupt was lost, not a command
    "nvme nvme0: Device not ready; aborting shutdown, CSTS=0x1",
    "blk_update_request: operation not supported error, dev nvme0n1, sector 0 op 0x3:(DISCARD) flags 0x800",
    "I/O error, dev loop1, sector 1314944 op 0x1:(WRITE) flags 0x0 phys_seg 2 prio class 2",
    "I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
    "Buffer I/O error on device loop1, logical block 164368",
    "Buffer I/O error on device dm-4, logical block 2920458",  # a user's encrypted image, or a disk with its own line
    "Buffer I/O error on dev rbd0, logical block 0, async page read",
    "EXT4-fs error (device loop1): ext4_check_bdev_write_error:217: comm rs:main: Error while async write back",
    "nfs: server 192.168.0.1 OK",
]
"""Lines like those above that show no fault, or none of the node."""
