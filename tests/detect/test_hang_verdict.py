"""Why a gang stands still, from what all of its ranks show: who is named, and whose node is a suspect."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from understudy_controlplane.detect.hang_verdict import Cause, RankShown, Verdict, verdict
from understudy_wire.ranks import (
    Entered,
    GroupPlace,
    NcclCommunicator,
    NcclSeen,
    ProcessNow,
    ProcessState,
    Recorder,
)

WORLD, PAIR = "0:default_pg", "1:tp"
IDLE, BUSY = ProcessNow(ProcessState.SLEEPS, 60.0), ProcessNow(ProcessState.RUNS, 0.0)
BLOCKED, STOPPED = ProcessNow(ProcessState.BLOCKED, 60.0), ProcessNow(ProcessState.STOPPED, 60.0)
GONE, TRACED = ProcessNow(ProcessState.GONE), ProcessNow(ProcessState.TRACED, 60.0)
SUM = "all_reduce [[64]] Float"


def at(last: int, open: int = 0, what: str = SUM, group: str = WORLD, begun: bool = False) -> GroupPlace:
    return GroupPlace(group, last, open, [Entered(open, what)] if open else [], begun)


def shows(*places: GroupPlace, peers: Sequence[int] = (), still: bool = True) -> Recorder:
    return Recorder(list(places), list(peers), still)


INSIDE, BEFORE = shows(at(120, 120)), shows(at(119))


def gang(*ranks: tuple[Recorder | None, ProcessNow | None]) -> Verdict:
    return verdict([RankShown(rank, recorder, process) for rank, (recorder, process) in enumerate(ranks)])


def with_fault(recorder: Recorder | None, process: ProcessNow | None, others: Recorder = INSIDE) -> Verdict:
    """Rank 2 of four shows this; the others wait."""
    return gang(*[(others, IDLE)] * 2, (recorder, process), (others, IDLE))


@pytest.mark.parametrize(
    ("recorder", "process", "cause", "suspects", "words"),
    [
        (BEFORE, IDLE, Cause.NOT_ENTERED, (2,), "its process has done nothing for 60 s"),
        (BEFORE, BUSY, Cause.NOT_ENTERED, (), "its process works: it may evaluate"),
        (BEFORE, None, Cause.NOT_ENTERED, (), "nothing else is known of it"),
        (BEFORE, TRACED, Cause.NOT_ENTERED, (), "a debugger has stopped its process"),
        (BEFORE, BLOCKED, Cause.PROCESS, (2,), "waits inside the kernel"),
        (None, STOPPED, Cause.PROCESS, (2,), "is stopped"),
        (None, GONE, Cause.PROCESS, (2,), "is gone"),
        (None, IDLE, Cause.NOT_ENTERED, (2,), "done nothing"),
        (None, BUSY, Cause.NOT_ENTERED, (), "its process works"),
        (None, None, Cause.NOT_KNOWN, (), "some of its ranks do not show"),
        (shows(at(119), still=False), IDLE, Cause.NOT_KNOWN, (), "some of its ranks do not show"),
        (shows(), IDLE, Cause.NOT_KNOWN, (), "some of its ranks do not show"),
        (INSIDE, IDLE, Cause.ALL_WAIT, (), "none is late"),
        (INSIDE, BLOCKED, Cause.ALL_WAIT, (), "none is late"),
        (shows(at(120, 120, "all_reduce [[65]] Float")), IDLE, Cause.OTHER_ARGUMENTS, (), "a mistake of the program"),
        (
            shows(at(120, 120, "broadcast [[64]] Float")),
            IDLE,
            Cause.OTHER_ARGUMENTS,
            (),
            "rank 2: broadcast [[64]] Float",
        ),
    ],
)
def test_one_rank_of_four(
    recorder: Recorder | None, process: ProcessNow | None, cause: Cause, suspects: tuple[int, ...], words: str
) -> None:
    found = with_fault(recorder, process)
    named = (2,) if cause not in (Cause.NOT_KNOWN, Cause.ALL_WAIT) else ()
    assert (found.cause, found.ranks, found.suspects) == (cause, named, suspects)
    assert words in found.why


def test_a_rank_whose_gpu_works_is_named_and_its_node_is_no_suspect() -> None:
    ranks = [RankShown(rank, BEFORE if rank == 2 else INSIDE, IDLE, gpu_works=rank == 2) for rank in range(4)]
    assert (verdict(ranks).ranks, verdict(ranks).suspects) == ((2,), ())


def test_others_may_be_far_ahead_of_the_one_that_is_missing() -> None:
    """The first collective that is not over counts: with NCCL the processor goes on while the GPU waits."""
    assert with_fault(BEFORE, IDLE, shows(at(150, 120))).ranks == (2,)
    assert with_fault(shows(at(130, 120)), IDLE, shows(at(150, 120))).cause is Cause.ALL_WAIT


def test_a_rank_that_waits_for_another_is_not_the_one() -> None:
    """Rank 1 has not entered the gang's collective, because it waits for rank 0 in that of its pair."""
    outside, inside = at(7, group=PAIR), at(8, 8, group=PAIR)
    found = gang((shows(at(119), outside), IDLE), (shows(at(119), inside), IDLE), (INSIDE, IDLE), (INSIDE, IDLE))
    assert (found.cause, found.ranks, found.suspects) == (Cause.NOT_ENTERED, (0,), (0,))


