"""Options of srun that users give to the step that starts the seats (`--srun-args`), and what to write instead of those
that are not passed on. Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

OPTION = "--srun-args"

_NODES = "the launcher chooses the nodes of each launch: name the gang's size with --nodes, and constraints to sbatch"
_TASKS = "Slurm starts one seat on each node, and the seat its ranks: --procs-per-node"
_CPUS = "a seat has all CPUs of the job on its node: give --cpus-per-task to sbatch, and --cpu-bind to `understudy run`"
_GPUS = "a seat has all GPUs of the job on its node: give --gpus-per-task to `understudy run`"
_OUTPUT = "it is an option of `understudy run` itself: write it before --srun-args"
_LIVES = "a step of the launcher outlives the loss of any of its nodes and tasks"
_JOB = "it belongs to the job: give it to sbatch"

_INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("nodes", "nodelist", "nodefile", "exclude", "relative", "distribution", "contiguous"), _NODES),
    **dict.fromkeys(("ntasks", "ntasks-per-node", "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu"), _TASKS),
    **dict.fromkeys(("overcommit", "spread-job", "use-min-nodes", "tres-per-task"), _TASKS),
    **dict.fromkeys(("cpus-per-task", "cpus-per-gpu", "cpu-bind", "exact", "exclusive", "overlap"), _CPUS),
    **dict.fromkeys(("gpus", "gpus-per-task", "gpus-per-node", "gpus-per-socket", "gpu-bind", "gres"), _GPUS),
    **dict.fromkeys(("output", "error", "label"), _OUTPUT),
    **dict.fromkeys(("no-kill", "kill-on-bad-exit", "wait", "quit-on-interrupt"), _LIVES),
    **dict.fromkeys(("jobid", "account", "partition", "qos", "reservation", "dependency", "begin", "comment"), _JOB),
    "input": "ranks have no standard input: name a file that every rank can read",
    "pty": "ranks have no terminal: name a file that every rank can read, and start the training with sbatch",
    "mpi": "ranks are not connected through Slurm's PMI: MASTER_ADDR, MASTER_PORT and RANK are there instead",
    "multi-prog": "every rank runs the same command: start a script that chooses its program by $RANK",
    "het-group": "a gang is in one component of a job: its other components need jobs of their own",
    "export": "ranks have the environment of the batch script: give --export to sbatch",
    "export-file": "ranks have the environment of the batch script: give --export-file to sbatch",
    "no-allocate": _JOB,
    "time": "a step has the time of its job: give --time to sbatch",
    "help": "see man srun",
    "usage": "see man srun",
    "version": "see man srun",
}
_SHORT: Mapping[str, str] = {
    **dict.fromkeys("Nwxrm", "nodes"),
    **dict.fromkeys("nO", "ntasks"),
    **dict.fromkeys("cs", "cpus-per-task"),
    **dict.fromkeys("oel", "output"),
    **dict.fromkeys("kKW", "wait"),
    **dict.fromkeys("ApqdbZ", "jobid"),
    **dict(zip("GitVh", ("gpus", "input", "time", "version", "help"), strict=True)),
}
"""Letter → an option of which the same holds."""
_MOUNTS = "--container-mounts="
_IMAGES = ("--container-image=", "--container-name=")


class NotForSrun(Exception):
    """An option that the launcher does not pass on; the message has what to do."""


def take_out(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The launcher's own command line, and options of srun: what stands between `--srun-args` and `--`. One word with
    spaces in it, as in --srun-args="--mem=0 --container-image=x", is taken apart as a shell does.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own: list[str] = []
    given: list[str] = []
    for at, word in enumerate(arguments[:end]):
        if word == OPTION:
            given += _words(arguments[at + 1 : end])
            break
        if word.startswith(f"{OPTION}="):
            given += _words([word.removeprefix(f"{OPTION}=")])
        else:
            own.append(word)
    return [*own, *arguments[end:]], tuple(given)


def _words(given: Sequence[str]) -> list[str]:
    try:
        return shlex.split(given[0]) if len(given) == 1 and any(one.isspace() for one in given[0]) else list(given)
    except ValueError:  # a quote without its end
        return list(given)


def check(options: Sequence[str]) -> None:
    """Raises NotForSrun. srun accepts the beginning of an option's name for it."""
    for option in options:
        name = option.lstrip("-").partition("=")[0]
        if not option.startswith("-") or not name:
            raise NotForSrun(
                f"{OPTION} … {option}: srun would run this word instead of a seat: write an option and its value as "
                "one word, as in --container-image=x"
            )
        long = option.startswith("--")
        found = [one for one in _INSTEAD if one.startswith(name)] if long else [_SHORT.get(name[:1], "")]
        if long and name in _INSTEAD:
            found = [name]
        if found and found[0]:
            spelled = f"--{name}" if long else f"-{name[:1]}"
            raise NotForSrun(f"{OPTION} … {spelled}: it is not passed on to srun, as {_INSTEAD[found[0]]}")


def in_container(options: Sequence[str]) -> bool:
    """Pyxis starts the seat, and so its ranks, in a container."""
    return any(option.startswith(_IMAGES) for option in options)


def with_mounts(options: Sequence[str], folders: Sequence[str]) -> tuple[str, ...]:
    """The options, with these folders of the node mounted where they are, in a container of Pyxis that does not have
    them yet.
    """
    if not in_container(options):
        return tuple(options)
    mounted = ",".join(option.removeprefix(_MOUNTS) for option in options if option.startswith(_MOUNTS))
    places = [mount.split(":")[1] if ":" in mount else mount for mount in mounted.split(",") if mount]
    more = [f"{folder}:{folder}" for folder in folders if not any(is_below(folder, place) for place in places)]
    rest = [option for option in options if not option.startswith(_MOUNTS)]
    return (*rest, *([f"{_MOUNTS}{','.join([*([mounted] if mounted else []), *more])}"] if mounted or more else []))


def is_below(folder: str, place: str) -> bool:
    """True if a folder is there, or in it."""
    return f"{folder.rstrip('/')}/".startswith(f"{place.rstrip('/')}/")
