"""A switch that takes the ports of its nodes while their agents go on reporting: the nodes are not to blame, no gang
gets one as a spare, and a gang that hangs there waits for the time that a swap takes, then leaves it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from tests import builders as b
from understudy_controlplane.decide.incidents import incident_news
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.spare_outlook import outlook
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import HANGS, Finding, Signal
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.incident import DOMAIN_SILENT, PORT_DOWN, OpenIncident
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    PagePlan,
    PoolSwapPlan,
    RecoveryKind,
    RecoveryStatus,
    RepairAttempt,
)
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.topology import Domain, DomainKind, merged
from understudy_wire.hardware import Port
from understudy_wire.launcher import LauncherPhase, LauncherState

CONFIG = b.config(spares={"no_spare": "wait"})
NAMES = [f"n{i}" for i in range(1, 13)]
LEAF = tuple(NAMES[:4])
SWITCH = Subject.of_domain("switch leaf0", PORT_DOWN)
DOWN = Port("mlx5_0", 1, "InfiniBand", "DOWN", was_active=True, down_seconds=100.0)
WAITS: dict[str, Any] = {
    "heard_since": b.NOW - 900,
    "longest_pause_seconds": 2.0,
    "sequences": np.array([119, 120, 120]),
    "inside": np.array([False, True, True]),
    "furthest_collective": "all_reduce",
}
WAIT = CONFIG.silence.domain_wait_seconds


def fleet(job: Job, spares: str, failed: str = "", down: tuple[str, ...] = LEAF, **values: Any) -> Snapshot:
    """Three leaf switches with four nodes each; the ports of the first one's are down."""
    leaves = [Domain(DomainKind.SWITCH, f"leaf{i}", tuple(NAMES[i * 4 : i * 4 + 4])) for i in range(3)]
    topology, held = merged(leaves), spares.split()
    seen = b.snapshot(jobs=[job], spares=held, topology=topology, domains=topology.failing_together, **values)
    nodes = {
        name: b.node(
            name,
            is_spare=name in held,
            ports=(DOWN,) if name in down else (),
            events=(b.xid_event(name, 79),) if name == failed else (),
        )
        for name in NAMES
    }
    return replace(seen, nodes=nodes)


def opened(seconds_ago: float) -> dict[Subject, OpenIncident]:
    one = OpenIncident(1, SWITCH, PORT_DOWN, "domain_fault", "4 nodes …", b.NOW - seconds_ago, nodes=LEAF)
    return {SWITCH: one}


def gang(nodes: str) -> Job:
    return b.job(nodes=nodes.split())


def after_hang(seen: Snapshot) -> Decision:
    (job,) = seen.jobs
    hang = Finding(Signal.GANG_HUNG_UNNAMED, "hang.gang", "", b.NOW - 90, "the gang hangs", job=job)
    (found,) = [one for one in decide(seen, [hang], CONFIG) if one.finding is hang]
    return found


def test_its_nodes_are_no_spares_and_stay_in_service() -> None:
    seen = fleet(gang("n5 n6"), "n3 n12", failed="n6", incidents=opened(10))
    decisions = decide(seen, detect(seen, CONFIG), CONFIG)
    (plan,) = [one.plan for one in decisions if isinstance(one.plan, PoolSwapPlan)]
    assert set(plan.seats) == {"n5", "n12"}
    assert {one.subject for one in decisions if one.to_state is not None} == {"n6"}
    (words,) = [
        one.words for one in outlook(seen, next(iter(seen.jobs.values())), "n6", CONFIG).candidates if one.node == "n3"
    ]
    assert words == "a fabric port of it is down"
    back = fleet(gang("n5 n6"), "n3", failed="n6", down=(), incidents=opened(10))
    assert [
        set(one.plan.seats) for one in decide(back, detect(back, CONFIG), CONFIG) if isinstance(one.plan, PoolSwapPlan)
    ] == [{"n5", "n3"}], "a node whose port is back is a spare again, though the incident is still open"


def test_a_gang_that_hangs_there_waits_for_the_switch_and_then_leaves_it() -> None:
    """It would hang again on the same nodes."""
    job = gang("n1 n2 n5")
    waits = after_hang(fleet(job, "n9 n10", incidents=opened(WAIT - 5)))
    assert waits.plan is None
    assert "switch leaf0" in waits.reason
    leaves = after_hang(fleet(job, "n9 n10", incidents=opened(WAIT + 5)))
    assert isinstance(leaves.plan, PoolSwapPlan)
    assert (set(leaves.plan.seats), set(leaves.plan.leaving)) == ({"n5", "n9", "n10"}, {"n1", "n2"})


