"""Slurm through pyslurm: it starts no commands and parses no text.

It sends the protocol's calls to the process in which pyslurm runs (`pyslurm_process`), or to the command line.

The command line does what pyslurm 25.11 cannot do: create reservations (it frees the answer with the wrong allocator
and aborts), set a text, a list or a weight to nothing (it takes that for "no change"), reboot a node, submit and cancel
the control plane's jobs, read a job's Extra, the topology, the states of partitions, the rules of preemption, and the
configuration as Slurm prints it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import structlog

from understudy_controlplane.fleet.gres import alike, gpu_types
from understudy_controlplane.fleet.preemption import PreemptionRules
from understudy_controlplane.fleet.slurm import (
    PENDING_STATES,
    ArrayTask,
    JobAddress,
    JobRequest,
    SlurmJob,
    SlurmNode,
    SlurmReservation,
    SlurmStep,
    TopologyUnit,
)
from understudy_controlplane.slurm.cli import CommandLineGateway, checked_name, checked_names, checked_reason
from understudy_controlplane.slurm.parse import hosts, mail_to, node_state, user_name
from understudy_controlplane.slurm.protocol import READS, SlurmError, SlurmUnavailable
from understudy_controlplane.slurm.pyslurm_process import PyslurmWorker, WorkerDied

log = structlog.get_logger()

Noun = TypeVar("Noun")


class Hello(msgspec.Struct, frozen=True):
    pyslurm: str
    built_for: list[int]
    libslurm: list[int]


class _Node(msgspec.Struct, frozen=True):
    name: str
    address: str
    port: int
    state: str
    partitions: tuple[str, ...]
    reason: str
    reason_user: str
    reason_at: int
    gres: str
    features: frozenset[str]
    weight: int
    cpus: int
    memory_mb: int
    tmp_disk_mb: int


class _Job(msgspec.Struct, frozen=True):
    job_id: int
    submit_at: int
    user: str
    user_id: int
    name: str
    partition: str
    state: str
    restart_count: int
    nodes: str
    node_count: int
    comment: str
    batch: bool
    requeue: bool
    reservation: str
    reason: str
    start_at: int | None
    excluded_nodes: str
    priority: int
    time_limit_minutes: int | None
    required_nodes: str
    features: str
    part_of: str
    array_task: tuple[int, int] | None = None
    exit_code: int = 0
    exit_signal: int = 0
    eligible_at: int | None = None
    end_at: int | None = None
    account: str = ""
    qos: str = ""
    preempt_at: int | None = None
    suspended_or_resumed_at: int | None = None
    memory_mb: int = 0
    tmp_disk_mb: int = 0
    ranks_max: int | None = None
    contiguous: bool = False
    segment: int = 0
    switches_max: int = 0
    gres: str = ""  # that it asks for on each of its nodes
    no_credential: bool = False
    mail_user: str = ""
    mail_types: tuple[str, ...] = ()


class _Reservation(msgspec.Struct, frozen=True):
    name: str
    nodes: str
    users: tuple[str, ...]
    flags: frozenset[str]
    start_at: int


class _Step(msgspec.Struct, frozen=True):
    step_id: str
    name: str
    state: str
    nodes: str


class PyslurmGateway:
    """Implements `Slurm`. After a call killed pyslurm, the command line makes that call until the next start."""

    def __init__(
        self,
        command_line: CommandLineGateway,
        python: str = "",
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = 10,
    ) -> None:
        """`python` can import pyslurm; `environment` is the worker's whole environment, None: that of this process."""
        self._command_line = command_line
        self.worker = PyslurmWorker(python, environment, timeout_seconds)
        self._writer = PyslurmWorker(python, environment, timeout_seconds)
        """Worker of its own for changes: a call that hangs delays no reading."""
        self._fatal_calls: set[str] = set()
        self._unread: dict[str, str] = {}

    def stop(self) -> None:
        self.worker.stop()
        self._writer.stop()

    def prepare(self) -> None:
        """Before a change whose time is limited: the start of pyslurm may take longer. What prevents it, the change
        meets and reports.
        """
        if self._writer.pid is None:
            with contextlib.suppress(SlurmError):
                self._writer.ask("hello", (), Hello)

    def hello(self) -> Hello:
        """Raises SlurmError where pyslurm cannot be used."""
        found: Hello = self.worker.ask("hello", (), Hello)
        return found

    def config(self) -> Mapping[str, str]:
        return self._command_line.config()

    def cluster_name(self) -> str:
        return self._command_line.cluster_name()

    def nodes(self) -> list[SlurmNode]:
        found = self._read("nodes", (), list[_Node], _node)
        return self._command_line.nodes() if found is None else self._command_line.signed(found)

    def jobs(self) -> list[SlurmJob]:
        found = self._read("jobs", (), list[_Job], _job)
        return self._command_line.jobs() if found is None else found

    def job(self, job_id: int) -> SlurmJob | None:
        found = self._read("job", (int(job_id),), list[_Job], _job)
        if found is None or (found and found[0].job_id != job_id):
            return self._command_line.job(job_id)
        return found[0] if found else None

    def reservations(self) -> list[SlurmReservation]:
        found = self._read("reservations", (), list[_Reservation], _reservation)
        return self._command_line.reservations() if found is None else found

    def steps(self, job_id: int) -> list[SlurmStep]:
        found = self._read("steps", (int(job_id),), list[_Step], _step)
        return self._command_line.steps(job_id) if found is None else found

    def job_extra(self, job_id: int) -> str:
        return self._command_line.job_extra(job_id)

    def topology(self) -> tuple[TopologyUnit, ...]:
        return self._command_line.topology()

    def partition_states(self) -> Mapping[str, str]:
        return self._command_line.partition_states()

    def preemption(self) -> PreemptionRules:
        return self._command_line.preemption()

    def drain_node(self, node: str, reason: str) -> None:
        self._act("drain_node", checked_name(node), checked_reason(reason))

    def down_nodes(self, nodes: Sequence[str], reason: str) -> None:
        self._act("down_nodes", [checked_name(node) for node in nodes], checked_reason(reason))

    def keep_batch_host(self, job: JobAddress) -> None:
        self._command_line.keep_batch_host(job)

    def resume_node(self, node: str) -> None:
        self._act("resume_node", checked_name(node))

    def reboot_node(self, node: str, reason: str) -> None:
        self._command_line.reboot_node(node, reason)

    def set_weight(self, node: str, weight: int) -> None:
        if weight:
            self._act("set_weight", checked_name(node), int(weight))
        else:
            self._command_line.set_weight(node, 0)

    def create_reservation(self, name: str, nodes: Sequence[str], user: str, duration_minutes: int) -> None:
        self._command_line.create_reservation(name, nodes, user, duration_minutes)

    def set_reservation_nodes(self, name: str, nodes: Sequence[str]) -> None:
        if nodes:
            self._act("set_reservation_nodes", checked_name(name), [checked_name(node) for node in nodes])
        else:
            self._command_line.set_reservation_nodes(name, nodes)

    def delete_reservation(self, name: str) -> None:
        self._act("delete_reservation", checked_name(name))

    def set_job_reservation(self, job: JobAddress, reservation: str) -> None:
        if reservation:
            self._act_on_job("set_job_reservation", job, checked_names(reservation))
        else:
            self._command_line.set_job_reservation(job, "")

    def submit_job(self, request: JobRequest) -> None:
        self._command_line.submit_job(request)

    def cancel_job(self, job_id: int) -> None:
        self._command_line.cancel_job(job_id)

    def requeue_job(self, job: JobAddress) -> None:
        self._command_line.requeue_job(job)  # pyslurm cannot pass "incomplete"

    def requeue_failed_job(self, job: JobAddress) -> None:
        self._act_on_job("requeue_failed_job", job)

    def start_job(self, job: JobAddress, not_before: int = 0) -> None:
        self._act_on_job("start_job", job, int(not_before))

    def hold_job(self, job: JobAddress) -> None:
        self._act_on_job("hold_job", job)

    def release_job(self, job: JobAddress) -> None:
        self._act_on_job("release_job", job)

    def set_excluded_nodes(self, job: JobAddress, nodes: Sequence[str]) -> None:
        if nodes:
            self._act_on_job("set_excluded_nodes", job, [checked_name(node) for node in nodes])
        else:
            self._command_line.set_excluded_nodes(job, nodes)

    def set_job_priority(self, job: JobAddress, priority: int) -> None:
        self._act_on_job("set_job_priority", job, int(priority))

    def set_time_limit(self, job: JobAddress, minutes: int) -> None:
        self._act_on_job("set_time_limit", job, int(minutes))

    def set_job_comment(self, job: JobAddress, comment: str) -> None:
        if comment.strip():
            self._act_on_job("set_job_comment", job, " ".join(comment.split()))
        else:
            self._command_line.set_job_comment(job, "")

    def set_job_extra(self, job: JobAddress, extra: str) -> None:
        if extra.strip():
            self._act_on_job("set_job_extra", job, " ".join(extra.split()))
        else:
            self._command_line.set_job_extra(job, "")

    def _read(
        self, call: str, arguments: Sequence[object], kind: Any, build: Callable[[Any], Noun]
    ) -> list[Noun] | None:
        """None where pyslurm cannot read: the call kills it, or it fails on users' text. Then the command line reads,
        which leaves out unreadable records.
        """
        assert call in READS
        if call in self._fatal_calls:
            return None
        try:
            return [build(one) for one in self.worker.ask(call, arguments, kind)]
        except WorkerDied:
            self._avoid(call)
        except SlurmUnavailable:
            raise
        except SlurmError as error:
            if self._unread.get(call) != str(error):
                log.warning("pyslurm_unreadable", call=call, error=str(error), remedy="the command line reads it")
            self._unread[call] = str(error)
        return None

    def _act(self, call: str, *arguments: object) -> None:
        if call in self._fatal_calls:
            getattr(self._command_line, call)(*arguments)
            return
        try:
            self._writer.ask(call, arguments, None)
        except WorkerDied:
            self._avoid(call)
            raise

    def _act_on_job(self, call: str, job: JobAddress, *arguments: object) -> None:
        """pyslurm addresses jobs by number only, which for some tasks of an array is that of the whole array."""
        if isinstance(job, ArrayTask):
            getattr(self._command_line, call)(job, *arguments)
        else:
            self._act(call, int(job), *arguments)

    def _avoid(self, call: str) -> None:
        self._fatal_calls.add(call)
        log.error("pyslurm_avoided", call=call, remedy="the command line makes this call until the next start")


