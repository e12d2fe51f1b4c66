"""The pool keeps its spares where gangs would miss them, and never all in one place."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests import builders as b
from understudy_controlplane.decide.pool_spread import spread
from understudy_controlplane.decide.spares import joining_pool
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.topology import Domain, DomainKind, Topology, merged

TWO_RACKS = merged(
    [Domain(DomainKind.RACK, "r1", ("n1", "n2", "n3", "n4")), Domain(DomainKind.RACK, "r2", ("n5", "n6", "n7", "n8"))]
)


def joining(count: int, *jobs: Job, topology: Topology = TWO_RACKS) -> tuple[str, ...]:
    return joining_pool(b.snapshot(jobs=jobs, topology=topology), (), b.config(spares={"count": count}))


def test_where_nothing_is_used_racks_get_equally_many_spares() -> None:
    assert joining(2) == ("n4", "n8")
    assert joining(4) == ("n3", "n4", "n7", "n8")


def test_a_rack_has_spares_in_proportion_to_what_is_used_there() -> None:
    snapshot = b.snapshot(jobs=[b.job(nodes=["n1", "n2"]), b.job(job_id=8, nodes=["n5"])], topology=TWO_RACKS)
    assert spread(snapshot, ["n8", "n7", "n4", "n3"], 3, lambda _name: 0) == ("n4", "n8", "n3")


def test_without_a_topology_the_last_by_name_join() -> None:
    assert joining(3, topology=merged([])) == ("n6", "n7", "n8")


def test_a_node_on_probation_joins_before_others_wherever_it_is() -> None:
    probation = b.node("n1", NodeState.PROBATION)
    snapshot = b.snapshot(probation, topology=TWO_RACKS)
    assert joining_pool(snapshot, (), b.config(spares={"count": 1})) == ("n1",)


@given(st.integers(1, 24), st.integers(2, 6))
def test_the_failure_of_a_rack_leaves_spares_where_there_are_two_and_racks_are_used_alike(
    count: int, racks: int
) -> None:
    names = [f"n{i}" for i in range(racks * 6)]
    domains = [Domain(DomainKind.RACK, f"r{rack}", tuple(names[rack * 6 : rack * 6 + 6])) for rack in range(racks)]
    snapshot = replace(b.snapshot(topology=merged(domains)), nodes={})
    chosen = spread(snapshot, names, count, lambda _name: 0)
    each = [len(set(one.nodes) & set(chosen)) for one in domains]
    assert len(chosen) == min(count, len(names))
    assert max(each) - min(each) <= 1


def test_a_node_that_slurm_blocks_for_the_job_of_its_block_joins_no_pool() -> None:
    blocked = b.node("n8", slurm=b.slurm_node("n8", flags=["BLOCKED"]))
    assert joining_pool(b.snapshot(blocked), (), b.config(spares={"count": 1})) == ("n7",)
