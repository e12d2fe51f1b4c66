"""How many spares the pool is to hold: as configured, or as an operator has set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient

from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, bearer
from understudy_controlplane.api.spares import SpareExplanation
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb

pytestmark = pytest.mark.integration


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


def test_a_smaller_number_gives_a_spare_back_and_replaces_none_until_the_configured_one_holds_again(
    rehearsal: Rehearsal,
) -> None:
    ask(rehearsal, size=2)
    rehearsal.run_until(lambda: rehearsal.pool() == ["n7", "n8"])
    rehearsal.fail("n2")
    rehearsal.run_until(rehearsal.ended)
    rehearsal.run(5)
    assert len(rehearsal.pool()) == 2, "n6 and n5 were idle"
    assert ask(rehearsal).status_code == 202
    rehearsal.run_until(lambda: len(rehearsal.pool()) == 3)
    ask(rehearsal, size=0)
    rehearsal.run_until(lambda: not rehearsal.pool())
    assert ask(rehearsal).status_code == 202
    rehearsal.run_until(lambda: len(rehearsal.pool()) == 3)
    assert (shown(rehearsal)["wanted"], shown(rehearsal)["set_by"]) == (3, "")


def choose(rehearsal: Rehearsal, node: str, verb: str, role: Role = Role.OPERATOR, **body: Any) -> Any:
    client = TestClient(rehearsal.control_plane.app, headers=bearer(role))
    return client.post(f"/v1/spares/{node}/{verb}", json={"reason": "a demonstration", **body})


def test_what_if_a_gang_loses_a_node_is_explained_and_nothing_is_done(rehearsal: Rehearsal) -> None:
    rehearsal.run(1)
    found = shown(rehearsal, f"/v1/spares/explain/{rehearsal.gang}?node=n2")
    assert msgspec.to_builtins(msgspec.convert(found, SpareExplanation)) == found
    assert (found["lost"], found["moves"], len(found["taken"])) == ("n2", True, 1)
    assert [one["node"] for one in found["candidates"] if one["spare"]] == ["n6", "n7", "n8"]
    assert "job 1 does not run on n5" in shown(rehearsal, "/v1/spares/explain/1?node=n5")["detail"]
    assert "did not ask for Understudy" in shown(rehearsal, "/v1/spares/explain/2")["detail"]
    assert not rehearsal.recoveries()


def test_a_node_that_is_added_joins_the_pool_besides_those_of_its_size_and_again_after_a_gang_had_it(
    rehearsal: Rehearsal,
) -> None:
    rehearsal.run(1)
    answer = choose(rehearsal, "n5", "add").json()
    assert (answer["verb"], answer["outcome"]) == ("spare-add", "will_act")
    assert answer["why"] == "it joins the pool as soon as it is healthy and no job uses it"
    rehearsal.run_until(lambda: rehearsal.pool() == ["n5", "n6", "n7", "n8"])
    rehearsal.restart_control_plane()
    rehearsal.run(1)
    assert (shown(rehearsal)["wanted"], shown(rehearsal)["added"]) == (3, ["n5"])
    rehearsal.fail("n2")
    rehearsal.run_until(rehearsal.ended)
    assert "n5" in rehearsal.gang_nodes()
    rehearsal.fake.cancel(rehearsal.gang)
    rehearsal.run_until(lambda: "n5" in rehearsal.pool())


def test_a_spare_that_is_removed_leaves_the_pool_is_replaced_and_stays_out(rehearsal: Rehearsal) -> None:
    rehearsal.run(1)
    answer = choose(rehearsal, "n8", "remove", for_seconds=60).json()
    assert answer["why"] == "it leaves the pool; another node replaces it where one is idle"
    rehearsal.run_until(lambda: rehearsal.pool() == ["n5", "n6", "n7"])
    rehearsal.run(5)
    assert shown(rehearsal)["removed"] == ["n8"]
    rehearsal.fail("n2")
    rehearsal.run_until(rehearsal.ended)
    rehearsal.run(5)
    assert len(rehearsal.pool()) == 2, "it does not fill the gap"
    rehearsal.run_until(lambda: "n8" in rehearsal.pool())
    for verb in ("add", "remove", "forget"):
        assert choose(rehearsal, "n1", verb).status_code == 202
    rehearsal.run(1)
    assert (shown(rehearsal)["added"], shown(rehearsal)["removed"]) == ([], []), "the newest request counts"


def test_a_hold_of_a_node_ends_in_time_also_where_a_choice_about_it_came_later(rehearsal: Rehearsal) -> None:
    stores, now = rehearsal.control_plane.stores, rehearsal.clock.now()
    stores.requests.ask_audited(AuditEntry.on_host("a", now, Verb.HOLD.value, "n8", "cables"), now + 60)
    rehearsal.run_until(lambda: rehearsal.state_of("n8") is NodeState.OPERATOR_HOLD)
    stores.requests.ask_audited(AuditEntry.on_host("a", now, Verb.SPARE_ADD.value, "n8", "a test"))
    assert list(in_force(stores.requests.stored(), now + 61).ended_holds) == ["n8"]


def test_what_makes_no_sense_is_refused(rehearsal: Rehearsal) -> None:
    assert ask(rehearsal, size=-1).status_code == 400
    assert ask(rehearsal, size=1, reason=" ").status_code == 422
    assert ask(rehearsal, Role.VIEWER, size=1).status_code == 403
    assert ask(rehearsal, size=9, dry_run=True).json()["request"] is None
    assert shown(rehearsal)["wanted"] == 3
    assert choose(rehearsal, "n99", "remove").status_code == 404
    assert choose(rehearsal, "n8", "remove", reason=" ").status_code == 422
    assert choose(rehearsal, "n8", "remove", Role.VIEWER).status_code == 403
    assert choose(rehearsal, "n8", "remove", dry_run=True).json()["request"] is None
    rehearsal.run(1)
    assert shown(rehearsal)["removed"] == []
