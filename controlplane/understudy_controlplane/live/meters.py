"""Counters and histograms of this process. They begin at zero with it; Prometheus knows that counters do so.

Written by the loop and the routes that take reports, read by `/metrics`. Every method is safe from any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram

from understudy_controlplane.fleet.finding import FAULTS
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.node import OUT_OF_SERVICE, StoredKernelEvent
from understudy_controlplane.fleet.phases import PHASES, phase_times
from understudy_controlplane.fleet.recovery import Recovery, RecoveryKind, RecoveryStatus
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.xid_policy import default_policy

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # one more series for each counter, unused

OTHER_XID = "other"
"""A node can report any number; codes without a row in the policy are counted together."""

ZERO_SECONDS = 60.0
"""A series with a label of an open set is zero for this time, at least two scrapes, before it counts its first events:
`increase()` would not see them otherwise.
"""

ROUTES_OF_NODES = ("/v1/launchers", "/v1/restore-point", "/v1/node-token", "/v1/enrolment")
"""Routes whose refused requests are counted by their status. Refused reports are counted by their cause."""

REFUSED_STATUSES = (400, 401, 403, 404, 413, 429, 503)

CONNECTION_CAUSES = ("address", "all", "rate")
"""Limits that a connection can be over: of its address, of all together, or of new ones of its address in a time."""

GAP_SECONDS_MAX = 60.0
"""Longest time between two ticks that counts as time in service: after a longer one, or a clock that was set, it is not
known.
"""

ENDS = (
    RecoveryStatus.SUCCEEDED,
    RecoveryStatus.FAILED,
    RecoveryStatus.SUPERSEDED,
    RecoveryStatus.OVERTAKEN,
    RecoveryStatus.CANCELLED,
)
"""Ends of a recovery that has begun; a proposal begins nothing."""

MOVES = (RecoveryKind.POOL_SWAP, RecoveryKind.ALLOCATION_SWAP)

SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
OF_A_RECOVERY = (0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
OF_AN_INCIDENT = (10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0, 72 * 3600.0, 7 * 24 * 3600.0)


@dataclass(frozen=True, slots=True)
class Meter:
    """Description in the documents. `series`: how many there are."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    series: str


