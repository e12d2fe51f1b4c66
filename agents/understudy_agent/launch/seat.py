"""A seat: the program that Slurm starts on every node, which starts, watches and ends the ranks there.

Belongs here: doing what the launcher says, and telling it what happens to the ranks. Must not: deciding anything, Slurm
commands, or outliving the launcher. It starts no rank before it is told to; until then it is a standby, and keeps warm
interpreters where the job asked for that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy_agent.launch import command as commands
from understudy_agent.launch.channel import DESCRIPTOR_VARIABLE, Channel
from understudy_agent.launch.command import Meeting, PythonProgram
from understudy_agent.launch.ports import PORTS, bind_a_port, port_range
from understudy_agent.launch.protocol import (
    BEAT_SECONDS,
    SECRET_VARIABLE,
    Lines,
    Message,
    ProtocolError,
    answer,
    challenge,
    encode,
    is_answer,
    number,
    text,
)
from understudy_agent.launch.task import Part, rank_environment
from understudy_agent.launch.tree import become_subreaper, end_everything_below, kill_below, kill_tree, parents

CONNECT_SECONDS = 20.0
STUMBLED_STATUS = 1
"""As Python's own, where an exception ends it."""
SILENCE_SECONDS = 120.0
"""A launcher that says nothing for so long is gone, though nobody closed the connection."""
_WARM_PROGRAM = Path(__file__).with_name("warm.py")


@dataclass(slots=True)
class Warm:
    """An interpreter that waits."""

    program: subprocess.Popen[bytes]
    ready: int
    go: int
    channel: Channel | None
    failed: str | None = None
    is_ready: bool = False


