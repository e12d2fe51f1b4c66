"""What waits to be sent to the agent: finished steps, which may be lost, and notices, which may not.

The training thread fills it, the link's thread empties it. It is bounded: beyond the limit the oldest steps are lost.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .anomalies import AnomalyWatch
from .clocks import FinishedStep
from .collectives import CollectiveLog, Entered
from .inspector import InspectorWatch
from .never_raise import log, warn_once
from .recorder import RecorderWatch
from .save_steps import SaveSteps
from .stall import StallWatch
from .training import TrainingNumbers

STEPS_HELD_MAX = 4096
STEPS_PER_MESSAGE_MAX = 512  # what the agent takes in one line
NOTICES_HELD_MAX = 1024
VALUES_HELD_MAX = 4096
STEP_MAX = 2**53
TEXT_CHARACTERS_MAX = 2048  # of a path

DATA_SECONDS_MIN = 1e-4
"""Less is what the measuring itself takes."""

WORK_MAX = 1e30

PEERS_MAX = 6
RANK_MAX = 2**31 - 1
"""What the agent takes in one message."""


class Outbox:
    def __init__(self) -> None:
        self.collectives = CollectiveLog()
        self.stall = StallWatch()
        self.recorder = RecorderWatch()
        self.inspector = InspectorWatch()
        self.steps: deque[FinishedStep] = deque(maxlen=STEPS_HELD_MAX)
        """Appending to a deque needs no lock, and the training thread takes none."""
        self.values: deque[tuple[Any, float | None, float | None, float | None, float]] = deque(maxlen=VALUES_HELD_MAX)
        """Step, loss, gradient norm and tokens, as the training passed them, and when."""
        self.training = TrainingNumbers()
        self.save_steps = SaveSteps()
        self.shows = False
        """This rank writes what all ranks learn into the job's output: one line, and not one for each."""
        self.section = ""
        """What the training does besides steps, such as "evaluation"; empty: nothing that it names."""
        self.program: Callable[[], str] | None = None
        """Names the files with which this program has started; None: it has not made a step, or is not the one that
        names them.
        """
        self.inputs: dict[str, str] = {}
        """What this training runs with (`training_inputs`); empty: not known yet, or another rank names it."""
        self.gpu_uuid = ""
        """The GPU that this rank uses; empty: not known."""
        self.first_step_open = True
        self.communicator_at: float | None = None
        """When torch's process groups were first seen; None: not yet, or the training has none."""
        self._watch = AnomalyWatch()
        self._watch_lock = threading.Lock()
        self._lock = threading.Lock()
        self._notices: dict[int, dict[str, Any]] = {}
        self._last_id = 0
        self._empty = threading.Condition(self._lock)

    def add_notice(self, notice: dict[str, Any]) -> int:
        """Returns the id that the agent's answer will have. Beyond the limit the oldest notice is removed."""
        with self._lock:
            if len(self._notices) >= NOTICES_HELD_MAX:
                del self._notices[next(iter(self._notices))]
            self._last_id += 1
            self._notices[self._last_id] = notice | {"id": self._last_id}
            return self._last_id

    def check_values(self) -> None:
        """Turns anomalies among the values since the last call into notices. Takes too long for the training thread."""
        with self._watch_lock:
            while self.values:
                number, loss, grad_norm, tokens, at = self.values.popleft()
                step = step_number(number)
                if step is None:
                    continue
                self.training.add(step, loss, grad_norm, tokens, at)
                for notice in self._watch.add(step, loss, grad_norm):
                    self.add_notice(notice)
                    if self.shows:
                        _show(notice)

    def look_for_communicator(self) -> None:
        """PyTorch reports no end of `init_process_group`. A module that is being imported lacks attributes still."""
        is_initialized = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
        if self.communicator_at is None and is_initialized is not None and is_initialized():
            self.communicator_at = time.time()

    @property
    def has_anomaly(self) -> bool:
        return self._watch.is_open

    def complete_notice(self, identifier: int, more: dict[str, Any]) -> None:
        with self._lock:
            if identifier in self._notices:
                self._notices[identifier] |= more

    def settle(self, identifier: int) -> dict[str, Any] | None:
        """Forget a notice; returns it, or None when it was settled before."""
        with self._lock:
            notice = self._notices.pop(identifier, None)
            self._empty.notify_all()
            return notice

    def ready_notices(self) -> list[dict[str, Any]]:
        """Notices in the order in which they were added, without shards whose size is not known yet."""
        with self._lock:
            return [notice for notice in self._notices.values() if notice["type"] != "shard" or "size_bytes" in notice]

    def wait_until_settled(self, timeout_seconds: float) -> bool:
        with self._lock:
            return self._empty.wait_for(lambda: not self._notices, timeout_seconds)

    def after_fork(self) -> None:
        """A thread that does not exist in the child may hold the lock."""
        self._lock = threading.Lock()
        self._empty = threading.Condition(self._lock)
        self._watch_lock = threading.Lock()
        self.save_steps.after_fork()
        self.collectives.after_fork()

    def take_steps(self) -> Iterator[dict[str, Any]]:
        """Messages of consecutive steps, oldest first."""
        run: list[FinishedStep] = []
        first = 0
        while self.steps:
            step = self.steps.popleft()
            # The number may be a tensor, and converting it takes too long for the training thread.
            known = step_number(step.number)
            if known is None:
                warn_once("step", "steps must be numbered from 0: %.50r is not reported", step.number)
                continue
            if run and (known != first + len(run) or len(run) == STEPS_PER_MESSAGE_MAX):
                yield _steps_message(first, run)
                run = []
            if not run:
                first = known
            run.append(step)
        if run:
            yield _steps_message(first, run)


