"""The counters of GPU memory over a week, of those GPUs that have any errors. In memory: a control plane that starts
learns them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from understudy_controlplane.fleet.gpu import WearSample
from understudy_wire.hardware import Gpu

SAMPLE_SECONDS = 5 * 3600.0
SAMPLES_MAX = 34
"""A week and a little, at one about every five hours."""

GREW_MIN = 100
"""Corrected errors in all samples together: a GPU with fewer is not looked at each round."""

GPUS_MAX = 4096
"""The one that was not read for longest is forgotten first."""


READ_SECONDS = 2 * 3600.0
"""A node that was not read for longer may have another GPU now, or another driver."""

NODES_MAX = 65_536


class GpuWear:
    def __init__(self) -> None:
        self._read: dict[str, tuple[float, float]] = {}
        """Node → since when it was read again and again, and when it was read last."""
        self._samples: dict[tuple[str, str], tuple[WearSample, ...]] = {}
        self._grown: Mapping[tuple[str, str], Sequence[WearSample]] = {}

    @property
    def grown(self) -> Mapping[tuple[str, str], Sequence[WearSample]]:
        """Node and uuid → its samples, oldest first, of GPUs whose counters grew."""
        return self._grown

    def note(self, gpus_of: Mapping[str, Sequence[Gpu]], now: float) -> None:
        """What nodes show now; each at most once an hour (`Inventory.look`)."""
        for node, gpus in gpus_of.items():
            without = self._without_errors(node, now)
            for gpu in gpus:
                # A GPU has rows that are remapped or, before Ampere, pages that are retired.
                corrected, remapped = gpu.ecc_corrected or 0, gpu.remapped_rows_uncorrectable or gpu.retired_pages or 0
                if gpu.uuid and (corrected or remapped):
                    sample = WearSample(now, corrected, remapped, gpu.memory_banks_spent or 0)
                    self._add((node, gpu.uuid), sample, without)
        if gpus_of:
            self._grown = {key: samples for key, samples in self._samples.items() if _grew(samples)}

    def _without_errors(self, node: str, now: float) -> tuple[float, ...]:
        """When a GPU that is not known to have errors had none, as often as it would have samples."""
        since, last = self._read.pop(node, (now, -inf))
        goes_on = now - last <= READ_SECONDS
        self._read[node] = (since if goes_on else now, now)
        if len(self._read) > NODES_MAX:
            del self._read[next(iter(self._read))]
        if not goes_on or len(self._samples) >= GPUS_MAX:  # some that had errors may be forgotten
            return ()
        count = min(int((last - since) / SAMPLE_SECONDS) + 1, SAMPLES_MAX - 1)
        return tuple(last - SAMPLE_SECONDS * number for number in reversed(range(count)))

    def _add(self, key: tuple[str, str], sample: WearSample, without: tuple[float, ...]) -> None:
        known = self._samples.pop(key, None)
        if known is None:
            known = tuple(replace(sample, at=at, corrected=0) for at in without)
        if known and (sample.corrected < known[-1].corrected or sample.remapped < known[-1].remapped):
            known = ()  # the driver was loaded again, or the GPU was reset
        if not known or sample.at - known[-1].at >= SAMPLE_SECONDS:
            known = (*known, sample)[-SAMPLES_MAX:]
        self._samples[key] = known
        if len(self._samples) > GPUS_MAX:
            del self._samples[next(iter(self._samples))]


def _grew(samples: Sequence[WearSample]) -> bool:
    first, last = samples[0], samples[-1]
    return last.corrected - first.corrected >= GREW_MIN or last.remapped > first.remapped
