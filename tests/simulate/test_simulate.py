"""Simulations: they find nothing, they can be repeated, and what they found once stays fixed."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import msgspec
import pytest
from click.testing import CliRunner

from tests.simulate.cover import CANNOT_BE, CORPUS, read, run_kept, scenarios
from tests.simulate.domains import Fault, simulated, wrong
from tests.simulate.mutants import MUTANTS
from tests.simulate.real_rates import SIZES, accused_wrongly, drained, held_back, judged, stretch
from tests.simulator.__main__ import main as command
from tests.simulator.coverage import HOW, Coverage
from tests.simulator.run import Outcome, run_seeds, shrink, simulate
from tests.simulator.scenario import LAUNCHER_GANG, Event, Kind, Scenario, Settings, draw
from understudy_controlplane.config import NoSpare
from understudy_controlplane.fleet.decision import Because

pytestmark = [pytest.mark.integration, pytest.mark.patient]

RACK = ("n5", "n6", "n7", "n8")
LOST_MAX = 5
"""Rows and steps of these scenarios that may go missing: a change of some moments may lose one."""


def test_a_seed_has_the_same_story_each_time() -> None:
    assert simulate(draw(11), trace=True).world.story == simulate(draw(11), trace=True).world.story


def test_a_node_that_dies_leaves_service_and_its_gang_works_again() -> None:
    outcome = simulate(Scenario(0, (Event(60.0, Kind.NODE_DIES, "n2"),)), trace=True)
    assert outcome.violation is None
    gang = outcome.world.cluster.gangs[0]
    assert gang.computes
    assert "n2" not in gang.seats
    assert any("drain_node n2" in words for _, words in outcome.world.story)


@pytest.mark.parametrize(("seconds", "leave"), [(30.0, set()), (0.0, set(RACK))])
def test_a_rack_without_power_is_one_failure_that_no_budget_holds_back(seconds: float, leave: set[str]) -> None:
    """Four of sixteen nodes, all of one leaf switch, where three may be quarantined. 0 s: it does not come back."""
    rack = Event(60.0, Kind.RACK_DIES, "n5", seconds, 4)
    outcome = simulate(Scenario(0, (rack,), leaf_switches=4), trace=True)
    assert outcome.violation is None
    story = [words for _, words in outcome.world.story]
    assert {name for name in RACK for words in story if words.startswith(f"Slurm: drain_node {name} ")} == leave
    assert sum("ticket for switch rack2" in words for words in story) == 1
    assert not any("circuit breaker" in words for words in story)


@pytest.mark.parametrize(
    "fault", [Fault("cdu", 2, 0.0), Fault("switch", 1, 0.0, ports_alone=True)], ids=["cooling loop", "ports alone"]
)
def test_a_domain_is_one_failure(fault: Fault) -> None:
    """16 or 32 of 128 nodes in eight racks, for good. `make long` tries other domains, with 1,024 nodes in 64 racks."""
    assert wrong(fault, simulated(fault, 128)) == []


@pytest.mark.parametrize("repairs", [True, pytest.param(False, marks=pytest.mark.long)])
def test_by_default_no_guard_holds_back_what_a_real_hour_of_failures_needs(repairs: bool) -> None:
    """The worst hours of a year of 400 servers. `make long` tries a day, Llama 3's rate, and larger fleets."""
    measured = judged(stretch("trace", 400, 2.0, repairs=repairs))
    assert measured.wrong == []
    assert len(measured.drained_after) >= 9


def test_by_default_a_rule_that_is_wrong_drains_its_budget_and_no_more() -> None:
    outcome = accused_wrongly(400)
    assert outcome.violation is None
    assert drained(outcome) == (SIZES[400].bears, SIZES[400].budget)
    assert held_back(outcome)[Because.BREAKER], "what guards hold back is counted"


def in_blocks(*events: Event) -> Outcome:
    """Four blocks of eight nodes. The first gang is on n1 to n4; n5 to n8 are spares."""
    settings = Settings(spares=16, no_spare=NoSpare.WAIT)
    return simulate(Scenario(0, events, settings, nodes=32, block_nodes=8), trace=True)


