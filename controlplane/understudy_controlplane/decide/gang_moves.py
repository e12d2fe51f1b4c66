"""What becomes of the gangs on condemned nodes, and of gangs that hang."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from understudy_controlplane.config import NoSpare
from understudy_controlplane.decide import allocation_swap, failed_switch, guards, hangs, plans, spares
from understudy_controlplane.decide.approvals import is_refused
from understudy_controlplane.decide.decision_context import Round
from understudy_controlplane.decide.foreign_reservations import foreign_reservations, in_the_way_of, is_in_the_way
from understudy_controlplane.decide.new_seats import new_seats, new_seats_after_hang
from understudy_controlplane.decide.preemption import NOTHING_PREEMPTED, Preemptible
from understudy_controlplane.decide.spare_turns import share_had, turn
from understudy_controlplane.decide.whole_blocks import Leaving, NoRoom, Whole
from understudy_controlplane.detect.stopped import is_given_away
from understudy_controlplane.fleet.counted import times
from understudy_controlplane.fleet.decision import Because, Stays
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.finding import HANGS, Finding, Signal
from understudy_controlplane.fleet.gang import ENDED_WELL
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.node import OUT_OF_SERVICE
from understudy_controlplane.fleet.recovery import Plan, PoolSwapPlan, Recovery, RecoveryStatus, SwapPlan, job_of
from understudy_controlplane.fleet.slurm import SWITCHED_OFF, Service
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.topology import shown


@dataclass(frozen=True, slots=True)
class Move:
    """What becomes of a gang; without a plan it stays where it is, for the reason given."""

    plan: Plan | None
    because: Because
    words: str
    evidence: Mapping[str, Json] = field(default_factory=dict)  # how the spares were chosen
    stays: Stays | None = None  # where only a person can move it


def _left(job: Job, why: str) -> Move:
    """No guard holds the gang back, and waiting changes nothing."""
    words = f"job {job.key.job_id} {why}: left to a person"
    return Move(None, Because.LEFT_TO_PERSON, words, stays=Stays(job.key, why))


MOVED_ALREADY = Move(None, Because.RULE, "the gang is moved for another reason already")


def move_key(finding: Finding) -> tuple[str, bool, JobKey | None]:
    """Key of the move. One node may need several: a move off it, the restart of a gang that hangs there, and new seats
    for each gang that it has stopped.
    """
    stopped = finding.signal is Signal.GANG_STOPPED
    return finding.label, finding.signal in HANGS, finding.job if stopped else None


def gang_moves(current: Round, findings: Sequence[Finding]) -> dict[tuple[str, bool, JobKey | None], Move]:
    """`move_key` of a finding → what becomes of the gang that hangs, or has a seat on its node. A node without one is
    left out.
    """
    moves: dict[tuple[str, bool, JobKey | None], Move] = {}
    hung = [finding for finding in findings if finding.signal in HANGS]
    stopped = [finding for finding in findings if finding.signal is Signal.GANG_STOPPED]
    findings = [finding for finding in findings if finding not in hung and finding not in stopped]
    for job in _in_turn(current, findings):
        seats = _seats(current.snapshot, job)
        own = [finding for finding in findings if finding.node in seats and _concerns(finding, job)]
        if not own or any(move_key(finding) in moves and moves[move_key(finding)].plan for finding in own):
            continue  # another gang leaves the same node in this round: this one does in the next
        move = (
            (None if job.key in current.snapshot.progress.past_its_gang else _done(current.snapshot, job))
            or _left_alone(current.snapshot, job, own)
            or _move_inside(current, job, own)
            or _move(current, job, own, seats)
        )
        current = current.after(move.plan)
        moves.update((move_key(finding), move) for finding in own)
    moved = {job_of(move.plan) for move in moves.values() if move.plan}
    for job, finding in _stopped_in_turn(current, stopped):
        move = MOVED_ALREADY if job.key in moved else _start_again(current, job, finding)
        current = current.after(move.plan)
        moves[move_key(finding)] = move
    moved = {job_of(move.plan) for move in moves.values() if move.plan}
    for key in dict.fromkeys(finding.job for finding in hung):
        own = [finding for finding in hung if finding.job == key]
        move = MOVED_ALREADY if key in moved else _restart(current, own)
        current = current.after(move.plan)
        for finding in own:
            moves.setdefault(move_key(finding), move)
    return moves


def _in_turn(current: Round, findings: Sequence[Finding]) -> list[Job]:
    """The gangs on these nodes, those that lose a node before those that operators move."""
    snapshot, config = current.snapshot, current.config
    lost = {finding.node for finding in findings if finding.signal is not Signal.MOVE_ASKED}
    jobs = gangs_on(snapshot, {finding.node for finding in findings})
    return sorted(jobs, key=lambda job: (lost.isdisjoint(_seats(snapshot, job)), turn(snapshot, config, job)))


def _stopped_in_turn(current: Round, findings: Sequence[Finding]) -> list[tuple[Job, Finding]]:
    found = [(current.snapshot.jobs[one.job], one) for one in findings if one.job is not None]
    return sorted(found, key=lambda pair: turn(current.snapshot, current.config, pair[0]))


def _start_again(current: Round, job: Job, finding: Finding) -> Move:
    """It gets those of its last nodes that it can have, and spares for the others."""
    snapshot = current.snapshot
    last = snapshot.progress.last_attempts.get(job.key)
    seats = (
        last.nodes
        if last is not None
        else (*dict.fromkeys((*job.slurm.nodes, *snapshot.progress.gangs[job.key].nodes)),)
    )
    left = [name for name in seats if name in finding.nodes or _is_taken(current, job, name)]
    left.sort(key=lambda name: name != finding.node)  # Slurm may not know others any more
    own = [replace(finding, node=name) for name in left]
    return _left_alone(snapshot, job, own) or _move(current, job, own, seats)


def _is_taken(current: Round, job: Job, name: str) -> bool:
    """True if the gang cannot have this node again just now, though it is well."""
    snapshot, node = current.snapshot, current.snapshot.nodes.get(name)
    if node is None or node.service is not Service.USABLE or node.is_spare or node.state in OUT_OF_SERVICE:
        return True
    plans_of_others = [
        *(one.plan for one in snapshot.recoveries if job_of(one.plan) != job.key),
        *(plan for plan in current.moves if plan.job != job.key),
    ]
    return (
        any(name in plan.claimed for plan in plans_of_others)
        or name in in_the_way_of(snapshot, job, current.config)
        or is_given_away(snapshot, job, name)
    )


def _before(current: Round, job: Job) -> str:
    """Gangs that got spares in this round before this one, and why."""
    jobs = current.snapshot.jobs
    others = [jobs[plan.job] for plan in current.moves if isinstance(plan, PoolSwapPlan) and plan.job in jobs]
    if not others:
        return ""
    named = ", ".join(f"job {one.key.job_id} (priority {one.slurm.priority})" for one in others[:8])
    had = share_had(current.snapshot, current.config, job)
    return f"; {named} came before it (priority {job.slurm.priority}{'; ' if had else ''}{had})"


def _switched_off(snapshot: Snapshot) -> str:
    """Spares that only have to boot."""
    off = sorted(
        (one.name for one in snapshot.notable if one.is_spare and one.slurm and one.slurm.flags & SWITCHED_OFF),
        key=spares.natural,
    )
    if not off:
        return ""
    return (
        f"; power saving has switched {shown(off)} off: `scontrol update nodename={','.join(off[:8])} state=power_up` "
        "starts them"
    )


def _reserved(current: Round, job: Job, failed: str) -> str:
    """Jobs for which fitting spares are kept."""
    count = len(current.reserved_from(job, failed))
    holders = ", ".join(spares.kept_for_others(job, current.config.spares))
    return f"; {count} more {'is' if count == 1 else 'are'} reserved for {holders}" if count else ""


OF_ONE_GANG = frozenset({Signal.MOVE_ASKED, Signal.NEWCOMER_FAILED, Signal.SEAT_LOST})
"""Signals that concern one gang, on a node that other gangs may have as well, and keep."""


def _concerns(finding: Finding, job: Job) -> bool:
    return finding.signal not in OF_ONE_GANG or finding.job == job.key


def _restart(current: Round, findings: Sequence[Finding]) -> Move:
    """What becomes of a gang that hangs."""
    key = findings[0].job
    job = current.snapshot.jobs.get(key) if key is not None else None
    if job is None or not job.managed or not job.running:
        return Move(None, Because.RULE, "the control plane does not manage the job")
    snapshot = current.snapshot
    objection = _done(snapshot, job) or _left_alone(snapshot, job, findings) or _cannot_restart(current, job, findings)
    if objection is not None:
        return objection
    named = [finding.node for finding in findings if finding.signal is Signal.GANG_HUNG]
    old = tuple(dict.fromkeys((*hangs.lost_if_requeued(snapshot, job.slurm.nodes), *named)))
    behind = failed_switch.seats_behind(snapshot, job, inside=_inside(current, job))
    return (
        _held_back(current, job, named)
        or _behind_switch(current, job, findings, behind, old)
        or _restarted(current, job, findings, behind, old)
    )


def _behind_switch(
    current: Round, job: Job, findings: Sequence[Finding], behind: Sequence[str], old: Sequence[str]
) -> Move | None:
    """None: it is restarted as any other gang that hangs, but not on the nodes of `behind`."""
    snapshot = current.snapshot
    if waits := failed_switch.waits_for(snapshot, behind, current.config):
        return Move(None, Because.RULE, f"job {job.key.job_id} stays where it is: {waits}")
    if not _inside(current, job):
        return None
    if not failed_switch.can_be_left_inside(
        snapshot, snapshot.progress.gangs[job.key], behind, {*current.condemned, *old}
    ):
        return None
    named = failed_switch.named_too(findings, behind)
    plan, words = hangs.restart_inside(snapshot, job, named, current.condemned, current.config)
    return Move(plan, Because.RULE, f"{words} without {shown(behind)}")


def _restarted(
    current: Round, job: Job, findings: Sequence[Finding], behind: Sequence[str], old: Sequence[str]
) -> Move:
    snapshot = current.snapshot
    found = new_seats_after_hang(current, job, old)
    if not {*behind} <= {*old, *found.given_up}:
        return Move(None, Because.NO_SPARE, failed_switch.no_room(job, behind))
    inside = _inside(current, job) and not _leaves_its_block(current, job, {*old, *found.given_up})
    if len(found.placement.taken) < len(hangs.lost_if_requeued(snapshot, job.slurm.nodes)) and not inside:
        words = f"no spare for job {job.key.job_id} with which Slurm would start it in the blocks that it needs"
        return Move(None, Because.NO_SPARE, words)
    if inside and not {*behind} <= {*old}:
        return Move(None, Because.NO_SPARE, failed_switch.no_room(job, behind))
    if inside:
        inside_plan, words = hangs.restart_inside(snapshot, job, findings, current.condemned, current.config)
        return Move(inside_plan, Because.RULE, words)
    missing = snapshot.missing(job, old)
    free = [name for name in current.fitting(job, job.slurm.nodes[0]) if name not in found.placement.taken]
    if len(free) < missing:
        words = f"no fitting {_wanted(current)} for job {job.key.job_id}: {len(free)} free, {missing} needed"
        return Move(None, Because.NO_SPARE, f"{words}: requeued, it asks for as many nodes as at its start")
    chosen = (*found.placement.taken, *free[:missing])
    plan, words = hangs.requeue(snapshot, job, findings, found, chosen, current.drained_elsewhere(job))
    return Move(plan, Because.RULE, words, found.placement.evidence)


def _inside(current: Round, job: Job) -> bool:
    """Its launcher can restart it."""
    return job.key in current.snapshot.progress.gangs and not allocation_swap.why_not(
        current.snapshot, job, (), current.condemned
    )


def _leaves_its_block(current: Round, job: Job, leaving: Collection[str]) -> bool:
    """Its launcher would start it again in a block whose fabric has failed, and it can leave all of that block."""
    snapshot = current.snapshot
    broken = snapshot.without_fabric.intersection(snapshot.progress.gangs[job.key].seats)
    movable = not _is_over(snapshot, job) and not _cannot_move(current, job, (), job.slurm.nodes)
    return bool(broken) and broken <= set(leaving) and movable


def _done(snapshot: Snapshot, job: Job) -> Move | None:
    """A job that has finished never runs again, also where Slurm still shows it as running, and where a person wants
    the move. With its gang gone it cannot hang, whatever else it does.
    """
    if job.key not in snapshot.progress.ended_well:
        return None
    return Move(None, Because.RULE, f"job {job.key.job_id} is not to run again ({ENDED_WELL})")


def _left_alone(snapshot: Snapshot, job: Job, findings: Sequence[Finding]) -> Move | None:
    """Leaves the gang alone if a person wishes it, unless a person wants this very move."""
    if any(finding.signal is Signal.MOVE_ASKED for finding in findings):
        return None
    return _paused(snapshot, job) or _cancelled(snapshot, job, findings)


def _paused(snapshot: Snapshot, job: Job) -> Move | None:
    objection = guards.object_to_paused_job(snapshot, job.key)
    return Move(None, objection.because, objection.words) if objection is not None else None


def _cancelled(snapshot: Snapshot, job: Job, findings: Sequence[Finding]) -> Move | None:
    """An operator cancelled the move of this attempt, away from these nodes or out of this hang: it is not repeated."""
    for recovery in snapshot.history.cancelled:
        plan = recovery.swap
        same = plan is not None and plan.job == job.key and plan.restart_count == snapshot.attempt_given_up(job)
        if plan is not None and same and _is_for(snapshot, job, recovery, plan, findings):
            words = f"recovery {recovery.id} of job {job.key.job_id} was {recovery.outcome}: left to a person"
            return Move(None, Because.CANCELLED, words)
    return None


def _is_for(snapshot: Snapshot, job: Job, recovery: Recovery, plan: SwapPlan, findings: Sequence[Finding]) -> bool:
    """True if the plan was made for the same: a hang since which no step was made, the same nodes and faults, or the
    attempt of a gang that waits since.
    """
    if any(finding.signal is Signal.GANG_STOPPED for finding in findings):
        return True
    hangs = any(finding.signal in HANGS for finding in findings)
    if plan.hang:
        table = snapshot.progress.tables.get(job.key)
        return hangs and (table is None or table.advanced_at <= recovery.decided_at)
    left = {*plan.nodes, *plan.leaving}
    if isinstance(plan, PoolSwapPlan):
        left |= {*job.slurm.nodes} - {*plan.seats}
    return all(finding.node in left and is_refused(recovery, finding) for finding in findings)


def _cannot_restart(current: Round, job: Job, findings: Sequence[Finding]) -> Move | None:
    snapshot, config = current.snapshot, current.config
    gang = snapshot.progress.gangs.get(job.key)
    by_its_launcher = gang is not None and not allocation_swap.why_not(snapshot, job, (), current.condemned)
    not_movable = "" if by_its_launcher else _cannot_move(current, job, findings, job.slurm.nodes)
    over = "" if by_its_launcher else _is_over(snapshot, job)
    spent = hangs.too_often(snapshot, job, config)
    gone = () if by_its_launcher else hangs.lost_if_requeued(snapshot, job.slurm.nodes)
    no_seat = bool(gone) and len(current.fitting(job, gone[0])) < len(gone)
    number, leaving = job.key.job_id, hangs.leaving_service(snapshot, job)
    reasons = (
        (bool(leaving), Because.RULE, f"{', '.join(leaving)} is drained first: job {number} is restarted after that"),
        (guards.is_on_its_way(snapshot, job.key), Because.RULE, f"job {number} is being restarted already"),
        (bool(spent), Because.RESTART_BUDGET, spent),
        (
            gang is not None and allocation_swap.may_reconnect(snapshot, gang),
            Because.GATHERING,
            _not_reconnected(job),
        ),
        (_moved_too_often(current, job), Because.JOB_BUDGET, _too_often(current, job).words),
        (bool(over), Because.RULE, f"job {number} {over}"),
        (bool(not_movable), Because.LEFT_TO_PERSON, not_movable),
        (no_seat, Because.NO_SPARE, f"no spare for {', '.join(gone)}, on which job {number} may not start again"),
    )
    found = next((Move(None, because, words) for holds, because, words in reasons if holds), None)
    return _left(job, found.words) if found is not None and found.because is Because.LEFT_TO_PERSON else found


def _move_inside(current: Round, job: Job, findings: Sequence[Finding]) -> Move | None:
    """Move within the job's own allocation, by its launcher. None: impossible, the pool is asked."""
    snapshot = current.snapshot
    gang = snapshot.progress.gangs.get(job.key)
    if gang is None:
        return None
    if allocation_swap.may_reconnect(snapshot, gang):
        return Move(None, Because.GATHERING, _not_reconnected(job))
    seated = {finding.node for finding in findings} & set(gang.seats)
    if allocation_swap.why_not(snapshot, job, findings, current.condemned):
        return None if seated else Move(None, Because.RULE, f"job {job.key.job_id} does not use it now")
    placement = allocation_swap.placed(snapshot, job, findings, current.config, current.condemned)
    plan, words = allocation_swap.swap(snapshot, job, findings, current.config, current.undrained, placement)
    held = _held_back(current, job, seated) if seated else None
    return held or Move(plan, Because.RULE, words, placement.evidence)


