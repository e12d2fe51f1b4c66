from __future__ import annotations

from msgspec.structs import replace

from understudy_agent.facts import FactQueue
from understudy_agent.rank_messages import CollectiveEntered, Hello, PeerSeconds, Steps
from understudy_agent.step_windows import WindowBuffer
from understudy_wire.facts import Anomaly, AnomalyKind, CheckpointShard, Fact, FirstStep, KernelEvent, RankStarted
from understudy_wire.ranks import PEERS_MAX, STEPS_PER_WINDOW_MAX, Transfers


def kernel_event(sequence: int) -> KernelEvent:
    return KernelEvent(boot_id="b", sequence=sequence, at=0.0, text="NVRM: Xid")


def first_step(rank: int) -> FirstStep:
    return FirstStep(job_id=1, restart_count=0, rank=rank, world_size=4, step=0, at=0.0)


def shard(rank: int) -> CheckpointShard:
    return CheckpointShard(
        job_id=1,
        restart_count=0,
        rank=rank,
        world_size=4,
        step=10,
        path="/c",
        file=f"{rank}",
        size_bytes=1,
        checksum="crc32:00000000",
        at=0.0,
    )


def anomaly(step: int, user_id: int) -> Anomaly:
    return Anomaly(1, 0, 0, 4, AnomalyKind.LOSS_JUMP, step, 0.0, user_id=user_id)


def test_facts_are_held_in_order_until_acknowledged() -> None:
    facts = FactQueue()
    for sequence in range(3):
        facts.put(kernel_event(sequence))
    assert facts.oldest(2) == [kernel_event(0), kernel_event(1)]
    facts.acknowledge([kernel_event(0)])
    assert facts.oldest(10) == [kernel_event(1), kernel_event(2)]


def test_a_fact_put_twice_is_held_once_and_all_its_callbacks_are_called() -> None:
    facts, results = FactQueue(), list[str | None]()
    facts.put(shard(0), results.append)
    facts.put(shard(0), results.append)
    assert len(facts) == 1
    facts.acknowledge([shard(0)])
    assert results == [None, None]


def test_the_callback_of_a_refused_fact_gets_the_error() -> None:
    facts, results = FactQueue(), list[str | None]()
    facts.put(shard(0), results.append)
    facts.refuse(shard(0), "no such job")
    assert results == ["no such job"]
    assert len(facts) == 0


def test_a_full_queue_drops_first_what_decides_no_recovery_and_reports_it() -> None:
    facts = FactQueue(of_users_max=2)
    for fact in (shard(0), first_step(0)):
        facts.put(fact)
    assert facts.problems() == []
    facts.put(shard(1))
    assert facts.oldest(9) == [shard(0), shard(1)]
    facts.put(shard(2))
    assert facts.oldest(9) == [shard(1), shard(2)]
    assert "2 facts were dropped" in facts.problems()[0]


def test_a_flood_of_a_user_pushes_out_neither_hardware_facts_nor_those_of_other_users() -> None:
    facts = FactQueue(of_node_max=2, of_users_max=100)
    facts.put(kernel_event(1))
    facts.put(anomaly(0, user_id=7))
    for step in range(500):
        facts.put(anomaly(step, user_id=8))
    facts.put(kernel_event(2))
    assert facts.oldest(3) == [kernel_event(1), kernel_event(2), anomaly(0, user_id=7)]
    assert len(facts) == 102


def test_a_flood_of_a_user_delays_no_other() -> None:
    facts = FactQueue()
    for step in range(500):
        facts.put(anomaly(step, user_id=8))
    facts.put(shard(0))
    facts.put(kernel_event(1))
    assert facts.oldest(3) == [kernel_event(1), anomaly(0, user_id=8), shard(0)]


def test_a_fact_that_is_set_back_lets_the_others_go_first() -> None:
    facts = FactQueue()
    for sequence in range(3):
        facts.put(kernel_event(sequence))
    facts.set_back(kernel_event(0))
    facts.set_back(shard(7))
    assert facts.oldest(9) == [kernel_event(1), kernel_event(2), kernel_event(0)]


def test_refused_facts_are_counted_and_shown() -> None:
    facts = FactQueue()
    facts.put(shard(0))
    facts.refuse(shard(0), "no such job")
    assert facts.problems() == ["1 facts were refused by the control plane, the last: no such job"]


def hello(rank: int = 0) -> Hello:
    return Hello(job_id=1, restart_count=0, rank=rank, world_size=4, gpu_index=rank, role="stage0")


def steps(first: int, count: int) -> Steps:
    return Steps(first_step=first, self_seconds=[0.1] * count, wall_seconds=[0.2] * count)


def test_consecutive_steps_become_one_window() -> None:
    windows = WindowBuffer()
    windows.add(hello(), steps(5, 2), 1000)
    windows.add(hello(), steps(7, 3), 1000)
    [window] = windows.take()
    assert (window.first_step, len(window.self_seconds), len(window.wall_seconds)) == (5, 5, 5)
    assert (window.rank, window.gpu_index, window.role) == (0, 0, "stage0")
    assert windows.take() == []


