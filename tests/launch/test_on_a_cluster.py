"""The launcher on a real Slurm cluster, as an ordinary user: four nodes of six or more."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_frameworks import script_of
from tests.launch import begins_again
from tests.launch.gang import GangJob, launcher_site
from tests.testbed.processes import command_of, is_running, read_process
from tests.testbed.site import RESEARCHER, Site
from understudy_launcher.process_tree import parents

pytestmark = pytest.mark.cluster

GANG = ["--nodes", "4", "--procs-per-node", "2"]
QUICK = ["--rearm-seconds", "0.5"]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with launcher_site(nodes=8) as started:
        yield started


@pytest.fixture
def gang(site: Site) -> Iterator[GangJob]:
    """A job to be submitted; afterwards the cluster is whole and empty again."""
    job = GangJob(site, site.job_python())
    yield job
    if site.cluster.has_machines:
        site.cluster.plug_in(*site.cluster.node_names)
    for node in site.cluster.node_names:
        if node not in daemons_of(site):
            site.cluster.start_node(node)
    if job.job:
        job.cancel()
    site.cluster.run("scontrol", "update", f"NodeName={','.join(site.cluster.node_names)}", "State=RESUME")
    site.cluster.wait_until_idle(60)


def test_every_rank_finds_its_place_and_the_job_ends_with_the_gang(gang: GangJob) -> None:
    gang.submit(GANG)
    gang.wait_for_launch(0, 8)
    gang.finish()
    assert gang.exit_code() == 0
    ranks = gang.ranks(0)
    assert [one["RANK"] for one in ranks] == [str(rank) for rank in range(8)]
    assert [one["LOCAL_RANK"] for one in ranks] == ["0", "1"] * 4
    assert [one["NODE_RANK"] for one in ranks] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert gang.nodes(0) == list(gang.site.cluster.node_names[:4])
    assert [one["SLURM_PROCID"] for one in ranks] == [one["RANK"] for one in ranks]
    for name, value in {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2", "SLURM_NTASKS": "8"}.items():
        assert {one[name] for one in ranks} == {value}
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in ranks}) == 1
    assert {one["SLURM_JOB_ID"] for one in ranks} == {str(gang.job)}
    assert {one["UNDERSTUDY_SOCKET"] for one in ranks} == {gang.site.rank_socket}
    assert {one["UNDERSTUDY_LAUNCH_SECRET"] for one in ranks} == {None}


@pytest.mark.parametrize(
    "asked",
    [
        "--gres=gpu:8",
        *(
            pytest.param(f"{gpus} --ntasks-per-node=8", marks=pytest.mark.long)
            for gpus in ("--gres=gpu:8 --cpus-per-task=2", "--gpus-per-task=1")
        ),
    ],
)
def test_without_a_number_there_is_a_rank_for_each_gpu(gang: GangJob, asked: str) -> None:
    gang.submit(["--nodes", "2"], nodes=3, sbatch=asked.split())
    gang.wait_for_launch(0, 16)
    assert "srun" not in gang.output
    gang.finish()
    assert gang.exit_code() == 0


def test_a_node_that_fails_its_self_check_starts_no_rank(gang: GangJob) -> None:
    command = 'echo "GPU 3 of ${GPUS:-none}: wrong"; [ "$SLURMD_NODENAME" != n2 ]'
    gang.submit([*GANG, "--selfcheck", "--selfcheck-command", command])
    gang.wait_for_launch(0, 8)
    assert gang.nodes(0) == ["n1", "n5", "n3", "n4"]
    assert {one["node"]: one["why"] for one in gang.events("selfcheck_failed")} == {"n2": "GPU 3 of 8: wrong"}
    gang.finish()
    assert gang.exit_code() == 0


def test_a_rank_that_crashes_is_started_again_with_all_others(gang: GangJob) -> None:
    gang.submit(GANG, gang.simple("exit:0:n3:7"))
    gang.wait_for_launch(1, 8)
    gang.finish()
    assert gang.exit_code() == 0
    assert gang.nodes(1) == gang.nodes(0)
    assert {one["MASTER_PORT"] for one in gang.ranks(1)} != {one["MASTER_PORT"] for one in gang.ranks(0)}
    (fault,) = gang.events("fault")
    assert (fault["node"], fault["status"]) == ("n3", 7)
    assert [one["row"] for one in gang.events("decision")] == ["L130", "L10"]


def test_a_program_that_resumes_by_an_argument_continues_on_a_spare(gang: GangJob) -> None:
    """nanoGPT would begin again and write over its checkpoint."""
    shutil.copy(begins_again.__file__, gang.home / "train.py")
    gang_of_two = ["--nodes", "2", "--procs-per-node", "1"]
    resumes = ["--resume-args=--init_from=resume", "--resume-if", "out/ckpt.pt"]
    gang.submit([*gang_of_two, *resumes], [str(gang.python), "train.py", "--fails_at=4"], nodes=3)
    saved = gang.home / "out" / "ckpt.pt"
    gang.wait_for(lambda: saved.exists() and '"iter_num": 4' in saved.read_text(), 60, "it has saved step 4")
    gang.condemn("n2")
    assert gang.exit_code() == 0
    began = [(one["launch"], one["step"]) for one in gang.lines("began")]
    assert began == [("0", 0), ("0", 0), ("1", 4), ("1", 4)], gang.output
    assert "launch 1 continues from out/ckpt.pt" in gang.output


def test_a_step_that_a_user_ends_is_no_nodes_fault(gang: GangJob) -> None:
    gang.submit([*GANG, *QUICK])
    gang.wait_for_launch(0, 8)
    gang.wait_for_standbys(6)
    gang.site.cluster.run("scancel", f"{gang.job}.0")
    gang.wait_for_launch(1, 8)
    assert gang.nodes(1) == gang.nodes(0)
    assert not gang.events("spare_bad")
    gang.finish()
    assert gang.exit_code() == 0


def test_a_dead_node_gives_its_place_to_a_spare_and_a_file_system_that_hangs_ends_nothing(gang: GangJob) -> None:
    """A FIFO without a writer stands for a file on it: opening it waits."""
    gang.submit([*GANG, *QUICK, "--progress-file", "steps", "--hang-seconds", "3"])
    gang.wait_for_launch(0, 8)
    gang.wait_for_standbys(6)
    for step in range(3):  # the launcher looks twice a second
        (gang.home / "steps").write_text(f"{step}\n")
        time.sleep(0.7)
    for name in ("steps", "verdicts"):
        os.mkfifo(gang.home / "new")
        (gang.home / "new").replace(gang.home / name)
    time.sleep(5)
    assert not gang.events("decision")
    gang.site.kill_node("n2")
    gang.wait_for_launch(1, 8)
    assert gang.nodes(1) == ["n1", "n5", "n3", "n4"]
    gang.finish()
    assert gang.exit_code() == 0


@pytest.mark.timed
@pytest.mark.machines
def test_a_node_without_power_is_replaced_although_no_connection_is_reset(gang: GangJob) -> None:
    gang.submit([*GANG, *QUICK])
    gang.wait_for_launch(0, 8)
    gang.wait_for_standbys(6)
    at = gang.site.power_off("n2")
    gang.wait_for_launch(1, 8)
    seconds = max(one["at"] for one in gang.ranks(1)) - at
    print(f"\nnode without power to all new processes: {seconds:.3f} s")
    assert gang.nodes(1) == ["n1", "n5", "n3", "n4"]
    assert seconds < 5
    gang.finish()
    gang.wait_for(lambda: gang.events("ended"), 60, "the launcher has ended beside a node without power")


@pytest.mark.timed
def test_a_node_that_stands_still_is_replaced_too(gang: GangJob) -> None:
    """Its connections stay open, and its kernel acknowledges what is sent to it."""
    gang.submit([*GANG, *QUICK])
    gang.wait_for_launch(0, 8)
    gang.wait_for_standbys(6)
    at = time.time()
    with gang.site.cluster.frozen("n2"):
        gang.wait_for_launch(1, 8)
        seconds = max(one["at"] for one in gang.ranks(1)) - at
        print(f"\nfrozen node to all new processes: {seconds:.3f} s")
        assert gang.nodes(1) == ["n1", "n5", "n3", "n4"]
        assert seconds < 5
        gang.finish()
        gang.wait_for(lambda: gang.events("ended"), 60, "the launcher has ended beside a node that stands still")


@pytest.mark.timed
@pytest.mark.parametrize("standbys", [True, False])
def test_a_spare_where_slurm_can_start_nothing_takes_no_other_down(gang: GangJob, standbys: bool) -> None:
    """Only its slurmd is dead. srun ends a whole step of which it could not start one task, ten seconds later."""
    gang.submit([*GANG, "--rearm-seconds", "3" if standbys else "600"])
    gang.wait_for_launch(0, 8)
    kill_daemon(gang, "n5")
    if standbys:
        gang.wait_for_standbys(5, generation=2)
        assert [one["node"] for one in gang.events("barred")] == ["n5"]
    at = gang.condemn("n2")
    gang.wait_for_launch(1, 8)
    seconds = max(one["at"] for one in gang.ranks(1)) - at
    print(f"\nverdict to processes, beside a node without slurmd, standbys {standbys}: {seconds:.3f} s")
    assert gang.nodes(1) == ["n1", "n6", "n3", "n4"]
    assert seconds < (1 if standbys else 6)
    if standbys:  # srun has ended the step with n5 before the verdict: what follows is a step without it
        gang.wait_for_standbys(4, generation=3)
    else:
        time.sleep(15)
    gang.finish()
    assert gang.exit_code() == 0
    assert len(gang.events("launch")) == 2


@pytest.mark.timed
@pytest.mark.parametrize("standbys", [True, False])
def test_a_verdict_moves_the_gang_off_the_node_within_a_second(gang: GangJob, standbys: bool) -> None:
    """A gang without standbys takes 0.75 s and what the first launch took. Its nodes share the processors of one
    machine.
    """
    gang.submit([*GANG, "--rearm-seconds", "0.5" if standbys else "600"])
    gang.wait_for_launch(0, 8)
    if standbys:
        gang.wait_for_standbys(6)
    first_launch = max(one["at"] for one in gang.ranks(0)) - gang.events("ordered")[0]["at"]
    at = gang.condemn("n1")
    gang.wait_for_launch(1, 8)
    began = [one["at"] - at for one in gang.ranks(1)]
    print(
        f"\nverdict to processes, standbys {standbys}: median {statistics.median(began):.3f}, last {max(began):.3f} s"
        f" (first launch: {first_launch:.3f} s)"
    )
    assert gang.nodes(1) == ["n5", "n2", "n3", "n4"], "the spare takes the first place, the order stays"
    assert max(began) < (1 if standbys else 0.75 + first_launch), "the launcher looks for verdicts twice a second"
    gang.finish()
    assert gang.exit_code() == 0


@pytest.mark.timed
def test_ranks_that_cannot_be_killed_hold_up_nothing(gang: GangJob) -> None:
    """A verdict names n2; the ranks on n3, which is fine, do not end: its seat and Slurm's daemon stand still."""
    gang.submit([*GANG, *QUICK, "--silence-seconds", "60", "--kill-seconds", "1"], gang.simple("--ignore-term"))
    gang.wait_for_launch(0, 8)
    gang.wait_for_standbys(6)
    with gang.site.cluster.frozen("n3"):
        at = gang.condemn("n2")
        gang.wait_for_launch(1, 8)
        seconds = max(one["at"] for one in gang.ranks(1)) - at
        print(f"\nverdict to processes, beside a stuck node: {seconds:.3f} s")
        assert gang.nodes(1) == ["n1", "n5", "n6", "n4"]
        assert seconds < 3
    assert "outlived SIGKILL" in gang.output


