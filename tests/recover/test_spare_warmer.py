"""Spares of the pool read the files with which gangs have started, and no others."""

from __future__ import annotations

from dataclasses import replace

from tests import builders as b
from tests.recover.test_verifier import StoodClock
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.fleet.recovery import FillPoolPlan, Recovery, RecoveryStatus
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.live.telemetry import Telemetry
from understudy_controlplane.recover.file_tasks import OFFERED_SECONDS_MAX, FileTasks
from understudy_controlplane.recover.spare_warmer import AGAIN_SECONDS, CHANGED_SECONDS, SpareWarmer
from understudy_wire.files import FileOutcome, FileResult, WarmFiles
from understudy_wire.ranks import ProgramFiles

JOB = b.job(nodes=("n1", "n2"))
OWNER = JOB.slurm.user_id


def files(packed: str = "files", job_id: int = JOB.key.job_id, user_id: int = OWNER) -> ProgramFiles:
    return ProgramFiles(job_id, 0, user_id, packed)


class Pool:
    """A gang on n1 and n2, a spare n3, and n4, which is neither."""

    def __init__(self, **spares: float) -> None:
        self.clock, self.telemetry = StoodClock(), Telemetry()
        self.telemetry.know(["n1", "n2", "n3", "n4"])
        self.snapshot: Snapshot = b.snapshot(jobs=[JOB], spares=["n3"])
        self.config: Config = b.config(spares=spares)
        warmer = SpareWarmer(lambda: self.snapshot, self.telemetry.heard, lambda: self.config, self.clock)
        self.tasks = FileTasks([warmer], self.clock)

    def report(self, node: str, *programs: ProgramFiles) -> None:
        self.telemetry.receive(b.report(node, programs=list(programs)), b.NOW)
        self.tasks.look()

    def read(self, node: str) -> str:
        """What its agent has to read; it does so."""
        task = self.tasks.task(node)
        if task is None:
            return ""
        assert isinstance(task, WarmFiles)
        assert task.user_id == OWNER
        self.tasks.take(node, FileResult(task.number, FileOutcome.WARMED))
        self.tasks.look()
        return task.program


def test_a_spare_reads_once_what_the_gang_has_started_with() -> None:
    pool = Pool()
    pool.report("n1", files())
    assert [pool.read(node) for node in ("n1", "n2", "n4")] == ["", "", ""]
    task = pool.tasks.task("n3")
    assert isinstance(task, WarmFiles)
    assert task.bytes_max == 8_000_000_000
    assert [pool.read("n3"), pool.read("n3")] == ["files", ""]
    pool.telemetry.receive(b.report("n1"), b.NOW)  # most reports name nothing
    pool.tasks.look()
    assert pool.read("n3") == ""
    pool.clock.at += AGAIN_SECONDS + 1
    pool.tasks.look()
    assert pool.read("n3") == "files", "other files may have displaced them"


def test_another_program_of_the_gang_is_read_too_and_a_spare_that_comes_later_reads_all() -> None:
    pool = Pool()
    pool.report("n1", files())
    assert pool.read("n3") == "files"
    pool.report("n1", files("others"))
    assert pool.read("n3") == "", "one that changes all the time would keep other gangs waiting"
    pool.clock.at += CHANGED_SECONDS + 1
    pool.tasks.look()
    assert pool.read("n3") == "others"
    pool.snapshot = b.snapshot(jobs=[JOB], spares=["n3", "n4"])
    pool.tasks.look()
    assert [pool.read("n3"), pool.read("n4")] == ["", "others"]


def test_what_other_users_name_or_other_nodes_is_not_read() -> None:
    """Any process can claim to be a rank of a job."""
    pool = Pool()
    pool.report("n1", files("of another user", user_id=OWNER + 1))
    pool.report("n4", files("from a node without the job"))
    pool.report("n2", files("of another job", job_id=JOB.key.job_id + 1))
    assert pool.read("n3") == ""


def test_nothing_is_read_where_it_is_switched_off_or_the_control_plane_is_paused() -> None:
    off = Pool(program_gigabytes=0)
    off.report("n1", files())
    assert off.read("n3") == ""
    for changes in ({"paused": "by root"}, {"mode": Mode.OBSERVE}):
        idle = Pool()
        idle.snapshot = b.changed(idle.snapshot, **changes)
        idle.report("n1", files())
        assert idle.read("n3") == ""


def test_a_spare_whose_agent_does_not_take_it_is_left_alone_for_a_while() -> None:
    """An older agent; or the node is dying."""
    pool = Pool()
    pool.report("n1", files())
    pool.clock.at += OFFERED_SECONDS_MAX + 1
    pool.tasks.look()
    assert pool.read("n3") == ""


def test_when_the_gang_has_ended_nothing_of_it_is_offered() -> None:
    pool = Pool()
    pool.report("n1", files())
    pool.snapshot = replace(pool.snapshot, jobs={})
    pool.tasks.look()
    assert pool.read("n3") == ""


def test_a_spare_that_is_about_to_run_a_gang_reads_no_further() -> None:
    """Its agent ends when its next answer has no such task."""
    pool = Pool()
    pool.report("n1", files())
    assert pool.tasks.task("n3") is not None
    plan = FillPoolPlan(spares=("n3",), steps=())
    one = Recovery(1, plan, RecoveryStatus.RUNNING, b.NOW, ())
    pool.snapshot = replace(pool.snapshot, recoveries=(one,))
    assert pool.tasks.task("n3") is None, "at once, not when the fleet is looked at next"
    pool.snapshot = replace(pool.snapshot, recoveries=(), jobs={})
    assert pool.tasks.task("n3") is not None
    pool.tasks.look()
    assert pool.tasks.task("n3") is None, "the gang has ended"
