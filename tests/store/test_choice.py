"""A restore point is chosen in a few milliseconds, however many ranks and checkpoints there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import insert

from tests import builders as b
from tests.new_database import new_database
from tests.stopwatch import best_processor_seconds
from understudy_controlplane.clock import SystemClock
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.recover.restore import RestorePoints
from understudy_controlplane.store import tables
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.database import open_database
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.shard_map import Shard, pack, unpack

RANKS = 100_000
CHECKPOINTS = 200
BYTES_EACH_MAX = 32

pytestmark = pytest.mark.timed


def shards(ranks: int = RANKS) -> list[Shard]:
    return [
        Shard(
            rank, f"n{rank // 8}", f"__{rank}_0.distcp", 2**31, f"xxh3:{hash((rank, 1)) % 2**128:032x}", b.NOW, rank + 1
        )
        for rank in range(ranks)
    ]


def test_of_200_checkpoints_of_100_000_ranks_in_less_than_10_ms(tmp_path: Path) -> None:
    engine = open_database(new_database(tmp_path / "fleet.db"))
    (known,) = FleetStore(engine).see_jobs([b.job()], b.NOW)
    packed = pack(shards())
    same = {"job": known.row, "restart_count": 0, "launch": 0, "world_size": RANKS}
    with engine.begin() as connection:
        connection.execute(insert(tables.gang_world).values(**same, ranks=RANKS))
        for number in range(CHECKPOINTS):
            row = same | {"step": number, "path": f"/c/{number}", "shards": RANKS, "size_bytes": 1, "at": b.NOW}
            checkpoint = connection.execute(
                insert(tables.checkpoint).values(**row, packed=True).returning(tables.checkpoint.c.id)
            ).scalar_one()
            value = {"checkpoint": checkpoint, "packed_through": RANKS, "shards": packed if number % 20 == 0 else b""}
            connection.execute(insert(tables.checkpoint_map).values(**value))
    points = RestorePoints(CheckpointStore(engine), FleetStore(engine), SystemClock())
    attempts = iter(range(9))

    def give() -> None:
        assert points.give(known, Attempt(next(attempts))).step == CHECKPOINTS - 1

    seconds = best_processor_seconds(give, 9)
    engine.dispose()
    assert seconds < 0.010


def test_a_packed_shard_takes_a_tenth_of_a_row() -> None:
    found = shards()
    packed = pack(found)
    assert len(packed) / RANKS < BYTES_EACH_MAX
    assert unpack(packed) == sorted(found, key=lambda one: one.rank)


def test_whatever_checksum_a_rank_announces_is_packed() -> None:
    sums = ["", "crc32:1c291ca3", "odd:abc", *(f"a{number}:00" for number in range(300))]
    found = [Shard(rank, "n1", "", 0, one, b.NOW, rank) for rank, one in enumerate(sums)]
    assert [one.checksum for one in unpack(pack(found))] == sums
