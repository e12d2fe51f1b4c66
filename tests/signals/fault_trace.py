"""A real year of 400 servers, replayed: each fault as the signal that its class has, through the real control plane.

The trace says what people found, and not what a driver or a kernel wrote: which signal a class would have had is
judgement, and `SIGNAL_OF` is the place of it.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.signals.cases import CASES
from tests.signals.virtual_fleet import BEGIN, Fleet
from understudy_controlplane.detect.lemon import scores
from understudy_controlplane.fleet.lemon import LemonSignals
from understudy_controlplane.fleet.node import OUT_OF_SERVICE, NodeState

TRACE = Path(__file__).resolve().parents[1] / "data" / "faults-400-servers.json.gz"
NODES, DAYS, DAY = 400, 348.0, 86_400.0
GPUS = 2
"""GPUs of a node: one that fails, and one that does not."""

BY_PEOPLE = "people had taken it out of service, or found it in a test of their own"
NOT_NAMED = "the trace does not name what failed"
BMC = "only the BMC reports it, which is not read"
NO_SIGNAL = "nothing that is read shows it"

SIGNAL_OF: dict[str, str] = {
    "GPU DBE(Double Bit ECC) > Threshold": "Xid 48",
    "GPU device unknow error": "one GPU unreadable",
    "GPU PCI link width low": "PCIe narrower",
    "GPU xid Error": "Xid 79",
    "nvidia-smi Timeout": "driver does not answer",
    "GPU Lost": "GPU lost",
    "GPU device not found": "GPU missing",
    "GPU Temperature High": "slowed by heat",
    "GPU SBE(Single Bit ECC) > Threshold": "corrected ECC errors",
    "Link Down": "port down, no gang",
    "NIC Lost": "port down, no gang",
    "NIC Link Speed low": "port slower",
    "Motherboard Failed": "node dead, no gang",
    "Server down": "node dead, no gang",
    "Kernel Panic": "node dead, no gang",
    "Machine Check Exception ( Uncorrectable )": "machine check",
    "Firmware mismatch": "other driver than the fleet",
    "FS: Multiple Disk FS Error": "file system read-only",
    "FS Readonly": "disk read-only",
}
"""Description in the trace → the signal of `cases` that is injected."""

WHY_NONE: dict[str, str] = {
    "Speed Critical (Sensor)": BMC,
    "Redundancy Lost": BMC,
    "Power Supply Failure detected": BMC,
    "Low": BMC,
    "Configuration Error": BMC,
    "RiserCard Fault": BMC,
    "Rnic Gid Error": NO_SIGNAL,
    "GPU P2P Bandwidth Low": NO_SIGNAL,
    "Silent Data Corruption": NO_SIGNAL,
    "NIC PCI link Width low": NO_SIGNAL,
    "Bus Correctable error": NO_SIGNAL,
    "Kubelet Date Absent": NO_SIGNAL,
    "Suspect Machine Offline": BY_PEOPLE,
    "Y-cables Taken offline": BY_PEOPLE,
    "Temporarily Offline": BY_PEOPLE,
    "Remote Optical Module Failure": BY_PEOPLE,
}
"""The others → why there is none."""

LOOKS = (1.0, 4.0, 10.0, 20.0, 30.0, 60.0, 120.0, 120.0, 260.0)
"""Seconds between the rounds of the control plane after something happens."""


RESUMED_ROUNDS = 10
"""After a person's resume, until the control plane has seen it."""


class Fault(NamedTuple):
    node: str
    begin: float  # days
    end: float
    kind: str  # class of the trace
    what: str  # its description

    @property
    def signal(self) -> str:
        return "" if self.why_none else SIGNAL_OF[self.what]

    @property
    def why_none(self) -> str:
        if self.what == "Unknown Error":
            return BY_PEOPLE if self.kind == "Stress Test Failure" else NOT_NAMED
        return WHY_NONE.get(self.what, "")


def faults() -> list[Fault]:
    begun: dict[str, list[dict[str, Any]]] = {}
    found = []
    for event in sorted(json.loads(gzip.decompress(TRACE.read_bytes())), key=lambda one: one["event_time"]):
        if event["event_type"] == "fault_start":
            begun.setdefault(event["node_id"], []).append(event)
        else:
            start = begun[event["node_id"]].pop(0)
            kind = start["fault_type"]
            found.append(Fault(event["node_id"], start["event_time"], event["event_time"], kind["Class"], kind["Desc"]))
    return sorted(found, key=lambda one: (one.begin, one.node))


class Replayed(msgspec.Struct, frozen=True):
    """How many faults of the trace there were, by what became of them."""

    faults: int
    no_signal: dict[str, int]  # why none could be injected
    drained: dict[str, int]  # signal → quarantined, or drained
    out_already: dict[str, int]  # for another fault, when it came
    suspect: dict[str, int]  # made suspect, and in service
    recorded: dict[str, int]  # recorded only
    missed: dict[str, int]  # injected, and nothing was found
    held_back: int  # of those that were to be drained: by a guard
    seconds: dict[str, float]  # signal → until then, in the worst case

    @property
    def kinds(self) -> tuple[dict[str, int], ...]:
        """Those with a signal, by what became of them."""
        return self.drained, self.out_already, self.suspect, self.recorded, self.missed


class Lemons(msgspec.Struct, frozen=True):
    """A list made in the middle of the year, held against the second half."""

    days: float
    score_min: float
    listed: int
    again: int  # of these: with a fault in the second half
    repeaters: int  # nodes with two faults and more in the second half
    repeaters_listed: int
    share_of_others: float  # of the nodes that are not listed: with a fault in the second half


