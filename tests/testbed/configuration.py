"""The configuration files of a testbed cluster.

Belongs here: the text of slurm.conf and gres.conf, and the choice of ports. Must not: starting anything.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.testbed.network import SERVICES, Addresses, hosts_file

NO_SCHEDULER_DELAY = "SchedulerParameters=batch_sched_delay=0"
"""Setting that `understudy doctor` recommends."""

IMPATIENT_SCHEDULER = "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1"
"""Setting for tests that promise no times: Slurm starts what can start within a second instead of several."""

_PORTS = range(10_000, 32_000)  # below Linux' range for outgoing connections, which could take one meanwhile


@dataclass(frozen=True, slots=True)
class Layout:
    """What a testbed cluster consists of."""

    directory: Path
    name: str
    node_names: tuple[str, ...]
    gpus_per_node: int
    controller_port: int
    node_ports: tuple[int, ...]
    extra_lines: tuple[str, ...] = ()
    racks: Mapping[str, int] = field(default_factory=dict)
    """Leaf switches of a tree, and how many nodes are below each, in order; none: slurm.conf has no topology."""
    leaf_switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Instead of racks, for Slurm alone: leaf switches and their nodes, which may be below several (rails)."""
    blocks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Instead of a tree: blocks of topology/block and their nodes, each of the same number."""
    has_topology_yaml: bool = False
    """Slurm 25.05 and later read topology.yaml instead of topology.conf."""
    addresses: Addresses | None = None
    """Addresses of the machines; None: all are this host's own."""

    @property
    def slurm_conf(self) -> Path:
        return self.directory / "slurm.conf"

    @property
    def munge_directory(self) -> Path:
        return self.directory / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge_directory / "socket"

    @property
    def log_directory(self) -> Path:
        return self.directory / "log"

    @property
    def device_directory(self) -> Path:
        return self.directory / "dev"

    @property
    def hosts_file(self) -> Path:
        return self.directory / "hosts"

    @property
    def host_address(self) -> str:
        """Address at which machines reach what runs on this host: the control plane."""
        return self.addresses.host if self.addresses else "127.0.0.1"

    def address_of(self, machine: str) -> str:
        """Address of a node, or of the machine of a service."""
        if self.addresses is None:
            return "127.0.0.1"
        if machine in SERVICES:
            return self.addresses.of_service(machine)
        return self.addresses.of(self.node_names.index(machine))

    def node_log(self, node: str) -> Path:
        return self.log_directory / f"slurmd.{node}.log"


def free_ports(count: int) -> tuple[int, ...]:
    """TCP ports on which nothing listens now."""
    found: list[int] = []
    for port in random.sample(_PORTS, k=len(_PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))  # noqa: S104 - Slurm's daemons listen on all addresses, too
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return tuple(found)
    raise OSError(f"fewer than {count} free TCP ports between {_PORTS.start} and {_PORTS.stop}")


def slurm_conf(layout: Layout) -> str:
    """Defaults wherever the machine allows them: what is measured here must hold on an untuned cluster."""
    directory = layout.directory
    controller = "controller" if layout.addresses else socket.gethostname().partition(".")[0]
    lines = [
        f"ClusterName={layout.name}",
        f"SlurmctldHost={controller}({layout.address_of('controller')})",
        f"SlurmctldPort={layout.controller_port}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={layout.munge_socket}",
        "CredType=cred/munge",
        f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/spool/%n",
        f"SlurmctldPidFile={directory}/slurmctld.pid",
        f"SlurmdPidFile={directory}/slurmd.%n.pid",
        f"SlurmctldLogFile={layout.log_directory}/slurmctld.log",
        f"SlurmdLogFile={layout.log_directory}/slurmd.%n.log",
        "LogTimeFormat=iso8601_ms",
        # Several slurmds share one machine: no cgroups of their own, no check of the real hardware.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "SlurmdParameters=config_overrides",
        "MailProg=/bin/true",
        # Production clusters have an epilog, with which each node reports its own end of a job. Without, slurmctld
        # hears of nodes whose tasks had ended before only after its message to a dead node of the job timed out.
        "Epilog=/bin/true",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        *([] if layout.gpus_per_node == 0 else ["GresTypes=gpu,mps,shard"]),
        *(["TopologyPlugin=topology/tree"] if layout.racks or layout.leaf_switches else []),
        *(["TopologyPlugin=topology/block"] if layout.blocks and not layout.has_topology_yaml else []),
        *layout.extra_lines,
        *(_node_line(layout, place) for place in range(len(layout.node_names))),
        "PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=EXCLUSIVE State=UP",
    ]
    return "\n".join(lines) + "\n"


def gres_conf(layout: Layout) -> str:
    if layout.gpus_per_node == 0:
        return ""
    files = f"{layout.device_directory}/nvidia[0-{layout.gpus_per_node - 1}]"
    return "".join(f"NodeName={name} Name=gpu File={files}\n" for name in layout.node_names)


def topology_conf(layout: Layout) -> str:
    names = iter(layout.node_names)
    racks = {rack: tuple(itertools.islice(names, count)) for rack, count in layout.racks.items()}
    leaves = racks | dict(layout.leaf_switches)
    lines = [f"SwitchName={switch} Nodes={','.join(nodes)}\n" for switch, nodes in leaves.items()]
    return "".join([*lines, f"SwitchName=spine Switches={','.join(leaves)}\n"])


def block_size(layout: Layout) -> int:
    """Slurm plans with blocks of this size: their smallest, and twice that."""
    return min(len(nodes) for nodes in layout.blocks.values())


def block_conf(layout: Layout) -> str:
    size = block_size(layout)
    lines = [f"BlockName={block} Nodes={','.join(nodes)}\n" for block, nodes in layout.blocks.items()]
    return "".join([*lines, f"BlockSizes={size},{2 * size}\n"])


def topology_yaml(layout: Layout) -> str:
    size = block_size(layout)
    blocks = [{"block": block, "nodes": ",".join(nodes)} for block, nodes in layout.blocks.items()]
    described = {"block_sizes": [size, 2 * size], "blocks": blocks}
    return json.dumps([{"topology": "nvlink", "cluster_default": True, "block": described}])  # JSON is YAML


def node_names(count: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(1, count + 1))


def _node_line(layout: Layout, place: int) -> str:
    gres = f" Gres=gpu:{layout.gpus_per_node}" if layout.gpus_per_node else ""
    name, port = layout.node_names[place], layout.node_ports[place]
    host = "" if layout.addresses else " NodeHostname=localhost"
    # Slurm that binds tasks needs CPUs that are there.
    binds = any("task/affinity" in line for line in layout.extra_lines)
    cpus = len(os.sched_getaffinity(0)) if binds else 16
    return f"NodeName={name}{host} NodeAddr={layout.address_of(name)} Port={port} CPUs={cpus} RealMemory=1024{gres}"


def write(layout: Layout) -> None:
    layout.slurm_conf.write_text(slurm_conf(layout), encoding="utf-8")
    if layout.racks or layout.leaf_switches:
        (layout.directory / "topology.conf").write_text(topology_conf(layout), encoding="utf-8")
    if layout.blocks and layout.has_topology_yaml:
        (layout.directory / "topology.yaml").write_text(topology_yaml(layout), encoding="utf-8")
    elif layout.blocks:
        (layout.directory / "topology.conf").write_text(block_conf(layout), encoding="utf-8")
    if layout.addresses:
        layout.hosts_file.write_text(hosts_file(layout.addresses, layout.node_names), encoding="utf-8")
    (layout.directory / "gres.conf").write_text(gres_conf(layout), encoding="utf-8")
