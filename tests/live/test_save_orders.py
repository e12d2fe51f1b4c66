"""Orders to save on their way to the ranks of a gang: none counts before every rank has answered."""

from __future__ import annotations

from understudy.save_steps import SaveSteps
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.saving import SaveCause, WantedSave
from understudy_controlplane.live.save_orders import MARGIN_SECONDS, SaveOrders
from understudy_wire.ranks import OrderState, RankWindow, SaveOrder, SavesFollowed

KEY = JobKey("c", 7, 100)


def wanted(step: int, every: int = 0, memory_every: int = 0) -> WantedSave:
    return WantedSave(KEY, step, every, SaveCause.REQUEST, "alice: before the move", 1, memory_every)


class Ranks:
    """Real ranks of one gang, whose reports arrive when the test decides."""

    def __init__(self, world: int, restart_count: int = 0) -> None:
        self.steps = [SaveSteps() for _ in range(world)]
        self.restart_count = restart_count

    def train(self, until: int, every: int = 0) -> list[set[int]]:
        """What each rank saves before."""
        saved: list[set[int]] = [set() for _ in self.steps]
        for number, steps in enumerate(self.steps):
            begin = (steps.report() or {"asked": 0})["asked"] + 1
            saved[number] = {step for step in range(begin, until + 1) if steps.due(step, every)}
        return saved

    def report(self, live: SaveOrders, now: float, ranks: list[int] | None = None) -> None:
        """Reports of these ranks, each from a node of its own; and the control plane's answer."""
        for rank in range(len(self.steps)) if ranks is None else ranks:
            known = self.steps[rank].report()
            if known is None:
                continue
            state = OrderState(known.pop("state")) if "state" in known else None
            window = RankWindow(
                job_id=7,
                restart_count=self.restart_count,
                rank=rank,
                world_size=len(self.steps),
                user_id=1000,
                saves=SavesFollowed(**known, state=state),
            )
            live.receive([window], now)
            for order in live.answer_to([window]):
                self.steps[rank].take(message(order))


def message(order: SaveOrder) -> dict[str, object]:
    every = {"every": order.every, "memory_every": order.memory_every}
    return {"number": order.number, "step": order.step, "state": order.state.value, **every}


def trained(world: int = 3) -> tuple[Ranks, SaveOrders]:
    ranks, live = Ranks(world), SaveOrders()
    ranks.train(10)
    ranks.report(live, 100.0)
    ranks.train(20)
    ranks.report(live, 105.0)
    return ranks, live


def test_all_ranks_save_before_the_ordered_step_and_so_many_steps_from_there_on() -> None:
    ranks, live = trained()
    assert live.gangs()[7].step_seconds == 0.5
    assert live.propose(wanted(30, every=10), 106.0)
    for now in (106.0, 107.0, 108.0):
        ranks.report(live, now)
    [settled] = live.settle(108.0)
    assert settled.order.state is OrderState.VALID
    assert ranks.train(60) == [{30, 40, 50, 60}] * 3
    ranks.report(live, 125.0)
    gang = live.gangs()[7]
    assert gang.settled
    assert (gang.every, gang.saves_at) == (10, 107.0)


def test_an_order_for_memory_counts_for_gangs_that_all_ask_for_it_and_not_where_an_agent_leaves_it_out() -> None:
    ranks, live = trained()
    assert not live.gangs()[7].asks_memory
    for steps in ranks.steps:
        steps.due(20, 10, in_memory=True)
    ranks.report(live, 106.0)
    gang = live.gangs()[7]
    assert (gang.asks_memory, gang.memory_every) == (True, 10)
    assert live.propose(wanted(30, every=10, memory_every=4), 106.0)
    for now in (106.0, 107.0, 108.0):
        ranks.report(live, now)
    for steps in ranks.steps:
        assert [step for step in range(21, 41) if steps.due(step, 10, in_memory=True)] == [30, 34, 38, 40]
    ranks.train(40)
    ranks.report(live, 110.0)
    assert live.gangs()[7].memory_every == 4

    assert live.propose(wanted(90, every=10, memory_every=5), 111.0)
    ranks.report(live, 111.0)
    of_older = SavesFollowed(asked=40, number=2, state=OrderState.PROPOSED, step=90, every=10)
    for rank in range(3):
        window = RankWindow(job_id=7, restart_count=0, rank=rank, world_size=3, user_id=1000, saves=of_older)
        live.receive([window], 112.0)
    [_, settled] = live.settle(112.0 + MARGIN_SECONDS)
    assert settled.order.state is OrderState.WITHDRAWN


