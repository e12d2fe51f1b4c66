"""The process above a testbed's daemons: it starts them, collects their orphans and lets none outlive it.

Belongs here: that program, run as `python -m tests.testbed.supervise`. Must not: anything about Slurm.

Why a process of its own: Slurm's step daemons leave their parent on purpose. Here they come back to the
supervisor, which is a subreaper, so the whole testbed is one tree. Requests, one JSON object a line, come on
standard input; when that ends, because the testbed was stopped or because its process died of whatever cause,
SIGKILL included, the supervisor ends the tree and then itself.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import pwd
import select
import signal
import subprocess
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.testbed.processes import all_processes, become_subreaper, descendants, kill_all, read_process


def _start(request: dict[str, Any]) -> subprocess.Popen[bytes]:
    entry = pwd.getpwnam(request["user"]) if request["user"] else None
    with Path(request["log"]).open("ab") as log:
        return subprocess.Popen(
            # A killed supervisor runs no clean-up of its own: then the kernel ends its children.
            ["setpriv", "--pdeathsig", "KILL", "--", *request["arguments"]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=request["cwd"],
            env=request["environment"],
            user=entry.pw_uid if entry else None,
            group=entry.pw_gid if entry else None,
            extra_groups=[] if entry else None,
        )


_PR_SET_PDEATHSIG = 1  # linux/prctl.h
NAMESPACES = ("net", "uts")
"""What a node of the testbed has of its own (`tests.testbed.network`)."""


def _fork(request: dict[str, Any]) -> int:
    """Start a Python program whose module has `main(arguments) -> exit status`, with a node's network and host name.

    By a fork of this process, which has imported it: eight agents that start cost 0.8 s of processor time instead of
    three. Returns the process id.
    """
    program = importlib.import_module(request["module"]).main
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        _become(request)
        status = program(request["arguments"])
    finally:
        if sys.exception() is not None:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _become(request: dict[str, Any]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    for namespace in NAMESPACES:
        with Path(f"/proc/{request['machine']}/ns/{namespace}").open() as file:
            if libc.setns(file.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), f"setns({file.name})")
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with Path(os.devnull).open() as nothing, Path(request["log"]).open("ab") as log:
        for descriptor, standard in ((nothing.fileno(), 0), (log.fileno(), 1), (log.fileno(), 2)):
            os.dup2(descriptor, standard)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(request["environment"])


def _answer(line: bytes, programs: list[subprocess.Popen[bytes]]) -> dict[str, object]:
    try:
        request = json.loads(line)
        if "module" in request:
            pid = _fork(request)
        else:
            programs.append(_start(request))  # kept, or Python would wait for it on its own
            pid = programs[-1].pid
    except (OSError, KeyError, ValueError, ImportError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    process = read_process(pid)
    return {"process": asdict(process)} if process else {"error": "it ended at once"}


def _reap() -> None:
    """Collect ended processes: this one's children, and those that it inherited as subreaper."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def _end_tree() -> None:
    def below() -> list[Any]:
        _reap()
        processes = all_processes()
        return [processes[pid] for pid in descendants([os.getpid()], processes) - {os.getpid()}]

    kill_all(below)


def main() -> None:
    become_subreaper()
    wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    programs: list[subprocess.Popen[bytes]] = []
    received = b""
    while True:
        ready, _, _ = select.select([0, wakeup_read], [], [])
        if wakeup_read in ready:
            os.read(wakeup_read, 4096)
            _reap()
        if 0 in ready:
            piece = os.read(0, 65536)
            if not piece:
                break
            *lines, received = (received + piece).split(b"\n")
            for line in lines:
                sys.stdout.write(json.dumps(_answer(line, programs)) + "\n")
                sys.stdout.flush()
    _end_tree()


if __name__ == "__main__":
    main()
