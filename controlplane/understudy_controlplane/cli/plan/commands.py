"""`understudy plan`: needs no control plane; `--from-history` reads its database."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from understudy_controlplane.cli.durations import DURATION, Duration
from understudy_controlplane.cli.options import config_option
from understudy_controlplane.cli.output import Exit, fail, note

if TYPE_CHECKING:
    from understudy_controlplane.api.documents import Document
    from understudy_controlplane.figures.plan_site import Site, Way

NODES_MAX, FAULTS_MAX = 1_000_000, 5_000_000
"""Most nodes of a fleet, and faults of all runs: beyond these a plan takes hours, or the machine's memory."""


class _Number(click.FloatRange):
    """No infinity, and nothing that is no number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"'{value}' is no number of use here", param, ctx)
        return number


PROFILES = ("llama3", "byterobust", "rsc1", "servers400")

INTERVAL = Duration(1.0)

OPTIONS = (
    click.option("--gpus", type=click.IntRange(1, 1_000_000), default=16_384, show_default=True, help="Of each gang."),
    click.option("--gangs", type=click.IntRange(1, 1000), default=1, show_default=True, help="Gangs of this size."),
    click.option("--gpus-per-node", type=click.IntRange(1, 128), default=8, show_default=True, help="GPUs of a node."),
    click.option("--days", type=_Number(0.01, 1000), default=30.0, show_default=True, help="How long."),
    click.option(
        "--spares",
        type=click.IntRange(0, 10_000),
        help="Spare nodes in all; else as many as suffice 99 % of the time, by the formula.",
    ),
    click.option(
        "--allocation-spares",
        "inside",
        type=click.IntRange(min=0),
        help="Of these in each gang's allocation; else half of them are in allocations.",
    ),
    click.option(
        "--faults",
        type=click.Choice(PROFILES),
        default="llama3",
        show_default=True,
        help="Whose: Llama 3, ByteRobust, Meta's RSC-1, or a trace of 400 servers that is replayed.",
    ),
    click.option(
        "--from-history", is_flag=True, help="Faults and times of this site, from the control plane's database."
    ),
    click.option("--per-1000-node-days", type=_Number(0, 1000), help="Faults, in the place of the published rate."),
    click.option(
        "--rack-faults",
        type=(_Number(0, 1), click.IntRange(2, 1024)),
        metavar="SHARE NODES",
        help="Such as 0.005 32: as often as this share of the faults, so many nodes fail together.",
    ),
    click.option("--false-alarms", type=_Number(0, 1000), help="In 1,000 node-days; else 0.38."),
    click.option("--repair", type=DURATION, help="Mean time of other repairs; else that of the 400 servers, 133 h."),
    click.option(
        "--cleared",
        type=_Number(0, 1),
        help="Share of the faults that a reset or a reboot clears in 20 minutes; else 0.244.",
    ),
    click.option("--interval", type=INTERVAL, default="5m", show_default=True, help="Between two checkpoints."),
    click.option("--save-cost", type=DURATION, help="For which one holds the training up; else 6.8 s."),
    click.option("--shared-interval", type=INTERVAL, help="Saves in memory every --interval, and on files this often."),
    click.option("--restore", type=DURATION, help="From the last process to the first step; else 60 s."),
    click.option(
        "--start", type=DURATION, help="From the nodes to the last process; else as published for so many GPUs."
    ),
    click.option("--person", type=DURATION, help="Mean time until a person has restarted a job; else 2 h."),
    click.option("--gpu-hour-price", "price", type=_Number(min=0, min_open=True), help="Of one GPU for an hour."),
    click.option(
        "--runs", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Runs, each with a seed."
    ),
    click.option("--seed", type=int, default=1, show_default=True, help="Of the first run."),
    click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json", "html", "csv"]),
        help="Text is Markdown and the default; HTML is one file with plots.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    config_option,
)

PROGRESS_SECONDS = 2.0

Planned = Callable[["_Plan"], "Document"]


class _Progress:
    """Prints how far it is to standard error, every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PROGRESS_SECONDS

    def __call__(self, words: str) -> None:
        if time.monotonic() >= self._next:
            note(words)
            self._next = time.monotonic() + PROGRESS_SECONDS