def test_a_rank_in_a_transfer_waits_for_its_peer() -> None:
    found = gang((BEFORE, IDLE), (shows(at(119), peers=[0]), IDLE), (INSIDE, IDLE), (INSIDE, IDLE))
    assert found.ranks == (0,)
    found = gang((INSIDE, IDLE), (shows(at(119), peers=[2**31 - 1]), IDLE), (INSIDE, IDLE), (INSIDE, IDLE))
    assert (found.ranks, found.suspects) == ((), ()), "its peer is not known"


def test_a_group_that_waits_in_its_own_collective_is_named_as_a_group() -> None:
    inside = at(8, 8, group=PAIR)
    found = gang((shows(at(119), inside), IDLE), (shows(at(119), inside), IDLE), *[(INSIDE, IDLE)] * 4)
    assert (found.cause, found.group, found.ranks) == (Cause.ALL_WAIT, PAIR, ())
    assert "(ranks 0, 1)" in found.why


def test_a_rank_that_has_left_another_collective_differs_from_those_that_wait() -> None:
    """A broadcast is over for its root while the others wait in a sum of the same number."""
    recent = [Entered(120, "broadcast [[64]] Float"), Entered(121, SUM)]
    found = with_fault(shows(GroupPlace(WORLD, 121, 121, recent)), IDLE)
    assert (found.cause, found.ranks, found.suspects) == (Cause.OTHER_ARGUMENTS, (2,), ())


def test_two_orders_of_two_groups_are_a_mistake_of_the_program() -> None:
    found = gang(
        (shows(at(119), at(8, 8, group=PAIR)), IDLE),
        (shows(at(120, 120), at(7, group=PAIR)), IDLE),
        *[(INSIDE, IDLE)] * 2,
    )
    assert (found.cause, found.ranks, found.suspects) == (Cause.OTHER_ORDER, (0, 1), ())
    assert "0:default_pg and 1:tp in different orders" in found.why


def test_two_faults_at_once_are_both_named() -> None:
    found = gang(*[(INSIDE, IDLE)] * 4, (None, STOPPED), (BEFORE, IDLE))
    assert (found.ranks, found.suspects) == ((4, 5), (4, 5))
    assert "rank 4: its process is stopped (SIGSTOP); rank 5 did not enter" in found.why


def test_a_gpu_that_has_not_begun_the_collective_is_named() -> None:
    begun, waits = shows(at(120, 120, begun=True)), shows(at(120, 120))
    found = with_fault(waits, IDLE, begun)
    assert (found.cause, found.ranks, found.suspects) == (Cause.GPU_BEHIND, (2,), ())
    assert with_fault(waits, IDLE, waits).cause is Cause.ALL_WAIT, "begins are not recorded"


def test_many_are_never_named() -> None:
    assert gang((INSIDE, IDLE), *[(BEFORE, IDLE)] * 3) == Verdict()
    assert gang(*[(None, STOPPED)] * 4) == Verdict()
    assert gang(*[(None, GONE)] * 2, *[(None, IDLE)] * 2) == Verdict(), "they may have finished"


