"""A node's return to service: what follows from the journal and from operators' requests, with the plans. Pure.

`due` says what is due for a node as findings, so that the table is entered with them like with any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from understudy_controlplane.config import Config
from understudy_controlplane.decide import guards, ladder
from understudy_controlplane.detect.site_signals import threat_to
from understudy_controlplane.fleet.counted import times
from understudy_controlplane.fleet.custody import kept_down
from understudy_controlplane.fleet.durations import DAY_SECONDS, HOUR_SECONDS, WEEK_SECONDS
from understudy_controlplane.fleet.evidence import Evidence, Json
from understudy_controlplane.fleet.finding import Finding, RepairDetail, RequestDetail, Signal
from understudy_controlplane.fleet.node import (
    IN_REPAIR,
    OUT_OF_SERVICE,
    NodeState,
    NodeView,
    ValidationOrigin,
)
from understudy_controlplane.fleet.operator import BY_CONTROL_PLANE, Request, Verb
from understudy_controlplane.fleet.recovery import (
    NODE_HOLD_PREFIX,
    RecoveryKind,
    RecoveryStatus,
    RepairAttempt,
    RestoreWeightPlan,
    Rung,
)
from understudy_controlplane.fleet.snapshot import Snapshot

HEARD_AGAIN_SECONDS = 120.0
"""How long the agent of a node that has passed its validation may take to report again."""

REQUEST_WAITS_SECONDS = HOUR_SECONDS
"""An operator's request that could not be answered within this is not answered behind their back later."""

TEST_WAITS_SECONDS = 7 * 24 * HOUR_SECONDS
"""A requested validation begins when the node is idle, and jobs take days."""

TESTED_AGAIN_SECONDS = HOUR_SECONDS
"""A suspect that has passed its validation, or could not be validated, is left alone for at least this time."""

AWAY_AGAIN_SECONDS = 24 * HOUR_SECONDS
AWAY = frozenset({NodeState.FOREIGN_DRAIN, NodeState.IN_SERVICE, NodeState.SUSPECT, NodeState.PROBATION})
"""States of nodes that Slurm itself has taken DOWN."""

ASKED = {
    Verb.HOLD: Signal.HOLD_ASKED,
    Verb.RETIRE: Signal.RETIRE_ASKED,
    Verb.QUARANTINE: Signal.FAULT_REPORTED,
    Verb.VALIDATE: Signal.TEST_ASKED,
    Verb.BURN_IN: Signal.TEST_ASKED,
}

UNSEEN_SECONDS = 300.0
"""How long the agent of a node that may be another machine since this process started may take to report."""

WEIGHT_AGAIN_SECONDS = 300.0

LAST = (Rung.REPLACE, Rung.MANUAL_REPAIR)
"""Rungs that others than the control plane carry out."""

NOT_BEGUN = {
    ValidationOrigin.IN_SERVICE: Signal.TEST_NOT_BEGUN,
    ValidationOrigin.SUSPECT_REQUESTED: Signal.PROBE_NOT_BEGUN,
    ValidationOrigin.SUSPECT_PROBED: Signal.PROBE_NOT_BEGUN,
    ValidationOrigin.SPARE_CHECK: Signal.TEST_NOT_BEGUN,
    ValidationOrigin.PROBATION: Signal.RETURN_TEST_NOT_BEGUN,
}
"""The signal of a validation that never began, by what the node was before."""


def concerned(snapshot: Snapshot) -> list[NodeView]:
    """Nodes for which anything can be due, in the order of the snapshot's."""
    names = {node.name for node in snapshot.set_apart}
    names |= snapshot.operator.requests.keys() | snapshot.history.weights_left.keys()
    names |= {one.removeprefix(NODE_HOLD_PREFIX) for one in snapshot.slurm.reservations}
    return [snapshot.nodes[name] for name in snapshot.nodes if name in names]


