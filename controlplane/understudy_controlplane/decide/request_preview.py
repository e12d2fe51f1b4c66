"""What will come of an operator's request, before the loop takes it up, by the same rows and guards. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide import guards, repair_actions, repair_cycle
from understudy_controlplane.decide.decision_context import Entered, Round
from understudy_controlplane.decide.gang_moves import gang_moves
from understudy_controlplane.decide.table import look_up, row_of
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeRecord, NodeState, NodeView
from understudy_controlplane.fleet.operator import Outcome, Prospect, Request, Verb
from understudy_controlplane.fleet.snapshot import Snapshot

GIVEN_UP_ROW = row_of(Signal.REQUEST_GIVEN_UP).number
GIVEN_UP_ROWS = (GIVEN_UP_ROW, row_of(Signal.MOVE_GIVEN_UP).number)


def fits(record: NodeRecord, verb: Verb) -> bool:
    """True if the request changes anything about a node in this state."""
    return look_up(record, repair_cycle.ASKED.get(verb, Signal.RELEASE_ASKED)) is not None


def of_node(snapshot: Snapshot, request: Request, config: Config) -> Prospect | None:
    """None: it would change nothing, because the node's state has no row for it."""
    node = snapshot.nodes[request.subject]
    acting = replace(snapshot, mode=Mode.ACT, part_modes={})
    finding = repair_cycle.asked(acting, node, request, config)
    row = look_up(node.record, finding.signal)
    if row is None:
        return None
    if repair_cycle.dismisses(node.state, request.verb):
        return _of_dismissal(snapshot, node)
    if by_mode := guards.object_to_mode(snapshot, [node.name]):
        return Prospect(Outcome.OBSERVE_ONLY, f"{by_mode.words}: the request is recorded, and nothing is done")
    if row.action is Action.QUARANTINE:
        return _of_quarantine(snapshot, finding, config)
    requests = {**snapshot.operator.requests, request.subject: request}
    with_it = replace(snapshot, operator=replace(snapshot.operator, requests=requests))
    objection = repair_actions.object_to(with_it, Entered(row, finding), config, ())
    if objection is not None:
        return Prospect(Outcome.HELD_BY_GUARD, objection.words)
    becomes = f"{node.name} becomes {row.to.value}" if row.to is not None else f"{row.action.value}: {row.why}"
    return Prospect(Outcome.WILL_ACT, becomes)


def against_release(node: NodeView, faults: Sequence[Finding], now: float, config: Config) -> str:
    """What a person should know before the node returns to service; empty: nothing. `faults`: of the newest round."""
    shown = [one.summary for one in faults if not _is_event(one)]
    logged = [one.summary for one in faults if _is_event(one)]
    words = [f"the fault is still there: {', '.join(shown)}"] if shown else []
    if logged:
        words.append(f"{node.name} has not booted since it logged: {', '.join(logged)}")
    if node.has_agent and (node.heard_at is None or now - node.heard_at > config.silence.silent_after_seconds):
        words.append("its agent does not report, so what is wrong there now is not known")
    return "; ".join(words)


def _is_event(fault: Finding) -> bool:
    return isinstance(fault.detail, HardwareDetail) and fault.detail.is_event


def _of_dismissal(snapshot: Snapshot, node: NodeView) -> Prospect | None:
    """None: nothing is known against the node."""
    incident = snapshot.incident_of(node.name)
    if incident is None and node.state is not NodeState.SUSPECT:
        return None
    what = "the suspicion" if incident is None else f"incident {incident.id} ({incident.summary})"
    return Prospect(
        Outcome.WILL_ACT,
        f"{what} is dismissed, and {node.name} stays in service; what is received from now on, or still read, counts",
    )


def _of_quarantine(snapshot: Snapshot, finding: Finding, config: Config) -> Prospect:
    """Preview of a quarantine, with what becomes of the gang on the node."""
    objection = guards.object_to_quarantine(snapshot, config, finding, ())
    if objection is not None:
        return Prospect(Outcome.HELD_BY_GUARD, objection.words)
    current = Round(snapshot, config).with_condemned(frozenset({finding.node})).with_idle()
    moves = (f"; {move.words}" for move in gang_moves(current, [finding]).values())
    return Prospect(Outcome.WILL_ACT, f"{finding.node} becomes {NodeState.QUARANTINED.value}{''.join(moves)}")


def of_cancel(snapshot: Snapshot) -> Prospect:
    if snapshot.mode is Mode.OBSERVE:
        why = 'no recovery goes on while the control plane only observes (mode = "observe"): it is cancelled after that'
        return Prospect(Outcome.OBSERVE_ONLY, why)
    if snapshot.slurm.error:
        return Prospect(Outcome.HELD_BY_GUARD, f"Slurm cannot be read: {snapshot.slurm.error}")
    return Prospect(Outcome.WILL_ACT, "what it began is undone; its outcome names what stays")
