"""The hook's face to training code.

monitor = Monitor()
for n in monitor.steps(range(start, total)):
    ...
    with monitor.collective("all_reduce"):
        all_reduce(...)
    ...
    monitor.checkpoint_saved(n + 1, directory, f"shard-{rank}.pt")
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from .clocks import StepTimer, WaitingClock
from .collectives import Collective, NoCollective
from .identity import IdentityError, read_identity, socket_path, told_by_launcher
from .link import Link, hello_message
from .never_raise import log, quiet
from .outbox import TEXT_CHARACTERS_MAX, Outbox, describe_file, step_number

AGENT_WAIT_SECONDS = 10.0
"""How long an agent may be away, because it is being started again, before there is taken to be none."""
ASK_AGAIN_SECONDS = 1.0
EXIT_SECONDS_MAX = 5.0
"""For what is announced and not acknowledged when the process ends without close()."""


class RestorePoint(NamedTuple):
    """Where training goes on: step 0 and an empty path mean from the beginning."""

    step: int
    path: str


class Monitor:
    """Reports this rank to its node's agent. One per process; in the child of a fork it does nothing.

    No method raises, or holds up the training but for the time asked for. A process that is no rank of a Slurm job,
    or that has no agent, trains on unobserved; that is logged once.
    """

    _link: Link | None
    """None: nobody listens."""

    def __init__(self, gpu_index: int | None = None, role: str = "", socket: str | None = None) -> None:
        """`gpu_index` is the GPU's index on this node as NVML counts; `role` such as "stage0": ranks are
        compared with ranks of the same role only; `socket` is the agent's, if UNDERSTUDY_SOCKET does not say
        it."""
        self._prepare()
        try:
            identity = read_identity(os.environ)
            hello = hello_message(identity, gpu_index, role)
            link = Link(socket_path(os.environ, socket), hello, self._outbox, self._take_answer)
            link.start()
        except IdentityError as error:
            log.warning("understudy: this process is no rank of a Slurm job (%s): nothing is reported", error)
        except (OSError, RuntimeError) as error:  # no file or thread left to have
            log.warning("understudy: the hook cannot run here: nothing is reported: %r", error)
        else:
            self._link = link
            _monitors.add(self)

    def _prepare(self) -> None:
        """All there is, and nobody to tell it to."""
        self._waiting = WaitingClock()
        self._outbox = Outbox()
        self._first_step_open = True
        self._number: int | None = None
        self._questions: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._shards: queue.SimpleQueue[tuple[int, str, str] | None] = queue.SimpleQueue()
        self._shard_reader: threading.Thread | None = None
        self._watches: list[Callable[[], None]] = []
        self._link = None

    def __deepcopy__(self, memo: dict[int, object]) -> Monitor:
        return self

    def __reduce__(self) -> tuple[Callable[[], Monitor], tuple[()]]:
        """In the process that it is sent to it is no rank: the environment there says nothing of which."""
        return (_nobody, ())

    @property
    def active(self) -> bool:
        """Somebody may be listening: this is a rank of a Slurm job, and it is not closed."""
        return self._link is not None

    @quiet
    def restore_point(self, timeout_seconds: float = 60.0) -> RestorePoint | None:
        """Where this attempt of the job goes on, the same for all its ranks. None when nobody answers in
        time.

        While no control plane answers, the ranks of a launcher's gang are told by it: the newest checkpoint that it
        knows to be complete, at once and without asking.
        """
        link = self._link
        if link is None:
            return None
        told = told_by_launcher(os.environ)
        if told is not None:
            if os.path.exists(told[1]):  # noqa: PTH110
                link.complain(
                    "told", "no control plane answers: going on from step %d, %s, as the launcher says", *told
                )
                return RestorePoint(*told)
            link.complain("told", "%s, which the launcher named, is gone; the control plane is asked", told[1])
        deadline = time.monotonic() + timeout_seconds
        if not link.connected.wait(min(timeout_seconds, AGENT_WAIT_SECONDS)):
            return None
        reason = "no answer"
        while (left_seconds := deadline - time.monotonic()) > 0:
            answer = self._ask(link, {"type": "restore_point"}, left_seconds)
            if answer is None:
                break
            if answer.get("type") == "restore_point":
                return RestorePoint(int(answer["step"]), str(answer["path"]))
            reason = str(answer.get("error"))
            time.sleep(max(0.0, min(ASK_AGAIN_SECONDS, deadline - time.monotonic())))
        link.complain("restore_point", "no restore point within %g s: %s", timeout_seconds, reason)
        return None

    def steps(self, numbers: Iterable[int]) -> Iterator[int]:
        """The numbers, each timed as a step from when it is handed out until the next one is asked for.

        That is the whole body of the loop, with checkpoints and logging if they are in it, and without what
        `numbers` itself takes to find the next. `continue` ends a step as the end of the body does. A step that is
        left with `break`, `return` or an exception may be half done and does not count.
        """
        for number in numbers:
            with self.step(number):
                yield number

    def step(self, number: int) -> AbstractContextManager[None]:
        """Times one training step. A few microseconds. One that ends in an exception does not count."""
        if self._link is None:
            return contextlib.nullcontext()
        return StepTimer(number, self._waiting, self._begin_step, self._end_step, self._finish_step)

    def waiting(self) -> AbstractContextManager[None]:
        """Time spent waiting for other ranks: it is not this rank's own."""
        return self._waiting

    def collective(self, name: str) -> Collective | NoCollective:
        """Around a collective, or its decorator: the time in it is waiting, and it is the last one entered, which
        is what a hang is explained with.
        """
        if self._link is None:
            return NoCollective()
        return Collective(name, self._outbox.collectives, self._waiting)

    @quiet
    def observe(self, loss: float | None = None, grad_norm: float | None = None) -> None:
        """Loss and gradient norm of the step under way, or of the last one: call it each step, on each rank.

        NaN, and a jump to five times what is usual, make checkpoints suspect that are taken from that step on. Give
        numbers that are on the host already: a GPU's tensor is waited for, as item() would.
        """
        if self._link is not None:
            self._outbox.values.append(
                (
                    self._number,
                    loss if loss is None or type(loss) is float else float(loss),
                    grad_norm if grad_norm is None or type(grad_norm) is float else float(grad_norm),
                )
            )

    @quiet
    def checkpoint_saved(self, step: int, path: str | os.PathLike[str], file: str | None = ".") -> None:
        """This rank's part of a checkpoint is written. Complete it is when every rank has said so of the same `path`.

        `path` is a directory that all ranks share, and `file` this rank's shard in it; or `path` is a checkpoint of
        one file, which this rank wrote ("."). None: other ranks wrote this one's part.
        Training continues with `step` after a restore. Size and checksum are read in the background, so the
        file must not change any more.
        """
        link = self._link
        if link is None:
            return
        directory, name, number = os.path.abspath(path), str(file or ""), step_number(step)  # noqa: PTH100
        if number is None or max(len(directory), len(name)) > TEXT_CHARACTERS_MAX:
            link.complain("checkpoint", "the checkpoint of step %.50r in %.200s is not announced", step, directory)
            return
        self._outbox.look_at_values()  # what is wrong with it is told before it
        shard = {"step": number, "path": directory, "file": name}
        identifier = self._outbox.add_notice({"type": "shard", **shard, "at": time.time()})
        self._shards.put((identifier, directory, name))
        if self._shard_reader is None:
            self._shard_reader = threading.Thread(
                target=self._read_shards, args=(link,), name="understudy-shards", daemon=True
            )
            self._shard_reader.start()

    @quiet
    def close(self, timeout_seconds: float = 10.0) -> None:
        """Waits until everything announced is acknowledged, as long as there is an agent to do so.

        A process that ends without it closes for itself, with less patience.
        """
        link, self._link = self._link, None
        if link is None:
            return
        deadline = time.monotonic() + timeout_seconds
        self._outbox.look_at_values()
        link.wake()
        if link.connected.wait(min(1.0, timeout_seconds)):
            left_seconds = max(0.0, deadline - time.monotonic())
            if not self._outbox.wait_until_settled(left_seconds):
                link.complain("close", "announcements were not acknowledged within %g s", timeout_seconds)
        self._shards.put(None)
        link.close(max(0.1, deadline - time.monotonic()))

    def unwatch(self, settle: Callable[[], None]) -> None:
        if settle in self._watches:
            self._watches.remove(settle)

    def watch(self, settle: Callable[[], None]) -> None:
        """`settle` is called at the end of every step, to note waiting that was measured elsewhere with waited(). It
        must not raise.
        """
        self._watches.append(settle)

    def waited(self, seconds: float) -> None:
        """Waiting that was measured elsewhere: in the step under way."""
        self._waiting.add(seconds)

    def note_entered(self, name: str) -> None:
        """A collective that does not block this thread was entered; note_left() when it is known to be done."""
        self._outbox.collectives.enter(name)

    def note_left(self) -> None:
        self._outbox.collectives.leave()

    def _begin_step(self, number: int) -> None:
        self._outbox.collectives.step = self._number = number

    def _end_step(self) -> None:
        self._outbox.collectives.step = None
        for settle in self._watches:
            settle()

    def _after_fork(self) -> None:
        """A data loader's worker, say: it is no rank, and must not speak on its parent's connection."""
        link, self._link = self._link, None
        self._waiting.after_fork()
        self._outbox.after_fork()
        self._watches.clear()
        self._first_step_open = False
        if link is not None:
            link.abandon()

    def _close_at_exit(self) -> None:
        link = self._link
        if link is not None:
            self.close(EXIT_SECONDS_MAX if link.connected.is_set() else 0.1)

    def _finish_step(self, number: int, self_seconds: float, wall_seconds: float) -> None:
        self._outbox.steps.append((number, self_seconds, wall_seconds))
        if self._first_step_open and (step := step_number(number)) is not None:
            self._first_step_open = False
            self._outbox.add_notice({"type": "first_step", "step": step, "at": time.time()})
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


def _nobody() -> Monitor:
    log.warning("understudy: the monitor was sent here by another process: nothing is reported from this one")
    monitor = Monitor.__new__(Monitor)
    monitor._prepare()
    return monitor


_monitors: weakref.WeakSet[Monitor] = weakref.WeakSet()


def _after_fork() -> None:
    for monitor in list(_monitors):
        with contextlib.suppress(Exception):
            monitor._after_fork()


def _at_exit() -> None:
    for monitor in list(_monitors):
        monitor._close_at_exit()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