def test_a_gang_moves_to_another_block_as_a_whole_once_its_own_has_no_spare_left() -> None:
    held = [Event(40.0, Kind.HOLDS, f"n{i}") for i in range(5, 9)]
    outcome = in_blocks(*held, Event(60.0, Kind.NODE_DIES, "n1"))
    assert outcome.violation is None
    gangs = outcome.world.cluster.gangs
    assert all(gang.computes for gang in gangs)
    assert [len({block(name) for name in gang.seats}) for gang in gangs] == [1] * len(gangs)
    assert block(gangs[0].seats[0]) != 1
    assert any("which failed in nothing" in words for _, words in outcome.world.story)


def block(name: str) -> int:
    return (int(name[1:]) - 1) // 8 + 1


def test_a_block_that_loses_its_fabric_is_one_failure_and_its_gang_goes_on_in_another_one() -> None:
    """The gang hangs. On the same nodes it would hang again."""
    down = tuple(Event(60.0, Kind.NVLINK_DOWN, f"n{i}", 300.0) for i in range(2, 9))
    outcome = in_blocks(*down, Event(60.0, Kind.XID, "n1", number=145))
    assert outcome.violation is None
    gangs = outcome.world.cluster.gangs
    assert all(gang.computes for gang in gangs)
    assert {block(name) for name in gangs[0].seats}.isdisjoint({1})
    story = [words for _, words in outcome.world.story]
    assert sum(words.startswith("ticket for nvlink_block b1") for words in story) == 1
    assert not any("circuit breaker" in words for words in story)


def test_a_launchers_gang_that_hangs_in_a_block_without_fabric_leaves_its_allocation() -> None:
    number = LAUNCHER_GANG
    before = in_blocks().world.cluster.gangs[number]
    names = [f"n{i}" for i in range(1, 33) if block(f"n{i}") == block(before.seats[0])]
    assert set(before.spares) <= set(names)
    down = tuple(Event(60.0, Kind.NVLINK_DOWN, name, 300.0) for name in names)
    outcome = in_blocks(*down, Event(70.0, Kind.RANK_HANGS, str(number)))
    assert outcome.violation is None
    gang = outcome.world.cluster.gangs[number]
    assert gang.computes
    assert set(names).isdisjoint((*gang.seats, *gang.spares))


WITHOUT_SPARES = Settings(spares=0, no_spare=NoSpare.WAIT)


@pytest.mark.parametrize(
    ("row", "events", "settings"),
    [
        (22, (Event(100.0, Kind.RANK_HANGS, "0"), Event(215.0, Kind.SEAT_SLOW, "0", 120.0)), WITHOUT_SPARES),
        (108, (Event(40.0, Kind.GANG_QUICK, "0", 120.0),), Settings()),
    ],
)
def test_rare_rows_can_be_entered(row: int, events: tuple[Event, ...], settings: Settings) -> None:
    coverage = Coverage()
    coverage.add(simulate(Scenario(0, events, settings)).world)
    assert coverage.rows[row]


@pytest.mark.timeout(1200)
@pytest.mark.long
def test_what_was_found_once_is_fixed() -> None:
    assert run_kept("fixed").violations == {}


@pytest.mark.timeout(1200)
def test_each_row_and_each_step_is_seen_done_failed_and_killed_and_breaks_no_promise() -> None:
    """`python -m tests.simulate.cover` looks for what is missing."""
    seen = run_kept("covers")
    assert seen.violations == {}
    print(f"not seen: {', '.join(sorted(seen.missing)) or 'none'}")
    assert len(seen.missing) <= LOST_MAX, seen.missing
    assert not seen.coverage.seen() & CANNOT_BE.keys()


def test_open_defects_are_still_found() -> None:
    """One that is not found any more belongs into the folder `fixed`."""
    found = {path.stem: simulate(read(path)).violation for path in scenarios("open")}
    assert [name for name, violation in found.items() if violation is None] == []


