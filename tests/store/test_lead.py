"""Two control planes on one PostgreSQL: one leads, the other stands by."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, text

from tests import builders as b
from tests.waiting import PATIENCE_SECONDS, wait_until
from understudy_controlplane.decide.leadership import CALL_SECONDS, LEASE_SECONDS
from understudy_controlplane.fleet.holder import Standby
from understudy_controlplane.fleet.recovery import RecoveryStep, StepName, StepStatus
from understudy_controlplane.lease import Leadership, boottime
from understudy_controlplane.store.database import AddressError, StoreError, newest_revision, open_database
from understudy_controlplane.store.database_lock import DatabaseTaken
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.holder import HolderSession, who_leads
from understudy_controlplane.store.journal import Journal
from understudy_controlplane.store.recoveries import RecoveryStore

if TYPE_CHECKING:
    from tests.testbed.postgres import Postgres

pytestmark = pytest.mark.integration

Make = Callable[[str], "Side"]


class Side:
    """A control plane's lead, and what it writes with."""

    def __init__(self, url: str, name: str) -> None:
        self.reaches_slurm = True
        self.answers = 7
        self.lead = Leadership(
            url,
            name,
            unable=lambda: "" if self.reaches_slurm else "slurmctld does not answer",
            answers=lambda: self.answers,
        )
        self.notes: list[str] = []
        self.url = url
        self._over = threading.Event()
        self._waits = threading.Thread(target=self._wait, daemon=True)
        self.leads = threading.Event()
        self.engine: Engine | None = None
        self._waits.start()

    def _wait(self) -> None:
        if self.lead.wait(self._over.wait, self.notes.append):
            self.leads.set()

    def open(self) -> Engine:
        assert self.leads.wait(PATIENCE_SECONDS), self.notes
        self.engine = open_database(self.url, self.lead.term)
        return self.engine

    def freeze(self) -> None:
        """Its connections stay, as of a process that was stopped, and nothing is renewed."""
        self.lead._over.set()

    def close(self) -> None:
        self._over.set()
        self._waits.join(PATIENCE_SECONDS)
        self.lead.give_up()
        if self.engine is not None:
            self.engine.dispose()


@pytest.fixture
def make(postgres_url: str) -> Iterator[Make]:
    sides: list[Side] = []

    def made(name: str) -> Side:
        sides.append(Side(postgres_url, name))
        return sides[-1]

    yield made
    for one in sides:
        one.close()


def test_the_first_one_leads_at_once_and_a_second_one_stands_by(make: Make) -> None:
    first = make("a:7117")
    first.open()
    assert first.lead.objection() == ""
    second = make("b:7117")
    wait_until(lambda: "stands by: a:7117 leads" in second.notes)
    assert not second.leads.wait(2 * LEASE_SECONDS), "the lease is renewed"
    first.lead.check()


def test_the_leader_sees_who_stands_by_and_who_has_gone(make: Make) -> None:
    """A frozen standby keeps its session, and asks for nothing."""
    first = make("a:7117")
    first.open()
    assert first.lead.leading().gone_since is None, "there never was one"
    frozen, second = make("a-host-whose-name-is-rather-long.example.org:7117"), make("b:7117")
    wait_until(lambda: len(first.lead.leading().standbys) == 2)
    names = ["a-host-whose-name-is-rather-long.exa", "b:7117"]
    assert first.lead.leading().standbys == names, "PostgreSQL shows no more of it"
    frozen._over.set()
    frozen._waits.join(PATIENCE_SECONDS)
    frozen.lead._connect()
    wait_until(lambda: first.lead.leading().standbys == ["b:7117"])
    frozen.lead._disconnect()
    second.reaches_slurm = False
    wait_until(lambda: "b:7117 (unable to lead) stands by" in who_leads(first.url)[0])
    assert who_leads(first.url)[1].startswith("b:7117 cannot read Slurm, or has an older release")
    wait_until(lambda: "stands by: a:7117 leads; it is passed no lead: slurmctld does not answer" in second.notes)
    second.reaches_slurm = True
    wait_until(lambda: "(unable" not in who_leads(first.url)[0])
    assert who_leads(first.url) == (f"a:7117 leads in term {first.lead.term}; b:7117 stands by", "")
    first.lead.give_up()
    second.open()
    found = second.lead.leading()
    assert (found.url, found.term, found.standbys) == ("b:7117", second.lead.term, ["a:7117"])
    wait_until(lambda: not second.lead.leading().standbys)
    assert second.lead.leading().gone_since is not None
    second.lead.give_up()
    assert who_leads(first.url)[0] == "none leads; b:7117 gave the lead up"


