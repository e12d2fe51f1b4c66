"""The network of a testbed whose nodes are machines: each machine has a network namespace with addresses of its own.

Belongs here: namespaces, cables and switches, and what breaks them. Must not: anything about Slurm.

    this host, 198.18.N.1 ── spine ─┬─ controller, database, login (management 198.18.N.2, .3, .4)
                                    ├─ n1 (management 198.18.N.11, fabric 198.19.N.11)
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
_FIRST_SERVICE = 2
_FIRST_NODE = 11
_NO_MACHINE = "02:00:00:00:00:01"
"""What is sent to this hardware address reaches no machine."""

HOST = "host"
"""This host, where the control plane and the tests run."""
SERVICES = ("controller", "database", "login")
"""Machines of the management network alone: of slurmctld, of the control plane's database, and of users' commands."""

NetworkName = Literal["management", "fabric"]
INTERFACES: Mapping[NetworkName, str] = {"management": "eth0", "fabric": "ib0"}
"""Interfaces as the node sees them."""


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

    def of_service(self, name: str) -> str:
        return f"198.18.{self.number}.{_FIRST_SERVICE + SERVICES.index(name)}"

    def of(self, place: int, network: NetworkName = "management") -> str:
        """Address of the node that is the first, second, ... (from 0)."""
        return f"198.{18 if network == 'management' else 19}.{self.number}.{_FIRST_NODE + place}"

    def machines(self, nodes: Sequence[str]) -> dict[str, dict[NetworkName, str]]:
        """All machines but this host, with their addresses."""
        services: dict[str, dict[NetworkName, str]] = {name: {"management": self.of_service(name)} for name in SERVICES}
        return services | {
            node: {name: self.of(place, name) for name in INTERFACES} for place, node in enumerate(nodes)
        }


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
    for machine, found in addresses.machines(nodes).items():
        lines.append(f"{found['management']} {machine}")
        lines += [f"{found['fabric']} {machine}-ib0"] if "fabric" in found else []
    return "\n".join(lines) + "\n"


def switch_command() -> list[str]:
    """It never ends: it holds the namespace of the switches."""
    bridges = " && ".join(
        f"ip link add {network} type bridge stp_state 0 forward_delay 0 && ip link set {network} up"
        for network in INTERFACES
    )
    return ["unshare", "--net", "sh", "-c", f"{bridges} && exec sleep infinity"]


def machine_command(
    machine: str, addresses: Mapping[NetworkName, str], switch: int, hosts: Path, root: Path | None = None
) -> list[str]:
    """It never ends: it holds the machine's namespaces. `switch` is the process that holds those of the switches.

    The machine has a host name, an /etc/hosts and a /run of its own, below `root` where its programs are there.
    """
    lines = ["link set lo up"]
    for network, address in addresses.items():
        interface = INTERFACES[network]
        lines += [
            f"link add {interface} type veth peer name {_port(machine, network)} netns {switch}",
            f"addr add {address}/24 dev {interface}",
            f"link set {interface} up",
        ]
    batch = hosts.with_name(f"network.{machine}")
    batch.write_text("\n".join(lines) + "\n", encoding="utf-8")
    below = str(root or "")
    script = " && ".join(
        [
            f"ip -batch '{batch}'",
            f"echo {machine} > /proc/sys/kernel/hostname",
            f"mount --bind '{hosts}' '{below}/etc/hosts'",
            f"mount -t tmpfs tmpfs '{below}/run'",
            f"exec {f'chroot {root} ' if root else ''}sleep infinity",
        ]
    )
    return ["unshare", "--net", "--uts", "--mount", "sh", "-c", script]


def _port(machine: str, network: NetworkName) -> str:
    """The switch's end of a machine's cable."""
    return f"{machine}.{INTERFACES[network]}"


class Switch:
    """The switches, seen from the process that holds their namespace."""

    def __init__(self, holder: int, addresses: Addresses, machines: Mapping[str, int]) -> None:
        """`machines`: the processes that hold the namespaces of each."""
        self._holder = holder
        self._addresses = addresses
        self._machines = machines
        self._networks: dict[str, dict[NetworkName, str]] = {}

    def connect(self, nodes: Sequence[str], racks: Mapping[str, int]) -> None:
        """This host and all machines; racks are below the spine of the management network."""
        addresses = self._addresses
        self._networks = addresses.machines(nodes)
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
        for machine, networks in self._networks.items():
            for network in networks:
                bridge = leaves.get(machine, network) if network == "management" else network
                lines.append(f"link set {_port(machine, network)} master {bridge} up")
        _ip(lines, self._holder)

    def set_cables(self, machines: Sequence[str], networks: Sequence[NetworkName], up: bool) -> None:
        ports = [_port(name, network) for name in machines for network in networks if network in self._networks[name]]
        _ip([f"link set {port} {'up' if up else 'down'}" for port in ports], self._holder)

    def set_rack(self, rack: str, up: bool) -> None:
        """The rack's cable to the spine: its nodes reach each other all the same."""
        _ip([f"link set {rack}.up {'up' if up else 'down'}"], self._holder)

    def set_uplink(self, up: bool) -> None:
        """This host's cable: the control plane is here."""
        _ip([f"link set uplink {'up' if up else 'down'}"], self._holder)

    def lose_from(self, machine: str, lost: bool) -> None:
        """What the machine sends on the management network is lost; it hears all."""
        port = _port(machine, "management")
        # A locked port drops what comes from an address that it does not know.
        _bridge([f"link set dev {port} locked {'on' if lost else 'off'}"], self._holder)
        _ip([f"link set {port} type bridge_slave fdb_flush"], self._holder)

    def lose_to(self, machine: str, lost: bool) -> None:
        """What is sent to the machine on the management network is lost; what it sends arrives."""
        port, word = _port(machine, "management"), "off" if lost else "on"
        settings = " ".join(f"{name} {word}" for name in ("learning", "flood", "mcast_flood", "bcast_flood"))
        _bridge([f"link set dev {port} {settings}"], self._holder)
        _ip([f"link set {port} type bridge_slave fdb_flush"], self._holder)

    def lose_between(self, sender: str, receiver: str, lost: bool) -> None:
        """What one machine sends to the other on the management network is lost; either may be this host."""
        addresses = self._addresses
        to = addresses.host if receiver == HOST else self._networks[receiver]["management"]
        interface = addresses.interface if sender == HOST else INTERFACES["management"]
        line = f"neigh replace {to} lladdr {_NO_MACHINE} dev {interface} nud permanent"
        _ip([line if lost else f"neigh del {to} dev {interface}"], self._machines.get(sender))


def _leaves(nodes: Sequence[str], racks: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    remaining = iter(nodes)
    for rack, count in racks.items():
        for node in islice(remaining, count):
            yield node, rack


def is_in_namespace_of(holder: int, pid: int) -> bool:
    """True if a process runs on the machine whose namespace that other process holds."""
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
