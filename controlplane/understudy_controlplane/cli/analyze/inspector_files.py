"""Files of NCCL Inspector, one of each process: which communicators are slower than their peers.

Each line is a collective of one rank, as JSON. The form is `v4.0` in all versions that have it, read in the source of
2.28.3 to 2.30.7 (`ext-profiler/inspector`, later `plugins/profiler/inspector`); transfers (`p2p_perf`, since 2.30) are
not compared. It never ran on several GPUs.
"""

from __future__ import annotations

import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from understudy_controlplane.detect.slow_collectives import (
    Communicator,
    Kind,
    Member,
    SlowPlace,
    What,
    slow_places,
)
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.plain_text import one_line

FORM = "v4.0"
BYTES_MAX = 64 * 2**20
"""Newest part of a file that is read. Inspector writes some 400 bytes for each collective, and never ends a file."""
FILES_MAX = 8192
COLLECTIVES_MAX = 4_000_000
SHOWN_MAX = 8
_FILE = re.compile(r".+-pid\d+\.log")
_DIGITS = re.compile(r"\d+")

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]


class InspectorFileError(Exception):
    """Its text is for people, and may name what a file has."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


class _Header(msgspec.Struct):
    id: _Text
    rank: _Rank
    n_ranks: _Number
    nnodes: _Number
    comm_name: _Text = ""  # since 2.30


class _Metadata(msgspec.Struct):
    inspector_output_format_version: _Text
    hostname: _Text
    pid: _Number


class _Collective(msgspec.Struct):
    coll: _Text
    coll_sn: _Number
    coll_msg_size_bytes: _Number
    coll_exec_time_us: _Number
    coll_timing_source: _Text = ""


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    coll_perf: _Collective | None = None


_decoder = msgspec.json.Decoder(_Line)

_Process = tuple[str, int]
"""Host name and process id."""


@dataclass(slots=True)
class _Seen:
    """A communicator, as its ranks' files show it."""

    size: int
    nodes: int
    purpose: str
    ranks: dict[int, _Process] = field(default_factory=dict)
    collectives: dict[int, tuple[str, int, int, int]] = field(default_factory=dict)
    """Number → operation, size, the ranks that are known as bits, and the shortest time of these in microseconds."""

    def add(self, rank: int, process: _Process, one: _Collective) -> None:
        self.ranks[rank] = process
        known = self.collectives.get(one.coll_sn, (one.coll, one.coll_msg_size_bytes, 0, one.coll_exec_time_us))
        shortest = min(known[3], one.coll_exec_time_us)
        self.collectives[one.coll_sn] = (*known[:2], known[2] | 1 << rank, shortest)


@dataclass(frozen=True, slots=True)
class CollectivesAnalysis:
    places: tuple[SlowPlace, ...]
    processes: int
    nodes: int
    communicators: int
    collectives: int  # of which all ranks are known
    notes: tuple[str, ...]

    def as_record(self) -> dict[str, Any]:
        return {
            "slow": [_record(one) for one in self.places],
            "processes": self.processes,
            "nodes": self.nodes,
            "communicators": self.communicators,
            "collectives": self.collectives,
            "notes": [*self.notes],
        }


def analyze_collectives(paths: Sequence[Path]) -> CollectivesAnalysis:
    """Raises InspectorFileError."""
    seen: dict[str, _Seen] = {}
    left_out: Counter[str] = Counter()
    for path in _files(paths):
        for line in _lines(path, left_out):
            _add(seen, line, left_out)
        if sum(len(one.collectives) for one in seen.values()) > COLLECTIVES_MAX:
            raise InspectorFileError(
                f"the files have more than {COLLECTIVES_MAX} collectives: name those of fewer ranks"
            )
    if not seen:
        raise InspectorFileError(f"no file has a collective of NCCL Inspector's form {FORM} that a GPU has timed")
    found = [*_communicators(seen)]
    processes = {process for one in seen.values() for process in one.ranks.values()}
    whole = sum(len(seconds) for one in found for seconds in one.seconds.values())
    notes = [f"{count} lines {why}" for why, count in sorted(left_out.items())]
    return CollectivesAnalysis(
        tuple(slow_places(found)), len(processes), len({host for host, _ in processes}), len(seen), whole, tuple(notes)
    )


