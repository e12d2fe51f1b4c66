"""A control plane looks whether it reaches what it needs for its work: slurmctld, and the agents."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.decide.leadership import (
    AGENTS_MIN,
    RENEWAL_SECONDS,
    UNHEARD_SECONDS,
    UNREAD_SECONDS,
    CutFromSlurm,
    Unanswered,
)
from understudy_controlplane.fleet.holder import Standby
from understudy_controlplane.lease import boottime
from understudy_controlplane.live.leaders import Leaders
from understudy_controlplane.live.pulse import SlurmReading
from understudy_controlplane.observe.slurm_reader import SlurmReader, settings_of, unexpected
from understudy_controlplane.slurm.fenced import within
from understudy_controlplane.slurm.protocol import SlurmError, SlurmReads

log = structlog.get_logger()

ASK_SECONDS = 0.5
"""A question is asked where none was asked for this time. A leader's readings of Slurm are questions, too."""

READ_SECONDS = 10.0
READ_FACTOR = 10.0
"""A standby reads all of Slurm after this time, and for a tenth of its time at most."""

ANSWER_SECONDS = 1.0
"""A question that waits for longer was missed, unless it is answered later: a slow slurmctld is not away."""

PATIENCE_SECONDS = 2.5
"""Then a question is ended. A command that slurmctld does not answer goes on for ten seconds by itself."""

OPEN_MAX = 8
"""Questions at the same time."""

AGAIN_SECONDS = 0.25

KNOWN_SECONDS = 2.5
"""A standby that was answered within this time reaches slurmctld."""

REPORT = "it is tried again; report this error"

REPORTS = 20
QUIET_FACTOR = 3
"""Agents are silent after three times the longest quiet before the last twenty reports: some fleets report rarely. In
the minutes in which a leader learns that, it does not pass the lead on (`SETTLED_SECONDS`).
"""


class SlurmReach:
    """Asks in threads of their own: a question may wait, and the next one is asked meanwhile. Safe from any thread."""

    def __init__(self, slurm: SlurmReads, cluster: str, now: Callable[[], float] = boottime) -> None:
        self._slurm = slurm
        self._cluster = cluster
        self.now = now
        self._lock = threading.Lock()
        self._asked_at = self._answered_at = float("-inf")  # begins of the newest question, and of one with an answer
        self._noted_at = float("-inf")  # when the newest answer was counted
        self._since: float | None = None  # begin of the first question since the newest answer
        self._missed_at = float("-inf")  # begin of the newest one that has failed since then
        self._waiting: set[float] = set()  # begins of those under way
        self._open = 0
        self._problem = ""
        self.answers = 0
        """Each to a question that was begun after the answer before it."""

    def begin(self) -> None:
        threading.Thread(target=self._run, name="slurm reach", daemon=True).start()

    def problem(self) -> str:
        """Why slurmctld was not reached lately; empty: it was."""
        if self.now() - self._answered_at < KNOWN_SECONDS:
            return ""
        return self._problem or "slurmctld has not answered yet"

    def unanswered(self) -> Unanswered | None:
        """None: it was answered last."""
        with self._lock:
            now = self.now()
            late = (at for at in self._waiting if now - at >= ANSWER_SECONDS)
            return None if self._since is None else Unanswered(self._since, max(self._missed_at, *late, float("-inf")))

    def note_answer(self, begun: float | None = None) -> None:
        """`begun`: when the question was; None: it was a reading of Slurm."""
        with self._lock:
            now = self.now()
            begun = now if begun is None else begun
            self._since, self._missed_at = None, float("-inf")
            self._waiting.clear()
            if begun > self._noted_at:
                self.answers, self._noted_at = self.answers + 1, now
            self._asked_at, self._answered_at = max(self._asked_at, begun), max(self._answered_at, begun)

    def note_failure(self, begun: float, problem: str) -> None:
        with self._lock:
            self._problem = problem
            if begun in self._waiting:  # no answer came to a later one
                self._waiting.remove(begun)
                self._missed_at = max(self._missed_at, begun)

    def due(self) -> float | None:
        """The begin of a question that is to be asked now; None: it is too early."""
        with self._lock:
            now = self.now()
            if now - self._asked_at < ASK_SECONDS or self._open >= OPEN_MAX:
                return None
            self._asked_at, self._open = now, self._open + 1
            self._since = now if self._since is None else self._since
            self._waiting.add(now)
            return now

    def ask(self, begun: float) -> None:
        try:
            with within(PATIENCE_SECONDS):
                settings_of(self._slurm, self._cluster)
        except SlurmError as error:
            self.note_failure(begun, str(error))
        except Exception as error:  # nothing else is known of Slurm
            if self._problem != unexpected(error):
                log.exception("slurm_not_asked", error=unexpected(error), remedy=REPORT)
            self.note_failure(begun, unexpected(error))
        else:
            self.note_answer(begun)
        finally:
            with self._lock:
                self._open -= 1

    def _run(self) -> None:
        while True:
            time.sleep(AGAIN_SECONDS)
            begun = self.due()
            if begun is not None:
                self.start(begun)

    def start(self, begun: float) -> None:
        """Asks in a thread of its own; where the machine allows no other thread, the question has failed."""
        try:
            threading.Thread(target=self.ask, args=(begun,), name="slurm question", daemon=True).start()
        except RuntimeError as error:
            self.note_failure(begun, str(error))
            with self._lock:
                self._open -= 1


