"""Is the launch over? Pure: judged from a sample of it.

A rank's failure, a lost node and a verdict are distinguished, and further reports are waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from understudy_launcher.launch_result import Failure

SETTLE_SECONDS = 0.25
"""A node that dies makes ranks on other nodes fail, which may be reported first. The cause may follow in this time."""
SETTLE_EARLY_SECONDS = 2.0
"""The same at the start of a launch, to see whether all ranks fail alike."""
EARLY_SECONDS = 30.0
STEP_SEEN_SECONDS = 1.5
"""A step is seen in the progress file within this time."""
HOOK_STEP_SEEN_SECONDS = 25.0
"""A step that the training hook reports is known here within this time: of other nodes through the control plane."""
MANY_SILENT_SECONDS = 60.0
"""Up to this time, the network or this host is taken for the cause of silence on many nodes."""
MANY_SLOW_SECONDS = 60.0
"""If most of the gang is slow to die, the cause is a stalled file system, or large ranks, up to this time."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What the training hook's reports say of the running launch, as times of the monotonic clock."""

    at: float | None = None
    """Time at which its newest step was learned; None: none was."""
    quiet_since: float | None = None
    """Time since which no step was learned although reports can arrive; None: there is no step yet, or they cannot."""


@dataclass(frozen=True, slots=True)
class RunningSample:
    """What is known of a running launch now."""

    seats: tuple[str, ...]
    ranks: int
    ended_well: int
    failures: tuple[Failure, ...]
    age_seconds: float
    first_failure_age_seconds: float = 0.0
    """Time since the first failure was reported."""
    silent_seconds: Mapping[str, float] = field(default_factory=dict)
    """Node → time since its seat last sent a message, of those where it is long."""
    condemned: Mapping[str, str] = field(default_factory=dict)
    """Node → why: a verdict, a seat that disconnected, a node that Slurm shows as down."""
    progressed: bool = False
    stalled_seconds: float = 0.0
    """Time for which it has certainly made no step; 0 before its first step."""
    step_age_seconds: float | None = None
    """Time since its newest step was seen; None before its first step, and where none are reported."""
    step_seen_seconds: float = STEP_SEEN_SECONDS
    """A step is seen at most this long after it was made."""
    replaceable: int | None = None
    """Number of nodes that can be lost without the loss of the allocation; None: not known."""
    domains: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Node → what it shares with others, such as its switch; empty: not known."""


@dataclass(frozen=True, slots=True)
class LaunchEnd:
    """Why a launch is over: because of these nodes, or of its ranks (no node named)."""

    bad: Mapping[str, str]
    restart_reason: str = ""
    """Why the control plane ordered a restart, although no rank has ended."""
    without: tuple[str, ...] = ()
    hung_seconds: float = 0.0
    """A time above 0: no rank has failed, but there was no new step for this time."""

    @property
    def is_hang(self) -> bool:
        """True: no rank ends by itself."""
        return bool(self.restart_reason or self.hung_seconds)


def launch_end(sample: RunningSample, silence_seconds: float, hang_seconds: float = 0.0) -> LaunchEnd | None:
    """None: it goes on, or further reports are awaited. `hang_seconds` 0: hangs are not looked for."""
    bad = {node: why for node, why in sample.condemned.items() if node in sample.seats}
    silent = {node: age for node, age in sample.silent_seconds.items() if not _goes_on(sample, age, silence_seconds)}
    bad |= lost_to_silence(silent, len(sample.seats), silence_seconds, sample.replaceable, sample.domains)
    if bad:
        return LaunchEnd(bad)
    running = sample.ranks - sample.ended_well - len(sample.failures)
    if not sample.failures:
        return LaunchEnd({}) if running <= 0 else _hung(sample, silence_seconds, hang_seconds)
    if running <= 0 and not _verdict_may_follow(sample):
        return LaunchEnd({})
    early = sample.age_seconds <= EARLY_SECONDS and not sample.progressed and running > 0
    patience = SETTLE_EARLY_SECONDS if early else SETTLE_SECONDS
    return LaunchEnd({}) if sample.first_failure_age_seconds >= patience else None


def _goes_on(sample: RunningSample, silent_for: float, silence_seconds: float) -> bool:
    """True if the gang has made steps since a node fell silent. It cannot without that node's ranks: only the network
    between launcher and seats is away, however long that takes.
    """
    age = sample.step_age_seconds
    if age is None:
        return False
    return age < max(silence_seconds, sample.step_seen_seconds) and silent_for - age > sample.step_seen_seconds


def _hung(sample: RunningSample, silence_seconds: float, hang_seconds: float) -> LaunchEnd | None:
    """Silent nodes report no steps either: then the ranks may not stand still."""
    silent = any(age > silence_seconds for age in sample.silent_seconds.values())
    hung = hang_seconds > 0 and sample.stalled_seconds > hang_seconds and not silent
    return LaunchEnd({}, hung_seconds=sample.stalled_seconds) if hung else None


def _verdict_may_follow(sample: RunningSample) -> bool:
    """All ranks have ended. If all failed alike, the program is the cause; otherwise the loss of a node may follow."""
    return len({failure.status for failure in sample.failures}) > 1 or sample.ended_well > 0


def lost_to_silence(
    silent_seconds: Mapping[str, float],
    seats: int,
    silence_seconds: float,
    replaceable: int | None = None,
    domains: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, str]:
    """Nodes that sent no message for too long, and why they count as lost.

    What would cost the whole allocation, and what fell silent together, waits for another witness: Slurm, the control
    plane, a connection that is reset.
    """
    silent = {node: age for node, age in silent_seconds.items() if age > silence_seconds}
    too_many = are_many(len(silent), seats) or (replaceable is not None and len(silent) > replaceable)
    if too_many or share_a_domain(silent, domains or {}):
        silent = {node: age for node, age in silent.items() if age > MANY_SILENT_SECONDS}
    return {node: f"no message from its seat for {age:.1f} s" for node, age in silent.items()}


def share_a_domain(nodes: Iterable[str], domains: Mapping[str, Sequence[str]]) -> str:
    """The domain whose nodes these are, all of them and no others; empty where there is none.

    A domain of one node says nothing, and neither does one that all nodes are in.
    """
    wanted = set(nodes)
    if len(wanted) < 2:
        return ""
    for label in domains.get(next(iter(wanted)), ()):
        members = {node for node, labels in domains.items() if label in labels}
        if members == wanted and len(members) < len(domains):
            return label
    return ""


def are_many(nodes: int, seats: int) -> bool:
    """Too many at once for a fault of each node."""
    return nodes > max(1, seats // 2)
