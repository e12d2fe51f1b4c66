"""The newest checkpoint that is good: what NaN and jumps make of those that were written after."""

from __future__ import annotations

from typing import Any

from tests import builders as b
from understudy_agent.wire import AnomalyKind
from understudy_controlplane.decide.restore_point import choose, decide, explain, suspicion
from understudy_controlplane.fleet.job import Attempt, Checkpoint, RestoreAnswer, RestoreDecision, StoredAnomaly


def written(step: int, attempt: int = 0, path: str = "") -> Checkpoint:
    return Checkpoint(step, path or f"/c/{attempt}/{step}", 4, 100.0 * attempt + step, Attempt(attempt))


def anomaly(step: int, until: int | None = None, attempt: int = 0, **changes: Any) -> StoredAnomaly:
    values = {"kind": AnomalyKind.LOSS_NAN, "rank": 3, "node": "n2", "received_at": b.NOW, **changes}
    return StoredAnomaly(
        id=1,
        job=b.job().key,
        attempt=Attempt(attempt),
        world_size=4,
        step=step,
        until=until,
        value="nan",
        **values,
    )


THREE = [written(20), written(40), written(60)]


def test_checkpoints_from_that_step_on_are_passed_over() -> None:
    assert choose(THREE, [anomaly(41)]) == written(40)
    assert choose(THREE, [anomaly(40)]) == written(20)  # step 40 itself showed what its weights were
    assert choose(THREE, [anomaly(61)]) == written(60)


def test_when_none_is_good_it_is_not_known_and_not_the_beginning() -> None:
    decision = decide(THREE, THREE, [anomaly(3)])
    assert (decision.answer, decision.path) == (RestoreAnswer.UNKNOWN, "")
    assert "none is good" in decision.why


def test_it_is_the_beginning_only_where_nothing_was_ever_saved() -> None:
    assert decide([], []) == RestoreDecision(RestoreAnswer.FRESH)
    ended_in_its_first_save = [written(20), written(20, attempt=1)]
    assert decide([], ended_in_its_first_save).answer is RestoreAnswer.FRESH
    never_whole = decide([], THREE)
    assert never_whole.answer is RestoreAnswer.UNKNOWN
    assert never_whole.why == "3 checkpoints were announced, none of them by every rank of the gang"
    assert decide(THREE[:1], THREE) == RestoreDecision(RestoreAnswer.RESTORE, 20, "/c/0/20")


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


def run_of(steps: int) -> list[Checkpoint]:
    return [written(step) for step in range(500, steps + 1, 500)]


def jump(step: int, **changes: Any) -> StoredAnomaly:
    return anomaly(step, **({"kind": AnomalyKind.GRAD_NORM_JUMP} | changes))


def test_what_is_no_proof_costs_no_large_part_of_the_run() -> None:
    assert choose(run_of(10_000), [jump(2_501)]) == written(10_000), "7,500 steps of 10,000"
    assert choose(run_of(10_000), [jump(9_200)]) == written(9_000)
    assert choose(run_of(10_000), [jump(1)]) == written(10_000), "never from the beginning"
    assert "in spite of grad_norm_jump" in explain(run_of(10_000), [jump(2_501)])
    assert choose(run_of(10_000), [jump(2_501, kind=AnomalyKind.GRAD_NORM_NAN)]) == written(10_000)


def test_nan_in_the_loss_proves_that_a_checkpoint_is_bad_whatever_it_costs() -> None:
    assert choose(run_of(10_000), [anomaly(2_501)]) == written(2_500)
    assert choose(run_of(10_000), [anomaly(9_900), jump(2_501)]) == written(9_500)


def test_a_suspicion_ends_with_time() -> None:
    old = jump(55, received_at=-7 * 3600.0)
    assert not suspicion(written(60), [old])
    assert suspicion(written(60), [jump(55, received_at=-3600.0)])
    assert suspicion(written(60), [anomaly(55, received_at=-7 * 3600.0)])
