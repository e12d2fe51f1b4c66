"""Makes notices of what the database shows, and follows them to their end."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from understudy_controlplane.decide.notices import (
    STOPPED_SECONDS,
    TicketFacts,
    of_approval,
    of_breaker,
    of_incident,
    of_move,
    of_stopped,
    of_ticket,
)
from understudy_controlplane.fleet.notice import Notice, NoticeSource, Stage
from understudy_controlplane.store.notices import AT_ONCE, NoticeStore

FOLLOW_SECONDS = 5.0
"""Between two looks at what has become of that which is open."""

Key = tuple[NoticeSource, int]


@dataclass(slots=True)
class Found:
    """`changed`: known ones, by their id. `last`: how far was looked."""

    new: list[Notice] = field(default_factory=list)
    changed: dict[int, Notice] = field(default_factory=dict)
    last: dict[NoticeSource, int] = field(default_factory=dict)


class Collector:
    def __init__(self, store: NoticeStore) -> None:
        self._store = store
        self._last: dict[NoticeSource, int] = {}
        self._followed_at: float | None = None

    def look(self, now: float, unwanted: Collection[int]) -> Found:
        """`unwanted`: ids of jobs whose owners want no notice. Raises StoreError."""
        if not self._last:
            self._last = self._store.begin(now)
        going_on = {(one.source, one.number): one for one in self._store.going_on()}
        found = Found()
        self._add_incidents(found)
        if len(found.new) < AT_ONCE:  # tickets come behind the incidents that they are about
            self._add_tickets(found, going_on)
        self._add_requests(found)
        self._add_of_owners(found, now, unwanted)
        if self._followed_at is None or not 0 <= now - self._followed_at < FOLLOW_SECONDS:
            self._followed_at = now
            for one in self._followed(going_on, found.changed):
                found.changed[one.id] = one
        return found

    def written(self, found: Found) -> None:
        """What was found is in the database."""
        self._last |= found.last

    def _add_incidents(self, found: Found) -> None:
        for one in self._store.new_incidents(self._last[NoticeSource.INCIDENT]):
            found.last[NoticeSource.INCIDENT] = one.number
            found.new.append(of_incident(one))

    def _add_tickets(self, found: Found, going_on: Mapping[Key, Notice]) -> None:
        """A ticket about one node with an open incident needs no message of its own: it changes the incident's."""
        known = {one.about: one for one in going_on.values() if one.source is NoticeSource.INCIDENT}
        places = {one.about: place for place, one in enumerate(found.new)}
        for ticket in self._store.new_tickets(self._last[NoticeSource.TICKET]):
            found.last[NoticeSource.TICKET] = ticket.number
            incident, place = known.get(ticket.about), places.get(ticket.about)
            notice = of_ticket(ticket)
            if incident is not None:
                found.changed[incident.id] = _needing(found.changed.get(incident.id, incident), ticket)
            elif place is not None:
                found.new[place] = _needing(found.new[place], ticket)
            else:
                found.new.append(notice)
                continue
            found.new.append(replace(notice, title="", stage=Stage.REPORTED))

    def _add_requests(self, found: Found) -> None:
        for one in self._store.new_breakers(self._last[NoticeSource.BREAKER]):
            found.last[NoticeSource.BREAKER] = one.number
            found.new.append(of_breaker(one))
        for one in self._store.new_approvals(self._last[NoticeSource.APPROVAL]):
            found.last[NoticeSource.APPROVAL] = one.number
            found.new.append(of_approval(one))

    def _add_of_owners(self, found: Found, now: float, unwanted: Collection[int]) -> None:
        for move in self._store.new_moves(self._last[NoticeSource.MOVE]):
            found.last[NoticeSource.MOVE] = move.number
            if move.user and move.job_id not in unwanted:
                found.new.append(of_move(move))
        for one in self._store.opened_before(self._last[NoticeSource.STOPPED], now - STOPPED_SECONDS):
            found.last[NoticeSource.STOPPED] = one.number
            if one.user and one.closed_at is None and not one.moves and one.job_id not in unwanted:
                found.new.append(of_stopped(one))

    def _followed(self, going_on: Mapping[Key, Notice], changed: Mapping[int, Notice]) -> Iterator[Notice]:
        """Open notices that say something else now."""
        now_so = {(one.source, one.number): one for one in self._as_it_is(going_on, changed)}
        for key, known in going_on.items():
            if key not in now_so:  # its row was deleted
                yield replace(known, stage=Stage.OVER, over_at=known.at)
            elif (found := replace(now_so[key], id=known.id)) != known:
                yield found

    def _as_it_is(self, going_on: Mapping[Key, Notice], changed: Mapping[int, Notice]) -> Iterator[Notice]:
        numbers = {source: [number for known, number in going_on if known is source] for source in NoticeSource}
        for incident in self._store.incidents(numbers[NoticeSource.INCIDENT]):
            known = going_on[NoticeSource.INCIDENT, incident.number]
            yield of_incident(incident, changed.get(known.id, known).needs)
        yield from map(of_ticket, self._store.tickets(numbers[NoticeSource.TICKET]))
        yield from map(of_approval, self._store.approvals(numbers[NoticeSource.APPROVAL]))
        yield from map(of_move, self._store.moves(numbers[NoticeSource.MOVE]))
        yield from map(of_stopped, self._store.incidents(numbers[NoticeSource.STOPPED]))


def _needing(notice: Notice, ticket: TicketFacts) -> Notice:
    page = of_ticket(ticket)
    return replace(notice, importance=page.importance, needs=page.needs)
