"""How hot GPUs become under load, what they draw, and whether their hardware slows them meanwhile.

What NVML does not know is not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from understudy_agent.sample.gpu_history import HARDWARE_SLOWDOWN
from understudy_selfcheck.watch import Watch
from understudy_wire.hardware import Gpu

LOOK_SECONDS = 1.0
LOOKS_MIN = 5
SLOWED_SHARE = 0.1
"""Share of the looks: a GPU that its hardware slowed (heat, power brake) in more of them has failed."""

ReadGpus = Callable[[], Sequence[Gpu]]


class HeatWatch(Watch):
    def __init__(self, read: ReadGpus, look_seconds: float = LOOK_SECONDS) -> None:
        super().__init__(look_seconds)
        self._read = read
        self._looks = 0
        self._slowed: Counter[int] = Counter()
        self.celsius, self.watts = 0.0, 0.0
        """The highest of all GPUs; 0: not known."""

    @property
    def words(self) -> str:
        """Empty: nothing is known."""
        return f"up to {self.celsius:g} C, {self.watts:.0f} W" if self.celsius else ""

    def fault(self, celsius_max: float) -> str:
        """Empty: none. `celsius_max`: 0 where the site has no limit."""
        slowed = {gpu: looks / self._looks for gpu, looks in self._slowed.items() if looks > SLOWED_SHARE * self._looks}
        if slowed and self._looks >= LOOKS_MIN:
            names = ", ".join(map(str, sorted(slowed)))
            return f"GPU {names} slowed by heat or power, {max(slowed.values()):.0%}; {self.words}"
        if celsius_max and self.celsius > celsius_max:
            return f"{self.words}; at most {celsius_max:g} C"
        return ""

    def look(self) -> None:
        for gpu in self._read():
            self.celsius = max(self.celsius, gpu.temperature_celsius or 0.0)
            self.watts = max(self.watts, gpu.power_watts or 0.0)
            self._slowed[gpu.index] += bool((gpu.clock_event_reasons or 0) & HARDWARE_SLOWDOWN)
        self._looks += 1


def by_nvml() -> ReadGpus:
    """All GPUs of this node; none where NVML cannot be used."""
    try:
        from understudy_agent.sample.nvml import Nvml
    except ImportError:
        return lambda: ()
    nvml = Nvml()
    return lambda: nvml.read().gpus
