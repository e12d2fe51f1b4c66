"""An alert is about a node that its labels name, or that has their address."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests import builders as b
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.ingest.alertmanager import targets_of
from understudy_controlplane.ingest.site_signals import known_as


def node(name: str, address: str) -> NodeView:
    return b.node(name, slurm=replace(b.slurm_node(name), address=address))


FLEET = b.snapshot(
    node("n1", "10.0.0.17"),
    node("n2", "fd00::17"),
    node("n3", "n3-ib"),
    node("n4", "127.0.0.1"),
    node("n5", "127.0.0.1"),
    node("10", "10.0.0.99"),
)


@pytest.mark.parametrize(
    ("instance", "name"),
    [
        ("n1", "n1"),
        ("n1:9100", "n1"),
        ("n1.example.org:9100", "n1"),
        ("n1.example.org", "n1"),
        ("10.0.0.17:9100", "n1"),
        ("10.0.0.17", "n1"),
        ("[fd00::17]:9100", "n2"),
        ("[FD00:0::17]:9100", "n2"),
        ("fd00::17", "n2"),
        ("n3-ib:9100", "n3"),
        ("10.example.org:9100", "10"),
        ("10.0.0.18:9100", ""),  # not node 10
        ("[fd00::18]:9100", ""),
        ("127.0.0.1:9100", ""),  # of two nodes
        ("n9:9100", ""),
        (":9100", ""),
        ("", ""),
    ],
)
def test_the_node_of_an_instance_is_found_by_name_and_by_address(instance: str, name: str) -> None:
    assert targets_of({"instance": instance}, known_as(FLEET)) == ((name,) if name else ())
