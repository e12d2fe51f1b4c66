"""The hook's face to training code.

monitor = Monitor()
start = monitor.restore_point()
for n in range(start.step if start else 0, steps):
    with monitor.step(n):
        ...
        with monitor.waiting():
            all_reduce(...)
    ...
    monitor.checkpoint_saved(n + 1, directory, f"shard-{rank}.pt")
monitor.close()
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from agents.train.clocks import StepTimer, WaitingClock
from agents.train.identity import IdentityError, read_identity, socket_path
from agents.train.link import Link, hello_message, log
from agents.train.outbox import Outbox, describe_file

AGENT_WAIT_SECONDS = 10.0
"""How long an agent may be away, because it is being started again, before there is taken to be none."""
ASK_AGAIN_SECONDS = 1.0


class RestorePoint(NamedTuple):
    """Where training goes on: step 0 and an empty path mean from the beginning."""

    step: int
    path: str


class Monitor:
    """Reports this rank to its node's agent. One per process, made after any fork.

    No method raises for want of an agent, or holds up the training but for the time asked for. A process that
    is no rank of a Slurm job, or that has no agent, trains on unobserved; that is logged once.
    """

    def __init__(self, gpu_index: int | None = None, role: str = "", socket: str | None = None) -> None:
        """`gpu_index` is the GPU's index on this node as NVML counts; `role` such as "stage0": ranks are
        compared with ranks of the same role only; `socket` is the agent's, if UNDERSTUDY_SOCKET does not say
        it."""
        self._waiting = WaitingClock()
        self._outbox = Outbox()
        self._first_step_open = True
        self._questions: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._shards: queue.SimpleQueue[tuple[int, str, str] | None] = queue.SimpleQueue()
        self._shard_reader: threading.Thread | None = None
        self._link: Link | None = None
        try:
            identity = read_identity(os.environ)
        except IdentityError as error:
            log.warning("understudy: this process is no rank of a Slurm job (%s): nothing is reported", error)
            return
        hello = hello_message(identity, gpu_index, role)
        self._link = Link(socket_path(os.environ, socket), hello, self._outbox, self._take_answer)
        self._link.start()

    def restore_point(self, timeout_seconds: float = 60.0) -> RestorePoint | None:
        """Where this attempt of the job goes on, the same for all its ranks. None when nobody answers in
        time.
        """
        link = self._link
        if link is None:
            return None
        deadline = time.monotonic() + timeout_seconds
        if not link.connected.wait(min(timeout_seconds, AGENT_WAIT_SECONDS)):
            return None
        reason = "no answer"
        while (left_seconds := deadline - time.monotonic()) > 0:
            answer = self._ask(link, {"type": "restore_point"}, left_seconds)
            if answer is None:
                break
            if answer.get("type") == "restore_point":
                return RestorePoint(answer["step"], answer["path"])
            reason = str(answer.get("error"))
            time.sleep(max(0.0, min(ASK_AGAIN_SECONDS, deadline - time.monotonic())))
        link.complain("restore_point", "no restore point within %g s: %s", timeout_seconds, reason)
        return None

    def step(self, number: int) -> AbstractContextManager[None]:
        """Times one training step. A few microseconds."""
        if self._link is None:
            return contextlib.nullcontext()
        return StepTimer(number, self._waiting, self._finish_step)

    def waiting(self) -> AbstractContextManager[None]:
        """Time spent waiting for other ranks, in collectives above all: it is not this rank's own."""
        return self._waiting

    def checkpoint_saved(self, step: int, path: str | os.PathLike[str], file: str) -> None:
        """This rank's part of a checkpoint is written: `file` in the directory `path`, which all ranks share.

        Training continues with `step` after a restore. Size and checksum are read in the background, so the
        file must not change any more.
        """
        link = self._link
        if link is None:
            return
        try:
            directory = os.path.abspath(path)  # noqa: PTH100
            shard = {"step": int(step), "path": directory, "file": str(file)}
        except (TypeError, ValueError) as error:
            link.complain("checkpoint", "the checkpoint in %r is not announced: %s", path, error)
            return
        identifier = self._outbox.add_notice({"type": "shard", **shard, "at": time.time()})
        self._shards.put((identifier, directory, str(file)))
        if self._shard_reader is None:
            self._shard_reader = threading.Thread(
                target=self._read_shards, args=(link,), name="understudy-shards", daemon=True
            )
            self._shard_reader.start()

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Waits until everything announced is acknowledged, as long as there is an agent to do so."""
        link, self._link = self._link, None
        if link is None:
            return
        deadline = time.monotonic() + timeout_seconds
        link.wake()
        if link.connected.wait(min(1.0, timeout_seconds)):
            left_seconds = max(0.0, deadline - time.monotonic())
            if not self._outbox.wait_until_settled(left_seconds):
                link.complain("close", "announcements were not acknowledged within %g s", timeout_seconds)
        self._shards.put(None)
        link.close(max(0.1, deadline - time.monotonic()))

    def _finish_step(self, number: int, self_seconds: float, wall_seconds: float) -> None:
        self._outbox.steps.append((number, self_seconds, wall_seconds))
        if self._first_step_open:
            self._first_step_open = False
            with contextlib.suppress(TypeError, ValueError):  # not a number: the link will complain of it
                self._outbox.add_notice({"type": "first_step", "step": int(number), "at": time.time()})
            if self._link is not None:
                self._link.wake()

    def _ask(self, link: Link, question: dict[str, Any], timeout_seconds: float) -> dict[str, Any] | None:
        answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        identifier = self._outbox.add_notice(question)
        self._questions[identifier] = answers
        link.wake()
        try:
            return answers.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        finally:
            self._questions.pop(identifier, None)
            self._outbox.settle(identifier)

    def _take_answer(self, answer: dict[str, Any]) -> None:
        question = self._questions.get(answer["id"])
        if question is not None:
            question.put(answer)
            return
        notice = self._outbox.settle(answer["id"])
        if answer.get("type") == "error" and notice is not None:
            log.warning("understudy: the control plane refuses %s: %s", notice, answer.get("error"))

    def _read_shards(self, link: Link) -> None:
        while (shard := self._shards.get()) is not None:
            identifier, directory, file = shard
            try:
                self._outbox.complete_notice(identifier, describe_file(directory, file))
            except OSError as error:
                self._outbox.settle(identifier)
                log.warning("understudy: shard %s in %s is not announced: %s", file, directory, error)
            link.wake()
