"""What waits for a person: since when, why, and the command that ends it. Pure.

Whatever does not go on by itself is in this list: a node that no repair returns, a gang that stands still, a pool that
stays short, a guard that holds back, an incident that nothing ends. `understudy status`, the dashboard, metrics, alerts
and pages are views of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from understudy_controlplane.config import Config, Mode, NoSpare, SignalEffect, least
from understudy_controlplane.decide import guards, rule_budget, spares
from understudy_controlplane.decide.leadership import WORDS_SECONDS
from understudy_controlplane.decide.repair_cycle import AWAY, attempts_by_node, is_back_from_outage, waits_for_slurm
from understudy_controlplane.detect.hang import all_report, silent_patience_seconds, waits_for_work, working_ranks
from understudy_controlplane.detect.processes import in_words
from understudy_controlplane.detect.silence import fallen_silent, is_mass_silence
from understudy_controlplane.detect.slowness_cost import START_SECONDS_MAX
from understudy_controlplane.detect.stopped import fault_behind, is_down, leaves_it_to_slurm
from understudy_controlplane.detect.straggler import NOT_PRICED
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.custody import Holder, kept_down
from understudy_controlplane.fleet.decision import Because, Decision, Stays
from understudy_controlplane.fleet.finding import HANGS, Finding, Signal
from understudy_controlplane.fleet.incident import BLOCK_FABRIC, DOMAIN_SILENT, PORT_DOWN, OpenIncident
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.need import Need, NeedKind
from understudy_controlplane.fleet.node import (
    HELD_BY_PEOPLE,
    IN_REPAIR,
    OUT_OF_SERVICE,
    REASON_PREFIX,
    NodeState,
    NodeView,
)
from understudy_controlplane.fleet.part_modes import not_in_slurm
from understudy_controlplane.fleet.recovery import (
    DrainPlan,
    PoolSwapPlan,
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    RepairAttempt,
    StepName,
    StepStatus,
    SwapPlan,
    job_of,
)
from understudy_controlplane.fleet.slurm import INVALID_REG, POOL_USER, Service, SlurmJob
from understudy_controlplane.fleet.snapshot import LEFT_SECONDS, Snapshot
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
        Because.CANCELLED,
    }
)
"""Not the mode, a pause, and a rule that only observes: a person has chosen those, and sees that they are in force."""

ENDS_WITH_OTHERS = frozenset({Because.MOVE_BUDGET, Because.REPAIR_BUDGET})
"""Budgets that are free again as soon as other moves or repairs have ended."""

MASS_SILENCE_SECONDS = 120.0
"""A switch or the control plane's host is back from a reboot by then. Meanwhile no gang that loses a node is moved."""

SILENT_SECONDS = 300.0
"""An agent's upgrade or a node's reboot takes less."""

SETTLES_SECONDS = 60.0
"""Time in which a drain is read back, and a spare that was taken is replaced."""

PENDS_SECONDS = 300.0
"""A requeued gang starts within Slurm's own two minutes of delay where it can start at all."""

GIVES_UP_SHARE = 5 / 3
"""Slurm gives up a node that died after SlurmdTimeout, or after so much of it: it asks each in turn (ping_nodes.c)."""

NEVER_HEARD_SECONDS = 3600.0
"""Agents are being installed."""

SHOWN_MAX = 8

EFFECTS = {
    RecoveryKind.POOL_SWAP: "move {job} off {nodes} to a spare of the pool",
    RecoveryKind.ALLOCATION_SWAP: "move {job} off {nodes} to a spare of its allocation",
    RecoveryKind.LAUNCHER_RESTART: "credit {job} the time of its restart",
    RecoveryKind.QUARANTINE: "take {nodes} out of service",
    RecoveryKind.FILL_POOL: "add {nodes} to the spare pool",
    RecoveryKind.LEAVE_POOL: "take {nodes} out of the spare pool",
    RecoveryKind.RELEASE_JOB: "start {job} on other nodes",
    RecoveryKind.DELETE_SEATS: "delete the reservation of {job}",
    RecoveryKind.REPAIR: "repair {nodes}",
    RecoveryKind.VALIDATE: "test {nodes}",
    RecoveryKind.MANUAL_REPAIR: "ask an administrator to repair {nodes}",
    RecoveryKind.RETURN: "return {nodes} to service",
    RecoveryKind.TAKE_BACK: "drain {nodes} again",
    RecoveryKind.LET_GO: "give {nodes} up to an administrator",
    RecoveryKind.PAGE: "notify a person",
    RecoveryKind.RESTORE_WEIGHT: "end the probation of {nodes}",
}
"""What a recovery of each kind does."""
RESTART = "restart {job}"

EXPLAIN = "`understudy explain {kind} {name}` shows what ends that"


