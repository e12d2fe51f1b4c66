"""What is deleted of a run's checkpoints, and what never is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests import builders as b
from understudy_controlplane.decide.checkpoint_retention import LAST_MIN, SETTLED_SECONDS, dispensable
from understudy_controlplane.decide.restore_point import Catalogue, decide, judged
from understudy_controlplane.fleet.job import (
    Attempt,
    Checkpoint,
    Condition,
    Keep,
    StoredAnomaly,
    StoredRestoreReport,
    keep,
)
from understudy_wire.facts import AnomalyKind, Layout, RestoreOutcome, Tier

KEY = b.job().key
LATER = Attempt(99)
OF = (KEY, LATER)
HOUR = 3600.0
NOW = 1000 * HOUR


def written(step: int, tier: Tier = Tier.SHARED, hour: float | None = None, **changes: object) -> Checkpoint:
    at = (step if hour is None else hour) * HOUR
    one = Checkpoint(KEY, step, f"/{tier.value}/{step}", 4, at, tier=tier)
    return replace(one, **changes)  # type: ignore[arg-type]


def gone(there: list[Checkpoint], kept: Keep, *announced: Checkpoint, **more: frozenset[int]) -> list[int]:
    return [one.step for one in dispensable(Catalogue(there, there), OF, [*there, *announced], kept, NOW, **more)]


SIX = [written(step) for step in range(1, 7)]


def test_the_last_good_ones_stay_and_no_other() -> None:
    assert gone(SIX, Keep(2)) == [1, 2, 3, 4]
    assert gone(SIX, Keep(1)) == [1, 2, 3, 4], "the newest alone may turn out to be bad"
    assert gone(SIX, Keep(9)) == []


def test_what_is_not_good_is_not_counted_and_stays_for_a_person() -> None:
    bad = written(7, condition=Condition.BAD)
    doubtful = written(8, condition=Condition.SUSPECT)
    assert gone([*SIX, bad, doubtful], Keep(2)) == [1, 2, 3, 4]
    one_is_proven = [replace(one, condition=Condition.VERIFIED) if one.step == 3 else one for one in SIX]
    assert gone(one_is_proven, Keep(2)) == [1, 2, 4], "the newest that is verified"


def test_each_tier_and_each_size_of_gang_keeps_its_own() -> None:
    near = [written(step, Tier.LOCAL, layout=Layout.FIXED) for step in (20, 21, 22)]
    of_eight = [written(step, layout=Layout.FIXED, world_size=8, path=f"/8/{step}") for step in (7, 8, 9)]
    assert gone([*SIX, *near, *of_eight], Keep(2)) == [1, 2, 3, 4, 7, 20]


def test_of_each_span_the_first_one_stays_on_the_furthest_tier() -> None:
    hourly = [written(step, hour=step / 2) for step in range(2, 14)]
    near = [written(step, Tier.LOCAL, hour=step / 2) for step in range(2, 14)]
    assert gone(hourly, Keep(2, hours=3)) == [3, 4, 5, 7, 8, 9, 10, 11]
    assert gone([*hourly, *near], Keep(2, hours=3)).count(6) == 1, "not on the disks of nodes as well"


def test_what_shares_a_path_with_another_one_stays() -> None:
    again = written(1, path="/shared/2/inner", attempt=Attempt(1))
    assert gone(SIX, Keep(2), again) == [1, 3, 4]
    around = written(9, path="/shared", attempt=Attempt(1))
    assert gone(SIX, Keep(2), around) == []
    was_there = replace(around, condition=Condition.DELETED)
    assert gone(SIX, Keep(2), was_there) == [1, 2, 3, 4]


def test_what_an_attempt_restores_and_what_is_new_stays() -> None:
    assert gone(SIX, Keep(2), steps_in_use=frozenset({3})) == [1, 2, 4]
    new = [replace(one, completed_at=NOW - SETTLED_SECONDS + one.step) for one in SIX]
    assert gone(new, Keep(2)) == []


def test_a_job_says_in_its_comment_what_it_keeps() -> None:
    assert keep("understudy keep=3") == Keep(3)
    assert keep("understudy,keep=3,keep_hours=6") == Keep(3, 6)
    for nothing in ("understudy", "understudy keep=0", "keep=x", "upkeep=3", "keep_hours=6", "keep=3.5"):
        assert keep(nothing) is None


checkpoints = st.builds(
    lambda step, tier, size, attempt, condition, place: Checkpoint(
        KEY,
        step,
        f"/{tier.value}/{attempt}/{step if place else 0}",
        size,
        step * 600.0 + attempt,
        Attempt(attempt),
        condition,
        condition.value,
        Layout.FIXED if size < 8 else Layout.RESHARDABLE,
        tier,
    ),
    st.integers(1, 30),
    st.sampled_from([Tier.UNKNOWN, Tier.LOCAL, Tier.SHARED]),
    st.sampled_from([4, 6, 8]),
    st.integers(0, 2),
    st.sampled_from(Condition),
    st.booleans(),
)
anomalies = st.builds(
    lambda kind, step, attempt, until: StoredAnomaly(
        1, KEY, Attempt(attempt), "n2", 3, 4, kind, step, until and step + until, "nan", step * 600.0
    ),
    st.sampled_from([AnomalyKind.LOSS_NAN, AnomalyKind.LOSS_JUMP]),
    st.integers(1, 30),
    st.integers(0, 2),
    st.one_of(st.none(), st.integers(1, 9)),
)


@given(
    there=st.lists(checkpoints, max_size=25, unique_by=lambda one: (one.attempt, one.step, one.path, one.world_size)),
    found=st.lists(anomalies, max_size=2),
    failed=st.lists(st.tuples(st.integers(3, 5), st.integers(0, 24)), max_size=4),
    kept=st.builds(Keep, st.integers(1, 4), st.integers(0, 3)),
    used=st.frozensets(st.integers(1, 30), max_size=3),
)
def test_no_gang_of_any_size_restores_another_checkpoint_than_before(
    there: list[Checkpoint],
    found: list[StoredAnomaly],
    failed: list[tuple[int, int]],
    kept: Keep,
    used: frozenset[int],
) -> None:
    reports = [
        StoredRestoreReport(KEY, Attempt(a), 1, "n1", there[i].step, there[i].path, RestoreOutcome.FAILED, "", NOW)
        for a, i in failed
        if i < len(there)
    ]
    known = Catalogue(there, there, found, reports)
    went = dispensable(known, OF, there, kept, NOW, used)
    after = replace(
        known, complete=[replace(one, condition=Condition.EXPIRED) if one in went else one for one in there]
    )
    for ranks in (0, 4, 6, 8):
        before_it = decide(known, KEY, LATER, ranks)
        after_it = decide(after, KEY, LATER, ranks)
        assert (before_it.answer, before_it.step) == (after_it.answer, after_it.step)
    good = {one for one, against in judged(known, *OF) if not against}
    assert set(went) <= good
    assert not any(one.step in used for one in went)
    for tier in Tier:
        for size in {one.ranks for one in there}:
            group = {one for one in good if (one.tier, one.ranks) == (tier, size)}
            steps, left = {one.step for one in group}, {one.step for one in group - set(went)}
            assert set(sorted(steps)[-LAST_MIN:]) <= left, "the one after the last, where that turns out to be bad"
    assert dispensable(after, OF, after.complete, kept, NOW, used) == [], "once is enough"
