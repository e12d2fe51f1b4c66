"""The scripts that test a node and reset its GPUs, run by a real shell with programs of its own on PATH."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import builders as b
from understudy_agent.sample.gpus import RELEASE_FILE
from understudy_controlplane.fleet.job import opted_in
from understudy_controlplane.recover.steps.script import (
    NOTHING_CHECKED,
    Network,
    last_output,
    reset_script,
    validation_script,
    with_last_output,
)
from understudy_wire.stages import DEFAULTS, Stage, StageName, StageStatus, read_stages, results_of

pytestmark = [pytest.mark.integration, pytest.mark.patient]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run(
    folder: Path,
    *,
    gpus: int = 0,
    hours: float = 0,
    suspect: bool = False,
    sys_class: Path = Path("/sys/class"),
    network: Network | None = None,
    ports: Sequence[str] = (),
    **policy: Any,
) -> tuple[int, str]:
    settings = b.config(validation={"selfcheck": "understudy-x selfcheck", **policy}).validation
    script = validation_script(settings, gpus, hours, suspect, network, ports).replace("/sys/class", str(sys_class))
    done = subprocess.run(
        ["/bin/bash", "-s"], input=script, env={"PATH": str(folder)}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_a_test_in_which_nothing_could_be_looked_at_does_not_pass(programs: Path) -> None:
    code, output = run(programs, gpus=8)
    assert code == NOTHING_CHECKED
    for name in ("understudy-x", "nvidia-smi", "all_reduce_perf", "dcgmi"):
        assert f"== {name}: not installed here, skipped" in output


def test_all_parts_are_run_also_after_one_that_failed(programs: Path) -> None:
    program(programs, "understudy-x", "echo checksum differs; exit 1")
    program(programs, "dcgmi", 'echo "diag $*"')
    code, output = run(programs, gpus=8, command="echo site; exit 7", dcgm_level=3)
    assert code == 1
    assert "checksum differs" in output
    assert "diag diag -r 3\n== passed" in output
    assert "site\n== FAILED with exit code 7" in output
    assert "== 3 checks, 2 failed: understudy-x selfcheck --gpus 8; echo site; exit 7\n" in output


def test_a_selfcheck_that_could_not_run_is_no_pass_and_no_failure(programs: Path) -> None:
    program(programs, "understudy-x", "exit 2")
    assert run(programs)[0] == NOTHING_CHECKED
    assert run(programs, command="exit 2")[0] == 1, "of the site's own command 2 is a failure like any other"
    assert run(programs, command="true")[0] == 0


def list_gpus(folder: Path, seen: int, links: str = "") -> None:
    listed = "\n".join(f"echo 'GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i})'" for i in range(seen))
    program(folder, "nvidia-smi", f'case "$*" in\n-L)\n{listed};;\n"nvlink -s")\n{links or ":"};;\nesac')


@pytest.mark.parametrize(("seen", "code"), [(8, 0), (7, 1)])
def test_a_gpu_that_the_driver_does_not_show_fails_the_node(programs: Path, seen: int, code: int) -> None:
    list_gpus(programs, seen)
    assert run(programs, gpus=8, command="true")[0] == code


def test_gpus_that_the_driver_lists_but_that_nothing_has_computed_on_prove_nothing(programs: Path) -> None:
    """The driver is loaded and CUDA cannot be used: nvidia-smi lists them all the same."""
    list_gpus(programs, 8)
    program(programs, "understudy-x", "exit 2")
    code, output = run(programs, gpus=8)
    assert code == NOTHING_CHECKED
    assert "== 0 checks, 0 failed" in output


@pytest.mark.parametrize(
    ("gpus", "given", "suspect", "asked"),
    [
        (8, "", False, "selfcheck --gpus 8"),
        (8, "", True, "selfcheck --gpus 8 --slow-ratio 1.15"),
        (8, "--gpus 4 --slow-ratio 2", True, "selfcheck --gpus 4 --slow-ratio 2"),
        (0, "", False, "selfcheck"),
    ],
)
def test_the_selfcheck_gets_the_number_of_gpus_and_the_limit_for_slow_suspects(
    programs: Path, gpus: int, given: str, suspect: bool, asked: str
) -> None:
    program(programs, "understudy-x", 'echo "asked: $*"')
    selfcheck = f"understudy-x selfcheck {given}".strip()
    assert f"asked: {asked}\n" in run(programs, gpus=gpus, suspect=suspect, selfcheck=selfcheck)[1]


def test_a_node_whose_gpus_are_cut_into_instances_is_not_held_to_their_number(programs: Path) -> None:
    list_gpus(programs, 1)
    program(programs, "all_reduce_perf", "exit 1")
    assert run(programs, gpus=0, command="true")[0] == 0


def links_of(*gpus: int) -> str:
    """Links as `nvidia-smi nvlink -s` prints them, 18 each."""
    lines = []
    for gpu, up in enumerate(gpus):
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})")
        lines += [f"\t Link {link}: {'26.562 GB/s' if link < up else '<inactive>'}" for link in range(18)]
    return "cat <<'END'\n" + "\n".join(lines) + "\nEND\n"


@pytest.mark.parametrize(
    ("up", "least", "code"),
    [
        ((18, 18), 0, 0),
        ((18, 17), 0, 1),
        ((12, 12), 0, 0),  # cards with bridges: none of them has more
        ((12, 12), 18, 1),
        ((12, 12), 12, 0),
        ((0, 0), 0, 0),
        ((0, 0), 18, 1),
    ],
)
def test_an_nvlink_that_is_not_up_fails_the_node(programs: Path, up: tuple[int, int], least: int, code: int) -> None:
    list_gpus(programs, 2, links_of(*up))
    done, output = run(programs, gpus=2, command="true", nvlinks_active_min=least)
    assert done == code
    if code:
        assert f"GPU 1: {up[1]} of {least or max(up)} NVLinks are up" in output


@pytest.mark.parametrize(
    ("measured", "least", "code"), [("448.212", 400, 0), ("48.6", 400, 1), ("48.6", 0, 0), ("", 400, 1), ("", 0, 0)]
)
def test_gpus_that_exchange_too_slowly_fail_the_node(programs: Path, measured: str, least: float, code: int) -> None:
    end = f"echo '# Avg bus bandwidth    : {measured} '; echo '#'" if measured else "true"
    program(programs, "all_reduce_perf", f"echo '# Out of bounds values : 0 OK'; {end}")
    done, output = run(programs, gpus=8, all_reduce_gbps_min=least)
    assert done == code
    if measured and code:
        assert "bandwidth of 48.6 GB/s, less than 400" in output


def test_an_exchange_that_ends_badly_fails_the_node_whatever_its_speed(programs: Path) -> None:
    program(programs, "all_reduce_perf", "echo '# Avg bus bandwidth    : 448.2 '; exit 3")
    code, output = run(programs, gpus=8, all_reduce_gbps_min=400)
    assert (code, "FAILED with exit code 3" in output) == (1, True)


def test_one_gpu_alone_exchanges_nothing_and_is_not_held_to_a_speed(programs: Path) -> None:
    program(programs, "all_reduce_perf", "echo '# Avg bus bandwidth    : 0 '")
    assert run(programs, gpus=1, all_reduce_gbps_min=400)[0] == 0


@pytest.mark.parametrize(
    ("ports", "active"),
    [((), 2), (("2",), 2), (("3",), 2), (("2", "mlx5_1/1"), 2), (("2", "mlx5_2/1"), 1), (("1", "mlx5_2/1"), 1)],
)
def test_a_port_that_is_not_up_fails_the_node(programs: Path, tmp_path: Path, ports: list[str], active: int) -> None:
    for number, state in enumerate(("4: ACTIVE", "1: DOWN", "4: ACTIVE")):
        file = tmp_path / f"infiniband/mlx5_{number}/ports/1/state"
        file.parent.mkdir(parents=True)
        file.write_text(f"{state}\n")
    code, output = run(programs, gpus=8, command="true", ports=ports, sys_class=tmp_path)
    fails = bool(ports) and active < int(ports[0])
    assert code == fails
    if fails:
        assert f"{active} ports are active, of {ports[0]} that should be" in output


def test_a_command_with_quotes_and_dollars_is_run_as_it_was_written(programs: Path) -> None:
    code, output = run(programs, command="""x='a b'; echo "[$x]" "it's"; test "$x" = 'a b'""")
    assert (code, "[a b] it's" in output) == (0, True)


def test_a_burn_in_repeats_the_test_until_its_time_is_over_or_a_round_fails(programs: Path, tmp_path: Path) -> None:
    rounds = tmp_path / "rounds"
    count = f"echo x >> {rounds}; /bin/sleep 0.3"
    assert run(programs, hours=2 / 3600, command=count)[0] == 0
    assert len(rounds.read_text().split()) >= 2
    rounds.unlink()
    assert run(programs, hours=1, command=f"{count}; exit 1")[0] == 1
    assert len(rounds.read_text().split()) == 1
    assert run(programs, hours=1)[0] == NOTHING_CHECKED


def reset(folder: Path, *gpus: str, **policy: Any) -> tuple[int, str]:
    settings = b.config(repair={"agent_run_directory": f"{folder}/%n", **policy}).repair
    script = reset_script(settings, "n1", gpus)
    done = subprocess.run(["/bin/sh", "-s"], input=script, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_controlplane.recover.steps.script.RELEASE_SECONDS", 0)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("code", [0, 7])
def test_nvml_is_let_go_of_for_the_reset_and_no_longer_however_it_ends(tmp_path: Path, code: int) -> None:
    (tmp_path / "n1").mkdir()
    done, output = reset(
        tmp_path, reset_command=f"ls {tmp_path}/n1; exit {code}", evidence_command=f"ls -A {tmp_path}/n1"
    )
    assert (done, output) == (code, f"{RELEASE_FILE}\n"), "measured before, while the agent still had it"
    assert list((tmp_path / "n1").iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_the_reset_knows_which_gpu_and_prints_first_what_it_would_erase(tmp_path: Path) -> None:
    """No agent on the node is needed, whatever becomes of the evidence."""
    command = """echo "reset ${UNDERSTUDY_GPU:+-i "$UNDERSTUDY_GPU"}" """
    evidence = "echo 'it''s known'; exit 3"
    assert reset(tmp_path, "0000:1b:00.0", "3", reset_command=command, evidence_command=evidence) == (
        0,
        "its known\nreset -i 0000:1b:00.0,3\n",
    )
    assert reset(tmp_path, reset_command=command) == (0, "reset \n")


@pytest.mark.usefixtures("quick")
def test_evidence_that_does_not_come_keeps_no_gpu_from_its_reset(tmp_path: Path) -> None:
    done, output = reset(tmp_path, reset_command="echo reset", evidence_command="sleep 60", reset_timeout_seconds=2)
    assert (done, output) == (0, "reset\n")


@pytest.mark.parametrize("words", ["resetting\nthis is understudy's; it is managed = 1", "x" * 5000 + "end", ""])
def test_the_last_output_of_a_job_come_back_in_its_comment_with_its_exit_code(
    programs: Path, tmp_path: Path, words: str
) -> None:
    output = tmp_path / "output"
    output.write_text(words)
    program(programs, "scontrol", f'echo "$@" > {tmp_path}/asked')
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    script = with_last_output(f"#!/bin/sh\ncat {output}\nexit 3\n")
    done = subprocess.run(["/bin/bash", "-s"], input=script, env=environment, text=True, check=False)
    assert done.returncode == 3
    _, job, update = (tmp_path / "asked").read_text().split()
    comment = update.removeprefix("Comment=")
    assert (job, last_output(comment)) == ("JobId=7", words[-700:])
    assert len(comment) < 1000
    assert not opted_in(comment, "understudy")


@pytest.mark.parametrize("comment", ["", "a researcher's", "output:", "output:x", "team understudy output:eA=="])
def test_another_comment_is_no_output(comment: str) -> None:
    assert last_output(comment) == ""


# -- stages ------------------------------------------------------------------


STAGED: dict[str, Any] = {
    "stages_command": "understudy-x selfcheck",
    "selfcheck": "",
    "stages": {"cpu": {"seconds": 0.5, "pass": 9}},
}


def staged(folder: Path, status: str = "p", code: int = 0) -> None:
    line = f'understudy-stages [["cpu","{status}",7.0,9.0,0.5,""],["gpu","n",null,0,0,"no GPU"]]'
    program(folder, "understudy-x", f"cat > {folder}/given; echo \"$*\"; echo '{line}'; exit {code}")


def test_a_burn_in_runs_the_stages_with_the_sites_limits_and_their_results_come_last(programs: Path) -> None:
    staged(programs)
    code, output = run(programs, gpus=8, hours=1e-9, **STAGED)
    assert code == 0
    assert "selfcheck --stages - --gpus 8" in output
    given = read_stages((programs / "given").read_text())
    assert given[StageName.CPU] == Stage(seconds=0.5, pass_mark=9.0)
    assert given[StageName.GPU] == DEFAULTS[StageName.GPU]
    assert output.splitlines()[-1].startswith("understudy-stages [[")
    found, rest = results_of(output)
    assert [(one.stage, one.status) for one in found] == [
        (StageName.CPU, StageStatus.PASSED),
        (StageName.GPU, StageStatus.NOT_POSSIBLE),
    ]
    assert "understudy-stages" not in rest


def test_a_stage_that_failed_fails_the_validation_and_none_that_was_possible_proves_nothing(programs: Path) -> None:
    staged(programs, "f", 1)
    assert run(programs, hours=1e-9, **STAGED)[0] == 1
    staged(programs, "n", 2)
    assert run(programs, hours=1e-9, **STAGED)[0] == NOTHING_CHECKED


@pytest.mark.parametrize(
    ("when", "hours", "runs"), [("burn_in", 0, False), ("always", 0, True), ("never", 1e-9, False)]
)
def test_which_validations_run_the_stages(programs: Path, when: str, hours: float, runs: bool) -> None:
    staged(programs)
    _, output = run(programs, hours=hours, run_stages=when, command="true", **STAGED)
    assert ("--stages" in output) is runs


PEERS = Network("10.0.0.1", ("n2", "n3"), "train,short", 12.5)
WITH_NETWORK = {**STAGED, "run_stages": "always", "stages": {"network": {"enabled": True}}}


def test_the_network_is_tested_once_at_the_end_and_a_good_one_proves_nothing_else(programs: Path) -> None:
    staged(programs)
    code, output = run(programs, network=PEERS, **WITH_NETWORK)
    words = "--stages - --address 10.0.0.1 --peers n2,n3 --partition train,short --usual 12.5"
    assert (code, output.count(words)) == (0, 2), "as it was called, and as the program saw it"
    given = read_stages((programs / "given").read_text())
    assert [name for name, one in given.items() if one.enabled] == [StageName.NETWORK]
    settings = {**WITH_NETWORK, "stages_command": "understudy-x"} | {"run_stages": "burn_in"}
    assert "--peers" not in run(programs, network=PEERS, **settings)[1]
    off = {name: {"enabled": False} for name in StageName}
    program(programs, "understudy-x", 'case "$*" in *--peers*) exit 0;; *) exit 2;; esac')
    stages = {"stages": off | {"network": {"enabled": True}}}
    assert run(programs, network=PEERS, **{**WITH_NETWORK, **stages})[0] == NOTHING_CHECKED


def test_a_network_that_failed_fails_the_validation_and_one_without_peers_does_not(programs: Path) -> None:
    program(programs, "understudy-x", 'case "$*" in *--peers*) exit 1;; *--address*) exit 2;; *) exit 0;; esac')
    assert run(programs, network=PEERS, **WITH_NETWORK)[0] == 1
    assert run(programs, network=Network("10.0.0.1", (), "train", None), **WITH_NETWORK)[0] == 0


def test_stages_that_do_not_exist_are_refused_by_the_configuration() -> None:
    with pytest.raises(ValueError, match="there is no stage warp"):
        b.config(validation={"stages": {"warp": {}}})
