"""The map: who stands where, what each tile says without its colour, and how large the page of a large fleet is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests import builders as b
from understudy_controlplane.dashboard import fleet_map
from understudy_controlplane.fleet.drill import Drill
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.snapshot import OperatorState
from understudy_controlplane.fleet.topology import Domain, DomainKind, Topology

RACKS = Topology(
    (
        Domain(DomainKind.SWITCH, "leaf1", ("n1", "n2", "n10")),
        Domain(DomainKind.RACK, "r2", ("n2", "n10")),
        Domain(DomainKind.RACK, "r10", ("n1",)),
    )
)
NAMES = ("n10", "n1", "n2", "n3")


def test_nodes_stand_in_their_racks_in_natural_order_and_the_others_after_them() -> None:
    found = fleet_map.layout(RACKS, NAMES)
    assert (found.by, found.choices) == ("rack", ("rack", "switch"))
    assert [(one.name, one.nodes) for one in found.groups] == [("r2", ("n2", "n10")), ("r10", ("n1",)), ("n3", ("n3",))]


def test_a_person_chooses_how_the_fleet_is_grouped_among_what_is_known() -> None:
    assert [one.name for one in fleet_map.layout(RACKS, NAMES, "switch").groups] == ["leaf1", "n3"]
    assert fleet_map.layout(RACKS, NAMES, "pod").by == "rack"


def test_a_fleet_without_racks_is_shown_by_names() -> None:
    found = fleet_map.layout(Topology(), [f"n{number}" for number in range(1, 101)])
    assert [(one.name, len(one.nodes)) for one in found.groups] == [("n1 to n64", 64), ("n65 to n100", 36)]


def test_a_node_that_slurm_names_in_no_topology_twice_has_one_tile() -> None:
    twice = Topology((Domain(DomainKind.SWITCH, "a", ("n1",)), Domain(DomainKind.SWITCH, "b", ("n1",))))
    assert [one.nodes for one in fleet_map.layout(twice, ["n1"]).groups] == [("n1",)]


@pytest.mark.parametrize("state", list(NodeState))
def test_every_state_has_a_colour_and_all_but_service_have_a_mark(state: NodeState) -> None:
    code = fleet_map.code_of(b.node("n1", state), busy=False)
    drawing = fleet_map.drawn("rack", code, 8, 1.0)
    assert f't-{code}"' in drawing
    assert (f'k-{code}"' in drawing) is (state is not NodeState.IN_SERVICE)


def test_codes_and_marks_are_unlike_each_other() -> None:
    codes = [kind.code for kind in fleet_map.LEGEND]
    marks = [kind.mark for kind in fleet_map.LEGEND if kind.mark]
    assert (len({*codes}), len({*marks})) == (len(codes), len(marks))


def test_work_idleness_and_spares_differ_while_in_service() -> None:
    busy = fleet_map.code_of(b.node("n1"), busy=True)
    idle = fleet_map.code_of(b.node("n1"), busy=False)
    spare = fleet_map.code_of(b.node("n1", is_spare=True), busy=False)
    assert len({busy, idle, spare}) == 3


def test_a_node_in_a_drill_has_a_tile_of_its_own_as_long_as_it_is_out_of_service() -> None:
    drill = Drill(3, "n1", "exercise", "ada", b.NOW, b.NOW + 900)
    nodes = {"n1": b.node("n1", NodeState.QUARANTINED), "n2": b.node("n2", NodeState.QUARANTINED)}
    snapshot = replace(b.snapshot(*nodes.values()), operator=OperatorState(drills={"n1": drill}))
    found = fleet_map.codes(snapshot)
    assert {name: found[name] for name in nodes} == {
        "n1": fleet_map.DRILL.code,
        "n2": fleet_map.KINDS[NodeState.QUARANTINED].code,
    }
    assert fleet_map.code_of(b.node("n1"), busy=True, drill=True) == fleet_map.BUSY.code


def test_tiles_that_look_alike_are_one_line() -> None:
    """So 12,500 nodes in service are a page of some ten kilobytes."""
    drawing = fleet_map.drawn("r1", "o" * 40, 8, 1.0)
    assert drawing.count("<path") == 1
    assert drawing.count("M") == 5  # a line for each row
    assert len(drawing) < 450


def test_a_line_ends_where_its_last_tile_does() -> None:
    (path,) = re.findall(r't-o" d="([^"]*)"', fleet_map.drawn("r1", "ooqo", 8, 1.0))
    assert path == "M0 4h18M30 4h8"


def test_a_group_shows_how_many_of_its_nodes_are_not_in_service() -> None:
    assert '<b class="ill">2</b>' in fleet_map.drawn("r1", "ooqsieo", 8, 1.0)
    assert "ill" not in fleet_map.drawn("r1", "ooie", 8, 1.0)


def test_names_are_escaped() -> None:
    assert "<img" not in fleet_map.drawn("<img src=x>", "o", 8, 1.0)


def test_what_needs_a_person_is_listed_first() -> None:
    codes = {"n1": "o", "n2": "s", "n3": "m", "n4": "q", "n10": "q"}
    assert fleet_map.not_in_service([*codes], codes) == ["n3", "n4", "n10", "n2"]


def test_the_legend_counts_every_node() -> None:
    found = {one.kind.words: one.count for one in fleet_map.shares({"n1": "i", "n2": "s", "n3": "e"})}
    assert found == {"suspect": 1, "in service, busy": 0, "in service, idle": 1, "spare": 1}
