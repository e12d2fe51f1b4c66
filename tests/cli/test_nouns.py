"""Nouns and verbs, against a control plane that answers over HTTP."""

from __future__ import annotations

import json
import re
from tempfile import NamedTemporaryFile

import pytest
from click.testing import CliRunner

from tests.cli.conftest import Served, record
from tests.tokens import secret
from understudy_client import Record
from understudy_controlplane.api.commissioning import CommissionedNode, CommissioningReport, document
from understudy_controlplane.api.documents import Form
from understudy_controlplane.cli.connection import with_commands
from understudy_controlplane.cli.explained_subject import lines
from understudy_controlplane.cli.main import root
from understudy_controlplane.cli.observed import RULES
from understudy_controlplane.figures.commissioning import Acceptance
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.identity import Role
from understudy_wire.hardware import Part, PartKind

pytestmark = pytest.mark.integration

LISTS = ("node", "job", "spare", "incident", "decision", "recovery", "ticket")


@pytest.mark.parametrize(
    "command", [*((noun, "list") for noun in LISTS), ("checkpoints",), ("node", "parts"), ("node", "tests")]
)
def test_every_list_can_be_read(observing: Served, command: tuple[str, ...]) -> None:
    assert isinstance(json.loads(observing.run(*command, "--json")), list)
    assert "Traceback" not in observing.run(*command)


def test_a_host_list_chooses_nodes(observing: Served) -> None:
    shown = json.loads(observing.run("node", "list", "n[1-2,4]", "--json"))
    assert [one["name"] for one in shown] == ["n1", "n2", "n4"]
    assert "n3" not in observing.run("node", "list", "n[1-2,4]")


def test_a_filter_with_a_wrong_value_is_a_usage_error(observing: Served) -> None:
    assert "state" in observing.run("node", "list", "--state", "broken", status=2)


def test_one_record_is_shown(observing: Served) -> None:
    assert json.loads(observing.run("node", "show", "n1", "--json"))["name"] == "n1"
    assert "in_service" in observing.run("node", "show", "n1")
    refused = observing.run("node", "show", "n9", status=1)
    assert refused == "node n9 is not known; `understudy node list` lists the nodes\n", "commands, not routes"
    assert "there is no recovery 99" in observing.run("recovery", "show", "99", status=1)


def test_a_task_of_a_job_array_has_the_name_that_squeue_shows(observing: Served) -> None:
    jobs = {one["task"]: one["job_id"] for one in json.loads(observing.run("job", "list", "--json"))}
    assert jobs == {"1_1": 2, "1_2": 3, "1_3": 1}
    assert "3 (1_2)" in observing.run("job", "list")
    assert json.loads(observing.run("job", "show", "1_2", "--json"))["job_id"] == 3
    assert "it is task 1_2 of a job array" in observing.run("explain", "job", "1_2")
    (answer,) = json.loads(observing.run("job", "pause", "1_2", "wait", "--dry-run", "--json"))
    assert answer["subject"] == "job 3"
    assert json.loads(observing.run("checkpoints", "--job", "1_2", "--json")) == []
    refused = observing.run("job", "show", "1_9", status=1)
    assert refused == "Slurm shows no task 1_9 of a job array; `understudy job list` lists the jobs\n"
    assert "is no job" in observing.run("job", "show", "x", status=2)


def test_a_report_is_printed_in_each_format(observing: Served) -> None:
    span = ("report", "--since", "30d", "--gpu-hour-price", "2.5")
    assert observing.run(*span).startswith("# Understudy, ")
    assert "- goodput: not known of 0.0 GPU-hours" in observing.run(*span)
    assert observing.run(*span, "--format", "html").startswith("<!doctype html>")
    assert observing.run(*span, "--format", "csv").startswith("table,since,until,cluster\n")
    for asked in (("--json",), ("--format", "json")):
        assert json.loads(observing.run(*span, *asked))["costs"]["gpu_hour_price"] == 2.5
    assert "0" in observing.run("report", "--gpu-hour-price", "0", status=2)
    assert "pdf" in observing.run("report", "--format", "pdf", status=2)


def test_a_post_mortem_is_markdown_and_of_an_incident_that_there_is(observing: Served) -> None:
    assert "leave --json out" in observing.run("incident", "show", "1", "--post-mortem", "--json", status=2)
    refused = observing.run("incident", "show", "99", "--post-mortem", status=1)
    assert refused == "there is no incident 99; `understudy incident list` lists them\n"


