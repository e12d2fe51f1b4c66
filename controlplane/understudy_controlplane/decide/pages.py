"""A person is paged for what needs one, for failed detectors, and for what other systems of the site announce."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from understudy_controlplane.config import SignalEffect
from understudy_controlplane.decide import guards
from understudy_controlplane.decide.decision_context import Entered, Round
from understudy_controlplane.decide.needs import SHOWN_MAX, shown
from understudy_controlplane.decide.table import Row
from understudy_controlplane.fleet.decision import Because, Decision
from understudy_controlplane.fleet.durations import DAY_SECONDS, WEEK_SECONDS
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import DetectorDetail, Finding, Signal
from understudy_controlplane.fleet.need import Need, NeedKind
from understudy_controlplane.fleet.recovery import PagePlan, RecoveryKind, StepName, page_key
from understudy_controlplane.fleet.site_signal import signal_subject
from understudy_controlplane.fleet.snapshot import Snapshot

SIGNALS = {
    NeedKind.HELD_BACK: Signal.HELD_BACK,
    NeedKind.NODE_LEFT: Signal.LEFT_BY_SLURM,
    NeedKind.GANG_UNHEARD: Signal.GANG_UNHEARD,
    NeedKind.DOMAIN_DOWN: Signal.DOMAIN_DOWN,
    NeedKind.GANG_NOT_BACK: Signal.GANG_NOT_BACK,
}
"""Notice that pages a person for a need; the other needs use PERSON_NEEDED."""

WHYS_MAX = 3
"""Subjects of a page that it explains; it names the others."""


NOTIFIED_OTHERWISE = frozenset({NeedKind.BREAKER, NeedKind.APPROVAL})
"""Needs that are notified as they come: `decide/notices.py`."""

AGAIN_SECONDS = {
    NeedKind.GANG_STAYS: DAY_SECONDS,
    NeedKind.GANG_PENDS: DAY_SECONDS,
    NeedKind.GANG_UNHEARD: WEEK_SECONDS,
    NeedKind.GANG_SLOW: WEEK_SECONDS,
    NeedKind.GANG_NOT_BACK: 0.0,
    NeedKind.DOMAIN_DOWN: 0.0,
}
"""Needs that page no person again for the same subject: its owner may restart a job as often as they like. A domain
that fails again is paged at once.
"""

SAME_ROUND_SECONDS = 60.0
"""A page that is sent at once is decided before the incident is written down."""

DETECTORS_DOWN = "detection.down"
SITE_WARNING = "signal.warning"


def persons_needed(current: Round, needs: Iterable[Need]) -> Iterator[Finding]:
    """One for all needs of a kind that are due in this round. In a pause a person is at work, and what still waits
    after it is found then.
    """
    snapshot = current.snapshot
    if snapshot.operator.paused or guards.object_to_operator(snapshot) is not None:
        return
    due: dict[NeedKind, list[Need]] = {}
    for one in needs:
        if one.is_urgent(snapshot.now) and one.kind not in NOTIFIED_OTHERWISE and not _is_paged_for(snapshot, one):
            due.setdefault(one.kind, []).append(one)
    for kind, found in due.items():
        about = tuple(one.subject for one in found)
        rest = f"; and {shown(about[WHYS_MAX:])}" if len(about) > WHYS_MAX else ""
        words = f"{'; '.join(map(str, found[:WHYS_MAX]))}{rest}"
        evidence = Evidence({"kind": kind.value, "about": [*about], "since": [one.since for one in found]})
        signal = SIGNALS.get(kind, Signal.PERSON_NEEDED)
        yield Finding(signal, rule_of(kind), "", snapshot.now, words, evidence, nodes=about)


def rule_of(kind: NeedKind) -> str:
    return f"needs.{kind.value}"


def _is_paged_for(snapshot: Snapshot, need: Need) -> bool:
    seconds = AGAIN_SECONDS.get(need.kind)
    since = need.since - SAME_ROUND_SECONDS if seconds is None else min(need.since, snapshot.now - seconds)
    return _is_paged(snapshot, rule_of(need.kind), need.subject, since)


def detectors_down(current: Round, findings: Sequence[Finding]) -> Iterator[Finding]:
    """One for all detectors that failed and of which a person was not notified within a day."""
    snapshot = current.snapshot
    if guards.object_to_operator(snapshot) is not None:
        return
    due = {
        one.detail.label: one
        for one in findings
        if isinstance(one.detail, DetectorDetail)
        and not _is_paged(snapshot, DETECTORS_DOWN, one.detail.label, snapshot.now - DAY_SECONDS)
    }
    if due:
        words = "; ".join(one.summary for one in due.values())
        yield Finding(Signal.DETECTORS_DOWN, DETECTORS_DOWN, "", snapshot.now, words, nodes=(*due,))


def warnings_of_site(current: Round) -> Iterator[Finding]:
    """One for all signals of which a person has to know, and that came since a person was notified last."""
    snapshot, policy = current.snapshot, current.config.signals
    if not snapshot.signals or guards.object_to_operator(snapshot) is not None:
        return
    due = [
        one
        for one in snapshot.signals
        if policy.effect_of(one.kind).includes(SignalEffect.WARN)
        and not _is_paged(snapshot, SITE_WARNING, signal_subject(one.id), one.at - SAME_ROUND_SECONDS)
    ]
    if due:
        texts = [f"{one.words} ({shown(one.targets)})" for one in due[:SHOWN_MAX]]
        more = f"; and {len(due) - SHOWN_MAX} more" if len(due) > SHOWN_MAX else ""
        nodes = {name for one in due for target in one.targets for name in snapshot.nodes_of(target)}
        words = f"{'; '.join(texts)}{more}. {_gangs_there(snapshot, nodes)}"
        about = tuple(signal_subject(one.id) for one in due)
        evidence = Evidence({"signals": [one.id for one in due], "targets": [t for one in due for t in one.targets]})
        yield Finding(Signal.SITE_WARNING, SITE_WARNING, "", snapshot.now, words, evidence, nodes=about)


def _gangs_there(snapshot: Snapshot, nodes: Set[str]) -> str:
    jobs = [job for job in snapshot.jobs.values() if job.managed and not job.slurm.ended]
    there = [f"job {job.key.job_id}" for job in jobs if not nodes.isdisjoint(job.slurm.nodes)]
    if not there:
        return "No managed gang runs there"
    return (
        f"Gangs there: {shown(there)}. In the modes approve and act those save a checkpoint now whose training asks "
        "when to; for others ask the owner, or move them with `understudy job move JOB REASON --at-checkpoint --off "
        "NODES`"
    )


def page(current: Round, entered: Sequence[Entered]) -> list[Decision]:
    return [_page(current.snapshot, *one) for one in entered]


def _page(snapshot: Snapshot, row: Row, finding: Finding) -> Decision:
    label = f"{page_key(finding.rule, finding.nodes[0]).replace(' ', '-')}-{int(snapshot.now)}"
    return Decision(
        row=row.number,
        subject=finding.label,
        action=row.action,
        because=Because.RULE,
        reason=f"{finding.summary}; {row.why}",
        finding=finding,
        evidence=finding.evidence,
        plan=PagePlan(
            steps=(StepName.OPEN_TICKET,),
            about=finding.nodes,
            reason=finding.summary,
            label=label,
            rule=finding.rule,
        ),
    )


def _is_paged(snapshot: Snapshot, rule: str, subject: str, since: float) -> bool:
    key = page_key(rule, subject)
    sent = (one for one in snapshot.history.attempts if one.kind is RecoveryKind.PAGE and one.node == key)
    return any(one.at >= since for one in sent)
