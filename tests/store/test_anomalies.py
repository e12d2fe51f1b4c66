"""Anomalies in the database: each once, until a user trusts the checkpoints; and the restore point."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, func, select

from tests import builders as b
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import bearer, with_tokens
from understudy_client import Record
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.cli.checkpoints import explanation_lines
from understudy_controlplane.config import Config
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.job import Attempt, JobKey, KnownJob, RestoreAnswer, RestoreDecision, TrainingRun
from understudy_controlplane.fleet.run_attempts import changes
from understudy_controlplane.recover.restore import LOOK_SECONDS_MAX, RestorePoints
from understudy_controlplane.store import facts as facts_module
from understudy_controlplane.store import tables
from understudy_controlplane.store.checkpoints import CheckpointStore, trust
from understudy_controlplane.store.database import open_database
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.queries import Queries
from understudy_controlplane.store.requests import RequestStore
from understudy_wire.facts import (
    Anomaly,
    AnomalyKind,
    CheckpointShard,
    Fact,
    Layout,
    RankStarted,
    RestoreOutcome,
    RestoreReport,
    TrainingInputs,
)

JOB = b.job()


class StoodClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return b.NOW + self.seconds

    def monotonic(self) -> float:
        return self.now()


def shards(step: int, restart_count: int = 0) -> list[Fact]:
    return [
        CheckpointShard(
            JOB.key.job_id, restart_count, rank, 4, step, f"/c/{step}", f"{rank}", 1, "crc32:00000000", b.NOW
        )
        for rank in range(4)
    ]


def fixed(*facts: Fact) -> list[Fact]:
    return [msgspec.structs.replace(one, layout=Layout.FIXED) for one in facts]


def gang() -> list[Fact]:
    return [RankStarted(JOB.key.job_id, 0, rank, 4, b.NOW, 10 + rank) for rank in range(4)]


def inputs_of(launch: int, code: str) -> TrainingInputs:
    return TrainingInputs(JOB.key.job_id, 0, 0, 4, code, launch=launch)


def of_owner(facts: Iterable[Fact]) -> list[Fact]:
    return [msgspec.structs.replace(fact, user_id=JOB.slurm.user_id) for fact in facts]


def anomaly(step: int, rank: int = 1, restart_count: int = 0, **changes: Any) -> Anomaly:
    values = {"kind": AnomalyKind.LOSS_NAN, "at": b.NOW, "value": "nan", **changes}
    return Anomaly(JOB.key.job_id, restart_count, rank, 4, step=step, **values)


Report = Callable[..., list[str]]


@pytest.fixture
def report(engine: Engine) -> Report:
    known = FleetStore(engine).see_jobs([JOB], b.NOW)[0]

    def record(node: str, *facts: Fact, at: float = b.NOW) -> list[str]:
        return FactStore(engine).record(node, of_owner(facts), at, lambda _: known)

    record("n2", *gang())
    return record


def test_a_job_that_names_ever_new_attempts_fills_no_table(
    report: Report, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts_module, "ATTEMPTS_NAMED_MAX", 3)
    assert report("n1", *(inputs_of(launch, "commit a") for launch in range(9))) == []
    with engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(tables.attempt)).scalar_one() == 3


def decided(engine: Engine, attempt: int) -> RestoreDecision:
    known = FleetStore(engine).known_jobs(b.CLUSTER, [JOB.key.job_id])[JOB.key.job_id]
    return RestorePoints(CheckpointStore(engine), FleetStore(engine), StoodClock()).give(known, Attempt(attempt))


def restore(engine: Engine, attempt: int) -> tuple[int, str]:
    decision = decided(engine, attempt)
    return decision.step, decision.path


def test_an_anomaly_is_kept_once_however_often_it_arrives(engine: Engine, report: Report) -> None:
    for _ in range(3):
        assert report("n2", anomaly(50)) == []
    (one,) = CheckpointStore(engine).anomalies([JOB.key])
    assert (one.node, one.rank, one.step, one.until, one.attempt) == ("n2", 1, 50, None, Attempt(0))


def test_the_end_of_one_closes_it_whichever_comes_first(engine: Engine, report: Report) -> None:
    report("n2", anomaly(50, until=53))
    report("n2", anomaly(50))
    (one,) = CheckpointStore(engine).anomalies([JOB.key])
    assert one.until == 53


def test_the_restore_point_skips_suspect_checkpoints_and_reports_it(engine: Engine, report: Report) -> None:
    report("n2", *shards(20), *shards(40), *shards(60), anomaly(41))
    assert restore(engine, 1) == (40, "/c/40")
    (job,) = Queries(engine).jobs(10)
    (attempt,) = [one for one in job["attempts"] if one["restart_count"] == 1]
    assert "step 60: loss_nan (nan) on rank 1 (n2) since step 41" in attempt["restore_why"]


def test_a_job_that_saved_and_has_no_good_checkpoint_does_not_start_from_the_beginning(
    engine: Engine, report: Report
) -> None:
    """And every rank of the attempt gets the same answer, whatever is known later."""
    assert decided(engine, 1).answer is RestoreAnswer.FRESH
    report("n2", *shards(20), *shards(40), anomaly(7))
    assert decided(engine, 2).answer is RestoreAnswer.UNKNOWN
    assert "loss_nan" in decided(engine, 2).why
    (job,) = Queries(engine).jobs(10)
    shown = [(one["restore_answer"], one["restore_step"]) for one in job["attempts"]]
    assert shown == [(None, None), ("fresh", 0), ("unknown", None)]
    report("n2", *shards(4))
    assert [decided(engine, one).answer for one in (1, 2, 3)] == ["fresh", "unknown", "restore"]


def test_a_job_whose_only_checkpoint_was_written_over_in_part_does_not_start_from_the_beginning(
    engine: Engine, report: Report
) -> None:
    """The attempt that wrote over it failed in the middle: each attempt has announced one checkpoint."""
    report("n2", *shards(20))
    report("n2", *(msgspec.structs.replace(one, launch=1) for one in shards(20)[:2]))
    decision = decided(engine, 2)
    assert decision.answer is RestoreAnswer.UNKNOWN
    assert "step 20: written over" in decision.why


def looked(launch: int, step: int, outcome: RestoreOutcome) -> RestoreReport:
    return RestoreReport(JOB.key.job_id, 0, 0, 4, step, f"/c/{step}", outcome, b.NOW, launch=launch)


def test_one_node_looks_whether_the_checkpoint_is_there_before_any_rank_restores_it(
    engine: Engine, report: Report
) -> None:
    known = FleetStore(engine).known_jobs(b.CLUSTER, [JOB.key.job_id])[JOB.key.job_id]
    clock = StoodClock()
    points = RestorePoints(CheckpointStore(engine), FleetStore(engine), clock)
    nodes = ("n2", "n3", "n2")
    assert [points.looker(known, Attempt(0, 1), node) for node in nodes] == [""] * 3, "there is nothing to look for"
    report("n2", *shards(20), *shards(40), *shards(60))
    assert [points.looker(known, Attempt(0, 2), node) for node in nodes] == ["n2"] * 3
    clock.seconds += LOOK_SECONDS_MAX
    assert points.looker(known, Attempt(0, 2), "n3") == "n3", "n2 may be gone"
    report("n2", looked(2, 60, RestoreOutcome.MISSING))
    assert points.looker(known, Attempt(0, 2), "n4") == "n4"
    assert points.give(known, Attempt(0, 2)).step == 40, "the next good one"
    report("n2", looked(2, 40, RestoreOutcome.SEEN), looked(2, 40, RestoreOutcome.MISSING))
    assert [points.looker(known, Attempt(0, 2), node) for node in nodes] == [""] * 3
    assert points.give(known, Attempt(0, 2)).step == 40, "one look decides for all"
    assert restore(engine, 1) == (60, "/c/60")


def test_a_gang_of_another_size_restores_what_it_can_also_where_something_else_asked_before_its_ranks(
    engine: Engine, report: Report
) -> None:
    known = FleetStore(engine).known_jobs(b.CLUSTER, [JOB.key.job_id])[JOB.key.job_id]
    points = RestorePoints(CheckpointStore(engine), FleetStore(engine), StoodClock())
    report("n2", *shards(20), *fixed(*shards(40)))
    prolog = points.give(known, Attempt(1))
    assert (prolog.step, points.newest(known).ranks) == (40, 4), "before the size of the gang is known"
    assert points.looker(known, Attempt(1), "n2", 2) == "n2"
    assert [points.give(known, Attempt(1), ranks).step for ranks in (2, 2, 0, 1)] == [20] * 4, "the same for all"
    assert "only 4 ranks can restore it, and this gang has 2" in points.give(known, Attempt(1), 2).why
    restarted = RestorePoints(CheckpointStore(engine), FleetStore(engine), StoodClock())
    assert [restarted.give(known, Attempt(1), 2).step, restarted.give(known, Attempt(2), 4).step] == [20, 40]


def test_a_single_process_beside_the_gang_does_not_decide_for_it(engine: Engine, report: Report) -> None:
    known = FleetStore(engine).known_jobs(b.CLUSTER, [JOB.key.job_id])[JOB.key.job_id]
    points = RestorePoints(CheckpointStore(engine), FleetStore(engine), StoodClock())
    report("n2", *fixed(*shards(40)))
    assert points.looker(known, Attempt(1), "n2", 1) == ""
    assert points.give(known, Attempt(1), 1).answer is RestoreAnswer.UNKNOWN
    assert points.looker(known, Attempt(1), "n3", 4) == "n3", "what was settled for one is not for the gang"
    assert points.give(known, Attempt(1), 4).step == 40
    assert points.give(known, Attempt(0), 1).step == 40, "where the gang has started, it counts"


def test_a_chained_job_restores_what_the_jobs_of_its_run_before_it_saved(engine: Engine, report: Report) -> None:
    fleet = FleetStore(engine)
    report("n2", *shards(20), *shards(40), anomaly(30))
    (first,) = fleet.known_jobs(b.CLUSTER, [JOB.key.job_id]).values()
    points = RestorePoints(CheckpointStore(engine), fleet, StoodClock())
    (chained, other) = fleet.see_jobs([b.job(job_id=8, submit_at=9000), b.job(job_id=9, submit_at=9001)], b.NOW + 50)
    by_name = TrainingRun("train", "/home/a/project")
    points.note_run(first, by_name)
    points.note_run(chained, by_name)
    points.note_run(other, TrainingRun("train", "/home/a/other"))
    assert points.give(chained, Attempt(0)).answer is RestoreAnswer.FRESH, "the other job runs at the same time"
    fleet.end_attempts({chained.row: Attempt(0), other.row: Attempt(0)}, b.NOW + 10)
    assert points.give(other, Attempt(0)).answer is RestoreAnswer.FRESH
    assert points.give(chained, Attempt(1)) == points.give(first, Attempt(1))
    assert points.give(chained, Attempt(1)).path == "/c/20", "with what was seen by the job that saved it"
    report("n2", inputs_of(0, "commit a files b"))
    named = msgspec.structs.replace(inputs_of(0, "commit a files c"), job_id=8, user_id=chained.user_id)
    again = msgspec.structs.replace(named, code="commit d files d")
    assert FactStore(engine).record("n2", [named, again], b.NOW + 60, lambda _: chained) == []
    assert [(one.job.job_id, one.code, changed) for one, changed in changes(points.run_attempts(chained))] == [
        (8, "commit a files c", ("code",)),
        (7, "commit a files b", ()),
    ], "of each attempt what was named first"
    assert points.run_attempts(other) == []
    elsewhere = replace(chained, checkpoint_folders=("/new",))
    assert points.give(elsewhere, Attempt(3)).answer is RestoreAnswer.UNKNOWN, "saved, and not where it may restore"
    points = RestorePoints(CheckpointStore(engine), fleet, StoodClock())  # the control plane starts again
    points.note_run(chained, TrainingRun("pretraining", ""))
    points.note_run(chained, by_name)
    assert points.give(chained, Attempt(2)).answer is RestoreAnswer.FRESH, "a name that the user gave goes first"


@pytest.mark.parametrize("folder", ["", "/home/a/project"])
def test_another_user_with_the_name_of_the_run_reads_strikes_off_and_writes_over_nothing_of_it(
    engine: Engine, report: Report, folder: str
) -> None:
    fleet = FleetStore(engine)
    report("n2", *shards(20), *shards(40))
    (victim,) = fleet.known_jobs(b.CLUSTER, [JOB.key.job_id]).values()
    attacker_id = JOB.slurm.user_id + 1
    (attacker,) = fleet.see_jobs([b.job(job_id=8, submit_at=9000, user="mallory", user_id=attacker_id)], b.NOW + 50)
    fleet.end_attempts({victim.row: Attempt(0)}, b.NOW + 10)
    run, points = TrainingRun("train", folder), RestorePoints(CheckpointStore(engine), fleet, StoodClock())
    points.note_run(victim, run)
    points.note_run(attacker, run)
    assert points.give(attacker, Attempt(0)).answer is RestoreAnswer.FRESH
    failed = [msgspec.structs.replace(looked(launch, 40, RestoreOutcome.FAILED), job_id=8) for launch in (1, 2)]
    started = [msgspec.structs.replace(one, job_id=8) for one in gang()]
    half_written_over = [msgspec.structs.replace(one, job_id=8, launch=1) for one in shards(40)[:2]]
    nan = msgspec.structs.replace(anomaly(1), job_id=8)
    facts = [msgspec.structs.replace(one, user_id=attacker_id) for one in (*started, *failed, *half_written_over, nan)]
    assert FactStore(engine).record("n2", facts, b.NOW + 60, lambda _: attacker) == []
    assert restore(engine, 1) == (40, "/c/40")


def test_after_a_job_that_ended_well_the_next_begins_and_by_its_id_it_is_continued(
    engine: Engine, report: Report
) -> None:
    fleet = FleetStore(engine)
    report("n2", *shards(20))
    (saved,) = fleet.known_jobs(b.CLUSTER, [JOB.key.job_id]).values()
    points = RestorePoints(CheckpointStore(engine), fleet, StoodClock())
    numbers = {8: 9000, 9: 9001, 10: 9002, 11: 9003}
    short, new, named, alone = fleet.see_jobs(
        [b.job(job_id=one, submit_at=at) for one, at in numbers.items()], b.NOW + 50
    )
    by_name = TrainingRun("train", "/home/a/project")
    for job in (short, new):
        points.note_run(job, by_name)
    fleet.end_attempts({new.row: Attempt(0)}, b.NOW + 10)
    fleet.see_jobs([b.job(job_id=8, submit_at=9000, state="COMPLETED")], b.NOW + 60)
    decision = points.give(new, Attempt(0))
    assert (decision.answer, decision.why) == (RestoreAnswer.FRESH, ""), "job 8 was a short test, and saved nothing"
    assert points.line(new, decision) == "begins at step 0"
    points.note_run(saved, by_name)
    fleet.end_attempts({new.row: Attempt(1)}, b.NOW + 20)
    fleet.see_jobs([replace(JOB, slurm=replace(JOB.slurm, state="COMPLETED"))], b.NOW + 60)
    decision = points.give(new, Attempt(1))
    why = "job 7 of its name and folder ended well; UNDERSTUDY_RUN=7 would continue it"
    assert (decision.answer, decision.why) == (RestoreAnswer.FRESH, why)
    assert points.line(new, decision) == f"begins at step 0 ({why})"
    points.note_run(named, TrainingRun("7", ""))
    decision = points.give(named, Attempt(0))
    assert points.line(named, decision) == "continues job 7 from step 20, /c/20"
    later = [msgspec.structs.replace(one, job_id=9, user_id=JOB.slurm.user_id) for one in (*gang(), *shards(40))]
    assert FactStore(engine).record("n2", later, b.NOW + 70, lambda _: new) == []
    fleet.end_attempts({alone.row: Attempt(0)}, b.NOW + 80)
    assert points.give(named, Attempt(0, 1)).step == 20, "not job 9, which began after job 7 had ended"
    points.note_run(alone, TrainingRun("11", ""))
    assert points.give(alone, Attempt(0)).answer is RestoreAnswer.FRESH, "its own id"


def test_what_was_decided_for_a_task_before_its_program_ran_is_decided_again_when_its_arguments_are_known(
    engine: Engine, report: Report
) -> None:
    """And what another experiment has written over is not restored: it has the other one's weights."""
    fleet = FleetStore(engine)
    report("n2", *shards(20))
    (first,) = fleet.known_jobs(b.CLUSTER, [JOB.key.job_id]).values()
    points = RestorePoints(CheckpointStore(engine), fleet, StoodClock())
    other, again = fleet.see_jobs([b.job(job_id=8, submit_at=9000), b.job(job_id=9, submit_at=9001)], b.NOW + 50)
    run = TrainingRun("train", "/home/a/project")
    points.note_run(first, run._replace(arguments="a"))
    fleet.end_attempts({other.row: Attempt(0)}, b.NOW + 10)
    fleet.see_jobs([replace(JOB, slurm=replace(JOB.slurm, state="FAILED"))], b.NOW + 60)
    points.note_run(other, run)
    assert points.give(other, Attempt(0)).answer is RestoreAnswer.RESTORE, "the task's prolog asks"
    points.note_run(other, run._replace(arguments="b"))
    assert points.give(other, Attempt(0), 4).answer is RestoreAnswer.FRESH
    own = JOB.slurm.user_id
    facts = [msgspec.structs.replace(one, job_id=8, user_id=own) for one in (*gang(), *shards(20))]
    assert FactStore(engine).record("n2", facts, b.NOW + 70, lambda _: other) == []
    fleet.end_attempts({again.row: Attempt(0)}, b.NOW + 80)
    points.note_run(again, run._replace(arguments="a"))
    decision = points.give(again, Attempt(0), 4)
    assert (decision.answer, "written over" in decision.why) == (RestoreAnswer.UNKNOWN, True)


