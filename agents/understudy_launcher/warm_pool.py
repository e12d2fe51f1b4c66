"""The warm interpreters of a seat: their imports are done, and each waits to become a rank (`warm.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from understudy_launcher.binding import NodeBinding
from understudy_launcher.command import PythonProgram
from understudy_launcher.protocol import SECRET_VARIABLE
from understudy_launcher.rank_channel import DESCRIPTOR_VARIABLE, Channel
from understudy_launcher.rank_container import WARM_PROGRAM, Starter
from understudy_launcher.rank_environment import RESTORE_POINT, threads_of_rank
from understudy_launcher.rank_output import Outputs, Relay
from understudy_launcher.rank_process import bound_to

_NOT_YET = (SECRET_VARIABLE, *RESTORE_POINT)


@dataclass(slots=True)
class WarmInterpreter:
    pid: int
    ready: int
    """It writes a line to this pipe when its imports are done."""
    go: int
    """It reads its environment from this pipe, and becomes a rank."""
    channel: Channel | None
    channel_number: int = 0
    """Number of the channel's descriptor, in the interpreter."""
    relays: Sequence[Relay] = ()
    failed: str | None = None
    is_ready: bool = False


class WarmPool:
    def __init__(self, selector: selectors.BaseSelector, preload: str) -> None:
        """`preload`: the modules to import, separated by commas."""
        self._selector = selector
        self._preload = preload
        self._interpreters: list[WarmInterpreter] = []
        self._started_by: Starter

    def start(
        self,
        count: int,
        program: PythonProgram,
        starter: Starter,
        open_channel: Callable[[], Channel | None],
        outputs: Outputs,
        binding: NodeBinding,
    ) -> None:
        """Does nothing where there are some already. Raises OSError and BindingError."""
        if not self._preload or self._interpreters:
            return
        self._started_by = starter
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_YET}
        environment |= threads_of_rank(os.environ, count)
        for local_rank in range(count):
            relays, channel = outputs.open(), open_channel()
            with bound_to(binding.cpus(count, local_rank)):
                interpreter = self._start(program, environment, local_rank, channel, relays)
            outputs.started(interpreter.pid, interpreter.relays)
            self._interpreters.append(interpreter)
            self._selector.register(interpreter.ready, selectors.EVENT_READ, interpreter)

    def read_ready(self, interpreter: WarmInterpreter) -> bool:
        """True if all of them are ready now, or have failed."""
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

    def forget(self) -> None:
        """They have been killed."""
        for one in self._interpreters:
            if not one.is_ready:
                self._selector.unregister(one.ready)
                os.close(one.ready)
            os.close(one.go)
        self._interpreters.clear()

    def become_rank(self, interpreter: WarmInterpreter, environment: dict[str, str]) -> None:
        """It is a rank then, and not one of the pool."""
        self._interpreters.remove(interpreter)
        if interpreter.channel is not None:
            environment = {**environment, DESCRIPTOR_VARIABLE: str(interpreter.channel_number)}
        with contextlib.suppress(BrokenPipeError):  # it has ended meanwhile: the seat sees its exit
            os.write(interpreter.go, json.dumps(self._started_by.to_running(environment)).encode() + b"\n")
        os.close(interpreter.go)

    def _start(
        self,
        program: PythonProgram,
        environment: Mapping[str, str],
        local_rank: int,
        channel: Channel | None,
        relays: Sequence[Relay],
    ) -> WarmInterpreter:
        """Raises OSError."""
        ready_read, ready_write = os.pipe()
        go_read, go_write = os.pipe()
        inherited = [ready_write, go_read, *([channel.descriptor] if channel else [])]
        ready, go, *of_channel = self._started_by.numbers(inherited)
        kind = "module" if program.module else "script"
        arguments = [
            *(program.interpreter, *program.flags, str(WARM_PROGRAM), str(ready), str(go)),
            *(self._preload, kind, program.target, *program.arguments),
        ]
        pid = self._started_by.start(arguments, environment, inherited, relays, local_rank)
        os.close(ready_write)
        os.close(go_read)
        if channel is not None:
            channel.close_rank_end()
        return WarmInterpreter(pid, ready_read, go_write, channel, next(iter(of_channel), 0), relays)
