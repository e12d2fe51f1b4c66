"""A seat finds its launcher, and both prove that they belong to this job (`tls.py`)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from understudy_launcher.first_check import Checked
from understudy_launcher.protocol import encode
from understudy_wire.errors import ProtocolError
from understudy_wire.tls import connect_pinned

CONNECT_SECONDS = 20.0
RETRY_SECONDS = 0.2
REJOIN_SECONDS = 10.0
"""Time for a launcher that is started again to answer its seats."""
ANSWER_SECONDS = 10.0
"""Time for the launcher to accept a connection: of thousands of seats it takes one after the other."""
CLOSED = "the launcher closed the connection"


def node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def launcher_addresses() -> list[str]:
    """The launcher's addresses: Slurm gives each step the address from which srun started it."""
    given = (os.environ.get("SLURM_LAUNCH_NODE_IPADDR"), os.environ.get("SLURM_SRUN_COMM_HOST"))
    return list(dict.fromkeys(address for address in given if address))


class Unreachable(OSError):
    """No address of the launcher can be reached."""

    refused: bool
    """Its host answers, and nothing listens there: launcher and guardian are gone."""


def connect(addresses: Sequence[str], port: int) -> socket.socket:
    """Raises Unreachable."""
    errors: list[OSError] = []
    for address in addresses:
        try:
            link = socket.create_connection((address, port), timeout=5)
        except OSError as error:
            errors.append(error)
        else:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return link
    where = " or ".join(addresses) or "any address: Slurm names none"
    failed = Unreachable(f"cannot reach the launcher at {where}, port {port}: {errors[-1] if errors else ''}")
    failed.refused = any(isinstance(error, ConnectionRefusedError) for error in errors)
    raise failed


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a seat needs to join its launcher."""

    fingerprint: str
    """SHA-256 of the launcher's certificate."""
    secret: str = field(repr=False)
    generation: int
    port: int
    """The seat's own, for the gang's rendezvous."""
    checked: Checked | None = None
    """Self-check of the node, before the first launch."""


def join(greeting: Greeting, launcher_port: int) -> socket.socket:
    """The connection to the launcher, which knows this seat now. The launcher may close a connection whose seat it does
    not know yet, to make room for others: tried again. Raises ProtocolError and OSError.
    """
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return greet(connect(launcher_addresses(), launcher_port), greeting)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)


def rejoin(greeting: Greeting, launcher_port: int, again: Mapping[str, object]) -> socket.socket:
    """The connection to a launcher that was started again, whose guardian has kept the port. `again`: what it may not
    know of this seat. Raises ProtocolError and OSError, at once where the guardian is gone too.
    """
    deadline = time.monotonic() + REJOIN_SECONDS
    while True:
        try:
            return greet(connect(launcher_addresses(), launcher_port), greeting, again)
        except OSError as error:
            if time.monotonic() > deadline or (isinstance(error, Unreachable) and error.refused):
                raise
            time.sleep(RETRY_SECONDS)


def greet(link: socket.socket, greeting: Greeting, again: Mapping[str, object] | None = None) -> socket.socket:
    """The same connection, encrypted, once the launcher has taken the seat. Else it is closed: raises ProtocolError and
    OSError.
    """
    try:
        link.settimeout(ANSWER_SECONDS)
        link = connect_pinned(link, greeting.fingerprint)
        hello = encode(
            "hello",
            secret=greeting.secret,
            node=node_name(),
            generation=greeting.generation,
            step=os.environ.get("SLURM_STEP_ID", ""),
            address=link.getsockname()[0],
            port=greeting.port,
            gpus=gpu_count(),
            again=again,
            checked=None if greeting.checked is None else [greeting.checked.failed, greeting.checked.impossible],
        )
        link.sendall(hello)
        while (answer := link.recv(1)) != b"\n":  # it sends a beat at once, and other messages may follow
            if not answer:
                raise ConnectionAbortedError(CLOSED)
    except (OSError, ProtocolError):
        link.close()
        raise
    return link


def gpu_count() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible:
        return len([one for one in visible.split(",") if one and one != "NoDevFiles"])
    count = os.environ.get("SLURM_GPUS_ON_NODE", "0")
    return int(count) if count.isdecimal() else 0
