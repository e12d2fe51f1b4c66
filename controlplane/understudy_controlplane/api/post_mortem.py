"""What became of one incident, as Markdown: timeline, evidence, decisions, cost, and what would have shortened it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from understudy_controlplane.api.dependencies import IncidentId, ReadDependencies
from understudy_controlplane.api.documents import Document, Form, Section
from understudy_controlplane.api.jobs import job_records
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.api.recoveries import recovery_record
from understudy_controlplane.api.report import gpus_of
from understudy_controlplane.clock import moment
from understudy_controlplane.figures.hindsight import Course, hindsight
from understudy_controlplane.figures.reliability import gpu_hours, money
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.decision import Action, Because
from understudy_controlplane.fleet.plain_text import one_line, without_controls
from understudy_controlplane.fleet.recovery import RecoveryKind, RecoveryStep, StepStatus
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.store.database import ID_MAX
from understudy_controlplane.store.queries import (
    ALL_JOBS,
    DecisionFilter,
    IncidentFilter,
    JobFilter,
    Record,
)
from understudy_controlplane.store.recoveries import RecoveryFilter
from understudy_controlplane.store.requests import RequestFilter
from understudy_wire.facts import EvidenceKind

DECISIONS_MAX = 500
REQUESTS_MAX = 50
EVIDENCE_MAX = 10
EVIDENCE_CHARACTERS_MAX = 4000
MOVES = (RecoveryKind.POOL_SWAP.value, RecoveryKind.ALLOCATION_SWAP.value)


Format = Annotated[Form, Query(description="`text` is Markdown.")]


class PostMortem(msgspec.Struct, frozen=True):
    incident: int
    text: str  # Markdown


@dataclass(frozen=True, slots=True)
class Moved:
    """A gang that was moved or restarted. `gpus` and `step_seconds`: None: not known any more."""

    recovery: Record
    gpus: int | None
    step_seconds: float | None

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds since the fault."""
        return {name: value / 1000 for name, value in self.recovery["phases_ms"].items()}

    @property
    def stood_seconds(self) -> float | None:
        """Seconds from the fault to the first step, or to the end of the recovery."""
        if "first_step" in self.phases:
            return self.phases["first_step"]
        ended = self.recovery["ended_at"]
        return None if ended is None else float(ended - self.recovery["fault_at"])

    @property
    def redone_seconds(self) -> float | None:
        steps = self.recovery.get("steps_lost")
        return None if steps is None or self.step_seconds is None else float(steps * self.step_seconds)


@dataclass(frozen=True, slots=True)
class Moment:
    """`page` is a path below the dashboard; empty: it has none."""

    at: float
    what: str
    page: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """What is stored of an incident."""

    incident: Record
    decisions: Sequence[Record]  # oldest first
    recoveries: Sequence[Record]  # oldest first
    requests: Sequence[Record]
    moved: Sequence[Moved]
    gpu_hour_price: float | None
    now: float
    shown: Sequence[Record] = ()  # what ranks of its jobs showed before they were ended; oldest first


def post_mortem_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])

    @router.get("/incidents/{incident}/post-mortem")
    async def post_mortem(incident: IncidentId, format: Format = Form.JSON) -> Response:
        """What became of an incident, as Markdown: cost, timeline, evidence, decisions, and what took long."""
        return await deps.readers.read(lambda: _answer(story_of(deps, incident), format))

    return router


def _answer(story: Story | Response, form: Form) -> Response:
    return story if isinstance(story, Response) else document(story).response(form)


def story_of(deps: ReadDependencies, number: int) -> Story | Response:
    found = deps.queries.incidents(1, only=IncidentFilter(id=number))
    if not found:
        return refuse(404, f"there is no incident {number}", "GET /v1/incidents lists them")
    incident = found[0]
    decisions = deps.queries.decisions(DECISIONS_MAX, only=DecisionFilter(incident=number))[::-1]
    numbers = {one["recovery"] for one in decisions if one["recovery"] is not None}
    read = deps.stores.recoveries.newest(len(numbers), only=RecoveryFilter(ids=numbers)) if numbers else []
    recoveries = [recovery_record(deps, one) for one in reversed(read)]
    ended = incident["closed_at"] or deps.clock.now()
    requests = [
        one
        for one in deps.stores.requests.newest(REQUESTS_MAX, ID_MAX, RequestFilter(node=incident["subject"]))[::-1]
        if incident["fault_at"] <= one["at"] <= ended
    ]
    moved = [_moved(deps, one) for one in recoveries if one["kind"] in MOVES]
    price = deps.current.config.checkpoints.gpu_hour_price
    shown = deps.queries.evidence(EVIDENCE_MAX, ALL_JOBS, number)[::-1]
    return Story(incident, decisions, recoveries, requests, moved, price, deps.clock.now(), shown)


