"""What happens in one simulation: a list of events, drawn from a seed. Data only."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from itertools import chain, cycle
from random import Random

import msgspec

from tests.simulator.slurm import NOT_RESPONDING_SECONDS
from understudy_controlplane.config import NoSpare

NODES = 16
GANGS = (4, 3, 3, 3)
"""Nodes of each gang. The last one runs under a launcher, with one of its nodes as a spare."""

LAUNCHER_GANG = len(GANGS) - 1
MORE_GANGS = (16, 8, 32, 4)
"""Gangs of larger clusters, again and again until four fifths of the nodes are taken."""

SWEEPER = "sweeper"
"""The user whose gangs have one node each, and wait for the same licence server."""

FAULTS_BEGIN, FAULTS_END, END = 30.0, 420.0, 900.0
"""Seconds of the simulation. After the last fault everything must come to rest before the end."""

RACK = 4
"""Nodes of a leaf switch, in those scenarios in which a rack fails as a whole."""

LONGER = 3.0
"""Larger clusters have faults for this many times as long."""


def node_names(nodes: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(1, nodes + 1))


def gang_sizes(nodes: int) -> tuple[int, ...]:
    sizes, room = [*GANGS], nodes * sum(GANGS) // NODES - sum(GANGS)
    for size in cycle(MORE_GANGS):
        if size > room:
            return tuple(sizes)
        sizes.append(size)
        room -= size
    return tuple(sizes)


def faults_end(nodes: int) -> float:
    return FAULTS_END if nodes <= NODES else FAULTS_END * LONGER


def end_of(scenario: Scenario) -> float:
    return scenario.seconds or END - FAULTS_END + faults_end(scenario.nodes)


class Kind(StrEnum):
    """What happens. `subject` is a node or the number of a gang; `seconds` is how long it lasts."""

    NODE_DIES = "node dies"  # it boots by itself after `seconds`; 0: it stays dead
    RACK_DIES = "neighbouring nodes die at once"  # `number`: how many
    XID = "GPU reports an Xid"  # `number`: the code
    FAILS = "GPU of the node is broken until a person has repaired it"  # which takes `seconds`
    WRONGLY_ACCUSED = "well GPUs of neighbouring nodes report an Xid at once"  # `number`: of how many nodes
    XIDS_AT_ONCE = "GPUs of neighbouring nodes report an Xid at once"  # `number`: of how many nodes
    XID_OF_PROGRAM = "program causes an Xid"
    AGENT_SILENT = "agent is silent"
    MANAGEMENT_CUT = "management network of the node is down"  # its ranks go on
    SLOW = "GPU is slow"  # `number`: 1 where its clocks show why
    PORT_DOWN = "fabric port is down"
    NVLINK_DOWN = "NVLink is down"
    MEMORY_WEARS = "GPU of the node remaps rows of its memory"  # `number`: how many
    PROLOG_REFUSES = "Understudy's Prolog refuses jobs on the node"
    ALL_AGENTS_SILENT = "all agents are silent"
    MESSAGES_DISTURBED = "messages of the node are lost, late, twice and out of order"
    RANK_HANGS = "a rank does not enter the collective"  # on the seat of this number, from 1; 0: on the last
    SEAT_SLOW = "GPU of the gang's last node is slow"
    GANG_QUICK = "steps of the gang are short"  # and later as long as before: the gang is slow then, as a whole
    POWER_SAVES = "power saving switches the node off, if it is idle"  # it is back after `seconds`
    PING_MISSED = "slurmd of the node misses a ping"
    SWITCH_REBOOTS = "leaf switch of neighbouring nodes has rebooted"  # `number`: of how many nodes
    LICENCE_AWAY = "gangs of one user wait for a licence, to the end"
    COUNTS_AGAIN = "program of the gang counts its steps from 0 again"  # an epoch, or a second training
    FABRIC_STOPS = "fabric stops all gangs"  # they go on after `seconds`
    RANK_CRASHES = "a rank crashes, and its launcher starts the gang again"
    RANKS_STAY = "ranks of the gang's last node stay behind at its next launch"
    LOSS_NAN = "loss is NaN"
    COMPUTES_WRONG = "GPU of the gang's last node computes wrong"  # until it is repaired
    VALIDATION_FAILS = "the next validation of the node fails"
    SLURM_AWAY = "slurmctld does not answer"
    SLURM_SLOW = "slurmctld answers slowly"
    SLURM_LOSES_ANSWERS = "slurmctld does what it is asked and its answers are lost"
    SLURM_REFUSES = "slurmctld refuses all changes"
    SLURM_CRASHES = "slurmctld crashes and loses the last seconds"
    KILLED_BEFORE_EFFECT = "control plane is killed before its next effect"  # `number`: of effects before that one
    KILLED_AFTER_EFFECT = "control plane is killed after its next effect"
    KILLED_AT_COMMIT = "control plane is killed at a commit"  # `number`: of the commits from now on
    DATABASE_AWAY = "database does not answer"
    DATABASE_SLOW = "database answers slowly"
    CLOCK_SET = "control plane's clock is set"  # `number`: by how many seconds; it is set right after `seconds`
    DRAINS = "administrator drains the node"
    RESUMES = "administrator resumes the node"
    HOLDS = "operator holds the node"
    QUARANTINES = "operator reports a fault of the node"
    RELEASES = "operator releases the node"
    TESTS = "operator asks for a test of the node"
    BURN_INS = "operator asks for the burn-in of neighbouring nodes"  # `number`: of how many
    CANCELS_TEST = "administrator cancels the control plane's job on the node"
    RETIRES = "operator retires the node"
    REMOVES_SPARE = "operator takes a node out of the spare pool"
    FORGETS_SPARES = "operator lets the control plane choose its spares again"
    LEAKS = "the site reports a leak at the node"  # for which it wants nodes quarantined
    POWER_LOST = "the site reports a lost power feed of the node's rack"  # of which a person is to know
    LACKS_PACKAGE = "a package of the launcher's program is missing on the node"
    USERS_BLAME = "launchers of two users replace the node that they get"
    CANCELS_RECOVERY = "operator cancels the newest recovery"
    PAUSES = "operator pauses the control plane"
    PAUSES_NOW = "operator pauses the control plane and halts its recoveries"
    UNPAUSES = "operator ends the pause"
    DELETES_RESERVATIONS = "administrator deletes Understudy's reservations"
    PAUSES_JOB = "operator pauses the gang's job for the control plane"
    MOVES_JOB = "operator moves the gang off its first node"
    HOLDS_JOB = "user holds the gang's job"
    RELEASES_JOB = "user releases the gang's job"
    SUSPENDS = "administrator suspends the gang's job"
    SHRINKS = "administrator suspends the gang's job, takes its last node out of it, and resumes it"
    # `number`: 1 with slurmdbd
    OPTS_OUT = "user takes Understudy's word out of the comment of the gang's job"
    CANCELS = "user cancels the gang"
    COMPLETES = "gang completes"
    CRASHES = "gang's program fails"
    REQUEUES = "user requeues the gang"
    SUBMITS = "user submits a job"  # `number`: of how many nodes
    SUBMITS_LOW = "user submits a job that Slurm may preempt"  # `number`: of how many nodes
    ASKS_TO_SAVE = "operator asks the gang to save"
    SEAT_FAILS = "GPU of the gang's first node reports an Xid"
    SEAT_STAYS_BROKEN = "GPU of the gang's first node is broken until a person has repaired it"  # which takes `seconds`
    DRAINED_SEAT_DIES = "administrator drains the gang's first node, which dies `seconds` later"
    ROUTE_CUT = "control plane's own route to the node is away"  # Slurm reaches it
    HANGS_AT_STEP = "program of the gang hangs at its next step, and at that one after each restart"
    PLANS_MAINTENANCE = "administrator plans a maintenance of neighbouring nodes"  # in `seconds`; `number`: of how many
    DRILLS = "administrator lets the node report an Xid, as a drill"
    OBSERVED_XID = "well GPU reports an Xid whose rule only observes"
    OBSERVES = "administrator lets the control plane only observe"
    OBSERVES_NO_LONGER = "administrator lets the control plane act again"
    LEAVES_AT_CHECKPOINT = "operator moves the gang off its first node at its next checkpoint"
    DELETES_CHECKPOINT = "training of the gang deletes its newest checkpoint"
    LIMIT_REACHED = "other jobs have what the account of the gang may use"  # Slurm starts it after `seconds`


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
    """Settings of the control plane."""

    spares: int = 2
    observes: bool = False
    approves: bool = False  # a person approves each recovery, some seconds after it was proposed
    repairs: bool = True
    validates: bool = True
    no_spare: NoSpare = NoSpare.IDLE
    weighs: bool = False  # nodes on probation are the last that Slurm gives to jobs
    low_jobs: int = 0  # of one node, that Slurm may preempt
    exempt_seconds: int = 0  # after its start, in which Slurm preempts no job
    asks: bool = False  # the training of all gangs but the third asks when to save
    default_guards: bool = False  # those that the control plane has by default
    checks_spares: bool = False  # idle ones are validated again, in turn
    leaves_worn: bool = False  # nodes whose GPU memory wears out leave service
    sweeps: int = 0  # gangs of one node, all of one user
    few_moves: bool = False  # two gangs at once, four in an hour, and two of one gang
    small_nodes: int = 0  # the last ones have half the memory, and gangs ask for more
    saves_nothing: bool = False  # the second gang announces no checkpoints
    stays_ended: int = -1  # the gang whose job Slurm may not requeue
    learns_mode: bool = False  # mode observe is set for a time: what was found by then waits for approval
    taken_today: int = 0  # nodes that the rule of Xid 79 had taken out earlier in the day


class Scenario(msgspec.Struct, frozen=True, omit_defaults=True):
    seed: int
    events: tuple[Event, ...]
    settings: Settings = Settings()
    nodes: int = NODES
    leaf_switches: int = 2
    block_nodes: int = 0  # of each block of topology/block; 0: Slurm has leaf switches
    domains: dict[str, list[str]] = {}  # further ones, that the site has configured: "cdu c1" and its nodes
    seconds: float = 0.0  # its length; 0: what is usual for a cluster of its size
    quiet_seconds: float = 45.0  # between two rounds of the control plane while nothing happens, at most


BROKEN_FOR_GOOD = 79
"""The GPU has fallen off the bus."""

FATAL_XIDS = (48, BROKEN_FOR_GOOD, 95, 119)
PROGRAM_XIDS = (13, 31, 43)
DRAINING_XIDS = (63, 94)
CLOCK_JUMPS = (-3600, 3600, -200, 60)


class To(StrEnum):
    """Targets of an event."""

    NODE = "node"
    GANG = "gang"
    LAUNCHER = "launcher"
    ALL = "all"


def _short(random: Random) -> float:
    return round(random.uniform(1, 60), 1)


KINDS: tuple[tuple[int, Kind, To], ...] = (
    (6, Kind.NODE_DIES, To.NODE),
    (1, Kind.RACK_DIES, To.NODE),
    (8, Kind.XID, To.NODE),
    (1, Kind.XIDS_AT_ONCE, To.NODE),
    (2, Kind.XID_OF_PROGRAM, To.NODE),
    (3, Kind.AGENT_SILENT, To.NODE),
    (1, Kind.ALL_AGENTS_SILENT, To.ALL),
    (2, Kind.MANAGEMENT_CUT, To.NODE),
    (3, Kind.SLOW, To.NODE),
    (2, Kind.PORT_DOWN, To.NODE),
    (1, Kind.NVLINK_DOWN, To.NODE),
    (2, Kind.PROLOG_REFUSES, To.NODE),
    (3, Kind.MESSAGES_DISTURBED, To.NODE),
    (3, Kind.RANK_HANGS, To.GANG),
    (1, Kind.SEAT_SLOW, To.GANG),
    (2, Kind.GANG_QUICK, To.GANG),
    (1, Kind.FABRIC_STOPS, To.ALL),
    (1, Kind.RANKS_STAY, To.LAUNCHER),
    (3, Kind.LOSS_NAN, To.GANG),
    (2, Kind.COMPUTES_WRONG, To.GANG),
    (2, Kind.VALIDATION_FAILS, To.NODE),
    (3, Kind.SLURM_AWAY, To.ALL),
    (2, Kind.SLURM_SLOW, To.ALL),
    (3, Kind.SLURM_LOSES_ANSWERS, To.ALL),
    (1, Kind.SLURM_REFUSES, To.ALL),
    (1, Kind.SLURM_CRASHES, To.ALL),
    (4, Kind.KILLED_BEFORE_EFFECT, To.ALL),
    (4, Kind.KILLED_AFTER_EFFECT, To.ALL),
    (3, Kind.KILLED_AT_COMMIT, To.ALL),
    (2, Kind.DATABASE_AWAY, To.ALL),
    (1, Kind.DATABASE_SLOW, To.ALL),
    (2, Kind.CLOCK_SET, To.ALL),
    (3, Kind.DRAINS, To.NODE),
    (3, Kind.RESUMES, To.NODE),
    (2, Kind.HOLDS, To.NODE),
    (2, Kind.QUARANTINES, To.NODE),
    (2, Kind.RELEASES, To.NODE),
    (2, Kind.TESTS, To.NODE),
    (1, Kind.CANCELS_TEST, To.NODE),
    (1, Kind.RETIRES, To.NODE),
    (1, Kind.REMOVES_SPARE, To.ALL),
    (1, Kind.LEAKS, To.NODE),
    (1, Kind.POWER_LOST, To.NODE),
    (1, Kind.USERS_BLAME, To.ALL),
    (2, Kind.CANCELS_RECOVERY, To.ALL),
    (1, Kind.PAUSES, To.ALL),
    (1, Kind.PAUSES_NOW, To.ALL),
    (1, Kind.DELETES_RESERVATIONS, To.ALL),
    (2, Kind.PAUSES_JOB, To.GANG),
    (2, Kind.MOVES_JOB, To.GANG),
    (1, Kind.HOLDS_JOB, To.GANG),
    (2, Kind.CANCELS, To.GANG),
    (2, Kind.COMPLETES, To.GANG),
    (2, Kind.CRASHES, To.GANG),
    (1, Kind.REQUEUES, To.GANG),
    (2, Kind.SUBMITS, To.ALL),
)
"""How often, what, and to whom."""

TO_ALL = frozenset(kind for _, kind, to in KINDS if to is To.ALL)

COMPANIONS: dict[Kind, tuple[tuple[float, float, float, Kind], ...]] = {
    Kind.XID: (
        (0.15, 0.5, 4, Kind.SLURM_CRASHES),  # which loses the drain
        (0.2, -2, -0.5, Kind.KILLED_BEFORE_EFFECT),
        (0.25, 0.5, 5, Kind.DRAINS),  # the administrator has seen it as well
        (0.15, 100, 250, Kind.TESTS),  # in its probation
    ),
    Kind.SLOW: ((0.25, 40, 120, Kind.TESTS),),  # a suspect by then
    Kind.TESTS: (
        (0.15, 0.5, 6, Kind.CANCELS_RECOVERY),
        (0.15, 0.5, 6, Kind.DRAINS),
        (0.3, 1, 8, Kind.CANCELS_TEST),
        (0.15, 6, 14, Kind.SLURM_CRASHES),  # which brings a reservation back that was deleted
    ),
    Kind.RANK_HANGS: ((0.5, 110, 200, Kind.SEAT_SLOW),),  # a suspect by then, where there was no spare
    Kind.VALIDATION_FAILS: ((0.3, 1, 10, Kind.TESTS),),
    Kind.LOSS_NAN: ((0.5, 65, 140, Kind.REQUEUES),),  # its user has seen it
    Kind.COMPUTES_WRONG: ((0.6, 65, 140, Kind.REQUEUES),),
    Kind.REQUEUES: ((0.15, 130, 200, Kind.LOSS_NAN),),
    Kind.HOLDS: ((0.4, 5, 60, Kind.RELEASES),),
    Kind.RELEASES: ((0.3, -1, 0, Kind.SLURM_REFUSES),),  # to resume the node
    Kind.RACK_DIES: ((0.2, 1, 30, Kind.POWER_LOST),),
}
"""What an event comes with: how often, how many seconds later at least and at most, and what."""

WEIGHTS = [weight for weight, _, _ in KINDS]
TOGETHER_SECONDS = 6.0
"""Half of the events follow another one within this time: races need company."""


def draw(seed: int, nodes: int = NODES) -> Scenario:
    random = Random(seed)
    size = max(1, nodes // NODES)
    settings = Settings(
        spares=size * random.choice((0, 1, 2, 2, 2)),
        observes=random.random() < 0.05,
        repairs=random.random() < 0.8,
        validates=random.random() < 0.8,
        no_spare=random.choice((NoSpare.IDLE, NoSpare.IDLE, NoSpare.WAIT, NoSpare.PAGE)),
        weighs=random.random() < 0.3,
    )
    until = faults_end(nodes)
    events: list[Event] = []
    at = FAULTS_BEGIN
    for _ in range(random.randint(3, 9) * size):
        together = events and random.random() < 0.5
        at += random.uniform(0, TOGETHER_SECONDS) if together else random.uniform(5, 80 * until / FAULTS_END / size)
        at = min(at, until)
        events += _event(random, round(at, 2), events, nodes)
    events += _companions(random, events, nodes)
    leaf_switches = random.choice((2, 2, nodes // RACK))
    drawn = Scenario(seed, tuple(events), settings, nodes, leaf_switches)
    more = Random(f"more {seed}")  # apart, so that all other scenarios stay as they are
    if more.random() < PREEMPTION_SHARE:
        drawn = _with_preemption(drawn, more)
    if more.random() < ASKING_SHARE:
        drawn = _with_asking_gangs(drawn, more)
    for name, share, change in APART:
        apart = Random(f"{name} {seed}")
        if apart.random() < share:
            drawn = change(drawn, apart)
    site = Random(f"site {seed}")
    if site.random() < SITE_SHARE and nodes == NODES:
        drawn = _with_other_site(drawn, site)
    elif (rare := Random(f"rare {seed}")).random() < RARE_SHARE and nodes == NODES:
        drawn = rare.choice(RARE_DAYS)(drawn, rare)
    return msgspec.structs.replace(drawn, events=tuple(sorted(drawn.events, key=lambda event: event.at)))


PREEMPTION_SHARE = 0.12
ASKING_SHARE = 0.15
SITE_SHARE = 0.6
RARE_SHARE = 0.75
"""Share of the seeds without another site."""


def _moments(scenario: Scenario, random: Random, most: int) -> list[float]:
    """One for each 16 nodes, or more."""
    number = random.randint(1, most) * max(1, scenario.nodes // NODES)
    return [round(random.uniform(FAULTS_BEGIN, faults_end(scenario.nodes)), 2) for _ in range(number)]


def _with_preemption(scenario: Scenario, random: Random) -> Scenario:
    """Jobs that Slurm may preempt take all idle nodes, and gangs lose some more nodes than there are spares."""
    size = max(1, scenario.nodes // NODES)
    settings = msgspec.structs.replace(
        scenario.settings,
        no_spare=NoSpare.PREEMPT,
        spares=size * random.choice((0, 0, 1)),
        low_jobs=size * random.randint(2, 5),
        exempt_seconds=random.choice((0, 0, 60, 300)),
    )
    in_gangs = node_names(scenario.nodes)[: sum(gang_sizes(scenario.nodes))]
    faults = [Event(at, Kind.XID, random.choice(in_gangs), 0.0, 79) for at in _moments(scenario, random, 2)]
    jobs = [Event(at, Kind.SUBMITS_LOW, number=random.choice((1, 1, 2))) for at in _moments(scenario, random, 2)]
    return msgspec.structs.replace(scenario, settings=settings, events=(*scenario.events, *faults, *jobs))


def _with_asking_gangs(scenario: Scenario, random: Random) -> Scenario:
    settings, gangs = msgspec.structs.replace(scenario.settings, asks=True), range(len(gang_sizes(scenario.nodes)))
    saves = [Event(at, Kind.ASKS_TO_SAVE, str(random.choice(gangs))) for at in _moments(scenario, random, 4)]
    moves = [Event(at, Kind.LEAVES_AT_CHECKPOINT, str(random.choice(gangs))) for at in _moments(scenario, random, 2)]
    events = [*saves, *(moves if random.random() < 0.5 else ())]
    for event in saves:
        if random.random() < 0.6:  # while the order is on its way
            at, disturbed = round(event.at + random.uniform(-1, 9), 2), random.choice(DISTURBS_ORDERS)
            first = sum(gang_sizes(scenario.nodes)[: int(event.subject)])
            subject = "" if disturbed in TO_ALL else node_names(scenario.nodes)[first]
            events += _make(random, max(at, FAULTS_BEGIN), disturbed, subject, scenario.nodes)
    return msgspec.structs.replace(scenario, settings=settings, events=(*scenario.events, *events))


def _with_blocks(scenario: Scenario, random: Random) -> Scenario:
    """Slurm has topology/block; the fabric of most nodes of a block may fail. More spares, so that units are found."""
    block_nodes = random.choice((RACK, 2 * RACK))
    settings = msgspec.structs.replace(scenario.settings, spares=scenario.settings.spares * random.choice((1, 2)))
    names, failing = node_names(scenario.nodes), _moments(scenario, random, 2) if random.random() < 0.6 else ()
    events = []
    for at in failing:
        first, seconds = (
            block_nodes * random.randrange(scenario.nodes // block_nodes),
            round(random.uniform(60, 300), 1),
        )
        failed = names[first : first + random.randint(block_nodes // 2 + 1, block_nodes)]
        events += [Event(at, Kind.NVLINK_DOWN, name, seconds) for name in failed]
    both = (*scenario.events, *events)
    return msgspec.structs.replace(scenario, settings=settings, block_nodes=block_nodes, events=both)


def _with_validations(scenario: Scenario, random: Random) -> Scenario:
    """Idle spares are validated in turn, and neighbouring nodes, the last of which no gang has, are burnt in."""
    settings = msgspec.structs.replace(scenario.settings, validates=True, checks_spares=random.random() < 0.7)
    names, burn_ins = node_names(scenario.nodes), _moments(scenario, random, 2) if random.random() < 0.7 else ()
    events = []
    for at in burn_ins:
        number = random.randint(1, RACK)
        events.append(Event(at, Kind.BURN_INS, names[-number - random.choice((0, 0, 1))], number=number))
    return msgspec.structs.replace(scenario, settings=settings, events=(*scenario.events, *events))


def _with_changes_of_jobs(scenario: Scenario, random: Random) -> Scenario:
    """Their owners and administrators change jobs in Slurm, often while these are moved."""
    gangs, events = range(len(gang_sizes(scenario.nodes))), list[Event]()
    for at in _moments(scenario, random, 4):
        gang = random.choice(gangs)
        kind = random.choice(CHANGES_OF_JOBS)
        if random.random() < 0.5:
            first = sum(gang_sizes(scenario.nodes)[:gang])
            events.append(Event(at, Kind.XID, node_names(scenario.nodes)[first], 0.0, random.choice(FATAL_XIDS)))
        later = random.choice((0.0, random.uniform(0, TOGETHER_SECONDS)))
        seconds = SECONDS[kind](random) if kind in SECONDS else 0.0
        events.append(Event(round(at + later, 2), kind, str(gang), seconds))
    return msgspec.structs.replace(scenario, events=(*scenario.events, *events))


def _with_smaller_gangs(scenario: Scenario, random: Random) -> Scenario:
    """An administrator makes room for another job."""
    gangs = range(len(gang_sizes(scenario.nodes)))
    for at in _moments(scenario, random, 1):
        seconds, has_slurmdbd = SECONDS[Kind.SHRINKS](random), random.choice((0, 1))
        event = Event(at, Kind.SHRINKS, str(random.choice(gangs)), seconds, has_slurmdbd)
        scenario = msgspec.structs.replace(scenario, events=(*scenario.events, event))
    return scenario


def _with_epochs(scenario: Scenario, random: Random) -> Scenario:
    """Programs that number their steps within an epoch, each in epochs of its own length."""
    events, until = [], faults_end(scenario.nodes)
    for number in range(len(gang_sizes(scenario.nodes))):
        epoch = random.uniform(60, 200) if random.random() < 0.5 else until
        ends = (FAULTS_BEGIN + epoch * count for count in range(1, 1 + int((until - FAULTS_BEGIN) / epoch)))
        events += [Event(round(at, 1), Kind.COUNTS_AGAIN, str(number)) for at in ends]
    return msgspec.structs.replace(scenario, events=(*scenario.events, *events))


def _with_failed_switch(scenario: Scenario, random: Random) -> Scenario:
    """The ports of a rack, or of two, go down together, and come back."""
    names, racks = node_names(scenario.nodes), scenario.nodes // RACK
    events = []
    for at in _moments(scenario, random, 2):
        first = RACK * random.randrange(racks)
        failed = names[first : first + RACK * random.choice((1, 1, 2))]
        seconds = round(random.uniform(20, 250), 1)
        events += [Event(at, Kind.PORT_DOWN, name, seconds) for name in failed]
    return msgspec.structs.replace(scenario, events=(*scenario.events, *events))


def _with_ordinary_days(scenario: Scenario, random: Random) -> Scenario:
    """What looks like a fault of many nodes, and is none: spares that are switched off, a missed ping, a leaf switch
    that reboots three times, and jobs of one user that wait for a licence while the GPU of another user's gang breaks.
    """
    names, settings = node_names(scenario.nodes), scenario.settings
    first, until = RACK * random.randrange(scenario.nodes // RACK), faults_end(scenario.nodes)
    events: list[Event] = []
    match random.choice((Kind.POWER_SAVES, Kind.PING_MISSED, Kind.SWITCH_REBOOTS, Kind.LICENCE_AWAY)):
        case Kind.SWITCH_REBOOTS:
            moments = (FAULTS_BEGIN + 40, FAULTS_BEGIN + 170, FAULTS_BEGIN + 300)
            size = scenario.nodes // scenario.leaf_switches  # it takes all its ports along
            first -= first % size
            events = [Event(at, Kind.SWITCH_REBOOTS, names[first], 35.0, size) for at in moments]
        case Kind.LICENCE_AWAY:
            settings = msgspec.structs.replace(settings, sweeps=3)
            at = round(random.uniform(FAULTS_BEGIN, until / 2), 2)
            fault = Event(at + 200, Kind.XID, random.choice(names[: sum(gang_sizes(scenario.nodes))]), 0.0, 79)
            events = [Event(at, Kind.LICENCE_AWAY), fault]
        case kind:
            seconds = (60, 200) if kind is Kind.POWER_SAVES else (5, NOT_RESPONDING_SECONDS)  # until the next ping
            for at in _moments(scenario, random, 3):
                events += [Event(at, kind, name, round(random.uniform(*seconds), 1)) for name in names[-RACK:]]
    return msgspec.structs.replace(scenario, settings=settings, events=(*scenario.events, *events))


def _with_crashes(scenario: Scenario, random: Random) -> Scenario:
    events = [Event(at, Kind.RANK_CRASHES, str(LAUNCHER_GANG)) for at in _moments(scenario, random, 2)]
    return msgspec.structs.replace(scenario, events=(*scenario.events, *events))


def _with_missing_packages(scenario: Scenario, random: Random) -> Scenario:
    """The program of the launcher's gang fails on nodes to which it comes for a fault, its own spare among them."""
    names, gangs = node_names(scenario.nodes), sum(gang_sizes(scenario.nodes))
    lacking = random.sample(names[gangs - 2 :], random.randint(1, 2))
    packages = [Event(FAULTS_BEGIN, Kind.LACKS_PACKAGE, name) for name in lacking]
    faults = [Event(at, Kind.SEAT_FAILS, str(LAUNCHER_GANG), 0.0, 79) for at in _moments(scenario, random, 2)]
    return msgspec.structs.replace(scenario, events=(*scenario.events, *packages, *faults))