def test_a_leader_of_the_release_before_sees_each_standby(make: Make, postgres_url: str) -> None:
    """It knows no standby that could work, and must not miss it either."""
    as_it_asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'understudy standby %'"
    first, second = make("a:7117"), None
    engine = first.open()
    second = make("b:7117")
    wait_until(lambda: second.notes and "(unable" not in who_leads(postgres_url)[0])
    with engine.connect() as connection:
        assert connection.execute(text(as_it_asked)).scalar() == 1
    second.reaches_slurm = False
    wait_until(lambda: "(unable" in who_leads(postgres_url)[0])
    with engine.connect() as connection:
        assert connection.execute(text(as_it_asked)).scalar() == 1


def test_of_two_sessions_of_one_standby_the_newer_counts(postgres_url: str) -> None:
    """PostgreSQL keeps a session for a while whose standby has lost it and connected again."""
    lost, sessions = HolderSession(postgres_url, "b"), [HolderSession(postgres_url, name) for name in ("b", "a")]
    try:
        lost.show_able(9)
        sessions[0].show_able(3)  # this name is sorted before the other
        assert sessions[1].standbys()["b"].answers == 3
    finally:
        for one in (lost, *sessions):
            one.close()


def test_a_single_one_whose_address_has_changed_misses_no_standby(make: Make) -> None:
    first = make("old:7117")
    first.open()
    first.lead.give_up(lambda: False)
    second = make("new:7117")
    second.open()
    assert second.lead.leading().seen_at == {}


def test_an_empty_database_gets_its_schema_from_the_one_that_leads(make: Make, postgres_url: str) -> None:
    engine = open_database(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    FleetStore(make("a:7117").open()).add_nodes(["n1"], b.NOW)


def test_after_a_planned_end_the_next_one_waits_for_nothing(make: Make) -> None:
    first, second = make("a:7117"), None
    first.open()
    second = make("b:7117")
    wait_until(lambda: second.notes)
    first.lead.give_up()
    assert second.leads.wait(LEASE_SECONDS)
    assert second.lead.objection() == ""
    assert second.lead.term > first.lead.term


def test_after_the_end_of_its_session_the_next_one_leads_and_lets_its_last_call_end(
    make: Make, postgres: Postgres
) -> None:
    """Its process may live, such as behind a network that is away."""
    first = make("a:7117")
    first.open()
    second = make("b:7117")
    wait_until(lambda: second.notes)
    last_call_ends = boottime() + LEASE_SECONDS + CALL_SECONDS
    first.lead.give_up(lambda: False)
    assert second.leads.wait(LEASE_SECONDS)
    assert "just now" in second.lead.objection()
    wait_until(lambda: not second.lead.objection())
    assert boottime() > last_call_ends - LEASE_SECONDS


def test_one_that_was_frozen_in_a_transaction_writes_nothing_and_stops(make: Make) -> None:
    first = make("a:7117")
    engine = first.open()
    second = make("b:7117")
    wait_until(lambda: second.notes)
    FleetStore(engine).add_nodes(["n1"], b.NOW)
    frozen = engine.connect()
    frozen.execute(text("DELETE FROM node"))
    first.freeze()
    other = second.open()
    assert "n1" in FleetStore(other).nodes()
    with pytest.raises(StoreError):
        frozen.commit()
    frozen.invalidate()
    frozen.close()
    with pytest.raises(StoreError, match="another control plane has taken the lead"):
        FleetStore(engine).add_nodes(["n2"], b.NOW)
    first.lead._over.clear()
    first.lead._keep()  # it goes on, as after SIGCONT
    assert first.lead.objection() == "another control plane leads"
    with pytest.raises(DatabaseTaken):
        first.lead.check()
    second.lead.check()


@pytest.mark.parametrize("write", ["record", "intend"])
def test_decisions_and_steps_are_not_written_in_an_older_term(make: Make, write: str) -> None:
    """Also over a connection that is still open."""
    first = make("a:7117")
    engine = first.open()
    with engine.begin() as connection:
        connection.execute(text("UPDATE holder SET term = term + 1"))
    with pytest.raises(StoreError, match="another control plane has taken the lead"):
        if write == "record":
            Journal(engine).record([], b.NOW, {})
        else:
            step = RecoveryStep(0, StepName.DRAIN_NODES, StepStatus.PLANNED, 0)
            RecoveryStore(engine).intend(1, step, b.NOW)


def test_one_that_lost_its_session_goes_on_in_its_term_if_no_other_one_led(make: Make, postgres: Postgres) -> None:
    first = make("a:7117")
    first.open()
    term = first.lead.term
    postgres.end_sessions()
    wait_until(lambda: first.lead._problem)
    with pytest.raises(StoreError, match="does not confirm"):
        first.lead.check()
    wait_until(lambda: not first.lead._problem)
    assert (first.lead.term, first.lead.objection()) == (term, "")
    assert not make("b:7117").leads.wait(LEASE_SECONDS)


def test_a_leader_that_cannot_work_passes_the_lead_on_to_a_standby_that_can(make: Make) -> None:
    first = make("a:7117")
    first.open()
    first.lead.settled_seconds = 0.0
    second = make("b:7117")
    second.reaches_slurm = False
    wait_until(lambda: second.notes)
    ended = threading.Event()
    turns = itertools.count()
    answers: list[int] = []

    def missing(able: Mapping[str, Standby]) -> str:
        answers.extend(one.answers for one in able.values())
        return "slurmctld does not answer this control plane"

    first.lead.follow(lambda: next(turns), ended.set, missing)
    assert not ended.wait(2 * LEASE_SECONDS), "the other one fares no better"
    assert not answers
    first.lead.settled_seconds = 600.0
    second.reaches_slurm = True
    wait_until(lambda: 7 in answers)
    second.answers = 108
    wait_until(lambda: 8 in answers)
    assert not ended.wait(LEASE_SECONDS), "it has taken the lead just now: perhaps the one before could not work either"
    first.lead.settled_seconds = 0.0
    assert ended.wait(PATIENCE_SECONDS)
    assert first.lead.handed_over == "slurmctld does not answer this control plane"
    first.lead.give_up()
    assert second.leads.wait(PATIENCE_SECONDS)
    assert second.lead.objection() == "", "it waits for nothing"


def test_one_of_an_older_release_does_not_take_the_lead_of_a_database_that_a_newer_one_has_upgraded(
    make: Make, postgres_url: str
) -> None:
    """It could not open it, and would only end the sessions of the one that can."""

    def upgrade(revision: str) -> None:
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})

    engine = open_database(postgres_url)
    newer = make("a:7117")
    newer.open()
    upgrade("9999")
    older = make("b:7117")
    wait_until(lambda: "install that one here" in "".join(older.notes))
    assert "b:7117 (unable to lead)" in who_leads(postgres_url)[0], "the newer one passes it no lead"
    newer.lead.give_up()
    assert not older.leads.wait(LEASE_SECONDS)
    upgrade(newest_revision())
    assert older.leads.wait(PATIENCE_SECONDS)
    engine.dispose()


