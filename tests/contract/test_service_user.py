"""What Slurm lets the user of the control plane do, by their level in its accounting: docs/install.md follows this."""

from __future__ import annotations

import pwd
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.testbed.accounting import AccountedCluster
from understudy_controlplane.fleet.slurm import JobRequest, SlurmJob
from understudy_controlplane.slurm.cli import CommandLineGateway
from understudy_controlplane.slurm.protocol import SlurmError

pytestmark = pytest.mark.cluster

ADMINISTRATOR, OPERATOR, WITHOUT_LEVEL = "backup", "proxy", "games"
CHANGES_OF_NODES = {"drain_node", "resume_node", "down_nodes", "set_weight", "reboot_node"}
RUNS_ON = "#!/bin/sh\nwhile :; do sleep 0.1; done\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[AccountedCluster]:
    directory = Path(tempfile.mkdtemp(prefix="understudy-"))
    directory.chmod(0o755)
    levels = {ADMINISTRATOR: "Admin", OPERATOR: "Operator"}
    try:
        lines = ["RebootProgram=/bin/true", "PreemptType=preempt/qos", "PreemptMode=REQUEUE"]
        with AccountedCluster(directory, 3, levels, extra_lines=lines) as cluster:
            yield cluster
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def gateway(cluster: AccountedCluster, user: str) -> CommandLineGateway:
    """Its commands run as that user."""
    entry = pwd.getpwnam(user)
    clients = cluster.user_directory(user)
    for name in ("scontrol", "squeue", "sbatch", "scancel", "sacctmgr"):
        as_user = f"setpriv --reuid={entry.pw_uid} --regid={entry.pw_gid} --clear-groups"
        (clients / name).write_text(f'#!/bin/sh\nexec {as_user} {shutil.which(name)} "$@"\n')
        (clients / name).chmod(0o755)
    return CommandLineGateway(str(clients / "scontrol"), cluster.environment)


def refused(cluster: AccountedCluster, user: str) -> set[str]:
    """What of all that the control plane changes this user may not."""
    slurm = gateway(cluster, user)
    job_id = cluster.sbatch("--nodes=1", "--nodelist=n1", "--requeue", script=RUNS_ON)
    other_id = cluster.sbatch("--nodes=1", "--nodelist=n3", script=RUNS_ON)

    def running() -> bool:
        return {job.state for job in slurm.jobs() if job.job_id in (job_id, other_id)} == {"RUNNING"}

    def validated() -> bool:
        return all(job.ended for job in slurm.jobs() if job.name == "validation")

    cluster.wait_until(running, 60, "both jobs run")
    address = next(job.address for job in slurm.jobs() if job.job_id == job_id)
    held, seats = f"hold-{user}", f"seats-{user}"
    request = JobRequest("validation", "n2", "train", held, user, "", "#!/bin/sh\ntrue\n", 1, "/dev/null")
    changes: list[Callable[[], None]] = [
        lambda: slurm.drain_node("n2", "tried"),
        lambda: slurm.resume_node("n2"),
        lambda: slurm.down_nodes(["n2"], "tried"),
        lambda: slurm.resume_node("n2"),
        lambda: slurm.set_weight("n2", 7),
        lambda: slurm.create_reservation(held, ["n2"], user, 60),
        lambda: slurm.submit_job(request),
        lambda: slurm.create_reservation(seats, ["n1"], "news", 60),
        lambda: slurm.set_reservation_nodes(seats, ["n1", "n3"]),
        lambda: slurm.set_job_comment(address, "tried"),
        lambda: slurm.set_time_limit(address, 60),
        lambda: slurm.requeue_job(address),
        lambda: slurm.hold_job(address),
        lambda: slurm.set_excluded_nodes(address, ["n3"]),
        lambda: slurm.set_job_reservation(address, seats),
        lambda: slurm.release_job(address),
        lambda: slurm.set_job_priority(address, 1000),
        lambda: slurm.set_job_reservation(address, ""),
        lambda: slurm.start_job(address),
        lambda: slurm.cancel_job(other_id),
        lambda: cluster.wait_until(validated, 60, "the validation is over"),
        lambda: slurm.delete_reservation(held),
        lambda: slurm.delete_reservation(seats),
        lambda: slurm.reboot_node("n2", "tried"),
    ]
    found: set[str] = set()
    for change in changes:
        try:
            change()
        except SlurmError as error:
            found |= set(change.__code__.co_names)
            print(user, error)
    cluster.run("scancel", str(job_id), str(other_id))
    return found


def test_slurms_operator_level_is_not_enough_for_nodes(
    cluster: AccountedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", OPERATOR)
    assert refused(cluster, OPERATOR) == CHANGES_OF_NODES


def test_a_user_without_a_level_changes_nothing_of_others(
    cluster: AccountedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", WITHOUT_LEVEL)
    refusals = refused(cluster, WITHOUT_LEVEL)
    assert CHANGES_OF_NODES | {"create_reservation", "delete_reservation", "requeue_job", "cancel_job"} <= refusals


def test_every_user_reads_the_rules_of_preemption_by_qos_and_slurm_follows_them(cluster: AccountedCluster) -> None:
    for name, *settings in (("low", "priority=1"), ("high", "priority=10", "preempt=low")):
        assert cluster.run("sacctmgr", "--immediate", "add", "qos", name, *settings).returncode == 0
    slurm = gateway(cluster, WITHOUT_LEVEL)
    job_ids = [cluster.sbatch("--nodes=1", "--requeue", f"--qos={name}", script=RUNS_ON) for name in ("low", "high")]

    def jobs() -> list[SlurmJob]:
        found = {job.job_id: job for job in slurm.jobs()}
        return [found[job_id] for job_id in job_ids if job_id in found]

    try:
        cluster.wait_until(lambda: [job.state for job in jobs()] == ["RUNNING"] * 2, 60, "both run")
        low, high = jobs()
        rules = slurm.preemption()
        assert (low.qos, high.qos, rules.qos["high"].preempts) == ("low", "high", frozenset({"low"}))
        assert rules.why_not(high, low, time.time()) == ""
        assert "which low does not preempt" in rules.why_not(low, high, time.time())
        assert "same QOS" in rules.why_not(high, high, time.time())
        job_ids.append(cluster.sbatch("--nodes=2", "--qos=high", script=RUNS_ON))
        cluster.wait_until(lambda: jobs()[-1].state == "RUNNING", 60, "the third one runs")
        assert [job.state for job in jobs()] == ["PENDING", "RUNNING", "RUNNING"]
    finally:
        cluster.run("scancel", *map(str, job_ids))
        cluster.wait_until(lambda: all(job.ended for job in jobs()), 60, "they are over")


def test_an_administrator_of_the_accounting_who_is_not_root_may_do_all(
    cluster: AccountedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test: it reboots a node."""
    monkeypatch.setenv("LOGNAME", ADMINISTRATOR)  # as systemd sets it for a service
    assert refused(cluster, ADMINISTRATOR) == set()
