"""A GPU has a life of its own: it may be taken out of one node and put into another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MovedGpu:
    """A GPU that was last seen in another node."""

    uuid: str
    serial: str
    bus_id: str
    node: str
    from_node: str
    faults: int  # incidents of it, wherever it sat
