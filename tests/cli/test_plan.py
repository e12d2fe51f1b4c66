"""`understudy plan`: text, JSON, one page; without a control plane, and from the database of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from understudy_controlplane.cli.plan.commands import plan

FEW = ("--runs", "2", "--days", "10", "--gpus", "1024")


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(plan, arguments, catch_exceptions=False)


def test_what_if_answers_an_ettr_and_beside_it_the_other_ways_on_the_same_faults() -> None:
    found = json.loads(asked("what-if", *FEW, "--interval", "5m", "--repair", "24h", "--compare", "--json").stdout)
    assert 0.8 < found["ettr"] < 1
    assert found["ways"][0]["way"] == "understudy run"
    assert {one["way"] for one in found["ways"]} >= {"plain Slurm", "Slurm with NHC", "NVRx", "Understudy's pool"}
    assert found["ways"][0]["ettr"] == found["ettr"]


def test_the_same_seed_is_the_same_answer_and_another_one_is_not() -> None:
    first, again, other = (asked("what-if", *FEW, "--json", "--seed", seed).stdout for seed in ("3", "3", "4"))
    assert first == again != other


def test_spares_names_the_least_number_that_suffices() -> None:
    found = json.loads(asked("spares", *FEW, "--availability", "0.9", "--repair", "24h", "--json").stdout)
    rows = {one["spares"]: one["served"] for one in found["advice"]["rows"]}
    assert rows[found["spares"]] >= 0.9
    assert found["spares"] == 0 or rows[found["spares"] - 1] < 0.9


def test_interval_names_the_best_one_and_refuses_a_checkpoint_that_costs_nothing() -> None:
    assert "Plan: a checkpoint every" in asked("interval", *FEW).stdout
    refused = asked("interval", *FEW, "--save-cost", "0s")
    assert (refused.exit_code, "give --save-cost" in refused.stderr) == (2, True)


def test_spares_of_allocations_are_named_beside_those_of_the_pool() -> None:
    found = asked("spares", *FEW, "--repair", "24h", "--allocation-spares", "3").stdout
    assert "spares in the pool and 3 in each allocation, so that no gang waits" in found


@pytest.mark.parametrize(
    "absurd",
    [
        "--interval 0s",
        "--shared-interval 0s",
        f"--repair {'9' * 400}d",
        "--days nan",
        "--cleared nan",
        "--per-1000-node-days inf",
        "--per-1000-node-days 1e9",
        "--false-alarms inf",
        "--rack-faults nan 32",
        "--rack-faults -1 32",
        "--rack-faults 0.5 100000",
        "--gpu-hour-price nan",
        "--spares 3 --allocation-spares 500",
        "--gpus 1000000 --gangs 1000",
        "--gpus 1000000 --per-1000-node-days 1000 --days 1000",
    ],
)
def test_numbers_that_make_no_plan_are_refused(absurd: str) -> None:
    refused = asked("what-if", *FEW, *absurd.split())
    assert refused.exit_code == 2
    assert refused.stderr


@pytest.mark.parametrize("faults", ["byterobust", "rsc1", "servers400"])
def test_every_profile_can_be_planned_with(faults: str) -> None:
    assert "ETTR" in asked("what-if", *FEW, "--faults", faults, "--rack-faults", "0.01", "32").stdout


def test_the_page_has_plots_and_needs_nothing_else() -> None:
    page = asked("what-if", *FEW, "--format", "html").stdout
    assert page.count("<svg") >= 3
    assert "http" not in page


def test_a_database_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    config = tmp_path / "controlplane.toml"
    config.write_text(f'cluster = "c"\n[server]\ndatabase = "sqlite:///{tmp_path}/none.db"\n')
    found = asked("what-if", *FEW, "--from-history", "--config", str(config))
    assert found.exit_code == 1
    assert "database" in found.stderr
