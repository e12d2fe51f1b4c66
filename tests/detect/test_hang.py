"""Hangs: when a gang that stands still is called one, and who is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests import builders as b
from understudy_controlplane.config import Hang, Mode
from understudy_controlplane.decide.hangs import questions
from understudy_controlplane.detect.hang import (
    ASK_SECONDS,
    hang,
    not_arrived,
    patience_seconds,
    stacks_shown,
    who_stands_apart,
)
from understudy_controlplane.fleet.finding import HANGS, Finding, HungRanks, Signal
from understudy_controlplane.fleet.incident import PORT_DOWN, OpenIncident
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    StepName,
    StepStatus,
)
from understudy_controlplane.fleet.snapshot import OperatorState, Snapshot
from understudy_controlplane.fleet.steps import Durations, StepTable
from understudy_controlplane.fleet.subject import Subject
from understudy_wire.hardware import Port
from understudy_wire.places import Place
from understudy_wire.ranks import (
    Entered,
    GroupPlace,
    NcclCommunicator,
    NcclSeen,
    ProcessNow,
    ProcessState,
    Recorder,
)

POLICY = Hang(seconds_min=60, factor=5, first_step_seconds=1800)
Where = tuple[int, bool]
"""Collective that a rank entered last, and whether it is inside."""

INSIDE, CAME_OUT = (120, True), (119, False)


def table(places: Sequence[Where], still_seconds: float = 100, pause_seconds: float = 2, **changes: Any) -> StepTable:
    """A gang that has finished twenty steps, the last of them `still_seconds` ago."""
    usual = b.step_table([[0.1] * 20] * len(places), advanced_at=b.NOW - still_seconds)
    values: dict[str, Any] = {
        "heard_since": b.NOW - 900,
        "longest_pause_seconds": pause_seconds,
        "sequences": np.array([sequence for sequence, _ in places], dtype=np.int64),
        "inside": np.array([inside for _, inside in places]),
        "furthest_collective": "all_reduce",
    }
    return replace(usual, **(values | changes))


def found(steps: StepTable, **changes: Any) -> list[Finding]:
    values: dict[str, Any] = {"jobs": [b.job()], "tables": {b.job().key: steps}}
    nodes: Sequence[Any] = changes.pop("nodes", ())
    snapshot: Snapshot = b.snapshot(*nodes, **(values | changes))
    return list(hang(snapshot, POLICY, b.config().silence))


WAITING = [INSIDE, INSIDE, CAME_OUT, INSIDE]


def test_the_rank_that_never_came_is_named_with_its_node() -> None:
    (finding,) = found(table(WAITING))
    assert (finding.signal, finding.node, finding.rule) == (Signal.GANG_HUNG, "n3", "hang.not_arrived")
    assert finding.job == b.job().key
    assert finding.evidence.shown()["named"] is True
    assert finding.evidence.shown()["ranks"] == [2]
    assert finding.detail == HungRanks(ranks=(2,))
    assert "rank 2 left collective 119 and did not enter all_reduce (120)" in finding.summary
    assert finding.at == b.NOW - 100


def test_a_rank_behind_a_switch_that_has_failed_is_not_to_blame() -> None:
    switch = Subject.of_domain("switch leaf0", PORT_DOWN)
    incident = OpenIncident(1, switch, PORT_DOWN, "domain_fault", "2 nodes …", b.NOW - 90, nodes=("n3", "n4"))
    port = Port("mlx5_0", 1, "InfiniBand", "DOWN", was_active=True, down_seconds=100.0)
    node = b.node("n3", ports=(port,))
    (finding,) = found(table(WAITING), nodes=[node], incidents={switch: incident})
    assert (finding.signal, finding.node) == (Signal.GANG_HUNG_UNNAMED, "")
    assert "the ports of switch leaf0 went down together" in finding.summary
    (finding,) = found(table(WAITING), nodes=[b.node("n3")], incidents={switch: incident})
    assert (finding.signal, finding.node) == (Signal.GANG_HUNG, "n3"), "its port is up"


@pytest.mark.parametrize(("since", "hangs"), [(61.0, False), (1799.0, False), (1801.0, True)])
def test_a_gang_whose_processes_have_just_started_again_has_its_time_for_the_first_step(
    since: float, hangs: bool
) -> None:
    """What is known of its ranks is of the launch before, until they report."""
    plan = AllocationSwapPlan(steps=(), drain_reason="", nodes=("n3",), job=b.job().key, submit_at=1, restart_count=0)
    steps = (RecoveryStep(0, StepName.AWAIT_PROCESSES, StepStatus.DONE, done_at=b.NOW - since),)
    recovery = Recovery(1, plan, RecoveryStatus.RUNNING, b.NOW - since - 30, steps)
    before = table(WAITING, still_seconds=since + 60, heard_since=b.NOW - since - 900)
    assert bool(found(before, recoveries=(recovery,), started_at=b.NOW - 4000)) is hangs


def test_what_ranks_did_before_they_were_started_again_names_none_of_them() -> None:
    plan = AllocationSwapPlan(steps=(), drain_reason="", nodes=("n3",), job=b.job().key, submit_at=1, restart_count=0)
    steps = (RecoveryStep(0, StepName.AWAIT_PROCESSES, StepStatus.DONE, done_at=b.NOW - 2000),)
    recovery = Recovery(1, plan, RecoveryStatus.RUNNING, b.NOW - 2030, steps)
    before = table(WAITING, still_seconds=2060, heard_since=b.NOW - 2900, durations=Durations(startup=20.0))
    (finding,) = found(before, recoveries=(recovery,), started_at=b.NOW - 4000)
    assert (finding.signal, finding.node) == (Signal.GANG_HUNG_UNNAMED, "")
    (finding,) = found(before, started_at=b.NOW - 4000)
    assert (finding.signal, finding.node) == (Signal.GANG_HUNG, "n3"), "of the launch that runs they do"


def test_several_nodes_that_never_came_are_each_named() -> None:
    places = [CAME_OUT, CAME_OUT, *[INSIDE] * 6]
    steps = table(places, nodes=("n1", "n2", "n3", "n4") * 2)
    assert [(one.node, one.evidence.shown()["ranks"]) for one in found(steps)] == [("n1", [0]), ("n2", [1])]
    assert {(one.subject, one.nodes) for one in found(steps)} == {(Subject.of_gang(b.job().key), ("n1", "n2"))}


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ([INSIDE] * 4, "the network"),
        ([(-1, False)] * 4, "do not report"),
        ([INSIDE, INSIDE, (-1, False), CAME_OUT], "some of its ranks do not report"),
        ([INSIDE, CAME_OUT, CAME_OUT, CAME_OUT], "no small group"),
        ([INSIDE, INSIDE, (119, True), INSIDE], "the network"),
        ([CAME_OUT] * 4, "no small group"),
    ],
    ids=[
        "all inside",
        "none reports",
        "one does not report",
        "most are behind",
        "still in the last one",
        "all outside",
    ],
)
def test_no_rank_is_named_without_evidence_and_nothing_follows_where_ranks_may_be_busy(
    places: list[Where], why: str
) -> None:
    (finding,) = found(table(places))
    waiting = why == "the network"
    assert (finding.signal, finding.evidence.shown()["named"]) == (
        Signal.GANG_HUNG_UNNAMED if waiting else Signal.GANG_STILL,
        False,
    )
    assert why in finding.summary
    assert (finding.node, finding.subject) == ("", Subject.of_gang(b.job().key)), "no node stands for the gang"
    assert finding.nodes == ("n1", "n2", "n3", "n4")


def test_a_launch_that_waits_for_ranks_that_never_connected_hangs() -> None:
    places = [(1, True), (1, True), (-1, False)]
    steps = table(places, advanced_at=0.0, heard_since=b.NOW - 2000, nodes=("n1", "n2", ""))
    (finding,) = found(steps, started_at=b.NOW - 5000)
    assert (finding.signal, finding.nodes) == (Signal.GANG_HUNG_UNNAMED, ("n1", "n2"))
    assert "never connected" in finding.summary


def test_a_table_without_collectives_names_no_rank() -> None:
    steps = b.step_table([[0.1] * 20] * 4, advanced_at=b.NOW - 2000)
    (finding,) = found(steps, started_at=b.NOW - 5000)
    assert finding.evidence.shown()["named"] is False


def test_ranks_are_compared_with_those_of_their_role() -> None:
    """Stages of a pipeline enter different collectives, and different numbers of them."""
    places = [(50, True), (50, True), (49, False), (400, True), (400, True), (400, True)]
    roles = ("stage0",) * 3 + ("stage1",) * 3
    assert not_arrived(table(places, roles=roles)) == [2]


@pytest.mark.parametrize(
    ("still_seconds", "pause_seconds", "hung"),
    [(59, 2, False), (61, 2, True), (100, 30, False), (149, 30, False), (151, 30, True), (1799, 900, False)],
)
def test_the_patience_is_learnt_from_the_gangs_own_pauses(
    still_seconds: float, pause_seconds: float, hung: bool
) -> None:
    assert bool(found(table(WAITING, still_seconds, pause_seconds))) is hung


def test_a_pause_learnt_to_be_very_long_is_not_waited_for_without_end() -> None:
    assert patience_seconds(table(WAITING, pause_seconds=4000), POLICY) == 1800


def test_the_first_step_may_take_long() -> None:
    starting = table([(3, True)] * 4, advanced_at=0.0, last_step=np.full(4, -1))
    assert not found(replace(starting, heard_since=b.NOW - 1700))
    assert found(replace(starting, heard_since=b.NOW - 1900), started_at=b.NOW - 5000)


def test_after_one_step_nothing_is_learnt_yet() -> None:
    assert not found(table(WAITING, still_seconds=300, pause_seconds=0))


def test_a_control_plane_that_has_just_started_knows_of_no_hang() -> None:
    assert not found(table(WAITING, still_seconds=3000), started_at=b.NOW - 50)
    assert found(table(WAITING, still_seconds=3000), started_at=b.NOW - 70)


def test_silent_agents_are_not_a_hang() -> None:
    silent = b.node("n4", heard_at=b.NOW - 30)
    assert not found(table(WAITING), nodes=[silent])
    assert not found(table(WAITING), nodes=[b.node("n4", heard_at=None)])


def test_a_silent_node_of_nobodys_gang_changes_nothing() -> None:
    assert found(table(WAITING), nodes=[b.node("n7", heard_at=b.NOW - 30)])


def test_a_job_that_runs_no_more_does_not_hang() -> None:
    over = b.job(state="COMPLETING")
    assert not found(table(WAITING), jobs=[over])


UNMARKED = [(-1, False)] * 4
KNOWN = Durations(startup=120.0, pause=30.0)


def signals(steps: StepTable, *nodes: Any, **changes: Any) -> list[tuple[Signal, str, str]]:
    found_now = found(steps, nodes=nodes, started_at=b.NOW - 100_000, **changes)
    return [(one.signal, one.rule, one.node) for one in found_now]


STILL = [(Signal.GANG_STILL, "hang.still", "")]
SILENT = [(Signal.GANG_HUNG_UNNAMED, "hang.silent", "")]


@pytest.mark.parametrize(
    ("still_seconds", "durations", "expected"),
    [
        (1700, KNOWN, STILL),
        (1900, KNOWN, SILENT),
        (1900, Durations(pause=600.0), STILL),  # a checkpoint once took ten minutes
        (3100, Durations(pause=600.0), SILENT),
        (1900, Durations(), SILENT),
    ],
)
def test_a_gang_without_marked_collectives_is_restarted_after_longer_than_it_ever_paused(
    still_seconds: float, durations: Durations, expected: list[tuple[Signal, str, str]]
) -> None:
    assert signals(table(UNMARKED, still_seconds, durations=durations)) == expected


def computing(name: str, watts: float) -> Any:
    return b.node(name, gpus=(b.gpu(0, power_watts=watts, power_limit_watts=700.0, utilization_percent=100),))


def test_while_one_of_its_gpus_works_it_gets_four_times_as_long() -> None:
    waiting = [computing(f"n{i}", 140.0) for i in range(2, 5)]
    evaluates = [computing("n1", 600.0), *waiting]
    for still_seconds, expected in ((1900, STILL), (7300, SILENT)):
        assert signals(table(UNMARKED, still_seconds, durations=KNOWN), *evaluates) == expected
    assert signals(table(UNMARKED, 1900, durations=KNOWN), computing("n1", 140.0), *waiting) == SILENT
    (finding,) = found(table(UNMARKED, 7300, durations=KNOWN), nodes=evaluates, started_at=b.NOW - 100_000)
    assert finding.evidence.shown()["ranks_working"] == [0]


@pytest.mark.parametrize("places", [WAITING, [INSIDE, INSIDE, (-1, False), INSIDE]], ids=["named", "not known"])
def test_so_it_does_where_its_ranks_wait_in_a_collective_for_one_whose_gpu_works(places: list[Where]) -> None:
    """Rank 2 evaluates, while DDP has taken the others into their next step."""
    waiting = [computing(f"n{i}", 140.0) for i in (1, 2, 4)]
    evaluates, waits = [computing("n3", 600.0), *waiting], [computing("n3", 140.0), *waiting]
    values: dict[str, Any] = {"started_at": b.NOW - 100_000, "nodes": evaluates}
    (still,) = found(table(places, 7100, durations=KNOWN), **values)
    assert (still.signal, still.rule, still.node) == (Signal.GANG_STILL, "hang.still", "")
    assert still.evidence.shown()["ranks_working"] == [2]
    (hung,) = found(table(places, 7300, durations=KNOWN), **values)
    assert hung.signal in HANGS
    (hung,) = found(table(places, 7100, durations=KNOWN), **(values | {"nodes": waits}))
    assert hung.signal in HANGS


@pytest.mark.parametrize(
    ("waits", "absent", "limit", "hangs"),
    [
        (26.0, 26.0, 70.0, True),  # a T4 that idles takes more than a third of its limit
        (29.0, 31.0, 72.0, True),  # an L4
        (57.0, 57.0, 150.0, True),  # an A10
        (150.0, 150.0, 300.0, True),  # a limit that the site has lowered
        (150.0, 290.0, 300.0, False),
        (35.0, 65.0, 70.0, False),
        (None, 600.0, 700.0, False),  # nothing to compare it with
        (60.0, 120.0, 700.0, True),  # more than who waits, and not much
    ],
)
def test_a_rank_works_where_its_gpu_takes_more_than_those_that_wait(
    waits: float | None, absent: float, limit: float, hangs: bool
) -> None:
    powers = ((1, waits), (2, waits), (3, absent), (4, waits))
    nodes = [b.node(f"n{i}", gpus=(b.gpu(power_watts=watts, power_limit_watts=limit),)) for i, watts in powers]
    (one,) = found(table(WAITING, 700), nodes=nodes)
    assert (one.signal is Signal.GANG_HUNG) is hangs
    assert one.evidence.shown().get("ranks_working", []) == ([] if hangs else [2])


def test_a_rank_whose_gpu_is_not_known_is_not_compared_with_others_of_its_node() -> None:
    """All of them may be that GPU."""
    gpus = tuple(b.gpu(index, power_watts=watts, power_limit_watts=700.0) for index, watts in enumerate((600.0, 140.0)))
    steps = table(WAITING, 700, nodes=("n1",) * 4, gpus=(None,) * 4)
    (one,) = found(steps, nodes=[b.node("n1", gpus=gpus)])
    assert one.signal is Signal.GANG_STILL


def test_before_the_first_step_they_do_not_wait_for_it_without_end() -> None:
    """No earlier start of the job is known."""
    nodes = [computing("n3", 600.0), *[computing(f"n{i}", 140.0) for i in (1, 2, 4)]]
    for waited, hangs in ((7100, False), (7300, True)):
        starting = table(WAITING, advanced_at=0.0, heard_since=b.NOW - waited, last_step=np.full(4, -1))
        (one,) = found(starting, nodes=nodes, started_at=b.NOW - 100_000)
        assert (one.signal in HANGS) is hangs, waited
        assert one.evidence.shown()["limit_seconds"] == 7200.0
    restarted = ((b.job().key, starting.place),)
    (one,) = found(starting, nodes=nodes, started_at=b.NOW - 100_000, hangs=restarted)
    assert one.evidence.shown()["limit_seconds"] == 14_400.0, "it may take longer each time"


@pytest.mark.parametrize(("durations", "expected"), [(Durations(), STILL), (KNOWN, SILENT)])
def test_a_start_is_judged_by_earlier_starts_of_the_job_alone(
    durations: Durations, expected: list[tuple[Signal, str, str]]
) -> None:
    starting = table(
        UNMARKED, advanced_at=0.0, heard_since=b.NOW - 20_000, last_step=np.full(4, -1), durations=durations
    )
    assert signals(starting) == expected


@pytest.mark.parametrize(
    ("in_section", "durations", "expected"),
    [
        (7000, KNOWN, []),
        (7300, KNOWN, SILENT),
        (2900, Durations(sections={"evaluation": 600.0}), []),
        (3100, Durations(sections={"evaluation": 600.0}), SILENT),
    ],
)
def test_a_section_has_its_own_time_limit(
    in_section: float, durations: Durations, expected: list[tuple[Signal, str, str]]
) -> None:
    steps = table(UNMARKED, in_section + 5, durations=durations, section="evaluation", section_since=b.NOW - in_section)
    assert signals(steps) == expected


def test_marked_ranks_that_wait_for_one_in_a_section_are_no_hang_either() -> None:
    assert not found(table(WAITING, 3000, section="evaluation", section_since=b.NOW - 2990), started_at=b.NOW - 9000)


def test_after_a_section_the_next_step_has_its_whole_time() -> None:
    assert not found(table(WAITING, 3000, left_section_at=b.NOW - 50), started_at=b.NOW - 9000)


def test_after_each_restart_at_the_same_step_it_has_twice_the_time() -> None:
    """An evaluation of 40 minutes without a section looks like a hang, once."""
    before = ((b.job().key, Place(4)), (b.job().key, Place(19)))  # it had come further than step 4 since
    for still_seconds, expected in ((3500, STILL), (3700, SILENT)):
        assert signals(table(UNMARKED, still_seconds, durations=KNOWN), hangs=before) == expected


def test_where_each_rank_stands_is_evidence_and_who_is_alone_comes_first() -> None:
    stacks = {0: "nccl.py:1 wait", 1: "loader.py:7 read < train.py:9 main", 2: "nccl.py:1 wait", 3: "nccl.py:1 wait"}
    (finding,) = found(table(UNMARKED, stacks=stacks))
    shown = finding.evidence.shown()["stacks"]
    assert shown == [
        {"count": 1, "ranks": [1], "stack": stacks[1]},
        {"count": 3, "ranks": [0, 2, 3], "stack": stacks[0]},
    ]
    assert finding.node == "", "evidence for people, and no witness"


def test_of_many_different_stacks_a_few_and_that_of_most_ranks_are_shown() -> None:
    stacks = {rank: f"train.py:{rank} main" if rank < 10 else "nccl.py:1 wait" for rank in range(100)}
    shown = stacks_shown(stacks)
    assert isinstance(shown, list)
    assert [one["count"] for one in shown if isinstance(one, dict)] == [1, 1, 1, 1, 90]


@pytest.mark.parametrize(
    ("stacks", "words"),
    [
        ({}, ""),
        (dict.fromkeys(range(4), "nccl.py:1 wait"), ""),
        (
            {**dict.fromkeys(range(7), "nccl.py:1 wait < train.py:9 main"), 7: "loader.py:7 read < train.py:8 main"},
            "rank 7 stands in loader.py:7 read, where 7 others stand in nccl.py:1 wait",
        ),
        ({0: "a.py:1 f", 1: "b.py:1 g"}, ""),
        ({rank: "nccl.py:1 wait" if rank < 8 else f"train.py:{rank} main" for rank in range(12)}, ""),
    ],
)
def test_ranks_that_stand_apart_are_named_where_nothing_else_shows_the_cause(
    stacks: dict[int, str], words: str
) -> None:
    assert who_stands_apart(stacks) == words
    (finding,) = found(table(UNMARKED, 1900, durations=KNOWN, stacks=stacks), started_at=b.NOW - 9000)
    assert finding.signal is Signal.GANG_HUNG_UNNAMED
    assert finding.summary.endswith(words)
    assert finding.node == ""


# -- what the ranks show before a restart ------------------------------------------------------------------------------

IDLE = ProcessNow(ProcessState.SLEEPS, 600.0)
INSIDE_GLOO = Recorder([GroupPlace("0:default_pg", 120, 120, [Entered(120, "all_reduce [[4]] Float")])], still=True)
BEFORE_GLOO = Recorder([GroupPlace("0:default_pg", 119)], still=True)


def seen(*recorders: Recorder | None, over: float, **changes: Any) -> list[Finding]:
    """A gang that is `over` seconds beyond the time after which it is restarted."""
    steps = table(UNMARKED, still_seconds=1800 + over, heard_since=b.NOW - 9000, durations=Durations(pause=2.0))
    at_rest = {rank: (recorder, IDLE) for rank, recorder in enumerate(recorders)}
    return found(replace(steps, at_rest=at_rest), started_at=b.NOW - 9000, **changes)


def test_before_a_restart_the_ranks_are_asked_for_a_bounded_time() -> None:
    assert [one.signal for one in seen(None, None, None, None, over=-1)] == [Signal.GANG_STILL]
    (asked,) = seen(None, None, None, None, over=5)
    assert (asked.signal, asked.rule, asked.node) == (Signal.GANG_ASKED, "hang.asked", "")
    assert ASK_SECONDS <= 60, "attribution never delays a restart for longer"
    (hung,) = seen(None, None, None, None, over=ASK_SECONDS + 1)
    assert (hung.signal, hung.rule) == (Signal.GANG_HUNG_UNNAMED, "hang.silent")
    (question,) = questions(b.snapshot(jobs=[b.job()], tables={b.job().key: table(UNMARKED)}), [asked, hung])
    assert (question.job_id, question.user_id) == (b.job().key.job_id, b.job().slurm.user_id)
    assert question.nccl_ranks == (0, 2, 3), "three nodes ask NCCL, however many the gang has"


def test_the_rank_that_they_wait_for_is_named_as_soon_as_all_have_answered() -> None:
    (hung,) = seen(INSIDE_GLOO, INSIDE_GLOO, BEFORE_GLOO, INSIDE_GLOO, over=5)
    assert (hung.signal, hung.rule, hung.node, hung.nodes) == (Signal.GANG_HUNG, "hang.shown", "n3", ("n3",))
    assert hung.evidence.shown()["cause"] == "not_entered"
    assert hung.detail == HungRanks(ranks=(2,))
    assert "rank 2 did not enter the collective of group 0:default_pg in which the others wait" in hung.summary


def test_where_only_a_small_group_can_be_named_a_person_learns_how_to_replace_it_as_a_whole() -> None:
    pair = GroupPlace("1:pair", 8, 8, [Entered(8, "all_reduce [[4]] Float")])
    inside = Recorder([GroupPlace("0:default_pg", 119), pair], still=True)
    at_rest = {rank: (inside if rank < 2 else INSIDE_GLOO, IDLE) for rank in range(6)}
    steps = table(
        [(-1, False)] * 6, still_seconds=1805, heard_since=b.NOW - 9000, durations=Durations(pause=2.0), at_rest=at_rest
    )
    (hung,) = found(steps, started_at=b.NOW - 9000)
    assert (hung.signal, hung.node) == (Signal.GANG_HUNG_UNNAMED, "")
    assert hung.summary.endswith(
        "(ranks 0, 1); what it takes to replace its 2 nodes: `understudy job move 7 REASON --off n[1-2] --dry-run`"
    )
    (whole,) = seen(INSIDE_GLOO, INSIDE_GLOO, INSIDE_GLOO, INSIDE_GLOO, over=5)
    assert "understudy job move" not in whole.summary


def test_no_answer_shortens_the_time_that_a_gang_has() -> None:
    """A gang that only stands still may work: whatever its ranks show, it is not restarted earlier than without."""
    (still,) = seen(INSIDE_GLOO, INSIDE_GLOO, BEFORE_GLOO, INSIDE_GLOO, over=-1)
    assert still.signal is Signal.GANG_STILL


def test_what_nccl_answered_counts_where_the_ranks_show_nothing() -> None:
    nccl = NcclSeen("2.29.2", 1, [NcclCommunicator("77", 4, behind=[2], behind_count=1)], still=True)
    at_rest = dict.fromkeys(range(4), (None, IDLE))
    steps = table(
        UNMARKED, still_seconds=1800 + ASK_SECONDS + 1, heard_since=b.NOW - 9000, durations=Durations(pause=2.0)
    )
    steps = replace(steps, at_rest=at_rest, nccl={0: nccl})
    (hung,) = found(steps, started_at=b.NOW - 9000)
    assert (hung.signal, hung.node) == (Signal.GANG_HUNG_UNNAMED, "")
    assert "NCCL: rank 2 began fewer operations" in hung.summary


def test_a_mistake_of_the_program_makes_no_node_a_suspect() -> None:
    other = Recorder([GroupPlace("0:default_pg", 120, 120, [Entered(120, "all_reduce [[5]] Float")])], still=True)
    (hung,) = seen(INSIDE_GLOO, INSIDE_GLOO, other, INSIDE_GLOO, over=5)
    assert (hung.signal, hung.node) == (Signal.GANG_HUNG_UNNAMED, "")
    assert "a mistake of the program" in hung.summary


def test_a_gang_whose_marks_name_the_rank_is_restarted_at_once() -> None:
    (marked,) = found(table(WAITING, at_rest=dict.fromkeys(range(4), (None, IDLE))))
    assert (marked.signal, marked.node) == (Signal.GANG_HUNG, "n3")
    (asked,) = found(table([INSIDE] * 4, still_seconds=70, at_rest=dict.fromkeys(range(4), (None, IDLE))))
    assert asked.signal is Signal.GANG_ASKED, "all are inside: their recorders may show why"


def test_nothing_is_asked_in_mode_observe_or_of_a_job_that_is_not_managed() -> None:
    (hung,) = seen(None, None, None, None, over=5, mode=Mode.OBSERVE)
    assert hung.signal is Signal.GANG_HUNG_UNNAMED
    (hung,) = seen(None, None, None, None, over=5, part_modes={"n4": Mode.OBSERVE})
    assert hung.signal is Signal.GANG_HUNG_UNNAMED, "a part of the fleet acts, and the gang is in another one"
    (hung,) = seen(None, None, None, None, over=5, operator=OperatorState(paused_jobs={b.job().key: "debugging"}))
    assert hung.signal is Signal.GANG_HUNG_UNNAMED, "no restart follows"
    (hung,) = seen(None, None, None, None, over=5, jobs=[b.job(managed=False)])
    assert hung.signal is Signal.GANG_HUNG_UNNAMED


def test_time_in_which_no_step_could_arrive_does_not_count() -> None:
    steps = table(UNMARKED, still_seconds=3000)
    assert [one.signal for one in found(steps, started_at=b.NOW - 9000)] == [Signal.GANG_HUNG_UNNAMED]
    lost = replace(steps, unheard_seconds=2000.0)
    assert [one.signal for one in found(lost, started_at=b.NOW - 9000)] in ([], [Signal.GANG_STILL])
