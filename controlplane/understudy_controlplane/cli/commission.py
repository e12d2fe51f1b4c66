"""`understudy commission`: racks and clusters that are accepted."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Unpack

import click
import msgspec

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.node import names_of
from understudy_controlplane.cli.output import date, print_json
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

if TYPE_CHECKING:
    from understudy_client import Client


class Stage(msgspec.Struct, frozen=True):
    stage: str
    status: str
    value: float | None
    unit: str
    pass_mark: float
    why: str


class CommissionedGpu(msgspec.Struct, frozen=True):
    index: int
    name: str
    serial: str
    vbios: str


class Part(msgspec.Struct, frozen=True):
    kind: str
    place: str
    model: str = ""
    serial: str = ""
    guid: str = ""


class CommissionedNode(msgspec.Struct, frozen=True):
    node: str
    acceptance: str
    reason: str
    bin: str
    tested_at: float | None
    driver: str
    versions: dict[str, str]
    gpus: tuple[CommissionedGpu, ...]
    parts: tuple[Part, ...]
    stages: tuple[Stage, ...]


class CommissioningReport(msgspec.Struct, frozen=True):
    cluster: str
    at: float
    nodes: tuple[CommissionedNode, ...]


Row = Sequence[object]
Section = tuple[str, Row, list[Row]]


@click.group()
def commission() -> None:
    """Racks and clusters that are accepted: burn-ins side by side, and the report."""


TARGET_HELP = 'TARGET is a host list (c[1-4]) or a domain ("rack r1")'


@commission.command(
    "start", help=f"Burn in all nodes of TARGET side by side, as soon as no job uses them. {TARGET_HELP}."
)
@click.argument("target")
@request_options
@connected
def start(client: Client, as_json: bool, target: str, **options: Unpack[Options]) -> None:
    names: Iterable[str] = (
        [one.node for one in client.get("/v1/commissioning", CommissioningReport, target=target).nodes]
        if " " in target  # the name of a domain
        else names_of(target, "TARGET")
    )
    send(client, as_json, Requests([f"/v1/nodes/{name}/burn-in" for name in names], **options))


@commission.command("report", help=f"Print which nodes are accepted, and why others are not. {TARGET_HELP}.")
@click.argument("target", required=False)
@click.option("--html", "as_html", is_flag=True, help="HTML instead of Markdown.")
@connected
def report(client: Client, as_json: bool, target: str | None, as_html: bool) -> None:
    if as_json:
        print_json(client.get("/v1/commissioning", dict, target=target))
        return
    found = client.get("/v1/commissioning", CommissioningReport, target=target)
    click.echo(as_page(found) if as_html else as_markdown(found))


def _sections(found: CommissioningReport) -> Iterator[Section]:
    counts = Counter(one.acceptance for one in found.nodes)
    yield "Nodes", ("", "number"), [(name.replace("_", " "), count) for name, count in counts.most_common()]
    speeds = Counter(one.bin for one in found.nodes if one.bin)
    yield "Performance bins", ("bin", "nodes"), [(name, speeds[name]) for name in sorted(speeds)]
    others = [one for one in found.nodes if one.acceptance != "accepted"]
    yield (
        "Not accepted",
        ("node", "", "reason"),
        [(one.node, one.acceptance.replace("_", " "), one.reason) for one in others],
    )
    good = [one for one in found.nodes if one.acceptance == "accepted"]
    yield (
        "Accepted",
        ("node", "bin", "tested", "stages"),
        [(one.node, one.bin, date(one.tested_at), _stages(one.stages)) for one in good],
    )
    yield (
        "GPUs",
        ("node", "GPU", "model", "serial", "VBIOS"),
        [(one.node, gpu.index, gpu.name, gpu.serial, gpu.vbios) for one in found.nodes for gpu in one.gpus],
    )
    yield (
        "Boards, network cards and modules",
        ("node", "part", "", "model", "serial"),
        [
            (one.node, part.kind, part.place, part.model or "unknown", part.serial or _unknown(part))
            for one in found.nodes
            for part in one.parts
        ],
    )
    versions = [(one.node, {"driver": one.driver, **one.versions}) for one in found.nodes]
    yield (
        "Versions",
        ("node", "part", "version"),
        [(node, part, version) for node, of_node in versions for part, version in of_node.items() if version],
    )


def _unknown(part: Part) -> str:
    return f"unknown (GUID {part.guid})" if part.guid else "unknown"


def _stages(stages: Sequence[Stage]) -> str:
    shown = (f"{one.value:g} {one.unit}" if one.value is not None else one.status.replace("_", " ") for one in stages)
    return ", ".join(f"{one.stage} {words}" for one, words in zip(stages, shown, strict=True))


def as_markdown(found: CommissioningReport) -> str:
    lines = [f"# Cluster {found.cluster}: nodes accepted, {date(found.at)}"]
    for title, columns, rows in _sections(found):
        if rows:
            lines += ["", f"## {title}", _line(columns), f"|{'---|' * len(columns)}", *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Row) -> str:
    return f"| {' | '.join(' '.join(str(cell).split()).replace('|', chr(92) + '|') for cell in cells)} |"


STYLE = (
    "body{font-family:sans-serif;margin:2em}table{border-collapse:collapse}"
    "td,th{border:1px solid #999;padding:.2em .6em;text-align:left}"
)


def as_page(found: CommissioningReport) -> str:
    """One file that needs no other."""
    title = html.escape(f"Cluster {found.cluster}: nodes accepted, {date(found.at)}")
    head = f"<meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
    parts = [f"<!doctype html><html lang=en>{head}<h1>{title}</h1>"]
    for heading, columns, rows in _sections(found):
        if rows:
            names = "".join(f"<th>{html.escape(str(cell))}</th>" for cell in columns)
            body = "\n".join(
                f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
            )
            parts.append(f"<h2>{heading}</h2><table><tr>{names}</tr>\n{body}</table>")
    return "\n".join([*parts, "</html>"])
