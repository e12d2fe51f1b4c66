"""What a round adds to open incidents, and which of them are over. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from understudy_controlplane.fleet.finding import ACCUSING, Finding
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.snapshot import Snapshot

NOTHING_DONE = "the fault is no longer seen, and nothing had been done about it"


@dataclass(frozen=True, slots=True)
class IncidentNews:
    evidence: tuple[tuple[int, Finding], ...]  # id of an open incident, and a finding on its node
    over: tuple[int, ...]
    outcome: str = NOTHING_DONE


def incident_news(snapshot: Snapshot, findings: Sequence[Finding], incidents: Mapping[str, int]) -> IncidentNews:
    """`incidents`: node → id of its open incident.

    An incident is over when its node is in service and no longer at fault. Silence ends none: a kernel event counts
    until the next boot of the node, and a node whose agent is silent is not known to be well.
    """
    accused = {finding.node for finding in findings if finding.signal in ACCUSING}
    over = (
        incident
        for name, incident in incidents.items()
        if (node := snapshot.nodes.get(name)) is not None
        and node.state is NodeState.IN_SERVICE
        and node.heard_at is not None
        and name not in accused
    )
    evidence = ((incidents[one.node], one) for one in findings if one.node in incidents)
    return IncidentNews(tuple(evidence), tuple(over))
