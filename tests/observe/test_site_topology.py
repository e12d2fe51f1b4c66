"""The site's file of domains: its form, its errors, and what happens while it cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import builders as b
from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.observe.site_topology import TopologyFileError, parse_site_topology
from understudy_controlplane.observe.topology_reader import TOPOLOGY_AGE_MAX_SECONDS, TopologyReader

NODES = ("n1", "n2", "n3", "n4")
SITE = """
[rack]
r1 = "n[1-2]"
r2 = ["n3", "n4"]
[row]
a = "rack r[1-2]"
[pod]
east = "switch rack1"
[rail]
0 = ["switch rack[1-2]"]
"""


def test_domains_are_host_lists_or_made_of_other_domains() -> None:
    found = {one.label: (one.nodes, one.switches) for one in parse_site_topology(SITE, "site")}
    assert found["rack r1"] == (("n1", "n2"), ())
    assert found["row a"] == (("n1", "n2", "n3", "n4"), ())
    assert found["rail 0"] == ((), ("rack1", "rack2"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rack = ", "not valid TOML"),
        ('[racks]\nr1 = "n1"', "'racks' is no kind of domain"),
        ("[rack]\nr1 = 3", "rack.r1: write a host list"),
        ('[rack]\nr1 = "n[1-"', "rack.r1: "),
        ('[row]\na = "rack r7"', "there is no rack r7, which row a names"),
        ('[row]\na = "hall 7"', "row.a: 'hall' is no kind of domain"),
        ('[row]\na = "row b"\nb = "row a"', "row a is a member of itself"),
    ],
)
def test_a_wrong_file_is_refused_with_its_cause(text: str, words: str) -> None:
    with pytest.raises(TopologyFileError) as error:
        parse_site_topology(text, "site.toml")
    assert str(error.value).startswith("site.toml: ")
    assert words in str(error.value)


def test_slurm_and_the_file_are_one_topology_and_a_broken_file_leaves_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(SITE, "utf-8-sig")  # as an editor of Windows saves it
    reader, config = TopologyReader(VirtualSlurm(["n1", "n2", "n3", "n4"])), b.config(topology={"file": str(file)})
    topology = reader.read(config, NODES, 0.0, "")
    assert topology.by_label["pod east"].nodes == ("n1", "n2")
    assert topology.names_of("n4", topology.by_label["rack r2"].kind) == ["r2"]
    file.write_text("rack = ")
    assert reader.read(config, NODES, 1.0, "") is topology, "not read again yet"
    later = reader.read(config, NODES, TOPOLOGY_AGE_MAX_SECONDS + 1, "")
    assert later.domains == topology.domains
    (problem,) = later.unread
    assert problem.endswith("what was read before is used")


def test_a_reloaded_configuration_counts_at_once() -> None:
    reader = TopologyReader(VirtualSlurm(["n1", "n2"]))
    assert "rack r1" not in reader.read(b.config(), NODES, 0.0, "").by_label
    assert "rack r1" in reader.read(b.config(guards={"domains": {"rack r1": ["n1"]}}), NODES, 1.0, "").by_label


def test_a_fabric_that_cannot_be_read_is_named_and_leaves_the_rest(tmp_path: Path) -> None:
    fabric = tmp_path / "fabric.txt"
    reader, config = TopologyReader(VirtualSlurm(["n1", "n2"])), b.config(topology={"infiniband": str(fabric)})
    topology = reader.read(config, NODES, 0.0, "")
    assert "switch rack1" in topology.by_label
    assert "fabric.txt: cannot be read" in topology.unread[0]
    fabric.write_text(
        'Switch\t36 "S-a"\t# "leaf9" base port 0 lid 3 lmc 0\n[1]\t"H-b"[1](c) \t# "n1 mlx5_0" lid 4 4xHDR\n'
    )
    later = reader.read(config, NODES, TOPOLOGY_AGE_MAX_SECONDS, "")
    assert (later.by_label["switch leaf9"].nodes, later.unread) == (("n1",), ())
