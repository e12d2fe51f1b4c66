"""What all sections of the configuration share."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Itself: nothing changes it. Pydantic copies each default, which was most of the time that reading took."""
        return self
