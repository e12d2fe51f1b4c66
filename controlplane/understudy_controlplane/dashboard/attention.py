"""What needs a person now, the most urgent first. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.recovery import Recovery, RecoveryStatus, job_of
from understudy_controlplane.store.queries import Record

DAY_SECONDS = 86_400.0


class Urgency(StrEnum):
    NOW = "now"
    SOON = "soon"


@dataclass(frozen=True, slots=True)
class Item:
    """`page` is a path below the dashboard; empty: it has none."""

    urgency: Urgency
    title: str
    detail: str = ""
    page: str = ""
    since: float | None = None


def items(
    problems: Sequence[str],
    proposals: Sequence[Recovery],
    failed: Sequence[Recovery],
    tickets: Sequence[Record],
    in_repair: Sequence[NodeView],
    now: float,
) -> list[Item]:
    """`problems` as `understudy status` shows them; `failed`: newest recoveries that failed; `tickets` that are open;
    `in_repair`: nodes in manual repair.
    """
    found = [Item(Urgency.NOW, problem) for problem in problems]
    found += [
        Item(
            Urgency.NOW,
            f"recovery {one.id} awaits approval",
            _about(one),
            f"recoveries/{one.id}",
            one.decided_at,
        )
        for one in proposals
        if one.status is RecoveryStatus.AWAITS_APPROVAL
    ]
    found += [_of_ticket(ticket) for ticket in tickets]
    with_ticket = {ticket["node"] for ticket in tickets}
    found += [
        Item(
            Urgency.SOON,
            f"manual repair of {node.name}",
            "no ticket is open: release it when it is repaired",
            f"nodes/{node.name}",
            node.record.since,
        )
        for node in in_repair
        if node.name not in with_ticket
    ]
    found += [
        Item(
            Urgency.SOON, f"recovery {one.id} failed", one.outcome or _about(one), f"recoveries/{one.id}", one.ended_at
        )
        for one in failed
        if (one.ended_at or one.decided_at) > now - DAY_SECONDS
    ]
    return sorted(found, key=lambda item: item.urgency is not Urgency.NOW)


def only_observed(incidents: Collection[OpenIncident]) -> list[Item]:
    """Where the control plane only observes: those that are open."""
    if not incidents:
        return []
    title = f"{counted(len(incidents), 'incident is', 'incidents are')} open, and nothing is done"
    detail = "the control plane only observes: see what it would have done, and deal with it"
    return [Item(Urgency.NOW, title, detail, "guards#observed", min(one.opened_at for one in incidents))]


def _of_ticket(ticket: Record) -> Item:
    by = ticket["acknowledged_by"]
    urgency = Urgency.SOON if by else Urgency.NOW
    about = ticket["node"] or "the fleet"
    detail = f"ticket {ticket['id']}, {by} deals with it" if by else f"ticket {ticket['id']}, not acknowledged yet"
    title = f"manual repair of {about}" if ticket["node"] else "a page"
    page = f"nodes/{ticket['node']}" if ticket["node"] else f"tickets/{ticket['id']}"
    return Item(urgency, title, detail, page, ticket["opened_at"])


def _about(recovery: Recovery) -> str:
    job = job_of(recovery.plan)
    words = [recovery.plan.kind.value.replace("_", " ")]
    words += [f"of job {job.job_id}"] if job else []
    words += [f"on {', '.join(recovery.plan.nodes)}"] if recovery.plan.nodes else []
    return " ".join(words)
