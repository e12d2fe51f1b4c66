"""Asking a node's slurmd for a sign of life, past slurmctld.

Belongs here: one plain connection. slurmctld itself pings its nodes every SlurmdTimeout/3 seconds only. slurmd
logs a line for a connection that says nothing, so this is for nodes that are silent already.
"""

from __future__ import annotations

import socket


def slurmd_answers(address: str, port: int, timeout_seconds: float) -> bool:
    """Whether something accepts a TCP connection there. Refused, unreachable, unknown and too slow are all "no"."""
    try:
        with socket.create_connection((address, port), timeout=timeout_seconds):
            return True
    except OSError:
        return False
