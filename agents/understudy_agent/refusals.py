"""What a control plane answers where it does not do what it was asked, as one line for a log."""

from __future__ import annotations

import httpx
import msgspec

from understudy_wire.messages import Refusal
from understudy_wire.values import NOT_UNDERSTOOD

CHARACTERS_MAX = 500

_decoder = msgspec.json.Decoder(Refusal)


def describe(answer: httpx.Response) -> str:
    """Status, cause and remedy; of an answer that no control plane gave, the beginning of its body."""
    try:
        refusal = _decoder.decode(answer.content)
    except NOT_UNDERSTOOD:
        text = answer.text
    else:
        text = f"{refusal.detail}; {refusal.hint}" if refusal.hint else refusal.detail
    return f"HTTP {answer.status_code} {text[:CHARACTERS_MAX]}".rstrip()
