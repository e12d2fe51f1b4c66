"""A report as tables: each way to show it prints these, so that all show the same numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import msgspec

from understudy_controlplane.api.documents import Cell, Section, date
from understudy_controlplane.decide.observed import RuleRecord
from understudy_controlplane.figures.fleet_costs import WITH_NODES, FleetCosts, JobRow, OwnerRow
from understudy_controlplane.fleet.counted import times
from understudy_controlplane.fleet.interruption_cause import PEOPLE
from understudy_controlplane.store.report import Count, RecoveryCount

LOSSES = tuple(loss.value for loss in WITH_NODES)


class FleetReport(msgspec.Struct, frozen=True):
    """Report on what began in the span. `recoveries` have ended; `observed` are decisions that were not carried out,
    with what people answered, also later.
    """

    since: float
    until: float
    incidents: list[Count]
    incidents_open: int
    recoveries: list[RecoveryCount]
    seconds_lost: float
    quarantines: list[Count]
    worst_nodes: list[Count]
    held_back: list[Count]
    observed: list[RuleRecord]
    cluster: str
    costs: FleetCosts


def sections(report: FleetReport) -> list[Section]:
    """Those with rows, and of each the columns in which anything is known."""
    return [_without_empty_columns(one) for one in _all(report) if one.rows]


def _without_empty_columns(section: Section) -> Section:
    """Section without money if no price is known."""
    kept = [number for number in range(len(section.columns)) if any(row[number] is not None for row in section.rows)]
    columns = tuple(section.columns[number] for number in kept)
    return replace(section, columns=columns, rows=[[row[number] for number in kept] for row in section.rows])


def summary(report: FleetReport) -> list[tuple[str, str]]:
    """What one reads first: name and value."""
    costs = report.costs
    lost, price = sum(costs.lost_gpu_hours.values()), costs.gpu_hour_price
    money = "" if costs.lost_money is None else f", {costs.lost_money:,.0f} at {price:g} for a GPU-hour"
    mtbf = costs.interrupted.mtbf_hours
    idle = "" if costs.spares.idle_money is None else f", {costs.spares.idle_money:,.0f}"
    begins = [("records begin", f"{date(costs.since)}: rates are from then on")] if costs.since > report.since else []
    return [
        *begins,
        ("interruptions", f"{costs.interrupted.unexpected} unexpected, {costs.interrupted.planned} planned"),
        ("mean time between interruptions", "none happened" if mtbf is None else f"{mtbf:.3g} h"),
        ("ETTR of all jobs", _percent(costs.ettr)),
        ("goodput", f"{_percent(costs.goodput)} of {costs.gpu_hours:,.1f} GPU-hours"),
        ("lost", f"{lost:,.1f} GPU-hours{money}"),
        ("spares waited", f"{costs.spares.idle_gpu_hours:,.1f} GPU-hours{idle}; gangs took {costs.spares.taken}"),
        ("false alarms", f"{sum(one.false_alarms for one in costs.alarms)} of {_quarantines(costs)} quarantines"),
        ("incidents", f"{sum(one.count for one in report.incidents)} opened, {report.incidents_open} open now"),
        ("recoveries", f"{sum(one.count for one in report.recoveries)} ended"),
        ("gangs stood still", f"{report.seconds_lost / 60:.1f} min in recoveries, from the fault on"),
        ("quarantines", f"{sum(one.count for one in report.quarantines)}"),
        ("what else would have helped", plan_command(costs)),
    ]


def plan_command(costs: FleetCosts) -> str:
    """`understudy plan` with this site's faults and times, for its largest gang."""
    largest = max(costs.jobs, key=lambda one: one.gpus, default=None)
    gpus, nodes = (largest.gpus, largest.nodes) if largest is not None and largest.gpus else (costs.gpus, costs.nodes)
    each = max(1, gpus // nodes) if nodes else 1
    price = f" --gpu-hour-price {costs.gpu_hour_price:g}" if costs.gpu_hour_price is not None else ""
    return f"understudy plan what-if --from-history --gpus {max(1, gpus)} --gpus-per-node {each}{price} --compare"


DIGEST_LISTED = 5


def digest(report: FleetReport) -> list[str]:
    """Lines of a message: the most frequent causes, and the jobs that lost most."""
    lines = [f"{name}: {value}" for name, value in summary(report)]
    causes = [one for one in report.costs.interrupted.causes if one.interruptions][:DIGEST_LISTED]
    lines += [f"interrupted {times(one.interruptions)}: {one.component}" for one in causes]
    lost = [(sum(one.lost_gpu_hours.values()), one) for one in report.costs.jobs[:DIGEST_LISTED]]
    lines += [
        f"job {one.job_id} ({one.name}) of {one.user} lost {hours:,.1f} GPU-hours" for hours, one in lost if hours
    ]
    return lines


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{100 * share:.1f} %"


def _quarantines(costs: FleetCosts) -> int:
    return sum(one.quarantines for one in costs.alarms)


def _all(report: FleetReport) -> Iterator[Section]:
    costs = report.costs
    yield Section(
        "interruptions",
        "Interruptions by cause",
        "Of jobs that asked for Understudy: what ended an attempt. The recovery's incident names the cause; without "
        "one the job's launcher, then Slurm. The share is of those that were not planned; incidents include those that "
        "interrupted no job. Lost: from the fault to the next first step, and steps done again. First starts and slow "
        "steps are not in it.",
        (
            "component",
            "category",
            "interruptions",
            "% of interruptions",
            "MTBF h",
            "incidents",
            "lost GPU-hours",
            "lost money",
        ),
        [
            (
                one.component,
                one.category,
                one.interruptions,
                _share(one.share, one.component),
                one.mtbf_hours,
                one.incidents,
                one.lost_gpu_hours,
                one.lost_money,
            )
            for one in costs.interrupted.causes
        ],
    )
    yield Section(
        "rates",
        "Rates",
        "Of unexpected interruptions, for the time in which the jobs above had nodes.",
        ("rate", "value"),
        _named(
            {
                "interruptions per 1000 node-days": costs.interrupted.per_1000_node_days,
                "GPU-days per interruption": costs.interrupted.gpu_days_per_interruption,
            }
        )
        if costs.interrupted.unexpected
        else [],
    )
    yield Section(
        "hours",
        "Where the GPU-hours went",
        "From a job's first start to its last step: what was not productive has one cause. Detect: from the fault "
        "until it was found. Decide: until a recovery was planned. Swap: until the gang had its nodes. Start and "
        "restore: until its first step. Recompute: steps done again. Slow: what steps took longer than the job's "
        "healthy ones. Held: spares of its own.",
        ("GPU-hours of", "GPU-hours", "%", "money"),
        list(_hours(costs)),
    )
    owner = (
        "jobs",
        "interruptions",
        "GPU-hours",
        "productive",
        *LOSSES,
        "lost money",
        "spares taken",
        "spares' GPU-hours",
        "spares' money",
    )
    for name, rows in (("user", costs.users), ("account", costs.accounts), ("partition", costs.partitions)):
        yield Section(
            f"by_{name}",
            f"By {name}",
            "GPU-hours. Spares' hours: for how long the spares that their gangs got had waited in the pool.",
            (name, *owner),
            [_owner(one) for one in rows],
        )
    yield Section(
        "jobs",
        "By job",
        "GPU-hours. ETTR: productive time of its whole time. Goodput: productive GPU-hours of those held, spares of "
        "its own included.",
        (
            "job",
            "user",
            "name",
            "state",
            "GPUs",
            "interruptions",
            "ETTR %",
            "goodput %",
            "h in the queue",
            "GPU-hours",
            *LOSSES,
            "lost money",
        ),
        [_job(one) for one in costs.jobs],
    )
    yield Section(
        "spares",
        "Spares",
        "Needed so that a spare was free 99 times of 100: by the chance that a node leaves service within a day "
        "(binomial), by the nodes out of service on average (Poisson), and by what was seen. Faults come together and "
        "repairs take long: where the last number is the greatest, it counts.",
        ("spares", "value"),
        _named(
            {
                "taken by gangs": costs.spares.taken,
                "most taken within a day": costs.spares.taken_in_a_day,
                "GPU-hours waited": costs.spares.idle_gpu_hours,
                "GPU-hours waited by spares that a gang then took": costs.spares.served_gpu_hours,
                "money": costs.spares.idle_money,
                "needed at P99, binomial": costs.spares.needed_binomial,
                "needed at P99, Poisson": costs.spares.needed_poisson,
                "needed at P99, by history": costs.spares.needed_by_history,
            }
        ),
    )
    yield Section(
        "outages",
        "Nodes out of service",
        "By the control plane or by administrators; retired nodes are left out.",
        ("measure", "value"),
        _named(_outages(costs)) if costs.outages.count or costs.outages.down_max else [],
    )
    yield Section(
        "lemons",
        "Lemons",
        "Nodes that fail repeatedly, now: the score counts faults of 28 days.",
        ("node", "score"),
        [(one.node, one.score) for one in costs.lemons],
    )
    yield Section(
        "repeaters",
        "Nodes out of service most often",
        "More than once.",
        ("node", "times"),
        [(one.node, one.outages) for one in costs.repeaters],
    )
    yield Section(
        "alarms",
        "False alarms",
        "A quarantine was one where an operator disagreed with it, or where the node passed its validation without a "
        "repair and did not fail again within a week.",
        ("rule", "quarantines", "disagreed", "nothing found", "false alarms"),
        [(one.rule, one.quarantines, one.disagreed, one.nothing_found, one.false_alarms) for one in costs.alarms],
    )
    yield from _records(report)


OPENED = "Opened in this time, by the rule of the finding that opened them."
QUARANTINED = "Decisions that took a node out of service, each time that it happened."
HELD_BACK = "Decisions to do nothing because a guard, the mode or a person held them back."


def _records(report: FleetReport) -> Iterator[Section]:
    counted = (
        ("incidents", "Incidents", OPENED, ("rule", "opened"), report.incidents),
        ("quarantines", "Quarantines", QUARANTINED, ("rule", "number"), report.quarantines),
        ("quarantined", "Nodes quarantined most often", QUARANTINED, ("node", "number"), report.worst_nodes),
        ("held_back", "Held back", HELD_BACK, ("guard", "decisions"), report.held_back),
    )
    recoveries = [(one.kind, one.status, one.count, one.median_seconds) for one in report.recoveries]
    yield Section(
        "recoveries",
        "Recoveries",
        "From the detection of the fault to the end.",
        ("path", "outcome", "number", "median s"),
        recoveries,
    )
    for name, title, note, columns, counts in counted:
        yield Section(name, title, note, columns, [(one.name, one.count) for one in counts])
    yield Section(
        "observed",
        "Only observed",
        "Decisions that were not carried out, and how often people agreed.",
        ("rule", "cases", "agreed", "disagreed"),
        [(one.rule, one.cases, one.agreed, one.disagreed) for one in report.observed],
    )


def _share(share: float, component: str) -> float | None:
    return None if component == PEOPLE.component else 100 * share


def _named(values: Mapping[str, Cell]) -> list[tuple[Cell, ...]]:
    """Those that are known."""
    return [(name, value) for name, value in values.items() if value is not None]


def _hours(costs: FleetCosts) -> Iterator[tuple[Cell, ...]]:
    if not costs.gpu_hours:
        return
    rest = costs.gpu_hours - costs.productive_gpu_hours - sum(costs.lost_gpu_hours.values())
    parts = {"productive": costs.productive_gpu_hours, **costs.lost_gpu_hours, "held": max(rest, 0.0)}
    for name, hours in parts.items():
        money = None if costs.gpu_hour_price is None else hours * costs.gpu_hour_price
        yield name, hours, 100 * hours / costs.gpu_hours, money


def _lost(of: JobRow | OwnerRow) -> Iterable[float]:
    return (of.lost_gpu_hours[loss] for loss in LOSSES)


def _owner(one: OwnerRow) -> tuple[Cell, ...]:
    begin = (one.name or "not known", one.jobs, one.interruptions, one.gpu_hours, one.productive_gpu_hours)
    spares = (one.spares_taken, one.spare_gpu_hours, one.spare_money)
    return (*begin, *_lost(one), one.lost_money, *spares)


def _job(one: JobRow) -> tuple[Cell, ...]:
    shares = [None if share is None else 100 * share for share in (one.ettr, one.goodput)]
    begin = (str(one.job_id), one.user, one.name, one.state, one.gpus, one.interruptions)
    return (*begin, *shares, one.queue_hours, one.gpu_hours, *_lost(one), one.lost_money)


def _outages(costs: FleetCosts) -> dict[str, Cell]:
    found = costs.outages
    return {
        "began": found.count,
        "repair, mean h": _in_hours(found.repair_mean_seconds),
        "repair, median h": _in_hours(found.repair_median_seconds),
        "repair, P90 h": _in_hours(found.repair_p90_seconds),
        "nodes out of service, mean": found.down_mean,
        "nodes out of service, most": found.down_max,
        **{f"again within {one.days:g} days, %": 100 * one.share for one in found.failed_again},
        "on the worst 5 % of nodes, %": 100 * found.worst_nodes_share,
    }


def _in_hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 3600