def test_waiting_for_data_and_work_stay_beside_their_steps() -> None:
    windows = WindowBuffer()
    windows.add(hello(), steps(5, 2), 1000)
    windows.add(hello(), replace(steps(7, 1), data_seconds=[0.5], work=[9.0]), 1000)
    windows.add(hello(), steps(8, 1), 1000)
    [window] = windows.take()
    assert (window.data_seconds, window.work) == ([0.0, 0.0, 0.5, 0.0], [None, None, 9.0, None])


def test_transfers_stay_beside_their_steps_for_each_peer_up_to_a_limit() -> None:
    windows = WindowBuffer()
    windows.add(hello(), replace(steps(5, 2), transfers=[PeerSeconds(1, [0.5, 0.25])]), 1000)
    windows.add(hello(), replace(steps(7, 1), transfers=[PeerSeconds(3, [0.125]), PeerSeconds(2, [1.0, 1.0])]), 1000)
    [window] = windows.take()
    assert window.transfers == [Transfers(1, [0.5, 0.25, 0.0]), Transfers(3, [0.0, 0.0, 0.125])]
    for first, peers in ((8, range(4)), (9, range(4, 9))):
        windows.add(hello(), replace(steps(first, 1), transfers=[PeerSeconds(peer, [1.0]) for peer in peers]), 1000)
    [window] = windows.take()
    assert [one.peer for one in window.transfers] == list(range(PEERS_MAX))


def test_a_window_has_no_gaps() -> None:
    windows = WindowBuffer()
    windows.add(hello(), steps(5, 2), 1000)
    windows.add(hello(), steps(90, 1), 1000)
    [window] = windows.take()
    assert (window.first_step, len(window.self_seconds)) == (90, 1)


def test_a_window_keeps_the_newest_steps() -> None:
    windows = WindowBuffer()
    windows.add(hello(), steps(0, STEPS_PER_WINDOW_MAX), 1000)
    windows.add(hello(), steps(STEPS_PER_WINDOW_MAX, 10), 1000)
    [window] = windows.take()
    assert (window.first_step, len(window.self_seconds)) == (10, STEPS_PER_WINDOW_MAX)


def test_no_user_makes_a_report_that_the_control_plane_refuses_as_a_whole() -> None:
    windows = WindowBuffer(ranks_max=4)
    for rank in range(4):
        windows.add(hello(rank), steps(0, 1), 2000)
        windows.place(hello(rank + 10), CollectiveEntered("barrier", 1, 99.5), 2000)
    assert len(windows.take()) == 4


def test_a_user_with_many_ranks_pushes_out_none_of_another_user() -> None:
    windows = WindowBuffer(ranks_max=4)
    windows.add(hello(0), steps(0, 1), 1000)
    windows.place(hello(0), CollectiveEntered("barrier", 1, 99.5), 1000)
    for rank in range(50):
        windows.add(hello(rank), steps(0, 1), 2000)
        windows.place(hello(rank), CollectiveEntered("barrier", 1, 99.5), 2000)
    assert [(window.user_id, window.rank) for window in windows.take()][:2] == [(1000, 0), (2000, 47)]


def test_beyond_the_limit_of_ranks_the_oldest_window_is_dropped() -> None:
    windows = WindowBuffer(ranks_max=2)
    for rank in range(3):
        windows.add(hello(rank), steps(0, 1), 1000)
    assert [window.rank for window in windows.take()] == [1, 2]


def test_a_fact_that_is_set_back_holds_up_no_other_user_and_not_the_node() -> None:
    queue = FactQueue()
    bad = [FirstStep(7, 0, rank, 4, 1, 1.0, user_id=2000) for rank in range(3)]
    good, event = FirstStep(8, 0, 0, 4, 1, 1.0, user_id=1000), KernelEvent("boot", 1, 1.0, "NVRM: Xid")
    for fact in (*bad, good):
        queue.put(fact)
    queue.set_back(bad[0])
    assert queue.oldest(2) == [good, bad[1]], "the other user is next, then another fact of this one"
    queue.put(event)
    assert queue.oldest(1) == [event]
    queue.set_back(event)
    assert queue.oldest(3) == [good, bad[1], event], "what the node reports waits for its turn, too"
    queue.acknowledge([good])
    assert queue.oldest(1) == [event], "and goes first once something was taken"


def test_a_full_queue_drops_the_most_expendable_of_the_user_that_has_most() -> None:
    queue = FactQueue(of_users_max=100)
    starts = [RankStarted(7, 0, rank, 1000, 1.0, 1, user_id=2000) for rank in range(90)]
    steps = [FirstStep(7, 0, rank, 1000, 1, 1.0, user_id=2000) for rank in range(90)]
    other = FirstStep(8, 0, 0, 4, 1, 1.0, user_id=1000)
    facts: list[Fact] = [other, *starts, *steps]
    for fact in facts:
        queue.put(fact)
    held = queue.oldest(1000)
    assert (len(held), queue.dropped) == (100, 81)
    assert set(held) == {other, *starts, *steps[-9:]}
