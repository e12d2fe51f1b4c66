"""The class that training code uses.

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
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, SupportsFloat, SupportsInt, TypeVar, overload

from .checkpoints import Checkpoints
from .clocks import Clocks, FinishedStep, StepTimer, TransferClock, WaitingClock
from .collectives import Collective
from .evidence import answer_when_asked
from .file_system import DamagedObjectError, ObjectStoreError, absolute, file_size, tier_of
from .gpu import gpu_index as index_of_gpu
from .gpu import gpu_uuid
from .identity import IdentityError, hides_its_job, is_outside, launcher_restore_point, read_identity, socket_path
from .link import SHARE_OUTPUT, Link, hello_message
from .never_raise import log, never_raise
from .outbox import DATA_SECONDS_MIN, TEXT_CHARACTERS_MAX, Outbox, step_number
from .program_files import program_files
from .restart import Aborted
from .restore import (
    DamagedFileError,
    RestorePoint,
    RestorePointUnknownError,
    fetched,
    hook_failed,
    is_of_gang,
    is_there,
    nearest,
    read_point,
)
from .training import VALUE_MAX
from .training_inputs import training_inputs

AGENT_WAIT_SECONDS = 10.0
"""How long to wait for an agent that may be restarting."""
RESTORE_SECONDS = 1800.0
"""How long a rank waits to know where to continue while no control plane answers; it could be an upgrade."""
OTHERWISE_SECONDS = 60.0
"""The same where the training has an answer of its own."""
AGENT_AWAY_SECONDS = 60.0
"""How long to wait for an agent that was there: one that is upgraded is back in seconds."""
ANSWER_SECONDS = 60.0
"""Time for one answer of the agent: one that is started again is asked again."""
WAITING_SHOWN_SECONDS = 60.0
ASK_AGAIN_SECONDS = 1.0
SECTION_CHARACTERS_MAX = 64
ERROR_CHARACTERS_MAX = 500
FILES_MAX = 257
"""One rank's files in a checkpoint: one, and what the agent takes in addition."""
EXIT_SECONDS_MAX = 5.0
"""How long a process that ends without close() waits for acknowledgements."""


Other = TypeVar("Other")
Number = TypeVar("Number", bound=SupportsInt)
"""A step's: an int, or a scalar of NumPy or torch."""


NOTHING_MORE: Mapping[str, object] = {}

STOP: Any = object()
"""The default of `otherwise`."""


