"""A seat: the program that Slurm starts on every node, which starts, watches and ends the ranks there.

It carries out the launcher's messages, decides nothing, runs no Slurm command, and does not outlive the launcher. It
starts no rank before the launcher's `go`; until then it is a standby, and keeps warm interpreters where the job asked
for them (`warm_pool.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum

from understudy_launcher.binding import Binding, binding_for_seat
from understudy_launcher.evidence import Collection
from understudy_launcher.first_check import check
from understudy_launcher.join_launcher import CLOSED, Greeting, gpu_count, join, node_name, rejoin
from understudy_launcher.ports import PORTS, bind_a_port, port_range
from understudy_launcher.process_tree import become_subreaper, end_everything_below, kill_below
from understudy_launcher.protocol import (
    BEAT,
    BEAT_SECONDS,
    RESTING_BEAT_SECONDS,
    SECRET_VARIABLE,
    Lines,
    Message,
    encode,
    number,
)
from understudy_launcher.rank_channel import Channel
from understudy_launcher.rank_environment import Part, read_part
from understudy_launcher.rank_output import OutputOptions, output_for_seat
from understudy_launcher.seat_ranks import Exit, Ranks
from understudy_launcher.warm_pool import WarmInterpreter
from understudy_wire.errors import ProtocolError

SILENCE_SECONDS = 120.0
"""The seat ends after this time without a message, as if the launcher was gone."""
SILENCE_WHEN_ENDED_SECONDS = 8.0
"""The same from Slurm's SIGTERM to the step on: where the batch host has lost its power, no connection is reset. The
launcher's last beat may be older, and it beats more often once the seat has reported the signal.
"""
SEND_SECONDS = 30.0
ENDING_POLL_SECONDS = 0.01
LAST_WORDS_SECONDS = 0.3
"""Time for the last lines of a rank that has ended: a process that it has left behind may hold its standard error open.
"""
LEFT_SECONDS = 0.05
"""Time for what is left of it once no process is."""
LEAVE_SECONDS = 1.0
"""Ranks whose peers have ended leave by themselves within this time, and a short save comes to its end. After it ranks
are ordered to leave.
"""
OUTPUT_SECONDS = 2.0
"""Time at the end of the seat, for what the ranks have written to be passed on."""
START_SECONDS_MAX = 120.0
"""Time for ranks to be started. A seat that takes longer falls silent: its file system may never answer."""


class Phase(Enum):
    STANDBY = "waits for `go`; may have ranks that were kept from the launch before"
    RUNNING = "ranks run"
    KEEPING = "the launch is over: ranks that can go on leave it, the others are killed"
    KILLING = "everything below the seat is killed"
    OVER = "the launcher does not need this seat any more, or is gone"


ENDING = (Phase.KEEPING, Phase.KILLING)
"""Exits are not reported in these phases: the launcher has ended the launch."""


class Seat:
    _link: socket.socket

    def __init__(self, options: argparse.Namespace, command: Sequence[str]) -> None:
        """A port is kept from other seats until the gang needs it."""
        self._lines = Lines()
        self._launcher_port: int = options.port
        self._launch = -1
        """The last one that it was ordered to start; -1: none."""
        self._ended: list[tuple[int, int]] = []
        """Local ranks of it that have ended, and how."""
        self._in_process_seconds: float = options.in_process or 0.0
        self._ports: Sequence[int] = options.port_range
        self._phase = Phase.STANDBY
        self._leaving_at = self._keeping_until = 0.0
        self._last_message_at = self._beaten = time.monotonic()
        self._beat_seconds = BEAT_SECONDS
        self._patience_seconds = SILENCE_SECONDS
        self._selector = selectors.DefaultSelector()
        self._ranks = Ranks(
            command,
            options.preload,
            self._selector,
            options.in_process is not None,
            options.output,
            options.binding,
        )
        self._collection: Collection | None = None
        self._evidence_bytes_max = 0
        self._speaking: list[tuple[float, Exit]] = []
        """Ranks that have failed, whose last lines may still come; and until when."""
        self._hold_a_port()
        secret = os.environ.get(SECRET_VARIABLE, "")
        checked = check(options.selfcheck, gpu_count()) if options.selfcheck else None
        self._greeting = Greeting(options.certificate, secret, options.generation, self.port, checked)

    def _hold_a_port(self) -> None:
        """Only the gang's first node needs it: a seat without one does everything else."""
        try:
            self._port_holder = bind_a_port(self._ports)
        except OSError as error:
            sys.stderr.write(f"understudy: seat on {node_name()}: {error}\n")
            self._port_holder = socket.socket()  # not bound
        self.port: int = self._port_holder.getsockname()[1]
        """The gang's rendezvous port, if its first rank is here; 0: none is free."""

    # -- the loop ----------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Raises ProtocolError and OSError."""
        self._take_link(join(self._greeting, self._launcher_port))

    def _take_link(self, link: socket.socket) -> None:
        link.settimeout(SEND_SECONDS)
        self._link, self._lines = link, Lines()
        self._selector.register(link, selectors.EVENT_READ)

    def run(self) -> None:
        """Returns when the launcher does not need this seat any more, or is gone. Then no process of it is left."""
        wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN, which the ranks would inherit. Slurm signals whole steps, and so the seat; but the seat
        # ends when the launcher orders it.
        for name in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(name, lambda *_: None)
        self._selector.register(wakeup_read, selectors.EVENT_READ)
        try:
            while self._phase is not Phase.OVER:
                try:
                    self._turn(wakeup_read)
                except OSError as error:
                    self._rejoin(error)
        except (OSError, ProtocolError) as error:
            sys.stderr.write(f"understudy: seat on {node_name()}: {error}\n")
        finally:
            end_everything_below(seconds=5.0)
            self._ranks.close(OUTPUT_SECONDS)

    def _turn(self, wakeup: int) -> None:
        before = time.monotonic()
        hurries = self._phase in ENDING or self._speaking or self._collection is not None
        self._read_events(wakeup, ENDING_POLL_SECONDS if hurries else BEAT_SECONDS)
        for one in self._ranks.exits():
            self._report(one)
        self._send_last_words()
        if self._collection is not None and self._collection.is_over:
            self._send_evidence(self._collection)
        if self._phase is Phase.KILLING:
            self._kill()
        elif self._phase is Phase.KEEPING:
            self._keep()
        now = time.monotonic()
        if now - before > 10 * BEAT_SECONDS:  # the seat itself did not run: the launcher was not silent
            self._last_message_at = now
        if now - self._last_message_at > self._patience_seconds:
            raise ProtocolError(f"no message from the launcher for {self._patience_seconds:.0f} s; ending")
        if now - self._beaten >= self._beat_seconds:
            self._beaten = now
            self._link.sendall(BEAT)

    def _read_events(self, wakeup: int, seconds: float) -> None:
        for key, _ in self._selector.select(timeout=seconds):
            if key.fileobj is self._link:
                self._listen()
            elif key.fileobj == wakeup:
                with contextlib.suppress(BlockingIOError):
                    self._report_signals(os.read(wakeup, 4096))
            elif isinstance(key.data, Channel):
                self._report(self._ranks.read(key.data))
            elif isinstance(key.data, WarmInterpreter) and self._ranks.warm(key.data):
                self._send("warm", failed=self._ranks.warm_failed)

    def _listen(self) -> None:
        self._link.settimeout(0)  # where a part of a record has come, the rest may be late
        try:
            piece = self._link.recv(65536)
        except (ssl.SSLWantReadError, BlockingIOError):
            return
        finally:
            self._link.settimeout(SEND_SECONDS)
        if not piece:
            raise ConnectionAbortedError(CLOSED)
        self._last_message_at = time.monotonic()
        for message in self._lines.feed(piece):
            if self._phase is not Phase.OVER:
                self._carry_out(message)

    def _carry_out(self, message: Message) -> None:
        match message["type"]:
            case "beat":
                pass
            case "pace":
                self._beat_seconds = RESTING_BEAT_SECONDS if message.get("resting") else BEAT_SECONDS
            case "prepare":
                with self._beating():
                    self._ranks.prepare(number(message, "processes"), bool(message.get("torchrun")))
            case "go":
                self._go(read_part(message))
            case "signal":
                self._ranks.signal(number(message, "number"), warning=bool(message.get("warning")))
            case "evidence":
                self._evidence_bytes_max = number(message, "bytes_max")
                self._collection = self._ranks.collect()
            case "kill":
                self._phase = Phase.KILLING
            case "keep":
                if self._phase is not Phase.KILLING:
                    self._phase = Phase.KEEPING
                now = time.monotonic()
                self._leaving_at = now + min(LEAVE_SECONDS, self._in_process_seconds / 2)
                self._keeping_until = now + self._in_process_seconds
            case "leave":
                self._phase = Phase.OVER
            case other:
                raise ProtocolError(
                    f"unknown message {other!r} from the launcher: it is of another release than this seat; "
                    "install the same release on all nodes"
                )

    def _rejoin(self, error: OSError) -> None:
        """The launcher may have been killed, and be started again. Meanwhile the ranks go on. Raises ProtocolError and
        OSError where it does not come back.
        """
        self._selector.unregister(self._link)
        self._link.close()
        if self._patience_seconds < SILENCE_SECONDS:
            raise error  # Slurm ends the step
        again = {"launch": self._launch, "running": self._phase is Phase.RUNNING, "ended": self._ended}
        self._take_link(rejoin(replace(self._greeting, port=self.port), self._launcher_port, again))
        self._last_message_at, self._beat_seconds = time.monotonic(), BEAT_SECONDS

    def _report_signals(self, numbers: bytes) -> None:
        """Slurm warns steps, and not the batch script, of a preemption: the seat reports it to the launcher."""
        if signal.SIGTERM in numbers and self._patience_seconds == SILENCE_SECONDS:
            self._patience_seconds, self._last_message_at = SILENCE_WHEN_ENDED_SECONDS, time.monotonic()
        for received in sorted(set(numbers) - {signal.SIGCHLD}):
            self._send("signalled", number=received)

    def _send(self, kind: str, **fields: object) -> None:
        # Messages are small and rare: a send that blocks means that the launcher has stopped reading.
        self._link.sendall(encode(kind, **fields))

    @contextlib.contextmanager
    def _beating(self) -> Iterator[None]:
        """Meanwhile another thread beats, for a while: starting a program takes long where its file system is slow, and
        the node is none the worse for it.
        """
        over = threading.Event()

        def beat() -> None:
            until = time.monotonic() + START_SECONDS_MAX
            with contextlib.suppress(OSError):  # the launcher is gone: the loop notices it
                while not over.wait(BEAT_SECONDS) and time.monotonic() < until:
                    self._link.sendall(BEAT)

        beating = threading.Thread(target=beat, daemon=True)
        beating.start()
        try:
            yield
        finally:
            over.set()
            beating.join()

    # -- ranks -------------------------------------------------------------------------------------------------

    def _go(self, part: Part) -> None:
        self._phase, self._launch, self._ended = Phase.RUNNING, part.launch, []
        self._beat_seconds = BEAT_SECONDS
        self._port_holder.close()
        with self._beating():
            start = self._ranks.start(part)
        for one in start.failed:
            self._report(one)
        self._send("started", warm=start.warm, kept=start.kept, at=time.time())

    def _report(self, ended: Exit | None) -> None:
        if ended is not None and self._phase not in ENDING:
            self._ended.append((ended.local_rank, ended.status))
            self._send("exited", local_rank=ended.local_rank, status=ended.status)
            if ended.status != 0 and ended.errors is not None:
                self._speaking.append((time.monotonic() + LAST_WORDS_SECONDS, ended))

    def _send_last_words(self, at_once: bool = False) -> None:
        """Sends them for ranks that have failed, once all that they wrote has come."""
        now = time.monotonic()
        for one in list(self._speaking):
            until, ended = one
            assert ended.errors is not None
            if ended.errors.wait(LEFT_SECONDS if at_once else 0) or at_once or now >= until:
                self._speaking.remove(one)
                self._send("last_words", local_rank=ended.local_rank, text=ended.errors.last_words())

    def _send_evidence(self, collection: Collection) -> None:
        if self._phase is Phase.RUNNING:
            self._send("evidence", ranks=collection.result(self._evidence_bytes_max))
        self._collection = None

    def _kill(self) -> None:
        left = [pid for pid in kill_below() if pid not in self._ranks.helpers]
        if not left:
            self._ranks.forget()
            self._phase = Phase.STANDBY
            self._hold_a_port()
            self._send_last_words(at_once=True)
            self._send("gone", port=self.port)

    def _keep(self) -> None:
        """Ranks that cannot continue, or do not leave in time, are killed. Reports when none is in the old launch."""
        if time.monotonic() > self._leaving_at:
            self._ranks.order_to_leave()
        if self._ranks.all_have_left(late=time.monotonic() > self._keeping_until):
            self._phase = Phase.STANDBY
            self._hold_a_port()
            self._send("gone", port=self.port, kept=len(self._ranks))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="understudy seat", description="Started by `understudy run` on each node.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificate", required=True, help="SHA-256 of the launcher's")
    parser.add_argument("--generation", type=int, required=True)
    parser.add_argument("--preload", default="")
    parser.add_argument("--selfcheck", default="")
    parser.add_argument("--in-process", type=float)
    parser.add_argument("--port-range", type=port_range, default=PORTS)
    parser.add_argument("--output", type=output_for_seat, default=OutputOptions())
    parser.add_argument("--binding", type=binding_for_seat, default=Binding())
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    if not become_subreaper():
        sys.stderr.write(f"understudy: seat on {node_name()}: the kernel refuses PR_SET_CHILD_SUBREAPER\n")
        return 1
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    try:
        seat = Seat(options, command)
        seat.join()
    except (OSError, ProtocolError) as error:
        sys.stderr.write(f"understudy: seat on {node_name()}: {error}\n")
        return 1
    seat.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
