"""The guards' defaults against the failures that clusters really have: Llama 3's rate, and a year of 400 servers.

No guard may hold a real recovery back, and a rule that is wrong drains no more nodes than its budget. Only the worst
moments are judged.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests import builders as b
from understudy_controlplane.config import Config
from understudy_controlplane.decide import guards
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.rule_budget import A_DAY_MIN, over_rule_budget
from understudy_controlplane.fleet.decision import Action, Because, Quarantine
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.incident import DOMAIN_SILENT, OpenIncident
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.recovery import PoolSwapPlan, Recovery, RecoveryStatus, StepName
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.topology import Domain, DomainKind, merged

pytestmark = pytest.mark.integration

TRACE = Path(__file__).resolve().parents[1] / "data" / "faults-400-servers.json.gz"
TRACE_NODES, TRACE_DAYS = 400, 348.0
BY_PEOPLE = {"Stress Test Failure", "Training Task Troubleshooting", "Change", "Test"}
"""Faults of the trace that people found on nodes which they had taken out of service themselves."""

LLAMA_FAULTS_PER_NODE_DAY = 3.79e-3
DAY, HOUR, MINUTE = 86_400.0, 3600.0, 60.0

REPAIRED_WITHIN = 2 * HOUR
"""After this the repair cycle has either returned a node or asked a person."""

MOVED_WITHIN = 5 * MINUTE
"""Time for a gang to be at work again."""

SIZES = (400, 2048, 12_500)
REPAIRS: tuple[dict[str, Any], ...] = ({}, {"repair": {"enabled": True}, "validation": {"enabled": True}})


class Fault(NamedTuple):
    at: float
    until: float
    node: str


@cache
def trace() -> tuple[Fault, ...]:
    begun: dict[str, float] = {}
    found: list[Fault] = []
    for event in sorted(json.loads(gzip.decompress(TRACE.read_bytes())), key=lambda event: event["event_time"]):
        if event["event_type"] == "fault_start":
            if event["fault_type"]["Class"] not in BY_PEOPLE:
                begun[event["node_id"]] = event["event_time"] * DAY
        elif event["node_id"] in begun:
            found.append(Fault(begun.pop(event["node_id"]), event["event_time"] * DAY, event["node_id"]))
    return tuple(found)


def trace_of(nodes: int) -> list[Fault]:
    """Trace with as many copies of the 400 servers as the fleet is large, each shifted by a time of its own."""
    source = np.random.default_rng(nodes)
    found: list[Fault] = []
    names = sorted({fault.node for fault in trace()})
    for copy in range(-(-nodes // TRACE_NODES)):
        shift = float(source.uniform(0, TRACE_DAYS * DAY)) if copy else 0.0
        count = min(TRACE_NODES, nodes - copy * TRACE_NODES)
        own = set(names[: len(names) * count // TRACE_NODES])
        for fault in trace():
            if fault.node in own:
                at = (fault.at + shift) % (TRACE_DAYS * DAY)
                found.append(Fault(at, at + fault.until - fault.at, f"{fault.node}-{copy}"))
    return sorted(found)


def llama_of(nodes: int) -> list[Fault]:
    """Sixty days at Llama 3's rate, with the repair times of the trace."""
    source = np.random.default_rng(nodes)
    durations = [fault.until - fault.at for fault in trace()]
    found: list[Fault] = []
    at = 0.0
    while (at := at + float(source.exponential(DAY / (LLAMA_FAULTS_PER_NODE_DAY * nodes)))) < 60 * DAY:
        found.append(Fault(at, at + float(source.choice(durations)), f"n{source.integers(nodes)}"))
    return found


class Moment(NamedTuple):
    """What is going on when a node fails."""

    fault: Fault
    lately: Sequence[Fault]  # within the last hour
    down: Sequence[Fault]


