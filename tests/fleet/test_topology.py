"""Domains are joined from all sources, and what is inconsistent or missing is named."""

from __future__ import annotations

import pytest

from understudy_controlplane.fleet.slurm import TopologyUnit, UnitKind
from understudy_controlplane.fleet.topology import (
    Domain,
    DomainKind,
    Source,
    merged,
    problems,
    settings_domains,
    slurm_domains,
)

RACK, ROW, SWITCH, RAIL, POD = DomainKind.RACK, DomainKind.ROW, DomainKind.SWITCH, DomainKind.RAIL, DomainKind.POD


def of_file(kind: DomainKind, name: str, *nodes: str, switches: tuple[str, ...] = ()) -> Domain:
    return Domain(kind, name, nodes, Source.FILE, switches)


def test_a_switch_above_all_leaves_is_a_spine_and_one_above_some_is_a_pod() -> None:
    units = [
        TopologyUnit(UnitKind.SWITCH, "leaf1", ("n1", "n2")),
        TopologyUnit(UnitKind.SWITCH, "leaf2", ("n3",)),
        TopologyUnit(UnitKind.SWITCH, "pod1", ("n1", "n2"), level=1),
        TopologyUnit(UnitKind.SWITCH, "core", ("n1", "n2", "n3"), level=2),
    ]
    assert [one.label for one in slurm_domains(units)] == ["switch leaf1", "switch leaf2", "pod pod1", "spine core"]


def test_blocks_are_nvlink_blocks_and_the_smallest_aggregates_are_pods() -> None:
    units = [
        *(TopologyUnit(UnitKind.BLOCK, f"b{i}", (f"n{i}",)) for i in range(1, 5)),
        TopologyUnit(UnitKind.AGGREGATED, "b[1-2]", ("n1", "n2")),
        TopologyUnit(UnitKind.AGGREGATED, "b[1-4]", ("n1", "n2", "n3", "n4")),
    ]
    labels = [one.label for one in slurm_domains(units)]
    assert labels == [*(f"nvlink_block b{i}" for i in range(1, 5)), "pod b[1-2]"]


def test_a_node_is_in_several_domains_and_on_one_leaf_switch_for_each_rail() -> None:
    leaves = [Domain(SWITCH, "leaf1a", ("n1", "n2")), Domain(SWITCH, "leaf1b", ("n1", "n2"))]
    topology = merged([*leaves, of_file(RAIL, "0", switches=("leaf1a",)), of_file(RACK, "r1", "n1", "n2")])
    assert topology.names_of("n1", SWITCH) == ["leaf1a", "leaf1b"]
    assert topology.by_label["rail 0"].nodes == ("n1", "n2")
    assert problems(topology, ["n1", "n2"]) == []
    assert set(topology.failing_together) == {"switch leaf1a", "switch leaf1b", "rack r1"}


def test_of_two_sources_that_disagree_the_file_counts_and_both_are_named() -> None:
    topology = merged([of_file(RACK, "r1", "n1"), *settings_domains({"rack r1": ["n1", "n2"], "fans": ["n1"]})])
    assert topology.by_label["rack r1"].nodes == ("n1",)
    (problem,) = topology.conflicts
    assert problem.startswith("rack r1: its nodes differ between guards.domains and file: n2 (guards.domains only)")


@pytest.mark.parametrize(
    ("domains", "words"),
    [
        ([of_file(RACK, "r1", "n1", "n2", "n9")], "rack r1 (file): Slurm has no node n9"),
        ([of_file(RACK, "r1", "n1", "n2"), of_file(RACK, "r2", "n2")], "n2 is in rack r1 and rack r2"),
        ([of_file(RACK, "r1", "n1")], "in no rack, although other nodes are in one: n2"),
        (
            [of_file(SWITCH, "a", "n1", "n2"), of_file(SWITCH, "b", "n1"), of_file(SWITCH, "c", "n0")],
            "on 2 leaf switches, where most nodes are on 1: n1",
        ),
        (
            [
                of_file(SWITCH, "a", "n1", "n2"),
                of_file(SWITCH, "b", "n1", "n2"),
                of_file(RAIL, "0", switches=("a", "b")),
            ],
            "n1 is on leaf switches a, b, which are all of rail 0",
        ),
        (
            [of_file(RACK, "r1", "n1", "n2"), of_file(ROW, "a", "n1"), of_file(ROW, "b", "n2")],
            "rack r1 has nodes in several rows: a, b",
        ),
    ],
)
def test_what_is_inconsistent_or_missing_is_named(domains: list[Domain], words: str) -> None:
    found = problems(merged(domains), ["n0", "n1", "n2"] if "2 leaf" in words else ["n1", "n2"])
    assert any(one.startswith(words) for one in found), found


def test_a_source_that_cannot_be_read_is_a_problem() -> None:
    assert problems(merged([], ["topology.toml: not valid TOML"]), ["n1"]) == ["topology.toml: not valid TOML"]
