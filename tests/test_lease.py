"""A lead, without its database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import cast

import pytest

from understudy_controlplane.decide.leadership import (
    LEASE_SECONDS,
    SETTLED_SECONDS,
    Lease,
)
from understudy_controlplane.fleet.holder import Holder, Standby
from understudy_controlplane.lease import POLL_SECONDS, STOP_SECONDS, Leadership
from understudy_controlplane.store.holder import HolderSession


class OfOne(Leadership):
    """Its database shows what a test sets; its clock goes on by itself while it waits."""

    def __init__(self, *, able: bool = True) -> None:
        self.now = 1000.0
        super().__init__("", "a:7117", lambda: self.now, lambda: "" if able else "no slurmctld")
        self._led_from = self.now - SETTLED_SECONDS
        self.others = {"b:7117": Standby(0.1, able=True)}
        self.row: Holder | None = Holder(1, None, "c:7117")
        self.is_locked = False
        self.renewals: list[float] = []
        self.ended: list[float] = []
        self.connections = 0
        self.another_was_faster = False
        self._session = cast(HolderSession, self)

    def _connect(self, _name: str = "") -> HolderSession:
        self.connections += 1
        self._session = cast(HolderSession, self)
        return self._session

    def close(self) -> None:
        pass

    def foreign_revision(self) -> str:
        return ""

    def show_able(self, answers: int | None) -> None:
        pass

    def take_lock(self) -> bool:
        self.is_locked = True
        return True

    def holder(self) -> Holder | None:
        return self.row

    def raise_term(self, _seen: Holder | None) -> int | None:
        return 2

    def end_older(self, _term: int) -> bool:
        return not self.another_was_faster

    def renew(self, _term: int) -> bool:
        self.renewals.append(self.now)
        return not self.another_was_faster

    def standbys(self) -> dict[str, Standby]:
        return self.others

    def _begin_to_keep(self) -> None:
        pass

    def leads_within(self, seconds: float) -> bool:
        end = self.now + seconds

        def is_over(pause: float) -> bool:
            self.now += pause
            return self.now >= end

        return self.wait(is_over, lambda _: None)

    def keep_for(self, seconds: float, missing: Callable[[Mapping[str, Standby]], str]) -> None:
        end = self.now + seconds
        self._lease = Lease(2, self.now, self.now)
        self.follow(lambda: int(self.now * 100), lambda: self.ended.append(self.now), missing)
        self._over = cast(threading.Event, _Until(self, end))
        self._keep()


class _Until:
    def __init__(self, lead: OfOne, end: float) -> None:
        self._lead, self._end = lead, end

    def wait(self, seconds: float) -> bool:
        self._lead.now += seconds
        return self._lead.now >= self._end


@pytest.mark.parametrize("others", [{}, {"b:7117": Standby(0.1, able=False)}, {"b:7117": Standby(60.0, able=True)}])
def test_the_lead_is_passed_to_no_standby_that_could_not_work(others: dict[str, Standby]) -> None:
    lead = OfOne()
    able, lead.others = lead.others, others
    lead.keep_for(60.0, lambda _: "no slurmctld")
    assert (lead.ended, lead.handed_over) == ([], "")
    lead.others = able
    lead.keep_for(60.0, lambda _: "no slurmctld")
    assert (len(lead.ended), lead.handed_over) == (1, "no slurmctld")


def test_a_leader_that_has_not_ended_after_it_handed_over_lets_its_lease_run_out() -> None:
    lead = OfOne()
    lead.keep_for(60.0, lambda _: "no slurmctld")
    [ended] = lead.ended
    assert ended < lead.renewals[-1] <= ended + STOP_SECONDS
    assert lead.is_cut_off()


@pytest.mark.parametrize(
    ("able", "others", "first"),
    [
        (False, {"b:7117": Standby(0.1, able=True)}, False),
        (False, {"b:7117": Standby(60.0, able=True)}, True),
        (False, {"b:7117": Standby(0.1, able=False)}, True),
        (False, {}, True),
        (True, {"b:7117": Standby(0.1, able=True)}, True),
    ],
)
def test_a_standby_that_cannot_work_lets_one_that_can_be_first(
    able: bool, others: dict[str, Standby], first: bool
) -> None:
    lead = OfOne(able=able)
    lead.others = others
    assert lead.leads_within(LEASE_SECONDS / 2) is first
    assert lead.is_locked is first, "the lock would keep the other one from it"
    assert first or lead.leads_within(LEASE_SECONDS * 2), "the other one does not take it"


def test_one_that_another_was_faster_than_stands_by_again_under_its_own_name() -> None:
    lead = OfOne()
    lead.another_was_faster = True
    lead.leads_within(2 * POLL_SECONDS)
    assert lead.connections == 1
