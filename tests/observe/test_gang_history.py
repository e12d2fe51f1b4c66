"""What was planned about gangs is read once, and forgotten after a week."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests import builders as b
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    PastPlan,
    Plan,
    PoolSwapPlan,
    ReleaseJobPlan,
)
from understudy_controlplane.observe.gang_history import PLAN_AGE_MAX_SECONDS, GangHistory

KEY = b.job().key
HUNG = PoolSwapPlan(
    steps=(), drain_reason="", job=KEY, submit_at=0, restart_count=0, user="", seats=(), last_step=41, hang="no step"
)
ORDERED = AllocationSwapPlan(
    steps=(), drain_reason="", job=KEY, submit_at=0, restart_count=0, launch=2, time_limit_minutes=600
)
LATER = AllocationSwapPlan(
    steps=(), drain_reason="", job=KEY, submit_at=0, restart_count=0, launch=-1, time_limit_minutes=630
)
RELEASED = ReleaseJobPlan(steps=(), job=KEY, submit_at=0, restart_count=0)


@dataclass
class Recoveries:
    plans: list[PastPlan] = field(default_factory=list)
    read: int = 0

    def add(self, at: float, plan: Plan) -> None:
        self.plans.append(PastPlan(len(self.plans) + 1, at, plan))

    def gang_plans_after(self, recovery_id: int, since: float) -> list[PastPlan]:
        found = [one for one in self.plans if one.recovery > recovery_id and one.at >= since]
        self.read += len(found)
        return found


def test_each_plan_is_read_once() -> None:
    recoveries = Recoveries()
    history = GangHistory(recoveries)
    recoveries.add(b.NOW, HUNG)
    for _ in range(3):
        history.refresh(b.NOW)
    recoveries.add(b.NOW + 1, ORDERED)
    history.refresh(b.NOW + 1)
    assert recoveries.read == 2
    assert history.swaps_since(b.NOW) == ((b.NOW, KEY), (b.NOW + 1, KEY))
    assert history.swaps_since(b.NOW + 1) == ((b.NOW + 1, KEY),)


def test_moves_releases_hangs_and_time_limits() -> None:
    recoveries = Recoveries()
    plans: tuple[Plan, ...] = (RELEASED, HUNG, ORDERED, LATER)
    for at, plan in enumerate(plans):
        recoveries.add(b.NOW + at, plan)
    history = GangHistory(recoveries)
    history.refresh(b.NOW + 10)
    assert history.releases_since(0.0) == ((b.NOW, KEY),)
    assert history.swaps_since(0.0) == ((b.NOW + 1, KEY), (b.NOW + 2, KEY)), "LATER gives up no launch"
    assert history.hangs() == ((KEY, 41),)
    assert history.limits() == {(KEY, 0): 600}, "the first fault's"


def test_after_a_week_a_plan_is_forgotten() -> None:
    recoveries = Recoveries()
    recoveries.add(b.NOW, HUNG)
    history = GangHistory(recoveries)
    history.refresh(b.NOW)
    history.refresh(b.NOW + PLAN_AGE_MAX_SECONDS + 1)
    assert history.hangs() == ()
