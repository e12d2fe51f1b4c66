"""What a provider of nodes promises, held against the examples and a server; what is done with its answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import builders as b
from tests.recover.rehearsal import Rehearsal
from tests.recover.test_repair_cycle import TESTED, attempts, node_of, states_passed, wait_for
from understudy_controlplane.config import Provider, SignalKind
from understudy_controlplane.detect.lemon import signals_of
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.provider import Ask
from understudy_controlplane.fleet.recovery import RecoveryKind, RecoveryStatus, Rung
from understudy_controlplane.fleet.slurm import Service
from understudy_controlplane.provider.client import ProviderError, Question, ask, ask_for_plans
from understudy_controlplane.provider.watch import ProviderWatch
from understudy_wire.hardware import Gpu

pytestmark = [pytest.mark.integration, pytest.mark.patient]

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"
EXAMPLE = EXAMPLES / "provider.sh"
EVENT = (
    '{"events": [{"ticket": "M-1", "kind": "maintenance", "targets": ["n1"], "begins": "2026-12-01T08:00:00+01:00"}]}'
)
TOKEN = "a-token-of-the-provider"


class RestProvider:
    """A provider's API on this machine."""

    def __init__(self) -> None:
        self.tickets: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.answers: Callable[[bytes], tuple[int, bytes]] = self._answer
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                allowed = self.headers["Authorization"] == f"Bearer {TOKEN}"
                status, answer = provider.answers(content) if allowed else (401, b"who are you")
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/nodes"

    def _answer(self, content: bytes) -> tuple[int, bytes]:
        question = json.loads(content)
        if question["ask"] == "events":
            return 200, json.dumps({"events": self.events}).encode()
        if question["target"] == "unknown":
            return 200, b'{"summary": "no such node"}'
        self.tickets[question["id"]] = question
        return 200, json.dumps({"ticket": f"T-{question['id']}"}).encode()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def rest() -> Iterator[RestProvider]:
    provider = RestProvider()
    yield provider
    provider.close()


def command_of(rest: RestProvider, folder: Path) -> str:
    path = folder / "header"
    path.write_text(f"Authorization: Bearer {TOKEN}\n")
    return f"{EXAMPLES / 'provider-rest.sh'} {rest.url} {path}"


def question(of: Ask = Ask.REPLACE, name: str = "n5-1", target: str = "n5") -> Question:
    evidence: dict[str, Json] = {"serial": "4711", "words": '","ask":"events","id":"x"'}
    return Question(
        ask=of, id=name, cluster="c", target=target, code="xid.79", summary="off the bus", evidence=evidence
    )


@pytest.fixture(params=["the example", "a server"])
def policy(
    request: pytest.FixtureRequest, tmp_path: Path, rest: RestProvider, monkeypatch: pytest.MonkeyPatch
) -> Provider:
    if request.param == "a server":
        rest.events = json.loads(EVENT)["events"]
        return Provider(command=command_of(rest, tmp_path))
    folder = tmp_path / "provider"
    folder.mkdir()
    (folder / "events.json").write_text(EVENT)
    monkeypatch.setenv("PROVIDER_FOLDER", str(folder))
    return Provider(command=str(EXAMPLE))


def test_the_same_question_again_is_the_same_ticket(policy: Provider) -> None:
    first, again = ask(policy, question()), ask(policy, question())
    assert first == again
    assert first[0] != ""
    assert ask(policy, question(Ask.REPORT, "n6-1", "rack r1"))[0] not in ("", first[0])


def test_planned_events_have_dates_and_a_ticket(policy: Provider) -> None:
    (event,), problems = ask_for_plans(policy, question(Ask.EVENTS, "events-1"))
    assert not problems
    assert (event.ticket, event.kind, event.targets, event.ends) == ("M-1", "maintenance", ("n1",), None)
    assert event.begins == datetime(2026, 12, 1, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("exit 3", "exit code 3: it printed nothing; see the journal"),
        ("echo no credentials; exit 1", "exit code 1: no credentials"),
        ("echo hello", "its answer cannot be read"),
        ("yes", "more than 65536 bytes"),
        ("sleep 60", "no answer within 1 s; it may have accepted n5-1: ask it"),
        ("setsid sleep 60 & exit 0", "no answer within 1 s"),
        ("exec >&-; sleep 60", "no answer within 1 s"),
    ],
)
def test_a_program_that_answers_otherwise_is_an_error_within_bounds(tmp_path: Path, script: str, error: str) -> None:
    program = tmp_path / "provider"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    began = time.monotonic()
    with pytest.raises(ProviderError, match=error):
        ask(Provider(command=str(program), timeout_seconds=1, answer_bytes_max=65536), question())
    assert time.monotonic() - began < 30


