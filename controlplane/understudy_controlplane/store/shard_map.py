"""All shards of a checkpoint as one packed value: a few bytes for each instead of a row of 300."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

VERSION = 1
LEVEL = 3
"""zlib's: higher ones take three times as long for a tenth fewer bytes. Checksums cannot be compressed."""

AS_TEXT = 255
"""Instead of the number of an algorithm: the checksum follows as it is."""


class Shard(NamedTuple):
    """A file that one rank announced of a checkpoint."""

    rank: int
    node: str
    file: str
    size_bytes: int
    checksum: str
    at: float
    order: int
    """Number among all announcements in this database: if two checkpoints name one file, the higher one wrote it last.
    """


class _Columns(msgspec.Struct, frozen=True, array_like=True):
    version: int
    nodes: list[str]
    ranks: list[int]
    node_numbers: list[int]
    files: list[str]
    sizes: list[int]
    algorithms: list[str]
    sums: list[bytes]  # of each: the number of the algorithm, and the value; empty: none
    times: list[float]
    orders: list[int]  # each as the difference to the one before it


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Columns)


def pack(shards: Iterable[Shard]) -> bytes:
    rows = sorted(shards, key=lambda one: (one.rank, one.file))
    numbers: dict[str, int] = {}
    algorithms: list[str] = []
    columns = _Columns(
        VERSION,
        [],
        [one.rank for one in rows],
        [numbers.setdefault(one.node, len(numbers)) for one in rows],
        [one.file for one in rows],
        [one.size_bytes for one in rows],
        algorithms,
        [_sum_of(one.checksum, algorithms) for one in rows],
        [one.at for one in rows],
        [one.order - before.order if before else one.order for one, before in zip(rows, [None, *rows], strict=False)],
    )
    columns.nodes.extend(numbers)
    return zlib.compress(_encoder.encode(columns), LEVEL)


def unpack(packed: bytes) -> list[Shard]:
    """Shards in the order of ranks."""
    columns = _decoder.decode(zlib.decompress(packed))
    shards, order = [], 0
    for rank, number, file, size, value, at, more in zip(
        columns.ranks,
        columns.node_numbers,
        columns.files,
        columns.sizes,
        columns.sums,
        columns.times,
        columns.orders,
        strict=True,
    ):
        order += more
        checksum = _checksum(value, columns.algorithms)
        shards.append(Shard(rank, columns.nodes[number], file, size, checksum, at, order))
    return shards


def _sum_of(checksum: str, algorithms: list[str]) -> bytes:
    """Half as long as its text."""
    if not checksum:
        return b""
    algorithm, _, value = checksum.partition(":")
    if algorithm not in algorithms and len(algorithms) < AS_TEXT:
        algorithms.append(algorithm)
    try:
        return bytes([algorithms.index(algorithm)]) + bytes.fromhex(value)
    except ValueError:  # an odd number of digits, or more algorithms than there are
        return bytes([AS_TEXT]) + checksum.encode()


def _checksum(value: bytes, algorithms: list[str]) -> str:
    if not value or value[0] == AS_TEXT:
        return value[1:].decode()
    return f"{algorithms[value[0]]}:{value[1:].hex()}"


def shards_of_row(row: Mapping[str, Any]) -> list[Shard]:
    """Shards of a row of the table `checkpoint_shard`."""
    rank, node, at, order = (row[name] for name in ("rank", "node", "at", "id"))
    files = [(row["file"], row["size_bytes"], row["checksum"]), *row["more_files"]]
    return [Shard(rank, node, file, size, checksum, at, order) for file, size, checksum in files]
