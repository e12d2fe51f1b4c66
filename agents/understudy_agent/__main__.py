"""`understudy agent`: reads the configuration, again at SIGHUP, and runs the agent until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from understudy_agent.config import (
    DEFAULT_CONFIG,
    Config,
    ConfigError,
    check_identity,
    load_config,
    read_boot_id,
    tls_of,
)
from understudy_agent.enrolment import enroll
from understudy_agent.log import fields, log, set_up_logging
from understudy_agent.loop import Agent
from understudy_agent.ranks import SocketInUseError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="understudy agent",
        description="Report this node's GPUs, kernel log and ranks to the control plane.",
    )
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help=f"default: {DEFAULT_CONFIG}")
    parser.add_argument("--check-config", action="store_true", help="check the configuration and exit")
    parser.add_argument(
        "--enroll",
        action="store_true",
        help="without MUNGE: read a one-time code (`understudy token enroll NODE`) from standard input, write the "
        "node's own token to token_file, and exit",
    )
    options = parser.parse_args(arguments)
    set_up_logging()
    try:
        config = load_config(options.config)
        if options.enroll:
            enroll(config, sys.stdin.readline().strip())
            return 0
        check_identity(config)
        tls_of(config)
        read_boot_id(config)
    except ConfigError as error:
        sys.stderr.write(f"understudy agent: {error}\n")
        return 2
    if options.check_config:
        sys.stdout.write(f"{options.config}: is valid (cluster {config.cluster}, node {config.node})\n")
        return 0
    try:
        asyncio.run(_run(config, options.config))
    except (SocketInUseError, OSError) as error:
        log.error("agent_cannot_start", extra=fields(error=error))
        return 1
    return 0


async def _run(config: Config, file: Path) -> None:
    agent = Agent(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop)
    asked = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, asked.set)
    reloading = asyncio.create_task(_reload(agent, file, asked))
    await agent.run()
    reloading.cancel()


async def _reload(agent: Agent, file: Path, asked: asyncio.Event) -> None:
    """Whenever it is asked for. A file that cannot be used changes nothing; a disk that hangs delays no report."""
    while True:
        await asked.wait()
        asked.clear()
        try:
            agent.reload(await asyncio.to_thread(load_config, file))
        except ConfigError as error:
            remedy = "correct the file and reload again"
            log.warning("configuration_not_reloaded", extra=fields(error=error, remedy=remedy))


if __name__ == "__main__":
    sys.exit(main())
