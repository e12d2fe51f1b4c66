"""What a user's command line is: a Python program that can be kept warm, or anything else. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PYTHON = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?)?$")
_FLAG = re.compile(r"-[bBdEhiIOPqsSuvx]+$")
_FLAGS_WITH_VALUE = ("-W", "-X")
TORCHRUN = ("-m", "torch.distributed.run")


@dataclass(frozen=True, slots=True)
class PythonProgram:
    """`interpreter flags… script arguments…`, or `interpreter flags… -m module arguments…`."""

    interpreter: str
    flags: tuple[str, ...]
    module: bool
    target: str
    arguments: tuple[str, ...]


def parse_python(command: Sequence[str]) -> PythonProgram | None:
    """None where it is no Python program, or one written in a way that is not understood: then it is run as it is."""
    if not command or not _PYTHON.match(command[0]):
        return None
    flags: list[str] = []
    rest = list(command[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        flag = rest.pop(0)
        if flag in _FLAGS_WITH_VALUE and rest:
            flags += [flag, rest.pop(0)]
        elif _FLAG.match(flag) or flag.startswith(_FLAGS_WITH_VALUE):
            flags.append(flag)
        else:
            return None
    module = bool(rest) and rest[0] == "-m"
    if module:
        rest.pop(0)
    if not rest or rest[0] == "-":
        return None
    return PythonProgram(command[0], tuple(flags), module, rest[0], tuple(rest[1:]))


GROUP_OPTIONS = {
    "tensor-model-parallel-size": "tp",
    "tensor-parallel-size": "tp",
    "context-parallel-size": "cp",
    "expert-model-parallel-size": "ep",
    "pipeline-model-parallel-size": "pp",
    "pipeline-parallel-size": "pp",
}
"""Options of training programs, as Megatron names them, and the group of ranks of which they are the size."""


def group_sizes(command: Sequence[str]) -> str:
    """Sizes above 1 that the command names, as "--tensor-model-parallel-size 8": "tp=8"."""
    found: dict[str, str] = {}
    for i, argument in enumerate(command):
        name, equals, value = argument.removeprefix("--").replace("_", "-").partition("=")
        size = value if equals else "".join(command[i + 1 : i + 2])
        if argument.startswith("--") and name in GROUP_OPTIONS and re.fullmatch(r"[1-9]\d{0,5}", size) and size != "1":
            found[GROUP_OPTIONS[name]] = size
    return " ".join(f"{group}={size}" for group, size in found.items())


@dataclass(frozen=True, slots=True)
class Meeting:
    """The rendezvous of a launch: address, port and size."""

    nodes: int
    node_rank: int
    processes: int
    address: str
    port: int


def torchrun(command: Sequence[str], meeting: Meeting, output: Sequence[str] = ()) -> list[str]:
    """The command as one torchrun on this node. Restarts are the launcher's: torchrun's own are switched off.
    `output`: its options for what ranks write.
    """
    program = parse_python(command)
    if program is None:
        start, target = ["python3"], list(command)
    else:
        start = [program.interpreter, *program.flags]
        target = [*(["--module"] if program.module else []), program.target, *program.arguments]
    return [
        *start,
        *TORCHRUN,
        f"--nnodes={meeting.nodes}",
        f"--nproc-per-node={meeting.processes}",
        f"--node-rank={meeting.node_rank}",
        f"--master-addr={meeting.address}",
        f"--master-port={meeting.port}",
        "--max-restarts=0",
        *output,
        *target,
    ]
