"""Reads nodes, jobs and reservations from Slurm."""

from __future__ import annotations

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.fleet.slurm import SlurmView
from understudy_controlplane.live.pulse import SlurmReading
from understudy_controlplane.slurm.parse import slurmctld_started_at
from understudy_controlplane.slurm.protocol import SlurmError, SlurmReads, read_view

log = structlog.get_logger()


class SlurmReader:
    def __init__(self, slurm: SlurmReads, cluster: str, clock: Clock) -> None:
        self._slurm = slurm
        self._cluster = cluster
        self._clock = clock
        self.reading = SlurmReading()

    def read(self) -> SlurmView | None:
        """What Slurm shows now; None: it could not be read, and `reading.error` says why."""
        now = self._clock.now()
        try:
            started_at = self._slurmctld_started_at()
            view = read_view(self._slurm, now, started_at)
        except SlurmError as error:
            if not self.reading.error:
                log.warning("slurm_unreadable", error=str(error))
            self.reading.error = str(error)
            self.reading.errors_total += 1
            return None
        self.reading.at, self.reading.error = now, ""
        seconds = self._clock.now() - now
        self.reading.usual_seconds = min(seconds, self.reading.seconds)
        self.reading.seconds = seconds
        return view

    def _slurmctld_started_at(self) -> float | None:
        """Raises SlurmError where this slurmctld serves another cluster: the control plane must not act on that one."""
        settings = self._slurm.config()
        name = settings["ClusterName"]
        if name.casefold() != self._cluster.casefold():  # Slurm ignores case here
            raise SlurmError(f"this Slurm's ClusterName is {name!r}, but the configuration says {self._cluster!r}")
        return slurmctld_started_at(settings)
