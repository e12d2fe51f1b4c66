"""The state of a training as a pickle without the content of its tensors, and the tensors."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch


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