def _add(seen: dict[str, _Seen], line: _Line, left_out: Counter[str]) -> None:
    header, one = line.header, line.coll_perf
    if line.metadata.inspector_output_format_version != FORM:
        left_out[f"are not of the form {FORM}"] += 1
    elif one is None:
        left_out["are of transfers, which are not compared"] += 1
    elif one.coll_timing_source != "kernel_gpu":
        left_out["are not timed by the GPU"] += 1
    else:
        purpose = "" if header.comm_name == "unknown" else _DIGITS.sub("#", header.comm_name)
        known = seen.setdefault(header.id, _Seen(header.n_ranks, header.nnodes, purpose))
        known.add(header.rank, (line.metadata.hostname, line.metadata.pid), one)


def _communicators(seen: Mapping[str, _Seen]) -> Iterator[Communicator]:
    places = _places(max(seen.values(), key=lambda one: len(one.ranks)))
    for name, one in seen.items():
        if len(one.ranks) != one.size:
            continue
        members = tuple(Member(process[0], places.get(process)) for _, process in sorted(one.ranks.items()))
        by_kind: dict[Kind, list[float]] = defaultdict(list)
        for _, (operation, size, known, shortest) in sorted(one.collectives.items()):
            if known.bit_count() == one.size:
                by_kind[Kind(one.purpose, one.size, one.nodes, operation, size)].append(shortest / 1e6)
        yield Communicator(name, members, by_kind)


def _places(whole: _Seen) -> dict[_Process, int]:
    """Place of each process among those of its node, by their ranks in the largest communicator. Empty: a process has
    several of its ranks.
    """
    found: dict[_Process, int] = {}
    on_node: Counter[str] = Counter()
    for _, process in sorted(whole.ranks.items()):
        if process in found:
            return {}
        found[process] = on_node[process[0]]
        on_node[process[0]] += 1
    return found


def _files(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InspectorFileError(f"{path} does not exist")
        inside = sorted(one for one in path.iterdir() if _FILE.fullmatch(one.name)) if path.is_dir() else [path]
        found += [one for one in inside if one.is_file()]
    found = list(dict.fromkeys(one.resolve() for one in found))
    if not found:
        raise InspectorFileError("no file has a name that ends in -pidNUMBER.log")
    if len(found) > FILES_MAX:
        raise InspectorFileError(f"more than {FILES_MAX} files")
    return found


def _lines(path: Path, left_out: Counter[str]) -> Iterator[_Line]:
    try:
        with path.open("rb") as file:
            yield from _decoded(file, left_out)
    except OSError as error:
        raise InspectorFileError(f"{path}: {error.strerror}") from error


def _decoded(file: BinaryIO, left_out: Counter[str]) -> Iterator[_Line]:
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - BYTES_MAX))
    lines = file.read(BYTES_MAX).split(b"\n")
    for line in lines[size > BYTES_MAX : -1]:  # what follows the last end of a line is being written
        try:
            yield _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            left_out["are not understood"] += 1


def _record(place: SlowPlace) -> dict[str, Any]:
    worst = place.slow[0]
    return {
        "what": place.what.value,
        "nodes": [*place.nodes],
        "place": place.place,
        "communicators": [one.communicator.name for one in place.slow],
        "operation": worst.kind.operation,
        "size_bytes": worst.kind.size_bytes,
        "seconds": round(worst.seconds, 6),
        "usual_seconds": round(worst.usual_seconds, 6),
        "factor": round(worst.factor, 2),
        "peers": worst.peers,
    }


def lines(found: CollectivesAnalysis) -> Iterator[str]:
    yield f"{counted(found.processes, 'process', 'processes')} on {counted(found.nodes, 'node')}"
    yield f"{counted(found.communicators, 'communicator')}, {counted(found.collectives, 'collective')} with all ranks"
    yield from found.notes
    yield from (_sentence(one) for one in found.places)
    if found.places:
        yield "This is no proof: look at errors and speed of the ports there, and at what else used them meanwhile."
    else:
        yield "no communicator is slower than its peers"


def _sentence(place: SlowPlace) -> str:
    worst, nodes = place.slow[0], ", ".join(place.nodes[:SHOWN_MAX]) + (" …" if len(place.nodes) > SHOWN_MAX else "")
    where = {
        What.NODE: f"node {nodes}",
        What.RAIL: f"GPUs or ports at place {place.place} of {nodes}",
        What.PAIR: f"what lies between {nodes}",
        What.COMMUNICATOR: f"communicator {worst.communicator.name} on {nodes}",
    }[place.what]
    return one_line(
        f"slow: {where}: {worst.kind.operation} of {worst.kind.size_bytes} bytes takes {worst.seconds * 1e3:.3g} ms, "
        f"{worst.factor:.1f} times as long as in {counted(worst.peers, 'other communicator')} "
        f"({worst.usual_seconds * 1e3:.3g} ms), all the time"
    )