def test_where_there_is_no_room_for_all_it_stays_until_the_ports_are_back() -> None:
    """A start there would fail, and cost it one of the restarts that it may have without progress."""
    job = gang("n1 n2 n5")
    stays = after_hang(fleet(job, "n9", incidents=opened(WAIT + 5)))
    assert (stays.plan, stays.because) == (None, Because.NO_SPARE)
    back = after_hang(fleet(job, "n9", down=(), incidents=opened(WAIT + 5)))
    assert isinstance(back.plan, PoolSwapPlan)
    assert set(back.plan.seats) == {"n1", "n2", "n5"}


@pytest.mark.parametrize(
    ("spares", "leaving"), [(("n9", "n10"), {"n1", "n2"}), (("n9", "n3"), None)], ids=["enough", "one behind it too"]
)
def test_a_launcher_with_spares_elsewhere_replaces_them_within_its_allocation(
    spares: tuple[str, ...], leaving: set[str] | None
) -> None:
    job = gang(" ".join(("n1", "n2", "n5", *spares)))
    state = LauncherState(7, 0, 2, LauncherPhase.RUNNING, ("n1", "n2", "n5"), spares, nodes_min=3, ranks_per_node=8)
    launched = {job.key: Gang(state, "n5", b.NOW - 1)}
    found = after_hang(fleet(job, "", incidents=opened(WAIT + 5), gangs=launched))
    if leaving is None:
        assert (found.plan, found.because) == (None, Because.NO_SPARE)
    else:
        assert isinstance(found.plan, AllocationSwapPlan)
        assert set(found.plan.leaving) == leaving
        assert found.plan.nodes == (), "no node is to blame"


def test_a_person_is_notified_once_of_the_switch() -> None:
    seen = fleet(gang("n1 n2"), "n9", incidents=opened(10))
    (page,) = [one for one in decide(seen, detect(seen, CONFIG), CONFIG) if one.action is Action.PAGE]
    assert b.plan_as(PagePlan, page.plan).about == ("switch leaf0",)
    assert "look at the switch" in page.reason
    sent = RepairAttempt(
        1, "needs.domain_down switch leaf0", RecoveryKind.PAGE, None, b.NOW - 9, RecoveryStatus.SUCCEEDED
    )
    seen = b.changed(seen, attempts=(sent,))
    assert not [one for one in decide(seen, detect(seen, CONFIG), CONFIG) if one.action is Action.PAGE]


def test_a_node_whose_port_is_down_is_no_spare_though_it_is_the_only_one() -> None:
    """It may be at fault itself, which is found after minutes where no gang stands still there."""
    seen = fleet(gang("n5 n6"), "n3 n12", failed="n6", down=("n3",))
    (plan,) = [one.plan for one in decide(seen, detect(seen, CONFIG), CONFIG) if isinstance(one.plan, PoolSwapPlan)]
    assert set(plan.seats) == {"n5", "n12"}
    job = gang("n5 n6 n3 n12")
    state = LauncherState(7, 0, 2, LauncherPhase.RUNNING, ("n5", "n6"), ("n3", "n12"), nodes_min=2, ranks_per_node=8)
    seen = fleet(job, "", failed="n6", down=("n3",), gangs={job.key: Gang(state, "n5", b.NOW - 1)})
    (inside,) = [
        one.plan for one in decide(seen, detect(seen, CONFIG), CONFIG) if isinstance(one.plan, AllocationSwapPlan)
    ]
    assert dict(inside.places) == {"n6": "n12"}


def test_three_of_the_four_nodes_of_a_switch_are_the_switch() -> None:
    """And an operator's node there is no evidence."""
    held = b.node("n4", NodeState.OPERATOR_HOLD, ports=(DOWN,))
    seen = fleet(gang("n5 n6"), "", down=LEAF[:3])
    seen = replace(seen, nodes={**seen.nodes, "n4": held})
    faults = [one for one in detect(seen, CONFIG) if one.signal is Signal.DOMAIN_FAULT]
    assert [(one.domain, set(one.nodes)) for one in faults] == [("switch leaf0", set(LEAF[:3]))]
    apart = fleet(gang("n5 n6"), "", down=("n1", "n2", "n5"))
    assert not [one for one in detect(apart, CONFIG) if one.signal is Signal.DOMAIN_FAULT]


def test_nodes_that_share_no_domain_are_those_of_the_whole_fleet() -> None:
    down = ("n1", "n2", "n5", "n9")
    seen = fleet(gang("n5 n6"), "", down=down)
    (fault,) = [one for one in detect(seen, CONFIG) if one.signal is Signal.DOMAIN_FAULT]
    assert (fault.domain, set(fault.nodes)) == ("fleet", set(down))
    incident = OpenIncident(1, fault.subject, PORT_DOWN, "domain_fault", "3 nodes …", b.NOW - 5, nodes=down[:3])
    seen = replace(seen, incidents={fault.subject: incident})
    assert seen.behind_failed_switch.keys() == set(down), "also one that joined later"


