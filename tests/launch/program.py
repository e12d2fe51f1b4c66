"""What the gangs of these tests run: writes which rank it is, then acts on its arguments, in the launches they name.

Runs as an ordinary user with any Python, so it imports nothing of Understudy.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("UNDERSTUDY_LAUNCH", "UNDERSTUDY_SOCKET", "UNDERSTUDY_LAUNCH_SECRET", "SLURM_JOB_ID", "SLURM_PROCID"),
    *("SLURM_NTASKS", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"),
)


def main() -> None:
    began = time.time()
    home = Path(os.environ["HOME"])
    if "--ignore-term" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--no-handler" not in sys.argv:
        signal.signal(signal.SIGUSR1, lambda *_: append(home / "warned", {"rank": os.environ["RANK"]}))
    own = {"at": began, "pid": os.getpid(), "cpus": sorted(os.sched_getaffinity(0))}
    append(home / "ranks", own | {name: os.environ.get(name) for name in NAMES})
    launch, node, rank = (os.environ[name] for name in ("UNDERSTUDY_LAUNCH", "SLURMD_NODENAME", "RANK"))
    for word in sys.argv[1:]:
        if word.startswith("exit:"):  # exit:launch:node or rank:code, `*` is any
            _, which, who, code = word.split(":")
            if which in ("*", launch) and who in ("*", node, rank):
                time.sleep(0.3)
                sys.exit(int(code))
    if "step" in sys.argv and rank == "0":
        append(home / "steps", int(launch) + 1)
    while not (home / "finish").exists():
        time.sleep(0.02)


def append(path: Path, value: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps(value) + "\n")


if __name__ == "__main__":
    main()
