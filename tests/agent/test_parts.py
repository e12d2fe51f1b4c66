"""Serial numbers of boards, cards and modules, from files and memory as the kernel shows them."""

from __future__ import annotations

import os
from pathlib import Path
from sys import executable

import pytest

from tests.agent.test_file_tasks import as_the_service
from understudy_agent.sample.ethtool import module_memory
from understudy_agent.sample.parts import module_of, read_parts, vpd_of
from understudy_wire.hardware import Part, PartKind


def field(keyword: str, text: str) -> bytes:
    return keyword.encode() + bytes([len(text)]) + text.encode()


def resource(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + len(data).to_bytes(2, "little") + data


VPD = (
    resource(0x82, b"ConnectX-7 400G")
    + resource(0x90, field("PN", "MCX75310AAS-NEAT ") + field("SN", "MT2233X00123") + field("RV", "\x9a"))
    + b"\x78\xff\xff"
)


def placed(memory: bytearray, at: int, text: str, size: int = 16) -> None:
    memory[at : at + size] = text.ljust(size).encode()


def module(kind: int, vendor: int, part: int, serial: int) -> bytes:
    memory = bytearray(256)
    memory[0] = kind
    placed(memory, vendor, "NVIDIA")
    placed(memory, part, "MMA4Z00-NS")
    placed(memory, serial, "MT2301FT00042")
    return bytes(memory)


@pytest.mark.parametrize(
    "memory",
    [module(0x03, 20, 40, 68), module(0x11, 148, 168, 196), module(0x19, 129, 148, 166)],
    ids=["SFP", "QSFP28", "OSFP"],
)
def test_a_modules_serial_is_read_in_each_form(memory: bytes) -> None:
    assert module_of(memory) == ("NVIDIA MMA4Z00-NS", "MT2301FT00042")


@pytest.mark.parametrize("memory", [b"", b"\x77" * 256, bytes(256), b"\x03", b"\x11" + b"\xff" * 255])
def test_a_module_of_an_unknown_form_or_without_text_has_no_serial(memory: bytes) -> None:
    assert module_of(memory)[1] == ""


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, VPD[:5], VPD[:30], b"\x90\xff\xffSN", b"\x82"])
def test_a_vpd_that_is_broken_or_cut_off_has_what_can_be_read(data: bytes) -> None:
    assert vpd_of(data).keys() <= {"PN"}
    assert vpd_of(VPD)["SN"] == "MT2233X00123"


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """A board, a card with a VPD, a virtual function, a card without one, and three ports of Ethernet."""
    files = {
        "class/dmi/id/product_name": b"DGXH100\n",
        "class/dmi/id/product_serial": b"1663123000012\n",
        "class/dmi/id/board_name": b"DGXH100\n",
        "class/dmi/id/board_serial": b"To be filled by O.E.M.\n",
        "class/infiniband/mlx5_0/device/vpd": VPD,
        "class/infiniband/mlx5_0/node_guid": b"9803:9b03:00a1:b2c3\n",
        "class/infiniband/mlx5_1/device/physfn/vendor": b"0x15b3\n",
        "class/infiniband/mlx5_2/board_id": b"MT_0000000838\n",
        "class/infiniband/mlx5_2/node_guid": b"9803:9b03:00a1:ffff\n",
        "class/net/eth0/device/vendor": b"0x15b3\n",
        "class/net/eth1/device/vendor": b"0x15b3\n",
        "class/net/eth2/device/vendor": b"0x15b3\n",
        "class/net/lo/address": b"00:00:00:00:00:00\n",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


def memory_of(interface: str) -> bytes:
    if interface == "eth0":
        return module(0x19, 129, 148, 166)
    raise PermissionError if interface == "eth1" else OSError(95, "Operation not supported")


def test_a_place_with_any_name_is_named_as_a_report_can_have_it(sys: Path) -> None:
    """The kernel lets root name an interface with any byte but a few."""
    (sys / "class/net/e\x01\udcff").mkdir()
    (sys / "class/net/e\x01\udcff/device").mkdir()
    place = read_parts(sys, lambda _: module(0x19, 129, 148, 166))[-4].place
    assert place == "e  "


def test_each_part_has_its_place_and_what_may_not_be_read_is_empty(sys: Path) -> None:
    assert read_parts(sys, memory_of) == [
        Part(PartKind.BOARD, "system", "DGXH100", "1663123000012"),
        Part(PartKind.BOARD, "board", "DGXH100", ""),
        Part(PartKind.CARD, "mlx5_0", "MCX75310AAS-NEAT", "MT2233X00123", "9803:9b03:00a1:b2c3"),
        Part(PartKind.CARD, "mlx5_2", "MT_0000000838", "", "9803:9b03:00a1:ffff"),
        Part(PartKind.MODULE, "eth0", "NVIDIA MMA4Z00-NS", "MT2301FT00042"),
        Part(PartKind.MODULE, "eth1"),
    ]


def test_a_machine_without_any_of_it_has_no_parts(tmp_path: Path) -> None:
    assert read_parts(tmp_path) == []


def test_an_interface_without_a_module_raises_nothing_but_oserror() -> None:
    with pytest.raises(OSError, match=r"(?i)not supported|not permitted"):
        module_memory("lo")


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an agent has")
def test_the_agents_unit_lets_it_read_modules() -> None:
    """An interface without a module has none to show; without the right the kernel would not say that."""
    code = (
        "from understudy_agent.sample.ethtool import module_memory\n"
        "try:\n    module_memory('lo')\nexcept OSError as error:\n    print(type(error).__name__)"
    )
    assert as_the_service(executable, "-c", code) == "OSError"
