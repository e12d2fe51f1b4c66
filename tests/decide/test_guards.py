"""Guards: not now, not so many, not by this rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests import builders as b
from understudy_controlplane.config import Config
from understudy_controlplane.decide import guards, plans
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import TAKES_OUT, Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gpu import GpusReadable
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.node import NodeRecord, NodeState, NodeView, ValidationOrigin
from understudy_controlplane.fleet.operator import BY_CONTROL_PLANE, MoveRequest, Request, Verb
from understudy_controlplane.fleet.recovery import (
    PoolSwapPlan,
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    RepairAttempt,
    StepName,
    TakeBackPlan,
)
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.suspicion import SuspicionCause


def decided(snapshot: Snapshot, config: Config) -> list[Decision]:
    return decide(snapshot, detect(snapshot, config), config)


def broken(name: str, xid: int = 79) -> NodeView:
    return b.node(name, events=(b.xid_event(name, xid),))


def fleet(count: int, **values: Any) -> dict[str, NodeView]:
    return {f"n{i}": b.node(f"n{i}") for i in range(1, count + 1)}


def snapshot_of(nodes: dict[str, NodeView], **values: Any) -> Snapshot:
    return b.snapshot(*nodes.values(), **values)


def quarantined(decisions: list[Decision]) -> list[str]:
    return [one.subject for one in decisions if one.action is Action.QUARANTINE]


WIDE: dict[str, Any] = {"quarantined_nodes_max": 1000, "quarantines_per_hour_max": 1000, "domain_share_max": 1.0}


@pytest.mark.parametrize(("count", "limit"), [(8, 3), (100, 10), (1000, 10)])
def test_a_wrong_rule_that_hits_every_node_opens_the_breaker(count: int, limit: int) -> None:
    nodes = {name: broken(name) for name in fleet(count)}
    decisions = decided(snapshot_of(nodes), b.config(guards=WIDE))
    assert len(quarantined(decisions)) == limit
    (breaker,) = [one for one in decisions if one.action is Action.OPEN_BREAKER]
    assert f"{count - limit} more to be quarantined" in breaker.reason
    assert sum(one.because is Because.BREAKER for one in decisions) == count - limit


@pytest.mark.parametrize(("guards", "let_through"), [({}, 10), ({"quarantined_nodes_max": 4}, 4)])
def test_a_wrong_rule_opens_it_also_where_a_budget_is_smaller(guards: dict[str, int], let_through: int) -> None:
    """What a budget holds back counts, too."""
    nodes = {name: broken(name) for name in fleet(100)}
    domains = {"partition train": tuple(nodes)}
    decisions = decided(snapshot_of(nodes, domains=domains), b.config(guards=guards))
    assert len(quarantined(decisions)) == let_through
    (breaker,) = [one for one in decisions if one.action is Action.OPEN_BREAKER]
    assert f"{100 - let_through} more to be quarantined" in breaker.reason


def test_what_a_budget_has_held_back_for_long_opens_no_breaker() -> None:
    nodes = fleet(100) | {f"n{i}": b.node(f"n{i}", NodeState.QUARANTINED) for i in range(1, 5)}
    nodes |= {f"n{i}": broken(f"n{i}") for i in range(5, 16)}
    for age, opens in ((700, False), (500, True)):
        held = {
            (node := Subject.of_node(f"n{i}")): OpenIncident(i, node, "xid.79", "hardware_fault", "broken", b.NOW - age)
            for i in range(5, 16)
        }
        decisions = decided(snapshot_of(nodes, incidents=held), b.config(guards={"quarantined_nodes_max": 4}))
        assert {one.because for one in decisions if one.row == 10} == {Because.FLEET_BUDGET}
        assert any(one.action is Action.OPEN_BREAKER for one in decisions) is opens


def test_one_node_again_and_again_opens_no_breaker() -> None:
    times = {"n1": tuple(b.NOW - 10 * i for i in range(1, 20))}
    decisions = decided(
        b.snapshot(broken("n2"), quarantined_at=times), b.config(guards={"quarantines_per_hour_min": 20})
    )
    assert quarantined(decisions) == ["n2"]


def test_nodes_that_are_back_in_service_count_once_for_its_limit() -> None:
    nodes = {f"n{i}": b.node(f"n{i}") for i in range(1, 17)}
    returned = {f"n{i}": (b.NOW - 300,) for i in range(1, 5)}
    limits = [guards.breaker_limit(snapshot_of(nodes, quarantined_at=one), b.config()) for one in ({}, returned)]
    assert limits == [4, 4]


def test_the_window_moves_on() -> None:
    config = b.config(guards=WIDE | {"breaker_window_seconds": 600})
    lately = {f"n{i}": (b.NOW - 300,) for i in (3, 4, 5)}
    long_ago = {f"n{i}": (b.NOW - 700,) for i in (3, 4, 5)}
    assert quarantined(decided(b.snapshot(broken("n2"), quarantined_at=lately), config)) == []
    assert quarantined(decided(b.snapshot(broken("n2"), quarantined_at=long_ago), config)) == ["n2"]


def test_what_was_before_its_reset_counts_no_more() -> None:
    lately = {f"n{i}": (b.NOW - 300,) for i in (3, 4, 5)}
    snapshot = b.snapshot(broken("n2"), quarantined_at=lately, breaker_reset_at=b.NOW - 100)
    assert quarantined(decided(snapshot, b.config(guards=WIDE))) == ["n2"]


def test_nothing_is_drained_while_it_is_open_and_it_is_not_opened_again() -> None:
    decisions = decided(b.snapshot(broken("n2"), breaker="eight at once"), b.config())
    assert [(one.action, one.because) for one in decisions] == [(Action.NOTHING, Because.BREAKER)]
    assert "eight at once" in decisions[0].reason


def test_a_fleet_that_is_mostly_out_of_service_bears_fewer() -> None:
    """The share is one of the nodes that are well."""
    nodes = fleet(40) | {f"n{i}": b.node(f"n{i}", NodeState.RETIRED) for i in range(1, 31)}
    nodes |= {f"n{i}": broken(f"n{i}") for i in range(31, 41)}
    config = b.config(guards=WIDE | {"breaker_nodes_max": 100})
    assert len(quarantined(decided(snapshot_of(nodes), config))) == 3
    whole = fleet(40) | {f"n{i}": broken(f"n{i}") for i in range(1, 41)}
    assert len(quarantined(decided(snapshot_of(whole), config))) == 10


def test_a_rule_that_only_observes_drains_no_node_and_is_recorded() -> None:
    config = b.config(guards={"observe_rules": ["xid.7"]})
    (decision,) = decided(b.snapshot(broken("n2")), config)
    assert (decision.action, decision.because) == (Action.NOTHING, Because.RULE_DRY_RUN)
    assert 'observe_rules has "xid.7"' in decision.reason
    assert quarantined(decided(b.snapshot(broken("n2", xid=95)), config)) == ["n2"]


def test_a_rule_that_only_observes_hides_no_other_fault_of_its_node() -> None:
    config = b.config(guards={"observe_rules": ["xid.48"]})
    events = (b.xid_event("n2", 48, at=b.NOW - 200, sequence=1), b.xid_event("n2", 79, at=b.NOW - 100, sequence=2))
    for node in (
        b.node("n2", events=events),
        b.node("n2", events=events[:1], heard_at=b.NOW - 60, slurmd_silent_since=b.NOW - 60),
    ):
        observed, acts = decided(b.snapshot(node, jobs=[b.job()], spares=("n7",)), config)
        assert (observed.action, observed.because) == (Action.NOTHING, Because.RULE_DRY_RUN)
        assert (acts.subject, acts.action) == ("n2", Action.QUARANTINE)
        assert isinstance(acts.plan, PoolSwapPlan)


def test_nor_does_it_hide_what_an_operator_asks_for() -> None:
    slow = Finding(Signal.STRAGGLER_CONFIRMED, "straggler.self_time", "n2", b.NOW - 1, "slow", job=b.job().key)
    asked = {b.job().key: MoveRequest(5, ("n2",), "slow", "alice", b.NOW - 1, b.job().key.submit_at)}
    snapshot = b.snapshot(jobs=[b.job()], spares=("n7",), moves=asked)
    config = b.config(guards={"observe_rules": ["straggler."]})
    assert [one.because for one in decide(snapshot, [slow], config) if one.plan is None] == [Because.RULE_DRY_RUN]
    assert [one.row for one in decide(snapshot, [slow], config) if one.plan is not None] == [260]


def test_a_rack_loses_no_more_than_its_share() -> None:
    domains = {"switch rack1": ("n1", "n2", "n3", "n4"), "switch rack2": ("n5", "n6", "n7", "n8")}
    nodes = {name: broken(name) for name in ("n1", "n2", "n3", "n5")}
    config = b.config(guards=WIDE | {"domain_share_max": 0.5, "breaker_share_max": 1.0})
    decisions = decided(b.snapshot(*nodes.values(), domains=domains), config)
    assert quarantined(decisions) == ["n1", "n2", "n5"]
    (held,) = [one for one in decisions if one.because is Because.DOMAIN_BUDGET]
    assert "switch rack1" in held.reason


def test_of_a_domain_of_one_its_node_may_still_be_quarantined() -> None:
    config = b.config(guards={"domain_share_max": 0.1})
    assert quarantined(decided(b.snapshot(broken("n2"), domains={"partition small": ("n2",)}), config)) == ["n2"]


REPAIRED = ValidationOrigin.REPAIRED
IN_SERVICE = ValidationOrigin.IN_SERVICE
REQUESTED = ValidationOrigin.SUSPECT_REQUESTED
PROBED = ValidationOrigin.SUSPECT_PROBED
ON_PROBATION = ValidationOrigin.PROBATION


def under_test(name: str, origin: ValidationOrigin) -> NodeView:
    record = b.record(name, NodeState.VALIDATING, validation_origin=origin, agent_seen_at=b.NOW - 500)
    if origin in (REQUESTED, PROBED):
        record = replace(record, suspicions=b.suspected(SuspicionCause.SLOW))
    return b.node(name, record=record)


def suspect(name: str) -> NodeView:
    """Node suspected of being slow."""
    return b.node(
        name,
        record=b.record(
            name, NodeState.SUSPECT, suspicions=b.suspected(SuspicionCause.SLOW), agent_seen_at=b.NOW - 500
        ),
    )


ONE_PARTITION = {"partition train": tuple(f"n{i}" for i in range(1, 9))}
TESTED: dict[str, Any] = {"validation": {"enabled": True}, "repair": {"enabled": True}}


class TestTestsOfNodesInService:
    """A burn-in takes a day, and the nodes in it have no fault."""

    @pytest.mark.parametrize("origin", [IN_SERVICE, PROBED, REQUESTED, ON_PROBATION])
    def test_they_keep_no_faulty_node_in_service(self, origin: ValidationOrigin) -> None:
        tested = [under_test(f"n{i}", origin) for i in (5, 6, 7, 8)]
        decisions = decided(b.snapshot(broken("n2"), *tested, domains=ONE_PARTITION), b.config(**TESTED))
        assert quarantined(decisions) == ["n2"]

    def test_one_that_is_tested_after_a_repair_still_counts(self) -> None:
        tested = [under_test(f"n{i}", REPAIRED) for i in (5, 6, 7, 8)]
        assert quarantined(decided(b.snapshot(broken("n2"), *tested, domains=ONE_PARTITION), b.config())) == []

    def test_they_keep_no_node_from_its_repair(self) -> None:
        drained = b.slurm_node("n2", flags=["DRAIN"], reason="understudy: xid.79: broken", user="root")
        record = NodeRecord("n2", NodeState.QUARANTINED, drained_at=b.NOW - 100, agent_seen_at=b.NOW - 500)
        out = b.node("n2", slurm=drained, record=record)
        for origin, because in ((IN_SERVICE, Because.RULE), (REPAIRED, Because.REPAIR_BUDGET)):
            tested = [under_test(f"n{i}", origin) for i in (7, 8)]
            held = b.snapshot(out, *tested, reservations=b.kept("n7", "n8"))
            assert [one.because for one in decided(held, b.config(**TESTED)) if one.subject == "n2"] == [because]

    def test_none_begins_while_slurms_gpus_may_be_instances_that_nvml_does_not_show_yet(self) -> None:
        """A healthy node that was tested for 28 GPUs would be quarantined and rebooted again and again."""
        booted = replace(
            suspect("n5"),
            slurm=replace(b.slurm_node("n5"), gres="gpu:28"),
            gpus=tuple(b.gpu(index, mig_mode=False) for index in range(4)),
        )
        tests = {}
        for seconds in (60.0, 181.0):
            young = replace(booted, gpus_readable=GpusReadable(4, b.NOW - seconds))
            (tests[seconds],) = [one for one in decided(b.snapshot(young), b.config(**TESTED)) if one.row == 255]
        assert (tests[60.0].action, tests[60.0].because) == (Action.NOTHING, Because.BUSY)
        assert "Slurm has 28 GPUs or instances of GPUs, and NVML shows 4" in tests[60.0].reason
        assert tests[181.0].action is Action.VALIDATE

    def test_none_begins_before_a_report_has_shown_gpus_unless_none_comes(self) -> None:
        tests = {}
        for seconds in (60.0, 181.0):
            waiting = replace(
                suspect("n5"), slurm=replace(b.slurm_node("n5"), gres="gpu:28"), gpus=(), gpus_awaited=True
            )
            waiting = replace(waiting, record=replace(waiting.record, since=b.NOW - seconds))
            (tests[seconds],) = [one for one in decided(b.snapshot(waiting), b.config(**TESTED)) if one.row == 255]
        assert (tests[60.0].action, tests[60.0].because) == (Action.NOTHING, Because.BUSY)
        assert "no report of its agent has shown any since: validation waits 180 s for one" in tests[60.0].reason
        assert tests[181.0].action is Action.VALIDATE

    def test_no_more_suspects_than_may_be_are_tested_at_once(self) -> None:
        decisions = decided(b.snapshot(*(suspect(f"n{i}") for i in range(1, 6))), b.config(**TESTED))
        assert [one.subject for one in decisions if one.action is Action.VALIDATE] == ["n1", "n2"]
        held = [one for one in decisions if one.row == 255 and one.because is Because.REPAIR_BUDGET]
        assert [one.subject for one in held] == ["n3", "n4", "n5"]

    @pytest.mark.parametrize(("origin", "tested"), [(IN_SERVICE, ["n1", "n2"]), (PROBED, [])])
    def test_tests_that_people_asked_for_are_not_counted_with_those_of_suspects(
        self, origin: ValidationOrigin, tested: list[str]
    ) -> None:
        at_work = [under_test(f"n{i}", origin) for i in (7, 8)]
        snapshot = b.snapshot(suspect("n1"), suspect("n2"), *at_work, reservations=b.kept("n7", "n8"))
        decisions = decided(snapshot, b.config(**TESTED))
        assert [one.subject for one in decisions if one.action is Action.VALIDATE] == tested

    def test_of_many_tests_that_people_ask_for_some_wait(self) -> None:
        requests = {f"n{i}": Request(i, f"n{i}", Verb.VALIDATE, "new rack", "alice", b.NOW - 5) for i in range(1, 7)}
        busy = {"n7": under_test("n7", REQUESTED), "n8": under_test("n8", PROBED)}
        config = b.config(validation={**TESTED["validation"], "requested_at_once_max": 4})
        snapshot = snapshot_of(fleet(6) | busy, requests=requests, reservations=b.kept("n7", "n8"))
        decisions = decided(snapshot, config)
        assert sum(one.action is Action.VALIDATE for one in decisions) == 3
        waiting = [one for one in decisions if one.because is Because.REPAIR_BUDGET]
        assert [one.request for one in waiting] == [None] * 3, "they are not answered yet"

    def test_a_rack_is_burnt_in_side_by_side_with_a_limit_of_its_own(self) -> None:
        requests = {f"n{i}": Request(i, f"n{i}", Verb.BURN_IN, "new rack", "alice", b.NOW - 5) for i in range(1, 6)}
        requests["n6"] = Request(6, "n6", Verb.VALIDATE, "looks odd", "alice", b.NOW - 5)
        plan = plans.validation_plan(b.node("n8"), None, "x", 48.0)
        burning = Recovery(1, plan, RecoveryStatus.RUNNING, b.NOW - 100, ())
        at_work = {"n7": under_test("n7", REQUESTED), "n8": under_test("n8", REQUESTED)}
        limits = {"requested_at_once_max": 2, "burn_ins_at_once_max": 4}
        snapshot = snapshot_of(
            fleet(6) | at_work, requests=requests, recoveries=(burning,), reservations=b.kept("n7", "n8")
        )
        decisions = decided(snapshot, b.config(validation={**TESTED["validation"], **limits}))
        assert [one.subject for one in decisions if one.action is Action.VALIDATE] == ["n1", "n2", "n3", "n6"]

    def test_a_suspect_is_tested_only_where_all_that_are_could_be_quarantined(self) -> None:
        at_work = under_test("n8", PROBED)
        for limit, begun in ((2, ["n1"]), (1, [])):
            config = b.config(**TESTED, guards={"quarantined_nodes_max": limit})
            snapshot = b.snapshot(suspect("n1"), at_work, reservations=b.kept("n8"))
            assert [one.subject for one in decided(snapshot, config) if one.action is Action.VALIDATE] == begun

    @pytest.mark.parametrize("kept", [{"paused": "maintenance"}, {"breaker": "eight at once"}])
    def test_a_new_node_is_burnt_in_when_nothing_prevents_it(self, kept: dict[str, Any]) -> None:
        drained = Request(1, "n2", Verb.BURN_IN, "new", BY_CONTROL_PLANE, b.NOW - 10)
        for request, because in ((drained, Because.RULE), (replace(drained, by="alice"), Because.RULE)):
            (decision,) = decided(b.snapshot(requests={"n2": request}), b.config(**TESTED))
            assert (decision.action, decision.because) == (Action.VALIDATE, because)
        (held,) = decided(b.snapshot(requests={"n2": drained}, **kept), b.config(**TESTED))
        assert held.because in (Because.PAUSED, Because.BREAKER)
        alices = replace(drained, by="alice")
        (decision,) = decided(b.snapshot(requests={"n2": alices}, **kept), b.config(**TESTED))
        assert decision.action is Action.VALIDATE, "people know what they ask for"

    @pytest.mark.parametrize(("verb", "waits"), [(Verb.VALIDATE, 7 * 24), (Verb.BURN_IN, 7 * 24), (Verb.HOLD, 1)])
    def test_what_was_asked_for_too_long_ago_is_given_up_and_recorded(self, verb: Verb, waits: int) -> None:
        for hours, row in ((waits - 0.1, {Verb.HOLD: 250}.get(verb, 254)), (waits + 0.1, 256)):
            request = Request(7, "n2", verb, "new", "alice", b.NOW - hours * 3600)
            (decision,) = decided(b.snapshot(requests={"n2": request}), b.config(**TESTED))
            assert (decision.row, decision.request) == (row, 7), "and it is answered"

    @pytest.mark.parametrize(
        ("state", "row"), [(NodeState.IN_SERVICE, 254), (NodeState.SUSPECT, 257), (NodeState.PROBATION, 258)]
    )
    def test_the_row_by_which_a_node_is_tested_depends_on_what_it_was(self, state: NodeState, row: int) -> None:
        """And what it is again, should the test never begin."""
        request = Request(7, "n2", Verb.VALIDATE, "slow?", "alice", b.NOW - 5)
        node = b.node("n2", record=b.record("n2", state, since=b.NOW - 100))
        (decision,) = decided(b.snapshot(node, requests={"n2": request}), b.config(**TESTED))
        assert (decision.row, decision.action, decision.request) == (row, Action.VALIDATE, 7)


class TestATestThatNeverBegan:
    """Known by the attempt's own mark. Its words are for people, and say the same here whatever became of it."""

    @staticmethod
    def decision(
        origin: ValidationOrigin, *, never_began: bool, status: RecoveryStatus = RecoveryStatus.FAILED
    ) -> Decision:
        words = "run_validation: did not start: job 17 is PENDING (Resources)"
        attempt = RepairAttempt(
            1, "n2", RecoveryKind.VALIDATE, None, b.NOW - 100, status, words, b.NOW - 5, never_began=never_began
        )
        snapshot = b.snapshot(under_test("n2", origin), attempts=(attempt,), reservations=b.kept("n2"))
        (decision,) = decided(snapshot, b.config(**TESTED))
        return decision

    @pytest.mark.parametrize(
        ("origin", "number", "to"),
        [
            (IN_SERVICE, 223, NodeState.IN_SERVICE),
            (PROBED, 224, NodeState.SUSPECT),
            (REQUESTED, 224, NodeState.SUSPECT),
            (ON_PROBATION, 226, NodeState.PROBATION),
        ],
    )
    def test_says_nothing_against_a_node_that_was_in_service(
        self, origin: ValidationOrigin, number: int, to: NodeState
    ) -> None:
        decision = self.decision(origin, never_began=True)
        assert (decision.row, decision.action, decision.to_state) == (number, Action.LET_GO, to)

    @pytest.mark.parametrize(
        ("origin", "never_began", "number"), [(REPAIRED, True, 221), (PROBED, False, 225), (IN_SERVICE, False, 225)]
    )
    def test_is_something_else_than_one_that_failed_or_came_after_a_repair(
        self, origin: ValidationOrigin, never_began: bool, number: int
    ) -> None:
        decision = self.decision(origin, never_began=never_began)
        assert (decision.row, decision.to_state, decision.opens_incident) == (number, NodeState.QUARANTINED, True)

    def test_a_node_whose_test_is_not_known_of_is_let_go(self) -> None:
        assert self.decision(PROBED, never_began=False, status=RecoveryStatus.SUPERSEDED).row == 224


