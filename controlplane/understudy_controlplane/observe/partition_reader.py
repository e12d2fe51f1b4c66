"""Reads in which partitions Slurm starts jobs."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from understudy_controlplane.slurm.protocol import SlurmError, SlurmReads

log = structlog.get_logger()

STATES_AGE_MAX_SECONDS = 10.0
"""They change only when an administrator changes them."""


class PartitionReader:
    """Reads partitions. An unread one counts as up: a gang that has lost a node must not wait for that."""

    def __init__(self, slurm: SlurmReads) -> None:
        self._slurm = slurm
        self._states: Mapping[str, str] = {}
        self._read_at: float | None = None
        self._failed = False

    def read(self, now: float, slurm_error: str) -> Mapping[str, str]:
        """Partition → its State."""
        young = self._read_at is not None and 0 <= now - self._read_at < STATES_AGE_MAX_SECONDS
        if young or slurm_error:
            return self._states
        self._read_at = now
        try:
            self._states, self._failed = self._slurm.partition_states(), False
        except SlurmError as error:
            if not self._failed:
                log.warning("partitions_unreadable", error=str(error))
            self._states, self._failed = {}, True
        return self._states
