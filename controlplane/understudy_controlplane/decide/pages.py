"""A person is notified of what waits for long: faults that a guard holds back, nodes that Slurm keeps out, gangs whose
ranks do not report after a restart, and slow gangs of which it is not known what a move would cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from understudy_controlplane.config import Config, NoSpare, SignalEffect
from understudy_controlplane.decide import guards
from understudy_controlplane.decide.repair_cycle import AWAY, attempts_by_node, is_back_from_outage
from understudy_controlplane.decide.round import Entered, Round
from understudy_controlplane.decide.table import Row
from understudy_controlplane.detect.hang import all_report
from understudy_controlplane.detect.slowness_cost import START_SECONDS_MAX
from understudy_controlplane.detect.straggler import NOT_PRICED
from understudy_controlplane.fleet.decision import Because, Decision
from understudy_controlplane.fleet.evidence import Evidence, Json
from understudy_controlplane.fleet.finding import HANGS, DetectorDetail, Finding, Signal
from understudy_controlplane.fleet.incident import BLOCK_FABRIC, DOMAIN_SILENT, PORT_DOWN
from understudy_controlplane.fleet.node import HELD_BY_PEOPLE, NodeState, NodeView
from understudy_controlplane.fleet.recovery import PagePlan, PoolSwapPlan, RecoveryKind, StepName
from understudy_controlplane.fleet.site_signal import signal_subject
from understudy_controlplane.fleet.slurm import SlurmJob
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import SubjectKind

HOLDING = frozenset(
    {
        Because.FLEET_BUDGET,
        Because.HOURLY_BUDGET,
        Because.RULE_BUDGET,
        Because.DOMAIN_BUDGET,
        Because.MOVE_BUDGET,
        Because.JOB_BUDGET,
        Because.RESTART_BUDGET,
        Because.REPAIR_BUDGET,
        Because.BREAKER,
        Because.MASS_SILENCE,
        Because.MASS_HANG,
        Because.NO_SPARE,
        Because.PARTITION_DOWN,
    }
)
"""Not the mode, a pause, and a rule that only observes: a person has chosen those."""

LABELS = {
    Signal.HELD_BACK: "held",
    Signal.LEFT_BY_SLURM: "left",
    Signal.GANG_UNHEARD: "unheard",
    Signal.GANG_NOT_BACK: "not-back",
    Signal.GANG_STAYS_SLOW: "slow",
    Signal.DOMAIN_DOWN: "domain",
    Signal.SITE_WARNING: "signal",
    Signal.DETECTORS_DOWN: "detectors",
}
"""How the labels of tickets begin."""

SHOWN_MAX = 8

DAY_SECONDS = 24 * 3600.0

SAME_ROUND_SECONDS = 60.0
"""A page that is sent at once is decided before the incident is written down."""


def held_back(current: Round, decisions: Sequence[Decision]) -> Iterator[Finding]:
    """One for all that is due in this round. What a person was notified of is not repeated for a week."""
    snapshot = current.snapshot
    if _is_silenced(snapshot):
        return
    due = [one for one in decisions if _is_due(snapshot, one, current.config)]
    if due:
        about = tuple(dict.fromkeys(one.subject for one in due))
        causes = sorted({one.because.value for one in due} - {Because.RULE.value})
        by = f" by {', '.join(causes)}" if causes else ""
        words = (
            f"held back{by}: {_shown(about)}. {due[0].reason}. `understudy explain node NODE` or `understudy explain "
            "job JOB` says what ends that"
        )
        evidence = Evidence({"held_back": [*about], "because": [*causes]})
        yield Finding(Signal.HELD_BACK, "guards.held_back", "", snapshot.now, words, evidence, nodes=about)


def _is_silenced(snapshot: Snapshot) -> bool:
    """In a pause a person is at work, and what is still so after it is found then."""
    return bool(snapshot.paused) or guards.object_to_operator(snapshot) is not None


def left_by_slurm(current: Round) -> Iterator[Finding]:
    """One for all nodes that are due, such as a rack that has lost its power for a moment."""
    snapshot = current.snapshot
    if _is_silenced(snapshot):
        return
    long_ago = snapshot.now - current.config.guards.page_after_seconds
    tried = attempts_by_node(snapshot)
    due = {
        node.name: node.slurm.reason
        for node in snapshot.nodes.values()
        if node.slurm is not None
        and (since := _left_since(node)) is not None
        and since <= long_ago
        and not _is_paged(snapshot, node.name, since)
        and not is_back_from_outage(snapshot, node, tried.get(node.name, ()), current.config)
    }
    if due:
        reasons = sorted(set(due.values()))
        words = (
            f"Slurm has taken {_shown([*due])} out of service ({'; '.join(reasons[:SHOWN_MAX])}) and keeps them out: "
            "find the cause, then return each with `scontrol update nodename=NAME state=resume`"
        )
        evidence = Evidence({"nodes": [*due], "reasons": [*reasons]})
        yield Finding(Signal.LEFT_BY_SLURM, "slurm.left", "", snapshot.now, words, evidence, nodes=tuple(due))


def _left_since(node: NodeView) -> float | None:
    """None: Slurm itself has not taken it out of service, or it does not answer."""
    if node.slurm is None:
        return None
    if node.state is NodeState.FOREIGN_DRAIN:
        return node.record.since if node.slurm.left_by_slurm else None
    return node.out_since if node.slurm.out_after_outage and node.state in AWAY else None


def unheard(current: Round) -> Iterator[Finding]:
    """One for all gangs that are due, such as those restarted on nodes whose fabric port was down. Once for each job:
    its owner may restart it as often as they like.
    """
    snapshot = current.snapshot
    if _is_silenced(snapshot):
        return
    long_ago = snapshot.now - current.config.hang.first_step_seconds
    due = [
        key
        for key, since in snapshot.unheard_gangs.items()
        if _running_since(snapshot, since) <= long_ago
        and key not in snapshot.paused_jobs
        and all_report(snapshot.jobs[key].slurm.nodes, snapshot, current.config.silence)
        and not _is_paged(snapshot, f"job {key.job_id}", key.submit_at)
    ]
    if due:
        about = tuple(f"job {key.job_id}" for key in due)
        words = (
            f"no rank of {_shown(about)} has reported since it was restarted, for more than "
            f"{current.config.hang.first_step_seconds:.0f} s, though its ranks did before: look at its output, and "
            "restart it with `scontrol requeue JOBID`"
        )
        evidence = Evidence({"jobs": [*about], "since": [snapshot.unheard_gangs[key] for key in due]})
        yield Finding(Signal.GANG_UNHEARD, "hang.unheard", "", snapshot.now, words, evidence, nodes=about)


def stays_slow(current: Round, findings: Sequence[Finding]) -> Iterator[Finding]:
    """One for all gangs that have lost as much by a slow GPU as a start may take, and announce no checkpoints. Once for
    each job.
    """
    snapshot = current.snapshot
    if _is_silenced(snapshot):
        return
    due = {
        f"job {one.job.job_id}": one
        for one in findings
        if one.rule == NOT_PRICED
        and one.job is not None
        and one.lost_seconds >= START_SECONDS_MAX
        and one.job not in snapshot.paused_jobs
        and not _is_paged(snapshot, f"job {one.job.job_id}", one.job.submit_at)
    }
    if due:
        shown = [f"{label} on {one.node}: {one.summary}" for label, one in [*due.items()][:SHOWN_MAX]]
        words = (
            f"{'; '.join(shown)}. Ask its owner whether it has saved its work: `understudy job move JOB REASON --off "
            "NODE` moves it"
        )
        evidence = Evidence({"jobs": [*due], "nodes": [one.node for one in due.values()]})
        yield Finding(Signal.GANG_STAYS_SLOW, NOT_PRICED, "", snapshot.now, words, evidence, nodes=(*due,))


def _running_since(snapshot: Snapshot, started_at: float) -> float:
    """`started_at` is Slurm's time. One that is to come was there before the clocks were set back."""
    since = started_at - snapshot.slurm_ahead_seconds
    return max(since, snapshot.started_at) if since <= snapshot.now else snapshot.started_at