def _not_reconnected(job: Job) -> str:
    return f"this control plane has just started, and the launcher has not reported yet: job {job.key.job_id}"


def _held_back(current: Round, job: Job, leaving: Collection[str]) -> Move | None:
    """Objection of a limit of the job's own, or of the fleet's."""
    if _moved_too_often(current, job):
        return _too_often(current, job)
    objection = guards.object_to_move(current.snapshot, current.config, job, leaving, current.moves)
    if objection is None:
        return None
    return Move(None, objection.because, f"job {job.key.job_id} stays where it is, because {objection.words}")


def _moved_too_often(current: Round, job: Job) -> bool:
    return _moved_lately(current, job) >= _moves_an_hour(current, job)


def _moved_lately(current: Round, job: Job) -> int:
    return sum(key == job.key for _, key in current.snapshot.history.swaps)


def _moves_an_hour(current: Round, job: Job) -> int:
    policy = current.config.jobs
    return guards.scaled(policy.swaps_per_hour_share, job.slurm.node_count, policy.swaps_per_hour_max)


def _too_often(current: Round, job: Job) -> Move:
    words = (
        f"a move of job {job.key.job_id} began {times(_moved_lately(current, job))} within the hour; the limit is "
        f"{_moves_an_hour(current, job)}: a person has to find out why"
    )
    return Move(None, Because.JOB_BUDGET, words)