def needs(
    snapshot: Snapshot, decisions: Sequence[Decision], config: Config, findings: Sequence[Finding] = ()
) -> tuple[Need, ...]:
    """`decisions`, `findings`: of this round. In the order of their kinds, the oldest of a kind first."""
    moving = {job_of(one.plan) for one in decisions if one.plan}
    moving |= {job_of(one.plan) for one in snapshot.recoveries if not leaves_it_to_slurm(one)}
    found: dict[str, Need] = {}
    for one in (
        *_other_leader(snapshot),
        *_agents(snapshot, config),
        *_breaker(snapshot),
        *_of_decisions(snapshot, decisions, config),
        *_not_back(snapshot, moving),
        *_held_by_slurm(snapshot, moving),
        *_pending(snapshot, moving),
        *_unheard(snapshot, config),
        *_without_a_step(snapshot, findings, moving, config),
        *_slow(snapshot, findings),
        *_approvals(snapshot),
        *_domains(snapshot, config),
        *_budget(snapshot, config),
        *_site_warnings(snapshot, config),
        *_nodes_out(snapshot, config),
        *_left_by_slurm(snapshot, config),
        *_miscounted(snapshot),
        *_pool(snapshot, config),
        *_occupied(snapshot),
        *_drills(snapshot),
        *_modes_of_no_node(snapshot, config),
        *_never_heard(snapshot),
    ):
        found.setdefault(one.key, one)
    for one in _incidents(snapshot, found):
        found.setdefault(one.key, one)
    order = list(NeedKind)
    return tuple(
        sorted(found.values(), key=lambda one: (order.index(one.kind), one.since, spares.natural(one.subject)))
    )


def shown(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN_MAX]) + (f", … ({len(names)} in all)" if len(names) > SHOWN_MAX else "")


def _first_seen(snapshot: Snapshot, kind: NeedKind, subject: str, at: float | None = None) -> float:
    """What has no time of its own began when a round showed it first; `at`: where no round has since the start."""
    return snapshot.round.waiting_since.get(f"{kind.value} {subject}", snapshot.now if at is None else at)


def named(job: Job) -> str:
    """Name that its owner and an administrator know."""
    return f"job {job.key.job_id} ({job.slurm.name}) of {job.slurm.user}"


# -- the control plane sees too little --------------------------------------------------------------------------------


def _agents(snapshot: Snapshot, config: Config) -> Iterator[Need]:
    fallen, watched = fallen_silent(snapshot, config.silence)
    if not fallen:
        return
    names = sorted(fallen, key=spares.natural)
    if is_mass_silence(len(fallen), watched, config.silence):
        enough = next(n for n in range(1, len(fallen) + 1) if is_mass_silence(n, watched, config.silence))
        why = (
            f"{len(fallen)} of {watched} agents are silent ({shown(names)}): the cause is most likely the control "
            "plane's own network or host, so it takes no node out of service and moves no gang until they report again"
        )
        command = (
            f"`ping {names[0]}` from the control plane's host and `systemctl status understudy-agent` there show where "
            "the reports stop"
        )
        since = sorted(fallen.values())[enough - 1]
        seconds = MASS_SILENCE_SECONDS
        yield Need(NeedKind.AGENTS_SILENT, "fleet", since, why, command, seconds, page_seconds=seconds)
        return
    for name in names:
        why = f"the agent of {name} is silent: faults there are seen late, or not at all"
        command = f"`systemctl status understudy-agent` on {name}"
        yield Need(NeedKind.NODE_SILENT, name, fallen[name], why, command, SILENT_SECONDS)


def _never_heard(snapshot: Snapshot) -> Iterator[Need]:
    names = [node.name for node in snapshot.notable if not node.has_agent and node.service not in (None, Service.AWAY)]
    if names:
        kind = NeedKind.NEVER_HEARD
        names.sort(key=spares.natural)
        why = f"no agent has ever reported from {shown(names)}: faults there are not seen"
        command = "`systemctl status understudy-agent` there"
        yield Need(kind, "fleet", _first_seen(snapshot, kind, "fleet"), why, command, NEVER_HEARD_SECONDS)


def _other_leader(snapshot: Snapshot) -> Iterator[Need]:
    """Too few agents report it to stop for it: one of them may be wrong, or lie."""
    other, kind = snapshot.other_leader, NeedKind.CONTROL_PLANE
    if other is not None and not other.is_believed:
        since = _first_seen(snapshot, kind, "control plane")
        yield Need(kind, "control plane", since, other.words, patience_seconds=2 * WORDS_SECONDS)


def _breaker(snapshot: Snapshot) -> Iterator[Need]:
    if snapshot.operator.breaker:
        kind = NeedKind.BREAKER
        why = f"the circuit breaker is open: {snapshot.operator.breaker}"
        command = "`understudy breaker show` names the nodes; `understudy breaker reset REASON` closes it"
        yield Need(kind, "fleet", _first_seen(snapshot, kind, "fleet"), why, command, page_seconds=0.0)


# -- decisions that do nothing ----------------------------------------------------------------------------------------


