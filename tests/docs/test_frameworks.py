"""The script of each page in docs/frameworks does what the page says, with a real agent and real ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from tests.hook.training_site import JOB, TrainingSite, shards, steps, windows
from understudy_agent.config import Config
from understudy_wire.facts import Anomaly, AnomalyKind, CheckpointShard, Layout

pytestmark = pytest.mark.integration

PAGES = Path(__file__).resolve().parents[2] / "docs" / "frameworks"


def script_of(page: str, heading: str = "## The whole script") -> str:
    section = (PAGES / f"{page}.md").read_text().partition(f"{heading}\n")[2].partition("\n## ")[0]
    [script] = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return str(script)


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as plane:
        yield plane


@pytest.fixture
def config(tmp_path: Path, plane: FakeControlPlane) -> Config:
    return agent_config(tmp_path, plane.url)


@pytest.fixture
def site(tmp_path: Path) -> TrainingSite:
    return TrainingSite(tmp_path)


class Page(NamedTuple):
    name: str
    world: int
    total: int
    every: int
    """Steps between checkpoints."""


SCRIPTS = [
    Page("plain", 1, 60, 20),
    Page("ddp", 2, 40, 20),
    Page("lightning", 2, 20, 10),
    Page("huggingface", 2, 20, 10),
]


WITHOUT_SCRIPT = {"deepspeed", "megatron", "dcp", "torch-save", "safetensors"}


def test_every_page_has_a_script_that_is_run() -> None:
    """Those of libraries that need GPUs are in tests/hook/test_adapters.py, with their documented calls; formats in
    tests/hook/test_checkpoints.py.
    """
    with_script = [path.stem for path in PAGES.glob("*.md") if "## The whole script" in path.read_text()]
    assert sorted(page.name for page in SCRIPTS) == sorted(with_script)
    assert {path.stem for path in PAGES.glob("*.md")} - {*with_script} == WITHOUT_SCRIPT


@pytest.mark.parametrize("page", SCRIPTS, ids=lambda page: page.name)
def test_a_script_is_timed_its_checkpoints_are_announced_and_it_continues_from_the_restore_point(
    page: Page, plane: FakeControlPlane, config: Config, site: TrainingSite
) -> None:
    name, world, total, every = page
    script = script_of(name)
    ranks = range(world)
    plane.restore_points[JOB, 0] = (0, "")
    with running_agent(config):
        site.train(script, world, config.socket)
        plane.wait_for(lambda plane: all(steps(plane, 0, rank) == list(range(total)) for rank in ranks))
        announced = shards(plane, 0, every)
        assert [shard.rank for shard in announced] == list(ranks)
        assert len({shard.path for shard in announced}) == 1
        assert announced[0].size_bytes > 0
        assert Path(announced[0].path).is_relative_to(site.checkpoints)
        assert [shard.rank for shard in shards(plane, 0, total)] == list(ranks)
        if world > 1:
            names = {window.collective.name for window in windows(plane, 0) if window.collective}
            assert names & {"ddp_gradients", "mean_loss"}

        plane.restore_points[JOB, 1] = (every, announced[0].path)
        site.train(script, world, config.socket, attempt=1)
        plane.wait_for(lambda plane: all(steps(plane, 1, rank) == list(range(every, total)) for rank in ranks))


@pytest.mark.parametrize(
    "page", ["plain", *(pytest.param(one, marks=pytest.mark.long) for one in ("lightning", "huggingface"))]
)
def test_a_script_runs_on_a_workstation_and_says_once_that_nothing_is_reported(page: str, site: TrainingSite) -> None:
    log = site.train_alone(script_of(page))
    assert log.count("understudy:") == 1
    assert "nothing is reported" in log


@pytest.mark.long
def test_lightning_under_its_older_name_works_too(plane: FakeControlPlane, config: Config, site: TrainingSite) -> None:
    script = script_of("lightning").replace("lightning.pytorch", "pytorch_lightning")
    assert "pytorch_lightning" in script
    plane.restore_points[JOB, 0] = (0, "")
    with running_agent(config):
        site.train(script, 1, config.socket)
        plane.wait_for(lambda plane: steps(plane, 0, 0) == list(range(20)))
    assert len(shards(plane, 0, 20)) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "before", "after"),
    [
        ("lightning", "max_steps=20", "max_steps=20, accumulate_grad_batches=2"),
        ("huggingface", "max_steps=20", "max_steps=20, gradient_accumulation_steps=2"),
    ],
)
def test_accumulated_batches_are_one_step(
    page: str, before: str, after: str, plane: FakeControlPlane, config: Config, site: TrainingSite
) -> None:
    script = script_of(page).replace(before, after)
    assert after in script
    plane.restore_points[JOB, 0] = (0, "")
    with running_agent(config):
        site.train(script, 1, config.socket)
        plane.wait_for(lambda plane: steps(plane, 0, 0) == list(range(20)))
    assert [len(shards(plane, 0, step)) for step in (10, 20)] == [1, 1]


@pytest.mark.long
def test_what_lightning_cannot_safely_go_on_from_is_not_announced(
    plane: FakeControlPlane, config: Config, site: TrainingSite
) -> None:
    """Weights alone, and files that are overwritten."""
    kept = "ModelCheckpoint(sys.argv[1], every_n_train_steps=10, save_top_k=-1)"
    weights = "ModelCheckpoint(sys.argv[1], 'weights-{step}', every_n_train_steps=20, save_weights_only=True)"
    same = "ModelCheckpoint(sys.argv[1], 'same', every_n_train_steps=5, enable_version_counter=False, save_last=True)"
    script = script_of("lightning").replace(kept, f"{kept}, {weights}, {same}")
    plane.restore_points[JOB, 0] = (0, "")
    with running_agent(config):
        site.train(script, 1, config.socket)
        plane.wait_for(lambda plane: steps(plane, 0, 0) == list(range(20)))
    written = {path.name for path in site.checkpoints.iterdir()}
    announced = {Path(fact.path).name for fact in plane.facts if isinstance(fact, CheckpointShard)}
    assert {"last.ckpt", "same.ckpt", "weights-step=20.ckpt"} <= written
    assert announced == {"epoch=0-step=10.ckpt", "epoch=0-step=20.ckpt", "same.ckpt"}
    assert len([fact for fact in plane.facts if isinstance(fact, CheckpointShard) and "same" in fact.path]) == 1


@pytest.mark.long
def test_a_checkpoint_that_lightning_writes_in_the_background_is_announced_when_it_is_written(
    plane: FakeControlPlane, config: Config, site: TrainingSite
) -> None:
    script = script_of("lightning").replace("logger=False,", "logger=False, plugins=[AsyncCheckpointIO()],")
    plane.restore_points[JOB, 0] = (0, "")
    with running_agent(config):
        site.train(f"from lightning.pytorch.plugins import AsyncCheckpointIO\n{script}", 2, config.socket)
        plane.wait_for(lambda plane: steps(plane, 0, 0) == list(range(20)))
    for step in (10, 20):
        first, second = shards(plane, 0, step)
        assert (first.file, first.size_bytes) == (".", Path(first.path).stat().st_size)
        assert (second.path, second.file) == (first.path, "")


FULLY_SHARDED = """
import lightning.pytorch
from lightning.pytorch.strategies import ModelParallelStrategy

