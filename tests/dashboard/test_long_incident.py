"""The page of an incident about which much was decided: its end is shown first, and reading it costs little."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert

from tests import builders as b
from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, bearer
from understudy_controlplane.api.post_mortem import Story
from understudy_controlplane.dashboard.costly_readings import APART_FACTOR, CostlyReadings
from understudy_controlplane.dashboard.pages import MOMENTS_LISTED
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.store import tables

DECISIONS = 2 * MOMENTS_LISTED + 30


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    made = Rehearsal(tmp_path)
    add_tokens(made.control_plane.engine)
    incident = {"id": 1, "subject": "n2", "rule": "xid.79", "signal": "hardware_fault", "summary": "lost"}
    incident |= {"evidence": {}, "fault_at": b.NOW, "opened_at": b.NOW}
    decision = {"table_row": 10, "rule": "xid.79", "subject": "n2", "action": "quarantine", "because": "rule"}
    decision |= {"reason": "lost", "evidence": {}, "incident": 1, "key": ""}
    with made.control_plane.engine.begin() as connection:
        connection.execute(insert(tables.incident).values(**incident))
        rows = [{**decision, "at": b.NOW + number} for number in range(1, DECISIONS + 1)]
        connection.execute(insert(tables.decision), rows)
    return made


def seconds_shown(page: str) -> list[str]:
    return re.findall(r'<li><span class="at n"[^>]*>\+ ([^<]+)</span>', page)


@pytest.mark.integration
def test_its_newest_moments_are_shown_first_and_older_pages_lead_to_its_beginning(rehearsal: Rehearsal) -> None:
    viewer = TestClient(rehearsal.control_plane.app, headers=bearer(Role.VIEWER))
    shown: list[str] = []
    path, pages = "/dashboard/incidents/1", 0
    while path:
        page = viewer.get(path).text
        moments = seconds_shown(page)
        assert len(moments) <= MOMENTS_LISTED
        shown = moments + shown
        older = re.search(r'href="[^"]*(dashboard/incidents/1\?by=before-\d+)">Older', page)
        path, pages = f"/{older[1]}" if older else "", pages + 1
    assert pages == 3
    assert len(shown) == DECISIONS + 2, "first evidence, and that it was opened"
    assert shown[0] == "0 s"
    assert seconds_shown(viewer.get("/dashboard/incidents/1").text) == shown[-MOMENTS_LISTED:]


class ReadingClock:
    """Each look at it takes half a second, as a reading of a long incident may."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return b.NOW

    def monotonic(self) -> float:
        self.at += 0.5
        return self.at


def test_the_longer_it_takes_to_read_one_the_seldomer_it_is_read() -> None:
    clock, read = ReadingClock(), Counter[int]()

    def story(number: int) -> Story:
        read[number] += 1
        return Story({}, (), (), (), (), None, clock.at)

    stories = CostlyReadings[Story](clock)
    first = stories.of(1, story)
    for _ in range(10):
        assert stories.of(1, story) is first
    assert stories.of(2, story) is not first
    clock.at += APART_FACTOR * 0.5
    assert stories.of(1, story) is not first
    assert read == {1: 2, 2: 1}