def test_the_arguments_of_a_job_are_those_of_rank_0_for_which_other_ranks_wait(engine: Engine, report: Report) -> None:
    """An option that differs from rank to rank made two jobs of one chain different experiments."""
    fleet, clock, run = FleetStore(engine), StoodClock(), TrainingRun("train", "/home/a/project")
    points = RestorePoints(CheckpointStore(engine), fleet, clock)
    job, alone = fleet.see_jobs([b.job(job_id=8, submit_at=9000), b.job(job_id=9, submit_at=9001)], b.NOW)

    def stored(job: KnownJob) -> str:
        (found,) = [one.arguments for one in fleet.run_jobs(job.row)[1] if one.row == job.row] or [""]
        return found

    assert not points.note_run(job, run._replace(arguments="rank 3"), 3)
    own = {"job_id": 8, "user_id": JOB.slurm.user_id, "run": run.name, "run_folder": run.folder}
    for rank in (3, 0):
        started = msgspec.structs.replace(gang()[rank], **own, arguments=f"rank {rank}")
        assert FactStore(engine).record("n2", [started], b.NOW + 1, lambda _: job) == []
        assert fleet.knows_arguments(job.row) is (rank == 0)
    assert points.note_run(job, run._replace(arguments="rank 3"), 3)
    assert stored(job) == "rank 0"
    assert not points.note_run(alone, run._replace(arguments="rank 1"), 1)
    clock.seconds += 20
    assert points.note_run(alone, run._replace(arguments="rank 1"), 1), "rank 0 has no hook"


