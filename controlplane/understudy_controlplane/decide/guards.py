"""NOT NOW, NOT SO MANY: what keeps a right decision from being carried out.

Asked in the order of the list; the first that objects is the answer. A guard never turns one action into another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.foreign_reservations import JOB_STARTS_SECONDS, foreign_reservations
from understudy_controlplane.decide.rule_budget import over_rule_budget
from understudy_controlplane.decide.table import Row
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.decision import TAKES_OUT, Action, Because, Decision
from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.node import IN_REPAIR, MIG_MODE_SECONDS, NodeView, ValidationOrigin
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.recovery import (
    LauncherRestartPlan,
    Recovery,
    RepairAttempt,
    StepName,
    StepStatus,
    SwapPlan,
    ValidationPlan,
)
from understudy_controlplane.fleet.slurm import Service
from understudy_controlplane.fleet.snapshot import Snapshot

STARTUP_GRACE_SECONDS = 10.0
"""After a start nothing is done before every usable node was heard, or this has passed: the nodes that happen to report
first would be taken for all there is."""

FEW_GRACE_SECONDS = 4.0
"""The same where nearly all were heard: a node that died just before a takeover holds up nothing else."""


@dataclass(frozen=True, slots=True)
class Objection:
    because: Because
    words: str


def held_back(row: Row, finding: Finding, objection: Objection) -> Decision:
    return Decision(
        row=row.number,
        subject=finding.label,
        action=Action.NOTHING,
        because=objection.because,
        reason=f"{finding.summary}: {row.why}; but nothing is done, because {objection.words}",
        finding=finding,
        evidence=finding.evidence,
    )


def scaled(share: float, of: int, least: int, most: int | None = None) -> int:
    """A share of a fleet; `least` where the fleet is small, and never above `most`."""
    limit = max(least, int(share * of))
    return limit if most is None else min(limit, most)


def quarantine_limit(snapshot: Snapshot, config: Config) -> int:
    """How many nodes may be quarantined at once, besides those that wait for a person."""
    policy = config.guards
    limit = scaled(
        policy.quarantined_share, len(snapshot.nodes), policy.quarantined_nodes_min, policy.quarantined_nodes_max
    )
    return min(limit, _quarantine_ceiling(snapshot, config))


def _quarantine_ceiling(snapshot: Snapshot, config: Config) -> int:
    return max(1, int(config.guards.quarantined_share_max * len(snapshot.nodes)))


def quarantined_beside(
    snapshot: Snapshot, config: Config, already: Collection[str] = (), node: str = ""
) -> tuple[int, int]:
    """Failures because of which nodes are out of service, that of `node` not counted; and how many of them count: not
    those whose nodes all wait for a person, as far as the budget of those goes.
    """
    at_fault = snapshot.at_fault.union(already)
    own = failures(snapshot, [node])
    found = failures(snapshot, at_fault) - own
    waiting = found - failures(snapshot, at_fault - waiting_nodes(snapshot, config))
    return len(found), len(found) - min(len(waiting), waiting_limit(snapshot, config))


def waiting_nodes(snapshot: Snapshot, config: Config) -> frozenset[str]:
    """Those for which the control plane can do nothing."""
    return snapshot.manual if config.repair.enabled else snapshot.left


def waiting_limit(snapshot: Snapshot, config: Config) -> int:
    """How many nodes may wait for a person without counting as quarantined."""
    return scaled(config.guards.waiting_share, len(snapshot.nodes), config.guards.waiting_nodes_min)


def hourly_limit(snapshot: Snapshot, config: Config) -> int:
    """How many nodes may be quarantined within an hour."""
    policy = config.guards
    return scaled(
        policy.quarantines_per_hour_share,
        len(snapshot.nodes),
        policy.quarantines_per_hour_min,
        policy.quarantines_per_hour_max,
    )


def still_gathering(snapshot: Snapshot) -> bool:
    grace = FEW_GRACE_SECONDS if snapshot.few_unheard else STARTUP_GRACE_SECONDS
    return bool(snapshot.unheard) and snapshot.now - snapshot.started_at < grace


BREAKER_NODES_MIN = 3
"""However small the fleet: fewer at once than these open no breaker."""


def breaker_limit(snapshot: Snapshot, config: Config) -> int:
    """How many nodes may be quarantined within the breaker's window. Bounded by those that are, or just were, well: a
    fleet that is mostly out of service has little left to lose.
    """
    policy = config.guards
    limit = scaled(policy.breaker_share, len(snapshot.nodes), policy.breaker_nodes_min, policy.breaker_nodes_max)
    others = lately_quarantined(snapshot, config)
    well = len(snapshot.nodes) - len(snapshot.not_well)
    gone = sum(name in snapshot.not_well or name not in snapshot.nodes for name in others)
    share = int(policy.breaker_share_max * (well + gone))
    return min(limit, max(BREAKER_NODES_MIN, share))


def lately_quarantined(snapshot: Snapshot, config: Config) -> set[str]:
    """Each node once, however often."""
    since = max(snapshot.ago(config.guards.breaker_window_seconds), snapshot.operator.breaker_reset_at)
    return {name for name, times in snapshot.history.quarantined_at.items() if max(times, default=0.0) > since}


def failures(snapshot: Snapshot, nodes: Iterable[str]) -> set[str]:
    """What these nodes count as: nodes of a domain that failed as a whole are one failure, the domain."""
    return {snapshot.failed_domain_of.get(name, name) for name in nodes}


def object_to_paused_job(snapshot: Snapshot, job: JobKey) -> Objection | None:
    """What a person wants left alone."""
    why = snapshot.operator.paused_jobs.get(job)
    if why is None:
        return None
    words = f"job {job.job_id} is paused by an operator: {why}; `understudy job resume {job.job_id} REASON` ends that"
    return Objection(Because.PAUSED, words)


def object_while_open(snapshot: Snapshot) -> Objection | None:
    """Neither drains nor returns while the breaker is open."""
    if not snapshot.operator.breaker:
        return None
    words = f"the circuit breaker is open ({snapshot.operator.breaker}): `understudy breaker reset REASON` closes it"
    return Objection(Because.BREAKER, words)


def object_while_unjudged(snapshot: Snapshot, node: str) -> Objection | None:
    """Neither repairs nor returns where a detector failed: a fault, or an administrator's change, may be unseen."""
    if not snapshot.round.failed_detectors and node not in snapshot.round.unjudged:
        return None
    failed = ", ".join((*snapshot.round.failed_detectors, *filter(None, [snapshot.round.unjudged.get(node)])))
    return Objection(
        Because.DETECTOR_FAILED, f"{failed} failed (`detector_failed` in the log), and may have missed something"
    )


