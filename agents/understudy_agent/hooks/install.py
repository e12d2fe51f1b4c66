"""`understudy install-hooks`: puts the hook scripts where Slurm can run them, and says what slurm.conf needs.

slurm.conf itself is never touched. Can be run again: each file is replaced as a whole, and never missing in between,
because Slurm drains a node whose Prolog it cannot find.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

DIRECTORY = Path("/etc/slurm/understudy")
RUN_DIRECTORY = "/run/understudy"
SLURM_CONF = Path("/etc/slurm/slurm.conf")

SCRIPTS = {"prolog": 0o755, "health_check": 0o755, "epilog": 0o755, "task_prolog": 0o755, "restore_point.py": 0o644}
PARAMETERS = {
    "Prolog": "prolog",
    "Epilog": "epilog",
    "TaskProlog": "task_prolog",
    "HealthCheckProgram": "health_check",
}
HEALTH_CHECK_LINE = "HealthCheckInterval=60"
PROLOG_FLAGS_LINE = "PrologFlags=Alloc"
ALLOC_FLAGS = {"alloc", "contain", "x11", "forcerequeueonfail"}
"""Each of these is, or implies, that the Prolog runs on every node of a job before it begins."""

_PATH = re.compile(r"/[A-Za-z0-9_.+@%/-]*")
_SETTING = re.compile(
    rf"^\s*({'|'.join([*PARAMETERS, 'HealthCheckInterval', 'PrologFlags'])})\s*=\s*([^\s#]+)",
    re.IGNORECASE | re.MULTILINE,
)


class InstallError(Exception):
    """Nothing, or not everything, was installed; the message says why and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        install(options.directory, options.run_directory, options.socket or f"{options.run_directory}/agent.sock")
    except (InstallError, OSError) as error:
        sys.stderr.write(f"understudy install-hooks: {error}\n")
        return 1
    sys.stdout.write("\n".join(advice(options.directory, options.slurm_conf)) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="understudy install-hooks", description="Install Prolog, Epilog, TaskProlog and HealthCheckProgram."
    )
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help=f"where to; default: {DIRECTORY}")
    parser.add_argument(
        "--run-directory",
        default=RUN_DIRECTORY,
        help=f"run_directory of the agent; %%n stands for the node's name; default: {RUN_DIRECTORY}",
    )
    parser.add_argument("--socket", default="", help="socket of the agent; default: agent.sock in the run directory")
    parser.add_argument(
        "--slurm-conf", type=Path, default=SLURM_CONF, help=f"only read, to say what is set; default: {SLURM_CONF}"
    )
    return parser


def install(directory: Path, run_directory: str, socket: str, python: str = sys.executable) -> None:
    """Raises InstallError, OSError."""
    if os.geteuid() != 0:
        raise InstallError("Slurm runs the hooks as root, so root has to own them: run this as root")
    for name, path in (
        ("--directory", str(directory)),
        ("--run-directory", run_directory),
        ("--socket", socket),
        ("Python", python),
    ):
        if not _PATH.fullmatch(path) or "//" in path or ".." in path:
            raise InstallError(f"{name} {path!r}: an absolute path of letters, digits and _.+@%- is needed")
    _check_python(python)
    _check_safe(next(folder for folder in directory.parents if folder.exists()) / directory.name)
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    _check_safe(directory)
    os.chown(directory, 0, 0)
    directory.chmod(0o755)
    fillings = {
        "@RUN_DIRECTORY@": _for_node(run_directory),
        "@SOCKET@": _for_node(socket),
        "@DIRECTORY@": str(directory),
        "@PYTHON@": python,
    }
    for name, mode in SCRIPTS.items():
        text = (files(__package__) / "scripts" / name).read_text(encoding="utf-8")
        for placeholder, value in fillings.items():
            text = text.replace(placeholder, value)
        _replace(directory / name, text, mode)