def test_a_gang_is_not_restarted_in_the_round_that_finds_its_switch() -> None:
    table = replace(b.step_table([[0.1] * 20] * 3, ["n1", "n2", "n5"], advanced_at=b.NOW - 990), **WAITS)
    job = gang("n1 n2 n5")
    new = fleet(job, "n9 n10", tables={job.key: table})
    assert not [one for one in detect(new, CONFIG) if one.signal in HANGS]
    known = fleet(job, "n9 n10", tables={job.key: table}, incidents=opened(5))
    assert [one.signal for one in detect(known, CONFIG) if one.signal in HANGS] == [Signal.GANG_HUNG_UNNAMED]


FROM_STANDING = HANGS | {Signal.GANG_HUNG_TOGETHER}


def three_gangs(**changes: Any) -> Snapshot:
    """Each with a node behind the switch, and standing still for 990 s."""
    jobs = [b.job(job_id=7 + number, nodes=[f"n{number + 1}", f"n{number + 5}"]) for number in range(3)]
    tables = {
        one.key: replace(
            b.step_table([[0.1] * 20] * 3, [*one.slurm.nodes, one.slurm.nodes[1]], advanced_at=b.NOW - 990),
            job=one.key,
            **WAITS,
        )
        for one in jobs
    }
    return replace(fleet(jobs[0], "n12", tables=tables, **changes), jobs={one.key: one for one in jobs})


@pytest.mark.parametrize("down", [LEAF, ()], ids=["while it is down", "when its ports are back"])
def test_several_gangs_behind_it_are_no_riddle(down: tuple[str, ...]) -> None:
    """Gangs that stop together are left to a person, as their cause is not known; here it is."""
    seen = three_gangs(down=down)

    def signals(snapshot: Snapshot) -> list[Signal]:
        return [one.signal for one in detect(snapshot, CONFIG) if one.signal in FROM_STANDING]

    assert signals(replace(seen, incidents=opened(980))) == [Signal.GANG_HUNG_UNNAMED if down else Signal.GANG_HUNG] * 3
    if not down:
        assert signals(seen) == [Signal.GANG_HUNG_TOGETHER] * 3
        later = replace(seen, incidents=opened(500))
        assert signals(later) == [Signal.GANG_HUNG_TOGETHER] * 3, "they had stopped before it failed"


@pytest.mark.parametrize(("pause_seconds", "explained"), [(2.0, False), (30.0, True)])
def test_gangs_that_stopped_longer_before_it_failed_than_they_pause_have_another_cause(
    pause_seconds: float, explained: bool
) -> None:
    """The last step ends before the fault that keeps the next one from ending."""
    seen = three_gangs(incidents=opened(990 - 36))
    tables = {key: replace(one, longest_pause_seconds=pause_seconds) for key, one in seen.progress.tables.items()}
    found = [one.signal for one in detect(b.changed(seen, tables=tables), CONFIG) if one.signal in FROM_STANDING]
    assert [one in HANGS for one in found] == [explained] * 3


def test_a_gang_elsewhere_that_stopped_with_those_behind_it_is_not_restarted() -> None:
    """It may have stopped with the switch, or all with the fabric before that."""
    behind = three_gangs(down=LEAF, incidents=opened(980))
    away = b.job(job_id=6, nodes=["n9", "n10"])
    table = replace(b.step_table([[0.1] * 20] * 3, ["n9", "n10", "n10"]), job=away.key, **WAITS)

    def hung(stood_for: float) -> set[JobKey | None]:
        tables = {**behind.progress.tables, away.key: replace(table, advanced_at=b.NOW - stood_for)}
        seen = replace(behind, jobs={**behind.jobs, away.key: away}, progress=replace(behind.progress, tables=tables))
        return {one.job for one in detect(seen, CONFIG) if one.signal in HANGS}

    assert hung(990) == behind.jobs.keys()
    assert hung(850) == {*behind.jobs, away.key}, "it stopped long after"


@pytest.mark.parametrize(("down_seconds", "explained"), [(985.0, True), (100.0, False)])
def test_gangs_that_stop_when_it_fails_again_are_explained_though_its_incident_is_still_open(
    down_seconds: float, explained: bool
) -> None:
    """A gang that the first failure stopped, and that no one moves, as it is not managed, keeps the incident open."""
    seen = three_gangs(incidents=opened(80_000), started_at=b.NOW - 90_000)
    ports = (msgspec.structs.replace(DOWN, down_seconds=down_seconds),)
    seen = replace(seen, nodes={**seen.nodes, **{name: replace(seen.nodes[name], ports=ports) for name in LEAF}})
    expected = Signal.GANG_HUNG_UNNAMED if explained else Signal.GANG_HUNG_TOGETHER
    found = [one.signal for one in detect(seen, CONFIG) if one.signal in FROM_STANDING]
    assert found == [expected] * 3


