"""Writes the documents that are generated from the code: `make docs`. A test compares them with the files."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from tests.slurm.printed import VERSIONS as SLURMS
from tests.world import input_kinds
from understudy_agent.commands import EXIT_CODES, GROUPS
from understudy_agent.config import Config as AgentConfig
from understudy_agent.config import KeeperConfig
from understudy_agent.reload import RELOADED
from understudy_controlplane.api.exported import METRIC_GROUPS
from understudy_controlplane.api.exported.gpus import GPUS
from understudy_controlplane.api.exported.jobs import JOBS
from understudy_controlplane.api.exported.nodes import NODES
from understudy_controlplane.api.exported.source import JOBS_MAX
from understudy_controlplane.cli.explained_code import DECODED, ECHOES, FOLLOWS, REPAIRS
from understudy_controlplane.config import Config, Limits, PartMode
from understudy_controlplane.config.current import needs_restart
from understudy_controlplane.config.section import Section
from understudy_controlplane.decide.table import (
    TABLE,
    Condition,
    Row,
)
from understudy_controlplane.detect.ordinary import OF_CLASS, ORDINARY
from understudy_controlplane.detect.xid import SIGNALS
from understudy_controlplane.figures.rule import Severity
from understudy_controlplane.figures.slurm_rules import RULES
from understudy_controlplane.fleet.decision import Action, Because
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.state_words import STATES
from understudy_controlplane.live.meters import Meters
from understudy_controlplane.xid_policy import FaultClass, KernelRow, PolicyRow, RowOverride, default_policy

HERE = Path(__file__).parent
GENERATED = "<!-- Generated from the code by `make docs`. Change the code, not this file. -->"

GUARDS = {
    Because.DRY_RUN: 'the control plane only observes: `mode = "observe"`, the default',
    Because.PAUSED: "an operator has paused the control plane or this job",
    Because.AWAITS_APPROVAL: 'an operator has to approve the recovery first: `mode = "approve"`, or an '
    "incident older than mode act",
    Because.CANCELLED: "an operator cancelled the recovery that this would repeat",
    Because.SLURM_UNREADABLE: "Slurm cannot be read, so its state is not known",
    Because.GATHERING: "the control plane has just started and not every node has reported yet (10 s at most)",
    Because.FLEET_BUDGET: "the limit of nodes quarantined at once is reached",
    Because.HOURLY_BUDGET: "the limit of quarantines within an hour is reached",
    Because.RULE_BUDGET: "this rule has taken out as many nodes within a day, or a week, as one rule may: "
    "a person is paged, and `understudy breaker reset REASON` lets it continue",
    Because.JOB_BUDGET: "this job was moved too often within the hour: a person has to look at it",
    Because.RESTART_BUDGET: "the limit of restarts of a hung gang without progress is reached",
    Because.RELEASE_BUDGET: "Understudy's Prolog refused nodes to this job too often within the hour",
    Because.FOREIGN_POOL: "a reservation that the control plane did not make has the name of the spare pool",
    Because.RULE_DRY_RUN: "this rule is recorded only (`observe_rules` in `[guards]`)",
    Because.OTHER_LEADER: "another control plane leads here, too: the circuit breaker opens",
    Because.BREAKER: "the circuit breaker is open, or opens with this: only a person closes it",
    Because.DOMAIN_BUDGET: "the limit of quarantined nodes in its partition, switch, block or domain is reached",
    Because.REPAIR_BUDGET: "the limit of nodes in repair or validation at once is reached",
    Because.COOLDOWN: "the last repair of this node was less than a minute ago",
    Because.BUSY: "a node is validated on request only while no job uses it",
    Because.MAINTENANCE: "a maintenance or a reservation with the flag MAINT has the node",
    Because.MASS_SILENCE: "so many agents fell silent together that the cause is the network or the control"
    " plane; requests, and what a node's own hardware proves, are carried out",
    Because.MASS_HANG: "so many gangs stopped at the same time that the cause is the network, the "
    "storage or the control plane; as above",
    Because.MOVE_BUDGET: "the limit of gangs moved or restarted at once, within an hour, or in one domain is reached",
    Because.PARTITION_DOWN: "Slurm starts no job in the gang's partition (DOWN or INACTIVE): a gang that runs stays",
    Because.DETECTOR_FAILED: "a detector failed: the node is neither repaired nor validated, and does not return",
    Because.DECISION_FAILED: "an error in a decision about the same gang: a person is notified",
    Because.LEFT_TO_PERSON: "Understudy cannot requeue this gang (no `--requeue`, `--nodelist`, another "
    "user's reservation): a person is paged",
    Because.NO_SPARE: "no spare is free: the gang moves as soon as there is one",
}


def configuration() -> str:
    lines = [
        "# Configuration of the control plane",
        "",
        GENERATED,
        "",
        "One TOML file, `/etc/understudy/controlplane.toml` or the file that `--config` names. It is checked whole at",
        "start; unknown keys are refused. `understudy check-config` checks it without starting anything.",
        "Changes come into force by `systemctl reload understudy-controlplane` (SIGHUP); those that are marked",
        "*Restart.* need a restart.",
        "",
        "Variables (`UNDERSTUDY_…`) of [commands](cli.md), and of [jobs](hooks.md#the-environment-of-a-task).",
        "",
        "## What a site sets",
        "",
        "All other settings can stay as they are.",
        "",
        "| key | default | for |",
        "|---|---|---|",
        *(f"| `{key}` | {_default_of(key)} | {words} |" for key, words in SITE_SETS.items()),
        "",
        *_section("", Config),
        *_agent(),
    ]
    return "\n".join(lines) + "\n"


SITE_SETS = {
    "cluster": "the cluster's name in slurm.conf",
    "mode": "what the control plane may do: `observe`, `approve` or `act`",
    "server.host": "where agents and people reach the control plane; `0.0.0.0`: all of IPv4, `::`: of IPv6 as well",
    "server.tls_certificate": "encrypted connections, with `server.tls_key`; set it where `server.host` is not local",
    "server.database": "where records are kept: SQLite or PostgreSQL",
    "spares.count": "how many spare nodes the pool holds",
    "spares.partition": "where they are taken from",
    "repair.enabled": "reboots (and resets) of quarantined nodes",
    "validation.enabled": "the return of repaired nodes without a person",
    "notify.receivers": "who is notified",
}
"""What most sites set, in the order in which they meet it."""


def _default_of(key: str) -> str:
    value: Any = None
    section: type[BaseModel] = Config
    for part in key.split("."):
        field = section.model_fields[part]
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            section = field.annotation
        else:
            value = field.get_default(call_default_factory=True)
    return "required" if value is PydanticUndefined else f"`{_toml(value)}`"


AGENT_KEYS = {
    "cluster": "ClusterName of slurm.conf",
    "control_plane_urls": "base addresses; reports go to the first that answers",
    "node": "NodeName in Slurm; empty: SLURMD_NODENAME, or the short host name",
    "token_file": "file with the node's own token; without it the agent gets a token by MUNGE, as root",
    "ca_file": "certificates (PEM) that may sign the control plane's, where its URL begins with https; without it the "
    "system's",
    "certificate": "certificate (PEM) of this node, for a control plane that asks for one (`server.tls_client_ca`); "
    "read again when a connection fails",
    "key": "key of the certificate (PEM, no passphrase); without it the key is in the certificate's file",
    "munge_socket": "socket of munged; without it MUNGE's own default",
    "report_interval_seconds": "time between two reports; a new fact is sent at once",
    "kernel_log": "/dev/kmsg, or a plain file of the same records",
    "socket": "Unix socket on which ranks of this node send to the agent",
    "boot_id_file": "file in which the kernel gives the id of this boot",
    "run_directory": "directory of the verdict and the records of the Slurm hooks; a tmpfs ([hooks](hooks.md))",
    "spool": "file where facts wait for the control plane while the agent restarts; `facts.spool` in `run_directory` "
    "unless it is set. On a disk it also survives a reboot",
    "nvml": "section with `enabled` (false on nodes without GPUs) and `interval_seconds` (2: time between readings of "
    "clocks, power and the driver's verdict)",
    "host": "section with `enabled` (false: neither fabric ports nor the host are checked), `disks` (file systems "
    "that jobs or Slurm need; `/`, `/tmp` and `/var`), `sys` and `proc`",
    "keeper": "section of the keeper, below",
}

KEEPER_KEYS = {
    "memory_bytes": "how much it holds at most; 0: a quarter of the node's memory",
    "user_bytes": "how much of that the jobs of one user get; 0: half of it",
    "listen": "address on which it listens for the keepers of other nodes; `::`: every one, of IPv4 and IPv6",
    "port": "port for them, the same on every node",
    "address": "name or address by which other nodes reach it; empty: the node's name",
    "socket": "Unix socket on which ranks of this node connect to it",
    "bytes_per_second": "how fast it copies from other nodes at most, for all jobs together; restores have no limit",
}


def _agent() -> Iterator[str]:
    yield "# Configuration of the agent"
    yield ""
    yield "`/etc/understudy/agent.toml` or the file that `--config` names; `understudy agent --check-config` checks it."
    reloaded = ", ".join(f"`{key}`" for key in RELOADED)
    yield f"`systemctl reload understudy-agent` (SIGHUP) puts changes of {reloaded} into force; all others"
    yield "need a restart of the agent, and its log names them (`configuration_needs_restart`)."
    yield ""
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for field in msgspec.structs.fields(AgentConfig):
        default = (
            "required"
            if field.required
            else ""
            if field.name in ("nvml", "host", "spool", "keeper")
            else f"`{_toml(field.default)}`"
        )
        yield f"| `{field.name}` | {default} | {AGENT_KEYS[field.name]} |"
    yield ""
    yield "## `[keeper]`"
    yield ""
    yield "In the same file, for [`understudy keeper`](peer-memory.md). It reads them at its start."
    yield ""
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for field in msgspec.structs.fields(KeeperConfig):
        yield f"| `{field.name}` | `{_toml(field.default)}` | {KEEPER_KEYS[field.name]} |"


def _section(name: str, model: type[BaseModel]) -> Iterator[str]:
    inner: list[tuple[str, type[BaseModel]]] = []
    rows: list[str] = []
    fixed = model.FIXED if issubclass(model, Section) else frozenset()
    for key, field in model.model_fields.items():
        annotation = field.annotation
        if key in fixed:
            continue
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            inner.append((key, annotation))
            continue
        if annotation == tuple[PartMode, ...]:
            inner.append((f"[{key}]", PartMode))
        named = get_args(annotation)[1:]  # of tables to which the site gives names
        if named and isinstance(named[0], type) and issubclass(named[0], BaseModel) and named[0] is not RowOverride:
            inner.append((f"{name}.{key}.NAME", named[0]))
        value = field.get_default(call_default_factory=True)
        default = "required" if value is PydanticUndefined else f"`{_toml(value)}`"
        mark = " *Restart.*" if needs_restart(f"{name}.{key}" if name else key) else ""
        rows.append(f"| `{key}` | {default} | {field.description}{mark} |")
    if rows:
        yield from (f"## `[{name}]`" if name else "## Top level", "", "| key | default | meaning |", "|---|---|---|")
        yield from (*rows, "")
    for key, section in inner:
        yield from _section(key, section)


def _toml(value: object) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | frozenset):
        return str(sorted(value))
    return str(value) if isinstance(value, int | float | list | dict) else f'"{value}"'


def decisions() -> str:
    lines = [
        "# How decisions are made",
        "",
        GENERATED,
        "",
        "Each round, detection gives findings; each finding has a signal; the table is looked up by the node's state",
        "and the signal. Nothing follows from a pair that is not in the table. Of several findings on one node the",
        "one of the highest priority counts. The decision, the log and `/v1/decisions` give the row's number.",
        "*used*: "
        + ", ".join(f"`{state.value}`" for state in USED)
        + "; —: no single node. Where a column is empty, the",
        "node stays what it is, and nothing is done.",
        "",
        "## The table",
        "",
        "| row | in state | signal | if | becomes | action | why |",
        "|---|---|---|---|---|---|---|",
        *(_row(row) for row in TABLE),
        "",
        "[Node states](node-states.md) shows the states and draws the table.",
        "",
        "## Guards",
        "",
        "A guard prevents that a decision is carried out; it is recorded as `nothing`, with the reason:",
        "",
        "| because | meaning |",
        "|---|---|",
        *(f"| `{because.value}` | {words} |" for because, words in GUARDS.items()),
        "",
        "## What ordinary things look like a fault",
        "",
        "Each rule, what ordinary thing looks like its finding, and what happens then. Rules that only",
        "record, or make the node a suspect, are not listed.",
        "",
        "| rule | ordinary |",
        "|---|---|",
        *(
            f"| {', '.join(f'`{name}`' for name in names)} | {words} |"
            for names, words in ORDINARY.items()
            if not words.endswith((": recorded.", ": a suspect."))
        ),
        "",
        "Lines of the kernel log are judged by the class of their row in the policy:",
        "",
        "| class | ordinary |",
        "|---|---|",
        *(f"| `{name}` | {words} |" for name, words in OF_CLASS.items()),
        "",
        "What an Xid means, and which signal follows from it: [codes](xid-policy.md).",
    ]
    return "\n".join(lines) + "\n"


USED = (NodeState.IN_SERVICE, NodeState.SUSPECT, NodeState.UNKNOWN, NodeState.PROBATION)
"""Jobs run on nodes of these states."""


def _row(row: Row) -> str:
    states = ", ".join(f"`{state.value}`" for state in row.states) if len(row.states) < 5 else "any"
    states = "used" if row.states == USED else states
    when = "" if row.when is Condition.ALWAYS else row.when.value
    signals = ", ".join(f"`{signal.value}`" for signal in row.signals)
    becomes = f"`{row.to.value}`" if row.to else ""
    action = "" if row.action is Action.NOTHING else row.action.value
    about = states or "—"
    why = re.split(r"[;:] ", row.why, maxsplit=1)[0]  # a decision has the whole of it
    return f"| {row.number} | {about} | {signals} | {when} | {becomes} | {action} | {why} |"


def slurm_settings() -> str:
    lines = [
        "# Settings of Slurm that cost recovery time or safety",
        "",
        GENERATED,
        "",
        "`understudy doctor` lists those of the running Slurm, and exits with 1 where one is dangerous. Understudy",
        "works with Slurm's defaults; with these settings faults cost less.",
        "",
        "| rule | setting | set | what it does |",
        "|---|---|---|---|",
        *(f"| S{rule.number} | `{rule.setting}` | {rule.wanted} | {rule.why} |" for rule in RULES),
        "",
        "Severities:",
        "",
        "| severity | meaning |",
        "|---|---|",
        *(f"| {severity.value} | {words} |" for severity, words in SEVERITIES.items()),
    ]
    return "\n".join(lines) + "\n"


XID_INTRODUCTION = """\
What the driver writes to the kernel log, and what follows from it. The table is data, version {version}; a site changes
its rows in the control plane's configuration, with `class`, `repair` or both. A row that a site changed applies as it
is: details in the line are ignored, and repetition makes no difference.