def worst_moments(faults: Sequence[Fault]) -> Iterator[Moment]:
    """Moments at which the most nodes had failed within ten minutes or an hour, were in repair, or were down: the
    limits are numbers of these, so that what passes then always passes.
    """
    worst: dict[str, tuple[int, Moment]] = {}
    recent: list[Fault] = []
    down: list[Fault] = []
    for fault in faults:
        down = [one for one in down if one.until > fault.at and one.node != fault.node]
        recent = [one for one in recent if one.at > fault.at - HOUR]
        counts = {
            "within ten minutes": sum(one.at > fault.at - 10 * MINUTE for one in recent),
            "within an hour": len(recent),
            "in repair": sum(one.at > fault.at - REPAIRED_WITHIN for one in down[-100:]),
            "down": len(down),
        }
        for what, count in counts.items():
            if count > worst.get(what, (0,))[0]:
                worst[what] = (count, Moment(fault, tuple(recent), tuple(down)))
        recent.append(fault)
        down.append(fault)
    return (moment for _, moment in worst.values())


def in_repair(fault: Fault, now: float, config: Config) -> NodeView:
    waits = config.repair.enabled and now - fault.at > REPAIRED_WITHIN
    state = NodeState.MANUAL_REPAIR if waits else NodeState.QUARANTINED
    record = b.record(fault.node, state, since=fault.at, drained_at=fault.at + 1, agent_seen_at=fault.at)
    return b.node(fault.node, record=record)


def moved(fault: Fault, number: int) -> Recovery:
    """Each fault moves a gang of its own."""
    plan = PoolSwapPlan(
        steps=(StepName.DRAIN_NODES,),
        nodes=(fault.node,),
        drain_reason="understudy: x",
        job=JobKey(b.CLUSTER, number, 1),
        submit_at=1,
        restart_count=0,
        user="researcher",
        seats=(),
    )
    return Recovery(number, plan, RecoveryStatus.RUNNING, fault.at, ())


def snapshot_at(moment: Moment, nodes: int, config: Config) -> Snapshot:
    fault, lately, down = moment
    views = {one.node: in_repair(one, fault.at, config) for one in down}
    views[fault.node] = b.node(fault.node)
    healthy = b.node("healthy")
    views |= {f"healthy{i}": healthy for i in range(nodes - len(views))}
    return b.changed(
        b.snapshot(),
        now=fault.at,
        started_at=fault.at - DAY,
        nodes=views,
        recoveries=tuple(moved(one, i) for i, one in enumerate(lately, 1000) if one.at > fault.at - MOVED_WITHIN),
        swaps=tuple((one.at, JobKey(b.CLUSTER, i, 1)) for i, one in enumerate(lately, 1000)),
        quarantined_at={one.node: (one.at,) for one in lately},
        domains={"partition train": tuple(views)},
    )


@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("faults_of", [trace_of, llama_of], ids=["trace", "llama"])
@pytest.mark.parametrize("repair", REPAIRS, ids=["no repair", "repair"])
def test_no_guard_holds_a_real_recovery_back(nodes: int, faults_of: Any, repair: dict[str, Any]) -> None:
    config = b.config(**repair)
    moments = list(worst_moments(faults_of(nodes)))
    assert len(moments) >= 3
    for moment in moments:
        snapshot = snapshot_at(moment, nodes, config)
        finding = Finding(Signal.HARDWARE_FAULT, "xid.79", moment.fault.node, moment.fault.at, "broken")
        assert guards.object_to_quarantine(snapshot, config, finding, already=()) is None, moment
        job = b.job(nodes=(moment.fault.node,))
        assert guards.object_to_move(snapshot, config, job, [moment.fault.node], already=()) is None, moment


@pytest.mark.parametrize(("nodes", "drained"), [(400, 10), (2048, 10), (12_500, 25)])
def test_a_wrong_rule_that_hits_the_whole_fleet_drains_no_more_than_the_breaker_bears(nodes: int, drained: int) -> None:
    config, healthy = b.config(), {f"n{i}": b.node(f"n{i}") for i in range(nodes)}
    snapshot = b.changed(b.snapshot(), nodes=healthy, domains={"partition train": tuple(healthy)})
    wrong = [Finding(Signal.HARDWARE_FAULT, "xid.79", name, b.NOW, "broken") for name in healthy]
    decisions = decide(snapshot, wrong, config)
    assert sum(one.action is Action.QUARANTINE for one in decisions) == drained
    assert sum(one.action is Action.OPEN_BREAKER for one in decisions) == 1


