"""Notifications at a real SMTP server and Alertmanager, from a whole control plane, and by `understudy notify test`."""

from __future__ import annotations

import email
import email.policy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from click.testing import CliRunner

from tests import builders as b
from tests.new_database import new_database
from tests.notify.site import KEY, Site, http_receiver, secret_file, webhook
from tests.recover.rehearsal import Rehearsal
from tests.testbed.configuration import free_ports
from tests.testbed.prometheus import CLIENT, alertmanager, wait_for
from understudy_controlplane.cli.main import root
from understudy_controlplane.fleet.durations import WEEK_SECONDS
from understudy_controlplane.report_writer import ReportWriter, last_week, name_of
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


def test_a_chat_that_apprise_posts_to_gets_each_version_once(site: Site) -> None:
    """Its plugin `json`: an HTTP server, as chats and pagers are."""
    with http_receiver() as receiver:
        url = secret_file(site.folder / "chat", f"{receiver.url.replace('http', 'json')}/room?format=text")
        site.settings = {"receivers": {"chat": {"kind": "apprise", "url_file": url}}}
        site.start()
        receiver.status = 503
        incident = site.fail("n3")
        site.run(60)
        assert receiver.refused > 0
        receiver.status = 200
        site.run(300)
        site.end(incident)
        site.run(400)
        assert [one["title"] for one in receiver.got] == ["Understudy testbed: node n3: hardware fault"] * 2
        assert ["Over: " in one["message"] for one in receiver.got] == [False, True]


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


def test_a_storm_of_200_incidents_is_one_mail_and_no_secret_is_in_it(site: Site) -> None:
    with smtp_server() as (port, mailbox), http_receiver() as receiver:
        url = mail_url(site.folder, port, "oncall@example.org")
        receivers = {"team": {"kind": "apprise", "url_file": url}, "hook": webhook(site.folder, receiver)}
        site.settings = {"receivers": receivers}
        site.start()
        for number in range(1, 201):
            site.fail(f"n{number}", f"its log has {KEY} and hook-token-4711-very-long")
        site.run(60)
        site.run(1200, every=300)
        (text,) = mailbox.texts()
        assert text.startswith("200 notices:")
        assert "and 180 more" in text
        assert "***" in text
        for secret in (KEY, "hook-token-4711-very-long"):
            assert secret not in str(mailbox.mails[0][1])
            assert secret not in text


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


def test_an_owner_whose_program_failed_is_notified_also_where_no_restart_followed(site: Site) -> None:
    with smtp_server() as (port, mailbox):
        site.settings = {"owners_url_file": mail_url(site.folder, port, "{user}@example.org")}
        site.start()
        job = site.job()
        site.program_ends(job, "L30", "every rank failed alike within 2 s (rank 0: exit status 1): it cannot start")
        site.run(300)
        site.change(tables.job, job, state="FAILED")
        site.start()
        site.run(300)
        ((to, mail),) = mailbox.mails
        assert to == ["alice@example.org"]
        assert mail["Subject"] == "Understudy testbed: job 17 (pretrain): its program failed"
        text = mailbox.texts()[0]
        assert "every rank failed alike within 2 s" in text
        assert "The launcher starts it no more." in text
        assert "No node is blamed: look at the program" in text


def test_an_owner_whose_program_fails_again_and_again_gets_one_message_and_its_end(site: Site) -> None:
    with smtp_server() as (port, mailbox):
        site.settings = {"owners_url_file": mail_url(site.folder, port, "{user}@example.org")}
        site.start()
        job = site.job()
        for launch in range(4):
            site.change(tables.launch_end, site.program_ends(job, "L130"), launch=launch)
            site.run(60)
        assert len(mailbox.mails) == 1
        assert "starts it again from its last checkpoint" in mailbox.texts()[0]
        site.change(tables.launch_end, site.program_ends(job, "L100"), launch=4)
        site.run(60)
        _, text = mailbox.texts()
        assert "It failed 5 times, the last time: rank 3 on n4 failed with exit status 1" in text
        assert "The launcher starts it no more." in text


def test_an_owner_whose_program_makes_gpus_report_errors_gets_one_message_of_all_nodes(site: Site) -> None:
    with smtp_server() as (port, mailbox):
        site.settings = {"owners_url_file": mail_url(site.folder, port, "{user}@example.org")}
        site.start()
        site.job()
        for number in range(1, 4):
            site.program_xid(f"n{number}")
        site.run(60)
        site.program_xid("n4")
        site.run(300)
        site.start()
        site.run(60)
        ((_, mail),) = mailbox.mails
        assert mail["Subject"] == "Understudy testbed: job 17: its program caused an error on n1, n2, n3"
        assert "Xid 31 on 0000:1b:00.0: the program accessed memory that is not its own" in mailbox.texts()[0]
        assert "Understudy has not restarted the job, and blames no node" in mailbox.texts()[0]


@pytest.mark.parametrize(
    ("chosen", "to"),
    [
        ("jobs+17@Science.example.org", "jobs+17@Science.example.org"),
        ("eve@elsewhere.example.com", "alice@example.org"),
        ("a@example.org&to=eve@example.org", "alice@example.org"),
        ("alice", "alice@example.org"),
        ("", "alice@example.org"),
    ],
)
def test_an_owner_chooses_the_address_by_slurms_mail_user_where_the_site_allows_its_domain(
    site: Site, chosen: str, to: str
) -> None:
    with smtp_server() as (port, mailbox):
        site.settings = {
            "owners_url_file": mail_url(site.folder, port, "{mail}"),
            "owners_mail_domains": ["example.org", "science.example.org"],
        }
        site.start()
        site.pulse.snapshot = b.snapshot(jobs=[b.job(job_id=17, mail_to=chosen)])
        recovery = site.move(site.job())
        site.run(4)
        site.pulse.snapshot = b.snapshot(jobs=[])  # Slurm has forgotten the job: the address stays
        site.moved(recovery)
        site.start()
        site.run(600)
        assert [to for to, _ in mailbox.mails] == [[to]]