def not_back(current: Round) -> Iterator[Finding]:
    """One for each gang whose attempt was ended for a move that has failed since, and that pends, or was lost."""
    snapshot = current.snapshot
    if guards.object_to_operator(snapshot) is not None:
        return
    for recovery in snapshot.lost_gangs:
        job = snapshot.jobs.get(recovery.plan.job) if isinstance(recovery.plan, PoolSwapPlan) else None
        if job is None or not job.managed or snapshot.recovery_of(job.key) is not None:
            continue
        about, ended_at = f"job {job.key.job_id}", recovery.ended_at or 0.0
        words = _why_not_back(job.slurm, ended_at + snapshot.slurm_ahead_seconds)
        if words and not _is_paged(snapshot, about, ended_at, before_seconds=0.0):
            words = f"{about} is not back: {words}. Recovery {recovery.id} failed: {recovery.outcome}"
            evidence = Evidence({"job": about, "recovery": recovery.id})
            yield Finding(Signal.GANG_NOT_BACK, "recovery.failed", "", snapshot.now, words, evidence, nodes=(about,))


def _why_not_back(job: SlurmJob, ended_at: float) -> str:
    """And what a person can do; empty: it runs, its owner has ended it, or that came later than the failure."""
    number, until = job.job_id, ended_at + SAME_ROUND_SECONDS
    if job.pending and job.submit_at <= until:
        return (
            f"it waits in Slurm's queue ({job.reason or 'no reason given'}) and holds no nodes any more. Find what it "
            f"waits for with `scontrol show job {number}`, and free that or raise the limit; `scontrol top {number}` "
            "puts it before its owner's other jobs"
        )
    lost = job.ended and job.state not in ("COMPLETED", "CANCELLED") and (job.end_at or 0) <= until
    if not lost:
        return ""
    return f"Slurm shows it as {job.state}. `scontrol requeue {number}` starts it again, from its newest checkpoint"


