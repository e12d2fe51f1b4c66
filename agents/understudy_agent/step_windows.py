"""What ranks sent since the last report to the control plane: step times, the last collective, the section.

Telemetry, so it may be lost: the oldest is dropped first, of the user that has most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from understudy_agent.process_watch import ProcessWatch
from understudy_agent.rank_messages import (
    CollectiveEntered,
    CollectiveTimesSeen,
    GpuUsed,
    Hello,
    RecorderSeen,
    SavesSeen,
    SectionEntered,
    StackSeen,
    Steps,
    TrainingSeen,
    Whereabouts,
)
from understudy_wire.hardware import Gpu
from understudy_wire.ranks import (
    PEERS_MAX,
    RANKS_PER_NODE_MAX,
    RECORDERS_PER_REPORT_MAX,
    STEPS_PER_WINDOW_MAX,
    Collective,
    CollectiveTimes,
    NcclSeen,
    RankWindow,
    Recorder,
    SavesFollowed,
    Training,
    Transfers,
)

Key = tuple[int, int, int, int, int]
"""Job, restart count, launch, rank and user."""

REPORTS_PER_PLACE = 10
"""A rank that hangs sends nothing new; its place is sent again every so many reports, in case one was lost."""

ENDS_SENT = 30
"""How often the end of a rank is sent: for about five minutes."""

Value = TypeVar("Value")

SECONDS_DIGITS = 6  # microseconds; the rest is noise and half of the report's size


@dataclass(slots=True)
class _Place:
    hello: Hello
    collective: Collective | None = None  # the last that it entered
    section: str | None = None
    gpu_uuid: str = ""
    stack: str = ""
    recorder: Recorder | None = None
    nccl: NcclSeen | None = None
    collective_times: CollectiveTimes | None = None
    process: ProcessWatch = field(init=False)
    training: Training | None = None
    saves: SavesFollowed | None = None
    ends_left: int | None = None  # how often it is still to be sent that the rank has ended; None: it has not
    reports_left: int = 0  # until it is sent again without new steps

    def __post_init__(self) -> None:
        self.process = ProcessWatch(self.hello.pid)


class WindowBuffer:
    def __init__(self, ranks_max: int = RANKS_PER_NODE_MAX) -> None:
        self._ranks_max = ranks_max
        self._windows: dict[Key, RankWindow] = {}
        self._places: dict[Key, _Place] = {}

    def add(self, hello: Hello, steps: Steps, user_id: int) -> None:
        key = _key(hello, user_id)
        own = [round(seconds, SECONDS_DIGITS) for seconds in steps.self_seconds]
        wall = [round(seconds, SECONDS_DIGITS) for seconds in steps.wall_seconds]
        data = [round(seconds, SECONDS_DIGITS) for seconds in steps.data_seconds]
        work, first = steps.work, steps.first_step
        transfers = {
            one.peer: [round(seconds, SECONDS_DIGITS) for seconds in one.seconds]
            for one in steps.transfers
            if len(one.seconds) == len(own)
        }
        if key not in self._places:
            self._keep(key, _Place(hello, reports_left=REPORTS_PER_PLACE))
        place = self._places[key]
        place.stack, place.recorder, place.nccl = "", None, None  # it goes on
        before = self._windows.pop(key, None)
        # A window has no gaps: after one (or a step back) only the newer steps count.
        if before is not None and before.first_step + len(before.self_seconds) == first:
            data = _appended(before.data_seconds, data, 0.0, len(before.self_seconds), len(own))
            work = _appended(before.work, work, None, len(before.self_seconds), len(own))
            earlier = {one.peer: one.seconds for one in before.transfers}
            transfers = {
                peer: _appended(earlier.get(peer, []), transfers.get(peer, []), 0.0, len(before.self_seconds), len(own))
                for peer in list({**earlier, **transfers})[:PEERS_MAX]
            }
            own, wall, first = before.self_seconds + own, before.wall_seconds + wall, before.first_step
        surplus = max(0, len(own) - STEPS_PER_WINDOW_MAX)
        if len(self._windows) >= self._ranks_max:
            del self._windows[_oldest_of_the_largest(self._windows)]
        self._windows[key] = msgspec.structs.replace(
            _window(hello, user_id),
            first_step=first + surplus,
            self_seconds=own[surplus:],
            wall_seconds=wall[surplus:],
            data_seconds=data[surplus:],
            work=work[surplus:],
            transfers=[Transfers(peer, seconds[surplus:]) for peer, seconds in transfers.items()],
        )

    def place(self, hello: Hello, message: Whereabouts, user_id: int) -> None:
        key = _key(hello, user_id)
        before = self._places.get(key)
        place = _Place(hello) if before is None else replace(before, hello=hello, ends_left=None, reports_left=0)
        if before is not None and before.hello.pid == hello.pid:
            place.process = before.process  # it knows for how long the process has done nothing
        match message:
            case CollectiveEntered():
                place.collective = Collective(**msgspec.structs.asdict(message))
            case SectionEntered(name):
                place.section = name
            case GpuUsed(uuid):
                place.gpu_uuid = uuid
            case StackSeen(text):
                place.stack = text
            case RecorderSeen():
                place.recorder = Recorder(**msgspec.structs.asdict(message))
            case CollectiveTimesSeen():
                place.collective_times = CollectiveTimes(**msgspec.structs.asdict(message))
            case TrainingSeen():
                place.training = Training(**msgspec.structs.asdict(message))
            case SavesSeen():
                place.saves = SavesFollowed(**msgspec.structs.asdict(message))
        self._keep(key, place)

    def note_nccl(self, hello: Hello, user_id: int, seen: NcclSeen) -> None:
        """What NCCL has answered to the agent. Dropped if the rank has gone meanwhile."""
        place = self._places.get(_key(hello, user_id))
        if place is not None:
            place.nccl, place.reports_left = seen, 0

    def enter(self, hello: Hello, user_id: int) -> None:
        """The rank has connected. One that had disconnected goes on, or another process has its place."""
        if _key(hello, user_id) in self._places:
            self._keep(_key(hello, user_id), _Place(hello))

    def leave(self, hello: Hello, user_id: int, *, ended: bool) -> None:
        """The rank disconnected: it is nowhere any more. Unless it is back meanwhile. `ended`: it closed itself."""
        key = _key(hello, user_id)
        last = self._places.get(key)
        if ended and (last is None or last.hello is hello):
            self._keep(key, _Place(hello, ends_left=ENDS_SENT))
        elif last is not None and last.hello is hello:
            del self._places[key]

    def _keep(self, key: Key, place: _Place) -> None:
        self._places.pop(key, None)
        if len(self._places) >= self._ranks_max:
            del self._places[_oldest_of_the_largest(self._places)]
        self._places[key] = place

    def take(self, gpus: Sequence[Gpu] = ()) -> list[RankWindow]:
        """`gpus` are those of this node: a rank names its GPU by UUID."""
        recorders = RECORDERS_PER_REPORT_MAX
        for key, last in list(self._places.items()):
            window = self._windows.get(key)
            if window is None and (last.reports_left > 0 or (last.recorder is not None and recorders <= 0)):
                last.reports_left = max(last.reports_left - 1, 0)
                continue
            last.reports_left = REPORTS_PER_PLACE - 1
            process = last.process.look() if window is None else None
            recorder = last.recorder if window is None else None
            nccl = last.nccl if window is None else None
            recorders -= recorder is not None
            window = window or _window(last.hello, key[-1])
            self._windows[key] = msgspec.structs.replace(
                window,
                collective=last.collective,
                section=last.section,
                stack=last.stack,
                training=last.training,
                saves=last.saves,
                gpu_index=_index(last.gpu_uuid, gpus, window.gpu_index),
                ended=last.ends_left is not None,
                recorder=recorder,
                process=process,
                nccl=nccl,
                collective_times=last.collective_times,
            )
            last.collective_times = None
            if last.ends_left is not None:
                last.ends_left -= 1
                if last.ends_left <= 0:
                    del self._places[key]
        while len(self._windows) > self._ranks_max:  # the control plane refuses a report with more
            del self._windows[_oldest_of_the_largest(self._windows)]
        windows = list(self._windows.values())
        self._windows.clear()
        return windows


def _appended(before: list[Value], after: list[Value], missing: Value, count: int, more: int) -> list[Value]:
    """Either may be empty; then its `count` or `more` values are missing."""
    if not before and not after:
        return []
    return (before or [missing] * count) + (after or [missing] * more)


def _index(uuid: str, gpus: Sequence[Gpu], otherwise: int | None) -> int | None:
    """CUDA accepts the beginning of a UUID, too, where it is the only one."""
    named = [gpu.index for gpu in gpus if uuid and gpu.uuid.startswith(uuid)]
    return named[0] if len(named) == 1 else otherwise


def _oldest_of_the_largest(held: Mapping[Key, object]) -> Key:
    largest = Counter(user for *_, user in held).most_common(1)[0][0]
    return next(key for key in held if key[-1] == largest)


def _key(hello: Hello, user_id: int) -> Key:
    return (hello.job_id, hello.restart_count, hello.launch, hello.rank, user_id)


def _window(hello: Hello, user_id: int) -> RankWindow:
    return RankWindow(
        job_id=hello.job_id,
        restart_count=hello.restart_count,
        rank=hello.rank,
        world_size=hello.world_size,
        gpu_index=hello.gpu_index,
        launch=hello.launch,
        user_id=user_id,
        role=hello.role,
        dp_rank=hello.dp_rank,
    )
