"""Finds the page of the dashboard that shows what waits for a person. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from understudy_controlplane.api.needs import NeedRecord
from understudy_controlplane.fleet.need import NeedKind

PAGES = {
    NeedKind.BREAKER: "guards",
    NeedKind.BUDGET: "guards",
    NeedKind.ONLY_OBSERVED: "guards#observed",
}
OF_A_NODE = frozenset({NeedKind.NODE_OUT, NeedKind.NODE_LEFT, NeedKind.NODE_SILENT, NeedKind.DRILL})


@dataclass(frozen=True, slots=True)
class Item:
    """`page` is a path below the dashboard; empty: there is none."""

    need: NeedRecord
    page: str


def items(needs: Sequence[NeedRecord]) -> list[Item]:
    return [Item(one, _page(one)) for one in needs]


def _page(need: NeedRecord) -> str:
    noun, _, number = need.subject.partition(" ")
    if noun in ("job", "recovery", "incident") and number.isdecimal():
        return f"{ {'job': 'jobs', 'recovery': 'recoveries', 'incident': 'incidents'}[noun] }/{number}"
    return f"nodes/{need.subject}" if need.kind in OF_A_NODE else PAGES.get(need.kind, "")
