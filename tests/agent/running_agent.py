"""The real agent in a thread, with its files in a folder of the test."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.agent.fake_control_plane import TOKEN
from tests.waiting import PATIENCE_SECONDS, wait_until
from understudy_agent.config import Config, HostConfig, NvmlConfig
from understudy_agent.loop import Agent
from understudy_agent.sample.gpus import GpuSource


def agent_config(folder: Path, *urls: str, interval_seconds: float = 0.1) -> Config:
    """Creates the files that the agent needs in `folder`; the kernel log is an empty file there."""
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "boot_id").write_text("boot-1\n")
    (folder / "kmsg").touch()
    return Config(
        cluster="testcluster",
        node="n1",
        control_plane_urls=urls,
        token_file=folder / "token",
        boot_id_file=folder / "boot_id",
        kernel_log=folder / "kmsg",
        socket=folder / "agent.sock",
        run_directory=folder / "run",
        report_interval_seconds=interval_seconds,
        nvml=NvmlConfig(enabled=False),
        host=HostConfig(enabled=False),
    )


def write_xid(config: Config, sequence: int, xid: int = 79) -> float:
    """Appends the driver's line to the kernel log; returns the time."""
    now = time.time()
    text = f"NVRM: Xid (PCI:0000:61:00): {xid}, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    with config.kernel_log.open("a") as log:
        log.write(f"4,{sequence},{time.monotonic_ns() // 1000},-;{text}\n")
    return now


@contextlib.contextmanager
def running_agent(config: Config, gpus: GpuSource | None = None) -> Iterator[Agent]:
    ready = threading.Event()
    made: list[tuple[Agent, asyncio.AbstractEventLoop]] = []

    async def run() -> None:
        agent = Agent(config, gpus)
        made.append((agent, asyncio.get_running_loop()))
        ready.set()
        await agent.run()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(PATIENCE_SECONDS)
    agent, loop = made[0]
    try:
        wait_until(lambda: config.socket.is_socket() or not thread.is_alive(), "the agent listens")
        yield agent
    finally:
        with contextlib.suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(agent.stop)
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "the agent did not stop"
