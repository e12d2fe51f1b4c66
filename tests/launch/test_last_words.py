"""What ranks show before they are ended, and what they wrote last: the launcher with real seats and ranks."""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.local import LocalGang
from tests.launch.test_beside import THREE

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).with_name("hanging.py")
HANGS = [*THREE, "--progress-file", "steps", "--hang-seconds", "1"]


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[LocalGang]:
    started = LocalGang(tmp_path)
    yield started
    started.close()


def command(how: str, rank: str) -> list[str]:
    return [sys.executable, "-P", str(PROGRAM), how, rank]


def wait_for_launch_1(gang: LocalGang) -> None:
    gang.wait_for(lambda: len(gang.events("started")) == 2, 60, "launch 1 has started")


def test_before_a_gang_that_hangs_is_ended_its_ranks_show_where_they_stand(gang: LocalGang) -> None:
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(gang.home / "agent.sock"))
        server.listen()
        thread = threading.Thread(target=hear_launcher, args=(server, heard))
        thread.start()
        gang.start(HANGS, command("hangs", "1"))
        wait_for_launch_1(gang)
        gang.finish()
        assert gang.exit_code() == 0
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    assert gang.rows() == ["L140", "L10"]
    (shown,) = gang.events("evidence")
    assert (
        "rank 1 on n2 did not enter collective 1 (all_reduce), in which 2 others wait (3 ranks on 3" in shown["message"]
    )
    kept = f"their stacks: `understudy job evidence 1` and {gang.home / 'events'}"
    assert shown["message"].endswith(kept) and kept in gang.output
    (odd,) = (
        part for part in shown["text"].split("=== ranks ") if part.startswith("1 (n2)\nno collective entered yet\n")
    )
    assert shown["text"].count("last collective: number 1 (all_reduce), which it has not left") in {1, 2}
    assert "in reads_a_file_that_never_comes" in odd
    assert re.search(r"thread: state S, waits in \S+", odd), "what it waits for in the kernel"
    assert "rank 1 wrote last:\n" in odd
    assert "rank 1 warns" in odd
    assert "rank 1 of launch 0 begins" in gang.output, "what a rank has printed is not lost with it"
    sent = next(line for line in heard if b'"launch_evidence"' in line)  # it is repeated until it is acknowledged
    assert len(sent) < 65_536
    assert b'"kind": "hang"' in sent


def hear_launcher(server: socket.socket, heard: list[bytes]) -> None:
    """Hears all that connect, ranks too."""
    threads = []
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            break
        threads.append(threading.Thread(target=read_lines, args=(connection, heard)))
        threads[-1].start()
    for one in threads:
        one.join(10)


def read_lines(connection: socket.socket, heard: list[bytes]) -> None:
    with connection, connection.makefile("rb") as lines:
        heard.extend(lines)


def test_a_node_whose_file_system_hangs_holds_no_restart_up(gang: LocalGang) -> None:
    (gang.home / "unreadable.n3").touch()
    gang.start(HANGS, command("hangs", "1"))
    wait_for_launch_1(gang)
    (shown,), (decision,) = gang.events("evidence"), gang.events("decision")
    assert shown["silent"] == []
    assert re.search(r"=== ranks (0,)?2 .*\n.*number 1 \(all_reduce\)", shown["text"]), "what was read before"
    assert decision["action"] == "relaunch"
    assert decision["blamed"] == {}


def test_a_seat_that_shows_nothing_is_not_waited_for_long(gang: LocalGang) -> None:
    (gang.home / "shows_nothing.n3").touch()
    gang.start(HANGS, command("hangs", "1"))
    wait_for_launch_1(gang)
    (shown,) = gang.events("evidence")
    assert shown["silent"] == ["n3"]
    assert "no answer within the time from n3" in shown["text"]


def test_what_a_rank_that_failed_wrote_last_is_in_the_launchers_message(gang: LocalGang) -> None:
    gang.start(THREE, command("fails", "1"))
    wait_for_launch_1(gang)
    gang.wait_for(lambda: gang.events("last_words"), 20, "its last words are reported")
    (words,) = gang.events("last_words")
    assert words["message"] == (
        "launch 0: rank 1 on n2 wrote last: ValueError: no such data on rank 1; the last lines of all that failed: "
        f"{gang.home / 'events'}"
    )
    assert words["text"].startswith("=== rank 1 on n2 ended with exit code 1\n")
    assert "rank 1 warns\nTraceback (most recent call last):" in words["text"]
    gang.wait_for(lambda: words["message"] in gang.output, 20, "they are in the launcher's output")
    gang.finish()
    assert gang.exit_code() == 0


def test_each_rank_of_each_launch_has_files_of_its_own(gang: LocalGang) -> None:
    gang.start([*THREE, "--log-dir", "logs", "--tee", "2", "--label"], command("fails", "1"))
    wait_for_launch_1(gang)
    gang.finish()
    assert gang.exit_code() == 0
    for launch, rank in ((0, 0), (0, 1), (1, 0), (1, 2)):
        folder = gang.home / f"logs/1/launch_{launch}/{rank}"
        errors = (folder / "stderr.log").read_text()
        assert f"rank {rank} warns\n" in errors
        assert ("ValueError" in errors) is ((launch, rank) == (0, 1))
    printed = gang.home / "logs/1/launch_1/2/stdout.log"
    assert printed.read_text() == "rank 2 of launch 1 begins\n"
    assert "begins" not in gang.output
    assert "1: ValueError: no such data on rank 1\n" in gang.output
