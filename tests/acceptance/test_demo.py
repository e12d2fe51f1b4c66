"""`make demo` keeps its promises, in time, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests import REPOSITORY
from tests.demo.__main__ import DIRECTORY, RESULT
from tests.testbed.processes import MARK, all_processes, environment_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DEMO_SECONDS = 560  # a test that ends by its time-out shows nothing of what the demo printed
DEMO = [sys.executable, "-m", "tests.demo"]


def leftovers() -> list[str]:
    """Processes of a demo that still run."""
    return [
        f"{process.pid} {process.name}"
        for process in all_processes().values()
        if environment_of(process.pid).get(MARK) == str(DIRECTORY)
    ]


@contextmanager
def ended(demo: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """However the test ends, the next one finds no demo that runs."""
    with demo:
        try:
            yield demo
        finally:
            demo.kill()


@dataclass(frozen=True)
class Kept:
    """What `make demo KEEP=1` printed until it waited for Ctrl-C, and its dashboard then."""

    printed: str
    logged_in: httpx.Response
    fleet: httpx.Response
    own_job: str
    """Output of the job that docs/quickstart.md submits."""


@pytest.fixture(scope="module")
def kept() -> Kept:
    with ended(
        subprocess.Popen(DEMO, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, env=os.environ | {"KEEP": "1"})
    ) as demo:
        too_late = threading.Timer(DEMO_SECONDS, demo.kill)
        too_late.start()
        assert demo.stdout is not None
        printed = ""
        for line in demo.stdout:
            printed += line
            if "Ctrl-C ends all" in " ".join(printed.split()):
                break
        stays = re.search(r"stays up: (http://localhost:\d+)/login, token (\S+); Ctrl-C", " ".join(printed.split()))
        assert stays is not None, printed
        own_page, token = {"Sec-Fetch-Site": "same-origin"}, {"Authorization": f"Bearer {stays[2]}"}
        logged_in = httpx.post(f"{stays[1]}/v1/session", json={"token": stays[2]}, headers=own_page)
        fleet = httpx.get(f"{stays[1]}/dashboard", headers=token)
        page = (REPOSITORY / "docs" / "quickstart.md").read_text()
        (commands,) = re.findall(r"```\n(/var/tmp/understudy-demo/shell .*?)```", page, re.DOTALL)
        own_job = subprocess.run(["sh", "-c", commands], capture_output=True, text=True, timeout=90, check=False).stdout
        demo.send_signal(signal.SIGTERM)
        printed += demo.stdout.read()
        assert demo.wait(60) == 0, printed
        too_late.cancel()
    return Kept(printed, logged_in, fleet, own_job)


@pytest.fixture(scope="module")
def result(kept: Kept) -> dict[str, Any]:
    assert kept.printed
    result: dict[str, Any] = json.loads(RESULT.read_text())
    return result


def of(result: dict[str, Any], fault: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in pool(result) if one["fault"] == fault)
    return found


def pool(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in result["recoveries"] if one["path"] == "pool"]


@pytest.mark.timed
def test_the_final_weights_are_those_of_a_run_without_faults(result: dict[str, Any]) -> None:
    assert result["weights_identical"] is True


@pytest.mark.timed
def test_each_fault_is_recovered_on_a_spare_of_its_own(result: dict[str, Any]) -> None:
    live, *others = result["recoveries"]
    assert [one["fault"] for one in (live, *others)] == ["xid", "xid", "dead_node", "straggler"]
    assert (live["path"], live["restored_from"], live["steps_lost"]) == ("allocation", "a replica", 0)
    assert {one["path"] for one in others} == {"pool"}
    assert len({one["spare"] for one in others}) == 3
    assert 0 < result["ettr"] < 1
    assert {one["restored_from"] for one in others} == {"memory"}
    assert all(0 <= one["steps_lost"] <= 1 for one in others), others


@pytest.mark.timed
def test_phases_follow_each_other(result: dict[str, Any]) -> None:
    for one in pool(result):
        times = list(one["phases_ms"].values())
        assert [phase for phase in one["phases_ms"] if phase != "communicator"] == [
            "detected",
            "decided",
            "drained",
            "seats_held",
            "requeued",
            "running",
            "first_step",
        ]
        assert times == sorted(times)


@pytest.mark.timed
def test_the_report_has_a_cause_for_each_fault_and_for_each_hour_of_the_gang(result: dict[str, Any]) -> None:
    costs = json.loads(RESULT.with_name("report.json").read_text())["costs"]
    gang = next(one for one in costs["jobs"] if one["interruptions"] == 3)
    assert {one["component"] for one in costs["interrupted"]["causes"] if one["interruptions"]} == {
        "Faulty GPU",
        "Host: dead or silent",
        "Slow rank",
    }
    lost = gang["lost_gpu_hours"]
    assert gang["gpu_hours"] == pytest.approx(gang["productive_gpu_hours"] + sum(lost.values()))
    assert gang["ettr"] == pytest.approx(result["ettr"], abs=0.02)
    assert all(lost[part] > 0 for part in ("detect", "swap", "start")), lost
    assert (gang["queue_hours"], costs["spares"]["taken"]) == (0, 3)
    assert "<svg" in RESULT.with_name("report.html").read_text()


@pytest.mark.timed
def test_its_dashboard_stays_up_until_ctrl_c_and_its_pages_are_kept_as_screenshots(kept: Kept) -> None:
    (address,) = re.findall(r"dashboard: (http://localhost:\d+)/dashboard ", kept.printed)
    assert str(kept.fleet.url) == f"{address}/dashboard"
    assert (kept.logged_in.status_code, kept.fleet.status_code) == (200, 200)
    assert "quarantined" in kept.fleet.text
    screenshots = {path.stem: path.read_bytes() for path in RESULT.parent.glob("dashboard-*.png")}
    pages = {f"dashboard-{one}" for one in ("fleet", "guards", "incident", "job", "node", "recovery", "reports")}
    looks = {f"dashboard-{page}-{look}" for page in ("fleet", "node") for look in ("dark", "phone")}
    assert screenshots.keys() == pages | looks
    assert all(image.startswith(b"\x89PNG") for image in screenshots.values())


@pytest.mark.timed
def test_a_job_of_ones_own_runs_by_the_commands_of_the_page(kept: Kept) -> None:
    assert kept.own_job.count("torch 2") == 2, kept.own_job


@pytest.mark.timed
def test_an_xid_is_a_drain_within_a_second(result: dict[str, Any]) -> None:
    assert of(result, "xid")["phases_ms"]["drained"] < 1000


@pytest.mark.timed
def test_the_gangs_processes_are_started_within_ten_seconds_of_the_drain(result: dict[str, Any]) -> None:
    for one in pool(result):
        assert one["phases_ms"]["running"] - one["phases_ms"]["drained"] < 10_000, one


@pytest.mark.timed
def test_a_dead_node_is_acted_on_within_fifteen_seconds(result: dict[str, Any]) -> None:
    assert of(result, "dead_node")["phases_ms"]["drained"] < 15_000


@pytest.mark.timed
def test_the_demo_leaves_no_process(result: dict[str, Any]) -> None:
    assert result
    assert leftovers() == []


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process(how: signal.Signals) -> None:
    """SIGTERM is to the demo what SIGINT is, which a shell lets no program in the background get."""
    with ended(
        subprocess.Popen(DEMO, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True)
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "spares held" in line:
                break
        assert leftovers()
        os.kill(demo.pid, how)
        code = demo.wait(90)
    assert code == (-signal.SIGKILL if how is signal.SIGKILL else 130)
    deadline = time.monotonic() + 30
    while leftovers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert leftovers() == []
