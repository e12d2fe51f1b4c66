"""What the ring of step times promises."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import builders as b
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.steps import SECTIONS_MAX, Durations, StepTable
from understudy_controlplane.live.step_buffer import PAIRS_MAX, STARTUP_SECONDS_MIN, STEPS_KEPT, StepBuffer
from understudy_controlplane.live.telemetry import ExpectedJob, Telemetry
from understudy_wire.ranks import Collective, RankWindow, Transfers


def window(rank: int, first: int, times: list[float]) -> RankWindow:
    return RankWindow(7, 0, rank, 2, 0, 1000, "", first, times, times)


def test_a_table_shows_steps_in_their_order_over_the_wrap_of_the_ring() -> None:
    buffer = StepBuffer(Attempt(0), 2)
    for step in range(0, 3 * STEPS_KEPT, 10):
        for rank in range(2):
            buffer.add(window(rank, step, [float(s + rank) for s in range(step, step + 10)]), "n1", b.NOW)
    table = buffer.table(b.job().key)
    last = int(table.last_step[0])
    expected = np.arange(last + 1 - STEPS_KEPT, last + 1, dtype=np.float32)
    assert table.first_step == last + 1 - STEPS_KEPT
    assert np.array_equal(table.self_seconds, np.stack([expected, expected + 1]))


def test_waiting_for_data_and_work_stand_beside_their_steps() -> None:
    buffer = StepBuffer(Attempt(0), 2)
    buffer.add(window(0, 0, [1.0] * 5), "n1", b.NOW)
    buffer.add(window(1, 0, [1.0] * 3), "n1", b.NOW)
    assert buffer.table(b.job().key).data_seconds is None
    assert buffer.table(b.job().key).work is None
    assert buffer.table(b.job().key).replicas.size == 0
    more = replace(window(0, 4, [1.0] * 3), data_seconds=[9.0, 0.5, 0.25], work=[9.0, None, 7.0], dp_rank=5)
    buffer.add(more, "n1", b.NOW)
    buffer.add(replace(window(0, 8, [1.0]), dp_rank=5), "n1", b.NOW)
    table = buffer.table(b.job().key)
    nan = np.nan
    np.testing.assert_array_equal(table.data_seconds, [[0, 0, 0, 0, 0, 0.5, 0.25, nan, 0], [0, 0, 0] + [nan] * 6])
    np.testing.assert_array_equal(table.work, [[nan] * 6 + [7, nan, nan], [nan] * 9])
    assert table.replicas.tolist() == [5, -1]


@pytest.mark.parametrize("odd", [{"data_seconds": [1.0]}, {"data_seconds": [-1.0, 1.0]}, {"work": [1.0, 1e31]}])
def test_windows_with_impossible_data_or_work_are_dropped(odd: dict[str, list[float]]) -> None:
    telemetry = Telemetry()
    telemetry.know(["n1"])
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset(["n1"]))})
    (words,) = telemetry.receive(b.report(ranks=[replace(window(0, 0, [1.0, 1.0]), **odd)]), b.NOW)
    assert "data_seconds or work" in words


@pytest.mark.parametrize("wall", [[1.0], [1.0, -1.0], [1.0, 1e7]])
def test_windows_with_impossible_durations_of_steps_are_dropped(wall: list[float]) -> None:
    telemetry = Telemetry()
    telemetry.know(["n1"])
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset(["n1"]))})
    odd = replace(window(0, 0, [1.0, 1.0]), wall_seconds=wall)
    (words,) = telemetry.receive(b.report(ranks=[odd]), b.NOW)
    assert "wall_seconds" in words


def test_transfers_stand_beside_their_steps_for_each_rank_and_peer() -> None:
    buffer = StepBuffer(Attempt(0), 3)
    buffer.add(window(0, 0, [1.0] * 2), "n1", b.NOW)
    assert buffer.table(b.job().key).transfers is None
    buffer.add(replace(window(0, 2, [1.0] * 2), transfers=[Transfers(1, [0.5, 0.25])]), "n1", b.NOW)
    buffer.add(
        replace(window(1, 0, [1.0] * 3), transfers=[Transfers(0, [2.0] * 3), Transfers(2, [3.0] * 3)]), "n1", b.NOW
    )
    buffer.add(replace(window(0, 5, [1.0]), transfers=[Transfers(2, [0.75])]), "n1", b.NOW)
    found = buffer.table(b.job().key).transfers
    assert found is not None
    assert found.pairs.tolist() == [[0, 1], [1, 0], [1, 2], [0, 2]]
    nan = np.nan
    expected = [
        [nan, nan, 0.5, 0.25, nan, 0],
        [2, 2, 2, nan, nan, nan],
        [3, 3, 3, nan, nan, nan],
        [nan, nan, nan, nan, nan, 0.75],
    ]
    np.testing.assert_array_equal(found.seconds, expected)


def test_no_more_pairs_are_kept_than_the_limit() -> None:
    buffer = StepBuffer(Attempt(0), PAIRS_MAX)
    for rank in range(PAIRS_MAX // 2 + 10):
        peers = [Transfers(rank + by, [0.5]) for by in (1, 2)]
        one = RankWindow(7, 0, rank, PAIRS_MAX, first_step=0, self_seconds=[1.0], transfers=peers)
        buffer.add(one, "n1", b.NOW)
    found = buffer.table(b.job().key).transfers
    assert found is not None
    assert len(found.pairs) == len(found.seconds) == PAIRS_MAX


@pytest.mark.parametrize("odd", [Transfers(3, [1.0, 1.0]), Transfers(1, [1.0]), Transfers(1, [-1.0, 1.0])])
def test_windows_with_impossible_transfers_are_dropped(odd: Transfers) -> None:
    telemetry = Telemetry()
    telemetry.know(["n1"])
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset(["n1"]))})
    one = replace(window(0, 0, [1.0, 1.0]), transfers=[odd])
    (words,) = telemetry.receive(b.report(ranks=[one]), b.NOW)
    assert f"transfers with rank {odd.peer}" in words


def test_lost_steps_are_unknown_not_old() -> None:
    buffer = StepBuffer(Attempt(0), 2)
    buffer.add(window(0, 0, [1.0] * 50), "n1", b.NOW)
    buffer.add(window(0, 60, [2.0] * 10), "n1", b.NOW)
    values = buffer.table(b.job().key).self_seconds[0]
    assert np.isnan(values[50:60]).all()
    assert (values[60:70] == 2.0).all()


def test_steps_that_a_rank_has_not_reached_are_unknown() -> None:
    buffer = StepBuffer(Attempt(0), 2)
    for step in range(0, 2 * STEPS_KEPT, 32):
        buffer.add(window(1, step, [1.0] * 32), "n2", b.NOW)
        buffer.add(window(0, step, [1.0] * 32), "n1", b.NOW)
    buffer.add(window(0, 2 * STEPS_KEPT, [3.0] * 5), "n1", b.NOW)
    values = buffer.table(b.job().key).self_seconds
    assert (values[0, -5:] == 3.0).all()
    assert np.isnan(values[1, -5:]).all()


def test_a_rank_is_shown_in_the_last_collective_it_reported_with_steps_or_without() -> None:
    buffer = StepBuffer(Attempt(0), 2)
    entered = Collective("all_reduce", 3, b.NOW, 10, inside=True)
    buffer.add(window(0, 0, [1.0] * 10), "n1", b.NOW)
    buffer.add(RankWindow(7, 0, 0, 2, 0, 1000, "", collective=entered), "n1", b.NOW + 1)
    assert buffer.advanced_at == b.NOW  # an evidence is no progress
    buffer.add(window(0, 10, [1.0]), "n1", b.NOW + 2)
    heard, unheard = buffer.ranks(range(1000))
    assert (heard.node, heard.last_step, heard.collective) == ("n1", 10, entered)
    assert (unheard.node, unheard.last_step, unheard.collective) == ("", None, None)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300)), max_size=12))
def test_whatever_arrives_the_steps_shown_are_the_last_that_ended_in_their_order(
    arrivals: list[tuple[int, int]],
) -> None:
    """Each step's self time is its own number, so a value in the wrong place shows."""
    buffer = StepBuffer(Attempt(0), 2)
    ended: list[float] = []
    for first, count in arrivals:
        numbers = [float(step) for step in range(first, first + count)]
        buffer.add(window(0, first, numbers), "n1", b.NOW)
        falls = numbers and ended and numbers[-1] <= ended[-1]
        ended += [number for number in numbers if falls or not ended or number > ended[-1]]
    shown = [float(value) for value in buffer.table(b.job().key).self_seconds[0] if not np.isnan(value)]
    assert shown == ended[len(ended) - len(shown) :]
    assert bool(shown) == bool(ended)


