"""`understudy checkpoints`: what jobs announced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.listing import Listing, limit_option
from understudy_controlplane.cli.options import json_option
from understudy_controlplane.cli.output import date, show
from understudy_controlplane.cli.requests import request_command
from understudy_controlplane.cli.subjects import JOB_TYPE, Subject, job_id_of
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.plain_text import one_line

if TYPE_CHECKING:
    from understudy_client import Client, Record
    from understudy_controlplane.cli.scanned_checkpoints import Scanned

JOBS_LOOKED_AT = 1000
CHECKPOINTS = Listing(
    "/v1/checkpoints",
    {
        "job": "job_id",
        "step": "step",
        "at": "at",
        "shards": lambda one: f"{one.shards}/{one.world_size}",
        "path": "path",
        "suspect": "suspect",
    },
)


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
    """List checkpoints in a folder that belong to you, newest first, also where no job announced them, and what speaks
    against each. Pickles are not loaded, nothing is changed or reported, and contents of tensors are not looked at.
    """
    from understudy_controlplane.cli.scanned_checkpoints import Scan

    scan = Scan(path, os.getuid())
    found = sorted(scan.checkpoints(), key=lambda one: one.written_at, reverse=True)
    lines = [*map(_scanned, found)] or [f"nothing of yours in {path} looks like a checkpoint"]
    lines += [f"note: {one}" for one in scan.notes]
    show({"checkpoints": found, "notes": scan.notes}, as_json, lambda _: map(one_line, lines))


def _scanned(one: Scanned) -> str:
    step = "step not known" if one.step is None else f"step {one.step}"
    state = f"doubtful: {one.doubt}" if one.doubt else f"not known: {one.unread}" if one.unread else "whole"
    size = f"{one.size_bytes / 1e6:,.1f} MB in {counted(one.files, 'file')}"
    return f"{step}, {one.path}, {one.kind}, {size}, {date(one.written_at)}: {state}"


@checkpoints.command("show")
@click.argument("run", required=False)
@click.option("--job", type=JOB_TYPE, help="Only checkpoints of this job.")
@click.option("--ranks", type=click.IntRange(1), help="With RUN: as if its gang had so many ranks.")
@limit_option
@connected
def show_checkpoints(
    client: Client, as_json: bool, limit: int, run: str | None, job: int | str | None, ranks: int | None
) -> None:
    """The newest checkpoints, complete or not; `understudy checkpoints` alone is the same. With RUN, the name of a run
    or a job's id: where it would continue now, what was passed over and why, and what its interval costs.
    """
    if run is not None:
        (number,) = _job_of(client, run)
        explained = client.get(f"/v1/explain/checkpoints/{number}", ranks=ranks)
        show(explained, as_json, lambda _: map(one_line, explanation_lines(number, explained)))
        return
    if ranks is not None:
        raise click.UsageError("--ranks needs a RUN")
    chosen = None if job is None else job_id_of(client, job)
    show(client.items("/v1/checkpoints", limit, job=chosen), as_json, CHECKPOINTS.lines)


def explanation_lines(job_id: int, explained: Record) -> Iterator[str]:
    of = f" with {counted(explained.ranks, 'rank')}" if explained.ranks else ""
    if explained.answer == "restore":
        yield f"an attempt of job {job_id}{of} that begins now restores step {explained.step}: {explained.path}"
    elif explained.answer == "fresh":
        yield f"an attempt of job {job_id}{of} that begins now starts from the beginning: nothing was ever announced"
        yield "  a program that announces no checkpoints finds its newest one by itself"
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


def memory_lines(explained: Record) -> Iterator[str]:
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


def attempt_lines(explained: Record) -> Iterator[str]:
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


def interval_lines(found: Record) -> Iterator[str]:
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


def tier_lines(found: Record) -> Iterator[str]:
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


def _job_of(client: Client, run: str) -> tuple[int]:
    """Raises RefusedError where the control plane knows no job of the run."""
    from understudy_client import RefusedError

    if run.isdecimal():
        return (int(run),)
    for one in client.items("/v1/jobs", JOBS_LOOKED_AT):
        if one.run_name == run:
            return (one.job_id,)
    raise RefusedError(f"no job of the run {run!r} is among the newest {JOBS_LOOKED_AT}; give a job's id", 404)


checkpoints.add_command(
    request_command(
        "now",
        "Ask all ranks of a job to save a checkpoint, before the same step, some seconds from now. Its training has to "
        "ask when to save (`monitor.checkpoints.due`).",
        "/v1/jobs/{}/save",
        Subject(click.argument("subject", metavar="RUN|JOB"), _job_of),
    )
)
