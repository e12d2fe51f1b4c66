"""Writes what is counted for the audit, and the audit to syslog, beside the loop."""

from __future__ import annotations

import syslog
import threading
from collections.abc import Callable

import msgspec
import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.ingest.node_token_notes import NodeTokenNotes
from understudy_controlplane.store.audit import AuditStore, followed
from understudy_controlplane.store.database import Engine, StoreError

log = structlog.get_logger()

LOOK_SECONDS = 30.0
SENT_AGAIN_SECONDS = 3600.0


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


class AuditSyslog:
    """Each entry as a line of JSON, for syslog or the journal. Those of the last hour before the start come again."""

    def __init__(self, engine: Engine, send: Callable[[str], None], clock: Clock, every_seconds: float = 2.0) -> None:
        self._engine = engine
        self._send = send
        self._clock = clock
        self._every_seconds = every_seconds
        self._stopped = threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        since = self._clock.now() - SENT_AGAIN_SECONDS
        while not self._stopped.is_set():
            try:
                for entry in followed(self._engine, since, lambda: not self._stopped.wait(self._every_seconds)):
                    self._send(msgspec.json.encode(entry).decode())
            except StoreError as error:
                log.warning("audit_not_read", error=type(error).__name__)
                self._stopped.wait(self._every_seconds)

    def stop(self) -> None:
        self._stopped.set()


def send_to_syslog(line: str) -> None:
    """And to the journal, which listens there as well. A line that no service takes is lost: the database has it."""
    syslog.openlog("understudy-audit", facility=syslog.LOG_AUTHPRIV)
    syslog.syslog(line)
