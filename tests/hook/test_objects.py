"""Checkpoints in an object store are fetched whole, and only once, from a real server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests import REPOSITORY
from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from tests.object_store import BUCKET, ObjectStore
from understudy import Monitor, objects
from understudy.file_system import ObjectStoreError
from understudy.restore import RestorePoint, RestorePointUnknownError, fetched, is_there
from understudy_wire.facts import RestoreReport

pytestmark = pytest.mark.integration

ADDRESS = f"s3://{BUCKET}/run/step-20"
CONTENT = {"r0.pt": b"0" * 3_000_000, "sub/r1.pt": b"1" * 100}


@pytest.fixture
def store(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ObjectStore:
    monkeypatch.setenv(objects.FOLDER, str(tmp_path / "fetched"))
    for name, data in CONTENT.items():
        object_store.put(f"run/step-20/{name}", data, **{objects.CHECKSUM: f"crc32:{zlib.crc32(data):08x}"})
    object_store.put("run/step-200/r0.pt", b"of another step")
    return object_store


def content(folder: str) -> dict[str, bytes]:
    return {
        str(one.relative_to(folder)): one.read_bytes()
        for one in Path(folder).rglob("*")
        if one.is_file() and one.suffix != ".fetch"
    }


def test_all_of_a_checkpoint_is_fetched_and_nothing_of_another(store: ObjectStore) -> None:
    assert content(objects.fetch(ADDRESS)) == CONTENT


def test_a_rank_that_names_its_files_fetches_these_alone(store: ObjectStore) -> None:
    point = fetched(RestorePoint(20, ADDRESS), {"files": ["sub/r1.pt"]})
    assert (point.step, content(point.path)) == (20, {"sub/r1.pt": CONTENT["sub/r1.pt"]})


def test_a_checkpoint_of_one_file_is_fetched_to_a_file(store: ObjectStore) -> None:
    assert Path(objects.fetch(f"{ADDRESS}/r0.pt")).read_bytes() == CONTENT["r0.pt"]


def test_what_was_broken_off_goes_on_and_what_is_damaged_begins_again(store: ObjectStore) -> None:
    folder = Path(objects.fetch(ADDRESS))
    for left in (CONTENT["r0.pt"][:1_000_000], b"!" * 1_000_000, b"0" * 4_000_000):
        (folder / "r0.pt").unlink()
        (folder / "r0.pt.fetch").write_bytes(left)
        assert content(objects.fetch(ADDRESS)) == CONTENT


def test_without_a_folder_only_the_last_one_fetched_stays(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(objects.FOLDER)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    store.put("run/step-9.pt", b"one file")
    of_one_file = objects.fetch(f"s3://{BUCKET}/run/step-9.pt")
    first = objects.fetch(ADDRESS)
    assert not Path(of_one_file).exists()
    assert content(objects.fetch(f"s3://{BUCKET}/run/step-200")) == {"r0.pt": b"of another step"}
    assert not Path(first).exists()
    assert Path(first).parent.stat().st_mode & 0o077 == 0


def test_ranks_of_a_node_fetch_a_file_once(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fetches: list[str] = []
    opened = objects._open

    def counted(address: str) -> tuple[Any, str, str]:
        client, bucket, key = opened(address)
        get = client.get_object

        def get_object(**named: Any) -> Any:
            fetches.append(named["Key"])
            return get(**named)

        client.get_object = get_object
        return client, bucket, key

    monkeypatch.setattr(objects, "_open", counted)
    ranks = [threading.Thread(target=objects.fetch, args=(ADDRESS,)) for _ in range(4)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    assert sorted(fetches) == ["run/step-20/r0.pt", "run/step-20/sub/r1.pt"]


@pytest.mark.parametrize("damage", [b"0" * 2_999_999 + b"!", b"0" * 100, b""])
def test_what_does_not_have_its_checksum_is_never_there(store: ObjectStore, damage: bytes, tmp_path: Path) -> None:
    store.put("run/step-20/r0.pt", damage, **{objects.CHECKSUM: f"crc32:{zlib.crc32(CONTENT['r0.pt']):08x}"})
    with pytest.raises(ObjectStoreError, match="checksum"):
        objects.fetch(ADDRESS)
    assert list(tmp_path.rglob("r0.pt")) == []


def test_what_is_missing_is_not_there_and_a_store_that_is_silent_is_an_error(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert is_there(ADDRESS)
    assert is_there(f"{ADDRESS}/r0.pt")
    assert not is_there(f"s3://{BUCKET}/run/step-30")
    assert not is_there(f"s3://{BUCKET}/run/step-2"), "that of step 20 is another one"
    with pytest.raises(FileNotFoundError):
        objects.fetch(ADDRESS, ["r7.pt"])
    with pytest.raises(FileNotFoundError):
        objects.fetch(f"s3://{BUCKET}/run/step-30")
    with pytest.raises(ObjectStoreError, match="bucket"):
        objects.fetch("s3://another/run")
    with pytest.raises(ObjectStoreError, match="no name"):
        objects.fetch(ADDRESS, ["../../x"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(ObjectStoreError):
        is_there(ADDRESS)


def test_a_rank_gets_the_path_of_what_was_fetched_and_reports_what_is_damaged(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Runs through a real agent."""
    rank = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURMD_NODENAME": "agent"}
    for name, value in {**rank, "UNDERSTUDY_SOCKET": str(tmp_path / "%n.sock")}.items():
        monkeypatch.setenv(name, value)
    with FakeControlPlane() as plane, running_agent(agent_config(tmp_path, plane.url)):
        plane.looks, plane.restore_files, plane.restore_points[7, 0] = True, ["sub/r1.pt"], (20, ADDRESS)
        monitor = Monitor()
        with monitor.checkpoints.restore() as point:
            assert (point.step, content(point.path)) == (20, {"sub/r1.pt": CONTENT["sub/r1.pt"]})
        store.put("run/step-20/r0.pt", b"damaged", **{objects.CHECKSUM: "crc32:00000000"})
        monitor.close()
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        plane.looks, plane.restore_files, plane.restore_points[7, 1] = False, ["r0.pt"], (20, ADDRESS)
        monitor = Monitor()
        with pytest.raises(RestorePointUnknownError, match="was not fetched"):
            monitor.restore_point()
        monitor.close()
        reports = [fact for fact in plane.facts if isinstance(fact, RestoreReport)]
    assert [(one.path, one.outcome) for one in reports] == [(ADDRESS, "seen"), (ADDRESS, "failed")]


def test_without_botocore_the_cause_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(ObjectStoreError, match="slurm-understudy-hook\\[s3\\]"):
        fetched(RestorePoint(20, ADDRESS), {})


def test_the_hook_imports_nothing_of_it_where_no_checkpoint_is_in_a_store() -> None:
    code = "import sys; import understudy.monitor; print(*(one for one in sys.modules if 'boto' in one))"
    path = {"PYTHONPATH": str(REPOSITORY / "agents"), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