@pytest.mark.timed
def test_a_gang_that_hangs_is_started_again(gang: GangJob) -> None:
    """Two of its nodes ignore all they can: the ranks do not end of themselves."""
    gang.submit([*GANG, "--progress-file", "steps", "--hang-seconds", "2"], gang.simple("step", "--ignore-term"))
    gang.wait_for_launch(1, 8)
    (fault,) = gang.events("fault")
    assert (fault["bad"], fault["node"]) == ({}, None)
    assert 2 < fault["hung_seconds"] < 4
    assert [one["row"] for one in gang.events("decision")] == ["L140"]
    assert gang.nodes(1) == gang.nodes(0)
    gang.finish()
    assert gang.exit_code() == 0


def test_a_black_hole_is_named_and_replaced(gang: GangJob) -> None:
    gang.submit(GANG, gang.simple("exit:*:n3:9"))
    gang.wait_for_launch(2, 8)
    gang.finish()
    assert gang.exit_code() == 0
    assert gang.nodes(2) == ["n1", "n2", "n5", "n4"]
    assert list(gang.events("decision")[1]["blamed"]) == ["n3"]


def test_out_of_spares_the_gang_goes_on_smaller(gang: GangJob) -> None:
    gang.submit(
        ["--nodes", "4", "--procs-per-node", "1", "--when-out-of-spares", "shrink", "--min-nodes", "3"], nodes=5
    )
    gang.wait_for_launch(0, 4)
    gang.condemn("n2")
    gang.wait_for_launch(1, 4)
    gang.condemn("n3")
    gang.wait_for_launch(2, 3)
    assert gang.nodes(2) == ["n1", "n5", "n4"]
    assert {one["WORLD_SIZE"] for one in gang.ranks(2)} == {"3"}
    gang.condemn("n4")
    assert gang.exit_code() == 69
    assert "fewer than 3 nodes" in gang.output


