"""Orders for the launcher of a gang: which nodes are bad, or to restart. It acts within its own allocation."""

from __future__ import annotations

from understudy_controlplane.decide.launcher_orders import orders_of
from understudy_controlplane.fleet.gang import ENDED_WELL, Gang
from understudy_controlplane.fleet.recovery import AllocationSwapPlan, StepName
from understudy_controlplane.recover.step import Done, Failed, Observation, Step, StepContext, Todo, Wait
from understudy_controlplane.slurm.protocol import Slurm
from understudy_wire.launcher import LauncherPhase


def observe_launcher(context: StepContext) -> Observation:
    """Done when the launcher itself reports it: another launch, on other nodes."""
    plan, job, gang = context.plan_as(AllocationSwapPlan), context.job, context.launcher
    if job is None or job.ended:
        return Done(f"the job is over: {job.state if job else 'unknown to Slurm'}")
    if job.restart_count > plan.restart_count:
        return Done(f"the job was requeued meanwhile (restart {job.restart_count})")
    if context.ended_well():
        return Done(f"{ENDED_WELL}: nothing is started any more")
    if gang is None or gang.heard_at is None:
        return Wait("its launcher does not report")
    if plan.launch < 0:
        still = sorted({*gang.seats, *gang.spares} & set(plan.nodes))
        return Todo(f"{', '.join(still)} is a spare there") if still else Done("no longer among its spares")
    return _relaunched(plan, gang)


def _relaunched(plan: AllocationSwapPlan, gang: Gang) -> Observation:
    bad = sorted(set(gang.seats) & {*plan.nodes, *(() if plan.hang else plan.leaving)})
    if gang.leaving:
        return Failed(f"the launcher starts nothing any more: it is {gang.state.phase}")
    if gang.attempt.launch <= plan.launch or bad:
        return Todo(f"launch {gang.attempt.launch} is {gang.state.phase} on {', '.join(gang.seats)}")
    if gang.state.phase is LauncherPhase.SEATING:
        return Wait(f"launch {gang.attempt.launch} waits for its nodes")
    return Done(f"launch {gang.attempt.launch} on {', '.join(gang.seats)}")


def send_orders(context: StepContext, _slurm: Slurm) -> None:
    context.send_orders(orders_of(context.plan_as(AllocationSwapPlan)))


ORDER_RESTART = Step(StepName.ORDER_RESTART, observe_launcher, send_orders, needs=(StepName.DRAIN_NODES,))
