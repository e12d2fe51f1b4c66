"""Files that are summed while they are written."""

from __future__ import annotations

import pickle
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from understudy import SummedFile, checksum


def test_the_sum_is_that_of_the_file(tmp_path: Path) -> None:
    with SummedFile(tmp_path / "shard") as file:
        pickle.dump(list(range(100_000)), file)
        file.write(memoryview(b"more"))
    content = (tmp_path / "shard").read_bytes()
    assert content.endswith(b"more")
    assert file.checksum == f"crc32:{zlib.crc32(content):08x}"


def test_a_file_that_was_not_written_in_order_has_no_sum(tmp_path: Path) -> None:
    for change in ("seek", "truncate"):
        with SummedFile(tmp_path / change) as file:
            file.write(b"weights")
            getattr(file, change)(0)
            file.write(b"W")
        assert file.checksum == ""
    with SummedFile(tmp_path / "shard") as file:
        file.write(b"weights")
        file.seek(0)
        file.seek(0, 2)
        file.write(b"!")
    assert file.checksum, "it was written at its end"


def test_the_faster_sum_is_taken_where_its_package_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    xxh3 = SimpleNamespace(update=seen.append, hexdigest=lambda: "00ff")
    monkeypatch.setattr(checksum, "xxhash", SimpleNamespace(xxh3_128=lambda: xxh3))
    with SummedFile(tmp_path / "shard") as file:
        file.write(b"weights")
    assert (file.checksum, seen) == ("xxh3:00ff", [b"weights"])