def domains_down(current: Round) -> Iterator[Finding]:
    """One for all domains that failed as a whole since a person was notified last."""
    snapshot = current.snapshot
    if _is_silenced(snapshot):
        return
    seconds = current.config.silence.domain_wait_seconds
    advice = {
        DOMAIN_SILENT: "look at power, cooling and switches there. Gangs leave for spares where it is not back "
        f"{seconds:g} s after it fell silent",
        BLOCK_FABRIC: "look at its NVLink switches and their manager. No spare is taken from there meanwhile; "
        "gangs leave only nodes for which the driver reported a fatal NVLink error",
        PORT_DOWN: "look at the switch there and at what manages it. No spare is taken from there meanwhile; gangs "
        f"that hang leave for spares where the ports are not back {seconds:g} s after that was found",
    }
    due = [
        incident
        for subject, incident in snapshot.incidents.items()
        if subject.kind is SubjectKind.DOMAIN
        and incident.rule in advice
        and not _is_paged(snapshot, subject.name, incident.opened_at, before_seconds=0.0)
    ]
    if due:
        words = "; ".join(
            f"{'; '.join(found)}: {advice[rule]}"
            for rule in sorted(advice)
            if (found := [one.summary for one in due if one.rule == rule])
        )
        nodes: list[Json] = [name for one in due for name in one.nodes]
        about = tuple(dict.fromkeys(one.subject.name for one in due))
        yield Finding(
            Signal.DOMAIN_DOWN, DOMAIN_SILENT, "", snapshot.now, words, Evidence({"nodes": nodes}), nodes=about
        )


def detectors_down(current: Round, findings: Sequence[Finding]) -> Iterator[Finding]:
    """One for all detectors that failed and of which a person was not notified within a day."""
    snapshot = current.snapshot
    if guards.object_to_operator(snapshot) is not None:
        return
    due = {
        one.detail.label: one
        for one in findings
        if isinstance(one.detail, DetectorDetail)
        and not _is_paged(snapshot, one.detail.label, snapshot.now - DAY_SECONDS)
    }
    if due:
        words = "; ".join(one.summary for one in due.values())
        yield Finding(Signal.DETECTORS_DOWN, "detection.down", "", snapshot.now, words, nodes=(*due,))


