"""Going on in the same process: what the program is promised, with a channel as a seat has it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from understudy import restart
from understudy_launcher.rank_channel import DESCRIPTOR_VARIABLE, Channel

pytestmark = pytest.mark.integration

PROGRAM = """
import os, socket, sys
from understudy.restart import restartable

server = socket.create_server(("127.0.0.1", 0))
outside = socket.create_connection(server.getsockname())
outside_peer = server.accept()[0]
calls = []

def train():
    calls.append(os.environ["RANK"])
    if len(calls) == 1:
        train.inside = socket.create_connection(server.getsockname())
        train.peer = server.accept()[0]
        train.listens = socket.create_server(("127.0.0.1", 0))
        raise RuntimeError("a peer is gone")
    assert train.peer.recv(1) == b"", "what was opened within is cut"
    outside.sendall(b"x")
    assert outside_peer.recv(1) == b"x", "what was open before is not"
    socket.create_connection(train.listens.getsockname(), timeout=5).close()
    return os.getpid()

pid = restartable(train)
assert pid == os.getpid()
assert "UNDERSTUDY_RESTART_FD" not in os.environ
print(*calls)
"""


@pytest.fixture
def channel() -> Iterator[Channel]:
    opened = Channel()
    yield opened
    opened.close_rank_end()
    opened.seat_end.close()


def start(channel: Channel, program: str = PROGRAM, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "RANK": "3", DESCRIPTOR_VARIABLE: str(channel.descriptor), **(more or {})}
    started = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        pass_fds=(channel.descriptor,),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    channel.close_rank_end()
    return started


def wait_until_waiting(channel: Channel) -> None:
    deadline = time.monotonic() + 60
    while not channel.waiting:
        channel.read()
        assert channel.open
        assert time.monotonic() < deadline, "it does not wait"
        time.sleep(0.005)


def test_a_rank_that_failed_goes_on_in_its_process_with_its_next_part(channel: Channel) -> None:
    with start(channel) as rank:
        wait_until_waiting(channel)
        assert channel.restartable
        channel.go_on({"RANK": "1"})
        assert not channel.waiting
        output, errors = rank.communicate(timeout=20)
    assert (output, rank.returncode) == ("3 1\n", 0), errors
    assert "a peer is gone" in errors


def test_a_restore_point_of_the_launch_before_is_forgotten(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's TaskProlog set it for the first launch. A newer checkpoint is there, of which the agent is asked."""
    for name in restart.RESTORE_POINT:
        monkeypatch.setenv(name, "40")
    program = """
import os
from understudy.restart import restartable

def train():
    if os.environ["UNDERSTUDY_LAUNCH"] == "0":
        raise RuntimeError("a peer is gone")
    return os.environ.get("UNDERSTUDY_RESTORE_STEP"), os.environ.get("UNDERSTUDY_RESTORE_PATH")

print(*restartable(train))
"""
    monkeypatch.setenv("UNDERSTUDY_LAUNCH", "0")
    with start(channel, program) as rank:
        wait_until_waiting(channel)
        channel.go_on({"UNDERSTUDY_LAUNCH": "1"})
        output, errors = rank.communicate(timeout=20)
    assert (output, rank.returncode) == ("None None\n", 0), errors


def test_a_rank_that_waits_ends_with_its_seat(channel: Channel) -> None:
    with start(channel) as rank:
        wait_until_waiting(channel)
        channel.seat_end.close()
        assert rank.wait(timeout=20) == restart.EXIT_WITHOUT_LAUNCHER


PAIR = """
import os, sys, torch, torch.distributed as dist
from understudy.restart import restartable

def train():
    store = dist.FileStore(os.environ["STORE"], int(os.environ["WORLD_SIZE"]))
    dist.init_process_group("gloo", store=store, rank=0, world_size=int(os.environ["WORLD_SIZE"]))
    sums = torch.ones(1)
    dist.all_reduce(sums)
    print("joined", flush=True)
    if os.environ["WORLD_SIZE"] == "2":
        dist.all_reduce(sums)
    return sums.item()

print(os.getpid(), restartable(train))
"""

