"""Models of the records that the routes to read show, for the OpenAPI document. A test holds the answers against them.

Times are seconds since the epoch. Evidence, details and bodies of tickets are for people: their keys differ.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from understudy_controlplane.config import Importance, SignalKind
from understudy_controlplane.figures.ettr import Ettr
from understudy_controlplane.fleet.decision import Action, Because
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.notice import MessageStatus
from understudy_controlplane.fleet.recovery import RecoveryKind, RecoveryStatus, RecoveryStep
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.fleet.suspicion import SuspicionCause
from understudy_wire.hardware import Gpu, Host, Part, PartKind, Port, StuckProcess
from understudy_wire.stages import StageName, StageStatus


class NodeInSlurm(msgspec.Struct, frozen=True):
    state: str
    flags: list[str]
    reason: str
    reason_user: str
    weight: int


class NodeSuspicion(msgspec.Struct, frozen=True):
    cause: SuspicionCause
    since: float


class NodeSignal(msgspec.Struct, frozen=True):
    """A live signal that names the node, or a domain that it is in."""

    id: int
    kind: SignalKind
    words: str
    until: float


class LemonScore(msgspec.Struct, frozen=True):
    score: float
    faults: float
    agent_losses: float
    xid_kinds: float
    outages: float
    single_node_failures: float
    multi_node_failures: float
    excluded_by: float


class StageRecord(msgspec.Struct, frozen=True):
    """The last result of a stage of the validations of a node. `value` is in `unit`; null: it was not measured."""

    stage: StageName
    status: StageStatus
    value: float | None
    unit: str
    pass_mark: float
    seconds: float
    why: str
    recovery: int
    at: float


class NodeRecord(msgspec.Struct, frozen=True):
    """`row` is the row of the table that the node entered last; `slurm` is null where Slurm does not show it."""

    name: str
    state: NodeState
    since: float
    row: int
    signals: list[NodeSignal]
    suspicions: list[NodeSuspicion]
    spare: bool
    boot_id: str
    heard_at: float | None
    agent_problems: list[str]
    slurm: NodeInSlurm | None
    jobs: list[int]
    gpus: list[Gpu]
    ports: list[Port]
    host: Host | None
    parts: list[Part]
    processes: list[StuckProcess]
    nvml_silent_seconds: float
    ports_silent_seconds: float
    host_silent_seconds: float
    lemon: LemonScore
    stages: list[StageRecord]


class GpuRecord(msgspec.Struct, frozen=True):
    """A GPU that was seen in a node. `faults` are incidents of it there."""

    uuid: str
    node: str
    serial: str
    name: str
    bus_id: str
    first_seen_at: float
    last_seen_at: float
    faults: int
    board_part_number: str


class PartRecord(msgspec.Struct, frozen=True):
    """A board, network card, cable or module that was seen in a node. `identity`: serial number, else GUID."""

    kind: PartKind
    identity: str
    node: str
    place: str
    model: str
    first_seen_at: float
    last_seen_at: float


class StageOfNode(StageRecord, frozen=True):
    """What a stage of one validation measured."""

    id: int
    node: str


class AttemptRecord(msgspec.Struct, frozen=True):
    restart_count: int
    launch: int
    nodes: list[str]
    running_at: float | None
    ended_at: float | None
    restore_answer: str | None  # restore | fresh | unknown; null: not asked for
    restore_step: int | None
    restore_path: str
    restore_at: float | None
    restore_why: str
    last_step: int | None
    last_step_at: float | None
    count_from: int  # less this, `last_step` is the number that the program gave the step
    code: str  # that its training runs with, as its rank 0 names it; empty: not known
    config: str
    data: str


class LaunchRecord(msgspec.Struct, frozen=True):
    """Launch as the job's launcher reported it; `table_row` to `ended_at` are null while it runs."""

    restart_count: int
    launch: int
    seats: list[str]
    spares: list[str]
    at: float
    table_row: str | None
    cause: str | None
    reason: str | None
    progressed: bool | None
    ended_at: float | None


