"""A control plane looks whether it reaches what it needs for its work: slurmctld, and the agents."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.decide.leadership import AGENTS_MIN, RENEWAL_SECONDS, UNABLE_SECONDS, UNREAD_SECONDS
from understudy_controlplane.lease import boottime
from understudy_controlplane.live.leaders import Leaders
from understudy_controlplane.live.pulse import SlurmReading
from understudy_controlplane.observe.slurm_reader import SlurmReader, settings_of, unexpected
from understudy_controlplane.slurm.fenced import within
from understudy_controlplane.slurm.protocol import SlurmError, SlurmReads

log = structlog.get_logger()

ASK_SECONDS = 1.0
"""A question is asked where none was answered for this time. A leader's readings of Slurm are questions, too."""

READ_SECONDS = 10.0
READ_FACTOR = 10.0
"""A standby reads all of Slurm after this time, and for a tenth of its time at most."""

ANSWER_SECONDS = 1.0
"""Time for slurmctld to answer. A command that it does not answer goes on for ten seconds by itself."""

AGAIN_SECONDS = 0.25

KNOWN_SECONDS = 2.5
"""A standby that was answered within this time reaches slurmctld: a shorter time than a leader misses it for
(`UNABLE_SECONDS`). Both ask at moments of their own: `UNABLE_LOOKS` leaves time for that where slurmctld is restarted.
"""

REPORT = "it is tried again; report this error"

FAILED_MIN = 2
"""One question may have been begun just before this machine stood still."""

REPORTS = 20
QUIET_FACTOR = 3
"""Agents are silent after three times the longest quiet before the last twenty reports: some fleets report rarely. In
the minutes in which a leader learns that, it does not pass the lead on (`SETTLED_SECONDS`).
"""


class SlurmReach:
    """Asks in a thread of its own, since a reading of Slurm may wait for its time-out."""

    def __init__(self, slurm: SlurmReads, cluster: str, now: Callable[[], float] = boottime) -> None:
        self._slurm = slurm
        self._cluster = cluster
        self._now = now
        self._answered_at = float("-inf")  # the begin of the newest question that was answered
        self._failed = 0
        self._problem = ""

    def begin(self) -> None:
        threading.Thread(target=self._run, name="slurm reach", daemon=True).start()

    def problem(self) -> str:
        """Why slurmctld was not reached lately; empty: it was."""
        if self._now() - self._answered_at < KNOWN_SECONDS:
            return ""
        return self._problem or "slurmctld has not answered yet"

    def is_away(self) -> bool:
        return self._failed >= FAILED_MIN and self._now() - self._answered_at >= UNABLE_SECONDS

    def note_answer(self) -> None:
        self._answered_at, self._failed = self._now(), 0

    def ask(self) -> None:
        begun = self._now()
        if begun - self._answered_at < ASK_SECONDS:
            return
        try:
            with within(ANSWER_SECONDS):
                settings_of(self._slurm, self._cluster)
        except SlurmError as error:
            self._failed, self._problem = self._failed + 1, str(error)
        except Exception as error:  # without its thread nothing would be known of Slurm any more
            if self._problem != unexpected(error):
                log.exception("slurm_not_asked", error=unexpected(error), remedy=REPORT)
            self._failed, self._problem = self._failed + 1, unexpected(error)
        else:
            self._answered_at, self._failed, self._problem = begun, 0, ""

    def _run(self) -> None:
        while True:
            time.sleep(AGAIN_SECONDS)
            self.ask()


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
        return nodes >= AGENTS_MIN and self._quiet >= max(UNABLE_SECONDS / RENEWAL_SECONDS, usual)


class Reach:
    """A leader's. `missing` is what `Leadership.follow` asks for."""

    def __init__(self, slurm: SlurmReach, reading: Callable[[], SlurmReading], leaders: Leaders) -> None:
        self._slurm = slurm
        self._agents = AgentReach()
        self._reading = reading
        self._leaders = leaders
        self._read_at: float | None = None
        self._unread = 0  # looks since the newest reading of Slurm, which fail

    def missing(self) -> str:
        reading = self._reading()
        if reading.at != self._read_at:
            self._read_at, self._unread = reading.at, 0
            self._slurm.note_answer()
        elif reading.error:
            self._unread += 1
        silent = self._agents.are_silent(self._leaders.reports, self._leaders.nodes)
        if self._slurm.is_away():
            return "slurmctld does not answer this control plane"
        if self._unread >= UNREAD_SECONDS / RENEWAL_SECONDS:
            return f"this control plane cannot read Slurm: {reading.error}"
        unheard = not self._leaders.nodes and self._leaders.before >= AGENTS_MIN
        agents = self._leaders.nodes or self._leaders.before
        return f"none of {agents} agents reports to this control plane" if silent or unheard else ""