def test_slurms_warning_asks_the_ranks_for_a_checkpoint(gang: GangJob) -> None:
    gang.submit(GANG)
    gang.wait_for_launch(0, 8)
    gang.site.cluster.run("scancel", "--batch", "--signal=USR1", str(gang.job))
    gang.wait_for(lambda: len(gang.lines("warned")) == 8, 60, "every rank has heard of it")
    gang.finish()
    assert gang.exit_code() == 0


def test_sigterm_leaves_no_process(gang: GangJob) -> None:
    gang.submit([*GANG, *QUICK, "--term-seconds", "1"], gang.simple("--ignore-term"))
    gang.wait_for_launch(0, 8)
    gang.wait_for_standbys(6)
    assert len(gang.processes()) > 16
    gang.site.cluster.run("scancel", "--batch", "--signal=TERM", str(gang.job))
    assert gang.exit_code() == 128 + signal.SIGTERM
    assert gang.processes() == []


def test_a_launcher_that_is_killed_leaves_no_process(gang: GangJob) -> None:
    gang.submit([*GANG, *QUICK])
    gang.wait_for_launch(0, 8)
    gang.site.cluster.run("scancel", "--batch", "--signal=KILL", str(gang.job))
    gang.wait_for(lambda: not gang.processes(), 60, "all processes are gone", 0.3)


