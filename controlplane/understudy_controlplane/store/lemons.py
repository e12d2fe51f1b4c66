"""The signals of lemons, counted in the database."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from sqlalchemy import Engine, Float, bindparam, func, select

from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.lemon import LemonSignals
from understudy_controlplane.fleet.node import IN_REPAIR, NodeState
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import reading

FAULT_SIGNALS = (Signal.HARDWARE_FAULT, Signal.STRAGGLER_CONFIRMED)
PROGRAM_XIDS = (13, 31, 43, 45)
"""The program's own faults, and what follows from any."""

COUNTED_STATES = (NodeState.UNKNOWN.value, NodeState.FOREIGN_DRAIN.value)
"""The agent fell silent; an administrator took the node out of service, and not out of a repair or validation."""

FAILED = ("FAILED", "NODE_FAIL")


_INCIDENT, _EVENT, _DECISION = tables.incident, tables.kernel_event, tables.decision
_SINCE = bindparam("since", type_=Float())
_BY_NODE = _EVENT.c.node.concat("")  # for the column itself SQLite reads all events, of any time, in its order
_INCIDENTS = (
    select(_INCIDENT.c.subject, _INCIDENT.c.signal, func.count())
    .where(_INCIDENT.c.opened_at >= _SINCE, _INCIDENT.c.subject_kind == SubjectKind.NODE.value)
    .group_by(_INCIDENT.c.subject, _INCIDENT.c.signal)
)
_XID_KINDS = (
    select(_BY_NODE, func.count(_EVENT.c.xid.distinct()))
    .where(_EVENT.c.received_at >= _SINCE, _EVENT.c.xid.is_not(None), _EVENT.c.xid.not_in(PROGRAM_XIDS))
    .group_by(_BY_NODE)
)
_TRANSITIONS = (
    select(_DECISION.c.subject, _DECISION.c.to_state, func.count())
    .where(_DECISION.c.at >= _SINCE, _DECISION.c.to_state.in_(COUNTED_STATES))
    .where(_DECISION.c.from_state.not_in([state.value for state in IN_REPAIR]))
    .group_by(_DECISION.c.subject, _DECISION.c.to_state)
)
_FAILED_ATTEMPTS = (
    select(tables.attempt.c.nodes)
    .join(tables.job, tables.job.c.id == tables.attempt.c.job)
    .where(
        tables.job.c.state.in_(FAILED),
        tables.job.c.seen_at >= _SINCE,
        tables.attempt.c.restart_count == tables.job.c.restart_count,
        tables.attempt.c.launch == 0,
    )
)


class LemonStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def signals(self, since: float, excluded_by: Counter[str]) -> dict[str, LemonSignals]:
        """Node → what is remembered of it since then, nodes without anything left out. `excluded_by` is taken over."""
        values = {"since": since}
        with reading(self._engine) as connection:
            incidents = connection.execute(_INCIDENTS, values).all()
            xids = connection.execute(_XID_KINDS, values).all()
            transitions = connection.execute(_TRANSITIONS, values).all()
            single, multi = _failures(connection.execute(_FAILED_ATTEMPTS, values).scalars())
        counts: defaultdict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for node, signal, count in incidents:
            if signal in FAULT_SIGNALS:
                counts[node]["faults"] += count
            elif signal == Signal.NODE_DEAD:
                counts[node]["agent_losses"] += count
        for node, state, count in transitions:
            counts[node]["agent_losses" if state == NodeState.UNKNOWN else "outages"] += count
        for name, found in (
            ("xid_kinds", dict(xids)),
            ("single_node_failures", single),
            ("multi_node_failures", multi),
            ("excluded_by", excluded_by),
        ):
            for node, value in found.items():
                counts[node][name] += value
        return {node: LemonSignals(**values) for node, values in counts.items()}


def _failures(attempts: Iterable[list[str]]) -> tuple[Counter[str], defaultdict[str, float]]:
    """Failures of jobs on one node, and shares of those on several."""
    single: Counter[str] = Counter()
    multi: defaultdict[str, float] = defaultdict(float)
    for nodes in attempts:
        if len(nodes) == 1:
            single[nodes[0]] += 1
        for node in nodes if len(nodes) > 1 else ():
            multi[node] += 1 / len(nodes)
    return single, multi
