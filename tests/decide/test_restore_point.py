"""The newest checkpoint that is good: what NaN and jumps make of those that were written after."""

from __future__ import annotations

from typing import Any

from tests import builders as b
from understudy_agent.wire import AnomalyKind
from understudy_controlplane.decide.restore_point import choose, explain, suspicion
from understudy_controlplane.fleet.job import Attempt, Checkpoint, StoredAnomaly


def written(step: int, attempt: int = 0, path: str = "") -> Checkpoint:
    return Checkpoint(step, path or f"/c/{attempt}/{step}", 4, 100.0 * attempt + step, Attempt(attempt))


def anomaly(step: int, until: int | None = None, attempt: int = 0, **changes: Any) -> StoredAnomaly:
    values = {"kind": AnomalyKind.LOSS_NAN, "rank": 3, "node": "n2", **changes}
    return StoredAnomaly(
        id=1,
        job=b.job().key,
        attempt=Attempt(attempt),
        world_size=4,
        step=step,
        until=until,
        value="nan",
        received_at=b.NOW,
        **values,
    )


THREE = [written(20), written(40), written(60)]


def test_checkpoints_from_that_step_on_are_passed_over() -> None:
    assert choose(THREE, [anomaly(41)]) == written(40)
    assert choose(THREE, [anomaly(40)]) == written(20)  # step 40 itself showed what its weights were
    assert choose(THREE, [anomaly(61)]) == written(60)


def test_when_none_is_good_it_is_the_beginning_in_words() -> None:
    assert choose(THREE, [anomaly(3)]) is None
    assert "none is good: from the beginning" in explain(THREE, [anomaly(3)])


def test_the_words_name_step_rank_node_and_what_was_seen() -> None:
    words = explain(THREE, [anomaly(50), anomaly(45, kind=AnomalyKind.GRAD_NORM_JUMP, rank=1, node="n1")])
    assert words == (
        "step 40 is the newest good one; suspect are step 60: grad_norm_jump (nan) on rank 1 (n1) since step 45"
    )
    assert explain(THREE, []) == ""
    assert explain(THREE, [anomaly(61)]) == ""


def test_of_many_the_newest_are_named() -> None:
    many = [written(step) for step in range(10, 100, 10)]
    assert explain(many, [anomaly(5)]).endswith("; and 6 more")


def test_where_it_was_as_before_later_ones_are_good() -> None:
    over = [anomaly(30, until=45)]
    assert choose(THREE, over) == written(60)
    assert [bool(suspicion(one, over)) for one in THREE] == [False, True, False]


def test_another_attempts_checkpoints_are_not_touched() -> None:
    assert choose([*THREE, written(50, attempt=1)], [anomaly(41)]) == written(50, attempt=1)
    assert choose([*THREE, written(50, attempt=1)], [anomaly(41, attempt=1)]) == written(60)


def test_a_good_checkpoint_that_a_suspect_one_was_written_over_is_gone() -> None:
    same = [written(60, 0, "/c/60"), written(60, 1, "/c/60"), written(20, 0, "/c/20")]
    assert choose(same, [anomaly(55, attempt=1)]) == written(20, 0, "/c/20")
    assert choose(same, [anomaly(55, attempt=0)]) == written(60, 1, "/c/60")
