"""What detection reports: a fault or a change, where, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.evidence import NO_EVIDENCE, Evidence
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.recovery import Rung
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.suspicion import SuspicionCause
from understudy_controlplane.xid_policy import Repair


class Signal(StrEnum):
    """The meaning of a finding: what `decide.table` is entered with."""

    HARDWARE_FAULT = "hardware_fault"  # a fact that acts alone
    NODE_DEAD = "node_dead"  # agent and slurmd gone, and its job stands still
    STRAGGLER_CONFIRMED = "straggler_confirmed"  # statistics and a second signal
    STRAGGLER_SUSPECTED = "straggler_suspected"  # statistics alone
    HEALTH_SUSPECTED = "health_suspected"  # the node's hardware or system looks wrong; that proves no fault
    WORN = "worn"  # it may fail soon, and the site wants such a node to leave service before
    CORRUPTION_SUSPECTED = "corruption_suspected"  # it may compute wrong
    SILENT = "silent"  # the agent does not report
    HEARD = "heard"  # the agent reports again
    APPLICATION_FAULT = "application_fault"  # caused by the program
    LEMON = "lemon"  # its faults return repeatedly
    GANG_SLOW = "gang_slow"  # all its ranks, against its own best steps
    GANG_SCATTERED = "gang_scattered"  # not as its job asks, or further apart than free nodes would allow
    GANG_STILL = "gang_still"  # no step ends, and nothing shows that its ranks wait for each other
    GANG_ASKED = "gang_asked"  # it hangs, and its ranks are asked what they wait for
    GANG_HUNG = "gang_hung"  # no step ends; ranks of `node` have not arrived where the others are
    GANG_HUNG_UNNAMED = "gang_hung_unnamed"  # no step ends, and no node can be named
    GANG_HUNG_TOGETHER = "gang_hung_together"  # no step ends, and many gangs stopped at the same time
    HUNG_AGAIN = "hung_again"  # gangs waited for the node again and again
    GANG_RESTARTED = "gang_restarted"  # by its launcher itself, for a crash or a hang that it alone has seen
    NEWCOMER_FAILED = "newcomer_failed"  # a gang's program fails on a node that is new to it, and ran on the others
    LAUNCHER_FAILED = "launcher_failed"  # it did not carry out an order of the control plane
    DOMAIN_FAULT = "domain_fault"  # many nodes fail alike: the cause lies outside them
    BLACK_HOLE = "black_hole"  # launchers of several users blame it
    RECORDED = "recorded"  # recorded; nothing follows
    DRAINED_BY_OTHERS = "drained_by_others"
    RETURN_CANCELLED = "return_cancelled"  # by an operator, while Slurm still showed the control plane's drain
    RETURN_REFUSED = "return_refused"  # it is back in service, and Slurm has refused to lift the control plane's drain
    GANG_STRANDED = "gang_stranded"  # a managed gang runs on a node that was taken out of service
    GANG_STOPPED = "gang_stopped"  # it waits for nodes in Slurm's queue or its allocation, and no recovery moves it
    SEAT_LOST = "seat_lost"  # an administrator took a node that a recovery had planned for a managed gang
    UNDRAINED = "undrained"  # Slurm does not have the control plane's drain
    DRAINED_FOR_PROLOG = "drained_for_prolog"  # by Slurm, because Understudy's Prolog kept a job off it
    FAULT_GONE = "fault_gone"  # before the node was drained for it
    DRAIN_LIFTED = "drain_lifted"  # a drain of the control plane is gone, and the control plane did not lift it
    DRAIN_AT_JOB_END = "drain_at_job_end"  # a fact: the node leaves service, and its jobs may run to their end
    CLEAN = "clean"  # what made it suspect is no longer seen
    REPAIR_DUE = "repair_due"  # out of service, empty, and a rung of the repair ladder is left
    REPAIRED = "repaired"  # the rung was carried out
    REPAIR_FAILED = "repair_failed"  # it failed
    MANUAL_REPAIR_DUE = "manual_repair_due"  # no rung of the repair ladder is left but manual repair
    NODE_REPLACED = "node_replaced"  # the provider was asked for another machine, and that came
    VALIDATION_DUE = "validation_due"  # it needs no repair, or an operator released it
    PROBE_DUE = "probe_due"  # an idle suspect: validation decides about it
    BACK_FROM_OUTAGE = "back_from_outage"  # it works, and Slurm keeps it DOWN because it was silent or booted
    SPARE_CHECK_DUE = "spare_check_due"  # an idle spare, in its turn
    VALIDATED = "validated"  # the test was passed
    SPARE_VALIDATED = "spare_validated"  # the same of an idle spare, against which nothing was known
    VALIDATION_FAILED = "validation_failed"
    TEST_NOT_BEGUN = "test_not_begun"  # of a node in service: it returns without a new suspicion
    PROBE_NOT_BEGUN = "probe_not_begun"  # the same of a suspect
    RETURN_TEST_NOT_BEGUN = "return_test_not_begun"  # the same of a node on probation
    PROBATION_OVER = "probation_over"
    HOLD_LEFT = "hold_left"  # a reservation that kept the node for the control plane is left over
    WEIGHT_LEFT = "weight_left"  # its weight was raised for its probation, which is over
    FAULT_REPORTED = "fault_reported"  # by a person: the node is faulty
    HOLD_ASKED = "hold_asked"  # by an operator, as the next three
    TEST_ASKED = "test_asked"
    RETIRE_ASKED = "retire_asked"
    RELEASE_ASKED = "release_asked"
    RELEASED_TO_OTHERS = "released_to_others"  # an administrator has taken it meanwhile, in Slurm
    MOVE_ASKED = "move_asked"  # an operator moves a gang off the node
    MOVE_GIVEN_UP = "move_given_up"  # such a move that cannot be done
    POOL_SHORT = "pool_short"  # fewer spares are held than wanted
    SPARE_REMOVED = "spare_removed"  # nodes that others want out of the spare pool, or that are too many in it
    JOB_HELD = "job_held"  # by Slurm, because Understudy's Prolog kept it off a node
    EXCLUSION_LEFT = "exclusion_left"  # a job excludes a node for a fault that is repaired
    SEATS_LEFT = "seats_left"  # a reservation that held a gang's seats is left over
    HELD_BACK = "held_back"  # by a guard, for long
    LEFT_BY_SLURM = "left_by_slurm"  # Slurm itself took nodes out of service, and nothing brings them back
    PERSON_NEEDED = "person_needed"  # for what does not end by itself
    GANG_UNHEARD = "gang_unheard"  # no rank reports since a restart, though ranks did before it
    GANG_NOT_BACK = "gang_not_back"  # its move has failed after its attempt was ended
    DOMAIN_DOWN = "domain_down"  # a domain failed as a whole
    SITE_SIGNAL = "site_signal"  # another system of the site reports what may explain a fault there
    SITE_WARNING = "site_warning"  # such reports that a person has to know
    SITE_FAULT = "site_fault"  # such a report on which the site wants nodes quarantined
    OTHER_LEADER = "other_leader"  # another control plane leads here
    TOO_MANY_AT_ONCE = "too_many_at_once"  # nodes that would be quarantined within a short time
    DETECTOR_FAILED = "detector_failed"  # what it would have found is not known
    DETECTORS_DOWN = "detectors_down"  # such detectors, for a person
    REQUEST_GIVEN_UP = "request_given_up"  # an operator's request that could not be fulfilled in time


ACCUSING = frozenset(
    {
        Signal.HARDWARE_FAULT,
        Signal.NODE_DEAD,
        Signal.STRAGGLER_CONFIRMED,
        Signal.GANG_STRANDED,
        Signal.DRAIN_AT_JOB_END,
        Signal.WORN,
        Signal.HUNG_AGAIN,
        Signal.SITE_FAULT,
    }
)
"""Signals that a node is at fault. Each opens an incident."""

SPEAKS_AGAINST_NODE = ACCUSING | {Signal.HEALTH_SUSPECTED, Signal.CORRUPTION_SUSPECTED}

LETS_JOBS_END = frozenset({Signal.DRAIN_AT_JOB_END, Signal.HUNG_AGAIN})
"""Those of them for which no job is ended: it may run to its end."""


HANGS = frozenset({Signal.GANG_HUNG, Signal.GANG_HUNG_UNNAMED})

OF_A_GANG = HANGS | {
    Signal.GANG_SLOW,
    Signal.GANG_SCATTERED,
    Signal.GANG_STILL,
    Signal.GANG_ASKED,
    Signal.GANG_HUNG_TOGETHER,
    Signal.LAUNCHER_FAILED,
    Signal.GANG_RESTARTED,
    Signal.NEWCOMER_FAILED,
    Signal.JOB_HELD,
    Signal.EXCLUSION_LEFT,
    Signal.SEATS_LEFT,
    Signal.MOVE_ASKED,
    Signal.MOVE_GIVEN_UP,
}
"""Signals whose subject is the gang, also where they name a node."""

FAULTS = ACCUSING | HANGS | {Signal.GANG_HUNG_TOGETHER, Signal.LAUNCHER_FAILED, Signal.DOMAIN_FAULT}
"""While one is found, the incident of its subject is not over."""


class HardwareDetail(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="hardware"):
    """The faulty part of a node, and its repair."""

    repair: Repair | None = None  # the repair that may help; None: not known
    part: str = ""  # bus id of a GPU or switch, or the label of a port
    gpu: str = ""  # that a reset would have to reset: its bus id or index; empty: not known, or no GPU's fault
    uuid: str = ""  # of that GPU
    boot_id: str = ""  # in which boot of the node it was seen
    is_event: bool = False  # an event of that boot: recorded once, not in each round


class SilenceDetail(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="silence"):
    mass: bool  # it fell silent with many others


class HangDetail(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="hang"):
    together: int  # gangs that stopped at the same time, this one included
    mass: bool  # they are so many of all gangs that only what is proven of a node is acted on
    user: str = ""  # whose they all are; empty: of several


class HungRanks(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="hung_ranks"):
    ranks: tuple[int, ...]  # on the node, that hold up the gang


class DetectorDetail(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="detector"):
    detector: str  # that failed, or the part of `decide`
    mass: bool  # it may have found so much that nothing at all is to be done
    raised_in: tuple[str, ...] = ()  # files, lines and functions, the innermost last
    nodes: tuple[str, ...] | None = None  # that it failed for; None: for the whole fleet
    is_decision: bool = False  # what failed is not a detector, but what follows from findings

    @property
    def label(self) -> str:
        return f"{'decision' if self.is_decision else 'detector'} {self.detector}"

    @property
    def effect(self) -> str:
        """What the failure means, in words that any reader may see."""
        if self.nodes is None:
            return f"{self.label} fails, and no node returns to service meanwhile"
        if not self.nodes:
            return f"{self.label} fails"
        return f"{self.label} fails for {counted(len(self.nodes), 'node')}: neither repaired nor returned meanwhile"


class LaunchDetail(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="launch"):
    restart_count: int
    launch: int  # that has ended


class ClockDetail(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="clock"):
    ahead_seconds: float  # of the control plane's clock


class RequestDetail(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="request"):
    request: int  # id of the operator's request
    verb: Verb
    asked_at: float | None = None  # the operator knew of no fault that was reported later


class RepairDetail(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="repair"):
    rung: Rung  # that is next
    fault: str  # what is wrong with the node, in words


class LiftedDetail(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="lifted"):
    after: float  # the drain was lifted after this time: a fault that was reported later may be newer


Detail = (
    HardwareDetail
    | SilenceDetail
    | HangDetail
    | HungRanks
    | DetectorDetail
    | LaunchDetail
    | ClockDetail
    | RequestDetail
    | RepairDetail
    | LiftedDetail
)


@dataclass(frozen=True, slots=True)
class Finding:
    signal: Signal
    rule: str  # such as "xid.79": which detector, which row of its policy
    node: str  # empty: it is about no single node
    at: float  # when it happened, as well as is known
    summary: str  # for people, one line
    evidence: Evidence = NO_EVIDENCE
    job: JobKey | None = None
    domain: str = ""  # of failure, where it is about one
    explains: str = ""  # rule of an incident of its domain, where it is evidence about that
    nodes: tuple[str, ...] = ()  # concerned, where it is about a gang or a domain
    dead: bool = False  # the node does not answer: it has to be set down in Slurm
    suspicion: SuspicionCause | None = None  # of the signal CLEAN: the suspicion that ends
    detail: Detail | None = None  # what code needs to know of it
    lost_seconds: float = 0.0  # that a slow rank on the node has cost its gang so far

    @property
    def subject(self) -> Subject:
        """Subject of the incident that it belongs to."""
        if self.domain:
            return Subject.of_domain(self.domain, self.explains or self.rule)
        if self.signal in OF_A_GANG and self.job is not None:
            return Subject.of_gang(self.job)
        return Subject.of_node(self.node)

    @property
    def proven(self) -> bool:
        """The node's own hardware shows it: it is so whatever happens to others. With a job it is a conclusion from a
        gang that stands still.
        """
        return self.signal in (Signal.HARDWARE_FAULT, Signal.DRAIN_AT_JOB_END) and self.job is None

    @property
    def concerned(self) -> tuple[str, ...]:
        """The nodes that it is about."""
        return self.nodes or (self.node,)

    @property
    def label(self) -> str:
        """The subject of a decision about it: the node where it names one."""
        return self.node or self.domain or (f"job {self.job.job_id}" if self.job is not None else "fleet")

    @property
    def request(self) -> int | None:
        """The operator's request that it comes from."""
        return self.detail.request if isinstance(self.detail, RequestDetail) else None


def failed_detectors(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Those of this round that failed for the whole fleet. What they do not find is not known to be gone."""
    return tuple(one.detector for one in failures(findings) if one.nodes is None)


def faults_by_node(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """What speaks against each node, whatever its state."""
    found: dict[str, list[Finding]] = {}
    for one in findings:
        if one.node and one.signal in SPEAKS_AGAINST_NODE:
            found.setdefault(one.node, []).append(one)
    return found


def unjudged_nodes(findings: Iterable[Finding]) -> dict[str, str]:
    """Nodes for which a detector, or what follows from their findings, failed alone, and its name."""
    return {node: one.detector for one in failures(findings) for node in one.nodes or ()}


def failures(findings: Iterable[Finding]) -> list[DetectorDetail]:
    return [one.detail for one in findings if isinstance(one.detail, DetectorDetail)]
