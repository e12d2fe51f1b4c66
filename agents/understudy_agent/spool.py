"""Facts on disk that the control plane has not acknowledged: they survive a restart of the agent.

One JSON object in each line. Facts are appended when a report has failed; the file is removed when none waits. A fact
that was acknowledged meanwhile may be in it still: the control plane counts it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from understudy_agent.facts import NodeFact
from understudy_agent.log import fields, log
from understudy_agent.own_files import append_to_file, make_directory, read_file, replace_file
from understudy_wire.facts import Fact
from understudy_wire.values import NOT_UNDERSTOOD

SPOOL_BYTES_MAX = 4 * 2**20
"""Half of it is for what users report."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Fact)


class Spool:
    """`keep` may run in another thread, one call at a time."""

    def __init__(self, path: Path, bytes_max: int = SPOOL_BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._lines: dict[Fact, int] = {}
        """What is in the file, with the length of each line."""
        self._problem = ""
        self._aside = ""

    def load(self) -> list[Fact]:
        """What an earlier agent left. A file that cannot be read, or in part only, is set aside."""
        try:
            content = read_file(self._path)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._set_aside(str(error))
            return []
        *lines, unfinished = content.split(b"\n")
        facts, unreadable = [], 0
        for line in lines:
            try:
                facts.append(_decoder.decode(line))
            except NOT_UNDERSTOOD:
                unreadable += 1
        if unreadable:
            self._set_aside(f"{unreadable} of {len(lines)} lines cannot be read")
        elif unfinished:  # the agent was killed while it wrote this line
            self._rewrite(facts)
        else:
            self._lines = {fact: len(line) + 1 for fact, line in zip(facts, lines, strict=True)}
        return facts

    def keep(self, waiting: Sequence[Fact]) -> None:
        """Everything of this that fits is on disk when it returns, those of the node first. No error is raised."""
        try:
            if not waiting:
                self._remove()
            else:
                self._add([fact for fact in waiting if fact not in self._lines], waiting)
        except OSError as error:
            self._note(f"{self._path}: facts that wait cannot be written: {error}; a restart of the agent loses them")
        else:
            self._note("")

    @property
    def empty(self) -> bool:
        return not self._lines

    def problems(self) -> list[str]:
        return [problem for problem in (self._aside, self._problem) if problem]

    def _add(self, new: Sequence[Fact], waiting: Sequence[Fact]) -> None:
        lines = self._fitting(new, self._lines)
        outdated = len(lines) < len(new) and not self._lines.keys() <= set(waiting)
        if outdated:
            self._rewrite(waiting)
        elif lines:
            self._append(lines)

    def _append(self, lines: dict[Fact, bytes]) -> None:
        content = b"".join(lines.values())
        try:
            append_to_file(self._path, content)
        except FileNotFoundError:
            make_directory(self._path.parent)
            append_to_file(self._path, content)
        self._lines |= {fact: len(line) for fact, line in lines.items()}

    def _rewrite(self, facts: Sequence[Fact]) -> None:
        lines = self._fitting(facts, {})
        replace_file(self._path, b"".join(lines.values()), durable=True)
        self._lines = {fact: len(line) for fact, line in lines.items()}

    def _fitting(self, facts: Sequence[Fact], beside: dict[Fact, int]) -> dict[Fact, bytes]:
        """The lines of these that fit into the file beside those that are in it."""
        room = self._bytes_max - sum(beside.values())
        of_users = self._bytes_max // 2 - sum(size for fact, size in beside.items() if not isinstance(fact, NodeFact))
        lines: dict[Fact, bytes] = {}
        for fact in facts:
            line = _encoder.encode(fact) + b"\n"
            if len(line) > room or (not isinstance(fact, NodeFact) and len(line) > of_users):
                continue
            room -= len(line)
            of_users -= 0 if isinstance(fact, NodeFact) else len(line)
            lines[fact] = line
        return lines

    def _remove(self) -> None:
        if self._lines:
            self._path.unlink(missing_ok=True)
            self._lines = {}

    def _set_aside(self, why: str) -> None:
        aside = self._path.with_name(f"{self._path.name}.unreadable")
        self._aside = f"{self._path}: {why}; it is now {aside}"
        log.error("spool_set_aside", extra=fields(path=aside, error=why))
        try:
            self._path.replace(aside)
        except OSError as error:
            self._aside = f"{self._path}: {why}, and it cannot be moved: {error}"

    def _note(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.error("spool_not_written", extra=fields(path=self._path, error=problem))
        self._problem = problem
