"""The site's own file of domains: racks, rows, cooling, power, rails, what Slurm does not know. Pure.

TOML: a table for each kind, a key for each domain, a host list or a list of them. A member may be a domain of the same
file ("rack r[1-4]"), or leaf switches of any source ("switch leaf[1-2]a").
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

from understudy_controlplane.fleet.topology import Domain, DomainKind, Source
from understudy_controlplane.hostlist import HostListError, expand


class TopologyFileError(Exception):
    """The message names file, cause and remedy."""


def parse_site_topology(text: str, origin: str) -> list[Domain]:
    """`origin` names the file in errors. Raises TopologyFileError."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TopologyFileError(f"{origin}: not valid TOML: {error}") from error
    return _File(_members(tables, origin), origin).domains()


def _members(tables: Mapping[str, object], origin: str) -> dict[tuple[DomainKind, str], list[str]]:
    """What the file writes for each domain."""
    found: dict[tuple[DomainKind, str], list[str]] = {}
    kinds = ", ".join(DomainKind)
    for kind, table in tables.items():
        if kind not in set(DomainKind) or not isinstance(table, dict):
            raise TopologyFileError(f"{origin}: {kind!r} is no kind of domain; write a table of one of: {kinds}")
        for name, written in table.items():
            members = [written] if isinstance(written, str) else written
            if not isinstance(members, list) or not all(isinstance(one, str) for one in members):
                raise TopologyFileError(f'{origin}: {kind}.{name}: write a host list, or a list of them: ["n[1-4]"]')
            found[DomainKind(kind), name] = members
    return found


class _File:
    def __init__(self, members: Mapping[tuple[DomainKind, str], list[str]], origin: str) -> None:
        self._members = members
        self._origin = origin

    def domains(self) -> list[Domain]:
        found = []
        for kind, name in self._members:
            nodes, switches = self._resolved(kind, name, ())
            found.append(Domain(kind, name, nodes, Source.FILE, switches))
        return found

    def _resolved(
        self, kind: DomainKind, name: str, above: tuple[tuple[DomainKind, str], ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Nodes, and leaf switches of other sources. `above`: the domains that this one is a member of."""
        if (kind, name) not in self._members:
            raise TopologyFileError(
                f"{self._origin}: there is no {kind} {name}, which {above[-1][0]} {above[-1][1]} names"
            )
        if (kind, name) in above:
            raise TopologyFileError(f"{self._origin}: {kind} {name} is a member of itself; remove it there")
        nodes: list[str] = []
        switches: list[str] = []
        for written in self._members[kind, name]:
            first, _, rest = written.partition(" ")
            if not rest:
                nodes += self._expanded(written, kind, name)
                continue
            if first not in set(DomainKind):
                raise TopologyFileError(f"{self._origin}: {kind}.{name}: {first!r} is no kind of domain")
            inner = DomainKind(first)
            for one in self._expanded(rest.strip(), kind, name):
                if inner is DomainKind.SWITCH and (inner, one) not in self._members:
                    switches.append(one)
                    continue
                below = self._resolved(inner, one, (*above, (kind, name)))
                nodes += below[0]
                switches += [*below[1], *([one] if inner is DomainKind.SWITCH else [])]
        return tuple(dict.fromkeys(nodes)), tuple(dict.fromkeys(switches))

    def _expanded(self, text: str, kind: DomainKind, name: str) -> tuple[str, ...]:
        try:
            return expand(text)
        except HostListError as error:
            raise TopologyFileError(f"{self._origin}: {kind}.{name}: {error}") from error
