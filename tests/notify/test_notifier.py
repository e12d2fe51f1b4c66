"""People are notified once of each thing, whatever happens to receivers and to the control plane meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select
from structlog.testing import capture_logs

from tests.notify.site import KEY, HttpReceiver, Site, http_receiver, secret_file, webhook
from understudy_controlplane.notify import states
from understudy_controlplane.notify.addresses import mail_of, secrets_of
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import DatabaseInMemory

# A storm of an hour takes minutes where these tests give way to all others; one that is ended in the middle leaves the
# others no database.
pytestmark = [pytest.mark.integration, pytest.mark.patient, pytest.mark.timeout(900)]

MINUTE, HOUR = 60.0, 3600.0


@pytest.fixture(scope="module")
def memory() -> Iterator[DatabaseInMemory]:
    memory = DatabaseInMemory()
    yield memory
    memory.engine.dispose()


@pytest.fixture
def engine(memory: DatabaseInMemory) -> Engine:
    memory.clear()
    return memory.engine


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as receiver:
        yield receiver
    assert receiver.wrong == []


@pytest.fixture
def site(engine: Engine, tmp_path: Path, receiver: HttpReceiver) -> Site:
    return Site(engine, tmp_path, {"receivers": {"hook": webhook(tmp_path, receiver)}})


def versions(receiver: HttpReceiver) -> list[tuple[str, int, str]]:
    return [(one["id"], one["revision"], one["status"]) for one in receiver.got]


class TestAnIncident:
    def test_is_one_message_that_is_updated_until_it_is_over(self, site: Site, receiver: HttpReceiver) -> None:
        incident = site.fail("n3")
        job = site.job()
        recovery = site.move(job, incident)
        site.run(20)
        assert versions(receiver) == [("testbed-1", 1, "open")]
        assert receiver.got[0]["title"] == "Understudy testbed: node n3: hardware fault"
        site.run(30)
        site.moved(recovery)
        site.run(30)
        site.run(MINUTE)
        site.end(incident)
        site.run(10 * MINUTE)
        assert versions(receiver) == [("testbed-1", 1, "open"), ("testbed-1", 2, "recovered"), ("testbed-1", 3, "over")]
        assert len({one["title"] for one in receiver.got}) == 1, "mail programs and pagers know it by its title"
        assert "with n5 succeeded after" in receiver.got[1]["text"]
        assert "Over: the node is back in service" in receiver.got[2]["text"]

    def test_that_is_over_before_it_was_sent_is_one_message(self, site: Site, receiver: HttpReceiver) -> None:
        incident = site.fail("n3")
        site.run(4)
        site.end(incident)
        site.run(10 * MINUTE)
        assert versions(receiver) == [("testbed-1", 2, "over")]

    def test_for_which_a_person_is_needed_becomes_a_page_in_the_same_message(
        self, engine: Engine, tmp_path: Path, receiver: HttpReceiver
    ) -> None:
        with http_receiver() as pager:
            folder = tmp_path / "pager"
            folder.mkdir()
            of_pager = webhook(folder, pager, least="page")
            site = Site(engine, tmp_path, {"receivers": {"hook": webhook(tmp_path, receiver), "pager": of_pager}})
            site.fail("n3")
            site.run(MINUTE)
            assert pager.got == []
            site.ticket("n3", "all repairs have failed")
            site.run(MINUTE)
            assert [(one["id"], one["importance"]) for one in receiver.got] == [
                ("testbed-1", "warning"),
                ("testbed-1", "page"),
            ]
            assert [one["importance"] for one in pager.got] == ["page"]
            assert "A person is needed: all repairs have failed" in pager.got[0]["text"]

    def test_of_the_time_before_the_first_start_is_not_reported(self, engine: Engine, tmp_path: Path) -> None:
        with http_receiver() as receiver:
            early = Site(engine, tmp_path)
            early.fail("n1")
            with engine.begin() as connection:
                connection.execute(tables.notice.delete())
            site = Site(engine, tmp_path, {"receivers": {"hook": webhook(tmp_path, receiver)}})
            site.run(MINUTE)
            assert receiver.got == []
            site.fail("n2")
            site.run(MINUTE)
            assert [one["notices"][0]["about"] for one in receiver.got] == [["n2"]]


class TestAStorm:
    def test_of_200_incidents_is_one_message(self, site: Site, receiver: HttpReceiver) -> None:
        incidents = [site.fail(f"n{number}") for number in range(1, 201)]
        site.ticket("n1", "200 held back by fleet_budget", [f"n{number}" for number in range(1, 201)])
        site.run(30 * MINUTE, every=MINUTE)
        (message,) = receiver.got
        assert message["notices_total"] == 201
        assert message[
            "title"
        ] == "Understudy testbed: 201 notices, the first: a person is needed: n1, n2, n3, n4, n5, " + (
            "n6, n7, n8, … (200 in all)"
        )
        assert "and 181 more" in message["text"]
        assert len(message["text"]) < 10_000
        for incident in incidents:
            site.end(incident)
        site.run(10 * MINUTE, every=MINUTE)
        assert [one["status"] for one in receiver.got] == ["open", "over"], "its end is one version"


class TestAReceiverThatIsAway:
    def test_for_an_hour_gets_one_message_with_what_is_so_then(self, site: Site, receiver: HttpReceiver) -> None:
        receiver.status = 503
        first = site.fail("n0")
        for number in range(1, 20):
            site.fail(f"n{number}")
            site.run(3 * MINUTE, every=MINUTE)
        site.end(first)
        site.run(10)
        assert receiver.got == []
        assert 10 < receiver.refused < 30, "tried again after 10 s at first, then every five minutes"
        assert site.pulse.messages_waiting == {"hook": 1, "owners": 0}
        (problem,) = site.pulse.notify_problems
        assert problem.startswith("no notification reaches hook: HTTP 503; ")
        receiver.status = 200
        site.run(5 * MINUTE)
        (message,) = receiver.got
        assert message["notices_total"] == 20
        assert "1 are over" in message["text"]
        assert site.pulse.notify_problems == []
        assert site.pulse.messages_waiting == {"hook": 0, "owners": 0}
        site.run(HOUR, every=MINUTE)
        assert len(receiver.got) == 1

    def test_also_while_the_control_plane_starts_again(self, site: Site, receiver: HttpReceiver) -> None:
        receiver.status = 503
        site.fail("n1")
        site.run(MINUTE)
        site.start()
        site.fail("n2")
        site.run(MINUTE)
        receiver.status = 200
        site.start()
        site.run(5 * MINUTE)
        (message,) = receiver.got
        assert [one["about"] for one in message["notices"]] == [["n1"], ["n2"]]

    def test_and_that_does_not_come_back_within_a_day_is_given_up_and_counted(
        self, site: Site, receiver: HttpReceiver
    ) -> None:
        receiver.status = 500
        site.fail("n1")
        site.run(25 * HOUR, every=5 * MINUTE)
        assert receiver.refused == 290
        counted = {"receiver": "hook", "outcome": "failed"}
        assert site.pulse.meters.registry.get_sample_value("understudy_notifications_total", counted) == 290
        site.fail("n2")
        receiver.status = 200
        site.run(HOUR, every=MINUTE)
        assert [one["notices_total"] for one in receiver.got] == [1]


def test_a_restart_sends_nothing_twice(site: Site, receiver: HttpReceiver) -> None:
    site.fail("n1")
    site.run(MINUTE)
    for _ in range(3):
        site.start()
        site.run(10 * MINUTE)
    assert len(receiver.got) == 1


def _ends_behind(site: Site, work: Callable[[], None]) -> None:
    """The message is sent, and its answer is never read."""
    work()
    site.notifier._answers.clear()


def test_a_process_that_ended_before_it_knew_the_answer_sends_the_same_version_under_the_same_id(
    site: Site, receiver: HttpReceiver
) -> None:
    site.fail("n1")
    site.notifier._begin = lambda _name, work: _ends_behind(site, work)
    site.run(MINUTE)
    assert versions(receiver) == [("testbed-1", 1, "open")]
    site.start()
    site.run(10 * MINUTE)
    assert versions(receiver) == [("testbed-1", 1, "open")] * 2


SETTINGS = ["held", "left", "unheard", "domain", "signal"]


@pytest.mark.parametrize("label", SETTINGS)
def test_each_ticket_that_a_page_opens_is_a_message_at_once(site: Site, receiver: HttpReceiver, label: str) -> None:
    """`tests/decide` shows which setting opens which."""
    site.ticket("n1", f"{label}: look at it", ["n1", "n2"])
    site.run(30)
    (message,) = receiver.got
    assert (message["importance"], message["status"]) == ("page", "reported")
    site.run(HOUR, every=MINUTE)
    assert len(receiver.got) == 1


def test_a_node_that_fails_repeatedly_is_a_message(site: Site, receiver: HttpReceiver) -> None:
    decided: dict[str, Any] = {"key": "k", "table_row": 151, "rule": "lemon.score", "because": "rule", "evidence": {}}
    reason = "fails repeatedly: score 2.3 in 28 days (faults 2); an administrator should look at it"
    site.add(tables.decision, at=site.clock.at, action="nothing", subject="n3", reason=reason, **decided)
    site.run(30)
    site.start()
    site.run(30)
    (message,) = receiver.got
    assert (message["title"], message["importance"]) == ("Understudy testbed: n3 fails repeatedly", "warning")
    assert "score 2.3 in 28 days" in message["text"]


def test_an_incident_whose_recovery_failed_is_a_page_until_one_succeeds(site: Site, receiver: HttpReceiver) -> None:
    job, incident = site.job(), site.fail("n3")
    for _ in range(3):
        site.moved(site.move(job, incident), "failed")
        site.run(30)
        again = site.move(job, incident)
        site.run(30)
        site.moved(again, "failed")
    site.moved(site.move(job, incident))
    site.run(30)
    assert [(one["importance"], one["status"]) for one in receiver.got] == [
        ("page", "failed"),
        ("warning", "recovered"),
    ]


def test_the_circuit_breaker_and_a_proposal_are_pages(site: Site, receiver: HttpReceiver) -> None:
    decided: dict[str, Any] = {"key": "k", "table_row": 1, "rule": "", "because": "rule", "evidence": {}}
    site.add(
        tables.decision, at=site.clock.at, action="open_breaker", subject="fleet", reason="8 nodes failed", **decided
    )
    site.run(30)
    recovery = site.move(site.job(), status="awaits_approval", approve_by=site.clock.at + 900)
    site.run(30)
    assert [one["title"].partition(": ")[2] for one in receiver.got] == [
        "the circuit breaker is open",
        "recovery 1 awaits approval",
    ]
    assert {one["importance"] for one in receiver.got} == {"page"}
    site.change(tables.recovery, recovery, status="expired", ended_at=site.clock.at)
    site.run(30)
    assert receiver.got[-1]["status"] == "over"


class TestSecrets:
    def test_are_in_no_message_log_or_answer(self, site: Site, receiver: HttpReceiver) -> None:
        """Also where an operator or a log names them."""
        text = " ".join(secrets_of(site.config()))
        assert KEY in text
        receiver.status = 503
        with capture_logs() as logs:
            site.fail("n1", f"reason: {text} password hook-token-4711-very-long")
            site.ticket("n2", text, ["n2", text])
            site.run(MINUTE)
        receiver.status = 200
        site.run(10 * MINUTE)
        shown = json.dumps([receiver.got, logs, [*site.pulse.notify_problems]])
        for secret in (KEY, "hook-token-4711-very-long"):
            assert secret not in shown
        assert "***" in shown

    def test_in_a_file_that_is_open_to_all_are_not_used(self, site: Site, receiver: HttpReceiver) -> None:
        (site.folder / "key").chmod(0o644)
        site.fail("n1")
        site.run(2 * MINUTE)
        assert receiver.got == []
        (problem,) = site.pulse.notify_problems
        assert f"{site.folder}/key is open to all users; close it: chmod o= " in problem
        (site.folder / "key").chmod(0o600)
        site.run(5 * MINUTE)
        assert len(receiver.got) == 1

    def test_can_be_replaced_while_it_runs(self, site: Site, receiver: HttpReceiver) -> None:
        secret_file(site.folder / "key", "another key that the receiver does not know")
        site.fail("n1")
        site.run(MINUTE)
        assert receiver.got == []
        assert receiver.wrong
        receiver.wrong.clear()
        secret_file(site.folder / "key", KEY)
        site.run(5 * MINUTE)
        assert len(receiver.got) == 1


def test_text_of_users_cannot_imitate_lines_links_or_mentions(site: Site, receiver: HttpReceiver) -> None:
    site.fail("n1", "x\n\nUnderstudy: all is well <!channel> @everyone [click](https://evil.example/) `rm`\u202egnol")
    site.run(MINUTE)
    (message,) = receiver.got
    lines = message["text"].split("\n")
    assert [line for line in lines if line.startswith("Understudy")] == []
    for mark in ("<!", "@everyone", "](", "https://", "`", "\u202e"):
        assert mark not in message["text"]


def test_no_redirection_is_followed(site: Site, receiver: HttpReceiver) -> None:
    receiver.status = 307
    site.fail("n1")
    site.run(MINUTE)
    (problem,) = site.pulse.notify_problems
    assert "HTTP 307" in problem


def test_a_receiver_that_was_taken_out_of_the_configuration_gets_nothing(site: Site, receiver: HttpReceiver) -> None:
    receiver.status = 503
    site.fail("n1")
    site.run(MINUTE)
    site.settings = {}
    site.start()
    receiver.status = 200
    site.run(10 * MINUTE)
    assert receiver.got == []
    with site.engine.connect() as connection:
        assert connection.execute(select(tables.message.c.closed)).scalars().all() == [True]


class TestTheHeartbeat:
    def test_goes_out_while_the_loop_makes_progress(
        self, engine: Engine, tmp_path: Path, receiver: HttpReceiver
    ) -> None:
        url = secret_file(tmp_path / "beat", f"{receiver.url}/ping/4711")
        site = Site(engine, tmp_path, {"heartbeat_url_file": url, "heartbeat_seconds": 60})
        site.run(10 * MINUTE)
        assert 9 <= len(receiver.got) <= 11
        stood_at = site.clock.at
        for _ in range(100):
            site.clock.at += 10
            site.notifier.look()
        assert len(receiver.got) <= 12, "the loop stands still"
        assert site.clock.at - stood_at > states.PROGRESS_SECONDS
        site.pulse.slurm.error = "slurmctld does not answer"
        site.run(10 * MINUTE)
        assert len(receiver.got) <= 12, "Slurm cannot be read"
        site.pulse.slurm.error = ""
        site.run(2 * MINUTE)
        assert len(receiver.got) >= 13


@pytest.mark.parametrize(
    ("user", "mail"),
    [
        ("alice", "alice@example.org"),
        ("alice@corp.example.org", "alice@corp.example.org"),
        ("alice@elsewhere.example", ""),
        ("CORP\\alice", ""),
        ("a b", ""),
    ],
)
def test_a_user_of_a_directory_service_has_the_mail_address_that_the_name_is(user: str, mail: str) -> None:
    assert mail_of(user, ["example.org", "corp.example.org"]) == mail
