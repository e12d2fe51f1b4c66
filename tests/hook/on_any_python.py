"""Run by test_pythons.py with each Python it finds: on_any_python.py HOOK_FOLDER WARM_PROGRAM WORK_FOLDER

Standard library only, Python 3.9 and newer. Plays the node's agent and the launcher's seat for the hook and for
warm.py, and prints what it saw as one JSON object.
"""

from __future__ import annotations

import collections
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import types
from pathlib import Path

TRAIN = """
import json, os, sys
print(json.dumps([__name__, sys.argv[1:], os.environ["RANK"], "colorsys" in sys.modules]))
"""

RESTARTED = """
import os
from understudy.restart import restartable

calls = []

def train():
    calls.append(os.environ["RANK"])
    if len(calls) == 1:
        raise RuntimeError("a peer is gone")

restartable(train)
print(*calls)
"""


class Agent:
    """Acknowledges every notice and answers each question with a restore point, as an agent does."""

    def __init__(self, path: str) -> None:
        self.messages: queue.Queue[dict[str, object]] = queue.Queue()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._server.accept()
        for line in connection.makefile("rb"):
            message = json.loads(line)
            self.messages.put(message)
            if message["type"] == "restore_point":
                answer = {"type": "restore_point", "id": message["id"], "step": 30, "path": "/checkpoints/30"}
                connection.sendall(json.dumps(answer).encode() + b"\n")
            elif "id" in message:
                connection.sendall(json.dumps({"type": "ack", "id": message["id"]}).encode() + b"\n")


class AbsentFrameworks(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for torch and the frameworks, so that the callbacks' modules can be imported without them."""

    def find_spec(self, name: str, _path: object, _target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in ("torch", "transformers", "lightning"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        class Framework(types.ModuleType):
            def __getattr__(self, name: str) -> object:
                if name.startswith("__"):
                    raise AttributeError(name)
                return type(name, (), {})

        return Framework(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def report(folder: Path) -> dict[str, object]:
    """What one rank of a gang reports to its agent."""
    address = str(folder / "agent.sock")
    agent = Agent(address)
    rank = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1", "RANK": "2", "WORLD_SIZE": "4"}
    os.environ.update(rank, UNDERSTUDY_SOCKET=address)
    from understudy import Monitor, RestorePoint, SummedFile

    monitor = Monitor(gpu_index=3, role="stage1")
    assert monitor.active
    point = monitor.restore_point(timeout_seconds=20)
    assert point == RestorePoint(30, "/checkpoints/30"), point
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    with SummedFile(checkpoint / "rank2.pt") as file:
        file.write(b"weights")
    for number in monitor.steps(range(point.step, point.step + 20)):
        with monitor.collective("all_reduce"):
            pass
        with monitor.waiting():
            pass
        monitor.observe(loss=float("nan") if number == 48 else 1.0, grad_norm=2)
    with monitor.checkpoints.begin(50, checkpoint) as save:
        save.shard("rank2.pt", file.checksum)
        save.shard("rank2.pt")
    assert monitor.checkpoints.pinned == {str(checkpoint), "/checkpoints/30"}, monitor.checkpoints.pinned
    monitor.checkpoints.deleted(30, "/checkpoints/30")
    child = os.fork()
    if child == 0:
        os._exit(1 if monitor.active else 0)
    assert os.waitpid(child, 0)[1] == 0, "the monitor is not active in the child of a fork"
    monitor.close(timeout_seconds=20)
    kinds: collections.Counter[str] = collections.Counter()
    steps, shard = 0, {}
    while not agent.messages.empty():
        message = agent.messages.get()
        kinds[str(message["type"])] += 1
        if message["type"] == "steps":
            steps += len(message["self_seconds"])  # type: ignore[arg-type]
        if message["type"] == "shard":
            shard = message
    return {
        "kinds": sorted(kinds),
        "steps": steps,
        "checksum": shard.get("checksum"),
        "size": shard.get("size_bytes"),
        "more": shard.get("more"),
    }


def import_callbacks() -> list[str]:
    sys.meta_path.insert(0, AbsentFrameworks())  # real ones, where they are installed, take long to import
    names = (
        "dcp",
        "ddp",
        "deepspeed",
        "huggingface",
        "lightning",
        "state_handover",
        "megatron",
        "restart",
        "torch_save",
    )
    return [importlib.import_module("understudy." + name).__name__ for name in names]


def become_a_rank(warm: str, folder: Path) -> object:
    """A warm interpreter that runs a training script."""
    script = folder / "train.py"
    script.write_text(TRAIN)
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    command = [sys.executable, warm, str(ready_write), str(go_read), "colorsys,no_such_module", "script", str(script)]
    with subprocess.Popen([*command, "--lr", "1"], pass_fds=(ready_write, go_read), stdout=subprocess.PIPE) as program:
        os.close(ready_write)
        os.close(go_read)
        with os.fdopen(ready_read) as ready:
            failed = json.loads(ready.readline())["failed"]
        with os.fdopen(go_write, "w") as go:
            go.write(json.dumps({**os.environ, "RANK": "3"}) + "\n")
        output = program.communicate(timeout=20)[0]
    assert [line.split()[0] for line in failed] == ["no_such_module"], failed
    return json.loads(output)


def restart_in_process(hook: str) -> str:
    """A rank whose gang is started again without a new process."""
    seat, rank = socket.socketpair()
    environment = {**os.environ, "PYTHONPATH": hook, "RANK": "0", "UNDERSTUDY_RESTART_FD": str(rank.fileno())}
    with subprocess.Popen(
        [sys.executable, "-c", RESTARTED],
        env=environment,
        pass_fds=(rank.fileno(),),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        rank.close()
        with seat.makefile("rb") as lines:
            assert json.loads(lines.readline()) == {"type": "restartable", "takes_leave": True}
            assert json.loads(lines.readline()) == {"type": "waiting"}
            seat.sendall(json.dumps({"environment": {"RANK": "5"}}).encode() + b"\n")
            output, errors = program.communicate(timeout=20)
    assert program.returncode == 0, errors
    return output.strip()


def main() -> None:
    hook, warm, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    sys.path.insert(0, hook)
    seen = {
        "version": "{}.{}".format(*sys.version_info),
        "rank": report(folder),
        "callbacks": import_callbacks(),
        "warm": become_a_rank(warm, folder),
        "restarted": restart_in_process(hook),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
