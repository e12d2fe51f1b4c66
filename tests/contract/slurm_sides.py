"""The sides that the Slurm contract is held against: the fake, and real clusters through each gateway.

Belongs here: what the suite needs of a cluster besides the protocol: users who submit jobs, nodes that die, time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import pytest

from tests.simulator.slurm import VirtualSlurm
from tests.testbed.cluster import PATIENCE, SlurmCluster
from tests.testbed.installation import DEBIAN_13, DEBIAN_14, NATIVE, Installation
from understudy_controlplane.config import Gateway
from understudy_controlplane.config import Slurm as Policy
from understudy_controlplane.fleet.slurm import Service
from understudy_controlplane.slurm.choose import choose
from understudy_controlplane.slurm.cli import CommandLineGateway
from understudy_controlplane.slurm.protocol import Slurm, SlurmJob, SlurmNode, loses_dead_gangs
from understudy_controlplane.slurm.pyslurm_gateway import PyslurmGateway

NODES = tuple(f"n{number}" for number in range(1, 9))
MAIL = "news+jobs@example.org"
SLOW_TO_DIE_SECONDS = 2.0
LOOK_AGAIN_SECONDS = 0.2


class Side(Protocol):
    """A cluster of the eight NODES, all idle, no job on them, no reservation."""

    @property
    def slurm(self) -> Slurm: ...

    def now(self) -> float: ...

    def submit(
        self, user: str, node_count: int, comment: str = "", requeue: bool = True, kill_seconds: float = 0.0
    ) -> int:
        """A job that runs on until it is killed; `kill_seconds` is how long it takes to die then."""
        ...

    def submit_array(self, user: str, tasks: int, at_once: int = 0) -> int:
        """Returns the array's id."""
        ...

    def low_partition(self) -> AbstractContextManager[None]:
        """Meanwhile there is a partition `low`, of all nodes, of which `train` preempts jobs: they are requeued."""
        ...

    def submit_low(self, user: str, node_count: int, requeue: bool = True) -> int: ...

    def partition_down(self) -> AbstractContextManager[None]:
        """Meanwhile the partition `train` is DOWN."""
        ...

    def wait(self, seconds: float) -> None: ...

    def address_of(self, node: str, /) -> str: ...

    def kill_node(self, node: str) -> None: ...

    def start_node(self, node: str) -> None: ...

    def fail_node(self, node: str, reason: str) -> None:
        """An administrator sets State=FAIL."""
        ...

    def plan_maintenance(self, node: str, in_minutes: int) -> None:
        """An administrator reserves the node with the flag MAINT, for ten minutes."""
        ...

    def spoil_prolog(self, node: str) -> None:
        """The node's Prolog fails from now on."""
        ...

    def slow_epilog(self, seconds: float) -> None:
        """Every node's Epilog takes this long from now on."""
        ...

    def cancel(self, job_id: int) -> None: ...

    def end(self, job_id: int, state: str = "COMPLETED") -> None:
        """The job's script ends by itself: "COMPLETED" or "FAILED"."""
        ...

    def suspend(self, job_id: int) -> None: ...

    def resume(self, job_id: int) -> None: ...

    def shrink(self, job_id: int, node_count: int) -> None:
        """An administrator leaves the job no more than so many of its nodes."""
        ...

    def finish_reboot(self, node: str) -> None:
        """A node that Slurm reboots comes back."""
        ...