def test_what_ranks_showed_is_printed_for_a_job_and_an_incident(observing: Served) -> None:
    assert observing.run("job", "evidence", "3").startswith("nothing was kept: ")
    assert json.loads(observing.run("job", "evidence", "3", "--json")) == {"items": []}
    refused = observing.run("incident", "show", "99", "--evidence", status=1)
    assert refused == "there is no incident 99; `understudy incident list` lists them\n"
    assert "choose one of them" in observing.run("incident", "show", "1", "--evidence", "--post-mortem", status=2)


def test_the_report_of_commissioning_names_who_is_accepted_and_why_others_are_not(acting: Served) -> None:
    shown = acting.run("commission", "report")
    assert shown.startswith("# Cluster ")
    assert "| n1 | not tested | it has not been validated |" in shown
    page = acting.run("commission", "report", "n[1-2]", "--html")
    assert "<td>n2</td><td>not tested</td>" in page
    assert "n3" not in page
    record = json.loads(acting.run("commission", "report", "n1", "--json"))
    assert [(one["node"], one["acceptance"], one["stages"]) for one in record["nodes"]] == [("n1", "not_tested", [])]
    assert "rack r9: no such node or domain" in acting.run("commission", "report", "rack r9", status=1)
    answers = json.loads(acting.run("commission", "start", "n[1-2]", "new rack", "--dry-run", "--json", status=3))
    assert [one["subject"] for one in answers] == ["n1", "n2"]


def test_a_report_carries_no_markup_of_a_node() -> None:
    parts = [
        Part(PartKind.CARD, "mlx5_0", serial="<i>"),
        Part(PartKind.CARD, "mlx5_1", guid="9803:9b03"),
        Part(PartKind.MODULE, "eth0"),
    ]
    node = CommissionedNode("n1", Acceptance.FAILED, "<b>|x\ny", "", None, [], "", {}, [], parts, [])
    found = document(CommissioningReport("c", 0.0, [node]))
    page, text = found.rendered(Form.HTML), found.rendered(Form.TEXT)
    assert not {"<b>", "<i>"} & {*re.findall("<.>", page + text)}
    assert "| n1 | failed | &lt;b>\\|x y |" in text
    assert "| n1 | card | mlx5_1 | unknown | unknown (GUID 9803:9b03) |" in text
    assert "| n1 | module | eth0 | unknown | unknown |" in text


def test_a_request_in_mode_observe_is_recorded_only_and_has_an_exit_code_of_its_own(observing: Served) -> None:
    printed = observing.run("node", "hold", "n1", "fan", status=5)
    assert "n1: hold: recorded only: the control plane observes and changes nothing" in printed
    (answer,) = json.loads(observing.run("node", "hold", "n2", "fan", "--json", status=5))
    assert (answer["subject"], answer["outcome"]) == ("n2", "observe_only")
    observing.run("node", "hold", "n3", "fan", "--wait", status=5)


def test_a_request_about_a_host_list_is_one_for_each_node(acting: Served) -> None:
    printed = acting.run("node", "hold", "n[1-2]", "fan", "--for", "4h")
    assert ("n1: hold: will be carried out" in printed, "n2: hold: will be carried out" in printed) == (True, True)
    shown = json.loads(acting.run("node", "requests", "--json", "--limit", "2"))
    assert [(one["subject"], one["reason"], one["until"] - one["at"]) for one in shown] == [
        ("n2", "fan", 14400.0),
        ("n1", "fan", 14400.0),
    ]


def test_a_dry_run_requests_nothing(acting: Served) -> None:
    before = acting.run("node", "requests", "--json")
    assert "n3: hold: would be carried out" in acting.run("node", "hold", "n3", "fan", "--dry-run")
    assert "fleet: pause: would be carried out" in acting.run("pause", "later", "--dry-run")
    assert acting.run("node", "requests", "--json") == before


def test_a_refused_node_does_not_stop_the_others(acting: Served) -> None:
    printed = acting.run("node", "release", "n[3-4]", "repaired", status=3)
    assert printed.count("release would change nothing") == 2
    printed = acting.run("node", "burn-in", "n9,n4", "new", status=1)
    assert ("node n9 is not known" in printed, "n4: burn-in: " in printed) == (True, True)


@pytest.mark.parametrize("hosts", ["n[1-", "", "n1,,n2"])
def test_a_wrong_host_list_is_a_usage_error(hosts: str, acting: Served) -> None:
    assert "write c7 or c[1-4,7]" in acting.run("node", "hold", hosts, "x", status=2)