def test_numbers_that_fall_are_steps_like_others() -> None:
    """An epoch, a second training in the same script, or one that resumes from an older step."""
    buffer = StepBuffer(Attempt(0), 2)
    for count in range(3):
        for first in range(0, 20, 5):
            for rank in range(2):
                at = b.NOW + 40 * count + 2 * first + rank
                buffer.add(window(rank, first, [count + step / 100 for step in range(first, first + 5)]), "n1", at)
    table = buffer.table(b.job().key)
    assert table.advanced_at == b.NOW + 2 * 40 + 2 * 15 + 1
    assert (table.furthest, table.number, table.fell_at) == (59, 19, b.NOW + 80)
    every_step = [count + step / 100 for count in range(3) for step in range(20)]
    np.testing.assert_allclose(table.self_seconds, [every_step, every_step], rtol=1e-6)  # beside each other
    assert [one.last_step for one in buffer.ranks(range(2))] == [19, 19]


def test_ranks_whose_numbers_fall_one_report_later_are_not_taken_for_slower_ones() -> None:
    buffer = StepBuffer(Attempt(0), 2)
    for rank in range(2):
        buffer.add(window(rank, 0, [0.0] * 98), "n1", b.NOW)
    buffer.add(window(0, 0, [1.0, 1.1]), "n1", b.NOW + 1)  # its agent has dropped steps 98 and 99
    buffer.add(window(1, 98, [0.0, 0.0]), "n1", b.NOW + 2)
    buffer.add(window(1, 0, [1.0, 1.1]), "n1", b.NOW + 3)
    for rank in range(2):
        buffer.add(window(rank, 2, [1.2]), "n1", b.NOW + 4)
    table = buffer.table(b.job().key)
    assert abs(int(table.last_step[0]) - int(table.last_step[1])) <= 2
    assert table.fell_at == b.NOW + 1


