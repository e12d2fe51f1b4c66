"""What each page shows: reads as the routes of the API do, and fills the page's templates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import Response

from understudy_controlplane.api import post_mortem
from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.explain import (
    CheckpointExplanation,
    Explanation,
    explain_checkpoints,
    explain_job,
    explain_node,
)
from understudy_controlplane.api.jobs import JobState, job_records
from understudy_controlplane.api.notifications import message_records
from understudy_controlplane.api.observed import DAYS, observed_rules
from understudy_controlplane.api.recoveries import recovery_record
from understudy_controlplane.api.spares import spare_pool
from understudy_controlplane.api.status import Status, summary
from understudy_controlplane.dashboard import (
    attention,
    budgets,
    evidence_words,
    fleet_map,
    heat,
    lists,
    own_jobs,
    pace,
    receivers,
    reports,
    situation,
    steps_to_act,
    story,
    timeline,
)
from understudy_controlplane.dashboard.costly_readings import CostlyReadings
from understudy_controlplane.dashboard.lists import BEFORE, LISTED, NOTHING, OF_RULE, Chosen, Span
from understudy_controlplane.dashboard.page import Page, parts_of
from understudy_controlplane.decide.notices import of_move
from understudy_controlplane.fleet.decision import HELD_FOR_PEOPLE
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.identity import Identity, Permission
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.notice_facts import MOVES
from understudy_controlplane.fleet.recovery import RecoveryStatus
from understudy_controlplane.fleet.slurm import ENDED_STATES
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.state_words import STATES
from understudy_controlplane.fleet.steps import StepTable
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.fleet.topology import Topology
from understudy_controlplane.fleet.training import mfu
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.store.database import ID_MAX
from understudy_controlplane.store.queries import DecisionFilter, IncidentFilter, JobFilter, Record
from understudy_controlplane.store.recoveries import RecoveryFilter
from understudy_controlplane.store.retention import CHECKPOINTS_KEPT
from understudy_wire.facts import Tier

OWN = "my"
"""The page of users of the cluster."""

MOVES_LISTED = 20
ILL_LISTED = 200
MOVES_MARKED = 100
NAMED_MAX = 200
GPUS_LISTED = 64
STORY_LISTED = 60
TICKETS_READ = 100
MOMENTS_LISTED = 100
DECISIONS_LOOKED_AT = 200
WOULD_HAVE_LISTED = 30
CHECKPOINTS_LISTED = 20
TIERS = {
    Tier.PEER.value: "memory of its nodes",
    Tier.LOCAL.value: "disks of its nodes",
    Tier.SHARED.value: "shared file system",
    Tier.OBJECT.value: "object store",
}
"""Tiers in words."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. `root` leads from their page to what all addresses are relative to."""

    label: str
    role: str
    root: str
    may_operate: bool
    may_administer: bool
    nodes: Collection[str] = ()

    @classmethod
    def of(cls, identity: Identity, page: str, nodes: Collection[str] = ()) -> Viewer:
        operate, administer = identity.may(Permission.OPERATE), identity.may(Permission.ADMINISTER)
        return cls(identity.label, identity.role.value, root_of(page), operate, administer, nodes)


def root_of(page: str) -> str:
    return "../" * (page.count("/") + 1) if page else ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What every page needs."""

    deps: ReadDependencies
    viewer: Viewer
    identity: Identity
    snapshot: Snapshot
    status: Status
    needs: list[attention.Item]
    span: Span
    chosen: Chosen

    def page(
        self, name: str, title: str, *, layout: str = "1", more: Mapping[str, Any] | None = None, **shown: Any
    ) -> Page:
        """`more`: parts beside those of the page's own template."""
        context = {"v": self.viewer, "status": self.status, "needs": self.needs, "now": self.snapshot.now}
        context |= {"chosen": self.chosen, "grafana": self.deps.current.config.server.grafana_url.rstrip("/"), **shown}
        parts = parts_of("status.parts.html", **context) | parts_of(f"{name}.parts.html", **context)
        return Page(f"{name}.html", title, self.snapshot.now, parts | dict(more or {}), layout, context)


