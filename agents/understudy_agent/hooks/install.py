"""`understudy install-hooks`: puts the hook scripts where Slurm can run them, and prints what slurm.conf needs.
`--check` compares, `--uninstall` deletes them.

It never changes slurm.conf. It can be run again: each file is replaced as a whole and is never missing in between,
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

from understudy_agent.own_files import create_directory

DIRECTORY = Path("/etc/slurm/understudy")
RUN_DIRECTORY = "/run/understudy"
SLURM_CONF = Path("/etc/slurm/slurm.conf")

SCRIPTS = {
    "prolog": 0o755,
    "health_check": 0o755,
    "epilog": 0o755,
    "task_prolog": 0o755,
    "first_selfcheck": 0o755,
    "restore_point.py": 0o644,
}
PARAMETERS = {
    "Prolog": "prolog",
    "Epilog": "epilog",
    "TaskProlog": "task_prolog",
    "HealthCheckProgram": "health_check",
}
HEALTH_CHECK_LINE = "HealthCheckInterval=60"
PROLOG_FLAGS_LINE = "PrologFlags=Alloc"
ALLOC_FLAGS = {"alloc", "contain", "x11", "forcerequeueonfail"}
"""With each of these flags the Prolog runs on every node of a job before the job begins."""

_PATH = re.compile(r"/[A-Za-z0-9_.+@%/-]*")
_SETTING = re.compile(
    rf"^\s*({'|'.join([*PARAMETERS, 'HealthCheckInterval', 'PrologFlags'])})\s*=\s*([^\s#]+)",
    re.IGNORECASE | re.MULTILINE,
)


class InstallError(Exception):
    """The hooks were not installed, or only in part; the message has the cause and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.check or options.uninstall:
            return _uninstall(options) if options.uninstall else _check(options)
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
    parser.add_argument(
        "--directory", type=Path, default=DIRECTORY, help=f"where to install the scripts; default: {DIRECTORY}"
    )
    parser.add_argument(
        "--run-directory",
        default=RUN_DIRECTORY,
        help=f"run_directory of the agent; %%n stands for the node's name; default: {RUN_DIRECTORY}",
    )
    parser.add_argument("--socket", default="", help="socket of the agent; default: agent.sock in the run directory")
    parser.add_argument(
        "--slurm-conf",
        type=Path,
        default=SLURM_CONF,
        help=f"slurm.conf to compare with, only read; default: {SLURM_CONF}",
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit with 1 where files or lines of slurm.conf are missing",
    )
    either.add_argument(
        "--uninstall", action="store_true", help="delete the scripts, where slurm.conf does not name them any more"
    )
    return parser


def _check(options: argparse.Namespace) -> int:
    found = problems(options.directory, options.slurm_conf)
    for problem in found:
        sys.stdout.write(f"{problem}\n")
    if not found:
        sys.stdout.write(f"{options.directory}: all hooks are installed, and {options.slurm_conf} names them\n")
    return 1 if found else 0


def problems(directory: Path, slurm_conf: Path) -> list[str]:
    """What is missing for the hooks to run. A site's own script may call them: then it is named, to be looked at."""
    missing = [name for name in SCRIPTS if not (directory / name).is_file()]
    found = [f"{directory}: {', '.join(missing)} missing; run `understudy install-hooks`"] if missing else []
    present = read_settings(slurm_conf)
    if present is None:
        return [*found, f"{slurm_conf}: cannot be read; name slurm.conf with --slurm-conf"]
    for parameter, script in PARAMETERS.items():
        values = present.get(parameter.casefold(), [])
        if str(directory / script) not in values:
            named = f"names {', '.join(values)}, which has to call" if values else "does not name"
            found.append(f"{slurm_conf}: {parameter} {named} {directory / script}")
    return found


def _uninstall(options: argparse.Namespace) -> int:
    """Raises InstallError, OSError."""
    directory: Path = options.directory
    if any((directory / name).exists() for name in SCRIPTS):
        _check_unused(directory, options.slurm_conf)
    for name in SCRIPTS:
        (directory / name).unlink(missing_ok=True)
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()
    sys.stdout.write(f"{directory}: no hooks are installed\n")
    return 0