```toml
[xid.policy.94]
class = "drain"
repair = "reset_gpu"
reason = "always, whatever its flags are"
```

`understudy explain xid 94` (or `sxid 20034`) shows what follows and why. `understudy analyze kernel-log FILE` does so
for every line of a log, of one machine or of many, as dmesg, journalctl, syslog, Talos or a collector wrote it, with
what pdsh, clush, Ansible, `srun -l` or grep put before it. The best is `journalctl -k -a -o json`. A log without names
of machines or times says less, and the analysis names what it lacks. Lines of programs count for nothing.

## What comes first
1. **The driver's own recovery action**, per GPU and boot: Xid 154, or NVML's field 230. It goes before the row of the
   error. `to 0x0` clears the action before.
2. **The line itself**, where it says more (*decoded*).
3. **The row.** The same code repeatedly on one GPU may have another class and repair (*repeated*).

## Bursts
Xids on a node are one incident until it is silent for longer than three minutes. The cause is the first hardware
fault that is not of a link, because a link has two ends; else the first fault of a link. An echo ("caused by previous
Xid", or *echo of*) is no fault of its node.

## The program or the hardware
An error that a program can cause is no fault of a node; nor is the same error on several nodes of one job. The same
error on one GPU in jobs of different users, who have it on no other GPU, makes the node suspect
([`[xid]`](configuration.md)).
"""


KERNEL_LINES = """\
Agents pass on these lines, at most 20 of a row within ten minutes. Lines that a process wrote, or that name a loop
device, count in no row. A site changes class and repair of a row by its name: `[xid.kernel_policy.soft_lockup]`.
All classes are judgement: a row takes a node out of service only where the line itself says that the driver uses a GPU,
or CUDA, no more. Spellings are those of NVIDIA 535 to 595 and Linux 5.14 to 6.19 (`xid_policy.toml` names the source of
each); none was tried on hardware. Tests of NVLink 5 (`i1`) and EDAC (`FAKE ERROR`) are no faults. The Fabric Manager's
own log is not read.
"""


def xid_policy() -> str:
    policy = default_policy()
    lines = [
        "# Xids and SXids",
        "",
        GENERATED,
        "",
        *XID_INTRODUCTION.format(version=policy.version).splitlines(),
        "",
        "## Classes and repairs",
        "",
        "| class | signal | what follows |",
        "|---|---|---|",
        *(f"| {fault.value} | `{SIGNALS[fault].value}` | {words} |" for fault, words in FOLLOWS.items()),
        "",
        "| repair | meaning |",
        "|---|---|",
        *(f"| {repair.value} | {words} |" for repair, words in REPAIRS.items()),
        "",
        "## Xids",
        "",
        "*NVIDIA* is the immediate action of NVIDIA's catalogue (October 2025); \\*: class and repair are Understudy's",
        "judgement, as is what follows from repetition. *echo of: another*: a fault of another GPU or of a switch.",
        "A code that is not in the table is recorded, and no node is at fault. `understudy explain xid CODE` has the",
        "kinds of GPUs.",
        "",
        "| Xid | meaning | class | repair | NVIDIA | more |",
        "|---|---|---|---|---|---|",
        *_xid_rows(sorted(policy.xid.items())),
        "",
        "Recorded, and nothing else: "
        + _ranges([str(code) for code, row in sorted(policy.xid.items()) if _is_silent(row)])
        + ".",
        "",
        "## SXids",
        "",
        "After NVIDIA's fabric manager guide (DU-09883, v1.3). A code that is not in the table counts by the driver's",
        "severity: Fatal is `hardware` and needs a reboot, anything else is recorded. `understudy explain sxid CODE`",
        "says what a code means.",
        "",
        "| class | repair | decoded | echo of | SXids |",
        "|---|---|---|---|---|",
        *_sxid_rows(sorted(policy.sxid.items())),
        "",
        "## Other lines of the kernel log",
        "",
        *KERNEL_LINES.splitlines(),
        "",
        "| name | meaning | class | repair | hours |",
        "|---|---|---|---|---|",
        *(_kernel_row(name, row) for name, row in policy.kernel.items()),
        "",
        "## The driver's recovery actions",
        "",
        "| action | meaning | class | repair |",
        "|---|---|---|---|",
        *(
            f"| {number} | {one.meaning} | {one.fault.value} | {one.repair.value} |"
            for number, one in sorted(policy.recovery_action.items())
        ),
    ]
    return "\n".join(lines) + "\n"


def _xid_rows(rows: list[tuple[int, PolicyRow]]) -> Iterator[str]:
    """Codes that follow each other and differ by name and meaning alone are one row."""
    listed = [(code, row) for code, row in rows if not _is_silent(row)]
    for judged, same in groupby(listed, key=lambda row: _judged(row[1])):
        of_one = list(same)
        codes = _ranges([str(code) for code, _ in of_one])
        meanings = _joined(list(dict.fromkeys(_meaning(row) for _, row in of_one)))
        yield f"| {codes} | {meanings} | {' | '.join(judged)} |"


def _is_silent(row: PolicyRow) -> bool:
    return row.fault is FaultClass.RECORD and not _judged(row)[-1]


def _joined(meanings: list[str]) -> str:
    """Many that differ by a number are one."""
    kinds = list(dict.fromkeys(meaning.rstrip("0123456789 ") for meaning in meanings))
    if len(meanings) <= 3:
        return "; ".join(meanings)
    return "; ".join(f"{kind}s" if sum(m.startswith(kind) for m in meanings) > 1 else kind for kind in kinds)


def _meaning(row: PolicyRow) -> str:
    return row.meaning + (" (or caused by the program, on several nodes of one job)" if row.spread else "")


def _judged(row: PolicyRow) -> tuple[str, ...]:
    more = {
        "decoded": DECODED[row.decode] if row.decode else "",
        "echo of": ECHOES[row.echo_of].replace("a fault of another GPU or of a switch", "another")
        if row.echo_of
        else "",
        "repeated": _repeated(row),
    }
    words = "; ".join(f"{what}: {of_row}" for what, of_row in more.items() if of_row)
    nvidia = row.nvidia + "\\*" * (row.source == "judgement")
    return row.fault.value, row.repair.value, nvidia, words


def _kernel_row(name: str, row: KernelRow) -> str:
    hours = f"{row.hours:g}" if row.fault is FaultClass.SUSPECT else ""
    return f"| {name} | {row.meaning} | {row.fault.value} | {row.repair.value} | {hours} |"


def _repeated(row: PolicyRow) -> str:
    rule = row.repeat
    return f"{rule.times} in {rule.hours:g} h: {rule.fault.value}, {rule.repair.value}" if rule else ""


def _sxid_rows(rows: list[tuple[int, PolicyRow]]) -> Iterator[str]:
    """A row for each class and repair."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for code, row in rows:
        decoded, echo = DECODED[row.decode] if row.decode else "", ECHOES[row.echo_of] if row.echo_of else ""
        groups.setdefault((row.fault.value, row.repair.value, decoded, echo), []).append(str(code))
    for judged, codes in groups.items():
        yield f"| {' | '.join(judged)} | {_ranges(codes)} |"


def _ranges(codes: list[str]) -> str:
    """Codes that follow each other are a range."""
    runs: list[list[int]] = []
    for code in map(int, codes):
        if runs and code == runs[-1][-1] + 1:
            runs[-1].append(code)
        else:
            runs.append([code])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


SEVERITIES = {
    Severity.DANGER: "it can end jobs, or return a broken node to service, without a person's decision",
    Severity.COST: "it costs time when something fails",
    Severity.UNKNOWN: "this Slurm does not print it, or its value cannot be read: check it by hand",
    Severity.GOOD: "nothing to do",
}


def node_states() -> str:
    edges: dict[tuple[str, str], list[Row]] = {}
    for row in TABLE:
        for state in row.states:
            if row.to is not None and row.to is not state:
                edges.setdefault((state.value, row.to.value), []).append(row)
    asked = tuple(PEOPLE)
    drawn = {edge: [row for row in rows if not set(row.signals) & set(asked)] for edge, rows in edges.items()}
    lines = [
        "# Node states",
        "",
        GENERATED,
        "",
        "What each state guarantees. How a node gets from one to the other: [the repair cycle](repair-cycle.md).",
        "",
        "| state | guarantee | who may use the node |",
        "|---|---|---|",
        *(f"| `{state.value}` | {STATES[state][0]} | {STATES[state][1]} |" for state in NodeState),
        "",
        "The numbers are rows of the [table](decisions.md). Not drawn: an administrator may resume a drained node in",
        "Slurm at any time, and an operator may request to hold, release or retire a node; the second list has those.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> in_service",
        *(
            f"    {before} --> {after}: {', '.join(str(row.number) for row in rows)}"
            for (before, after), rows in drawn.items()
            if rows
        ),
        "```",
        "",
        "| request | in state | leads to | row |",
        "|---|---|---|---|",
        *(
            f"| {PEOPLE[row.signals[0]]} | {', '.join(f'`{state.value}`' for state in row.states)} | `{row.to.value}` "
            f"| {row.number} |"
            for row in TABLE
            if row.signals[0] in asked and row.to is not None
        ),
    ]
    return "\n".join(lines) + "\n"


PEOPLE = {
    Signal.DRAIN_LIFTED: "an administrator resumes it in Slurm",
    Signal.HOLD_ASKED: "`understudy node hold`",
    Signal.FAULT_REPORTED: "`understudy node quarantine`",
    Signal.RETIRE_ASKED: "`understudy node retire`",
    Signal.RELEASE_ASKED: "`understudy node release`",
    Signal.RELEASED_TO_OTHERS: "`understudy node release` of a node that an administrator has drained meanwhile",
    Signal.TEST_ASKED: "`understudy node validate`, `understudy node burn-in`",
    Signal.PROBE_DUE: "a suspect that no job uses",
    Signal.SPARE_CHECK_DUE: "an idle spare, in its turn",
}


def cli() -> str:
    lines = [
        "# Command line",
        "",
        GENERATED,
        "",
        "`understudy COMMAND --help` describes a command's options. Commands that ask the control plane take `--url`",
        "(or `UNDERSTUDY_URL`), `--token-file` (or `UNDERSTUDY_TOKEN_FILE`), `--ca-file` (or `UNDERSTUDY_CA_FILE`),",
        "`--certificate` and `--key` of your own, and `--json`. Without a token MUNGE shows who you are, and you see",
        "your own jobs. They use no proxy of the environment. Commands with a REASON send a request: with `--dry-run`",
        "they show what would follow and store nothing, with `--wait` they wait until it is carried out.",
        "HOSTS is a host list as Slurm writes it: `c7`, `c[1-4,7]`. TIME is a time in UTC (`2026-01-31T12:00`) or how",
        "long ago it was (`90s`, `30m`, `4h`, `2d`).",
        "The shell completes commands, options, nodes, states and jobs; without the packages:",
        "`source <(understudy completion bash)`.",
        "`understudy help TOPIC` prints a document of this release or a section of it, such as `understudy help",
        "runbooks`; `understudy help topics` lists them. On a terminal tables are cut to its width.",
        "",
        "| exit code | means |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
        "",
    ]
    for group, commands in GROUPS.items():
        lines += [f"## {group}", "| command | does |", "|---|---|"]
        for name, command in commands.items():
            for path, row in _command_rows(f"understudy {name}", command.load(), command.help):
                page = MORE_ABOUT.get(path) or MORE_ABOUT.get(f"understudy {name}")
                more = f" ([more]({page}))" if page else ""
                lines.append(f"| {row}{more} |")
        lines.append("")
    return "\n".join(lines)


CONNECTION_OPTIONS = ("url", "token_file", "ca_file", "certificate", "key", "as_json", "config")
REQUEST_OPTIONS = ("dry_run", "wait")
HOSTS_HELP = " HOSTS is a host list, such as c7 or c[1-4,7]."
"""Named once for all commands."""

MORE_ABOUT = {
    "understudy analyze": "straggler.md",
    "understudy analyze hang": "hangs.md",
    "understudy analyze collectives": "hangs.md",
    "understudy analyze kernel-log": "xid-policy.md",
    "understudy doctor": "slurm-settings.md",
    "understudy explain": "xid-policy.md",
    "understudy install-hooks": "hooks.md",
    "understudy run": "launcher.md",
    "understudy selfcheck": "selfcheck.md",
}


def _command_rows(path: str, program: object, summary: str) -> Iterator[tuple[str, str]]:
    """Each command, and its row."""
    if isinstance(program, click.Group):
        for name, one in program.commands.items():
            yield from _command_rows(f"{path} {name}", one, "")
    elif isinstance(program, click.Command):
        usage = " ".join([path, *_parameters(program)]).replace("|", "\\|")
        words = " ".join((program.help or "").split()).replace(HOSTS_HELP, "")
        yield path, f"`{usage}` | {_first_sentence(words)}"
    else:
        yield path, f"`{path}` | {summary}"


def _first_sentence(words: str) -> str:
    """`--help` has the others."""
    return re.split(r"(?<=\w[.)]) (?=[A-Z`])", words, maxsplit=1)[0]


def _parameters(program: click.Command) -> Iterator[str]:
    requests = {one.name for one in program.params} >= {"reason", "dry_run", "wait"}
    optional = []
    for one in program.params:
        if isinstance(one, click.Argument):
            yield one.make_metavar(click.Context(program))
        elif one.name not in CONNECTION_OPTIONS and not (requests and one.name in REQUEST_OPTIONS):
            option = "/".join([one.opts[-1], *one.secondary_opts])
            if one.required:
                yield option
            else:
                optional.append(f"[{option}]")
    yield from optional if len(optional) <= 4 else ["[OPTIONS]"]


def metrics() -> str:
    sections = [
        *(
            (group, [(m.full_name, m.kind.value, m.labels, m.help, m.dcgm) for m in of_group])
            for group, of_group in METRIC_GROUPS.items()
        ),
        (
            "Counters and histograms of the process",
            [(m.name, m.kind, m.labels, m.help, "") for m in Meters().described],
        ),
    ]
    per_node, gpus_max = len(NODES), Limits().gpus_in_metrics_max
    lines = [
        "# Metrics",
        "",
        GENERATED,
        "",
        "`GET /metrics`, in the text format of Prometheus, needs a token of role `metrics`, or `server.without_token`.",
        "In `deploy/prometheus/`: `scrape.yml`, a sample for Prometheus, and `rules.yml`, alerts with a",
        "[runbook](runbooks.md) each. In `deploy/grafana/`: dashboards (fleet, recovery, job, node, self).",
        "The package `understudy-controlplane` has both in `/usr/share/understudy-controlplane/`.",
        "",
        "A scrape reads memory alone, and one text answers all scrapes of the next moments. Counters, whose names end",
        "in `_total`, begin at zero when the process does; histograms are named as such, all others are gauges. A",
        "metric without a value has no series. `DCGM_…` is the same value of dcgm-exporter.",
        "",
        "## How many series",
        "| of | series |",
        "|---|---|",
        f"| a node | {per_node} |",
        f"| a GPU | {len(GPUS)}; where there are more than {gpus_max:,} only GPUs that are not well have series |",
        f"| a managed job that runs | {len(JOBS)}, of {JOBS_MAX} jobs at most |",
        "| the rest | some 600 |",
        "",
        f"12,500 nodes have {12_500 * per_node:,} series, at most {gpus_max * len(GPUS):,} of GPUs and",
        f"{JOBS_MAX * len(JOBS):,} of jobs. A label that changes, as a node's state, begins a new series.",
        "",
    ]
    for title, rows in sections:
        common = [label for label in rows[0][2] if all(label in labels for _, _, labels, *_ in rows)]
        lines += [f"## {title}", *([f"Each has the labels {', '.join(common)}.", ""] if common else [])]
        lines += ["| metric | labels | meaning |", "|---|---|---|"]
        for name, kind, labels, meaning, dcgm in rows:
            same = f" `{dcgm.partition(',')[0]}`{dcgm.partition(',')[1]}{dcgm.partition(',')[2]}." if dcgm else ""
            histogram = "Histogram. " if kind == "histogram" else ""
            assert (kind == "counter") == name.endswith("_total"), name
            lines.append(
                f"| `{name}` | {', '.join(one for one in labels if one not in common)} | {histogram}{meaning}{same} |"
            )
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


SIGNALS_INTRODUCTION = """\
Measured by `python -m tests.signals` on a virtual fleet, with the default configuration. **None of it is real
hardware**: what a driver or a kernel really shows when a part fails is taken from [the sources of each
signal](signals.md). The time is from the injection to the decision, with the agent's interval in it and a gang's steps
of two seconds. *shown* may be a second signal, which has no consequence without a slow rank.
"""

DAY_INTRODUCTION = """\
Nothing is broken in it: gangs train, save, evaluate, crash by their own fault and start again; agents, drivers, kernels
and the control plane are upgraded.
"""

TRACE_INTRODUCTION = """\
A real year of 400 servers (`tests/data/README.md`), through the same code with all guards. The trace says what people
found, not what a driver wrote: the signal of each class is judgement.
"""


H100 = "hardware/h100-80gb-hbm3-580.159.04.md"
H200 = "hardware/h200-580.159.04.md"

READINGS_INTRODUCTION = f"""\
## Readings of NVML
What a kind of GPU or a driver does not answer is unknown, and has no consequence. The table is that of the tests' fake
NVML, which follows NVIDIA's documents for V100, A100, H100, H200, B200, GB200 and L40S. [An H100]({H100}) and [an
H200]({H200}), both without NVLink, answer alike; no other was compared yet. All other fields are answered by each kind,
from R525 on.
"""

UNITS = ("celsius", "watts", "mhz", "percent", "bytes", "seconds")
"""Units by which the name of a field ends."""

NUMBERED = {
    "recovery_action": "number of `nvmlDeviceGpuRecoveryAction_t`",
    "clock_event_reasons": "bits `nvmlClocksEventReason...`",
    "ecc_uncorrected": "count, since the driver was loaded",
    "ecc_corrected": "count, since the driver was loaded",
    "remapped_rows_uncorrectable": "rows, in the GPU's life",
    "remapped_rows_pending": "yes or no",
    "remapped_rows_failed": "yes or no",
    "pcie_generation": "generation",
    "pcie_generation_max": "generation",
    "pcie_width": "lanes",
    "pcie_width_max": "lanes",
    "pcie_replays": "count",
    "nvlinks": "links that are up",
    "nvlink_errors": "count, of all links that are up",
    "fabric_state": "number of `nvmlGpuFabricState_t`",
    "fabric_status": "number of `nvmlReturn_t`",
    "fabric_health": "bits `NVML_GPU_FABRIC_HEALTH_MASK_...`",
    "sram_threshold_exceeded": "yes or no",
    "memory_banks_low": "banks",
    "memory_banks_spent": "banks",
    "retired_pages": "pages, in the GPU's life",
    "retired_pages_pending": "yes or no",
    "mig_mode": "yes or no",
}


def _readings() -> list[str]:
    recorded = json.loads((HERE.parent / "tests" / "data" / "readings.json").read_bytes())
    alike: dict[tuple[str, str, str], list[str]] = {}
    for one in recorded:
        every = f"{one['every_seconds']:g} s" if one["every_seconds"] else "sample (2 s)"
        since = f"R{one['since'].partition('.')[0]}" if one["since"] else "none"
        fields = [f"`{name}`" + f" ({_unit(name)})" * bool(_unit(name)) for name in one["fields"]]
        alike.setdefault((every, ", ".join(one["not_by"]), since), []).extend(fields)
    return [
        *READINGS_INTRODUCTION.splitlines(),
        "",
        "| read each | not answered by | answered from driver (H100) on | fields of `/v1/nodes/{node}` |",
        "|---|---|---|---|",
        *(
            f"| {every} | {not_by} | {since} | {', '.join(names)} |"
            for (every, not_by, since), names in alike.items()
            if not_by or since != "R525"
        ),
    ]


def _unit(name: str) -> str:
    return NUMBERED.get(name) or ("" if name.rpartition("_")[2] in UNITS else "text")


def signal_table() -> str:
    measured = json.loads((HERE.parent / "tests" / "data" / "signals.json").read_bytes())
    lines = [
        "# What each signal leads to",
        "",
        GENERATED,
        "",
        *SIGNALS_INTRODUCTION.splitlines(),
        "",
        "| read from | signal | found by rule | node becomes | action | after |",
        "|---|---|---|---|---|---|",
        *_once(_measured_signal(one) for one in measured["signals"]),
        "",
        *_readings(),
        "",
        *_healthy_day(measured["day"]),
        "",
        *_fault_trace(measured["trace"]),
    ]
    return "\n".join(lines) + "\n"


def _once(rows: Iterable[str]) -> Iterator[str]:
    """The first column only where it changes."""
    before = ""
    for row in rows:
        first, _, others = row.removeprefix("| ").partition(" | ")
        yield f"| {first if first != before else ''} | {others}"
        before = first


def _measured_signal(one: dict[str, Any]) -> str:
    if not one["rule"]:
        return f"| {one['source']} | {one['signal']} | | stays | shown | |"
    action = one["action"].replace("_", " ") if one["action"] != "nothing" else "" if one["state"] else "recorded"
    state = f"`{one['state']}`" if one["state"] else "stays"
    rule, after = f"`{one['rule']}`", f"{one['seconds']:g} s"
    return f"| {one['source']} | {one['signal']} | {rule} | {state} | {action} | {after} |"


def _healthy_day(day: dict[str, Any]) -> list[str]:
    kinds = (
        ("acting", "that act (drain, quarantine, move, restart, page)"),
        ("suspects", "that make a node suspect"),
        ("unknown", "that make it unknown for a moment (its agent restarts)"),
        ("recorded", "recorded only"),
    )
    return [
        "## A healthy day",
        *DAY_INTRODUCTION.splitlines(),
        "",
        f"{day['nodes']:,} nodes, {day['hours']:g} h, {day['rank_days']:,.0f} rank-days.",
        "",
        "| decisions | number | by rule |",
        "|---|---|---|",
        *(f"| {words} | {sum(day[kind].values())} | {_counts(day[kind])} |" for kind, words in kinds),
        "",
        "The goal is none that acts, and at most one suspect in 20,000 rank-days. Where none was seen, this leaves at",
        f"most {3 * 20_000 / max(day['rank_days'], 1):.1f} in 20,000 (95 % confidence). [Stragglers](straggler.md) has",
        "figures for slow ranks alone, of more days.",
    ]


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"`{name}` {count}" for name, count in found.items()) or "none"


