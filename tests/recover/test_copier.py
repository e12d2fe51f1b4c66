"""Checkpoints on disks of nodes are copied by the nodes that wrote them, and a copy counts when it is whole."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import NoReturn

import pytest
from sqlalchemy import Engine
from structlog.testing import capture_logs

from tests import builders as b
from tests.recover.test_verifier import StoodClock
from tests.store.test_store import statements
from understudy_controlplane.config import Checkpoints
from understudy_controlplane.fleet.job import Attempt, Condition, JobKey, RankPlace
from understudy_controlplane.recover.checkpoint_work import Nodes
from understudy_controlplane.recover.copier import DUE_AGAIN_SECONDS, Copier
from understudy_controlplane.recover.file_tasks import ANSWER_SECONDS_MAX, OFFERED_SECONDS_MAX, FileTasks
from understudy_controlplane.recover.restore import RestorePoints
from understudy_controlplane.recover.verifier import Verifier
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.database import DatabaseInMemory, StoreError
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.packing import PackingStore
from understudy_wire.facts import CheckpointDeleted, CheckpointShard, Layout, RankStarted, Tier
from understudy_wire.files import CopyFiles, FileOutcome, FileResult, FileTask

JOB = b.job(nodes=("n1", "n2"))
OWNER = JOB.slurm.user_id
COPIED = FileOutcome.COPIED


class Site:
    """A gang of two ranks on two nodes that saves on their disks."""

    def __init__(self, policy: Checkpoints | None = None, interval: float = 0.0) -> None:
        self.interval = interval
        self.engine: Engine = DatabaseInMemory().engine
        self.clock, self.policy = StoodClock(), policy or Checkpoints()
        self.store, fleet = CheckpointStore(self.engine), FleetStore(self.engine)
        (self.known,) = fleet.see_jobs([b.job(nodes=("n1", "n2"))], b.NOW)
        self.points = RestorePoints(self.store, fleet, self.clock)
        self.start()

    def start(self, gang: tuple[str, ...] = (), heard: Set[str] = frozenset()) -> None:
        """The control plane, also again."""
        nodes = Nodes(lambda _: gang, lambda: heard)
        copier = Copier(self.store, lambda: self.policy, self.clock, self.points.forget, nodes, lambda _: self.interval)
        verifier = Verifier(self.store, lambda: self.policy, self.clock, self.points.forget)
        self.tasks = FileTasks([copier, verifier], self.clock)

    def save(
        self,
        step: int,
        copy_to: str = "/shared",
        tier: Tier = Tier.LOCAL,
        then_copy_to: str = "",
        name: bool = True,
    ) -> None:
        facts = FactStore(self.engine)
        place, further = (f"{one}/{step}" if one and name else one for one in (copy_to, then_copy_to))
        for rank in range(2):
            started = RankStarted(7, 0, rank, 2, b.NOW, 10, user_id=OWNER)
            shard = CheckpointShard(
                *(7, 0, rank, 2, step, f"/local/{step}", f"r{rank}", 5, "crc32:00000000", b.NOW + step),
                user_id=OWNER,
                layout=Layout.FIXED,
                tier=tier,
                copy_to=place,
                then_copy_to=further,
                write_seconds=2.0,
            )
            assert facts.record(f"n{rank + 1}", [started, shard], b.NOW, lambda _: self.known) == []
        PackingStore(self.engine).pack(self.clock.now())
        self.tasks.look()

    def task(self, node: str) -> FileTask | None:
        return self.tasks.task(node)

    def copy_to(self, node: str) -> str:
        task = self.task(node)
        assert isinstance(task, CopyFiles)
        return task.copy_to

    def answer(self, node: str, outcome: FileOutcome = COPIED, why: str = "") -> None:
        task = self.task(node)
        assert task is not None
        self.tasks.take(node, FileResult(task.number, outcome, why))
        self.tasks.look()

    def paths(self) -> list[tuple[str, Tier]]:
        return [(one.path, one.tier) for one in self.store.complete_checkpoints(JOB.key)]


LOCAL = ("/local/40", Tier.LOCAL)
SHARED = ("/shared/40", Tier.SHARED)


def test_each_node_copies_what_it_wrote_and_the_copy_is_there_when_all_have() -> None:
    site = Site()
    site.save(40)
    task = site.task("n1")
    assert isinstance(task, CopyFiles)
    assert (task.path, task.copy_to, task.user_id, [one.file for one in task.files]) == (
        "/local/40",
        "/shared/40",
        OWNER,
        ["r0"],
    )
    site.answer("n1")
    assert site.paths() == [LOCAL]
    site.answer("n2")
    assert site.paths() == [LOCAL, SHARED]
    assert [site.task(node) for node in ("n1", "n2", "n3")] == [None] * 3
    of_both = [(one.at, one.write_seconds) for one in site.store.measured(JOB.key)]
    assert of_both == [(b.NOW + 40, None), (b.NOW + 40, 2.0)], "a copy is no save of the training"
    assert site.points.give(site.known, Attempt(1), 2).path == "/shared/40"
    assert site.points.place(site.known, Attempt(1), 1, "n2") == RankPlace("", "/local/40", "r1")


def test_the_newest_is_copied_and_what_is_older_is_left_out() -> None:
    site = Site()
    site.save(40)
    site.save(60)
    site.answer("n1")
    site.save(80)
    site.answer("n2")
    assert SHARED in site.paths(), "what was begun comes to its end"
    assert site.copy_to("n1") == "/shared/80"


def test_after_a_restart_of_the_control_plane_it_is_copied_again() -> None:
    """The agents go on where they were."""
    site = Site()
    site.save(40)
    site.answer("n1")
    site.start()
    site.tasks.look()
    site.answer("n1")
    site.answer("n2")
    assert SHARED in site.paths()


def test_what_cannot_be_copied_is_given_up_and_the_next_one_is_not() -> None:
    site = Site()
    site.save(40)
    site.answer("n1", FileOutcome.UNSEEN, "No space left on device: /shared/40/r0")
    assert [site.task(node) for node in ("n1", "n2")] == [None, None]
    site.save(60)
    site.answer("n1", FileOutcome.READ)  # an agent that copies nothing yet
    site.save(80)
    assert site.task("n2") is not None
    site.clock.at += OFFERED_SECONDS_MAX + 1
    site.tasks.look()
    assert site.task("n1") is None, "n1 is gone"
    assert len(site.paths()) == 3


def test_only_what_its_training_asks_for_is_copied_and_only_as_far_as_the_site_allows() -> None:
    for site in (Site(Checkpoints(copy_nodes_at_once=0)), Site(), Site()):
        kind = site.policy.copy_nodes_at_once
        site.save(40, copy_to="/shared" if not kind else "")
        site.save(60, tier=Tier.LOCAL if not kind else Tier.SHARED)
        assert [site.task(node) for node in ("n1", "n2")] == [None, None]
    one = Site(Checkpoints(copy_nodes_at_once=1))
    one.save(40)
    assert [one.task(node) is None for node in ("n1", "n2")] == [False, True]
    one.answer("n1")
    assert one.task("n2") is not None


def test_what_the_training_deletes_meanwhile_has_no_copy() -> None:
    site = Site()
    site.save(40)
    site.answer("n1")
    gone = CheckpointDeleted(7, 0, 0, 2, 40, "/local/40", b.NOW + 50, user_id=OWNER)
    assert FactStore(site.engine).record("n1", [gone], b.NOW, lambda _: site.known) == []
    site.answer("n2")
    assert [path for path, _ in site.paths()] == ["/local/40"]


def test_an_agent_finishes_what_it_reads_back_before_it_copies() -> None:
    site = Site(Checkpoints(verify=True))
    site.save(20, copy_to="")
    site.tasks.look()
    reading = site.task("n1")
    assert reading is not None
    site.save(40)
    assert site.task("n1") == reading
    site.answer("n1", FileOutcome.SAMPLED)
    assert site.copy_to("n1") == "/shared/40"


def test_a_copy_on_shared_storage_is_copied_in_turn_to_an_object_store() -> None:
    site = Site()
    site.save(40, then_copy_to="s3://runs")
    for node in ("n1", "n2"):
        site.answer(node)
    task = site.task("n1")
    assert isinstance(task, CopyFiles)
    assert (task.path, task.copy_to, [one.file for one in task.files]) == ("/shared/40", "s3://runs/40", ["r0"])
    for node in ("n1", "n2"):
        site.answer(node)
    assert site.paths() == [LOCAL, SHARED, ("s3://runs/40", Tier.OBJECT)]
    assert site.points.give(site.known, Attempt(1), 2).path == "/shared/40", "the nearest that all nodes see"


def test_a_copy_to_an_object_store_holds_up_none_to_a_shared_file_system() -> None:
    site = Site()
    site.save(40, then_copy_to="s3://runs")
    for node in ("n1", "n2"):
        site.answer(node)
    assert site.copy_to("n1") == "s3://runs/40"
    site.save(60)
    site.answer("n1")
    assert site.copy_to("n1") == "/shared/60"


def test_to_an_object_store_is_copied_as_often_as_is_best_for_that_tier() -> None:
    site = Site(interval=100)
    for step, copied in ((40, True), (60, False), (139, False), (140, True)):
        site.save(step, copy_to="s3://runs", tier=Tier.SHARED)
        assert (site.task("n1") is not None) is copied, step
        for node in ("n1", "n2") if copied else ():
            site.answer(node)
    assert [path for path, tier in site.paths() if tier is Tier.OBJECT] == ["s3://runs/40", "s3://runs/140"]


def test_a_copy_is_not_written_over_another_checkpoint() -> None:
    """While it is written, neither would be whole."""
    site = Site()
    site.save(40, copy_to="s3://runs/latest", name=False)
    for node in ("n1", "n2"):
        site.answer(node)
    site.save(60, copy_to="s3://runs/latest", name=False)
    assert [site.task(node) for node in ("n1", "n2")] == [None, None]
    assert ("s3://runs/latest", Tier.OBJECT) in site.paths()


def test_each_rank_is_named_what_it_has_to_fetch_from_an_object_store() -> None:
    site = Site()
    site.save(40, copy_to="s3://runs")
    for node in ("n1", "n2"):
        site.answer(node)
    row = next(one.row for one in site.store.complete_checkpoints(JOB.key) if one.tier is Tier.LOCAL)
    site.store.set_condition(row, Condition.LOST, "the node is gone")
    assert site.points.give(site.known, Attempt(1), 2).path == "s3://runs/40"
    assert site.points.place(site.known, Attempt(1), 1, "n3") == RankPlace(files=("r1",))


def test_another_user_s_checkpoint_at_the_place_stops_no_copy() -> None:
    """Anyone may announce a checkpoint at any path."""
    site = Site()
    (stranger,) = FleetStore(site.engine).see_jobs([b.job(job_id=8, nodes=("n3",), user_id=OWNER + 1)], b.NOW)
    started = RankStarted(8, 0, 0, 1, b.NOW, 10, user_id=OWNER + 1)
    shard = CheckpointShard(
        *(8, 0, 0, 1, 40, "/shared/40", "x", 5, "crc32:00000000", b.NOW + 30), user_id=OWNER + 1, layout=Layout.FIXED
    )
    assert FactStore(site.engine).record("n3", [started, shard], b.NOW, lambda _: stranger) == []
    site.save(40)
    assert site.task("n1") is not None


def test_another_node_of_the_gang_copies_what_a_node_that_is_gone_wrote_on_a_shared_file_system() -> None:
    site = Site()
    site.start(gang=("n1", "n3"), heard={"n1", "n3"})
    site.save(40, copy_to="s3://runs", tier=Tier.SHARED)
    tasks = {node: site.task(node) for node in ("n1", "n2", "n3")}
    assert tasks["n2"] is None
    assert sorted(one.file for task in tasks.values() if isinstance(task, CopyFiles) for one in task.files) == [
        "r0",
        "r1",
    ]
    for node, task in tasks.items():
        if task is not None:
            site.answer(node)
    assert ("s3://runs/40", Tier.OBJECT) in site.paths()


def test_where_the_job_is_over_another_node_that_wrote_the_checkpoint_copies_it() -> None:
    site = Site()
    site.start(heard={"n1", "n2", "n9"})
    site.save(40, copy_to="s3://runs", tier=Tier.SHARED)
    site.answer("n1")
    assert site.task("n2") is not None
    site.clock.at += OFFERED_SECONDS_MAX + 1  # n2 takes its part, and is lost
    site.tasks.look()
    site.clock.at += ANSWER_SECONDS_MAX
    site.tasks.look()
    task = site.task("n1")
    assert isinstance(task, CopyFiles)
    assert [one.file for one in task.files] == ["r1"]
    assert site.task("n9") is None, "it may not see the place, and has nothing of this user"
    site.answer("n1")
    assert ("s3://runs/40", Tier.OBJECT) in site.paths()


def test_a_result_that_the_database_cannot_take_now_is_noted_when_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    site.save(40)
    site.answer("n1")
    with monkeypatch.context() as away:
        away.setattr(site.store, "add_copy", raising(StoreError("the database does not answer")))
        site.answer("n2")
        site.tasks.look()
        assert site.paths() == [LOCAL]
    site.tasks.look()
    assert site.paths() == [LOCAL, SHARED]


@pytest.mark.parametrize("error", [RuntimeError("a fault of Understudy"), StoreError("the row is refused")])
def test_a_result_that_can_never_be_noted_keeps_its_node_from_no_other_task(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    site = Site()
    monkeypatch.setattr(site.store, "add_copy", raising(error))
    site.save(40)
    site.answer("n1")
    with capture_logs() as lines:
        site.answer("n2")
        if isinstance(error, StoreError):
            assert site.task("n2") is None, "it is tried again"
            site.clock.at += ANSWER_SECONDS_MAX + 1
        for _ in range(3):
            site.tasks.look()
    assert site.paths() == [LOCAL]
    site.save(60)
    assert site.copy_to("n2") == "/shared/60"
    assert [one["reason"] for one in lines if one["event"] == "checkpoint_not_copied"] == ["n2 does not answer"]


def raising(error: Exception) -> Callable[..., NoReturn]:
    def refuse(*_: object) -> NoReturn:
        raise error

    return refuse


def test_a_copy_is_given_up_where_no_node_answers_and_never_another_node_s_disk_copied() -> None:
    site = Site()
    site.start(gang=("n1", "n3"), heard={"n1", "n3"})
    site.save(40)
    assert site.task("n3") is None, "only n2 sees its own disk"
    site.answer("n1")
    site.clock.at += OFFERED_SECONDS_MAX + 1
    site.tasks.look()
    assert [site.task(node) for node in ("n1", "n2", "n3")] == [None] * 3
    site.save(60, copy_to="s3://runs", tier=Tier.SHARED)
    for _ in range(6):
        site.clock.at += OFFERED_SECONDS_MAX + 1  # offered, and not taken
        site.tasks.look()
    assert [site.task(node) for node in ("n1", "n2", "n3")] == [None] * 3


def test_a_checkpoint_that_is_not_due_yet_costs_one_query() -> None:
    site = Site()
    site.save(40, copy_to="s3://runs", tier=Tier.SHARED)
    for node in ("n1", "n2"):
        site.answer(node)
    asked: list[JobKey] = []

    def interval(job: JobKey) -> float:
        asked.append(job)
        return 100.0

    site.save(60, copy_to="s3://runs", tier=Tier.SHARED)
    copier = Copier(site.store, lambda: site.policy, site.clock, site.points.forget, interval=interval)
    copier.find()
    for _ in range(3):
        with statements(site.engine) as made:
            copier.find()
        assert len(made) == 1, made
    assert len(asked) == 1
    site.clock.at += DUE_AGAIN_SECONDS
    copier.find()
    assert len(asked) == 2, "another interval may be best now"


def test_reports_wait_for_no_query_and_a_result_comes_again_until_the_database_has_it() -> None:
    site = Site()
    site.save(40)
    task = site.task("n1")
    assert task is not None
    with statements(site.engine) as made:
        site.tasks.take("n1", FileResult(task.number, COPIED))
        assert site.task("n1") is None
    assert made == []


def test_a_copy_that_waits_until_its_node_has_read_another_checkpoint_back_is_not_late() -> None:
    site = Site(Checkpoints(verify=True))
    site.save(20, copy_to="")
    reading = [site.task(node) for node in ("n1", "n2")]
    assert None not in reading
    site.save(40)
    site.clock.at += OFFERED_SECONDS_MAX + 1
    site.tasks.look()
    assert [site.task(node) for node in ("n1", "n2")] == reading
    for node in ("n1", "n2"):
        site.answer(node, FileOutcome.SAMPLED)
        assert site.copy_to(node) == "/shared/40"