APART: tuple[tuple[str, float, Callable[[Scenario, Random], Scenario]], ...] = (
    ("blocks", 0.12, _with_blocks),
    ("validations", 0.12, _with_validations),
    ("crashes", 0.12, _with_crashes),
    ("owners", 0.12, _with_changes_of_jobs),
    ("switch", 0.12, _with_failed_switch),
    ("ordinary", 0.15, _with_ordinary_days),
    ("counts", 0.3, _with_epochs),
    ("shrinks", 0.08, _with_smaller_gangs),
    ("packages", 0.08, _with_missing_packages),
)
"""What is drawn apart from all else, in which share of the seeds."""

LARGE_FLEET = 64
"""Nodes; there the limits of 10 and 12 are reached."""


def _with_other_site(scenario: Scenario, random: Random) -> Scenario:
    """What another site does, or has: one of these, so that the seed stays as it is otherwise."""
    choose = random.choice(OTHER_SITES)
    return choose(scenario, random)


def _approves(scenario: Scenario, random: Random) -> Scenario:
    faults = [Event(at, Kind.SEAT_FAILS, str(_any_gang(random)), 0.0, 79) for at in _moments(scenario, random, 2)]
    return _changed(scenario, faults, approves=True, observes=False)


def _moves_often(scenario: Scenario, random: Random) -> Scenario:
    """One gang, or all of them, lose a node again and again, and few moves are permitted."""
    gang, at = _any_gang(random), random.uniform(FAULTS_BEGIN, 3 * FAULTS_BEGIN)
    faults = []
    for number in range(random.randint(4, 6)):
        subject = str(gang if random.random() < 0.6 else number % len(GANGS))
        faults.append(Event(round(at, 2), Kind.SEAT_FAILS, subject, 0.0, 79))
        at += random.choice((random.uniform(0, 1), random.uniform(20, 60)))
    return _changed(scenario, faults, few_moves=True, spares=max(4, scenario.settings.spares))


