"""Users choose names of processes, files and cgroups, and the kernel prints them. Nothing follows from such a name.

The forms are the kernel's own, of Linux 5.14 to 6.18. Real processes crash in test_crashes_in_the_kernel_log.py.
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Iterator

import pytest

from tests import kernel_lines
from understudy_agent.sample.kernel_record import RecordError, parse_record
from understudy_controlplane.cli.analyze.kernel_log import collect
from understudy_controlplane.cli.analyze.log_records import text_records
from understudy_controlplane.detect.node_log import kernel_row_name
from understudy_controlplane.xid_policy import default_policy
from understudy_wire.kernel_line import Form, decode

PROCESS_NAME_BYTES_MAX = 15

FORMS = [
    # arch/x86/mm/fault.c, arch/x86/kernel/{traps,umip,process}.c, arch/x86/entry/vsyscall, arch/x86/kernel/signal.c
    "{name}[358]: segfault at 0 ip 000056107063 sp 00007fffbab4 error 6 in {file}[116b,561070+1000] likely on CPU 1",
    "{name}[358]: segfault at 0 ip 000056107063 sp 00007fffbab4 error 4 in {file}[561070+1000]",
    "traps: {name}[358] general protection fault ip:561070 sp:7fffba error:0 in {file}[561070+1000]",
    "traps: {name}[358] trap divide error ip:561070 sp:7fffba error:0 in {file}[561070+1000]",
    "umip: {name}[358] ip:401136 sp:7ffc: SGDT instruction cannot be used by applications.",
    "{name}[358] vsyscall attempted with vsyscall=none ip:ffffffffff600000 cs:33 sp:7ffc ax:0 si:0 di:0",
    "{name}[358] bad frame in rt_sigreturn frame:00007ffc ip:7f sp:7ffc orax:ffffffffffffffff in {file}[7f+1000]",
    "x86/split lock detection: #AC: {name}/358 took a split_lock trap at address: 0x401136",
    # kernel/signal.c, kernel/hung_task.c, kernel/capability.c, kernel/ptrace.c, kernel/futex, lib/dump_stack.c
    "{name}/358: potentially unexpected fatal signal 11.",
    "task:{name}  state:D stack:0     pid:358   ppid:1      flags:0x00004002",
    "capability: warning: `{name}' uses 32-bit capabilities (legacy support in use)",
    'ptrace attach of "{name}"[358] was attempted by "{name}"[359]',
    "futex_wake_op: {name} tries to shift op by -1; fix this program",
    "CPU: 0 PID: 358 Comm: {name} Not tainted 6.1.0-9-amd64 #1",
    # mm/oom_kill.c, mm/page_alloc.c, mm/memcontrol.c, mm/memfd.c, mm/memory-failure.c
    "{name} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "oom-kill:constraint=CONSTRAINT_MEMCG,cpuset={file},oom_memcg=/{file},task_memcg=/{file},task={name},pid=358",
    "[    358]  1000   358    50123    1234   123456        0             0 {name}",
    "oom_reaper: reaped process 358 ({name}), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    "Memory cgroup stats for /{file}:",
    "{name}: page allocation failure: order:0, mode:0xcc0(GFP_KERNEL), nodemask=(null),cpuset={file},mems_allowed=0",
    "{name}[358]: memfd_create() called without MFD_EXEC or MFD_NOEXEC_SEAL set",
    "Memory failure: 0x1234: Sending SIGBUS to {name}:358 due to hardware memory corruption",
    "MCE: Killing {name}:358 due to hardware memory corruption fault at 7f3c00000000",
    # fs/exec.c, fs/coredump.c, fs/drop_caches.c, block/blk-core.c, net/netlink, kernel/audit.c, crypto/arc4.c
    "process '{file}' started with executable stack",
    "Pid 358({name}) over core_pipe_limit",
    "{name} (358): drop_caches: 3",
    "{name}: attempt to access beyond end of device\nloop0: rw=0, sector=2, nr_sectors = 2 limit=0",
    "netlink: 4 bytes leftover after parsing attributes in process `{name}'.",
    'audit: type=1701 audit(1.2:3): uid=1000 pid=358 comm="{name}" exe="{file}" sig=11 res=1',
    '"{name}" (358) uses obsolete ecb(arc4) skcipher',
    # A file system in an image that a user owns, as containers mount it through a loop device
    "EXT4-fs error (device loop0): htree_dirblock_to_tree:1090: inode #2: comm {name}: bad entry in {file}",
    "EXT4-fs (loop0): Remounting filesystem read-only",
    "XFS (loop0): Corruption of in-memory data detected.  Shutting down filesystem",
    # kernel-open/nvidia: the driver's own words about a client
    "NVRM: API mismatch: the client '{name}' (pid 358) has the version 550, but this module has 570",
    "NVRM: nvidia_ioctl: {file}",
]

OF_A_ROW = {
    "Memory cgroup out of memory: Killed process 358 ({name}) total-vm:1kB, anon-rss:1kB": "rank_out_of_memory",
    "Out of memory: Killed process 358 ({name}) total-vm:1kB, anon-rss:1kB": "host_out_of_memory",
    "INFO: task {name}:358 blocked for more than 120 seconds.": "hung_task",
    "watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [{name}:358]": "soft_lockup",
}
"""Forms that mean something, and the same under every name."""

DRIVER = [
    "NVRM: fallen off the bus and is not responding to commands.",
    "NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=x, GPU has fallen off the bus.",
    "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.",
    "NVRM: The NVIDIA GPU 0000:18:00.0",
    "NVRM: GPU Board Serial Number: 1320221025612",
    "NVRM: -1 1 A x",
    "NVRM: Xid in an unknown shape",
    "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 30 LTSSM Fault Up (First)",
]


LINES = [*DRIVER, *(text for _, _, texts in kernel_lines.LINES.values() for text in texts), "AER: Uncorrected (Fatal)"]


def names(line: str) -> Iterator[tuple[str, str]]:
    """A process and a file whose names together make the line, cut in every place and in every wrapping."""
    for cut in range(min(len(line), PROCESS_NAME_BYTES_MAX) + 1):
        yield line[:cut], line[cut:] or "x"
    for wrapped in (line, f"\n{line}", f"] {line}", f"x: {line}", f"4,1,1,-;{line}"):
        yield wrapped[:PROCESS_NAME_BYTES_MAX], wrapped


def as_logged(text: str) -> str:
    """Text as /dev/kmsg writes it."""
    return "".join(c if " " <= c <= "~" and c != "\\" else f"\\x{ord(c):02x}" for c in text)


PATTERNS = default_policy().kernel_log.patterns


@pytest.mark.parametrize("form", FORMS)
def test_no_name_in_a_line_of_the_kernel_means_anything(form: str) -> None:
    for line in LINES:
        for name, file in names(line):
            text = as_logged(form.format(name=name, file=file.replace("/", "")))
            assert parse_record(f"6,1,1,-;{text}", "b", 0.0, PATTERNS) is None, text
            assert kernel_row_name(text) == "", text
            assert decode(text).form is Form.OTHER, text


@pytest.mark.parametrize(("form", "row"), OF_A_ROW.items())
def test_a_line_about_a_process_means_the_same_whatever_its_name(form: str, row: str) -> None:
    for line in LINES:
        for name, _ in names(line):
            text = as_logged(form.format(name=name or "x"))
            assert kernel_row_name(text) == row, text
            assert decode(text).form is Form.OTHER, text


@pytest.mark.parametrize("line", LINES)
def test_what_a_process_writes_to_the_log_and_what_continues_a_line_is_not_the_kernels(line: str) -> None:
    for priority in (8, 12, 30, 134):  # user, daemon and local facilities
        assert parse_record(f"{priority},1,1,-;{line}", "b", 0.0, PATTERNS) is None
    if not line.startswith("NVRM: "):  # the driver's own lines have the flag as well
        assert parse_record(f"6,1,1,c;{line}", "b", 0.0, PATTERNS) is None


def test_names_made_at_random_mean_nothing() -> None:
    rng = random.Random(38)  # noqa: S311
    pieces = [piece for line in LINES for piece in re.split(r"(\W)", line) if piece] + ["\n", "\x1b", "\xe9"]
    for _ in range(20_000):
        file = "".join(rng.choices(pieces, k=rng.randrange(1, 12))).replace("/", "")
        name = "".join(rng.choices(pieces, k=rng.randrange(1, 6)))[: rng.randrange(1, PROCESS_NAME_BYTES_MAX + 1)]
        text = as_logged(rng.choice(FORMS).format(name=name, file=file))
        assert parse_record(f"6,1,1,-;{text}", "b", 0.0, PATTERNS) is None, text
        assert kernel_row_name(text) == "", text


PREFIXES = [
    "[  728.627591] ",
    "[Tue Nov 25 13:58:49 2025] ",
    "kern  :info  : [  728.627591] ",
    "Nov 21 18:48:46 gpu17 kernel: ",
    "Nov 21 18:48:46 gpu17 kernel: [17257.355375] ",
    "2026-11-21T19:48:46.250000+01:00 gpu-17.site kernel: ",
    "6,345,728627591,-;",
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_analysis_of_a_log_reads_no_name_as_a_line(prefix: str) -> None:
    """Each name in each form stands behind one of the prefixes, each form and each line behind all of them."""
    for number, (form, line) in enumerate(itertools.product(FORMS, LINES), PREFIXES.index(prefix)):
        logged: list[str] = []
        for name, file in itertools.islice(names(line), number % len(PREFIXES), None, len(PREFIXES)):
            first, *more = form.format(name=name, file=file).split("\n")
            logged += [prefix + first, *("    " + one for one in more)]  # as dmesg and journalctl show it
        assert collect(text_records(logged), 1.8e9, 180.0).sources == {}, logged


@pytest.mark.parametrize("text", ["gpu17 python3[12]: ", "gpu17 systemd[1]: ", "gpu17 sshd[1]: kernel: "])
def test_the_analysis_of_a_log_takes_only_the_kernels_own_lines(text: str) -> None:
    lines = [f"Nov 21 18:48:46 {text}{line}" for line in LINES]
    assert collect(text_records(lines), 1.8e9, 180.0).sources == {}


def test_a_form_takes_no_time_that_grows_faster_than_its_line() -> None:
    started = time.process_time()
    for pattern in PATTERNS:
        for filling in ("1", "a", " ", "0000:1a:00.0: ", "a: ", "(1) ", "1: "):
            for prefix in pattern.prefixes:
                pattern.match(prefix + filling * 4000)
    assert time.process_time() - started < 5.0  # a form that tries everything would take hours


def test_a_record_that_is_none_is_refused() -> None:
    with pytest.raises(RecordError):
        parse_record("NVRM: Xid (PCI:0000:05:00): 79, x", "b", 0.0, PATTERNS)
