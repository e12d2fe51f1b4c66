"""What the ring of step times promises."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import TracebackType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import builders as b
from understudy_controlplane.fleet.job import Attempt, JobKey
from understudy_controlplane.fleet.steps import SECTIONS_MAX, Durations, StepTable
from understudy_controlplane.live.step_buffer import (
    PAIRS_MAX,
    RANKS_AT_ONCE,
    STARTUP_SECONDS_MIN,
    STEPS_KEPT,
    StepBuffer,
)
from understudy_controlplane.live.telemetry import ExpectedJob, Telemetry
from understudy_wire.ranks import Collective, NcclSeen, ProcessNow, ProcessState, RankWindow, Transfers


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


ADDED = st.one_of(
    st.builds(window, st.integers(0, 1), st.integers(0, 9), st.lists(st.floats(0.1, 9.0), max_size=4)),
    st.builds(RankWindow, *map(st.just, (7, 0, 0, 2, 0, 1000)), st.sampled_from(["", "tp"]), st.just(0)),
    st.floats(0.0, 9.0),
)


@given(st.lists(ADDED, max_size=12))
def test_a_table_is_kept_while_nothing_is_added_and_is_what_a_new_one_would_be(added: list[RankWindow | float]) -> None:
    buffer, key = StepBuffer(Attempt(0), 2), b.job().key
    for place, one in enumerate(added):
        before = buffer.table(key)
        assert buffer.table(key) is before
        if isinstance(one, RankWindow):
            buffer.add(one, "n1", b.NOW + place)
        else:
            buffer.note_unheard(b.NOW + place, b.NOW + place + one)
        kept, new = buffer.table(key), buffer.copied(nullcontext()).table(key)
        assert (kept.kept is before.kept) is (kept.self_seconds is before.self_seconds)
        for name in (one.name for one in dataclasses.fields(StepTable) if one.compare):
            np.testing.assert_equal(getattr(kept, name), getattr(new, name), err_msg=name)


def test_no_one_changes_the_steps_of_a_table_that_others_have() -> None:
    buffer = StepBuffer(Attempt(0), 2)
    buffer.add(window(0, 0, [1.0]), "n1", b.NOW)
    with pytest.raises(ValueError, match="read-only"):
        buffer.table(b.job().key).self_seconds[0] = 2.0


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
        found = telemetry.interrupted(b.job().key, 0)
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
    assert telemetry.interrupted(b.job().key, 1) is not None, "nor has a later attempt"
    report(b.NOW + 80, 1)
    telemetry.expect({7: after}, {7}, {7: b.NOW + 60})
    assert known() is None


def ranks_at(
    telemetry: Telemetry, restart_count: int, launch: int, at: float, *steps: int, ended: bool = False
) -> None:
    times, first = [1.0] * len(steps), steps[0] if steps else 0
    window = RankWindow(
        7, restart_count, 0, 1, 0, 1000, "", first, self_seconds=times, wall_seconds=times, launch=launch, ended=ended
    )
    telemetry.receive(b.report("n1", ranks=[window]), at)


@pytest.mark.parametrize("left", ["requeued", "cancelled", "launched again"])
@pytest.mark.parametrize(
    ("stood_seconds", "ended", "known"), [(50.0, False, True), (5.0, False, False), (50.0, True, False)]
)
def test_a_gang_that_stood_when_its_attempt_ended_is_known_until_it_finishes_a_step(
    left: str, stood_seconds: float, ended: bool, known: bool
) -> None:
    """Not one whose ranks had ended by themselves, or that had finished a step just before."""
    telemetry, running = Telemetry(), ExpectedJob(0, 1000, frozenset({"n1"}))
    telemetry.know({"n1"})
    telemetry.expect({7: running})
    ranks_at(telemetry, 0, 0, b.NOW, 0)
    at, attempt = b.NOW + stood_seconds, (0, 1)
    if ended:
        ranks_at(telemetry, 0, 0, at, ended=True)
    if left != "launched again":
        telemetry.expect({}, {7}, read_at=at)
        attempt = (1, 0)
    if left == "requeued":
        telemetry.expect({7: dataclasses.replace(running, restart_count=1)}, {7}, read_at=at + 5)
    if left != "cancelled":
        ranks_at(telemetry, *attempt, at)
    found = telemetry.interrupted(b.job().key, attempt[0])
    assert (found is not None and (found.table.advanced_at, found.at) == (b.NOW, at)) is known
    assert telemetry.interrupted_jobs() == ({7} if known else set())
    if left == "cancelled":
        telemetry.expect({}, set(), read_at=at + 300)  # Slurm has forgotten it
    else:
        ranks_at(telemetry, *attempt, at + 9, 0)
    assert telemetry.interrupted_jobs() == set()


@pytest.mark.parametrize(("state", "known"), [("PENDING", False), ("CANCELLED", False), ("SUSPENDED", True)])
def test_that_a_gang_stood_when_its_attempt_ended_counts_for_an_hour_however_long_slurm_shows_its_job(
    state: str, known: bool
) -> None:
    """One that is suspended goes on where it stood."""
    telemetry, at = Telemetry(), b.NOW + 50
    telemetry.know({"n1"})
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset({"n1"}))})
    ranks_at(telemetry, 0, 0, b.NOW, 0)
    suspended = {7: at} if state == "SUSPENDED" else {}
    telemetry.expect({}, {7}, suspended, at)
    telemetry.expect({}, {7}, suspended, at + 3599)
    assert telemetry.interrupted_jobs() == {7}
    telemetry.expect({}, {7}, suspended, at + 3601)
    assert telemetry.interrupted_jobs() == ({7} if known else set())


def test_the_table_of_a_gang_that_was_interrupted_is_made_once_and_no_report_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    telemetry, make, waited = Telemetry(), StepBuffer.table, list[bool]()
    telemetry.know({"n1"})
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset({"n1"}))})
    ranks_at(telemetry, 0, 0, b.NOW, 0)
    telemetry.expect({}, {7}, read_at=b.NOW + 50)

    def table(buffer: StepBuffer, job: JobKey) -> StepTable:
        other = threading.Thread(target=telemetry.receive, args=(b.report("n1"), b.NOW + 51), daemon=True)
        other.start()
        other.join(2)
        waited.append(other.is_alive())
        return make(buffer, job)

    monkeypatch.setattr(StepBuffer, "table", table)
    first, second = (telemetry.interrupted(b.job().key, 0) for _ in range(2))
    assert first is not None and first is second
    assert waited == [False]
    assert telemetry.interrupted(b.job(submit_at=b.job().key.submit_at + 1).key, 0) is None, "another job of this id"


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


def test_answers_of_nccl_are_kept_of_few_ranks_until_they_go_on() -> None:
    buffer, seen = StepBuffer(Attempt(0), 8), NcclSeen("2.29.2", 1, still=True)
    for rank in range(8):
        process = ProcessNow(ProcessState.SLEEPS, 60.0)
        buffer.add(RankWindow(7, 0, rank, 8, process=process, nccl=seen), "n1", b.NOW)
    assert [*buffer.table(b.job().key).nccl] == [0, 1, 2]
    buffer.add(RankWindow(7, 0, 0, 8, 0, 1000, "", 0, [1.0], [1.0]), "n1", b.NOW + 1)
    assert [*buffer.table(b.job().key).nccl] == [1, 2]


def test_a_gang_whose_first_report_has_steps_is_known_to_start_quickly() -> None:
    """Zero seconds are a start that is not known, for which a move is priced high."""
    buffer = StepBuffer(Attempt(0), 2)
    buffer.add(window(0, 0, [1.0]), "n1", b.NOW)
    assert buffer.table(b.job().key).durations.startup == STARTUP_SECONDS_MIN


def test_a_gang_is_not_still_for_the_time_in_which_its_steps_were_lost() -> None:
    """Agents were silent for 900 s, and the first report after it has no step: one takes longer than a second."""
    telemetry = Telemetry()
    telemetry.know(["n1", "n2"])
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset(["n1", "n2"]))})

    def unheard() -> float:
        found = telemetry.table(b.job().key, 0)
        assert found is not None
        return found.unheard_seconds

    for at in range(3):
        telemetry.receive(b.report("n1", ranks=[window(0, at, [1.0])] if at < 2 else []), b.NOW + at)
        telemetry.receive(b.report("n2", ranks=[window(1, at, [1.0])] if at < 2 else []), b.NOW + at)
    assert unheard() == 0
    back = b.NOW + 2 + 900
    telemetry.receive(b.report("n1"), back)
    telemetry.receive(b.report("n2"), back + 1)
    assert unheard() == pytest.approx(901), "both were away at the same time"
    telemetry.receive(b.report("n2", ranks=[window(1, 700, [1.0])]), back + 2)
    assert unheard() == 0


class Interrupted:
    """A lock after each hold of which something else happens."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile
        self.holds = 0

    def __enter__(self) -> None:
        self.holds += 1

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._meanwhile()


