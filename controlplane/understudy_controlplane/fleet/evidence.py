"""What evidence is made of."""

from __future__ import annotations

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
