"""Kinds of jobs, and what ranks have, on a real cluster whose Slurm binds tasks to CPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.launch.gang import GangJob, launcher_site
from tests.testbed.site import RESEARCHER, Site

pytestmark = pytest.mark.cluster

SHOWS_CPUS = "import os, json; print(json.dumps([os.environ['SLURM_PROCID'], sorted(os.sched_getaffinity(0))]))"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with launcher_site(nodes=4, slurm_conf_lines=["TaskPlugin=task/affinity"]) as started:
        yield started


@pytest.fixture
def gang(site: Site) -> Iterator[GangJob]:
    job = GangJob(site, site.job_python())
    yield job
    if job.job:
        job.cancel()
    site.cluster.wait_until_idle(60)


@pytest.mark.parametrize(
    "bind",
    [
        [],
        pytest.param(["--cpu-bind=cores"], marks=pytest.mark.long),
        pytest.param(["--cpu-bind=map_cpu:1,0"], marks=pytest.mark.long),
    ],
    ids=["default", "cores", "map"],
)
def test_ranks_have_the_cpus_that_srun_gives_to_tasks(gang: GangJob, bind: list[str]) -> None:
    """srun itself, on the same cluster, is the measure."""
    tasks = ["--nodes=1", "--ntasks=2", "--cpus-per-task=1", *bind, "--gres=gpu:8"]
    done = gang.site.cluster.run("srun", *tasks, str(gang.python), "-c", SHOWS_CPUS, user=RESEARCHER)
    assert done.returncode == 0, done.stderr
    of_tasks = [cpus for _, cpus in sorted(json.loads(line) for line in done.stdout.splitlines())]
    assert len(of_tasks) == 2
    sbatch = ["--ntasks-per-node=2", "--cpus-per-task=1", "--gres=gpu:8"]
    gang.submit(["--nodes", "2", "--procs-per-node", "2", *bind], nodes=3, sbatch=sbatch)
    gang.wait_for_launch(0, 4)
    assert [one["cpus"] for one in gang.ranks(0)] == of_tasks * 2
    gang.finish()
    assert gang.exit_code() == 0


def test_a_job_that_asks_for_gpus_and_cpus_for_each_task_has_them(gang: GangJob) -> None:
    own = sorted(os.sched_getaffinity(0))[:2]
    asked = ["--ntasks-per-node=2", "--gpus-per-task=4", "--cpus-per-task=1"]
    gang.submit(["--nodes", "2", "--rearm-seconds", "0.5"], nodes=3, sbatch=asked)
    gang.wait_for_launch(0, 4)
    gang.wait_for_standbys(3)
    gang.condemn("n1")
    gang.wait_for_launch(1, 4)
    for launch in (0, 1):
        ranks = gang.ranks(launch)
        assert [one["CUDA_VISIBLE_DEVICES"] for one in ranks] == ["0,1,2,3", "4,5,6,7"] * 2
        assert [one["cpus"] for one in ranks] == [[own[0]], [own[1]]] * 2
        assert {one["SLURM_CPUS_PER_TASK"] for one in ranks} == {"1"}
    gang.finish()
    assert gang.exit_code() == 0


def test_srun_gets_the_options_that_are_for_it(gang: GangJob) -> None:
    """Its own task prolog, and limits: on the seat, whose ranks have what it has."""
    prolog = gang.home / "prolog.sh"
    prolog.write_text("#!/bin/sh\necho export UNDERSTUDY_SOCKET=/from/the/prolog\n")
    prolog.chmod(0o755)
    gang.submit(["--nodes", "2", f"--srun-args=--task-prolog={prolog} --mem=0"], nodes=2)
    gang.wait_for_launch(0, 16)
    assert {one["UNDERSTUDY_SOCKET"] for one in gang.ranks(0)} == {"/from/the/prolog"}
    gang.finish()
    assert gang.exit_code() == 0


def test_tasks_of_an_array_are_gangs_of_their_own(gang: GangJob) -> None:
    options = ["--nodes", "1", "--procs-per-node", "1", "-o", "out-%A_%a-%t"]
    command = ["/bin/sh", "-c", "echo task $SLURM_ARRAY_TASK_ID rank $RANK job $SLURM_JOB_ID"]
    gang.submit(options, command, nodes=2, sbatch=["--array=3-4"])
    gang.wait_for(lambda: len(list(gang.home.glob("out-*"))) == 2, 60, "both tasks have run")
    found = {path.name: path.read_text().split() for path in gang.home.glob("out-*")}
    assert sorted(found) == [f"out-{gang.job}_3-0", f"out-{gang.job}_4-0"]
    assert {words[1] for words in found.values()} == {"3", "4"}
    assert len({words[5] for words in found.values()}) == 2


def test_named_nodes_are_used_with_a_spare_among_them(gang: GangJob) -> None:
    gang.submit(["--nodes", "2", "--procs-per-node", "1"], nodes=3, sbatch=["--nodelist=n[2-4]"])
    gang.wait_for_launch(0, 2)
    gang.condemn("n2")
    gang.wait_for_launch(1, 2)
    assert (gang.nodes(0), gang.nodes(1)) == (["n2", "n3"], ["n4", "n3"])
    gang.finish()
    assert gang.exit_code() == 0


def test_salloc_runs_a_gang_from_where_the_user_is(gang: GangJob) -> None:
    launcher = [str(gang.python), "-P", "-m", "understudy_launcher", "--nodes", "2", "--procs-per-node", "2"]
    program = ["/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE"]
    done = gang.site.cluster.run(
        *("salloc", "--nodes=3", "--no-kill", "--quiet", *launcher, "--", *program),
        user=RESEARCHER,
        environment={"PYTHONPATH": str(gang.site.code), "TESTBED": str(gang.site.directory)},
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 4" for rank in range(4)]


def test_a_heterogeneous_job_is_refused_with_what_to_do(gang: GangJob) -> None:
    gang.submit(["--nodes", "1"], nodes=1, sbatch=["--gres=gpu:1", ":", "--nodes=1"])
    gang.wait_for(lambda: "is heterogeneous, with 2 components" in gang.output, 60, "it is refused")
    assert "a job of its own" in gang.output
