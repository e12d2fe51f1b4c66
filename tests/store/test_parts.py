"""Boards, network cards and modules are followed from node to node."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests import builders as b
from understudy_controlplane.store.parts import PartStore
from understudy_wire.hardware import Part, PartKind

CARD = Part(PartKind.CARD, "mlx5_0", "MCX75310", "MT2311X0", "b83f:d203:0001")
HOUR = 3600.0


@pytest.fixture
def parts(engine: Engine) -> PartStore:
    return PartStore(engine)


def seen(parts: PartStore, **chosen: str) -> list[tuple[str, str, float, float]]:
    rows = parts.places(10, **chosen)  # type: ignore[arg-type]
    return [(one["node"], one["place"], one["first_seen_at"], one["last_seen_at"]) for one in rows]


def test_a_part_that_is_moved_has_a_row_for_each_node_with_its_time(parts: PartStore) -> None:
    parts.see({"n1": [CARD]}, b.NOW)
    parts.see({"n1": [CARD]}, b.NOW + HOUR)
    moved = Part(PartKind.CARD, "mlx5_3", CARD.model, CARD.serial, CARD.guid)
    parts.see({"n2": [moved]}, b.NOW + 5 * HOUR)
    assert seen(parts, identity="MT2311X0") == [
        ("n2", "mlx5_3", b.NOW + 5 * HOUR, b.NOW + 5 * HOUR),
        ("n1", "mlx5_0", b.NOW, b.NOW + HOUR),
    ]
    parts.see({"n1": [CARD]}, b.NOW + 9 * HOUR)
    assert seen(parts)[0] == ("n1", "mlx5_0", b.NOW, b.NOW + 9 * HOUR), "it came back"


def test_parts_of_one_node_are_distinguished_and_those_without_a_name_are_left_out(parts: PartStore) -> None:
    board, module = Part(PartKind.BOARD, "board", "X13", "4711"), Part(PartKind.MODULE, "eth0", "optics", "4711")
    unread, by_guid = Part(PartKind.MODULE, "eth1"), Part(PartKind.CARD, "mlx5_1", guid="b83f:d203:0002")
    parts.see({"n1": [board, module, unread, by_guid], "n2": []}, b.NOW)
    assert {(one["kind"], one["identity"]) for one in parts.places(10, node="n1")} == {
        ("board", "4711"),
        ("module", "4711"),
        ("card", "b83f:d203:0002"),
    }
    assert parts.places(10, node="n2") == []


def test_pages_follow_each_other(parts: PartStore) -> None:
    cards = [Part(PartKind.CARD, f"mlx5_{i}", "", f"MT{i}") for i in range(5)]
    parts.see({"n1": cards}, b.NOW)
    first = parts.places(3)
    rest = parts.places(3, first[-1]["last_seen_at"], first[-1]["id"])
    assert sorted(one["identity"] for one in (*first, *rest)) == [f"MT{i}" for i in range(5)]
