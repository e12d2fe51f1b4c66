"""Memory that a restored state uses."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

from understudy.state_pickle import StatePickler, StateUnpickler, as_bytes, fill, overwrite

pytestmark = pytest.mark.integration

State = dict[str, Any]


def saved(state: State) -> tuple[bytes, bytes]:
    """The pickle, and the content of the tensors."""
    file = io.BytesIO()
    pickler = StatePickler(file)
    pickler.dump(state)
    return file.getvalue(), b"".join(bytes(as_bytes(one).tolist()) for one in pickler.tensors)


def reading(content: bytes) -> Callable[[memoryview], None]:
    source = io.BytesIO(content)

    def read_into(place: memoryview) -> None:
        assert source.readinto(place) == len(place)

    return read_into


def restored(state: State, own: State) -> State:
    pickled, content = saved(state)
    unpickler = StateUnpickler(io.BytesIO(pickled))
    loaded: State = unpickler.load()
    overwrite(loaded, own)
    fill(unpickler.tensors, reading(content))
    return loaded


def test_a_tensor_at_the_same_place_is_overwritten() -> None:
    own: State = {"layers": [torch.zeros(3, 5), torch.zeros(2)], "step": 1}
    found = restored({"layers": [torch.rand(3, 5), torch.rand(2)], "step": 7}, own)
    assert [one.data_ptr() for one in found["layers"]] == [one.data_ptr() for one in own["layers"]]
    assert all(torch.equal(one, other) for one, other in zip(found["layers"], own["layers"], strict=True))
    assert found["step"] == 7
    assert own["layers"][0].any()


def test_places_are_found_by_name_and_not_by_order() -> None:
    state = {"a": torch.full((4,), 1.0), "b": torch.full((4,), 2.0)}
    own = {"b": torch.zeros(4), "a": torch.zeros(4)}
    restored(state, own)
    assert (own["a"].tolist(), own["b"].tolist()) == ([1.0] * 4, [2.0] * 4)


@pytest.mark.parametrize(
    "own",
    [
        pytest.param({}, id="nothing there"),
        pytest.param({"weight": torch.zeros(4, 6)}, id="another shape"),
        pytest.param({"weight": torch.zeros(6, 4, dtype=torch.float64)}, id="another type"),
        pytest.param({"weight": torch.zeros(4, 6).t()}, id="not in one piece"),
        pytest.param({"weight": torch.zeros(1).expand(6, 4)}, id="one number in all places"),
        pytest.param({"weight": [torch.zeros(6, 4)]}, id="another structure"),
    ],
)
def test_where_nothing_alike_is_there_the_state_has_its_own_memory(own: State) -> None:
    weight = torch.rand(6, 4)
    found = restored({"weight": weight}, own)
    assert torch.equal(found["weight"], weight)
    assert not torch.cat(
        [one.flatten().float() for one in own.values() if isinstance(one, torch.Tensor)] or [weight * 0]
    ).any()


def test_model_and_optimizer_are_as_they_were_saved_and_share_no_memory_with_the_save() -> None:
    def training() -> tuple[torch.nn.Linear, torch.optim.AdamW]:
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.AdamW(model.parameters())
        return model, optimizer

    def train(model: torch.nn.Linear, optimizer: torch.optim.AdamW) -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 8)).square().sum().backward()
        optimizer.step()

    def state(model: torch.nn.Linear, optimizer: torch.optim.AdamW) -> State:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    first, second = training(), training()
    train(*first)
    pickled, content = saved(state(*first))
    for _ in range(2):  # into an optimizer without moments, and into one that has them
        unpickler = StateUnpickler(io.BytesIO(pickled))
        loaded = unpickler.load()
        overwrite(loaded, state(*second))
        fill(unpickler.tensors, reading(content))
        second[0].load_state_dict(loaded["model"])
        second[1].load_state_dict(loaded["optimizer"])
        assert saved(state(*second)) == (pickled, content)
        train(*second)
    train(*first)
    assert saved(state(*second)) == saved(state(*first))
