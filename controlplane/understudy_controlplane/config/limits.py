"""The section `limits`: what clients can cost the control plane."""

from __future__ import annotations

from pydantic import Field

from understudy_controlplane.config.section import Section


class Limits(Section):
    reads_at_once: int = Field(
        2, ge=1, le=64, description="Reads of people and programs that are carried out at the same time; others wait."
    )
    reads_waiting_max: int = Field(
        256, ge=1, description="Reads that wait; a read above that is refused (HTTP 503) and may be repeated."
    )
    read_seconds_max: float = Field(
        5.0,
        gt=0,
        le=300,
        description="Time after which the database ends a query of a read (HTTP 503).",
    )