def _of_decisions(snapshot: Snapshot, decisions: Sequence[Decision], config: Config) -> Iterator[Need]:
    for one in decisions:
        signal = one.finding.signal if one.finding is not None else None
        job = snapshot.jobs.get(one.stays.job) if one.stays is not None else None
        if signal is Signal.NEWCOMER_FAILED:
            continue  # its launcher waits for a minute, and the gang's incident names the node
        if one.stays is not None and job is not None and signal is not Signal.MOVE_ASKED:
            yield _gang_stays(snapshot, one, one.stays, job)
        elif one.because is Because.RULE_BUDGET and one.finding is not None:
            yield _rule_stopped(snapshot, one, one.finding.rule)
        elif one.because in HOLDING or signal is Signal.GANG_HUNG_TOGETHER:
            yield _held_back(snapshot, one, config)


def _gang_stays(snapshot: Snapshot, decision: Decision, stays: Stays, job: Job) -> Need:
    finding = decision.finding
    kind, subject = NeedKind.GANG_STAYS, f"job {job.key.job_id}"
    node = snapshot.nodes.get(finding.node) if finding is not None else None
    since = _first_seen(snapshot, kind, subject)
    if finding is not None and finding.signal in HANGS:
        what, since = f"hangs: {finding.summary}", finding.at
    else:
        since = node.record.since if node is not None and node.record.at_fault else since
        incident = snapshot.incident_of(node.name) if node is not None else None
        fault = f" ({incident.summary})" if incident is not None else ""
        at = (
            f"{node.name}, which is {(decision.to_state or node.state).value}{fault}"
            if node is not None
            else "its nodes"
        )
        what = f"stays on {at}"
    why = f"{named(job)} {what}. Understudy cannot move it: it {stays.why}"
    return Need(kind, subject, since, why, _by_hand(job), page_seconds=0.0)


def _by_hand(job: Job) -> str:
    """Slurm takes `requeue=1` of a running job (`_update_job` of slurmctld): then the control plane moves it."""
    number = job.key.job_id
    if job.slurm.not_alone:
        return f"`scontrol requeue {number}` restarts all of it"
    if job.slurm.batch and not job.slurm.requeue:
        return f"`scontrol update jobid={number} requeue=1` lets Understudy move it, `scancel {number}` ends it"
    if not job.slurm.batch:
        return f"`scancel {number}` ends it; its owner submits it again"
    return f"`scontrol requeue {number}` restarts it, `scontrol show reservation` shows what is reserved"


def _held_back(snapshot: Snapshot, decision: Decision, config: Config) -> Need:
    kind, subject = NeedKind.HELD_BACK, decision.subject
    finding = decision.finding
    incident = snapshot.incidents.get(finding.subject) if finding is not None else None
    hangs = finding is not None and (finding.signal in HANGS or finding.signal is Signal.GANG_HUNG_TOGETHER)
    if incident is not None:
        since = incident.opened_at
    elif hangs and finding is not None:
        since = finding.at
    else:
        since = _held_since(snapshot, decision)
    at_once = decision.because is Because.NO_SPARE and config.spares.no_spare is NoSpare.PAGE
    stands = decision.because is Because.NO_SPARE and finding is not None and finding.dead
    seconds = min(SETTLES_SECONDS, config.guards.page_after_seconds) if stands else config.guards.page_after_seconds
    job = subject.removeprefix("job ") if subject.startswith("job ") else ""
    command = EXPLAIN.format(kind="job" if job else "node", name=job or subject)
    patience = seconds if decision.because in ENDS_WITH_OTHERS else 0.0
    by_person = decision.because is Because.CANCELLED  # who has looked, and is not paged for it
    page_seconds = None if by_person else 0.0 if at_once else seconds
    gangs = [one for one in snapshot.job_on(finding.node) if one.managed] if stands and finding is not None else []
    why = f"{named(gangs[0])} stands: {decision.reason}" if gangs else decision.reason
    if gangs:  # one page, also where Slurm requeues it meanwhile
        kind, subject = NeedKind.GANG_PENDS, f"job {gangs[0].key.job_id}"
    return Need(kind, subject, since, why, command, patience, page_seconds)


def _rule_stopped(snapshot: Snapshot, decision: Decision, rule: str) -> Need:
    """One for all nodes that it holds back, at once, and once a day: each further hour the rule is wrong about more."""
    kind, subject = NeedKind.HELD_BACK, f"rule {rule}"
    since = rule_budget.overrun_since(snapshot, rule)
    since = _first_seen(snapshot, kind, subject) if since is None else since
    command = EXPLAIN.format(kind="node", name=decision.subject)
    return Need(kind, subject, since, decision.reason, command, page_seconds=0.0)


def _held_since(snapshot: Snapshot, decision: Decision) -> float:
    """Time from which a gang stands on an operator's node, about which there is no incident."""
    finding = decision.finding
    node = snapshot.nodes.get(finding.node) if finding is not None else None
    if (
        node is not None
        and node.state in HELD_BY_PEOPLE
        and finding is not None
        and finding.signal is Signal.GANG_STRANDED
    ):
        return node.record.since
    return _first_seen(snapshot, NeedKind.HELD_BACK, decision.subject)


