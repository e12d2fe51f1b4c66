"""`understudy checkpoints scan`, of what the frameworks that are installed here really write."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy_controlplane.cli.scanned_checkpoints import Scan

pytestmark = pytest.mark.integration

TRAINER = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

shape = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **shape))
batch = {"input_ids": torch.arange(8), "labels": torch.arange(8)}
plan = TrainingArguments(output_dir=".", max_steps=1, save_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
Trainer(model=model, args=plan, train_dataset=[batch] * 8).train()
"""
ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
accelerator.prepare(model, optimizer, schedule)
accelerator.save_state("checkpoint_1")
"""
LIGHTNING = """
import torch
from lightning import LightningModule, Trainer

class Sum(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.model(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

trainer = Trainer(max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False)
trainer.fit(Sum(), torch.utils.data.DataLoader(torch.randn(1, 4)))
"""
DISTRIBUTED = """
import os, sys
import torch, torch.distributed, torch.distributed.checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

child = os.fork()
met = "file://" + os.path.abspath("met")
torch.distributed.init_process_group("gloo", rank=int(child == 0), world_size=2, init_method=met)
parts = distribute_tensor(torch.randn(8, 4), init_device_mesh("cpu", (2,)), [Shard(0)])
torch.distributed.checkpoint.save({"weights": parts, "steps": 5}, checkpoint_id="step-1")
torch.distributed.checkpoint.save({"weights": torch.ones(3)}, checkpoint_id="step-2")
torch.distributed.destroy_process_group()
if child == 0:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def train(folder: Path, program: str) -> None:
    offline = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=folder,
        env=os.environ | offline,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def damaged(folder: Path) -> Iterator[str]:
    """Each file in turn is deleted, empty, cut in half, and cut by two bytes."""
    for path in [one for one in sorted(folder.rglob("*")) if one.is_file()]:
        content = path.read_bytes()
        half, cut = content[: len(content) // 2], content[:-2]
        for what, left in (("gone", None), ("empty", b""), ("half", half), ("cut", cut)):
            path.unlink() if left is None else path.write_bytes(left)
            yield f"{path.relative_to(folder)} {what}"
            path.write_bytes(content)


NOT_NEEDED = {
    "checkpoint-1/config.json": ("gone", "half", "cut"),
    "checkpoint-1/generation_config.json": ("gone", "half", "cut"),
    "checkpoint-1/rng_state.pth": ("gone",),
    "checkpoint-1/scheduler.pt": ("gone",),
    "checkpoint-1/training_args.bin": ("gone",),
    "checkpoint_1/scheduler.bin": ("gone",),
    "step-2/__1_0.distcp": ("gone", "empty", "half", "cut"),
}
"""Damage that leaves a checkpoint whole. The last is the empty shard of a rank that had nothing to write."""


@pytest.mark.parametrize(
    ("program", "kind", "steps"),
    [
        pytest.param(TRAINER, "Hugging Face Trainer", [1], marks=pytest.mark.long),
        pytest.param(ACCELERATE, "Accelerate", [1], marks=pytest.mark.long),
        pytest.param(LIGHTNING, "torch.save", [1], marks=pytest.mark.long),
        (DISTRIBUTED, "torch.distributed.checkpoint", [1, 2]),
    ],
    ids=["trainer", "accelerate", "lightning", "distributed"],
)
def test_what_a_framework_wrote_is_whole_and_without_a_part_of_it_doubtful(
    program: str, kind: str, steps: list[int], tmp_path: Path
) -> None:
    train(tmp_path, program)
    (tmp_path / "met").unlink(missing_ok=True)
    found = sorted(Scan(tmp_path, os.getuid()).checkpoints(), key=lambda one: one.step or 0)
    assert [(one.kind, one.step, one.doubt, one.unread) for one in found] == [(kind, step, "", "") for step in steps]
    there = {str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*")}
    missed = set()
    for damage in damaged(tmp_path):
        now = Scan(tmp_path, os.getuid()).checkpoints()
        if len(now) == len(found) and not any(one.doubt for one in now):
            missed.add(damage)
    assert missed == {f"{file} {what}" for file, damages in NOT_NEEDED.items() if file in there for what in damages}