class Seat:
    def __init__(self, link: socket.socket, options: argparse.Namespace, command: Sequence[str]) -> None:
        """Raises OSError where none of the ports is free: one is kept from other seats until the gang needs it."""
        self._link = link
        self._lines = Lines()
        self._command = list(command)
        self._preload: str = options.preload
        self._in_process_seconds: float | None = options.in_process
        self._ports: Sequence[int] = options.port_range
        self._warm: list[Warm] = []
        self._ranks: dict[int, int] = {}  # process id → local rank
        self._channels: dict[int, Channel] = {}  # process id → its end, where it may go on in the next launch
        self._torchrun = False
        self._killing = False
        self._kept_until: float | None = None
        """Ranks that may go on in the next launch have so long to leave this one."""
        self._over = False
        self._heard = self._beaten = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._port_holder = bind_a_port(self._ports)

    @property
    def port(self) -> int:
        """For the gang to meet on, where its first rank is here."""
        return int(self._port_holder.getsockname()[1])

    # -- the loop ----------------------------------------------------------------------------------------------

    def run(self, greeting: Lines) -> None:
        """Until the launcher has no more use for this seat, or is gone. Then no process of it is left."""
        self._lines = greeting
        wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: what is ignored stays so in the ranks. Slurm signals whole steps, us too; when to go is
        # the launcher's word.
        for name in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(name, lambda *_: None)
        self._selector.register(wakeup_read, selectors.EVENT_READ)
        self._selector.register(self._link, selectors.EVENT_READ)
        try:
            while not self._over:
                self._turn(wakeup_read)
        except (OSError, ProtocolError) as error:
            sys.stderr.write(f"understudy: seat on {_node()}: {error}\n")
        finally:
            end_everything_below(seconds=5.0)

    def _turn(self, wakeup: int) -> None:
        before = time.monotonic()
        hurry = self._killing or self._kept_until is not None
        for key, _ in self._selector.select(timeout=0.01 if hurry else BEAT_SECONDS):
            if key.fileobj is self._link:
                self._listen()
            elif key.fileobj == wakeup:
                with contextlib.suppress(BlockingIOError):
                    self._tell_signals(os.read(wakeup, 4096))
            elif isinstance(key.data, Channel):
                self._hear_rank(key.data)
            else:
                self._hear_warm(key.data)
        self._reap()
        if self._killing and not self._over:
            self._kill()
        if self._kept_until is not None:
            self._keep(self._kept_until)
        now = time.monotonic()
        if now - before > 10 * BEAT_SECONDS:  # we stood still ourselves: nobody else is to blame for the silence
            self._heard = now
        if now - self._heard > SILENCE_SECONDS:
            raise ProtocolError(f"the launcher has said nothing for {SILENCE_SECONDS:.0f} s; ending")
        if now - self._beaten >= BEAT_SECONDS:
            self._beaten = now
            self._say("beat")

    def _listen(self) -> None:
        piece = self._link.recv(65536)
        if not piece:
            self._over = True
            return
        self._heard = time.monotonic()
        for message in self._lines.feed(piece):
            self._obey(message)

    def _obey(self, message: Message) -> None:
        match message["what"]:
            case "beat":
                pass
            case "prepare":
                self._prepare(number(message, "processes"), bool(message.get("torchrun")))
            case "go":
                meeting = Meeting(
                    number(message, "nodes"),
                    number(message, "node_rank"),
                    number(message, "processes"),
                    text(message, "address"),
                    number(message, "port"),
                )
                launch, restore = number(message, "launch"), message.get("restore")
                self._go(Part(launch, meeting, bool(message["torchrun"]), text(message, "node_list"), restore))
            case "signal":
                self._signal(number(message, "number"))
            case "kill":
                self._killing, self._kept_until = True, None
            case "keep":
                self._kept_until = time.monotonic() + (self._in_process_seconds or 0.0)
            case "leave":
                self._over = True
            case other:
                raise ProtocolError(f"the launcher said {other!r}, which this version does not know")

    def _tell_signals(self, numbers: bytes) -> None:
        """Slurm warns steps, and not the batch script, of a preemption: the launcher hears of it from us."""
        for received in sorted(set(numbers) - {signal.SIGCHLD}):
            self._say("signalled", number=received)

    def _say(self, what: str, **fields: object) -> None:
        # Small and seldom: a launcher that reads so little that this blocks is as good as gone.
        self._link.sendall(encode(what, **fields))

    # -- warm interpreters -------------------------------------------------------------------------------------

    def _prepare(self, processes: int, torchrun: bool) -> None:
        program = commands.parse_python(self._command)
        if not self._preload or program is None or torchrun or self._warm or self._ranks:
            return
        for _ in range(processes):
            warm = _start_warm(program, self._preload, self._channel())
            self._warm.append(warm)
            self._selector.register(warm.ready, selectors.EVENT_READ, warm)

    def _hear_warm(self, warm: Warm) -> None:
        line = os.read(warm.ready, 65536)
        self._selector.unregister(warm.ready)
        os.close(warm.ready)
        warm.is_ready = True
        warm.failed = "it ended before it was ready" if not line else "; ".join(json.loads(line)["failed"]) or None
        if all(one.is_ready for one in self._warm):
            failed = next((one.failed for one in self._warm if one.failed), None)
            self._say("warm", failed=failed)

    # -- ranks -------------------------------------------------------------------------------------------------

    def _go(self, part: Part) -> None:
        self._torchrun = part.torchrun
        self._port_holder.close()
        kept = {local_rank: pid for pid, local_rank in self._ranks.items()}
        usable = [one for one in self._warm if one.failed is None]
        count = 1 if part.torchrun else part.meeting.processes
        warm = len(usable) == count
        for local_rank in range(count):
            environment = rank_environment(os.environ, part, local_rank)
            if local_rank in kept:
                self._channels[kept[local_rank]].go_on(environment)
            elif warm:
                self._become(usable[local_rank], local_rank, environment)
            else:
                self._start(part, local_rank, environment)
        self._warm = [one for one in self._warm if one.program.pid not in self._ranks]
        self._say("started", warm=warm, kept=len(kept), at=time.time())

    def _become(self, chosen: Warm, local_rank: int, environment: dict[str, str]) -> None:
        if chosen.channel is not None:
            environment = {**environment, DESCRIPTOR_VARIABLE: str(chosen.channel.descriptor)}
            self._channels[chosen.program.pid] = chosen.channel
        with contextlib.suppress(BrokenPipeError):  # it died meanwhile: its exit is noticed as any rank's is
            os.write(chosen.go, json.dumps(environment).encode() + b"\n")
        os.close(chosen.go)
        self._ranks[chosen.program.pid] = local_rank

    def _start(self, part: Part, local_rank: int, environment: dict[str, str]) -> None:
        channel = self._channel()
        try:
            arguments = commands.torchrun(self._command, part.meeting) if part.torchrun else self._command
            program = _start(arguments, environment, channel)
        except OSError as error:
            sys.stderr.write(f"understudy: {_node()}: cannot start {self._command[0]}: {error.strerror}\n")
            status = 127 if isinstance(error, FileNotFoundError) else 126  # as a shell has it
            self._say("exited", local_rank=local_rank, status=status)
            return
        self._ranks[program.pid] = local_rank
        if channel is not None:
            self._channels[program.pid] = channel

    # -- ranks that go on in the next launch ---------------------------------------------------------------------

    def _channel(self) -> Channel | None:
        if self._in_process_seconds is None:
            return None
        channel = Channel()
        self._selector.register(channel.ours, selectors.EVENT_READ, channel)
        return channel

    def _hear_rank(self, channel: Channel) -> None:
        if channel.hear():
            pid = next((pid for pid, one in self._channels.items() if one is channel), None)
            if pid in self._ranks and channel.waiting and self._kept_until is None and not self._killing:
                # To the launcher it has failed; whether it is started anew or goes on is no matter.
                self._say("exited", local_rank=self._ranks[pid], status=STUMBLED_STATUS)
        elif not channel.open:
            self._selector.unregister(channel.ours)
            channel.ours.close()

    def _keep(self, until: float) -> None:
        """Who cannot go on, or does not come in time, is killed. That nobody is left in the old launch, is said."""
        late = time.monotonic() > until
        staying = []
        for pid in self._ranks:
            channel = self._channels.get(pid)
            if channel is None or not channel.restartable or (late and not channel.waiting):
                kill_tree(pid)
                staying.append(pid)
            elif not channel.waiting:
                staying.append(pid)
        if not staying:
            self._kept_until = None
            self._port_holder = bind_a_port(self._ports)
            self._say("gone", port=self.port, kept=len(self._ranks))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for warm in self._warm:
                if warm.program.pid == pid and pid not in self._ranks:
                    warm.failed = "it has ended"
            local_rank = self._ranks.pop(pid, None)
            channel = self._channels.pop(pid, None)
            told = channel is not None and channel.waiting  # and so of its failure, when it stumbled
            if local_rank is not None and not self._killing and self._kept_until is None and not told:
                self._say("exited", local_rank=local_rank, status=os.waitstatus_to_exitcode(status))

    def _signal(self, which: int) -> None:
        """To the ranks; where torchrun stands between, to its children, for torchrun itself would end of it."""
        targets = list(self._ranks)
        if self._torchrun:
            targets = [pid for pid, parent in parents().items() if parent in self._ranks]
        for pid in targets:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, which)

    def _kill(self) -> None:
        left = kill_below()
        if not left:
            self._killing = False
            self._say("gone")


