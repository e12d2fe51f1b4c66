"""Which GPUs there ought to be, and what the pictures of the last minutes say together. Pure but for `Memory`.

NVML shows the GPUs of this moment. One that it does not list any more, or that it can no longer name, is told here from
those seen before in this boot. A GPU that is reset comes back with the same uuid, and nothing remains of its absence.
"""

from __future__ import annotations

from msgspec.structs import replace

from understudy_agent.sample.hardware_history import Memory
from understudy_agent.sample.nvml_sample import Picture
from understudy_agent.sample.recent import Growth, Share
from understudy_agent.wire import TEXT_CHARACTERS_MAX, Gpu, GpuStatus

HARDWARE_SLOWDOWN = 0x08 | 0x40 | 0x80
"""nvmlClocksEventReason bits: slowdown that the hardware asked for, by heat or by its supply."""


class GpuHistory:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._missing_since: dict[str, float] = {}
        self._slowed = Share()
        self._replays = Growth()
        self._link_errors = Growth()

    def add(self, picture: Picture, now: float) -> Picture:
        """The picture with all GPUs that were ever seen in this boot. `now` is of a clock that is never set."""
        if picture.error:
            gpus = [self._silent(gpu, picture.error) for gpu in self._memory.seen.gpus.values()]
            return replace(picture, gpus=tuple(gpus), problems=(*picture.problems, picture.error))
        listed = self._named(picture.gpus)
        for gpu in listed:
            if gpu.uuid and gpu.status is GpuStatus.OK:
                self._remember(gpu)
        listed = [self._with_history(gpu, now) for gpu in listed]
        listed += self._missing(listed, now)
        self._memory.save()
        return replace(picture, gpus=tuple(listed))

    def silent(self, picture: Picture, problem: str) -> Picture:
        """The same GPUs, of which nothing is known just now."""
        gpus = picture.gpus or tuple(self._memory.seen.gpus.values())
        return replace(picture, gpus=tuple(self._silent(gpu, problem) for gpu in gpus), problems=(problem,))

    def _named(self, gpus: tuple[Gpu, ...]) -> list[Gpu]:
        """A GPU that NVML cannot name is the one that was at its index, unless that one is elsewhere now."""
        there = {gpu.uuid for gpu in gpus}
        before = {gpu.index: gpu for gpu in self._memory.seen.gpus.values() if gpu.uuid not in there}
        return [
            replace(before[gpu.index], status=gpu.status, error=gpu.error)
            if not gpu.uuid and gpu.index in before
            else gpu
            for gpu in gpus
        ]

    def _remember(self, gpu: Gpu) -> None:
        seen = self._memory.seen
        new = Gpu(gpu.index, GpuStatus.OK, gpu.uuid, gpu.bus_id, gpu.serial, gpu.name)
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
            else self._slowed.add(uuid, now, bool(reasons & HARDWARE_SLOWDOWN)),
            pcie_replays_recent=self._replays.add(uuid, now, gpu.pcie_replays),
            nvlink_errors_recent=self._link_errors.add(uuid, now, gpu.nvlink_errors),
            nvlinks_max=None if gpu.nvlinks is None else self._memory.seen.nvlinks[uuid],
            replaced_uuid=self._memory.seen.replaced.get(uuid, ""),
        )

    def _missing(self, listed: list[Gpu], now: float) -> list[Gpu]:
        """GPUs that NVML no longer lists; at their old index where no other GPU has it."""
        there = {gpu.uuid for gpu in listed}
        absent = [gpu for uuid, gpu in self._memory.seen.gpus.items() if uuid not in there]
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
    def _silent(gpu: Gpu, error: str) -> Gpu:
        bare = Gpu(gpu.index, GpuStatus.UNREADABLE, gpu.uuid, gpu.bus_id, gpu.serial, gpu.name)
        return replace(bare, error=error[:TEXT_CHARACTERS_MAX])
