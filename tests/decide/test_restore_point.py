"""The newest checkpoint that is good: what NaN and jumps make of those that were written after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests import builders as b
from understudy_controlplane.decide.restore_point import Catalogue, choose, decide, explain, judged
from understudy_controlplane.fleet.job import (
    Attempt,
    Checkpoint,
    RestoreAnswer,
    RestoreDecision,
    StoredAnomaly,
    StoredRestoreReport,
    suspicion,
)
from understudy_wire.facts import AnomalyKind, Layout, RestoreOutcome


def written(step: int, attempt: int = 0, path: str = "") -> Checkpoint:
    return Checkpoint(KEY, step, path or f"/c/{attempt}/{step}", 4, 100.0 * attempt + step, Attempt(attempt))


def anomaly(step: int, until: int | None = None, attempt: int = 0, **changes: Any) -> StoredAnomaly:
    values = {"kind": AnomalyKind.LOSS_NAN, "rank": 3, "node": "n2", "received_at": b.NOW, **changes}
    return StoredAnomaly(
        id=1,
        job=KEY,
        attempt=Attempt(attempt),
        world_size=4,
        step=step,
        until=until,
        value="nan",
        **values,
    )


KEY = b.job().key
NEXT = Attempt(1)
THREE = [written(20), written(40), written(60)]


def test_checkpoints_from_that_step_on_are_passed_over() -> None:
    assert choose(THREE, [anomaly(41)]) == written(40)
    assert choose(THREE, [anomaly(40)]) == written(20)  # step 40 itself showed what its weights were
    assert choose(THREE, [anomaly(61)]) == written(60)


def test_when_none_is_good_it_is_not_known_and_not_the_beginning() -> None:
    decision = decide(Catalogue(THREE, THREE, [anomaly(3)]), KEY, NEXT)
    assert (decision.answer, decision.path) == (RestoreAnswer.UNKNOWN, "")
    assert "none is good" in decision.why


def test_it_is_the_beginning_only_where_nothing_was_ever_saved() -> None:
    assert decide(Catalogue([], []), KEY, NEXT) == RestoreDecision(RestoreAnswer.FRESH)
    ended_in_its_first_save = [written(20), written(20, attempt=1)]
    assert decide(Catalogue([], ended_in_its_first_save), KEY, NEXT).answer is RestoreAnswer.FRESH
    never_whole = decide(Catalogue([], THREE), KEY, NEXT)
    assert never_whole.answer is RestoreAnswer.UNKNOWN
    assert never_whole.why == "3 checkpoints were announced, none of them by every rank of the gang"
    assert decide(Catalogue(THREE[:1], THREE), KEY, NEXT) == RestoreDecision(RestoreAnswer.RESTORE, 20, "/c/0/20")


def restored(attempt: int, step: int = 60, outcome: RestoreOutcome = RestoreOutcome.FAILED) -> StoredRestoreReport:
    error = "BadZipFile()" if outcome is RestoreOutcome.FAILED else ""
    return StoredRestoreReport(KEY, Attempt(attempt), 3, "n2", step, f"/c/0/{step}", outcome, error, b.NOW)


def restore(attempt: int, *reports: StoredRestoreReport, complete: list[Checkpoint] | None = None) -> RestoreDecision:
    there = THREE if complete is None else complete
    return decide(Catalogue(there, there, restores=reports), KEY, Attempt(attempt))


def test_a_restore_that_failed_in_two_attempts_strikes_the_checkpoint_off() -> None:
    assert restore(2, restored(1)).step == 60, "once may be the node's fault"
    assert restore(2, restored(1), restored(1)).step == 60, "two ranks of one attempt are one failure"
    struck = restore(3, restored(1), restored(2))
    assert struck.step == 40
    assert struck.why == "step 60: it was not restored in attempts 1 of job 7, 2 of job 7 (rank 3 on n2: BadZipFile())"


def test_a_checkpoint_that_was_written_again_is_not_struck_off_for_what_was_there_before() -> None:
    again = written(60, 2, "/c/0/60")
    assert restore(4, restored(1), restored(2), complete=[*THREE[:2], again]).step == 60
    assert restore(5, restored(3), restored(4), complete=[*THREE[:2], again]).step == 40


def test_what_is_not_there_is_passed_over_and_the_next_good_one_restored() -> None:
    missing, seen = restored(1, 60, RestoreOutcome.MISSING), restored(1, 60, RestoreOutcome.SEEN)
    assert restore(1, missing) == RestoreDecision(
        RestoreAnswer.RESTORE, 40, "/c/0/40", "step 60: it is not there on n2"
    )
    short = replace(missing, error="/c/0/60 has 4 bytes, and 7 were saved")
    assert restore(1, short).why == f"step 60: it is not there on n2 as it was saved: {short.error}"
    assert restore(2, missing).step == 60, "the nodes of the next attempt may see it"
    assert restore(2, seen).step == 60
    assert restore(3, missing, restored(2, 60, RestoreOutcome.MISSING)).step == 40
    none = restore(1, *(restored(1, step, RestoreOutcome.MISSING) for step in (20, 40, 60)))
    assert none.answer is RestoreAnswer.UNKNOWN, "never from the beginning"
    assert none.why.startswith("step 60: it is not there on n2; step 40: ")


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


def test_what_is_known_of_another_jobs_attempt_is_not_taken_for_this_ones() -> None:
    other = replace(written(60), job=b.job(job_id=9).key)
    assert not suspicion(other, [anomaly(41)])
    mine, its = restored(1), replace(restored(1), job=other.job)
    both = Catalogue([written(60)], [], restores=[mine, its])
    assert decide(both, KEY, Attempt(2)).answer is RestoreAnswer.UNKNOWN, "two attempts, of two jobs"
    doubt = Catalogue([], [], doubt="jobs 3 and 4 of its name and folder ran together")
    assert decide(doubt, KEY, NEXT) == RestoreDecision(RestoreAnswer.UNKNOWN, why=doubt.doubt)
    assert decide(replace(doubt, complete=[written(20)]), KEY, NEXT).step == 20, "it has saved itself"


def of_size(step: int, layout: Layout, ranks: int = 4) -> Checkpoint:
    return replace(written(step), layout=layout, world_size=ranks)


def test_a_gang_restores_only_what_one_of_its_size_can_and_the_reason_names_what_was_passed_over() -> None:
    there = [of_size(20, Layout.RESHARDABLE), of_size(40, Layout.FIXED), of_size(60, Layout.FIXED, 8)]
    known = Catalogue(there, there)
    steps = {ranks: decide(known, KEY, NEXT, ranks).step for ranks in (0, 2, 4, 8)}
    assert steps == {0: 60, 2: 20, 4: 40, 8: 60}, "0: the size of the gang is not known"
    assert decide(known, KEY, NEXT, 2).why == (
        "step 60: only 8 ranks can restore it, and this gang has 2; "
        "step 40: only 4 ranks can restore it, and this gang has 2"
    )
    assert [why for _, why in judged(known, KEY, NEXT, 4)] == [
        "only 8 ranks can restore it, and this gang has 4",
        "",
        "",
    ]
    assert [decide(known, KEY, NEXT, ranks).ranks for ranks in (2, 4, 8)] == [0, 4, 8]


def test_where_a_gang_of_this_size_can_restore_none_it_is_not_known_and_not_the_beginning() -> None:
    fixed = [of_size(20, Layout.FIXED)]
    decision = decide(Catalogue(fixed, fixed), KEY, NEXT, 3)
    assert decision == RestoreDecision(
        RestoreAnswer.UNKNOWN, why="step 20: only 4 ranks can restore it, and this gang has 3"
    )
    unnamed = [of_size(20, Layout.UNKNOWN)]
    assert decide(Catalogue(unnamed, unnamed), KEY, NEXT, 3).step == 20, "its training has named no layout"


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
