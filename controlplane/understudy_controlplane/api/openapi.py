"""The OpenAPI document: what FastAPI knows of the routes, with models of the bodies and answers that msgspec encodes,
refusals, groups, and the token.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec

from understudy_controlplane.access.sessions import COOKIE
from understudy_controlplane.api.commissioning import CommissioningReport
from understudy_controlplane.api.drills import Drill, DrillBody
from understudy_controlplane.api.explain import CheckpointExplanation, JobExplanation, NodeExplanation
from understudy_controlplane.api.maintenance import MaintenanceBody, MaintenanceRecords
from understudy_controlplane.api.nodes import NodeSummary
from understudy_controlplane.api.observed import Observed
from understudy_controlplane.api.operator_requests import Accepted, HoldBody, ModeBody, PauseBody, RequestBody
from understudy_controlplane.api.post_mortem import PostMortem
from understudy_controlplane.api.records import (
    CheckpointRecord,
    DecisionRecord,
    EvidenceRecords,
    GpuRecord,
    IncidentRecord,
    JobRecord,
    NodeRecord,
    NotificationRecord,
    PartRecord,
    RankRecord,
    RecoveryRecord,
    StageOfNode,
    TicketRecord,
)
from understudy_controlplane.api.report_sections import FleetReport
from understudy_controlplane.api.requests import RequestState
from understudy_controlplane.api.sessions import Login, Session
from understudy_controlplane.api.spares import SpareExplanation, Spares
from understudy_controlplane.api.status import Health, Readiness, Status
from understudy_controlplane.api.streams import EVENTS
from understudy_controlplane.api.topology import TopologyRecord
from understudy_controlplane.api.user_tokens import UserToken, UserTokenRequest
from understudy_controlplane.api.verbs import VERBS
from understudy_controlplane.config import Mode
from understudy_controlplane.fleet.decision import Action, Because
from understudy_controlplane.fleet.event import Event, EventKind
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Outcome, Verb
from understudy_controlplane.ingest.alertmanager import AlertmanagerBody
from understudy_controlplane.ingest.answers import JSON, PROBLEM
from understudy_controlplane.ingest.reports import REPORTS, ReportsRoute
from understudy_controlplane.ingest.site_signals import SignalBody, SignalRecords
from understudy_wire.launcher import LauncherAnswer, LauncherReport
from understudy_wire.messages import (
    Acknowledgement,
    Challenge,
    NodeToken,
    NodeTokenRequest,
    Refusal,
    Report,
    RestorePoint,
)

Document = dict[str, Any]

OPEN_TO_ALL = ("/healthz", "/readyz", "/v1/challenge", "/v1/node-token", "/v1/user-token")
SESSION = "/v1/session"

GROUPS = {
    "operators": "Requests of operators, and what became of them.",
    "fleet": "The state of the fleet, of nodes and of jobs.",
    "record": "What was found, decided and done.",
    "nodes": "Agents and launchers.",
    "service": "The control plane itself.",
}
RECORD = ("report", "events", "observed", "incidents", "decisions", "recoveries", "tickets", "explain", "notifications")
AGENTS = ("reports", "launchers", "restore-point", "challenge", "node-token", "enrolment")

SENT: dict[str, type[msgspec.Struct]] = {
    REPORTS: Report,
    "/v1/launchers": LauncherReport,
    "/v1/node-token": NodeTokenRequest,
    "/v1/user-token": UserTokenRequest,
    SESSION: Login,
    **{row.path: row.body for row in VERBS},
    "/v1/drills": DrillBody,
    "/v1/signals": SignalBody,
    "/v1/maintenance": MaintenanceBody,
    "/v1/signals/alertmanager": AlertmanagerBody,
}
"""Bodies."""

ANSWERED: dict[str, type[msgspec.Struct]] = {
    "/healthz": Health,
    "/readyz": Readiness,
    "/v1/status": Status,
    "/v1/spares": Spares,
    "/v1/spares/explain/{job_id}": SpareExplanation,
    "/v1/topology": TopologyRecord,
    "/v1/signals": SignalRecords,
    "/v1/maintenance": MaintenanceRecords,
    "/v1/signals/alertmanager": SignalRecords,
    "/v1/report": FleetReport,
    "/v1/commissioning": CommissioningReport,
    "/v1/observed": Observed,
    "/v1/explain/nodes/{node}": NodeExplanation,
    "/v1/explain/jobs/{job_id}": JobExplanation,
    "/v1/explain/checkpoints/{job_id}": CheckpointExplanation,
    "/v1/requests/{request}": RequestState,
    "/v1/nodes/{node}": NodeRecord,
    "/v1/jobs/{job_id}": JobRecord,
    "/v1/incidents/{incident}": IncidentRecord,
    "/v1/incidents/{incident}/post-mortem": PostMortem,
    "/v1/incidents/{incident}/evidence": EvidenceRecords,
    "/v1/jobs/{job_id}/evidence": EvidenceRecords,
    "/v1/decisions/{decision}": DecisionRecord,
    "/v1/recoveries/{recovery}": RecoveryRecord,
    "/v1/tickets/{ticket}": TicketRecord,
    REPORTS: Acknowledgement,
    "/v1/drills": Drill,
    "/v1/launchers": LauncherAnswer,
    "/v1/restore-point": RestorePoint,
    "/v1/challenge": Challenge,
    "/v1/node-token": NodeToken,
    "/v1/enrolment": NodeToken,
    "/v1/user-token": UserToken,
    SESSION: Session,
}
LISTED: dict[str, type[msgspec.Struct]] = {
    "/v1/nodes": NodeSummary,
    "/v1/requests": RequestState,
    "/v1/jobs": JobRecord,
    "/v1/jobs/{job_id}/ranks": RankRecord,
    "/v1/checkpoints": CheckpointRecord,
    "/v1/gpus": GpuRecord,
    "/v1/parts": PartRecord,
    "/v1/stages": StageOfNode,
    "/v1/incidents": IncidentRecord,
    "/v1/decisions": DecisionRecord,
    "/v1/recoveries": RecoveryRecord,
    "/v1/tickets": TicketRecord,
    "/v1/notifications": NotificationRecord,
}
"""Records of lists."""

EXAMPLES: dict[type[msgspec.Struct], msgspec.Struct] = {
    Refusal: Refusal(
        "Conflict",
        409,
        "node_state",
        "c2 is retired: hold would change nothing",
        "`understudy help repair-cycle` shows which request fits which state",
    ),
    Accepted: Accepted(17, "c2", Verb.HOLD, Outcome.WILL_ACT, "c2 is drained within seconds"),
    Event: Event(EventKind.RECOVERY_STEP, 1763884801.5, 9, "recovery 9", ("c2",), 17, "requeue_job done: restart 1"),
    DecisionRecord: DecisionRecord(
        id=41,
        at=1763884800.2,
        table_row=10,
        rule="xid.79",
        subject="c2",
        action=Action.QUARANTINE,
        because=Because.RULE,
        reason="the GPU has fallen off the bus; job 17 moves to c9",
        from_state=NodeState.IN_SERVICE,
        to_state=NodeState.QUARANTINED,
        evidence={"xid": 79},
        incident=7,
        recovery=9,
        request=None,
    ),
    RequestBody: RequestBody("the fan is loud", dry_run=True),
    HoldBody: HoldBody("new cables", for_seconds=14400.0),
    PauseBody: PauseBody("maintenance of the network", for_seconds=7200.0),
    ModeBody: ModeBody("a new driver is tried", mode=Mode.OBSERVE, for_seconds=7200.0),
}

EVENTS_PATH = "/v1/events"
METRICS_PATH, METRICS = "/metrics", "text/plain"

_REPORTS: Document = {
    "summary": "Receive Report",
    "description": ReportsRoute.receive_report.__doc__,
    "operationId": "receive_report_v1_reports_post",
    "responses": {"200": {}},
}
"""The framework knows nothing of this route."""

_MODELS = {Event, *SENT.values(), *ANSWERED.values(), *LISTED.values(), *EXAMPLES, Accepted}


def describe(document: Document) -> Document:
    """Describes FastAPI's document, which is left as it is."""
    described = deepcopy(document)
    _, models = msgspec.json.schema_components(_MODELS, ref_template="#/components/schemas/{name}")
    for kind, example in EXAMPLES.items():
        models[kind.__name__]["examples"] = [msgspec.to_builtins(example)]
    components = described.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **models}
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": COOKIE,
            "description": "Of a browser.",
        },
    }
    described["tags"] = [{"name": name, "description": text} for name, text in GROUPS.items()]
    described["paths"][REPORTS] = {"post": deepcopy(_REPORTS)}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            _describe(operation, method, path)
    return described


