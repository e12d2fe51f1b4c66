"""The `understudy` command: looks up who owns the verb, and nothing else.

A compute node has the agent's verbs and none of the control plane's packages; so verbs are entry points of
the group `understudy.commands`, where `*` owns every verb that nobody else does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

GROUP = "understudy.commands"
OUR_PACKAGES = {"understudy_agent", "understudy_controlplane"}


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands = {entry.name: entry for entry in entry_points(group=GROUP)}
    verb = words[0] if words else ""
    owner = commands.get(verb) if verb != "*" else None
    if owner is not None:
        sys.argv = [f"understudy {verb}", *words[1:]]
    else:
        owner = commands.get("*")
        sys.argv = ["understudy", *words]
    if owner is None:
        sys.stderr.write("understudy: no commands are registered; install the package again with pip\n")
        return 1
    return _run(owner, [name for name in commands if name != "*"])


def _run(owner: EntryPoint, light_verbs: list[str]) -> int:
    try:
        command = owner.load()
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in OUR_PACKAGES and error.name not in OUR_PACKAGES:
            raise
        package = (
            "slurm-understudy" if owner.module.startswith("understudy_agent") else "slurm-understudy[controlplane]"
        )
        sys.stderr.write(
            f"understudy: this command needs '{error.name}', which is not installed: install {package}. "
            f"Commands that do without: {', '.join(sorted(light_verbs))}\n"
        )
        return 1
    status = command()
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
