"""An incident: what went wrong with a node, until it is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_controlplane.fleet.finding import Json


@dataclass(frozen=True, slots=True)
class OpenIncident:
    id: int
    node: str
    rule: str
    signal: str
    summary: str
    opened_at: float
    evidence: Mapping[str, Json] = field(default_factory=dict)
    asked: tuple[Json, ...] = ()  # what its later findings ask for as a repair, those alone that accuse the node