def _node(one: _Node) -> SlurmNode:
    base, flags = node_state(one.state)
    return SlurmNode(
        one.name,
        one.address,
        one.port,
        base,
        flags,
        one.partitions,
        one.reason,
        one.reason_user,
        one.reason_at,
        alike(one.gres),
        one.features,
        one.weight,
        one.cpus,
        one.memory_mb,
        one.tmp_disk_mb,
    )


def _job(one: _Job) -> SlurmJob:
    values = msgspec.structs.asdict(one)
    values["user"] = user_name(one.user, one.user_id)
    values["reason"] = re.sub(r"\s", "_", one.reason)  # as scontrol prints it
    values["nodes"] = () if one.state in PENDING_STATES else hosts(one.nodes)
    values["excluded_nodes"] = hosts(one.excluded_nodes)
    values["required_nodes"] = hosts(one.required_nodes)
    values["array_task"] = ArrayTask(*one.array_task) if one.array_task else None
    values["gpu_types"] = gpu_types(values.pop("gres"))
    values["mail_to"] = mail_to(values.pop("mail_user"), ",".join(values.pop("mail_types")))
    return SlurmJob(**values)


def _reservation(one: _Reservation) -> SlurmReservation:
    return SlurmReservation(one.name, hosts(one.nodes), one.users, one.flags, one.start_at)


def _step(one: _Step) -> SlurmStep:
    return SlurmStep(one.step_id, one.name, one.state, hosts(one.nodes))