def _budget(snapshot: Snapshot, config: Config) -> Iterator[Need]:
    """The next fault leads to nothing, until nodes are back in service."""
    usual = bool(snapshot.at_fault) and not snapshot.operator.breaker
    words = guards.over_fleet_budget(snapshot, config, (), "") if usual else ""
    if words:
        newest = max(snapshot.nodes[name].record.since for name in snapshot.at_fault)
        why = f"no other faulty node is taken out of service: {words}"
        command = "repair one of them; `understudy node release NODE REASON` returns it"
        seconds = config.guards.page_after_seconds
        yield Need(NeedKind.BUDGET, "fleet", newest, why, command, SETTLES_SECONDS, page_seconds=seconds)


def _approvals(snapshot: Snapshot) -> Iterator[Need]:
    for one in snapshot.proposals:
        if one.status is RecoveryStatus.AWAITS_APPROVAL:
            job = job_of(one.plan)
            known = snapshot.jobs.get(job) if job is not None else None
            whom = named(known) if known is not None else f"job {job.job_id}" if job is not None else "a job"
            about = one.plan.nodes or one.plan.claimed
            restarts = isinstance(one.plan, SwapPlan) and not one.plan.nodes
            effect = (RESTART if restarts else EFFECTS[one.plan.kind]).format(job=whom, nodes=shown(about))
            reason = one.plan.drain_reason.removeprefix(REASON_PREFIX) if isinstance(one.plan, DrainPlan) else ""
            cause = f", because of{reason}" if reason else ""
            why = f"recovery {one.id} awaits approval by an operator: it would {effect}{cause}"
            command = f"`understudy recovery approve {one.id} REASON`, or `understudy recovery cancel {one.id} REASON`"
            yield Need(NeedKind.APPROVAL, f"recovery {one.id}", one.decided_at, why, command, page_seconds=0.0)


# -- gangs ------------------------------------------------------------------------------------------------------------


def _held_by_slurm(snapshot: Snapshot, moving: Collection[JobKey | None]) -> Iterator[Need]:
    """A job that never ran and fits no node is its owner's affair, whom Slurm shows it."""
    held = [
        one
        for one in snapshot.jobs.values()
        if one.managed and one.slurm.held_by_slurm and (one.slurm.restart_count or not one.slurm.unfit)
    ]
    lost = {one.subject for one in _not_back(snapshot, moving)} if held else set()
    for job in held:
        kind, subject = NeedKind.GANG_HELD, f"job {job.key.job_id}"
        if subject not in lost:
            why, command = _hold(job.slurm)
            since = _first_seen(snapshot, kind, subject)
            why = f"{named(job)} pends: {why}"
            yield Need(kind, subject, since, why, command, SETTLES_SECONDS, page_seconds=SETTLES_SECONDS)


def _hold(job: SlurmJob) -> tuple[str, str]:
    """Why it does not start, and what a person can do."""
    if job.unfit:
        return (
            f"what it asks for fits no node that Slurm has now ({job.reason})",
            f"`scontrol show job {job.address}` shows what it asks for; {job.user} changes that, or `scontrol release "
            f"{job.address}` has Slurm look again once such nodes are back",
        )
    reason = "it could make no credential for its launch" if job.no_credential else job.reason
    return (
        f"Slurm itself holds it ({reason}) and does not start it again",
        f"`scontrol show job {job.address}` and slurmctld's log show the cause; then `scontrol release {job.address}`",
    )


def _pending(snapshot: Snapshot, moving: Collection[JobKey | None]) -> Iterator[Need]:
    """Gangs that a fault has stopped, until they run again: also where the node is back meanwhile and other jobs have
    their seats, or where a limit keeps them from starting.
    """
    lost = {one.subject for one in _not_back(snapshot, moving)}
    away = _away_by_partition(snapshot)
    for key in snapshot.progress.last_attempts.keys() - moving:
        job, found = snapshot.jobs[key], fault_behind(snapshot, key)
        slurm, kind, subject = job.slurm, NeedKind.GANG_PENDS, f"job {key.job_id}"
        if not slurm.pending or slurm.held or slurm.held_by_slurm or slurm.put_off or subject in lost:
            continue
        stopped = found is not None and any(_is_away(snapshot.nodes[name]) for name in found.nodes)
        if not stopped and f"{kind.value} {subject}" not in snapshot.round.waiting_since:
            continue
        partitions = slurm.partition.split(",")
        out = sorted({name for one in partitions for name in away.get(one, ())}, key=spares.natural)
        failed = [name for name in out if not _is_known_to_people(snapshot, name)]
        why = f"{named(job)} was restarted and pends ({slurm.reason or 'no reason given'})"
        command = f"`scontrol show job {key.job_id}` shows what it waits for"
        if out:
            why += f"; of its partition {shown(out)} {'is' if len(out) == 1 else 'are'} out of service"
            first = failed[0] if failed else out[0]
            command = f"repair {first}; `understudy node release {first} REASON` returns it"
            if first not in snapshot.at_fault:
                command = f"`systemctl status slurmd` on {first}; `scontrol update nodename={first} state=resume`"
        since = _first_seen(snapshot, kind, subject)
        if found is not None and is_down(snapshot, found.node):
            since = min(since, found.at)  # it has stood still since then, though Slurm has requeued it later
        page = PENDS_SECONDS if failed or not out else None
        yield Need(kind, subject, since, why, command, PENDS_SECONDS, page_seconds=page)