def _show(anomaly: dict[str, Any]) -> None:
    """One line in the job's output where an anomaly begins, and one where it is over."""
    what = str(anomaly["kind"]).replace("_nan", " is NaN").replace("_jump", f" jumped to {anomaly['value']}")
    if "until" in anomaly:
        log.warning(
            "understudy: %s since step %s, and is as before since step %s", what, anomaly["step"], anomaly["until"]
        )
    else:
        text = "understudy: %s since step %s: checkpoints from there on are suspect, and a restart passes them over"
        log.warning(text, what, anomaly["step"])


def step_number(value: Any) -> int | None:
    """None for a number that the agent would refuse."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number <= STEP_MAX else None


def collective_message(entered: Entered) -> dict[str, Any]:
    return {"type": "collective", **entered._asdict(), "step": step_number(entered.step)}


def _steps_message(first_step: int, run: list[FinishedStep]) -> dict[str, Any]:
    message: dict[str, Any] = {
        "type": "steps",
        "first_step": first_step,
        "self_seconds": [round(step.self_seconds, 6) for step in run],
        "wall_seconds": [round(step.wall_seconds, 6) for step in run],
    }
    if any(step.data_seconds > DATA_SECONDS_MIN for step in run):
        message["data_seconds"] = [round(step.data_seconds, 6) for step in run]
    if any(step.work is not None for step in run):
        message["work"] = [_work(step.work) for step in run]
    if any(step.transfers for step in run):
        message["transfers"] = _transfers(run)
    return message


def _transfers(run: list[FinishedStep]) -> list[dict[str, Any]]:
    """Transfers with the peers that took the most time."""
    by_peer: dict[int, list[float]] = {}
    for place, step in enumerate(run):
        for peer, seconds in (step.transfers or {}).items():
            if 0 <= peer <= RANK_MAX:
                by_peer.setdefault(peer, [0.0] * len(run))[place] += seconds
    most = sorted(by_peer, key=lambda peer: -sum(by_peer[peer]))[:PEERS_MAX]
    return [{"peer": peer, "seconds": [round(one, 6) for one in by_peer[peer]]} for peer in sorted(most)]


def _work(value: Any) -> float | None:
    """None for what is no work: not given, no number, negative or infinite."""
    try:
        number = float(value) if value is not None else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if 0 <= number <= WORK_MAX:
        return number
    if value is not None:
        warn_once("work", "work must be a number from 0 to %g: %.50r is not reported", WORK_MAX, value)
    return None
