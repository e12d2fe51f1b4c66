"""Requests about the whole, nodes, recoveries, decisions, tickets: what is refused, and what comes of the others."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fastapi import Response

from understudy_controlplane.api.operator_requests import Asked, Checked, not_ready, will
from understudy_controlplane.config import Mode
from understudy_controlplane.decide import request_preview
from understudy_controlplane.decide.mode_preview import done_at_once
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import FLEET, Request, Verb, cancel_subject, decision_subject
from understudy_controlplane.fleet.recovery import Recovery, RecoveryStatus
from understudy_controlplane.fleet.site_signal import signal_subject
from understudy_controlplane.ingest.answers import ErrorCode, refuse
from understudy_controlplane.store import recoveries, requests, site_signals, tickets

WHY = {
    Verb.PAUSE: "nothing begins; recoveries stop before their next effect, except between two attempts of a gang",
    Verb.PAUSE_NOW: "nothing begins; recoveries stop before their next effect, also between two attempts of a gang",
    Verb.RESUME: "recoveries go on",
    Verb.RESET_BREAKER: "the circuit breaker is closed: neither it nor the budgets of rules count earlier quarantines",
    Verb.MODE_OBSERVE: "nothing is changed: recoveries under way stop before their next effect, also between two "
    "attempts of a gang; `understudy pause` lets such a gang start again",
    Verb.MODE_APPROVE: "recoveries under way go on; each new one waits for approval",
    Verb.MODE_CONFIGURED: "the mode is the configured one",
    Verb.APPROVE: "it is planned from the newest facts and begins within seconds, while its fault stands",
    Verb.CANCEL: "it is not proposed again before the time until which it could have been approved",
    Verb.ACKNOWLEDGE_TICKET: "GET /v1/tickets shows who deals with it",
    Verb.CLOSE_TICKET: "it is closed; its node stays in manual repair until it is released",
}
"""What comes of the requests that take effect at once, in every mode."""

SHOWN_MAX = 50

BELOW = {Mode.OBSERVE: Verb.MODE_OBSERVE, Mode.APPROVE: Verb.MODE_APPROVE}


def pause(asked: Asked) -> Checked:
    verb = Verb.PAUSE_NOW if asked.body.now else Verb.PAUSE
    return _switched(asked, verb, asked.words)


def resume(asked: Asked) -> Checked:
    return _switched(asked, Verb.RESUME, "")


def _switched(asked: Asked, verb: Verb, paused: str) -> Checked:
    before: dict[str, Json] = {"paused": asked.in_force().pause.reason}
    return replace(will(FLEET, WHY[verb]), verb=verb, before=before, after={"paused": paused})


def reset_breaker(asked: Asked) -> Checked:
    before: dict[str, Json] = {"breaker": asked.in_force().breaker.reason}
    return replace(will(FLEET, WHY[asked.verb]), before=before, after={"breaker": ""})


def set_mode(asked: Asked) -> Checked | Response:
    wanted, configured = asked.body.mode, asked.deps.current.config.highest_mode
    preview = _at_once(asked, wanted) if asked.body.dry_run and wanted is not Mode.OBSERVE else ""
    if wanted.at_most(configured) is not wanted:
        detail = f"mode {wanted.value} is above the configured mode {configured.value}{preview}"
        hint = f'set mode = "{wanted.value}" in the configuration file, and reload the control plane'
        return refuse(409, detail, hint)
    verb = Verb.MODE_CONFIGURED if wanted is configured else BELOW[wanted]
    if verb is Verb.MODE_CONFIGURED and asked.until is not None:
        return refuse(422, f"the configured mode is {configured.value}: it has no end", "leave for_seconds out")
    before: dict[str, Json] = {"mode": configured.at_most(asked.in_force().mode_limit.mode).value}
    return replace(will(FLEET, f"{WHY[verb]}{preview}"), verb=verb, before=before, after={"mode": wanted.value})


def _at_once(asked: Asked, wanted: Mode) -> str:
    snapshot = asked.deps.pulse.snapshot
    if snapshot is None:
        return ""
    found = done_at_once(snapshot, wanted, asked.deps.current.config)
    more = [f"and {len(found) - SHOWN_MAX} more"] if len(found) > SHOWN_MAX else []
    return "\nIn it, at once:" + "".join(f"\n  {one}" for one in [*found[:SHOWN_MAX], *more] or ["nothing"])


def of_node(asked: Asked) -> Checked | Response:
    deps, node, verb = asked.deps, asked.subject, asked.verb
    record = deps.stores.fleet.nodes_named([node]).get(node)
    snapshot = deps.pulse.snapshot
    if snapshot is None:
        return not_ready()
    if record is None or node not in snapshot.nodes:
        return refuse(404, f"node {node} is not known", "GET /v1/nodes lists the nodes")
    current = replace(snapshot, nodes={**snapshot.nodes, node: replace(snapshot.nodes[node], record=record)})
    request = Request(0, node, verb, asked.body.reason, asked.identity.label, asked.now)
    prospect = request_preview.of_node(current, request, deps.current.config)
    if prospect is None:
        hint = "`understudy help repair-cycle` shows which request fits which state"
        if record.state is NodeState.FOREIGN_DRAIN:
            hint = "an administrator drained it in Slurm; resume it there: scontrol update State=RESUME"
        detail = f"{node} is {record.state.value}: {verb.value} would change nothing"
        return refuse(409, detail, hint, ErrorCode.NODE_STATE)
    if asked.until is not None and record.at_fault:
        detail = f"{node} is {record.state.value}: the end of the hold would return it to service with its fault"
        hint = "hold it without an end, and release it when the fault is repaired"
        return refuse(409, detail, hint, ErrorCode.NODE_STATE)
    if verb is Verb.RELEASE:
        faults, config = deps.pulse.faults.get(node, ()), deps.current.config
        against = request_preview.against_release(current.nodes[node], faults, asked.now, config)
        prospect = replace(prospect, warning=against)
    return Checked(node, prospect, {"state": record.state.value})


def end_drill(asked: Asked) -> Checked | Response:
    if asked.subject not in asked.in_force().drills:
        return refuse(409, f"there is no drill on {asked.subject}", "GET /v1/status names the drills that go on")
    return will(asked.subject, "the node returns, if nothing but the drill speaks against it", requests.end_drill)


def cancel(asked: Asked) -> Checked | Response:
    recovery = asked.deps.stores.recoveries.find(asked.subject)
    if recovery is None:
        return _no_recovery(asked)
    if recovery.status is RecoveryStatus.AWAITS_APPROVAL:
        return replace(_answered(asked, recovery), effect=partial(recoveries.reject, recovery.id))
    if recovery.status is not RecoveryStatus.RUNNING or recovery.ends_as is not None:
        status = recovery.ends_as or recovery.status
        detail = f"recovery {recovery.id} is {status.value}: there is nothing to cancel"
        return refuse(409, detail, f"see GET /v1/recoveries/{recovery.id}", ErrorCode.RECOVERY_STATUS)
    snapshot = asked.deps.pulse.snapshot
    if snapshot is None:
        return not_ready()
    return replace(_answered(asked, recovery), prospect=request_preview.of_cancel(snapshot))


def approve(asked: Asked) -> Checked | Response:
    recovery = asked.deps.stores.recoveries.find(asked.subject)
    if recovery is None:
        return _no_recovery(asked)
    if recovery.status is not RecoveryStatus.AWAITS_APPROVAL:
        detail = f"recovery {recovery.id} is {recovery.status.value}: it does not wait for approval"
        return refuse(409, detail, f"see GET /v1/recoveries/{recovery.id}", ErrorCode.RECOVERY_STATUS)
    return replace(_answered(asked, recovery), effect=partial(recoveries.approve, recovery.id))


def _answered(asked: Asked, recovery: Recovery) -> Checked:
    return replace(will(cancel_subject(recovery.id), WHY[asked.verb]), before={"status": recovery.status.value})


def _no_recovery(asked: Asked) -> Response:
    return refuse(404, f"there is no recovery {asked.subject}", "GET /v1/recoveries lists the recoveries")


def judge(asked: Asked) -> Checked | Response:
    if not asked.deps.stores.journal.is_decision(asked.subject):
        return refuse(404, f"there is no decision {asked.subject}", "GET /v1/decisions lists the decisions")
    return will(decision_subject(asked.subject), "GET /v1/observed counts it for its rule")


def answer_ticket(asked: Asked) -> Checked | Response:
    number = asked.subject
    found = asked.deps.stores.tickets.tickets(1, number=number)
    if not found:
        return refuse(404, f"there is no ticket {number}", "GET /v1/tickets lists the tickets")
    if found[0]["closed_at"] is not None:
        return refuse(409, f"ticket {number} is closed already", f"see GET /v1/tickets/{number}")
    effect = tickets.acknowledge if asked.verb is Verb.ACKNOWLEDGE_TICKET else tickets.close
    return will(f"ticket {number}", WHY[asked.verb], partial(effect, number))


def end_signal(asked: Asked) -> Checked | Response:
    if asked.subject not in {one.id for one in asked.deps.stores.signals.live(asked.now)}:
        return refuse(404, f"there is no live signal {asked.subject}", "GET /v1/signals lists the live signals")
    effect = partial(site_signals.end, asked.subject)
    return will(signal_subject(asked.subject), "nothing follows from it any more", effect)
