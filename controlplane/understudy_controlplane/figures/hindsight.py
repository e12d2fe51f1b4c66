"""What would have shortened an incident: each part that took long, and what makes it shorter. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from understudy_controlplane.fleet.recovery import RecoveryKind

SHARE_MIN = 0.1
"""Share of the whole; shorter parts are left out."""

SECONDS_MIN = 1.0


@dataclass(frozen=True, slots=True)
class Course:
    """Course of one recovery of a gang, in seconds. None: not known, or not reached."""

    kind: RecoveryKind
    detect: float | None = None
    swap: float | None = None  # from the decision until the gang was requeued, or its launcher had begun again
    start: float | None = None  # until its last process had started
    communicator: float | None = None  # until its ranks had joined their process groups
    restore: float | None = None  # until its first step
    recompute: float | None = None  # steps done again
    approval: float | None = None
    held_by: Mapping[str, float] = field(default_factory=dict)  # guard → for how long
    tries: Mapping[str, int] = field(default_factory=dict)  # step → how often, where more than once


@dataclass(frozen=True, slots=True)
class Advice:
    seconds: float
    part: str
    what: str


def hindsight(courses: Iterable[Course]) -> list[Advice]:
    """The longest part first."""
    found = [one for course in courses for one in _of(course)]
    whole = sum(one.seconds for one in found)
    worth = [one for one in found if one.seconds >= max(SECONDS_MIN, SHARE_MIN * whole)]
    return sorted(worth, key=lambda one: -one.seconds)


def _of(course: Course) -> Iterator[Advice]:
    from_pool = course.kind is RecoveryKind.POOL_SWAP
    parts = (
        (course.detect, "until it was found", DETECT),
        (course.approval, "until a person approved it", APPROVAL),
        (course.swap, "until the gang had its nodes", SWAP_FROM_POOL if from_pool else SWAP_INSIDE),
        (course.start, "until its processes had started", START),
        (course.communicator, "until its process groups were joined", COMMUNICATOR),
        (course.restore, "until its first step", RESTORE),
        (course.recompute, "steps done again", RECOMPUTE),
    )
    yield from (Advice(seconds, part, what) for seconds, part, what in parts if seconds is not None)
    for guard, seconds in course.held_by.items():
        yield Advice(seconds, f"held back by {guard.replace('_', ' ')}", HELD)
    for step, tries in course.tries.items():
        yield Advice(SECONDS_MIN, f"{step} took {tries} tries", TRIES)


DETECT = (
    "A hook in the training script or the launcher confirms a dead node in seconds; without them silence has to last. "
    "The settings are in the section of the rule's signal."
)
APPROVAL = "Rules that have proven themselves can act without an approval: `understudy observed` names them."
SWAP_FROM_POOL = "A spare inside the job's own allocation, with `understudy run`, is taken in about a second."
SWAP_INSIDE = "The launcher's log says what it waited for; a warm standby takes less (`understudy help launcher`)."
START = "Prologs, containers and the start of Slurm's step take this time; warm standbys have done it."
COMMUNICATOR = (
    "Imports and the rendezvous take this time: warm standbys (`--preload`) have done the imports, and ranks that go "
    "on in their process (`--in-process`) keep them."
)
RESTORE = (
    "The model is made, the checkpoint is read and the first step warms up: standbys (`--preload`) shorten it, and "
    "state on local disks or in memory in the place of a shared file system."
)
RECOMPUTE = "Saving more often costs less: `understudy checkpoints show RUN` names the best interval."
HELD = "The guard keeps a wrong signal from draining the cluster; `understudy help decisions` names its setting."
TRIES = "Slurm refused it, or did not show its effect; the journal of the recovery has each answer."
