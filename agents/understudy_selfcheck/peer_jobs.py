"""The jobs that this node's network test runs on its peers: each starts at once on an idle node, or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from understudy_selfcheck.network import JOIN_SECONDS, Host, NetworkError, Rates, SocketMesh, join, measure
from understudy_wire.addresses import split_port, with_port

JOB_NAME = "understudy-network"
MINUTES = 5
START_SECONDS = 30
STOP_SECONDS = 10.0
SECONDS_MIN = 0.01
TOKEN_VARIABLE = "UNDERSTUDY_NETWORK_TOKEN"  # noqa: S105 - its name
_OF_THIS_JOB = re.compile(r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC)_(?!CONF$|JWT$)\w+")
"""Variables by which srun would start a step of this job instead of another job."""


@dataclass(frozen=True, slots=True)
class NetworkOrder:
    node: str
    address: str  # at which the peers reach this node
    peers: tuple[str, ...]  # `n2`, or `n2@reservation` where a reservation keeps the node for this user
    partition: str = ""
    usual: float | None = None  # the fleet's median in GB/s
    transport: str = "auto"


def run_with_peers(order: NetworkOrder, seconds: float, environment: Mapping[str, str]) -> Rates:
    """Raises NetworkError and OSError."""
    token = os.urandom(16).hex()
    host = Host(order.node, token)
    clean = {name: value for name, value in environment.items() if not _OF_THIS_JOB.fullmatch(name)}
    jobs = [
        subprocess.Popen(
            command_for(order, peer, host.port, seconds),
            env={**clean, TOKEN_VARIABLE: token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for peer in order.peers
    ]
    try:
        mesh = host.gather(len(jobs), JOIN_SECONDS, order.transport)
        rates = measured(mesh, seconds)
    finally:
        for job in jobs:
            _end(job)
    if rates is None:
        raise NetworkError("nothing was measured")
    return rates


def command_for(order: NetworkOrder, peer: str, port: int, seconds: float) -> list[str]:
    """A job of its own on the whole peer. Where Slurm cannot start it at once, it is given up. It never fails: a node
    on which jobs fail looks faulty.
    """
    name, _, reservation = peer.partition("@")
    words = ["--join", with_port(order.address, port), "--seconds", str(max(seconds, SECONDS_MIN))]
    program = shlex.join([sys.executable, "-m", "understudy_selfcheck", *words])
    return [
        "srun",
        f"--job-name={JOB_NAME}",
        f"--nodelist={name}",
        *([f"--reservation={reservation}"] if reservation else []),
        *([f"--partition={order.partition}"] if order.partition else []),
        "--nodes=1",
        "--ntasks=1",
        "--exclusive",
        f"--immediate={START_SECONDS}",
        f"--time={MINUTES}",
        "--chdir=/",
        "sh",
        "-c",
        f"{program} || true",
    ]


def _end(job: subprocess.Popen[bytes]) -> None:
    """Waits for its end, else srun cancels its job."""
    try:
        job.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        job.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(STOP_SECONDS)


def take_part(address: str, seconds: float, environment: Mapping[str, str]) -> None:
    """This node is a peer. Raises NetworkError and OSError."""
    host, port = split_port(address)
    name = environment.get("SLURMD_NODENAME") or os.uname().nodename
    measured(join(name, (host, int(port)), environment.get(TOKEN_VARIABLE, "")), seconds)


def measured(joined: SocketMesh, seconds: float) -> Rates | None:
    joined.wait_for_turns(seconds)
    if joined.transport == "tcp":
        rates = measure(joined, seconds)
        joined.close()
        return rates
    from understudy_selfcheck.torch_mesh import TorchMesh

    mesh = TorchMesh(joined)
    rates = measure(mesh, seconds)
    mesh.close()
    joined.close()
    return rates
