"""Step times of one attempt of a job: one row a rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from understudy_controlplane.fleet.job import FIRST_ATTEMPT, Attempt, JobKey
from understudy_wire.places import Place
from understudy_wire.ranks import NcclSeen, ProcessNow, Recorder, Training

BLOCK_STEPS = 100
BLOCKS_KEPT = 3
"""A gang counts as slow when each of so many blocks was."""

STEP_SECONDS_MIN = 1e-3
"""Least time of a step that trains something."""

SECTIONS_MAX = 32
"""Names of sections that are remembered for a job: users choose them."""


@dataclass(frozen=True, slots=True)
class Block:
    """BLOCK_STEPS consecutive steps of a gang."""

    begun_at: float  # when the first of them was reported
    seconds: float  # of the median step
    self_seconds: float = 0.0  # of the median step of the rank that they are of; 0: not known
    data_seconds: float = 0.0  # the mean time that this rank waited for data
    nodes: tuple[str, ...] = ()  # of the gang, by rank
    attempt: Attempt = FIRST_ATTEMPT
    tokens_per_second: float = 0.0  # the median of what this rank reported of its replica; 0: nothing

    def slower_than(self, other: Block) -> float:
        """How many times as long it takes: for a token, where both report their tokens, because a step may have more of
        them than before; else for a step.
        """
        if self.tokens_per_second and other.tokens_per_second:
            return other.tokens_per_second / self.tokens_per_second
        return self.seconds / other.seconds

    def with_tokens_of(self, other: Block) -> Block:
        """What its steps would have taken with as many tokens as those of `other`."""
        scale = other.seconds / (self.seconds * other.slower_than(self))
        return replace(
            self,
            seconds=self.seconds * scale,
            self_seconds=self.self_seconds * scale,
            data_seconds=self.data_seconds * scale,
        )


@dataclass(frozen=True, slots=True)
class Durations:
    """The longest that anything of a job has taken while this process watched it. 0: not seen. Seconds."""

    startup: float = 0.0  # from the first rank that was heard to the first step
    pause: float = 0.0  # between two steps, without sections
    sections: Mapping[str, float] = field(default_factory=dict)  # by name
    blocks: tuple[Block, ...] = ()  # the newest, oldest first
    best: Block | None = None  # the fastest that was seen

    def with_block(self, block: Block) -> Durations:
        """Steps that take no time train nothing, as those that a program skips until it is where it was."""
        if block.seconds < STEP_SECONDS_MIN:
            return self
        best = self.best if self.best is not None and block.slower_than(self.best) >= 1 else block
        return replace(self, blocks=(*self.blocks, block)[-BLOCKS_KEPT:], best=best)

    def with_startup(self, seconds: float) -> Durations:
        return replace(self, startup=max(self.startup, seconds))

    def with_pause(self, seconds: float) -> Durations:
        return replace(self, pause=seconds) if seconds > self.pause else self

    def with_section(self, name: str, seconds: float) -> Durations:
        if name not in self.sections and len(self.sections) >= SECTIONS_MAX:
            return self
        return replace(self, sections={**self.sections, name: max(seconds, self.sections.get(name, 0.0))})


@dataclass(frozen=True, slots=True)
class Transfers:
    """Time that ranks spent in transfers with single peers, waiting for them included."""

    pairs: npt.NDArray[np.int64]  # shape (pairs, 2): a rank, and the peer that it waits for
    seconds: npt.NDArray[np.float32]  # shape (pairs, steps), steps as in `StepTable.self_seconds`; NaN: not reported


class TimedKind(NamedTuple):
    operation: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CommunicatorTimes:
    """What collectives of one communicator of NCCL took in the last minutes, as its ranks' GPUs timed them."""

    name: str
    purpose: str  # empty: not known
    ranks: tuple[int, ...]  # of the gang
    nodes: int
    seconds: Mapping[TimedKind, tuple[float, ...]]  # by minute, oldest first; only those of which all ranks are known


@dataclass(frozen=True, slots=True, eq=False)
class Communicators:
    """Those of a gang; the same object until another minute is over."""

    known: tuple[CommunicatorTimes, ...] = ()
    at: float = 0.0  # when it was made
    kept: dict[str, object] = field(default_factory=dict, compare=False, repr=False)  # as in `StepTable`


