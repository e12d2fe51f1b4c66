"""A person asks a gang to save, and its ranks agree on the step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests import builders as b
from tests.new_database import new_database
from tests.recover.rehearsal import VirtualClock
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import bearer, with_tokens
from understudy.save_steps import SaveSteps
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.store.facts import Circumstances
from understudy_wire.facts import CheckpointShard, Fact, Layout, RankStarted
from understudy_wire.messages import Keeper, KeptSave
from understudy_wire.ranks import OrderState, RankWindow, SavesFollowed

USER = 1000 + sum(b"researcher") % 1000  # as the virtual Slurm numbers its users

pytestmark = pytest.mark.integration


class Site:
    def __init__(self, plane: ControlPlane, fake: VirtualSlurm, app: TestClient) -> None:
        self.plane, self.fake, self.app = plane, fake, app
        self.steps = [SaveSteps(), SaveSteps()]

    def ask(self, job_id: int = 1, role: Role = Role.OPERATOR, **more: Any) -> Any:
        body = {"reason": "before the upgrade", **more}
        return self.app.post(f"/v1/jobs/{job_id}/save", json=body, headers=bearer(role))

    def report(self, seconds: float = 1.0, tick: bool = True) -> None:
        """Reports of each rank, a moment later; then a tick."""
        self.fake.advance(seconds)
        for rank, steps in enumerate(self.steps):
            known = steps.report()
            if known is None:
                continue
            state = OrderState(known.pop("state")) if "state" in known else None
            saves = SavesFollowed(**known, state=state)
            window = RankWindow(1, 0, rank, 2, user_id=USER, saves=saves)
            dropped = self.plane.telemetry.receive(b.report(f"n{rank + 1}", ranks=[window]), self.fake.now)
            assert dropped == []
            for order in self.plane.telemetry.saves.answer_to([window]):
                message = {"number": order.number, "step": order.step, "state": order.state.value}
                steps.take({**message, "every": order.every})
        if tick:
            self.plane.loop.tick()

    def train(self, until: int) -> list[list[int]]:
        begin = (self.steps[0].report() or {"asked": 0})["asked"] + 1
        return [[step for step in range(begin, until + 1) if steps.due(step, 5_000_000)] for steps in self.steps]

    def request(self) -> Any:
        return self.app.get("/v1/requests", headers=bearer(Role.VIEWER)).json()["items"][0]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    server = {"database": with_tokens(new_database(tmp_path / "fleet.db"))}
    fake = VirtualSlurm(["n1", "n2"])
    fake.submit("researcher", 2, comment="understudy")
    outside = Outside(fake, lambda _node: True, VirtualClock(fake))
    with closing(compose(b.config(mode="act", server=server), outside)) as plane:
        plane.loop.tick()
        fake.advance(10)
        plane.loop.tick()
        yield Site(plane, fake, TestClient(plane.app))


def test_a_training_that_does_not_ask_when_to_save_cannot_be_asked_to(site: Site) -> None:
    answer = site.ask()
    assert answer.status_code == 409
    assert "no rank of it asks" in answer.json()["detail"]
    site.steps[0].due(1)
    site.report()
    assert "only 1 of its 2 ranks ask" in site.ask().json()["detail"]
    assert site.ask(99).status_code == 404
    assert site.ask(role=Role.VIEWER).status_code == 403


def test_all_ranks_save_before_the_step_and_the_request_is_answered_with_it(site: Site) -> None:
    site.train(20)
    site.report()
    site.train(22)
    site.report()
    assert "before about step" in site.ask(dry_run=True).json()["why"]
    number = site.ask().json()["request"]
    for _ in range(4):
        site.report()
    done = site.request()
    assert (done["id"], done["verb"], done["status"]) == (number, "save-job", "done")
    assert done["why"].startswith("all ranks save before step ")
    step = int(done["why"].split()[-1])
    assert site.train(step + 10) == [[step], [step]]
    assert "understudy_save_orders_total" in site.app.get("/metrics", headers=bearer(Role.METRICS)).text


def test_a_request_whose_order_is_followed_between_two_rounds_orders_one_save(site: Site) -> None:
    site.train(20)
    site.report()
    site.train(22)
    site.report()
    site.ask()
    site.plane.loop.tick()
    orders = site.plane.telemetry.saves
    order = orders.gangs()[1].order
    assert order is not None
    for _ in range(3):
        site.report(tick=False)
    saved = site.train(order.step + 5)
    for _ in range(10):
        site.report(tick=False)
    assert (saved, orders.gangs()[1].settled) == ([[order.step]] * 2, True)
    assert site.request()["status"] == "waiting"
    for _ in range(4):
        site.report()
    assert site.request()["status"] == "done"
    assert site.train(order.step + 100) == [[], []]


def test_a_request_whose_job_ends_is_given_up(site: Site) -> None:
    site.train(20)
    site.report()
    number = site.ask().json()["request"]
    site.fake.end(1)
    site.report(10.0)
    given_up = site.request()
    assert (given_up["id"], given_up["status"], given_up["why"]) == (
        number,
        "given_up",
        "the job does not run any more",
    )


def test_a_request_that_is_given_up_for_its_age_orders_no_save_in_the_same_round(site: Site) -> None:
    site.train(20)
    site.report()
    site.train(22)
    site.report()
    site.ask()
    site.report(1801.0)
    assert (site.request()["status"], site.plane.telemetry.saves.gangs()[1].order) == ("given_up", None)


def saved(site: Site, step: int) -> None:
    """Both ranks announce their part of a checkpoint; rank 1 was held up for longer."""
    telemetry, now = site.plane.telemetry, site.fake.now
    for rank, blocked in ((0, 2.0), (1, 3.0)):
        node = f"n{rank + 1}"
        facts: list[Fact] = [
            RankStarted(1, 0, rank, 2, now - 100, 50 + rank, user_id=USER),
            CheckpointShard(
                1, 0, rank, 2, step, f"/c/{step}", f"{rank}", 5, "", now, 0, USER, (), Layout.FIXED, blocked, 4.0
            ),
        ]
        around = Circumstances(nodes_now=telemetry.nodes_of)
        find = site.plane.reads.directory.find
        assert site.plane.stores.facts.record(node, facts, now, find, around) == []


def test_what_checkpoints_cost_is_shown_and_the_best_interval_is_ordered(site: Site) -> None:
    for step in (100, 200, 300):
        site.fake.advance(600)
        saved(site, step)
    site.plane.loop.tick()
    shown = site.app.get("/v1/explain/checkpoints/1", headers=bearer(Role.VIEWER)).json()["interval"]
    assert (shown["cost_seconds"], shown["write_seconds"], shown["today_seconds"], shown["gpus"]) == (3.0, 4.0, 600, 2)
    assert shown["best_seconds"] == pytest.approx((2 * 3 * shown["mtbf_seconds"]) ** 0.5, rel=0.02), "as Young's"
    site.train(20)
    site.report()
    site.train(40)
    for _ in range(6):
        site.report()
    ordered = site.request()
    assert (ordered["verb"], ordered["by"], ordered["status"]) == ("save-job", "understudy", "done")
    assert "from now on instead of 5000000 steps" in ordered["reason"]


def test_saves_in_the_memory_of_its_nodes_are_shown_with_their_interval(site: Site) -> None:
    for step in (100, 200, 300):
        site.fake.advance(600)
        saved(site, step)
    shown = site.app.get("/v1/explain/checkpoints/1", headers=bearer(Role.VIEWER)).json()
    assert (shown["in_memory"], shown["interval"]["tiers"]) == ([], [])
    for rank in range(2):
        keeps = [KeptSave(1, USER, 0, 0, 310, 2, [0, 1], 8, site.fake.now, blocked_seconds=0.1)]
        keeper = Keeper(8, 1 << 20, saves=keeps)
        assert site.plane.telemetry.receive(b.report(f"n{rank + 1}", keeper=keeper), site.fake.now) == []
    site.plane.loop.tick()
    shown = site.app.get("/v1/explain/checkpoints/1", headers=bearer(Role.VIEWER)).json()
    [save] = shown["in_memory"]
    assert (save["step"], save["places"], save["against"], shown["step"]) == (310, 2, "", 300)
    assert [one["tier"] for one in shown["interval"]["tiers"]] == ["peer", "shared"]
    assert shown["interval"]["cost_seconds"] == 3.0, "of a checkpoint with files"
    three = site.app.get("/v1/explain/checkpoints/1?ranks=3", headers=bearer(Role.VIEWER)).json()["in_memory"]
    assert three[0]["against"] == "only 2 ranks can restore it, and this gang has 3"