def own_page(deps: ReadDependencies, identity: Identity, by: str) -> Page:
    """The page of a user of the cluster. Raises StoreError."""
    snapshot, viewer = deps.pulse.snapshot, Viewer.of(identity, OWN)
    if snapshot is None or identity.user_id is None:
        return Page("starting.html", "The control plane starts", 0.0, {}, "starting", {"v": viewer})
    user_id, span = identity.user_id, Span.of(by)
    records = job_records(deps, LISTED, span.before, JobFilter(user_id=user_id))
    newest = deps.stores.recoveries.newest(MOVES_LISTED, only=RecoveryFilter(user_id=user_id))
    moves = deps.stores.notices.moves({one.id for one in newest if one.plan.kind.value in MOVES})
    context = {
        "v": viewer,
        "jobs": own_jobs.own_jobs(records, snapshot),
        "list": span.with_older(records, _id),
        "moves": [of_move(one) for one in reversed(moves)],
        "maintenance": own_jobs.own_maintenance(user_id, snapshot),
    }
    return Page("my.html", "My jobs", snapshot.now, parts_of("my.parts.html", **context), "1", context)


class Pages:
    def __init__(self, deps: ReadDependencies) -> None:
        self._deps = deps
        self._layouts: dict[str, tuple[Topology, frozenset[str], fleet_map.Layout]] = {}
        self._reports = reports.Reports(deps)
        self._one: Mapping[str, Callable[[Reading, str], Page | Response]] = {
            **ONE,
            "incidents": partial(_incident, stories=CostlyReadings(deps.clock)),
            "jobs": partial(_job, courses=CostlyReadings(deps.clock)),
        }

    def read(self, identity: Identity, page: str, chosen: Chosen = NOTHING) -> Page | Response:
        """The page of this path below the dashboard's. `chosen.by`: how the fleet is grouped, from where on a list is
        shown (`before-17`), or the span of a report; empty: as its topology is, its newest record, a month. Raises
        StoreError.
        """
        return own_page(self._deps, identity, chosen.by) if page == OWN else self._read(identity, page, chosen)

    def _read(self, identity: Identity, page: str, chosen: Chosen) -> Page | Response:
        deps, snapshot = self._deps, self._deps.pulse.snapshot
        viewer = Viewer.of(identity, page, () if snapshot is None else snapshot.nodes)
        if snapshot is None:
            return Page("starting.html", "The control plane starts", 0.0, {}, "starting", {"v": viewer})
        status = summary(deps)
        needs = attention.items(status.needs or ())
        reading = Reading(deps, viewer, identity, snapshot, status, needs, Span.of(chosen.by), chosen)
        if not page:
            return self._fleet(reading, chosen.by)
        if page == "reports":
            return self._report(reading, chosen.by)
        kind, _, name = page.partition("/")
        if name and kind in self._one:
            return self._one[kind](reading, name)
        if not name and kind in ALL:
            return ALL[kind](reading)
        return missing(f"page {page:.200}")

    def _fleet(self, reading: Reading, by: str) -> Page:
        snapshot = reading.snapshot
        layout = self._layout(snapshot, by)
        codes = fleet_map.codes(snapshot)
        groups = {
            f"g-{number}": fleet_map.drawn(group.name, fleet_map.tiles_of(group, codes), layout.columns, layout.scale)
            for number, group in enumerate(layout.groups)
        }
        ill = fleet_map.not_in_service([*snapshot.nodes], codes)
        shown = [snapshot.nodes[name] for name in ill[:ILL_LISTED]]
        return reading.page(
            "fleet",
            "Fleet",
            layout=_digest(layout),
            more=groups,
            map=layout,
            groups=groups,
            shares=fleet_map.shares(codes),
            ill=[(node, fleet_map.sample_of(codes[node.name]), reason_of(node)) for node in shown],
            ill_count=len(ill),
            total=len(snapshot.nodes),
            running=[recovery_record(reading.deps, one) for one in snapshot.recoveries[:LISTED]],
        )

    def _report(self, reading: Reading, by: str) -> Page:
        span = by if by in reports.SPANS else reports.USUAL
        report = self._reports.of(span)
        tables = {one.name for one in report.document.sections}
        return reading.page(
            "reports",
            "Reports",
            report=report,
            span=span,
            origins={name: table for name, table in reports.ORIGINS.items() if table in tables},
            spans=reports.SPANS,
            rows_shown=reports.ROWS_SHOWN,
        )

    def _layout(self, snapshot: Snapshot, by: str) -> fleet_map.Layout:
        """It is made again when the topology or the names of nodes have changed."""
        by = by if by in fleet_map.GROUPINGS else ""
        names = frozenset(snapshot.nodes)
        known = self._layouts.get(by)
        if known is not None and known[0] is snapshot.topology and known[1] == names:
            return known[2]
        made = fleet_map.layout(snapshot.topology, names, by)
        self._layouts[by] = (snapshot.topology, names, made)
        return made


