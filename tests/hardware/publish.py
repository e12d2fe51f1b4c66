"""Keeps a report of `make hardware` in docs/hardware, without serial numbers and UUIDs:

python -m tests.hardware.publish build/hardware/report.json 2026-11-26 "a virtual machine with one GPU"
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests import REPOSITORY
from tests.hardware.__main__ import body
from tests.hardware.parts import Part
from tests.hardware.readings import NodeRead

FOLDER = REPOSITORY / "docs" / "hardware"
UUID = re.compile(rb"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def node_of(parts: Sequence[Part]) -> NodeRead:
    """What NVML read."""
    read = next(part for part in parts if part.name == "Readings of NVML")
    return msgspec.convert(read.values["real"], NodeRead)


def read_report(text: bytes) -> list[Part]:
    return msgspec.json.decode(text, type=list[Part])


def published(text: bytes) -> list[Part]:
    """The report without what names one GPU of all."""
    for gpu in node_of(read_report(text)).gpus:
        serial = str(gpu.values().get("serial") or "")
        if serial:
            text = text.replace(serial.encode(), b"-")
    return read_report(UUID.sub(b"GPU-", text))


def prose(lines: Sequence[str]) -> list[str]:
    """Lines without tables and durations: the file beside the page has each reading."""
    return [line for line in lines if not line.startswith(("|", "done, "))]


def main(report: str, day: str, machine: str) -> None:
    parts = published(Path(report).read_bytes())
    node = node_of(parts)
    name = str(node.gpus[0].values()["name"])
    file = re.sub(r"[^a-z0-9.]+", "-", f"{name} {node.driver_version}".lower().removeprefix("nvidia "))
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{file}.json").write_bytes(msgspec.json.format(msgspec.json.encode(parts), indent=1) + b"\n")
    title = f"# {name}, driver {node.driver_version}"
    origin = (
        f"What `make hardware` reported on {day}, on {machine}. Serial numbers and UUIDs are left out; the JSON file "
        "beside this page has each reading."
    )
    (FOLDER / f"{file}.md").write_text("\n".join([title, "", origin, "", *prose(body(parts))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
