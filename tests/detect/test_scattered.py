"""Gangs that Slurm placed otherwise than asked, or further apart than free nodes would allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import builders as b
from tests.recover.rehearsal import Rehearsal
from understudy_controlplane.detect.scattered import scattered, spread_of
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.topology import Domain, DomainKind, merged
from understudy_controlplane.store.queries import DecisionFilter, Queries

BLOCK, SWITCH = DomainKind.NVLINK_BLOCK, DomainKind.SWITCH
PAIRS = (("n1", "n2"), ("n3", "n4"), ("n5", "n6"), ("n7", "n8"))
HALVES = (("n1", "n2", "n3", "n4"), ("n5", "n6", "n7", "n8"))


def found(
    nodes: tuple[str, ...],
    domains: tuple[tuple[str, ...], ...] = HALVES,
    *others: NodeView,
    kind: DomainKind = BLOCK,
    managed: bool = True,
    **job: Any,
) -> list[Finding]:
    topology = merged([Domain(kind, f"d{number}", one) for number, one in enumerate(domains)])
    busy = [b.node(name, slurm=b.slurm_node(name, "ALLOCATED")) for name in nodes]
    gang = b.job(managed=managed, nodes=nodes, **({"start_at": int(b.NOW) - 60} | job))
    return [*scattered(b.snapshot(*busy, *others, jobs=[gang], topology=topology))]


def words(*arguments: Any, **job: Any) -> list[str]:
    return [one.summary for one in found(*arguments, **job)]


def test_a_gang_that_is_as_it_asks_and_as_close_as_it_can_be_is_no_finding() -> None:
    assert found(HALVES[0], segment=4) == []
    assert found(("n1", "n2", "n3", "n4", "n5", "n6"), segment=2) == []


def test_a_segment_that_slurm_ignored_is_found_with_its_price() -> None:
    (one,) = found(("n1", "n3", "n5", "n7"), PAIRS, segment=2)
    assert (one.signal, one.rule, one.job) == (Signal.GANG_SCATTERED, "placement.request", b.job().key)
    assert one.summary == (
        "it asks for --segment=2, and 0 of 2 groups of 2 nodes are in one block; "
        "6 of its 6 pairs of nodes are in different nvlink blocks"
    )


def test_a_node_that_slurm_dropped_from_its_block_is_named() -> None:
    dropped = (("n1", "n2", "n3"), ("n5", "n6", "n7", "n8"))
    (summary,) = words(HALVES[0], dropped, segment=4)
    assert summary.startswith(
        "it asks for --segment=4, and 0 of 1 groups of 4 nodes are in one block; the topology has n4 in"
    )


def test_groups_that_the_comment_asks_for_count_as_well() -> None:
    (summary,) = words(("n1", "n3", "n5", "n7"), PAIRS, comment="understudy block=2")
    assert "it asks for block=2, and 0 of 2 groups" in summary


def test_more_leaf_switches_than_asked_for_are_found_and_rails_are_not_counted() -> None:
    (summary,) = words(("n1", "n2", "n5", "n6"), kind=SWITCH, switches_max=1)
    assert summary.startswith("it asks for --switches=1, and is on 2 leaf switches; 4 of its 6 pairs")
    assert words(("n1", "n2"), (("n1", "n2"), ("n1", "n2")), kind=SWITCH, switches_max=1) == []


def test_excluded_nodes_missing_features_and_mixed_gpus_are_found() -> None:
    assert "it excludes n2, and runs there" in words(("n1", "n2"), excluded_nodes=("n2", "n3"))[0]
    assert "it asks for h100&ib, which Slurm does not show of n1, n2" in words(("n1", "n2"), features="h100&ib")[0]
    later = words(("n1", "n2"), excluded_nodes=("n2",), start_at=int(b.NOW) - 3600)
    assert later == [], "it was excluded for the job's next start"
    assert words(("n1", "n2"), features="[rack1*2&rack2*2]") == [], "an expression of Slurm's is not judged"
    other = b.node("n2", slurm=replace(b.slurm_node("n2", "ALLOCATED"), gres="gpu:a100:8"))
    assert "its nodes have different GPUs: gpu:a100:8 and none" in words(("n1", "n2"), HALVES, other)[0]


def test_gpus_of_another_type_than_asked_for_are_found() -> None:
    given = [b.node(name, slurm=replace(b.slurm_node(name, "ALLOCATED"), gres="gpu:a100:8")) for name in ("n1", "n2")]
    asked = words(("n1", "n2"), HALVES, *given, gpu_types=("h100",))
    assert asked == [
        "it asks for GPUs of type h100, which Slurm does not show of n1, n2; "
        "0 of its 1 pairs of nodes are in different nvlink blocks"
    ]
    assert words(("n1", "n2"), HALVES, *given, gpu_types=("a100",)) == []


def test_a_gang_further_apart_than_free_nodes_allow_is_found() -> None:
    (one,) = found(("n1", "n2", "n5", "n6"))
    assert one.rule == "placement.spread"
    assert one.summary == (
        "it could be in 1 nvlink block with nodes that are free now, and is in 2: 0 pairs would be apart; "
        "4 of its 6 pairs of nodes are in different nvlink blocks"
    )


@pytest.mark.parametrize(
    ("others", "job"),
    [
        ([b.node(name, slurm=b.slurm_node(name, "ALLOCATED")) for name in ("n3", "n7")], {}),
        ([b.node(name, NodeState.QUARANTINED) for name in ("n3", "n7")], {}),
        ([b.node(name, is_spare=True) for name in ("n3", "n7")], {}),
        ([], {"start_at": int(b.NOW) - 3600}),
        ([], {"excluded_nodes": ("n3", "n7")}),
        ([], {"managed": False}),
        ([], {"state": "COMPLETED"}),
    ],
    ids=["busy", "out of service", "spares", "long ago", "excluded", "not managed", "ended"],
)
def test_what_it_could_not_have_had_is_no_finding(others: list[NodeView], job: dict[str, Any]) -> None:
    assert found(("n1", "n2", "n5", "n6"), HALVES, *others, **job) == []


def test_a_gang_a_little_further_apart_is_no_finding() -> None:
    """Seven in one block and one beside it: 7 of 28 pairs, where 12 of 28 is the best of two blocks of four."""
    assert found(("n1", "n2", "n3", "n5", "n6", "n7")) == []


def test_without_a_topology_nothing_is_known() -> None:
    assert spread_of(merged([]), ["n1", "n2"]) is None
    assert found(("n1", "n2", "n5", "n6"), ()) == []


def recorded_of(rehearsal: Rehearsal, job: int) -> list[str]:
    """Reasons of the decisions about where Slurm put it."""
    decisions = Queries(rehearsal.control_plane.engine).decisions(100, only=DecisionFilter(subject=f"job {job}"))
    return [one["reason"] for one in decisions if one["table_row"] == 395]


@pytest.mark.integration
@pytest.mark.patient
def test_slurm_that_ignores_segment_after_a_change_of_the_topology_is_recorded_and_the_gang_works_on(
    tmp_path: Path,
) -> None:
    """Blocks of three nodes, two gangs of two of n1 to n4 asked for: one of them is in two blocks."""
    rehearsal = Rehearsal(tmp_path)
    rehearsal.fake.ask_for_segment(rehearsal.gang, 2)
    rehearsal.fake.block_nodes = 3
    rehearsal.run(400)
    (reason,) = recorded_of(rehearsal, rehearsal.gang)
    assert "it asks for --segment=2, and 1 of 2 groups of 2 nodes are in one block" in reason
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert not rehearsal.line.effects


@pytest.mark.integration
@pytest.mark.patient
def test_a_node_that_left_its_block_when_slurm_switched_it_off_is_named_to_the_gang_that_runs_there(
    tmp_path: Path,
) -> None:
    rehearsal = Rehearsal(tmp_path)
    fake = rehearsal.fake
    fake.blocks_lose_powered_down = True
    fake.cancel(rehearsal.hungry)
    fake.cancel(rehearsal.gang)
    rehearsal.run(2)
    assert fake.power_down("n4")
    fake.power_up("n4")
    rehearsal.gang = fake.submit(rehearsal.gang_user, 4, comment="understudy")
    fake.ask_for_segment(rehearsal.gang, 4)
    rehearsal.run(2)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n3", "n4"]
    fake.block_nodes = 4
    rehearsal.run(400)
    (reason,) = recorded_of(rehearsal, rehearsal.gang)
    assert "0 of 1 groups of 4 nodes are in one block; the topology has n4 in no block" in reason
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert not rehearsal.line.effects
