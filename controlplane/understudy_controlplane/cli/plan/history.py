"""A site's own history for a plan: outages of nodes, what else interrupted gangs, and how long recoveries took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from understudy_controlplane.figures.alarms import outages
from understudy_controlplane.figures.checkpoint_interval import failure_rate
from understudy_controlplane.figures.outages import Outage
from understudy_controlplane.figures.plan_site import Effect, FaultCause, Faults, Site, Trace, Way
from understudy_controlplane.figures.reliability import per_1000_node_days
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.interruption_cause import HANG, PROGRAM, SLOW
from understudy_controlplane.fleet.phases import phase_times
from understudy_controlplane.fleet.recovery import Recovery, RecoveryKind, StepName

if TYPE_CHECKING:
    from understudy_controlplane.store.database import Engine

OUTAGES_MIN, DAYS_MIN = 10, 7.0
"""Least history that is replayed: less of it says little of what comes."""

EFFECTS = {HANG: Effect.HANG, PROGRAM: Effect.PROGRAM, SLOW: Effect.SLOW}
"""What interrupts a gang without an outage of a node, or before it."""


@dataclass(frozen=True, slots=True)
class OwnHistory:
    """`outages` with begin and end from the first record on; `phases`: medians in seconds, by kind of recovery."""

    nodes: int
    seconds: float
    outages: list[Outage]
    interruptions: Mapping[Effect, int]
    phases: Mapping[RecoveryKind, Mapping[str, float]]

    @property
    def is_long(self) -> bool:
        return len(self.outages) >= OUTAGES_MIN and self.seconds >= DAYS_MIN * DAY_SECONDS

    @property
    def words(self) -> str:
        days = self.seconds / DAY_SECONDS
        seen = f"own history: {len(self.outages)} outages of {self.nodes} nodes in {days:.0f} days"
        if self.is_long:
            return f"{seen}, replayed"
        return f"{seen}: too short to replay, so that its rate is mixed with the published one"

    def faults(self, prior: Faults) -> Faults:
        """`prior`: causes and repairs for what the history does not show, before the command line changes them. Where
        this history is short, it has a rate.
        """
        alarms = [one for one in prior.causes if one.effect is Effect.FALSE_ALARM]
        if not self.is_long:
            node_days = self.nodes * self.seconds / DAY_SECONDS
            wanted = 1000 * failure_rate(len(self.outages), node_days).per_node_day
            real = [one for one in prior.causes if one.effect is not Effect.FALSE_ALARM]
            factor = wanted / sum(one.per_1000_node_days for one in real)
            scaled = [replace(one, per_1000_node_days=one.per_1000_node_days * factor) for one in real]
            return replace(prior, causes=(*scaled, *alarms))
        others = [
            FaultCause(f"{effect.value}, as seen", effect, per_1000_node_days(count, self.nodes, self.seconds))
            for effect, count in self.interruptions.items()
        ]
        repairs = [one.end - one.begin for one in self.outages if one.end is not None] or list(prior.repairs)
        trace = Trace(self.outages, self.nodes, self.seconds)
        return replace(prior, causes=(*others, *alarms), repairs=repairs, trace=trace)

    def timed(self, way: Way, site: Site) -> tuple[Way, Site]:
        """Way and site with the site's own times, as far as its recoveries show them."""
        kind = RecoveryKind.ALLOCATION_SWAP if way.uses_inside else RecoveryKind.POOL_SWAP
        own = self.phases.get(kind, {})
        if "detect" in own:
            way = replace(way, detect={**way.detect, **dict.fromkeys((Effect.DEAD, Effect.BROKEN), own["detect"])})
        if "swap" in own:
            way = replace(way, swap_inside=own["swap"]) if way.uses_inside else replace(way, swap_pool=own["swap"])
        if "start" in own:
            site = replace(site, start_warm=own["start"]) if way.uses_inside else replace(site, start_cold=own["start"])
        if "restore" in own:
            site = replace(site, tiers=tuple(replace(one, restore=own["restore"]) for one in site.tiers))
        return way, site


def read(engine: Engine, now: float) -> OwnHistory | None:
    """None: nothing is stored yet."""
    from understudy_controlplane.store.fleet import FleetStore
    from understudy_controlplane.store.history import MOVES, HistoryStore
    from understudy_controlplane.store.recoveries import RecoveryStore

    history = HistoryStore(engine)
    since = history.begins_at()
    if since is None or since >= now:
        return None
    nodes = FleetStore(engine).nodes()
    found = outages(
        history.transitions(since, now), {name: (record.state, record.since) for name, record in nodes.items()}
    )
    counts: Counter[Effect] = Counter()
    for job in history.jobs(since, now, lambda _: 1):
        counts.update(EFFECTS[one.cause] for one in job.interruptions if one.cause in EFFECTS)
    return OwnHistory(
        max(len(nodes), 1),
        now - since,
        [Outage(one.node, max(one.begin - since, 0.0), (one.end or now) - since) for one in found],
        counts,
        _phases(RecoveryStore(engine).decided(since, MOVES)),
    )


def _phases(recoveries: Iterable[Recovery]) -> dict[RecoveryKind, dict[str, float]]:
    seconds: dict[RecoveryKind, dict[str, list[float]]] = {}
    for one in recoveries:
        times, started = phase_times(one), one.step(StepName.START_JOB)
        of_kind = seconds.setdefault(one.plan.kind, {})
        at = {
            "fault": one.fault_at,
            "detected": times["detected"],
            "decided": times["decided"],
            "seats": times.get("relaunched", started.done_at if started is not None else None),
            "running": times.get("running"),
            "first_step": times.get("first_step"),
        }
        for name, begin, end in PARTS:
            first, last = at[begin], at[end]
            if first is not None and last is not None and last >= first > 0:
                of_kind.setdefault(name, []).append(last - first)
    return {kind: {name: median(found) for name, found in parts.items()} for kind, parts in seconds.items()}


PARTS = (
    ("detect", "fault", "detected"),
    ("swap", "decided", "seats"),
    ("start", "seats", "running"),
    ("restore", "running", "first_step"),
)
"""Part, and between which moments it is."""