def test_a_program_that_reads_nothing_is_answered_for_what_it_prints(tmp_path: Path) -> None:
    program = tmp_path / "provider"
    program.write_text('#!/bin/sh\nexec <&-\necho \'{"ticket": "T"}\'\n')
    program.chmod(0o755)
    large = Question(ask=Ask.REPORT, id="n1-1", cluster="c", evidence={"words": "x" * 300_000})
    assert ask(Provider(command=str(program)), large)[0] == "T"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((500, b"out of  order"), "exit code 22: out of order"),
        ((302, b""), "cannot be read"),
        ((200, b"[]"), "cannot be read"),
        ((200, b"x" * 2_000_000), "more than 1048576 bytes"),
    ],
)
def test_a_server_that_answers_otherwise_is_an_error(
    rest: RestProvider, tmp_path: Path, answer: tuple[int, bytes], error: str
) -> None:
    rest.answers = lambda _: answer
    with pytest.raises(ProviderError, match=error):
        ask(Provider(command=command_of(rest, tmp_path)), question())


def test_a_server_that_is_not_there_is_an_error_without_the_token(rest: RestProvider, tmp_path: Path) -> None:
    command = command_of(rest, tmp_path).replace(rest.url, "http://127.0.0.1:1/nodes")
    with pytest.raises(ProviderError, match="exit code 7") as caught:
        ask(Provider(command=command), question())
    assert TOKEN not in str(caught.value)


# -- a node that is replaced ------------------------------------------------------------------------------------------


def gpus(machine: str) -> list[Gpu]:
    return [b.gpu(number, uuid=f"GPU-{machine}-{number}", serial=f"{machine}{number}") for number in range(2)]


def watch_of(rehearsal: Rehearsal) -> ProviderWatch:
    parts = rehearsal.control_plane
    stores, pulse = parts.stores, parts.loop.pulse
    return ProviderWatch(stores.signals, stores.tickets, parts.current, pulse, rehearsal.clock, parts.loop.wake)


def replacing(path: Path, rest: RestProvider, **changes: Any) -> Rehearsal:
    provider = {"command": command_of(rest, path), "replacements_per_day_max": 2} | changes
    rehearsal = Rehearsal(path, **TESTED, provider=provider)
    for name in ("n5", "n6", "n7"):
        rehearsal.gpus[name] = gpus(name)
    rehearsal.each_tick = watch_of(rehearsal).look
    rehearsal.run(3)
    return rehearsal


def fail_for_good(rehearsal: Rehearsal, name: str) -> None:
    rehearsal.fake.job_ends_as[name] = "FAILED"
    rehearsal.fail(name)
    wait_for(rehearsal, name, NodeState.MANUAL_REPAIR, 900)
    rehearsal.run(5)


def test_the_provider_is_asked_for_another_node_and_that_one_is_new(tmp_path: Path, rest: RestProvider) -> None:
    rehearsal = replacing(tmp_path, rest)
    rehearsal.run(3700)  # the machines of the rehearsal's begin were others
    fail_for_good(rehearsal, "n5")
    (asked,) = rest.tickets.values()
    assert (asked["ask"], asked["target"], asked["code"]) == ("replace", "n5", "xid.79")
    (ticket,) = rehearsal.tickets
    assert ticket["provider"] == {"asked": "replace", "ticket": f"T-{asked['id']}", "summary": ""}
    assert attempts(rehearsal)[-1] == (RecoveryKind.MANUAL_REPAIR, Rung.REPLACE, RecoveryStatus.SUCCEEDED)
    rehearsal.run(600)
    assert rehearsal.state_of("n5") is NodeState.MANUAL_REPAIR, "it is as it was"
    snapshot = rehearsal.control_plane.loop.pulse.snapshot
    assert snapshot is not None
    assert signals_of(snapshot, "n5").faults > 0

    rehearsal.gpus["n5"] = gpus("other")
    rehearsal.fake.job_ends_as.pop("n5")
    wait_for(rehearsal, "n5", NodeState.PROBATION, 900)
    assert states_passed(rehearsal, "n5")[-3:] == [202, 265, 220]
    rehearsal.run(5)
    assert node_of(rehearsal, "n5").service is Service.USABLE
    (closed,) = rehearsal.control_plane.stores.tickets.tickets(10)
    assert closed["closed_at"] is not None
    rehearsal.run(3700)
    snapshot = rehearsal.control_plane.loop.pulse.snapshot
    assert snapshot is not None
    assert signals_of(snapshot, "n5").faults == 0, "what the machine before did counts against it no more"


