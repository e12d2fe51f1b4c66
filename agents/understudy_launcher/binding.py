"""CPUs and GPUs of its node that a rank gets, as srun would have given them to a task. Pure but for reading the node's
CPUs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GPU_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    "ZE_AFFINITY_MASK",
)
_SHARES = ("cores", "threads", "sockets", "ldoms")
_LISTS = ("map_cpu", "mask_cpu", "map_ldom", "mask_ldom")
_QUIET = ("quiet", "q", "verbose", "v")
_GPUS_OF_TASK = re.compile(r"gres[/:]gpu(?:[:/][^:=,]+)?[:=](\d+)")


class BindingError(Exception):
    """The message names what cannot be given to a rank; the caller adds the node."""


@dataclass(frozen=True, slots=True)
class Cpu:
    number: int
    core: int
    ldom: int
    """NUMA node."""
    socket: int


@dataclass(frozen=True, slots=True)
class CpuBind:
    """srun's --cpu-bind. Empty `how`: as srun does by default, in a job that says how many CPUs a task has."""

    how: str = ""
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Binding:
    cpu_bind: CpuBind = CpuBind()
    cpus_per_task: int | None = None
    cyclic: bool = False
    """Ranks go to the sockets by turns, and not to one until it is full."""
    gpus_per_task: int | None = None
    """None: each rank sees all GPUs of the node, or one, where those are MIG devices. 0: all in any case."""

    def for_seat(self) -> str:
        bind = [self.cpu_bind.how, self.cpu_bind.values]
        return json.dumps([bind, self.cpus_per_task, self.cyclic, self.gpus_per_task])


def binding_for_seat(text: str) -> Binding:
    (how, values), cpus_per_task, cyclic, gpus_per_task = json.loads(text)
    return Binding(CpuBind(how, tuple(values)), cpus_per_task, cyclic, gpus_per_task)


def parse_cpu_bind(text: str) -> CpuBind:
    """Raises ValueError, with what may stand there."""
    words = [word for word in text.split(",") if word.lower() not in _QUIET]
    kind, _, rest = ",".join(words).partition(":")
    kind = kind.lower()
    if kind in ("none", "no"):
        return CpuBind("none")
    if kind.rstrip("s") in [one.rstrip("s") for one in _SHARES] and not rest:
        return CpuBind(next(one for one in _SHARES if one.rstrip("s") == kind.rstrip("s")))
    if kind in _LISTS and rest:
        return CpuBind(kind, tuple(_values(kind, rest)))
    raise ValueError(f"{text}: none, cores, threads, sockets, ldoms, or map_cpu:, mask_cpu:, map_ldom: or mask_ldom:")


def _values(kind: str, text: str) -> list[int]:
    """srun's own forms: `0,4`, `0x0f,0xf0`, and `0x0f*4` for the same value four times."""
    found: list[int] = []
    for one in text.split(","):
        value, star, times = one.partition("*")
        number = int(value, 16) if kind.startswith("mask") else int(value, 0)
        if number < 0:
            raise ValueError(f"{one}: no CPU has a number below 0")
        found += [number] * (int(times) if star else 1)
    return found


def cpus_of_task(environment: Mapping[str, str]) -> int | None:
    """CPUs that the job asks for each task; None: it does not say."""
    text = environment.get("SLURM_CPUS_PER_TASK", "")
    return int(text) if text.isdecimal() and int(text) else None


def gpus_of_task(environment: Mapping[str, str]) -> int | None:
    """GPUs that the job asks for each task: `2`, `a100:2`, `a100:1,h100:1`; in newer Slurm `gres/gpu:2`. None: it does
    not say.
    """
    text = environment.get("SLURM_GPUS_PER_TASK", "")
    counts = [one.rpartition(":")[2] for one in text.split(",")]
    if text and all(one.isdecimal() for one in counts):
        return sum(map(int, counts)) or None
    return sum(map(int, _GPUS_OF_TASK.findall(environment.get("SLURM_TRES_PER_TASK", "")))) or None


def is_cyclic(environment: Mapping[str, str]) -> bool:
    """What `--distribution` says of sockets: the second word. Without one, ranks fill a socket first, as the GPUs of
    consecutive ranks are mostly on one.
    """
    words = environment.get("SLURM_DISTRIBUTION", "").partition(",")[0].split(":")
    return len(words) > 1 and words[1].lower() in ("cyclic", "fcyclic")


def read_cpus(allowed: frozenset[int], root: Path = Path("/sys/devices/system")) -> list[Cpu]:
    """CPUs of the node that this process may use, neighbours beside each other."""
    ldoms: dict[int, int] = {}
    for folder in sorted(root.glob("node/node[0-9]*")):
        for number in _listed(folder / "cpulist"):
            ldoms[number] = int(folder.name.removeprefix("node"))
    found = []
    for number in allowed:
        topology = root / "cpu" / f"cpu{number}" / "topology"
        siblings = _listed(topology / "core_cpus_list") or _listed(topology / "thread_siblings_list") or [number]
        socket = _listed(topology / "physical_package_id") or [0]
        found.append(Cpu(number, min(siblings), ldoms.get(number, 0), socket[0]))
    return sorted(found, key=lambda one: (one.socket, one.ldom, one.core, one.number))


def _listed(path: Path) -> list[int]:
    """`0-3,8` as Linux writes it. Empty: there is no such file, or it says something else."""
    found: list[int] = []
    try:
        for part in filter(None, path.read_text().strip().split(",")):
            first, dash, last = part.partition("-")
            found += range(int(first), int(last if dash else first) + 1)
    except (OSError, ValueError):
        return []
    return found


