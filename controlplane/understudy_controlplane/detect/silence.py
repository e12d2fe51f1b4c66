"""Silence: an agent that stops reporting is unknown, not bad.

A node is dead only when Slurm agrees (its slurmd's port does not answer, or Slurm reports it down) *and* no job there
makes progress. Agent and slurmd use one network, and a job goes on without it: where a job holds the node, its gang or
launcher on other nodes has to confirm the death, or Slurm itself, after much longer. For a spare Slurm has to: no other
job starts there meanwhile, as on any other idle node, and no gang while its agent is silent. An agent that is stopped
announces that. Many silent at once: the cause is the network or the control plane, and nothing is concluded.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from understudy_controlplane.config import Silence
from understudy_controlplane.detect.common_cause import TOGETHER_SECONDS, domain_faults
from understudy_controlplane.detect.domain_silence import (
    SilentDomain,
    domain_silences,
    needs_to_leave,
    silent_domains,
)
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal, SilenceDetail
from understudy_controlplane.fleet.incident import DOMAIN_SILENT
from understudy_controlplane.fleet.node import OUT_OF_SERVICE, NodeState, NodeView
from understudy_controlplane.fleet.slurm import Service
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import StepTable

PROGRESS_MARGIN_SECONDS = 2.0
"""A job whose ranks finished steps this long after its node fell silent went on there."""

PROGRESS_AGE_MAX_SECONDS = 5.0
"""... and it does so still if the last of those steps is no older than this, or than three steps."""


STANDS_SECONDS_MIN = 4.0
"""A gang that finishes no step for this long, for three steps, and for longer than it paused before, stands still."""

WAITS_FOR_ORDER_SECONDS = 30.0
"""Seconds that a rank waits at a step for what becomes of the order to save before it."""

UNCONFIRMED_SECONDS = 120.0
"""Seconds in which a node with a job is not dead by what Slurm shows alone."""

ANSWER_SECONDS = 20.0
"""Time that slurmctld and a reading of Slurm take for a ping and its result (MessageTimeout is 10 s by default)."""

SLURM_AGREES = "Slurm shows that it does not respond"

LAUNCHER_AGE_MAX_SECONDS = 12.0
"""A launcher is reported every five seconds."""


UNSURE_FACTOR = 3.0
"""Times the usual patience: with a node whose slurmd could never be asked, or whose agent may not have come back yet
since this process started.
"""

NEARLY_ALL_HEARD_FACTOR = 1.5
"""... with one of the few nodes that were not heard since: a slow agent that asks two addresses needs some seconds."""

BEFORE_SLURM_SECONDS = 10.0
"""Slurm sets a node down, and requeues its jobs, no sooner than SlurmdTimeout after its death (ping_nodes.c). Held by
then, the seats of a gang are its own; later, a waiting job has them.
"""

NOT_WATCHED = OUT_OF_SERVICE | {NodeState.FOREIGN_DRAIN}

NEVER_HEARD, HEARD = "silence.never_heard", "silence.heard"
"""Rules that hold for a whole fleet at once while its agents are being installed."""


def unconfirmed_seconds(slurmd_timeout_seconds: int, policy: Silence) -> float:
    """Silence of agent and slurmd after which a node with a job is dead though nothing else confirms it."""
    longest = policy.dead_unconfirmed_seconds or UNCONFIRMED_SECONDS
    if not slurmd_timeout_seconds:
        return longest
    return min(longest, max(policy.dead_after_seconds, slurmd_timeout_seconds - BEFORE_SLURM_SECONDS))


def agreed_seconds(slurmd_timeout_seconds: int) -> float:
    """Time for which Slurm has to show that it does not reach a node: one missed answer of a working slurmd is shown
    until the next ping, which comes every third of SlurmdTimeout (controller.c, ping_nodes.c).
    """
    if not slurmd_timeout_seconds:
        return UNCONFIRMED_SECONDS
    return slurmd_timeout_seconds / 3 + ANSWER_SECONDS


def slurm_agrees(node: NodeView, snapshot: Snapshot) -> bool:
    """Slurm does not reach the node either. When Slurm sets it DOWN for that, it ends the node's jobs itself."""
    if node.slurm is None or node.service is not Service.SILENT:
        return False
    shown_for = snapshot.now - node.slurm_silent_since if node.slurm_silent_since is not None else 0.0
    return node.slurm.down or shown_for > agreed_seconds(snapshot.slurm.slurmd_timeout_seconds)


