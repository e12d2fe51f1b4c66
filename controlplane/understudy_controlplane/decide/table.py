"""The table of transitions: which state of a node follows from which finding, and what is done about it.

The numbers are labels: they stand in every decision, log line and document, no code asks for one, and a number is
never given to another row. Rows are looked up by state, signal and condition; where none applies, nothing follows and
nothing is recorded. `judge.CARRIED_OUT_BY` names the function that carries out the action of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.node import OF_A_SUSPECT, NodeRecord, NodeState, ValidationOrigin
from understudy_controlplane.fleet.suspicion import SuspicionCause

IN_SERVICE = NodeState.IN_SERVICE
SUSPECT = NodeState.SUSPECT
QUARANTINED = NodeState.QUARANTINED
UNKNOWN = NodeState.UNKNOWN
FOREIGN_DRAIN = NodeState.FOREIGN_DRAIN
REPAIRING = NodeState.REPAIRING
VALIDATING = NodeState.VALIDATING
PROBATION = NodeState.PROBATION
MANUAL_REPAIR = NodeState.MANUAL_REPAIR
OPERATOR_HOLD = NodeState.OPERATOR_HOLD
RETIRED = NodeState.RETIRED
TRUSTED = (IN_SERVICE, SUSPECT, UNKNOWN, PROBATION)
"""States in which a node may have a gang that the control plane would have to move."""

ALL = tuple(NodeState)


class Condition(StrEnum):
    """What a row requires of a node's record besides its state."""

    ALWAYS = "always"
    OUT_BEFORE_VALIDATION = "out of service before its validation"
    IN_SERVICE_BEFORE_VALIDATION = "in service until its validation"
    SUSPECT_BEFORE_VALIDATION = "a suspect until its validation"
    FIRST_SUSPICION = "not suspected of it yet"
    LAST_SUSPICION = "its only suspicion"
    ANOTHER_SUSPICION = "one of several suspicions"


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    states: tuple[NodeState, ...]  # empty: the row is about no single node
    signals: tuple[Signal, ...]
    to: NodeState | None  # None: stays
    action: Action
    why: str
    when: Condition = Condition.ALWAYS
    suspects: SuspicionCause | None = None  # the suspicion that a suspect gets
    origin: ValidationOrigin | None = None  # of the validation that the row begins


