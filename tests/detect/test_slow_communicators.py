"""Slow collectives while a gang trains: lines of NCCL Inspector, from each rank's file by the hook and the agent to the
finding.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests import builders as b
from tests.cli.test_analyze_collectives import line
from understudy.inspector import InspectorWatch
from understudy_agent.rank_messages import CollectiveTimesSeen, Hello, decode
from understudy_agent.step_windows import WindowBuffer
from understudy_controlplane.config import Straggler
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect.straggler import straggler
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import StepTable
from understudy_controlplane.fleet.topology import Domain, DomainKind, Topology
from understudy_controlplane.live.telemetry import ExpectedJob, Telemetry
from understudy_wire.hardware import Port
from understudy_wire.messages import Report

NODES, GPUS = 4, 4
WORLD = NODES * GPUS
MINUTES = 5  # the last of them is not over
NAMES = [f"n{number}" for number in range(NODES)]
JOB = b.job(nodes=NAMES)
OF_ONE_STAGE = ["stage0"] * WORLD


def factor(slow: Sequence[int], rank: int) -> float:
    return 2.0 if rank in slow else 1.0


def lines(rank: int, minute: int, draw: random.Random, **gang: Any) -> list[bytes]:
    """Ten steps: a collective with all ranks, one with its rail, one with its node."""
    node, rail = divmod(rank, GPUS)
    waits = 5000 if gang.get("late") not in (None, rank) else 0
    text = []
    for step in range(10):
        number = 100 * minute + step
        rails = 1000 * factor(gang.get("slow_rails", ()), rail) * factor(gang.get("slow_rails_of", ()), node)
        inside = 200 * factor(gang.get("slow_nodes", ()), node)
        for name, size, nodes, place, micros in (
            ("0xa11", WORLD, NODES, rank, 3000),
            (f"0xd{rail}", NODES, NODES, node, rails),
            (f"0xe{node}", GPUS, 1, rail, inside),
        ):
            late = gang.get("rises", 1.0) ** minute
            took = round(micros * late) + draw.randrange(1 + int(micros / 20)) + waits
            text.append(line(rank, name, place, size, nodes, number, micros=took).encode())
    return text


def table(without: Sequence[int] = (), minutes: int = MINUTES, **gang: Any) -> StepTable:
    telemetry = Telemetry()
    telemetry.know(NAMES)
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset(NAMES))})
    watches = [InspectorWatch() for _ in range(WORLD)]
    draw = random.Random(3)  # noqa: S311 - a seed
    for minute in range(minutes + 1):
        agents = {name: WindowBuffer() for name in NAMES}
        for rank, watch in enumerate(watches):
            now = b.NOW + 60.0 * (minute - minutes)
            watch.add(lines(rank, minute, draw, **gang), now)
            if watch.message is None or rank in without:
                continue
            seen = decode(msgspec.json.encode(watch.message))
            assert isinstance(seen, CollectiveTimesSeen)
            role = gang.get("roles", [""] * WORLD)[rank]
            hello = Hello(7, 0, rank, WORLD, gpu_index=rank % GPUS, role=role)
            agents[NAMES[rank // GPUS]].place(hello, seen, 1000)
        for name, agent in agents.items():
            sent = msgspec.json.encode(b.report(name, ranks=agent.take()))
            assert telemetry.receive(msgspec.json.decode(sent, type=Report), now) == []
    found = telemetry.table(JOB.key, 0)
    assert found is not None
    return found


def seen(steps: StepTable, **views: Any) -> Snapshot:
    nodes = [b.node(name, ports=[*views.get("ports", {}).get(name, ())]) for name in NAMES]
    topology = Topology(tuple(views.get("domains", ())))
    return b.snapshot(*nodes, jobs=[JOB], tables={JOB.key: steps}, topology=topology)


def findings(steps: StepTable, **views: Any) -> list[Finding]:
    found = straggler(seen(steps, **views), Straggler(), probed=True)
    return [one for one in found if one.signal is not Signal.CLEAN]


def test_a_slow_rail_is_an_incident_and_no_node_is_touched() -> None:
    steps = table(slow_rails=[2])
    (found,) = findings(steps)
    assert (found.signal, found.rule, found.node) == (Signal.DOMAIN_FAULT, "straggler.collectives", "")
    assert (found.domain, found.nodes) == ("GPU 2 of n0 - n3 (4 nodes)", tuple(NAMES))
    assert "AllReduce of 67108864 bytes takes" in found.summary
    assert "times as long as in 3 other communicators" in found.summary
    assert found.summary.endswith("; no port of them shows why")
    (decision,) = decide(seen(steps), [found], b.config())
    assert (decision.row, decision.action, decision.opens_incident) == (70, Action.NOTHING, True)


def test_it_is_held_against_the_counters_of_the_ports() -> None:
    erring = Port("mlx5_2", 1, state="ACTIVE", was_active=True, symbol_errors_recent=500)
    (found,) = findings(table(slow_rails=[2]), ports={"n1": [erring]})
    assert found.summary.endswith("; n1: port mlx5_2/1 had 500 symbol errors within ten minutes")


def test_a_node_whose_own_gpus_are_slow_together_is_a_suspect_and_its_gang_stays() -> None:
    steps = table(slow_nodes=[1], roles=OF_ONE_STAGE)
    (found,) = findings(steps)
    assert (found.signal, found.rule, found.node) == (Signal.STRAGGLER_SUSPECTED, "straggler.collectives", "n1")
    (decision,) = decide(seen(steps), [found], b.config())
    assert decision.action is Action.NOTHING


@pytest.mark.parametrize(
    "gang",
    [
        {},
        {"late": 5},  # all others wait for it
        {"rises": 2.0},  # everything takes longer
        {"slow_rails": [0, 1, 2]},  # most are: then this is usual
        {"slow_rails": [2], "minutes": 3},  # two minutes are over
        {"slow_rails": [2], "without": [9]},  # one of its ranks reports nothing
        {"slow_nodes": [3]},  # it may be the last stage of a pipeline: no role says that it is none
        {"slow_nodes": [3], "slow_rails_of": [3]},
        {"slow_nodes": [3], "roles": ["leader", *[""] * (WORLD - 1)]},
        {"slow_rails": [2], "roles": ["last" if rank % GPUS == 2 else "" for rank in range(WORLD)]},
    ],
)
def test_innocent_gangs_are_not_named(gang: dict[str, Any]) -> None:
    assert findings(table(**gang)) == []


def test_one_that_crosses_more_switches_than_its_peers_is_not_compared_with_them() -> None:
    steps = table(slow_nodes=[1], roles=OF_ONE_STAGE)
    of_node = [Domain(DomainKind.SWITCH, f"s{name}", (name,)) for name in NAMES]
    assert findings(steps, domains=of_node), "each is within one switch"
    both = Domain(DomainKind.SWITCH, "other", ("n1",))
    moved = replace(steps, nodes=tuple("n0" if rank == GPUS else name for rank, name in enumerate(steps.nodes)))
    assert findings(moved, domains=[*of_node, both]) == []


def test_what_is_some_minutes_old_shows_nothing_of_now() -> None:
    steps = table(slow_rails=[2])
    old = replace(steps, communicators=replace(steps.communicators, at=b.NOW - 181.0))
    assert findings(old) == []


def test_it_is_judged_once_in_a_minute() -> None:
    snapshot = seen(table(slow_rails=[2]))
    (found,) = straggler(snapshot, Straggler(), probed=True)
    (steps,) = snapshot.progress.tables.values()
    kept = steps.communicators.kept["straggler.collectives"]
    assert isinstance(kept, tuple)
    kept[1].clear()
    assert found.rule == "straggler.collectives"
    assert list(straggler(snapshot, Straggler(), probed=True)) == []
