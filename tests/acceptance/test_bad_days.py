"""Slurm's bad days, and people who do things meanwhile: on a real cluster, in the middle of a recovery.

In each: no effect twice, nothing of others' touched, the recovery goes on or ends with a clear reason, and the API
goes on answering.
"""

from __future__ import annotations

import itertools
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.acceptance.serve_without_changes import FILE, UNWILLING
from tests.testbed.installation import DEBIAN_14
from tests.testbed.processes import all_processes, descendants, is_running, signal_process
from tests.testbed.serve import SERVE
from tests.testbed.site import Site
from tests.waiting import PATIENCE_SECONDS
from understudy_controlplane.store.database import Engine, StoreError, open_database

pytestmark = pytest.mark.cluster

DIES_SLOWLY = "#!/bin/bash\ntrap 'sleep 6; exit 1' TERM\nsrun sleep 3600 & wait\n"
"""A gang that takes seconds to end after SIGTERM: time for events in the middle of its recovery."""


@contextmanager
def api_watched(site: Site) -> Iterator[list[float]]:
    """The seconds that each answer took meanwhile; an answer that does not come is an error."""
    seconds: list[float] = []
    over = threading.Event()
    wrong: list[BaseException] = []

    def ask() -> None:
        paths = itertools.cycle(("/v1/status", "/v1/nodes", "/v1/recoveries", "/metrics"))
        with httpx.Client(base_url=site.url, timeout=PATIENCE_SECONDS, headers=site.http.headers) as client:
            while not over.wait(0.3):
                begun = time.monotonic()
                try:
                    client.get(next(paths)).raise_for_status()
                except httpx.HTTPError as error:
                    wrong.append(error)
                    return
                seconds.append(time.monotonic() - begun)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield seconds
    finally:
        over.set()
        thread.join()
    assert wrong == []
    assert seconds
    assert statistics.median(seconds) < 3.0, "readers wait for Slurm"


def start_gang(site: Site, script: str = gang.SLEEP, program: Sequence[str] = SERVE) -> tuple[int, list[str]]:
    gang.start_site(site, program)
    job = site.cluster.sbatch("--nodes=4", "--gres=gpu:8", "--requeue", "--comment=understudy", script=script)
    gang.wait_running(site, job)
    site.wait_for(lambda: f"{job}.0" in site.cluster.run("squeue", "--steps").stdout, 60, "its step runs")
    return job, gang.nodes_of(site, job)


def wait_ended(site: Site, seconds: float = 90) -> None:
    site.wait_for(
        lambda: site.recoveries() and all(one["status"] != "running" for one in site.recoveries()),
        seconds,
        "every recovery has ended",
    )


def assert_recovered(site: Site, job: int, nodes: list[str], spare: str = "n6") -> None:
    """The one fault, of n2, was dealt with once; everything else is as it was."""
    recovery = site.recoveries()[-1]
    assert recovery["status"] == "succeeded", recovery
    fields = gang.job_fields(site, job)
    assert (fields["JobState"], fields["Restarts"]) == ("RUNNING", "1")
    assert gang.nodes_of(site, job) == sorted({*nodes, spare} - {"n2"})
    assert site.node("n2")["slurm"]["reason"].startswith("understudy:")
    assert set(gang.reservations(site)) == {"understudy_spares"}
    assert len(site.items("/v1/incidents")) == 1


@pytest.mark.machines
@pytest.mark.long
def test_slurmctlds_cable_pulled_for_longer_than_a_step_may_take_delays_the_recovery_and_no_more(
    make_site: MakeSite,
) -> None:
    """No call is refused: each waits for an answer that does not come. The nodes' messages are lost, too."""
    site = make_site(settings={"recovery": {"step_timeout_seconds": 20}})
    job, nodes = start_gang(site, DIES_SLOWLY)
    site.nodes["n2"].fail_gpu()
    site.wait_for(lambda: gang.job_fields(site, job).get("Restarts") == "1", 60, "the job is requeued")
    with api_watched(site):
        with site.cluster.unplugged("controller"):
            site.wait_for(
                lambda: site.get("/v1/status")["slurm"]["error"], 60, "the status reports that Slurm does not answer"
            )
            time.sleep(20)
            assert [one["status"] for one in site.recoveries()] == ["running"]
        wait_ended(site)
    assert_recovered(site, job, nodes)


