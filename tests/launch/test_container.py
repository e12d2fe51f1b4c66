"""Commands that start their program in a container, and what the launcher adds to them."""

from __future__ import annotations

import pytest

from understudy_launcher.command import PythonProgram
from understudy_launcher.container import (
    Container,
    ContainerError,
    Inside,
    arguments,
    environment_of_engine,
    for_inside,
    is_monitor_of,
    parse_container,
)
from understudy_launcher.options import UsageError, parse

INSIDE = Inside("understudy-7-1-0", ["/run/understudy"], ["/a/warm.py"], 4, {"nofile": (1024, 4096)})


def container(line: str) -> Container:
    found = parse_container(line.split())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("line", "before", "options", "program"),
    [
        ("podman run --rm image python train.py", "podman run", "--rm image", "python train.py"),
        ("/usr/bin/podman --root /r run -v /a:/a image python3 -u -m train --lr 1", "/usr/bin/podman --root /r run",
         "-v /a:/a image", "python3 -u -m train --lr 1"),
        ("apptainer exec --nv image.sif python train.py", "apptainer exec", "--nv image.sif", "python train.py"),
        ("singularity run image.sif /opt/conda/bin/python3.12 train.py", "singularity run", "image.sif",
         "/opt/conda/bin/python3.12 train.py"),
        ("podman run --entrypoint python image train.py", "podman run", "--entrypoint python image train.py", ""),
        ("podman run image ./train --x", "podman run", "image ./train --x", ""),
    ],
)  # fmt: skip
def test_a_command_is_taken_apart(line: str, before: str, options: str, program: str) -> None:
    found = container(line)
    assert found.before == tuple(before.split())
    assert found.options == tuple(options.split())
    assert found.program == tuple(program.split())
    assert bool(found.python) == bool(program)


def test_other_commands_are_no_containers() -> None:
    for line in ("python train.py", "podman ps", "apptainer", "bash run.sh podman run x"):
        assert parse_container(line.split()) is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("docker run image python train.py", "use podman or Apptainer"),
        ("podman run --name=x image python train.py", "the launcher names it"),
        ("podman run -d image python train.py", "ended at once"),
        ("podman run -it image python train.py", "no terminal"),
    ],
)
def test_what_no_gang_can_use_is_refused(line: str, says: str) -> None:
    with pytest.raises(ContainerError, match=says):
        parse_container(line.split())
    with pytest.raises(UsageError, match=says):
        parse(["--nodes", "2", "--", *line.split()])


def test_options_of_the_program_are_its_own() -> None:
    assert container("podman run image python train.py --name x -d").program[-1] == "-d"


def test_torchrun_is_not_put_around_an_engine() -> None:
    with pytest.raises(UsageError, match="leave --torchrun out"):
        parse(["--nodes", "2", "--torchrun", "--", "podman", "run", "image", "python", "train.py"])


def test_podman_gets_what_a_rank_needs_and_the_users_options_after_it() -> None:
    environment = {"RANK": "3", "SLURM_JOB_ID": "7", "PATH": "/bin", "HOME": "/home/u", "UNDERSTUDY_LAUNCH_SECRET": "x"}
    found = container("podman run --network=other image python train.py")
    words = arguments(found, found.program, environment, INSIDE)
    assert words[:2] == ["podman", "run"]
    assert words[-4:] == ["--network=other", "image", "python", "train.py"]
    own = set(words[2:-4])
    assert {"--rm", "--name=understudy-7-1-0", "--network=host", "--ipc=host", "--cgroups=disabled"} <= own
    assert {"--volume=/run/understudy:/run/understudy", "--volume=/a/warm.py:/a/warm.py:ro"} <= own
    assert {"--ulimit=nofile=1024:4096", "--preserve-fds=4"} <= own
    # No values: other users can read command lines.
    names = {word for word in own if word.startswith("--env")}
    assert names == {"--env=RANK", "--env=SLURM_JOB_ID", "--env=UNDERSTUDY_CONTAINER"}, (
        "no values: users could see them"
    )


@pytest.mark.parametrize(
    "mount",
    [
        "-v /run/understudy:/run/understudy:ro",
        "--volume=/run:/run",
        "--mount=type=bind,src=/run,dst=/run",
        "-v/run:/run",
    ],
)
def test_what_the_user_mounts_is_not_mounted_twice(mount: str) -> None:
    found = container(f"podman run {mount} image python train.py")
    assert "--volume=/run/understudy:/run/understudy" not in arguments(found, found.program, {}, INSIDE)


@pytest.mark.parametrize("option", ["--env=PYTHONPATH=/a:/run", "-e PYTHONPATH=/a:/run", "--label=x=/a:/run"])
def test_a_value_that_looks_like_a_mount_is_none(option: str) -> None:
    found = container(f"podman run {option} image python train.py")
    assert "--volume=/run/understudy:/run/understudy" in arguments(found, found.program, {}, INSIDE)


def test_apptainer_takes_mounts_and_variables_from_its_environment() -> None:
    found = container("apptainer exec --nv --cleanenv image.sif python train.py")
    assert arguments(found, found.program, {}, INSIDE) == list(found.before + found.options + found.program)
    outside = environment_of_engine(found, {"RANK": "3", "PATH": "/bin", "APPTAINER_BIND": "/data"}, INSIDE)
    assert outside["APPTAINER_BIND"] == "/data,/run/understudy,/a/warm.py:/a/warm.py:ro"
    assert (outside["APPTAINERENV_RANK"], outside["PATH"], outside["RANK"]) == ("3", "/bin", "3")
    assert "APPTAINERENV_PATH" not in outside
    old = environment_of_engine(container("singularity exec image.sif python train.py"), {}, INSIDE)
    assert old["SINGULARITY_BIND"] == "/run/understudy,/a/warm.py:/a/warm.py:ro"


def test_a_running_process_keeps_the_environment_of_its_image() -> None:
    found = for_inside({"RANK": "1", "NCCL_DEBUG": "INFO", "PATH": "/bin", "LD_LIBRARY_PATH": "/x", "HOME": "/h"})
    assert found == {"RANK": "1", "NCCL_DEBUG": "INFO", "UNDERSTUDY_CONTAINER": "1"}


def test_the_monitor_of_a_container_is_known_by_its_name() -> None:
    assert is_monitor_of(b"/usr/bin/conmon\0-c\0id\0-n\0understudy-7-1-0\0", "understudy-7-1-0")
    assert not is_monitor_of(b"/usr/bin/conmon\0-c\0id\0-n\0understudy-7-1-01\0", "understudy-7-1-0")
    assert not is_monitor_of(b"podman\0run\0--name=x\0understudy-7-1-0\0", "understudy-7-1-0")


def test_a_program_is_recognized_by_its_interpreter() -> None:
    assert container("podman run image python -u a.py b").python == PythonProgram(
        "python", ("-u",), False, "a.py", ("b",)
    )
