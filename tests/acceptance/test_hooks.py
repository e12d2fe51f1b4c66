"""The Slurm hooks on a real cluster: a bad verdict keeps jobs away, and nothing else does."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance import gang
from tests.acceptance.serve_without_changes import FILE, UNWILLING
from tests.testbed.installation import DEBIAN_13, DEBIAN_14, NATIVE, Installation
from tests.testbed.processes import all_processes, environment_of
from tests.testbed.site import RESEARCHER, Site

pytestmark = pytest.mark.cluster

SHOW = "#!/bin/sh\nenv | grep UNDERSTUDY_R\nenv | grep UNDERSTUDY_A\nsrun env | grep UNDERSTUDY_ | sort\nsleep 3600\n"

MakeHookedSite = Callable[..., Site]


@pytest.fixture
def make_hooked_site() -> Iterator[MakeHookedSite]:
    with ExitStack() as stack:

        def make(nodes: int = 3, slurm: Installation = NATIVE) -> Site:
            directory = Path(tempfile.mkdtemp(prefix="ud-"))  # short: sockets lie below it
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            site = Site(directory, nodes=nodes, spares=0, slurm=slurm, hooks=True)
            return stack.enter_context(site)

        yield make


def drained(site: Site) -> list[str]:
    done = site.cluster.run("sinfo", "--noheader", "--Node", "--format=%N %T %E")
    return [line for line in done.stdout.splitlines() if "drain" in line]


def verdict(site: Site, node: str) -> str:
    path = site.nodes[node].directory / "verdict"
    return path.read_text() if path.exists() else ""


def say(site: Site, node: str, word: str, age_seconds: int = 0) -> None:
    """Replaces an agent."""
    directory = site.nodes[node].directory
    (directory / "hooks").mkdir(exist_ok=True)
    (directory / "verdict").write_text(f"{word} {int(time.time()) - age_seconds} as the test requires\n")


def submit_to(site: Site, node: str) -> int:
    return gang.submit(site, f"--nodelist={node}", nodes=1, comment="")


def records(site: Site) -> list[str]:
    return [path.name for node in site.nodes.values() for path in (node.directory / "hooks").glob("*")]


@pytest.mark.parametrize(
    ("slurm", "comment"),
    [
        pytest.param(NATIVE, "understudy", id="22.05"),
        pytest.param(NATIVE, "not managed", id="22.05-not-managed", marks=pytest.mark.long),
        pytest.param(DEBIAN_13, "understudy", id="24.11", marks=pytest.mark.long),
        pytest.param(DEBIAN_14, "understudy", id="26.05", marks=pytest.mark.long),
    ],
)
def test_a_bad_verdict_keeps_a_job_off_the_node_and_it_runs_elsewhere_without_a_person(
    make_hooked_site: MakeHookedSite, slurm: Installation, comment: str
) -> None:
    site = make_hooked_site(slurm=slurm)
    (site.directory / FILE).write_text("drain_node")
    site.start_control_plane(UNWILLING)
    site.start_agents()
    site.wait_for(lambda: all(verdict(site, name).startswith("good") for name in site.nodes), 60, "all verdicts are in")
    site.nodes["n1"].fail_gpu()
    site.wait_for(lambda: verdict(site, "n1").startswith("bad"), 60, "n1 is called unfit")
    assert site.node("n1")["state"] == "quarantined"
    assert drained(site) == []

    job = gang.submit(site, nodes=2, comment=comment)  # Slurm's choice is n1 and n2
    gang.wait_running(site, job, restarts=1)
    assert gang.nodes_of(site, job) == ["n2", "n3"]
    (release,) = [one for one in site.items("/v1/decisions") if one["table_row"] == 90 and one["action"] != "nothing"]
    assert release["evidence"]["nodes"] == ["n1"]
    site.wait_for(lambda: records(site) == [], 60, "every record is taken in")

    # Slurm drained the node for it, and Understudy owns that drain.
    assert site.node("n1")["state"] == "quarantined"
    (site.directory / FILE).unlink()
    site.wait_for(
        lambda: site.node("n1")["slurm"]["reason"].startswith("understudy:"), 60, "it has the control plane's reason"
    )
    site.wait_for(lambda: verdict(site, "n1").startswith("good"), 60, "Slurm keeps jobs away by itself now")

    # Who resumes it answers for it: its next job is not refused.
    site.cluster.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    site.wait_for(lambda: site.node("n1")["state"] == "in_service", 60, "n1 is vouched for")


def test_dead_agents_and_a_dead_control_plane_hold_up_no_job_and_drain_nothing(
    make_hooked_site: MakeHookedSite,
) -> None:
    site = make_hooked_site()
    say(site, "n1", "bad", age_seconds=31)  # the last word of an agent that died
    jobs = [submit_to(site, "n1"), submit_to(site, "n2")]  # n2 never had one
    for job in jobs:
        wait_at_work(site, job)
    site.cluster.run("scancel", *map(str, jobs))
    site.start_control_plane()
    site.start_agents()
    site.wait_for(lambda: verdict(site, "n3").startswith("good"), 60, "n3 has a verdict")
    site.kill_control_plane()
    last_word = verdict(site, "n3")
    jobs = [submit_to(site, "n3")]
    gang.wait_running(site, jobs[0])
    site.wait_for(lambda: time.time() > int(last_word.split()[1]) + 40, 60, "the last verdict is old")
    assert verdict(site, "n3").split()[0] == "good"
    jobs += [submit_to(site, "n1")]
    wait_at_work(site, jobs[1])
    log = (site.nodes["n1"].directory / "hooks.log").read_text()
    assert f"prolog: job {jobs[1]}: let through: the verdict" in log
    site.cluster.run("scancel", *map(str, jobs))
    site.wait_for(lambda: gang.state(site, jobs[1]) == "CANCELLED", 60, "the jobs are over")
    assert drained(site) == []


def test_a_full_disk_holds_up_no_job_and_drains_nothing(make_hooked_site: MakeHookedSite) -> None:
    site = make_hooked_site()
    directory = site.nodes["n1"].directory
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory)], check=True)
    try:
        say(site, "n1", "bad")
        with (directory / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(b"x" * 4096)
        job = submit_to(site, "n1")
        wait_at_work(site, job)
        site.cluster.run("scancel", str(job))
        site.wait_for(lambda: gang.state(site, job) == "CANCELLED", 60, "the Epilog is through as well")
        time.sleep(1)
        assert drained(site) == []
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def wait_at_work(site: Site, job: int) -> None:
    """Slurm calls a job running while its Prolog is; a step is there once that is through."""

    def step() -> bool:
        shown = site.cluster.run("scontrol", "show", "step", f"{job}.0", "--oneliner").stdout
        return "State=RUNNING" in shown

    site.wait_for(step, 60, f"the step of job {job} runs")
    time.sleep(0.5)  # its task, too


def hang(site: Site, hook: str, deadline_seconds: int = 3) -> None:
    """The hook's `mv` hangs: its record is half-way."""
    programs = site.directory / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "mv").write_text("#!/bin/sh\nsleep 600\n")
    (programs / "mv").chmod(0o755)
    script = site.directory / "hooks" / hook
    text = script.read_text().replace("PATH=/usr/sbin", f"PATH={programs}:/usr/sbin")
    script.write_text(text.replace("deadline_seconds=3", f"deadline_seconds={deadline_seconds}"))


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []  # it is gone