class SlurmTrial:
    """A standby's: reads Slurm as a leader does, now and then, and keeps nothing of it. What a leader refuses makes the
    standby unable to work, though slurmctld answers.
    """

    def __init__(self, slurm: SlurmReads, cluster: str, clock: Clock) -> None:
        self._reader = SlurmReader(slurm, cluster, clock)
        self._problem = "Slurm has not been read yet"
        self._over = threading.Event()

    def begin(self) -> None:
        threading.Thread(target=self._run, name="slurm trial", daemon=True).start()

    def end(self) -> None:
        self._over.set()

    def problem(self) -> str:
        """Why Slurm could not be read; empty: it could."""
        return self._problem

    def read(self) -> None:
        try:
            self._reader.read()
        except Exception as error:
            if self._problem != unexpected(error):
                log.exception("slurm_not_read", error=unexpected(error), remedy=REPORT)
        self._problem = self._reader.reading.error

    def _run(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            begun = boottime()
            self.read()
            pause = max(READ_SECONDS, READ_FACTOR * (boottime() - begun))


class AgentReach:
    """Counts looks and no time: a process that stood still heard nothing meanwhile."""

    def __init__(self) -> None:
        self._reports = 0
        self._quiet = 0  # looks since the newest report
        self._before: deque[int] = deque(maxlen=REPORTS)
        """Looks for which it was quiet before each of the last reports."""

    def are_silent(self, reports: int, nodes: int) -> bool:
        """Look every `RENEWAL_SECONDS`. `reports`, `nodes`: how many were taken, and of how many nodes."""
        if reports != self._reports:
            self._before.append(self._quiet)
            self._reports, self._quiet = reports, 0
        else:
            self._quiet += 1
        usual = QUIET_FACTOR * (max(self._before, default=0) + 1)
        return nodes >= AGENTS_MIN and self._quiet >= max(UNHEARD_SECONDS / RENEWAL_SECONDS, usual)


class Reach:
    """A leader's. `missing` is what `Leadership.follow` asks for."""

    def __init__(self, slurm: SlurmReach, reading: Callable[[], SlurmReading], leaders: Leaders) -> None:
        self._slurm = slurm
        self._cut = CutFromSlurm()
        self._agents = AgentReach()
        self._reading = reading
        self._leaders = leaders
        self._read_at: float | None = None
        self._unread = 0  # looks since the newest reading of Slurm, which fail

    def missing(self, able: Mapping[str, Standby]) -> str:
        reading = self._reading()
        if reading.at != self._read_at:
            self._read_at, self._unread = reading.at, 0
            self._slurm.note_answer()
        elif reading.error:
            self._unread += 1
        silent = self._agents.are_silent(self._leaders.reports, self._leaders.nodes)
        if self._cut.look(self._slurm.unanswered(), able, self._slurm.now()):
            return "slurmctld does not answer this control plane"
        if self._unread >= UNREAD_SECONDS / RENEWAL_SECONDS:
            return f"this control plane cannot read Slurm: {reading.error}"
        unheard = not self._leaders.nodes and self._leaders.before >= AGENTS_MIN
        agents = self._leaders.nodes or self._leaders.before
        return f"none of {agents} agents reports to this control plane" if silent or unheard else ""
