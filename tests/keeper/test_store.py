"""What a keeper holds, and what goes first."""

from __future__ import annotations

import threading

import msgspec
import pytest

from understudy_agent.config import Config, KeeperConfig
from understudy_keeper.__main__ import settings_of
from understudy_keeper.store import AlreadyTakenError, Key, NoRoomError, Part, Save, Store


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def key(step: int, rank: int = 0, user: int = 7, job: int = 1, launch: int = 0) -> Key:
    return Key(user, job, Save(0, launch, step), rank)


def hold(store: Store, one: Key, length: int = 10, whole: Save | None = None) -> Part:
    part = store.reserve(one, 2, length, "crc32:0", whole)
    assert store.finish(part)
    return part


def steps(store: Store, user: int = 7, job: int = 1) -> list[tuple[int, int]]:
    return sorted((one.key.save.step, one.key.rank) for one in store.parts_of(user, job))


def test_the_last_whole_save_stays_until_a_newer_one_is_whole() -> None:
    store = Store(1000, 1000)
    hold(store, key(1))
    hold(store, key(2), whole=Save(0, 0, 1))
    assert steps(store) == [(1, 0), (2, 0)]
    hold(store, key(3), whole=Save(0, 0, 1))  # step 2 did not become whole
    assert steps(store) == [(1, 0), (3, 0)]
    hold(store, key(4), whole=Save(0, 0, 3))
    assert steps(store) == [(3, 0), (4, 0)]
    assert store.bytes_held == 20


def test_a_new_part_uses_the_memory_of_the_one_that_it_replaces_unless_it_is_read() -> None:
    store = Store(1000, 1000)
    memory = [hold(store, key(1)).content, hold(store, key(2), whole=key(1).save).content]
    assert hold(store, key(3), whole=key(2).save).content is memory[0]
    with store.reading(key(2)):
        assert hold(store, key(4), whole=key(3).save).content is not memory[1]
    assert hold(store, key(5), length=9, whole=key(4).save).content is not memory[0], "it has another length"
    assert store.bytes_held == 10 + 9


def test_a_copy_of_an_older_save_takes_nothing_newer_away() -> None:
    store = Store(1000, 1000)
    hold(store, key(9))
    hold(store, key(6), whole=Save(0, 0, 6))
    hold(store, key(7), whole=Save(0, 0, 6))
    assert steps(store) == [(6, 0), (7, 0), (9, 0)]
    hold(store, key(3, launch=1), whole=Save(0, 0, 9))  # a later attempt, which began further back
    assert steps(store) == [(3, 0), (9, 0)]


def test_what_does_not_fit_is_refused_and_nothing_else_goes() -> None:
    store = Store(25, 25)
    hold(store, key(1))
    hold(store, key(2), whole=Save(0, 0, 1))
    with pytest.raises(NoRoomError, match="20 bytes here"):
        store.reserve(key(2, rank=1), 2, 6, "", Save(0, 0, 1))
    with pytest.raises(NoRoomError, match="the keeper's limit is 25"):
        store.reserve(key(3), 2, 26, "", None)
    assert steps(store) == [(1, 0), (2, 0)]
    assert store.counts.refused == 2


def test_no_user_takes_more_than_his_share() -> None:
    store = Store(100, 30)
    hold(store, key(1), 30)
    with pytest.raises(NoRoomError):
        store.reserve(key(1, rank=1), 2, 1, "", None)
    hold(store, key(1, user=8), 30)
    assert store.bytes_held == 60


def test_processes_of_an_earlier_attempt_save_nothing_any_more() -> None:
    store = Store(1000, 1000)
    store.begin_attempt(7, 1, (0, 1))
    with pytest.raises(NoRoomError, match="a later attempt"):
        store.begin_attempt(7, 1, (0, 0))
    store.begin_attempt(7, 1, (1, 0))
    store.begin_attempt(8, 1, (0, 0))


def test_a_part_is_not_listed_before_all_of_it_is_there() -> None:
    store = Store(1000, 1000)
    part = store.reserve(key(1), 2, 10, "", None)
    assert steps(store) == []
    with store.reading(key(1)) as found:
        assert found is None
    with pytest.raises(AlreadyTakenError):
        store.reserve(key(1), 2, 10, "", None)
    store.give_up(part)
    assert (store.bytes_held, store.jobs()) == (0, [])


def test_memory_that_is_still_read_counts_until_its_reader_has_ended() -> None:
    store = Store(15, 15)
    hold(store, key(1))
    with store.reading(key(1)) as part:
        assert part is not None
        store.free(7, 1)
        assert steps(store) == []
        with pytest.raises(NoRoomError):
            store.reserve(key(2), 2, 10, "", None)
    hold(store, key(2))


def test_what_ends_while_it_is_taken_is_not_held() -> None:
    store = Store(100, 100)
    part = store.reserve(key(1), 2, 10, "", None)
    store.free(7, 1)
    assert not store.finish(part)
    assert store.bytes_held == 0


def test_only_what_nothing_uses_expires() -> None:
    clock = Clock()
    store = Store(100, 100, clock)
    hold(store, key(1))
    hold(store, key(1, job=2))
    clock.now += 100
    assert store.expire(60, {(7, 2)}) == [(7, 1)]
    clock.now += 30
    assert store.expire(60, set()) == [], "it was in use 30 seconds ago"
    clock.now += 31
    assert store.expire(60, set()) == [(7, 2)]
    assert store.bytes_held == 0


def test_a_copy_in_another_node_is_awaited() -> None:
    store = Store(100, 100)
    hold(store, key(1))
    assert store.await_copy(key(1), 0.0) == 1
    waiting = threading.Thread(target=store.note_copy, args=(key(1),))
    waiting.start()
    assert store.await_copy(key(1), 30.0) == 2
    waiting.join()
    assert store.await_copy(key(9), 30.0) == 0


def test_attempts_that_went_on_from_a_save_are_counted_once_each() -> None:
    store = Store(100, 100)
    part = hold(store, key(1))
    for attempt in ((0, 1), (0, 1), (1, 0)):
        store.note_restored(7, 1, Save(0, 0, 1), attempt)
    store.note_restored(8, 1, Save(0, 0, 1), (2, 0))
    assert len(part.restored_by) == 2


def test_one_user_gets_half_of_a_keeper_where_the_site_sets_nothing() -> None:
    config = Config(cluster="c", control_plane_urls=("http://head:7117",), node="n1")
    limits = settings_of(config, 1 << 40)
    assert (limits.bytes_max, limits.bytes_of_user_max) == (1 << 38, 1 << 37)
    own = msgspec.structs.replace(config, keeper=KeeperConfig(user_bytes=1 << 38))
    assert settings_of(own, 1 << 40).bytes_of_user_max == 1 << 38
