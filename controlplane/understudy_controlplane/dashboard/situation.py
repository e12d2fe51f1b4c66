"""What is wrong with a node, what is being done about it, and what a person can do, each with what it would cost the
jobs there. Pure.

A page begins with these three. Evidence comes after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from understudy_controlplane.api.needs import NeedRecord
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.dashboard.page import words
from understudy_controlplane.decide.ladder import died
from understudy_controlplane.decide.needs import named
from understudy_controlplane.decide.repair_cycle import dismisses, waits_for_slurm
from understudy_controlplane.decide.request_preview import against_release
from understudy_controlplane.fleet.finding import Finding
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.node import OUT_OF_SERVICE, NodeState, NodeView
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.recovery import Recovery, RecoveryStatus, StepStatus, job_of
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.store.queries import Record

OUT = OUT_OF_SERVICE | {NodeState.FOREIGN_DRAIN}
COMES = {
    NodeState.UNKNOWN: "It returns once its agent reports: see `systemctl status understudy-agent` on the node.",
    NodeState.OPERATOR_HOLD: "Nothing: an operator has taken it out of service.",
    NodeState.RETIRED: "Nothing: an operator has taken it out of service for good.",
}
"""What comes by itself."""

VALIDATED = frozenset({NodeState.MANUAL_REPAIR, NodeState.RETIRED})
"""States from which a released node is validated first, where validation is enabled."""


@dataclass(frozen=True, slots=True)
class Line:
    """`page` is a path below the dashboard; empty: it has none."""

    text: str
    page: str = ""
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What a person can do. `path`: route of the API, for a button; empty: only the command does it."""

    name: str
    comes: str  # of it, also for the jobs there
    command: str
    path: str = ""
    title: str = ""
    more: Mapping[str, object] | None = None  # that the request holds besides the reason


@dataclass(frozen=True, slots=True)
class Situation:
    wrong: Sequence[Line]
    doing: Sequence[Line]
    choices: Sequence[Choice]


@dataclass(frozen=True, slots=True)
class Known:
    """What is not in the snapshot: open tickets of the node, and its newest decision."""

    needs: Sequence[NeedRecord] = ()
    tickets: Sequence[Record] = ()
    newest_decision: Record | None = None
    saved: Mapping[JobKey, int] | None = None  # step of each job's newest good checkpoint
    faults: Sequence[Finding] = ()  # of the newest round


def of_node(snapshot: Snapshot, node: NodeView, config: Config, known: Known) -> Situation:
    return Situation(
        [*_wrong(snapshot, node, known)],
        [*_doing(snapshot, node, config, known)] or [Line("Nothing.")],
        [*_choices(snapshot, node, config, known)],
    )


def of_others(snapshot: Snapshot, incident: Record, job: Job | None, newest_decision: Record | None) -> Situation:
    """What an open incident of a gang or a domain needs. `job`: the gang's, as Slurm shows it."""
    names = set(incident["nodes"]) if job is None else set()
    doing = [
        line
        for one in snapshot.recoveries
        if (job is not None and job_of(one.plan) == job.key) or names & {*one.plan.claimed}
        for line in _under_way([one])
    ]
    doing += _held(newest_decision)
    wrong = Line(incident["summary"], since=incident["opened_at"])
    return Situation([wrong], doing or [Line("Nothing.")], [*_of_gang(job)] if job is not None else [])


def over(incident: Record) -> Situation:
    return Situation([], [Line(f"It is over: {incident['outcome'] or 'closed'}", since=incident["closed_at"])], [])


def is_well(snapshot: Snapshot, node: NodeView) -> bool:
    """Nothing is known against it, and Slurm offers it to jobs."""
    out = node.slurm is not None and node.slurm.taken_out
    return node.state is NodeState.IN_SERVICE and not out and snapshot.incident_of(node.name) is None


# -- what is wrong ----------------------------------------------------------------------------------------------------


