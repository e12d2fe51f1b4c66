"""What a round adds to open incidents, and which of them are over. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from understudy_controlplane.fleet.finding import ACCUSING, Finding
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject, SubjectKind

NOTHING_DONE = "the fault is no longer seen, and nothing had been done about it"


@dataclass(frozen=True, slots=True)
class IncidentNews:
    evidence: tuple[tuple[int, Finding], ...]  # id of an open incident, and a finding on its subject
    over: tuple[tuple[int, str], ...]  # id of an incident, and what became of it


def incident_news(
    snapshot: Snapshot, findings: Sequence[Finding], incidents: Mapping[Subject, OpenIncident]
) -> IncidentNews:
    """`incidents`: the open ones, those that this round has opened included."""
    accused = {finding.subject for finding in findings if finding.signal in ACCUSING}
    over = ((one.id, outcome) for one in incidents.values() if (outcome := _outcome(snapshot, one, accused)))
    evidence = ((incidents[one.subject].id, one) for one in findings if one.subject in incidents)
    return IncidentNews(tuple(evidence), tuple(over))


def _outcome(snapshot: Snapshot, incident: OpenIncident, accused: Set[Subject]) -> str:
    """Why the incident is over; empty: it is not."""
    match incident.subject.kind:
        case SubjectKind.NODE:
            return _of_node(snapshot, incident.subject, accused)
        case _:
            return ""


def _of_node(snapshot: Snapshot, subject: Subject, accused: Set[Subject]) -> str:
    """Over when the node is in service and no longer at fault. Silence ends none: a kernel event counts until the next
    boot of the node, and a node whose agent is silent is not known to be well.
    """
    node = snapshot.nodes.get(subject.name)
    well = node is not None and node.state is NodeState.IN_SERVICE and node.heard_at is not None
    return NOTHING_DONE if well and subject not in accused else ""
