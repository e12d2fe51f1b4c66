"""The control plane warns before the tokens of people and programs end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from tests import builders as b
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import bearer, with_tokens
from understudy_controlplane.access.token_ends import ends_of
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.identity import Role, Token
from understudy_controlplane.store.tokens import NewToken, TokenStore

pytestmark = pytest.mark.integration


def token(label: str, days: float, used: float | None = b.NOW, role: Role = Role.VIEWER) -> Token:
    return Token(1, role, label, "", b.NOW, "a test", b.NOW + days * DAY_SECONDS, last_used_at=used)


def test_only_the_last_token_of_a_person_counts_and_only_while_it_is_in_use() -> None:
    tokens = [
        token("grafana", 3),
        token("grafana", 300, used=None),
        token("grafana", 5, role=Role.SIGNALS),
        token("gone", 3, used=b.NOW - 31 * DAY_SECONDS),
        token("never used", 3, used=None),
    ]
    assert ends_of(tokens, b.NOW) == {
        ("viewer", "grafana"): b.NOW + 300 * DAY_SECONDS,
        ("signals", "grafana"): b.NOW + 5 * DAY_SECONDS,
    }


class SetClock:
    at = b.NOW

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def plane(database: str, clock: SetClock) -> Iterator[ControlPlane]:
    server = {"database": with_tokens(database, ["n1"])}
    outside = Outside(VirtualSlurm(["n1"]), lambda _: True, clock)
    with closing(compose(b.config(mode="observe", server=server), outside)) as made:
        made.loop.tick()
        yield made


def test_metrics_status_and_log_show_a_token_that_ends_until_it_has_a_successor(
    plane: ControlPlane, clock: SetClock
) -> None:
    client, store = TestClient(plane.app, headers=bearer(Role.VIEWER)), TokenStore(plane.engine)

    def add(digest: str, days: float) -> None:
        store.add([NewToken(digest, Role.SIGNALS, "bmc", "", b.NOW, "a test", clock.at + days * DAY_SECONDS)])

    def after(seconds: float) -> tuple[list[str], list[Any]]:
        clock.at += seconds
        with capture_logs() as lines:
            warnings = client.get("/v1/status").json()["problems"]
        shown = [one for one in warnings if "token" in one]
        return shown, [one["text"] for one in lines if one["event"] == "token_ends_soon"]

    assert after(0) == ([], [])
    add("a", 13)
    store.note_use(next(one.id for one in store.all() if one.label == "bmc"), clock.at)
    client.get("/v1/status")
    (shown,), logged = after(DAY_SECONDS)
    assert "the token of bmc (role signals) ends" in shown
    assert logged == [shown]
    assert f'{{role="signals",label="bmc"}} {b.NOW + 13 * DAY_SECONDS}' in client.get("/metrics").text
    assert after(60) == ([shown], []), "once a day in the log"
    (ended,), logged = after(13 * DAY_SECONDS)
    assert " ended " in ended
    assert logged == [ended]
    add("b", 300)
    assert after(60) == ([], [])
