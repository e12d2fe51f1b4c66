"""Slurm's generic resources, as it prints those of a node and as a job asks for them.

slurmctld prints a registered node's in `_build_node_gres_str`, and those in use in `_node_gres_used`. Until a node has
registered it shows slurm.conf's own text, which `_get_gres_cnt` reads (src/common/gres.c of 22.05, later
src/interfaces/gres.c).

One of `gpu` is what a job can ask for: a GPU, or an instance of a GPU in MIG mode. Its type is a name that the site
chooses and does not distinguish them: only NVML does (`NodeView.whole_gpus`).
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

_ITEM = re.compile(r"(?:^|,)(?:gres[/:])?(?P<name>[^,:(=]+)(?P<rest>(?:[:=](?:\(null\)|[^,:(=]*))*)(?:\([^)]*\))?")
_COUNT = re.compile(r"(\d{1,15})([KMGTP]?)(?:i?B)?", re.IGNORECASE)
_NO_CONSUME = "no_consume"
"""Stands where a type may: jobs share the resource, and Slurm counts none as used."""

SHARES_OF_GPUS = ("mps", "shard")
_INSTANCE = re.compile(r"\dg[._]?\d+gb", re.IGNORECASE)
"""NVML's name of an instance, in a type that a site takes from it: "a100_1g.5gb", "1g10gb"."""


@lru_cache(maxsize=1024)  # asked of every node at every tick, and a fleet has few kinds of them
def _items(text: str) -> tuple[tuple[str, int], ...]:
    """Name with type, and count. The same name comes once for each of its types, or lines of gres.conf."""
    counts: Counter[str] = Counter()
    for found in _ITEM.finditer(text):
        words = re.split("[:=]", found["name"] + found["rest"])
        number = _COUNT.fullmatch(words[-1]) if len(words) > 1 else None
        count = int(number[1]) << 10 * " KMGTP".index(number[2].upper() or " ") if number else 1
        kinds = [one for one in (words[:-1] if number else words) if one != "(null)"]
        counts[":".join(kinds)] += count
    return tuple(sorted((what, count) for what, count in counts.items() if count))


def alike(text: str) -> str:
    """The same for nodes that have the same resources: without their sockets, and in alphabetical order. Slurm shows a
    node that has not registered since slurmctld's start, such as one that is switched off, without sockets.
    """
    return ",".join(f"{what}:{count}" for what, count in _items(text))


@lru_cache(maxsize=1024)
def gpus_of_gres(text: str) -> int:
    """How many GPUs, or instances of GPUs, Slurm has for the node; 0: it shows none."""
    return sum(count for what, count in _items(text) if what.partition(":")[0] == "gpu")


@lru_cache(maxsize=1024)
def gpu_types(text: str) -> tuple[str, ...]:
    """Types of GPUs, in alphabetical order; none where it names no type."""
    words = (what.split(":") for what, _ in _items(text))
    return tuple(sorted({one[1] for one in words if one[0] == "gpu" and len(one) > 1 and one[1] != _NO_CONSUME}))


def shared_by(text: str) -> tuple[str, ...]:
    """How jobs share its GPUs, as far as Slurm shows it; none: MIG mode is possible with types of any other name."""
    shares = {what.partition(":")[0] for what, _ in _items(text)} & {*SHARES_OF_GPUS}
    instances = {"MIG"} if any(map(_INSTANCE.search, gpu_types(text))) else set()
    return tuple(sorted(shares | instances))


def gres_for_job(text: str) -> str:
    """What a job asks for that is to have all of a node's Gres. Of GPUs and shares of them Slurm gives a job one or the
    other, and refuses one that asks for both (gres.c, gres_job_state_validate). It knows neither the sockets nor
    "no_consume" in a job's request, and shows both of a node.
    """
    shares = SHARES_OF_GPUS if gpus_of_gres(text) else ()
    asked = ((what.split(":"), count) for what, count in _items(text) if what.partition(":")[0] not in shares)
    return ",".join(f"{':'.join(one for one in words if one != _NO_CONSUME)}:{count}" for words, count in asked)
