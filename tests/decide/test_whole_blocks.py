"""Gangs in whole NVLink blocks: a spare of the block, else the whole unit moves to another one, else the gang waits."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests import builders as b
from understudy_controlplane.decide import guards
from understudy_controlplane.decide.failures import Failures
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.launcher_orders import launcher_orders
from understudy_controlplane.decide.spare_outlook import outlook
from understudy_controlplane.decide.whole_blocks import Leaving, Rule, Whole, rule_of, whole
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Because, Decision
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.incident import BLOCK_FABRIC, OpenIncident
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.recovery import AllocationSwapPlan, PoolSwapPlan, SwapPlan
from understudy_controlplane.fleet.slurm_blocks import SlurmBlocks
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.topology import Domain, DomainKind, Topology, merged
from understudy_wire.launcher import LauncherPhase, LauncherState, RankLayout

CONFIG = b.config(spares={"no_spare": "wait"})


def blocks(count: int, size: int, slurm: tuple[int, ...] = ()) -> Topology:
    """n1, n2, … in blocks of that size. `slurm`: BlockSizes of Slurm's own topology/block."""
    members = [tuple(f"n{i * size + j}" for j in range(1, size + 1)) for i in range(count)]
    domains = [Domain(DomainKind.NVLINK_BLOCK, f"b{i + 1}", nodes) for i, nodes in enumerate(members)]
    return merged(domains, slurm_blocks=SlurmBlocks(tuple(members), slurm) if slurm else None)


def fleet(topology: Topology, job: Job, spares: str, failed: str, **values: Any) -> Snapshot:
    names = [name for domain in topology.domains for name in domain.nodes]
    held, bad = spares.split(), failed.split()
    seen = b.snapshot(jobs=[job], spares=held, topology=topology, domains=topology.failing_together, **values)
    nodes = {name: b.node(name, is_spare=name in held) for name in names}
    broken = {name: b.node(name, events=(b.xid_event(name, 79),)) for name in bad}
    return replace(seen, nodes=nodes | broken)


def judged(seen: Snapshot) -> list[Decision]:
    return decide(seen, detect(seen, CONFIG), CONFIG)


def moved(seen: Snapshot) -> tuple[PoolSwapPlan, str]:
    (decision,) = {id(one.plan): one for one in judged(seen) if isinstance(one.plan, PoolSwapPlan)}.values()
    return b.plan_as(PoolSwapPlan, decision.plan), decision.reason


def gang(nodes: str, comment: str = "understudy", **values: Any) -> Job:
    return b.job(nodes=nodes.split(), comment=comment, **values)


def test_a_job_that_slurm_starts_in_one_block_only_gets_the_spare_of_its_block() -> None:
    seen = fleet(blocks(3, 4, slurm=(4,)), gang("n1 n2 n3"), "n4 n8 n12", "n2")
    plan, reason = moved(seen)
    assert (plan.spares, plan.seats) == (("n4",), ("n1", "n3", "n4"))
    assert "Slurm starts a job of 3 nodes in one block only" in reason


def test_without_a_spare_there_the_whole_gang_moves_to_another_block_and_its_other_nodes_stay_in_service() -> None:
    seen = fleet(blocks(3, 4, slurm=(4,)), gang("n1 n2 n3"), "n8 n9 n10 n11", "n2")
    plan, reason = moved(seen)
    assert (plan.nodes, plan.leaving, plan.excluded) == (("n2",), ("n3", "n1"), ())
    assert set(plan.spares) == set(plan.seats) == {"n9", "n10", "n11"}
    assert "it gives up n3, n1 as well, which failed in nothing, and gets 3 nodes of nvlink_block b3" in reason


def test_without_such_a_block_it_waits_and_the_decision_says_why() -> None:
    """Slurm refuses the job in a reservation over two blocks: it would lose its nodes for nothing."""
    seen = fleet(blocks(3, 4, slurm=(4,)), gang("n1 n2 n3"), "n8 n9", "n2")
    (waits,) = [one for one in judged(seen) if one.subject == "n2"]
    assert (waits.because, [one for one in judged(seen) if isinstance(one.plan, PoolSwapPlan)]) == (
        Because.NO_SPARE,
        [],
    )
    assert "one block only, and no block has enough spares for 3 nodes of the gang (2 fit one by one)" in waits.reason


def test_a_job_in_several_blocks_gets_no_more_of_them_than_slurm_allows() -> None:
    seats = " ".join(f"n{i}" for i in range(1, 7))
    plan, _ = moved(fleet(blocks(4, 4, slurm=(4,)), gang(seats), "n9 n7", "n2"))
    assert plan.spares == ("n7",)
    seen = fleet(blocks(4, 4, slurm=(4,)), gang(seats), "n9", "n2")
    assert any("Slurm starts it in no more blocks than it needs, where 0 of 1" in one.reason for one in judged(seen))