class _Plan:
    """What a command works with."""

    def __init__(self, options: dict[str, Any]) -> None:
        from understudy_controlplane.cli.plan.published import (
            UNDERSTUDY_POOL,
            UNDERSTUDY_RUN,
            Asked,
            published,
            site_of,
            way,
        )
        from understudy_controlplane.figures.plan_faults import expected as faults_of_nodes

        self.price: float | None = options.pop("price")
        runs, seed = options.pop("runs"), options.pop("seed")
        self.seeds = list(range(seed, seed + runs))
        config, from_history = options.pop("config"), options.pop("from_history")
        asked = Asked(rack=options.pop("rack_faults"), **options)
        self.faults: str = published()["profiles"][asked.faults]["source"]
        if asked.gpus * asked.gangs > NODES_MAX * asked.gpus_per_node:
            fail(f"more than {NODES_MAX:,} nodes are not planned; give fewer --gpus or --gangs", Exit.USAGE)
        if asked.spares is not None and (asked.inside or 0) * asked.gangs > asked.spares:
            fail("--allocation-spares of each gang are more than --spares in all", Exit.USAGE)
        self.site: Site = site_of(asked)
        self.way: Way = way(UNDERSTUDY_RUN if self.site.inside else UNDERSTUDY_POOL)
        if from_history:
            self._from_history(config, asked)
        if asked.per_1000_node_days is not None and self.site.faults.trace is not None:
            fail("faults that are replayed come at their own rate; leave --per-1000-node-days out", Exit.USAGE)
        faults = faults_of_nodes(self.site) * runs
        if faults > FAULTS_MAX:
            fail(f"{faults:,.0f} faults in all are too many; give fewer --days, --runs or faults", Exit.USAGE)

    def _from_history(self, config: Path, asked: Any) -> None:
        from understudy_controlplane.cli.database import opened
        from understudy_controlplane.cli.plan.history import read
        from understudy_controlplane.cli.plan.published import faults_of, site_of

        with opened(config) as engine:
            history = read(engine, time.time())
        if history is None:
            fail(
                "the database has no history yet; leave out --from-history, or let the control plane observe",
                Exit.FAILED,
            )
        prior = faults_of(asked.faults)
        if prior.trace is not None and not history.is_long:
            fail(
                f"the {history.words}, and --faults {asked.faults} has no rate; name another profile with --faults",
                Exit.USAGE,
            )
        own = site_of(asked, history.faults(prior), own_repairs=history.is_long)
        self.faults = history.words
        self.way, self.site = history.timed(self.way, own)

    def basis(self) -> Any:
        from understudy_controlplane.cli.plan.pages import basis_of

        return basis_of(self.site, self.seeds, self.faults)


def _planned(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command with all options, that prints the document it makes."""

    @wraps(command)
    def planned(form: str | None, as_json: bool, **options: Any) -> None:
        from understudy_controlplane.api.documents import Form

        own = {name: options.pop(name) for name in ("availability", "compare") if name in options}
        document = command(_Plan(options), **own)
        click.echo(document.rendered(Form(form or ("json" if as_json else "text"))).rstrip("\n"))

    made = planned
    for option in reversed(OPTIONS):
        made = option(made)
    return made


@click.group()
def plan() -> None:
    """What spares, intervals and ways to recover are worth: runs of a model, without a control plane."""


@plan.command("spares")
@click.option(
    "--availability",
    type=_Number(0.5, 0.99999),
    default=0.99,
    show_default=True,
    help="Share of the time in which no gang waits for a node.",
)
@_planned
def plan_spares(made: _Plan, availability: float) -> Document:
    """How many spares the pool needs."""
    from understudy_controlplane.cli.plan.pages import spares
    from understudy_controlplane.figures.plan_summary import spares_needed

    advice = spares_needed(made.site, made.way, availability, made.seeds, made.price, _Progress())
    return spares(advice, made.basis())


@plan.command("interval")
@_planned
def plan_interval(made: _Plan) -> Document:
    """How often to save."""
    from understudy_controlplane.cli.plan.pages import interval
    from understudy_controlplane.figures.plan_summary import interval_wanted

    if made.site.tiers[0].cost <= 0:
        fail("a checkpoint that costs nothing has no best interval; give --save-cost", Exit.USAGE)
    advice = interval_wanted(made.site, made.way, made.seeds, _Progress())
    if advice is None:
        fail("no gang was interrupted in any run: any interval is good; give more --days or --runs", Exit.FAILED)
    return interval(advice, made.basis())


@plan.command("what-if")
@click.option(
    "--compare",
    is_flag=True,
    help="Beside plain Slurm, Slurm with NHC, and NVRx, with as many spares, on the same faults.",
)
@_planned
def plan_what_if(made: _Plan, compare: bool) -> Document:
    """What comes of it: ETTR, losses by cause, spares in use, recoveries, pages, money."""
    from understudy_controlplane.cli.plan.pages import what_if
    from understudy_controlplane.cli.plan.published import as_used_by, ways
    from understudy_controlplane.figures.plan_summary import outcomes

    others = [one for one in reversed(ways()) if one.name != made.way.name] if compare else []
    progress, found = _Progress(), []
    for way in (made.way, *others):
        found += outcomes(as_used_by(way, made.site), [way], made.seeds, made.price, progress)
    return what_if(found, made.basis())