def test_pause_resume_breaker_and_mode(acting: Served) -> None:
    assert "fleet: pause: will be carried out" in acting.run("pause", "maintenance", "--for", "2h", "--wait")
    assert "paused      maintenance (admin)" in acting.run("status")
    acting.run("resume", "done")
    assert "paused      no" in acting.run("status")
    assert "closed" in acting.run("breaker", "show")
    assert "the circuit breaker is closed" in acting.run("breaker", "reset", "it was a switch")
    assert acting.run("mode", "show") == "act\n"
    assert "fleet: mode-observe: will be carried out" in acting.run("mode", "set", "observe", "a driver", "--for", "2h")
    shown = json.loads(acting.run("mode", "show", "--json"))
    assert (shown["mode"], shown["configured"], shown["limit"]) == ("observe", "act", "a driver (admin)")
    assert "; configured: act; limited by a driver (admin), until " in acting.run("status")
    acting.run("mode", "set", "act", "tried", "--yes")
    assert acting.run("mode", "show") == "act\n"


@pytest.mark.parametrize("text", ["4", "h", "-1h", "4 hours"])
def test_a_wrong_duration_is_a_usage_error(text: str, acting: Served) -> None:
    assert "write 90s, 30m, 4h or 2d" in acting.run("pause", "x", f"--for={text}", status=2)


@pytest.mark.parametrize("text", ["2 hours", "yesterday", "h"])
def test_a_wrong_time_is_a_usage_error(text: str, acting: Served) -> None:
    assert "write 2h for two hours ago" in acting.run("decision", "list", "--since", text, status=2)
    maintenance = ("maintenance", "start", "n1", "--reason", "x", "--until", text)
    assert "write 2h for two hours from now" in acting.run(*maintenance, status=2)


@pytest.mark.parametrize("text", ["2h", "90s", "2026-01-31T12:00", "2026-01-31"])
def test_times_are_durations_before_now_or_times_in_utc(text: str, acting: Served) -> None:
    acting.run("decision", "list", "--since", text)


def test_a_job_is_explained_with_the_cause_of_each_move_and_what_its_owner_can_refer_to() -> None:
    """Its owner sees no decisions: the cause is in the recovery."""
    recovery = {
        "id": 12, "kind": "pool", "status": "succeeded", "outcome": "", "nodes": ["n1"], "spares": ["n7"],
        "detected_at": 60.0, "ended_at": 66.9, "phases_ms": {"first_step": 6884}, "reason": "xid.79: Xid 79",
    }  # fmt: skip
    incident = {"id": 5, "subject_kind": "node", "subject": "n2", "rule": "nvml.lost", "summary": "GPU 0 is lost"}
    decision = {"id": 31, "at": 60.0, "action": "nothing", "because": "dry_run", "table_row": 10, "reason": "Xid 79"}
    launch = {"restart_count": 0, "launch": 1, "at": 60.0, "reason": "rank 2 on n3 ended with signal 9"}
    explained = {
        "is_now": "job 10 runs", "record": {"job_id": 10, "launches": [launch, launch | {"reason": ""}]},
        "incidents": [incident], "recoveries": [recovery], "requests": [], "decisions": [decision],
    }  # fmt: skip
    printed = list(lines(json.loads(json.dumps(explained), object_hook=Record)))
    assert "  5 n2 nvml.lost: GPU 0 is lost" in printed
    (moved,) = [line for line in printed if line.startswith("  12 ")]
    assert moved.endswith(": xid.79: Xid 79")
    assert "  0.1 1970-01-01 00:01:00: rank 2 on n3 ended with signal 9" in printed
    assert "  31 1970-01-01 00:01:00 nothing, because of dry_run (row 10): Xid 79" in printed


def test_a_node_is_explained(observing: Served) -> None:
    observing.run("node", "hold", "n4", "fan", status=5)
    printed = observing.run("explain", "node", "n4")
    assert printed.startswith("n4 is in_service since ")
    assert "hold by admin: waiting: the control plane only observes" in printed
    assert json.loads(observing.run("explain", "node", "n4", "--json"))["record"]["name"] == "n4"
    assert "node n9 is not known" in observing.run("explain", "node", "n9", status=1)
    assert "job 99 is not known" in observing.run("explain", "job", "99", status=1)


