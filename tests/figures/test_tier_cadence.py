"""How often to save on each tier, by the failures that it answers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_controlplane.figures.checkpoint_interval import best_interval, failure_rate
from understudy_controlplane.figures.tier_cadence import (
    BACKGROUND_SHARE,
    OUTLIVES,
    PRIOR_SHARES,
    TierCost,
    cadences,
    class_of,
    class_rates,
)
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.saving import FailureClass
from understudy_wire.facts import Tier

PROCESS, NODE, RACK, SITE = FailureClass
LLAMA_3 = failure_rate(419, 2048 * 54)
COUNTS = {PROCESS: 54, NODE: 330, RACK: 35}
RATES = class_rates(LLAMA_3, COUNTS, 2048)
COSTS = {
    Tier.PEER: TierCost(0.2, 5),
    Tier.LOCAL: TierCost(5, 8),
    Tier.SHARED: TierCost(30, 40),
    Tier.OBJECT: TierCost(0, 1200),
}


def answered(*tiers: Tier) -> dict[Tier, tuple[FailureClass, ...]]:
    return {one.tier: one.answers for one in cadences({tier: COSTS[tier] for tier in tiers}, RATES)}


def test_each_failure_is_answered_by_the_nearest_tier_that_outlives_it() -> None:
    assert answered(Tier.PEER, Tier.SHARED, Tier.OBJECT) == {
        Tier.PEER: (PROCESS, NODE),
        Tier.SHARED: (RACK,),
        Tier.OBJECT: (SITE,),
    }
    assert answered(Tier.LOCAL, Tier.SHARED) == {Tier.LOCAL: (PROCESS,), Tier.SHARED: (NODE, RACK, SITE)}
    assert answered(Tier.SHARED) == {Tier.SHARED: (PROCESS, NODE, RACK, SITE)}
    assert answered(Tier.LOCAL) == {Tier.LOCAL: (PROCESS, NODE, RACK, SITE)}, "there is nothing further"
    assert Tier.LOCAL not in answered(Tier.PEER, Tier.LOCAL, Tier.SHARED), "memory of peers answers it"
    assert cadences({}, RATES) == []


def test_each_class_has_its_share_of_what_the_cluster_has_seen() -> None:
    assert 1 / LLAMA_3.mtbf(2048) == pytest.approx(RATES[PROCESS] + RATES[NODE] + RATES[RACK])
    assert RATES[RACK] / RATES[PROCESS] == pytest.approx(35 / 54)
    of_none = class_rates(failure_rate(0, 0), {}, 2048)
    assert of_none[NODE] / of_none[RACK] == pytest.approx(PRIOR_SHARES[NODE] / PRIOR_SHARES[RACK])
    assert sum(PRIOR_SHARES.values()) == pytest.approx(1)
    assert of_none[SITE] == pytest.approx(1 / (108 * DAY_SECONDS))


def test_a_large_gang_saves_within_the_known_habits() -> None:
    """It saves on nodes each 5 to 10 minutes, on a shared file system each 30 to 60, in an object store in hours."""
    found = {one.tier: one.interval / 60 for one in cadences(COSTS, RATES)}
    assert found[Tier.PEER] < 2
    assert 20 <= found[Tier.SHARED] <= 60
    assert found[Tier.OBJECT] >= 120


def test_where_a_further_tier_is_best_saved_more_often_both_are_saved_together() -> None:
    """Few failures leave a node's disk: with an interval for these alone, the copies would be as rare."""
    near, far = cadences({Tier.LOCAL: TierCost(5, 8), Tier.SHARED: TierCost(0, 100)}, RATES)
    assert near.interval == far.interval == pytest.approx(best_interval(5 + 2, 1 / sum(RATES.values())))
    assert near.interval < best_interval(5, near.mtbf)


def test_a_rule_says_of_which_class_a_failure_is() -> None:
    assert [class_of(rule) for rule in ("xid.79", "xid.31", "infiniband.down", "signal.power", "of.no.table")] == [
        NODE,
        PROCESS,
        RACK,
        RACK,
        NODE,
    ]


@given(
    st.dictionaries(
        st.sampled_from(Tier).filter(OUTLIVES.__contains__),
        st.builds(TierCost, st.floats(0, 600), st.floats(0.001, 7200)),
        min_size=1,
    ),
    st.fixed_dictionaries({one: st.floats(1e-10, 1e-2) for one in FailureClass}),
)
def test_what_lies_further_away_is_never_saved_more_often_and_each_failure_is_answered_once(
    costs: dict[Tier, TierCost], rates: dict[FailureClass, float]
) -> None:
    found = cadences(costs, rates)
    assert sorted(failure for one in found for failure in one.answers) == sorted(FailureClass)
    order = list(OUTLIVES)
    for nearer, further in pairwise(found):
        assert order.index(nearer.tier) < order.index(further.tier)
        times = further.interval / nearer.interval
        assert times >= 1
        assert times == pytest.approx(round(times)), "together with a nearer one"
    for one in found:
        assert one.cost >= BACKGROUND_SHARE * costs[one.tier].write
        assert one.interval >= costs[one.tier].write * (1 - 1e-9), "one after another"