def _wrong(snapshot: Snapshot, node: NodeView, known: Known) -> Iterator[Line]:
    incident = snapshot.incident_of(node.name)
    if incident is not None:
        yield Line(incident.summary, f"incidents/{incident.id}", incident.opened_at)
    for one in node.record.suspicions:
        yield Line(f"Suspected: {words(one.cause)}", since=one.since)
    reason = node.slurm.reason if node.slurm is not None else ""
    if incident is None and node.state in OUT and reason:
        yield Line(f"Reason in Slurm: {reason}", since=node.record.since)
    elif node.state is NodeState.IN_SERVICE and node.slurm is not None and node.slurm.taken_out:
        shown = "+".join((node.slurm.base_state, *sorted(node.slurm.flags)))
        yield Line(f"Slurm shows it {shown}: {reason or 'it gives no reason'}")
    elif node.slurm is None:
        yield Line("Slurm does not show it")
    for need in known.needs:
        if incident is None or incident.summary not in need.why:
            yield Line(need.why, since=need.since)
    for signal in snapshot.signals_on.get(node.name, ()):
        yield Line(f"Signal of the site: {signal.words}")
    for problem in node.problems:
        yield Line(f"Its agent reports: {problem}")


# -- what is being done -----------------------------------------------------------------------------------------------


def _doing(snapshot: Snapshot, node: NodeView, config: Config, known: Known) -> Iterator[Line]:
    yield from _under_way(one for one in snapshot.recoveries if node.name in one.plan.claimed)
    for one in snapshot.proposals:
        if one.status is RecoveryStatus.AWAITS_APPROVAL and node.name in one.plan.claimed:
            yield Line(f"{_name(one)} waits for approval", f"recoveries/{one.id}", one.decided_at)
    request = snapshot.operator.requests.get(node.name)
    if request is not None:
        yield Line(f"{request.verb.value} was asked for by {request.by}: {request.reason}", since=request.at)
    drill = snapshot.operator.drills.get(node.name)
    if drill is not None:
        yield Line(f"DRILL by {drill.by}: {drill.reason}; it ends by itself", since=drill.at)
    for ticket in known.tickets:
        by = f"{ticket['acknowledged_by']} deals with it" if ticket["acknowledged_by"] else "not acknowledged yet"
        yield Line(f"Ticket {ticket['id']}, {by}", f"tickets/{ticket['id']}", ticket["opened_at"])
    yield from _held(known.newest_decision)
    if next_words := _next(snapshot, node, config):
        yield Line(next_words)


def _under_way(recoveries: Iterable[Recovery]) -> Iterator[Line]:
    for one in recoveries:
        step = next((each for each in one.steps if each.status is not StepStatus.DONE), None)
        at = f": {words(step.name)}" if step is not None else ""
        yield Line(f"{_name(one)} runs{at}", f"recoveries/{one.id}", one.decided_at)


def _held(newest: Record | None) -> Iterator[Line]:
    if newest is not None and newest["action"] == "nothing" and newest["because"] != "rule":
        page = f"incidents/{newest['incident']}" if newest["incident"] else ""
        yield Line(f"Held back, because of {words(newest['because'])}: {newest['reason']}", page, newest["at"])


def _name(recovery: Recovery) -> str:
    return f"Recovery {recovery.id} ({words(recovery.plan.kind)})"


def _next(snapshot: Snapshot, node: NodeView, config: Config) -> str:
    """What comes by itself; empty: nothing."""
    if snapshot.mode_of([node.name]) is Mode.OBSERVE:
        return "" if is_well(snapshot, node) else "Nothing: the control plane only observes."
    match node.state:
        case NodeState.QUARANTINED:
            found = _next_repair(snapshot, node, config)
        case NodeState.SUSPECT if config.probes_suspects(snapshot.mode_of([node.name])):
            found = "It is validated as soon as no job uses it; it stays in service until then."
        case NodeState.PROBATION:
            found = f"Its probation ends by itself, {config.validation.probation_hours:g} h after it began."
        case NodeState.FOREIGN_DRAIN:
            by = (node.slurm.reason_user if node.slurm is not None else "") or "someone"
            found = f"Nothing: {by} has taken it out of service in Slurm, and Understudy leaves it alone."
        case _:
            found = COMES.get(node.state, "")
    return found