def gangs_on(snapshot: Snapshot, bad: set[str]) -> list[Job]:
    """Managed jobs that have, or were promised, a seat on one of these nodes."""
    return [job for job in snapshot.jobs.values() if job.managed and bad & set(_seats(snapshot, job))]


def gangs_by_node(snapshot: Snapshot) -> dict[str, list[JobKey]]:
    """The same for every node that has any."""
    found: dict[str, list[JobKey]] = {}
    for job in snapshot.jobs.values():
        for name in dict.fromkeys(_seats(snapshot, job)) if job.managed else ():
            found.setdefault(name, []).append(job.key)
    return found


def _seats(snapshot: Snapshot, job: Job) -> tuple[str, ...]:
    recovery = snapshot.recovery_of(job.key)
    plan = recovery.plan if recovery is not None else None
    if isinstance(plan, PoolSwapPlan) and not (job.running and job.slurm.restart_count > plan.restart_count):
        return plan.seats
    host = [name for name, jobs in snapshot.headless.items() if job in jobs]
    return (*job.slurm.nodes, *host) if job.running else ()


def _move(current: Round, job: Job, findings: Sequence[Finding], seats: Sequence[str]) -> Move:
    """Move to spares from the pool."""
    snapshot = current.snapshot
    if not_movable := _not_movable(current, job, findings, seats):
        return not_movable
    gone, leaving = _gone(snapshot, seats, findings), [finding.node for finding in findings]
    held = (
        _would_wait(snapshot, job, findings) or _held_back(current, job, leaving) or _after_drain(snapshot, job, gone)
    )
    if held is not None:
        return held
    removed = snapshot.missing(job, (*seats, *leaving))
    needed = len(findings) + len(gone) + removed
    free = [name for name in current.fitting(job, findings[0].node) if name not in seats or name in leaving]
    preempted = _preempted(current, job, findings[0].node, needed - len(free))
    if len(free) + len(preempted.nodes) < needed:
        words = f"no fitting {_wanted(current)} for job {job.key.job_id}: {len(free)} free, {needed} needed"
        return _without_spares(current, job, findings, words, preempted)
    left = [*gone, *(finding.node for finding in findings), *([""] * removed)]
    found = _placed(current, Leaving(job, seats, left, [*free, *(one.name for one in preempted.nodes)]))
    if isinstance(found, NoRoom):
        words = f"no spare for job {job.key.job_id}: {found.words}; it {_stays(job)} until there is one"
        words += _before(current, job)
        return Move(None, Because.NO_SPARE, words)
    others = [
        other.key.job_id
        for name in [
            *(finding.node for finding in findings if finding.dead),
            *(name for name in gone if snapshot.nodes[name].is_mute(snapshot.now)),
        ]
        for other in snapshot.holders_of(name)
        if not other.managed
    ]
    if others:
        # A dead node has to be declared down before the gang can be requeued, and that would end these as well.
        words = f"job {others[0]}, which is not managed, has the dead node too: left to Slurm's own timeout"
        return Move(None, Because.RULE, words)
    placement, given_up, victims = found.placement, found.given_up, preempted.jobs
    plan = plans.swap_plan(
        snapshot,
        job,
        findings,
        seats,
        placement.taken,
        gone=gone,
        drained_elsewhere=current.drained_elsewhere(job),
        undrained=current.undrained,
        preempted=victims,
        given_up=given_up,
    )
    words = f"job {job.key.job_id} moves to {', '.join(placement.taken)}{placement.words}{_ended(snapshot, victims)}"
    shown: list[Json] = [one.key.job_id for one in victims]
    return Move(plan, Because.RULE, words, placement.evidence | ({"preempted": shown} if shown else {}))


