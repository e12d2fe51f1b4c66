"""Slurm's commands for a gang beside this process, named by the first argument: a step is a process for each node.

The launcher and its seats are the real ones. What the kernel does here only when disks fail is played: where a file
`stuck.NODE` is in the home directory, that node's ranks do not die of SIGKILL; where there is a `mute.NODE`, no seat
that starts there is heard of; where there is a `slow.NODE`, a program needs five seconds to be started there. Where
there is an `unreadable.NODE`, the files of PyTorch's flight recorder hang, and a seat with a `shows_nothing.NODE` does
not answer what its ranks are doing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from understudy_controlplane.hostlist import expand
from understudy_launcher import evidence, rank_process, seat
from understudy_launcher.process_tree import below, kill_below

HOME = Path(os.environ["HOME"])


def is_stuck(node: str) -> bool:
    return (HOME / f"stuck.{node}").exists()


def srun(arguments: list[str]) -> int:
    nodes = expand(next(one for one in arguments if one.startswith("--nodelist=")).partition("=")[2])
    words = arguments[arguments.index("understudy_launcher.seat") + 1 :]
    number = next(number for number in range(1000) if made(HOME / f"step.{number}"))
    programs = []
    for node in nodes:
        environment = {**os.environ, "SLURMD_NODENAME": node, "SLURM_STEP_ID": str(number)}
        environment.setdefault("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
        program = subprocess.Popen([sys.executable, "-P", __file__, "seat", *words], env=environment)
        (HOME / f"step.{number}" / node).write_text(str(program.pid))
        programs.append(program)

    def end(*_: object) -> None:
        for one in programs:
            one.kill()

    signal.signal(signal.SIGTERM, end)
    return max(program.wait() for program in programs)


def made(directory: Path) -> bool:
    try:
        directory.mkdir()
    except FileExistsError:
        return False
    return True


def scancel(arguments: list[str]) -> int:
    assert arguments[0] == "--signal=KILL"
    processes: list[int] = []
    for path in (HOME / f"step.{arguments[1].partition('.')[2]}").iterdir():
        pid = int(path.read_text())
        processes += (pid, *([] if is_stuck(path.name) else below(pid)))
    for one in processes:  # all at once, as the daemons of all nodes do
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    return 0


def scontrol(arguments: list[str]) -> int:
    print(arguments[2].replace(",", "\n") if arguments[:2] == ["show", "hostnames"] else "#SBATCH --no-kill")
    return 0


def start_slowly(*arguments: object, start: Callable[..., int] = rank_process.start_process, **options: object) -> int:
    time.sleep(5)
    return start(*arguments, **options)


def run_seat(arguments: list[str]) -> int:
    node = os.environ["SLURMD_NODENAME"]
    if (HOME / f"mute.{node}").exists():
        time.sleep(5)
        return 1
    if (HOME / f"slow.{node}").exists():
        vars(rank_process)["start_process"] = start_slowly
    if (HOME / f"unreadable.{node}").exists():
        vars(evidence)["recorded_in_file"] = lambda *_: time.sleep(3600)
    if (HOME / f"shows_nothing.{node}").exists():
        vars(evidence)["COLLECT_SECONDS"] = 3600
        vars(evidence)["has_handler"] = lambda *_: time.sleep(3600)
    vars(seat)["kill_below"] = lambda: [0] if is_stuck(node) else kill_below()
    return seat.main(arguments)


PLAYED = {"srun": srun, "scancel": scancel, "scontrol": scontrol, "seat": run_seat}

if __name__ == "__main__":
    sys.exit(PLAYED[sys.argv[1]](sys.argv[2:]))
