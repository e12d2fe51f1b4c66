"""A clean Debian with a real systemd, as a machine of its own: namespaces, and a layer on a root file system."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.testbed.installation import ROOTS

BOOT = Path(__file__).with_name("boot.sh")
NAMESPACES = ("--fork", "--pid", "--kill-child", "--mount", "--uts", "--ipc", "--net", "--cgroup")
CLEAN_ENVIRONMENT = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb")


class Machine:
    def __init__(self, init: int, folder: Path) -> None:
        self.init = init
        self.shared = folder / "shared"
        """Folder of the host that is /shared in the machine."""

    def run(self, command: str, status: int = 0) -> str:
        """Runs it in a shell there; returns what it prints."""
        within = ["nsenter", f"--target={self.init}", "--all", *CLEAN_ENVIRONMENT, "sh", "-c", command]
        done = subprocess.run(
            within, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
        )
        assert done.returncode == status, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def until(self, command: str, holds: Callable[[str], bool], seconds: float = 60) -> str:
        """Repeats a command, of any exit code, until its output is as wanted."""
        end = time.monotonic() + seconds
        while True:
            printed = self.run(f"{command} || true")
            if holds(printed):
                return printed
            assert time.monotonic() < end, f"{command}: after {seconds} s still:\n{printed}"
            time.sleep(0.2)


@contextmanager
def booted(folder: Path, name: str = "head1", address: str = "198.18.0.1") -> Iterator[Machine]:
    for below in ("layer", "shared"):
        (folder / below).mkdir()
    with (folder / "boot.log").open("w") as log:
        boot = [str(BOOT), str(ROOTS / "22.05"), str(folder), name, address]
        outer = subprocess.Popen(["unshare", *NAMESPACES, *boot], stdout=log, stderr=log)
    try:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        end = time.monotonic() + 30
        while not (init := children.read_text().strip()):
            assert outer.poll() is None and time.monotonic() < end, (folder / "boot.log").read_text()
            time.sleep(0.05)
        while "systemd" not in Path(f"/proc/{init}/comm").read_text():
            assert outer.poll() is None and time.monotonic() < end, (folder / "boot.log").read_text()
            time.sleep(0.05)
        machine = Machine(int(init), folder)
        machine.until("systemctl is-system-running", lambda state: state.strip() in ("running", "degraded"))
        yield machine
    finally:
        outer.kill()
        outer.wait()


def connect(first: Machine, second: Machine, name: str) -> None:
    """Connects their bridges by a cable, which has this name at the first."""
    ends = (first, name), (second, "uplink")
    within = ["nsenter", f"--target={first.init}", "--net"]
    cable = ["ip", "link", "add", name, "type", "veth", "peer", "name", "uplink", "netns", str(second.init)]
    subprocess.run([*within, *cable], check=True)
    for machine, end in ends:
        machine.run(f"ip link set {end} master br0 up")
