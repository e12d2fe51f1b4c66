"""How long a rank waits until the agent has taken its hello, while another user's process connects without end.

The figure `rank_hello_under_flood_milliseconds` of `make bench-access`. The agent, the floods and the ranks are
processes of their own. A flood holds as many idle connections as it can, and opens new ones as fast as it can.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests import REPOSITORY
from tests.bench.result import Result, Size, result
from understudy_agent.facts import FactQueue
from understudy_agent.ranks import RankServer
from understudy_agent.step_windows import WindowBuffer
from understudy_agent.uplink import RestorePointRequest
from understudy_wire.messages import RestorePoint

FLOODS = 2
IDLE_CONNECTIONS = 256
HELLOS = 60
FLOOD_USER = 65534


def measure_hellos(size: Size) -> Result:
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # the flood is another user's
        path = directory / "run" / "agent.sock"
        with _process("agent", path):
            while not path.is_socket():
                time.sleep(0.01)
            quiet = list(_hellos(path, size.of(HELLOS, 3)))
            with ExitStack() as floods:
                for _ in range(FLOODS):
                    floods.enter_context(_process("flood", path))
                time.sleep(1.0)
                under_flood = list(_hellos(path, size.of(HELLOS, 3)))
    return result("rank_hello_under_flood_milliseconds", "ms", under_flood, {"quiet": quiet}, more_is_better=False)


def _hellos(path: Path, count: int) -> Iterator[float]:
    """Milliseconds from connecting to the answer to a question after the hello."""
    hello = {"type": "hello", "job_id": 7, "restart_count": 0, "rank": 0, "world_size": 8}
    messages = b"".join(json.dumps(one).encode() + b"\n" for one in (hello, {"type": "restore_point", "id": 1}))
    for _ in range(count):
        begun = time.perf_counter()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rank:
            rank.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 30, 0))
            rank.connect(str(path))
            rank.sendall(messages)
            assert b'"step"' in rank.recv(4096)
        yield (time.perf_counter() - begun) * 1000
        time.sleep(0.02)


@contextmanager
def _process(part: str, path: Path) -> Iterator[None]:
    command = (sys.executable, "-m", "tests.bench.rank_flood", part, str(path))
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def serve(path: Path) -> None:
    async def restore_point(request: RestorePointRequest) -> RestorePoint:
        return RestorePoint(request.job_id, request.restart_count, 0, "")

    await RankServer(path, FactQueue(), WindowBuffer(), restore_point, lambda: None).start()
    await asyncio.Event().wait()


def flood(path: Path) -> None:
    if os.geteuid() == 0:
        os.setuid(FLOOD_USER)
    held: list[socket.socket] = []
    while True:
        idle = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            idle.connect(str(path))
        except OSError:
            idle.close()
            time.sleep(0.001)
            continue
        held.append(idle)
        if len(held) > IDLE_CONNECTIONS:
            held.pop(0).close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["agent"]:
        asyncio.run(serve(Path(sys.argv[2])))
    elif sys.argv[1:2] == ["flood"]:
        flood(Path(sys.argv[2]))
