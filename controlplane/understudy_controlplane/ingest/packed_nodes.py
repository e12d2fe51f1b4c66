"""Nodes of large gangs, as launchers pack them into a line of 64 KiB (`understudy_agent.launch.messages`)."""

from __future__ import annotations

import base64
import zlib
from typing import TypeVar

import msgspec

from understudy_agent.wire import LauncherState, LaunchStarted
from understudy_controlplane.slurm.hostlist import HostListError, expand

TEXT_BYTES_MAX = 1 << 20
NAMES_CHARACTERS_MAX = 1 << 20
"""Of all names together, unpacked: 12,500 nodes whose names have 80 characters."""

Named = TypeVar("Named", LauncherState, LaunchStarted)


def with_nodes(named: Named) -> Named:
    """With its nodes in their own fields. Raises HostListError."""
    if not named.nodes_packed:
        return named
    try:
        text = zlib.decompressobj().decompress(base64.b85decode(named.nodes_packed), TEXT_BYTES_MAX).decode()
        lists = [expand(one) for one in text.split("\n")]
        seats, spares, lost = lists
    except (ValueError, zlib.error) as error:
        raise HostListError(f"nodes_packed: {error}") from None
    if sum(len(name) for names in lists for name in names) > NAMES_CHARACTERS_MAX:
        raise HostListError(f"nodes_packed: the names have more than {NAMES_CHARACTERS_MAX} characters")
    return msgspec.structs.replace(named, seats=seats, spares=spares, lost=lost, nodes_packed="")
