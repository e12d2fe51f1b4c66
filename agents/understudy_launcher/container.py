"""A command that starts its program in a container: `podman run … IMAGE python train.py`, `apptainer exec … python
train.py`. Pure.

A rank needs its variables, its descriptors and the agent's socket inside: the command is taken apart, and these are
added.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from understudy_launcher.command import PythonProgram, parse_python
from understudy_launcher.protocol import SECRET_VARIABLE
from understudy_launcher.srun_options import is_below

INSIDE_VARIABLE = "UNDERSTUDY_CONTAINER"
"""Set in a container: the rest of the environment is the image's, and stays (`warm.py`)."""
FIRST_DESCRIPTOR = 3
"""Podman passes on those from here upwards, without a gap."""
PASSED_ON = (
    *("SLURM_", "SLURMD_", "UNDERSTUDY_", "NCCL_", "TORCH_", "TORCHELASTIC_", "PYTORCH_", "GLOO_", "UCX_", "FI_"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    "OMP_NUM_THREADS",
)
"""Beginnings of names; a name stands for itself as well. Everything else is the image's and the user's."""
_DESTINATION = re.compile(r"\b(?:dst|destination|target)=([^,]+)")
_MOUNTS = ("--volume", "--mount", "-v")
"""Options of podman, their value in the same word or in the next."""
_APPTAINER = frozenset({"apptainer", "singularity"})
_NEVER = {
    "--name": "each rank has a container of its own, and the launcher names it",
    "--detach": "the rank would have ended at once",
    "-d": "the rank would have ended at once",
    "--pod": "a gang needs the network of its nodes",
    "--tty": "ranks have no terminal",
    "-t": "ranks have no terminal",
    "-it": "ranks have no terminal",
}


class ContainerError(Exception):
    """The message has what cannot be done in a container, and what to do."""


@dataclass(frozen=True, slots=True)
class Container:
    engine: str
    before: tuple[str, ...]
    """The engine's program, its own options, and what it is to do: `podman run`."""
    options: tuple[str, ...]
    """The user's, and the image. Where the program is not Python, the program too."""
    program: tuple[str, ...]

    @property
    def is_podman(self) -> bool:
        return self.engine == "podman"

    @property
    def python(self) -> PythonProgram | None:
        return parse_python(self.program)


def parse_container(command: Sequence[str]) -> Container | None:
    """None: it is no container's. The image is not looked for, because that takes all options of the engine: Python
    programs are recognized by their interpreter, and others stay with the options. Raises ContainerError.
    """
    engine = command[0].rpartition("/")[2] if command else ""
    if engine == "docker":
        raise ContainerError(
            "docker: its daemon starts containers outside of the job, where neither Slurm nor the launcher ends them: "
            "use podman or Apptainer"
        )
    verbs = ("run",) if engine == "podman" else ("exec", "run") if engine in _APPTAINER else ()
    at = next((at for at, word in enumerate(command) if at and word in verbs), 0)
    if not at:
        return None
    rest = command[at + 1 :]
    starts = (one for one in range(1, len(rest)) if not rest[one - 1].startswith("--e") and parse_python(rest[one:]))
    program = next(starts, len(rest))
    for word in rest[:program]:
        if engine == "podman" and (reason := _NEVER.get(word.partition("=")[0])):
            raise ContainerError(f"podman run {word}: {reason}; leave it out")
    return Container(engine, tuple(command[: at + 1]), tuple(rest[:program]), tuple(rest[program:]))


@dataclass(frozen=True, slots=True)
class Inside:
    """What a container is given besides the user's options."""

    name: str
    """Name of podman's container, one on its node."""
    folders: Sequence[str]
    """Mounted where they are, if they are there."""
    files: Sequence[str]
    """The same, to be read alone."""
    descriptors: int
    """Number of descriptors, from FIRST_DESCRIPTOR on."""
    limits: Mapping[str, tuple[int, int]]
    """Name of a limit → soft and hard."""


def for_inside(environment: Mapping[str, str]) -> dict[str, str]:
    """What of a rank's environment goes into its container."""
    kept = {
        name: value for name, value in environment.items() if name.startswith(PASSED_ON) and name != SECRET_VARIABLE
    }
    return kept | {INSIDE_VARIABLE: "1"}


def arguments(
    container: Container, program: Sequence[str], environment: Mapping[str, str], inside: Inside
) -> list[str]:
    """The command line. The user's options follow: where podman takes one value only, the last one counts."""
    if not container.is_podman:
        return [*container.before, *container.options, *program]
    folders = [one for one in inside.folders if not any(is_below(one, place) for place in _mounted(container.options))]
    mounts = [f"--volume={one}:{one}" for one in folders] + [f"--volume={one}:{one}:ro" for one in inside.files]
    return [
        *(*container.before, "--rm", f"--name={inside.name}"),
        # The gang meets on the host's network. In the job's cgroup Slurm limits, counts and ends what runs.
        *("--network=host", "--ipc=host", "--cgroups=disabled", "--log-driver=none"),
        *(f"--ulimit={name}={soft}:{hard}" for name, (soft, hard) in inside.limits.items()),
        f"--preserve-fds={inside.descriptors}",
        *mounts,
        *(f"--env={name}" for name in for_inside(environment)),
        *container.options,
        *program,
    ]


def _mounted(options: Sequence[str]) -> list[str]:
    """Places of the user's own mounts: podman takes none twice."""
    found: list[str] = []
    for before, option in pairwise(("", *options)):
        own = next((name for name in _MOUNTS if option.startswith(name)), None)
        if own is None and before not in _MOUNTS:
            continue
        value = option[len(own) :].removeprefix("=") if own is not None else option
        named = _DESTINATION.search(value)
        found += [named[1]] if named else value.split(":")[1:2]
    return [place for place in found if place.startswith("/")]


def environment_of_engine(container: Container, environment: Mapping[str, str], inside: Inside) -> dict[str, str]:
    """Environment of the engine's process. Podman takes the values of `--env=NAME` from it. Apptainer passes all on,
    but with --cleanenv only those with a prefix, and takes mounts from it.
    """
    found = {**environment, INSIDE_VARIABLE: "1"}
    if container.is_podman:
        return found
    prefix = container.engine.upper()
    bound = found.get(f"{prefix}_BIND", "")
    mounts = [*filter(None, [bound]), *inside.folders, *(f"{one}:{one}:ro" for one in inside.files)]
    found |= {f"{prefix}ENV_{name}": value for name, value in for_inside(environment).items()}
    return found | {f"{prefix}_BIND": ",".join(mounts)}


def is_monitor_of(command_line: bytes, name: str) -> bool:
    """True if this is conmon of podman's container: below it, and not below podman, runs the rank."""
    words = command_line.split(b"\0")
    return Path(words[0].decode(errors="replace")).name == "conmon" and name.encode() in words
