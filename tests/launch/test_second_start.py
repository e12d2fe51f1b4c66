"""What `understudy check-job` says of lines that cannot run twice, or do something else the second time."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from understudy_launcher.batch_script import Finding
from understudy_launcher.check_job import check, fixed

HEAD = "#!/bin/bash\n#SBATCH -N 4 -J llm --comment=understudy --requeue\n"
TRAIN = "srun python train.py --output-dir runs/a"
END = " && exit 0\nsleep 60\nexit 1\n"
FIRST = '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || '


def script(before: str = "", train: str = TRAIN) -> str:
    return f"{HEAD}{before}\n{train}{END}"


def found(text: str) -> list[Finding]:
    """Findings but for the notes about a warning and `understudy run`, which every such script gets."""
    return [one for one in check(text) if not one.text.startswith(("no warning comes", "it takes the pool of spares"))]


PROBLEMS = [
    ("rm -rf checkpoints", TRAIN, "deletes checkpoints", f"{FIRST}rm -rf checkpoints"),
    ("rm -rf runs/a", TRAIN, "deletes runs/a", f"{FIRST}rm -rf runs/a"),
    ("rm -rf runs/*", TRAIN, "deletes runs/*", f"{FIRST}rm -rf runs/*"),
    ("OUT=runs/a\nrm -rf $OUT", TRAIN, "deletes $OUT", f"OUT=runs/a\n{FIRST}rm -rf $OUT"),
    ("cd /data && rm -rf ckpt", TRAIN, "deletes ckpt", None),
    ("trap 'rm -rf ckpt' EXIT", TRAIN, "deletes ckpt", None),
    ("mv checkpoints old", TRAIN, "moves checkpoints", f"{FIRST}mv checkpoints old"),
    ("set -e\nmkdir logs", TRAIN, "`mkdir` fails and the script ends", "set -e\nmkdir -p logs"),
    ("mkdir logs && cd logs", TRAIN, "what stands behind it does not run", "mkdir -p logs && cd logs"),
    ("mkdir logs || exit 1", TRAIN, "`mkdir` fails", None),
    ("set -e\nln -s /data data", TRAIN, "the link exists", "set -e\nln -sfn /data data"),
    ("set -e\nrm old.txt", TRAIN, "the file is gone", "set -e\nrm -f old.txt"),
    ("set -e\nmv a b", TRAIN, "the file is gone", None),
    ("set -e\ngit clone https://host/repo", TRAIN, "the folder exists", None),
    ("set -e\nenroot create image.sqsh", TRAIN, "the container exists", "set -e\nenroot create --force image.sqsh"),
    ("", f"{TRAIN} --overwrite_output_dir", "begins at step 0", None),
    ("", "srun python train.py --output-dir runs/$(date +%s)", "another name at each start", None),
    ("OUT=runs/$(date +%F_%T)", "srun python train.py --out_dir=$OUT", "another name at each start", None),
    ("export MASTER_ADDR=node17", TRAIN, "node17 may not be a node", None),
    ("hostname >> hosts", "srun python train.py --hosts hosts", "adds to hosts", None),
]


@pytest.mark.parametrize(("before", "train", "words", "mended"), PROBLEMS, ids=[one[2] + one[0] for one in PROBLEMS])
def test_a_line_that_spoils_the_restart_is_a_problem(before: str, train: str, words: str, mended: str | None) -> None:
    [one] = found(script(before, train))
    assert one.is_problem and words in one.text
    expected = script(before, train) if mended is None else script(mended, train)
    assert fixed(script(before, train)) == expected
    assert bool(found(fixed(script(before, train)))) == (mended is None)


OUT = "OUT=/scratch/run\n"
CODE_TRAIN = 'srun bash -c "python train.py --output_dir $OUT"'


@pytest.mark.parametrize(
    ("before", "train", "words"),
    [
        (f"{OUT}rm -rf $OUT", CODE_TRAIN, "deletes $OUT, from which"),
        ('rm -rf "${OUT:?}"/*', CODE_TRAIN, "deletes ${OUT:?}/*, from which"),
        ("rm -rf /scratch/run", 'srun sh -c "cd x; python train.py --output_dir /scratch/run"', "from which"),
        (f"{OUT}rm -rf $OUT", 'CMD="python train.py --output_dir $OUT"\nsrun bash -c "$CMD"', "from which"),
        (f"{OUT}rm -rf $OUT", 'CMD="python train.py --output_dir $OUT"\nsrun $CMD', "from which"),
        (f"{OUT}rm -rf $OUT", "eval srun python train.py --output_dir $OUT", "from which"),
        ("rm -rf out", "srun bash <<END\npython train.py --output_dir out\nEND\ntrue", "from which"),
        ("bash -c 'rm -rf runs/a'", TRAIN, "deletes runs/a, from which"),
        ('eval "rm -rf runs/a"', TRAIN, "deletes runs/a, from which"),
        ("bash <<END\ncd x\nrm -rf runs/a\nEND", TRAIN, "deletes runs/a, from which"),
        ("cat > prepare.sh <<END\nrm -rf runs/a\nEND\nbash prepare.sh", TRAIN, "deletes runs/a, from which"),
        ("prepare() { rm -rf runs/a; }\nprepare", TRAIN, "deletes runs/a, from which"),
        ("(rm -rf runs/a)", TRAIN, "deletes runs/a, from which"),
        ("case $X in\n  *) ;;\nesac\nsrun -N1 rm -rf runs/a", TRAIN, "deletes runs/a, from which"),
        ("/bin/rm -rf runs/a", TRAIN, "deletes runs/a, from which"),
        ("if [ -d runs/a ]; then\n  rm -rf runs/a\nfi", TRAIN, "deletes runs/a, from which"),
        ("[ ! -d runs/a ] || rm -rf runs/a", TRAIN, "deletes runs/a, from which"),
        ("rm -rf *", TRAIN, "deletes *, from which"),
        ("find runs -name '*.pt' -delete", TRAIN, "deletes files in runs, from which"),
        ("find runs -type f -exec rm {} +", TRAIN, "deletes files in runs, from which"),
        ("find runs/a | xargs rm -rf", TRAIN, "deletes runs/a, from which"),
        ("git clean -fdx", TRAIN, "deletes untracked files in ., from which"),
        ("python -c \"import shutil; shutil.rmtree('runs/a')\"", TRAIN, "deletes runs/a, from which"),
        ("rm -rf runs/{a,b}", TRAIN, "deletes runs/{a,b}, from which"),
        ("rsync -a --delete empty/ runs/a/", TRAIN, "deletes files in runs/a/, from which"),
        ("bash <<< 'rm -rf runs/a'", TRAIN, "deletes runs/a, from which"),
        ("export OUT=runs/a B=2\nrm -rf $OUT", "srun python train.py --output-dir ${OUT}", "deletes $OUT, from which"),
        ("(cd runs && rm -rf a)", TRAIN, "deletes a at each start"),
        # The training does not show where it saves.
        ("rm -rf old", "srun ./run.sh", "deletes old at each start"),
        ("rm -rf old", "srun python train.py --config a.yaml --save_steps 500", "deletes old at each start"),
        ("rm -rf $RUNS/old", TRAIN, "deletes $RUNS/old at each start"),
        ("rm -rf /data/old", TRAIN, "deletes /data/old at each start"),
        ("rm -rf runs/a/model", TRAIN, "deletes runs/a/model at each start"),
        ("find old -mtime +1 -delete", "srun ./run.sh", "deletes files in old at each start"),
        ("git clean -fdx", "srun ./run.sh", "deletes untracked files in . at each start"),
    ],
)
def test_a_folder_that_each_start_deletes_is_a_problem_however_it_is_written(
    before: str, train: str, words: str
) -> None:
    seen = [one for one in found(script(before, train)) if one.is_problem and words in one.text]
    assert len(seen) == 1, found(script(before, train))
    assert fixed(script(before, train)).replace(FIRST, "") == script(before, train)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("trap 'echo bye; scancel $SLURM_JOB_ID' TERM", "the trap for TERM then cancels the job"),
        ('trap "scancel ${SLURM_JOB_ID}" USR1 SIGTERM', "the trap for USR1 SIGTERM"),
        ("trap 'scancel $SLURM_JOBID' EXIT", "the trap for EXIT"),
        ("end() {\n  scancel $SLURM_JOB_ID\n}\ntrap end TERM", "Slurm does not start a cancelled job again"),
        ("end() { scancel --me; }\ntrap end 15", "Slurm does not start a cancelled job again"),
        ("./prepare || scancel $SLURM_JOB_ID", "Slurm does not start a cancelled job again"),
    ],
)
def test_a_job_that_cancels_itself_is_not_started_again(before: str, words: str) -> None:
    [one] = found(script(before))
    assert one.is_problem and words in one.text


NANOGPT = "srun torchrun train.py config/train_gpt2.py --out_dir=out"


@pytest.mark.parametrize(
    "train",
    [
        NANOGPT,
        f"{NANOGPT} --init_from=scratch",
        f"{NANOGPT} --init_from=gpt2",
        f'srun bash -c "{NANOGPT[5:]}"',
        "srun python train.py --init_from=scratch",
        "srun python train.py --out_dir=out --always_save_checkpoint=True",
    ],
)
def test_nanogpt_needs_an_argument_to_go_on(train: str) -> None:
    [one] = found(script("", train))
    assert one.is_problem and "--resume-args=--init_from=resume" in one.text
    assert fixed(script("", train)) == script("", train)


NOTES = [
    ("", f"{TRAIN} | tee train.log", "set -o pipefail\n" + f"{TRAIN} | tee -a train.log"),
    ("", f"{TRAIN} > train.log 2>&1", f"{TRAIN} >> train.log 2>&1"),
    ("", f"{TRAIN} &> train.log", f"{TRAIN} &>> train.log"),
    ("", "srun -o train.log python train.py", "srun --open-mode=append -o train.log python train.py"),
]


@pytest.mark.parametrize(("before", "train", "mended"), NOTES, ids=[one[1] for one in NOTES])
def test_output_of_earlier_starts_is_kept(before: str, train: str, mended: str) -> None:
    assert any("output of earlier ones is lost" in one.text for one in found(script(before, train)))
    assert fixed(script(before, train)) == script(before, mended)
    assert found(script(before, mended)) == []


@pytest.mark.parametrize(
    "text",
    [
        "set -e\n" + "".join(f"mkdir d{one}\n" for one in range(10_000)) + TRAIN,
        f"{TRAIN}\n" * 2_000,
    ],
    ids=["commands", "trainings"],
)
def test_a_long_script_is_read_as_fast_as_its_lines_are_split(text: str) -> None:
    begun = time.thread_time()
    for line in text.splitlines():
        shlex.split(line, comments=True)
    split = time.thread_time() - begun
    assert list(check(text))
    assert time.thread_time() - begun < 40 * split


def test_a_job_that_is_submitted_at_each_start_is_noted() -> None:
    [one] = found(script("sbatch next.sh"))
    assert not one.is_problem
    assert fixed(script("sbatch next.sh")) == script(f"{FIRST}sbatch next.sh")


@pytest.mark.parametrize(
    ("before", "train"),
    [
        (f"{FIRST}rm -rf checkpoints", TRAIN),
        ('if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then\n  rm -rf checkpoints\nfi', TRAIN),
        ("rm -rf /tmp/ckpt-cache checkpoints/*.tmp $TMPDIR/checkpoint", TRAIN),
        ("rm -rf build", TRAIN),
        ("rm -rf old", TRAIN),
        ("cd $SLURM_SUBMIT_DIR\nrm -rf old", TRAIN),
        ("source env.sh\ncat > run.sh <<END\npython train.py\nEND\nbash run.sh", TRAIN),
        ("", f"{NANOGPT} --init_from=resume"),
        ("", f"{NANOGPT} --init_from=$FROM"),
        ("", "srun python train.py config/a.yaml"),
        ("", "srun python train.py config/a.py --lr 1"),
        ("trap 'scancel $SLURM_JOB_ID.0' TERM\ntrap 'scancel -s USR1 $SLURM_JOB_ID' TERM", TRAIN),
        ("trap 'scancel $SLURM_JOB_ID' USR1\nscancel $OTHER", TRAIN),
        ("end() {\n  scancel $SLURM_JOB_ID\n}\ntrap end USR1", TRAIN),
        ("", f"{TRAIN} && scancel $SLURM_JOB_ID"),
        ("rm -rf $RUNS/old", "srun python train.py --output-dir $RUNS/a"),
        ("rm -rf /tmp/old build cache", "srun ./run"),
        (f"{FIRST}rm -rf old", "srun ./run"),
        (f"bash -c '{FIRST}rm -rf old'", "srun ./run"),
        ("find runs -name '*.tmp' -delete\ngit clean -n", "srun ./run"),
        ("bash -c 'mkdir logs; mkdir logs'", f"set -e\n{TRAIN}"),
        ("set -e\nmkdir -p logs\nln -sf a b\nrm -f a", TRAIN),
        ("mkdir logs", TRAIN),
        ("set -e\n[ -d logs ] || mkdir logs\n[ ! -d a ] && mkdir a", TRAIN),
        ("set -e\nif [ ! -d logs ]; then\n  mkdir logs\nfi", TRAIN),
        ("set -e\nrm -rf stage\nmkdir stage", TRAIN),
        ("set -e\nmkdir run-$(date +%s)", TRAIN),
        ("set -e\ncat > conf.new <<END\na\nEND\nmv conf.new conf", TRAIN),
        ("echo a | tee conf.yaml\ncat > hosts <<END\nn1\nEND", TRAIN),
        ("rm -f hosts\nhostname >> hosts", "srun python train.py --hosts hosts"),
        ("export MASTER_ADDR=$(hostname)\nexport MASTER_ADDR=127.0.0.1", TRAIN),
        ("echo 'rm -rf checkpoints'", TRAIN),
        ("", f"{TRAIN} --log-dir logs/$(date +%s)"),
        ("", f"{TRAIN} | tee -a train.log || false".replace("srun", "set -o pipefail\nsrun")),
        ("", f"{TRAIN} 2>/dev/null >> log"),
        ("", f"{TRAIN} --expert $RANDOM".replace("srun", "srun --export=ALL,SEED=$RANDOM --output=log-$(date +%s)")),
        ("", f"{TRAIN} > log.${{SLURM_RESTART_COUNT}}"),
        ("", f"{TRAIN} && rm -rf checkpoints"),
    ],
)
def test_what_can_run_twice_is_not_named(before: str, train: str) -> None:
    assert found(script(before, train)) == []


def test_a_script_with_the_launcher_starts_again_as_well() -> None:
    launcher = HEAD.replace("--requeue", "--requeue --no-kill") + "rm -rf ckpt\n"
    [one] = [one for one in check(launcher + "exec understudy run --nodes 3 -- python train.py\n") if one.is_problem]
    assert one.line == 3 and "deletes ckpt" in one.text


@pytest.mark.parametrize("train", ["srun ./run.sh", "bash run.sh", "srun bash -c './run.sh a'"])
def test_a_script_that_is_called_is_named_as_not_read(train: str) -> None:
    assert [one.text.split()[:4] for one in check(script("", train)) if "is not read" in one.text] in (
        [["run.sh", "is", "not", "read:"]],
        [["./run.sh", "is", "not", "read:"]],
    )


def test_the_documents_command_for_nanogpt_is_good() -> None:
    launcher = HEAD.replace("--requeue", "--requeue --no-kill") + (
        "exec understudy run --nodes 3 --torchrun --resume-args=--init_from=resume --resume-if out/ckpt.pt -- \\\n"
        "    python train.py config/train_gpt2.py --out_dir=out --always_save_checkpoint=True\n"
    )
    assert not any(one.is_problem for one in check(launcher))


@pytest.mark.integration
def test_a_mended_script_keeps_its_checkpoints_when_it_starts_again(tmp_path: Path) -> None:
    """bash runs both; a rank fails at each start."""
    (tmp_path / "srun").write_text("#!/bin/sh\nmkdir -p checkpoints\necho ran >> checkpoints/log\necho out\nexit 1\n")
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    for name in ("srun", "sleep"):
        (tmp_path / name).chmod(0o755)
    before = "set -e -o pipefail\nrm -rf checkpoints\nmkdir logs\n"
    train = "srun python train.py 2>&1 | tee logs/train.log"
    for text, starts in ((script(before, train), 0), (fixed(script(before, train)), 2)):
        (tmp_path / "job.sh").write_text(text)
        subprocess.run(["rm", "-rf", "checkpoints", "logs"], cwd=tmp_path, check=True)
        for count in ("", "1"):
            environment = {
                **os.environ,
                "PATH": f"{tmp_path}:{os.environ['PATH']}",
                "SLURM_RESTART_COUNT": count or "0",
            }
            subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=environment, check=False, timeout=30)
        assert (tmp_path / "checkpoints" / "log").exists() == bool(starts)
        if starts:
            assert (tmp_path / "checkpoints" / "log").read_text() == "ran\n" * starts
            assert (tmp_path / "logs" / "train.log").read_text() == "out\n" * starts
