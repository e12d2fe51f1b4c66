"""Stragglers: a rank whose *self time* stands out from its peers of the same role, window after window.

Wall step time is the same on every rank of a synchronous job and names none. A verdict from statistics alone is a
suspicion; it is confirmed only by a second signal from the node's own hardware, which names the reason, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.causes import OF_THE_HARDWARE, second_signals
from understudy_controlplane.detect.launches import FORGOTTEN
from understudy_controlplane.detect.silence import step_seconds
from understudy_controlplane.detect.slow_ranks import SELF_SECONDS_MIN, SlowRank, judge_all, judged_ranks
from understudy_controlplane.fleet.evidence import Evidence, Json
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import StepTable
from understudy_controlplane.fleet.suspicion import Suspicion, SuspicionCause

UNKNOWN_CAUSE = "unknown"


def straggler(snapshot: Snapshot, policy: Straggler, *, probed: bool) -> Iterator[Finding]:
    """`probed`: suspects are validated as soon as they are idle, so the end of their job does not clear them."""
    slow_nodes: set[str] = set()
    tables = list(snapshot.tables.values())
    for table, found in zip(tables, judge_all(tables, policy), strict=True):
        for slow in found:
            host = table.nodes[slow.rank]
            if host in snapshot.nodes:
                slow_nodes.add(host)  # a rank in doubt does not accuse its node, and does not clear it
                if not slow.doubt:
                    yield _finding(snapshot, table, slow)
    for name, node in snapshot.nodes.items():
        if node.state is not NodeState.SUSPECT or node.heard_at is None:
            continue
        for suspicion in node.record.suspicions:
            if suspicion.cause is SuspicionCause.SLOW and name in slow_nodes:
                continue
            words = _why_clean(snapshot, node, suspicion, policy, probed)
            if words:
                yield Finding(Signal.CLEAN, "straggler.clean", name, snapshot.now, words, suspicion=suspicion.cause)


def _why_clean(snapshot: Snapshot, node: NodeView, suspicion: Suspicion, policy: Straggler, probed: bool) -> str:
    """Why this suspicion ends. Empty: nothing has been seen yet that would refute it."""
    if node.record.evidence_cleared(suspicion):
        return "" if probed else "nothing speaks against it any more"
    if suspicion.cause in FORGOTTEN:
        return ""  # `launches` ends it
    tables = [table for table in snapshot.tables.values() if node.name in table.nodes]
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


def _finding(snapshot: Snapshot, table: StepTable, slow: SlowRank) -> Finding:
    node = snapshot.nodes[table.nodes[slow.rank]]
    index = table.gpus[slow.rank]
    gpu = next((gpu for gpu in node.gpus if gpu.index == index), None)
    reasons = second_signals(node, index)
    confirming = next(((cause.value, words) for cause, words in reasons if cause in OF_THE_HARDWARE), None)
    explaining = next(((cause.value, words) for cause, words in reasons), (UNKNOWN_CAUSE, ""))
    cause, words = confirming or explaining
    evidence: dict[str, Json] = {
        "rank": slow.rank,
        "role": table.roles[slow.rank],
        "peers": slow.peers,
        "ratio": round(slow.ratio, 3),
        "robust_z": round(slow.z, 1),
        "noise_z": round(slow.noise_z, 1),
        "slow_windows": slow.slow_windows,
        "first_slow_step": slow.first_step,
        "last_step": int(table.last_step[slow.rank]),
        "gpu": index,
        "sm_clock_mhz": gpu.sm_clock_mhz if gpu else None,
        "clock_event_reasons": gpu.clock_event_reasons if gpu else None,
        "cause": cause,
        "second_signal": confirming[1] if confirming else "",
        "signals": [f"{cause.value}: {words}" for cause, words in reasons],
    }
    reason = f"cause {cause}: {words}" if words else f"cause {cause}: no second signal"
    return Finding(
        signal=Signal.STRAGGLER_CONFIRMED if confirming else Signal.STRAGGLER_SUSPECTED,
        rule="straggler.self_time",
        node=node.name,
        at=snapshot.now,
        summary=f"rank {slow.rank} takes {slow.ratio:.2f} times as long as its peers; {reason}",
        evidence=Evidence(evidence),
        detail=HardwareDetail(gpu=str(index) if index is not None else ""),
        job=table.job,
    )
