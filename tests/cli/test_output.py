"""Tables on a terminal."""

from __future__ import annotations

from understudy_controlplane.cli.output import table_lines


def test_cells_stand_below_each_other() -> None:
    assert table_lines(("node", "jobs", "reason"), [("n1", None, "fan"), ("node12", 4711, "")]) == [
        "node    jobs  reason",
        "n1            fan",
        "node12  4711",
    ]


def test_a_table_without_rows_is_its_header() -> None:
    assert table_lines(("node", "state"), []) == ["node  state"]


def test_text_of_users_controls_no_terminal_and_begins_no_line() -> None:
    assert table_lines(("reason",), [("\x1b[2Jgone\nn1 fine",)]) == ["reason", " [2Jgone n1 fine"]