def _fault_trace(trace: dict[str, Any]) -> list[str]:
    injected = trace["faults"] - sum(trace["no_signal"].values())
    kinds = (
        ("drained", "drained or quarantined"),
        ("out_already", "its node was out of service already, for another fault"),
        ("suspect", "suspect, in service: validated as soon as it is idle, where that is on"),
        ("recorded", "recorded only"),
        ("missed", "nothing follows: a second signal, which confirms a slow rank"),
    )
    none = ", ".join(f"{why}: {count}" for why, count in trace["no_signal"].items())
    return [
        "## The fault trace of 400 servers",
        *TRACE_INTRODUCTION.splitlines(),
        "",
        f"Of {trace['faults']} faults {injected} have a class with a signal. The others: {none}.",
        "",
        "| what follows | faults | by signal |",
        "|---|---|---|",
        *(
            f"| {words} | {sum(trace[kind].values())} | "
            + ", ".join(f"{name} {count}" for name, count in trace[kind].items())
            + " |"
            for kind, words in kinds
        ),
        "",
        f"Held back by a guard: {trace['held_back']}.",
    ]


INPUTS_INTRODUCTION = """\
What other programs print and Understudy reads: versions of which the source was read, versions of which a real output
is a test, and what was only imagined. `tests/data/world/KIND.toml` has the sources; KIND stands in brackets.
"""