@pytest.mark.long
def test_requests_are_repeated_to_a_slurmctld_that_lost_the_last_seconds_in_a_crash(make_site: MakeSite) -> None:
    """It comes back with a state from before the fault. The gang's processes have been killed by a requeue that it does
    not remember, so it takes the job for failed: that ends the recovery, and the node is drained again.
    """
    site = make_site()
    job, _ = start_gang(site, DIES_SLOWLY)
    time.sleep(8)  # slurmctld writes its state every five seconds
    site.nodes["n2"].fail_gpu()
    site.wait_for(lambda: gang.job_fields(site, job).get("Restarts") == "1", 60, "the job is requeued")
    with api_watched(site):
        site.cluster.stop_controller(crash=True)
        site.cluster.start_controller()
        site.wait_for(lambda: "DRAIN" in site.node("n2")["slurm"]["flags"], 60, "the node is drained again")
        site.wait_for(lambda: is_settled(site, job), 120, "the gang is back, or known to be lost")
    assert site.node("n2")["state"] == "quarantined"
    assert not [one for one in site.items("/v1/decisions") if one["table_row"] == 50], "no administrator resumed it"
    if gang.state(site, job) != "RUNNING":
        assert "the job is over" in site.recoveries()[-1]["outcome"]
    site.wait_for(lambda: set(gang.reservations(site)) == {"understudy_spares"}, 60, "no seats are left")


def is_settled(site: Site, job: int) -> bool:
    *_, latest = site.recoveries()
    if gang.state(site, job) in ("FAILED", "CANCELLED"):
        return latest["status"] in ("failed", "overtaken")
    moved = gang.state(site, job) == "RUNNING" and "n2" not in gang.nodes_of(site, job)
    return bool(moved and latest["status"] == "succeeded")


def test_a_slurmctld_that_stands_still_carries_calls_out_later_and_none_twice(make_site: MakeSite) -> None:
    """What was asked of it meanwhile is in its queue: the callers have long given up when it is carried out."""
    site = make_site(slurm_settings={"timeout_seconds": 2})
    job, nodes = start_gang(site, DIES_SLOWLY)
    with api_watched(site):
        with site.cluster.frozen("controller"):
            site.nodes["n2"].fail_gpu()
            time.sleep(15)
        wait_ended(site)
    assert_recovered(site, job, nodes)
    assert all(step["attempts"] <= 2 for one in site.recoveries() for step in one["steps"])
    assert len(site.recoveries()) == 1


@pytest.mark.machines
@pytest.mark.long
def test_while_the_control_plane_alone_cannot_reach_slurmctld_the_requeued_job_waits_and_nothing_is_done_twice(
    make_site: MakeSite,
) -> None:
    """Slurm and its nodes go on meanwhile: the job ends on its old nodes and is pending when it is seen again."""
    site = make_site(slurm_settings={"timeout_seconds": 2})
    job, nodes = start_gang(site, DIES_SLOWLY)
    site.nodes["n2"].fail_gpu()
    site.wait_for(lambda: gang.job_fields(site, job).get("Restarts") == "1", 60, "the job is requeued")
    with api_watched(site):
        with site.cluster.cut_off("controller"):
            site.wait_for(lambda: gang.state(site, job) == "PENDING", 60, "users see that the job has ended")
            time.sleep(10)
            assert [one["status"] for one in site.recoveries()] == ["running"]
        wait_ended(site)
    assert_recovered(site, job, nodes)
    assert len(site.recoveries()) == 1


