"""Stragglers: a rank whose *self time* stands out from its peers of the same role, window after window.

Wall step time is the same on every rank of a synchronous job and names none. A verdict from statistics alone is a
suspicion; it is confirmed only by a second signal from the node's own hardware, which names the reason, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from understudy_controlplane.config import Straggler
from understudy_controlplane.detect import compute
from understudy_controlplane.detect.causes import OF_THE_HARDWARE, Cause, second_signals
from understudy_controlplane.detect.common_cause import NODES_SHOWN_MAX, domain_fault
from understudy_controlplane.detect.launches import FORGOTTEN
from understudy_controlplane.detect.silence import step_seconds
from understudy_controlplane.detect.slow_communicators import slow_communicators
from understudy_controlplane.detect.slow_pairs import slow_pairs
from understudy_controlplane.detect.slow_ranks import (
    SELF_SECONDS_MIN,
    SlowRank,
    judge_all,
    judge_waiting,
    judged_once,
    judged_ranks,
)
from understudy_controlplane.detect.slowness_cost import SlownessCost, slow_seconds_seen, slowness_cost
from understudy_controlplane.fleet.evidence import Evidence, Json
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import StepTable
from understudy_controlplane.fleet.suspicion import Suspicion, SuspicionCause

UNKNOWN_CAUSE = "unknown"
DATA_CAUSE = "data"
COMPUTE_CAUSE = "compute"
ALL_REDUCE_CAUSE = "all_reduce"

NOT_PRICED = "straggler.not_priced"
"""Its gang would move, but announces no checkpoints."""

WAITING_RATIO_MIN = 1.1

TOGETHER_MIN = 3
"""So many nodes that are slow at the same time may have one cause outside them."""


def straggler(snapshot: Snapshot, policy: Straggler, *, probed: bool) -> Iterator[Finding]:
    """`probed`: suspects are validated as soon as they are idle, so the end of their job does not clear them."""
    tables = list(snapshot.progress.tables.values())
    slow = _on_nodes(snapshot, tables, judged_once(judge_all, tables, policy))
    with_data = [table for table in tables if table.data_seconds is not None]
    starved = _on_nodes(snapshot, with_data, judged_once(judge_waiting, with_data, _for_waiting(policy)))
    yield from _slow_findings(snapshot, [one for one in slow if not one.doubt], policy)
    yield from _starved_findings(snapshot, [one for one in starved if not one.doubt])
    pairs = [*slow_pairs(snapshot, policy), *slow_communicators(snapshot)]
    yield from pairs
    # A rank in doubt does not accuse its node, nor clear it.
    slow_nodes = {one.node for one in (*slow, *starved)} | {one.node for one in pairs}
    for node in snapshot.set_apart:
        name = node.name
        if node.state is not NodeState.SUSPECT or node.heard_at is None:
            continue
        for suspicion in node.record.suspicions:
            if suspicion.cause is SuspicionCause.SLOW and name in slow_nodes:
                continue
            words = _why_clean(snapshot, node, suspicion, policy, probed)
            if words:
                yield Finding(Signal.CLEAN, "straggler.clean", name, snapshot.now, words, suspicion=suspicion.cause)


@lru_cache(maxsize=8)  # the same object for a policy: it is compared with that of each verdict
def _for_waiting(policy: Straggler) -> Straggler:
    """What lies between two steps is not only data: less than this share of a step is not worth a look."""
    names = ("ratio", "ratio_overall", "ratio_few_peers")
    return policy.model_copy(update={name: max(WAITING_RATIO_MIN, getattr(policy, name)) for name in names})


@dataclass(frozen=True, slots=True)
class _SlowNode:
    """The slow ranks of one job on one node."""

    node: str
    table: StepTable
    ranks: list[SlowRank]  # the slowest first

    @property
    def doubt(self) -> bool:
        return all(slow.doubt for slow in self.ranks)

    @property
    def worst(self) -> SlowRank:
        return next((slow for slow in self.ranks if not slow.doubt), self.ranks[0])


def _on_nodes(snapshot: Snapshot, tables: Sequence[StepTable], judged: Sequence[Sequence[SlowRank]]) -> list[_SlowNode]:
    found: list[_SlowNode] = []
    for table, slow_ranks in zip(tables, judged, strict=True):
        by_node: dict[str, list[SlowRank]] = {}
        for slow in sorted(slow_ranks, key=lambda one: -one.ratio):
            if table.nodes[slow.rank] in snapshot.nodes:
                by_node.setdefault(table.nodes[slow.rank], []).append(slow)
        found.extend(_SlowNode(node, table, ranks) for node, ranks in by_node.items())
    return found


def _slow_findings(snapshot: Snapshot, slow: Sequence[_SlowNode], policy: Straggler) -> Iterator[Finding]:
    """Nodes that are most of a domain are slow for one cause, which is named instead of each of them."""
    together = {one.node for one in slow}
    if len(together) < TOGETHER_MIN:
        yield from (_finding(snapshot, one, policy) for one in slow)
        return
    running = {node for table in snapshot.progress.tables.values() for node in table.nodes if node}
    domains = {label: running.intersection(members) for label, members in snapshot.domains.items()}
    for label, members in sorted(domains.items(), key=lambda one: (len(one[1]), one[0])):
        alike = together & members
        if len(alike) >= TOGETHER_MIN and 2 * len(alike) >= len(members) and len(members) < len(running):
            yield _domain_finding(snapshot, label, [one for one in slow if one.node in alike])
            together -= alike
    for one in slow:
        if one.node in together:
            yield _finding(snapshot, one, policy)


def _domain_finding(snapshot: Snapshot, label: str, slow: Sequence[_SlowNode]) -> Finding:
    nodes = sorted({one.node for one in slow})
    causes = Counter(
        cause.value for name in nodes for cause in {cause for cause, _ in _signals(snapshot.nodes[name], slow)}
    )
    often = sorted(causes.items(), key=lambda one: (-one[1], one[0]))
    shown = ", ".join(f"{cause} on {count} of them" for cause, count in often)
    return Finding(
        Signal.DOMAIN_FAULT,
        "straggler.together",
        "",
        snapshot.now,
        f"{len(nodes)} nodes of {label} are slow together ({', '.join(nodes[:8])}); {shown or 'no second signal'}",
        Evidence(
            {
                "nodes": [*nodes[:NODES_SHOWN_MAX]],
                "nodes_alike": len(nodes),
                "ratio": round(median(one.worst.ratio for one in slow), 3),
                "causes": dict(causes),
            }
        ),
        domain=label,
        nodes=tuple(nodes),
    )


def _signals(node: NodeView, slow: Sequence[_SlowNode]) -> list[tuple[Cause, str]]:
    """Second signals of the GPUs of slow ranks on this node."""
    gpus = {one.table.gpus[rank.rank] for one in slow if one.node == node.name for rank in one.ranks}
    return [signal for gpu in sorted(gpus, key=str) for signal in second_signals(node, gpu)]


def _starved_findings(snapshot: Snapshot, starved: Sequence[_SlowNode]) -> Iterator[Finding]:
    """Ranks that wait for data longer than others: those of one node have a slow host, those of many slow storage."""
    nodes = dict.fromkeys((one.node for one in starved), snapshot.now)
    if len(nodes) >= TOGETHER_MIN:
        what = "their ranks wait for data longer than others; look at what storage they read from"
        yield domain_fault(snapshot, "straggler.data_together", nodes, what)
        return
    for one in starved:
        slow, node = one.worst, snapshot.nodes[one.node]
        reasons = second_signals(node, one.table.gpus[slow.rank])
        explained = "; ".join(words for _, words in reasons) or "no second signal"
        yield Finding(
            signal=Signal.STRAGGLER_SUSPECTED,
            rule="straggler.data_wait",
            node=one.node,
            at=snapshot.now,
            summary=f"rank {slow.rank} waits for data, which makes its steps {slow.ratio:.2f} times as long "
            f"as those of its peers{_since(node, slow)}; cause {DATA_CAUSE}: {explained}",
            evidence=Evidence(
                {**_statistics(one), "cause": DATA_CAUSE, "signals": [f"{cause}: {words}" for cause, words in reasons]}
            ),
            job=one.table.job,
        )


def _statistics(one: _SlowNode) -> dict[str, Json]:
    slow, table = one.worst, one.table
    return {
        "rank": slow.rank,
        "ranks": [rank.rank for rank in one.ranks],
        "role": table.roles[slow.rank],
        "peers": slow.peers,
        "ratio": round(slow.ratio, 3),
        "robust_z": round(slow.z, 1),
        "noise_z": round(slow.noise_z, 1),
        "slow_windows": slow.slow_windows,
        "first_slow_step": slow.first_step,
        "last_step": int(table.last_step[slow.rank]),
        "gpu": table.gpus[slow.rank],
    }


def _why_clean(snapshot: Snapshot, node: NodeView, suspicion: Suspicion, policy: Straggler, probed: bool) -> str:
    """Why this suspicion ends. Empty: nothing has been seen yet that would refute it."""
    if node.record.evidence_cleared(suspicion):
        return "" if probed else "nothing speaks against it any more"
    if suspicion.cause in FORGOTTEN:
        return ""  # `launches` ends it
    if suspicion.cause is SuspicionCause.HEALTH and node.may_have_instances(snapshot.now):
        return ""  # whether GPUs are missing is not known yet
    tables = [table for table in snapshot.progress.tables.values() if node.name in table.nodes]
    if suspicion.cause is SuspicionCause.SLOW and tables:
        keeps_up = any(_is_judged(table, node, suspicion, policy) for table in tables)
        return "its ranks keep up with their peers" if keeps_up else ""
    until_validated = probed and suspicion.cause is SuspicionCause.SLOW
    return "" if until_validated else "nothing speaks against it any more"


def _is_judged(table: StepTable, node: NodeView, suspicion: Suspicion, policy: Straggler) -> bool:
    """Enough is known of a rank there to call it slow, if it were, and of steps that were not known when the node
    became suspect: as far as the length of steps shows it.
    """
    steps_since = (table.advanced_at - suspicion.since) / max(step_seconds(table), SELF_SECONDS_MIN)
    ranks = judged_ranks(table, policy) if steps_since >= policy.window_steps else []
    return any(table.nodes[rank] == node.name for rank in ranks)


def _finding(snapshot: Snapshot, one: _SlowNode, policy: Straggler) -> Finding:
    node, slow = snapshot.nodes[one.node], one.worst
    index = one.table.gpus[slow.rank]
    gpu = next((gpu for gpu in node.gpus if gpu.index == index), None)
    # Several ranks have one cause: the GPU of another of them may show it.
    reasons = second_signals(node, index) or _signals(node, [one])
    confirming = next(((cause.value, words) for cause, words in reasons if cause in OF_THE_HARDWARE), None)
    explaining = next(((cause.value, words) for cause, words in reasons), (UNKNOWN_CAUSE, ""))
    tested = compute.slower_than_others(one.table, slow.rank, slow.first_step)
    result = compute.words(tested)
    summed = compute.all_reduce_slower_than_others(one.table, slow.rank, slow.first_step)
    summed_words = compute.all_reduce_words(summed)
    if confirming is None and tested is not None and tested >= compute.SLOWER_RATIO:
        explaining = (COMPUTE_CAUSE, result)
        confirming = explaining if policy.compute_test_confirms else None
    elif confirming is None and summed_words:
        explaining = (ALL_REDUCE_CAUSE, summed_words)
    cause, words = confirming or explaining
    evidence: dict[str, Json] = {
        **_statistics(one),
        "sm_clock_mhz": gpu.sm_clock_mhz if gpu else None,
        "clock_event_reasons": gpu.clock_event_reasons if gpu else None,
        "cause": cause,
        "second_signal": confirming[1] if confirming else "",
        "compute_test_ratio": None if tested is None else round(tested, 3),
        "all_reduce_test_ratio": None if summed is None else round(summed, 3),
        "signals": [f"{cause.value}: {words}" for cause, words in reasons],
    }
    cost = _cost(snapshot, node, one)
    evidence |= cost.evidence()
    # Its checkpoints are known from the round after it became a suspect.
    known = node.record.suspected_of(SuspicionCause.SLOW)
    waits = policy.move_when_it_pays and confirming is not None and not (known and cost.pays)
    reason = f"cause {cause}: {words}" if words else f"cause {cause}: no second signal"
    for shown in (result, summed_words):
        if shown and shown not in reason:
            reason = f"{reason}; {shown}"
    not_priced = waits and known and cost.price_seconds is None
    if slow.steps_averaged > 1:
        reason = f"{reason}; not all of its steps are slow"
    count = len(one.ranks)
    which = f"rank {slow.rank} takes" if count == 1 else f"{count} ranks, such as {slow.rank}, take"
    reason = f"{reason}; {cost.words}"
    if not_priced:
        reason = f"{reason}; it is not moved, because its checkpoints are not announced"
    elif waits:
        reason = f"{reason}, so it stays until its move pays"
    elif confirming is None:
        reason = f"{reason}; it is not moved for this alone"
    return Finding(
        signal=Signal.STRAGGLER_CONFIRMED if confirming and not waits else Signal.STRAGGLER_SUSPECTED,
        rule=NOT_PRICED if not_priced else "straggler.self_time",
        node=node.name,
        at=snapshot.now,
        summary=f"{which} {slow.ratio:.2f} times as long as {'its' if count == 1 else 'their'} peers"
        f"{_since(node, slow)}; {reason}",
        evidence=Evidence(evidence),
        detail=HardwareDetail(gpu=str(index) if index is not None else ""),
        job=one.table.job,
        lost_seconds=cost.paid_seconds,
    )


def _since(node: NodeView, slow: SlowRank) -> str:
    """Text of when it became slow. A node that is a suspect already may have lost the steps in which it did."""
    return "" if node.record.suspicions else f" since step {slow.first_step}"


def _cost(snapshot: Snapshot, node: NodeView, one: _SlowNode) -> SlownessCost:
    slow, table = one.worst, one.table
    seen_since = snapshot.now - slow_seconds_seen(table, slow.rank, slow.first_step, slow.last_step)
    suspect_since = [known.since for known in node.record.suspicions if known.cause is SuspicionCause.SLOW]
    since = min([seen_since, *suspect_since])
    return slowness_cost(
        table, slow.rank, slow.ratio, since, snapshot.now, snapshot.progress.checkpointed_at.get(table.job)
    )
