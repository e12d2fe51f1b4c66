"""What the two ends of a connection raise."""

from __future__ import annotations


class ProtocolError(Exception):
    """The other side sent what makes no sense; the text describes it."""


class ClosedError(Exception):
    """The other side closed the connection between two messages."""
