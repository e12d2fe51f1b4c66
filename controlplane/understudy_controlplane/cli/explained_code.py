"""`understudy explain xid|sxid CODE`: what a code means, what follows from it, and by which source."""

from __future__ import annotations

from dataclasses import dataclass

import click

from understudy_controlplane.cli.output import pair_lines
from understudy_controlplane.config import Xid
from understudy_controlplane.decide.table import look_up
from understudy_controlplane.detect.xid import SIGNALS
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.node import NodeRecord
from understudy_controlplane.xid_policy import Decode, EchoOf, FaultClass, Policy, PolicyRow, Repair, driver_branch

FOLLOWS = {
    FaultClass.HARDWARE: "the node leaves service at once, and a managed gang that runs there moves",
    FaultClass.DRAIN: "the node is drained; jobs that run there continue to their end",
    FaultClass.APPLICATION: "no node is at fault: the program caused it",
    FaultClass.SUSPECT: "the node is suspect: it stays in service and is no spare",
    FaultClass.RECORD: "nothing: it is recorded",
}
REPAIRS = {
    Repair.NONE: "nothing",
    Repair.RESTART_APP: "the program is restarted",
    Repair.RESET_GPU: "the GPU is reset",
    Repair.REBOOT: "the node is rebooted",
    Repair.MANUAL_REPAIR: "a person repairs it: cables, diagnosis, another GPU",
}
DECODED = {
    Decode.FLAGS: "its flags RST and D-RST",
    Decode.NVLINK4: "its registers",
    Decode.NVLINK5: "its unit and status",
    Decode.RECOVERY_ACTION: "the number of the action",
    Decode.SEVERITY: "the driver's severity: Fatal or not",
}
ECHOES = {
    EchoOf.ANY: "any other Xid on the node",
    EchoOf.PEER: "a fault of another GPU or of a switch",
    EchoOf.LINK: "an NVLink error",
}
SOURCES = {
    "nvidia": "NVIDIA's catalogue",
    "judgement": "Understudy's judgement",
    "site": "this site's configuration",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """One code, ready to be printed."""

    title: str
    lines: tuple[tuple[str, str], ...]
    record: dict[str, Json]


def explain_code(kind: str, code: int, policy: Xid, driver: str) -> Explanation:
    """`kind` is "xid" or "sxid"; `driver` the driver's version, empty: any."""
    rows = policy.rows.xid if kind == "xid" else policy.rows.sxid
    row = rows.get(code)
    name = f"{'Xid' if kind == 'xid' else 'SXid'} {code}"
    record: dict[str, Json] = {kind: code, "known": row is not None, "policy": policy.rows.version}
    if row is None:
        follows = "no rule for this code: it is recorded, and no node is at fault"
        if kind == "sxid":
            follows = "no rule for this code: the node leaves service where the driver calls it fatal"
        how = f"add a row: [xid.{'policy' if kind == 'xid' else 'switch_policy'}.{code}] with class and repair"
        return Explanation(name, (("what follows", follows), ("to change it", how)), record | {"follows": follows})
    lines = [*_what_follows(row), *_what_comes_first(row, policy, driver), *_by_whom(kind, code, row, policy.rows)]
    record |= {
        "name": row.name,
        "meaning": row.meaning,
        "class": row.fault.value,
        "signal": SIGNALS[row.fault].value,
        "row": _table_row(row.fault),
        "repair": row.repair.value,
        "source": row.source,
        "nvidia": row.nvidia,
        "gpus": row.gpus,
        "recovery_action_since": row.action_since,
        "decoded": row.decode.value if row.decode else None,
        "echo_of": row.echo_of.value if row.echo_of else None,
        "overridden": (kind, code) in policy.rows.overridden,
        "why": [f"{label}: {words}" for label, words in lines],
    }
    return Explanation(f"{name} {row.name}".strip(), (("meaning", row.meaning), *lines), record)


def lines(explanation: Explanation) -> list[str]:
    return [click.style(explanation.title, bold=True), *pair_lines(explanation.lines)]


def _table_row(fault: FaultClass) -> int | None:
    row = look_up(NodeRecord("any"), SIGNALS[fault])
    return row.number if row else None


def _what_follows(row: PolicyRow) -> list[tuple[str, str]]:
    found = [
        ("class", row.fault.value),
        ("what follows", f"{FOLLOWS[row.fault]} (row {_table_row(row.fault)} of the table)"),
        ("repair", f"{row.repair.value}: {REPAIRS[row.repair]}"),
    ]
    if row.repeat:
        rule = row.repeat
        words = f"{rule.times} times within {rule.hours:g} h on one GPU: {rule.fault.value}, {rule.repair.value}"
        found.append(("if it repeats", words))
    return found


def _what_comes_first(row: PolicyRow, policy: Xid, driver: str) -> list[tuple[str, str]]:
    found = []
    branch = driver_branch(driver)
    if row.action_since is not None:
        if branch is None:
            words = f"from R{row.action_since} on the driver reports its own action with it (Xid 154), which goes first"
        elif branch >= row.action_since:
            words = f"driver {driver} reports its own action (Xid 154, NVML field 230), which goes first"
        else:
            words = f"driver {driver} reports no action (R{row.action_since} and later do): the class above counts"
        found.append(("the driver", words))
    if row.decode:
        found.append(("the line", f"says more by {DECODED[row.decode]}, which goes before the class above"))
    if row.echo_of:
        words = f"after {ECHOES[row.echo_of]} within {policy.echo_seconds:g} s it is an echo, and no node is at fault"
        found.append(("echo", words))
    if row.spread:
        found.append(("program", f"on {policy.spread_nodes_min} nodes of one job at once the program is the cause"))
    if row.fault is FaultClass.APPLICATION:
        words = (
            f"{policy.suspect_events_min} times on one GPU within {policy.suspect_hours:g} h, in jobs of "
            f"{policy.suspect_users_min} users who have it nowhere else: the node becomes suspect"
        )
        found.append(("hardware", words))
    return found


def _by_whom(kind: str, code: int, row: PolicyRow, policy: Policy) -> list[tuple[str, str]]:
    guide = kind == "sxid" and row.source == "nvidia"
    by = "NVIDIA's fabric manager guide, DU-09883" if guide else SOURCES[row.source]
    found = [("by", f"{by}; policy of {policy.version}")]
    if row.nvidia:
        found.append(("NVIDIA says", f"{row.nvidia} (Xid catalogue, October 2025)"))
    if row.gpus:
        names = {"A": "A100", "H": "H100", "B": "B100", "G": "GB200"}
        found.append(("on", ", ".join(names[letter] for letter in row.gpus)))
    if (kind, code) in policy.overridden:
        found.append(("this site", "changed this row; details in the line are ignored"))
    return found
