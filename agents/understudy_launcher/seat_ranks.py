"""The ranks of a seat: their processes on this node, and the warm interpreters that become ranks."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from understudy_launcher import command as commands
from understudy_launcher.binding import Binding, BindingError, NodeBinding
from understudy_launcher.evidence import Collection, Places, RanksHere
from understudy_launcher.join_launcher import node_name
from understudy_launcher.process_tree import first_catching, kill_tree, oom_kills, parents
from understudy_launcher.rank_channel import DESCRIPTOR_VARIABLE, Channel
from understudy_launcher.rank_container import starter_for
from understudy_launcher.rank_environment import Part, rank_environment
from understudy_launcher.rank_output import Console, OutputOptions, Outputs, Relay, path_of
from understudy_launcher.rank_process import bound_to, exit_status_of
from understudy_launcher.warm_pool import WarmInterpreter, WarmPool

HUNG_LINES = 10
"""Last lines of a rank of a gang that hangs."""
NO_FILES = OutputOptions()
UNBOUND = Binding()
USAGE_STATUS = 2
"""A rank cannot have the CPUs or GPUs that its user wants: the job ends, and no node is blamed."""
LEFT_GANG_STATUS = 1
"""Reported for a rank that has left its gang after an exception: Python's exit status for an exception."""


@dataclass(frozen=True, slots=True)
class Exit:
    local_rank: int
    status: int
    """The exit code, or a signal's number below zero."""
    errors: Relay | None = None
    """Its standard error."""


@dataclass(frozen=True, slots=True)
class Start:
    warm: bool
    """The ranks were warm interpreters."""
    kept: int
    """Ranks that continue from the launch before."""
    failed: list[Exit]
    """Ranks that could not be started."""


