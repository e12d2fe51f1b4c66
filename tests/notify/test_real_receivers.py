"""Notifications at a real SMTP server and Alertmanager, from a whole control plane, and by `understudy notify test`."""

from __future__ import annotations

import email
import email.policy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from click.testing import CliRunner

from tests import builders as b
from tests.new_database import new_database
from tests.notify.site import Site, http_receiver, secret_file, webhook
from tests.recover.rehearsal import Rehearsal
from tests.testbed.configuration import free_ports
from tests.testbed.prometheus import CLIENT, alertmanager, wait_for
from understudy_controlplane.cli.main import root
from understudy_controlplane.store import tables
from understudy_controlplane.store.clock_set_back import set_times_back
from understudy_controlplane.store.database import open_database

pytestmark = pytest.mark.integration


class Mailbox:
    def __init__(self) -> None:
        self.mails: list[tuple[list[str], Any]] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        self.mails.append((envelope.rcpt_tos, mail))
        return "250 OK"

    def texts(self) -> list[str]:
        return [mail.get_body(("plain", "html")).get_content() for _, mail in self.mails]


@contextmanager
def smtp_server() -> Iterator[tuple[int, Mailbox]]:
    mailbox, (port,) = Mailbox(), free_ports(1)
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield port, mailbox
    finally:
        controller.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    engine = open_database(new_database(tmp_path / "fleet.db"))
    yield Site(engine, tmp_path)
    engine.dispose()


def mail_url(folder: Path, port: int, to: str) -> str:
    url = f"mailto://127.0.0.1:{port}/?from=understudy@example.org&to={to}&format=text"
    return secret_file(folder / f"mail-{len(to)}", url)


def test_mails_about_an_incident_have_one_subject_and_text_that_is_not_markup(site: Site) -> None:
    with smtp_server() as (port, mailbox):
        url = mail_url(site.folder, port, "oncall@example.org")
        site.settings = {"receivers": {"team": {"kind": "apprise", "url_file": url}}}
        site.start()
        incident = site.fail("n3", "GPU has fallen off\r\nBcc: all@example.org\n\n<script>alert(1)</script>")
        site.run(60)
        site.end(incident)
        site.run(400)
        assert [to for to, _ in mailbox.mails] == [["oncall@example.org"]] * 2
        assert {mail["Subject"] for _, mail in mailbox.mails} == {"Understudy testbed: node n3: hardware fault"}
        assert {mail["Bcc"] for _, mail in mailbox.mails} == {None}
        assert "\u2039script\u203a" in mailbox.texts()[0]
        assert "Over: the node is back in service" in mailbox.texts()[1]
        assert site.pulse.notify_problems == []


def test_a_mail_server_that_is_away_for_an_hour_gets_one_mail(site: Site) -> None:
    (port,) = free_ports(1)
    url = mail_url(site.folder, port, "oncall@example.org")
    site.settings = {"receivers": {"team": {"kind": "apprise", "url_file": url}}}
    site.start()
    for number in range(6):
        site.fail(f"n{number}")
        site.run(600, every=60)
    (problem,) = site.pulse.notify_problems
    assert problem.startswith("no notification reaches team: ")
    mailbox = Mailbox()
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        site.run(600, every=60)
    finally:
        controller.stop()
    (text,) = mailbox.texts()
    assert text.startswith("6 notices:")


def test_the_owner_of_a_job_is_notified_once_what_happened_and_what_it_cost(site: Site) -> None:
    with smtp_server() as (port, mailbox):
        site.settings = {"owners_url_file": mail_url(site.folder, port, "{user}@example.org")}
        site.start()
        job = site.job()
        recovery = site.move(job, site.fail("n3"))
        site.run(4)
        site.add(
            tables.attempt, job=job, restart_count=1, launch=0, nodes=[], restore_step=1000, restore_at=site.clock.at
        )
        site.moved(recovery)
        site.run(600)
        ((to, mail),) = mailbox.mails
        assert to == ["alice@example.org"]
        assert mail["Subject"] == "Understudy testbed: job 17 (pretrain): n3: hardware fault"
        assert "It went on from step 1000, and 13 steps are computed again." in mailbox.texts()[0]
        assert "xid.79" not in mailbox.texts()[0]


def test_an_owner_whose_gang_stands_still_is_notified_where_to_look(site: Site) -> None:
    with smtp_server() as (port, mailbox):
        site.settings = {"owners_url_file": mail_url(site.folder, port, "{user}@example.org")}
        site.start()
        site.job()
        gang = {"subject_kind": "gang", "signal": "gang_hung_unnamed", "rule": "hang.unnamed"}
        incident = site.fail(f"{b.CLUSTER}/17@7", "no step for 120 s", **gang)
        site.run(300)
        ((to, _),) = mailbox.mails
        assert to == ["alice@example.org"]
        assert "`understudy explain job 17`".replace("`", "'") in mailbox.texts()[0]
        site.end(incident, "the gang finishes steps again")
        site.run(300)
        assert len(mailbox.mails) == 2


@pytest.mark.parametrize(("user", "comment"), [("alice", "understudy notify=off"), ("a b&to=eve", "understudy")])
def test_an_owner_who_wants_no_mail_or_whose_name_is_no_address_gets_none(site: Site, user: str, comment: str) -> None:
    with smtp_server() as (port, mailbox):
        site.settings = {"owners_url_file": mail_url(site.folder, port, "{user}@example.org")}
        site.start()
        site.pulse.snapshot = b.snapshot(jobs=[b.job(job_id=17, comment=comment)])
        site.moved(site.move(site.job(user=user)))
        site.run(600)
        assert mailbox.mails == []


