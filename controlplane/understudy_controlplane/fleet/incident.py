"""An incident: a fault of a node, a gang or a domain, until it is over."""

from __future__ import annotations

from dataclasses import dataclass

from understudy_controlplane.fleet.finding import Detail, Signal
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.xid_policy import Repair

DOMAIN_SILENT = "silence.domain"
"""A domain fell silent as a whole."""

BLOCK_FABRIC = "fabric.block"
"""Nodes of an NVLink block lost its fabric together."""

PORT_DOWN = "infiniband.port_down"
"""Rule of a domain: ports of its nodes went down together. The cause is their switch, or what manages it."""

FABRIC_SIGNS = frozenset({"nvlink.down", "fabric.unhealthy", "fabric.not_registered"})
NVLINK_XIDS = frozenset(f"xid.{code}" for code in range(144, 151))
"""Rules of findings about a node's NVLinks, and of their fatal errors as the driver reports them."""

OF_THE_NODE = frozenset(
    {Signal.HARDWARE_FAULT, Signal.STRAGGLER_CONFIRMED, Signal.DRAIN_AT_JOB_END, Signal.WORN, Signal.FAULT_REPORTED}
)


def is_of_the_node(signal: str, rule: str, domain_rule: str) -> bool:
    """A fault of a node that the failure of its domain does not explain. A fabric that is lost kills no node."""
    of_fabric = rule in FABRIC_SIGNS | NVLINK_XIDS
    return not of_fabric and (signal in OF_THE_NODE or domain_rule == BLOCK_FABRIC)


FAILED_AS_ONE = frozenset({DOMAIN_SILENT, BLOCK_FABRIC})
"""Rules of incidents of domains whose nodes count as one failure."""


@dataclass(frozen=True, slots=True)
class OpenIncident:
    id: int
    subject: Subject
    rule: str
    signal: str
    summary: str
    opened_at: float
    detail: Detail | None = None  # of the finding that opened it
    asked: tuple[Repair, ...] = ()  # repairs that later findings ask for, those alone that accuse the node
    accused_by: tuple[str, ...] = ()  # rules of the findings that accuse the node, the first one's included
    nodes: tuple[str, ...] = ()  # concerned, when it was opened
    fault_at: float | None = None  # when what opened it began; None: not known

    @property
    def rules(self) -> tuple[str, ...]:
        """Rules that accuse its subject."""
        return tuple(dict.fromkeys((self.rule, *self.accused_by)))
