"""Writes the documents that are made from the code: `make docs`. A test compares them with what stands there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from agents.config import Config as AgentConfig
from controlplane.config import Config
from controlplane.decide.table import FILL_POOL_ROW, RELEASE_JOB_ROW, TABLE, Row
from controlplane.detect.xid import XID_POLICY
from controlplane.fleet.decision import Because
from controlplane.plan.advice import RULES, Severity

HERE = Path(__file__).parent
GENERATED = "<!-- Made from the code by `make docs`. Change the code, not this. -->"

GUARDS = {
    Because.DRY_RUN: 'the control plane only observes: `mode = "observe"`, as a fresh install does',
    Because.PAUSED: "an operator has paused it; recoveries under way go on to their end",
    Because.SLURM_UNREADABLE: "Slurm cannot be read, so nothing is known for sure",
    Because.GATHERING: "the control plane has just started and not every node was heard yet (10 s at most)",
    Because.FLEET_BUDGET: "as many nodes are quarantined as may be at once",
    Because.HOURLY_BUDGET: "as many nodes were quarantined within the hour as may be",
    Because.JOB_BUDGET: "this job was moved too often within the hour: a person has to look at it",
    Because.RELEASE_BUDGET: "this job was kept off nodes by our Prolog and released too often within the hour",
    Because.FOREIGN_POOL: "somebody else has a reservation of the name that is configured for the spare pool",
    Because.NO_SPARE: "no spare is free: the node leaves service, the gang moves as soon as there is one",
}


def configuration() -> str:
    lines = [
        "# Configuration of the control plane",
        "",
        GENERATED,
        "",
        "One TOML file, `/etc/understudy/controlplane.toml` or what `--config` names. It is checked whole at start;",
        "unknown keys are refused. `understudy check-config` says whether it is good.",
        "",
        *_section("", Config),
        *_agent(),
    ]
    return "\n".join(lines) + "\n"


AGENT_KEYS = {
    "cluster": "ClusterName of slurm.conf",
    "control_plane_urls": "base addresses; reports go to the first that answers",
    "node": "NodeName in Slurm; empty: SLURMD_NODENAME, or the short host name",
    "token_file": "file with the bearer token that the control plane expects of agents",
    "report_interval_seconds": "how often GPUs are read and reported; a new fact goes out at once",
    "request_timeout_seconds": "after this a control plane counts as not answering",
    "kernel_log": "/dev/kmsg, or a plain file of the same records",
    "socket": "where ranks on this node talk to the agent",
    "boot_id_file": "where the kernel says which boot this is",
    "run_directory": "where the Slurm hooks find the verdict and leave their records; a tmpfs ([hooks](hooks.md))",
    "nvml": "section with `enabled`: false on nodes without GPUs",
}


def _agent() -> Iterator[str]:
    yield "# Configuration of the agent"
    yield ""
    yield "`/etc/understudy/agent.toml` or what `--config` names; `understudy agent --check-config` reads it only."
    yield ""
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for field in msgspec.structs.fields(AgentConfig):
        default = "required" if field.required else "" if field.name == "nvml" else f"`{_toml(field.default)}`"
        yield f"| `{field.name}` | {default} | {AGENT_KEYS[field.name]} |"


def _section(name: str, model: type[BaseModel]) -> Iterator[str]:
    yield f"## `[{name}]`" if name else "## Top level"
    yield ""
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    inner: list[tuple[str, type[BaseModel]]] = []
    for key, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            inner.append((key, annotation))
            continue
        default = "required" if field.default is PydanticUndefined else f"`{_toml(field.default)}`"
        yield f"| `{key}` | {default} | {field.description} |"
    yield ""
    for key, section in inner:
        yield from _section(key, section)


def _toml(value: object) -> str:
    if value is None:
        return "(none)"
    return str(value) if isinstance(value, int | float) else f'"{value}"'


def decisions() -> str:
    lines = [
        "# How decisions are made",
        "",
        GENERATED,
        "",
        "Each round, detection gives findings; each finding has a signal; the table is entered with the node's state",
        "and the signal. A pair that is not in the table means nothing. Of several findings on one node the gravest",
        "counts. The row's number stands in the decision, in the log and in `/v1/decisions`.",
        "",
        "## The table",
        "",
        "| row | in state | signal | becomes | action | why |",
        "|---|---|---|---|---|---|",
        *(_row(row) for row in TABLE),
        f"| {FILL_POOL_ROW.number} | (the pool) | | | {FILL_POOL_ROW.action.value} | {FILL_POOL_ROW.why} |",
        f"| {RELEASE_JOB_ROW.number} | (a held job) | | | {RELEASE_JOB_ROW.action.value} | {RELEASE_JOB_ROW.why} |",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> in_service",
        *(
            f"    {state.value} --> {row.to.value}: {row.number} {row.signal.value}"
            for row in TABLE
            for state in row.states
            if row.to is not None and row.to is not state
        ),
        "```",
        "",
        "## Guards",
        "",
        "What keeps a right decision from being carried out; it is recorded as `nothing`, with the reason:",
        "",
        "| because | meaning |",
        "|---|---|",
        *(f"| `{because.value}` | {words} |" for because, words in GUARDS.items()),
        "",
        "## Xid codes",
        "",
        "A code that is not here is recorded and condemns nobody.",
        "",
        "| Xid | signal | meaning |",
        "|---|---|---|",
        *(f"| {code} | `{row.signal.value}` | {row.meaning} |" for code, row in sorted(XID_POLICY.items())),
    ]
    return "\n".join(lines) + "\n"


def _row(row: Row) -> str:
    states = ", ".join(f"`{state.value}`" for state in row.states) if len(row.states) < 5 else "any"
    becomes = f"`{row.to.value}`" if row.to else "stays"
    return f"| {row.number} | {states} | `{row.signal.value}` | {becomes} | {row.action.value} | {row.why} |"


def slurm_settings() -> str:
    lines = [
        "# Settings of Slurm that cost recovery time or safety",
        "",
        GENERATED,
        "",
        "`understudy doctor` asks the running Slurm for its settings, says which of them cost something there, and",
        "ends with 1 where one is dangerous. Understudy works with Slurm's defaults; with what stands here faults cost",
        "less.",
        "",
        "| rule | setting | set | what it does |",
        "|---|---|---|---|",
        *(f"| S{rule.number} | `{rule.setting}` | {rule.wanted} | {rule.why} |" for rule in RULES),
        "",
        "What the doctor says of a setting:",
        "",
        "| severity | meaning |",
        "|---|---|",
        *(f"| {severity.value} | {words} |" for severity, words in SEVERITIES.items()),
    ]
    return "\n".join(lines) + "\n"


SEVERITIES = {
    Severity.DANGER: "it can end jobs, or bring a broken node back, without anybody deciding so",
    Severity.COST: "it costs time when something fails",
    Severity.UNKNOWN: "this Slurm does not print it, or in words not known here: look at it yourself",
    Severity.GOOD: "nothing is to be done",
}

DOCUMENTS = {
    "configuration.md": configuration,
    "decisions.md": decisions,
    "slurm-settings.md": slurm_settings,
}


def main() -> None:
    for name, make in DOCUMENTS.items():
        (HERE / name).write_text(make())
        sys.stdout.write(f"wrote docs/{name}\n")


if __name__ == "__main__":
    main()