# fmt: off
# Two lines a row: what leads where, and why.
TABLE: tuple[Row, ...] = (
    Row(10, TRUSTED, (Signal.HARDWARE_FAULT,), QUARANTINED, Action.QUARANTINE,
        "the hardware itself reports that it cannot continue"),
    Row(11, TRUSTED, (Signal.NODE_DEAD,), QUARANTINED, Action.QUARANTINE,
        "agent and slurmd are gone and no job there makes progress: waiting for SlurmdTimeout helps no job"),
    Row(12, TRUSTED, (Signal.STRAGGLER_CONFIRMED,), QUARANTINED, Action.QUARANTINE,
        "slow by its own time, and its GPU shows the reason: the whole gang runs at its pace"),
    Row(13, (QUARANTINED,), (Signal.GANG_STRANDED,), None, Action.MOVE_GANG,
        "a gang that could not be moved when its node was quarantined is moved as soon as it can be"),
    Row(14, (QUARANTINED,), (Signal.UNDRAINED,), None, Action.DRAIN_AGAIN,
        "the drain was refused, or has Slurm's reason now, and is repeated"),
    Row(15, (*TRUSTED, FOREIGN_DRAIN, OPERATOR_HOLD, MANUAL_REPAIR, RETIRED), (Signal.SEAT_LOST,), None,
        Action.MOVE_GANG, "a person took the node, which is left alone; the gang that waits for it gets another"),
    Row(17, (QUARANTINED,), (Signal.DRAINED_FOR_PROLOG,), None, Action.DRAIN_AGAIN,
        "Understudy's Prolog kept a job off it and Slurm drained it for that: the drain gets Understudy's reason"),
    Row(18, (*TRUSTED, FOREIGN_DRAIN), (Signal.DRAINED_FOR_PROLOG,), QUARANTINED, Action.DRAIN_AGAIN,
        "Understudy's Prolog kept a job off it and Slurm drained it for that: the control plane takes the drain over"),
    Row(20, (IN_SERVICE, PROBATION), (Signal.STRAGGLER_SUSPECTED,), SUSPECT, Action.NOTHING,
        "statistics alone mark a suspect; they drain no node", suspects=SuspicionCause.SLOW),
    Row(21, (SUSPECT,), (Signal.CLEAN,), IN_SERVICE, Action.NOTHING,
        "it keeps up again", when=Condition.LAST_SUSPICION),
    Row(22, (SUSPECT,), (Signal.STRAGGLER_SUSPECTED,), None, Action.NOTHING,
        "one more reason to suspect it", when=Condition.FIRST_SUSPICION, suspects=SuspicionCause.SLOW),
    Row(23, (SUSPECT,), (Signal.CLEAN,), None, Action.NOTHING,
        "it stays a suspect for another reason", when=Condition.ANOTHER_SUSPICION),
    Row(30, (IN_SERVICE,), (Signal.SILENT,), UNKNOWN, Action.NOTHING,
        "silence alone does not prove that the node is dead"),
    Row(31, (UNKNOWN,), (Signal.HEARD,), IN_SERVICE, Action.NOTHING,
        "the agent reports again"),
    Row(40, TRUSTED, (Signal.DRAINED_BY_OTHERS,), FOREIGN_DRAIN, Action.NOTHING,
        "an administrator took it out of service: the control plane does not touch it"),
    Row(41, (FOREIGN_DRAIN,), (Signal.DRAIN_LIFTED,), IN_SERVICE, Action.NOTHING,
        "the administrator who drained it has resumed it"),
    Row(42, (FOREIGN_DRAIN,), (Signal.HARDWARE_FAULT,), None, Action.MOVE_GANG,
        "an administrator took it out of service and deals with the fault; a gang cannot go on there, and is moved"),
    Row(43, (FOREIGN_DRAIN,), (Signal.NODE_DEAD,), None, Action.MOVE_GANG,
        "an administrator took it out of service and deals with it; a gang cannot go on there, and is moved"),
    Row(44, (OPERATOR_HOLD, MANUAL_REPAIR, RETIRED), (Signal.GANG_STRANDED,), None, Action.MOVE_GANG,
        "an operator has the node and deals with it; a gang cannot go on there, and is moved"),
    Row(50, (QUARANTINED,), (Signal.DRAIN_LIFTED,), IN_SERVICE, Action.NOTHING,
        "a person resumed it and answers for it: what was known against it is cleared"),
    Row(51, (QUARANTINED,), (Signal.FAULT_GONE,), IN_SERVICE, Action.NOTHING,
        "the fault was gone before the drain for it began, so the node stays in service"),
    Row(60, ALL, (Signal.APPLICATION_FAULT,), None, Action.NOTHING,
        "the program's own fault condemns no node"),
    Row(61, ALL, (Signal.RECORDED,), None, Action.NOTHING,
        "kept for the record: no rule acts on it"),
    Row(62, ALL, (Signal.SITE_SIGNAL,), None, Action.NOTHING,
        "another system of the site reports what may explain the fault: it is evidence, and proves nothing about the "
        "node"),
    Row(70, (), (Signal.DOMAIN_FAULT,), None, Action.NOTHING,
        "the cause lies outside these nodes, so none of them is condemned for it; a person looks"),
    Row(71, (), (Signal.SITE_SIGNAL,), None, Action.NOTHING,
        "another system of the site reports what may explain the failure of the domain"),
    Row(72, (), (Signal.DETECTOR_FAILED,), None, Action.NOTHING,
        "the others go on; until it works again, no node returns to service about which it may have missed something"),
    Row(80, (), (Signal.POOL_SHORT,), None, Action.FILL_POOL,
        "fewer spares are held than wanted"),
    Row(81, (), (Signal.SPARE_REMOVED,), None, Action.LEAVE_POOL,
        "an operator wants it for something else, another user has reserved it, or the pool holds more than it is to"),
    Row(90, (), (Signal.JOB_HELD,), None, Action.RELEASE_JOB,
        "Understudy's Prolog delayed it, so the control plane releases it"),
    Row(91, (), (Signal.EXCLUSION_LEFT,), None, Action.RELEASE_JOB,
        "the control plane excluded it while it was at fault, so the control plane allows it again"),
    Row(92, (), (Signal.HELD_BACK,), None, Action.PAGE,
        "a guard has held it back for the time after which a person has to look"),
    Row(93, (), (Signal.LEFT_BY_SLURM,), None, Action.PAGE,
        "no validation brings them back: a person has to look at them"),
    Row(94, (), (Signal.GANG_UNHEARD,), None, Action.PAGE,
        "its processes may wait for each other before the hook begins, or its script may not get there: a person has "
        "to look"),
    Row(95, (), (Signal.DOMAIN_DOWN,), None, Action.PAGE,
        "its nodes failed together, so the cause lies outside them: a person has to look"),
    Row(96, (), (Signal.SEATS_LEFT,), None, Action.RELEASE_JOB,
        "no recovery needs them any more, and no other job could use them until the reservation ends"),
    Row(97, (), (Signal.SITE_WARNING,), None, Action.PAGE,
        "what it announces may stop the gangs there: a person decides whether they move before"),
    Row(98, (), (Signal.DETECTORS_DOWN,), None, Action.PAGE,
        "until they work again, no node returns to service about which they may have missed something: report it with "
        "the lines of the log"),
    Row(100, (IN_SERVICE, UNKNOWN, PROBATION), (Signal.GANG_HUNG,), SUSPECT, Action.RESTART_GANG,
        "the gang hangs and waits for this node: the gang is restarted, and the node is only a suspect",
        suspects=SuspicionCause.HANG),
    Row(101, (SUSPECT, QUARANTINED, FOREIGN_DRAIN, OPERATOR_HOLD, MANUAL_REPAIR, RETIRED),
        (Signal.GANG_HUNG,), None, Action.RESTART_GANG,
        "the gang hangs and waits for this node, which is a suspect or out of service already: the gang is restarted",
        suspects=SuspicionCause.HANG),
    Row(102, (), (Signal.GANG_HUNG_UNNAMED,), None, Action.RESTART_GANG,
        "the gang hangs, and no node can be named: it is restarted on the same nodes"),
    Row(103, (IN_SERVICE, PROBATION), (Signal.BLACK_HOLE,), SUSPECT, Action.NOTHING,
        "launchers of several users blame it: only a suspect, because launchers are users' processes",
        suspects=SuspicionCause.BLACK_HOLE),
    Row(104, (), (Signal.GANG_STILL,), None, Action.NOTHING,
        "its ranks are not known to wait for each other: an evaluation or a checkpoint looks the same, so "
        "nothing is done until it takes longer than anything that the job did before"),
    Row(105, (SUSPECT,), (Signal.BLACK_HOLE,), None, Action.NOTHING,
        "one more reason to suspect it", when=Condition.FIRST_SUSPICION, suspects=SuspicionCause.BLACK_HOLE),
    Row(106, (), (Signal.GANG_HUNG_TOGETHER,), None, Action.NOTHING,
        "gangs stopped at the same time: the network, the storage or the control plane is the cause, or, of one "
        "user's, what these share, such as a licence server; no gang is restarted for that"),
    Row(107, (), (Signal.LAUNCHER_FAILED,), None, Action.NOTHING,
        "its launcher gets no more orders in this allocation: if the gang has to move, it moves to nodes of the pool"),
    Row(108, (), (Signal.GANG_SLOW,), None, Action.NOTHING,
        "no rank has a faster peer: the program, its data, or what all nodes share may be the cause, so it is recorded "
        "with what it costs"),
    Row(109, (), (Signal.GANG_RESTARTED,), None, Action.CREDIT_TIME,
        "its launcher has dealt with it: nothing is ordered and no node condemned; within the site's bound, the time "
        "limit gets what it cost"),
    Row(130, TRUSTED, (Signal.DRAIN_AT_JOB_END,), QUARANTINED, Action.DRAIN,
        "jobs there may run to their end; no new job starts there before the repair"),
    Row(131, (FOREIGN_DRAIN,), (Signal.DRAIN_AT_JOB_END,), None, Action.NOTHING,
        "an administrator took it out of service and deals with the fault"),
    Row(132, TRUSTED, (Signal.WORN,), QUARANTINED, Action.QUARANTINE,
        "the site wants nodes out of service before worn memory fails, where that costs less, as expected"),
    Row(133, TRUSTED, (Signal.HUNG_AGAIN,), QUARANTINED, Action.DRAIN,
        "hangs that one program is unlikely to cause have waited for it: jobs that work there may run to their end; "
        "then it is repaired, and tested before it returns"),
    Row(140, (IN_SERVICE, PROBATION), (Signal.HEALTH_SUSPECTED,), SUSPECT, Action.NOTHING,
        "it looks wrong, which proves no fault: it stays in service and is no spare; `understudy node quarantine NODE "
        "REASON` takes it out",
        suspects=SuspicionCause.HEALTH),
    Row(141, (SUSPECT,), (Signal.HEALTH_SUSPECTED,), None, Action.NOTHING,
        "it still looks wrong", suspects=SuspicionCause.HEALTH),
    Row(150, (IN_SERVICE, PROBATION), (Signal.CORRUPTION_SUSPECTED,), SUSPECT, Action.NOTHING,
        "the program may have caused it: the node is a suspect until a self-check",
        suspects=SuspicionCause.CORRUPTION),
    Row(151, (IN_SERVICE, SUSPECT, UNKNOWN, QUARANTINED), (Signal.LEMON,), None, Action.NOTHING,
        "a score is no fault: a person decides, and it is taken last as a spare"),
    Row(152, (SUSPECT,), (Signal.CORRUPTION_SUSPECTED,), None, Action.NOTHING,
        "one more reason to suspect it", when=Condition.FIRST_SUSPICION, suspects=SuspicionCause.CORRUPTION),
    Row(200, (QUARANTINED,), (Signal.REPAIR_DUE,), REPAIRING, Action.REPAIR,
        "no job is on it any more"),
    Row(201, (QUARANTINED,), (Signal.VALIDATION_DUE,), VALIDATING, Action.VALIDATE,
        "nothing on it has to be repaired: its validation decides", origin=ValidationOrigin.QUARANTINED),
    Row(202, (QUARANTINED, REPAIRING), (Signal.MANUAL_REPAIR_DUE,), MANUAL_REPAIR, Action.ASK_PERSON,
        "the control plane has nothing left to try: a person gets a ticket with the evidence"),
    Row(203, (FOREIGN_DRAIN, IN_SERVICE, SUSPECT, PROBATION), (Signal.BACK_FROM_OUTAGE,), VALIDATING, Action.VALIDATE,
        "Slurm keeps it out only because it booted, or did not answer for a time: its validation decides",
        origin=ValidationOrigin.OUTAGE),
    Row(210, (REPAIRING,), (Signal.REPAIRED,), VALIDATING, Action.VALIDATE,
        "a repair proves nothing by itself: the node is validated, and no job can use it meanwhile",
        origin=ValidationOrigin.REPAIRED),
    Row(211, (REPAIRING,), (Signal.REPAIR_FAILED,), QUARANTINED, Action.TAKE_BACK,
        "the attempt counts, and the ladder continues from there"),
    Row(220, (VALIDATING,), (Signal.VALIDATED,), PROBATION, Action.RETURN,
        "it returns to service; during its probation it is the last spare to be taken"),
    Row(221, (VALIDATING,), (Signal.VALIDATION_FAILED,), QUARANTINED, Action.TAKE_BACK,
        "it did not pass: the ladder continues from there", when=Condition.OUT_BEFORE_VALIDATION),
    Row(222, (VALIDATING,), (Signal.HARDWARE_FAULT,), QUARANTINED, Action.TAKE_BACK,
        "it failed again while it was validated", when=Condition.OUT_BEFORE_VALIDATION),
    Row(223, (VALIDATING,), (Signal.TEST_NOT_BEGUN,), IN_SERVICE, Action.LET_GO,
        "it was in service, and a validation that never began proves nothing against it"),
    Row(224, (VALIDATING,), (Signal.PROBE_NOT_BEGUN,), SUSPECT, Action.LET_GO,
        "a validation that never began proves nothing: it stays in service with its suspicions",
        when=Condition.SUSPECT_BEFORE_VALIDATION),
    Row(225, (VALIDATING,), (Signal.VALIDATION_FAILED, Signal.HARDWARE_FAULT), QUARANTINED, Action.QUARANTINE,
        "it was in service until its validation, and did not pass: it leaves service, and counts against the budgets",
        when=Condition.IN_SERVICE_BEFORE_VALIDATION),
    Row(226, (VALIDATING,), (Signal.RETURN_TEST_NOT_BEGUN,), PROBATION, Action.LET_GO,
        "a validation that never began proves nothing: its probation begins again"),
    Row(227, (VALIDATING,), (Signal.SPARE_VALIDATED,), IN_SERVICE, Action.RETURN,
        "nothing was known against it, and it passed: it is the same spare as before"),
    Row(230, (PROBATION,), (Signal.PROBATION_OVER,), IN_SERVICE, Action.NOTHING,
        "no fault was found since it returned"),
    Row(231, tuple(state for state in ALL if state not in (PROBATION, REPAIRING, VALIDATING, FOREIGN_DRAIN)),
        (Signal.WEIGHT_LEFT,), None, Action.RESTORE_WEIGHT,
        "its probation is over: jobs may use it like any other node once it is in service"),
    Row(232, TRUSTED, (Signal.RETURN_REFUSED,), None, Action.RETURN,
        "it is in service, and Slurm refused to lift the drain, or lost that in a crash: it is asked again"),
    Row(233, TRUSTED, (Signal.RETURN_CANCELLED,), OPERATOR_HOLD, Action.HOLD,
        "an operator wants it to stay out of service, and releases it later"),
    Row(240, (REPAIRING, VALIDATING, MANUAL_REPAIR, OPERATOR_HOLD, RETIRED),
        (Signal.DRAIN_LIFTED,), IN_SERVICE, Action.LET_GO,
        "a person resumed it and answers for it: what was known against it is cleared"),
    Row(241, (REPAIRING, VALIDATING), (Signal.DRAINED_BY_OTHERS,), FOREIGN_DRAIN, Action.LET_GO,
        "an administrator took it out of service: the control plane does not touch it"),
    Row(243, (MANUAL_REPAIR, OPERATOR_HOLD, RETIRED), (Signal.UNDRAINED,), None, Action.DRAIN_AGAIN,
        "the drain was refused or lost, or has Slurm's reason now, and is repeated"),
    Row(244, tuple(state for state in ALL if state not in (REPAIRING, VALIDATING)),
        (Signal.HOLD_LEFT,), None, Action.LET_GO,
        "otherwise the reservation would stay, and no job could use the node"),
    Row(250, tuple(state for state in ALL if state not in (OPERATOR_HOLD, RETIRED)),
        (Signal.HOLD_ASKED,), OPERATOR_HOLD, Action.HOLD,
        "an operator asked for it"),
    Row(251, tuple(state for state in ALL if state is not RETIRED), (Signal.RETIRE_ASKED,), RETIRED, Action.HOLD,
        "an operator asked for it"),
    Row(252, (QUARANTINED, REPAIRING, MANUAL_REPAIR, OPERATOR_HOLD, RETIRED),
        (Signal.RELEASE_ASKED,), IN_SERVICE, Action.RETURN,
        "an operator asked for it and answers for it"),
    Row(253, (MANUAL_REPAIR, OPERATOR_HOLD, RETIRED), (Signal.VALIDATION_DUE,), VALIDATING, Action.VALIDATE,
        "an operator released it: it is validated before it returns", origin=ValidationOrigin.RELEASED),
    Row(254, (IN_SERVICE,), (Signal.TEST_ASKED,), VALIDATING, Action.VALIDATE,
        "an operator asked for it", origin=ValidationOrigin.IN_SERVICE),
    Row(255, (SUSPECT,), (Signal.PROBE_DUE,), VALIDATING, Action.VALIDATE,
        "a suspicion alone takes nothing out of service for good, and does not end by itself: its validation decides",
        origin=ValidationOrigin.SUSPECT_PROBED),
    Row(256, ALL, (Signal.REQUEST_GIVEN_UP,), None, Action.NOTHING,
        "a request that is too old is not carried out unexpectedly"),
    Row(257, (SUSPECT,), (Signal.TEST_ASKED,), VALIDATING, Action.VALIDATE,
        "an operator asked for it; if the validation never begins, its suspicions stay",
        origin=ValidationOrigin.SUSPECT_REQUESTED),
    Row(258, (PROBATION,), (Signal.TEST_ASKED,), VALIDATING, Action.VALIDATE,
        "an operator asked for it; if the validation never begins, its probation begins again",
        origin=ValidationOrigin.PROBATION),
    Row(259, TRUSTED, (Signal.FAULT_REPORTED,), QUARANTINED, Action.QUARANTINE,
        "a person reports it as faulty, which counts like a fault that the control plane has found"),
    Row(260, tuple(state for state in ALL if state not in (REPAIRING, VALIDATING)), (Signal.MOVE_ASKED,), None,
        Action.MOVE_GANG, "an operator asked for it; the node stays what it is, and the job is kept off it"),
    Row(261, (), (Signal.MOVE_GIVEN_UP,), None, Action.NOTHING,
        "a request that cannot be carried out is not carried out unexpectedly later"),
    Row(262, TRUSTED, (Signal.SITE_FAULT,), QUARANTINED, Action.QUARANTINE,
        "the site wants nodes out of service for such a signal; it returns by its validation when the signal ends"),
    Row(263, (IN_SERVICE,), (Signal.SPARE_CHECK_DUE,), VALIDATING, Action.VALIDATE,
        "a spare that no job has used for long may have failed unseen: it is validated before a gang needs it",
        origin=ValidationOrigin.SPARE_CHECK),
    Row(264, (QUARANTINED, REPAIRING, MANUAL_REPAIR, OPERATOR_HOLD, RETIRED),
        (Signal.RELEASED_TO_OTHERS,), FOREIGN_DRAIN, Action.LET_GO,
        "an operator released it, and in Slurm it is out for a reason not of Understudy: a person resumes it there"),
    Row(265, (MANUAL_REPAIR,), (Signal.NODE_REPLACED,), VALIDATING, Action.VALIDATE,
        "what was found was found in the machine before: its validation decides", origin=ValidationOrigin.REPAIRED),
    Row(290, (), (Signal.TOO_MANY_AT_ONCE,), None, Action.OPEN_BREAKER,
        "many at once have more likely one common cause, or a fault of the control plane, than many faulty nodes"),
    Row(300, ALL, (Signal.GANG_STOPPED,), None, Action.MOVE_GANG,
        "a fault stopped the gang, which waits for nodes: it gets spares, as if the control plane had moved it"),
    Row(320, (), (Signal.PERSON_NEEDED,), None, Action.PAGE,
        "it does not end by itself"),
    Row(340, (), (Signal.GANG_NOT_BACK,), None, Action.PAGE,
        "its work was ended for its move, and nothing that the control plane does starts it again: a person has to"),
    Row(360, (IN_SERVICE, PROBATION), (Signal.RELEASE_ASKED,), None, Action.NOTHING,
        "an operator dismisses what is known against it and answers for it: only what is received later counts"),
    Row(361, (SUSPECT,), (Signal.RELEASE_ASKED,), IN_SERVICE, Action.NOTHING,
        "an operator dismisses the suspicion and answers for it: only what is received later counts"),
    Row(370, tuple(state for state in ALL if state not in (REPAIRING, VALIDATING)), (Signal.NEWCOMER_FAILED,), None,
        Action.MOVE_GANG,
        "a package, a file or a mount may be missing there: the gang gets another node, once until it finishes steps; "
        "this one stays what it is, because one user's program proves no fault, and the job is kept off it"),
    Row(380, (), (Signal.GANG_ASKED,), None, Action.NOTHING,
        "the gang hangs: its ranks are asked for 30 s at most what they wait for, then it is restarted"),
    Row(395, (), (Signal.GANG_SCATTERED,), None, Action.NOTHING,
        "it runs, and its steps take longer: its owner reads what that costs, and no gang is ended for its place"),
    Row(400, (), (Signal.OTHER_LEADER,), None, Action.OPEN_BREAKER,
        "each would undo what the other one does in Slurm, so this one does nothing there until a person has chosen"),
)
# fmt: on