def test_a_launcher_that_is_killed_alone_goes_on_with_its_gang(gang: GangJob) -> None:
    gang.submit([*GANG, *QUICK])
    gang.wait_for_launch(0, 8)
    gang.wait_for_standbys(6)
    ranks = [one["pid"] for one in gang.ranks(0)]
    own = {pid for pid in gang.processes() if b"understudy_launcher\0" in command_of(pid)}
    (launcher,) = (pid for pid in own if (parents().get(pid) in own))
    os.kill(launcher, signal.SIGKILL)
    gang.wait_for(lambda: gang.events("rejoined"), 30, "the seats are connected again")
    assert gang.events("rejoined")[0]["missing"] == []
    assert all(read_process(pid) for pid in ranks)
    first, second, *_ = gang.nodes(0)
    gang.condemn(second)
    gang.wait_for_launch(1, 8)
    assert gang.nodes(1)[0] == first
    assert second not in gang.nodes(1)
    gang.finish()
    assert gang.exit_code() == 0
    gang.wait_for(lambda: not gang.processes(), 60, "all processes are gone", 0.3)


def test_one_torchrun_a_node(gang: GangJob) -> None:
    options = ["--nodes", "2", "--procs-per-node", "2", "--torchrun", *QUICK]
    gang.submit(options, gang.simple("exit:0:3:5"), nodes=2)
    gang.wait_for_launch(1, 4, seconds=90)
    assert [one["RANK"] for one in gang.ranks(1)] == ["0", "1", "2", "3"]
    assert [one["LOCAL_RANK"] for one in gang.ranks(1)] == ["0", "1"] * 2
    assert {one["WORLD_SIZE"] for one in gang.ranks(1)} == {"4"}
    gang.finish()
    assert gang.exit_code(60) == 0