@pytest.mark.machines
def test_the_databases_cable_pulled_loses_no_report_and_causes_no_action_until_it_is_back(make_site: MakeSite) -> None:
    site = make_site(database_machine=True)
    job, nodes = start_gang(site)
    engine = open_database(site.database_url)
    with ThreadPoolExecutor(1) as pool:
        query = pool.submit(run_long_query, engine)
        site.wait_for(lambda: query.running() and queries(engine) == 1, 60, "the server works on the query")
        with site.cluster.unplugged("database"):
            site.nodes["n2"].fail_gpu()
            site.nodes["n5"].log_kernel_message(CONTAINED)
            site.wait_for(lambda: "the database does not answer" in health(site), 60, "/healthz names it")
            drained = site.cluster.run("sinfo", "--noheader", "--states=drain", "--format=%n").stdout
            assert (drained, gang.job_fields(site, job)["Restarts"]) == ("", "0")
            with pytest.raises(StoreError):  # and who waits for the end of a query waits no longer
                query.result(timeout=30)
    engine.dispose()
    wait_ended(site)
    assert_recovered(site, job, nodes)
    site.wait_for(lambda: ("n5", 60) in decided(site), 60, "what n5 had to report has arrived")


CONTAINED = "NVRM: Xid (PCI:0000:02:00): 94, pid=7, name=python, Contained: SM (0x1). RST: No, D-RST: No"


