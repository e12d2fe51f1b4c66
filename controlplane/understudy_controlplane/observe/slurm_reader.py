"""Reads nodes, jobs and reservations from Slurm."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.fleet.node import CLOCKS_APART_SECONDS
from understudy_controlplane.fleet.slurm import SlurmView
from understudy_controlplane.live.pulse import SlurmReading
from understudy_controlplane.slurm.parse import min_job_age, slurmctld_clock, slurmctld_started_at
from understudy_controlplane.slurm.protocol import SlurmError, SlurmReads, read_view, slurm_version

log = structlog.get_logger()


def settings_of(slurm: SlurmReads, cluster: str) -> Mapping[str, str]:
    """Raises SlurmError where this slurmctld serves another cluster: the control plane must not act on that one."""
    settings = slurm.config()
    name = settings.get("ClusterName", "")
    if name.casefold() != cluster.casefold():  # Slurm ignores case here
        raise SlurmError(f"this Slurm's ClusterName is {name!r}, but the configuration says {cluster!r}")
    return settings


def unexpected(error: Exception) -> str:
    return f"an error of the control plane: {error!r}"


class SlurmReader:
    def __init__(self, slurm: SlurmReads, cluster: str, clock: Clock) -> None:
        self._slurm = slurm
        self._cluster = cluster
        self._clock = clock
        self.reading = SlurmReading()
        self._ahead = 0.0

    def clock_was_set(self, by_seconds: float) -> None:
        """The control plane's own."""
        self._ahead -= by_seconds

    def read(self) -> SlurmView | None:
        """What Slurm shows now; None: it could not be read, and `reading.error` says why."""
        now = self._clock.now()
        try:
            started_at = self._slurmctld_started_at()
            ahead = self._ahead if abs(self._ahead) > CLOCKS_APART_SECONDS else 0.0
            view = read_view(self._slurm, now, started_at, ahead, min_job_age(self.reading.settings))
        except SlurmError as error:
            if not self.reading.error:
                log.warning("slurm_unreadable", error=str(error))
            self._note_error(str(error))
            return None
        except Exception as error:  # a leader that cannot read Slurm for this gives up the lead as for any other
            self._note_error(unexpected(error))
            raise
        self.reading.at, self.reading.error = now, ""
        seconds = self._clock.now() - now
        self.reading.usual_seconds = min(seconds, self.reading.seconds)
        self.reading.seconds = seconds
        return view

    def _note_error(self, error: str) -> None:
        self.reading.error = error
        self.reading.errors_total += 1

    def _slurmctld_started_at(self) -> float | None:
        asked_at = self._clock.now()
        settings = settings_of(self._slurm, self._cluster)
        self.reading.settings, self.reading.version = settings, slurm_version(settings)
        self._compare_clocks(slurmctld_clock(settings), asked_at)
        return slurmctld_started_at(settings)

    def _compare_clocks(self, shown: int | None, asked_at: float) -> None:
        """slurmctld shows whole seconds, at some moment of the call. One that took long proves nothing."""
        seconds = self._clock.now() - asked_at
        if shown is not None and 0.0 <= seconds < CLOCKS_APART_SECONDS:
            self._ahead = shown + 0.5 - (asked_at + seconds / 2)
