"""The model of plans: what becomes of a fault, of spares and of checkpoints; and known formulas found again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_controlplane.figures.checkpoint_interval import efficiency
from understudy_controlplane.figures.outages import Outage, down_levels
from understudy_controlplane.figures.plan_faults import draw
from understudy_controlplane.figures.plan_run import IN_PLACE, INSIDE, POOL, SAVE, WAITED, Result, Run
from understudy_controlplane.figures.plan_site import (
    Effect,
    Fault,
    FaultCause,
    Faults,
    Happens,
    SavedTier,
    Site,
    Trace,
    Way,
)
from understudy_controlplane.figures.plan_summary import interval_wanted, outcomes, spares_needed
from understudy_controlplane.fleet.durations import DAY_SECONDS, HOUR_SECONDS
from understudy_controlplane.fleet.history import Loss
from understudy_wire.facts import Tier

NEVER = float("inf")
FILES = SavedTier(Tier.SHARED, 100.0, restore=5.0)
MEMORY = SavedTier(Tier.PEER, 10.0, restore=1.0)
SITE = Site((4,), 2, 1, 10_000.0 / DAY_SECONDS, (FILES,), Faults([], [1000.0]), start_cold=30.0, start_warm=3.0)
DETECT = {Effect.DEAD: 20.0, Effect.BROKEN: 1.0, Effect.HANG: 60.0, Effect.SLOW: NEVER, Effect.PROGRAM: 2.0}
POOLED = Way("pool", DETECT, swap_inside=0.5, swap_pool=4.0)
LAUNCHED = replace(POOLED, name="launcher", uses_inside=True, warm=True)


def fault(at: float, node: int, effect: Effect = Effect.BROKEN, *, nodes: int = 1, **changes: float) -> Fault:
    cause = FaultCause(effect.value, effect, 1.0, nodes)
    repair, person = changes.get("repair", 1000.0), changes.get("person", 0.0)
    return Fault(at, range(node, node + nodes), cause, repair, person, changes.get("lasts", NEVER))


def ran(*faults: Fault, site: Site = SITE, way: Way = POOLED, away: tuple[tuple[float, float], ...] = ()) -> Result:
    return Run(site, way, Happens(faults, away)).done()


def lost(result: Result, nodes: int = 4) -> dict[str, float]:
    """Seconds of the gang."""
    return {loss: round(seconds / nodes, 6) for loss, seconds in result.lost.items() if seconds}


def test_a_run_without_a_fault_is_all_work() -> None:
    assert ran().ettr == 1.0


def test_a_fault_costs_detection_swap_start_restore_and_the_steps_since_the_last_checkpoint() -> None:
    found = ran(fault(250.0, 0))
    assert lost(found) == {"detect": 1.0, "swap": 4.0, "start": 30.0, "restore": 5.0, "recompute": 50.0}
    assert found.ettr == pytest.approx(1 - 90.0 / 10_000.0)
    assert found.paths == {POOL: 1}


def test_a_spare_of_the_allocation_is_taken_first_and_its_processes_stand_by() -> None:
    found = ran(fault(200.0, 0), way=LAUNCHED)
    assert lost(found) == {"detect": 1.0, "swap": 0.5, "start": 3.0, "restore": 5.0}
    assert found.paths == {INSIDE: 1}


def test_without_a_spare_left_inside_the_gang_is_requeued_and_has_its_spare_again() -> None:
    found = ran(fault(200.0, 0), fault(400.0, 1), fault(600.0, 2), way=LAUNCHED, site=replace(SITE, pool=4))
    assert found.paths == {INSIDE: 2, POOL: 1}


def test_a_gang_that_finds_no_spare_waits_for_the_first_node_that_comes_back() -> None:
    site = replace(SITE, pool=0, inside=0)
    found = ran(fault(200.0, 0, repair=1000.0), site=site)
    assert lost(found)[Loss.QUEUE] == 1000.0  # detected after a second, and repaired 1,000 s after that
    assert found.paths == {WAITED: 1, POOL: 1}
    assert found.pages == 1
    assert found.served == pytest.approx(0.9)


def test_a_rack_takes_as_many_spares_as_it_has_nodes_of_the_gang() -> None:
    enough = replace(SITE, pool=3, inside=0)
    assert ran(fault(200.0, 0, Effect.DEAD, nodes=3), site=enough).paths == {POOL: 1}
    assert ran(fault(200.0, 0, Effect.DEAD, nodes=3), site=replace(enough, pool=2)).paths == {WAITED: 1, POOL: 1}


def test_a_fault_while_a_gang_restarts_begins_the_recovery_again_and_no_second_counts_twice() -> None:
    found = ran(fault(200.0, 0), fault(210.0, 1))
    assert lost(found) == {"detect": 2.0, "swap": 8.0, "start": 35.0, "restore": 5.0}
    assert found.interruptions == {"broken": 2}


def test_a_node_that_is_out_of_service_cannot_fail_again() -> None:
    assert ran(fault(200.0, 0), fault(300.0, 0)).interruptions == {"broken": 1}


def test_a_fault_of_a_spare_interrupts_no_gang_and_costs_the_pool_a_node() -> None:
    site = replace(SITE, pool=1, inside=0)
    assert ran(fault(100.0, 4), site=site).interruptions == {}
    assert ran(fault(100.0, 4), fault(200.0, 0), site=site).paths == {WAITED: 1, POOL: 1}


def test_a_program_that_fails_needs_no_spare_and_where_nothing_restarts_it_a_person() -> None:
    assert ran(fault(200.0, 0, Effect.PROGRAM), way=LAUNCHED).paths == {IN_PLACE: 1}
    by_person = replace(POOLED, by_person=frozenset({Effect.PROGRAM}))
    found = ran(fault(200.0, 0, Effect.PROGRAM, person=600.0), way=by_person)
    assert (lost(found)[Loss.DECIDE], found.pages) == (600.0, 1)


def test_a_hang_is_lost_until_it_is_found() -> None:
    assert lost(ran(fault(200.0, 0, Effect.HANG)))[Loss.DETECT] == 60.0


def test_a_slow_node_costs_pace_until_it_is_found_and_moved_or_until_it_is_well() -> None:
    site = replace(SITE, faults=replace(SITE.faults, slow_pace=0.5))
    found = ran(fault(200.0, 0, Effect.SLOW), way=replace(POOLED, detect={**DETECT, Effect.SLOW: 100.0}), site=site)
    assert (lost(found)[Loss.SLOW], found.paths) == (50.0, {POOL: 1})
    stays = ran(fault(200.0, 0, Effect.SLOW, lasts=400.0), site=site)
    assert (lost(stays)[Loss.SLOW], stays.paths) == (200.0, {})


def test_a_false_alarm_costs_a_move_only_where_the_way_acts_on_it() -> None:
    assert ran(fault(200.0, 0, Effect.FALSE_ALARM)).ettr == 1.0
    found = ran(fault(200.0, 0, Effect.FALSE_ALARM), way=replace(POOLED, false_alarms=True))
    assert found.paths == {POOL: 1}
    assert Loss.DETECT not in lost(found)


def test_an_outage_of_the_control_plane_delays_what_needs_it() -> None:
    needs = replace(POOLED, needs_service=True)
    assert lost(ran(fault(200.0, 0), way=needs, away=((150.0, 500.0),)))[Loss.DECIDE] == 299.0
    assert Loss.DECIDE not in lost(ran(fault(200.0, 0), away=((150.0, 500.0),)))


def test_after_a_rack_only_what_outlives_it_is_restored() -> None:
    """Saves in memory every 10 s, on files every 100 s."""
    site = replace(SITE, tiers=(MEMORY, FILES), pool=4, inside=0)
    near = lost(ran(fault(277.0, 0, Effect.DEAD), site=site))
    far = lost(ran(fault(277.0, 0, Effect.DEAD, nodes=2), site=site))
    assert (near[Loss.RECOMPUTE], near[Loss.RESTORE]) == (7.0, 1.0)
    assert (far[Loss.RECOMPUTE], far[Loss.RESTORE]) == (77.0, 5.0)


def test_a_checkpoint_that_is_not_written_yet_is_none() -> None:
    slow = replace(FILES, write=60.0)
    assert lost(ran(fault(250.0, 0), site=replace(SITE, tiers=(slow,))))[Loss.RECOMPUTE] == 150.0


def test_saving_costs_what_it_holds_the_training_up() -> None:
    assert lost(ran(site=replace(SITE, tiers=(replace(FILES, cost=25.0),)))) == {SAVE: 2000.0}


def fleet(rate: float, *, nodes: int = 50, days: float = 20.0, effect: Effect = Effect.BROKEN) -> Site:
    faults = Faults([FaultCause("fault", effect, rate)], [6 * HOUR_SECONDS, 18 * HOUR_SECONDS])
    return replace(SITE, gangs=(nodes,), days=days, faults=faults)


def test_a_seed_is_a_story_and_the_number_of_spares_does_not_change_what_happens_to_the_gangs() -> None:
    small, large = draw(fleet(20.0), 7), draw(replace(fleet(20.0), pool=30), 7)
    assert draw(fleet(20.0), 7) == small
    assert draw(fleet(20.0), 8) != small
    of_gangs = [[one for one in story.faults if one.nodes.start < 50] for story in (small, large)]
    assert of_gangs[0] == of_gangs[1]


@pytest.mark.parametrize(("interval", "cost"), [(600.0, 20.0), (1800.0, 60.0), (300.0, 0.01)])
def test_the_share_that_is_kept_is_the_one_of_the_formula(interval: float, cost: float) -> None:
    """`efficiency` is exact for faults at a constant rate, also those during a recovery."""
    mean, recovery = 3 * HOUR_SECONDS, 400.0
    site = fleet(1000 * DAY_SECONDS / mean, nodes=1, days=100.0, effect=Effect.PROGRAM)
    tiers = (SavedTier(Tier.SHARED, interval, cost, restore=0.0),)
    site = replace(site, tiers=tiers, start_cold=recovery, start_warm=recovery, pool=0)
    way = Way("one", dict.fromkeys(Effect, 0.0), 0.0, 0.0)
    found = outcomes(site, [way], range(5))[0].ettr
    assert found == pytest.approx(efficiency(interval, cost, mean, recovery), rel=0.01)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rate=st.floats(1.0, 400.0),
    pool=st.integers(0, 6),
    gangs=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    launched=st.booleans(),
)
def test_whatever_happens_every_second_of_every_node_has_one_cause(
    seed: int, rate: float, pool: int, gangs: list[int], launched: bool
) -> None:
    effects = [FaultCause(f"{effect} {nodes}", effect, rate / 6, nodes) for effect in Effect for nodes in (1, 3)]
    site = replace(SITE, gangs=tuple(gangs), pool=pool, days=3.0, faults=Faults(effects, [3600.0], slow_pace=0.7))
    way = replace(LAUNCHED if launched else POOLED, detect={**DETECT, Effect.SLOW: 900.0}, false_alarms=True)
    found = Run(site, way, draw(site, seed)).done()
    assert found.productive + sum(found.lost.values()) == pytest.approx(found.node_seconds)
    assert min(found.lost.values()) >= 0
    assert found.productive >= -1e-6


def test_a_trace_is_replayed_with_its_bursts_and_its_repairs() -> None:
    """Four of ten nodes fail together once in 100 days, on each ten of the fleet: 40 nodes of a hundred in a year."""
    outages = [Outage(f"n{number}", 50.0 * DAY_SECONDS, 52.0 * DAY_SECONDS) for number in range(4)]
    trace = Trace(outages, 10, 100.0 * DAY_SECONDS)
    site = replace(fleet(0.0, nodes=100, days=100.0), pool=0, inside=0, faults=Faults([], [1.0], trace))
    story = draw(site, 1)
    assert len(story.faults) == 40
    assert {one.repair for one in story.faults} == {2 * DAY_SECONDS}
    found = [Outage(str(one.nodes.start), one.at, one.at + one.repair) for one in story.faults]
    assert max(down_levels(found, 0.0, site.seconds)) >= 4


def test_as_many_spares_are_needed_as_nodes_are_out_and_one_less_is_too_few() -> None:
    advice = spares_needed(replace(fleet(20.0), inside=0), POOLED, 0.99, range(10), price=2.0)
    rows = {one.spares: one for one in advice.rows}
    assert advice.spares is not None
    assert rows[advice.spares].served >= 0.99 > rows[advice.spares - 1].served
    assert rows[advice.spares].idle_money == pytest.approx(advice.spares * 8 * 20 * 24 * 2.0)


def test_the_best_interval_is_better_than_four_times_and_a_quarter_of_it() -> None:
    site = replace(fleet(40.0, effect=Effect.PROGRAM, days=60.0), tiers=(replace(FILES, cost=30.0),))
    advice = interval_wanted(site, POOLED, range(5))
    assert advice is not None
    by_interval = {one.interval: one.ettr for one in advice.rows}
    best = by_interval.pop(advice.best)
    assert all(best > by_interval[factor * advice.best] for factor in (0.25, 4.0))
    assert interval_wanted(fleet(0.0), POOLED, range(2)) is None
