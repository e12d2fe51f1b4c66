"""A real process crashes under a name that its user chose, and what the kernel really logs of it is no event."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from understudy_agent.sample.kernel_record import parse_record
from understudy_controlplane.xid_policy import default_policy

pytestmark = pytest.mark.integration

LIMITED_SECONDS = 5.0
"""The kernel logs ten crashes within this time."""

NAMES = [
    ("NVRM: ", "fallen off the bus and is not responding"),
    ("nvidia-uvm: ", "global fatal error"),
    ("mlx5_core ", "insufficient power on the PCIe slot"),
    ("EDAC ", "x UE x"),
    ("{", "[Hardware Error]: event severity: fatal"),
    ("nvme nvme", "x controller is down; will reset"),
    ("XFS (", "hutting down filesystem"),
    ("pcieport ", "DPC: containment event"),
    ("NVRM: x", "GPU is probably locked"),
    ("a\nNVRM: Xid", "x\nNVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."),
]

PROGRAM = r"""
#include <sys/prctl.h>
int main(int argc, char **argv) { prctl(PR_SET_NAME, argv[1], 0, 0, 0); *(volatile int *)0 = 1; return 0; }
"""


def really_logged(folder: Path, name: str, file: str) -> list[str]:
    """The kernel's records of a process of this name, in a file of this name, that crashes. Empty: it logged none."""
    program = folder / file
    source = folder / "crash.c"
    source.write_text(PROGRAM)
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
        subprocess.run(["cc", "-O0", "-o", "program", source], cwd=folder, check=True)
        (folder / "program").rename(program)
        subprocess.run([program, name], check=False)
        records: list[str] = []
        for _ in range(50):
            try:
                records.append(os.read(descriptor, 8192).decode().split("\n", 1)[0])
            except BlockingIOError:
                if any("segfault" in record for record in records):
                    break
                time.sleep(0.02)
        return records if any("segfault" in record for record in records) else []
    finally:
        os.close(descriptor)


def crashes_are_logged() -> bool:
    setting = Path("/proc/sys/debug/exception-trace")
    return os.geteuid() == 0 and os.access("/dev/kmsg", os.R_OK) and setting.exists() and setting.read_text() == "1\n"


@pytest.mark.skipif(not crashes_are_logged(), reason="needs root, /dev/kmsg, and a kernel that logs crashes")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("name", "file"), NAMES)
def test_a_real_crash_under_a_chosen_name_is_no_event(tmp_path: Path, name: str, file: str) -> None:
    until = time.monotonic() + 2 * LIMITED_SECONDS
    while not (records := really_logged(tmp_path, name, file)):
        assert time.monotonic() < until, "the kernel logged no crash"
    patterns = default_policy().kernel_log.patterns
    assert [parse_record(record, "b", 0.0, patterns) for record in records] == [None] * len(records)
