"""Gangs whose ranks run in containers of Podman's, real ones: an image is made of this machine's own Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.launch.local import LocalGang
from tests.waiting import wait_until
from understudy_launcher.process_tree import parents

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("podman"), reason="needs root and podman: tests/setup.sh"),
]

PYTHON = os.path.realpath("/usr/bin/python3")
PROGRAMS = ("/bin/dash", PYTHON)
BEFORE = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'
"""crun refuses machines with both versions of cgroups mounted; this is in a mount namespace of the gang's own."""


class Podman:
    def __init__(self, home: Path) -> None:
        self.home = str(home)
        self.words = ["podman", f"--root={home}/storage", f"--runroot={home}/run", "--cgroup-manager=cgroupfs"]
        self._fill(home / "image")
        packed = home / "image.tar"
        subprocess.run(["tar", "-C", home / "image", "-cf", packed, "."], check=True)
        self.run("import", str(packed), "understudy-test")

    def run(self, *words: str) -> str:
        done = subprocess.run([*self.words, *words], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def containers(self) -> list[str]:
        return self.run("ps", "--all", "--format={{.Names}}").split()

    @staticmethod
    def _fill(root: Path) -> None:
        """A Python that imports the standard library, and a shell."""
        library = Path("/usr/lib") / Path(PYTHON).name
        modules = [str(one) for one in (library / "lib-dynload").glob("*.so")]
        listed = subprocess.run(["ldd", *PROGRAMS, *modules], capture_output=True, text=True, check=True).stdout
        needed = {word for word in listed.split() if word.startswith("/") and not word.endswith(":")}
        for name in ("usr/bin", "usr/lib", "usr/lib64", "etc", "tmp", "proc", "sys", "dev", "run"):
            (root / name).mkdir(parents=True)
        for name in ("bin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        for file in (*PROGRAMS, *needed):
            place = root / os.path.realpath(file)[1:]
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)
            own = root / os.path.realpath(Path(file).parent)[1:] / Path(file).name
            if not own.exists():
                shutil.copy(file, own)
        shutil.copytree(
            library, root / "usr/lib/python3.11", ignore=shutil.ignore_patterns("__pycache__", "test", "*-packages")
        )
        (root / "usr/bin/python3").symlink_to(Path(PYTHON).name)
        (root / "usr/bin/sh").symlink_to("dash")


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    """Its folder is none of pytest's: Podman takes no path of more than 50 characters there."""
    with tempfile.TemporaryDirectory(prefix="podman-", ignore_cleanup_errors=True) as folder:
        made = Podman(Path(folder))
        yield made
        made.run("rm", "--all", "--force", "--time=0")


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[LocalGang]:
    started = LocalGang(tmp_path)
    started.before = ("unshare", "--mount", "sh", "-c", BEFORE, "sh")
    yield started
    started.close()


def in_container(podman: Podman, gang: LocalGang, *program: str) -> list[str]:
    """The user's part: what the program needs."""
    own = [f"--volume={gang.home}:{gang.home}", f"--volume={REPOSITORY}/agents/understudy:/hook/understudy:ro"]
    return [
        *podman.words,
        "run",
        *own,
        f"--env=HOME={gang.home}",
        "--env=PYTHONPATH=/hook",
        "understudy-test",
        *program,
    ]


def containers_of(podman: Podman) -> list[str]:
    """Monitors of its containers that run. Gangs beside this test have others."""
    found = []
    for pid in parents():
        words = command_line(pid)
        if words[:1] == ["/usr/bin/conmon"] and any(word.startswith(podman.home) for word in words):
            found.append(words[words.index("-n") + 1])
    return found


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def start(gang: LocalGang, podman: Podman, options: Sequence[str], *program: str) -> None:
    gang.start([*options, "--rearm-seconds", "0.5"], in_container(podman, gang, *program), nodes=3)


def test_ranks_in_containers_are_replaced_after_a_fault_and_leave_none_behind(podman: Podman, gang: LocalGang) -> None:
    start(gang, podman, ["--nodes", "2", "--procs-per-node", "2"], "python3", str(gang.program))
    gang.wait_for_launch(0, 4)
    ranks = gang.ranks(0)
    assert {one["pid"] for one in ranks} == {1}, "a container has process ids of its own"
    assert [one["RANK"] for one in ranks] == ["0", "1", "2", "3"]
    assert {one["OMP_NUM_THREADS"] for one in ranks} == {"1"}
    assert {one["UNDERSTUDY_LAUNCH_SECRET"] for one in ranks} == {None}
    assert len(containers_of(podman)) == 4
    gang.wait_for_standbys(3)
    at = gang.condemn("n1")
    gang.wait_for_launch(1, 4)
    print(f"\nverdict to all new processes: {max(one['at'] for one in gang.ranks(1)) - at:.3f} s")
    assert gang.nodes(1) == ["n3", "n2"]
    gang.finish()
    assert gang.exit_code() == 0
    assert containers_of(podman) == []
    wait_until(lambda: podman.containers() == [], "podman has removed the containers")


SHOWS = """
import os, sys
agent = os.path.exists(os.environ["UNDERSTUDY_SOCKET"])
loaded = "colorsys" in sys.modules
print("loaded", loaded, "agent", agent, os.environ["PYTHONPATH"], "VIRTUAL_ENV" in os.environ, flush=True)
sys.exit(0 if os.environ["UNDERSTUDY_LAUNCH"] == "1" else 3)
"""


def test_modules_are_imported_in_advance_and_the_agents_socket_is_there(
    podman: Podman, gang: LocalGang, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The image's environment stays. The folder of the socket is mounted without an option of the user's."""
    script, agent = gang.home / "shows.py", tmp_path_factory.mktemp("agent") / "agent.sock"
    script.write_text(SHOWS)
    agent.touch()
    command = in_container(podman, gang, "python3", str(script))
    gang.start(["--nodes", "2", "--preload", "colorsys"], command, nodes=3, UNDERSTUDY_SOCKET=str(agent))
    assert gang.exit_code() == 0
    assert "loaded True agent True /hook False" in gang.output
    wait_until(lambda: podman.containers() == [], "podman has removed the containers")


RESTARTABLE = """
import os, sys, time
from pathlib import Path
from understudy.restart import restartable
home = Path(os.environ["HOME"])
def train():
    launch, rank = os.environ["UNDERSTUDY_LAUNCH"], os.environ["RANK"]
    with (home / "trained").open("a") as file:
        file.write(f"{launch} {rank} {BORN}\\n")
    crashes = launch == "0" and rank == "1"
    while not (home / ("crash" if crashes else f"leave.{launch}")).exists():
        time.sleep(0.02)
    if crashes:
        os._exit(9)
    if launch == "0":
        raise RuntimeError("a peer is gone")
BORN = time.monotonic_ns()
restartable(train)
"""


@pytest.mark.long
def test_ranks_go_on_in_their_processes(podman: Podman, gang: LocalGang) -> None:
    script = gang.home / "train.py"
    script.write_text(RESTARTABLE)

    def trained() -> list[list[str]]:
        path = gang.home / "trained"
        return sorted(line.split() for line in path.read_text().splitlines()) if path.exists() else []

    start(gang, podman, ["--nodes", "2", "--in-process"], "python3", str(script))
    gang.wait_for(lambda: len(trained()) == 2, 60, "both ranks train")
    (gang.home / "crash").touch()
    (gang.home / "leave.0").touch()
    gang.wait_for(lambda: len(trained()) == 4, 60, "both ranks train again")
    (gang.home / "leave.1").touch()
    assert gang.exit_code() == 0
    (_, _, first), (_, _, crashed), (_, _, again), (_, _, new) = trained()
    assert again == first, "rank 0 goes on in its process"
    assert new != crashed
    wait_until(lambda: podman.containers() == [], "podman has removed the containers")


HANGS = """
import os, time
from pathlib import Path
from understudy.evidence import answer_when_asked
answer_when_asked(lambda: None)
(Path(os.environ["HOME"]) / f"ready.{os.environ['UNDERSTUDY_LAUNCH']}.{os.environ['RANK']}").touch()
def hangs_in_the_container():
    while os.environ["UNDERSTUDY_LAUNCH"] == "0":
        time.sleep(0.1)
hangs_in_the_container()
"""


@pytest.mark.long
def test_a_hung_rank_shows_its_stacks(podman: Podman, gang: LocalGang) -> None:
    script, steps = gang.home / "hangs.py", gang.home / "steps"
    script.write_text(HANGS)
    start(gang, podman, ["--nodes", "2", "--progress-file", "steps", "--hang-seconds", "1"], "python3", str(script))
    gang.wait_for(lambda: all((gang.home / f"ready.0.{rank}").exists() for rank in (0, 1)), 60, "both ranks run")
    steps.write_text("1\n")
    assert gang.exit_code() == 0
    (evidence,) = gang.events("evidence")
    assert "hangs_in_the_container" in str(evidence)