def test_a_drill_prints_what_would_follow(observing: Served) -> None:
    assert json.loads(observing.run("inject", "n1", "79", "game day", "--json"))["request"] is None
    printed = observing.run("inject", "n1", "79", "game day")
    assert printed.startswith("n1 logs: NVRM: Xid (PCI:0000:01:00): 79, understudy drill of admin\n")
    assert printed.endswith(
        "nothing was injected; in mode observe nothing of it would be carried out; with --really it is\n"
    )


def test_a_drill_that_does_not_go_on_is_not_ended(observing: Served) -> None:
    assert "there is no drill on n1" in observing.run("inject", "n1", "end", "over", status=3)
    assert "--for needs --really" in observing.run("inject", "n1", "79", "what if", "--for", "2h", status=2)
    observing.run("inject", "n1", "0", "what if", status=2)


@pytest.mark.parametrize(
    ("hint", "spoken"),
    [
        ("see GET /v1/recoveries/2", "see `understudy recovery show 2`"),
        ("GET /v1/signals lists the live signals", "`understudy signal list` lists the live signals"),
        ("GET /v1/nodes lists the nodes", "`understudy node list` lists the nodes"),
        ("GET /v1/requests lists the requests", "`understudy node requests` lists the requests"),
        ("GET /v1/status and the log", "`understudy status` and the log"),
        ("see GET /v1/jobs/7", "see `understudy job show 7`"),
        ("get another one: GET /v1/challenge", "get another one: GET /v1/challenge"),
        ("GET /v1/jobs/7/ranks", "GET /v1/jobs/7/ranks"),
    ],
)
def test_hints_of_routes_are_spoken_as_commands(hint: str, spoken: str) -> None:
    assert with_commands(hint) == spoken


def test_the_record_of_each_rule_can_be_read_and_answered(observing: Served) -> None:
    assert observing.run("observed", "--since", "7d") == "no rule would have acted\n"
    assert json.loads(observing.run("observed", "--json"))["rules"] == []
    assert "there is no decision 99" in observing.run("decision", "agree", "99", "the fan is broken", status=1)


def test_the_record_of_a_rule_names_how_often_people_agreed() -> None:
    rules = (
        record(rule="xid.79", cases=4, agreed=3, disagreed=0, precision=1.0, ready=True),
        record(rule="node.dead", cases=2, agreed=0, disagreed=0, precision=None, ready=False),
    )
    assert RULES.lines(rules) == [
        "rule       cases  agreed  disagreed  precision  ready for act",
        "xid.79     4      3       0          100%       yes",
        "node.dead  2      0       0                     no",
    ]


def test_a_ticket_is_acknowledged_and_closed(acting: Served) -> None:
    body: dict[str, Json] = {"why": "broken", "provider": {"asked": "replace", "ticket": "T-18", "summary": "soon"}}
    acting.control_plane.stores.tickets.open_ticket("n1-17", "n1", body, 1_700_000_000.0)
    acting.run("ticket", "ack", "1", "on my way", role=Role.OPERATOR)
    listed = acting.run("ticket", "list", "--open")
    assert "  operator  " in listed
    assert "replace: ticket T-18, soon" in listed
    acting.run("ticket", "close", "1", "new fan")
    assert json.loads(acting.run("ticket", "list", "--open", "--json")) == []
    acting.run("ticket", "close", "1", "again", status=3)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("understudy node show n", ["n1", "n2", "n3", "n4"]),
        ("understudy node hold n4", ["n4"]),
        ("understudy node list --state qu", ["quarantined"]),
        ("understudy job show ", ["1", "2", "3"]),
        ("understudy recovery list --status awa", ["awaits_approval"]),
    ],
)
def test_a_shell_completes_names_of_nodes_and_jobs_and_states(
    words: str, completed: list[str], observing: Served
) -> None:
    asked = {"_UNDERSTUDY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert _completed(observing.url, asked) == completed
    assert _completed("http://127.0.0.1:9", asked) == ([] if "-" not in words else completed)


def _completed(url: str, asked: dict[str, str]) -> list[str]:
    with NamedTemporaryFile("w") as file:
        file.write(secret(Role.VIEWER))
        file.flush()
        environment = {**asked, "UNDERSTUDY_URL": url, "UNDERSTUDY_TOKEN_FILE": file.name}
        printed = CliRunner().invoke(root, [], prog_name="understudy", env=environment).output
    return sorted(line.partition(",")[2] for line in printed.split())