def test_nothing_is_valid_while_one_rank_has_not_answered_and_then_it_is_withdrawn() -> None:
    ranks, live = trained()
    live.propose(wanted(40), 106.0)
    for now in (106.0, 107.0, 108.0):
        ranks.report(live, now, [0, 1])
    assert live.settle(108.0) == []
    [settled] = live.settle(106.0 + MARGIN_SECONDS)
    assert settled.order.state is OrderState.WITHDRAWN
    assert settled.why == "1 of 3 ranks did not answer in time"
    ranks.report(live, 115.0)
    assert ranks.train(60) == [set()] * 3
    ranks.report(live, 116.0)
    gang = live.gangs()[7]
    assert gang.settled
    assert gang.margin_seconds == 2 * MARGIN_SECONDS, "the next step is further ahead"
    assert gang.not_before > 114.0


def test_an_order_that_comes_too_late_for_one_rank_is_withdrawn_at_once() -> None:
    ranks, live = trained()
    live.propose(wanted(30), 106.0)
    ranks.report(live, 106.0, [0, 1])
    for step in range(21, 36):
        ranks.steps[2].due(step)
    ranks.report(live, 107.0)
    ranks.report(live, 108.0)
    assert [one.why for one in live.settle(108.0)] == ["rank 2 got the order too late"]
    ranks.report(live, 109.0)
    assert ranks.train(60) == [set()] * 3


def test_no_other_order_is_made_before_every_rank_follows_the_last() -> None:
    ranks, live = trained()
    live.propose(wanted(30), 106.0)
    assert not live.propose(wanted(50), 106.5)
    for now in (106.0, 107.0, 108.0):
        ranks.report(live, now)
    assert not live.propose(wanted(50), 108.5)
    ranks.train(30)
    ranks.report(live, 110.0)
    assert live.propose(wanted(50), 111.0)


def test_ranks_of_which_one_did_not_follow_an_order_are_split_until_all_follow_another_one() -> None:
    """One rank's node reached no control plane between its answer and the end of its wait at the step."""
    ranks, live = trained()
    ranks.steps[2].wait_seconds = 0.0
    live.propose(wanted(30), 106.0)
    ranks.report(live, 106.0)
    ranks.report(live, 107.0, [2, 0, 1])
    ranks.report(live, 107.5, [0])
    assert ranks.train(41, every=20) == [{30, 40}, {30, 40}, {40}], "and so on: none of their checkpoints is complete"
    assert not live.gangs()[7].split, "not known yet"
    ranks.report(live, 115.0)
    assert live.gangs()[7].split
    after = SaveOrders()
    ranks.report(after, 116.0)
    assert after.gangs()[7].split, "another process of the control plane sees it, too"
    assert live.propose(wanted(50), 116.0)
    ranks.report(live, 116.0, [0, 1])
    ranks.report(live, 117.0, [0, 1])
    assert [one.why for one in live.settle(130.0)][-1] == "1 of 3 ranks did not answer in time"
    ranks.report(live, 130.0)
    ranks.report(live, 131.0)
    assert live.gangs()[7].split, "an order that is withdrawn changes nothing of that"
    after = SaveOrders()
    ranks.report(after, 132.0)
    assert after.gangs()[7].split, "nor does it for another process, which sees that order alone"
    assert live.propose(wanted(60), 140.0)
    for now in (140.0, 141.0, 142.0):
        ranks.report(live, now)
    assert [each & set(range(60, 101)) for each in ranks.train(100, every=20)] == [{60, 80, 100}] * 3
    ranks.report(live, 160.0)
    assert not live.gangs()[7].split


def test_a_process_that_starts_alone_after_an_order_was_withdrawn_does_not_save_by_the_codes_own_interval() -> None:
    """No order is left that it could get: the others have to agree with it on another one."""
    ranks, live = trained()
    assert live.propose(wanted(30, every=10), 106.0)
    for now in (106.0, 107.0, 108.0):
        ranks.report(live, now)
    ranks.train(33)
    ranks.report(live, 110.0)
    assert live.propose(wanted(50), 111.0)
    ranks.report(live, 111.0, [0, 1])
    live.settle(130.0)
    ranks.report(live, 130.0)
    ranks.report(live, 131.0)
    assert not live.gangs()[7].split
    ranks.steps[1] = SaveSteps()
    ranks.steps[1].due(34, 7)
    after = SaveOrders()
    ranks.report(after, 132.0)
    assert after.gangs()[7].split


