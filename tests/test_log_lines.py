"""One event, one line: agent and control plane name events alike and use one set of keys."""

from __future__ import annotations

import ast
import errno
import functools
import io
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from understudy_agent.log import KeyValueFormatter
from understudy_controlplane.serve import StandardError, configure_logging

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = ("agents/understudy_agent", "agents/understudy_keeper", "controlplane/understudy_controlplane")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}

KEYS = {
    "action": "what a decision or an operator's request does",
    "address": "from which a request came, or of a keeper",
    "answer": "where an attempt continues: a member of RestoreAnswer",
    "ask": "what a provider of nodes is asked: a member of Ask",
    "attempt": "restart count and launch of a job",
    "because": "why a decision is what it is: a member of Because",
    "boot_id": "boot of the node",
    "call": "call of pyslurm",
    "cause": "why a report is refused: a member of Cause",
    "changed": "settings that came into force, with the values before and now",
    "cluster": "Slurm's ClusterName",
    "count": "how many; the event says of what",
    "detail": "what proved a step, or what was done",
    "error": "text of an exception or of a refusal",
    "fact": "a fact, as JSON",
    "gateway": "how Slurm is called",
    "header": "name of an HTTP header",
    "holds": "nodes that a maintenance takes next",
    "host": "address that is listened on",
    "jump_seconds": "by how much the machine's clock was set; negative: back",
    "is_over": "whether a maintenance has ended",
    "job": "Slurm's job id, or cluster/id@submit time",
    "kind": "kind of a hardware event",
    "mode": "observe or act",
    "needed_by": "step that needs another one",
    "node": "NodeName",
    "term": "term in which a control plane leads",
    "waits_seconds": "time for which it changes nothing in Slurm",
    "number": "number in a hardware event",
    "outcome": "how a recovery ended, in words",
    "part": "part of the hardware, or of a round of the control plane",
    "path": "file or directory",
    "pid": "process id",
    "port": "port that is listened on",
    "rank": "rank of a gang",
    "reason": "why, in words",
    "receiver": "receiver of notifications",
    "recovery": "id of a recovery",
    "release": "version of the sender",
    "releases": "nodes that a maintenance gives back",
    "remedy": "what is done instead",
    "row": "row of the table of decisions",
    "sender": "node, or address, of a report",
    "sequence": "number of a kernel record",
    "settings": "names of settings",
    "silent_seconds": "time without an answer",
    "socket": "path of the ranks' socket",
    "source": "where a topology is read from, or who sent a signal",
    "status": "status of a recovery",
    "step": "step of a recovery",
    "subject": "node, job, pool or fleet that a decision is about",
    "summary": "what a signal of the site says",
    "target": "node or rack that a provider is asked about",
    "targets": "nodes and domains that a signal is about",
    "text": "text of a kernel record or of a warning",
    "ticket": "label of a ticket",
    "tries": "how often a step was tried",
    "type": "type of a message",
    "url": "address of a control plane or a webhook",
    "what": "name of what is not known",
    "who": "label of the token of a request",
    "xid": "number of an Xid",
}


@functools.cache
def log_calls() -> list[tuple[str, ast.Call]]:
    """Place of each log line, and the call that logs it."""
    return list(find_log_calls())


def find_log_calls() -> Iterator[tuple[str, ast.Call]]:
    for source in SOURCES:
        for path in sorted((REPOSITORY / source).rglob("*.py")):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if "log." in text or "get_logger()" in text else ():
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
                    logger = ast.unparse(node.func.value)
                    if logger == "log" or logger.endswith("get_logger()"):
                        yield f"{path.relative_to(REPOSITORY)}:{node.lineno}", node


def keys(call: ast.Call) -> set[str]:
    """The keys of the line; the agent's are those of `fields(...)` in `extra`."""
    extra = next((one.value for one in call.keywords if one.arg == "extra"), None)
    keywords = extra.keywords if isinstance(extra, ast.Call) else call.keywords
    return {one.arg for one in keywords if one.arg is not None} - {"exc_info"}  # whether the trace is logged


def test_events_are_named_alike() -> None:
    events = {where: call.args[0].value for where, call in log_calls() if isinstance(call.args[0], ast.Constant)}
    assert len(events) > 30
    assert {where: event for where, event in events.items() if not re.fullmatch(r"[a-z]+(_[a-z]+)*", str(event))} == {}


def test_keys_are_one_set() -> None:
    used = {where: keys(call) for where, call in log_calls()}
    assert {where: found - KEYS.keys() for where, found in used.items() if found - KEYS.keys()} == {}


class FullDisk(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


HOSTILE = ["a\x1b[2J", "\x07", "a\rb", "x\x9b31m", "\u202etxt", "a\x7f", "two words\x1b]0;x\x07", 'quote"\x1b', "\x00"]


@pytest.mark.parametrize("value", HOSTILE)
def test_nothing_that_controls_a_terminal_reaches_a_log(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Paths, names and texts in it come from users, and from clients without a token."""
    record = logging.LogRecord("understudy.agent", logging.INFO, "", 0, f"event {value}", None, None)
    record.fields = {"path": value, "error": OSError(value)}
    assert KeyValueFormatter().format(record).isprintable()
    configure_logging()
    structlog.get_logger().info("event", path=value, error=OSError(value), sender=[value])
    line = capsys.readouterr().err
    assert line.removesuffix("\n").isprintable()
    assert line.count("\n") == 1


def test_a_log_on_a_full_disk_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", FullDisk())
    assert StandardError().write("a line\n") == 0
    StandardError().flush()
