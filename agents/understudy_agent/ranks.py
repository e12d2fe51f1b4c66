"""The local socket: ranks on this node connect, report step times, announce checkpoints and ask for the restore point.

A rank of any user may connect, so everything is bounded, and nothing that a rank sends can do more than end its own
connection. A connection without a hello is closed after ten seconds. Each user, and each job of a user, has a share of
the connections. The agent passes messages on. It checks only the user of the sender, which it takes from the kernel
(SO_PEERCRED).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import UNSET

from understudy_agent.facts import FactQueue
from understudy_agent.launchers import LauncherLine, Launchers, TooManyLaunchersError
from understudy_agent.log import UnknownNames, fields, log
from understudy_agent.own_files import make_directory
from understudy_agent.process import ProcessClock, peer
from understudy_agent.programs import Programs
from understudy_agent.rank_messages import (
    LINE_BYTES_MAX,
    Acknowledged,
    AnomalyNotice,
    Answer,
    DeletedNotice,
    ErrorAnswer,
    FirstStepNotice,
    Hello,
    InputsSeen,
    JobRestorePointQuestion,
    LauncherMessage,
    LaunchNotice,
    Message,
    ProgramSeen,
    RestoreNotice,
    RestorePointAnswer,
    RestorePointQuestion,
    ShardNotice,
    Steps,
    UnknownMessage,
    Whereabouts,
    decode,
    encode,
    identifier_in,
    unknown_content,
)
from understudy_agent.save_orders import ForRanks, SaveOrders, is_for
from understudy_agent.shares import Arrivals, NoRoomError, Pace, Shares
from understudy_agent.step_windows import WindowBuffer
from understudy_agent.uplink import RestorePointError, RestorePointRequest
from understudy_wire.facts import (
    Anomaly,
    AnomalyKind,
    CheckpointDeleted,
    CheckpointShard,
    Fact,
    FirstStep,
    RankStarted,
    RestoreOutcome,
    RestoreReport,
    ShardFile,
    TrainingInputs,
)
from understudy_wire.launcher import LauncherState
from understudy_wire.messages import RELEASE, RestorePoint
from understudy_wire.ranks import RANKS_PER_NODE_MAX, HangQuestion, ProgramFiles, SaveOrder
from understudy_wire.values import TEXT_CHARACTERS_MAX, in_words

ANSWER_BYTES_UNREAD_MAX = 262_144

HELLO_SECONDS = 10.0
"""Time from connecting to the first complete message."""

CONNECTIONS_MAX = 512
"""Connections of all users, from their hello on. RANKS_PER_NODE_MAX of them may be one user's."""

ARRIVALS_MAX = 384
"""Connections of all users before their hello. With CONNECTIONS_MAX it is below the 1024 files of a process."""

ARRIVALS_OF_USER_MAX = RANKS_PER_NODE_MAX

CONNECTS_AT_ONCE = 2 * RANKS_PER_NODE_MAX
CONNECTS_EACH_SECOND = 64.0
"""Connections of one user. More are closed before anything is made for them."""

MESSAGES_AT_ONCE = 4096
MESSAGES_EACH_SECOND = 2048.0
"""Messages of one user, and twice as many of all users together. What is more waits in its socket. A rank sends up to
16 in a second; the agent reads some 20,000.
"""

ACCEPTED_AT_ONCE = 64
"""Connections that are accepted before the event loop turns to other work."""

ACCEPT_AGAIN_SECONDS = 1.0
"""Pause after the process has run out of file descriptors."""

BACKLOG = 4096
"""Connections that wait in the kernel. Where they are too many, the kernel refuses those of every user."""

QUESTIONS_OPEN_MAX = 16
"""Open questions of one connection. A rank has one."""

UNKNOWN_TYPES_LOGGED_MAX = 8
"""Unknown types in the log, of one connection."""

LINES_AT_ONCE = 32
LINES_EACH_SECOND = 0.2
"""Lines in the log because of a user's processes. journald drops any lines of a service that logs too many."""

AskRestorePoint = Callable[[RestorePointRequest], Awaitable[RestorePoint]]
"""Raises RestorePointError."""


class SocketInUseError(Exception):
    """Another agent is alive on this socket."""


class RefusedError(Exception):
    """A rank sent something impossible; it gets this text, and its connection ends."""