def test_the_restore_point_of_an_attempt_stays(engine: Engine, report: Report) -> None:
    report("n2", *shards(20), *shards(40))
    assert restore(engine, 1) == (40, "/c/40")
    report("n2", anomaly(30))
    assert restore(engine, 1) == (40, "/c/40")
    assert restore(engine, 2) == (20, "/c/20")


def test_the_newest_good_checkpoint_is_known_without_settling_anything(engine: Engine, report: Report) -> None:
    """Looked up once: again when there is something new."""
    checkpoints, fleet = CheckpointStore(engine), FleetStore(engine)
    known, points = (
        fleet.known_jobs(b.CLUSTER, [JOB.key.job_id])[JOB.key.job_id],
        RestorePoints(checkpoints, fleet, StoodClock()),
    )

    def newest() -> tuple[int, str]:
        found = points.newest(known)
        return found.step, found.path

    assert newest() == (0, "")
    report("n2", *shards(20), *shards(40)[:3])
    assert newest() == (20, "/c/20")
    report("n2", *shards(40))
    assert newest() == (40, "/c/40")
    report("n2", anomaly(30))
    assert newest() == (20, "/c/20")
    trusted = AuditEntry.on_host("alice", b.NOW + 1, "trust-checkpoints", "job 7", "looked at")
    RequestStore(engine).ask_audited(trusted, effect=partial(trust, known.row))
    assert newest() == (40, "/c/40")
    assert fleet.restore_point(known.row, Attempt(0, 1)) is None
    _, changed = checkpoints.checkpoint_news(checkpoints.newest())
    assert changed == set()


