"""Random state and place in the data: a training that goes on ends as one that was never broken off."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata import stateful_dataloader as stateful

from understudy.training_state import TrainingState

pytestmark = [
    pytest.mark.integration,
    pytest.mark.patient,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
]

EPOCHS, SAMPLES, BATCH = 3, 10, 3
PER_EPOCH = -(-SAMPLES // BATCH)


class Noisy:
    """Each sample has chance of its own, as augmentations have."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> Any:
        return torch.full((4,), float(number)) + torch.rand(4) + random.random()  # noqa: S311


SET: Any = Noisy()


def plain(workers: int = 0) -> Any:
    return torch.utils.data.DataLoader(SET, BATCH, shuffle=True, num_workers=workers)


def distributed() -> Any:
    sampler: Any = torch.utils.data.DistributedSampler(SET, num_replicas=1, rank=0, shuffle=True)
    return torch.utils.data.DataLoader(SET, BATCH, sampler=sampler)


def with_state() -> Any:
    return stateful.StatefulDataLoader(SET, BATCH, shuffle=True, num_workers=0)


class Training:
    def __init__(self, loader: Any, seed: int) -> None:
        random.seed(seed)
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.training = TrainingState(loader)
        self.seen: list[float] = []

    def steps(self) -> Iterator[int]:
        """Yields in each step, after its update."""
        number = 0
        while self.training.epoch < EPOCHS:
            for batch in self.training.batches():
                self.optimizer.zero_grad()
                self.model(batch).square().mean().backward()
                self.optimizer.step()
                self.seen.append(float(batch.sum()))
                number += 1
                yield number

    def save(self, path: Path) -> None:
        parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "training": self.training}
        torch.save({name: part.state_dict() for name, part in parts.items()}, path)

    def load(self, path: Path) -> None:
        loaded = torch.load(path, weights_only=True)
        for name in ("model", "optimizer", "training"):
            getattr(self, name).load_state_dict(loaded[name])

    def weights(self) -> Any:
        return torch.cat([one.detach().reshape(-1) for one in self.model.parameters()])


@pytest.mark.parametrize("at", [1, PER_EPOCH - 1, PER_EPOCH, PER_EPOCH + 2])
@pytest.mark.parametrize("loader", [plain, distributed, with_state])
def test_a_training_that_goes_on_from_a_checkpoint_ends_with_the_same_weights(
    loader: Callable[[], Any], at: int, tmp_path: Path
) -> None:
    calm = Training(loader(), 7)
    for number in calm.steps():
        if number == at:
            calm.save(tmp_path / "saved")
    again = Training(loader(), 1000)
    again.load(tmp_path / "saved")
    for _ in again.steps():
        pass
    assert again.seen == calm.seen[at:], "the same batches in the same order, with the same noise"
    assert torch.equal(again.weights(), calm.weights())


def test_it_can_be_saved_again_after_it_was_restored(tmp_path: Path) -> None:
    calm = Training(plain(), 7)
    for number in calm.steps():
        if number == 1:
            calm.save(tmp_path / "first")
    second = Training(plain(), 1000)
    second.load(tmp_path / "first")
    for number in second.steps():
        if number == 1:
            second.save(tmp_path / "second")
            break
    third = Training(plain(), 2000)
    third.load(tmp_path / "second")
    for _ in third.steps():
        pass
    assert third.seen == calm.seen[2:]
    assert torch.equal(third.weights(), calm.weights())
