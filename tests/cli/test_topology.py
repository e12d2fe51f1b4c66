"""The topology is drawn, each domain within the one that contains it."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Served, record
from understudy_client import Record
from understudy_controlplane.cli.topology import drawn

pytestmark = pytest.mark.integration


def domain(kind: str, name: str, source: str, nodes: tuple[str, ...]) -> Record:
    return record(kind=kind, name=name, source=source, nodes=nodes, signals=())


def test_domains_are_drawn_within_those_that_contain_them() -> None:
    found = drawn(
        [
            domain("switch", "leaf1", "slurm", ("n1", "n2")),
            domain("switch", "leaf2", "slurm", ("n3",)),
            domain("rack", "r1", "file", ("n1", "n2")),
            domain("spine", "s1", "slurm", ("n1", "n2", "n3")),
            domain("row", "a", "file", ("n1", "n2")),
        ]
    )
    assert found == [
        "spine s1  n[1-3]  (3, slurm)",
        "├─ switch leaf1  n[1-2]  (2, slurm)",
        "└─ switch leaf2  n3  (1, slurm)",
        "row a  n[1-2]  (2, file)",
        "└─ rack r1  n[1-2]  (2, file)",
    ]


def test_the_topology_of_slurm_is_shown_and_has_no_problem(observing: Served) -> None:
    printed = observing.run("topology", "show")
    assert "spine spine  n[1-4]  (4, slurm)\n├─ switch rack1  n[1-2]  (2, slurm)" in printed
    assert {one["kind"] for one in json.loads(observing.run("topology", "show", "--json"))["domains"]} == {
        "switch",
        "spine",
    }
    assert observing.run("topology", "check").startswith("good: 3 domains")