@pytest.mark.parametrize("repair", REPAIRS, ids=["no repair", "repair"])
def test_a_wrong_rule_that_is_slow_drains_no_more_than_both_budgets_and_no_more_an_hour(repair: dict[str, Any]) -> None:
    """A node every three minutes, for half a day: too slow for the breaker."""
    config, nodes = b.config(**repair), 400
    drained: list[Fault] = []
    for minute in range(0, 12 * 60, 3):
        now = minute * MINUTE
        lately = [one for one in drained if one.at > now - HOUR]
        moment = Moment(Fault(now, now, f"new{minute}"), lately, drained)
        finding = Finding(Signal.HARDWARE_FAULT, "xid.79", moment.fault.node, now, "broken")
        if guards.object_to_quarantine(snapshot_at(moment, nodes, config), config, finding, already=()) is None:
            drained.append(Fault(now, 10 * DAY, moment.fault.node))
    assert len(drained) == 12 + 40
    assert max(sum(0 <= later.at - one.at < HOUR for later in drained) for one in drained) == 12


def by_rule(fault: dict[str, str]) -> str:
    """What a check of such a fault would be called."""
    return f"{fault['Class']}: {fault['Desc']}".lower()


@cache
def trace_by_rule() -> tuple[tuple[float, str, str], ...]:
    """When, on which node, and by which rule. Faults of no known kind have no rule of their own."""
    found = [
        (event["event_time"] * DAY, event["node_id"], by_rule(event["fault_type"]))
        for event in json.loads(gzip.decompress(TRACE.read_bytes()))
        if event["event_type"] == "fault_start" and event["fault_type"]["Class"] not in BY_PEOPLE | {"Unknown Error"}
    ]
    return tuple(sorted(found))


