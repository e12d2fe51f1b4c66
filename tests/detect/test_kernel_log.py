"""What follows from lines of the kernel log that have no code."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests import builders as b
from tests.kernel_lines import LINES, NOTHING
from understudy_agent.sample.kernel_record import parse_record
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.node_log import NodeLog
from understudy_controlplane.detect.xid import SIGNALS
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.node import StoredKernelEvent
from understudy_controlplane.xid_policy import FaultClass, default_policy
from understudy_wire.facts import KernelEvent

SUSPECT, RECORDED = Signal.HEALTH_SUSPECTED, Signal.RECORDED

SPELLINGS = [(text, name) for name, (_, _, texts) in LINES.items() for text in texts]
TEXT = {name: texts[0] for name, (_, _, texts) in LINES.items()}
ADDRESS = re.compile(r"[0-9a-f]{4,5}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


def logged(text: str, ago: float = 1.0, sequence: int = 1) -> StoredKernelEvent:
    return StoredKernelEvent(sequence, "n3", b.NOW - 1, KernelEvent(b.BOOT, sequence, b.NOW - ago, text))


def findings(*events: StoredKernelEvent, **xid: Any) -> list[tuple[Signal, str]]:
    snapshot = b.snapshot(b.node("n3", events=events))
    return [(one.signal, one.rule) for one in detect(snapshot, b.config(xid=xid))]


@pytest.mark.parametrize("name", LINES)
def test_each_row_has_its_class_and_repair(name: str) -> None:
    fault, repair, _ = LINES[name]
    (finding,) = detect(b.snapshot(b.node("n3", events=(logged(TEXT[name]),))), b.config())
    assert (finding.rule, finding.signal) == (f"kernel.{name}", SIGNALS[FaultClass(fault)])
    assert finding.evidence.shown()["repair"] == repair


@pytest.mark.parametrize(("text", "name"), SPELLINGS)
def test_every_spelling_is_of_its_row_and_names_its_device(text: str, name: str) -> None:
    assert default_policy().kernel_row(text) == name
    address = ADDRESS.search(text)
    assert default_policy().kernel[name].device(text) == (address[0] if address else "")
    assert parse_record(f"4,1,1,-;{text}", "b", 0.0, default_policy().kernel_log.patterns) is not None


def test_every_row_is_tested() -> None:
    assert LINES.keys() == default_policy().kernel.keys()


def test_what_agents_are_asked_for_is_what_is_judged() -> None:
    policy = default_policy()
    assert [row.pattern for row in policy.kernel.values()] == list(policy.kernel_log.patterns)


@pytest.mark.parametrize("text", NOTHING)
def test_other_lines_mean_nothing(text: str) -> None:
    assert findings(logged(text)) == []


def test_a_line_makes_its_node_suspect_for_the_time_of_its_row() -> None:
    lockup = TEXT["soft_lockup"]
    assert findings(logged(lockup, ago=23 * 3600.0)) == [(SUSPECT, "kernel.soft_lockup")]
    assert findings(logged(lockup, ago=25 * 3600.0)) == []


def test_a_site_changes_a_row_by_its_name() -> None:
    change = {"kernel_policy": {"soft_lockup": {"class": "record"}}}
    assert findings(logged(TEXT["soft_lockup"]), **change) == [(RECORDED, "kernel.soft_lockup")]
    with pytest.raises(ValueError, match=r"kernel.soft_lock: no such row"):
        b.config(xid={"kernel_policy": {"soft_lock": {"class": "record"}}})


def test_lines_of_different_rows_are_kept_apart_and_those_of_one_are_joined() -> None:
    log = NodeLog(180.0)
    for sequence, name in enumerate(("soft_lockup", "soft_lockup", "rank_out_of_memory", "filesystem_down"), 1):
        log.add(logged(TEXT[name], sequence=sequence))
    assert [one.count for one in log.events(0.0)] == [2, 1, 1]


def test_a_line_that_a_third_of_the_fleet_writes_makes_no_node_suspect() -> None:
    lockup = logged(TEXT["soft_lockup"])
    nodes = [b.node(f"n{i}", events=(lockup,)) for i in range(1, 5)]
    (finding,) = detect(b.snapshot(*nodes), b.config())
    assert (finding.signal, finding.rule, finding.node) == (Signal.DOMAIN_FAULT, "kernel.soft_lockup", "")
    assert len(detect(b.snapshot(*nodes[:3]), b.config())) == 3