def _next_repair(snapshot: Snapshot, node: NodeView, config: Config) -> str:
    if not config.repair.enabled:
        return "No repair: repair.enabled is false. It stays out of service until a person releases it."
    if waits_for_slurm(snapshot, node):
        return "Slurm reaches it: it returns once its agent is heard. A person gets a ticket if Slurm loses it, too."
    if died(snapshot.incident_of(node.name)):
        minutes = config.repair.dead_node_wait_seconds / 60
        return f"It has {minutes:g} min to come back by itself; after that a person gets a ticket."
    jobs = _jobs_in_words(snapshot.holders_of(node.name))
    when = f"after the end of {jobs}" if jobs else "as soon as Slurm shows it drained"
    return f"Its next repair, or a ticket for a person where none is left, comes {when}."


# -- what a person can do ---------------------------------------------------------------------------------------------


def _choices(snapshot: Snapshot, node: NodeView, config: Config, known: Known) -> Iterator[Choice]:
    name, state = node.name, node.state
    if name in snapshot.operator.drills:
        yield _of_node("end-drill", "End the drill", name, "it returns, if nothing but the drill speaks against it")
    for verb, word in node_actions(state, has_incident=snapshot.incident_of(name) is not None):
        leave = _leave(snapshot, name, known, is_fault=verb == "quarantine")
        comes = _comes(verb, node, config, leave)
        if verb == "release" and (against := against_release(node, known.faults, snapshot.now, config)):
            comes += f". But {against}"
        yield _of_node(verb, word, name, comes)
    for job in snapshot.job_on(name):
        if job.managed:
            yield from _moves(job, name)
    for verb, word, comes in spare_actions(node, snapshot.operator.spare_choices.get(name)):
        path = f"v1/spares/{quote(name, safe='')}/{verb}"
        yield Choice(word, comes, f"understudy spare {verb} {name} REASON", path, f"{word}: {name}")
    if state in OUT and state is not NodeState.FOREIGN_DRAIN and not _is_repaired(node, config):
        waits = _jobs_in_words(snapshot.holders_of(name))
        ends = f"it would end {waits}; " if waits else ""
        comes = f"{ends}a reboot by Slurm would replace the reason of the drain"
        yield Choice("Reboot", comes, f"ssh {name} reboot")
        serials = f"`understudy node parts {name}` those of boards, cards and cables; retire it meanwhile"
        yield Choice("RMA", f"shows the serial number of each GPU, {serials}", f"understudy node show {name}")


def _is_repaired(node: NodeView, config: Config) -> bool:
    return config.repair.enabled and node.state in (NodeState.QUARANTINED, NodeState.REPAIRING, NodeState.VALIDATING)


def _of_node(verb: str, word: str, name: str, comes: str) -> Choice:
    path = f"v1/nodes/{quote(name, safe='')}/{verb}"
    command = f"understudy inject {name} end REASON" if verb == "end-drill" else f"understudy node {verb} {name} REASON"
    return Choice(word, comes, command, path, f"{word} {name}")


def node_actions(state: NodeState, *, has_incident: bool = False) -> list[tuple[str, str]]:
    """Requests that fit the state, and what they are called."""
    out = {NodeState.QUARANTINED, NodeState.REPAIRING, NodeState.MANUAL_REPAIR, NodeState.OPERATOR_HOLD}
    found = []
    if state in out | {NodeState.RETIRED}:
        found.append(("release", "Release"))
    if state is NodeState.SUSPECT or (has_incident and dismisses(state, Verb.RELEASE)):
        found.append(("release", "Dismiss what is known"))
    if state in {NodeState.IN_SERVICE, NodeState.SUSPECT, NodeState.PROBATION}:
        found += [("validate", "Validate"), ("burn-in", "Burn in")]
    if state in {NodeState.IN_SERVICE, NodeState.SUSPECT, NodeState.UNKNOWN, NodeState.PROBATION}:
        found.append(("quarantine", "Quarantine"))
    if state not in {NodeState.OPERATOR_HOLD, NodeState.RETIRED}:
        found.append(("hold", "Hold"))
    if state is not NodeState.RETIRED:
        found.append(("retire", "Retire"))
    return found


