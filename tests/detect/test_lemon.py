"""Lemons: which nodes are called so, what that leads to, and what a real year of faults says of it."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests import builders as b
from understudy_controlplane.config import Lemon
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.spares import free_spares, joining_pool
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.lemon import excluded_by, lemons, scores
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.lemon import LemonSignals
from understudy_controlplane.fleet.snapshot import Snapshot

TRACE = Path(__file__).resolve().parents[1] / "data" / "faults-400-servers.json.gz"
TRACE_NODES = 400
POLICY = Lemon()


def snapshot(**signals: LemonSignals) -> Snapshot:
    return b.snapshot(lemon_signals=signals)


def called(**signals: LemonSignals) -> set[str]:
    return set(lemons(snapshot(**signals), POLICY))


def test_two_faults_make_a_lemon_and_one_does_not() -> None:
    assert called(n3=LemonSignals(faults=2), n4=LemonSignals(faults=1)) == {"n3"}


def test_signals_add_up() -> None:
    assert called(n3=LemonSignals(faults=1, agent_losses=1, xid_kinds=2)) == {"n3"}


@pytest.mark.parametrize(
    "signals",
    [
        LemonSignals(agent_losses=99),
        LemonSignals(xid_kinds=99),
        LemonSignals(outages=99),
        LemonSignals(single_node_failures=99),
        LemonSignals(multi_node_failures=99),
        LemonSignals(excluded_by=99),
    ],
)
def test_no_signal_but_faults_makes_one_by_itself(signals: LemonSignals) -> None:
    assert called(n3=signals) == set()


def test_what_the_whole_fleet_shows_is_no_nodes_own() -> None:
    """An update that stopped every agent three times, and one node that also has a fault."""
    everywhere = {f"n{i}": LemonSignals(agent_losses=3) for i in range(1, 9)}
    everywhere["n3"] = LemonSignals(agent_losses=3, faults=1, outages=1)
    assert scores(everywhere, 8)["n1"] == 0
    assert called(**everywhere) == set()
    assert called(n3=LemonSignals(agent_losses=3, faults=1, outages=1)) == {"n3"}


def test_a_lemon_is_recorded_and_nothing_else_follows() -> None:
    seen = snapshot(n3=LemonSignals(faults=3, xid_kinds=2))
    (finding,) = [one for one in detect(seen, b.config()) if one.signal is Signal.LEMON]
    assert finding.evidence.shown()["faults"] == 3
    (decision,) = decide(seen, [finding], b.config())
    assert (decision.row, decision.subject, decision.to_state, decision.plan) == (151, "n3", None, None)
    assert "an administrator should look" in decision.reason


def test_lemons_are_the_last_to_be_taken_as_spares() -> None:
    signals = {"n6": LemonSignals(faults=5)}
    assert free_spares(b.snapshot(spares=["n6", "n7", "n8"], lemon_signals=signals), b.config()) == ["n7", "n8", "n6"]


def test_lemons_join_the_pool_when_there_is_no_other_node() -> None:
    signals = {"n8": LemonSignals(faults=5)}
    seen = b.snapshot(lemon_signals=signals)
    assert set(joining_pool(seen, (), b.config(spares={"count": 2}))) == {"n6", "n7"}
    assert "n8" in joining_pool(seen, (), b.config(spares={"count": 8}))


def test_users_that_keep_off_a_node_are_counted_once_each() -> None:
    jobs = [b.job(job_id=i, user=user, excluded_nodes=("n3",)) for i, user in enumerate(["a", "a", "b"], 1)]
    assert excluded_by(jobs) == Counter({"n3": 2})


def test_a_real_year_of_faults() -> None:
    """400 servers, 584 faults. Every 28 days the nodes that are lemons by the faults of the last 28 days, and whether
    they fail again within the next 28: more often than others, far from always. So a lemon is only recorded.
    """
    faults: defaultdict[str, list[float]] = defaultdict(list)
    for event in json.loads(gzip.decompress(TRACE.read_bytes())):
        if event["event_type"] == "fault_start":
            faults[event["node_id"]].append(event["event_time"])
    flagged = again = base = rounds = 0
    for day in range(28, 12 * 28, 28):
        past = {node: sum(day - 28 < at <= day for at in times) for node, times in faults.items()}
        known = scores({node: LemonSignals(faults=count) for node, count in past.items() if count}, TRACE_NODES)
        lemon = {node for node, score in known.items() if score >= POLICY.score_min}
        next_ones = {node for node, times in faults.items() if any(day < at <= day + 28 for at in times)}
        flagged, again, base = flagged + len(lemon), again + len(lemon & next_ones), base + len(next_ones)
        rounds += 1
    print(f"{again} of {flagged} flagged nodes failed again within 28 days; of all nodes {base / rounds:.1f} in 400 do")
    assert flagged == 100
    assert again / flagged == pytest.approx(0.30, abs=0.005)
    assert base / rounds / TRACE_NODES == pytest.approx(0.086, abs=0.001)