def test_one_gpu_that_was_changed_makes_no_new_machine(tmp_path: Path, rest: RestProvider) -> None:
    rehearsal = replacing(tmp_path, rest)
    fail_for_good(rehearsal, "n5")
    rehearsal.gpus["n5"] = [gpus("n5")[0], gpus("other")[1]]
    rehearsal.run(600)
    assert rehearsal.state_of("n5") is NodeState.MANUAL_REPAIR


def test_no_more_nodes_are_replaced_in_a_day_than_may_be(tmp_path: Path, rest: RestProvider) -> None:
    rehearsal = replacing(tmp_path, rest, replacements_per_day_max=1)
    for name in ("n5", "n6"):
        fail_for_good(rehearsal, name)
    assert sorted((one["target"], one["ask"]) for one in rest.tickets.values()) == [("n5", "replace"), ("n6", "report")]


def test_a_fault_is_only_reported_where_the_site_wants_no_replacement(tmp_path: Path, rest: RestProvider) -> None:
    rehearsal = replacing(tmp_path, rest, replacements_per_day_max=0)
    fail_for_good(rehearsal, "n5")
    assert [one["ask"] for one in rest.tickets.values()] == ["report"]


def test_a_provider_that_does_not_answer_leaves_the_ticket_to_a_person(tmp_path: Path, rest: RestProvider) -> None:
    rehearsal = replacing(tmp_path, rest)
    rest.answers = lambda _: (503, b"closed")
    fail_for_good(rehearsal, "n5")
    (ticket,) = rehearsal.tickets
    assert ticket["provider"] == {"asked": "replace", "error": "it ended with exit code 22: closed"}


def test_without_a_provider_nothing_is_asked(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, **TESTED)
    fail_for_good(rehearsal, "n5")
    (ticket,) = rehearsal.tickets
    assert "provider" not in ticket


# -- what the provider plans -------------------------------------------------------------------------------------------


def test_planned_maintenance_is_a_signal_that_warns_from_a_day_before(tmp_path: Path, rest: RestProvider) -> None:
    rehearsal = replacing(tmp_path, rest)
    parts, watch = rehearsal.control_plane, watch_of(rehearsal)
    now = datetime.fromtimestamp(rehearsal.clock.now(), UTC)
    event = {"ticket": "M-1", "kind": "maintenance", "targets": ["n7", "elsewhere"], "summary": "new firmware"}
    dates = {"begins": (now + timedelta(days=2)).isoformat(), "ends": (now + timedelta(days=2, hours=4)).isoformat()}
    rest.events = [event | dates]

    def live() -> list[tuple[SignalKind, tuple[str, ...]]]:
        watch.look()
        return [(one.kind, one.targets) for one in parts.stores.signals.live(rehearsal.clock.now())]

    assert live() == [(SignalKind.OTHER, ("n7",))]
    (signal,) = parts.stores.signals.live(rehearsal.clock.now())
    assert "ticket M-1: new firmware" in signal.summary
    assert f"{now + timedelta(days=2):%Y-%m-%d %H:%M} UTC to" in signal.summary
    rehearsal.clock.set_by(25 * 3600, with_slurm=True)
    rehearsal.run(3)
    watch._due = 0.0
    assert live() == [(SignalKind.PLANNED_OUTAGE, ("n7",))]
    rest.answers = lambda _: (500, b"")
    watch._due = 0.0
    assert live() == [(SignalKind.PLANNED_OUTAGE, ("n7",))], "no answer ends nothing"
    rest.answers, rest.events = rest._answer, []
    watch._due = 0.0
    assert live() == []
