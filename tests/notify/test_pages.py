"""Every setting that says that a person is notified leads to a message: from its cause to the receiver, through a whole
control plane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.notify.site import http_receiver, webhook
from tests.recover.rehearsal import Rehearsal, refuse
from tests.testbed.prometheus import wait_for
from tests.tokens import add_tokens, bearer
from understudy_controlplane.config import Config
from understudy_controlplane.fleet.identity import Role

pytestmark = [pytest.mark.integration, pytest.mark.patient]

Cause = Callable[[Rehearsal], None]


def fails(*nodes: str) -> Cause:
    def cause(rehearsal: Rehearsal) -> None:
        for node in nodes:
            rehearsal.fail(node)

    return cause


def no_step_succeeds(rehearsal: Rehearsal) -> None:
    rehearsal.line.before = refuse("requeue_job", "down_nodes")
    rehearsal.fail("n3")


def slurm_keeps_a_node_out(rehearsal: Rehearsal) -> None:
    rehearsal.fake.drain_by("root", "n8", "Kill task failed")


def the_site_reports_a_leak(rehearsal: Rehearsal) -> None:
    add_tokens(rehearsal.control_plane.engine)
    client = TestClient(rehearsal.control_plane.app, headers=bearer(Role.ADMIN))
    answer = client.post("/v1/signals", json={"kind": "leak", "targets": ["n3"], "summary": "coolant below the rack"})
    assert answer.status_code == 200, answer.text


def needs_approval(rehearsal: Rehearsal) -> None:
    rehearsal.restart_control_plane(mode="approve")
    rehearsal.each_tick = rehearsal.control_plane.notifier.look
    rehearsal.run(3)
    rehearsal.fail("n3")


def fails_twice(rehearsal: Rehearsal) -> None:
    """n8, and again after a person has released it."""
    for xid in (79, 119):
        rehearsal.fail("n8", xid)
        rehearsal.run(10)
        rehearsal.booted_again.add("n8")
        rehearsal.fake.resume_node("n8")
        rehearsal.run(10)


@dataclass(frozen=True)
class Setting:
    name: str
    cause: Cause
    words: str
    seconds: float = 60.0
    sections: dict[str, Any] = field(default_factory=dict)


HELD = {"quarantined_nodes_max": 0, "page_after_seconds": 10}
SETTINGS = [
    Setting(
        "spares.no_spare",
        fails("n3"),
        "no fitting spare",
        60,
        {"spares": {"count": 3, "no_spare": "page", "reserved": {"user bob": 3}}},
    ),
    Setting("guards.page_after_seconds", fails("n8"), "quarantined already; the limit is 0", 90, {"guards": HELD}),
    Setting(
        "guards.breaker_share",
        fails("n6", "n7", "n8"),
        "circuit breaker is open",
        60,
        {"guards": {"breaker_nodes_min": 2, "breaker_nodes_max": 2}},
    ),
    Setting("recovery.step_timeout_seconds", no_step_succeeds, "failed", 60, {"recovery": {"step_timeout_seconds": 5}}),
    Setting("recovery.approval_seconds", needs_approval, "awaits approval"),
    Setting("signals.effects", the_site_reports_a_leak, "coolant below the rack"),
    Setting(
        "guards.page_after_seconds (a node that Slurm keeps out)",
        slurm_keeps_a_node_out,
        "Kill task failed",
        60,
        {"guards": {"page_after_seconds": 10}},
    ),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: one.name)
def test_a_setting_that_says_page_notifies(tmp_path: Path, setting: Setting) -> None:
    with http_receiver() as receiver:
        hook = webhook(tmp_path, receiver, least="page")
        notify = {"receivers": {"hook": hook}, "group_seconds": 1}
        rehearsal = Rehearsal(tmp_path, notify=notify, **setting.sections)
        rehearsal.each_tick = rehearsal.control_plane.notifier.look
        setting.cause(rehearsal)
        rehearsal.run(setting.seconds)
        try:
            wait_for(lambda: bool(receiver.got), setting.name)
        finally:
            rehearsal.control_plane.close()
    assert receiver.wrong == []
    assert {one["importance"] for one in receiver.got} == {"page"}
    assert any(setting.words in f"{one['title']} {one['text']}" for one in receiver.got), receiver.got


def test_no_setting_that_promises_a_notification_is_missing_here() -> None:
    """`lemon.score_min`: test_notifier. The other two say how long is waited, and both end in a page of those above."""
    promised = {
        f"{section}.{name}"
        for section, model in Config.model_fields.items()
        if hasattr(model.annotation, "model_fields")
        for name, setting in model.annotation.model_fields.items()  # type: ignore[union-attr]
        if "notified" in (setting.description or "") and section != "notify"
    }
    shown = {one.name.partition(" ")[0] for one in SETTINGS} | {"lemon.score_min"}
    assert promised <= shown, promised - shown
