"""Starting processes below a seat: ranks, and interpreters that wait to become one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence

from understudy_agent.launch.channel import DESCRIPTOR_VARIABLE, Channel
from understudy_agent.launch.rank_output import Relay, Stream


def start_rank(
    arguments: Sequence[str], environment: dict[str, str], channel: Channel | None, relays: Sequence[Relay] = ()
) -> int:
    """Returns its process id. Raises OSError."""
    if channel is None:
        return start_process(arguments, environment, relays=relays)
    environment = {**environment, DESCRIPTOR_VARIABLE: str(channel.descriptor)}
    pid = start_process(arguments, environment, (channel.descriptor,), relays)
    channel.close_rank_end()
    return pid


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