WORLD = 2 * RANKS_AT_ONCE + 100
LAST_RANKS = (0, 5, RANKS_AT_ONCE, 2 * RANKS_AT_ONCE + 7, WORLD - 1)


def large_gang(steps: int) -> StepBuffer:
    """Each step takes as many seconds as its number."""
    buffer = StepBuffer(Attempt(0), WORLD)
    for rank in range(WORLD):
        train(buffer, rank, 0, steps)
    return buffer


def train(buffer: StepBuffer, rank: int, first: int, end: int) -> None:
    times = [float(step) for step in range(first, end)]
    buffer.add(RankWindow(7, 0, rank, WORLD, 0, 1000, "", first, times, times), f"n{rank}", b.NOW)


def test_a_copy_of_a_large_gang_has_the_same_table() -> None:
    buffer, job = large_gang(STEPS_KEPT + 3), b.job().key
    lock = Interrupted(lambda: None)
    found, known = buffer.copied(lock).table(job), buffer.table(job)
    for one in dataclasses.fields(StepTable):
        np.testing.assert_equal(getattr(found, one.name), getattr(known, one.name), one.name)
    assert lock.holds == 3


@pytest.mark.parametrize("reports", [False, True])
def test_the_table_of_a_large_gang_is_kept_unless_a_rank_reports_while_it_is_made(reports: bool) -> None:
    buffer, job = large_gang(3), b.job().key
    copy = buffer.copied(Interrupted(lambda: train(buffer, 0, 3, 4) if reports else None))
    made = copy.table(job)
    buffer.keep_table_of(copy)
    assert buffer.has_table(job) is not reports
    assert (buffer.table(job) is made) is not reports
    assert bool(buffer.table(job).last_step[0] > 2) is reports
    train(buffer, 1, 3, 4)
    assert not buffer.has_table(job)


