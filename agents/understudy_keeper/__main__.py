"""`understudy keeper`: holds parts of checkpoints in this node's memory until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from understudy_agent.config import DEFAULT_CONFIG, Config, ConfigError, load_config
from understudy_agent.credentials import sign
from understudy_agent.log import fields, log, set_up_logging
from understudy_keeper.proof import decode, make_identity
from understudy_keeper.server import Keeper, Settings
from understudy_wire.systemd import ServiceManager

SHARE_OF_MEMORY = 4
SHARE_OF_USER = 2
"""Half of it, where the site does not set another share: no user fills it alone."""
KEEP_SECONDS = 3600.0
"""How long parts are held that no process of their job on this node has used."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="understudy keeper",
        description="Hold parts of checkpoints in this node's memory, and copies of those of another node.",
    )
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help=f"default: {DEFAULT_CONFIG}")
    options = parser.parse_args(arguments)
    set_up_logging()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        config = load_config(options.config)
    except ConfigError as error:
        sys.stderr.write(f"understudy keeper: {error}\n")
        return 2
    settings = settings_of(config, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    socket = config.munge_socket
    own_sign = partial(sign, socket=socket, only_for=os.geteuid())  # no other service takes it for a word of root
    identity = make_identity(config.cluster, own_sign, partial(decode, munge_socket=socket))
    keeper = Keeper(settings, identity)
    try:
        keeper.start()
    except OSError as error:
        log.error("keeper_cannot_start", extra=fields(error=error))
        return 1
    manager = ServiceManager()
    manager.ready(f"holds at most {settings.bytes_max >> 20} MiB")
    log.info("keeper_started", extra=fields(node=config.node, address=keeper.address))
    stopped.wait()
    manager.stopping()
    keeper.stop()
    return 0


def settings_of(config: Config, memory_bytes: int) -> Settings:
    keeper = config.keeper
    bytes_max = keeper.memory_bytes or memory_bytes // SHARE_OF_MEMORY
    return Settings(
        socket=keeper.socket,
        listen=keeper.listen,
        port=keeper.port,
        address=keeper.address or config.node,
        bytes_max=bytes_max,
        bytes_of_user_max=min(keeper.user_bytes or bytes_max // SHARE_OF_USER, bytes_max),
        bytes_per_second=keeper.bytes_per_second,
        keep_seconds=KEEP_SECONDS,
    )


if __name__ == "__main__":
    sys.exit(main())
