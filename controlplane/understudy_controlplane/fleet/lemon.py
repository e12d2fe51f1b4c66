"""What is remembered of a node over some weeks: the signals of a lemon."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LemonSignals:
    """Counts of the last days, as many as the policy says."""

    faults: float = 0.0  # incidents that accused the node
    agent_losses: float = 0.0  # its agent fell silent, or the node died
    xid_kinds: float = 0.0  # different Xids that are not the program's
    outages: float = 0.0  # taken out of service by people or other tools
    single_node_failures: float = 0.0  # jobs that failed on it alone
    multi_node_failures: float = 0.0  # its share of the failures of larger jobs: one over their nodes
    excluded_by: float = 0.0  # users whose jobs keep off it now