def test_an_error_of_the_control_plane_is_not_shown_as_one_of_the_database(make: Make) -> None:
    first = make("a:7117")
    first.open()
    counted = itertools.count()

    def turns() -> int:
        if next(counted) == 1:  # the first question is that of `follow`
            raise ValueError("no number of turns")
        return 7

    first.lead.follow(turns, lambda: None)
    wait_until(lambda: first.lead._problem)
    with pytest.raises(StoreError, match=r"an error of the control plane keeps it from renewing.*no number of turns"):
        first.lead.check()
    wait_until(lambda: not first.lead._problem)
    assert first.lead.objection() == ""


def test_one_that_was_frozen_before_it_opened_the_database_opens_none(make: Make, postgres_url: str) -> None:
    first = make("a:7117")
    assert first.leads.wait(PATIENCE_SECONDS)
    first.freeze()
    make("b:7117").open()
    with pytest.raises(StoreError):
        open_database(postgres_url, first.lead.term)


@pytest.mark.parametrize("url", ["postgresql+nothing://h/d", "no address"])
def test_an_address_that_is_wrong_is_not_waited_for(url: str) -> None:
    with pytest.raises(AddressError):
        Leadership(url, "a:7117").wait(lambda _: False, lambda _: None)


def test_of_two_that_stand_by_one_leads(make: Make) -> None:
    first = make("a:7117")
    first.open()
    others = [make("b:7117"), make("c:7117")]
    wait_until(lambda: all(one.notes for one in others))
    first.freeze()
    wait_until(lambda: any(one.leads.is_set() for one in others))
    time.sleep(2 * LEASE_SECONDS)
    assert [one.leads.is_set() for one in others].count(True) == 1


def test_a_loop_that_stands_still_gives_the_lead_to_another(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_controlplane.lease.LOOP_SECONDS", 0.5)
    first = make("a:7117")
    first.open()
    second = make("b:7117")
    wait_until(lambda: second.notes)
    first.lead.follow(lambda: 1, lambda: None)
    assert second.leads.wait(PATIENCE_SECONDS)
