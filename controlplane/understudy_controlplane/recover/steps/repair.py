"""Repair of one node: reserved, resumed, repaired, validated, given back."""

from __future__ import annotations

from dataclasses import replace

from understudy_controlplane.fleet.custody import Proof, boot_given_up, in_slurm
from understudy_controlplane.fleet.gres import gpus_of_gres, gres_for_job
from understudy_controlplane.fleet.recovery import (
    NODE_HOLD_PREFIX,
    ManualRepairPlan,
    PagePlan,
    RepairPlan,
    StepName,
    ValidationPlan,
)
from understudy_controlplane.fleet.slurm import JobRequest, Service, SlurmJob, SlurmNode
from understudy_controlplane.recover.step import Done, Failed, Observation, Step, StepContext, Todo, Wait, nothing_to_do
from understudy_controlplane.recover.steps.pool import POOL_MINUTES
from understudy_controlplane.recover.steps.script import (
    Network,
    last_output,
    network_script,
    reset_script,
    validation_script,
    with_last_output,
)
from understudy_controlplane.slurm.protocol import Slurm, SlurmError, SlurmUnavailable
from understudy_wire.stages import StageStatus, results_of

START_SECONDS = 300.0
"""How long the control plane's job on a node may take to start: an Epilog may run there. A job that has not started by
then cannot run there, or waits for another job: that is no verdict on the node."""

PARTITIONS_TRIED_MAX = 4

NETWORK_SECONDS = 600.0
"""How long a network test may take, with the start of its peers' jobs."""


def _node(context: StepContext) -> SlurmNode | None:
    return context.slurm.nodes.get(context.node_name)


# -- reserved -------------------------------------------------------------------------------------------------------


def observe_held(context: StepContext) -> Observation:
    held = context.slurm.reservations.get(context.hold_name)
    if held is None:
        return Todo(f"{context.node_name} is not reserved")
    user = context.config.validation.user
    if not held.made_for(user):
        return Failed(f"reservation {held.name} was created for {', '.join(held.users)}, and validation.user is {user}")
    if held.nodes != (context.node_name,):
        return Failed(f"reservation {held.name} was changed: it has {', '.join(held.nodes)}")
    return Done(held.name)


def hold(context: StepContext, slurm: Slurm) -> None:
    """Holds without an end: if the control plane is gone, no job gets a node that was not validated."""
    slurm.create_reservation(context.hold_name, [context.node_name], context.config.validation.user, POOL_MINUTES)


def observe_released(context: StepContext) -> Observation:
    held = context.slurm.reservations.get(context.hold_name)
    if held is None or not held.made_for_one:
        return Done()
    return Todo(f"{context.node_name} is still reserved")


def release(context: StepContext, slurm: Slurm) -> None:
    """Slurm deletes no reservation that a job uses, and only the control plane's jobs can use it."""
    left = [job for job in context.slurm.jobs.values() if job.reservation == context.hold_name and not job.ended]
    for job in left:
        slurm.cancel_job(job.job_id)
    if not left:
        slurm.delete_reservation(context.hold_name)


# -- resumed ---------------------------------------------------------------------------------------------------------


def observe_resumed(context: StepContext) -> Observation:
    node = _node(context)
    if node is None:
        return Failed("Slurm no longer knows the node")
    if not node.taken_out and not node.off_or_rebooting:
        return Done()
    held = in_slurm(node)
    if not node.taken_out or (held.by_others and held.proven_by is not Proof.BOOT):
        return Failed(f"{node.name} is out of service for {node.reason_user} ({node.reason}): left alone")
    return Todo(f"{node.name} is drained by the control plane")


def resume(context: StepContext, slurm: Slurm) -> None:
    slurm.resume_node(context.node_name)


# -- rebooted --------------------------------------------------------------------------------------------------------


def observe_rebooted(context: StepContext) -> Observation:
    """According to Slurm: the node's slurmd registered again, with an uptime that is shorter than the wait for it."""
    node, reason = _node(context), context.plan_as(RepairPlan).drain_reason
    if node is not None and node.off_or_rebooting:
        return Wait("the reboot is under way")
    if node is not None and node.reason.startswith(reason) and "reboot complete" in node.reason:
        return Done(node.reason)
    # Its ResumeTimeout may be shorter than the control plane's limit.
    if node is not None and boot_given_up(node.reason):
        back = node.responding and not context.silent([node])  # Slurm takes a while to notice that it does not
        return Done(f"it answers; {node.reason}") if back else Wait(f"not back yet: {node.reason}")
    words = _not_to_be_rebooted(node)
    return Failed(words) if words else Todo("not rebooted")


