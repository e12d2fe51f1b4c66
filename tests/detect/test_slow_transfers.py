"""Slow transfers: who waits for whom, and for whom nothing explains it. Steps are generated pipelines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from tests import builders as b
from tests.generated_transfers import Pipelines
from understudy.clocks import FinishedStep
from understudy.outbox import Outbox
from understudy_agent.rank_messages import Hello, Steps, decode
from understudy_agent.step_windows import WindowBuffer
from understudy_controlplane.config import Straggler
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect.slow_transfers import slow_transfers
from understudy_controlplane.detect.straggler import straggler
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.steps import StepTable
from understudy_controlplane.live.telemetry import ExpectedJob, Telemetry
from understudy_wire.hardware import Port
from understudy_wire.messages import Report

POLICY = Straggler()


def named(**gang: Any) -> set[frozenset[int]]:
    return {frozenset((one.rank, one.peer)) for one in slow_transfers(Pipelines(**gang).table(), POLICY)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("link", [(5, 6), (0, 1), (30, 31)])
def test_a_slow_link_is_named_and_no_rank_that_waits_because_of_it(link: tuple[int, int], seed: int) -> None:
    assert named(links={link: 20.0}, seed=seed) == {frozenset(link)}


def test_it_is_named_after_three_windows_and_says_what_it_costs() -> None:
    assert named(links={(5, 6): 20.0}, steps=100, from_step=30) == {frozenset((5, 6))}
    assert named(links={(5, 6): 20.0}, steps=100, from_step=60) == set()
    worst = max(slow_transfers(Pipelines(links={(5, 6): 20.0}).table(), POLICY), key=lambda one: one.seconds)
    assert (worst.rank, worst.peer) == (5, 6)
    assert 0.1 < worst.share_lost < 0.3
    assert worst.seconds > 2 * worst.usual


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "gang",
    [
        {},
        {"slow": {6: 1.3}},  # others wait for it, which waits least
        {"slow": {5: 2.0}},
        {"slow": {28: 1.5}},
        {"starved": {4: 0.3}},
        {"work": {2: 1.3}},  # one replica always has the longest sequences
        {"work_varies": 0.15},
        {"saves_every": 3},
        {"saves_every": 20},
        {"noise": 0.2},
        {"links": {(5, 6): 3.0}},  # it costs less than a twentieth of a step
        {"replicas": 2, "links": {(5, 6): 20.0}},  # with too few others to compare with
    ],
)
def test_innocent_pairs_are_not_named(gang: dict[str, Any], seed: int) -> None:
    assert named(**gang, seed=seed) == set()


def test_both_a_slow_rank_and_a_slow_link_elsewhere_are_known_for_what_they_are() -> None:
    assert named(slow={6: 1.3}, links={(17, 18): 30.0}) == {frozenset((17, 18))}


def test_healthy_gangs_of_many_shapes_name_none() -> None:
    rng = np.random.default_rng(1)
    for seed in range(40):
        gang = Pipelines(
            replicas=int(rng.integers(4, 9)),
            stages=int(rng.integers(2, 5)),
            micro_batches=int(rng.integers(2, 7)),
            steps=80,
            seed=seed,
            noise=float(rng.uniform(0.01, 0.15)),
            work_varies=float(rng.choice([0.0, 0.05, 0.15])),
            transfer=float(rng.uniform(0.0005, 0.01)),
            saves_every=int(rng.choice([0, 10, 50])),
        )
        assert slow_transfers(gang.table(), POLICY) == []


def test_steps_that_are_not_known_say_nothing() -> None:
    table = Pipelines(links={(5, 6): 20.0}).table()
    assert table.transfers is not None
    seconds = table.transfers.seconds.copy()
    seconds[:, 40:] = np.nan
    assert slow_transfers(replace(table, transfers=replace(table.transfers, seconds=seconds)), POLICY) == []
    assert slow_transfers(replace(table, transfers=None), POLICY) == []


# -- where they are ----------------------------------------------------------------------------------------------------

RACKS = {
    "rack r1": tuple(f"n{number}" for number in range(1, 17)),
    "rack r2": tuple(f"n{number}" for number in range(17, 33)),
    "pod p": tuple(f"n{number}" for number in range(1, 33)),
}


def findings(*nodes: NodeView, domains: dict[str, tuple[str, ...]] = RACKS, **gang: Any) -> list[Finding]:
    steps = Pipelines(**gang).table()
    others = [b.node(f"n{number}") for number in range(1, 33)]
    seen = b.snapshot(*others, *nodes, jobs=[b.job()], tables={b.job().key: steps}, domains=domains)
    return [one for one in straggler(seen, POLICY, probed=True) if one.signal is not Signal.CLEAN]


def test_two_nodes_are_named_together_and_none_of_them_is_suspected() -> None:
    (found,) = findings(links={(5, 6): 20.0})  # ranks 5 and 6 run on n6 and n7
    assert (found.signal, found.rule, found.domain) == (Signal.DOMAIN_FAULT, "straggler.transfers", "n6 - n7")
    assert found.nodes == ("n6", "n7")
    assert "transfers between n6 and n7 are slow: rank 5 waits" in found.summary
    assert "nothing shows that rank 6 is late itself; it costs up to" in found.summary


def test_a_node_whose_transfers_with_all_its_neighbours_are_slow_is_a_suspect_with_what_its_port_shows() -> None:
    port = Port("mlx5_0", 1, state="ACTIVE", was_active=True, rate_gbps=100, rate_gbps_max=400)
    (found,) = findings(b.node("n6", ports=(port,)), links={(4, 5): 20.0, (5, 6): 20.0})
    assert (found.signal, found.rule, found.node) == (Signal.STRAGGLER_SUSPECTED, "straggler.transfers", "n6")
    assert "100" in found.summary, "its port"


def test_what_lies_between_two_nodes_is_held_against_the_counters_of_their_ports() -> None:
    """Errors support it, and make no node a suspect."""
    erring = Port("mlx5_0", 1, state="ACTIVE", was_active=True, symbol_errors_recent=500)
    (found,) = findings(b.node("n7", ports=[erring]), links={(5, 6): 20.0})
    assert (found.signal, found.node) == (Signal.DOMAIN_FAULT, "")
    assert found.summary.endswith("; n7: port mlx5_0/1 had 500 symbol errors within ten minutes")
    assert found.evidence.shown()["ports"] == ["n7: port mlx5_0/1 had 500 symbol errors within ten minutes"]
    (silent,) = findings(links={(5, 6): 20.0})
    assert silent.summary.endswith("; no port of them shows why")


def test_pairs_of_one_rack_name_the_rack() -> None:
    (found,) = findings(links={(5, 6): 20.0, (9, 10): 20.0})
    assert (found.domain, found.nodes) == ("rack r1", ("n10", "n11", "n6", "n7"))


def test_pairs_that_join_two_racks_name_both() -> None:
    halves = {
        "rack even": tuple(f"n{number}" for number in range(2, 33, 2)),
        "rack odd": tuple(f"n{number}" for number in range(1, 33, 2)),
    }
    (found,) = findings(domains=halves, links={(5, 6): 20.0, (9, 10): 20.0})
    assert found.domain == "rack even - rack odd"


def test_pairs_that_nothing_joins_are_named_one_by_one() -> None:
    found = findings(domains={}, links={(5, 6): 20.0, (9, 10): 20.0})
    assert {one.domain for one in found} == {"n6 - n7", "n10 - n11"}


def test_slow_transfers_within_a_node_name_it() -> None:
    (found,) = findings(ranks_per_node=4, links={(5, 6): 20.0})
    assert (found.signal, found.node) == (Signal.STRAGGLER_SUSPECTED, "n2")


# -- the whole way -----------------------------------------------------------------------------------------------------


def reported(table: StepTable, telemetry: Telemetry) -> None:
    """Steps of each rank as the hook puts them into messages, the agent into windows and reports, step by step."""
    assert table.transfers is not None and table.data_seconds is not None
    pairs = [tuple(pair) for pair in table.transfers.pairs.tolist()]
    outboxes = [Outbox() for _ in table.nodes]
    agents = {name: WindowBuffer() for name in table.nodes}
    for step in range(table.self_seconds.shape[1]):
        for rank, outbox in enumerate(outboxes):
            waits = {p: float(table.transfers.seconds[row, step]) for row, (r, p) in enumerate(pairs) if r == rank}
            own = float(table.self_seconds[rank, step])
            wall = float(table.wall_seconds[rank])
            outbox.steps.append(FinishedStep(step, own, wall, float(table.data_seconds[rank, step]), None, waits))
            hello = Hello(7, 0, rank, len(table.nodes), role=table.roles[rank])
            for message in outbox.take_steps() if step % 3 == 2 or step > 97 else ():
                agents[table.nodes[rank]].add(hello, decode_message(message), 1000)
        if step % 10 == 9:
            for name, agent in agents.items():
                sent = msgspec.json.encode(b.report(name, ranks=agent.take()))
                assert telemetry.receive(msgspec.json.decode(sent, type=Report), b.NOW) == []


def decode_message(message: dict[str, Any]) -> Steps:
    found = decode(msgspec.json.encode(message))
    assert isinstance(found, Steps)
    return found


def test_from_the_hook_by_agent_and_ingest_to_the_finding() -> None:
    names = [f"n{number}" for number in range(1, 33)]
    telemetry = Telemetry()
    telemetry.know(names)
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset(names))})
    reported(Pipelines(links={(5, 6): 20.0}).table(), telemetry)
    job = b.job()
    table = telemetry.table(job.key, 0)
    assert table is not None
    seen = b.snapshot(*(b.node(name) for name in names), jobs=[job], tables={job.key: table})
    (found,) = straggler(seen, POLICY, probed=True)
    assert (found.rule, found.domain) == ("straggler.transfers", "n6 - n7")
    (decision,) = decide(seen, [found], b.config())
    assert (decision.row, decision.subject, decision.action) == (70, "n6 - n7", Action.NOTHING)
    assert decision.opens_incident
