"""Real clusters with racks on rails, and with NVLink blocks: a gang gets the spare that costs it least, and with which
Slurm starts it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.testbed.installation import DEBIAN_13, DEBIAN_14
from tests.testbed.site import Site
from understudy_controlplane.slurm.cli import CommandLineGateway
from understudy_controlplane.slurm.pyslurm_gateway import PyslurmGateway

pytestmark = pytest.mark.cluster

RACKS_ON_RAILS = {
    f"leaf{rack}{rail}": nodes
    for rail in "ab"
    for rack, nodes in (("1", ("n1", "n3", "n5")), ("2", ("n2", "n4", "n6")))
}
BLOCKS = {"b1": ("n1", "n2", "n3", "n4"), "b2": ("n5", "n6", "n7", "n8")}

NVLINK_ERROR = "NVRM: Xid (PCI:0000:1b:00): 145, RLW_RXPIPE Fatal XC0 i0 Link 01 (0x000004c2 0x00000002 0x0 0x0)"


def start(site: Site, spares: set[str]) -> int:
    """A gang of two nodes, which Slurm seats in one rack, or block."""
    gang.start_agents(site)
    site.start_control_plane()
    site.wait_for(lambda: set(site.spares_held()) == spares, 60, f"the pool is {', '.join(sorted(spares))}")
    site.wait_for(lambda: gang.all_heard(site), 60, "all nodes are heard")
    job = gang.submit(site, nodes=2)
    gang.wait_running(site, job)
    return job


def choice_of(site: Site, node: str) -> dict[str, Any]:
    """The decision that moved the gang off the node."""
    found = [one for one in site.items("/v1/decisions") if one["subject"] == node and "moves to" in one["reason"]]
    assert len(found) == 1
    return found[0]


def test_on_two_racks_and_two_rails_the_gang_gets_the_spare_of_its_rack(make_site: MakeSite) -> None:
    """Spare n5 is in the rack of n1 and n3, and n6 in that of n2 and n4."""
    site = make_site(nodes=6, spares=2, leaf_switches=RACKS_ON_RAILS)
    job = start(site, {"n5", "n6"})
    failed, other = gang.nodes_of(site, job)
    near, far = ("n5", "n6") if failed in ("n1", "n3") else ("n6", "n5")
    site.nodes[failed].fail_gpu()
    gang.wait_running(site, job, restarts=1)
    assert gang.nodes_of(site, job) == sorted([other, near])
    decision = choice_of(site, failed)
    assert f"{near} costs" in decision["reason"]
    assert decision["evidence"]["placement"][0]["runners_up"][0]["node"] == far


def block_of(node: str) -> tuple[str, ...]:
    return next(nodes for nodes in BLOCKS.values() if node in nodes)


def test_slurm_starts_a_gang_in_one_block_only_so_all_of_it_moves_where_its_block_has_no_spare_left(
    make_site: MakeSite,
) -> None:
    """topology.yaml. The node that it gives up is well, and in service."""
    site = make_site(nodes=8, spares=4, blocks=BLOCKS, slurm=DEBIAN_14)
    job = start(site, {"n3", "n4", "n7", "n8"})
    failed, other = gang.nodes_of(site, job)
    site.nodes[failed].fail_gpu()
    gang.wait_running(site, job, restarts=1)
    (spare,) = set(gang.nodes_of(site, job)) - {other}
    assert spare in block_of(failed)
    assert "in one block only" in choice_of(site, failed)["reason"]
    (last,) = set(block_of(failed)) - {failed, other, spare}
    site.nodes[last].fail_gpu()
    site.wait_for(lambda: site.node(last)["state"] == "quarantined", 60, "the block has no spare left")
    site.nodes[other].fail_gpu()
    gang.wait_running(site, job, restarts=2)
    assert not set(gang.nodes_of(site, job)) & set(block_of(failed))
    assert f"it gives up {spare} as well" in choice_of(site, other)["reason"]
    site.wait_for(lambda: site.recoveries()[-1]["status"] == "succeeded", 60, "the recovery has ended")
    assert site.node(spare)["state"] == "in_service"
    assert not set(gang.reservations(site)) - {"understudy_spares"}


def test_both_gateways_read_the_segment_and_a_gang_that_is_spread_worse_is_recorded_with_its_price(
    make_site: MakeSite,
) -> None:
    """An administrator moves a node of the gang to another block, which Slurm does not hold against a running job."""
    site = make_site(nodes=8, spares=0, blocks=BLOCKS, slurm=DEBIAN_14)
    job = gang.submit(site, "--segment=2", "--nodelist=n[1-2,5-6]")
    gang.wait_running(site, job)
    environment = site.cluster.environment
    command_line = CommandLineGateway(environment=environment)
    with ExitStack() as stack:
        pyslurm = PyslurmGateway(command_line, str(site.cluster.pyslurm_python), environment, 10.0)
        stack.callback(pyslurm.stop)
        for gateway in (command_line, pyslurm):
            (found,) = [one for one in gateway.jobs() if one.job_id == job]
            assert (found.segment, found.comment) == (2, "understudy")
    moved = site.cluster.run("scontrol", "update", "NodeName=n2", "Topology=nvlink:b2")
    assert moved.returncode == 0, moved.stderr
    gang.start_agents(site)
    site.start_control_plane()

    def recorded() -> list[str]:
        reasons = [one["reason"] for one in site.items("/v1/decisions") if one["table_row"] == 395]
        return [one for one in reasons if "1 of 2 groups of 2 nodes are in one block" in one]

    site.wait_for(recorded, 60, "the gang's place is recorded")
    (words,) = recorded()
    assert "it asks for --segment=2" in words
    assert "3 of its 6 pairs of nodes are in different nvlink blocks" in words
    assert gang.state(site, job) == "RUNNING"


@pytest.mark.long
def test_a_block_that_loses_its_fabric_is_one_failure_and_its_gang_moves_to_another_block(make_site: MakeSite) -> None:
    """topology.conf. The errors come while the control plane is away. Nodes without a gang stay in service."""
    site = make_site(nodes=8, spares=4, blocks=BLOCKS, slurm=DEBIAN_13)
    job = start(site, {"n3", "n4", "n7", "n8"})
    block = block_of(gang.nodes_of(site, job)[0])
    own = set(gang.nodes_of(site, job))
    site.kill_control_plane()
    for name in block:
        site.nodes[name].log_kernel_message(NVLINK_ERROR)
    site.start_control_plane()
    gang.wait_running(site, job, restarts=1)
    assert not set(gang.nodes_of(site, job)) & set(block)
    site.wait_for(lambda: site.recoveries()[-1]["status"] == "succeeded", 60, "the recovery has ended")
    incidents = [one for one in site.items("/v1/incidents") if one["rule"] == "fabric.block"]
    assert len(incidents) == 1
    assert {name: site.node(name)["state"] for name in block} == {
        name: "quarantined" if name in own else "in_service" for name in block
    }
