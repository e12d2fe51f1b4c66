"""What happened to a node or a job, in one list, newest first. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from understudy_controlplane.api.requests import RequestState
from understudy_controlplane.fleet.drill import WORDS
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.store.queries import Record


@dataclass(frozen=True, slots=True)
class Entry:
    """`page` is a path below the dashboard; empty: it has none."""

    at: float
    kind: str
    text: str
    mark: str = ""  # a short word beside it
    page: str = ""


def entries(
    incidents: Iterable[Record],
    recoveries: Iterable[Record],
    requests: Iterable[RequestState],
    decisions: Iterable[Record],
) -> list[Entry]:
    found = [_of_decision(one) for one in decisions]
    for one in incidents:
        page = f"incidents/{one['id']}"
        found.append(Entry(one["opened_at"], "incident", one["summary"], "opened", page))
        if one["closed_at"] is not None:
            found.append(Entry(one["closed_at"], "incident", one["outcome"] or one["summary"], "closed", page))
    for one in recoveries:
        name, page = f"{one['kind'].replace('_', ' ')} {' '.join(one['nodes'])}".strip(), f"recoveries/{one['id']}"
        found.append(Entry(one["decided_at"], "recovery", f"{name} begins", "decided", page))
        if one["ended_at"] is not None:
            found.append(
                Entry(one["ended_at"], "recovery", f"{name}: {one['outcome'] or one['status']}", "ended", page)
            )
    found += [Entry(one.at, "request", _of_request(one), one.status.value.replace("_", " ")) for one in requests]
    return sorted(found, key=lambda entry: -entry.at)


def _of_request(one: RequestState) -> str:
    mark = WORDS if one.verb in (Verb.DRILL, Verb.END_DRILL) else ""
    return f"{mark}{one.by}: {one.verb.value}: {one.reason}"


def _of_decision(one: Record) -> Entry:
    page = f"recoveries/{one['recovery']}" if one["recovery"] else ""
    page = page or (f"incidents/{one['incident']}" if one["incident"] else "")
    because = "" if one["because"] == "rule" else f", because of {one['because'].replace('_', ' ')}"
    return Entry(one["at"], "decision", one["reason"], f"{one['action'].replace('_', ' ')}{because}", page)
