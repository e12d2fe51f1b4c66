"""The agent asks NCCL's RAS service: only an answer of one of the gang's own processes counts, and all is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.agent.fake_ras import FakeCommunicator, FakeRank, FakeRas, Say, as_json, as_text
from tests.waiting import PATIENCE_SECONDS
from understudy_agent import nccl_answer, nccl_ras
from understudy_agent.nccl_answer import NotUnderstoodError, parsed
from understudy_agent.nccl_ras import NcclWatch, NotAskedError, ask
from understudy_agent.rank_messages import Hello
from understudy_wire.ranks import NCCL_RANKS_MAX, HangQuestion, NcclSeen

VERSIONS = ["2.24.3", "2.25.1", "2.26.2", "2.28.3", "2.28.9", "2.29.2", "2.30.7"]
HAVE_JSON = VERSIONS[4:]


def gang(size: int = 8) -> list[FakeRank]:
    return [FakeRank(rank, pid=1000 + rank, host=f"10.0.0.{rank // 4}") for rank in range(size)]


def changed(ranks: list[FakeRank], *others: FakeRank) -> FakeCommunicator:
    by_rank = {one.rank: one for one in others}
    return FakeCommunicator([by_rank.get(one.rank, one) for one in ranks])


def understood(version: str, *communicators: FakeCommunicator, size: int = 8) -> NcclSeen:
    pids = {rank.rank: {rank.pid} for rank in gang(size)[:4]}
    if version in HAVE_JSON:
        return parsed(as_json(version, communicators).encode(), size, pids)
    return parsed(as_text(version, communicators).encode(), size, pids)


@pytest.mark.parametrize("version", VERSIONS)
def test_who_is_behind_is_read_as_each_version_prints_it(version: str) -> None:
    late = changed(gang(), replace(gang()[3], begun=99), replace(gang()[5], begun=99))
    seen = understood(version, late)
    (one,) = seen.communicators
    assert (one.name, one.size, one.behind, one.behind_count, one.missing) == ("27a079b828ff1a75", 8, [3, 5], 2, [])
    assert one.what.removeprefix("AllReduce ") in ("99 of 100", "102 of 103")
    assert (seen.version, seen.count, seen.checked) == (version, 1, version in HAVE_JSON)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_single_rank_that_began_nothing_is_read(version: str) -> None:
    (one,) = understood(version, changed(gang(), replace(gang()[6], begun=0, broadcasts=3))).communicators
    assert (one.behind, one.behind_count) == ([6], 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dead", [False, True])
def test_who_does_not_answer_is_read_as_each_version_prints_it(version: str, dead: bool) -> None:
    away = [replace(gang()[rank], missing=True, dead=dead) for rank in (2, 7)]
    (one,) = understood(version, changed(gang(), *away)).communicators
    assert (one.missing, one.missing_count, one.behind) == ([2, 7], 2, [])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_gang_in_which_all_have_begun_as_much_shows_nothing_but_its_count(version: str) -> None:
    seen = understood(version, FakeCommunicator(gang()), FakeCommunicator(gang()[:2], 0x77))
    assert (seen.count, seen.communicators) == (2, [])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_without_communicators_shows_none(version: str) -> None:
    assert understood(version) == NcclSeen(version, 0)


def test_ranks_of_a_smaller_communicator_are_those_of_the_gang_where_json_has_all() -> None:
    pair = FakeCommunicator([replace(gang()[5], rank=0), replace(gang()[6], rank=1, begun=7)], 0x77)
    # The GPU of a rank is the same in each of its communicators.
    text = as_json("2.29.2", [FakeCommunicator(gang()), pair]).replace('"cuda_dev": 0', '"cuda_dev": 5')
    by_place = understood("2.29.2", FakeCommunicator(gang()), pair)
    assert by_place.communicators[0].behind == [], "another GPU: not known which rank it is"
    head, _, tail = text.partition('"0x77"')
    tail = tail.replace('"nvml_dev": 0', '"nvml_dev": 5').replace('"nvml_dev": 1', '"nvml_dev": 6')
    seen = parsed(f'{head}"0x77"{tail}'.encode(), 8, {0: {1000}})
    assert [(one.behind, one.behind_count) for one in seen.communicators] == [([6], 1)]
    assert understood("2.26.2", pair).communicators[0].behind == [], "text does not say which ranks they are"
    assert understood("2.26.2", pair).communicators[0].behind_count == 1


def test_numbers_that_pids_do_not_confirm_name_no_rank() -> None:
    answer = as_json("2.29.2", [changed(gang(), replace(gang()[3], begun=99))]).encode()
    assert parsed(answer, 8, {0: {1000}, 1: {77, 1001}}).communicators[0].behind == [3]
    for pids in ({0: {1001}}, {0: {1000}, 1: {7}}, {}):
        seen = parsed(answer, 8, pids)
        assert (seen.checked, seen.communicators[0].behind, seen.communicators[0].behind_count) == (False, [], 1)
    assert parsed(answer, 9, {0: {1000}}).communicators[0].behind == [], "a communicator of another size"


@pytest.mark.parametrize("version", VERSIONS)
def test_more_ranks_than_a_report_may_have_are_a_number(version: str) -> None:
    many = changed(gang(256), *[replace(one, begun=99) for one in gang(256)[: NCCL_RANKS_MAX + 1]])
    (one,) = understood(version, many, size=256).communicators
    assert (one.behind, one.behind_count) == ([], NCCL_RANKS_MAX + 1)


def test_a_list_of_missing_ranks_that_nccl_cut_names_none() -> None:
    away = [replace(one, missing=True) for one in gang(1024)[400:1000]]
    (one,) = understood("2.24.3", changed(gang(1024), *away), size=1024).communicators
    assert (one.missing, one.missing_count) == ([], 600)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_end_of_a_communicator_is_no_lag(version: str) -> None:
    ending = changed(gang(), replace(gang()[3], begun=99, finalized=True))
    if version in HAVE_JSON:
        assert understood(version, ending).communicators == []
    else:
        text = as_text(version, [ending]).replace(
            "  Communicator ranks have different",
            "  Rank 3 has status FINALIZE\n  Communicator ranks have different",
            1,
        )
        assert parsed(text.encode(), 8, {}).communicators == []


def test_errors_of_ranks_are_neither_missing_nor_behind() -> None:
    text = as_text("2.26.2", [FakeCommunicator(gang())])
    error = "#0-0 (27a079b828ff1a75) ERROR\n  Asynchronous errors on 2 ranks\n  2 ranks reported System error\n"
    text = text.replace("Warnings\n", f"{error}  Rank 1 -- GPU 1 managed by process 1 on node 1\n\nWarnings\n")
    assert parsed(text.encode(), 8, {}).communicators == []


def test_no_answer_breaks_the_parser() -> None:
    draw = random.Random(43)  # noqa: S311 - not for secrets
    whole = [as_json("2.29.2", [changed(gang(), replace(gang()[3], begun=99))]), as_text("2.26.2", [changed(gang())])]
    for _ in range(2000):
        answer = bytearray(draw.choice(whole).encode())
        for _ in range(draw.randint(1, 40)):
            at = draw.randrange(len(answer))
            answer[at : at + draw.randint(0, 30)] = draw.randbytes(draw.randint(0, 9))
        with contextlib.suppress(NotUnderstoodError):
            parsed(bytes(answer), 8, {0: {1000}})
    for hostile in (
        b"",
        b"{",
        b"[" * 100_000,
        b'{"communicators":' + b"[" * 100_000,
        b"\xff" * 1000,
        b"NCCL version x\n",
    ):
        with pytest.raises(NotUnderstoodError):
            parsed(hostile, 8, {0: {1000}})
    huge = b'{"nccl_version":"1","communicators":[{"hash":"0x1","size":99999999999999999999}]}'
    with pytest.raises(NotUnderstoodError):
        parsed(huge, 8, {})


def test_numbers_in_text_that_are_too_large_for_a_report_are_left_out() -> None:
    text = as_text("2.24.3", [changed(gang(), replace(gang()[3], begun=99))])
    seen = parsed(text.replace("Rank 3", f"Rank {10**12}").encode(), 8, {})
    assert seen.communicators == []


HEADED = "NCCL version 2.25.1\nGroup # x\n#0-0 (abc) INCOMPLETE\n"


@pytest.mark.parametrize(
    "line",
    [
        "  The missing ranks: " + "1" * 10_000 + "x",
        "  The missing ranks: " + "1" * 4_000 + "x",
        "  The missing ranks: " + "1000," * 800 + "x",
        "  The missing ranks: " + "1" * 9 + ",1" * 1900 + "x",
        "  " + " status" * 580,
        "0 " * 2000 + "x",
        "A" * 4000,
    ],
)
@pytest.mark.parametrize("block", ["INCOMPLETE", "MISMATCH"])
def test_a_line_that_almost_fits_is_read_at_once(line: str, block: str) -> None:
    """The agent does nothing else while an expression is matched."""
    with contextlib.suppress(NotUnderstoodError):
        assert parsed(f"{HEADED.replace('INCOMPLETE', block)}{line}\n".encode(), 8, {}).communicators == []


@pytest.mark.parametrize("ranks", ["2,7", "2,7,"])
def test_missing_ranks_in_one_line_are_read(ranks: str) -> None:
    row = "    0         1         4       7-8         8         6   RUNNING  INCOMPLETE\n"
    block = f"  Missing communicator data from 2 ranks\n  The missing ranks: {ranks}\n"
    seen = parsed(f"{HEADED.replace('#0-0', row + '#0-0')}{block}".encode(), 8, {})
    assert [one.missing for one in seen.communicators] == [[2, 7]]


def hostile_answers() -> dict[str, bytes]:
    communicator = '{"hash":"0x1","size":8}'
    several = ",".join([communicator] * (nccl_answer.COMMUNICATORS_MAX + 1))
    rank = '{"rank":1}'
    many = ",".join([rank] * (nccl_answer.RANKS_MAX + 1))
    heads = "".join(f"#{number}-0 (abc) MISMATCH\n" for number in range(nccl_answer.COMMUNICATORS_MAX + 1))
    return {
        "communicators of JSON": f'{{"nccl_version":"1","communicators":[{several}]}}'.encode(),
        "ranks": f'{{"nccl_version":"1","communicators":[{{"hash":"1","size":8,"ranks":[{many}]}}]}}'.encode(),
        "values": b'{"nccl_version":"1","communicators":[],"more":[' + b"0," * nccl_answer.VALUES_MAX + b"0]}",
        "hash": f'{{"nccl_version":"1","communicators":[{{"hash":"{"1" * 1000}","size":8}}]}}'.encode(),
        "communicators of text": f"{HEADED}{heads}".encode(),
        "lines": HEADED.encode() + b"\n" * nccl_answer.LINES_MAX,
        "a long line": HEADED.encode() + b"x" * (nccl_answer.LINE_CHARACTERS_MAX + 1),
    }


@pytest.mark.parametrize("what", [*hostile_answers()])
def test_an_answer_with_more_than_a_cluster_has_is_refused(what: str) -> None:
    with pytest.raises(NotUnderstoodError):
        parsed(hostile_answers()[what], 8, {})


def test_the_largest_gang_that_fits_into_json_is_within_the_bounds() -> None:
    answer = as_json("2.29.2", [FakeCommunicator(gang(13_000))]).encode()
    assert len(answer) > 0.7 * nccl_ras.JSON_BYTES_MAX
    assert parsed(answer, 13_000, {0: {1000}}).checked


def test_numbers_of_text_are_those_that_a_report_may_have() -> None:
    rows = "    0 999999999         4       7-8         8         8   RUNNING  MISMATCH\n" * 3
    groups = "  999999999 ranks have launched up to operation 1\n" * 3 + "  1 ranks have launched up to operation 2\n"
    kind = "#0-0 (abc) MISMATCH\n  Communicator ranks have different collective operation counts\n"
    seen = parsed(f"{HEADED}{rows}{kind}{groups}".encode(), 8, {})
    assert (seen.count, seen.communicators[0].behind_count) == (2**31 - 1, 2**31 - 1)
    assert msgspec.convert(msgspec.to_builtins(seen), NcclSeen) == seen


def own_ranks(ranks: list[FakeRank]) -> list[FakeRank]:
    """Rank 0 is this process."""
    return [replace(ranks[0], pid=os.getpid()), *ranks[1:]]


def listens_at(monkeypatch: pytest.MonkeyPatch, ras: FakeRas) -> None:
    """The environment of this process, as it was started, has no NCCL_RAS_ADDR."""
    monkeypatch.setattr(nccl_ras, "PORT", ras.port)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_is_asked_in_a_form_that_it_knows(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    late = changed(own_ranks(gang()), replace(gang()[3], begun=99))
    with FakeRas(version, [late]) as ras:
        listens_at(monkeypatch, ras)
        seen = ask({0: os.getpid()}, 8)
    assert [one.behind for one in seen.communicators] == [[3]]
    assert (seen.version, seen.checked) == (version, version in HAVE_JSON)
    assert ras.asked[-1] == (b"status" if version in HAVE_JSON else b"verbose status")


def test_nothing_is_sent_where_no_rank_of_the_gang_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger that took the port first would answer for the gang."""
    with FakeRas(communicators=[FakeCommunicator(gang())]) as ras:
        listens_at(monkeypatch, ras)
        with pytest.raises(NotAskedError, match="none of its ranks listens"):
            ask({0: os.getppid()}, 8)
        assert ras.asked == []