def test_ranks_whose_hook_does_not_report_which_order_it_follows_are_not_taken_for_split() -> None:
    ranks, live = trained()
    assert live.propose(wanted(30, every=10), 106.0)
    for now in (106.0, 107.0, 108.0):
        ranks.report(live, now)
    ranks.train(33)
    ranks.report(live, 109.0)
    older = RankWindow(
        job_id=7,
        restart_count=0,
        rank=2,
        world_size=3,
        user_id=1000,
        saves=SavesFollowed(asked=33, number=1, state=OrderState.FOLLOWED, step=30, every=10),
    )
    live.receive([older], 110.0)
    assert not live.gangs()[7].split


def test_a_gang_of_which_a_rank_does_not_ask_is_not_whole() -> None:
    ranks, live = Ranks(3), SaveOrders()
    for rank in (0, 2):
        ranks.steps[rank].due(1)
    ranks.report(live, 100.0)
    assert not live.gangs()[7].is_whole


def test_after_a_start_of_the_control_plane_the_orders_are_what_the_ranks_report() -> None:
    ranks, before = trained()
    before.propose(wanted(30, every=10), 106.0)
    ranks.report(before, 106.0)
    for known_to in ([], [0]):  # ranks that know from the old process that it is valid
        after = SaveOrders()
        ranks.report(before, 107.0, known_to)
        ranks.report(after, 110.0, [0, 1])
        after.settle(200.0)
        order = after.gangs()[7].order
        assert order is not None
        assert order.state is not OrderState.WITHDRAWN, "the third rank may know that it is valid"
    ranks.report(after, 111.0)
    ranks.report(after, 112.0)
    assert ranks.train(45) == [{30, 40}] * 3


def test_two_orders_of_the_same_number_are_not_taken_for_one() -> None:
    """The leader before gave rank 0 its order, and was replaced before any rank reported it to the next one."""
    ranks, before = trained()
    after = SaveOrders()
    ranks.report(after, 106.0)
    before.propose(wanted(40), 106.0)
    ranks.report(before, 106.0, [0])
    after.propose(wanted(50), 107.0)
    for now in (107.0, 108.0):
        ranks.report(after, now)
    [settled] = after.settle(108.0)
    assert settled.why == "rank 0 has an order of the control plane before with the same number"
    for now in (109.0, 110.0):
        ranks.report(after, now)
    assert ranks.train(30) == [set()] * 3
    assert after.propose(wanted(60), 115.0)
    for now in (115.0, 116.0, 117.0):
        ranks.report(after, now)
    assert ranks.train(70) == [{60}] * 3


def test_ranks_whose_numbers_fall_are_asked_for_a_step_that_is_to_come() -> None:
    ranks, live = trained()
    live.propose(wanted(30), 106.0)
    for _ in range(2):
        ranks.report(live, 106.0)
    for steps in ranks.steps:
        steps.due(0)  # the next epoch, before step 30
    for now, reached in ((112.0, 2), (113.0, 4), (114.0, 6)):
        for steps in ranks.steps:
            steps.due(reached)
        ranks.report(live, now)
    gang = live.gangs()[7]
    assert (gang.asked, gang.step_seconds, gang.settled) == (6, 0.5, True)
    assert live.propose(wanted(12), 115.0)
    for now in (115.0, 116.0, 117.0):
        ranks.report(live, now)
    assert ranks.train(20) == [{12}] * 3


def test_a_new_attempt_begins_without_orders_and_an_ended_job_is_forgotten() -> None:
    ranks, live = trained()
    live.propose(wanted(30), 106.0)
    again = Ranks(2, restart_count=1)
    again.train(5)
    again.report(live, 120.0)
    gang = live.gangs()[7]
    assert (gang.attempt.restart_count, gang.order, gang.world_size, gang.ranks) == (1, None, 2, 2)
    ranks.report(live, 121.0)
    assert live.gangs()[7].attempt.restart_count == 1, "a late report of the old attempt changes nothing"
    live.expect({})
    assert live.gangs() == {}


def test_a_rank_of_another_user_gets_no_order() -> None:
    _, live = trained()
    live.propose(wanted(30), 106.0)
    stranger = RankWindow(job_id=7, restart_count=0, rank=0, world_size=3, user_id=2000, saves=SavesFollowed(asked=20))
    assert live.answer_to([stranger]) == []


def test_a_process_that_starts_again_alone_follows_what_the_others_follow() -> None:
    ranks, live = trained()
    live.propose(wanted(30, every=10), 106.0)
    for now in (106.0, 107.0, 108.0):
        ranks.report(live, now)
    ranks.train(33)
    ranks.report(live, 110.0)
    ranks.steps[1] = SaveSteps()
    ranks.steps[1].due(34)
    ranks.report(live, 111.0)
    assert ranks.train(60) == [{40, 50, 60}] * 3
