"""An NVLink block that loses its fabric is one failure: its GPUs are not to blame, and its nodes are no spares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests import builders as b
from understudy_controlplane.decide import guards
from understudy_controlplane.decide.incidents import CAUSE_GONE, incident_news, with_fabric
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.spare_outlook import outlook
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action, Decision
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.incident import BLOCK_FABRIC, OpenIncident
from understudy_controlplane.fleet.node import NodeState, NodeView, StoredKernelEvent
from understudy_controlplane.fleet.recovery import PoolSwapPlan
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.topology import Domain, DomainKind, merged
from understudy_wire.facts import KernelEvent

BLOCKS, SIZE = 4, 18
NAMES = [f"n{i}" for i in range(1, BLOCKS * SIZE + 1)]
BLOCK = tuple(NAMES[:SIZE])
SPARES = ("n18", "n72")
CONFIG = b.config()


def fleet(*changed: NodeView, **values: Any) -> Snapshot:
    """Four blocks of 18 nodes; a gang of four has two nodes in the first; a spare in the first and in the last."""
    blocks = [Domain(DomainKind.NVLINK_BLOCK, f"b{i}", tuple(NAMES[i * SIZE : (i + 1) * SIZE])) for i in range(BLOCKS)]
    topology = merged(blocks)
    job = b.job(nodes=["n1", "n2", "n19", "n20"])
    seen = b.snapshot(jobs=[job], spares=SPARES, topology=topology, domains=topology.failing_together, **values)
    nodes = {name: b.node(name, is_spare=name in SPARES) for name in NAMES}
    return replace(seen, nodes=nodes | {one.name: one for one in changed})


def unlinked(name: str) -> NodeView:
    return b.node(name, is_spare=name in SPARES, gpus=(b.gpu(0, nvlinks=0, nvlinks_max=18),))


def fatal(name: str) -> NodeView:
    return b.node(name, gpus=(b.gpu(0),), events=(b.xid_event(name, 79),))


def nvlink_error(name: str) -> NodeView:
    text = "NVRM: Xid (PCI:0000:01:00): 145, RLW_RXPIPE Fatal XC0 i0 Link 01 (0x000004c2 0x00000002 0x0 0x0)"
    event = KernelEvent(b.BOOT, 1, b.NOW - 1, text, 145, "0000:01:00.0")
    stored = StoredKernelEvent(1, name, b.NOW - 1, event)
    return b.node(name, is_spare=name in SPARES, gpus=(b.gpu(0),), events=(stored,))


def opened() -> dict[Subject, OpenIncident]:
    subject = Subject.of_domain("nvlink_block b0", BLOCK_FABRIC)
    return {subject: OpenIncident(1, subject, BLOCK_FABRIC, "domain_fault", "18 nodes …", b.NOW - 30, nodes=BLOCK)}


def judged(snapshot: Snapshot) -> tuple[list[Finding], list[Decision]]:
    findings = detect(snapshot, CONFIG)
    return findings, decide(with_fabric(snapshot, findings), findings, CONFIG)


def test_a_block_without_fabric_is_one_incident_and_makes_no_suspect() -> None:
    findings, decisions = judged(fleet(*map(unlinked, BLOCK)))
    (fault,) = findings
    assert (fault.signal, fault.rule, fault.domain) == (Signal.DOMAIN_FAULT, BLOCK_FABRIC, "nvlink_block b0")
    assert len(fault.nodes) == SIZE
    assert [one.subject for one in decisions if one.opens_incident] == ["nvlink_block b0"]
    assert not [one for one in decisions if one.to_state is not None]


def test_some_nodes_of_a_block_are_nodes_of_their_own() -> None:
    findings = detect(fleet(*map(unlinked, BLOCK[:8])), CONFIG)
    assert {one.node for one in findings if one.signal is Signal.HEALTH_SUSPECTED} == set(BLOCK[:8])
    assert not [one for one in findings if one.domain]


def test_gangs_leave_nodes_with_a_fatal_nvlink_error_and_the_others_stay_in_service() -> None:
    findings, decisions = judged(fleet(*map(nvlink_error, BLOCK), incidents=opened()))
    assert {one.node for one in findings if one.signal is Signal.HARDWARE_FAULT} == {"n1", "n2"}
    (plan,) = {one.plan for one in decisions if isinstance(one.plan, PoolSwapPlan)}
    assert set(plan.nodes) == {"n1", "n2"}
    assert not {"n18", *BLOCK} & set(plan.spares)
    assert {one.subject for one in decisions if one.to_state is NodeState.QUARANTINED} == {"n1", "n2"}


def test_no_gang_moves_within_the_block_in_the_round_that_shows_its_failure_first() -> None:
    """All nodes of a block may report at once, as when a control plane starts; the incident is opened afterwards."""
    _, decisions = judged(fleet(*map(nvlink_error, BLOCK)))
    spares = [name for one in decisions if isinstance(one.plan, PoolSwapPlan) for name in one.plan.spares]
    assert spares
    assert not set(BLOCK) & set(spares)


def test_the_last_nodes_that_are_rebooted_are_still_those_of_the_block() -> None:
    few = [nvlink_error(name) for name in BLOCK[10:14]]
    assert {one.node for one in detect(fleet(*few), CONFIG)} == set(BLOCK[10:14])
    assert [one.domain for one in detect(fleet(*few, incidents=opened()), CONFIG)] == ["nvlink_block b0"]


def test_other_faults_of_its_nodes_count_as_always() -> None:
    findings = detect(fleet(*map(unlinked, BLOCK[1:]), fatal("n1")), CONFIG)
    assert [(one.node, one.rule) for one in findings if one.node] == [("n1", "xid.79")]


def test_its_nodes_are_no_spares_and_a_person_is_notified_once() -> None:
    seen = fleet(*map(unlinked, BLOCK), incidents=opened())
    (page,) = [one for one in judged(seen)[1] if one.action is Action.PAGE]
    assert "No spare is taken from there" in page.reason
    found = outlook(seen, next(iter(seen.jobs.values())), "n19", b.config(spares={"no_spare": "wait"}))
    assert found.taken == ("n72",)
    assert [one.words for one in found.candidates if one.node == "n18"] == ["the NVLink fabric of its block has failed"]


def test_nodes_that_gangs_leave_count_as_one_until_they_are_back() -> None:
    incidents = opened()
    seen = fleet(*map(unlinked, BLOCK), incidents=incidents)
    assert guards.failures(seen, BLOCK) == {"nvlink_block b0"}
    well = fleet(incidents=incidents)
    assert [words for _, words in incident_news(well, [], incidents).over] == [CAUSE_GONE]
    out = b.node("n1", NodeState.QUARANTINED)
    taken = fleet(out, incidents=incidents, quarantined_at={"n1": (b.NOW - 20,)})
    assert incident_news(taken, [], incidents).over == ()


def test_nodes_that_left_service_for_other_faults_count_by_themselves() -> None:
    other = OpenIncident(7, Subject.of_node("n3"), "xid.48", "hardware_fault", "…", b.NOW - 20)
    seen = fleet(*map(unlinked, BLOCK), incidents=opened() | {other.subject: other})
    assert guards.failures(seen, ["n1", "n2", "n3"]) == {"nvlink_block b0", "n3"}


def test_nodes_that_fail_otherwise_in_the_same_round_count_by_themselves() -> None:
    """A rule that is wrong about all of the block drains no more than the budget."""
    config = b.config(guards={"quarantined_nodes_max": 3})
    seen = fleet(*map(fatal, BLOCK), incidents=opened())
    decisions = decide(seen, detect(seen, config), config)
    drained = [one for one in decisions if one.to_state is NodeState.QUARANTINED and one.subject in BLOCK]
    assert len(drained) <= 3


def test_nodes_that_die_in_the_same_round_count_by_themselves() -> None:
    """A fabric that is lost kills no node."""
    config = b.config(guards={"quarantined_nodes_max": 3})
    dead = [b.node(name, heard_at=b.NOW - 600, slurmd_silent_since=b.NOW - 590) for name in BLOCK[:6]]
    seen = fleet(*map(unlinked, BLOCK[6:]), *dead, incidents=opened())
    decisions = decide(seen, detect(seen, config), config)
    drained = [one for one in decisions if one.to_state is NodeState.QUARANTINED]
    assert 1 <= len(drained) <= 3


def test_a_block_whose_fabric_is_back_has_spares_again_though_its_incident_is_kept_for_the_budgets() -> None:
    out = b.node("n1", NodeState.QUARANTINED)
    taken = fleet(out, incidents=opened(), quarantined_at={"n1": (b.NOW - 20,)})
    assert set(BLOCK) <= taken.without_fabric
    back = with_fabric(taken, detect(taken, CONFIG))
    assert not back.without_fabric
    assert guards.failures(back, BLOCK) == {"nvlink_block b0"}
    still = fleet(out, *map(unlinked, BLOCK[1:]), incidents=opened())
    assert set(BLOCK) <= with_fabric(still, detect(still, CONFIG)).without_fabric
    assert set(BLOCK) <= with_fabric(replace(taken, started_at=b.NOW - 10), []).without_fabric


def left(name: str) -> tuple[NodeView, OpenIncident]:
    """Its gang has left it for the same error, some seconds ago."""
    node = replace(nvlink_error(name), record=b.record(name, NodeState.QUARANTINED))
    return node, OpenIncident(7, Subject.of_node(name), "xid.145", "hardware_fault", "…", b.NOW - 20)


def test_the_last_nodes_of_a_block_are_not_judged_by_themselves_after_its_gangs_have_left_the_others() -> None:
    """The block's incident may have been open before, or its gang's nodes were found first."""
    away = dict(left(name) for name in BLOCK[:16])
    incidents = {one.subject: one for one in away.values()}
    others = [nvlink_error(name) for name in BLOCK[16:]]
    for known in (opened(), {}):
        findings, decisions = judged(fleet(*away, *others, incidents=incidents | known))
        assert [one.domain for one in findings if one.domain] == ["nvlink_block b0"]
        assert not {one.subject for one in decisions if one.to_state is not None} & set(BLOCK[16:])


def test_a_node_that_fails_long_after_others_of_its_block_is_a_node_of_its_own() -> None:
    away = dict(left(name) for name in BLOCK[:3])
    incidents = {one.subject: replace(one, opened_at=b.NOW - 4000) for one in away.values()}
    findings = detect(fleet(*away, nvlink_error("n10"), incidents=incidents), CONFIG)
    assert not [one for one in findings if one.domain]
