"""The section `checkpoints`: whether and how fast checkpoints are read back, and what time costs."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from understudy_controlplane.config.section import Section


class Checkpoints(Section):
    FIXED = frozenset({"verify_nodes_at_once", "copy_nodes_at_once"})

    verify: bool = Field(
        False,
        description="Whether agents read complete checkpoints back, with the rights of the user of the job. Bad and "
        "lost ones are not restored.",
    )
    verify_megabytes_per_second: float = Field(
        50.0, gt=0, description="Rate at which an agent reads. Four nodes of the fleet read at the same time."
    )
    verify_nodes_at_once: int = Field(4, ge=1, description="Nodes of the whole fleet that read at the same time.")
    verify_nan: bool = Field(
        False,
        description="Whether a checkpoint is bad that has NaN in a tensor, in safetensors or "
        "torch.distributed.checkpoint. Not for models that keep NaN on purpose.",
    )
    verify_within_hours: ClassVar[float] = 24.0
    """Older checkpoints are not read back."""
    copy_megabytes_per_second: float = Field(
        200.0,
        gt=0,
        description="Rate at which an agent copies checkpoints (`copy_to`). 64 nodes of the fleet copy at once.",
    )
    copy_nodes_at_once: int = Field(
        64, ge=0, description="Nodes of the whole fleet that copy at the same time. 0: none does."
    )
    delete_nodes_at_once: int = Field(
        4,
        ge=0,
        description="Nodes of the whole fleet that delete checkpoints (`keep=3` in a comment) at the same time. "
        "0: none does.",
    )
    gpu_hour_price: float | None = Field(
        None,
        gt=0,
        description="Price of an hour of one GPU: `understudy checkpoints show RUN` then shows money as well.",
    )