class RankServer:
    """Belongs to one event loop; calls `on_fact` after it put a fact into the queue."""

    def __init__(
        self,
        path: Path,
        facts: FactQueue,
        windows: WindowBuffer,
        ask_restore_point: AskRestorePoint,
        on_fact: Callable[[], None],
        launchers: Launchers | None = None,
    ) -> None:
        """Launchers are refused without `launchers`."""
        self._path = path
        self.facts = facts
        self.windows = windows
        self.ask_restore_point = ask_restore_point
        self.on_fact = on_fact
        self.launchers = launchers
        self.processes = ProcessClock()
        self.hello_seconds = HELLO_SECONDS
        self._conversations: set[asyncio.Task[None]] = set()
        self._ranks: set[RankConnection] = set()
        self._arrivals: Arrivals[RankConnection] = Arrivals(ARRIVALS_MAX, ARRIVALS_OF_USER_MAX)
        self._seated: Shares[RankConnection] = Shares(CONNECTIONS_MAX, RANKS_PER_NODE_MAX)
        self.unknown = UnknownNames("rank_unknown_content")
        self.save_orders = SaveOrders()
        self.programs: Programs[RankConnection] = Programs()
        self._pace = Pace(CONNECTS_AT_ONCE, CONNECTS_EACH_SECOND)
        self._lines = Pace(LINES_AT_ONCE, LINES_EACH_SECOND)
        self.messages = Pace(MESSAGES_AT_ONCE, MESSAGES_EACH_SECOND)
        self.all_messages = Pace(2 * MESSAGES_AT_ONCE, 2 * MESSAGES_EACH_SECOND)
        self._listening: socket.socket | None = None
        self._opening: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises SocketInUseError, or OSError where the socket cannot be made."""
        make_directory(self._path.parent)
        await asyncio.to_thread(_clear_stale_socket, self._path)
        listening = self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.setblocking(False)
        try:
            listening.bind(str(self._path))
            self._path.chmod(0o666)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def stop(self) -> None:
        if self._listening is None:
            return
        listening, self._listening = self._listening, None
        asyncio.get_running_loop().remove_reader(listening)
        listening.close()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for conversation in list(self._conversations):
            conversation.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    def forget(self, job_id: int, before: float) -> None:
        """The job has left this node: closes its connections that were opened before then."""
        for rank in list(self._ranks):
            if rank.job_id == job_id and rank.connected_at < before:
                log.warning("rank_cut_off", extra=fields(pid=rank.pid, reason=f"job {job_id} is gone"))
                rank.cut_off()

    def of_attempt(self, question: HangQuestion) -> dict[int, Hello]:
        """Ranks of the gang that are connected."""
        found = (rank.hello_for(question) for rank in self._ranks)
        return {hello.rank: hello for hello in found if hello is not None}

    def is_here(self, job_id: int) -> bool:
        """True if a rank of this job is connected."""
        return any(rank.job_id == job_id for rank in self._ranks)

    def pass_on(self, orders: Iterable[ForRanks]) -> None:
        """The ranks that they are for get them."""
        for order in orders:
            if isinstance(order, SaveOrder):
                self.save_orders.keep(order)
            for rank in list(self._ranks):
                rank.pass_on(order)

    def _accept(self, listening: socket.socket) -> None:
        """A flood costs little: what is too much of one user is closed at once, before it has a reader and a task."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptor or memory is left
                log.error("ranks_not_accepted", extra=fields(error=error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(ACCEPT_AGAIN_SECONDS, self._listen_again, listening)
                return
            if not self._pace.admits(peer(connection)[1], time.monotonic()):
                connection.close()
                continue
            opening = asyncio.get_running_loop().create_task(self._open(connection))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    def _listen_again(self, listening: socket.socket) -> None:
        if self._listening is listening:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def _open(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(LINE_BYTES_MAX, loop)
        protocol = asyncio.StreamReaderProtocol(reader, self._converse, loop)
        try:
            await loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:
            connection.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._conversations.add(task)
        rank = RankConnection(self, writer)
        self._ranks.add(rank)
        displaced = self._arrivals.enter(rank, rank.user_id)
        if displaced is not None:
            displaced.cut_off()
        try:
            async with asyncio.timeout(self.hello_seconds) as patience:
                await rank.listen(reader, lambda: patience.reschedule(None))
            rank.ended = True
        except RefusedError as error:
            if self.may_log(rank.user_id):
                log.warning("rank_refused", extra=fields(pid=rank.pid, error=error))
            rank.answer(ErrorAnswer(error=str(error)))
        except ConnectionError:
            rank.ended = True
        except (TimeoutError, asyncio.CancelledError):
            pass  # the rank sent no hello, or the agent stops
        finally:
            self._ranks.discard(rank)
            self._arrivals.leave(rank)
            self._seated.leave(rank)
            rank.close()
            writer.close()
            if writer.transport.get_write_buffer_size():
                rank.cut_off()  # what it does not read would keep the connection
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()
            self._conversations.discard(task)

    async def take_turns(self, user_id: int) -> None:
        """Called after each message: the agent's own work goes on, however many messages wait."""
        now = time.monotonic()
        await asyncio.sleep(max(self.messages.wait_seconds(user_id, now), self.all_messages.wait_seconds(None, now)))

    def may_log(self, user_id: int) -> bool:
        """True if what a process of this user does may be a line of the log."""
        return self._lines.admits(user_id, time.monotonic())

    def seat(self, rank: RankConnection, job_id: int) -> None:
        """A connection that named its job stays. Raises RefusedError."""
        self._arrivals.leave(rank)
        try:
            displaced = self._seated.enter(rank, rank.user_id, job_id)
        except NoRoomError as error:
            raise RefusedError(
                f"{len(self._seated)} ranks are connected already, and user {rank.user_id} or its job {job_id} has its "
                "share; close connections that are not needed"
            ) from error
        if displaced is not None:
            if self.may_log(displaced.user_id):
                log.warning("rank_cut_off", extra=fields(pid=displaced.pid, reason="others need the room"))
            displaced.cut_off()


class RankConnection:
    """One rank's side of the socket."""

    def __init__(self, server: RankServer, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._writer = writer
        self._hello: Hello | None = None
        self._ahead, self._next_number = 0, 0
        self.ended = False  # it has closed the connection
        self._launcher: LauncherLine | None = None
        self._questions: set[asyncio.Task[None]] = set()
        self._ignored: set[str] = set()
        self._seated_for: int | None = None
        self.connected_at = time.time()
        self.pid, self.user_id = peer(writer.get_extra_info("socket"))

    async def listen(self, reader: asyncio.StreamReader, on_seated: Callable[[], None]) -> None:
        """Ends when the rank closes the connection. Raises RefusedError and ConnectionError."""
        while True:
            await self._server.take_turns(self.user_id)
            try:
                line = await reader.readline()
            except ValueError as error:
                raise RefusedError(f"a line may have at most {LINE_BYTES_MAX} bytes") from error
            if not line.endswith(b"\n"):
                return  # end of file; an incomplete line is ignored
            try:
                message = decode(line)
            except msgspec.MsgspecError as error:
                self._refuse(identifier_in(line), error)
                continue
            if isinstance(message, UnknownMessage):
                self._ignore(message)
                continue
            self._sit_down(message, on_seated)
            self._take(message)
            if self._hello is None or self._hello.release != RELEASE:
                self._note_unknown(line)

    def answer(self, answer: Answer) -> None:
        """Dropped when the rank is gone. Closes the connection of a rank that does not read its answers."""
        if self._writer.is_closing():
            return
        self._writer.write(encode(answer))
        if self._writer.transport.get_write_buffer_size() > ANSWER_BYTES_UNREAD_MAX:
            if self._server.may_log(self.user_id):
                log.warning("rank_cut_off", extra=fields(pid=self.pid, reason="does not read its answers"))
            self._writer.transport.abort()

    def pass_on(self, order: ForRanks) -> None:
        """Sends it where it is for this rank."""
        if self.hello_for(order) is not None:
            self.answer(order)

    def hello_for(self, order: ForRanks) -> Hello | None:
        """None: it is not for this rank."""
        return self._hello if self._hello is not None and is_for(order, self._hello, self.user_id) else None

    @property
    def job_id(self) -> int | None:
        """The rank's job; None before its hello."""
        return self._hello.job_id if self._hello is not None else None

    def cut_off(self) -> None:
        self._writer.transport.abort()

    def close(self) -> None:
        for question in self._questions:
            question.cancel()
        if self._launcher is not None and self._server.launchers is not None:
            self._server.launchers.close(self._launcher)
        if self._hello is not None:
            self._server.windows.leave(self._hello, self.user_id, ended=self.ended)
        self._server.programs.leave(self)

    def _note_unknown(self, line: bytes) -> None:
        try:
            self._server.unknown.note(unknown_content(line))
        except msgspec.MsgspecError as error:
            raise RefusedError(f"the message cannot be decoded: {error}") from error

    def _refuse(self, identifier: int | None, error: Exception) -> None:
        """A message with an id is answered, so that the sender does not repeat it. Raises RefusedError for others."""
        text = f"the message cannot be decoded: {in_words(error)}"
        if identifier is None:
            raise RefusedError(text) from error
        self.answer(ErrorAnswer(error=text, id=identifier))

    def _sit_down(self, message: Message, on_seated: Callable[[], None]) -> None:
        """Takes its place when it names its job, and another one when it names another job. Raises RefusedError."""
        if not isinstance(message, Hello | JobRestorePointQuestion | LauncherState):
            return
        if message.job_id != self._seated_for:
            self._server.seat(self, message.job_id)
            self._seated_for = message.job_id
            on_seated()

    def _take(self, message: Message) -> None:
        if isinstance(message, Hello):
            self._take_hello(message)
            return
        if isinstance(message, JobRestorePointQuestion):
            asked = RestorePointRequest(
                message.job_id,
                message.restart_count,
                message.launch,
                self.user_id,
                if_managed=True,
                run=message.run,
                run_folder=message.run_folder,
            )
            self._ask(message.id, asked)
            return
        if isinstance(message, LauncherMessage):
            self._take_launcher(message)
            return
        hello = self._hello
        if hello is None:
            raise RefusedError("send hello first")
        if isinstance(message, Steps):
            if len(message.self_seconds) != len(message.wall_seconds):
                raise RefusedError("self_seconds and wall_seconds must have the same length")
            if not {len(message.data_seconds), len(message.work)} <= {0, len(message.self_seconds)}:
                raise RefusedError("data_seconds and work must be empty or as long as self_seconds")
            self._server.windows.add(hello, message, self.user_id)
            if self._server.launchers is not None:
                self._server.launchers.note_step(hello, self.user_id, self._place_of_last(message), self._ahead)
        elif isinstance(message, Whereabouts | ProgramSeen | InputsSeen):
            self._note(hello, message)
        elif isinstance(message, RestorePointQuestion):
            asked = RestorePointRequest(
                hello.job_id,
                hello.restart_count,
                hello.launch,
                self.user_id,
                looks=message.looks,
                run=hello.run,
                run_folder=hello.run_folder,
                arguments=hello.arguments,
                world_size=hello.world_size,
                rank=hello.rank,
            )
            self._ask(message.id, asked)
        elif unknown := _unknown_value(message):
            error = f"release {RELEASE} of the agent does not know this {unknown}"
            self.answer(ErrorAnswer(error=error, id=message.id))
        else:
            self._announce(_fact(hello, message, self.user_id), message.id)

    def _note(self, hello: Hello, message: Whereabouts | ProgramSeen | InputsSeen) -> None:
        if not isinstance(message, ProgramSeen | InputsSeen):
            self._server.windows.place(hello, message, self.user_id)
        elif hello.rank == 0 and isinstance(message, InputsSeen):
            of_rank = _of_rank(hello, self.user_id)
            named = TrainingInputs(**of_rank, code=message.code, config=message.config, data=message.data)
            self._announce(named, None)
        elif hello.rank == 0 and isinstance(message, ProgramSeen):
            files = ProgramFiles(hello.job_id, hello.restart_count, self.user_id, message.packed)
            self._server.programs.note(self, files)

    def _ignore(self, message: UnknownMessage) -> None:
        """A message with an id is answered, so that the sender does not repeat it."""
        if message.type not in self._ignored and len(self._ignored) < UNKNOWN_TYPES_LOGGED_MAX:
            self._ignored.add(message.type)
            if self._server.may_log(self.user_id):
                log.warning("rank_message_unknown", extra=fields(pid=self.pid, type=message.type))
        if message.id is not None:
            unknown = message.fact.type if message.fact is not None else message.type
            error = f"release {RELEASE} of the agent does not know {unknown!r}"
            self.answer(ErrorAnswer(error=error, id=message.id))

    def _place_of_last(self, steps: Steps) -> int:
        """Its last step, counted on where the program's numbers fall: its launcher takes what grows for progress."""
        if steps.first_step < self._next_number:
            self._ahead += self._next_number - steps.first_step
        self._next_number = steps.first_step + len(steps.self_seconds)
        return self._ahead + self._next_number - 1

    def _take_hello(self, hello: Hello) -> None:
        if hello.rank >= hello.world_size:
            raise RefusedError(f"rank {hello.rank} cannot be in a world of {hello.world_size}")
        self._hello = hello = msgspec.structs.replace(hello, pid=self.pid)
        self._server.windows.enter(hello, self.user_id)
        try:
            started_at = self._server.processes.started_at(self.pid)
        except ProcessLookupError as error:
            # The rank runs in a process namespace of its own. Its start is unknown, but it was a moment ago.
            if self._server.may_log(self.user_id):
                log.warning("rank_start_unknown", extra=fields(job=hello.job_id, rank=hello.rank, error=error))
            started_at = time.time()
        self._announce(
            RankStarted(
                **_of_rank(hello, self.user_id),
                started_at=started_at,
                pid=self.pid,
                run=hello.run,
                run_folder=hello.run_folder,
                arguments=hello.arguments,
            ),
            None,
        )
        for order in self._server.save_orders.valid_for(hello, self.user_id):
            self.pass_on(order)

    def _take_launcher(self, message: LauncherMessage) -> None:
        if self._server.launchers is None:
            raise RefusedError("this agent serves no launchers")
        if isinstance(message, LaunchNotice):
            if self._launcher is None:
                raise RefusedError("report the state of the gang first")
            self._announce(msgspec.structs.replace(message.fact, user_id=self.user_id), message.id)
            return
        try:
            line = self._launcher or self._server.launchers.open(self.user_id, self.answer, self.cut_off)
        except TooManyLaunchersError as error:
            raise RefusedError(str(error)) from error
        self._launcher = line
        line.take(message)

    def _announce(self, fact: Fact, identifier: int | None) -> None:
        def settle(error: str | None) -> None:
            if identifier is None:
                return
            refused = None if error is None else ErrorAnswer(error=error[:TEXT_CHARACTERS_MAX], id=identifier)
            self.answer(refused or Acknowledged(id=identifier))

        self._server.facts.put(fact, settle)
        self._server.on_fact()

    def _ask(self, identifier: int, question: RestorePointRequest) -> None:
        if len(self._questions) >= QUESTIONS_OPEN_MAX:
            raise RefusedError(f"{QUESTIONS_OPEN_MAX} questions are open already; wait for an answer")
        asking = asyncio.create_task(self._answer_restore_point(identifier, question))
        self._questions.add(asking)
        asking.add_done_callback(self._questions.discard)

    async def _answer_restore_point(self, identifier: int, question: RestorePointRequest) -> None:
        try:
            point = await self._server.ask_restore_point(question)
        except RestorePointError as error:
            if self._server.may_log(self.user_id):
                log.warning("restore_point_unavailable", extra=fields(job=question.job_id, pid=self.pid, error=error))
            self.answer(ErrorAnswer(error=str(error), id=identifier, final=error.final or UNSET))
            return
        names = RestorePointAnswer.__struct_fields__
        content = {name: value for name, value in msgspec.structs.asdict(point).items() if name in names}
        self.answer(RestorePointAnswer(id=identifier, **content))


Notice = FirstStepNotice | ShardNotice | DeletedNotice | AnomalyNotice | RestoreNotice


def _unknown_value(message: Notice) -> str:
    """What only a newer hook sends; empty: nothing."""
    if isinstance(message, AnomalyNotice) and message.kind is AnomalyKind.UNKNOWN:
        return "kind of anomaly"
    if isinstance(message, RestoreNotice) and message.outcome is RestoreOutcome.UNKNOWN:
        return "outcome of a restore"
    return ""


def _of_rank(hello: Hello, user_id: int) -> dict[str, Any]:
    """The fields that every fact of a rank has."""
    return {
        "job_id": hello.job_id,
        "restart_count": hello.restart_count,
        "rank": hello.rank,
        "world_size": hello.world_size,
        "launch": hello.launch,
        "user_id": user_id,
    }


def _fact(hello: Hello, notice: Notice, user_id: int) -> Fact:
    """The fact has the fields of the notice, but for its id, and those of the rank."""
    content = msgspec.structs.asdict(notice) | _of_rank(hello, user_id)
    del content["id"]
    match notice:
        case RestoreNotice():
            return RestoreReport(**content)
        case DeletedNotice():
            return CheckpointDeleted(**content)
        case AnomalyNotice():
            return Anomaly(**content)
        case FirstStepNotice():
            return FirstStep(**content)
    more = tuple(ShardFile(**msgspec.structs.asdict(one)) for one in content.pop("more"))
    return CheckpointShard(**content, more_files=more)


def _clear_stale_socket(path: Path) -> None:
    """An agent that was killed leaves its socket behind; one that is alive keeps it."""
    if path.is_symlink():
        raise OSError(f"{path} is a symbolic link; remove it, or set another `socket`")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            if not path.is_socket():
                raise OSError(f"{path} is in the way and no socket; move it, or set another `socket`") from None
            path.unlink()
            return
    raise SocketInUseError(f"{path}: another agent is listening there; stop it, or set another `socket`")