def _moved(deps: ReadDependencies, recovery: Record) -> Moved:
    jobs = job_records(deps, 1, ID_MAX, JobFilter(job_id=recovery["job"]["job_id"])) if recovery["job"] else []
    if not jobs or jobs[0]["submit_at"] != recovery["job"]["submit_at"]:
        return Moved(recovery, None, None)
    gpus = gpus_of(deps)
    nodes: list[str] = max((one["nodes"] for one in jobs[0]["attempts"]), key=len, default=[])
    ettr = jobs[0]["ettr"]
    return Moved(recovery, sum(map(gpus, nodes)), None if ettr is None else ettr.step_seconds)


def document(story: Story) -> Document:
    number, title = story.incident["id"], f"Incident {story.incident['id']}: {story.incident['summary']}"
    made = Document(PostMortem(number, ""), title, [*_sections(story)], [*_summary(story.incident)])
    return replace(made, record=PostMortem(number, made.rendered(Form.TEXT)))


def _summary(incident: Record) -> Iterator[tuple[str, str]]:
    yield incident["subject_kind"], incident["subject"]
    yield "rule", f"{incident['rule']} ({incident['signal']})"
    yield "time", f"from {_time(incident['fault_at'])} to {_time(incident['closed_at'])}, UTC"
    if incident["closed_at"] is not None:
        yield (
            "end",
            f"{incident['outcome'] or 'closed'}, after {_seconds(incident['closed_at'] - incident['fault_at'])}",
        )


def _sections(story: Story) -> Iterator[Section]:
    fault_at = story.incident["fault_at"]
    yield Section("cost", "What it cost", "", (), [(one,) for one in costs(story)])
    rows = [(_time(each.at), _seconds(each.at - fault_at), each.what) for each in moments(story)]
    yield Section("timeline", "Timeline", "", ("time", "after", "what"), rows)
    yield Section("evidence", "Evidence", "\n".join(_evidence(story)), (), ())
    decisions = [
        (_time(one["at"]), one["table_row"], one["subject"], _words(one["action"]) + because(one), one["reason"])
        for one in story.decisions
    ]
    yield Section("decisions", "Decisions", "", ("time", "row", "subject", "decision", "reason"), decisions)
    yield Section("advice", "What would have shortened it", "", (), [(one,) for one in advice(story)])


def because(decision: Record) -> str:
    """A decision to do nothing names the guard that holds it back, where it is one."""
    return "" if decision["because"] == Because.RULE.value else f", because of {_words(decision['because'])}"


def costs(story: Story) -> Iterator[str]:
    if not story.moved:
        yield "no gang was moved or restarted for it"
    for one in story.moved:
        yield _cost(one, story.gpu_hour_price)
    taken = [one for one in story.decisions if one["action"] in (Action.QUARANTINE.value, Action.DRAIN.value)]
    back = [one for one in story.decisions if one["action"] == Action.RETURN.value]
    if taken:
        until = back[-1]["at"] if back else story.now
        so_far = "" if back else " so far"
        yield f"{taken[0]['subject']} was out of service for {_seconds(until - taken[0]['at'])}{so_far}"


def _cost(moved: Moved, price: float | None) -> str:
    job = moved.recovery["job"]
    name = f"job {job['job_id']}" if job else "a job"
    stood, redone = moved.stood_seconds, moved.redone_seconds
    if stood is None:
        return f"{name} stands still since {_time(moved.recovery['fault_at'])} (recovery {moved.recovery['id']} runs)"
    steps = moved.recovery.get("steps_lost")
    words = f"{name} stood still for {_seconds(stood)} (recovery {moved.recovery['id']}, {moved.recovery['status']})"
    if steps == 0:
        words += " and did no step again"
    elif steps is not None:
        words += f" and did {counted(steps, 'step')} again" + (
            f", for {_seconds(redone)}" if redone is not None else ""
        )
    if moved.gpus:
        hours = gpu_hours(moved.gpus, stood + (redone or 0.0))
        words += f": {hours:.3g} GPU-hours on {moved.gpus} GPUs"
        words += f", {money(hours, price):,.2f} in money" if price is not None else ""
    return words


def further_findings(incident: Record) -> list[Record]:
    """What else was found while it was open, besides that which opened it."""
    first = (incident["rule"], incident["summary"])
    return [one for one in incident["findings"] if (one["rule"], one["summary"]) != first]


def moments(story: Story) -> list[Moment]:
    """Moments from the first evidence on."""
    return sorted(_moments(story), key=lambda one: one.at)