def subshell_of(script: Path) -> int | None:
    """The innermost shell that runs this script."""
    running = [process for process in all_processes().values() if str(script) in command_line(process.pid)]
    parents = {process.parent for process in running}
    inner = [process.pid for process in running if process.pid not in parents]
    return inner[0] if len(running) >= 2 else None


@pytest.mark.parametrize("hook", ["prolog", pytest.param("epilog", marks=pytest.mark.long)])
def test_a_hook_killed_half_way_holds_up_no_job_and_drains_nothing(make_hooked_site: MakeHookedSite, hook: str) -> None:
    site = make_hooked_site()
    say(site, "n1", "bad" if hook == "prolog" else "good")
    hang(site, hook, deadline_seconds=20)
    job = submit_to(site, "n1")
    if hook == "epilog":
        wait_at_work(site, job)
        site.cluster.run("scancel", str(job))
    site.wait_for(lambda: subshell_of(site.directory / "hooks" / hook), 60, f"the {hook} hangs")
    pid = subshell_of(site.directory / "hooks" / hook)
    assert pid is not None
    assert environment_of(pid)["SLURM_JOB_ID"] == str(job)
    os.kill(pid, signal.SIGKILL)
    if hook == "prolog":
        gang.wait_running(site, job)
    else:
        site.wait_for(lambda: gang.state(site, job) == "CANCELLED", 60, "the job is over")
        site.cluster.wait_until_idle()
    assert drained(site) == []


