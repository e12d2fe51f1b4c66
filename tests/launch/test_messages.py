"""What the launcher writes as JSON, and what it shares with the training hook, without importing either."""

from __future__ import annotations

import base64
import json
import random
import socket
import tracemalloc
import zlib
from typing import get_type_hints

import msgspec
import pytest

import understudy.identity
import understudy.restart
from tests.agent.test_launchers import ENDED, STARTED, STATE
from understudy_agent import rank_messages
from understudy_controlplane.fleet.packed_nodes import with_nodes
from understudy_controlplane.hostlist import HostListError
from understudy_launcher import (
    agent_client,
    decide,
    launch_over,
    launcher,
    messages,
    protocol,
    rank_channel,
    rank_socket,
)
from understudy_launcher.command import Meeting
from understudy_launcher.decide import TABLE
from understudy_launcher.rank_environment import Part, rank_environment
from understudy_wire import facts, values
from understudy_wire import launcher as wire

SHOWN: messages.LaunchEvidence = {
    "type": "launch_evidence",
    "job_id": 7,
    "restart_count": 1,
    "launch": 2,
    "kind": "crash",
    "at": 5.0,
    "summary": "rank 3 wrote last: boom",
    "text": "=== rank 3",
}
BY_THE_AGENT = {"user_id"}
"""Fields that the agent adds: the kernel reports whose process the launcher is."""


@pytest.mark.parametrize(
    ("written", "struct"),
    [
        (messages.LauncherState, wire.LauncherState),
        (messages.LaunchStarted, facts.LaunchStarted),
        (messages.LaunchEnded, facts.LaunchEnded),
        (messages.LaunchEvidence, facts.LaunchEvidence),
        (messages.LaunchNotice, rank_messages.LaunchNotice),
    ],
)
def test_a_message_has_the_fields_of_its_wire_struct(written: type, struct: type[msgspec.Struct]) -> None:
    assert set(get_type_hints(written)) - {"type"} == set(struct.__struct_fields__) - BY_THE_AGENT


@pytest.mark.parametrize(
    ("written", "struct"),
    [
        (STATE, wire.LauncherState),
        (STARTED, facts.LaunchStarted),
        (ENDED, facts.LaunchEnded),
        (SHOWN, facts.LaunchEvidence),
    ],
)
def test_every_value_that_the_launcher_writes_arrives_in_its_field(
    written: dict[str, object], struct: type[msgspec.Struct]
) -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(written), type=struct)
    assert {name: getattr(decoded, name) for name in decoded.__struct_fields__ if name not in BY_THE_AGENT} == {
        name: value for name, value in written.items() if name != "type"
    }
    assert struct.__struct_config__.tag == written["type"]


@pytest.mark.parametrize(
    ("read", "struct"), [(agent_client.Orders, wire.LauncherOrders), (agent_client.Restart, wire.Restart)]
)
def test_the_launcher_reads_every_field_of_its_orders(read: type, struct: type[msgspec.Struct]) -> None:
    assert set(get_type_hints(read)) == set(struct.__struct_fields__)


def test_the_launcher_reads_every_answer_of_the_control_plane() -> None:
    restart = wire.Restart(2, "it hangs", ("n1",))
    answer = wire.LauncherAnswer(
        "v",
        wire.LauncherOrders({"n2": "Xid 79"}, restart, {"n2": "n4"}, may_shrink=True),
        wire.EarlierAllocations(2, 40),
        3,
        50,
        40,
        "/c",
        count_from=20,
    )
    line = agent_client.AgentLine("/nowhere", 7, 0)
    line.report({**STATE, "launch": 3})
    line._take(json.loads(rank_messages.encode(answer)))
    assert (line.poll(), line.restart(2)) == ({"n2": "Xid 79"}, agent_client.Restart(2, "it hangs", ("n1",)))
    with socket.socket() as line._connection:
        assert (line.orders.places, line.may_shrink) == ({"n2": "n4"}, True)
    line._connection = None
    assert (line.launches_without_progress, line.best_step, line.step(), line.count_from) == (2, 40, 50, 20)
    assert line.restore_point() == (40, "/c")


def test_a_gang_is_not_still_for_the_time_in_which_its_steps_could_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("understudy_launcher.agent_client.time.monotonic", lambda: now)
    line = agent_client.AgentLine("/nowhere", 7, 0)
    line.report({**STATE, "launch": 3})
    step_50 = rank_messages.encode(wire.LauncherAnswer("v", wire.LauncherOrders(), launch=3, step=50))
    assert line.stepped() == launch_over.Stepped(None, None), "it has made no step"
    line._connection = socket.socket()
    line._take(json.loads(step_50))
    assert line.stepped() == launch_over.Stepped(100.0, 100.0)
    now = 200.0
    line._take(json.loads(step_50))
    assert line.stepped() == launch_over.Stepped(100.0, 100.0), "the same step again"
    line._take({"type": "silent"})
    assert line.stepped() == launch_over.Stepped(100.0, None), "the control plane does not answer"
    now = 300.0
    line._take(json.loads(step_50))
    assert line.stepped() == launch_over.Stepped(100.0, 300.0), "it answers again"
    line.report({**STATE, "launch": 4})
    assert line.stepped() == launch_over.Stepped(None, None), "another launch"
    line.close()