def due(snapshot: Snapshot, node: NodeView, tried: Sequence[RepairAttempt], config: Config) -> Iterator[Finding]:
    name = node.name
    if _left_over(snapshot, node):
        words = "a reservation that kept it for the control plane is left over"
        yield _finding(snapshot, node, Signal.HOLD_LEFT, "repair.hold_left", words)
    raised = _raised_weight(snapshot, node)
    if raised is not None:
        words = f"its weight in Slurm was raised to {raised} for its probation"
        yield _finding(snapshot, node, Signal.WEIGHT_LEFT, "repair.weight_left", words)
    request = snapshot.operator.requests.get(name)
    if request is not None:
        yield _left_to_administrator(snapshot, node, request) or asked(snapshot, node, request, config)
    threatened = threat_to(snapshot, name, config.signals) is not None
    if _is_another_machine(snapshot, node, config) and not threatened:
        words = "all of its GPUs are others since the provider was asked to replace it: it is another machine"
        yield _finding(snapshot, node, Signal.NODE_REPLACED, "repair.replaced", words)
    elif node.state is NodeState.QUARANTINED and config.repair.enabled and not threatened:
        yield from _next_rung(snapshot, node, tried, config)
    elif node.state in IN_REPAIR:
        yield from _outcome(snapshot, node, tried, config)
    elif node.state is NodeState.PROBATION:
        hours = config.validation.probation_hours
        judged = guards.object_while_unjudged(snapshot, name) is None
        if judged and node.record.since <= snapshot.ago(hours * HOUR_SECONDS):
            yield _finding(snapshot, node, Signal.PROBATION_OVER, "repair.probation", f"{hours:g} h are over")
    elif (
        node.state is NodeState.SUSPECT
        and config.probes_suspects(snapshot.mode_of([name]))
        and not _silent(snapshot, node, config)
        and not _tested_lately(snapshot, tried, config)
        and guards.object_to_test(snapshot, name, config) is None
    ):
        words = "it is suspect, and idle now"
        yield _finding(snapshot, node, Signal.PROBE_DUE, "validation.suspect", words)
    if is_back_from_outage(snapshot, node, tried, config) and not threatened:
        assert node.slurm is not None
        words = f"it works again, and Slurm keeps it DOWN ({node.slurm.reason})"
        yield _finding(snapshot, node, Signal.BACK_FROM_OUTAGE, "validation.outage", words, known_of(node))


def is_back_from_outage(snapshot: Snapshot, node: NodeView, tried: Sequence[RepairAttempt], config: Config) -> bool:
    """True if its validation may bring it back. One that was away twice within a day is left to a person."""
    changed_at = max(node.record.since, snapshot.history.drains_lifted.get(node.name, 0.0))
    shown = node.slurm is not None and kept_down(node.slurm) and (snapshot.slurm.read_at or 0.0) > changed_at
    if not shown or node.state not in AWAY:
        return False
    possible = config.repair.enabled and config.validation.enabled and not _silent(snapshot, node, config)
    free = not snapshot.holders_of(node.name) and node.name not in snapshot.under_maintenance
    claimed = any(node.name in one.plan.claimed for one in snapshot.recoveries)
    again = any(one.rung is Rung.RESTART_APP and one.at > snapshot.ago(AWAY_AGAIN_SECONDS) for one in tried)
    answers = node.heard_at is not None and node.slurmd_silent_since is None
    return possible and answers and free and not claimed and not again


def _silent(snapshot: Snapshot, node: NodeView, config: Config) -> bool:
    """It has an agent, and that is not heard. Neither a suspicion nor a test ends before it is."""
    silent = config.silence.silent_after_seconds
    heard = node.heard_at is not None and snapshot.now - node.heard_at <= silent
    return not heard and node.has_agent


def _tested_lately(snapshot: Snapshot, tried: Sequence[RepairAttempt], config: Config) -> bool:
    pause = max(config.validation.probation_hours * HOUR_SECONDS, TESTED_AGAIN_SECONDS)
    tests = (one.ended_at or one.at for one in tried if one.kind is RecoveryKind.VALIDATE)
    return max(tests, default=0.0) + pause > snapshot.now


