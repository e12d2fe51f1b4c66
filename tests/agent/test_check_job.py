"""What `understudy check-job` says of a batch script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import REPOSITORY
from understudy_launcher import check_job
from understudy_launcher.batch_script import Finding, split
from understudy_launcher.check_job import check, fixed
from understudy_launcher.second_start import OPERATOR

GOOD = """#!/bin/bash
#SBATCH --nodes=66 --no-kill --requeue --comment=understudy
#SBATCH --gres=gpu:8
#SBATCH --signal=B:USR1@120 --job-name=llm
exec understudy run --nodes 64 --preload torch -- python train.py
"""
POOL = """#!/bin/bash
#SBATCH -N 64 -J llm
#SBATCH --comment "team-a understudy"
#SBATCH --requeue

srun --kill-on-bad-exit=1 python train.py && exit 0
sleep 60
exit 1
"""


def problems(text: str, *sbatch: str) -> list[str]:
    return [one.text for one in check(text, sbatch) if one.is_problem]


def notes(text: str) -> list[str]:
    return [one.text for one in check(text) if not one.is_problem]


def test_a_good_script_has_no_problem() -> None:
    assert list(check(GOOD)) == []
    assert problems(POOL) == []
    assert [note.partition(":")[0] for note in notes(POOL)] == [
        "it takes the pool of spares to replace a node, and the job starts again",
        "no warning comes before the end of the time; for ranks with a handler",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("sleep 60\nexit 1\n", "", 6, "before there is a verdict"),
        ("srun", "exec srun", 6, "before there is a verdict"),
        (" && exit 0\nsleep", "\nsleep", 0, ""),
        ("\n\nsrun", "\nset -euo pipefail\nsrun", 0, ""),
        ("\n\nsrun", "\nset -e\nset +e\nsrun", 0, ""),
        (" && exit 0\nsleep 60\nexit 1", " || (sleep 60; exit 1)", 0, ""),
        ("\n\nsrun", "\ntrap 'kill -USR1 $!' 10\nsrun", 0, ""),
        (" && exit 0\nsleep", " # set\nsleep", 0, ""),
        ("--requeue", "--requeue --signal=B:USR1@120", 4, "has no trap"),
        ("--requeue", "--requeue --signal=B:10@120", 4, "SIGUSR1 ends the batch script"),
    ],
)
def test_without_the_launcher_a_script_keeps_its_nodes_after_a_failure(
    old: str, new: str, line: int, words: str
) -> None:
    assert old in POOL
    found = [one for one in check(POOL.replace(old, new)) if one.is_problem]
    assert [one.line for one in found] == ([line] if words else []), found
    assert all(words in one.text for one in found)


@pytest.mark.parametrize("ends", ["\nset -euo pipefail\n", "\nset -o errexit\n"])
def test_a_script_that_ends_on_errors_does_not_reach_its_sleep(ends: str) -> None:
    script = POOL.replace("\n\nsrun", f"{ends}srun").replace(" && exit 0", "")
    (problem,) = (one for one in check(script) if one.is_problem)
    assert problem.line == 5
    assert "before `sleep`" in problem.text
    (problem,) = (one for one in check(script.replace(ends, "\n").replace("bash", "bash -e")) if one.is_problem)
    assert problem.line == 1


def test_a_trap_for_the_warning_is_enough() -> None:
    script = POOL.replace("--requeue", "--requeue --signal=B:USR1@120")
    assert problems(script.replace("srun", "trap 'kill -USR1 $!' USR1\nsrun")) == []


def test_a_launcher_with_another_command_for_where_it_is_missing_is_read_as_such() -> None:
    both = GOOD.replace("exec ", "command -v understudy && exec ") + "srun python train.py && exit 0\nsleep 60\n"
    assert problems(both) == []


def test_the_script_of_the_documents_is_good() -> None:
    (script,) = re.findall(r"```\n(#!/bin/bash.*?)```", (REPOSITORY / "docs" / "launcher.md").read_text(), re.DOTALL)
    assert list(check(script)) == []


CHANGES = [
    ("--comment=understudy", "--comment=understudies", 2, "--comment=understudy"),
    ("--requeue ", "", 0, "--requeue"),
    ("--requeue", "--no-requeue", 2, "--no-requeue"),
    ("--no-kill", "", 0, "--no-kill"),
    ("--nodes=66", "--nodes=60", 2, "the gang needs 64"),
    ("--nodes=66", "-N60-70", 2, "the gang needs 64"),
    ("--nodes=66", "--ntasks=66", 0, "--nodes=65"),
    ("--nodes=66", "--nodes=66 -w n[1-66]", 2, "n[1-66]"),
    ("exec ", "", 5, "write exec"),
    ("exec ", "exec srun ", 5, "a launcher on every node"),
    ("B:USR1@120", "B:USR2@120", 4, "SIGUSR2 ends the launcher"),
    ("B:USR1@120", "12@120", 4, "SIGUSR2 reaches the ranks alone"),
    ("python train.py", "torchrun --nproc-per-node 8 train.py", 5, "--torchrun"),
    ("python train.py", "mpirun ./train", 5, "PMI"),
    ("python train.py", "srun python train.py", 5, "every rank would start srun"),
    ("--preload torch", "--preload torch --min-nodes 70", 5, "--min-nodes 70"),
    ("--preload torch", "--no-such-option", 5, "--no-such-option"),
    ("#SBATCH --gres=gpu:8", "#SBATCH hetjob", 3, "heterogeneous"),
    ("--no-kill", "--no-kill=off", 2, "Slurm ends the whole job"),
    ("--nodes=66", "--nodes=66 --nodefile=hosts", 2, "--nodefile=hosts"),
    ("-- python train.py", "-- python train.py < data", 5, "no standard input"),
    ("exec ", "cat data | exec ", 5, "no standard input"),
    ("-- python train.py", "-- --multi-prog ranks.conf", 5, "by $RANK"),
    ("--nodes=66", "--nodes=66 --container-image=x.sqsh", 2, "--srun-args"),
    ("-- python", "-- docker run image python", 5, "use podman or Apptainer"),
    ("-- python", "-- podman run -d image python", 5, "the rank would have ended"),
    ("--preload torch -- python", "--torchrun -- apptainer exec image.sif python", 5, "leave --torchrun out"),
    ("-- python", "--srun-args -n8 -- python", 5, "--procs-per-node"),
    ("exec understudy", "srun --pty bash\nexec understudy", 5, "interactive"),
    ("exec understudy", "salloc -N 2\nexec understudy", 5, "interactive"),
    ("train.py\n", "train.py\npython evaluate.py\n", 6, "never runs"),
    (
        "exec understudy run --nodes 64 --preload torch -- python train.py\n",
        "understudy run --nodes 64 -- python train.py\npython evaluate.py\n",
        5,
        "a job of its own",
    ),
    ("python train.py", "accelerate launch train.py", 5, "every rank would start accelerate"),
    ("python train.py", "python3 -m accelerate.commands.launch train.py", 5, "every rank would start accelerate"),
    ("python train.py", "deepspeed train.py", 5, "DeepSpeed's launcher"),
    ("python train.py", "python -m torch.distributed.run train.py", 5, "--torchrun"),
    ("#SBATCH --gres=gpu:8", "module load cuda", 4, "ignores this #SBATCH line"),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), CHANGES, ids=[new or f"no {old}" for old, new, *_ in CHANGES])
def test_what_stands_in_the_way_is_named_with_its_line(old: str, new: str, line: int, words: str) -> None:
    assert old in GOOD
    found = [one for one in check(GOOD.replace(old, new)) if one.is_problem]
    assert [one.line for one in found if words in one.text] == [line], found


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("--nodes=66", "--nodes=64", "no spare"),
        ("--signal=B:USR1@120 ", "", "no warning"),
        ("--nodes 64", '--nodes "$NODES"', "not checked"),
        ("--gres=gpu:8", "--output=log", "--open-mode=append"),
        ("--gres=gpu:8", "--array=1-4 --output=log-%%a", "name it with %A_%a"),
        ("--gres=gpu:8", "--gpus-per-task=1 --ntasks-per-node=8", "by $LOCAL_RANK"),
        ("--gres=gpu:8", "--gres=gpu:8 --ntasks=100", "the same number of ranks"),
        (" --job-name=llm", "", "export UNDERSTUDY_RUN=NAME"),
        ("train.py", "train.py --resume $CKPT", "reads $CKPT once"),
        ("train.py", "train.py --resume-from $(ls -t runs | head -1)", "once"),
        ("--gres=gpu:8", "--gres=gpu:8 --ntasks-per-node=1", "each node gets one rank"),
    ],
)
def test_what_weakens_a_recovery_is_a_note(old: str, new: str, words: str) -> None:
    script = GOOD.replace(old, new)
    assert problems(script) == []
    assert any(words in note for note in notes(script))


@pytest.mark.parametrize("warning", ["B:TERM@120", "BR:15@60", "USR1", "SIGUSR1@30", "B:10@120"])
def test_signals_are_read_as_sbatch_reads_them(warning: str) -> None:
    chosen = "TERM" if "TERM" in warning or "15" in warning else "USR1"
    script = GOOD.replace("B:USR1@120", warning).replace("--preload", f"--checkpoint-signal {chosen} --preload")
    assert problems(script) == []


def test_options_of_the_command_line_go_before_those_of_the_script() -> None:
    bare = GOOD.replace("--requeue --comment=understudy", "")
    assert len(problems(bare)) == 2
    assert problems(bare, "--requeue", "--comment", "understudy") == []
    assert len(problems(GOOD, "--nodes=10")) == 1


@pytest.mark.parametrize(
    "more",
    [
        "--array=0-7%2 --open-mode=append --output=log-%A_%a",
        "--ntasks-per-node=8",
        "--ntasks=528",
        "--exclude=n7",
        "--gpus-per-node=8",
    ],
)
def test_what_changes_nothing_for_a_recovery_is_not_named(more: str) -> None:
    """Tasks of an array are jobs of their own. Of tasks a job has as many as it names; seats are one a node."""
    assert list(check(GOOD.replace("--gres=gpu:8", f"--gres=gpu:8 {more}"))) == []


def test_components_that_stand_on_sbatchs_own_line_are_seen() -> None:
    assert any("heterogeneous" in one for one in problems(GOOD, "--nodes=2", ":", "--nodes=4"))


WORLD = REPOSITORY / "tests" / "data" / "world" / "slurm"


def test_options_below_a_command_do_not_count() -> None:
    late = list(check((WORLD / "late.sh").read_text()))
    assert [one.line for one in late if "a command stands before it" in one.text] == [3, 4, 5, 6]
    assert any("add #SBATCH --requeue" in one.text for one in late)


def test_line_breaks_of_dos_are_refused_as_sbatch_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_job.main([str(WORLD / "crlf.sh")]) == 1
    assert capsys.readouterr().out.startswith("problem: line 1: sbatch refuses DOS line breaks")


@pytest.mark.integration
def test_standard_input_is_read_as_it_is() -> None:
    with (WORLD / "crlf.sh").open("rb") as file:
        command = [sys.executable, "-m", "understudy_launcher.check_job", "-"]
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
    assert "sbatch refuses DOS line breaks" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("#!/bin/bash", "# a job", 1, "the first line must begin with #!"),
        ("#!/bin/bash", "\ufeff#!/bin/bash", 1, "the first line must begin with #!"),
        ("train.py", "train.py\0", 5, "NUL"),
        ("#SBATCH --gres=gpu:8", '#SBATCH --gres="gpu:8', 3, "quotation mark"),
        ("#SBATCH --gres", "  #SBATCH --gres", 3, "remove the blanks"),
        ("\n#SBATCH --gres", "\x0c\n#SBATCH --gres", 0, ""),
        ("#SBATCH --gres", "#SLURM --gres", 0, ""),
        ("#SBATCH --gres", "#SBATCH HETJOB\n#SBATCH --gres", 3, "heterogeneous"),
        ("#SBATCH --gres", "\r\n#SBATCH --gres", 3, "DOS line breaks"),
    ],
)
def test_what_sbatch_refuses_or_ignores_is_named(old: str, new: str, line: int, words: str) -> None:
    """src/sbatch/sbatch.c, _get_script_buffer, and opt.c, _opt_batch_script and get_argument."""
    found = [one for one in check(GOOD.replace(old, new, 1)) if one.is_problem]
    assert [(one.line, words in one.text) for one in found] == ([(line, True)] if line else [])


def test_lines_that_a_backslash_continues_are_one_command() -> None:
    script = GOOD.replace("--nodes 64 --preload torch", "--nodes 64 \\\n  --preload torch \\\n ")
    assert list(check(script)) == []


@given(st.text(max_size=300) | st.lists(st.sampled_from([*GOOD.split(), *"\n\\\"'$#"]), max_size=40).map(" ".join))
def test_no_script_breaks_it(text: str) -> None:
    for one in check(text):
        assert isinstance(one, Finding)
    assert isinstance(fixed(text), str)


def test_the_exit_code_says_whether_there_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "job.sh"
    script.write_text(GOOD)
    assert check_job.main([str(script)]) == 0
    assert "can be recovered" in capsys.readouterr().out
    script.write_text(GOOD.replace("exec ", ""))
    assert check_job.main([str(script)]) == 1
    assert capsys.readouterr().out.startswith("problem: line 5: ")
    assert check_job.main([str(script), "--", "--no-requeue"]) == 1
    assert "--no-requeue" in capsys.readouterr().out
    assert check_job.main([str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("--requeue", "--requeue --export=NONE", 4),
        ("--requeue", "--requeue --export=PATH,HOME", 4),
        ("srun", "srun --export=NONE", 6),
        ("srun", "srun --export=ALL,A=1", 0),
        ("--requeue\n\n", "--requeue --export=NONE\n\nsrun --export=ALL python other.py\n", 4),
        ("--requeue\n\n", "--requeue --export=NONE\n\nunset SLURM_EXPORT_ENV\n", 0),
        ("--requeue", "--requeue --export=ALL,A=1", 0),
    ],
)
def test_an_environment_that_does_not_reach_the_ranks_is_noted(old: str, new: str, line: int) -> None:
    seen = [one for one in check(POOL.replace(old, new, 1)) if "PYTHONPATH" in one.text]
    assert [one.line for one in seen] == ([line] if line else [])
    assert all("--export=ALL" in one.text and not one.is_problem for one in seen)


def test_a_name_does_not_join_the_tasks_of_an_array_into_one_run() -> None:
    array = POOL.replace("-J llm", "--array=0-7")
    assert not any("UNDERSTUDY_RUN" in one for one in notes(array))
    for name, is_problem in (("llm", True), ("llm-$SLURM_ARRAY_TASK_ID", False)):
        named = array.replace("\n\n", f"\nexport UNDERSTUDY_RUN={name}\n")
        assert ["NAME-$SLURM_ARRAY_TASK_ID" in one for one in problems(named)] == [True] * is_problem


def test_an_exit_code_that_the_script_keeps_is_where_it_waits() -> None:
    [problem] = problems(POOL.replace(" && exit 0\nsleep 60\nexit 1", "\nrc=$?\necho $rc\nexit $rc"))
    assert problem.endswith("write `[ $rc = 0 ] || sleep 60` after line 7")
    assert problems(POOL.replace(" && exit 0\nsleep 60\nexit 1", "\nrc=$?\n[ $rc = 0 ] || sleep 60\nexit $rc")) == []


@pytest.mark.parametrize("content", [b"\x7fELF\0\xff\xfe" * 40, "#!/bin/bash\n".encode("utf-16")])
def test_a_file_that_is_no_text_cannot_be_used(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "job.sh"
    script.write_bytes(content)
    assert check_job.main([str(script), "--fix"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"understudy check-job: {script} cannot be read: it is no text file\n")


@pytest.mark.parametrize("text", ["python train.py\n", "\n#!/bin/bash\nsrun a\n", "#!/bin/bash\nsrun a\0\n"])
def test_what_sbatch_refuses_is_not_mended(text: str) -> None:
    assert fixed(text) == text


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_an_empty_script_has_one_problem(text: str) -> None:
    assert [one.text for one in check(text)] == ["sbatch refuses an empty script"]


@pytest.mark.integration
def test_a_script_of_another_encoding_keeps_its_bytes(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    script = tmp_path / "job.sh"
    script.write_bytes(GOOD.replace("exec ", "# f\xfcr alle\n").encode("latin-1"))
    assert check_job.main([str(script), "--fix"]) == 0
    assert b"\n # f\xfcr alle\n" in capfdbinary.readouterr().out


def test_one_script_is_checked_and_what_else_is_given_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    cases: dict[str, list[str]] = {"one script at a time": ["a.sh", "b.sh"], "required: script\n": []}
    for words, arguments in cases.items():
        with pytest.raises(SystemExit) as ended:
            check_job.main(arguments)
        assert ended.value.code == 2
        assert words in capsys.readouterr().err


def test_problems_come_before_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.sh").write_text(POOL.replace("\n\nsrun", "\nrm -rf ckpt\nsrun").replace("sleep 60\n", ""))
    assert check_job.main([str(tmp_path / "job.sh")]) == 1
    kinds = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["problem", "problem", "note", "note"]


@pytest.mark.parametrize(
    ("command", "unit"),
    [
        ("python train.py {}", "x"),
        ("python train.py '{}'", "x "),
        ("echo {} | base64 -d > key && python train.py", "QUJD"),
        ("python train.py <<< {}", "(("),
    ],
)
def test_a_long_line_is_read_in_a_time_that_grows_with_its_length(command: str, unit: str) -> None:
    def seconds(length: int) -> float:
        text = f"#!/bin/bash\n{command.format(unit * (length // len(unit)))}\n"
        begun = process_time()
        list(check(text))
        return process_time() - begun

    seconds(100)
    assert seconds(400_000) < 30 * max(seconds(40_000), 0.02)


@pytest.mark.parametrize(
    ("script", "unit"),
    [
        ("understudy run --nodes 2 {} -- python train.py", "--tee 1 "),
        ("{}", "srun python train.py | tee log &\n"),
    ],
)
def test_many_options_or_commands_take_a_time_that_grows_with_their_number(script: str, unit: str) -> None:
    def seconds(number: int) -> float:
        begun = process_time()
        found = list(check(f"#!/bin/bash\n{script.format(unit * number)}\n"))
        assert max(len(one.text) for one in found) < 1000
        return process_time() - begun

    seconds(100)
    assert seconds(4_000) < 20 * max(seconds(400), 0.02)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('a \'b c\'d "e \\" f" g\\ h', [("a", False), ("b cd", False), ('e " f', False), ("g h", False)]),
        ("2>&1 &>b; c&&d", [("2>&1", False), ("&>b", False), (";", True), ("c", False), ("&&", True), ("d", False)]),
        ("a '' ';' nvcr.io#b # c", [("a", False), ("", False), (";", False), ("nvcr.io#b", False)]),
    ],
)
def test_words_are_split_as_the_shell_splits_them(line: str, words: list[tuple[str, bool]]) -> None:
    assert [*split(line, OPERATOR)] == words
