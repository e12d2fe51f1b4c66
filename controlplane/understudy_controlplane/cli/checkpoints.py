"""`understudy checkpoints`: what jobs announced."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.job import JOB, job_id_of
from understudy_controlplane.cli.listing import Chosen, Listing, limit_option, print_items
from understudy_controlplane.cli.options import json_option
from understudy_controlplane.cli.output import date, print_json
from understudy_controlplane.cli.requests import Options, Requests, request_options, send
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.plain_text import one_line

if TYPE_CHECKING:
    from understudy_client import Checkpoint, CheckpointExplanation, CheckpointInterval, Client

JOBS_LOOKED_AT = 1000


class CheckpointCommands(click.Group):
    """`checkpoints scan PATH`; anything else is a run, a job or an option of `show`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if named else ["show", *args])


@click.group(cls=CheckpointCommands)
def checkpoints() -> None:
    """Checkpoints that jobs announced (`understudy checkpoints show`), and those that lie in a folder (`scan`)."""


@checkpoints.command("scan")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
def scan_folder(path: Path, as_json: bool) -> None:
    """List what looks like a checkpoint in a folder and belongs to you, also where no job announced it. Nothing is
    loaded, changed or reported.
    """
    from understudy_controlplane.cli.scanned_checkpoints import scan

    found = sorted(scan(path, os.getuid()), key=lambda one: one.written_at, reverse=True)
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
        return
    for one in found:
        step = "step not known" if one.step is None else f"step {one.step}"
        doubt = f": {one.doubt}" if one.doubt else ""
        size = f"{one.size_bytes / 1e6:.1f} MB"
        click.echo(one_line(f"{step}, {one.path}, {one.kind}, {size}, {date(one.written_at)}{doubt}"))
    if not found:
        click.echo(one_line(f"nothing of yours in {path} looks like a checkpoint"))


@checkpoints.command("now")
@click.argument("run", metavar="RUN|JOB")
@request_options
@connected
def save_now(client: Client, as_json: bool, run: str, **options: Unpack[Options]) -> None:
    """Ask all ranks of a job to save a checkpoint, before the same step, some seconds from now. Its training has to ask
    when to save (`monitor.checkpoints.due`).
    """
    send(client, as_json, Requests([f"/v1/jobs/{_job_of(client, run)}/save"], **options))


@checkpoints.command("show")
@click.argument("run", required=False)
@click.option("--job", type=JOB, help="Only checkpoints of this job.")
@click.option("--ranks", type=click.IntRange(1), help="With RUN: as if its gang had so many ranks.")
@limit_option
@connected
def show_checkpoints(
    client: Client,
    /,
    as_json: bool,
    limit: int,
    run: str | None,
    job: int | str | None,
    ranks: int | None,
    **chosen: Chosen,
) -> None:
    """The newest checkpoints, complete or not; `understudy checkpoints` alone is the same. With RUN, the name of a run
    or a job's id: where it would continue now, what was passed over and why, and what its interval costs.
    """
    if run is not None:
        _explain(client, run, ranks, as_json)
        return
    if ranks is not None:
        raise click.UsageError("--ranks needs a RUN")
    if job is not None:
        chosen["job"] = job_id_of(client, job)
    print_items(client, listing(), as_json, limit, chosen)


def _explain(client: Client, run: str, ranks: int | None, as_json: bool) -> None:
    from understudy_client import CheckpointExplanation

    number = _job_of(client, run)
    explained = client.get(f"/v1/explain/checkpoints/{number}", CheckpointExplanation, ranks=ranks)
    if as_json:
        print_json(explained)
        return
    for line in explanation_lines(number, explained):
        click.echo(one_line(line))


def explanation_lines(job_id: int, explained: CheckpointExplanation) -> Iterator[str]:
    of = f" with {counted(explained.ranks, 'rank')}" if explained.ranks else ""
    if explained.answer == "restore":
        yield f"an attempt of job {job_id}{of} that begins now restores step {explained.step}: {explained.path}"
    elif explained.answer == "fresh":
        yield f"an attempt of job {job_id}{of} that begins now starts from the beginning: nothing was ever saved"
    else:
        yield f"an attempt of job {job_id}{of} that begins now stops and asks: {explained.why}"
    yield from memory_lines(explained)
    for one in explained.checkpoints:
        chosen = explained.answer == "restore" and (one.step, one.path) == (explained.step, explained.path)
        state = "chosen" if chosen else "passed over" if one.against else "older"
        known = f", {one.condition}" if one.condition == "verified" else ""
        known += {"fixed": f", for {counted(one.world_size, 'rank')}", "reshardable": ", for any number of ranks"}.get(
            one.layout, ""
        )
        known += {
            "peer": ", in memory of its nodes",
            "local": ", on disks of its nodes",
            "shared": ", on a shared file system",
            "object": ", in an object store",
        }.get(one.tier, "")
        against = f": {one.against}" if one.against else ""
        yield f"  {state}: step {one.step}, {one.path}, job {one.job_id}, {date(one.at)}{known}{against}"
    if len(explained.checkpoints) < explained.count:
        yield f"  and {explained.count - len(explained.checkpoints)} more"
    yield from attempt_lines(explained)
    if explained.interval is not None:
        yield from interval_lines(explained.interval)
        yield from tier_lines(explained.interval)


