"""`understudy topology`: domains of failure and of traffic."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.output import Exit, print_json
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.hostlist import compress
from understudy_controlplane.fleet.plain_text import one_line

if TYPE_CHECKING:
    from understudy_client import Client

WITHIN = {"pod": ("spine",), "switch": ("pod", "spine"), "rack": ("row",), "nvlink_block": ("rack", "pod")}
"""Kind of a domain → kinds of domains that it is drawn in, the nearest first."""


class Domain(msgspec.Struct, frozen=True):
    kind: str
    name: str
    source: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()


class Topology(msgspec.Struct, frozen=True):
    domains: tuple[Domain, ...]
    problems: tuple[str, ...]


@click.group()
def topology() -> None:
    """Racks, switches, NVLink blocks and other domains."""


@topology.command("show")
@connected
def show(client: Client, as_json: bool) -> None:
    """Draw the domains that the control plane knows, each within the one that contains it."""
    if as_json:
        print_json(client.get("/v1/topology", dict))
        return
    found = client.get("/v1/topology", Topology)
    click.echo("\n".join(drawn(found.domains)) or "no topology is known: neither Slurm nor a file describes one")
    if found.problems:
        click.echo(f"\n{len(found.problems)} problems: understudy topology check")


@topology.command("check")
@connected
def check(client: Client, as_json: bool) -> None:
    """Name what is inconsistent or missing. Exits with 1 where something is."""
    found = client.get("/v1/topology", Topology)
    if as_json:
        print_json({"problems": found.problems})
    else:
        lines = [f"WRONG {one_line(one)}" for one in found.problems]
        click.echo(
            "\n".join(lines) or f"good: {counted(len(found.domains), 'domain')}, nothing is inconsistent or missing"
        )
    sys.exit(Exit.FAILED if found.problems else Exit.DONE)


def drawn(domains: Sequence[Domain]) -> list[str]:
    """A tree. A domain that lies within two, as a leaf switch below two spines, is drawn in the first."""
    below: dict[Domain | None, list[Domain]] = {}
    for one in domains:
        below.setdefault(_parent(one, domains), []).append(one)
    return [line for top in below.get(None, ()) for line in _branch(top, below, "", "")]


def _parent(domain: Domain, domains: Sequence[Domain]) -> Domain | None:
    for kind in WITHIN.get(domain.kind, ()):
        for other in domains:
            if other.kind == kind and set(domain.nodes) <= set(other.nodes):
                return other
    return None


def _branch(domain: Domain, below: dict[Domain | None, list[Domain]], first: str, rest: str) -> Iterator[str]:
    nodes = compress(domain.nodes) if domain.nodes else "no nodes"
    yield one_line(f"{first}{domain.kind} {domain.name}  {nodes}  ({len(domain.nodes)}, {domain.source})")
    for signal in domain.signals:
        yield one_line(f"{rest}   ! {signal}")
    inner = below.get(domain, [])
    for one in inner:
        last = one is inner[-1]
        yield from _branch(one, below, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}")