def _start(arguments: Sequence[str], environment: dict[str, str], channel: Channel | None) -> subprocess.Popen[bytes]:
    passed: tuple[int, ...] = ()
    if channel is not None:
        passed = (channel.descriptor,)
        environment = {**environment, DESCRIPTOR_VARIABLE: str(channel.descriptor)}
    # A process group of its own: a script's `kill 0` shall not hit the seat.
    started = subprocess.Popen(
        list(arguments), env=environment, stdin=subprocess.DEVNULL, process_group=0, pass_fds=passed
    )
    if channel is not None:
        channel.handed_over()
    return _unwaited(started)


def _start_warm(program: PythonProgram, preload: str, channel: Channel | None) -> Warm:
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    kind = "module" if program.module else "script"
    environment = {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE}
    started = subprocess.Popen(
        [
            *(program.interpreter, *program.flags, str(_WARM_PROGRAM), str(ready_write), str(go_read)),
            *(preload, kind, program.target, *program.arguments),
        ],
        env=environment,
        stdin=subprocess.DEVNULL,
        pass_fds=(ready_write, go_read, *([channel.descriptor] if channel else [])),
        process_group=0,
    )
    os.close(ready_write)
    os.close(go_read)
    if channel is not None:
        channel.handed_over()
    return Warm(_unwaited(started), ready_read, go_write, channel)


