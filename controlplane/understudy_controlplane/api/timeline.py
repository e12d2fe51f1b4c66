"""The phases of a recovery in milliseconds since the fault."""

from __future__ import annotations

from understudy_controlplane.fleet.phases import phase_times
from understudy_controlplane.fleet.recovery import Recovery


def phases_ms(recovery: Recovery, fault_at: float) -> dict[str, int]:
    return {phase: round((at - fault_at) * 1000) for phase, at in phase_times(recovery).items()}
