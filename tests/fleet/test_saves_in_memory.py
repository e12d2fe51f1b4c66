"""What keepers hold of a gang's saves, put together: from which one a gang goes on."""

from __future__ import annotations

from understudy_controlplane.fleet.saves_in_memory import SaveInMemory, saves_in_memory
from understudy_wire.messages import Keeper, KeptSave

USER = 1000


def kept(step: int, *ranks: int, restored: int = 0, blocked: float | None = None, job: int = 7) -> KeptSave:
    return KeptSave(job, USER, 0, 0, step, 3, list(ranks), 10, float(step), restored, blocked)


def seen(**of_nodes: list[KeptSave]) -> list[SaveInMemory]:
    return saves_in_memory({node: Keeper(0, 0, saves=saves) for node, saves in of_nodes.items()}, 7, USER)


def test_a_save_of_which_every_part_is_held_is_one_to_go_on_from_and_says_on_how_many_nodes_each_is() -> None:
    newest, older = seen(
        n1=[kept(9, 0, 1, blocked=0.1), kept(6, 0)],
        n2=[kept(9, 1, 2, blocked=0.3), kept(6, 1)],
        n3=[kept(9, 2, 0), kept(6, 2)],
    )
    assert (newest.step, newest.nodes, newest.ranks, newest.places, newest.against) == (9, 3, 3, 2, "")
    assert newest.blocked_seconds == 0.3, "the gang waits for the slowest"
    assert (older.step, older.places, older.against) == (6, 1, "")


def test_one_of_which_a_part_is_not_held_or_that_failed_twice_is_passed_over_with_the_reason() -> None:
    half, used_up, other = seen(n1=[kept(9, 0), kept(6, 0, 1), kept(3, 0)], n2=[kept(6, 2, restored=2)])
    assert (half.places, half.against) == (0, "the part of rank 1 and of 1 more rank is not held")
    assert used_up.against == "2 attempts went on from it"
    assert other.against == "the part of rank 1 and of 1 more rank is not held"


def test_saves_of_other_jobs_and_users_are_no_saves_of_this_one() -> None:
    assert seen(n1=[kept(9, 0, 1, 2, job=8)]) == []
    assert saves_in_memory({"n1": Keeper(0, 0, saves=[kept(9, 0, 1, 2)])}, 7, 1001) == []
