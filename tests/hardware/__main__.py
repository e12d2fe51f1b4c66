"""`make hardware`: all parts on this machine, within eight minutes. The report is build/hardware/report.md and
report.json.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tests import REPOSITORY
from tests.hardware import parts
from tests.hardware.parts import Found, Part, run_part

SECONDS_MAX = 480.0

PARTS: dict[str, Callable[[float], Found]] = {
    "Readings of NVML": parts.readings,
    "Kernel log": parts.kernel_log,
    "Self-check on CUDA": parts.selfcheck,
    "Validation": parts.validation,
    "Hook": parts.hook,
    "Tests within a training": parts.training,
    "In-process restart": parts.in_process,
    "NCCL's RAS service and Inspector": parts.nccl,
    "State in the memory of nodes": parts.peer_memory,
    "Footprint of the agent": parts.footprint,
}


def main() -> int:
    deadline = time.monotonic() + SECONDS_MAX
    done: list[Part] = []
    folder = REPOSITORY / "build" / "hardware"
    for name, part in PARTS.items():
        done.append(run_part(name, part, deadline - time.monotonic()))
        sys.stdout.write(f"{name}: {done[-1].outcome}, {done[-1].seconds:.0f} s\n")
        sys.stdout.flush()
        write(folder, done)  # what is interrupted loses no part
    sys.stdout.write(f"{folder}/report.md\n")
    return int(any(part.outcome == "failed" for part in done) or all(part.outcome != "done" for part in done))


def write(folder: Path, done: Sequence[Part]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(done), indent=1) + b"\n")
    (folder / "report.md").write_text(markdown(done))


def markdown(done: Sequence[Part]) -> str:
    lines = [
        f"# Understudy on {platform.node()}",
        "",
        f"Linux {platform.release()}, Python {platform.python_version()}",
        "",
    ]
    return "\n".join([*lines, *body(done)])


def body(done: Sequence[Part]) -> list[str]:
    lines: list[str] = []
    for part in done:
        lines += [f"## {part.name}", f"{part.outcome}, {part.seconds:.1f} s", "", *as_list(part.lines), ""]
    return lines


def as_list(lines: Sequence[str]) -> list[str]:
    """Lines that are no table, each an item."""
    return list(lines) if any(line.startswith("|") for line in lines) else [f"- {line}" for line in lines]


if __name__ == "__main__":
    sys.exit(main())