@pytest.mark.parametrize("seed", range(20))
def test_no_node_is_a_suspect_of_a_gang_whose_late_ranks_work(seed: int) -> None:
    """Innocent waits: whatever the others show, a rank that computes, or moves, is no suspect. 1,000 gangs in all."""
    draw = random.Random(seed)  # noqa: S311 - a seed
    for _ in range(50):
        size = draw.choice([2, 4, 8, 32])
        late = draw.sample(range(size), draw.randint(1, size // 2))
        ranks = [RankShown(rank, INSIDE, IDLE) for rank in range(size)]
        for rank in late:
            works = draw.choice([(BUSY, False), (IDLE, True), (ProcessNow(ProcessState.BLOCKED, 3.0), False)])
            recorder = draw.choice([BEFORE, shows(at(119), still=False), None])
            ranks[rank] = replace(ranks[rank], recorder=recorder, process=works[0], gpu_works=works[1])
        assert verdict(ranks).suspects == ()


def test_the_order_of_the_ranks_changes_nothing() -> None:
    ranks = [RankShown(rank, BEFORE if rank == 2 else INSIDE, IDLE) for rank in range(4)]
    assert len({verdict(order) for order in itertools.permutations(ranks)}) == 1


def test_a_rank_that_has_ended_is_no_suspect_where_the_others_wait_for_another() -> None:
    """Rank 3 has finished well, and rank 0 evaluates."""
    found = gang((BEFORE, BUSY), (INSIDE, IDLE), (INSIDE, IDLE), (None, GONE), (INSIDE, IDLE), (INSIDE, IDLE))
    assert (found.ranks, found.suspects) == ((0,), ())


def test_ranks_that_wait_for_a_file_server_make_none_of_their_nodes_a_suspect() -> None:
    found = gang(*[(BEFORE, BLOCKED)] * 2, *[(INSIDE, IDLE)] * 3)
    assert (found.cause, found.ranks, found.suspects) == (Cause.PROCESS, (0, 1), ())


def test_a_rank_that_did_nothing_for_less_time_than_its_recorder_is_old_is_no_suspect() -> None:
    ranks = [RankShown(rank, BEFORE if rank == 2 else INSIDE, IDLE, idle_seconds_min=90.0) for rank in range(4)]
    assert (verdict(ranks).ranks, verdict(ranks).suspects) == ((2,), ())


def test_a_transfer_whose_other_side_is_not_known_names_none() -> None:
    assert gang(*[(shows(at(120), peers=[2**31 - 1]), IDLE)] * 4) == Verdict()
    assert gang((shows(at(120), peers=[1]), IDLE), (shows(at(120), peers=[0]), IDLE)) == Verdict()


def test_a_gang_of_sixteen_thousand_ranks_is_judged_in_steps_that_grow_with_it() -> None:
    """Pairs of ranks would take hundreds of millions of steps."""
    ranks = 16_384
    late = ranks // 2 - 1
    found = verdict([RankShown(rank, BEFORE if rank < late else INSIDE, IDLE) for rank in range(ranks)])
    assert len(found.ranks) == late
    opens = [RankShown(rank, shows(at(rank + 1, rank + 1)), IDLE) for rank in range(ranks)]
    assert verdict(opens).cause is not Cause.NOT_ENTERED, "half of them are never named"


def of_nccl(
    missing: Sequence[int] = (), behind: Sequence[int] = (), *, still: bool = True, checked: bool = True
) -> NcclSeen:
    one = NcclCommunicator("77", 4, [*missing], len(missing), [*behind], len(behind), "AllReduce 99 of 100")
    return NcclSeen("2.29.2", 1, [one] if missing or behind else [], checked, still)


def without_recorder(*answers: NcclSeen, process: ProcessNow | None = IDLE, ranks: int = 4) -> Verdict:
    """Rank 2 of four shows this; no rank has a recorder."""
    shown = [RankShown(rank, None, process if rank == 2 else IDLE) for rank in range(ranks)]
    return verdict(shown, answers)


def test_nccl_names_the_rank_that_has_begun_fewer_operations_and_suspects_no_node() -> None:
    """It may itself wait for a transfer, which NCCL does not count."""
    found = without_recorder(of_nccl(behind=[2]), of_nccl(behind=[2, 3]))
    assert (found.cause, found.ranks, found.suspects) == (Cause.NOT_ENTERED, (2,), ())
    assert (
        found.why
        == "NCCL: rank 2 began fewer operations than the others of communicator 77 of 4 ranks (AllReduce 99 of 100)"
    )


@pytest.mark.parametrize(
    ("process", "checked", "suspects"),
    [
        (GONE, True, (2,)),
        (BLOCKED, True, (2,)),
        (GONE, False, ()),
        (IDLE, True, ()),
        (BUSY, True, ()),
        (None, True, ()),
    ],
)
def test_a_rank_that_nccl_does_not_reach_is_a_suspect_where_the_kernel_shows_its_end(
    process: ProcessNow | None, checked: bool, suspects: tuple[int, ...]
) -> None:
    found = without_recorder(of_nccl([2]), of_nccl([2], checked=checked), process=process)
    if process is BLOCKED:  # the kernel alone names it
        assert found.cause is Cause.PROCESS
    else:
        assert (found.cause, found.ranks) == (Cause.NOT_REACHED, (2,))
        assert "NCCL does not reach rank 2" in found.why
    assert found.suspects == suspects


@pytest.mark.parametrize(
    "answers",
    [
        (of_nccl([2], still=False),),  # it moves
        (of_nccl([2]), of_nccl()),  # another rank reaches it
        (of_nccl([2]), of_nccl([0])),  # each is cut off from the other
        (of_nccl([1, 2]),),  # half: those that it does not reach, or it, may be cut off
        (of_nccl(behind=[0, 1, 2]),),  # most are behind: one is ahead
        (of_nccl(behind=[1]), of_nccl(behind=[2])),
    ],
)
def test_nccl_names_none_where_its_answers_differ_or_name_too_many(answers: Sequence[NcclSeen]) -> None:
    assert without_recorder(*answers, process=GONE).ranks == ()


def test_nccl_says_that_none_is_late() -> None:
    found = without_recorder(of_nccl(), of_nccl())
    assert (found.cause, found.ranks) == (Cause.ALL_WAIT, ())
    assert "have begun as many operations" in found.why
    assert without_recorder(NcclSeen("2.29.2", 0, still=True)).cause is Cause.NOT_KNOWN, "it has no communicator"


def test_what_the_recorders_show_goes_before_nccl() -> None:
    shown = [RankShown(rank, BEFORE if rank == 2 else INSIDE, IDLE) for rank in range(4)]
    assert verdict(shown, [of_nccl(behind=[1])]) == verdict(shown)
