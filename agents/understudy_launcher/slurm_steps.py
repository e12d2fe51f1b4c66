"""A step of Slurm's with a seat on each of its nodes: one for each launch, started before it is needed, and ended until
nothing of it is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from understudy_launcher import srun_options
from understudy_launcher.hub import Hub, SeatLink, silence_of
from understudy_launcher.options import Options
from understudy_launcher.process_tree import started_at
from understudy_launcher.rank_socket import folders_of_sockets
from understudy_launcher.saved_state import StepMemory
from understudy_launcher.slurm import Allocation, kill_step, srun_arguments, start_step
from understudy_wire.tls import JobKey

LEAVE_SECONDS = 2.0
"""Time for seats to leave when they are ordered to. Then Slurm is asked to kill the step."""
SCANCEL_SECONDS = 10.0
"""Time for scancel, which waits while slurmctld does not answer. Then it is killed."""
SRUN_SECONDS = 6.0
"""Time for srun, which waits for lost nodes longer than the launcher. Then it is killed."""

EXIT_UNKNOWN = 1


@dataclass(slots=True, eq=False)
class Step:
    generation: int
    nodes: tuple[str, ...]
    program: Program
    asked_at: float
    links: dict[str, SeatLink] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    """Nodes whose seat has disconnected."""
    lost_at: float = 0.0
    left: set[str] = field(default_factory=set)
    """Nodes whose seat was ordered to leave."""
    warm: set[str] = field(default_factory=set)
    step_id: str = ""
    killed_at: float | None = None
    """When Slurm was asked to SIGKILL all of it."""
    killed: frozenset[str] = frozenset()
    """Nodes whose seat was connected then, and disconnects because of it."""
    retired_at: float | None = None
    expires_at: float | None = None
    """It ends then in any case."""
    probe: bool = False
    awaited: set[str] = field(default_factory=set)
    """Nodes whose seats had a connection to a launcher that was killed, and may connect again."""
    members: frozenset[str] = field(init=False)
    """`nodes`, to be asked for one."""

    def __post_init__(self) -> None:
        self.members = frozenset(self.nodes)

    def give_up_awaiting(self, needed: Sequence[str], now: float) -> None:
        """Nodes that a launch needs are lost if their seats have not connected again; others had left."""
        gone = self.awaited.intersection(needed)
        if gone:
            self.lost |= gone
            self.lost_at = now
        self.nodes = tuple(node for node in self.nodes if node in self.links or node in gone)
        self.members = frozenset(self.nodes)
        self.awaited = set()

    def link(self, node: str) -> SeatLink | None:
        """The node's seat, where it is there and has not disconnected."""
        found = self.links.get(node)
        return found if found is not None and found.open else None

    @property
    def disconnected(self) -> set[str]:
        """Nodes whose seat has disconnected by itself."""
        return self.lost - self.killed

    @property
    def absent(self) -> list[str]:
        """Nodes that have not answered. While there are any, nothing may go: srun ends the whole step, ten seconds and
        more after its start, when it could not start a task on some node.
        """
        if len(self.links) == len(self.nodes):
            return []
        return [node for node in self.nodes if node not in self.links]

    def can_seat(self, nodes: Sequence[str]) -> bool:
        """True if all these nodes have a seat in it, or may still get one."""
        there = all(node in self.members and node not in self.lost | self.left for node in nodes)
        return there and self.killed_at is None and self.program.poll() is None


class Program(Protocol):
    """srun: a child of this process, or of a launcher that was killed."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...


class Adopted:
    """An srun that another launcher has started. How it ends, only the guardian learns."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._started = started_at(pid)

    def poll(self) -> int | None:
        return None if self._started is not None and started_at(self.pid) == self._started else EXIT_UNKNOWN

    def terminate(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)


def ended_step(generation: int) -> Step:
    """Stands for the step of a launch whose step has ended."""
    return Step(generation, (), Adopted(0), time.monotonic())


