"""Tickets for administrators, with all that is known, and the end of the output of the control plane's jobs."""

from __future__ import annotations

import json
from pathlib import Path

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.provider import Ask, is_rack
from understudy_controlplane.fleet.recovery import ManualRepairPlan, PagePlan
from understudy_controlplane.store.tickets import TicketStore

log = structlog.get_logger()

END_BYTES = 4000


class Tickets:
    """The notifier brings them to people."""

    def __init__(self, store: TicketStore, current: CurrentConfig, clock: Clock) -> None:
        self._store = store
        self._current = current
        self._clock = clock

    def is_there(self, label: str) -> bool:
        return self._store.is_ticket(label)

    def open(self, plan: ManualRepairPlan | PagePlan) -> None:
        """`ProviderWatch` asks the provider for those in which it is to be asked."""
        now, page = self._clock.now(), isinstance(plan, PagePlan)
        body = self._of_page(plan) if isinstance(plan, PagePlan) else self._of_repair(plan)
        policy = self._current.config.provider
        if policy.command and (not page or is_rack(str(body["node"]))):
            replaces = isinstance(plan, ManualRepairPlan) and plan.replaces
            body["provider"] = {"asked": (Ask.REPLACE if replaces else Ask.REPORT).value}
        self._store.open_ticket(plan.label, str(body["node"]), body, now, closed=page)

    def _of_repair(self, plan: ManualRepairPlan) -> dict[str, Json]:
        node = plan.nodes[0]
        return {
            "id": plan.label,
            "cluster": self._current.config.cluster,
            "node": node,
            "reason": plan.drain_reason,
            "evidence": self._history(node),
            "when_done": f"understudy node release {node} REASON, or scontrol update NodeName={node} State=RESUME",
        }

    def _of_page(self, plan: PagePlan) -> dict[str, Json]:
        return {
            "id": plan.label,
            "cluster": self._current.config.cluster,
            "node": plan.about[0],
            "about": list(plan.about),
            "reason": plan.reason,
            "evidence": self._history(plan.about[0]),
            "when_done": "nothing has to be reported: the control plane sees by itself what has changed",
        }

    def _history(self, node: str) -> Json:
        history: Json = json.loads(json.dumps(self._store.history(node)))
        return history

    def read_end(self, path: str) -> str:
        try:
            with Path(path).open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - END_BYTES))
                return file.read().decode(errors="replace").strip()
        except OSError as error:
            log.warning("output_unreadable", path=path, error=str(error))
            return ""
