"""PyTorch's flight recorder: how far this rank has come with the collectives of each process group.

It is read only when the control plane asks because the gang stands still and is about to be restarted: with NCCL the
recorder asks the GPU's events, which a CUDA graph that is being captured does not survive. To read it holds Python's
lock: for 2,000 entries, PyTorch's usual number, some 0.05 s of processor time (docs/hangs.md).

The fields are those of PyTorch's `FlightRecorderDetail.hpp`, read in 2.5 and 2.13; gloo's entries were recorded with
2.13, NCCL's never seen. gloo notes no events: its collectives are over when they are `retired`. With NCCL, single
transfers of a coalesced call have no events either (`pointToPoint` in ProcessGroupNCCL.cpp), and stay `scheduled`: what
comes before a completed entry of its group is over.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

LOOK_SECONDS = 5.0
ASKED_SECONDS = 10.0
"""After this time without a question it looks no more."""
GROUPS_MAX = 6
PEERS_MAX = 4
RECENT_MAX = 3
NAME_CHARACTERS_MAX = 48
WHAT_CHARACTERS_MAX = 64
RANK_MAX = 2**31 - 1
ENTRIES_MAX = 50_000
"""A larger recorder is not read: PyTorch writes out all of it, which takes more than a second, with Python's lock."""
BYTES_MAX = 8 * 2**20
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_NOT_SENT = re.compile(r'[^ -~]|["\\]')
_PEER = re.compile(r"(?:send \d+->|recv \d+<-)(\d+)")


def read() -> Mapping[str, Any]:
    """PyTorch's recorder, where this process has imported it; empty: it has none, or one that is too large."""
    if any(_number(os.environ.get(name, "")) > ENTRIES_MAX for name in _SIZES):
        return {}
    torch = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        dump = getattr(torch, name, None)
        if dump is not None:
            # Stack traces are left out: to name their lines takes seconds.
            written = dump(True, False, False)
            if len(written) > BYTES_MAX:
                return {}
            content = pickle.loads(written)  # noqa: S301 - this process has just written it
            if content.get("entries") or content.get("pg_config"):
                found: Mapping[str, Any] = content
                return found
    return {}


def _number(text: str) -> int:
    if not text.isdecimal():
        return 0
    return int(text) if len(text) <= len(str(RANK_MAX)) else RANK_MAX


class RecorderWatch:
    """Used by the link's thread alone."""

    def __init__(self) -> None:
        self._asked_at = -ASKED_SECONDS
        self._looked_at = -LOOK_SECONDS
        self._message: dict[str, Any] | None = None

    def ask(self, now: float) -> None:
        self._asked_at = now

    def latest(self, now: float, progressed_at: float) -> dict[str, Any] | None:
        """Message with what the last look has shown; None: there was none since the last step."""
        if progressed_at > self._looked_at:
            self._message = None
        if now - self._asked_at < ASKED_SECONDS and now - self._looked_at >= LOOK_SECONDS:
            before, self._looked_at = self._message, now
            found: dict[str, Any] = {"groups": [], "peers": []}
            with contextlib.suppress(Exception):  # another release of PyTorch
                found = places(read())
            still = before is not None and all(before[name] == value for name, value in found.items())
            self._message = {"type": "recorder", **found, "still": still}
        return self._message


def places(content: Mapping[str, Any]) -> dict[str, Any]:
    """Last collective that this rank has entered in each process group, and the first that is not over; and the ranks
    of transfers that are not over.
    """
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    for entry in content.get("entries", ()):
        by_group.setdefault(_group(entry), []).append(entry)
    config = {_name(key, group): str(group.get("ranks", "")) for key, group in content.get("pg_config", {}).items()}
    found = [_place(name, entries) for name, entries in by_group.items()]
    overwritten = min((int(one.get("record_id", 0)) for one in content.get("entries", ())), default=0) > 0
    unused = [name for name in config if name not in by_group and name.strip(":")]
    found += [{"group": name, "last": 0} for name in unused if not overwritten]  # else it may have been used before
    for one in found:
        one["members"] = config.get(one["group"], "")
    found.sort(key=lambda one: "open" not in one)
    members = {name: [int(rank) for rank in re.findall(r"\d+", ranks)] for name, ranks in config.items()}
    peers = {peer for name, entries in by_group.items() for peer in _peers(entries, members.get(name, []))}
    return {"groups": [_short(one) for one in found[:GROUPS_MAX]], "peers": sorted(peers)[:PEERS_MAX]}


