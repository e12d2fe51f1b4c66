"""Stragglers: a rank whose *self time* stands out from its peers of the same role, window after window.

Wall step time is the same on every rank of a synchronous job and names nobody. A verdict from statistics alone is a
suspicion; it is confirmed only by a second signal from the rank's own GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agents.wire import Gpu
from controlplane.config import Straggler
from controlplane.fleet.finding import Finding, Json, Signal
from controlplane.fleet.node import NodeState
from controlplane.fleet.snapshot import Snapshot
from controlplane.fleet.steps import StepTable

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation of a normal distribution, in standard deviations (reciprocal)."""

MAD_FLOOR_SHARE = 0.01
"""Peers that agree better than this share of their median are not made suspicious by their agreement."""

SELF_SECONDS_MIN = 1e-3
"""Steps shorter than this are noise: nobody is slow in them."""

SLOWDOWN_REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""nvmlClocksEventReason bits that throttle a GPU for its own or its supply's sake."""


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that statistics make a suspect. `ratio` and `z` are of its latest window."""

    rank: int
    ratio: float
    z: float
    slow_windows: int
    first_step: int  # of the earliest slow window


def straggler(snapshot: Snapshot, policy: Straggler) -> Iterator[Finding]:
    slow_nodes: set[str] = set()
    for table in snapshot.tables.values():
        for slow in slow_ranks(table, policy):
            host = table.nodes[slow.rank]
            if host in snapshot.nodes:
                slow_nodes.add(host)
                yield _finding(snapshot, table, slow)
    for name, node in snapshot.nodes.items():
        if node.state is NodeState.SUSPECT and name not in slow_nodes:
            yield Finding(Signal.CLEAN, "straggler.clean", name, snapshot.now, "its ranks keep up with their peers")


def slow_ranks(table: StepTable, policy: Straggler) -> list[SlowRank]:
    """Judged on the last `windows` windows that every rank has finished; fewer windows are judged as they come."""
    finished = int(table.last_step.min(initial=np.iinfo(np.int64).max)) + 1 - table.first_step
    count = min(policy.windows, finished // policy.window_steps)
    if count < 1:
        return []
    used = count * policy.window_steps
    block = table.self_seconds[:, finished - used : finished]
    medians = _medians(block.reshape(len(block), count, policy.window_steps), axis=2)
    start = table.first_step + finished - used
    roles = np.array(table.roles)
    found: list[SlowRank] = []
    for role in sorted(set(table.roles)):
        ranks = np.flatnonzero(roles == role)
        if len(ranks) >= 3:  # two peers cannot tell who of them is wrong
            found += _slow_peers(ranks, medians[ranks], policy, start)
    return found


def _medians(values: npt.NDArray[np.float32], axis: int) -> npt.NDArray[np.float32]:
    """Of what has arrived; NaN where nothing has. Where all has, as is usual, there is a way several times as quick."""
    if not np.isnan(values).any():
        return np.asarray(np.median(values, axis=axis))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values, axis=axis))


def _slow_peers(
    ranks: npt.NDArray[np.intp], medians: npt.NDArray[np.float32], policy: Straggler, start: int
) -> list[SlowRank]:
    """`medians` has shape (ranks, windows)."""
    middle = _medians(medians, axis=0)
    spread = np.maximum(MAD_TO_SIGMA * _medians(np.abs(medians - middle), axis=0), MAD_FLOOR_SHARE * middle)
    with np.errstate(divide="ignore", invalid="ignore"):  # peers that take no time at all: excluded below
        ratio = medians / middle
        z = (medians - middle) / spread
    ratio_asked = policy.ratio if len(ranks) >= policy.peers_few else policy.ratio_few_peers
    slow = (ratio > ratio_asked) & (z > policy.robust_z) & (middle > SELF_SECONDS_MIN)
    gross = slow & (ratio > policy.ratio_gross)
    windows = slow.shape[1]
    enough = slow.sum(axis=1) >= policy.windows_slow_min
    two_gross = gross[:, -2:].all(axis=1) if windows >= 2 else np.zeros(len(ranks), dtype=bool)
    return [
        SlowRank(
            rank=int(ranks[i]),
            ratio=float(ratio[i, -1]),
            z=float(z[i, -1]),
            slow_windows=int(slow[i].sum()),
            first_step=start + int(np.argmax(slow[i])) * policy.window_steps,
        )
        for i in np.flatnonzero((enough | two_gross) & slow[:, -1])
    ]


def second_signal(gpu: Gpu) -> str:
    """What the GPU itself says of a slowdown; empty: nothing."""
    reasons = gpu.clock_event_reasons or 0
    named = [name for bit, name in SLOWDOWN_REASONS.items() if reasons & bit]
    if named:
        return f"clocks throttled: {', '.join(named)}"
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        return f"PCIe link down-trained to x{gpu.pcie_width} of x{gpu.pcie_width_max}"
    return ""


def _finding(snapshot: Snapshot, table: StepTable, slow: SlowRank) -> Finding:
    node = snapshot.nodes[table.nodes[slow.rank]]
    index = table.gpus[slow.rank]
    gpu = next((gpu for gpu in node.gpus if gpu.index == index), None)
    second = second_signal(gpu) if gpu else ""
    evidence: dict[str, Json] = {
        "rank": slow.rank,
        "ratio": round(slow.ratio, 3),
        "robust_z": round(slow.z, 1),
        "slow_windows": slow.slow_windows,
        "first_slow_step": slow.first_step,
        "last_step": int(table.last_step[slow.rank]),
        "gpu": index,
        "sm_clock_mhz": gpu.sm_clock_mhz if gpu else None,
        "clock_event_reasons": gpu.clock_event_reasons if gpu else None,
        "second_signal": second,
    }
    summary = f"rank {slow.rank} takes {slow.ratio:.2f} times as long as its peers; {second or 'no second signal'}"
    return Finding(
        signal=Signal.STRAGGLER_CONFIRMED if second else Signal.STRAGGLER_SUSPECTED,
        rule="straggler.self_time",
        node=node.name,
        at=snapshot.now,
        summary=summary,
        evidence=evidence,
        job=table.job,
    )
