"""The spare that costs a gang least, by what its ranks exchange and how far nodes are from each other."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import builders as b
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.placement import Layout, Placement, layout_of, place, sizes_of_replicas
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import PoolSwapPlan
from understudy_controlplane.fleet.topology import Domain, DomainKind, Topology, merged
from understudy_wire.parallelism import Parallelism, parallelism_of, traffic

BLOCK, SWITCH, RACK, POD = DomainKind.NVLINK_BLOCK, DomainKind.SWITCH, DomainKind.RACK, DomainKind.POD


def domains(kind: DomainKind, **nodes: str) -> list[Domain]:
    return [Domain(kind, name, tuple(members.split())) for name, members in nodes.items()]


def placed(topology: Topology, seats: str, left: str, spares: str, **sizes: int) -> Placement:
    layout = Layout(tuple(seats.split()), 8 * len(seats.split()), Parallelism(**sizes))
    return place(topology, layout, left.split(), spares.split(), lambda _name: ())


def test_a_spare_of_the_rack_comes_before_one_of_the_pod_and_that_before_others() -> None:
    racks = merged([*domains(RACK, r1="n1 n2 n3 s3", r2="s2", r3="s1"), *domains(POD, east="n1 n2 n3 s3 s2")])
    found = placed(racks, "n1 n2 n3", "n2", "s1 s2 s3")
    assert found.taken == ("s3",)
    (choice,) = found.choices
    assert [name for name, _ in choice.runners_up] == ["s2", "s1"]
    assert choice.cost == choice.cost_before < choice.runners_up[0][1] < choice.runners_up[1][1]


def test_on_rails_the_share_of_common_leaf_switches_counts() -> None:
    rails = merged(domains(SWITCH, a0="n1 n2 n3 s2 s3", a1="n1 n2 n3 s3", b1="s2", b0="s1", c1="s1"))
    assert placed(rails, "n1 n2 n3", "n2", "s1 s2 s3").taken == ("s3",)
    assert placed(rails, "n1 n2 n3", "n2", "s1 s2").taken == ("s2",)


def test_tensor_parallel_ranks_on_several_nodes_stay_in_their_nvlink_block() -> None:
    """One rank for a node's eight GPUs: data-parallel neighbours would be as near in the other block."""
    blocks = merged(domains(BLOCK, b1="n1 n2 s2", b2="n3 n4 s1"))
    assert placed(blocks, "n1 n2 n3 n4", "n2", "s1 s2", tensor=16).taken == ("s2",)
    assert placed(blocks, "n1 n2 n3 n4", "n3", "s2 s1", tensor=16).taken == ("s1",)


def test_two_nodes_that_are_left_get_a_spare_each_and_one_without_a_seat_gets_what_is_left() -> None:
    racks = merged(domains(RACK, r1="n1 n2 n3 s4", r2="n4 n5 n6 s1"))
    found = placed(racks, "n1 n2 n3 n4 n5 n6", "gone n2 n5", "s9 s1 s4")
    assert found.taken == ("s9", "s4", "s1")
    assert [(one.left, one.taken) for one in found.choices] == [("n2", "s4"), ("n5", "s1")]
    assert placed(racks, "n1 n2", "n1 n2", "s4").taken == ("s4",)


def test_without_a_topology_the_order_of_the_candidates_decides() -> None:
    assert placed(merged([]), "n1 n2", "n2", "s2 s1") == Placement(("s2",))


def test_sizes_are_read_from_the_words_of_a_comment() -> None:
    assert parallelism_of(["understudy", "tp=8", "pp=4"]) == Parallelism(tensor=8, pipeline=4)
    assert parallelism_of(["understudy", "tp=0", "pp=x"]) is None


def test_a_rank_exchanges_most_with_its_tensor_group_and_nothing_with_strangers() -> None:
    found = traffic(range(1), 16, Parallelism(tensor=2, pipeline=2))
    assert found == {1: 100.0, 2: 5.0, 6: 5.0, 8: 1.5}, "its tensor, data and pipeline neighbours"
    assert traffic(range(1), 7, Parallelism(tensor=2)).keys() == {1, 6}, "sizes that do not fit: data parallel"
    assert traffic(range(1), 4, Parallelism(expert=2)) == {1: 35.0, 3: 5.0}
    assert traffic(range(1), 1, Parallelism()) == {}


@pytest.mark.parametrize(
    ("replicas", "sizes"),
    [
        ([0, 0, 1, 1, 0, 0, 1, 1], Parallelism(tensor=2, pipeline=2)),
        ([0, 1, 2, 3], Parallelism()),
        ([0, 1, 0, 1], Parallelism(pipeline=2)),
        ([0, 0, 0, 0, 1, 1, 1, 1], Parallelism(tensor=4)),
        ([0, 0, 0, 0], Parallelism()),
        ([0, 0, 1, -1], Parallelism()),
        ([1, 1, 0, 0], Parallelism()),
        ([0, 0, 1, 1, 0, 0], Parallelism()),
        ([], Parallelism()),
    ],
)
def test_what_ranks_report_through_the_hook_shows_their_groups(replicas: list[int], sizes: Parallelism) -> None:
    """One replica, an unknown rank, and another order of ranks show nothing."""
    assert sizes_of_replicas(replicas) == sizes


