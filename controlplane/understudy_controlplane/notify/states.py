"""Receivers that are sent what is so, again and again, and need no queue: Alertmanager, and the heartbeat outwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from understudy_controlplane.config import Config, ReceiverKind
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.notify.addresses import HEARTBEAT, send_alerts_to, send_heartbeat
from understudy_controlplane.notify.alerts import LIVES_SECONDS, REPORTED_SECONDS, alerts
from understudy_controlplane.store.notices import NoticeStore

log = structlog.get_logger()

ALERTS_SECONDS = 60.0
WAIT_SECONDS = 10.0
"""After one that failed."""

PROGRESS_SECONDS = 30.0
"""Since the last tick of the loop, within which the control plane counts as working."""

SHOWN_AFTER_TRIES = 2


@dataclass(slots=True)
class State:
    next_at: float = 0.0
    tries: int = 0
    error: str = ""
    sent: object = None
    is_busy: bool = False


class States:
    def __init__(self, store: NoticeStore, pulse: Pulse, begin: Callable[[str, Callable[[], None]], None]) -> None:
        self._store = store
        self._pulse = pulse
        self._begin = begin
        self._lock = threading.Lock()
        self._states: dict[str, State] = {}

    def look(self, config: Config, now: float) -> None:
        """Sends what is due. Raises StoreError."""
        to_alertmanager = {
            name: one for name, one in config.notify.receivers.items() if one.kind is ReceiverKind.ALERTMANAGER
        }
        if to_alertmanager:
            recent = self._store.recent(now - LIVES_SECONDS - REPORTED_SECONDS)
            notices = {one.id: one for one in (*recent, *self._store.going_on())}
            for name, receiver in to_alertmanager.items():
                shown = alerts(notices.values(), config, receiver.least, now)
                about = [(one.id, one.importance, one.stage) for one in notices.values()]
                self._send(name, about, now, ALERTS_SECONDS, partial(send_alerts_to, config, name, shown))
        if config.notify.heartbeat_url_file is not None and self._makes_progress(now):
            self._send(HEARTBEAT, None, now, config.notify.heartbeat_seconds, partial(send_heartbeat, config))

    def failing(self) -> dict[str, str]:
        with self._lock:
            return {name: one.error for name, one in self._states.items() if one.tries >= SHOWN_AFTER_TRIES}

    def _makes_progress(self, now: float) -> bool:
        pulse = self._pulse
        ticks = pulse.ticks_total > 0 and 0 <= now - pulse.last_tick_at < PROGRESS_SECONDS
        return ticks and pulse.slurm.at is not None and not pulse.slurm.error

    def _send(self, name: str, what: object, now: float, every_seconds: float, send: Callable[[], str]) -> None:
        """Sends at once if it differs from what was sent, and else when it is due."""
        with self._lock:
            state = self._states.setdefault(name, State())
            has_news = what != state.sent and not state.error
            if state.is_busy or not (has_news or not -every_seconds <= now - state.next_at < 0):
                return
            state.is_busy = True

        def work() -> None:
            error = send()
            with self._lock:
                state.is_busy = False
                state.error = error
                state.tries = state.tries + 1 if error else 0
                state.next_at = now + (min(WAIT_SECONDS, every_seconds) if error else every_seconds)
                if not error:
                    state.sent = what
            self._pulse.meters.notifications.labels(name, "failed" if error else "sent").inc()
            if error:
                log.warning("notification_not_sent", receiver=name, error=error, tries=state.tries)

        self._begin(name, work)