def missing(what: str) -> Response:
    return refuse(404, f"there is no {what}", "begin at the map of the fleet")


def _digest(layout: fleet_map.Layout) -> str:
    return hashlib.sha256(repr(layout).encode()).hexdigest()[:16]


def reason_of(node: NodeView) -> str:
    if node.record.suspicions:
        return f"suspected: {', '.join(one.cause.value.replace('_', ' ') for one in node.record.suspicions)}"
    return node.slurm.reason if node.slurm else "Slurm does not show it"


def _node(reading: Reading, name: str) -> Page | Response:
    found = explain_node(reading.deps, name)
    if isinstance(found, Response):
        return found
    view = reading.snapshot.nodes[name]
    code = fleet_map.code_of(view, busy=bool(found.record["jobs"]), drill=name in reading.snapshot.operator.drills)
    domains = [one.label.replace("_", " ") for one in reading.snapshot.topology.of_node.get(name, ())]
    return reading.page(
        "node",
        name,
        node=found.record,
        sample=fleet_map.sample_of(code),
        state_words=STATES[view.state],
        is_well=situation.is_well(reading.snapshot, view),
        situation=_situation(reading, view, found.decisions),
        domains=domains,
        incidents=[(one, evidence_words.lines(one["evidence"])) for one in found.incidents],
        story=_story(found),
        seen=reading.deps.stores.gpus.gpus(GPUS_LISTED, node=name),
    )


def _situation(reading: Reading, view: NodeView, decisions: Sequence[Record]) -> situation.Situation:
    deps, snapshot = reading.deps, reading.snapshot
    known = situation.Known(
        [one.need for one in reading.needs if one.need.subject == view.name],
        deps.stores.tickets.tickets(TICKETS_READ, is_open=True, node=view.name),
        decisions[0] if decisions else None,
        {job.key: step for job in snapshot.job_on(view.name) if (step := _saved_step(deps, job)) is not None},
        deps.pulse.faults.get(view.name, ()),
    )
    return situation.of_node(snapshot, view, deps.current.config, known)


def _saved_step(deps: ReadDependencies, job: Job) -> int | None:
    """Step of its newest complete checkpoint against which nothing speaks, if it is one of the newest of all."""
    if not job.managed:
        return None
    newest = deps.queries.checkpoints(CHECKPOINTS_LISTED, only=JobFilter(job_id=job.key.job_id))
    good = (one for one in newest if one["complete"] and not one["suspect"] and one["submit_at"] == job.key.submit_at)
    return next((one["step"] for one in good), None)


def _story(found: Explanation) -> list[story.Entry]:
    return story.entries(found.incidents, found.recoveries, found.requests, found.decisions)[:STORY_LISTED]


