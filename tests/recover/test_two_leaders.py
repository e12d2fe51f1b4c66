"""Agents report that another control plane leads: nothing is changed in Slurm until it is gone and a person agrees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.recover.rehearsal import NODES, Rehearsal
from understudy_controlplane.api.needs import all_needs
from understudy_controlplane.decide.leadership import AGENTS_SECONDS, WORDS_SECONDS
from understudy_controlplane.decide.notices import of_breaker
from understudy_controlplane.fleet.change import Change
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import FLEET, Verb
from understudy_controlplane.store.notices import NoticeStore
from understudy_wire.leader import HeardLeader

pytestmark = pytest.mark.integration

A, B = "http://a:7117", "http://b:7117"


class Witnessed(Rehearsal):
    """Agents ask two control planes."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.others: dict[str, HeardLeader] = {}
        self.each_tick = self.report_leaders

    def report_leaders(self) -> None:
        leaders = self.control_plane.telemetry.leaders
        own = HeardLeader(leaders.own.installation, leaders.own.term, A)
        for name in NODES:
            named = [own, self.others[name]] if name in self.others else [own]
            assert leaders.note(name, named, self.clock.monotonic()) == ""

    def all_name(self, other: HeardLeader, nodes: Sequence[str] = NODES) -> None:
        self.others = dict.fromkeys(nodes, other)

    def needs(self) -> str:
        return "; ".join(map(str, all_needs(self.control_plane.reads)))

    def notified(self) -> list[str]:
        return [of_breaker(one).text for one in NoticeStore(self.engine).new_breakers(0)]

    def open_breaker_for_many_faults(self) -> None:
        opens = Decision(290, "fleet", Action.OPEN_BREAKER, Because.RULE, "many nodes at once")
        self.control_plane.stores.journal.record([Change(opens)], self.clock.now(), {})

    def close_breaker(self) -> None:
        requests, now = self.control_plane.stores.requests, self.clock.now()
        requests.ask(Verb.RESET_BREAKER, FLEET, "the other one was stopped", "alice", now)

    def agents_before(self) -> int:
        return self.control_plane.telemetry.leaders.before

    def newer(self) -> HeardLeader:
        own = self.control_plane.telemetry.leaders.own
        return HeardLeader(own.installation, own.term + 1, B)


OTHER = HeardLeader("another", 5, B)
REMEDY = "`systemctl disable --now understudy-controlplane` on the host of the one that is not to lead ends that"


@pytest.mark.parametrize("is_newer", [True, False])
def test_a_control_plane_that_most_agents_report_stops_this_one_and_notifies_a_person(
    tmp_path: Path, is_newer: bool
) -> None:
    rehearsal = Witnessed(tmp_path)
    rehearsal.all_name(rehearsal.newer() if is_newer else OTHER)
    rehearsal.run(10)
    rehearsal.fail("n1")
    rehearsal.fake.submit("student", 1)
    rehearsal.fake.create_reservation("understudy_seats_99", ["n6"], "researcher", 6000)
    rehearsal.fake.set_reservation_nodes("understudy_spares", rehearsal.pool()[1:])
    rehearsal.run(120)
    assert not rehearsal.line.effects, "nothing is drained, moved, or deleted as left over"
    assert B in rehearsal.control_plane.loop.pulse.objection
    assert REMEDY in rehearsal.needs()
    assert len(rehearsal.notified()) == 1
    assert REMEDY in rehearsal.notified()[0]
    rehearsal.others = {}
    rehearsal.run(WORDS_SECONDS + 10)
    assert rehearsal.control_plane.loop.pulse.objection == "", "the other one was stopped"
    assert rehearsal.state_of("n1") is NodeState.IN_SERVICE, "the breaker stays open until a person closes it"
    assert not rehearsal.line.effects, "it holds the pool and what seems left over, too"
    rehearsal.close_breaker()
    rehearsal.run_until(rehearsal.ended, 300)
    assert "drain_node n1" in rehearsal.line.effects
    rehearsal.run_until(lambda: "understudy_seats_99" not in rehearsal.reservation_names(), 60)


def test_a_breaker_that_is_open_for_something_else_holds_everything_too_from_then_on(tmp_path: Path) -> None:
    rehearsal = Witnessed(tmp_path)
    rehearsal.run(10)
    rehearsal.open_breaker_for_many_faults()
    rehearsal.all_name(OTHER)
    rehearsal.run(10)
    assert len(rehearsal.notified()) == 2
    rehearsal.others = {}
    rehearsal.fake.create_reservation("understudy_seats_99", ["n6"], "researcher", 6000)
    rehearsal.run(WORDS_SECONDS + 10)
    assert "understudy_seats_99" in rehearsal.reservation_names()
    rehearsal.close_breaker()
    rehearsal.run_until(lambda: "understudy_seats_99" not in rehearsal.reservation_names(), 60)


def test_a_breaker_that_is_closed_while_both_lead_opens_again(tmp_path: Path) -> None:
    rehearsal = Witnessed(tmp_path)
    rehearsal.all_name(OTHER)
    rehearsal.run(10)
    rehearsal.close_breaker()
    rehearsal.run(10)
    assert len(rehearsal.notified()) == 2


@pytest.mark.parametrize("other", [OTHER, HeardLeader("another", 2**53, B)])
def test_the_word_of_a_minority_of_the_nodes_stops_nothing_and_is_shown(tmp_path: Path, other: HeardLeader) -> None:
    """Root of a node can make its agent report anything."""
    rehearsal = Witnessed(tmp_path)
    rehearsal.all_name(other, NODES[4:])
    rehearsal.fail("n1")
    rehearsal.run_until(rehearsal.ended, 300)
    assert "drain_node n1" in rehearsal.line.effects
    rehearsal.run(300)
    assert (
        f"{B} also leads here, with a database of its own, as 4 of 8 agents report (n5, n6, n7 and 1 more)"
        in rehearsal.needs()
    )
    assert rehearsal.notified() == []


def test_a_start_of_the_same_control_plane_is_a_newer_term_and_needs_nothing(tmp_path: Path) -> None:
    """SQLite has one term for each start: agents that still name the process before name an older one."""
    rehearsal = Witnessed(tmp_path)
    before = rehearsal.control_plane.telemetry.leaders.own
    rehearsal.restart_control_plane()
    own = rehearsal.control_plane.telemetry.leaders.own
    assert (own.installation, own.term > before.term) == (before.installation, True)
    rehearsal.all_name(HeardLeader(before.installation, before.term, A))
    rehearsal.fail("n1")
    rehearsal.run_until(rehearsal.ended, 300)
    assert rehearsal.control_plane.loop.pulse.objection == ""


def test_a_new_leader_knows_how_many_agents_were_heard_shortly_before_it(tmp_path: Path) -> None:
    witnessed = Witnessed(tmp_path)
    assert witnessed.agents_before() == 0
    witnessed.run(5)
    witnessed.restart_control_plane()
    assert witnessed.agents_before() == len(NODES)
    witnessed.clock.set_by(2 * AGENTS_SECONDS, with_slurm=True)
    witnessed.restart_control_plane()
    assert witnessed.agents_before() == 0, "their silence is older than this lead"
