"""What the control plane keeps in memory while jobs, faults and recoveries come and go.

The churn of a simulated hour is followed by days without any job, in which all that is kept for a time is forgotten.
What is larger after each such round grows without end.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Set
from enum import Enum
from itertools import cycle, pairwise
from types import FunctionType, MethodType, ModuleType
from typing import Any

import msgspec
import numpy as np

from understudy_controlplane.config import Notify
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.notify.notifier import Notifier
from understudy_controlplane.simulate.happen import TO_GANGS, TO_NODES, happen
from understudy_controlplane.simulate.scenario import Event, Kind
from understudy_controlplane.simulate.world import World

FAULTS = (
    Kind.XID,
    Kind.RANK_HANGS,
    Kind.XID_OF_PROGRAM,
    Kind.NODE_DIES,
    Kind.SLOW,
    Kind.LOSS_NAN,
    Kind.ASKS_TO_SAVE,
    Kind.MOVES_JOB,
    Kind.DRAINS,
    Kind.USERS_BLAME,
    Kind.CRASHES,
    Kind.PORT_DOWN,
    Kind.HOLDS,
    Kind.LEAKS,
    Kind.TESTS,
    Kind.PAUSES_JOB,
    Kind.REQUEUES,
)
NUMBERS = {Kind.XID: 79, Kind.XID_OF_PROGRAM: 13}
ENDS_WITH = {Kind.DRAINS: Kind.RESUMES, Kind.HOLDS: Kind.RELEASES}
AT_ONCE = 3
GANGS = 5
"""Of which the fourth has a launcher, and the third does not ask when to save."""
DAY_SECONDS = 24 * 3600.0

OWN = ("understudy", "prometheus_client", "tests.simulate.growth")
NOT_OWN = ("understudy_controlplane.simulate.", "understudy_controlplane.migrations.")
ATOMS = (str, bytes, int, float, complex, Enum, type, ModuleType, type(None))


def sizes(root: object, name: str) -> Counter[str]:
    """How many elements all containers together have that are reached in the same way, such as `core.loop._seen`. The
    elements of a container are all called `[]`. Each container is counted once.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    held: list[object] = []  # what is made here: its id must stay its own
    queue: deque[tuple[str, Any]] = deque([(name, root), *_of_modules()])
    while queue:
        path, one = queue.popleft()
        if isinstance(one, ATOMS) or id(one) in seen:
            continue
        seen.add(id(one))
        held.append(one)
        if isinstance(one, np.ndarray | bytearray):
            found[path] += len(one)
        elif isinstance(one, Mapping):
            found[path] += len(one)
            queue.extend((f"{path}[]", each) for pair in list(one.items()) for each in pair)
        elif isinstance(one, list | tuple | Set | deque):
            found[path] += len(one)
            queue.extend((f"{path}[]", each) for each in list(one))
        else:
            queue.extend(_parts(path, one, found))
    return found


def _of_modules() -> Iterator[tuple[str, object]]:
    """Values of the control plane's modules and classes."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith("understudy_controlplane.") and not name.startswith(NOT_OWN):
            for key, value in vars(module).items():
                if isinstance(value, type) and value.__module__ == name:
                    yield from ((f"{name}.{key}.{own}", each) for own, each in vars(value).items())
                yield f"{name}.{key}", value


def _parts(path: str, one: Any, found: Counter[str]) -> Iterator[tuple[str, object]]:
    if isinstance(one, functools.partial):
        yield from ((path, each) for each in (one.func, one.args, one.keywords))
    elif isinstance(one, MethodType):
        yield path, one.__self__
    elif isinstance(one, FunctionType):
        yield from ((path, cell.cell_contents) for cell in one.__closure__ or () if _is_set(cell))
    elif isinstance(one, functools._lru_cache_wrapper):
        if one.cache_info().maxsize is None:
            found[f"{path}()"] += one.cache_info().currsize
    elif type(one).__name__ == "Remembered":  # by the simulator, around a store
        yield path, one._store
    elif _is_own(type(one)):
        for key in _names(type(one)):
            yield f"{path}.{key}", getattr(one, key, None)
        yield from ((f"{path}.{key}", value) for key, value in list(getattr(one, "__dict__", {}).items()))


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _is_own(of: type) -> bool:
    module = of.__module__ + "."
    return module.startswith(OWN) and not module.startswith(NOT_OWN)


def _names(of: Any) -> tuple[str, ...]:
    if issubclass(of, msgspec.Struct):
        return tuple(of.__struct_fields__)
    slots = (getattr(one, "__slots__", ()) for one in of.__mro__)
    return tuple(key for own in slots for key in ((own,) if isinstance(own, str) else own) if not key.startswith("__"))


def growing(measured: list[Counter[str]], least: int) -> dict[str, list[int]]:
    """What has grown by at least so much each time."""
    pairs = list(pairwise(measured))
    return {
        path: [one[path] for one in measured]
        for path in sorted(measured[-1])
        if all(after[path] - before[path] >= least for before, after in pairs)
    }


class Churn:
    """Gangs of three nodes that come and go, three at a time, and a fault with each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._gangs = world.cluster.gangs
        self._faults = cycle(FAULTS)
        self._submitted = 0

    def pass_jobs(self, count: int) -> None:
        for _ in range(count):
            self._world.later(self._world.now, self._submit)
            self._pass(20.0)
            self._strike(next(self._faults))
            self._pass(20.0)

    def pass_days(self, days: float) -> None:
        """Without any job."""
        while self._gangs:
            self._end_oldest()
        self._pass(days * DAY_SECONDS)

    def _submit(self) -> None:
        self._world.submit_gang(self._submitted % GANGS, 3)
        self._submitted += 1
        if len(self._gangs) > AT_ONCE:
            self._end_oldest()

    def _end_oldest(self) -> None:
        job = self._world.jobs().get(self._gangs[0].job_id)
        runs = job is not None and job.state == "RUNNING"
        happen(self._world, Event(0.0, Kind.COMPLETES if runs else Kind.CANCELS, "0"))
        del self._gangs[0]

    def _strike(self, kind: Kind) -> None:
        gang = self._gangs[-1]
        name = (gang.seats or ("n16",))[0] if kind in TO_NODES else "-1" if kind in TO_GANGS else ""
        happen(self._world, Event(0.0, kind, name, 60.0, NUMBERS.get(kind, 0)))
        if kind in ENDS_WITH:
            undo = Event(0.0, ENDS_WITH[kind], name)
            self._world.later(self._world.now + 15.0, lambda: happen(self._world, undo))
        self._world.later(self._world.now, lambda: None)  # the control plane hears of it at once

    def _pass(self, seconds: float) -> None:
        self._world.pass_until(self._world.now + seconds)


class Beside:
    """What runs on threads of its own beside the loop: a round of each."""

    def __init__(self, world: World) -> None:
        self.core = world.core
        assert self.core is not None
        away = {"url_file": "/nonexistent/url"}
        receivers = {"pager": {"kind": "apprise", **away}, "alerts": {"kind": "alertmanager", **away}}
        notify = Notify.model_validate({"receivers": receivers})
        current = CurrentConfig(world.config.model_copy(update={"notify": notify}))
        self.notifier = Notifier(
            self.core.stores.notices, current, self.core.loop.pulse, world.clock, lambda _name, work: work()
        )

    def look(self) -> None:
        assert self.core is not None
        self.notifier.look()
        self.core.verifier.look()
        self.core.copier.look()