STRANGER = """
import socket, sys, time
one = socket.socket(); one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
one.bind(("127.0.0.1", int(sys.argv[1]))); one.listen(); print("here", flush=True)
while True:
    connection, _ = one.accept(); connection.recv(99); connection.sendall(b"SERVER PROTOCOL 2\\n" + b"OK\\n" * 9)
"""


@pytest.mark.integration
def test_another_job_of_the_same_user_at_the_same_address_does_not_answer_for_the_gang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel chooses who of those that listen is connected."""
    late = changed(own_ranks(gang()), replace(gang()[3], begun=99))
    with FakeRas("2.29.2", [late]) as ras:
        listens_at(monkeypatch, ras)
        command = [sys.executable, "-c", STRANGER, str(ras.port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as stranger:
            try:
                assert stranger.stdout is not None and stranger.stdout.readline() == b"here\n"
                monkeypatch.setattr(nccl_ras, "TRIES_MAX", 60)
                for _ in range(5):
                    assert [one.behind for one in ask({0: os.getpid()}, 8).communicators] == [[3]]
            finally:
                stranger.kill()


def endless(connection: socket.socket, command: bytes) -> bool:
    if not command.endswith(b"status"):
        return False
    with contextlib.suppress(OSError):
        while True:
            connection.sendall(b" " * 65536)
    return True


def slow(connection: socket.socket, command: bytes) -> bool:
    if command.endswith(b"status"):
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(b" ")
                time.sleep(0.05)
    return False


def silent(_connection: socket.socket, _command: bytes) -> bool:
    return True


def never_ends_a_line(connection: socket.socket, _command: bytes) -> bool:
    connection.sendall(b"SERVER PROTOCOL " + b"2" * 10_000)
    return True


def another_service(connection: socket.socket, _command: bytes) -> bool:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    return True


@pytest.mark.parametrize("say", [endless, slow, silent, never_ends_a_line, another_service])
def test_what_a_service_sends_is_bounded(monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    for name, value in (("ANSWER_SECONDS", 0.4), ("LINE_SECONDS", 0.1), ("TRIES_MAX", 2)):
        monkeypatch.setattr(nccl_ras, name, value)
    with FakeRas("2.29.2", [FakeCommunicator(gang())], say=say) as ras:
        listens_at(monkeypatch, ras)
        with pytest.raises(NotAskedError):
            ask({0: os.getpid()}, 8)


def test_an_answer_that_is_too_long_as_json_is_read_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "JSON_BYTES_MAX", 2000)
    with FakeRas("2.29.2", [changed(own_ranks(gang()), replace(gang()[3], begun=99))]) as ras:
        listens_at(monkeypatch, ras)
        seen = ask({0: os.getpid()}, 8)
    assert ([one.behind for one in seen.communicators], seen.checked) == ([[3]], False)


def test_the_port_is_that_of_the_ranks_environment(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    for value, port in (("localhost:5000", 5000), ("[::1]:6000", 6000), ("nonsense", nccl_ras.PORT)):
        (tmp_path / "7/environ").write_bytes(f"A=b\0NCCL_RAS_ADDR={value}\0C=d\0".encode())
        assert nccl_ras._port(tmp_path, 7) == port


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0100007F:6D7C", ("127.0.0.1", 28028)),
        ("00000000000000000000000001000000:6D7C", ("::1", 28028)),
        ("0000000000000000FFFF00000100007F:6D7C", ("127.0.0.1", 28028)),
    ],
)
def test_addresses_are_read_as_the_kernel_prints_them(text: str, address: tuple[str, int]) -> None:
    assert nccl_ras._address(text) == address


QUESTION = HangQuestion(7, 0, 0, 1000, (0, 4))
HELLO = Hello(7, 0, 0, 8, pid=os.getpid())


def noted(question: HangQuestion, hello: Hello = HELLO, often: int = 1) -> list[NcclSeen]:
    async def asks() -> list[NcclSeen]:
        found: list[NcclSeen] = []
        watch = NcclWatch(
            lambda _question: {hello.rank: hello}, lambda _hello, _user, seen: found.append(seen), between_seconds=0.05
        )
        for _ in range(often):
            watch.take(question)
        if watch._asking is not None:
            await asyncio.wait_for(watch._asking, PATIENCE_SECONDS)
        return found

    return asyncio.run(asks())


def test_an_answer_that_is_the_same_twice_is_still_and_one_that_moves_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    late = changed(own_ranks(gang()), replace(gang()[3], begun=99))
    with FakeRas("2.29.2", [late]) as ras:
        listens_at(monkeypatch, ras)
        assert [one.still for one in noted(QUESTION, often=3)] == [True]
        assert ras.asked.count(b"status") == 2, "it is asked once, however often the question comes"

        def moves(_connection: socket.socket, command: bytes) -> bool:
            if command == b"status":
                ras.communicators = [changed(own_ranks(gang()), replace(gang()[3], begun=50 + len(ras.asked)))]
            return False

        ras.say = moves
        assert [one.still for one in noted(QUESTION)] == [False]


def test_only_the_agents_of_the_ranks_that_the_question_names_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeRas("2.29.2", [FakeCommunicator(own_ranks(gang()))]) as ras:
        listens_at(monkeypatch, ras)
        assert noted(replace_ranks((3,))) == noted(replace_ranks(())) == []
        assert ras.asked == []


def replace_ranks(ranks: tuple[int, ...]) -> HangQuestion:
    return HangQuestion(7, 0, 0, 1000, ranks)


def test_a_rank_whose_process_the_agent_cannot_see_is_not_asked() -> None:
    with pytest.raises(NotAskedError, match="another namespace"):
        ask({0: 0}, 8)


def test_a_fault_of_the_agent_itself_is_logged_once_and_ends_the_question(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_answer: object) -> NcclSeen:
        raise LookupError("a parser's fault")

    monkeypatch.setattr(nccl_ras, "parsed", breaks)
    with caplog.at_level(logging.INFO), FakeRas("2.29.2", [FakeCommunicator(own_ranks(gang()))]) as ras:
        listens_at(monkeypatch, ras)
        assert noted(QUESTION) == []
    assert [one.message for one in caplog.records] == ["nccl_question_failed", "nccl_not_asked"]
    assert caplog.records[0].exc_info is not None and "a parser's fault" in str(caplog.records[0].exc_info[1])


def a_process_that_hangs(proc: Path, pid: int) -> Path:
    """Its environment is not read to an end, as where its memory map is locked."""
    (proc / "self/ns").mkdir(parents=True, exist_ok=True)
    (proc / f"{pid}/ns").mkdir(parents=True)
    for one in ("self", str(pid)):
        if not (proc / one / "ns/net").is_symlink():
            (proc / one / "ns/net").symlink_to("net:[1]")
    os.mkfifo(proc / str(pid) / "environ")
    return proc / str(pid) / "environ"


def test_a_process_whose_environment_cannot_be_read_holds_up_neither_other_gangs_nor_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nccl_ras, "FORGET_SECONDS", 0.05)
    monkeypatch.setattr(nccl_ras, "AGAIN_SECONDS", 0.0)
    pids = range(11, 12 + nccl_ras.HANGING_MAX)
    environs = [a_process_that_hangs(tmp_path, pid) for pid in pids]
    released = threading.Event()

    def release() -> None:
        released.set()
        for one in environs:
            with contextlib.suppress(OSError):  # none waits for it
                os.close(os.open(one, os.O_WRONLY | os.O_NONBLOCK))

    async def asks() -> list[int]:
        asked: list[int] = []

        def ranks_of(question: HangQuestion) -> dict[int, Hello]:
            asked.append(question.job_id)
            return {0: Hello(question.job_id, 0, 0, 8, pid=question.job_id)}

        watch = NcclWatch(ranks_of, lambda *_seen: None, tmp_path)
        for pid in (*pids[:1], *pids):
            watch.take(HangQuestion(pid, 0, 0, 1000, (0,)))
            if watch._asking is not None:
                await watch._asking
        return asked

    timer = threading.Timer(20, release)
    timer.start()
    try:
        asked = asyncio.run(asks())
        assert not released.is_set()
        assert asked == [*pids[: nccl_ras.HANGING_MAX]], "each once, and no more threads than that"
    finally:
        timer.cancel()
        release()