def test_phases_and_causes_are_those_of_the_wire() -> None:
    reported = {one.value for one in launcher.Phase} - {"rejoining"}  # in which nothing is reported
    assert reported == {one.value for one in wire.LauncherPhase} - {"unknown"}
    assert {one.value for one in decide.Cause} == {one.value for one in facts.LaunchCause}
    assert {row.cause for row in TABLE} == set(decide.Cause)


# -- what the launcher shares with the hook ----------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "/given/%n.sock"])
@pytest.mark.parametrize("environment", [{}, {"UNDERSTUDY_SOCKET": "/e/%n.sock"}, {"UNDERSTUDY_SOCKET": ""}])
@pytest.mark.parametrize("node", [{}, {"SLURMD_NODENAME": "n1"}])
def test_the_launcher_and_the_hook_look_for_the_same_socket(
    environment: dict[str, str], node: dict[str, str], given: str | None
) -> None:
    where = environment | node
    assert rank_socket.socket_path(where, given) == understudy.identity.socket_path(where, given)


def test_the_seat_and_the_hook_use_the_same_descriptor_variable() -> None:
    assert understudy.restart.DESCRIPTOR_VARIABLE == rank_channel.DESCRIPTOR_VARIABLE


def test_the_hook_reads_a_ranks_identity_from_the_environment_that_the_seat_sets() -> None:
    meeting = Meeting(nodes=4, node_rank=2, processes=8, address="10.0.0.1", port=23456)
    part = Part(3, meeting, torchrun=False, node_list="n1", restore=(40, "/c/40"))
    environment = rank_environment({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}, part, local_rank=5)
    assert understudy.identity.read_identity(environment) == understudy.identity.Identity(7, 1, 21, 32, 3)
    assert understudy.identity.launcher_restore_point(environment) == (40, "/c/40")


def test_messages_that_differ_in_one_field_are_those_that_would_be_encoded_one_by_one() -> None:
    common = {"launch": 2, "node_list": 'n[1-3],"odd"', "restore": (40, "/c/40"), "torchrun": False}
    lines = list(protocol.encode_each("go", common, "node_rank", range(3)))
    assert [protocol.Lines().feed(line) for line in lines] == [
        protocol.Lines().feed(protocol.encode("go", **common, node_rank=rank)) for rank in range(3)
    ]


@pytest.mark.parametrize("kind", ["in order", "shuffled", "long names"])
def test_messages_of_a_gang_of_12_500_nodes_fit_into_a_line_and_name_each_in_its_place(kind: str) -> None:
    """The agent takes 64 KiB in a line."""
    names = [f"n{number}" for number in range(1, 12_501)]
    if kind == "shuffled":
        random.Random(1).shuffle(names)  # noqa: S311 - any order will do
    if kind == "long names":
        names = [f"gpu-hall-{number // 1000}-rack-{number // 16:04}-node-{number:05}" for number in range(12_500)]
    seats, spares, lost = tuple(names[:12_400]), tuple(names[12_400:12_450]), tuple(names[12_450:])
    state: messages.LauncherState = {**STATE, "seats": seats, "spares": spares, "lost": lost}
    started: messages.LaunchStarted = {**STARTED, "seats": seats, "spares": spares, "lost": lost}
    sent = json.dumps(messages.within_a_line(state)).encode()
    assert len(sent) < rank_messages.LINE_BYTES_MAX
    arrived = with_nodes(msgspec.json.decode(sent, type=wire.LauncherState))
    assert (arrived.seats, arrived.spares, arrived.lost, arrived.nodes_packed) == (seats, spares, lost, "")
    sent = json.dumps(messages.within_a_line({"type": "launch", "id": 1, "fact": started})).encode()
    assert len(sent) < rank_messages.LINE_BYTES_MAX
    fact = msgspec.json.decode(sent, type=rank_messages.LaunchNotice).fact
    assert isinstance(fact, facts.LaunchStarted)
    assert with_nodes(fact).seats == seats


def test_messages_of_other_gangs_are_as_before() -> None:
    sent = messages.within_a_line({**STATE, "nodes_packed": ""})
    assert sent == {name: value for name, value in STATE.items() if name != "nodes_packed"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x" * 200 + "[0-9999]\n\n", "more than 1048576 characters"),
        ("n[0-65535]\n" * 80_000, "more than [0-9]+ characters|names more than"),
        ("n[0-9]\n" * 140_000, "host list"),
        (("node[0-999]," * 80_000)[:-1] + "\n\n", "more than"),
        ("n1\n", "must contain 3 host lists"),
    ],
)
def test_a_short_line_cannot_name_more_than_a_cluster_has(text: str, why: str) -> None:
    packed = base64.b85encode(zlib.compress(text.encode())).decode()
    assert len(packed) <= values.PACKED_NODES_CHARACTERS_MAX
    state = wire.LauncherState(7, 0, 0, wire.LauncherPhase.RUNNING, (), nodes_packed=packed)
    tracemalloc.start()
    try:
        with pytest.raises(HostListError, match=why):
            with_nodes(state)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20
