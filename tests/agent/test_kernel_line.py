"""Every form in which the driver speaks, and that rubbish is kept and never raises."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_agent.sample.kernel_record import RecordError, parse_record
from understudy_wire.facts import KernelEvent
from understudy_wire.kernel_line import Form, KernelLine, decode

FORMS: list[tuple[str, dict[str, object]]] = [
    (
        "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        {"code": 79, "bus_id": "0000:05:00.0", "pid": None, "process": "", "message": "GPU has fallen off the bus."},
    ),
    (
        "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
        {"code": 63, "bus_id": "0000:10:1c.0", "pid": 1896, "process": ""},
    ),
    ("NVRM: Xid (0000:03:00): 14, Channel 00000001", {"bus_id": "0000:03:00.0", "message": "Channel 00000001"}),
    (
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
        {"code": 94, "instance": "GPU-I:05", "unit": "CE User Channel", "reset": False, "drain_reset": False},
    ),
    (
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 95, pid=7, name=a b, Uncontained: LTC TAG (0x2,0x0). "
        "physAddr: 0x1f00 RST: Yes, D-RST: No",
        {"instance": "GPU-I:05 GPU-CI:00", "process": "a b", "unit": "LTC TAG", "reset": True, "address": "0x1f00"},
    ),
    (
        "NVRM: Xid (PCI:0000:91:00): 94, pid=5, name=x, RST: Yes, Contained: SM (0x1). RST: No, D-RST: Yes",
        {"reset": False, "drain_reset": True},
    ),
    ("NVRM: Xid (PCI:0000:9D:00): 94, Contained: SM (0x1)", {"reset": None, "drain_reset": None, "unit": "SM"}),
    (
        "NVRM: Xid (PCI:0000:91:00): 154, pid=9, name=python, GPU recovery action changed from 0x0 (None) to 0x1 "
        "(GPU Reset Required)",
        {"action_before": 0, "action": 1},
    ),
    (
        "NVRM: Xid (PCI:0000:91:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
        {"action_before": 0, "action": 2},
    ),
    (
        "NVRM: Xid (PCI:0000:91:00): 154, GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)",
        {"action_before": 1, "action": 0},
    ),
    ("NVRM: Xid (PCI:0000:91:00): 154, in words of a later driver", {"code": 154, "action": None}),
    (
        "NVRM: Xid (PCI:0000:91:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x1 0x2)",
        {"unit": "NETIR_LINK_EVT", "fatal": True, "cross_contain": False, "injected": False, "link": 1,
         "words": (0x021425C6, 0, 1, 2)},
    ),
    (
        "NVRM: Xid (PCI:0000:91:00): 145, RLW_REMAP Nonfatal XC1 i1 Link -1 (0x00000082 0x00000040)",
        {"unit": "RLW_REMAP", "fatal": False, "cross_contain": True, "injected": True, "link": None},
    ),
    ("NVRM: Xid (PCI:0000:91:00): 150, MSE Fatal in a new shape", {"unit": "MSE", "fatal": True, "words": ()}),
    (
        "NVRM: Xid (PCI:0000:b7:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link "
        "6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        {"link": 6, "fatal": True, "words": (0x10000, 0, 0, 0, 0, 0, 0)},
    ),
    (
        "NVRM: Xid (PCI:0000:b7:00): 74, NVLink: failed to train link 3 to remote PCI:0000:c1:00",
        {"link": 3, "remote_bus_id": "0000:c1:00.0", "words": ()},
    ),
    ("NVRM: Xid (PCI:0000:b7:00): 136, NVLink: Link training failed for link 12(0x4000)", {"link": 12}),
    (
        "NVRM: Xid (PCI:0000:0f:00): 64, pid=57530, Row Remapper Error: (0x00000005d28c03a0) - All reserved rows for "
        "bank are remapped",
        {"address": "0x00000005d28c03a0"},
    ),
    (
        "NVRM: Xid (PCI:0000:07:00): 119, pid=2357, name=nv-hostengine, Timeout waiting for RPC from GPU0 GSP! "
        "Expected function 76 (GSP_RM_CONTROL) (0x90cc0301 0xc).",
        {"function": "76 GSP_RM_CONTROL", "process": "nv-hostengine"},
    ),
    (
        "NVRM: Xid (PCI:0000:07:00): 140, An uncorrectable ECC error detected (possible firmware handling failure) "
        "DRAM:1, LTC:0, MMU:0, PCIE:2",
        {"counts": (("DRAM", 1), ("LTC", 0), ("MMU", 0), ("PCIE", 2))},
    ),
    ("NVRM: Xid (PCI:0000:07:00): 110, SEC_FAULT: something", {"code": 110, "message": "SEC_FAULT: something"}),
    (
        "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 2, "
        "SM 0): Illegal Instruction Parameter",
        {"location": "GPC 7 TPC 2"},
    ),
    (
        "NVRM: Xid (PCI:0000:05:00): 45, pid=12, name=python, channel 0x00000008 caused by previous Xid 94",
        {"caused_by": 94},
    ),
    ("NVRM: Xid (PCI:0000:91:00): 43", {"code": 43, "message": ""}),
    ("NVRM: Xid (PCI:00000000:9D:00.0): 48, DBE", {"bus_id": "0000:9d:00.0"}),
]  # fmt: skip

SWITCH: list[tuple[str, Form, dict[str, object]]] = [
    (
        "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 30 LTSSM Fault Up (First)",
        Form.SXID,
        {"code": 20034, "bus_id": "0000:c2:00.0", "severity": "fatal", "link": 30, "switch": 0},
    ),
    (
        "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 19084, Non-fatal, Link 10 AN1 Heartbeat Timeout Error (First)",
        Form.SXID,
        {"severity": "non-fatal", "link": 10, "switch": 3},
    ),
    ("nvidia-nvswitch1: SXid (PCI:0000:c3:00.0): 11012, Correctable, Link 2 x", Form.SXID, {"severity": "correctable"}),
    ("nvidia-nvswitch1: SXid (PCI:0000:c3:00.0): 10003, Host unhandled", Form.SXID, {"severity": "", "link": None}),
    (
        "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00",
        Form.SWITCH_DATA,
        {"code": 20034, "severity": "fatal"},
    ),
    (
        "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 20034, Data {0x00000001, 0x0000001e}",
        Form.SWITCH_DATA,
        {"words": (1, 30)},
    ),
]

OTHERS: list[tuple[str, Form, dict[str, object]]] = [
    ("NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.", Form.LOST, {"bus_id": "0000:05:00.0"}),
    ("NVRM: GPU at PCI:0000:05:00 has fallen off the bus.", Form.LOST, {"bus_id": "0000:05:00.0"}),
    ("NVRM: GPU at 0000:05:00.0 has fallen off the bus.", Form.LOST, {"bus_id": "0000:05:00.0"}),
    ("NVRM: GPU 0000:05:00.0: GPU serial number is 1654", Form.SERIAL, {"bus_id": "0000:05:00.0", "serial": "1654"}),
    ("NVRM: GPU Board Serial Number: 1320221025612", Form.SERIAL, {"serial": "1320221025612"}),
    (
        "NVRM: GPU at PCI:0000:91:00: GPU-c9696075-b0f8-0e72-1ab7-13e7bdf9b678",
        Form.IDENTITY,
        {"bus_id": "0000:91:00.0", "uuid": "GPU-c9696075-b0f8-0e72-1ab7-13e7bdf9b678"},
    ),
    ("NVRM: The NVIDIA GPU 0000:18:00.0", Form.GPU_NAMED, {"bus_id": "0000:18:00.0"}),
    ("NVRM: (PCI ID: 10de:2330) installed in this system has", Form.GPU_NAMED, {}),
    ("NVRM: fallen off the bus and is not responding to commands.", Form.LOST, {"bus_id": ""}),
    (
        "NVRM: The NVIDIA GPU 0000:18:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\\x0a"
        "NVRM: fallen off the bus and is not responding to commands.",
        Form.LOST,
        {"bus_id": "0000:18:00.0"},
    ),
    (
        "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:20b0)\\x0aNVRM: installed in this system has\\x0a"
        "NVRM: fallen off the bus and is not responding to commands.",
        Form.LOST,
        {"bus_id": "0000:18:00.0"},
    ),
    ("NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:20b0)", Form.GPU_NAMED, {"bus_id": "0000:18:00.0"}),
    ("NVRM: installed in this system has", Form.GPU_NAMED, {}),
    ("NVRM: GPU0 GSP RPC buffer contains function 76 (GSP_RM_CONTROL) and data 0x0 0x0.", Form.GSP_HISTORY, {}),
    ("NVRM: GPU0 RPC history (CPU -> GSP):", Form.GSP_HISTORY, {}),
    ("NVRM: GPU0 RPC event history (CPU <- GSP):", Form.GSP_HISTORY, {}),
    ("NVRM:     entry function                   data0              data1", Form.GSP_HISTORY, {}),
    ("NVRM:     -1    103  GSP_RM_ALLOC          0x00000000000090cc 0x0 706us", Form.GSP_HISTORY, {}),
    (
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:03:00 (printing 1 of every 30).",
        Form.GSP_HISTORY,
        {},
    ),
    ("NVRM: Xid (PCI:0000:05:00), as never before", Form.OTHER, {"code": None}),
]

ALL = [(text, Form.XID, fields) for text, fields in FORMS] + SWITCH + OTHERS


@pytest.mark.parametrize(("text", "form", "fields"), ALL)
def test_every_form_is_read(text: str, form: Form, fields: dict[str, object]) -> None:
    line = decode(text)
    assert line.form is form
    assert {name: getattr(line, name) for name in fields} == fields


@pytest.mark.parametrize(("text", "form", "fields"), ALL)
def test_the_agent_sends_every_form_with_the_same_number_and_address(
    text: str, form: Form, fields: dict[str, object]
) -> None:
    event = parse_record(f"4,1,1,-;{text}", "b", 0.0)
    assert event is not None
    assert event.text == text
    line = decode(text)
    if form is Form.XID:
        assert (event.xid, event.bus_id) == (line.code, line.bus_id)
    elif form is Form.SXID:
        assert (event.xid, event.bus_id) == (None, line.bus_id)


@given(st.text(max_size=400))
def test_no_text_raises_and_none_is_lost(text: str) -> None:
    line = decode(text)
    assert isinstance(line, KernelLine)
    assert line.form is not Form.OTHER or line.message == _unescaped(text)


def _unescaped(text: str) -> str:
    return decode(text).message if "\\x" in text else text.strip()


@pytest.mark.parametrize("seed", range(40))
def test_no_damaged_line_raises_in_agent_or_control_plane(seed: int) -> None:
    """Cut, doubled, with bytes changed: what is a record still is an event, what is none is named."""
    rng = random.Random(seed)  # noqa: S311
    for text, _, _ in ALL:
        record = list(f"4,1,1,-;{text}")
        for _ in range(rng.randrange(1, 12)):
            at = rng.randrange(len(record))
            record[at : at + rng.randrange(3)] = rng.choice(
                ["", "\x00", "(", ")", "0x", "\\x0", "é", ",", record[at] * 3]
            )
        damaged = "".join(record)
        decode(damaged)
        decode(damaged.split(";", 1)[-1])
        try:
            event = parse_record(damaged, "b", 0.0)
        except RecordError:
            continue
        assert event is None or isinstance(event, KernelEvent)