JOB_FILTERS = {
    "running": JobFilter(state="RUNNING"),
    "pending": JobFilter(state="PENDING"),
    "managed": JobFilter(managed=True),
}
RECOVERY_FILTERS = {one.value.replace("_", " "): RecoveryFilter(status=one) for one in RecoveryStatus}
INCIDENT_FILTERS = {"open": IncidentFilter(open=True), "closed": IncidentFilter(open=False)}


def _nodes(reading: Reading) -> Page:
    rows = lists.node_rows(reading.snapshot, reading.chosen)
    begin = lists.begin_of(reading.chosen.by, len(rows))
    shown = rows[begin : begin + LISTED]
    last = reading.deps.queries.newest_incidents([one.node.name for one in shown])
    return reading.page(
        "nodes",
        "Nodes",
        rows=[replace(one, last_incident=last.get(one.node.name)) for one in shown],
        total=len(rows),
        begin=begin,
        following=f"{lists.FROM}{begin + LISTED}" if begin + LISTED < len(rows) else "",
        sample_of={kind.code: fleet_map.sample(kind) for kind in fleet_map.LEGEND},
        sorts=("node", "state", "since", "job"),
        filters=lists.NODE_FILTERS,
    )


def _jobs(reading: Reading) -> Page:
    only = replace(JOB_FILTERS.get(reading.chosen.only, JobFilter()), text=reading.chosen.q or None)
    found = job_records(reading.deps, LISTED, reading.span.before, only)
    order = {"RUNNING": 0, "PENDING": 1}
    shown = sorted(found, key=lambda one: order.get(one["state"], 2))
    return reading.page("jobs", "Jobs", jobs=shown, list=reading.span.with_older(found, _id), filters=JOB_FILTERS)


def _id(record: Record) -> int:
    number: int = record["id"]
    return number


def _job(reading: Reading, name: str, courses: CostlyReadings[Course]) -> Page | Response:
    if not name.isdecimal() or int(name) > ID_MAX:
        return missing(f"job {name:.40}")
    found = explain_job(reading.deps, int(name), reading.identity)
    if isinstance(found, Response):
        return found
    table = next((one for key, one in reading.snapshot.progress.tables.items() if key.job_id == int(name)), None)
    shown = heat.heat(table) if table is not None else None
    course = courses.of(int(name), partial(_course, reading, found.record, table))
    paced = course.pace
    return reading.page(
        "job",
        f"Job {name}",
        job=found.record,
        is_now=found.is_now,
        runs=found.record["state"] == JobState.RUNNING.value,
        is_over=found.record["state"] in ENDED_STATES,
        incidents=found.incidents,
        story=_story(found),
        heat=shown,
        mfu=course.mfu,
        heat_drawing=heat.drawn(shown) if shown is not None else None,
        heat_levels=heat.LEVEL_WORDS,
        pace=paced,
        pace_drawing=pace.drawn(paced) if paced is not None else None,
        kept_days=reading.deps.current.config.retention.job_details_days,
        checkpoints_kept=CHECKPOINTS_KEPT,
        restore=None if isinstance(course.restore, Response) else course.restore,
        checkpoints_listed=CHECKPOINTS_LISTED,
        tiers=TIERS,
    )


@dataclass(frozen=True, slots=True)
class Course:
    """How a job goes on, from its checkpoints and ranks, of which it may have many."""

    restore: CheckpointExplanation | Response
    pace: pace.Pace | None
    mfu: float | None


def _course(reading: Reading, job: Record, table: StepTable | None, job_id: int) -> Course:
    restore = explain_checkpoints(reading.deps, job_id, reading.identity)
    used = None if table is None else mfu(table, reading.snapshot.gpus_on)
    return Course(restore, _pace(reading, job), used)


