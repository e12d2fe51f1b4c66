"""Gangs that their launchers have restarted by themselves: an incident, and what it cost for the job's time limit."""

from __future__ import annotations

from collections.abc import Sequence

from understudy_controlplane.config import Config
from understudy_controlplane.decide import guards, plans
from understudy_controlplane.decide.decision_context import Entered, Round
from understudy_controlplane.decide.table import Row
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, LaunchDetail
from understudy_controlplane.fleet.recovery import LauncherRestartPlan
from understudy_controlplane.fleet.snapshot import Snapshot


def restarted(current: Round, entered: Sequence[Entered]) -> list[Decision]:
    return [_restarted(current, *one) for one in entered]


def _restarted(current: Round, row: Row, finding: Finding) -> Decision:
    snapshot = current.snapshot
    assert finding.job is not None
    plan = _credit(snapshot, finding, current.config)
    objection = (
        guards.object_to_any(snapshot, finding)
        or guards.object_to_rule(finding, current.config)
        or guards.object_to_paused_job(snapshot, finding.job)
    )
    because, words = Because.RULE, row.why
    if plan is None:
        words = "its launcher has dealt with it, and no time is credited"
    elif objection is not None:
        plan, because, words = None, objection.because, f"no time is credited, because {objection.words}"
    return Decision(
        row=row.number,
        subject=finding.label,
        action=row.action if plan is not None else Action.NOTHING,
        because=because,
        reason=f"{finding.summary}: {words}",
        finding=finding,
        evidence=finding.evidence,
        opens_incident=True,
        plan=plan,
    )


def _credit(snapshot: Snapshot, finding: Finding, config: Config) -> LauncherRestartPlan | None:
    """None: the site credits no time, or no more of it; the job has no limit; or a recovery of the gang is under way,
    which credits this, too.
    """
    assert finding.job is not None
    assert isinstance(finding.detail, LaunchDetail)
    job = snapshot.jobs[finding.job]
    credit = plans.credit_minutes(snapshot, job, config)
    if job.slurm.time_limit_minutes is None or not credit or snapshot.recovery_of(finding.job) is not None:
        return None
    return plans.launcher_restart_plan(snapshot, job, finding.at, finding.detail.launch, credit)
