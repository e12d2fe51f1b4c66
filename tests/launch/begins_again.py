"""A program with nanoGPT's arguments: it begins from scratch unless they have --init_from=resume, writes over its
checkpoint, and cannot resume without one. Runs with any Python.
"""

import json
import os
import sys
import time
from pathlib import Path

CHECKPOINT = Path("out/ckpt.pt")


def main() -> None:
    options = {"--init_from": "scratch", "--max_iters": "6", "--fails_at": "-1"}
    for word in sys.argv[1:]:
        name, _, value = word.partition("=")
        options[name] = value  # as nanoGPT's configurator: the last one counts
    step = 0
    if options["--init_from"] == "resume":
        step = json.loads(CHECKPOINT.read_text())["iter_num"]  # FileNotFoundError where there is none
    rank, launch, world = os.environ["RANK"], os.environ["UNDERSTUDY_LAUNCH"], int(os.environ["WORLD_SIZE"])
    with Path("began").open("a") as file:
        file.write(json.dumps({"rank": rank, "launch": launch, "step": step, "arguments": sys.argv[1:]}) + "\n")
    while sum(one["launch"] == launch for one in map(json.loads, Path("began").read_text().splitlines())) < world:
        time.sleep(0.01)  # all have read the checkpoint
    for number in range(step, int(options["--max_iters"])):
        if number == int(options["--fails_at"]) and launch == "0":
            while not Path("go").exists():
                time.sleep(0.02)
            if int(rank) == world - 1:
                sys.exit(1)
            time.sleep(60)
        if rank == "0":
            CHECKPOINT.parent.mkdir(exist_ok=True)
            CHECKPOINT.with_suffix(".new").write_text(json.dumps({"iter_num": number + 1}))
            CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
