"""A seat finds its launcher, and both prove that they know the launch's secret.

Belongs here: the connection up to the launcher's welcome. Must not: what follows on it (`seat.py`).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence

from understudy_agent.launch.protocol import (
    Lines,
    Message,
    ProtocolError,
    answer,
    challenge,
    encode,
    is_answer,
    text,
)

CONNECT_SECONDS = 20.0
RETRY_SECONDS = 0.2
CLOSED = "the launcher closed the connection"


def node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def launcher_addresses() -> list[str]:
    """The launcher's addresses: Slurm gives each step the address from which srun started it."""
    given = (os.environ.get("SLURM_LAUNCH_NODE_IPADDR"), os.environ.get("SLURM_SRUN_COMM_HOST"))
    return list(dict.fromkeys(address for address in given if address))


def connect(addresses: Sequence[str], port: int) -> socket.socket:
    """Raises OSError."""
    deadline = time.monotonic() + CONNECT_SECONDS
    last: OSError | None = None
    while True:
        for address in addresses:
            try:
                link = socket.create_connection((address, port), timeout=5)
            except OSError as error:
                last = error
            else:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return link
        if time.monotonic() > deadline:
            where = " or ".join(addresses) or "any address: Slurm names none"
            raise OSError(f"cannot reach the launcher at {where}, port {port}: {last}")
        time.sleep(RETRY_SECONDS)


def join(secret: str, generation: int, launcher_port: int, port: int) -> socket.socket:
    """The connection to the launcher, which knows this seat now. `port` is this seat's own. The launcher may close a
    connection whose seat it does not know yet, to make room for others: tried again. Raises ProtocolError and OSError.
    """
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        link = connect(launcher_addresses(), launcher_port)
        try:
            greet(link, secret, generation, port)
        except OSError:
            link.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
        except ProtocolError:
            link.close()
            raise
        else:
            return link


def greet(link: socket.socket, secret: str, generation: int, port: int) -> None:
    """Returns once the launcher has taken the seat. Raises ProtocolError and OSError."""
    seat_challenge = challenge()
    link.sendall(encode("seat", challenge=seat_challenge))
    welcome = _welcome(link)
    if not is_answer(welcome.get("answer"), secret, "launcher", seat_challenge):
        raise ProtocolError("the program at the launcher's address does not know this launch's secret")
    hello = encode(
        "hello",
        answer=answer(secret, "seat", text(welcome, "challenge")),
        node=node_name(),
        generation=generation,
        step=os.environ.get("SLURM_STEP_ID", ""),
        address=link.getsockname()[0],
        port=port,
        gpus=_gpu_count(),
    )
    link.sendall(hello)
    if not link.recv(1, socket.MSG_PEEK):  # it sends a beat at once
        raise ConnectionAbortedError(CLOSED)


def _welcome(link: socket.socket) -> Message:
    """The launcher sends nothing else before it has read the hello."""
    lines = Lines()
    waiting: list[Message] = []
    while not waiting:
        piece = link.recv(65536)
        if not piece:
            raise ConnectionAbortedError(CLOSED)
        waiting = lines.feed(piece)
    return waiting[0]


def _gpu_count() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible:
        return len([one for one in visible.split(",") if one and one != "NoDevFiles"])
    count = os.environ.get("SLURM_GPUS_ON_NODE", "0")
    return int(count) if count.isdecimal() else 0