@pytest.mark.parametrize("name", MUTANTS)
def test_code_that_is_broken_on_purpose_is_found(name: str) -> None:
    """The smallest scenario finds it; `make long` searches for each by seeds."""
    invariant, broken = MUTANTS[name]
    scenario = read(CORPUS / "mutants" / f"{name.replace(' ', '_')}.json")
    assert simulate(scenario).violation is None
    with broken():
        violation = simulate(scenario).violation
    assert violation is not None
    assert violation.invariant == invariant


def test_the_order_of_sets_changes_no_story() -> None:
    program = (
        "from tests.simulator.run import simulate\n"
        "from tests.simulator.scenario import draw\n"
        "for seed in (9, 17, 20):\n"
        "    print(simulate(draw(seed), trace=True).world.story)"
    )
    stories = {
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "12"
    }
    assert len(stories) == 1


def test_a_failing_scenario_is_shrunk_to_the_events_that_it_needs() -> None:
    _, broken = MUTANTS["nodes are never drained"]
    needed = read(CORPUS / "mutants" / "nodes_are_never_drained.json")
    harmless = tuple(Event(20.0 + second, Kind.SUBMITS, number=1) for second in range(2))
    longer = msgspec.structs.replace(needed, events=(*harmless, *needed.events))
    with broken():
        violation = simulate(longer).violation
        assert violation is not None
        assert len(shrink(longer, violation).events) <= len(needed.events)


def test_a_seed_that_fails_is_printed_with_the_events_that_it_needs_step_by_step() -> None:
    _, broken = MUTANTS["no intent is recorded"]
    shown: list[str] = []
    with broken():
        assert run_seeds([1], trace=False, show=shown.append) == [1]
    first, *story, last = shown
    assert re.fullmatch(rf"seed 1 fails, also with \d of its {len(draw(1).events)} events:", first)
    assert all(re.match(r" *\d+\.\d\d s  ", line) for line in story)
    assert any("step_begun" in line for line in story), "what the control plane logged is part of it"
    assert "VIOLATED no-effect-without-decision" in story[-1]
    assert last == "1 of the seeds failed: 1"


def test_the_command_replays_a_seed_and_reports_what_seeds_have_not_seen() -> None:
    replayed = CliRunner().invoke(command, ["--seed", "3", "--trace"])
    assert replayed.exit_code == 0
    for event in draw(3).events:
        assert f"  -- {event}" in replayed.output
    several = CliRunner().invoke(command, ["--seed", "3", "--seeds", "2"])
    assert several.exit_code == 0
    for line in ("events never seen: ", "rows never entered: ", *(f"steps never {how}: " for how in HOW)):
        assert f"\n{line}" in several.output
    assert several.output.endswith("0 of the seeds failed\n")


def test_a_gang_without_a_spare_gets_the_node_of_a_job_that_slurm_preempts() -> None:
    settings = Settings(spares=0, no_spare=NoSpare.PREEMPT, low_jobs=5)
    outcome = simulate(Scenario(0, (Event(60.0, Kind.XID, "n2", number=79),), settings))
    assert outcome.violation is None
    assert [words for _, words in outcome.world.story if words.startswith("Slurm preempts ")] == [
        "Slurm preempts job 5 for job 1"
    ]
    assert set(outcome.world.cluster.gangs[0].seats) == {"n1", "n3", "n4", "n14"}


@pytest.mark.parametrize("seed", [10, 11, *(pytest.param(seed, marks=pytest.mark.long) for seed in (12, 13))])
def test_in_mode_approve_everything_holds_that_holds_in_mode_act(seed: int) -> None:
    drawn = draw(seed)
    settings = msgspec.structs.replace(drawn.settings, observes=False, approves=True)
    outcome = simulate(msgspec.structs.replace(drawn, settings=settings))
    assert outcome.violation is None, outcome.violation
    assert outcome.world.core is not None
    assert any(one.approved_at for one in outcome.world.core.stores.recoveries.newest(1000)), "nothing was approved"
