"""`understudy serve`: the service."""

from __future__ import annotations

import logging
import sys

import structlog
import uvicorn

from controlplane.app import Outside, compose
from controlplane.config import Config
from controlplane.fleet.slurm import SlurmNode
from controlplane.slurm.cli import CommandLineSlurm
from controlplane.slurm.probe import slurmd_answers


def configure_logging() -> None:
    """One event, one line, to standard error: time, level, event, and its fields."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def real_outside(config: Config) -> Outside:
    def probe(node: SlurmNode) -> bool:
        return slurmd_answers(node.address, node.port, config.slurm.probe_timeout_seconds)

    return Outside(
        CommandLineSlurm(scontrol=config.slurm.scontrol, timeout_seconds=config.slurm.timeout_seconds), probe
    )


def serve(config: Config, outside: Outside | None = None) -> None:
    """Runs until SIGTERM or SIGINT."""
    configure_logging()
    control_plane = compose(config, outside or real_outside(config))
    structlog.get_logger().info(
        "serve",
        cluster=config.cluster,
        mode=config.mode.value,
        host=config.server.host,
        port=config.server.port,
    )
    uvicorn.run(
        control_plane.app,
        host=config.server.host,
        port=config.server.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
    )