def shares(binding: Binding, count: int, cpus: Sequence[Cpu]) -> list[frozenset[int]] | None:
    """The CPUs of each of `count` ranks. None: each may use all that the seat has. Raises BindingError."""
    how = binding.cpu_bind.how
    if how == "none" or not cpus:
        return None
    if how in _LISTS:
        return [_named(binding.cpu_bind, index, cpus) for index in range(count)]
    if how in ("", "cores", "threads", "sockets", "ldoms"):
        groups = _groups(cpus, by_thread=how == "threads")
        wanted = binding.cpus_per_task
        if not how and (wanted is None or wanted * count > len(cpus)):
            return None  # the job says nothing, or ranks do not correspond to its tasks
        smallest = min(len(group) for group in groups)
        each = -(-wanted // smallest) if wanted else max(1, len(groups) // count)
        placed = [_share(groups, each, count, index, binding.cyclic) for index in range(count)]
        return [_widened(one, cpus, how) for one in placed]
    raise BindingError(f"--cpu-bind={how} is not known")


def _groups(cpus: Sequence[Cpu], by_thread: bool) -> list[list[Cpu]]:
    """What is not divided among ranks: cores, with all their threads, or threads."""
    found: dict[int, list[Cpu]] = {}
    for one in cpus:
        found.setdefault(one.number if by_thread else one.core, []).append(one)
    return list(found.values())


def _share(groups: Sequence[list[Cpu]], each: int, count: int, index: int, cyclic: bool) -> list[Cpu]:
    """CPUs of one rank. If they fit, no rank has cores of two sockets."""
    sockets: dict[int, list[list[Cpu]]] = {}
    for group in groups:
        sockets.setdefault(group[0].socket, []).append(group)
    places = list(sockets.values())
    on_one = -(-count // len(places))
    if all(on_one * each <= len(place) for place in places):
        place, position = (index % len(places), index // len(places)) if cyclic else divmod(index, on_one)
        chosen = places[place][position * each : (position + 1) * each]
    else:
        chosen = [groups[(index * each + one) % len(groups)] for one in range(min(each, len(groups)))]
    return [cpu for group in chosen for cpu in group]


def _widened(share: Sequence[Cpu], cpus: Sequence[Cpu], how: str) -> frozenset[int]:
    """Every CPU of each socket or NUMA node of which the rank has a part."""
    if how == "sockets":
        return frozenset(one.number for one in cpus if one.socket in {cpu.socket for cpu in share})
    if how == "ldoms":
        return frozenset(one.number for one in cpus if one.ldom in {cpu.ldom for cpu in share})
    return frozenset(one.number for one in share)


def _named(bind: CpuBind, index: int, cpus: Sequence[Cpu]) -> frozenset[int]:
    """A list that is shorter than the ranks begins again. Raises BindingError."""
    value = bind.values[index % len(bind.values)]
    numbers = {value} if bind.how.startswith("map") else {bit for bit in range(value.bit_length()) if value >> bit & 1}
    found = frozenset(one.number for one in cpus if (one.ldom if bind.how.endswith("ldom") else one.number) in numbers)
    if not found:
        what = "NUMA nodes" if bind.how.endswith("ldom") else "CPUs"
        raise BindingError(
            f"--cpu-bind={bind.how}: local rank {index} would have no CPU: of {what} {sorted(numbers)} the job has none"
        )
    return found


def gpus(binding: Binding, count: int, index: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a rank sees its GPUs alone; empty: it sees all that the seat does. Entries may be numbers
    (of the node, or within the job, where Slurm constrains devices), UUIDs of GPUs or of MIG devices. Raises
    BindingError.
    """
    found = {}
    for name in GPU_VARIABLES:
        entries = [one.strip() for one in environment.get(name, "").split(",") if one.strip()]
        each = binding.gpus_per_task
        if each is None and count > 1 and len(entries) >= count and all(one.startswith("MIG-") for one in entries):
            each = 1  # CUDA uses the first MIG device that it sees, and no other
        if not each or not entries or entries == ["NoDevFiles"]:
            continue
        if count * each > len(entries):
            raise BindingError(
                f"{count} ranks with {each} GPUs each, and {name} has {len(entries)}: see --procs-per-node and "
                "--gpus-per-task"
            )
        found[name] = ",".join(entries[index * each : (index + 1) * each])
    return found


class NodeBinding:
    """The ranks' share of the node on which this seat runs."""

    def __init__(self, binding: Binding, environment: Mapping[str, str] = os.environ) -> None:
        self._binding = binding
        self._environment = environment
        self.all = frozenset(os.sched_getaffinity(0))
        self._cpus = read_cpus(self.all)
        self._shares: dict[int, list[frozenset[int]] | None] = {}

    def cpus(self, count: int, index: int) -> frozenset[int]:
        """Raises BindingError."""
        if count not in self._shares:
            self._shares[count] = shares(self._binding, count, self._cpus)
        found = self._shares[count]
        return self.all if found is None else found[index]

    def variables(self, count: int, index: int) -> dict[str, str]:
        """What a rank finds besides; those of Slurm are the seat's, which has the whole node. Raises BindingError."""
        found = gpus(self._binding, count, index, self._environment)
        if self._binding.gpus_per_task:
            found["SLURM_GPUS_PER_TASK"] = str(self._binding.gpus_per_task)
        if self._binding.cpus_per_task:
            found["SLURM_CPUS_PER_TASK"] = str(self._binding.cpus_per_task)
        return found
