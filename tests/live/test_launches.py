"""Step times of a gang that its launcher starts several times within one allocation."""

from __future__ import annotations

import msgspec
import pytest

from tests import builders as b
from understudy_controlplane.fleet.job import Attempt, Reached
from understudy_controlplane.live.telemetry import ExpectedJob, Telemetry
from understudy_wire.places import Place
from understudy_wire.ranks import RankWindow


def window(rank: int, first: int, launch: int, restarts: int = 0) -> RankWindow:
    return RankWindow(7, restarts, rank, 2, user_id=1000, first_step=first, self_seconds=[0.1] * 5, launch=launch)


def test_a_new_launch_gets_a_new_buffer_and_the_one_before_is_ignored() -> None:
    telemetry = Telemetry()
    telemetry.know(["n1"])
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset({"n1"}))})
    assert telemetry.receive(b.report("n1", ranks=[window(0, 0, 0), window(1, 0, 0)]), b.NOW) == []
    assert telemetry.progress() == {(7, Attempt(0)): Reached(4, b.NOW)}

    assert telemetry.receive(b.report("n1", ranks=[window(0, 0, 1)]), b.NOW + 1) == []
    assert telemetry.progress() == {(7, Attempt(0, 1)): Reached(4, b.NOW + 1)}
    (doubt,) = telemetry.receive(b.report("n1", ranks=[window(1, 5, 0)]), b.NOW + 2)
    assert "launch 1 of the gang is under way, they are of launch 0" in doubt
    table = telemetry.table(b.job().key, 0)
    assert table is not None
    assert table.attempt == Attempt(0, 1)
    assert list(table.last_step) == [4, -1]

    telemetry.expect({7: ExpectedJob(1, 1000, frozenset({"n1"}))})
    assert telemetry.progress() == {}


def test_the_next_attempt_counts_on_from_where_the_last_one_counted() -> None:
    """Its second training was at step 4, after the five of the first one, and goes back to its step 3."""
    telemetry = Telemetry()
    telemetry.know(["n1"])
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset({"n1"}))})
    for at in range(2):
        telemetry.receive(b.report("n1", ranks=[window(0, 0, 0)], sequence=at), b.NOW + at)
    assert telemetry.progress() == {(7, Attempt(0)): Reached(9, b.NOW + 1, 5)}
    telemetry.expect({7: ExpectedJob(1, 1000, frozenset({"n1"}))})
    telemetry.receive(b.report("n1", ranks=[window(0, 3, 0, restarts=1)]), b.NOW + 9)
    assert telemetry.progress() == {(7, Attempt(1)): Reached(12, b.NOW + 9, 5)}


def test_a_restarted_control_plane_counts_on_too() -> None:
    telemetry = Telemetry()
    telemetry.know(["n1"])
    telemetry.count_on({7: (Attempt(0), Place(11, 5))})
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset({"n1"}))})
    telemetry.receive(b.report("n1", ranks=[window(0, 3, 0)]), b.NOW)
    assert telemetry.progress() == {(7, Attempt(0)): Reached(12, b.NOW, 5)}


@pytest.mark.parametrize("how", ["its clock was set", "a new process"])
def test_of_a_gang_that_finishes_no_step_any_more_it_is_known_where_it_stands(how: str) -> None:
    """Its second training was at step 4. What another attempt reached is not this one's."""
    telemetry = Telemetry()
    telemetry.know(["n1"])
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset({"n1"}))})
    for at in range(2):
        telemetry.receive(b.report("n1", ranks=[window(0, 0, 0)], sequence=at), b.NOW + at)
    if how == "a new process":
        telemetry = Telemetry()
        telemetry.know(["n1"])
        telemetry.expect({7: ExpectedJob(0, 1000, frozenset({"n1"}))})
        telemetry.count_on({7: (Attempt(0), Place(9, 5))})
    else:
        telemetry.forget()
    stands = RankWindow(7, 0, 0, 2, user_id=1000)
    telemetry.receive(b.report("n1", ranks=[stands], sequence=3), b.NOW + 3)
    table = telemetry.table(b.job().key, 0)
    assert table is not None
    assert (table.place, table.number, table.advanced_at) == (Place(9, 5), 4, 0.0)
    assert telemetry.place_of(7, Attempt(0)) == Place(9, 5)
    telemetry.expect({7: ExpectedJob(1, 1000, frozenset({"n1"}))})
    telemetry.receive(b.report("n1", ranks=[msgspec.structs.replace(stands, restart_count=1)]), b.NOW + 9)
    assert telemetry.place_of(7, Attempt(1)) is None


def test_a_second_training_of_fewer_ranks_counts_on() -> None:
    telemetry = Telemetry()
    telemetry.know(["n1"])
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset({"n1"}))})
    for rank in range(2):
        ended = RankWindow(7, 0, rank, 2, user_id=1000, first_step=0, self_seconds=[0.1] * 5, ended=True)
        telemetry.receive(b.report("n1", ranks=[ended]), b.NOW)
    alone = RankWindow(7, 0, 0, 1, user_id=1000, first_step=0, self_seconds=[0.1] * 2)
    telemetry.receive(b.report("n1", ranks=[alone]), b.NOW + 1)
    assert telemetry.progress() == {(7, Attempt(0)): Reached(6, b.NOW + 1, 5)}
