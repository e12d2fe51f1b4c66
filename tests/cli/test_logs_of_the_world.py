"""Logs as journalctl, dmesg, rsyslog and tools for many machines print them, and logs from public reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from understudy_controlplane.cli.analyze.log_messages import _MONTHS, _named_time
from understudy_controlplane.cli.main import root

LOGS = Path(__file__).parents[1] / "data" / "world" / "logs"
BY_A_PROGRAM = "a program wrote it, not the kernel"
CONTINUED = "it goes on with a line that the kernel did not write"
NO_TEXT = "journalctl left the text out, because a byte of it is no text: print it with --all"
TOO_LONG = "journalctl leaves a text of 4096 bytes or more out: print the journal with --all"
NO_FORM = "what stands before the message is in no known form"


def analyzed(name: str) -> dict[str, Any]:
    result = CliRunner().invoke(root, ["analyze", "kernel-log", "--json", str(LOGS / name)])
    assert result.exit_code == 0, result.output
    read: dict[str, Any] = json.loads(result.output)
    return read


def found(printed: dict[str, Any]) -> dict[str, list[tuple[str, float | None, int]]]:
    """Machine → rule, time and number of its events."""
    return {
        node["node"]: [(one["rule"], one["at"], one["count"]) for one in (*node["events"], *node["others"])]
        for node in printed["nodes"]
    }


AT, LATER = 1_764_079_129.0, 1_764_215_929.0  # 2025-11-25 13:58:49 and 2025-11-27 03:58:49 UTC
OF_GPU_08 = [("xid.79", AT, 1), ("xid.119", LATER, 1)]


@pytest.mark.parametrize("name", ["export", "json", "json-pretty", "json-seq", "json-sse"])
def test_what_journalctl_prints_for_programs_has_machine_time_and_writer(name: str) -> None:
    printed = analyzed(f"journal/{name}")
    assert found(printed) == {"gpu08": OF_GPU_08, "gpu09": [("xid.79", AT + 1.5, 1), ("gpu.lost", LATER + 1.0, 1)]}
    assert printed["unread"]["reasons"] == {BY_A_PROGRAM: 2} | ({} if name == "export" else {TOO_LONG: 1})


HOUR = 3600.0  # these show the local time of Berlin, and no zone that can be read
SHORT: dict[str, tuple[float, float] | None] = {
    # these have no year: the last such day counts
    **dict.fromkeys(("short", "short-precise", "short.de_DE", "short.fr_FR", "short.ja_JP", "short.pl_PL")),
    "short-full": (AT + HOUR, LATER + HOUR),
    "with-unit": (AT + HOUR, LATER + HOUR),
    "short-iso": (AT, LATER),
    "short-iso-precise": (AT, LATER),
    "short-unix": (AT, LATER),
    "short-monotonic": (17_257.355375, 154_057.355375),
    "short-delta": (17_257.355375, 154_057.355375),
}


@pytest.mark.parametrize("name", SHORT)
def test_what_journalctl_prints_for_people_has_machine_and_time(name: str) -> None:
    printed = analyzed(f"journal/{name}")
    (first, at, _), (second, later, _) = found(printed)["gpu08"]
    assert (first, second) == ("xid.79", "xid.119")
    assert at is not None and later is not None and later - at == pytest.approx(LATER - AT)
    assert SHORT[name] in (None, (at, later))
    assert [rule for rule, _, _ in found(printed)["gpu09"]] == ["gpu.lost"]
    assert printed["unread"]["reasons"] == {NO_TEXT: 1, BY_A_PROGRAM: 1, CONTINUED: 1}


def test_journalctls_messages_alone_have_neither_machine_nor_time_and_this_is_reported() -> None:
    printed = analyzed("journal/cat")
    assert found(printed)["node"][1] == ("xid.119", None, 1)
    assert (printed["timed"], printed["nodes"][0]["named"]) == (False, False)


def test_journalctls_verbose_output_is_not_read_and_this_is_reported() -> None:
    printed = analyzed("journal/verbose")
    assert (printed["nodes"], printed["unread"]["messages"]) == ([], 7)
    assert "-o json" in printed["unread"]["first"][0]["why"]


BOOTED = 1_795_870_500.0  # 2026-11-28 12:55:00 UTC
TWICE = (12.5, 12.500012, 136_812.5)
TIMES_OF_DMESG = {
    **dict.fromkeys(("plain", "x", "r", "d", "color", "json", "jsonx"), TWICE),
    "iso": tuple(BOOTED + at for at in TWICE),
    **dict.fromkeys(
        ("T", "Td", "xT", *(path.name for path in (LOGS / "dmesg").glob("T.*"))),
        tuple(BOOTED + HOUR + int(at) for at in TWICE),
    ),
}


@pytest.mark.parametrize("name", TIMES_OF_DMESG)
def test_every_time_format_of_dmesg_is_read_in_every_language(name: str) -> None:
    printed = analyzed(f"dmesg/{name}")
    assert [rule for rule, _, _ in found(printed)["node"]] == ["xid.79", "xid.119", "xid.119"]
    assert [at for _, at, _ in found(printed)["node"]] == pytest.approx(TIMES_OF_DMESG[name])
    assert printed["nodes"][0]["next"]["repair"] == "reboot"
    assert printed["unread"]["reasons"] == {BY_A_PROGRAM: 1}


@pytest.mark.parametrize("name", ["delta", "notime", "reltime", "rel.de_DE"])
def test_where_dmesg_prints_no_time_nothing_is_joined_to_a_burst(name: str) -> None:
    printed = analyzed(f"dmesg/{name}")
    assert found(printed) == {"node": [("xid.79", None, 1), ("xid.119", None, 2)]}
    assert len(printed["nodes"][0]["bursts"]) == 2
    assert "no time can be read in 3 lines" in printed["notes"][0]


@pytest.mark.parametrize(
    "shown",
    [
        "mar. nov. 25 13:58:49 2025",  # fr; `mar` is March elsewhere
        "mar nov 25 13:58:49 2025",  # es, it
        "Di, 25. Nov 2025, 13:58:49",  # de, with util-linux's own translation
        "tis 25 nov 2025 13.58.49",  # sv
        "11月25日(火) 13:58:49 2025",  # ja
        "út 25. lis 2025 13:58:49",  # cs
        "Sal Kas 25 13:58:49 2025",  # tr
    ],
)
def test_orders_of_day_and_month_and_names_of_days_are_no_matter(shown: str) -> None:
    time = _named_time(shown, LATER)
    assert time is not None
    assert time.at == AT


@pytest.mark.parametrize("shown", ["uto xyz 25 13:58:49 2025", "mar. xuñ. 25 13:58:49 2025", "화 25 13:58:49 2025"])
def test_a_month_that_is_not_known_is_no_other_month(shown: str) -> None:
    assert _named_time(shown, LATER) is None


def test_no_name_of_a_month_is_two_months() -> None:
    assert set(_MONTHS.values()) == set(range(1, 13))


@pytest.mark.parametrize("name", ["rsyslog.5424", "rsyslog.file", "rsyslog.traditional", "rsyslog.json"])
def test_what_rsyslog_writes_has_machine_and_writer(name: str) -> None:
    printed = analyzed(f"syslog/{name}")
    assert {host: [one[0] for one in events] for host, events in found(printed).items()} == {
        "gpu08": ["xid.79", "xid.119"],
        "gpu09": ["xid.79"],
    }
    assert printed["unread"]["reasons"] == {BY_A_PROGRAM: 1}


def test_a_form_that_is_not_known_is_counted_and_shown() -> None:
    printed = analyzed("syslog/rsyslog.debug")
    assert (printed["nodes"], printed["unread"]["reasons"]) == ([], {NO_FORM: 12})
    assert printed["unread"]["first"][0]["line"] == 5


MACHINES = {"grep": ".log", "grep-n": ".log", "tail": ".log"}


OF_MANY = sorted(path for folder in ("gathered", "from_source") for path in (LOGS / folder).iterdir())


@pytest.mark.parametrize("path", OF_MANY, ids=lambda path: path.name)
def test_output_of_many_machines_is_kept_apart(path: Path) -> None:
    printed = analyzed(f"{path.parent.name}/{path.name}")
    names = ["0", "1"] if path.name == "srun-l" else [f"gpu0{number}{MACHINES.get(path.name, '')}" for number in (8, 9)]
    assert {node["node"]: node["next"]["repair"] for node in printed["nodes"]} == dict.fromkeys(names, "reboot")
    assert printed["unread"]["messages"] == 0


def test_of_one_error_again_and_again_the_highest_rung_follows() -> None:
    (node,) = analyzed("cases/xid_119_again.log")["nodes"]
    assert [one["repair"] for one in node["events"]] == ["reset_gpu", "reboot", "reboot"]
    assert (node["next"]["repair"], "seen" in node["next"]["reason"]) == ("reboot", True)


@pytest.mark.parametrize("name", ["text.json", "bytes.json", "export.txt"])
def test_a_name_that_is_cut_inside_a_letter_hides_no_fault(name: str) -> None:
    assert found(analyzed(f"cases/{name}")) == {"node08": [("xid.79", AT, 1)]}


@pytest.mark.parametrize("language", ["en", "de", "zh", "iso"])
def test_two_errors_a_day_apart_are_two_bursts_in_every_language(language: str) -> None:
    (node,) = analyzed(f"cases/dmesg_{language}.log")["nodes"]
    assert [one["repair"] for one in node["events"]] == ["reset_gpu", "reboot"]


@pytest.mark.parametrize(
    ("name", "events"),
    [
        ("crash_dump.log", {"node": ["xid.79", "gpu.lost"]}),
        ("numbered.log", {"node": ["xid.79"]}),
        ("rfc5424_without_version.log", {"server02": ["xid.79"], "box": ["xid.79"]}),
        ("pdsh_of_lines.log", {"gpu08": ["gpu.lost"], "gpu09": ["gpu.lost"]}),
        ("loki.json", {"gpu02": ["xid.79", "xid.119"]}),
        ("elasticsearch.json", {"gpu03": ["xid.79"]}),
        ("cut.json", {"gpu07": ["xid.79"]}),
        ("facility_of_the_kernel.json", {}),
        ("journal_continued.log", {"pc": ["xid.79", "gpu.lost", "kernel.pcie_fatal"]}),
        ("journal_trace.log", {"nixos": ["xid.16", "xid.8", "xid.32"]}),
        ("syslog_blank_line.log", {"desktop": ["xid.79", "gpu.lost"]}),
        ("syslog_harmless.log", {}),
        ("syslog_of_sites.log", {name: ["xid.79", "gpu.lost"] for name in ("1013", "balrog", "tower-PO5-650")}),
        ("rsyslog_line_breaks.log", {"gpu-2": ["gpu.lost"]}),
        ("syslog_raw_line_breaks.log", {"gpu-2": ["gpu.lost"], "gpu-3": ["xid.79", "gpu.lost"], "node": ["gpu.lost"]}),
        ("busybox.log", {"node": ["xid.119"], "VM": ["xid.79"]}),
        ("nvswitches.log", {"node": ["sxid.11004"] * 4}),
        ("cloud_logging.json", {"a3-node-7": ["xid.79"], "42": ["xid.119"]}),
        ("cloudwatch.json", {"ip-10-1-2-3": ["xid.74"]}),
        ("talos_nvswitch.log", {"192.168.11.119": ["sxid.24007", "xid.62"]}),
    ],
)
def test_machines_and_events_of_logs_of_sites(name: str, events: dict[str, list[str]]) -> None:
    assert {host: [one[0] for one in of] for host, of in found(analyzed(f"cases/{name}")).items()} == events


def test_a_message_in_a_field_without_a_known_name_is_reported() -> None:
    printed = analyzed("cases/log_analytics.json")
    assert (printed["nodes"], printed["unread"]["reasons"]) == ([], {"it stands in a field that has no known name": 1})


def test_a_boot_of_zeros_is_no_boot() -> None:
    (node,) = analyzed("cases/boot_of_zeros.json")["nodes"]
    assert [(one["rule"], one["boot_id"], one["count"]) for one in node["events"]] == [
        ("xid.79", "boot-0", 1),
        ("xid.45", "boot-0", 2),
    ]


def test_seven_machines_in_seven_formats_are_seven_machines() -> None:
    printed = analyzed("cases/seven_machines.log")
    assert found(printed).keys() == {f"gpu0{number}" for number in range(1, 8)}
    assert printed["unread"]["reasons"] == {BY_A_PROGRAM: 1}


def test_seven_logs_without_names_in_one_file_are_not_one_machine() -> None:
    printed = analyzed("cases/seven_dmesgs.log")
    assert [len(node["bursts"]) for node in printed["nodes"]] == [1] * 7
    assert "7 parts are judged apart" in printed["notes"][0]


def test_logs_of_containers_and_of_talos_are_read() -> None:
    assert [node["node"] for node in analyzed("cases/containers.log")["nodes"]] == [
        "node",
        "pod/dmesg-x7k2p/dmesg",
        "gpu12",
        "gpu13",
    ]
    talos = analyzed("cases/talos.log")
    assert [*found(talos)] == ["mc-pt1-pkp-srv-1a", "fd00::1c"]
    assert talos["unread"]["reasons"] == {BY_A_PROGRAM: 1}


def test_what_a_program_wrote_to_the_kernels_log_is_no_fault() -> None:
    printed = analyzed("cases/written_by_a_program.log")
    assert (printed["nodes"], printed["unread"]["reasons"]) == ([], {BY_A_PROGRAM: 1})


def test_a_record_of_several_lines_is_one_fault() -> None:
    (node,) = analyzed("cases/record_of_lines.log")["nodes"]
    assert [(one["rule"], one["bus_id"]) for one in node["events"]] == [("gpu.lost", "0000:b3:00.0")]


def test_lines_that_were_cut_before_the_kernels_name_are_read_without_time() -> None:
    (node,) = analyzed("cases/cut_before_kernel.log")["nodes"]
    assert (node["timed"], [one["rule"] for one in node["events"]]) == (False, ["xid.45", "xid.45"])