def _left_over(snapshot: Snapshot, node: NodeView) -> bool:
    """True after a plan that failed half-way, if the database was lost, or if slurmctld forgot in a crash that it was
    deleted. One that is to be drained first, is. A gang to which the node is promised cannot start there meanwhile.
    """
    held = snapshot.slurm.reservations.get(f"{NODE_HOLD_PREFIX}{node.name}")
    if held is None or not held.made_for_one or node.state in IN_REPAIR:
        return False
    if any(node.name in one.plan.nodes for one in snapshot.recoveries):
        return False
    out = node.state in OUT_OF_SERVICE
    return not out or (node.slurm is not None and node.slurm.taken_out)


def _raised_weight(snapshot: Snapshot, node: NodeView) -> int | None:
    """Raised weight that is to be put back. If an administrator has changed it since, nothing is restored, which is
    recorded. A change back that Slurm has refused is tried again after a while.
    """
    if node.slurm is None or any(node.name in one.plan.claimed for one in snapshot.recoveries):
        return None
    failed = snapshot.history.weights_left.get(node.name)
    if node.record.weight is not None or failed is None:
        return node.record.weight
    assert isinstance(failed.plan, RestoreWeightPlan)
    due = snapshot.now - failed.decided_at >= WEIGHT_AGAIN_SECONDS and node.slurm.weight == failed.plan.weight
    return failed.plan.weight if due else None


def attempts_by_node(snapshot: Snapshot) -> dict[str, list[RepairAttempt]]:
    """Those of a week; of a node under repair also what brought it there, however long an administrator or a budget
    lets it wait: a test that it failed does not become one of which nothing is known. What was tried on another machine
    of that name does not count.
    """
    found: dict[str, list[RepairAttempt]] = {}
    for attempt in snapshot.history.attempts:
        if attempt.at < snapshot.history.machine_since(attempt.node):
            continue
        node = snapshot.nodes.get(attempt.node)
        awaited = node is not None and node.state in IN_REPAIR and attempt.at >= node.record.since
        if awaited or attempt.at > snapshot.ago(WEEK_SECONDS):
            found.setdefault(attempt.node, []).append(attempt)
    return found


def _finding(
    snapshot: Snapshot, node: NodeView, signal: Signal, rule: str, summary: str, evidence: dict[str, Json] | None = None
) -> Finding:
    return Finding(signal, rule, node.name, snapshot.now, summary, Evidence(evidence))


def _left_to_administrator(snapshot: Snapshot, node: NodeView, request: Request) -> Finding | None:
    """A reported fault of a node that is drained already. The administrator who resumes it answers for it."""
    if request.verb is not Verb.QUARANTINE or node.state is not NodeState.FOREIGN_DRAIN:
        return None
    words = f"the fault that {request.by} reports is left to the administrator who has drained the node"
    return _requested(snapshot, request, Signal.REQUEST_GIVEN_UP, words)


def dismisses(state: NodeState, verb: Verb) -> bool:
    """True if the request only ends what is known against a node that stays in service. It changes nothing in Slurm."""
    return verb is Verb.RELEASE and state in (NodeState.IN_SERVICE, NodeState.PROBATION, NodeState.SUSPECT)


