"""What the control plane answers, as far as this client reads it. Fields that it does not know are ignored.

Times are seconds since the Unix epoch. `docs/api.md` describes the fields.
"""

from __future__ import annotations

from typing import Any

import msgspec


class SlurmReading(msgspec.Struct, frozen=True):
    read_at: float | None
    error: str


class LoopState(msgspec.Struct, frozen=True):
    last_tick_at: float
    tick_seconds: float
    error: str


class SparePool(msgspec.Struct, frozen=True):
    held: int
    wanted: int


class Need(msgspec.Struct, frozen=True):
    kind: str
    subject: str
    since: float | None
    why: str
    command: str
    urgent: bool


class Status(msgspec.Struct, frozen=True):
    cluster: str
    mode: str
    paused: str
    paused_until: float | None
    paused_jobs: tuple[int, ...]
    breaker: str
    slurm: SlurmReading
    loop: LoopState
    nodes: dict[str, int]
    spares: SparePool
    incidents_open: int
    recoveries_running: int
    problems: tuple[str, ...] | None  # None: not shown to users of the cluster
    mode_configured: str = ""
    mode_limit: str = ""
    mode_limit_until: float | None = None
    needs: tuple[Need, ...] | None = None  # the first ones; None: as `problems`
    needs_count: int | None = None


class Node(msgspec.Struct, frozen=True):
    name: str
    state: str
    since: float
    reason: str
    slurm: str | None
    spare: bool
    jobs: tuple[int, ...]
    gpus: int
    gpus_ok: int
    heard_at: float | None


class Ettr(msgspec.Struct, frozen=True):
    ratio: float


class Job(msgspec.Struct, frozen=True):
    job_id: int
    user: str
    name: str
    managed: bool
    state: str
    restart_count: int
    ettr: Ettr | None = None
    paused: str = ""
    task: str = ""
    run_name: str = ""


class JobKey(msgspec.Struct, frozen=True):
    job_id: int


class Recovery(msgspec.Struct, frozen=True):
    id: int
    kind: str
    status: str
    outcome: str
    job: JobKey | None
    nodes: tuple[str, ...]
    spares: tuple[str, ...]
    detected_at: float
    ended_at: float | None
    phases_ms: dict[str, int]
    steps_lost: int | None = None

    @property
    def milliseconds(self) -> int | None:
        """Milliseconds from the fault until the job ran again, if the recovery has come so far."""
        return self.phases_ms.get("first_step", self.phases_ms.get("running"))


class Incident(msgspec.Struct, frozen=True):
    id: int
    subject_kind: str
    subject: str
    rule: str
    signal: str
    summary: str
    opened_at: float
    closed_at: float | None
    outcome: str


class Evidence(msgspec.Struct, frozen=True):
    job_id: int
    launch: int
    kind: str
    at: float
    summary: str
    text: str


class EvidenceList(msgspec.Struct, frozen=True):
    items: tuple[Evidence, ...]


class Decision(msgspec.Struct, frozen=True):
    id: int
    at: float
    subject: str
    action: str
    because: str
    table_row: int
    reason: str


class RuleRecord(msgspec.Struct, frozen=True):
    """What a rule would have done while the control plane observed, and how often people agreed."""

    rule: str
    cases: int
    agreed: int
    disagreed: int
    precision: float | None
    ready: bool


class Observed(msgspec.Struct, frozen=True):
    since: float
    rules: tuple[RuleRecord, ...]
    ready: tuple[str, ...]


class Count(msgspec.Struct, frozen=True):
    name: str
    count: int


class RecoveryCount(msgspec.Struct, frozen=True):
    kind: str
    status: str
    count: int
    median_seconds: float


class FleetReport(msgspec.Struct, frozen=True):
    """What happened in a span of time."""

    since: float
    until: float
    incidents: tuple[Count, ...]
    incidents_open: int
    recoveries: tuple[RecoveryCount, ...]
    seconds_lost: float
    quarantines: tuple[Count, ...]
    worst_nodes: tuple[Count, ...]
    held_back: tuple[Count, ...]
    observed: tuple[RuleRecord, ...]


class Notification(msgspec.Struct, frozen=True):
    """A message to a receiver of notifications."""

    id: int
    receiver: str
    user: str
    status: str
    importance: str
    title: str
    made_at: float
    accepted_at: float | None
    next_try_at: float | None
    tries: int
    error: str


class Ticket(msgspec.Struct, frozen=True):
    id: int
    node: str
    opened_at: float
    acknowledged_by: str
    closed_at: float | None


class SiteSignal(msgspec.Struct, frozen=True):
    """What another system of the site reports of nodes or domains."""

    id: int
    source: str
    kind: str
    effect: str
    targets: tuple[str, ...]
    summary: str
    at: float
    until: float


class Signals(msgspec.Struct, frozen=True):
    signals: tuple[SiteSignal, ...]


class MaintenanceNode(msgspec.Struct, frozen=True):
    node: str
    stage: str
    jobs: tuple[int, ...]
    words: str


class Maintenance(msgspec.Struct, frozen=True):
    """Planned work on nodes. `id` 0: a plan that is not started."""

    id: int
    status: str
    targets: tuple[str, ...]
    reason: str
    by: str
    until: float
    at_once: int
    spares: str
    nodes: tuple[MaintenanceNode, ...]