class FakeSide:
    def __init__(self) -> None:
        self.fake = VirtualSlurm(NODES, account="physics")
        self.fake.mail_to = MAIL

    @property
    def slurm(self) -> Slurm:
        return self.fake

    def now(self) -> float:
        return self.fake.now

    def submit(
        self, user: str, node_count: int, comment: str = "", requeue: bool = True, kill_seconds: float = 0.0
    ) -> int:
        return self.fake.submit(user, node_count, "job", comment, requeue, kill_seconds or 0.1)

    def submit_array(self, user: str, tasks: int, at_once: int = 0) -> int:
        return self.fake.submit_array(user, tasks, at_once=at_once)

    @contextmanager
    def low_partition(self) -> Iterator[None]:
        self.fake.tiers |= {"low": 0}
        self.fake.preempt_mode = "REQUEUE"
        yield

    @contextmanager
    def partition_down(self) -> Iterator[None]:
        self.fake.partitions_down.add("train")
        yield
        self.fake.partitions_down.clear()

    def submit_low(self, user: str, node_count: int, requeue: bool = True) -> int:
        job_id = self.submit(user, node_count, requeue=requeue)
        self.fake.put_into(job_id, "low")
        return job_id

    def wait(self, seconds: float) -> None:
        self.fake.advance(seconds)

    def address_of(self, _node: str, /) -> str:
        return "127.0.0.1"

    def kill_node(self, node: str) -> None:
        self.fake.kill_node(node)

    def start_node(self, node: str) -> None:
        self.fake.start_node(node)

    def fail_node(self, node: str, reason: str) -> None:
        self.fake.fail_by("root", node, reason)

    def plan_maintenance(self, node: str, in_minutes: int) -> None:
        self.fake.plan_maintenance([node], in_minutes * 60, 10)

    def spoil_prolog(self, node: str) -> None:
        self.fake.bad_prologs.add(node)

    def slow_epilog(self, seconds: float) -> None:
        self.fake.epilog_seconds = seconds

    def cancel(self, job_id: int) -> None:
        self.fake.cancel(job_id)

    def end(self, job_id: int, state: str = "COMPLETED") -> None:
        self.fake.end(job_id, state)

    def suspend(self, job_id: int) -> None:
        self.fake.suspend(job_id)

    def resume(self, job_id: int) -> None:
        self.fake.go_on(job_id)

    def shrink(self, job_id: int, node_count: int) -> None:
        self.fake.shrink(job_id, node_count)

    def finish_reboot(self, node: str) -> None:
        self.fake.finish_reboot(node)


