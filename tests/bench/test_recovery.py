"""The judging of the recovery bench: what counts as back, what was lost, and what the JSON holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.bench import result
from tests.bench.recovery import job as program
from tests.bench.recovery import never
from tests.bench.recovery.job import weight_after
from tests.bench.recovery.judge import (
    Run,
    Step,
    broken_promises,
    figures,
    first_step_after,
    judge,
    read_joined,
    read_steps,
    weights_right,
)

pytestmark = pytest.mark.integration

BEFORE = [Step(100 + number, "old", number + 1) for number in range(10)]
FAULT_AT = 109.5
RUN = Run("understudy", "xid", 45.0)


def test_the_first_step_of_another_gang_counts_and_not_the_last_ones_of_the_old() -> None:
    steps = [*BEFORE, Step(109.6, "old", 11), Step(112.0, "new", 9), Step(112.1, "new", 10)]
    assert first_step_after(steps, FAULT_AT) == Step(112.0, "new", 9)
    assert first_step_after(steps[:-2], FAULT_AT) is None


def test_times_and_lost_steps_are_those_of_the_gang_that_did_the_step() -> None:
    """A launch between the two, which failed before its first step, is part of the price."""
    steps = [*BEFORE, Step(112.0, "new", 9)]
    joined = [
        {"gang": "between", "began": 110.0, "joined": 110.1},
        {"gang": "new", "began": 111.0, "joined": 111.75},
        {"gang": "new", "began": 111.25, "joined": 111.5},
    ]
    run = judge(RUN, steps, joined, FAULT_AT, 110.0)
    assert (run.to_detection_seconds, run.to_gang_seconds, run.to_first_step_seconds) == (0.5, 1.75, 2.5)
    assert run.to_communicator_seconds == 2.25
    assert run.steps_lost == 2, "ten were done, it went on with the ninth"


def test_a_gang_that_does_not_come_back_has_no_times() -> None:
    run = judge(RUN, BEFORE, [], FAULT_AT, None)
    assert (run.to_detection_seconds, run.to_gang_seconds, run.to_first_step_seconds, run.steps_lost) == (None,) * 4


def test_a_line_that_is_half_written_is_left_for_the_next_look() -> None:
    assert read_steps("100.5 g1 1\n101.5 g1 2\n102.") == [Step(100.5, "g1", 1), Step(101.5, "g1", 2)]
    assert read_joined('{"rank": 0}\n{"ra') == [{"rank": 0}]


def test_weights_are_right_only_where_every_rank_has_those_of_the_run_without_faults() -> None:
    final = [{"rank": rank, "step": 40, "weight": weight_after(40, 3)} for rank in range(3)]
    assert weights_right(final, 3)
    assert not weights_right(final[:2], 3)
    assert not weights_right([*final[:2], {**final[2], "weight": 1}], 3)
    assert not weights_right([*final[:2], {**final[2], "step": 41}], 3)


BACK = replace(
    RUN,
    to_detection_seconds=0.1,
    to_gang_seconds=0.5,
    to_communicator_seconds=0.75,
    to_first_step_seconds=1.0,
    steps_lost=6,
    weights_right=True,
)
RUNS = [
    BACK,
    replace(BACK, to_gang_seconds=0.75),
    replace(BACK, to_gang_seconds=0.625),
    replace(BACK, side="nvrx", to_gang_seconds=2.5),
    replace(RUN, side="plain_slurm"),
]


def test_the_json_has_medians_worst_and_the_rivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "BENCH_DIRECTORY", tmp_path)
    results = json.loads(result.write("recovery", figures(RUNS)).read_text())["results"]
    assert [one["name"] for one in results] == [
        "xid_to_detection_seconds",
        "xid_to_gang_seconds",
        "xid_to_communicator_seconds",
        "xid_to_first_step_seconds",
        "xid_steps_lost",
    ]
    gang = results[1]
    assert (gang["n"], gang["median"], gang["worst"]) == (3, 0.625, 0.75)
    assert gang["rivals"] == {"nvrx": 2.5, "plain_slurm": None}
    assert Run(**json.loads(json.dumps(asdict(BACK)))) == BACK


def test_a_gang_of_understudy_that_does_not_recover_or_ends_with_other_weights_is_an_error() -> None:
    assert broken_promises(RUNS) == []
    assert "not back within 45 s" in broken_promises([RUN])[0]
    assert "the weights differ" in broken_promises([replace(BACK, weights_right=False)])[0]
    assert broken_promises([replace(BACK, side="nvrx", weights_right=False)]) == []


def test_what_a_rival_does_not_recover_from_is_kept_with_its_day_and_shown_without_another_run(tmp_path: Path) -> None:
    path = tmp_path / "bench" / "never.json"
    lost = replace(RUN, side="torchrun", remark="job is RUNNING")
    never.keep([lost, *RUNS, replace(RUN, side="understudy_pool")], "2026-11-26", path)
    assert [(one.side, one.fault, one.day) for one in never.read(path)] == [
        ("plain_slurm", "xid", "2026-11-26"),
        ("torchrun", "xid", "2026-11-26"),
    ]
    shown = never.read(path)[1].as_run()
    assert (shown.to_first_step_seconds, shown.waited_seconds) == (None, 45.0)
    assert shown.remark == "job is RUNNING (2026-11-26)"
    never.keep([replace(BACK, side="torchrun")], "2026-12-01", path)
    assert [one.side for one in never.read(path)] == ["plain_slurm"], "it recovers now"


def test_the_job_trains_to_the_weights_that_are_asked_of_it(tmp_path: Path) -> None:
    """Three ranks without Slurm; the second start goes on from the newest complete checkpoint."""
    (tmp_path / "faults").mkdir()
    ranks = start(tmp_path)
    while not (tmp_path / "checkpoints" / "10").exists():
        time.sleep(0.005)
    (tmp_path / "faults" / "two").write_text("crash")
    assert statuses(ranks) == {1}, "one crashes, and all end with it"
    (tmp_path / "stop").write_text("60")
    assert statuses(start(tmp_path)) == {0}
    assert weights_right(read_joined((tmp_path / "final").read_text()), 3)
    steps = read_steps((tmp_path / "steps").read_text())
    assert len({step.gang for step in steps}) == 2
    assert steps[-1].done == 60


def start(directory: Path) -> list[subprocess.Popen[bytes]]:
    ranks = []
    for rank, node in enumerate(("one", "two", "three")):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "3", "SLURMD_NODENAME": node}
        command = [sys.executable, program.__file__, str(directory), "--step-seconds", "0.005"]
        ranks.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
    return ranks


def statuses(ranks: list[subprocess.Popen[bytes]]) -> set[int]:
    return {one.wait(timeout=30) for one in ranks}
