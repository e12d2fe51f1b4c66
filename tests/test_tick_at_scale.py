"""Twelve thousand nodes are judged in a fraction of a tick's time. The bounds are generous: they catch what grows with
nodes times nodes, or nodes times findings; `make bench` measures."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.stopwatch import best_processor_seconds
from understudy_controlplane.api.exported import METRIC_GROUPS
from understudy_controlplane.api.exported.source import Source
from understudy_controlplane.app import Outside, compose
from understudy_controlplane.config import Config
from understudy_controlplane.decide.guards import breaker_limit
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import StepTable
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.live.telemetry import Telemetry
from understudy_controlplane.observe.slurmd_probe import PROBES_AT_ONCE
from understudy_wire.hardware import Port

NODES, GANGS, GANG = 12_500, 1_500, 8
SOME = 2_000

pytestmark = pytest.mark.timed


def large(*changed: NodeView) -> Snapshot:
    """Gangs of eight on most nodes, with step times; `changed` replace healthy nodes."""
    jobs = [b.job(job_id=i, nodes=[f"n{i * GANG + seat}" for seat in range(GANG)]) for i in range(GANGS)]
    return b.changed(
        b.snapshot(*(b.node(f"n{i}") for i in range(NODES)), *changed, jobs=jobs),
        tables={job.key: table(job) for job in jobs},
    )


def table(job: Job) -> StepTable:
    steps = b.step_table([[0.1] * 100] * GANG, nodes=job.slurm.nodes, advanced_at=b.NOW - 30)
    return replace(steps, job=job.key)


def silent(since: float) -> list[NodeView]:
    return [b.node(f"n{i}", heard_at=since - i / 100, slurmd_silent_since=since) for i in range(SOME)]


def test_a_healthy_fleet_is_judged_quickly() -> None:
    snapshot, config = large(), b.config(spares={"count": 0})
    assert best_processor_seconds(lambda: decide(snapshot, detect(snapshot, config), config)) < 1.0
    assert decide(snapshot, detect(snapshot, config), config) == []


def test_many_silent_nodes_are_judged_quickly() -> None:
    snapshot, config = large(*silent(b.NOW - 30)), b.config()
    findings = detect(snapshot, config)
    assert sum(finding.signal is Signal.NODE_DEAD for finding in findings) == SOME
    assert best_processor_seconds(lambda: decide(snapshot, detect(snapshot, config), config)) < 1.5


def test_many_broken_nodes_are_judged_quickly_and_few_of_them_quarantined() -> None:
    broken = [b.node(f"n{i}", events=(b.xid_event(f"n{i}", 79),)) for i in range(SOME)]
    snapshot, config = large(*broken), b.config()
    findings = detect(snapshot, config)
    decisions = decide(snapshot, findings, config)
    assert sum(one.action is Action.QUARANTINE for one in decisions) == breaker_limit(snapshot, config) == 25
    assert best_processor_seconds(lambda: decide(snapshot, findings, config)) < 0.5


def test_a_scrape_of_the_whole_fleet_takes_less_than_a_second() -> None:
    """12,500 nodes with eight GPUs each, one in fifty of them with a GPU that is not well."""
    well = tuple(b.gpu(i, temperature_celsius=60, power_watts=650.0) for i in range(8))
    hot = (*well[1:], b.gpu(7, temperature_celsius=90, power_watts=650.0, slowed_share_recent=0.5))
    nodes = [b.node(f"n{i}", gpus=hot if i % 50 == 0 else well, ports=(Port("mlx5_0", 1),)) for i in range(NODES)]
    snapshot, config, made = large(*nodes), b.config(), list[str]()

    def scrape() -> None:
        source = Source(snapshot, config, Pulse(), Telemetry(), b.NOW)
        made[:] = [piece for group in METRIC_GROUPS.values() for metric in group for piece in metric.text(source)]

    assert best_processor_seconds(scrape) < 1.0
    series = [line for line in "".join(made).splitlines() if not line.startswith("#")]
    assert 8 * NODES < len(series) < 8 * NODES + 10_000


def test_many_silent_slurmds_are_asked_in_turns_and_each_again_before_it_is_believed_silent(tmp_path: Path) -> None:
    """More than can be probed in one tick: no slurmd counts as silent that was not probed in this tick."""
    names = [f"n{i}" for i in range(1, 4 * PROBES_AT_ONCE + 1)]
    fake, asked = VirtualSlurm(names), list[str]()
    server = {"database": new_database(tmp_path / "fleet.db")}
    config = Config.model_validate({"cluster": b.CLUSTER, "server": server})

    class Clock:
        def now(self) -> float:
            return fake.now

        def monotonic(self) -> float:
            return fake.now

    def probe(node: SlurmNode) -> bool:
        asked.append(node.name)
        return answering

    answering = True
    plane = compose(config, Outside(fake, probe, Clock()))
    loop = plane.loop
    loop.look(0.0)
    for name in names:
        plane.telemetry.receive(b.report(name), fake.now)
    for _ in range(4):
        fake.advance(0.1)
        loop.look(0.0)
    assert sorted(asked) == sorted(names)  # each slurmd was tried once, and answered

    fake.advance(60.0)
    quiet = names[: 2 * PROBES_AT_ONCE]
    for name in names[2 * PROBES_AT_ONCE :]:
        plane.telemetry.receive(b.report(name), fake.now)
    answering = False
    seen: list[tuple[list[str], dict[str, float]]] = []
    for _ in range(4):
        asked.clear()
        found = {name: view.slurmd_silent_since for name, view in loop.look(0.0).nodes.items()}
        seen.append((sorted(asked), {name: at for name, at in found.items() if at is not None}))
        fake.advance(0.5)
    for names_asked, since in seen:
        assert (len(names_asked), sorted(since)) == (PROBES_AT_ONCE, names_asked)
    assert sorted(seen[0][0] + seen[1][0]) == sorted(quiet)
    assert (seen[2][1], seen[3][1]) == (seen[0][1], seen[1][1])  # since when is remembered between the turns


def test_a_slurmd_that_never_answers_is_tried_ever_more_rarely(tmp_path: Path) -> None:
    fake, tried = VirtualSlurm(["n1"]), list[float]()
    server = {"database": new_database(tmp_path / "fleet.db")}
    config = Config.model_validate({"cluster": b.CLUSTER, "server": server})

    class Clock:
        def now(self) -> float:
            return fake.now

        def monotonic(self) -> float:
            return fake.now

    def probe(_node: SlurmNode) -> bool:
        tried.append(fake.now)
        return False

    plane = compose(config, Outside(fake, probe, Clock()))
    plane.loop.look(0.0)
    for _ in range(300):
        plane.telemetry.receive(b.report("n1"), fake.now)
        plane.loop.look(0.0)
        fake.now += 30.0
    waits = [later - earlier for earlier, later in pairwise(tried)]
    assert waits == [90.0, 150.0, 270.0, 510.0, 990.0, 1950.0, 3870.0]  # the next look after 60 s, 120 s, ...