@pytest.mark.parametrize("hook", ["prolog", pytest.param("epilog", marks=pytest.mark.long)])
def test_a_hook_that_hangs_gives_up_by_itself(make_hooked_site: MakeHookedSite, hook: str) -> None:
    """Slurm waits without limit by default."""
    site = make_hooked_site()
    say(site, "n1", "bad" if hook == "prolog" else "good")
    hang(site, hook)
    job = submit_to(site, "n1")
    wait_at_work(site, job)
    site.cluster.run("scancel", str(job))
    site.wait_for(lambda: gang.state(site, job) == "CANCELLED", 60, "the job is over")
    site.cluster.wait_until_idle()
    assert drained(site) == []


def rank_says(site: Site, node: str, *messages: dict[str, object]) -> None:
    """Sends as a rank of the job's owner, and waits for the last answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        os.seteuid(pwd.getpwnam(RESEARCHER).pw_uid)
        try:
            connection.connect(str(site.nodes[node].socket))
        finally:
            os.seteuid(0)
        connection.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
        assert json.loads(connection.recv(65536).splitlines()[-1])["type"] == "ack"


def output(site: Site, job: int) -> str:
    path = site.cluster.user_directory(RESEARCHER) / f"slurm-{job}.out"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("slurm", [NATIVE, pytest.param(DEBIAN_14, marks=pytest.mark.long)], ids=["22.05", "26.05"])
def test_a_task_finds_socket_attempt_and_restore_point_in_its_environment(
    make_hooked_site: MakeHookedSite, slurm: Installation
) -> None:
    site = make_hooked_site(slurm=slurm)
    site.start_control_plane()
    site.start_agents()
    site.wait_for(lambda: verdict(site, "n1"), 60, "the agents are at work")
    options = ("--nodes=1", "--requeue", "--open-mode=append", "--nodelist=n1", "--begin=now+3")
    job = site.cluster.sbatch(*options, "--comment=understudy", script=SHOW, user=RESEARCHER)
    site.wait_for(lambda: "UNDERSTUDY_SOCKET" in output(site, job), 60, "the first attempt has begun")
    lines = output(site, job).splitlines()
    assert f"UNDERSTUDY_SOCKET={site.nodes['n1'].socket}" in lines
    assert {"UNDERSTUDY_ATTEMPT=0", "UNDERSTUDY_RESTORE_STEP=0"} <= set(lines)
    assert not [line for line in lines if line.startswith("UNDERSTUDY_RESTORE_PATH")]

    hello = {"type": "hello", "job_id": job, "restart_count": 0, "rank": 0, "world_size": 1}
    shard = {
        "step": 20,
        "path": "/ckpt/20",
        "file": "rank0",
        "size_bytes": 1,
        "checksum": "crc32:00000000",
        "at": time.time(),
    }
    rank_says(site, "n1", hello, {"type": "shard", "id": 1} | shard)
    (site.cluster.user_directory(RESEARCHER) / f"slurm-{job}.out").write_text("")
    site.cluster.run("scontrol", "requeue", str(job))
    site.wait_for(lambda: gang.state(site, job) == "PENDING", 60, "it is requeued")
    time.sleep(1.1)
    site.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    site.wait_for(lambda: "UNDERSTUDY_SOCKET" in output(site, job), 60, "the second attempt has begun")
    lines = output(site, job).splitlines()
    for line in ("UNDERSTUDY_ATTEMPT=1", "UNDERSTUDY_RESTORE_STEP=20", "UNDERSTUDY_RESTORE_PATH=/ckpt/20"):
        assert lines.count(line) == 2, f"{line}, in the batch script and in the step"
    line_of_restart = f"understudy: restart 1 goes on from step 20 (/ckpt/20); why: understudy explain job {job}"
    assert lines.count(line_of_restart) == 1, "\n".join(lines)

    stranger = site.cluster.sbatch("--nodes=1", "--begin=now+3", script=SHOW, user=RESEARCHER)
    site.wait_for(lambda: "UNDERSTUDY_SOCKET" in output(site, stranger), 60, "the other job has begun")
    assert "UNDERSTUDY_RESTORE" not in output(site, stranger)

    def attempts() -> list[object]:
        (known,) = [one for one in site.items("/v1/jobs") if one["job_id"] == stranger]
        return [attempt["restore_step"] for attempt in known["attempts"]]

    site.wait_for(attempts, 60, "its attempt is known")
    assert attempts() == [None], "nothing was settled for it"


def over(site: Site, job: int) -> bool:
    return output(site, job).endswith("over\n")


CHECKED = """#!/bin/sh
export UNDERSTUDY_SELFCHECK=1 CHECKS=$PWD/checks
export UNDERSTUDY_SELFCHECK_COMMAND='echo checked >>$CHECKS; echo 7 wrong elements; [ $SLURMD_NODENAME != BAD ]'
begun=$(date +%s)
srun --kill-on-bad-exit --ntasks-per-node=2 sh -c 'echo at work on $SLURMD_NODENAME; sleep 1'
echo "srun ended with $?, $(($(date +%s) - begun)) s"
srun --ntasks-per-node=2 true
echo over
"""


@pytest.mark.parametrize(
    "slurm",
    [NATIVE, *(pytest.param(one, marks=pytest.mark.long) for one in (DEBIAN_13, DEBIAN_14))],
    ids=["22.05", "24.11", "26.05"],
)
def test_a_node_that_fails_its_self_check_ends_the_step_before_any_rank_works_with_it(
    make_hooked_site: MakeHookedSite, slurm: Installation
) -> None:
    """Needs no agent and no control plane. Each node is checked once, whatever its tasks and steps; no node is drained
    for it.
    """
    site = make_hooked_site(slurm=slurm)
    for bad, checks in (("n0", 2), ("n2", 2)):
        (site.cluster.user_directory(RESEARCHER) / "checks").unlink(missing_ok=True)
        script = CHECKED.replace("BAD", bad)
        job = site.cluster.sbatch("--nodes=2", "--nodelist=n1,n2", "--open-mode=append", script=script, user=RESEARCHER)
        site.wait_for(partial(over, site, job), 90, "both steps are over")
        site.cluster.wait_until_idle()
        lines = output(site, job).splitlines()
        assert len((site.cluster.user_directory(RESEARCHER) / "checks").read_text().splitlines()) == checks
        (ended,) = [line for line in lines if line.startswith("srun ended with")]
        assert int(ended.split()[-2]) < 20
        why = [line for line in lines if "n2: its self-check failed: 7 wrong elements" in line]
        if bad == "n2":
            assert ended.split()[3] != "0,"
            assert why
            assert "at work on n2" not in lines
        else:
            assert ended.split()[3] == "0,", lines
            assert lines.count("at work on n2") == 2
            assert not why
    assert drained(site) == []
