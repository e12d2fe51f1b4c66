"""A recovery whose control plane cannot be sure of its lead for a while."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import builders as b
from tests.recover.rehearsal import Rehearsal
from tests.recover.test_repair_cycle import states_passed
from tests.simulator.world import EffectAtOnce
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.fleet.recovery import StepName
from understudy_controlplane.slurm.fenced import fenced
from understudy_controlplane.slurm.protocol import NotSent
from understudy_controlplane.store.database_lock import Alone

pytestmark = pytest.mark.integration


class Lapsing(Alone):
    """The lease is over after `holds_for` questions, in each round of `lapses`."""

    lapses = False
    asked = 0
    holds_for = 1

    def objection(self) -> str:
        self.asked += 1
        return "the database has not confirmed it" if self.lapses and self.asked > self.holds_for else ""


class Hanging(EffectAtOnce):
    """Its end is learned later, by a tick in which this control plane is sure of its lead again."""

    hangs = False

    def is_over(self, _within_seconds: float) -> bool:
        return not (Hanging.hangs and isinstance(self._error, NotSent))


class OfTwo(Rehearsal):
    lead = Lapsing()

    def _compose(self) -> ControlPlane:
        self.lead = Lapsing()
        outside = Outside(self.line, self._probe, self.clock, sleep=self._sleep, begin_effect=Hanging, lead=self.lead)
        return compose(self._config, replace(outside, slurm=fenced(self.line, self.lead.objection, 2.0)))


@pytest.mark.parametrize(
    ("holds_for", "hangs"),
    [(1, False), (2, False), (2, True)],
    ids=["before the step is written", "before its first call", "and it hangs"],
)
def test_what_was_not_sent_is_no_try(
    tmp_path: Path, holds_for: int, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hanging, "hangs", hangs)
    rehearsal = OfTwo(tmp_path, validation={"enabled": True, "burn_in_hours": 0.0})
    rehearsal.fake.cancel(rehearsal.hungry)

    def new_round() -> None:
        rehearsal.lead.asked, rehearsal.lead.holds_for = 0, holds_for

    def tries() -> list[int]:
        recoveries = rehearsal.control_plane.stores.recoveries.newest(100)
        return [step.attempts for one in recoveries if (step := one.step(StepName.RUN_VALIDATION))]

    def lapse(name: str) -> None:
        rehearsal.lead.lapses |= name == "create_reservation"

    rehearsal.each_tick = new_round
    rehearsal.line.after = lapse
    rehearsal.gpus["n5"] = [b.gpu(0, nvlinks=17, nvlinks_max=18)]
    rehearsal.run_until(lambda: rehearsal.lead.lapses, 1000)
    rehearsal.run(60)
    assert tries() == [int(hangs)]
    monkeypatch.setattr(Hanging, "hangs", False)
    rehearsal.lead.lapses, rehearsal.line.after = False, lambda _name: None
    rehearsal.gpus.pop("n5")
    rehearsal.run_until(lambda: 220 in states_passed(rehearsal, "n5"), 1000)
    assert tries() == [1]
