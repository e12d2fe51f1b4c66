"""Reports to systemd when the control plane is ready, that its loop makes progress, and why it cannot work."""

from __future__ import annotations

from dataclasses import dataclass

from understudy_controlplane.live.pulse import Pulse
from understudy_wire.systemd import ServiceManager

START_SECONDS = 60.0
"""Longest start without progress. While Slurm cannot be read, the loop repeats the attempt, and systemd waits."""


@dataclass(slots=True)
class Heartbeat:
    manager: ServiceManager
    pulse: Pulse
    mode: str
    ready: bool = False
    _turns: int = 0

    async def beat(self) -> None:
        """The server calls it while it serves requests: a hung server is as silent as a hung loop."""
        pulse = self.pulse
        if not self.ready and pulse.ticks_total and pulse.slurm.at is not None:
            self.ready = True
            self.manager.ready(self._status())
        if pulse.turns == self._turns:
            return
        self._turns = pulse.turns
        if self.ready:
            self.manager.alive(self._status())
        else:
            self.manager.starting(self._status(), START_SECONDS)

    def _status(self) -> str:
        if self.pulse.objection:
            return f"changes nothing in Slurm: {self.pulse.objection}"
        if self.pulse.slurm.error:
            return f"Slurm cannot be read: {self.pulse.slurm.error}"
        if self.pulse.last_error:
            return f"the last tick failed: {self.pulse.last_error}"
        if self.pulse.failed_detectors:
            return "; ".join(one.cause for one in self.pulse.failed_detectors.values())
        if self.ready and self.pulse.config_problems:
            return "; ".join(self.pulse.config_problems)
        snapshot = self.pulse.snapshot
        mode = snapshot.mode.value if snapshot is not None else self.mode
        return f"mode {mode}" if self.ready else "reads Slurm for the first time"
