"""What all requests of operators share: who asks, what is sent, the refusal, the audit, and what will come of it.

`api/verbs.py` has one row for each request. The loop decides what follows from a request that waits for an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import msgspec
import structlog
from fastapi import Response
from msgspec import Meta

from understudy_controlplane.access.admission import Admission
from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Mode
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.identity import Identity
from understudy_controlplane.fleet.job import KnownJob, RestoreDecision
from understudy_controlplane.fleet.operator import InForce, Outcome, Prospect, Verb
from understudy_controlplane.ingest.answers import answer, refuse
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.live.save_orders import SaveOrders
from understudy_controlplane.store.requests import Effect
from understudy_controlplane.store.stores import Stores
from understudy_wire.values import NOT_UNDERSTOOD

log = structlog.get_logger()

Seconds = Annotated[float, Meta(gt=0, le=366 * 24 * 3600)]


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hint: ClassVar[str] = 'send {"reason": "…"}'

    reason: Annotated[str, Meta(max_length=4000, pattern=r"^[^\x00]*$")]  # SQL refuses NUL
    dry_run: bool = False  # only answer what would come of it


class PauseBody(RequestBody, frozen=True, forbid_unknown_fields=True):
    now: bool = False  # recoveries under way halt as well
    for_seconds: Seconds | None = None  # None: until a person resumes


class HoldBody(RequestBody, frozen=True, forbid_unknown_fields=True):
    for_seconds: Seconds | None = None  # None: until a person releases it


class MoveBody(RequestBody, frozen=True, forbid_unknown_fields=True):
    off: Annotated[
        tuple[Annotated[str, Meta(max_length=255)], ...], Meta(max_length=1000)
    ] = ()  # nodes that the gang leaves
    at_checkpoint: bool = False  # not before the job's next complete checkpoint


class ModeBody(RequestBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    hint: ClassVar[str] = 'send {"mode": "observe", "reason": "…"}'

    mode: Mode
    for_seconds: Seconds | None = None  # None: until an administrator ends it


class SizeBody(RequestBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    hint: ClassVar[str] = 'send {"size": 4, "reason": "…"}'

    size: Annotated[int, Meta(ge=0, le=100_000)] | None = None  # None: as configured


class ChoiceBody(RequestBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    for_seconds: Seconds | None = None  # None: until another request about the node


class Accepted(msgspec.Struct, frozen=True):
    """What will come of a request. `request` is its number, for `GET /v1/requests/{request}`; null: a dry run."""

    request: int | None
    subject: str
    verb: Verb
    outcome: Outcome
    why: str
    warning: str = ""
    """What speaks against it, such as a fault that is still seen on a node to be released; empty: nothing is known."""


@dataclass(frozen=True, slots=True)
class RequestDependencies:
    admission: Admission
    stores: Stores
    directory: JobDirectory
    saves: SaveOrders
    newest_checkpoint: Callable[[KnownJob], RestoreDecision]
    current: CurrentConfig
    pulse: Pulse
    clock: Clock
    wake_loop: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """`subject` is what the path names: a node, or a number; None: the whole."""

    deps: RequestDependencies
    identity: Identity
    verb: Verb
    subject: Any
    body: Any
    now: float

    @property
    def words(self) -> str:
        return f"{self.body.reason} ({self.identity.label})"

    @property
    def until(self) -> float | None:
        seconds: float | None = getattr(self.body, "for_seconds", None)
        return None if seconds is None else self.now + seconds

    def in_force(self) -> InForce:
        return in_force(self.deps.stores.requests.stored(), self.now)


@dataclass(frozen=True, slots=True)
class Checked:
    """What comes of a request, and what is stored with it."""

    subject: str
    prospect: Prospect
    before: Mapping[str, Json] = field(default_factory=dict)  # of the audit
    after: Mapping[str, Json] = field(default_factory=dict)
    detail: Mapping[str, Any] | None = None
    effect: Effect | None = None
    verb: Verb | None = None  # where the body decides about it


Check = Callable[[Asked], Checked | Response]


def read_body(content: bytes, kind: type[RequestBody]) -> RequestBody | Response:
    """Or its refusal."""
    try:
        body = msgspec.json.decode(content, type=kind)
    except NOT_UNDERSTOOD as error:
        return refuse(400, f"the request cannot be read: {error}", kind.hint)
    return body if body.reason.strip() else no_reason()


def no_reason() -> Response:
    return refuse(422, "reason must not be empty", "give a reason that the next operator understands")


def carry_out(asked: Asked, check: Check) -> Response:
    checked = check(asked)
    if isinstance(checked, Response):
        return checked
    verb, number = checked.verb or asked.verb, None
    if not asked.body.dry_run:
        number = _store(asked, checked, verb)
        if number is None:  # another operator, or the loop, was faster
            checked = check(asked)
            return checked if isinstance(checked, Response) else refuse(409, "it has changed", "repeat the request")
        asked.deps.wake_loop()
    prospect = checked.prospect
    # 202 for what is stored, 200 for a dry run
    accepted = Accepted(number, checked.subject, verb, prospect.outcome, prospect.why, prospect.warning)
    return answer(accepted, 200 if number is None else 202)


def _store(asked: Asked, checked: Checked, verb: Verb) -> int | None:
    after: dict[str, Json] = {**checked.after} or {"requested": verb.value}
    after |= {} if asked.until is None else {"until": asked.until}
    entry = AuditEntry.of_request(asked.identity, asked.now, verb.value, checked.subject, asked.body.reason)
    entry = replace(entry, before=checked.before, after=after)
    number = asked.deps.stores.requests.ask_audited(entry, asked.until, checked.detail, checked.effect)
    if number is not None:
        log_audited(entry)
    return number


def not_ready() -> Response:
    return refuse(503, "the control plane has just started and has not looked at the cluster yet", "repeat the request")


def log_audited(entry: AuditEntry) -> None:
    """The journal of the host, or whatever collects its logs, keeps a copy that no one with the database can change."""
    log.info(
        "operator_request",
        who=entry.who,
        address=entry.address,
        action=entry.action,
        subject=entry.subject,
        reason=entry.reason,
    )


def will(subject: str, why: str, effect: Effect | None = None) -> Checked:
    """It takes effect at once, in every mode."""
    return Checked(subject, Prospect(Outcome.WILL_ACT, why), effect=effect)
