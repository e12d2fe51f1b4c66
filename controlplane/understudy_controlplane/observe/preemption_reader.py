"""Reads by which rules Slurm preempts jobs, where the site lets gangs profit from them."""

from __future__ import annotations

import structlog

from understudy_controlplane.config import Config, NoSpare
from understudy_controlplane.fleet.preemption import PreemptionRules
from understudy_controlplane.slurm.protocol import SlurmError, SlurmReads

log = structlog.get_logger()

RULES_AGE_MAX_SECONDS = 60.0
"""They change only when an administrator changes Slurm. Slurm itself decides by its present ones."""


class PreemptionReader:
    """Rules that cannot be read are not known: no gang is moved in reliance on them."""

    def __init__(self, slurm: SlurmReads) -> None:
        self._slurm = slurm
        self._rules: PreemptionRules | None = None
        self._read_at: float | None = None

    def read(self, config: Config, now: float, slurm_error: str) -> PreemptionRules | None:
        """None: the site does not want it."""
        if config.spares.no_spare is not NoSpare.PREEMPT:
            self._rules, self._read_at = None, None
            return None
        young = self._read_at is not None and 0 <= now - self._read_at < RULES_AGE_MAX_SECONDS
        if young or slurm_error:
            return self._rules
        self._read_at = now
        try:
            self._rules = self._slurm.preemption()
        except SlurmError as error:
            if self._rules is None or self._rules.kind is not None:
                log.warning("preemption_unreadable", error=str(error), remedy="no gang is moved onto a preempted node")
            self._rules = PreemptionRules(None, unknown=f"Slurm's rules of preemption cannot be read: {error}")
        return self._rules