def _placed(current: Round, leaving: Leaving) -> Whole | NoRoom:
    """Seats on the nodes that an operator has approved for the gang, while they fit: the best idle node changes from
    round to round.
    """
    for one in reversed(current.snapshot.proposals):
        plan = one.plan
        if one.status is RecoveryStatus.APPROVED and isinstance(plan, PoolSwapPlan) and plan.job == leaving.job.key:
            known = [name for name in leaving.candidates if name in plan.spares]
            if len(known) < max(len(plan.spares), len(leaving.left)):
                continue
            found = new_seats(current, replace(leaving, candidates=known))
            if isinstance(found, Whole):
                return found
    return new_seats(current, leaving)


def _wanted(current: Round) -> str:
    return "spare or idle node" if current.config.spares.no_spare.takes_idle else "spare"


def _without_spares(current: Round, job: Job, findings: Sequence[Finding], words: str, preempted: Preemptible) -> Move:
    """It stays, unless nothing of it is left."""
    snapshot, nodes = current.snapshot, job.slurm.nodes
    over = _why_over(current, job, findings) if job.running else ""
    if over:
        plan = plans.swap_plan(snapshot, job, findings, nodes, (), gone=_gone(snapshot, nodes, findings))
        words += f"; {over}, so it is requeued, and Slurm starts it where it finds nodes"
        return Move(msgspec.structs.replace(plan, steps=plans.DEAD_GANG_STEPS), Because.RULE, words)
    words += f"; it {_stays(job)} until there is one"
    words += _before(current, job) + _reserved(current, job, findings[0].node) + _not_preempted(preempted)
    return Move(None, Because.NO_SPARE, words + _switched_off(snapshot))


