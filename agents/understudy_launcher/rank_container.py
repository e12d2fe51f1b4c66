"""How a seat starts its ranks: each as a process, or each in a container (`container.py`)."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from understudy_launcher.command import PythonProgram, parse_python
from understudy_launcher.container import (
    FIRST_DESCRIPTOR,
    Container,
    Inside,
    arguments,
    environment_of_engine,
    for_inside,
    is_monitor_of,
    parse_container,
)
from understudy_launcher.evidence import EVIDENCE_VARIABLE, Places
from understudy_launcher.process_tree import parents
from understudy_launcher.rank_output import Relay
from understudy_launcher.rank_process import start_process, start_process_with
from understudy_launcher.rank_socket import folders_of_sockets

REMOVE_AGAIN_SECONDS = 0.05
WARM_PROGRAM = Path(__file__).with_name("warm.py")


class Starter:
    """Starts ranks as processes of this node."""

    def __init__(self, command: Sequence[str], places: Places) -> None:
        self.command = list(command)
        self._places = places

    @property
    def python(self) -> PythonProgram | None:
        """The user's program, where it can be kept warm."""
        return parse_python(self.command)

    def numbers(self, descriptors: Sequence[int]) -> list[int]:
        """The process has these numbers for the descriptors."""
        return list(descriptors)

    def environment(self, environment: Mapping[str, str], count: int, before: int) -> dict[str, str]:
        """What one of `count` ranks finds. `before`: descriptors of it that are not for evidence."""
        del before
        return {**environment, EVIDENCE_VARIABLE: self._places.variable(count)}

    def to_running(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The part of it that a process gets that runs already."""
        return dict(environment)

    def start(
        self,
        program: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int],
        relays: Sequence[Relay],
        local_rank: int,
    ) -> int:
        """Returns its process id. Raises OSError."""
        del local_rank
        return start_process(program, dict(environment), descriptors, relays)

    def roots(self, pid: int) -> list[int]:
        """Processes of which it consists, with all below these."""
        return [pid]

    def programs(self, pid: int) -> list[int]:
        """The first processes of what the user has named."""
        return [pid]

    def close(self, seconds: float) -> None:
        """Called when no rank runs any more."""


class ContainerStarter(Starter):
    """Starts each rank in a container of its own."""

    def __init__(self, command: Sequence[str], places: Places, container: Container) -> None:
        super().__init__(command, places)
        self._container = container
        self.command = list(container.program)
        self._names: dict[int, str] = {}  # process id of the engine → its container
        self._made: list[str] = []

    @property
    def python(self) -> PythonProgram | None:
        return self._container.python

    def numbers(self, descriptors: Sequence[int]) -> list[int]:
        return [FIRST_DESCRIPTOR + place for place, _ in enumerate(descriptors)]

    def environment(self, environment: Mapping[str, str], count: int, before: int) -> dict[str, str]:
        """Processes in a container may not see the seat, so they inherit what they answer to."""
        self._places.variable(count)
        first = FIRST_DESCRIPTOR + before
        place = ":".join(str(first + one) for one in range(3))
        return {**environment, EVIDENCE_VARIABLE: ",".join(("self", *[place] * count))}

    def to_running(self, environment: Mapping[str, str]) -> dict[str, str]:
        return for_inside(environment)

    def start(
        self,
        program: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int],
        relays: Sequence[Relay],
        local_rank: int,
    ) -> int:
        self._places.variable(local_rank + 1)
        inherited = [*descriptors, *self._places.descriptors(local_rank)]
        name = f"understudy-{os.environ.get('SLURM_JOB_ID', '0')}-{os.getpid()}-{len(self._made)}"
        inside = Inside(
            name,
            folders_of_sockets(os.environ),
            [str(WARM_PROGRAM)],
            len(inherited),
            _limits(),
        )
        words = arguments(self._container, program, environment, inside)
        outside = environment_of_engine(self._container, {**os.environ, **environment}, inside)
        pid = start_process_with(words, outside, inherited, FIRST_DESCRIPTOR, relays)
        if self._container.is_podman:
            self._made.append(name)
            self._names[pid] = name
        return pid

    def roots(self, pid: int) -> list[int]:
        return [pid, *self._monitors(pid)]

    def programs(self, pid: int) -> list[int]:
        """Podman itself has a handler for each signal, and passes it on. The container is below its monitor."""
        monitors = self._monitors(pid)
        return [one for one, parent in parents().items() if parent in monitors] if pid in self._names else [pid]

    def _monitors(self, pid: int) -> list[int]:
        name = self._names.get(pid)
        found = parents().items() if name is not None else ()
        return [one for one, parent in found if parent == os.getpid() and _is_monitor(one, name or "")]

    def close(self, seconds: float) -> None:
        """Podman keeps a record of containers that were killed with everything below the seat. It fails for one that is
        just ending, and finds its end the next time.
        """
        until = time.monotonic() + seconds
        remove = [*self._container.before[:-1], "rm", "--force", "--ignore", "--time=0", *self._made]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            while self._made and (left := until - time.monotonic()) > 0:
                null = subprocess.DEVNULL
                done = subprocess.run(remove, stdin=null, stdout=null, stderr=null, timeout=left, check=False)
                if done.returncode == 0:
                    return
                time.sleep(REMOVE_AGAIN_SECONDS)


def starter_for(command: Sequence[str], places: Places) -> Starter:
    """Raises ContainerError."""
    container = parse_container(command)
    return Starter(command, places) if container is None else ContainerStarter(command, places, container)


def _limits() -> dict[str, tuple[int, int]]:
    """The seat's own, which podman would raise where it may, and fail where it may not."""
    with contextlib.suppress(OSError, ValueError):
        processes_max = int(Path("/proc/sys/kernel/pid_max").read_text())  # podman lowers its own limit to that
        processes = [processes_max if one < 0 else min(one, processes_max) for one in _limit(resource.RLIMIT_NPROC)]
        files = _limit(resource.RLIMIT_NOFILE)
        found = {"nproc": (processes[0], processes[1])}
        return found if min(files) < 0 else {**found, "nofile": files}
    return {}


def _limit(which: int) -> tuple[int, int]:
    """-1: unlimited."""
    return resource.getrlimit(which)


def _is_monitor(pid: int, name: str) -> bool:
    try:
        return is_monitor_of(Path(f"/proc/{pid}/cmdline").read_bytes(), name)
    except OSError:
        return False