def object_while_gpus_are_unsure(snapshot: Snapshot, name: str) -> Objection | None:
    """No test begins that would ask a node in MIG mode for as many GPUs as it has instances."""
    node = snapshot.nodes[name]
    since = max(node.record.since, node.record.cleared_at, snapshot.started_at)
    if node.gpus_awaited and node.whole_gpus and snapshot.now - since < MIG_MODE_SECONDS:
        words = f"Slurm has {node.whole_gpus} GPUs or instances of GPUs, and no report of its agent has shown any since"
        return Objection(Because.BUSY, f"{words}: validation waits {MIG_MODE_SECONDS:.0f} s for one")
    if not node.may_have_instances(snapshot.now):
        return None
    words = f"Slurm has {node.whole_gpus} GPUs or instances of GPUs, and NVML shows {len(node.gpus)}"
    return Objection(Because.BUSY, f"{words}: validation waits until MIG mode is surely read")


def object_to_rule(finding: Finding, config: Config) -> Objection | None:
    """A site may let single rules only observe."""
    return _object_to_rule_named(finding.rule, config)


def _object_to_rule_named(rule: str, config: Config) -> Objection | None:
    prefix = next((one for one in config.guards.observe_rules if one and rule.startswith(one)), None)
    if prefix is None:
        return None
    return Objection(Because.RULE_DRY_RUN, f'rule {rule} only observes here (observe_rules has "{prefix}")')