class TestAFailedTestOfANodeInService:
    """A self-check or a script that is wrong fails every node that it tests: that is bounded like any wrong rule."""

    FULL: ClassVar[dict[str, Any]] = {"quarantined_at": {"n9": tuple(b.NOW - 1000 - i for i in range(12))}}

    @staticmethod
    def failed(
        count: int, origin: ValidationOrigin = IN_SERVICE, first: int = 1, others: int = 0, **values: Any
    ) -> Snapshot:
        names = [f"n{i}" for i in range(first, first + count)]
        status, words = RecoveryStatus.FAILED, "run_validation: job 17 FAILED"
        tests = (
            RepairAttempt(i, name, RecoveryKind.VALIDATE, None, b.NOW - 100, status, words, b.NOW - 5)
            for i, name in enumerate(names)
        )
        nodes = fleet(others) | {name: under_test(name, origin) for name in names}
        return snapshot_of(nodes, attempts=tuple(tests), reservations=b.kept(*names), **values)

    @pytest.mark.parametrize("origin", [IN_SERVICE, PROBED, REQUESTED, ON_PROBATION])
    @pytest.mark.parametrize(("count", "limit"), [(8, 3), (100, 10)])
    def test_a_wrong_test_that_fails_every_node_opens_the_breaker(
        self, count: int, limit: int, origin: ValidationOrigin
    ) -> None:
        decisions = decided(self.failed(count, origin), b.config(guards=WIDE, **TESTED))
        assert quarantined(decisions) == [f"n{i}" for i in range(1, limit + 1)]
        (breaker,) = [one for one in decisions if one.action is Action.OPEN_BREAKER]
        assert f"{count - limit} more to be quarantined" in breaker.reason
        held = [one for one in decisions if one.because is Because.BREAKER]
        assert len(held) == count - limit
        assert {(one.row, one.action, one.to_state, one.plan) for one in held} == {(225, Action.NOTHING, None, None)}
        assert all(one.opens_incident for one in held), "a person sees it"

    def test_a_wrong_test_opens_it_with_the_budgets_that_a_site_has_by_default(self) -> None:
        domains = {"partition train": tuple(f"n{i}" for i in range(1, 101))}
        decisions = decided(self.failed(40, first=61, others=60, domains=domains), b.config(**TESTED))
        assert len(quarantined(decisions)) == 10
        (breaker,) = [one for one in decisions if one.action is Action.OPEN_BREAKER]
        assert "30 more to be quarantined" in breaker.reason

    def test_it_is_drained_before_its_reservation_is_given_up(self) -> None:
        (decision,) = decided(self.failed(1), b.config(**TESTED))
        plan = b.plan_as(TakeBackPlan, decision.plan)
        assert plan.steps == (StepName.DRAIN_NODES, StepName.RELEASE_NODE)
        assert plan.renamed_nodes == ("n1",), "also where Slurm has drained it by itself"

    @pytest.mark.parametrize(
        ("kept", "guards", "because"),
        [
            (FULL, {}, Because.HOURLY_BUDGET),
            ({"breaker": "eight at once"}, {}, Because.BREAKER),
            ({}, {"quarantined_nodes_max": 0}, Because.FLEET_BUDGET),
            ({"paused": "maintenance"}, {}, Because.PAUSED),
        ],
    )
    def test_what_a_guard_holds_back_stays_as_it_is(
        self, kept: dict[str, Any], guards: dict[str, Any], because: Because
    ) -> None:
        (decision,) = decided(self.failed(1, **kept), b.config(guards=guards, **TESTED))
        assert (decision.row, decision.because, decision.to_state, decision.plan) == (225, because, None, None)
        assert "but nothing is done, because" in decision.reason
        assert decision.opens_incident

    def test_other_nodes_of_the_same_time_count_with_it(self) -> None:
        lately = {f"n{i}": (b.NOW - 300,) for i in (6, 7, 8)}
        decisions = decided(self.failed(1, quarantined_at=lately), b.config(guards=WIDE, **TESTED))
        assert [one.because for one in decisions if one.row == 225] == [Because.BREAKER]
        assert [one.row for one in decisions if one.action is Action.OPEN_BREAKER] == [290]
        itself = {f"n{i}": (b.NOW - 300,) for i in (1, 7, 8)}
        decisions = decided(self.failed(1, quarantined_at=itself), b.config(guards=WIDE, **TESTED))
        assert quarantined(decisions) == ["n1"], "a node counts once within the window"

    def test_one_whose_quarantine_has_counted_is_taken_back_whatever_the_budgets_say(self) -> None:
        for origin in (ValidationOrigin.QUARANTINED, REPAIRED, ValidationOrigin.RELEASED):
            snapshot = self.failed(5, origin, **self.FULL, breaker="eight at once")
            decisions = decided(snapshot, b.config(**TESTED))
            assert {(one.row, one.action, one.to_state) for one in decisions} == {
                (221, Action.TAKE_BACK, NodeState.QUARANTINED)
            }
            assert Action.TAKE_BACK not in TAKES_OUT, "and is not counted again"

    @pytest.mark.parametrize(
        ("origin", "number", "action"), [(IN_SERVICE, 225, Action.QUARANTINE), (REPAIRED, 222, Action.TAKE_BACK)]
    )
    def test_a_fault_during_the_test_is_the_same(self, origin: ValidationOrigin, number: int, action: Action) -> None:
        node = replace(under_test("n2", origin), events=(b.xid_event("n2", 79),))
        snapshot = b.snapshot(node, reservations=b.kept("n2"))
        (decision,) = decided(snapshot, b.config(**TESTED))
        assert (decision.row, decision.action, decision.finding and decision.finding.rule) == (number, action, "xid.79")
        (held,) = [one for one in decided(b.changed(snapshot, **self.FULL), b.config(**TESTED)) if one.row == number]
        assert held.because is (Because.HOURLY_BUDGET if origin is IN_SERVICE else Because.RULE)

    def test_a_node_that_can_still_do_harm_goes_first(self) -> None:
        """No job can use one in validation."""
        snapshot = self.failed(1)
        snapshot = replace(snapshot, nodes={**snapshot.nodes, "n9": broken("n9")})
        config = b.config(guards={"quarantines_per_hour_max": 1}, **TESTED)
        decisions = decided(snapshot, config)
        assert quarantined(decisions) == ["n9"]
        assert [one.because for one in decisions if one.row == 225] == [Because.HOURLY_BUDGET]

    def test_a_rule_that_only_observes_keeps_no_node_in_its_test_for_ever(self) -> None:
        config = b.config(guards={"observe_rules": ["repair.", "xid."]}, **TESTED)
        assert quarantined(decided(self.failed(1), config)) == ["n1"]


