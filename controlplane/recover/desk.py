"""The desk: tickets for people, with all that is known, and the ends of our own jobs' output."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from controlplane.clock import Clock
from controlplane.config import Config
from controlplane.fleet.finding import Json
from controlplane.fleet.recovery import Plan
from controlplane.slurm.protocol import SlurmError
from controlplane.store.repairs import RepairStore

log = structlog.get_logger()

END_BYTES = 4000

Notify = Callable[[str, Mapping[str, Json]], str]
"""Sends a ticket to a URL. Returns why it was not taken, in words; empty: it was."""


class Desk:
    def __init__(self, store: RepairStore, config: Config, clock: Clock, notify: Notify) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._notify = notify

    def is_sent(self, label: str) -> bool:
        return self._store.is_ticket_sent(label)

    def send(self, plan: Plan) -> None:
        """Written down first. A webhook that took it but whose answer was lost gets it again, under the same id."""
        node, now = plan.failed_nodes[0], self._clock.now()
        body: dict[str, Json] = {
            "id": plan.label,
            "cluster": self._config.cluster,
            "node": node,
            "reason": plan.drain_reason,
            "evidence": json.loads(json.dumps(self._store.history(node))),
            "when_done": f"understudy release {node} REASON, or scontrol update NodeName={node} State=RESUME",
        }
        self._store.open_ticket(plan.label, node, body, now)
        refused = self._notify(self._config.repair.webhook, body) if self._config.repair.webhook else ""
        if refused:
            raise SlurmError(f"the webhook did not take ticket {plan.label}: {refused}")
        self._store.ticket_sent(plan.label, now)

    def read_end(self, path: str) -> str:
        try:
            with Path(path).open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - END_BYTES))
                return file.read().decode(errors="replace").strip()
        except OSError as error:
            log.warning("output.unreadable", path=path, error=str(error))
            return ""
