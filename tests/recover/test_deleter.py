"""What a job keeps no longer is deleted by agents: looked at first, never restored from then on, and gone for good."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from tests import builders as b
from tests.recover.test_verifier import StoodClock
from understudy_controlplane.config import Checkpoints, Mode
from understudy_controlplane.decide.checkpoint_retention import SETTLED_SECONDS
from understudy_controlplane.fleet.job import Attempt, Condition, RestoreAnswer, RestoreDecision
from understudy_controlplane.recover.deleter import Deleter, View
from understudy_controlplane.recover.file_tasks import FileTasks
from understudy_controlplane.recover.restore import RestorePoints
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.database import DatabaseInMemory
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.packing import PackingStore
from understudy_wire.facts import CheckpointShard, RankStarted, Tier
from understudy_wire.files import DeleteFiles, FileOutcome, FileResult, FileTask

KEEPS = b.job(nodes=("n1", "n2"), comment="understudy keep=2")
OWNER = KEEPS.slurm.user_id
DELETABLE, DELETED, UNSEEN = FileOutcome.DELETABLE, FileOutcome.DELETED, FileOutcome.UNSEEN


class Site:
    """A gang of two ranks on two nodes that keeps the last two checkpoints, and has four."""

    def __init__(self, tier: Tier = Tier.LOCAL, **changes: Any) -> None:
        self.engine: Engine = DatabaseInMemory().engine
        self.clock, self.policy = StoodClock(), Checkpoints()
        self.store, self.fleet = CheckpointStore(self.engine), FleetStore(self.engine)
        (self.known,) = self.fleet.see_jobs([KEEPS], b.NOW)
        self.points = RestorePoints(self.store, self.fleet, self.clock)
        self.tier = tier
        self.snapshot = b.changed(b.snapshot(jobs=[KEEPS]), **changes)
        self.worked_on: frozenset[int] = frozenset()
        for step in (20, 40, 60, 80):
            self.save(step)
        self.clock.at = b.NOW + 80 + SETTLED_SECONDS
        self.start()

    def start(self) -> None:
        """The control plane, also again."""
        view = View(lambda: self.snapshot, lambda _: self.known, lambda: self.worked_on)
        deleter = Deleter(self.store, lambda: self.policy, self.clock, self.points, view)
        self.file_tasks = FileTasks([deleter], self.clock)
        self.file_tasks.look()

    def save(self, step: int) -> None:
        for rank in range(2):
            started = RankStarted(7, 0, rank, 2, b.NOW, 10, user_id=OWNER)
            shard = CheckpointShard(
                *(7, 0, rank, 2, step, f"/c/{step}", f"r{rank}", 5, "", b.NOW + step), user_id=OWNER, tier=self.tier
            )
            assert FactStore(self.engine).record(f"n{rank + 1}", [started, shard], b.NOW, lambda _: self.known) == []
        PackingStore(self.engine).pack(self.clock.now())

    def tasks(self) -> list[FileTask | None]:
        return [self.file_tasks.task(node) for node in ("n1", "n2")]

    def answer(self, node: str, outcome: FileOutcome, why: str = "") -> None:
        task = self.file_tasks.task(node)
        assert task is not None
        self.file_tasks.take(node, FileResult(task.number, outcome, why))
        self.file_tasks.look()

    def conditions(self) -> dict[int, Condition]:
        return {one.step: one.condition for one in self.store.complete_checkpoints(KEEPS.key)}


THERE = Condition.AS_WRITTEN
ALL_THERE = dict.fromkeys((20, 40, 60, 80), THERE)


def test_it_is_looked_at_on_all_nodes_then_restored_no_more_then_deleted() -> None:
    site = Site()
    seen = [
        (one.path, one.only_look, one.user_id, one.files[0].file)
        for one in site.tasks()
        if isinstance(one, DeleteFiles)
    ]
    assert seen == [("/c/20", True, OWNER, "r0"), ("/c/20", True, OWNER, "r1")]
    site.answer("n1", DELETABLE)
    site.answer("n2", DELETABLE)
    assert site.conditions() == {**ALL_THERE, 20: Condition.EXPIRED}
    for node in ("n1", "n2"):
        while isinstance(task := site.file_tasks.task(node), DeleteFiles) and task.path == "/c/40":
            site.answer(node, DELETABLE)
    for _ in range(2):
        for node in ("n1", "n2"):
            if site.file_tasks.task(node) is not None:
                site.answer(node, DELETED)
    assert site.conditions() == {20: Condition.DELETED, 40: Condition.DELETED, 60: THERE, 80: THERE}
    assert site.tasks() == [None, None]
    assert site.points.give(site.known, Attempt(1)).step == 80


@pytest.mark.parametrize("tier", [Tier.SHARED, Tier.OBJECT])
def test_where_all_nodes_see_it_one_of_the_job_deletes_it_though_its_writers_are_gone(tier: Tier) -> None:
    site = Site(tier)
    task = site.file_tasks.task("n1")
    assert isinstance(task, DeleteFiles)
    assert [one.file for one in task.files] == ["r0", "r1"]
    assert site.file_tasks.task("n2") is None


def test_what_is_pinned_or_was_written_again_stays_and_is_restored_as_before() -> None:
    site = Site()
    site.answer("n1", DELETABLE)
    site.answer("n2", UNSEEN, "/c/20/.keep pins it")
    assert site.conditions() == ALL_THERE
    task = site.file_tasks.task("n1")
    assert isinstance(task, DeleteFiles)
    assert task.path == "/c/40"


def test_an_agent_that_deletes_nothing_yet_loses_no_checkpoint() -> None:
    site = Site()
    site.answer("n1", FileOutcome.SAMPLED)
    assert site.conditions()[20] is THERE


def test_after_a_restart_of_the_control_plane_it_goes_on_with_what_was_begun() -> None:
    site = Site(Tier.SHARED)
    site.answer("n1", DELETABLE)
    assert site.conditions()[20] is Condition.EXPIRED
    site.start()
    task = site.file_tasks.task("n1")
    assert isinstance(task, DeleteFiles)
    assert (task.path, task.only_look) == ("/c/20", False)


def test_what_is_needed_again_since_it_was_looked_at_stays() -> None:
    site = Site(Tier.SHARED)
    assert site.file_tasks.task("n1") is not None
    row = {one.step: one.row for one in site.store.complete_checkpoints(KEEPS.key)}
    for step in (60, 80):
        site.store.set_condition(row[step], Condition.BAD, "read back")
    site.answer("n1", DELETABLE)
    assert site.conditions()[20] is THERE


def test_what_the_newest_attempt_restores_and_what_agents_work_on_stays() -> None:
    site = Site(Tier.SHARED)
    decision = RestoreDecision(RestoreAnswer.RESTORE, 20, "/c/20")
    site.fleet.record_restore_point(site.known.row, Attempt(1), decision, b.NOW)
    site.worked_on = frozenset(one.row for one in site.store.complete_checkpoints(KEEPS.key) if one.step == 40)
    site.start()
    assert site.tasks() == [None, None]


def test_nothing_is_deleted_unless_its_running_job_asks_and_the_control_plane_acts() -> None:
    asks_not = b.job(nodes=("n1", "n2"))
    over = b.job(nodes=("n1", "n2"), comment="understudy keep=2", state="COMPLETED")
    unmanaged = b.job(managed=False, nodes=("n1", "n2"), comment="keep=2")
    states: list[dict[str, Any]] = [{"jobs": {one.key: one}} for one in (asks_not, over, unmanaged)]
    states += [{"mode": Mode.OBSERVE}, {"paused": "alice"}, {"paused_jobs": {KEEPS.key: "bob"}}]
    for changes in states:
        assert Site(Tier.SHARED, **changes).tasks() == [None, None]
    site = Site(Tier.SHARED)
    assert site.file_tasks.task("n1") is not None
    site.policy = Checkpoints(delete_nodes_at_once=0)
    site.file_tasks.look()
    assert site.file_tasks.task("n1") is None


@pytest.mark.parametrize("changes", [{"paused": "by root"}, {"mode": Mode.OBSERVE}, None])
def test_nothing_is_struck_off_in_a_pause_or_while_it_is_copied_though_the_agents_had_looked_before(
    changes: dict[str, Any] | None,
) -> None:
    site = Site()
    tasks = [(node, task) for node in ("n1", "n2") if (task := site.file_tasks.task(node)) is not None]
    assert tasks
    if changes is None:
        site.worked_on = frozenset(one.row for one in site.store.complete_checkpoints(KEEPS.key))
    else:
        site.snapshot = b.changed(site.snapshot, **changes)
    for node, task in tasks:
        site.file_tasks.take(node, FileResult(task.number, DELETABLE))
    site.file_tasks.look()
    assert site.conditions() == dict.fromkeys((20, 40, 60, 80), THERE)
