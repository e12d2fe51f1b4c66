"""`understudy explain node|job`: what was decided and why, what goes on, and what holds back the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from understudy_controlplane.cli.output import date

if TYPE_CHECKING:
    from understudy_client import Client, Decision, Incident, Record, Recovery, RequestState

NEWEST = 10
FORBIDDEN = 403

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Explained:
    is_now: str
    """One line."""
    record: Record
    incidents: list[Incident]
    recoveries: list[Recovery]
    requests: list[RequestState]
    decisions: list[Decision]


def explain_node(client: Client, name: str) -> Explained:
    from understudy_client import Decision, Incident, Recovery, RequestState

    record = client.get(f"/v1/nodes/{name}", dict)
    slurm = record["slurm"]
    there = f"in Slurm {slurm['state']} {' '.join(slurm['flags'])}".rstrip() if slurm else "not in Slurm"
    reason = f": {slurm['reason']}" if slurm and slurm["reason"] else ""
    state = f"{record['state']}{' (spare)' if record['spare'] else ''}"
    return Explained(
        f"{name} is {state} since {date(record['since'])}, {there}{reason}",
        record,
        client.items("/v1/incidents", Incident, NEWEST, subject=name, open=True),
        client.items("/v1/recoveries", Recovery, NEWEST, node=name),
        client.items("/v1/requests", RequestState, NEWEST, node=name),
        client.items("/v1/decisions", Decision, NEWEST, subject=name),
    )


def explain_job(client: Client, number: int) -> Explained:
    from understudy_client import Decision, Incident, Recovery

    record = client.get(f"/v1/jobs/{number}", dict)
    managed = "managed" if record["managed"] else "not managed: Understudy never touches it"
    incidents = _of_viewers(lambda: client.items("/v1/incidents", Incident, NEWEST, subject=_gang(record), open=True))
    return Explained(
        f"job {number} of {record['user']} is {record['state']}, restarted {record['restart_count']} times, {managed}",
        record,
        incidents,
        client.items("/v1/recoveries", Recovery, NEWEST, job=number),
        [],
        _of_viewers(lambda: client.items("/v1/decisions", Decision, NEWEST, subject=f"job {number}")),
    )


def _of_viewers(read: Callable[[], list[T]]) -> list[T]:
    """Empty to users of the cluster: they see their jobs and the recoveries of these."""
    from understudy_client import RefusedError

    try:
        return read()
    except RefusedError as error:
        if error.status != FORBIDDEN:
            raise
        return []


def _gang(job: Record) -> str:
    """The subject of incidents about it."""
    return f"{job['cluster']}/{job['job_id']}@{job['submit_at']}"


def lines(explained: Explained) -> Iterator[str]:
    yield explained.is_now
    yield from _section("open incidents", [f"{one.id} {one.rule}: {one.summary}" for one in explained.incidents])
    yield from _section("newest recoveries", [_recovery(one) for one in explained.recoveries])
    requests = [f"{one.id} {one.verb} by {one.by}: {one.status}: {one.why}" for one in explained.requests]
    yield from _section("requests", requests)
    yield from _section("newest decisions", [_decision(one) for one in explained.decisions])


def _recovery(one: Recovery) -> str:
    moved = f" to {' '.join(one.spares)}" if one.nodes and one.spares else ""
    about = " ".join(one.nodes or one.spares)
    took = "" if one.milliseconds is None else f" in {one.milliseconds / 1000:.1f} s"
    outcome = f": {one.outcome}" if one.outcome else ""
    return f"{one.id} {date(one.detected_at)} {one.kind} {about}{moved}: {one.status}{took}{outcome}"


def _decision(one: Decision) -> str:
    """A decision to do nothing names the guard that holds it back, where it is one."""
    because = "" if one.because == "rule" else f", because of {one.because}"
    return f"{date(one.at)} {one.action}{because} (row {one.table_row}): {one.reason}"


def _section(title: str, entries: list[str]) -> list[str]:
    return [f"{title}:", *(f"  {entry}" for entry in entries)] if entries else []
