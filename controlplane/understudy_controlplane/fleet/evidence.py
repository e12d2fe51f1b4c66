"""Evidence: what people read about a finding or a decision. What code needs of a finding is its `detail`."""

from __future__ import annotations

from collections.abc import Mapping

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Evidence:
    """Can be added to, stored and shown, and not be looked into."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Json] | None = None) -> None:
        self._values = dict(values or {})

    def with_more(self, values: Mapping[str, Json]) -> Evidence:
        return Evidence({**self._values, **values})

    def shown(self) -> dict[str, Json]:
        """Evidence for a row of the database, an answer of the API, or a line on a screen."""
        return dict(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Evidence) and self._values == other._values

    def __hash__(self) -> int:
        return hash(tuple(self._values))

    def __repr__(self) -> str:
        return f"Evidence({self._values!r})"


NO_EVIDENCE = Evidence()
