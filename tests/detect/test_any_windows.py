"""Whatever ranks report, all judgement goes on: users choose what comes from them, and one job must not stop others."""

from __future__ import annotations

import warnings
from random import Random

import msgspec
import pytest

from tests import builders as b
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.live.telemetry import ExpectedJob, Telemetry
from understudy_wire.messages import Report
from understudy_wire.ranks import Collective, RankWindow, Training, Transfers

RANKS, STEPS, REPORTS = 4, 50, 8
DURATIONS = [
    [0.0],
    [0.0, 0.0, 0.0, 1e-2],  # as of steps that are skipped
    [1e-6, 1.0, 999_999.0],
    [1.0, 1.01, 1.02],
]
AMOUNTS = [None, 0.0, 5e-324, 1.0, 1e30]


def any_window(random: Random, rank: int, first: int, durations: list[float]) -> RankWindow:
    def times() -> list[float]:
        return [random.choice(durations) for _ in range(STEPS)]

    return RankWindow(
        7,
        0,
        rank,
        RANKS,
        random.choice([None, 0, 99]),
        1000,
        random.choice(["", "stage"]),
        first,
        times(),
        times(),
        dp_rank=random.choice([None, 0, rank, 2**31 - 1]),
        data_seconds=random.choice([[], times()]),
        work=random.choice([[], [random.choice(AMOUNTS) for _ in range(STEPS)]]),
        training=Training(
            tokens_per_second=random.choice(AMOUNTS),
            flops_per_token=random.choice(AMOUNTS),
            compute_step=first,
            compute_seconds=0.0,
            all_reduce_seconds=0.0,
        ),
        transfers=[Transfers(random.randrange(RANKS), times()) for _ in range(random.randrange(3))],
        collective=random.choice([None, Collective("all_reduce", random.choice([0, 2**53]), 0.0)]),
    )


@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("seed", range(4))
def test_no_report_of_a_rank_ends_the_judgement(durations: list[float], seed: int) -> None:
    random, telemetry = Random(seed), Telemetry()  # noqa: S311 - not for secrets
    job = b.job(comment="understudy mfu=0.4")
    telemetry.know(["n1", "n2", "n3", "n4"])
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset(["n1", "n2", "n3", "n4"]))})
    for number in range(REPORTS):
        for rank in range(RANKS):
            window = any_window(random, rank, number * STEPS, durations)
            sent = msgspec.json.encode(b.report(f"n{rank + 1}", ranks=[window]))
            assert telemetry.receive(msgspec.json.decode(sent, type=Report), b.NOW - 500 + number) == []
    table = telemetry.table(job.key, 0)
    assert table is not None and table.last_step.min() == REPORTS * STEPS - 1
    snapshot = b.changed(b.snapshot(jobs=[job]), tables={job.key: table})
    with warnings.catch_warnings(record=True) as printed:  # a detector's own error would be a finding
        warnings.simplefilter("always")
        decide(snapshot, detect(snapshot, b.config()), b.config())
    assert printed == [], "the log of the control plane is not for numpy's warnings about users' numbers"