def run_long_query(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_sleep(600)"))


def queries(engine: Engine) -> int:
    """Long ones on which the server works."""
    with engine.connect() as connection:
        counted = text("SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND wait_event = :w")
        return int(connection.execute(counted, {"w": "PgSleep"}).scalar_one())


def health(site: Site) -> str:
    """Health that a prober sees which waits for 30 seconds."""
    return site.http.get("/healthz", timeout=30).text


def decided(site: Site) -> set[tuple[str, int]]:
    return {(one["subject"], one["table_row"]) for one in site.items("/v1/decisions")}


@pytest.mark.long
def test_munge_down_is_slurm_away(make_site: MakeSite) -> None:
    site = make_site()
    job, nodes = start_gang(site)
    with api_watched(site):
        site.cluster.stop_munge()
        site.nodes["n2"].fail_gpu()
        site.wait_for(
            lambda: site.get("/v1/status")["slurm"]["error"], 60, "the status reports that Slurm does not answer"
        )
        time.sleep(5)
        assert site.recoveries() == []
        site.cluster.start_munge()
        wait_ended(site)
    assert_recovered(site, job, nodes)


@pytest.mark.long
def test_a_spare_taken_by_an_administrator_is_left_to_them_and_the_gang_gets_another(make_site: MakeSite) -> None:
    site = make_site()
    job, nodes = start_gang(site, DIES_SLOWLY)
    site.nodes["n2"].fail_gpu()
    site.wait_for(lambda: gang.job_fields(site, job).get("Restarts") == "1", 60, "the job is requeued")
    assert "n6" in gang.reservations(site)["understudy_seats_1"]
    site.cluster.run("scontrol", "update", "NodeName=n6", "State=DRAIN", "Reason=alice: new cable")
    wait_ended(site)
    assert gang.state(site, job) == "RUNNING"
    (taken,) = set(gang.nodes_of(site, job)) - set(nodes)
    assert taken in ("n5", "n7")  # idle n5 may have joined the pool meanwhile
    assert gang.job_fields(site, job)["Restarts"] == "1"
    assert site.node("n6")["slurm"]["reason"] == "alice: new cable"
    assert site.node("n6")["state"] == "foreign_drain"
    assert [one["subject"] for one in site.items("/v1/incidents")] == ["n2"]


@pytest.mark.long
def test_a_job_cancelled_before_anything_was_requeued_ends_the_recovery(make_site: MakeSite) -> None:
    site = make_site()
    job, _ = start_gang(site)
    with site.cluster.frozen("controller"):
        site.nodes["n2"].fail_gpu()
        canceller = threading.Thread(target=lambda: site.cluster.run("scancel", str(job)))
        canceller.start()
        time.sleep(2)
    canceller.join()
    site.wait_for(lambda: site.node("n2")["state"] == "quarantined", 60, "n2 is out of service")
    site.wait_for(lambda: gang.state(site, job) == "CANCELLED", 60, "the job is gone")
    site.wait_for(lambda: all(one["status"] != "running" for one in site.recoveries()), 60, "nothing goes on")
    assert gang.job_fields(site, job)["Restarts"] == "0"
    assert "DRAIN" in site.node("n2")["slurm"]["flags"], "the fault was dealt with all the same"
    assert "understudy_seats_1" not in gang.reservations(site)


@pytest.mark.long
def test_a_job_cancelled_while_its_seats_are_held_never_runs_again_nor_are_they_kept_for_its_epilog(
    make_site: MakeSite, tmp_path: Path
) -> None:
    """Slurm shows it as COMPLETING for 20 seconds at least, and would run it again."""
    epilog, lasts = tmp_path / "epilog", tmp_path / "epilog-lasts"
    epilog.write_text(f'#!/bin/sh\nsleep 20\nfor _ in $(seq 120); do [ -e "{lasts}" ] || break; sleep 0.5; done\n')
    epilog.chmod(0o755)
    lasts.touch()
    site = make_site(slurm_conf_lines=[f"Epilog={epilog}"])
    (site.directory / FILE).write_text("requeue_job")
    job, _ = start_gang(site, program=UNWILLING)
    site.nodes["n2"].fail_gpu()
    site.wait_for(lambda: attempts(site, "requeue_job"), 60, "the gang is about to be requeued")
    assert "understudy_seats_1" in gang.reservations(site)
    site.cluster.run("scancel", str(job))
    (site.directory / FILE).unlink()
    wait_ended(site)
    site.wait_for(lambda: set(gang.reservations(site)) == {"understudy_spares"}, 60, "no seats are left")
    assert gang.state(site, job) == "COMPLETING"
    lasts.unlink()
    site.wait_for(lambda: gang.state(site, job) == "CANCELLED", 60, "its epilogs are over")
    time.sleep(3)
    assert (gang.state(site, job), gang.job_fields(site, job)["Restarts"]) == ("CANCELLED", "0")
    (recovery,) = site.recoveries()
    assert recovery["status"] == "overtaken"
    assert "completing" in recovery["outcome"]
    assert site.node("n2")["state"] == "quarantined"
    assert set(gang.reservations(site)) == {"understudy_spares"}


def attempts(site: Site, step: str) -> int:
    return sum(one["attempts"] for recovery in site.recoveries() for one in recovery["steps"] if one["name"] == step)


@pytest.mark.long
def test_a_pyslurm_that_dies_again_and_again_takes_nothing_down_with_it(make_site: MakeSite) -> None:
    site = make_site(slurm=DEBIAN_14, slurm_settings={"gateway": "pyslurm"})
    job, nodes = start_gang(site)
    control_plane = site.control_plane_process
    over = threading.Event()
    killed: set[int] = set()

    def kill_its_children() -> None:
        while not over.wait(0.3):
            processes = all_processes()
            for pid in descendants([control_plane.pid], processes) - {control_plane.pid}:
                signal_process(processes[pid], signal.SIGABRT)
                killed.add(pid)

    killer = threading.Thread(target=kill_its_children)
    killer.start()
    try:
        with api_watched(site):
            site.nodes["n2"].fail_gpu()
            wait_ended(site)
    finally:
        over.set()
        killer.join()
    assert len(killed) > 3
    assert is_running(control_plane)
    assert_recovered(site, job, nodes)
