"""Agents, hooks, launchers and control planes of neighbouring releases understand each other.

The messages of each release are in tests/data/wire. What this release reads in them is what the older one
wrote; and what a newer one would add to them changes nothing in what this release reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.wire_messages import HTTP, RECORDED, from_agent, record, recorded, to_agent
from understudy_agent import rank_messages
from understudy_controlplane.ingest.decode import decode_report
from understudy_wire.facts import AnomalyKind, HardwareKind
from understudy_wire.hardware import GpuStatus
from understudy_wire.messages import RELEASE, Report
from understudy_wire.unknown import unknown_in

RELEASES = sorted(path.name for path in RECORDED.iterdir())
MESSAGES = [(release, name) for release in RELEASES for name in sorted(recorded(release))]

MAPS = {"bad", "places", "domains", "versions", "unwell"}
"""Fields whose keys are data, and not names that a release could add to."""


def type_of(name: str) -> type[msgspec.Struct]:
    folder, _, message = name.partition("/")
    return {"http": HTTP, "to_agent": to_agent(), "from_agent": from_agent()}[folder][message]


def decode(name: str, message: Any) -> msgspec.Struct:
    """Decodes as its receiver does."""
    body = msgspec.json.encode(message)
    if name == "http/report":
        return decode_report(body).report
    if name.startswith("to_agent/"):
        return rank_messages.decode(body)
    return msgspec.json.decode(body, type=type_of(name))


def of_the_next_release(message: Any) -> Any:
    """The same message with a field more in every object."""
    if isinstance(message, list):
        return [of_the_next_release(item) for item in message]
    if not isinstance(message, dict):
        return message
    more = {name: value if name in MAPS else of_the_next_release(value) for name, value in message.items()}
    return {**more, "added_later": {"values": [1, None, "text"]}}


def objects(message: Any) -> int:
    if isinstance(message, list):
        return sum(map(objects, message))
    if not isinstance(message, dict):
        return 0
    return 1 + sum(objects(value) for name, value in message.items() if name not in MAPS)


def test_the_messages_of_this_release_are_recorded_as_it_writes_them(tmp_path: Path) -> None:
    record(tmp_path)
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.json")}
    folder = RECORDED / RELEASE
    before = {path.relative_to(folder): path.read_text() for path in folder.rglob("*.json")}
    assert written == before, "before the release is tagged: python -m tests.wire_messages; after: a new RELEASE"


@pytest.mark.parametrize(("release", "name"), MESSAGES)
def test_every_field_of_an_older_release_is_read(release: str, name: str) -> None:
    message = recorded(release)[name]
    assert contains(msgspec.to_builtins(decode(name, message)), message)


def contains(read: Any, written: Any) -> bool:
    if isinstance(written, dict):
        return all(name in read and contains(read[name], value) for name, value in written.items())
    if isinstance(written, list):
        return len(read) == len(written) and all(map(contains, read, written))
    return bool(read == written)


@pytest.mark.parametrize(("release", "name"), MESSAGES)
def test_fields_that_a_newer_release_adds_change_nothing_and_are_found(release: str, name: str) -> None:
    message = recorded(release)[name]
    newer = of_the_next_release(message)
    assert decode(name, newer) == decode(name, message)
    found = unknown_in(type_of(name), msgspec.json.encode(newer))
    assert len(found) == objects(message)
    assert all(text.startswith("field ") and text.endswith(".added_later") for text in found)
    assert unknown_in(type_of(name), msgspec.json.encode(message)) == []


@pytest.mark.parametrize("release", RELEASES)
def test_a_report_with_new_kinds_and_values_counts_without_them(release: str) -> None:
    message = recorded(release)["http/report"]
    facts = {fact["type"]: fact for fact in message["facts"]}
    new = [
        {"type": "fan_stopped", "at": 1.0},
        {**facts["hardware"], "kind": "nvml_smoke"},
        {**facts["anomaly"], "kind": "throughput_drop"},
    ]
    newer = {
        **message,
        "release": "99.0",
        "facts": [*new, *message["facts"]],
        "gpus": [*message["gpus"], {"index": 9, "status": "on_fire"}],
    }
    decoded = decode_report(msgspec.json.encode(newer))
    original = msgspec.json.decode(msgspec.json.encode(message), type=Report)
    assert decoded.report.facts == original.facts
    assert decoded.report.gpus[:-1] == original.gpus
    assert decoded.report.gpus[-1].status is GpuStatus.UNKNOWN
    assert sorted(decoded.unknown) == [
        "kind fan_stopped",
        "value Anomaly.kind=throughput_drop",
        "value Gpu.status=on_fire",
        "value HardwareEvent.kind=nvml_smoke",
    ]
    assert len(decoded.ignored) == 3


def test_no_release_sends_the_value_unknown() -> None:
    """It is what a receiver makes of a value that it does not know."""
    text = "".join(path.read_text() for path in RECORDED.rglob("*.json"))
    assert {GpuStatus.UNKNOWN, AnomalyKind.UNKNOWN, HardwareKind.UNKNOWN} == {"unknown"}
    assert '"unknown"' not in text


def test_a_message_of_this_release_is_not_searched_for_unknown_content() -> None:
    """It would take several times as long as decoding, for each report of a fleet."""
    body = msgspec.json.encode(recorded(RELEASE)["http/report"] | {"added_later": 1})
    assert decode_report(body).unknown == []
    assert decode_report(body.replace(RELEASE.encode(), b"9.9.9", 1)).unknown == ["field Report.added_later"]
