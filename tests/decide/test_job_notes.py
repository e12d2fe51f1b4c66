"""What the owner of a running job reads in its output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests import builders as b
from understudy_controlplane.config import Mode
from understudy_controlplane.decide.job_notes import job_notes
from understudy_controlplane.detect.straggler import NOT_PRICED
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Attempt, FirstNan
from understudy_controlplane.fleet.snapshot import Snapshot

JOB = b.job()
SUMMARY = "rank 1 takes 1.12 times as long as its peers since step 80; cause clocks"


def seen(attempt: Attempt = Attempt(0), **values: Any) -> Snapshot:  # noqa: B008 - it is frozen
    table = replace(b.step_table(np.ones((8, 100)).tolist()), attempt=attempt)
    nodes = [b.node(f"n{number}") for number in range(1, 9)]
    jobs = values.pop("jobs", [JOB])
    return b.changed(b.snapshot(*nodes, jobs=jobs, tables={JOB.key: table}), **values)


def slow(rule: str = "straggler.self_time", signal: Signal = Signal.STRAGGLER_SUSPECTED) -> Finding:
    return Finding(signal, rule, "n2", b.NOW, SUMMARY, job=JOB.key)


def nan(rank: int = 3, attempt: int = 0) -> FirstNan:
    return FirstNan(JOB.key, Attempt(attempt), 70, ("n4",), rank, b.NOW)


def test_a_slow_rank_is_named_with_its_node_its_step_and_where_to_read_more() -> None:
    (note,) = job_notes(seen(Attempt(2, 3)), [slow()])
    number = JOB.key.job_id
    assert (note.job_id, note.restart_count, note.launch, note.user_id) == (number, 2, 3, JOB.slurm.user_id)
    assert note.text == f"on n2, {SUMMARY}. `understudy explain job {number}` shows what follows"


def test_where_the_price_of_a_move_is_not_known_the_owner_reads_what_moves_the_gang() -> None:
    (before,) = job_notes(seen(), [slow()])
    (note,) = job_notes(seen(), [slow(NOT_PRICED)])
    assert note.key != before.key, "it is written although the slow rank was named before"
    assert "checkpoint_saved" in note.text
    assert f"`understudy job move {JOB.key.job_id} REASON --off n2`" in note.text


def test_a_gang_that_is_slow_as_a_whole_has_a_note() -> None:
    whole = replace(slow("straggler.gang", Signal.GANG_SLOW), node="")
    assert [note.text.startswith("rank 1 takes") for note in job_notes(seen(), [whole])] == [True]


def test_a_gang_that_slurm_has_scattered_has_a_note() -> None:
    far = replace(slow("placement.request", Signal.GANG_SCATTERED), node="", summary="it asks for --segment=4, and …")
    (note,) = job_notes(seen(), [far])
    assert note.text.startswith("it asks for --segment=4")


def test_nan_of_any_other_rank_has_a_note_and_rank_0_writes_its_own() -> None:
    (note,) = job_notes(seen(first_nans=(nan(),)), [])
    assert note.text.startswith("loss or gradient norm is NaN on rank 3 (n4) since step 70: checkpoints from there on")
    assert list(job_notes(seen(first_nans=(nan(rank=0),)), [])) == []
    assert list(job_notes(seen(Attempt(1), first_nans=(nan(),)), [])) == [], "of an attempt that is over"


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": Mode.OBSERVE},
        {"tables": {}},
        {"jobs": [replace(JOB, managed=False)]},
        {"jobs": [b.job(state="COMPLETED")]},
    ],
    ids=["mode observe", "no rank reports", "not managed", "ended"],
)
def test_no_other_job_has_a_note(changes: dict[str, Any]) -> None:
    assert list(job_notes(seen(first_nans=(nan(),), **changes), [slow()])) == []


def test_other_findings_are_no_notes() -> None:
    assert list(job_notes(seen(), [slow(signal=Signal.HARDWARE_FAULT)])) == []