def replay(
    folder: Path, chosen: Sequence[Fault], nodes: int = NODES, each: Callable[[int], None] = lambda _: None
) -> Replayed:
    fleet = Fleet(folder, [f"n{number}" for number in range(1, nodes + 1)], GPUS, spares={"count": 0})
    try:
        return _replay(fleet, chosen, each)
    finally:
        fleet.close()


def _replay(fleet: Fleet, chosen: Sequence[Fault], each: Callable[[int], None]) -> Replayed:
    for _ in range(3):
        fleet.tick(2.0)
    fleet.at_rest = {name: node.report(fleet.now) for name, node in fleet.nodes.items()}
    names = dict(zip(sorted({one.node for one in chosen}), fleet.nodes, strict=False))
    cases = {case.signal: case for case in CASES}
    counts: dict[str, Counter[str]] = {
        key: Counter() for key in ("none", "drained", "out_already", "suspect", "recorded", "missed")
    }
    worst: dict[str, float] = {}
    held = 0
    moments = sorted([(one.begin, 1, one) for one in chosen] + [(one.end, 0, one) for one in chosen])
    for number, (day, begins, fault) in enumerate(moments):
        each(number)
        if fault.why_none:
            counts["none"][fault.why_none] += begins
            continue
        skip_to(fleet, BEGIN + 60.0 + day * DAY)
        node, at = fleet.nodes[names[fault.node]], fleet.now
        if fleet.at_rest.pop(node.name, None) is not None:
            node.skip_to(at)
            node.report(at)
        if not begins:
            fleet.dead.discard(node.name)
            node.make_well(fleet.now)
            fleet.tick(2.0)
            if _is_out(fleet, node.name):
                fleet.slurm.resume_node(node.name)
            for _ in range(RESUMED_ROUNDS):
                if _is_out(fleet, node.name):
                    fleet.tick(2.0)
            fleet.at_rest[node.name] = node.report(fleet.now)
            continue
        was_out = _is_out(fleet, node.name)
        cases[fault.signal].inject(fleet, node)
        for seconds in LOOKS:
            fleet.tick(seconds)
            if _is_out(fleet, node.name):
                break
        decisions = [one for one in fleet.decisions(at) if one["subject"] == node.name]
        kind, first = _outcome(decisions)
        kind = "out_already" if was_out and kind == "missed" else kind
        held += any(one["because"] not in ("rule", "") and not one["to_state"] for one in decisions)
        counts[kind][fault.signal] += 1
        if first is not None:
            worst[fault.signal] = max(worst.get(fault.signal, 0.0), round(first - at, 1))
    return Replayed(
        faults=len(chosen),
        no_signal=dict(counts["none"].most_common()),
        drained=dict(counts["drained"].most_common()),
        out_already=dict(counts["out_already"].most_common()),
        suspect=dict(counts["suspect"].most_common()),
        recorded=dict(counts["recorded"].most_common()),
        missed=dict(counts["missed"].most_common()),
        held_back=held,
        seconds=worst,
    )


def skip_to(fleet: Fleet, moment: float) -> None:
    """Nothing happens until then: the next reports come at once."""
    if moment > fleet.now:
        fleet.slurm.now = moment
        for name in fleet.nodes.keys() - fleet.at_rest.keys():
            fleet.nodes[name].skip_to(moment)
        fleet.tick(1.0)


def _is_out(fleet: Fleet, name: str) -> bool:
    return fleet.control_plane.stores.fleet.nodes()[name].state in OUT_OF_SERVICE


def _outcome(decisions: Sequence[dict[str, Any]]) -> tuple[str, float | None]:
    """The strongest thing that followed, and when."""
    for kind, states in (("drained", {NodeState.QUARANTINED.value}), ("suspect", {NodeState.SUSPECT.value})):
        if found := [one["at"] for one in decisions if one["to_state"] in states]:
            return kind, found[0]
    known = [one["at"] for one in decisions if one["rule"] not in ("silence.heard", "straggler.clean")]
    return ("recorded", known[0]) if known else ("missed", None)


def lemons() -> tuple[Lemons, Lemons]:
    """Lemons by the window and the score that were best in the first half, and by the defaults."""
    known, middle = faults(), DAYS / 2
    fitted = max(
        ((days, score) for days in (28.0, 56.0, 84.0, 174.0) for score in (1.0, 2.0, 3.0, 4.0)),
        key=lambda one: _quality(known, middle / 2, middle, *one),
    )
    return _judged(known, middle, DAYS, *fitted), _judged(known, middle, DAYS, 28.0, 2.0)


def _listed(known: Iterable[Fault], at: float, days: float, score_min: float) -> set[str]:
    counts = Counter(one.node for one in known if at - days < one.begin <= at)
    made = scores({node: LemonSignals(faults=count) for node, count in counts.items()}, NODES)
    return {node for node, score in made.items() if score >= score_min}


def _quality(known: list[Fault], at: float, until: float, days: float, score_min: float) -> float:
    """Precision and recall in equal parts (F1), for nodes that fail twice and more until then."""
    one = _judged(known, at, until, days, score_min)
    return 2 * one.repeaters_listed / max(one.listed + one.repeaters, 1)


def _judged(known: list[Fault], at: float, until: float, days: float, score_min: float) -> Lemons:
    listed = _listed(known, at, days, score_min)
    later = Counter(one.node for one in known if at < one.begin <= until)
    repeaters = {node for node, count in later.items() if count >= 2}
    others = NODES - len(listed)
    return Lemons(
        days=days,
        score_min=score_min,
        listed=len(listed),
        again=len(listed & later.keys()),
        repeaters=len(repeaters),
        repeaters_listed=len(listed & repeaters),
        share_of_others=round(len(later.keys() - listed) / others, 3),
    )
