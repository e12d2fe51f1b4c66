"""Records that are kept for the same time."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

Limits = Mapping["RecordClass", float]
"""Class → the time before which its records may be deleted."""


class RecordClass(StrEnum):
    """Records that are kept for the same time. The audit is in none of them: it is kept for ever."""

    INCIDENTS = "incidents"  # what was wrong, what was decided and done, and what people asked for
    IDLE_DECISIONS = "idle_decisions"  # decisions to do nothing
    EVENTS = "events"  # what kernel logs, hardware and Prologs reported
    JOBS = "jobs"  # with their attempts and launches
    JOB_DETAILS = "job_details"  # what ranks reported
    SHARDS = "shards"  # that are packed
    GPUS = "gpus"
    TOKENS = "tokens"
