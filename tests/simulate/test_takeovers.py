"""Two control planes on one PostgreSQL, of which one is frozen or cut off in a recovery, and goes on later."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from tests.simulator.two import Broken, Cut, FaultKind, Freeze, Part, Plan, Point, draw, simulate

if TYPE_CHECKING:
    from tests.testbed.postgres import Postgres

pytestmark = [pytest.mark.integration, pytest.mark.patient]


def test_one_that_is_frozen_after_a_change_in_slurm_does_none_again_when_it_goes_on(postgres: Postgres) -> None:
    """The other one ends the recovery meanwhile. `make long` freezes it at each change and at each commit."""
    world = simulate(postgres, Plan(freezes=(Freeze(Point.AFTER_CALL, 2, 9.0),)))
    story = [line.split(" s  ")[1] for line in world.story]
    assert story.index("b:7117 leads") < story.index("b:7117 in Slurm: requeue_job 1") < story.index("a:7117 goes on")
    assert "a:7117 has lost the lead" in story
    assert world.effects["requeue_job 1"] == 1


def test_a_seed_of_freezes_and_cuts_finds_nothing(postgres: Postgres) -> None:
    """`make long` tries a thousand."""
    simulate(postgres, draw(3))


@pytest.mark.parametrize(
    "plan",
    [
        Plan(freezes=(Freeze(Point.BEFORE_CALL, 2, 9.0),)),
        Plan(FaultKind.DEAD, cuts=(Cut(0, Part.DATABASE, 2.0, 20.0),)),
    ],
    ids=["frozen before a change", "cut from the database"],
)
def test_changes_of_an_older_term_are_found(plan: Plan, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway lets them pass here."""
    simulate(postgres, plan)
    monkeypatch.setattr("tests.simulator.two.CALL_SECONDS", math.inf)
    monkeypatch.setattr("understudy_controlplane.lease.Leadership.objection", lambda _: "")
    with pytest.raises(Broken):
        simulate(postgres, plan)


@pytest.mark.parametrize("part", [Part.SLURM, Part.AGENTS])
def test_a_leader_that_is_cut_off_passes_the_lead_on_and_keeps_out_of_the_way(part: Part, postgres: Postgres) -> None:
    world = simulate(postgres, Plan(cuts=(Cut(0, part, 0.3, 25.0),)))
    story = [line.split(" s  ")[1] for line in world.story]
    passes = story.index(f"a:7117 passes the lead on: it is cut from {part.value}")
    assert passes < story.index("b:7117 leads") < story.index("b:7117 in Slurm: requeue_job 1")


def test_no_lead_passes_on_where_the_standby_is_cut_off_too(postgres: Postgres) -> None:
    world = simulate(postgres, Plan(cuts=(Cut(0, Part.SLURM, 0.3, 25.0), Cut(1, Part.SLURM, 0.0, 30.0))))
    assert not any("passes the lead on" in line for line in world.story)