def advice(directory: Path, slurm_conf: Path) -> list[str]:
    """What to add to slurm.conf, next to what is there."""
    present = read_settings(slurm_conf)
    lines = [f"installed in {directory}: {', '.join(SCRIPTS)}", ""]
    if present is None:
        lines += [f"{slurm_conf} cannot be read here, so what is set there is not known.", ""]
    lines += ["slurm.conf needs these lines (this command never edits it), then `scontrol reconfigure`:", ""]
    for parameter, script in PARAMETERS.items():
        path = str(directory / script)
        theirs = [value for value in (present or {}).get(parameter.casefold(), []) if value != path]
        ours = path in (present or {}).get(parameter.casefold(), [])
        if theirs:
            lines += [f"  # {parameter} is set already: {', '.join(theirs)}. Keep it, and begin it with:"]
            lines += [f"  #     {call}" for call in _call(parameter, path)]
        else:
            lines += [f"  {parameter}={path}" + ("    # is there already" if ours else "")]
    if present is None or "healthcheckinterval" not in present:
        lines += [f"  {HEALTH_CHECK_LINE}"]
    flags = (present or {}).get("prologflags", [])
    if not ALLOC_FLAGS & {flag.casefold() for flag in ",".join(flags).split(",")}:
        besides = f"    # besides {', '.join(flags)}" if flags else ""
        lines += [f"  {PROLOG_FLAGS_LINE}{besides}"]
    return [
        *lines,
        "",
        "Every node needs the files before slurm.conf names them: Slurm drains a node whose Prolog is not there.",
        "Take the lines out of slurm.conf, on all nodes, before you delete the files.",
    ]


def _call(parameter: str, path: str) -> list[str]:
    """How a site's own script calls ours. Slurm 22.05 takes the last of several Prolog= lines, and no list."""
    if parameter == "TaskProlog":
        return [path]  # what it prints is for Slurm
    if parameter == "Epilog":
        return [f"{path} || true"]
    return [f"{path} || exit 1"]


def read_settings(slurm_conf: Path) -> dict[str, list[str]] | None:
    """Parameter, in lower case → its values in order. None when the file cannot be read."""
    try:
        text = slurm_conf.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found: dict[str, list[str]] = {}
    for name, value in _SETTING.findall(text):
        found.setdefault(name.casefold(), []).append(value)
    return found


def _for_node(path: str) -> str:
    return path.replace("%n", "${SLURMD_NODENAME}")


def _check_python(python: str) -> None:
    """The TaskProlog runs as the job's user."""
    closed = [folder for folder in _above(Path(python)) if not folder.stat().st_mode & stat.S_IXOTH]
    if closed or not Path(python).resolve().stat().st_mode & stat.S_IXOTH:
        sys.stderr.write(
            f"understudy install-hooks: note: {closed[0] if closed else python} is closed to ordinary users, so jobs "
            "will not be told their restore point in the environment; install Understudy where all users can run it\n"
        )
        return
    done = subprocess.run(
        [python, "-I", "-S", "-c", "import json, socket"], capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode != 0:
        raise InstallError(f"{python} does not run: {done.stderr.strip()[:500]}")


def _check_safe(directory: Path) -> None:
    """Whoever can write above it becomes root with the next job; and a TaskProlog that the job's user cannot reach
    fails the job. Raises InstallError.
    """
    for folder in _above(directory):
        status = folder.stat()
        if status.st_uid != 0:
            raise InstallError(f"{folder} belongs to user {status.st_uid}, not to root; choose another --directory")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
            raise InstallError(f"others than root may write to {folder}; close it, or choose another --directory")
        if not status.st_mode & stat.S_IXOTH:
            raise InstallError(f"{folder} is closed to users, who run the TaskProlog; choose another --directory")


def _above(path: Path) -> Iterable[Path]:
    return path.resolve().parents


def _replace(path: Path, text: str, mode: int) -> None:
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fchown(file.fileno(), 0, 0)
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    unfinished.replace(path)


if __name__ == "__main__":
    sys.exit(main())
