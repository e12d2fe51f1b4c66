"""`/metrics` for Prometheus, computed at each request.

Names: prefix `understudy_`, base units, `_total` for counters. Labels have few values: no reason texts, no job
names. Counters of recorded facts come from the database, so they survive a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.config import Mode
from understudy_controlplane.decide.guards import breaker_limit, lately_quarantined, quarantine_limit
from understudy_controlplane.detect.lemon import lemons
from understudy_controlplane.fleet.node import NodeState

TICKETS_COUNTED = 1000


def metrics_router(deps: ReadDependencies) -> APIRouter:
    registry = CollectorRegistry()
    registry.register(FleetCollector(deps))
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.get("/metrics")
    async def metrics() -> Response:
        """Metrics in the text format of Prometheus."""
        return await deps.readers.read(lambda: Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST))

    return router


class FleetCollector(Collector):
    def __init__(self, deps: ReadDependencies) -> None:
        self._deps = deps

    def collect(self) -> Iterator[Metric]:
        yield from self._fleet()
        yield from self._guards()
        yield from self._journal()
        yield from self._self()

    def describe(self) -> Iterator[Metric]:
        """Empty: registering must not query the database."""
        return iter(())

    def _fleet(self) -> Iterator[Metric]:
        snapshot = self._deps.pulse.snapshot
        views = list(snapshot.nodes.values()) if snapshot else []
        counts = Counter(view.state for view in views)
        nodes = GaugeMetricFamily("understudy_nodes", "Nodes by state.", labels=["state"])
        for state in NodeState:
            nodes.add_metric([state.value], counts[state])
        yield nodes
        held = sum(view.is_spare for view in views)
        yield GaugeMetricFamily("understudy_spares_held", "Nodes in the spare pool.", value=held)
        wanted = self._deps.config.spares.count
        yield GaugeMetricFamily("understudy_spares_wanted", "Spares that the configuration asks for.", value=wanted)
        known = lemons(snapshot, self._deps.config.lemon) if snapshot else {}
        yield GaugeMetricFamily("understudy_lemons", "Nodes whose lemon score is over the limit.", value=len(known))
        now = self._deps.clock.now()
        ages = GaugeMetricFamily(
            "understudy_agent_report_age_seconds", "Seconds since the last report of the node's agent.", labels=["node"]
        )
        for name, heard in self._deps.telemetry.heard().items():
            ages.add_metric([name], now - heard.at)
        yield ages
        yield CounterMetricFamily(
            "understudy_reports_total",
            "Reports accepted since start.",
            value=self._deps.telemetry.reports_total,
        )
        unknown = CounterMetricFamily(
            "understudy_wire_unknown_total",
            "Fields, enum values and kinds of facts in agents' reports that this release does not know and ignored.",
            labels=["what"],
        )
        for what, count in self._deps.telemetry.unknown.totals().items():
            unknown.add_metric([what], count)
        yield unknown
        yield CounterMetricFamily(
            "understudy_step_windows_dropped_total",
            "Step-time windows of ranks rejected since start.",
            value=self._deps.telemetry.windows_dropped_total,
        )
        yield CounterMetricFamily(
            "understudy_facts_dropped_total",
            "Facts of agents that were not believed, or that no database stores, since start.",
            value=self._deps.telemetry.facts_dropped_total,
        )

    def _guards(self) -> Iterator[Metric]:
        snapshot, config = self._deps.pulse.snapshot, self._deps.config
        if snapshot is None:
            return
        opened = int(bool(snapshot.breaker))
        yield GaugeMetricFamily("understudy_breaker_open", "1 while the circuit breaker is open.", value=opened)
        lately = len(lately_quarantined(snapshot, config))
        yield GaugeMetricFamily(
            "understudy_breaker_nodes", "Nodes quarantined within the circuit breaker's window.", value=lately
        )
        limit = breaker_limit(snapshot, config)
        yield GaugeMetricFamily(
            "understudy_breaker_limit_nodes",
            "Nodes quarantined within the window above which the circuit breaker opens.",
            value=limit,
        )
        limit = quarantine_limit(snapshot, config)
        yield GaugeMetricFamily(
            "understudy_quarantine_limit_nodes", "Nodes that may be quarantined at once.", value=limit
        )
        waiting = sum(one["closed_at"] is None for one in self._deps.stores.repairs.tickets(TICKETS_COUNTED))
        yield GaugeMetricFamily("understudy_tickets_open", "Open tickets for manual repair.", value=waiting)

    def _journal(self) -> Iterator[Metric]:
        counts = self._deps.queries.counts()
        recoveries = CounterMetricFamily(
            "understudy_recoveries_total", "Recoveries by kind and status.", labels=["kind", "status"]
        )
        for key, count in counts["recoveries"].items():
            recoveries.add_metric(key.split("|"), count)
        yield recoveries
        decisions = CounterMetricFamily(
            "understudy_decisions_total",
            "Decisions by action and reason, decisions to do nothing included.",
            labels=["action", "because"],
        )
        for key, count in counts["decisions"].items():
            decisions.add_metric(key.split("|"), count)
        yield decisions
        xids = CounterMetricFamily("understudy_xid_events_total", "Xid events by code.", labels=["xid"])
        for code, count in counts["xids"].items():
            xids.add_metric([code], count)
        yield xids
        yield GaugeMetricFamily("understudy_incidents_open", "Incidents not closed.", value=counts["incidents"]["open"])

    def _self(self) -> Iterator[Metric]:
        deps, pulse = self._deps, self._deps.pulse
        paused = bool(deps.stores.fleet.pause().reason)
        yield GaugeMetricFamily(
            "understudy_acting", "1 while the mode is act.", value=int(deps.config.mode is Mode.ACT)
        )
        yield GaugeMetricFamily(
            "understudy_paused", "1 while an operator has paused the control plane.", value=int(paused)
        )
        yield CounterMetricFamily("understudy_loop_ticks_total", "Ticks since start.", value=pulse.ticks_total)
        yield CounterMetricFamily("understudy_loop_errors_total", "Failed ticks since start.", value=pulse.errors_total)
        yield CounterMetricFamily(
            "understudy_clock_jumps_total",
            "Times that the clock of the control plane's machine was set by two seconds or more since start.",
            value=pulse.clock_jumps_total,
        )
        yield GaugeMetricFamily("understudy_loop_tick_seconds", "Duration of the last tick.", value=pulse.tick_seconds)
        yield GaugeMetricFamily(
            "understudy_loop_age_seconds",
            "Seconds since the last tick.",
            value=deps.clock.now() - pulse.last_tick_at,
        )
        yield GaugeMetricFamily(
            "understudy_slurm_read_seconds",
            "Duration of the last reading of Slurm.",
            value=pulse.slurm.seconds,
        )
        yield CounterMetricFamily(
            "understudy_slurm_read_errors_total",
            "Failed readings of Slurm since start.",
            value=pulse.slurm.errors_total,
        )
