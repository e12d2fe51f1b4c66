"""All commands of `understudy`, by group: what each does, and where its program is.

`understudy --help` prints it without importing any program. The targets are names, so that the agent does not import
the control plane.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

CONTROL_PLANE = "understudy_controlplane"
COMPLETION_VARIABLE = "_UNDERSTUDY_COMPLETE"
"""A shell asks with it how a command line can go on."""


class Command(NamedTuple):
    help: str
    target: str
    """`module:attribute`"""

    @property
    def verbs(self) -> list[str]:
        """Verbs of a noun, as its help names them."""
        return self.help.partition(":")[0].split(" | ")

    @property
    def is_of_control_plane(self) -> bool:
        return self.target.startswith(f"{CONTROL_PLANE}.")

    def load(self) -> Callable[[], object]:
        module, _, name = self.target.partition(":")
        program: Callable[[], object] = getattr(import_module(module), name)
        return program


def _cli(module: str, name: str) -> str:
    return f"{CONTROL_PLANE}.cli.{module}:{name}"


GROUPS: dict[str, dict[str, Command]] = {
    "The cluster": {
        "status": Command("counts, and what needs a person", _cli("status", "status")),
        "node": Command(
            "list | show | hold | quarantine | release | validate | burn-in | retire | requests | parts | tests",
            _cli("node", "node"),
        ),
        "job": Command("list | show | evidence | pause | resume | move | trust-checkpoints", _cli("job", "job")),
        "checkpoints": Command("scan | show | now", _cli("checkpoints", "checkpoints")),
        "spare": Command(
            "list | show | explain | size | size-as-configured | add | remove | forget", _cli("spare", "spare")
        ),
        "topology": Command("show | check: racks, switches, NVLink blocks", _cli("topology", "topology")),
        "maintenance": Command(
            "start | list | show | pause | resume | end: planned work on nodes", _cli("maintenance", "maintenance")
        ),
        "commission": Command("start | report: racks and clusters that are accepted", _cli("commission", "commission")),
        "signal": Command("list | end: what other systems of the site report", _cli("signal", "signal")),
        "incident": Command("list | dismiss | show", _cli("incident", "incident")),
        "decision": Command("list | show | agree | disagree", _cli("decision", "decision")),
        "recovery": Command("list | show | cancel | approve", _cli("recovery", "recovery")),
        "ticket": Command("list | show | ack | close: manual repairs", _cli("ticket", "ticket")),
        "events": Command("what happens, as it happens", _cli("events", "events")),
        "report": Command("what happened in a span of time, and what it cost", _cli("report", "report")),
        "inject": Command("a drill: what would follow if a node logged an Xid", _cli("inject", "inject")),
        "explain": Command("node | job | xid | sxid: what was done, and why", _cli("explain", "explain")),
    },
    "The control plane": {
        "mode": Command("show | set: whether the control plane acts or observes", _cli("mode", "mode")),
        "observed": Command("which rules are ready for mode act", _cli("observed", "observed")),
        "pause": Command("begin nothing", _cli("pause", "pause")),
        "resume": Command("end a pause", _cli("pause", "resume")),
        "breaker": Command("show | reset: the circuit breaker", _cli("breaker", "breaker")),
    },
    "On the control plane's host": {
        "init": Command("write configuration, tokens and the nodes' files", _cli("init", "init")),
        "serve": Command("run the control plane", _cli("serve", "serve")),
        "check-config": Command("check the configuration", _cli("check_config", "check_config")),
        "doctor": Command("check Slurm and its settings", _cli("doctor", "doctor")),
        "notify": Command("list | test: messages, and whether they arrive", _cli("notify", "notify")),
        "token": Command("create | enroll | list | revoke | allow", _cli("token", "token")),
        "db": Command("check | prune | backup | copy: the database", _cli("db", "db")),
        "support-bundle": Command("logs, decisions, settings of a time", _cli("support_bundle", "support_bundle")),
        "leave-slurm": Command("end what is kept in Slurm", _cli("leave_slurm", "leave_slurm")),
        "audit": Command("export: who changed what", _cli("audit", "audit")),
    },
    "On compute nodes and in jobs": {
        "agent": Command("run the node's agent", "understudy_agent.__main__:main"),
        "keeper": Command("hold parts of checkpoints in the node's memory", "understudy_keeper.__main__:main"),
        "run": Command("launch a gang in a batch script", "understudy_launcher.__main__:main"),
        "check-job": Command("whether a batch script's job could be recovered", "understudy_launcher.check_job:main"),
        "install-hooks": Command("install Slurm's Prolog and Epilog", "understudy_agent.hooks.install:main"),
        "selfcheck": Command("check that the GPUs compute correctly", "understudy_selfcheck.__main__:main"),
        "export-hook": Command("copy the package that training code imports", "understudy_agent.export:main"),
    },
    "Anywhere": {
        "analyze": Command(
            "kernel-log | steps | hang | collectives: analyze files after a failure",
            _cli("analyze.commands", "analyze"),
        ),
        "plan": Command(
            "spares | interval | what-if: how many spares, how often to save, what it brings",
            _cli("plan.commands", "plan"),
        ),
        "completion": Command("print the completion of bash, zsh or fish", _cli("completion", "completion")),
        "version": Command("print the version", "understudy_agent.entry:print_version"),
    },
}

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "wrong usage or configuration",
    3: "refused: the state of a node or recovery, or a guard, does not allow it",
    4: "the control plane cannot be reached, or cannot answer now",
    5: "recorded only: the control plane observes, or an operator has to approve it first",
    6: "something needs a person (`understudy status --check`)",
}


def help_text() -> str:
    """The control plane's commands are missing where its package is not installed."""
    has_control_plane = find_spec(CONTROL_PLANE) is not None
    lines = ["Usage: understudy COMMAND [OPTIONS] [ARGUMENTS]", "", "Hot spares for gang jobs on Slurm.", ""]
    for group, commands in GROUPS.items():
        shown = {name: one for name, one in commands.items() if has_control_plane or not one.is_of_control_plane}
        if shown:
            lines += [f"{group}:", *(f"  {name:15}{one.help}" for name, one in shown.items()), ""]
    lines += [
        "`understudy COMMAND --help` describes a command and its options.",
        "`understudy help topics` lists the documents, `understudy help runbooks` prints one.",
        "",
    ]
    lines += ["Exit codes:", *(f"  {code}  {meaning}" for code, meaning in EXIT_CODES.items())]
    return "\n".join(lines)
