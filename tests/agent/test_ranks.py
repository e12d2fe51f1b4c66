from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_SECONDS, until
from understudy_agent import ranks
from understudy_agent.facts import FactQueue
from understudy_agent.process import ProcessClock
from understudy_agent.rank_messages import LINE_BYTES_MAX, CollectiveEntered, Hello
from understudy_agent.ranks import LINES_AT_ONCE, QUESTIONS_OPEN_MAX, RankServer, SocketInUseError
from understudy_agent.shares import Pace
from understudy_agent.step_windows import ENDS_SENT, REPORTS_PER_PLACE, WindowBuffer
from understudy_agent.uplink import RestorePointError, RestorePointRequest
from understudy_wire.facts import CheckpointShard, FirstStep, RankStarted
from understudy_wire.messages import RestorePoint
from understudy_wire.ranks import RANKS_PER_NODE_MAX, Collective, RankWindow

HELLO = {"type": "hello", "job_id": 7, "restart_count": 1, "rank": 2, "world_size": 4, "pid": 1, "gpu_index": 3}
SHARD = {
    "type": "shard",
    "id": 5,
    "step": 40,
    "path": "/ckpt/40",
    "file": "rank2.pt",
    "size_bytes": 10,
    "checksum": "crc32:aaaaaaaa",
    "at": 99.5,
}


