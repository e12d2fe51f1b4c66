"""Rank and job of this process, from the environment that torchrun or Slurm sets."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

DEFAULT_SOCKET = "/run/understudy/agent.sock"
RUN_CHARACTERS_MAX = 255
FOLDER_CHARACTERS_MAX = 2048
ARGUMENTS_CHARACTERS = 16


class Identity(NamedTuple):
    job_id: int
    restart_count: int
    rank: int
    world_size: int
    launch: int = 0
    run: str = ""
    """Name of the run to which the job belongs; it outlives jobs."""
    run_folder: str = ""
    """Folder of the run, if it goes by the job's name; empty: a user named the run."""
    arguments: str = ""
    """A sum of the program's name and arguments: another experiment has others. Empty: not known."""


class IdentityError(Exception):
    """The environment does not name the rank; the message lists what is missing."""


def read_identity(environment: Mapping[str, str], command: Sequence[str] = ()) -> Identity:
    """`command` is sys.argv. Raises IdentityError."""
    run, folder = _run(environment)
    return Identity(
        job_id=_number(environment, ("SLURM_JOB_ID",)),
        restart_count=_number(environment, ("SLURM_RESTART_COUNT",), default=0),
        rank=_number(environment, ("RANK", "SLURM_PROCID")),
        world_size=_number(environment, ("WORLD_SIZE", "SLURM_NTASKS")),
        launch=_number(environment, ("UNDERSTUDY_LAUNCH",), default=0),
        run=run,
        run_folder=folder,
        arguments=arguments_of(command, environment),
    )


OF_MEETING = re.compile(
    r"port|(master|main-process)-(addr|address|ip|port)|rdzv-.+|(dist-)?init-(method|addr)|dist-(url|addr|port)"
)
"""Options that say where the ranks meet, and not what they train."""
OF_PLACE = re.compile(r"((local|node|machine|global|world)-)?rank|gpu(-id)?|device-id|(node|local|proc|process)-id")
"""Options that say where this process runs, if the value is its own number: LoRA has a rank, too."""
OWN_NUMBERS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")
OF_RESUMING = re.compile(r"resume(-(from|path|step|id))?|resume-(from-)?(checkpoint|ckpt)")
"""A job that continues has them, and the first one does not."""
RESUMES = ("auto-resume", "resume-training")
"""Such options without a path."""
RESUME_WORD = re.compile(r"\d*|true|false|yes|no|none|auto|last|latest|best", re.IGNORECASE)
OF_CHECKPOINT = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".pkl", ".safetensors")
OF_CONFIGURATION = (".yaml", ".yml", ".json", ".toml", ".py")