def asked(snapshot: Snapshot, node: NodeView, request: Request, config: Config) -> Finding:
    tested = request.verb is Verb.RELEASE and config.validation.enabled
    tested = tested and (
        node.state in (NodeState.MANUAL_REPAIR, NodeState.RETIRED)
        or (node.state is NodeState.OPERATOR_HOLD and node.name in snapshot.under_maintenance)
    )
    until_idle = tested or request.verb in (Verb.VALIDATE, Verb.BURN_IN)
    waits = TEST_WAITS_SECONDS if until_idle else REQUEST_WAITS_SECONDS
    if snapshot.now - request.at > waits:
        words = f"{request.verb.value}, asked for by {request.by}, could not be done within {waits / HOUR_SECONDS:g} h"
        return _requested(snapshot, request, Signal.REQUEST_GIVEN_UP, words)
    if words := _overtaken(snapshot, request):
        return _requested(snapshot, request, Signal.REQUEST_GIVEN_UP, words)
    by_mode = guards.object_to_mode(snapshot, [node.name])
    if by_mode is not None and request.by != BY_CONTROL_PLANE and not dismisses(node.state, request.verb):
        words = f"{request.verb.value}, asked for by {request.by}, is not done: {by_mode.words}"
        return _requested(snapshot, request, Signal.REQUEST_GIVEN_UP, words)
    signal = ASKED.get(request.verb, Signal.VALIDATION_DUE if tested else Signal.RELEASE_ASKED)
    if request.verb is Verb.QUARANTINE:
        reported = _requested(snapshot, request, signal, f"{request.by} reports a fault: {request.reason}")
        return replace(reported, dead=node.is_mute(snapshot.now))
    words = f"{request.by} asks for it: {request.reason}"
    slurm = node.slurm
    if request.verb is Verb.RELEASE and slurm is not None and snapshot.custody(node.name).by_others:
        signal = Signal.RELEASED_TO_OTHERS
        words += (
            f"; in Slurm {slurm.reason_user or 'an unknown user'} has taken it: {slurm.reason or 'no reason given'}"
        )
    return _requested(snapshot, request, signal, words)


def _overtaken(snapshot: Snapshot, request: Request) -> str:
    """Why a request is not carried out any more; empty: it is."""
    if request.until is not None and request.until <= snapshot.now:
        return f"{request.verb.value}, asked for by {request.by}, was to end before it could begin"
    node = snapshot.nodes.get(request.subject)
    of_maintenance = any(
        request.subject in one.nodes and request.reason == one.words for one in snapshot.operator.maintenances
    )
    if request.verb is Verb.HOLD and of_maintenance and node is not None and node.record.at_fault:
        return f"it is {node.state.value} now: the maintenance leaves it so"
    incident = snapshot.incident_of(request.subject)
    if request.verb is Verb.RELEASE and incident is not None and incident.opened_at > request.at:
        return f"release, asked for by {request.by}, does not answer for what was found since: {incident.summary}"
    return ""


def _requested(snapshot: Snapshot, request: Request, signal: Signal, words: str) -> Finding:
    return Finding(
        signal,
        f"operator.{request.verb.value}",
        request.subject,
        snapshot.now,
        words,
        Evidence({"request": request.id}),
        detail=RequestDetail(request=request.id, verb=request.verb, asked_at=request.at),
    )


