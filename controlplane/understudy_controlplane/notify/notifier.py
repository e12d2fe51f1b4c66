"""Notifies people, beside the loop: makes notices of what the database shows, and sends messages about them.

What waits is in the database: a receiver that is away for an hour, or a restart of the control plane, loses nothing. A
message is written before it is sent, and the answer after it. A process that ends in between sends that version once
more, ten seconds later at the earliest, with the same id and revision.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.config import OWNERS, Config, OwnersWhen
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.fleet.job import opted_in
from understudy_controlplane.fleet.notice import ENDED, Message, Notice, NoticeSource
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.notify import messages
from understudy_controlplane.notify.addresses import To, chosen_mail, send
from understudy_controlplane.notify.collector import Collector, Found, Owners
from understudy_controlplane.notify.senders import Attachment
from understudy_controlplane.notify.states import States
from understudy_controlplane.store.database import StoreError
from understudy_controlplane.store.notices import NoticeStore

log = structlog.get_logger()

LOOK_SECONDS = 2.0
SHOWN_AFTER_TRIES = 2
NOT_FOR_OWNER = "notify=off"

Begin = Callable[[str, Callable[[], None]], None]
Attach = Callable[[Notice], Attachment | None]
"""The file that belongs to a notice. Raises StoreError."""


def beside(name: str, work: Callable[[], None]) -> None:
    """Runs on a thread of its own: a receiver that hangs delays no other. A daemon: nor the end of the process."""
    threading.Thread(target=work, name=name, daemon=True).start()


class Notifier:
    """One thread runs it."""

    def __init__(
        self,
        store: NoticeStore,
        current: CurrentConfig,
        pulse: Pulse,
        clock: Clock,
        begin: Begin = beside,
        attach: Attach = lambda _notice: None,
    ) -> None:
        self._store = store
        self._current = current
        self._pulse = pulse
        self._clock = clock
        self._begin = begin
        self._attach = attach
        self._added: list[Notice] = []
        self._collector = Collector(store)
        self._states = States(store, pulse, begin)
        self._lock = threading.Lock()
        self._busy: set[To] = set()
        self._answers: list[tuple[Message, str, str]] = []
        self._error = ""
        self._stopped = threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        while not self._stopped.wait(LOOK_SECONDS):
            self.look()

    def stop(self) -> None:
        self._stopped.set()

    def add(self, notice: Notice) -> None:
        """Adds what no row of the database shows by itself. A known notice is not added twice."""
        with self._lock:
            self._added.append(notice)

    def look(self) -> None:
        """One round. What fails is logged once, and tried again by the next round."""
        error = ""
        try:
            self._look(self._current.config, self._clock.now())
        except StoreError as problem:
            error = type(problem).__name__
            if error != self._error:
                log.warning("notices_not_read", error=error)
        except Exception as problem:
            error = type(problem).__name__
            if error != self._error:
                log.exception("notices_failed", error=error)
        self._error = error

    def _look(self, config: Config, now: float) -> None:
        self._take_answers(now)
        found = self._collector.look(now, self._owners(config))
        with self._lock:
            added, self._added = self._added, []
        found.new += [one for one in added if not self._store.has(one.source, one.number)]
        if found.new or found.changed:
            about = self._messages_about(found, config, now)
            self._store.record(found.new, found.changed.values(), about)
        self._collector.written(found)
        self._send_due(config, now)
        self._states.look(config, now)
        self._take_answers(now)  # of those that were sent at once
        self._show(config)

    def _owners(self, config: Config) -> Owners:
        snapshot, policy = self._pulse.snapshot, config.notify
        jobs = [one for one in snapshot.jobs.values() if one.managed] if snapshot is not None else []
        return Owners(
            {one.key.job_id for one in jobs if opted_in(one.slurm.comment, NOT_FOR_OWNER)},
            {
                one.key.job_id: chosen_mail(one.slurm.mail_to, policy.owners_mail_domains)
                for one in jobs
                if one.slurm.mail_to
            },
            policy.owners_when is OwnersWhen.MAIL_TYPE,
        )

    def _messages_about(
        self, found: Found, config: Config, now: float
    ) -> Callable[[Sequence[Notice]], Iterator[Message]]:
        sending = self._store.sending()
        of_unsent = self._store.notices({number for one in sending if one.is_new for number in one.notices})

        def about(written: Sequence[Notice]) -> Iterator[Message]:
            unsent = {_to(one): one for one in sending if one.is_new and not _is_report(one, of_unsent)}
            known = {(one.receiver, number) for one in sending for number in one.notices}
            touched: dict[To, Message] = {}
            reports: list[Message] = []
            changed = [one for one in found.changed.values() if one.stage not in ENDED]
            for notice in (*written, *changed):
                for receiver in messages.addressees(notice, config.notify):
                    if (receiver, notice.id) in known:
                        continue
                    key = To(receiver, notice.user, notice.mail)
                    is_report = notice.source is NoticeSource.REPORT
                    last = None if is_report else touched.get(key, unsent.get(key))
                    message = messages.joined(last, receiver, notice, config.notify, now)
                    if is_report:
                        reports.append(message)
                    else:
                        touched[key] = message
            return iter((*touched.values(), *reports))

        return about

    def _send_due(self, config: Config, now: float) -> None:
        sending = self._store.sending()
        notices = self._store.notices({number for one in sending for number in one.notices})
        changed: list[Message] = []
        due: list[tuple[Message, list[Notice]]] = []
        for before in sending:
            about = [notices[number] for number in before.notices if number in notices]
            message = messages.followed(before, about, config.notify, now) if about else replace(before, closed=True)
            to = _to(message)
            if message.is_waiting and message.due_at <= now and to not in self._busy:
                message = messages.attempted(message, now)
                self._busy.add(to)
                due.append((message, about))
            if message != before:
                changed.append(message)
        self._store.put(changed)
        for message, about in due:
            self._send(config, message, about, now)

    def _send(self, config: Config, message: Message, about: list[Notice], now: float) -> None:
        version = messages.shown(message, about, config.cluster, config.notify)
        body = messages.as_json(message, version, about, config.cluster)

        def work() -> None:
            try:
                attached = self._attach(about[0]) if _is_report(message, {one.id: one for one in about}) else None
                error = send(config, _to(message), version, body, now, attached)
            except StoreError as problem:
                error = f"the report could not be read: {type(problem).__name__}"
            with self._lock:
                self._answers.append((message, version.title, error))

        self._begin(f"message {message.id}", work)

    def _take_answers(self, now: float) -> None:
        with self._lock:
            answers, self._answers = self._answers, []
        if not answers:
            return
        newest = {one.id: one for one in self._store.sending()}
        changed: list[Message] = []
        for message, title, error in answers:
            self._busy.discard(_to(message))
            self._pulse.meters.notifications.labels(message.receiver, "failed" if error else "sent").inc()
            if error:
                log.warning("notification_not_sent", receiver=message.receiver, error=error, tries=message.tries)
            if message.id in newest:
                changed.append(messages.answered(newest[message.id], message.revision, title, error, now))
        self._store.put(changed)

    def _show(self, config: Config) -> None:
        waiting = [one for one in self._store.sending() if one.is_waiting]
        counts: dict[str, int] = dict.fromkeys((*config.notify.receivers, OWNERS), 0)
        for name in counts:
            for outcome in ("sent", "failed"):
                self._pulse.meters.notifications.labels(name, outcome)  # 0, so that the first one is an increase
        for one in waiting:
            counts[one.receiver] = counts.get(one.receiver, 0) + 1
        failing = {one.receiver: one.error for one in waiting if one.error and one.tries >= SHOWN_AFTER_TRIES}
        self._pulse.messages_waiting = counts
        self._pulse.notify_problems = problems(failing | self._states.failing())


def _to(message: Message) -> To:
    return To(message.receiver, message.user, message.mail)


def _is_report(message: Message, notices: Mapping[int, Notice]) -> bool:
    """It is a message of its own: nothing else joins it."""
    return any(number in notices and notices[number].source is NoticeSource.REPORT for number in message.notices)


def problems(failing: Mapping[str, str]) -> list[str]:
    """`failing`: receiver → why it accepts nothing."""
    return [
        f"no notification reaches {name}: {error}; correct the cause, and try it with `understudy notify test {name}`"
        for name, error in sorted(failing.items())
    ]