def test_the_window_shows_what_speaks_against_a_checkpoint(engine: Engine, report: Report) -> None:
    report("n2", *shards(20), *shards(40), anomaly(30))
    shown = {one["step"]: one["suspect"] for one in Queries(engine).checkpoints(10)}
    assert shown == {20: "", 40: "loss_nan (nan) on rank 1 (n2) since step 30"}


def test_where_nan_was_first(engine: Engine, report: Report) -> None:
    report("n2", anomaly(50, rank=2), anomaly(50, rank=1), anomaly(51, rank=1))
    report("n3", anomaly(51, rank=3), anomaly(49, rank=3, kind=AnomalyKind.LOSS_JUMP))
    (first,) = CheckpointStore(engine).first_nans(b.NOW - 9)
    assert (first.job, first.step, first.nodes, first.rank) == (JOB.key, 50, ("n2",), 1)
    report("n3", anomaly(50, rank=3))
    (first,) = CheckpointStore(engine).first_nans(b.NOW - 9)
    assert first.nodes == ("n2", "n3")
    assert CheckpointStore(engine).first_nans(b.NOW + 9) == ()


def test_steps_that_gave_another_result_are_found_with_their_node(engine: Engine, report: Report) -> None:
    report("n2", anomaly(50, rank=2, kind=AnomalyKind.RECOMPUTE_DIFFERS), anomaly(51, rank=1))
    (wrong,) = CheckpointStore(engine).wrong_results(b.NOW - 9)
    assert (wrong.job, wrong.node, wrong.rank, wrong.step) == (JOB.key, "n2", 2, 50)
    assert CheckpointStore(engine).wrong_results(b.NOW + 9) == ()


