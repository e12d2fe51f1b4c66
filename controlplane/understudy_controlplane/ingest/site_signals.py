"""Routes for other systems of the site: `POST /v1/signals`, and the same as Alertmanager sends it."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import msgspec
import structlog
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from understudy_controlplane.access.admission import Admission
from understudy_controlplane.clock import Clock
from understudy_controlplane.config import SignalKind
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Identity, Permission
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.site_signal import ReportedSignal, SiteSignal
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.ingest.alertmanager import AlertmanagerBody, targets_of
from understudy_controlplane.ingest.answers import answer, refuse
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.store.database import StoreError
from understudy_controlplane.store.site_signals import SiteSignalStore, TooManySignals
from understudy_wire.addresses import canonical
from understudy_wire.values import NOT_UNDERSTOOD

log = structlog.get_logger()

IGNORED_SHOWN_MAX = 32
KEY_CHARACTERS_MAX = 255
MONTH_SECONDS = 31 * 24 * 3600

Text = Annotated[str, Meta(max_length=120, pattern=r"^[^\x00]*$")]


class SignalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`key`: the same one again is the same signal; empty: its kind and targets. `source` is added to the label of the
    token. `resolved`: it is over.
    """

    kind: SignalKind
    targets: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...], Meta(min_length=1, max_length=64)
    ]  # names of nodes, and of domains as in "rack r1"
    summary: Annotated[str, Meta(max_length=500, pattern=r"^[^\x00]*$")] = ""
    for_seconds: Annotated[float, Meta(gt=0, le=MONTH_SECONDS)] = 3600.0
    key: Text = ""
    source: Text = ""
    resolved: bool = False


class SignalRecord(msgspec.Struct, frozen=True):
    """`until` is when it ends, unless it comes again."""

    id: int
    source: str
    key: str
    kind: SignalKind
    effect: str  # explain, warn, block or act: what the site has configured for its kind
    targets: list[str]
    summary: str
    at: float
    until: float


class SignalRecords(msgspec.Struct, frozen=True):
    """`ignored`: targets and alerts of which nothing is known here, and signals that an operator has ended."""

    signals: list[SignalRecord]
    ignored: list[str] = []


@dataclass(frozen=True, slots=True)
class SignalDependencies:
    admission: Admission
    signals: SiteSignalStore
    current: CurrentConfig
    pulse: Pulse
    clock: Clock
    wake_loop: Callable[[], None]


def site_signals_router(deps: SignalDependencies) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/signals")
    async def signal(request: Request) -> Response:
        """Report a leak, a power failure or another event of nodes or domains, for a time. What follows from it is
        configured for each kind.
        """
        identity = await deps.admission.admit(request, Permission.SIGNAL)
        try:
            body = msgspec.json.decode(await request.body(), type=SignalBody)
        except NOT_UNDERSTOOD as error:
            hint = 'send {"kind": "leak", "targets": ["rack r1"], "summary": "…", "for_seconds": 3600}'
            return refuse(400, f"the signal cannot be read: {error}", hint)
        snapshot = deps.pulse.snapshot
        if snapshot is None:
            return _not_ready()
        reported = _reported(body, snapshot, identity.label)
        unknown = [one for one in body.targets if one not in reported.targets]
        if not reported.targets:
            hint = "name nodes as Slurm does, or domains as `understudy topology show` does"
            return refuse(422, f"none of these is known: {', '.join(unknown)}", hint)
        firing, over = ([], [reported]) if body.resolved else ([reported], [])
        return await _take(deps, identity, _Batch(firing, over, body.for_seconds, unknown))

    @router.post("/v1/signals/alertmanager")
    async def alerts(request: Request) -> Response:
        """Take alerts as Alertmanager's webhook sends them: each one about a node or a domain that is known here."""
        identity = await deps.admission.admit(request, Permission.SIGNAL)
        try:
            body = msgspec.json.decode(await request.body(), type=AlertmanagerBody)
        except NOT_UNDERSTOOD as error:
            return refuse(400, f"the alerts cannot be read: {error}", "send them as Alertmanager's webhook does")
        snapshot = deps.pulse.snapshot
        if snapshot is None:
            return _not_ready()
        return await _take(deps, identity, _of_alerts(body, snapshot, identity.label, deps))

    return router


