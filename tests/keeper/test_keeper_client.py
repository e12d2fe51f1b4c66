"""What the agent learns of its node's keeper, and frees there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.keeper.test_between_keepers import Munge, holding, identity
from understudy_agent.keeper_client import exchange
from understudy_keeper.server import Keeper, Settings
from understudy_keeper.store import Key, Save
from understudy_wire import messages as wire
from understudy_wire.messages import KeptJob


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    settings = Settings(tmp_path / "keeper.sock", "127.0.0.1", 0, "127.0.0.1", 1 << 20, 1 << 20, 1e9, 3600)
    made = Keeper(settings, identity(Munge()))
    made.start()
    yield made
    made.stop()


def test_the_agent_frees_jobs_of_any_user_that_have_ended(keeper: Keeper, tmp_path: Path) -> None:
    socket = tmp_path / "keeper.sock"
    for user, job in ((1000, 7), (1001, 7), (1000, 8)):
        holding(b"x" * 10, Key(user, job, Save(0, 0, 1), 0), keeper.store)
    found = exchange(socket, ())
    assert found is not None
    assert (found.bytes_held, found.bytes_max) == (30, 1 << 20)
    assert found.jobs == [KeptJob(7, 1000), KeptJob(8, 1000), KeptJob(7, 1001)]
    found = exchange(socket, [KeptJob(7, 1000)])
    assert found is not None
    assert found.jobs == [KeptJob(8, 1000), KeptJob(7, 1001)]


def test_the_agent_learns_of_which_saves_which_parts_are_held(keeper: Keeper, tmp_path: Path) -> None:
    for rank, step in ((0, 6), (1, 6), (2, 9)):
        holding(b"x" * 10, Key(1000, 7, Save(0, 1, step), rank), keeper.store)
    keeper.store.note_restored(1000, 7, Save(0, 1, 6), (0, 1))
    found = exchange(tmp_path / "keeper.sock", ())
    assert found is not None
    seen = [(one.job_id, one.user_id, one.launch, one.step, one.ranks, one.restored) for one in found.saves]
    assert seen == [(7, 1000, 1, 9, [2], 0), (7, 1000, 1, 6, [0, 1], 1)]
    assert (found.saves[1].world_size, found.saves[1].size_bytes) == (2, 20)


def test_a_keeper_that_has_moved_more_than_a_report_can_say_says_the_most(keeper: Keeper, tmp_path: Path) -> None:
    """Weeks of saves may reach it: a count that is too large would leave the keeper out of each report."""
    keeper.store.counts.bytes_taken = 2**53 + 1
    found = exchange(tmp_path / "keeper.sock", ())
    assert found is not None
    assert found.bytes_taken == 2**53
    assert msgspec.json.decode(msgspec.json.encode(found), type=wire.Keeper) == found


@pytest.mark.parametrize(
    ("job", "save", "ranks"),
    [
        (7, Save(2**40, 0, 0), [0]),
        (7, Save(0, 2**40, 0), [0]),
        (2**32 - 1, Save(0, 0, 0), [0]),
        (7, Save(0, 0, 9), range(1025)),
    ],
)
def test_what_a_process_makes_up_costs_the_node_no_report(
    keeper: Keeper, tmp_path: Path, job: int, save: Save, ranks: Sequence[int]
) -> None:
    """The control plane refuses a report with a number that is too large, and all of it."""
    for rank in ranks:
        holding(b"x", Key(1000, job, save, rank), keeper.store)
    found = exchange(tmp_path / "keeper.sock", ())
    assert found is not None
    assert found.bytes_held == len(ranks)
    assert msgspec.json.decode(msgspec.json.encode(found), type=wire.Keeper) == found


def test_without_a_keeper_there_is_nothing_to_report(tmp_path: Path) -> None:
    assert exchange(tmp_path / "no.sock", ()) is None


def test_a_keeper_that_was_started_again_has_its_socket(keeper: Keeper, tmp_path: Path) -> None:
    assert (tmp_path / "keeper.sock").stat().st_mode & 0o777 == 0o666
    keeper.stop()
    assert exchange(tmp_path / "keeper.sock", ()) is None