def test_of_a_gang_on_one_node_the_rank_is_known_and_the_node_is_compared_with_none(engine: Engine) -> None:
    alone = b.job(nodes=("n1",))
    known = FleetStore(engine).see_jobs([alone], b.NOW)[0]
    FactStore(engine).record("n1", of_owner([anomaly(5)]), b.NOW, lambda _: known)
    (first,) = CheckpointStore(engine).first_nans(0)
    assert (first.rank, first.nodes, first.of_several) == (1, ("n1",), False)


@pytest.mark.integration
def test_a_person_can_answer_for_the_checkpoints(tmp_path: Path) -> None:
    server = {"database": with_tokens(f"sqlite:///{tmp_path}/fleet.db")}
    config = Config.model_validate({"cluster": b.CLUSTER, "server": server})
    engine = open_database(config.server.database)
    FleetStore(engine).see_jobs([JOB], b.NOW)
    engine.dispose()
    with closing(compose(config, Outside(VirtualSlurm(["n1"]), lambda _: True, StoodClock()))) as plane:
        _trust(plane)


def _trust(plane: ControlPlane) -> None:
    known = plane.stores.fleet.known_jobs(b.CLUSTER, [JOB.key.job_id])
    plane.stores.facts.record("n2", of_owner([*shards(20), anomaly(7)]), b.NOW, known.get)
    client = TestClient(plane.app, headers=bearer(Role.VIEWER))
    route, token = "/v1/jobs/7/trust-checkpoints", bearer(Role.OPERATOR)
    word = {"reason": "a bad batch, the weights are fine"}
    assert [client.post(route, json=word).status_code, client.post(route, json={}, headers=token).status_code] == [
        403,
        400,
    ]
    assert client.post("/v1/jobs/99/trust-checkpoints", json=word, headers=token).status_code == 404
    assert client.post(route, json={"reason": " "}, headers=token).status_code == 422
    assert client.get("/v1/checkpoints").json()["items"][0]["suspect"] != ""
    assert client.post(route, json={**word, "dry_run": True}, headers=token).json()["request"] is None
    assert client.get("/v1/checkpoints").json()["items"][0]["suspect"] != ""
    number = client.post(route, json=word, headers=token).json()["request"]
    assert client.get(f"/v1/requests/{number}").json()["status"] == "done"
    assert client.get("/v1/checkpoints").json()["items"][0]["suspect"] == ""
    plane.stores.facts.record("n2", of_owner([anomaly(9)]), b.NOW + 200, known.get)
    assert client.get("/v1/checkpoints").json()["items"][0]["suspect"] != ""