def _stays(job: Job) -> str:
    return "stays" if job.running else "waits"


def _why_over(current: Round, job: Job, findings: Sequence[Finding]) -> str:
    """Why nothing is lost by the requeue of a running gang; empty: it may go on."""
    if _is_dead(current.snapshot, job, findings):
        return "all its nodes are dead"
    gang = current.snapshot.progress.gangs.get(job.key)
    shrinks = current.config.spares.no_spare is NoSpare.SHRINK and gang is not None
    if gang is None or not gang.state.asks_requeue or (shrinks and gang.state.nodes_min < len(gang.seats)):
        return ""
    return "its launcher waits for that, and would end the job"


def _is_dead(snapshot: Snapshot, job: Job, findings: Sequence[Finding]) -> bool:
    """None of its nodes answers."""
    dead = {one.node for one in findings if one.dead}
    dead |= {name for name in job.slurm.nodes if name in snapshot.nodes and snapshot.nodes[name].is_mute(snapshot.now)}
    return {*job.slurm.nodes} <= dead


def _not_movable(current: Round, job: Job, findings: Sequence[Finding], seats: Sequence[str]) -> Move | None:
    if over := _is_over(current.snapshot, job):
        return Move(None, Because.RULE, f"job {job.key.job_id} {over}")
    why = _cannot_move(current, job, findings, seats)
    return _left(job, why) if why else None


