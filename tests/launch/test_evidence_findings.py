"""Who did not enter which collective, and the text for people: from what ranks showed, without any process."""

from __future__ import annotations

import json

import pytest

from understudy_launcher.evidence import recorded
from understudy_launcher.evidence_findings import (
    EVIDENCE_BYTES_MAX,
    Shown,
    findings,
    fitted,
    printable,
    ranges,
    read_shown,
    text_of,
)

GROUP = "0:default_pg"


def entry(
    number: int, name: str = "nccl:all_reduce", group: tuple[str, str] = ("0", "default_pg")
) -> dict[str, object]:
    """Entry as https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html has it."""
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": 1,
        "input_sizes": [[3, 4]],
        "output_sizes": [[3, 4]],
        "state": "scheduled",
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def dump(*entries: dict[str, object], ranks: str = "[0, 1, 2, 3]") -> dict[str, object]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries)}


def gang(*dumps: dict[str, object] | None) -> list[Shown]:
    """A rank for each on a node of its own; None: it has no flight recorder."""
    shown = []
    for rank, one in enumerate(dumps):
        message = json.loads(json.dumps({"ranks": [{"rank": rank, **({} if one is None else recorded(one))}]}))
        shown += read_shown(f"n{rank + 1}", message)
    return shown


def test_the_rank_that_did_not_enter_a_collective_is_named() -> None:
    whole, short = [entry(number) for number in range(1, 13)], [entry(number) for number in range(1, 12)]
    assert findings(gang(dump(*whole), dump(*whole), dump(*short), dump(*whole))) == [
        f"rank 2 on n3 did not enter collective 12 (nccl:all_reduce) of process group {GROUP}, which 3 others entered"
    ]


def test_others_may_be_far_ahead_of_it() -> None:
    """The processor of a rank goes on while its GPU waits: it is the first that is missing that counts."""
    ahead = [entry(number, f"nccl:all_reduce{number}") for number in range(1, 40)]
    (found,) = findings(gang(dump(*ahead), dump(*ahead[:36]), dump(*ahead)))
    assert found.startswith("rank 1 on n2 did not enter collective 37 (nccl:all_reduce37) of")


def test_a_rank_that_entered_nothing_is_named_by_the_groups_members() -> None:
    ranks = [dump(entry(1)), dump(), dump(entry(1))]
    (found,) = findings(gang(*ranks))
    assert found.startswith("rank 1 on n2 did not enter collective 1 ")


def test_of_a_group_that_has_long_left_the_recorder_nothing_is_concluded() -> None:
    busy = [entry(number) for number in range(100, 140)]
    others = [entry(number, group=("1", "tp")) for number in range(900, 920)]
    config = {"pg_config": {"1": {"name": "1", "desc": "tp", "ranks": "[0, 1]"}}}
    assert findings(gang(dump(*busy, *others) | config, dump(*busy) | config)) == []


def test_different_collectives_under_one_number_are_named() -> None:
    same = [entry(number) for number in range(1, 5)]
    (found,) = findings(gang(dump(*same, entry(5)), dump(*same, entry(5, "nccl:broadcast")), dump(*same, entry(5))))
    assert found == (
        f"ranks entered different collectives as number 5 of process group {GROUP}: "
        "nccl:broadcast: rank 1 on n2; nccl:all_reduce: rank 0 on n1, rank 2 on n3"
    )


def test_ranks_that_all_entered_the_same_blame_none() -> None:
    assert findings(gang(*[dump(entry(1), entry(2))] * 4)) == []


def test_a_rank_without_a_recorder_is_not_named() -> None:
    assert findings(gang(dump(entry(1)), None, dump(entry(1)))) == []


def test_transfers_between_two_ranks_are_no_collectives() -> None:
    assert findings(gang(dump(entry(1), entry(9) | {"is_p2p": True}), dump(entry(1)))) == []


@pytest.mark.parametrize("inside", [True, False])
def test_without_a_recorder_the_training_hook_names_it(inside: bool) -> None:
    others = [Shown(rank, "n1", last=("all_reduce", 8, True)) for rank in (0, 1, 3)]
    behind = Shown(2, "n2", last=("all_reduce", 7, inside))
    assert findings([*others, behind]) == [
        "rank 2 on n2 did not enter collective 8 (all_reduce), in which 3 others wait"
    ]


def test_a_rank_that_entered_none_is_behind_and_one_that_did_not_answer_is_not_named() -> None:
    (none,) = read_shown("n2", {"ranks": [{"rank": 2, "last": None}]})
    (silent,) = read_shown("n3", {"ranks": [{"rank": 3}]})
    others = [Shown(rank, "n1", last=("all_reduce", 1, True)) for rank in (0, 1)]
    assert findings([*others, none, silent]) == [
        "rank 2 on n2 did not enter collective 1 (all_reduce), in which 2 others wait"
    ]


def test_ranks_of_different_roles_count_differently_and_none_is_named() -> None:
    one_stage = [Shown(rank, "n1", last=("send", 8, True)) for rank in (0, 1)]
    assert findings([*one_stage, *(Shown(rank, "n2", last=("recv", 17, True)) for rank in (2, 3))]) == []


def test_alike_ranks_are_shown_once_and_the_odd_one_comes_first() -> None:
    shown = [Shown(rank, f"n{rank}", waits="in futex", stacks="train.py line 7") for rank in range(40)]
    shown[5] = Shown(5, "n5", waits="in nfs_wait", stacks="data.py line 3", wrote="slow disk")
    text = text_of(shown, ["n40"], ["rank 5 did not enter"])
    assert text.index("rank 5 did not enter") < text.index("n40") < text.index("data.py") < text.index("train.py")
    assert "=== ranks 0-4,6-39 (n0, n1, n2, n3, n4, n6, n7, n8, …)" in text
    assert "rank 5 wrote last:\nslow disk" in text
    assert text.count("train.py") == 1


def test_the_text_has_its_size_however_much_there_is() -> None:
    shown = [Shown(rank, "n", stacks=f"{rank} \N{SNOWMAN}" * 5000) for rank in range(100)]
    text = text_of(shown, [], [])
    assert EVIDENCE_BYTES_MAX - 100 < len(json.dumps(text)) <= EVIDENCE_BYTES_MAX
    assert text.endswith("(cut)")
    assert fitted("a" * 30_000) == "a" * 30_000


def test_nothing_of_it_moves_a_terminals_cursor_or_breaks_utf_8() -> None:
    assert printable("a\x1b[2Jb\x07\udc80\rc\n\td\r\n") == ("ab" + "\N{REPLACEMENT CHARACTER}" * 3 + "c\n\td\n")


def test_what_a_seat_of_another_release_sends_is_left_out() -> None:
    odd = [
        {"rank": float("inf")},
        {"rank": "x"},
        {"rank": 1, "last": 7},
        {"rank": 2, "entered": []},
        5,
        {"rank": 3, "entered": {"g": [[1]]}},
    ]
    assert [one.rank for one in read_shown("n1", {"ranks": [*odd, {"rank": 4}]})] == [4]
    assert read_shown("n1", {"ranks": None}) == []


def test_ranges() -> None:
    assert ranges([3, 0, 1, 2, 9]) == "0-3,9"