def warnings_of_site(current: Round) -> Iterator[Finding]:
    """One for all signals of which a person has to know, and that came since a person was notified last."""
    snapshot, policy = current.snapshot, current.config.signals
    if not snapshot.signals or guards.object_to_operator(snapshot) is not None:
        return
    due = [
        one
        for one in snapshot.signals
        if policy.effect_of(one.kind).includes(SignalEffect.WARN)
        and not _is_paged(snapshot, signal_subject(one.id), one.at)
    ]
    if due:
        shown = [f"{one.words} ({_shown(one.targets)})" for one in due[:SHOWN_MAX]]
        more = f"; and {len(due) - SHOWN_MAX} more" if len(due) > SHOWN_MAX else ""
        nodes = {name for one in due for target in one.targets for name in snapshot.nodes_of(target)}
        words = f"{'; '.join(shown)}{more}. {_gangs_there(snapshot, nodes)}"
        about = tuple(signal_subject(one.id) for one in due)
        evidence = Evidence({"signals": [one.id for one in due], "targets": [t for one in due for t in one.targets]})
        yield Finding(Signal.SITE_WARNING, "signal.warning", "", snapshot.now, words, evidence, nodes=about)


def _gangs_there(snapshot: Snapshot, nodes: Set[str]) -> str:
    jobs = [job for job in snapshot.jobs.values() if job.managed and not job.slurm.ended]
    there = [f"job {job.key.job_id}" for job in jobs if not nodes.isdisjoint(job.slurm.nodes)]
    if not there:
        return "No managed gang runs there"
    return (
        f"Gangs there: {_shown(there)}. In the modes approve and act those save a checkpoint now whose training asks "
        "when to; for others ask the owner, or move them with `understudy job move JOB REASON --at-checkpoint --off "
        "NODES`"
    )


def page(current: Round, entered: Sequence[Entered]) -> list[Decision]:
    return [_page(current.snapshot, *one) for one in entered]


def _page(snapshot: Snapshot, row: Row, finding: Finding) -> Decision:
    label = f"{LABELS[finding.signal]}-{finding.nodes[0].replace(' ', '-')}-{int(snapshot.now)}"
    return Decision(
        row=row.number,
        subject=finding.label,
        action=row.action,
        because=Because.RULE,
        reason=f"{finding.summary}; {row.why}",
        finding=finding,
        evidence=finding.evidence,
        plan=PagePlan(steps=(StepName.OPEN_TICKET,), about=finding.nodes, reason=finding.summary, label=label),
    )


def _is_due(snapshot: Snapshot, decision: Decision, config: Config) -> bool:
    finding = decision.finding
    if finding is None or not (decision.because in HOLDING or finding.signal is Signal.GANG_HUNG_TOGETHER):
        return False
    incident = snapshot.incidents.get(finding.subject)
    hangs = finding.signal in HANGS or finding.signal is Signal.GANG_HUNG_TOGETHER
    since = incident.opened_at if incident is not None else finding.at if hangs else _held_since(snapshot, finding)
    at_once = decision.because is Because.NO_SPARE and config.spares.no_spare is NoSpare.PAGE
    at_once |= decision.because is Because.RULE_BUDGET  # each further hour it is wrong about more nodes
    if snapshot.now - since < (0.0 if at_once else config.guards.page_after_seconds):
        return False
    return not _is_paged(snapshot, decision.subject, since)


def _held_since(snapshot: Snapshot, finding: Finding) -> float:
    """Of a gang that stands on an operator's node, about which there is no incident."""
    node = snapshot.nodes.get(finding.node)
    held = node is not None and node.state in HELD_BY_PEOPLE and finding.signal is Signal.GANG_STRANDED
    return node.record.since if node is not None and held else snapshot.now


def _is_paged(snapshot: Snapshot, subject: str, since: float, *, before_seconds: float = SAME_ROUND_SECONDS) -> bool:
    sent = (one for one in snapshot.attempts if one.kind is RecoveryKind.PAGE and one.node == subject)
    return any(one.at >= since - before_seconds for one in sent)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN_MAX]) + (f", … ({len(names)} in all)" if len(names) > SHOWN_MAX else "")
