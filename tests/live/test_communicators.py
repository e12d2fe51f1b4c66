"""What NCCL's collectives took in a gang, by communicator and minute."""

from __future__ import annotations

import pytest

from understudy_controlplane.fleet.steps import CommunicatorTimes, TimedKind
from understudy_controlplane.live import communicators
from understudy_controlplane.live.communicators import MINUTES_KEPT, CommunicatorBuffer
from understudy_wire.ranks import KINDS_MAX, CollectiveKind, CollectiveTimes


def times(minute: int, seconds: float, name: str = "0xa", ranks: int = 2) -> CollectiveTimes:
    return CollectiveTimes(minute, [CollectiveKind(name, ranks, 1, "AllReduce", 1024, seconds)])


def known(buffer: CommunicatorBuffer) -> dict[str, tuple[float, ...]]:
    return {one.name: one.seconds[TimedKind("AllReduce", 1024)] for one in buffer.shown.known}


def test_the_shortest_of_all_ranks_counts_once_all_have_reported_a_minute_that_is_over() -> None:
    buffer = CommunicatorBuffer(16)
    for minute in range(3):
        buffer.add(4, times(minute, 0.5), 100.0 + minute)
        if minute != 1:
            buffer.add(7, times(minute, 0.1 + minute), 100.0 + minute)
    assert buffer.shown.known == (CommunicatorTimes("0xa", "", (4, 7), 1, {TimedKind("AllReduce", 1024): (0.1,)}),)
    buffer.add(7, times(1, 0.4), 103.0)  # late
    buffer.add(4, times(3, 0.5), 104.0)
    assert known(buffer) == {"0xa": (0.1, 0.4, 0.5)}
    assert buffer.shown.at == 104.0


def test_a_report_that_comes_twice_changes_nothing() -> None:
    buffer = CommunicatorBuffer(16)
    for _ in range(2):
        buffer.add(4, times(0, 0.5), 100.0)
    buffer.add(4, times(1, 0.5), 160.0)
    assert known(buffer) == {}, "rank 7 has reported nothing"


def test_a_rank_whose_clock_is_wrong_does_not_hide_what_others_report() -> None:
    buffer = CommunicatorBuffer(16)
    buffer.add(9, times(10_000, 0.5), 100.0)
    for minute in range(2):
        for rank in (4, 7):
            buffer.add(rank, times(minute, 0.5), 60.0 * minute + 60.0)
    assert known(buffer) == {"0xa": (0.5,)}


def test_a_name_that_more_ranks_use_than_the_communicator_has_is_not_shown() -> None:
    buffer = CommunicatorBuffer(16)
    for minute, ranks in enumerate(((4, 7), (4, 8))):
        for rank in ranks:
            kind = CollectiveKind("0xa", 2, 1, f"AllReduce{minute}", 1024, 0.5)
            buffer.add(rank, CollectiveTimes(0, [kind]), 100.0)
    buffer.add(4, times(1, 0.5), 160.0)
    assert buffer.shown.known == ()


def test_old_minutes_and_communicators_are_forgotten_and_more_than_are_kept_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(communicators, "COMMUNICATORS_MAX", 1)
    buffer = CommunicatorBuffer(16)
    for name in ("0xa", "0xb"):
        for rank in (0, 1):
            buffer.add(rank, times(0, 0.5, name), 100.0)
    buffer.add(0, times(1, 0.5), 160.0)
    assert known(buffer) == {"0xa": (0.5,)}
    buffer.add(0, times(1 + MINUTES_KEPT, 0.5, "0xc"), 400.0)
    buffer.add(1, times(1 + MINUTES_KEPT, 0.5, "0xc"), 400.0)
    buffer.add(0, times(0, 0.5), 401.0)  # too late
    buffer.add(0, times(2 + MINUTES_KEPT, 0.5, "0xc"), 460.0)
    assert known(buffer) == {"0xc": (0.5,)}


def test_a_gang_has_no_more_communicators_than_its_ranks_can_name_and_none_that_is_larger() -> None:
    """Names are a user's: without a bound a gang of one rank would fill memory with them."""
    buffer, most = CommunicatorBuffer(1), KINDS_MAX * MINUTES_KEPT
    for number in range(2 * most):
        buffer.add(0, times(0, 0.5, f"larger{number}", ranks=2), 100.0)
    for number in range(2 * most):
        buffer.add(0, times(0, 0.5, f"own{number}", ranks=1), 100.0)
    buffer.add(0, times(1, 0.5, ranks=1), 160.0)
    assert [*known(buffer)] == [f"own{number}" for number in range(most)]
