"""Tasks on files from the control plane's decision to the user's files and back, as agents carry them out."""

from __future__ import annotations

import asyncio
import os
import zlib
from pathlib import Path

import msgspec
import pytest

from tests import builders as b
from tests.agent.test_file_tasks import OWNER, public
from tests.recover.test_verifier import StoodClock
from understudy_agent.files.tasks import FileTasks as Agent
from understudy_controlplane.config import Checkpoints
from understudy_controlplane.decide.checkpoint_retention import SETTLED_SECONDS
from understudy_controlplane.fleet.job import Condition
from understudy_controlplane.recover.copier import Copier
from understudy_controlplane.recover.deleter import Deleter, View
from understudy_controlplane.recover.file_tasks import FileTasks
from understudy_controlplane.recover.restore import RestorePoints
from understudy_controlplane.recover.verifier import Verifier
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.database import DatabaseInMemory
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.packing import PackingStore
from understudy_wire.facts import CheckpointShard, Fact, RankStarted, Tier
from understudy_wire.messages import Acknowledgement, Report

__all__ = ["public"]

JOB = b.job(nodes=("n1",), user_id=OWNER, comment="understudy keep=2")
STEPS = (20, 40, 60, 80)
ROUNDS_MAX = 40


def saved(folder: Path, step: int) -> CheckpointShard:
    path, content = folder / "local" / str(step), b"%d" % step * 1000
    path.mkdir(parents=True)
    (path / "r0").write_bytes(content)
    os.utime(path / "r0", (b.NOW + step,) * 2)
    checksum = f"crc32:{zlib.crc32(content):08x}"
    return CheckpointShard(
        *(7, 0, 0, 1, step, str(path), "r0", len(content), checksum, b.NOW + step),
        user_id=OWNER,
        tier=Tier.LOCAL,
        copy_to=str(folder / "shared" / str(step)),
    )


async def reports(tasks: FileTasks, agent: Agent) -> None:
    """One report of the agent and its answer, as they travel."""
    report = msgspec.json.decode(msgspec.json.encode(b.report("n1", file_result=agent.result)), type=Report)
    if report.file_result is not None:
        tasks.take("n1", report.file_result)
    tasks.look()
    answer = msgspec.json.encode(Acknowledgement(0, file_task=tasks.task("n1")))
    agent.take(msgspec.json.decode(answer, type=Acknowledgement).file_task)
    if agent.running is not None:
        await agent.running


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an agent has")
def test_an_agent_copies_the_newest_verifies_all_and_deletes_what_the_job_keeps_no_longer(public: Path) -> None:
    engine, clock, policy = DatabaseInMemory().engine, StoodClock(), Checkpoints(verify=True)
    store, fleet = CheckpointStore(engine), FleetStore(engine)
    (known,) = fleet.see_jobs([JOB], b.NOW)
    facts: list[Fact] = [RankStarted(7, 0, 0, 1, b.NOW, 10, user_id=OWNER), *(saved(public, step) for step in STEPS)]
    for path in (public, *public.rglob("*")):
        os.chown(path, OWNER, OWNER)
    assert FactStore(engine).record("n1", facts, b.NOW, lambda _: known) == []
    clock.at = b.NOW + 80 + SETTLED_SECONDS
    PackingStore(engine).pack(clock.now())
    points, snapshot = RestorePoints(store, fleet, clock), b.snapshot(jobs=[JOB])
    verifier, copier = (kind(store, lambda: policy, clock, points.forget) for kind in (Verifier, Copier))
    view = View(lambda: snapshot, lambda _: known, lambda: verifier.rows() | copier.rows())
    tasks = FileTasks([copier, Deleter(store, lambda: policy, clock, points, view), verifier], clock)

    async def work() -> None:
        agent = Agent()
        for _ in range(ROUNDS_MAX):
            await reports(tasks, agent)

    asyncio.run(work())
    local = {one.step: one.condition for one in store.complete_checkpoints(JOB.key) if one.tier is Tier.LOCAL}
    gone, there = Condition.DELETED, Condition.VERIFIED
    assert local == {20: gone, 40: gone, 60: there, 80: there}
    assert sorted(path.name for path in (public / "local").iterdir()) == ["60", "80"]
    copy = public / "shared" / "80" / "r0"
    assert copy.read_bytes() == b"80" * 1000
    assert copy.stat().st_uid == OWNER
