"""What a training has besides model and optimizer: random state, and its place in the data. With it a training that was
restored goes on as if nothing had been.

training = TrainingState(loader)
...                                                # of a checkpoint: training.load_state_dict(loaded["training"])
while training.epoch < epochs:
    for batch in training.batches():
        ...                                        # a step
        save({"model": model.state_dict(), "training": training.state_dict()})

Each rank has its own, and saves it with its part of a checkpoint: in a file of its own, or by PeerState(training=...).
Not by LiveState, where a new rank gets the state of another one.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch


class TrainingState:
    """`loader` is a DataLoader of PyTorch, or one that has state_dict() and load_state_dict(), as torchdata's
    StatefulDataLoader. Of one that has none, the batches that were taken before are taken again, and left out.
    """

    def __init__(self, loader: Any = None) -> None:
        self._loader = loader
        self.epoch = 0
        self._taken = 0
        """Batches of this epoch."""
        self._begun: dict[str, Any] | None = None
        """Random state with which this epoch began; None: it has not."""
        self._loaded: dict[str, Any] | None = None

    @property
    def is_stateful(self) -> bool:
        return hasattr(self._loader, "state_dict") and hasattr(self._loader, "load_state_dict")

    def batches(self) -> Iterator[Any]:
        """The batches that are left of this epoch; then the next epoch begins. A sampler that has set_epoch() gets its
        number.
        """
        sampler: Any = getattr(self._loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.epoch)
        loaded, self._loaded = self._loaded, None
        if loaded is None or self._begun is None:
            self._begun, self._taken = random_state(), 0
            batches = iter(self._loader)
        elif self.is_stateful:
            batches = iter(self._loader)
            set_random_state(loaded)
        else:
            set_random_state(self._begun)
            batches = iter(self._loader)
            for _ in range(self._taken):
                next(batches)
            set_random_state(loaded)
        for batch in batches:
            self._taken += 1
            yield batch
        self.epoch, self._taken, self._begun = self.epoch + 1, 0, None

    def state_dict(self) -> dict[str, Any]:
        """The batch of this pass counts as taken, if it is called in the body of the loop over batches()."""
        of_loader = self._loader.state_dict() if self.is_stateful and self._begun is not None else None
        place = {"epoch": self.epoch, "taken": self._taken, "begun": self._begun, "loader": of_loader}
        return {"random": random_state(), **place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Called before batches()."""
        self.epoch, self._taken, self._begun = state["epoch"], state["taken"], state["begun"]
        if state["loader"] is not None:
            self._loader.load_state_dict(state["loader"])
        self._loaded = state["random"]
        set_random_state(state["random"])


def random_state() -> dict[str, Any]:
    """Python's, PyTorch's and its GPUs', and NumPy's where it was imported."""
    version, numbers, rest = random.getstate()
    found: dict[str, Any] = {"python": [version, list(numbers), rest], "torch": torch.get_rng_state()}
    cuda: Any = torch.cuda  # without types
    if cuda.is_available() and cuda.is_initialized():
        found["cuda"] = cuda.get_rng_state_all()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *more = numpy.random.get_state()
        found["numpy"] = [str(kind), [int(key) for key in keys], *more]
    return found


def set_random_state(state: dict[str, Any]) -> None:
    version, numbers, rest = state["python"]
    random.setstate((version, tuple(numbers), rest))
    torch.set_rng_state(state["torch"].cpu())  # torch.load may have moved it
    for device, one in enumerate(state.get("cuda", ())[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(one.cpu(), device)
    if "numpy" in state:
        numpy: Any = importlib.import_module("numpy")  # it was there
        kind, keys, *more = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *more))
