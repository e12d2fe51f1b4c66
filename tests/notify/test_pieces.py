"""Parts of a notification: harmless text, secrets, words, settings."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests import builders as b
from tests.notify.site import NOW, secret_file
from understudy_controlplane.access.secret_files import SecretError, read_secret, without
from understudy_controlplane.config import Config, ConfigError, Importance, Notify, parse_config
from understudy_controlplane.decide.notices import of_approval, of_incident, of_move, of_stopped, of_ticket
from understudy_controlplane.fleet.notice import Message, Notice, NoticeSource, Stage
from understudy_controlplane.fleet.notice_facts import IncidentFacts, MoveFacts, RequestFacts, TicketFacts
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.notify import messages
from understudy_controlplane.notify.alerts import LIVES_SECONDS, alerts
from understudy_controlplane.notify.plain import LINE_CHARACTERS_MAX, LOOK_ALIKES, plain


class TestPlainText:
    @given(some.text(max_size=60), some.integers(1, 8))
    def test_is_one_line_without_markup_whatever_comes_in(self, text: str, times: int) -> None:
        shown = plain(text * times)
        assert len(shown) <= LINE_CHARACTERS_MAX
        assert not set(shown) & {*map(chr, LOOK_ALIKES), "\n", "\r", "\t", "\x1b", "\u202e", "\u200b"}
        assert "://" not in shown

    def test_leaves_usual_words_as_they_are(self) -> None:
        usual = "GPU 3 of gpu-r01-n02: Xid 79, 12.5 % (understudy_spares); look at #7!"
        assert plain(usual) == usual


class TestSecrets:
    URLS = (
        "https://hooks.example.org/services/T0123456789/ABCDEFGHIJKLMNOPQRSTUVWX",
        "mailtos://me:p%40ssw0rd@smtp.example.org:587/?from=understudy@example.org",
        "https://example.org/alerts?api_key=0123456789abcdef0123",
    )

    @pytest.mark.parametrize("url", URLS)
    def test_are_taken_out_whole_and_in_parts(self, url: str) -> None:
        text = f"ConnectError: {url} p@ssw0rd ABCDEFGHIJKLMNOPQRSTUVWX 0123456789abcdef0123"
        for secret in ("p%40ssw0rd", "p@ssw0rd", "ABCDEFGHIJKLMNOPQRSTUVWX", "0123456789abcdef0123"):
            assert (secret in without(text, self.URLS)) is False
        assert without("Understudy: node n3 at example.org", [url]) == "Understudy: node n3 at example.org"

    def test_come_from_files_that_are_closed_to_others(self, tmp_path: Path) -> None:
        file = Path(secret_file(tmp_path / "key", " the key \n"))
        assert read_secret(file) == "the key"
        file.chmod(0o644)
        with pytest.raises(SecretError, match=r"is open to all users; close it: chmod o= "):
            read_secret(file)
        for content, cause in ((b"", "is empty"), (b"\xff\xfe", "is not UTF-8"), (b"x" * 70_000, "more than 65536")):
            file.chmod(0o600)
            file.write_bytes(content)
            with pytest.raises(SecretError, match=cause):
                read_secret(file)
        with pytest.raises(SecretError, match="cannot be read: No such file"):
            read_secret(tmp_path / "none")


def at(text: str) -> float:
    return datetime.fromisoformat(f"{text}+00:00").astimezone(UTC).timestamp()


def notice(number: int, **changes: Any) -> Notice:
    values: dict[str, Any] = {
        "importance": Importance.WARNING,
        "stage": Stage.OPEN,
        "id": number,
        "page": "incidents/1",
    }
    title, text = f"node n{number}: hardware fault", "xid.79: GPU has fallen off the bus"
    return Notice(
        NoticeSource.INCIDENT, number, title=title, text=text, about=(f"n{number}",), at=NOW, **values | changes
    )


def test_a_message_lists_what_needs_a_person_first_and_at_most_twenty() -> None:
    about = [notice(number) for number in range(1, 31)] + [
        notice(31, importance=Importance.PAGE, needs="all repairs failed")
    ]
    policy = Notify(dashboard="https://understudy.example.org/dashboard")
    shown = messages.shown(Message("hook", "", (), NOW, NOW), about, "c1", policy)
    lines = shown.text.split("\n")
    assert lines[0] == "31 notices, 1 of them need a person:"
    assert lines[2].endswith("a person is needed, open: node n31: hardware fault")
    assert lines[4] == "A person is needed: all repairs failed"
    assert lines[-1] == "and 11 more: https://understudy.example.org/dashboard/incidents"
    assert shown.importance is Importance.PAGE


def move(**changes: Any) -> MoveFacts:
    values: dict[str, Any] = {
        "number": 3,
        "kind": "pool",
        "status": "succeeded",
        "outcome": "",
        "job_id": 17,
        "job_name": "pretrain",
        "user": "alice",
        "nodes": ("n3",),
        "spares": ("n5",),
        "hang": "",
        "fault_at": NOW,
        "decided_at": NOW + 1,
        "ended_at": NOW + 34,
        "last_step": 1012,
        "restore_step": 1000,
        "signal": "hardware_fault",
    }
    return MoveFacts(**values | changes)


class TestWhatAnOwnerReads:
    def test_names_the_fault_the_spare_and_the_steps(self) -> None:
        shown = of_move(move())
        assert shown.title == "job 17 (pretrain): n3: hardware fault"
        assert shown.text == (
            "Understudy restarted it with n5; it stood still for 34 s. It went on from step 1000, and 13 steps are "
            "computed again.\nYou do not have to do anything."
        )

    def test_says_what_to_do_where_it_may_be_their_program(self) -> None:
        shown = of_move(move(hang="no step for 60 s", nodes=(), spares=()))
        assert shown.title == "job 17 (pretrain): its ranks stopped making steps"
        assert "look at the program: `understudy explain job 17`" in shown.text

    def test_says_how_to_start_it_where_understudy_could_not(self) -> None:
        shown = of_move(move(status="failed", outcome="an operator's own words"))
        assert "scontrol requeue 17" in shown.text
        assert "operator's own words" not in shown.text

    def test_says_that_an_operator_cancelled_the_restart(self) -> None:
        shown = of_move(move(status="cancelled", outcome="an operator's own words"))
        assert shown.text == "An operator cancelled its restart.\n`squeue --jobs=17` shows its state."

    def test_has_no_line_of_its_own_for_a_job_name(self) -> None:
        assert "\n" not in of_move(move(job_name="x\nUnderstudy: all is well")).title


class TestWhatAnAdministratorReads:
    def test_a_ticket_names_the_command_that_ends_it_until_it_is_over(self) -> None:
        facts = TicketFacts(1, "n3", ("n3",), "a GPU fell off the bus", NOW, None, waits=True)
        assert "`understudy node release n3 REASON`" in of_ticket(facts).text
        assert of_ticket(replace(facts, closed_at=NOW)).text == "a GPU fell off the bus"
        assert of_ticket(replace(facts, waits=False)).text == "a GPU fell off the bus"

    def test_an_approval_names_both_answers(self) -> None:
        text = of_approval(RequestFacts(17, "n3", "xid 79", NOW)).text
        assert "`understudy recovery approve 17 REASON`" in text
        assert "`understudy recovery cancel 17 REASON`" in text


class TestAlerts:
    CONFIG = b.config(notify={"dashboard": "https://u.example.org/dashboard"})

    def of(self, *notices: Notice, now: float = NOW + 60) -> list[dict[str, Any]]:
        return [dict(one) for one in alerts(notices, self.CONFIG, Importance.WARNING, now)]

    def test_stand_while_their_notice_is_open_and_end_by_themselves_without_a_control_plane(self) -> None:
        (alert,) = self.of(notice(1))
        assert alert["labels"] == {
            "alertname": "UnderstudyIncident",
            "cluster": "testbed",
            "key": "incident 1",
            "severity": "warning",
            "subject": "n1",
        }
        assert alert["generatorURL"] == "https://u.example.org/dashboard/incidents/1"
        assert at(alert["startsAt"].removesuffix("+00:00")) == NOW
        assert at(alert["endsAt"].removesuffix("+00:00")) == NOW + 60 + LIVES_SECONDS

    def test_whose_end_did_not_arrive_are_sent_with_it_for_a_while(self) -> None:
        over = notice(1, stage=Stage.OVER, over_at=NOW + 10)
        (alert,) = self.of(over)
        assert at(alert["endsAt"].removesuffix("+00:00")) == NOW + 10
        assert self.of(over, now=NOW + 10 + LIVES_SECONDS) == []

    def test_are_of_operators_alone_and_of_what_is_important_enough(self) -> None:
        assert self.of(notice(1, user="alice"), notice(2, importance=Importance.INFO)) == []

    def test_have_no_markup_of_others(self) -> None:
        hostile = replace(notice(1), title="<!channel>", text="{{ .x }}\n[a](https://evil)", about=("n1\n",))
        (alert,) = self.of(hostile)
        assert "<!" not in alert["annotations"]["summary"]
        assert "](" not in alert["annotations"]["description"]
        assert alert["labels"]["subject"] == "n1"


BASE = 'cluster = "c1"\n[notify]\n'
OF_KIND = '[notify.receivers.{}]\nkind = "{}"\nurl_file = "/x"\n'
WRONG = [
    (OF_KIND.format("hook", "webhook"), "a webhook needs secret_file"),
    (OF_KIND.format("Hook", "apprise"), "'Hook': a receiver's name has small letters"),
    (OF_KIND.format("owners", "apprise"), "is not 'owners'"),
    (OF_KIND.format("a", "apprise") + 'secret_file = "/y"\n', "not used by kind apprise"),
    (OF_KIND.format("a", "apprise") + 'urlfile = "/y"\n', "did you mean 'url_file'"),
    ('time_zone = "Mars/Base"\n', "no time zone of this host"),
    ('dashboard = "https://me:password@host/x"\n', "notify.dashboard"),
]


@pytest.mark.parametrize(("text", "cause"), WRONG)
def test_settings_that_cannot_be_meant_are_refused(text: str, cause: str) -> None:
    with pytest.raises(ConfigError, match=cause.replace("(", r"\(")):
        parse_config(BASE + text, "c.toml")


def test_a_receiver_is_configured_in_three_lines() -> None:
    config = parse_config(BASE + OF_KIND.format("oncall", "apprise"), "c.toml")
    assert isinstance(config, Config)
    assert config.notify.receivers["oncall"].least is Importance.WARNING
    assert b.config().notify.receivers == {}


def test_a_drill_is_marked_in_every_message_and_a_gang_is_named_with_its_owner() -> None:
    summary = "DRILL: Xid 79 on GPU 0000:01:00.0: the GPU has fallen off the bus"
    incident = IncidentFacts(
        7, SubjectKind.GANG, "c/4@5", "xid.79", "xid", summary, 1.0, 2.0, None, "", 4, "train", "ann"
    )
    move = MoveFacts(
        3, "pool", "running", "", 4, "train", "ann", ("n3",), ("n6",), "", 1.0, 2.0, None, 5, None, "", summary
    )
    ticket = TicketFacts(2, "n3", ("n3",), f"n3 is manual_repair ({summary})", 3.0, None, waits=True)
    assert of_incident(incident).title == "DRILL: job 4 (train) of ann: xid"
    assert "`understudy incident show 7`" in of_incident(incident).text
    assert of_move(move).title.startswith("DRILL: job 4 (train): n3")
    hung = replace(incident, signal="gang_hung", summary="the collective of group DRILL: x in which the others wait")
    assert "DRILL" not in of_incident(hung).title + of_stopped(hung).title, "a program chose the group's name"
    assert of_ticket(ticket).title == "DRILL: a person is needed: n3"
    assert "DRILL" not in of_incident(replace(incident, summary="Xid 79")).title


def test_a_line_is_cut_between_words() -> None:
    assert plain("word " * 100).endswith("word…")
