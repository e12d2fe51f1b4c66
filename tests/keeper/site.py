"""Nodes of this machine with a keeper each, and gangs whose ranks are on them."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests import PYTHON_PATH
from tests.hook.training_site import TrainingSite
from tests.testbed.configuration import free_ports
from tests.waiting import PATIENCE_SECONDS, wait_until


class Keepers:
    """Nodes are addresses of 127.0.0.0/8, and all keepers have the same munged."""

    def __init__(self, folder: Path, memory_bytes: int = 1 << 26) -> None:
        self.folder, self._memory_bytes = folder, memory_bytes
        self._port = free_ports(1)[0]
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}
        self._munged = self._start_munged()

    def close(self) -> None:
        for node in list(self._keepers):
            self.kill(node)
        self._munged.terminate()
        self._munged.wait(PATIENCE_SECONDS)

    def start(self, *nodes: str) -> None:
        for node in nodes:
            self._start(node)
        for node in nodes:
            wait_until(self.socket(node).exists, f"the keeper of {node} listens")

    def _start(self, node: str) -> None:
        config = self.folder / f"{node}.toml"
        config.write_text(
            f'cluster = "c"\ncontrol_plane_urls = ["http://127.0.0.1:9"]\nnode = "{node}"\n'
            f'munge_socket = "{self.folder}/munge/socket"\n'
            f'[keeper]\nmemory_bytes = {self._memory_bytes}\nlisten = "{address(node)}"\naddress = "{address(node)}"\n'
            f'port = {self._port}\nsocket = "{self.socket(node)}"\n'
        )
        with (self.folder / f"{node}.log").open("ab") as output:
            self._keepers[node] = subprocess.Popen(
                [sys.executable, "-P", "-m", "understudy_keeper", "--config", str(config)],
                env={**os.environ, "PYTHONPATH": PYTHON_PATH},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def kill(self, node: str) -> None:
        """Kills like the loss of the node's power."""
        keeper = self._keepers.pop(node)
        keeper.send_signal(signal.SIGKILL)
        keeper.wait(PATIENCE_SECONDS)
        self.socket(node).unlink(missing_ok=True)

    @contextmanager
    def stopped(self, node: str) -> Iterator[None]:
        """It does nothing within the block."""
        keeper = self._keepers[node]
        keeper.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            keeper.send_signal(signal.SIGCONT)

    def socket(self, node: str) -> Path:
        return self.folder / f"{node}.sock"

    def port_of(self, node: str) -> tuple[str, int]:
        """Address at which other keepers reach it."""
        return address(node), self._port

    def environment(self, node: str) -> dict[str, str]:
        """Environment of a rank there."""
        return {"SLURMD_NODENAME": node, "UNDERSTUDY_KEEPER_SOCKET": str(self.folder / "%n.sock")}

    def _start_munged(self) -> subprocess.Popen[bytes]:
        folder = self.folder / "munge"
        folder.mkdir(mode=0o755)
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
        with (folder / "output").open("wb") as output:
            munged = subprocess.Popen(
                ["munged", "--foreground", "--force", f"--socket={folder / 'socket'}", *files],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_until((folder / "socket").exists, "munged listens")
        return munged


class KeeperSite(TrainingSite):
    """A user's training, whose ranks are on these nodes."""

    def __init__(self, folder: Path, memory_bytes: int = 1 << 26) -> None:
        super().__init__(folder)
        self.keepers = Keepers(folder, memory_bytes)
        self.start, self.kill = self.keepers.start, self.keepers.kill
        self._nodes: Sequence[str] = ()

    def close(self) -> None:
        self.keepers.close()

    def train_on(self, nodes: Sequence[str], script: str, attempt: int = 0) -> list[str]:
        """One rank on each. What each of them logged."""
        self._nodes = nodes
        return self._run(script, self._ranks(len(nodes), self.folder / "no-agent.sock", attempt))

    @contextmanager
    def training_on(
        self, nodes: Sequence[str], script: str, attempt: int = 0
    ) -> Iterator[list[multiprocessing.Process]]:
        """Does as train_on(), but its ranks are killed at the end of the block."""
        self._nodes = nodes
        with self._started(script, self._ranks(len(nodes), self.folder / "no-agent.sock", attempt)) as ranks:
            yield ranks

    def _rank(self, rank: int, world: int, socket: Path, attempt: int) -> dict[str, str]:
        here = {**self.keepers.environment(self._nodes[rank]), "ATTEMPT": str(attempt)}
        return {**super()._rank(rank, world, socket, attempt), **here}


def address(node: str) -> str:
    return f"127.0.17.{node.removeprefix('n')}"
