"""The network of a testbed whose nodes are machines: each node has a network namespace with addresses of its own.

Belongs here: namespaces, cables and switches, and what breaks them. Must not: anything about Slurm.

    this host, 198.18.N.1 ── spine ─┬─ n1 (management 198.18.N.11, fabric 198.19.N.11)
                                    └─ rack ─┬─ n2
                                             └─ n3
The switches are bridges in a namespace of their own. No namespace has a name: each lives as long as the process that
holds it, and with it go its cables, also those into this host's namespace. A testbed that was killed leaves nothing.
"""

from __future__ import annotations

import functools
import random
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

_PROGRAMS = "ip, bridge (Debian: iproute2), unshare and nsenter (util-linux)"
_TRY_SECONDS = 10.0
_NETWORKS = range(256)
_FIRST_NODE = 11
_NODES_MAX = 240

NetworkName = Literal["management", "fabric"]
INTERFACES: Mapping[NetworkName, str] = {"management": "eth0", "fabric": "ib0"}
"""As the node sees them."""


class NetworkError(Exception):
    """A namespace, a cable or a switch could not be made or changed."""


@functools.cache
def why_impossible() -> str:
    """Why nodes cannot be machines here; empty where they can."""
    command = ["unshare", "--net", "--uts", "--mount", "sh", "-c", "ip link add try type bridge && bridge link show"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TRY_SECONDS)
    except OSError as error:
        return f"{error}; needed: {_PROGRAMS}"
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} does not end"
    return "" if done.returncode == 0 else f"{' '.join(command)} failed: {done.stderr.strip()}; needed: {_PROGRAMS}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Those of the network of one testbed."""

    number: int

    @property
    def host(self) -> str:
        return f"198.18.{self.number}.1"

    @property
    def interface(self) -> str:
        """This host's end of its cable."""
        return f"understudy{self.number}"

    def of(self, place: int, network: NetworkName = "management") -> str:
        """Of the node that is the first, second, ... (from 0)."""
        return f"198.{18 if network == 'management' else 19}.{self.number}.{_FIRST_NODE + place}"


def reserve() -> tuple[Addresses, int]:
    """A network that no other testbed has while the file descriptor is open: the kernel ends a reservation with its
    process. 198.18.0.0/15 is set aside for tests of networks (RFC 2544).
    """
    for number in random.sample(_NETWORKS, k=len(_NETWORKS)):
        addresses = Addresses(number)
        if Path("/sys/class/net", addresses.interface).exists():
            continue  # of a testbed that has just ended
        reserved = socket.socket(socket.AF_UNIX)
        try:
            reserved.bind(f"\0understudy-testbed-network-{number}")
        except OSError:
            reserved.close()
            continue
        return addresses, reserved.detach()
    raise NetworkError(f"all {len(_NETWORKS)} networks for testbeds are in use")


def hosts_file(addresses: Addresses, nodes: Sequence[str]) -> str:
    lines = ["127.0.0.1 localhost", f"{addresses.host} {socket.gethostname()}"]
    for place, node in enumerate(nodes):
        lines += [f"{addresses.of(place)} {node}", f"{addresses.of(place, 'fabric')} {node}-ib0"]
    return "\n".join(lines) + "\n"


def switch_command() -> list[str]:
    """It never ends: it holds the namespace of the switches."""
    bridges = " && ".join(
        f"ip link add {network} type bridge stp_state 0 forward_delay 0 && ip link set {network} up"
        for network in INTERFACES
    )
    return ["unshare", "--net", "sh", "-c", f"{bridges} && exec sleep infinity"]


def node_command(
    addresses: Addresses, place: int, node: str, switch: int, hosts: Path, root: Path | None = None
) -> list[str]:
    """It never ends: it holds the node's namespaces. `switch` is the process that holds those of the switches.

    The node has a host name, an /etc/hosts and a /run of its own, below `root` where its programs are there.
    """
    lines = ["link set lo up"]
    for network, interface in INTERFACES.items():
        lines += [
            f"link add {interface} type veth peer name {_port(node, network)} netns {switch}",
            f"addr add {addresses.of(place, network)}/24 dev {interface}",
            f"link set {interface} up",
        ]
    batch = hosts.with_name(f"network.{node}")
    batch.write_text("\n".join(lines) + "\n", encoding="utf-8")
    below = str(root or "")
    script = " && ".join(
        [
            f"ip -batch '{batch}'",
            f"echo {node} > /proc/sys/kernel/hostname",
            f"mount --bind '{hosts}' '{below}/etc/hosts'",
            f"mount -t tmpfs tmpfs '{below}/run'",
            f"exec {f'chroot {root} ' if root else ''}sleep infinity",
        ]
    )
    return ["unshare", "--net", "--uts", "--mount", "sh", "-c", script]


