"""Which open incidents are over, and what a round adds to them."""

from __future__ import annotations

import pytest

from tests import builders as b
from understudy_controlplane.decide.incidents import NOTHING_DONE, incident_news
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.subject import Subject


def finding(signal: Signal, node: str = "n2") -> Finding:
    return Finding(signal, "xid.79", node, b.NOW, "fell off the bus")


def opened(number: int, subject: Subject) -> dict[Subject, OpenIncident]:
    return {subject: OpenIncident(number, subject, "xid.79", "hardware_fault", "fell off the bus", b.NOW - 60)}


@pytest.mark.parametrize(
    ("node", "findings", "over"),
    [
        (b.node("n2"), [], True),
        (b.node("n2"), [finding(Signal.HEALTH_SUSPECTED)], True),
        (b.node("n2"), [finding(Signal.HARDWARE_FAULT, "n3")], True),
        (b.node("n2"), [finding(Signal.HARDWARE_FAULT)], False),
        (b.node("n2", heard_at=None), [], False),
        (b.node("n2", NodeState.SUSPECT), [], False),
        (b.node("n2", NodeState.QUARANTINED), [], False),
    ],
)
def test_an_incident_is_over_when_its_node_is_in_service_heard_and_not_accused(
    node: NodeView, findings: list[Finding], over: bool
) -> None:
    news = incident_news(b.snapshot(node), findings, opened(7, Subject.of_node("n2")))
    assert news.over == (((7, NOTHING_DONE),) if over else ())


def test_findings_on_a_node_are_added_to_its_incident_and_to_no_other() -> None:
    found = finding(Signal.RECORDED)
    incidents = opened(7, Subject.of_node("n2")) | opened(8, Subject.of_node("n9"))
    news = incident_news(b.snapshot(), [found, finding(Signal.RECORDED, "n3")], incidents)
    assert news.evidence == ((7, found),)
    assert news.over == ((7, NOTHING_DONE),), "a node that Slurm no longer knows is not known to be well"
