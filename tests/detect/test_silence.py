"""A node is dead when something besides the management network confirms it, or after much longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Silence
from understudy_controlplane.detect.silence import silence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import StepTable
from understudy_wire.launcher import LauncherPhase, LauncherState

POLICY = Silence()
KEY = b.job().key


def silent(name: str, seconds: float, **values: Any) -> NodeView:
    """Neither its agent nor its slurmd answers, as when the management network is cut."""
    since = b.NOW - seconds
    return b.node(name, heard_at=since, slurmd_silent_since=since + 0.5, **values)


def found(snapshot: Snapshot) -> Finding:
    (finding,) = silence(snapshot, POLICY)
    return finding


def steps(stood_for: float, seconds: float = 0.5, **values: Any) -> StepTable:
    table = b.step_table([[seconds] * 20] * 4, advanced_at=b.NOW - stood_for)
    return replace(table, **values)


def gang(lost: Sequence[str], host: str = "n1", heard_ago: float = 1.0) -> Gang:
    state = LauncherState(7, 0, 1, LauncherPhase.RUNNING, ("n1", "n2"), lost=tuple(lost))
    return Gang(state, host, b.NOW - heard_ago)


@pytest.mark.parametrize("seconds", [8.0, 30.0, 100.0])
def test_a_cut_management_network_ends_no_job_that_has_no_hook(seconds: float) -> None:
    finding = found(b.snapshot(silent("n3", seconds), jobs=[b.job()]))
    assert finding.signal is Signal.SILENT
    assert "neither its gang, nor a launcher on another node, nor Slurm itself confirms" in finding.summary


def test_a_launcher_confirms_nothing_about_nodes_that_its_job_does_not_have() -> None:
    gangs = {KEY: gang(["n3"])}
    assert found(b.snapshot(silent("n3", 8.0), jobs=[b.job()], gangs=gangs)).signal is Signal.NODE_DEAD
    own, other = b.job(nodes=["n1", "n2"]), b.job(job_id=8, nodes=["n3", "n4"])
    assert found(b.snapshot(silent("n3", 8.0), jobs=[own, other], gangs=gangs)).signal is Signal.SILENT


def test_nor_for_hours_while_slurm_shows_that_the_node_responds() -> None:
    """The route of the control plane is away, and no other."""
    assert found(b.snapshot(silent("n3", 7200.0), jobs=[b.job()])).signal is Signal.SILENT


def unreached(name: str, seconds: float, shown_for: float, state: str = "ALLOCATED", **values: Any) -> NodeView:
    """Slurm has shown for that long that it does not reach the silent node either."""
    slurm = b.slurm_node(name, state, flags=["NOT_RESPONDING"])
    return silent(name, seconds, slurm=slurm, slurm_silent_since=b.NOW - shown_for, **values)


@pytest.mark.parametrize(
    ("seconds", "shown_for", "timeout", "signal"),
    [
        (119.0, 119.0, 300, Signal.SILENT),
        (121.0, 121.0, 300, Signal.NODE_DEAD),
        (7200.0, 14.0, 300, Signal.SILENT),
        (7200.0, 119.0, 300, Signal.SILENT),
        (7200.0, 119.0, 0, Signal.SILENT),
        (7200.0, 121.0, 0, Signal.NODE_DEAD),
        (7200.0, 121.0, 600, Signal.SILENT),
        (7200.0, 221.0, 600, Signal.NODE_DEAD),
        (121.0, 61.0, 120, Signal.NODE_DEAD),
    ],
)
def test_where_slurm_agrees_for_longer_than_one_missed_ping_is_shown_it_is_dead(
    seconds: float, shown_for: float, timeout: int, signal: Signal
) -> None:
    """It may be the control plane's own route that is away, and a working slurmd that missed one ping."""
    node = unreached("n3", seconds, shown_for)
    finding = found(b.snapshot(node, jobs=[b.job()], slurmd_timeout_seconds=timeout))
    assert finding.signal is signal
    assert ("Slurm shows that it does not respond" in finding.summary) is (signal is Signal.NODE_DEAD)


