"""The GPUs that this node must have, and what the samples of the last minutes show together. Pure but for
`HardwareHistory`.

NVML shows the GPUs of this moment. A GPU that it no longer lists, or can no longer name, is known from the GPUs seen
before in this boot. A GPU that was reset comes back with the same uuid and is no longer reported as missing.
"""

from __future__ import annotations

from msgspec.structs import replace

from understudy_agent.sample.hardware_history import HardwareHistory
from understudy_agent.sample.nvml_sample import NvmlSample
from understudy_agent.sample.recent import Growth, Share
from understudy_wire.hardware import Gpu, GpuStatus
from understudy_wire.values import TEXT_CHARACTERS_MAX

HARDWARE_SLOWDOWN = 0x08 | 0x40 | 0x80
"""nvmlClocksEventReason bits: slowdown by the hardware, because of heat or its power supply."""


class GpuHistory:
    def __init__(self, hardware: HardwareHistory) -> None:
        self._hardware = hardware
        self._missing_since: dict[str, float] = {}
        self.slowed = Share()
        """Uuid → whether the GPU was slowed by its hardware."""
        self._replays = Growth()
        self._link_errors = Growth()

    def add(self, sample: NvmlSample, now: float) -> NvmlSample:
        """The sample with all GPUs that were seen in this boot. `now` is of a monotonic clock."""
        if sample.error:
            gpus = [self._unreadable(gpu, sample.error) for gpu in self._hardware.seen.gpus.values()]
            return replace(sample, gpus=tuple(gpus), problems=(*sample.problems, sample.error))
        listed = self._named(sample.gpus)
        for gpu in listed:
            if gpu.uuid and gpu.status is GpuStatus.OK:
                self._remember(gpu)
        listed = [self._with_history(gpu, now) for gpu in listed]
        listed += self._missing(listed, now)
        self._hardware.save()
        return replace(sample, gpus=tuple(listed))

    def unanswered(self, sample: NvmlSample, problem: str) -> NvmlSample:
        """The same GPUs, without readings."""
        gpus = sample.gpus or tuple(self._hardware.seen.gpus.values())
        return replace(sample, gpus=tuple(self._unreadable(gpu, problem) for gpu in gpus), problems=(problem,))

    def _named(self, gpus: tuple[Gpu, ...]) -> list[Gpu]:
        """A GPU that NVML cannot name is the one that was at its index, unless NVML lists that one elsewhere."""
        there = {gpu.uuid for gpu in gpus}
        before = {gpu.index: gpu for gpu in self._hardware.seen.gpus.values() if gpu.uuid not in there}
        return [
            replace(before[gpu.index], status=gpu.status, error=gpu.error)
            if not gpu.uuid and gpu.index in before
            else gpu
            for gpu in gpus
        ]

    def _remember(self, gpu: Gpu) -> None:
        seen = self._hardware.seen
        new = Gpu(gpu.index, GpuStatus.OK, gpu.uuid, gpu.bus_id, gpu.serial, gpu.name, mig_mode=gpu.mig_mode)
        before = [one for one in seen.gpus.values() if one.bus_id == gpu.bus_id and gpu.bus_id]
        for old in before:
            if old.uuid != gpu.uuid or (old.serial and gpu.serial and old.serial != gpu.serial):
                seen.replaced[gpu.uuid] = old.uuid
                del seen.gpus[old.uuid]
        seen.gpus[gpu.uuid] = new
        if gpu.nvlinks is not None:
            seen.nvlinks[gpu.uuid] = max(gpu.nvlinks, seen.nvlinks.get(gpu.uuid, 0))

    def _with_history(self, gpu: Gpu, now: float) -> Gpu:
        uuid, reasons = gpu.uuid, gpu.clock_event_reasons
        if not uuid or gpu.status is not GpuStatus.OK:
            return gpu
        return replace(
            gpu,
            slowed_share_recent=None
            if reasons is None
            else self.slowed.add(uuid, now, bool(reasons & HARDWARE_SLOWDOWN)),
            pcie_replays_recent=self._replays.add(uuid, now, gpu.pcie_replays),
            nvlink_errors_recent=self._link_errors.add(uuid, now, gpu.nvlink_errors),
            # A GPU in MIG mode uses no links.
            nvlinks_max=None if gpu.nvlinks is None or gpu.mig_mode else self._hardware.seen.nvlinks[uuid],
            replaced_uuid=self._hardware.seen.replaced.get(uuid, ""),
        )

    def _missing(self, listed: list[Gpu], now: float) -> list[Gpu]:
        """GPUs that NVML no longer lists, at their old index where no other GPU has it."""
        there = {gpu.uuid for gpu in listed}
        absent = [gpu for uuid, gpu in self._hardware.seen.gpus.items() if uuid not in there]
        self._missing_since = {gpu.uuid: self._missing_since.get(gpu.uuid, now) for gpu in absent}
        taken = {gpu.index for gpu in listed}
        missing = []
        for gpu in absent:
            index = next(i for i in (gpu.index, *range(len(taken) + 1)) if i not in taken)
            taken.add(index)
            missing.append(
                replace(
                    gpu,
                    index=index,
                    status=GpuStatus.MISSING,
                    error=f"NVML lists {len(listed)} GPUs and this one is not among them",
                    missing_seconds=now - self._missing_since[gpu.uuid],
                )
            )
        return missing

    @staticmethod
    def _unreadable(gpu: Gpu, error: str) -> Gpu:
        bare = Gpu(gpu.index, GpuStatus.UNREADABLE, gpu.uuid, gpu.bus_id, gpu.serial, gpu.name, mig_mode=gpu.mig_mode)
        return replace(bare, error=error[:TEXT_CHARACTERS_MAX])
