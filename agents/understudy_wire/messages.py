"""The messages between a node agent and the control plane: their types, version and limits, without behaviour.

What they contain is defined by subject: `hardware.py`, `ranks.py`, `facts.py`, `files.py`, `launcher.py`.

Two kinds of content travel in one `Report`:

* **telemetry** (`gpus`, `ports`, `host`, `ranks`): the newest sample; may be lost, because the next report replaces it;
* **facts** (`facts`): things that happened once. The agent repeats a fact until a report that carried it was
  acknowledged with HTTP 200; the control plane acknowledges only what its database holds, and knows a repeated
  fact by its key. So every fact arrives at least once and counts exactly once.

A rank is a process of any user. The agent takes its user id from the kernel; the control plane believes a rank only
what concerns a job of that user.

Times are seconds since the Unix epoch by the sending node's clock; durations are seconds.
"""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import msgspec
from msgspec import Meta

from understudy_wire.facts import Fact, KernelLogPolicy, ShardFile
from understudy_wire.files import FileResult, FileTask
from understudy_wire.hardware import STUCK_PROCESSES_MAX, Gpu, Host, Part, Port, StuckProcess
from understudy_wire.leader import LEADERS_PER_REPORT_MAX, HeardLeader
from understudy_wire.ranks import ComputeTestOrder, HangQuestion, JobNote, ProgramFiles, RankWindow, SaveOrder
from understudy_wire.values import Count, Duration, Label, Measure, Name, Size, Step, Text, Time, UserId, WorldSize

RELEASE = metadata.version("slurm-understudy")
"""Release of this package. A report has that of its sender; in those of others the receiver looks for new content."""

WIRE_VERSION = 1
"""Version of every message here. The control plane refuses other versions and names them (HTTP 400).

Releases of one version understand each other in both directions. A release may add to a version: fields
with a default, kinds of facts, values of enums, types of rank messages. The receiver ignores what it does not know,
takes the rest of the message, and counts what it ignored (`unknown.py`). Whatever an older release would misread
needs a new version: a field that is removed, loses its default or changes its meaning or unit.

1   0.3.0
"""

REPORT_BYTES_MAX = 262_144
"""A report above this size is refused (HTTP 413). 8 GPUs, 8 ports and 8 ranks' windows are about 10 KB."""

FACTS_PER_REPORT_MAX = 256
"""An agent with more unacknowledged facts sends them in several reports, oldest first."""

GPUS_PER_NODE_MAX = 64
PARTS_PER_NODE_MAX = 128
PORTS_PER_NODE_MAX = 64
KEEPER_JOBS_MAX = 64
KEEPER_SAVES_MAX = 128
KEPT_RANKS_MAX = 1024
PROGRAMS_PER_NODE_MAX = 2


class KeptJob(msgspec.Struct, frozen=True):
    """A job of which a node's keeper holds parts, as the processes that gave them name it."""

    job_id: Count
    user_id: UserId  # of these processes, from the kernel


