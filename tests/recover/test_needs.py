"""What waits for a person, on a virtual cluster: paged in time, and the same in every view."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from tests.notify.site import http_receiver, webhook
from tests.recover.rehearsal import NODES, Rehearsal, first
from tests.testbed.prometheus import wait_for
from tests.tokens import add_tokens, bearer
from understudy_client import Record
from understudy_controlplane.cli.status import lines
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb

pytestmark = [pytest.mark.integration, pytest.mark.patient]

HOUR = 3600.0


def client(rehearsal: Rehearsal, role: Role = Role.VIEWER) -> TestClient:
    return TestClient(rehearsal.control_plane.app, headers=bearer(role))


def status(rehearsal: Rehearsal) -> Record:
    found: Record = client(rehearsal).get("/v1/status").json(object_hook=Record)
    return found


def needs(rehearsal: Rehearsal) -> list[tuple[str, str]]:
    return [(one.kind, one.subject) for one in status(rehearsal).needs or ()]


def pages(rehearsal: Rehearsal) -> list[dict[str, Any]]:
    """Tickets of pages, oldest first."""
    return [one for one in rehearsal.tickets if "about" in one]


def with_tokens(rehearsal: Rehearsal) -> Rehearsal:
    add_tokens(rehearsal.engine, ["n1"])
    return rehearsal


def one_that_may_not_be_requeued(rehearsal: Rehearsal) -> int:
    """Job on n5 and another idle node, beside the gang and in place of the waiting job."""
    rehearsal.fake.cancel(rehearsal.hungry)
    job = rehearsal.fake.submit("ada", 1, name="llm", comment="understudy", requeue=False)
    rehearsal.run(3)
    return job


def test_a_gang_that_may_not_be_requeued_stays_and_a_person_is_paged_at_once_with_its_owner_and_what_ends_it(
    tmp_path: Path,
) -> None:
    with http_receiver() as receiver:
        notify = {"receivers": {"hook": webhook(tmp_path, receiver, least="page")}, "group_seconds": 1}
        rehearsal = with_tokens(Rehearsal(tmp_path, notify=notify))
        rehearsal.each_tick = rehearsal.control_plane.notifier.look
        job = one_that_may_not_be_requeued(rehearsal)
        failed_at = rehearsal.clock.now()
        rehearsal.fail("n5")
        rehearsal.run_until(lambda: pages(rehearsal), 10)
        assert rehearsal.clock.now() - failed_at < 3
        rehearsal.run(5)
        wait_for(lambda: bool(receiver.got), "the page is sent")
        rehearsal.run(3 * HOUR)
        rehearsal.control_plane.close()
    words = f"job {job} (llm) of ada stays on n5, which is quarantined"
    assert [page["about"] for page in pages(rehearsal)] == [[f"job {job}"]], "once, in three hours"
    (message,) = [one for one in receiver.got if words in one["text"]]
    assert message["importance"] == "page"
    assert f"scontrol update jobid={job} requeue=1" in message["text"]
    assert (rehearsal.state_of("n5"), job_state(rehearsal, job)) == (NodeState.QUARANTINED, "RUNNING")


def job_state(rehearsal: Rehearsal, number: int) -> str:
    return next(job.state for job in rehearsal.fake.jobs() if job.job_id == number)


def test_the_command_that_the_page_names_ends_it(tmp_path: Path) -> None:
    rehearsal = with_tokens(Rehearsal(tmp_path))
    job = one_that_may_not_be_requeued(rehearsal)
    rehearsal.fail("n5")
    rehearsal.run(5)
    assert needs(rehearsal)[0] == ("gang_stays", f"job {job}")
    rehearsal.fake.allow_requeue(job)
    rehearsal.run(200)
    moved = next(one for one in rehearsal.fake.jobs() if one.job_id == job)
    assert (moved.state, moved.restart_count, "n5" in moved.nodes) == ("RUNNING", 1, False)
    found = [("node_out", "n5"), ("pool_short", "spares")]
    assert needs(rehearsal) == found, "the gang waits no more; its node does, and it has taken a spare"
    rehearsal.control_plane.stores.requests.ask(Verb.RELEASE, "n5", "repaired", "ada", rehearsal.clock.now())
    rehearsal.booted_again.add("n5")
    rehearsal.run(400)
    assert needs(rehearsal) == []


def test_agents_that_are_all_silent_page_a_person_within_minutes_and_once(tmp_path: Path) -> None:
    """The control plane's own network: its nodes and their slurmds work."""
    rehearsal = with_tokens(Rehearsal(tmp_path))
    rehearsal.silent.update(NODES)
    rehearsal.probe = lambda _node: True
    silent_at = rehearsal.clock.now()
    rehearsal.run_until(lambda: pages(rehearsal), 300)
    assert 120 <= rehearsal.clock.now() - silent_at < 180
    rehearsal.run(3 * HOUR)
    (page,) = pages(rehearsal)
    assert "8 of 8 agents are silent" in page["reason"]
    assert needs(rehearsal)[0] == ("agents_silent", "fleet")
    rehearsal.silent.clear()
    rehearsal.run(30)
    assert needs(rehearsal) == []


