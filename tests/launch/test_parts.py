"""The small parts: command lines, messages, verdicts, progress, Slurm's output."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.launch.keys import JOB_KEY
from tests.waiting import wait_until
from understudy_launcher import process_tree, slurm_steps, warm
from understudy_launcher.command import Meeting, PythonProgram, group_sizes, parse_python, torchrun
from understudy_launcher.decide import TABLE
from understudy_launcher.event_log import Events
from understudy_launcher.first_check import Checked, check
from understudy_launcher.hub import Hub, open_server
from understudy_launcher.launch_result import OutOfSpares
from understudy_launcher.nodes import FileVerdicts, Nodes
from understudy_launcher.options import UsageError, parse
from understudy_launcher.progress import FileProgress, TimeAlive
from understudy_launcher.protocol import LINE_BYTES_MAX, SECRET_VARIABLE, Lines, encode, number
from understudy_launcher.rank_environment import Part, rank_environment
from understudy_launcher.slurm import Allocation, NodeStates, down_nodes, srun_arguments
from understudy_launcher.slurm_steps import Step, Steps
from understudy_wire import certificate
from understudy_wire.errors import ProtocolError
from understudy_wire.tls import is_secret, launcher_context, make_key

MEETING = Meeting(nodes=4, node_rank=2, processes=8, address="10.0.0.1", port=23456)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --lr 1", PythonProgram("python", (), False, "train.py", ("--lr", "1"))),
        (
            "/opt/bin/python3.11 -u -X dev t.py",
            PythonProgram("/opt/bin/python3.11", ("-u", "-X", "dev"), False, "t.py", ()),
        ),
        ("python3 -Wignore -m pkg.train -v", PythonProgram("python3", ("-Wignore",), True, "pkg.train", ("-v",))),
        ("python", None),
        ("python -c pass", None),
        ("python -", None),
        ("python -m", None),
        ("./train.sh python x.py", None),
        ("ipython x.py", None),
    ],
)
def test_a_python_program_is_distinguished_from_other_commands(command: str, expected: PythonProgram | None) -> None:
    assert parse_python(command.split()) == expected


@pytest.mark.parametrize(
    ("command", "start", "end"),
    [
        ("train.py --lr 1", ["python3"], ["train.py", "--lr", "1"]),
        ("python3.12 -u train.py", ["python3.12", "-u"], ["train.py"]),
        ("python -m pkg.train -v", ["python"], ["--module", "pkg.train", "-v"]),
    ],
)
def test_torchrun_gets_the_program_and_the_meeting(command: str, start: list[str], end: list[str]) -> None:
    words = torchrun(command.split(), MEETING)
    assert words[: len(start) + 2] == [*start, "-m", "torch.distributed.run"]
    assert words[-len(end) :] == end
    assert {"--nnodes=4", "--nproc-per-node=8", "--node-rank=2", "--max-restarts=0"} <= set(words)
    assert {"--master-addr=10.0.0.1", "--master-port=23456"} <= set(words)


def test_messages_are_put_together_from_pieces() -> None:
    lines = Lines()
    whole = encode("exited", local_rank=3, status=-9) + encode("beat")
    assert lines.feed(whole[:7]) == []
    assert lines.feed(whole[7:]) == [{"type": "exited", "local_rank": 3, "status": -9}, {"type": "beat"}]


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\n", b"[1]\n", b'{"type": 3}\n', b"x" * (LINE_BYTES_MAX + 1)])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        Lines().feed(line)


def test_a_number_is_a_number() -> None:
    for wrong in ("3", True, None, 1.5):
        with pytest.raises(ProtocolError):
            number({"type": "x", "n": wrong}, "n")


def test_the_secret_is_the_secret_and_nothing_else() -> None:
    assert is_secret("secret", "secret")
    for wrong in ("other", "", None, 1, ["secret"], "\udfff", "sécret"):
        assert not is_secret(wrong, "secret")


def test_each_job_has_a_key_of_its_own_that_openssl_takes() -> None:
    """It calculates the public key itself, and refuses a certificate with another one."""
    keys = [make_key() for _ in range(20)]
    for key in keys:
        launcher_context(key)
    assert len({key.fingerprint for key in keys} | {key.secret for key in keys}) == 40
    assert keys[0].secret not in repr(keys[0])
    assert "PRIVATE" not in repr(keys[0])
    mixed = keys[0].pem.split(b"-----BEGIN CERT")[0] + b"-----BEGIN CERT" + keys[1].pem.split(b"-----BEGIN CERT")[1]
    with pytest.raises(ssl.SSLError, match=r"MISMATCH|mismatch"):
        launcher_context(replace(keys[0], pem=mixed))


@pytest.mark.parametrize(
    ("private", "x"),  # https://datatracker.ietf.org/doc/html/rfc6979#appendix-A.2.5, and the base point itself
    [
        (
            0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721,
            "60fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6",
        ),
        (1, "6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"),
    ],
)
def test_a_public_key_is_the_one_of_the_standard(private: int, x: str) -> None:
    assert certificate._public_key(private)[1:33].hex() == x


def test_verdicts_come_from_a_file_or_a_directory_and_can_be_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "verdicts"
    verdicts = FileVerdicts(path)
    assert verdicts.poll() == {}
    path.write_text("n1 Xid 79\n\nn2\n", "utf-8-sig")  # as an editor of Windows saves it
    assert verdicts.poll() == {"n1": "Xid 79", "n2": "a verdict, without a reason"}
    path.write_text("n2 again\n")
    assert verdicts.poll() == {"n2": "again"}
    path.unlink()
    path.mkdir()
    (path / "n7").write_text("ECC\n")
    assert verdicts.poll() == {"n7": "ECC"}
    (path / "n7").unlink()
    assert verdicts.poll() == {}


def test_the_newest_step_is_the_last_number_in_the_file(tmp_path: Path) -> None:
    progress = FileProgress(tmp_path / "steps")
    assert progress.step(0) is None
    (tmp_path / "steps").write_text("step 10\nstep 20, loss 3\nstep 30\n")
    assert progress.step(0) == 30


def test_without_steps_it_is_the_time_alive_that_counts_once_a_launch() -> None:
    progress = TimeAlive(10)
    assert [progress.step(age) for age in (1, 9, 10, 11, 500)] == [None, None, 1, 1, 1]
    assert [progress.step(age) for age in (1, 9, 11, 12)] == [1, 1, 2, 2]


def test_a_step_is_asked_for_node_by_node_and_outlives_any_of_them() -> None:
    words = srun_arguments(Allocation("7", ("n1", "n2", "n3"), 16), ["n1", "n3"], ["seat"])
    assert words[0] == "srun"
    assert words[-1] == "seat"
    wanted = {
        "--jobid=7",
        "--overlap",
        "--no-kill",
        "--nodes=2",
        "--ntasks=2",
        "--nodelist=n[1,3]",
        "--kill-on-bad-exit=0",
    }
    assert wanted <= set(words)


def test_only_nodes_that_are_down_are_down() -> None:
    output = "n1 allocated\nn2 down*\nn3 drained\nn4 draining@\nn5 mixed-\nn6 fail\nn7 unknown\n"
    assert list(down_nodes(output)) == ["n2", "n6"]


def fake_command(directory: Path, name: str, script: str) -> None:
    command = directory / name
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)


@pytest.mark.integration
def test_an_answer_of_slurms_that_no_pipe_holds_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each node in each partition."""
    other_cluster = 'case "$*" in *--local*) ;; *) echo "n1 down" ;; esac'  # of a federation, with fed_display
    fake_command(tmp_path, "sinfo", f"{other_cluster}; yes 'n1 allocated' | head -n 20000; echo n2 down; echo n2 down")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with closing(NodeStates(["n1", "n2"], 0.01, Events(None))) as states:
        down = wait_until(states.poll)
    assert down == {"n2": "Slurm shows it as DOWN"}


