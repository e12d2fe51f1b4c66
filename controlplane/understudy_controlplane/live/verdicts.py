"""Why a node must take no new job, for the acknowledgements to its agent. Written by the loop, read by ingest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VALID_SECONDS = 10.0
"""An older view of Slurm is no evidence against a node: it may have been drained and resumed since."""


@dataclass(frozen=True, slots=True)
class _Unfit:
    nodes: Mapping[str, str]
    at: float


class Verdicts:
    """Safe from any thread: a whole value is replaced by another."""

    def __init__(self) -> None:
        self._unfit = _Unfit({}, 0.0)

    def set(self, unfit: Mapping[str, str], slurm_read_at: float | None) -> None:
        """`unfit`: node on which no new job may start → why."""
        self._unfit = _Unfit(dict(unfit) if slurm_read_at is not None else {}, slurm_read_at or 0.0)

    def unfit(self, node: str, now: float) -> str:
        """Why no new job may start on the node. Empty: it may."""
        current = self._unfit
        if not current.nodes or not 0 <= now - current.at < VALID_SECONDS:
            return ""
        return current.nodes.get(node, "")