def _is_known_to_people(snapshot: Snapshot, name: str) -> bool:
    """A person took the node: neither Understudy nor Slurm itself did."""
    by_people = snapshot.custody(name).holder in (Holder.OPERATOR, Holder.ADMINISTRATOR)
    return by_people and name not in snapshot.at_fault


def _away_by_partition(snapshot: Snapshot) -> dict[str, list[str]]:
    away: dict[str, list[str]] = {}
    for node in snapshot.set_apart:
        if node.slurm is not None and _is_away(node):
            for partition in node.slurm.partitions:
                away.setdefault(partition, []).append(node.name)
    return away


def _is_away(node: NodeView) -> bool:
    return node.state in OUT_OF_SERVICE or (node.slurm is not None and node.slurm.taken_out)


def _not_back(snapshot: Snapshot, moving: Collection[JobKey | None]) -> Iterator[Need]:
    """Gangs whose attempt was ended for a move that has failed since, and that pend, or were lost: also one whose owner
    has opted out meanwhile. `moving`: those that get nodes all the same, also by a decision of this round.
    """
    for recovery in snapshot.history.lost_gangs:
        job = snapshot.jobs.get(recovery.plan.job) if isinstance(recovery.plan, PoolSwapPlan) else None
        if job is None or job.key in moving or _has_run_since(snapshot, recovery):
            continue
        why, command = _why_not_back(job.slurm, _failure_known_until(snapshot, recovery))
        if why:
            why = f"{named(job)} is not back: recovery {recovery.id} failed ({recovery.outcome}), and {why}"
            subject, since = f"job {job.key.job_id}", recovery.ended_at or 0.0
            yield Need(NeedKind.GANG_NOT_BACK, subject, since, why, command, page_seconds=0.0)


def _failure_known_until(snapshot: Snapshot, move: Recovery) -> float:
    """Time by slurmctld's clock at which Slurm has ended what the failed move had started, at the latest."""
    gives_up = snapshot.slurm.slurmd_timeout_seconds * GIVES_UP_SHARE if _was_not_seen(move) else 0.0
    return (move.ended_at or 0.0) + gives_up + SETTLES_SECONDS + snapshot.slurm.ahead_seconds


def _was_not_seen(recovery: Recovery) -> bool:
    """Its gang had started, and was not seen to work."""
    waits = (StepName.AWAIT_PROCESSES, StepName.AWAIT_FIRST_STEP)
    return any(step.status is StepStatus.FAILED and step.name in waits for step in recovery.steps)


def _has_run_since(snapshot: Snapshot, move: Recovery) -> bool:
    """The job, which pends, has had another attempt since its move. Attempts are counted: clocks are set, and a requeue
    by Slurm itself has a time of its own. One that started only to fail is the move's own; the one after it is not.
    """
    plan = move.plan
    if not isinstance(plan, PoolSwapPlan):
        return False
    if not snapshot.jobs[plan.job].managed:  # its attempts are not looked up
        return snapshot.jobs[plan.job].slurm.restart_count > plan.restart_count + 1
    last = snapshot.progress.last_attempts.get(plan.job)
    if last is None or last.restart_count <= plan.restart_count:
        return False
    if not _was_not_seen(move) or last.last_step is not None or last.restart_count > plan.restart_count + 1:
        return True
    # A training that reports no step, and goes on for longer than a dead one can. Its requeue may be long after its
    # end: an Epilog takes its time.
    ends_by = _failure_known_until(snapshot, move) - snapshot.slurm.ahead_seconds
    return last.ended_at is not None and last.ended_at > ends_by


def _why_not_back(job: SlurmJob, until: float) -> tuple[str, str]:
    """Why it does not run, and what a person can do; empty: it runs, a person holds it, puts it off or has ended it, or
    it ended later than the failure.
    """
    number = job.job_id
    if job.held_by_slurm:
        return _hold(job)
    if job.held or job.put_off:
        return "", ""
    if job.pending:
        return (
            f"it waits in Slurm's queue ({job.reason or 'no reason given'}) and holds no nodes any more",
            f"`scontrol show job {number}` shows what it waits for: free that or raise the limit; `scontrol top "
            f"{number}` puts it before its owner's other jobs",
        )
    lost = job.ended and job.state not in ("COMPLETED", "CANCELLED") and (job.end_at or 0) <= until
    if not lost:
        return "", ""
    return (
        f"Slurm shows it as {job.state}",
        f"`scontrol requeue {number}` starts it again, from its newest checkpoint",
    )