def _object_to_rule_of(node: NodeView, finding: Finding, config: Config) -> Objection | None:
    """A node that is validated would stay reserved for the control plane: a rule that only observes does not hold back
    its quarantine.
    """
    return None if node.record.tested_in_service else object_to_rule(finding, config)


def only_observes(node: NodeView, row: Row, finding: Finding, config: Config) -> bool:
    """True if the node stays in service, because this site lets the rule only observe."""
    return row.action in TAKES_OUT and _object_to_rule_of(node, finding, config) is not None


def object_to_mode(snapshot: Snapshot, nodes: Iterable[str], job: JobKey | None = None) -> Objection | None:
    """Nothing is done to what is only observed: all of the fleet, or a part of it (`modes`)."""
    if snapshot.mode is Mode.OBSERVE:
        return Objection(Because.DRY_RUN, 'the control plane only observes (mode = "observe")')
    if snapshot.mode_of(names := tuple(nodes), job) is not Mode.OBSERVE:
        return None
    what = f"job {job.job_id}" if job is not None else ", ".join(names)
    return Objection(Because.DRY_RUN, f"the control plane only observes {what} (`modes` in the configuration)")


def object_to_operator(snapshot: Snapshot, about: Finding | None = None) -> Objection | None:
    """What people ask for themselves is done in a pause as well."""
    by_mode = object_to_mode(snapshot, *_touched(about))
    if by_mode is not None:
        return by_mode
    if snapshot.slurm.error or snapshot.slurm.read_at is None:
        return Objection(Because.SLURM_UNREADABLE, "Slurm cannot be read, so nothing is known for sure")
    return None


def object_to_requested_test(
    snapshot: Snapshot, config: Config, already: Collection[str], *, burn_in: bool = False
) -> Objection | None:
    """`already`: nodes whose requested test of this kind began in this round. A hundred burn-ins at once would take
    the nodes from the jobs, and the control plane's time from recoveries.
    """
    origins = {ValidationOrigin.IN_SERVICE, ValidationOrigin.SUSPECT_REQUESTED, ValidationOrigin.PROBATION}
    policy = config.validation
    limit, what = (policy.burn_ins_at_once_max, "burn-in") if burn_in else (policy.requested_at_once_max, "validation")
    burning = {
        one.plan.nodes[0] for one in snapshot.recoveries if isinstance(one.plan, ValidationPlan) and one.plan.hours
    }
    under_test = sum(
        node.record.validation_origin in origins and (node.name in burning) is burn_in for node in snapshot.notable
    )
    if len(already) + under_test < limit:
        return None
    return Objection(
        Because.REPAIR_BUDGET,
        f"{counted(limit, f'requested {what} is', f'requested {what}s are')} under way already, which is the limit",
    )


def object_to_test(snapshot: Snapshot, name: str, config: Config) -> Objection | None:
    """Objects to testing a node in service: it is not reserved while a job runs, and no gang is on its way there.
    Others who have reserved it for now wait for one test; it is not under way when their reservation begins.
    """
    policy = config.validation
    if not policy.enabled:
        return Objection(Because.RULE, "no test is configured ([validation])")
    request = snapshot.operator.requests.get(name)
    burn_in = request is not None and request.verb is Verb.BURN_IN
    over_by = snapshot.slurm_now + (policy.burn_in_hours * HOUR_SECONDS if burn_in else policy.timeout_seconds)
    for one in foreign_reservations(snapshot, None, config):
        if name in one.nodes and (one.is_maintenance or one.start_at > snapshot.slurm_now) and one.start_at < over_by:
            words = f"reservation {one.name} has it before a validation would be over: it waits until that is over"
            return Objection(Because.BUSY, words)
    slurm = snapshot.nodes[name].slurm
    free = slurm is not None and slurm.service is Service.USABLE and slurm.base_state == "IDLE"
    free = free and slurm is not None and "COMPLETING" not in slurm.flags and not slurm.blocked
    promised = any(name in one.plan.claimed for one in snapshot.recoveries)
    if free and not promised and not snapshot.holders_of(name):
        return None
    return Objection(Because.BUSY, "it is not idle: validation waits until it is")


