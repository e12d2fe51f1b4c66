"""What the pages show, from records alone: what needs a person, the timeline of a recovery, step times, the story."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests import builders as b
from tests.figures.test_advice import RECORDED
from understudy_controlplane.api.needs import NeedRecord
from understudy_controlplane.api.requests import RequestState
from understudy_controlplane.api.status import LoopState, SlurmState, SparePool, Status
from understudy_controlplane.config import Mode
from understudy_controlplane.dashboard import (
    attention,
    budgets,
    heat,
    pace,
    page,
    situation,
    steps_to_act,
    story,
    timeline,
)
from understudy_controlplane.fleet.job import Attempt, Save
from understudy_controlplane.fleet.need import NeedKind
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import RequestStatus, Verb
from understudy_controlplane.fleet.recovery import (
    QuarantinePlan,
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    StepName,
    StepStatus,
)
from understudy_controlplane.fleet.steps import StepTable
from understudy_controlplane.fleet.topology import Domain, DomainKind, Topology
from understudy_controlplane.live.pulse import SlurmReading

HOSTILE = '"><script>alert(1)</script>'


def recovery(number: int, status: RecoveryStatus, ended_at: float | None = None, outcome: str = "") -> Recovery:
    plan = QuarantinePlan(steps=(StepName.DRAIN_NODES,), nodes=("n3",), drain_reason="x")
    return Recovery(number, plan, status, b.NOW - 10, (), ended_at=ended_at, outcome=outcome)


# -- step time over days ---------------------------------------------------------------------------------------------


def attempt(launch: int, running_at: float, last: tuple[float, int] | None, restore_step: int | None = None) -> Any:
    at, step = last or (None, None)
    return {
        "restart_count": 0, "launch": launch, "running_at": running_at, "restore_step": restore_step,
        "last_step": step, "last_step_at": at, "count_from": 0,
    }  # fmt: skip


def saved(launch: int, step: int, at: float) -> Save:
    return Save(Attempt(0, launch), step, at)


def test_step_time_is_what_lies_between_checkpoints_and_begins_again_with_each_attempt() -> None:
    attempts = [attempt(0, 0.0, (500.0, 249), 0), attempt(1, 600.0, (1100.0, 399), 200)]
    points = [saved(0, 100, 200.0), saved(0, 200, 400.0), saved(1, 300, 900.0)]
    moved = {"id": 7, "fault_at": 510.0, "decided_at": 511.0, "reason": HOSTILE, "kind": "pool"}
    early = moved | {"id": 6, "fault_at": -1.0}
    found = pace.pace(attempts, points, [moved, early])
    assert found is not None
    assert [(one.begin, one.end, one.seconds, one.is_first) for one in found.stretches] == [
        (200.0, 400.0, 2.0, True),
        (400.0, 500.0, 2.0, False),
        (900.0, 1100.0, 2.0, True),
    ]
    assert [one[1] for one in found.recovered] == [7], "one was before the first attempt"
    drawing = pace.drawn(found)
    assert "<script>" not in drawing and drawing.count('class="moved"') == 1
    assert drawing.count("M") >= 2 + len(found.saved)
    assert found.words == "Step time over 18 min: 2 s to 2 s; 1 recovery, 3 checkpoints"


def test_without_checkpoints_an_attempt_has_its_mean_and_without_steps_there_is_none() -> None:
    found = pace.pace([attempt(0, 0.0, (100.0, 9))], [], [])
    assert found is not None and [one.seconds for one in found.stretches] == [10.0]
    assert pace.pace([attempt(0, 0.0, None)], [saved(0, 5, 9.0)], []) is not None
    assert pace.pace([attempt(0, 0.0, None)], [], []) is None


def test_weeks_of_checkpoints_are_drawn_in_a_bounded_number_of_pieces() -> None:
    points = [saved(0, 10 * number, 60.0 * number) for number in range(1, 20_000)]
    found = pace.pace([attempt(0, 0.0, (2e6, 200_000))], points, [])
    assert found is not None and len(found.stretches) <= pace.STRETCHES_MAX + 1
    assert {round(one.seconds) for one in found.stretches[:-1]} == {6}
    assert len(found.saved) <= pace.SAVED_MAX + 1
    assert found.words.endswith("19999 checkpoints")


@pytest.mark.parametrize("attempts", [300, 3000])
def test_many_attempts_are_drawn_in_a_bounded_number_of_pieces(attempts: int) -> None:
    points = [saved(one, 10 * number, 6e3 * one + 60.0 * number) for one in range(attempts) for number in range(1, 20)]
    found = pace.pace([attempt(one, 6e3 * one, None) for one in range(attempts)], points, [])
    assert found is not None and len(found.stretches) <= 2 * pace.STRETCHES_MAX + 1
    assert len(pace.drawn(found)) < 40_000


# -- what needs a person --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "subject", "page"),
    [
        (NeedKind.GANG_STAYS, "job 7", "jobs/7"),
        (NeedKind.APPROVAL, "recovery 3", "recoveries/3"),
        (NeedKind.INCIDENT, "incident 9", "incidents/9"),
        (NeedKind.NODE_OUT, "n8", "nodes/n8"),
        (NeedKind.BREAKER, "fleet", "guards"),
        (NeedKind.ONLY_OBSERVED, "fleet", "guards#observed"),
        (NeedKind.HELD_BACK, "job 7", "jobs/7"),
        (NeedKind.POOL_SHORT, "spares", ""),
        (NeedKind.CONTROL_PLANE, "control plane", ""),
    ],
)
def test_what_needs_a_person_leads_to_the_page_that_shows_it(kind: NeedKind, subject: str, page: str) -> None:
    need = NeedRecord(kind, subject, b.NOW, "why", "command", urgent=True)
    assert attention.items([need]) == [attention.Item(need, page)]


@pytest.mark.parametrize(
    ("state", "is_spare", "chosen", "verbs"),
    [
        (NodeState.IN_SERVICE, False, None, ["add"]),
        (NodeState.IN_SERVICE, True, None, ["add", "remove"]),
        (NodeState.IN_SERVICE, True, True, ["remove", "forget"]),
        (NodeState.IN_SERVICE, False, False, ["add", "forget"]),
        (NodeState.RETIRED, False, None, []),
    ],
)
def test_a_node_has_the_buttons_of_spares_that_change_something(
    state: NodeState, is_spare: bool, chosen: bool | None, verbs: list[str]
) -> None:
    view = replace(b.node("n1", state), is_spare=is_spare)
    assert [verb for verb, *_ in situation.spare_actions(view, chosen)] == verbs


# -- a recovery as a timeline ---------------------------------------------------------------------------------------


def swap(*steps: RecoveryStep, **values: Any) -> dict[str, Any]:
    times = {"fault_at": 100.0, "detected_at": 100.3, "decided_at": 100.4, "ended_at": None}
    return {**times, "steps": steps, **values}


def test_bars_are_milliseconds_since_the_fault() -> None:
    drain = RecoveryStep(0, StepName.DRAIN_NODES, StepStatus.DONE, 1, 100.5, 100.75)
    requeue = RecoveryStep(1, StepName.REQUEUE_JOB, StepStatus.INTENDED, 2, 100.8)
    start = RecoveryStep(2, StepName.START_JOB)
    found = timeline.bars(swap(drain, requeue, start), now=102.0)
    assert [(one.name, round(one.begin_ms), round(one.end_ms), one.kind) for one in found] == [
        ("detect", 0, 300, "detect"),
        ("decide", 300, 400, "decide"),
        ("drain nodes", 500, 750, "done"),
        ("requeue job", 800, 2000, "running"),
        ("start job", 2000, 2000, "planned"),
    ]
    assert [one.words for one in found[2:]] == ["0.25 s", "1.2 s so far, attempt 2", "not begun"]


def test_a_step_whose_effect_was_there_already_begins_when_the_one_before_ended() -> None:
    drain = RecoveryStep(0, StepName.DRAIN_NODES, StepStatus.DONE, 1, 100.5, 100.75)
    seen = RecoveryStep(1, StepName.REQUEUE_JOB, StepStatus.DONE, 0, None, 100.9)
    last = timeline.bars(swap(drain, seen), now=101.0)[-1]
    assert (round(last.begin_ms), round(last.end_ms)) == (750, 900)


def test_the_time_to_a_communicator_is_a_bar_of_its_own_where_it_is_known() -> None:
    running = RecoveryStep(0, StepName.AWAIT_PROCESSES, StepStatus.DONE, 0, None, 101.0, "2 ranks")
    first = RecoveryStep(1, StepName.AWAIT_FIRST_STEP, StepStatus.DONE, 0, None, 109.0, "step 20", 103.0)
    found = timeline.bars(swap(running, first), now=110.0)[-2:]
    assert [(one.name, one.begin_ms, one.end_ms, one.detail) for one in found] == [
        ("communicator", 1000, 3000, ""),
        ("await first step", 3000, 9000, "step 20"),
    ]
    unknown = timeline.bars(swap(running, replace(first, communicator_at=None)), now=110.0)[-2:]
    assert [(one.name, one.end_ms) for one in unknown] == [("await processes", 1000), ("await first step", 9000)]


def test_a_failed_step_ends_with_its_recovery() -> None:
    failed = RecoveryStep(0, StepName.DRAIN_NODES, StepStatus.FAILED, 3, 100.5)
    last = timeline.bars(swap(failed, ended_at=103.0), now=999.0)[-1]
    assert (round(last.end_ms), last.kind, last.words) == (3000, "failed", "2.5 s, failed, attempt 3")


def test_a_clock_that_was_set_draws_nothing_before_the_fault() -> None:
    early = RecoveryStep(0, StepName.DRAIN_NODES, StepStatus.DONE, 1, 99.0, 99.5)
    assert all(0 <= one.begin_ms <= one.end_ms for one in timeline.bars(swap(early, detected_at=98.0), now=101.0))


def test_the_drawing_says_in_words_what_it_shows() -> None:
    drain = RecoveryStep(0, StepName.DRAIN_NODES, StepStatus.DONE, 1, 100.5, 100.75)
    assert "drain nodes 0.25 s" in timeline.drawn(timeline.bars(swap(drain), now=101.0))


@pytest.mark.parametrize("total", [0.5, 7.0, 90.0, 4211.0, 61_000.0, 9e6])
def test_ticks_are_few_and_round(total: float) -> None:
    found = timeline.ticks_of(total)
    assert 1 <= len(found) <= 8
    assert found[0] == 0
    assert found[-1] <= total


@pytest.mark.parametrize("total", [340.0, 3400.0, 13_300.0, 130_000.0])
def test_ticks_have_one_unit(total: float) -> None:
    drawn = str(timeline.drawn([timeline.Bar("start job", 0.0, total, "done")]))
    assert {one.rpartition(" ")[2] for one in re.findall(r'class="axis"[^>]*>([^<]+)<', drawn)} - {"fault"} == {"s"}


# -- step times -----------------------------------------------------------------------------------------------------


def table(times: Any, nodes: tuple[str, ...] | None = None) -> StepTable:
    seconds = np.array(times, np.float32)
    ranks = len(seconds)
    names = nodes or tuple(f"n{rank // 8 + 1}" for rank in range(ranks))
    return StepTable(
        b.job().key, Attempt(0), 40, seconds, np.full(ranks, 0), names, ("",) * ranks, (None,) * ranks, b.NOW
    )


def test_a_rank_that_is_slower_than_the_others_is_named() -> None:
    times = np.full((4, 10), 0.1)
    times[2] = 0.18
    found = heat.heat(table(times))
    assert found is not None
    assert [(one.name, one.node, round(one.ratio, 2)) for one in found.slow] == [("rank 2", "n1", 1.8)]
    assert (found.levels[2] == 5).all()
    assert (found.levels[0] == 1).all()
    assert "rank 2" in heat.drawn(found)


def test_a_large_gang_is_shown_by_node_with_its_slowest_rank() -> None:
    times = np.full((80, 10), 0.1)
    times[43] = 0.125
    found = heat.heat(table(times))
    assert found is not None
    assert (found.rows, [one.name for one in found.slow]) == (tuple(f"n{number}" for number in range(1, 11)), ["n6"])


def test_steps_that_no_rank_has_reported_leave_a_gap_and_no_warning() -> None:
    times = np.full((2, 5), 0.1)
    times[:, :2] = np.nan
    times[1, 3] = np.nan
    found = heat.heat(table(times))
    assert found is not None
    assert (found.first_step, found.levels.tolist()) == (42, [[1, 1, 1], [1, -1, 1]])


def test_without_step_times_there_is_no_drawing() -> None:
    assert heat.heat(table(np.full((2, 3), np.nan))) is None
    assert heat.heat(table(np.empty((0, 0)))) is None


# -- the story ------------------------------------------------------------------------------------------------------


def test_the_story_is_one_list_newest_first_with_pages_behind_it() -> None:
    incident = {"id": 1, "opened_at": 10.0, "closed_at": 50.0, "summary": "Xid 79", "outcome": "back in service"}
    moved = {"id": 9, "kind": "pool", "nodes": ["n3"], "decided_at": 11.0, "ended_at": 15.0, "status": "succeeded"}
    decided = {"at": 10.5, "recovery": 9, "incident": 1, "because": "rule", "action": "quarantine", "reason": "Xid 79"}
    asked = RequestState(2, Verb.HOLD, "n3", "ada", "cables", 40.0, None, RequestStatus.DONE, "", None, None)
    found = story.entries([incident], [moved | {"outcome": ""}], [asked], [decided])
    assert [(one.at, one.kind, one.page) for one in found] == [
        (50.0, "incident", "incidents/1"),
        (40.0, "request", ""),
        (15.0, "recovery", "recoveries/9"),
        (11.0, "recovery", "recoveries/9"),
        (10.5, "decision", "recoveries/9"),
        (10.0, "incident", "incidents/1"),
    ]


# -- escaping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shown", [page.with_code(HOSTILE), page.with_code(f"`{HOSTILE}`"), page.with_code(f"a ` {HOSTILE}")]
)
def test_text_with_commands_is_escaped(shown: str) -> None:
    assert "<script" not in shown


def test_every_template_escapes() -> None:
    made = page.environment()
    for name in made.list_templates():
        assert made.autoescape is True
        assert "| safe" not in (page.FOLDER / "templates" / name).read_text(), name


def test_drawings_escape_the_names_of_nodes() -> None:
    times = np.full((2, 5), 0.1)
    times[1] = 0.2
    found = heat.heat(table(times, nodes=(HOSTILE, HOSTILE)))
    assert found is not None
    assert "<script" not in heat.drawn(found)


def test_evidence_is_shown_as_text() -> None:
    shown = page.environment().get_template("ui.html").module.evidence({"line": HOSTILE})  # type: ignore[attr-defined]
    assert "<script" not in shown
    assert "script" in shown


# -- budgets, and what is missing before it may act -----------------------------------------------------------------


def test_budgets_show_what_the_guards_count() -> None:
    """A node in manual repair waits for a person; it does not count as quarantined beside."""
    snapshot = b.snapshot(
        b.node("n1", NodeState.QUARANTINED),
        b.node("n2", NodeState.MANUAL_REPAIR),
        quarantined_at={"n1": (b.NOW - 60,), "n2": (b.NOW - 7200,)},
    )
    found = budgets.budgets(snapshot, b.config())
    assert all(one.limit >= 1 for one in found)
    assert [(one.setting, one.used, [*one.nodes]) for one in found] == [
        ("guards.quarantined_nodes_max", 1, ["n1"]),
        ("", 1, ["n2"]),
        ("", 1, ["n1"]),
        ("guards.breaker_nodes_max", 1, ["n1"]),
    ]


GOOD_SLURM = SlurmReading(settings={**RECORDED, "Prolog": "/opt/understudy/hooks/prolog"}, version=(22, 5))


def status(**values: Any) -> Status:
    known: dict[str, Any] = {
        "cluster": b.CLUSTER,
        "mode": Mode.OBSERVE,
        "mode_configured": Mode.OBSERVE,
        "mode_limit": "",
        "mode_limit_until": None,
        "mode_nodes": {},
        "paused": "",
        "paused_until": None,
        "paused_jobs": [],
        "breaker": "",
        "slurm": SlurmState(b.NOW, ""),
        "loop": LoopState(b.NOW, 0.1, ""),
        "lead": None,
        "nodes": {},
        "spares": SparePool(0, 0),
        "incidents_open": 0,
        "recoveries_running": 0,
        "needs": [],
        "needs_count": 0,
        "problems": [],
    }
    return Status(**(known | values))


def test_a_site_that_only_observes_sees_what_is_missing_with_a_command_for_each() -> None:
    snapshot = b.snapshot(b.node("n1"), b.node("n2", heard_at=None), jobs=[b.job(nodes=["n1"])])
    found = steps_to_act.to_do(snapshot, status(), b.config(validation={"enabled": True}), [], SlurmReading())
    assert {one.what: one.done for one in found} == {
        "Slurm is read": True,
        "no setting of Slurm is dangerous": False,
        "Slurm calls the hooks (optional)": False,
        "every node has an agent": False,
        "racks or switches are known": False,
        "spares are wanted": False,
        "nodes are validated before they return": True,
        "a person is notified": False,
        "a gang asks for Understudy": True,
        "people agree with what it would have done": False,
        "the configured mode is approve or act": False,
    }
    assert all(one.command for one in found)
    assert all(one.command for one in steps_to_act.watched(snapshot))
    assert [one.count for one in steps_to_act.watched(snapshot)][:2] == ["8 nodes", "7 agents"]


def test_what_doctor_finds_dangerous_in_slurm_is_named() -> None:
    slurm = SlurmReading(settings={**GOOD_SLURM.settings, "ReturnToService": "2"}, version=(22, 5))
    found = steps_to_act.to_do(b.snapshot(b.node("n1")), status(), b.config(), [], slurm)
    (one,) = [one for one in found if one.what == "no setting of Slurm is dangerous"]
    assert (one.done, one.found.split(";")[0], one.command) == (False, "ReturnToService (S6)", "understudy doctor")


RECEIVERS = {"oncall": {"kind": "apprise", "url_file": "/etc/understudy/oncall.url"}}


def test_what_is_missing_in_the_configuration_is_shown_with_the_command_that_brings_it_into_force() -> None:
    found = {
        one.what: one for one in steps_to_act.to_do(b.snapshot(b.node("n1")), status(), b.config(), [], GOOD_SLURM)
    }
    mode, validation = found["the configured mode is approve or act"], found["nodes are validated before they return"]
    assert 'mode = "observe"; set approve' in mode.found
    assert "set validation.enabled = true" in validation.found
    assert {one.command for one in (mode, validation)} == {
        "understudy check-config && systemctl reload understudy-controlplane"
    }


def test_a_site_that_is_ready_has_nothing_to_do() -> None:
    ready = status(mode_configured=Mode.ACT, spares=SparePool(1, 1))
    topology = Topology((Domain(DomainKind.RACK, "r1", ("n1",)),))
    snapshot = b.snapshot(b.node("n1"), jobs=[b.job(nodes=["n1"])], topology=topology)
    found = steps_to_act.to_do(
        snapshot,
        ready,
        b.config(validation={"enabled": True}, notify={"receivers": RECEIVERS}),
        ["xid.79"],
        GOOD_SLURM,
    )
    assert [one.what for one in found if not one.done] == []