def test_a_node_that_slurm_has_set_down_for_its_silence_is_dead_at_once() -> None:
    """Slurm ends its jobs."""
    node = unreached("n3", 290.0, 14.0, "DOWN")
    assert found(b.snapshot(node, jobs=[b.job()], slurmd_timeout_seconds=300)).signal is Signal.NODE_DEAD


def test_a_node_without_a_job_needs_no_confirmation() -> None:
    assert found(b.snapshot(silent("n3", 8.0))).signal is Signal.NODE_DEAD


@pytest.mark.parametrize(
    ("seconds", "agrees", "signal"),
    [
        (8.0, False, Signal.SILENT),
        (7200.0, False, Signal.SILENT),
        (119.0, True, Signal.SILENT),
        (121.0, True, Signal.NODE_DEAD),
    ],
)
def test_a_spare_is_dead_when_slurm_agrees(seconds: float, agrees: bool, signal: Signal) -> None:
    """No other job starts there meanwhile. It may be the control plane's own route that is away."""
    node = unreached("n7", seconds, seconds, "IDLE", is_spare=True) if agrees else silent("n7", seconds, is_spare=True)
    assert found(b.snapshot(node, spares=("n7",))).signal is signal


def test_a_gang_that_went_on_without_it_being_heard_confirms_nothing_when_it_stops() -> None:
    """The control plane's own route to the node was away by then, and the gang hangs for something else."""
    tables = {KEY: steps(stood_for=40.0)}
    assert found(b.snapshot(silent("n3", 110.0), jobs=[b.job()], tables=tables)).signal is Signal.SILENT
    assert found(b.snapshot(silent("n3", 41.0), jobs=[b.job()], tables=tables)).signal is Signal.NODE_DEAD


def test_its_gang_confirms_it_by_standing_still() -> None:
    finding = found(b.snapshot(silent("n3", 8.0), jobs=[b.job()], tables={KEY: steps(7.5)}))
    assert finding.signal is Signal.NODE_DEAD
    assert "its gang stands still" in finding.summary


@pytest.mark.parametrize(
    "table",
    [
        steps(7.5, seconds=5.0),
        steps(7.5, longest_pause_seconds=60.0),
        steps(7.5, nodes=("n3",) * 4),
        replace(steps(7.5), advanced_at=0.0),
        steps(1.0),
        steps(60.0),
    ],
    ids=["a long step", "a checkpoint", "no rank elsewhere", "no step yet", "it makes progress", "it stood before"],
)
def test_a_gang_that_may_go_on_confirms_nothing(table: StepTable) -> None:
    assert found(b.snapshot(silent("n3", 8.0), jobs=[b.job()], tables={KEY: table})).signal is Signal.SILENT


def others(*stood_for: float) -> Snapshot:
    """n3 is silent and its gang stands still. The other gangs, whose nodes are heard, have stood for that long."""
    keys = [b.job(job_id=8 + i).key for i in range(len(stood_for))]
    tables = {key: steps(one, job=key, nodes=("n5",) * 4) for key, one in zip(keys, stood_for, strict=True)}
    return b.snapshot(silent("n3", 8.0), jobs=[b.job()], tables={KEY: steps(7.5), **tables})


@pytest.mark.parametrize("stood_for", [(7.5,), (7.0, 8.0), (7.5, 1.0), (6.0, 60.0)])
def test_nor_one_that_stopped_with_most_others_whose_nodes_are_heard(stood_for: Sequence[float]) -> None:
    """The fabric, or the storage, stopped them."""
    finding = found(others(*stood_for))
    assert finding.signal is Signal.SILENT
    assert "neither its gang, nor a launcher on another node, nor Slurm itself confirms" in finding.summary


@pytest.mark.parametrize("stood_for", [(1.0,), (60.0,), (7.5, 1.0, 1.0), (60.0, 60.0, 1.0)])
def test_others_that_go_on_or_that_stood_before_change_nothing(stood_for: Sequence[float]) -> None:
    assert found(others(*stood_for)).signal is Signal.NODE_DEAD