def _next_rung(snapshot: Snapshot, node: NodeView, tried: Sequence[RepairAttempt], config: Config) -> Iterator[Finding]:
    """Next rung for a node that the control plane has drained and that is empty; jobs that still run there are left to
    end.
    """
    record, slurm = node.record, node.slurm
    if slurm is None or not _is_out_and_empty(snapshot, node):
        return
    if node.name in snapshot.history.unseen and snapshot.now - snapshot.started_at < UNSEEN_SECONDS:
        return  # what was tried may have been tried on another machine
    if waits_for_slurm(snapshot, node):
        return
    incident = snapshot.incident_of(node.name)
    fault = incident.summary if incident else "not known"
    evidence: dict[str, Json] = {"fault": fault, **known_of(node)}
    known_since = max(
        snapshot.history.machine_since(node.name), record.vouched_at
    )  # a person answers for what was before
    often = sum(at >= known_since for at in snapshot.history.quarantined_at.get(node.name, ()))
    replaces = _may_be_replaced(snapshot, tried, config)
    last = Rung.REPLACE if replaces else Rung.MANUAL_REPAIR
    if often >= config.repair.quarantines_max:
        words = f"quarantined {times(often)} within a week"
        found = _finding(snapshot, node, Signal.MANUAL_REPAIR_DUE, "repair.flapping", words, evidence)
        inferred = ladder.died(incident)  # the route to a node that is well may flap as well: a person looks first
        yield replace(found, detail=RepairDetail(rung=Rung.MANUAL_REPAIR if inferred else last, fault=fault))
        return
    if tried and tried[-1].status is RecoveryStatus.CANCELLED:
        words = f"its {tried[-1].rung or tried[-1].kind} was {tried[-1].outcome}"
        yield _finding(snapshot, node, Signal.MANUAL_REPAIR_DUE, "repair.cancelled", words, evidence)
        return
    rung = ladder.next_rung(incident, tried, config.repair, mig=node.in_mig_mode, replaces=replaces)
    if ladder.died(incident) and rung not in LAST:
        answers = slurm.responding and node.slurmd_silent_since is None and (node.heard_at or 0.0) > record.since
        waited = snapshot.now - record.since
        if answers:
            rung = Rung.RESTART_APP if not tried else rung  # it has come back by itself
        elif waited < config.repair.dead_node_wait_seconds or _in_maintenance(snapshot, node):
            return
        else:
            rung = last
    if rung is Rung.RESTART_APP and not config.validation.enabled:
        rung = Rung.MANUAL_REPAIR  # nothing to do, and no validation that would show that it is well
    signals = dict.fromkeys(LAST, Signal.MANUAL_REPAIR_DUE) | {Rung.RESTART_APP: Signal.VALIDATION_DUE}
    signal = signals.get(rung, Signal.REPAIR_DUE)
    evidence |= {"rung": rung.value, "attempts": [f"{one.rung or one.kind}: {one.status}" for one in tried]}
    found = _finding(snapshot, node, signal, f"repair.{rung.value}", f"the next rung is {rung.value}", evidence)
    yield replace(found, detail=RepairDetail(rung=rung, fault=fault))


def waits_for_slurm(snapshot: Snapshot, node: NodeView) -> bool:
    """Its death is inferred from silence, and Slurm reaches it: the control plane's own route to it may be away. It is
    not repaired, no person is sent to it, and the provider is not asked for another one until Slurm agrees. slurmctld
    asks a node that was set DOWN as well, until it does not answer, and none where SlurmdTimeout is 0 (ping_nodes.c).
    """
    reached = node.slurm is not None and node.slurm.responding and snapshot.slurm.slurmd_timeout_seconds > 0
    heard = (node.heard_at or 0.0) > node.record.since
    return reached and not heard and ladder.died(snapshot.incident_of(node.name))


def _is_out_and_empty(snapshot: Snapshot, node: NodeView) -> bool:
    """The control plane has drained it, and no job and no recovery is on it."""
    slurm = node.slurm
    drained = node.record.drained_at is not None and snapshot.custody(node.name).in_effect
    if slurm is None or not drained or slurm.base_state not in ("IDLE", "DOWN") or "COMPLETING" in slurm.flags:
        return False
    claimed = any(node.name in one.plan.claimed for one in snapshot.recoveries)
    return not snapshot.holders_of(node.name) and not claimed


def _is_another_machine(snapshot: Snapshot, node: NodeView, config: Config) -> bool:
    """The provider was asked for it in this manual repair, and it came after that, as this process has seen. Where a
    person repairs the node, other GPUs end nothing.
    """
    replacement = snapshot.history.replacements.get(node.name)
    new = replacement is not None and node.record.since <= replacement.asked_at < replacement.at
    waits = node.state is NodeState.MANUAL_REPAIR and config.validation.enabled
    waits = waits and node.name not in snapshot.history.unseen
    answers = node.slurmd_silent_since is None and not _silent(snapshot, node, config)
    return waits and new and answers and _is_out_and_empty(snapshot, node)


def replacements_of_day(snapshot: Snapshot) -> int:
    return sum(one.rung is Rung.REPLACE and one.at > snapshot.ago(DAY_SECONDS) for one in snapshot.history.attempts)