def test_a_report_that_arrives_twice_counts_once() -> None:
    telemetry = Telemetry()
    telemetry.know(["n1"])
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset(["n1"]))})
    for at in range(5):
        telemetry.receive(b.report(ranks=[window(0, 3, [1.0, 1.0])]), b.NOW + at)
    (progress,) = telemetry.progress().values()
    assert (progress.step, progress.at) == (4, b.NOW)


def test_a_table_knows_the_longest_pause_between_new_steps_and_where_each_rank_is() -> None:
    buffer = StepBuffer(Attempt(0), 2)
    assert buffer.table(b.job().key).longest_pause_seconds == 0
    for at, step in ((1.0, 0), (3.0, 1), (10.0, 2), (11.0, 3)):
        for rank in range(2):
            buffer.add(window(rank, step, [1.0]), "n1", b.NOW + at + rank / 10)
    inside = Collective("all_reduce", 9, b.NOW, 3, inside=True)
    buffer.add(RankWindow(7, 0, 1, 2, collective=inside), "n1", b.NOW + 90)
    table = buffer.table(b.job().key)
    assert (table.heard_since, table.longest_pause_seconds) == (b.NOW + 1, 7.0)
    assert table.advanced_at == b.NOW + 11.1, "a report of where a rank is counts as no progress"
    assert (table.sequences.tolist(), table.inside.tolist()) == ([-1, 9], [False, True])
    assert table.furthest_collective == "all_reduce"


def in_section(rank: int, name: str) -> RankWindow:
    return RankWindow(7, 0, rank, 2, section=name)


def test_start_pauses_and_sections_are_learnt_apart() -> None:
    buffer = StepBuffer(Attempt(0), 2)
    buffer.add(in_section(0, ""), "n1", b.NOW)
    buffer.add(window(0, 0, [1.0]), "n1", b.NOW + 90)
    buffer.add(window(0, 1, [1.0]), "n1", b.NOW + 92)
    buffer.add(in_section(0, "evaluation"), "n1", b.NOW + 93)
    assert (buffer.table(b.job().key).section, buffer.table(b.job().key).section_since) == ("evaluation", b.NOW + 93)
    buffer.add(in_section(0, ""), "n1", b.NOW + 693)
    buffer.add(window(0, 2, [1.0]), "n1", b.NOW + 696)
    table = buffer.table(b.job().key)
    assert (table.section, table.left_section_at) == ("", b.NOW + 693)
    assert table.durations == Durations(startup=90.0, pause=3.0, sections={"evaluation": 600.0})
    assert table.longest_pause_seconds == 3.0