@pytest.mark.timed
@pytest.mark.long
def test_warm_standbys_begin_sooner_than_cold_ones(gang: GangJob) -> None:
    """The gang's first line after `import torch`, on all ranks, from the verdict on."""
    program = gang.home / "torch_program.py"
    program.write_text(
        f"import torch\nimport sys\nsys.path.insert(0, {str(gang.home)!r})\nimport program\nprogram.main()\n"
    )
    took = {}
    for modules in ("", "torch"):
        for name in ("ranks", "events", "verdicts", "finish"):
            (gang.home / name).unlink(missing_ok=True)
        options = ["--nodes", "4", "--procs-per-node", "1", *QUICK, "--preload", modules]
        gang.submit(options, [str(gang.python), str(program)])
        gang.wait_for_launch(0, 4, seconds=120)
        gang.wait_for_standbys(6, "warm" if modules else "seat")
        at = gang.condemn("n2")
        gang.wait_for_launch(1, 4, seconds=60)
        took[modules] = max(one["at"] for one in gang.ranks(1)) - at
        gang.finish()
        assert gang.exit_code() == 0
    print(f"\nverdict to the line after `import torch`: cold {took['']:.2f} s, warm {took['torch']:.2f} s")
    assert took["torch"] < 1
    assert took["torch"] < took[""] / 2


def test_ranks_go_on_in_their_processes_and_come_to_the_same_weights(gang: GangJob) -> None:
    """The script of docs/frameworks/ddp.md, which also records which process did which step."""
    script = gang.home / "train.py"
    note = "note(rank, n); time.sleep(0.03)"
    text = script_of("ddp", "## Continuing in the same process").replace(
        "TOTAL, EVERY = 200, 20", "TOTAL, EVERY = 60, 20"
    )
    text = text.replace("optimizer.step()\n", f"optimizer.step(); {note}\n")
    hook = "        model.register_comm_hook(None, in_rank_order)\n"
    text = text.replace("        optimizer = torch", f"{hook}        optimizer = torch")
    assert note in text
    assert hook in text
    script.write_text(NOTING + text)
    weights = {}
    for faults in (False, True):
        directory = gang.home / f"checkpoints-{faults}"
        gang.site.cluster.run("mkdir", str(directory), user=RESEARCHER)
        options = ["--nodes", "3", "--procs-per-node", "1", "--in-process", "--preload", "torch"]
        gang.submit(options, [str(gang.python), str(script), str(directory)], nodes=4 if faults else 3)
        if faults:
            gang.wait_for(lambda: len(done_steps(gang, 0)) > 3 * 25, 60, "the gang trains")
            at = gang.condemn("n2")
            gang.wait_for(lambda: done_steps(gang, 1), 60, "it goes on")
            seconds = done_steps(gang, 1)[0]["at"] - at
        assert gang.exit_code(90) == 0
        weights[faults] = load(directory / "000060.pt")["model"]
        if not faults:
            gang.forget()
    assert same(weights[False], weights[True])
    before, after = ({one["rank"]: one["pid"] for one in done_steps(gang, launch)} for launch in (0, 1))
    assert {rank for rank in before if before[rank] == after[rank]} == {0, 2}
    assert next(one["seats"] for one in gang.events("launch") if one["launch"] == 1) == ["n1", "n4", "n3"]
    print(f"\nverdict to the first step, in the same processes: {seconds:.2f} s")