def _hangs_for_ever(scenario: Scenario, random: Random) -> Scenario:
    at = round(random.uniform(FAULTS_BEGIN, 4 * FAULTS_BEGIN), 2)
    return _changed(scenario, [Event(at, Kind.HANGS_AT_STEP, str(_any_gang(random)))])


def _is_maintained(scenario: Scenario, random: Random) -> Scenario:
    """Spares, or seats of a gang, of which one fails."""
    names, first = node_names(scenario.nodes), random.choice((0, 4, NODES - RACK, NODES - 3))
    at, soon = round(random.uniform(FAULTS_BEGIN, 300), 2), round(random.uniform(60, 3000), 1)
    planned = Event(at, Kind.PLANS_MAINTENANCE, names[first], soon, random.randint(1, 3))
    fault = Event(round(at + random.uniform(1, 60), 2), Kind.SEAT_FAILS, str(_any_gang(random)), 0.0, 79)
    return _changed(scenario, [planned, fault])


def _drills(scenario: Scenario, random: Random) -> Scenario:
    names = node_names(scenario.nodes)
    drills = [
        Event(at, Kind.DRILLS, random.choice(names), round(random.uniform(20, 120), 1))
        for at in _moments(scenario, random, 2)
    ]
    return _changed(scenario, drills)