class Maintenances(msgspec.Struct, frozen=True):
    maintenance: tuple[Maintenance, ...]


class Event(msgspec.Struct, frozen=True):
    """Something that happened. `number` is that of the record, such as the recovery of a step."""

    kind: str
    at: float
    number: int
    subject: str
    nodes: tuple[str, ...]
    job: int | None
    text: str


class Checkpoint(msgspec.Struct, frozen=True):
    job_id: int
    step: int
    path: str
    shards: int
    world_size: int
    complete: bool
    at: float
    suspect: str


class Accepted(msgspec.Struct, frozen=True):
    """What will come of a request. `request` is its number at `GET /v1/requests/N`; None: it was a dry run."""

    request: int | None
    subject: str
    verb: str
    outcome: str  # will_act, held_by_guard, awaits_approval, observe_only
    why: str


class RequestState(msgspec.Struct, frozen=True):
    """What became of a request."""

    id: int
    verb: str
    subject: str
    by: str
    reason: str
    at: float
    status: str  # waiting, done, given_up, refused, failed
    why: str
    decision: int | None = None
    recovery: int | None = None


class Explanation(msgspec.Struct, frozen=True):
    """A node or job: what it is now, in one line and as `GET /v1/nodes/N` shows it, and the newest records about it."""

    is_now: str
    record: dict[str, Any]
    incidents: tuple[Incident, ...]
    recoveries: tuple[Recovery, ...]
    requests: tuple[RequestState, ...]
    decisions: tuple[Decision, ...]


class JudgedCheckpoint(msgspec.Struct, frozen=True):
    job_id: int  # that wrote it
    attempt: str
    step: int
    path: str
    at: float
    condition: str
    against: str  # what speaks against it; empty: nothing
    layout: str = ""  # "fixed" for as many ranks, "reshardable" for any number; empty: not known
    world_size: int = 0  # ranks that wrote it
    tier: str = ""  # "peer", "local" (disks of its nodes), "shared" or "object"; empty: not known


class PartSeen(msgspec.Struct, frozen=True):
    """A board, network card, cable or module in a node. `identity`: its serial number, else its GUID."""

    kind: str
    identity: str
    node: str
    place: str
    model: str
    first_seen_at: float
    last_seen_at: float


class StageMeasured(msgspec.Struct, frozen=True):
    """Measured by one validation of the node."""

    node: str
    stage: str
    status: str
    value: float | None
    unit: str
    why: str
    recovery: int
    at: float


class TierInterval(msgspec.Struct, frozen=True):
    """How often to save on a tier, by the failures after which it is the nearest one that is left."""

    tier: str
    answers: list[str]  # "process", "node", "rack", "site"
    cost_seconds: float  # of the training; a copy in the background counts a fiftieth of its time
    mtbf_seconds: float  # of these failures
    best_seconds: float  # a multiple of that of the next nearer tier


class CheckpointInterval(msgspec.Struct, frozen=True):
    """How often a job saves, and what would be best. `..._lost_...` is of saving and of steps that failures make it
    repeat, for each hour of the gang.
    """

    cost_seconds: float  # by which a checkpoint holds the training up
    cost_is_measured: bool  # false: the time until it is written stands for it
    write_seconds: float
    mtbf_seconds: float  # of the gang
    today_seconds: float | None  # null: not known
    best_seconds: float
    daly_seconds: float  # by Daly's formula
    gpus: int
    gpu_hours_lost_today: float | None
    gpu_hours_lost_best: float
    gpu_hour_price: float | None  # null: not configured
    tiers: list[TierInterval] = []  # nearest first, where it saves on several


class SaveOnNodes(msgspec.Struct, frozen=True):
    """A save in the memory of a job's nodes."""

    attempt: str
    step: int
    at: float
    world_size: int
    ranks: int  # whose parts are held
    nodes: int  # that hold parts
    places: int  # nodes that have each part, of the part that the fewest have
    against: str  # why no gang goes on from it; empty: nothing


class AttemptInputs(msgspec.Struct, frozen=True):
    """What an attempt of a run ran with, as its rank 0 named it; empty: not known."""

    job_id: int
    attempt: str
    code: str  # a commit and a sum of its working tree's files, or a sum of the main script
    config: str  # a sum of the files that the user names, or of the command line's arguments
    data: str  # a version that the user names
    changed: list[str]  # "code", "config", "data": what is other than in the attempt before it


class CheckpointExplanation(msgspec.Struct, frozen=True):
    """Point where an attempt that begins now would continue: restore, fresh or unknown; and what was passed over."""

    answer: str
    step: int | None
    path: str
    why: str
    count: int
    checkpoints: tuple[JudgedCheckpoint, ...]  # furthest first
    interval: CheckpointInterval | None = None
    ranks: int | None = None  # for which it is answered
    in_memory: tuple[SaveOnNodes, ...] = ()  # newest first
    attempts: tuple[AttemptInputs, ...] = ()  # of the run, newest first


class DrillDecision(msgspec.Struct, frozen=True):
    row: int
    subject: str
    action: str
    because: str
    reason: str
    steps: list[str]


class Drill(msgspec.Struct, frozen=True):
    """What would follow, or follows, from an Xid that is injected."""

    request: int | None
    node: str
    line: str
    mode: str
    decisions: list[DrillDecision]
    until: float | None = None  # when it ends by itself; None: nothing was injected