PEER = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=1, world_size=2)
dist.all_reduce(torch.ones(1))
time.sleep(600)
"""


def test_a_rank_that_waits_for_a_peer_whose_connection_stays_leaves_by_order(channel: Channel, tmp_path: Path) -> None:
    """Gloo itself raises nothing for half an hour, as where a node has lost its power, and its abort does nothing."""
    store = str(tmp_path / "store")
    environment = {"STORE": store, "WORLD_SIZE": "2"}
    peer = subprocess.Popen([sys.executable, "-c", PEER, store])
    with start(channel, PAIR, environment) as rank:
        try:
            assert rank.stdout is not None and rank.stdout.readline() == "joined\n"
            channel.read()
            assert not channel.waiting
            channel.order_to_leave()
            wait_until_waiting(channel)
            channel.go_on({"STORE": str(tmp_path / "next"), "WORLD_SIZE": "1"})
            output, errors = rank.communicate(timeout=60)
        finally:
            peer.kill()
            peer.wait()
    assert (output, rank.returncode) == (f"joined\n{rank.pid} 1.0\n", 0), errors


NCCL = """
import sys, time, types

aborted = []
world = types.SimpleNamespace(pg_backend_config={"world": "cuda:nccl"})
c10d = types.SimpleNamespace(_world=world, _abort_process_group=lambda: aborted.append(1))
sys.modules["torch.distributed"] = types.SimpleNamespace(distributed_c10d=c10d, is_available=lambda: False)

from understudy.restart import Aborted, restartable
calls = []

def train():
    calls.append(1)
    if len(calls) > 1:
        return Aborted.times, Aborted.now, aborted, calls
    print("waits", flush=True)
    try:
        while not aborted:
            pass
        time.sleep(600)
    except Exception:
        print("caught", flush=True)

print(*restartable(train))
"""


def test_a_rank_whose_communicators_of_nccl_are_aborted_runs_no_further_line(channel: Channel) -> None:
    """The test has a stand-in for torch: this never ran with NCCL."""
    with start(channel, NCCL) as rank:
        assert rank.stdout is not None and rank.stdout.readline() == "waits\n"
        channel.read()
        channel.order_to_leave()
        wait_until_waiting(channel)
        channel.order_to_leave()
        channel.go_on({})
        output, errors = rank.communicate(timeout=20)
    assert (output, rank.returncode) == ("1 False [1] [1, 1]\n", 0), errors


def test_a_hook_that_does_not_know_the_order_to_leave_is_not_given_it(channel: Channel) -> None:
    os.write(channel.descriptor, b'{"type": "restartable"}\n')
    channel.read()
    channel.order_to_leave()
    channel.go_on({"RANK": "1"})
    assert os.read(channel.descriptor, 4096) == b'{"environment": {"RANK": "1"}}\n'


def test_an_exit_is_an_exit(channel: Channel) -> None:
    program = "import sys\nfrom understudy.restart import restartable\nrestartable(lambda: sys.exit(7))"
    with start(channel, program) as rank:
        assert rank.wait(timeout=20) == 7


def test_without_a_seat_a_failure_is_the_programs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DESCRIPTOR_VARIABLE, raising=False)
    calls = []

    def train() -> None:
        calls.append(1)
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        restart.restartable(train)
    assert calls == [1]


def test_a_descriptor_that_is_none_does_not_keep_the_program_from_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setenv(DESCRIPTOR_VARIABLE, str(os.dup(file.fileno())))
        assert restart.restartable(lambda: "trained") == "trained"


def test_launcher_and_hook_speak_of_the_same_variable() -> None:
    assert restart.DESCRIPTOR_VARIABLE == DESCRIPTOR_VARIABLE


def test_a_channel_that_hears_nonsense_is_closed(channel: Channel) -> None:
    os.write(channel.descriptor, b"not json\n")
    assert not channel.read()
    assert not channel.open