SIGNAL_PRIORITY = (
    Signal.DRAIN_LIFTED,
    Signal.RETIRE_ASKED,
    Signal.HOLD_ASKED,
    Signal.RELEASE_ASKED,
    Signal.RELEASED_TO_OTHERS,
    Signal.DRAINED_FOR_PROLOG,
    Signal.DRAINED_BY_OTHERS,
    Signal.RETURN_REFUSED,
    Signal.RETURN_CANCELLED,
    Signal.FAULT_REPORTED,
    Signal.HARDWARE_FAULT,
    Signal.NODE_DEAD,
    Signal.STRAGGLER_CONFIRMED,
    Signal.SITE_FAULT,
    Signal.WORN,
    Signal.HUNG_AGAIN,
    Signal.DRAIN_AT_JOB_END,
    Signal.FAULT_GONE,
    Signal.UNDRAINED,
    Signal.GANG_STRANDED,
    Signal.SEAT_LOST,
    Signal.MOVE_ASKED,
    Signal.NEWCOMER_FAILED,
    Signal.VALIDATION_FAILED,
    Signal.REPAIR_FAILED,
    Signal.TEST_NOT_BEGUN,
    Signal.PROBE_NOT_BEGUN,
    Signal.RETURN_TEST_NOT_BEGUN,
    Signal.VALIDATED,
    Signal.SPARE_VALIDATED,
    Signal.REPAIRED,
    Signal.MANUAL_REPAIR_DUE,
    Signal.VALIDATION_DUE,
    Signal.REPAIR_DUE,
    Signal.BACK_FROM_OUTAGE,
    Signal.PROBATION_OVER,
    Signal.HOLD_LEFT,
    Signal.WEIGHT_LEFT,
    Signal.GANG_HUNG,
    Signal.GANG_HUNG_UNNAMED,
    Signal.BLACK_HOLE,
    Signal.STRAGGLER_SUSPECTED,
    Signal.CORRUPTION_SUSPECTED,
    Signal.SILENT,
    Signal.HEARD,
    Signal.TEST_ASKED,
    Signal.CLEAN,
    Signal.PROBE_DUE,
    Signal.HEALTH_SUSPECTED,
    Signal.SPARE_CHECK_DUE,
)
"""Only one state change for a node in a round: of its signals the first in this order that has a row. Other signals are
found again in the next round. A requested validation waits until the node is idle, which may take days, so it comes
after what has to be done meanwhile.
"""