class KeptSave(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node's keeper holds of one save of a job in memory."""

    job_id: Count
    user_id: UserId
    restart_count: Count
    launch: Count
    step: Step  # training continues with this step after a restore
    world_size: WorldSize
    ranks: Annotated[list[Count], Meta(max_length=KEPT_RANKS_MAX)]  # whose parts are here
    size_bytes: Size
    at: Time  # of the newest part
    restored: Count = 0  # attempts that went on from it, as far as this keeper knows
    blocked_seconds: Duration | None = None  # by which the training of a rank of this node was held up


class Keeper(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the node's keeper holds. Counts are since its start."""

    bytes_held: Size
    bytes_max: Size
    bytes_taken: Size = 0  # from ranks of this node
    bytes_received: Size = 0  # from other keepers
    bytes_sent: Size = 0  # to ranks and other keepers
    refused: Size = 0  # parts
    jobs: Annotated[list[KeptJob], Meta(max_length=KEEPER_JOBS_MAX)] = []
    saves: Annotated[list[KeptSave], Meta(max_length=KEEPER_SAVES_MAX)] = []


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent sends: about once a second, and at once when it has a new fact."""

    version: int
    cluster: Name
    node: Name
    boot_id: Name
    sequence: Size  # counts up within one life of the agent process
    agent_started_at: Time
    sent_at: Time
    driver_version: Label = ""
    gpus: list[Gpu] = []
    ranks: list[RankWindow] = []
    facts: list[Fact] = []
    problems: list[Text] = []  # what the agent could not read, as text
    ports: list[Port] = []
    host: Host | None = None
    nvml_silent_seconds: Measure = 0.0  # since the call that NVML has not answered; 0: it answers in time
    nvml_unkillable: bool = False  # the process that asks NVML was killed and does not end: it hangs inside the kernel
    ports_silent_seconds: Measure = 0.0  # since reading the ports began; they are left out meanwhile. 0: they are read
    host_silent_seconds: Measure = 0.0  # the same of the host
    release: Text = ""  # of the agent
    stopping: bool = False  # the last report before the agent stops, as for an upgrade
    kernel_log_policy: Text | None = None  # version of the policy it follows; empty: none yet; None: it knows of none
    file_result: FileResult | None = None  # of the last task on files that it was given
    keeper: Keeper | None = None  # None: there is none
    parts: Annotated[list[Part], Meta(max_length=PARTS_PER_NODE_MAX)] = []  # every few minutes; else none
    processes: Annotated[list[StuckProcess], Meta(max_length=STUCK_PROCESSES_MAX)] = []  # the longest stuck first
    programs: Annotated[list[ProgramFiles], Meta(max_length=PROGRAMS_PER_NODE_MAX)] | None = None
    """Programs of the ranks 0 on this node. None: as they were reported before; all are reported every few minutes."""
    leaders: Annotated[list[HeardLeader], Meta(max_length=LEADERS_PER_REPORT_MAX)] = []
    """Control planes that answered this agent within the last minute, first the one that it follows."""
    looks: bool = False  # it only asks who leads: nothing else of this report counts


class Acknowledgement(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to a report: all of its facts are in the database, but for those named in `dropped`."""

    facts: int
    dropped: list[str] = []  # what was not accepted, and why
    unfit: str = ""  # why no new job may start on this node now; empty: no objection
    kernel_log: KernelLogPolicy | None = None  # what the agent follows from now on; None: what it has stays
    file_task: FileTask | None = None  # None: there is nothing to do
    save_orders: list[SaveOrder] = []  # that ranks of this node do not know yet, as it was reported
    jobs_over: list[KeptJob] = []  # of those whose parts its keeper holds: they have ended for good
    compute_tests: list[ComputeTestOrder] = []  # for ranks of this node that have not ended the step
    job_notes: list[JobNote] = []  # for ranks 0 on this node, again with each answer
    hang_questions: list[HangQuestion] = []  # for ranks on this node, again with each answer


class RestorePoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to `GET /v1/restore-point`: the checkpoint with which this attempt of the job continues.

    `path` is empty and `step` 0 when there is no complete checkpoint: start from the beginning. All ranks of an
    attempt get the same answer, however often and whenever they ask.
    """

    job_id: Count
    restart_count: Count
    step: Step
    path: str
    launch: Count = 0
    managed: bool = True  # False: the job is not managed; there is nothing to restore, and nothing was decided
    look: bool = False  # report whether the checkpoint is there, then ask again
    look_file: str = ""  # in `path`; empty: `path` itself
    look_sizes: list[ShardFile] = []  # files in `path` ("." is `path` itself), whose sizes are compared by who looks
    nearer_path: str = ""  # a copy of the same checkpoint that this rank has on its own node, if it sees it there
    nearer_file: str = ""  # in `nearer_path`: this rank's part
    files: list[str] = []  # in an object store: what this rank is to fetch; none: all of it
    line: str = ""  # for the job's output, of its rank 0: what it continues, or why it begins


CREDENTIAL_CHARACTERS_MAX = 4096


class Challenge(msgspec.Struct, frozen=True):
    """The answer to `GET /v1/challenge`: what the agent's next credential must contain."""

    challenge: Annotated[str, Meta(min_length=1, max_length=256)]


class NodeClaim(msgspec.Struct, frozen=True, tag="understudy node token"):
    """What the agent signs with MUNGE, as root. The tag keeps credentials of other programs out."""

    cluster: Name
    node: Name
    challenge: Annotated[str, Meta(min_length=1, max_length=256)]


class NodeTokenRequest(msgspec.Struct, frozen=True):
    """`POST /v1/node-token`: `credential` is MUNGE's for this claim."""

    version: int
    claim: NodeClaim
    credential: Annotated[str, Meta(min_length=1, max_length=CREDENTIAL_CHARACTERS_MAX)]


class NodeToken(msgspec.Struct, frozen=True):
    """The agent's token for the next `seconds`. It speaks for its node alone."""

    token: Annotated[str, Meta(min_length=1, max_length=256)]
    seconds: float


class Refusal(msgspec.Struct, frozen=True):
    """Body of every answer of 4xx and 5xx, by RFC 9457: `detail` is what failed and why, `hint` what to do."""

    title: str
    status: int
    code: str  # one of `understudy_controlplane.ingest.answers.ErrorCode`; a newer release may know more
    detail: str
    hint: str = ""
    type: str = "about:blank"