try:
    lightning.pytorch.Trainer(strategy="fsdp", accelerator="cpu")
except ValueError as refused:
    assert "requires a GPU" in str(refused)
else:
    raise AssertionError("FSDPStrategy runs here: test it as well")

sharded = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
"""
CONFIGURED = """
    def configure_model(self):
        torch.distributed.fsdp.fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

    def training_step("""
"""FSDPStrategy is refused without GPUs, by Lightning and by PyTorch. It writes what ModelParallelStrategy does."""


@pytest.mark.long
def test_each_rank_of_lightnings_fully_sharded_strategy_announces_what_it_wrote(
    plane: FakeControlPlane, config: Config, site: TrainingSite
) -> None:
    script = FULLY_SHARDED + script_of("lightning").replace('strategy="ddp"', "strategy=sharded")
    script = script.replace("\n    def training_step(", CONFIGURED)
    plane.restore_points[JOB, 0] = (0, "")
    with running_agent(config):
        site.train(script, 2, config.socket)
        plane.wait_for(lambda plane: all(steps(plane, 0, rank) == list(range(20)) for rank in range(2)))
        announced = {shard.rank: shard for shard in shards(plane, 0, 10)}
        assert {shard.path for shard in announced.values()} == {str(site.checkpoints / "epoch=0-step=10.ckpt")}
        files = {rank: {one.file, *(more.file for more in one.more_files)} for rank, one in announced.items()}
        assert {"__1_0.distcp"} == files[1] and {"__0_0.distcp", ".metadata", "meta.pt"} == files[0]
        assert {one.layout for one in announced.values()} == {Layout.RESHARDABLE}
        plane.restore_points[JOB, 1] = (10, announced[0].path)
        site.train(script, 2, config.socket, attempt=1)
        plane.wait_for(lambda plane: all(steps(plane, 1, rank) == list(range(10, 20)) for rank in range(2)))


def test_the_nan_of_the_trainer_is_reported(plane: FakeControlPlane, config: Config, site: TrainingSite) -> None:
    script = script_of("huggingface").replace(
        "max_steps=20", "max_steps=20, logging_steps=1, logging_nan_inf_filter=False"
    )
    spoil = (
        "from transformers import TrainerCallback\n"
        "class Spoil(TrainerCallback):\n"
        "    def on_step_end(self, args, state, control, model=None, **kwargs):\n"
        "        if state.global_step == 12:\n"
        "            next(model.parameters()).data.fill_(float('nan'))\n"
    )
    plane.restore_points[JOB, 0] = (0, "")
    with running_agent(config):
        site.train(spoil + script.replace("callbacks=[callback]", "callbacks=[callback, Spoil()]"), 1, config.socket)
        plane.wait_for(lambda plane: any(isinstance(fact, Anomaly) for fact in plane.facts))
    seen = {fact.kind: fact.step for fact in plane.facts if isinstance(fact, Anomaly)}
    assert seen[AnomalyKind.LOSS_NAN] == 12


def test_callbacks_do_not_start_from_the_beginning_where_it_is_not_known(
    plane: FakeControlPlane, config: Config, site: TrainingSite
) -> None:
    plane.restore_unknown = "none is good"
    script = (
        "from understudy import RestorePointUnknownError\n"
        "from understudy.{0} import UnderstudyCallback\n"
        "callback = UnderstudyCallback()\n"
        "assert callback.{1}(otherwise='mine') == 'mine'\n"
        "assert callback.{1}(otherwise=None) is None\n"
        "try:\n"
        "    callback.{1}()\n"
        "except RestorePointUnknownError as error:\n"
        "    assert 'none is good' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    with running_agent(config):
        for page, method in (("lightning", "ckpt_path"), ("huggingface", "resume_from_checkpoint")):
            site.train(script.format(page, method), 1, config.socket)
