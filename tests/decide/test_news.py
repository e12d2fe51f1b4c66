"""New decisions are recorded, and those that repeat what is recorded already are not."""

from __future__ import annotations

from dataclasses import replace

from tests import builders as b
from understudy_controlplane.decide.transitions import follow
from understudy_controlplane.decide.unrecorded_decisions import NOTED_TOGETHER_MIN, Recorded, noted_together
from understudy_controlplane.detect.silence import NEVER_HEARD
from understudy_controlplane.fleet.change import Change
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeRecord, NodeState
from understudy_controlplane.fleet.recovery import QuarantinePlan, StepName

NEW = Recorded.from_journal([])
FOUND = Finding(Signal.HARDWARE_FAULT, "xid.79", "n2", b.NOW, "fell off the bus")
HELD = Decision(10, "n2", Action.NOTHING, Because.PAUSED, "broken", finding=FOUND)
EVENT = replace(FOUND, signal=Signal.RECORDED, detail=HardwareDetail(boot_id="boot", part="gpu 3", is_event=True))
NOTED = Decision(61, "n2", Action.NOTHING, Because.RULE, "an event", finding=EVENT)
LIFTED = Decision(
    50, "n2", Action.NOTHING, Because.RULE, "resumed", NodeState.IN_SERVICE, replace(FOUND, signal=Signal.DRAIN_LIFTED)
)


def run(recorded: Recorded, *rounds: list[Decision]) -> list[list[Decision]]:
    """What each round records."""
    found: list[list[Decision]] = []
    for decisions in rounds:
        news = recorded.news(Change(one) for one in decisions)
        recorded = recorded.after(decisions, news, b.NOW)
        found.append([one.decision for one in news])
    return found


def test_a_decision_that_still_holds_is_recorded_once_and_again_after_it_did_not() -> None:
    assert run(NEW, [HELD], [HELD], [], [HELD]) == [[HELD], [], [], [HELD]]


def test_a_decision_that_a_round_with_a_failed_detector_did_not_make_is_not_recorded_again() -> None:
    """It would open an incident again that is over."""
    recorded = NEW.after([HELD], [], b.NOW).after([], [], b.NOW, whole=False)
    assert recorded.news([Change(HELD)]) == []
    assert recorded.after([], [], b.NOW).news([Change(HELD)]) == [Change(HELD)]


def test_another_cause_is_another_decision() -> None:
    other = replace(HELD, because=Because.FLEET_BUDGET)
    assert run(NEW, [HELD], [other], [HELD]) == [[HELD], [other], [HELD]]


def test_a_decision_about_an_event_is_recorded_once_however_often_the_event_is_seen() -> None:
    assert run(NEW, [NOTED], [], [NOTED]) == [[NOTED], [], []]


def test_what_holds_a_decision_about_an_event_back_is_recorded_again_after_something_else_did() -> None:
    """After a pause the newest decision about the node names what keeps it in service now."""
    held = replace(NOTED, row=10, because=Because.RULE_BUDGET)
    paused = replace(held, because=Because.PAUSED)
    assert run(NEW, [held], [held], [paused], [held]) == [[held], [], [paused], [held]]


def test_a_decision_about_an_event_that_no_round_makes_any_more_is_forgotten() -> None:
    """A control plane that runs for a year keeps the keys of weeks."""
    recorded, made = Recorded.from_journal([]), 0
    for week in range(52):
        boot = replace(EVENT, detail=HardwareDetail(boot_id=f"boot {week}", part="gpu 3", is_event=True))
        decisions = [NOTED, replace(NOTED, finding=boot)]
        news = recorded.news(Change(one) for one in decisions)
        made += len(news)
        recorded = recorded.after(decisions, news, b.NOW + week * 7 * 24 * 3600.0)
    assert made == 53, "NOTED once, although it holds for all the year"
    assert len(recorded.once | recorded.once_before) < 7


def test_a_decision_that_acts_or_changes_a_state_is_always_recorded() -> None:
    plan = QuarantinePlan(steps=(StepName.DRAIN_NODES,), nodes=("n2",), drain_reason="understudy: broken")
    acts = replace(HELD, action=Action.QUARANTINE, plan=plan)
    enters = replace(HELD, to_state=NodeState.UNKNOWN)
    assert run(NEW, [acts, enters], [acts, enters]) == [[acts, enters]] * 2


def test_a_decision_that_changes_a_record_otherwise_is_recorded() -> None:
    change = Change(HELD, NodeRecord("n2"), NodeRecord("n2", weight=7, weight_before=1))
    assert Recorded.from_journal([HELD.key]).news([change]) == [change]
    assert Recorded.from_journal([HELD.key]).news([follow(NodeRecord("n2"), HELD, b.NOW)]) == []


def test_a_new_process_does_not_record_again_what_the_one_before_it_recorded() -> None:
    known = Recorded.from_journal([HELD.key, NOTED.key])
    assert run(known, [HELD, NOTED], [], [HELD, NOTED]) == [[], [], [HELD]]


def test_events_of_a_node_are_news_again_after_the_node_was_cleared_and_those_of_others_are_not() -> None:
    other = replace(NOTED, subject="n22")
    assert run(NEW, [NOTED, other], [LIFTED, NOTED, other], [NOTED, other]) == [[NOTED, other], [LIFTED], [NOTED]]


def fallen(count: int, rule: str) -> list[Change]:
    names = [f"c{number}" for number in range(1, count + 1)]
    found = {name: Finding(Signal.SILENT, rule, name, b.NOW, "the agent is silent") for name in names}
    silent = [
        Decision(30, name, Action.NOTHING, Because.RULE, "silent", NodeState.UNKNOWN, one)
        for name, one in found.items()
    ]
    return [follow(NodeRecord(one.subject), one, b.NOW) for one in silent]


def test_a_fleet_that_never_had_an_agent_is_one_decision_and_every_node_is_unknown() -> None:
    noted = noted_together(fallen(2000, NEVER_HEARD))
    (decision,) = (one.decision for one in noted if one.noted)
    assert (decision.subject, decision.row) == ("fleet", 30)
    assert decision.reason == "2000 nodes (c1, c2, c3, c4, …): silent"
    assert len(decision.evidence.shown()["nodes"]) == 2000  # type: ignore[arg-type]  # a list of names
    changed = [one.after for one in noted if one.after is not None]
    assert {record.state for record in changed} == {NodeState.UNKNOWN}
    assert len(changed) == 2000


def test_a_few_nodes_and_agents_that_fell_silent_have_a_decision_each() -> None:
    for changes in (fallen(NOTED_TOGETHER_MIN - 1, NEVER_HEARD), fallen(100, "silence.agent")):
        assert noted_together(changes) == changes
