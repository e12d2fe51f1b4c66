"""The table of verbs: all that operators and owners of jobs ask of the control plane by `POST`.

A route, its part of the OpenAPI document, its audit and its answer follow from a row.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from understudy_controlplane.api import fleet_requests, job_requests, maintenance, spares
from understudy_controlplane.api.dependencies import (
    DecisionId,
    JobId,
    MaintenanceId,
    NodeName,
    RecoveryId,
    SignalId,
    TicketId,
)
from understudy_controlplane.api.operator_requests import (
    Asked,
    Check,
    ChoiceBody,
    HoldBody,
    ModeBody,
    MoveBody,
    PauseBody,
    RequestBody,
    RequestDependencies,
    SizeBody,
    carry_out,
    read_body,
)
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.fleet.identity import Permission
from understudy_controlplane.fleet.operator import Verb

SUBJECTS: dict[str, Any] = {
    "node": NodeName,
    "job_id": JobId,
    "recovery": RecoveryId,
    "decision": DecisionId,
    "ticket": TicketId,
    "maintenance": MaintenanceId,
    "signal": SignalId,
}
OWNER = Permission.OPERATE_OWN_JOBS


@dataclass(frozen=True, slots=True)
class Row:
    """`check` refuses a request, or says what comes of it and what is stored. `words` are its documentation."""

    verb: Verb
    path: str
    check: Check
    words: str
    body: type[RequestBody] = RequestBody
    permission: Permission = Permission.OPERATE


# fmt: off
VERBS = (
    Row(Verb.PAUSE, "/v1/pause", fleet_requests.pause,
        "Pause: no recovery begins; those under way stop before their next effect, except between two attempts of a "
        "gang. With `now` they stop there as well. With `for_seconds` it ends by itself.", PauseBody),
    Row(Verb.RESUME, "/v1/resume", fleet_requests.resume, "End the pause."),
    Row(Verb.RESET_BREAKER, "/v1/breaker/reset", fleet_requests.reset_breaker,
        "Close the circuit breaker, after a person has found out why it opened.", permission=Permission.ADMINISTER),
    Row(Verb.MODE_CONFIGURED, "/v1/mode", fleet_requests.set_mode,
        "Set a mode below the configured one, also over a restart; or the configured one, which ends the limit. A mode "
        "above the configured one is refused.", ModeBody, Permission.ADMINISTER),
    Row(Verb.CANCEL, "/v1/recoveries/{recovery}/cancel", fleet_requests.cancel,
        "Cancel a recovery under way: what was begun is undone, or reported as left in its outcome."),
    Row(Verb.APPROVE, "/v1/recoveries/{recovery}/approve", fleet_requests.approve,
        "Approve a recovery that waits for it, in mode approve. The next round plans it from the newest facts."),
    Row(Verb.AGREE, "/v1/decisions/{decision}/agree", fleet_requests.judge,
        "Agree with a decision that the control plane only observed: the record of its rule shows it."),
    Row(Verb.DISAGREE, "/v1/decisions/{decision}/disagree", fleet_requests.judge,
        "Disagree with a decision that the control plane only observed."),
    Row(Verb.HOLD, "/v1/nodes/{node}/hold", fleet_requests.of_node,
        "Take the node out of service until an operator releases it, or for `for_seconds`.", HoldBody),
    Row(Verb.QUARANTINE, "/v1/nodes/{node}/quarantine", fleet_requests.of_node,
        "Report a fault of the node: as with a fault that the control plane finds, the node is drained, its gang moves "
        "to a spare, and the node is repaired and validated. The budgets of such faults apply."),
    Row(Verb.RELEASE, "/v1/nodes/{node}/release", fleet_requests.of_node,
        "Return the node to service; after a repair it is validated first, where validation is enabled."),
    Row(Verb.VALIDATE, "/v1/nodes/{node}/validate", fleet_requests.of_node,
        "Validate a node in service, as soon as no job uses it."),
    Row(Verb.BURN_IN, "/v1/nodes/{node}/burn-in", fleet_requests.of_node,
        "Repeat the validation for some hours, as soon as no job uses the node."),
    Row(Verb.RETIRE, "/v1/nodes/{node}/retire", fleet_requests.of_node, "Take the node out of service for good."),
    Row(Verb.END_DRILL, "/v1/nodes/{node}/end-drill", fleet_requests.end_drill,
        "End the drill on this node before its time. The node returns, if nothing but the drill speaks against it."),
    Row(Verb.ACKNOWLEDGE_TICKET, "/v1/tickets/{ticket}/ack", fleet_requests.answer_ticket,
        "Acknowledge a ticket: others see who deals with it."),
    Row(Verb.CLOSE_TICKET, "/v1/tickets/{ticket}/close", fleet_requests.answer_ticket,
        "Close a ticket. Its node stays in manual repair until it is released."),
    Row(Verb.END_SIGNAL, "/v1/signals/{signal}/end", fleet_requests.end_signal,
        "End a signal that is wrong. The same one is not taken again before the time at which it would have ended."),
    Row(Verb.PAUSE_MAINTENANCE, "/v1/maintenance/{maintenance}/pause", maintenance.change,
        "Take no further node out of service, and move no further gang, until it is resumed."),
    Row(Verb.RESUME_MAINTENANCE, "/v1/maintenance/{maintenance}/resume", maintenance.change, "Go on after a pause."),
    Row(Verb.END_MAINTENANCE, "/v1/maintenance/{maintenance}/end", maintenance.change,
        "End it now: its nodes return by their validation."),
    Row(Verb.PAUSE_JOB, "/v1/jobs/{job_id}/pause", job_requests.pause,
        "Begin nothing for this job: no move, no restart, no release. What is under way stops before its next effect, "
        "except between two attempts of the gang. With `for_seconds` it ends by itself.", HoldBody, OWNER),
    Row(Verb.RESUME_JOB, "/v1/jobs/{job_id}/resume", job_requests.resume,
        "End the pause of this job.", permission=OWNER),
    # A move takes spares: that needs an operator.
    Row(Verb.MOVE_JOB, "/v1/jobs/{job_id}/move", job_requests.move,
        "Move the job's gang off nodes, which stay in service: `off`, or those of its nodes that are not simply in "
        "service. The answer names the steps that are done twice for it. With `at_checkpoint` it waits for the next "
        "complete checkpoint.", MoveBody),
    Row(Verb.SAVE_JOB, "/v1/jobs/{job_id}/save", job_requests.save,
        "Ask all ranks of the job's gang to save a checkpoint, before the same step, some seconds from now. Its "
        "training has to ask for that (`monitor.checkpoints.due`).", permission=OWNER),
    Row(Verb.TRUST_CHECKPOINTS, "/v1/jobs/{job_id}/trust-checkpoints", job_requests.trust_checkpoints,
        "Declare the job's checkpoints good that are suspect now.", permission=OWNER),
    Row(Verb.SPARES_SIZE, "/v1/spares/size", spares.set_size,
        "Set how many spares the pool is to hold, also over a restart; null: the configured number again. A smaller "
        "number takes no node out of the pool: spares that gangs take are not replaced until it is reached.", SizeBody),
    Row(Verb.SPARE_ADD, "/v1/spares/{node}/add", spares.choose,
        "Have a node in the pool whenever no job uses it, besides those that the control plane chooses.", ChoiceBody),
    Row(Verb.SPARE_REMOVE, "/v1/spares/{node}/remove", spares.choose,
        "Take a node out of the pool, and keep it out.", ChoiceBody),
    Row(Verb.SPARE_FORGET, "/v1/spares/{node}/forget", spares.choose,
        "Let the control plane choose again whether a node is in the pool.", ChoiceBody),
)
# fmt: on


def verbs_router(deps: RequestDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])
    for row in VERBS:
        _add(router, deps, row)
    return router


def _add(router: APIRouter, deps: RequestDependencies, row: Row) -> None:
    async def endpoint(request: Request, **of_path: Any) -> Response:
        identity = await deps.admission.admit(request, row.permission)
        body = read_body(await request.body(), row.body)
        if isinstance(body, Response):
            return body
        subject = next(iter(of_path.values()), None)
        asked = Asked(deps, identity, row.verb, subject, body, deps.clock.now())
        return await asyncio.to_thread(carry_out, asked, row.check)

    named = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=SUBJECTS[name]) for name in subjects_of(row)]
    of_request = Parameter("request", Parameter.KEYWORD_ONLY, annotation=Request)
    endpoint.__signature__ = Signature([of_request, *named])  # type: ignore[attr-defined]
    endpoint.__name__ = row.verb.name.lower()
    router.post(row.path, status_code=202, description=row.words)(endpoint)


def subjects_of(row: Row) -> list[str]:
    return re.findall(r"{(\w+)}", row.path)