def test_a_gang_that_only_its_launcher_can_restart_is_not_restarted_behind_it() -> None:
    """The pool has spares, and the job cannot be requeued onto them."""
    job = b.job(nodes=("n1", "n2", "n5"), requeue=False)
    state = LauncherState(7, 0, 2, LauncherPhase.RUNNING, ("n1", "n2", "n5"), (), nodes_min=3, ranks_per_node=8)
    launched = {job.key: Gang(state, "n5", b.NOW - 1)}
    found = after_hang(fleet(job, "n9 n10", incidents=opened(WAIT + 5), gangs=launched))
    assert (found.plan, found.because) == (None, Because.NO_SPARE)


def test_a_switch_is_known_to_have_failed_whatever_else_is_open_for_its_nodes() -> None:
    """Another cause has an incident of its own."""
    silent = Subject.of_domain("switch leaf0", DOMAIN_SILENT)
    other = {silent: OpenIncident(9, silent, DOMAIN_SILENT, "domain_fault", "…", b.NOW - 90, nodes=LEAF)}
    table = replace(b.step_table([[0.1] * 20] * 3, ["n1", "n2", "n5"], advanced_at=b.NOW - 990), **WAITS)
    job = gang("n1 n2 n5")
    seen = fleet(job, "n9 n10", tables={job.key: table}, incidents=other)
    findings = detect(seen, CONFIG)
    assert not [one for one in findings if one.signal in HANGS], "its incident is about to be opened"
    (fault,) = [one for one in findings if one.signal is Signal.DOMAIN_FAULT]
    assert fault.subject == SWITCH
    assert [number for number, _ in incident_news(seen, findings, other | opened(0)).over] == [9]
    (page,) = [
        one for one in decide(replace(seen, incidents=other | opened(5)), findings, CONFIG) if one.action is Action.PAGE
    ]
    assert "power, cooling" in page.reason
    assert "look at the switch" in page.reason


def test_a_person_who_was_notified_of_another_cause_is_notified_of_this_one() -> None:
    silent = Subject.of_domain("switch leaf0", DOMAIN_SILENT)
    other = {silent: OpenIncident(9, silent, DOMAIN_SILENT, "domain_fault", "…", b.NOW - 25, nodes=LEAF)}
    sent = RepairAttempt(
        1, "needs.domain_down switch leaf0", RecoveryKind.PAGE, None, b.NOW - 20, RecoveryStatus.SUCCEEDED
    )
    seen = fleet(gang("n1 n2"), "n9", incidents=other | opened(5), attempts=(sent,))
    (page,) = [one for one in decide(seen, detect(seen, CONFIG), CONFIG) if one.action is Action.PAGE]
    assert page.reason.index("look at the switch") < page.reason.index("power, cooling"), "what is new comes first"


@pytest.mark.parametrize(
    ("advanced", "pause", "over"),
    [(650, 2, False), (500, 2, False), (500, 600, True), (1, 2, True), (5000, 2, True)],
    ids=["stopped with it", "a little later", "a pause as others before", "goes on", "stood before"],
)
def test_its_incident_is_open_until_the_gangs_that_it_stopped_go_on(advanced: float, pause: float, over: bool) -> None:
    """The switch came back before a gang counts as hung: several would have stopped together for no known cause."""
    job = gang("n1 n2 n5")
    times = {"advanced_at": b.NOW - advanced, "longest_pause_seconds": pause}
    table = replace(b.step_table([[0.1] * 20] * 3, ["n1", "n2", "n5"]), **WAITS | times)
    one = replace(opened(600)[SWITCH], fault_at=b.NOW - 640)
    back = fleet(job, "n9", down=(), tables={job.key: table}, incidents={SWITCH: one})
    assert [number for number, _ in incident_news(back, [], back.incidents).over] == ([1] if over else [])


@pytest.mark.parametrize(
    ("found_ago", "started_ago", "explained"), [(700, 9000, True), (900, 700, True), (300, 700, False)]
)
def test_a_gang_that_stopped_when_the_ports_did_is_explained_however_late_that_was_found(
    found_ago: float, started_ago: float, explained: bool
) -> None:
    """Also where the control plane was started again since: when it stopped is not known any more."""
    late = {SWITCH: replace(opened(found_ago)[SWITCH], fault_at=b.NOW - (980 if explained else found_ago))}
    seen = three_gangs(down=(), incidents=late, started_at=b.NOW - started_ago)
    expected = Signal.GANG_HUNG if explained else Signal.GANG_HUNG_TOGETHER
    assert [one.signal for one in detect(seen, CONFIG) if one.job is not None] == [expected] * 3
