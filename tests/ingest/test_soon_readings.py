"""How often processes that wait for their job can make the control plane read Slurm."""

from __future__ import annotations

from understudy_controlplane.ingest.soon_readings import SoonReadings


class Clock:
    at = 1000.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


def test_a_user_who_asks_about_jobs_that_do_not_exist_costs_ten_readings_a_minute_and_no_other_user_any() -> None:
    clock, readings = Clock(), list[float]()
    soon = SoonReadings(lambda: readings.append(clock.at), clock)
    for _ in range(600):
        clock.at += 0.3
        soon.ask(666)
    assert len(readings) <= 10 + 3 * 10 + 1
    before = len(readings)
    clock.at += 0.3
    soon.ask(1000)
    assert len(readings) == before + 1


def test_the_nodes_of_a_gang_that_starts_cost_one_reading() -> None:
    clock, readings = Clock(), list[float]()
    soon = SoonReadings(lambda: readings.append(clock.at), clock)
    for _ in range(1000):
        soon.ask(1000)
    assert len(readings) == 1