def _place(name: str, entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    collectives = [one for one in entries if not one.get("is_p2p")]
    place: dict[str, Any] = {
        "group": name,
        "last": max((int(one["collective_seq_id"]) for one in collectives), default=0),
    }
    first = next(_open(collectives), None)
    if first is not None:
        place.update(open=int(first["collective_seq_id"]), begun=first.get("state") == "started")
    whats = {int(one["collective_seq_id"]): _what(one) for one in collectives}
    until = place.get("open", place["last"])
    recent = [(number, what) for number, what in sorted(whats.items()) if number <= until][-RECENT_MAX:]
    place["recent"] = [{"number": number, "what": what} for number, what in recent]
    return place


def _open(entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Entries that are not over, in order."""
    waiting: list[Mapping[str, Any]] = []
    for one in entries:
        if one.get("state") == "completed":
            waiting = [earlier for earlier in waiting if _by_gloo(earlier)]
        elif not (_by_gloo(one) and one.get("retired")):
            waiting.append(one)
    yield from waiting


def _by_gloo(entry: Mapping[str, Any]) -> bool:
    return str(entry["profiling_name"]).startswith("gloo:")


def _peers(entries: Iterable[Mapping[str, Any]], members: list[int]) -> Iterator[int]:
    """Numbers in the names count within the group; RANK_MAX: a peer that is not known."""
    for one in _open([one for one in entries if one.get("is_p2p")]):
        found = _PEER.search(str(one["profiling_name"]))
        place = int(found.group(1)) if found else RANK_MAX
        whole = _group(one).endswith(":default_pg")
        yield place if whole else members[place] if place < len(members) else RANK_MAX


def _what(entry: Mapping[str, Any]) -> str:
    """Operation, with the sizes and types that must be the same on all ranks, as PyTorch's own analysis compares them
    (torch/distributed/flight_recorder/components/types.py).
    """
    name = str(entry["profiling_name"]).rpartition(":")[2]
    sides: tuple[str, ...] = (
        ("output",) if name == "scatter" else ("input",) if name == "gather" else ("input", "output")
    )
    if "all_to_all" in name or "alltoall" in name or "coalesced" in name or name.endswith("_v"):
        sides = ()
    shown = [f"{entry.get(f'{side}_sizes')} {','.join(map(str, entry.get(f'{side}_dtypes') or ()))}" for side in sides]
    return _NOT_SENT.sub("?", " ".join((name, *dict.fromkeys(shown))).strip())[:WHAT_CHARACTERS_MAX]


def _group(entry: Mapping[str, Any]) -> str:
    return ":".join(map(str, entry.get("process_group") or (entry.get("pg_id", 0),)))


def _name(key: object, group: Mapping[str, Any]) -> str:
    return f"{group.get('name') or key}:{group.get('desc', '')}"


def _short(place: dict[str, Any]) -> dict[str, Any]:
    """Groups of other ranks may have the same name (`split_group` counts those of each parent): a sum of the ranks
    distinguishes them. The whole gang's has none, as PyTorch may leave its ranks out.
    """
    name, members = place["group"], place.pop("members")
    text = name if name.endswith(":default_pg") or not members else f"{name}#{zlib.crc32(members.encode()) & 0xFFFF:x}"
    return {**place, "group": _NOT_SENT.sub("?", text)[-NAME_CHARACTERS_MAX:]}