@pytest.mark.long
def test_where_ranks_keep_their_state_no_step_is_lost_and_the_weights_are_the_same(gang: GangJob) -> None:
    """The script of docs/frameworks/ddp.md, with a checkpoint at its end alone."""
    script = gang.home / "train.py"
    note, hook = "note(rank, n); time.sleep(0.03)", "        model.register_comm_hook(None, in_rank_order)\n"
    text = script_of("ddp", "## Without losing a step")
    for before, after in (
        ("TOTAL, EVERY = 200, 20", "TOTAL, EVERY = 60, 60"),
        ("    optimizer.step()\n", f"    optimizer.step()\n            {note}\n"),
        ("        for n in", f"{hook}        for n in"),
        ("lambda: load(monitor)", "lambda: 0"),  # neither agent nor control plane are here
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    script.write_text(NOTING + text)
    weights = {}
    for faults in (False, True):
        directory = gang.home / f"checkpoints-{faults}"
        gang.site.cluster.run("mkdir", str(directory), user=RESEARCHER)
        options = ["--nodes", "3", "--procs-per-node", "1", "--in-process", "--preload", "torch"]
        gang.submit(options, [str(gang.python), str(script), str(directory)], nodes=4 if faults else 3)
        if faults:
            gang.wait_for(lambda: len(done_steps(gang, 0)) > 3 * 25, 60, "the gang trains")
            gang.condemn("n2")
        assert gang.exit_code(90) == 0
        weights[faults] = load(directory / "000060" / "rank-0.pt")["model"]
        if not faults:
            gang.forget()
    assert same(weights[False], weights[True])
    done = [(one["rank"], one["step"]) for launch in (0, 1) for one in done_steps(gang, launch) if one["rank"] != 1]
    assert sorted(done) == [(rank, step) for rank in (0, 2) for step in range(60)], "each step once"
    resumed = {one["step"] for one in done_steps(gang, 1) if one["rank"] == 1}
    assert min(resumed) >= 25
    assert max(resumed) == 59
    first, second = ({one["rank"]: one["pid"] for one in done_steps(gang, launch)} for launch in (0, 1))
    assert {rank for rank in first if first[rank] == second[rank]} == {0, 2}


@pytest.mark.long
@pytest.mark.machines
def test_after_the_loss_of_a_node_the_gang_goes_on_from_a_save_in_memory(gang: GangJob, keepers: Path) -> None:
    """Keepers run as root, the ranks as an ordinary user, and no rank writes a checkpoint."""
    script = gang.home / "train.py"
    script.write_text(NOTING + IN_MEMORY)
    weights = {}
    for faults in (False, True):
        directory = gang.home / f"weights-{faults}"
        gang.site.cluster.run("mkdir", str(directory), user=RESEARCHER)
        options = ["--nodes", "3", "--procs-per-node", "1", "--preload", "torch"]
        command = ["env", f"UNDERSTUDY_KEEPER_SOCKET={keepers}/%n.sock", str(gang.python), str(script), str(directory)]
        gang.submit(options, command, nodes=4 if faults else 3)
        if faults:
            gang.wait_for(lambda: len(done_steps(gang, 0)) > 3 * 25, 60, "the gang trains")
            gang.site.cluster.kill_node("n2")  # with its keeper
        assert gang.exit_code(90) == 0, gang.output + (keepers.parent / "log" / "keeper-n1.log").read_text()
        weights[faults] = [load(directory / f"{rank}.pt") for rank in range(3)]
        if not faults:
            gang.forget()
    for before, after in zip(weights[False], weights[True], strict=True):
        assert same(before, after)
    first, last = ([one["step"] for one in done_steps(gang, launch)] for launch in (0, 1))
    assert min(last) == (max(first) + 1) // 10 * 10 or min(last) == max(first) // 10 * 10, "the last whole save"
    assert next(one["seats"] for one in gang.events("launch") if one["launch"] == 1) == ["n1", "n4", "n3"]


@pytest.fixture
def keepers(site: Site) -> Path:
    """Folder of the sockets of the nodes' keepers. They end with the cluster."""
    return site.start_keepers(site.cluster.node_names[:4])


def test_outside_an_allocation_it_says_what_is_missing(site: Site) -> None:
    environment = {"PYTHONPATH": str(site.code)}
    python = str(site.job_python())
    done = site.cluster.run(python, "-m", "understudy_launcher", "--nodes", "2", "--", "true", environment=environment)
    assert done.returncode == 2
    assert "SLURM_JOB_ID" in done.stderr
    assert "sbatch" in done.stderr


def test_an_allocation_that_is_too_small_is_refused(gang: GangJob) -> None:
    gang.submit(GANG, nodes=2)
    assert gang.exit_code() == 2
    assert "ask sbatch for 4 nodes and some spares" in gang.output


def test_at_a_preemption_the_ranks_are_warned_and_have_the_grace_time(gang: GangJob) -> None:
    """Slurm signals only the steps when it begins. Its end is found half a minute later: not waited for here."""
    let_urgent_jobs_preempt(gang.site, grace_seconds=60)
    script = gang.home / "warned.py"
    script.write_text(WARNED)
    options = ["--checkpoint-signal", "TERM", "--term-seconds", "0.5"]
    gang.submit([*GANG, *options], [str(gang.python), str(script)], sbatch=("--requeue",))
    gang.wait_for_launch(0, 8)
    urgent = gang.home / "urgent.sh"
    urgent.write_text("#!/bin/bash\nsleep 60\n")
    other = gang.site.submit(urgent, options=["--partition=urgent", "--nodes=6"])
    try:
        gang.wait_for(lambda: gang.events("checkpoint_asked"), 60, "the launcher hears of the preemption")
        gang.wait_for(lambda: len({one["rank"] for one in gang.lines("warned")}) == 8, 60, "every rank hears of it")
        time.sleep(1.5)
        assert not gang.events("fault")
        assert not gang.events("signal")
        gang.finish()
        assert gang.exit_code() == 0
    finally:
        gang.site.cluster.run("scancel", str(other))


def let_urgent_jobs_preempt(site: Site, grace_seconds: int) -> None:
    """Lets them preempt from now on, on this cluster."""
    configuration = site.directory / "slurm.conf"
    text = configuration.read_text()
    site.cluster.stop_controller()
    train = next(line for line in text.splitlines() if line.startswith("PartitionName=train"))
    urgent = "PartitionName=urgent Nodes=ALL OverSubscribe=EXCLUSIVE State=UP PriorityTier=2"
    added = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE"
    mine = f"{added}\n{train} PriorityTier=1 GraceTime={grace_seconds}\n{urgent}"
    configuration.write_text(text.replace(train, mine))
    site.cluster.start_controller()
    site.cluster.wait_until(
        lambda: "urgent" in site.cluster.run("sinfo", "--noheader", "--format=%R").stdout, 60, "slurmctld is back"
    )


WARNED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, os.environ["HOME"])
import program
home = Path(os.environ["HOME"])
signal.signal(signal.SIGTERM, lambda *_: program.append(home / "warned", {"rank": os.environ["RANK"]}))
program.main()
"""

IN_MEMORY = """
import sys
from understudy import Monitor
from understudy.peer import PeerState