def test_the_groups_that_the_hook_reports_count_where_neither_comment_nor_launcher_names_sizes() -> None:
    table = b.step_table([[0.1]] * 4)
    table = replace(table, replicas=np.array([0, 0, 1, 1]))

    def sizes(comment: str) -> Parallelism:
        job = b.job(comment=comment)
        return layout_of(b.snapshot(jobs=[job], tables={job.key: table}), job).sizes

    assert sizes("understudy") == Parallelism(tensor=2)
    assert sizes("understudy block=2") == Parallelism(tensor=2, block=2)
    assert sizes("understudy tp=4") == Parallelism(tensor=4)


def test_a_gang_gets_the_spare_of_its_rack_and_the_decision_shows_what_others_would_have_cost() -> None:
    racks = merged(domains(RACK, r1="n1 n2 n3 n4 n8", r2="n5 n6 n7"))
    bad = b.node("n2", events=(b.xid_event("n2", 79),))
    seen = b.snapshot(bad, jobs=[b.job()], spares=["n6", "n7", "n8"], topology=racks)
    config = b.config()
    (decision,) = [one for one in decide(seen, detect(seen, config), config) if one.subject == "n2" and one.plan]
    assert b.plan_as(PoolSwapPlan, decision.plan).spares == ("n8",)
    assert "moves to n8; n8 costs 22.0 in the place of n2 (others: n6 44.0, n7 44.0, n5 44.0)" in decision.reason
    assert decision.evidence.shown()["placement"] == [
        {
            "left": "n2",
            "taken": "n8",
            "cost": 22.0,
            "cost_before": 22.0,
            "runners_up": [{"node": name, "cost": 44.0} for name in ("n6", "n7", "n5")],
        }
    ]


def test_a_node_on_probation_is_taken_last_however_near_it_is() -> None:
    racks = merged(domains(RACK, r1="n1 n2 n3 n4 n8", r2="n5 n6 n7"))
    bad = b.node("n2", events=(b.xid_event("n2", 79),))
    near = b.node("n8", NodeState.PROBATION, is_spare=True)
    seen = b.snapshot(bad, near, jobs=[b.job()], spares=["n6", "n7", "n8"], topology=racks)
    config = b.config()
    (decision,) = [one for one in decide(seen, detect(seen, config), config) if one.subject == "n2" and one.plan]
    assert b.plan_as(PoolSwapPlan, decision.plan).spares == ("n6",)


def after_restart(spares: str, *, hangs: bool = False, racks: str = "n1 n2 n3 n4 s1 s2 s3 s4") -> PoolSwapPlan:
    """n9 was taken in another rack when there was no other spare. Now n2 fails, or the gang hangs."""
    topology = merged(domains(RACK, r1=racks, r2="n9 s9 s8 s7"))
    job = b.job(nodes=["n1", "n2", "n3", "n9"])
    bad = [] if hangs else [b.node("n2", events=(b.xid_event("n2", 79),))]
    nodes = [*bad, b.node("n9"), *(b.node(name, is_spare=True) for name in spares.split())]
    seen = b.snapshot(*nodes, jobs=[job], spares=spares.split(), topology=topology)
    config = b.config(spares={"no_spare": "wait"})
    found = detect(seen, config)
    if hangs:
        found = [Finding(Signal.GANG_HUNG_UNNAMED, "hang.gang", "", b.NOW - 60, "the gang hangs", job=job.key)]
    (decision,) = [one for one in decide(seen, found, config) if isinstance(one.plan, PoolSwapPlan)]
    plan = b.plan_as(PoolSwapPlan, decision.plan)
    assert ("it gives up n9 as well, far from its other nodes" in decision.reason) == ("n9" in plan.leaving)
    return plan


def test_a_gang_that_a_swap_has_scattered_is_together_again_after_its_next_restart() -> None:
    for hangs in (False, True):
        plan = after_restart("s1 s2 s3", hangs=hangs)
        assert plan.leaving == ("n9",)
        assert "n9" not in (*plan.seats, *plan.nodes, *plan.excluded)
        assert len(plan.seats) == 4
        assert set(plan.seats) <= {"n1", "n2", "n3", "s1", "s2", "s3"}


def test_a_scattered_gang_stays_so_where_it_would_take_the_last_spares_or_gain_little() -> None:
    assert after_restart("s1 s2").leaving == ()
    assert after_restart("s1 s9 s8 s7").leaving == ()
    assert after_restart("s1 s2 s3", racks="n2 n3 s1 s2 s3").leaving == ()


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_no_other_candidate_would_cost_less(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a topology, no secret
    names = [f"n{i}" for i in range(24)]
    drawn: dict[DomainKind, dict[str, list[str]]] = {kind: {} for kind in (BLOCK, SWITCH, RACK, POD)}
    for name in names:
        for kind, found in drawn.items():
            for number in range(2 if kind is SWITCH else 1):
                found.setdefault(f"{kind}{number}{chance.randrange(4)}", []).append(name)
    topology = merged(
        Domain(kind, name, tuple(nodes)) for kind, found in drawn.items() for name, nodes in found.items()
    )
    seats = tuple(names[:16])
    layout = Layout(seats, 64, Parallelism(tensor=chance.choice([1, 8]), pipeline=chance.choice([1, 4])))
    (choice,) = place(topology, layout, [chance.choice(seats)], names[16:], lambda _name: ()).choices
    assert all(choice.cost <= cost + 1e-3 for _, cost in choice.runners_up)