def test_with_segments_each_of_them_is_in_one_block() -> None:
    """A segment moves as a whole; the other one stays."""
    seen = fleet(blocks(4, 4, slurm=(4,)), gang("n1 n2 n5 n6", segment=2), "n9 n10 n15", "n2")
    plan, reason = moved(seen)
    assert (plan.leaving, set(plan.seats)) == (("n1",), {"n5", "n6", "n9", "n10"})
    assert "the job asks for --segment=2" in reason


def test_units_that_were_scattered_are_whole_after_the_next_move() -> None:
    """n5 and n9 are what an earlier launcher had left of a unit. n1 fails, and its block has a spare."""
    seen = fleet(blocks(3, 4), gang("n1 n2 n5 n9", "understudy block=2"), "n3 n6", "n1")
    plan, _ = moved(seen)
    assert (plan.leaving, set(plan.seats)) == (("n9",), {"n2", "n3", "n5", "n6"})


def test_the_comment_names_units_where_slurm_knows_no_blocks() -> None:
    seen = fleet(blocks(3, 4), gang("n1 n2 n5 n6", "understudy block=2"), "n7 n11 n12", "n1 n5")
    plan, _ = moved(seen)
    assert (plan.leaving, set(plan.seats)) == (("n2",), {"n6", "n7", "n11", "n12"})


def test_groups_that_are_whole_now_stay_whole_where_there_is_room_and_else_the_gang_goes_on_in_two_blocks() -> None:
    """Tensor-parallel groups of two ranks, one on each node."""
    job = gang("n1 n2 n5 n6", "understudy tp=2")
    plan, reason = moved(fleet(blocks(3, 4), job, "n9 n10 n8", "n2"))
    assert (plan.leaving, set(plan.seats)) == (("n1",), {"n5", "n6", "n9", "n10"})
    assert "groups of 2 ranks are each in one block" in reason
    plan, reason = moved(fleet(blocks(3, 4), job, "n9 n8", "n2"))
    assert plan.leaving == ()
    assert "no block has enough spares for 2 nodes of the gang" in reason


def test_groups_that_are_not_whole_now_need_nothing() -> None:
    seen = fleet(blocks(3, 4), gang("n1 n5 n2 n6 n9 n3", "understudy tp=2"), "n12", "n2")
    assert rule_of(seen, next(iter(seen.jobs.values())), ["n1", "n5", "n2", "n6", "n9", "n3"]) is None
    assert moved(seen)[0].leaving == ()


def test_a_gang_that_leaves_a_block_without_fabric_leaves_all_of_it() -> None:
    """The driver reported nothing on n1 yet: it is no suspect, and jobs that are there go on."""
    subject = Subject.of_domain("nvlink_block b1", BLOCK_FABRIC)
    incident = OpenIncident(1, subject, BLOCK_FABRIC, "domain_fault", "4 nodes …", b.NOW - 30)
    seen = fleet(blocks(3, 4), gang("n1 n2 n5"), "n6 n9 n3", "n2", incidents={subject: incident})
    plan, reason = moved(seen)
    assert (plan.nodes, plan.leaving, set(plan.seats)) == (("n2",), ("n1",), {"n5", "n6", "n9"})
    assert "it gives up n1 as well, where the fabric has failed" in reason
    few = fleet(blocks(3, 4), gang("n1 n2 n5"), "n9", "n2", incidents={subject: incident})
    assert set(moved(few)[0].seats) == {"n1", "n5", "n9"}


def test_the_outlook_names_why_a_spare_of_another_block_does_not_help() -> None:
    seen = fleet(blocks(3, 4, slurm=(4,)), gang("n1 n2 n3"), "n4 n8", "")
    found = outlook(seen, next(iter(seen.jobs.values())), "n2", CONFIG)
    assert found.taken == ("n4",)
    assert {one.node: one.words for one in found.candidates} == {
        "n4": "",
        "n8": "Slurm starts a job of 3 nodes in one block only",
    }


def launched(spares: tuple[str, ...]) -> Gang:
    seats = ("n1", "n2", "n5", "n6")
    state = LauncherState(7, 0, 2, LauncherPhase.RUNNING, seats, spares, nodes_min=4, ranks_per_node=8)
    return Gang(state, "n1", b.NOW - 1)


def test_the_launcher_gets_a_spare_of_the_block_from_its_allocation() -> None:
    job = gang("n1 n2 n5 n6 n3 n9", "understudy block=2")
    seen = fleet(blocks(4, 4), job, "n4", "n2", gangs={job.key: launched(("n9", "n3"))})
    (inside,) = {one.plan for one in judged(seen) if isinstance(one.plan, AllocationSwapPlan)}
    assert dict(inside.places) == {"n2": "n3"}
    ordered = launcher_orders(seen, CONFIG, Failures(b.NOW))[7]
    assert ordered is not None
    assert ordered.layout == RankLayout("block=2", {name: (block(name),) for name in job.slurm.nodes})


def block(name: str) -> str:
    return f"nvlink_block b{(int(name[1:]) + 3) // 4}"


