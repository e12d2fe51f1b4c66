from __future__ import annotations

import pytest

from understudy_agent.sample.kernel_record import RecordError, parse_record
from understudy_wire.facts import KernelEvent
from understudy_wire.pci import normal_bus_id
from understudy_wire.values import TEXT_CHARACTERS_MAX

SHAPES = [
    ("NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", 79, "05"),
    ("NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping.", 63, "10:1c"),
    ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "03"),
    ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).", 94, "01"),
    ("NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, Contained: CE User Channel (0x9).", 94, "01"),
    ("NVRM: Xid (PCI:0000:9D:00.0): 48, pid=12, name=python, DBE", 48, "9d"),
    ("NVRM: Xid (PCI:00000000:9D:00): 48, pid=12, name=python, DBE", 48, "9d"),
    ("NVRM: Xid (PCI:0000:91:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", 154, "91"),
    ("NVRM: Xid (PCI:0000:91:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)", 149, "91"),
    ("NVRM: Xid (PCI:0000:91:00): 119, Timeout waiting for RPC from GSP1!", 119, "91"),
    ("NVRM: Xid (PCI:0000:91:00): 43", 43, "91"),
    ("NVRM: Xid (PCI:0000:01:00 GPU-CI:00 GPU-I:05): 94, Contained: CE User Channel (0x9).", 94, "01"),
    (r"NVRM: Xid (PCI:0000:05:00): 79\x2c GPU has fallen off the bus.", 79, "05"),
]


@pytest.mark.parametrize(("text", "xid", "bus"), SHAPES)
def test_every_known_shape_of_an_xid_line_gives_its_number_and_its_gpu(text: str, xid: int, bus: str) -> None:
    event = parse_record(f"4,812,2500000,-;{text}", "boot-1", 1000.0)
    address = f"0000:{bus}.0" if ":" in bus else f"0000:{bus}:00.0"
    assert event == KernelEvent(boot_id="boot-1", sequence=812, at=1002.5, text=text, xid=xid, bus_id=address)


def test_a_record_as_the_driver_writes_it_and_with_more_flags_is_parsed() -> None:
    event = parse_record("4,7,1,c,caller=T22;NVRM: Xid (PCI:0000:05:00): 13, x", "b", 0.0)
    assert event is not None
    assert event.xid == 13


def test_an_xid_line_of_an_unknown_shape_is_kept_without_a_number() -> None:
    event = parse_record("4,8,1,-;NVRM: Xid (PCI:0000:05:00), in an unknown shape", "b", 0.0)
    assert event is not None
    assert (event.xid, event.bus_id, event.text) == (None, "", "NVRM: Xid (PCI:0000:05:00), in an unknown shape")


@pytest.mark.parametrize(
    "line",
    [
        "6,1,0,-;Linux version 6.1",
        "4,2,1,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "12,3,1,-;NVRM: Xid (PCI:0000:05:00): 79, x",
        "4,3,1,-;NVRM: Xid in an unknown shape",
        "4,3,1,-;someone says NVRM: Xid (PCI:0000:05:00): 79",
        " SUBSYSTEM=pci",
        "",
    ],
)
def test_other_lines_are_no_events(line: str) -> None:
    assert parse_record(line, "b", 0.0) is None


@pytest.mark.parametrize("line", ["nonsense", "4,x,1,-;NVRM: Xid", "4,1;NVRM: Xid", "4,1,1,-", "\x00\x00", "9" * 4000])
def test_a_malformed_record_is_an_error(line: str) -> None:
    with pytest.raises(RecordError):
        parse_record(line, "b", 0.0)


def test_a_long_text_is_cut() -> None:
    event = parse_record("4,1,1,-;NVRM: Xid (PCI:0000:05:00): 13, " + "x" * 9000, "b", 0.0)
    assert event is not None
    assert len(event.text) == TEXT_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1b:00", "0000:1b:00.0"),
        ("00010000:1B:00.0", "10000:1b:00.0"),
        ("no address", ""),
    ],
)
def test_pci_addresses_have_one_form(written: str, normal: str) -> None:
    assert normal_bus_id(written) == normal
