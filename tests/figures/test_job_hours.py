"""Every second of a job has one cause."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_controlplane.figures.ettr import ettr
from understudy_controlplane.figures.job_hours import Hours, hours
from understudy_controlplane.fleet.history import AttemptProgress, Loss, Mark

FOREVER = (0.0, 1e9)
FIRST = AttemptProgress(running_at=0, first_step=0, first_step_at=21, last_step=99, last_step_at=120)
"""20 s until its first step begins, then a step each second."""
SECOND = AttemptProgress(running_at=150, first_step=90, first_step_at=171, last_step=189, last_step_at=270)
"""It does ten steps again."""
RECOVERY = [
    Mark(121, Loss.DETECT),
    Mark(126, Loss.DECIDE),
    Mark(127, Loss.SWAP),
    Mark(150, Loss.START),
    Mark(162, Loss.RESTORE),
]


def of(found: Hours | None) -> Hours:
    assert found is not None
    return found


def test_a_recovery_is_attributed_phase_by_phase_and_sums_to_the_whole() -> None:
    marks = [Mark(0, Loss.START), Mark(12, Loss.RESTORE), *RECOVERY]
    found = of(hours([FIRST, SECOND], marks, *FOREVER))
    assert found.lost_seconds == pytest.approx(
        {
            Loss.START: 12 + 12,
            Loss.RESTORE: 8 + 8,
            Loss.RECOMPUTE: 10 + 1,  # ten whole steps, and the one under way
            Loss.DETECT: 5,
            Loss.DECIDE: 1,
            Loss.SWAP: 23,
            Loss.SLOW: 0,
        }
    )
    assert found.productive_seconds == pytest.approx(190)
    assert found.wall_seconds == pytest.approx(270)


def test_only_what_the_next_attempt_repeats_of_a_second_training_is_lost() -> None:
    """The first training took 40 steps of the 100; the next attempt goes on from step 50 of the second one."""
    found = of(
        hours([replace(FIRST, count_from=40), replace(SECOND, first_step=50, count_from=40)], RECOVERY, *FOREVER)
    )
    assert found.lost_seconds[Loss.RECOMPUTE] == pytest.approx(10 + 1)


def test_the_ratio_is_that_of_the_job() -> None:
    found, whole = of(hours([FIRST, SECOND], RECOVERY, *FOREVER)), ettr([FIRST, SECOND])
    assert whole is not None
    assert found.ettr == pytest.approx(whole.ratio)


def test_a_step_counts_once_where_a_later_attempt_goes_back_past_the_one_before_it() -> None:
    again = AttemptProgress(running_at=300, first_step=80, first_step_at=321, last_step=189, last_step_at=430)
    short = replace(SECOND, last_step=95, last_step_at=176)
    attempts = [FIRST, short, again]
    found, whole = of(hours(attempts, [], *FOREVER)), ettr(attempts)
    assert whole is not None
    assert found.productive_seconds == pytest.approx(whole.steps_kept * whole.step_seconds) == pytest.approx(190)


def test_a_span_counts_its_own_part_alone() -> None:
    parts = [of(hours([FIRST, SECOND], RECOVERY, *span)) for span in ((0.0, 124.0), (124.0, 1000.0))]
    whole = of(hours([FIRST, SECOND], RECOVERY, *FOREVER))
    assert [one.wall_seconds for one in parts] == pytest.approx([124, 146])
    for loss in Loss:
        assert sum(one.lost_seconds.get(loss, 0.0) for one in parts) == pytest.approx(whole.lost_seconds.get(loss, 0.0))
    assert parts[0].lost_seconds[Loss.DETECT] == pytest.approx(3)
    assert hours([FIRST], [], 500.0, 600.0) is None


def test_without_a_recovery_the_time_goes_to_who_noticed_late_and_to_slurm() -> None:
    marks = [Mark(140, Loss.SWAP), Mark(150, Loss.START)]  # Slurm ended the attempt, and started the next
    found = of(hours([FIRST, SECOND], marks, *FOREVER))
    assert (found.lost_seconds[Loss.DETECT], found.lost_seconds[Loss.SWAP]) == pytest.approx((20, 10))


def test_slow_steps_are_lost_for_what_they_took_longer() -> None:
    slow = AttemptProgress(running_at=150, first_step=100, first_step_at=152, last_step=199, last_step_at=350)
    found = of(hours([FIRST, slow], [], *FOREVER))
    assert found.lost_seconds[Loss.SLOW] == pytest.approx(100)


def test_a_gang_that_moves_while_it_works_loses_nothing_to_detection() -> None:
    marks = [Mark(60, Loss.DETECT), Mark(65, Loss.DECIDE), Mark(66, Loss.SWAP), Mark(150, Loss.START)]
    found = of(hours([FIRST, SECOND], marks, *FOREVER))
    assert found.lost_seconds[Loss.SWAP] == pytest.approx(30)
    assert found.lost_seconds.get(Loss.DETECT, 0.0) == 0.0


def test_a_gang_that_stands_still_loses_up_to_now() -> None:
    found = of(hours([FIRST], [Mark(121, Loss.DETECT), Mark(126, Loss.SWAP)], 0.0, 1000.0, stands_until=1000.0))
    assert found.lost_seconds[Loss.SWAP] == pytest.approx(874)
    assert found.wall_seconds == pytest.approx(1000)


def test_what_was_lost_between_two_attempts_is_lost_to_the_interruption_between_them() -> None:
    found = of(hours([FIRST, SECOND], [Mark(0, Loss.START), *RECOVERY], *FOREVER, interrupted_at=[121.0]))
    assert found.lost_to == pytest.approx({0: 10 + 1 + 5 + 1 + 23 + 12 + 8}), "all but the first start"
    found = of(hours([FIRST, SECOND], RECOVERY, *FOREVER, interrupted_at=[5.0, 121.0, 130.0, 500.0]))
    assert set(found.lost_to) == {1, 2}, "not to what happened before its first step, or after its last"
    assert hours([FIRST, SECOND], RECOVERY, *FOREVER) == replace(found, lost_to={})


def test_what_waits_in_the_queue_is_lost_to_no_interruption_as_it_holds_no_gpus() -> None:
    marks = [Mark(121, Loss.QUEUE), Mark(150, Loss.START)]
    found = of(hours([FIRST, SECOND], marks, *FOREVER, interrupted_at=[120.5]))
    assert found.lost_to == pytest.approx({0: 10 + 1 + 20})


def test_of_a_job_without_two_steps_nothing_is_known() -> None:
    assert hours([AttemptProgress(0, 0, 10, 0, 10)], [], *FOREVER) is None
    assert hours([], [], *FOREVER) is None


SECONDS = st.floats(0.01, 1000)
ATTEMPTS = st.lists(
    st.tuples(SECONDS, SECONDS, st.integers(1, 200), st.floats(0.1, 10), st.integers(0, 50)), min_size=1
)


@given(ATTEMPTS, st.lists(st.tuples(st.floats(0, 5000), st.sampled_from(Loss)), max_size=12))
def test_whatever_happened_every_second_has_one_cause(
    shapes: list[tuple[float, float, int, float, int]], marked: list[tuple[float, Loss]]
) -> None:
    attempts, at, step = [], 0.0, 0
    for waits, starts, steps, seconds, back in shapes:
        begun, step = at + waits, max(0, step - back)
        first = begun + starts + seconds
        at = first + (steps - 1) * seconds
        attempts.append(AttemptProgress(begun, step, first, step + steps - 1, at))
        step += steps
    found = hours(attempts, [Mark(*one) for one in marked], *FOREVER)
    if found is None:
        assert ettr(attempts) is None
        return
    assert found.wall_seconds == pytest.approx(at - attempts[0].running_at)
    assert min(found.lost_seconds.values(), default=0.0) >= -1e-6
    assert found.ettr is not None
    assert 0 <= found.ettr <= 1