def _may_be_replaced(snapshot: Snapshot, tried: Sequence[RepairAttempt], config: Config) -> bool:
    """Once, and few nodes a day: many faults at once have another cause than the nodes."""
    room = replacements_of_day(snapshot) < config.provider.replacements_per_day_max
    return room and not any(one.rung is Rung.REPLACE for one in tried)


def _in_maintenance(snapshot: Snapshot, node: NodeView) -> bool:
    in_slurm = node.slurm is not None and node.slurm.in_maintenance
    return in_slurm or node.name in snapshot.worked_on


def known_of(node: NodeView) -> dict[str, Json]:
    """What is gone after a reset or reboot: kept with the decision, before it is carried out."""
    gpus: list[Json] = [msgspec.to_builtins(gpu) for gpu in node.gpus]
    return {"boot": node.boot_id, "gpus": gpus, "kernel_log": [one.event.text for one in node.events]}


def _outcome(snapshot: Snapshot, node: NodeView, tried: Sequence[RepairAttempt], config: Config) -> Iterator[Finding]:
    """What became of the attempt that brought the node into this state."""
    testing = node.state is NodeState.VALIDATING
    kind = RecoveryKind.VALIDATE if testing else RecoveryKind.REPAIR
    attempt = next((one for one in reversed(tried) if one.kind is kind), None)
    failed = Signal.VALIDATION_FAILED if testing else Signal.REPAIR_FAILED
    what = "test" if testing else f"repair ({attempt.rung})" if attempt else "repair"
    not_begun = NOT_BEGUN.get(node.record.validation_origin) if node.record.validation_origin else None
    if not_begun is not None and _never_began(attempt):
        why = attempt.outcome if attempt is not None and attempt.outcome else "nothing is known of it"
        yield _finding(snapshot, node, not_begun, "validation.not_begun", f"its test has not begun: {why}")
    elif attempt is None or attempt.status is RecoveryStatus.SUPERSEDED:
        yield _finding(snapshot, node, failed, f"repair.{kind.value}", f"nothing is known of its {what}")
    elif attempt.status in (RecoveryStatus.FAILED, RecoveryStatus.CANCELLED):
        yield _finding(snapshot, node, failed, f"repair.{kind.value}", f"its {what} failed: {attempt.outcome}")
    elif attempt.status in (RecoveryStatus.SUCCEEDED, RecoveryStatus.OVERTAKEN):  # overtaken: it booted by itself
        yield from _succeeded(snapshot, node, attempt, config)


def _never_began(attempt: RepairAttempt | None) -> bool:
    """No job of the control plane ran on the node. When Slurm refuses it, or an administrator takes the node, the node
    is not at fault.
    """
    if attempt is None or attempt.status in (RecoveryStatus.SUPERSEDED, RecoveryStatus.CANCELLED):
        return True
    return attempt.status is RecoveryStatus.FAILED and attempt.never_began


def _succeeded(snapshot: Snapshot, node: NodeView, attempt: RepairAttempt, config: Config) -> Iterator[Finding]:
    if attempt.kind is RecoveryKind.REPAIR:
        if config.validation.enabled:
            yield _finding(snapshot, node, Signal.REPAIRED, f"repair.{attempt.rung}", f"{attempt.rung} is done")
        else:
            words = f"{attempt.rung} is done, and no test is configured: a person has to look"
            yield _finding(snapshot, node, Signal.MANUAL_REPAIR_DUE, "repair.untested", words, known_of(node))
        return
    ended = attempt.ended_at or snapshot.now
    if not _silent(snapshot, node, config):
        of_a_spare = node.record.validation_origin is ValidationOrigin.SPARE_CHECK
        passed = Signal.SPARE_VALIDATED if of_a_spare else Signal.VALIDATED
        yield _finding(snapshot, node, passed, "repair.validate", "it passed its test")
    elif snapshot.now - max(ended, snapshot.started_at) > HEARD_AGAIN_SECONDS:
        words = "it passed its test, but its agent is not heard"
        yield _finding(snapshot, node, Signal.VALIDATION_FAILED, "repair.validate", words)