class RealSide:
    def __init__(self, cluster: SlurmCluster, slurm: Slurm) -> None:
        self._cluster = cluster
        self._killed: set[str] = set()
        self.slurm = slurm

    def now(self) -> float:
        return time.time()

    def submit(
        self, user: str, node_count: int, comment: str = "", requeue: bool = True, kill_seconds: float = 0.0
    ) -> int:
        return self._submit(user, node_count, comment, requeue, kill_seconds)

    @contextmanager
    def low_partition(self) -> Iterator[None]:
        """Its jobs have ended before it is deleted."""
        with self.another_partition("low", "PriorityTier=0", "OverSubscribe=EXCLUSIVE"):
            try:
                yield
            finally:
                self.clear()

    @contextmanager
    def partition_down(self) -> Iterator[None]:
        self._cluster.run("scontrol", "update", "PartitionName=train", "State=DOWN")
        try:
            yield
        finally:
            self._cluster.run("scontrol", "update", "PartitionName=train", "State=UP")

    def submit_low(self, user: str, node_count: int, requeue: bool = True) -> int:
        return self._submit(user, node_count, requeue=requeue, options=["--partition=low"])

    def _submit(
        self,
        user: str,
        node_count: int,
        comment: str = "",
        requeue: bool = True,
        kill_seconds: float = 0.0,
        options: Sequence[str] = (),
    ) -> int:
        trap = f"trap 'sleep {kill_seconds}; exit 1' TERM" if kill_seconds else "true"
        return self._cluster.sbatch(
            f"--nodes={node_count}",
            "--requeue" if requeue else "--no-requeue",
            f"--comment={comment}",
            "--job-name=job",
            "--account=physics",
            f"--mail-user={MAIL}",
            "--mail-type=FAIL",
            *options,
            user=user,
            script=f"#!/bin/sh\n{trap}\nend={self._cluster.directory}/end.$SLURM_JOB_ID\n"
            'while [ ! -e "$end" ]; do sleep 0.1; done\nexit "$(cat "$end")"\n',
        )

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def address_of(self, node: str, /) -> str:
        return self._cluster.layout.address_of(node)

    def kill_node(self, node: str) -> None:
        """Kills in silence if nodes are machines: no connection is reset."""
        self._killed.add(node)
        if self._cluster.has_machines:
            self._cluster.unplug(node)
        self._cluster.kill_node(node)

    def start_node(self, node: str) -> None:
        self._boot(node)
        self._killed.discard(node)

    def _boot(self, node: str, rebooted: bool = False) -> None:
        if self._cluster.has_machines:
            self._cluster.plug_in(node)
        self._cluster.start_node(node, rebooted)

    def fail_node(self, node: str, reason: str) -> None:
        self._cluster.run("scontrol", "update", f"NodeName={node}", "State=FAIL", f"Reason={reason}")

    def plan_maintenance(self, node: str, in_minutes: int) -> None:
        begins = [f"StartTime=now+{in_minutes}minutes", "Duration=10", "Users=root", "Flags=MAINT,IGNORE_JOBS"]
        self._cluster.run("scontrol", "create", "ReservationName=maintenance", f"Nodes={node}", *begins)

    def spoil_prolog(self, node: str) -> None:
        (self._cluster.directory / f"bad-prolog.{node}").touch()

    def slow_epilog(self, seconds: float) -> None:
        (self._cluster.directory / "slow-epilog").write_text(f"{seconds}\n", encoding="utf-8")

    def cancel(self, job_id: int) -> None:
        self._cluster.run("scancel", str(job_id))

    def end(self, job_id: int, state: str = "COMPLETED") -> None:
        exit_code = 0 if state == "COMPLETED" else 1
        written = self._cluster.directory / f"end.{job_id}.new"
        written.write_text(f"{exit_code}\n", encoding="utf-8")
        written.rename(written.with_suffix(""))  # the job reads it as soon as it is there

    def suspend(self, job_id: int) -> None:
        self._cluster.run("scontrol", "suspend", str(job_id))

    def resume(self, job_id: int) -> None:
        self._cluster.run("scontrol", "resume", str(job_id))

    def shrink(self, job_id: int, node_count: int) -> None:
        self._cluster.run("scontrol", "update", f"jobid={job_id}", f"numnodes={node_count}")

    def finish_reboot(self, node: str) -> None:
        self.kill_node(node)
        self._boot(node, rebooted=True)
        until(self, lambda: node_of(self, node).service is not Service.AWAY, f"{node} is back", 60)
        # Started so, a slurmd claims a reboot with every registration: the next one would be an unexpected one.
        self.kill_node(node)
        self.start_node(node)

    def submit_array(self, user: str, tasks: int, at_once: int = 0) -> int:
        limit = f"%{at_once}" if at_once else ""
        script = "#!/bin/sh\nwhile :; do sleep 0.1; done\n"
        return self._cluster.sbatch("--nodes=1", "--requeue", f"--array=1-{tasks}{limit}", user=user, script=script)

    def submit_named(self, user: str, name: bytes) -> int:
        script = "#!/bin/sh\nwhile :; do sleep 0.1; done\n"
        return self._cluster.sbatch("--nodes=1", f"--job-name={os.fsdecode(name)}", user=user, script=script)

    def submit_with(self, *options: str) -> int:
        return self._cluster.sbatch(*options, script="#!/bin/sh\nwhile :; do sleep 0.1; done\n")

    def expire_reservation(self, name: str) -> None:
        """Let it end within the minute that is the least Slurm takes."""
        self._cluster.run("scontrol", "update", f"ReservationName={name}", "Duration=1")

    @contextmanager
    def another_partition(self, name: str, *settings: str) -> Iterator[None]:
        """Partition of all nodes."""
        self._cluster.run("scontrol", "create", f"PartitionName={name}", "Nodes=ALL", "State=UP", *settings)
        try:
            yield
        finally:
            self._cluster.run("scontrol", "delete", f"PartitionName={name}")

    @contextmanager
    def features(self, features: str, *nodes: str) -> Iterator[None]:
        """Meanwhile these nodes have them."""
        change = ["scontrol", "update", f"NodeName={','.join(nodes)}"]
        self._cluster.run(*change, f"AvailableFeatures={features}", f"ActiveFeatures={features}")
        try:
            yield
        finally:
            self._cluster.run(*change, "AvailableFeatures=", "ActiveFeatures=")

    def clear(self) -> None:
        """Make the cluster what `Side` promises."""
        for pattern in ("bad-prolog.*", "slow-epilog", "end.*"):
            for left_behind in self._cluster.directory.glob(pattern):
                left_behind.unlink()
        left = [str(job.job_id) for job in self.slurm.jobs() if job.state not in ENDED]
        if left:
            self._cluster.run("scancel", *left)
        until(self, lambda: all(job.state in ENDED for job in self.slurm.jobs()), "all jobs are over", 150)
        for reservation in self.slurm.reservations():
            self.slurm.delete_reservation(reservation.name)
        was_dead = bool(self._killed)
        for killed in sorted(self._killed):
            self.start_node(killed)
        for node in self.slurm.nodes():
            if node.draining or node.down:
                self.slurm.resume_node(node.name)
            if node.weight != 1:
                self.slurm.set_weight(node.name, 1)
        if was_dead and loses_dead_gangs(self.slurm.config()):
            # Slurm goes on counting the job on nodes that `keep_batch_host` took from it (docs/adr/0003).
            self._cluster.run("scontrol", "reconfigure")
        until(self, lambda: all(_idle(node) for node in self.slurm.nodes()), "all nodes are idle", 150)


