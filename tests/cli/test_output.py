"""Tables on a terminal."""

from __future__ import annotations

from understudy_controlplane.cli.output import field_lines, table_lines


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


def test_a_record_has_its_fields_on_lines_and_its_lists_of_records_as_tables() -> None:
    record = {
        "id": 7,
        "nodes": ["n1", "n2"],
        "ended_at": None,
        "detected_at": 1.0,
        "approve_by": 3.0,
        "phases_ms": {"drained": 31, "running": 900},
        "steps": [{"name": "drain_nodes", "done_at": 2.0, "detail": ""}, {"name": "bind_job", "done_at": None}],
    }
    assert field_lines(record) == [
        "id           7",
        "nodes        n1 n2",
        "ended_at",
        "detected_at  1970-01-01 00:00:01",
        "approve_by   1970-01-01 00:00:03",
        "phases_ms    drained=31, running=900",
        "steps",
        "  name         done_at              detail",
        "  drain_nodes  1970-01-01 00:00:02",
        "  bind_job",
    ]