@dataclass(frozen=True, slots=True)
class _Batch:
    firing: Sequence[ReportedSignal]
    over: Sequence[ReportedSignal]
    for_seconds: float
    ignored: Sequence[str]


def _not_ready() -> Response:
    return refuse(503, "the control plane has just started and has not looked at the cluster yet", "repeat the request")


def known_as(snapshot: Snapshot) -> Callable[[str], str]:
    """What a name stands for: the node or domain of that name, or the only node with this NodeAddr; empty: nothing."""

    @cache
    def at() -> Mapping[str, str]:
        addresses = {name: canonical(node.slurm.address) for name, node in snapshot.nodes.items() if node.slurm}
        nodes = Counter(addresses.values())
        return {address: name for name, address in addresses.items() if nodes[address] == 1}

    return lambda name: name if snapshot.is_target(name) else at().get(canonical(name), "")


def _reported(body: SignalBody, snapshot: Snapshot, label: str) -> ReportedSignal:
    key = body.key or _key_of(body)
    source = f"{label}/{body.source}" if body.source else label
    return ReportedSignal(
        source[:255], key, body.kind, tuple(one for one in body.targets if snapshot.is_target(one)), body.summary
    )


def _key_of(body: SignalBody) -> str:
    words = f"{body.kind.value} {' '.join(sorted(body.targets))}"
    return words if len(words) <= KEY_CHARACTERS_MAX else hashlib.sha256(words.encode()).hexdigest()


def _of_alerts(body: AlertmanagerBody, snapshot: Snapshot, label: str, deps: SignalDependencies) -> _Batch:
    policy, known = deps.current.config.signals, known_as(snapshot)
    firing: list[ReportedSignal] = []
    over: list[ReportedSignal] = []
    ignored: list[str] = []
    for alert in body.counted:
        targets = targets_of(alert.labels, known)
        if targets:
            (over if alert.status == "resolved" else firing).append(alert.signal(label, targets, policy))
        else:
            ignored.append(alert.name)
    return _Batch(firing, over, policy.alert_seconds, ignored)


async def _take(deps: SignalDependencies, identity: Identity, batch: _Batch) -> Response:
    policy, now = deps.current.config.signals, deps.clock.now()
    try:
        taken, ended = await asyncio.to_thread(_store, deps, identity, batch, now)
    except TooManySignals:
        error = f"{policy.live_max} signals of {identity.label} are live, or ended within the hour"
        return refuse(429, error, "report a domain instead of its nodes, or end signals that are over")
    except StoreError as error:
        log.exception("signals_not_stored", source=identity.label)
        return refuse(503, f"the signals could not be stored: {type(error).__name__}", "repeat the request")
    deps.wake_loop()
    known = {(one.source, one.key) for one in taken}
    muted = [
        f"{one.kind.value} of {' '.join(one.targets)}" for one in batch.firing if (one.source, one.key) not in known
    ]
    ignored = [*batch.ignored, *(f"{one}: an operator has ended it" for one in muted)]
    for one in taken:
        log.info("signal", source=one.source, kind=one.kind.value, targets=[*one.targets], summary=one.summary)
    shown = [record_of(one, deps.current) for one in (*taken, *ended)]
    return answer(SignalRecords(shown, ignored[:IGNORED_SHOWN_MAX]))


def _store(
    deps: SignalDependencies, identity: Identity, batch: _Batch, now: float
) -> tuple[list[SiteSignal], list[SiteSignal]]:
    """Those that were taken, and those that are over. Raises TooManySignals or StoreError."""
    entry = AuditEntry.of_request(identity, now, Verb.SIGNAL.value, "", "")
    keys = [(one.source, one.key) for one in batch.over]
    ended = deps.signals.resolve(keys, AuditEntry.of_request(identity, now, Verb.END_SIGNAL.value, "", ""))
    return deps.signals.take(batch.firing, now + batch.for_seconds, deps.current.config.signals.live_max, entry), ended


def record_of(signal: SiteSignal, current: CurrentConfig) -> SignalRecord:
    return SignalRecord(
        signal.id,
        signal.source,
        signal.key,
        signal.kind,
        current.config.signals.effect_of(signal.kind).value,
        [*signal.targets],
        signal.summary,
        signal.at,
        signal.until,
    )