class Steps:
    """All steps of this launcher, also those that are ending."""

    def __init__(
        self, hub: Hub, allocation: Allocation, options: Options, key: JobKey, before_srun: Sequence[str] = ()
    ) -> None:
        self._hub = hub
        self._before_srun = before_srun
        self._allocation = allocation
        self._options = options
        self._key = key
        self._srun_options = srun_options.with_mounts(options.srun, folders_of_sockets(os.environ))
        self._steps: dict[int, Step] = {}
        self._commands: list[tuple[float, subprocess.Popen[bytes]]] = []
        """Commands of scancel, and when each was started."""
        self._next = 0
        self.checks = bool(options.selfcheck)
        """Seats check their nodes first."""

    def start(self, nodes: Sequence[str], probe: bool = False) -> Step:
        """Raises OSError where there is no srun."""
        generation, self._next = self._next, self._next + 1
        # -P: neither the working directory nor a script's is where the modules of this package are looked for.
        python = self._options.seat_python or sys.executable
        seat = [python, "-P", "-m", "understudy_launcher.seat", f"--port={self._hub.port}"]
        seat += [
            f"--certificate={self._key.fingerprint}",
            f"--generation={generation}",
            f"--preload={','.join(self._options.preload)}",
            *([] if self._options.in_process_seconds is None else [f"--in-process={self._options.in_process_seconds}"]),
            f"--output={self._options.output.for_seat()}",
            f"--binding={self._options.binding.for_seat()}",
            *([f"--port-range={ports[0]}-{ports[-1]}"] if (ports := self._options.ports) else []),
            *([f"--selfcheck={self._options.selfcheck}"] if self.checks and not probe else []),
            "--",
            *self._options.command,
        ]
        srun = srun_arguments(self._allocation, nodes, seat, self._srun_options)
        program = start_step([*self._before_srun, *srun], self._key.secret)
        step = Step(generation, tuple(nodes), program, time.monotonic(), probe=probe)
        self._steps[generation] = step
        return step

    def remember(self) -> tuple[StepMemory, ...]:
        return tuple(
            StepMemory(one.generation, one.nodes, one.program.pid, one.asked_at, one.step_id, one.probe)
            for one in self._steps.values()
        )

    def resume(self, memories: Sequence[StepMemory]) -> Mapping[int, Step]:
        """The steps of a launcher that was killed, by their generations. Their seats connect again."""
        for one in memories:
            step = Step(one.generation, one.nodes, Adopted(one.pid), one.asked_at, step_id=one.step_id, probe=one.probe)
            self._steps[one.generation] = step
        self._next = max(self._steps, default=-1) + 1
        return self._steps

    def of(self, link: SeatLink) -> Step | None:
        return self._steps.get(link.generation)

    def silent(self, step: Step, seconds: float) -> dict[str, float]:
        """Its nodes whose seats have been silent for longer, and for how long."""
        now = time.monotonic()
        return {
            link.node: silence_of(link, now) for link in self._hub.silent(seconds) if step.links.get(link.node) is link
        }

    def leave(self, step: Step, node: str) -> None:
        link = step.link(node)
        if link is not None:
            step.left.add(node)
            self._hub.send(link, "leave")

    def kill(self, step: Step) -> None:
        """SIGKILL to every process of the step, through Slurm, whatever its seats do."""
        if step.killed_at is None:
            step.killed_at = time.monotonic()
            step.killed = frozenset(node for node in step.nodes if step.link(node) is not None)
            command = kill_step(self._allocation.job_id, step.step_id)
            if command is not None:
                self._commands.append((step.killed_at, command))

    def retire(self, step: Step) -> None:
        """The step is not needed any more: its seats are ordered to leave. `tidy` kills those that do not."""
        if step.retired_at is None:
            step.retired_at = time.monotonic()
            for node in step.nodes:
                self.leave(step, node)

    def retire_all(self) -> None:
        for step in self._steps.values():
            self.retire(step)

    def tidy(self) -> bool:
        """Drive retired steps to their end. Returns whether none is left."""
        now = time.monotonic()
        self._commands = [(at, one) for at, one in self._commands if one.poll() is None]
        for at, command in self._commands:
            if now - at > SCANCEL_SECONDS:
                command.kill()
        for step in self._steps.values():
            if step.expires_at is not None and now >= step.expires_at:
                self.retire(step)
        for step in [one for one in self._steps.values() if one.retired_at is not None]:
            assert step.retired_at is not None
            if step.program.poll() is not None:
                del self._steps[step.generation]
                continue
            if len(step.left) < len(step.links):  # a seat that connected late
                for node in step.links.keys() - step.left:
                    self.leave(step, node)
            if now - step.retired_at > LEAVE_SECONDS:
                self.kill(step)
                if not step.step_id and now - step.retired_at < SRUN_SECONDS:
                    step.program.terminate()  # no seat has reported the step's number, but srun knows it
            if now - step.retired_at > SRUN_SECONDS:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(step.program.pid, signal.SIGKILL)
        return not self._steps and not self._commands
