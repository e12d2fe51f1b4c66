"""What agents are told about their own node with every acknowledgement: written by the loop, read by the door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BELIEVED_SECONDS = 10.0
"""A picture of Slurm older than this says nothing against a node: it may have been drained and resumed since."""


@dataclass(frozen=True, slots=True)
class _Said:
    nodes: Mapping[str, str]
    at: float


class Verdicts:
    """Safe from any thread: a whole value is replaced by another."""

    def __init__(self) -> None:
        self._said = _Said({}, 0.0)

    def say(self, unfit: Mapping[str, str], slurm_read_at: float | None) -> None:
        """`unfit` tells of each node on which no new job may start why."""
        self._said = _Said(dict(unfit) if slurm_read_at is not None else {}, slurm_read_at or 0.0)

    def unfit(self, node: str, now: float) -> str:
        """Empty: no objection."""
        said = self._said
        if not said.nodes or not 0 <= now - said.at < BELIEVED_SECONDS:
            return ""
        return said.nodes.get(node, "")
