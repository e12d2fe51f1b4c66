"""What detection says: this looks wrong, here, because of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controlplane.fleet.job import JobKey

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Signal(StrEnum):
    """The meaning of a finding: what `decide.table` is entered with."""

    HARDWARE_FAULT = "hardware_fault"  # a fact that acts alone
    NODE_DEAD = "node_dead"  # agent and slurmd gone, and its job stands still
    STRAGGLER_CONFIRMED = "straggler_confirmed"  # statistics and a second signal
    STRAGGLER_SUSPECTED = "straggler_suspected"  # statistics alone
    SILENT = "silent"  # the agent does not report
    HEARD = "heard"  # the agent reports again
    APPLICATION_FAULT = "application_fault"  # the program's doing
    RECORDED = "recorded"  # worth keeping, nothing follows
    DRAINED_BY_OTHERS = "drained_by_others"
    GANG_STRANDED = "gang_stranded"  # a gang of ours runs on a node that we took out of service
    SEAT_LOST = "seat_lost"  # somebody took a node that a gang of ours was on its way to
    UNDRAINED = "undrained"  # our drain was refused
    DRAINED_FOR_US = "drained_for_us"  # by Slurm, because our Prolog kept a job off it
    DRAIN_LIFTED = "drain_lifted"  # a drain is gone that we did not lift
    CLEAN = "clean"  # what made it suspect is no longer seen


ACCUSING = frozenset({Signal.HARDWARE_FAULT, Signal.NODE_DEAD, Signal.STRAGGLER_CONFIRMED, Signal.GANG_STRANDED})
"""Signals that say that a node is at fault, and open an incident."""


@dataclass(frozen=True, slots=True)
class Finding:
    signal: Signal
    rule: str  # such as "xid.79": which detector, which row of its policy
    node: str
    at: float  # when it happened, as well as is known
    summary: str  # for people, one line
    evidence: Mapping[str, Json] = field(default_factory=dict)
    job: JobKey | None = None
    dead: bool = False  # the node answers nobody: Slurm has to be told
