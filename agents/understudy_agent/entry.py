"""The `understudy` command: finds the program that a verb belongs to, and runs it.

A compute node has the agent's verbs and none of the control plane's packages. So each verb is an entry point of the
group `understudy.commands`; `*` runs every verb that has no entry point of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version

GROUP = "understudy.commands"
DISTRIBUTION = "slurm-understudy"
PACKAGES = {"understudy_agent", "understudy_controlplane"}


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    verb = given[0] if given else ""
    if verb == "--version":
        sys.stdout.write(f"understudy {version(DISTRIBUTION)}\n")
        return 0
    commands = {entry.name: entry for entry in entry_points(group=GROUP)}
    command = commands.get(verb) if verb != "*" else None
    if command is not None:
        sys.argv = [f"understudy {verb}", *given[1:]]
    else:
        command = commands.get("*")
        sys.argv = ["understudy", *given]
    if command is None:
        sys.stderr.write(f"understudy: no commands are registered; install {DISTRIBUTION} again\n")
        return 1
    return _run(command, [name for name in commands if name != "*"])


def _run(command: EntryPoint, agent_verbs: list[str]) -> int:
    try:
        program = command.load()
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in PACKAGES and error.name not in PACKAGES:
            raise
        needed = DISTRIBUTION if command.module.startswith("understudy_agent") else f"{DISTRIBUTION}[controlplane]"
        sys.stderr.write(
            f"understudy: this command needs '{error.name}', which is not installed; install {needed}. "
            f"Commands that work without it: {', '.join(sorted(agent_verbs))}\n"
        )
        return 1
    status = program()
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
