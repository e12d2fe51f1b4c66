"""Loss, gradient norm and tokens per second, as the hook reports them."""

from __future__ import annotations

import math

from understudy.training import TrainingNumbers
from understudy_agent.rank_messages import Hello, Steps, TrainingSeen
from understudy_agent.step_windows import WindowBuffer
from understudy_wire.ranks import Training


def test_a_rate_counts_tokens_between_two_times_and_not_those_of_the_first_step() -> None:
    numbers = TrainingNumbers()
    for step in range(5):
        numbers.add(step, None, None, 1000.0, 10.0 + step)
    assert numbers.due(100.0) == {"type": "training", "step": 4, "tokens_per_second": 1000.0}
    numbers.add(5, None, None, 1000.0, 16.0)
    assert numbers.due(102.0) == {"type": "training", "step": 5, "tokens_per_second": 500.0}, "a pause counts"


def test_it_is_due_once_a_second_where_something_is_new() -> None:
    numbers = TrainingNumbers()
    assert numbers.due(100.0) is None
    numbers.add(1, 2.5, None, None, 0.0)
    assert numbers.due(100.0) is not None
    assert numbers.due(102.0) is None
    numbers.add(2, 2.4, 0.5, None, 0.0)
    assert numbers.due(100.5) is None
    assert numbers.due(101.0) == {"type": "training", "step": 2, "loss": 2.4, "grad_norm": 0.5}


def test_what_is_no_number_is_left_out() -> None:
    numbers = TrainingNumbers()
    numbers.add(1, 2.5, 0.5, None, 0.0)
    numbers.add(2, math.nan, math.inf, math.nan, 0.0)
    assert numbers.due(100.0) == {"type": "training", "step": 2, "loss": None, "grad_norm": None}
    numbers.add(3, 2.5, None, -1.0, 5.0)
    assert numbers.due(102.0) == {"type": "training", "step": 3, "loss": 2.5, "grad_norm": None}


def test_the_agent_passes_the_newest_on_with_the_steps() -> None:
    windows, hello = WindowBuffer(), Hello(job_id=7, restart_count=0, rank=0, world_size=1)
    for loss in (3.0, 2.0):
        windows.place(hello, TrainingSeen(5, loss, 0.5, 1000.0, 6e9), 1000)
    windows.add(hello, Steps(5, [0.1], [0.1]), 1000)
    [window] = windows.take()
    assert window.training == Training(5, 2.0, 0.5, 1000.0, 6e9)
