"""The configuration in force, in one place. What the file changes meanwhile comes into force between two rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import structlog
from pydantic import BaseModel

from understudy_controlplane.config import SECRET, Config, ConfigError, load_config

log = structlog.get_logger()

NEEDS_RESTART = ("cluster", "server", "limits", "slurm", "spares.reservation")
"""Settings and sections of sockets, connections, threads and names in Slurm, which are made at the start..."""

RELOADED = ("server.node_addresses", "slurm.poll_interval_seconds")
"""... but for these."""


@dataclass(slots=True)
class ConfigFile:
    path: Path
    read_again: bool = False
    load: Callable[[Path], Config] = load_config  # raises ConfigError

    def request(self) -> None:
        """Asks for a reload; a handler of signals may take no lock: the loop reads the file at its next round."""
        self.read_again = True


@dataclass(slots=True)
class CurrentConfig:
    """Readers take `config` once for each round or request. No other object keeps a section of it."""

    config: Config
    file: ConfigFile | None = None
    error: str = ""
    """Why the file as it is now is not in force; empty: it is, or it was not read again."""
    waiting: Sequence[str] = ()
    """Settings that the file has changed, and that come into force with a restart."""

    def follow(self) -> None:
        """Reads the file again if that was requested. A file that cannot be used changes nothing."""
        if self.file is None or not self.file.read_again:
            return
        self.file.read_again = False
        try:
            new = self.file.load(self.file.path)
        except ConfigError as error:
            self.error = "; ".join(str(error).splitlines())
            log.warning("configuration_not_reloaded", error=self.error, remedy="correct the file and reload again")
            return
        before = self.config
        self.config, self.waiting = reloaded(before, new)
        self.error = ""
        log.info("configuration_reloaded", changed=", ".join(_shown(before, self.config)) or "nothing")
        if self.waiting:
            log.warning(
                "configuration_needs_restart", settings=", ".join(self.waiting), remedy="restart the control plane"
            )

    def problems(self) -> list[str]:
        """Problems for people: cause and remedy."""
        found = []
        if self.error:
            found.append(f"the configuration was not reloaded, the one before stays in force: {self.error}")
        if self.waiting:
            found.append(f"changed in the configuration, needs a restart: {', '.join(self.waiting)}")
        return found


def reloaded(before: Config, new: Config) -> tuple[Config, Sequence[str]]:
    """`new`, with the settings of `before` that need a restart; and the names of those that differ."""
    waiting = [key for key in changed(before, new) if needs_restart(key)]
    old = dict(settings(before))
    for key in waiting:
        name, _, inner = key.partition(".")
        value = getattr(new, name).model_copy(update={inner: old[key]}) if inner else old[key]
        new = new.model_copy(update={name: value})
    return new, waiting


def needs_restart(key: str) -> bool:
    return key not in RELOADED and (key in NEEDS_RESTART or key.partition(".")[0] in NEEDS_RESTART)


def changed(before: Config, new: Config) -> list[str]:
    """Names of the settings with another value."""
    old = dict(settings(before))
    return [key for key, value in settings(new) if old[key] != value]


def settings(config: Config) -> Iterator[tuple[str, object]]:
    """Name and value of each setting, such as `slurm.scontrol`."""
    for name in Config.model_fields:
        section = getattr(config, name)
        if not isinstance(section, BaseModel):
            yield name, section
            continue
        for key in type(section).model_fields:
            yield f"{name}.{key}", getattr(section, key)


def _shown(before: Config, new: Config) -> Iterator[str]:
    old, now = dict(settings(before)), dict(settings(new))
    for key in changed(before, new):
        if key in SECRET:
            yield key
        else:
            yield f"{key} {_text(old[key])} -> {_text(now[key])}"


def _text(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)
