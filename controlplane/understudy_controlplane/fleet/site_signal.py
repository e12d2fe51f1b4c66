"""What another system of the site reports of nodes or domains: a leak, a power failure, a planned outage."""

from __future__ import annotations

from dataclasses import dataclass

from understudy_controlplane.config import SignalKind


@dataclass(frozen=True, slots=True)
class ReportedSignal:
    """Signal as a system of the site sends it. The same source and key again is the same signal."""

    source: str  # label of the token, and what the sender adds to it
    key: str
    kind: SignalKind
    targets: tuple[str, ...]  # names of nodes, and of domains as in "rack r1"
    summary: str


@dataclass(frozen=True, slots=True)
class SiteSignal(ReportedSignal):
    """One that is stored."""

    id: int
    at: float  # when it first came
    until: float  # when it ends by itself, or its sender ended it
    ended_at: float | None = None  # by an operator: until `until` the same signal is not taken again

    @property
    def words(self) -> str:
        return f"{self.source} reports {self.kind.value.replace('_', ' ')}: {self.summary or 'no details'}"


SIGNAL_PREFIX = "signal "


def signal_subject(number: int) -> str:
    """What a request to end a signal is about, the audit, and tickets. No node has such a name."""
    return f"{SIGNAL_PREFIX}{number}"
