"""Memory of the agent: what jobs leave in it goes again."""

from __future__ import annotations

import gc
import json
import socket
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent, write_xid
from tests.growth import growing, sizes
from understudy_agent.config import Config
from understudy_agent.sample.nvml_events import LINES_REMEMBERED_SECONDS, NvmlEvents
from understudy_agent.save_orders import SaveOrders
from understudy_wire.facts import KernelEvent, RankStarted
from understudy_wire.messages import Report
from understudy_wire.ranks import RANKS_PER_NODE_MAX, OrderState, SaveOrder

pytestmark = pytest.mark.integration

JOBS = 15
TURNS = 4
KEPT = {"agent._nvml_events._lines", "agent._ranks.save_orders._newest", "agent._windows._places"}
"""State kept for a minute; of as many attempts as a node may have ranks; of ranks that have ended, for five minutes."""


def orders(report: Report) -> list[SaveOrder]:
    return [
        SaveOrder(one.job_id, 0, 0, one.user_id, 1, 100, OrderState.PROPOSED)
        for one in report.ranks
        if one.saves is not None
    ]


def run_job(config: Config, job_id: int) -> None:
    """One rank, which does all that a rank does, and ends."""
    with socket.socket(socket.AF_UNIX) as rank:
        rank.settimeout(60.0)
        rank.connect(str(config.socket))
        answers = rank.makefile()

        def say(type_: str, **rest: Any) -> None:
            rank.sendall(json.dumps({"type": type_, **rest}).encode() + b"\n")

        def hear(kind: str) -> None:
            while json.loads(answers.readline())["type"] != kind:
                pass

        say("hello", job_id=job_id, restart_count=0, rank=0, world_size=1, pid=1, takes_orders=True)
        say("first_step", id=1, step=0, at=1.0)
        say("shard", id=2, step=3, path="/c/3", file="0.pt", size_bytes=1, checksum="", at=1.0)
        say("anomaly", id=3, kind="loss_nan", step=3, at=1.0, value="nan")
        hear("ack")
        say("restore_point", id=4)
        hear("restore_point")
        say("collective", name="all_reduce", sequence=1, entered_at=1.0, step=3, inside=True)
        say("saves", asked=3)
        say("steps", first_step=0, self_seconds=[0.1], wall_seconds=[0.2])
        hear("save_order")


@pytest.mark.long  # what grows does harm after weeks
def test_nothing_in_memory_grows_with_the_jobs_that_have_run(tmp_path: Path) -> None:
    with FakeControlPlane() as plane:
        plane.save_orders = orders
        plane.restore_points = {(job_id, 0): (3, "/c/3") for job_id in range(1, TURNS * JOBS + 1)}
        config = agent_config(tmp_path, plane.url, interval_seconds=0.02)
        measured: list[Counter[str]] = []
        with running_agent(config) as agent:
            for turn in range(TURNS):
                for number in range(JOBS):
                    run_job(config, 1 + turn * JOBS + number)
                    write_xid(config, turn * JOBS + number, xid=13)
                plane.wait_for(partial(has_all, (turn + 1) * JOBS))
                plane.wait_for(partial(has_reports, len(plane.reports) + 20))
                gc.collect()
                measured.append(sizes(agent, "agent"))
    assert "agent._windows._places" in measured[0], "the walk has reached what ranks leave"
    assert {path.rstrip("[]") for path in growing(measured, JOBS // 2)} <= KEPT


def test_what_is_kept_for_a_while_is_kept_within_bounds() -> None:
    orders_kept = SaveOrders()
    events = NvmlEvents("boot-1")
    for number in range(2 * RANKS_PER_NODE_MAX):
        orders_kept.keep(SaveOrder(number, 0, 0, 1000, 1, 100, OrderState.VALID))
        events.add_kernel_events([KernelEvent("boot-1", number, 0.0, "NVRM", 13, "0000:61:00")], float(number))
    assert sizes(orders_kept, "orders")["orders._newest"] == RANKS_PER_NODE_MAX
    assert sizes(events, "events")["events._lines"] <= LINES_REMEMBERED_SECONDS + 1


def has_all(jobs: int, plane: FakeControlPlane) -> bool:
    facts = plane.facts
    return all(sum(isinstance(one, kind) for one in facts) == jobs for kind in (RankStarted, KernelEvent))


def has_reports(number: int, plane: FakeControlPlane) -> bool:
    return len(plane.reports) > number