class Meters:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.described: list[Meter] = []
        self.decisions = self._counter(
            "decisions_total",
            "Decisions recorded, those to do nothing included.",
            ("action", "because"),
            "pairs that have occurred, some 50",
        )
        self.detectors_failed = self._counter(
            "detectors_failed_total",
            "Rounds in which a detector failed, or a decision. No node returns to service then that it may be about.",
            ("detector",),
            "detectors that have failed, mostly none",
        )
        self.recoveries_ended = self._counter(
            "recoveries_ended_total",
            "Recoveries that ended.",
            ("kind", "outcome"),
            str(len(RecoveryKind) * len(ENDS)),
        )
        self.incidents_opened = self._counter(
            "incidents_opened_total", "Incidents opened, by what opened them.", ("signal",), "10 at most"
        )
        self.xid_events = self._counter(
            "xid_events_total",
            f"Xid events in the kernel logs of nodes; xid: a code of the policy, or {OTHER_XID}.",
            ("node", "xid"),
            "nodes with an Xid, times their codes",
        )
        self.reports_refused = self._counter(
            "reports_refused_total", "Reports of agents that were refused.", ("cause",), "9"
        )
        self.requests_refused = self._counter(
            "requests_refused_total",
            "Refused requests of launchers, of ranks for their restore point, and of agents for their token. 404 of "
            "/v1/launchers is usual for seconds after a start: Slurm does not show the job yet.",
            ("route", "status"),
            str(len(ROUTES_OF_NODES) * len(REFUSED_STATUSES)),
        )
        self.connections_refused = self._counter(
            "connections_refused_total",
            "Connections closed by a limit: of their address, of all together, or of the rate of new ones.",
            ("cause",),
            str(len(CONNECTION_CAUSES)),
        )
        self.proxy_headers_refused = self._counter(
            "proxy_headers_refused_total",
            "Requests that named a user in the header of the reverse proxy and did not come from it.",
            (),
            "1",
        )
        self.node_seconds = self._counter(
            "node_seconds_total",
            "Time that nodes were in service (in), or out of it by Understudy or an operator (out), of all nodes "
            "together. Divided by the incidents opened it is the mean time between failures (MTBF).",
            ("service",),
            "2",
        )
        self.save_orders = self._counter(
            "save_orders_total",
            "Orders to save that all ranks of a gang follow (valid), or that not all could (withdrawn).",
            ("cause", "outcome"),
            "10",
        )
        self.notifications = self._counter(
            "notifications_total",
            "Notifications that a receiver took (sent) or did not (failed: it is tried again), by receiver.",
            ("receiver", "outcome"),
            "twice the receivers",
        )
        self.recovery_seconds = self._histogram(
            "recovery_seconds",
            "From the fault, or the decision, to the end of a recovery.",
            OF_A_RECOVERY,
            ("kind",),
            f"16 for each kind, {16 * len(RecoveryKind)}",
        )
        self.recovery_phase_seconds = self._histogram(
            "recovery_phase_seconds",
            "From the fault to the end of a phase, of recoveries that moved a gang with success.",
            OF_A_RECOVERY,
            ("kind", "phase"),
            f"16 for each phase of two kinds, {16 * len(MOVES) * len(PHASES)}",
        )
        self.incident_seconds = self._histogram(
            "incident_seconds",
            "From the opening of an incident to its end: of a node's, the time to repair (MTTR).",
            OF_AN_INCIDENT,
            ("subject",),
            "36",
        )
        self.tick_seconds = self._histogram("tick_seconds", "Duration of a tick of the loop.", SHORT, (), "16")
        self.slurm_read_seconds = self._histogram(
            "slurm_read_seconds", "Duration of a reading of Slurm.", SHORT, (), "16"
        )
        self.ingest_seconds = self._histogram(
            "ingest_seconds", "From the arrival of an agent's report to its answer.", SHORT, (), "16"
        )
        self._incidents: Mapping[int, OpenIncident] | None = None  # None: no snapshot was seen yet
        self._seen_at = 0.0
        self._xid_series: set[tuple[str, str]] = set()  # nodes and codes that are counted at once
        self._xids_held: dict[tuple[str, str], tuple[float, int]] = {}  # since when, and how many
        self._codes = {str(code) for code in default_policy().xid}
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """A series that appears with its first event would hide that event from Prometheus."""
        for kind in RecoveryKind:
            for end in ENDS:
                self.recoveries_ended.labels(kind.value, end.value)
            self.recovery_seconds.labels(kind.value)
        for kind in MOVES:
            for phase in PHASES:
                self.recovery_phase_seconds.labels(kind.value, phase)
        for signal in FAULTS:
            self.incidents_opened.labels(signal.value)
        for route in ROUTES_OF_NODES:
            for status in REFUSED_STATUSES:
                self.requests_refused.labels(route, str(status))
        for cause in CONNECTION_CAUSES:
            self.connections_refused.labels(cause)
        for subject in SubjectKind:
            self.incident_seconds.labels(subject.value)
        for service in ("in", "out"):
            self.node_seconds.labels(service)

    def _counter(self, name: str, meaning: str, labels: tuple[str, ...], series: str) -> Counter:
        self.described.append(Meter(f"understudy_{name}", "counter", meaning, labels, series))
        return Counter(f"understudy_{name}", meaning, labels, registry=self.registry)

    def _histogram(
        self, name: str, meaning: str, buckets: tuple[float, ...], labels: tuple[str, ...], series: str
    ) -> Histogram:
        self.described.append(Meter(f"understudy_{name}", "histogram", meaning, labels, series))
        return Histogram(f"understudy_{name}", meaning, labels, buckets=buckets, registry=self.registry)

    def note_snapshot(self, snapshot: Snapshot) -> None:
        """Incidents that were opened or have ended since the snapshot before, and the time that nodes served."""
        now_open = {one.id: one for one in snapshot.incidents.values()}
        before, self._incidents = self._incidents, now_open
        for one in now_open.values() if before is not None else ():
            if one.id not in (before or {}):
                self.incidents_opened.labels(one.signal).inc()
        for one in (before or {}).values():
            if one.id not in now_open:
                seconds = max(snapshot.now - one.opened_at, 0.0)
                self.incident_seconds.labels(one.subject.kind.value).observe(seconds)
        gap, self._seen_at = snapshot.now - self._seen_at, snapshot.now
        if 0 < gap < GAP_SECONDS_MAX:
            out = sum(node.state in OUT_OF_SERVICE for node in snapshot.set_apart)
            self.node_seconds.labels("out").inc(gap * out)
            self.node_seconds.labels("in").inc(gap * (len(snapshot.nodes) - out))

    def note_kernel_events(self, events: Collection[StoredKernelEvent], now: float) -> None:
        for one in events:
            if one.event.xid is not None:
                code = str(one.event.xid)
                self._count_xid((one.node, code if code in self._codes else OTHER_XID), now)
        for key in [key for key, (since, _) in self._xids_held.items() if not 0 <= now - since < ZERO_SECONDS]:
            self._xid_series.add(key)
            self.xid_events.labels(*key).inc(self._xids_held.pop(key)[1])

    def _count_xid(self, key: tuple[str, str], now: float) -> None:
        if key in self._xid_series:
            self.xid_events.labels(*key).inc()
            return
        since, count = self._xids_held.get(key, (now, 0))
        self._xids_held[key] = (since, count + 1)
        self.xid_events.labels(*key)  # zero from now on

    def note_request_refused(self, route: str, status: int) -> None:
        if status in REFUSED_STATUSES:
            self.requests_refused.labels(route, str(status)).inc()

    def note_ended(self, recovery: Recovery) -> None:
        kind = recovery.plan.kind.value
        begun_at = recovery.fault_at or recovery.decided_at
        self.recoveries_ended.labels(kind, recovery.status.value).inc()
        self.recovery_seconds.labels(kind).observe(max((recovery.ended_at or begun_at) - begun_at, 0.0))
        if recovery.status is RecoveryStatus.SUCCEEDED and recovery.swap is not None:
            for phase, at in phase_times(recovery).items():
                self.recovery_phase_seconds.labels(kind, phase).observe(max(at - begun_at, 0.0))