def test_the_longest_pause_of_a_job_is_remembered_over_its_ring_and_its_attempts() -> None:
    telemetry = Telemetry()
    telemetry.know({"n1"})
    for restart_count in range(2):
        telemetry.expect({7: ExpectedJob(restart_count, 1000, frozenset({"n1"}))})
        for step in range(2 * STEPS_KEPT):
            at = b.NOW + step + (300.0 if step > 1 and not restart_count else 0.0)
            of_step = RankWindow(7, restart_count, 0, 1, 0, 1000, "", step, [1.0], [1.0])
            telemetry.receive(b.report("n1", ranks=[of_step]), at)
        table = telemetry.table(b.job().key, restart_count)
        assert table is not None and table.durations.pause == 301.0
        telemetry.expect({}, {7})  # between two attempts it pends


@pytest.mark.parametrize("seen", [True, False])
def test_what_a_gang_was_at_when_it_was_suspended_is_known_until_it_finishes_a_step(seen: bool) -> None:
    telemetry = Telemetry()
    telemetry.know({"n1"})
    before = ExpectedJob(0, 1000, frozenset({"n1"}))
    after = dataclasses.replace(before, suspended_or_resumed_at=4711)

    def report(at: float, *steps: int) -> None:
        times = [1.0] * len(steps)
        window = RankWindow(7, 0, 0, 1, 0, 1000, "", steps[0] if steps else 0, times, times)
        telemetry.receive(b.report("n1", ranks=[window]), at)

    def known() -> tuple[float, float] | None:
        found = telemetry.suspended(b.job().key, 0)
        return None if found is None else (found.table.advanced_at, found.at)

    telemetry.expect({7: before})
    report(b.NOW, 0)
    assert known() is None
    if seen:
        telemetry.expect({}, {7}, {7: b.NOW + 50})
        assert known() == (b.NOW, b.NOW + 50)
        assert telemetry.table(b.job().key, 0) is None
    telemetry.expect({7: after}, {7}, {7: b.NOW + 60})
    report(b.NOW + 70)
    telemetry.expect({7: after}, {7}, {7: b.NOW + 60})
    assert known() == (b.NOW, b.NOW + (50 if seen else 60)), "it was resumed, and has finished no step"
    assert telemetry.suspended(b.job().key, 1) is None, "not of another attempt"
    report(b.NOW + 80, 1)
    telemetry.expect({7: after}, {7}, {7: b.NOW + 60})
    assert known() is None


@pytest.mark.parametrize("seen", [True, False])
def test_a_job_that_was_suspended_is_known_afresh_whether_a_reading_of_slurm_has_shown_that_or_not(seen: bool) -> None:
    """Its ranks have stood still for that."""
    telemetry = Telemetry()
    telemetry.know({"n1"})
    before = ExpectedJob(0, 1000, frozenset({"n1"}))
    after = dataclasses.replace(before, suspended_or_resumed_at=4711)

    def table(at: float, step: int) -> StepTable | None:
        telemetry.receive(b.report("n1", ranks=[RankWindow(7, 0, 0, 1, 0, 1000, "", step, [1.0], [1.0])]), at)
        return telemetry.table(b.job().key, 0)

    telemetry.expect({7: before})
    telemetry.expect({7: before})
    assert table(b.NOW, 0) is not None
    assert table(b.NOW + 3, 1) is not None
    if seen:
        telemetry.expect({})
    telemetry.expect({7: after})
    assert telemetry.table(b.job().key, 0) is None
    telemetry.expect({7: after})
    resumed = table(b.NOW + 300, 2)
    assert resumed is not None
    assert (resumed.heard_since, resumed.longest_pause_seconds) == (b.NOW + 300, 0)
    telemetry.expect({7: after})
    assert telemetry.table(b.job().key, 0) is not None


def test_users_choose_names_of_sections_and_only_some_are_remembered() -> None:
    durations = Durations()
    for number in range(2 * SECTIONS_MAX):
        durations = durations.with_section(f"section {number}", 1.0)
    assert len(durations.sections) == SECTIONS_MAX


def test_a_rank_that_goes_on_stands_nowhere_any_more() -> None:
    buffer = StepBuffer(Attempt(0), 2)
    for rank in range(2):
        buffer.add(RankWindow(7, 0, rank, 2, stack="nccl.py:1 wait"), "n1", b.NOW)
    buffer.add(window(0, 0, [1.0]), "n1", b.NOW + 1)
    assert buffer.table(b.job().key).stacks == {1: "nccl.py:1 wait"}


def test_a_gang_whose_first_report_has_steps_is_known_to_start_quickly() -> None:
    """Zero seconds are a start that is not known, for which a move is priced high."""
    buffer = StepBuffer(Attempt(0), 2)
    buffer.add(window(0, 0, [1.0]), "n1", b.NOW)
    assert buffer.table(b.job().key).durations.startup == STARTUP_SECONDS_MIN