def _would_wait(snapshot: Snapshot, job: Job, findings: Sequence[Finding]) -> Move | None:
    """A gang that works loses more by a requeue after which it does not start than by staying on a node at fault."""
    gang = snapshot.progress.gangs.get(job.key)
    over = not job.running or any(finding.dead for finding in findings) or (gang is not None and gang.leaving)
    objection = None if over else guards.object_to_requeue(snapshot, job)
    if objection is None:
        return None
    return Move(None, objection.because, f"job {job.key.job_id} stays where it is, because {objection.words}")


def _after_drain(snapshot: Snapshot, job: Job, gone: Collection[str]) -> Move | None:
    """A node is drained by one recovery at a time."""
    drained = [name for name in hangs.leaving_service(snapshot, job) if name in gone]
    words = f"{', '.join(drained)} is drained first: job {job.key.job_id} moves after that"
    return Move(None, Because.RULE, words) if drained else None


def _preempted(current: Round, job: Job, failed: str, missing: int) -> Preemptible:
    """Nodes, as many as are missing, whose jobs Slurm is to preempt, if the site wants that."""
    if missing <= 0 or current.config.spares.no_spare is not NoSpare.PREEMPT:
        return NOTHING_PREEMPTED
    found = current.preemptible(job, failed)
    return replace(found, nodes=found.nodes[:missing])


