"""What each kind of event does to the world."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from tests.simulator.cluster import FABRIC, LICENCE, Gang, Machine
from tests.simulator.invariants import POOL
from tests.simulator.scenario import BROKEN_FOR_GOOD, DRAINING_XIDS, FATAL_XIDS, SWEEPER, Event, Kind
from understudy_controlplane.config import SignalKind
from understudy_controlplane.fleet.custody import Holder, in_slurm
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX
from understudy_controlplane.fleet.slurm import SlurmJob
from understudy_controlplane.slurm.protocol import SlurmError
from understudy_wire.facts import HardwareEvent, HardwareKind

if TYPE_CHECKING:
    from tests.simulator.world import World


def happen(world: World, event: Event) -> None:
    """Slurm may refuse what people ask of it."""
    with suppress(SlurmError):
        if event.kind in TO_NODES:
            TO_NODES[event.kind](world, event, world.cluster.machines[event.subject])
        elif event.kind in TO_GANGS:
            gang = world.cluster.gangs[int(event.subject)]
            job = world.jobs().get(gang.job_id)
            if job is not None and not job.ended:
                TO_GANGS[event.kind](world, event, gang, job)
        else:
            TO_ALL[event.kind](world, event)


def _until(world: World, event: Event) -> float:
    return world.now + event.seconds


# -- to a node ---------------------------------------------------------------------------------------------------------


def _dies(world: World, event: Event, machine: Machine) -> None:
    if machine.alive:
        machine.die(world.now)
        machine.accused_at = world.now
        machine.boots_at = _until(world, event) if event.seconds else math.inf
        world.slurm.kill_node(machine.name)


def _neighbours(world: World, event: Event, machine: Machine) -> list[Machine]:
    machines = list(world.cluster.machines.values())
    first = machines.index(machine)
    return machines[first : first + event.number]


def _rack_dies(world: World, event: Event, machine: Machine) -> None:
    died = _neighbours(world, event, machine)
    for one in died:
        _dies(world, event, one)
    world.invariants.failed_together({one.name for one in died})


def _xids_at_once(world: World, event: Event, machine: Machine) -> None:
    for one in _neighbours(world, event, machine):
        _xid(world, msgspec.structs.replace(event, number=FATAL_XIDS[0]), one)


def _nvlink_down(world: World, event: Event, machine: Machine) -> None:
    if machine.alive:
        machine.nvlink_down_until, machine.accused_at = _until(world, event), world.now


def _lacks_package(_world: World, _event: Event, machine: Machine) -> None:
    machine.lacks_package = True


def _memory_wears(world: World, event: Event, machine: Machine) -> None:
    machine.rows_remapped += event.number
    machine.accused_at = world.now


def _prolog_refuses(world: World, event: Event, machine: Machine) -> None:
    world.slurm.bad_prologs.add(machine.name)
    world.later(_until(world, event), lambda: world.slurm.bad_prologs.discard(machine.name))


def _xid(world: World, event: Event, machine: Machine) -> None:
    if machine.alive:
        machine.broken = event.number not in DRAINING_XIDS
        machine.accused_at = machine.broken_at = world.now
        machine.log_xid(event.number, world.now)


def _fails(world: World, event: Event, machine: Machine) -> None:
    _xid(world, msgspec.structs.replace(event, number=BROKEN_FOR_GOOD), machine)
    machine.repaired_at = _until(world, event)
    world.repair_at(machine.name, machine.repaired_at)


def _wrongly_accused(world: World, event: Event, machine: Machine) -> None:
    for one in _neighbours(world, event, machine):
        one.log_xid(BROKEN_FOR_GOOD, world.now)
        one.accused_at = world.now


OBSERVED_XID = 140
"""The rule of this one only observes, in all scenarios."""


def _observed_xid(world: World, _event: Event, machine: Machine) -> None:
    if machine.alive:
        machine.log_xid(OBSERVED_XID, world.now)
        machine.on_trial = True


def _drill(world: World, event: Event, machine: Machine) -> None:
    if world.drill(machine.name, BROKEN_FOR_GOOD, event.seconds):
        machine.accused_at = world.now


def _plans_maintenance(world: World, event: Event, machine: Machine) -> None:
    names = [one.name for one in _neighbours(world, event, machine)]
    world.slurm.plan_maintenance(names, event.seconds, MAINTENANCE_MINUTES)


MAINTENANCE_MINUTES = 30
"""Longer than a simulation takes."""


def _xid_of_program(world: World, event: Event, machine: Machine) -> None:
    if machine.alive:
        machine.log_xid(event.number, world.now)


def _slow(world: World, event: Event, machine: Machine) -> None:
    if machine.alive:
        machine.slow_until, machine.slow_shows = _until(world, event), bool(event.number)
        if machine.slow_shows:
            machine.slowed_at = world.now


def _port_down(world: World, event: Event, machine: Machine) -> None:
    if machine.alive:
        machine.port_down_since = machine.accused_at = world.now
        machine.port_up_at = _until(world, event) if event.seconds else math.inf


def _power_saves(world: World, event: Event, machine: Machine) -> None:
    if machine.alive and world.slurm.power_down(machine.name):
        machine.die(world.now)
        machine.boots_at = _until(world, event)


def _ping_missed(world: World, event: Event, machine: Machine) -> None:
    world.slurm.miss_ping(machine.name, event.seconds)


def _switch_reboots(world: World, event: Event, machine: Machine) -> None:
    began, what = world.now - event.seconds, HardwareKind.PORT_OUTAGE
    for one in _neighbours(world, event, machine):
        if one.alive:
            one.facts.append(HardwareEvent(one.boot_id, began, what, "mlx5_0/1", None, event.seconds))


def _agent_silent(world: World, event: Event, machine: Machine) -> None:
    machine.silent_until = _until(world, event)


def _management_cut(world: World, event: Event, machine: Machine) -> None:
    if machine.alive:
        machine.cut_until = max(_until(world, event), machine.cut_until)
        world.slurm.kill_node(machine.name)
        world.later(machine.cut_until, lambda: _reach_again(world, machine))


def _route_cut(world: World, event: Event, machine: Machine) -> None:
    if machine.alive:
        machine.unreachable_until = max(_until(world, event), machine.unreachable_until)


def _reach_again(world: World, machine: Machine) -> None:
    if machine.answers(world.now):
        world.slurm.start_node(machine.name)


def _messages_disturbed(world: World, event: Event, machine: Machine) -> None:
    machine.disturbed_until = _until(world, event)


def _validation_fails(_world: World, _event: Event, machine: Machine) -> None:
    machine.fails_validation = True


def _drains(world: World, _event: Event, machine: Machine) -> None:
    drained = {node.name for node in world.slurm.nodes() if node.draining}
    world.slurm.drain_by("admin", machine.name, "looks odd")
    world.invariants.was_drained_by_person(machine.name)
    if machine.name not in drained:  # it was resumed for its repair, and is the administrator's from now on
        world.invariants.ledger.taken.discard(machine.name)


def _resumes(world: World, _event: Event, machine: Machine) -> None:
    left_by_slurm = {node.name for node in world.slurm.nodes() if in_slurm(node).holder is Holder.SLURM}
    world.slurm.resume_node(machine.name)
    world.invariants.resumed_by_person(machine.name, down_by_slurm=machine.name in left_by_slurm)


def _cancels_test(world: World, _event: Event, machine: Machine) -> None:
    for job in world.slurm.jobs():
        if job.reservation == f"{NODE_HOLD_PREFIX}{machine.name}":
            world.slurm.cancel_job(job.job_id)


def _leaks(world: World, event: Event, machine: Machine) -> None:
    if world.report_signal(SignalKind.LEAK, machine.name, event.seconds):
        machine.accused_at = world.now


def _power_lost(world: World, event: Event, machine: Machine) -> None:
    racks = (unit for unit in world.slurm.topology() if unit.level == 0 and machine.name in unit.nodes)
    for rack in racks:
        world.report_signal(SignalKind.POWER, f"switch {rack.name}", event.seconds)


def _burn_ins(world: World, event: Event, machine: Machine) -> None:
    for one in _neighbours(world, event, machine):
        world.ask(Verb.BURN_IN, one.name)


def _asks(verb: Verb) -> Callable[[World, Event, Machine], None]:
    return lambda world, _event, machine: world.ask(verb, machine.name)


TO_NODES: dict[Kind, Callable[[World, Event, Machine], None]] = {
    Kind.NODE_DIES: _dies,
    Kind.RACK_DIES: _rack_dies,
    Kind.NVLINK_DOWN: _nvlink_down,
    Kind.MEMORY_WEARS: _memory_wears,
    Kind.LACKS_PACKAGE: _lacks_package,
    Kind.PROLOG_REFUSES: _prolog_refuses,
    Kind.XID: _xid,
    Kind.FAILS: _fails,
    Kind.WRONGLY_ACCUSED: _wrongly_accused,
    Kind.XIDS_AT_ONCE: _xids_at_once,
    Kind.XID_OF_PROGRAM: _xid_of_program,
    Kind.OBSERVED_XID: _observed_xid,
    Kind.DRILLS: _drill,
    Kind.PLANS_MAINTENANCE: _plans_maintenance,
    Kind.SLOW: _slow,
    Kind.PORT_DOWN: _port_down,
    Kind.POWER_SAVES: _power_saves,
    Kind.PING_MISSED: _ping_missed,
    Kind.SWITCH_REBOOTS: _switch_reboots,
    Kind.AGENT_SILENT: _agent_silent,
    Kind.MANAGEMENT_CUT: _management_cut,
    Kind.ROUTE_CUT: _route_cut,
    Kind.MESSAGES_DISTURBED: _messages_disturbed,
    Kind.VALIDATION_FAILS: _validation_fails,
    Kind.DRAINS: _drains,
    Kind.RESUMES: _resumes,
    Kind.HOLDS: _asks(Verb.HOLD),
    Kind.QUARANTINES: _asks(Verb.QUARANTINE),
    Kind.RELEASES: _asks(Verb.RELEASE),
    Kind.TESTS: _asks(Verb.VALIDATE),
    Kind.BURN_INS: _burn_ins,
    Kind.CANCELS_TEST: _cancels_test,
    Kind.RETIRES: _asks(Verb.RETIRE),
    Kind.LEAKS: _leaks,
    Kind.POWER_LOST: _power_lost,
}


# -- to a gang ---------------------------------------------------------------------------------------------------------


def _cancels(world: World, _event: Event, gang: Gang, _job: SlurmJob) -> None:
    gang.over, gang.ended_at = "cancelled", world.now
    world.slurm.cancel(gang.job_id)


def _ends(how: str) -> Callable[[World, Event, Gang, SlurmJob], None]:
    def end(world: World, _event: Event, gang: Gang, job: SlurmJob) -> None:
        """A gang that stands still completes nothing."""
        if job.state == "RUNNING" and (how != "completed" or gang.computes):
            gang.over, gang.ended_at = how, world.now
            world.slurm.end(gang.job_id, how.upper())

    return end


def _requeues(world: World, _event: Event, gang: Gang, job: SlurmJob) -> None:
    if job.state == "RUNNING":
        world.slurm.requeue_job(gang.job_id)


def _rank_hangs(world: World, event: Event, gang: Gang, _job: SlurmJob) -> None:
    if gang.computes:
        gang.hung_on = gang.seats[event.number - 1]
        gang.stop(world.now)


def _seat_slow(world: World, event: Event, gang: Gang, _job: SlurmJob) -> None:
    if gang.attempt is not None:
        _slow(world, event, world.cluster.machines[gang.seats[-1]])


def _seat_fails(world: World, event: Event, gang: Gang, _job: SlurmJob) -> None:
    if gang.attempt is not None:
        _xid(world, event, world.cluster.machines[gang.seats[0]])


def _seat_stays_broken(world: World, event: Event, gang: Gang, _job: SlurmJob) -> None:
    if gang.attempt is not None:
        _fails(world, event, world.cluster.machines[gang.seats[0]])


def _drained_seat_dies(world: World, event: Event, gang: Gang, _job: SlurmJob) -> None:
    if gang.attempt is not None:
        machine = world.cluster.machines[gang.seats[0]]
        _drains(world, event, machine)
        world.later(_until(world, event), lambda: _dies(world, msgspec.structs.replace(event, seconds=0.0), machine))


def _hangs_at_step(world: World, _event: Event, gang: Gang, _job: SlurmJob) -> None:
    if gang.computes:
        gang.hangs_at = gang.step(world.now) + 1 - gang.counted_from


def _gang_quick(world: World, event: Event, gang: Gang, _job: SlurmJob) -> None:
    if gang.quick_until <= gang.since:  # once an attempt
        gang.quick_since, gang.quick_until = world.now, _until(world, event)


def _counts_again(world: World, _event: Event, gang: Gang, _job: SlurmJob) -> None:
    if gang.computes:
        world.let_agents_report()  # they do so each second: of the steps before nothing is lost
        gang.counted_from = gang.step(world.now)


def _rank_crashes(world: World, _event: Event, gang: Gang, _job: SlurmJob) -> None:
    world.cluster.break_off(gang, world.now)


def _ranks_stay(world: World, event: Event, gang: Gang, _job: SlurmJob) -> None:
    gang.stays_until = _until(world, event)


def _loss_nan(world: World, _event: Event, gang: Gang, _job: SlurmJob) -> None:
    world.cluster.lose_numbers(gang, gang.seats[:1], world.now)


def _computes_wrong(world: World, _event: Event, gang: Gang, _job: SlurmJob) -> None:
    if gang.attempt is not None:
        world.cluster.machines[gang.seats[-1]].computes_wrong = True


def _pauses_job(world: World, event: Event, gang: Gang, _job: SlurmJob) -> None:
    world.pause_job(gang.job_id, event.seconds)


def _moves_job(world: World, _event: Event, gang: Gang, job: SlurmJob) -> None:
    if job.state == "RUNNING":
        world.move_job(gang.job_id, job.nodes[0])


def _asks_to_save(world: World, _event: Event, gang: Gang, _job: SlurmJob) -> None:
    world.ask_to_save(gang.job_id)


def _deletes_checkpoint(world: World, _event: Event, gang: Gang, _job: SlurmJob) -> None:
    world.cluster.delete_newest(gang, world.now)


def _limit_reached(world: World, event: Event, gang: Gang, _job: SlurmJob) -> None:
    world.slurm.waits_for[gang.job_id] = "AssocGrpNodeLimit"

    def may_start() -> None:
        world.slurm.waits_for.pop(gang.job_id, None)

    world.later(_until(world, event), may_start)


def _leaves_at_checkpoint(world: World, _event: Event, gang: Gang, job: SlurmJob) -> None:
    if job.state == "RUNNING":
        world.move_job(gang.job_id, job.nodes[0], at_checkpoint=True)


def _holds_job(world: World, _event: Event, gang: Gang, _job: SlurmJob) -> None:
    world.slurm.hold_job(gang.job_id)


def _releases_job(world: World, _event: Event, gang: Gang, _job: SlurmJob) -> None:
    world.slurm.release_job(gang.job_id)


LOOKS_AGAIN_SECONDS = 30.0
"""The administrator who resumed a job looks again after this time: a crashed slurmctld may have forgotten it."""


def _suspends(world: World, event: Event, gang: Gang, _job: SlurmJob) -> None:
    world.slurm.suspend(gang.job_id)
    for at in (_until(world, event), _until(world, event) + LOOKS_AGAIN_SECONDS):
        world.later(at, lambda: _goes_on(world, gang.job_id))


def _goes_on(world: World, job_id: int) -> None:
    with suppress(SlurmError):  # it may have ended meanwhile, and be forgotten
        world.slurm.go_on(job_id)


def _shrinks(world: World, event: Event, gang: Gang, job: SlurmJob) -> None:
    _suspends(world, event, gang, job)
    world.slurm.has_slurmdbd = bool(event.number)
    if not gang.launcher:
        half = (world.now + _until(world, event)) / 2
        world.later(half, lambda: _takes_last_node(world, gang.job_id))


def _takes_last_node(world: World, job_id: int) -> None:
    job = world.jobs().get(job_id)
    if job is not None:
        world.slurm.shrink(job_id, len(job.nodes) - 1)


def _opts_out(world: World, _event: Event, gang: Gang, _job: SlurmJob) -> None:
    world.slurm.set_job_comment(gang.job_id, "left alone, please")
    world.invariants.opted_out(gang.job_id)


TO_GANGS: dict[Kind, Callable[[World, Event, Gang, SlurmJob], None]] = {
    Kind.CANCELS: _cancels,
    Kind.COMPLETES: _ends("completed"),
    Kind.CRASHES: _ends("failed"),
    Kind.REQUEUES: _requeues,
    Kind.RANK_HANGS: _rank_hangs,
    Kind.SEAT_SLOW: _seat_slow,
    Kind.SEAT_FAILS: _seat_fails,
    Kind.SEAT_STAYS_BROKEN: _seat_stays_broken,
    Kind.DRAINED_SEAT_DIES: _drained_seat_dies,
    Kind.HANGS_AT_STEP: _hangs_at_step,
    Kind.GANG_QUICK: _gang_quick,
    Kind.COUNTS_AGAIN: _counts_again,
    Kind.RANK_CRASHES: _rank_crashes,
    Kind.RANKS_STAY: _ranks_stay,
    Kind.LOSS_NAN: _loss_nan,
    Kind.COMPUTES_WRONG: _computes_wrong,
    Kind.PAUSES_JOB: _pauses_job,
    Kind.MOVES_JOB: _moves_job,
    Kind.ASKS_TO_SAVE: _asks_to_save,
    Kind.LEAVES_AT_CHECKPOINT: _leaves_at_checkpoint,
    Kind.DELETES_CHECKPOINT: _deletes_checkpoint,
    Kind.LIMIT_REACHED: _limit_reached,
    Kind.SUSPENDS: _suspends,
    Kind.SHRINKS: _shrinks,
    Kind.OPTS_OUT: _opts_out,
    Kind.HOLDS_JOB: _holds_job,
    Kind.RELEASES_JOB: _releases_job,
}


# -- to all ------------------------------------------------------------------------------------------------------------


def _all_agents_silent(world: World, event: Event) -> None:
    for machine in world.cluster.machines.values():
        machine.silent_until = max(machine.silent_until, _until(world, event))


def _fabric_stops(world: World, event: Event) -> None:
    stopped = [gang for gang in world.cluster.gangs if gang.computes]
    for gang in stopped:
        gang.hung_on = FABRIC
        gang.stop(world.now)
    world.later(_until(world, event), lambda: _fabric_goes_on(world, stopped))


def _fabric_goes_on(world: World, stopped: list[Gang]) -> None:
    for gang in stopped:
        if gang.hung_on == FABRIC and gang.since < math.inf:
            gang.go_on(world.now)


def _licence_away(world: World, _event: Event) -> None:
    for gang in world.cluster.gangs:
        if gang.user == SWEEPER and gang.computes:
            gang.hung_on = LICENCE
            gang.stop(world.now)


def _slurm_away(world: World, event: Event) -> None:
    world.line.away_until = _until(world, event)


def _slurm_slow(world: World, event: Event) -> None:
    world.line.slow_until = _until(world, event)


def _slurm_loses_answers(world: World, event: Event) -> None:
    world.line.deaf_until = _until(world, event)


def _slurm_refuses(world: World, event: Event) -> None:
    world.line.refuses_until = _until(world, event)


def _slurm_crashes(world: World, _event: Event) -> None:
    world.slurm.crash(world.saved)
    world.invariants.slurm_crashed()


def _killed_at_effect(world: World, event: Event) -> None:
    world.line.kill = event


def _killed_at_commit(world: World, event: Event) -> None:
    world.kill_at_commit(event.number, event.seconds)


def _database_away(world: World, event: Event) -> None:
    world.database_away_until = _until(world, event)


def _database_slow(world: World, event: Event) -> None:
    world.database_slow_until = _until(world, event)


def _clock_set(world: World, event: Event) -> None:
    world.set_clock(event.number)
    if event.seconds:
        world.later(_until(world, event), lambda: world.set_clock(-event.number))


def _switches(verb: Verb) -> Callable[[World, Event], None]:
    return lambda world, _event: world.switch(verb)


def _cancels_recovery(world: World, _event: Event) -> None:
    world.cancel_recovery()


def _deletes_reservations(world: World, _event: Event) -> None:
    for reservation in world.slurm.reservations():
        with suppress(SlurmError):
            world.slurm.delete_reservation(reservation.name)
            if reservation.name.startswith(NODE_HOLD_PREFIX):
                world.invariants.freed_by_person(reservation.name.removeprefix(NODE_HOLD_PREFIX))


def _removes_spare(world: World, _event: Event) -> None:
    pool = [one for one in world.slurm.reservations() if one.name == POOL]
    for name in pool[0].nodes[:1] if pool else ():
        world.choose_spare(Verb.SPARE_REMOVE, name)


def _forgets_spares(world: World, _event: Event) -> None:
    for name in world.spares_removed:
        world.choose_spare(Verb.SPARE_FORGET, name)


def _users_blame(world: World, _event: Event) -> None:
    world.run_launchers(("guest1", "guest2"))


def _submits(world: World, event: Event) -> None:
    world.slurm.submit("student", event.number, kill_seconds=0.1)


def _submits_low(world: World, event: Event) -> None:
    world.submit_low(event.number)


TO_ALL: dict[Kind, Callable[[World, Event], None]] = {
    Kind.FABRIC_STOPS: _fabric_stops,
    Kind.LICENCE_AWAY: _licence_away,
    Kind.ALL_AGENTS_SILENT: _all_agents_silent,
    Kind.SLURM_AWAY: _slurm_away,
    Kind.SLURM_SLOW: _slurm_slow,
    Kind.SLURM_LOSES_ANSWERS: _slurm_loses_answers,
    Kind.SLURM_REFUSES: _slurm_refuses,
    Kind.SLURM_CRASHES: _slurm_crashes,
    Kind.KILLED_BEFORE_EFFECT: _killed_at_effect,
    Kind.KILLED_AFTER_EFFECT: _killed_at_effect,
    Kind.KILLED_AT_COMMIT: _killed_at_commit,
    Kind.DATABASE_AWAY: _database_away,
    Kind.DATABASE_SLOW: _database_slow,
    Kind.CLOCK_SET: _clock_set,
    Kind.PAUSES: _switches(Verb.PAUSE),
    Kind.PAUSES_NOW: _switches(Verb.PAUSE_NOW),
    Kind.UNPAUSES: _switches(Verb.RESUME),
    Kind.OBSERVES: _switches(Verb.MODE_OBSERVE),
    Kind.OBSERVES_NO_LONGER: _switches(Verb.MODE_CONFIGURED),
    Kind.CANCELS_RECOVERY: _cancels_recovery,
    Kind.DELETES_RESERVATIONS: _deletes_reservations,
    Kind.SUBMITS: _submits,
    Kind.SUBMITS_LOW: _submits_low,
    Kind.REMOVES_SPARE: _removes_spare,
    Kind.FORGETS_SPARES: _forgets_spares,
    Kind.USERS_BLAME: _users_blame,
}
