"""How far a rank has come with its collectives, as PyTorch's flight recorder shows it."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from tests.cli.test_analyze_collectives import line
from understudy import Monitor, recorder
from understudy.inspector import written_to
from understudy.recorder import ASKED_SECONDS, LOOK_SECONDS, RANK_MAX, RecorderWatch, places
from understudy_agent.rank_messages import RecorderSeen, decode
from understudy_wire.ranks import CollectiveKind, HangQuestion, Recorder

RECORDED = Path(__file__).parents[1] / "data" / "world" / "training" / "flight_recorder.json"
"""What gloo's recorder of PyTorch 2.13.0 gave in two ranks, of which the second did not enter a barrier; with
`process_group` as a list.
"""


def entry(
    number: int, name: str = "nccl:all_reduce", state: str = "completed", group: str = "0", **more: Any
) -> dict[str, Any]:
    desc = "default_pg" if group == "0" else "undefined"
    return {
        "record_id": number - 1,
        "process_group": (group, desc),
        "collective_seq_id": number,
        "profiling_name": name,
        "input_sizes": [[3, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[3, 4]],
        "output_dtypes": ["Float"],
        "state": state,
        "retired": False,
        "is_p2p": False,
    } | more


def dump(*entries: dict[str, Any], **groups: str) -> dict[str, Any]:
    config = {
        name.strip("_"): {"name": name.strip("_"), "desc": "undefined", "ranks": ranks}
        for name, ranks in groups.items()
    }
    return {"entries": list(entries), "pg_config": config}


def test_what_gloo_recorded_of_a_rank_that_waits_and_of_the_one_that_it_waits_for() -> None:
    waits, other = json.loads(RECORDED.read_text())
    sums = [{"number": number, "what": "all_reduce [[4]] Float"} for number in (1, 2, 3)]
    own = {"group": "1:undefined", "last": 1, "recent": sums[:1]}
    recent = [*sums[1:], {"number": 4, "what": "barrier []"}]
    barrier = {"group": "0:default_pg", "last": 4, "open": 4, "begun": False, "recent": recent}
    assert places(waits) == {"groups": [barrier, own], "peers": []}
    assert places(other) == {"groups": [{"group": "0:default_pg", "last": 3, "recent": sums}, own], "peers": []}


def test_the_first_collective_that_is_not_over_counts() -> None:
    found = places(dump(entry(1), entry(2, state="started"), entry(3, state="scheduled")))
    recent = [{"number": number, "what": "all_reduce [[3, 4]] Float"} for number in (1, 2)]
    assert found["groups"] == [{"group": "0:default_pg", "last": 3, "open": 2, "begun": True, "recent": recent}]


def test_single_transfers_of_a_coalesced_call_are_over_with_the_call() -> None:
    """They have no events, and stay scheduled for ever."""
    single = [entry(1, f"nccl:{name}", "scheduled", is_p2p=True) for name in ("send 0->1", "recv 0<-3")]
    assert places(dump(*single, entry(1, "nccl:coalesced", is_p2p=True)))["peers"] == []
    waits = entry(1, "nccl:coalesced", "scheduled", is_p2p=True)
    assert places(dump(*single, waits))["peers"] == [1, 3, RANK_MAX]


def test_peers_are_ranks_of_the_gang() -> None:
    """Their numbers in the recorder are those of the group."""
    found = places(dump(entry(1, "nccl:recv 0<-1", "started", "5", is_p2p=True), _5="[4, 9]"))
    assert found["peers"] == [9]
    found = places(dump(entry(1, "nccl:recv 0<-1", "started", "5", is_p2p=True)))
    assert found["peers"] == [RANK_MAX], "not known, and none of the gang"


def test_a_group_in_which_it_has_entered_nothing_is_named_unless_it_may_have_been_overwritten() -> None:
    assert {"group": "5:undefined#9d8c", "last": 0} in places(dump(entry(1), _5="[0, 1]"))["groups"]
    assert [one["group"] for one in places(dump(entry(2), _5="[0, 1]"))["groups"]] == ["0:default_pg"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("nccl:all_reduce", "all_reduce [[1]] Float [[2]] Half"),
        ("nccl:gather", "gather [[1]] Float"),
        ("nccl:scatter", "scatter [[2]] Half"),
        ("nccl:all_to_all", "all_to_all"),
        ("gloo:all_to_all_single", "all_to_all_single"),
        ("nccl:all_gather_v", "all_gather_v"),
        ("nccl:reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced"),
    ],
)
def test_what_may_differ_between_ranks_is_left_out(name: str, what: str) -> None:
    sizes: dict[str, Any] = {"input_sizes": [[1]], "output_sizes": [[2]], "output_dtypes": ["Half"]}
    assert places(dump(entry(1, name, "scheduled", **sizes)))["groups"][0]["recent"] == [{"number": 1, "what": what}]


def test_the_agent_takes_whatever_it_shows() -> None:
    long = [entry(1, 'nccl:"é\\' * 30, "scheduled", str(number) * 60) for number in range(1, 9)]
    message = {"type": "recorder", **places(dump(*long)), "still": False}
    seen = decode(json.dumps(message).encode())
    assert isinstance(seen, RecorderSeen) and len(seen.groups) == 6
    assert len(msgspec.json.encode(seen)) < 3072


def test_it_is_read_only_while_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[float] = []
    content = dump(entry(1), entry(2, state="started"))

    def read() -> dict[str, Any]:
        reads.append(now)
        return content

    monkeypatch.setattr("understudy.recorder.read", read)
    watch, now = RecorderWatch(), 1000.0
    assert watch.latest(now, 0.0) is None and reads == []
    watch.ask(now)
    first = watch.latest(now, 0.0)
    assert first is not None and not first["still"]
    now += LOOK_SECONDS
    second = watch.latest(now, 0.0)
    assert second is not None and second["still"]
    now += ASKED_SECONDS
    assert watch.latest(now, 0.0) is second, "not asked any more"
    assert watch.latest(now, progressed_at=now) is None, "a step has ended since"
    watch.ask(now)
    content["entries"].append(entry(3))
    third = watch.latest(now, now - 1)
    assert third is not None and not third["still"]
    assert reads == [1000.0, 1005.0, 1015.0]


def test_another_release_of_pytorch_shows_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = SimpleNamespace(_dump_fr_trace=lambda *_: b"not a pickle")
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", broken)
    watch = RecorderWatch()
    watch.ask(1000.0)
    assert watch.latest(1000.0, 0.0) == {"type": "recorder", "groups": [], "peers": [], "still": False}


def test_a_recorder_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch holds Python's lock while it writes all of it out."""
    written: list[bytes] = []

    def dump_all(*_: bool) -> bytes:
        written.append(pickle.dumps(dump(entry(1), entry(2, thread_name="x" * size))))
        return written[-1]

    torch, size = SimpleNamespace(_dump_fr_trace=dump_all), 10
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", torch)
    assert len(recorder.read()["entries"]) == 2
    size = recorder.BYTES_MAX
    assert recorder.read() == {}
    size = 10
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        for value, read in (
            ("2000", True),
            ("nonsense", True),
            (str(recorder.ENTRIES_MAX + 1), False),
            ("9" * 11, False),
        ):
            monkeypatch.setenv(name, value)
            assert bool(recorder.read()) is read
        monkeypatch.delenv(name)
    assert len(written) == 6, "what is not read is not written either"


