"""Plans as documents: text, JSON, CSV, or one page of HTML with plots, as reports have them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from understudy_controlplane.api.documents import Cell, Document, Section
from understudy_controlplane.api.report_plots import Bar, bars
from understudy_controlplane.cli.durations import in_words
from understudy_controlplane.figures.plan_run import LOSSES
from understudy_controlplane.figures.plan_site import Site
from understudy_controlplane.figures.plan_summary import IntervalAdvice, Outcome, PoolAdvice

WORDS = {"queue": "wait for a node", "recompute": "steps done again", "save": "saving", "slow": "slow nodes"}


class Basis(msgspec.Struct, frozen=True):
    """What was assumed."""

    gpus: int
    gangs: list[int]
    spares_pool: int
    spares_inside: int
    days: float
    interval: float
    save_cost: float
    start_cold: float
    start_warm: float
    repair_mean: float
    runs: int
    first_seed: int
    faults: str


class WhatIf(msgspec.Struct, frozen=True):
    ettr: float  # of the first way
    basis: Basis
    ways: list[Outcome]


class SparesPlan(msgspec.Struct, frozen=True):
    spares: int | None
    basis: Basis
    advice: PoolAdvice


class IntervalPlan(msgspec.Struct, frozen=True):
    best: float
    basis: Basis
    advice: IntervalAdvice


def basis_of(site: Site, seeds: Sequence[int], faults: str) -> Basis:
    repairs = site.faults.repairs
    return Basis(
        site.gang_nodes * site.gpus_per_node,
        list(site.gangs),
        site.pool,
        site.inside,
        site.days,
        site.tiers[0].interval,
        site.tiers[0].cost,
        site.start_cold,
        site.start_warm,
        sum(repairs) / len(repairs),
        len(seeds),
        seeds[0],
        faults,
    )


def _summary(basis: Basis) -> list[tuple[str, str]]:
    gangs = f"{len(basis.gangs)} gang{'s' if len(basis.gangs) > 1 else ''}"
    return [
        (
            "fleet",
            f"{basis.gpus:,} GPUs in {gangs}, {basis.days:g} days, {basis.runs} runs from seed {basis.first_seed}",
        ),
        ("spares", _spares(basis)),
        ("faults", basis.faults),
        (
            "times",
            f"checkpoint every {in_words(basis.interval)}, which takes {basis.save_cost:g} s; start "
            f"{in_words(basis.start_cold)}, on standbys {in_words(basis.start_warm)}; nodes are back "
            f"after {in_words(basis.repair_mean)} on average",
        ),
    ]


def _spares(basis: Basis) -> str:
    inside = f" and {basis.spares_inside} in each allocation" if basis.spares_inside else ""
    return f"{basis.spares_pool} spares in the pool{inside}"


def what_if(outcomes: Sequence[Outcome], basis: Basis) -> Document:
    first = outcomes[0]
    lost = [loss for loss in LOSSES if any(one.lost.get(loss) for one in outcomes)]
    columns = ("way", "ETTR %", "5 to 95 %", "interruptions", "pages", "no wait %", "GPU-hours lost", "money lost")
    rows: list[Sequence[Cell]] = [
        (
            one.way,
            100 * one.ettr,
            f"{100 * one.ettr_p5:.1f} to {100 * one.ettr_p95:.1f}",
            one.interruptions,
            one.pages,
            100 * one.served,
            one.lost_gpu_hours,
            one.lost_money,
        )
        for one in outcomes
    ]
    sections = [
        Section("ways", "What comes of it", "no wait: of the time no gang waits for a node.", columns, rows),
        Section(
            "losses",
            "Where the time goes, % of the gangs' time",
            "decide: until a person or the control plane has decided; swap: until the gang has its nodes.",
            ("way", *(WORDS.get(loss, loss) for loss in lost)),
            [(one.way, *(100 * one.lost.get(loss, 0.0) for loss in lost)) for one in outcomes],
        ),
        Section("paths", f"Recoveries of {first.way}", "", ("by", "number"), list(first.by_path.items())),
        Section("causes", f"Interruptions of {first.way}", "", ("cause", "number"), list(first.by_cause.items())),
        Section(
            "out",
            "Nodes out of service",
            "",
            ("way", "median", "P99"),
            [(o.way, o.out_p50, o.out_p99) for o in outcomes],
        ),
    ]
    plots = [
        ("ETTR, %", bars([Bar(one.way, 100 * one.ettr, f"{100 * one.ettr:.1f}", "good") for one in outcomes])),
        *((f"Time lost by {one.way}, %", _loss_bars(one)) for one in outcomes),
        (f"Nodes out of service at the same time, % of the time ({first.way})", _level_bars(first)),
    ]
    return Document(
        WhatIf(first.ettr, basis, list(outcomes)),
        f"Plan: ETTR {100 * first.ettr:.1f} % with {first.way}",
        [one for one in sections if one.rows],
        _summary(basis),
        [(title, drawn) for title, drawn in plots if drawn],
    )


def _loss_bars(one: Outcome) -> Markup:
    return bars([Bar(WORDS.get(loss, loss), 100 * share, f"{100 * share:.2f}") for loss, share in one.lost.items()])


def _level_bars(one: Outcome) -> Markup:
    return bars([Bar(level, 100 * share, f"{100 * share:.1f}") for level, share in one.out_share.items()][:40])


def spares(advice: PoolAdvice, basis: Basis) -> Document:
    words = "no number of spares is enough"
    if advice.spares is not None:
        basis = msgspec.structs.replace(basis, spares_pool=advice.spares)
        words = _spares(basis)
    return Document(
        SparesPlan(advice.spares, basis, advice),
        f"Plan: {words}, so that no gang waits for a node {100 * advice.availability:g} % of the time",
        [
            Section(
                "spares",
                "Spares of the pool",
                "",
                ("spares", "no wait %", "ETTR %", "price of the spares"),
                [(one.spares, 100 * one.served, 100 * one.ettr, one.idle_money) for one in advice.rows],
            ),
            Section(
                "formulas",
                "What formulas say",
                "Both are for faults that come one by one; where faults come together, more spares are needed.",
                ("formula", "spares"),
                [
                    ("binomial: nodes that fail within a day", advice.binomial),
                    ("Poisson: nodes that are out of service", advice.poisson),
                ],
            ),
        ],
        _summary(basis),
        [
            (
                "Time in which no gang waits for a node, %",
                bars(
                    [Bar(str(one.spares), 100 * one.served, f"{100 * one.served:.2f}", "good") for one in advice.rows]
                ),
            )
        ],
    )


def interval(advice: IntervalAdvice, basis: Basis) -> Document:
    return Document(
        IntervalPlan(advice.best, basis, advice),
        f"Plan: a checkpoint every {in_words(advice.best)}",
        [
            Section(
                "intervals",
                "Intervals",
                f"A gang is interrupted every {in_words(advice.mtbf)}, and a checkpoint holds it up for "
                f"{advice.cost:g} s. The best interval is the exact optimum of these two.",
                ("seconds", "ETTR %"),
                [(one.interval, 100 * one.ettr) for one in advice.rows],
            )
        ],
        _summary(basis),
        [
            (
                "ETTR by interval, %",
                bars(
                    [
                        Bar(in_words(one.interval), 100 * one.ettr, f"{100 * one.ettr:.2f}", "good")
                        for one in advice.rows
                    ]
                ),
            )
        ],
    )
