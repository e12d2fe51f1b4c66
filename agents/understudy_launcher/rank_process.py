"""Starting processes below a seat: ranks, and interpreters that wait to become one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from understudy_launcher.rank_output import Relay, Stream


def start_process(
    arguments: Sequence[str],
    environment: dict[str, str],
    descriptors: Sequence[int] = (),
    relays: Sequence[Relay] = (),
) -> int:
    """Returns its process id. The process inherits these descriptors, and writes to these relays. Raises OSError."""
    ends = {one.stream: one.write_end for one in relays}
    program = subprocess.Popen(
        list(arguments),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=ends.get(Stream.OUTPUT),
        stderr=ends.get(Stream.ERROR),
        process_group=0,  # its own process group: a script's `kill 0` must not reach the seat
        pass_fds=tuple(descriptors),
    )
    program.returncode = 0  # Python does not wait for it: the seat collects all its children in one place
    return program.pid


def start_process_with(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
    first: int,
    relays: Sequence[Relay] = (),
) -> int:
    """Does the same, but the process has these descriptors as `first`, `first` + 1, …"""
    ends = {1 if one.stream is Stream.OUTPUT else 2: one.write_end for one in relays}
    wanted = ends | {first + place: descriptor for place, descriptor in enumerate(descriptors)}
    # Copies, so that none is overwritten before it is in its place.
    copies = {number: fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, first + len(wanted)) for number, one in wanted.items()}
    actions = [(os.POSIX_SPAWN_DUP2, copy, number) for number, copy in copies.items()]
    try:
        return os.posix_spawnp(
            arguments[0],
            list(arguments),
            dict(environment),
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), *actions],
            setpgroup=0,
        )
    finally:
        for copy in copies.values():
            os.close(copy)


@contextlib.contextmanager
def bound_to(cpus: frozenset[int]) -> Iterator[None]:
    """Processes that this thread starts meanwhile have these CPUs alone."""
    own = os.sched_getaffinity(0)
    if cpus != own:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        if cpus != own:
            os.sched_setaffinity(0, own)


def exit_status_of(error: OSError) -> int:
    """The exit status of a command that could not be started, as a shell reports it."""
    return 127 if isinstance(error, FileNotFoundError) else 126
