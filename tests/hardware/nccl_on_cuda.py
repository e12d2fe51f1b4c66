"""A communicator of NCCL with one rank on this process's GPU: what its RAS service answers, as text and as JSON, what
the agent makes of that, and what PyTorch's flight recorder has of its collectives. What fails is named in `broken`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from understudy import recorder
from understudy_agent.nccl_ras import NotAskedError, ask

COLLECTIVES = 5
ANSWER_SECONDS = 15.0
FIRST_WITH_RAS = (2, 24)
FIRST_WITH_JSON = (2, 28, 7)


@dataclass(frozen=True, slots=True)
class Asked:
    text: str  # as it came
    json: str
    read: str  # by the agent
    recorder: str
    version: str
    broken: list[str]


def answered(port: int, *commands: str) -> str:
    with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as connection:
        connection.sendall("".join(f"{one}\n" for one in ("CLIENT PROTOCOL 2", *commands)).encode())
        with connection.makefile("rb") as answer:
            return answer.read().decode(errors="replace")


def found(port: int, version: tuple[int, ...], places: dict[str, Any]) -> Asked:
    """What NCCL of this version and the recorder show of this process, which has run COLLECTIVES."""
    broken = [] if places.get("groups") else ["the flight recorder has no process group"]
    text = as_json = read = ""
    try:
        read = msgspec.json.encode(ask({0: os.getpid()}, 1)).decode()
        text = answered(port, "VERBOSE STATUS")
        as_json = answered(port, "SET FORMAT json", "STATUS") if version >= FIRST_WITH_JSON else ""
    except (NotAskedError, OSError) as error:
        if version >= FIRST_WITH_RAS:
            broken.append(f"the RAS service: {error}")
    return Asked(text, as_json, read, json.dumps(places), ".".join(map(str, version)), broken)


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    if os.environ.get("NCCL_RAS_ADDR") is None:  # the agent reads it from the environment with which a process started
        os.environ.update(NCCL_RAS_ADDR=f"localhost:{port}", NCCL_RAS_ENABLE="1", TORCH_FR_BUFFER_SIZE="2000")
        os.execv(sys.executable, [sys.executable, "-m", "tests.hardware.nccl_on_cuda"])  # noqa: S606
    port = int(os.environ["NCCL_RAS_ADDR"].rpartition(":")[2])
    import torch
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", init_method=f"file://{Path(folder) / 'store'}", world_size=1, rank=0)
        sums = torch.ones(1024, device="cuda")
        for _ in range(COLLECTIVES):
            dist.all_reduce(sums)
        torch.cuda.synchronize()
        version: tuple[int, ...] = torch.cuda.nccl.version()
        asked = found(port, version, recorder.places(recorder.read()))
        sys.stdout.write(json.dumps(asdict(asked)) + "\n")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
