"""Packs shards of checkpoints and deletes old records in small transactions, beside the loop: a tick waits for one of
them at most.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import structlog

from understudy_controlplane.clock import Clock, ClockWatch
from understudy_controlplane.config import Retention
from understudy_controlplane.decide.retention import limits
from understudy_controlplane.fleet.record_class import Limits
from understudy_controlplane.store.database import StoreError
from understudy_controlplane.store.retention import RULES, RetentionStore, Rule

log = structlog.get_logger()

INTERVAL_SECONDS = 3600.0
"""Interval of passes, and wait from the start to the first one: by then Slurm was read."""

AFTER_JUMP_SECONDS = 24 * 3600.0
"""Wait after the clock was set: with a clock that is wrong all records are old."""

LOOK_SECONDS = 60.0
"""Interval of looks at the clock."""

READ_AT_ONCE = 2000
ROWS_MIN, ROWS_MAX = 10, 400
TRANSACTION_SECONDS = 0.004
"""Time that a transaction should take. Rows are added or left out accordingly."""

PAUSE_FACTOR = 10.0
"""Pause before the next transaction, in relation to the time of the last one."""


class Pruner:
    def __init__(self, store: RetentionStore, policy: Callable[[], Retention], clock: Clock) -> None:
        self._store = store
        self._policy = policy
        self._clock = clock
        self._stopped = threading.Event()
        self._rows = ROWS_MIN
        self._watch = ClockWatch(clock)
        self._due = clock.monotonic() + INTERVAL_SECONDS

    def run(self) -> None:
        """A pass every hour until `stop`."""
        while not self._stopped.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Packs shards, and makes a pass if it is time for one. What fails is logged, and goes on where it ended."""
        self._pack()
        if self._watch.jump_seconds():
            self._due = self._clock.monotonic() + AFTER_JUMP_SECONDS
        if self._clock.monotonic() < self._due:
            return
        self._due = self._clock.monotonic() + INTERVAL_SECONDS
        try:
            deleted = self.prune(self.wait)
        except StoreError as error:
            log.exception("records_not_deleted", error=type(error).__name__)
            return
        if deleted:
            shown = ", ".join(f"{table} {count}" for table, count in deleted.items())
            log.info("records_deleted", count=deleted.total(), what=shown)

    def _pack(self) -> None:
        try:
            packed = self._store.pack(self._clock.now())
        except StoreError as error:
            log.exception("shards_not_packed", error=type(error).__name__)
            return
        if packed:
            log.debug("shards_packed", count=packed)

    def stop(self) -> None:
        self._stopped.set()

    def count(self) -> Counter[str]:
        """Table → rows that `prune` would delete. A row that waits for others to go is not counted."""
        before = self._limits()
        found: Counter[str] = Counter()
        for rule in RULES:
            found[rule.table.name] += self._store.count(rule, before)
        return +found

    def prune(self, wait: Callable[[float], object] = lambda _seconds: None) -> Counter[str]:
        """Table → rows deleted. `wait` waits between two transactions."""
        before = self._limits()
        deleted: Counter[str] = Counter()
        for rule in RULES:
            while not self._stopped.is_set() and (ids := self._store.expired(rule, before, READ_AT_ONCE)):
                some = self._delete(rule, before, ids, wait)
                deleted[rule.table.name] += some
                if not some:
                    break
        return +deleted

    def _delete(self, rule: Rule, before: Limits, ids: list[int], wait: Callable[[float], object]) -> int:
        deleted = 0
        while ids and not self._stopped.is_set():
            some, ids = ids[: self._rows], ids[self._rows :]
            begun = self._clock.monotonic()
            deleted += self._store.delete(rule, before, some)
            took = self._clock.monotonic() - begun
            self._rows = min(self._rows * 2, ROWS_MAX) if took < TRANSACTION_SECONDS / 2 else self._rows
            self._rows = max(self._rows // 2, ROWS_MIN) if took > TRANSACTION_SECONDS else self._rows
            wait(took * PAUSE_FACTOR)
        return deleted

    def _limits(self) -> Limits:
        return limits(self._policy(), self._clock.now(), self._store.jobs_seen_at(), self._store.repairs_since())

    def wait(self, seconds: float) -> None:
        """No longer than until `stop`."""
        self._stopped.wait(seconds)