def object_in_maintenance(snapshot: Snapshot, name: str, config: Config) -> Objection | None:
    """Objects to repairs and validations while a reservation with the flag MAINT holds the node, or begins before a
    validation would be over: Slurm starts no job of the control plane there, and people work on the node.
    """
    slurm = snapshot.nodes[name].slurm
    if slurm is not None and slurm.in_maintenance:
        return Objection(Because.MAINTENANCE, "it is in maintenance (MAINT) in Slurm: it waits until that is over")
    until = snapshot.slurm_now + config.validation.timeout_seconds + JOB_STARTS_SECONDS
    ahead = [one for one in snapshot.slurm.reservations.values() if one.is_maintenance and name in one.nodes]
    first = min((one for one in ahead if one.start_at < until), key=lambda one: one.start_at, default=None)
    if first is None:
        return None
    words = f"reservation {first.name} (MAINT) has it before a validation would be over: it waits until that is over"
    return Objection(Because.MAINTENANCE, words)


def object_to_released(snapshot: Snapshot, name: str, config: Config) -> Objection | None:
    """Objects to the validation of a node that an operator gives back while a job runs on to its end there: it could
    make the validation fail.
    """
    slurm = snapshot.nodes[name].slurm
    free = slurm is not None and slurm.base_state in ("IDLE", "DOWN") and "COMPLETING" not in slurm.flags
    claimed = any(name in one.plan.claimed for one in snapshot.recoveries)
    if free and not claimed and not snapshot.holders_of(name):
        return object_in_maintenance(snapshot, name, config)
    return Objection(Because.BUSY, "it is not idle: validation waits until it is")


def object_to_repair(
    snapshot: Snapshot, config: Config, finding: Finding, tried: Sequence[RepairAttempt], already: Collection[str]
) -> Objection | None:
    """`tried`: on this node; `already`: nodes whose repair or test began in this same round."""
    general = object_to_any(snapshot, finding) or object_while_open(snapshot) or object_to_rule(finding, config)
    if general:
        return general
    in_maintenance = _object_under_maintenance(snapshot, finding.node)
    in_maintenance = in_maintenance or object_in_maintenance(snapshot, finding.node, config)
    if in_maintenance or snapshot.nodes[finding.node].state in IN_REPAIR:
        return in_maintenance  # one that is in repair counts already
    limit = scaled(config.repair.nodes_at_once_share, len(snapshot.nodes), config.repair.nodes_at_once_max)
    if len(already) + sum(_counts_as_in_repair(snapshot, node) for node in snapshot.set_apart) >= limit:
        return Objection(
            Because.REPAIR_BUDGET,
            f"{counted(limit, 'node is', 'nodes are')} in repair or validation already, which is the limit",
        )
    return _object_so_soon(snapshot, config, tried)


def _counts_as_in_repair(snapshot: Snapshot, node: NodeView) -> bool:
    """Not one that waits for the end of a maintenance before its validation begins."""
    if node.state not in IN_REPAIR or node.record.tested_in_service:
        return False
    waits = node.name in snapshot.worked_on or (node.slurm is not None and node.slurm.in_maintenance)
    return not waits or any(node.name in one.plan.claimed for one in snapshot.recoveries)


def _object_under_maintenance(snapshot: Snapshot, name: str) -> Objection | None:
    if name not in snapshot.worked_on:
        return None
    number = next(one.id for one in snapshot.operator.maintenances if name in one.unfinished)
    return Objection(Because.MAINTENANCE, f"it is under maintenance {number}: it waits until that is over")