def _pace(reading: Reading, job: Record) -> pace.Pace | None:
    deps, key = reading.deps, JobKey(job["cluster"], job["job_id"], job["submit_at"])
    moves = deps.stores.recoveries.newest(MOVES_MARKED, only=RecoveryFilter(job_id=job["job_id"]))
    of_job = [recovery_record(deps, one) for one in moves if one.plan.kind in MOVES]
    return pace.pace(job["attempts"], deps.stores.checkpoints.saves(key), of_job)


def _recoveries(reading: Reading) -> Page:
    text = reading.chosen.q
    naming = [name for name in reading.snapshot.nodes if text and text.casefold() in name.casefold()]
    filtered = RECOVERY_FILTERS.get(reading.chosen.only, RecoveryFilter())
    only = replace(filtered, text=text or None, naming=naming[:NAMED_MAX])
    newest = reading.deps.stores.recoveries.newest(LISTED, reading.span.before, only)
    return reading.page(
        "recoveries",
        "Recoveries",
        recoveries=[recovery_record(reading.deps, one) for one in newest],
        list=reading.span.with_older(newest, lambda one: one.id),
        filters=RECOVERY_FILTERS,
        named_max=NAMED_MAX,
        not_searched=max(len(naming) - NAMED_MAX, 0),
    )


def _recovery(reading: Reading, name: str) -> Page | Response:
    found = _number(name) and reading.deps.stores.recoveries.newest(1, only=RecoveryFilter(id=_number(name)))
    if not found:
        return missing(f"recovery {name:.40}")
    record = recovery_record(reading.deps, found[0])
    # While it runs, the drawing grows by whole seconds: it is sent again only when it has changed.
    shown = timeline.bars(record, float(int(reading.snapshot.now)))
    decisions = reading.deps.queries.decisions(LISTED, only=DecisionFilter(recoveries=(record["id"],)))
    return reading.page(
        "recovery",
        f"Recovery {name}",
        recovery=record,
        bars=shown,
        drawing=timeline.drawn(shown),
        total_ms=max((bar.end_ms for bar in shown), default=0.0),
        decisions=decisions,
    )


def _incidents(reading: Reading) -> Page:
    wanted = reading.chosen.only
    rule = wanted.removeprefix(OF_RULE) if wanted.startswith(OF_RULE) else None
    only = replace(INCIDENT_FILTERS.get(wanted, IncidentFilter(rule=rule)), text=reading.chosen.q or None)
    found = reading.deps.queries.incidents(LISTED, reading.span.before, only)
    filters = [*INCIDENT_FILTERS, *([wanted] if rule else [])]
    return reading.page(
        "incidents", "Incidents", incidents=found, list=reading.span.with_older(found, _id), filters=filters
    )


def _tickets(reading: Reading) -> Page:
    found = reading.deps.stores.tickets.tickets(LISTED, reading.span.before)
    return reading.page("tickets", "Tickets", tickets=found, list=reading.span.with_older(found, _id))


def _notifications(reading: Reading) -> Page:
    found = message_records(reading.deps, LISTED, reading.span.before)
    return reading.page(
        "notifications",
        "Notifications",
        messages=found,
        list=reading.span.with_older(found, _id),
        receivers=receivers.receivers(reading.deps.current.config, reading.deps.pulse),
    )


def _ticket(reading: Reading, name: str) -> Page | Response:
    found = _number(name) and reading.deps.stores.tickets.tickets(1, number=_number(name))
    return reading.page("ticket", f"Ticket {name}", ticket=found[0]) if found else missing(f"ticket {name:.40}")


