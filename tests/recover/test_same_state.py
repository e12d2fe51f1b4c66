"""Trainings end with the same state from whichever tier they went on, and in the middle of whatever a fault came.

The database, the decisions, the agents' copies and the hook's reading are the real ones; the ranks are objects.
"""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests import builders as b
from tests.object_store import BUCKET, ObjectStore
from tests.recover.test_verifier import StoodClock
from understudy import objects
from understudy.file_system import is_object
from understudy.restore import RestorePoint, fetched, nearest
from understudy_agent.files.carry_out import carry_out
from understudy_controlplane.config import Checkpoints
from understudy_controlplane.fleet.job import Attempt, RestoreAnswer
from understudy_controlplane.recover.copier import Copier
from understudy_controlplane.recover.file_tasks import FileTasks
from understudy_controlplane.recover.restore import RestorePoints
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.database import DatabaseInMemory
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.packing import PackingStore
from understudy_wire.facts import CheckpointShard, Layout, RankStarted, RestoreOutcome, RestoreReport, Tier
from understudy_wire.files import FileOutcome, FileResult

pytestmark = pytest.mark.integration

STEPS, RANKS = 12, 2
LOOKS_MAX = 20
JOB = b.job(nodes=("n1", "n2", "n3"))
OWNER = JOB.slurm.user_id


class Rank:
    """What a checkpoint has of it: weight, place in the data, random state, step."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)  # noqa: S311
        self.step, self.weight, self.cursor = 0, float(number), 0

    def state(self) -> str:
        return json.dumps([self.step, self.weight, self.cursor, self.random.getstate()])

    def load(self, text: str) -> None:
        self.step, self.weight, self.cursor, (version, numbers, rest) = json.loads(text)
        self.random.setstate((version, tuple(numbers), rest))


class Gang:
    def __init__(self, folder: Path, tiers: int) -> None:
        """It saves on disks of its nodes; agents copy that to 0, 1 or 2 further tiers."""
        self.folder, self._tiers = folder, tiers
        engine = DatabaseInMemory().engine
        self.clock, self.store, fleet = StoodClock(), CheckpointStore(engine), FleetStore(engine)
        self.facts, self.packing = FactStore(engine), PackingStore(engine)
        (self.known,) = fleet.see_jobs([JOB], b.NOW)
        self.points = RestorePoints(self.store, fleet, self.clock)
        copier = Copier(self.store, Checkpoints, self.clock, self.points.forget)
        self.file_tasks = FileTasks([copier], self.clock)
        self.nodes, self.attempt = ["n1", "n2"], 0
        self.restored_from = ""
        self.ranks = [Rank(number) for number in range(RANKS)]
        self._start()

    def _start(self) -> None:
        for rank, node in enumerate(self.nodes):
            started = RankStarted(7, 0, rank, RANKS, b.NOW + self.attempt, 10, user_id=OWNER, launch=self.attempt)
            self._record(node, started)

    def _record(self, node: str, fact: Any) -> None:
        assert self.facts.record(node, [fact], b.NOW, lambda _: self.known) == []

    def train(self, until: int) -> None:
        """Trains with a collective in each step: ranks of different steps would not come to the same."""
        while self.ranks[0].step < until:
            mean = sum(one.weight for one in self.ranks) / RANKS
            for one in self.ranks:
                one.weight += 0.1 * mean * one.random.random() + 0.01 * one.cursor
                one.cursor += 3
                one.step += 1

    def save(self, ranks: int = RANKS) -> None:
        """The gang ends after so many of its ranks have saved."""
        step = self.ranks[0].step
        path, copies = self.folder / "local" / str(step), [str(self.folder / "shared" / str(step)), address(step)]
        copies = [*copies[: self._tiers], "", ""]
        path.mkdir(parents=True, exist_ok=True)
        for number, rank in enumerate(self.ranks[:ranks]):
            data = rank.state().encode()
            (path / f"r{number}").write_bytes(data)
            checksum = f"crc32:{zlib.crc32(data):08x}"
            of_rank = (7, 0, number, RANKS, step, str(path), f"r{number}", len(data), checksum, b.NOW + step)
            shard = CheckpointShard(*of_rank, self.attempt, OWNER, layout=Layout.FIXED, tier=Tier.LOCAL)
            named = {"copy_to": copies[0], "then_copy_to": copies[1]}
            self._record(self.nodes[number], CheckpointShard(**{**fields(shard), **named}))
        self.packing.pack(self.clock.now())

    def copy(self, tasks: int) -> None:
        """The agents carry out so many tasks; then a fault comes."""
        for _ in range(tasks):
            self.file_tasks.look()
            node = next(one for one in self.nodes if self.file_tasks.task(one) is not None)
            task = self.file_tasks.task(node)
            assert task is not None
            assert carry_out(msgspec.to_builtins(task)) == {"outcome": "copied", "why": ""}
            self.file_tasks.take(node, FileResult(task.number, FileOutcome.COPIED))
        self.file_tasks.look()

    def lose(self, *ranks: int) -> None:
        """Loses ranks with their nodes' disks; n3 takes the place of one."""
        for rank in ranks:
            for file in (self.folder / "local").glob(f"*/r{rank}"):
                file.unlink()
        if ranks == (1,):
            self.nodes[1] = "n3"

    def restart(self, ranks: int = RANKS) -> None:
        """New processes, of which so many restore before the next fault."""
        self.ranks = [Rank(100 + number) for number in range(RANKS)]
        self.attempt += 1
        self._start()
        attempt = Attempt(0, self.attempt)
        self._look(attempt)
        decision = self.points.give(self.known, attempt, RANKS)
        assert decision.answer is RestoreAnswer.RESTORE, decision.why
        self.restored_from = decision.path
        for number, node in list(enumerate(self.nodes))[:ranks]:
            place = self.points.place(self.known, attempt, number, node)
            answer = {**place._asdict(), "files": list(place.files)}
            point = fetched(nearest(RestorePoint(decision.step, decision.path), answer), answer)
            self.ranks[number].load((Path(point.path) / f"r{number}").read_text())

    def _look(self, attempt: Attempt) -> None:
        node = self.nodes[0]
        for _ in range(LOOKS_MAX):
            looker = self.points.looker(self.known, attempt, node, RANKS)
            if not looker:
                return
            decision = self.points.give(self.known, attempt, RANKS)
            number = self.nodes.index(looker)
            file = self.points.place(self.known, attempt, number, looker).look_file
            path = f"{decision.path}/{file}" if file else decision.path
            is_there = objects.is_there(path) if is_object(path) else Path(path).exists()
            outcome = RestoreOutcome.SEEN if is_there else RestoreOutcome.MISSING
            of_rank = (7, 0, number, RANKS, decision.step, decision.path, outcome, b.NOW)
            self._record(looker, RestoreReport(*of_rank, user_id=OWNER, launch=self.attempt))
        raise AssertionError("it is never settled what is restored")

    def end(self) -> list[str]:
        self.train(STEPS)
        return [one.state() for one in self.ranks]


def fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def address(step: int) -> str:
    return f"s3://{BUCKET}/run/{step}"


@pytest.fixture
def store(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ObjectStore:
    monkeypatch.setenv(objects.FOLDER, str(tmp_path / "fetched"))
    return object_store


def without_faults(folder: Path) -> list[str]:
    return Gang(folder / "calm", 0).end()


@pytest.mark.parametrize("moment", ["between", "save", "restore"])
def test_from_disks_of_its_nodes(moment: str, tmp_path: Path) -> None:
    gang = Gang(tmp_path, 0)
    gang.train(4)
    gang.save()
    gang.train(7)
    if moment == "save":
        gang.save(ranks=1)
    if moment == "restore":
        gang.restart(ranks=1)
    gang.restart()
    assert gang.restored_from == str(tmp_path / "local" / "4")
    assert gang.end() == without_faults(tmp_path)


@pytest.mark.parametrize("moment", ["between", "save", "copy", "restore"])
def test_from_a_shared_file_system_after_a_node_is_lost(moment: str, tmp_path: Path) -> None:
    gang = Gang(tmp_path, 1)
    gang.train(4)
    gang.save()
    gang.copy(2)
    gang.train(8)
    if moment == "save":
        gang.save(ranks=1)
    if moment == "copy":
        gang.save()
        gang.copy(1)
    gang.lose(1)
    if moment == "restore":
        gang.restart(ranks=1)
    gang.restart()
    assert gang.restored_from == str(tmp_path / "shared" / "4")
    assert gang.end() == without_faults(tmp_path)


@pytest.mark.parametrize("moment", ["between", "save", "copy", "restore"])
def test_from_an_object_store_after_the_file_systems_are_lost(
    moment: str, tmp_path: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = Gang(tmp_path, 2)
    gang.train(4)
    gang.save()
    gang.copy(4)
    gang.train(8)
    if moment == "save":
        gang.save(ranks=1)
    if moment == "copy":
        gang.save()
        gang.copy(3)
    for path in (tmp_path / "local", tmp_path / "shared"):
        path.rename(path.with_name(f"gone-{path.name}"))
    if moment == "restore":
        gang.restart(ranks=1)
    gang.restart()
    assert gang.restored_from == address(4)
    assert gang.end() == without_faults(tmp_path)