def _not_to_be_rebooted(node: SlurmNode | None) -> str:
    if node is None:
        return "Slurm no longer knows the node"
    if not node.taken_out:
        return "an administrator resumed the node meanwhile"
    if in_slurm(node).by_others:
        return f"{node.name} is out of service for {node.reason_user} ({node.reason}): left alone"
    return ""


def reboot(context: StepContext, slurm: Slurm) -> None:
    slurm.reboot_node(context.node_name, context.plan_as(RepairPlan).drain_reason)


# -- jobs on the node --------------------------------------------------------------------------------------------------


def _reset_job(plan: RepairPlan) -> str:
    return f"understudy-reset-{plan.label}"


def _validation_job(plan: ValidationPlan) -> str:
    return f"understudy-validate-{plan.label}"


def _job(context: StepContext, name: str) -> SlurmJob | None:
    """Validation job by name and reservation, which only the control plane can use. Of several, when an answer was
    lost, the first.
    """
    jobs = [job for job in context.slurm.jobs.values() if job.name == name and job.reservation == context.hold_name]
    return min(jobs, key=lambda job: job.job_id, default=None)


def _output(context: StepContext, name: str) -> str:
    directory = context.config.validation.output_directory
    return f"{directory}/{name}.out" if directory else "/dev/null"


def _observe_job(context: StepContext, name: str) -> Observation:
    job = _job(context, name)
    if job is None:
        jobs = context.slurm.jobs.values()
        others = [str(one.job_id) for one in jobs if one.holds_nodes and context.node_name in one.nodes]
        if others:  # Slurm might end them for the control plane's job
            words = f"job {', '.join(others)} began on {context.node_name} before it was reserved"
            return Failed(words, never_began=True)
        return Todo(f"there is no job {name}")
    if job.pending and context.slurm_now - job.submit_at > START_SECONDS:  # it is cancelled when the node is given up
        return Failed(f"did not start: {job.reason or job.state}", never_began=True)
    if not job.ended:
        return Wait(f"job {job.job_id} is {job.state}{f' ({job.reason})' if job.reason else ''}")
    kept = context.config.validation.output_directory
    end = context.tickets.read_end(_output(context, name)) if kept else last_output(job.comment)
    found, end = results_of(end)
    open_ones = [one.words for one in found if one.status is not StageStatus.PASSED]
    end = "\n".join([end, *open_ones]).strip()
    words = f"job {job.job_id} {job.state}{f': {end}' if end else ''}"
    if job.state == "CANCELLED":  # by a person, which says as little about the node as a job that never started
        return Failed(words, never_began=True)
    results = tuple(found)
    return Done(words, results=results) if job.state == "COMPLETED" else Failed(words, results=results)


