"""What the launcher reports through the agent to the control plane, as JSON.

Each of these is a struct of the same name in `understudy_agent.wire`, which this package cannot import: it needs
nothing but Python. tests/launch/test_messages.py compares them field by field.
"""

from __future__ import annotations

from typing import Literal, TypedDict


class LauncherState(TypedDict):
    """The gang as it is now. Reported again whenever it has changed."""

    type: Literal["launcher"]
    job_id: int
    restart_count: int
    launch: int
    phase: str
    seats: tuple[str, ...]
    spares: tuple[str, ...]
    lost: tuple[str, ...]
    nodes_min: int
    group_sizes: str
    ranks_per_node: int
    unwell: dict[str, str]
    ended_well: bool


class LaunchStarted(TypedDict):
    type: Literal["launch_started"]
    job_id: int
    restart_count: int
    launch: int
    seats: tuple[str, ...]
    spares: tuple[str, ...]
    at: float
    lost: tuple[str, ...]


class LaunchEnded(TypedDict):
    type: Literal["launch_ended"]
    job_id: int
    restart_count: int
    launch: int
    table_row: str
    reason: str
    at: float
    progressed: bool
    counted: bool
    cause: str
    failed_node: str
    rank: int | None
    status: int | None
    blamed: tuple[str, ...]


class LaunchEvidence(TypedDict):
    type: Literal["launch_evidence"]
    job_id: int
    restart_count: int
    launch: int
    kind: str
    at: float
    summary: str
    text: str


LaunchFact = LaunchStarted | LaunchEnded | LaunchEvidence


class LaunchNotice(TypedDict):
    """Sent again until the agent acknowledges it: then it is in the control plane's database."""

    type: Literal["launch"]
    id: int
    fact: LaunchFact


Message = LauncherState | LaunchNotice
