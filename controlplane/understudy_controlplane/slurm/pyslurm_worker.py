"""The process that talks to Slurm through pyslurm, started by `pyslurm_process`.

It makes one call of pyslurm for each request and returns plain values. It imports nothing of Understudy, because it
runs under the Python that has pyslurm.

It is a process of its own because libslurm ends its process on errors ("fatal: …", an abort in its memory
management). Requests come as JSON lines on standard input, `{"call": …, "arguments": […], "ends_at": …}`; answers go as
JSON lines to what was standard output. It ends with its standard input, and by SIGALRM where a call is not over at
`ends_at`: the process that asked may be frozen.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

FLAG_NAMES = {  # pyslurm's, where it has other names than Slurm's own command line
    "IGNORE_RUNNING_JOBS": "IGNORE_JOBS",
    "MAINTENANCE": "MAINT",
    "NO_JOB_HOLD_AFTER_END": "NO_HOLD_JOBS_AFTER_END",
    "SPECIFIC_NODES": "SPEC_NODES",
}


def _epoch(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _memory_mb(job: Any) -> int:
    """Memory on each node, requested by node or by CPU."""
    cpus = -(-_count(job.cpus) // max(1, _count(job.num_nodes)))
    return _count(job.memory_per_node) or _count(job.memory_per_cpu) * cpus


def _text(value: Any) -> str:
    return ",".join(str(one) for one in value) if isinstance(value, list | tuple) else str(value or "")


def _part_of(job: Any) -> str:
    if job.heterogeneous_id:
        return "heterogeneous job"
    return "job array's waiting tasks" if job.array_id and _array_task(job) is None else ""


def _array_task(job: Any) -> list[int] | None:
    """[array, task]; None for other jobs, and for the tasks that have never started, which are one record."""
    task = job.array_task_id if job.array_id else None
    return [job.array_id, task] if isinstance(task, int) else None


def _gres(configured: dict[str, Any]) -> str:
    return ",".join(f"{name}:{count}" for name, count in sorted(configured.items()))


def _loaded_libslurm() -> list[int]:
    """The version that the loaded library prints, as [26, 5]; empty where it is unknown."""
    with Path("/proc/self/maps").open() as maps:
        paths = {line.split()[-1] for line in maps if "/libslurm" in line}
    for path in sorted(paths):
        with contextlib.suppress(OSError, AttributeError):
            match = re.search(r"(\d+)\.(\d+)\.", _printed_by(ctypes.CDLL(path).print_slurm_version))
            return [int(match[1]), int(match[2])] if match else []
    return []


def _printed_by(function: Any) -> str:
    """What a C function writes to standard output."""
    reader, writer = os.pipe()
    saved = os.dup(1)
    os.dup2(writer, 1)
    function()
    ctypes.CDLL(None).fflush(None)
    os.dup2(saved, 1)
    os.close(saved)
    os.close(writer)
    with os.fdopen(reader) as printed:
        return printed.read()


class Calls:
    """A method for each request."""

    def __init__(self, pyslurm: Any) -> None:
        self._pyslurm = pyslurm

    def hello(self) -> dict[str, Any]:
        """The version that pyslurm reports to be built for, and the version of the library that it has loaded."""
        return {
            "pyslurm": self._pyslurm.__version__,
            "built_for": list(self._pyslurm.slurm_api_version())[:2],
            "libslurm": _loaded_libslurm(),
        }

    def nodes(self) -> list[dict[str, Any]]:
        return [self._node(node) for node in self._pyslurm.Nodes.load().values()]

    def jobs(self) -> list[dict[str, Any]]:
        return [self._job(job) for job in self._pyslurm.Jobs.load().values()]

    def job(self, job_id: int) -> list[dict[str, Any]]:
        """Record of this id, or of one task by the id of its array; none if Slurm knows no such job."""
        try:
            return [self._job(self._pyslurm.Job.load(job_id))]
        except self._pyslurm.RPCError as error:
            if "Invalid job id" not in str(error):
                raise
            return []

    def reservations(self) -> list[dict[str, Any]]:
        return [
            {
                "name": one.name,
                "nodes": one.nodes or "",
                "users": list(one.users or ()),
                "start_at": _epoch(one.start_time) or 0,
                "flags": [FLAG_NAMES.get(flag.name, flag.name) for flag in one.flags],
            }
            for one in self._pyslurm.Reservations.load().values()
        ]

    def steps(self, job_id: int) -> list[dict[str, Any]]:
        job = self._pyslurm.Job.load(job_id)
        if not job.allocated_nodes:
            return []
        return [
            {
                "step_id": str(step.id),
                "name": step.name or "",
                "state": step.state,
                "nodes": ",".join(step.allocated_nodes or ()),
            }
            for step in self._pyslurm.JobSteps.load(job).values()
        ]

    def drain_node(self, node: str, reason: str) -> None:
        self._set_node(node, "DRAIN", reason)

    def down_nodes(self, nodes: list[str], reason: str) -> None:
        self._set_node(",".join(nodes), "DOWN", reason)

    def resume_node(self, node: str) -> None:
        self._pyslurm.Node(node).modify(self._pyslurm.Node(state="RESUME"))

    def set_weight(self, node: str, weight: int) -> None:
        self._pyslurm.Node(node).modify(self._pyslurm.Node(weight=weight))

    def set_reservation_nodes(self, name: str, nodes: list[str]) -> None:
        self._pyslurm.Reservation.load(name).modify(self._pyslurm.Reservation(nodes=",".join(nodes)))

    def delete_reservation(self, name: str) -> None:
        self._pyslurm.Reservation(name).delete()

    def requeue_failed_job(self, job_id: int) -> None:
        self._pyslurm.Job(job_id).requeue()

    def start_job(self, job_id: int, not_before: int) -> None:
        self._update_job(job_id, begin_time=not_before or int(time.time()))

    def hold_job(self, job_id: int) -> None:
        self._pyslurm.Job(job_id).hold()

    def release_job(self, job_id: int) -> None:
        self._pyslurm.Job(job_id).release()

    def set_job_reservation(self, job_id: int, reservation: str) -> None:
        self._update_job(job_id, reservations=reservation)

    def set_excluded_nodes(self, job_id: int, nodes: list[str]) -> None:
        self._update_job(job_id, excluded_nodes=",".join(nodes))

    def set_job_priority(self, job_id: int, priority: int) -> None:
        self._update_job(job_id, priority=priority)

    def set_time_limit(self, job_id: int, minutes: int) -> None:
        self._update_job(job_id, time_limit=minutes)

    def set_job_comment(self, job_id: int, comment: str) -> None:
        self._update_job(job_id, comment=comment)

    def set_job_extra(self, job_id: int, extra: str) -> None:
        self._update_job(job_id, extra=extra)

    def _set_node(self, node: str, state: str, reason: str) -> None:
        self._pyslurm.Node(node).modify(self._pyslurm.Node(state=state, reason=reason))

    def _update_job(self, job_id: int, **changes: Any) -> None:
        self._pyslurm.Job(job_id).modify(self._pyslurm.JobSubmitDescription(**changes))

    def _node(self, node: Any) -> dict[str, Any]:
        reason = node.reason or ""
        return {
            "name": node.name,
            "address": node.address or node.name,
            "port": node.slurmd_port or 6818,
            "state": node.state,
            "partitions": list(node.partitions or ()),
            "reason": reason,
            "reason_user": (node.reason_user or "") if reason else "",
            "reason_at": (_epoch(node.reason_time) or 0) if reason else 0,
            "gres": _gres(node.configured_gres or {}),
            "features": list(node.active_features or ()),
            "weight": node.weight or 0,  # it shows 0 as None
            "cpus": _count(node.total_cpus),
            "memory_mb": _count(node.real_memory),
            "tmp_disk_mb": _count(node.temporary_disk),
        }

    @staticmethod
    def _job(job: Any) -> dict[str, Any]:
        return {
            "job_id": job.id,
            "submit_at": job.submit_time,
            "user": job.user_name or "",
            "user_id": job.user_id,
            "name": job.name or "",
            "partition": job.partition or "",
            "state": job.state,
            "restart_count": job.requeue_count or 0,
            "nodes": job.allocated_nodes or "",
            "node_count": job.num_nodes or 0,
            "comment": job.comment or "",
            "batch": bool(job.is_batch_job),
            "requeue": bool(job.is_requeueable),
            "reservation": job.reservation or "",
            "reason": "" if job.state_reason in (None, "None") else job.state_reason,
            "start_at": _epoch(job.start_time),
            "eligible_at": _epoch(job.eligible_time),
            "excluded_nodes": job.excluded_nodes or "",
            "priority": job.priority if isinstance(job.priority, int) else 1,
            "time_limit_minutes": job.time_limit if isinstance(job.time_limit, int) else None,
            "required_nodes": job.required_nodes or "",
            "features": _text(job.constraints),
            "part_of": _part_of(job),
            "array_task": _array_task(job),
            "exit_code": _count(getattr(job, "exit_code", 0)),
            "exit_signal": _count(getattr(job, "exit_code_signal", 0)),
            "end_at": None if job.state == "PENDING" else _epoch(getattr(job, "end_time", None)),
            "account": job.account or "",
            "qos": job.qos or "",
            "preempt_at": _epoch(job.preempt_eligible_time),
            "suspended_or_resumed_at": _epoch(job.suspend_time),
            "memory_mb": _memory_mb(job),
            "tmp_disk_mb": _count(job.temporary_disk_per_node),
            "ranks_max": max(_count(job.cpus), _count(job.ntasks)) or None,
            "contiguous": bool(job.requires_contiguous_nodes),
            "segment": _count(getattr(job, "segment_size", 0)),
            "switches_max": _count(getattr(job, "required_switches", 0)),
            "gres": _gres(getattr(job, "gres_per_node", None) or {}),
            "no_credential": str(getattr(job, "system_comment", "")).startswith("slurm_cred_create failure"),
            "mail_user": ",".join(job.mail_user or ()),
            "mail_types": list(job.mail_types or ()),
        }


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libslurm prints messages, which must not mix with the answers
    try:
        calls: Calls | None = Calls(importlib.import_module("pyslurm"))
        problem = ""
    except ImportError as error:
        calls, problem = None, f"{sys.executable} cannot import pyslurm: {error}"
    for line in sys.stdin:
        answers.write(json.dumps(_answer(calls, json.loads(line)) if calls else {"failed": problem}) + "\n")
        answers.flush()


def _answer(calls: Calls, request: dict[str, Any]) -> dict[str, Any]:
    if request["ends_at"] is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        left = request["ends_at"] - time.clock_gettime(time.CLOCK_BOOTTIME)
        signal.setitimer(signal.ITIMER_REAL, max(left, 1e-6))  # 0 would mean: never
    try:
        return {"result": getattr(calls, request["call"])(*request["arguments"])}
    except Exception as error:  # noqa: BLE001 - any error of pyslurm is an answer, not the end
        kind = "refused" if type(error).__name__ == "RPCError" else "failed"
        return {kind: str(error) if kind == "refused" else f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
