"""Whatever bytes come in, decoding a message says what is wrong in one of the ways that its callers know."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import builders as b
from understudy_agent import rank_messages
from understudy_wire.launcher import LauncherAnswer, LauncherReport
from understudy_wire.messages import Acknowledgement, Report, RestorePoint
from understudy_wire.values import NOT_UNDERSTOOD

DECODERS = [
    msgspec.json.Decoder(kind) for kind in (Report, LauncherReport, LauncherAnswer, Acknowledgement, RestorePoint)
]

LINES = (
    msgspec.json.encode(b.report("n1", facts=[b.xid_event("n1", 79).event])),
    b'{"type":"hello","job_id":7,"restart_count":0,"rank":0,"world_size":4}',
    b'{"type":"dance","of":[1]}',
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message with some of its bytes replaced, or left out, or put in."""
    line = bytearray(draw(st.sampled_from(LINES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(line)))
        rubbish = st.binary(max_size=8) | st.sampled_from([b"[" * 50_000, b"{", b"1e999"])
        line[at : at + draw(st.integers(0, 8))] = draw(rubbish)
    return bytes(line)


@given(st.binary() | damaged())
def test_damaged_messages_are_not_understood_and_no_more(line: bytes) -> None:
    for decoder in DECODERS:
        with contextlib.suppress(*NOT_UNDERSTOOD):
            decoder.decode(line)
    with contextlib.suppress(msgspec.MsgspecError):
        rank_messages.decode(line)


def test_a_rank_that_says_what_is_no_text_or_has_no_end_is_not_understood() -> None:
    for line in (b'{"type":"\xe2"}', b'{"type":"dance","of":' + b"[" * 60_000):
        with pytest.raises(msgspec.MsgspecError):
            rank_messages.decode(line)
