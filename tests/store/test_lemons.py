"""The signals of lemons, counted from what the database holds."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Engine, insert

from tests import builders as b
from tests.store.rounds import write_round
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.lemon import LemonSignals
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.store import tables
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.lemons import LemonStore
from understudy_wire.facts import KernelEvent


def counted(engine: Engine, since: float = 0.0) -> dict[str, LemonSignals]:
    return LemonStore(engine).signals(since, Counter({"n7": 2}))


def incident(engine: Engine, name: str, signal: str, at: float = b.NOW, kind: SubjectKind = SubjectKind.NODE) -> None:
    values = {"rule": "r", "signal": signal, "summary": "", "evidence": {}, "outcome": ""}
    with engine.begin() as connection:
        connection.execute(
            insert(tables.incident).values(**values, subject_kind=kind, subject=name, fault_at=at, opened_at=at)
        )


def test_faults_and_losses_are_counted_by_node(engine: Engine) -> None:
    for signal in ("hardware_fault", "straggler_confirmed", "node_dead", "gang_stranded"):
        incident(engine, "n3", signal)
    incident(engine, "n3", "hardware_fault", kind=SubjectKind.DOMAIN)
    assert counted(engine)["n3"] == LemonSignals(faults=2, agent_losses=1)
    assert "n3" not in counted(engine, since=b.NOW + 1)


def test_xids_count_by_kind_and_without_those_of_programs(engine: Engine) -> None:
    codes = [79, 79, 48, 31, 13, None]
    events = [KernelEvent("boot", i, b.NOW, "text", code, "") for i, code in enumerate(codes)]
    FactStore(engine).record("n3", events, b.NOW, lambda _: None)
    assert counted(engine)["n3"] == LemonSignals(xid_kinds=2)


def test_silence_and_others_drains_count_as_they_were_decided(engine: Engine) -> None:
    FleetStore(engine).add_nodes(["n3", "n4"], b.NOW)
    drained = b.slurm_node("n4", flags=["DRAIN"], reason="fan", user="alice")
    snapshot = b.snapshot(b.node("n3", heard_at=b.NOW - 60), b.node("n4", slurm=drained))
    write_round(engine, decide(snapshot, detect(snapshot, b.config()), b.config()), b.NOW)
    found = counted(engine)
    assert (found["n3"], found["n4"]) == (LemonSignals(agent_losses=1), LemonSignals(outages=1))


def test_failed_jobs_count_whole_on_one_node_and_shared_on_several(engine: Engine) -> None:
    jobs = [
        b.job(job_id=1, nodes=("n1",)),
        b.job(job_id=2, nodes=("n1", "n2", "n3", "n4")),
        b.job(job_id=3, nodes=("n2",)),
    ]
    fleet = FleetStore(engine)
    fleet.see_jobs(jobs, b.NOW)
    ended = [("FAILED", jobs[0]), ("NODE_FAIL", jobs[1]), ("COMPLETED", jobs[2])]
    fleet.see_jobs([b.job(job_id=job.key.job_id, nodes=(), state=state) for state, job in ended], b.NOW)
    found = counted(engine)
    assert found["n1"] == LemonSignals(single_node_failures=1, multi_node_failures=0.25)
    assert found["n2"] == LemonSignals(multi_node_failures=0.25)


def test_users_that_keep_off_a_node_are_taken_over(engine: Engine) -> None:
    assert counted(engine) == {"n7": LemonSignals(excluded_by=2)}
