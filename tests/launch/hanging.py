"""What the gang of `test_last_words` runs, with the training hook: hangs or fails in launch 0, as its arguments say."""

import os
import sys
import time
from pathlib import Path

from understudy import Monitor

_, how, which = sys.argv
monitor = Monitor()
home, rank, launch = Path(os.environ["HOME"]), os.environ["RANK"], os.environ["UNDERSTUDY_LAUNCH"]


def reads_a_file_that_never_comes() -> None:
    time.sleep(3600)


print(f"rank {rank} of launch {launch} begins")
sys.stderr.write(f"rank {rank} warns\n")
with monitor.step(0):
    if rank == which and launch == "0":
        (home / f"in_place.{rank}").touch()
        if how == "hangs":
            reads_a_file_that_never_comes()
        raise ValueError(f"no such data on rank {rank}")
    with monitor.collective("all_reduce"):
        (home / f"in_place.{rank}").touch()
        while not (home / "finish").exists():
            time.sleep(0.02)
            # Hangs are looked for from the first step on. Later launches make none.
            if rank == "0" and launch == "0" and len(list(home.glob("in_place.*"))) == int(os.environ["WORLD_SIZE"]):
                (home / "steps").write_text("1\n")