def test_others_with_a_silent_node_of_their_own_change_nothing() -> None:
    """Nodes of several gangs die together."""
    other = b.job(job_id=8, nodes=("n5", "n6"))
    tables = {KEY: steps(7.5), other.key: steps(7.5, job=other.key, nodes=("n5", "n5", "n6", "n6"))}
    seen = b.snapshot(silent("n3", 8.0), silent("n6", 8.0), jobs=[b.job(), other], tables=tables)
    assert [one.signal for one in silence(seen, POLICY)] == [Signal.NODE_DEAD] * 2


@pytest.mark.parametrize(("stood_for", "signal"), [(7.5, Signal.SILENT), (31.0, Signal.NODE_DEAD)])
def test_nor_one_of_which_a_rank_may_wait_for_an_order_to_save(stood_for: float, signal: Signal) -> None:
    """Its node was cut off before it learnt what became of the order. It waits for half a minute at most."""
    tables = {KEY: steps(stood_for)}
    seen = b.snapshot(silent("n3", stood_for + 0.5), jobs=[b.job()], tables=tables, ordered_to_save=frozenset({KEY}))
    assert found(seen).signal is signal


def test_its_launcher_on_another_node_confirms_it() -> None:
    finding = found(b.snapshot(silent("n3", 8.0), jobs=[b.job()], gangs={KEY: gang(["n3"])}))
    assert finding.signal is Signal.NODE_DEAD
    assert "its launcher has lost it" in finding.summary


@pytest.mark.parametrize(
    "seen", [gang([]), gang(["n3"], host="n3"), gang(["n3"], heard_ago=30.0)], ids=["not lost", "there", "not heard"]
)
def test_a_launcher_that_could_not_know_confirms_nothing(seen: Gang) -> None:
    assert found(b.snapshot(silent("n3", 8.0), jobs=[b.job()], gangs={KEY: seen})).signal is Signal.SILENT


class TestAnAnnouncedStop:
    """systemd stops agent and slurmd for an upgrade."""

    @pytest.mark.parametrize("managed", [True, False, None])
    def test_is_no_death(self, managed: bool | None) -> None:
        jobs = [b.job(managed=managed)] if managed is not None else []
        finding = found(b.snapshot(silent("n3", 300.0, stopping=True), jobs=jobs))
        assert finding.signal is Signal.SILENT
        assert "announced" in finding.summary

    def test_that_lasts_too_long_is_one(self) -> None:
        assert found(b.snapshot(silent("n3", 601.0, stopping=True))).signal is Signal.NODE_DEAD

    def test_by_which_its_gang_stands_still_is_one(self) -> None:
        snapshot = b.snapshot(silent("n3", 8.0, stopping=True), jobs=[b.job()], tables={KEY: steps(7.5)})
        assert found(snapshot).signal is Signal.NODE_DEAD

    def test_of_a_whole_fleet_is_no_fault_of_the_network(self) -> None:
        nodes = [silent(f"n{i}", 30.0, stopping=True) for i in range(1, 7)]
        assert {one.rule for one in silence(b.snapshot(*nodes), POLICY)} == {"silence.agent"}


@pytest.mark.parametrize(
    ("seconds", "state", "unheard", "is_dead"),
    [
        (8.0, NodeState.IN_SERVICE, 1, False),
        (8.0, NodeState.UNKNOWN, 1, True),
        (10.0, NodeState.IN_SERVICE, 1, True),
        (10.0, NodeState.UNKNOWN, 3, False),
        (19.0, NodeState.IN_SERVICE, 3, True),
    ],
    ids=["too soon", "found silent before the start", "silent", "with too many others", "at last"],
)
def test_one_that_died_just_before_a_start_is_dead_sooner_where_nearly_all_others_were_heard(
    seconds: float, state: NodeState, unheard: int, is_dead: bool
) -> None:
    """Else the others may not have found this control plane either."""
    started = b.NOW - seconds
    dead = b.node("n1", heard_at=None, slurmd_silent_since=started + 4.5)
    dead = replace(dead, record=replace(dead.record, state=state, since=started - 1))
    others = [b.node(f"n{i}", heard_at=None if i <= unheard else b.NOW) for i in range(2, 17)]
    snapshot = b.snapshot(dead, *others, started_at=started)
    ((signal,),) = [[one.signal] for one in silence(snapshot, POLICY) if one.node == "n1"]
    assert (signal is Signal.NODE_DEAD) is is_dead
