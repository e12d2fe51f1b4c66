"""What a round adds to open incidents, and which of them are over. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from understudy_controlplane.detect.hang import still_stopped_by
from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.fleet.finding import FAULTS, Finding, failed_detectors, unjudged_nodes
from understudy_controlplane.fleet.incident import BLOCK_FABRIC, FAILED_AS_ONE, PORT_DOWN, OpenIncident
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject, SubjectKind

NOTHING_DONE = "the fault is no longer seen, and nothing had been done about it"
JOB_ENDED = "the job has ended"
STEPS_AGAIN = "the gang finishes steps again"
CAUSE_GONE = "its nodes no longer fail alike"

SETTLED_SECONDS = 120.0
"""A control plane that has just started does not end the incident of a domain: it may not have heard its nodes yet."""


@dataclass(frozen=True, slots=True)
class IncidentNews:
    evidence: tuple[tuple[int, Finding], ...]  # id of an open incident, and a finding on its subject
    over: tuple[tuple[int, str], ...]  # id of an incident, and what became of it


def incident_news(
    snapshot: Snapshot, findings: Sequence[Finding], incidents: Mapping[Subject, OpenIncident]
) -> IncidentNews:
    """`incidents`: the open ones, those that this round has opened included."""
    accused = {finding.subject for finding in findings if finding.signal in FAULTS}
    accused |= {
        Subject.of_node(name) for name, one in snapshot.operator.requests.items() if one.verb is Verb.QUARANTINE
    }
    if failed_detectors(findings):
        accused |= incidents.keys()  # what is not found is not known to be gone
    elif unjudged := unjudged_nodes(findings):
        accused |= {*map(Subject.of_node, unjudged), *(one for one in incidents if one.kind is SubjectKind.DOMAIN)}
    over = ((one.id, outcome) for one in incidents.values() if (outcome := _outcome(snapshot, one, accused)))
    evidence = (
        (incidents[subject].id, one)
        for one in findings
        for subject in dict.fromkeys((one.subject, Subject.of_node(one.node)))
        if subject in incidents
    )
    return IncidentNews(tuple(evidence), tuple(over))


def _outcome(snapshot: Snapshot, incident: OpenIncident, accused: Set[Subject]) -> str:
    """Why the incident is over; empty: it is not."""
    match incident.subject.kind:
        case SubjectKind.NODE:
            return _of_node(snapshot, incident.subject, accused)
        case SubjectKind.GANG:
            return _of_gang(snapshot, incident, accused)
        case SubjectKind.DOMAIN:
            return _of_domain(snapshot, incident, accused)


def _of_node(snapshot: Snapshot, subject: Subject, accused: Set[Subject]) -> str:
    """Over when the node is in service and no longer at fault. Silence ends none: a kernel event counts until the next
    boot of the node, and a node whose agent is silent is not known to be well.
    """
    node = snapshot.nodes.get(subject.name)
    well = node is not None and node.state is NodeState.IN_SERVICE and node.heard_at is not None
    return NOTHING_DONE if well and subject not in accused else ""


def _of_gang(snapshot: Snapshot, incident: OpenIncident, accused: Set[Subject]) -> str:
    """Over when the gang steps again, or its job has ended. Nothing is known of jobs before Slurm was read."""
    if snapshot.slurm.read_at is None:
        return ""
    key = JobKey.read(incident.subject.name)
    if key not in snapshot.jobs or snapshot.jobs[key].slurm.ended:
        return JOB_ENDED
    table = snapshot.progress.tables.get(key)
    steps = table is not None and table.advanced_at > incident.opened_at
    return STEPS_AGAIN if steps and incident.subject not in accused else ""


def with_fabric(snapshot: Snapshot, findings: Sequence[Finding]) -> Snapshot:
    """Adds what this round shows of the NVLink blocks: the incident of a block that has just failed is not open yet,
    and that of one that works again may be.
    """
    failed = frozenset(one.domain for one in findings if one.rule == BLOCK_FABRIC)
    of_blocks = {subject.name for subject, one in snapshot.incidents.items() if one.rule == BLOCK_FABRIC}
    known = _is_settled(snapshot) and not failed_detectors(findings) and not unjudged_nodes(findings)
    back = frozenset(of_blocks - failed) if known else frozenset()
    return snapshot.with_round(replace(snapshot.round, fabric_lost=failed, fabric_back=back))


def _is_settled(snapshot: Snapshot) -> bool:
    """The nodes have had the time to report to this control plane."""
    return snapshot.now - snapshot.started_at > SETTLED_SECONDS


def _of_domain(snapshot: Snapshot, incident: OpenIncident, accused: Set[Subject]) -> str:
    """Over when its cause is no longer found. Where nodes were taken out of service for it, it stays until they are
    back, and for an hour: they count as one until then. That of a switch stays while gangs stand still that stopped
    with it: they would be gangs that stopped together for no known cause.
    """
    if not _is_settled(snapshot) or incident.subject in accused:
        return ""
    if incident.rule == PORT_DOWN and still_stopped_by(snapshot, incident):
        return ""
    nodes = snapshot.domains.get(incident.subject.name, ()) if incident.rule in FAILED_AS_ONE else ()
    taken = any(max(snapshot.history.quarantined_at.get(name, ()), default=0.0) >= incident.opened_at for name in nodes)
    if taken and (snapshot.now - incident.opened_at < HOUR_SECONDS or not snapshot.at_fault.isdisjoint(nodes)):
        return ""
    return CAUSE_GONE
