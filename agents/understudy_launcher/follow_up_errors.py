"""Tracebacks of ranks that lost the connection to another rank, shortened in the job's output.

When a rank ends, each of its peers ends with a traceback of its own, in which gloo, NCCL or the TCPStore reports the
connection that broke: thousands of lines about one error. The error is shown, and where the program stood; the frames
of libraries are not. A traceback with any other error passes unchanged. A link that fails breaks connections, too, so
the note names no cause. Pure.
"""

from __future__ import annotations

import io
import re

HELD_BYTES_MAX = 65_536
"""A longer traceback passes unchanged."""

_BEGINNING = b"Traceback (most recent call last):"
_PREFIX_BEGINS = re.compile(rb"\[r\w*\]?:?")
_GOES_ON = re.compile(
    rb"\s.*|Traceback .*|During handling of the above exception.*|The above exception was the direct.*|"
)
_PREFIX = re.compile(rb"\[rank\d+\]: ?")
_FOLLOWS = re.compile(
    rb"gloo/transport/.*(?:Connection (?:closed|reset) by|Broken pipe)"
    rb"|ncclRemoteError|remote process exited or there was a network error"
    rb"|Did the remote server shutdown or crash"
)
"""Errors about a connection that broke. Those of gloo were recorded with PyTorch 2.13. Those of NCCL
(`ncclGetErrorString`) and the TCPStore (torch/csrc/distributed/c10d/Utils.hpp) are from their sources, never seen.
"""
_FRAME = re.compile(rb'  File "([^"]*)", line ')
_OF_LIBRARY = re.compile(rb"<frozen |.*/(?:site-packages|dist-packages|torch|lib/python[\d.]+)/")
_OF_MESSAGE = re.compile(rb"nccl\w+Error: |Last error:|frame #\d+: |Exception raised from ")
"""Further lines of such an error."""


class Fold:
    """One stream of one process."""

    def __init__(self) -> None:
        self._line = b""
        """A line that has not ended, of which nothing has passed."""
        self._passing = False
        """The beginning of the line has passed."""
        self._held: list[bytes] = []
        """Lines of a traceback whose error has not come."""
        self._held_bytes = 0
        self._folded = False
        """The lines above were of an error that was folded."""

    def feed(self, piece: bytes) -> bytes:
        """What is to be shown now."""
        shown: list[bytes] = []
        for line in io.BytesIO(piece):
            is_whole = line.endswith(b"\n")
            if self._passing:
                shown.append(line)
                self._passing = not is_whole
            elif is_whole:
                whole, self._line = self._line + line, b""
                shown.append(self._next(whole))
            else:
                self._line += line
                shown.append(self._of_partial_line())
        return b"".join(shown)

    def end(self) -> bytes:
        rest = b"".join(self._held) + self._line
        self._held, self._line = [], b""
        return rest

    def _of_partial_line(self) -> bytes:
        """A progress bar ends no line, and waits for nothing."""
        bare = _bare(self._line)
        may_begin = bare[: len(_BEGINNING)] == _BEGINNING[: len(bare)] or _PREFIX_BEGINS.fullmatch(self._line)
        if len(self._line) < HELD_BYTES_MAX and (self._held or may_begin):
            return b""
        self._passing, self._folded = True, False
        return self.end()

    def _next(self, line: bytes) -> bytes:
        if self._folded and _OF_MESSAGE.match(_bare(line)):
            return b""
        self._folded = False
        if not self._held:
            if _bare(line) != _BEGINNING:
                return line
            self._held, self._held_bytes = [line], len(line)
            return b""
        self._held.append(line)
        self._held_bytes += len(line)
        of_another = _prefix(line) != _prefix(self._held[0])
        if not of_another and _GOES_ON.fullmatch(_bare(line)):
            return self.end() if self._held_bytes > HELD_BYTES_MAX else b""
        if of_another or not _FOLLOWS.search(line):
            return self.end()
        frame = _innermost(self._held[1:-1])
        count, self._held, self._folded = len(self._held) - len(frame) - 1, [], True
        note = b"the connection to another rank broke; of its traceback, lines left out: %d" % count
        return b"%sunderstudy: %s\n%s%s" % (_prefix(line), note, b"".join(frame), line)


def _innermost(lines: list[bytes]) -> list[bytes]:
    """The last frame that is not of a library, or else the last one."""
    begins = [(at, found[1]) for at, line in enumerate(lines) if (found := _FRAME.match(_bare(line)))]
    own = [at for at, path in begins if not _OF_LIBRARY.match(path)] or [at for at, _ in begins]
    if not own:
        return []
    after = (at for at in range(own[-1] + 1, len(lines)) if not _bare(lines[at]).startswith(b"    "))
    return lines[own[-1] : next(after, len(lines))]


def _prefix(line: bytes) -> bytes:
    found = _PREFIX.match(line)
    return found.group() if found else b""


def _bare(line: bytes) -> bytes:
    return line[len(_prefix(line)) :].rstrip(b"\r\n")
