"""An incident: what went wrong with a node, until it is over."""

from __future__ import annotations

from dataclasses import dataclass

from understudy_controlplane.fleet.finding import Detail
from understudy_controlplane.xid_policy import Repair


@dataclass(frozen=True, slots=True)
class OpenIncident:
    id: int
    node: str
    rule: str
    signal: str
    summary: str
    opened_at: float
    detail: Detail | None = None  # of the finding that opened it
    asked: tuple[Repair, ...] = ()  # repairs that later findings ask for, those alone that accuse the node
