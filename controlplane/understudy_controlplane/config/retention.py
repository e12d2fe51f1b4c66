"""The section `retention`: how long records stay in the database."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from understudy_controlplane.config.section import Section

HISTORY_DAYS = 8
"""What the control plane decides by goes back a week, and requests of operators a day more."""


class Retention(Section):
    FIXED = frozenset({"idle_decisions_days", "gpus_days", "job_details_days"})

    incidents_days: float = Field(
        730.0,
        ge=30,
        description="Days for which an incident that is over is kept with its findings, decisions, recoveries and "
        "tickets, and requests of operators. Older ones are deleted.",
    )
    idle_decisions_days: float = Field(
        7.0,
        ge=7,
        description="The same for decisions to do nothing. Those of an incident, and those that would "
        "have acted in mode `act`, stay for `events_days`.",
    )
    events_days: float = Field(
        90.0,
        ge=HISTORY_DAYS,
        description="The same for kernel events, hardware events, refusals of the Prolog and signals of the site.",
    )
    jobs_days: float = Field(
        365.0,
        ge=30,
        description="The same for jobs with their attempts and launches, from when Slurm last showed the job. A job of "
        "a recovery stays as long as the recovery.",
    )
    job_details_days: float = Field(
        30.0,
        ge=HISTORY_DAYS,
        description="The same for what ranks of such a job reported: starts, first steps, anomalies, checkpoints. "
        "Its last three checkpoints stay, with what speaks against them.",
    )
    shards_days: ClassVar[float] = 0.0
    """The same for rows of single shards, once they are packed into one record with their checkpoint."""
    gpus_days: float = Field(
        730.0, ge=30, description="The same for where a GPU or another part was seen, from when it was last seen there."
    )
    tokens_days: ClassVar[float] = 90.0
    """The same for tokens, from when they expired."""
