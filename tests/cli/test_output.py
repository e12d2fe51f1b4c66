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


def test_names_of_fields_that_a_report_chose_control_no_terminal_and_begin_no_line() -> None:
    hostile = "a\n\x1b[2Jn1 fine"
    for record in ({hostile: "x", "k": 1}, {"evidence": {hostile: "x" * 80}}, {hostile: [{hostile: 1}]}):
        text = "\n".join(field_lines(record))
        assert "\x1b" not in text and "\nn1" not in text and "a  [2Jn1 fine" in text
    assert field_lines({hostile: 1, "k": 2}) == ["a  [2Jn1 fine  1", "k              2"]


def test_evidence_has_a_line_for_each_of_its_fields_and_fits_the_terminal() -> None:
    why = "the GPU has fallen off the bus " * 5
    record = {"id": 7, "evidence": {"why": why.strip(), "bus_id": "0000:01:00.0", "details": {}, "count": 2}}
    assert field_lines(record, 60) == [
        "id        7",
        "evidence",
        "  why     the GPU has fallen off the bus the GPU has fallen",
        "          off the bus the GPU has fallen off the bus the GPU",
        "          has fallen off the bus the GPU has fallen off the",
        "          bus",
        "  bus_id  0000:01:00.0",
        "  count   2",
    ]
    assert field_lines(record)[2] == f"  why     {why.strip()}", "a program gets it on one line"


def test_a_table_fits_the_terminal_by_whole_words_and_says_that_it_was_cut() -> None:
    reason = "understudy: xid.79: the GPU has fallen off the bus, and the node waits for a person"
    lines = table_lines(["node", "state", "reason"], [["n3", "quarantined", reason], ["n4", "in_service", ""]], 60)
    assert lines[1] == "n3    quarantined  understudy: xid.79: the GPU has fallen…"
    assert max(map(len, lines)) <= 60
    assert lines[-1] == "(cut to 60 columns; --json, or a pipe, shows all)"
    assert table_lines(["node", "reason"], [["n3", reason]])[1].endswith("for a person"), "a program gets all of it"