def _incident(reading: Reading, name: str, stories: CostlyReadings[post_mortem.Story | Response]) -> Page | Response:
    number = _number(name)
    found = stories.of(number, partial(post_mortem.story_of, reading.deps)) if number else None
    if found is None or isinstance(found, Response):
        return missing(f"incident {name:.40}")
    record, moments = found.incident, post_mortem.moments(found)
    end = min(reading.span.before, len(moments))
    begin = max(end - MOMENTS_LISTED, 0)
    decisions = reading.deps.queries.decisions(
        DECISIONS_LOOKED_AT, only=DecisionFilter(subject=record["subject"], since=record["fault_at"])
    )
    return reading.page(
        "incident",
        f"Incident {name}",
        incident=record,
        situation=_of_incident(reading, record, decisions),
        evidence=evidence_words.lines(record["evidence"]),
        further=post_mortem.further_findings(record),
        moments=moments[begin:end],
        moments_before=begin,
        list=Span(reading.span.before, f"{BEFORE}{begin}" if begin else ""),
        first_steps=[
            (one.recovery["id"], one.recovery["job"]["job_id"], one.recovery["phases_ms"]["first_step"])
            for one in found.moved
            if one.recovery["job"] and "first_step" in one.phases
        ],
        costs=[*post_mortem.costs(found)],
        advice=[*post_mortem.advice(found)],
        decisions=decisions[:LISTED],
    )


def _of_incident(reading: Reading, record: Record, decisions: Sequence[Record]) -> situation.Situation:
    """What its node or gang needs, while it is open."""
    snapshot, subject = reading.snapshot, record["subject"]
    view = snapshot.nodes.get(subject) if record["subject_kind"] == SubjectKind.NODE.value else None
    job = next((job for key, job in snapshot.jobs.items() if str(key) == subject), None)
    if record["closed_at"] is not None:
        return situation.over(record)
    if view is not None:
        return _situation(reading, view, decisions)
    return situation.of_others(snapshot, record, job, decisions[0] if decisions else None)


def _number(name: str) -> int | None:
    return int(name) if name.isdecimal() and 0 < int(name) <= ID_MAX else None


def _guards(reading: Reading) -> Page | Response:
    deps, snapshot, status = reading.deps, reading.snapshot, reading.status
    pool = spare_pool(deps)
    if isinstance(pool, Response):
        return pool
    observed = observed_rules(deps, deps.clock.now() - DAYS * DAY_SECONDS)
    held = {one.value for one in HELD_FOR_PEOPLE}
    newest = deps.queries.decisions(DECISIONS_LOOKED_AT, only=DecisionFilter(action="nothing"))
    config = deps.current.config
    return reading.page(
        "guards",
        "Spares and guards",
        pool=pool,
        budgets=budgets.budgets(snapshot, config),
        observed=observed,
        would_have=[one for one in newest if one["because"] in held][:WOULD_HAVE_LISTED],
        to_do=steps_to_act.to_do(snapshot, status, config, observed.ready, deps.pulse.slurm),
        watched=steps_to_act.watched(snapshot),
        days=DAYS,
    )


ALL: Mapping[str, Callable[[Reading], Page | Response]] = {
    "nodes": _nodes,
    "jobs": _jobs,
    "recoveries": _recoveries,
    "incidents": _incidents,
    "tickets": _tickets,
    "notifications": _notifications,
    "guards": _guards,
}
ONE: Mapping[str, Callable[[Reading, str], Page | Response]] = {
    "nodes": _node,
    "recoveries": _recovery,
    "tickets": _ticket,
}


def found_page(deps: ReadDependencies, text: str) -> str | None:
    """The page of the node or job of this name, or the list of those that have it in their name."""
    snapshot, wanted = deps.pulse.snapshot, Chosen(q=text)
    nodes = snapshot.nodes if snapshot is not None else {}
    if text in nodes:
        return f"nodes/{quote(text)}"
    if text.isdecimal() and int(text) <= ID_MAX and deps.queries.jobs(1, only=JobFilter(job_id=int(text))):
        return f"jobs/{text}"
    if text and any(text.casefold() in name.casefold() for name in nodes):
        return f"nodes{wanted.address()}"
    return f"jobs{wanted.address()}" if text and deps.queries.jobs(1, only=JobFilter(text=text)) else None
