"""What the control plane does with a provider's answers: tickets, planned events, and nodes that were replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from structlog.testing import capture_logs

from tests import builders as b
from tests.new_database import new_database
from understudy_controlplane.access.secret import new_token
from understudy_controlplane.clock import SystemClock
from understudy_controlplane.config import Provider, SignalKind
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.decide.repair_cycle import due
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.gpu import Replacement
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.provider import Ask, in_words
from understudy_controlplane.fleet.recovery import ManualRepairPlan, PagePlan, StepName
from understudy_controlplane.fleet.site_signal import ReportedSignal
from understudy_controlplane.fleet.snapshot import FleetHistory
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.observe.inventory import Inventory
from understudy_controlplane.provider.client import NoAnswer, ProviderError, Question, ask, ask_for_plans
from understudy_controlplane.provider.watch import LIFE_SECONDS_MAX, SOURCE, ProviderWatch
from understudy_controlplane.recover.tickets import Tickets
from understudy_controlplane.store.database import open_database
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.gpus import GpuStore
from understudy_controlplane.store.site_signals import SiteSignalStore
from understudy_controlplane.store.tickets import TicketStore, close_of_node

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "provider.sh"
SECRET = "a-secret-in-its-arguments"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(new_database(tmp_path / "fleet.db"))
    FleetStore(engine).add_nodes(["n1", "n2"], b.NOW)
    yield engine
    engine.dispose()


def program(folder: Path, script: str) -> str:
    """Writes down what it was asked, too."""
    path = folder / "program"
    path.write_text(f'#!/bin/sh\nread -r asked; printf "%s\\n" "$asked" >>{folder}/asked\n{script}\n')
    path.chmod(0o755)
    return str(path)


class TicketsOfProvider:
    """Tickets and the watch of one control plane, whose provider runs this script."""

    def __init__(self, folder: Path, engine: Engine, script: str, **config: Any) -> None:
        provider = {"command": program(folder, script), "replacements_per_day_max": 2}
        self.folder = folder
        self.current = CurrentConfig(b.config(provider=provider, **config))
        self.store, self.signals, clock = TicketStore(engine), SiteSignalStore(engine), SystemClock()
        self.clock = clock
        self.tickets = Tickets(self.store, self.current, clock)
        pulse = Pulse(snapshot=b.snapshot())
        self.watch = ProviderWatch(self.signals, self.store, self.current, pulse, clock, lambda: None)

    def open(self, name: str, *, replaces: bool = True) -> None:
        steps = (StepName.OPEN_TICKET,)
        label = f"{name}-1"
        self.tickets.open(
            ManualRepairPlan(nodes=(name,), steps=steps, drain_reason="a fault", label=label, replaces=replaces)
        )

    def asked(self) -> list[dict[str, Any]]:
        """Questions about nodes, oldest first."""
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [one for one in map(json.loads, lines) if one["ask"] != "events"]

    def of_provider(self) -> list[Any]:
        return [one["body"]["provider"] for one in reversed(self.store.tickets(10))]

    def events(self, *events: dict[str, Any]) -> None:
        (self.folder / "events").write_text(json.dumps({"events": events}))
        self.watch._due = 0.0
        self.watch.look()

    def live(self) -> list[tuple[str, ...]]:
        return sorted(one.targets for one in self.signals.live(self.clock.now()))


TICKET = 'echo \'{"ticket": "T", "summary": "soon"}\''
EVENTS = "cat {}/events"


def event(target: str, **changes: Any) -> dict[str, Any]:
    begins = datetime.now(UTC).isoformat()
    return {"ticket": "M-1", "kind": "maintenance", "targets": [target], "begins": begins} | changes


# -- tickets -----------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_a_ticket_is_stored_before_the_provider_is_asked_and_gets_the_answer(tmp_path: Path, engine: Engine) -> None:
    site = TicketsOfProvider(tmp_path, engine, TICKET)
    site.open("n1")
    site.open("n2", replaces=False)
    assert site.asked() == []
    assert site.of_provider() == [{"asked": "replace"}, {"asked": "report"}]
    site.watch.look()
    assert len(site.asked()) == 1, "one question at a time"
    for _ in range(3):
        site.watch.look()
    assert [(one["id"], one["ask"]) for one in site.asked()] == [("n1-1", "replace"), ("n2-1", "report")]
    answered = {"ticket": "T", "summary": "soon"}
    assert site.of_provider() == [{"asked": "replace"} | answered, {"asked": "report"} | answered]


@pytest.mark.integration
def test_an_error_stands_in_the_ticket_and_it_is_not_asked_again(tmp_path: Path, engine: Engine) -> None:
    site = TicketsOfProvider(tmp_path, engine, "echo closed; exit 1")
    site.open("n1")
    for _ in range(3):
        site.watch.look()
    (answer,) = site.of_provider()
    assert answer == {"asked": "replace", "error": "it ended with exit code 1: closed"}
    assert in_words(answer) == "replace: it ended with exit code 1: closed"
    assert len(site.asked()) == 1


@pytest.mark.parametrize(
    ("of_provider", "shown"),
    [
        ({}, ""),
        ({"asked": "replace"}, "replace: no answer yet"),
        ({"asked": "report", "ticket": "T-1", "summary": ""}, "report: ticket T-1"),
        ({"asked": "replace", "ticket": "T-2", "summary": "within 4 h"}, "replace: ticket T-2, within 4 h"),
        ({"asked": "replace", "ticket": "", "summary": "another site"}, "replace: refused, another site"),
        ({"error": "not asked: the ticket was closed before"}, "not asked: the ticket was closed before"),
    ],
)
def test_people_see_the_number_or_the_error_of_the_provider(of_provider: dict[str, Any], shown: str) -> None:
    assert in_words(of_provider) == shown


@pytest.mark.integration
def test_a_control_plane_that_starts_asks_for_tickets_without_an_answer(tmp_path: Path, engine: Engine) -> None:
    TicketsOfProvider(tmp_path, engine, TICKET).open("n1")
    site = TicketsOfProvider(tmp_path, engine, TICKET)
    site.watch.look()
    assert [one["id"] for one in site.asked()] == ["n1-1"]


@pytest.mark.integration
def test_a_ticket_that_cannot_be_read_is_answered_by_an_error_and_holds_up_no_other(
    tmp_path: Path, engine: Engine
) -> None:
    """A later version, before a downgrade, may have asked what this one does not know."""
    site = TicketsOfProvider(tmp_path, engine, TICKET)
    site.store.open_ticket("n1-1", "n1", {"provider": {"asked": "exchange"}}, b.NOW)
    site.open("n2")
    for _ in range(2):
        site.watch.look()
    assert [one["id"] for one in site.asked()] == ["n2-1"]
    first, _ = site.of_provider()
    assert first["error"].startswith("not asked: its ticket cannot be read")


@pytest.mark.parametrize("replaces", [True, False])
def test_nothing_is_asked_for_a_ticket_that_was_closed_before(tmp_path: Path, engine: Engine, replaces: bool) -> None:
    site = TicketsOfProvider(tmp_path, engine, TICKET)
    site.open("n1", replaces=replaces)
    with engine.begin() as connection:
        close_of_node(connection, "n1", b.NOW)
    site.watch.look()
    assert site.asked() == []
    assert site.of_provider() == [{"error": "not asked: the ticket was closed before"}]


@pytest.mark.integration
def test_a_rack_is_reported_although_nothing_is_waited_for(tmp_path: Path, engine: Engine) -> None:
    site = TicketsOfProvider(tmp_path, engine, TICKET)
    site.tickets.open(PagePlan(nodes=(), steps=(), about=("rack r1",), reason="hot", label="rack-1"))
    site.watch.look()
    assert [(one["target"], one["ask"]) for one in site.asked()] == [("rack r1", "report")]


@pytest.mark.integration
def test_where_an_answer_cannot_be_stored_it_is_kept_and_plans_are_still_asked_for(
    tmp_path: Path, engine: Engine
) -> None:
    site = TicketsOfProvider(tmp_path, engine, TICKET)
    site.open("n1")
    with engine.begin() as connection:
        connection.execute(text("CREATE TRIGGER full BEFORE UPDATE ON ticket BEGIN SELECT RAISE(ABORT, 'full'); END"))
    for _ in range(3):
        site.watch.look()
    assert [one["id"] for one in site.asked()] == ["n1-1"], "the answer is known"
    assert '"ask":"events"' in (tmp_path / "asked").read_text()
    with engine.begin() as connection:
        connection.execute(text("DROP TRIGGER full"))
    site.watch.look()
    assert site.of_provider() == [{"asked": "replace", "ticket": "T", "summary": "soon"}]
    assert len(site.asked()) == 1


# -- what the provider plans -------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_two_events_of_one_ticket_are_two_signals(tmp_path: Path, engine: Engine) -> None:
    site = TicketsOfProvider(tmp_path, engine, EVENTS.format(tmp_path))
    site.events(event("n1"), event("n2"))
    assert site.live() == [("n1",), ("n2",)]
    site.events(event("n2"))
    assert site.live() == [("n2",)]


@pytest.mark.integration
def test_more_events_than_signals_may_be_do_not_keep_old_ones_alive(tmp_path: Path, engine: Engine) -> None:
    site = TicketsOfProvider(tmp_path, engine, EVENTS.format(tmp_path), signals={"live_max": 3})
    site.events(event("n1"))
    site.events(*(event(f"n{i}", ticket=f"M-{i}") for i in range(2, 9)))
    assert ("n1",) not in site.live()
    assert len(site.live()) == 2, "one place is taken by what has ended within the hour"


@pytest.mark.integration
def test_a_signal_that_a_token_has_sent_is_not_the_providers(tmp_path: Path, engine: Engine) -> None:
    with pytest.raises(ValueError, match="may not begin with"):
        new_token(Role.SIGNALS, SOURCE, "root", b.NOW, 3600)
    site = TicketsOfProvider(tmp_path, engine, EVENTS.format(tmp_path))
    now = site.clock.now()
    sent = ReportedSignal("provider", "k", SignalKind.OTHER, ("n2",), "")
    entry = AuditEntry(now, "provider", Role.SIGNALS.value, "", "signal", "", "")
    site.signals.take([sent], now + 3600, 200, entry)
    site.events(event("n1"))
    assert site.live() == [("n1",), ("n2",)]


BEFORE = {"begins": "2027-03-05T08:00:00+01:00", "ends": "2027-03-05T06:59:59Z"}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"begins": "9999-12-31T23:59:59-08:00"}, "event 1: date"),
        ({"begins": "0001-01-01T00:00:00+01:00"}, "event 1: date"),
        ({"ticket": "M-9"} | BEFORE, "event 1: M-9 ends before it begins"),  # day and month may be swapped
        ({"kind": "lunch"}, "event 1: Invalid enum value 'lunch' - at `$.kind`"),
        ({"begins": "2027-03-05T08:00:00"}, "event 1: Expected `datetime` with a timezone component - at `$.begins`"),
    ],
)
@pytest.mark.integration
def test_an_event_that_cannot_be_read_is_named_ends_nothing_and_keeps_no_other_one_away(
    tmp_path: Path, engine: Engine, wrong: dict[str, Any], problem: str
) -> None:
    """It may be one that is known: as long as it is there, nothing ends."""
    site = TicketsOfProvider(tmp_path, engine, EVENTS.format(tmp_path))
    site.events(event("n1"))
    with capture_logs() as lines:
        site.events(event("n2", **wrong), event("n3"))
    assert site.live() == [("n1",), ("n3",)]
    (line,) = lines
    assert (line["event"], line["count"]) == ("provider_events_unreadable", 1)
    assert line["error"].startswith(problem)
    site.events(event("n3"))
    assert site.live() == [("n3",)]


@pytest.mark.parametrize("ends", ["9999-12-31T23:59:59Z", None])
@pytest.mark.integration
def test_an_event_without_a_near_end_lives_as_long_as_it_is_named(
    tmp_path: Path, engine: Engine, ends: str | None
) -> None:
    site = TicketsOfProvider(tmp_path, engine, EVENTS.format(tmp_path))
    site.events(event("n1", ends=ends))
    now = site.clock.now()
    (signal,) = site.signals.live(now)
    assert now < signal.until <= now + LIFE_SECONDS_MAX


@pytest.mark.integration
def test_nodes_of_an_event_that_the_fleet_does_not_have_are_logged_once(tmp_path: Path, engine: Engine) -> None:
    """A provider may name nodes with their domain, or those of other clusters, too."""
    site = TicketsOfProvider(tmp_path, engine, EVENTS.format(tmp_path))
    with capture_logs() as logs:
        for _ in range(2):
            site.events(event("n1"), event("n2.example.org"))
    assert site.live() == [("n1",)]
    (line,) = [one for one in logs if one["event"] == "provider_targets_unknown"]
    assert line["targets"] == "n2.example.org"


@pytest.mark.integration
def test_what_nothing_expects_does_not_end_the_watch(tmp_path: Path, engine: Engine) -> None:
    site = TicketsOfProvider(tmp_path, engine, EVENTS.format(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE site_signal"))
    site.events(event("n1"))  # raises nothing


# -- answers -----------------------------------------------------------------------------------------------------------


QUESTION = Question(ask=Ask.REPLACE, id="n1-1", cluster="c")


@pytest.mark.parametrize(
    ("summary", "shown"), [('"' + "x" * 900 + '"', "x" * 500), ('["a"]', ""), ('"a\\u0000b"', "ab"), ("null", "")]
)
@pytest.mark.integration
def test_an_accepted_replacement_with_an_odd_summary_stays_accepted(tmp_path: Path, summary: str, shown: str) -> None:
    path = tmp_path / "answer"
    path.write_text(f'{{"ticket": "T", "summary": {summary}, "events": [1]}}')
    assert ask(Provider(command=program(tmp_path, f"cat {path}")), QUESTION) == ("T", shown)


@pytest.mark.integration
def test_a_ticket_of_spaces_is_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "answer"
    path.write_text('{"ticket": " \\n", "summary": "no"}')
    assert ask(Provider(command=program(tmp_path, f"cat {path}")), QUESTION) == ("", "no")


@pytest.mark.integration
def test_an_answer_that_is_nested_too_deep_is_none(tmp_path: Path) -> None:
    path, deep = tmp_path / "answer", "[" * 100_000 + "]" * 100_000
    policy = Provider(command=program(tmp_path, f"cat {path}"))
    path.write_text(f'{{"ticket": "T", "summary": {deep}}}')
    with pytest.raises(NoAnswer, match="its answer cannot be read"):
        ask(policy, QUESTION)
    path.write_text(f'{{"events": [{{"other": {deep}}}]}}')
    with pytest.raises(NoAnswer, match="its answer cannot be read"):
        ask_for_plans(policy, Question(ask=Ask.EVENTS, id="events-1", cluster="c"))


@pytest.mark.parametrize("script", ["echo hello", "kill -9 $$", "sleep 60", "yes"])
@pytest.mark.integration
def test_a_question_that_was_interrupted_may_have_been_accepted(tmp_path: Path, script: str) -> None:
    policy = Provider(command=program(tmp_path, script), timeout_seconds=1, answer_bytes_max=65536)
    with pytest.raises(ProviderError, match="; it may have accepted n1-1: ask it"):
        ask(policy, QUESTION)
    with pytest.raises(ProviderError) as caught:
        ask_for_plans(policy, Question(ask=Ask.EVENTS, id="events-1", cluster="c"))
    assert "accepted" not in str(caught.value)


@pytest.mark.parametrize(
    "script",
    [
        "exit 3",
        "echo hello",
        "yes",
        "echo '{\"ticket\": 1}'",
        'echo \'{"ticket": "T"}{"ticket": "U"}\'',
        "head -c 100000 /dev/zero; exit 1",
    ],
)
@pytest.mark.integration
def test_errors_are_short_and_show_no_arguments(tmp_path: Path, script: str) -> None:
    policy = Provider(command=f"{program(tmp_path, script)} --token={SECRET}", answer_bytes_max=65536)
    with pytest.raises(ProviderError) as caught:
        ask(policy, QUESTION)
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) <= 600


@pytest.mark.integration
def test_a_program_that_is_not_there_is_named_without_its_arguments() -> None:
    with pytest.raises(ProviderError, match="/nowhere cannot be run") as caught:
        ask(Provider(command=f"/nowhere --token={SECRET}"), QUESTION)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("command", [" ", "''", '"" --token=x', "'not ended"])
def test_a_command_that_names_no_program_is_refused(command: str) -> None:
    with pytest.raises(ValueError, match=r"command names no program|No closing quotation"):
        Provider(command=command)


def test_replacements_need_a_provider() -> None:
    with pytest.raises(ValueError, match="needs command"):
        Provider(replacements_per_day_max=1)


# -- another machine ---------------------------------------------------------------------------------------------------


ASKED: dict[str, Json] = {"asked": "replace"}
ACCEPTED: dict[str, Json] = {"provider": ASKED | {"ticket": "T"}}


def gpus(machine: str) -> dict[str, Any]:
    return {"n1": [b.gpu(i, uuid=f"GPU-{machine}-{i}") for i in range(2)]}


def test_a_machine_is_new_only_if_the_provider_was_asked_for_it_before(engine: Engine) -> None:
    store, tickets = GpuStore(engine), TicketStore(engine)
    store.see_gpus(gpus("first"), b.NOW)
    assert store.replacements(gpus("second"), b.NOW + 10) == {}, "a person swapped boards"
    tickets.open_ticket("n1-1", "n1", {"provider": {"asked": "report"}}, b.NOW + 5)
    tickets.open_ticket("n1-2", "n1", {}, b.NOW + 5)
    assert store.replacements(gpus("second"), b.NOW + 10) == {}
    others: tuple[dict[str, Json], ...] = ({}, {"error": "HTTP 503"}, {"ticket": "", "summary": "no"})
    for number, news in enumerate(others):
        tickets.open_ticket(f"n1-r{number}", "n1", {"provider": ASKED | news}, b.NOW + 5)
    assert store.replacements(gpus("second"), b.NOW + 10) == {}, "the provider has accepted none of these"
    tickets.open_ticket("n1-3", "n1", ACCEPTED, b.NOW + 5)
    assert store.replacements(gpus("second"), b.NOW + 10) == {"n1": Replacement(b.NOW + 5, b.NOW + 10)}
    assert store.replacements(gpus("second"), b.NOW + 4) == {}, "it was there when the provider was asked"


def test_a_machine_stays_new_when_the_provider_is_asked_to_replace_it_too(engine: Engine) -> None:
    store, tickets = GpuStore(engine), TicketStore(engine)
    store.see_gpus(gpus("first"), b.NOW)
    tickets.open_ticket("n1-1", "n1", ACCEPTED, b.NOW + 5)
    store.see_gpus(gpus("second"), b.NOW + 10)
    tickets.open_ticket("n1-2", "n1", ACCEPTED, b.NOW + 20)
    assert store.replacements(gpus("second"), b.NOW + 30) == {"n1": Replacement(b.NOW + 5, b.NOW + 10)}
    assert store.replacements(gpus("third"), b.NOW + 30) == {"n1": Replacement(b.NOW + 20, b.NOW + 30)}


def test_one_question_is_answered_by_one_machine(engine: Engine) -> None:
    store = GpuStore(engine)
    store.see_gpus(gpus("first"), b.NOW)
    TicketStore(engine).open_ticket("n1-1", "n1", ACCEPTED, b.NOW + 5)
    store.see_gpus(gpus("second"), b.NOW + 10)
    swapped = store.replacements(gpus("third"), b.NOW + 30)
    assert swapped == {"n1": Replacement(b.NOW + 5, b.NOW + 10)}, "a person swapped the boards of the second"


def test_a_machine_stays_new_when_one_of_its_gpus_is_gone(engine: Engine) -> None:
    store = GpuStore(engine)
    store.see_gpus(gpus("first"), b.NOW)
    TicketStore(engine).open_ticket("n1-1", "n1", ACCEPTED, b.NOW + 5)
    store.see_gpus(gpus("second"), b.NOW + 10)
    rest = {"n1": gpus("second")["n1"][:1]}
    assert store.replacements(rest, b.NOW + 30) == {"n1": Replacement(b.NOW + 5, b.NOW + 10)}


def test_a_control_plane_that_starts_knows_the_machines_and_waits_to_see_them(engine: Engine) -> None:
    store = GpuStore(engine)
    store.see_gpus(gpus("first"), b.NOW)
    TicketStore(engine).open_ticket("n1-1", "n1", ACCEPTED, b.NOW + 5)
    store.see_gpus(gpus("second"), b.NOW + 10)
    inventory = Inventory(store)
    assert inventory.replacements == {"n1": Replacement(b.NOW + 5, b.NOW + 10)}
    assert inventory.unseen == {"n1"}
    heard = {f"m{i}": b.heard(b.report(f"m{i}", gpus=[b.gpu(uuid=f"GPU-m{i}")]), b.NOW + 20) for i in range(200)}
    heard["n1"] = b.heard(b.report("n1", gpus=gpus("second")["n1"]), b.NOW + 20)
    assert "n1" in inventory.look(heard, b.NOW + 20), "the first of many"
    assert inventory.unseen == frozenset()


REASON = "understudy: xid.79: off the bus"


def signals_of(
    state: NodeState, replacement: Replacement | None, *, unseen: bool = False, started_at: float = b.NOW - 200
) -> set[Signal]:
    """Signals of an empty node that the control plane has drained and that was in this state for 100 s."""
    reason_at = int(b.NOW) - 200
    record = b.record(
        "n1",
        state,
        since=b.NOW - 100,
        drained_at=b.NOW - 200,
        drain_reason=REASON,
        drain_user="root",
        drain_reason_at=reason_at,
        slurmd_seen_at=b.NOW - 500,
        agent_seen_at=b.NOW - 500,
    )
    slurm = replace(b.slurm_node("n1", "IDLE", ["DRAIN"], REASON, "root"), reason_at=reason_at)
    history = FleetHistory(
        replacements={} if replacement is None else {"n1": replacement}, unseen=frozenset({"n1"} if unseen else ())
    )
    snapshot = replace(b.snapshot(b.node("n1", slurm=slurm, record=record)), history=history, started_at=started_at)
    config = b.config(repair={"enabled": True}, validation={"enabled": True})
    return {one.signal for one in due(snapshot, snapshot.nodes["n1"], (), config)}


def test_a_manual_repair_ends_only_by_a_machine_that_was_asked_for_in_it() -> None:
    asked = Replacement(b.NOW - 90, b.NOW - 50)
    assert signals_of(NodeState.MANUAL_REPAIR, asked) == {Signal.NODE_REPLACED}
    assert signals_of(NodeState.MANUAL_REPAIR, None) == set()
    before = Replacement(b.NOW - 5000, b.NOW - 50)
    assert signals_of(NodeState.MANUAL_REPAIR, before) == set(), "it was asked for in an earlier repair"
    assert Signal.NODE_REPLACED not in signals_of(NodeState.QUARANTINED, asked)


@pytest.mark.parametrize("replacement", [None, Replacement(b.NOW - 90, b.NOW - 50)])
def test_after_a_start_nothing_is_decided_of_a_machine_that_was_not_seen(replacement: Replacement | None) -> None:
    """It may be another one than the database has, and it may be the same."""
    repaired = signals_of(NodeState.QUARANTINED, replacement)
    assert repaired != set()
    assert signals_of(NodeState.QUARANTINED, replacement, unseen=True) == set()
    assert signals_of(NodeState.MANUAL_REPAIR, replacement, unseen=True) == set()
    gone = signals_of(NodeState.QUARANTINED, replacement, unseen=True, started_at=b.NOW - 400)
    assert gone == repaired, "an agent that is never heard holds up no repair"


def test_gpus_that_are_swapped_back_make_it_the_machine_of_before(engine: Engine) -> None:
    store, inventory = GpuStore(engine), Inventory(GpuStore(engine))

    def see(machine: str, now: float) -> None:
        report = b.report("n1", gpus=gpus(machine)["n1"])
        store.see_gpus(inventory.look({"n1": b.heard(report, now)}, now), now)

    see("first", b.NOW)
    TicketStore(engine).open_ticket("n1-1", "n1", ACCEPTED, b.NOW + 5)
    see("second", b.NOW + 100)
    assert [*inventory.replacements] == ["n1"]
    see("first", b.NOW + 200)
    assert inventory.replacements == {}


# -- the example -------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_the_example_writes_below_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROVIDER_FOLDER", raising=False)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    assert ask(Provider(command=str(EXAMPLE)), QUESTION)[0] == "n1-1"
    assert [one.name for one in (tmp_path / "state" / "provider").iterdir()] == ["n1-1.json"]
