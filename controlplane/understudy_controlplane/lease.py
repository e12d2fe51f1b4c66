"""The lead of one control plane on PostgreSQL: waits for it, keeps it, gives it up. `decide/leadership.py` judges."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from understudy_controlplane.decide.leadership import (
    LEASE_SECONDS,
    LOOP_SECONDS,
    MISSED_SECONDS,
    RENEWAL_SECONDS,
    SETTLED_SECONDS,
    Lead,
    Lease,
    Sighting,
    look,
    stance,
)
from understudy_controlplane.fleet.holder import Leading, Standby
from understudy_controlplane.store.database import AddressError, StoreError, open_database
from understudy_controlplane.store.database_lock import DatabaseTaken
from understudy_controlplane.store.holder import LEADER, HolderSession, shown

log = structlog.get_logger()

POLL_SECONDS = 0.25
RECONNECT_SECONDS = 1.0

STOP_SECONDS = 5.0
"""A control plane that is to hand the lead over and has not ended by then renews it no more: its server may hang."""


def boottime() -> float:
    """Also counts the time for which this machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leadership:
    """`wait` first. After it a thread renews the lease until `give_up`, or until another control plane leads."""

    settled_seconds = SETTLED_SECONDS

    def __init__(
        self,
        url: str,
        by: str,
        now: Callable[[], float] = boottime,
        unable: Callable[[], str] = lambda: "",
        answers: Callable[[], int] = lambda: 0,
    ) -> None:
        """`unable`: why it could not work if it led, while it stands by; empty: it could. `answers`: how many slurmctld
        has given it.
        """
        self.handed_over = ""  # why
        self._unable = unable
        self._answers = answers
        self._led_from = 0.0
        self._renews_until = float("inf")
        self._url = url
        self._by = by
        self._now = now
        self._session: HolderSession | None = None
        self._locked = True
        self._lease = Lease(0, float("-inf"), 0.0)
        self._leading = Leading(by, 0, 0.0, 0.0, {})
        self._problem = ""
        self._taken = False
        self._over = threading.Event()
        self._keeper: threading.Thread | None = None
        self._turns: Callable[[], int] = lambda: 0
        self._seen_turns = (0, float("inf"))
        self._begins: Callable[[], None] = lambda: None
        self._on_lost: Callable[[], None] = lambda: None
        self._missing: Callable[[Mapping[str, Standby]], str] = lambda _: ""

    @property
    def taken(self) -> bool:
        """True if another control plane has the lead."""
        return self._taken

    @property
    def term(self) -> int:
        return self._lease.term

    def wait(self, is_over: Callable[[float], bool], note: Callable[[str], None]) -> bool:
        """Returns when this control plane leads, or with False once `is_over`, which sleeps for the given seconds.
        `note` takes what it does; it is called until `follow`.
        """
        seen, pause = None, 0.0
        while not is_over(pause):
            pause = POLL_SECONDS
            try:
                session = self._session or self._connect()
                foreign = session.foreign_revision()
                unable = self._unable()
                session.show_able(None if foreign or unable else self._answers())
                if foreign:  # it would end the leader that can use it
                    note(f"stands by: another release has upgraded the database ({foreign}): install that one here")
                    continue
                ended = (not unable or not _able(session.standbys())) and session.take_lock()
                before, seen = seen, look(seen, session.holder(), self._now())
                self._note_leader(before, seen)
                found = stance(seen, self._now(), session_ended=ended)
                if isinstance(found, Lead) and self._take(session, seen, found, is_over, locked=ended):
                    self._begin_to_keep()
                    return True
                self._begins = lambda: note("takes the lead")
                note(f"{self._waits_for(seen)}{f'; it is passed no lead: {unable}' if unable else ''}")
            except AddressError:
                raise  # a URL that is wrong: waiting does not help
            except StoreError as error:
                self._disconnect()
                seen, pause = None, RECONNECT_SECONDS  # the database may be another one from now on
                note(f"stands by: the database cannot be used: {error}")
        self._disconnect()
        return False

    def _note_leader(self, before: Sighting | None, seen: Sighting) -> None:
        """One that renews while this one waits is the other of two, and no earlier address of the only one."""
        if before is None or seen is before or before.holder is None or before.holder.url == self._by:
            return
        seen_at = {**self._leading.seen_at, shown(before.holder.url): time.time()}
        self._leading = replace(self._leading, seen_at=seen_at)

    def _waits_for(self, seen: Sighting) -> str:
        if seen.holder is not None and seen.holder.url == self._by:
            return "waits until the session of this host's last control plane has ended"
        return f"stands by: {seen.holder.url if seen.holder else 'another control plane'} leads"

    def follow(
        self,
        turns: Callable[[], int],
        on_lost: Callable[[], None],
        missing: Callable[[Mapping[str, Standby]], str] = lambda _: "",
    ) -> None:
        """The lease is renewed only while the loop turns, from now on. `on_lost` ends the process, also where it is to
        hand the lead over. `missing` is given the standbys that could lead, at each renewal: what this control plane
        needs for its work and does not reach, while one of them does; empty: nothing.
        """
        self._turns, self._on_lost, self._begins, self._missing = turns, on_lost, lambda: None, missing
        self._seen_turns = (turns(), self._now())

    def check(self) -> None:
        """Raises DatabaseTaken where another control plane has the lead; StoreError while that cannot be known."""
        if self._taken:
            raise DatabaseTaken("it took the lead while this one did not renew its lease")
        if self._problem:
            raise StoreError(self._problem)

    def objection(self) -> str:
        """Why nothing may be changed in Slurm now; empty: it may."""
        return "another control plane leads" if self._taken else self._lease.objection(self._now())

    def is_cut_off(self) -> bool:
        return self._taken or self._lease.is_cut_off(self._now())

    def leading(self) -> Leading:
        return self._leading

    def _end_changes(self) -> bool:
        """Nothing may be changed in Slurm from now on. False: it waits for the database; the lease ends soon."""
        self._over.set()
        if self._keeper is not None:
            self._keeper.join(LEASE_SECONDS)
            if self._keeper.is_alive():
                return False
        self._lease = replace(self._lease, renewed_at=float("-inf"))
        return True

    def give_up(self, calls_end: Callable[[], bool] = lambda: True) -> None:
        """`calls_end`: waits for the calls to Slurm that are under way. True: the next one need not wait for them."""
        if not self._end_changes():
            return
        idle = calls_end()
        try:
            if self._session is not None and idle and not self._taken:
                self._session.give_up(self._lease.term)
        except StoreError as error:
            log.warning("lead_not_given_up", error=str(error), remedy="the next leader waits until the lease is over")
        self._disconnect()

    def _connect(self, name: str = "") -> HolderSession:
        self._session = HolderSession(self._url, self._by, name)
        return self._session

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _take(
        self, session: HolderSession, seen: Sighting, found: Lead, is_over: Callable[[float], bool], *, locked: bool
    ) -> bool:
        """False: another standby was faster, or it is over."""
        if seen.holder is None:  # the table may not exist
            open_database(self._url).dispose()
        begun = self._now()
        term = session.raise_term(seen.holder)
        if term is None:
            return False
        while not (session.end_older(term) and (locked or session.take_lock())):
            begun = self._now()
            if not session.renew(term) or is_over(POLL_SECONDS / 10):
                self._disconnect()  # it has the name of a leader's
                return False
        self._lease = Lease(term, begun, found.calls_from)
        self._led_from = begun
        self._leading = replace(self._leading, term=term, since=time.time(), looked_at=time.time())
        log.info("lead_taken", term=term, waits_seconds=round(max(found.calls_from - begun, 0.0), 1))
        return True

    def _begin_to_keep(self) -> None:
        self._keeper = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        begun = self._now()
        while not self._over.wait(max(0.0, begun + RENEWAL_SECONDS - self._now())):
            begun = self._now()
            self._begins()
            try:
                if self._loop_turns() and begun < self._renews_until:
                    self._renew()
                self._problem = ""
            except DatabaseTaken:
                self._taken = True
                self._on_lost()
                return
            except StoreError as error:
                self._fails(f"the database does not confirm that this control plane leads: {error}")
            except Exception as error:
                if self._fails(f"an error of the control plane keeps it from renewing its lease: {error!r}"):
                    log.exception("lease_not_renewed")

    def _fails(self, problem: str) -> bool:
        """True if this is news. Without this thread the process would be of no more use: it goes on."""
        is_new, self._problem = problem != self._problem, problem
        self._disconnect()
        return is_new

    def _loop_turns(self) -> bool:
        turns, now = self._turns(), self._now()
        if turns != self._seen_turns[0]:
            self._seen_turns = (turns, now)
        return now - self._seen_turns[1] < LOOP_SECONDS

    def _renew(self) -> None:
        session, begun = self._session, self._now()
        if session is None:
            session = self._connect(LEADER)
            self._locked = False
        if not session.renew(self._lease.term):
            raise DatabaseTaken
        self._lease = replace(self._lease, renewed_at=begun)
        # The server may keep a session that was lost for a while, with its lock. The term alone protects.
        self._locked = self._locked or session.take_lock()
        now = time.time()
        standbys = session.standbys()
        seen_at = {name: now - one.silent_seconds for name, one in standbys.items()}
        self._leading = replace(self._leading, looked_at=now, seen_at={**self._leading.seen_at, **seen_at})
        self._look_at_own_work(_able(standbys))

    def _look_at_own_work(self, able: Mapping[str, Standby]) -> None:
        """Passes the lead on where this control plane cannot work and a standby can."""
        missing, now = self._missing(able), self._now()
        if not missing or not able or self.handed_over or now - self._led_from < self.settled_seconds:
            return
        self.handed_over, self._renews_until = missing, now + STOP_SECONDS
        log.warning("lead_handed_over", reason=missing)
        self._on_lost()


def _able(standbys: Mapping[str, Standby]) -> dict[str, Standby]:
    return {name: one for name, one in standbys.items() if one.able and one.silent_seconds < MISSED_SECONDS}