def silent_since(node: NodeView, started_at: float) -> float | None:
    """Time of the node's last report, by the control plane's clock; None: it never had an agent.

    A node that had one before this process started is given the time since that start.
    """
    if node.heard_at is not None:
        return node.heard_at
    return started_at if node.record.agent_seen_at is not None else None


def _quiet_since(node: NodeView, snapshot: Snapshot) -> float:
    """The same, also of a node that never had an agent."""
    since = silent_since(node, snapshot.started_at)
    return snapshot.started_at if since is None else since


def is_mass_silence(silent: int, watched: int, policy: Silence) -> bool:
    return silent >= policy.mass_nodes_min and silent >= policy.mass_share * watched


def may_be_mass_silence(snapshot: Snapshot, policy: Silence) -> bool:
    """True if so many are silent, also where they did not fall silent together."""
    fallen, watched = fallen_silent(snapshot, policy)
    return is_mass_silence(len(fallen), watched, policy)


def fallen_silent(snapshot: Snapshot, policy: Silence) -> tuple[dict[str, float], int]:
    """When the silent nodes fell silent, and how many nodes are watched at all. Nodes that are out of service already,
    that Slurm has away on purpose, whose agent announced its stop, or that never had one do not count either way.
    """
    watched = dict(_watched(snapshot))
    return _fallen(watched, snapshot, policy), len(watched) + snapshot.plain


def _fallen(watched: Mapping[str, float], snapshot: Snapshot, policy: Silence) -> dict[str, float]:
    return {name: at for name, at in watched.items() if snapshot.now - at > policy.silent_after_seconds}


