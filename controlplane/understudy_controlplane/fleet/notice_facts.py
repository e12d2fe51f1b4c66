"""What is known of the things that people are notified of."""

from __future__ import annotations

from dataclasses import dataclass

from understudy_controlplane.fleet.recovery import RecoveryKind
from understudy_controlplane.fleet.subject import SubjectKind

MOVES = (RecoveryKind.POOL_SWAP.value, RecoveryKind.ALLOCATION_SWAP.value)


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """A recovery that moves or restarts a gang. `signal`, `summary`: of its incident; empty: it has none."""

    number: int
    kind: str
    status: str
    outcome: str
    job_id: int | None
    job_name: str
    user: str
    nodes: tuple[str, ...]
    spares: tuple[str, ...]
    hang: str
    fault_at: float
    decided_at: float
    ended_at: float | None
    last_step: int | None
    restore_step: int | None
    signal: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True)
class IncidentFacts:
    """`job_id`, `job_name`, `user`: of a gang. `without_spare`: its first decision that found none for a gang."""

    number: int
    kind: SubjectKind
    subject: str
    rule: str
    signal: str
    summary: str
    fault_at: float
    opened_at: float
    closed_at: float | None
    outcome: str
    job_id: int | None = None
    job_name: str = ""
    user: str = ""
    moves: tuple[MoveFacts, ...] = ()
    without_spare: str = ""


@dataclass(frozen=True, slots=True)
class TicketFacts:
    """`about`: nodes and jobs; `waits`: it is open until a person has done something."""

    number: int
    node: str
    about: tuple[str, ...]
    reason: str
    opened_at: float
    closed_at: float | None
    waits: bool


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """A job whose program ended launches. `number`: of the first of them; `failures`: so many; `reason`: of the last
    one, as its launcher says it; `state`: of the job in Slurm.
    """

    number: int
    job_id: int
    job_name: str
    user: str
    at: float
    failures: int
    reason: str
    has_given_up: bool
    state: str


@dataclass(frozen=True, slots=True)
class XidFacts:
    """An error of a GPU that a job's program caused. `nodes`: that reported it."""

    number: int
    job_id: int
    user: str
    nodes: tuple[str, ...]
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The opened breaker, a recovery that awaits approval, or a node that fails repeatedly."""

    number: int
    subject: str
    reason: str
    at: float
    ended_at: float | None = None
    outcome: str = ""