def _not_preempted(found: Preemptible) -> str:
    return f"; Slurm preempts nothing for it: {found.why_no_more}" if found.why_no_more else ""


def _ended(snapshot: Snapshot, jobs: Sequence[Job]) -> str:
    rules = snapshot.slurm.preemption
    named = (f"job {one.key.job_id} ({rules.end_of(one.slurm)})" for one in jobs) if rules is not None else ()
    words = ", ".join(named)
    return f"; there is no spare, and Slurm preempts {words} for it" if words else ""


def _gone(snapshot: Snapshot, seats: Sequence[str], findings: Sequence[Finding]) -> list[str]:
    """Nodes that the gang could stay on while it ran, or that its launcher left before, within its allocation: Slurm
    needs others in their place, too.
    """
    found = {finding.node for finding in findings}
    return [name for name in hangs.lost_if_requeued(snapshot, seats) if name not in found]


def _ended_in(snapshot: Snapshot, job: Job) -> bool:
    """The attempt that was to be given up has ended before, and not by its own failure."""
    recovery = snapshot.recovery_of(job.key)
    before = recovery.swap if recovery is not None else None
    requeued = before is not None and job.slurm.restart_count > before.restart_count
    return not requeued and job.key not in snapshot.progress.last_attempts and not job.slurm.failed_by_itself


def _is_over(snapshot: Snapshot, job: Job) -> str:
    """Why this gang is not started again, wherever it could run; empty: it may be."""
    slurm = job.slurm
    if slurm.ended or (slurm.completing and _ended_in(snapshot, job)):
        return f"is not to run again ({slurm.end_in_words})"
    return ""


def _cannot_move(current: Round, job: Job, findings: Sequence[Finding], seats: Sequence[str]) -> str:
    """Why this gang cannot be requeued onto other nodes; empty: it can."""
    snapshot, slurm = current.snapshot, job.slurm
    if not slurm.batch or not slurm.requeue:
        return "was not submitted as a batch job with --requeue"
    if slurm.not_alone or slurm.contiguous:
        return slurm.not_alone or "asked for nodes that follow each other (--contiguous), which Slurm alone can find"
    left = {*(finding.node for finding in findings), *hangs.lost_if_requeued(snapshot, seats)}
    insisted = left & set(slurm.required_nodes)
    if insisted:
        return f"asked for {', '.join(sorted(insisted))} by name (--nodelist) and cannot run without"
    for reservation in foreign_reservations(snapshot, job, current.config):
        taken = sorted(set(reservation.nodes) & set(seats) - left)
        if taken and is_in_the_way(reservation, job, snapshot.slurm_now):
            return f"would be seated on {', '.join(taken)} into the time of reservation {reservation.name}"
    return ""
