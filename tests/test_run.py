"""What fails once is run again alone and named; what fails twice is a failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import PYTHON_PATH, REPOSITORY
from tests import run as run_module
from tests.run import STAGES, files_of, without_group

pytestmark = pytest.mark.integration

TESTS = """
import pytest
from pathlib import Path

pytestmark = pytest.mark.timed

def test_fails_the_first_time():
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first

def test_passes():
    pass
"""
FAILS_TWICE = """
def test_fails_always():
    assert False
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Inside the checkout: pytest names no test outside it."""
    (REPOSITORY / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=REPOSITORY / "build") as name:
        yield Path(name)


def run(folder: Path, tests: str) -> tuple[int, list[str]]:
    """Exit status and lines of the stage `timed` with these tests alone."""
    (folder / "test_it.py").write_text(tests)
    environment = os.environ | {"PYTHONPATH": PYTHON_PATH, "UNDERSTUDY_BUILD": str(folder / "build")}
    command = [sys.executable, "-m", "tests.run", "timed", str(folder / "test_it.py")]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_what_passes_when_run_again_is_listed_as_flaky_with_both_logs(folder: Path) -> None:
    status, lines = run(folder, TESTS)
    assert status == 0, lines
    assert lines[-1] == "2 passed, 0 failed, 1 flaky"
    (flaky,) = [line for line in lines if line.startswith("flaky: ")]
    assert "test_fails_the_first_time" in flaky
    first, second = sorted((folder / "build" / "flaky").iterdir())
    logs = {path.name.rpartition(".")[0].rpartition(".")[2]: path.read_text() for path in (first, second)}
    assert "assert not first" in logs["first"]
    assert "1 passed" in logs["second"]


def test_what_fails_twice_is_a_failure(folder: Path) -> None:
    status, lines = run(folder, TESTS + FAILS_TWICE)
    assert status == 1
    assert lines[-1] == "2 passed, 1 failed, 1 flaky"
    assert [line for line in lines if line.startswith("failed: ") and "test_fails_always" in line]


def test_a_file_that_cannot_be_read_is_a_failure(folder: Path) -> None:
    status, lines = run(folder, "import no_such_module_at_all")
    assert status == 1
    assert lines[-1].startswith("0 passed, ")


def test_a_test_of_a_group_is_found_again() -> None:
    assert without_group("tests/a.py::test_it[22.05-cli]@22.05-cli") == "tests/a.py::test_it[22.05-cli]"
    assert without_group("tests/a.py::test_it[root@n1]") == "tests/a.py::test_it[root@n1]"


BESIDE = """
import os
import time
from pathlib import Path

import pytest

NOTES = Path(__file__).parent

@pytest.mark.patient
def test_gives_way():
    assert os.nice(0) == 19
    group = Path("/proc/self/autogroup")
    assert not group.exists() or group.read_text().endswith("nice 19\\n")
    while not (NOTES / "cluster ran").exists():
        time.sleep(0.02)
    time.sleep(0.2)
    (NOTES / "ended").touch()

@pytest.mark.cluster
def test_runs_beside_it():
    (NOTES / "cluster ran").touch()

@pytest.mark.timed
def test_waits_for_both():
    assert (NOTES / "ended").exists()
"""


def test_a_stage_that_gives_way_runs_beside_the_next_ones_and_ends_before_times_are_promised(folder: Path) -> None:
    (folder / "test_it.py").write_text(BESIDE)
    program = (
        "import sys, tests.run as run; run.make_slurm_versions = lambda _: True;"
        "sys.argv[1:] = ['patient', 'cluster', 'timed', '-n0', sys.argv[1]]; sys.exit(run.main())"
    )
    environment = os.environ | {"PYTHONPATH": PYTHON_PATH, "UNDERSTUDY_BUILD": str(folder / "build")}
    command = [sys.executable, "-c", program, str(folder / "test_it.py")]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "3 passed, 0 failed", done.stdout


def test_a_stage_collects_only_the_files_that_have_tests_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = tmp_path / "marks.json"
    monkeypatch.setattr(run_module, "MARKS", marks)
    marks.write_text('{"tests/a.py": [[], ["cluster", "timed"]], "tests/b.py": [["cluster", "parametrize"]]}')
    left_out = ["tests/bench/test_small.py", "tests/launch/test_on_a_cluster.py"]
    assert files_of(STAGES["cluster"]) == ["tests/b.py", *left_out]
    assert files_of(STAGES["cluster-timed"]) == ["tests/a.py", "tests/launch/test_on_a_cluster.py"]
    assert files_of(STAGES["unit"]) == []
    marks.unlink()
    assert files_of(STAGES["cluster"]) == []


def test_the_first_stage_says_which_marks_each_file_has(tmp_path: Path) -> None:
    marks = tmp_path / "marks.json"
    environment = os.environ | {"PYTHONPATH": PYTHON_PATH, "UNDERSTUDY_MARKS": str(marks)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "timed", "tests/test_run.py", "tests/fuzz"]
    subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, check=False)
    by_file = json.loads(marks.read_text())
    assert by_file["tests/test_run.py"] == [["integration"]]
    assert by_file["tests/fuzz/test_fuzz.py"] == [[], ["parametrize"]]


HANGS = """
import os
import time
from pathlib import Path

import pytest

NOTES = Path(__file__).parent

@pytest.mark.patient
def test_gives_way():
    (NOTES / f"{os.getpid()}.pid").touch()
    time.sleep(120)

@pytest.mark.cluster
def test_runs_beside_it():
    (NOTES / f"{os.getpid()}.pid").touch()
    time.sleep(120)
"""


def test_all_stages_end_with_it(folder: Path) -> None:
    (folder / "test_it.py").write_text(HANGS)
    program = (
        "import sys, tests.run as run; run.make_slurm_versions = lambda _: True;"
        "sys.argv[1:] = ['patient', 'cluster', '-n0', sys.argv[1]]; sys.exit(run.main())"
    )
    environment = os.environ | {"PYTHONPATH": PYTHON_PATH, "UNDERSTUDY_BUILD": str(folder / "build")}
    command = [sys.executable, "-c", program, str(folder / "test_it.py")]
    whole = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL)
    while len(tests := list(folder.glob("*.pid"))) < 2:
        assert whole.poll() is None
        time.sleep(0.05)
    whole.terminate()
    assert whole.wait(60) == 128 + signal.SIGTERM
    while any(Path(f"/proc/{test.stem}/exe").exists() for test in tests):  # else the time limit of a test fails it
        time.sleep(0.05)


def test_a_test_that_hangs_fails_and_the_others_run(folder: Path) -> None:
    hangs = """
@pytest.mark.timeout(1)
def test_hangs():
    import threading
    threading.Event().wait()
"""
    status, lines = run(folder, TESTS + hangs)
    assert status == 1
    assert [line for line in lines if line.startswith("failed: ") and "test_hangs" in line]
    assert lines[-1].startswith("2 passed, 1 failed")
