"""How the control plane itself is doing: written by the loop, read by the API routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from understudy_controlplane.fleet.finding import Finding
from understudy_controlplane.fleet.holder import Leading
from understudy_controlplane.fleet.need import Need
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.stage_summary import StageSummary
from understudy_controlplane.live.meters import Meters
from understudy_wire.stages import StageName, StageStatus


@dataclass(slots=True)
class SlurmReading:
    at: float | None = None
    seconds: float = 0.0
    usual_seconds: float = 0.0
    """The shorter of the last two: one reading that waited for a busy slurmctld says nothing about the next."""
    error: str = ""  # of the last reading; empty: it succeeded
    errors_total: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings as `scontrol show config` prints them; empty: not read yet."""
    version: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class FailedDetector:
    effect: str  # for any reader
    cause: str


@dataclass(slots=True)
class Pulse:
    last_tick_at: float = 0.0
    tick_seconds: float = 0.0
    ticks_total: int = 0
    turns: int = 0  # also after a tick that failed, and within a long one
    errors_total: int = 0
    last_error: str = ""
    objection: str = ""  # why this control plane may change nothing in Slurm; empty: it may
    leading: Leading | None = None  # None: there cannot be another control plane
    failed_detectors: Mapping[str, FailedDetector] = field(default_factory=dict)
    """Those of the newest round, and decisions that failed."""
    clock_jumps_total: int = 0
    snapshot: Snapshot | None = None  # the newest
    faults: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    """Node → what the newest round found against it, whatever its state."""
    needs: Sequence[Need] = ()
    """What waits for a person, by the newest round; `api/needs.py` adds what ails the control plane itself."""
    stages: Mapping[tuple[StageName, StageStatus], StageSummary] = field(default_factory=dict)
    """Summaries of the last results of nodes."""
    tickets_opened_at: tuple[float, ...] = ()  # of the open tickets
    config_problems: Sequence[str] = ()
    """Why the configuration file, as it was read last, is not wholly in force."""
    token_ends: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Role and label of people and programs → when the last of their tokens ends."""
    notify_problems: Sequence[str] = ()
    """Why notifications do not reach their receivers."""
    messages_waiting: Mapping[str, int] = field(default_factory=dict)
    """Receiver of notifications → messages that it has not taken yet."""
    meters: Meters = field(default_factory=Meters)
    slurm: SlurmReading = field(default_factory=SlurmReading)
