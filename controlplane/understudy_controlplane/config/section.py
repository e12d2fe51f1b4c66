"""What all sections of the configuration share."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    FIXED: ClassVar[frozenset[str]] = frozenset()
    """Parameters of the code that no site sets: thresholds, shares of budgets, lengths of queues. Tests vary them."""

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Itself: nothing changes it. Pydantic copies each default, which was most of the time that reading took."""
        return self
