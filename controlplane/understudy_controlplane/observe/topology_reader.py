"""Reads the topology: Slurm's, and the site's files."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from understudy_controlplane.config import Config
from understudy_controlplane.fleet.slurm_blocks import SlurmBlocks, slurm_blocks
from understudy_controlplane.fleet.topology import (
    NO_TOPOLOGY,
    Domain,
    Topology,
    merged,
    settings_domains,
    slurm_domains,
)
from understudy_controlplane.observe.fabric_map import FabricMapError, parse_fabric_map
from understudy_controlplane.observe.site_topology import TopologyFileError, parse_site_topology
from understudy_controlplane.slurm.protocol import SlurmError, SlurmReads

log = structlog.get_logger()

TOPOLOGY_AGE_MAX_SECONDS = 300.0
"""The topology changes only when an administrator reconfigures Slurm or edits a file."""


class TopologyReader:
    """Reads topology. A source that cannot be read keeps what was read before."""

    def __init__(self, slurm: SlurmReads) -> None:
        self._slurm = slurm
        self._config: Config | None = None
        self._known: dict[str, list[Domain]] = {}
        self._slurm_blocks: SlurmBlocks | None = None
        self._unread: dict[str, str] = {}
        self._topology = NO_TOPOLOGY
        self._read_at: float | None = None

    def read(self, config: Config, nodes: Collection[str], now: float, slurm_error: str) -> Topology:
        """The same value until it is read again. Not read while Slurm cannot be read. `nodes`: those that it has."""
        young = self._read_at is not None and 0 <= now - self._read_at < TOPOLOGY_AGE_MAX_SECONDS
        if slurm_error or (young and config is self._config):
            return self._topology
        self._config, self._read_at = config, now
        self._read_slurm()
        self._read_file("file", config.topology.file, site_domains)
        self._read_file("infiniband", config.topology.infiniband, lambda path: fabric_domains(path, nodes))
        known = (one for domains in self._known.values() for one in domains)
        domains = [*settings_domains(config.guards.domains), *known]
        topology = merged(domains, self._unread.values(), self._slurm_blocks)
        if topology != self._topology:
            self._topology = topology
        return self._topology

    def _read_slurm(self) -> None:
        try:
            units = self._slurm.topology()
            self._known["slurm"], self._slurm_blocks = slurm_domains(units), slurm_blocks(units)
        except SlurmError as error:
            self._failed("slurm", f"Slurm's topology cannot be read: {error}")
        else:
            self._unread.pop("slurm", None)

    def _read_file(self, source: str, path: Path | None, read: Callable[[Path], list[Domain]]) -> None:
        self._unread.pop(source, None)
        if path is None:
            self._known.pop(source, None)
            return
        try:
            self._known[source] = read(path)
        except (TopologyFileError, FabricMapError) as error:
            self._failed(source, str(error))

    def _failed(self, source: str, why: str) -> None:
        self._unread[source] = f"{why}; what was read before is used"
        log.warning("topology_unreadable", source=source, error=why, remedy="what was read before is used")


def site_domains(path: Path) -> list[Domain]:
    """Raises TopologyFileError."""
    return parse_site_topology(_text(path), str(path))


def fabric_domains(path: Path, nodes: Collection[str]) -> list[Domain]:
    """Raises FabricMapError, or TopologyFileError where the file cannot be read."""
    return parse_fabric_map(_text(path), str(path), nodes)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyFileError(f"{path}: cannot be read: {error}; name a file that this user may read") from error