def _unheard(snapshot: Snapshot, config: Config) -> Iterator[Need]:
    seconds = config.hang.first_step_seconds
    for key, started_at in snapshot.progress.unheard_gangs.items():
        job = snapshot.jobs[key]
        if key in snapshot.operator.paused_jobs or not all_report(job.slurm.nodes, snapshot, config.silence):
            continue
        gang = snapshot.progress.gangs.get(key)
        restarted = job.slurm.restart_count > 0 or (gang is not None and gang.state.launch > 0)
        since_when, may_be = (
            (
                "it was restarted",
                "its processes may wait for each other before the hook begins, or its script may not get there",
            )
            if restarted
            else ("the control plane has started", "its training may be over, or its processes stand still")
        )
        why = (
            f"no rank of {named(job)} has reported since {since_when}, for more than {seconds:.0f} s, though its ranks "
            f"did before: {may_be}"
        )
        command = f"look at its output; `scontrol requeue {key.job_id}` restarts it"
        since = _running_since(snapshot, started_at)
        page = seconds if restarted else None
        yield Need(NeedKind.GANG_UNHEARD, f"job {key.job_id}", since, why, command, seconds, page_seconds=page)


def _without_a_step(
    snapshot: Snapshot, findings: Sequence[Finding], moving: Collection[JobKey | None], config: Config
) -> Iterator[Need]:
    """Gangs that stand still before their first step, and are not restarted: their first step may take any time. One
    that ran before this process was there may have made steps that it does not know. Gangs whose ranks wait for ranks
    that compute, before any step: they may as well hang.
    """
    for one in findings:
        table = snapshot.progress.tables.get(one.job) if one.signal is Signal.GANG_STILL and one.job else None
        if table is None:
            continue
        computes = waits_for_work(table, working_ranks(table, snapshot))
        if not computes and silent_patience_seconds(table, config.hang, working=False) is not None:
            continue
        job = snapshot.jobs[table.job]
        if not job.managed or job.key in moving or job.key in snapshot.operator.paused_jobs:
            continue
        stands = "stands still" if table.advanced_at else "has made no first step"
        because = (
            "the GPU of who is waited for computes" if computes else "the control plane knows no earlier start of it"
        )
        why = f"{named(job)} {stands}: {one.summary}; {because}"
        command = f"look at its output; `scontrol requeue {job.key.job_id}` restarts it"
        began = (job.slurm.start_at or 0.0) - snapshot.slurm.ahead_seconds
        new = began >= snapshot.started_at and not job.slurm.restart_count
        may_be_well = table.advanced_at > 0 if computes else new
        page = None if may_be_well else config.hang.first_step_seconds
        yield Need(NeedKind.GANG_UNHEARD, f"job {job.key.job_id}", one.at, why, command, page_seconds=page)


def _slow(snapshot: Snapshot, findings: Sequence[Finding]) -> Iterator[Need]:
    """Gangs that announce no checkpoints, and have lost as much by a slow GPU as a start may take."""
    for one in findings:
        job = snapshot.jobs.get(one.job) if one.rule == NOT_PRICED and one.job is not None else None
        if job is None or one.lost_seconds < START_SECONDS_MAX or job.key in snapshot.operator.paused_jobs:
            continue
        kind, subject = NeedKind.GANG_SLOW, f"job {job.key.job_id}"
        why = f"{named(job)} is slow on {one.node}: {one.summary}; a move may cost all that it has done"
        command = (
            f"ask its owner whether it has saved its work: `understudy job move {job.key.job_id} REASON --off "
            f"{one.node}` moves it"
        )
        yield Need(kind, subject, _first_seen(snapshot, kind, subject), why, command, page_seconds=0.0)


def _running_since(snapshot: Snapshot, started_at: float) -> float:
    """`started_at` is Slurm's time. One that is to come was there before the clocks were set back."""
    since = started_at - snapshot.slurm.ahead_seconds
    return max(since, snapshot.started_at) if since <= snapshot.now else snapshot.started_at


# -- nodes, domains and the pool --------------------------------------------------------------------------------------


def _nodes_out(snapshot: Snapshot, config: Config) -> Iterator[Need]:
    for name in snapshot.at_fault:
        node = snapshot.nodes[name]
        if name in snapshot.operator.drills or snapshot.recovery_on(name) is not None:
            continue
        why = _why_out(node, config)
        if why:
            incident = snapshot.incident_of(name)
            fault = incident.summary if incident is not None else node.slurm.reason if node.slurm else "not known"
            command = f"repair it; `understudy node release {name} REASON` returns it"
            seconds = LEFT_SECONDS if config.repair.enabled else SETTLES_SECONDS
            if node.state is NodeState.MANUAL_REPAIR:
                seconds = 0.0
            elif config.repair.enabled and waits_for_slurm(snapshot, node):
                why = "Slurm reaches it, and the control plane does not hear its agent"
                command = "look at the agent, and at the control plane's network to it; it returns once it is heard"
                seconds = config.repair.dead_node_wait_seconds
            yield Need(
                NeedKind.NODE_OUT,
                name,
                node.record.since,
                f"{name} is {node.state.value} ({fault}): {why}",
                command,
                seconds,
            )


