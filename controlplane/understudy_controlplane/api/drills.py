"""Drills: what would follow if a node's driver logged an Xid; on request it is injected, for some time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from msgspec import Meta

from understudy_controlplane.api.operator_requests import (
    RequestDependencies,
    Seconds,
    log_audited,
    not_ready,
)
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.config import Mode
from understudy_controlplane.decide.drill import drill_event, what_follows
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.decision import Decision
from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.fleet.identity import Identity, Permission
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.ingest.answers import answer, refuse
from understudy_wire.facts import KernelEvent
from understudy_wire.values import NOT_UNDERSTOOD


class DrillBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    node: Annotated[str, Meta(max_length=255)]
    xid: Annotated[int, Meta(ge=1, le=1000)]
    reason: Annotated[str, Meta(max_length=2000)]
    really: bool = False  # inject it: the control plane acts on it as on a fault
    for_seconds: Seconds = HOUR_SECONDS  # then the drill ends, and its node returns


class DrillDecision(msgspec.Struct, frozen=True):
    row: int
    subject: str
    action: str
    because: str
    reason: str
    steps: list[str]  # of its plan


class Drill(msgspec.Struct, frozen=True):
    """`decisions` are those of mode act, as far as they would not be made anyway; in mode observe none is carried out.
    `request` is the number of the request, `until` when the drill ends by itself; null: nothing was injected.
    """

    request: int | None
    node: str
    line: str
    mode: Mode
    decisions: list[DrillDecision]
    until: float | None


def drills_router(deps: RequestDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])
    one_at_a_time = asyncio.Lock()  # a drill computes a round: half a second for 12,500 nodes

    @router.post("/v1/drills")
    async def drill(request: Request) -> Response:
        """What would follow if the driver of `node` logged `xid` now: nothing is recorded or changed. With `really` the
        line is stored as if the agent had sent it, marked as a drill, and the control plane acts on it.
        """
        identity = await deps.admission.admit(request, Permission.OPERATE)
        try:
            body = msgspec.json.decode(await request.body(), type=DrillBody)
        except NOT_UNDERSTOOD as error:
            hint = 'send {"node": "c7", "xid": 79, "reason": "…"}'
            return refuse(400, f"the request cannot be read: {error}", hint)
        if not body.reason.strip():
            return refuse(422, "reason must not be empty", "give a reason that the next operator understands")
        if body.really:
            identity = await deps.admission.admit(request, Permission.ADMINISTER)
        async with one_at_a_time:
            return await _drill(deps, identity, body)

    return router


async def _drill(deps: RequestDependencies, identity: Identity, body: DrillBody) -> Response:
    snapshot, now = deps.pulse.snapshot, deps.clock.now()
    if snapshot is None:
        return not_ready()
    node = snapshot.nodes.get(body.node)
    if node is None:
        return refuse(404, f"node {body.node} is not known", "GET /v1/nodes lists the nodes")
    event = drill_event(node, body.xid, identity.label, now)
    decisions = await asyncio.to_thread(what_follows, snapshot, deps.current.config, body.node, event)
    number = None
    if body.really:
        objection = _objection(snapshot.mode_of([body.node]), node)
        if objection:
            return refuse(409, f"the drill is not injected: {objection}", "leave `really` out to see what would follow")
        number = await asyncio.to_thread(_inject, deps, identity, body, event)
        deps.wake_loop()
    until, mode = None if number is None else now + body.for_seconds, snapshot.mode_of([body.node])
    return answer(Drill(number, body.node, event.text, mode, [_shown(one) for one in decisions], until))


def _objection(mode: Mode, node: NodeView) -> str:
    """Why nothing is injected; empty: it is."""
    if mode is Mode.OBSERVE:
        return "the control plane only observes, and its record of rules would count the drill"
    if node.state is not NodeState.IN_SERVICE:
        return f"{node.name} is {node.state.value}, not in service"
    if not node.boot_id:
        return f"the agent of {node.name} has not reported"
    return ""


def _inject(deps: RequestDependencies, identity: Identity, body: DrillBody, event: KernelEvent) -> int | None:
    """The drill comes first, in the audit too: a line without one counts for nothing."""
    entry = AuditEntry.of_request(identity, event.at, Verb.DRILL.value, body.node, body.reason)
    until = event.at + body.for_seconds
    number = deps.stores.requests.ask_audited(replace(entry, after={"until": until}), until)
    log_audited(entry)
    deps.stores.facts.record(body.node, [event], event.at, lambda _job_id: None)
    return number


def _shown(decision: Decision) -> DrillDecision:
    plan = decision.plan or decision.proposed
    return DrillDecision(
        decision.row,
        decision.subject,
        decision.action.value,
        decision.because.value,
        decision.reason,
        [step.value for step in plan.steps] if plan is not None else [],
    )