class JobRecord(msgspec.Struct, frozen=True):
    """`task` is what squeue shows of a job array's task, such as 4711_3; empty for others, and once Slurm shows it no
    longer.
    """

    cluster: str
    job_id: int
    task: str
    submit_at: int
    user: str
    user_id: int
    name: str
    managed: bool
    state: str
    restart_count: int
    seen_at: float
    run_name: str  # of the run to which the job belongs; empty: not known
    run_folder: str  # where the run goes by the jobs' name, in this folder; empty: a user named it
    run_arguments: str  # a sum of its program's arguments; empty: not known
    account: str  # in Slurm; empty: none, or not known
    partition: str  # or several, of a job that waits
    attempts: list[AttemptRecord]
    launches: list[LaunchRecord]
    paused: str
    paused_until: float | None
    ettr: Ettr | None


class CollectiveRecord(msgspec.Struct, frozen=True):
    name: str
    sequence: int
    entered_at: float
    step: int | None
    inside: bool


class RankRecord(msgspec.Struct, frozen=True):
    rank: int
    node: str
    role: str
    gpu_index: int | None
    last_step: int | None
    collective: CollectiveRecord | None
    step_seconds: float | None
    loss: float | None
    grad_norm: float | None
    tokens_per_second: float | None
    mfu: float | None


class CheckpointRecord(msgspec.Struct, frozen=True):
    cluster: str
    job_id: int
    submit_at: int
    restart_count: int
    launch: int
    step: int
    path: str
    world_size: int
    shards: int
    size_bytes: int
    at: float
    complete: bool
    suspect: str


class FindingRecord(msgspec.Struct, frozen=True):
    rule: str
    signal: str
    summary: str
    evidence: dict[str, Any]
    at: float


class EvidenceRecord(msgspec.Struct, frozen=True):
    """What the ranks of a launch showed before they were ended. `summary` and `text` are for people."""

    cluster: str
    job_id: int
    submit_at: int
    user_id: int
    restart_count: int
    launch: int
    kind: str  # hang: what all ranks were doing; crash: what ranks that failed wrote last
    at: float
    summary: str
    text: str


class EvidenceRecords(msgspec.Struct, frozen=True):
    """Newest first, at most 50."""

    items: list[EvidenceRecord]


class IncidentRecord(msgspec.Struct, frozen=True):
    id: int
    subject_kind: SubjectKind
    subject: str
    nodes: list[str]
    rule: str
    signal: Signal
    summary: str
    evidence: dict[str, Any]
    detail: dict[str, Any] | None
    fault_at: float
    opened_at: float
    closed_at: float | None
    outcome: str
    findings: list[FindingRecord]


class DecisionRecord(msgspec.Struct, frozen=True):
    id: int
    at: float
    table_row: int
    rule: str
    subject: str
    action: Action
    because: Because
    reason: str
    from_state: NodeState | None
    to_state: NodeState | None
    evidence: dict[str, Any]
    incident: int | None
    recovery: int | None
    request: int | None


class JobOfRecovery(msgspec.Struct, frozen=True):
    cluster: str
    job_id: int
    submit_at: int


class RecoveryRecord(msgspec.Struct, frozen=True):
    """`reason`: what it is for; empty: nothing was found faulty. `launch` to `steps_lost` only where it moves or
    restarts a gang.
    """

    id: int
    kind: RecoveryKind
    status: RecoveryStatus
    reason: str
    outcome: str
    job: JobOfRecovery | None
    restart_count: int
    nodes: list[str]
    spares: list[str]
    seats: list[str]
    fault_at: float
    detected_at: float
    decided_at: float
    ended_at: float | None
    approve_by: float | None
    approved_by: str
    phases_ms: dict[str, int]
    steps: list[RecoveryStep]
    launch: int | UnsetType = UNSET
    hang: str | UnsetType = UNSET
    last_step: int | UnsetType | None = UNSET
    restore_step: int | UnsetType | None = UNSET
    steps_lost: int | UnsetType | None = UNSET


class NotificationRecord(msgspec.Struct, frozen=True):
    """A message to one receiver. `about`: keys of notices, as the webhook has them; `user`: the owner of a job that it
    goes to; `accepted`: the newest version that the receiver took, of `revision`.
    """

    id: int
    receiver: str
    user: str
    status: MessageStatus
    importance: Importance
    title: str
    about: list[str]
    page: str
    notices_total: int
    made_at: float
    accepted_at: float | None
    revision: int
    accepted: int
    next_try_at: float | None
    tries: int
    error: str


class TicketRecord(msgspec.Struct, frozen=True):
    id: int
    label: str
    node: str
    opened_at: float
    closed_at: float | None
    acknowledged_at: float | None
    acknowledged_by: str
    body: dict[str, Any]