def _why_out(node: NodeView, config: Config) -> str:
    """Why nothing of the control plane returns it; empty: its repair or validation goes on, and ends."""
    if node.state is NodeState.MANUAL_REPAIR:
        return "manual repair is needed"
    if node.slurm is None:
        return "Slurm does not know it any more"
    if node.state in IN_REPAIR:
        return ""
    if not config.repair.enabled:
        return "nothing repairs it, because `repair.enabled` is false"
    return "no repair of it has begun within an hour"


def _left_by_slurm(snapshot: Snapshot, config: Config) -> Iterator[Need]:
    tried: Mapping[str, Sequence[RepairAttempt]] | None = None
    for node in snapshot.set_apart:
        since = _left_since(snapshot, node)
        if node.slurm is None or since is None:
            continue
        tried = attempts_by_node(snapshot) if tried is None else tried
        if is_back_from_outage(snapshot, node, tried.get(node.name, ()), config):
            continue
        why = f"Slurm has taken {node.name} out of service ({node.slurm.reason}) and keeps it out"
        command = f"find the cause, then `scontrol update nodename={node.name} state=resume`"
        if INVALID_REG in node.slurm.flags:
            command += ", which Slurm refuses until slurmd has registered with what slurm.conf and gres.conf say"
        seconds = config.guards.page_after_seconds
        yield Need(NeedKind.NODE_LEFT, node.name, since, why, command, SILENT_SECONDS, page_seconds=seconds)


def _left_since(snapshot: Snapshot, node: NodeView) -> float | None:
    """None: Slurm itself has not taken it out of service, or it does not answer."""
    if node.slurm is None:
        return None
    if node.state is NodeState.FOREIGN_DRAIN:
        return node.record.since if snapshot.custody(node.name).holder is Holder.SLURM else None
    return node.out_since if kept_down(node.slurm) and node.state in AWAY else None


def _miscounted(snapshot: Snapshot) -> Iterator[Need]:
    """Until slurmctld has started again, or for a week: a reconfiguration, which ends it as well, is not seen."""
    for one in snapshot.history.miscounted:
        began = (snapshot.slurm.slurmctld_started_at or 0.0) - snapshot.slurm.ahead_seconds
        plan = one.plan
        if began > one.decided_at or not isinstance(plan, PoolSwapPlan):
            continue
        why = (
            f"all nodes of job {plan.job.job_id} were lost at once ({shown(plan.dead_nodes)}), and this release of "
            "Slurm may still count it there: once they are back, each gets one more job with --exclusive, and then none"
        )
        command = "`scontrol reconfigure` once they are back"
        yield Need(NeedKind.RECONFIGURE, f"recovery {one.id}", one.decided_at, why, command)


def _domains(snapshot: Snapshot, config: Config) -> Iterator[Need]:
    seconds = config.silence.domain_wait_seconds
    advice = {
        DOMAIN_SILENT: "look at power, cooling and switches there. Gangs leave for spares where it is not back "
        f"{seconds:g} s after it fell silent",
        BLOCK_FABRIC: "look at its NVLink switches and their manager. No spare is taken from there meanwhile; "
        "gangs leave only nodes for which the driver reported a fatal NVLink error",
        PORT_DOWN: "look at the switch there and at what manages it. No spare is taken from there meanwhile; gangs "
        f"that hang leave for spares where the ports are not back {seconds:g} s after that was found",
    }
    failed: dict[str, list[OpenIncident]] = {}
    for subject, one in snapshot.incidents.items():
        if subject.kind is SubjectKind.DOMAIN and one.rule in advice:
            failed.setdefault(subject.name, []).append(one)
    for name, found in failed.items():
        found.sort(key=lambda one: -one.opened_at)
        why = "; ".join(one.summary for one in found)
        command = "; ".join(advice[one.rule] for one in found)
        since = found[0].opened_at  # a person who knows of one cause has to know of another
        yield Need(NeedKind.DOMAIN_DOWN, name, since, why, command, page_seconds=0.0)


def _site_warnings(snapshot: Snapshot, config: Config) -> Iterator[Need]:
    for one in snapshot.signals:
        if config.signals.effect_of(one.kind).includes(SignalEffect.WARN):
            why = f"another system of the site reports: {one.words} ({shown(one.targets)})"
            command = f"`understudy signal list`; `understudy signal end {one.id} REASON` where it is wrong"
            yield Need(NeedKind.SITE_WARNING, f"signal {one.id}", one.at, why, command)