def inputs() -> str:
    lines = ["# What Understudy reads", "", GENERATED, "", *INPUTS_INTRODUCTION.splitlines()]
    for kind in input_kinds():
        lines += ["", f"## {kind.title} ({kind.name}, {len(kind.case)} of other sites)", ""]
        lines += ["| input | read | recorded | only imagined |", "|---|---|---|---|"]
        lines += [
            f"| {one.what} | {_versions(one.read)} | {_versions([*one.recorded])} | {one.imagined} |"
            for one in kind.input
        ]
    return "\n".join(lines) + "\n"


def _versions(versions: list[str]) -> str:
    """Releases of Slurm that follow each other are a range."""
    return f"{versions[0]} to {versions[-1]}" if versions == [*SLURMS] else ", ".join(versions)


DOCUMENTS = {
    "inputs.md": inputs,
    "signal-table.md": signal_table,
    "metrics.md": metrics,
    "cli.md": cli,
    "node-states.md": node_states,
    "configuration.md": configuration,
    "decisions.md": decisions,
    "slurm-settings.md": slurm_settings,
    "xid-policy.md": xid_policy,
}


def main() -> None:
    for name, make in DOCUMENTS.items():
        (HERE / name).write_text(make())
        sys.stdout.write(f"wrote docs/{name}\n")


if __name__ == "__main__":
    main()
