"""NCCL Inspector's file of this process, as the hook reads it while the gang trains."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import cast

import pytest

from tests.cli.test_analyze_collectives import line
from understudy import inspector
from understudy.inspector import BYTES_MAX, KINDS_MAX, InspectorWatch, NewLines, timed, written_to
from understudy.link import Link
from understudy.outbox import Outbox

ENABLED = {
    "NCCL_INSPECTOR_ENABLE": "1",
    "NCCL_INSPECTOR_DUMP_DIR": "/of/job",
    "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "1000000",
}


def coll(micros: int = 1000, communicator: str = "0xa", **more: object) -> bytes:
    return line(3, communicator, 3, 8, 2, 1, micros=micros, **more).encode()


def test_the_file_of_this_process_is_the_one_that_the_plugin_names() -> None:
    own = f"{socket.gethostname()}-pid{os.getpid()}.log"
    assert written_to(ENABLED) == f"/of/job/{own}"
    unnamed = {name: value for name, value in ENABLED.items() if name != "NCCL_INSPECTOR_DUMP_DIR"}
    assert written_to(unnamed | {"SLURM_JOBID": "7"}) == str(Path.cwd() / "nccl-inspector-7" / own)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        ENABLED | {"NCCL_INSPECTOR_ENABLE": "0"},
        ENABLED | {"NCCL_INSPECTOR_ENABLE": "yes"},  # 0 to C's atoi
        ENABLED | {"NCCL_INSPECTOR_DUMP_THREAD_ENABLE": "0"},
        ENABLED | {"NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "-1"},  # at the end alone
        ENABLED | {"NCCL_INSPECTOR_PROM_DUMP": "1"},
    ],
)
def test_no_file_is_read_where_none_is_written_while_the_job_runs(environment: dict[str, str]) -> None:
    assert written_to(environment) == ""


def test_a_minute_is_reported_when_it_is_over_by_its_shortest_tenth() -> None:
    watch = InspectorWatch()
    watch.add([coll(1000 + number) for number in range(10)], 120.0)
    watch.add([coll(2000 + number) for number in range(10)], 179.0)
    assert watch.message is None
    watch.add([], 180.0)
    kind = {"communicator": "0xa", "ranks": 8, "nodes": 2, "operation": "AllReduce", "size_bytes": 2**26, "purpose": ""}
    assert watch.message == {"type": "collective_times", "minute": 2, "kinds": [{**kind, "seconds": 0.001002}]}


def test_kinds_that_take_the_most_time_are_reported_and_none_of_few_collectives() -> None:
    watch = InspectorWatch()
    for number in range(KINDS_MAX + 2):
        watch.add([coll(1000 * (number + 1), f"0x{number}")] * 10, 120.0)
    watch.add([coll(10**6, "0xfew")] * 9, 120.0)
    watch.add([], 180.0)
    assert watch.message is not None
    assert [one["communicator"] for one in watch.message["kinds"]] == [
        f"0x{KINDS_MAX + 1 - n}" for n in range(KINDS_MAX)
    ]


def test_names_lose_their_numbers_and_what_cannot_be_sent() -> None:
    found = timed(coll(name='DP "Group" 17'))
    assert found is not None
    assert found[0].purpose == "DP ?Group? #"


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff",
        b"[" * 100_000,
        coll(source="collective_cpu"),
        coll(form="v5.0"),
        coll(micros=0),
        coll(micros=10**12),
        coll(bytes=-1),
        coll(bytes=2**60),
        coll().replace(b'"n_ranks":8', b'"n_ranks":1'),
        coll().replace(b'"n_ranks":8', b'"n_ranks":1e999'),
        coll().replace(b'"coll_perf"', b'"p2p_perf"'),
        coll().replace(b'"id":"0xa"', b'"id":7'),
    ],
)
def test_lines_of_other_things_are_left_out(odd: bytes) -> None:
    assert timed(odd) is None


def test_new_whole_lines_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"of another process\n")
    new = NewLines(str(path))
    with path.open("ab") as file:
        file.write(b"first\nsec")
        file.flush()
        assert new.read() == [b"first"]
        file.write(b"ond\nthird\n")
    assert new.read() == [b"second", b"third"]
    assert new.read() == []
    path.write_bytes(b"begun again\n")
    assert new.read() == [b"begun again"]


def test_of_much_the_newest_part_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    new = NewLines(str(path))
    path.write_bytes(b"".join(b"%06d\n" % number for number in range(BYTES_MAX // 4)))
    lines = new.read()
    assert lines[-1] == b"%06d" % (BYTES_MAX // 4 - 1)
    assert BYTES_MAX - 20 < 7 * len(lines) <= BYTES_MAX


def test_a_thread_follows_the_file_and_the_link_sends_what_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspector, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(inspector, "MINUTE_SECONDS", 0.1)
    outbox = Outbox()
    environment = ENABLED | {"NCCL_INSPECTOR_DUMP_DIR": str(tmp_path)}
    outbox.inspector.start(environment)
    time.sleep(0.05)  # the plugin begins its file later
    Path(written_to(environment)).write_bytes(coll() * 20)
    until = time.monotonic() + 30
    while outbox.inspector.message is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    link = Link("", {}, outbox, lambda _: None)
    sent: list[bytes] = []
    link._send_changed(cast(socket.socket, _Connection(sent)))
    link.abandon()
    assert any(b'"collective_times"' in one for one in sent)


class _Connection:
    def __init__(self, sent: list[bytes]) -> None:
        self.sendall = sent.append