def _check_unused(directory: Path, slurm_conf: Path) -> None:
    """Slurm drains a node whose Prolog is missing. Raises InstallError."""
    present = read_settings(slurm_conf)
    if present is None:
        raise InstallError(f"{slurm_conf} cannot be read; name the file that slurmd uses with --slurm-conf")
    scripts = [Path(value) for name in PARAMETERS for value in present.get(name.casefold(), [])]
    using = [str(one) for one in scripts if one.parent == directory or _calls(one, directory)]
    if using:
        raise InstallError(
            f"{slurm_conf} still names {', '.join(using)}: Slurm drains a node whose Prolog is missing; remove these "
            "lines on all hosts, or the calls in your own scripts, run `scontrol reconfigure`, and repeat this"
        )


def _calls(script: Path, directory: Path) -> bool:
    try:
        return f"{directory}/" in script.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False


def install(directory: Path, run_directory: str, socket: str, python: str = sys.executable) -> None:
    """Raises InstallError, OSError."""
    if os.geteuid() != 0:
        raise InstallError("not started as root: Slurm runs the hooks as root, so root must own them; run this as root")
    for name, path in (
        ("--directory", str(directory)),
        ("--run-directory", run_directory),
        ("--socket", socket),
        ("Python", python),
    ):
        if not _PATH.fullmatch(path) or "//" in path or ".." in path:
            raise InstallError(
                f"{name} {path!r}: not an absolute path of letters, digits and _.+@%-; choose another one"
            )
    _check_python(python)
    _check_safe(next(folder for folder in directory.parents if folder.exists()) / directory.name)
    create_directory(directory)
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
    """What to add to slurm.conf, compared with its present lines."""
    present = read_settings(slurm_conf)
    lines = [f"installed in {directory}: {', '.join(SCRIPTS)}", ""]
    if present is None:
        lines += [f"{slurm_conf} cannot be read here: the lines below do not take its settings into account.", ""]
    lines += ["slurm.conf needs these lines (this command never edits it), then `scontrol reconfigure`:", ""]
    for parameter, script in PARAMETERS.items():
        path = str(directory / script)
        others = [value for value in (present or {}).get(parameter.casefold(), []) if value != path]
        is_set = path in (present or {}).get(parameter.casefold(), [])
        if others:
            lines += [f"  # {parameter} is set already: {', '.join(others)}. Keep that script, and let it begin with:"]
            lines += [f"  #     {call}" for call in _call(parameter, path)]
        else:
            lines += [f"  {parameter}={path}" + ("    # is set already" if is_set else "")]
    if present is None or "healthcheckinterval" not in present:
        lines += [f"  {HEALTH_CHECK_LINE}"]
    flags = (present or {}).get("prologflags", [])
    if not ALLOC_FLAGS & {flag.casefold() for flag in ",".join(flags).split(",")}:
        besides = f"    # in addition to {', '.join(flags)}" if flags else ""
        lines += [f"  {PROLOG_FLAGS_LINE}{besides}"]
    return [
        *lines,
        "",
        "Install the files on every node before slurm.conf names them: Slurm drains a node whose Prolog is missing.",
        "Remove the lines from slurm.conf, on all nodes, before you delete the files.",
    ]


def _call(parameter: str, path: str) -> list[str]:
    """How a site's own script calls Understudy's. Slurm 22.05 uses the last of several Prolog= lines, and no list."""
    if parameter == "TaskProlog":
        return [path]  # Slurm reads what it prints
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
            f"understudy install-hooks: note: {closed[0] if closed else python} is closed to users, so jobs "
            "do not get their restore point in the environment; install Understudy where all users can run it\n"
        )
        return
    done = subprocess.run(
        [python, "-I", "-S", "-c", "import json, socket"], capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode != 0:
        raise InstallError(f"{python} does not run: {done.stderr.strip()[:500]}")


def _check_safe(directory: Path) -> None:
    """A user who can write to a folder above it becomes root with the next job; and a job whose user cannot reach the
    TaskProlog fails. Raises InstallError.
    """
    for folder in _above(directory):
        status = folder.stat()
        if status.st_uid != 0:
            raise InstallError(f"{folder} is owned by user {status.st_uid}, not by root; choose another --directory")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
            raise InstallError(
                f"users other than root can write to {folder}; change its mode, or choose another --directory"
            )
        if not status.st_mode & stat.S_IXOTH:
            raise InstallError(
                f"users cannot enter {folder}, and the TaskProlog runs as the user; choose another --directory"
            )


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
