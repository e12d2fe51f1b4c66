"""The section `provider`: who replaces nodes."""

from __future__ import annotations

import shlex
from typing import Self

from pydantic import Field, model_validator

from understudy_controlplane.config.section import Section


class Provider(Section):
    FIXED = frozenset({"timeout_seconds", "poll_seconds", "answer_bytes_max"})

    command: str = Field(
        "",
        description="Program on the control plane's host that speaks with the provider of the nodes: it reads one JSON "
        "document from its standard input and prints one. No shell runs it. [A provider's nodes](provider.md)",
    )
    replacements_per_day_max: int = Field(
        0,
        ge=0,
        description="Nodes of the fleet whose replacement is asked for within a day, where only manual repair is left "
        "of the repair ladder. Further faults are only reported. 0: all are.",
    )
    timeout_seconds: float = Field(30.0, gt=0, le=60, description="Time for an answer.")
    poll_seconds: float = Field(600.0, description="Time between two questions for maintenance and retirements.")
    answer_bytes_max: int = Field(1 << 20, ge=1, description="Bytes of an answer; a longer one is an error.")

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        words = shlex.split(self.command)  # raises ValueError for a quotation that does not end
        if self.command and not any(words[:1]):
            raise ValueError("command names no program")
        if self.replacements_per_day_max and not self.command:
            raise ValueError("replacements_per_day_max needs command")
        return self
