"""The node itself: memory, disks, clock, and how much its tasks wait."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from understudy_agent.sample.hardware_history import HardwareHistory, Seen
from understudy_wire.hardware import NOT_MOUNTED, Disk, Host
from understudy_wire.messages import PORTS_PER_NODE_MAX
from understudy_wire.values import DISKS_PER_NODE_MAX, SIZE_MAX, VERSIONS_PER_NODE_MAX, printable

_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
STA_UNSYNC = 0x40

_PRESSURE = re.compile(r"^(some|full) avg10=[\d.]+ avg60=([\d.]+)", re.MULTILINE)
_MEMINFO = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB", re.MULTILINE)


VERSION_CHARACTERS_MAX = 128

FABRIC_MANAGER = "nvidia-fabricmanager.service"


class Timex(ctypes.Structure):
    """struct timex of adjtimex(2), as far as it is needed; `rest` has the size of the other fields."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )


def read_clock() -> tuple[int, Timex | None]:
    """What adjtimex(2) returns, and the state; None: a sandbox forbids the call."""
    state = Timex()
    result = int(ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state)))
    return result, state if result >= 0 else None


def read_host(sys: Path, proc: Path, disks: Sequence[Path]) -> Host:
    """`sys` and `proc` are /sys and /proc, or folders of the same form."""
    memory = {name: int(kilobytes) * 1024 for name, kilobytes in _MEMINFO.findall(_read(proc / "meminfo"))}
    synchronised, error_seconds = _clock()
    return Host(
        memory_total_bytes=memory.get("MemTotal"),
        memory_available_bytes=memory.get("MemAvailable"),
        fabric_manager=_fabric_manager_runs(sys),
        memory_errors_corrected=_memory_errors(sys, "ce_count"),
        memory_errors_uncorrected=_memory_errors(sys, "ue_count"),
        clock_synchronised=synchronised,
        clock_error_seconds=error_seconds,
        cpu_pressure_percent=_pressure(proc, "cpu", "some"),
        io_pressure_percent=_pressure(proc, "io", "full"),
        memory_pressure_percent=_pressure(proc, "memory", "full"),
        disks=[_disk(path) for path in disks[:DISKS_PER_NODE_MAX]],
        versions=_versions(sys, proc),
    )


def _versions(sys: Path, proc: Path) -> dict[str, str]:
    """Adapters of one board should have the same firmware: all that there are, in order."""
    firmware: dict[str, set[str]] = {}
    for adapter in sorted((sys / "class" / "infiniband").glob("*"))[:PORTS_PER_NODE_MAX]:
        board, version = _read(adapter / "board_id").strip(), _read(adapter / "fw_ver").strip()
        if board and version:
            firmware.setdefault(f"firmware of {board}", set()).add(version)
    found = {
        "kernel": _read(proc / "sys" / "kernel" / "osrelease").strip(),
        "BIOS": _read(sys / "class" / "dmi" / "id" / "bios_version").strip(),
        **{what: ", ".join(sorted(versions)) for what, versions in firmware.items()},
        **_bios_settings(sys),
    }
    shown = {_shown(what): _shown(text) for what, text in found.items()}
    known = {what: text for what, text in shown.items() if text}
    return dict(list(known.items())[:VERSIONS_PER_NODE_MAX])


def _shown(text: str) -> str:
    return printable(text, VERSION_CHARACTERS_MAX).strip()


def _bios_settings(sys: Path) -> dict[str, str]:
    """Settings as far as the kernel shows what follows from them; empty: it does not."""
    cpu = sys / "devices" / "system" / "cpu"
    off = {"0": "off", "1": "on"}
    turbo = off.get(_read(cpu / "cpufreq" / "boost").strip(), "")
    return {
        "SMT": _read(cpu / "smt" / "control").strip(),
        "NUMA nodes": _read(sys / "devices" / "system" / "node" / "online").strip(),
        "IOMMU": ("on" if any((sys / "class" / "iommu").glob("*")) else "off") if (sys / "class").exists() else "",
        "turbo": turbo or {"0": "on", "1": "off"}.get(_read(cpu / "intel_pstate" / "no_turbo").strip(), ""),
    }


def _read(path: Path) -> str:
    """Empty where this kernel has no such file."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _memory_errors(sys: Path, name: str) -> int | None:
    counts = [_read(path).strip() for path in (sys / "devices/system/edac/mc").glob(f"mc*/{name}")]
    known = [int(count) for count in counts if count.isdecimal()]
    return sum(known) if known else None


def _fabric_manager_runs(sys: Path) -> bool:
    """systemd removes the cgroup of a service that does not run. Of cgroup v2, or systemd's own hierarchy of v1."""
    groups = (sys / "fs/cgroup", sys / "fs/cgroup/systemd")
    return any(_read(group / "system.slice" / FABRIC_MANAGER / "cgroup.procs").strip() for group in groups)


def _pressure(proc: Path, resource: str, which: str) -> float | None:
    lines = dict(_PRESSURE.findall(_read(proc / "pressure" / resource)))
    return float(lines[which]) if which in lines else None


def _clock() -> tuple[bool | None, float | None]:
    """True if the kernel considers its clock synchronised, and its bound on the error. Reading it changes nothing."""
    result, state = read_clock()
    if state is None:
        return None, None
    return result != _TIME_ERROR and not state.status & STA_UNSYNC, state.maxerror / 1e6


def _disk(path: Path) -> Disk:
    try:
        found = os.statvfs(path)
    except OSError as error:
        return Disk(str(path), 0, 0, problem=error.strerror or str(error))
    total_bytes = min(found.f_blocks * found.f_frsize, SIZE_MAX)
    return Disk(
        path=str(path),
        total_bytes=total_bytes,
        free_bytes=min(found.f_bavail * found.f_frsize, total_bytes),
        free_inodes_share=min(round(found.f_favail / found.f_files, 4), 1.0) if found.f_files else None,
        problem="read-only" if found.f_flag & os.ST_RDONLY else "",
    )


def read_mounts(disks: Sequence[Path]) -> list[str]:
    """The paths at which a file system is mounted. May hang, as read_host() may."""
    return [str(path) for path in disks[:DISKS_PER_NODE_MAX] if os.path.ismount(path)]


def with_history(host: Host, mounts: Sequence[str], hardware: HardwareHistory) -> Host:
    """A file system that was always read-only is meant to be, and one that was never mounted is not missing.

    Where one is no longer mounted, the folder under it is read instead, and shows no problem.
    """
    seen = hardware.seen
    seen.mounted += [path for path in mounts if path not in seen.mounted]
    lost = set(seen.mounted).difference(mounts)
    well = (disk.path for disk in host.disks if not disk.problem and disk.path not in lost)
    seen.writable += [path for path in well if path not in seen.writable]
    disks = [replace(disk, problem=_problem(disk, seen, disk.path in lost)) for disk in host.disks]
    seen.fabric_manager = seen.fabric_manager or bool(host.fabric_manager)
    hardware.save()
    return replace(
        host,
        disks=[disk for disk in disks if disk.total_bytes or disk.problem],
        fabric_manager=bool(host.fabric_manager) if seen.fabric_manager else None,
    )


def _problem(disk: Disk, seen: Seen, lost: bool) -> str:
    if lost and (disk.total_bytes or not disk.problem):
        return NOT_MOUNTED
    known = disk.path in seen.writable or (lost and not disk.total_bytes)
    return disk.problem if known else ""
