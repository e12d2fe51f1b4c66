"""What of a changed configuration comes into force while the agent runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgspec

from understudy_agent.config import Config

RELOADED = ("control_plane_urls", "report_interval_seconds", "host.disks")
"""The others are files, sockets, names and processes, which are made at the start."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reloaded:
    config: Config
    changed: tuple[str, ...]  # in force now
    waiting: tuple[str, ...]  # come into force with a restart


def reloaded(before: Config, new: Config) -> Reloaded:
    old = dict(settings(before))
    differ = [key for key, value in settings(new) if old[key] != value]
    config = msgspec.structs.replace(
        before,
        host=msgspec.structs.replace(before.host, disks=new.host.disks),
        **{key: getattr(new, key) for key in RELOADED if "." not in key},
    )
    changed, waiting = (tuple(key for key in differ if (key in RELOADED) is wanted) for wanted in (True, False))
    return Reloaded(config, changed, waiting)


def settings(config: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Name and value of each setting, such as `host.disks`."""
    for field in msgspec.structs.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, msgspec.Struct):
            yield from settings(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value
