"""Guards: not now, not so many, not by this rule."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.config import Config
from controlplane.decide.judge import decide
from controlplane.detect import detect
from controlplane.fleet.decision import Action, Because, Decision
from controlplane.fleet.node import NodeState, NodeView
from controlplane.fleet.snapshot import Snapshot
from tests import builders as b


def decided(snapshot: Snapshot, config: Config) -> list[Decision]:
    return decide(snapshot, detect(snapshot, config), config)


def broken(name: str, xid: int = 79) -> NodeView:
    return b.node(name, events=(b.xid_event(name, xid),))


def fleet(count: int, **values: Any) -> dict[str, NodeView]:
    return {f"n{i}": b.node(f"n{i}") for i in range(1, count + 1)}


def snapshot_of(nodes: dict[str, NodeView], **values: Any) -> Snapshot:
    return b.snapshot(*nodes.values(), **values)


def quarantined(decisions: list[Decision]) -> list[str]:
    return [one.subject for one in decisions if one.action is Action.QUARANTINE]


WIDE: dict[str, Any] = {"quarantined_nodes_max": 1000, "quarantines_per_hour_max": 1000, "domain_share_max": 1.0}


@pytest.mark.parametrize(("count", "limit"), [(8, 3), (100, 6), (1000, 6)])
def test_a_wrong_rule_that_hits_every_node_opens_the_breaker(count: int, limit: int) -> None:
    nodes = {name: broken(name) for name in fleet(count)}
    decisions = decided(snapshot_of(nodes), b.config(guards=WIDE))
    assert len(quarantined(decisions)) == limit
    (breaker,) = [one for one in decisions if one.action is Action.OPEN_BREAKER]
    assert f"{count - limit} more to be quarantined" in breaker.reason
    assert "reset-breaker" in breaker.reason
    assert sum(one.because is Because.BREAKER for one in decisions) == count - limit


def test_one_node_again_and_again_opens_no_breaker() -> None:
    times = {"n1": tuple(b.NOW - 10 * i for i in range(1, 20))}
    decisions = decided(b.snapshot(broken("n2"), quarantined_at=times), b.config())
    assert quarantined(decisions) == ["n2"]


def test_the_window_moves_on() -> None:
    config = b.config(guards=WIDE | {"breaker_window_seconds": 600})
    lately = {f"n{i}": (b.NOW - 300,) for i in (3, 4, 5)}
    long_ago = {f"n{i}": (b.NOW - 700,) for i in (3, 4, 5)}
    assert quarantined(decided(b.snapshot(broken("n2"), quarantined_at=lately), config)) == []
    assert quarantined(decided(b.snapshot(broken("n2"), quarantined_at=long_ago), config)) == ["n2"]


def test_what_was_before_its_reset_counts_no_more() -> None:
    lately = {f"n{i}": (b.NOW - 300,) for i in (3, 4, 5)}
    snapshot = b.snapshot(broken("n2"), quarantined_at=lately, breaker_reset_at=b.NOW - 100)
    assert quarantined(decided(snapshot, b.config(guards=WIDE))) == ["n2"]


def test_nothing_is_drained_while_it_is_open_and_it_is_not_opened_again() -> None:
    decisions = decided(b.snapshot(broken("n2"), breaker="eight at once"), b.config())
    assert [(one.action, one.because) for one in decisions] == [(Action.NOTHING, Because.BREAKER)]
    assert "eight at once" in decisions[0].reason


def test_a_fleet_that_is_mostly_out_of_service_bears_fewer() -> None:
    """The share is one of the nodes that are well."""
    nodes = fleet(40) | {f"n{i}": b.node(f"n{i}", NodeState.RETIRED) for i in range(1, 31)}
    nodes |= {f"n{i}": broken(f"n{i}") for i in range(31, 41)}
    config = b.config(guards=WIDE | {"breaker_nodes_max": 100})
    assert len(quarantined(decided(snapshot_of(nodes), config))) == 3
    whole = fleet(40) | {f"n{i}": broken(f"n{i}") for i in range(1, 41)}
    assert len(quarantined(decided(snapshot_of(whole), config))) == 10


def test_a_rule_that_only_observes_drains_nobody_and_says_so() -> None:
    config = b.config(guards={"observe_rules": ["xid.7"]})
    (decision,) = decided(b.snapshot(broken("n2")), config)
    assert (decision.action, decision.because) == (Action.NOTHING, Because.RULE_DRY_RUN)
    assert 'observe_rules has "xid.7"' in decision.reason
    assert quarantined(decided(b.snapshot(broken("n2", xid=95)), config)) == ["n2"]


def test_a_rack_loses_no_more_than_its_share() -> None:
    domains = {"switch rack1": ("n1", "n2", "n3", "n4"), "switch rack2": ("n5", "n6", "n7", "n8")}
    nodes = {name: broken(name) for name in ("n1", "n2", "n3", "n5")}
    config = b.config(guards=WIDE | {"domain_share_max": 0.5, "breaker_share_max": 1.0})
    decisions = decided(b.snapshot(*nodes.values(), domains=domains), config)
    assert quarantined(decisions) == ["n1", "n2", "n5"]
    (held,) = [one for one in decisions if one.because is Because.DOMAIN_BUDGET]
    assert "switch rack1" in held.reason


def test_of_a_domain_of_one_its_node_may_still_be_quarantined() -> None:
    config = b.config(guards={"domain_share_max": 0.1})
    assert quarantined(decided(b.snapshot(broken("n2"), domains={"partition small": ("n2",)}), config)) == ["n2"]


@pytest.mark.parametrize("state", [NodeState.REPAIRING, NodeState.HANDS, NodeState.OPERATOR_HOLD, NodeState.RETIRED])
def test_a_node_that_is_out_of_service_is_not_condemned_again(state: NodeState) -> None:
    node = b.node("n2", state, events=(b.xid_event("n2", 79),), slurm=b.slurm_node("n2", flags=["DRAIN"]))
    decisions = decided(b.snapshot(node), b.config())
    assert quarantined(decisions) == []
