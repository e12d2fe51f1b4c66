"""The warm interpreters of a seat: their imports are done, and each waits to become a rank (`warm.py`).

Belongs here: starting them, learning when they are ready, and turning one into a rank. Must not: deciding when.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy_agent.launch.binding import NodeBinding
from understudy_agent.launch.channel import DESCRIPTOR_VARIABLE, Channel
from understudy_agent.launch.command import PythonProgram
from understudy_agent.launch.protocol import SECRET_VARIABLE
from understudy_agent.launch.rank_output import Outputs, Relay
from understudy_agent.launch.rank_process import bound_to, start_process
from understudy_agent.launch.task import threads_of_rank

_WARM_PROGRAM = Path(__file__).with_name("warm.py")


@dataclass(slots=True)
class WarmInterpreter:
    pid: int
    ready: int
    """It writes a line to this pipe when its imports are done."""
    go: int
    """It reads its environment from this pipe, and becomes a rank."""
    channel: Channel | None
    relays: Sequence[Relay] = ()
    failed: str | None = None
    is_ready: bool = False


class WarmPool:
    def __init__(self, selector: selectors.BaseSelector, preload: str) -> None:
        """`preload`: the modules to import, separated by commas."""
        self._selector = selector
        self._preload = preload
        self._interpreters: list[WarmInterpreter] = []

    def start(
        self,
        count: int,
        program: PythonProgram,
        open_channel: Callable[[], Channel | None],
        outputs: Outputs,
        binding: NodeBinding,
    ) -> None:
        """Does nothing where there are some already. Raises OSError and BindingError."""
        if not self._preload or self._interpreters:
            return
        threads = threads_of_rank(os.environ, count)
        for local_rank in range(count):
            with bound_to(binding.cpus(count, local_rank)):
                interpreter = _start(program, self._preload, open_channel(), outputs.open(), threads)
            outputs.started(interpreter.pid, interpreter.relays)
            self._interpreters.append(interpreter)
            self._selector.register(interpreter.ready, selectors.EVENT_READ, interpreter)

    def read_ready(self, interpreter: WarmInterpreter) -> bool:
        """Whether all of them are ready now, or have failed."""
        line = os.read(interpreter.ready, 65536)
        self._selector.unregister(interpreter.ready)
        os.close(interpreter.ready)
        interpreter.is_ready = True
        failed = "; ".join(json.loads(line)["failed"]) if line else "it ended before it was ready"
        interpreter.failed = failed or None
        return all(one.is_ready for one in self._interpreters)

    @property
    def failed(self) -> str | None:
        """Why one of them cannot be used; None: all can."""
        return next((one.failed for one in self._interpreters if one.failed), None)

    def usable(self) -> list[WarmInterpreter]:
        return [one for one in self._interpreters if one.failed is None]

    def note_exit(self, pid: int) -> None:
        for interpreter in self._interpreters:
            if interpreter.pid == pid:
                interpreter.failed = "it has ended"

    def become_rank(self, interpreter: WarmInterpreter, environment: dict[str, str]) -> None:
        """From now on it is a rank, and not one of the pool."""
        self._interpreters.remove(interpreter)
        if interpreter.channel is not None:
            environment = {**environment, DESCRIPTOR_VARIABLE: str(interpreter.channel.descriptor)}
        with contextlib.suppress(BrokenPipeError):  # it has ended meanwhile: the seat sees its exit
            os.write(interpreter.go, json.dumps(environment).encode() + b"\n")
        os.close(interpreter.go)


def _start(
    program: PythonProgram, preload: str, channel: Channel | None, relays: Sequence[Relay], threads: Mapping[str, str]
) -> WarmInterpreter:
    """`threads`: what libraries read while they are imported. Raises OSError."""
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    kind = "module" if program.module else "script"
    arguments = [
        *(program.interpreter, *program.flags, str(_WARM_PROGRAM), str(ready_write), str(go_read)),
        *(preload, kind, program.target, *program.arguments),
    ]
    environment = {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE} | dict(threads)
    inherited = (ready_write, go_read, *([channel.descriptor] if channel else []))
    pid = start_process(arguments, environment, inherited, relays)
    os.close(ready_write)
    os.close(go_read)
    if channel is not None:
        channel.close_rank_end()
    return WarmInterpreter(pid, ready_read, go_write, channel, relays)