def test_all_of_it_is_the_same_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    engine = open_database(postgres_url)
    try:
        with http_receiver() as receiver:
            site = Site(engine, tmp_path, {"receivers": {"hook": webhook(tmp_path, receiver)}})
            receiver.status = 503
            incident = site.fail("n3")
            recovery = site.move(site.job(), incident)
            site.ticket("n3", "all repairs have failed")
            site.run(60)
            site.start()
            site.moved(recovery)
            receiver.status = 204
            site.run(400)
            site.end(incident)
            site.run(60)
        assert receiver.wrong == []
        assert [(one["status"], one["importance"]) for one in receiver.got] == [("recovered", "page"), ("over", "page")]
    finally:
        engine.dispose()


def test_a_clock_that_is_set_back_delays_no_message(site: Site) -> None:
    with http_receiver() as receiver:
        site.settings = {"receivers": {"hook": webhook(site.folder, receiver)}}
        site.start()
        receiver.status = 503
        site.fail("n1")
        site.run(300)
        site.clock.at -= 3600
        set_times_back(site.engine, site.clock.at, 3600)
        receiver.status = 204
        site.run(60)
        assert len(receiver.got) == 1
        site.fail("n2")
        site.run(400)
        assert len(receiver.got) == 2


def test_alertmanager_shows_what_is_open_and_resolves_what_is_over(site: Site) -> None:
    with alertmanager(site.folder) as (address, got):
        url = secret_file(site.folder / "am", f"http://{address}")
        site.settings = {"receivers": {"am": {"kind": "alertmanager", "url_file": url}}}
        site.clock.at = time.time()
        site.start()
        incidents = [site.fail(f"n{number}") for number in range(200)]
        site.ticket("n7", "all repairs have failed")
        site.look()
        wait_for(lambda: len(active(address)) == 200, "Alertmanager has the alerts")
        shown = {one["labels"]["subject"]: one["labels"] for one in active(address)}
        assert shown["n7"]["severity"] == "page"
        assert shown["n8"]["severity"] == "warning"
        wait_for(lambda: "UnderstudyIncident" in got.fired, "its receiver is notified")
        for incident in incidents[1:]:
            site.end(incident)
        site.clock.at += 5
        site.look()
        wait_for(lambda: [one["labels"]["subject"] for one in active(address)] == ["n0"], "the others are resolved")
        assert site.pulse.notify_problems == []


def active(address: str) -> list[Any]:
    alerts: list[Any] = CLIENT.get(f"http://{address}/api/v2/alerts?active=true").json()
    return alerts


def test_a_setting_that_says_page_notifies(tmp_path: Path) -> None:
    """From the fault to the receiver, through a whole control plane: all spares are kept for another user."""
    with http_receiver() as receiver:
        spares = {"count": 3, "no_spare": "page", "reserved": {"user bob": 3}}
        hook = webhook(tmp_path, receiver, least="page")
        rehearsal = Rehearsal(tmp_path, spares=spares, notify={"receivers": {"hook": hook}, "group_seconds": 1})
        plane = rehearsal.control_plane
        rehearsal.each_tick = plane.notifier.look
        rehearsal.fail("n3")
        rehearsal.run_until(lambda: receiver.got, 120)
        plane.close()
    assert receiver.wrong == []
    (message,) = receiver.got
    assert message["importance"] == "page"
    assert "no_spare" in message["text"]


def test_notify_test_names_what_works_and_what_does_not(tmp_path: Path) -> None:
    with http_receiver() as receiver, smtp_server() as (port, mailbox):
        hook = webhook(tmp_path, receiver)
        team = mail_url(tmp_path, port, "oncall@example.org")
        gone = secret_file(tmp_path / "gone", "mailto://127.0.0.1:1/?from=a@example.org&to=b@example.org")
        path = tmp_path / "controlplane.toml"
        path.write_text(
            f'cluster = "c1"\n[notify]\nheartbeat_url_file = "{secret_file(tmp_path / "beat", receiver.url)}"\n'
            f'[notify.receivers.hook]\nkind = "webhook"\nurl_file = "{hook["url_file"]}"\n'
            f'secret_file = "{hook["secret_file"]}"\n'
            f'[notify.receivers.team]\nkind = "apprise"\nurl_file = "{team}"\n'
            f'[notify.receivers.gone]\nkind = "apprise"\nurl_file = "{gone}"\n'
        )
        done = CliRunner().invoke(root, ["notify", "test", "--config", str(path)])
        lines = done.output.splitlines()
        assert done.exit_code == 1
        assert [line.partition(":")[0] for line in lines] == [
            "good  hook",
            "good  team",
            "WRONG gone",
            "good  heartbeat",
        ]
        assert [one.get("status") for one in receiver.got] == ["over", None]
        assert mailbox.texts()[0].rstrip().endswith("Nothing has happened.")
        done = CliRunner().invoke(root, ["notify", "test", "hook", "--config", str(path), "--json"])
        assert done.exit_code == 0
        done = CliRunner().invoke(root, ["notify", "test", "other", "--config", str(path)])
        assert done.exit_code == 2
        assert "other is no receiver; known: hook, team, gone, heartbeat" in done.output