def arguments_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """A sum by which two jobs of one name and folder are known to be different experiments; empty: not known. It is the
    same for the jobs of a chain: their ids in it do not count, nor where they run, nor an option to resume.
    """
    if not command or not command[0]:
        return ""
    jobs = filter(None, (environment.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID")))
    ids = re.compile(rf"(?<!\d)({'|'.join(map(re.escape, jobs)) or '(?!)'})(?!\d)")
    own = [environment[name] for name in OWN_NUMBERS if environment.get(name)]
    kept, words = [os.path.basename(command[0])], _as_begun(command[1:], environment)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if equals or not word.startswith("-"):
            left_out = bool(equals) and _is_of_one_job(name, value, own)
        elif words and not words[0].startswith("-") and _is_of_one_job(name, words[0], own):
            left_out = bool(words.pop(0))
        else:
            left_out = _is_of_one_job(name, "", own)
        if not left_out:
            kept.append(ids.sub("ID", word))
    return hashlib.sha256("\0".join(kept).encode("utf-8", "surrogateescape")).hexdigest()[:ARGUMENTS_CHARACTERS]


APPENDED_VARIABLE = "UNDERSTUDY_APPENDED_ARGUMENTS"
"""What the launcher has appended to the command of this launch, as JSON: the first one went without."""


def _as_begun(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    try:
        appended = json.loads(environment.get(APPENDED_VARIABLE, "[]"))
    except ValueError:
        appended = None
    count = len(appended) if isinstance(appended, list) else 0
    return list(words[:-count] if count and list(words[-count:]) == appended else words)


def _is_of_one_job(option: str, value: str, own: Sequence[str]) -> bool:
    """Another job, or rank, of the same experiment has another value, or none. `own`: numbers of this process."""
    name = option.lstrip("-+~").rpartition(".")[2].lower().replace("_", "-")
    if OF_PLACE.fullmatch(name):
        return value in own
    if OF_RESUMING.fullmatch(name):
        path = ("/" in value or value.endswith(OF_CHECKPOINT)) and not value.endswith(OF_CONFIGURATION)
        return path or bool(RESUME_WORD.fullmatch(value))
    if name in RESUMES:
        return bool(RESUME_WORD.fullmatch(value))
    return bool(OF_MEETING.fullmatch(name)) or (name, value) == ("init-from", "resume")


CGROUP = "/proc/self/cgroup"
SLURMSTEPD = "slurmstepd"
PARENTS_MAX = 64
OF_JOB = ("SLURM_JOB", "SLURM_STEP", "SLURM_PROCID", "SLURM_NODEID", "SLURMD_NODENAME")
"""What Slurm sets for a job's processes starts so."""


def is_outside(environment: Mapping[str, str], socket: str) -> bool:
    """True where no Slurm job is, as on a workstation. A rank whose launcher did not pass on Slurm's variables is in
    its job's control group, below slurmstepd (enroot hides the group alone) or beside an agent: it would write over
    what its job has saved.
    """
    if any(name.startswith(OF_JOB) for name in environment) or os.path.exists(socket):
        return False
    groups = _control_groups()
    return "slurm" not in groups and "job_" not in groups and not _is_below(SLURMSTEPD)


def hides_its_job() -> bool:
    """It is in a container of which neither control group nor parents show whether Slurm started it: podman, Docker."""
    return _control_groups().strip() == "0::/"


def _control_groups() -> str:
    try:
        with open(CGROUP, errors="replace") as lines:
            return lines.read()
    except OSError:  # no Linux
        return ""


def _is_below(name: str) -> bool:
    pid = os.getppid()
    for _ in range(PARENTS_MAX):
        try:
            with open(f"/proc/{pid}/status", errors="replace") as lines:
                fields = dict(line.rstrip("\n").split(":\t", 1) for line in lines if ":\t" in line)
        except OSError:
            return False
        if fields.get("Name") == name:
            return True
        pid = int(fields.get("PPid", "0"))
    return False


def launcher_restore_point(environment: Mapping[str, str]) -> tuple[int, str] | None:
    """Step and path that the launcher set for this launch because no control plane answers; None: ask the agent.

    In launch 0 the same variables may be set by Slurm's TaskProlog. Then a control plane answers.
    """
    step, path = environment.get("UNDERSTUDY_RESTORE_STEP", ""), environment.get("UNDERSTUDY_RESTORE_PATH", "")
    if environment.get("UNDERSTUDY_LAUNCH", "0") == "0" or not path or not step.isdecimal():
        return None
    return int(step), path


def socket_path(environment: Mapping[str, str], given: str | None) -> str:
    """`%n` stands for the node's name, for machines that play several nodes."""
    path = given or environment.get("UNDERSTUDY_SOCKET") or DEFAULT_SOCKET
    return path.replace("%n", environment.get("SLURMD_NODENAME", ""))


def _run(environment: Mapping[str, str]) -> tuple[str, str]:
    """Name and folder. Tasks of an array are different runs, unless a user names their run."""
    named = environment.get("UNDERSTUDY_RUN", "")
    if named:
        return named[:RUN_CHARACTERS_MAX], ""
    name, folder = environment.get("SLURM_JOB_NAME", ""), environment.get("SLURM_SUBMIT_DIR", "")
    if not name or not folder or len(folder) > FOLDER_CHARACTERS_MAX:
        return "", ""
    task = environment.get("SLURM_ARRAY_TASK_ID", "")
    return (f"{name}[{task}]" if task else name)[:RUN_CHARACTERS_MAX], folder


def _number(environment: Mapping[str, str], names: tuple[str, ...], default: int | None = None) -> int:
    for name in names:
        text = environment.get(name)
        if text:
            if not text.isdecimal():
                raise IdentityError(f"{name}={text} is not a number")
            return int(text)
    if default is None:
        raise IdentityError(f"{' or '.join(names)} is not set")
    return default
