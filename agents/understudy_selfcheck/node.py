"""The parent: starts one child for each GPU, all at once; kills a child that hangs; finds a GPU that differs from the
others.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

import msgspec

from understudy_selfcheck.check import Result
from understudy_selfcheck.worker import GpuList, LinkResult, WorkerResult

Answer = TypeVar("Answer")

SLOW_RATIO = 1.15
"""A GPU that takes longer than this times its peers' time is reported as slow."""

PEERS_MIN = 3
LATE_SECONDS = 0.5
"""Time for a child that finished while the parent waited for another."""

LOADING_SECONDS = 120.0

DYING_SECONDS = 5.0
"""A process inside a driver that hangs may not end even when it is killed: the parent does not wait longer."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    device: str  # "cpu", "cuda", or "auto": GPUs where there are some
    seconds: float = 3.0
    memory_share: float = 0.25
    timeout_seconds: float = 120.0  # from the moment at which the children have imported what they need
    gpus_expected: int | None = None
    slow_ratio: float | None = None  # above this a GPU has failed; None: slowness is only reported
    loading_seconds: float = LOADING_SECONDS
    """Time for the children to import torch, which a cold or slow file system delays: that says nothing of the GPUs."""


class Device(msgspec.Struct, frozen=True):
    status: str  # "passed", "failed" or "could_not_run"
    index: int | None = None  # of the GPU among those visible to this process; None: the processor
    uuid: str = ""
    name: str = ""
    backend: str = ""
    problem: str = ""
    slow: float | None = None  # how many times its peers' time it takes, if it is slow
    result: Result | None = None


class NodeResult(msgspec.Struct, frozen=True):
    status: str  # the worst of its devices
    devices: list[Device]
    problems: list[str] = []


class _TimedOut(Exception):
    """The child did not answer in time, and was killed."""


class _NotLoaded(ValueError):
    """It did not come so far that it used a device, and was killed."""

    def __init__(self) -> None:
        super().__init__("its programs were not loaded in time: is the file system slow?")


def check_node(order: CheckOptions, worker: Sequence[str], environment: Mapping[str, str]) -> NodeResult:
    """`worker` is the command of `understudy_selfcheck.worker`."""
    if order.device == "cpu":
        return _judge(_check([_Child(worker, order, environment, None)], order), order)
    try:
        listed = _answer_of(_start([*worker, "list"], environment), order, GpuList)
    except _NotLoaded as error:
        return NodeResult("could_not_run", [], [f"GPUs cannot be listed: {error}"])
    except _TimedOut:
        problem = f"the driver did not list its GPUs within {order.timeout_seconds:g} s"
        return NodeResult("failed", [], [problem])
    except ValueError as error:
        return NodeResult("could_not_run", [], [f"GPUs cannot be listed: {error}"])
    if listed.gpus == 0:
        return _without_gpus(order, worker, environment, listed)
    visible = [one for one in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    names = visible if len(visible) >= listed.gpus else [str(index) for index in range(listed.gpus)]
    children = [
        _Child(worker, order, {**environment, "CUDA_VISIBLE_DEVICES": names[index]}, index)
        for index in range(listed.gpus)
    ]
    return _judge(_check(children, order), order)


def _without_gpus(
    order: CheckOptions, worker: Sequence[str], environment: Mapping[str, str], listed: GpuList
) -> NodeResult:
    """When GPUs are requested, a good processor does not pass the check."""
    if listed.cannot_look and (order.gpus_expected or order.device == "cuda"):
        return NodeResult("could_not_run", [], [f"GPUs cannot be checked: {listed.cannot_look}"])
    if order.gpus_expected:
        return NodeResult("failed", [], [f"0 of {order.gpus_expected} GPUs are there"])
    if order.device == "cuda":
        return NodeResult("could_not_run", [], ["torch finds no GPU that it can use"])
    return check_node(replace(order, device="cpu"), worker, environment)


class _Child:
    def __init__(
        self, worker: Sequence[str], order: CheckOptions, environment: Mapping[str, str], index: int | None
    ) -> None:
        self.index = index
        self._not_loaded = ""
        device = "cpu" if index is None else "cuda"
        self._process = _start([*worker, device, str(order.seconds), str(order.memory_share)], environment)

    def load(self, seconds: float) -> None:
        try:
            _load(self._process, seconds)
        except _NotLoaded as error:
            self._not_loaded = str(error)

    def wait(self, deadline: float, timeout_seconds: float) -> Device:
        if self._not_loaded:
            return Device("could_not_run", self.index, problem=self._not_loaded)
        try:
            answer = _answer(self._process, deadline, WorkerResult)
        except _TimedOut:
            return Device(
                "failed", self.index, problem=f"it did not finish within {timeout_seconds:g} s, and was killed"
            )
        except ValueError as error:
            return Device("failed", self.index, problem=str(error))
        status = (
            "could_not_run" if answer.cannot_run else "passed" if answer.result and answer.result.good else "failed"
        )
        problem = answer.cannot_run or answer.failure
        return Device(
            status, self.index, answer.uuid, answer.device_name, answer.backend, problem, result=answer.result
        )


def measure_links(command: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> LinkResult:
    """A child measures them, and is killed when it hangs."""
    try:
        return _answer_of(
            _start(command, environment), CheckOptions("cuda", timeout_seconds=timeout_seconds), LinkResult
        )
    except _NotLoaded as error:
        return LinkResult(cannot_run=str(error))
    except _TimedOut:
        return LinkResult(failure=f"it did not finish within {timeout_seconds:g} s, and was killed")
    except ValueError as error:
        return LinkResult(failure=str(error))


def _check(children: Sequence[_Child], order: CheckOptions) -> list[Device]:
    begun = time.monotonic()
    for child in children:
        child.load(begun + order.loading_seconds - time.monotonic())
    deadline = time.monotonic() + order.timeout_seconds
    return [child.wait(deadline, order.timeout_seconds) for child in children]


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _load(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Returns when the child has imported what it needs, or has ended. Raises _NotLoaded."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], max(0.0, seconds))[0]:
        _kill(process)
        raise _NotLoaded


def _answer_of(process: subprocess.Popen[bytes], order: CheckOptions, kind: type[Answer]) -> Answer:
    """Raises _TimedOut and ValueError."""
    _load(process, order.loading_seconds)
    return _answer(process, time.monotonic() + order.timeout_seconds, kind)


def _answer(process: subprocess.Popen[bytes], deadline: float, kind: type[Answer]) -> Answer:
    """The child's answer. Raises _TimedOut, and ValueError with the cause when the answer cannot be decoded."""
    try:
        out, errors = process.communicate(timeout=max(LATE_SECONDS, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        _kill(process)
        raise _TimedOut from error
    lines = out.splitlines()
    try:
        return msgspec.json.decode(lines[-1] if lines else b"", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        how = f"by signal {-process.returncode}" if process.returncode < 0 else f"with {process.returncode}"
        raise ValueError(f"its check ended {how}: {last[0][:500]}") from None


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=DYING_SECONDS)


def _judge(devices: Sequence[Device], order: CheckOptions) -> NodeResult:
    devices = _beside_peers(devices, order)
    problems = _odd_ones(devices)
    if order.gpus_expected is not None and len(devices) < order.gpus_expected:
        problems.append(f"{len(devices)} of {order.gpus_expected} GPUs are there")
    statuses = {one.status for one in devices}
    failed = "failed" in statuses or problems
    status = "failed" if failed else "could_not_run" if "could_not_run" in statuses else "passed"
    return NodeResult(status, list(devices), problems)


def _beside_peers(devices: Sequence[Device], order: CheckOptions) -> list[Device]:
    """Marks a GPU that takes longer than its peers; it has failed when that was requested."""
    judged = []
    for one in devices:
        ratio = _slowness(one, [other for other in devices if other is not one])
        if ratio is not None and ratio > min(SLOW_RATIO, order.slow_ratio or SLOW_RATIO):
            failed = order.slow_ratio is not None and ratio > order.slow_ratio
            problem = one.problem or (f"it takes {ratio:.2f} times as long as its peers" if failed else "")
            status = "failed" if failed else one.status
            judged.append(msgspec.structs.replace(one, slow=round(ratio, 3), status=status, problem=problem))
        else:
            judged.append(one)
    return judged


def _slowness(one: Device, others: Sequence[Device]) -> float | None:
    """Its time over the median of its peers', in the number format in which that is worst; None: too few peers."""
    peers = [other.result for other in others if other.result and other.name == one.name]
    if one.result is None or len(peers) < PEERS_MIN - 1:
        return None
    ratios = []
    for kind in one.result.kinds:
        peer_seconds = [it.seconds for peer in peers for it in peer.kinds if it.kind == kind.kind]
        if peer_seconds and median(peer_seconds) > 0:
            ratios.append(kind.seconds / median(peer_seconds))
    return max(ratios, default=None)


def _odd_ones(devices: Sequence[Device]) -> list[str]:
    """GPUs of one model must give the same bits. Each was compared with the known product already; this compares them
    with each other, in case that comparison itself is wrong here.
    """
    problems = []
    for name in sorted({one.name for one in devices if one.result}):
        digests = Counter(one.result.digest for one in devices if one.result and one.name == name)
        if len(digests) > 1:
            common, _ = digests.most_common(1)[0]
            odd = [str(one.index) for one in devices if one.result and one.name == name and one.result.digest != common]
            problems.append(f"GPU {', '.join(odd)} gives other results than the other GPUs of its model ({name})")
    return problems
