"""What a seat reads of its ranks before they are ended, and what the hook answers in them."""

from __future__ import annotations

import json
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.launch.test_evidence_findings import dump, entry
from understudy import evidence as hook
from understudy.collectives import CollectiveLog
from understudy_launcher import evidence
from understudy_launcher.evidence import Places, recorded_in_file
from understudy_launcher.process_tree import has_handler
from understudy_launcher.protocol import LINE_BYTES_MAX, encode
from understudy_launcher.seat_messages import SEAT_BYTES_MAX


def test_hook_and_seat_have_the_same_names_and_read_the_recorder_alike() -> None:
    assert (hook.EVIDENCE_VARIABLE, hook.STACKS_SIGNAL) == (evidence.EVIDENCE_VARIABLE, evidence.STACKS_SIGNAL)
    content = dump(*(entry(number) for number in range(20)), entry(3, "nccl:all_gather", ("7", "tp")))
    assert hook.recorded(content) == evidence.recorded(content)
    assert hook.recorded(content)["entered"]["7:tp"] == [[3, "nccl:all_gather"]]
    assert len(hook.recorded(content)["entered"]["0:default_pg"]) == evidence.ENTERED_MAX


def test_a_file_of_the_flight_recorder_is_read(tmp_path: Path) -> None:
    (tmp_path / "fr_3").write_bytes(pickle.dumps(dump(entry(1))))
    environment = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "fr_")}
    found = recorded_in_file(environment, 3, since=0.0)
    assert found["entered"] == {"0:default_pg": [[1, "nccl:all_reduce"]]}
    assert found["groups"] == {"0:default_pg": "[0, 1, 2, 3]"}
    assert recorded_in_file(environment, 4, since=0.0) == {}
    assert recorded_in_file(environment, 3, since=(tmp_path / "fr_3").stat().st_mtime + 1) == {}, "of an earlier launch"


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("echo evil > /tmp/evil",))


def test_a_file_that_is_no_recorders_is_left_out(tmp_path: Path) -> None:
    environment = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "fr_")}
    for content in (
        b"",
        b"half",
        pickle.dumps({"entries": 7}),
        pickle.dumps(dump(entry(1)))[:-3],
        pickle.dumps(Evil()),
    ):
        (tmp_path / "fr_0").write_bytes(content)
        assert recorded_in_file(environment, 0, since=0.0) == {}
    (tmp_path / "fr_0").unlink()
    os.mkfifo(tmp_path / "fr_0")
    assert recorded_in_file(environment, 0, since=0.0) == {}, "and it does not wait for a writer"
    (tmp_path / "fr_1").symlink_to("/etc/passwd")
    assert recorded_in_file(environment, 1, since=0.0) == {}


def test_a_process_is_asked_for_its_stacks_only_where_it_has_a_handler() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    assert not has_handler(os.getpid(), evidence.STACKS_SIGNAL)
    try:
        signal.signal(signal.SIGUSR2, lambda *_: None)
        assert has_handler(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_the_hook_finds_its_place_by_its_local_rank() -> None:
    places = Places()
    variable = places.variable(3)
    assert places.variable(3) == variable, "they stay from launch to launch"
    seat, *found = variable.split(",")
    ask, stacks, answers = found[2].split(":")
    assert hook._place({"UNDERSTUDY_EVIDENCE": variable, "LOCAL_RANK": "2"}) == (
        f"/proc/{seat}/fd/{ask}",
        f"/proc/{seat}/fd/{stacks}",
        f"/proc/{seat}/fd/{answers}",
    )
    inherited = {"UNDERSTUDY_EVIDENCE": "self,3:4:5,3:4:5", "LOCAL_RANK": "1"}  # in a container
    assert hook._place(inherited) == tuple(f"/proc/self/fd/{number}" for number in (3, 4, 5))
    for odd in ("", "x", "1,2", f"{seat},7:8", variable.replace(":", ";")):
        assert hook._place({"UNDERSTUDY_EVIDENCE": odd, "LOCAL_RANK": "2"}) is None
    assert hook._place({}) is None
    places.close()


def test_the_answer_names_the_last_collective() -> None:
    log = CollectiveLog()
    assert hook._shown(log.latest)["last"] is None
    log.enter("all_reduce")
    assert json.loads(json.dumps(hook._shown(log.latest)))["last"] == ["all_reduce", 1, True]
    log.leave()
    assert hook._shown(log.latest)["last"] == ["all_reduce", 1, False]


@pytest.mark.parametrize("bytes_max", [200, 2000, 60_000])
def test_what_a_rank_showed_fits_its_share(bytes_max: int) -> None:
    shown = {"rank": 1, "waits": "w" * 50_000, "stacks": "s" * 50_000, "entered": {"g": [[1, "n" * 64]] * 8}}
    cut = evidence._cut(shown, bytes_max)
    assert len(json.dumps(cut)) <= bytes_max + 100
    assert cut["rank"] == 1
    assert ("entered" in cut) is (bytes_max > 200 * 9)


def test_what_a_seat_sends_fits_a_line_whatever_its_ranks_print() -> None:
    shown = {"rank": 1, "waits": "\u2603" * 90_000, "stacks": "\u2603" * 90_000, "wrote": "\u2603" * 90_000}
    each = SEAT_BYTES_MAX // 8
    assert len(encode("evidence", ranks=[evidence._cut(shown, each)] * 8)) <= LINE_BYTES_MAX
    assert len(encode("evidence", ranks=[evidence._cut(shown, SEAT_BYTES_MAX)])) <= LINE_BYTES_MAX
