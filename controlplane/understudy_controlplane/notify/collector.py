"""Makes notices of what the database shows, and follows them to their end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from understudy_controlplane.config import Importance
from understudy_controlplane.decide.notices import (
    STOPPED_SECONDS,
    of_approval,
    of_breaker,
    of_incident,
    of_lemon,
    of_move,
    of_program,
    of_stopped,
    of_ticket,
    of_xid,
)
from understudy_controlplane.fleet.notice import Notice, NoticeSource, Stage
from understudy_controlplane.fleet.notice_facts import TicketFacts, XidFacts
from understudy_controlplane.store.notices import AT_ONCE, NoticeStore

FOLLOW_SECONDS = 5.0
"""Interval at which open notices are followed."""

AGAIN_SECONDS = 3600.0
"""Seconds in which an owner is not notified again that their program causes errors of GPUs."""

Key = tuple[NoticeSource, int]
_Facts = TypeVar("_Facts")


@dataclass(frozen=True, slots=True)
class Owners:
    """What owners of jobs wish, by job id. `mails`: those that ask Slurm for mail, with the address that the site lets
    them choose; empty: none. `only_mails`: the others want none.
    """

    unwanted: Collection[int] = ()
    mails: Mapping[int, str] = field(default_factory=dict)
    only_mails: bool = False

    def want(self, user: str, job_id: int | None) -> bool:
        return bool(user) and job_id not in self.unwanted and (job_id in self.mails or not self.only_mails)

    def mail_of(self, job_id: int | None) -> str:
        return self.mails.get(job_id, "") if job_id is not None else ""


@dataclass(slots=True)
class Found:
    """`changed`: known ones, by their id. `last`: numbers of the last ones that were found; `looked`: up to where was
    looked, where most rows are no cause of a notice.
    """

    new: list[Notice] = field(default_factory=list)
    changed: dict[int, Notice] = field(default_factory=dict)
    last: dict[NoticeSource, int] = field(default_factory=dict)
    looked: dict[NoticeSource, int] = field(default_factory=dict)


class Collector:
    def __init__(self, store: NoticeStore) -> None:
        self._store = store
        self._last: dict[NoticeSource, int] = {}
        self._followed_at: float | None = None
        self._xids_at: dict[int, float] = {}

    def look(self, now: float, owners: Owners) -> Found:
        """Raises StoreError."""
        if not self._last:
            self._last = self._store.begin(now)
        going_on = {(one.source, one.number): one for one in self._store.going_on()}
        found = Found()
        self._add_incidents(found)
        if len(found.new) < AT_ONCE:  # tickets come behind the incidents that they are about
            self._add_tickets(found, going_on)
        self._add_requests(found)
        self._add_of_owners(found, now, owners)
        self._add_of_programs(found, now, owners)
        found.new += _marks(found, now)
        if self._followed_at is None or not 0 <= now - self._followed_at < FOLLOW_SECONDS:
            self._followed_at = now
            for one in self._followed(going_on, found.changed):
                found.changed[one.id] = one
        return found

    def written(self, found: Found) -> None:
        """What was found is in the database."""
        self._last |= found.last
        self._last |= found.looked

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
        for one in self._looked(found, NoticeSource.LEMON, self._store.new_lemons):
            found.last[NoticeSource.LEMON] = one.number
            found.new.append(of_lemon(one))

    def _add_of_owners(self, found: Found, now: float, owners: Owners) -> None:
        for move in self._store.new_moves(self._last[NoticeSource.MOVE]):
            found.last[NoticeSource.MOVE] = move.number
            if owners.want(move.user, move.job_id):
                found.new.append(replace(of_move(move), mail=owners.mail_of(move.job_id)))
        for one in self._store.opened_before(self._last[NoticeSource.STOPPED], now - STOPPED_SECONDS):
            found.last[NoticeSource.STOPPED] = one.number
            if one.closed_at is None and not one.moves and owners.want(one.user, one.job_id):
                found.new.append(replace(of_stopped(one), mail=owners.mail_of(one.job_id)))

    def _add_of_programs(self, found: Found, now: float, owners: Owners) -> None:
        ends = self._looked(found, NoticeSource.LAUNCH, self._store.new_program_ends)
        xids = self._looked(found, NoticeSource.XID, self._store.new_program_xids)
        for one in ends:
            found.last[NoticeSource.LAUNCH] = one.number
            if owners.want(one.user, one.job_id):
                found.new.append(replace(of_program(one), mail=owners.mail_of(one.job_id)))
        together: dict[int, XidFacts] = {}
        for xid in xids:
            found.last[NoticeSource.XID] = xid.number
            known = together.get(xid.job_id)
            together[xid.job_id] = replace(xid, nodes=(*known.nodes, *xid.nodes), reason=known.reason) if known else xid
        for xid in together.values():  # the last number of each job: it stands for those before
            is_known = now - self._xids_at.get(xid.job_id, -AGAIN_SECONDS) < AGAIN_SECONDS
            if owners.want(xid.user, xid.job_id) and not is_known:
                self._xids_at[xid.job_id] = now
                nodes = tuple(dict.fromkeys(xid.nodes))
                found.new.append(replace(of_xid(replace(xid, nodes=nodes)), mail=owners.mail_of(xid.job_id)))
        self._xids_at = {job: at for job, at in self._xids_at.items() if 0 <= now - at < AGAIN_SECONDS}

    def _looked(self, found: Found, source: NoticeSource, read: Callable[[int], list[_Facts]]) -> list[_Facts]:
        """What is new. The next look begins behind all rows that were there before it."""
        newest, last = self._store.newest(source), self._last[source]
        rows = read(last)
        if len(rows) < AT_ONCE:
            found.looked[source] = max(newest, last)
        return rows

    def _followed(self, going_on: Mapping[Key, Notice], changed: Mapping[int, Notice]) -> Iterator[Notice]:
        """Open notices that say something else now."""
        now_so = {(one.source, one.number): one for one in self._as_it_is(going_on, changed)}
        for key, known in going_on.items():
            if key not in now_so:  # its row was deleted
                yield replace(known, stage=Stage.OVER, over_at=known.at)
            elif (found := replace(now_so[key], id=known.id, mail=known.mail)) != known:
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
        yield from map(of_program, self._store.program_ends(numbers[NoticeSource.LAUNCH]))


def _marks(found: Found, now: float) -> Iterator[Notice]:
    """Rows without words for the last ones that no notice was made of: after a restart they are not looked at again."""
    made = {(one.source, one.number) for one in found.new}
    for source, number in found.last.items():
        if (source, number) not in made:
            yield Notice(source, number, Importance.INFO, Stage.REPORTED, "", "", (), now)


def _needing(notice: Notice, ticket: TicketFacts) -> Notice:
    page = of_ticket(ticket)
    return replace(notice, importance=page.importance, needs=page.needs)