def object_to_probe(
    snapshot: Snapshot, config: Config, finding: Finding, tried: Sequence[RepairAttempt], already: Collection[str]
) -> Objection | None:
    """Objects to testing a suspect, which may end in quarantine, unless there is room for that: for it, and for those
    that are tested already. Validations that operators asked for do not count.
    """
    under_test = {*already, *(node.name for node in snapshot.notable if _is_probed(node))}
    limit = scaled(
        config.validation.suspects_at_once_share, len(snapshot.nodes), config.validation.suspects_at_once_max
    )
    return (
        object_to_quarantine(snapshot, config, finding, under_test)
        or (
            Objection(Because.REPAIR_BUDGET, f"{limit} suspects are tested already, which is the limit")
            if len(under_test) >= limit
            else None
        )
        or _object_so_soon(snapshot, config, tried)
    )


def _is_probed(node: NodeView) -> bool:
    return node.record.validation_origin is ValidationOrigin.SUSPECT_PROBED


def _object_so_soon(snapshot: Snapshot, config: Config, tried: Sequence[RepairAttempt]) -> Objection | None:
    last = max((one.ended_at or one.at for one in tried), default=0.0)
    if last + config.repair.cooldown_seconds > snapshot.now:
        words = f"the last attempt on it ended less than {config.repair.cooldown_seconds:g} s ago"
        return Objection(Because.COOLDOWN, words)
    return None


def _touched(finding: Finding | None) -> tuple[tuple[str, ...], JobKey | None]:
    return (finding.concerned, finding.job) if finding is not None else ((), None)


def object_to_any(
    snapshot: Snapshot, about: Finding | None, *, requested: bool = False, proven: bool = False
) -> Objection | None:
    """Guards that hold for every effect on Slurm. Neither a pause nor what many nodes or gangs show holds back what is
    `requested` by a person; the latter nor what a node's own hardware has `proven`.
    """
    by_mode = object_to_mode(snapshot, *_touched(about))
    if by_mode is not None:
        return by_mode
    if snapshot.operator.breaker_holds_all:
        return object_while_open(snapshot)
    if snapshot.operator.paused and not requested:
        return Objection(
            Because.PAUSED,
            f"an operator has paused the control plane ({snapshot.operator.paused}): "
            "`understudy resume REASON` ends that",
        )
    if snapshot.slurm.error or snapshot.slurm.read_at is None:
        return Objection(Because.SLURM_UNREADABLE, "Slurm cannot be read, so nothing is known for sure")
    if still_gathering(snapshot):
        return Objection(Because.GATHERING, "this control plane has just started, and not every node has reported yet")
    return None if proven or requested else _object_to_mass(snapshot)


def _object_to_mass(snapshot: Snapshot) -> Objection | None:
    """Many nodes or gangs show the same at once: the cause is elsewhere."""
    masses = ((Because.MASS_SILENCE, snapshot.round.mass_silence), (Because.MASS_HANG, snapshot.round.mass_hang))
    return next((Objection(because, words) for because, words in masses if words), None)


def object_to_quarantine(
    snapshot: Snapshot, config: Config, finding: Finding, already: Collection[str]
) -> Objection | None:
    """`already`: nodes whose quarantine was decided in this same round."""
    by_rule = _object_to_rule_of(snapshot.nodes[finding.node], finding, config)
    requested = finding.request is not None
    general = object_to_any(snapshot, finding, requested=requested, proven=finding.proven)
    general = general or object_while_open(snapshot) or by_rule
    if general:
        return general
    lately = failures(snapshot, lately_quarantined(snapshot, config) | set(already) | {finding.node})
    if len(lately) > breaker_limit(snapshot, config):
        return Objection(Because.BREAKER, "it would be one too many at once for the circuit breaker")
    words = over_fleet_budget(snapshot, config, already, finding.node)
    if words:
        return Objection(Because.FLEET_BUDGET, words)
    recent = quarantined_within_the_hour(snapshot, already, finding.node)
    per_hour = hourly_limit(snapshot, config)
    if recent >= per_hour:
        words = f"{counted(recent, 'node was', 'nodes were')} quarantined within the hour; the limit is {per_hour}"
        return Objection(Because.HOURLY_BUDGET, words)
    words = "" if requested else over_rule_budget(snapshot, finding.rule, already)
    if words:
        return Objection(Because.RULE_BUDGET, words)
    return _object_for_domains(snapshot, config, finding.node, already)