def _port(node: str, network: NetworkName) -> str:
    """The switch's end of a node's cable."""
    return f"{node}.{INTERFACES[network]}"


class Switch:
    """The switches, seen from the process that holds their namespace."""

    def __init__(self, holder: int) -> None:
        self._holder = holder

    def connect(self, addresses: Addresses, nodes: Sequence[str], racks: Mapping[str, int]) -> None:
        """This host and all nodes; racks are below the spine of the management network."""
        _ip(
            [
                f"link add {addresses.interface} type veth peer name uplink netns {self._holder}",
                f"addr add {addresses.host}/24 dev {addresses.interface}",
                f"link set {addresses.interface} up",
            ]
        )
        lines = ["link set uplink master management up"]
        for rack in racks:
            lines += [
                f"link add {rack} type bridge stp_state 0 forward_delay 0",
                f"link set {rack} up",
                f"link add {rack}.up type veth peer name {rack}.down",
                f"link set {rack}.up master {rack} up",
                f"link set {rack}.down master management up",
            ]
        leaves = dict(_leaves(nodes, racks))
        for node in nodes:
            lines.append(f"link set {_port(node, 'management')} master {leaves.get(node, 'management')} up")
            lines.append(f"link set {_port(node, 'fabric')} master fabric up")
        _ip(lines, self._holder)

    def set_cables(self, nodes: Sequence[str], networks: Sequence[NetworkName], up: bool) -> None:
        state = "up" if up else "down"
        _ip([f"link set {_port(node, network)} {state}" for node in nodes for network in networks], self._holder)

    def set_rack(self, rack: str, up: bool) -> None:
        """The rack's cable to the spine: its nodes reach each other all the same."""
        _ip([f"link set {rack}.up {'up' if up else 'down'}"], self._holder)

    def set_uplink(self, up: bool) -> None:
        """This host's cable: slurmctld, the control plane and its database are here."""
        _ip([f"link set uplink {'up' if up else 'down'}"], self._holder)

    def lose_from(self, node: str, lost: bool) -> None:
        """What the node sends on the management network is lost; it hears all."""
        port = _port(node, "management")
        # A locked port drops what comes from an address that it does not know.
        _bridge([f"link set dev {port} locked {'on' if lost else 'off'}"], self._holder)
        _ip([f"link set {port} type bridge_slave fdb_flush"], self._holder)

    def lose_to(self, node: str, lost: bool) -> None:
        """What is sent to the node on the management network is lost; what it sends arrives."""
        port, word = _port(node, "management"), "off" if lost else "on"
        settings = " ".join(f"{name} {word}" for name in ("learning", "flood", "mcast_flood", "bcast_flood"))
        _bridge([f"link set dev {port} {settings}"], self._holder)
        _ip([f"link set {port} type bridge_slave fdb_flush"], self._holder)


def _leaves(nodes: Sequence[str], racks: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    remaining = iter(nodes)
    for rack, count in racks.items():
        for node in islice(remaining, count):
            yield node, rack


def is_in_namespace_of(holder: int, pid: int) -> bool:
    """Whether a process runs on the node whose namespace that other process holds."""
    try:
        return Path(f"/proc/{pid}/ns/net").samefile(f"/proc/{holder}/ns/net")
    except OSError:
        return False


def _ip(lines: Sequence[str], namespace: int | None = None) -> None:
    _batch("ip", lines, namespace)


def _bridge(lines: Sequence[str], namespace: int | None = None) -> None:
    _batch("bridge", lines, namespace)


def _batch(program: str, lines: Sequence[str], namespace: int | None) -> None:
    within = ["nsenter", f"--target={namespace}", "--net", "--"] if namespace else []
    done = subprocess.run(
        [*within, program, "-batch", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=_TRY_SECONDS,
    )
    if done.returncode != 0:
        raise NetworkError(f"{program} failed: {done.stderr.strip()}; it was given:\n" + "\n".join(lines))
