"""The table of transitions: which state of a node follows from which finding, and what is done about it.

The numbers stand in every decision, log line and document; a number is never given to another row. Rows are looked
up by (state, signal); a pair that is not here means nothing at all and leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.fleet.decision import Action
from controlplane.fleet.finding import Signal
from controlplane.fleet.node import NodeState

IN_SERVICE = NodeState.IN_SERVICE
SUSPECT = NodeState.SUSPECT
QUARANTINED = NodeState.QUARANTINED
UNKNOWN = NodeState.UNKNOWN
FOREIGN_DRAIN = NodeState.FOREIGN_DRAIN
TRUSTED = (IN_SERVICE, SUSPECT, UNKNOWN)
"""States in which a node may still hold work that we would have to move."""

ALL = tuple(NodeState)


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    states: tuple[NodeState, ...]
    signal: Signal
    to: NodeState | None  # None: stays
    action: Action
    why: str


TABLE: tuple[Row, ...] = (
    Row(
        10,
        TRUSTED,
        Signal.HARDWARE_FAULT,
        QUARANTINED,
        Action.QUARANTINE,
        "the hardware itself says it cannot go on",
    ),
    Row(
        11,
        TRUSTED,
        Signal.NODE_DEAD,
        QUARANTINED,
        Action.QUARANTINE,
        "agent and slurmd are gone and no job there goes on: waiting for SlurmdTimeout helps nobody",
    ),
    Row(
        12,
        TRUSTED,
        Signal.STRAGGLER_CONFIRMED,
        QUARANTINED,
        Action.QUARANTINE,
        "slow by its own time, and its GPU says so too: the whole gang runs at its pace",
    ),
    Row(
        13,
        (QUARANTINED,),
        Signal.GANG_STRANDED,
        None,
        Action.MOVE_GANG,
        "a gang that could not be moved when its node was quarantined is moved as soon as it can be",
    ),
    Row(
        15,
        (*TRUSTED, FOREIGN_DRAIN),
        Signal.SEAT_LOST,
        None,
        Action.MOVE_GANG,
        "the node is somebody else's now and left alone; the gang that waits for it gets another",
    ),
    Row(14, (QUARANTINED,), Signal.UNDRAINED, None, Action.DRAIN_AGAIN, "the drain was refused and is tried again"),
    Row(
        17,
        (QUARANTINED,),
        Signal.DRAINED_FOR_US,
        None,
        Action.DRAIN_AGAIN,
        "our Prolog kept a job off it and Slurm drained it for that: the drain is given our reason",
    ),
    Row(
        18,
        (*TRUSTED, FOREIGN_DRAIN),
        Signal.DRAINED_FOR_US,
        QUARANTINED,
        Action.DRAIN_AGAIN,
        "our Prolog kept a job off it and Slurm drained it for that: the drain is ours",
    ),
    Row(
        20,
        (IN_SERVICE,),
        Signal.STRAGGLER_SUSPECTED,
        SUSPECT,
        Action.NOTHING,
        "statistics alone mark a suspect; they drain nobody",
    ),
    Row(21, (SUSPECT,), Signal.CLEAN, IN_SERVICE, Action.NOTHING, "it keeps up again"),
    Row(30, (IN_SERVICE, SUSPECT), Signal.SILENT, UNKNOWN, Action.NOTHING, "silence is not death"),
    Row(31, (UNKNOWN,), Signal.HEARD, IN_SERVICE, Action.NOTHING, "heard again"),
    Row(
        40,
        TRUSTED,
        Signal.DRAINED_BY_OTHERS,
        FOREIGN_DRAIN,
        Action.NOTHING,
        "somebody else took it out of service: looked at, not touched",
    ),
    Row(
        41,
        (FOREIGN_DRAIN,),
        Signal.DRAIN_LIFTED,
        IN_SERVICE,
        Action.NOTHING,
        "whoever drained it has resumed it",
    ),
    Row(
        42,
        (FOREIGN_DRAIN,),
        Signal.HARDWARE_FAULT,
        None,
        Action.NOTHING,
        "it is out of service by somebody else's decision, and theirs to deal with",
    ),
    Row(43, (FOREIGN_DRAIN,), Signal.NODE_DEAD, None, Action.NOTHING, "as row 42"),
    Row(
        50,
        (QUARANTINED,),
        Signal.DRAIN_LIFTED,
        IN_SERVICE,
        Action.NOTHING,
        "a person resumed it and answers for it: what was known against it is cleared",
    ),
    Row(60, ALL, Signal.APPLICATION_FAULT, None, Action.NOTHING, "the program's own fault condemns no node"),
    Row(61, ALL, Signal.RECORDED, None, Action.NOTHING, "kept for the record: no rule acts on it"),
)

FILL_POOL_ROW = Row(80, (IN_SERVICE,), Signal.CLEAN, None, Action.FILL_POOL, "fewer spares are held than wanted")
"""Not entered by a finding: follows from the size of the spare pool."""

RELEASE_JOB_ROW = Row(90, (), Signal.DRAINED_FOR_US, None, Action.RELEASE_JOB, "we held it up, so we set it free")
"""Not entered by a finding: follows from a job that Slurm holds, and our Prolog's word that it was us."""


def look_up(state: NodeState, signal: Signal) -> Row | None:
    return next((row for row in TABLE if row.signal is signal and state in row.states), None)