class Monitor:
    """Reports this rank to its node's agent. One per process; in the child of a fork it does nothing.

    Only restore_point() raises, and no method delays the training for longer than the caller asks for. In a process
    that is no rank of a Slurm job, or has no agent, every other method does nothing; one line is logged.
    """

    _link: Link | None
    """None: not active."""

    def __init__(  # noqa: PLR0913 - the last two by name only
        self,
        gpu_index: int | None = None,
        role: str = "",
        socket: str | None = None,
        dp_rank: int | None = None,
        flops_per_token: SupportsFloat | None = None,
        *,
        config_file: str | os.PathLike[str] = "",
        data_version: str = "",
    ) -> None:
        """`gpu_index` is the GPU's index on this node as NVML counts; by default the GPU is found out with the first
        step. `role` is such as "stage0": ranks are compared with ranks of the same role only. `socket` is the agent's
        socket, if it is not in UNDERSTUDY_SOCKET. `dp_rank` is the data-parallel rank in a job with pipeline stages or
        tensor parallelism: ranks that have the same one process the same batches. `flops_per_token` is what the model
        needs for one token, forward and backward: with the tokens that are observed it gives the job's MFU.
        `config_file` is what configures the training, several separated by colons, and `data_version` names its data:
        else UNDERSTUDY_CONFIG_FILE and UNDERSTUDY_DATA_VERSION. Where one of them, or the code, changes between two
        attempts, that is shown.
        """
        self._prepare()
        try:
            identity = read_identity(os.environ, sys.argv)
            hello = hello_message(identity, index_of_gpu(os.environ) if gpu_index is None else gpu_index, role, dp_rank)
            self._names_gpu = gpu_index is None
            self._is_first_rank = self._outbox.shows = self._outbox.save_steps.shows = identity.rank == 0
            self._outbox.training.flops_per_token = _number(flops_per_token)
            link = Link(socket_path(os.environ, socket), hello, self._outbox, self._take_answer)
            link.start()
            self._outbox.inspector.start(os.environ)
            if self._is_first_rank:
                self._name_inputs(link, config_file, data_version)
            answer_when_asked(self._outbox.collectives.latest)
        except IdentityError as error:
            self._outside = is_outside(os.environ, socket_path(os.environ, socket))
            begins = ", and training begins at its start where no otherwise= is given"
            if hides_its_job():
                begins += ". A container of a Slurm job needs the job's variables, and the agent's folder mounted"
            unknown = ", and where to continue is not known: pass Slurm's variables on to the ranks"
            text = "understudy: this process is no rank of a Slurm job (%s): nothing is reported%s"
            log.warning(text, error, begins if self._outside else unknown)
        except (OSError, RuntimeError) as error:  # no more files or threads
            log.warning("understudy: the hook cannot run here: nothing is reported: %r", error)
        else:
            self._link = link

    def _prepare(self) -> None:
        """Everything but the link."""
        self._waiting = WaitingClock()
        self._data = WaitingClock()
        self._transfers = TransferClock(self._waiting)
        self._clocks = Clocks(self._waiting, self._data, self._transfers)
        self._outbox = Outbox()
        self._names_gpu = False
        self._is_first_rank = False
        self._start_shown = False
        self._outside = False
        """There is no Slurm job, as on a workstation."""
        self._number: SupportsInt | None = None
        self._questions: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._shards: queue.SimpleQueue[tuple[int, str, list[tuple[str, str]], bool] | None] = queue.SimpleQueue()
        self._shard_reader: threading.Thread | None = None
        self._watches: list[Callable[[], None]] = []
        self._restored: RestorePoint | None = None
        self.checkpoints = Checkpoints(self)
        self._link = None
        _monitors.add(self)  # one that is not active takes locks, too

    def __deepcopy__(self, memo: dict[int, object]) -> Monitor:
        return self

    def __reduce__(self) -> tuple[Callable[[], Monitor], tuple[()]]:
        """A copy in another process is not active: that process is no rank."""
        return (_inactive_monitor, ())

    @property
    def active(self) -> bool:
        """This is a rank of a Slurm job, and the monitor is not closed. An agent may still be absent."""
        return self._link is not None

    @overload
    def restore_point(self, timeout_seconds: float | None = None) -> RestorePoint: ...

    @overload
    def restore_point(self, timeout_seconds: float | None = None, *, otherwise: Other) -> RestorePoint | Other: ...

    def restore_point(self, timeout_seconds: float | None = None, *, otherwise: Any = STOP) -> Any:
        """The place where this attempt of the job continues, the same for all its ranks: a checkpoint to restore, or
        the beginning where nothing was ever saved.

        If it is not known, RestorePointUnknownError is raised, which ends the job unless it is caught; or `otherwise`
        is returned, where it is given.

        Outside of Slurm, as on a workstation, nothing is known of any checkpoint: it is the beginning, or `otherwise`.

        While the control plane is away, as during an upgrade, this waits: a job that ends instead has lost its place in
        the queue, and its launches. Rank 0 writes a line each minute. By default this waits up to half an hour, and a
        minute where `otherwise` is given. For an agent on the node it waits 10 s, and a minute for one that went away.

        A checkpoint in an object store is fetched first, which takes its time; the path is of what was fetched.

        While no control plane answers, the ranks of a launcher's gang get the newest checkpoint that the launcher knows
        to be complete, at once and without asking.
        """
        if self._outside:
            return RestorePoint(0, "") if otherwise is STOP else otherwise
        try:
            if timeout_seconds is None:
                timeout_seconds = RESTORE_SECONDS if otherwise is STOP else OTHERWISE_SECONDS
            return self._restore_point(timeout_seconds)
        except Exception as error:  # noqa: BLE001 - a fault in the hook makes it unknown
            unknown = error if isinstance(error, RestorePointUnknownError) else hook_failed(error)
            if otherwise is STOP:
                raise unknown from None
            if self.active:  # that it is not was logged before
                log.warning("understudy: where to continue is not known: %s; otherwise %r", unknown.cause, otherwise)
            return otherwise

    def _restore_point(self, timeout_seconds: float) -> RestorePoint:
        """Raises RestorePointUnknownError."""
        link = self._link
        if link is None:
            raise RestorePointUnknownError("this process is no rank of a Slurm job, or its monitor is closed")
        known = launcher_restore_point(os.environ)
        if known is not None:
            link.warn_once(
                "launcher", "no control plane answers: continuing from step %d, %s, named by the launcher", *known
            )
            return self._fetch(link, RestorePoint(*known), {})
        deadline = time.monotonic() + timeout_seconds
        if not link.connected.wait(min(timeout_seconds, AGENT_WAIT_SECONDS)):
            raise RestorePointUnknownError("no agent of Understudy answers on this node")
        reason = "no answer"
        shown_at = time.monotonic()
        while (left_seconds := deadline - time.monotonic()) > 0:
            away_seconds = link.away_seconds()
            if away_seconds >= AGENT_AWAY_SECONDS:
                raise RestorePointUnknownError("the agent of Understudy on this node went away, and did not come back")
            wait_seconds = min(left_seconds, ANSWER_SECONDS, AGENT_AWAY_SECONDS - away_seconds)
            answer = self._ask(link, {"type": "restore_point", "looks": True}, wait_seconds) or {"error": reason}
            if answer.get("type") == "restore_point":
                point = read_point(answer)
                if not answer.get("look"):
                    self._show_start(point, str(answer.get("line") or ""))
                    self._restored = nearest(point, answer)
                    return self._fetch(link, self._restored, answer)
                try:
                    self._look(link, point, answer, wait_seconds)
                    continue
                except ObjectStoreError as error:
                    answer = {"error": f"whether the checkpoint of step {point.step} is there is not known: {error}"}
            reason = str(answer.get("error"))
            if answer.get("final"):
                raise RestorePointUnknownError(reason)
            if self._is_first_rank and time.monotonic() - shown_at >= WAITING_SHOWN_SECONDS:
                shown_at = time.monotonic()
                log.warning("understudy: waits, as it is not known where to continue: %s", reason)
            time.sleep(max(0.0, min(ASK_AGAIN_SECONDS, deadline - time.monotonic())))
        raise RestorePointUnknownError(f"no restore point within {timeout_seconds:g} s: {reason}")

    def _show_start(self, point: RestorePoint, line: str) -> None:
        """One line for each start, in the output of rank 0."""
        if self._is_first_rank and not self._start_shown:
            self._start_shown = True
            otherwise = f"continues from step {point.step}, {point.path}" if point.path else "begins at step 0"
            log.warning("understudy: job %s %s", os.environ.get("SLURM_JOB_ID", ""), line or otherwise)

    def _look(self, link: Link, point: RestorePoint, answer: dict[str, Any], timeout_seconds: float) -> None:
        """Raises ObjectStoreError: a store that does not answer says nothing of the checkpoint."""
        sizes = {one["file"]: one["size_bytes"] for one in answer.get("look_sizes") or ()}
        try:
            seen = is_there(point.path, str(answer.get("look_file") or ""), sizes)
        except DamagedFileError as error:
            self._report_restore(link, point, "missing", timeout_seconds, str(error)[:ERROR_CHARACTERS_MAX])
        else:
            self._report_restore(link, point, "seen" if seen else "missing", timeout_seconds)

    def _fetch(self, link: Link, point: RestorePoint, answer: dict[str, Any]) -> RestorePoint:
        """Raises RestorePointUnknownError. What is damaged or not there is reported as what cannot be restored."""
        try:
            return fetched(point, answer)
        except (ObjectStoreError, OSError) as error:
            if isinstance(error, (DamagedObjectError, FileNotFoundError)):
                outcome = "missing" if isinstance(error, FileNotFoundError) else "failed"
                self._report_restore(link, point, outcome, EXIT_SECONDS_MAX, _described(error, str(error)))
            raise RestorePointUnknownError(f"the checkpoint of step {point.step} was not fetched: {error}") from error

    @never_raise
    def restore_failed(self, error: object = "") -> None:
        """Reports that the checkpoint that restore_point() named could not be restored. When that has happened in two
        attempts, the one before it is named. Waits until the control plane has it, because the process may end next.
        """
        link, point = self._link, self._restored
        if link is None or point is None or not point.path or is_of_gang(error):
            return
        outcome = "missing" if isinstance(error, FileNotFoundError) else "failed"
        self._report_restore(link, point, outcome, EXIT_SECONDS_MAX, _described(error, repr(error)))

    def _report_restore(
        self, link: Link, point: RestorePoint, outcome: str, timeout_seconds: float, error: str = ""
    ) -> None:
        report = {"type": "restore", "step": point.step, "path": point.path, "outcome": outcome, "error": error}
        self._ask(link, {**report, "at": time.time()}, timeout_seconds)

    def steps(self, numbers: Iterable[Number]) -> Iterator[Number]:
        """Yields the numbers and times the body of the loop as one step for each.

        Checkpoints and logging count if they are in the body; the time that `numbers` takes to yield the next one is
        waiting for data. `continue` ends a step as the end of the body does. A step that is left with `break`, `return`
        or an exception may be incomplete and does not count.
        """
        remaining = iter(numbers)
        while True:
            begun = time.perf_counter()
            try:
                number = next(remaining)
            except StopIteration:
                return
            if (seconds := time.perf_counter() - begun) > DATA_SECONDS_MIN:
                self._data.add(seconds)
            with self.step(number):
                yield number

    def step(self, number: SupportsInt, work: SupportsFloat | None = None) -> AbstractContextManager[None]:
        """Times one training step; costs a few microseconds. A step that ends in an exception does not count.

        `work` is how much this rank has to do in it, in any unit of which time is a linear function: tokens, or the sum
        of the squares of sequence lengths. Ranks are then compared without what their work explains.
        """
        if self._link is None:
            return contextlib.nullcontext()
        return StepTimer(number, work, self._clocks, self._begin_step, self._end_step, self._finish_step)

    def data_wait(self) -> AbstractContextManager[None]:
        """The training thread waits for data within this block: `with monitor.data_wait(): batch = next(loader)`. In a
        step or between two; the time is no part of the rank's own, and is compared by itself.
        """
        return self._data

    def waiting(self) -> AbstractContextManager[None]:
        """The rank waits for other ranks within this block: the time does not count as its own."""
        return self._waiting

    def transfer(self, peer: SupportsInt) -> AbstractContextManager[None]:
        """Around a transfer with one other rank that blocks until it is done, as a receive of a pipeline: its time
        counts as waiting, and for this peer (its global rank). It shows between which ranks transfers are slow.
        """
        return self._transfers.with_peer(peer)

    def transferred(self, peer: SupportsInt, seconds: float) -> None:
        """Adds such time that was measured elsewhere, as by events of a GPU."""
        self._waiting.add(seconds)
        self._transfers.add(peer, seconds)

    def collective(self, name: str) -> Collective:
        """Around a collective, or as a decorator: its time counts as waiting. The last one that was entered explains a
        hang.
        """
        return Collective(name, self._outbox.collectives, self._waiting)

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Around what takes long and is no step: "evaluation", "checkpoint", "startup". How long it takes is learnt by
        its name: a gang in it counts as hung when it takes several times as long as before.
        """
        link, before = self._link, self._outbox.section
        self._outbox.section = str(name)[:SECTION_CHARACTERS_MAX]
        if link is not None:
            link.wake()
        try:
            yield
        finally:
            self._outbox.section = before
            if link is not None:
                link.wake()

    @never_raise
    def observe(
        self,
        loss: SupportsFloat | None = None,
        grad_norm: SupportsFloat | None = None,
        tokens: SupportsFloat | None = None,
    ) -> None:
        """Loss and gradient norm of this step, or of the last one, and the tokens that this rank's replica processed in
        it. Call it in each step, on each rank.

        NaN, or a jump to five times the usual value, make checkpoints suspect that are written from that step on. Pass
        numbers that are on the host already: a tensor on a GPU is waited for, as item() does.
        """
        if self._link is not None:
            self._outbox.values.append(
                (
                    self._number,
                    loss if loss is None or type(loss) is float else float(loss),
                    grad_norm if grad_norm is None or type(grad_norm) is float else float(grad_norm),
                    tokens if tokens is None or type(tokens) is float else float(tokens),
                    time.monotonic(),
                )
            )

    @never_raise
    def checkpoint_saved(
        self, step: SupportsInt, path: str | os.PathLike[str], file: str | None = ".", checksum: str = ""
    ) -> None:
        """Announces that this rank's part of a checkpoint is written. The checkpoint is complete when every rank has
        announced its part of the same `path`.

        `path` is a directory that all ranks share, and `file` this rank's shard in it; or `path` is a checkpoint of
        one file, which this rank wrote ("."). None: other ranks wrote this rank's part.
        Training continues with `step` after a restore. `checksum` is that of a SummedFile, which is made while the file
        is written: the file is not read again. It must not change any more.
        """
        self._announce(step, path, [(str(file or ""), checksum)])

    @never_raise
    def _announce(
        self,
        step: SupportsInt,
        path: str | os.PathLike[str],
        files: list[tuple[str, str]],
        more: Mapping[str, object] = NOTHING_MORE,
    ) -> None:
        """`files` are this rank's, each with its checksum, at least one. `more` are further fields of the notice."""
        link = self._link
        if link is None or Aborted.now:
            return
        directory, number = os.path.abspath(path), step_number(step)
        longest = max(len(text) for text in (directory, *(name for name, _ in files)))
        if number is None or longest > TEXT_CHARACTERS_MAX or len(files) > FILES_MAX:
            link.warn_once("checkpoint", "the checkpoint of step %.50r in %.200s is not announced", step, directory)
            return
        self._outbox.check_values()  # anomalies are reported before the checkpoint
        shard = {"step": number, "path": directory, "file": files[0][0], "checksum": files[0][1]}
        identifier = self._outbox.add_notice({"type": "shard", **shard, **more, "at": time.time()})
        self._shards.put((identifier, directory, files, "tier" in more))
        if self._shard_reader is None:
            self._shard_reader = threading.Thread(
                target=self._read_shards, args=(link,), name="understudy-shards", daemon=True
            )
            self._shard_reader.start()

    @never_raise
    def _announce_deleted(self, step: SupportsInt, path: str | os.PathLike[str]) -> None:
        link, number = self._link, step_number(step)
        if link is not None and number is not None:
            directory = absolute(path)
            notice = {"type": "checkpoint_deleted", "step": number, "path": directory[:TEXT_CHARACTERS_MAX]}
            self._outbox.add_notice({**notice, "at": time.time()})
            link.wake()

    @never_raise
    def close(self, timeout_seconds: float = 10.0) -> None:
        """Waits until the control plane has acknowledged every announcement, if there is an agent.

        A process that ends without it does the same, for at most EXIT_SECONDS_MAX.
        """
        link, self._link = self._link, None
        if link is None:
            return
        deadline = time.monotonic() + timeout_seconds
        self._outbox.check_values()
        link.wake()
        if link.connected.wait(min(1.0, timeout_seconds)):
            left_seconds = max(0.0, deadline - time.monotonic())
            if not self._outbox.wait_until_settled(left_seconds):
                link.warn_once("close", "announcements were not acknowledged within %g s", timeout_seconds)
        self._shards.put(None)
        link.close(max(0.1, deadline - time.monotonic()))

    def unwatch(self, settle: Callable[[], None]) -> None:
        if settle in self._watches:
            self._watches.remove(settle)

    def watch(self, settle: Callable[[], None]) -> None:
        """Calls `settle` at the end of every step, which adds time that was measured elsewhere with waited(). It must
        not raise.
        """
        self._watches.append(settle)

    def waited(self, seconds: float) -> None:
        """Adds time of this step spent waiting for other ranks, measured elsewhere."""
        self._waiting.add(seconds)

    def waited_for_data(self, seconds: float) -> None:
        """Adds time spent waiting for data, measured elsewhere: it counts for the step that ends next."""
        self._data.add(seconds)

    @property
    def has_anomaly(self) -> bool:
        """NaN or a jump in what was observed lasts."""
        if self._link is not None:
            self._outbox.check_values()
        return self._outbox.has_anomaly

    @property
    def step_number(self) -> int | None:
        """The step under way, or the last one."""
        return None if self._number is None else step_number(self._number)

    @property
    def test_after(self) -> int | None:
        """The step after which the control plane wants the GPU to be tested (`compute`); None: it ordered no test."""
        return self._outbox.training.test_after

    def note_compute(self, step: int, seconds: float, all_reduce: float | None = None) -> None:
        """How long the tests of the GPU took after this step (`compute`)."""
        self._outbox.training.compute = (step, seconds, all_reduce)

    def note_wrong_result(self, step: int, how: str) -> None:
        """Reports that this step, computed again, gave another result (`recompute`)."""
        link = self._link
        if link is not None:
            notice = {"type": "anomaly", "kind": "recompute_differs", "step": step, "value": how[:64], "usual": 0.0}
            self._outbox.add_notice({**notice, "at": time.time()})
            link.wake()

    def note_entered(self, name: str) -> None:
        """Records a collective that does not block this thread; call note_left() when it is done."""
        self._outbox.collectives.enter(name)

    def note_left(self) -> None:
        self._outbox.collectives.leave()

    def _begin_step(self, number: SupportsInt) -> None:
        self._outbox.collectives.step = self._number = number

    def _end_step(self) -> None:
        self._outbox.collectives.step = None
        for settle in self._watches:
            settle()
        self.checkpoints.note_training()

    def _after_fork(self) -> None:
        """The child, such as a data loader's worker, is no rank and must not use its parent's connection."""
        link, self._link = self._link, None
        self._waiting.after_fork()
        self._data.after_fork()
        self._outbox.after_fork()
        self.checkpoints.after_fork()
        self._watches.clear()
        self._outbox.first_step_open = False
        if link is not None:
            link.abandon()

    def _finish_step(self, finished: FinishedStep) -> None:
        self._outbox.steps.append(finished)
        self._outbox.stall.progressed()
        if self._outbox.first_step_open and (step := step_number(finished.number)) is not None:
            self._outbox.look_for_communicator()
            self._outbox.first_step_open = False
            at = {"at": time.time(), "communicator_at": self._outbox.communicator_at}
            self._outbox.add_notice({"type": "first_step", "step": step, **at})
            self._name_gpu()
            if self._is_first_rank:
                self._outbox.program = program_files
            if self._link is not None:
                self._link.wake()

    def _name_inputs(self, link: Link, config_file: str | os.PathLike[str], data_version: str) -> None:
        """Runs in a thread of its own: a file system may be slow."""

        @never_raise
        def look() -> None:
            self._outbox.inputs = training_inputs(os.fspath(config_file or ""), data_version, os.environ)._asdict()
            link.wake()

        threading.Thread(target=look, name="understudy-inputs", daemon=True).start()

    @never_raise
    def _name_gpu(self) -> None:
        """Called in the training thread after its first step: it has chosen its device, which is its own for each
        thread.
        """
        if self._names_gpu:
            self._outbox.gpu_uuid = gpu_uuid(os.environ)

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
            self._outbox.settle(answer["id"])  # or the link would send it again before the asker wakes
            question.put(answer)
            return
        notice = self._outbox.settle(answer["id"])
        if answer.get("type") == "error" and notice is not None:
            log.warning("understudy: the control plane refused %s: %s", notice, answer.get("error"))

    def _read_shards(self, link: Link) -> None:
        while (shard := self._shards.get()) is not None:
            identifier, directory, files, is_named = shard
            try:
                sizes = [file_size(directory, name) for name, _ in files]
            except OSError as error:
                self._outbox.settle(identifier)
                log.warning("understudy: the checkpoint in %s is not announced: %s", directory, error)
            else:
                more = [
                    {"file": name, "size_bytes": size, "checksum": checksum}
                    for (name, checksum), size in zip(files[1:], sizes[1:])
                ]
                tier = "" if is_named else tier_of(directory)
                found = {"size_bytes": sizes[0], **({"more": more} if more else {}), **({"tier": tier} if tier else {})}
                self._outbox.complete_notice(identifier, found)
            link.wake()


def _described(error: object, text: str) -> str:
    """A user who keeps output to the job keeps the exception's text from the control plane, too."""
    return type(error).__name__ if os.environ.get(SHARE_OUTPUT) == "0" else text[:ERROR_CHARACTERS_MAX]


def _number(value: SupportsFloat | None) -> float | None:
    """None for what is no number from 0 on."""
    try:
        number = float(value) if value is not None else -1.0
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    return number if 0 <= number <= VALUE_MAX else None


def _inactive_monitor() -> Monitor:
    log.warning("understudy: the monitor came from another process: nothing is reported from this one")
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
        if monitor._link is not None:
            monitor.close(EXIT_SECONDS_MAX if monitor._link.connected.is_set() else 0.1)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
