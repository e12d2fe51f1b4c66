"""`understudy install-hooks`: puts the hook scripts where Slurm can run them, and shows the diff that slurm.conf needs.
`--check` compares, `--uninstall` deletes them, `--edit-slurm-conf` writes what the diff shows.

It can be run again: each file is replaced as a whole and is never missing in between, because Slurm drains a node whose
Prolog it cannot find.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from importlib.resources import files
from pathlib import Path

from understudy_agent.hooks.slurm_conf import (
    PARAMETERS,
    SlurmConf,
    SlurmConfError,
    calls,
    merged,
    read,
    site_scripts,
    with_site,
)
from understudy_agent.hooks.slurm_conf import problems as slurm_conf_problems
from understudy_agent.own_files import create_directory, replace_file

DIRECTORY = Path("/etc/slurm/understudy")
RUN_DIRECTORY = "/run/understudy"
SLURM_CONF = Path("/etc/slurm/slurm.conf")
CONFIGLESS = Path("/run/slurm/conf/slurm.conf")
"""slurmd's copy of what slurmctld has, where the node has no file of its own."""

ALL_RUN_SINCE = (24, 5)
BEFORE = ".before-understudy"
ROOT = (0, 0)

SCRIPTS = {
    "prolog": 0o755,
    "health_check": 0o755,
    "epilog": 0o755,
    "task_prolog": 0o755,
    "first_selfcheck": 0o755,
    "restore_point.py": 0o644,
}
_PATH = re.compile(r"/[A-Za-z0-9_.+@%/-]*")


class InstallError(Exception):
    """The hooks were not installed, or only in part; the message has the cause and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.check:
            return _check(options)
        if options.uninstall:
            return _uninstall(options)
        if options.edit_slurm_conf:
            return _edit(options.slurm_conf, options.directory)
        socket = options.socket or f"{options.run_directory}/agent.sock"
        install(options.directory, options.run_directory, socket, options.slurm_conf)
        sys.stdout.write(advice(options.directory, options.slurm_conf))
    except (InstallError, SlurmConfError, OSError) as error:
        sys.stderr.write(f"understudy install-hooks: {error}\n")
        return 1
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
        default=_default_slurm_conf(),
        help=f"slurm.conf to compare with; default: $SLURM_CONF, {SLURM_CONF}, or {CONFIGLESS}",
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
    either.add_argument(
        "--edit-slurm-conf",
        action="store_true",
        help=f"write the lines for the hooks into slurm.conf; the file before stays as slurm.conf{BEFORE}",
    )
    return parser


def _default_slurm_conf() -> Path:
    if named := os.environ.get("SLURM_CONF"):
        return Path(named)
    return CONFIGLESS if CONFIGLESS.exists() and not SLURM_CONF.exists() else SLURM_CONF


def _check(options: argparse.Namespace) -> int:
    found = problems(options.directory, options.slurm_conf)
    for problem in found:
        sys.stdout.write(f"{problem}\n")
    if not found:
        sys.stdout.write(f"{options.directory}: all hooks are installed, and {options.slurm_conf} names them\n")
    return 1 if found else 0


def problems(directory: Path, slurm_conf: Path) -> list[str]:
    """What is missing for the hooks, and for the site's own programs, to run."""
    missing = [name for name in SCRIPTS if not (directory / name).is_file()]
    found = [f"{directory}: {', '.join(missing)} missing; run `understudy install-hooks`"] if missing else []
    try:
        conf = _read(slurm_conf)
        wrong = [*slurm_conf_problems(conf, directory), *_old_site_scripts(conf, directory)]
    except SlurmConfError as error:
        return [*found, str(error)]
    if wrong:
        wrong += ["what to do: `understudy install-hooks` here, which also shows what to change in slurm.conf"]
    return [*found, *wrong]


def _old_site_scripts(conf: SlurmConf, directory: Path) -> list[str]:
    """Raises SlurmConfError."""
    scripts = site_scripts(conf, directory)
    found = []
    for path in (with_site(key, directory) for key in PARAMETERS if _names(conf, with_site(key, directory))):
        present = path.read_text(encoding="utf-8") if path.is_file() else ""
        if not present:
            found.append(f"{conf.main} names {path}, which is missing: Slurm drains this node, or fails its tasks")
        elif path in scripts and present != scripts[path]:
            found.append(f"{path} runs another program of the site than {conf.main} has")
    return found


def _names(conf: SlurmConf, path: Path) -> bool:
    return any(line.value == str(path) and not line.set_aside for line in conf.lines)


def _read(slurm_conf: Path) -> SlurmConf:
    """Raises SlurmConfError."""
    if not os.access(slurm_conf, os.R_OK):
        return read(slurm_conf, None)  # which raises: without the file scontrol asks the network for one, for 30 s
    command = ["scontrol", "--version"]
    environment = {**os.environ, "SLURM_CONF": str(slurm_conf)}  # scontrol prints no version without one
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
        version = re.search(r"(\d+)\.(\d+)", done.stdout)
    except (OSError, subprocess.TimeoutExpired):
        version = None
    return read(slurm_conf, (int(version[1]), int(version[2])) >= ALL_RUN_SINCE if version else None)