class TestMassSilence:
    def silent(self, **values: Any) -> Snapshot:
        quiet = [b.node(f"n{i}", heard_at=b.NOW - 60) for i in (6, 7, 8)]
        return b.snapshot(broken("n2"), *quiet, **values)

    def test_only_what_is_proven_of_a_node_is_acted_on_while_many_are_silent_at_once(self) -> None:
        slow = Finding(Signal.STRAGGLER_CONFIRMED, "straggler.clocks", "n4", b.NOW, "slow")
        seen, config = self.silent(jobs=[b.job()]), b.config(spares={"count": 1})
        decisions = decide(seen, [*detect(seen, config), slow], config)
        assert quarantined(decisions) == ["n2"]
        assert [one.row for one in decisions if one.plan] == [10]
        (domain,) = (one for one in decisions if one.row == 70)
        assert (domain.subject, domain.action, domain.opens_incident) == ("fleet", Action.NOTHING, True)
        held = {(one.row, one.because) for one in decisions if one.because is not Because.RULE}
        assert (12, Because.MASS_SILENCE) in held

    def test_two_are_no_mass(self) -> None:
        two = {name: node for name, node in self.silent().nodes.items() if name != "n8"}
        assert quarantined(decided(b.snapshot(*two.values()), b.config())) == ["n2"]

    def test_people_are_obeyed(self) -> None:
        request = Request(1, "n6", Verb.HOLD, "it burns", "alice", b.NOW - 1)
        decisions = decided(self.silent(requests={"n6": request}), b.config())
        assert [one.row for one in decisions if one.plan] == [250, 10]
        held = self.silent()
        nodes = {**held.nodes, "n6": b.node("n6", NodeState.OPERATOR_HOLD, heard_at=b.NOW - 60)}
        rules = {one.rule for one in detect(replace(held, nodes=nodes), b.config()) if one.node in ("n7", "n8")}
        assert rules == {"silence.agent"}, "then it is no mass any more"


@pytest.mark.parametrize(
    "state", [NodeState.REPAIRING, NodeState.MANUAL_REPAIR, NodeState.OPERATOR_HOLD, NodeState.RETIRED]
)
def test_a_node_that_is_out_of_service_is_not_condemned_again(state: NodeState) -> None:
    node = b.node("n2", state, events=(b.xid_event("n2", 79),), slurm=b.slurm_node("n2", flags=["DRAIN"]))
    decisions = decided(b.snapshot(node), b.config())
    assert quarantined(decisions) == []
