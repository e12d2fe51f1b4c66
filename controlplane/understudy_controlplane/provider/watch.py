"""Asks the provider of the nodes, beside the loop and one question at a time: for tickets, and for what it plans.

Its answers become part of the tickets; maintenance and retirements become signals of the site.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC
from hashlib import sha256
from typing import Any

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Provider, SignalKind
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.provider import Ask, is_rack
from understudy_controlplane.fleet.site_signal import ReportedSignal
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.topology import shown
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.provider.client import Planned, ProviderError, Question, ask, ask_for_plans
from understudy_controlplane.store.site_signals import SiteSignalStore, TooManySignals
from understudy_controlplane.store.tickets import TicketStore

log = structlog.get_logger()

LOOK_SECONDS = 5.0
IN_TICKET = "its ticket has the error, and it is not asked again: ask the provider by hand"
SOURCE = "[provider]"  # no label of a token begins so
SOON_SECONDS = DAY_SECONDS
"""An event that begins later only explains what happens there; gangs need not save weeks before it."""

SHOWN_SECONDS = DAY_SECONDS
"""Life of a signal without an end: each answer renews it."""

LIFE_SECONDS_MAX = 31 * DAY_SECONDS
"""Longest life, that of other signals as well. Each answer renews an event that ends later."""


class ProviderWatch:
    def __init__(
        self,
        signals: SiteSignalStore,
        tickets: TicketStore,
        current: CurrentConfig,
        pulse: Pulse,
        clock: Clock,
        wake_loop: Callable[[], None],
    ) -> None:
        self._signals, self._tickets, self._current, self._pulse, self._clock = signals, tickets, current, pulse, clock
        self._wake_loop = wake_loop
        self._stopped = threading.Event()
        self._due = 0.0
        self._to_store: tuple[int, Json] | None = None
        """Number of a ticket, and the answer that is not stored yet: the provider is not asked again for that."""

        self._unknown: frozenset[str] = frozenset()  # targets of the last answer that the fleet does not have
        self._answered = 0
        """Number of a ticket; no ticket up to it waits for an answer."""

    def run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            self.look()

    def stop(self) -> None:
        self._stopped.set()

    def look(self) -> None:
        """One question for a ticket, and the one for plans when it is due. What fails is logged; until the next answer
        the signals stay as they are.
        """
        policy, snapshot = self._current.config.provider, self._pulse.snapshot
        if not policy.command or snapshot is None:
            return
        with _logged():
            self._ask_for_ticket(policy)
        if self._clock.monotonic() >= self._due:
            self._due = self._clock.monotonic() + policy.poll_seconds
            with _logged():
                self._ask_for_plans(policy, snapshot)

    def _ask_for_ticket(self, policy: Provider) -> None:
        """Its ticket says that it is not answered: where the control plane ends before it has stored the answer, the
        next asks again with the same id.
        """
        if self._to_store is None:
            ticket = self._tickets.unanswered(self._answered)
            if ticket is None:
                return
            self._to_store = ticket["id"], self._of_provider(policy, ticket)
        self._tickets.answer(*self._to_store)
        self._answered, self._to_store = self._to_store[0], None

    def _of_provider(self, policy: Provider, ticket: dict[str, Any]) -> Json:
        try:
            question = _question(ticket["body"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return {"error": f"not asked: its ticket cannot be read ({type(error).__name__}: {error})"}
        if ticket["closed_at"] is not None and not is_rack(question.target):
            return {"error": "not asked: the ticket was closed before"}
        if question.ask is Ask.REPLACE and not policy.replacements_per_day_max:
            return {"error": "not asked: provider.replacements_per_day_max is 0"}
        about = {"ask": question.ask.value, "target": question.target}
        try:
            number, summary = ask(policy, question)
        except ProviderError as error:
            log.warning("provider_question_failed", **about, error=str(error), remedy=IN_TICKET)
            return {"asked": question.ask.value, "error": str(error)}
        except Exception as error:  # stored as well: it would be asked again every few seconds
            problem = (
                f"{type(error).__name__} in the control plane; the provider may have accepted {question.id}: ask it"
            )
            log.exception("provider_question_failed", **about, error=problem, remedy=IN_TICKET)
            return {"asked": question.ask.value, "error": problem}
        log.info("provider_asked", **about, ticket=number)
        return {"asked": question.ask.value, "ticket": number, "summary": summary}

    def _ask_for_plans(self, policy: Provider, snapshot: Snapshot) -> None:
        now = self._clock.now()
        question = Question(ask=Ask.EVENTS, id=f"events-{now:.0f}", cluster=self._current.config.cluster)
        try:
            events, problems = ask_for_plans(policy, question)
        except ProviderError as error:
            remedy = "its signals stay as they are until the next answer; try the program as the control plane's user"
            log.warning("provider_question_failed", ask=question.ask.value, error=str(error), remedy=remedy)
            return
        if problems:
            remedy = "the others are taken, and no signal ends, until each event can be read; correct its program"
            log.warning("provider_events_unreadable", count=len(problems), error=problems[0], remedy=remedy)
        named = frozenset(name for one in events for name in one.targets)
        unknown = frozenset(name for name in named if not snapshot.is_target(name))
        if unknown - self._unknown:
            remedy = "its program has to name nodes as Slurm does, and domains as `understudy topology show` does"
            log.warning("provider_targets_unknown", targets=shown(sorted(unknown)), remedy=remedy)
        self._unknown = unknown
        self._take([*_signals(events, snapshot, now)], now, is_whole=not problems)

    def _take(self, found: Sequence[tuple[ReportedSignal, float]], now: float, *, is_whole: bool) -> None:
        """Ends first what the provider no longer names; nothing where an event that cannot be read may name it. Where
        too many are live, those that begin last are left out.
        """
        entry = AuditEntry(now, SOURCE, Role.SIGNALS.value, "", Verb.SIGNAL.value, "", "")
        keys = {signal.key for signal, _ in found}
        known = [one for one in self._signals.live(now) if one.source == SOURCE]
        over = [(one.source, one.key) for one in known if is_whole and one.key not in keys]
        if over:
            self._signals.resolve(over, replace(entry, action=Verb.END_SIGNAL.value))
        left_out = 0
        for signal, until in found:
            try:
                self._signals.take([signal], until, self._current.config.signals.live_max, entry)
            except TooManySignals:
                left_out += 1
        if left_out:
            log.warning("provider_events_left_out", count=left_out)
        if found or over:
            self._wake_loop()


@contextmanager
def _logged() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        remedy = "it is tried again, and an answer is kept until it can be stored; look at the database"
        log.exception("provider_watch_failed", error=f"{type(error).__name__}: {error}", remedy=remedy)


def _question(body: dict[str, Any]) -> Question:
    fault: dict[str, Any] = body["evidence"]["incident"] or {}
    return Question(
        ask=Ask(body["provider"]["asked"]),
        id=body["id"],
        cluster=body["cluster"],
        target=body["node"],
        code=fault.get("rule") or "",
        summary=fault.get("summary") or body["reason"],
        fault_at=fault.get("fault_at") or 0.0,
        evidence=fault.get("evidence") or {},
    )


def _signals(events: Sequence[Planned], snapshot: Snapshot, now: float) -> Iterator[tuple[ReportedSignal, float]]:
    """Yields each signal and when it ends, the next to begin first. Events of nodes that are not known here are left
    out; of several with the same ticket, kind and targets, only the first counts.
    """
    seen: set[str] = set()
    for one in sorted(events, key=lambda one: one.begins):
        targets = tuple(name for name in one.targets if snapshot.is_target(name))
        begins, ends = one.begins.timestamp(), one.ends.timestamp() if one.ends else None
        if not targets or (ends is not None and ends <= now):
            continue
        soon = begins - now <= SOON_SECONDS
        times = " to ".join(f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" for at in (one.begins, one.ends) if at)
        words = f"{one.kind} {times}, ticket {one.ticket}{f': {one.summary}' if one.summary else ''}"[:500]
        kind = SignalKind.PLANNED_OUTAGE if soon else SignalKind.OTHER
        digest = sha256("\n".join([one.ticket, one.kind, *sorted(one.targets)]).encode()).hexdigest()[:16]
        if digest in seen:
            continue
        seen.add(digest)
        key = f"{one.ticket[:200]} {digest}{' begins' if soon else ''}"
        until = now + SHOWN_SECONDS if ends is None else min(ends, now + LIFE_SECONDS_MAX)
        yield ReportedSignal(SOURCE, key, kind, targets, words), until