def _uninstall(options: argparse.Namespace) -> int:
    """Raises InstallError, SlurmConfError, OSError."""
    directory: Path = options.directory
    if any((directory / name).exists() for name in SCRIPTS):
        _check_unused(directory, options.slurm_conf)
    for path in (*(directory / name for name in SCRIPTS), *(with_site(key, directory) for key in PARAMETERS)):
        path.unlink(missing_ok=True)
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()
    sys.stdout.write(f"{directory}: no hooks are installed\n")
    return 0


def _check_unused(directory: Path, slurm_conf: Path) -> None:
    """Slurm drains a node whose Prolog is missing. Raises InstallError, SlurmConfError."""
    active = [line for line in _read(slurm_conf).lines if line.key in PARAMETERS and not line.set_aside]
    using = [line.value for line in active if Path(line.value).parent == directory or calls(line.value, directory)]
    if using:
        raise InstallError(
            f"{slurm_conf} still names {', '.join(using)}: Slurm drains a node whose Prolog is missing; remove these "
            "lines on all hosts, or the calls in your own scripts, run `scontrol reconfigure`, and repeat this"
        )


def install(
    directory: Path,
    run_directory: str,
    socket: str,
    slurm_conf: Path | None = None,
    python: str = sys.executable,
) -> None:
    """Raises InstallError, SlurmConfError, OSError."""
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
        replace_file(directory / name, text.encode(), mode, durable=True, owner=ROOT)
    if slurm_conf is not None and slurm_conf.exists():
        for script, text in site_scripts(_read(slurm_conf), directory).items():
            replace_file(script, text.encode(), 0o755, durable=True, owner=ROOT)


def advice(directory: Path, slurm_conf: Path) -> str:
    """What to change in slurm.conf, as a diff. Raises SlurmConfError."""
    text = f"installed in {directory}: {', '.join(SCRIPTS)}\n\n"
    if not slurm_conf.exists():
        conf = SlurmConf(slurm_conf, {slurm_conf: []}, (), None)
        lines = "".join(f"  {line}" for line in merged(conf, directory)[slurm_conf])
        return (
            f"{text}{slurm_conf} is not here: no script was written that also runs a program of the site.\n"
            f"If slurm.conf names any, name a copy of it with --slurm-conf. If not, it needs:\n\n{lines}"
        )
    conf = _read(slurm_conf)
    changed = merged(conf, directory)
    if not changed:
        return f"{text}{slurm_conf} has all lines that the hooks need\n"
    return (
        f"{text}slurm.conf needs this change. A site's programs and flags stay in force: each *_with_site runs both.\n"
        "When the files are on every node, `understudy install-hooks --edit-slurm-conf` writes it on the host of\n"
        f"slurm.conf (on all hosts, where each has a copy); then `scontrol reconfigure`.\n\n{_diff(conf, changed)}\n"
        "Install the files on every node before slurm.conf names them: Slurm drains a node whose Prolog is missing.\n"
        "Remove the lines from slurm.conf, on all nodes, before you delete the files.\n"
    )


def _diff(conf: SlurmConf, changed: Mapping[Path, list[str]]) -> str:
    found: list[str] = []
    for file, lines in changed.items():
        found += unified_diff(conf.texts[file], lines, str(file), f"{file} with the hooks")
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in found).encode(errors="replace").decode()


def _edit(slurm_conf: Path, directory: Path) -> int:
    """Raises InstallError, SlurmConfError, OSError."""
    if slurm_conf == CONFIGLESS:
        raise InstallError(f"{slurm_conf} is slurmd's copy; run this on the host of slurmctld, with its slurm.conf")
    conf = _read(slurm_conf)
    changed = merged(conf, directory)
    site_scripts(conf, directory)  # a script that no node could write must not be named
    for file, lines in changed.items():
        real = file.resolve()
        before = real.with_name(real.name + BEFORE)
        if not before.exists():
            shutil.copy2(real, before)
        status = real.stat()
        text = "".join(lines).encode("utf-8", "surrogateescape")
        owner = (status.st_uid, status.st_gid)
        replace_file(real, text, stat.S_IMODE(status.st_mode), durable=True, owner=owner)
    sys.stdout.write(_diff(conf, changed) or f"{conf.main}: has all lines that the hooks need; nothing was changed\n")
    if changed:
        sys.stdout.write(
            "\nBefore `scontrol reconfigure`, run `understudy install-hooks` on every node: Slurm drains a node whose\n"
            "Prolog is missing.\n"
        )
    return 0


def _for_node(path: str) -> str:
    return path.replace("%n", "${SLURMD_NODENAME}")


def _check_python(python: str) -> None:
    """The TaskProlog runs as the job's user."""
    closed = [folder for folder in Path(python).resolve().parents if not folder.stat().st_mode & stat.S_IXOTH]
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
    for folder in directory.resolve().parents:
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


if __name__ == "__main__":
    sys.exit(main())
