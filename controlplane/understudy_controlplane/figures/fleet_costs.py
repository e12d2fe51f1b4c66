"""What a span of time cost: interruptions, hours by job and owner, spares, lemons, false alarms. Pure: from history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from understudy_controlplane.figures.alarms import AlarmRow, alarms, outages
from understudy_controlplane.figures.causes import CauseRow, table
from understudy_controlplane.figures.job_hours import Hours, hours
from understudy_controlplane.figures.outages import Outage, OutageSummary, down_levels, summary
from understudy_controlplane.figures.reliability import (
    binomial_quantile,
    gpu_days,
    gpu_hours,
    money,
    mtbf,
    per_1000_node_days,
    poisson_quantile,
    quantile_of_levels,
)
from understudy_controlplane.figures.spare_hours import Wait, most_taken, waits
from understudy_controlplane.fleet.durations import DAY_SECONDS, HOUR_SECONDS
from understudy_controlplane.fleet.history import (
    JobHistory,
    Loss,
    PoolChange,
    Span,
    Transition,
)
from understudy_controlplane.fleet.interruption_cause import PEOPLE, Cause
from understudy_controlplane.fleet.node import NodeState

P99 = 0.99
REPEATERS_LISTED = 10
WITH_NODES = tuple(loss for loss in Loss if loss is not Loss.QUEUE)
"""Losses in GPU-hours."""


@dataclass(frozen=True, slots=True)
class History:
    """What is stored. `nodes`: their states, and since when."""

    nodes: Mapping[str, tuple[NodeState, float]]
    gpus: int  # of all nodes
    jobs: Sequence[JobHistory] = ()
    incidents: Mapping[str, int] = field(default_factory=dict)  # rule → number
    transitions: Sequence[Transition] = ()
    verdicts: Mapping[int, bool] = field(default_factory=dict)
    pool: Sequence[PoolChange] = ()
    spares: Sequence[str] = ()  # held at the end of the span
    lemons: Mapping[str, float] = field(default_factory=dict)  # node → score, now


@dataclass(frozen=True, slots=True)
class Interrupted:
    """`planned`: by people. Rates are of the others."""

    causes: list[CauseRow]
    unexpected: int
    planned: int
    mtbf_hours: float | None
    per_1000_node_days: float  # of the nodes of jobs that asked for Understudy
    gpu_days_per_interruption: float | None


@dataclass(frozen=True, slots=True)
class JobRow:
    """Hours are GPU-hours, and those of spares of its own are held as well. `goodput`: productive of those held. In
    Slurm's queue it holds none: that time counts in its ETTR alone.
    """

    job_id: int
    user: str
    account: str
    partition: str
    name: str
    state: str
    nodes: int
    gpus: int
    interruptions: int
    ettr: float | None  # None: too little is known of its steps
    goodput: float | None
    gpu_hours: float
    productive_gpu_hours: float
    queue_hours: float
    lost_gpu_hours: dict[str, float]  # by `Loss`
    lost_money: float | None


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """`lost_money`: None: no price is known."""

    name: str
    jobs: int
    interruptions: int
    gpu_hours: float
    productive_gpu_hours: float
    lost_gpu_hours: dict[str, float]
    lost_money: float | None
    spares_taken: int
    spare_gpu_hours: float  # for which the spares that it got had waited
    spare_money: float | None


@dataclass(frozen=True, slots=True)
class SpareCosts:
    taken: int
    taken_in_a_day: int  # at most
    idle_gpu_hours: float
    idle_money: float | None
    served_gpu_hours: float  # of the idle hours: of spares that a gang took in the end
    needed_binomial: int  # for the failures of one day
    needed_poisson: int  # for the nodes out of service on average
    needed_by_history: int  # for the nodes that were out of service


@dataclass(frozen=True, slots=True)
class Lemon:
    node: str
    score: float


@dataclass(frozen=True, slots=True)
class Repeater:
    node: str
    outages: int


@dataclass(frozen=True, slots=True)
class FleetCosts:
    """`since`: the records begin then, or the span: rates are for the time from then on."""

    since: float
    gpu_hour_price: float | None
    nodes: int
    gpus: int
    interrupted: Interrupted
    ettr: float | None  # of all jobs, by their GPU-hours
    goodput: float | None
    gpu_hours: float
    productive_gpu_hours: float
    lost_gpu_hours: dict[str, float]
    lost_money: float | None
    jobs: list[JobRow]  # the most lost hours first
    users: list[OwnerRow]
    accounts: list[OwnerRow]
    partitions: list[OwnerRow]
    spares: SpareCosts
    outages: OutageSummary
    down_share: dict[str, float]  # number of nodes out of service → share of the time
    lemons: list[Lemon]
    repeaters: list[Repeater]
    alarms: list[AlarmRow]


def fleet_costs(history: History, span: Span, price: float | None) -> FleetCosts:
    gone = outages(history.transitions, history.nodes)
    levels = down_levels(gone, span.since, span.until)
    waited = waits(history.pool, history.spares, span.since, span.until)
    found = {job.row: _hours_of(job, span) for job in history.jobs}
    in_span = [_job_row(job, found[job.row], span, price) for job in history.jobs]
    rows = sorted((row for row in in_span if row is not None), key=lambda row: -sum(row.lost_gpu_hours.values()))
    held, productive, lost = _sums(rows)
    owners = _Owners(history, rows, waited, _gpus_each(history), price)
    return FleetCosts(
        span.since,
        price,
        len(history.nodes),
        history.gpus,
        _interrupted(history, found, span, price),
        _weighted_ettr(rows),
        productive / held if held else None,
        held,
        productive,
        lost,
        _money(sum(lost.values()), price),
        rows,
        owners.by(lambda one: one.user),
        owners.by(lambda one: one.account),
        owners.by(lambda one: one.partition),
        _spares(history, gone, levels, waited, span, price),
        summary(gone, len(history.nodes), span.since, span.until),
        {str(level): seconds / span.seconds for level, seconds in sorted(levels.items())} if span.seconds else {},
        [Lemon(node, score) for node, score in sorted(history.lemons.items(), key=lambda one: (-one[1], one[0]))],
        _repeaters(gone, span),
        alarms([one for one in history.transitions if span.holds(one.at)], history.verdicts),
    )


def _hours_of(job: JobHistory, span: Span) -> Hours | None:
    interrupted_at = [one.at for one in job.interruptions]
    return hours(job.attempts, job.marks, span.since, span.until, job.stands_until, interrupted_at)


def _job_row(job: JobHistory, found: Hours | None, span: Span, price: float | None) -> JobRow | None:
    """None: nothing of it is in the span."""
    interruptions = sum(span.holds(one.at) for one in job.interruptions)
    if found is None and not interruptions:
        return None
    known = found or Hours(0.0, 0.0)
    at_work = job.gpus - job.spare_gpus
    queued = known.lost_seconds.get(Loss.QUEUE, 0.0)
    lost = {loss.value: gpu_hours(at_work, known.lost_seconds.get(loss, 0.0)) for loss in WITH_NODES}
    held, productive = gpu_hours(job.gpus, known.wall_seconds - queued), gpu_hours(at_work, known.productive_seconds)
    return JobRow(
        job.job_id,
        job.user,
        job.account,
        job.partition,
        job.name,
        job.state,
        job.nodes,
        job.gpus,
        interruptions,
        known.ettr,
        productive / held if held else None,
        held,
        productive,
        queued / HOUR_SECONDS,
        lost,
        _money(sum(lost.values()), price),
    )


def _lost_by_cause(jobs: Iterable[JobHistory], found: Mapping[int, Hours | None]) -> dict[Cause, float]:
    """GPU-hours."""
    lost: dict[Cause, float] = {}
    for job in jobs:
        known = found[job.row]
        for number, seconds in known.lost_to.items() if known is not None else ():
            cause = job.interruptions[number].cause
            lost[cause] = lost.get(cause, 0.0) + gpu_hours(job.gpus - job.spare_gpus, seconds)
    return lost


def _interrupted(history: History, found: Mapping[int, Hours | None], span: Span, price: float | None) -> Interrupted:
    causes = [one.cause for job in history.jobs for one in job.interruptions if span.holds(one.at)]
    planned = causes.count(PEOPLE)
    unexpected = len(causes) - planned
    held = [(job.nodes, job.gpus, job.held_seconds(span)) for job in history.jobs]
    between = mtbf(span.seconds, unexpected)
    return Interrupted(
        table(causes, history.incidents, span.seconds, _lost_by_cause(history.jobs, found), price),
        unexpected,
        planned,
        None if between is None else between / HOUR_SECONDS,
        per_1000_node_days(unexpected, 1, sum(nodes * seconds for nodes, _, seconds in held)),
        sum(gpu_days(gpus, seconds) for _, gpus, seconds in held) / unexpected if unexpected else None,
    )


def _weighted_ettr(rows: Iterable[JobRow]) -> float | None:
    known = [(row.gpu_hours, row.ettr) for row in rows if row.ettr is not None]
    whole = sum(held for held, _ in known)
    return sum(held * ratio for held, ratio in known) / whole if whole else None


@dataclass(frozen=True, slots=True)
class _Owners:
    history: History
    rows: Sequence[JobRow]
    waited: Sequence[Wait]
    gpus_each: float
    price: float | None

    def by(self, name: Callable[[JobHistory | JobRow], str]) -> list[OwnerRow]:
        """The most lost hours first."""
        jobs = {job.row: name(job) for job in self.history.jobs}
        served: dict[str, list[float]] = {}
        for wait in self.waited:
            if wait.job in jobs:
                served.setdefault(jobs[wait.job], []).append(gpu_hours(self.gpus_each, wait.end - wait.begin))
        grouped: dict[str, list[JobRow]] = {owner: [] for owner in served}
        for row in self.rows:
            grouped.setdefault(name(row), []).append(row)
        found = [self._row(owner, of_owner, served.get(owner, [])) for owner, of_owner in grouped.items()]
        return sorted(found, key=lambda one: (-sum(one.lost_gpu_hours.values()), one.name))

    def _row(self, owner: str, rows: Sequence[JobRow], spares: Sequence[float]) -> OwnerRow:
        held, productive, lost = _sums(rows)
        interruptions = sum(row.interruptions for row in rows)
        paid = _money(sum(lost.values()), self.price)
        waited = sum(spares)
        return OwnerRow(
            owner,
            len(rows),
            interruptions,
            held,
            productive,
            lost,
            paid,
            len(spares),
            waited,
            _money(waited, self.price),
        )


def _sums(rows: Iterable[JobRow]) -> tuple[float, float, dict[str, float]]:
    """GPU-hours: held, productive, and lost by cause."""
    held = productive = 0.0
    lost = dict.fromkeys((loss.value for loss in WITH_NODES), 0.0)
    for row in rows:
        held += row.gpu_hours
        productive += row.productive_gpu_hours
        for loss, value in row.lost_gpu_hours.items():
            lost[loss] += value
    return held, productive, lost


def _spares(
    history: History,
    gone: Sequence[Outage],
    levels: dict[int, float],
    waited: Sequence[Wait],
    span: Span,
    price: float | None,
) -> SpareCosts:
    count, days = len(history.nodes), span.seconds / DAY_SECONDS
    begun = sum(span.holds(one.begin) for one in gone)
    daily = min(1.0, begun / (count * days)) if count and days else 0.0
    mean = sum(level * seconds for level, seconds in levels.items()) / span.seconds if span.seconds else 0.0
    taken = [one for one in history.pool if one.job is not None and span.holds(one.at)]
    each = _gpus_each(history)
    idle = gpu_hours(each, sum(one.end - one.begin for one in waited))
    return SpareCosts(
        len(taken),
        most_taken(taken, DAY_SECONDS),
        idle,
        _money(idle, price),
        gpu_hours(each, sum(one.end - one.begin for one in waited if one.job is not None)),
        binomial_quantile(P99, count, daily),
        poisson_quantile(P99, mean),
        quantile_of_levels(P99, levels),
    )


def _repeaters(gone: Iterable[Outage], span: Span) -> list[Repeater]:
    """Nodes that were out of service more than once."""
    counts = Counter(one.node for one in gone if span.holds(one.begin))
    repeated = [Repeater(node, count) for node, count in counts.items() if count > 1]
    return sorted(repeated, key=lambda one: (-one.outages, one.node))[:REPEATERS_LISTED]


def _gpus_each(history: History) -> float:
    """GPUs of a node, on average."""
    return history.gpus / len(history.nodes) if history.nodes else 0.0


def _money(hours_: float, price: float | None) -> float | None:
    return None if price is None else money(hours_, price)