NO_COMMUNICATORS = Communicators()


@dataclass(frozen=True, slots=True)
class StepTable:
    """A consistent copy of the live step times.

    `self_seconds[rank, i]` is the self time of step `first_step + i`, NaN where it was not reported. Steps are numbered
    in the order in which they ended: as the program numbers them, until its numbers fall (an epoch, a second training).
    """

    job: JobKey
    attempt: Attempt
    first_step: int
    self_seconds: npt.NDArray[np.float32]  # shape (ranks, steps)
    last_step: npt.NDArray[np.int64]  # per rank, -1: none yet
    nodes: tuple[str, ...]  # per rank, "" unknown
    roles: tuple[str, ...]  # per rank
    gpus: tuple[int | None, ...]  # per rank: index on its node
    advanced_at: float  # when any rank last reported a new step; 0: none has
    heard_since: float = 0.0  # when any rank of the attempt was first heard
    unheard_seconds: float = 0.0  # since the last new step: of an agent of the gang, whose steps of that time are lost
    longest_pause_seconds: float = 0.0  # between two of its last steps, as they were reported; 0: there were no two
    sequences: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Per rank: which collective it entered last, -1: not reported."""
    inside: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    """Per rank: it had not come out of it."""
    furthest_collective: str = ""  # the name of the highest of them
    durations: Durations = field(default_factory=Durations)
    section: str = ""  # that a rank is in, besides steps; empty: none
    section_since: float = 0.0  # since when
    left_section_at: float = 0.0  # when a rank last left one; 0: none has
    replicas: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Per rank: its data-parallel replica, -1: not known. Empty: none is known."""
    data_seconds: npt.NDArray[np.float32] | None = None
    """Shape of `self_seconds`: time spent waiting for data, which is no part of it. None: no rank reports any."""
    work: npt.NDArray[np.float32] | None = None
    """Shape of `self_seconds`: how much work a step was, in a unit of the training's own. None: no rank reports it."""
    transfers: Transfers | None = None  # None: no rank reports any
    stacks: Mapping[int, str] = field(default_factory=dict)  # rank → where it stands still, innermost frame first
    at_rest: Mapping[int, tuple[Recorder | None, ProcessNow | None]] = field(default_factory=dict)
    """Rank → what its flight recorder and the kernel show, while it finishes no step."""
    nccl: Mapping[int, NcclSeen] = field(default_factory=dict)  # rank → what NCCL has answered its agent meanwhile
    communicators: Communicators = NO_COMMUNICATORS
    training: Mapping[int, Training] = field(default_factory=dict)  # rank → what it last reported of its training
    wall_seconds: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    """Per rank: duration of a step, the mean of its last report; NaN: none was reported."""
    count_from: int = 0  # what has to be taken off for the number that the program gave the newest step
    fell_at: float = 0.0  # when the program's numbers fell last; 0: they never did
    reached: int = -1  # the furthest step of the attempt that was known before any of its ranks was heard; -1: none
    ended: bool = False  # no rank is there any more: the job may do something else, such as an evaluation, or end
    kept: dict[str, object] = field(default_factory=dict, compare=False, repr=False)
    """What was found in these steps; tables of the same steps share it. Who keeps something says of what it is."""

    @property
    def furthest(self) -> int:
        """The newest step that any rank has finished, also before a restart of the control plane; -1: none."""
        newest = int(self.last_step.max(initial=-1))
        return newest if newest >= 0 else self.reached

    @property
    def place(self) -> Place:
        return Place(self.furthest, self.count_from)

    @property
    def number(self) -> int | None:
        """Number of the newest step, as the program counts; None: no rank has finished any."""
        return self.furthest - self.count_from if self.furthest >= 0 else None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A gang whose attempt or launch has ended, or was suspended, while it stood still, and which has finished no step
    since, whether or not it runs again.
    """

    table: StepTable  # as it was then
    at: float  # when that was


def restarts_without_progress(places: Iterable[Place], now: Place) -> int:
    """How many times in a row a gang was restarted without progress: where it stood still each time, oldest first."""
    furthest, last, count = -1, Place(), 0
    for place in places:
        count = count + 1 if place.step <= furthest or place.repeats(last) else 1
        furthest, last = max(furthest, place.step), place
    return count if now.step <= furthest or now.repeats(last) else 0
