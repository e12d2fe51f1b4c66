"""Metrics of the fleet: few series, however many nodes there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from understudy_controlplane.api.exported.metric import Metric, Sample, labels_text
from understudy_controlplane.api.exported.source import Source, counted, one
from understudy_controlplane.config import SignalKind
from understudy_controlplane.decide import spares
from understudy_controlplane.decide.guards import breaker_limit, failures, lately_quarantined, quarantine_limit
from understudy_controlplane.detect.lemon import lemons
from understudy_controlplane.detect.silence import fallen_silent
from understudy_controlplane.fleet.need import NeedKind
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import RecoveryKind, RecoveryStatus
from understudy_controlplane.fleet.slurm import Service
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_wire.hardware import GpuStatus
from understudy_wire.stages import StageName, StageStatus

IN_SERVICE = frozenset({NodeState.IN_SERVICE, NodeState.SUSPECT, NodeState.UNKNOWN, NodeState.PROBATION})

READY = frozenset({NodeState.IN_SERVICE, NodeState.PROBATION})


def _stage_nodes(source: Source) -> Iterator[Sample]:
    for (stage, status), found in source.pulse.stages.items():
        yield labels_text(stage=stage.value, status=status.value), float(found.nodes)


def _stage_seconds(source: Source) -> Iterator[Sample]:
    for stage in dict.fromkeys(stage for stage, _ in source.pulse.stages):
        found = [one for (name, _), one in source.pulse.stages.items() if name is stage]
        yield labels_text(stage=stage.value), sum(one.seconds for one in found) / sum(one.nodes for one in found)


def _out_of_service(source: Source) -> Iterator[Sample]:
    for node in source.nodes:
        if node.state not in IN_SERVICE:
            incident = source.snapshot.incident_of(node.name)
            labels = labels_text(node=node.name, state=node.state.value, rule=incident.rule if incident else "")
            yield labels, max(source.now - node.record.since, 0.0)


def _quarantines(source: Source) -> Iterator[Sample]:
    for name, times in source.snapshot.history.quarantined_at.items():
        yield labels_text(node=name), float(len(times))


def _never_heard(source: Source) -> int:
    return sum(node.service not in (None, Service.AWAY) and not node.has_agent for node in source.nodes)


def _spares_ready(source: Source) -> int:
    return sum(node.is_spare and node.state in READY and node.service is Service.USABLE for node in source.nodes)


def _running_jobs(source: Source) -> Counter[str]:
    return Counter("yes" if job.managed else "no" for job in source.snapshot.jobs.values() if job.running)


def _proposals(source: Source) -> int:
    return sum(one.status is RecoveryStatus.AWAITS_APPROVAL for one in source.snapshot.proposals)


def _oldest(source: Source, times: Iterable[float]) -> float:
    return max((source.now - at for at in times), default=0.0)


def _statuses(source: Source) -> Counter[str]:
    ok = sum(len(one.node.gpus) - len(one.unwell) for one in source.gpu_sums)
    return Counter({GpuStatus.OK.value: ok}) + Counter(
        gpu.status.value for one in source.gpu_sums for gpu in one.unwell
    )


FLEET: tuple[Metric[Source], ...] = (
    Metric(
        "nodes",
        "Nodes by state.",
        counted("state", [s.value for s in NodeState], lambda s: Counter(node.state for node in s.nodes)),
        ("state",),
        str(len(NodeState)),
    ),
    Metric("nodes_never_heard", "Nodes of Slurm whose agent has never reported.", one(_never_heard)),
    Metric(
        "nodes_silent",
        "Nodes whose agent reported once and has been silent for some seconds.",
        one(lambda s: len(fallen_silent(s.snapshot, s.config.silence)[0])),
    ),
    Metric(
        "node_out_of_service_seconds",
        "Time for which a node has been in a state in which it does not work; rule: that opened its incident.",
        _out_of_service,
        ("node", "state", "rule"),
        "nodes out of service",
    ),
    Metric(
        "node_quarantines_last_week",
        "Quarantines of a node within seven days.",
        _quarantines,
        ("node",),
        "nodes quarantined within a week",
    ),
    Metric(
        "stage_nodes",
        "Nodes by the last result of each stage of their validations.",
        _stage_nodes,
        ("stage", "status"),
        f"{len(StageName)} x {len(StageStatus)}",
    ),
    Metric(
        "stage_seconds",
        "Time that a stage of a validation took, mean of the nodes' last results.",
        _stage_seconds,
        ("stage",),
        str(len(StageName)),
    ),
    Metric(
        "lemons", "Nodes whose lemon score is over the limit.", one(lambda s: len(lemons(s.snapshot, s.config.lemon)))
    ),
    Metric(
        "spares_wanted",
        "Spares that the pool is to hold: as configured, or as an operator has set.",
        one(lambda s: spares.wanted(s.snapshot, s.config.spares)),
    ),
    Metric("spares_held", "Nodes in the spare pool.", one(lambda s: sum(node.is_spare for node in s.nodes))),
    Metric("spares_ready", "Nodes in the spare pool that a gang could move to now.", one(_spares_ready)),
    Metric(
        "gpus",
        "GPUs that agents reported, by what NVML answered.",
        counted("status", [s.value for s in GpuStatus], _statuses),
        ("status",),
        str(len(GpuStatus)),
    ),
    Metric(
        "jobs_running",
        "Running jobs; managed: they asked for Understudy.",
        counted("managed", ("yes", "no"), _running_jobs),
        ("managed",),
        "2",
    ),
    Metric(
        "recoveries",
        "Recoveries under way.",
        counted(
            "kind", [k.value for k in RecoveryKind], lambda s: Counter(r.plan.kind.value for r in s.snapshot.recoveries)
        ),
        ("kind",),
        str(len(RecoveryKind)),
    ),
    Metric("proposals_waiting", "Recoveries that wait for an operator's approval.", one(_proposals)),
    Metric(
        "recovery_age_seconds",
        "Time since the oldest recovery under way was decided.",
        one(lambda s: _oldest(s, (r.decided_at for r in s.snapshot.recoveries))),
    ),
    Metric(
        "incidents_open",
        "Incidents that are not closed, by their subject.",
        counted(
            "subject", [k.value for k in SubjectKind], lambda s: Counter(i.kind.value for i in s.snapshot.incidents)
        ),
        ("subject",),
        str(len(SubjectKind)),
    ),
    Metric(
        "site_signals",
        "Live signals of other systems of the site.",
        counted("kind", [k.value for k in SignalKind], lambda s: Counter(one.kind for one in s.snapshot.signals)),
        ("kind",),
        str(len(SignalKind)),
    ),
    Metric(
        "needs_person",
        "What waits for a person: `understudy status` names each, and the command that ends it.",
        counted("kind", [k.value for k in NeedKind], lambda s: Counter(one.kind.value for one in s.needs)),
        ("kind",),
        str(len(NeedKind)),
    ),
    Metric(
        "needs_person_urgent",
        "What of it does not wait until the morning.",
        one(lambda s: sum(need.urgent for need in s.needs)),
    ),
    Metric("tickets_open", "Open tickets: work for an administrator.", one(lambda s: len(s.pulse.tickets_opened_at))),
    Metric(
        "ticket_age_seconds",
        "Time since the oldest open ticket was opened.",
        one(lambda s: _oldest(s, s.pulse.tickets_opened_at)),
    ),
    Metric("breaker_open", "1 while the circuit breaker is open.", one(lambda s: bool(s.snapshot.operator.breaker))),
    Metric(
        "breaker_nodes",
        "Nodes quarantined within the circuit breaker's window.",
        one(lambda s: len(failures(s.snapshot, lately_quarantined(s.snapshot, s.config)))),
    ),
    Metric(
        "breaker_limit_nodes",
        "Nodes quarantined within the window above which the circuit breaker opens.",
        one(lambda s: breaker_limit(s.snapshot, s.config)),
    ),
    Metric("nodes_quarantined", "Nodes at fault that count against the limit.", one(lambda s: s.snapshot.quarantined)),
    Metric(
        "quarantine_limit_nodes",
        "Nodes that may be quarantined at once.",
        one(lambda s: quarantine_limit(s.snapshot, s.config)),
    ),
)