def _observes_a_rule(scenario: Scenario, random: Random) -> Scenario:
    names = node_names(scenario.nodes)
    return _changed(
        scenario, [Event(at, Kind.OBSERVED_XID, random.choice(names)) for at in _moments(scenario, random, 3)]
    )


def _has_small_nodes(scenario: Scenario, random: Random) -> Scenario:
    faults = [Event(at, Kind.SEAT_FAILS, str(_any_gang(random)), 0.0, 79) for at in _moments(scenario, random, 3)]
    return _changed(scenario, faults, small_nodes=random.choice((1, 2)))


def _saves_nothing(scenario: Scenario, random: Random) -> Scenario:
    at = round(random.uniform(120, 300), 2)
    return _changed(scenario, [Event(at, Kind.SEAT_SLOW, "1", 200.0, random.choice((0, 1)))], saves_nothing=True)


def _observes_for_a_time(scenario: Scenario, random: Random) -> Scenario:
    at, events = random.uniform(FAULTS_BEGIN, 200), []
    for moment in (at + 5, at + 60):
        events.append(Event(round(moment, 2), Kind.SEAT_FAILS, str(_any_gang(random)), 0.0, 79))
    events += [
        Event(round(at, 2), Kind.OBSERVES),
        Event(round(at + random.uniform(20, 150), 2), Kind.OBSERVES_NO_LONGER),
    ]
    return _changed(scenario, events, learns_mode=True, observes=False)


