"""`understudy topology`: domains of failure and of traffic."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.listing import show_command
from understudy_controlplane.cli.output import Exit, show
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.plain_text import one_line
from understudy_controlplane.hostlist import compress

if TYPE_CHECKING:
    from understudy_client import Client, Record

WITHIN = {"pod": ("spine",), "switch": ("pod", "spine"), "rack": ("row",), "nvlink_block": ("rack", "pod")}
"""Kind of a domain → kinds of domains that it is drawn in, the nearest first."""


@click.command("check")
@connected
def check(client: Client, as_json: bool) -> None:
    """Name what is inconsistent or missing. Exits with 1 where something is."""
    found = client.get("/v1/topology")
    good = f"good: {counted(len(found.domains), 'domain')}, nothing is inconsistent or missing"
    lines = [f"WRONG {one_line(one)}" for one in found.problems] or [good]
    show({"problems": found.problems}, as_json, lambda _: lines)
    sys.exit(Exit.FAILED if found.problems else Exit.DONE)


def _lines(found: Record) -> list[str]:
    shown = drawn(found.domains) or ["no topology is known: neither Slurm nor a file describes one"]
    more = [f"\n{len(found.problems)} problems: understudy topology check"] if found.problems else []
    return shown + more


def drawn(domains: Sequence[Record]) -> list[str]:
    """A tree. A domain that lies within two, as a leaf switch below two spines, is drawn in the first."""
    below: dict[str, list[Record]] = {}
    for one in domains:
        below.setdefault(_parent(one, domains), []).append(one)
    return [line for top in below.get("", ()) for line in _branch(top, below, "", "")]


def _label(domain: Record) -> str:
    return f"{domain.kind} {domain.name}"


def _parent(domain: Record, domains: Sequence[Record]) -> str:
    """The label of the domain that contains it; empty: none does."""
    for kind in WITHIN.get(domain.kind, ()):
        for other in domains:
            if other.kind == kind and set(domain.nodes) <= set(other.nodes):
                return _label(other)
    return ""


def _branch(domain: Record, below: Mapping[str, list[Record]], first: str, rest: str) -> Iterator[str]:
    nodes = compress(domain.nodes) if domain.nodes else "no nodes"
    yield one_line(f"{first}{_label(domain)}  {nodes}  ({len(domain.nodes)}, {domain.source})")
    for signal in domain.signals:
        yield one_line(f"{rest}   ! {signal}")
    inner = below.get(_label(domain), [])
    for one in inner:
        last = one is inner[-1]
        yield from _branch(one, below, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}")


topology = click.Group(
    "topology",
    help="Racks, switches, NVLink blocks and other domains.",
    commands=[
        show_command(
            "show",
            "Draw the domains that the control plane knows, each within the one that contains it.",
            "/v1/topology",
            lines=_lines,
        ),
        check,
    ],
)
