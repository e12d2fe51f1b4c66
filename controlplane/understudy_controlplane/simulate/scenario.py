"""What happens in one simulation: a list of events, drawn from a seed. Data only."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from random import Random

import msgspec

NODES = tuple(f"n{number}" for number in range(1, 17))
GANG_SIZES = (4, 3, 3, 3)
"""Nodes of each gang. The last one runs under a launcher, with one of its nodes as a spare."""

LAUNCHER_GANG = len(GANG_SIZES) - 1
FAULTS_BEGIN, FAULTS_END, END = 30.0, 420.0, 900.0
"""Seconds of the simulation. After the last fault everything must come to rest before the end."""


class Kind(StrEnum):
    """What happens. `subject` is a node or the number of a gang; `seconds` is how long it lasts."""

    NODE_DIES = "node dies"  # it boots by itself after `seconds`; 0: it stays dead
    XID = "GPU reports an Xid"  # `number`: the code
    XID_OF_PROGRAM = "program causes an Xid"
    AGENT_SILENT = "agent is silent"
    MANAGEMENT_CUT = "management network of the node is down"  # its ranks go on
    SLOW = "GPU is slow"  # `number`: 1 where its clocks show why
    PORT_DOWN = "fabric port is down"
    ALL_AGENTS_SILENT = "all agents are silent"
    MESSAGES_DISTURBED = "messages of the node are lost, late, twice and out of order"
    RANK_HANGS = "a rank does not enter the collective"
    RANKS_STAY = "ranks of the gang's last node stay behind at its next launch"
    LOSS_NAN = "loss is NaN"
    VALIDATION_FAILS = "the next validation of the node fails"
    SLURM_AWAY = "slurmctld does not answer"
    SLURM_SLOW = "slurmctld answers slowly"
    SLURM_LOSES_ANSWERS = "slurmctld does what it is asked and its answers are lost"
    SLURM_CRASHES = "slurmctld crashes and loses the last seconds"
    KILLED_BEFORE_EFFECT = "control plane is killed before its next effect"
    KILLED_AFTER_EFFECT = "control plane is killed after its next effect"
    KILLED_AT_COMMIT = "control plane is killed at a commit"  # `number`: of the commits from now on
    DATABASE_AWAY = "database does not answer"
    DATABASE_SLOW = "database answers slowly"
    CLOCK_SET = "control plane's clock is set"  # `number`: by how many seconds; it is set right after `seconds`
    DRAINS = "administrator drains the node"
    RESUMES = "administrator resumes the node"
    HOLDS = "operator holds the node"
    RELEASES = "operator releases the node"
    TESTS = "operator asks for a test of the node"
    RETIRES = "operator retires the node"
    CANCELS_RECOVERY = "operator cancels the newest recovery"
    PAUSES = "operator pauses the control plane"
    PAUSES_NOW = "operator pauses the control plane and halts its recoveries"
    UNPAUSES = "operator ends the pause"
    DELETES_RESERVATIONS = "administrator deletes Understudy's reservations"
    HOLDS_JOB = "user holds the gang's job"
    RELEASES_JOB = "user releases the gang's job"
    CANCELS = "user cancels the gang"
    COMPLETES = "gang completes"
    CRASHES = "gang's program fails"
    REQUEUES = "user requeues the gang"
    SUBMITS = "user submits a job"  # `number`: of how many nodes


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    at: float
    kind: Kind
    subject: str = ""
    seconds: float = 0.0
    number: int = 0

    def __str__(self) -> str:
        parts = [self.kind.value, self.subject and f"({self.subject})", self.number and f"number {self.number}"]
        return " ".join(str(part) for part in (*parts, self.seconds and f"for {self.seconds:.0f} s") if part)


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the control plane."""

    spares: int = 2
    observes: bool = False
    repairs: bool = True
    validates: bool = True


class Scenario(msgspec.Struct, frozen=True, omit_defaults=True):
    seed: int
    events: tuple[Event, ...]
    settings: Settings = Settings()


FATAL_XIDS = (48, 79, 95, 119)
PROGRAM_XIDS = (13, 31, 43)
DRAINING_XIDS = (63, 94)
CLOCK_JUMPS = (-3600, 3600, -200, 60)


def _node(random: Random) -> str:
    return random.choice(NODES)


def _gang(random: Random) -> str:
    return str(random.randrange(len(GANG_SIZES)))


def _launcher(_: Random) -> str:
    return str(LAUNCHER_GANG)


def _nothing(_: Random) -> str:
    return ""


def _short(random: Random) -> float:
    return round(random.uniform(1, 60), 1)