def _dismisses(scenario: Scenario, random: Random) -> Scenario:
    """A node that only looks wrong, and one that is."""
    name, at = random.choice(node_names(scenario.nodes)), round(random.uniform(FAULTS_BEGIN, 300), 2)
    kind = random.choice((Kind.NVLINK_DOWN, Kind.SLOW, Kind.XID))
    seconds = round(random.uniform(30, 90), 1)
    fault = Event(at, kind, name, seconds, 79 if kind is Kind.XID else 1)
    return _changed(scenario, [fault, Event(round(at + random.uniform(1, 40), 2), Kind.RELEASES, name)])


def _has_a_wrong_rule(scenario: Scenario, random: Random) -> Scenario:
    """Scenario in a larger fleet, whose guards are those by default."""
    names, events, at = node_names(LARGE_FLEET), [], random.uniform(FAULTS_BEGIN, 150)
    for first in random.sample(range(0, LARGE_FLEET - RACK, RACK + 1), random.randint(3, 6)):
        events.append(Event(round(at, 2), Kind.WRONGLY_ACCUSED, names[first], 0.0, random.randint(2, RACK)))
        at += random.choice((random.uniform(0, 3), random.uniform(10, 60)))
    larger = msgspec.structs.replace(scenario, nodes=LARGE_FLEET, leaf_switches=8, block_nodes=0, seconds=END)
    return _changed(larger, events, default_guards=True)


