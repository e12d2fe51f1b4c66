"""Places of GPUs in nodes: which of them have to be recorded, and which came from another node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from understudy_controlplane.fleet.gpu import MovedGpu
from understudy_controlplane.live.telemetry import Heard
from understudy_controlplane.observe.sources import GpuReads
from understudy_wire.hardware import Gpu

RECORD_INTERVAL_SECONDS = 3600.0

NODES_AT_ONCE = 50
"""Nodes of one tick: a control plane that starts has the GPUs of thousands of nodes to record."""

MOVED_GPUS_MAX = 1000

MOVE_SECONDS_MIN = 60.0
"""A GPU does not move from node to node in less time: both have to be switched off."""


class Inventory:
    def __init__(self, gpus: GpuReads) -> None:
        self._gpus = gpus
        self._recorded: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._moved: list[MovedGpu] = []
        self.replacements, self._asked = gpus.known_replacements()
        """Nodes that the provider has accepted to replace, and that are another machine now."""

    @property
    def unseen(self) -> frozenset[str]:
        """Nodes that the provider has accepted to replace and whose GPUs this process has not seen yet: they may be
        another machine since it started.
        """
        return self._asked.difference(self._recorded)

    @property
    def moved(self) -> tuple[MovedGpu, ...]:
        """GPUs that this process saw in another node than before, each with its newest place."""
        return tuple(self._moved)

    def look(self, heard: Mapping[str, Heard], now: float) -> dict[str, Sequence[Gpu]]:
        """Node → its GPUs, where these have to be recorded: they changed, or the last record is an hour old."""
        due = self._due(heard, now)
        if due:
            kept = {name: one for name, one in self.replacements.items() if name not in due}
            self.replacements = kept | self._gpus.replacements(due, now)
            moved = [one for one in self._gpus.moved_gpus(due) if not _still_there(one, heard, now)]
            uuids = {one.uuid for one in moved}
            self._moved = [one for one in self._moved if one.uuid not in uuids] + moved
            del self._moved[:-MOVED_GPUS_MAX]
            # Last: a node of which the database could not be asked is due in the next round, and unseen until then.
            self._recorded |= {name: (now, heard[name].uuids) for name in due}
        return due

    def _due(self, heard: Mapping[str, Heard], now: float) -> dict[str, Sequence[Gpu]]:
        """Nodes that are due. One whose last report is old is left out: an administrator may have taken GPUs out of it
        since. Nodes that may be another machine come first: repairs wait for them.
        """
        due: dict[str, Sequence[Gpu]] = {}
        for name in chain(self.unseen.intersection(heard), heard):
            one = heard[name]
            recorded_at, recorded = self._recorded.get(name, (0.0, ()))
            if one.uuids == recorded and 0 <= now - recorded_at < RECORD_INTERVAL_SECONDS:
                continue
            if one.uuids and now - one.at <= MOVE_SECONDS_MIN:
                due[name] = one.report.gpus
                if len(due) >= NODES_AT_ONCE:
                    break
        return due


def _still_there(moved: MovedGpu, heard: Mapping[str, Heard], now: float) -> bool:
    """Two nodes show the same GPU at once: one of them is mistaken, and the GPU did not move."""
    before = heard.get(moved.from_node)
    if before is None or now - before.at > MOVE_SECONDS_MIN:
        return False
    return any(gpu.uuid == moved.uuid for gpu in before.report.gpus)
