"""The process above a testbed's daemons: it starts them, collects their orphans and lets none outlive it.

Belongs here: that program, run as `python -m tests.testbed.supervise`. Must not: anything about Slurm.

Why a process of its own: Slurm's step daemons leave their parent on purpose. Here they come back to the
supervisor, which is a subreaper, so the whole testbed is one tree. Requests, one JSON object a line, come on
standard input; when that ends, because the testbed was stopped or because its process died of whatever cause,
SIGKILL included, the supervisor ends the tree and then itself.
"""

from __future__ import annotations

import json
import os
import pwd
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.testbed.processes import all_processes, become_subreaper, descendants, kill_all, read_process


def _start(request: dict[str, Any]) -> subprocess.Popen[bytes]:
    entry = pwd.getpwnam(request["user"]) if request["user"] else None
    with Path(request["log"]).open("ab") as log:
        return subprocess.Popen(
            # Where the supervisor itself is killed, no clean-up of its own runs: then the kernel ends its children.
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


def _answer(line: bytes, programs: list[subprocess.Popen[bytes]]) -> dict[str, object]:
    try:
        program = _start(json.loads(line))
    except (OSError, KeyError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    programs.append(program)  # kept, or Python would wait for it on its own
    process = read_process(program.pid)
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