def copies(nodes: int) -> list[Quarantine]:
    source = np.random.default_rng(nodes)
    found = []
    for copy in range(-(-nodes // TRACE_NODES)):
        shift = float(source.uniform(0, TRACE_DAYS * DAY)) if copy else 0.0
        found += [
            Quarantine((at + shift) % (TRACE_DAYS * DAY), f"{node}-{copy}", rule) for at, node, rule in trace_by_rule()
        ]
    return sorted(found)


@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("with_history", [False, True])
def test_no_rule_that_is_right_uses_its_budget_up(nodes: int, with_history: bool) -> None:
    healthy = b.node("healthy")
    views = {f"healthy{i}": healthy for i in range(nodes)}
    of_rules: dict[str, list[Quarantine]] = {}
    for fault in copies(nodes):
        earlier = of_rules.setdefault(fault.rule, [])
        week = [one for one in earlier[-500:] if one.at > fault.at - 7 * DAY]
        earlier.append(fault)
        if len(week) < A_DAY_MIN:
            continue  # passes whatever the limit is
        usual = None
        if with_history and fault.at > 35 * DAY:
            before = (one.at // DAY for one in earlier if fault.at - 35 * DAY <= one.at < fault.at - 7 * DAY)
            usual = {fault.rule: max(Counter(before).values(), default=0)}
        seen = b.snapshot(quarantines=tuple(week), usual_quarantines=usual)
        seen = replace(seen, now=fault.at, nodes=views)
        assert over_rule_budget(seen, fault.rule, ()) == "", fault


@pytest.mark.parametrize(
    ("nodes", "usual", "drained"),
    [
        (400, None, 12),
        (400, 2, 12),
        (2048, None, 20),
        (2048, 2, 12),
        (12_500, None, 125),
        (12_500, 5, 31),
        (12_500, 20, 60),
    ],
)
@pytest.mark.parametrize("hour", [11, 0.4])
def test_a_rule_that_is_wrong_and_slow_takes_out_a_share_and_a_person_is_paged(
    nodes: int, usual: int | None, drained: int, hour: float
) -> None:
    """Some nodes an hour, below every other budget, for a week. The first that is held back is paged at once."""
    views = {f"n{i}": b.node(f"n{i}", heard_at=b.NOW + 8 * DAY) for i in range(nodes)}  # throughout
    limits = {"quarantined_nodes_min": nodes, "quarantined_share_max": 1.0, "domain_share_max": 1.0}
    config = b.config(guards=limits)
    taken: list[Quarantine] = []
    usually = None if usual is None else {"xid.79": usual}
    for number in range(int(hour * 7 * 24)):
        now, name = b.NOW + number * HOUR / hour, f"n{number % nodes}"
        seen = b.snapshot(quarantines=tuple(taken), usual_quarantines=usually)
        seen = replace(seen, now=now, started_at=now - DAY, nodes=views)
        finding = Finding(Signal.HARDWARE_FAULT, "xid.79", name, now, "broken")
        objection = guards.object_to_quarantine(seen, config, finding, already=())
        if objection is None:
            taken.append(Quarantine(now, name, "xid.79"))
        else:
            assert objection.because is Because.RULE_BUDGET
            paged = [one for one in decide(seen, [finding], config) if one.action is Action.PAGE]
            assert len(paged) == 1
            assert "rule xid.79 has taken out" in paged[0].reason
            break
    assert max(sum(0 <= one.at - first.at < DAY for one in taken) for first in taken) <= drained
    assert len(taken) <= 2.5 * drained
    reset = b.changed(seen, breaker_reset_at=now)
    assert objection is None or guards.object_to_quarantine(reset, config, finding, already=()) is None


def test_a_rule_s_budget_is_no_one_else_s_and_a_rack_that_dies_is_one() -> None:
    taken = tuple(Quarantine(b.NOW - 5000 + i, f"n{i}", "silence.node_dead") for i in range(1, 13))
    seen = b.snapshot(*(b.node(f"n{i}") for i in range(1, 21)), quarantines=taken)
    assert "silence.node_dead has taken out 12 nodes within a day" in over_rule_budget(seen, "silence.node_dead", ())
    assert over_rule_budget(seen, "xid.79", ()) == ""
    rack = merged([Domain(DomainKind.RACK, "r1", tuple(f"n{i}" for i in range(1, 9)))])
    assert over_rule_budget(replace(seen, topology=rack), "silence.node_dead", ()) == ""


def test_a_domain_that_fails_is_one_though_only_some_of_its_nodes_are_taken_out() -> None:
    """Two racks share one cooling loop: 13 nodes on which gangs run fail, then most of both."""
    rule, names = "silence.node_dead", tuple(f"n{i}" for i in range(1, 33))
    racks = [Domain(DomainKind.RACK, f"r{i}", names[i * 16 : i * 16 + 16]) for i in range(2)]
    loop = merged([*racks, Domain(DomainKind.CDU, "c", names)])
    seen = b.snapshot(*(b.node(f"n{i}") for i in range(1, 65)), topology=loop, domains=loop.failing_together)
    label = next(one for one, inside in loop.failing_together.items() if len(inside) == 32)
    subject = Subject.of_domain(label, DOMAIN_SILENT)
    failed = {subject: OpenIncident(1, subject, DOMAIN_SILENT, "domain_fault", "32 nodes", b.NOW - 100, nodes=names)}

    def objects(some: Iterable[str], at: float, incidents: Mapping[Subject, OpenIncident]) -> bool:
        taken = tuple(Quarantine(at, name, rule) for name in some)
        return bool(over_rule_budget(b.changed(seen, quarantines=taken, incidents=incidents), rule, ()))

    some = [*names[:7], *names[16:22]]
    assert not objects(some, b.NOW - 40, failed)
    assert objects(some, b.NOW - 40, {}), "no domain is known to have failed"
    assert objects(some, b.NOW - 5000, failed), "they were taken out before it failed"
    assert not objects([*names[:13], *names[21:]], b.NOW - 40, {}), "most of the loop, which is most of one rack alone"