class Stage:
    """A rank server with everything around it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run" / "agent.sock"
        self.facts = FactQueue()
        self.windows = WindowBuffer()
        self.urgent = 0
        self.questions: list[RestorePointRequest] = []
        self.server = RankServer(self.path, self.facts, self.windows, self.restore_point, self._count)

    async def restore_point(self, question: RestorePointRequest) -> RestorePoint:
        self.questions.append(question)
        if question.restart_count == 9:
            raise RestorePointError("the control plane is away")
        return RestorePoint(question.job_id, question.restart_count, 30, "/ckpt/30", managed=question.job_id != 8)

    async def connect(self) -> Rank:
        return Rank(*await asyncio.open_unix_connection(str(self.path)))

    def _count(self) -> None:
        self.urgent += 1


class Rank:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            self.writer.write(json.dumps(message).encode() + b"\n")
        await self.writer.drain()

    async def hear(self) -> dict[str, Any] | None:
        """The next answer, None at the end of the connection."""
        line = await asyncio.wait_for(self.reader.readline(), PATIENCE_SECONDS)
        answer: dict[str, Any] | None = json.loads(line) if line else None
        return answer

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def on_stage(folder: Path, play: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        stage = Stage(folder)
        await stage.server.start()
        try:
            await play(stage)
        finally:
            await stage.server.stop()

    asyncio.run(run())


def test_hello_becomes_a_fact_with_the_pid_and_start_that_the_kernel_reports(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        rank = await stage.connect()
        await rank.say(HELLO)
        await until(lambda: len(stage.facts))
        [fact] = stage.facts.oldest(9)
        assert isinstance(fact, RankStarted)
        assert (fact.job_id, fact.restart_count, fact.rank, fact.world_size) == (7, 1, 2, 4)
        assert fact.pid == os.getpid()  # and not the 1 that it claims
        assert time.time() - 3600 < fact.started_at < time.time()
        assert stage.urgent == 1
        await rank.close()

    on_stage(tmp_path, play)


@pytest.mark.integration
def test_a_process_started_now_is_known_to_have_started_now() -> None:
    clock = ProcessClock()
    before = time.time()
    pid = os.posix_spawn("/bin/sleep", ["sleep", "5"], {})
    try:
        assert clock.started_at(pid) == pytest.approx(before, abs=0.3)
        assert clock.started_at(pid) == clock.started_at(pid)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    with pytest.raises(ProcessLookupError):
        clock.started_at(pid)


@pytest.mark.integration
def test_a_notice_is_acknowledged_only_after_the_control_plane_has_it(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        rank = await stage.connect()
        await rank.say(HELLO, {"type": "first_step", "id": 4, "step": 31, "at": 98.5}, SHARD)
        await until(lambda: len(stage.facts) == 3)
        _, first_step, shard = stage.facts.oldest(9)
        assert first_step == FirstStep(job_id=7, restart_count=1, rank=2, world_size=4, step=31, at=98.5)
        assert isinstance(shard, CheckpointShard)
        assert (shard.step, shard.path, shard.file, shard.size_bytes) == (40, "/ckpt/40", "rank2.pt", 10)
        answer = asyncio.create_task(rank.hear())
        done, _ = await asyncio.wait([answer], timeout=0.1)
        assert not done
        stage.facts.acknowledge([shard])
        assert await answer == {"type": "ack", "id": 5}
        stage.facts.refuse(first_step, "no such job")
        assert await rank.hear() == {"type": "error", "error": "no such job", "id": 4}
        await rank.close()

    on_stage(tmp_path, play)


def test_a_fact_outlives_the_rank_that_sent_it(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        rank = await stage.connect()
        await rank.say(HELLO, SHARD)
        await rank.close()
        await until(lambda: len(stage.facts) == 2)
        stage.facts.acknowledge(stage.facts.oldest(9))

    on_stage(tmp_path, play)


def test_step_times_are_kept_for_the_next_report(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        rank = await stage.connect()
        times = {"self_seconds": [0.1, 0.2], "wall_seconds": [0.3, 0.3]}
        await rank.say(HELLO | {"role": "stage1"}, {"type": "steps", "first_step": 31} | times)
        await rank.say({"type": "restore_point", "id": 1})
        await rank.hear()  # the agent has read the lines before it by now
        [window] = stage.windows.take()
        assert (window.first_step, window.self_seconds, window.gpu_index) == (31, [0.1, 0.2], 3)
        assert window.role == "stage1"
        await rank.close()

    on_stage(tmp_path, play)


ENTERED = {"type": "collective", "name": "all_reduce", "sequence": 3, "step": 12, "entered_at": 99.5, "inside": True}


def test_the_last_collective_goes_with_the_step_times_and_alone_only_rarely(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        rank = await stage.connect()
        await rank.say(
            HELLO, ENTERED, {"type": "steps", "first_step": 11, "self_seconds": [1.0], "wall_seconds": [1.0]}
        )
        await rank.say({"type": "restore_point", "id": 1})
        await rank.hear()
        [window] = stage.windows.take()
        assert window.collective == Collective("all_reduce", 3, 99.5, 12, inside=True)
        assert (window.first_step, window.self_seconds) == (11, [1.0])
        quiet = [stage.windows.take() for _ in range(REPORTS_PER_PLACE)]
        assert quiet[:-1] == [[]] * (REPORTS_PER_PLACE - 1)
        [again] = quiet[-1]
        assert (again.collective, again.self_seconds, again.rank) == (window.collective, [], 2)
        await rank.say(ENTERED | {"sequence": 4, "inside": False})
        await rank.say({"type": "restore_point", "id": 2})
        await rank.hear()
        [news] = stage.windows.take()
        assert news.collective == Collective("all_reduce", 4, 99.5, 12)
        await rank.close()
        gone: list[RankWindow] = []
        await until(lambda: gone.extend(stage.windows.take()) or gone)  # type: ignore[func-returns-value]
        assert [(one.ended, one.collective) for one in gone] == [(True, None)], "a rank that has left hangs in nothing"
        rank = await stage.connect()
        await rank.say(HELLO, {"type": "restore_point", "id": 3})
        await rank.hear()
        assert [one.ended for one in stage.windows.take()] == [False]
        await rank.close()

    on_stage(tmp_path, play)


def test_the_end_of_a_rank_is_sent_again_for_minutes_and_then_forgotten() -> None:
    windows, hello = WindowBuffer(), Hello(job_id=7, restart_count=0, rank=0, world_size=1)
    windows.enter(hello, user_id=0)
    windows.leave(hello, user_id=0, ended=True)
    sent = [window for _ in range(1000) for window in windows.take()]
    assert [window.ended for window in sent] == [True] * ENDS_SENT
    windows.leave(hello, user_id=0, ended=False)
    assert windows.take() == [], "the agent refused what it sent, or stops"


def test_the_collectives_of_too_many_ranks_are_not_all_kept() -> None:
    windows = WindowBuffer(ranks_max=2)
    for rank in range(4):
        hello = Hello(job_id=7, restart_count=0, rank=rank, world_size=4)
        windows.place(hello, CollectiveEntered("barrier", 1, 99.5), user_id=0)
    assert [window.rank for window in windows.take()] == [2, 3]


def test_a_rank_gets_the_restore_point_or_the_reason_for_none(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        rank = await stage.connect()
        await rank.say(HELLO, {"type": "restore_point", "id": 1})
        assert await rank.hear() == {"type": "restore_point", "id": 1, "step": 30, "path": "/ckpt/30"}
        await rank.say(HELLO | {"restart_count": 9}, {"type": "restore_point", "id": 2})
        assert await rank.hear() == {"type": "error", "id": 2, "error": "the control plane is away"}
        await rank.close()

    on_stage(tmp_path, play)


def test_a_task_prolog_is_answered_without_a_hello_and_its_user_is_passed_on(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        question = {"type": "job_restore_point", "id": 1, "job_id": 7, "restart_count": 2}
        task = await stage.connect()
        await task.say(question)
        assert await task.hear() == {"type": "restore_point", "id": 1, "step": 30, "path": "/ckpt/30"}
        await task.say(question | {"id": 2, "job_id": 8})
        answer = await task.hear()
        assert answer is not None
        assert answer["managed"] is False
        assert stage.questions[0] == RestorePointRequest(7, 2, 0, os.getuid(), if_managed=True)
        await task.close()

    on_stage(tmp_path, play)


def test_a_job_that_is_gone_is_cut_off_and_its_next_attempt_is_not(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        left_over = await stage.connect()
        await left_over.say(HELLO, {"type": "restore_point", "id": 1})
        assert await left_over.hear()
        gone_at = time.time()
        await asyncio.sleep(0.01)
        new, other = await stage.connect(), await stage.connect()
        await new.say(HELLO | {"restart_count": 2}, {"type": "restore_point", "id": 1})
        await other.say(HELLO | {"job_id": 8}, {"type": "restore_point", "id": 1})
        assert await new.hear()
        assert await other.hear()
        stage.server.forget(7, gone_at)
        assert await left_over.hear() is None
        await left_over.close()
        for rank in (new, other):
            await rank.say({"type": "restore_point", "id": 2})
            assert await rank.hear()
            await rank.close()

    on_stage(tmp_path, play)


def test_a_connection_that_asks_without_end_is_refused(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        async def never(_question: RestorePointRequest) -> RestorePoint:
            return await asyncio.Future()

        stage.server.ask_restore_point = never
        question = {"type": "job_restore_point", "job_id": 7, "restart_count": 2}
        task = await stage.connect()
        await task.say(*(question | {"id": number} for number in range(QUESTIONS_OPEN_MAX + 1)))
        assert "questions are open already" in (await task.hear() or {})["error"]
        await task.close()

    on_stage(tmp_path, play)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"rubbish\n", "cannot be decoded"),
        (b"\xff\xfe\n", "cannot be decoded"),
        (b'{"tape":"steps"}\n', "cannot be decoded"),
        (b'{"type":"restore_point","id":1}\n', "send hello first"),
        (b'{"type":"collective","name":"","sequence":1,"entered_at":1.0}\n', "cannot be decoded"),
        (b'{"type":"collective","name":"barrier","sequence":-1,"entered_at":1.0}\n', "cannot be decoded"),
        (b'{"type":"collective","name":"barrier","sequence":1,"entered_at":1e99}\n', "cannot be decoded"),
        (json.dumps(HELLO | {"rank": 4}).encode() + b"\n", "cannot be in a world of 4"),
        (json.dumps(HELLO | {"rank": -1}).encode() + b"\n", "rank"),
        (json.dumps(HELLO | {"job_id": 2**70}).encode() + b"\n", "cannot be decoded"),
        (b"x" * (LINE_BYTES_MAX + 100), "at most"),
    ],
)
def test_rubbish_gets_an_error_and_ends_only_its_own_connection(tmp_path: Path, line: bytes, words: str) -> None:
    async def play(stage: Stage) -> None:
        good, bad = await stage.connect(), await stage.connect()
        await good.say(HELLO)
        bad.writer.write(line)
        answer = await bad.hear()
        assert answer is not None
        assert answer["type"] == "error"
        assert words in answer["error"]
        assert await bad.hear() is None
        await good.say({"type": "restore_point", "id": 1})
        assert (await good.hear() or {})["step"] == 30
        await good.close()
        await bad.close()

    on_stage(tmp_path, play)


def test_a_user_fills_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """journald would drop the lines about the node's hardware as well."""

    async def play(stage: Stage) -> None:
        for number in range(2 * LINES_AT_ONCE):
            rank = await stage.connect()
            await rank.say({"type": f"new{number}"}, {"type": "rubbish", "id": []})
            assert await rank.hear() is not None
            await rank.close()

    on_stage(tmp_path, play)
    logged = [record.msg for record in caplog.records if record.msg in ("rank_refused", "rank_message_unknown")]
    assert LINES_AT_ONCE <= len(logged) <= LINES_AT_ONCE + 5


