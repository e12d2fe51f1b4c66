"""Metrics with a series for each GPU; in a large fleet, for those that are not well."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from understudy_controlplane.api.exported.metric import Metric, Sample, escaped
from understudy_controlplane.api.exported.source import Source
from understudy_wire.hardware import Gpu, GpuStatus


def _of_gpus(value: Callable[[Gpu], float | None]) -> Callable[[Source], Iterator[Sample]]:
    def samples(source: Source) -> Iterator[Sample]:
        for labels, _node, gpu in source.gpus:
            found = value(gpu)
            if found is not None:
                yield labels, found

    return samples


def _gpu_info(source: Source) -> Iterator[Sample]:
    for labels, node, gpu in source.gpus:
        yield (
            f'{labels[:-1]},uuid="{escaped(gpu.uuid)}",pci_bus_id="{escaped(gpu.bus_id)}",'
            f'model="{escaped(gpu.name)}",driver_version="{escaped(node.driver_version)}"}}',
            1.0,
        )


def _gpu(name: str, documentation: str, value: Callable[[Gpu], float | None], dcgm: str = "") -> Metric[Source]:
    return Metric(name, documentation, _of_gpus(value), ("node", "gpu"), "GPUs", dcgm=dcgm)


GPUS: tuple[Metric[Source], ...] = (
    Metric(
        "gpu_info",
        "1; what the GPU is.",
        _gpu_info,
        ("node", "gpu", "uuid", "pci_bus_id", "model", "driver_version"),
        "GPUs",
    ),
    _gpu("gpu_ok", "1 while NVML answers for the GPU.", lambda g: g.status is GpuStatus.OK),
    _gpu("gpu_temperature_celsius", "Temperature.", lambda g: g.temperature_celsius, "DCGM_FI_DEV_GPU_TEMP"),
    _gpu("gpu_power_watts", "Power.", lambda g: g.power_watts, "DCGM_FI_DEV_POWER_USAGE"),
    _gpu("gpu_sm_clock_megahertz", "Clock of the SMs.", lambda g: g.sm_clock_mhz, "DCGM_FI_DEV_SM_CLOCK"),
    _gpu("gpu_utilization_percent", "Utilization.", lambda g: g.utilization_percent, "DCGM_FI_DEV_GPU_UTIL"),
    _gpu("gpu_memory_used_bytes", "Memory in use.", lambda g: g.memory_used_bytes, "DCGM_FI_DEV_FB_USED, in MiB"),
    _gpu(
        "gpu_clock_event_reasons",
        "Bit mask of NVML: why clocks are lower.",
        lambda g: g.clock_event_reasons,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
    ),
    _gpu(
        "gpu_slowed_share",
        "Share of the samples of ten minutes with a slowdown that hardware asked for.",
        lambda g: g.slowed_share_recent,
    ),
    _gpu(
        "gpu_power_violation_seconds",
        "How long clocks were held down by the power limit.",
        lambda g: g.power_violation_seconds,
        "DCGM_FI_DEV_POWER_VIOLATION, in microseconds",
    ),
    _gpu(
        "gpu_thermal_violation_seconds",
        "How long clocks were held down by temperature.",
        lambda g: g.thermal_violation_seconds,
        "DCGM_FI_DEV_THERMAL_VIOLATION, in microseconds",
    ),
    _gpu(
        "gpu_ecc_uncorrected",
        "Uncorrected memory errors since the driver was loaded.",
        lambda g: g.ecc_uncorrected,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    ),
    _gpu(
        "gpu_ecc_corrected",
        "Corrected memory errors since the driver was loaded.",
        lambda g: g.ecc_corrected,
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    ),
    _gpu(
        "gpu_remapped_rows_uncorrectable",
        "Rows remapped for uncorrectable errors.",
        lambda g: g.remapped_rows_uncorrectable,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    ),
    _gpu(
        "gpu_remapped_rows_pending",
        "1 while a remapping waits for a reset.",
        lambda g: g.remapped_rows_pending,
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
    ),
    _gpu(
        "gpu_remapped_rows_failed",
        "1 where a remapping has failed.",
        lambda g: g.remapped_rows_failed,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    ),
    _gpu("gpu_retired_pages", "Retired pages of memory, of GPUs before Ampere.", lambda g: g.retired_pages),
    _gpu("gpu_retired_pages_pending", "1 while pages wait for a reset.", lambda g: g.retired_pages_pending),
    _gpu("gpu_recovery_action", "What the driver asks for (NVML field 230); 0: nothing.", lambda g: g.recovery_action),
    _gpu("gpu_pcie_replays", "PCIe replays.", lambda g: g.pcie_replays, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
    _gpu("gpu_pcie_width", "PCIe lanes in use.", lambda g: g.pcie_width, "DCGM_FI_DEV_PCIE_LINK_WIDTH"),
    _gpu("gpu_nvlinks", "NVLinks that are up.", lambda g: g.nvlinks),
    _gpu(
        "gpu_nvlink_errors",
        "Errors of all NVLinks that are up, or of their ports.",
        lambda g: g.nvlink_errors,
    ),
)