def _cannot_reach_nodes(scenario: Scenario, random: Random) -> Scenario:
    """Scenario with nodes of which Slurm knows that they answer, and whose gangs work."""
    first, at = random.randrange(sum(GANGS) - 1), round(random.uniform(FAULTS_BEGIN, 250), 2)
    names, seconds = node_names(scenario.nodes), round(random.uniform(130, 300), 1)
    cut = [Event(at, Kind.ROUTE_CUT, name, seconds) for name in names[first : first + random.choice((1, 2))]]
    return _changed(scenario, cut)


def _loses_a_job_that_stays_ended(scenario: Scenario, random: Random) -> Scenario:
    at, gang = round(random.uniform(FAULTS_BEGIN, 300), 2), random.choice((1, 2))
    code = random.choice((79, 79, 94))
    return _changed(scenario, [Event(at, Kind.SEAT_FAILS, str(gang), 0.0, code)], stays_ended=gang)


def _repairs_in_vain(scenario: Scenario, random: Random) -> Scenario:
    at, seconds = round(random.uniform(FAULTS_BEGIN, 250), 2), round(random.uniform(100, 250), 1)
    fault = Event(at, Kind.SEAT_STAYS_BROKEN, str(_any_gang(random)), seconds)
    return _changed(scenario, [fault], repairs=True, validates=True)


def _loses_a_drained_node(scenario: Scenario, random: Random) -> Scenario:
    at, seconds = round(random.uniform(FAULTS_BEGIN, 250), 2), round(random.uniform(1, 60), 1)
    return _changed(scenario, [Event(at, Kind.DRAINED_SEAT_DIES, str(_any_gang(random)), seconds)])


def _crowded(scenario: Scenario, random: Random) -> Scenario:
    """What changes while a gang is moved: a spare breaks, another gang needs one, its owner opts out, jobs wait."""
    events = []
    for at in _moments(scenario, random, 2):
        events.append(Event(at, Kind.SEAT_FAILS, str(random.randrange(2)), 0.0, 79))
        soon = round(at + random.choice((0.0, random.uniform(0, 3))), 2)
        other = Event(soon, Kind.SEAT_FAILS, str(random.choice((2, 3))), 0.0, 79)
        spare = Event(soon, Kind.XID, random.choice(node_names(scenario.nodes)[-3:]), 0.0, 79)
        leaves = Event(round(at + random.uniform(0.5, 8), 2), Kind.OPTS_OUT, str(random.randrange(2)))
        waiting = Event(round(at - 1, 2), Kind.SUBMITS, number=3)
        events += random.choice(([other], [spare], [spare, other], [leaves], [waiting]))
        if random.random() < 0.4:
            events.append(Event(round(at - 0.5, 2), Kind.SLURM_SLOW, "", 20.0))
    return _changed(scenario, events, spares=max(2, scenario.settings.spares))