def test_what_only_a_newer_hook_says_is_left_out_and_answered_and_the_rank_goes_on(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        rank = await stage.connect()
        await rank.say(
            HELLO, {"type": "dance", "of": [1]}, {"type": "dance", "id": 4}, {"type": "restore_point", "id": 5}
        )
        answers = [await rank.hear() or {} for _ in range(2)]
        assert {answer["id"]: answer["type"] for answer in answers} == {4: "error", 5: "restore_point"}
        assert "does not know 'dance'" in next(answer["error"] for answer in answers if answer["id"] == 4)
        await rank.close()

    on_stage(tmp_path, play)


def test_what_a_newer_hook_adds_to_known_messages_is_ignored_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(stage: Stage) -> None:
        rank = await stage.connect()
        anomaly = {"type": "anomaly", "id": 3, "kind": "throughput_drop", "step": 31, "at": 98.5}
        await rank.say(HELLO | {"release": "9.0.0", "mood": "good"}, SHARD | {"id": 4, "mood": "good"})
        await rank.say(SHARD | {"id": 5, "mood": "good"}, anomaly, {"type": "restore_point", "id": 6})
        answers = [await rank.hear() or {} for _ in range(2)]
        assert {answer["id"]: answer["type"] for answer in answers} == {3: "error", 6: "restore_point"}
        assert len(stage.facts) == 2  # the rank, and its shard once
        stage.facts.acknowledge(stage.facts.oldest(9))
        await rank.close()

    on_stage(tmp_path, play)
    logged = [vars(record)["fields"]["what"] for record in caplog.records if record.msg == "rank_unknown_content"]
    assert logged == ["field Hello.mood", "field ShardNotice.mood", "value AnomalyNotice.kind=throughput_drop"]


def test_a_fact_that_only_a_newer_launcher_sends_is_answered_and_its_connection_stays(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        launcher = await stage.connect()
        await launcher.say({"type": "launch", "id": 3, "fact": {"type": "launch_paused", "launch": 1}})
        answer = await launcher.hear() or {}
        assert (answer["type"], answer["id"]) == ("error", 3)
        assert "does not know 'launch_paused'" in answer["error"]
        await launcher.say(HELLO, {"type": "restore_point", "id": 4})
        assert (await launcher.hear() or {})["id"] == 4
        await launcher.close()

    on_stage(tmp_path, play)


@pytest.mark.parametrize(
    "times",
    [
        {"self_seconds": [0.1], "wall_seconds": [0.1, 0.2]},
        {"self_seconds": [-1], "wall_seconds": [0.1]},
        {"self_seconds": [], "wall_seconds": []},
        {"self_seconds": [0.1] * 513, "wall_seconds": [0.1] * 513},
    ],
)
def test_impossible_step_times_are_refused(tmp_path: Path, times: dict[str, list[float]]) -> None:
    async def play(stage: Stage) -> None:
        rank = await stage.connect()
        await rank.say(HELLO, {"type": "steps", "first_step": 1} | times)
        assert (await rank.hear() or {})["type"] == "error"
        assert stage.windows.take() == []
        await rank.close()

    on_stage(tmp_path, play)


def test_more_ranks_of_a_job_than_a_user_can_have_are_turned_away(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        ranks = [await stage.connect() for _ in range(RANKS_PER_NODE_MAX)]
        for rank in ranks:
            await rank.say(HELLO, {"type": "restore_point", "id": 1})
        for rank in ranks:
            assert (await rank.hear() or {})["step"] == 30
        late = await stage.connect()
        await late.say(HELLO)
        assert "its job 7 has its share" in (await late.hear() or {})["error"]
        other = await stage.connect()
        await other.say(HELLO | {"job_id": 8}, SHARD)
        assert (await ranks[-1].hear()) is None, "another job of the user has its share, however late it comes"
        await until(
            lambda: any(fact.job_id == 8 for fact in stage.facts.oldest(999) if isinstance(fact, CheckpointShard))
        )
        for rank in [late, other, *ranks]:
            await rank.close()

    on_stage(tmp_path, play)


def test_the_agents_own_work_has_a_turn_after_each_message_of_a_connection(tmp_path: Path) -> None:
    """A process that repeats its hello as fast as it can must not delay the node's reports."""

    async def play(stage: Stage) -> None:
        rank = await stage.connect()
        await rank.say(*(HELLO | {"launch": number} for number in range(300)))
        turns = 0
        while len(stage.facts) < 300:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 300
        await rank.close()

    on_stage(tmp_path, play)


def test_a_user_that_sends_too_much_waits_and_stays_connected(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.server.messages = Pace(burst=9, each_second=1e-3)
        flood = [await stage.connect() for _ in range(2)]
        for number, rank in enumerate(flood):
            await rank.say(*(HELLO | {"launch": 100 * number + launch} for launch in range(50)))
        await until(lambda: len(stage.facts) == 9)
        await asyncio.sleep(0.1)
        assert len(stage.facts) == 9
        stage.server.messages = Pace(burst=9, each_second=1e9)
        rank = await stage.connect()
        await rank.say(HELLO | {"launch": 999})
        await until(lambda: len(stage.facts) == 10)
        for one in (rank, *flood):
            await one.close()

    on_stage(tmp_path, play)


def test_a_connection_that_reads_no_answers_is_gone_once_it_is_refused(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        deaf = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        deaf.setblocking(False)
        await asyncio.get_running_loop().sock_connect(deaf, str(stage.path))
        question = json.dumps({"type": "shard", "id": 1, "path": "\0"}).encode() + b"\n"
        hello = json.dumps(HELLO).encode() + b"\n"
        await asyncio.get_running_loop().sock_sendall(deaf, hello + 1200 * question + b"rubbish\n")
        await until(lambda: not stage.server._conversations)
        deaf.close()

    on_stage(tmp_path, play)


def test_idle_connections_lock_out_no_rank(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        idle = [await stage.connect() for _ in range(RANKS_PER_NODE_MAX)]
        rank = await stage.connect()
        await rank.say(HELLO)
        await until(lambda: len(stage.facts))
        assert await idle[0].hear() is None
        for one in [rank, *idle]:
            await one.close()

    on_stage(tmp_path, play)


def test_an_agent_that_has_run_out_of_files_accepts_ranks_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "ACCEPT_AGAIN_SECONDS", 0.05)

    async def play(stage: Stage) -> None:
        rank = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            rank.connect(str(stage.path))
            rank.sendall(json.dumps(HELLO).encode() + b"\n")
            await asyncio.sleep(0.02)
            assert len(stage.facts) == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: len(stage.facts))
        rank.close()

    on_stage(tmp_path, play)


def test_a_connection_without_a_hello_is_closed_and_one_with_it_stays(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.server.hello_seconds = 0.05
        silent, slow, rank = [await stage.connect() for _ in range(3)]
        slow.writer.write(b'{"type": ')
        await rank.say(HELLO)
        assert [await silent.hear(), await slow.hear()] == [None, None]
        await rank.say({"type": "restore_point", "id": 1})
        assert (await rank.hear() or {})["step"] == 30
        for one in (silent, slow, rank):
            await one.close()

    on_stage(tmp_path, play)


def test_a_field_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    """Decoding skips it unread. Found by the fuzzer."""

    async def play(stage: Stage) -> None:
        rank = await stage.connect()
        rank.writer.write(json.dumps(HELLO).encode()[:-1] + b', "r\xff": 1}\n')
        assert "the message cannot be decoded" in (await rank.hear() or {})["error"]
        assert await rank.hear() is None
        await rank.close()

    on_stage(tmp_path, play)


def test_a_text_that_no_database_stores_is_refused_and_the_connection_stays(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        rank = await stage.connect()
        await rank.say(HELLO, SHARD | {"path": "/c/\0"}, SHARD | {"id": 6, "path": "/c/\\u0000"})
        assert "without control characters - at `$.path`" in (await rank.hear() or {})["error"]
        await until(lambda: len(stage.facts) == 2)
        assert [fact.path for fact in stage.facts.oldest(9) if isinstance(fact, CheckpointShard)] == ["/c/\\u0000"]
        await rank.say(HELLO | {"role": "\0"})
        assert "without control characters - at `$.role`" in (await rank.hear() or {})["error"]
        assert await rank.hear() is None
        await rank.close()

    on_stage(tmp_path, play)


def test_any_user_may_connect(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        assert stage.path.stat().st_mode & 0o777 == 0o666

    on_stage(tmp_path, play)


def test_a_socket_left_by_a_killed_agent_is_replaced_and_a_living_one_is_not(tmp_path: Path) -> None:
    left = tmp_path / "run" / "agent.sock"
    left.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))

    async def play(stage: Stage) -> None:
        with pytest.raises(SocketInUseError):
            await Stage(tmp_path).server.start()
        rank = await stage.connect()
        await rank.say(HELLO)
        await until(lambda: len(stage.facts))
        await rank.close()

    on_stage(tmp_path, play)
    assert not left.exists()


def test_a_plain_file_in_the_sockets_place_is_left_alone(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.path.parent.mkdir()
    stage.path.write_text("precious")
    with pytest.raises(OSError, match="in the way"):
        asyncio.run(stage.server.start())
    assert stage.path.read_text() == "precious"
