"""What the straggler rule says of real training jobs."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np

from tests import builders as b
from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.slow_ranks import SlowRank, slow_ranks
from understudy_controlplane.fleet.steps import StepTable

DATA = Path(__file__).resolve().parents[1] / "data"


def load(name: str, steps_max: int | None = None) -> StepTable:
    """Self time is compute: forward and backward. Ranks are compared within their pipeline stage."""
    with gzip.open(DATA / name, "rt") as file:
        rows = list(csv.DictReader(file))
    steps = sorted({int(row["step"]) for row in rows})[:steps_max]
    ranks = sorted({int(row["rank"]) for row in rows})
    times = np.full((len(ranks), len(steps)), np.nan, dtype=np.float32)
    stages = {int(row["rank"]): row["stage"] for row in rows}
    for row in rows:
        if int(row["step"]) in steps:
            place = ranks.index(int(row["rank"])), steps.index(int(row["step"]))
            times[place] = float(row["forward_seconds"]) + float(row["backward_seconds"])
    return b.step_table(times.tolist(), roles=[stages[rank] for rank in ranks])


def suspects_over_time(table: StepTable) -> dict[int, SlowRank]:
    """Who is ever a suspect while the steps come in, one after the other."""
    found: dict[int, SlowRank] = {}
    for steps in range(1, table.self_seconds.shape[1] + 1):
        part = b.step_table(table.self_seconds[:, :steps].tolist(), roles=table.roles)
        found |= {slow.rank: slow for slow in slow_ranks(part, Straggler()) if slow.rank not in found}
    return found


def test_the_injected_slow_worker_is_named_within_forty_steps_and_no_other() -> None:
    found = suspects_over_time(load("steps-slow-worker.csv.gz", steps_max=40))
    assert list(found) == [0]
    assert 2.0 < found[0].ratio < 2.7


def test_a_job_whose_sequence_lengths_vary_has_no_straggler() -> None:
    assert suspects_over_time(load("steps-sequence-imbalance.csv.gz")) == {}


def test_without_roles_the_slow_worker_is_named_as_well_and_still_no_other() -> None:
    for name, slow in (("steps-slow-worker.csv.gz", [0]), ("steps-sequence-imbalance.csv.gz", [])):
        table = load(name)
        pooled = b.step_table(table.self_seconds.tolist())
        assert list(suspects_over_time(pooled)) == slow