def _unwaited(program: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Python shall not wait for it on its own: all children are collected in one place."""
    program.returncode = 0
    return program


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible:
        return len([one for one in visible.split(",") if one and one != "NoDevFiles"])
    count = os.environ.get("SLURM_GPUS_ON_NODE", "0")
    return int(count) if count.isdecimal() else 0


def _connect(hosts: Sequence[str], port: int) -> socket.socket:
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        for host in hosts:
            try:
                link = socket.create_connection((host, port), timeout=5)
            except OSError as error:
                last = error
            else:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return link
        if time.monotonic() > deadline:
            raise OSError(f"cannot reach the launcher at {' or '.join(hosts)}, port {port}: {last}")
        time.sleep(0.2)


def greet(link: socket.socket, secret: str, generation: int, port: int) -> Lines:
    """Prove each other, say who we are. Raises ProtocolError."""
    lines = Lines()
    ours = challenge()
    link.sendall(encode("seat", challenge=ours))
    waiting: list[Message] = []
    while not waiting:
        piece = link.recv(65536)
        if not piece:
            raise ProtocolError("the launcher hung up")
        waiting = lines.feed(piece)
    welcome = waiting[0]
    if not is_answer(welcome.get("answer"), secret, "launcher", ours):
        raise ProtocolError("what answers at the launcher's address does not know this launch's secret")
    hello: dict[str, Any] = {
        "answer": answer(secret, "seat", text(welcome, "challenge")),
        "node": _node(),
        "generation": generation,
        "step": os.environ.get("SLURM_STEP_ID", ""),
        "address": link.getsockname()[0],
        "port": port,
        "gpus": _gpus(),
    }
    link.sendall(encode("hello", **hello))
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="understudy seat", description="Started by `understudy run` on each node.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--generation", type=int, required=True)
    parser.add_argument("--preload", default="")
    parser.add_argument("--in-process", type=float)
    parser.add_argument("--port-range", type=port_range, default=PORTS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    secret = os.environ.get(SECRET_VARIABLE, "")
    # Slurm says from which address the step was started: that of the launcher.
    told = (os.environ.get("SLURM_LAUNCH_NODE_IPADDR"), os.environ.get("SLURM_SRUN_COMM_HOST"))
    hosts = list(dict.fromkeys(host for host in told if host))
    if not become_subreaper():
        sys.stderr.write(f"understudy: seat on {_node()}: the kernel refuses PR_SET_CHILD_SUBREAPER\n")
        return 1
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    try:
        link = _connect(hosts, options.port)
        seat = Seat(link, options, command)
        greeting = greet(link, secret, options.generation, seat.port)
    except (OSError, ProtocolError) as error:
        sys.stderr.write(f"understudy: seat on {_node()}: {error}\n")
        return 1
    link.settimeout(30)
    seat.run(greeting)
    return 0


if __name__ == "__main__":
    sys.exit(main())