def test_of_many_jobs_only_those_asked_for_are_read(engine: Engine, report: Report) -> None:
    report("n2", anomaly(5))
    assert CheckpointStore(engine).anomalies([JobKey(b.CLUSTER, 99, 1)]) == []


@pytest.mark.integration
def test_what_would_be_restored_now_is_shown_with_what_was_passed_over_and_why(tmp_path: Path) -> None:
    server = {"database": with_tokens(f"sqlite:///{tmp_path}/fleet.db")}
    config = Config.model_validate({"cluster": b.CLUSTER, "server": server})
    engine = open_database(config.server.database)
    FleetStore(engine).see_jobs([JOB], b.NOW)
    engine.dispose()
    with closing(compose(config, Outside(VirtualSlurm(["n1"]), lambda _: True, StoodClock()))) as plane:
        client = TestClient(plane.app, headers=bearer(Role.VIEWER))
        assert client.get("/v1/explain/checkpoints/99").status_code == 404
        assert client.get("/v1/explain/checkpoints/7?ranks=-1").status_code == 422
        assert client.get("/v1/explain/checkpoints/7").json()["answer"] == "fresh"
        known = plane.stores.fleet.known_jobs(b.CLUSTER, [JOB.key.job_id])
        inputs = [inputs_of(0, "commit a files b"), inputs_of(1, "commit a files c"), inputs_of(2, "commit a files c")]
        facts = of_owner([*gang(), *fixed(*shards(20)), *shards(40), *shards(60), anomaly(41), *inputs])
        plane.stores.facts.record("n2", facts, b.NOW, known.get)
        shown, with_two = (
            client.get("/v1/explain/checkpoints/7", params=ranks).json(object_hook=Record)
            for ranks in ({}, {"ranks": 2})
        )
    assert (shown.answer, shown.step, shown.path, shown.count) == ("restore", 40, "/c/40", 3)
    assert [line.partition(", ")[0] for line in explanation_lines(7, shown)] == [
        "an attempt of job 7 with 4 ranks that begins now restores step 40: /c/40",
        "  passed over: step 60",
        "  chosen: step 40",
        "  older: step 20",
        "attempt 0.2 of job 7 runs with code commit a files c",
        "  code changed between 0 of job 7 and attempt 0.1 of job 7: code was commit a files b",
    ]
    assert next(line for line in explanation_lines(7, shown) if "passed over" in line).endswith(
        "loss_nan (nan) on rank 1 (n2) since step 41"
    )
    lines = list(explanation_lines(7, with_two))
    assert lines[0] == "an attempt of job 7 with 2 ranks that begins now restores step 40: /c/40"
    assert lines[-3].endswith(", for 4 ranks: only 4 ranks can restore it, and this gang has 2")
