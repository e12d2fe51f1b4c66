"""What each state of a node guarantees, in words: documents and dashboard show these."""

from __future__ import annotations

from typing import NamedTuple

from understudy_controlplane.fleet.node import NodeState


class StateWords(NamedTuple):
    guarantee: str
    users: str  # who may use the node meanwhile


STATES = {
    NodeState.IN_SERVICE: StateWords("nothing is known against it", "all jobs"),
    NodeState.SUSPECT: StateWords("something looks wrong; it stays in service", "all jobs"),
    NodeState.UNKNOWN: StateWords("its agent is silent; nothing else is known", "all jobs"),
    NodeState.QUARANTINED: StateWords("out of service by a decision of the control plane, drained", "no job"),
    NodeState.REPAIRING: StateWords(
        "a rung of the repair ladder is being tried; drained, or reserved", "the control plane"
    ),
    NodeState.VALIDATING: StateWords("it is being validated, reserved", "the control plane"),
    NodeState.PROBATION: StateWords(
        "it passed its validation; it is taken last as a spare and, where configured, by jobs", "all jobs"
    ),
    NodeState.MANUAL_REPAIR: StateWords("a person has a ticket for it; drained", "no job"),
    NodeState.OPERATOR_HOLD: StateWords("out of service by an operator's request, drained", "no job"),
    NodeState.RETIRED: StateWords("out of service for good, drained", "no job"),
    NodeState.FOREIGN_DRAIN: StateWords(
        "an administrator, or another program, took it out of service in Slurm; Understudy changes nothing", "no job"
    ),
}