@pytest.mark.integration
def test_a_rank_answers_the_control_plane_and_reports_its_collectives_through_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, _ = json.loads(RECORDED.read_text())
    torch = SimpleNamespace(_dump_fr_trace=lambda *_: pickle.dumps(waits))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", torch)
    monkeypatch.setattr("understudy.recorder.LOOK_SECONDS", 0.2)
    monkeypatch.setattr("understudy.inspector.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("understudy.inspector.MINUTE_SECONDS", 1.0)
    for name, value in {
        "SLURM_JOB_ID": "7",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "UNDERSTUDY_SOCKET": str(tmp_path / "%n.sock"),
        "SLURMD_NODENAME": "agent",
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "1000000",
        "NCCL_INSPECTOR_DUMP_DIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)

    def recorders(plane: FakeControlPlane) -> list[Recorder]:
        return [rank.recorder for one in plane.reports for rank in one.ranks if rank.recorder is not None]

    with FakeControlPlane() as plane, running_agent(agent_config(tmp_path, plane.url)):
        monitor = Monitor()
        for _ in monitor.steps(range(3)):
            pass
        before = len(plane.reports)
        plane.wait_for(lambda plane: len(plane.reports) >= before + 3)
        assert recorders(plane) == []
        collectives = "".join(line(1, "0xa", 1, 2, 2, number, micros=700) for number in range(10))
        Path(written_to(os.environ)).write_text(collectives)
        plane.wait_for(lambda plane: any(rank.collective_times for one in plane.reports for rank in one.ranks))
        of_another = HangQuestion(7, 0, 0, os.getuid() + 1)
        plane.more = {"hang_questions": msgspec.to_builtins([of_another, HangQuestion(7, 0, 0, os.getuid())])}
        plane.wait_for(lambda plane: any(one.still for one in recorders(plane)))
        monitor.close()
    ranks = [rank for one in plane.reports for rank in one.ranks]
    (times,) = [one.collective_times for one in ranks if one.collective_times]
    assert times.kinds == [CollectiveKind("0xa", 2, 2, "AllReduce", 2**26, 0.0007)]
    assert any("wait_for" in one.stack for one in ranks), "where its training thread stands"
    assert [one.last for one in recorders(plane)[-1].groups] == [4, 1]


def test_groups_of_other_ranks_with_the_same_name_have_names_of_their_own() -> None:
    names = [places(dump(entry(1, group="5"), _5=ranks))["groups"][0]["group"] for ranks in ("[0, 1]", "[2, 3]")]
    assert names[0] != names[1]