def test_an_owner_with_an_address_of_their_own_is_notified_there(site: Site) -> None:
    with smtp_server() as (port, mailbox):
        own = mail_url(site.folder, port, "oncall-of-alice@example.org")
        site.settings = {"owners_url_files": {"alice": own}}
        site.start()
        site.moved(site.move(site.job()))
        site.moved(site.move(site.job(18, user="bob")))
        site.run(600)
        assert [to for to, _ in mailbox.mails] == [["oncall-of-alice@example.org"]]


def test_with_mail_type_only_owners_who_ask_slurm_for_mail_are_notified(site: Site) -> None:
    with smtp_server() as (port, mailbox):
        url = mail_url(site.folder, port, "{user}@example.org")
        site.settings = {"owners_url_file": url, "owners_when": "mail_type"}
        site.start()
        asks, does_not = b.job(job_id=17, mail_to="alice"), b.job(job_id=18)
        site.pulse.snapshot = b.snapshot(jobs=[asks, does_not])
        site.moved(site.move(site.job()))
        site.moved(site.move(site.job(18, user="bob")))
        site.run(600)
        assert [to for to, _ in mailbox.mails] == [["alice@example.org"]]


def test_what_an_owner_does_not_want_does_not_come_after_a_restart_either(site: Site) -> None:
    with smtp_server() as (port, mailbox):
        site.settings = {"owners_url_file": mail_url(site.folder, port, "{user}@example.org")}
        site.start()
        site.pulse.snapshot = b.snapshot(jobs=[b.job(job_id=17, comment="understudy notify=off")])
        site.moved(site.move(site.job()))
        site.run(60)
        site.pulse.snapshot = b.snapshot(jobs=[])
        site.start()
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
        (closed,) = free_ports(1)
        url = secret_file(site.folder / "am", f"http://127.0.0.1:{closed}")
        site.settings = {"receivers": {"am": {"kind": "alertmanager", "url_file": url}}}
        site.clock.at = time.time() - 3700
        site.start()
        early = site.fail("over")
        incidents = [site.fail(f"n{number}") for number in range(100)]
        site.run(600, every=60)
        site.end(early)
        site.run(3000, every=60)
        (problem,) = site.pulse.notify_problems
        assert problem.startswith("no notification reaches am: "), "it was away for an hour"
        secret_file(site.folder / "am", f"http://{address}")
        site.clock.at = time.time()
        incidents += [site.fail(f"n{number}") for number in range(100, 200)]
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


@pytest.fixture
def weekly(tmp_path: Path) -> Iterator[tuple[Rehearsal, Mailbox, Any]]:
    """A site whose team gets the weekly report, a week after a node failed under a gang; and what it does then."""
    with smtp_server() as (port, mailbox):
        team = {"kind": "apprise", "url_file": mail_url(tmp_path, port, "team@example.org"), "weekly_report": True}
        pager = {"kind": "apprise", "url_file": mail_url(tmp_path, port, "pager@example.org"), "least": "page"}
        notify = {"receivers": {"team": team, "pager": pager}, "dashboard": "https://head1:7117/dashboard"}
        rehearsal = Rehearsal(tmp_path, notify=notify)
        look = rehearsal.control_plane.notifier.look
        rehearsal.each_tick = look
        rehearsal.fail("n3")
        rehearsal.run_until(rehearsal.ended)

        def look_around(seconds: float) -> None:
            """Looks as its threads do; a sender has a thread of its own."""
            ReportWriter(rehearsal.control_plane.reads, rehearsal.control_plane.notifier.add).look()
            rehearsal.run(seconds)

        yield rehearsal, mailbox, look_around
        rehearsal.control_plane.close()


def reports_in(mailbox: Mailbox) -> list[tuple[list[str], Any]]:
    return [(to, mail) for to, mail in mailbox.mails if "report of" in mail["Subject"]]


def test_the_report_of_a_week_is_one_mail_with_the_whole_report_as_a_file(
    weekly: tuple[Rehearsal, Mailbox, Callable[[float], None]],
) -> None:
    rehearsal, mailbox, look_around = weekly
    look_around(60)
    assert reports_in(mailbox) == [], "nothing was recorded before this week"
    rehearsal.fake.now += WEEK_SECONDS
    rehearsal.run(3)
    look_around(600)
    wait_for(lambda: bool(reports_in(mailbox)), "the report has come")
    week = name_of(last_week(rehearsal.clock.now())[0])
    ((to, mail),) = reports_in(mailbox)
    assert to == ["team@example.org"]
    assert mail["Subject"] == f"Understudy testbed: report of {week}"
    text = mail.get_body(("plain",)).get_content()
    assert "interruptions: 1 unexpected, 0 planned" in text
    assert "interrupted once: Faulty GPU" in text
    assert "https://head1:7117/dashboard/reports" in text
    (page,) = mail.iter_attachments()
    assert page.get_filename() == f"understudy-testbed-{week}.html"
    assert "Interruptions by cause" in page.get_content()
    look_around(30)
    assert len(reports_in(mailbox)) == 1, "once a week"
    rehearsal.restart_control_plane()
    rehearsal.each_tick = rehearsal.control_plane.notifier.look
    look_around(30)
    assert len(reports_in(mailbox)) == 1, "also after a restart"


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