WAITS_FOR_JOBS = frozenset({Signal.MOVE_ASKED, Signal.VALIDATION_DUE})
"""What may wait for a checkpoint, a spare or the end of a job: a gang that hangs there does not wait for that."""


_ROWS_OF = {signal: tuple(row for row in TABLE if signal in row.signals) for signal in Signal}


def look_up(record: NodeRecord, signal: Signal) -> Row | None:
    return next((row for row in _ROWS_OF[signal] if record.state in row.states and _holds(row, record)), None)


def row_of(signal: Signal) -> Row:
    """The only row of a signal."""
    (row,) = _ROWS_OF[signal]
    return row


def row_without_node(signal: Signal) -> Row:
    """The row of a signal that is about no single node."""
    return next(row for row in _ROWS_OF[signal] if not row.states)


def _holds(row: Row, record: NodeRecord) -> bool:
    known = row.suspects is not None and record.suspected_of(row.suspects)
    holds = {
        Condition.ALWAYS: True,
        Condition.OUT_BEFORE_VALIDATION: not record.tested_in_service,
        Condition.IN_SERVICE_BEFORE_VALIDATION: record.tested_in_service,
        Condition.SUSPECT_BEFORE_VALIDATION: record.validation_origin in OF_A_SUSPECT,
        Condition.FIRST_SUSPICION: not known,
        Condition.LAST_SUSPICION: len(record.suspicions) <= 1,
        Condition.ANOTHER_SUSPICION: len(record.suspicions) > 1,
    }
    return holds[row.when]