KINDS: tuple[tuple[int, Kind, Callable[[Random], str]], ...] = (
    (6, Kind.NODE_DIES, _node),
    (8, Kind.XID, _node),
    (2, Kind.XID_OF_PROGRAM, _node),
    (3, Kind.AGENT_SILENT, _node),
    (1, Kind.ALL_AGENTS_SILENT, _nothing),
    (2, Kind.MANAGEMENT_CUT, _node),
    (3, Kind.SLOW, _node),
    (2, Kind.PORT_DOWN, _node),
    (3, Kind.MESSAGES_DISTURBED, _node),
    (3, Kind.RANK_HANGS, _gang),
    (1, Kind.RANKS_STAY, _launcher),
    (1, Kind.LOSS_NAN, _gang),
    (2, Kind.VALIDATION_FAILS, _node),
    (3, Kind.SLURM_AWAY, _nothing),
    (2, Kind.SLURM_SLOW, _nothing),
    (3, Kind.SLURM_LOSES_ANSWERS, _nothing),
    (1, Kind.SLURM_CRASHES, _nothing),
    (4, Kind.KILLED_BEFORE_EFFECT, _nothing),
    (4, Kind.KILLED_AFTER_EFFECT, _nothing),
    (3, Kind.KILLED_AT_COMMIT, _nothing),
    (2, Kind.DATABASE_AWAY, _nothing),
    (1, Kind.DATABASE_SLOW, _nothing),
    (2, Kind.CLOCK_SET, _nothing),
    (3, Kind.DRAINS, _node),
    (3, Kind.RESUMES, _node),
    (2, Kind.HOLDS, _node),
    (2, Kind.RELEASES, _node),
    (1, Kind.TESTS, _node),
    (1, Kind.RETIRES, _node),
    (2, Kind.CANCELS_RECOVERY, _nothing),
    (1, Kind.PAUSES, _nothing),
    (1, Kind.PAUSES_NOW, _nothing),
    (1, Kind.DELETES_RESERVATIONS, _nothing),
    (1, Kind.HOLDS_JOB, _gang),
    (2, Kind.CANCELS, _gang),
    (2, Kind.COMPLETES, _gang),
    (2, Kind.CRASHES, _gang),
    (1, Kind.REQUEUES, _gang),
    (2, Kind.SUBMITS, _nothing),
)
"""How often, what, and to whom."""

WEIGHTS = [weight for weight, _, _ in KINDS]
TOGETHER_SECONDS = 6.0
"""Half of the events follow another one within this time: races need company."""


def draw(seed: int) -> Scenario:
    random = Random(seed)
    settings = Settings(
        spares=random.choice((0, 1, 2, 2, 2)),
        observes=random.random() < 0.05,
        repairs=random.random() < 0.8,
        validates=random.random() < 0.8,
    )
    events: list[Event] = []
    at = FAULTS_BEGIN
    for _ in range(random.randint(3, 9)):
        together = events and random.random() < 0.5
        at += random.uniform(0, TOGETHER_SECONDS) if together else random.uniform(5, 80)
        at = min(at, FAULTS_END)
        events += _event(random, round(at, 2), events)
    return Scenario(seed, tuple(sorted(events, key=lambda event: event.at)), settings)


def _event(random: Random, at: float, earlier: list[Event]) -> list[Event]:
    _, kind, subject_of = random.choices(KINDS, WEIGHTS)[0]
    subject = subject_of(random)
    nodes = [event.subject for event in earlier if event.subject in NODES]
    if subject in NODES and nodes and random.random() < 0.4:
        subject = random.choice(nodes)  # more happens to a node that is in trouble already
    seconds, number = _short(random), 0
    match kind:
        case Kind.XID:
            number = random.choice((*FATAL_XIDS, *FATAL_XIDS, *DRAINING_XIDS))
        case Kind.XID_OF_PROGRAM:
            number = random.choice(PROGRAM_XIDS)
        case Kind.NODE_DIES:
            seconds = random.choice((0.0, round(random.uniform(20, 200), 1)))
        case Kind.SUBMITS:
            number = random.randint(1, 3)
        case Kind.KILLED_AT_COMMIT:
            number = random.randint(1, 30)
        case Kind.SLOW:
            seconds, number = round(random.uniform(60, 200), 1), random.choice((0, 1))
        case Kind.PORT_DOWN:
            seconds = random.choice((0.0, seconds))
        case Kind.CLOCK_SET:
            seconds, number = random.choice((0.0, seconds)), random.choice(CLOCK_JUMPS)
        case Kind.PAUSES | Kind.PAUSES_NOW:
            return [Event(at, kind), Event(round(at + seconds, 2), Kind.UNPAUSES)]
        case Kind.HOLDS_JOB:
            return [Event(at, kind, subject), Event(round(at + seconds, 2), Kind.RELEASES_JOB, subject)]
    lasts = kind in LASTING
    return [Event(at, kind, subject, seconds if lasts else 0.0, number)]


LASTING = frozenset(
    {
        Kind.NODE_DIES,
        Kind.AGENT_SILENT,
        Kind.MANAGEMENT_CUT,
        Kind.SLOW,
        Kind.PORT_DOWN,
        Kind.RANKS_STAY,
        Kind.DATABASE_AWAY,
        Kind.DATABASE_SLOW,
        Kind.CLOCK_SET,
        Kind.ALL_AGENTS_SILENT,
        Kind.MESSAGES_DISTURBED,
        Kind.SLURM_AWAY,
        Kind.SLURM_SLOW,
        Kind.SLURM_LOSES_ANSWERS,
        Kind.KILLED_BEFORE_EFFECT,
        Kind.KILLED_AFTER_EFFECT,
        Kind.KILLED_AT_COMMIT,
    }
)
"""Events with a duration; a control plane that was killed is started again after it."""
