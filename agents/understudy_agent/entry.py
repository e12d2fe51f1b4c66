"""The `understudy` command: finds the program of a command, and runs it.

A compute node has the agent's commands and none of the control plane's packages, so a program is imported only when
its command runs.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence

from understudy_agent.commands import COMMANDS, COMPLETION_VARIABLE, CONTROL_PLANE, Command, help_text

DISTRIBUTION = "slurm-understudy"
ROOT = Command("all commands of the control plane's package", f"{CONTROL_PLANE}.cli.main:main")
USAGE_ERROR = 2
CANNOT_RUN = 2
"""Exit code of a self-check: 1 would be a bad node."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if COMPLETION_VARIABLE in os.environ:
        return _run(ROOT)
    if given[:1] == ["help"] and len(given) > 1:
        return _print_document(given[1:])
    if not given or given[0] in ("--help", "-h", "help"):
        sys.stdout.write(f"{help_text()}\n")
        return 0 if given else USAGE_ERROR
    if given[0] == "--version":
        return print_version()
    command = COMMANDS.get(given[0])
    if command is None:
        sys.stderr.write(f"understudy: {_unknown(given[0], given[1:])}\n")
        return USAGE_ERROR
    return _start(command, given)


def _print_document(words: Sequence[str]) -> int:
    """A command's own help where TOPIC is a command, or else a document or a section of one."""
    from understudy_agent import documents

    if words[0] in COMMANDS:
        return main([*words, "--help"])
    try:
        text = documents.index() if words[0] == "topics" else documents.document(words[0], " ".join(words[1:]))
    except KeyError as error:
        sys.stderr.write(f"understudy: {error.args[0]}\n")
        return USAGE_ERROR
    sys.stdout.write(text)
    return 0


def print_version() -> int:
    from importlib.metadata import version

    sys.stdout.write(f"understudy {version(DISTRIBUTION)}\n")
    return 0


def _unknown(word: str, behind: Sequence[str]) -> str:
    if word.startswith("-"):
        return f"unknown option '{word}': options are written after the command; `understudy --help` lists all commands"
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    if near and behind and behind[0] in COMMANDS[near[0]].verbs:
        return f"unknown command '{word}'; did you mean `understudy {near[0]} {behind[0]}`?"
    nouns = [noun for noun, command in COMMANDS.items() if word in command.verbs]
    if nouns:
        return f"unknown command '{word}'; did you mean {' or '.join(f'`understudy {noun} {word}`' for noun in nouns)}?"
    hint = f"did you mean `understudy {near[0]}`?" if near else "`understudy --help` lists all commands"
    return f"unknown command '{word}'; {hint}"


def _start(command: Command, given: list[str]) -> int:
    if command.is_of_control_plane:
        sys.argv = ["understudy", *given]
        return _run(ROOT)
    sys.argv = [f"understudy {given[0]}", *given[1:]]
    return _run(command)


def _run(command: Command) -> int:
    try:
        status = command.load()()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(("understudy_agent.", f"{CONTROL_PLANE}.")):
            raise
        needed = f"{DISTRIBUTION}[controlplane]" if command.is_of_control_plane else DISTRIBUTION
        without = sorted(name for name, one in COMMANDS.items() if not one.is_of_control_plane)
        sys.stderr.write(
            f"understudy: this command needs '{error.name}', which is not installed; install {needed}. "
            f"Commands that work without it: {', '.join(without)}\n"
        )
        return CANNOT_RUN
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