def _submit(context: StepContext, slurm: Slurm, name: str, script: str, timeout_seconds: float) -> None:
    node = _node(context)
    assert node is not None
    request = JobRequest(
        name=name,
        node=node.name,
        partition="",
        reservation=context.hold_name,
        user=context.config.validation.user,
        gres=gres_for_job(node.gres),
        script=script if context.config.validation.output_directory else with_last_output(script),
        time_limit_minutes=max(1, int(-(-timeout_seconds // 60))),
        output=_output(context, name),
    )
    refused = SlurmError(f"{node.name} is in no partition")
    for partition in _choices(node.partitions):
        try:
            slurm.submit_job(replace(request, partition=partition))
        except SlurmUnavailable:
            raise
        except SlurmError as error:
            refused = error
        else:
            return
    raise refused


def _choices(partitions: tuple[str, ...]) -> list[str]:
    """Partitions to ask for, in order. Slurm takes one of a list whose limits let the job run; with
    EnforcePartLimits=ALL it refuses them for the limits of a single one: then a few are asked for one after the
    other.
    """
    return list(dict.fromkeys((",".join(partitions), *partitions[:PARTITIONS_TRIED_MAX]))) if partitions else []


def observe_reset(context: StepContext) -> Observation:
    return _observe_job(context, _reset_job(context.plan_as(RepairPlan)))


def reset(context: StepContext, slurm: Slurm) -> None:
    policy, plan = context.config.repair, context.plan_as(RepairPlan)
    script = reset_script(policy, context.node_name, plan.gpus)
    _submit(context, slurm, _reset_job(plan), script, policy.reset_timeout_seconds)


def observe_validated(context: StepContext) -> Observation:
    return _observe_job(context, _validation_job(context.plan_as(ValidationPlan)))


def validate(context: StepContext, slurm: Slurm) -> None:
    node = _node(context)
    plan, policy = context.plan_as(ValidationPlan), context.config.validation
    network = _network(context, plan, node) if node is not None else None
    count = context.config.hardware.ports_per_node if node is not None and gpus_of_gres(node.gres) else 0
    ports = (str(count), *plan.other_ports) if count else ()
    script = validation_script(policy, plan.gpus, plan.hours, plan.suspect, network, ports)
    _submit(context, slurm, _validation_job(plan), script, policy.timeout_seconds + plan.hours * 3600)


def _network_job(plan: ValidationPlan) -> str:
    return f"understudy-network-{plan.label}"


def observe_network_tested(context: StepContext) -> Observation:
    """A test that did not come about says nothing of the node, which has passed its burn-in."""
    name = _network_job(context.plan_as(ValidationPlan))
    if _job(context, name) is None:
        if context.turn is None or context.turn.waits:
            return Wait(context.turn.waits if context.turn is not None else "its peers are not chosen yet")
        return Todo("its network is not tested")
    found = _observe_job(context, name)
    job = _job(context, name)
    no_verdict = isinstance(found, Failed) and (found.never_began or (job is not None and job.state == "TIMEOUT"))
    return Done(f"its network was not tested: {found.why}") if isinstance(found, Failed) and no_verdict else found


def run_network_test(context: StepContext, slurm: Slurm) -> None:
    """Its job is the node's own; on each peer it starts another, in the peer's reservation where that has one."""
    node, plan = _node(context), context.plan_as(ValidationPlan)
    assert node is not None
    names = context.turn.peers if context.turn is not None else ()
    peers = [context.slurm.nodes[name] for name in names if name in context.slurm.nodes]
    idle = [one.name for one in peers if one.service is Service.USABLE and one.base_state == "IDLE"]
    held = {name: f"{NODE_HOLD_PREFIX}{name}" for name in idle}
    network = Network(
        node.address,
        tuple(f"{name}@{held[name]}" if held[name] in context.slurm.reservations else name for name in idle),
        ",".join(node.partitions),
        context.network_median(),
    )
    script = network_script(context.config.validation, network)
    _submit(context, slurm, _network_job(plan), script, NETWORK_SECONDS)


def observe_peers_tested(context: StepContext) -> Observation:
    """Until then the node stays reserved, so that they can be tested with it."""
    turn = context.turn
    if turn is None or not turn.tested:
        return Wait("its network has just been tested")
    return Wait(turn.waits) if turn.waits else Done()


def _network(context: StepContext, plan: ValidationPlan, node: SlurmNode) -> Network:
    """The planned peers that Slurm still has idle: a job there starts at once, or not at all."""
    peers = [context.slurm.nodes[name] for name in plan.peers if name in context.slurm.nodes]
    idle = tuple(one.name for one in peers if one.service is Service.USABLE and one.base_state == "IDLE")
    usual = context.network_median() if plan.peers else None
    return Network(node.address, idle, ",".join(node.partitions), usual)


# -- people ----------------------------------------------------------------------------------------------------------


def _with_ticket(context: StepContext) -> ManualRepairPlan | PagePlan:
    return context.plan if isinstance(context.plan, PagePlan) else context.plan_as(ManualRepairPlan)


def observe_ticket(context: StepContext) -> Observation:
    there = context.tickets.is_there(_with_ticket(context).label)
    return Done() if there else Todo("there is no ticket yet")


def open_ticket(context: StepContext, slurm: Slurm) -> None:  # noqa: ARG001 - Slurm has no part in it
    context.tickets.open(_with_ticket(context))


HOLD_NODE = Step(StepName.HOLD_NODE, observe_held, hold)
RESUME_NODE = Step(StepName.RESUME_NODE, observe_resumed, resume, needs=(StepName.HOLD_NODE,))
RESET_GPU = Step(StepName.RESET_GPU, observe_reset, reset, needs=(StepName.HOLD_NODE, StepName.RESUME_NODE))
REBOOT_NODE = Step(StepName.REBOOT_NODE, observe_rebooted, reboot)
RUN_VALIDATION = Step(
    StepName.RUN_VALIDATION, observe_validated, validate, needs=(StepName.HOLD_NODE, StepName.RESUME_NODE)
)
TEST_NETWORK = Step(
    StepName.TEST_NETWORK, observe_network_tested, run_network_test, needs=(StepName.HOLD_NODE, StepName.RESUME_NODE)
)
AWAIT_PEERS = Step(StepName.AWAIT_PEERS, observe_peers_tested, nothing_to_do)
OPEN_TICKET = Step(StepName.OPEN_TICKET, observe_ticket, open_ticket)
RELEASE_NODE = Step(StepName.RELEASE_NODE, observe_released, release, needs=(StepName.DRAIN_NODES,))
