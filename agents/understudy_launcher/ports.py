"""TCP ports that a site allows between its nodes."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Sequence

from understudy_wire.addresses import EVERY, bound

PORTS = range(20_000, 32_000)
"""All are below Linux' range for outgoing connections, which could take one meanwhile."""


def port_range(text_: str) -> range:
    """`A-B`, both included. Raises ValueError."""
    first, dash, last = text_.partition("-")
    found = range(int(first), int(last if dash else first) + 1)
    if not (found and found[0] >= 1 and found[-1] <= 65_535):
        raise ValueError(f"{text_}: no range of TCP ports")
    return found


def bind_a_port(ports: Sequence[int]) -> socket.socket:
    """A socket bound to a free one of these, on all addresses. Raises OSError."""
    for port in random.sample(ports, k=min(len(ports), 256)):
        with contextlib.suppress(OSError):
            return bound(EVERY, port, reuse=False)
    raise OSError(f"no free TCP port found from {ports[0]} to {ports[-1]}; see --port-range")