def _moments(story: Story) -> Iterator[Moment]:
    incident = story.incident
    yield Moment(incident["fault_at"], f"first evidence: {incident['summary']}")
    yield Moment(incident["opened_at"], "the incident is opened")
    for one in further_findings(incident):
        yield Moment(one["at"], f"also found, by {one['rule']}: {one['summary']}")
    for one in story.decisions:
        page = f"recoveries/{one['recovery']}" if one["recovery"] else ""
        if one["action"] != Action.NOTHING.value:
            yield Moment(one["at"], f"decision: {_words(one['action'])} {one['subject']}", page)
        else:
            yield Moment(one["at"], f"nothing is done, because of {_words(one['because'])}: {one['subject']}", page)
    for one in story.requests:
        yield Moment(one["at"], f"{one['by']} asks: {_words(one['verb'])}: {one['reason']}")
    for recovery in story.recoveries:
        name, page = f"recovery {recovery['id']} ({_words(recovery['kind'])})", f"recoveries/{recovery['id']}"
        for step in recovery["steps"]:
            yield from _of_step(name, page, step)
        if recovery["ended_at"] is not None:
            outcome = f": {recovery['outcome']}" if recovery["outcome"] else ""
            yield Moment(recovery["ended_at"], f"{name} {_words(recovery['status'])}{outcome}", page)
    for moved in story.moved:
        first = moved.phases.get("first_step")
        if first is not None and moved.recovery["job"]:
            job = moved.recovery["job"]["job_id"]
            yield Moment(moved.recovery["fault_at"] + first, f"job {job} finishes its first step", f"jobs/{job}")
    if incident["closed_at"] is not None:
        yield Moment(incident["closed_at"], f"the incident is closed: {incident['outcome']}")


def _of_step(recovery: str, page: str, step: RecoveryStep) -> Iterator[Moment]:
    if step.done_at is not None and step.status in (StepStatus.DONE, StepStatus.FAILED):
        tries = f", try {step.attempts}" if step.attempts > 1 else ""
        detail = f": {step.detail}" if step.detail else ""
        yield Moment(step.done_at, f"{recovery}: {_words(step.name.value)} {step.status.value}{tries}{detail}", page)


def _evidence(story: Story) -> Iterator[str]:
    incident = story.incident
    yield from _block(f"{incident['rule']}: {incident['summary']}", incident["evidence"])
    for one in further_findings(incident):
        yield from _block(f"{one['rule']}: {one['summary']}", one["evidence"])
    for launch in story.shown:
        kept = "what its ranks were doing" if launch["kind"] == EvidenceKind.HANG.value else "what ranks wrote last"
        summary = f": {_line(launch['summary'])}" if launch["kind"] == EvidenceKind.HANG.value else ""
        yield (f"\nJob {launch['job_id']}, launch {launch['launch']}, {_time(launch['at'])}: {kept} is kept{summary}")
    if story.shown:
        yield f"\n`understudy incident show {incident['id']} --evidence` shows it to operators and the job's owner."


def _block(title: str, evidence: object) -> Iterable[str]:
    text = without_controls(json.dumps(evidence, indent=2, ensure_ascii=False, default=str).replace("```", "'''"))
    return ("", _line(title), "", "```json", text[:EVIDENCE_CHARACTERS_MAX], "```")


def advice(story: Story) -> Iterator[str]:
    found = hindsight(_course(one, story) for one in story.moved)
    if not found:
        yield "nothing of it took long"
    for one in found:
        yield f"{_seconds(one.seconds)} {one.part}. {one.what}"


def _course(moved: Moved, story: Story) -> Course:
    recovery, at = moved.recovery, moved.phases
    decided, steps = at.get("decided"), recovery["steps"]
    again = at.get("requeued", at.get("relaunched"))
    return Course(
        RecoveryKind(recovery["kind"]),
        at.get("detected"),
        _between(decided, again),
        _between(again, at.get("running")),
        _between(at.get("running", again), at.get("communicator")),
        _between(at.get("communicator", at.get("running", again)), at.get("first_step")),
        moved.redone_seconds,
        _approval(recovery, story.recoveries),
        _held(recovery, story.decisions),
        {one.name.value: one.attempts for one in steps if one.attempts > 1 and not one.name.value.startswith("await")},
    )


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin


def _approval(recovery: Record, recoveries: Iterable[Record]) -> float | None:
    """How long its proposal waited; None: there was none."""
    waits = [
        recovery["decided_at"] - one["decided_at"]
        for one in recoveries
        if one["approve_by"] is not None and one["job"] == recovery["job"] and one["id"] < recovery["id"]
    ]
    return max(waits, default=None)


def _held(recovery: Record, decisions: Iterable[Record]) -> dict[str, float]:
    """Guard → how long before the recovery it first held something back."""
    found: dict[str, float] = {}
    for one in decisions:
        if one["action"] == Action.NOTHING.value and one["because"] != Because.RULE.value:
            found.setdefault(one["because"], max(0.0, recovery["decided_at"] - one["at"]))
    return found


def _line(text: object) -> str:
    return " ".join(one_line(str(text)).split()).replace("<", "&lt;")


def _words(text: str) -> str:
    return text.replace("_", " ")


def _time(at: float | None) -> str:
    return "now" if at is None else moment(at).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _seconds(seconds: float) -> str:
    if abs(seconds) < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if abs(seconds) < 7200 else f"{seconds / 3600:.1f} h"