def _pool(snapshot: Snapshot, config: Config) -> Iterator[Need]:
    wanted, held = spares.wanted(snapshot, config.spares), len(spares.held(snapshot, config.spares))
    if snapshot.mode is Mode.OBSERVE or held >= wanted:
        return
    kind = NeedKind.POOL_SHORT
    joining = spares.joining_pool(snapshot, (), config)
    pool = snapshot.slurm.reservations.get(config.spares.reservation)
    out = sorted(snapshot.at_fault, key=spares.natural)
    why = f"{counted(held, 'spare is', 'spares are')} held, {wanted} are wanted, and no idle node can join"
    command = "`understudy spare size SIZE REASON` sets another size"
    if pool is not None and not pool.made_for(POOL_USER):
        why = f"reservation {pool.name} is another user's (users {', '.join(pool.users)}): there is no spare pool"
        command = f"`scontrol delete reservation={pool.name}`, or another name in `spares.reservation`"
    elif joining:
        why = f"{counted(held, 'spare is', 'spares are')} held, {wanted} are wanted, and {shown(joining)} do not join"
        command = "`understudy decision list --subject fleet` shows why"
    elif out:
        command = f"repair {shown(out)}; `understudy node release {out[0]} REASON` returns a node"
    patience = SILENT_SECONDS if joining else SETTLES_SECONDS
    yield Need(kind, "spares", _first_seen(snapshot, kind, "spares"), why, command, patience)


def _occupied(snapshot: Snapshot) -> Iterator[Need]:
    kind = NeedKind.SPARE_OCCUPIED
    for node in snapshot.notable:
        processes = spares.occupying(snapshot, node) if node.is_spare else []
        if processes:
            pids = " ".join(f"{one.pid}" for one in processes)
            began = (node.heard_at or 0.0) - max(one.seconds for one in processes)
            since = _first_seen(snapshot, kind, node.name, began)
            why = f"no gang can use spare {node.name}: {in_words(snapshot, node, processes[0])}"
            command = (
                f"`ps -fp {pids}` on {node.name}, and `kill {pids}` where no user needs it; services "
                "under a user id below 1000 never count"
            )
            yield Need(kind, node.name, since, why, command)


def _modes_of_no_node(snapshot: Snapshot, config: Config) -> Iterator[Need]:
    kind = NeedKind.CONTROL_PLANE
    asked = config.modes and snapshot.slurm.read_at is not None
    for one, missing in not_in_slurm(config, snapshot.nodes.values()) if asked else ():
        why = (
            f"`modes` has an entry for {one.label}, and Slurm does not have {shown(missing)}: until that is right, "
            f"nodes that no entry names are in mode {least((config.mode, one.mode)).value}"
        )
        command = "correct the configuration, then `systemctl reload understudy-controlplane`"
        yield Need(kind, one.label, _first_seen(snapshot, kind, one.label), why, command)


def _drills(snapshot: Snapshot) -> Iterator[Need]:
    for name, drill in snapshot.operator.drills.items():
        minutes = max(0, round((drill.until - snapshot.now) / 60))
        why = f"DRILL on {name} goes on for {counted(minutes, 'minute')} more"
        since = _first_seen(snapshot, NeedKind.DRILL, name)
        yield Need(NeedKind.DRILL, name, since, why, f"`understudy inject {name} end REASON` ends it")


# -- what is left -----------------------------------------------------------------------------------------------------


def _incidents(snapshot: Snapshot, others: Mapping[str, Need]) -> Iterator[Need]:
    """Open for long, and neither a recovery nor another need is about their subject."""
    if snapshot.mode is Mode.OBSERVE:
        if snapshot.incidents:
            count = counted(len(snapshot.incidents), "incident is", "incidents are")
            why = f"{count} open, and the control plane only observes: it does nothing about that"
            since = min(one.opened_at for one in snapshot.incidents.values())
            command = (
                "`understudy incident list --open`; `understudy mode set act REASON --dry-run` prints what it would do"
            )
            yield Need(NeedKind.ONLY_OBSERVED, "fleet", since, why, command)
        return
    about = {one.subject for one in others.values()}
    jobs = {str(key): f"job {key.job_id}" for key in snapshot.jobs}
    for one in snapshot.incidents.values():
        if not _goes_on(snapshot, one) and about.isdisjoint(_subjects(one, jobs)):
            why = f"incident {one.id} stays open, and nothing is under way that ends it: {one.summary}"
            command = f"`understudy incident show {one.id}`"
            since = one.opened_at
            yield Need(NeedKind.INCIDENT, f"incident {one.id}", since, why, command, LEFT_SECONDS)


def _goes_on(snapshot: Snapshot, incident: OpenIncident) -> bool:
    """It ends by itself, or a person has taken its node."""
    name = incident.subject.name
    node = snapshot.nodes.get(name) if incident.subject.kind is SubjectKind.NODE else None
    if any(name in one.plan.nodes or name == str(job_of(one.plan)) for one in snapshot.recoveries):
        return True
    ends = {*IN_REPAIR, *HELD_BY_PEOPLE, NodeState.PROBATION} - {NodeState.MANUAL_REPAIR}
    return node is not None and node.state in ends | {NodeState.OPERATOR_HOLD}


def _subjects(incident: OpenIncident, jobs: Mapping[str, str]) -> set[str]:
    """Names that other needs use for what it is about."""
    name, kind = incident.subject.name, incident.subject.kind
    found = {name, f"rule {incident.rule}"}
    if kind is SubjectKind.GANG and name in jobs:
        found.add(jobs[name])
    return found | ({"fleet"} if kind is SubjectKind.DOMAIN else set())
