"""`monitor.checkpoints` and its adapters, with a real agent, real ranks and the real libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from tests.hook.training_site import TrainingSite, shards
from understudy import Monitor
from understudy.file_system import tier_of
from understudy_agent.config import Config
from understudy_wire.facts import CheckpointDeleted, CheckpointShard, ShardFile

pytestmark = pytest.mark.integration


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as plane:
        yield plane


@pytest.fixture
def config(tmp_path: Path, plane: FakeControlPlane) -> Config:
    return agent_config(tmp_path, plane.url)


BY_HAND = """
import os, sys
from pathlib import Path
from understudy import Monitor

folder = Path(sys.argv[1])
monitor = Monitor()
assert monitor._link.connected.wait(30)
rank = int(os.environ["RANK"])
for step in (10, 20, 30, 40):
    path = folder / f"step-{step}"
    path.mkdir(exist_ok=True)
    copy = (f"/copies/../shared/{step}", f"s3://runs/{step}") if step == 20 else ""
    try:
        with monitor.checkpoints.begin(step, path, tier="shared" if step == 20 else "", copy_to=copy) as save:
            if rank == 0:
                (path / "model").write_bytes(b"12345")
                (path / "optimizer").write_bytes(b"123")
                save.shard("model", "crc32:cbf53a1c")
                save.shard("optimizer")
            else:
                save.none()
            if step == 30:
                raise OSError("no space left on device")
    except OSError:
        assert step == 30
    if step == 40 and rank == 0:
        assert monitor.checkpoints.pinned == {str(folder / "step-20"), str(folder / "step-40")}
        monitor.checkpoints.deleted(10, folder / "step-10")
monitor.close()
"""


@pytest.mark.parametrize(
    ("named", "by_environment", "expected"),
    [
        ("", "", ("", "")),
        ("/shared/7", "", ("/shared/7", "")),
        ("", "/shared/{step},s3://runs/{step}", ("/shared/7", "s3://runs/7")),
        ("", "s3://runs/{step}", ("s3://runs/7", "")),
        (("/shared/7", "s3://runs/7"), "/other/{step}", ("/shared/7", "s3://runs/7")),
    ],
)
def test_where_it_is_copied_the_code_says_or_else_the_environment(
    named: str | tuple[str, str], by_environment: str, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDERSTUDY_COPY_TO", by_environment)
    save = Monitor().checkpoints.begin(7, "/local/7", copy_to=named)
    assert tuple(save._named.get(name, "") for name in ("copy_to", "then_copy_to")) == expected


def test_a_rank_announces_all_its_files_together_and_nothing_of_a_save_that_failed(
    tmp_path: Path, plane: FakeControlPlane, config: Config
) -> None:
    site = TrainingSite(tmp_path)
    with running_agent(config):
        site.train(BY_HAND, 2, config.socket)
    for step in (10, 20, 40):
        first, second = shards(plane, 0, step)
        assert (first.file, first.size_bytes, first.checksum) == ("model", 5, "crc32:cbf53a1c")
        assert first.more_files == (ShardFile("optimizer", 3),)
        assert (second.file, second.more_files) == ("", ())
        by_itself = tier_of(site.checkpoints) or "unknown"
        assert first.copy_to == second.copy_to == ("/shared/20" if step == 20 else "")
        assert first.then_copy_to == second.then_copy_to == ("s3://runs/20" if step == 20 else "")
        assert first.tier == second.tier == ("shared" if step == 20 else by_itself)
    assert shards(plane, 0, 30) == []
    [deleted] = [fact for fact in plane.facts if isinstance(fact, CheckpointDeleted)]
    assert (deleted.step, deleted.path) == (10, str(site.checkpoints / "step-10"))


TORCH = """
import os, sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from understudy import Monitor
from safetensors.torch import load_file
from understudy import safetensors
from understudy.dcp import UnderstudyWriter
from understudy.torch_save import save

folder = sys.argv[1]
monitor = Monitor()
dist.init_process_group("gloo")
rank = dist.get_rank()
state = {f"own {rank}": torch.full((1000,), float(rank)), "same": torch.ones(10)}
save(monitor, state, 1, f"{folder}/one", f"rank-{rank}.pt")
dcp.save(state, storage_writer=UnderstudyWriter(monitor, 2, f"{folder}/two"))
dcp.async_save(state, storage_writer=UnderstudyWriter(monitor, 3, f"{folder}/three")).result()


class Broken(UnderstudyWriter):
    def write_data(self, plan, planner):
        if rank == 1:
            raise OSError("no space left on device")
        return super().write_data(plan, planner)


try:
    dcp.save(state, storage_writer=Broken(monitor, 4, f"{folder}/four"))
except dcp.api.CheckpointException:
    pass
assert torch.load(f"{folder}/one/rank-{rank}.pt")[f"own {rank}"][0] == rank
safetensors.save(monitor, state, 5, f"{folder}/five", f"rank-{rank}.safetensors", layout="fixed", tier="shared")
assert load_file(f"{folder}/five/rank-{rank}.safetensors")[f"own {rank}"][0] == rank

# the disk of rank 0 is full: it keeps what was there, and goes on
os.makedirs(f"{folder}/six", exist_ok=True)
if rank == 0:
    for step in (6, 7):
        os.symlink("/dev/full", f"{folder}/six/rank-0.{step}.partial")
save(monitor, {"much": torch.zeros(1_000_000)}, 6, f"{folder}/six", f"rank-{rank}.6")
safetensors.save(monitor, {"little": torch.zeros(10)}, 7, f"{folder}/six", f"rank-{rank}.7")
if rank == 0:
    assert not [name for name in os.listdir(f"{folder}/six") if name.startswith("rank-0")]
for name in ("two", "three"):
    loaded = {key: torch.zeros_like(value) for key, value in state.items()}
    dcp.load(loaded, checkpoint_id=f"{folder}/{name}")
    assert loaded[f"own {rank}"][0] == rank
monitor.close()
dist.destroy_process_group()
"""


def test_torch_save_and_distributed_checkpoints_are_announced_by_themselves(
    tmp_path: Path, plane: FakeControlPlane, config: Config
) -> None:
    site = TrainingSite(tmp_path)
    with running_agent(config):
        site.train(TORCH, 2, config.socket)
    one = shards(plane, 0, 1)
    assert [(shard.file, shard.checksum != "") for shard in one] == [("rank-0.pt", True), ("rank-1.pt", True)]
    for step, name in ((2, "two"), (3, "three")):
        first, second = shards(plane, 0, step)
        path = site.checkpoints / name
        assert files(first) == {"__0_0.distcp": size(path, "__0_0.distcp"), ".metadata": size(path, ".metadata")}
        assert files(second) == {"__1_0.distcp": size(path, "__1_0.distcp")}
    assert {shard.rank for shard in shards(plane, 0, 4)} < {0}, "not complete: rank 1 did not write"
    five = shards(plane, 0, 5)
    assert [(one.file, one.checksum != "", one.layout, one.tier) for one in five] == [
        (f"rank-{rank}.safetensors", True, "fixed", "shared") for rank in range(2)
    ]
    for step in (6, 7):
        assert [shard.rank for shard in shards(plane, 0, step)] == [1], "not complete: rank 0 could not write"


def files(shard: CheckpointShard) -> dict[str, int]:
    return {shard.file: shard.size_bytes, **{more.file: more.size_bytes for more in shard.more_files}}


def size(folder: Path, name: str) -> int:
    return (folder / name).stat().st_size