def _stops_together(scenario: Scenario, random: Random) -> Scenario:
    at, seconds = round(random.uniform(FAULTS_BEGIN + 20, 250), 2), round(random.uniform(60, 200), 1)
    return _changed(scenario, [Event(at, Kind.FABRIC_STOPS, "", seconds)])


OTHER_SITES = (
    _cannot_reach_nodes,
    _loses_a_job_that_stays_ended,
    _repairs_in_vain,
    _loses_a_drained_node,
    _crowded,
    _crowded,
    _stops_together,
    _approves,
    _approves,
    _moves_often,
    _moves_often,
    _hangs_for_ever,
    _is_maintained,
    _drills,
    _observes_a_rule,
    _has_small_nodes,
    _saves_nothing,
    _observes_for_a_time,
    _dismisses,
    _has_a_wrong_rule,
)


def _loses_nodes_at_once(scenario: Scenario, random: Random) -> Scenario:
    """Gangs that share nothing, each one of its own: more than may be moved at once."""
    at = random.uniform(FAULTS_BEGIN, 300)
    faults = [Event(round(at + random.random(), 2), Kind.SEAT_FAILS, str(gang), 0.0, 79) for gang in range(len(GANGS))]
    return _changed(scenario, faults, few_moves=True, spares=3)


def _is_stopped_in_a_move(scenario: Scenario, random: Random) -> Scenario:
    """While a gang is moved, mode observe is set, or its owner opts out. A slow slurmctld leaves time for that."""
    at, gang = round(random.uniform(FAULTS_BEGIN, 300), 2), str(random.randrange(LAUNCHER_GANG))
    soon = round(at + random.uniform(0.2, 6), 2)
    events = [Event(at, Kind.SLURM_SLOW, "", 30.0), Event(at, Kind.SEAT_FAILS, gang, 0.0, 79)]
    if random.random() < 0.5:
        return _changed(scenario, [*events, Event(soon, Kind.OPTS_OUT, gang)], spares=2)
    acts = Event(round(at + random.uniform(20, 100), 2), Kind.OBSERVES_NO_LONGER)
    return _changed(scenario, [*events, Event(soon, Kind.OBSERVES), acts], learns_mode=True, observes=False, spares=2)


def _cannot_reach_small_jobs(scenario: Scenario, random: Random) -> Scenario:
    """Cuts off jobs of which no other node reports a step. Slurm knows that they work."""
    at, seconds = round(random.uniform(FAULTS_BEGIN, 200), 2), round(random.uniform(150, 300), 1)
    cut = [Event(at, Kind.ROUTE_CUT, name, seconds) for name in node_names(NODES)[-3 : -random.choice((1, 2))]]
    return _changed(scenario, cut, sweeps=2, spares=1)


def _had_a_bad_day(scenario: Scenario, random: Random) -> Scenario:
    """One rule has taken out about as many nodes as it may within a day."""
    moments = [random.uniform(FAULTS_BEGIN, 300) for _ in range(3)]
    faults = [Event(round(at, 2), Kind.SEAT_FAILS, str(_any_gang(random)), 0.0, 79) for at in moments]
    return _changed(scenario, faults, taken_today=random.randint(10, 12), default_guards=True)


def _deletes_checkpoints(scenario: Scenario, random: Random) -> Scenario:
    events = []
    for at in _moments(scenario, random, 3):
        gang = str(_any_gang(random))
        events.append(Event(at, Kind.DELETES_CHECKPOINT, gang))
        events.append(Event(round(at + random.uniform(2, 20), 2), Kind.SEAT_FAILS, gang, 0.0, 79))
    return _changed(scenario, events)


def _waits_for_its_account(scenario: Scenario, random: Random) -> Scenario:
    """Others wait for its nodes meanwhile."""
    at, gang, seconds = round(random.uniform(40, 250), 2), str(_any_gang(random)), round(random.uniform(40, 140), 1)
    limit, fault = Event(at - 1, Kind.LIMIT_REACHED, gang, seconds), Event(at, Kind.SEAT_FAILS, gang, 0.0, 79)
    return _changed(scenario, [limit, fault, Event(at + 20, Kind.SUBMITS, number=3)], spares=2)


def _hears_no_agent(scenario: Scenario, random: Random) -> Scenario:
    at, seconds = round(random.uniform(FAULTS_BEGIN, 150), 2), round(random.uniform(250, 300), 1)
    return _changed(scenario, [Event(at, Kind.ALL_AGENTS_SILENT, "", seconds)])


RARE_DAYS = (
    _waits_for_its_account,
    _hears_no_agent,
    _loses_nodes_at_once,
    _is_stopped_in_a_move,
    _cannot_reach_small_jobs,
    _had_a_bad_day,
    _deletes_checkpoints,
)


def _any_gang(random: Random) -> int:
    return random.randrange(len(GANGS))


def _changed(scenario: Scenario, events: list[Event], **settings: object) -> Scenario:
    changed = msgspec.structs.replace(scenario.settings, **settings)
    return msgspec.structs.replace(scenario, settings=changed, events=(*scenario.events, *events))


CHANGES_OF_JOBS = (Kind.SUSPENDS, Kind.SUSPENDS, Kind.OPTS_OUT)

DISTURBS_ORDERS = (
    Kind.AGENT_SILENT,
    Kind.MESSAGES_DISTURBED,
    Kind.MANAGEMENT_CUT,
    Kind.ALL_AGENTS_SILENT,
    Kind.KILLED_AT_COMMIT,
    Kind.DATABASE_AWAY,
)


def _subject(random: Random, to: To, nodes: int, earlier: list[Event]) -> str:
    match to:
        case To.NODE:
            subject = random.choice(node_names(nodes))
            before = [event.subject for event in earlier if event.subject.startswith("n")]
            if before and random.random() < 0.4:
                return random.choice(before)  # more happens to a node that is in trouble already
            return subject
        case To.GANG:
            return str(random.randrange(len(gang_sizes(nodes))))
        case To.LAUNCHER:
            return str(LAUNCHER_GANG)
        case To.ALL:
            return ""


