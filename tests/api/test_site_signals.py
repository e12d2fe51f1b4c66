"""Other systems of the site report signals: what is taken, what is refused, where it is shown, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, bearer
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.ingest.site_signals import SignalRecords
from understudy_controlplane.store import tables

pytestmark = pytest.mark.integration

LEAK: dict[str, Any] = {"kind": "leak", "targets": ["rack r1"], "summary": "wet floor"}
LIVE_MAX = 12


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    racks = {"domains": {"rack r1": [f"n{i}" for i in range(1, 5)]}}
    signals = {"live_max": LIVE_MAX, "alerts": {"FeedLost": "power"}}
    made = Rehearsal(tmp_path_factory.mktemp("signals"), guards=racks, signals=signals)
    add_tokens(made.control_plane.engine)
    made.run(2)
    yield made
    made.control_plane.close()


def client(rehearsal: Rehearsal, role: Role) -> TestClient:
    return TestClient(rehearsal.control_plane.app, headers=bearer(role))


def send(rehearsal: Rehearsal, path: str = "", role: Role = Role.SIGNALS, **body: Any) -> Any:
    return client(rehearsal, role).post(f"/v1/signals{path}", json=body)


def live(rehearsal: Rehearsal) -> list[dict[str, Any]]:
    answer = client(rehearsal, Role.VIEWER).get("/v1/signals").json()
    assert msgspec.to_builtins(msgspec.convert(answer, SignalRecords)) == answer
    return list(answer["signals"])


def end_all(rehearsal: Rehearsal) -> None:
    for one in live(rehearsal):
        done = client(rehearsal, Role.OPERATOR).post(f"/v1/signals/{one['id']}/end", json={"reason": "next test"})
        assert done.status_code == 202


def audited(rehearsal: Rehearsal, action: str) -> list[Any]:
    table = tables.audit
    with rehearsal.control_plane.engine.connect() as connection:
        return list(connection.execute(select(table).where(table.c.action == action)))


def test_a_signal_is_shown_everywhere_and_its_sender_renews_and_ends_it(rehearsal: Rehearsal) -> None:
    answer = send(rehearsal, **LEAK, key="cdu", source="hall 2", for_seconds=60)
    assert answer.status_code == 200, answer.text
    (first,) = live(rehearsal)
    assert (first["source"], first["effect"], first["targets"]) == ("signals/hall 2", "warn", ["rack r1"])
    rehearsal.run(1)
    view = client(rehearsal, Role.VIEWER)
    (shown,) = view.get("/v1/nodes/n2").json()["signals"]
    assert shown["words"] == "signals/hall 2 reports leak: wet floor"
    assert view.get("/v1/nodes/n5").json()["signals"] == []
    (rack,) = [one for one in view.get("/v1/topology").json()["domains"] if one["name"] == "r1"]
    assert rack["signals"] == [shown["words"]]
    (problem,) = [one for one in view.get("/v1/status").json()["problems"] if "wet floor" in one]
    assert "`understudy signal list`" in problem
    metrics = client(rehearsal, Role.METRICS).get("/metrics").text
    assert 'understudy_site_signals{kind="leak"} 1' in metrics

    again = send(rehearsal, **LEAK | {"summary": "more water"}, key="cdu", source="hall 2", for_seconds=600)
    (renewed,) = again.json()["signals"]
    assert (renewed["id"], renewed["summary"], renewed["at"]) == (first["id"], "more water", first["at"])
    assert renewed["until"] > first["until"]
    assert len(audited(rehearsal, "signal")) == 1, "what goes on is no news"
    send(rehearsal, **LEAK, key="cdu", source="hall 2", resolved=True)
    assert live(rehearsal) == []
    (ended,) = audited(rehearsal, "end-signal")
    assert (ended.who, ended.role, ended.subject) == ("signals", "signals", f"signal {first['id']}")


def test_it_ends_by_itself(rehearsal: Rehearsal) -> None:
    send(rehearsal, **LEAK, for_seconds=5)
    assert len(live(rehearsal)) == 1
    rehearsal.run(6)
    assert live(rehearsal) == []


def test_what_an_operator_has_ended_is_not_taken_again_before_its_time(rehearsal: Rehearsal) -> None:
    send(rehearsal, **LEAK, key="false alarm", for_seconds=20)
    (signal,) = live(rehearsal)
    path = f"/{signal['id']}/end"
    assert send(rehearsal, path, Role.SIGNALS, reason="dry").status_code == 403
    assert send(rehearsal, path, Role.OPERATOR, reason="dry", dry_run=True).status_code == 200
    assert len(live(rehearsal)) == 1
    accepted = send(rehearsal, path, Role.OPERATOR, reason="the floor is dry")
    assert (accepted.status_code, live(rehearsal)) == (202, [])
    state = client(rehearsal, Role.VIEWER).get(f"/v1/requests/{accepted.json()['request']}").json()
    assert (state["status"], state["subject"]) == ("done", f"signal {signal['id']}")
    answer = send(rehearsal, **LEAK, key="false alarm", for_seconds=3600).json()
    assert (answer["signals"], answer["ignored"]) == ([], ["leak of rack r1: an operator has ended it"])
    assert send(rehearsal, path, Role.OPERATOR, reason="again").status_code == 404
    rehearsal.run(21)
    assert len(send(rehearsal, **LEAK, key="false alarm", for_seconds=1).json()["signals"]) == 1
    rehearsal.run(2)


@pytest.mark.parametrize(
    ("change", "role", "status"),
    [
        ({}, Role.VIEWER, 403),
        ({}, Role.OPERATOR, 403),
        ({"kind": "earthquake"}, Role.SIGNALS, 400),
        ({"targets": []}, Role.SIGNALS, 400),
        ({"targets": ["rack r99", "n99"]}, Role.SIGNALS, 422),
        ({"targets": ["n1"] * 65}, Role.SIGNALS, 400),
        ({"summary": "\0"}, Role.SIGNALS, 400),
        ({"summary": "x" * 501}, Role.SIGNALS, 400),
        ({"for_seconds": 1e9}, Role.SIGNALS, 400),
        ({"for_seconds": 0}, Role.SIGNALS, 400),
        ({"effect": "act"}, Role.SIGNALS, 400),
    ],
)
def test_what_makes_no_sense_or_is_not_permitted_is_refused(
    change: dict[str, Any], role: Role, status: int, rehearsal: Rehearsal
) -> None:
    assert send(rehearsal, role=role, **LEAK | change).status_code == status
    assert live(rehearsal) == []


def test_targets_that_are_not_known_are_left_out_and_named(rehearsal: Rehearsal) -> None:
    answer = send(rehearsal, **LEAK | {"targets": ["n1", "n99"]}, for_seconds=1).json()
    assert (answer["signals"][0]["targets"], answer["ignored"]) == (["n1"], ["n99"])
    rehearsal.run(2)


ALERT: dict[str, Any] = {"status": "firing", "annotations": {"summary": "feed A is down", "runbook_url": "https://x"}}
WEBHOOK: dict[str, Any] = {
    "version": "4",
    "groupKey": '{}:{alertname="FeedLost"}',
    "truncatedAlerts": 0,
    "status": "firing",
    "receiver": "understudy",
    "groupLabels": {"alertname": "FeedLost"},
    "commonLabels": {},
    "commonAnnotations": {},
    "externalURL": "http://alertmanager:9093",
}
"""Alert as Alertmanager 0.27 sends it."""


def alert(status: str = "firing", **labels: str) -> dict[str, Any]:
    times = {"startsAt": "2026-01-01T00:00:00Z", "endsAt": "0001-01-01T00:00:00Z", "generatorURL": ""}
    return {**ALERT, "status": status, "labels": {"alertname": "FeedLost", **labels}, **times}


def test_alertmanagers_webhook_is_understood_as_it_comes(rehearsal: Rehearsal) -> None:
    sent = [
        alert(rack="r1", severity="page"),
        alert(instance="n3.example.org:9100", rack="r1", understudy_kind="over_temperature"),
        alert(alertname="Strange", node="n5"),
        alert(rack="r77"),
        alert(alertname="UnderstudySparesShort", node="n1"),
    ]
    answer = send(rehearsal, "/alertmanager", **WEBHOOK, alerts=sent)
    assert answer.status_code == 200, answer.text
    found = [(one["kind"], one["targets"], one["summary"]) for one in answer.json()["signals"]]
    assert found == [
        ("power", ["rack r1"], "FeedLost: feed A is down"),
        ("over_temperature", ["n3"], "FeedLost: feed A is down"),
        ("other", ["n5"], "Strange: feed A is down"),
    ]
    assert answer.json()["ignored"] == ["FeedLost"]
    over = [alert("resolved", rack="r1", severity="page"), alert("resolved", alertname="Strange", node="n5")]
    send(rehearsal, "/alertmanager", **WEBHOOK, alerts=over)
    assert [one["targets"] for one in live(rehearsal)] == [["n3"]]
    assert send(rehearsal, "/alertmanager", **WEBHOOK, alerts="x").status_code == 400
    end_all(rehearsal)


def test_there_are_never_more_than_the_limit_within_an_hour(rehearsal: Rehearsal) -> None:
    answers = [send(rehearsal, **LEAK, key=str(i), for_seconds=600) for i in range(LIVE_MAX + 1)]
    assert answers[-1].status_code == 429
    assert "are live, or ended within the hour" in answers[-1].json()["detail"]
    before = len(live(rehearsal))
    assert 0 < before <= LIVE_MAX
    batch = [alert(node="n5"), alert(node="n6")]
    assert send(rehearsal, "/alertmanager", **WEBHOOK, alerts=batch).status_code == 429
    assert len(live(rehearsal)) == before, "none of a refused batch is stored"
    assert send(rehearsal, **LEAK, key="0", for_seconds=900).status_code == 200, "one that is live goes on"
    end_all(rehearsal)


def test_a_sender_that_reports_without_end_locks_out_no_other(rehearsal: Rehearsal) -> None:
    while send(rehearsal, **LEAK, key=f"storm {len(live(rehearsal))}", source="x", for_seconds=600).status_code == 200:
        pass
    assert send(rehearsal, **LEAK, key="one more", for_seconds=600).status_code == 429
    other = send(rehearsal, role=Role.ADMIN, **LEAK, key="a real leak", for_seconds=600)
    assert (other.status_code, other.json()["signals"][0]["source"]) == (200, "admin")
    end_all(rehearsal)


def test_a_signal_that_names_other_nodes_than_before_is_news_for_the_audit(rehearsal: Rehearsal) -> None:
    """A sender with `act` could have had any node quarantined, and the audit named another one."""
    rehearsal.run(3601)
    assert send(rehearsal, **LEAK | {"targets": ["n7"]}, key="moves", for_seconds=60).status_code == 200
    (signal,) = live(rehearsal)
    send(rehearsal, **LEAK | {"targets": ["n8"]}, key="moves", for_seconds=60)
    first, second = audited(rehearsal, "signal")[-2:]
    assert (first.subject, second.subject) == (f"signal {signal['id']}", f"signal {signal['id']}")
    assert (first.after["targets"], second.before["targets"], second.after["targets"]) == (["n7"], ["n7"], ["n8"])
    end_all(rehearsal)


def test_two_signals_with_many_targets_are_two_although_they_begin_alike(rehearsal: Rehearsal) -> None:
    """The key of a signal without one was cut off after 255 characters."""
    many = [f"a-node-that-is-not-known-here-{number:04d}" for number in range(20)]
    send(rehearsal, **LEAK | {"targets": [*many, "n7"]}, for_seconds=60)
    send(rehearsal, **LEAK | {"targets": [*many, "n8"]}, for_seconds=60)
    assert [one["targets"] for one in live(rehearsal)] == [["n7"], ["n8"]]
    end_all(rehearsal)
