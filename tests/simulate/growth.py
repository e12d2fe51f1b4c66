"""What the control plane keeps in memory while jobs, faults and recoveries come and go.

The churn of a simulated hour is followed by days without any job, in which all that is kept for a time is forgotten.
What is larger after each such round grows without end.
"""

from __future__ import annotations

from itertools import cycle

from tests.simulator.happen import TO_GANGS, TO_NODES, happen
from tests.simulator.scenario import Event, Kind
from tests.simulator.world import World
from understudy_controlplane.config import Notify
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.notify.notifier import Notifier

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
"""Gangs, of which the fourth has a launcher, and the third does not ask when to save."""
DAY_SECONDS = 24 * 3600.0


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
        """Passes days without any job."""
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
        self.core.file_tasks.look()
