"""Keeps the kernel and hardware events of the last week in memory, and reads only new ones from the database."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from understudy_controlplane.detect.node_log import NodeLog
from understudy_controlplane.fleet.node import NodeRecord, StoredHardwareEvent, StoredKernelEvent
from understudy_controlplane.observe.sources import FactReads

EVENT_AGE_MAX_SECONDS = 7 * 24 * 3600.0
"""An older kernel event leads to no new finding against its node."""

HARDWARE_EVENTS_MAX = 256
"""Events kept of one node: more events of a port that flaps all day change no finding."""


class EventCache:
    def __init__(self, facts: FactReads, burst_silence_seconds: float) -> None:
        self._facts = facts
        self._burst_silence_seconds = burst_silence_seconds
        self._returned_id = 0
        self.forget()

    def set_burst_silence(self, seconds: float) -> None:
        """The configuration may change it: then the events are put into bursts again."""
        if seconds != self._burst_silence_seconds:
            self._burst_silence_seconds = seconds
            self.forget()

    def forget(self) -> None:
        """The next `refresh` reads all of them again: their times were changed."""
        self._last_kernel_id = 0
        self._logs: dict[str, NodeLog] = {}
        self._last_hardware_id = 0
        self._hardware: dict[str, deque[StoredHardwareEvent]] = {}

    def refresh(self, now: float) -> list[StoredKernelEvent]:
        """Read the events that the database received since the last call. Returns those of kernel logs."""
        since = now - EVENT_AGE_MAX_SECONDS
        new: list[StoredKernelEvent] = []
        for kernel_event in self._facts.kernel_events(self._last_kernel_id, since):
            self._last_kernel_id = kernel_event.id
            log = self._logs.get(kernel_event.node)
            if log is None:
                log = self._logs[kernel_event.node] = NodeLog(self._burst_silence_seconds)
            log.add(kernel_event)
            if kernel_event.id > self._returned_id:
                self._returned_id = kernel_event.id
                new.append(kernel_event)
        for event in self._facts.hardware_events(self._last_hardware_id, since):
            self._last_hardware_id = event.id
            self._hardware.setdefault(event.node, deque(maxlen=HARDWARE_EVENTS_MAX)).append(event)
        return new

    @property
    def nodes(self) -> set[str]:
        """Nodes that have events."""
        return {*self._logs, *self._hardware}

    def kernel_events(self, node: str, now: float) -> Sequence[StoredKernelEvent]:
        """A storm of events of the same text is one event with their number."""
        log = self._logs.get(node)
        return log.events(now - EVENT_AGE_MAX_SECONDS) if log else ()

    def hardware_events(self, record: NodeRecord, now: float) -> tuple[StoredHardwareEvent, ...]:
        """The node's events since it was last cleared: a port is judged by how often it went down."""
        known = self._hardware.get(record.name)
        if not known:
            return ()
        since = max(record.cleared_at, now - EVENT_AGE_MAX_SECONDS)
        return tuple(one for one in known if one.received_at > since)