def _describe(operation: Document, method: str, path: str) -> None:
    operation["tags"] = [_group(method, path)]
    operation["security"] = _security(method, path)
    answers = operation["responses"]
    answers.pop("422", None)
    answers["default"] = _content("A refusal, by RFC 9457.", Refusal, PROBLEM)
    by_operator = _group(method, path) == "operators" and method == "post"
    if method == "post" and path in SENT:
        body = _content("", SENT[path])["content"]
        operation["requestBody"] = {"required": True, "content": body}
    if by_operator and path not in ANSWERED:
        answers["202"] = _content("What will come of it.", Accepted)
        answers["200"] = _content("The same, of a dry run: nothing is stored.", Accepted)
    elif path == EVENTS_PATH:
        answers["200"] = _content("Events, each as `data` of a server-sent event.", Event, EVENTS)
    elif path == METRICS_PATH:
        text = {METRICS: {"schema": {"type": "string"}}}
        answers["200"] = {"description": "Metrics in the text format of Prometheus.", "content": text}
    elif path in ANSWERED:
        answers["200"] = _content("The answer.", ANSWERED[path])
    elif path in LISTED:
        answers["200"] = {"description": "A page.", "content": {JSON: {"schema": _page(LISTED[path])}}}


def _security(method: str, path: str) -> list[Document]:
    if path in OPEN_TO_ALL or (method, path) == ("post", SESSION):
        return []
    return [{"token": []}] if _group(method, path) == "nodes" else [{"token": []}, {"session": []}]


def _group(method: str, path: str) -> str:
    parts = path.strip("/").split("/")
    if parts[0] != "v1" or parts[1] in ("user-token", "session"):
        return "service"
    if parts[1] in AGENTS:
        return "nodes"
    if method == "post" or parts[1] == "requests":
        return "operators"
    return "record" if parts[1] in RECORD else "fleet"


def _content(text: str, kind: type[msgspec.Struct], media_type: str = JSON) -> Document:
    return {"description": text, "content": {media_type: {"schema": _reference(kind)}}}


def _reference(kind: type[msgspec.Struct]) -> Document:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _page(kind: type[msgspec.Struct]) -> Document:
    return {
        "type": "object",
        "required": ["items", "next"],
        "properties": {
            "items": {"type": "array", "items": _reference(kind)},
            "next": {"type": ["string", "integer", "null"], "description": "`cursor` of the next page; null: none."},
        },
    }
