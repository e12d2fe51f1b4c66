"""A page shows a part of a list: what has a text in its name or is of one kind, in an order, from a place on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from understudy_controlplane.dashboard import fleet_map
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.store.database import ID_MAX
from understudy_controlplane.store.queries import Record
from understudy_wire.hardware import GpuStatus

LISTED = 100
BEFORE, FROM = "before-", "from-"
OF_RULE = "rule-"
SILENT_SECONDS = 60.0
NODE_FILTERS = ("not in service", "spare", "suspect", "quarantined", "repairing", "manual repair", "operator hold")


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the address of a page asks for. `by`: how the fleet is grouped, where a list begins, a report's span."""

    by: str = ""
    q: str = ""  # part of a name
    only: str = ""
    sort: str = ""

    def address(self, **changes: str) -> str:
        """Query of the page with these values, from its beginning unless `by` is among them."""
        wanted = replace(self, **{"by": "", **changes})
        found = {name: getattr(wanted, name) for name in ("q", "only", "sort", "by") if getattr(wanted, name)}
        return f"?{urlencode(found)}" if found else "?"


NOTHING = Chosen()


@dataclass(frozen=True, slots=True)
class Span:
    """Records of a list that a page shows. `older`: where the next page begins; empty: this is the last one."""

    before: int
    older: str = ""

    @property
    def is_older(self) -> bool:
        return self.before < ID_MAX

    @classmethod
    def of(cls, by: str) -> Span:
        number = by.removeprefix(BEFORE)
        return cls(int(number) if number != by and number.isdecimal() and 0 < int(number) <= ID_MAX else ID_MAX)

    def with_older(self, records: Sequence[Any], number: Callable[[Any], int]) -> Span:
        return Span(self.before, f"{BEFORE}{min(map(number, records))}" if len(records) == LISTED else "")


@dataclass(frozen=True, slots=True)
class NodeRow:
    node: NodeView
    code: str  # of its tile
    health: str
    jobs: Sequence[int]
    last_incident: Record | None = None


SORTS: Mapping[str, Callable[[NodeRow], Any]] = {
    "node": lambda row: natural(row.node.name),
    "state": lambda row: (row.code in fleet_map.HEALTHY, row.node.state, natural(row.node.name)),
    "since": lambda row: (-row.node.record.since, natural(row.node.name)),
    "job": lambda row: (not row.jobs, row.jobs[:1], natural(row.node.name)),
}


def node_rows(snapshot: Snapshot, chosen: Chosen) -> list[NodeRow]:
    """All nodes that are asked for, in the order that is asked for; without their last incidents."""
    codes, text = fleet_map.codes(snapshot), chosen.q.casefold()
    rows = [
        NodeRow(node, codes[name], _health(node, snapshot.now), [job.key.job_id for job in snapshot.job_on(name)])
        for name, node in snapshot.nodes.items()
        if text in name.casefold() and _is_wanted(node, codes[name], chosen.only)
    ]
    return sorted(rows, key=SORTS.get(chosen.sort, SORTS["node"]))


def _is_wanted(node: NodeView, code: str, only: str) -> bool:
    if only == "not in service":
        return code not in fleet_map.HEALTHY
    if only == "spare":
        return node.is_spare
    return only not in NODE_FILTERS or node.state.value == only.replace(" ", "_")


def _health(node: NodeView, now: float) -> str:
    if node.heard_at is None:
        return "no agent has reported"
    ok = [gpu.status for gpu in node.gpus].count(GpuStatus.OK)
    gpus = f"{ok} of {len(node.gpus)} GPUs" if node.gpus else "no GPU reported"
    return f"{gpus}, agent silent" if now - node.heard_at > SILENT_SECONDS else gpus


def begin_of(by: str, total: int) -> int:
    """Position of the first row of the page."""
    number = by.removeprefix(FROM)
    return int(number) if number != by and number.isdecimal() and int(number) < total else 0
