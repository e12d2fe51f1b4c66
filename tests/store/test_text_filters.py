"""Lists are searched by part of a name, on both databases, with whatever a person types."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, insert

from tests import builders as b
from understudy_controlplane.fleet.recovery import RecoveryStatus
from understudy_controlplane.store import tables
from understudy_controlplane.store.queries import IncidentFilter, JobFilter, Queries
from understudy_controlplane.store.recoveries import RecoveryFilter, RecoveryStore

JOBS = [(4711, "ada", "GPT-100%_large"), (47, "bob", "bert"), (5, "eve", "train")]
INCIDENTS = [("dgx-001", "xid.79", "Xid 79"), ("dgx-002", "silence", "silent"), ("dgx-001", "xid.48", "Xid 48")]


@pytest.fixture
def filled(engine: Engine) -> Engine:
    with engine.begin() as connection:
        for number, user, name in JOBS:
            of_job = {"cluster": b.CLUSTER, "job_id": number, "submit_at": 1, "user": user, "user_id": number}
            rest = {"name": name, "managed": True, "state": "RUNNING", "restart_count": 0, "seen_at": b.NOW}
            connection.execute(insert(tables.job).values(**of_job, **rest))
        for subject, rule, summary in INCIDENTS:
            of_incident = {"subject_kind": "node", "subject": subject, "nodes": [subject], "rule": rule}
            rest = {"signal": "hardware_fault", "summary": summary, "evidence": {}}
            times = {"fault_at": b.NOW, "opened_at": b.NOW}
            connection.execute(insert(tables.incident).values(**of_incident, **rest, **times))
        for number, node in enumerate(("dgx-001", "dgx-0011")):
            plan = {"kind": "quarantine", "steps": [], "failed_nodes": [node], "drain_reason": "x"}
            of_recovery = {"kind": "quarantine", "plan": plan, "status": "succeeded", "outcome": f"outcome {number}"}
            times = {"fault_at": b.NOW, "detected_at": b.NOW, "decided_at": b.NOW}
            connection.execute(insert(tables.recovery).values(**of_recovery, **times))
    return engine


@pytest.mark.parametrize(
    ("text", "found"),
    [("gpt", [4711]), ("47", [47, 4711]), ("AD", [4711]), ("100%_", [4711]), ("%", [4711]), ("_", [4711]), ("'", [])],
)
def test_jobs_by_part_of_name_or_user_or_the_beginning_of_their_id(filled: Engine, text: str, found: list[int]) -> None:
    assert [one["job_id"] for one in Queries(filled).jobs(10, only=JobFilter(text=text))] == found


@pytest.mark.parametrize(("text", "found"), [("001", [3, 1]), ("XID", [3, 1]), ("silent", [2]), ("%", [])])
def test_incidents_by_part_of_node_rule_or_summary(filled: Engine, text: str, found: list[int]) -> None:
    assert [one["id"] for one in Queries(filled).incidents(10, only=IncidentFilter(text=text))] == found


def test_recoveries_by_the_nodes_of_their_plan_and_their_outcome(filled: Engine) -> None:
    def found(text: str, *naming: str) -> list[int]:
        only = RecoveryFilter(status=RecoveryStatus.SUCCEEDED, text=text, naming=naming)
        return [one.id for one in RecoveryStore(filled).newest(10, only=only)]

    assert found("dgx-001", "dgx-001") == [1], "not of a node whose name goes on"
    assert (found("come 1"), found("QUARANT"), found("none")) == ([2], [2, 1], [])


def test_the_last_incident_of_each_node(filled: Engine) -> None:
    found = Queries(filled).newest_incidents(["dgx-001", "dgx-002", "dgx-003"])
    assert {name: one["summary"] for name, one in found.items()} == {"dgx-001": "Xid 48", "dgx-002": "silent"}
