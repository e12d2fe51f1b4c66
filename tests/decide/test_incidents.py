"""Which open incidents are over, and what a round adds to them."""

from __future__ import annotations

import pytest

from tests import builders as b
from understudy_controlplane.decide.incidents import incident_news
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.node import NodeState, NodeView


def finding(signal: Signal, node: str = "n2") -> Finding:
    return Finding(signal, "xid.79", node, b.NOW, "fell off the bus")


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
    news = incident_news(b.snapshot(node), findings, {"n2": 7})
    assert news.over == ((7,) if over else ())


def test_findings_on_a_node_are_added_to_its_incident_and_to_no_other() -> None:
    found = finding(Signal.RECORDED)
    news = incident_news(b.snapshot(), [found, finding(Signal.RECORDED, "n3")], {"n2": 7, "n9": 8})
    assert news.evidence == ((7, found),)
    assert news.over == (7,), "a node that Slurm no longer knows is not known to be well"
