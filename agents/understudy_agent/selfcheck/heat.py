"""How hot GPUs become under load, what they draw, and whether their hardware slows them meanwhile.

What NVML does not know is not judged. A call of it may hang on a GPU that fails: nothing waits for that for long.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType

from understudy_agent.sample.gpu_history import HARDWARE_SLOWDOWN
from understudy_agent.wire import Gpu

LOOK_SECONDS = 1.0
LOOKS_MIN = 5
SLOWED_SHARE = 0.1
"""Of the looks: a GPU that its hardware slowed (heat, power brake) in more of them has failed."""

END_SECONDS = 5.0

ReadGpus = Callable[[], Sequence[Gpu]]


class HeatWatch:
    """Looks at the GPUs as long as it is entered."""

    def __init__(self, read: ReadGpus, look_seconds: float = LOOK_SECONDS) -> None:
        self._read, self._look_seconds = read, look_seconds
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looks = 0
        self._slowed: Counter[int] = Counter()
        self.celsius, self.watts = 0.0, 0.0
        """The highest of all GPUs; 0: not known."""

    def __enter__(self) -> HeatWatch:
        self._looking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._looking.join(END_SECONDS)

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

    def _look(self) -> None:
        while True:
            for gpu in self._read():
                self.celsius = max(self.celsius, gpu.temperature_celsius or 0.0)
                self.watts = max(self.watts, gpu.power_watts or 0.0)
                self._slowed[gpu.index] += bool((gpu.clock_event_reasons or 0) & HARDWARE_SLOWDOWN)
            self._looks += 1
            if self._over.wait(self._look_seconds):
                return


def by_nvml() -> ReadGpus:
    """All GPUs of this node; none where NVML cannot be used."""
    try:
        from understudy_agent.sample.nvml import Nvml
    except ImportError:
        return lambda: ()
    nvml = Nvml()
    return lambda: nvml.read().gpus
