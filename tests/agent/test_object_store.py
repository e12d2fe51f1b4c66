"""Checkpoints in an object store, with a real server: copied, resumed, read back, deleted, never mistaken."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import REPOSITORY
from tests.object_store import BUCKET, ObjectStore
from understudy_agent.files import object_store as module
from understudy_agent.files.carry_out import carry_out
from understudy_agent.files.tasks import PROGRAM

pytestmark = pytest.mark.integration

PART = 5 << 20
"""S3's least."""

OWNER = 65534
"""Any but root."""

BIG = 2 * PART + 1000


@pytest.fixture
def store(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setattr(module, "PART_BYTES", PART)
    return object_store


class Saved:
    """A checkpoint of a small file, one of several parts, and one without a checksum."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "step-20"
        self.path.mkdir()
        self.address = f"s3://{BUCKET}/run/step-20"
        self.content = {"r0.pt": b"small" * 100, "sub/r1.pt": bytes(range(251)) * (BIG // 251 + 1), "plain": b"x" * 9}
        self.announced: list[dict[str, Any]] = []
        for name, data in self.content.items():
            (self.path / name).parent.mkdir(exist_ok=True)
            (self.path / name).write_bytes(data)
            checksum = f"crc32:{zlib.crc32(data):08x}" if name != "plain" else ""
            self.announced.append({"file": name, "size_bytes": len(data), "checksum": checksum, "at": time.time()})

    def task(self, kind: str, path: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "path": path, "files": self.announced, "bytes_per_second": 1e12, **more}

    def copy(self) -> dict[str, str]:
        return carry_out(self.task("copy", str(self.path), copy_to=self.address))

    def read(self, whole: bool = True) -> dict[str, str]:
        return carry_out(self.task("read", self.address, whole=whole, look_for_nan=False))

    def delete(self, only_look: bool = False) -> dict[str, str]:
        return carry_out(self.task("delete", self.address, only_look=only_look))

    @property
    def expected(self) -> dict[str, bytes]:
        return {f"run/step-20/{name}": data for name, data in self.content.items()}


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path)


def test_what_was_written_is_copied_whole_and_read_back(store: ObjectStore, saved: Saved) -> None:
    assert saved.read()["outcome"] == "lost"
    assert saved.copy() == {"outcome": "copied", "why": ""}
    assert store.content() == saved.expected
    assert saved.read(whole=False)["outcome"] == "sampled"
    assert saved.read()["outcome"] == "read", "one file has no checksum"
    saved.announced = saved.announced[:2]
    assert saved.read()["outcome"] == "verified"


def test_an_upload_that_was_broken_off_goes_on_with_the_part_that_is_missing(
    store: ObjectStore, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    stop_at = 2

    class Client:
        """Sends no more than the first part, as a process that is ended then."""

        def __init__(self) -> None:
            self._client = made()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._client, name)

        def upload_part(self, **fields: Any) -> Any:
            if fields["PartNumber"] == stop_at:
                raise KeyboardInterrupt
            sent.append(fields["PartNumber"])
            return self._client.upload_part(**fields)

    made = module._client
    monkeypatch.setattr(module, "_client", Client)
    with pytest.raises(KeyboardInterrupt):
        saved.copy()
    assert "run/step-20/sub/r1.pt" not in store.content(), "half of it is not there"
    stop_at = 0
    assert saved.copy()["outcome"] == "copied"
    assert sent == [1, 2, 3], "the first part is not sent twice"
    assert store.content() == saved.expected
    assert not store.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads")


def test_an_upload_that_was_begun_for_another_content_is_not_gone_on_with(store: ObjectStore, saved: Saved) -> None:
    client, key = store.client(), "run/step-20/sub/r1.pt"
    old = client.create_multipart_upload(Bucket=BUCKET, Key=key, Metadata={module.CHECKSUM: "crc32:00000000"})
    client.upload_part(Bucket=BUCKET, Key=key, UploadId=old["UploadId"], PartNumber=1, Body=b"o" * PART)
    assert saved.copy()["outcome"] == "copied"
    assert store.content() == saved.expected
    saved.announced = saved.announced[:2]
    assert saved.read()["outcome"] == "verified"


@pytest.mark.parametrize("name", ["r0.pt", "sub/r1.pt"])
def test_what_is_damaged_is_never_there_as_a_copy(store: ObjectStore, saved: Saved, name: str) -> None:
    with (saved.path / name).open("r+b") as file:
        file.seek(7)
        file.write(b"!")
    assert saved.copy()["outcome"] == "bad"
    assert f"run/step-20/{name}" not in store.content()
    assert not store.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads"), "nothing of it is paid for"


def test_what_is_not_what_was_announced_is_bad(store: ObjectStore, saved: Saved) -> None:
    saved.copy()
    good = {"understudy-checksum": saved.announced[0]["checksum"]}
    for data, metadata, outcome in (
        (b"small" * 99, good, "bad"),
        (b"SMALL" * 100, good, "bad"),
        (b"small" * 100, {}, "bad"),
    ):
        store.put("run/step-20/r0.pt", data, **metadata)
        assert saved.read()["outcome"] == outcome
    store.client().delete_object(Bucket=BUCKET, Key="run/step-20/r0.pt")
    assert saved.read()["outcome"] == "lost"


def test_what_is_pinned_or_not_what_was_announced_is_not_deleted(store: ObjectStore, saved: Saved) -> None:
    saved.copy()
    store.put("run/step-20/.keep", b"")
    assert saved.delete()["outcome"] == "unseen"
    store.client().delete_object(Bucket=BUCKET, Key="run/step-20/.keep")
    store.put("run/step-20/r0.pt", b"another")
    assert saved.delete()["outcome"] == "suspect"
    assert len(store.content()) == len(saved.expected)
    store.put("run/step-20/notes", b"of a person")
    saved.copy()
    assert saved.delete(only_look=True)["outcome"] == "deletable"
    assert saved.delete()["outcome"] == "deleted"
    assert store.content() == {"run/step-20/notes": b"of a person"}


def test_where_the_store_does_not_answer_nothing_is_known(
    store: ObjectStore, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved.address = "s3://another/run/step-20"
    assert saved.read()["outcome"] == "unseen", "no such bucket"
    saved.address = "s3://runs"
    assert saved.read()["outcome"] == "unseen"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    saved.address = f"s3://{BUCKET}/run/step-20"
    assert saved.copy()["outcome"] == "unseen"


@pytest.fixture
def public() -> Iterator[Path]:
    """Other users may look into it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an agent has")
def test_no_program_of_a_users_configuration_is_started(store: ObjectStore, public: Path) -> None:
    """The agent starts the process with the user's rights and within its limit of memory."""
    saved = Saved(public)
    config = Path(store.environment["AWS_CONFIG_FILE"]).read_text()
    (public / "config").write_text(config)
    (public / "starts").write_text(f"{config}credential_process = /usr/bin/touch {public / 'started'}\n")
    (public / "credentials").write_text(Path(store.environment["AWS_SHARED_CREDENTIALS_FILE"]).read_text())
    task = json.dumps(saved.task("copy", str(saved.path), copy_to=saved.address))

    def run(**files: str) -> dict[str, str]:
        return as_owner(task, PROGRAM, {name: str(public / file) for name, file in files.items()})

    assert "Resource temporarily unavailable" in run(AWS_CONFIG_FILE="starts")["why"]
    assert not (public / "started").exists()
    assert run(AWS_CONFIG_FILE="config", AWS_SHARED_CREDENTIALS_FILE="credentials") == {"outcome": "copied", "why": ""}
    assert store.content() == saved.expected


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an agent has")
def test_users_need_not_be_able_to_read_the_agent_s_python(store: ObjectStore, public: Path, tmp_path: Path) -> None:
    saved = Saved(public)
    hidden = tmp_path / "packages"
    hidden.mkdir(mode=0o700)
    own = [REPOSITORY / "agents" / name for name in ("understudy_agent", "understudy_wire")]
    for package in (*site_packages().iterdir(), *own):
        (hidden / package.name).symlink_to(package)
    paths = f"[{str(hidden)!r}, *(one for one in sys.path if one.startswith({sys.base_prefix!r}))]"
    program = f"import sys; sys.path[:] = {paths}; from understudy_agent.files.carry_out import main; main()"
    files = {}
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        files[name] = str(public / name)
        (public / name).write_text(Path(store.environment[name]).read_text())
    task = json.dumps(saved.task("copy", str(saved.path), copy_to=saved.address))
    assert as_owner(task, program, files) == {"outcome": "copied", "why": ""}
    assert store.content() == saved.expected


def as_owner(task: str, program: str, environment: dict[str, str]) -> dict[str, str]:
    command = [sys.executable, "-I", "-c", program, "100", str(OWNER), str(OWNER)]
    environment = {**environment, "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(command, input=task, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def site_packages() -> Path:
    spec = importlib.util.find_spec("botocore")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parents[1]
