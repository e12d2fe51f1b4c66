"""Writes what is counted for the audit, beside the loop."""

from __future__ import annotations

import threading

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.ingest.node_token_notes import NodeTokenNotes
from understudy_controlplane.store.audit import AuditStore
from understudy_controlplane.store.database import StoreError

log = structlog.get_logger()

LOOK_SECONDS = 30.0


class AuditWriter:
    def __init__(self, store: AuditStore, notes: NodeTokenNotes, clock: Clock) -> None:
        self._store = store
        self._notes = notes
        self._clock = clock
        self._waiting: list[AuditEntry] = []
        self._stopped = threading.Event()

    def run(self) -> None:
        """Until `stop`. What is left then is written too."""
        while not self._stopped.wait(LOOK_SECONDS):
            self.look()
        self.look(all_of_it=True)

    def stop(self) -> None:
        self._stopped.set()

    def look(self, all_of_it: bool = False) -> None:
        """Entries that cannot be written now wait."""
        self._waiting += self._notes.take(self._clock.now(), all_of_it)
        if not self._waiting:
            return
        try:
            self._store.add(self._waiting)
        except StoreError as error:
            log.warning("audit_not_written", error=type(error).__name__, count=len(self._waiting))
        else:
            self._waiting = []