def _event(random: Random, at: float, earlier: list[Event], nodes: int) -> list[Event]:
    _, kind, to = random.choices(KINDS, WEIGHTS)[0]
    return _make(random, at, kind, _subject(random, to, nodes, earlier), nodes)


def _companions(random: Random, events: list[Event], nodes: int) -> list[Event]:
    """Companions of some of these events, and of their companions, to the same node or gang."""
    found: list[Event] = []
    for event in chain(events, found):  # which grows meanwhile
        for share, least, most, kind in COMPANIONS.get(event.kind, ()):
            at = round(event.at + random.uniform(least, most), 2)
            if random.random() < share and FAULTS_BEGIN <= at <= faults_end(nodes):
                found += _make(random, at, kind, "" if kind in TO_ALL else event.subject, nodes)
    return found


def _make(random: Random, at: float, kind: Kind, subject: str, nodes: int) -> list[Event]:
    if kind is Kind.PROLOG_REFUSES:  # on a node that a job is about to get
        subject = random.choice(node_names(nodes)[-3:])
        return [Event(at, kind, subject, _short(random)), Event(round(at + 0.5, 2), Kind.SUBMITS, number=1)]
    if kind is Kind.USERS_BLAME and random.random() < 0.5:  # which looks odd by then
        idle = random.choice(node_names(nodes)[-3:])
        return [Event(at, kind), Event(round(at + random.uniform(1, 25), 2), Kind.NVLINK_DOWN, idle, _short(random))]
    if kind is Kind.GANG_QUICK:  # what follows takes the rest of the simulation
        return [Event(round(random.uniform(FAULTS_BEGIN, 2 * FAULTS_BEGIN), 2), kind, subject, SECONDS[kind](random))]
    if kind is Kind.RACK_DIES and random.random() < 0.5:
        first = random.randrange(nodes // RACK) * RACK
        return [Event(at, kind, node_names(nodes)[first], SECONDS[kind](random), RACK)]
    if kind in ENDS_WITH:
        return [Event(at, kind, subject), Event(round(at + _short(random), 2), ENDS_WITH[kind], subject)]
    seconds = SECONDS.get(kind, _short)(random) if kind in LASTING else 0.0
    return [Event(at, kind, subject, seconds, NUMBERS[kind](random) if kind in NUMBERS else 0)]


def _or_for_good(seconds: Callable[[Random], float]) -> Callable[[Random], float]:
    return lambda random: random.choice((0.0, seconds(random)))


def _seconds(least: float, most: float) -> Callable[[Random], float]:
    return lambda random: round(random.uniform(least, most), 1)


SECONDS: dict[Kind, Callable[[Random], float]] = {
    Kind.NODE_DIES: _or_for_good(_seconds(20, 200)),
    Kind.RACK_DIES: _seconds(20, 200),
    Kind.FABRIC_STOPS: _seconds(1, 150),
    Kind.SLOW: _seconds(60, 200),
    Kind.SEAT_SLOW: _seconds(60, 200),
    Kind.GANG_QUICK: _seconds(100, 140),
    Kind.PORT_DOWN: _or_for_good(_short),
    Kind.SLURM_REFUSES: lambda random: round(random.choice((random.uniform(5, 55), random.uniform(65, 130))), 1),
    Kind.CLOCK_SET: _or_for_good(_short),
    Kind.SUSPENDS: _seconds(1, 200),
    Kind.SHRINKS: _seconds(2, 60),
}
"""How long it lasts; others last up to a minute."""

NUMBERS: dict[Kind, Callable[[Random], int]] = {
    Kind.XID: lambda random: random.choice((*FATAL_XIDS, *FATAL_XIDS, *DRAINING_XIDS)),
    Kind.XID_OF_PROGRAM: lambda random: random.choice(PROGRAM_XIDS),
    Kind.XIDS_AT_ONCE: lambda random: random.randint(2, 8),
    Kind.RACK_DIES: lambda random: random.randint(2, 6),
    Kind.SUBMITS: lambda random: random.randint(1, 3),
    Kind.KILLED_BEFORE_EFFECT: lambda random: random.choice((0, random.randint(1, 12))),
    Kind.KILLED_AFTER_EFFECT: lambda random: random.choice((0, random.randint(1, 12))),
    Kind.KILLED_AT_COMMIT: lambda random: random.randint(1, 30),
    Kind.SLOW: lambda random: random.choice((0, 1)),
    Kind.CLOCK_SET: lambda random: random.choice(CLOCK_JUMPS),
}

ENDS_WITH = {
    Kind.PAUSES: Kind.UNPAUSES,
    Kind.PAUSES_NOW: Kind.UNPAUSES,
    Kind.HOLDS_JOB: Kind.RELEASES_JOB,
    Kind.DRAINS: Kind.RESUMES,
    Kind.REMOVES_SPARE: Kind.FORGETS_SPARES,
}
"""What is always undone by another event."""

LASTING = frozenset(
    {
        Kind.NODE_DIES,
        Kind.RACK_DIES,
        Kind.NVLINK_DOWN,
        Kind.PROLOG_REFUSES,
        Kind.FABRIC_STOPS,
        Kind.AGENT_SILENT,
        Kind.MANAGEMENT_CUT,
        Kind.SLOW,
        Kind.SEAT_SLOW,
        Kind.GANG_QUICK,
        Kind.PORT_DOWN,
        Kind.RANKS_STAY,
        Kind.PAUSES_JOB,
        Kind.SUSPENDS,
        Kind.SHRINKS,
        Kind.LEAKS,
        Kind.POWER_LOST,
        Kind.DATABASE_AWAY,
        Kind.DATABASE_SLOW,
        Kind.CLOCK_SET,
        Kind.ALL_AGENTS_SILENT,
        Kind.MESSAGES_DISTURBED,
        Kind.SLURM_AWAY,
        Kind.SLURM_SLOW,
        Kind.SLURM_LOSES_ANSWERS,
        Kind.SLURM_REFUSES,
        Kind.KILLED_BEFORE_EFFECT,
        Kind.KILLED_AFTER_EFFECT,
        Kind.KILLED_AT_COMMIT,
    }
)
"""Events with a duration; a control plane that was killed is started again after it."""
