"""An InfiniBand fabric as `ibnetdiscover` or `iblinkinfo` prints it: leaf switches, rails, pods, spines. Pure.

A switch with ports of nodes is a leaf switch. The name of a node's port is its node description, "n1 mlx5_0": host name
and device. Leaf switches that all nodes reach by the same device are a rail.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from understudy_controlplane.fleet.topology import Domain, DomainKind, Source

_DISCOVERED = re.compile(r'Switch\s+\d+\s+"S-([0-9a-f]+)"\s*#\s*"([^"]*)"')
_PORT = re.compile(r'\[\d+\](?:\([0-9a-f]+\))?\s+"([SH])-([0-9a-f]+)"\[\d+\](?:\([0-9a-f]+\))?\s*#\s*"([^"]*)"')
_LISTED = re.compile(r"Switch:\s+0x([0-9a-f]+)\s+(.*):\s*$")
_LINK = re.compile(r'LinkUp\)==>\s+\d+\s+\d+\[[^\]]*\]\s+"([^"]*)"')
_DESCRIPTION = re.compile(r"(?:MF0;)?([^:;]+)(?::\S*)?")


class FabricMapError(Exception):
    """The message names file, cause and remedy."""


@dataclass(slots=True)
class _Switch:
    guid: str
    description: str
    ports: list[tuple[str, str]] = field(default_factory=list)  # node and device
    peers: set[str] = field(default_factory=set)  # GUIDs or descriptions of switches


def parse_fabric_map(text: str, origin: str, nodes: Collection[str]) -> list[Domain]:
    """`nodes`: those that Slurm has; other hosts, such as storage, are left out. Raises FabricMapError."""
    switches = _switches(text, nodes)
    if not switches:
        raise FabricMapError(f"{origin}: no switch is named; write the output of ibnetdiscover or iblinkinfo to it")
    names = _names(switches)
    leaves = {guid: one for guid, one in switches.items() if one.ports}
    found = [
        Domain(DomainKind.SWITCH, names[guid], tuple(dict.fromkeys(node for node, _ in one.ports)), Source.INFINIBAND)
        for guid, one in leaves.items()
    ]
    return [*found, *_rails(leaves, names), *_above(switches, leaves, names)]


def _switches(text: str, nodes: Collection[str]) -> dict[str, _Switch]:
    found: dict[str, _Switch] = {}
    current: _Switch | None = None
    for line in text.splitlines():
        if (match := _DISCOVERED.match(line) or _LISTED.match(line)) is not None:
            current = found.setdefault(match[1], _Switch(match[1], match[2].strip()))
        elif line.startswith(("Ca", "CA:", "Rt")):
            current = None
        elif current is not None and (match := _PORT.match(line)) is not None:
            if match[1] == "S":
                current.peers.add(match[2])
            else:
                _add_port(current, match[3], nodes)
        elif current is not None and (match := _LINK.search(line)) is not None:
            current.peers.add(match[1].strip())
            _add_port(current, match[1], nodes)
    return found


def _add_port(switch: _Switch, description: str, nodes: Collection[str]) -> None:
    host, _, device = description.strip().partition(" ")
    node = host if host in nodes else host.partition(".")[0]
    if node in nodes:
        switch.ports.append((node, device.strip()))


def _names(switches: Mapping[str, _Switch]) -> dict[str, str]:
    """GUID → the name in "MF0;leaf1:MQM8700/U1"; where several have the same one, with the GUID behind it."""
    plain = {
        guid: match[1].strip() if (match := _DESCRIPTION.match(one.description)) is not None else guid
        for guid, one in switches.items()
    }
    times = Counter(plain.values())
    return {guid: name if times[name] == 1 else f"{name} {guid}" for guid, name in plain.items()}


def _rails(leaves: Mapping[str, _Switch], names: Mapping[str, str]) -> Iterator[Domain]:
    rails: dict[str, list[str]] = {}
    for guid, one in leaves.items():
        devices = {device for _, device in one.ports}
        if len(devices) == 1:
            rails.setdefault(devices.pop(), []).append(names[guid])
    if len(rails) > 1:
        for device, switches in rails.items():
            yield Domain(DomainKind.RAIL, device, (), Source.INFINIBAND, tuple(switches))


def _above(
    switches: Mapping[str, _Switch], leaves: Mapping[str, _Switch], names: Mapping[str, str]
) -> Iterator[Domain]:
    """Level by level. A switch above all nodes is a spine, also that of one rail. Of pods with the same nodes the first
    by name: the others are there for redundancy.
    """
    everything = {node for one in leaves.values() for node, _ in one.ports}
    of_description = {one.description: guid for guid, one in switches.items()}
    below = {guid: frozenset({guid}) for guid in leaves}
    known: set[frozenset[str]] = set()
    while True:
        level = {
            guid: frozenset().union(*reached)
            for guid, one in switches.items()
            if guid not in below
            and (reached := [below[peer] for peer in (of_description.get(p, p) for p in one.peers) if peer in below])
        }
        if not level:
            return
        for guid in sorted(level, key=lambda one: names[one]):
            under = [leaf for leaf in leaves if leaf in level[guid]]
            nodes = tuple(dict.fromkeys(node for leaf in under for node, _ in leaves[leaf].ports))
            is_spine = everything <= set(nodes)
            if len(under) > 1 and (is_spine or frozenset(nodes) not in known):
                kind = DomainKind.SPINE if is_spine else DomainKind.POD
                yield Domain(kind, names[guid], nodes, Source.INFINIBAND)
                known.add(frozenset(nodes))
        below |= level