@pytest.mark.integration
@pytest.mark.parametrize(("program", "words"), [("", "No such file"), ("exit 3", "it ended with 3")])
def test_a_failing_sinfo_is_reported_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: str,
    words: str,
) -> None:
    if program:
        fake_command(tmp_path, "sinfo", program)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    until = time.monotonic() + 0.5
    with closing(NodeStates(["n1"], 0.01, Events(None))) as states:
        while time.monotonic() < until:
            assert states.poll() == {}
            time.sleep(0.02)
    complaint = capsys.readouterr().err
    assert (complaint.count("cannot learn from sinfo"), words in complaint) == (1, True)


@pytest.mark.integration
def test_a_scancel_that_gets_no_answer_holds_up_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(tmp_path, "scancel", "exec sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(slurm_steps, "SCANCEL_SECONDS", 0.1)
    hub = Hub(JOB_KEY, open_server())
    all_steps = Steps(hub, Allocation("7", ("n1",), 1), parse(["--nodes", "1", "--", "x"]), JOB_KEY)
    with subprocess.Popen(["true"]) as srun:
        all_steps.kill(Step(0, ("n1",), srun, 0.0, step_id="0"))
    assert not all_steps.tidy()
    wait_until(all_steps.tidy)
    hub.close()


@pytest.mark.integration
def test_a_helper_that_runs_as_another_user_delays_no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setuid program, such as sudo: it is no rank, and the launcher cannot kill it."""
    helper, rank = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    kill = os.kill

    def refuse(pid: int, number: int) -> None:
        if pid == helper.pid:
            raise PermissionError
        if pid == rank.pid:
            kill(pid, number)

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(process_tree, "below", lambda: [one.pid for one in (helper, rank) if one.poll() is None])
    wait_until(lambda: process_tree.kill_below() == [])
    assert (helper.poll(), rank.wait()) == (None, -9)
    kill(helper.pid, signal.SIGKILL)
    helper.wait()


def test_only_nodes_that_were_away_are_looked_for_again(tmp_path: Path) -> None:
    names = ["dead", "silent", "stuck", "hole", "condemned"]
    verdicts = tmp_path / "verdicts"
    verdicts.write_text("condemned Xid 79\n")
    nodes = Nodes(names, [FileVerdicts(verdicts)], Events(None))
    nodes.lose("dead", "its seat disconnected", away=True)
    nodes.blame(
        {"silent": "no message from it", "stuck": "x", "hole": "y", "condemned": "z"}, away={"silent", "condemned"}
    )
    nodes.lose("stuck", "its seat disconnected", away=True)
    assert nodes.probe_candidates() == ["dead", "silent"]
    nodes.find_again("silent")
    assert nodes.usable() == ["silent"]


def part(launch: int, torchrun: bool = False) -> Part:
    return Part(launch, MEETING, torchrun, "a,b,c,d")


def test_a_rank_finds_its_place_and_not_the_secret() -> None:
    step = {
        "PATH": "/bin",
        "UNDERSTUDY_LAUNCH_SECRET": "x",
        "SLURM_PROCID": "5",
        "SLURM_NTASKS": "6",
        "SLURM_JOB_ID": "7",
    }
    found = rank_environment(step, part(1), local_rank=3)
    assert (found["RANK"], found["LOCAL_RANK"], found["NODE_RANK"], found["WORLD_SIZE"]) == ("19", "3", "2", "32")
    assert (found["SLURM_PROCID"], found["SLURM_NTASKS"], found["SLURM_JOB_ID"]) == ("19", "32", "7")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.1", "23456")
    assert (found["PATH"], found["UNDERSTUDY_LAUNCH"]) == ("/bin", "1")
    assert "UNDERSTUDY_LAUNCH_SECRET" not in found


def test_ranks_that_share_a_node_do_not_each_take_all_of_its_cores() -> None:
    """torchrun does it; if the user has chosen, or a rank has the node for itself, nothing is set."""
    alone = Part(0, Meeting(4, 2, 1, "10.0.0.1", 23456), torchrun=False, node_list="a,b,c,d")
    assert rank_environment({}, part(0), 0)["OMP_NUM_THREADS"] == "1"
    assert rank_environment({"OMP_NUM_THREADS": "7"}, part(0), 0)["OMP_NUM_THREADS"] == "7"
    assert "OMP_NUM_THREADS" not in rank_environment({}, alone, 0)
    assert "OMP_NUM_THREADS" not in rank_environment({}, part(0, torchrun=True), 0), "torchrun sets it"


def test_a_restore_point_of_an_earlier_launch_is_not_given_again() -> None:
    step = {"UNDERSTUDY_RESTORE_STEP": "40", "UNDERSTUDY_RESTORE_PATH": "/c/40"}
    assert rank_environment(step, part(0), 0)["UNDERSTUDY_RESTORE_STEP"] == "40"
    assert not rank_environment(step, part(1), 0).keys() & step.keys()
    found = rank_environment(step, Part(1, MEETING, torchrun=False, node_list="a,b", restore=[60, "/c/60"]), 0)
    assert (found["UNDERSTUDY_RESTORE_STEP"], found["UNDERSTUDY_RESTORE_PATH"]) == ("60", "/c/60")


def test_torchrun_does_not_get_the_variables_of_a_rank() -> None:
    found = rank_environment({"RANK": "9"}, part(0, torchrun=True), 0)
    assert not found.keys() & {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
    assert (found["NODE_RANK"], found["SLURM_PROCID"], found["SLURM_NTASKS"]) == ("2", "2", "4")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--nodes 4", "no command"),
        ("--nodes 0 -- x", "one node at least"),
        ("--nodes 4 --min-nodes 5 -- x", "--min-nodes"),
        ("--nodes 4 --procs-per-node zero -- x", "--procs-per-node"),
        ("--nodes 4 --launches-without-progress 0 -- x", "at least 1"),
        ("--nodes 4 --port-range 9-8 -- x", "--port-range 9-8"),
        ("--nodes 4 --port-range 70000 -- x", "--port-range 70000"),
        ("--nodes 4 --progress-file f --hang-seconds -1 -- x", "above 0"),
        ("--nodes 4 -- mpirun python train.py", "PMI"),
        ("--nodes 4 -- torchrun train.py", "--torchrun -- python train.py"),
        ("--nodes 4 -- accelerate launch train.py", "every rank would start accelerate"),
        ("--nodes 4 -- python -u -m accelerate.commands.launch train.py", "every rank would start accelerate"),
        ("--nodes 4 -- deepspeed train.py", "every rank would start DeepSpeed"),
        ("--nodes 4 -- srun python train.py", "every rank would start srun"),
    ],
)
def test_options_that_make_no_sense_are_refused(line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(line.split())


@pytest.mark.parametrize("command", ["python train.py -m deepspeed", "python tools/run.py --x -m accelerate y"])
def test_options_of_a_script_are_not_those_of_python(command: str) -> None:
    assert parse(["--nodes", "4", "--", *command.split()]).command == tuple(command.split())


def test_the_jobs_tasks_per_node_are_its_ranks_per_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """srun does it. torchrun is one task of a node, and starts the ranks itself."""
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "1")
    assert parse(["--nodes", "4", "--", "x"]).ranks_on(8) == 1
    assert parse(["--nodes", "4", "--procs-per-node", "2", "--", "x"]).ranks_on(8) == 2
    assert parse(["--nodes", "4", "--torchrun", "--", "x"]).ranks_on(8) == 8
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE")
    assert parse(["--nodes", "4", "--", "x"]).ranks_on(8) == 8


def test_options_before_the_command_are_the_launchers_and_those_after_it_the_commands() -> None:
    options = parse(
        [
            "--nodes",
            "4",
            "--preload",
            "torch,numpy",
            "--when-out-of-spares",
            "shrink",
            "--min-nodes",
            "2",
            "--",
            "t.py",
            "--nodes",
            "9",
        ]
    )
    assert options.command == ("t.py", "--nodes", "9")
    assert options.preload == ("torch", "numpy")
    assert (options.rules.when_out_of_spares, options.rules.nodes_min) == (OutOfSpares.SHRINK, 2)


PROGRAM = """
import colorsys, json, os, sys
class Thing: pass
print(json.dumps([__name__, __file__, sys.argv, os.environ["RANK"], sys.path[0], "colorsys" in before]))
import pickle; pickle.loads(pickle.dumps(Thing()))
sys.exit(5)
"""


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_warm_interpreter_becomes_the_program_it_was_started_for(tmp_path: Path, kind: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; before = set(sys.modules)\n" + PROGRAM)
    target = str(script) if kind == "script" else "train"
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    program = subprocess.Popen(
        [
            sys.executable,
            warm.__file__,
            str(ready_write),
            str(go_read),
            "colorsys,no_such_one",
            kind,
            target,
            "--lr",
            "1",
        ],
        pass_fds=(ready_write, go_read),
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    os.close(ready_write)
    os.close(go_read)
    with os.fdopen(ready_read) as ready:
        report = json.loads(ready.readline())
    assert report["failed"] == ["no_such_one (ModuleNotFoundError: No module named 'no_such_one')"]
    os.write(go_write, json.dumps({**os.environ, "RANK": "3"}).encode() + b"\n")
    os.close(go_write)
    output, _ = program.communicate(timeout=20)
    name, file, arguments, rank, path, imported = json.loads(output)
    assert (name, Path(file), rank, imported) == ("__main__", script, "3", True)
    assert arguments[1:] == ["--lr", "1"]
    assert Path(path) == tmp_path
    assert program.returncode == 5


@pytest.mark.integration
def test_a_warm_interpreter_that_is_not_needed_ends(tmp_path: Path) -> None:
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    program = subprocess.Popen(
        [sys.executable, warm.__file__, str(ready_write), str(go_read), "", "script", "x.py"],
        pass_fds=(ready_write, go_read),
    )
    for descriptor in (ready_write, go_read):
        os.close(descriptor)
    with os.fdopen(ready_read) as ready:
        assert ready.readline()
    os.close(go_write)
    assert program.wait(20) == 0


def test_every_row_of_the_table_is_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "launcher.md").read_text()
    assert [row for row in TABLE if f"| {row.label} | {row.meaning} | {row.action} |" not in page] == []


def test_sizes_of_groups_are_read_from_the_options_of_the_command() -> None:
    command = ["python", "pretrain_gpt.py", "--tensor-model-parallel-size", "8", "--pipeline_model_parallel_size=4"]
    assert group_sizes(command) == "tp=8 pp=4"
    wrong = ["train", "tensor-parallel-size", "8", "--context-parallel-size", "1", "--expert-model-parallel-size"]
    assert group_sizes(wrong) == ""


@pytest.mark.integration
def test_what_a_self_check_before_the_first_launch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "secret")
    assert check("exit 0", 0) == Checked()
    assert check("echo GPU 1 well; echo GPU 3: wrong; echo selfcheck: failed; exit 1", 8) == Checked(
        failed="GPU 3: wrong; selfcheck: failed"
    )
    assert check("echo has ${GPUS:+--gpus $GPUS}$UNDERSTUDY_LAUNCH_SECRET; exit 1", 8).failed == "has --gpus 8"
    assert check("echo has ${GPUS:+--gpus $GPUS}; exit 1", 0).failed == "has"
    assert check("no-such-program 2>/dev/null", 8) == Checked(impossible="exit code 127")
    assert check("sleep 60", 8, seconds=0.1) == Checked(impossible="it took more than 0.1 s")
