"""Checkpoints are read back by the nodes that wrote them, newest first, and what is bad is not restored."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Engine

from tests import builders as b
from tests.agent.test_file_tasks import DAMAGES, Saved
from understudy_agent.files.carry_out import carry_out
from understudy_controlplane.config import Checkpoints
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.job import Attempt, Condition, RestoreAnswer
from understudy_controlplane.recover.checkpoint_work import Nodes
from understudy_controlplane.recover.file_tasks import OFFERED_SECONDS_MAX, FileTasks
from understudy_controlplane.recover.restore import RestorePoints
from understudy_controlplane.recover.verifier import Verifier
from understudy_controlplane.store.checkpoints import CheckpointStore, trust
from understudy_controlplane.store.database import DatabaseInMemory
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.packing import PackingStore
from understudy_controlplane.store.requests import RequestStore
from understudy_wire.facts import CheckpointShard, RankStarted, ShardFile, Tier
from understudy_wire.files import FileOutcome, FileResult, ReadFiles

JOB = b.job(nodes=("n1", "n2"))
OWNER = JOB.slurm.user_id
MINUTE = 60.0
ON = Checkpoints(verify=True)


class StoodClock:
    def __init__(self) -> None:
        self.at = b.NOW + 10 * MINUTE
        self.ahead = 0.0

    def now(self) -> float:
        return self.at + self.ahead

    def monotonic(self) -> float:
        return self.at


class Site:
    """A gang of two ranks on two nodes that saves at each step that is named."""

    def __init__(self, policy: Checkpoints = ON, managed: bool = True) -> None:
        self.engine: Engine = DatabaseInMemory().engine
        self.clock = StoodClock()
        self.store, self.fleet = CheckpointStore(self.engine), FleetStore(self.engine)
        (self.known,) = self.fleet.see_jobs([b.job(nodes=("n1", "n2"), managed=managed)], b.NOW)
        self.points = RestorePoints(self.store, self.fleet, self.clock)
        self.policy = policy
        self.start()

    def start(self, gang: Sequence[str] = (), heard: Set[str] = frozenset()) -> None:
        """The control plane, also again. The job runs on `gang`, and agents of `heard` report."""
        nodes = Nodes(lambda _: gang, lambda: heard)
        verifier = Verifier(self.store, lambda: self.policy, self.clock, self.points.forget, nodes)
        self.tasks = FileTasks([verifier], self.clock)

    def save(self, *steps: int, checksum: str = "crc32:00000000", tier: Tier = Tier.UNKNOWN) -> None:
        facts = FactStore(self.engine)
        for rank in range(2):
            saved = [
                CheckpointShard(
                    7, 0, rank, 2, n, f"/c/{n}", f"r{rank}", 5, checksum, b.NOW + n, user_id=OWNER, tier=tier
                )
                for n in steps
            ]
            started = RankStarted(7, 0, rank, 2, b.NOW, 10, user_id=OWNER)
            facts.record(f"n{rank + 1}", [started, *saved], b.NOW, lambda _: self.known)
        PackingStore(self.engine).pack(self.clock.now())
        self.tasks.look()

    def answer(self, node: str, outcome: FileOutcome, why: str = "") -> None:
        task = self.tasks.task(node)
        assert task is not None
        self.tasks.take(node, FileResult(task.number, outcome, why))
        self.tasks.look()

    def conditions(self) -> dict[int, Condition]:
        return {one.step: one.condition for one in self.store.complete_checkpoints(JOB.key)}


def test_one_is_sampled_then_read_whole_and_verified() -> None:
    site = Site()
    site.save(40)
    seen = []
    for outcome in (FileOutcome.SAMPLED, FileOutcome.VERIFIED):
        for node in ("n1", "n2"):
            task = site.tasks.task(node)
            assert isinstance(task, ReadFiles)
            seen.append((task.path, task.whole, task.user_id, [one.file for one in task.files]))
            site.answer(node, outcome)
    assert seen == [("/c/40", whole, OWNER, [f"r{rank}"]) for whole in (False, True) for rank in range(2)]
    assert site.conditions() == {40: Condition.VERIFIED}


def test_a_result_of_before_a_restart_says_nothing_of_another_checkpoint() -> None:
    """The clock was set back, or more tasks were given than seconds passed: numbers by the clock would come again."""
    site = Site()
    site.save(20)
    before = site.tasks.task("n1")
    assert before is not None
    site.start()
    site.tasks.look()
    task = site.tasks.task("n1")
    assert task is not None
    assert task.number != before.number
    site.tasks.take("n1", FileResult(before.number, FileOutcome.BAD))
    site.tasks.look()
    assert site.conditions() == {20: Condition.AS_WRITTEN}


def test_on_a_shared_file_system_another_node_of_the_gang_reads_what_a_node_that_is_gone_wrote() -> None:
    site = Site()
    site.start(["n1", "n3"], {"n1", "n3"})
    site.save(40, tier=Tier.SHARED)
    for outcome in (FileOutcome.SAMPLED, FileOutcome.VERIFIED):
        assert site.tasks.task("n2") is None
        for node in ("n1", "n3"):
            if site.tasks.task(node) is not None:
                site.answer(node, outcome)
    assert site.conditions() == {40: Condition.VERIFIED}


def test_what_a_node_in_the_place_of_another_does_not_see_is_not_lost() -> None:
    site = Site()
    site.start(["n3"], {"n3"})
    site.save(40, tier=Tier.SHARED)
    site.answer("n3", FileOutcome.LOST)
    assert site.conditions() == {40: Condition.AS_WRITTEN}
    assert site.tasks.task("n3") is None


@pytest.mark.parametrize("tier", [Tier.LOCAL, Tier.UNKNOWN])
def test_no_other_node_reads_a_place_that_only_one_may_see(tier: Tier) -> None:
    site = Site()
    site.start(["n1", "n3"], {"n1", "n3"})
    site.save(40, tier=tier)
    assert site.tasks.task("n3") is None
    assert site.tasks.task("n2") is not None


def test_a_clock_that_is_set_forward_gives_no_node_up() -> None:
    site = Site()
    site.save(20)
    site.clock.ahead = OFFERED_SECONDS_MAX + 1
    site.tasks.look()
    assert site.tasks.task("n1") is not None


class ManyUsers:
    """Each with a job of its own, on nodes of its own or on those of all."""

    def __init__(self) -> None:
        self.engine: Engine = DatabaseInMemory().engine
        self.clock = StoodClock()
        self.store = CheckpointStore(self.engine)
        self.tasks = FileTasks([Verifier(self.store, lambda: ON, self.clock)], self.clock)

    def save(self, user_id: int, steps: Sequence[int], *nodes: str) -> None:
        (known,) = FleetStore(self.engine).see_jobs([b.job(job_id=user_id, user_id=user_id, nodes=nodes)], b.NOW)
        for rank, node in enumerate(nodes):
            shards = [
                CheckpointShard(
                    user_id, 0, rank, len(nodes), n, f"/c/{user_id}/{n}", f"r{rank}", 5, "", b.NOW + n, user_id=user_id
                )
                for n in steps
            ]
            started = RankStarted(user_id, 0, rank, len(nodes), b.NOW, 10, user_id=user_id)
            FactStore(self.engine).record(node, [started, *shards], b.NOW, lambda _: known)
        PackingStore(self.engine).pack(self.clock.now())
        self.tasks.look()

    def given(self, *nodes: str) -> dict[str, int]:
        """Node → whose checkpoint it reads."""
        return {node: task.user_id for node in nodes if (task := self.tasks.task(node))}


def test_a_user_whose_checkpoints_take_hours_leaves_room_to_others() -> None:
    """A sparse file of two tebibytes takes no room."""
    site, own = ManyUsers(), ("n1", "n2", "n3", "n4", "n5", "n6")
    site.save(1001, range(1, 50), *own)
    assert sorted(site.given(*own).values()) == [1001] * 3
    site.save(1002, [1], "n9")
    assert site.given("n9") == {"n9": 1002}


def test_users_take_turns_on_a_node() -> None:
    site = ManyUsers()
    site.save(1001, range(1, 9), "n1")
    site.save(1002, [1, 2], "n1")
    turns = []
    for _ in range(6):
        task = site.tasks.task("n1")
        assert task is not None
        turns.append(task.user_id)
        site.tasks.take("n1", FileResult(task.number, FileOutcome.SAMPLED))
        site.tasks.look()
    assert turns == [1001, 1002] * 3


def test_the_newest_goes_first() -> None:
    site = Site()
    site.save(20, 60, 40)
    paths = []
    for _ in range(3):
        task = site.tasks.task("n1")
        assert isinstance(task, ReadFiles)
        paths.append(task.path)
        site.answer("n1", FileOutcome.BAD)
    assert paths == ["/c/60", "/c/40", "/c/20"]


@pytest.mark.parametrize("outcome", [FileOutcome.BAD, FileOutcome.LOST])
def test_a_bad_one_is_passed_over_with_the_reason_until_a_person_trusts_it(outcome: FileOutcome) -> None:
    site = Site()
    site.save(20, 40)
    assert site.points.newest(site.known).path == "/c/40"
    site.answer("n2", outcome, "r1 has 4 bytes, 5 were announced")
    decision = site.points.give(site.known, Attempt(1))
    assert (decision.step, site.points.newest(site.known).path) == (20, "/c/20")
    assert f"step 40: {outcome.value}: r1 has 4 bytes, 5 were announced (read back on n2)" in decision.why
    site.answer("n1", outcome)
    assert site.points.give(site.known, Attempt(2)).answer is RestoreAnswer.UNKNOWN
    trusted = AuditEntry.on_host("alice", b.NOW + MINUTE, "trust-checkpoints", "job 7", "looked at")
    RequestStore(site.engine).ask_audited(trusted, effect=partial(trust, site.known.row))
    assert site.points.give(site.known, Attempt(3)).step == 40
    site.tasks.look()
    assert site.tasks.task("n1") is None, "what a person trusts is not read again"


def test_a_suspect_one_is_passed_over_where_that_costs_little() -> None:
    site = Site()
    site.save(19, 20)
    site.answer("n1", FileOutcome.SUSPECT, "r0 was written again")
    decision = site.points.give(site.known, Attempt(1))
    assert (decision.step, decision.why) == (
        19,
        "step 19 is the newest good one; suspect are step 20: r0 was written again (read back on n1)",
    )
    alone = Site()
    alone.save(20)
    alone.answer("n1", FileOutcome.SUSPECT, "r0 was written again")
    assert alone.points.give(alone.known, Attempt(1)).step == 20, "that is no proof"


def test_what_cannot_be_read_stays_as_it_was_and_is_not_tried_again() -> None:
    site = Site()
    site.save(20)
    site.answer("n1", FileOutcome.UNSEEN, "Permission denied")
    assert [site.tasks.task(node) for node in ("n1", "n2")] == [None, None]
    assert site.conditions() == {20: Condition.AS_WRITTEN}
    site.save(40)
    site.clock.at += OFFERED_SECONDS_MAX + 1
    site.tasks.look()
    assert site.tasks.task("n1") is None, "a node that does not answer, as with an older agent"
    assert site.points.give(site.known, Attempt(1)).step == 40


def test_many_that_cannot_be_read_do_not_keep_others_from_being_read() -> None:
    site = Site()
    site.save(*range(1, 30))
    for step in range(29, 0, -1):
        task = site.tasks.task("n1")
        assert isinstance(task, ReadFiles)
        assert task.path == f"/c/{step}"
        site.answer("n1", FileOutcome.UNSEEN)


def test_few_nodes_read_at_once() -> None:
    site = Site(Checkpoints(verify=True, verify_nodes_at_once=1))
    site.save(20)
    assert [site.tasks.task(node) is None for node in ("n1", "n2")] == [False, True]


@pytest.mark.parametrize(("policy", "managed"), [(Checkpoints(), True), (ON, False)])
def test_nothing_is_read_by_default_nor_of_a_job_that_did_not_ask_for_understudy(
    policy: Checkpoints, managed: bool
) -> None:
    site = Site(policy, managed)
    site.save(20)
    assert [site.tasks.task(node) for node in ("n1", "n2")] == [None, None]


def test_it_ends_at_once_where_it_is_switched_off() -> None:
    site = Site()
    site.save(20)
    assert site.tasks.task("n1") is not None
    site.policy = Checkpoints()
    site.tasks.look()
    assert site.tasks.task("n1") is None


@pytest.mark.parametrize("damage", ["none", *DAMAGES])
def test_no_damaged_checkpoint_is_restored(damage: str, tmp_path: Path) -> None:
    """Agents find it: what they read back is decided upon, and the one before it is named."""
    site, saved = Site(), Saved(tmp_path)
    site.save(19)
    first, *more = [(one["file"], one["size_bytes"], one["checksum"]) for one in saved.announced]
    for rank in range(2):
        files = tuple(ShardFile(*one) for one in more) if rank == 0 else ()
        name, size, checksum = first if rank == 0 else ("", 0, "")
        of_rank = (7, 0, rank, 2, 20, str(saved.path), name, size, checksum, saved.announced[0]["at"])
        shard = CheckpointShard(*of_rank, user_id=OWNER, more_files=files)
        now = saved.announced[0]["at"]
        assert FactStore(site.engine).record(f"n{rank + 1}", [shard], now, lambda _: site.known) == []
    site.clock.at = saved.announced[0]["at"] + MINUTE
    PackingStore(site.engine).pack(site.clock.now())
    if damage != "none":
        DAMAGES[damage][0](saved.path)
    for _ in range(8):
        site.tasks.look()
        for node in ("n1", "n2"):
            task = site.tasks.task(node)
            if task is not None:
                found = carry_out(msgspec.to_builtins(task))
                site.tasks.take(node, FileResult(task.number, FileOutcome(found["outcome"]), found["why"]))
    point = site.points.give(site.known, Attempt(1))
    assert (point.step, point.path) == ((20, str(saved.path)) if damage == "none" else (19, "/c/19")), point.why
