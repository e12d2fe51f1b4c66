"""What a gang's ranks report of their training, together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

import numpy as np

from understudy_controlplane.fleet.steps import StepTable
from understudy_wire.hardware import Gpu
from understudy_wire.ranks import Training

PEAK_FLOPS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H20": 148e12,
    "H800": 989e12,
    "GB300": 2500e12,
    "GB200": 2500e12,
    "B300": 2250e12,
    "B200": 2250e12,
    "A100": 312e12,
    "A800": 312e12,
    "A30": 165e12,
    "L40S": 362e12,
    "L40": 181e12,
}
"""BF16, dense, of a GPU whose name has these words: NVIDIA's data sheets of each, half of what they give with sparsity.
The first that fits counts. `docs/straggler.md` has the sources.
"""

GpusOf = Callable[[str], Sequence[Gpu]]
"""Node → its GPUs."""


def step_seconds(table: StepTable) -> float | None:
    """Step time of the usual rank."""
    known = table.wall_seconds[~np.isnan(table.wall_seconds)]
    return float(np.median(known)) if known.size else None


def loss(table: StepTable) -> float | None:
    """The mean of the ranks: each has its own batches."""
    found = [one.loss for one in table.training.values() if one.loss is not None]
    return fmean(found) if found else None


def grad_norm(table: StepTable) -> float | None:
    found = [one.grad_norm for one in table.training.values() if one.grad_norm is not None]
    return median(found) if found else None


def tokens_per_second(table: StepTable) -> float | None:
    """Tokens of all replicas. Ranks that are known to be one replica report the same tokens."""
    found = [one for _, one in _of_replicas(table)]
    return sum(one.tokens_per_second or 0.0 for one in found) if found else None


def mfu(table: StepTable, gpus_of: GpusOf, of_replica: float | None = None) -> float | None:
    """Model FLOPs utilization: the model's arithmetic for these tokens, of what all GPUs of the gang could do. None: a
    rank's GPU, or the model's need for a token, is not known. `of_replica`: tokens per second of each replica, instead
    of what they report now.
    """
    found = [one for _, one in _of_replicas(table)]
    if not found or any(one.flops_per_token is None for one in found):
        return None
    peaks = [_peak(table, rank, gpus_of) for rank in range(len(table.nodes))]
    possible = sum(one for one in peaks if one is not None)
    if not possible or None in peaks:
        return None
    return sum(_flops(one, of_replica) for one in found) / possible


def mfu_of_ranks(table: StepTable, gpus_of: GpusOf, wanted: range) -> dict[int, float]:
    """MFU from the tokens of a rank's replica and all its GPUs. Ranks without known replica are left out."""
    replicas = table.replicas if table.replicas.size else np.full(len(table.nodes), -1, np.int64)
    by_replica = {int(replicas[rank]): one for rank, one in _of_replicas(table) if replicas[rank] >= 0}
    possible: dict[int, float | None] = {}
    found = {}
    for rank in range(wanted.start, min(wanted.stop, len(table.nodes))):
        replica = int(replicas[rank])
        one = table.training.get(rank) if replica < 0 else by_replica.get(replica)
        if one is None or one.tokens_per_second is None or one.flops_per_token is None:
            continue
        if replica < 0 or replica not in possible:
            mates = [rank] if replica < 0 else np.flatnonzero(replicas == replica).tolist()
            peaks = [_peak(table, mate, gpus_of) for mate in mates]
            possible[replica] = None if None in peaks else sum(peak for peak in peaks if peak is not None)
        if peak := possible[replica]:
            found[rank] = _flops(one) / peak
    return found


def all_report_tokens(table: StepTable) -> bool:
    """Each rank, or another one of its replica."""
    known = {rank for rank, one in table.training.items() if one.tokens_per_second is not None}
    if not table.replicas.size:
        return len(known) == len(table.nodes)
    reported = {int(table.replicas[rank]) for rank in known}
    return all(rank in known or (of >= 0 and of in reported) for rank, of in enumerate(table.replicas.tolist()))


def _flops(one: Training, tokens_per_second: float | None = None) -> float:
    tokens = one.tokens_per_second if tokens_per_second is None else tokens_per_second
    return (tokens or 0.0) * (one.flops_per_token or 0.0)


def _of_replicas(table: StepTable) -> list[tuple[int, Training]]:
    """One rank of each replica that reports tokens; a rank whose replica is not known is one of its own."""
    found: dict[int, tuple[int, Training]] = {}
    for rank, one in table.training.items():
        if one.tokens_per_second is not None:
            replica = int(table.replicas[rank]) if table.replicas.size else -1
            found.setdefault(replica if replica >= 0 else -1 - rank, (rank, one))
    return list(found.values())


def _peak(table: StepTable, rank: int, gpus_of: GpusOf) -> float | None:
    wanted = table.gpus[rank]
    name = next((gpu.name for gpu in gpus_of(table.nodes[rank]) if wanted is not None and gpu.index == wanted), "")
    return next((peak for words, peak in PEAK_FLOPS.items() if words in name), None)
