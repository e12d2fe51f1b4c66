"""GPUs that their own hardware slows down most of the time, because of heat or power supply.

Slow is not broken: such a GPU makes its node suspect. It is condemned when a rank on it lags behind its peers, of which
its clocks are then the second signal (`straggler`).
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.config import Hardware
from understudy_controlplane.detect.gpu_finding import gpu_finding
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.node import NodeView
from understudy_wire.hardware import Gpu


def held_back(node: NodeView, gpu: Gpu, policy: Hardware) -> Iterator[Finding]:
    share = gpu.slowed_share_recent
    if share is not None and share >= policy.slowed_share:
        what = f"was slowed down by its hardware for {share:.0%} of the last ten minutes"
        yield gpu_finding(
            node,
            gpu,
            Signal.HEALTH_SUSPECTED,
            "thermal.slowed",
            what,
            slowed_share=round(share, 3),
            temperature_celsius=gpu.temperature_celsius,
            sm_clock_mhz=gpu.sm_clock_mhz,
            clock_event_reasons=gpu.clock_event_reasons,
        )
