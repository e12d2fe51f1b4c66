"""Ranks that are slow for one cause: on one node, in one domain, or waiting for the same data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests import builders as b
from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.straggler import straggler
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.steps import StepTable
from understudy_controlplane.fleet.suspicion import SuspicionCause

NODES, RANKS_PER_NODE, STEPS = 12, 4, 120
RANKS = NODES * RANKS_PER_NODE


def table(slow: list[str], by: float = 1.2) -> StepTable:
    """Ranks of these nodes take longer from step 40 on."""
    times = np.random.default_rng(5).lognormal(0, 0.01, (RANKS, STEPS))
    names = [f"n{1 + rank // RANKS_PER_NODE}" for rank in range(RANKS)]
    times[[name in slow for name in names], 40:] *= by
    made = b.step_table(times.tolist(), nodes=names)
    return replace(made, gpus=tuple(rank % RANKS_PER_NODE for rank in range(RANKS)))


def waiting(slow: list[str], seconds: float) -> StepTable:
    """Ranks of these nodes wait for data from step 40 on, the others hardly."""
    data = np.random.default_rng(6).exponential(0.02, (RANKS, STEPS)).astype(np.float32)
    made = table([])
    data[[name in slow for name in made.nodes], 40:] += seconds
    return replace(made, data_seconds=data)


def findings(steps: StepTable, *nodes: NodeView, domains: dict[str, tuple[str, ...]] | None = None) -> list[Finding]:
    others = [b.node(f"n{number}") for number in range(9, NODES + 1)]
    key = b.job().key
    snapshot = b.snapshot(
        *others, *nodes, jobs=[b.job()], tables={key: steps}, checkpointed_at={key: b.NOW}, domains=domains or {}
    )
    return [one for one in straggler(snapshot, Straggler(), probed=True) if one.signal is not Signal.CLEAN]


def test_slow_ranks_of_one_node_are_one_finding() -> None:
    (found,) = findings(table(["n3"]))
    assert (found.node, found.signal) == ("n3", Signal.STRAGGLER_SUSPECTED)
    assert "4 ranks, such as " in found.summary


def test_the_second_signal_of_any_gpu_of_them_confirms_the_node() -> None:
    gpus = (b.gpu(0), b.gpu(1), b.gpu(2), b.gpu(3, clock_event_reasons=0x40))
    (found,) = findings(table(["n3"]), b.node("n3", gpus=gpus))
    assert found.signal is Signal.STRAGGLER_SUSPECTED, "what its move costs is looked up first"
    record = b.record("n3", NodeState.SUSPECT, suspicions=b.suspected(SuspicionCause.SLOW, since=b.NOW - 3600))
    (found,) = findings(table(["n3"]), b.node("n3", record=record, gpus=gpus))
    assert found.signal is Signal.STRAGGLER_CONFIRMED
    assert found.evidence.shown()["cause"] == "clocks"


RACKS = {
    "rack r1": ("n1", "n2", "n3", "n4"),
    "rack r2": ("n5", "n6", "n7", "n8"),
    "pod p": tuple(f"n{number}" for number in range(1, 9)),
}


@pytest.mark.parametrize("label", ["rack r2", "switch s2", "NVLink block b2", "power p2"])
def test_nodes_of_one_domain_that_are_slow_together_are_named_as_it_with_its_cause(label: str) -> None:
    hot = [b.node(name, gpus=(b.gpu(0, clock_event_reasons=0x40),)) for name in ("n5", "n6")]
    domains = {"rack r1": RACKS["rack r1"], label: RACKS["rack r2"], "pod p": RACKS["pod p"]}
    (found,) = findings(table(["n5", "n6", "n7"]), *hot, domains=domains)
    assert (found.signal, found.domain, found.nodes) == (Signal.DOMAIN_FAULT, label, ("n5", "n6", "n7"))
    assert "clocks on 2 of them" in found.summary


def test_slow_nodes_that_no_domain_joins_are_named_one_by_one() -> None:
    assert {one.node for one in findings(table(["n1", "n5", "n6"]), domains=RACKS)} == {"n1", "n5", "n6"}
    assert {one.node for one in findings(table(["n5", "n6"]), domains=RACKS)} == {"n5", "n6"}


def test_a_node_outside_of_the_slow_rack_is_named_beside_it() -> None:
    found = findings(table(["n1", "n5", "n6", "n7"]), domains=RACKS)
    assert {one.node or one.domain for one in found} == {"n1", "rack r2"}


@pytest.mark.parametrize("slow", [["n3"], ["n3", "n6"]])
def test_ranks_of_a_node_that_wait_for_data_name_it_with_that_cause_and_never_confirm(slow: list[str]) -> None:
    throttled = [b.node(name, gpus=(b.gpu(0, clock_event_reasons=0x40),)) for name in slow]
    found = findings(waiting(slow, 0.3), *throttled)
    assert sorted((one.node, one.signal, one.rule) for one in found) == [
        (name, Signal.STRAGGLER_SUSPECTED, "straggler.data_wait") for name in slow
    ]
    assert all(one.evidence.shown()["cause"] == "data" for one in found)


def test_also_those_that_wait_in_every_second_step_only() -> None:
    """A loader may prepare two batches at a time."""
    steps = waiting(["n3"], 0.6)
    assert steps.data_seconds is not None
    steps.data_seconds[:, 41::2] = 0.02
    (found,) = findings(steps)
    assert (found.node, found.rule) == ("n3", "straggler.data_wait")


def test_a_node_that_is_slow_in_every_second_step_is_named_with_what_that_costs() -> None:
    steps = table(["n3"], by=1.5)
    steps.self_seconds[:, 41::2] = table([]).self_seconds[:, 41::2]
    (found,) = findings(steps)
    assert (found.node, found.rule) == ("n3", "straggler.self_time")
    assert "not all of its steps are slow" in found.summary
    assert 1.2 < float(str(found.evidence.shown()["ratio"])) < 1.3, "of its steps together"


def test_ranks_of_several_nodes_that_wait_for_data_point_to_storage() -> None:
    (found,) = findings(waiting(["n2", "n5", "n6", "n7"], 0.3), domains=RACKS)
    assert (found.signal, found.rule) == (Signal.DOMAIN_FAULT, "straggler.data_together")
    assert set(found.nodes) == {"n2", "n5", "n6", "n7"}
    assert "storage" in found.summary


def test_a_rank_that_waits_for_its_gpu_between_steps_instead_of_in_them_does_not_wait_for_data() -> None:
    """A progress bar on rank 0 that reads the loss does this."""
    steps = waiting([], 0.0)
    assert steps.data_seconds is not None
    steps.data_seconds[0] += 0.8 * steps.self_seconds[0]
    steps.self_seconds[0] *= 0.2
    assert findings(steps) == []


def test_a_slow_rank_does_not_wait_for_data() -> None:
    steps = table(["n3"])
    rules = [one.rule for one in findings(replace(steps, data_seconds=np.full_like(steps.self_seconds, 0.05)))]
    assert rules == ["straggler.self_time"]


def test_gangs_that_wait_alike_or_little_name_no_node() -> None:
    everywhere = [f"n{number}" for number in range(1, NODES + 1)]
    assert findings(waiting(everywhere, 0.5)) == []
    assert findings(waiting(["n3"], 0.03)) == []
    assert findings(waiting([], 0.0)) == []
