"""The versions of Slurm that a testbed can run: this machine's own, and others in folders with a Debian of their own.

Belongs here: where they are, and how a command is run in one. Must not: making them (`slurm_versions.sh`).

A folder's programs need /proc, /dev and the cluster's directory below their root. Those are mounted in a mount
namespace of the cluster's own: it ends with the cluster's last process, and nothing stays mounted.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOTS = Path(os.environ.get("SLURM_ROOTS", "/var/tmp/understudy-slurm"))  # noqa: S108 - survives a reboot, as it should

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Path within a namespace."""

CLIENTS = ("scontrol", "squeue", "sinfo", "sbatch", "scancel", "srun", "sprio")
"""Programs that others than the testbed call by name."""


@dataclass(frozen=True, slots=True)
class Installation:
    slurm: str
    """Major version, as in "24.11"."""
    root: Path | None = None
    """The folder with it; None: this machine's own packages."""
    pyslurm_python: str = ""
    """A Python in there that can import pyslurm; empty: there is none."""
    settings: tuple[str, ...] = ()
    """Lines for its slurm.conf."""


NATIVE = Installation("22.05")
DEBIAN_13 = Installation("24.11", ROOTS / "24.11")
DEBIAN_14 = Installation("26.05", ROOTS / "26.05", pyslurm_python="/opt/pyslurm/bin/python")
ALL = (NATIVE, DEBIAN_13, DEBIAN_14)


def open_namespace(root: Path, directory: Path) -> list[str]:
    """A command that ends never: in its mount namespace `root` holds what programs there need."""
    mounts = [f'mount -t tmpfs tmpfs "{root}{place}"' for place in ("/tmp", "/var/tmp")]  # noqa: S108
    mounts.append(f'mkdir -p "{root}{directory}"')
    mounts += [
        f'mount --rbind "{place}" "{root}{place}"' for place in ("/proc", "/dev", "/sys", "/etc/hosts", str(directory))
    ]
    script = " && ".join([*mounts, f'exec chroot "{root}" sleep infinity'])
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]


def enter(holder: int, arguments: Sequence[str], user: str | None = None, cwd: Path | None = None) -> list[str]:
    """The same command within the namespaces of the process `holder`, as that user, in that directory."""
    entry = pwd.getpwnam(user) if user else None
    identity = [f"--setuid={entry.pw_uid}", f"--setgid={entry.pw_gid}"] if entry else []
    return [*_nsenter(holder), "--net", "--uts", f"--wdns={cwd or '/'}", *identity, "--", *arguments]


def join(machine: int, arguments: Sequence[str]) -> list[str]:
    """The same command on the node that the process `machine` holds, with this machine's programs and files."""
    return ["nsenter", f"--target={machine}", "--net", "--uts", "--", *arguments]


def join_mounts(holder: int, arguments: Sequence[str]) -> list[str]:
    """The same command where another version's folder is complete, but not below that folder."""
    return ["nsenter", f"--target={holder}", "--mount", "--wd=/", "--", *arguments]


def write_clients(directory: Path, namespace: int) -> None:
    """Programs of the clients' names that run the real ones within the namespace, for callers outside it."""
    directory.mkdir(exist_ok=True)
    for name in CLIENTS:
        path = directory / name
        path.write_text(f'#!/bin/sh\nexec {" ".join(_nsenter(namespace))} --wdns=/ -- /usr/bin/{name} "$@"\n')
        path.chmod(0o755)


def write_pyslurm_python(path: Path, namespace: int, python: str) -> None:
    """The same for the Python that has pyslurm."""
    path.write_text(f'#!/bin/sh\nexec {" ".join(_nsenter(namespace))} --wdns=/ -- {python} "$@"\n')
    path.chmod(0o755)


def _nsenter(holder: int) -> list[str]:
    return ["nsenter", f"--target={holder}", "--mount", "--root"]