@pytest.fixture(scope="module")
def worn(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """Four nodes of eight are quarantined, which is the budget: by default nothing is repaired."""
    folder = tmp_path_factory.mktemp("worn")
    guards = {"quarantined_nodes_min": 4, "waiting_nodes_min": 0, "breaker_nodes_min": 8}
    rehearsal = with_tokens(Rehearsal(folder, guards=guards))
    for name in ("n5", "n8", "n1", "n7"):
        rehearsal.fail(name)
        rehearsal.run(200)
    return rehearsal


def test_a_fleet_that_is_worn_down_is_not_green(worn: Rehearsal) -> None:
    shown = status(worn)
    assert (shown.nodes["quarantined"], shown.spares.held, shown.incidents_open) == (4, 0, 4)
    found = needs(worn)
    assert set(found) >= {("budget", "fleet"), ("pool_short", "spares"), *(("node_out", n) for n in ("n1", "n5"))}
    assert len(found) == len(set(found)) == 6, found


def test_status_command_line_dashboard_and_metrics_agree(worn: Rehearsal) -> None:
    shown = status(worn)
    assert shown.needs is not None
    whys = [one.why for one in shown.needs]
    assert shown.needs_count == len(whys) == len(shown.problems or ())
    printed = "\n".join(lines(shown, worn.clock.now()))
    page = client(worn).get("/dashboard").text
    assert [why for why in whys if why not in printed] == []
    assert f'data-needs="{len(whys)}"' in page
    assert len(re.findall(r'<li class="(?:now|soon)">', page)) == len(whys)
    text = client(worn, Role.METRICS).get("/metrics").text
    exported = {
        sample.labels["kind"]: int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "understudy_needs_person" and sample.value
    }
    assert exported == {
        kind: [one.kind for one in shown.needs].count(kind) for kind in {one.kind for one in shown.needs}
    }


@pytest.mark.parametrize("slurmd_timeout", first(1, 300, 3600))
def test_a_gang_that_stands_on_a_dead_node_without_a_spare_is_named_at_once_and_a_person_is_paged_after_a_minute(
    tmp_path: Path, slurmd_timeout: int
) -> None:
    """Slurm may have requeued it by then, or not."""
    with http_receiver() as receiver:
        notify = {"receivers": {"hook": webhook(tmp_path, receiver)}, "group_seconds": 1}
        spares = {"count": 3, "no_spare": "wait"}
        rehearsal = with_tokens(
            Rehearsal(tmp_path, notify=notify, spares=spares, silence={"dead_unconfirmed_seconds": 6})
        )
        for name in ("n5", "n6", "n7", "n8"):
            rehearsal.fake.drain_by("alice", name, "new cables")
        rehearsal.fake.slurmd_timeout_seconds = slurmd_timeout
        rehearsal.run(3)
        rehearsal.each_tick = rehearsal.control_plane.notifier.look
        rehearsal.kill_node("n3")
        rehearsal.run(20)
        wait_for(lambda: bool(receiver.got), "the incident is sent")
        assert "no fitting spare for job 1: 0 free, 1 needed; it stays until there is one" in receiver.got[0]["text"]
        assert pages(rehearsal) == []
        rehearsal.run(70)
        assert [page["about"] for page in pages(rehearsal)] == [["job 1"]]
        rehearsal.run(500)
        rehearsal.control_plane.close()
    assert [page["about"] for page in pages(rehearsal)] == [["job 1"]], "once, also where Slurm has requeued it"
    assert "job 1 (job) of researcher stands: " in pages(rehearsal)[0]["reason"]


def test_a_person_is_paged_for_a_gang_that_pends_as_slurm_alone_has_set_its_node_down(tmp_path: Path) -> None:
    """Its slurmd is dead, its agent reports: the control plane finds no fault, and no person has taken the node."""
    rehearsal = with_tokens(Rehearsal(tmp_path, spares={"count": 3, "no_spare": "wait"}))
    for name in ("n5", "n6", "n7", "n8"):
        rehearsal.fake.drain_by("alice", name, "new cables")
    rehearsal.run(3)
    rehearsal.fake.slurmd_timeout_seconds = 30
    rehearsal.fake.kill_node("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("PENDING", 1), 60)
    rehearsal.run(250)
    assert pages(rehearsal) == []
    rehearsal.run(80)
    assert [page["about"] for page in pages(rehearsal)] == [["job 1"]]
    assert "`systemctl status slurmd` on n3" in pages(rehearsal)[0]["reason"]
