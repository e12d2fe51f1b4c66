"""The state of a training as a pickle without the content of its tensors, and the tensors."""

from __future__ import annotations

import ctypes
import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

BLOCK_BYTES = 4 << 20
"""Piece of what goes to a device, through memory of this process."""


class StatePickler(pickle.Pickler):
    """Everything but the content of tensors, which `tensors` has in their order. Of a sharded one (DTensor, as FSDP
    makes) it is this rank's shard.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []
        self.meshes: list[Any] = []

    def persistent_id(self, one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return None
        if not hasattr(one, "placements"):
            self.tensors.append(one.detach().contiguous())
            return one.dtype, tuple(one.shape), one.device.type, None
        sharded: Any = one
        local = sharded.to_local().detach().contiguous()
        self.tensors.append(local)
        if sharded.device_mesh not in self.meshes:
            self.meshes.append(sharded.device_mesh)
        layout = (tuple(sharded.placements), tuple(one.shape), one.stride(), _name(sharded.device_mesh))
        return local.dtype, tuple(local.shape), local.device.type, layout


class StateUnpickler(pickle.Unpickler):
    """Makes the tensors without their content. `meshes` are those of the sharded tensors that this rank has now."""

    def __init__(self, file: io.BytesIO, meshes: Sequence[Any] = ()) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []
        self._meshes = {_name(mesh): mesh for mesh in meshes}

    def persistent_load(self, known: Any) -> torch.Tensor:
        dtype, shape, device, layout = known
        local = torch.empty(shape, dtype=dtype, device=device)
        self.tensors.append(local)
        if layout is None:
            return local
        from torch.distributed.tensor import DTensor

        placements, whole_shape, stride, name = layout
        sharded: torch.Tensor = DTensor.from_local(
            local, self._meshes[name], placements, run_check=False, shape=torch.Size(whole_shape), stride=stride
        )
        return sharded


def _name(mesh: Any) -> tuple[Any, Any]:
    """The same one in another process."""
    return tuple(mesh.shape), mesh.mesh_dim_names


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A view."""
    return tensor.reshape(-1).view(torch.uint8)


def overwrite(loaded: Any, own: Any) -> None:
    """Tensors of `loaded`, without content yet, use the memory of those at the same places of `own`, the state that
    this rank has now, where they are alike. New memory from the kernel takes longer than to copy into what is there.
    Sharded ones stay as they are.
    """
    for new, old in _same_places(loaded, own):
        alike = (new.dtype, new.shape, new.device) == (old.dtype, old.shape, old.device)
        if alike and not hasattr(new, "placements") and not hasattr(old, "placements") and old.is_contiguous():
            new.set_(old.untyped_storage(), old.storage_offset(), old.shape, old.stride())


def _same_places(loaded: Any, own: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if isinstance(loaded, torch.Tensor) and isinstance(own, torch.Tensor):
        yield loaded, own
    elif isinstance(loaded, dict) and isinstance(own, dict):
        for name in loaded.keys() & own.keys():
            yield from _same_places(loaded[name], own[name])
    elif isinstance(loaded, (list, tuple)) and isinstance(own, (list, tuple)):
        for one, other in zip(loaded, own):
            yield from _same_places(one, other)


def fill(tensors: Sequence[torch.Tensor], read_into: Callable[[memoryview], None]) -> None:
    """The content of each, in this order. Raises what `read_into` raises."""
    block = torch.empty(0, dtype=torch.uint8)
    for one in tensors:
        content = as_bytes(one)
        if content.device.type == "cpu":
            if content.numel():
                read_into(_memory_of(content))
            continue
        for piece in torch.split(content, BLOCK_BYTES):
            if len(block) < len(piece):
                block = torch.empty(len(piece), dtype=torch.uint8)
            part = block[: len(piece)]
            read_into(_memory_of(part))
            piece.copy_(part)


def _memory_of(content: torch.Tensor) -> memoryview:
    """The memory is valid while the tensor lives."""
    return memoryview((ctypes.c_ubyte * content.numel()).from_address(content.data_ptr())).cast("B")