class Ranks:
    def __init__(
        self,
        command: Sequence[str],
        preload: str,
        selector: selectors.BaseSelector,
        restartable: bool,
        output: OutputOptions = NO_FILES,
        binding: Binding = UNBOUND,
    ) -> None:
        """`restartable`: ranks may continue in the next launch, where their program can."""
        self._selector = selector
        self._restartable = restartable
        self._name = command[0] if command else ""
        self._pool = WarmPool(selector, preload)
        self._binding = NodeBinding(binding)
        self._ranks: dict[int, int] = {}  # process id → local rank
        self._channels: dict[int, Channel] = {}  # process id → its channel, where it may continue in the next launch
        self._torchrun = False
        self._places = Places()
        self._starter = starter_for(command, self._places)
        self._output = output
        self._outputs = Outputs(output, Console())
        self._part: Part | None = None
        self._started_at = 0.0
        self._oom_kills = oom_kills()
        self.helpers: set[int] = set()
        """Processes that are no ranks: what a file system holds of them does not matter."""

    def __len__(self) -> int:
        return len(self._ranks)

    def prepare(self, processes: int, torchrun: bool) -> None:
        """Starts warm interpreters for a later launch."""
        program = self._starter.python
        if program is not None and not torchrun and not self._ranks:
            with contextlib.suppress(BindingError):  # the ranks report it
                self._pool.start(processes, program, self._starter, self._open_channel, self._outputs, self._binding)

    def warm(self, interpreter: WarmInterpreter) -> bool:
        """True if all interpreters are ready now, or have failed."""
        return self._pool.read_ready(interpreter)

    @property
    def warm_failed(self) -> str | None:
        return self._pool.failed

    def start(self, part: Part) -> Start:
        self._torchrun = part.torchrun
        self._part, self._started_at = part, time.time()
        kept = {local_rank: pid for pid, local_rank in self._ranks.items()}
        usable = self._pool.usable()
        count = 1 if part.torchrun else part.meeting.processes
        warm = len(usable) == count
        failed: list[Exit] = []
        for local_rank in range(count):
            environment = rank_environment(os.environ, part, local_rank)
            try:
                if not part.torchrun:
                    environment |= self._binding.variables(count, local_rank)
                cpus = self._binding.cpus(count, local_rank)
                before = (2 if warm else 0) + (1 if self._restartable else 0)
                environment = self._starter.environment(environment, part.meeting.processes, before)
            except BindingError as error:
                sys.stderr.write(f"understudy: {node_name()}: {error}\n")
                failed.append(Exit(local_rank, USAGE_STATUS))
                continue
            if local_rank in kept:
                self._outputs.speak_for(self._outputs.of(kept[local_rank]), environment)
                self._channels[kept[local_rank]].go_on(self._starter.to_running(environment))
            elif warm:
                self._start_warm(usable[local_rank], local_rank, environment)
            else:
                with bound_to(cpus):
                    failed += self._start_cold(part, local_rank, environment)
        return Start(warm, len(kept), failed)

    def _start_warm(self, interpreter: WarmInterpreter, local_rank: int, environment: dict[str, str]) -> None:
        if interpreter.channel is not None:
            self._channels[interpreter.pid] = interpreter.channel
        self._outputs.speak_for(interpreter.relays, environment)
        self._pool.become_rank(interpreter, environment)
        self._ranks[interpreter.pid] = local_rank

    def _start_cold(self, part: Part, local_rank: int, environment: dict[str, str]) -> list[Exit]:
        channel, relays = self._open_channel(), self._outputs.open()
        self._outputs.speak_for(relays, environment)
        try:
            arguments = [*self._starter.command, *part.appended]
            if part.torchrun:
                output = [path_of(one, environment) for one in self._output.torchrun]
                arguments = commands.torchrun(arguments, part.meeting, output)
            inherited = [channel.descriptor] if channel else []
            for number in self._starter.numbers(inherited):
                environment[DESCRIPTOR_VARIABLE] = str(number)
            pid = self._starter.start(arguments, environment, inherited, relays, local_rank)
            if channel is not None:
                channel.close_rank_end()
        except OSError as error:
            for one in relays:
                one.started()
            sys.stderr.write(f"understudy: {node_name()}: cannot start {self._name}: {error.strerror}\n")
            return [Exit(local_rank, exit_status_of(error))]
        self._ranks[pid] = local_rank
        self._outputs.started(pid, relays)
        if channel is not None:
            self._channels[pid] = channel
        return []

    def close(self, seconds: float) -> None:
        """Waits until all that was written is passed on, for a while."""
        self._outputs.finish(seconds)
        self._starter.close(seconds)
        self._places.close()

    def collect(self) -> Collection | None:
        """Begins to collect what its ranks are doing. None: there are none."""
        if self._part is None or not self._ranks:
            return None
        meeting = self._part.meeting
        processes = {local_rank: pid for pid, local_rank in self._ranks.items()}
        first = meeting.node_rank * meeting.processes
        wrote = {local_rank: self._outputs.last_words(pid, HUNG_LINES) for pid, local_rank in self._ranks.items()}
        collection = Collection(
            RanksHere(first, meeting.processes, processes, wrote, self._started_at),
            self._places,
            os.environ,
            self.helpers,
            roots=self._starter.roots,
        )
        collection.start()
        return collection

    def exits(self) -> Iterator[Exit]:
        """Collects the processes that have ended. Yields the ranks among them that have not been reported yet."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._pool.note_exit(pid)
            errors = self._outputs.ended(pid)
            local_rank = self._ranks.pop(pid, None)
            channel = self._channels.pop(pid, None)
            reported = channel is not None and channel.waiting  # as failed, when it left its gang
            if local_rank is not None and os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
                self._name_oom(local_rank)
            if local_rank is not None and not reported:
                yield Exit(local_rank, os.waitstatus_to_exitcode(status), errors)

    def _name_oom(self, local_rank: int) -> None:
        """SIGKILL alone names no cause: the kernel's own counter does."""
        before, self._oom_kills = self._oom_kills, oom_kills()
        if self._oom_kills > before and self._part is not None:
            rank = self._part.meeting.node_rank * self._part.meeting.processes + local_rank
            sys.stderr.write(
                f"understudy: {node_name()}: rank {rank} was killed for want of memory: its job uses all that "
                "Slurm gives it on this node (--mem)\n"
            )

    def forget(self) -> None:
        """All of them have been killed, warm interpreters, too: none may be taken for one of the next launch."""
        for pid in self._ranks:
            self._outputs.ended(pid)
        self._ranks.clear()
        self._channels.clear()
        self._pool.forget()

    def signal(self, which: int, *, warning: bool) -> None:
        """A warning goes to the processes with a handler for it: without one the signal would end the rank that it is
        to give time for a checkpoint. torchrun gets no signal, which would end it: the ranks are its children.
        """
        targets = list(self._ranks)
        if self._torchrun:
            targets = [pid for pid, parent in parents().items() if parent in self._ranks]
        if warning:
            programs = [pid for rank in targets for pid in self._starter.programs(rank)]
            catching = [pid for program in programs for pid in first_catching(program, which)]
            if targets and not catching and self._part is not None and self._part.meeting.node_rank == 0:
                name = signal.Signals(which).name
                sys.stderr.write(
                    f"understudy: {node_name()}: the ranks have no handler for {name}, which would end them: it was "
                    "not sent to them, and they train on until the job's time is over\n"
                )
            targets = catching
        for pid in targets:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, which)

    # -- ranks that continue in the next launch ------------------------------------------------------------------

    def _open_channel(self) -> Channel | None:
        if not self._restartable:
            return None
        channel = Channel()
        self._selector.register(channel.seat_end, selectors.EVENT_READ, channel)
        return channel

    def read(self, channel: Channel) -> Exit | None:
        """The rank that has left its gang: it has failed in this launch, although its process continues."""
        if channel.read():
            pid = next((pid for pid, one in self._channels.items() if one is channel), None)
            if pid in self._ranks and channel.waiting:
                return Exit(self._ranks[pid], LEFT_GANG_STATUS)
        elif not channel.open:
            self._selector.unregister(channel.seat_end)
            channel.seat_end.close()
        return None

    def order_to_leave(self) -> None:
        """Ranks that still wait in a collective of the old launch."""
        for channel in self._channels.values():
            channel.order_to_leave()

    def all_have_left(self, late: bool) -> bool:
        """True if every rank has left the old launch. Kills those that cannot continue, or, once it is `late`, those
        that have not left.
        """
        left = True
        for pid in self._ranks:
            channel = self._channels.get(pid)
            can_go_on = channel is not None and channel.restartable
            waiting = can_go_on and channel is not None and channel.waiting
            if not can_go_on or (late and not waiting):
                for root in self._starter.roots(pid):
                    kill_tree(root)
            left = left and waiting
        return left
