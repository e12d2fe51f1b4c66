"""Serial numbers of boards, network cards and their optical modules. What this user may not read stays empty: DMI's
serials and a card's VPD are for root, a module's memory needs CAP_NET_ADMIN.

VPD: PCI Local Bus Specification 3.0, appendix I. Modules: SFF-8472 (SFP), SFF-8636 (QSFP), CMIS 5 (QSFP-DD, OSFP).
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from understudy_agent.sample.ethtool import module_memory
from understudy_wire.hardware import Part, PartKind
from understudy_wire.messages import PARTS_PER_NODE_MAX
from understudy_wire.values import NAME_CHARACTERS_MAX, printable

VPD_BYTES_MAX = 32 * 1024
TEXT_CHARACTERS_MAX = 128
_DMI = (
    ("system", "product_name", "product_serial"),
    ("board", "board_name", "board_serial"),
    ("chassis", "chassis_vendor", "chassis_serial"),
)
_NO_SERIALS = frozenset({"", "none", "0", "default string", "not specified", "to be filled by o.e.m.", "n/a"})
_ID_STRING, _READ_ONLY, _END = 0x82, 0x90, 0x78
_PRINTABLE = frozenset(string.printable) - frozenset(string.whitespace) | {" "}

ReadModule = Callable[[str], bytes]
"""Reads the module of a network interface. Raises PermissionError, and OSError where there is none."""


def read_parts(sys: Path, read_module: ReadModule = module_memory) -> list[Part]:
    """`sys` is /sys, or a folder of the same form. May hang, as reading ports may."""
    found = [*_boards(sys), *_cards(sys), *_modules(sys, read_module)]
    return found[:PARTS_PER_NODE_MAX]


def _boards(sys: Path) -> Iterator[Part]:
    folder = sys / "class" / "dmi" / "id"
    for place, model, serial in _DMI:
        if (folder / model).exists():
            yield Part(PartKind.BOARD, place, _text(folder / model), _serial(_text(folder / serial)))


def _cards(sys: Path) -> Iterator[Part]:
    """Adapters that carry a gang's traffic; virtual functions are no cards."""
    for card in sorted((sys / "class" / "infiniband").glob("*")):
        if not (card / "device" / "physfn").exists():
            vpd = vpd_of(_bytes(card / "device" / "vpd"))
            model = vpd.get("PN") or _text(card / "board_id") or _text(card / "hca_type")
            yield Part(PartKind.CARD, _place(card), model, _serial(vpd.get("SN", "")), _text(card / "node_guid"))


def _modules(sys: Path, read_module: ReadModule) -> Iterator[Part]:
    for interface in sorted((sys / "class" / "net").glob("*")):
        if not (interface / "device").exists() or (interface / "device" / "physfn").exists():
            continue
        try:
            memory = read_module(interface.name)
        except PermissionError:
            yield Part(PartKind.MODULE, _place(interface))
        except OSError:
            continue  # it has no module, or its driver shows none
        else:
            model, serial = module_of(memory)
            yield Part(PartKind.MODULE, _place(interface), model, _serial(serial))


def vpd_of(data: bytes) -> Mapping[str, str]:
    """Keyword → its text, of the read-only part; nothing where it is no VPD."""
    found: dict[str, str] = {}
    at = 0
    while at + 3 <= len(data) and data[at] in (_ID_STRING, _READ_ONLY):
        end = at + 3 + int.from_bytes(data[at + 1 : at + 3], "little")
        if data[at] == _READ_ONLY:
            field = at + 3
            while field + 3 <= min(end, len(data)):
                size = data[field + 2]
                found[_clean(data[field : field + 2])] = _clean(data[field + 3 : field + 3 + size])
                field += 3 + size
        at = end
    return found


def module_of(memory: bytes) -> tuple[str, str]:
    """Vendor with part number, and serial number; empty where the form is not known."""
    kind = memory[0] if memory else 0
    if kind == 0x03:  # SFP
        vendor, part, serial = (20, 36), (40, 56), (68, 84)
    elif kind in (0x0C, 0x0D, 0x11):  # QSFP, QSFP+, QSFP28
        vendor, part, serial = (148, 164), (168, 184), (196, 212)
    elif kind in (0x18, 0x19, 0x1A, 0x1B, 0x1E, 0x1F, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25):  # CMIS
        vendor, part, serial = (129, 145), (148, 164), (166, 182)
    else:
        return "", ""
    model = " ".join(filter(None, (_clean(memory[slice(*vendor)]), _clean(memory[slice(*part)]))))
    return model, _clean(memory[slice(*serial)])


def _serial(text: str) -> str:
    return "" if text.lower() in _NO_SERIALS else text


def _place(folder: Path) -> str:
    return printable(folder.name, NAME_CHARACTERS_MAX)


def _clean(data: bytes) -> str:
    text = "".join(one for one in data.decode("ascii", "replace") if one in _PRINTABLE)
    return " ".join(text.split())[:TEXT_CHARACTERS_MAX]


def _text(path: Path) -> str:
    return _clean(_bytes(path))


def _bytes(path: Path) -> bytes:
    """Empty where there is no such file, or only root may read it."""
    try:
        with path.open("rb") as file:
            return file.read(VPD_BYTES_MAX)
    except OSError:
        return b""