def over_fleet_budget(snapshot: Snapshot, config: Config, already: Collection[str], node: str) -> str:
    held, counting = quarantined_beside(snapshot, config, already, node)
    limit, ceiling = quarantine_limit(snapshot, config), _quarantine_ceiling(snapshot, config)
    out = len(snapshot.at_fault.union(already))
    if counting >= limit:
        beside = f", besides {held - counting} that wait for a person" if held > counting else ""
        return f"{counted(counting, 'node is', 'nodes are')} quarantined already{beside}; the limit is {limit}"
    if out >= ceiling:
        return f"{counted(out, 'node is', 'nodes are')} out of service already; the limit of all together is {ceiling}"
    return ""


def quarantined_within_the_hour(snapshot: Snapshot, already: Collection[str] = (), node: str = "") -> int:
    """Quarantines besides that of `node`. A node counts as often as it was quarantined, a failed domain once."""
    times = {
        name: sum(at > snapshot.ago(HOUR_SECONDS) for at in found)
        for name, found in snapshot.history.quarantined_at.items()
    }
    counts = Counter({name: count for name, count in times.items() if count})
    counts.update(already)
    single = sum(count for name, count in counts.items() if name not in snapshot.failed_domain_of)
    domains = {domain for name, domain in snapshot.failed_domain_of.items() if name in counts}
    return single + len(domains - failures(snapshot, [node]))


def object_to_gang_action(snapshot: Snapshot, config: Config, finding: Finding) -> Objection | None:
    """Objects to moving or restarting a gang if no node is taken out of service for it. A gang that is on its way
    already gets there: it does not run, and waiting saves nothing.
    """
    if finding.request is not None:
        return object_to_operator(snapshot, finding) or object_while_open(snapshot)
    incident = snapshot.incident_of(finding.node) if finding.signal is Signal.GANG_STRANDED else None
    proven = incident is not None and incident.signal == Signal.HARDWARE_FAULT
    general = object_to_any(snapshot, finding, proven=proven)
    if general or (finding.job is not None and is_on_its_way(snapshot, finding.job)):
        return general
    objection = object_while_open(snapshot) or _object_to_rule_named(finding.rule, config)
    if objection is not None or incident is None:
        return objection
    accusing = [rule for rule in incident.accused_by if rule != finding.rule] or [incident.rule]
    objections = [_object_to_rule_named(rule, config) for rule in accusing]
    return objections[0] if all(objections) else None


def is_on_its_way(snapshot: Snapshot, job: JobKey) -> bool:
    """The job is being moved or restarted, and its processes have not started yet."""
    recovery = snapshot.recovery_of(job)
    credited = recovery is not None and isinstance(recovery.plan, LauncherRestartPlan)
    return recovery is not None and not credited and not _has_processes(recovery)


def _has_processes(recovery: Recovery) -> bool:
    processes = recovery.step(StepName.AWAIT_PROCESSES)
    return processes is not None and processes.status is StepStatus.DONE


SHUT = frozenset({"DOWN", "INACTIVE"})
"""States of partitions in which no job starts."""


