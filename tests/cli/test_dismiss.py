"""Incidents from before mode act, on the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import builders as b
from tests.cli.conftest import Served, served
from understudy_controlplane.fleet.identity import Role

pytestmark = pytest.mark.integration


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Served]:
    """Site in mode observe, with an Xid 79 of n3."""
    with served(tmp_path, "observe") as made:
        plane = made.control_plane
        now = time.time()
        for name in ("n1", "n2", "n3", "n4"):
            plane.telemetry.receive(b.report(name), now)
        plane.stores.facts.record("n3", [b.xid_event("n3", 79, now).event], now, lambda _: None)
        for _ in range(2):  # the second one shows the incident
            plane.loop.tick()
        yield made


def test_an_incident_is_dismissed_by_its_number_and_the_node_stays_in_service(faulty: Served) -> None:
    (incident,) = json.loads(faulty.run("incident", "list", "--open", "--subject", "n3", "--json"))
    assert incident["subject"] == "n3"
    number = str(incident["id"])
    previewed = faulty.run("incident", "dismiss", number, "a driver update", "--dry-run")
    assert "stays in service" in previewed
    assert "\n  BUT n3 has not booted since it logged: Xid 79" in previewed
    assert "BUT" not in faulty.run("node", "hold", "n3", "cables", "--dry-run", status=5), (
        "nothing speaks against a hold"
    )
    assert "viewer" in faulty.run("incident", "dismiss", number, "x", role=Role.VIEWER, status=1)
    faulty.run("incident", "dismiss", number, "a driver update")
    faulty.control_plane.loop.tick()
    assert json.loads(faulty.run("incident", "list", "--open", "--subject", "n3", "--json")) == []
    assert "is over: " in faulty.run("incident", "dismiss", number, "once more", status=2)


def test_who_sets_mode_act_sees_what_waits_from_before(faulty: Served) -> None:
    printed = faulty.run("mode", "set", "act", "its decisions were right", status=3)  # the file still has mode observe
    assert "Incidents from before mode act" in printed
    assert "n3: Xid 79" in printed


def test_before_mode_act_what_it_would_do_at_once_is_listed_and_it_asks(tmp_path: Path) -> None:
    """The pool is filled at once; what follows from an incident that was known waits for approval."""
    with served(tmp_path, "act", spares={"count": 2}) as made:
        plane = made.control_plane
        made.run("mode", "set", "observe", "a new driver")
        now = time.time()
        for name in ("n1", "n2", "n3", "n4"):
            plane.telemetry.receive(b.report(name), now)
        plane.stores.facts.record("n3", [b.xid_event("n3", 79, now).event], now, lambda _: None)
        for _ in range(2):
            plane.loop.tick()
        asked = made.run("mode", "set", "act", "it was right", status=1)
        assert "n3: Xid 79 on GPU" in asked
        assert "waits for an operator's approval" in asked
        assert "fleet: n2, n4 should join the spare pool" in asked
        assert "Set mode act? [y/N]" in asked
        assert made.run("mode", "show").startswith("observe"), "the question was not answered"
        made.run("mode", "set", "act", "it was right", "--yes")
        assert made.run("mode", "show") == "act\n"
