"""What writes checkpoints for frameworks: when, what of it is announced, and by whom. DeepSpeed and Megatron by their
documented calls.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from understudy import Monitor
from understudy.checkpoints import Checkpoints
from understudy.deepspeed import restore
from understudy.deepspeed import save as save_deepspeed
from understudy.megatron import save as save_megatron
from understudy.restore import RestorePoint
from understudy.shard_files import files_of


class Announced(Monitor):
    """Keeps what would be announced."""

    def __init__(self, step: int = 0, path: str = "") -> None:
        self.point, self.failed = RestorePoint(step, path), 0
        self.shards: list[tuple[int, str, list[str], str]] = []
        self.checkpoints = Checkpoints(self)

    def _announce(self, step: Any, path: Any, files: Any, more: Any = {}) -> None:  # noqa: B006
        names = [name for name, _ in files if name]
        self.shards.append((int(step), Path(path).name, names, str(more.get("layout", ""))))

    def restore_point(self, *_: object, **_options: object) -> Any:
        return self.point

    def restore_failed(self, _error: object = "") -> None:
        self.failed += 1


ZERO = [
    "mp_rank_00_model_states.pt",
    "mp_rank_01_model_states.pt",
    *(f"bf16_zero_pp_rank_{data}_mp_rank_{model:02d}_optim_states.pt" for data in range(2) for model in range(2)),
]


class Engine:
    """Stands for deepspeed.DeepSpeedEngine: two data-parallel ranks of two model-parallel ones."""

    mp_world_size = 2

    def __init__(self, rank: int = 0, found: bool = True) -> None:
        self.global_rank, self.found, self.loaded = rank, found, ("", "")

    def save_checkpoint(self, save_dir: str, tag: str | None = None, **_options: Any) -> bool:
        folder = Path(save_dir) / str(tag)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ZERO:
            (folder / name).write_bytes(b"1")
        (folder.parent / "latest").write_text(str(tag))
        return True

    def load_checkpoint(
        self, load_dir: str, tag: str | None = None, **_options: Any
    ) -> tuple[str | None, dict[str, Any]]:
        self.loaded = (load_dir, str(tag))
        return (f"{load_dir}/{tag}" if self.found else None), {}


def test_each_rank_of_deepspeed_announces_what_it_wrote(tmp_path: Path) -> None:
    monitors = [Announced() for _ in range(4)]
    for rank, monitor in enumerate(monitors):
        save_deepspeed(monitor, Engine(rank), 500, tmp_path, client_state={"step": 500})
    optimizer = ZERO[2:]
    assert [one.shards for one in monitors] == [
        [(500, "global_step500", sorted([ZERO[0], optimizer[0]]), "fixed")],
        [(500, "global_step500", sorted([ZERO[1], optimizer[1]]), "fixed")],
        [(500, "global_step500", [optimizer[2]], "fixed")],
        [(500, "global_step500", [optimizer[3]], "fixed")],
    ]


def test_deepspeed_restores_what_is_named_and_a_checkpoint_that_it_does_not_find_is_reported() -> None:
    engine = Engine()
    assert restore(Announced(500, "/c/global_step500"), engine) == 500
    assert engine.loaded == ("/c", "global_step500")
    fresh = Engine()
    assert (restore(Announced(), fresh), fresh.loaded) == (0, ("", ""))
    lost = Announced(500, "/c/global_step500")
    with pytest.raises(FileNotFoundError, match="global_step500"):
        restore(lost, Engine(found=False))
    assert lost.failed == 1


class AsyncRequest:
    """Stands for megatron.core.dist_checkpointing.strategies.async_utils.AsyncRequest."""

    def __init__(self) -> None:
        self.finalize_fns: list[Callable[[], None]] = []

    def add_finalize_fn(self, fn: Callable[[], None]) -> None:
        self.finalize_fns.append(fn)


def write_torch_dist(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in ("__0_0.distcp", "__0_1.distcp", "__1_0.distcp", ".metadata", "common.pt", "metadata.json"):
        (folder / name).write_bytes(b"1")


def test_megatrons_asynchronous_checkpoint_is_announced_when_it_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, monitor = tmp_path / "iter_0000500", Announced()
    monkeypatch.setenv("RANK", "0")
    request = save_megatron(monitor, 500, folder, AsyncRequest)
    assert monitor.shards == [], "its ranks are still writing"
    write_torch_dist(folder)
    for finalize in request.finalize_fns:
        finalize()
    names = [".metadata", "__0_0.distcp", "__0_1.distcp", "common.pt", "metadata.json"]
    assert monitor.shards == [(500, "iter_0000500", names, "reshardable")]
    monkeypatch.setenv("RANK", "1")
    other = Announced()
    save_megatron(other, 500, folder, lambda: None)
    assert other.shards == [(500, "iter_0000500", ["__1_0.distcp"], "reshardable")], "one that was written at once"


def test_a_checkpoint_that_megatron_cannot_write_is_not_announced(tmp_path: Path) -> None:
    monitor = Announced()

    def fail() -> None:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        save_megatron(monitor, 500, tmp_path, fail)
    assert monitor.shards == []


def test_files_that_are_still_being_written_belong_to_no_rank(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("model.safetensors", "rng_state_1.pth", "sub/__1_0.distcp", "optimizer.pt.partial"):
        (tmp_path / name).write_bytes(b"1")
    assert [files_of(tmp_path, rank) for rank in range(3)] == [
        ["model.safetensors"],
        ["rng_state_1.pth", "sub/__1_0.distcp"],
        [],
    ]


def test_a_save_that_was_begun_after_the_writing_reports_no_times() -> None:
    part = Announced().checkpoints.begin(5, "/c")
    part.clock.forget()
    assert part.clock.measured() == {}