monitor = Monitor()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)  # each rank has another part
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
peers = PeerState(monitor, model=model, optimizer=optimizer)
for n in range(peers.restore() or 0, 60):
    torch.manual_seed(1000 * n + rank)
    optimizer.zero_grad()
    model(torch.randn(4, 64)).square().sum().backward()
    optimizer.step()
    dist.barrier()
    note(rank, n); time.sleep(0.03)
    if (n + 1) % 10 == 0:
        assert peers.save(n + 1) and peers.wait()
torch.save(model.state_dict(), f"{sys.argv[1]}/{rank}.pt")
dist.barrier()
peers.free()
monitor.close()
dist.destroy_process_group()
"""

NOTING = """
import json, os, time
from pathlib import Path
import torch
import torch.distributed as dist

def in_rank_order(_, bucket):
    # DDP rearranges its buckets after the first step of each start, which changes the order of summation.
    parts = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, bucket.buffer())
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    done = torch.futures.Future()
    done.set_result(total / len(parts))
    return done

def note(rank, step):
    launch = int(os.environ["UNDERSTUDY_LAUNCH"])
    line = json.dumps({"launch": launch, "rank": rank, "step": step, "pid": os.getpid(), "at": time.time()})
    with (Path(os.environ["HOME"]) / "done").open("a") as file:
        file.write(line + "\\n")

"""


def load(path: Path) -> dict[str, Any]:
    """PyTorch is imported here: each process that collects this file would need two seconds for it."""
    import torch

    loaded: dict[str, Any] = torch.load(path)
    return loaded


def same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """True if two sets of weights are equal, bit for bit."""
    import torch

    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def done_steps(gang: GangJob, launch: int) -> list[dict[str, Any]]:
    """What was reported of the steps that ranks of this launch did."""
    return [one for one in gang.lines("done") if one["launch"] == launch]


def daemons_of(site: Site) -> set[str]:
    """Nodes whose slurmd runs."""
    return {node for node in site.cluster.node_names for pid in site.cluster.node_pids(node) if is_daemon(pid)}


def is_daemon(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.name == "slurmd" and is_running(process)


def kill_daemon(gang: GangJob, node: str) -> None:
    pid = int((gang.site.directory / f"slurmd.{node}.pid").read_text())
    assert pid in gang.site.cluster.node_pids(node)
    os.kill(pid, signal.SIGKILL)
