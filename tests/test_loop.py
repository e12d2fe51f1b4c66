"""What rounds of the loop do with decisions and incidents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import update
from structlog.testing import capture_logs

from tests.recover.rehearsal import Rehearsal
from understudy_controlplane.config import Config
from understudy_controlplane.fleet.finding import Finding
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.store import tables
from understudy_controlplane.store.queries import Queries

pytestmark = pytest.mark.integration


def test_a_transition_that_would_break_an_invariant_is_logged_and_counted_and_not_recorded(tmp_path: Path) -> None:
    """A record from outside contradicts itself: a suspect without a suspicion, for which an operator wants a test."""
    rehearsal = Rehearsal(tmp_path, validation={"enabled": True})
    rehearsal.fake.cancel(rehearsal.hungry)
    with rehearsal.engine.begin() as connection:
        connection.execute(update(tables.node).where(tables.node.c.name == "n5").values(state=NodeState.SUSPECT.value))
    rehearsal.restart_control_plane()
    for verb, node in ((Verb.VALIDATE, "n5"), (Verb.HOLD, "n8")):
        rehearsal.control_plane.stores.requests.ask(verb, node, "new cables", "alice", rehearsal.fake.now)
    with capture_logs() as lines:
        rehearsal.run(5)
    refused = [line for line in lines if line["event"] == "transition_refused"]
    assert refused, lines
    assert {(line["log_level"], line["subject"], line["row"]) for line in refused} == {("error", "n5", 257)}
    assert "a suspect that is validated keeps its suspicions" in refused[0]["error"]
    pulse = rehearsal.control_plane.loop.pulse
    assert pulse.errors_total == len(refused)
    assert pulse.last_error.startswith("transition refused: n5 would be validating by row 257")
    assert rehearsal.state_of("n5") is NodeState.SUSPECT
    decided = {(one["subject"], one["table_row"]) for one in Queries(rehearsal.engine).decisions(100)}
    assert ("n8", 250) in decided, "others go on"
    assert not any(subject == "n5" and row == 257 for subject, row in decided)


def test_what_fails_beside_judgement_holds_up_no_recovery(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    loop = rehearsal.control_plane.loop

    def broken(_snapshot: Snapshot, _findings: Sequence[Finding]) -> None:
        raise ZeroDivisionError("an interval of no length")

    loop.periodic = dict.fromkeys(loop.periodic, broken)
    rehearsal.fail("n3")
    with capture_logs() as lines:
        rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    assert loop.pulse.last_error == f"{[*loop.periodic][-1]}: ZeroDivisionError: an interval of no length"
    failed = [line["part"] for line in lines if line["event"] == "part_failed"]
    assert failed == [*loop.periodic], "once each, however often"
    assert loop.pulse.errors_total > len(failed)


def test_agents_that_fall_silent_together_are_one_incident_of_their_domain_until_they_report_again(
    tmp_path: Path,
) -> None:
    rehearsal = Rehearsal(tmp_path, guards={"domains": {"rack r2": ["n5", "n6", "n7", "n8"]}})
    incidents = rehearsal.control_plane.stores.incidents
    rehearsal.run(130)
    rehearsal.silent |= {"n5", "n6", "n7", "n8"}
    rehearsal.run(60)
    (incident,) = incidents.open_incidents().values()
    assert (incident.subject, set(incident.nodes)) == (Subject.of_domain("rack r2", "silence.mass"), rehearsal.silent)
    rehearsal.silent.clear()
    rehearsal.run(5)
    assert incidents.open_incidents() == {}
    (shown,) = Queries(rehearsal.engine).incidents(10)
    assert (shown["rule"], shown["outcome"]) == ("silence.mass", "its nodes no longer fail alike")


@pytest.mark.parametrize(("is_reported", "judged"), [(False, 2), (True, 1)])
def test_a_fault_that_is_reported_is_judged_once_on_a_new_reading_of_slurm(
    tmp_path: Path, is_reported: bool, judged: int
) -> None:
    rehearsal = Rehearsal(tmp_path)
    loop = rehearsal.control_plane.loop
    rehearsal.fake.cancel(rehearsal.hungry)
    rehearsal.run(5)
    looks: list[float | None] = []

    def count(snapshot: Snapshot, _config: Config) -> Sequence[Finding]:
        looks.append(snapshot.slurm.read_at)
        return ()

    loop.detectors = {**loop.detectors, "counted": count}
    loop.tick()
    read_at = looks.pop()
    rehearsal.fake.advance(0.3)
    rehearsal.fail("n3")
    if is_reported:
        loop.fault_came()
    loop.tick()
    assert len(looks) == judged
    assert looks[-1] is not None
    assert read_at is not None
    assert looks[-1] > read_at
    assert rehearsal.state_of("n3") is NodeState.QUARANTINED


@pytest.mark.parametrize(("takes_seconds", "least", "most"), [(0.0, 7, 9), (0.4, 4, 6)])
def test_faults_that_come_one_after_the_other_keep_slurm_busy_for_a_quarter_of_the_time(
    tmp_path: Path, takes_seconds: float, least: int, most: int
) -> None:
    """The driver logs a line for each fault of a user's program, and the site asks for a reading each minute."""
    rehearsal = Rehearsal(tmp_path, slurm={"poll_interval_seconds": 60.0})
    loop = rehearsal.control_plane.loop
    rehearsal.run(5)
    readings: list[float] = []

    def takes(call: str) -> None:
        if call == "jobs":
            readings.append(rehearsal.fake.now)
            rehearsal.fake.advance(takes_seconds)

    rehearsal.line.before = takes
    begun = rehearsal.fake.now
    while rehearsal.fake.now < begun + 8.0:
        loop.fault_came()
        rehearsal.fake.advance(0.1)
        loop.tick()
    assert least <= len(readings) <= most


def test_a_fault_that_comes_during_a_reading_is_read_for_again(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, slurm={"poll_interval_seconds": 60.0})
    loop = rehearsal.control_plane.loop
    rehearsal.run(5)
    readings: list[float] = []

    def another_comes(call: str) -> None:
        if call == "jobs":
            readings.append(rehearsal.fake.now)
            if len(readings) == 1:
                loop.fault_came()

    rehearsal.line.before = another_comes
    loop.fault_came()
    for _ in range(30):
        rehearsal.fake.advance(0.1)
        loop.tick()
    assert len(readings) == 2
