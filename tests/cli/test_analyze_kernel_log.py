"""`analyze kernel-log` and `explain`: every format of a log, the service's own verdicts, and rubbish survived."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from understudy_controlplane.cli.analyze import kernel_log
from understudy_controlplane.cli.analyze.kernel_log import Reading, collect
from understudy_controlplane.cli.analyze.log_messages import Message, Reader, Unread
from understudy_controlplane.cli.analyze.log_records import text_records
from understudy_controlplane.cli.main import root

XID = "NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=python, GPU has fallen off the bus."
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 30 LTSSM Fault Up (First)"
KILLED = "Memory cgroup out of memory: Killed process 42 (python) total-vm:1kB"
CONTAINED = "pcieport 0000:16:01.0: DPC: containment event, status:0x1f01 source:0x0000"
AT = 1_795_286_926.0  # 2026-11-21 18:48:46 UTC
NOW = AT + 3600.0


def read(line: str) -> Message | Unread | None:
    (record,) = text_records([line])
    return Reader(NOW).read(record)


def collected(*lines: str) -> Reading:
    return collect(text_records(lines), NOW, 180.0)


def invoked(*arguments: str, given: str | bytes | None = None, status: int = 0) -> str:
    result = CliRunner().invoke(root, list(arguments), input=given, env={"COLUMNS": "200"})
    assert result.exit_code == status, result.output
    return result.output


def analyzed(*lines: str, **options: Any) -> dict[str, Any]:
    printed = invoked("analyze", "kernel-log", "-", "--json", given="\n".join(lines), **options)
    return json.loads(printed)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("prefix", "host", "at"),
    [
        ("", "", None),
        ("4,812,2500000,-;", "", 2.5),
        ("4,812,2500000,-,caller=T22;", "", 2.5),
        ("[ 2638.641516] ", "", 2638.641516),
        ("[    2.641516][ T123] ", "", 2.641516),
        ("kern  :err   : [ 2638.641516] ", "", 2638.641516),
        ("[Sat Nov 21 18:48:46 2026] ", "", AT),
        ("2026-11-21T18:48:46,250000+00:00 ", "", AT + 0.25),
        ("2026-11-21T19:48:46.250000+01:00 gpu-17.site kernel: ", "gpu-17.site", AT + 0.25),
        ("2026-11-21T18:48:46+0000 gpu17 kernel: ", "gpu17", AT),
        ("Nov 21 18:48:46 gpu17 kernel: ", "gpu17", AT),
        ("Nov 21 18:48:46.500000 gpu17 kernel: ", "gpu17", AT + 0.5),
        ("Nov 21 18:48:46 gpu17 kernel: [17257.355375] ", "gpu17", AT),
        ("[17257.355375] gpu17 kernel: ", "gpu17", 17257.355375),
        ("Sat 2026-11-21 18:48:46 UTC gpu17 kernel: ", "gpu17", AT),
        ("[gpu17] [17257.355375] ", "gpu17", 17257.355375),
        ("[17257.355375] [  T123] ", "", 17257.355375),
        ("gpu17: [17257.355375] ", "gpu17", 17257.355375),
        ("logs/gpu17.log:12:[17257.355375] ", "logs/gpu17.log", 17257.355375),
        ("Foo 99 99:99:99 gpu17 kernel: ", "gpu17", None),
        ("Nov 31 18:48:46 gpu17 kernel: ", "gpu17", None),
    ],
)
def test_every_format_of_a_log_is_read(prefix: str, host: str, at: float | None) -> None:
    for words in (XID, SWITCH, KILLED, CONTAINED):
        line = read(prefix + words)
        assert isinstance(line, Message)
        assert (line.text, line.host) == (words, host)
        assert (line.time and line.time.at) == (None if at is None else pytest.approx(at))


@pytest.mark.parametrize("message", [[*XID.encode()], [XID, "x"], [[*XID.encode()], None], [None, XID]])
def test_a_field_of_the_journal_that_is_no_text_or_came_twice_is_read(message: object) -> None:
    line = read(json.dumps({"MESSAGE": message, "_TRANSPORT": "kernel"}))
    assert isinstance(line, Message)
    assert line.text == XID


def test_journalctls_json_is_read() -> None:
    entry = {"MESSAGE": XID, "__REALTIME_TIMESTAMP": "1795286926000000", "_HOSTNAME": "gpu17", "PRIORITY": "3"}
    line = read(json.dumps(entry))
    assert isinstance(line, Message)
    assert (line.text, line.host, line.time and line.time.at) == (XID, "gpu17", AT)


@pytest.mark.parametrize("when", ["9" * 30, "9" * 400, "-" + "9" * 25, "soon"])
def test_the_drivers_words_are_found_where_the_time_is_one_that_no_clock_shows(when: str) -> None:
    line = read(json.dumps({"MESSAGE": XID, "__REALTIME_TIMESTAMP": when}))
    assert isinstance(line, Message)
    assert (line.text, line.time) == (XID, None)


@pytest.mark.parametrize(
    "line", ["{", "[" * 5000, "{" * 5000, '{"MESSAGE": null}', "", "Nov 21 18:48:46 host kernel: usb"]
)
def test_other_lines_are_passed_over(line: str) -> None:
    assert read(line) is None


class TestVerdicts:
    def test_events_bursts_and_what_the_node_does_next(self) -> None:
        printed = analyzed(
            "[   10.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  595.45.04",
            f"[  100.000000] {XID}",
            "[  100.100000] NVRM: Xid (PCI:0000:06:00): 74, pid=1, name=python, NVLink: fatal error detected",
            "[  100.200000] NVRM: Xid (PCI:0000:06:00): 45, pid=1, name=python, Ch 1",
            "[  100.300000] NVRM: Xid (PCI:0000:06:00): 45, pid=1, name=python, Ch 2",
            "[ 5000.000000] NVRM: Xid (PCI:0000:07:00): 13, pid=1, name=python, Graphics Exception",
        )
        (node,) = printed["nodes"]
        assert [(one["rule"], one["signal"], one["count"]) for one in node["events"]] == [
            ("xid.79", "hardware_fault", 1),
            ("xid.74", "recorded", 1),
            ("xid.45", "recorded", 2),
            ("xid.13", "application_fault", 1),
        ]
        assert [(one["rules"], one["events"], one["blamed"]) for one in node["bursts"]] == [
            (["xid.79", "xid.74", "xid.45"], 4, "Xid 79 on GPU 0000:05:00.0"),
            (["xid.13"], 1, None),
        ]
        assert (node["next"]["action"], node["next"]["row"], node["next"]["repair"]) == ("quarantine", 10, "reboot")
        assert (printed["lines"], printed["timed"]) == (6, True)

    def test_lines_without_a_code_are_judged_by_their_rows(self) -> None:
        lines = (f"[   {seconds}.000000] {words}" for seconds, words in ((10, KILLED), (20, CONTAINED), (30, XID)))
        (node,) = analyzed(*lines)["nodes"]
        assert [(one["rule"], one["signal"], one["time"]) for one in node["others"]] == [
            ("kernel.rank_out_of_memory", "application_fault", "10.000000"),
            ("kernel.pcie_contained", "health_suspected", "20.000000"),
        ]
        assert [one["rule"] for one in node["events"]] == ["xid.79"]
        (alone,) = analyzed(f"[   20.000000] {CONTAINED}")["nodes"]
        assert (alone["next"]["row"], alone["next"]["state"]) == (140, "suspect")

    def test_a_log_of_several_machines_is_judged_machine_by_machine(self) -> None:
        printed = analyzed(
            f"Nov 21 18:48:46 a kernel: {XID}", "Nov 21 18:48:46 b kernel: NVRM: Xid (PCI:0000:05:00): 43, x"
        )
        assert {one["node"]: one["next"]["action"] for one in printed["nodes"]} == {"a": "quarantine", "b": "nothing"}

    def test_a_boot_in_between_clears_the_events_of_the_first_one(self) -> None:
        printed = analyzed(
            f"[  100.000000] gpu17 kernel: {XID}",
            "[    0.000000] gpu17 kernel: Linux version 6.1.0 (gcc)",
            "[   50.000000] gpu17 kernel: NVRM: Xid (PCI:0000:05:00): 43, pid=1, name=python, Ch 1",
        )
        (node,) = printed["nodes"]
        assert [one["boot_id"] for one in node["events"]] == ["boot-0", "boot-1"]
        assert node["next"]["action"] == "nothing"

    def test_a_clock_that_falls_back_is_a_boot_as_well(self) -> None:
        reading = collected(f"[ 9000.000000] gpu17 kernel: {XID}", f"[    5.000000] gpu17 kernel: {XID}")
        assert {one.event.boot_id for one in reading.sources["gpu17"].log.events(0.0)} == {"boot-0", "boot-1"}

    def test_a_log_that_begins_with_its_end_is_of_one_boot(self) -> None:
        lines = [f"Nov {day} 18:48:46 gpu17 kernel: {XID}" for day in (21, 20, 19)]
        events = collected(*lines).sources["gpu17"].log.events(0.0)
        assert [(one.event.boot_id, one.event.at) for one in events] == [
            ("boot-0", AT - 2 * 86_400.0),
            ("boot-0", AT - 86_400.0),
            ("boot-0", AT),
        ]

    @pytest.mark.parametrize("width", [1, 4])
    def test_numbers_of_lines_and_a_common_indentation_are_no_machines(self, width: int) -> None:
        printed = analyzed(*(f"{number:>{width}}\t[  {number}.000000] {XID}" for number in range(8, 12)))
        assert [(node["node"], node["lines"]) for node in printed["nodes"]] == [("node", 4)]
        printed = analyzed(f"{' ' * width}[   8.000000] {XID}", f"{' ' * width}[   9.000000] {XID}")
        assert [(node["node"], node["lines"]) for node in printed["nodes"]] == [("node", 2)]

    @pytest.mark.parametrize("start", ["[    0.000000] Linux version 6.1.0 (gcc)", ""])
    def test_a_log_without_names_is_not_taken_for_one_machine_where_its_clock_goes_back(self, start: str) -> None:
        printed = analyzed(f"[  200.000000] {XID}", start, f"[   50.000000] {XID.replace('79', '43')}")
        assert [(one["node"], one["named"], one["next"]["repair"]) for one in printed["nodes"]] == [
            ("node", False, "reboot"),
            ("node 2", False, "none"),
        ]
        assert "2 parts are judged apart" in printed["notes"][0]

    def test_two_clocks_in_one_log_are_not_compared(self) -> None:
        wall, since_start = f"2026-11-21T18:48:46Z {XID}", f"[   50.000000] {XID}"
        (node,) = analyzed(wall, since_start, wall, since_start)["nodes"]
        assert {one["boot_id"] for one in node["events"]} == {"boot-0"}

    def test_lines_without_times_are_no_burst_and_reported_as_such(self) -> None:
        lines = [XID, "NVRM: Xid (PCI:0000:06:00): 74, pid=1, name=python, x", *[XID.replace("79", "119")] * 3]
        printed = analyzed(*lines)
        (node,) = printed["nodes"]
        assert (printed["timed"], node["timed"]) == (False, False)
        assert [(one["events"], one["since"]) for one in node["bursts"]] == [(1, None), (1, None), (3, None)]
        assert node["events"][2]["repair"] == "reset_gpu"  # a reboot if it came again, which is not known
        assert "no time can be read in 5 lines" in printed["notes"][0]

    def test_lines_of_a_machine_without_times_are_judged_apart_from_its_others(self) -> None:
        printed = analyzed(f"Foo 99 99:99:99 gpu17 kernel: {XID}", f"Nov 21 18:48:46 gpu17 kernel: {XID}")
        assert [(one["node"], one["timed"]) for one in printed["nodes"]] == [("gpu17", False), ("gpu17", True)]

    def test_what_a_program_wrote_or_nothing_understands_is_shown_and_not_counted(self) -> None:
        printed = analyzed(
            f"Nov 21 18:48:46 gpu17 python[7]: {XID}",
            f"it printed {XID}",
            "Nov 21 18:48:46 gpu17 kernel: [80B blob data]",
            json.dumps({"_TRANSPORT": "kernel", "MESSAGE": None}),
        )
        assert printed["nodes"] == []
        assert [(one["line"], one["why"][:16]) for one in printed["unread"]["first"]] == [
            (1, "a program wrote "),
            (2, "what stands befo"),
            (3, "journalctl left "),
            (4, "journalctl leave"),
        ]
        assert "line 2: it printed NVRM" in invoked("analyze", "kernel-log", "-", given=f"\nit printed {XID}")

    def test_a_record_of_several_lines_belongs_to_one_machine(self) -> None:
        printed = analyzed(
            "Jan 03 07:39:45 gpu17 kernel: NVRM: The NVIDIA GPU 0000:5d:00.0",
            "                              NVRM: (PCI ID: 10de:2330) installed in this system has",
            "                              NVRM: fallen off the bus and is not responding to commands.",
        )
        (node,) = printed["nodes"]
        assert (node["node"], printed["timed"]) == ("gpu17", True)
        assert [(one["rule"], one["bus_id"]) for one in node["events"]] == [("gpu.lost", "0000:5d:00.0")]

    def test_the_driver_and_the_sites_rows_count(self, tmp_path: Path) -> None:
        config = tmp_path / "site.toml"
        config.write_text('cluster = "c"\n[xid.policy.79]\nclass = "record"\nrepair = "none"\n')
        lines = [XID, "NVRM: Xid (PCI:0000:06:00): 48, pid=1, name=p, x", *self.action("06")]
        printed = invoked(
            "analyze", "kernel-log", "-", "--json", "--config", str(config), "--driver", "550.1", given="\n".join(lines)
        )
        found = {one["rule"]: one["signal"] for one in json.loads(printed)["nodes"][0]["events"]}
        assert (found["xid.79"], found["xid.48"]) == ("recorded", "hardware_fault")

    @staticmethod
    def action(bus: str) -> list[str]:
        return [f"NVRM: Xid (PCI:0000:{bus}:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)"]

    def test_people_read_it_too(self) -> None:
        shown = invoked("analyze", "kernel-log", "-", given=f"[  100.000000] {XID.replace('python', '[red]x')}\n")
        for words in (
            "Xid 79 on GPU 0000:05:00.0",
            "hardware_fault",
            "reboot",
            "next: quarantine by row 10 (`understudy help decisions`), the",
            "to blame",
        ):
            assert words in shown

    def test_a_suspect_node_is_explained_by_its_worst_line_and_what_no_rule_reads_is_counted(self) -> None:
        logged = (
            "mlx5_core 0000:17:00.0: poll_health:817:(pid 0): device's health compromised - reached miss count",
            "mce: [Hardware Error]: CPU 4: Machine Check: 0 Bank 7: be00000000800400",
            "mlx5_core 0000:17:00.0 ib0: Link down",
            "mlx5_core 0000:17:00.0 ib0: Link up",
            "LustreError: 11-0: x-OST0001: operation ost_connect failed",
            "usb 1-1: new device",
        )
        given = "".join(
            f"Nov 21 18:48:4{n} {host} kernel: {line}\n" for host in ("c1", "c2") for n, line in enumerate(logged)
        )
        shown = invoked("analyze", "kernel-log", "-", given=given)
        assert "12 lines, 4 events on 2 nodes\n4 lines of mlx5_core that no rule reads\n2 lines of LustreError" in shown
        assert shown.count("help decisions") == 1
        reasons = [line for line in shown.splitlines() if "stays in service" in line]
        assert all("CPU 4: Machine Check" in one and "node quarantine NODE REASON" in one for one in reasons)
        assert len(reasons) == 2
        journal = json.dumps({"MESSAGE": logged[2], "_TRANSPORT": "kernel", "_HOSTNAME": "c1"})
        assert analyzed(journal)["without_rule"] == {"mlx5_core": 1}


class TestFiles:
    def test_a_packed_file_is_unpacked(self, tmp_path: Path) -> None:
        log = tmp_path / "dmesg.gz"
        log.write_bytes(gzip.compress(f"[  1.000000] {XID}\n".encode()))
        assert "1 event on 1 node" in invoked("analyze", "kernel-log", str(log))

    def test_a_packed_file_that_is_cut_off_is_named(self, tmp_path: Path) -> None:
        log = tmp_path / "dmesg.gz"
        log.write_bytes(gzip.compress(f"[  1.000000] {XID}\n".encode() * 999)[:-9])
        assert "cannot be read" in invoked("analyze", "kernel-log", str(log), status=2)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        assert "no-log: cannot be read" in invoked("analyze", "kernel-log", f"{tmp_path}/no-log", status=2).replace(
            "\n", ""
        )

    @pytest.mark.parametrize("seed", range(5))
    def test_rubbish_and_binary_files_are_survived(self, tmp_path: Path, seed: int) -> None:
        import random

        rng = random.Random(seed)  # noqa: S311
        log = tmp_path / "rubbish"
        pieces = [
            rng.randbytes(rng.randrange(2000)) + (XID.encode() if rng.random() < 0.1 else b"\n") for _ in range(300)
        ]
        log.write_bytes(b"".join(pieces))
        printed = json.loads(invoked("analyze", "kernel-log", str(log), "--json"))
        assert printed["lines"] > 0
        invoked("analyze", "kernel-log", str(log))

    def test_an_endless_line_is_survived(self, tmp_path: Path) -> None:
        log = tmp_path / "endless"
        log.write_bytes(b"x" * 1_000_000 + b"\n" + XID.encode() + b"\n" + XID.encode() + b"y" * 1_000_000)
        assert json.loads(invoked("analyze", "kernel-log", str(log), "--json"))["nodes"][0]["events"][0]["count"] == 2

    @pytest.mark.parametrize("pack", [lzma.compress, bz2.compress])
    def test_other_packed_files_are_unpacked(self, tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
        log = tmp_path / "dmesg.packed"
        log.write_bytes(pack(f"[  1.000000] {XID}\n".encode()))
        assert "1 event on 1 node" in invoked("analyze", "kernel-log", str(log))

    @pytest.mark.parametrize(
        ("head", "command"), [(b"\x28\xb5\x2f\xfd", "zstd -dc"), (b"LPKSHHRH", "journalctl -k -a -o json --file")]
    )
    def test_a_file_of_zstd_or_journald_is_refused_with_the_command_that_prints_it(
        self, tmp_path: Path, head: bytes, command: str
    ) -> None:
        log = tmp_path / "log"
        log.write_bytes(head + bytes(100))
        assert f"run `{command} {log}`" in invoked("analyze", "kernel-log", str(log), status=2).replace("\n", " ")

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
    def test_files_of_windows_are_read(self, tmp_path: Path, encoding: str) -> None:
        log = tmp_path / "dmesg.txt"
        log.write_bytes(f"[  1.000000] {XID}\r\n[  2.000000] {XID}\r\n".encode(encoding))
        (node,) = json.loads(invoked("analyze", "kernel-log", str(log), "--json"))["nodes"]
        assert [(one["time"], one["count"]) for one in node["events"]] == [("1.000000", 2)]


class TestExplain:
    def test_what_an_xid_means_and_what_would_be_done(self) -> None:
        shown = invoked("explain", "xid", "94", "--driver", "550.54.15")
        for words in (
            "RC_CONTAINED_ERROR",
            "row 130",
            "reset_gpu",
            "RESTART_APP",
            "RST and D-RST",
            "reports no action",
        ):
            assert words in shown

    def test_a_newer_driver_speaks_for_itself(self) -> None:
        assert "which goes first" in invoked("explain", "xid", "94", "--driver", "570.1")

    def test_a_code_that_is_in_no_catalogue(self) -> None:
        assert "[xid.policy.999]" in invoked("explain", "xid", "999")
        assert json.loads(invoked("explain", "xid", "999", "--json"))["known"] is False

    def test_a_switch(self) -> None:
        printed = json.loads(invoked("explain", "sxid", "20034", "--json"))
        assert (printed["class"], printed["decoded"], printed["echo_of"]) == ("hardware", "severity", "peer")

    def test_the_sites_own_row(self, tmp_path: Path) -> None:
        config = tmp_path / "site.toml"
        config.write_text('cluster = "c"\n[xid.policy.94]\nclass = "record"\nrepair = "none"\n')
        shown = invoked("explain", "xid", "94", "--config", str(config))
        assert "changed this row" in shown
        assert json.loads(invoked("explain", "xid", "94", "--config", str(config), "--json"))["overridden"] is True

    def test_every_row_can_be_explained(self) -> None:
        from understudy_controlplane.xid_policy import default_policy

        for code in default_policy().xid:
            assert json.loads(invoked("explain", "xid", str(code), "--json"))["known"] is True

    def test_a_bad_configuration_is_named(self, tmp_path: Path) -> None:
        config = tmp_path / "site.toml"
        config.write_text('cluster = "c"\n[xid.policy.94]\nclas = "record"\n')
        assert "did you mean" in invoked("explain", "xid", "94", "--config", str(config), status=2)


def test_of_a_long_log_no_more_is_remembered_than_the_service_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "SHOWN_MAX", 1000)
    lines = (f"[{at}.000000] NVRM: Xid (PCI:0000:{at % 8:02x}:00): {at % 700}, pid=1" for at in range(1, 20_000))
    reading = collected(*lines)
    remembered = reading.sources["node"].log.events(0.0)
    assert reading.sources["node"].lines == 19_999
    assert len(remembered) <= 500 * 30
    assert len(reading.shown) <= max(1000, 2 * len(remembered)) + 1
    assert all(("node", one.begun_at) in reading.shown for one in remembered)
