"""NaN in real checkpoints of torch.distributed.checkpoint is found without torch, and their pickles execute nothing."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
import tracemalloc
import zipfile
import zlib
from io import BytesIO
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from understudy_agent.files import distcp
from understudy_agent.files.carry_out import carry_out
from understudy_agent.files.tasks import PROGRAM

pytestmark = pytest.mark.integration

SAVES = """
import json, sys, warnings
import torch, torch.distributed.checkpoint as dcp
warnings.simplefilter("ignore")
for name, (kind, value, place) in json.loads(sys.argv[2]).items():
    numbers = torch.linspace(-1, 1, 300_000).to(getattr(torch, kind))
    if value is not None:
        numbers[place] = float(value)
    whole = torch.full((4, 4), -1, dtype=torch.int64)  # as floats they would be NaN
    state = {"model": {"odd": numbers, "w": torch.ones(3, 5), "view": numbers[2:5], "whole": whole}, "step": 7}
    state["empty"] = torch.zeros(0)
    if name == "beside":
        state = {"view": numbers[10:].clone()[5:9], "more": {"x": [1, 2], "y": numbers[10:]}}
    dcp.save(state, checkpoint_id=f"{sys.argv[1]}/{name}", no_dist=True)
"""
KINDS = ("float32", "float16", "bfloat16", "float64")
CHECKPOINTS: dict[str, tuple[str, float | None, int]] = {
    **{f"good {kind}": (kind, None, 0) for kind in KINDS},
    **{f"bad {kind}": (kind, nan, place) for kind, place in zip(KINDS, (0, 131_071, 150_000, 299_999), strict=True)},
    "infinite": ("float32", inf, 5),
    "integers": ("int32", None, 0),
    "other floats": ("float8_e4m3fn", None, 0),
    "beside": ("float32", nan, 5),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    subprocess.run([sys.executable, "-c", SAVES, str(folder), json.dumps(CHECKPOINTS)], check=True)
    return folder


def task(path: Path, summed: bool = True, **more: Any) -> dict[str, Any]:
    files = []
    for one in path.glob("*.distcp"):
        content = one.read_bytes()
        checksum = f"crc32:{zlib.crc32(content):08x}" if summed else ""
        files.append({"file": one.name, "size_bytes": len(content), "checksum": checksum, "at": time.time()})
    assert files
    asked = {"type": "read", "path": str(path), "files": files, "bytes_per_second": 1e12}
    return {**asked, "whole": True, "look_for_nan": True, **more}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_nan_in_a_tensor_makes_it_bad_and_nothing_else_does(saved: Path, name: str) -> None:
    found = carry_out(task(saved / name))
    if name.startswith("bad"):
        assert found["outcome"] == "bad"
        assert found["why"].endswith("__0_0.distcp: model.odd contains NaN")
    else:
        assert found == {"outcome": "verified", "why": ""}
    assert carry_out(task(saved / name, look_for_nan=False))["outcome"] == "verified"
    assert carry_out(task(saved / name, summed=False))["outcome"] == ("bad" if name.startswith("bad") else "read")


def test_all_tensors_of_numbers_are_looked_into(saved: Path) -> None:
    path = saved / "good bfloat16"
    (file,) = path.glob("*.distcp")
    listed = distcp.items((path / ".metadata").read_bytes())
    content = file.read_bytes()
    regions = [distcp.region(one, BytesIO(content[one.begin : one.begin + one.length])) for one in listed[file.name]]
    found = {one.name: (one.kind, one.end - one.begin) for one in regions if one is not None}
    assert found == {
        "model.odd": ("BF16", 600_000),
        "model.w": ("F32", 60),
        "model.view": ("BF16", 6),
        "empty": ("F32", 0),
    }
    assert {one.name for one in listed[file.name]} - set(found) == {"model.whole", "step"}


class Described:
    """Stands for the classes of torch's manifest."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


def test_a_manifest_is_read_in_a_few_times_its_own_size() -> None:
    """One of 62 MiB needed 980, and the process that reads it has 512."""
    chunks: dict[str, Described] = {}
    places: dict[Described, Described] = {}
    for number in range(20):
        parts = [Described(offsets=(rank * 128, 0), sizes=(128, 4096)) for rank in range(128)]
        chunks[f"w{number}"] = Described(size=(16384, 4096), chunks=parts)
        for rank in range(128):
            place = Described(relative_path=f"__{rank}_0.distcp", offset=number << 20, length=1 << 20)
            places[Described(fqn=f"w{number}", offset=(rank * 128, 0), index=None)] = place
    manifest = pickle.dumps(Described(state_dict_metadata=chunks, storage_data=places))
    tracemalloc.start()
    try:
        found = distcp.items(manifest)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == 128
    assert found["__7_0.distcp"] == [distcp.Item(f"w{number}", number << 20, 1 << 20) for number in range(20)]
    assert peak < 8 * len(manifest)


class Springs:
    """What a pickle makes is made by calling this."""

    def __init__(self, folder: Path) -> None:
        self.sprung = folder / "sprung"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.sprung}",)


def test_no_pickle_of_a_user_calls_anything(saved: Path, tmp_path: Path) -> None:
    """Neither the manifest nor what describes a tensor; by the process that the agent starts."""
    springs, content = Springs(tmp_path), BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(springs))
        archive.writestr("archive/data/0", b"\xff" * 64)
    assert distcp.region(distcp.Item("w", 0, len(content.getvalue())), content) is None
    assert distcp.items(pickle.dumps(springs)) == {}
    path = tmp_path / "step-20"
    path.mkdir()
    (path / "__0_0.distcp").write_bytes(content.getvalue())
    (path / ".metadata").write_bytes(pickle.dumps({"__0_0.distcp": springs}))
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM, "100"],
        input=json.dumps(task(path)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["outcome"] == "verified"
    assert not springs.sprung.exists()
    pickle.loads(pickle.dumps(springs))  # noqa: S301
    assert springs.sprung.exists(), "as torch.load would"


@pytest.mark.parametrize("damage", ["cut", "zeros", "flipped"])
def test_a_manifest_that_is_damaged_ends_no_process(saved: Path, tmp_path: Path, damage: str) -> None:
    good = (saved / "good float32" / ".metadata").read_bytes()
    for at in range(0, len(good), 7):
        bad = {"cut": good[:at], "zeros": good[:at] + b"\0" * 9 + good[at + 9 :]}.get(
            damage, good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :]
        )
        for one in distcp.items(bad).get("__0_0.distcp", []):
            distcp.region(one, BytesIO(bad))
