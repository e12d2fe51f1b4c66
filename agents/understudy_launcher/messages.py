"""What the launcher reports through the agent to the control plane, as JSON.

Each of these is a struct of the same name in `understudy_wire.launcher` or `understudy_wire.facts`, which this package
cannot import: it needs nothing but Python. tests/launch/test_messages.py compares them field by field.
"""

from __future__ import annotations

import base64
import zlib
from typing import Literal, TypedDict, cast

from understudy_launcher.node_list import fold

NAMES_BYTES_MAX = 32_768
"""Most bytes of the nodes of a message, which has 64 KiB."""
PACKED_CHARACTERS_MAX = 57_344
"""The same when they are packed: `PACKED_NODES_CHARACTERS_MAX` in `understudy_wire.values`."""


class LauncherState(TypedDict):
    """The gang as it is now. Reported again whenever it has changed."""

    type: Literal["launcher"]
    job_id: int
    restart_count: int
    launch: int
    phase: str
    seats: tuple[str, ...]
    spares: tuple[str, ...]
    lost: tuple[str, ...]
    nodes_min: int
    group_sizes: str
    ranks_per_node: int
    unwell: dict[str, str]
    nodes_packed: str
    ended_well: bool
    asks_requeue: bool


class LaunchStarted(TypedDict):
    type: Literal["launch_started"]
    job_id: int
    restart_count: int
    launch: int
    seats: tuple[str, ...]
    spares: tuple[str, ...]
    at: float
    lost: tuple[str, ...]
    nodes_packed: str


class LaunchEnded(TypedDict):
    type: Literal["launch_ended"]
    job_id: int
    restart_count: int
    launch: int
    table_row: str
    reason: str
    at: float
    progressed: bool
    counted: bool
    cause: str
    failed_node: str
    rank: int | None
    status: int | None
    blamed: tuple[str, ...]


class LaunchEvidence(TypedDict):
    type: Literal["launch_evidence"]
    job_id: int
    restart_count: int
    launch: int
    kind: str
    at: float
    summary: str
    text: str


LaunchFact = LaunchStarted | LaunchEnded | LaunchEvidence


class LaunchNotice(TypedDict):
    """Sent again until the agent acknowledges it: then it is in the control plane's database."""

    type: Literal["launch"]
    id: int
    fact: LaunchFact


Message = LauncherState | LaunchNotice


class NamesTooLongError(Exception):
    """The names of a gang's nodes do not fit into a message, not even packed."""


def within_a_line(message: Message) -> Message:
    """The message, with the nodes of a large gang packed. Raises NamesTooLongError."""
    if message["type"] == "launcher":
        return cast("Message", _packed(cast("dict[str, object]", message)))
    if message["fact"]["type"] == "launch_started":
        return {**message, "fact": cast("LaunchStarted", _packed(cast("dict[str, object]", message["fact"])))}
    return message


def _packed(content: dict[str, object]) -> dict[str, object]:
    lists = [cast("tuple[str, ...]", content[name]) for name in ("seats", "spares", "lost")]
    own = {name: value for name, value in content.items() if name != "nodes_packed"}
    if sum(len(name) + 4 for names in lists for name in names) <= NAMES_BYTES_MAX:
        return own
    text = "\n".join(fold(names) for names in lists)
    packed = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    if len(packed) > PACKED_CHARACTERS_MAX:
        raise NamesTooLongError(f"the names of {sum(map(len, lists))} nodes do not fit into a message")
    return {**own, "seats": (), "spares": (), "lost": (), "nodes_packed": packed}