def spare_actions(view: NodeView, chosen: bool | None) -> list[tuple[str, str, str]]:
    """Request, its name and what comes of it. `chosen`: whether an operator wants the node in the pool; None: none has
    chosen.
    """
    found = []
    if not chosen and view.state is not NodeState.RETIRED:
        found.append(("add", "Make it a spare", "whenever no job uses it"))
    if chosen is not False and (chosen or view.is_spare):
        found.append(("remove", "Keep it out of the spares", "it is no spare until another request"))
    if chosen is not None:
        found.append(("forget", "Let Understudy choose spares again", "it may become a spare, or none"))
    return found


def _comes(verb: str, node: NodeView, config: Config, leave: str) -> str:
    if verb == "release":
        if dismisses(node.state, Verb.RELEASE):
            return "it stays in service; only what is received from now on counts"
        tested = config.validation.enabled and node.state in VALIDATED
        return "it is validated, and returns if it passes" if tested else "it returns at once, without a validation"
    if verb == "validate":
        return "as soon as no job uses it; no job is ended for it"
    if verb == "burn-in":
        return f"the validation for {config.validation.burn_in_hours:g} h, as soon as no job uses it"
    if verb == "quarantine":
        return f"counts as a fault: drained, repaired and validated{leave}"
    until = "for good" if verb == "retire" else "until a person releases it"
    return f"out of service {until}, without a repair{leave}"


def _leave(snapshot: Snapshot, name: str, known: Known, *, is_fault: bool) -> str:
    """What becomes of the jobs there, if the node is drained. Gangs leave it for a fault, not for a person's wish."""
    found = ""
    for job in snapshot.job_on(name):
        what = "goes on to its end"
        if job.managed:
            what = (
                f"moves to a spare; {_loss(snapshot, job, known)}" if is_fault else f"{what}, unless a fault is found"
            )
        found += f"; {named(job)} {what}"
    return found


def _loss(snapshot: Snapshot, job: Job, known: Known) -> str:
    saved, table = (known.saved or {}).get(job.key), snapshot.progress.tables.get(job.key)
    number = table.number if table is not None and not table.fell_at else None
    if saved is None:
        return "no complete checkpoint of it is known"
    if number is None:
        return f"its newest checkpoint is of step {saved}"
    return f"it is at step {number}, its newest checkpoint at {saved}"


def _moves(job: Job, name: str) -> Iterator[Choice]:
    number, path = job.key.job_id, f"v1/jobs/{job.key.job_id}/move"
    command = f"understudy job move {number} REASON --off {name}"
    at_once = "to a spare, now; the node stays what it is"
    yield Choice(f"Move job {number} off", at_once, command, path, f"Move job {number} off {name}", {"off": [name]})
    later = {"off": [name], "at_checkpoint": True}
    title = f"Move job {number} off {name} at its next checkpoint"
    yield Choice("Move it at its next checkpoint", "no step is lost", f"{command} --at-checkpoint", path, title, later)


def _of_gang(job: Job) -> Iterator[Choice]:
    number = job.key.job_id
    if job.managed and not job.slurm.ended:
        path, command = f"v1/jobs/{number}", f"understudy job pause {number} REASON"
        yield Choice("Pause", "Understudy begins nothing for it", command, f"{path}/pause", f"Pause job {number}")
    if job.managed and job.running:
        command, title = (
            f"understudy checkpoints now {number} REASON",
            f"Ask all ranks of job {number} to save",
        )
        yield Choice("Save now", "all ranks save before the same step", command, f"{path}/save", title)
    if job.running:
        yield Choice(
            "Restart it by hand", f"{named(job)} goes on from its newest checkpoint", f"scontrol requeue {number}"
        )


def _jobs_in_words(jobs: Sequence[Job]) -> str:
    return ", ".join(named(job) for job in jobs)