def object_to_move(
    snapshot: Snapshot, config: Config, job: Job, leaving: Collection[str], already: Sequence[SwapPlan]
) -> Objection | None:
    """Budgets of gang moves and restarts. `leaving`: the nodes that the gang leaves, empty where none is named;
    `already`: what was decided in this same round.

    A gang that is on its way already, and goes elsewhere now, counts once.
    """
    if is_on_its_way(snapshot, job.key):
        return None
    opened = object_while_open(snapshot)
    if opened is not None:
        return opened
    policy, nodes = config.guards, len(snapshot.nodes)
    newer = {plan.supersedes for plan in already}
    running = [one for one in snapshot.recoveries if one.swap and one.id not in newer and not _has_processes(one)]
    moving = [plan for plan in (*(one.swap for one in running), *already) if plan is not None and plan.stops_gang]
    limit = scaled(policy.gang_moves_share, nodes, policy.gang_moves_min)
    if len(moving) >= limit:
        words = f"{counted(len(moving), 'gang is', 'gangs are')} being moved or restarted already; the limit is {limit}"
        return Objection(Because.MOVE_BUDGET, words)
    recent = len([plan for plan in already if plan.stops_gang]) + len(snapshot.history.swaps)
    limit = scaled(policy.gang_moves_per_hour_share, nodes, policy.gang_moves_per_hour_min)
    if recent >= limit:
        words = f"{counted(recent, 'gang was', 'gangs were')} moved or restarted within the hour; the limit is {limit}"
        return Objection(Because.MOVE_BUDGET, words)
    return _object_to_move_in_domains(snapshot, config, leaving or job.slurm.nodes, moving)


def object_to_requeue(snapshot: Snapshot, job: Job) -> Objection | None:
    """Objects to the requeue of a running gang in a partition in which Slurm starts no job, and lets running ones go
    on.
    """
    states = {name: snapshot.slurm.partition_states.get(name, "") for name in job.slurm.partition.split(",")}
    if not all(state in SHUT for state in states.values()):
        return None
    named = " and ".join(f"{name}, which is {state}" for name, state in states.items())
    return Objection(Because.PARTITION_DOWN, f"Slurm starts no job in partition {named}")


def _object_to_move_in_domains(
    snapshot: Snapshot, config: Config, leaving: Collection[str], moving: Sequence[SwapPlan]
) -> Objection | None:
    """A domain that holds most of the fleet, as a partition may, is bounded by the fleet's own limits."""
    policy = config.guards
    elsewhere = [_domains(snapshot, _left_by(snapshot, plan)) for plan in moving]
    for domain in sorted(_domains(snapshot, leaving)):
        if 2 * len(snapshot.domains[domain]) > len(snapshot.nodes):
            continue
        gangs = snapshot.gangs_in.get(domain, 0)
        limit = scaled(policy.gang_moves_domain_share, gangs, policy.gang_moves_domain_min)
        count = sum(domain in one for one in elsewhere)
        if count >= limit:
            words = (
                f"{counted(count, 'gang')} of {gangs} with nodes in {domain} {'is' if count == 1 else 'are'} being "
                f"moved or restarted already; the limit is {limit}"
            )
            return Objection(Because.MOVE_BUDGET, words)
    return None


def _left_by(snapshot: Snapshot, plan: SwapPlan) -> Collection[str]:
    left = (*plan.nodes, *plan.leaving)
    job = snapshot.jobs.get(plan.job)
    return left or (job.slurm.nodes if job is not None else ())


def _domains(snapshot: Snapshot, nodes: Collection[str]) -> set[str]:
    return {domain for name in nodes for domain in snapshot.domains_of.get(name, ())}


def _object_for_domains(snapshot: Snapshot, config: Config, node: str, already: Collection[str]) -> Objection | None:
    """Partitions, racks, blocks: what has a power supply, a switch or a purpose of its own. A domain that failed as a
    whole holds back none of its nodes, and no more do those inside it.
    """
    whole = set(snapshot.domains.get(snapshot.failed_domain_of.get(node, ""), ()))
    for domain in snapshot.domains_of.get(node, ()):
        if whole and whole.issuperset(snapshot.domains[domain]):
            continue
        size = len(snapshot.domains[domain])
        limit = max(1, int(config.guards.domain_share_max * size))
        held = snapshot.quarantined_in[domain] + sum(domain in snapshot.domains_of.get(name, ()) for name in already)
        if held >= limit:
            verb = "is" if limit == 1 else "are"
            words = f"{counted(limit, 'node')} of {size} in {domain} {verb} quarantined already, which is the limit"
            return Objection(Because.DOMAIN_BUDGET, words)
    return None
