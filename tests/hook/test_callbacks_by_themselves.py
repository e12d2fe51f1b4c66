"""What the callbacks of the frameworks find out by themselves, through the agent to the report: which GPU a rank uses,
and how long it waits for data.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from msgspec.structs import replace

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from tests.hook.training_site import JOB, LIGHTNING_MODULE, TrainingSite
from tests.testbed.fake_nvml import FakeGpus, build, h100_node
from understudy_agent.config import NvmlConfig
from understudy_wire.ranks import RankWindow

pytestmark = [pytest.mark.integration, pytest.mark.patient, pytest.mark.long]

SLOW_DATA = """
import time


class Slow(list):
    def __getitem__(self, index):
        time.sleep(SECONDS)
        return super().__getitem__(index)


"""

TRAINER = """
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from understudy.huggingface import UnderstudyCallback

tokens = torch.randint(64, (64, 8))
Trainer(
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=8, n_layer=1, n_head=1)),
    TrainingArguments(
        sys.argv[1], max_steps=1000000, save_strategy="no", per_device_train_batch_size=1, use_cpu=True,
        report_to=[], disable_tqdm=True, logging_strategy="no",
    ),
    train_dataset=Slow([{"input_ids": row, "labels": row} for row in tokens]),
    callbacks=[UnderstudyCallback()],
).train()
"""

LIGHTNING = f"""
{LIGHTNING_MODULE}


Trainer(
    max_steps=1000000, callbacks=[UnderstudyCallback()], accelerator="cpu", devices=1, logger=False,
    enable_progress_bar=False, enable_checkpointing=False,
).fit(Sum(), torch.utils.data.DataLoader(Slow(torch.randn(100000, 4)), batch_size=1))
"""


DATA_SECONDS = 0.2


def script_of(framework: str, data_seconds: float = 0.0) -> str:
    training = {"huggingface": TRAINER, "lightning": LIGHTNING}[framework]
    return SLOW_DATA.replace("SECONDS", str(data_seconds)) + training


def finished(plane: FakeControlPlane) -> list[RankWindow]:
    ranks = [window for report in list(plane.reports) for window in report.ranks]
    return [window for window in ranks if window.job_id == JOB and window.self_seconds]


@pytest.mark.parametrize("framework", ["huggingface", "lightning"])
def test_a_callback_measures_how_long_each_step_waits_for_data(framework: str, tmp_path: Path) -> None:
    with FakeControlPlane() as plane:
        config = agent_config(tmp_path, plane.url)
        script = script_of(framework, DATA_SECONDS)
        with running_agent(config), TrainingSite(tmp_path).training(script, 1, config.socket):
            plane.wait_for(lambda plane: sum(len(one.data_seconds) for one in finished(plane)) >= 20, 240)
        waited = [seconds for window in finished(plane) for seconds in window.data_seconds]
        own = [seconds for window in finished(plane) for seconds in window.self_seconds]
    assert median(waited) > 0.9 * DATA_SECONDS
    assert median(own) < DATA_SECONDS, "waiting for data is none of a rank's own time"


@pytest.mark.parametrize("framework", ["huggingface", "lightning"])
def test_a_callback_names_its_gpu_and_the_agent_knows_it_by_nvml(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA counts within the job, where Slurm constrains devices: only the UUID means the same everywhere."""
    library, state = build(tmp_path / "lib"), tmp_path / "gpus"
    gpus = h100_node("n1")
    FakeGpus(state).write(gpus)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    monkeypatch.setenv("FAKE_NVML_STATE", str(state))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus[5].uuid)
    with FakeControlPlane() as plane:
        config = replace(agent_config(tmp_path, plane.url), nvml=NvmlConfig())
        site = TrainingSite(tmp_path)
        with running_agent(config), site.training(script_of(framework), 1, config.socket):
            plane.wait_for(lambda plane: any(window.gpu_index is not None for window in finished(plane)), 240)
        report = next(report for report in plane.reports if any(one.gpu_index is not None for one in report.ranks))
    (index,) = {window.gpu_index for window in report.ranks}
    assert [gpu.uuid for gpu in report.gpus if gpu.index == index] == [gpus[5].uuid]
