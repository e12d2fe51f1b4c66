"""How many spares the pool is to hold: as configured, or as an operator has set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, bearer
from understudy_controlplane.fleet.identity import Role


@pytest.fixture
def rehearsal(tmp_path: Path) -> Iterator[Rehearsal]:
    """One idle node, n5, is left besides the gang and three spares."""
    made = Rehearsal(tmp_path)
    add_tokens(made.control_plane.engine)
    made.fake.cancel(made.hungry)
    yield made
    made.control_plane.close()


def ask(rehearsal: Rehearsal, role: Role = Role.OPERATOR, **body: Any) -> Any:
    client = TestClient(rehearsal.control_plane.app, headers=bearer(role))
    return client.post("/v1/spares/size", json={"reason": "a large run", **body})


def shown(rehearsal: Rehearsal, path: str = "/v1/spares") -> Any:
    return TestClient(rehearsal.control_plane.app, headers=bearer(Role.VIEWER)).get(path).json()


def test_the_pool_grows_and_the_number_holds_over_a_restart(rehearsal: Rehearsal) -> None:
    answer = ask(rehearsal, size=4).json()
    assert (answer["verb"], answer["outcome"]) == ("spares-size", "will_act")
    rehearsal.restart_control_plane()
    rehearsal.run_until(lambda: rehearsal.pool() == ["n5", "n6", "n7", "n8"])
    rehearsal.run(1)
    found = shown(rehearsal)
    assert (found["wanted"], found["configured"], found["set_by"]) == (4, 3, "a large run (operator)")
    assert found["held"] == ["n5", "n6", "n7", "n8"]
    assert found["reservations"] == [
        {"name": "understudy_spares", "nodes": ["n5", "n6", "n7", "n8"], "holder": "the spare pool"}
    ]
    assert shown(rehearsal, "/v1/status")["spares"] == {"held": 4, "wanted": 4}


def test_a_smaller_number_replaces_no_spare_until_the_configured_one_holds_again(rehearsal: Rehearsal) -> None:
    ask(rehearsal, size=2)
    rehearsal.fail("n2")
    rehearsal.run_until(rehearsal.ended)
    rehearsal.run(5)
    assert rehearsal.pool() == ["n7", "n8"]
    assert ask(rehearsal).status_code == 202
    rehearsal.run_until(lambda: rehearsal.pool() == ["n5", "n7", "n8"])
    assert (shown(rehearsal)["wanted"], shown(rehearsal)["set_by"]) == (3, "")


def test_what_makes_no_sense_is_refused(rehearsal: Rehearsal) -> None:
    assert ask(rehearsal, size=-1).status_code == 400
    assert ask(rehearsal, size=1, reason=" ").status_code == 422
    assert ask(rehearsal, Role.VIEWER, size=1).status_code == 403
    assert ask(rehearsal, size=9, dry_run=True).json()["request"] is None
    assert shown(rehearsal)["wanted"] == 3