def _watched(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    """Nodes of which silence counts, besides the plain ones, and when each was heard last."""
    for node in snapshot.notable:
        at = silent_since(node, snapshot.started_at)
        away = node.slurm is not None and node.slurm.service is Service.AWAY
        if at is not None and not node.stopping and not away and node.record.state not in NOT_WATCHED:
            yield node.name, at


def silence(snapshot: Snapshot, policy: Silence) -> Iterator[Finding]:
    watched = dict(_watched(snapshot))
    fallen, watched_nodes = _fallen(watched, snapshot, policy), len(watched) + snapshot.plain
    silent = sorted(fallen.values())
    masses: list[tuple[str, float]] = []
    quiet: dict[str, float] = {}
    for node in snapshot.notable:
        at = _quiet_since(node, snapshot)
        if snapshot.now - at > policy.silent_after_seconds:
            quiet[node.name] = at
    advanced_at = _advanced_at(snapshot, set(quiet))
    confirmed = _confirmed(snapshot, quiet)
    not_watched = {node.name for node in snapshot.notable}.difference(watched)
    domains = silent_domains(snapshot, fallen, snapshot.nodes.keys() - not_watched) if fallen else []
    domain_of = {name: one for one in domains for name in one.nodes}
    unknown = {node.name for node in snapshot.set_apart if node.state is NodeState.UNKNOWN}
    for node in snapshot.notable:
        name = node.name
        if name in quiet:
            at = quiet[name]
            # However long ago: agents that stopped together may have one cause, and it may be the control plane.
            together = bisect_left(silent, at + TOGETHER_SECONDS) - bisect_right(silent, at - TOGETHER_SECONDS)
            mass = is_mass_silence(together, watched_nodes, policy)
            if mass and name in fallen:
                masses.append((name, at))
            found = _dead_or_silent(node, snapshot, policy, mass, advanced_at.get(name, 0.0), confirmed.get(name, ""))
            yield _with_its_domain(found, snapshot, policy, domain_of.get(name))
        elif name in unknown and node.heard_at is not None:
            yield Finding(Signal.HEARD, HEARD, node.name, node.heard_at, "the agent reports again")
    yield from domain_faults(snapshot, "silence.mass", masses, "their agents fell silent together")
    in_masses = {name for name, _ in masses}
    yield from domain_silences([one for one in domains if in_masses.isdisjoint(one.nodes)])


def _with_its_domain(found: Finding, snapshot: Snapshot, policy: Silence, domain: SilentDomain | None) -> Finding:
    """A dead node whose domain is silent counts as dead when the domain has had its time, and a gang has to leave."""
    if domain is None or found.signal is not Signal.NODE_DEAD:
        return found
    waits = snapshot.now - domain.since <= policy.domain_wait_seconds
    if not waits and needs_to_leave(snapshot, found.node):
        return replace(found, summary=f"{found.summary}; {domain.label} has been silent with it")
    why = (
        f"{domain.label} fell silent as a whole: it has {policy.domain_wait_seconds:g} s to come back"
        if waits
        else f"{domain.label} is silent as a whole, and no managed gang has to leave this node"
    )
    words = f"the agent is silent; {why}"
    return replace(found, signal=Signal.SILENT, rule=DOMAIN_SILENT, summary=words, dead=False)


def _dead_or_silent(
    node: NodeView, snapshot: Snapshot, policy: Silence, mass: bool, advanced_at: float, confirmed_by: str
) -> Finding:
    since, at = silent_since(node, snapshot.started_at), _quiet_since(node, snapshot)
    evidence = {
        "silent_seconds": round(snapshot.now - at, 3),
        "slurmd_silent_since": node.slurmd_silent_since,
        "slurm_state": node.slurm.base_state if node.slurm else None,
        "mass_silence": mass,
    }
    # A synchronous gang cannot finish steps without its ranks on this node.
    goes_on = advanced_at > (since or 0.0) + PROGRESS_MARGIN_SECONDS
    because = _why_not_dead(node, snapshot, policy, mass, since, goes_on)
    if not because and not confirmed_by:
        because = _why_not_confirmed(node, snapshot, policy, snapshot.now - at)
        held, by_slurm = _has_time(node, snapshot), slurm_agrees(node, snapshot)
        confirmed_by = "no job holds it" if not held else SLURM_AGREES if by_slurm else "neither was heard for long"
    if because:
        rule = "silence.mass" if mass else NEVER_HEARD if since is None else "silence.agent"
        words = f"the agent is silent; {because}"
        return Finding(Signal.SILENT, rule, node.name, at, words, Evidence(evidence), detail=SilenceDetail(mass=mass))
    return Finding(
        Signal.NODE_DEAD,
        "silence.node_dead",
        node.name,
        at,
        f"dead: agent silent for {snapshot.now - at:.1f} s, its slurmd does not answer, and {confirmed_by}",
        Evidence(evidence),
        dead=True,
        detail=SilenceDetail(mass=False),
    )


def _why_not_dead(
    node: NodeView, snapshot: Snapshot, policy: Silence, mass: bool, since: float | None, goes_on: bool
) -> str:
    """Why a silent node does not count as dead; empty: it does."""
    silent_for = snapshot.now - (since or snapshot.started_at)
    slurmd_silent_for = snapshot.now - node.slurmd_silent_since if node.slurmd_silent_since is not None else 0.0
    # When its slurmd's port was never reachable from here, Slurm's own state decides, after a longer time.
    can_ask = node.record.slurmd_seen_at is not None
    slurm_reports_it = not can_ask and node.service is Service.SILENT
    patience = policy.dead_after_seconds * (_factor(node, snapshot) if can_ask else UNSURE_FACTOR)
    reasons = (
        (mass, "many others are silent too: the network or the control plane is assumed to be the cause"),
        (since is None, "none has reported yet"),
        (node.service in (None, Service.AWAY), "Slurm has it off, rebooting or in maintenance"),
        (silent_for <= patience, "it has not been silent for long enough"),
        (
            slurmd_silent_for < policy.slurmd_silent_seconds and not slurm_reports_it,
            "its slurmd answers, or did so a moment ago",
        ),
        (goes_on, "its job makes progress"),
    )
    return next((words for holds, words in reasons if holds), "")


def _factor(node: NodeView, snapshot: Snapshot) -> float:
    """Times the usual patience with its agent."""
    if node.heard_at is not None:
        return 1.0
    if not snapshot.few_unheard:
        return UNSURE_FACTOR
    silent_before = node.state is NodeState.UNKNOWN and node.record.since < snapshot.started_at
    return 1.0 if silent_before else NEARLY_ALL_HEARD_FACTOR


def _why_not_confirmed(node: NodeView, snapshot: Snapshot, policy: Silence, silent_for: float) -> str:
    """Why a node of which only agent and slurmd are silent does not count as dead; empty: it does."""
    if node.stopping and silent_for <= policy.stopped_seconds:
        return "it has announced that it stops"
    if _has_time(node, snapshot):
        patience = unconfirmed_seconds(snapshot.slurm.slurmd_timeout_seconds, policy)
        if silent_for <= patience or not (policy.dead_unconfirmed_seconds or slurm_agrees(node, snapshot)):
            if node.is_spare:
                return "no job starts there before Slurm confirms that it is dead"
            return "neither its gang, nor a launcher on another node, nor Slurm itself confirms that it is dead"
    return ""


def _has_time(node: NodeView, snapshot: Snapshot) -> bool:
    """True if Slurm starts no other job there meanwhile."""
    return node.is_spare or bool(snapshot.holders_of(node.name))


def _confirmed(snapshot: Snapshot, quiet: Mapping[str, float]) -> dict[str, str]:
    """Silent node → what confirms its death besides agent and slurmd: its gang or launcher, seen from other nodes.

    A gang that stood still while the node was still heard (`quiet`: when last), or that went on without it being heard,
    stands for another reason. So does one that stopped together with most gangs of which no node is silent: with the
    fabric, or the storage.
    """
    stand: list[tuple[StepTable, list[str]]] = []
    for table in snapshot.progress.tables.values():
        there = quiet.keys() & table.nodes if quiet and table.advanced_at else set()
        if there and any(name and name not in quiet for name in table.nodes):
            pause = _longest_pause(table, snapshot)
            moved_till_then = [name for name in there if abs(quiet[name] - table.advanced_at) <= pause]
            if moved_till_then and snapshot.now - table.advanced_at > pause:
                stand.append((table, moved_till_then))
    heard_of = [
        (table.advanced_at, _longest_pause(table, snapshot))
        for table in (snapshot.progress.tables.values() if stand else ())
        if table.advanced_at and not quiet.keys() & table.nodes
    ]
    found: dict[str, str] = {}
    for table, names in stand:
        if not _stopped_with_others(table.advanced_at, _longest_pause(table, snapshot), heard_of, snapshot.now):
            found |= dict.fromkeys(names, "its gang stands still")
    for key, gang in snapshot.progress.gangs.items():
        job = snapshot.jobs.get(key)
        left = {*gang.state.lost, *snapshot.given_up_by_launcher(key)}
        own = quiet.keys() & left & {*(job.slurm.nodes if job is not None else ())}
        heard = gang.heard_at is not None and snapshot.now - gang.heard_at < LAUNCHER_AGE_MAX_SECONDS
        if heard and gang.host not in quiet:
            found |= dict.fromkeys(own, "its launcher has lost it")
    return found


def _stopped_with_others(at: float, pause: float, others: Sequence[tuple[float, float]], now: float) -> bool:
    """True if others stopped with it. `at`: when the gang last finished a step. It stands still `pause` seconds later.
    `others`: the same of others.
    """
    standing = [(other_at, longest) for other_at, longest in others if now - other_at > longest]
    together = sum(abs(other_at - at) <= max(longest, pause) for other_at, longest in standing)
    return together > 0 and together >= len(others) - len(standing)


def _longest_pause(table: StepTable, snapshot: Snapshot) -> float:
    """No step, no pause before, and no rank's wait for an order to save took a gang longer than this."""
    pause = max(STANDS_SECONDS_MIN, 3 * step_seconds(table), table.longest_pause_seconds)
    return max(pause, WAITS_FOR_ORDER_SECONDS) if table.job in snapshot.progress.ordered_to_save else pause


def _advanced_at(snapshot: Snapshot, nodes: set[str]) -> dict[str, float]:
    """When the gangs on these nodes last finished a step; of a gang that has stopped since, nothing."""
    found: dict[str, float] = {}
    for table in snapshot.progress.tables.values():
        there = nodes.intersection(table.nodes) if nodes else set()
        if there and snapshot.now - table.advanced_at < max(PROGRESS_AGE_MAX_SECONDS, 3 * step_seconds(table)):
            found |= {name: max(table.advanced_at, found.get(name, 0.0)) for name in there}
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _StepSeconds:
    of: npt.NDArray[np.float32]
    seconds: float


def step_seconds(table: StepTable) -> float:
    """About how long a step takes: the longest self time of any rank, in its middle. 0 while nothing is known."""
    kept = table.kept.get("step_seconds")
    if isinstance(kept, _StepSeconds) and kept.of is table.self_seconds:
        return kept.seconds
    known = table.self_seconds[np.isfinite(table.self_seconds)]
    seconds = float(np.quantile(known, 0.9)) if known.size else 0.0
    table.kept["step_seconds"] = _StepSeconds(table.self_seconds, seconds)
    return seconds
