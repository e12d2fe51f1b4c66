"""What `/metrics` shows beside counters and histograms (`live/meters.py`): all of it is in memory.

Labels have few values: no reason texts, no job names. `docs/metrics.md` is generated from the tables here.
"""

from __future__ import annotations

from understudy_controlplane.api.exported.control_plane import CONTROL_PLANE, PROCESS
from understudy_controlplane.api.exported.fleet import FLEET
from understudy_controlplane.api.exported.gpus import GPUS
from understudy_controlplane.api.exported.jobs import JOBS
from understudy_controlplane.api.exported.metric import Metric
from understudy_controlplane.api.exported.nodes import NODES
from understudy_controlplane.api.exported.source import Source

METRIC_GROUPS: dict[str, tuple[Metric[Source], ...]] = {
    "Fleet": FLEET,
    "Nodes": NODES,
    "GPUs": GPUS,
    "Jobs": JOBS,
    "The control plane itself": CONTROL_PLANE,
    "The process": PROCESS,
}
