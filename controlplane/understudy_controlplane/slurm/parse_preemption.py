"""Reads Slurm's rules of preemption: its configuration, partitions, and the QOS of its accounting."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from understudy_controlplane.fleet.preemption import Partition, PreemptionRules, PreemptType, Qos
from understudy_controlplane.slurm.protocol import SlurmError

QOS_FIELDS = ("Name", "Priority", "Preempt", "PreemptMode")

_PARTITION = re.compile(r"PartitionName=(?P<name>\S+) ")
_EXCLUSIVE = re.compile(r" (?:ExclusiveUser=YES|ExclusiveTopo=YES|Exclusive=USER|Exclusive=TOPO)\b")
_EXEMPT = re.compile(r"\bmin_exempt_priority=(\d+)")
_KNOWN_MODES = frozenset({"OFF", "CANCEL", "REQUEUE", "SUSPEND", "WITHIN", "PRIORITY"})


def parse_preemption(settings: Mapping[str, str], partitions: str, qos: str) -> PreemptionRules:
    """`settings`: as `parse_config` reads them; `partitions`, `qos`: as scontrol and sacctmgr print them, a line each.
    In doubt no rule is known, with which nothing is foreseen. Raises SlurmError.
    """
    kind, modes = settings.get("PreemptType", ""), _modes(settings.get("PreemptMode", ""))
    unknown = _unknown(settings, kind, modes)
    if unknown:
        return PreemptionRules(None, unknown=unknown)
    parameters = f"{settings.get('PreemptParameters', '')},{settings.get('SchedulerParameters', '')}"
    exempt = _EXEMPT.search(settings.get("PreemptParameters", ""))
    return PreemptionRules(
        PreemptType(kind),
        modes,
        dict(_partitions(partitions)),
        dict(_qos(qos)),
        int(exempt[1]) if exempt else None,
        "youngest_first" in parameters.lower(),
    )


def _unknown(settings: Mapping[str, str], kind: str, modes: frozenset[str]) -> str:
    if kind not in set(PreemptType):
        return f"Slurm preempts no job: PreemptType is {kind or 'not known'}"
    if not modes or not modes <= _KNOWN_MODES:
        return f"not foreseen with PreemptMode={settings.get('PreemptMode', '')}"
    plugin = settings.get("MCSPlugin", "")
    if plugin not in ("", "(null)", "mcs/none"):
        return f"not foreseen with MCSPlugin={plugin}"
    return ""


def _partitions(text: str) -> Iterator[tuple[str, Partition]]:
    for line in text.splitlines():
        start = _PARTITION.match(line)
        if start is None:
            continue
        tier, modes = _word(line, "PriorityTier"), _modes(_word(line, "PreemptMode"))
        if not tier.isdecimal() or not modes:
            raise SlurmError(f"scontrol printed no PriorityTier or PreemptMode of partition {start['name']}")
        yield start["name"], Partition(int(tier), modes, _EXCLUSIVE.search(line) is not None)


def _qos(text: str) -> Iterator[tuple[str, Qos]]:
    for line in text.splitlines():
        values = line.split("|")
        if len(values) != len(QOS_FIELDS) or not values[1].isdecimal():
            raise SlurmError(f"sacctmgr printed an unreadable QOS: {line[:120]!r}")
        name, priority, preempts, mode = values
        modes = frozenset() if mode in ("", "cluster") else _modes(mode)
        yield name, Qos(int(priority), frozenset(filter(None, preempts.split(","))), modes)


def _word(line: str, key: str) -> str:
    match = re.search(rf" {key}=(\S+)", line)
    return match[1] if match else ""


def _modes(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.upper().split(",")))