def test_a_launcher_whose_allocation_has_no_such_spare_leaves_it_for_the_pool() -> None:
    """Its units are two of two nodes, and the fifth node is a spare: n9, which is in neither block."""
    job = gang("n1 n2 n5 n6 n9", "understudy block=2")
    seen = fleet(blocks(4, 4), job, "n3 n13 n14", "n2", gangs={job.key: launched(("n9",))})
    assert set(moved(seen)[0].seats) == {"n1", "n3", "n5", "n6", "n9"}


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_units_are_whole_on_random_blocks_and_no_healthy_node_is_given_up_while_its_block_has_spares(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a topology, no secret
    size, units, most = chance.randint(1, 4), chance.randint(1, 4), 6
    topology = blocks(units + 3, most)
    names = [domain.nodes for domain in topology.domains]
    seats = [name for nodes in names[:units] for name in nodes[:size]]
    left = chance.sample(seats, chance.randint(1, len(seats)))
    candidates = [name for nodes in names for name in nodes if name not in seats and chance.random() < 0.4]
    seen = fleet(topology, gang(" ".join(seats)), "", "")
    block_of = {name: domain.label for domain in topology.domains for name in domain.nodes}
    rule = Rule(size, units, required=True, why="test", block_of=block_of)
    job = next(iter(seen.jobs.values()))
    found = whole(seen, rule, Leaving(job, seats, left, candidates), lambda _name: ())
    free = Counter(block_of[name] for name in candidates)
    lost = Counter(block_of[name] for name in left)
    if not isinstance(found, Whole):
        assert any(free[block] < count for block, count in lost.items())
        return
    taken = found.placement.taken
    new = [*(name for name in seats if name not in left and name not in found.given_up), *taken]
    assert len(new) == len(set(new)) == len(seats)
    assert set(taken) <= set(candidates)
    assert all(count % size == 0 for count in Counter(block_of[name] for name in new).values())
    for name in found.given_up:
        assert free[block_of[name]] < lost[block_of[name]]


def test_nodes_that_are_given_up_count_against_no_budget_of_failures() -> None:
    seen = fleet(blocks(3, 4, slurm=(4,)), gang("n1 n2 n3"), "n9 n10 n11", "n2")
    assert {one.subject for one in judged(seen) if one.to_state is not None} == {"n2"}
    assert guards.failures(seen, ["n2"]) == {"n2"}


def test_a_gang_that_hangs_in_a_block_without_fabric_starts_again_in_another_one() -> None:
    """It would hang again on the nodes of that block. With too few spares it is restarted where it is."""
    subject = Subject.of_domain("nvlink_block b1", BLOCK_FABRIC)
    incident = OpenIncident(1, subject, BLOCK_FABRIC, "domain_fault", "4 nodes …", b.NOW - 30)
    job = gang("n1 n2 n5")
    hang = Finding(Signal.GANG_HUNG, "hang.gang", "n1", b.NOW - 60, "the gang hangs", job=job.key)
    for spares, new, given_up in (("n6 n9", {"n5", "n6", "n9"}, ("n1", "n2")), ("n9", {"n2", "n5", "n9"}, ("n1",))):
        seen = fleet(blocks(3, 4), job, spares, "", incidents={subject: incident})
        (plan,) = [one.plan for one in decide(seen, [hang], CONFIG) if isinstance(one.plan, PoolSwapPlan)]
        assert (set(plan.seats), plan.leaving, plan.nodes) == (new, given_up, ())


def test_a_launchers_gang_that_hangs_in_a_block_without_fabric_leaves_it_where_another_one_has_room() -> None:
    """n4 is a spare of its allocation, in the same block. Else its launcher restarts it there."""
    subject = Subject.of_domain("nvlink_block b1", BLOCK_FABRIC)
    incident = OpenIncident(1, subject, BLOCK_FABRIC, "domain_fault", "4 nodes …", b.NOW - 30)
    job = gang("n1 n2 n3 n4")
    state = LauncherState(7, 0, 2, LauncherPhase.RUNNING, ("n1", "n2", "n3"), ("n4",), nodes_min=3, ranks_per_node=8)
    hang = Finding(Signal.GANG_HUNG_UNNAMED, "hang.gang", "", b.NOW - 60, "the gang hangs", job=job.key)

    def plans(spares: str, incidents: dict[Subject, OpenIncident]) -> list[object]:
        seen = fleet(blocks(3, 4), job, spares, "", incidents=incidents, gangs={job.key: Gang(state, "n1", b.NOW - 1)})
        return [one.plan for one in decide(seen, [hang], CONFIG) if isinstance(one.plan, SwapPlan)]

    (pooled,) = plans("n5 n6 n7 n8", {subject: incident})
    assert isinstance(pooled, PoolSwapPlan)
    assert (set(pooled.seats), pooled.nodes) == ({"n5", "n6", "n7", "n8"}, ())
    for inside in (plans("n5 n6 n7", {subject: incident}), plans("n5 n6 n7 n8", {})):
        assert [type(plan) for plan in inside] == [AllocationSwapPlan]