def memory_lines(explained: CheckpointExplanation) -> Iterator[str]:
    """A gang goes on from memory first, where that is not behind the checkpoint."""
    chosen = next((one for one in explained.in_memory if not one.against and one.step >= (explained.step or 0)), None)
    if chosen is not None:
        yield f"before that its ranks look into the memory of its nodes, and go on from step {chosen.step} there"
    for one in explained.in_memory:
        state = "chosen" if one is chosen else "passed over" if one.against else "older"
        held = f"parts of {one.ranks} of {counted(one.world_size, 'rank')} on {counted(one.nodes, 'node')}"
        held += f", each on {one.places}" if one.places > 1 else ""
        against = f": {one.against}" if one.against else ""
        yield f"  {state}: step {one.step}, in memory, {held}, {date(one.at)}{against}"


def attempt_lines(explained: CheckpointExplanation) -> Iterator[str]:
    """The newest attempt, and those before which something changed."""
    for place, one in enumerate(explained.attempts):
        name = f"attempt {one.attempt} of job {one.job_id}"
        if place == 0:
            known = {"code": one.code, "config": one.config, "data": one.data}
            yield f"{name} runs with {', '.join(f'{what} {value}' for what, value in known.items() if value)}"
        if one.changed:
            before = explained.attempts[place + 1]
            was = ", ".join(f"{what} was {getattr(before, what)}" for what in one.changed)
            earlier = f"{before.attempt} of job {before.job_id}"
            yield f"  {' and '.join(one.changed)} changed between {earlier} and {name}: {was}"


def interval_lines(found: CheckpointInterval) -> Iterator[str]:
    held = "holds the training up for" if found.cost_is_measured else "takes (what it holds up is not known)"
    yield f"a checkpoint {held} {found.cost_seconds:.3g} s; the gang fails every {_hours(found.mtbf_seconds)}"
    if found.today_seconds is None:
        yield f"best interval: {_hours(found.best_seconds)} (Daly: {_hours(found.daly_seconds)})"
        return
    lost = _lost(found.gpu_hours_lost_today or 0.0, found.gpu_hour_price)
    best = _lost(found.gpu_hours_lost_best, found.gpu_hour_price)
    gpus = counted(found.gpus, "GPU")
    yield f"interval now: {_hours(found.today_seconds)}, which costs {lost} in each hour, on {gpus}"
    yield f"best interval: {_hours(found.best_seconds)} (Daly: {_hours(found.daly_seconds)}), which would cost {best}"


def tier_lines(found: CheckpointInterval) -> Iterator[str]:
    for one in found.tiers:
        failures = f"failures of {' or '.join(one.answers)}, one in {_hours(one.mtbf_seconds)}"
        yield f"  {one.tier}: every {_hours(one.best_seconds)}; for {failures}; costs {one.cost_seconds:.3g} s"


def _lost(gpu_hours: float, price: float | None) -> str:
    return (
        (f"{gpu_hours:,.0f}" if gpu_hours >= 100 else f"{gpu_hours:.2g}")
        + " GPU-hours"
        + (f" ({gpu_hours * price:,.2f} at {price:g} each)" if price else "")
    )


def _hours(seconds: float) -> str:
    for unit, size in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _job_of(client: Client, run: str) -> int:
    return job_id_of(client, int(run)) if run.isdecimal() else _newest_of(client, run)


def _newest_of(client: Client, run: str) -> int:
    """Raises RefusedError where the control plane knows no job of the run."""
    from understudy_client import Job, RefusedError

    for one in client.items("/v1/jobs", Job, JOBS_LOOKED_AT):
        if one.run_name == run:
            return one.job_id
    raise RefusedError(f"no job of the run {run!r} is among the newest {JOBS_LOOKED_AT}; give a job's id", 404)


def listing() -> Listing[Checkpoint]:
    from understudy_client import Checkpoint

    columns: dict[str, Callable[[Checkpoint], object]] = {
        "job": lambda one: one.job_id,
        "step": lambda one: one.step,
        "at": lambda one: date(one.at),
        "shards": lambda one: f"{one.shards}/{one.world_size}",
        "path": lambda one: one.path,
        "suspect": lambda one: one.suspect,
    }
    return Listing("/v1/checkpoints", Checkpoint, columns)