@contextmanager
def by_command_line(cluster: SlurmCluster) -> Iterator[Slurm]:
    yield CommandLineGateway(environment=cluster.environment)


@contextmanager
def by_pyslurm(cluster: SlurmCluster) -> Iterator[Slurm]:
    policy = Policy(gateway=Gateway.PYSLURM, pyslurm_python=str(cluster.pyslurm_python))
    choice = choose(policy, cluster.environment)
    assert isinstance(choice.slurm, PyslurmGateway)
    yield choice.slurm
    choice.slurm.stop()


REAL_SIDES: dict[str, tuple[Installation, Callable[[SlurmCluster], AbstractContextManager[Slurm]]]] = {
    "22.05-cli": (NATIVE, by_command_line),
    "24.11-cli": (DEBIAN_13, by_command_line),
    "26.05-cli": (DEBIAN_14, by_command_line),
    "26.05-pyslurm": (DEBIAN_14, by_pyslurm),
}
IN_EACH_TEST_RUN = ("22.05-cli", "26.05-pyslurm")
REAL_SIDE_NAMES = [
    pytest.param(name, marks=() if name in IN_EACH_TEST_RUN else pytest.mark.long) for name in REAL_SIDES
]
"""`make test` tries the oldest Slurm by one gateway and the newest by the other, `make long` also what lies between."""

ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "PREEMPTED"})


def job_of(side: Side, job_id: int) -> SlurmJob:
    return next(job for job in side.slurm.jobs() if job.job_id == job_id)


def node_of(side: Side, name: str) -> SlurmNode:
    return next(node for node in side.slurm.nodes() if node.name == name)


def until(side: Side, predicate: Callable[[], bool], what: str, timeout_seconds: float = 60.0) -> None:
    deadline = side.now() + timeout_seconds * PATIENCE
    while not predicate():
        assert side.now() < deadline, f"not within {timeout_seconds * PATIENCE:g} s: {what}; jobs: {side.slurm.jobs()}"
        side.wait(LOOK_AGAIN_SECONDS)


def running(side: Side, job_id: int) -> SlurmJob:
    """Wait until the job runs."""
    until(side, lambda: job_of(side, job_id).state == "RUNNING", f"job {job_id} runs")
    return job_of(side, job_id)


def pending(side: Side, job_id: int) -> SlurmJob:
    """Wait until the job is back in the queue."""
    until(side, lambda: job_of(side, job_id).state == "PENDING", f"job {job_id} is pending")
    return job_of(side, job_id)


def start(side: Side, job_id: int) -> None:
    """Start a requeued job, not in the second of its requeue: Slurm fails a job for that."""
    job = job_of(side, job_id)
    until(side, lambda: side.now() > job.submit_at + 1.05, "the second of the requeue is over")
    side.slurm.start_job(job.address, int(job.submit_at) + 1)


def _idle(node: SlurmNode) -> bool:
    return node.base_state == "IDLE" and not node.flags