def test_each_rank_is_of_one_moment_though_steps_are_reported_while_a_large_gang_is_copied() -> None:
    buffer, ends = large_gang(STEPS_KEPT), dict.fromkeys(LAST_RANKS, STEPS_KEPT)

    def report() -> None:
        for rank in LAST_RANKS:
            train(buffer, rank, ends[rank], ends[rank] + 3)
            ends[rank] += 3

    table = buffer.copied(Interrupted(report)).table(b.job().key)
    last = [int(table.last_step[rank]) for rank in LAST_RANKS]
    assert last == [STEPS_KEPT - 1, STEPS_KEPT - 1, STEPS_KEPT + 2, STEPS_KEPT + 5, STEPS_KEPT + 5]
    steps = np.arange(table.first_step, table.first_step + table.self_seconds.shape[1], dtype=np.float32)
    for rank, newest in zip(LAST_RANKS, last, strict=True):
        np.testing.assert_array_equal(table.self_seconds[rank], np.where(steps <= newest, steps, np.nan))


def test_reports_do_not_change_a_copy() -> None:
    buffer, job = large_gang(10), b.job().key
    copied = buffer.copied(Interrupted(lambda: None))
    before = copied.table(job)
    for rank in LAST_RANKS:
        buffer.add(
            replace(
                RankWindow(7, 0, rank, WORLD, 0, 1000, "", 10, [9.0], [9.0]),
                data_seconds=[1.0],
                work=[2.0],
                collective=Collective("all", 4, True),
                stack="in step",
                dp_rank=3,
            ),
            "other",
            b.NOW + 5,
        )
    after = copied.table(job)
    for one in dataclasses.fields(StepTable):
        np.testing.assert_equal(getattr(after, one.name), getattr(before, one.name), one.name)


def test_telemetry_shows_a_large_gang_as_its_buffer_does() -> None:
    telemetry, job = Telemetry(), b.job(job_id=7)
    telemetry.know(["n1"])
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset({"n1"}), ranks_max=WORLD)})
    for rank in LAST_RANKS:
        one = RankWindow(7, 0, rank, WORLD, 0, 1000, "", 0, [1.0], [1.0])
        assert telemetry.receive(b.report("n1", ranks=[one]), b.NOW) == []
    table = telemetry.table(job.key, 0)
    assert table is not None
    assert np.flatnonzero(table.last_step == 0).tolist() == [*LAST_RANKS]
    assert telemetry.table(job.key, 1) is None
