"""A seat's greeting to a launcher of release 0.2, whose package was replaced under it while its gang runs.

Belongs here: that greeting, which proves on both sides that they know the secret, and encrypts nothing. Release 0.4
does not need it any more. Must not: being used where the launcher has named its certificate.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket

from understudy_agent.launch.protocol import Lines, Message, ProtocolError, encode, text
from understudy_agent.launch.tls import is_secret


def answer(secret: str, side: str, challenge: str) -> str:
    """The proof. With `side` in it, an answer of one side cannot be used as an answer of the other side."""
    return hmac.new(secret.encode(), f"{side}:{challenge}".encode(), hashlib.sha256).hexdigest()


def introduce(link: socket.socket, secret: str) -> str:
    """Returns what proves to the launcher that this seat knows the secret. Raises ProtocolError and OSError."""
    challenge = secrets.token_hex(16)
    link.sendall(encode("seat", challenge=challenge))
    welcome = _welcome(link)
    if not is_secret(welcome.get("answer"), answer(secret, "launcher", challenge)):
        raise ProtocolError("the program at the launcher's address does not know this launch's secret")
    return answer(secret, "seat", text(welcome, "challenge"))


def _welcome(link: socket.socket) -> Message:
    """The launcher sends nothing else before it has read the hello."""
    lines = Lines()
    waiting: list[Message] = []
    while not waiting:
        piece = link.recv(65536)
        if not piece:
            raise ConnectionAbortedError("the launcher closed the connection")
        waiting = lines.feed(piece)
    return waiting[0]
