"""Nodes of large gangs, as launchers pack them into a line of 64 KiB (`understudy_launcher.messages`)."""

from __future__ import annotations

import base64
import zlib
from typing import TypeVar

import msgspec

from understudy_controlplane.hostlist import HostListError, expand
from understudy_wire.facts import LaunchStarted
from understudy_wire.launcher import LauncherState

NAMES_CHARACTERS_MAX = 1 << 20
"""Length of all names together, and of the text that names them: 12,500 nodes whose names have 80 characters. A text of
a few bytes can name more than any memory holds.
"""
LISTS = 3

Named = TypeVar("Named", LauncherState, LaunchStarted)


def with_nodes(named: Named) -> Named:
    """Report with its nodes in their own fields. Raises HostListError. It costs time: first ask whose job it is."""
    if not named.nodes_packed:
        return named
    try:
        text = zlib.decompressobj().decompress(base64.b85decode(named.nodes_packed), NAMES_CHARACTERS_MAX).decode()
    except (ValueError, zlib.error) as error:
        raise HostListError(f"nodes_packed: {error}") from None
    lists: list[tuple[str, ...]] = []
    left = NAMES_CHARACTERS_MAX
    for one in text.split("\n", LISTS):
        lists.append(expand(one, left))
        left -= sum(map(len, lists[-1]))
    if len(lists) != LISTS:
        raise HostListError(f"nodes_packed: it must contain {LISTS} host lists")
    seats, spares, lost = lists
    return msgspec.structs.replace(named, seats=seats, spares=spares, lost=lost, nodes_packed="")
