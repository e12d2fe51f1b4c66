"""Options of srun that `understudy run` passes on to the steps of its seats."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from understudy_launcher.options import UsageError, parse
from understudy_launcher.rank_socket import folders_of_sockets
from understudy_launcher.slurm import Allocation, NoAllocation, read_allocation, srun_arguments
from understudy_launcher.srun_options import check, take_out, with_mounts

IMAGE = "--container-image=nvcr.io#nvidia/pytorch:25.06-py3"


def test_what_stands_between_srun_args_and_the_command_is_for_srun() -> None:
    options = parse(["--nodes", "4", "--srun-args", IMAGE, "--mem=0", "--", "python", "train.py", "--srun-args"])
    assert options.srun == (IMAGE, "--mem=0")
    assert options.command == ("python", "train.py", "--srun-args")
    assert options.nodes == 4
    assert parse(["--nodes", "4", "--", "x"]).srun == ()


@pytest.mark.parametrize(
    "words",
    [
        [f"--srun-args={IMAGE} --mem=0", "--nodes", "4"],
        [f"--srun-args={IMAGE}", "--srun-args=--mem=0", "--nodes", "4"],
        ["--nodes", "4", "--srun-args", f"{IMAGE} --mem=0"],
    ],
)
def test_they_may_be_one_word_as_well(words: list[str]) -> None:
    assert take_out([*words, "--", "x"]) == (["--nodes", "4", "--", "x"], (IMAGE, "--mem=0"))


def test_an_empty_word_of_the_launchers_own_stays() -> None:
    assert take_out(["--preload", "", "--", ""]) == (["--preload", "", "--", ""], ())


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--nodes=3", "--nodes"),
        ("-N3", "--nodes"),
        ("--nodel=n1", "chooses the nodes"),
        ("--ntasks-per-node=8", "--procs-per-node"),
        ("-n8", "--procs-per-node"),
        ("--cpus-per-task=4", "give --cpus-per-task to sbatch"),
        ("--cpu-bind=cores", "--cpu-bind to `understudy run`"),
        ("--gpus-per-task=1", "--gpus-per-task to `understudy run`"),
        ("--gres=gpu:1", "all GPUs of the job"),
        ("--output=x", "write it before --srun-args"),
        ("-l", "write it before --srun-args"),
        ("--multi-prog", "by $RANK"),
        ("--het-group=0", "jobs of their own"),
        ("--pty", "no terminal"),
        ("--mpi=pmix", "PMI"),
        ("--export=NONE", "--export to sbatch"),
        ("--no-kill=off", "outlives"),
        ("-K", "outlives"),
        ("train.py", "as one word"),
        ("--", "as one word"),
    ],
)
def test_options_that_the_launcher_decides_itself_are_refused_with_what_to_do(option: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        parse(["--nodes", "4", f"--srun-args={IMAGE} {option}", "--", "x"])


def test_the_others_are_passed_on_and_do_not_override_the_launchers() -> None:
    options = (IMAGE, "--container-workdir=/w", "--no-container-mount-home", "--mem=0", "--task-prolog=/x", "-D/w")
    check((*options, "--container=/bundle", "--network=x", "--cpu-freq=high", "--gres-flags=allow-task-sharing", "-v"))
    words = srun_arguments(Allocation("7", ("n1", "n2", "n3"), 16), ["n1", "n3"], ["seat"], options)
    assert tuple(words[1 : 1 + len(options)]) == options
    assert words.index("--nodes=2") > words.index(options[-1])


def test_a_container_of_pyxis_gets_the_folder_of_the_agents_socket() -> None:
    run = ["/run/understudy"]
    assert with_mounts((IMAGE,), run) == (IMAGE, "--container-mounts=/run/understudy:/run/understudy")
    own = "--container-mounts=/data:/data,/scratch:/s:ro"
    assert with_mounts((IMAGE, own), run) == (IMAGE, f"{own},/run/understudy:/run/understudy")
    there = (IMAGE, "--container-mounts=/run:/run")
    assert with_mounts(there, run) == there
    other = (IMAGE, "--container-mounts=/run:/host")
    assert with_mounts(other, run) == (IMAGE, "--container-mounts=/run:/host,/run/understudy:/run/understudy")
    assert with_mounts((IMAGE,), []) == (IMAGE,)
    assert with_mounts(("--mem=0",), run) == ("--mem=0",)


def test_only_folders_that_are_there_are_mounted(tmp_path: Path) -> None:
    environment = {
        "UNDERSTUDY_SOCKET": f"{tmp_path}/agent.sock",
        "UNDERSTUDY_KEEPER_SOCKET": f"{tmp_path}/no/keeper.sock",
    }
    assert folders_of_sockets(environment) == [str(tmp_path)]


def test_binding_is_for_ranks_that_the_seat_starts_itself() -> None:
    for option in ("--cpu-bind=cores", "--gpus-per-task=1"):
        with pytest.raises(UsageError, match="torchrun starts the ranks"):
            parse(["--nodes", "4", "--torchrun", option, "--", "x"])
    for option, says in (("--cpu-bind=rank", "--cpu-bind rank"), ("--gpus-per-task=some", "a number above 0, or all")):
        with pytest.raises(UsageError, match=says):
            parse(["--nodes", "4", option, "--", "x"])


def test_with_gpus_for_each_task_there_are_fewer_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(["--nodes", "4", "--gpus-per-task", "4", "--", "x"]).ranks_on(8) == 2
    assert parse(["--nodes", "4", "--gpus-per-task", "all", "--", "x"]).ranks_on(8) == 8
    assert parse(["--nodes", "4", "--procs-per-node", "3", "--gpus-per-task", "2", "--", "x"]).ranks_on(8) == 3
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "2")
    assert parse(["--nodes", "4", "--", "x"]).ranks_on(8) == 4


def test_a_command_that_begins_with_an_option_is_refused() -> None:
    with pytest.raises(UsageError, match="begins with an option, --multi-prog"):
        parse(["--nodes", "4", "--", "--multi-prog", "ranks.conf"])


def test_a_heterogeneous_job_is_refused() -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_HET_SIZE": "2"}
    with pytest.raises(NoAllocation, match=r"with 2 components.*a job of its own for the gang"):
        read_allocation(job)
